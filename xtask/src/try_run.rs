//! `make run` and `make cluster`, tried: until what is in the examples has run, and until Ctrl-C. Nothing may be left of either.

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{Instance, workspace_root};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that a run may take to end; it takes seconds, where nobody else wants the machine.
const END_DEADLINE: Duration = Duration::from_secs(600);
/// What `run` says when everything is up.
pub(crate) const UP: &str = "Ctrl-C stops it all and removes what it made";
/// What `cluster` says then.
pub(crate) const CLUSTER_UP: &str = "Ctrl-C ends the cluster and removes all of it";
/// How long the example of the cluster may take to run; seconds, where nobody else wants the machine.
const ROLLOUT_DEADLINE: &str = "--timeout=180s";

/// Both ways to the end.
pub(crate) fn both() -> Result<()> {
    let mut once = start(&["run", "--once"])?;
    ended(&mut once, "xtask run --once")?;

    let mut run = start(&["run"])?;
    let output = run.stdout.take().context("xtask run has no output")?;
    let mut lines = BufReader::new(output).lines();
    let is_up =
        lines.by_ref().map_while(Result::ok).inspect(|line| println!("{line}")).any(|line| line == UP);
    if is_up {
        interrupt(&run)?;
    }
    // Whoever writes to a pipe that nobody reads waits for ever.
    lines.map_while(Result::ok).for_each(|line| println!("{line}"));
    ended(&mut run, "xtask run, interrupted")?;
    ensure!(is_up, "xtask run never said that it is up");
    Ok(())
}

/// A cluster, as people are told to use it: what it prints is typed, its node is Ready, the example runs, and Ctrl-C ends it.
pub(crate) fn cluster() -> Result<()> {
    let mut cluster = start(&["cluster"])?;
    let output = cluster.stdout.take().context("xtask cluster has no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut told = Vec::new();
    for line in lines.by_ref().map_while(Result::ok) {
        println!("{line}");
        told.push(line);
        if told.last().is_some_and(|line| line == CLUSTER_UP) {
            break;
        }
    }
    let is_up = told.last().is_some_and(|line| line == CLUSTER_UP);
    let played = if is_up { play(&told) } else { Ok(()) };
    if is_up {
        interrupt(&cluster)?;
    }
    lines.map_while(Result::ok).for_each(|line| println!("{line}"));
    ended(&mut cluster, "xtask cluster, interrupted")?;
    ensure!(is_up, "xtask cluster never said that it is up");
    played
}

/// Does what the lines say.
fn play(told: &[String]) -> Result<()> {
    let value = |before: &str| {
        let mut lines = told.iter().filter_map(|line| line.trim().strip_prefix(before));
        lines.next().map(str::to_owned).with_context(|| format!("no line begins with {before:?}"))
    };
    let (kubeconfig, program) = (value("export KUBECONFIG=")?, value("alias kubectl=")?);
    let example = value("kubectl apply -f ")?;
    let kubectl = |arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(&program);
        command.args(arguments).env("KUBECONFIG", &kubeconfig).current_dir(workspace_root());
        let output = command.output().with_context(|| format!("cannot run {program}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("$ kubectl {}\n{said}", arguments.join(" "));
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}\n{complaint}", arguments.join(" "), output.status);
        Ok(said)
    };
    let nodes = kubectl(&["get", "nodes", "--no-headers"])?;
    let states: Vec<_> = nodes.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    ensure!(states == ["Ready"], "one node, and Ready: {nodes}");
    kubectl(&["apply", "-f", &example])?;
    kubectl(&["rollout", "status", "deployment/web", ROLLOUT_DEADLINE])?;
    let log = kubectl(&["logs", "deployment/web"])?;
    ensure!(log.contains("serving on port 8080"), "{log}");
    Ok(())
}

fn interrupt(child: &Child) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process")?;
    kill_process(pid, Signal::INT).context("cannot interrupt xtask")
}

fn start(arguments: &[&str]) -> Result<Child> {
    // Not by its path: it may have been built anew since this one was started.
    let program = "/proc/self/exe";
    let piped = !arguments.contains(&"--once");
    Command::new(program)
        .args(arguments)
        .current_dir(workspace_root())
        .stdin(Stdio::null())
        .stdout(if piped { Stdio::piped() } else { Stdio::inherit() })
        .spawn()
        .context("cannot start xtask")
}

/// It ended well, and took everything with it.
fn ended(child: &mut Child, what: &str) -> Result<()> {
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for xtask")? {
            break status;
        }
        if begun.elapsed() > END_DEADLINE {
            child.kill().ok();
            child.wait().ok();
            anyhow::bail!("{what} did not end within {} s", END_DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    ensure!(status.success(), "{what}: {status}");
    let left = Instance::for_run().leftovers();
    ensure!(left.is_empty(), "{what} left {left:?}");
    Ok(())
}
