//! A node of a real cluster: real etcd, kube-apiserver and, where they are needed, the controllers and kubectl.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{fs, net::IpAddr};

use mainstay_e2e::{
    config_map, idle, pod, secret,
    seen::{PATIENCE, running},
    sh, with, write_program,
};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, Http, Image, Node, wait_until};
use serde_json::{Value, json};

/// An object as the API server has it.
fn get(cluster: &ControlPlane, path: &str) -> Result<Value, String> {
    let answer = cluster.send("GET", path, None).map_err(|error| format!("{error:#}"))?;
    if answer.status != 200 {
        return Err(format!("{path}: {} {}", answer.status, answer.text()));
    }
    serde_json::from_slice(&answer.body).map_err(|error| error.to_string())
}

/// The object, once it is as wanted.
fn until(cluster: &ControlPlane, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_until(PATIENCE, what, || {
        let object = get(cluster, path)?;
        if is(&object) { Ok(object) } else { Err(object.to_string()) }
    })
    .unwrap()
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|it| it["type"] == kind).and_then(|it| it["status"].as_str()).unwrap_or_default()
}

#[test]
fn the_node_registers_and_gives_signs_of_life() {
    let containerd = Containerd::builder(Flavor::Debian16).dual_stack().start().unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let kubeconfig = cluster.node_kubeconfig("node").unwrap();
    let mut node = Node::builder()
        .containerd(&containerd)
        .config("nodeLeaseDurationSeconds: 4")
        .config("providerID: example://zone-a/machine-1")
        .config("registerWithTaints: [{key: fresh, value: \"yes\", effect: NoSchedule}]")
        .args([format!("--kubeconfig={}", kubeconfig.display())])
        .args(["--node-labels=example.com/rack=r1", "--node-ip=::1,127.0.0.2"])
        .start()
        .unwrap();
    let path = "/api/v1/nodes/node";
    let made = until(&cluster, path, "the node to be Ready", |node| condition(node, "Ready") == "True");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/hostname"], "node");
    assert_eq!(made["metadata"]["labels"]["example.com/rack"], "r1");
    assert_eq!(made["spec"]["providerID"], "example://zone-a/machine-1");
    // The API server adds that it is not ready yet.
    assert_eq!(made["spec"]["taints"][0], json!({ "key": "fresh", "value": "yes", "effect": "NoSchedule" }));
    let [six, four] = ["::1", "127.0.0.2"].map(|ip| json!({ "type": "InternalIP", "address": ip }));
    assert_eq!(made["status"]["addresses"], json!([six, four, { "type": "Hostname", "address": "node" }]));
    assert_eq!(made["status"]["nodeInfo"]["operatingSystem"], "linux");
    assert!(made["status"]["capacity"]["cpu"].is_string(), "{made}");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    let first = until(&cluster, lease, "a lease", |lease| lease["spec"]["holderIdentity"] == "node");
    assert_eq!(first["spec"]["leaseDurationSeconds"], 4);
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
    until(&cluster, lease, "the lease to be renewed", |lease| {
        lease["spec"]["renewTime"] != first["spec"]["renewTime"]
    });

    // What others wrote into it stays over a restart, what it is is set right, and it is the same object.
    let change = json!({
        "metadata": {
            "labels": { "example.com/rack": "r2", "team": "blue", "kubernetes.io/arch": "wrong" },
            "annotations": { "team": "blue" },
        },
        "spec": { "taints": null },
    });
    let headers = [("Content-Type", "application/merge-patch+json")];
    let admin = cluster.admin().unwrap();
    let answer = admin.send("PATCH", path, &headers, change.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    node.kill9();
    node.start_again().unwrap();
    let again = until(&cluster, path, "its own labels to be right", |node| {
        node["metadata"]["labels"]["kubernetes.io/arch"] == made["metadata"]["labels"]["kubernetes.io/arch"]
    });
    assert_eq!(again["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(again["metadata"]["labels"]["team"], "blue");
    assert_eq!(
        again["metadata"]["labels"]["example.com/rack"], "r2",
        "labels are given once, as upstream does"
    );
    assert_eq!(again["metadata"]["annotations"]["team"], "blue");
    assert_eq!(again["spec"].get("taints"), None, "taints are given once");
    assert_eq!(again["status"]["addresses"], made["status"]["addresses"]);
    pods_have_the_nodes_kind_of_address_first(&cluster);
}

/// On a node with IPv6 first, in their statuses and variables, and for those who probe them; the runtime names IPv4 first.
fn pods_have_the_nodes_kind_of_address_first(cluster: &ControlPlane) {
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let over = json!({
        "env": [field("PODS", "status.podIPs"), field("HOSTS", "status.hostIPs")],
        "readinessProbe": { "httpGet": { "port": 8080 }, "periodSeconds": 1 },
    });
    let script = "echo -n $PODS $HOSTS > /tmp/index.html; exec httpd -f -p 8080 -h /tmp";
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(sh("c", script), over)] });
    cluster.create(PODS, &bound("dual", spec)).unwrap();
    let path = format!("{PODS}/dual");
    let dual = until(cluster, &path, "the pod to be Ready", |pod| condition(pod, "Ready") == "True");
    let status = &dual["status"];
    let ips: Vec<IpAddr> = ["0", "1"]
        .map(|at| status.pointer(&format!("/podIPs/{at}/ip")).unwrap().as_str().unwrap().parse().unwrap())
        .into();
    assert!(ips[0].is_ipv6() && ips[1].is_ipv4(), "{status}");
    assert_eq!(status["podIP"], ips[0].to_string());
    assert_eq!(status["hostIPs"], json!([{ "ip": "::1" }, { "ip": "127.0.0.2" }]));
    assert_eq!(status["hostIP"], "::1");
    for ip in &ips {
        let answer = Http::Tcp((*ip, 8080).into()).get("/").unwrap();
        assert_eq!(answer.text(), format!("{},{} ::1,127.0.0.2", ips[0], ips[1]), "by {ip}");
    }
}

#[test]
fn a_name_of_another_identity_is_refused_with_a_clear_word() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    // Somebody else has that name already.
    let theirs = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "node", "labels": { "team": "theirs" } }, "spec": { "providerID": "theirs://1" },
    });
    let before = cluster.create("/api/v1/nodes", &theirs).unwrap();
    let kubeconfig = cluster.node_kubeconfig("somebody").unwrap();
    let node = Node::builder()
        .containerd(&containerd)
        .args([format!("--kubeconfig={}", kubeconfig.display())])
        .start()
        .unwrap();
    wait_until(PATIENCE, "a word in the log", || {
        let log = node.log();
        let told = log.contains("cannot register the node node")
            && log.contains("must be system:node:node")
            && log.contains("--hostname-override");
        if told { Ok(()) } else { Err(log) }
    })
    .unwrap();
    // Its own pods run all the same.
    let own = pod("own", json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] }));
    fs::write(node.manifests().join("own.json"), own.to_string()).unwrap();
    running(&node, "own").unwrap();
    let after = get(&cluster, "/api/v1/nodes/node").unwrap();
    assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "it was touched");
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A node of a cluster, as administrators would set it up.
fn member(containerd: &Containerd, cluster: &ControlPlane) -> Node {
    member_with(containerd, cluster, "{}")
}

fn member_with(containerd: &Containerd, cluster: &ControlPlane, config: &str) -> Node {
    let clients = containerd.dir().join("clients.crt");
    fs::write(&clients, &cluster.authority().pem).unwrap();
    let kubeconfig = cluster.node_kubeconfig("node").unwrap();
    Node::builder()
        .containerd(containerd)
        .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", clients.display()))
        .config(config)
        .args([format!("--kubeconfig={}", kubeconfig.display()), "--node-ip=127.0.0.1".to_owned()])
        .start()
        .unwrap()
}

/// A pod that is bound to the node without a scheduler.
fn bound(name: &str, spec: Value) -> Value {
    pod(name, with(spec, json!({ "nodeName": "node" })))
}

fn delete(cluster: &ControlPlane, path: &str, query: &str) {
    let answer = cluster.send("DELETE", &format!("{path}?{query}"), None).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn gone(cluster: &ControlPlane, path: &str) {
    // Those who listen to an API server that was away come back after up to a minute.
    wait_until(3 * PATIENCE, "the end of an object", || {
        let answer = cluster.send("GET", path, None).map_err(|error| format!("{error:#}"))?;
        if answer.status == 404 { Ok(()) } else { Err(answer.text()) }
    })
    .unwrap();
}

fn container_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn pods_of_the_api_server_run_and_end_by_its_word() {
    let other = Image::named("docker.io/local/busybox:2").env("VERSION", "2");
    let containerd = Containerd::builder(Flavor::Debian16).image(other).start().unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let node = member(&containerd, &cluster);
    let path = |name: &str| format!("{PODS}/{name}");
    let running = |name: &str| {
        until(&cluster, &path(name), "the pod to be Ready", |pod| condition(pod, "Ready") == "True")
    };
    until(&cluster, "/api/v1/nodes/node", "the node", |_| true);

    // It runs, and the status that the API server has is the one that the node serves.
    cluster.create(PODS, &bound("a", json!({ "containers": [idle("c")] }))).unwrap();
    let seen = running("a");
    assert_eq!(seen["status"]["phase"], "Running");
    assert_eq!(seen["status"]["observedGeneration"], seen["metadata"]["generation"]);
    for condition in seen["status"]["conditions"].as_array().unwrap() {
        assert_eq!(condition["observedGeneration"], seen["metadata"]["generation"], "{condition}");
    }
    assert_eq!(seen["status"]["hostIP"], "127.0.0.1");
    assert!(container_id(&seen).starts_with("containerd://"), "{seen}");
    let own: Value = serde_json::from_str(&node.get("/pods").unwrap()).unwrap();
    let own = &own["items"][0];
    assert_eq!(own["metadata"]["uid"], seen["metadata"]["uid"]);
    assert_eq!(own["metadata"]["annotations"]["kubernetes.io/config.source"], "api");
    assert_eq!(container_id(own), container_id(&seen));
    assert_eq!(own["status"]["podIP"], seen["status"]["podIP"]);

    // Another image of the same container: what the status says is said of the pod as it is now.
    assert_eq!(seen["metadata"]["generation"], 1);
    let change = json!({ "spec": { "containers": [{ "name": "c", "image": "docker.io/local/busybox:2" }] } });
    let headers = [("Content-Type", "application/strategic-merge-patch+json")];
    let admin = cluster.admin().unwrap();
    let answer = admin.send("PATCH", &path("a"), &headers, change.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let changed = until(&cluster, &path("a"), "the other image to run", |pod| {
        let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        container_id(pod) != container_id(&seen)
            && condition(pod, "Ready") == "True"
            && pod["status"]["observedGeneration"] == 2
            && conditions.iter().all(|it| it["observedGeneration"] == 2)
    });
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["status"]["containerStatuses"][0]["image"], "docker.io/local/busybox:2");
    let seen = changed;

    // A readiness gate is somebody else's word.
    let spec =
        json!({ "containers": [idle("c")], "readinessGates": [{ "conditionType": "example.com/fed" }] });
    cluster.create(PODS, &bound("gated", spec)).unwrap();
    let waiting =
        until(&cluster, &path("gated"), "ContainersReady", |pod| condition(pod, "ContainersReady") == "True");
    assert_eq!(condition(&waiting, "Ready"), "False");
    let fed = json!({ "status": { "conditions": [{ "type": "example.com/fed", "status": "True" }] } });
    let headers = [("Content-Type", "application/strategic-merge-patch+json")];
    let admin = cluster.admin().unwrap();
    let answer = admin.send("PATCH", &path("gated/status"), &headers, fed.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let gated = running("gated");
    assert_eq!(condition(&gated, "example.com/fed"), "True", "what others wrote stays");

    // A pod that ends is over, and says how.
    let spec = json!({ "restartPolicy": "Never", "containers": [sh("c", "exit 3")] });
    cluster.create(PODS, &bound("over", spec)).unwrap();
    let over = until(&cluster, &path("over"), "its end", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(over["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);

    // A pod for another system is told so; in a file it would be refused.
    let spec = json!({ "os": { "name": "windows" }, "containers": [idle("c")] });
    cluster.create(PODS, &bound("foreign", spec)).unwrap();
    let foreign =
        until(&cluster, &path("foreign"), "its rejection", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(foreign["status"]["reason"], "PodOSNotSupported", "{foreign}");
    delete(&cluster, &path("foreign"), "gracePeriodSeconds=0");

    // Events are there for those who ask the API server.
    wait_until(PATIENCE, "events", || {
        let events = get(&cluster, "/api/v1/namespaces/default/events")?;
        let reasons: Vec<_> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|event| event["involvedObject"]["uid"] == seen["metadata"]["uid"])
            .map(|event| event["reason"].as_str().unwrap_or_default().to_owned())
            .collect();
        let all = ["Pulled", "Created", "Started"].iter().all(|reason| reasons.iter().any(|it| it == reason));
        if all { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .unwrap();

    // Deletion: its grace is given, its end is told, then it is gone, here and there.
    let end = "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 7";
    let slow = sh("c", &format!("trap '{end}' TERM; echo up; while :; do sleep 0.1; done"));
    // A finalizer keeps the object, so that its end can be read.
    let slow = bound("slow", json!({ "containers": [slow] }));
    let slow = with(slow, json!({ "metadata": { "name": "slow", "finalizers": ["example.com/reader"] } }));
    cluster.create(PODS, &slow).unwrap();
    let slow = container_id(&running("slow"));
    wait_until(PATIENCE, "it to listen", || {
        let log = node.logs("default", "slow", "c", "").map_err(|error| format!("{error:#}"))?;
        if log.contains("up") { Ok(()) } else { Err(log) }
    })
    .unwrap();
    // Whoever waited for the whole grace would not be told in time.
    delete(&cluster, &path("slow"), "gracePeriodSeconds=600");
    let ending = get(&cluster, &path("slow")).unwrap();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 600);
    containerd.touch(slow.trim_start_matches("containerd://"), "/tmp/end").unwrap();
    let ended = until(&cluster, &path("slow"), "its end to be told, and the pod to be let go of", |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"] == 0
    });
    let state = &ended["status"]["containerStatuses"][0]["state"];
    assert_eq!(state["terminated"]["exitCode"], 7, "{ended}");
    let headers = [("Content-Type", "application/merge-patch+json")];
    let free = json!({ "metadata": { "finalizers": null } });
    let answer = admin.send("PATCH", &path("slow"), &headers, free.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    gone(&cluster, &path("slow"));
    delete(&cluster, &path("over"), "");
    // By force: the API server forgets it at once, the node ends it.
    delete(&cluster, &path("a"), "gracePeriodSeconds=0");
    delete(&cluster, &path("gated"), "");
    gone(&cluster, &path("gated"));
    wait_until(PATIENCE, "nothing to be left on the node", || {
        let own = node.get("/pods").map_err(|error| format!("{error:#}"))?;
        if own.contains(r#""items":null"#) { Ok(()) } else { Err(own) }
    })
    .unwrap();
}

#[test]
fn static_pods_are_mirrored() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let node = member(&containerd, &cluster);
    let write = |version: &str| {
        let container = with(idle("c"), json!({ "env": [{ "name": "VERSION", "value": version }] }));
        let manifest = pod("web", json!({ "terminationGracePeriodSeconds": 1, "containers": [container] }));
        node.write_manifest("web.json", &manifest.to_string()).unwrap();
    };
    write("1");
    let path = format!("{PODS}/web-node");
    let ready = |pod: &Value| condition(pod, "Ready") == "True";
    let first = until(&cluster, &path, "the mirror pod to be Ready", ready);
    let annotations = &first["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], annotations["kubernetes.io/config.hash"]);
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(first["metadata"]["ownerReferences"][0]["kind"], "Node");
    let container = container_id(&first);

    // Deleted by somebody: it comes again, and the pod has not noticed.
    delete(&cluster, &path, "");
    let second = until(&cluster, &path, "the mirror pod again", |pod| {
        pod["metadata"]["uid"] != first["metadata"]["uid"] && ready(pod)
    });
    assert_eq!(container_id(&second), container);
    // An edit: another pod, another likeness.
    write("2");
    let third = until(&cluster, &path, "the mirror of the edited pod", |pod| {
        pod["metadata"]["annotations"]["kubernetes.io/config.hash"]
            != annotations["kubernetes.io/config.hash"]
            && ready(pod)
    });
    assert_ne!(container_id(&third), container);
    node.remove_manifest("web.json").unwrap();
    gone(&cluster, &path);
}

#[test]
fn nothing_is_lost_while_the_api_server_is_away() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let mut node = member(&containerd, &cluster);
    until(&cluster, "/api/v1/nodes/node", "the node", |_| true);
    let path = |name: &str| format!("{PODS}/{name}");
    for name in ["stays", "goes"] {
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] });
        cluster.create(PODS, &bound(name, spec)).unwrap();
    }
    let ready = |pod: &Value| condition(pod, "Ready") == "True";
    let before = until(&cluster, &path("stays"), "a pod", ready);
    let other = until(&cluster, &path("goes"), "another", ready);
    mainstay_e2e::seen::persisted(&node).unwrap();
    let kept = [&before, &other].map(|pod| format!("pods/{}.json", pod["metadata"]["uid"].as_str().unwrap()));
    wait_until(PATIENCE, "the API server's word on disk", || {
        let dir = node.root().join("mainstay/api");
        let mut files = kept.iter().map(String::as_str).chain(["node/node.json"]);
        files.find(|file| !dir.join(file).exists()).map_or(Ok(()), |file| Err(format!("no {file}")))
    })
    .unwrap();
    cluster.stop_server();
    node.kill9();
    node.start_again().unwrap();
    // Complete from disk, with nobody to ask.
    let own = node
        .wait_for(PATIENCE, "both pods", |pods| {
            if pods.items.len() == 2 { Ok(pods.items.clone()) } else { Err("not yet".into()) }
        })
        .unwrap();
    for pod in &own {
        let status = serde_json::to_value(pod).unwrap();
        assert!(ready(&status), "no condition flips: {status}");
    }
    let known: Value = serde_json::from_str(&node.get("/node").unwrap()).unwrap();
    assert_eq!(condition(&known, "Ready"), "True");
    assert_eq!(known["metadata"]["uid"].as_str().map(str::is_empty), Some(false), "{known}");

    // It comes back and wants one of them gone. Its word wins, and the other has not noticed anything.
    cluster.start_server().unwrap();
    delete(&cluster, &path("goes"), "");
    gone(&cluster, &path("goes"));
    let after = get(&cluster, &path("stays")).unwrap();
    assert_eq!(container_id(&after), container_id(&before));
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    let transition = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|it| it["type"] == "Ready").unwrap()["lastTransitionTime"].clone()
    };
    assert_eq!(transition(&after), transition(&before), "Ready has not flipped");
}

#[test]
fn objects_tokens_and_services_reach_the_pods() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let node = member_with(&containerd, &cluster, "syncFrequency: 2s");
    until(&cluster, "/api/v1/nodes/node", "the node", |_| true);
    let namespace = "/api/v1/namespaces/default";
    cluster
        .create(&format!("{namespace}/configmaps"), &config_map("settings", json!({ "color": "red" })))
        .unwrap();
    cluster.create(&format!("{namespace}/secrets"), &secret("keys", json!({ "door": "1234" }))).unwrap();
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" } });
    cluster.create(&format!("{namespace}/serviceaccounts"), &account).unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "my-db" },
        "spec": { "selector": { "app": "db" }, "ports": [{ "port": 5432 }] },
    });
    let service = cluster.create(&format!("{namespace}/services"), &service).unwrap();
    // A container is told of the services that the node knows when it starts, and the node learns of them in its own time.
    let script = "[ -n \"$MY_DB_SERVICE_HOST\" ] || exit 1; \
                  echo env $COLOR $DOOR $MY_DB_SERVICE_HOST:$MY_DB_SERVICE_PORT; echo token $(cat /o/token); \
                  while :; do echo file $(cat /o/color) $(cat /o/door); sleep 0.5; done";
    let container = with(
        sh("c", script),
        json!({
            "env": [
                { "name": "COLOR", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "color" } } },
                { "name": "DOOR", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "door" } } },
            ],
            "volumeMounts": [{ "name": "o", "mountPath": "/o" }],
        }),
    );
    let spec = json!({
        "serviceAccountName": "robot",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{ "name": "o", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } },
            { "configMap": { "name": "settings" } },
            { "secret": { "name": "keys" } },
        ] } }],
    });
    cluster.create(PODS, &bound("p", spec)).unwrap();
    until(&cluster, &format!("{PODS}/p"), "the pod to be Ready", |pod| condition(pod, "Ready") == "True");
    let log_has = |what: &str| {
        wait_until(PATIENCE, what, || {
            let log = node.logs("default", "p", "c", "").map_err(|error| format!("{error:#}"))?;
            if log.contains(what) { Ok(log) } else { Err(log) }
        })
        .unwrap()
    };
    let ip = service["spec"]["clusterIP"].as_str().unwrap();
    log_has(&format!("env red 1234 {ip}:5432\n"));
    let log = log_has("file red 1234\n");
    // The API server takes the token, and knows whose it is.
    let token = log.lines().find_map(|line| line.strip_prefix("token ")).unwrap();
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } });
    let review = cluster.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).unwrap();
    assert_eq!(review["status"]["user"]["username"], "system:serviceaccount:default:robot", "{review}");
    assert_eq!(review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));

    // Changes are seen in the files.
    let headers = [("Content-Type", "application/merge-patch+json")];
    let admin = cluster.admin().unwrap();
    for (object, change, seen) in [
        ("configmaps/settings", json!({ "data": { "color": "blue" } }), "file blue 1234\n"),
        ("secrets/keys", json!({ "stringData": { "door": "5678" } }), "file blue 5678\n"),
    ] {
        let path = format!("{namespace}/{object}");
        let answer = admin.send("PATCH", &path, &headers, change.to_string().as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        log_has(seen);
    }

    tokens_are_their_users(&cluster, &node);

    // What is missing is named, and comes when it comes.
    let container = with(
        idle("c"),
        json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "later", "key": "a" } } }] }),
    );
    cluster.create(PODS, &bound("waits", json!({ "containers": [container] }))).unwrap();
    until(&cluster, &format!("{PODS}/waits"), "a reason", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
    });
    cluster.create(&format!("{namespace}/configmaps"), &config_map("later", json!({ "a": "b" }))).unwrap();
    until(&cluster, &format!("{PODS}/waits"), "the pod to be Ready", |pod| condition(pod, "Ready") == "True");
}

/// Tokens for somebody else than the API server, for as long as asked; files that only those read who should.
fn tokens_are_their_users(cluster: &ControlPlane, node: &Node) {
    let script = "[ -n \"$KUBERNETES_SERVICE_HOST\" ] || exit 1; \
                  echo services [$MY_DB_SERVICE_HOST] [$KUBERNETES_SERVICE_HOST]; \
                  echo stat $(stat -L -c '%a %u %g' /o/token); echo token $(cat /o/token); exec sleep 100000";
    let rows = [
        ("of-nobody", json!({}), "444 0 0"),
        ("of-a-user", json!({ "runAsUser": 1000 }), "600 1000 0"),
        ("of-a-group", json!({ "fsGroup": 2000 }), "640 0 2000"),
        ("of-both", json!({ "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000 }), "640 1000 2000"),
    ];
    for (name, security, _) in &rows {
        let container =
            with(sh("c", script), json!({ "volumeMounts": [{ "name": "o", "mountPath": "/o" }] }));
        let token = json!({ "path": "token", "audience": "vault", "expirationSeconds": 700 });
        let spec = json!({
            "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0, "enableServiceLinks": false,
            "securityContext": security, "containers": [container],
            "volumes": [{ "name": "o", "projected": { "defaultMode": 0o444, "sources": [{ "serviceAccountToken": token }] } }],
        });
        cluster.create(PODS, &bound(name, spec)).unwrap();
    }
    for (name, _, stat) in rows {
        let log = wait_until(PATIENCE, "a token in the log", || {
            let log = node.logs("default", name, "c", "").map_err(|error| format!("{error:#}"))?;
            if log.lines().any(|line| line.starts_with("token ")) { Ok(log) } else { Err(log) }
        })
        .unwrap();
        let said = |what: &str| log.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        assert_eq!(said("stat "), stat, "{name}");
        let services = said("services ");
        assert!(services.starts_with("[] [") && services != "[] []", "{name}: {services}");
        let claims = said("token ").split('.').nth(1).unwrap();
        let claims =
            base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["aud"], json!(["vault"]), "{name}");
        assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 700, "{name}");
        delete(cluster, &format!("{PODS}/{name}"), "");
    }
}

/// A node that is known by a token: from a file, and after its kubeconfig was changed under it, from a program.
#[test]
fn a_token_of_a_file_or_of_a_program_is_as_good_as_a_certificate() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let dir = containerd.dir().join("by-token");
    fs::create_dir_all(&dir).unwrap();
    let (kubeconfig, token, runs) = (dir.join("kubeconfig"), dir.join("token"), dir.join("runs"));
    let write = |user: Value| {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": {
                "server": cluster.url(), "certificate-authority": cluster.dir().join("ca.crt"),
            } }],
            "users": [{ "name": "u", "user": user }],
        });
        let new = dir.join("kubeconfig.new");
        fs::write(&new, config.to_string()).unwrap();
        fs::rename(new, &kubeconfig).unwrap();
    };
    fs::write(&token, cluster.node_token()).unwrap();
    write(json!({ "tokenFile": "token" }));
    let node = Node::builder()
        .containerd(&containerd)
        .args([format!("--kubeconfig={}", kubeconfig.display()), "--node-ip=127.0.0.1".to_owned()])
        .start()
        .unwrap();
    let run = |name: &str| {
        cluster
            .create("/api/v1/namespaces/default/pods", &bound(name, json!({ "containers": [idle("c")] })))
            .unwrap();
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        until(&cluster, &path, "the pod to be Ready", |pod| condition(pod, "Ready") == "True");
    };
    run("by-file");

    let program = dir.join("program");
    let said = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": cluster.node_token() },
    });
    write_program(&program, &format!("#!/bin/sh\necho run >> {}\necho '{said}'\n", runs.display())).unwrap();
    write(json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never",
    } }));
    fs::remove_file(&token).unwrap();
    wait_until(PATIENCE, "the program to be asked", || {
        fs::read_to_string(&runs).map(drop).map_err(|error| error.to_string())
    })
    .unwrap();
    run("by-program");
    drop(node);
}
