//! Upstream's state files: `cpu_manager_state`, `memory_manager_state`.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mainstay_task::{Lane, LaneError};

/// What a machine of thousands of containers needs; more would be no such file.
const MAX_BYTES: u64 = 64 << 20;
/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One writer at a time.
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

/// A file of text.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// What was written last; held while writing, so that the newest is written last.
    written: tokio::sync::Mutex<Option<String>>,
}

impl StateFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, written: tokio::sync::Mutex::default() }
    }

    /// What an earlier life left, by `parse`. A file that cannot be used is set aside, and told of in a sentence.
    pub(crate) fn read<T, E: std::error::Error>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, String> {
        let text = match read(&self.path) {
            Ok(None) => return Ok(None),
            Ok(Some(text)) => text,
            Err(error) => return Err(self.set_aside(&error.to_string())),
        };
        parse(&text).map(Some).map_err(|error| self.set_aside(&error.to_string()))
    }

    /// Sets the file aside, for what the sentence says that is returned with more about it.
    pub(crate) fn set_aside(&self, why: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = self.path.with_file_name(format!("{name}.bad-{now}"));
        let shown = self.path.display();
        match fs::rename(&self.path, &aside) {
            Ok(()) => format!(
                "the state file {shown} cannot be used as it is ({why}); it was set aside as {}, and what containers that run have is \
                 looked up from them",
                aside.display()
            ),
            Err(error) => format!("the state file {shown} cannot be used ({why}), nor set aside ({error})"),
        }
    }

    /// Writes what `text` says when it is its turn, unless that is there already.
    pub(crate) async fn write(&self, text: impl Fn() -> String) -> Result<(), WriteError> {
        let mut written = self.written.lock().await;
        let text = text();
        if written.as_ref() == Some(&text) {
            return Ok(());
        }
        // What is there is not known until it is written: a write that fails or is given up may have come through.
        *written = None;
        let (path, bytes) = (self.path.clone(), text.clone());
        let done = LANE.run(PATIENCE, move || replace(&path, bytes.as_bytes())).await;
        let done = done.map_err(|source| WriteError::Slow { path: self.path.clone(), source })?;
        done.map_err(|source| WriteError::Io { path: self.path.clone(), source })?;
        *written = Some(text);
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
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let temporary = directory.join(format!(".{name}.tmp"));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    fs::File::open(directory)?.sync_all()
}
