//! `docs/metrics.md`: its lists of families come from the tables that serve.

use std::fmt::Write as _;

use crate::{cadvisor, exposition::Kind, own_families};

const BEGIN: &str = "<!-- from the tables that serve: UPDATE_DOCS=1 cargo test -p mainstay-server -->\n";
const END: &str = "<!-- end -->\n";

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

/// Every name of a metric in the documents that the project was made from.
const SEEDS: &[&str] = &[
    "container_cpu_load_average_10s",
    "container_cpu_usage_seconds_total",
    "container_fs_usage_bytes",
    "container_fs_write_seconds_total",
    "container_memory_max_usage_bytes",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
    "container_name",
    "container_spec_cpu_quota",
    "go_memstats_alloc_bytes",
    "http_request_duration_microseconds",
    "kubelet_cgroup_manager_latency_microseconds",
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_docker_operations_duration_seconds",
    "kubelet_runtime_operations_duration_seconds",
    "kubelet_volume_stats_used_bytes",
    "machine_cpu_cores",
    "machine_memory_bytes",
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "pod_info_endpoint_errors_get",
    "pod_info_endpoint_requests_get",
    "pod_info_endpoint_requests_list",
    "pod_info_endpoint_requests_total",
    "pod_name",
    "pod_resources_endpoint_errors_get_allocatable",
    "pod_resources_endpoint_errors_list",
    "pod_resources_endpoint_requests_get_allocatable",
    "pod_resources_endpoint_requests_list",
    "pod_resources_endpoint_requests_total",
    "pod_resources_info_requests_get",
    "prober_probe_result",
    "scrape_error",
    "storage_operation_duration_seconds",
];

#[test]
fn the_page_tells_the_fate_of_every_old_name() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (_, table) = page.split_once("## Names in old documents").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).collect();
    let untold: Vec<_> =
        SEEDS.iter().filter(|name| !rows.iter().any(|row| row.contains(&format!("`{name}`")))).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

/// Families of `/metrics` of upstream's kubelet 1.37, as it serves them, and those that its consumers name.
const UPSTREAMS: &str = include_str!("../../testdata/upstream-families.txt");

/// Those that others than the table serve: requests and calls, and the gRPC sockets.
fn is_served_elsewhere(name: &str) -> bool {
    [
        "kubelet_http_",
        "kubelet_runtime_operations_",
        "kubelet_pod_resources_endpoint_",
        "kubelet_pod_requests_",
    ]
    .iter()
    .any(|start| name.starts_with(start))
        || ["kubelet_websocket_streaming_requests_total", "kubelet_pod_watch_events_dropped_total"]
            .contains(&name)
        || name == "process_start_time_seconds"
}

#[test]
fn each_family_of_upstreams_is_served_or_told_of() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (_, table) = page.split_once("## Families of upstream's that are not served").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let told: Vec<&str> = cells.flat_map(|(cell, _)| cell.split('`').skip(1).step_by(2)).collect();
    let is_told = |name: &str| {
        told.iter().any(|told| match told.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *told == name,
        })
    };
    let is_served =
        |name: &str| own_families::families().any(|family| family.name == name) || is_served_elsewhere(name);
    let names: Vec<&str> = UPSTREAMS.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(names.len() > 200 && names.is_sorted());
    let untold: Vec<_> = names.iter().filter(|name| !is_served(name) && !is_told(name)).collect();
    assert!(untold.is_empty(), "neither served nor in docs/metrics.md: {untold:?}");
    let both: Vec<_> = own_families::families().filter(|family| is_told(family.name)).collect();
    let both: Vec<_> = both.iter().map(|family| family.name).collect();
    assert!(both.is_empty(), "served, and said not to be: {both:?}");
}

#[test]
fn the_page_about_metrics_names_every_family() {
    let mut list = String::new();
    let row = |list: &mut String, name: &str, kind: Kind, help: &str| {
        writeln!(list, "| `{name}` | {} | {help} |", word(kind)).unwrap();
    };
    list.push_str("### `/metrics/cadvisor`\n\n| family | type | what it is |\n| --- | --- | --- |\n");
    for family in cadvisor::FAMILIES {
        row(&mut list, family.name, family.kind, family.help);
    }
    list.push_str(
        "\nand `cadvisor_version_info`, `container_scrape_error` and the `machine_*` families.\n\n",
    );
    list.push_str("### `/metrics`\n\n| family | type | what it is |\n| --- | --- | --- |\n");
    let mut families: Vec<_> = own_families::families().collect();
    families.sort_unstable_by_key(|family| family.name);
    for family in families {
        row(&mut list, family.name, family.kind, family.help);
    }
    list.push_str("\nand `kubelet_http_*`, `kubelet_runtime_operations_*`, `kubelet_websocket_streaming_requests_total`, `process_start_time_seconds`.\n");
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the lists");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let wanted = format!("{before}{BEGIN}{list}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &wanted).unwrap();
    } else {
        assert!(page == wanted, "docs/metrics.md is old: UPDATE_DOCS=1 cargo test -p mainstay-server");
    }
}
