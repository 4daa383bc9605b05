//! What can go wrong, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a state file could not be written or removed. The file that was there before, if any, still is.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The value has no JSON form (a map whose keys are not strings, for example).
    #[error("cannot write {path}: a {kind} has no JSON form", path = path.display())]
    Encode {
        /// The file that was to be written.
        path: PathBuf,
        /// The kind of file.
        kind: &'static str,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
    /// The key cannot be a file name.
    #[error(
        "{key:?} cannot be a key in {directory}; use 1 to 200 letters, digits, '-', '_' or '.', not '.' first",
        directory = directory.display()
    )]
    InvalidKey {
        /// The refused key.
        key: String,
        /// The store's directory.
        directory: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {action} {path}; {remedy}", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// What the operator can do.
        remedy: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl WriteError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let remedy = match source.kind() {
            io::ErrorKind::StorageFull => "the file system is full: free some space on it",
            io::ErrorKind::QuotaExceeded => "the disk quota is used up: raise it or free some space",
            io::ErrorKind::ReadOnlyFilesystem => {
                "the file system is read-only: mount it writable or choose another --root-dir"
            }
            io::ErrorKind::PermissionDenied => {
                "permission is missing: check the owner and mode of its directory"
            }
            io::ErrorKind::NotFound => {
                "its directory is gone: was the root directory removed under the running agent?"
            }
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => {
                "something else is in its place: move that away"
            }
            _ => "check the file system it is on",
        };
        Self::Io { action, path: path.to_owned(), remedy, source }
    }

    /// Whether trying again later can help (the disk may have room then); false for values and keys that never fit.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Io { .. })
    }
}

/// Why a state file was set aside.
#[derive(Debug, thiserror::Error)]
pub enum BadFile {
    /// It could not be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// There is a directory, link, socket or other thing in its place.
    #[error("it is not a regular file")]
    NotAFile,
    /// It is larger than any file this crate writes.
    #[error("it is {size} bytes long, more than the {limit} allowed")]
    TooLarge {
        /// Its size.
        size: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// It is truncated, not UTF-8, not JSON, or has not the fields every such file has.
    #[error("it is not a state file: truncated or altered")]
    Malformed(#[source] serde_json::Error),
    /// It is a state file of something else.
    #[error("it holds a {found:?}, not a {expected:?}")]
    WrongKind {
        /// The kind in the file.
        found: String,
        /// The kind asked for.
        expected: &'static str,
    },
    /// A later mainstay wrote it, in a form this one does not know.
    #[error("it has version {found}, this mainstay knows versions up to {known}")]
    NewerVersion {
        /// The version in the file.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// Its data are not those that were written.
    #[error("its checksum does not match its data")]
    WrongChecksum,
    /// The data are intact but do not have the expected form.
    #[error("its data have another form than expected")]
    WrongData(#[source] serde_json::Error),
}
