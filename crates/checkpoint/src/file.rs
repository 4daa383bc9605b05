//! One state file.

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{BadFile, WriteError, envelope};

/// No state file comes near this; one that does would only eat memory.
const MAX_BYTES: u64 = 64 << 20;

/// How many files set aside are kept per name; more would fill the disk if the same thing went wrong at every start.
const KEPT_SET_ASIDE: usize = 3;

/// Whether a write must survive a power failure or only the death of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// File and directory are flushed to the disk before the write returns.
    PowerFailure,
    /// No flush: for what is rebuilt from the runtime anyway, and written often.
    ProcessDeath,
}

/// One state file of a kind and version. Several writers of one path do not corrupt it; the last one wins.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    kind: &'static str,
    version: u32,
    durability: Durability,
}

/// What was found where a state file was looked for.
#[derive(Debug)]
pub enum Loaded<T> {
    /// There is no such file.
    Absent,
    /// The file's data, intact.
    Good(T),
    /// A file that cannot be used, which was moved out of the way.
    SetAside(SetAside),
}

/// A bad state file and where it is now.
#[derive(Debug)]
pub struct SetAside {
    /// Where the file was looked for.
    pub path: PathBuf,
    /// Where it was moved for a look at it, or `None` if it could not be moved (the next write replaces it).
    pub moved_to: Option<PathBuf>,
    /// What is wrong with it.
    pub why: BadFile,
}

impl std::fmt::Display for SetAside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the state file {} cannot be used ({})", self.path.display(), self.why)?;
        match &self.moved_to {
            Some(moved) => {
                write!(f, "; it was set aside as {} and its contents are rebuilt", moved.display())
            }
            None => f.write_str("; its contents are rebuilt and the next write replaces it"),
        }
    }
}

impl File {
    /// The state file at `path`; nothing is touched yet. `version` goes up when the form of the data changes so that an
    /// older mainstay must not read it; older versions are still read.
    pub fn new(path: impl Into<PathBuf>, kind: &'static str, version: u32, durability: Durability) -> Self {
        Self { path: path.into(), kind, version, durability }
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file by one that holds `value`, in one step: a reader sees the old data or the new.
    ///
    /// # Errors
    /// [`WriteError`]; the old file is then unchanged. Its directory must exist (see [`ensure_directory`]).
    pub fn write<T: Serialize>(&self, value: &T) -> Result<(), WriteError> {
        let bytes = envelope::encode(value, self.kind, self.version)
            .map_err(|source| WriteError::Encode { path: self.path.clone(), kind: self.kind, source })?;
        let temporary = self.temporary_path();
        let written = self.write_temporary(&temporary, &bytes, false).and_then(|()| {
            fs::rename(&temporary, &self.path).map_err(|e| WriteError::io("replace", &self.path, e))
        });
        if let Err(error) = written {
            // It may not exist, and what went wrong is the error above.
            drop(fs::remove_file(&temporary));
            return Err(error);
        }
        self.flush_directory()
    }

    /// As [`File::write`], but into `spare`, the file that an earlier call put out of use, and returns the one that is out
    /// of use now. For a file that is written often and that nobody reads meanwhile: who has the old one open would see it
    /// change.
    pub(crate) fn exchange<T: Serialize>(
        &self,
        value: &T,
        spare: Option<PathBuf>,
    ) -> Result<Option<PathBuf>, WriteError> {
        let bytes = envelope::encode(value, self.kind, self.version)
            .map_err(|source| WriteError::Encode { path: self.path.clone(), kind: self.kind, source })?;
        // Whoever removed it, or put something else in its place, is not to be in the way.
        let spare = spare.filter(|spare| is_file(spare));
        let is_spare = spare.is_some();
        let temporary = spare.unwrap_or_else(|| self.temporary_path());
        let written = self.write_temporary(&temporary, &bytes, is_spare).and_then(|()| {
            replace(&temporary, &self.path).map_err(|e| WriteError::io("replace", &self.path, e))
        });
        match written {
            Ok(exchanged) => self.flush_directory().map(|()| exchanged.then_some(temporary)),
            Err(error) => {
                // It may not exist, and what went wrong is the error above.
                drop(fs::remove_file(&temporary));
                Err(error)
            }
        }
    }

    fn flush_directory(&self) -> Result<(), WriteError> {
        if self.durability == Durability::PowerFailure {
            let directory = self.directory();
            fs::File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(|e| WriteError::io("flush", directory, e))?;
        }
        Ok(())
    }

    /// Reads the file. One that cannot be used is moved aside and logged; this never fails.
    ///
    /// Also removes temporary files that a killed agent left beside it.
    pub fn load<T: DeserializeOwned>(&self) -> Loaded<T> {
        remove_leftovers(self.directory(), &format!(".{}.", self.name()));
        self.load_only()
    }

    /// As [`File::load`], without the look for leftovers (a store has looked once for all its files).
    pub(crate) fn load_only<T: DeserializeOwned>(&self) -> Loaded<T> {
        let read = match read_regular_file(&self.path) {
            Ok(Some(bytes)) => envelope::decode(&bytes, self.kind, self.version),
            Ok(None) => return Loaded::Absent,
            Err(why) => Err(why),
        };
        match read {
            Ok(value) => Loaded::Good(value),
            Err(why) => Loaded::SetAside(self.set_aside(why)),
        }
    }

    /// Removes the file; returns whether there was one.
    ///
    /// # Errors
    /// [`WriteError::Io`] if it exists and cannot be removed.
    pub fn remove(&self) -> Result<bool, WriteError> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(WriteError::io("remove", &self.path, e)),
        }
    }

    fn write_temporary(&self, temporary: &Path, bytes: &[u8], is_spare: bool) -> Result<(), WriteError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(!is_spare)
            .mode(0o600)
            .open(temporary)
            .map_err(|e| WriteError::io("write beside", &self.path, e))?;
        file.write_all(bytes).map_err(|e| WriteError::io("write", &self.path, e))?;
        if is_spare {
            // Afterwards, not before: ext4 takes a file that is emptied and written for one that must be on the disk soon.
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            file.set_len(length).map_err(|e| WriteError::io("write", &self.path, e))?;
        }
        if self.durability == Durability::PowerFailure {
            file.sync_all().map_err(|e| WriteError::io("flush", &self.path, e))?;
        }
        Ok(())
    }

    fn set_aside(&self, why: BadFile) -> SetAside {
        let moved_to = match move_aside(&self.path) {
            Ok(moved_to) => Some(moved_to),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "a bad state file cannot be moved aside");
                None
            }
        };
        tracing::warn!(
            path = %self.path.display(),
            moved_to = moved_to.as_ref().map(|path| path.display().to_string()),
            reason = %why,
            "a state file cannot be used; going on without it",
        );
        SetAside { path: self.path.clone(), moved_to, why }
    }

    fn directory(&self) -> &Path {
        directory_of(&self.path)
    }

    fn name(&self) -> String {
        name_of(&self.path)
    }

    fn temporary_path(&self) -> PathBuf {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        self.directory().join(format!(".{}.{}{count}.tmp", self.name(), temporary_marker()))
    }
}

/// Renames a file that cannot be used to `<name>.bad-<unix seconds>`; where it is then.
pub(crate) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let prefix = format!("{}.bad-", name_of(path));
    let mut earlier = numbered_siblings(directory_of(path), &prefix);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Two within a second, or a clock set back, must neither overwrite an earlier one nor look older than it.
    let seconds = now.max(earlier.iter().max().map_or(0, |newest| newest.saturating_add(1)));
    let sibling = |number: u64| path.with_file_name(format!("{prefix}{number}"));
    fs::rename(path, sibling(seconds))?;
    earlier.sort_unstable();
    let surplus = (earlier.len() + 1).saturating_sub(KEPT_SET_ASIDE);
    for number in earlier.into_iter().take(surplus) {
        let old = sibling(number);
        // A directory goes only if it is empty: this crate did not make it.
        if let Err(error) = fs::remove_file(&old).or_else(|_| fs::remove_dir(&old)) {
            tracing::debug!(path = %old.display(), %error, "an old file that was set aside cannot be removed");
        }
    }
    Ok(sibling(seconds))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Gives `path` the contents of `temporary` in one step. Whether `temporary` is now what `path` was.
fn replace(temporary: &Path, path: &Path) -> io::Result<bool> {
    // What is not a file is no spare, and goes the way that a rename takes. Nor does every file system exchange.
    let exchanged = is_file(path) && renameat_with(CWD, temporary, CWD, path, RenameFlags::EXCHANGE).is_ok();
    if !exchanged {
        fs::rename(temporary, path)?;
    }
    Ok(exchanged)
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Makes the directory and those above it that are missing, each with `mode` whatever the umask is. Directories that
/// exist are left as they are.
///
/// # Errors
/// [`WriteError::Io`] if it cannot be made or something else is in its place.
pub fn ensure_directory(path: &Path, mode: u32) -> Result<(), WriteError> {
    if path.is_dir() || path.as_os_str().is_empty() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        ensure_directory(parent, mode)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|e| WriteError::io("set the mode of", path, e)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(WriteError::io("make the directory", path, e)),
    }
}

/// Removes temporary files whose names start with `prefix` and that another process left; our own are being written.
pub(crate) fn remove_leftovers(directory: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with(prefix)
            && name.ends_with(".tmp")
            && !name.contains(temporary_marker())
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::debug!(path = %entry.path().display(), %error, "a leftover temporary file cannot be removed");
        }
    }
}

/// Marks the temporary files of this process; random, because in a container every agent may have the same pid.
fn temporary_marker() -> &'static str {
    static MARKER: OnceLock<String> = OnceLock::new();
    MARKER.get_or_init(|| format!("{:016x}-", RandomState::new().build_hasher().finish()))
}

fn read_regular_file(path: &Path) -> Result<Option<Vec<u8>>, BadFile> {
    // Looked at before it is opened: opening a FIFO would wait for its writer.
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(BadFile::Unreadable(e)),
    };
    if !metadata.is_file() {
        return Err(BadFile::NotAFile);
    }
    if metadata.len() > MAX_BYTES {
        return Err(BadFile::TooLarge { size: metadata.len(), limit: MAX_BYTES });
    }
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(BadFile::Unreadable)?;
    Ok(Some(bytes))
}

fn numbered_siblings(directory: &Path, prefix: &str) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
