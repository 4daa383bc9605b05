//! Making volumes.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use mainstay_podspec::volumes::{SetupKind, VolumeSetup};
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, StatxAttributes, StatxFlags},
    io::Errno,
    mount::{FsOpenFlags, MountFlags},
};

use crate::{Progress, VolumeError, command, host_path, local, writer};

/// What the pod's owner should know of a volume that is up. It is given once: whoever gets it tells of it, though nobody waits for the
/// volume any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It was not given to the pod's group, because another pod has it.
    OtherGroup {
        /// The pod's group.
        asked: u32,
        /// Whose it is.
        has: u32,
    },
}

/// Makes a volume, or brings it up to date. Blocks. May be called again at any time.
///
/// # Errors
/// [`VolumeError`]; it is worth trying again.
pub fn set_up(setup: &VolumeSetup, progress: &Progress) -> Result<Option<Notice>, VolumeError> {
    let path = &setup.path;
    progress.doing(format!("setting up volume {:?} at {}", setup.name, path.display()));
    match &setup.kind {
        SetupKind::Image => return Ok(None),
        SetupKind::HostPath(kind) => host_path::check(path, *kind)?,
        SetupKind::Local => return local::set_up(setup, progress),
        SetupKind::Nfs { source, read_only, options } => {
            if !is_mount_point(path)? {
                make_dir(path, 0o750)?;
                let own = read_only.then_some("ro");
                let options: Vec<&str> = own.into_iter().chain(options.iter().map(String::as_str)).collect();
                command::mount("nfs", source, path, &options, progress)?;
            }
        }
        SetupKind::Directory { mode } => {
            // What is in it is the pod's: once made, nothing is changed any more.
            if is_set_up(setup) && path.is_dir() {
                return Ok(None);
            }
            make_dir(path, 0o750)?;
            finish_root(path, *mode, setup.fs_group)?;
        }
        SetupKind::Memory { mode, size } => {
            let mounted = is_mount_point(path)?;
            if mounted && is_set_up(setup) {
                return Ok(None);
            }
            if !mounted {
                mount_tmpfs(path, *size)?;
            }
            finish_root(path, *mode, setup.fs_group)?;
        }
        SetupKind::HugePages { mode, page_size } => {
            let mounted = is_mount_point(path)?;
            if mounted && is_set_up(setup) {
                return Ok(None);
            }
            if !mounted {
                make_dir(path, 0o750)?;
                mount(path, "nodev", "hugetlbfs", &format!("pagesize={page_size}"))
                    .map_err(VolumeError::io("mount huge pages at", path))?;
            }
            finish_root(path, *mode, setup.fs_group)?;
        }
        SetupKind::Files { in_memory, size, files } => {
            let mounted = is_mount_point(path)?;
            match (*in_memory && !mounted, is_set_up(setup) && path.is_dir()) {
                (true, _) => {
                    mount_tmpfs(path, *size)?;
                    finish_root(path, 0o777, setup.fs_group)?;
                }
                (false, false) => {
                    make_dir(path, 0o750)?;
                    finish_root(path, 0o777, setup.fs_group)?;
                }
                (false, true) => {}
            }
            writer::write(path, files, setup.fs_group)?;
        }
    }
    mark_ready(setup)?;
    Ok(None)
}

/// Whether a volume was set up before, by this or an earlier life of the agent. Blocks shortly.
#[must_use]
pub fn is_set_up(setup: &VolumeSetup) -> bool {
    setup.ready_marker.as_deref().is_some_and(Path::is_file)
}

pub(crate) fn mark_ready(setup: &VolumeSetup) -> Result<(), VolumeError> {
    let Some(marker) = setup.ready_marker.as_deref().filter(|marker| !marker.is_file()) else {
        return Ok(());
    };
    if let Some(parent) = marker.parent() {
        make_dir(parent, 0o750)?;
    }
    fs::write(marker, b"").map_err(failed("write", marker))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io { action, path, source }
}

pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeError> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(failed("make the directory", path))
}

/// Gives a volume's root its permissions, whatever the umask is, and its group.
fn finish_root(path: &Path, mode: u32, group: Option<u32>) -> Result<(), VolumeError> {
    let found = fs::symlink_metadata(path).map_err(failed("look at", path))?.permissions().mode();
    let mut wanted = mode;
    if let Some(group) = group {
        rustix::fs::chown(path, None, Some(Gid::from_raw(group)))
            .map_err(VolumeError::io("change the group of", path))?;
        wanted |= GROUP_DIRECTORY | 0o220;
    }
    // tmpfs comes with its sticky bit, and keeps it, as upstream leaves it.
    let sticky = found & 0o1000;
    if found & 0o7777 != wanted | sticky {
        let permissions = fs::Permissions::from_mode(wanted | sticky);
        fs::set_permissions(path, permissions).map_err(failed("set the mode of", path))?;
    }
    Ok(())
}

/// What a directory that belongs to an fsGroup has beside its own mode: new files are the group's, it can look inside.
pub(crate) const GROUP_DIRECTORY: u32 = 0o2000 | 0o550;

/// Whether something is mounted at exactly this path.
pub(crate) fn is_mount_point(path: &Path) -> Result<bool, VolumeError> {
    // What the kernel remembers will do: a dead server would never answer.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(stat) if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        // Before Linux 5.8 only the table tells.
        Ok(_) | Err(Errno::NOSYS) => {
            let real = fs::canonicalize(path).map_err(failed("resolve", path))?;
            Ok(mainstay_host::Host::default().mounts()?.is_mount_point(&real))
        }
        Err(errno) => Err(VolumeError::io("look at", path)(errno)),
    }
}

/// Whether what is on a tmpfs can be kept from being swapped out to a disk. Linux before 6.4 does not know how.
#[must_use]
pub fn tmpfs_stays_in_memory() -> bool {
    let asked = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .and_then(|context| rustix::mount::fsconfig_set_flag(&context, "noswap"));
    asked.is_ok()
}

fn mount_tmpfs(path: &Path, size: Option<i64>) -> Result<(), VolumeError> {
    make_dir(path, 0o750)?;
    let size = size.map(|bytes| format!("size={bytes}")).unwrap_or_default();
    let comma = if size.is_empty() { "" } else { "," };
    // What may be secret should not reach a disk by being swapped out, where that can be had.
    match mount(path, "tmpfs", "tmpfs", &format!("{size}{comma}noswap")) {
        Err(Errno::INVAL) => mount(path, "tmpfs", "tmpfs", &size),
        result => result,
    }
    .map_err(VolumeError::io("mount a tmpfs at", path))
}

fn mount(path: &Path, source: &str, fs_type: &str, data: &str) -> Result<(), Errno> {
    let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source, path, fs_type, MountFlags::empty(), data.as_c_str())
}

pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

#[cfg(test)]
mod tests;
