//! Images, and whoever says how to log in to a registry.

use super::Family;
use crate::exposition::Kind;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_credential_provider_plugin_duration",
        help: "[ALPHA] Duration of execution in seconds for credential provider plugin",
        kind: Kind::Histogram,
        write: |lines, source| {
            for (name, times) in source.counters.provider_times.all() {
                lines.durations(&[("plugin_name", &name)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_credential_provider_plugin_errors_total",
        help: "[ALPHA] Number of errors from credential provider plugin",
        kind: Kind::Counter,
        write: |lines, source| {
            for (name, count) in source.counters.provider_errors.all() {
                lines.count(&[("plugin_name", &name)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_image_manager_ensure_image_requests_total",
        help: "[ALPHA] Number of ensure-image requests processed by the kubelet.",
        kind: Kind::Counter,
        write: |lines, source| {
            let names = ["present_locally", "pull_policy", "pull_required"];
            lines.counters(names, &source.counters.images_wanted.all());
        },
    },
    Family {
        name: "kubelet_image_pull_duration_seconds",
        help: "[ALPHA] Duration in seconds to pull an image.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([size], pulls) in source.counters.pulls.all() {
                lines.durations(&[("image_size_in_bytes", size)], pulls.read());
            }
        },
    },
    Family {
        name: "kubelet_imagemanager_image_mustpull_checks_total",
        help: "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["result"], &source.counters.image_checks.all()),
    },
    Family {
        name: "kubelet_imagemanager_ondisk_pulledrecords",
        help: "[ALPHA] Number of ImagePulledRecords stored on disk.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.pulled_records.get()),
    },
    Family {
        name: "kubelet_imagemanager_ondisk_pullintents",
        help: "[ALPHA] Number of ImagePullIntents stored on disk.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.pull_intents.get()),
    },
];
