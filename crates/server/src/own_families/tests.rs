use std::collections::BTreeSet;

use mainstay_types::{DesiredPod, DesiredState, ObservedState, PodSource, PodStage, PodView};

use super::*;

#[test]
fn in_the_order_of_their_names() {
    let text =
        "# HELP b x\n# TYPE b gauge\nb 1\n# HELP a x\n# TYPE a gauge\na{l=\"# HELP \"} 1\n# HELP c x\nc 1\n";
    let expected =
        "# HELP a x\n# TYPE a gauge\na{l=\"# HELP \"} 1\n# HELP b x\n# TYPE b gauge\nb 1\n# HELP c x\nc 1\n";
    assert_eq!(in_order(text), expected);
    assert_eq!(in_order(""), "");
    assert!(TABLES.iter().all(|table| table.iter().map(|family| family.name).is_sorted()));
    let names: BTreeSet<_> = families().map(|family| family.name).collect();
    assert_eq!(names.len(), families().count(), "none is in two tables");
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
        "kubelet_first_network",
        "kubelet_image_pull",
        "kubelet_preemptions",
        "kubelet_terminated",
        "kubelet_working_pods",
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
        "kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 0",
        "kubelet_evictions{eviction_signal=\"ephemeralcontainerfs.limit\"} 0",
        "kubelet_evictions{eviction_signal=\"ephemeralpodfs.limit\"} 0",
        "kubelet_restarted_pods_total{static=\"\"} 0",
        "kubelet_restarted_pods_total{static=\"true\"} 0",
        "kubelet_orphaned_runtime_pods_total 0",
    ] {
        assert!(before.lines().any(|it| it == line), "{line} in\n{before}");
    }
    for family in
        ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"]
    {
        assert!(before.lines().any(|line| line.starts_with(&format!("{family} "))), "{family} in\n{before}");
    }
    // Absent, they would leave alerts of certificates without anything to look at; nothing is known of either yet.
    for line in [
        "kubelet_certificate_manager_client_ttl_seconds +Inf",
        "kubelet_certificate_manager_server_ttl_seconds +Inf",
        "kubelet_server_expiration_renew_errors 0",
        "kubelet_certificate_manager_server_rotation_seconds_count 0",
    ] {
        assert!(before.lines().any(|it| it == line), "{line} in\n{before}");
    }
    assert!(!before.contains("client_expiration_renew_errors"), "no API server");
    let now = jiff::Timestamp::now();
    let day = jiff::SignedDuration::from_hours(24);
    let api: Arc<mainstay_types::ApiCalls> = Arc::default();
    api.certificate.in_force(Some((now - day, now - day)), now);
    api.certificate.errors.add();
    counters.api.set(("api".into(), api)).unwrap();
    counters.serving_certificate.in_force(Some((now - day, now)), now);
    counters.serving_certificate.in_force(Some((now, now + day)), now);
    counters.pulls.of(["0-10MB"]).observe(std::time::Duration::from_secs(3));
    counters.containers.of(["container"]).add();
    counters.container_errors.of(["RunContainerError", "container"]).add();
    counters.evictions.of(["emptydirfs.limit"]).add();
    counters.preemptions.of("memory".into()).add();
    for code in [137, 3] {
        counters.container_ends.of(("container", code, "Error".into())).add();
    }
    counters.containers_per_pod.observe_number(3);
    counters.sandbox_times.of("kata".into()).observe(std::time::Duration::from_millis(7));
    counters.orders.of(["sync"]).observe(std::time::Duration::from_millis(7));
    let after = text(&source);
    for line in [
        "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"0-10MB\",le=\"5\"} 1",
        "kubelet_started_containers_total{container_type=\"container\"} 1",
        "kubelet_started_containers_errors_total{code=\"RunContainerError\",container_type=\"container\"} 1",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"} 1",
        "kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 1",
        "kubelet_preemptions{preemption_signal=\"memory\"} 1",
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"137\",reason=\"Error\"} 1",
        "kubelet_containers_per_pod_count_bucket{le=\"2\"} 0",
        "kubelet_containers_per_pod_count_bucket{le=\"4\"} 1",
        "kubelet_containers_per_pod_count_sum 3",
        "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"kata\"} 1",
    ] {
        assert!(after.lines().any(|it| it == line), "{line} in\n{after}");
    }
    let value = |name: &str| -> f64 {
        let line = after.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_default().parse().unwrap_or(f64::NAN)
    };
    let of = |name: &str| value(&format!("kubelet_certificate_manager_{name}"));
    assert!((of("client_ttl_seconds") + 86_400.0).abs() < 60.0, "past its end: {after}");
    assert!((of("server_ttl_seconds") - 86_400.0).abs() < 60.0, "{after}");
    let counts = ["client_expiration_renew_errors", "server_rotation_seconds_count"].map(of);
    assert_eq!(counts, [1.0, 1.0]);
    let bucket = "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"2.592e+06\"} 1";
    assert!(after.contains(bucket), "{after}");
}

#[test]
fn pods_by_how_far_they_are() {
    let pod = |name: &str, source, stage| {
        let view = Arc::into_inner(crate::tests::simple_pod(name, "")).unwrap();
        Arc::new(PodView { source, stage, ..view })
    };
    let pods = vec![
        pod("a", PodSource::File, PodStage::Syncing),
        pod("b", PodSource::Http, PodStage::Waiting),
        pod("c", PodSource::Api, PodStage::Terminated),
        pod("gone", PodSource::Api, PodStage::Terminating),
    ];
    let desired = pods.iter().filter(|view| &*view.full_name.name != "gone");
    let desired = desired.map(|view| {
        let desired = DesiredPod {
            uid: view.uid.clone(),
            full_name: view.full_name.clone(),
            pod: Arc::clone(&view.pod),
            source: view.source,
            origin: Arc::clone(&view.origin),
            terminate: None,
            remote: None,
        };
        (view.uid.clone(), Arc::new(desired))
    });
    let desired = DesiredState { pods: Arc::new(desired.collect()), ..DesiredState::default() };
    let observed = Arc::new(ObservedState::unread());
    let snapshot = NodeSnapshot::new(1, "node".into(), pods, Arc::new(desired), observed);
    let counters = NodeCounters::default();
    counters.orphans_going.set(2);
    let (samples, disks) = (Samples::default(), Filesystems::default());
    let source = Source {
        snapshot: Some(&snapshot),
        samples: &samples,
        disks: &disks,
        counters: &counters,
        facts: &Facts::default(),
        events_dropped: 0,
        traces: None,
        assignments: &Assignments::default(),
        own: Own::default(),
    };
    let mut out = Exposition::default();
    write(&mut out, &source);
    let text = out.finish();
    let found = text.lines().filter_map(|line| line.strip_prefix("kubelet_working_pods{"));
    let found: Vec<_> = found.filter(|line| !line.ends_with("} 0")).collect();
    let expected = [
        r#"config="desired",lifecycle="sync",static="true"} 2"#,
        r#"config="desired",lifecycle="terminated",static=""} 1"#,
        r#"config="orphan",lifecycle="terminating",static=""} 1"#,
        r#"config="runtime_only",lifecycle="terminating",static="unknown"} 2"#,
    ];
    assert_eq!(found, expected);
    assert_eq!(text.lines().filter(|line| line.starts_with("kubelet_working_pods{")).count(), 15);
}
