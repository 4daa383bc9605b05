//! Removing a directory tree without ever leaving it.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::{Host, HostError};

/// Deeper directories are first moved up to the top of the tree: each level costs a file descriptor and some kilobytes of a stack that
/// may be small, and a pod can make its volumes as deep as it likes.
const MAX_DEPTH: usize = 16;

/// Why a tree was not, or not wholly, removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Something is mounted in it. Nothing was removed through the mount.
    #[error("will not remove {path}: {mount_point} is a mount point; unmount it first", path = path.display(), mount_point = mount_point.display())]
    Mounted {
        /// The tree.
        path: PathBuf,
        /// The mount point in it.
        mount_point: PathBuf,
    },
    /// The path names a file, a symbolic link or something else.
    #[error("will not remove {path}: it is not a directory", path = path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The mounts are not known, so nothing was removed.
    #[error("will not remove {path} without knowing what is mounted", path = path.display())]
    MountsUnknown {
        /// The tree.
        path: PathBuf,
        /// Why they are not known.
        #[source]
        source: HostError,
    },
    /// The system refused; the rest of the tree was removed where possible.
    #[error("cannot {action} {path}", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Removes the directory at `path` and everything in it; one that does not exist counts as removed. Blocks.
///
/// Symbolic links are removed, never followed. If anything is mounted at or below `path`, nothing is removed; a mount that
/// appears meanwhile, a bind mount of the same file system included, is not entered.
///
/// # Errors
/// [`RemoveError`]. After [`RemoveError::Io`] it is worth trying again.
pub fn remove_dir_all_one_fs(path: &Path) -> Result<(), RemoveError> {
    remove_dir_all_counting(path, &AtomicU64::new(0))
}

/// The same, and counts what has been removed while it goes on, for those who have to tell much from what hangs.
///
/// # Errors
/// As [`remove_dir_all_one_fs`].
pub fn remove_dir_all_counting(path: &Path, removed: &AtomicU64) -> Result<(), RemoveError> {
    let failed = |action, source| RemoveError::Io { action, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(RemoveError::NotADirectory { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
    }
    // The directory's own name is kept: only what leads to it may contain links.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(RemoveError::NotADirectory { path: path.to_owned() });
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = fs::canonicalize(parent).map_err(|error| failed("resolve", error))?;
    let real = parent.join(name);
    let mounts = Host::default()
        .mounts()
        .map_err(|source| RemoveError::MountsUnknown { path: path.to_owned(), source })?;
    if let Some(mount) = mounts.at_or_below(&real).next() {
        return Err(RemoveError::Mounted { path: real.clone(), mount_point: mount.mount_point.clone() });
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let parent_fd = rustix::fs::open(&parent, flags, Mode::empty()).map_err(|e| failed("open", e.into()))?;
    Tree::open(parent_fd.as_fd(), name, &real, removed)?.remove_contents()?;
    match rustix::fs::unlinkat(&parent_fd, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("remove", errno.into())),
    }
}

struct Tree<'a> {
    top: OwnedFd,
    path: PathBuf,
    device: u64,
    moved_up: u64,
    removed: &'a AtomicU64,
}

impl<'a> Tree<'a> {
    fn open(
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        removed: &'a AtomicU64,
    ) -> Result<Self, RemoveError> {
        let top = open_directory(parent, name, path, path)?;
        let device = device_of(&top, path)?;
        Ok(Self { top, path: path.to_owned(), device, moved_up: 0, removed })
    }

    fn remove_contents(mut self) -> Result<(), RemoveError> {
        loop {
            let moved_before = self.moved_up;
            let top = self.top.try_clone().map_err(|source| self.failed("open", &self.path, source))?;
            let path = self.path.clone();
            self.empty(&top, &path, 0)?;
            if self.moved_up == moved_before {
                return Ok(());
            }
        }
    }

    /// Removes what is in a directory. Goes on after a failure and reports the first.
    fn empty(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> Result<(), RemoveError> {
        let mut first_error = None;
        // Again until nothing is found: some file systems skip entries when others are removed under the reader.
        loop {
            let mut found = 0_usize;
            let entries = Dir::read_from(directory).map_err(|e| self.failed("list", path, e.into()))?;
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(errno) => return Err(self.failed("list", path, errno.into())),
                };
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                found += 1;
                if let Err(error) = self.remove_entry(directory, name, entry.file_type(), path, depth) {
                    first_error.get_or_insert(error);
                }
            }
            if let Some(error) = first_error {
                return Err(error);
            }
            if found == 0 {
                return Ok(());
            }
        }
    }

    fn remove_entry(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        file_type: FileType,
        path: &Path,
        depth: usize,
    ) -> Result<(), RemoveError> {
        let name = OsStr::from_bytes(name.to_bytes());
        let path = path.join(name);
        let is_directory = match file_type {
            FileType::Directory => true,
            FileType::Unknown => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(self.failed("look at", &path, errno.into())),
            },
            _ => false,
        };
        if is_directory && depth >= MAX_DEPTH {
            return self.move_up(directory, name, &path);
        }
        if is_directory {
            let child = match open_directory(directory.as_fd(), name, &path, &self.path) {
                Err(RemoveError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(());
                }
                opened => opened?,
            };
            if device_of(&child, &path)? != self.device {
                return Err(RemoveError::Mounted { path: self.path.clone(), mount_point: path });
            }
            self.empty(&child, &path, depth + 1)?;
        }
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(directory, name, flags) {
            Ok(()) | Err(Errno::NOENT) => {
                self.removed.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            // The kernel's answer for a mount point.
            Err(Errno::BUSY) => Err(RemoveError::Mounted { path: self.path.clone(), mount_point: path }),
            Err(errno) => Err(self.failed("remove", &path, errno.into())),
        }
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), RemoveError> {
        loop {
            self.moved_up += 1;
            let target = format!(".removing-{}", self.moved_up);
            match rustix::fs::renameat_with(
                directory,
                name,
                &self.top,
                &target,
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("move up", path, errno.into())),
            }
        }
    }

    fn failed(&self, action: &'static str, path: &Path, source: io::Error) -> RemoveError {
        RemoveError::Io { action, path: path.to_owned(), source }
    }
}

/// Opens a directory in `parent` unless it is a link or something is mounted on it.
fn open_directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    tree: &Path,
) -> Result<OwnedFd, RemoveError> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    let opened = match rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, and under some seccomp filters: the device is compared by the caller at least.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(parent, name, flags, Mode::empty()),
        opened => opened,
    };
    opened.map_err(|errno| match errno {
        Errno::XDEV => RemoveError::Mounted { path: tree.to_owned(), mount_point: path.to_owned() },
        Errno::LOOP | Errno::NOTDIR => RemoveError::NotADirectory { path: path.to_owned() },
        errno => RemoveError::Io { action: "open", path: path.to_owned(), source: errno.into() },
    })
}

fn device_of(directory: &OwnedFd, path: &Path) -> Result<u64, RemoveError> {
    match rustix::fs::fstat(directory) {
        Ok(stat) => Ok(stat.st_dev),
        Err(errno) => Err(RemoveError::Io { action: "look at", path: path.to_owned(), source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

    #[test]
    fn removes_trees_and_not_what_links_point_to() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for n in 0..3000 {
            fs::write(tree.join(format!("a/file {n}")), b"x").unwrap();
        }
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink("/no/such/thing", tree.join("dangling")).unwrap();
        std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
        remove_dir_all_one_fs(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").is_dir());
        remove_dir_all_one_fs(&tree).unwrap();
    }

    #[test]
    fn refuses_what_is_not_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        fs::create_dir(&real).unwrap();
        let link = directory.path().join("link");
        symlink(&real, &link).unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"").unwrap();
        for path in [&link, &file, &directory.path().join("real/.."), &PathBuf::from("/")] {
            assert!(
                matches!(remove_dir_all_one_fs(path), Err(RemoveError::NotADirectory { .. })),
                "{path:?}"
            );
        }
        assert!(real.is_dir() && file.is_file());
    }

    #[test]
    fn trees_deeper_than_any_stack_or_descriptor_limit() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("deep");
        fs::create_dir(&tree).unwrap();
        fs::create_dir(tree.join(".removing-1")).unwrap();
        let mut current = rustix::fs::open(&tree, OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&current, "d", Mode::RWXU).unwrap();
            current = rustix::fs::openat(&current, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        remove_dir_all_one_fs(&tree).unwrap();
        assert!(!tree.exists());
    }

    /// Real mounts. Needs root, as mounting does.
    #[test]
    fn nothing_is_removed_through_a_mount() {
        const ROOT: &str = "this test mounts file systems and has to run as root";
        struct Mounted(Vec<PathBuf>);
        impl Drop for Mounted {
            fn drop(&mut self) {
                for path in self.0.iter().rev() {
                    unmount(path, UnmountFlags::DETACH).ok();
                }
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("precious"), b"x").unwrap();
        let tree = directory.path().join("tree");
        let (tmpfs, bind) = (tree.join("volumes/tmpfs"), tree.join("volumes/bind"));
        fs::create_dir_all(&tmpfs).unwrap();
        fs::create_dir_all(&bind).unwrap();
        let mut mounted = Mounted(Vec::new());

        mount("tmpfs", &tmpfs, "tmpfs", MountFlags::empty(), None).expect(ROOT);
        mounted.0.push(tmpfs.clone());
        fs::write(tmpfs.join("inside"), b"x").unwrap();
        let error = remove_dir_all_one_fs(&tree).unwrap_err();
        assert!(
            matches!(&error, RemoveError::Mounted { mount_point, .. } if *mount_point == tmpfs),
            "{error}"
        );
        let error = remove_dir_all_one_fs(&tmpfs).unwrap_err();
        assert!(matches!(error, RemoveError::Mounted { .. }));
        unmount(&tmpfs, UnmountFlags::DETACH).unwrap();

        // A bind mount has the device of the tree: the descent itself, without the look at the table, must stop there too.
        mount_bind(&data, &bind).expect(ROOT);
        mounted.0.push(bind.clone());
        assert!(matches!(remove_dir_all_one_fs(&tree), Err(RemoveError::Mounted { .. })));
        let parent = rustix::fs::open(directory.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let descent = Tree::open(parent.as_fd(), OsStr::new("tree"), &tree, &AtomicU64::new(0))
            .unwrap()
            .remove_contents();
        assert!(matches!(descent, Err(RemoveError::Mounted { mount_point, .. }) if mount_point == bind));
        assert!(data.join("precious").is_file());
        unmount(&bind, UnmountFlags::DETACH).unwrap();

        // A file mounted over a file.
        fs::create_dir_all(&tree).unwrap();
        let file = tree.join("file");
        fs::write(&file, b"").unwrap();
        mount_bind(data.join("precious"), &file).expect(ROOT);
        mounted.0.push(file.clone());
        let descent = Tree::open(parent.as_fd(), OsStr::new("tree"), &tree, &AtomicU64::new(0))
            .unwrap()
            .remove_contents();
        assert!(matches!(descent, Err(RemoveError::Mounted { mount_point, .. }) if mount_point == file));
        unmount(&file, UnmountFlags::DETACH).unwrap();
        remove_dir_all_one_fs(&tree).unwrap();
        assert!(data.join("precious").is_file());
    }
}
