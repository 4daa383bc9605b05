//! Files of a directory that is held open, within a budget.

use std::{
    cell::OnceCell,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fstat, open, openat, stat, statat},
    io::{Errno, read},
    process::{Resource, getrlimit},
};

use crate::{ReadError, parse::number};

/// No file of the kernel's that is read here is larger; what is beyond would be a sign that it is no such file.
const LARGEST: usize = 1 << 20;
const FIRST: usize = 4096;
const SURELY_LAST: usize = 2048;
/// Every cgroup of either version has it as long as it is there.
const ALWAYS: &str = "cgroup.procs";
/// A directory that is held open costs the kernel a kilobyte or two.
const MOST_HELD: usize = 8192;

/// How many directories may be held open between readings; clones share it. What is beyond is opened for each reading anew.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Descriptors>);

#[derive(Debug)]
struct Descriptors {
    most: usize,
    held: AtomicUsize,
}

impl Budget {
    /// So many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Descriptors { most, held: AtomicUsize::new(0) }))
    }

    /// Half of the files that this process may have open; the other half is for everything else that it does.
    #[must_use]
    pub fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(usize::try_from(limit / 2).unwrap_or(usize::MAX).min(MOST_HELD))
    }

    /// How many are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }
}

/// What one cgroup has of a budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    count: usize,
}

impl Share {
    pub(crate) fn of(budget: &Budget) -> Self {
        Self { budget: budget.clone(), count: 0 }
    }

    /// Takes one more, if there is one left.
    fn take(&mut self) -> bool {
        let Descriptors { most, held } = &*self.budget.0;
        let more = |held| (held < *most).then_some(held + 1);
        let taken = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.count += usize::from(taken);
        taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Scratch space that readings share, and what they asked of the kernel.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    work: Work,
}

/// What readings asked of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Directories and files that were to be opened.
    pub opens: u64,
    /// Pieces that were read.
    pub reads: u64,
}

impl Buffer {
    /// All that readings with this buffer asked of the kernel.
    #[must_use]
    pub const fn work(&self) -> Work {
        self.work
    }
}

/// A directory. What is read from it is read into a buffer that all share.
#[derive(Debug)]
pub(crate) enum Directory {
    Held(OwnedFd),
    /// Beyond the budget.
    Named(Box<Named>),
}

#[derive(Debug)]
pub(crate) struct Named {
    path: PathBuf,
    /// Another directory of the same name is not this one.
    inode: u64,
    /// During a reading.
    open: OnceCell<OwnedFd>,
}

/// How reading a file ended, when it did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not there, or the kernel cannot do it here, or does not let us.
    Missing,
    /// The cgroup itself has gone.
    Gone,
    /// Something else, which may be otherwise the next time.
    Failed(Errno),
}

impl From<Unread> for ReadError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Failed(error) => Self::Failed(error.raw_os_error()),
            Unread::Missing | Unread::Gone => Self::Gone,
        }
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open(path, flags, Mode::empty())
}

impl Directory {
    /// One that is held until it is dropped, which is soon.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        open_directory(path).map(Self::Held)
    }

    /// One that is held if the budget allows it; until [`Self::rest`] in any case.
    pub(crate) fn open_within(path: &Path, share: &mut Share) -> Result<Self, Errno> {
        let fd = open_directory(path)?;
        if share.take() {
            return Ok(Self::Held(fd));
        }
        Self::named(path, fd)
    }

    /// One that is held until [`Self::rest`] only.
    pub(crate) fn open_unheld(path: &Path) -> Result<Self, Errno> {
        Self::named(path, open_directory(path)?)
    }

    fn named(path: &Path, fd: OwnedFd) -> Result<Self, Errno> {
        let inode = fstat(&fd)?.st_ino;
        Ok(Self::Named(Box::new(Named { path: path.to_owned(), inode, open: OnceCell::from(fd) })))
    }

    /// Whether the path leads to it.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let own = self.fd(&mut Work::default()).ok().and_then(|fd| fstat(fd).ok());
        let there = stat(path).ok();
        own.zip(there).is_some_and(|(own, there)| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
    }

    /// The reading is over.
    pub(crate) fn rest(&mut self) {
        if let Self::Named(named) = self {
            named.open.take();
        }
    }

    fn fd(&self, work: &mut Work) -> Result<BorrowedFd<'_>, Unread> {
        let named = match self {
            Self::Held(fd) => return Ok(fd.as_fd()),
            Self::Named(named) => named,
        };
        if let Some(fd) = named.open.get() {
            return Ok(fd.as_fd());
        }
        work.opens += 1;
        let fd = open_directory(&named.path).map_err(|error| match error {
            Errno::NOENT => Unread::Gone,
            error => Unread::Failed(error),
        })?;
        if fstat(&fd).map_err(Unread::Failed)?.st_ino != named.inode {
            return Err(Unread::Gone);
        }
        Ok(named.open.get_or_init(|| fd).as_fd())
    }

    /// Reads a whole file into `buffer`, replacing what was in it.
    pub(crate) fn read<'a>(&self, name: &str, buffer: &'a mut Buffer) -> Result<&'a [u8], Unread> {
        let Buffer { bytes, work } = buffer;
        let directory = self.fd(work)?;
        work.opens += 1;
        let file =
            openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(unread)?;
        let mut filled = 0;
        loop {
            if bytes.len() == filled {
                if filled >= LARGEST {
                    return Err(Unread::Failed(Errno::FBIG));
                }
                bytes.resize((filled * 2).max(FIRST), 0);
            }
            let free = bytes.get_mut(filled..).unwrap_or_default();
            work.reads += 1;
            match read(&file, &mut *free) {
                Ok(0) => break,
                // The kernel makes most such files at once, and the others (a line for each process, say) a page at a time: a
                // read that is well below a page is the end of either.
                Ok(count) if count < free.len().min(SURELY_LAST) => {
                    filled += count;
                    break;
                }
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(unread(error)),
            }
        }
        Ok(bytes.get(..filled).unwrap_or_default())
    }

    /// When the directory was made: the kernel keeps that time in it and in `file`, whichever is older.
    pub(crate) fn made_at(&self, file: &str) -> Timestamp {
        let Ok(fd) = self.fd(&mut Work::default()) else { return Timestamp::default() };
        let directory = fstat(fd).ok();
        let file = statat(fd, file, AtFlags::SYMLINK_NOFOLLOW).ok();
        let seconds = directory.iter().chain(&file).map(|stat| stat.st_mtime).min();
        seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or_default()
    }

    /// A file, if there is one.
    pub(crate) fn optional<'a>(
        &self,
        name: &str,
        buffer: &'a mut Buffer,
    ) -> Result<Option<&'a [u8]>, ReadError> {
        match self.read(name, buffer) {
            Ok(text) => Ok(Some(text)),
            Err(Unread::Missing) => Ok(None),
            Err(unread) => Err(unread.into()),
        }
    }

    /// A file of a cgroup, if it has it. A cgroup that goes half way through has gone: the files of one that goes are missing
    /// one after the other, and what they said would be 0 otherwise.
    pub(crate) fn text<'a>(&self, name: &str, buffer: &'a mut Buffer) -> Result<Option<&'a [u8]>, ReadError> {
        let fd = self.fd(&mut buffer.work)?;
        match self.optional(name, buffer)? {
            None if statat(fd, ALWAYS, AtFlags::SYMLINK_NOFOLLOW).is_err() => Err(ReadError::Gone),
            text => Ok(text),
        }
    }

    /// A file that is one number.
    pub(crate) fn number(&self, name: &str, buffer: &mut Buffer) -> Result<Option<u64>, ReadError> {
        Ok(self.text(name, buffer)?.and_then(number))
    }
}

fn unread(error: Errno) -> Unread {
    match error {
        Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL | Errno::ACCESS | Errno::PERM => Unread::Missing,
        Errno::NODEV => Unread::Gone,
        error => Unread::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_directories_are_held_than_the_budget_allows() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "1").unwrap();
        let budget = Budget::new(2);
        let mut shares: Vec<Share> = (0..3).map(|_| Share::of(&budget)).collect();
        let mut open: Vec<Directory> =
            shares.iter_mut().map(|share| Directory::open_within(dir.path(), share).unwrap()).collect();
        assert_eq!(budget.held(), 2);
        let mut buffer = Buffer::default();
        for directory in &mut open {
            directory.rest();
            for _ in 0..2 {
                assert_eq!(directory.number("file", &mut buffer), Ok(Some(1)));
            }
            directory.rest();
        }
        assert_eq!(buffer.work(), Work { opens: 3 * 2 + 1, reads: 3 * 2 }, "once for the directory");
        // Another directory of the name is another.
        let last = open.last().unwrap();
        let again = dir.path().with_extension("old");
        std::fs::rename(dir.path(), &again).unwrap();
        assert_eq!(last.read("file", &mut buffer), Err(Unread::Gone));
        std::fs::create_dir(dir.path()).unwrap();
        std::fs::write(dir.path().join("file"), "2").unwrap();
        assert_eq!(last.read("file", &mut buffer), Err(Unread::Gone));
        std::fs::remove_dir_all(again).unwrap();
        shares.remove(0);
        assert_eq!(budget.held(), 1);
        assert!(Directory::open_within(dir.path(), &mut shares[0]).is_ok());
        assert_eq!(budget.held(), 2);
        drop(shares);
        assert_eq!(budget.held(), 0);
        assert!((1..=MOST_HELD).contains(&Budget::of_process().0.most));
    }

    #[test]
    fn files_of_any_length_are_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = Buffer::default();
        let directory = Directory::open(dir.path()).unwrap();
        assert_eq!(directory.read("none", &mut buffer), Err(Unread::Missing));
        for length in [0, 1, FIRST - 1, FIRST, FIRST + 1, 3 * FIRST] {
            let text = "x".repeat(length);
            std::fs::write(dir.path().join("file"), &text).unwrap();
            assert_eq!(directory.read("file", &mut buffer), Ok(text.as_bytes()), "{length}");
        }
        std::fs::write(dir.path().join("file"), "y").unwrap();
        assert_eq!(
            directory.read("file", &mut buffer),
            Ok(b"y".as_slice()),
            "nothing of the longer one is left"
        );
        std::fs::write(dir.path().join("file"), vec![b'z'; LARGEST + 1]).unwrap();
        assert_eq!(directory.read("file", &mut buffer), Err(Unread::Failed(Errno::FBIG)));
        assert!(Directory::open(&dir.path().join("none")).is_err());
    }

    #[test]
    fn files_that_the_kernel_makes_piece_by_piece_are_read_whole() {
        let proc = Directory::open(format!("/proc/{}", std::process::id()).as_ref()).unwrap();
        let mut buffer = Buffer { bytes: vec![0; 1 << 16], ..Buffer::default() };
        let mut rounds = 0;
        loop {
            let found = proc.read("smaps", &mut buffer).unwrap();
            assert!(found.len() > 4096, "one piece: {}", found.len());
            let last = found.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or_default();
            assert!(last.starts_with(b"VmFlags"), "the end: {:?}", String::from_utf8_lossy(last));
            let lines =
                found.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"VmFlags")).count();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
            if lines.abs_diff(maps) <= 2 {
                break;
            }
            // Threads of other tests come and go, and memory with them; one that reads too little always does.
            rounds += 1;
            assert!(rounds < 100, "{lines} of {maps}");
        }
    }
}
