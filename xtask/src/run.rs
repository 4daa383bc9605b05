//! `cargo xtask run`: a node with the example pods on a containerd of its own, for people to look at.

use crate::own_files;
use crate::try_run::UP;
use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{
    Containerd, Flavor, HostPortChains, Http, Instance, build_dir, mainstay_binary, workspace_root,
};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NODE_NAME: &str = "local";
/// Below the run's directory.
pub(crate) const MANIFESTS: &str = "manifests";
const START_DEADLINE: Duration = Duration::from_secs(180);
/// One that ends sooner after its start was not killed by somebody, but cannot run.
pub(crate) const LIVED_A_WHILE: Duration = Duration::from_secs(2);
/// Longer than any example's terminationGracePeriodSeconds.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// At Ctrl-C or SIGTERM.
    Interrupted,
    /// As soon as every example pod has run.
    AllHaveRun,
}

/// `cargo xtask run`.
pub(crate) fn run(until: Until) -> Result<()> {
    let interrupts = Interrupts::watch()?;
    let _only_one = claim()?;
    let program = mainstay_binary()?;
    let examples = workspace_root().join("examples");
    let expected = expected_pods(&examples)?;

    // Of a run that was killed; the next sweeps its directory.
    own_files::keep(&Instance::for_run().dir().join(MANIFESTS), &examples)?;
    let start = Instant::now();
    let containerd = private_containerd()?;
    // What a run that was killed has left is swept by now.
    let chains = HostPortChains::now();
    println!("containerd is ready after {:.1} s", start.elapsed().as_secs_f32());

    let mut node = Node::start(&program, &containerd, &examples)?;
    let outcome = node.wait_for(&expected, &interrupts).and_then(|all_have_run| {
        if all_have_run && until == Until::Interrupted {
            node.show()?;
            node.watch(&interrupts)?;
        }
        Ok(())
    });
    if outcome.is_err() {
        println!("\nthe end of {}:\n{}", relative(&node.log), node.log_tail());
    }
    let own = own_files::keep(&node.manifests, &examples)?;
    println!("\nstopping the pods (again Ctrl-C: at once)");
    node.remove_pods(&interrupts);
    node.stop();
    containerd.remove().context("cannot remove everything of this run; `make run` tries again")?;
    chains.restore()?;
    println!("removed its pods, containers, mounts, cgroups and network");
    if !own.is_empty() {
        println!("kept your manifests for the next run: {} (.build/own-manifests)", own.join(", "));
    }
    outcome
}

/// A containerd of this checkout's own, for people: its pods reach the world, and the world their host ports.
pub(crate) fn private_containerd() -> Result<Containerd> {
    println!("starting a private containerd in {}", relative(Instance::for_run().dir()));
    let containerd = Containerd::builder(Flavor::Debian16)
        .instance(Instance::for_run())
        .masquerade()
        .host_ports()
        .start()?;
    containerd.instance().make_cgroup()?;
    Ok(containerd)
}

/// Two runs in one checkout would share everything. The kernel drops the lock with the process.
pub(crate) fn claim() -> Result<File> {
    fs::create_dir_all(build_dir()).context("cannot make .build")?;
    let lock = File::create(build_dir().join("run.lock")).context("cannot open .build/run.lock")?;
    if lock.try_lock().is_err() {
        bail!("`make run` or `make cluster` is running in this checkout already; stop it first");
    }
    Ok(lock)
}

/// Counts SIGINT and SIGTERM.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts(Arc<AtomicU32>);

impl Interrupts {
    pub(crate) fn watch() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot watch for signals")?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            let interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
            (interrupt, signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?)
        };
        // The thread ends with the process; it owns nothing that would need an orderly end.
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    // Both branches only wait for a signal; a lost race loses nothing.
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        Ok(Self(count))
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The pods of the examples as `namespace/name` on the node.
fn expected_pods(examples: &Path) -> Result<BTreeSet<String>> {
    let mut pods = BTreeSet::new();
    for path in manifests(examples)? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        pods.extend(pods_in(&text).with_context(|| format!("{} is not YAML", path.display()))?);
    }
    ensure!(!pods.is_empty(), "no pod in {}", examples.display());
    Ok(pods)
}

fn pods_in(text: &str) -> Result<Vec<String>> {
    serde_yaml_ng::Deserializer::from_str(text)
        .map(|document| Ok(Value::deserialize(document)?))
        .filter(|value: &Result<Value>| value.as_ref().map_or(true, |value| value["kind"] == "Pod"))
        .map(|value| {
            let value = value?;
            let field = |name: &str| value["metadata"][name].as_str();
            let namespace = field("namespace").unwrap_or("default");
            let name = field("name").context("a pod without a name")?;
            Ok(format!("{namespace}/{name}-{NODE_NAME}"))
        })
        .collect()
}

fn manifests(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    Ok(paths)
}

/// mainstay with what it was started on.
#[derive(Debug)]
struct Node {
    program: PathBuf,
    root: PathBuf,
    manifests: PathBuf,
    log: PathBuf,
    /// What it was started with, to start it again.
    arguments: Vec<OsString>,
    started: Instant,
    child: Child,
}

impl Node {
    fn start(program: &Path, containerd: &Containerd, examples: &Path) -> Result<Self> {
        let dir = containerd.dir();
        let [root, manifest_dir, pod_logs] = ["node", MANIFESTS, "logs"].map(|name| dir.join(name));
        for dir in [&root, &manifest_dir, &pod_logs] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        for path in manifests(examples)? {
            let name = path.file_name().context("a manifest without a name")?;
            fs::copy(&path, manifest_dir.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
        let own = own_files::put_back(&manifest_dir)?;
        if !own.is_empty() {
            println!("your manifests of the last run are there again: {}", own.join(", "));
        }
        let log_path = dir.join("mainstay.log");
        File::create(&log_path).context("cannot make a log")?;
        println!("starting mainstay on {}", relative(&manifest_dir));
        let cgroup = format!("/{}", containerd.instance().cgroup_name());
        let endpoint = containerd.endpoint();
        let arguments: [&OsStr; 15] = [
            "run".as_ref(),
            "--root-dir".as_ref(),
            root.as_ref(),
            "--manifests".as_ref(),
            manifest_dir.as_ref(),
            "--runtime-endpoint".as_ref(),
            endpoint.as_ref(),
            "--pod-logs-dir".as_ref(),
            pod_logs.as_ref(),
            "--cgroup-root".as_ref(),
            cgroup.as_ref(),
            "--node-name".as_ref(),
            NODE_NAME.as_ref(),
            // The usual port may be another node's.
            "--healthz-port".as_ref(),
            "0".as_ref(),
        ];
        let arguments = arguments.map(OsStr::to_owned).to_vec();
        let child = spawn(program, &arguments, &log_path)?;
        let (program, started) = (program.to_path_buf(), Instant::now());
        Ok(Self { program, root, manifests: manifest_dir, log: log_path, arguments, started, child })
    }

    /// Starts mainstay again if somebody killed it: its pods go on meanwhile, and the manifests may have been edited. One that
    /// does not stay up is an error.
    fn keep_alive(&mut self) -> Result<()> {
        let Err(end) = self.check_alive() else { return Ok(()) };
        if self.started.elapsed() < LIVED_A_WHILE {
            return Err(end);
        }
        println!("\n{end}; its pods go on; starting it again");
        self.child = spawn(&self.program, &self.arguments, &self.log)?;
        self.started = Instant::now();
        Ok(())
    }

    /// Waits until every expected pod has run; `false` when interrupted.
    fn wait_for(&mut self, expected: &BTreeSet<String>, interrupts: &Interrupts) -> Result<bool> {
        let start = Instant::now();
        let terminal = std::io::stdout().is_terminal();
        let mut shown = String::new();
        loop {
            if interrupts.count() > 0 {
                return Ok(false);
            }
            self.keep_alive()?;
            let phases = self.phases().unwrap_or_default();
            let missing: Vec<&str> = expected
                .iter()
                .filter(|pod| phases.get(*pod).is_none_or(|phase| phase == "Pending"))
                .map(String::as_str)
                .collect();
            let ready = expected.len() - missing.len();
            let line = format!("{ready} of {} pods have started", expected.len());
            if terminal {
                print!("\r{line} ({:.1} s) ", start.elapsed().as_secs_f32());
                std::io::stdout().flush().ok();
            } else if line != shown {
                println!("{line} ({:.1} s)", start.elapsed().as_secs_f32());
                shown = line;
            }
            if missing.is_empty() {
                println!();
                return Ok(true);
            }
            if start.elapsed() > START_DEADLINE {
                bail!("not started within {} s: {}", START_DEADLINE.as_secs(), missing.join(", "));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Prints the pods and where to look further.
    fn show(&self) -> Result<()> {
        let status = Command::new(&self.program)
            .args(["pods", "--root-dir"])
            .arg(&self.root)
            .status()
            .context("cannot run mainstay pods")?;
        ensure!(status.success(), "mainstay pods failed");
        println!("\nlook further, in another terminal:");
        let (describe, logs) = (format!("describe pod web-{NODE_NAME}"), format!("logs -f web-{NODE_NAME}"));
        print_commands(&self.program, &self.root, &["pods --watch", &describe, &logs, "stats", "events"]);
        println!(
            "change a pod or add one: edit a file in {} (files that you add are kept for the next run, changes of the examples are not); mainstay's log: {}",
            relative(&self.manifests),
            relative(&self.log)
        );
        println!("\n{UP}");
        Ok(())
    }

    fn watch(&mut self, interrupts: &Interrupts) -> Result<()> {
        while interrupts.count() == 0 {
            self.keep_alive()?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot ask for mainstay's state")? {
            Some(status) => bail!("mainstay ended by itself ({status})"),
            None => Ok(()),
        }
    }

    /// Phase by `namespace/name`.
    fn phases(&self) -> Result<BTreeMap<String, String>> {
        let answer = Http::Unix(self.root.join("mainstay.sock")).get("/pods")?;
        ensure!(answer.status == 200, "status {}", answer.status);
        let list: Value = serde_json::from_slice(&answer.body).context("/pods is not JSON")?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(items
            .iter()
            .map(|pod| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
                (format!("{}/{}", text(namespace), text(name)), text(&pod["status"]["phase"]))
            })
            .collect())
    }

    /// Takes the manifests away, so that mainstay ends the pods in their own time.
    fn remove_pods(&mut self, interrupts: &Interrupts) {
        let before = interrupts.count();
        for path in manifests(&self.manifests).unwrap_or_default() {
            fs::remove_file(path).ok();
        }
        let start = Instant::now();
        while start.elapsed() < STOP_DEADLINE && interrupts.count() == before && self.check_alive().is_ok() {
            // What is left when the time is up ends with the containerd.
            if self.phases().is_ok_and(|phases| phases.is_empty()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) {
        // It may have ended already, which is as good.
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        let start = Instant::now();
        while self.check_alive().is_ok() && start.elapsed() < STOP_DEADLINE {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }
}

fn spawn(program: &Path, arguments: &[OsString], log: &Path) -> Result<Child> {
    let log = File::options().append(true).open(log).context("cannot open mainstay's log")?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share a log")?)
        .stderr(log)
        // Ctrl-C is for this program, which first has the pods stopped.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Prints commands of mainstay's own that look at a node, and that they are not the only way.
pub(crate) fn print_commands(program: &Path, root: &Path, commands: &[&str]) {
    let (program, root) = (relative(program), relative(root));
    for command in commands {
        println!("  {program} {command} --root-dir {root}");
    }
    println!("  curl --unix-socket {root}/mainstay.sock http://localhost/pods");
}

/// A path as someone standing in the checkout would type it.
pub(crate) fn relative(path: &Path) -> String {
    path.strip_prefix(workspace_root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_among_other_documents() {
        let text = "kind: ConfigMap\nmetadata: {name: c}\n---\nkind: Pod\nmetadata: {name: web}\n---\n\
                    kind: Pod\nmetadata: {name: job, namespace: batch}\n";
        assert_eq!(pods_in(text).unwrap(), ["default/web-local", "batch/job-local"]);
        assert!(pods_in("kind: Pod\nmetadata: {}\n").is_err());
    }

    #[test]
    fn the_examples_are_read() {
        let pods = expected_pods(&workspace_root().join("examples")).unwrap();
        assert!(pods.contains("default/web-local"), "{pods:?}");
    }
}
