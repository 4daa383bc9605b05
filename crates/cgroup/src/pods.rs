//! The cgroups of a node's pods, by whichever driver.

use std::time::Duration;

use mainstay_podspec::runtime::CgroupValues;
use mainstay_types::PodUid;

use crate::{CgroupError, CgroupNames, CgroupPath, Cgroups, Driver, PodCgroup, Systemd};

/// All that is done with the cgroups of pods, and of those above them.
#[derive(Debug)]
pub struct PodCgroups {
    names: CgroupNames,
    hierarchy: Cgroups,
    systemd: Option<Systemd>,
}

impl PodCgroups {
    /// Works on `hierarchy` by the driver that the names are for.
    #[must_use]
    pub fn new(names: CgroupNames, hierarchy: Cgroups) -> Self {
        let systemd = (names.driver() == Driver::Systemd).then(|| Systemd::new(hierarchy.is_v2()));
        Self { names, hierarchy, systemd }
    }

    /// What they are called.
    #[must_use]
    pub const fn names(&self) -> &CgroupNames {
        &self.names
    }

    /// The files.
    #[must_use]
    pub const fn hierarchy(&self) -> &Cgroups {
        &self.hierarchy
    }

    /// Makes the cgroup, and those above it, and sets what it allows. What exists is set as well.
    ///
    /// # Errors
    /// [`CgroupError`] of the kernel or of systemd.
    pub fn ensure(&self, path: &CgroupPath, values: &CgroupValues) -> Result<(), CgroupError> {
        if let Some(systemd) = &self.systemd {
            systemd.start_slice(path, values)?;
        }
        // systemd hands down the controllers that it has properties for; hugetlb, for one, is left to others.
        self.hierarchy.create(path)?;
        self.hierarchy.apply(path, values)
    }

    /// Sets what a cgroup allows that is there already, whoever made it.
    ///
    /// # Errors
    /// [`CgroupError`] of the kernel or of systemd.
    pub fn set(&self, path: &CgroupPath, values: &CgroupValues) -> Result<(), CgroupError> {
        if let Some(systemd) = self.systemd.as_ref().filter(|_| path.is_slice()) {
            systemd.set(path, values)?;
        }
        self.hierarchy.apply(path, values)
    }

    /// Kills what is in the cgroup, waiting up to `patience`, and removes it. One that does not exist counts as removed.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] with processes that do not die; [`CgroupError`] of the kernel or of systemd.
    pub fn destroy(&self, path: &CgroupPath, patience: Duration) -> Result<(), CgroupError> {
        if !self.hierarchy.exists_anywhere(path) {
            return Ok(());
        }
        self.hierarchy.kill_all(path, patience)?;
        if let Some(systemd) = &self.systemd {
            systemd.stop(path)?;
        }
        self.hierarchy.remove(path)
    }

    /// The same with a pod's cgroup, in whichever class it is: of a pod that only the runtime knows, nobody knows the
    /// class.
    ///
    /// # Errors
    /// As [`PodCgroups::destroy`].
    pub fn destroy_pod(&self, uid: &PodUid, patience: Duration) -> Result<(), CgroupError> {
        self.names.pods(uid).iter().try_for_each(|path| self.destroy(path, patience))
    }

    /// The cgroups of pods that exist, whoever made them.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if a directory exists and cannot be read.
    pub fn list(&self) -> Result<Vec<PodCgroup>, CgroupError> {
        self.hierarchy.list_pods(&self.names)
    }
}
