//! Whose a pod's directory is: an extended attribute, which no other agent sets and which goes with it.

use std::{os::unix::ffi::OsStrExt as _, path::Path};

use rustix::{fs::XattrFlags, io::Errno};

use crate::{VolumeError, setup::make_dir};

/// Holds the root directory of the mainstay that made the pod's.
const ATTRIBUTE: &str = "trusted.mainstay.root";

/// Makes a pod's directory, if it is not there, and marks it as that of the mainstay on `root`, which by this knows its own after it has lost
/// all records. On a file system that does not keep such marks it stays unmarked. Blocks shortly.
///
/// # Errors
/// When it cannot be made.
pub fn make_pod_dir(dir: &Path, root: &Path) -> Result<(), VolumeError> {
    make_dir(dir, 0o750)?;
    let owner = root.as_os_str().as_bytes();
    if let Err(error) = rustix::fs::setxattr(dir, ATTRIBUTE, owner, XattrFlags::empty()) {
        tracing::debug!(dir = %dir.display(), %error, "cannot mark a pod's directory as mainstay's");
    }
    Ok(())
}

/// Whether the mainstay on `root` has marked a pod's directory. Blocks shortly.
#[must_use]
pub fn is_own_pod_dir(dir: &Path, root: &Path) -> bool {
    let owner = root.as_os_str().as_bytes();
    // One byte more, to tell a longer mark from ours.
    let mut value = vec![0_u8; owner.len() + 1];
    let found: Result<usize, Errno> = rustix::fs::lgetxattr(dir, ATTRIBUTE, value.as_mut_slice());
    found.is_ok_and(|length| value.get(..length) == Some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_its_makers_only() {
        let root = tempfile::tempdir().unwrap();
        let (own, other) = (root.path().join("pods/own"), root.path().join("pods/other"));
        std::fs::create_dir_all(&other).unwrap();
        for _ in 0..2 {
            make_pod_dir(&own, root.path()).unwrap();
        }
        assert!(is_own_pod_dir(&own, root.path()) && !is_own_pod_dir(&other, root.path()));
        for root in ["/", "", "/var/lib/kubelet"].map(Path::new).into_iter().chain([own.as_path()]) {
            assert!(!is_own_pod_dir(&own, root), "{}", root.display());
        }
        assert!(!is_own_pod_dir(&root.path().join("pods/none"), root.path()));
    }
}
