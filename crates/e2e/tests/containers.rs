//! What containers are given, and what is said when they cannot be started with it.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::PathBuf;

use mainstay_e2e::{PodSeen, World, idle, pod, sh, with};
use mainstay_testkit::{CgroupDriver, Flavor};
use serde_json::{Value, json};

#[test]
fn containers_get_their_environment_hosts_file_and_names() {
    let world = World::start(Flavor::Debian16).unwrap();
    let objects = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {COLOUR: blue, SIZE: \"9\"}\n---\n\
                   apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {password: hunter2}\n";
    world.node.write_manifest("objects.yaml", objects).unwrap();
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let env = json!([
        { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } },
        { "name": "NOTHING", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "none", "optional": true } } },
        { "name": "POD", "valueFrom": field("metadata.name") },
        { "name": "IP", "valueFrom": field("status.podIP") },
        { "name": "NODE", "valueFrom": field("spec.nodeName") },
        { "name": "LABEL", "valueFrom": field("metadata.labels['app']") },
        { "name": "MEMORY", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } },
        { "name": "GREETING", "value": "hello $(POD), $$(POD), $(UNKNOWN)" },
    ]);
    let script = "env; echo hostname=$(hostname); cat /etc/hosts; sleep 1000";
    let container = with(
        sh("c", script),
        json!({
            "env": env,
            "envFrom": [{ "configMapRef": { "name": "settings" } }, { "prefix": "PRE_", "configMapRef": { "name": "settings" } }],
            "resources": { "limits": { "memory": "32Mi" } },
        }),
    );
    let mut manifest = pod(
        "env",
        json!({
            "terminationGracePeriodSeconds": 1,
            "hostAliases": [{ "ip": "192.0.2.7", "hostnames": ["db.test", "db"] }],
            "containers": [container],
        }),
    );
    manifest["metadata"]["labels"] = json!({ "app": "greeter" });
    world.put_manifest("env", &manifest).unwrap();
    // On the host's network the node's own name and addresses show.
    let host = "echo hostname=$(hostname); ls /sys/class/net; head -c 200 /etc/hosts; sleep 1000";
    world
        .put(
            "host",
            json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [sh("c", host)] }),
        )
        .unwrap();

    let addressed = |pod: &PodSeen| {
        pod.phase() == "Running" && pod.is_true("Ready") && !pod.text("/status/podIP").is_empty()
    };
    let seen = world.wait("env", "Running and Ready, with an address", addressed).unwrap();
    let ip = seen.text("/status/podIP");
    let log = world.logged("env", "c", "db.test").unwrap();
    for line in [
        "COLOUR=blue",
        "SIZE=9",
        "PRE_COLOUR=blue",
        "PASSWORD=hunter2",
        "POD=env-node",
        &format!("IP={ip}"),
        "NODE=node",
        "LABEL=greeter",
        "MEMORY=33554432",
        "GREETING=hello env-node, $(POD), $(UNKNOWN)",
        "hostname=env-node",
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        &format!("{ip}\tenv-node"),
        "192.0.2.7\tdb.test\tdb",
    ] {
        assert!(log.lines().any(|have| have == line), "no line {line:?} in\n{log}");
    }
    assert!(!log.contains("NOTHING="), "an optional key that is missing is left out");

    let seen = world.wait("host", "Running and Ready, with an address", addressed).unwrap();
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let log = world.logged("host", "c", "hosts file").unwrap();
    assert!(log.contains(&format!("hostname={}", own.trim())), "{log}");
    assert!(log.contains("# Kubernetes-managed hosts file (host network).\n"), "{log}");
    assert_eq!(seen.text("/status/podIP"), seen.text("/status/hostIP"));
    let sandbox = world.sandboxes_of(seen.uid()).unwrap()[0]["id"].as_str().unwrap().to_owned();
    let config = world.crictl(&["inspectp", &sandbox]).unwrap()["info"]["config"].clone();
    assert_eq!(config["linux"]["security_context"]["namespace_options"]["network"], 2);
    assert!(config["hostname"].is_null(), "the host's own name stays");

    // A missing object is said so, and the container starts when it comes.
    world
        .put("later", json!({ "containers": [with(idle("c"), json!({ "envFrom": [{ "secretRef": { "name": "not-yet" } }] }))] }))
        .unwrap();
    let seen = world
        .wait("later", "CreateContainerConfigError", |pod| pod.waits("c") == "CreateContainerConfigError")
        .unwrap();
    assert_eq!(seen.waiting_message("c"), r#"secret "not-yet" not found"#);
    assert_eq!(seen.phase(), "Pending");
    world
        .node
        .write_manifest(
            "late.yaml",
            "apiVersion: v1\nkind: Secret\nmetadata: {name: not-yet}\nstringData: {a: b}\n",
        )
        .unwrap();
    world.running("later").unwrap();
}

/// What is asked for in the same words as by any other container.
#[test]
fn an_init_container_is_given_what_it_asks_for() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        // It ends when the test has looked at it.
        let script = "echo word=$WORD user=$(id -u) group=$(id -g); touch /data/made; while [ ! -e /data/go ]; do sleep 0.1; done";
        let mount = |path: &str, more: Value| with(json!({ "name": "v", "mountPath": path }), more);
        let init = with(
            sh("init", script),
            json!({
                "env": [{ "name": "WORD", "value": "given" }],
                "resources": { "limits": { "cpu": "100m", "memory": "24Mi" } },
                "securityContext": { "runAsUser": 1000, "runAsGroup": 3000 },
                "volumeMounts": [mount("/data", json!({ "subPath": "its/part" }))],
            }),
        );
        let main = with(idle("c"), json!({ "volumeMounts": [mount("/v", json!({}))] }));
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "initContainers": [init], "containers": [main],
            "securityContext": { "fsGroup": 4000 }, "volumes": [{ "name": "v", "emptyDir": {} }],
        });
        world.put("p", spec).unwrap();
        let seen = world.wait("p", "its init container", |pod| pod.runs("init")).unwrap();
        assert_eq!(world.logged("p", "init", "\n").unwrap(), "word=given user=1000 group=3000\n");
        let inner = CgroupDriver::of_this_run().container(seen.id("init"));
        let own = world.node.cgroup(&["kubepods", "burstable", &format!("pod{}", seen.uid())]);
        let inner: Vec<PathBuf> = own.iter().map(|pod| pod.join(&inner)).collect();
        assert_eq!(limit_of(&inner), 24 << 20);
        world.exec(&seen, "init", "touch /data/go").unwrap();
        let seen = world.running("p").unwrap();
        assert_eq!(
            world.exec(&seen, "c", "cd /v; stat -c '%n %u' its/part/*").unwrap(),
            "its/part/go 1000\nits/part/made 1000"
        );
    }
}

/// A RuntimeClass stands beside the pods of files, as their ConfigMaps do.
#[test]
fn a_runtime_class_of_a_file_names_the_handler() {
    for flavor in Flavor::ALL {
        let mut world = World::start(flavor).unwrap();
        world.put("classy", json!({ "runtimeClassName": "usual", "containers": [idle("c")] })).unwrap();
        let event =
            world.event("classy", "FailedCreatePodSandBox", "RuntimeClass \"usual\" not found").unwrap();
        assert!(event.message.contains("the directory of the manifests"), "{}", event.message);
        let class = |name: &str, handler: &str| {
            let metadata = json!({ "name": name });
            json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler })
        };
        let list = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClassList", "items": [class("usual", "runc")] });
        world.node.write_manifest("classes.json", &list.to_string()).unwrap();
        let seen = world.running("classy").unwrap();
        assert_eq!(world.sandboxes_of(seen.uid()).unwrap()[0]["runtimeHandler"], "runc");

        // The runtime says what it does not have, and a wrong class touches nothing else.
        world
            .node
            .write_manifest("other-classes.json", &class("strange", "no-such-handler").to_string())
            .unwrap();
        world.put("strange", json!({ "runtimeClassName": "strange", "containers": [idle("c")] })).unwrap();
        world.event("strange", "FailedCreatePodSandBox", "no-such-handler").unwrap();
        world.node.write_manifest("wrong.json", &class("wrong", "Not A Handler").to_string()).unwrap();
        world.node_event("FailedValidation", "handler: Invalid value").unwrap();

        // It is kept with the manifests, so a pod is judged by it in the next life as in this one.
        let before = seen.container("c")["containerID"].clone();
        world.node.kill9();
        world.node.start_again().unwrap();
        let seen = world.running("classy").unwrap();
        assert_eq!(seen.container("c")["containerID"], before);
    }
}

#[test]
fn a_container_that_cannot_be_started_says_why() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, "crashLoopBackOff: {maxContainerRestartPeriod: 1s}").unwrap();
        let missing = json!({ "command": ["/no/such/program"] });
        world
            .put("retried", json!({ "containers": [with(idle("c"), missing.clone()), idle("other")] }))
            .unwrap();
        world
            .put("final", json!({ "restartPolicy": "Never", "containers": [with(idle("c"), missing)] }))
            .unwrap();
        let not_root = json!({ "securityContext": { "runAsNonRoot": true } });
        world.put("root", json!({ "containers": [with(idle("c"), not_root)] })).unwrap();

        // Why it waits is told by who tried to start it, and how it ended by the runtime, a little later.
        let failed = |end: &Value| end["exitCode"] == 128 && end["reason"] == "StartError";
        let seen = world
            .wait("retried", "its failure", |pod| {
                ["RunContainerError", "CrashLoopBackOff"].contains(&pod.waits("c"))
                    && failed(&pod.container("c")["lastState"]["terminated"])
                    && pod.runs("other")
            })
            .unwrap();
        let last = &seen.container("c")["lastState"]["terminated"];
        assert!(last["message"].as_str().unwrap().contains("/no/such/program"), "{last}");
        let event = world.event("retried", "Failed", "/no/such/program").unwrap();
        assert!(event.message.starts_with("Error: "), "{}", event.message);
        world.wait("retried", "another try", |pod| pod.restarts("c") >= 1).unwrap();

        world
            .wait("final", "Failed", |pod| {
                pod.phase() == "Failed" && failed(&pod.container("c")["state"]["terminated"])
            })
            .unwrap();

        let root =
            world.wait("root", "its refusal", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
        let text = root.waiting_message("c");
        assert!(text.starts_with("container has runAsNonRoot and image will run as root"), "{text}");
        assert!(world.containers_of(root.uid()).unwrap().is_empty(), "it is not even made");
    }
}

#[test]
fn containers_run_as_asked_and_within_their_limits() {
    for flavor in Flavor::ALL {
        let config = "{clusterDNS: [192.0.2.53], clusterDomain: cluster.test}";
        let world = World::with_config(flavor, config).unwrap();
        let limits = json!({ "cpu": "100m", "memory": "32Mi" });
        let show = "id -u; id -g; pwd; cat /etc/resolv.conf; touch /x 2>/dev/null || echo read-only; echo shown; sleep 1000";
        let container = with(
            sh("c", show),
            json!({
                "workingDir": "/tmp",
                "resources": { "limits": limits },
                "securityContext": { "runAsUser": 1000, "runAsGroup": 3000, "readOnlyRootFilesystem": true },
            }),
        );
        world.put("user", json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })).unwrap();
        let greedy =
            with(sh("c", "tail /dev/zero"), json!({ "resources": { "limits": { "memory": "24Mi" } } }));
        let greedy = json!({ "restartPolicy": "Never", "containers": [greedy] });

        let seen = world.running("user").unwrap();
        let log = world.logged("user", "c", "shown").unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.get(..3), Some(&["1000", "3000", "/tmp"][..]), "{log}");
        assert!(lines.contains(&"nameserver 192.0.2.53"), "{log}");
        let search = lines.iter().find(|line| line.starts_with("search ")).unwrap();
        assert!(search.starts_with("search default.svc.cluster.test svc.cluster.test cluster.test"), "{log}");
        assert!(lines.contains(&"options ndots:5"), "{log}");
        assert!(lines.contains(&"read-only"), "{log}");
        assert_eq!(seen.text("/status/qosClass"), "Guaranteed");
        let own = world.node.cgroup(&["kubepods", &format!("pod{}", seen.uid())]);
        assert_eq!(limit_of(&own), 32 << 20, "the pod's cgroup");
        let inner = CgroupDriver::of_this_run().container(seen.id("c"));
        let inner: Vec<PathBuf> = own.iter().map(|pod| pod.join(&inner)).collect();
        assert_eq!(limit_of(&inner), 32 << 20, "the container's");

        // On cgroup v2 the pod's cgroup has counted the kill. On v1 containerd alone tells of it, by an event that may come after
        // that of the end; then it has no better word.
        let named = (0..20).any(|_| {
            world.put("greedy", greedy.clone()).unwrap();
            let over = world.wait("greedy", "Failed", |pod| pod.phase() == "Failed").unwrap();
            let end = &over.container("c")["state"]["terminated"];
            assert_eq!(end["exitCode"], 137, "{end}");
            assert!(end["reason"] == "OOMKilled" || end["reason"] == "Error", "{end}");
            assert_eq!(over.text("/status/qosClass"), "Burstable");
            world.take_away("greedy").unwrap();
            world.gone("greedy").unwrap();
            end["reason"] == "OOMKilled"
        });
        assert!(named, "{flavor:?}: the kill is never named");
    }
}

/// The memory limit of a cgroup, on v1 or v2.
fn limit_of(dirs: &[PathBuf]) -> u64 {
    let files =
        dirs.iter().flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file)));
    let text = files.filter_map(|file| fs::read_to_string(file).ok()).next();
    text.unwrap_or_else(|| panic!("no limit in {dirs:?}")).trim().parse().unwrap()
}
