//! Pods as a client of the node sees them, and as the runtime does, to be compared whole.

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Node, NodeBuilder, patient, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Long enough for anything on a busy machine; waiting ends as soon as the condition holds.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Ends at once when told to, without ending by itself.
pub const OBEDIENT: &str = "trap 'exit 0' TERM; sleep 1000000 & wait";

/// A node on a new containerd; crashes are retried after a second at most.
///
/// # Errors
/// When either does not start.
pub fn start(flavor: Flavor) -> Result<(Containerd, Node)> {
    let containerd = Containerd::start(flavor)?;
    let node = quick(&containerd).start()?;
    Ok((containerd, node))
}

/// A node that does not wait long after crashes.
pub fn quick(containerd: &Containerd) -> NodeBuilder {
    Node::builder().containerd(containerd).config("crashLoopBackOff: {maxContainerRestartPeriod: 1s}")
}

/// A container that runs a shell script.
pub fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script] })
}

/// A manifest. Its grace period is two seconds where `spec` names none.
pub fn manifest(name: &str, spec: Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "terminationGracePeriodSeconds": 2 },
    });
    if let (Some(into), Value::Object(from)) = (pod["spec"].as_object_mut(), spec) {
        into.extend(from);
    }
    pod.to_string()
}

/// A manifest of a pod with one container that runs until it is told to end.
pub fn server(name: &str) -> String {
    manifest(name, json!({ "containers": [shell("main", OBEDIENT)] }))
}

/// One pod of `/pods`.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen(pub Value);

impl Seen {
    /// `metadata.name` without the node's name at its end.
    pub fn name(&self) -> &str {
        let name = self.0["metadata"]["name"].as_str().unwrap_or_default();
        name.strip_suffix("-node").unwrap_or(name)
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.0["metadata"]["uid"].as_str().unwrap_or_default()
    }

    /// `status.phase`.
    pub fn phase(&self) -> &str {
        self.0["status"]["phase"].as_str().unwrap_or_default()
    }

    /// The status of a container of any kind; null when there is none.
    pub fn container(&self, name: &str) -> &Value {
        ["containerStatuses", "initContainerStatuses"]
            .iter()
            .filter_map(|list| self.0["status"][list].as_array())
            .flatten()
            .find(|status| status["name"] == name)
            .unwrap_or(&Value::Null)
    }

    /// The ID of a container; empty when there is none.
    pub fn container_id(&self, name: &str) -> &str {
        self.container(name)["containerID"].as_str().unwrap_or_default()
    }

    /// The restart count of a container.
    pub fn restarts(&self, name: &str) -> i64 {
        self.container(name)["restartCount"].as_i64().unwrap_or(-1)
    }

    /// Why a container waits; empty when it does not.
    pub fn waits(&self, name: &str) -> &str {
        self.container(name)["state"]["waiting"]["reason"].as_str().unwrap_or_default()
    }

    /// Whether the condition `Ready` holds.
    pub fn ready(&self) -> bool {
        self.condition("Ready")["status"] == "True"
    }

    /// A condition; null when there is none.
    pub fn condition(&self, kind: &str) -> &Value {
        let conditions = self.0["status"]["conditions"].as_array();
        conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
    }
}

/// All pods, by name.
///
/// # Errors
/// When `/pods` is not answered with 200 and a PodList.
pub fn pods(node: &Node) -> Result<Vec<Seen>> {
    parse(&node.get("/pods")?)
}

/// The pods of a `/pods` answer, by name.
///
/// # Errors
/// When it is not a PodList.
pub fn parse(text: &str) -> Result<Vec<Seen>> {
    let list: Value = serde_json::from_str(text).context("/pods is not JSON")?;
    ensure!(list["kind"] == "PodList", "/pods is no PodList: {text}");
    // Upstream writes null for no pods, and so does mainstay.
    let mut pods: Vec<Seen> = list["items"].as_array().into_iter().flatten().cloned().map(Seen).collect();
    pods.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(pods)
}

/// One pod, by the name in its manifest.
///
/// # Errors
/// When `/pods` is not answered, or the pod is not in it.
pub fn pod(node: &Node, name: &str) -> Result<Seen> {
    pods(node)?.into_iter().find(|pod| pod.name() == name).with_context(|| format!("no pod {name}"))
}

/// Waits for a pod that `check` is content with.
///
/// # Errors
/// When there is none within [`PATIENCE`].
pub fn wait_pod(node: &Node, name: &str, what: &str, check: impl Fn(&Seen) -> bool) -> Result<Seen> {
    node.wait_for(PATIENCE, &format!("{name} {what}"), |_| {
        let pod = pod(node, name).map_err(|error| format!("{error:#}"))?;
        if check(&pod) { Ok(pod) } else { Err(pod.0["status"].to_string()) }
    })
}

/// Waits until a pod is running and ready.
///
/// # Errors
/// When it is not within [`PATIENCE`].
pub fn running(node: &Node, name: &str) -> Result<Seen> {
    wait_pod(node, name, "running and ready", |pod| pod.phase() == "Running" && pod.ready())
}

/// Waits until exactly these pods are listed.
///
/// # Errors
/// When they are not within [`PATIENCE`].
pub fn listed(node: &Node, names: &[&str]) -> Result<()> {
    let mut expected = names.to_vec();
    expected.sort_unstable();
    node.wait_for(PATIENCE, &format!("just these pods: {expected:?}"), |_| {
        let pods = pods(node).map_err(|error| format!("{error:#}"))?;
        let found: Vec<&str> = pods.iter().map(Seen::name).collect();
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
}

/// The status of two looks at the same pod is the same to the byte, and so is the rest of it.
///
/// # Errors
/// When not; names the first field that differs.
pub fn same(before: &Seen, after: &Seen) -> Result<()> {
    match difference("", &before.0, &after.0) {
        None => Ok(()),
        Some(text) => anyhow::bail!("pod {} changed: {text}", before.name()),
    }
}

fn difference(path: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let get = |map: &serde_json::Map<String, Value>, key: &str| {
                map.get(key).cloned().unwrap_or(Value::Null)
            };
            keys.into_iter().find_map(|key| difference(&format!("{path}.{key}"), &get(a, key), &get(b, key)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(i, (a, b))| difference(&format!("{path}[{i}]"), a, b))
        }
        _ => (a != b).then(|| format!("{path} was {a}, is {b}")),
    }
}

/// The events of a pod (by the name in its manifest), or of everything; `reason: message`.
///
/// # Errors
/// When they cannot be had.
pub fn events(node: &Node, pod: Option<&str>) -> Result<Vec<String>> {
    let list: Value = serde_json::from_str(&node.get("/mainstay/v1/events")?).context("not JSON")?;
    let items = list["items"].as_array().context("no items")?;
    let wanted = pod.map(|pod| format!("{pod}-node"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(items
        .iter()
        .filter(|event| wanted.as_deref().is_none_or(|name| event["name"] == name))
        .map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"])))
        .collect())
}

/// The verdicts over the files whose path ends with `file`.
///
/// # Errors
/// When they cannot be had.
pub fn verdicts(node: &Node, file: &str) -> Result<Vec<Value>> {
    let list: Value = serde_json::from_str(&node.get("/mainstay/v1/manifests")?).context("not JSON")?;
    let items = list["items"].as_array().context("no items")?;
    Ok(items
        .iter()
        .filter(|item| item["path"].as_str().unwrap_or_default().ends_with(file))
        .cloned()
        .collect())
}

/// Waits until a file is rejected, and returns its problems as one text.
///
/// # Errors
/// When it is not within [`PATIENCE`].
pub fn rejected(node: &Node, file: &str) -> Result<String> {
    let verdict = wait_until(PATIENCE, &format!("a rejection of {file}"), || {
        let found = verdicts(node, file).map_err(|error| format!("{error:#}"))?;
        found
            .iter()
            .find(|verdict| verdict["verdict"] == "rejected")
            .cloned()
            .ok_or_else(|| format!("{found:?}"))
    })?;
    let problems = verdict["problems"].as_array().context("no problems")?;
    let lines: Vec<&str> = problems.iter().filter_map(Value::as_str).collect();
    Ok(lines.join("\n"))
}

/// Makes a file in a running container, for a script that waits for it and may end with it.
///
/// # Errors
/// When it cannot be made.
pub fn touch(containerd: &Containerd, pod: &Seen, container: &str, path: &str) -> Result<()> {
    let id = pod.container_id(container);
    let id = id.strip_prefix("containerd://").unwrap_or(id);
    containerd.touch(id, path)
}

/// What the runtime has of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InRuntime {
    /// IDs, newest first.
    pub sandboxes: Vec<String>,
    /// Container name, attempt and state, sorted.
    pub containers: Vec<(String, u64, String)>,
}

/// What the runtime has with this pod UID (or without one, when it is `None`: everything).
///
/// # Errors
/// When crictl fails.
pub fn in_runtime(containerd: &Containerd, uid: Option<&str>) -> Result<InRuntime> {
    let list = |args: &[&str], key: &str| -> Result<Vec<Value>> {
        let text = containerd.crictl(args)?;
        let list: Value = serde_json::from_str(&text).context("crictl's answer is not JSON")?;
        let items = list[key].as_array().cloned().unwrap_or_default();
        let label = "io.kubernetes.pod.uid";
        Ok(items.into_iter().filter(|item| uid.is_none_or(|uid| item["labels"][label] == uid)).collect())
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sandboxes = list(&["pods", "-o", "json"], "items")?;
    let mut containers: Vec<_> = list(&["ps", "-a", "-o", "json"], "containers")?
        .iter()
        .map(|item| {
            let metadata = &item["metadata"];
            (text(&metadata["name"]), metadata["attempt"].as_u64().unwrap_or(0), text(&item["state"]))
        })
        .collect();
    containers.sort();
    Ok(InRuntime { sandboxes: sandboxes.iter().map(|item| text(&item["id"])).collect(), containers })
}

/// Waits until nothing is left of a pod: in the runtime, in its directories, in the cgroups.
///
/// # Errors
/// When something stays longer than [`PATIENCE`].
pub fn gone(containerd: &Containerd, node: &Node, uid: &str) -> Result<()> {
    wait_until(PATIENCE, &format!("the end of {uid}"), || {
        let found = in_runtime(containerd, Some(uid)).map_err(|error| format!("{error:#}"))?;
        if found != InRuntime::default() {
            return Err(format!("in the runtime: {found:?}"));
        }
        let left = traces(node, uid);
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
}

/// Directories and cgroups with a pod UID in their name.
pub fn traces(node: &Node, uid: &str) -> Vec<String> {
    let below = |dir: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).filter(|path| path.contains(uid)).collect()
    };
    let mut found = below(&node.root().join("pods"));
    found.extend(below(node.pod_logs()));
    found.extend(below(&node.root().join("mainstay/pods")));
    found.extend(below(&node.root().join("mainstay/status")));
    // A dash is part of the path in a slice's name, so systemd's driver writes the UID without.
    let escaped = uid.replace('-', "_");
    found.extend(cgroups(node).into_iter().filter(|path| path.contains(uid) || path.contains(&escaped)));
    found
}

/// All cgroups below the node's own, in every hierarchy, pods' ones first by name.
pub fn cgroups(node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    for root in node.cgroup(&[]) {
        collect(&root, &mut found);
    }
    found
}

fn collect(dir: &std::path::Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            into.push(entry.path().display().to_string());
            collect(&entry.path(), into);
        }
    }
}

/// Waits until what the node shows is on its disk. What changed in the last tenth of a second before a kill may have to be
/// found out again, and then carries another time.
///
/// # Errors
/// When the disk does not come to rest.
pub fn persisted(node: &Node) -> Result<()> {
    let quiet = patient(Duration::from_millis(300));
    let dir = node.root().join("mainstay");
    wait_until(PATIENCE, "what is shown on disk, and the disk at rest", || {
        // An answer on either side of the pause: one who was held up himself has not come to rest.
        let before = pods(node).map_err(|error| format!("{error:#}"))?;
        std::thread::sleep(quiet);
        let shown = pods(node).map_err(|error| format!("{error:#}"))?;
        for pod in &shown {
            let path = dir.join("status").join(format!("{}.json", pod.uid()));
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let kept: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if let Some(text) = difference("", &kept["data"], &pod.0["status"]) {
                return Err(format!("status of {} on disk: {text}", pod.name()));
            }
        }
        let manifests = std::fs::read_dir(dir.join("manifests")).into_iter().flatten().flatten();
        let manifests: String =
            manifests.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
        for pod in shown.iter().filter(|pod| pod.0["metadata"]["deletionTimestamp"].is_null()) {
            let source = &pod.0["metadata"]["annotations"]["kubernetes.io/config.source"];
            if (source == "file" || source == "http") && !manifests.contains(pod.uid()) {
                return Err(format!("the manifest of {} is not on disk", pod.name()));
            }
        }
        let dirs = ["pods", "status", "probes", "manifests"].map(|name| dir.join(name));
        let files = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let newest = files.filter_map(|file| file.metadata().ok()?.modified().ok()?.elapsed().ok()).min();
        if before == shown && newest.is_none_or(|age| age > quiet) {
            Ok(())
        } else {
            Err(format!("something was written {newest:?} ago"))
        }
    })
}

/// The value of a series of `/metrics`, as it is written there with its labels; `None` if it is not there.
///
/// # Errors
/// When there is no answer.
pub fn counted(node: &Node, series: &str) -> Result<Option<f64>> {
    let text = node.get("/metrics")?;
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    Ok(found)
}
