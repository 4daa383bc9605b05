//! How often each call was made, how often it failed, and how long it took.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Names of the calls, upstream's `operation_type` labels.
pub(crate) const CALLS: [&str; 30] = [
    "version",
    "status",
    "runtime_config",
    "update_runtime_config",
    "list_podsandbox",
    "podsandbox_status",
    "run_podsandbox",
    "stop_podsandbox",
    "remove_podsandbox",
    "list_containers",
    "container_status",
    "container_stats",
    "list_container_stats",
    "create_container",
    "start_container",
    "stop_container",
    "remove_container",
    "update_container",
    "exec_sync",
    "exec",
    "attach",
    "port_forward",
    "checkpoint_container",
    "reopen_container_log",
    "get_container_events",
    "list_images",
    "image_status",
    "pull_image",
    "remove_image",
    "image_fs_info",
];

/// How many upper bounds the histogram of a call's time has.
pub const CALL_BUCKETS: usize = 14;

/// Upper bounds of the histogram of calls' times in seconds, upstream's: 5 ms, each two and a half times the one before.
#[must_use]
pub fn call_bucket_bounds() -> [f64; CALL_BUCKETS] {
    let mut next = 0.005;
    std::array::from_fn(|_| {
        let bound = next;
        next *= 2.5;
        bound
    })
}

/// Counters for all calls; cheap to update from any task.
#[derive(Debug, Default)]
pub struct CallStats {
    cells: [Cell; CALLS.len()],
}

#[derive(Debug, Default)]
struct Cell {
    calls: AtomicU64,
    errors: AtomicU64,
    micros: AtomicU64,
    /// Calls by the first bound that they did not exceed; longer ones are in none.
    buckets: [AtomicU64; CALL_BUCKETS],
}

/// One call's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// Upstream's operation name.
    pub call: &'static str,
    /// How often it was made.
    pub calls: u64,
    /// How often it failed.
    pub errors: u64,
    /// Time spent waiting for it, in all.
    pub total: Duration,
    /// How many took at most each of [`call_bucket_bounds`].
    pub buckets: [u64; CALL_BUCKETS],
}

impl CallStats {
    pub(crate) fn record(&self, call: &'static str, took: Duration, failed: bool) {
        let cell = CALLS.iter().position(|name| *name == call).and_then(|i| self.cells.get(i));
        debug_assert!(cell.is_some(), "{call} is not among the calls that are counted");
        let Some(cell) = cell else { return };
        cell.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        cell.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = call_bucket_bounds().iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = bucket.and_then(|i| cell.buckets.get(i)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        // Last: a count never stands beside fewer in the buckets.
        cell.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters of every call made so far, by name.
    pub fn read(&self) -> Vec<CallCount> {
        let mut counts: Vec<CallCount> = CALLS
            .iter()
            .zip(&self.cells)
            .map(|(call, cell)| {
                let calls = cell.calls.load(Ordering::Relaxed);
                let mut below = 0;
                CallCount {
                    call,
                    calls,
                    errors: cell.errors.load(Ordering::Relaxed),
                    total: Duration::from_micros(cell.micros.load(Ordering::Relaxed)),
                    buckets: std::array::from_fn(|i| {
                        below += cell.buckets.get(i).map_or(0, |bucket| bucket.load(Ordering::Relaxed));
                        below.min(calls)
                    }),
                }
            })
            .filter(|count| count.calls > 0)
            .collect();
        counts.sort_unstable_by_key(|count| count.call);
        counts
    }

    /// Counts a call that nobody made, for tests of who shows the counts.
    #[doc(hidden)]
    pub fn pretend(&self, call: &'static str, took: Duration, failed: bool) {
        self.record(call, took, failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_upstreams() {
        let bounds = call_bucket_bounds();
        assert_eq!(bounds.get(..4), Some([0.005, 0.0125, 0.03125, 0.078_125].as_slice()));
        assert!((bounds[CALL_BUCKETS - 1] - 745.058).abs() < 0.001, "{bounds:?}");
    }

    #[test]
    fn calls_are_counted_by_name_and_time() {
        let stats = CallStats::default();
        stats.record("version", Duration::from_millis(5), false);
        stats.record("version", Duration::from_millis(6), true);
        stats.record("version", Duration::from_secs(1000), true);
        stats.record("attach", Duration::ZERO, false);
        let counts = stats.read();
        assert_eq!(counts.iter().map(|count| count.call).collect::<Vec<_>>(), ["attach", "version"]);
        let version = counts[1];
        assert_eq!((version.calls, version.errors), (3, 2));
        assert_eq!(version.buckets[..3], [1, 2, 2]);
        assert_eq!(version.buckets[CALL_BUCKETS - 1], 2, "the longest is in +Inf only");
    }
}
