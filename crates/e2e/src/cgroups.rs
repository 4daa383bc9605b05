//! A cgroup's files, whatever the version and the driver.

use std::{
    fs,
    path::{Path, PathBuf},
};

use mainstay_testkit::CgroupDriver;

use crate::World;

const MOUNT: &str = "/sys/fs/cgroup";

/// A cgroup, read and written the way an administrator would.
#[derive(Debug, Clone)]
pub struct CgroupFiles {
    /// Below a hierarchy's mount point.
    path: PathBuf,
    v2: bool,
}

impl CgroupFiles {
    /// A cgroup of the node, by the parts of its name below `cgroupRoot`.
    pub fn of<S: AsRef<str>>(world: &World, parts: &[S]) -> Self {
        let root = world.node.cgroup_root().split('/').filter(|part| !part.is_empty());
        let all: Vec<&str> = root.chain(parts.iter().map(AsRef::as_ref)).collect();
        Self::at(&all)
    }

    /// A cgroup by all parts of its name.
    pub fn at(parts: &[&str]) -> Self {
        let path = CgroupDriver::of_this_run().path(parts);
        Self { path, v2: Path::new(MOUNT).join("cgroup.controllers").exists() }
    }

    /// The cgroup as a configuration names it.
    pub fn config_name(&self) -> String {
        format!("/{}", self.path.display())
    }

    /// The cgroup of a container in this one.
    #[must_use]
    pub fn container(&self, id: &str) -> Self {
        Self { path: self.path.join(CgroupDriver::of_this_run().container(id)), v2: self.v2 }
    }

    /// Makes it in every hierarchy.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn made(self) -> Self {
        for dir in self.everywhere() {
            fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("cannot make {}: {error}", dir.display()));
            // A new v1 cpuset is empty and refuses processes until it has its parent's CPUs and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"].map(|file| dir.join(file)) {
                if !self.v2 && fs::read_to_string(&file).is_ok_and(|own| own.trim().is_empty()) {
                    let name = file.file_name().unwrap_or_default();
                    let whole = fs::read_to_string(Path::new(MOUNT).join("cpuset").join(name));
                    fs::write(&file, whole.unwrap_or_default().trim()).ok();
                }
            }
        }
        self
    }

    /// Removes it, if it is there.
    pub fn remove(&self) {
        for dir in self.directories() {
            fs::remove_dir(dir).ok();
        }
    }

    /// Its directory in every hierarchy that has it.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.everywhere().into_iter().filter(|dir| dir.is_dir()).collect()
    }

    /// Its processes.
    pub fn processes(&self) -> Vec<u32> {
        let text = self.read("memory", "cgroup.procs");
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Puts a process into a cgroup below it: one that has others below it takes none itself on v2.
    ///
    /// # Panics
    /// When that fails.
    pub fn add_process(&self, pid: u32) {
        for controller in if self.v2 { vec![""] } else { vec!["memory", "pids"] } {
            let below = self.dir(controller).join("stray");
            let added =
                fs::create_dir(&below).and_then(|()| fs::write(below.join("cgroup.procs"), pid.to_string()));
            added.unwrap_or_else(|error| panic!("cannot put {pid} into {}: {error}", below.display()));
        }
    }

    /// `cpu.shares` or `cpu.weight`.
    pub fn shares(&self) -> i64 {
        let text = if self.v2 { self.read("", "cpu.weight") } else { self.read("cpu", "cpu.shares") };
        text.parse().unwrap_or(-1)
    }

    /// What [`CgroupFiles::shares`] shows for so many shares.
    pub fn expected_shares(&self, shares: i64) -> i64 {
        if self.v2 { 1 + (shares - 2) * 9999 / 262_142 } else { shares }
    }

    /// Sets `cpu.shares` or `cpu.weight` to this very number.
    ///
    /// # Panics
    /// When that fails.
    pub fn set_shares(&self, number: i64) {
        let (controller, file) = if self.v2 { ("", "cpu.weight") } else { ("cpu", "cpu.shares") };
        let file = self.dir(controller).join(file);
        fs::write(&file, number.to_string()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Microseconds of CPU in each 100 ms.
    ///
    /// # Panics
    /// When the period is another one.
    pub fn quota(&self) -> Option<i64> {
        let text = if self.v2 {
            self.read("", "cpu.max")
        } else {
            format!("{} {}", self.read("cpu", "cpu.cfs_quota_us"), self.read("cpu", "cpu.cfs_period_us"))
        };
        let (quota, period) = text.split_once(' ').unwrap_or_default();
        assert_eq!(period, "100000", "{}: {text:?}", self.path.display());
        quota.parse().ok().filter(|quota| *quota >= 0)
    }

    /// How often it was held back for its quota.
    pub fn throttled_times(&self) -> u64 {
        let text = self.read("cpu", "cpu.stat");
        let line = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        line.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Bytes of memory.
    pub fn memory_limit(&self) -> Option<i64> {
        let text =
            if self.v2 { self.read("", "memory.max") } else { self.read("memory", "memory.limit_in_bytes") };
        // v1 shows no limit as one that no machine can have.
        text.parse().ok().filter(|bytes| *bytes < 1 << 60)
    }

    /// `pids.max`.
    pub fn pids_limit(&self) -> Option<i64> {
        self.read("pids", "pids.max").parse().ok()
    }

    /// The limit of each huge page size in bytes; empty where the kernel cannot limit them.
    pub fn huge_page_limits(&self) -> Vec<i64> {
        let (dir, suffix) = (self.dir("hugetlb"), if self.v2 { ".max" } else { ".limit_in_bytes" });
        let names = fs::read_dir(&dir).into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("hugetlb.") && name.ends_with(suffix) && !name.contains(".rsvd."))
            .map(|name| self.read("hugetlb", &name).parse().unwrap_or(i64::MAX))
            .collect()
    }

    /// The CPUs that are allowed, as the kernel lists them.
    pub fn cpus(&self) -> String {
        self.read("cpuset", "cpuset.cpus")
    }

    /// The NUMA nodes that memory may come from, as the kernel lists them.
    pub fn memory_nodes(&self) -> String {
        self.read("cpuset", "cpuset.mems")
    }

    /// A file of cgroup v2, such as `memory.low`; `None` on v1.
    pub fn unified(&self, file: &str) -> Option<String> {
        self.v2.then(|| self.read("", file))
    }

    fn read(&self, controller: &str, file: &str) -> String {
        fs::read_to_string(self.dir(controller).join(file)).unwrap_or_default().trim().to_owned()
    }

    fn dir(&self, controller: &str) -> PathBuf {
        let mount = if self.v2 { MOUNT.into() } else { Path::new(MOUNT).join(controller) };
        mount.join(&self.path)
    }

    fn everywhere(&self) -> Vec<PathBuf> {
        if self.v2 {
            return vec![self.dir("")];
        }
        let mounts = fs::read_dir(MOUNT).into_iter().flatten().flatten().map(|entry| entry.path());
        let mounts = mounts.filter(|mount| mount.join("cgroup.procs").exists());
        mounts.map(|mount| mount.join(&self.path)).collect()
    }
}
