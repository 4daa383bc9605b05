//! The families, in the order in which they are served. Names, types, units and HELP are upstream's.

use jiff::Timestamp;

use super::{Row, Text};
use crate::exposition::Kind;

/// A family: what it says of a cgroup.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// Its samples have the time at which the cgroup was read.
    pub(crate) timed: bool,
    pub(super) write: fn(&Row<'_>, &mut Text),
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus' numbers are floats, and 2^53 of anything is far away"
)]
const fn count(value: u64) -> f64 {
    value as f64
}

const fn seconds(nanos: u64) -> f64 {
    count(nanos) / 1e9
}

const fn millis(millis: u64) -> f64 {
    count(millis) / 1e3
}

/// Whole seconds since 1970.
pub(super) fn whole(at: Timestamp) -> f64 {
    count(u64::try_from(at.as_second()).unwrap_or(0))
}

/// All of them.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "container_blkio_device_usage_total",
        help: "Blkio Device bytes usage",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.blkio(row),
    },
    Family {
        name: "container_cpu_cfs_burst_periods_total",
        help: "Number of periods when burst occurs.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.sample.limits.cpu_quota_us.map(|_| count(row.sample.cpu.bursts))),
    },
    Family {
        name: "container_cpu_cfs_burst_seconds_total",
        help: "Total time duration the container has been bursted.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| {
            out.one(row, row.sample.limits.cpu_quota_us.map(|_| seconds(row.sample.cpu.burst_ns)))
        },
    },
    Family {
        name: "container_cpu_cfs_periods_total",
        help: "Number of elapsed enforcement period intervals.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.sample.limits.cpu_quota_us.map(|_| count(row.sample.cpu.periods))),
    },
    Family {
        name: "container_cpu_cfs_throttled_periods_total",
        help: "Number of throttled period intervals.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| {
            out.one(row, row.sample.limits.cpu_quota_us.map(|_| count(row.sample.cpu.throttled_periods)))
        },
    },
    Family {
        name: "container_cpu_cfs_throttled_seconds_total",
        help: "Total time duration the container has been throttled.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| {
            out.one(row, row.sample.limits.cpu_quota_us.map(|_| seconds(row.sample.cpu.throttled_ns)))
        },
    },
    Family {
        name: "container_cpu_system_seconds_total",
        help: "Cumulative system cpu time consumed in seconds.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, Some(seconds(row.sample.cpu.system_ns))),
    },
    Family {
        name: "container_cpu_usage_seconds_total",
        help: "Cumulative cpu time consumed in seconds.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| {
            // As upstream: nothing is said until there is something.
            if row.sample.cpu.usage_ns > 0 {
                out.put(row, [",cpu=\"total\"", "", "", ""], seconds(row.sample.cpu.usage_ns));
            }
        },
    },
    Family {
        name: "container_cpu_user_seconds_total",
        help: "Cumulative user cpu time consumed in seconds.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, Some(seconds(row.sample.cpu.user_ns))),
    },
    Family {
        name: "container_creation_time_seconds",
        help: "Container creation time since unix epoch in seconds.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, Some(row.created)),
    },
    Family {
        name: "container_file_descriptors",
        help: "Number of open file descriptors for the container.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(count(row.sample.processes.descriptors))),
    },
    Family {
        name: "container_fs_inodes_free",
        help: "Number of available Inodes",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.devices(row, |device| Some(count(device.size.inodes_free))),
    },
    Family {
        name: "container_fs_inodes_total",
        help: "Number of Inodes",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.devices(row, |device| Some(count(device.size.inodes))),
    },
    Family {
        name: "container_fs_io_current",
        help: "Number of I/Os currently in progress",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| count(disk.in_flight))),
    },
    Family {
        name: "container_fs_io_time_seconds_total",
        help: "Cumulative count of seconds spent doing I/Os",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| millis(disk.busy_ms))),
    },
    Family {
        name: "container_fs_io_time_weighted_seconds_total",
        help: "Cumulative weighted I/O time in seconds",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| millis(disk.weighted_ms))),
    },
    Family {
        name: "container_fs_limit_bytes",
        help: "Number of bytes that can be consumed by the container on this filesystem.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.devices(row, |device| Some(count(device.size.capacity_bytes))),
    },
    Family {
        name: "container_fs_read_seconds_total",
        help: "Cumulative count of seconds spent reading",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| millis(disk.read_ms))),
    },
    Family {
        name: "container_fs_reads_bytes_total",
        help: "Cumulative count of bytes read",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.transfers(row, |io| count(io.read_bytes), |_| None),
    },
    Family {
        name: "container_fs_reads_merged_total",
        help: "Cumulative count of reads merged",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| count(disk.reads_merged))),
    },
    Family {
        name: "container_fs_reads_total",
        help: "Cumulative count of reads completed",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.transfers(row, |io| count(io.reads), |disk| Some(count(disk.reads))),
    },
    Family {
        name: "container_fs_sector_reads_total",
        help: "Cumulative count of sector reads completed",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| count(disk.sectors_read))),
    },
    Family {
        name: "container_fs_sector_writes_total",
        help: "Cumulative count of sector writes completed",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| count(disk.sectors_written))),
    },
    Family {
        name: "container_fs_usage_bytes",
        help: "Number of bytes that are consumed by the container on this filesystem.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.devices(row, |device| Some(count(device.used_bytes))),
    },
    Family {
        name: "container_fs_write_seconds_total",
        help: "Cumulative count of seconds spent writing",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| millis(disk.write_ms))),
    },
    Family {
        name: "container_fs_writes_bytes_total",
        help: "Cumulative count of bytes written",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.transfers(row, |io| count(io.written_bytes), |_| None),
    },
    Family {
        name: "container_fs_writes_merged_total",
        help: "Cumulative count of writes merged",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.devices(row, |device| device.disk.map(|disk| count(disk.writes_merged))),
    },
    Family {
        name: "container_fs_writes_total",
        help: "Cumulative count of writes completed",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.transfers(row, |io| count(io.writes), |disk| Some(count(disk.writes))),
    },
    Family {
        name: "container_health_state",
        help: "The result of the container's health check",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(-1.0)),
    },
    Family {
        name: "container_hugetlb_failcnt",
        help: "Number of hugepage usage hits limits",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.huge_pages(row, |pages| Some(pages.failures)),
    },
    Family {
        name: "container_hugetlb_max_usage_bytes",
        help: "Maximum hugepage usages recorded",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.huge_pages(row, |pages| pages.max_usage),
    },
    Family {
        name: "container_hugetlb_usage_bytes",
        help: "Current hugepage usage",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.huge_pages(row, |pages| Some(pages.usage)),
    },
    Family {
        name: "container_last_seen",
        help: "Last time a container was seen by the exporter",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(whole(row.sample.at))),
    },
    Family {
        name: "container_memory_cache",
        help: "Number of bytes of page cache memory.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.cache)),
    },
    Family {
        name: "container_memory_events_high_total",
        help: "Cumulative count of memory.high throttle events for the container",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.high_events)),
    },
    Family {
        name: "container_memory_events_max_total",
        help: "Cumulative count of memory.max limit hit events for the container",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.max_events)),
    },
    Family {
        name: "container_memory_failcnt",
        help: "Number of memory usage hits limits",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.fail_count)),
    },
    Family {
        name: "container_memory_failures_total",
        help: "Cumulative count of memory allocation failures.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.failures(row),
    },
    Family {
        name: "container_memory_file_dirty_bytes",
        help: "Number of bytes of file cache that has been modified but not yet written back to disk.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.file_dirty)),
    },
    Family {
        name: "container_memory_file_writeback_bytes",
        help: "Number of bytes of file cache that is currently being written back to disk.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.file_writeback)),
    },
    Family {
        name: "container_memory_kernel_usage",
        help: "Size of kernel memory allocated in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.kernel)),
    },
    Family {
        name: "container_memory_mapped_file",
        help: "Size of memory mapped files in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.mapped_file)),
    },
    Family {
        name: "container_memory_max_usage_bytes",
        help: "Maximum memory usage recorded in bytes",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.max_usage)),
    },
    Family {
        name: "container_memory_pgscan_total",
        help: "Cumulative number of pages scanned by the page reclaim algorithm.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.scanned)),
    },
    Family {
        name: "container_memory_pgsteal_total",
        help: "Cumulative number of pages reclaimed by the page reclaim algorithm.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.stolen)),
    },
    Family {
        name: "container_memory_rss",
        help: "Size of RSS in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.rss)),
    },
    Family {
        name: "container_memory_swap",
        help: "Container swap usage in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.swap)),
    },
    Family {
        name: "container_memory_total_active_file_bytes",
        help: "Current total active file in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.active_file)),
    },
    Family {
        name: "container_memory_total_inactive_file_bytes",
        help: "Current total inactive file in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.inactive_file)),
    },
    Family {
        name: "container_memory_usage_bytes",
        help: "Current memory usage in bytes, including all memory regardless of when it was accessed",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.usage)),
    },
    Family {
        name: "container_memory_working_set_bytes",
        help: "Current working set in bytes.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.working_set)),
    },
    Family {
        name: "container_memory_workingset_refault_anon_total",
        help: "Cumulative number of refaults of previously evicted anonymous pages.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.refault_anon)),
    },
    Family {
        name: "container_memory_workingset_refault_file_total",
        help: "Cumulative number of refaults of previously evicted file pages.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.memory(|memory| memory.refault_file)),
    },
    Family {
        name: "container_network_receive_bytes_total",
        help: "Cumulative count of bytes received",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.received.bytes),
    },
    Family {
        name: "container_network_receive_errors_total",
        help: "Cumulative count of errors encountered while receiving",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.received.errors),
    },
    Family {
        name: "container_network_receive_packets_dropped_total",
        help: "Cumulative count of packets dropped while receiving",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.received.dropped),
    },
    Family {
        name: "container_network_receive_packets_total",
        help: "Cumulative count of packets received",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.received.packets),
    },
    Family {
        name: "container_network_transmit_bytes_total",
        help: "Cumulative count of bytes transmitted",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.sent.bytes),
    },
    Family {
        name: "container_network_transmit_errors_total",
        help: "Cumulative count of errors encountered while transmitting",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.sent.errors),
    },
    Family {
        name: "container_network_transmit_packets_dropped_total",
        help: "Cumulative count of packets dropped while transmitting",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.sent.dropped),
    },
    Family {
        name: "container_network_transmit_packets_total",
        help: "Cumulative count of packets transmitted",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.interfaces(row, |it| it.sent.packets),
    },
    Family {
        name: "container_oom_events_total",
        help: "Count of out of memory events observed for the container",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.oom_kills(row),
    },
    Family {
        name: "container_pressure_cpu_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to CPU congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.cpu.full)),
    },
    Family {
        name: "container_pressure_cpu_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to CPU congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.cpu.some)),
    },
    Family {
        name: "container_pressure_io_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to IO congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.io.full)),
    },
    Family {
        name: "container_pressure_io_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to IO congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.io.some)),
    },
    Family {
        name: "container_pressure_memory_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to memory congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.memory.full)),
    },
    Family {
        name: "container_pressure_memory_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to memory congestion.",
        kind: Kind::Counter,
        timed: true,
        write: |row, out| out.one(row, row.pressure(|it| it.memory.some)),
    },
    Family {
        name: "container_processes",
        help: "Number of processes running inside the container.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(count(row.sample.processes.count))),
    },
    Family {
        name: "container_sockets",
        help: "Number of open sockets for the container.",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(count(row.sample.processes.sockets))),
    },
    Family {
        name: "container_spec_cpu_period",
        help: "CPU period of the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, Some(count(row.sample.limits.cpu_period_us))),
    },
    Family {
        name: "container_spec_cpu_quota",
        help: "CPU quota of the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, row.sample.limits.cpu_quota_us.map(count)),
    },
    Family {
        name: "container_spec_cpu_shares",
        help: "CPU share of the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, Some(count(row.sample.limits.cpu_shares))),
    },
    Family {
        name: "container_spec_memory_limit_bytes",
        help: "Memory limit for the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, row.memory(|_| row.memory_limit)),
    },
    Family {
        name: "container_spec_memory_reservation_limit_bytes",
        help: "Memory reservation limit for the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, row.memory(|_| row.sample.limits.memory_reservation)),
    },
    Family {
        name: "container_spec_memory_swap_limit_bytes",
        help: "Memory swap limit for the container.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, row.memory(|_| row.sample.limits.swap.unwrap_or(0))),
    },
    Family {
        name: "container_start_time_seconds",
        help: "Start time of the container since unix epoch in seconds.",
        kind: Kind::Gauge,
        timed: false,
        write: |row, out| out.one(row, Some(whole(row.sample.made_at))),
    },
    Family {
        name: "container_threads",
        help: "Number of threads running inside the container",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(count(row.sample.pids.current))),
    },
    Family {
        name: "container_threads_max",
        help: "Maximum number of threads allowed inside the container, infinity if value is zero",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.one(row, Some(count(row.sample.pids.max.unwrap_or(0)))),
    },
    Family {
        name: "container_ulimits_soft",
        help: "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        kind: Kind::Gauge,
        timed: true,
        write: |row, out| out.limits(row),
    },
];
