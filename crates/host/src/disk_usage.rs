//! How much a directory tree holds.

use std::{
    collections::HashSet,
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev},
    io::Errno,
    path::Arg,
};

/// Files with several names are counted once; of more than this many, each name of the rest counts for its share.
const MAX_LINKED: usize = if cfg!(test) { 100 } else { 65_536 };
/// As many directories, one below the other, are open at once.
const MAX_OPEN: usize = 64;
/// Of directories deeper than that, as many are remembered; of more, the rest is not counted at all.
const MAX_AHEAD: usize = 1024;
/// A directory is reached from the nearest open one above it by a path of at most this many bytes (`PATH_MAX` is 4096).
const MAX_STEP_BYTES: usize = 1024;

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of disk, as `du` counts them: whole blocks, holes are free, directories count too.
    pub bytes: u64,
    /// Files, directories and all else.
    pub inodes: u64,
    /// Something could not be looked at, or was not, so the truth is larger.
    pub partial: bool,
}

impl DiskUsage {
    /// Measures the tree at `path`; one that does not exist holds nothing. Blocks as long as the tree is large.
    ///
    /// It takes little memory, whatever the tree is like: directories are read one below the other, and only where they
    /// lie very deep are siblings remembered, up to a bound; beyond it the answer is `partial`.
    ///
    /// Symbolic links count as what they are and are never followed, and what is mounted in the tree does not count and is not
    /// asked anything, so that one that hangs there holds up nobody. The tree may change meanwhile, and may be as deep as it likes.
    ///
    /// # Errors
    /// When the tree itself cannot be looked at; what cannot be looked at inside makes the answer `partial`.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::up_to(path, u64::MAX)
    }

    /// As [`DiskUsage::of`], and counts each entry that is looked at into `entries`: whoever waits sees that it gets on.
    ///
    /// # Errors
    /// As there.
    pub fn watched(path: &Path, entries: &AtomicU64) -> io::Result<Self> {
        Self::measure(path, u64::MAX, entries)
    }

    /// As [`DiskUsage::of`], but looks no further (so that the answer is `partial`) once there are more than `most_bytes`.
    ///
    /// # Errors
    /// As there.
    pub fn up_to(path: &Path, most_bytes: u64) -> io::Result<Self> {
        Self::measure(path, most_bytes, &AtomicU64::new(0))
    }

    fn measure(path: &Path, most_bytes: u64, entries: &AtomicU64) -> io::Result<Self> {
        let metadata = match Entry::at(CWD, path) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => return Ok(Self::default()),
            Err(errno) => return Err(errno.into()),
        };
        let mut walk = Walk {
            usage: Self::default(),
            most_bytes,
            device: metadata.device,
            linked: HashSet::new(),
            entries,
        };
        walk.count(&metadata);
        if metadata.is_directory {
            let top = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
            walk.run(top);
            walk.usage.partial |= walk.is_over();
        }
        Ok(walk.usage)
    }
}

/// The device of the file system that a path leads to, without asking that file system: one that hangs holds up nobody who asks this.
///
/// # Errors
/// When there is nothing at the path.
pub fn device_of(path: &Path) -> io::Result<u64> {
    Ok(Entry::at(CWD, path)?.device)
}

/// What is looked at of a file.
#[derive(Clone, Copy, Debug)]
struct Entry {
    device: u64,
    inode: u64,
    blocks: u64,
    links: u64,
    is_directory: bool,
}

impl Entry {
    /// The kernel's own word where there is one: file systems of other machines and of programs are not asked whether it is still so. Those on
    /// disks of this machine always say what is.
    fn at(directory: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<Self, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found =
            rustix::fs::statx(directory, name, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
        match found {
            Ok(found) => Ok(Self {
                device: makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
                blocks: found.stx_blocks,
                links: u64::from(found.stx_nlink),
                is_directory: FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory,
            }),
            // Some seccomp filters know no statx.
            Err(Errno::NOSYS | Errno::PERM) => {
                let found = rustix::fs::statat(directory, name, flags)?;
                Ok(Self {
                    device: found.st_dev,
                    inode: found.st_ino,
                    blocks: u64::try_from(found.st_blocks).unwrap_or(0),
                    links: found.st_nlink,
                    is_directory: FileType::from_raw_mode(found.st_mode) == FileType::Directory,
                })
            }
            Err(errno) => Err(errno),
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory yet to be read: by its path from one that is open. No more descriptors are held than the tree is deep
/// in steps of [`MAX_STEP_BYTES`].
struct Ahead {
    from: Rc<OwnedFd>,
    path: Vec<u8>,
}

struct Walk<'a> {
    usage: DiskUsage,
    most_bytes: u64,
    device: u64,
    linked: HashSet<u64>,
    entries: &'a AtomicU64,
}

impl Walk<'_> {
    fn is_over(&self) -> bool {
        self.usage.bytes > self.most_bytes
    }

    /// Each directory is entered when its name is read, so that nothing but the way down is held.
    fn run(&mut self, top: OwnedFd) {
        let mut way = Vec::new();
        self.enter(top, &mut way);
        while let Some(directory) = way.last_mut() {
            if self.is_over() {
                return;
            }
            let Some(entry) = directory.read() else {
                way.pop();
                continue;
            };
            let (Ok(entry), Ok(fd)) = (entry, directory.fd()) else {
                self.usage.partial = true;
                way.pop();
                continue;
            };
            let Some(name) = self.look(fd, &entry) else { continue };
            match self.open(fd, name.to_bytes()) {
                Ok(Some(below)) if way.len() >= MAX_OPEN => self.run_deep(below),
                Ok(Some(below)) => self.enter(below, &mut way),
                Ok(None) => {}
                Err(_) => self.usage.partial = true,
            }
        }
    }

    fn enter(&mut self, directory: OwnedFd, way: &mut Vec<Dir>) {
        match Dir::new(directory) {
            Ok(directory) => way.push(directory),
            Err(_) => self.usage.partial = true,
        }
    }

    /// Counts an entry, unless it is a directory of this tree: that one's name is returned. It is counted when it is
    /// opened: only then is it certain that nothing is mounted on it.
    fn look<'e>(&mut self, directory: BorrowedFd<'_>, entry: &'e DirEntry) -> Option<&'e CStr> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return None;
        }
        match Entry::at(directory, name) {
            Ok(entry) if entry.device != self.device => {}
            Ok(entry) if entry.is_directory => return Some(name),
            Ok(entry) => self.count(&entry),
            Err(Errno::NOENT) => {}
            Err(_) => self.usage.partial = true,
        }
        None
    }

    /// What lies deeper than descriptors are held for.
    fn run_deep(&mut self, top: OwnedFd) {
        let mut ahead = Vec::new();
        self.read(&Rc::new(top), &[], &mut ahead);
        while let Some(Ahead { from, path }) = ahead.pop() {
            if self.is_over() {
                return;
            }
            match self.open(from.as_fd(), &path) {
                Ok(Some(directory)) => {
                    if path.len() > MAX_STEP_BYTES {
                        self.read(&Rc::new(directory), &[], &mut ahead);
                    } else {
                        self.read_below(&from, &directory, &path, &mut ahead);
                    }
                }
                Ok(None) => {}
                Err(_) => self.usage.partial = true,
            }
        }
    }

    fn read(&mut self, directory: &Rc<OwnedFd>, path: &[u8], ahead: &mut Vec<Ahead>) {
        self.read_below(directory, directory, path, ahead);
    }

    /// Counts what is in `directory`, which lies at `path` below `from`.
    fn read_below(&mut self, from: &Rc<OwnedFd>, directory: &OwnedFd, path: &[u8], ahead: &mut Vec<Ahead>) {
        let Ok(entries) = Dir::read_from(directory) else {
            self.usage.partial = true;
            return;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                self.usage.partial = true;
                return;
            };
            if self.is_over() {
                return;
            }
            if let Some(name) = self.look(directory.as_fd(), &entry) {
                if ahead.len() < MAX_AHEAD {
                    ahead.push(Ahead { from: Rc::clone(from), path: joined(path, name) });
                } else {
                    self.usage.partial = true;
                }
            }
        }
    }

    /// Opens and counts a directory; `None` when it is gone, or not (or no longer) one of this tree.
    fn open(&mut self, from: BorrowedFd<'_>, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
        let name = OsStr::from_bytes(path);
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let opened = match rustix::fs::openat2(from, name, DIRECTORY, Mode::empty(), resolve) {
            // Before Linux 5.6, and under some seccomp filters, a path of several parts is not safe: go part by part.
            Err(Errno::NOSYS | Errno::PERM) => open_by_parts(from, path),
            opened => opened,
        };
        let directory = match opened {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&directory)?;
        if stat.st_dev != self.device {
            return Ok(None);
        }
        self.count(&Entry {
            device: stat.st_dev,
            inode: stat.st_ino,
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            links: stat.st_nlink,
            is_directory: true,
        });
        Ok(Some(directory))
    }

    fn count(&mut self, entry: &Entry) {
        let bytes = entry.blocks.saturating_mul(512);
        if !entry.is_directory && entry.links > 1 {
            if self.linked.contains(&entry.inode) {
                return;
            }
            if self.linked.len() >= MAX_LINKED {
                // All its names together are the whole of it; names outside of the tree are missing.
                self.usage.partial = true;
                self.usage.bytes = self.usage.bytes.saturating_add(bytes.div_ceil(entry.links));
                return;
            }
            self.linked.insert(entry.inode);
        }
        self.usage.bytes = self.usage.bytes.saturating_add(bytes);
        self.usage.inodes += 1;
    }
}

fn open_by_parts(from: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut current: Option<OwnedFd> = None;
    for part in path.split(|byte| *byte == b'/') {
        let part = CString::new(part).map_err(|_| Errno::INVAL)?;
        let parent = current.as_ref().map_or(from, AsFd::as_fd);
        current = Some(rustix::fs::openat(parent, part.as_c_str(), DIRECTORY, Mode::empty())?);
    }
    current.ok_or(Errno::NOENT)
}

fn joined(path: &[u8], name: &CStr) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.to_bytes().len());
    joined.extend_from_slice(path);
    if !path.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.to_bytes());
    joined
}

#[cfg(test)]
mod tests;
