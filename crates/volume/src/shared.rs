//! Mounts that containers and the machine see of each other.

use std::{fs, path::Path};

use mainstay_host::Host;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use crate::VolumeError;

/// Makes sure that what is mounted below `root` on either side is seen on the other, which `mountPropagation` of a volume
/// needs: where `root` lies on a mount that is private, it becomes a shared mount of its own, as upstream has it. On most
/// machines, whose service manager shares `/`, there is nothing to do. Blocks shortly. Whether anything was done.
///
/// # Errors
/// When the mounts cannot be read or changed.
pub fn share_mounts(root: &Path) -> Result<bool, VolumeError> {
    let real = fs::canonicalize(root).map_err(|source| VolumeError::Io {
        action: "resolve",
        path: root.to_owned(),
        source,
    })?;
    let table = Host::default().mounts()?;
    let is_shared = |at: &Path| {
        let mount = table.mount_of(at);
        mount.is_some_and(|mount| mount.propagation.iter().any(|word| word.starts_with("shared:")))
    };
    if is_shared(&real) {
        return Ok(false);
    }
    if !table.is_mount_point(&real) {
        mount_bind(&real, &real).map_err(VolumeError::io("make a mount of", &real))?;
    }
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change(&real, flags).map_err(VolumeError::io("share the mounts of", &real))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_directory_becomes_a_shared_mount_once() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        mount_bind(&base, &base).unwrap();
        mount_change(&base, MountPropagationFlags::PRIVATE).unwrap();
        let root = base.join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("kept"), "it").unwrap();
        let first = share_mounts(&root);
        let shown = Host::default().mounts().unwrap();
        let shared =
            shown.mount_of(&root).map(|mount| (mount.mount_point.clone(), mount.propagation.clone()));
        let again = share_mounts(&root);
        let kept = fs::read_to_string(root.join("kept"));
        let detach = rustix::mount::UnmountFlags::DETACH;
        let ended = [&root, &base].map(|path| rustix::mount::unmount(path, detach));
        assert!(first.unwrap(), "it was private");
        let (at, propagation) = shared.unwrap();
        assert_eq!(at, root);
        assert!(propagation.iter().any(|word| word.starts_with("shared:")), "{propagation:?}");
        assert!(!again.unwrap(), "that is enough");
        assert_eq!(kept.unwrap(), "it");
        assert_eq!(ended, [Ok(()), Ok(())]);
    }
}
