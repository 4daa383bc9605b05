//! A state file in somebody else's format: text that another kubelet reads and writes as well.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use mainstay_task::{Lane, LaneError};
use mainstay_types::fnv1a_64;

use crate::file::move_aside;

/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why it is not on disk.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
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

/// A file of text that is replaced whole and flushed to the disk. It has neither kind nor checksum of this crate's: who reads it knows its own.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    most_bytes: u64,
    lane: &'static Lane,
    /// A print of what was written last; held while writing, so that the newest is written last.
    written: tokio::sync::Mutex<Option<u64>>,
}

impl TextFile {
    /// The file at `path`; nothing is touched yet. One of more than `most_bytes` is no such file. Writes have their turn on `lane`.
    pub fn new(path: impl Into<PathBuf>, most_bytes: u64, lane: &'static Lane) -> Self {
        Self { path: path.into(), most_bytes, lane, written: tokio::sync::Mutex::default() }
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What an earlier life left, by `parse`; `None` if there is no file. Blocks.
    ///
    /// # Errors
    /// What is wrong with it: it has been set aside then, and the sentence, which ends with `then`, tells so.
    pub fn read<T, E: std::error::Error>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
        then: &str,
    ) -> Result<Option<T>, String> {
        let text = match self.text() {
            Ok(None) => return Ok(None),
            Ok(Some(text)) => text,
            Err(error) => return Err(self.set_aside(&error.to_string(), then)),
        };
        parse(&text).map(Some).map_err(|error| self.set_aside(&error.to_string(), then))
    }

    fn text(&self) -> io::Result<Option<String>> {
        match fs::metadata(&self.path) {
            Ok(found) if found.len() > self.most_bytes => Err(io::Error::other("it is too large")),
            Ok(_) => fs::read_to_string(&self.path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the file aside because of `why`. The sentence that tells of it ends with `then`. Blocks.
    #[must_use]
    pub fn set_aside(&self, why: &str, then: &str) -> String {
        let shown = self.path.display();
        match move_aside(&self.path) {
            Ok(aside) => format!(
                "the state file {shown} cannot be used as it is ({why}); it was set aside as {}, and {then}",
                aside.display()
            ),
            Err(error) => format!("the state file {shown} cannot be used ({why}), nor set aside ({error})"),
        }
    }

    /// Writes what `text` says when it is its turn, unless that is there already.
    ///
    /// # Errors
    /// [`TextError`]; the old file is there then, or the new one.
    pub async fn write(&self, text: impl Fn() -> String) -> Result<(), TextError> {
        let mut written = self.written.lock().await;
        let text = text();
        let print = fnv1a_64(text.as_bytes());
        if *written == Some(print) {
            return Ok(());
        }
        // What is there is not known until it is written: a write that fails or is given up may have come through.
        *written = None;
        let path = self.path.clone();
        let done = self.lane.run(PATIENCE, move || replace(&path, text.as_bytes())).await;
        let done = done.map_err(|source| TextError::Slow { path: self.path.clone(), source })?;
        done.map_err(|source| TextError::Io { path: self.path.clone(), source })?;
        *written = Some(print);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    static LANE: Lane = Lane::new(1);

    fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
        text.parse()
    }

    #[tokio::test]
    async fn what_is_written_is_read_and_what_is_bad_is_set_aside() {
        let root = tempfile::tempdir().unwrap();
        let file = TextFile::new(root.path().join("state"), 8, &LANE);
        assert_eq!(file.read(number, "").unwrap(), None);
        file.write(|| "7".to_owned()).await.unwrap();
        assert_eq!(file.read(number, "").unwrap(), Some(7));
        // What is there already is not written again.
        fs::remove_file(file.path()).unwrap();
        file.write(|| "7".to_owned()).await.unwrap();
        assert!(!file.path().exists());
        for bad in ["seven", "123456789"] {
            fs::write(file.path(), bad).unwrap();
            let told = file.read(number, "nothing is lost").unwrap_err();
            assert!(told.contains("state.bad-") && told.ends_with(", and nothing is lost"), "{told}");
            assert!(!file.path().exists());
        }
        let aside = crate::files_set_aside_in(root.path()).unwrap();
        assert_eq!(aside.len(), 2, "the first one is still there: {aside:?}");
    }
}
