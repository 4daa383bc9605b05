use super::*;

#[test]
fn in_the_order_of_their_names() {
    let text =
        "# HELP b x\n# TYPE b gauge\nb 1\n# HELP a x\n# TYPE a gauge\na{l=\"# HELP \"} 1\n# HELP c x\nc 1\n";
    let expected =
        "# HELP a x\n# TYPE a gauge\na{l=\"# HELP \"} 1\n# HELP b x\n# TYPE b gauge\nb 1\n# HELP c x\nc 1\n";
    assert_eq!(in_order(text), expected);
    assert_eq!(in_order(""), "");
    assert!(FAMILIES.iter().map(|family| family.name).is_sorted());
}

#[test]
fn what_was_never_counted_is_not_told_of() {
    let counters = NodeCounters::default();
    let (samples, disks) = (Samples::default(), Filesystems::default());
    let gates = [("NodeSwap", "", true), ("Other", "ALPHA", false)].into();
    let facts = Facts { cgroup_version: 2, gates };
    let source = Source {
        snapshot: None,
        samples: &samples,
        disks: &disks,
        counters: &counters,
        facts: &facts,
        events_dropped: 0,
        traces: None,
        assignments: &Assignments::default(),
        own: Own::default(),
    };
    let text = |source: &Source<'_>| {
        let mut out = Exposition::default();
        write(&mut out, source);
        out.finish()
    };
    let before = text(&source);
    for name in [
        "kubelet_image_pull",
        "kubelet_pod_status_sync",
        "kubelet_started_containers",
        "kubelet_running",
        "kubelet_pleg_last_seen",
        "kubelet_cgroup_manager",
        "rest_client",
        "storage_operation",
    ] {
        assert!(!before.contains(name), "{name} in\n{before}");
    }
    for line in [
        "kubelet_cgroup_version 2",
        "kubernetes_feature_enabled{name=\"Other\",stage=\"ALPHA\"} 0",
        // What begins with its first count would have no rate.
        "kubelet_pod_start_duration_seconds_count 0",
    ] {
        assert!(before.lines().any(|it| it == line), "{line} in\n{before}");
    }
    for family in
        ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"]
    {
        assert!(before.lines().any(|line| line.starts_with(&format!("{family} "))), "{family} in\n{before}");
    }
    counters.pulls.of(["0-10MB"]).observe(std::time::Duration::from_secs(3));
    counters.containers.of(["container"]).add();
    counters.container_errors.of(["RunContainerError", "container"]).add();
    counters.orders.of(["sync"]).observe(std::time::Duration::from_millis(7));
    let after = text(&source);
    for line in [
        "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"0-10MB\",le=\"5\"} 1",
        "kubelet_started_containers_total{container_type=\"container\"} 1",
        "kubelet_started_containers_errors_total{code=\"RunContainerError\",container_type=\"container\"} 1",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"} 1",
    ] {
        assert!(after.lines().any(|it| it == line), "{line} in\n{after}");
    }
}
