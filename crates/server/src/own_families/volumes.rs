//! Volumes: work on them, and how full those of claims are.

use std::collections::BTreeMap;

use mainstay_types::FsReading;

use super::{Family, Lines, Source};
use crate::exposition::Kind;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_image_volume_mounted_errors_total",
        help: "[BETA] Number of failed image volume mounts.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volume_errors.get()),
    },
    Family {
        name: "kubelet_image_volume_mounted_succeed_total",
        help: "[BETA] Number of successful image volume mounts.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volume_mounts.get()),
    },
    Family {
        name: "kubelet_image_volume_requested_total",
        help: "[BETA] Number of requested image volumes.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volumes.get()),
    },
    Family {
        name: "kubelet_orphan_pod_cleaned_volumes",
        help: "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.orphan_volumes.get()),
    },
    Family {
        name: "kubelet_orphan_pod_cleaned_volumes_errors",
        help: "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.orphan_volume_errors.get()),
    },
    Family {
        name: "kubelet_volume_stats_available_bytes",
        help: "[ALPHA] Number of available bytes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.available_bytes)),
    },
    Family {
        name: "kubelet_volume_stats_capacity_bytes",
        help: "[ALPHA] Capacity in bytes of the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.capacity_bytes)),
    },
    Family {
        name: "kubelet_volume_stats_inodes",
        help: "[ALPHA] Maximum number of inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.inodes)),
    },
    Family {
        name: "kubelet_volume_stats_inodes_free",
        help: "[ALPHA] Number of free inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.inodes_free)),
    },
    Family {
        name: "kubelet_volume_stats_inodes_used",
        help: "[ALPHA] Number of used inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.inodes_used),
    },
    Family {
        name: "kubelet_volume_stats_used_bytes",
        help: "[ALPHA] Number of used bytes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.used_bytes),
    },
    Family {
        name: "storage_operation_duration_seconds",
        help: "[BETA] Storage operation duration",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([operation, status, plugin], times) in source.counters.storage_work.all() {
                let labels = [
                    ("migrated", "false"),
                    ("operation_name", operation),
                    ("status", status),
                    ("volume_plugin", plugin),
                ];
                lines.durations(&labels, times.read());
            }
        },
    },
    Family {
        name: "volume_manager_total_volumes",
        help: "[ALPHA] Number of volumes in Volume Manager",
        kind: Kind::Gauge,
        write: volumes,
    },
    Family {
        name: "volume_operation_total_seconds",
        help: "[BETA] Storage operation end to end duration in seconds",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([operation, plugin], times) in source.counters.volume_waits.all() {
                lines.durations(&[("operation_name", operation), ("plugin_name", plugin)], times.read());
            }
        },
    },
];

/// Volumes of pods that shall run, and of those that have a sandbox, before which they are set up.
fn volumes(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for view in &snapshot.pods {
        let ended = matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let is_up = snapshot.observed.pods.get(&view.uid).is_some_and(|pod| pod.ready_sandbox().is_some());
        for volume in view.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let plugin = mainstay_podspec::volumes::plugin_name(volume);
            if is_up {
                *counts.entry((plugin, "actual_state_of_world")).or_default() += 1;
            }
            if !ended {
                *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
            }
        }
    }
    for ((plugin, state), count) in counts {
        lines.count(&[("plugin_name", plugin), ("state", state)], count);
    }
}

/// Volumes of claims, each once however many pods share it. What was not found out is 0, as upstream has it.
fn claims(lines: &mut Lines<'_>, source: &Source<'_>, value: impl Fn(&FsReading) -> Option<u64>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut found: BTreeMap<(&str, &str), &FsReading> = BTreeMap::new();
    for (uid, disk) in &source.disks.pods {
        let Some(pod) = snapshot.observed.pods.get(uid) else { continue };
        for volume in disk.volumes.iter() {
            if let Some(claim) = &volume.claim {
                let newest = found.entry((&pod.full_name.namespace, claim)).or_insert(&volume.reading);
                if newest.at < volume.reading.at {
                    *newest = &volume.reading;
                }
            }
        }
    }
    for ((namespace, claim), reading) in found {
        let labels = [("namespace", namespace), ("persistentvolumeclaim", claim)];
        lines.count(&labels, value(reading).unwrap_or(0));
    }
}
