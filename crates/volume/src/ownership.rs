//! Giving a volume that was there before its pod to the pod's group, as upstream's `volume.SetVolumeOwnership` of 1.37 does.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use mainstay_podspec::volumes::GroupChange;
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat},
    io::Errno,
};

use tracing::warn;

use crate::{Progress, VolumeError};

/// What the group may do with everything.
const FILE: u32 = 0o660;
/// What it may do with directories, whose new files are its own as well.
const DIRECTORY: u32 = 0o2000 | 0o770;
/// Directories within one another; deeper ones are as they are, and are told of. Each is open while what is in it is given.
const MAX_DEPTH: usize = 512;

/// Gives a directory and what is in it to a group. Links in it are changed themselves and never followed; the directory itself may be
/// named by one. What the file system does not let go of (immutable files, say) stays as it is and is told of in the log, as upstream does it.
/// Blocks, for long where there is much; how far it is is told.
pub(crate) fn give(
    path: &Path,
    group: u32,
    when: GroupChange,
    progress: &Progress,
) -> Result<(), VolumeError> {
    let failed = |errno: Errno| VolumeError::io("give to the pod's group", path)(errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&root).map_err(failed)?;
    if when == GroupChange::OnRootMismatch && is_given(&stat, group, DIRECTORY) {
        return Ok(());
    }
    // The root comes last: while it is not the group's, what is in it may not be.
    let mut kept = Kept::default();
    if !give_below(&root, group, &mut kept, progress).map_err(failed)? {
        return Err(VolumeError::Abandoned { path: path.to_owned() });
    }
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

impl Kept {
    fn add(&mut self, name: &std::ffi::CStr, errno: Errno) {
        // It went while this was looking.
        if errno != Errno::NOENT {
            self.count += 1;
            self.first.get_or_insert_with(|| (name.to_string_lossy().into_owned(), errno));
        }
    }
}

/// A directory whose contents are being given; it follows them itself.
struct Level {
    entries: Dir,
    name: CString,
    stat: Stat,
}

/// Gives all that is in a directory. The way down is on the heap: threads that make volumes ready have small stacks. Whether it came
/// to the end: what nobody waits for any more is left as it is.
fn give_below(root: &OwnedFd, group: u32, kept: &mut Kept, progress: &Progress) -> Result<bool, Errno> {
    let mut top = Dir::read_from(root)?;
    let mut files = 0;
    let mut way: Vec<Level> = Vec::new();
    loop {
        let entries = way.last_mut().map_or(&mut top, |level| &mut level.entries);
        let Some(entry) = entries.read() else {
            let Some(level) = way.pop() else { return Ok(true) };
            let given =
                level.entries.fd().and_then(|directory| change(directory, &level.stat, group, DIRECTORY));
            given.unwrap_or_else(|errno| kept.add(&level.name, errno));
            continue;
        };
        let entry = match entry {
            Ok(entry) => entry,
            // What could be read of it is given.
            Err(errno) => {
                let Some(level) = way.pop() else { return Err(errno) };
                kept.add(&level.name, errno);
                continue;
            }
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if progress.is_abandoned() {
            return Ok(false);
        }
        progress.has_given(files);
        files += 1;
        match entries.fd().and_then(|directory| one(directory, name, group)) {
            Ok(None) => {}
            Ok(Some(_)) if way.len() >= MAX_DEPTH => kept.add(name, Errno::NAMETOOLONG),
            Ok(Some((entries, stat))) => way.push(Level { entries, name: name.to_owned(), stat }),
            Err(errno) => kept.add(name, errno),
        }
    }
}

/// Gives what is no directory; one is opened, to be given after what is in it.
fn one(directory: BorrowedFd<'_>, name: &std::ffi::CStr, group: u32) -> Result<Option<(Dir, Stat)>, Errno> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            // Of the one that was opened: another may have had the name before, with another mode.
            let stat = rustix::fs::fstat(&inner)?;
            return Ok(Some((Dir::new(inner)?, stat)));
        }
        FileType::RegularFile => {
            // Without waiting for anybody: it may have become a pipe meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || is_given(&stat, group, FILE)
            {
                return Ok(None);
            }
            rustix::fs::chownat(&file, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            rustix::fs::chmod(path, Mode::from_raw_mode(stat.st_mode & 0o7777 | FILE))?;
        }
        // Links, sockets, pipes and devices only change hands.
        _ => {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(directory, name, None, Some(Gid::from_raw(group)), flags)?;
        }
    }
    Ok(None)
}

fn is_given(stat: &Stat, group: u32, mode: u32) -> bool {
    stat.st_gid == group && stat.st_mode & mode == mode
}

fn change(file: impl AsFd, stat: &Stat, group: u32, mode: u32) -> Result<(), Errno> {
    if is_given(stat, group, mode) {
        return Ok(());
    }
    rustix::fs::fchown(&file, None, Some(Gid::from_raw(group)))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777 | mode))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use super::*;

    #[tokio::test]
    async fn a_deep_tree_is_given_without_a_deep_stack() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, path) = (dir.path().to_owned(), vec!["d"; MAX_DEPTH].join("/"));
        let work = move |_: &crate::Progress| {
            fs::create_dir_all(volume.join(&path).join("too deep")).unwrap();
            give(&volume, 4711, GroupChange::Always, &Progress::default()).unwrap();
            let group = |path: &str| fs::symlink_metadata(volume.join(path)).unwrap().gid();
            (group("d"), group(&path), group(&format!("{path}/too deep")))
        };
        let patience = std::time::Duration::from_secs(60);
        let (top, last, beyond) = crate::Jobs::default().run("pod", patience, work).await.unwrap();
        assert_eq!((top, last), (4711, 4711));
        assert_ne!(beyond, 4711);
    }

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
        give(&volume, 4711, GroupChange::Always, &Progress::default()).unwrap();
        assert_eq!(seen(&volume), (4711, 0o2775));
        assert_eq!(seen(&volume.join("a/b")), (4711, 0o2775));
        assert_eq!(seen(&volume.join("a/file")), (4711, 0o660));
        assert_eq!(seen(&volume.join("a/link")).0, 4711);
        assert_eq!(seen(&outside), before, "a link leads nowhere");
        // The root is the group's: what is in it is left alone, unless it is to be looked at always.
        rustix::fs::chown(volume.join("a/file"), None, Some(Gid::from_raw(1))).unwrap();
        give(&volume, 4711, GroupChange::OnRootMismatch, &Progress::default()).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 1);
        give(&volume, 4711, GroupChange::Always, &Progress::default()).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 4711);
        give(&volume, 4712, GroupChange::OnRootMismatch, &Progress::default()).unwrap();
        assert_eq!(seen(&volume.join("a/file")).0, 4712);
    }

    #[test]
    fn directories_that_change_places_keep_their_own_modes() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let dir = tempfile::tempdir().unwrap();
        let (closed, open) = (dir.path().join("a"), dir.path().join("b"));
        let made = [(&closed, 0o700), (&open, 0o777)].map(|(path, mode)| {
            fs::create_dir(path).unwrap();
            (fs::File::open(path).unwrap(), mode)
        });
        let done = AtomicBool::new(false);
        let modes = std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(rustix::fs::CWD, &closed, rustix::fs::CWD, &open, flags)
                        .unwrap();
                }
            });
            let rounds = (0..5000).map(|_| {
                for (file, mode) in &made {
                    file.set_permissions(fs::Permissions::from_mode(*mode)).unwrap();
                }
                give(dir.path(), 4711, GroupChange::Always, &Progress::default()).unwrap();
                made.each_ref().map(|(file, _)| file.metadata().unwrap().mode() & 0o707)
            });
            let modes: std::collections::BTreeSet<_> = rounds.collect();
            done.store(true, Ordering::Relaxed);
            modes
        });
        assert_eq!(modes.into_iter().collect::<Vec<_>>(), [[0o700, 0o707]]);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("file"), "").unwrap();
        let before = rustix::fs::stat(&volume).unwrap();
        let jobs = crate::Jobs::default();
        let (abandoned, wait) = std::sync::mpsc::channel::<()>();
        let path = volume.clone();
        let given = jobs.run("a", std::time::Duration::from_secs(60), move |progress| {
            wait.recv().ok();
            give(&path, 4711, GroupChange::Always, progress)
        });
        let abandon = async {
            tokio::task::yield_now().await;
            jobs.abandon("a");
            abandoned.send(()).unwrap();
        };
        let (given, ()) = tokio::join!(given, abandon);
        assert!(matches!(given, Ok(Err(VolumeError::Abandoned { .. }))), "{given:?}");
        // Whoever looks at the root sees that not all of it was given.
        assert_eq!(rustix::fs::stat(&volume).unwrap().st_gid, before.st_gid);
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
        let given = give(dir.path(), 4711, GroupChange::Always, &Progress::default());
        fixed("-i");
        given.unwrap();
        let group = |name: &str| fs::metadata(dir.path().join(name)).unwrap().gid();
        assert_eq!((group("a"), group("z"), group("")), (4711, 4711, 4711));
        assert_ne!(group("fixed"), 4711);
    }
}
