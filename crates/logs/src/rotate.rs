//! Rotation of container logs: names and files, no runtime.
//!
//! As upstream's `container_log_manager.go`: `<N>.log` becomes `<N>.log.YYYYMMDD-HHMMSS`, the runtime is told to reopen
//! its log, the one rotated before that is compressed to `….gz`, the oldest go. Unlike upstream the time is in UTC, so
//! that the names sort by age when clocks change.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use mainstay_task::{Lane, LaneError};
use rustix::fs::{CWD, RenameFlags};

/// A disk that hangs holds these threads, and no others.
static ROTATING: Lane = Lane::new(2);
/// A big log takes its time to be compressed.
const PATIENCE: Duration = Duration::from_secs(600);

const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// How many files of one log are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// All files of a log together, the one being written included (`containerLogMaxFiles`); at least two are kept.
    pub max_files: usize,
}

/// Why a log was not rotated; it is tried again at the next look.
#[derive(Debug, thiserror::Error)]
pub enum RotateError<E>
where
    E: std::error::Error + 'static,
{
    /// A file cannot be renamed, compressed or removed.
    #[error("cannot {action} {path} to rotate a container log; check the space and permissions of the log directory", path = path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The runtime did not reopen the log; it was renamed back.
    #[error("the runtime did not reopen the container log {path}", path = path.display())]
    Reopen {
        /// The log.
        path: PathBuf,
        /// What the runtime said.
        #[source]
        source: E,
    },
    /// The disk does not answer.
    #[error("the rotation of {path} does not end; is the disk (or the server) of podLogsDir reachable?", path = path.display())]
    Hung {
        /// The log.
        path: PathBuf,
        /// What it waits for.
        #[source]
        source: LaneError,
    },
    /// mainstay is shutting down.
    #[error("the rotation of {path} was interrupted by shutdown", path = path.display())]
    Interrupted {
        /// The log.
        path: PathBuf,
    },
}

/// Whether a log of `size` bytes has to be rotated (`containerLogMaxSize`); a maximum of zero means never.
#[must_use]
pub const fn needs_rotation(size: u64, max_size: u64) -> bool {
    max_size > 0 && size >= max_size
}

/// Rotates the log at `path`: removes leftovers and the oldest files, compresses those not yet compressed, renames the
/// log and has the runtime open a new one with `reopen`.
///
/// If `reopen` fails the log is renamed back, unless a new one has appeared. If this is dropped before `reopen` ends,
/// the log may be missing at its path; a runtime told to reopen it (as for any missing log) makes it again.
///
/// # Errors
/// [`RotateError`]; nothing that was not to be removed is lost.
pub async fn rotate<E, Fut>(
    path: &Path,
    policy: RotationPolicy,
    now: jiff::Timestamp,
    reopen: impl FnOnce() -> Fut,
) -> Result<(), RotateError<E>>
where
    E: std::error::Error + Send + 'static,
    Fut: Future<Output = Result<(), E>>,
{
    let rotated = rotated_name(path, now);
    {
        let rotated = rotated.clone();
        blocking(path, move |path| {
            clean_up(path, policy)?;
            fs::rename(path, &rotated).map_err(FileError::on("rename", path))
        })
        .await?;
    }
    let Err(source) = reopen().await else { return Ok(()) };
    blocking(path, move |path| rename_back(&rotated, path)).await?;
    Err(RotateError::Reopen { path: path.to_owned(), source })
}

/// The rotated files of a log, oldest first; neither the log itself nor temporary files.
pub(crate) fn rotated_logs(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = siblings(path)?;
    found.retain(|sibling| !has_suffix(sibling, TEMPORARY));
    Ok(found)
}

/// Whether `name` in the directory of the log at `path` is a file that was rotated out of it, not compressed.
pub(crate) fn is_rotated(path: &Path, name: &OsStr) -> bool {
    let log = path.file_name().and_then(OsStr::to_str);
    let rest = log.and_then(|log| name.to_str()?.strip_prefix(log)?.strip_prefix('.'));
    rest.is_some_and(|rest| !rest.ends_with(TEMPORARY) && !rest.ends_with(COMPRESSED))
}

/// `<log>.YYYYMMDD-HHMMSS`.
fn rotated_name(path: &Path, now: jiff::Timestamp) -> PathBuf {
    let time = now.to_zoned(jiff::tz::TimeZone::UTC);
    with_suffix(path, &format!(".{}", time.strftime("%Y%m%d-%H%M%S")))
}

/// Makes room for one more rotated file.
fn clean_up(path: &Path, policy: RotationPolicy) -> Result<(), FileError> {
    let mut kept = Vec::new();
    for file in siblings(path).map_err(FileError::on("list the files beside", path))? {
        // Of an interrupted compression either the temporary file or, when that had its final name, the original is left.
        let superseded = has_suffix(&file, TEMPORARY)
            || (!has_suffix(&file, COMPRESSED) && with_suffix(&file, COMPRESSED).exists());
        if superseded {
            remove(&file)?;
        } else {
            kept.push(file);
        }
    }
    // One place is for the log itself, one for the file that this rotation makes.
    let surplus = kept.len().saturating_sub(policy.max_files.saturating_sub(2));
    for file in kept.drain(..surplus) {
        remove(&file)?;
    }
    for file in kept.iter().filter(|file| !has_suffix(file, COMPRESSED)) {
        compress(file)?;
    }
    Ok(())
}

fn compress(path: &Path) -> Result<(), FileError> {
    let temporary = with_suffix(path, TEMPORARY);
    let compressed =
        compress_into(path, &temporary).map_err(FileError::on("compress", path)).and_then(|()| {
            fs::rename(&temporary, with_suffix(path, COMPRESSED)).map_err(FileError::on("rename", &temporary))
        });
    if compressed.is_err() {
        // On a full disk the half of it must not stay; the original does.
        drop(fs::remove_file(&temporary));
    }
    compressed?;
    remove(path)
}

fn compress_into(path: &Path, temporary: &Path) -> io::Result<()> {
    let mut input = File::open(path)?;
    let mode = input.metadata()?.permissions().mode() & 0o777;
    let output = File::options().write(true).create(true).truncate(true).mode(mode).open(temporary)?;
    let mut encoder = GzEncoder::new(output, Compression::default());
    io::copy(&mut input, &mut encoder)?;
    encoder.finish()?.flush()
}

/// Gives the log its name back so that the next look tries again. A log that has appeared meanwhile is not replaced:
/// then the runtime did reopen it, however its answer was lost.
fn rename_back(rotated: &Path, path: &Path) -> Result<(), FileError> {
    match rustix::fs::renameat_with(CWD, rotated, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(FileError::on("rename back", rotated)(error.into())),
    }
}

/// Files named `<log>.…` in the log's directory, sorted by name, that is by age.
fn siblings(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(Vec::new());
    };
    let prefix = format!("{name}.");
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            found.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::on("remove", path)(error)),
        _ => Ok(()),
    }
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.to_str().is_some_and(|text| text.ends_with(suffix))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// [`RotateError::File`] before it is known what the runtime's errors are.
struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    fn on(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { action, path: path.to_owned(), source }
    }
}

impl fmt::Debug for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.action, self.path.display(), self.source)
    }
}

async fn blocking<E: std::error::Error + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<(), FileError> + Send + 'static,
) -> Result<(), RotateError<E>> {
    let owned = path.to_owned();
    match ROTATING.run(PATIENCE, move || work(&owned)).await {
        Ok(done) => {
            done.map_err(|FileError { action, path, source }| RotateError::File { action, path, source })
        }
        Err(LaneError::Interrupted) => Err(RotateError::Interrupted { path: path.to_owned() }),
        Err(hung) => Err(RotateError::Hung { path: path.to_owned(), source: hung }),
    }
}

#[cfg(test)]
mod tests;
