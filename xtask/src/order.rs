//! `cargo xtask order`: which functions a node at work runs, found by running one that stops at each function once, for the linker
//! to put side by side (docs/decisions/0011-function-order.md).

mod trace;

use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{BUSYBOX, Containerd, ControlPlane, Flavor, Http, Node, wait_until};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use std::{fs, thread};

use trace::Place;

const HEADER: &str = "# What a node at work runs, for the linker: docs/decisions/0011-function-order.md. Written by `cargo xtask order`.\n";
const PATIENCE: Duration = Duration::from_secs(120);
/// Of everything that goes by the clock, what comes once a minute or more often.
const AT_REST: Duration = Duration::from_secs(65);
const SLEEPS: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
const PODS: &str = "/api/v1/namespaces/default/pods";
const ANSWERS: &[&str] = &[
    "/pods",
    "/runningpods/",
    "/healthz",
    "/node",
    "/metrics",
    "/metrics/resource",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/stats/summary",
];

pub(crate) fn run() -> Result<()> {
    crate::tools::run(&["etcd", "kube-apiserver"])?;
    let root = mainstay_testkit::workspace_root();
    let binary = match std::env::var_os("MAINSTAY_BIN") {
        Some(binary) => fs::canonicalize(binary)?,
        None => build(root)?,
    };
    let scratch = root.join("target/order");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;

    let place = Place::new(&scratch);
    let program = place.prepare(&binary)?;
    println!("running a node that stops once at each function");
    let tracer = Tracer(
        Command::new(std::env::current_exe()?)
            .args(["order-trace".as_ref(), scratch.as_os_str(), binary.as_os_str()])
            .spawn()?,
    );
    alone(&program, &place)?;
    member(&program, &place)?;
    let lives = wait_until(PATIENCE, "what was called in each life", || {
        place.lives().ok().filter(|lives| lives.len() == LIVES).ok_or_else(|| "not all of it".to_owned())
    })?;
    drop(tracer);

    let functions = trace::functions(&binary)?;
    let (mut order, mut seen) = (HEADER.to_owned(), HashSet::new());
    // What a node at rest goes on needing comes first, so that the pages of it hold nothing else.
    let at_rest = || lives.iter().flat_map(|periods| periods.iter().skip(1).step_by(2)).flatten();
    let needed = at_rest().collect::<HashSet<_>>().len();
    let all = lives.iter().flatten().flatten();
    for address in at_rest().chain(all).filter(|address| seen.insert(**address)) {
        for name in functions.get(address).into_iter().flatten() {
            writeln!(order, "{name}")?;
        }
    }
    if seen.len() < 1000 {
        bail!("only {} functions were seen; is the binary stripped?", seen.len());
    }
    let target = root.join("crates/mainstay/link/functions.order");
    fs::write(&target, order)?;
    let (all, shown) = (functions.len(), target.display());
    println!("{} of {all} functions, {needed} of them at rest: {shown}", seen.len());
    Ok(())
}

fn build(root: &Path) -> Result<PathBuf> {
    println!("building a release");
    let built = crate::cargo().args(["build", "--release", "--locked", "-p", "mainstay"]).status()?;
    ensure!(built.success(), "the release build failed");
    Ok(fs::canonicalize(root.join("target/release/mainstay"))?)
}

/// What `run` starts beside itself.
pub(crate) fn trace(scratch: &str, binary: &str) -> Result<()> {
    trace::serve(&Place::new(scratch), Path::new(binary))
}

/// Ends with whoever started it.
struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// How often the agent is started below.
const LIVES: usize = 4;

fn shell(script: &str) -> Value {
    json!({ "name": "c", "image": BUSYBOX, "command": ["sh", "-c", script] })
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// A pod with most of what pods have.
fn full() -> Value {
    let mut full = shell("while :; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\n' | nc -l -p 8080; done");
    full["resources"] =
        json!({ "requests": { "cpu": "1m", "memory": "4Mi" }, "limits": { "memory": "64Mi", "cpu": "1" } });
    full["startupProbe"] = json!({ "periodSeconds": 1, "exec": { "command": ["true"] } });
    full["readinessProbe"] = json!({ "periodSeconds": 2, "exec": { "command": ["true"] } });
    // Either may come while nobody listens.
    full["livenessProbe"] =
        json!({ "periodSeconds": 2, "failureThreshold": 1000, "httpGet": { "port": 8080 } });
    full["volumeMounts"] =
        json!([{ "name": "words", "mountPath": "/words" }, { "name": "empty", "mountPath": "/empty" }]);
    full["env"] =
        json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "words", "key": "a" } } }]);
    let mut init = shell("true");
    init["name"] = json!("first");
    let volumes =
        json!([{ "name": "words", "configMap": { "name": "words" } }, { "name": "empty", "emptyDir": {} }]);
    json!({ "terminationGracePeriodSeconds": 1, "initContainers": [init], "containers": [full], "volumes": volumes })
}

fn words() -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "words" }, "data": { "a": "b" } })
}

fn plain() -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [shell(SLEEPS)] })
}

fn ready(node: &Node, count: usize) -> Result<()> {
    node.wait_for(PATIENCE, "pods that are ready", |list| {
        let list = serde_json::to_value(&list.items).map_err(|error| error.to_string())?;
        let is_ready = |pod: &&Value| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let found = list.as_array().into_iter().flatten().filter(is_ready).count();
        if found == count { Ok(()) } else { Err(format!("{found} of {count}")) }
    })
}

/// Leaves the node in peace, after what its last work needed a while for; what it calls meanwhile is noted by itself.
fn rest(node: &Node, place: &Place) -> Result<()> {
    let pid = node.pid().context("the node has ended")?;
    thread::sleep(Duration::from_secs(10));
    place.next_period(pid)?;
    thread::sleep(AT_REST);
    place.next_period(pid)
}

/// The life of a node without a cluster: pods come, run, are looked at, crash and go; the agent is restarted, and killed.
fn alone(program: &Path, place: &Place) -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node = Node::builder().containerd(&containerd).program(program).start()?;
    // First what every node does.
    for name in ["one", "two", "three"] {
        node.write_manifest(&format!("{name}.json"), &pod(name, &plain()).to_string())?;
    }
    ready(&node, 3)?;
    rest(&node, place)?;
    node.write_manifest("words.json", &words().to_string())?;
    node.write_manifest("full.json", &pod("full", &full()).to_string())?;
    let crashes = json!({ "containers": [shell("exit 1")] });
    node.write_manifest("crashes.json", &pod("crashes", &crashes).to_string())?;
    ready(&node, 4)?;
    node.remove_manifest("one.json")?;
    ready(&node, 3)?;
    rest(&node, place)?;
    node.sigterm()?;
    // What only some nodes are asked for comes behind what every node does.
    node.start_again()?;
    ready(&node, 3)?;
    let ports = [node.http(), Http::Tcp(node.read_only())];
    for path in ANSWERS {
        for (http, headers) in [(&ports[0], &[][..]), (&ports[1], &[("accept-encoding", "gzip")])] {
            let answer = http.request("GET", path, headers)?;
            ensure!(answer.status == 200 || path.contains("running"), "{path}: {}", answer.text());
        }
    }
    node.logs("default", "full-node", "c", "")?;
    node.kill9();
    node.start_again()?;
    ready(&node, 3)?;
    node.sigterm()?;
    Ok(())
}

/// The life of a member of a cluster.
fn member(program: &Path, place: &Place) -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let clients = containerd.dir().join("clients.crt");
    fs::write(&clients, &plane.authority().pem)?;
    let kubeconfig = plane.node_kubeconfig("node")?;
    let mut node = Node::builder()
        .containerd(&containerd)
        .config(format!("{{authentication: {{x509: {{clientCAFile: {}}}}}}}", clients.display()))
        .args([format!("--kubeconfig={}", kubeconfig.display()), "--node-ip=127.0.0.2".to_owned()])
        .program(program)
        .start()?;
    wait_until(PATIENCE, "the node to be Ready", || {
        let answer = plane.send("GET", "/api/v1/nodes/node", None).map_err(|error| error.to_string())?;
        let text = answer.text();
        if text.contains("KubeletReady") { Ok(()) } else { Err(text) }
    })?;
    plane.create("/api/v1/namespaces/default/configmaps", &words())?;
    for (name, mut spec) in [("one", plain()), ("full", full())] {
        spec["nodeName"] = json!("node");
        spec["automountServiceAccountToken"] = json!(false);
        plane.create(PODS, &pod(name, &spec))?;
    }
    ready(&node, 2)?;
    rest(&node, place)?;
    plane.send("DELETE", &format!("{PODS}/one"), None)?;
    wait_until(PATIENCE, "the pod to be gone", || {
        let status =
            plane.send("GET", &format!("{PODS}/one"), None).map_err(|error| error.to_string())?.status;
        if status == 404 { Ok(()) } else { Err(format!("{status}")) }
    })?;
    for path in ANSWERS {
        plane.send("GET", &format!("/api/v1/nodes/node/proxy{path}"), None)?;
    }
    node.sigterm()?;
    Ok(())
}
