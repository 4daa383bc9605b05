use super::super::fixtures::{pod, resource_list};
use super::super::{CFS_PERIOD_MICROS, MemoryQos};
use super::*;

const GIB: i64 = 1 << 30;

fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(file, value)| ((*file).to_owned(), (*value).to_owned())).collect()
}

fn v1() -> NodeSettings {
    NodeSettings { cgroup_v2: false, ..NodeSettings::default() }
}

fn pod_values(cpu_shares: i64, cpu_quota: Limit, memory: Limit) -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(cpu_shares),
        cpu_quota,
        cpu_period: CFS_PERIOD_MICROS,
        memory,
        huge_pages: HugePages::Only(BTreeMap::new()),
        ..CgroupValues::default()
    }
}

#[test]
fn pods_of_every_class() {
    use Limit::{At, Unlimited};
    let both = "resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 1, memory: 2Gi}}";
    let init = format!("initContainers: [{{name: i, {both}}}]");
    for (name, spec, expected) in [
        (
            "overhead counts",
            format!("{{overhead: {{cpu: 500m}}, containers: [{{name: c, {both}}}]}}"),
            pod_values(1024, At(150_000), At(2 * GIB)),
        ),
        (
            "one container without limits leaves the pod without",
            format!("{{containers: [{{name: c, {both}}}, {{name: d}}]}}"),
            pod_values(512, Unlimited, Unlimited),
        ),
        (
            "so does an init container",
            format!("{{initContainers: [{{name: i}}], containers: [{{name: c, {both}}}]}}"),
            pod_values(512, Unlimited, Unlimited),
        ),
        (
            "init containers run before, not beside",
            format!("{{{init}, containers: [{{name: c, {both}}}]}}"),
            pod_values(512, At(100_000), At(2 * GIB)),
        ),
        (
            "the pod's own limit",
            format!(
                "{{resources: {{limits: {{memory: 4Gi}}}}, containers: [{{name: c, {both}}}, {{name: d}}]}}"
            ),
            pod_values(512, Unlimited, At(4 * GIB)),
        ),
        (
            "best effort",
            "{overhead: {cpu: 500m}, containers: [{name: c}]}".to_owned(),
            pod_values(2, Unlimited, Unlimited),
        ),
        (
            "at least a millisecond",
            "{containers: [{name: c, resources: {requests: {cpu: 1m}, limits: {cpu: 1m, memory: 1Gi}}}]}"
                .to_owned(),
            pod_values(2, At(1000), At(GIB)),
        ),
    ] {
        assert_eq!(pod_cgroup_values(&pod(&spec), &v1(), false), expected, "{name}");
    }
}

#[test]
fn guaranteed_pods_huge_pages_and_no_quota() {
    let guaranteed = "{cpu: 1, memory: 1Gi, hugepages-2Mi: 4Mi}";
    let spec =
        format!("{{containers: [{{name: c, resources: {{requests: {guaranteed}, limits: {guaranteed}}}}}]}}");
    let expected = CgroupValues {
        huge_pages: HugePages::Only([(2 << 20, 4 << 20)].into()),
        ..pod_values(1024, Limit::At(100_000), Limit::At(GIB))
    };
    assert_eq!(pod_cgroup_values(&pod(&spec), &v1(), false), expected);
    let no_quota = NodeSettings { cfs_period_micros: None, ..v1() };
    let expected = CgroupValues { cpu_quota: Limit::Unlimited, ..expected };
    assert_eq!(pod_cgroup_values(&pod(&spec), &no_quota, false), expected);
    // C24, C25: with CPUs of its own it has none either, whatever else is in the pod.
    let quota = |exclusive| pod_cgroup_values(&pod(&spec), &v1(), exclusive).cpu_quota;
    assert!(matches!(quota(false), Limit::At(_)));
    assert_eq!(quota(true), Limit::Unlimited);
}

#[test]
fn pods_with_memory_qos() {
    let memory_qos =
        Some(MemoryQos { tiered_reservation: true, throttling_factor: Some(0.5), page_size: 4096 });
    let node = NodeSettings { memory_qos, ..NodeSettings::default() };
    let plain = NodeSettings { memory_qos: None, ..NodeSettings::default() };
    let one_to_two = "{requests: {memory: 1Gi}, limits: {memory: 2Gi}}";
    let burstable = format!("{{containers: [{{name: c, resources: {one_to_two}}}]}}");
    let pod_level = format!("{{resources: {one_to_two}, containers: [{{name: c}}]}}");
    let all = "{requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}";
    let guaranteed = format!("{{resources: {all}, containers: [{{name: c}}]}}");
    for (name, spec, node, [min, low, high]) in [
        ("burstable", &burstable, &node, ["0", "1073741824", "max"]),
        ("pod level", &pod_level, &node, ["0", "1073741824", "1610612736"]),
        ("guaranteed", &guaranteed, &node, ["1073741824", "0", "max"]),
        ("by default nothing is kept", &guaranteed, &NodeSettings::default(), ["0", "0", "max"]),
        ("gate off", &burstable, &plain, ["0", "0", "max"]),
    ] {
        let expected = files(&[("memory.min", min), ("memory.low", low), ("memory.high", high)]);
        assert_eq!(pod_cgroup_values(&pod(spec), node, false).unified, expected, "{name}");
    }
    assert_eq!(pod_cgroup_values(&pod(&guaranteed), &v1(), false).unified, BTreeMap::new());
}

fn settings(enforce_pods: bool) -> NodeCgroupSettings {
    let resources = NodeResources {
        capacity: resource_list(&[
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("hugepages-2Mi", "64Mi"),
            ("pods", "110"),
        ]),
        system_reserved: resource_list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]),
        kube_reserved: resource_list(&[("cpu", "500m"), ("memory", "1Gi")]),
        eviction_reserved: resource_list(&[("memory", "100Mi")]),
        max_pids: 32_768,
        ..NodeResources::default()
    };
    NodeCgroupSettings { resources, enforce_pods, reserved_memory_percent: None }
}

fn some_pods() -> Vec<Pod> {
    [
        "{containers: [{name: c, resources: {requests: {cpu: 100m, memory: 1Gi}}}]}",
        "{overhead: {cpu: 50m}, containers: [{name: c, resources: {requests: {cpu: 250m}}}]}",
        "{containers: [{name: c, resources: {requests: {cpu: 1, memory: 2Gi}, limits: {cpu: 1, memory: 2Gi}}}]}",
        "{containers: [{name: c}]}",
    ]
    .into_iter()
    .map(pod)
    .collect()
}

#[test]
fn the_cgroups_that_pods_share() {
    let pods = some_pods();
    let values = node_cgroup_values(&pods, &settings(true), &v1());
    let top = CgroupValues {
        cpu_shares: Some(3072),
        memory: Limit::At(6 * GIB),
        pids: Limit::At(31_768),
        huge_pages: HugePages::Only([(2 << 20, 64 << 20)].into()),
        ..CgroupValues::default()
    };
    assert_eq!(values.top, top, "the eviction threshold is not taken off");
    assert_eq!(values.burstable.cpu_shares, Some(409), "400m of the two burstable pods");
    assert_eq!(
        (values.burstable.memory, &values.burstable.huge_pages),
        (Limit::Unlimited, &HugePages::Unlimited)
    );
    assert_eq!(values.best_effort.cpu_shares, Some(2));
    assert_eq!(values.burstable.unified, BTreeMap::new(), "v1 has no such files");

    let free = node_cgroup_values(&pods, &settings(false), &v1()).top;
    assert_eq!(
        (free.cpu_shares, free.memory, free.pids),
        (Some(4096), Limit::At(8 * GIB), Limit::At(32_768))
    );
    let none = node_cgroup_values([], &settings(true), &v1());
    assert_eq!(none.burstable.cpu_shares, Some(2));
}

#[test]
fn memory_kept_for_better_classes() {
    let settings = NodeCgroupSettings { reserved_memory_percent: Some(50), ..settings(true) };
    let values = node_cgroup_values(&some_pods(), &settings, &v1());
    assert_eq!(values.burstable.memory, Limit::At(5 * GIB), "half of the guaranteed 2Gi is kept");
    assert_eq!(values.best_effort.memory, Limit::At(5 * GIB - GIB / 2));
}

#[test]
fn tiers_of_memory_protection() {
    let memory_qos = Some(MemoryQos { tiered_reservation: true, ..MemoryQos::default() });
    let node = NodeSettings { memory_qos, ..NodeSettings::default() };
    let values = node_cgroup_values(&some_pods(), &settings(true), &node);
    assert_eq!(values.top.unified, files(&[("memory.min", "3221225472"), ("memory.low", "1073741824")]));
    assert_eq!(values.burstable.unified, files(&[("memory.low", "1073741824")]));
    let values = node_cgroup_values(&some_pods(), &settings(true), &NodeSettings::default());
    assert_eq!(values.top.unified, files(&[("memory.min", "0"), ("memory.low", "0")]), "reset otherwise");
    assert_eq!(values.burstable.unified, files(&[("memory.low", "0")]));
}

#[test]
fn reserved_cgroups() {
    let reserved = resource_list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")]);
    let full = CgroupValues {
        cpu_shares: Some(512),
        memory: Limit::At(GIB),
        pids: Limit::At(100),
        unified: files(&[("memory.min", "1073741824")]),
        ..CgroupValues::default()
    };
    assert_eq!(reserved_cgroup_values(&reserved, false, &NodeSettings::default()), full);
    let compressible = CgroupValues { cpu_shares: Some(512), ..CgroupValues::default() };
    assert_eq!(reserved_cgroup_values(&reserved, true, &NodeSettings::default()), compressible);
    let without_cpu = reserved_cgroup_values(&resource_list(&[("memory", "1Gi")]), false, &v1());
    assert_eq!(without_cpu, CgroupValues { memory: Limit::At(GIB), ..CgroupValues::default() });
}
