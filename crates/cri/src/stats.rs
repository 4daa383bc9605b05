//! How often each call was made, how often it failed, and how long it took.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Names of the calls, upstream's `operation_type` labels.
const CALLS: [&str; 23] = [
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
    "create_container",
    "start_container",
    "stop_container",
    "remove_container",
    "exec_sync",
    "reopen_container_log",
    "get_container_events",
    "list_images",
    "image_status",
    "pull_image",
    "remove_image",
    "image_fs_info",
];

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
}

impl CallStats {
    pub(crate) fn record(&self, call: &'static str, took: Duration, failed: bool) {
        if let Some(cell) = CALLS.iter().position(|name| *name == call).and_then(|i| self.cells.get(i)) {
            cell.calls.fetch_add(1, Ordering::Relaxed);
            cell.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
            cell.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The counters of every call made so far.
    pub fn read(&self) -> Vec<CallCount> {
        CALLS
            .iter()
            .zip(&self.cells)
            .map(|(call, cell)| CallCount {
                call,
                calls: cell.calls.load(Ordering::Relaxed),
                errors: cell.errors.load(Ordering::Relaxed),
                total: Duration::from_micros(cell.micros.load(Ordering::Relaxed)),
            })
            .filter(|count| count.calls > 0)
            .collect()
    }
}
