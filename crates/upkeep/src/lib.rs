//! Keeps the node tidy: dead containers and sandboxes, leftover directories, container logs.
//!
//! It removes only what is dead and superseded, by upstream's rules, and only of pods that are in the snapshot; whole
//! pods are removed by reconcile. What is still wanted, or belongs to somebody else, is never touched.
//!
//! In: snapshots by `watch`. Out: calls to the runtime. Tasks: `garbage` and `log rotation`, owned by the task group given
//! to [`start`]. Which objects go is decided by pure functions in [`garbage`].

#![forbid(unsafe_code)]

pub mod garbage;
mod leftovers;
mod rotation;

use std::{path::PathBuf, sync::Arc, time::Duration};

use mainstay_cri::Cri;
use mainstay_task::TaskGroup;
use mainstay_types::NodeSnapshot;
use tokio::sync::watch;
use tracing::debug;

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
    /// Directories of pods that nobody knows may be removed (`mainstay kubelet`). Otherwise they may be another
    /// kubelet's, and only reconcile removes what is mainstay's own.
    pub remove_unknown: bool,
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

/// Starts both tasks.
pub fn start(config: UpkeepConfig, snapshots: &Snapshots, tasks: &TaskGroup) {
    let config = Arc::new(config);
    let shutdown = tasks.shutdown();
    let work = collect_garbage(Arc::clone(&config), snapshots.clone());
    tasks.spawn_critical("garbage", async move {
        shutdown.run_until_signalled(work).await;
    });
    let shutdown = tasks.shutdown();
    let work = rotation::rotate_logs(config, snapshots.clone());
    tasks.spawn_critical("log rotation", async move {
        shutdown.run_until_signalled(work).await;
    });
}

/// A round at every change that left something dead behind (but not oftener than each second), and one each period.
async fn collect_garbage(config: Arc<UpkeepConfig>, mut snapshots: Snapshots) {
    let mut next_sweep = tokio::time::Instant::now() + config.period;
    loop {
        let current = snapshots.borrow_and_update().clone();
        if let Some(snapshot) = current {
            for removal in garbage::superseded(&snapshot, config.keep, jiff::Timestamp::now()) {
                let result = match &removal {
                    garbage::Removal::Container(id) => {
                        // The log first, as upstream: once the container is gone, nobody knows where its log is.
                        leftovers::remove_log(&config, &snapshot, id).await;
                        config.cri.remove_container(id.as_str()).await
                    }
                    garbage::Removal::Sandbox(id) => {
                        // A sandbox that died by itself still holds its network until it is stopped.
                        match config.cri.stop_sandbox(id.as_str()).await {
                            Ok(()) => config.cri.remove_sandbox(id.as_str()).await,
                            Err(error) if error.is_not_found() => Ok(()),
                            Err(error) => Err(error),
                        }
                    }
                };
                match result {
                    Ok(()) => debug!(?removal, "removed what is superseded"),
                    Err(error) => debug!(?removal, %error, "cannot remove what is superseded; later again"),
                }
            }
            if tokio::time::Instant::now() >= next_sweep {
                next_sweep = tokio::time::Instant::now() + config.period;
                leftovers::sweep(&config, snapshot).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Cancel safe: both branches only wait.
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next_sweep) => {}
        }
    }
}
