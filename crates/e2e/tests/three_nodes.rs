//! Two mainstay nodes and one with upstream's kubelet in one cluster, each in a network of its own, as on three machines: whoever uses it
//! cannot tell which is which, and what happens to one does not touch the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use mainstay_e2e::{idle, member::condition, pod, seen::PATIENCE, sh, with};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, Node, OwnNetwork, patient, wait_until};
use serde_json::{Value, json};

/// The last is upstream's.
const NAMES: [&str; 3] = ["east", "west", "upstream"];

/// What `kubectl get --raw` asks of a node; who may is in `cluster.rs`.
const READ_THROUGH_THE_PROXY: [&str; 20] = [
    "/pods",
    "/runningpods/",
    "/healthz",
    "/healthz/ping",
    "/configz",
    "/node",
    "/spec/",
    "/stats/summary",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/metrics/probes",
    "/metrics/slis",
    "/logs/",
    "/debug/pprof/",
    "/openapi/v3",
    "/mainstay/v1/events",
    "/mainstay/v1/manifests",
    "/mainstay/v1/node",
    "/mainstay/v1/resources",
];

/// Nodes go first when all are dropped, then the control plane, then the runtimes.
struct Cluster {
    nodes: BTreeMap<&'static str, Node>,
    plane: ControlPlane,
    runtimes: BTreeMap<&'static str, Containerd>,
}

impl Cluster {
    /// Each node with a runtime, a root, cgroups and a network namespace of its own, on that namespace's address.
    fn start() -> Result<Self> {
        let mut runtimes = BTreeMap::new();
        for name in NAMES {
            let containerd = Containerd::builder(Flavor::Debian16).own_network().host_ports().start()?;
            runtimes.insert(name, containerd);
        }
        let first = runtimes.get("east").context("no runtime")?;
        // The others reach it there, too, by their own wires.
        let plane = ControlPlane::start_whole_on(first.dir().join("cluster"), network(first)?.host())?;
        let mut nodes = BTreeMap::new();
        for (name, containerd) in &runtimes {
            let clients = containerd.dir().join("clients.crt");
            fs::write(&clients, &plane.authority().pem)?;
            let (address, kubeconfig) = (network(containerd)?.address(), plane.node_kubeconfig(name)?);
            let mut builder = Node::builder()
                .containerd(containerd)
                .name(*name)
                .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", clients.display()))
                .config("{authorization: {mode: Webhook}, authentication: {webhook: {enabled: true}}}")
                .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={address}")]);
            builder = if *name == "upstream" {
                // The kit asks it on its read-only port whether it is there.
                builder.upstream().config("{address: 0.0.0.0, port: 10250}")
            } else {
                builder.config(format!("{{address: {address}, port: 10250}}"))
            };
            nodes.insert(*name, builder.start().with_context(|| format!("the node {name}"))?);
        }
        let cluster = Self { nodes, plane, runtimes };
        for name in NAMES {
            cluster.until(&format!("{name} to be Ready"), || {
                let node = cluster.get(&["node", name])?;
                if condition(&node, "Ready") == "True" { Ok(()) } else { Err(node["status"].to_string()) }
            })?;
        }
        Ok(cluster)
    }

    fn node(&mut self, name: &str) -> Result<&mut Node> {
        self.nodes.get_mut(name).with_context(|| format!("no node {name}"))
    }

    fn until<T>(&self, what: &str, check: impl FnMut() -> Result<T, String>) -> Result<T> {
        wait_until(4 * PATIENCE, what, check).with_context(|| self.plane.log_tail())
    }

    fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut kubectl = self.plane.kubectl(args).map_err(|error| format!("{error:#}"))?;
        let output = kubectl.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(format!("kubectl {args:?}: {}{}", text(&output.stdout), text(&output.stderr)))
    }

    fn must(&self, args: &[&str]) -> Result<String> {
        self.kubectl(args).map_err(anyhow::Error::msg)
    }

    fn get(&self, what: &[&str]) -> Result<Value, String> {
        let args: Vec<&str> = ["get"].into_iter().chain(what.iter().copied()).chain(["-o", "json"]).collect();
        serde_json::from_str(&self.kubectl(&args)?).map_err(|error| error.to_string())
    }

    /// Has kubectl apply an object as soon as a new API server knows its kind.
    fn apply(&self, object: &Value) -> Result<()> {
        self.until("kubectl apply", || {
            let kubectl = self.plane.kubectl(&["apply", "-f", "-"]);
            let mut kubectl = kubectl.map_err(|error| format!("{error:#}"))?;
            let child = kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
            let mut child = child.map_err(|error| error.to_string())?;
            if let Some(mut stdin) = child.stdin.take() {
                // One that has ended without reading says by its code that it failed.
                stdin.write_all(object.to_string().as_bytes()).ok();
            }
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            if output.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        })
    }

    /// The Ready pods of a label by node, once they are so many and all are Ready.
    fn ready(&self, app: &str, count: usize) -> Result<BTreeMap<String, Vec<Value>>> {
        self.until(&format!("{count} Ready pods of {app}"), || {
            let list = self.get(&["pods", "-l", &format!("app={app}")])?;
            let all = list["items"].as_array().cloned().unwrap_or_default();
            let fit = |pod: &&Value| {
                condition(pod, "Ready") == "True" && pod["metadata"]["deletionTimestamp"].is_null()
            };
            if all.len() != count || all.iter().filter(fit).count() != count {
                let seen: Vec<_> =
                    all.iter().map(|it| format!("{} {}", it["metadata"]["name"], it["status"])).collect();
                return Err(format!("{seen:#?}"));
            }
            let mut by_node = BTreeMap::<String, Vec<Value>>::new();
            for pod in all {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
                by_node.entry(node).or_default().push(pod);
            }
            Ok(by_node)
        })
    }
}

fn network(containerd: &Containerd) -> Result<&OwnNetwork> {
    containerd.own_network().context("no network of its own")
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// What must not change while others are in trouble.
fn face(pod: &Value) -> Value {
    let container = &pod["status"]["containerStatuses"][0];
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready: Vec<_> =
        conditions.filter(|it| it["type"] == "Ready").map(|it| &it["lastTransitionTime"]).collect();
    json!([pod["metadata"]["uid"], container["containerID"], container["restartCount"], ready])
}

/// The paths of every field, so that two objects can be compared by their form.
fn form(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| form(value, &format!("{at}.{key}"), into))
        }
        Value::Array(items) => items.iter().for_each(|item| form(item, &format!("{at}[]"), into)),
        _ => {
            into.insert(at.to_owned());
        }
    }
}

fn forms(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    form(value, "", &mut found);
    found
}

fn workload(kind: &str, app: &str, spec: Value) -> Value {
    let script = "echo hello from $NODE; trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let env =
        json!({ "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }] });
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": app } }, "nodeTaintsPolicy": "Honor",
    }]);
    let mut pod = json!({ "terminationGracePeriodSeconds": 5, "containers": [with(sh("c", script), env)] });
    if kind == "Deployment" {
        pod["topologySpreadConstraints"] = spread;
        // Who is on a node that does not answer is given up soon.
        let soon = |key: &str| json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
        pod["tolerations"] = json!([soon("unreachable"), soon("not-ready")]);
    }
    let labels = json!({ "app": app });
    let own = json!({
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod },
    });
    json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": app }, "spec": with(own, spec) })
}

#[test]
fn two_nodes_of_ours_and_one_of_upstreams_are_one_cluster() -> Result<()> {
    let mut cluster = Cluster::start()?;
    cluster.apply(&workload("DaemonSet", "agent", json!({})))?;
    cluster.apply(&workload("Deployment", "web", json!({ "replicas": 6 })))?;
    let agents = cluster.ready("agent", 3)?;
    let web = cluster.ready("web", 6)?;
    ensure!(agents.keys().eq(["east", "upstream", "west"]), "{agents:?}");
    ensure!(web.len() == 3 && web.values().all(|pods| pods.len() == 2), "spread over all three: {web:?}");

    same_to_a_user(&cluster, &agents)?;
    endpoints_of_all(&cluster, &web)?;
    the_same_ports_on_each(&cluster)?;

    // A drain of one of ours moves its pods to the others, and it comes back.
    let timeout = format!("--timeout={}s", patient(Duration::from_secs(240)).as_secs());
    cluster.must(&["drain", "east", "--ignore-daemonsets", "--force", &timeout])?;
    let moved = cluster.ready("web", 6)?;
    ensure!(moved.keys().eq(["upstream", "west"]), "{moved:?}");
    for node in ["upstream", "west"] {
        let now: Vec<Value> = moved.get(node).into_iter().flatten().map(face).collect();
        let before = web.get(node).into_iter().flatten().map(face);
        ensure!(before.into_iter().all(|one| now.contains(&one)), "{node}: {now:?}");
    }
    let agents_now = cluster.ready("agent", 3)?;
    for (node, pods) in &agents {
        let same = pods.iter().map(face).eq(agents_now.get(node).into_iter().flatten().map(face));
        ensure!(same, "the DaemonSet's pod on {node} is another: {agents_now:?}");
    }
    cluster.must(&["uncordon", "east"])?;

    one_killed(&mut cluster, &agents)?;

    // Everything goes, on all three.
    cluster.must(&["delete", "deployment/web", "daemonset/agent", "--wait=true", &timeout])?;
    cluster.until("no pods to be left", || {
        let left = cluster.get(&["pods"])?;
        if left["items"].as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(left.to_string()) }
    })?;
    for (name, containerd) in &cluster.runtimes {
        cluster.until(&format!("nothing to run on {name}"), || {
            let running = containerd.crictl(&["ps", "-q"]).map_err(|error| format!("{error:#}"))?;
            if running.trim().is_empty() { Ok(()) } else { Err(running) }
        })?;
    }
    nothing_is_left(cluster)
}

/// What each of them takes of its machine's ports it has to itself: through a `hostPort`, and in the node's own network.
fn the_same_ports_on_each(cluster: &Cluster) -> Result<()> {
    let script = |port: u16| format!("trap 'exit 0' TERM; nc -ll -p {port} -e echo hello from $NODE & wait");
    let agent = |app: &str, port: u16, more: Value, pod: Value| {
        let mut object = workload("DaemonSet", app, json!({}));
        let spec = &mut object["spec"]["template"]["spec"];
        let env = spec["containers"][0]["env"].clone();
        let container = with(sh("c", &script(port)), with(json!({ "env": env }), more));
        *spec = with(with(spec.clone(), json!({ "containers": [container] })), pod);
        object
    };
    let ports = json!({ "ports": [{ "containerPort": 8080, "hostPort": 7080 }] });
    cluster.apply(&agent("by-host-port", 8080, ports, json!({})))?;
    cluster.apply(&agent("on-the-host", 7081, json!({}), json!({ "hostNetwork": true })))?;
    for (app, port) in [("by-host-port", 7080), ("on-the-host", 7081)] {
        let pods = cluster.ready(app, NAMES.len())?;
        ensure!(pods.keys().eq(cluster.runtimes.keys()), "{app}: {pods:?}");
        for (node, runtime) in &cluster.runtimes {
            let address = SocketAddr::from((network(runtime)?.address(), port));
            cluster.until(&format!("{app} of {node} on {address}"), || {
                let read = || -> std::io::Result<String> {
                    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    let mut text = String::new();
                    stream.read_to_string(&mut text)?;
                    Ok(text)
                };
                let said = read().map_err(|error| error.to_string())?;
                if said == format!("hello from {node}\n") { Ok(()) } else { Err(said) }
            })?;
            // None of it is this machine's.
            let here = SocketAddr::from((network(runtime)?.host(), port));
            ensure!(TcpStream::connect_timeout(&here, PATIENCE).is_err(), "{here} answers");
        }
        for pods in pods.values() {
            let restarts = &pods[0]["status"]["containerStatuses"][0]["restartCount"];
            ensure!(*restarts == 0, "{app}: {pods:?}");
        }
        cluster.must(&["delete", "daemonset", app, "--wait=true"])?;
        cluster.ready(app, 0)?;
    }
    Ok(())
}

/// Namespaces, links and mounts go with the nodes.
fn nothing_is_left(cluster: Cluster) -> Result<()> {
    let runtimes = cluster.runtimes.values();
    let owned = runtimes.map(|it| Ok((it.instance().clone(), network(it)?.clone())));
    let owned: Vec<_> = owned.collect::<Result<_>>()?;
    for (instance, network) in &owned {
        ensure!(!network.holders().is_empty(), "nobody is in the network of {}", instance.dir().display());
        ensure!(instance.leftovers().contains(&format!("link {}", instance.wire())), "no wire");
    }
    drop(cluster);
    for (instance, network) in owned {
        wait_until(PATIENCE, "everything to be gone", || {
            let left: Vec<String> = instance.leftovers().into_iter().chain(network.holders()).collect();
            if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
        })?;
    }
    Ok(())
}

/// kubectl's commands work on each node, and what it shows of each has one form.
fn same_to_a_user(cluster: &Cluster, agents: &BTreeMap<String, Vec<Value>>) -> Result<()> {
    for (node, pods) in agents {
        let pod = pods.first().with_context(|| format!("no pod on {node}"))?;
        let hello = format!("hello from {node}\n");
        cluster.until(&format!("the log of the pod on {node}"), || {
            let log = cluster.kubectl(&["logs", name(pod)])?;
            if log == hello { Ok(()) } else { Err(log) }
        })?;
        let said = cluster.must(&["exec", name(pod), "--", "sh", "-c", "echo in $NODE; hostname"])?;
        ensure!(said == format!("in {node}\n{}\n", name(pod)), "{said}");
        let described = cluster.must(&["describe", "pod", name(pod)])?;
        for word in ["Scheduled", "Created", "Started", "Successfully assigned"] {
            ensure!(described.contains(word), "{node}: no {word} in {described}");
        }
        // Through the API server's proxy.
        let path = format!("/api/v1/nodes/{node}/proxy/pods");
        let listed = cluster.must(&["get", "--raw", &path])?;
        ensure!(listed.contains(name(pod)), "{node}: {listed}");
        if node != "upstream" {
            for path in READ_THROUGH_THE_PROXY {
                let at = format!("/api/v1/nodes/{node}/proxy{path}");
                cluster.until(&format!("an answer to {at}"), || {
                    let said = cluster.kubectl(&["get", "--raw", &at])?;
                    if said.is_empty() { Err("nothing".to_owned()) } else { Ok(()) }
                })?;
            }
        }
        let own = pod["status"]["hostIP"].as_str().unwrap_or_default();
        let runtime = cluster.runtimes.get(node.as_str()).context("no runtime")?;
        ensure!(network(runtime)?.address().to_string() == own, "{node}: {own}");
    }
    let table = cluster.must(&["get", "nodes", "--no-headers"])?;
    ensure!(table.lines().count() == 3 && table.lines().all(|line| line.contains(" Ready ")), "{table}");

    // A pod of ours has the fields that upstream's has, and no others.
    let status = |node: &str| agents.get(node).and_then(|pods| pods.first()).map(|pod| pod["status"].clone());
    let theirs = status("upstream").unwrap_or_default();
    for node in ["east", "west"] {
        let ours = status(node).unwrap_or_default();
        ensure!(forms(&ours) == forms(&theirs), "{node}: {ours}\nupstream: {theirs}");
    }
    // And so has a Node; what depends on images and mounts at the moment is left out.
    let (mut nodes, mut values) = (BTreeMap::new(), BTreeMap::new());
    for node in NAMES {
        let mut object = cluster.get(&["node", node]).map_err(anyhow::Error::msg)?;
        let status = object["status"].as_object_mut().context("no status")?;
        status.remove("images");
        // mainstay has one more, which says whether its files are in order.
        if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|it| it["type"] != "StateIntact");
        }
        values.insert(node, told_of_the_machine(&object["status"]));
        let mut found = forms(&object["status"]);
        found.extend(forms(&object["metadata"]["labels"]));
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        found.extend(conditions.map(|it| format!("condition {}", it["type"])));
        nodes.insert(node, found);
    }
    for node in ["east", "west"] {
        let (ours, theirs) = (&nodes[node], &nodes["upstream"]);
        let only = |these: &BTreeSet<String>, those: &BTreeSet<String>| -> Vec<String> {
            these.difference(those).cloned().collect()
        };
        ensure!(
            ours == theirs,
            "{node} alone: {:?}; upstream alone: {:?}",
            only(ours, theirs),
            only(theirs, ours)
        );
        let (ours, theirs) = (&values[node], &values["upstream"]);
        ensure!(ours == theirs, "{node}: {ours:#}\nupstream: {theirs:#}");
    }
    Ok(())
}

/// What a Node says of the machine, which is the same one for all three: everything but who says it.
fn told_of_the_machine(status: &Value) -> Value {
    let mut info = status["nodeInfo"].clone();
    if let Some(info) = info.as_object_mut() {
        info.remove("kubeletVersion");
        info.remove("kubeProxyVersion");
    }
    // Amounts, however they are written.
    let amounts = |what: &str| -> BTreeMap<String, String> {
        let all = status[what].as_object().into_iter().flatten();
        all.map(|(name, amount)| {
            let text = amount.as_str().unwrap_or_default();
            let bytes = text.strip_suffix("Ki").and_then(|number| number.parse::<u64>().ok());
            (name.clone(), bytes.map_or_else(|| text.to_owned(), |number| (number * 1024).to_string()))
        })
        .collect()
    };
    json!({
        "nodeInfo": info, "capacity": amounts("capacity"), "allocatable": amounts("allocatable"),
        "daemonEndpoints": status["daemonEndpoints"],
    })
}

/// A Service finds the pods of all nodes.
fn endpoints_of_all(cluster: &Cluster, web: &BTreeMap<String, Vec<Value>>) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    let wanted: BTreeSet<(String, String)> = web
        .iter()
        .flat_map(|(node, pods)| pods.iter().map(move |pod| (node, pod)))
        .map(|(node, pod)| (node.clone(), pod["status"]["podIP"].as_str().unwrap_or_default().to_owned()))
        .collect();
    cluster.until("the endpoints of all nodes", || {
        let list = cluster.get(&["endpointslices", "-l", "kubernetes.io/service-name=web"])?;
        let slices = list["items"].as_array().into_iter().flatten();
        let found: BTreeSet<(String, String)> = slices
            .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .map(|endpoint| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (text(&endpoint["nodeName"]), text(&endpoint["addresses"][0]))
            })
            .collect();
        if found == wanted { Ok(()) } else { Err(list.to_string()) }
    })
}

/// mainstay of one node is killed and away until its node is given up; then it is back. Neither its own pods nor those of
/// others are touched.
fn one_killed(cluster: &mut Cluster, agents: &BTreeMap<String, Vec<Value>>) -> Result<()> {
    let faces = |cluster: &Cluster| -> Result<Vec<(String, Value)>> {
        let list = cluster.get(&["pods"]).map_err(anyhow::Error::msg)?;
        let mut all: Vec<_> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| (pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned(), face(pod)))
            .collect();
        all.sort_by_key(|(node, face)| (node.clone(), face.to_string()));
        Ok(all)
    };
    let before = faces(cluster)?;
    cluster.node("west")?.kill9();
    cluster.until("west to be given up", || {
        let node = cluster.get(&["node", "west"])?;
        if condition(&node, "Ready") == "Unknown" {
            Ok(())
        } else {
            Err(node["status"]["conditions"].to_string())
        }
    })?;
    // Its container goes on, and the others take pods and answer.
    let west = agents.get("west").and_then(|pods| pods.first()).context("no pod on west")?;
    let id = west["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    let running = cluster.runtimes["west"].crictl(&["ps", "-q", "--no-trunc"])?;
    ensure!(running.contains(id.trim_start_matches("containerd://")), "{id}: {running}");
    for node in ["east", "upstream"] {
        let lone = format!("meanwhile-{node}");
        let spec = json!({
            "nodeSelector": { "kubernetes.io/hostname": node }, "terminationGracePeriodSeconds": 1, "containers": [idle("c")],
        });
        cluster.apply(&pod(&lone, spec))?;
        cluster.until(&format!("a new pod on {node}"), || {
            let pod = cluster.get(&["pod", &lone])?;
            if condition(&pod, "Ready") == "True" { Ok(()) } else { Err(pod["status"].to_string()) }
        })?;
        let said = cluster.must(&["exec", &lone, "--", "echo", "here"])?;
        ensure!(said == "here\n", "{said}");
        cluster.must(&["delete", "pod", &lone, "--wait=true"])?;
    }
    let others = |all: &[(String, Value)]| -> Vec<(String, Value)> {
        all.iter().filter(|(node, _)| node != "west").cloned().collect()
    };
    ensure!(others(&faces(cluster)?) == others(&before), "pods of others were touched");
    cluster.node("west")?.start_again()?;
    cluster.until("west to be Ready again", || {
        let node = cluster.get(&["node", "west"])?;
        let tainted = node["spec"]["taints"].as_array().is_some_and(|taints| !taints.is_empty());
        if condition(&node, "Ready") == "True" && !tainted { Ok(()) } else { Err(node.to_string()) }
    })?;
    // The node controller has set its pods to not ready meanwhile, which is its right; the containers are the same.
    cluster.until("the pods of west to be Ready", || {
        let list = cluster.get(&["pods", "--field-selector=spec.nodeName=west"])?;
        let mut pods = list["items"].as_array().into_iter().flatten();
        if pods.all(|pod| condition(pod, "Ready") == "True") { Ok(()) } else { Err(list.to_string()) }
    })?;
    let containers = |all: Vec<(String, Value)>| -> BTreeSet<String> {
        all.into_iter().map(|(node, face)| format!("{node} {} {} {}", face[0], face[1], face[2])).collect()
    };
    let (after, before) = (containers(faces(cluster)?), containers(before));
    if after != before {
        bail!("other containers: {:?}", after.symmetric_difference(&before).collect::<Vec<_>>());
    }
    Ok(())
}
