//! What changes while mainstay runs: manifests that name their UID, the node's resolver and its addresses; and what does not
//! want to change.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use mainstay_e2e::{PodSeen, World, idle, pod, sh, with, write_program};
use mainstay_testkit::{Containerd, Flavor, Node, mainstay_binary, wait_until};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

fn with_uid(name: &str, uid: &str, spec: Value) -> Value {
    let mut manifest = pod(name, spec);
    manifest["metadata"]["uid"] = json!(uid);
    manifest
}

#[test]
fn an_edit_under_the_same_uid_replaces_the_pod_and_brings_back_one_that_is_over() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let says = |word: &str| {
        let container = with(idle("c"), json!({ "env": [{ "name": "WORD", "value": word }] }));
        with_uid("app", "app-uid", json!({ "terminationGracePeriodSeconds": 1, "containers": [container] }))
    };
    let job = |word: &str| {
        let containers = [sh("c", &format!("echo {word}"))];
        with_uid("job", "job-uid", json!({ "restartPolicy": "Never", "containers": containers }))
    };
    world.put_manifest("app", &says("first")).unwrap();
    world.put_manifest("job", &job("first")).unwrap();
    let first = world.running("app").unwrap();
    let over = |pod: &PodSeen| pod.phase() == "Succeeded";
    let ended = world.wait_long(PATIENCE, "job", "Succeeded", over).unwrap();

    world.put_manifest("app", &says("second")).unwrap();
    world.put_manifest("job", &job("second")).unwrap();
    let other = |pod: &PodSeen| pod.runs("c") && pod.id("c") != first.id("c");
    let second = world.wait_long(PATIENCE, "app", "replaced", other).unwrap();
    assert_eq!(second.uid(), "app-uid");
    assert_eq!(world.exec(&second, "c", "echo $WORD").unwrap().trim(), "second");
    assert_eq!(second.restarts("c"), 0, "it is another pod");
    let again = |pod: &PodSeen| pod.phase() == "Succeeded" && pod.id("c") != ended.id("c");
    let again = world.wait_long(PATIENCE, "job", "run again", again).unwrap();
    assert_eq!(world.logged("job", "c", "second").unwrap().trim(), "second");

    // Neither a restart nor the same file once more is an edit.
    mainstay_e2e::seen::persisted(&world.node).unwrap();
    world.node.kill9();
    world.node.start_again().unwrap();
    world.put_manifest("app", &says("second")).unwrap();
    world.put_manifest("job", &job("second")).unwrap();
    assert_eq!(world.running("app").unwrap().id("c"), second.id("c"));
    let still = world.wait_long(PATIENCE, "job", "Succeeded", over).unwrap();
    assert_eq!(still.id("c"), again.id("c"));

    // One that was made while mainstay was away is.
    world.node.kill9();
    world.put_manifest("app", &says("third")).unwrap();
    world.node.start_again().unwrap();
    let other = |pod: &PodSeen| pod.runs("c") && pod.id("c") != second.id("c");
    let third = world.wait_long(PATIENCE, "app", "replaced at the start", other).unwrap();
    assert_eq!(world.exec(&third, "c", "echo $WORD").unwrap().trim(), "third");
}

#[test]
fn each_pod_gets_the_resolver_that_the_node_has_when_it_starts() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let resolv = containerd.dir().join("node-resolv.conf");
    fs::write(&resolv, "nameserver 192.0.2.53\nsearch before.example\n").unwrap();
    let world = World::on(containerd, &format!("resolvConf: {}", resolv.display())).unwrap();
    let spec = || json!({ "dnsPolicy": "Default", "containers": [idle("c")] });
    world.put("before", spec()).unwrap();
    let before = world.running("before").unwrap();
    fs::write(&resolv, "nameserver 192.0.2.54\nsearch after.example\n").unwrap();
    world.put("after", spec()).unwrap();
    let after = world.running("after").unwrap();
    let shown = |pod: &PodSeen| world.exec(pod, "c", "cat /etc/resolv.conf").unwrap();
    let (before, after) = (shown(&before), shown(&after));
    assert!(before.contains("192.0.2.53") && before.contains("before.example"), "{before}");
    assert!(after.contains("192.0.2.54") && after.contains("after.example"), "{after}");
    assert!(!after.contains("192.0.2.53"), "{after}");
}

#[test]
fn an_address_that_the_node_gets_late_is_shown_and_pods_that_waited_for_it_start() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    // mainstay has a network of its own, in which there is nothing yet; its runtime and its pods have the machine's.
    let program = containerd.dir().join("mainstay-without-network");
    let binary = mainstay_binary().unwrap();
    let script = format!("#!/bin/sh\nexec unshare --net -- {} \"$@\"\n", binary.display());
    write_program(&program, &script).unwrap();
    let node = Node::builder().containerd(&containerd).program(&program).start().unwrap();
    let world = World { node, containerd };
    let field = json!({ "name": "HOST", "valueFrom": { "fieldRef": { "fieldPath": "status.hostIP" } } });
    world.put("asks", json!({ "containers": [with(idle("c"), json!({ "env": [field] }))] })).unwrap();
    world.put("plain", json!({ "containers": [idle("c")] })).unwrap();
    let plain = world.running("plain").unwrap();
    assert_eq!(plain.text("/status/hostIP"), "");
    world.wait("asks", "to wait", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();

    let pid = world.node.pid().unwrap().to_string();
    let enter = |commands: &[&str]| {
        for command in commands {
            let words = command.split(' ');
            let status =
                Command::new("nsenter").args(["--target", &pid, "--net"]).args(words).status().unwrap();
            assert!(status.success(), "{command}");
        }
    };
    enter(&[
        "ip link add late0 type veth peer name late1",
        "ip address add 198.51.100.7/24 dev late0",
        "ip link set late0 up",
        "ip link set late1 up",
        "ip route add default dev late0",
    ]);
    let seen = world
        .wait_long(PATIENCE, "asks", "its address", |pod| {
            pod.runs("c") && pod.text("/status/hostIP") == "198.51.100.7"
        })
        .unwrap();
    assert_eq!(world.exec(&seen, "c", "echo $HOST").unwrap().trim(), "198.51.100.7");
    let told = |ip: &str| {
        let shown = |pod: &PodSeen| pod.text("/status/hostIP") == ip;
        let after = world.wait_long(PATIENCE, "plain", "its address", shown).unwrap();
        assert_eq!((after.id("c"), after.restarts("c")), (plain.id("c"), 0), "nobody was restarted for it");
        wait_until(PATIENCE, "the node's address, and no other", || {
            let text = world.node.get("/node").map_err(|error| format!("{error:#}"))?;
            let object: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let addresses = object["status"]["addresses"].as_array().cloned().unwrap_or_default();
            let internal = addresses.iter().filter(|it| it["type"] == "InternalIP");
            let internal: Vec<_> = internal.map(|it| it["address"].clone()).collect();
            if internal == [ip] { Ok(()) } else { Err(format!("{addresses:?}")) }
        })
        .unwrap();
    };
    told("198.51.100.7");

    // A network of IPv6 alone.
    enter(&[
        "ip -6 address add 2001:db8:1::7/64 dev late0 nodad",
        "ip -6 route add default dev late0",
        "ip address del 198.51.100.7/24 dev late0",
    ]);
    told("2001:db8:1::7");
}

#[test]
fn after_a_reboot_that_leaves_the_runtime_empty_jobs_stay_finished_and_servers_start_again() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    world.put("server", json!({ "containers": [idle("c")] })).unwrap();
    for (name, script) in [("done", "exit 0"), ("failed", "exit 7")] {
        world.put(name, json!({ "restartPolicy": "Never", "containers": [sh("c", script)] })).unwrap();
    }
    let server = world.running("server").unwrap();
    let ended = |name: &str, phase: &str| {
        world
            .wait_long(PATIENCE, name, phase, |pod| pod.phase() == phase && pod.exit_code("c").is_some())
            .unwrap()
    };
    let both = || [ended("done", "Succeeded"), ended("failed", "Failed")];
    both();
    mainstay_e2e::seen::persisted(&world.node).unwrap();
    let before = both();
    world.node.kill9();
    world.containerd.reboot_forgetting_containers().unwrap();
    assert_eq!(world.containers_of(server.uid()).unwrap(), Vec::<Value>::new(), "the runtime is empty");
    world.node.start_again().unwrap();
    let other = |pod: &PodSeen| pod.runs("c") && pod.id("c") != server.id("c");
    let again = world.wait_long(PATIENCE, "server", "running anew", other).unwrap();
    assert_eq!(again.uid(), server.uid());
    for (name, before) in ["done", "failed"].into_iter().zip(&before) {
        let after = world.wait(name, "still over", |pod| pod.phase() == before.phase()).unwrap();
        assert_eq!(after.container("c")["state"], before.container("c")["state"], "{name}");
        assert_eq!(
            world.containers_of(before.uid()).unwrap(),
            Vec::<Value>::new(),
            "{name} was not run again"
        );
    }
}

/// A process whose working directory is in a volume.
struct Squatter(Child);

impl Drop for Squatter {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_volume_that_somebody_uses_is_named_and_goes_when_he_does() {
    let world = World::start(Flavor::Debian16).unwrap();
    let container = with(idle("c"), json!({ "volumeMounts": [{ "name": "busy", "mountPath": "/v" }] }));
    world
        .put(
            "p",
            json!({
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [{ "name": "busy", "emptyDir": { "medium": "Memory" } }],
            }),
        )
        .unwrap();
    let seen = world.running("p").unwrap();
    let volume = world.volume(&seen, "empty-dir", "busy");
    let mut sleep = Command::new("sleep");
    sleep.arg("600").current_dir(&volume).stdin(Stdio::null());
    let squatter = Squatter(sleep.spawn().unwrap());
    world.take_away("p").unwrap();
    let event = world.event("p", "FailedUnMount", &volume.display().to_string()).unwrap();
    assert_eq!(event.kind, "Warning");
    drop(squatter);
    wait_until(PATIENCE, "the end of the pod", || {
        let left = world.named("p").map_err(|error| format!("{error:#}"))?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    })
    .unwrap();
    assert_eq!(world.mounts_of(seen.uid()).unwrap(), Vec::new());
}
