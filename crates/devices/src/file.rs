//! `kubelet_internal_checkpoint`: who holds which devices, on disk.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mainstay_alloc::Ledger;
use mainstay_task::{Lane, LaneError};
use mainstay_types::fnv1a_64;

/// Upstream's.
const NAME: &str = "kubelet_internal_checkpoint";
/// What a node full of pods with the largest answers of plugins needs; more would be no such file.
const MAX_BYTES: u64 = 512 << 20;
/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One file, one writer.
static LANE: Lane = Lane::new(1);

/// Why it is not on disk.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The system refused.
    #[error("cannot write {path}; is the disk full?", path = path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk hangs.
    #[error("cannot write {path}", path = path.display())]
    Slow {
        /// Where.
        path: PathBuf,
        /// How it hangs.
        source: LaneError,
    },
}

/// The file.
#[derive(Debug)]
pub(crate) struct CheckpointFile {
    path: PathBuf,
    /// A print of what was written last; held while writing, so that the newest is written last.
    written: tokio::sync::Mutex<Option<u64>>,
}

impl CheckpointFile {
    /// Reads what an earlier life left. A file that cannot be used is set aside, and told of in a sentence.
    pub(crate) fn open(directory: &Path) -> (Self, Ledger, Option<String>) {
        let path = directory.join(NAME);
        let (ledger, problem) = match read(&path) {
            Ok(None) => (Ledger::default(), None),
            Ok(Some(text)) => match Ledger::from_text(&text) {
                Ok(ledger) => (ledger, None),
                Err(error) => (Ledger::default(), Some(set_aside(&path, &error.to_string()))),
            },
            Err(error) => (Ledger::default(), Some(set_aside(&path, &error.to_string()))),
        };
        (Self { path, written: tokio::sync::Mutex::default() }, ledger, problem)
    }

    /// Writes what `text` says when it is its turn, unless that is there already.
    pub(crate) async fn write(&self, text: impl Fn() -> String) -> Result<(), WriteError> {
        let mut written = self.written.lock().await;
        let text = text();
        let print = fnv1a_64(text.as_bytes());
        if *written == Some(print) {
            return Ok(());
        }
        // What is there is not known until it is written: a write that fails or is given up may have come through.
        *written = None;
        let path = self.path.clone();
        let done = LANE.run(PATIENCE, move || replace(&path, text.as_bytes())).await;
        let done = done.map_err(|source| WriteError::Slow { path: self.path.clone(), source })?;
        done.map_err(|source| WriteError::Io { path: self.path.clone(), source })?;
        *written = Some(print);
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Ok(found) if found.len() > MAX_BYTES => Err(io::Error::other("it is too large")),
        Ok(_) => fs::read_to_string(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// As upstream writes: beside it, flushed, then in its place.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let temporary = directory.join(format!(".{NAME}.tmp"));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    fs::File::open(directory)?.sync_all()
}

fn set_aside(path: &Path, why: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let aside = path.with_file_name(format!("{NAME}.bad-{now}"));
    let shown = path.display();
    match fs::rename(path, &aside) {
        Ok(()) => format!(
            "the state file {shown} cannot be used ({why}); it was set aside as {}: who held which devices is not known, and pods that run \
             keep them",
            aside.display()
        ),
        Err(error) => format!("the state file {shown} cannot be used ({why}), nor set aside ({error})"),
    }
}
