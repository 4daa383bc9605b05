use super::super::fixtures::{pod, pod_of, resource_list};
use super::*;

#[test]
fn qos() {
    let with = |requests: &str, limits: &str| format!("{{requests: {{{requests}}}, limits: {{{limits}}}}}");
    let guaranteed = with("cpu: 1, memory: 1Gi", "cpu: 1, memory: 1Gi");
    let none = "{}".to_owned();
    // Each row: init containers, regular containers, expected.
    for (name, init, regular, expected) in [
        ("nothing", vec![], vec![&none], "BestEffort"),
        ("all equal", vec![], vec![&guaranteed, &guaranteed], "Guaranteed"),
        (
            "equal in other units",
            vec![],
            vec![&with("cpu: 1000m, memory: 1024Mi", "cpu: 1, memory: 1Gi")],
            "Guaranteed",
        ),
        ("one without", vec![], vec![&guaranteed, &none], "Burstable"),
        ("init without", vec![&none], vec![&guaranteed], "Burstable"),
        ("init alone", vec![&with("cpu: 1", "")], vec![&none], "Burstable"),
        ("cpu only", vec![], vec![&with("cpu: 1", "cpu: 1")], "Burstable"),
        (
            "request below limit",
            vec![],
            vec![&with("cpu: 1, memory: 1Mi", "cpu: 2, memory: 1Mi")],
            "Burstable",
        ),
        ("zeros", vec![], vec![&with("cpu: 0", "memory: 0")], "BestEffort"),
        ("storage only", vec![], vec![&with("ephemeral-storage: 1Gi", "")], "BestEffort"),
        ("limits only", vec![], vec![&with("", "cpu: 1, memory: 1Gi")], "Burstable"),
    ] {
        let list = |prefix: &str, all: Vec<&String>| {
            let all: Vec<String> = all
                .iter()
                .enumerate()
                .map(|(i, r)| format!("{{name: {prefix}{i}, resources: {r}}}"))
                .collect();
            all.join(", ")
        };
        let spec = format!("{{initContainers: [{}], containers: [{}]}}", list("i", init), list("c", regular));
        assert_eq!(qos_class(&pod(&spec)).as_str(), expected, "{name}");
    }
}

#[test]
fn pod_level_resources_and_status_decide_first() {
    let spec = "{resources: {requests: {cpu: 1, memory: 1Mi}, limits: {cpu: 1, memory: 1Mi}}, containers: [{name: c}]}";
    assert_eq!(qos_class(&pod(spec)), QosClass::Guaranteed);
    // Nothing that is supported at pod level: the containers decide.
    let spec = "{resources: {requests: {ephemeral-storage: 1}}, containers: [{name: c, resources: {requests: {cpu: 1}}}]}";
    assert_eq!(qos_class(&pod(spec)), QosClass::Burstable);
    let mut pod = pod_of("");
    pod.status = Some(serde_json::from_str(r#"{"qosClass":"Guaranteed"}"#).unwrap());
    assert_eq!(qos_class(&pod), QosClass::Guaranteed);
}

#[test]
fn sums() {
    let container = |cpu: &str| format!("resources: {{requests: {{cpu: {cpu}}}, limits: {{cpu: {cpu}}}}}");
    let init = |name: &str, cpu: &str| format!("{{name: {name}, {}}}", container(cpu));
    let sidecar =
        |name: &str, cpu: &str| format!("{{name: {name}, restartPolicy: Always, {}}}", container(cpu));
    // Rows as in KEP-753.
    for (name, inits, regular, expected) in [
        ("regular only", vec![], vec!["1", "2"], "3"),
        ("large init", vec![init("i", "5")], vec!["1", "2"], "5"),
        ("small init", vec![init("i", "2")], vec!["1", "2"], "3"),
        ("sidecar adds", vec![sidecar("s", "2")], vec!["1"], "3"),
        ("init after sidecar", vec![sidecar("s", "1"), init("i", "5")], vec!["1"], "6"),
        ("init before sidecar", vec![init("i", "5"), sidecar("s", "1")], vec!["1"], "5"),
        ("sidecars pile up", vec![sidecar("s", "2"), sidecar("t", "3"), init("i", "1")], vec!["1"], "6"),
    ] {
        let regular: Vec<String> = regular
            .iter()
            .enumerate()
            .map(|(i, cpu)| format!("{{name: c{i}, {}}}", container(cpu)))
            .collect();
        let spec = format!(
            "{{initContainers: [{}], containers: [{}], overhead: {{cpu: 250m, memory: 10Mi}}}}",
            inits.join(", "),
            regular.join(", ")
        );
        let pod = pod(&spec);
        let expected = resource_list(&[("cpu", expected)]);
        assert_eq!(pod_requests(&pod, Overhead::Excluded), expected, "{name}");
        assert_eq!(pod_limits(&pod, Overhead::Excluded), expected, "{name}");
    }
}

#[test]
fn overhead_and_pod_level() {
    let pod = pod(
        "{overhead: {cpu: 250m, memory: 10Mi}, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi, ephemeral-storage: 1}},
          containers: [{name: c, resources: {requests: {cpu: 1, memory: 5Mi}, limits: {cpu: 2}}}]}",
    );
    assert_eq!(pod_requests(&pod, Overhead::Excluded), resource_list(&[("cpu", "1"), ("memory", "1Gi")]));
    assert_eq!(
        pod_requests(&pod, Overhead::Included),
        resource_list(&[("cpu", "1250m"), ("memory", "1034Mi")])
    );
    assert_eq!(pod_limits(&pod, Overhead::Excluded), resource_list(&[("cpu", "2"), ("memory", "2Gi")]));
    assert_eq!(
        pod_limits(&pod, Overhead::Included),
        resource_list(&[("cpu", "2250m"), ("memory", "2058Mi")])
    );
    // Nothing is limited, so overhead limits nothing.
    let free = pod_of("resources: {limits: {memory: 0}}");
    assert_eq!(pod_limits(&free, Overhead::Included), resource_list(&[("memory", "0")]));
}

#[test]
fn kernel_units() {
    for (milli, shares) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 3),
        (10, 10),
        (100, 102),
        (1000, 1024),
        (256_000, 262_144),
        (i64::MAX, 262_144),
    ] {
        assert_eq!(milli_cpu_to_shares(milli), shares, "{milli}m");
    }
    for (milli, period, quota) in [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (10, 100_000, 1000),
        (200, 100_000, 20_000),
        (1500, 100_000, 150_000),
        (200, 5_000, 1000),
        (2000, 5_000, 10_000),
    ] {
        assert_eq!(milli_cpu_to_quota(milli, period), quota, "{milli}m of {period}");
    }
    for (shares, weight) in [(0, 1), (2, 1), (1024, 39), (2048, 79), (262_144, 10_000), (i64::MAX, 10_000)] {
        assert_eq!(shares_to_weight(shares), weight, "{shares}");
    }
}

#[test]
fn critical_pods() {
    let mut pod = pod_of("");
    assert!(!is_critical(&pod));
    for (key, value, critical) in [
        (annotations::CONFIG_SOURCE, "api", false),
        (annotations::CONFIG_SOURCE, "file", true),
        (annotations::CONFIG_MIRROR, "1", true),
    ] {
        pod.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        assert_eq!(is_critical(&pod), critical, "{key} {value}");
        assert!(!is_node_critical(&pod));
    }
    pod.spec.as_mut().unwrap().priority_class_name = Some("system-node-critical".to_owned());
    assert!(is_node_critical(&pod));
    pod.metadata.annotations = None;
    assert!(!is_node_critical(&pod));
    pod.spec.as_mut().unwrap().priority = Some(2_000_001_000);
    assert!(is_node_critical(&pod));
}
