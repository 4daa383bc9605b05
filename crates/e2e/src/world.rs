//! A node with pods on it, asked the way a user would ask.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// How long a test waits for what should take a second or two; generous, because machines are shared.
pub const SOON: Duration = Duration::from_secs(120);

/// A private containerd and a node on it. The node goes first when both are dropped.
#[derive(Debug)]
pub struct World {
    /// mainstay.
    pub node: Node,
    /// Its runtime.
    pub containerd: Containerd,
}

impl World {
    /// A node with the kit's configuration.
    ///
    /// # Errors
    /// When containerd or mainstay does not start.
    pub fn start(flavor: Flavor) -> Result<Self> {
        Self::with_config(flavor, "{}")
    }

    /// A node with KubeletConfiguration fields as YAML laid over the kit's configuration.
    ///
    /// # Errors
    /// When containerd or mainstay does not start.
    pub fn with_config(flavor: Flavor, config: &str) -> Result<Self> {
        Self::on(Containerd::start(flavor)?, config)
    }

    /// The same on a containerd that was made for the test.
    ///
    /// # Errors
    /// When mainstay does not start.
    pub fn on(containerd: Containerd, config: &str) -> Result<Self> {
        let node = Node::builder().containerd(&containerd).config(config).start()?;
        Ok(Self { node, containerd })
    }

    /// Puts a pod of that name in place, as a file of that name.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, name: &str, spec: Value) -> Result<()> {
        self.put_manifest(name, &pod(name, spec))
    }

    /// Puts a manifest in place, as a file of that name.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_manifest(&self, name: &str, manifest: &Value) -> Result<()> {
        self.node.write_manifest(&format!("{name}.json"), &manifest.to_string()).map(drop)
    }

    /// Takes the file of [`World::put`] away.
    ///
    /// # Errors
    /// When it is not there.
    pub fn take_away(&self, name: &str) -> Result<()> {
        self.node.remove_manifest(&format!("{name}.json"))
    }

    /// `/pods` as it came.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn pods(&self) -> Result<Vec<PodSeen>> {
        let list: Value = serde_json::from_str(&self.node.get("/pods")?).context("/pods is not JSON")?;
        let items = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(items.into_iter().map(PodSeen).collect())
    }

    /// The pods of a manifest's name; more than one while one replaces another.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn named(&self, name: &str) -> Result<Vec<PodSeen>> {
        let full = self.full_name(name);
        Ok(self.pods()?.into_iter().filter(|pod| pod.text("/metadata/name") == full).collect())
    }

    /// The name a static pod gets on this node.
    pub fn full_name(&self, name: &str) -> String {
        format!("{name}-{}", self.node.name())
    }

    /// Waits until the only pod of a manifest's name is as `check` wants it, and returns it.
    ///
    /// # Errors
    /// After [`SOON`], with the pod's status and its events.
    pub fn wait(&self, name: &str, what: &str, check: impl Fn(&PodSeen) -> bool) -> Result<PodSeen> {
        self.wait_long(SOON, name, what, check)
    }

    /// The same with another patience.
    ///
    /// # Errors
    /// After `timeout`.
    pub fn wait_long(
        &self,
        timeout: Duration,
        name: &str,
        what: &str,
        check: impl Fn(&PodSeen) -> bool,
    ) -> Result<PodSeen> {
        let waited = wait_until(timeout, &format!("{name}: {what}"), || {
            let mut pods = self.named(name).map_err(|error| format!("{error:#}"))?;
            match (pods.pop(), pods.is_empty()) {
                (Some(pod), true) if check(&pod) => Ok(pod),
                (Some(pod), true) => Err(format!("{:#}", pod.0["status"])),
                (Some(_), false) => Err("several pods of that name".to_owned()),
                (None, _) => Err("no such pod".to_owned()),
            }
        });
        waited.map_err(|error| anyhow!("{error}\nevents: {:#?}", self.events(name).unwrap_or_default()))
    }

    /// Waits until the pod is Running and Ready.
    ///
    /// # Errors
    /// After [`SOON`].
    pub fn running(&self, name: &str) -> Result<PodSeen> {
        self.wait(name, "Running and Ready", |pod| pod.phase() == "Running" && pod.is_true("Ready"))
    }

    /// Waits until no pod of the name is listed.
    ///
    /// # Errors
    /// After [`SOON`].
    pub fn gone(&self, name: &str) -> Result<()> {
        wait_until(SOON, &format!("the end of {name}"), || {
            match self.named(name).map_err(|error| format!("{error:#}"))?.as_slice() {
                [] => Ok(()),
                [pod, ..] => Err(format!("{:#}", pod.0)),
            }
        })
    }

    /// What happened to a pod, oldest first.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn events(&self, name: &str) -> Result<Vec<EventSeen>> {
        self.read_events(&format!("/mainstay/v1/events?pod=default/{}", self.full_name(name)))
    }

    fn read_events(&self, path: &str) -> Result<Vec<EventSeen>> {
        let answer: Value = serde_json::from_str(&self.node.get(path)?).context("not JSON")?;
        let items = answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        Ok(items
            .iter()
            .map(|event| EventSeen {
                kind: text(event, "type"),
                reason: text(event, "reason"),
                message: text(event, "message"),
                field_path: text(event, "fieldPath"),
                count: event["count"].as_u64().unwrap_or_default(),
            })
            .collect())
    }

    /// Waits for an event of that reason whose message contains `text`.
    ///
    /// # Errors
    /// After [`SOON`], with the events there are.
    pub fn event(&self, name: &str, reason: &str, text: &str) -> Result<EventSeen> {
        wait_until(SOON, &format!("the event {reason} {text:?}"), || {
            let events = self.events(name).map_err(|error| format!("{error:#}"))?;
            let found = events.iter().find(|event| event.reason == reason && event.message.contains(text));
            found.cloned().ok_or_else(|| format!("{events:#?}"))
        })
    }

    /// Waits for an event of the node, or of any pod, of that reason whose message contains `text`.
    ///
    /// # Errors
    /// After [`SOON`], with the events there are.
    pub fn node_event(&self, reason: &str, text: &str) -> Result<EventSeen> {
        wait_until(SOON, &format!("the event {reason} {text:?}"), || {
            let events = self.read_events("/mainstay/v1/events").map_err(|error| format!("{error:#}"))?;
            let found = events.iter().find(|event| event.reason == reason && event.message.contains(text));
            found.cloned().ok_or_else(|| format!("{events:#?}"))
        })
    }

    /// The whole log of a container.
    ///
    /// # Errors
    /// When the answer is not 200.
    pub fn logs(&self, name: &str, container: &str, query: &str) -> Result<String> {
        self.node.logs("default", &self.full_name(name), container, query)
    }

    /// Waits until a container's log contains `text`, and returns the log.
    ///
    /// # Errors
    /// After [`SOON`], with the log there is.
    pub fn logged(&self, name: &str, container: &str, text: &str) -> Result<String> {
        wait_until(SOON, &format!("{text:?} in the log of {name}"), || {
            let log = self.logs(name, container, "").map_err(|error| format!("{error:#}"))?;
            if log.contains(text) { Ok(log) } else { Err(log) }
        })
    }

    /// crictl's answer as JSON.
    ///
    /// # Errors
    /// When it fails or says no JSON.
    pub fn crictl(&self, args: &[&str]) -> Result<Value> {
        let answer = self.containerd.crictl(args)?;
        serde_json::from_str(&answer).with_context(|| format!("crictl {args:?}: {answer}"))
    }

    /// What a shell script says inside a running container, without the last newline.
    ///
    /// # Errors
    /// When it cannot be run or fails.
    pub fn exec(&self, pod: &PodSeen, container: &str, script: &str) -> Result<String> {
        let output =
            self.containerd.crictl(&["exec", "--sync", pod.id(container), "/bin/sh", "-c", script])?;
        Ok(output.trim_end().to_owned())
    }

    /// Makes a file in a running container, for a script that waits for it and may end with it: a test that decides when
    /// something ends is never too late to look.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn touch(&self, pod: &PodSeen, container: &str, path: &str) -> Result<()> {
        self.containerd.touch(pod.id(container), path)
    }

    /// Waits until nothing is mounted below a pod's directory.
    ///
    /// # Errors
    /// After [`SOON`], with what is.
    pub fn unmounted(&self, uid: &str) -> Result<()> {
        wait_until(SOON, "the end of the pod's mounts", || match self.mounts_of(uid) {
            Ok(left) if left.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }

    /// Where a volume of a pod lies; `plugin` without `kubernetes.io~`.
    pub fn volume(&self, pod: &PodSeen, plugin: &str, volume: &str) -> PathBuf {
        let pods = self.node.root().join("pods").join(pod.uid());
        pods.join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    /// Everything that is mounted below a pod's directory: mount points and types of file systems.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn mounts_of(&self, uid: &str) -> Result<Vec<(String, String)>> {
        let root = self.node.root().join("pods").join(uid);
        let root = format!("{}/", std::fs::canonicalize(&root).unwrap_or(root).display());
        let table = std::fs::read_to_string("/proc/self/mountinfo").context("no mountinfo")?;
        let lines = table.lines().filter_map(|line| {
            let point = line.split(' ').nth(4)?;
            let fs_type = line.split(" - ").nth(1)?.split(' ').next()?;
            Some((point.to_owned(), fs_type.to_owned()))
        });
        Ok(lines.filter(|(point, _)| point.starts_with(&root)).collect())
    }

    /// The runtime's containers of a pod by UID, in any state, newest first.
    ///
    /// # Errors
    /// When crictl fails.
    pub fn containers_of(&self, uid: &str) -> Result<Vec<Value>> {
        let label = format!("io.kubernetes.pod.uid={uid}");
        let list = self.crictl(&["ps", "--all", "--label", &label, "--output", "json"])?;
        Ok(list["containers"].as_array().cloned().unwrap_or_default())
    }

    /// The runtime's sandboxes of a pod by UID.
    ///
    /// # Errors
    /// When crictl fails.
    pub fn sandboxes_of(&self, uid: &str) -> Result<Vec<Value>> {
        let label = format!("io.kubernetes.pod.uid={uid}");
        let list = self.crictl(&["pods", "--label", &label, "--output", "json"])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

/// An event as the local API tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSeen {
    /// `Normal` or `Warning`.
    pub kind: String,
    /// The reason.
    pub reason: String,
    /// The text.
    pub message: String,
    /// `spec.containers{c}` or empty.
    pub field_path: String,
    /// How often.
    pub count: u64,
}

/// A pod as `/pods` shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSeen(pub Value);

impl PodSeen {
    /// The text at a JSON pointer; empty when there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    /// `status.phase`.
    pub fn phase(&self) -> &str {
        self.text("/status/phase")
    }

    /// The status of a container of any kind; null when there is none.
    pub fn container(&self, name: &str) -> &Value {
        ["/status/containerStatuses", "/status/initContainerStatuses"]
            .iter()
            .filter_map(|list| self.0.pointer(list).and_then(Value::as_array))
            .flatten()
            .find(|status| status["name"] == name)
            .unwrap_or(&Value::Null)
    }

    /// `state.waiting.reason`, empty when it does not wait.
    pub fn waits(&self, name: &str) -> &str {
        self.container(name)["state"]["waiting"]["reason"].as_str().unwrap_or_default()
    }

    /// `state.waiting.message`.
    pub fn waiting_message(&self, name: &str) -> &str {
        self.container(name)["state"]["waiting"]["message"].as_str().unwrap_or_default()
    }

    /// `state.terminated.exitCode`.
    pub fn exit_code(&self, name: &str) -> Option<i64> {
        self.container(name)["state"]["terminated"]["exitCode"].as_i64()
    }

    /// Whether it runs.
    pub fn runs(&self, name: &str) -> bool {
        self.container(name)["state"]["running"].is_object()
    }

    /// `restartCount`.
    pub fn restarts(&self, name: &str) -> u64 {
        self.container(name)["restartCount"].as_u64().unwrap_or_default()
    }

    /// The runtime's ID of the container, without `containerd://`.
    pub fn id(&self, name: &str) -> &str {
        let full = self.container(name)["containerID"].as_str().unwrap_or_default();
        full.strip_prefix("containerd://").unwrap_or(full)
    }

    /// A condition; null when there is none.
    pub fn condition(&self, kind: &str) -> &Value {
        let conditions = self.0.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
    }

    /// Whether a condition is True.
    pub fn is_true(&self, kind: &str) -> bool {
        self.condition(kind)["status"] == "True"
    }
}

/// A Pod of that name with that spec.
pub fn pod(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// A busybox container that runs a shell script.
pub fn sh(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": BUSYBOX, "command": ["/bin/sh", "-c", script] })
}

/// A busybox container that does nothing and ends at once when it is told to.
pub fn idle(name: &str) -> Value {
    sh(name, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
}

/// The same, named `c`, with these mounts.
pub fn idle_with(mounts: Value) -> Value {
    with(idle("c"), json!({ "volumeMounts": mounts }))
}

/// Whether everything has to be there, as in the test machine; elsewhere tests show what is said where it is not.
#[must_use]
pub fn whole_machine() -> bool {
    std::env::var_os("MAINSTAY_TEST_WHOLE_MACHINE").is_some()
}

/// Whether the kernel counts what each cgroup reads from disks and writes to them: version 2 always does, version 1 only what goes through a
/// scheduler that shares disks out, or to a disk that somebody has a limit of. It has to be so in the test machine.
#[must_use]
pub fn counts_disks() -> bool {
    whole_machine() || std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A pod with one volume `v`, mounted at `/v`.
pub fn one_volume(source: Value) -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [idle_with(json!([{ "name": "v", "mountPath": "/v" }]))],
        "volumes": [with(json!({ "name": "v" }), source)],
    })
}

/// A ConfigMap of that name with that data.
pub fn config_map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

/// A Secret of that name with that data as text.
pub fn secret(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data })
}

/// Lays the fields of `over` over those of `base`.
///
/// # Panics
/// When either is not an object.
pub fn with(mut base: Value, over: Value) -> Value {
    let (Value::Object(fields), Value::Object(over)) = (&mut base, over) else {
        panic!("only objects can be laid over one another");
    };
    fields.extend(over);
    base
}
