//! Files of a directory that is held open.

use std::{os::fd::OwnedFd, path::Path};

use jiff::Timestamp;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fstat, open, openat, statat},
    io::{Errno, read},
};

use crate::{ReadError, parse::number};

/// No file of the kernel's that is read here is larger; what is beyond would be a sign that it is no such file.
const LARGEST: usize = 1 << 20;
const FIRST: usize = 4096;
const SURELY_LAST: usize = 2048;

/// A directory. What is read from it is read into a buffer that all share.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
}

/// How reading a file ended, when it did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not there, or the kernel cannot do it here.
    Missing,
    /// The cgroup itself has gone.
    Gone,
    /// Something else.
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

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        open(path, flags, Mode::empty()).map(|fd| Self { fd })
    }

    /// Reads a whole file into `buffer`, replacing what was in it.
    pub(crate) fn read<'a>(&self, name: &str, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], Unread> {
        let file = openat(&self.fd, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(unread)?;
        let mut filled = 0;
        loop {
            if buffer.len() == filled {
                if filled >= LARGEST {
                    return Err(Unread::Failed(Errno::FBIG));
                }
                buffer.resize((filled * 2).max(FIRST), 0);
            }
            let free = buffer.get_mut(filled..).unwrap_or_default();
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
        Ok(buffer.get(..filled).unwrap_or_default())
    }

    /// When the directory was made: the kernel keeps that time in it and in `file`, whichever is older.
    pub(crate) fn made_at(&self, file: &str) -> Timestamp {
        let directory = fstat(&self.fd).ok();
        let file = statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW).ok();
        let seconds = directory.iter().chain(&file).map(|stat| stat.st_mtime).min();
        seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or_default()
    }

    /// A file, if it is there and can be read. A cgroup that goes half way has gone.
    pub(crate) fn text<'a>(
        &self,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, ReadError> {
        match self.read(name, buffer) {
            Ok(text) => Ok(Some(text)),
            Err(Unread::Gone) => Err(ReadError::Gone),
            Err(Unread::Missing | Unread::Failed(_)) => Ok(None),
        }
    }

    /// A file that is one number.
    pub(crate) fn number(&self, name: &str, buffer: &mut Vec<u8>) -> Result<Option<u64>, ReadError> {
        Ok(self.text(name, buffer)?.and_then(number))
    }
}

fn unread(error: Errno) -> Unread {
    match error {
        Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL => Unread::Missing,
        Errno::NODEV => Unread::Gone,
        error => Unread::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = Vec::new();
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
        let (proc, mut buffer) =
            (Directory::open(format!("/proc/{}", std::process::id()).as_ref()).unwrap(), vec![0; 1 << 16]);
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
