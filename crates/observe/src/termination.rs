//! A container's last words.

use std::{
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

use k8s_cri::v1::ContainerStatus;
use mainstay_task::Lane;
use mainstay_types::annotations;
use rustix::fs::OFlags;

/// A disk that hangs holds these threads, and no others.
static READERS: Lane = Lane::new(2);
const PATIENCE: Duration = Duration::from_secs(5);

/// Most that one container may say.
const CONTAINER_LIMIT_BYTES: usize = 4096;
/// Most that all containers of a pod may say together.
const POD_LIMIT_BYTES: usize = 12288;

/// How many bytes each of so many containers may say: of its own, and together with what the runtime says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    own: usize,
    whole: usize,
}

/// In place of last words that could not be read; they are read again with the next look at the pod.
pub(crate) const UNREAD: &str = "(what it said at its end cannot be read: the disk does not answer)";

impl Limit {
    pub(crate) fn of_each(containers: usize) -> Self {
        let whole = POD_LIMIT_BYTES / containers.max(1);
        Self { own: whole.min(CONTAINER_LIMIT_BYTES), whole }
    }
}

/// The runtime's message, with what the container wrote to its termination log appended.
pub(crate) async fn message(status: &ContainerStatus, limit: Limit) -> String {
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
    let said = READERS
        .run(PATIENCE, move || {
            let said = file.map(|file| read_at_most(&file, limit.own)).unwrap_or_default();
            if said.is_empty() && from_log {
                mainstay_logs::termination_log_tail(&log).unwrap_or_default()
            } else {
                said
            }
        })
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "what a container said at its end cannot be read");
            UNREAD.to_owned()
        });
    shown(&status.message, &said, limit)
}

/// The end of what the container said after what the runtime says, the whole no longer than it may be. Upstream cuts its end
/// too, in the middle of a character.
fn shown(runtime: &str, said: &str, limit: Limit) -> String {
    let from = said.ceil_char_boundary(said.len().saturating_sub(limit.own));
    let said = said.get(from..).unwrap_or_default();
    let mut text = match (runtime.is_empty(), said.is_empty()) {
        (_, true) => runtime.to_owned(),
        (true, false) => said.to_owned(),
        (false, false) => format!("{runtime}: {said}"),
    };
    text.truncate(text.floor_char_boundary(limit.whole));
    text
}

/// Reads the end of a file that a container could write to: no symlink is followed, nothing can block.
fn read_at_most(path: &std::path::Path, limit: usize) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return String::new() };
    let mut file = std::fs::File::from(fd);
    let Some(metadata) = file.metadata().ok().filter(std::fs::Metadata::is_file) else {
        return String::new();
    };
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    if file.seek(SeekFrom::Start(metadata.len().saturating_sub(limit))).is_err() {
        return String::new();
    }
    let mut bytes = Vec::new();
    match file.take(limit).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_said_of_a_pods_ends_is_bounded() {
        let many = Limit::of_each(12);
        assert_eq!((Limit::of_each(1).own, many.own, many.whole), (4096, 1024, 1024));
        // 2048 bytes of the log's end, as they come.
        let tail = "ä".repeat(1023) + "end";
        let text = shown("", &tail, many);
        assert!(text.len() <= 1024 && text.ends_with("äend") && text.starts_with('ä'), "{text}");
        let text = shown("failed to start", &tail, many);
        assert!(text.len() <= 1024 && text.starts_with("failed to start: ä"), "{text}");
        assert!(text.ends_with('ä'), "cut between two characters: {text}");
        // What is no text becomes three times as long.
        let lossy = String::from_utf8_lossy(&[0xff; 1024]).into_owned();
        assert!(shown("", &lossy, many).len() <= 1024);
        assert!(shown(&"x".repeat(20_000), "", Limit::of_each(1)).len() <= 12288);
        assert_eq!(shown("a", "b", many), "a: b");
    }

    #[test]
    fn the_last_words_are_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for (written, limit, expected) in
            [("begin-end", 3, "end"), ("short", 10, "short"), ("", 10, ""), ("exact", 5, "exact")]
        {
            std::fs::write(&path, written).unwrap();
            assert_eq!(read_at_most(&path, limit), expected, "{written}");
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_at_most(&link, 10), "", "no link is followed");
        assert_eq!(read_at_most(directory.path(), 10), "");
    }
}
