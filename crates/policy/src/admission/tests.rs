use mainstay_types::Quantity;
use serde_json::{Value, json};

use super::*;

fn node() -> NodeFacts {
    let labels = [
        ("kubernetes.io/hostname", "node-a"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("disk", "ssd"),
        ("slots", "4"),
    ];
    let allocatable = [
        ("cpu", "2"),
        ("memory", "4Gi"),
        ("ephemeral-storage", "10Gi"),
        ("pods", "3"),
        ("hugepages-2Mi", "64Mi"),
        ("example.com/gpu", "1"),
    ];
    let resources = NodeResources {
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        allocatable: allocatable
            .into_iter()
            .map(|(name, text)| (name.to_owned(), Quantity::parse(text).unwrap()))
            .collect(),
        ..NodeResources::default()
    };
    NodeFacts {
        name: "node-a".into(),
        resources: Arc::new(resources),
        taints: Vec::new(),
        sysctls: Sysctls::new("6.1.0", &["net.core.somaxconn".into(), "kernel.msg*".into()]).unwrap(),
        app_armor: false,
        pod_level_resources: true,
        pressure: mainstay_types::NodePressure::default(),
    }
}

/// A pod with this spec laid over one idle container; `metadata` in it becomes the pod's.
fn pod(over: Value) -> Pod {
    let mut spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let mut metadata = json!({ "name": "p", "namespace": "default", "uid": "u" });
    for (key, value) in over.as_object().unwrap() {
        match key.as_str() {
            "metadata" => metadata.as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
            _ => spec[key] = value.clone(),
        }
    }
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn asking(requests: Value) -> Pod {
    pod(json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": requests } }] }))
}

fn with_ports(ports: Value) -> Pod {
    pod(json!({ "containers": [{ "name": "c", "image": "i", "ports": ports }] }))
}

fn judge(pod: &Pod, node: &NodeFacts, others: &[Pod]) -> String {
    let (wants, others): (_, Vec<_>) = (PodUse::of(pod), others.iter().map(PodUse::of).collect());
    let candidate = Candidate { pod, wants: &wants, is_static: true, strict_groups: false };
    match admit(&candidate, node, &others) {
        Ok(()) => String::new(),
        Err(Rejection { reason, message }) => format!("{reason}: {message}"),
    }
}

#[track_caller]
fn check(what: &str, pod: Value, expected: &str) {
    assert_eq!(judge(&self::pod(pod), &node(), &[]), expected, "{what}");
}

#[test]
fn room_for_resources() {
    let rows = [
        ("nothing asked", json!({}), json!({}), ""),
        ("all of it", json!({"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi"}), json!({}), ""),
        (
            "cpu in thousandths",
            json!({"cpu": "1500m"}),
            json!({"cpu": "600m"}),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
        ),
        (
            "memory in bytes",
            json!({"memory": "3Gi"}),
            json!({"memory": "2Gi"}),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 3221225472, used: 2147483648, capacity: 4294967296",
        ),
        (
            "cpu is looked at before memory",
            json!({"cpu": "3", "memory": "8Gi"}),
            json!({}),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
        ),
        (
            "disk",
            json!({"ephemeral-storage": "11Gi"}),
            json!({}),
            "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
        ),
        (
            "huge pages",
            json!({"hugepages-2Mi": "64Mi"}),
            json!({"hugepages-2Mi": "2Mi"}),
            "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 67108864, used: 2097152, capacity: 67108864",
        ),
        (
            "huge pages of a size that the node does not have",
            json!({"hugepages-1Gi": "1Gi"}),
            json!({}),
            "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0",
        ),
        (
            "an extended resource",
            json!({"example.com/gpu": "1"}),
            json!({"example.com/gpu": "1"}),
            "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 1, used: 1, capacity: 1",
        ),
        ("an extended resource nobody offers", json!({"example.com/fpga": "9"}), json!({}), ""),
        ("others over the top do not matter to who asks nothing", json!({}), json!({"cpu": "9"}), ""),
    ];
    for (what, wanted, used, expected) in rows {
        assert_eq!(judge(&asking(wanted), &node(), &[asking(used)]), expected, "{what}");
    }
}

#[test]
fn init_containers_sidecars_overhead_and_pod_level_requests_count() {
    let container =
        |cpu: &str| json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } });
    let sidecar = |cpu: &str| {
        let mut sidecar = container(cpu);
        sidecar["restartPolicy"] = "Always".into();
        sidecar
    };
    let out = |requested: i64| {
        format!(
            "OutOfcpu: Node didn't have enough resource: cpu, requested: {requested}, used: 0, capacity: 2000"
        )
    };
    let rows = [
        (
            "the larger of init and sum",
            json!({"initContainers": [container("2")], "containers": [container("1"), container("1")]}),
            String::new(),
        ),
        (
            "a sidecar beside an init container",
            json!({"initContainers": [sidecar("500m"), container("1600m")], "containers": [container("1")]}),
            out(2100),
        ),
        (
            "sidecars run on",
            json!({"initContainers": [sidecar("1500m")], "containers": [container("1")]}),
            out(2500),
        ),
        ("overhead", json!({"overhead": {"cpu": "250m"}, "containers": [container("2")]}), out(2250)),
        (
            "pod level",
            json!({"resources": {"requests": {"cpu": "2001m"}}, "containers": [container("1")]}),
            out(2001),
        ),
    ];
    for (what, spec, expected) in rows {
        assert_eq!(judge(&pod(spec), &node(), &[]), expected, "{what}");
    }
}

#[test]
fn no_more_pods_than_the_node_takes() {
    let three = vec![pod(json!({})); 3];
    assert_eq!(judge(&pod(json!({})), &node(), &three[..2]), "");
    assert_eq!(
        judge(&asking(json!({"cpu": "9"})), &node(), &three),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
}

#[test]
fn selectors_and_affinity() {
    const NO: &str =
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    check("selector", json!({"nodeSelector": {"disk": "ssd", "kubernetes.io/os": "linux"}}), "");
    check("another value", json!({"nodeSelector": {"disk": "hdd"}}), NO);
    check("no such label", json!({"nodeSelector": {"zone": "a"}}), NO);
    let required = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let rows = [
        ("In", expression("disk", "In", json!(["hdd", "ssd"])), true),
        ("In, another", expression("disk", "In", json!(["hdd"])), false),
        ("NotIn", expression("disk", "NotIn", json!(["hdd"])), true),
        ("NotIn without the label", expression("zone", "NotIn", json!(["a"])), true),
        ("NotIn, but it is", expression("disk", "NotIn", json!(["ssd"])), false),
        ("Exists", expression("disk", "Exists", json!(null)), true),
        ("Exists not", expression("zone", "Exists", json!(null)), false),
        ("DoesNotExist", expression("zone", "DoesNotExist", json!(null)), true),
        ("DoesNotExist, but it does", expression("disk", "DoesNotExist", json!(null)), false),
        ("Gt", expression("slots", "Gt", json!(["3"])), true),
        ("Gt equal", expression("slots", "Gt", json!(["4"])), false),
        ("Lt", expression("slots", "Lt", json!(["10"])), true),
        ("Lt of no number", expression("disk", "Lt", json!(["10"])), false),
        ("unknown operator", expression("disk", "Near", json!(["ssd"])), false),
        ("empty term", json!({}), false),
        (
            "field",
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}),
            true,
        ),
        (
            "another node",
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}),
            false,
        ),
        (
            "all expressions of a term",
            json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}, {"key": "zone", "operator": "Exists"}]}),
            false,
        ),
    ];
    for (what, term, fits) in rows {
        check(what, required(json!([term])), if fits { "" } else { NO });
        check(what, required(json!([{}, term])), if fits { "" } else { NO });
    }
    check("no terms", required(json!([])), NO);
    let preferred = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    ]}}});
    check("preferences are no requirements", preferred, "");
}

#[test]
fn another_node_or_system() {
    check("our name", json!({"nodeName": "node-a"}), "");
    check(
        "another name",
        json!({"nodeName": "node-b"}),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
    );
    check(
        "our system",
        json!({"os": {"name": "linux"}, "metadata": {"labels": {"kubernetes.io/os": "linux"}}}),
        "",
    );
    check(
        "another system",
        json!({"os": {"name": "windows"}}),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
    );
    check(
        "the pod's label",
        json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}}),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    );
}

#[test]
fn ports_of_the_host() {
    const NO: &str =
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let port = |ip: &str, protocol: &str, port: i32| json!([{"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}]);
    let rows = [
        ("same", port("", "TCP", 80), port("", "TCP", 80), NO),
        ("another port", port("", "TCP", 80), port("", "TCP", 81), ""),
        ("another protocol", port("", "TCP", 80), port("", "UDP", 80), ""),
        ("another address", port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), ""),
        ("same address", port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), NO),
        ("all addresses and one", port("", "TCP", 80), port("10.0.0.2", "TCP", 80), NO),
        ("one and all addresses", port("10.0.0.2", "TCP", 80), port("0.0.0.0", "TCP", 80), NO),
        ("none of the host's", json!([{"containerPort": 80}]), json!([{"containerPort": 80}]), ""),
        ("TCP is the default", json!([{"containerPort": 1, "hostPort": 80}]), port("", "TCP", 80), NO),
    ];
    for (what, wanted, taken, expected) in rows {
        assert_eq!(judge(&with_ports(wanted), &node(), &[with_ports(taken)]), expected, "{what}");
    }
    let ports = json!([{"containerPort": 80, "hostPort": 80}]);
    let init = pod(json!({"initContainers": [{"name": "i", "image": "i", "ports": ports}]}));
    let sidecar = pod(
        json!({"initContainers": [{"name": "i", "image": "i", "ports": ports, "restartPolicy": "Always"}]}),
    );
    assert_eq!(judge(&with_ports(ports.clone()), &node(), &[init]), "", "an init container ends");
    assert_eq!(judge(&with_ports(ports), &node(), &[sidecar]), NO, "a sidecar does not");
}

#[test]
fn taints_keep_out_pods_of_the_api() {
    let taint = |effect: &str| Taint {
        key: "k".into(),
        value: Some("v".into()),
        effect: effect.into(),
        time_added: None,
    };
    let verdict = |effect: &str, tolerations: Value, is_static: bool| {
        let node = NodeFacts { taints: vec![taint(effect)], ..node() };
        let pod = pod(json!({ "tolerations": tolerations }));
        let wants = PodUse::of(&pod);
        let candidate = Candidate { pod: &pod, wants: &wants, is_static, strict_groups: false };
        admit(&candidate, &node, [])
            .err()
            .map(|rejection| format!("{}: {}", rejection.reason, rejection.message))
    };
    let no = Some(
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
            .to_owned(),
    );
    assert_eq!(verdict("NoExecute", json!([]), false), no);
    assert_eq!(verdict("NoExecute", json!([]), true), None, "static pods stay");
    assert_eq!(verdict("NoSchedule", json!([]), false), None, "the scheduler's business");
    for (toleration, fits) in [
        (json!({"key": "k", "operator": "Equal", "value": "v"}), true),
        (json!({"key": "k", "value": "w"}), false),
        (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true),
        (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
        (json!({"operator": "Exists"}), true),
        (json!({"key": "j", "operator": "Exists"}), false),
    ] {
        assert_eq!(verdict("NoExecute", json!([toleration]), false).is_none(), fits, "{toleration}");
    }
}

#[test]
fn sysctls() {
    let with = |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
    let forbidden = |text: &str| format!("SysctlForbidden: forbidden sysctl: {text}");
    for name in [
        "kernel.shm_rmid_forced",
        "net.ipv4.tcp_syncookies",
        "net/ipv4/tcp_rmem",
        "net.core.somaxconn",
        "kernel.msgmax",
        "kernel.msg",
    ] {
        check(name, with(name), "");
    }
    check("unsafe", with("net.core.rmem_max"), &forbidden("\"net.core.rmem_max\" not allowlisted"));
    check("the machine's", with("vm.swappiness"), &forbidden("\"vm.swappiness\" not allowlisted"));
    check("with slashes", with("vm/swappiness"), &forbidden("\"vm.swappiness\" not allowlisted"));
    let mut host = with("net.ipv4.tcp_syncookies");
    host["hostNetwork"] = true.into();
    check(
        "the host's network",
        host,
        &forbidden("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
    );
    let mut host = with("kernel.msgmni");
    host["hostIPC"] = true.into();
    check("the host's IPC", host, &forbidden("\"kernel.msgmni\" not allowed with host IPC enabled"));
}

#[test]
fn which_sysctls_can_be_allowed() {
    let of = |pattern: &str| Sysctls::new("6.1", &[pattern.to_owned()]).map(drop);
    for fine in [
        "net.*",
        "net.ipv4.conf.*",
        "kernel.shm*",
        "fs.mqueue.msg_max",
        "user.max_user_namespaces",
        "net/ipv4/conf/eth0.1/x",
    ] {
        assert_eq!(of(fine), Ok(()), "{fine}");
    }
    for global in ["vm.swappiness", "kernel.*", "kernel.pid_max", "fs.*"] {
        assert!(matches!(of(global), Err(SysctlPatternError::NotNamespaced(_))), "{global}");
    }
    for bad in ["", "*", "net.*.x", "Net.x", "net x"] {
        assert!(matches!(of(bad), Err(SysctlPatternError::Form(_))), "{bad}");
    }
    let old = NodeFacts { sysctls: Sysctls::new("4.4.0-21-generic", &[]).unwrap(), ..node() };
    let pod =
        pod(json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "1"}]}}));
    assert_eq!(
        judge(&pod, &old, &[]),
        "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_keepalive_time\" not allowlisted",
        "shared by all namespaces of that kernel"
    );
    assert_eq!(judge(&pod, &node(), &[]), "");
}

#[test]
fn what_the_node_cannot_enforce() {
    const NO: &str = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let profile = |kind: &str| json!({"securityContext": {"appArmorProfile": {"type": kind}}});
    check("unconfined", profile("Unconfined"), "");
    check("the runtime's profile", profile("RuntimeDefault"), NO);
    check(
        "of a container",
        json!({"containers": [{"name": "c", "image": "i", "securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}}]}),
        NO,
    );
    check(
        "by annotation",
        json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}}}),
        NO,
    );
    check(
        "unconfined by annotation",
        json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}}),
        "",
    );
    let able = NodeFacts { app_armor: true, ..node() };
    assert_eq!(judge(&pod(profile("RuntimeDefault")), &able, &[]), "");
    assert_eq!(
        judge(&pod(profile("Localhost")), &able, &[]),
        "AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: \"\""
    );

    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    check(
        "strict groups",
        strict.clone(),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node",
    );
    check("merged groups", json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}}), "");
    let pod = pod(strict);
    let wants = PodUse::of(&pod);
    let candidate = Candidate { pod: &pod, wants: &wants, is_static: true, strict_groups: true };
    assert_eq!(admit(&candidate, &node(), []), Ok(()));

    let level = self::pod(json!({"resources": {"requests": {"cpu": "1"}}}));
    let off = NodeFacts { pod_level_resources: false, ..node() };
    assert_eq!(judge(&level, &node(), &[]), "");
    assert_eq!(
        judge(&level, &off, &[]),
        "PodLevelResourcesNotSupported: PodLevelResources feature gate is disabled"
    );
}

#[test]
fn a_node_without_disk_accounting_lets_everybody_write() {
    let node = node();
    let mut resources = NodeResources::clone(&node.resources);
    resources.allocatable.remove("ephemeral-storage");
    let node = NodeFacts { resources: Arc::new(resources), ..node };
    assert_eq!(judge(&asking(json!({"ephemeral-storage": "1Ti"})), &node, &[]), "");
}

#[test]
fn what_a_pod_takes() {
    let taken = PodUse::of(&asking(json!({"cpu": "1m", "memory": "1k", "hugepages-2Mi": "2Mi"})));
    let expected = PodUse {
        milli_cpu: 1,
        memory: 1000,
        scalars: vec![("hugepages-2Mi".into(), 2 << 20)],
        ..PodUse::default()
    };
    assert_eq!(taken, expected);
}

#[test]
fn a_node_that_runs_short_takes_only_whom_it_must() {
    let short = |memory, disk, pid| mainstay_types::NodePressure {
        memory: Some(memory),
        disk: Some(disk),
        pid: Some(pid),
    };
    let verdict = |pressure, spec: Value, is_static| {
        let node = NodeFacts { pressure, ..node() };
        let pod = pod(spec);
        let wants = PodUse::of(&pod);
        let candidate = Candidate { pod: &pod, wants: &wants, is_static, strict_groups: false };
        let verdict = admit(&candidate, &node, []).err();
        verdict.map(|rejection| format!("{}: {}", rejection.reason, rejection.message)).unwrap_or_default()
    };
    let burstable =
        json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"memory": "1Mi"}}}]});
    let bears = json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]});
    let memory = "Evicted: The node had condition: [MemoryPressure]. ";
    let disk = "Evicted: The node had condition: [DiskPressure]. ";
    for (name, pressure, spec, is_static, expected) in [
        ("nothing is short", short(false, false, false), json!({}), false, ""),
        ("nothing is known", mainstay_types::NodePressure::default(), json!({}), false, ""),
        ("memory, best effort", short(true, false, false), json!({}), false, memory),
        ("memory, burstable", short(true, false, false), burstable.clone(), false, ""),
        ("memory, tolerated", short(true, false, false), bears, false, ""),
        ("disk", short(false, true, false), burstable.clone(), false, disk),
        (
            "memory and disk",
            short(true, true, false),
            burstable,
            false,
            "Evicted: The node had condition: [MemoryPressure DiskPressure]. ",
        ),
        (
            "pids",
            short(false, false, true),
            json!({}),
            false,
            "Evicted: The node had condition: [PIDPressure]. ",
        ),
        ("a static pod", short(true, true, true), json!({}), true, ""),
        ("a critical pod", short(true, true, true), json!({"priority": 2_000_000_000}), false, ""),
    ] {
        assert_eq!(verdict(pressure, spec, is_static), expected, "{name}");
    }
}

/// Whom a critical pod makes go on a node of 1000m and 1000 MB. Occupants: name, CPU, memory, whether also as limits
/// (`g`), priority (`p`), host port (`h`), static (`s`).
fn preempted(wanted: &str, occupants: &[&str]) -> Option<Vec<String>> {
    let parse = |text: &str| {
        let words: Vec<&str> = text.split(' ').collect();
        let flag =
            |letter: char| words[3..].iter().find_map(|word| word.strip_prefix(letter)).map(str::to_owned);
        let mut resources = json!({});
        if (words[1], words[2]) != ("0", "0") {
            resources["requests"] =
                json!({ "cpu": format!("{}m", words[1]), "memory": format!("{}M", words[2]) });
        }
        if flag('g').is_some() {
            resources["limits"] = resources["requests"].clone();
        }
        let mut container = json!({"name": "c", "image": "i", "resources": resources});
        if let Some(port) = flag('h') {
            container["ports"] = json!([{"containerPort": 1, "hostPort": port.parse::<i32>().unwrap()}]);
        }
        let priority = flag('p').map_or(0, |it| it.parse::<i32>().unwrap());
        let pod = pod(json!({ "priority": priority, "containers": [container] }));
        (words[0].to_owned(), pod, flag('s').is_some())
    };
    let mut node = node();
    let allocatable = &mut Arc::make_mut(&mut node.resources).allocatable;
    for (name, amount) in [("pods", "5"), ("cpu", "1"), ("memory", "1G")] {
        allocatable.insert(name.into(), Quantity::parse(amount).unwrap());
    }
    let (_, candidate, is_static) = parse(wanted);
    let wants = PodUse::of(&candidate);
    let candidate = Candidate { pod: &candidate, wants: &wants, is_static, strict_groups: false };
    let others: Vec<_> = occupants.iter().map(|text| parse(text)).collect();
    let uses: Vec<_> = others.iter().map(|(_, pod, _)| PodUse::of(pod)).collect();
    let occupants: Vec<_> = others
        .iter()
        .zip(&uses)
        .map(|((id, pod, is_static), takes)| Occupant { id: id.as_str(), pod, takes, is_static: *is_static })
        .collect();
    let victims = preempt(&candidate, &node, &occupants)?;
    Some(victims.into_iter().map(str::to_owned).collect())
}

#[test]
fn a_critical_pod_is_made_room_for_by_upstreams_rule() {
    let nobody = Some(Vec::new());
    let only = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for (why, wanted, occupants, expected) in [
        ("there is room", "x 100 1 p2000000000", &["a 500 1"][..], nobody.clone()),
        ("it is not critical", "x 900 1 p1000", &["a 500 1"], None),
        ("it is static", "x 900 1 s", &["a 500 1"], only(&["a"])),
        ("nobody can make that much room", "x 1100 1 p2000000000", &["a 500 1"], None),
        ("a peer stays", "x 900 1 p2000000000", &["a 500 1 p2000000000"], None),
        ("a lower priority, though critical", "x 900 1 p2000001000", &["a 500 1 p2000000000"], only(&["a"])),
        ("a lower priority, though static", "x 900 1 p2000001000", &["a 500 1 p5 s"], only(&["a"])),
        (
            "who has enough rather than two",
            "x 400 1 p2000000000",
            &["a 200 1", "b 200 1", "c 500 1"],
            only(&["c"]),
        ),
        (
            "of those who have enough, who asks for less",
            "x 400 1 p2000000000",
            &["a 500 1", "b 400 1"],
            only(&["b"]),
        ),
        (
            "the class counts, not the priority",
            "x 400 1 p2000000000",
            &["a 400 1 g p1", "b 400 1 p9"],
            only(&["b"]),
        ),
        (
            "guaranteed ones too when they must",
            "x 900 1 p2000000000",
            &["a 400 1 g", "b 400 1"],
            only(&["b", "a"]),
        ),
        (
            "a place among the pods is anybody's",
            "x 1 1 p2000000000",
            &["a 100 1", "b 100 1 g", "c 0 0", "d 100 1", "e 100 1"],
            only(&["c"]),
        ),
        (
            "each resource counts as much",
            "x 300 300 p2000000000",
            &["a 300 10", "b 200 700", "c 500 290"],
            only(&["c", "a"]),
        ),
        (
            "until nothing is missing",
            "x 800 800 p2000000000",
            &["a 300 10", "b 200 700", "c 500 290"],
            only(&["c", "b", "a"]),
        ),
        ("a port is nobody's to give", "x 400 1 h80 p2000000000", &["a 900 1", "b 1 1 h80"], None),
        ("nor is it worth a pod", "x 1 1 h80 p2000000000", &["a 900 1 h80"], None),
    ] {
        assert_eq!(preempted(wanted, occupants), expected, "{why}");
    }
}
