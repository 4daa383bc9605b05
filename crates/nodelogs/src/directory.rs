//! Opening what lies in the log directory.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

/// Names that a directory may have and still be listed; each is held until all are sorted.
const MAX_ENTRIES: usize = 200_000;

/// Where links may lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Into the log directory itself or one of these, where the machine's logs lie as well.
    Inside(Vec<PathBuf>),
    /// To any file of the machine. Whoever may write to the log directory (a pod that mounts it) then reads everything.
    Anywhere,
}

/// The directory of the machine's logs. It need not exist before it is asked.
#[derive(Clone, Debug)]
pub struct LogDirectory {
    path: PathBuf,
    links: Links,
}

/// What a name led to.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    File(LogFile),
    /// A directory.
    Directory {
        /// When something in it was last made or removed.
        modified: Option<SystemTime>,
        /// What is in it, by name.
        entries: Vec<Entry>,
    },
}

/// An open file.
#[derive(Debug)]
pub struct LogFile {
    /// Open for reading, at its start.
    pub file: File,
    /// How long it was when it was opened.
    pub len: u64,
    /// When it was last written to; `None` for the epoch, which means that nobody knows.
    pub modified: Option<SystemTime>,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name, which need not be UTF-8.
    pub name: OsString,
    /// Whether it is a directory itself; a link to one is not.
    pub is_directory: bool,
}

/// Why nothing was opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such name.
    #[error("there is no {name} in the log directory")]
    Missing {
        /// What was asked for.
        name: String,
    },
    /// A link that leaves the log directory.
    #[error("{name} leads out of the log directory; --node-log-links=anywhere would follow it")]
    Outside {
        /// What was asked for.
        name: String,
    },
    /// Neither a file nor a directory.
    #[error("{name} is neither a file nor a directory; FIFOs, sockets and devices are not opened")]
    NotAFile {
        /// What was asked for.
        name: String,
    },
    /// A directory that is too large to be listed.
    #[error("{name} has more than {MAX_ENTRIES} entries; ask for its files by their names")]
    TooMany {
        /// What was asked for.
        name: String,
    },
    /// The system refused.
    #[error("cannot open {name} in the log directory")]
    System {
        /// What was asked for.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    /// As Go's `os.Root` words it, for `operation` (`statat`, `openat`) on that name.
    #[must_use]
    pub fn as_go_says(&self, operation: &str) -> String {
        let (name, why) = match self {
            Self::Missing { name } => (name, "no such file or directory".to_owned()),
            Self::Outside { name } => (name, "path escapes from parent".to_owned()),
            Self::NotAFile { name } => (name, "not a regular file".to_owned()),
            Self::TooMany { name } => (name, "too many entries".to_owned()),
            Self::System { name, source } => (name, go_text(source)),
        };
        format!("{operation} {name}: {why}")
    }
}

/// Go's table of error texts is C's with small letters.
fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// How a name is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As the kernel follows any path; what it leads to is judged afterwards.
    Links,
    /// Never upwards and never by an absolute link, not even for a moment.
    Beneath,
}

impl LogDirectory {
    /// The directory at `path`.
    #[must_use]
    pub fn new(path: PathBuf, links: Links) -> Self {
        Self { path, links }
    }

    /// Opens the file or reads the directory of that name, relative and without `..`; an empty one is the log directory
    /// itself. Links are followed as far as [`Links`] says. Blocks on the disk.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is opened then.
    pub fn open(&self, name: &str) -> Result<Found, OpenError> {
        self.find(name, Way::Links)
    }

    /// The same for a name that somebody typed: it may be anything, and neither it nor a link on its way may leave the
    /// directory, not even to come back (as Go's `os.Root`). Blocks on the disk.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is opened then.
    pub fn open_beneath(&self, name: &str) -> Result<Found, OpenError> {
        self.find(name, Way::Beneath)
    }

    /// Whether [`LogDirectory::open_beneath`] would find something, without reading it.
    ///
    /// # Errors
    /// [`OpenError`] as it would be.
    pub fn check_beneath(&self, name: &str) -> Result<(), OpenError> {
        self.resolve(name, Way::Beneath).map(drop)
    }

    fn find(&self, name: &str, way: Way) -> Result<Found, OpenError> {
        let (handle, stat) = self.resolve(name, way)?;
        let system = |source: io::Error| OpenError::System { name: name.to_owned(), source };
        // The very thing that was judged is opened, whatever its name has come to mean since.
        let same = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let file = File::open(&same).map_err(system)?;
                let len = u64::try_from(stat.st_size).unwrap_or(0);
                Ok(Found::File(LogFile { file, len, modified: modified(&stat) }))
            }
            FileType::Directory => {
                let mut entries = Vec::new();
                for entry in std::fs::read_dir(&same).map_err(system)? {
                    let entry = entry.map_err(system)?;
                    if entries.len() == MAX_ENTRIES {
                        return Err(OpenError::TooMany { name: name.to_owned() });
                    }
                    let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                    entries.push(Entry { name: entry.file_name(), is_directory });
                }
                entries.sort_unstable();
                Ok(Found::Directory { modified: modified(&stat), entries })
            }
            _ => Err(OpenError::NotAFile { name: name.to_owned() }),
        }
    }

    /// A handle that can be looked at and not read from, and what it is a handle of.
    fn resolve(&self, name: &str, way: Way) -> Result<(OwnedFd, Stat), OpenError> {
        let failed = |errno: Errno| self.failure(name, way, errno);
        let look = OFlags::PATH | OFlags::CLOEXEC;
        let root =
            rustix::fs::openat(CWD, &self.path, look | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
        // Magic links (`/proc/PID/root`) lead to places whose paths say nothing about where they are.
        let mut resolve = ResolveFlags::NO_MAGICLINKS;
        if way == Way::Beneath {
            resolve |= ResolveFlags::BENEATH;
        }
        let relative = if name.is_empty() { "." } else { name };
        let handle =
            retried(|| rustix::fs::openat2(&root, relative, look, Mode::empty(), resolve)).map_err(failed)?;
        let stat = rustix::fs::fstat(&handle).map_err(failed)?;
        if way == Way::Links {
            self.judge(name, &root, &handle)?;
        }
        Ok((handle, stat))
    }

    /// Whether the opened thing lies where it may.
    fn judge(&self, name: &str, root: &OwnedFd, handle: &OwnedFd) -> Result<(), OpenError> {
        let Links::Inside(others) = &self.links else { return Ok(()) };
        let system = |source| OpenError::System { name: name.to_owned(), source };
        let place = place_of(handle).map_err(system)?;
        if place.starts_with(place_of(root).map_err(system)?) {
            return Ok(());
        }
        // Those that do not exist (yet) hold nothing either.
        let allowed = others.iter().filter_map(|other| std::fs::canonicalize(other).ok());
        if allowed.into_iter().any(|other| place.starts_with(other)) {
            return Ok(());
        }
        Err(OpenError::Outside { name: name.to_owned() })
    }

    fn failure(&self, name: &str, way: Way, errno: Errno) -> OpenError {
        let name = name.to_owned();
        match errno {
            // A file where the path wants a directory is a name that does not exist.
            Errno::NOENT => OpenError::Missing { name },
            Errno::NOTDIR if way == Way::Links => OpenError::Missing { name },
            Errno::XDEV => OpenError::Outside { name },
            errno => OpenError::System { name, source: errno.into() },
        }
    }
}

/// The kernel gives up with `AGAIN` when something was renamed meanwhile.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    const ATTEMPTS: usize = 16;
    for _ in 1..ATTEMPTS {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    call()
}

/// Where an open thing lies now.
fn place_of(handle: &OwnedFd) -> io::Result<PathBuf> {
    let place = rustix::fs::readlink(format!("/proc/self/fd/{}", handle.as_raw_fd()), Vec::new())?;
    Ok(Path::new(std::ffi::OsStr::from_bytes(place.to_bytes())).to_owned())
}

fn modified(stat: &Stat) -> Option<SystemTime> {
    let (seconds, nanos) = (u64::try_from(stat.st_mtime).ok()?, u32::try_from(stat.st_mtime_nsec).ok()?);
    let since = Duration::new(seconds, nanos);
    (!since.is_zero()).then_some(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests;
