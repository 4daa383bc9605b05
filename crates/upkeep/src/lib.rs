//! Keeps the node tidy: dead containers and sandboxes, leftover directories, container logs; and, where mainstay is the
//! machine's kubelet, the chains of [`iptables`] that others look for.
//!
//! It removes only what is dead and superseded, by upstream's rules, and only of pods that are in the snapshot; whole
//! pods are removed by reconcile. What is still wanted, or belongs to somebody else, is never touched.
//!
//! In: snapshots and the desired state by `watch`. Out: calls to the runtime, and events. Tasks: `garbage`, `leftovers` and
//! `log rotation`, owned by the task group given to [`start`]. Which objects go is decided by pure functions in [`garbage`].

#![forbid(unsafe_code)]

mod collect;
pub mod garbage;
pub mod iptables;
mod leftovers;
mod rotation;

use std::{path::PathBuf, sync::Arc, time::Duration};

use mainstay_cri::Cri;
use mainstay_task::TaskGroup;
use mainstay_types::{DesiredState, EventSink, NodeCounters, NodeSnapshot};
use mainstay_volume::Jobs;
use tokio::sync::watch;

/// How to keep tidy.
#[derive(Clone, Debug)]
pub struct UpkeepConfig {
    /// The runtime.
    pub cri: Cri,
    /// `<root>`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Where the log links are.
    pub container_log_links: PathBuf,
    /// Directories of pods that nobody knows may be removed, whoever made them (`mainstay kubelet`). Otherwise they may be another
    /// kubelet's, and only those below the root go that carry mainstay's mark.
    pub remove_unknown: bool,
    /// What reconcile works from: it may know of a pod before any snapshot shows it.
    pub desired: watch::Receiver<Arc<DesiredState>>,
    /// Work on volumes, shared with reconcile: nothing is removed while a pod of that UID is set up.
    pub volume_jobs: Jobs,
    /// What is counted of its work.
    pub counters: Arc<NodeCounters>,
    /// Where to tell of what cannot be removed.
    pub events: EventSink,
    /// What to keep.
    pub keep: garbage::Keep,
    /// Between two rounds.
    pub period: Duration,
    /// `containerLogMaxSize` in bytes; 0 turns rotation off.
    pub log_max_bytes: u64,
    /// `containerLogMaxFiles`.
    pub log_max_files: usize,
    /// `containerLogMaxWorkers`.
    pub log_workers: usize,
    /// `containerLogMonitorInterval`.
    pub log_period: Duration,
}

/// What is read: `None` until the first complete snapshot.
pub type Snapshots = watch::Receiver<Option<Arc<NodeSnapshot>>>;

/// Starts the tasks.
pub fn start(config: UpkeepConfig, snapshots: &Snapshots, tasks: &TaskGroup) {
    let config = Arc::new(config);
    let shutdown = tasks.shutdown();
    let work = collect::run(Arc::clone(&config), snapshots.clone());
    tasks.spawn_critical("garbage", async move {
        shutdown.run_until_signalled(work).await;
    });
    let shutdown = tasks.shutdown();
    let work = sweep_leftovers(Arc::clone(&config), snapshots.clone());
    tasks.spawn_critical("leftovers", async move {
        shutdown.run_until_signalled(work).await;
    });
    let shutdown = tasks.shutdown();
    let work = rotation::rotate_logs(config, snapshots.clone());
    tasks.spawn_critical("log rotation", async move {
        shutdown.run_until_signalled(work).await;
    });
}

/// A sweep each period, apart from the rest: behind a directory may be a server that is dead.
async fn sweep_leftovers(config: Arc<UpkeepConfig>, snapshots: Snapshots) {
    loop {
        tokio::time::sleep(config.period).await;
        leftovers::sweep(&config, &snapshots).await;
    }
}
