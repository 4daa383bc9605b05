//! Files and directories, opened without following where somebody else leads.

use std::{
    ffi::OsString,
    fs::File,
    io::Read as _,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::VolumeError;

/// How often a path that is being changed under our hands is tried.
const TRIES: usize = 16;
/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Opens a directory by a path that is ours alone; its last part must not be a link.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, VolumeError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(VolumeError::io("open", path))
}

/// Opens a handle (`O_PATH`) below a directory. Links are followed as long as they stay below it, absolute ones too if they begin
/// with the path that it really has or `known_as`, by which it was opened.
///
/// # Errors
/// `XDEV` when it leads out, `AGAIN` when it is being changed all the time, `LOOP` for too many links.
pub(crate) fn open_beneath(
    root: impl AsFd,
    known_as: Option<&Path>,
    path: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            // The kernel takes every absolute link for one that leads out. Before Linux 5.6, and under some seccomp filters,
            // it cannot be asked at all.
            Err(Errno::XDEV | Errno::NOSYS | Errno::PERM) => {
                return walk_beneath(root.as_fd(), known_as, path, flags);
            }
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// The same part by part, each opened below the handle of the one before and followed by hand if it is a link. Going up is going
/// back to a handle that is held, so that whatever is moved meanwhile, nothing leads out.
fn walk_beneath(
    root: BorrowedFd<'_>,
    known_as: Option<&Path>,
    path: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let really = rustix::fs::readlink(format!("/proc/self/fd/{}", root.as_raw_fd()), Vec::new());
    let really = really.map(|path| PathBuf::from(OsString::from_vec(path.into_bytes()))).ok();
    let parts_of = |path: &Path| -> Vec<OsString> {
        path.as_os_str()
            .as_bytes()
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .map(|part| OsString::from_vec(part.to_vec()))
            .rev()
            .collect()
    };
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What is still to be gone, the next part last.
    let mut ahead = parts_of(Path::new(path));
    let mut way: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        let at = way.last().map_or(root, AsFd::as_fd);
        if part == ".." {
            way.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let found = rustix::fs::openat(at, &part, step, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                let below = if target.is_absolute() {
                    let known = [known_as, really.as_deref()].into_iter().flatten();
                    let mut rest = known.filter_map(|known| target.strip_prefix(known).ok());
                    way.clear();
                    rest.next().ok_or(Errno::XDEV)?
                } else {
                    &target
                };
                ahead.extend(parts_of(below));
            }
            FileType::Directory => way.push(found),
            _ if ahead.is_empty() && !flags.contains(OFlags::DIRECTORY) => return Ok(found),
            _ => return Err(Errno::NOTDIR),
        }
    }
    way.pop().map_or_else(|| rustix::fs::openat(root, ".", flags, Mode::empty()), Ok)
}

/// Opens what a handle is of. Only for regular files: opening anything else may do more than that.
pub(crate) fn open_to_read(handle: &OwnedFd) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
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
    let handle = match open_beneath(&directory, Some(root), path, OFlags::PATH) {
        Ok(handle) => handle,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::XDEV | Errno::LOOP | Errno::AGAIN) => return Err(refused("leads out of its volume")),
        Err(errno) => return Err(VolumeError::io("open", full)(errno)),
    };
    let stat = rustix::fs::fstat(&handle).map_err(VolumeError::io("look at", &full))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("is not a file"));
    }
    let file = open_to_read(&handle).map_err(VolumeError::io("open", &full))?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(|source| VolumeError::Io {
        action: "read",
        path: full.clone(),
        source,
    })?;
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
    fn a_walk_by_hand_follows_links_as_long_as_they_stay_within() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("..2026")).unwrap();
        fs::write(root.join("..2026/key"), "").unwrap();
        // As the atomic writer lays a ConfigMap out.
        symlink("..2026", root.join("..data")).unwrap();
        symlink("..data/key", root.join("key")).unwrap();
        symlink("a", root.join("link")).unwrap();
        symlink("../a/./b", root.join("a/last")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink(root.join("a/b"), root.join("inside")).unwrap();
        symlink("/known/as/a", root.join("known")).unwrap();
        symlink("/known/ascii", root.join("unknown")).unwrap();
        symlink("/etc", root.join("absolute")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        let handle = open_directory(&root).unwrap();
        let inode = |path: &str| rustix::fs::stat(root.join(path)).unwrap().st_ino;
        let walk = |path: &str, flags: OFlags| {
            let found =
                walk_beneath(handle.as_fd(), Some(Path::new("/known/as")), path, flags | OFlags::PATH);
            found.map(|found| rustix::fs::fstat(&found).unwrap().st_ino)
        };
        for (path, found) in [
            ("a/b", "a/b"),
            (".", "."),
            ("", "."),
            ("a/..", "."),
            ("a/../a/b/../b", "a/b"),
            ("key", "..2026/key"),
            ("link/b", "a/b"),
            ("link/last", "a/b"),
            ("inside", "a/b"),
            ("inside/..", "a"),
            ("known/b", "a/b"),
        ] {
            assert_eq!(walk(path, OFlags::empty()), Ok(inode(found)), "{path}");
        }
        for (path, errno) in [
            ("..", Errno::XDEV),
            ("a/../..", Errno::XDEV),
            ("out", Errno::XDEV),
            ("link/../../v", Errno::XDEV),
            ("absolute", Errno::XDEV),
            ("unknown", Errno::XDEV),
            ("loop", Errno::LOOP),
            ("a/none", Errno::NOENT),
            ("key/x", Errno::NOTDIR),
        ] {
            assert_eq!(walk(path, OFlags::empty()), Err(errno), "{path}");
        }
        assert_eq!(walk("key", OFlags::DIRECTORY), Err(Errno::NOTDIR));
        // The kernel finds the same where it can be asked.
        for path in ["key", "link/last", "inside", "inside/.."] {
            let found = open_beneath(&handle, None, path, OFlags::PATH).unwrap();
            assert_eq!(Ok(rustix::fs::fstat(&found).unwrap().st_ino), walk(path, OFlags::empty()), "{path}");
        }
    }
}
