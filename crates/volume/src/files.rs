//! Files and directories, opened without following where somebody else leads.

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::VolumeError;

/// How often a path that is being changed under our hands is tried.
const TRIES: usize = 16;

/// Opens a directory by a path that is ours alone; its last part must not be a link.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, VolumeError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(VolumeError::io("open", path))
}

/// Opens a path below a directory. Links are followed as long as they stay below it.
///
/// # Errors
/// `XDEV` when it leads out, `AGAIN` when it is being changed all the time, `LOOP` for links where the kernel cannot keep
/// them in bounds.
pub(crate) fn open_beneath(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            // Before Linux 5.6, and under some seccomp filters.
            Err(Errno::NOSYS | Errno::PERM) => return open_step_by_step(&root, path, flags),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// The same for kernels that cannot keep links in bounds: no links at all.
fn open_step_by_step(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = root.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let Some((last, before)) = parts.split_last() else {
        return rustix::fs::openat(&at, ".", flags, Mode::empty());
    };
    for part in before {
        if *part == ".." {
            return Err(Errno::XDEV);
        }
        at = rustix::fs::openat(&at, *part, step | OFlags::DIRECTORY, Mode::empty())?;
    }
    if *last == ".." {
        return Err(Errno::XDEV);
    }
    let opened = rustix::fs::openat(&at, *last, flags | OFlags::NOFOLLOW, Mode::empty())?;
    // With O_PATH the link itself would have been opened.
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(opened),
    }
}

/// Reads a file of a volume that its user may have put there: no link out of the volume, no pipe that never ends, nothing
/// larger than `max` bytes. `None` when it does not exist.
///
/// # Errors
/// When it is not such a file.
pub fn read_in_volume(root: &Path, path: &str, max: u64) -> Result<Option<Vec<u8>>, VolumeError> {
    let full = root.join(path);
    let refused = |why| VolumeError::NotReadable { path: full.clone(), why };
    let directory = open_directory(root)?;
    // Only a handle at first: opening a pipe would wait for its other end, and opening a device that a container has made
    // here could do anything, arm a watchdog for example.
    let handle = match open_beneath(&directory, path, OFlags::PATH) {
        Ok(handle) => handle,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::XDEV | Errno::LOOP | Errno::AGAIN) => return Err(refused("leads out of its volume")),
        Err(errno) => return Err(VolumeError::io("open", full)(errno)),
    };
    let stat = rustix::fs::fstat(&handle).map_err(VolumeError::io("look at", &full))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("is not a file"));
    }
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = rustix::fs::open(same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(VolumeError::io("open", &full))?;
    let mut bytes = Vec::new();
    File::from(file)
        .take(max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|source| VolumeError::Io { action: "read", path: full.clone(), source })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err(refused("is too large"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn reads_only_what_is_in_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "no").unwrap();
        fs::write(root.join("sub/env"), "A='1'").unwrap();
        symlink("sub/env", root.join("link")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
        rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, root.join("device"), FileType::CharacterDevice, Mode::from(0o600), null)
            .unwrap();
        let read = |path: &str| read_in_volume(&root, path, 5).map_err(|error| error.to_string());
        assert_eq!(read("sub/env"), Ok(Some(b"A='1'".to_vec())));
        assert_eq!(read("link"), Ok(Some(b"A='1'".to_vec())));
        assert_eq!(read("none"), Ok(None));
        for (path, why) in [
            ("out", "leads out of its volume"),
            ("absolute", "leads out of its volume"),
            ("../secret", "leads out of its volume"),
            ("pipe", "is not a file"),
            ("device", "is not a file"),
            ("sub", "is not a file"),
        ] {
            assert!(read(path).unwrap_err().contains(why), "{path}: {:?}", read(path));
        }
        fs::write(root.join("sub/env"), "A='123'").unwrap();
        assert!(read("link").unwrap_err().contains("too large"));
    }

    #[test]
    fn step_by_step_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        symlink("b", dir.path().join("a/last")).unwrap();
        let root = open_directory(dir.path()).unwrap();
        let open = |path: &str| open_step_by_step(&root, path, OFlags::PATH | OFlags::CLOEXEC).map(drop);
        assert_eq!(open("a/b"), Ok(()));
        assert_eq!(open("."), Ok(()));
        assert_eq!(open("a/../b"), Err(Errno::XDEV));
        assert_eq!(open("link/b"), Err(Errno::NOTDIR));
        assert_eq!(open("a/last"), Err(Errno::LOOP));
        assert_eq!(open("a/none"), Err(Errno::NOENT));
    }
}
