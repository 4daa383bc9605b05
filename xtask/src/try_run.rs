//! `make run`, tried: until every example pod has run, and until Ctrl-C. Nothing may be left of either.

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
        let pid = i32::try_from(run.id()).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(pid, Signal::INT).context("cannot interrupt xtask run")?;
    }
    // Whoever writes to a pipe that nobody reads waits for ever.
    lines.map_while(Result::ok).for_each(|line| println!("{line}"));
    ended(&mut run, "xtask run, interrupted")?;
    ensure!(is_up, "xtask run never said that it is up");
    Ok(())
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
