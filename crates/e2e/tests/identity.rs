//! What a pod is called, where it looks up names, and what it shares with the node and within itself.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    fs,
    io::Read as _,
    net::{TcpStream, UdpSocket},
    time::Duration,
};

use mainstay_e2e::{SOON, World, idle, sh, with};
use mainstay_testkit::{Containerd, Flavor, free_address, wait_until};
use serde_json::{Value, json};

/// A pod of one container that prints something and stays.
fn printing(script: &str, more: Value) -> Value {
    let container = sh("c", &format!("{script}; echo printed; sleep 1000"));
    with(json!({ "terminationGracePeriodSeconds": 1, "containers": [container] }), more)
}

fn printed(world: &World, name: &str) -> String {
    world.logged(name, "c", "printed").unwrap()
}

#[test]
fn a_pod_is_called_as_its_spec_says() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, "{clusterDomain: cluster.test}").unwrap();
        let script = "echo kernel=$(cat /proc/sys/kernel/hostname); tail -n 1 /etc/hosts";
        let long = "a".repeat(62);
        let cases = [
            ("plain", json!({}), "plain-node", "plain-node"),
            ("named", json!({ "hostname": "web" }), "web", "web"),
            (
                "domain",
                json!({ "hostname": "web", "subdomain": "shop" }),
                "web",
                "web.shop.default.svc.cluster.test\tweb",
            ),
            (
                "fqdn",
                json!({ "hostname": "web", "subdomain": "shop", "setHostnameAsFQDN": true }),
                "web.shop.default.svc.cluster.test",
                "web.shop.default.svc.cluster.test\tweb",
            ),
            ("alone", json!({ "setHostnameAsFQDN": true }), "alone-node", "alone-node"),
            (
                "override",
                json!({ "hostnameOverride": "db.example.test", "subdomain": "shop" }),
                "db.example.test",
                "db.example.test",
            ),
            // The kernel's limit cuts it, and no dash is left at its end.
            (&long, json!({}), &long, &long),
        ];
        for (name, more, ..) in &cases {
            world.put(name, printing(script, more.clone())).unwrap();
        }
        let too_long = json!({ "hostname": "w".repeat(40), "subdomain": "shop", "setHostnameAsFQDN": true });
        world.put("too-long", printing(script, too_long)).unwrap();
        for (name, _, kernel, hosts) in &cases {
            let seen = world.running(name).unwrap();
            let log = printed(&world, name);
            let line = format!("{}\t{hosts}", seen.text("/status/podIP"));
            assert!(log.lines().any(|have| have == format!("kernel={kernel}")), "{name}: {log}");
            assert!(log.lines().any(|have| have == line), "{name}: no {line:?} in {log}");
        }
        let event = world.event("too-long", "FailedCreatePodSandBox", "is too long").unwrap();
        assert!(
            event.message.contains("(64 characters is the max, 70 characters requested)"),
            "{}",
            event.message
        );
        let seen = world.wait("too-long", "its refusal", |pod| !pod.waits("c").is_empty()).unwrap();
        assert_eq!(seen.phase(), "Pending");
    }
}

#[test]
fn names_are_looked_up_as_the_policy_says() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let resolv = containerd.dir().join("resolv.conf");
    let text =
        "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch node.test. lan.test\noptions timeout:3 rotate\n";
    fs::write(&resolv, text).unwrap();
    let config = format!(
        "{{clusterDNS: [192.0.2.53], clusterDomain: cluster.test, resolvConf: {}}}",
        resolv.display()
    );
    let world = World::on(containerd, &config).unwrap();
    let cluster = "search default.svc.cluster.test svc.cluster.test cluster.test node.test lan.test\nnameserver 192.0.2.53\noptions ndots:5\n";
    let node =
        "search node.test lan.test\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions timeout:3 rotate\n";
    let own = json!({
        "nameservers": ["192.0.2.7", "192.0.2.53"],
        "searches": ["own.test", "cluster.test"],
        "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }],
    });
    let cases = [
        ("default", json!({ "dnsPolicy": "Default" }), node.to_owned()),
        ("cluster", json!({ "dnsPolicy": "ClusterFirst" }), cluster.to_owned()),
        ("unsaid", json!({}), cluster.to_owned()),
        ("host", json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }), node.to_owned()),
        ("with-host", json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }), cluster.to_owned()),
        (
            "none",
            json!({ "dnsPolicy": "None", "dnsConfig": own }),
            "search own.test cluster.test\nnameserver 192.0.2.7\nnameserver 192.0.2.53\noptions ndots:2 edns0\n".to_owned(),
        ),
        (
            "merged",
            json!({ "dnsConfig": own }),
            "search default.svc.cluster.test svc.cluster.test cluster.test node.test lan.test own.test\n\
             nameserver 192.0.2.53\nnameserver 192.0.2.7\noptions ndots:2 edns0\n"
                .to_owned(),
        ),
    ];
    for (name, more, _) in &cases {
        world.put(name, printing("cat /etc/resolv.conf", more.clone())).unwrap();
    }
    let many = json!({ "dnsPolicy": "Default", "dnsConfig": { "nameservers": ["192.0.2.3", "192.0.2.4"] } });
    world.put("many", printing("cat /etc/resolv.conf", many)).unwrap();
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().filter(|line| *line != "printed").map(str::to_owned).collect();
        // Which of the three kinds of lines comes first is the runtime's choice.
        lines.sort_by_key(|line| line.split(' ').next().unwrap_or_default().to_owned());
        lines
    };
    for (name, _, wanted) in &cases {
        assert_eq!(sorted(&printed(&world, name)), sorted(wanted), "{name}");
    }
    let log = printed(&world, "many");
    assert_eq!(log.lines().filter(|line| line.starts_with("nameserver ")).count(), 3, "{log}");
    let event = world.event("many", "DNSConfigForming", "Nameserver limits were exceeded").unwrap();
    assert!(event.message.ends_with("192.0.2.1 192.0.2.2 192.0.2.3"), "{}", event.message);
}

#[test]
fn without_a_cluster_resolver_the_nodes_is_used_and_told_of() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("pod", json!({ "containers": [idle("c")] })).unwrap();
    world.running("pod").unwrap();
    world.put("another", json!({ "containers": [idle("c")] })).unwrap();
    world.running("another").unwrap();
    let event = world.node_event("MissingClusterDNS", "Falling back to \"Default\" policy.").unwrap();
    assert_eq!((event.kind.as_str(), event.count), ("Warning", 1), "of the node, and once");
    for pod in ["pod", "another"] {
        let about = world.events(pod).unwrap();
        assert!(!about.iter().any(|event| event.reason == "MissingClusterDNS"), "{about:?}");
    }
}

#[test]
fn namespaces_are_shared_as_asked_and_no_further() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let script = "for n in pid ipc net uts; do echo $n=$(readlink /proc/self/ns/$n); done; echo printed; sleep 1000";
        let two = |more: Value| {
            with(
                json!({ "terminationGracePeriodSeconds": 1, "containers": [sh("c", script), sh("d", script)] }),
                more,
            )
        };
        let cases = [
            // The pod's own, shared by its containers; those of the node are marked.
            ("plain", json!({}), ["each", "pod", "pod", "pod"]),
            ("processes", json!({ "shareProcessNamespace": true }), ["pod", "pod", "pod", "pod"]),
            ("host-pid", json!({ "hostPID": true }), ["node", "pod", "pod", "pod"]),
            ("host-ipc", json!({ "hostIPC": true }), ["each", "node", "pod", "pod"]),
            ("host-net", json!({ "hostNetwork": true }), ["each", "pod", "node", "node"]),
        ];
        for (name, more, _) in &cases {
            world.put(name, two(more.clone())).unwrap();
        }
        for (name, _, wanted) in &cases {
            let (c, d) = (printed(&world, name), world.logged(name, "d", "printed").unwrap());
            for (namespace, wanted) in ["pid", "ipc", "net", "uts"].iter().zip(wanted) {
                let of = |log: &str| {
                    let start = format!("{namespace}=");
                    log.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned)).unwrap()
                };
                let node = fs::read_link(format!("/proc/self/ns/{namespace}"))
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                let how = match (of(&c) == of(&d), of(&c) == node) {
                    (true, true) => "node",
                    (true, false) => "pod",
                    (false, false) => "each",
                    (false, true) => "mixed",
                };
                assert_eq!(how, *wanted, "{name}: {namespace}: {c}{d}node: {node}");
            }
        }
        // In one process namespace the sandbox is the first process, and each sees the other.
        world
            .put(
                "see",
                json!({
                    "shareProcessNamespace": true,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        sh("c", "echo mark > /dev/null; exec sleep 4321"),
                        sh("d", "while ! grep -qs 4321 /proc/[0-9]*/cmdline; do sleep 0.1; done; echo seen; sleep 1000"),
                    ],
                }),
            )
            .unwrap();
        world.logged("see", "d", "seen").unwrap();
    }
}

#[test]
fn terminals_and_standard_input_are_given_as_asked() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let container = |name: &str, script: &str, more: Value| with(sh(name, script), more);
        // They end once they were heard: what a terminal says last may be lost with it.
        let rest = "while [ ! -e /tmp/end ]; do sleep 0.1; done";
        let asks = format!("[ -t 1 ] && echo terminal || echo none; echo printed; {rest}");
        let closed = format!("cat; echo ended; {rest}");
        world
            .put(
                "pod",
                json!({
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        container("plain", &asks, json!({})),
                        container("tty", &asks, json!({ "tty": true })),
                        // Without an open standard input it is at its end at once.
                        container("closed", &closed, json!({})),
                        container("open", "cat; echo ended", json!({ "stdin": true })),
                        container("once", "cat; echo ended", json!({ "stdin": true, "stdinOnce": true })),
                    ],
                }),
            )
            .unwrap();
        assert!(world.logged("pod", "plain", "printed").unwrap().contains("none"));
        assert!(world.logged("pod", "tty", "printed").unwrap().contains("terminal"));
        world.logged("pod", "closed", "ended").unwrap();
        let all = ["plain", "tty", "closed", "open", "once"];
        let seen = world.wait("pod", "all to run", |pod| all.iter().all(|name| pod.runs(name))).unwrap();
        for name in ["plain", "tty", "closed"] {
            world.touch(&seen, name, "/tmp/end").unwrap();
        }
        let seen = world
            .wait("pod", "the ends", |pod| {
                ["plain", "tty", "closed"].iter().all(|name| pod.exit_code(name) == Some(0))
                    && ["open", "once"].iter().all(|name| pod.runs(name) || pod.exit_code(name).is_some())
            })
            .unwrap();
        for (name, once) in [("open", false), ("once", true)] {
            assert!(seen.runs(name), "{name}: {:#}", seen.0["status"]);
            let config = world.crictl(&["inspect", seen.id(name)]).unwrap()["info"]["config"].clone();
            assert_eq!(
                (&config["stdin"], config["stdin_once"].as_bool().unwrap_or(false)),
                (&json!(true), once)
            );
        }
    }
}

#[test]
fn a_host_port_leads_to_its_pod() {
    let containerd = Containerd::builder(Flavor::Debian16).host_ports().start().unwrap();
    let gateway = containerd.gateway();
    let world = World::on(containerd, "{}").unwrap();
    let free = free_address().unwrap().port();
    let serve = "while true; do echo hello from the pod | nc -l -p 8080; done";
    let [udp, here, elsewhere] = [(); 3].map(|()| free_address().unwrap().port());
    let ports = json!([
        { "name": "web", "containerPort": 8080, "hostPort": free },
        { "name": "udp", "containerPort": 8080, "hostPort": udp, "protocol": "UDP" },
        { "name": "here", "containerPort": 8080, "hostPort": here, "hostIP": gateway.to_string() },
        { "name": "elsewhere", "containerPort": 8080, "hostPort": elsewhere, "hostIP": "192.0.2.1" },
    ]);
    world
        .put("web", json!({ "terminationGracePeriodSeconds": 1, "containers": [with(sh("c", serve), json!({ "ports": ports }))] }))
        .unwrap();
    let seen = world.running("web").unwrap();
    let ask = |port: u16| -> std::io::Result<String> {
        let mut text = String::new();
        let mut stream = TcpStream::connect((gateway, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    // The server takes one caller after the other, and is away for a moment in between.
    for port in [free, here] {
        wait_until(SOON, "an answer on the host port", || match ask(port) {
            Ok(text) if text == "hello from the pod\n" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .unwrap();
    }
    let refused = ask(elsewhere).map_err(|error| error.kind());
    assert_eq!(refused, Err(std::io::ErrorKind::ConnectionRefused), "that is another address's port");
    // Nobody listens there; the pod's kernel counts what came.
    let came = || world.exec(&seen, "c", "awk '/^Udp: [0-9]/ { print $3 }' /proc/net/snmp");
    let before = came().unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    wait_until(SOON, "a datagram in the pod", || {
        // That nobody listens may be told to the sender at the next datagram.
        socket.send_to(b"hello", (gateway, udp)).ok();
        match came() {
            Ok(number) if number != before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}
