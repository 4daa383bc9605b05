//! Whose a pod's cgroup is: an extended attribute of its directory, which no other agent sets and which goes with it.

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::{CgroupPath, Cgroups};

/// Holds the root directory of the mainstay that made the cgroup.
const ATTRIBUTE: &str = "trusted.mainstay.root";

impl Cgroups {
    /// Marks the cgroup as made by `owner`. Where the kernel does not keep such marks it stays unmarked.
    pub fn mark(&self, path: &CgroupPath, owner: &str) {
        for directory in self.directories(path) {
            if let Err(error) =
                rustix::fs::setxattr(&directory, ATTRIBUTE, owner.as_bytes(), XattrFlags::empty())
            {
                tracing::debug!(cgroup = %directory.display(), %error, "cannot mark a cgroup as mainstay's");
            }
        }
    }

    /// Whether `owner` has marked the cgroup, in any hierarchy.
    #[must_use]
    pub fn is_marked(&self, path: &CgroupPath, owner: &str) -> bool {
        // One byte more, to tell a longer mark from ours.
        let mut value = vec![0_u8; owner.len() + 1];
        self.directories(path).iter().any(|directory| {
            let found: Result<usize, Errno> =
                rustix::fs::getxattr(directory, ATTRIBUTE, value.as_mut_slice());
            found.is_ok_and(|length| value.get(..length) == Some(owner.as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_its_owners_only() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "cpu memory").unwrap();
        std::fs::create_dir_all(root.path().join("kubepods/poda")).unwrap();
        let cgroups = Cgroups::open(root.path()).unwrap();
        let path = CgroupPath::parse("/kubepods/poda").unwrap();
        assert!(!cgroups.is_marked(&path, "/a"));
        cgroups.mark(&path, "/a");
        assert!(cgroups.is_marked(&path, "/a"));
        for other in ["/", "/b", "/a/b", ""] {
            assert!(!cgroups.is_marked(&path, other), "{other:?}");
        }
        cgroups.mark(&path, "/a/b");
        assert!(cgroups.is_marked(&path, "/a/b"));
        assert!(!cgroups.is_marked(&path, "/a"));
        let none = CgroupPath::parse("/kubepods/podb").unwrap();
        cgroups.mark(&none, "/a");
        assert!(!cgroups.is_marked(&none, "/a"));
    }
}
