//! A container's last words.

use std::{io::Read, path::PathBuf};

use k8s_cri::v1::ContainerStatus;
use mainstay_types::annotations;
use rustix::fs::OFlags;

/// Most that one container may say.
const CONTAINER_LIMIT_BYTES: usize = 4096;
/// Most that all containers of a pod may say together.
const POD_LIMIT_BYTES: usize = 12288;

/// How many bytes each of so many containers may say.
pub(crate) fn limit(containers: usize) -> usize {
    (POD_LIMIT_BYTES / containers.max(1)).min(CONTAINER_LIMIT_BYTES)
}

/// The runtime's message, with what the container wrote to its termination log appended.
pub(crate) async fn message(status: &ContainerStatus, limit: usize) -> String {
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str).unwrap_or_default();
    let path = annotation(annotations::TERMINATION_MESSAGE_PATH);
    let from_log = annotation(annotations::TERMINATION_MESSAGE_POLICY) == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    let file: Option<PathBuf> = status
        .mounts
        .iter()
        .find(|mount| !path.is_empty() && mount.container_path == path)
        .map(|mount| mount.host_path.clone().into());
    let log: PathBuf = status.log_path.clone().into();
    let said = tokio::task::spawn_blocking(move || {
        let said = file.map(|file| read_at_most(&file, limit)).unwrap_or_default();
        if said.is_empty() && from_log {
            mainstay_logs::termination_log_tail(&log).unwrap_or_default()
        } else {
            said
        }
    })
    .await
    .unwrap_or_default();
    match (status.message.is_empty(), said.is_empty()) {
        (_, true) => status.message.clone(),
        (true, false) => said,
        (false, false) => format!("{}: {said}", status.message),
    }
}

/// Reads the beginning of a file that a container could write to: no symlink is followed, nothing can block.
fn read_at_most(path: &std::path::Path, limit: usize) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return String::new() };
    let file = std::fs::File::from(fd);
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return String::new();
    }
    let mut bytes = Vec::new();
    match file.take(u64::try_from(limit).unwrap_or(u64::MAX)).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}
