//! Sandboxes and containers of pods.

use std::collections::BTreeMap;

use mainstay_types::ContainerPhase;

use super::{Family, Lines, Source};
use crate::exposition::Kind;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_container_log_filesystem_used_bytes",
        help: "[ALPHA] Bytes used by the container's logs on the filesystem.",
        kind: Kind::Gauge,
        write: container_logs,
    },
    Family {
        name: "kubelet_containers_per_pod_count",
        help: "[ALPHA] The number of containers per pod.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.containers_per_pod.read()),
    },
    Family {
        name: "kubelet_lifecycle_handler_http_fallbacks_total",
        help: "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.hook_fallbacks.get()),
    },
    Family {
        name: "kubelet_managed_ephemeral_containers",
        help: "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
        kind: Kind::Gauge,
        write: |lines, source| {
            let Some(snapshot) = source.snapshot else { return };
            let specs = snapshot.pods.iter().filter_map(|view| view.pod.spec.as_ref());
            let containers = specs.map(|spec| spec.ephemeral_containers.as_ref().map_or(0, Vec::len));
            lines.count(&[], containers.sum::<usize>() as u64);
        },
    },
    Family {
        name: "kubelet_run_podsandbox_duration_seconds",
        help: "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for (handler, times) in source.counters.sandbox_times.all() {
                lines.durations(&[("runtime_handler", &handler)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_run_podsandbox_errors_total",
        help: "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
        kind: Kind::Counter,
        write: |lines, source| {
            for (handler, count) in source.counters.sandbox_failures.all() {
                lines.count(&[("runtime_handler", &handler)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_running_containers",
        help: "[ALPHA] Number of containers currently running",
        kind: Kind::Gauge,
        write: running_containers,
    },
    Family {
        name: "kubelet_sleep_action_terminated_early_total",
        help: "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sleeps_cut.get()),
    },
    Family {
        name: "kubelet_started_containers_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting containers",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["code", "container_type"], &source.counters.container_errors.all())
        },
    },
    Family {
        name: "kubelet_started_containers_total",
        help: "[ALPHA] Cumulative number of containers started",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["container_type"], &source.counters.containers.all()),
    },
    Family {
        name: "kubelet_terminated_containers_total",
        help: "[ALPHA] Cumulative number of container terminations.",
        kind: Kind::Counter,
        write: |lines, source| {
            let all = source.counters.container_ends.all().into_iter();
            let mut rows: Vec<_> = all
                .map(|((kind, code, reason), count)| (kind, code.to_string(), reason, count.get()))
                .collect();
            rows.sort_unstable();
            for (kind, code, reason, count) in rows {
                let labels = [("container_type", kind), ("exit_code", &*code), ("reason", &*reason)];
                lines.count(&labels, count);
            }
        },
    },
];

fn running_containers(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for container in snapshot.observed.pods.values().flat_map(|pod| &pod.containers) {
        let state = match container.phase {
            ContainerPhase::Created => "created",
            ContainerPhase::Running => "running",
            ContainerPhase::Exited => "exited",
            ContainerPhase::Unknown => "unknown",
        };
        *counts.entry(state).or_default() += 1;
    }
    for state in ["created", "exited", "running", "unknown"] {
        lines.count(&[("container_state", state)], counts.get(state).copied().unwrap_or(0));
    }
}

fn container_logs(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut rows = Vec::new();
    for (uid, disk) in &source.disks.pods {
        let Some(pod) = snapshot.observed.pods.get(uid) else { continue };
        for container in &disk.containers {
            if let Some(bytes) = container.logs.and_then(|logs| logs.used_bytes) {
                rows.push((container.name.as_str(), &pod.full_name, uid.as_str(), bytes));
            }
        }
    }
    rows.sort_unstable();
    for (container, name, uid, bytes) in rows {
        let labels =
            [("container", container), ("namespace", &*name.namespace), ("pod", &*name.name), ("uid", uid)];
        lines.count(&labels, bytes);
    }
}
