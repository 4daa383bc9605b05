//! Giving a volume that was there before its pod to the pod's group, as upstream's `volume.SetVolumeOwnership` of 1.37 does.

use std::{os::fd::OwnedFd, path::Path};

use mainstay_podspec::volumes::GroupChange;
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat},
    io::Errno,
};

use tracing::warn;

use crate::VolumeError;

/// What the group may do with everything.
const FILE: u32 = 0o660;
/// What it may do with directories, whose new files are its own as well.
const DIRECTORY: u32 = 0o2000 | 0o770;
/// Directories within one another; deeper ones are as they are.
const MAX_DEPTH: usize = 256;

/// Gives a directory and what is in it to a group. Links in it are changed themselves and never followed; the directory itself may be
/// named by one. What the file system does not let go of (immutable files, say) stays as it is and is told of in the log, as upstream does it.
/// Blocks, for long where there is much.
pub(crate) fn give(path: &Path, group: u32, when: GroupChange) -> Result<(), VolumeError> {
    let failed = |errno: Errno| VolumeError::io("give to the pod's group", path)(errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&root).map_err(failed)?;
    if when == GroupChange::OnRootMismatch && is_given(&stat, group, DIRECTORY) {
        return Ok(());
    }
    // The root comes last: while it is not the group's, what is in it may not be.
    let mut kept = Kept::default();
    give_below(&root, group, 0, &mut kept).map_err(failed)?;
    if let Kept { count, first: Some((name, errno)) } = &kept {
        warn!(
            volume = %path.display(), group, count, first = name, error = %errno,
            "parts of a volume could not be given to the pod's group, and stay whose they are"
        );
    }
    change(&root, &stat, group, DIRECTORY).map_err(failed)
}

/// What could not be given.
#[derive(Debug, Default)]
struct Kept {
    count: u64,
    first: Option<(String, Errno)>,
}

fn give_below(directory: &OwnedFd, group: u32, depth: usize, kept: &mut Kept) -> Result<(), Errno> {
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        match one(directory, name, group, depth, kept) {
            // It went while this was looking.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                kept.count += 1;
                kept.first.get_or_insert_with(|| (name.to_string_lossy().into_owned(), errno));
            }
        }
    }
    Ok(())
}

fn one(
    directory: &OwnedFd,
    name: &std::ffi::CStr,
    group: u32,
    depth: usize,
    kept: &mut Kept,
) -> Result<(), Errno> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            give_below(&inner, group, depth + 1, kept)?;
            change(&inner, &stat, group, DIRECTORY)
        }
        FileType::RegularFile => {
            // Without waiting for anybody: it may have become a pipe meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || is_given(&stat, group, FILE)
            {
                return Ok(());
            }
            rustix::fs::chownat(&file, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            rustix::fs::chmod(path, Mode::from_raw_mode(stat.st_mode & 0o7777 | FILE))
        }
        // Links, sockets, pipes and devices only change hands.
        _ => {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(directory, name, None, Some(Gid::from_raw(group)), flags)
        }
    }
}

fn is_given(stat: &Stat, group: u32, mode: u32) -> bool {
    stat.st_gid == group && stat.st_mode & mode == mode
}

fn change(file: &OwnedFd, stat: &Stat, group: u32, mode: u32) -> Result<(), Errno> {
    if is_given(stat, group, mode) {
        return Ok(());
    }
    rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777 | mode))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use super::*;

    #[test]
    fn everything_is_given_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(&outside, "").unwrap();
        fs::write(volume.join("a/file"), "").unwrap();
        fs::set_permissions(volume.join("a/file"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        let seen = |path: &Path| {
            let found = fs::symlink_metadata(path).unwrap();
            (found.gid(), found.mode() & 0o7777)
        };
        let before = seen(&outside);
        give(&volume, 4711, GroupChange::Always).unwrap();
        assert_eq!(seen(&volume), (4711, 0o2775));
        assert_eq!(seen(&volume.join("a/b")), (4711, 0o2775));
        assert_eq!(seen(&volume.join("a/file")), (4711, 0o660));
        assert_eq!(seen(&volume.join("a/link")).0, 4711);
        assert_eq!(seen(&outside), before, "a link leads nowhere");
        // The root is the group's: what is in it is left alone, unless it is to be looked at always.
        rustix::fs::chown(volume.join("a/file"), None, Some(Gid::from_raw(1))).unwrap();
        give(&volume, 4711, GroupChange::OnRootMismatch).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 1);
        give(&volume, 4711, GroupChange::Always).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 4711);
        give(&volume, 4712, GroupChange::OnRootMismatch).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 4712);
    }
    #[test]
    fn what_cannot_be_given_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "fixed", "z"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let fixed = |flag: &str| {
            let status =
                std::process::Command::new("chattr").arg(flag).arg(dir.path().join("fixed")).status();
            assert!(status.unwrap().success(), "chattr {flag}");
        };
        fixed("+i");
        let given = give(dir.path(), 4711, GroupChange::Always);
        fixed("-i");
        given.unwrap();
        let group = |name: &str| fs::metadata(dir.path().join(name)).unwrap().gid();
        assert_eq!((group("a"), group("z"), group("")), (4711, 4711, 4711));
        assert_ne!(group("fixed"), 4711);
    }
}
