//! What people do with a cluster: the real controllers, the real scheduler and kubectl, with mainstay as the node.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainstay_e2e::{LISTENER, finish, idle, noise, pod, seen::PATIENCE, sh, speak, with};
use mainstay_testkit::{
    Containerd, ControlPlane, Flavor, Http, Image, Node, Registry, patient, tls_client, wait_until,
};
use serde_json::{Value, json};

/// Where pods find what they need to speak to the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The node goes first when both are dropped.
struct Cluster {
    node: Node,
    plane: ControlPlane,
}

impl Cluster {
    fn start(containerd: &Containerd) -> Self {
        let plane = ControlPlane::start_whole(containerd.dir().join("cluster")).unwrap();
        Self::on(containerd, plane, Ipv4Addr::LOCALHOST, "{}")
    }

    /// The same where pods reach both: the API server and the node listen on the bridge of the pods, which only this test has.
    /// So the node's ports can be those that everybody knows.
    fn start_for_pods(containerd: &Containerd) -> Self {
        containerd.make_bridge().unwrap();
        let address = containerd.gateway();
        let plane = ControlPlane::start_whole_on(containerd.dir().join("cluster"), address).unwrap();
        Self::on(
            containerd,
            plane,
            address,
            &format!(
                "{{address: {address}, port: 10250, readOnlyPort: 10255, \
                 featureGates: {{KubeletAllocatedPodsEndpoint: true}}}}"
            ),
        )
    }

    fn on(containerd: &Containerd, plane: ControlPlane, address: Ipv4Addr, config: &str) -> Self {
        let clients = containerd.dir().join("clients.crt");
        fs::write(&clients, &plane.authority().pem).unwrap();
        let kubeconfig = plane.node_kubeconfig("node").unwrap();
        let node = Node::builder()
            .containerd(containerd)
            .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", clients.display()))
            .config(config)
            .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={address}")])
            .start()
            .unwrap();
        Self { node, plane }
    }

    /// What kubectl says; `Err` if it failed.
    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.plane.kubectl(args).unwrap().stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("kubectl {args:?}: {}{}", text(&output.stdout), text(&output.stderr)))
        }
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap()
    }

    /// Has kubectl apply an object, or YAML of several, as soon as an API server that is new itself can say what such objects are like.
    fn apply(&self, object: &(impl Display + ?Sized)) {
        wait_until(PATIENCE, "kubectl apply", || {
            let mut kubectl = self.plane.kubectl(&["apply", "-f", "-"]).unwrap();
            let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            // One that has ended without reading says by its code that it failed.
            child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).ok();
            let status = child.wait().unwrap();
            if status.success() { Ok(()) } else { Err(format!("{status}: {object}")) }
        })
        .unwrap();
    }

    fn pods(&self, selector: &str) -> Result<Vec<Value>, String> {
        let text = self.try_kubectl(&["get", "pods", "-l", selector, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until kubectl says so.
    fn says(&self, args: &[&str], wanted: &str) {
        wait_until(PATIENCE, &format!("kubectl {args:?} to say {wanted:?}"), || {
            let said = self.try_kubectl(args)?;
            if said == wanted { Ok(()) } else { Err(said) }
        })
        .unwrap();
    }

    /// Waits until so many pods of a label are Ready in a version, and there are no others.
    fn ready(&self, selector: &str, count: usize, version: &str) -> Vec<Value> {
        wait_until(PATIENCE * 2, &format!("{count} pods of {selector}, version {version}"), || {
            let pods = self.pods(selector)?;
            let fit = pods.iter().filter(|pod| is_ready(pod) && env(pod) == version).count();
            if fit == count && pods.len() == count {
                return Ok(pods);
            }
            let seen: Vec<_> = pods
                .iter()
                .map(|pod| format!("{} {} {}", pod["metadata"]["name"], env(pod), pod["status"]))
                .collect();
            Err(format!("{seen:#?}\n{}", self.plane.log_tail()))
        })
        .unwrap()
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    pod["metadata"].get("deletionTimestamp").is_none()
        && conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn env(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default()
}

fn template(app: &str, version: &str) -> Value {
    let container = with(
        idle("c"),
        json!({
            "env": [{ "name": "VERSION", "value": version }],
            "readinessProbe": {
                "exec": { "command": ["sh", "-c", "test ! -e /tmp/sick"] },
                "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1,
            },
        }),
    );
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "terminationGracePeriodSeconds": 2, "containers": [container] },
    })
}

fn deployment(replicas: u32, version: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": template("web", version),
        },
    })
}

/// How long kubectl waits for what it is told to wait for.
fn timeout() -> String {
    format!("--timeout={}s", patient(Duration::from_secs(300)).as_secs())
}

fn restarts(pods: &[Value]) -> u64 {
    pods.iter().filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64()).sum()
}

/// Container, restarts and readiness of those that are neither on their way in nor out, by UID, as the node has them.
fn settled(node: &Node) -> Result<BTreeMap<String, Value>, String> {
    let pods = node.get("/pods").map_err(|error| format!("{error:#}"))?;
    let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
    let mut all = BTreeMap::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|it| it["type"] == "Ready" && it["status"] == "True");
        if let Some(ready) = ready.filter(|_| pod["metadata"]["deletionTimestamp"].is_null()) {
            let container = &pod["status"]["containerStatuses"][0];
            let face =
                json!([container["containerID"], container["restartCount"], ready["lastTransitionTime"]]);
            all.insert(pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(), face);
        }
    }
    Ok(all)
}

#[test]
fn deployments_roll_also_while_mainstay_is_killed() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut cluster = Cluster::start(&containerd);
    cluster.apply(&deployment(2, "1"));
    let first = cluster.ready("app=web", 2, "1");
    assert!(first.iter().all(|pod| pod["spec"]["nodeName"] == "node"));
    cluster.kubectl(&["scale", "deployment/web", "--replicas=3"]);
    cluster.ready("app=web", 3, "1");
    // A new version, and mainstay is killed while it rolls.
    cluster.apply(&deployment(3, "2"));
    cluster.kubectl(&["rollout", "status", "deployment/web", "--watch=false"]);
    let before = settled(&cluster.node).unwrap();
    assert!(!before.is_empty());
    cluster.node.kill9();
    cluster.node.start_again().unwrap();
    let now = wait_until(PATIENCE, "the first list", || settled(&cluster.node)).unwrap();
    let other: Vec<_> =
        before.iter().filter(|(uid, face)| now.get(*uid).is_some_and(|now| now != *face)).collect();
    assert!(other.is_empty(), "{other:?} became {now:?}");
    let rolled = cluster.ready("app=web", 3, "2");
    // The one instance that was being started when mainstay was killed may be lost; others are not.
    let restarted: Vec<_> = rolled.iter().filter(|pod| restarts(std::slice::from_ref(*pod)) > 0).collect();
    assert!(restarts(&rolled) <= 1, "{rolled:#?}");
    for pod in restarted {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        assert!(!before.contains_key(uid), "it had settled, and was started again: {pod}");
    }
    // Killed at rest: nothing notices.
    let ids = |pods: &[Value]| {
        let mut ids: Vec<_> =
            pods.iter().map(|pod| pod["status"]["containerStatuses"][0]["containerID"].to_string()).collect();
        ids.sort_unstable();
        ids
    };
    cluster.node.kill9();
    cluster.node.start_again().unwrap();
    let after = cluster.ready("app=web", 3, "2");
    assert_eq!(ids(&after), ids(&rolled));
    cluster.kubectl(&["delete", "deployment/web", "--wait=true", &timeout()]);
    wait_until(PATIENCE * 2, "the pods to be gone", || {
        let left = cluster.pods("app=web")?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
}

/// A kubectl that goes on until it is dropped.
struct Going(Child);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn kubectl_works_as_with_any_node() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = Cluster::start(&containerd);
    // What the node declares the API server relies on: kubectl's WebSockets end in mainstay.
    wait_until(PATIENCE, "the declared features", || {
        let declared =
            cluster.try_kubectl(&["get", "node", "node", "-o", "jsonpath={.status.declaredFeatures}"])?;
        let expected = r#"["ExtendWebSocketsToKubelet","RestartAllContainersOnContainerExits"]"#;
        if declared == expected { Ok(()) } else { Err(declared) }
    })
    .unwrap();
    // A DaemonSet comes to every node, a Job ends, and both are told of.
    let serve = "echo hello from $VERSION; mkdir -p /tmp/www; echo served > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    let mut agent = template("agent", "1");
    let container = &mut agent["spec"]["containers"][0];
    container["command"] = json!(["/bin/sh", "-c", serve]);
    // Ready is who serves.
    container["readinessProbe"]["exec"]["command"] =
        json!(["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/"]);
    cluster.apply(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" },
        "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": agent },
    }));
    cluster.apply(&json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "once" },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [sh("c", "echo done")] } } },
    }));
    let listener = with(sh("c", LISTENER), json!({ "stdin": true }));
    cluster.apply(&pod("listener", json!({ "restartPolicy": "Never", "containers": [listener] })));
    let deaf = sh("c", "trap '' TERM; while :; do sleep 1; done");
    cluster.apply(&pod("deaf", json!({ "terminationGracePeriodSeconds": 100_000, "containers": [deaf] })));
    let agents = cluster.ready("app=agent", 1, "1");
    let name = agents[0]["metadata"]["name"].as_str().unwrap();
    cluster.kubectl(&["wait", "--for=condition=complete", "job/once", &timeout()]);
    cluster.says(&["logs", "job/once"], "done\n");

    cluster.says(&["logs", name], "hello from 1\n");
    assert_eq!(cluster.kubectl(&["exec", name, "--", "sh", "-c", "echo $VERSION"]), "1\n");
    let failed = cluster.try_kubectl(&["exec", name, "--", "sh", "-c", "exit 4"]).unwrap_err();
    assert!(failed.contains("exit code 4"), "{failed}");
    // Nobody asked for the token that every pod has, and the API server takes it; strangers it turns away.
    let token = cluster.kubectl(&["exec", name, "--", "cat", &format!("{ACCOUNT}/token")]);
    let ca = cluster.kubectl(&["exec", name, "--", "cat", &format!("{ACCOUNT}/ca.crt")]);
    let by_its_ca = Http::Tls(cluster.plane.address(), tls_client(&ca, None).unwrap());
    let bearer = format!("Bearer {token}");
    let taken = by_its_ca.send("GET", "/api", &[("Authorization", &bearer)], b"").unwrap();
    assert_eq!(taken.status, 200, "{}", taken.text());
    assert_eq!(by_its_ca.get("/api").unwrap().status, 403);
    let told = wait_until(PATIENCE, "events in describe", || {
        let told = cluster.try_kubectl(&["describe", "pod", name])?;
        if told.contains("Started") { Ok(told) } else { Err(told) }
    })
    .unwrap();
    let status = told.lines().find(|line| line.starts_with("Status:")).unwrap();
    assert!(status.ends_with(" Running"), "{told}");
    let nodes = cluster.kubectl(&["get", "nodes"]);
    assert!(
        nodes.lines().nth(1).is_some_and(|line| line.starts_with("node") && line.contains(" Ready ")),
        "{nodes}"
    );

    let mut forward = cluster.plane.kubectl(&["port-forward", name, ":8080"]).unwrap();
    let mut forward = Going(forward.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    // Held until the end: kubectl writes a line for every connection, and would die of nobody reading.
    let mut lines = BufReader::new(forward.0.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    // Forwarding from 127.0.0.1:40000 -> 8080
    let port: u16 =
        line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let (mut answer, mut part) = (String::new(), [0; 1024]);
    while !answer.ends_with("served\n") {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "it ends too soon: {answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    attach_and_terminal(&cluster, name);
    copies(&cluster, containerd.dir(), name);
    // It would outlast any wait, but for the grace that is given here.
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/deaf", &timeout()]);
    cluster.kubectl(&["delete", "pod", "deaf", "--grace-period=1", &timeout()]);
}

/// `kubectl attach -i` is heard by the container's own process and by who follows its log, and `kubectl exec -it` has a terminal.
fn attach_and_terminal(cluster: &Cluster, name: &str) {
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/listener", &timeout()]);
    let begin = |args: &[&str]| {
        let mut kubectl = cluster.plane.kubectl(args).unwrap();
        kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let follow = begin(&["logs", "-f", "listener"]);
    let attach = begin(&["attach", "-i", "listener"]);
    let (seen, answers) = speak(attach, b"one\nbye\n").unwrap();
    assert_eq!((seen.code, answers.as_str()), (Some(0), "got one\ngot bye"), "{seen:?}");
    // Ends with the container.
    let followed = finish(follow, b"").unwrap();
    let (log, code) = (followed.text(), followed.code);
    let heard: Vec<&str> = log.lines().filter(|line| *line != "waiting").collect();
    assert_eq!((code, heard), (Some(0), vec!["got one", "got bye"]), "{followed:?}");
    let code = "jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.exitCode}";
    cluster.says(&["get", "pod", "listener", "-o", code], "Failed 3");

    // kubectl takes a terminal only if it has one itself.
    let kubectl = cluster.plane.kubectl(&[]).unwrap();
    let inside = format!("{} exec -it {name} -- sh -c 'tty && exit 5'", kubectl.get_program().display());
    let mut script = Command::new("script");
    script.args(["-qec", &inside, "/dev/null"]);
    script.envs(kubectl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().unwrap();
    // A terminal whose input ends hangs up.
    let _stdin = child.stdin.take();
    let seen = finish(child, b"").unwrap();
    assert!(seen.code == Some(5) && seen.text().contains("/dev/pts/"), "{seen:?}");
}

/// `kubectl cp`: a binary file and a directory, into a pod and back, byte for byte.
fn copies(cluster: &Cluster, dir: &Path, name: &str) {
    let (here, back) = (dir.join("copied"), dir.join("copied-back"));
    let tree = here.join("tree");
    fs::create_dir_all(tree.join("deep/deeper")).unwrap();
    fs::create_dir(&back).unwrap();
    let binary = noise(3_000_001);
    let files: [(&str, &[u8]); 4] = [
        ("binary", &binary),
        ("tree/empty", b""),
        ("tree/with space", b"a\0b\r\nc"),
        ("tree/deep/deeper/bytes", &binary[..70_000]),
    ];
    for (file, bytes) in &files {
        fs::write(here.join(file), bytes).unwrap();
    }
    let local = |path: &Path| path.to_str().unwrap().to_owned();
    for what in ["binary", "tree"] {
        let inside = format!("{name}:/tmp/{what}");
        cluster.kubectl(&["cp", &local(&here.join(what)), &inside]);
        cluster.kubectl(&["cp", &inside, &local(&back.join(what))]);
    }
    let sum = cluster.kubectl(&["exec", name, "--", "sha256sum", "/tmp/binary"]);
    let own = Command::new("sha256sum").arg(here.join("binary")).output().unwrap();
    assert_eq!(&sum.as_bytes()[..64], &own.stdout[..64], "what is in the pod");
    for (file, bytes) in &files {
        assert!(fs::read(back.join(file)).unwrap() == *bytes, "{file} came back as something else");
    }
}

#[test]
fn a_stateful_set_behind_a_service_is_drained() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = Cluster::start(&containerd);
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" },
        "spec": { "selector": { "app": "db" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }));
    cluster.apply(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "replicas": 2, "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } },
            "template": template("db", "1"),
        },
    }));
    // One after the other, by name, each as its own host.
    let pods = cluster.ready("app=db", 2, "1");
    let mut names: Vec<_> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["db-0", "db-1"]);
    assert_eq!(cluster.kubectl(&["exec", "db-1", "--", "hostname"]), "db-1\n");
    // Whoever looks for the service finds their addresses.
    let mut addresses: Vec<_> = pods.iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    addresses.sort_unstable();
    let found = |wanted: &[&str]| {
        wait_until(PATIENCE * 2, &format!("the service to have the endpoints {wanted:?}"), || {
            let args = ["get", "endpointslices", "-l", "kubernetes.io/service-name=db", "-o", "json"];
            let list: Value =
                serde_json::from_str(&cluster.try_kubectl(&args)?).map_err(|error| error.to_string())?;
            let slices = list["items"].as_array().into_iter().flatten();
            let mut ready: Vec<_> = slices
                .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
                .filter(|endpoint| endpoint["conditions"]["ready"] == true)
                .filter_map(|endpoint| endpoint["addresses"][0].as_str())
                .collect();
            ready.sort_unstable();
            if ready == wanted { Ok(()) } else { Err(list.to_string()) }
        })
        .unwrap();
    };
    found(&addresses);
    // Whoever is not ready is not among them, and is again when its probe says so; nothing is restarted for it.
    let sick = pods.iter().find(|pod| pod["metadata"]["name"] == "db-1").unwrap();
    let well: Vec<_> = addresses.iter().copied().filter(|it| sick["status"]["podIP"] != *it).collect();
    cluster.kubectl(&["exec", "db-1", "--", "touch", "/tmp/sick"]);
    found(&well);
    cluster.kubectl(&["exec", "db-1", "--", "rm", "/tmp/sick"]);
    found(&addresses);
    assert_eq!(restarts(&cluster.pods("app=db").unwrap()), 0);

    evicted_by_a_taint(&cluster, &pods);

    // A drain ends them and keeps others away until the node is open again.
    cluster.kubectl(&["drain", "node", "--ignore-daemonsets", "--force", &timeout()]);
    let nodes = cluster.kubectl(&["get", "nodes"]);
    assert!(nodes.contains("SchedulingDisabled"), "{nodes}");
    wait_until(PATIENCE * 2, "nothing to run there", || {
        let own = cluster.node.get("/pods").map_err(|error| format!("{error:#}"))?;
        if own.contains(r#""items":null"#) { Ok(()) } else { Err(own) }
    })
    .unwrap();
    cluster.kubectl(&["uncordon", "node"]);
    cluster.ready("app=db", 2, "1");
}

/// Who does not tolerate a taint has to go, and comes back when it is gone; who tolerates it does not notice.
fn evicted_by_a_taint(cluster: &Cluster, pods: &[Value]) {
    let toleration = json!([{ "key": "repairs", "operator": "Exists", "effect": "NoExecute" }]);
    let tolerant = json!({
        "terminationGracePeriodSeconds": 1, "containers": [idle("c")], "tolerations": toleration,
    });
    cluster.apply(&pod("tolerant", tolerant));
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/tolerant", &timeout()]);
    let own = "{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
    let same = ["get", "pod", "tolerant", "-o", &format!("jsonpath={own}")];
    let before = cluster.kubectl(&same);
    cluster.kubectl(&["taint", "node", "node", "repairs=now:NoExecute"]);
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let old: Vec<Value> = pods.iter().map(uid).collect();
    wait_until(PATIENCE * 2, "only the tolerant to be left on the node", || {
        let own = cluster.node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let list: Value = serde_json::from_str(&own).map_err(|error| error.to_string())?;
        let names: Vec<_> =
            list["items"].as_array().into_iter().flatten().map(|it| &it["metadata"]["name"]).collect();
        if names == ["tolerant"] { Ok(()) } else { Err(own) }
    })
    .unwrap();
    // Their successors wait for a node that takes them.
    wait_until(PATIENCE * 2, "a successor that nobody takes", || {
        let now = cluster.pods("app=db")?;
        let waits = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut unscheduled =
                conditions.filter(|it| it["type"] == "PodScheduled" && it["reason"] == "Unschedulable");
            !old.contains(&uid(pod)) && pod["spec"]["nodeName"].is_null() && unscheduled.next().is_some()
        };
        if !now.is_empty() && now.iter().all(waits) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .unwrap();
    assert_eq!(cluster.kubectl(&same), before);
    cluster.kubectl(&["taint", "node", "node", "repairs-"]);
    cluster.ready("app=db", 2, "1");
}

/// One who only reads, as a well-known text on the kubelet's API has it, but for the version of the API: `v1beta1` is no more.
const MONITORING: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata:
  name: mymonitoring
  namespace: default
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: mymonitoring-clusterrole
  namespace: default
rules:
- apiGroups: [""]
  resources:
  - nodes/log
  - nodes/metrics
  - nodes/proxy
  - nodes/spec
  - nodes/stats
  verbs:
  - 'get'
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mymonitoring-clusterrole-binding
roleRef:
  kind: ClusterRole
  name: mymonitoring-clusterrole
  apiGroup: "rbac.authorization.k8s.io"
subjects:
- kind: ServiceAccount
  name: mymonitoring
  namespace: default
"#;

/// One who may do everything with the node, as another text has it.
const EXPERIMENT: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kubelet-api-experiment
  namespace: default
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kubelet-api-experiment
rules:
- apiGroups:
  - ""
  resources:
  - nodes/log
  - nodes/metrics
  - nodes/proxy
  - nodes/stats
  verbs:
  - get
  - create
  - update
  - patch
  - delete
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kubelet-api-experiment
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kubelet-api-experiment
subjects:
- kind: ServiceAccount
  name: kubelet-api-experiment
  namespace: default
"#;

#[test]
fn pods_are_let_in_by_their_secrets_and_accounts() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = Cluster::start_for_pods(&containerd);
    // What may be read by whom is known to the API server a moment later; meanwhile a registry is tried.
    for role in [MONITORING, EXPERIMENT] {
        cluster.apply(role);
    }
    pull_secrets(&cluster, &containerd);
    read_from_inside(&cluster, containerd.gateway());
}

/// A registry that asks for a password is opened by a Secret that the pod names, or its account, and by nothing else.
fn pull_secrets(cluster: &Cluster, containerd: &Containerd) {
    let registry = Registry::with_login("puller", "s3cret").unwrap();
    registry.serve_as("closed.test", containerd).unwrap();
    // Its own bytes: what is known of an image is known by its ID, whatever it is called.
    let image = Image::named("docker.io/local/private:1").file("whose", "closed.test");
    registry.push(containerd, &image, "team/private:1").unwrap();
    let login = |name: &str, password: &str| {
        let password = format!("--docker-password={password}");
        let server = "--docker-server=closed.test";
        cluster.kubectl(&[
            "create",
            "secret",
            "docker-registry",
            name,
            server,
            "--docker-username=puller",
            &password,
        ]);
    };
    login("login", "s3cret");
    login("wrong", "guess");
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "puller" },
        "imagePullSecrets": [{ "name": "login" }],
    }));
    // Everyone pulls, whatever others have pulled.
    let image = json!({ "image": "closed.test/team/private:1", "imagePullPolicy": "Always" });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), image)] });
    let named = |name: &str| json!({ "imagePullSecrets": [{ "name": name }] });
    for (name, more) in [
        ("without", json!({})),
        ("mistaken", named("wrong")),
        ("early", named("later")),
        ("by-pod", named("login")),
        ("by-account", json!({ "serviceAccountName": "puller" })),
    ] {
        cluster.apply(&pod(name, with(spec.clone(), more)));
    }
    let told = |name: &str, reason: &str, text: &str| {
        let selector = format!("--field-selector=involvedObject.name={name},reason={reason}");
        wait_until(PATIENCE, &format!("the event {reason} of {name}"), || {
            let said =
                cluster.try_kubectl(&["get", "events", &selector, "-o", "jsonpath={.items[*].message}"])?;
            if said.contains(text) { Ok(()) } else { Err(said) }
        })
        .unwrap();
    };
    for name in ["by-pod", "by-account"] {
        cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &timeout()]);
        cluster.says(&["get", "pod", name, "-o", "jsonpath={.spec.imagePullSecrets[*].name}"], "login");
        told(name, "Pulled", "Successfully pulled image \"closed.test/team/private:1\"");
    }
    for name in ["without", "mistaken", "early"] {
        wait_until(PATIENCE, &format!("the refusal of {name}"), || {
            let waiting = "jsonpath={.status.phase} {.status.containerStatuses[0].state.waiting}";
            let said = cluster.try_kubectl(&["get", "pod", name, "-o", waiting])?;
            let reasons = [r#"Pending {"#, r#""reason":"ErrImagePull""#, r#""reason":"ImagePullBackOff""#];
            let [pending, first, later] = reasons.map(|part| said.contains(part));
            let refused = ["401", "authorization", "denied"].iter().any(|part| said.contains(part));
            assert!(!said.contains("guess"), "a password is never shown: {said}");
            if pending && (first || later) && refused { Ok(()) } else { Err(said) }
        })
        .unwrap();
        told(name, "Failed", "Failed to pull image \"closed.test/team/private:1\"");
    }
    told("early", "FailedToRetrieveImagePullSecret", "(later)");
    // The password comes, and nobody has to touch the pod.
    login("later", "s3cret");
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/early", &timeout()]);
    for word in ["s3cret", "guess"] {
        assert!(!cluster.node.log().contains(word), "a password is not logged");
    }
    let names = ["without", "mistaken", "early", "by-pod", "by-account"];
    cluster.kubectl(&[&["delete", "pod"], names.as_slice(), &[&timeout()]].concat());
}

/// An administrator reaches everything through the API server, each path with a word that only it says: what can be read by
/// `kubectl get --raw`, what acts by the methods that it wants. Streams are refused because nobody asks for an upgrade here (`kubectl exec`
/// and its like are used elsewhere), and a checkpoint for want of a runtime that can make one: by the node, and not on the way.
fn everything_through_the_api_server(cluster: &Cluster) {
    let uid = cluster.kubectl(&["get", "pod", "mymonitoring", "-o", "jsonpath={.metadata.uid}"]);
    let path = |text: &str| text.replace("POD", "mymonitoring").replace("UID", &uid);
    let log = fs::read_dir("/var/log").unwrap().flatten().find(|entry| {
        let is_text = entry.file_name().to_string_lossy().ends_with(".log");
        is_text && entry.metadata().is_ok_and(|it| it.is_file() && it.len() > 0)
    });
    let log = log.expect("a file in /var/log").file_name().into_string().unwrap();
    let listed = format!("<a href=\"{log}\">{log}</a>");
    let first = fs::read(Path::new("/var/log").join(&log)).unwrap();
    let first = String::from_utf8_lossy(first.get(..16).unwrap_or(&first)).into_owned();
    let (log, no_stream) = (format!("/logs/{log}"), "Upgrade request required");
    const REFUSED: [&str; 4] = ["/exec/", "/attach/", "/portForward/", "/checkpoint/"];
    for (method, asked, word) in [
        ("GET", "/allocatedPods", "\"name\":\"mymonitoring\""),
        ("GET", "/allocatedPods/default/POD", "\"name\":\"mymonitoring\""),
        ("GET", "/allocatedPods/default/POD/UID", uid.as_str()),
        ("GET", "/configz", "\"kubeletconfig\""),
        ("GET", "/containerLogs/default/POD/c", "here I am"),
        ("GET", "/debug/pprof/", "goroutine"),
        ("GET", "/debug/pprof/cmdline", "kubelet"),
        ("GET", "/flagz", "kubeconfig"),
        ("GET", "/healthz", "ok"),
        ("GET", "/healthz/device-plugin", "ok"),
        ("GET", "/healthz/log", "ok"),
        ("GET", "/healthz/ping", "ok"),
        ("GET", "/healthz/syncloop", "ok"),
        ("GET", "/logs/", &listed),
        ("GET", &log, &first),
        ("GET", "/mainstay/v1/events", "\"items\""),
        ("GET", "/metrics", "kubelet_running_pods"),
        ("GET", "/metrics/cadvisor", "container_cpu_usage_seconds_total"),
        ("GET", "/metrics/probes", "process_start_time_seconds"),
        ("GET", "/metrics/resource", "node_cpu_usage_seconds_total"),
        ("GET", "/metrics/resource/v1alpha1", "node_cpu_usage_seconds_total"),
        ("GET", "/metrics/slis", "kubernetes_healthcheck"),
        ("GET", "/node", "\"kind\":\"Node\""),
        ("GET", "/openapi/v3", "\"openapi\""),
        ("GET", "/pods", "\"kind\":\"PodList\""),
        ("GET", "/runningpods/", "\"name\":\"mymonitoring\""),
        ("GET", "/spec/", "\"num_cores\""),
        ("GET", "/stats/", "\"cpu\""),
        ("GET", "/stats/POD/c", "\"cpu\""),
        ("GET", "/stats/default/POD/UID/c", "\"cpu\""),
        ("GET", "/stats/summary", "\"podRef\""),
        ("GET", "/statusz", "statusz"),
        ("POST", "/run/default/POD/c?cmd=hostname", "mymonitoring"),
        ("POST", "/run/default/POD/UID/c?cmd=hostname", "mymonitoring"),
        ("POST", "/exec/default/POD/c?command=hostname&output=1", no_stream),
        ("POST", "/exec/default/POD/UID/c?command=hostname&output=1", no_stream),
        ("POST", "/attach/default/POD/c?output=1", no_stream),
        ("POST", "/attach/default/POD/UID/c?output=1", no_stream),
        ("POST", "/portForward/default/POD", no_stream),
        ("POST", "/portForward/default/POD/UID", no_stream),
        ("POST", "/checkpoint/default/POD/c", "CheckpointContainer not implemented"),
        ("PUT", "/debug/flags/v", "successfully set klog.logging.verbosity to 4"),
    ] {
        let raw = format!("/api/v1/nodes/node/proxy{}", path(asked));
        let is_refused = REFUSED.iter().any(|refused| asked.starts_with(refused));
        wait_until(PATIENCE, &format!("{method} {asked} through the API server"), || {
            let said = if method == "GET" {
                cluster.try_kubectl(&["get", "--raw", &raw])?
            } else {
                let answer = cluster.plane.admin().and_then(|admin| admin.send(method, &raw, &[], b"4"));
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                match (answer.status, is_refused) {
                    (200, false) | (400 | 403 | 404 | 500 | 501, true) => answer.text(),
                    (status, _) => return Err(format!("{status}: {}", answer.text())),
                }
            };
            if said.contains(word) { Ok(()) } else { Err(format!("no {word:?} in {said}")) }
        })
        .unwrap();
    }
}

/// Pods read what their accounts may: from their node, from its read-only port, and through the API server.
fn read_from_inside(cluster: &Cluster, gateway: Ipv4Addr) {
    let kubectl = cluster.plane.kubectl(&[]).unwrap().get_program().to_str().unwrap().to_owned();
    // kubectl is static, so any image can have it. There is no DNS, so the names are in the pod's hosts file.
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "hostAliases": [{ "ip": gateway, "hostnames": ["node", "kubernetes"] }],
        "containers": [with(sh("c", "echo here I am; trap 'exit 0' TERM; while :; do sleep 0.1; done"), json!({
            "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "volumeMounts": [{ "name": "kubectl", "mountPath": "/bin/kubectl", "readOnly": true }],
        }))],
        "volumes": [{ "name": "kubectl", "hostPath": { "path": kubectl, "type": "File" } }],
    });
    for account in ["mymonitoring", "kubelet-api-experiment", "default"] {
        cluster.apply(&pod(account, with(spec.clone(), json!({ "serviceAccountName": account }))));
    }
    for pod in ["mymonitoring", "kubelet-api-experiment", "default"] {
        cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), &timeout()]);
    }
    // As `curl -k --header "Authorization: Bearer $TOKEN" $SERVER$PATH`.
    let asks = |pod: &str, server: &str, request: &str| {
        let script = format!(
            "TOKEN=$(cat {ACCOUNT}/token); exec kubectl --insecure-skip-tls-verify --token=$TOKEN --server={server} {request}"
        );
        cluster.try_kubectl(&["exec", pod, "--", "sh", "-c", &script])
    };
    let answered = |pod: &str, server: &str, path: &str, parts: &[&str]| {
        wait_until(PATIENCE, &format!("{pod} to read {server}{path}"), || {
            let answer = asks(pod, server, &format!("get --raw '{path}'"))?;
            if parts.iter().all(|part| answer.contains(part)) { Ok(()) } else { Err(answer) }
        })
        .unwrap();
    };
    let refused = |pod: &str, server: &str, request: &str, parts: &[&str]| {
        wait_until(PATIENCE, &format!("{pod} to be refused {server} {request}"), || {
            let error = match asks(pod, server, request) {
                Ok(answer) => panic!("{pod} was given {server} {request}: {answer}"),
                Err(error) => error,
            };
            if parts.iter().all(|part| error.contains(part)) { Ok(()) } else { Err(error) }
        })
        .unwrap();
    };
    let (node, api) =
        ("https://$NODE_NAME:10250", format!("https://kubernetes:{}", cluster.plane.address().port()));
    let proxy = |path: &str| format!("/api/v1/nodes/node/proxy{path}");

    let usage = [r#"container_cpu_usage_seconds_total{container="c""#, r#"pod="mymonitoring""#];
    answered("mymonitoring", node, "/metrics", &["kubelet_running_pods"]);
    answered("mymonitoring", node, "/metrics/cadvisor", &usage);
    answered("mymonitoring", &api, &proxy("/metrics"), &["kubelet_running_pods"]);
    answered("mymonitoring", &api, &proxy("/metrics/cadvisor"), &usage);
    answered("mymonitoring", &api, &proxy("/configz"), &[r#""webhook":{"enabled":true"#]);
    answered("mymonitoring", &api, &proxy("/pods"), &[r#""name":"mymonitoring""#]);
    // The same from outside, with a token of the account.
    let bearer = format!("Bearer {}", cluster.kubectl(&["create", "token", "mymonitoring"]).trim());
    let outside =
        Http::Tls(cluster.plane.address(), tls_client(&cluster.plane.authority().pem, None).unwrap());
    wait_until(PATIENCE, "an answer from outside", || {
        let headers = [("Authorization", bearer.as_str())];
        let answer = outside.request("GET", &proxy("/metrics/cadvisor"), &headers);
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let text = answer.text();
        if answer.status == 200 && usage.iter().all(|part| text.contains(part)) { Ok(()) } else { Err(text) }
    })
    .unwrap();
    // By the address that kubectl shows.
    let internal = r#"jsonpath={.status.addresses[?(@.type == "InternalIP")].address}"#;
    let address = cluster.kubectl(&["get", "node", "node", "-o", internal]);
    let by_address = format!("https://{address}:10250");
    let pods = [r#""kind":"PodList""#, r#""name":"kubelet-api-experiment""#, r#""name":"mymonitoring""#];
    answered("kubelet-api-experiment", &by_address, "/pods", &pods);
    answered("kubelet-api-experiment", &by_address, "/stats/summary", &[r#""podRef""#]);
    // The read-only port asks nobody who he is.
    for host in ["node", &address] {
        let wget = format!("wget -q -O - http://{host}:10255/metrics/cadvisor");
        wait_until(PATIENCE, &wget, || {
            let answer = cluster.try_kubectl(&["exec", "default", "--", "sh", "-c", &wget])?;
            if usage.iter().all(|part| answer.contains(part)) { Ok(()) } else { Err(answer) }
        })
        .unwrap();
    }

    everything_through_the_api_server(cluster);

    // One role runs commands, the other reads only, and who has none is let nowhere.
    let run = |pod: &str| format!("create --raw '/run/default/{pod}/c?cmd=hostname' -f /dev/null");
    wait_until(PATIENCE, "a command to be run", || {
        let ran = asks("kubelet-api-experiment", node, &run("mymonitoring"))?;
        if ran == "mymonitoring\n" { Ok(()) } else { Err(ran) }
    })
    .unwrap();
    let account = |name: &str| format!("user=system:serviceaccount:default:{name}, verb=");
    refused("mymonitoring", node, &run("default"), &["Forbidden", &account("mymonitoring"), "create"]);
    refused("default", node, "get --raw /pods", &["Forbidden", &account("default"), "get"]);
    // The node saw the pod itself, and nobody in between.
    let ip = cluster.kubectl(&["get", "pod", "default", "-o", "jsonpath={.status.podIP}"]);
    wait_until(PATIENCE, "the refusal in the audit log", || {
        let log = cluster.node.log();
        let from = format!(" address={ip} ");
        let mut lines = log.lines().filter(|line| line.contains("audit: ") && line.contains(&from));
        let is = |line: &str| line.contains("GET /pods") && line.contains("serviceaccount:default:default");
        if lines.any(is) { Ok(()) } else { Err(format!("nothing of {ip}")) }
    })
    .unwrap();
    refused(
        "default",
        &api,
        &format!("get --raw {}", proxy("/pods")),
        &["cannot get resource \"nodes/proxy\""],
    );
}
