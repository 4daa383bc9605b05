//! The node: what it is, how the runtime is followed, what is asked of the API server.

use mainstay_types::VERSION;

use super::Family;
use crate::exposition::Kind;

#[cfg(target_arch = "x86_64")]
const PLATFORM: &str = "linux/amd64";
#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "linux/arm64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const PLATFORM: &str = "linux/other";

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_cgroup_version",
        help: "[ALPHA] cgroup version on the hosts.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if source.facts.cgroup_version > 0 {
                lines.put(&[], f64::from(source.facts.cgroup_version));
            }
        },
    },
    Family {
        name: "kubelet_evented_pleg_connection_error_count",
        help: "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.event_stream_errors.get()),
    },
    Family {
        name: "kubelet_evented_pleg_connection_latency_seconds",
        help: "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.event_ages.read()),
    },
    Family {
        name: "kubelet_evented_pleg_connection_success_count",
        help: "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.event_streams.get()),
    },
    Family {
        name: "kubelet_metrics_provider",
        help: "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
        kind: Kind::Gauge,
        write: |lines, _| lines.put(&[("provider", "cadvisor")], 1.0),
    },
    Family {
        name: "kubelet_node_name",
        help: "[ALPHA] The node's name. The count is always 1.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(snapshot) = source.snapshot {
                lines.put(&[("node", &snapshot.node_name)], 1.0);
            }
        },
    },
    Family {
        name: "kubelet_pleg_discard_events",
        help: "[ALPHA] The number of discard events in PLEG.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.wishes_dropped.get()),
    },
    Family {
        name: "kubelet_pleg_last_seen_seconds",
        help: "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
        kind: Kind::Gauge,
        write: |lines, source| match source.counters.last_relist.get() {
            0 => {}
            at => lines.count(&[], at),
        },
    },
    Family {
        name: "kubelet_pleg_pod_relist_duration_seconds",
        help: "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_reads.read()),
    },
    Family {
        name: "kubelet_pleg_relist_duration_seconds",
        help: "[ALPHA] Duration in seconds for relisting pods in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.relists.read()),
    },
    Family {
        name: "kubelet_pleg_relist_interval_seconds",
        help: "[ALPHA] Interval in seconds between relisting in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.relist_intervals.read()),
    },
    Family {
        name: "kubernetes_build_info",
        help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        kind: Kind::Gauge,
        write: |lines, _| {
            let mut numbers = VERSION.trim_start_matches('v').split('.');
            let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
            let labels = [
                ("build_date", ""),
                ("compiler", "rustc"),
                ("git_commit", ""),
                ("git_tree_state", ""),
                ("git_version", VERSION),
                ("go_version", ""),
                ("major", major),
                ("minor", minor),
                ("platform", PLATFORM),
            ];
            lines.put(&labels, 1.0);
        },
    },
    Family {
        name: "kubernetes_feature_enabled",
        help: "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
        kind: Kind::Gauge,
        write: |lines, source| {
            for (name, stage, on) in &*source.facts.gates {
                lines.put(&[("name", name), ("stage", stage)], f64::from(u8::from(*on)));
            }
        },
    },
    Family {
        name: "rest_client_request_duration_seconds",
        help: "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
        kind: Kind::Histogram,
        write: |lines, source| {
            let Some((host, calls)) = source.counters.api.get() else { return };
            for ([verb], times) in calls.times.all() {
                lines.durations(&[("host", host), ("verb", verb)], times.read());
            }
        },
    },
    Family {
        name: "rest_client_requests_total",
        help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
        kind: Kind::Counter,
        write: |lines, source| {
            let Some((host, calls)) = source.counters.api.get() else { return };
            for (status, method, count) in calls.read() {
                let code = status.map_or("<error>".to_owned(), |status| status.to_string());
                lines.count(&[("code", &code), ("host", host), ("method", method)], count);
            }
        },
    },
];
