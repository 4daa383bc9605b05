//! The processes of a cgroup: how many, and what they hold open.

use std::os::fd::OwnedFd;

use mainstay_types::ProcessSample;
use rustix::fs::{Dir, Mode, OFlags, open, readlinkat, stat};

use crate::{
    ReadError,
    files::{Buffer, Directory},
};

/// Of a process with more open files, sockets are not told apart: a look at each would cost more than it is worth.
const MANY: u64 = 10_000;

/// What is remembered of a cgroup's processes between readings.
#[derive(Debug)]
pub(crate) struct Processes {
    pids: Vec<i32>,
    newest: ProcessSample,
    /// The root's are all of the machine: too many to look at each time.
    is_root: bool,
    /// How often they could have been looked at.
    turns: u32,
}

/// The root's are looked at in one such turn of all.
const ROOT_TURNS: u32 = 5;

impl Processes {
    pub(crate) const fn new(is_root: bool) -> Self {
        let newest = ProcessSample { count: 0, descriptors: 0, sockets: 0, open_files: None };
        Self { pids: Vec::new(), newest, is_root, turns: 0 }
    }

    /// One that was there at the last reading.
    pub(crate) const fn first(&self) -> Option<i32> {
        self.pids.as_slice().first().copied()
    }

    /// Counts them. Sockets are looked for when the number of open files has changed.
    pub(crate) fn read(
        &mut self,
        directory: &Directory,
        rarely: bool,
        buffer: &mut Buffer,
    ) -> Result<ProcessSample, ReadError> {
        self.pids.clear();
        if let Some(text) = directory.text("cgroup.procs", buffer)? {
            pids(text, &mut self.pids);
        }
        let count = self.pids.len() as u64;
        let looks = rarely && self.turns.is_multiple_of(ROOT_TURNS);
        self.turns = self.turns.wrapping_add(u32::from(rarely));
        if self.is_root && !looks {
            self.newest.count = count;
            return Ok(self.newest);
        }
        let descriptors = self.pids.iter().map(|pid| open_descriptors(*pid)).sum();
        let changed = (count, descriptors) != (self.newest.count, self.newest.descriptors);
        if changed {
            self.newest.sockets = self.pids.iter().map(|pid| sockets(*pid)).sum();
        }
        if rarely || self.newest.open_files.is_none() {
            let first =
                self.pids.first().and_then(|pid| Directory::open(format!("/proc/{pid}").as_ref()).ok());
            let text = first.as_ref().and_then(|first| first.read("limits", buffer).ok());
            self.newest.open_files = text.and_then(open_files);
        }
        (self.newest.count, self.newest.descriptors) = (count, descriptors);
        Ok(self.newest)
    }
}

/// `cgroup.procs`: one a line. A process outside of our own PID namespace is 0 and nothing can be said of it.
pub(crate) fn pids(text: &[u8], found: &mut Vec<i32>) {
    let numbers = text.split(|byte| *byte == b'\n').filter_map(crate::parse::number);
    found.extend(numbers.filter_map(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0));
}

/// The soft limit of open files in `/proc/PID/limits`.
pub(crate) fn open_files(text: &[u8]) -> Option<i64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Max open files"))?;
    let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    if word == b"unlimited" {
        return Some(-1);
    }
    crate::parse::number(word).and_then(|limit| i64::try_from(limit).ok())
}

/// How many files a process holds open; none of one that has ended.
fn open_descriptors(pid: i32) -> u64 {
    let path = format!("/proc/{pid}/fd");
    // Since Linux 6.2 the directory's size says it; older kernels say 0.
    match stat(path.as_str()) {
        Ok(stat) if stat.st_size > 0 => stat.st_size.unsigned_abs(),
        Ok(_) => directory(&path).map_or(0, |dir| names(dir).count() as u64),
        Err(_) => 0,
    }
}

fn sockets(pid: i32) -> u64 {
    if open_descriptors(pid) > MANY {
        return 0;
    }
    let path = format!("/proc/{pid}/fd");
    let Some((dir, fd)) = directory(&path).zip(open_directory(&path)) else { return 0 };
    let mut link = Vec::with_capacity(64);
    let mut found = 0;
    for name in names(dir) {
        link.clear();
        if let Ok(target) = readlinkat(&fd, name, link) {
            found += u64::from(target.as_bytes().starts_with(b"socket"));
            link = target.into_bytes();
        } else {
            link = Vec::with_capacity(64);
        }
    }
    found
}

fn open_directory(path: &str) -> Option<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn directory(path: &str) -> Option<Dir> {
    Dir::read_from(open_directory(path)?).ok()
}

fn names(dir: Dir) -> impl Iterator<Item = std::ffi::CString> {
    dir.flatten().map(|entry| entry.file_name().to_owned()).filter(|name| !name.as_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let mut found = Vec::new();
        pids(b"1\n0\n42\nx\n99999999999\n", &mut found);
        assert_eq!(found, [1, 42]);
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             96316                96316                processes \n\
            Max open files            1024                 1048576              files     \n";
        assert_eq!(open_files(limits.as_bytes()), Some(1024));
        assert_eq!(open_files(b"Max open files   unlimited unlimited files\n"), Some(-1));
        assert_eq!(open_files(b"Max open files\n"), None);
        assert_eq!(open_files(b""), None);
    }

    #[test]
    fn a_real_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = (open_descriptors(own), sockets(own));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(open_descriptors(own) >= 4, "{before:?}");
        assert!(sockets(own) >= 1, "{socket:?} {before:?}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), format!("{own}\n")).unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let mut processes = Processes::new(false);
        let found = processes.read(&directory, false, &mut Buffer::default()).unwrap();
        assert_eq!(found.count, 1);
        assert!(found.descriptors >= 4 && found.sockets >= 1, "{found:?}");
        assert!(found.open_files.is_some_and(|limit| limit == -1 || limit > 3), "{found:?}");
        assert_eq!(processes.first(), Some(own));
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        let found = processes.read(&directory, true, &mut Buffer::default()).unwrap();
        assert_eq!((found.count, found.descriptors, found.sockets), (0, 0, 0), "they ended");
        assert_eq!(processes.first(), None);
    }
}
