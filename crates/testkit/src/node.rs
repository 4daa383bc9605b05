//! mainstay under test: the real binary on a private containerd.

use crate::containerd::tail;
use crate::environment::in_test;
use crate::instance::unmount_below;
use crate::ports::free_address;
use crate::process::{self, Process};
use crate::{
    Body, CgroupDriver, Containerd, Http, OwnNetwork, build_dir, cgroups, mainstay_binary, tool, wait_until,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The answer of `/pods`.
pub type PodList = List<Pod>;

/// Both are generous, because machines are shared.
const START_DEADLINE: Duration = Duration::from_secs(120);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const LOG_LINES: usize = 40;

/// What a node is started with; everything has a default but the containerd.
#[derive(Debug, Default)]
pub struct NodeBuilder {
    endpoint: Option<String>,
    base: Option<PathBuf>,
    cgroup_root: Option<String>,
    root: Option<PathBuf>,
    manifests: Option<PathBuf>,
    name: Option<String>,
    overrides: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    program: Option<PathBuf>,
    upstream: bool,
    network: Option<OwnNetwork>,
}

impl NodeBuilder {
    /// The runtime to use; the node's files and cgroups belong to its instance, and it lives in the same network.
    #[must_use]
    pub fn containerd(mut self, containerd: &Containerd) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        self.endpoint.get_or_insert_with(|| containerd.endpoint());
        self.network = containerd.own_network().cloned();
        self.base = Some(containerd.dir().join(format!("node-{number}")));
        self.cgroup_root = Some(format!("/{}-{number}", containerd.instance().cgroup_name()));
        self
    }

    /// Another runtime endpoint than the containerd's own, for instance one that does not answer.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// `--root-dir`; a new directory otherwise.
    #[must_use]
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Some(root.into());
        self
    }

    /// `staticPodPath`; a new directory otherwise.
    #[must_use]
    pub fn manifests(mut self, dir: impl Into<PathBuf>) -> Self {
        self.manifests = Some(dir.into());
        self
    }

    /// `--hostname-override`; `node` otherwise.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// KubeletConfiguration fields as YAML, laid over the defaults of the kit; objects are merged.
    #[must_use]
    pub fn config(mut self, yaml: impl Into<String>) -> Self {
        self.overrides.push(yaml.into());
        self
    }

    /// More arguments for the command line.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<String>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// An environment variable of the process.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Another binary than [`mainstay_binary`].
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Runs upstream's kubelet (`cargo xtask tools kubelet`) with the same configuration, to compare with. It
    /// answers on its read-only port only.
    #[must_use]
    pub fn upstream(mut self) -> Self {
        self.upstream = true;
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// When there is no binary, or it ends or does not answer within two minutes; the message has the end of
    /// its log.
    pub fn start(self) -> Result<Node> {
        let mut node = self.prepare()?;
        node.start_again()?;
        Ok(node)
    }

    /// Starts it and does not wait, for starts that are meant to fail or to hang.
    ///
    /// # Errors
    /// When there is no binary, or the files cannot be written.
    pub fn spawn(self) -> Result<Node> {
        let mut node = self.prepare()?;
        node.spawn_again()?;
        Ok(node)
    }

    /// Writes its files and starts nothing yet, so that manifests can be there before the first start.
    ///
    /// # Errors
    /// When there is no binary, or the files cannot be written.
    pub fn prepare(self) -> Result<Node> {
        let program = match self.program {
            Some(program) => program,
            None if self.upstream => tool("kubelet")?,
            None => mainstay_binary()?,
        };
        let base = self.base.context("a node needs a containerd: call NodeBuilder::containerd")?;
        let mut read_only = free_address()?;
        if let Some(network) = &self.network {
            read_only.set_ip(network.address().into());
        }
        let node = Node {
            program,
            upstream: self.upstream,
            endpoint: self.endpoint.context("a node needs a runtime endpoint")?,
            root: self.root.unwrap_or_else(|| base.join("root")),
            manifests: self.manifests.unwrap_or_else(|| base.join("manifests")),
            pod_logs: base.join("pod-logs"),
            cgroup_root: self.cgroup_root.context("a node needs a cgroup root")?,
            name: self.name.unwrap_or_else(|| "node".to_owned()),
            read_only,
            healthz: free_address()?,
            secure: free_address()?,
            args: self.args,
            env: self.env,
            network: self.network,
            child: None,
            base,
        };
        for dir in [&node.base, &node.root, &node.manifests, &node.pod_logs] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        // As the administrator of a node with a cgroupRoot would have done.
        cgroups::create(&node.cgroup_root).with_context(|| format!("cannot make {}", node.cgroup_root))?;
        let mut config = node.default_config();
        if node.upstream {
            // Without an API server it has nobody to ask and refuses to start with its own defaults; and it would
            // leave firewall chains and a directory on the machine.
            let alone = json!({
                "makeIPTablesUtilChains": false,
                "volumePluginDir": node.base.join("volume-plugins"),
                "authentication": { "webhook": { "enabled": false } },
                "authorization": { "mode": "AlwaysAllow" },
            });
            merge(&mut config, alone);
        }
        for yaml in &self.overrides {
            let value: Value = serde_yaml_ng::from_str(yaml).with_context(|| format!("not YAML: {yaml}"))?;
            merge(&mut config, value);
        }
        let text = serde_yaml_ng::to_string(&config).context("cannot write YAML")?;
        fs::write(node.config_path(), text).context("cannot write the configuration")?;
        Ok(node)
    }
}

/// A node of its own; dropping it ends it, its containers, mounts and cgroups.
#[derive(Debug)]
pub struct Node {
    program: PathBuf,
    upstream: bool,
    endpoint: String,
    base: PathBuf,
    root: PathBuf,
    manifests: PathBuf,
    pod_logs: PathBuf,
    cgroup_root: String,
    name: String,
    read_only: SocketAddr,
    healthz: SocketAddr,
    secure: SocketAddr,
    args: Vec<String>,
    env: Vec<(String, String)>,
    network: Option<OwnNetwork>,
    child: Option<Child>,
}

impl Node {
    /// Where every node begins.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// The binary under test.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// `--root-dir`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `staticPodPath`.
    pub fn manifests(&self) -> &Path {
        &self.manifests
    }

    /// `podLogsDir`.
    pub fn pod_logs(&self) -> &Path {
        &self.pod_logs
    }

    /// `cgroupRoot`.
    pub fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// A cgroup of the node in every hierarchy that has it, by the parts of its name below [`Node::cgroup_root`]: such as
    /// `["kubepods", "burstable", "podUID"]`, whatever the driver makes of them.
    pub fn cgroup(&self, parts: &[&str]) -> Vec<PathBuf> {
        let root = self.cgroup_root.split('/').filter(|part| !part.is_empty());
        let parts: Vec<&str> = root.chain(parts.iter().copied()).collect();
        let path = CgroupDriver::of_this_run().path(&parts);
        cgroups::hierarchies().iter().map(|mount| mount.join(&path)).filter(|dir| dir.is_dir()).collect()
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The KubeletConfiguration it is started with.
    pub fn config_path(&self) -> PathBuf {
        self.base.join("config.yaml")
    }

    /// Where its output goes, from every start.
    pub fn log_path(&self) -> PathBuf {
        self.base.join("mainstay.log")
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The HTTP API on the root-only socket (upstream: on the read-only port).
    pub fn http(&self) -> Http {
        if self.upstream { Http::Tcp(self.read_only) } else { Http::Unix(self.root.join("mainstay.sock")) }
    }

    /// The secure `port` it is given.
    pub fn secure(&self) -> SocketAddr {
        self.secure
    }

    /// The `readOnlyPort` it is given.
    pub fn read_only(&self) -> SocketAddr {
        self.read_only
    }

    /// The `healthzPort` it is given.
    pub fn healthz_address(&self) -> SocketAddr {
        self.healthz
    }

    /// Starts it again after it ended, and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer within two minutes; the message has the end of its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.spawn_again()?;
        let http = self.http();
        let waited = wait_until(START_DEADLINE, "an answer of mainstay", || {
            if let Some(status) = self.exit_status() {
                return Ok(Err(status));
            }
            http.get("/healthz").map(|_| Ok(())).map_err(|error| format!("{error:#}"))
        });
        match waited.map_err(|error| anyhow!("{error}\n{}", self.log_tail()))? {
            Ok(()) => Ok(()),
            Err(status) => bail!("mainstay ended at its start ({status})\n{}", self.log_tail()),
        }
    }

    /// Starts it again after it ended, and does not wait.
    ///
    /// # Errors
    /// When it is running, or cannot be started.
    pub fn spawn_again(&mut self) -> Result<()> {
        ensure!(self.child.is_none() || self.exit_status().is_some(), "mainstay is running already");
        let log = File::options().create(true).append(true).open(self.log_path()).context("cannot log")?;
        let mut command = match &self.network {
            Some(network) => network.command(&self.program),
            None => Command::new(&self.program),
        };
        let child = command
            .args((!self.upstream).then_some("kubelet"))
            .arg("--config")
            .arg(self.config_path())
            .arg("--root-dir")
            .arg(&self.root)
            .args(["--hostname-override", &self.name])
            .args(self.upstream.then(|| format!("--cert-dir={}", self.base.join("pki").display())))
            // Not below /run, where it would outlive the test.
            .args(
                (!self.upstream)
                    .then(|| format!("--object-key-file={}", self.base.join("object.key").display())),
            )
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot log")?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// How it ended, if it did.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// When it does not.
    pub fn wait_for_exit(&mut self, timeout: Duration) -> Result<ExitStatus> {
        wait_until(timeout, "mainstay to end", || self.exit_status().ok_or_else(|| "it runs".to_owned()))
            .map_err(|error| anyhow!("{error}\n{}", self.log_tail()))
    }

    /// SIGKILL; pods go on.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// SIGTERM, and waits for its end; pods go on.
    ///
    /// # Errors
    /// When it has not ended after a minute.
    pub fn sigterm(&mut self) -> Result<ExitStatus> {
        let pid = self.pid().context("mainstay is not running")?;
        process::send(i32::try_from(pid)?, Signal::TERM);
        let status = self.wait_for_exit(STOP_DEADLINE)?;
        self.child = None;
        Ok(status)
    }

    /// GET on [`Node::http`]; anything but 200 is an error with the body.
    ///
    /// # Errors
    /// When there is no answer or another status.
    pub fn get(&self, path: &str) -> Result<String> {
        let answer = self.http().get(path)?;
        ensure!(answer.status == 200, "GET {path}: status {}: {}", answer.status, answer.text().trim());
        Ok(answer.text())
    }

    /// `/pods`.
    ///
    /// # Errors
    /// When there is no answer, or it is not a PodList.
    pub fn pods(&self) -> Result<PodList> {
        serde_json::from_str(&self.get("/pods")?).context("/pods is not a PodList")
    }

    /// `/healthz`.
    ///
    /// # Errors
    /// When it is not healthy; the message has what it says.
    pub fn healthz(&self) -> Result<String> {
        self.get("/healthz")
    }

    /// `/containerLogs/NAMESPACE/POD/CONTAINER?query`, to its end; without `follow` in the query.
    ///
    /// # Errors
    /// When the answer is not 200.
    pub fn logs(&self, namespace: &str, pod: &str, container: &str, query: &str) -> Result<String> {
        self.get(&format!("/containerLogs/{namespace}/{pod}/{container}?{query}"))
    }

    /// The same with `follow=true`, to be read as it comes; a read fails after `idle` without a byte.
    ///
    /// # Errors
    /// When the answer is not 200.
    pub fn follow_logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        query: &str,
        idle: Duration,
    ) -> Result<Body> {
        let path = format!("/containerLogs/{namespace}/{pod}/{container}?follow=true&{query}");
        let body = self.http().stream(&path, idle)?;
        ensure!(body.status == 200, "GET {path}: status {}", body.status);
        Ok(body)
    }

    /// Runs the client side of the binary, such as `["pods", "-o", "json"]`, against this node.
    ///
    /// # Errors
    /// When it cannot be started. A failure of the command itself is in the output.
    pub fn cli(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(args).arg("--root-dir").arg(&self.root).stdin(Stdio::null());
        command.output().with_context(|| format!("cannot run {command:?}"))
    }

    /// Reads `/pods` until `check` gives a value; `what` says what is waited for.
    ///
    /// # Errors
    /// After `timeout`, with the last reason, a line per pod and the end of the log.
    pub fn wait_for<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut check: impl FnMut(&PodList) -> Result<T, String>,
    ) -> Result<T> {
        let mut seen = String::new();
        wait_until(timeout, what, || {
            let pods = self.pods().map_err(|error| format!("{error:#}"))?;
            check(&pods).inspect_err(|_| seen = summary(&pods))
        })
        .map_err(|error| anyhow!("{error}\npods:\n{seen}{}", self.log_tail()))
    }

    /// Puts a manifest in place by an atomic rename; `name` is the file name.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_manifest(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.manifests.join(name);
        let temporary = self.manifests.join(format!(".{name}.new"));
        fs::write(&temporary, content)
            .and_then(|()| fs::rename(&temporary, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Removes a manifest.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove_manifest(&self, name: &str) -> Result<()> {
        let path = self.manifests.join(name);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    fn log_tail(&self) -> String {
        format!("--- end of {}\n{}\n---", self.log_path().display(), tail(&self.log(), LOG_LINES))
    }

    fn default_config(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": self.endpoint,
            "staticPodPath": self.manifests,
            "podLogsDir": self.pod_logs,
            "cgroupRoot": self.cgroup_root,
            "cgroupDriver": CgroupDriver::of_this_run().word(),
            "failCgroupV1": false,
            "failSwapOn": false,
            "address": "127.0.0.1",
            "port": self.secure.port(),
            "readOnlyPort": self.read_only.port(),
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.healthz.port(),
            // A machine that tests run on may be short of anything; whoever wants to see that says so.
            "evictionHard": { "memory.available": "1Mi" },
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A test that fails by returning an error does not panic; the harness shows this for failed tests only.
        if in_test() {
            eprintln!("{}", self.log_tail());
        }
        if std::thread::panicking()
            && let Some(kept) = self.keep_log()
        {
            eprintln!("the whole log: {}", kept.display());
        }
        if let Some(mut child) = self.child.take() {
            if let Some(process) = i32::try_from(child.id()).ok().and_then(Process::of) {
                process.signal(Signal::TERM);
                process::wait_for_end(std::slice::from_ref(&process), STOP_DEADLINE);
            }
            child.kill().ok();
            child.wait().ok();
        }
        // Ends the containers too: they run in the node's cgroups. Their records go with the containerd.
        for cgroup in cgroups::find(self.cgroup_root.trim_start_matches('/')) {
            if let Err(error) = cgroups::remove_tree(&cgroup) {
                eprintln!("testkit: cannot remove {}: {error}", cgroup.display());
            }
        }
        if let Err(error) = unmount_below(&self.root) {
            eprintln!("testkit: {error:#}");
        }
    }
}

impl Node {
    /// Copies the log out of the directory that is about to be removed.
    fn keep_log(&self) -> Option<PathBuf> {
        let dir = build_dir().join("failed");
        fs::create_dir_all(&dir).ok()?;
        let test = std::thread::current().name().unwrap_or("test").replace("::", "-");
        let path = dir.join(format!("{test}.log"));
        fs::copy(self.log_path(), &path).ok()?;
        Some(path)
    }
}

/// Lays `over` over `base`: objects are merged, everything else is replaced.
fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// One line per pod, as a person would ask for it.
fn summary(pods: &PodList) -> String {
    let mut text = String::new();
    for pod in &pods.items {
        let status = pod.status.as_ref();
        let states: Vec<String> = status
            .into_iter()
            .flat_map(|status| {
                status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
            })
            .map(|container| {
                let state = container.state.as_ref();
                let state = state.map(|state| {
                    if state.running.is_some() {
                        "running".to_owned()
                    } else if let Some(ended) = &state.terminated {
                        format!("ended {}", ended.exit_code)
                    } else {
                        let waiting = state.waiting.as_ref();
                        waiting.and_then(|w| w.reason.clone()).unwrap_or_else(|| "waiting".to_owned())
                    }
                });
                let state = state.unwrap_or_else(|| "no state".to_owned());
                format!("{}: {state}, {} restarts", container.name, container.restart_count)
            })
            .collect();
        text.push_str(&format!(
            "  {}/{} {} [{}]\n",
            pod.metadata.namespace.as_deref().unwrap_or_default(),
            pod.metadata.name.as_deref().unwrap_or_default(),
            status.and_then(|status| status.phase.as_deref()).unwrap_or("no phase"),
            states.join("; "),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_merge_objects_and_replace_the_rest() {
        let mut config = json!({ "a": { "x": 1, "y": [1] }, "b": 1 });
        merge(&mut config, serde_yaml_ng::from_str("a: {y: [2, 3]}\nb: null\nc: new").unwrap());
        assert_eq!(config, json!({ "a": { "x": 1, "y": [2, 3] }, "b": null, "c": "new" }));
    }

    #[test]
    fn a_node_without_a_containerd_is_refused() {
        let error = Node::builder().program("/bin/true").prepare().unwrap_err();
        assert!(error.to_string().contains("needs a containerd"), "{error}");
    }
}
