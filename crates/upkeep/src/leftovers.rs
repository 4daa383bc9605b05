//! Directories and links of pods that are gone.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use mainstay_logs::{container_log_symlink_name, remove_container_log};
use mainstay_types::{ContainerId, ContainerPhase, NodeSnapshot};
use tracing::{debug, warn};

use crate::UpkeepConfig;

/// Nothing younger is a leftover: somebody may be making it right now.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Removes directories of pods that neither the snapshot nor the runtime knows, and links that lead nowhere.
pub(crate) async fn sweep(config: &Arc<UpkeepConfig>, snapshot: Arc<NodeSnapshot>) {
    let config = Arc::clone(config);
    let work = tokio::task::spawn_blocking(move || {
        let known: HashSet<&str> = snapshot
            .pods
            .iter()
            .map(|view| view.uid.as_str())
            .chain(snapshot.observed.pods.keys().map(mainstay_types::PodUid::as_str))
            .chain(snapshot.desired.pods.keys().map(mainstay_types::PodUid::as_str))
            .collect();
        if config.remove_unknown {
            for (path, name) in old_directories(&config.root_dir.join("pods")) {
                if !known.contains(name.as_str()) {
                    remove(&path);
                }
            }
            for (path, name) in old_directories(&config.pod_logs_dir) {
                // `<namespace>_<name>_<uid>`: none of the parts can have an underscore but the UID.
                let uid = name.splitn(3, '_').nth(2);
                if uid.is_some_and(|uid| !known.contains(uid)) {
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
        remove_dangling_links(&config.container_log_links, &running);
    });
    if work.await.is_err() {
        warn!("the sweep for leftover directories died; the next one tries again");
    }
}

/// Removes the log of a dead container, what was rotated out of it, and the link to it.
pub(crate) async fn remove_log(config: &UpkeepConfig, snapshot: &NodeSnapshot, id: &ContainerId) {
    let pods = snapshot.pods.iter().filter_map(|view| view.observed.as_deref());
    let found = pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    let Some((pod, container)) = found.into_iter().find(|(_, container)| container.id == *id) else { return };
    let shared = pod.containers.iter().any(|other| other.id != *id && other.log_path == container.log_path);
    if container.log_path.is_empty() || shared {
        return;
    }
    let log = PathBuf::from(&*container.log_path);
    let (name, namespace) = (&pod.full_name.name, &pod.full_name.namespace);
    let link = container_log_symlink_name(name, namespace, container.name.as_str(), id.as_str());
    let link = config.container_log_links.join(link);
    let work = tokio::task::spawn_blocking(move || {
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
    if work.await.is_err() {
        warn!(container.id = %id, "removing a container's log died; the log goes with its pod");
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

/// Removes links that lead nowhere, but not those of running containers: their log may just be changing.
fn remove_dangling_links(directory: &Path, running: &HashSet<&str>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name.trim_end_matches(".log").rsplit('-').next().unwrap_or_default();
        if running.contains(id) {
            continue;
        }
        let old = entry.metadata().and_then(|meta| meta.modified()).is_ok_and(is_old);
        if is_link
            && old
            && !path.exists()
            && let Err(error) = fs::remove_file(&path)
        {
            debug!(%error, link = %path.display(), "cannot remove a log link that leads nowhere");
        }
    }
}
