//! mainstay's own work, and what the kernel says of its process.

use super::{
    Family, number,
    process::{limit, open_files},
};
use crate::exposition::Kind;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "mainstay_events_dropped_total",
        help: "Number of events that were told to nobody because the store was too far behind",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.events_dropped),
    },
    Family {
        name: "mainstay_sample_cgroups",
        help: "Number of cgroups that the newest round of readings read",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], u64::from(source.samples.cost.cgroups)),
    },
    Family {
        name: "mainstay_sample_cpu_seconds_total",
        help: "Processor time that reading cgroups has taken",
        kind: Kind::Counter,
        write: |lines, source| lines.put(&[], number(source.samples.cost.cpu_micros) / 1e6),
    },
    Family {
        name: "mainstay_sample_duration_seconds",
        help: "How long the newest round of readings took",
        kind: Kind::Gauge,
        write: |lines, source| lines.put(&[], number(source.samples.cost.micros) / 1e6),
    },
    Family {
        name: "mainstay_sample_hanging",
        help: "Number of cgroups and processes whose reading does not end, so that they are left out; the log names them",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], u64::from(source.samples.cost.hanging)),
    },
    Family {
        name: "mainstay_trace_spans_total",
        help: "Number of spans by what became of them: sent to the collector, dropped because too many waited, failed because it did not take them in time, refused by it",
        kind: Kind::Counter,
        write: |lines, source| {
            let Some(counts) = source.traces else { return };
            for (result, count) in [
                ("dropped", counts.dropped),
                ("failed", counts.failed),
                ("refused", counts.refused),
                ("sent", counts.sent),
            ] {
                lines.count(&[("result", result)], count);
            }
        },
    },
    Family {
        name: "mainstay_volume_walk_cpu_seconds_total",
        help: "Processor time that walking through pods' volumes has taken",
        kind: Kind::Counter,
        write: |lines, source| lines.put(&[], number(source.disks.walks.cpu_micros) / 1e6),
    },
    Family {
        name: "mainstay_volume_walk_seconds_total",
        help: "How long walking through pods' volumes has taken",
        kind: Kind::Counter,
        write: |lines, source| lines.put(&[], number(source.disks.walks.micros) / 1e6),
    },
    Family {
        name: "process_cpu_seconds_total",
        help: "Total user and system CPU time spent in seconds.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.cpu_seconds);
            }
        },
    },
    Family {
        name: "process_max_fds",
        help: "Maximum number of open file descriptors.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(limit) = limit("Max open files") {
                lines.put(&[], limit);
            }
        },
    },
    Family {
        name: "process_network_receive_bytes_total",
        help: "Number of bytes received by the process over the network.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some((received, _)) = source.own.network() {
                lines.count(&[], received);
            }
        },
    },
    Family {
        name: "process_network_transmit_bytes_total",
        help: "Number of bytes sent by the process over the network.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some((_, sent)) = source.own.network() {
                lines.count(&[], sent);
            }
        },
    },
    Family {
        name: "process_open_fds",
        help: "Number of open file descriptors.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(count) = open_files() {
                lines.count(&[], count);
            }
        },
    },
    Family {
        name: "process_resident_memory_bytes",
        help: "Resident memory size in bytes.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.resident_bytes);
            }
        },
    },
    Family {
        name: "process_virtual_memory_bytes",
        help: "Virtual memory size in bytes.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.virtual_bytes);
            }
        },
    },
    Family {
        name: "process_virtual_memory_max_bytes",
        help: "Maximum amount of virtual memory available in bytes.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(limit) = limit("Max address space") {
                lines.put(&[], limit);
            }
        },
    },
];
