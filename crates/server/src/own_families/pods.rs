//! Pods: how many there are, how they started, how they ended.

use std::collections::BTreeMap;

use mainstay_types::{PodSource, PodStage};

use super::{Family, Lines, Source};
use crate::exposition::Kind;

/// Why pods are evicted so far.
const EVICTION_SIGNALS: [&str; 3] =
    ["emptydirfs.limit", "ephemeralcontainerfs.limit", "ephemeralpodfs.limit"];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_active_pods",
        help: "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
        kind: Kind::Gauge,
        write: |lines, source| pods(lines, source, |phase| !matches!(phase, "Succeeded" | "Failed")),
    },
    Family {
        name: "kubelet_admission_rejections_total",
        help: "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["reason"], &source.counters.rejections.all()),
    },
    Family {
        name: "kubelet_desired_pods",
        help: "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
        kind: Kind::Gauge,
        write: |lines, source| pods(lines, source, |_| true),
    },
    Family {
        name: "kubelet_evictions",
        help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
        kind: Kind::Counter,
        write: |lines, source| {
            // From the beginning: what begins with its first count has no rate, and no alert.
            for signal in EVICTION_SIGNALS {
                lines.count(&[("eviction_signal", signal)], source.counters.evictions.of([signal]).get());
            }
        },
    },
    Family {
        name: "kubelet_first_network_pod_start_sli_duration_seconds",
        help: "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(took) = source.counters.first_network_start.get() {
                lines.put(&[], took.as_secs_f64());
            }
        },
    },
    Family {
        name: "kubelet_mirror_pods",
        help: "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.mirror_pods.get()),
    },
    Family {
        name: "kubelet_orphaned_runtime_pods_total",
        help: "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.orphans_found.get()),
    },
    Family {
        name: "kubelet_pod_start_duration_seconds",
        help: "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_starts.read()),
    },
    Family {
        name: "kubelet_pod_start_sli_duration_seconds",
        help: "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_start_slis.read()),
    },
    Family {
        name: "kubelet_pod_start_total_duration_seconds",
        help: "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_start_totals.read()),
    },
    Family {
        name: "kubelet_pod_status_sync_duration_seconds",
        help: "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.status_syncs.read()),
    },
    Family {
        name: "kubelet_pod_worker_duration_seconds",
        help: "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([kind], orders) in source.counters.orders.all() {
                lines.durations(&[("operation_type", kind)], orders.read());
            }
        },
    },
    Family {
        name: "kubelet_pod_worker_start_duration_seconds",
        help: "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.worker_starts.read()),
    },
    Family {
        name: "kubelet_preemptions",
        help: "[ALPHA] Cumulative number of pod preemptions by preemption resource",
        kind: Kind::Counter,
        write: |lines, source| {
            for (resource, count) in source.counters.preemptions.all() {
                lines.count(&[("preemption_signal", &resource)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_restarted_pods_total",
        help: "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
        kind: Kind::Counter,
        write: |lines, source| {
            for kind in ["", "true"] {
                lines.count(&[("static", kind)], source.counters.restarted_pods.of([kind]).get());
            }
        },
    },
    Family {
        name: "kubelet_running_pods",
        help: "[ALPHA] Number of pods that have a running pod sandbox",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(snapshot) = source.snapshot {
                let pods = snapshot.observed.pods.values();
                lines.count(&[], pods.filter(|pod| pod.ready_sandbox().is_some()).count() as u64);
            }
        },
    },
    Family {
        name: "kubelet_started_pods_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting pods",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sandbox_errors.get()),
    },
    Family {
        name: "kubelet_started_pods_total",
        help: "[ALPHA] Cumulative number of pods started",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sandboxes.get()),
    },
    Family {
        name: "kubelet_started_user_namespaced_pods_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.user_namespace_errors.get()),
    },
    Family {
        name: "kubelet_started_user_namespaced_pods_total",
        help: "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.user_namespaces.get()),
    },
    Family {
        name: "kubelet_working_pods",
        help: "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
        kind: Kind::Gauge,
        write: working_pods,
    },
];

/// Pods in this phase, by whether they are the API server's.
fn pods(lines: &mut Lines<'_>, source: &Source<'_>, is_in: impl Fn(&str) -> bool) {
    let Some(snapshot) = source.snapshot else { return };
    let (mut static_pods, mut others) = (0, 0);
    for view in &snapshot.pods {
        let phase = view.status.phase.as_deref().unwrap_or_default();
        if is_in(phase) {
            let count = if view.source == PodSource::Api { &mut others } else { &mut static_pods };
            *count += 1;
        }
    }
    lines.count(&[("static", "")], others);
    lines.count(&[("static", "true")], static_pods);
}

/// Pods by how far they are; whether they are wanted still, only ending, or known to the runtime alone; and whether they are static.
fn working_pods(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<[&str; 3], u64> = BTreeMap::new();
    for kind in [
        ["desired", ""],
        ["desired", "true"],
        ["orphan", ""],
        ["orphan", "true"],
        ["runtime_only", "unknown"],
    ] {
        for stage in ["sync", "terminated", "terminating"] {
            counts.insert([kind[0], stage, kind[1]], 0);
        }
    }
    for view in &snapshot.pods {
        let config = if snapshot.desired.pods.contains_key(&view.uid) { "desired" } else { "orphan" };
        let stage = match view.stage {
            PodStage::Waiting | PodStage::Syncing => "sync",
            PodStage::Terminating => "terminating",
            PodStage::Terminated => "terminated",
        };
        let kind = if view.source.is_static() { "true" } else { "" };
        *counts.entry([config, stage, kind]).or_default() += 1;
    }
    // They are taken up to be ended, and forgotten when they have.
    counts.insert(["runtime_only", "terminating", "unknown"], source.counters.orphans_going.get());
    for ([config, stage, kind], count) in counts {
        lines.count(&[("config", config), ("lifecycle", stage), ("static", kind)], count);
    }
}
