use super::super::fixtures::{pod, pod_of, resource_list};
use super::super::{SwapSettings, resources::is_node_critical};
use super::*;

const GIB: i64 = 1 << 30;

#[track_caller]
fn score(spec: &str, container: &str, capacity: i64) -> i64 {
    let pod = pod(spec);
    let (kind, container) = pod.container(container).unwrap();
    oom_score_adj(&pod, container, kind, capacity)
}

#[test]
fn oom_scores() {
    let one = |resources: &str| format!("{{containers: [{{name: c, resources: {resources}}}]}}");
    for (name, spec, capacity, expected) in [
        ("best effort", one("{}"), 8 * GIB, 1000),
        ("guaranteed", one("{requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}"), 8 * GIB, -997),
        ("burstable, half", one("{requests: {memory: 4Gi}}"), 8 * GIB, 500),
        ("burstable, a tenth", one("{requests: {memory: 1Gi}}"), 10 * GIB, 900),
        ("burstable, nearly nothing", one("{requests: {memory: 1Mi}}"), 8 * GIB, 999),
        ("burstable, cpu alone", one("{requests: {cpu: 1}}"), 8 * GIB, 999),
        ("burstable, everything", one("{requests: {memory: 8Gi}}"), 8 * GIB, 3),
        ("burstable, more than there is", one("{requests: {memory: 80Gi}}"), 8 * GIB, 3),
        ("capacity unknown", one("{requests: {memory: 1Gi}}"), 0, 999),
        // Pod-level request of 4Gi, of which the containers have 1Gi: the rest is split between two.
        (
            "pod level",
            "{resources: {requests: {memory: 4Gi}}, containers: [{name: c, resources: {requests: {memory: 1Gi}}}, {name: d}]}".to_owned(),
            10 * GIB,
            750,
        ),
    ] {
        assert_eq!(score(&spec, "c", capacity), expected, "{name}");
    }
}

/// C24 and C25: a quota for who shares CPUs, none for who has some of his own, nor for the pod around him.
#[test]
fn no_quota_on_cpus_of_ones_own() {
    let list =
        |cpu: &str| format!("{{requests: {{cpu: {cpu}, memory: 1Gi}}, limits: {{cpu: {cpu}, memory: 1Gi}}}}");
    let pod = pod(&format!(
        "{{containers: [{{name: half, resources: {}}}, {{name: one, resources: {}}}]}}",
        list("500m"),
        list("1")
    ));
    let on = |period: i64| NodeSettings { cfs_period_micros: Some(period), ..NodeSettings::default() };
    let quota = |name: &str, exclusive: bool, period: i64| {
        let (kind, container) = pod.container(name).unwrap();
        container_resources(&pod, container, kind, &on(period), exclusive).cpu_quota
    };
    assert_eq!((quota("half", false, 100_000), quota("half", false, 50_000)), (50_000, 25_000));
    assert_eq!((quota("one", true, 100_000), quota("one", false, 100_000)), (-1, 100_000));
    for (exclusive, expected) in [(true, -1), (false, 150_000)] {
        assert_eq!(sandbox_resources(&pod, &on(100_000), exclusive).cpu_quota, expected);
    }
    let whole = |exclusive| crate::runtime::pod_cgroup_values(&pod, &on(100_000), exclusive).cpu_quota;
    assert_eq!(whole(true), crate::runtime::Limit::Unlimited);
    assert_eq!(whole(false), crate::runtime::Limit::At(150_000));
}

#[test]
fn a_sidecar_is_not_killed_before_what_it_serves() {
    let spec = "{initContainers: [{name: s, restartPolicy: Always, resources: {requests: {memory: 1Gi}}}, {name: i}],
                 containers: [{name: c, resources: {requests: {memory: 4Gi}}}, {name: d, resources: {requests: {memory: 2Gi}}}]}";
    assert_eq!(score(spec, "s", 10 * GIB), 800);
    assert_eq!(score(spec, "i", 10 * GIB), 999);
    assert_eq!(score(spec, "c", 10 * GIB), 600);
    let large = spec.replace("1Gi", "5Gi");
    assert_eq!(score(&large, "s", 10 * GIB), 500);
}

#[test]
fn node_critical_pods_go_last() {
    let mut pod =
        pod("{priority: 2000001000, priorityClassName: system-node-critical, containers: [{name: c}]}");
    assert!(is_node_critical(&pod));
    assert_eq!(oom_score_adj(&pod, &Container::default(), ContainerKind::Regular, GIB), -997);
    pod.spec.as_mut().unwrap().priority = Some(1000);
    assert_eq!(oom_score_adj(&pod, &Container::default(), ContainerKind::Regular, GIB), 1000);
}

fn resources_on(node: &NodeSettings, spec: &str) -> LinuxContainerResources {
    let pod = pod(spec);
    let (kind, container) = pod.container("c").unwrap();
    container_resources(&pod, container, kind, node, false)
}

fn unified(resources: &LinuxContainerResources) -> Vec<String> {
    let mut all: Vec<String> =
        resources.unified.iter().map(|(file, value)| format!("{file}={value}")).collect();
    all.sort();
    all
}

#[test]
fn container_values() {
    let node = NodeSettings { memory_capacity: 8 * GIB, ..NodeSettings::default() };
    let cpu = |spec: &str| {
        let resources = resources_on(&node, spec);
        (resources.cpu_shares, resources.cpu_quota, resources.cpu_period, resources.memory_limit_in_bytes)
    };
    for (name, spec, expected) in [
        ("nothing", "{containers: [{name: c}]}", (2, 0, 100_000, 0)),
        (
            "limit is request",
            "{containers: [{name: c, resources: {limits: {cpu: 500m}}}]}",
            (512, 50_000, 100_000, 0),
        ),
        (
            "both",
            "{containers: [{name: c, resources: {requests: {cpu: 250m}, limits: {cpu: 2, memory: 1Gi}}}]}",
            (256, 200_000, 100_000, GIB),
        ),
        (
            "explicit zero",
            "{containers: [{name: c, resources: {requests: {cpu: 0}, limits: {cpu: 1}}}]}",
            (2, 100_000, 100_000, 0),
        ),
        (
            "the pod's limits",
            "{resources: {limits: {cpu: 1, memory: 1Gi}}, containers: [{name: c, resources: {requests: {cpu: 100m}}}]}",
            (102, 100_000, 100_000, GIB),
        ),
        (
            "own limits before the pod's",
            "{resources: {limits: {cpu: 4, memory: 4Gi}}, containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Gi}}}]}",
            (1024, 100_000, 100_000, GIB),
        ),
    ] {
        assert_eq!(cpu(spec), expected, "{name}");
    }
}

#[test]
fn quota_can_be_off_or_useless() {
    let pod = pod_of("resources: {limits: {cpu: 2}}");
    let (kind, container) = pod.container("c").unwrap();
    let off = NodeSettings { cfs_period_micros: None, ..NodeSettings::default() };
    let resources = container_resources(&pod, container, kind, &off, false);
    assert_eq!((resources.cpu_quota, resources.cpu_period, resources.cpu_shares), (0, 0, 2048));
    let resources = container_resources(&pod, container, kind, &NodeSettings::default(), true);
    assert_eq!((resources.cpu_quota, resources.cpu_period), (-1, 100_000));
}

#[test]
fn cgroup_v2_files() {
    let burstable = "{containers: [{name: c, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}]}";
    let guaranteed = "{containers: [{name: c, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}]}";
    let unlimited = "{containers: [{name: c, resources: {requests: {memory: 1Gi}}}]}";
    let pod_level =
        "{resources: {limits: {memory: 2Gi}}, containers: [{name: c, resources: {requests: {memory: 1Gi}}}]}";
    let node = NodeSettings {
        memory_capacity: 8 * GIB,
        allocatable: resource_list(&[("memory", "4Gi")]),
        ..NodeSettings::default()
    };
    let qos = |tiered_reservation, throttling_factor| NodeSettings {
        memory_qos: Some(MemoryQos { tiered_reservation, throttling_factor, page_size: 4096 }),
        ..node.clone()
    };
    let swap = |limited| NodeSettings {
        swap: SwapSettings { controller: true, limited, capacity: 4 * GIB },
        ..node.clone()
    };
    for (name, node, spec, expected) in [
        ("default", node.clone(), burstable, vec!["memory.low=0", "memory.min=0", "memory.oom.group=1"]),
        (
            "single process",
            NodeSettings { single_process_oom_kill: true, ..node.clone() },
            burstable,
            vec!["memory.low=0", "memory.min=0"],
        ),
        (
            "gate off",
            NodeSettings { memory_qos: None, ..node.clone() },
            burstable,
            vec!["memory.high=max", "memory.oom.group=1"],
        ),
        ("v1", NodeSettings { cgroup_v2: false, ..swap(true) }, burstable, vec![]),
        ("tiered", qos(true, None), burstable, vec!["memory.low=1073741824", "memory.oom.group=1"]),
        (
            "tiered, guaranteed",
            qos(true, Some(0.9)),
            guaranteed,
            vec!["memory.min=1073741824", "memory.oom.group=1"],
        ),
        (
            // 1Gi + 0.9 × 1Gi, down to a page.
            "throttled",
            qos(false, Some(0.9)),
            burstable,
            vec!["memory.high=2040107008", "memory.low=0", "memory.min=0", "memory.oom.group=1"],
        ),
        (
            // 1Gi + 0.5 × (4Gi − 1Gi).
            "throttled by allocatable",
            qos(false, Some(0.5)),
            unlimited,
            vec!["memory.high=2684354560", "memory.low=0", "memory.min=0", "memory.oom.group=1"],
        ),
        (
            "throttled by the pod's cgroup",
            qos(false, Some(0.5)),
            pod_level,
            vec!["memory.low=0", "memory.min=0", "memory.oom.group=1"],
        ),
        (
            "no swap",
            swap(false),
            burstable,
            vec!["memory.low=0", "memory.min=0", "memory.oom.group=1", "memory.swap.max=0"],
        ),
        (
            // An eighth of the memory, so an eighth of the swap.
            "limited swap",
            swap(true),
            burstable,
            vec!["memory.low=0", "memory.min=0", "memory.oom.group=1", "memory.swap.max=536870912"],
        ),
        (
            "limited swap is not for guaranteed",
            swap(true),
            guaranteed,
            vec!["memory.low=0", "memory.min=0", "memory.oom.group=1", "memory.swap.max=0"],
        ),
    ] {
        assert_eq!(unified(&resources_on(&node, spec)), expected, "{name}");
    }
}

#[test]
fn swap_on_v1_is_limited_to_the_memory_limit() {
    let node = NodeSettings {
        cgroup_v2: false,
        swap: SwapSettings { controller: true, ..SwapSettings::default() },
        ..NodeSettings::default()
    };
    let spec = "{containers: [{name: c, resources: {limits: {memory: 1Gi}}}]}";
    assert_eq!(resources_on(&node, spec).memory_swap_limit_in_bytes, GIB);
    let node = NodeSettings { swap: SwapSettings::default(), ..node };
    assert_eq!(resources_on(&node, spec).memory_swap_limit_in_bytes, 0);
}

#[test]
fn huge_pages() {
    let sizes = |all: &[&str]| all.iter().map(ToString::to_string).collect();
    let node = NodeSettings { huge_page_sizes: sizes(&["2MB", "1GB", "64KB"]), ..NodeSettings::default() };
    let limits = |spec: &str| {
        let limits = resources_on(&node, spec).hugepage_limits;
        limits.into_iter().map(|limit| format!("{}:{}", limit.page_size, limit.limit)).collect::<Vec<_>>()
    };
    assert_eq!(limits("{containers: [{name: c}]}"), ["2MB:0", "1GB:0", "64KB:0"]);
    let spec = "{resources: {limits: {hugepages-2Mi: 6Mi, hugepages-1Gi: 1Gi}},
                 containers: [{name: c, resources: {limits: {hugepages-2Mi: 4Mi, hugepages-16Mi: 16Mi}}}]}";
    assert_eq!(limits(spec), ["2MB:4194304", "1GB:1073741824", "64KB:0"]);
    for (bytes, unit) in
        [(2 << 20, "2MB"), (1 << 30, "1GB"), (64 << 10, "64KB"), (16 << 30, "16GB"), (1000, "1000B")]
    {
        assert_eq!(huge_page_unit(bytes).as_deref(), Some(unit));
    }
}

#[test]
fn sandbox_and_overhead() {
    let node = NodeSettings::default();
    let pod = pod(
        "{overhead: {cpu: 250m, memory: 1Gi},
          initContainers: [{name: i, resources: {limits: {cpu: 3}, requests: {cpu: 3}}}],
          containers: [{name: c, resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}}, {name: d}]}",
    );
    let sandbox = sandbox_resources(&pod, &node, false);
    assert_eq!(
        (sandbox.cpu_shares, sandbox.cpu_quota, sandbox.memory_limit_in_bytes, sandbox.oom_score_adj),
        (3072, 300_000, GIB, 0)
    );
    assert_eq!(unified(&sandbox), ["memory.oom.group=1"]);
    let overhead = overhead_resources(&pod, &node);
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes), (256, 25_000, GIB));
    assert_eq!(overhead_resources(&pod_of(""), &node), LinuxContainerResources::default());
    // Limits stand in for requests only where there is no request at all.
    let limits = pod_of("resources: {limits: {cpu: 2}}");
    assert_eq!(sandbox_resources(&limits, &node, true).cpu_shares, 2048);
    assert_eq!(sandbox_resources(&limits, &node, true).cpu_quota, -1);
}
