//! What lies on disk for a pod: directories, hosts file, termination logs, log links. Blocking calls run off the workers.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_cri::v1::Mount;
use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_cgroup::CgroupError;
use mainstay_host::RemoveError;
use mainstay_podspec::runtime::{self, hosts_file, pod_log_directory};
use mainstay_types::{ContainerId, DesiredPod, NodeCounters, PodExt, PodUid};
use mainstay_volume::{Hung, Progress, VolumeError};
use tracing::{debug, warn};

use crate::{
    containers,
    sandbox::Made,
    worker::{Order, Shared},
};

/// How long a worker waits for its pod's cgroup before it says so. What was begun goes on.
const CGROUP_PATIENCE: Duration = Duration::from_secs(15);

/// How long a worker waits for a file. What was begun goes on.
const FILE_PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits for the end of all that a pod leaves behind, which may be much.
const REMOVE_PATIENCE: Duration = Duration::from_secs(120);

/// What the disk refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// Making or writing something.
    #[error("cannot {action} {path}: {source}; check that the file system is writable and not full", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// Making the pod's directory.
    #[error("{0}; check that the file system is writable and not full")]
    Dir(VolumeError),
    /// Removing something.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// A cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A cgroup or a file, for too long.
    #[error(transparent)]
    Hung(#[from] Hung),
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { action, path, source }
}

/// Work on a pod's files, on a thread of its own: a disk that hangs holds up this pod, and not the threads on which all
/// records are written.
async fn off_the_workers<T: Send + 'static>(
    (shared, uid): (&Shared, &PodUid),
    (doing, patience): (&'static str, Duration),
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let work = move |progress: &Progress| {
        progress.doing(doing);
        work()
    };
    shared.config.volume_jobs.run(uid.as_str(), patience, work).await?
}

/// `<root>/pods/<uid>`.
pub(crate) fn pod_dir(root: &Path, uid: &PodUid) -> PathBuf {
    root.join("pods").join(uid.as_str())
}

fn log_dir(shared: &Shared, pod: &Pod) -> PathBuf {
    let node = &shared.config.node;
    pod_log_directory(&node.pod_logs_dir, pod.namespace_ref(), pod.name_ref(), pod.uid_ref())
}

/// Makes the pod's directories and its cgroup.
pub(crate) async fn prepare_pod(shared: &Shared, desired: &DesiredPod) -> Result<(), FileError> {
    let dir = pod_dir(&shared.config.node.root_dir, &desired.uid);
    let logs = log_dir(shared, &desired.pod);
    let doing = ("making the pod's directories", FILE_PATIENCE);
    let root = shared.config.node.root_dir.clone();
    off_the_workers((shared, &desired.uid), doing, move || {
        mainstay_volume::make_pod_dir(&dir, &root).map_err(FileError::Dir)?;
        for sub in ["volumes", "plugins"] {
            make_dir(&dir.join(sub), 0o750)?;
        }
        if let Some(parent) = logs.parent() {
            make_dir(parent, 0o750)?;
        }
        make_dir(&logs, 0o755)
    })
    .await?;
    let Some(cgroups) = shared.config.cgroups.clone() else { return Ok(()) };
    let exclusive = shared.config.resources.holds_cpus(desired.uid.as_str());
    let (pod, values) =
        (desired.pod.clone(), runtime::pod_cgroup_values(&desired.pod, &shared.config.node, exclusive));
    let doing = format!("making the cgroup {}", cgroups.parent(&pod));
    let counters = Arc::clone(&shared.config.counters);
    let work = move || timed(&counters, "create", || cgroups.create(&pod, values));
    on_own_thread(shared, &desired.uid, doing, work).await
}

/// Work on a pod's cgroup: a systemd that hangs holds up that pod only, and not the threads that all share.
async fn on_own_thread(
    shared: &Shared,
    uid: &PodUid,
    doing: String,
    work: impl FnOnce() -> Result<(), CgroupError> + Send + 'static,
) -> Result<(), FileError> {
    let work = move |progress: &Progress| {
        progress.doing(doing);
        work()
    };
    Ok(shared.config.volume_jobs.run(uid.as_str(), CGROUP_PATIENCE, work).await??)
}

fn make_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed("make the directory", path))
}

/// The cgroup a sandbox is put into.
pub(crate) fn cgroup_parent(shared: &Shared, pod: &Pod) -> String {
    shared.config.cgroups.as_ref().map(|cgroups| cgroups.parent(pod)).unwrap_or_default()
}

/// Removes the pod's cgroup. What is left in it once the runtime has let go of the pod is nobody's, and killed.
pub(crate) async fn remove_cgroup(shared: &Shared, desired: &DesiredPod) -> Result<(), FileError> {
    let Some(cgroups) = shared.config.cgroups.clone() else { return Ok(()) };
    let uid = desired.uid.clone();
    let doing = format!("removing the cgroup {}", cgroups.parent(&desired.pod));
    let counters = Arc::clone(&shared.config.counters);
    on_own_thread(shared, &desired.uid, doing, move || timed(&counters, "destroy", || cgroups.remove(&uid)))
        .await
}

/// Counts work on a cgroup, in upstream's word for it.
pub(crate) fn timed<T>(counters: &NodeCounters, word: &'static str, work: impl FnOnce() -> T) -> T {
    let begun = std::time::Instant::now();
    let done = work();
    counters.cgroup_work.of([word]).observe(begun.elapsed());
    done
}

/// How often the container was started before: by the newest instance, else by the logs that earlier ones left.
pub(crate) async fn next_restart_count(shared: &Shared, order: &Order, name: &str) -> u32 {
    if let Some(newest) =
        order.observed.as_deref().and_then(|o| o.instances(name).map(|c| c.restart_count).max())
    {
        return newest.saturating_add(1);
    }
    let dir = log_dir(shared, &order.desired.pod).join(name);
    let doing = ("looking for earlier logs", FILE_PATIENCE);
    let highest = off_the_workers((shared, &order.desired.uid), doing, move || {
        mainstay_logs::highest_log_number(&dir).map_err(failed("list the logs in", &dir))
    })
    .await;
    match highest {
        Ok(highest) => highest.map_or(0, |number| number.saturating_add(1)),
        Err(error) => {
            debug!(%error, "no earlier logs");
            0
        }
    }
}

/// Everything mounted into a container: volumes, hosts file, termination log.
pub(crate) async fn mounts(
    shared: &Shared,
    order: &Order,
    spec: &Container,
    target: &Made,
    (restart_count, volumes): (u32, Vec<Mount>),
) -> Result<Vec<Mount>, FileError> {
    let pod = &order.desired.pod;
    let dir = pod_dir(&shared.config.node.root_dir, &order.desired.uid);
    let logs = log_dir(shared, pod).join(&spec.name);
    let (hostname, domain) = containers::names(shared, order);
    let own_hosts = volumes.iter().any(|mount| mount.container_path == "/etc/hosts");
    let wants_hosts = !own_hosts && (pod.host_network() || !target.ips.is_empty());
    let (pod, ips, name) = (pod.clone(), target.ips.clone(), spec.name.clone());
    let message_path = spec.termination_message_path.clone().unwrap_or_default();
    let instances = order.observed.iter().flat_map(|observed| observed.instances(&spec.name));
    let there: Vec<u32> = instances.map(|instance| instance.restart_count).collect();
    let selinux = shared.config.node.selinux;
    let doing = ("making a container's files", FILE_PATIENCE);
    off_the_workers((shared, &order.desired.uid), doing, move || {
        make_dir(&logs, 0o755)?;
        let mut mounts = volumes;
        if wants_hosts {
            let node_file = pod.host_network().then(node_hosts);
            let text = hosts_file(&pod, &hostname, &domain, &ips, node_file.as_deref());
            let path = dir.join("etc-hosts");
            write_file(&path, text.as_bytes(), 0o644)?;
            mounts.push(Mount { selinux_relabel: selinux, ..mount("/etc/hosts", &path) });
        }
        if !message_path.is_empty() {
            let container_dir = dir.join("containers").join(&name);
            make_dir(&container_dir, 0o750)?;
            remove_message_files(&container_dir, &there);
            let path = container_dir.join(format!("{restart_count}-{}", random_name()));
            write_file(&path, b"", 0o666)?;
            mounts.push(Mount { selinux_relabel: selinux, ..mount(&message_path, &path) });
        }
        Ok(mounts)
    })
    .await
}

fn mount(container_path: &str, host_path: &Path) -> Mount {
    let container_path = if container_path.starts_with('/') {
        container_path.to_owned()
    } else {
        format!("/{container_path}")
    };
    Mount { container_path, host_path: host_path.to_string_lossy().into_owned(), ..Mount::default() }
}

/// Writes a file with exactly these permissions, whatever the umask is.
fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    fs::write(path, bytes).map_err(failed("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("set the mode of", path))
}

/// Removes termination logs whose containers have been collected: a container that is restarted for ever must not fill the
/// disk with them. `there` are the restart counts of those that have not.
fn remove_message_files(dir: &Path, there: &[u32]) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let count = name.to_str().and_then(|name| name.split_once('-')?.0.parse::<u32>().ok());
        if count.is_some_and(|count| !there.contains(&count))
            && let Err(error) = fs::remove_file(entry.path())
        {
            debug!(%error, path = %entry.path().display(), "cannot remove an old termination log");
        }
    }
}

/// Eight hex digits: each instance of a container gets a termination log of its own.
fn random_name() -> String {
    format!("{:08x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) & 0xffff_ffff)
}

/// Makes the link by which log collectors find a container's log. Without it everything works, so it only warns.
pub(crate) async fn link_log(
    shared: &Shared,
    desired: &DesiredPod,
    container: &str,
    id: &ContainerId,
    log: PathBuf,
) {
    let dir = shared.config.container_log_links.clone();
    let (name, namespace) = (desired.pod.name_ref(), desired.pod.namespace_ref());
    let link = dir.join(mainstay_logs::container_log_symlink_name(name, namespace, container, id.as_str()));
    let doing = ("making the link to a log", FILE_PATIENCE);
    let made = off_the_workers((shared, &desired.uid), doing, move || {
        if !log.exists() {
            return Ok(());
        }
        make_dir(&dir, 0o755)?;
        match std::os::unix::fs::symlink(&log, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result.map_err(failed("make the link", &link)),
        }
    })
    .await;
    if let Err(error) = made {
        warn!(%error, "log collectors that read the links will not find this container");
    }
}

/// Removes the pod's directories, logs and log links.
pub(crate) async fn remove_pod(shared: &Shared, order: &Order) -> Result<(), FileError> {
    let dir = pod_dir(&shared.config.node.root_dir, &order.desired.uid);
    let logs = log_dir(shared, &order.desired.pod);
    let links = shared.config.container_log_links.clone();
    let pod = &order.desired.pod;
    let prefix = format!("{}_{}_", pod.name_ref(), pod.namespace_ref());
    let doing = ("removing the pod's files", REMOVE_PATIENCE);
    off_the_workers((shared, &order.desired.uid), doing, move || {
        remove_links(&links, &prefix, &logs);
        for path in [dir, logs] {
            mainstay_host::remove_dir_all_one_fs(&path)?;
        }
        Ok(())
    })
    .await
}

/// Removes links that lead into the pod's log directory; another pod of the same name keeps its own.
fn remove_links(links: &Path, prefix: &str, logs: &Path) {
    let Ok(entries) = fs::read_dir(links) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(prefix)
            && fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(logs));
        if ours && let Err(error) = fs::remove_file(entry.path()) {
            debug!(%error, link = %entry.path().display(), "cannot remove a log link");
        }
    }
}

/// The node's own hosts file, whatever letters are in it. Without one pods have only their own lines.
fn node_hosts() -> String {
    match fs::read("/etc/hosts") {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(%error, "cannot read /etc/hosts; pods in the node's network have only their own lines of it");
            }
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn termination_logs_go_with_their_containers() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["0-aa", "1-bb", "2-cc", "10-dd", "deadbeef", "x-1"];
        for file in files {
            fs::write(dir.path().join(file), b"").unwrap();
        }
        remove_message_files(dir.path(), &[2, 10]);
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["10-dd", "2-cc", "deadbeef", "x-1"], "others' files are left alone");
        remove_message_files(&dir.path().join("none"), &[]);
    }
}
