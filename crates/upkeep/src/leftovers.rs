//! Directories and links of pods that are gone.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, stream};
use mainstay_logs::{container_log_symlink_name, remove_container_log};
use mainstay_task::Lane;
use mainstay_types::{ContainerId, ContainerPhase, Counter, DesiredState, NodeSnapshot};
use mainstay_volume::Progress;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{Snapshots, UpkeepConfig};

/// Nothing younger is a leftover: somebody may be making it right now.
const MIN_AGE: Duration = Duration::from_secs(60);
/// What takes longer to unmount is left to itself, and looked at in the next round.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// A disk that hangs holds these threads, and no others.
static SWEEP: Lane = Lane::new(1);
static LOGS: Lane = Lane::new(1);
/// Much may have been left behind.
const SWEEP_PATIENCE: Duration = Duration::from_secs(600);
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// So many pods' directories are unmounted at once.
const PARALLEL: usize = 4;

/// Knows whose a directory is, by what is known at the moment of asking: a pod whose file was put back has the UID that it
/// had before.
#[derive(Clone)]
struct Owners {
    snapshots: Snapshots,
    desired: watch::Receiver<Arc<DesiredState>>,
}

impl Owners {
    /// Nobody knows this pod, and all have been heard who might.
    fn has_none(&self, uid: &str) -> bool {
        let desired = Arc::clone(&self.desired.borrow());
        let Some(snapshot) = self.snapshots.borrow().clone() else { return false };
        // A source that has not delivered may want what nobody knows.
        desired.is_whole()
            && snapshot.desired.is_whole()
            && !desired.pods.contains_key(uid)
            && !snapshot.desired.pods.contains_key(uid)
            && !snapshot.observed.pods.contains_key(uid)
            && !snapshot.observed.silent.contains_key(uid)
            && !snapshot.pods.iter().any(|view| view.uid.as_str() == uid)
    }
}

/// Removes directories of pods that neither the snapshot nor the runtime knows, and links that lead nowhere.
pub(crate) async fn sweep(config: &Arc<UpkeepConfig>, snapshots: &Snapshots) {
    let Some(snapshot) = snapshots.borrow().clone() else { return };
    let owners = Owners { snapshots: snapshots.clone(), desired: config.desired.clone() };
    let work = SWEEP.run(SWEEP_PATIENCE, {
        let (config, owners) = (Arc::clone(config), owners.clone());
        move || {
            let mut pods = old_directories(&config.root_dir.join("pods"));
            let may_go = |path: &Path| {
                config.remove_unknown || mainstay_volume::is_own_pod_dir(path, &config.root_dir)
            };
            pods.retain(|(path, uid)| owners.has_none(uid) && may_go(path));
            if config.remove_unknown {
                for (path, name) in old_directories(&config.pod_logs_dir) {
                    // `<namespace>_<name>_<uid>`: none of the parts can have an underscore but the UID.
                    let uid = name.splitn(3, '_').nth(2);
                    if uid.is_some_and(|uid| owners.has_none(uid)) {
                        remove(&path);
                    }
                }
            }
            let running: HashSet<&str> = snapshot
                .observed
                .pods
                .values()
                .flat_map(|pod| &pod.containers)
                .filter(|container| container.phase == ContainerPhase::Running)
                .map(|container| container.id.as_str())
                .collect();
            // Of a pod about which the runtime does not answer, nobody knows which containers run.
            if snapshot.observed.silent.is_empty() {
                remove_dangling_links(&config, &running);
            }
            pods
        }
    });
    let pods = match work.await {
        Ok(pods) => pods,
        Err(error) => {
            warn!(%error, "the sweep for leftover directories did not end; the next one tries again");
            return;
        }
    };
    let (cleaned, failed) = (Counter::default(), Counter::default());
    let (cleaned, failed) = (&cleaned, &failed);
    let removals = stream::iter(pods).for_each_concurrent(PARALLEL, |(path, uid)| {
        let owners = owners.clone();
        async move {
            // A pod's directory may hold mounts, and behind one of them may be a server that is dead.
            let key = uid.clone();
            let work = move |progress: &Progress| remove_pod(&owners, &path, &uid, progress);
            match config.volume_jobs.run(&key, UNMOUNT_PATIENCE, work).await {
                Ok(Some(true)) => cleaned.add(),
                Ok(Some(false)) => failed.add(),
                Ok(None) => {}
                Err(hung) => {
                    failed.add();
                    warn!(pod.uid = key, %hung, "cannot unmount what a pod left behind; the next sweep tries again");
                }
            }
        }
    });
    removals.await;
    config.counters.orphan_volumes.set(cleaned.get());
    config.counters.orphan_volume_errors.set(failed.get());
}

/// Removes a pod's directory, if it still is nobody's. Run as the UID's job: whoever sets up that pod waits for the end. Whether its
/// volumes could be taken down; `None` if it is somebody's.
fn remove_pod(owners: &Owners, path: &Path, uid: &str, progress: &Progress) -> Option<bool> {
    let old = fs::symlink_metadata(path).and_then(|meta| meta.modified()).is_ok_and(is_old);
    if !old || !owners.has_none(uid) {
        return None;
    }
    match mainstay_volume::tear_down(path, progress) {
        // Unmounting may have taken as long as it likes. What is mounted no more is mounted again for a pod that has come
        // back; its files would not be written again.
        Ok(()) if owners.has_none(uid) => {
            remove(path);
            Some(true)
        }
        Ok(()) => {
            debug!(pod.uid = uid, "a pod came back while its leftovers were unmounted");
            None
        }
        Err(error) => {
            warn!(%error, "cannot unmount what a pod left behind; the next sweep tries again");
            Some(false)
        }
    }
}

/// The log of a dead container and the link to it, if no other has the same log.
pub(crate) fn log_of(
    config: &UpkeepConfig,
    snapshot: &NodeSnapshot,
    id: &ContainerId,
) -> Option<(PathBuf, PathBuf)> {
    let pods = snapshot.pods.iter().filter_map(|view| view.observed.as_deref());
    let found = pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    let (pod, container) = found.into_iter().find(|(_, container)| container.id == *id)?;
    let shared = pod.containers.iter().any(|other| other.id != *id && other.log_path == container.log_path);
    if container.log_path.is_empty() || shared {
        return None;
    }
    let log = PathBuf::from(&*container.log_path);
    let (name, namespace) = (&pod.full_name.name, &pod.full_name.namespace);
    let link = container_log_symlink_name(name, namespace, container.name.as_str(), id.as_str());
    Some((log, config.container_log_links.join(link)))
}

/// Removes the log of a dead container, what was rotated out of it, and the link to it.
pub(crate) async fn remove_log(log: PathBuf, link: PathBuf) {
    let shown = log.display().to_string();
    let work = LOGS.run(LOG_PATIENCE, move || {
        if let Err(error) = remove_container_log(&log) {
            debug!(%error, log = %log.display(), "cannot remove the log of a dead container");
        }
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                debug!(%error, link = %link.display(), "cannot remove the link to the log of a dead container");
            }
            _ => {}
        }
    });
    if let Err(error) = work.await {
        warn!(%error, log = shown, "removing a container's log did not end; the log goes with its pod");
    }
}

fn old_directories(parent: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| entry.metadata().and_then(|meta| meta.modified()).is_ok_and(is_old))
        .map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn is_old(modified: SystemTime) -> bool {
    SystemTime::now().duration_since(modified).is_ok_and(|age| age >= MIN_AGE)
}

fn remove(path: &Path) {
    match mainstay_host::remove_dir_all_one_fs(path) {
        Ok(()) => debug!(path = %path.display(), "removed what a pod left behind"),
        Err(error) => warn!(%error, "cannot remove what a pod left behind; the next sweep tries again"),
    }
}

/// Removes links that lead nowhere, but not those of running containers, whose log may just be changing, nor those that lead to
/// other places than our own logs, which are another agent's.
fn remove_dangling_links(config: &UpkeepConfig, running: &HashSet<&str>) {
    let Ok(entries) = fs::read_dir(&config.container_log_links) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_ours = fs::read_link(&path).is_ok_and(|target| target.starts_with(&config.pod_logs_dir));
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name.trim_end_matches(".log").rsplit('-').next().unwrap_or_default();
        if running.contains(id) {
            continue;
        }
        let old = entry.metadata().and_then(|meta| meta.modified()).is_ok_and(is_old);
        if is_ours
            && old
            && !path.exists()
            && let Err(error) = fs::remove_file(&path)
        {
            debug!(%error, link = %path.display(), "cannot remove a log link that leads nowhere");
        }
    }
}

#[cfg(test)]
mod tests;
