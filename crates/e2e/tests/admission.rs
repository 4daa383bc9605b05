//! Who is let in: resources, ports, labels, sysctls; and that nobody who runs is ever turned out.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use mainstay_e2e::{PodSeen, SOON, World, idle, sh, with};
use mainstay_testkit::{Flavor, wait_until};
use serde_json::{Value, json};

/// A node on which two CPUs and a gibibyte are left for pods, whatever the machine has.
fn small_node(flavor: Flavor, over: &str) -> World {
    let (cpus, memory) = machine();
    let config = format!(
        "systemReserved: {{cpu: {}m}}\nkubeReserved: {{memory: \"{}\"}}\n{over}",
        cpus * 1000 - 2000 + 500,
        // The kit's eviction threshold is one mebibyte.
        memory - (1 << 30) - (1 << 20),
    );
    World::with_config(flavor, &config).unwrap()
}

/// CPUs and bytes of memory that is not set aside for huge pages, asked in another way than mainstay does.
fn machine() -> (i64, i64) {
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let cpus = run("getconf", &["_NPROCESSORS_ONLN"]).parse().unwrap();
    let meminfo = |name: &str| -> i64 {
        let line = run("grep", &["-w", name, "/proc/meminfo"]);
        line.split_whitespace().nth(1).map_or(0, |number| number.parse().unwrap())
    };
    (cpus, (meminfo("MemTotal:") - meminfo("HugePages_Total:") * meminfo("Hugepagesize:")) * 1024)
}

fn asking(requests: Value) -> Value {
    quick(with(idle("main"), json!({ "resources": { "requests": requests } })))
}

/// One container, and no long wait for its end.
fn quick(container: Value) -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })
}

/// Waits for a rejection, and checks all that is told of it.
#[track_caller]
fn rejected(world: &World, name: &str, reason: &str, message: &str) -> PodSeen {
    let told = format!("Pod was rejected: {message}");
    // It may have been rejected for something else a moment ago.
    let is_it = |pod: &PodSeen| pod.phase() == "Failed" && pod.text("/status/message") == told;
    let seen = world.wait(name, &told, is_it).unwrap();
    assert_eq!(seen.text("/status/reason"), reason);
    let status = seen.0["status"].as_object().unwrap();
    let mut fields: Vec<_> = status.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["message", "phase", "qosClass", "reason", "startTime"],
        "nothing was ever made of it"
    );
    let event = world.event(name, reason, message).unwrap();
    assert_eq!((event.kind.as_str(), event.message.as_str(), event.count), ("Warning", message, 1));
    assert!(world.sandboxes_of(seen.uid()).unwrap().is_empty());
    seen
}

fn node(world: &World) -> Value {
    let answer = wait_until(SOON, "the first snapshot", || {
        world.node.get("/mainstay/v1/node").map_err(|error| format!("{error:#}"))
    });
    serde_json::from_str(&answer.unwrap()).unwrap()
}

#[test]
fn what_does_not_fit_is_rejected_and_the_rest_runs() {
    for flavor in Flavor::ALL {
        // 1500m of CPU and 1 GiB are left.
        let world = small_node(flavor, "");
        let shown = node(&world);
        assert_eq!(shown["allocatable"]["cpu"], "1500m");
        assert_eq!(shown["allocatable"]["memory"], "1Gi");
        assert_eq!(shown["capacity"]["cpu"], machine().0.to_string());
        assert_eq!(shown["capacity"]["pods"], "110");

        world.put("blocker", asking(json!({ "cpu": "1", "memory": "512Mi" }))).unwrap();
        world.running("blocker").unwrap();
        world.put("cpu", asking(json!({ "cpu": "600m" }))).unwrap();
        let message = "Node didn't have enough resource: cpu, requested: 600, used: 1000, capacity: 1500";
        let first = rejected(&world, "cpu", "OutOfcpu", message);
        world.put("memory", asking(json!({ "memory": "600Mi" }))).unwrap();
        let message = "Node didn't have enough resource: memory, requested: 629145600, used: 536870912, capacity: 1073741824";
        rejected(&world, "memory", "OutOfmemory", message);
        world.put("disk", asking(json!({ "ephemeral-storage": "1Pi" }))).unwrap();
        let full = world.wait("disk", "its rejection", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(full.text("/status/reason"), "OutOfephemeral-storage");
        let begins = "Pod was rejected: Node didn't have enough resource: ephemeral-storage, requested: 1125899906842624, used: 0, capacity: ";
        assert!(full.text("/status/message").starts_with(begins), "{}", full.text("/status/message"));
        world.take_away("disk").unwrap();
        world.put("fits", asking(json!({ "cpu": "500m", "memory": "512Mi" }))).unwrap();
        world.running("fits").unwrap();

        // The room of one that goes is for whom was turned away before, if it is enough.
        world.take_away("blocker").unwrap();
        let after_all = world.running("cpu").unwrap();
        assert_eq!(after_all.uid(), first.uid());
        rejected(&world, "memory", "OutOfmemory", message);
        // A new pod waits for those who are going; so does an edited one, which is another.
        world.take_away("fits").unwrap();
        world.put("later", asking(json!({ "cpu": "900m" }))).unwrap();
        world.running("later").unwrap();
        world.running("memory").unwrap();
        world.put("cpu", asking(json!({ "cpu": "500m", "memory": "1Mi" }))).unwrap();
        let again = world.wait("cpu", "another", |pod| pod.uid() != first.uid()).unwrap();
        assert_eq!(world.running("cpu").unwrap().uid(), again.uid());
    }
}

/// Each amount is one that can be written; their sum is more than can be counted.
#[test]
fn what_adds_up_to_more_than_can_be_counted_does_not_fit() {
    let world = small_node(Flavor::Debian16, "");
    world.put("bystander", asking(json!({ "memory": "64Mi" }))).unwrap();
    let before = world.running("bystander").unwrap();
    let most = json!({ "resources": { "requests": { "memory": i64::MAX.to_string() } } });
    let containers = ["a", "b"].map(|name| with(idle(name), most.clone()));
    world.put("endless", json!({ "terminationGracePeriodSeconds": 1, "containers": containers })).unwrap();
    let message = format!(
        "Node didn't have enough resource: memory, requested: {}, used: {}, capacity: {}",
        i64::MAX,
        64 << 20,
        1 << 30
    );
    rejected(&world, "endless", "OutOfmemory", &message);
    world.put("next", asking(json!({ "memory": "960Mi" }))).unwrap();
    world.running("next").unwrap();
    assert_eq!(world.running("bystander").unwrap(), before);
}

#[test]
fn overhead_takes_room_too() {
    // 1500m of CPU and 1 GiB are left.
    let world = small_node(Flavor::Debian16, "");
    let costly = |requests: Value, overhead: Value| with(asking(requests), json!({ "overhead": overhead }));
    world
        .put("first", costly(json!({ "cpu": "500m" }), json!({ "cpu": "500m", "memory": "512Mi" })))
        .unwrap();
    world.running("first").unwrap();
    world.put("cpu", costly(json!({ "cpu": "400m" }), json!({ "cpu": "200m" }))).unwrap();
    let message = "Node didn't have enough resource: cpu, requested: 600, used: 1000, capacity: 1500";
    rejected(&world, "cpu", "OutOfcpu", message);
    world.put("memory", asking(json!({ "memory": "600Mi" }))).unwrap();
    let message = "Node didn't have enough resource: memory, requested: 629145600, used: 536870912, capacity: 1073741824";
    rejected(&world, "memory", "OutOfmemory", message);
    world.put("fits", costly(json!({ "cpu": "400m" }), json!({ "cpu": "100m", "memory": "512Mi" }))).unwrap();
    world.running("fits").unwrap();
}

#[test]
fn a_restart_rejects_nobody_and_lets_in_who_fits_by_then() {
    let mut world = small_node(Flavor::Debian16, "maxPods: 3");
    world.put("a", asking(json!({ "cpu": "1" }))).unwrap();
    world.running("a").unwrap();
    world.put("b", asking(json!({ "cpu": "1" }))).unwrap();
    let message = "Node didn't have enough resource: cpu, requested: 1000, used: 1000, capacity: 1500";
    let b = rejected(&world, "b", "OutOfcpu", message);
    mainstay_e2e::seen::persisted(&world.node).unwrap();
    let a = world.running("a").unwrap();

    // Less room than a takes, and a new pod that comes while mainstay is away.
    world.node.kill9();
    let config = std::fs::read_to_string(world.node.config_path()).unwrap();
    let (cpus, _) = machine();
    let leaving = |millis: i64| {
        let reserved = |left: i64| format!("cpu: {}m", cpus * 1000 - left);
        assert!(config.contains(&reserved(1500)), "{config}");
        config.replace(&reserved(1500), &reserved(millis))
    };
    std::fs::write(world.node.config_path(), leaving(700)).unwrap();
    world.put("c", asking(json!({ "cpu": "1m" }))).unwrap();
    world.node.start_again().unwrap();
    let message = "Node didn't have enough resource: cpu, requested: 1, used: 1000, capacity: 700";
    rejected(&world, "c", "OutOfcpu", message);
    assert_eq!(world.running("a").unwrap(), a);
    let now =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 1000, capacity: 700";
    let after = world.wait("b", "rejected as of now", |pod| pod.text("/status/message") == now).unwrap();
    assert_eq!((after.phase(), after.text("/status/reason")), ("Failed", "OutOfcpu"));
    assert_eq!(after.text("/status/startTime"), b.text("/status/startTime"));
    mainstay_e2e::seen::persisted(&world.node).unwrap();

    // Room for two: first come, first served.
    world.node.kill9();
    std::fs::write(world.node.config_path(), leaving(2000)).unwrap();
    world.node.start_again().unwrap();
    assert_eq!(world.running("b").unwrap().uid(), b.uid());
    assert_eq!(world.running("a").unwrap(), a);
    let now =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1, used: 2000, capacity: 2000";
    world.wait("c", "rejected as of now", |pod| pod.text("/status/message") == now).unwrap();
}

#[test]
fn an_edit_under_the_same_uid_is_judged_anew() {
    let world = small_node(Flavor::Debian16, "");
    let put = |cpu: &str| {
        let mut manifest = mainstay_e2e::pod("edited", asking(json!({ "cpu": cpu })));
        manifest["metadata"]["uid"] = "6e1f3f63-4b9a-4b0e-9d1a-0c8a4a5e7b10".into();
        world.put_manifest("edited", &manifest).unwrap();
    };
    put("900");
    let message = "Node didn't have enough resource: cpu, requested: 900000, used: 0, capacity: 1500";
    let first = rejected(&world, "edited", "OutOfcpu", message);
    put("800");
    let message = "Node didn't have enough resource: cpu, requested: 800000, used: 0, capacity: 1500";
    world.event("edited", "OutOfcpu", message).unwrap();
    put("1");
    assert_eq!(world.running("edited").unwrap().uid(), first.uid());
}

#[test]
fn no_more_pods_than_the_node_takes_first_come_first_served() {
    let world = World::with_config(Flavor::Debian16, "maxPods: 100\npodsPerCore: 1").unwrap();
    let room = machine().0;
    assert_eq!(node(&world)["capacity"]["pods"], room.to_string());
    for i in 0..room {
        world.put(&format!("p{i}"), quick(idle("main"))).unwrap();
        world.running(&format!("p{i}")).unwrap();
    }
    world.put("one-too-many", quick(idle("main"))).unwrap();
    let message =
        format!("Node didn't have enough resource: pods, requested: 1, used: {room}, capacity: {room}");
    rejected(&world, "one-too-many", "OutOfpods", &message);
}

#[test]
fn who_waits_for_the_room_of_a_pod_that_is_ending_says_so() {
    let world = small_node(Flavor::Debian16, "maxPods: 1");
    // It ends when it is told to by a file, not by a signal.
    let script = "trap '' TERM; while [ ! -e /hold/go ]; do sleep 0.1; done";
    let hold = world.node.root().join("hold");
    std::fs::create_dir_all(&hold).unwrap();
    let container =
        with(sh("c", script), json!({ "volumeMounts": [{ "name": "hold", "mountPath": "/hold" }] }));
    let volume = json!({ "name": "hold", "hostPath": { "path": hold } });
    let spec =
        json!({ "terminationGracePeriodSeconds": 600, "containers": [container], "volumes": [volume] });
    world.put("first", spec).unwrap();
    world.running("first").unwrap();
    world.take_away("first").unwrap();
    world.wait("first", "being ended", |pod| !pod.text("/metadata/deletionTimestamp").is_empty()).unwrap();
    world.put("second", quick(idle("c"))).unwrap();
    let waiting = |pod: &PodSeen| {
        pod.waits("c") == "ContainerCreating" && pod.waiting_message("c").contains("to make room")
    };
    let seen = world.wait("second", "saying what it waits for", waiting).unwrap();
    assert_eq!(seen.phase(), "Pending");
    world.event("second", "WaitingForRoom", "to make room").unwrap();
    std::fs::write(hold.join("go"), "").unwrap();
    world.running("second").unwrap();
}

#[test]
fn many_at_once_are_let_in_by_name() {
    let mut world = small_node(Flavor::Debian16, "");
    world.node.kill9();
    // All are there when mainstay starts; 1500m are enough for three of them.
    for name in ["d", "a", "e", "c", "b"] {
        world.put(name, asking(json!({ "cpu": "500m" }))).unwrap();
    }
    world.node.start_again().unwrap();
    for name in ["a", "b", "c"] {
        world.running(name).unwrap();
    }
    let message = "Node didn't have enough resource: cpu, requested: 500, used: 1500, capacity: 1500";
    for name in ["d", "e"] {
        rejected(&world, name, "OutOfcpu", message);
    }
}

#[test]
fn labels_ports_systems_and_what_cannot_be_enforced() {
    let world = {
        let containerd = mainstay_testkit::Containerd::start(Flavor::Debian16).unwrap();
        let node = mainstay_testkit::Node::builder()
            .containerd(&containerd)
            .args(["--node-labels=disk=ssd,example.test/zone=a,generation=5"])
            .start()
            .unwrap();
        World { node, containerd }
    };
    assert_eq!(node(&world)["labels"]["disk"], "ssd");
    assert_eq!(node(&world)["labels"]["kubernetes.io/hostname"], "node");
    let selected = |labels: Value| with(quick(idle("main")), json!({ "nodeSelector": labels }));
    world.put("here", selected(json!({ "disk": "ssd", "kubernetes.io/os": "linux" }))).unwrap();
    world.put("elsewhere", selected(json!({ "disk": "hdd" }))).unwrap();
    let term =
        json!({ "matchExpressions": [{ "key": "example.test/zone", "operator": "NotIn", "values": ["a"] }] });
    let required = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } });
    world.put("averse", with(quick(idle("main")), json!({ "affinity": required }))).unwrap();
    let by_name = |name: &str| {
        let term = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [name] }] });
        let required = json!({ "nodeSelectorTerms": [term] });
        let affinity =
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
        with(quick(idle("main")), json!({ "affinity": affinity }))
    };
    world.put("mine", by_name(world.node.name())).unwrap();
    world.put("theirs", by_name("another")).unwrap();
    let affinity = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    rejected(&world, "elsewhere", "NodeAffinity", affinity);
    rejected(&world, "averse", "NodeAffinity", affinity);
    // All of a term's expressions have to hold, and one that does not is enough.
    let by = |expressions: &[Value]| {
        let term = json!({ "matchExpressions": expressions });
        let required = json!({ "nodeSelectorTerms": [term] });
        let affinity =
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
        with(quick(idle("main")), json!({ "affinity": affinity }))
    };
    let says = |key: &str, operator: &str, values: &[&str]| json!({ "key": key, "operator": operator, "values": values });
    let true_ones = [
        says("disk", "In", &["hdd", "ssd"]),
        says("example.test/zone", "NotIn", &["b"]),
        says("disk", "Exists", &[]),
        says("tape", "DoesNotExist", &[]),
        says("generation", "Gt", &["4"]),
        says("generation", "Lt", &["6"]),
    ];
    let false_ones = [
        says("tape", "Exists", &[]),
        says("disk", "DoesNotExist", &[]),
        says("generation", "Gt", &["5"]),
        says("generation", "Lt", &["5"]),
        says("tape", "Gt", &["4"]),
    ];
    world.put("all-true", by(&true_ones)).unwrap();
    for (number, expression) in false_ones.iter().enumerate() {
        let all: Vec<Value> = true_ones.iter().chain([expression]).cloned().collect();
        world.put(&format!("one-false-{number}"), by(&all)).unwrap();
    }
    for number in 0..false_ones.len() {
        rejected(&world, &format!("one-false-{number}"), "NodeAffinity", affinity);
    }
    world.running("all-true").unwrap();
    rejected(&world, "theirs", "NodeAffinity", affinity);
    world.running("here").unwrap();
    world.running("mine").unwrap();

    let port = |number: i32| {
        quick(with(idle("main"), json!({ "ports": [{ "containerPort": 80, "hostPort": number }] })))
    };
    world.put("first", port(18_080)).unwrap();
    world.wait("first", "taken up", |pod| !pod.container("main").is_null()).unwrap();
    world.put("second", port(18_080)).unwrap();
    let ports = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    rejected(&world, "second", "NodePorts", ports);
    world.put("third", port(18_081)).unwrap();
    world.wait("third", "taken up", |pod| !pod.container("main").is_null()).unwrap();

    let mut foreign = mainstay_e2e::pod("foreign", quick(idle("main")));
    foreign["metadata"]["labels"] = json!({ "kubernetes.io/os": "windows" });
    world.put_manifest("foreign", &foreign).unwrap();
    let os = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    rejected(&world, "foreign", "PodOSSelectorNodeLabelDoesNotMatch", os);
    let strict = json!({ "securityContext": { "supplementalGroupsPolicy": "Strict" } });
    world.put("strict", with(quick(idle("main")), strict)).unwrap();
    // containerd 1.6 knows nothing of it.
    let groups = "SupplementalGroupsPolicy=Strict is not supported in this node";
    rejected(&world, "strict", "SupplementalGroupsPolicyNotSupported", groups);
}

#[test]
fn strict_groups_are_let_in_where_the_runtime_keeps_to_them() {
    let world = World::start(Flavor::Built24).unwrap();
    let strict = json!({ "securityContext": { "supplementalGroupsPolicy": "Strict", "runAsUser": 1000 } });
    world.put("strict", with(quick(idle("main")), strict)).unwrap();
    world.running("strict").unwrap();
}

#[test]
fn sysctls_are_set_if_they_are_safe_or_allowed_and_refused_otherwise() {
    let world = World::with_config(Flavor::Debian16, "allowedUnsafeSysctls: [\"net.core.*\"]").unwrap();
    let with_sysctl = |name: &str, value: &str, file: &str| {
        let container = sh("main", &format!("cat {file}; trap 'exit 0' TERM; while :; do sleep 0.1; done"));
        let sysctls = json!({ "sysctls": [{ "name": name, "value": value }] });
        with(quick(container), json!({ "securityContext": sysctls }))
    };
    world
        .put("safe", with_sysctl("net.ipv4.tcp_fin_timeout", "33", "/proc/sys/net/ipv4/tcp_fin_timeout"))
        .unwrap();
    world.put("allowed", with_sysctl("net.core.somaxconn", "777", "/proc/sys/net/core/somaxconn")).unwrap();
    world.put("forbidden", with_sysctl("kernel.msgmax", "65536", "/proc/sys/kernel/msgmax")).unwrap();
    rejected(&world, "forbidden", "SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
    world.logged("safe", "main", "33\n").unwrap();
    world.logged("allowed", "main", "777\n").unwrap();
}

#[test]
fn a_limit_that_is_missing_reads_as_what_the_node_leaves() {
    let world = small_node(Flavor::Debian16, "");
    let field = |name: &str, divisor: &str| json!({ "name": "X", "valueFrom": { "resourceFieldRef": { "resource": name, "divisor": divisor } } });
    for (name, resource, divisor, expected) in
        [("cpu", "limits.cpu", "1m", "1500"), ("memory", "limits.memory", "1Mi", "1024")]
    {
        let container =
            with(sh("main", "echo \"value $X\"; sleep 1000"), json!({ "env": [field(resource, divisor)] }));
        world.put(name, quick(container)).unwrap();
        world.logged(name, "main", &format!("value {expected}\n")).unwrap();
    }
}

#[test]
fn the_command_line_shows_what_the_node_has() {
    let world = small_node(Flavor::Debian16, "");
    node(&world);
    let output = world.node.cli(&["node"]).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, allocatable) = text.split_once("Allocatable:").unwrap();
    let line =
        |name: &str| allocatable.lines().find(|line| line.trim().starts_with(name)).unwrap().to_owned();
    assert!(line("cpu:").trim_end().ends_with(" 1500m"), "{text}");
    assert!(line("memory:").trim_end().ends_with(" 1Gi"), "{text}");
}
