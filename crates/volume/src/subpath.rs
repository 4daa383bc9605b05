//! Parts of volumes. Whoever writes into a volume may put links in the way at any moment, so nothing is looked up twice:
//! what was found is held open, and what is held open is mounted.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    io::Errno,
    mount::UnmountFlags,
};

use crate::{
    Progress, VolumeError,
    files::open_beneath,
    setup::{is_mount_point, make_dir, mode},
};

/// Mounts a part of the volume at `root` to `target`, which is ours alone; a directory is made when the part does not exist.
/// Blocks. May be called again: what is mounted there already stays if it is the same.
///
/// # Errors
/// [`VolumeError::Escapes`] when the part leads out of the volume, at whatever moment.
pub fn bind_sub_path(
    root: &Path,
    sub_path: &str,
    target: &Path,
    progress: &Progress,
) -> Result<(), VolumeError> {
    progress.doing(format!("mounting subPath {sub_path:?} of {}", root.display()));
    let escapes = || VolumeError::Escapes { sub_path: sub_path.to_owned(), root: root.to_owned() };
    let failed = |action| {
        move |errno| match errno {
            Errno::XDEV | Errno::LOOP | Errno::AGAIN => escapes(),
            Errno::NOLINK => VolumeError::Dangling { sub_path: sub_path.to_owned(), root: root.to_owned() },
            errno => VolumeError::io(action, root.join(sub_path))(errno),
        }
    };
    // The root itself may be a link (hostPath): whoever wrote the pod chose it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let volume = match rustix::fs::openat(CWD, root, flags, Mode::empty()) {
        Err(Errno::NOTDIR) => {
            return Err(VolumeError::NoDirectory { sub_path: sub_path.to_owned(), root: root.to_owned() });
        }
        opened => opened.map_err(VolumeError::io("open", root))?,
    };
    let part = match open_beneath(&volume, Some(root), sub_path, OFlags::PATH) {
        Err(Errno::NOENT) => make_part(&volume, root, sub_path).map_err(failed("make"))?,
        opened => opened.map_err(failed("open"))?,
    };
    let found = rustix::fs::fstat(&part).map_err(failed("look at"))?;
    let is_directory = match FileType::from_raw_mode(found.st_mode) {
        // Opened as itself only if it was put there between two looks.
        FileType::Symlink => return Err(escapes()),
        kind => kind == FileType::Directory,
    };

    if is_mount_point(target)? {
        let mounted = rustix::fs::stat(target).map_err(VolumeError::io("look at", target))?;
        if (mounted.st_dev, mounted.st_ino) == (found.st_dev, found.st_ino) {
            return Ok(());
        }
        unmount(target, UnmountFlags::DETACH)?;
    }
    make_target(target, is_directory)?;
    let source = format!("/proc/self/fd/{}", part.as_raw_fd());
    rustix::mount::mount_bind(source, target).map_err(VolumeError::io("mount at", target))?;
    // What was held open is what must be mounted; anything else would mean that the kernel was fooled, too.
    let mounted = rustix::fs::stat(target).map_err(VolumeError::io("look at", target))?;
    if (mounted.st_dev, mounted.st_ino) != (found.st_dev, found.st_ino) {
        unmount(target, UnmountFlags::DETACH)?;
        return Err(escapes());
    }
    Ok(())
}

pub(crate) fn unmount(target: &Path, flags: UnmountFlags) -> Result<(), VolumeError> {
    match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
        // Not mounted, or not there at all.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(VolumeError::io("unmount", target)(errno)),
    }
}

/// Makes the directories of a part that are missing, each with the permissions of the volume's root, and opens the last.
fn make_part(volume: &OwnedFd, root: &Path, sub_path: &str) -> Result<OwnedFd, Errno> {
    let bits = rustix::fs::fstat(volume)?.st_mode & 0o7777;
    let parts: Vec<_> = sub_path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let mut at = volume.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let mut made_any = false;
    for (index, part) in parts.iter().enumerate() {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // What exists may be a link within the volume. Behind the first directory that we made, nothing may.
        let opened = if made_any {
            Err(Errno::NOENT)
        } else {
            let prefix = parts.get(..=index).unwrap_or_default().join("/");
            open_beneath(volume, Some(root), &prefix, step)
        };
        at = match opened {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, *part, mode(bits)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                made_any = true;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = match rustix::fs::openat(&at, *part, flags, Mode::empty()) {
                    // A link to what does not exist stands where the directory should be. Nothing is made behind it: wherever it
                    // leads, nobody asked for a directory there.
                    Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::NOLINK),
                    below => below?,
                };
                rustix::fs::fchmod(&below, mode(bits))?;
                below
            }
            opened => opened?,
        };
    }
    Ok(at)
}

/// Makes what the part is mounted upon.
fn make_target(target: &Path, is_directory: bool) -> Result<(), VolumeError> {
    if is_directory {
        if target.is_file() {
            fs::remove_file(target).map_err(failed("remove", target))?;
        }
        return make_dir(target, 0o750);
    }
    if let Some(parent) = target.parent() {
        make_dir(parent, 0o750)?;
    }
    if target.is_dir() {
        fs::remove_dir(target).map_err(failed("remove", target))?;
    }
    let made = fs::OpenOptions::new().create(true).append(true).open(target);
    made.map(drop).map_err(failed("make", target))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
