//! Taking volumes down.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_host::{Host, remove_dir_all_counting};
use rustix::mount::UnmountFlags;

use crate::{Progress, VolumeError, subpath::unmount};

/// Unmounts everything below a pod's directory, looks whether nothing is left mounted, and removes its volumes. Blocks. By
/// what is on disk: it needs no list of volumes, and what an earlier life left is found as well.
///
/// # Errors
/// When something cannot be unmounted or removed. Nothing is removed before everything is unmounted.
pub fn tear_down(pod_dir: &Path, progress: &Progress) -> Result<(), VolumeError> {
    let real = match fs::canonicalize(pod_dir) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(VolumeError::Io { action: "resolve", path: pod_dir.to_owned(), source });
        }
    };
    let table = Host::default().mounts()?;
    // The last made goes first, and parts of volumes before the volumes.
    let mut mounts: Vec<_> = table.at_or_below(&real).collect();
    mounts.reverse();
    let sub_paths = real.join("volume-subpaths");
    mounts.sort_by_key(|mount| !mount.mount_point.starts_with(&sub_paths));
    let mut first_error = None;
    for mount in &mounts {
        progress.doing(format!("unmounting {}", mount.mount_point.display()));
        // A dead server would hold us up for ever: it is taken out of the tree, and the kernel ends it when it can.
        let flags =
            if mount.fs_type.starts_with("nfs") { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        if let Err(error) = unmount(&mount.mount_point, flags) {
            first_error.get_or_insert(error);
        }
    }
    if !mounts.is_empty() {
        let left = Host::default().mounts()?.at_or_below(&real).next().map(|mount| mount.mount_point.clone());
        if let Some(mount_point) = left {
            return Err(first_error.unwrap_or(VolumeError::StillMounted { mount_point }));
        }
    }
    for name in ["volume-subpaths", "volumes", "plugins"] {
        let path: PathBuf = real.join(name);
        progress.doing(format!("removing {}", path.display()));
        remove_dir_all_counting(&path, progress.removed())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
