//! Cgroups as directories.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_podspec::runtime::{CgroupValues, HugePages, QosClass};
use rustix::process::{Pid, Signal, kill_process};

use crate::values::{Setting, huge_page_settings, v1_settings, v2_settings};
use crate::{CgroupNames, CgroupPath};

/// The v1 controllers that pods are put under, where they are mounted.
const V1_CONTROLLERS: [&str; 9] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb"];

/// The v2 controllers that are handed down to pods, where the kernel has them.
const V2_CONTROLLERS: [&str; 6] = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"];

/// Without these a node cannot do what pods ask for.
const REQUIRED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// A killed process leaves its cgroup a moment after it has left the list of processes; as long as that is the kernel
/// refuses to remove the directory.
const REMOVE_ATTEMPTS: u32 = 6;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    root: PathBuf,
    layout: Layout,
}

/// A pod's cgroup that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroup {
    /// The class whose cgroup it is in.
    pub class: QosClass,
    /// Its path.
    pub path: CgroupPath,
}

/// Why something could not be done with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There are no cgroups where they were looked for.
    #[error("no cgroups are mounted at {root}; mount cgroup2 there", root = root.display())]
    NotMounted {
        /// Where they were looked for.
        root: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot {action} {path}; {remedy}", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// What the operator can do.
        remedy: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Processes are in it, so it was not removed.
    #[error("the cgroup {path} still has processes in it: {pids:?}")]
    Busy {
        /// The cgroup.
        path: CgroupPath,
        /// The processes in it and below it.
        pids: Vec<i32>,
    },
    /// systemd would not do its part.
    #[error(
        "systemd did not {action} {unit}; is it running, and does cgroupDriver name what the runtime uses?"
    )]
    Systemd {
        /// What was asked of it.
        action: &'static str,
        /// The slice.
        unit: String,
        /// What it said.
        #[source]
        source: mainstay_dbus::DbusError,
    },
    /// systemd tried, and it did not come about.
    #[error("systemd could not {action} {unit}: the job ended as {result:?}; see `systemctl status {unit}`")]
    Job {
        /// What was asked of it.
        action: &'static str,
        /// The slice.
        unit: String,
        /// `failed`, `timeout` …
        result: String,
    },
    /// The root cgroup, or one that mainstay itself is in, is not removed or killed.
    #[error("will not touch the cgroup {path}: it is the root, or mainstay itself runs in it (cgroupRoot?)")]
    Protected {
        /// The cgroup.
        path: CgroupPath,
    },
}

impl CgroupError {
    /// Whether it was systemd that did not do its part, which it may later.
    #[must_use]
    pub const fn is_systemds(&self) -> bool {
        matches!(self, Self::Systemd { .. } | Self::Job { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Layout {
    /// A directory per controller; several controllers may share one.
    V1 {
        controllers: Vec<(&'static str, PathBuf)>,
        /// What else is mounted beside them (`systemd`, `unified`, `net_cls` …): runtimes make cgroups there too, and
        /// leave the pod's own behind.
        others: Vec<PathBuf>,
    },
    V2,
}

impl Cgroups {
    /// The hierarchy mounted at `root`, usually `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// [`CgroupError::NotMounted`] if there is none.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, CgroupError> {
        let root = root.into();
        if root.join("cgroup.controllers").exists() {
            return Ok(Self { root, layout: Layout::V2 });
        }
        // `cpu` is often a link to `cpu,cpuacct`: what is one hierarchy must be worked on once.
        let controllers: Vec<_> = V1_CONTROLLERS
            .into_iter()
            .filter_map(|name| Some((name, fs::canonicalize(root.join(name)).ok()?)))
            .filter(|(_, directory)| directory.is_dir())
            .collect();
        if controllers.is_empty() {
            return Err(CgroupError::NotMounted { root });
        }
        let mut others: Vec<_> = child_directories(&root)
            .unwrap_or_default()
            .iter()
            .filter(|directory| directory.join("cgroup.procs").exists())
            .filter_map(|directory| fs::canonicalize(directory).ok())
            .filter(|directory| !controllers.iter().any(|(_, known)| known == directory))
            .collect();
        others.sort();
        others.dedup();
        Ok(Self { root, layout: Layout::V1 { controllers, others } })
    }

    /// Whether this is the unified hierarchy.
    #[must_use]
    pub const fn is_v2(&self) -> bool {
        matches!(self.layout, Layout::V2)
    }

    /// The controllers that pods need and that are missing; empty on a good node.
    #[must_use]
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        let available = match &self.layout {
            Layout::V1 { controllers, .. } => {
                controllers.iter().map(|(name, _)| (*name).to_owned()).collect()
            }
            Layout::V2 => words(&self.root.join("cgroup.controllers")).unwrap_or_default(),
        };
        REQUIRED.into_iter().filter(|name| !available.iter().any(|found| found == name)).collect()
    }

    /// Makes the cgroup and those above it, in every hierarchy, ready for processes and for cgroups below it. What
    /// exists is left as it is.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn create(&self, path: &CgroupPath) -> Result<(), CgroupError> {
        for hierarchy in self.hierarchies() {
            let mut directory = hierarchy.to_owned();
            for part in path.parts() {
                if self.is_v2() {
                    hand_down_controllers(&directory)?;
                }
                let parent = directory.clone();
                directory.push(part);
                match fs::create_dir(&directory) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(failed("make the cgroup", &directory, error)),
                }
                if !self.is_v2() {
                    inherit_cpuset(&parent, &directory)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the cgroup exists in every hierarchy.
    #[must_use]
    pub fn exists(&self, path: &CgroupPath) -> bool {
        self.directories(path).iter().all(|directory| directory.is_dir())
    }

    /// Whether the cgroup exists in any hierarchy, ours or others'.
    #[must_use]
    pub fn exists_anywhere(&self, path: &CgroupPath) -> bool {
        self.all_directories(path).iter().any(|directory| directory.is_dir())
    }

    /// Sets what the cgroup allows.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if the cgroup does not exist or the kernel refuses a value. Values before that are set.
    pub fn apply(&self, path: &CgroupPath, values: &CgroupValues) -> Result<(), CgroupError> {
        for setting in if self.is_v2() { v2_settings(values) } else { v1_settings(values) } {
            self.write(path, &setting)?;
        }
        let suffix = if self.is_v2() { ".max" } else { ".limit_in_bytes" };
        if let Some(directory) =
            self.directory_of("hugetlb", path).filter(|_| values.huge_pages != HugePages::AsIs)
        {
            let files = names_in(&directory).unwrap_or_default();
            for setting in huge_page_settings(&values.huge_pages, files.iter().map(String::as_str), suffix) {
                self.write(path, &setting)?;
            }
        }
        Ok(())
    }

    /// The CPUs of the whole machine, as the kernel lists them; `None` on v1, where a cgroup has its parent's.
    #[must_use]
    pub fn all_cpus(&self) -> Option<String> {
        let text =
            fs::read_to_string(self.root.join("cpuset.cpus.effective")).ok().filter(|_| self.is_v2())?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Moves a process into the cgroup, in every hierarchy.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if the cgroup or the process does not exist, or the kernel refuses.
    pub fn add_process(&self, path: &CgroupPath, pid: i32) -> Result<(), CgroupError> {
        for directory in self.directories(path) {
            let file = directory.join("cgroup.procs");
            write_existing(&file, &pid.to_string())
                .map_err(|error| failed("move a process into", &file, error))?;
        }
        Ok(())
    }

    /// The processes of the root cgroup itself that can be moved elsewhere: not PID 1, not the kernel's own.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if they cannot be read.
    pub fn stray_processes(&self) -> Result<Vec<i32>, CgroupError> {
        let root = CgroupPath::parse("/").map(|root| self.directory_of("memory", &root)).ok().flatten();
        let file = root.unwrap_or_else(|| self.root.clone()).join("cgroup.procs");
        let pids = words(&file).map_err(|error| failed("read", &file, error))?;
        // A thread of the kernel has no executable; one that has just ended has none either.
        let has_program = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        Ok(pids
            .iter()
            .filter_map(|pid| pid.parse().ok())
            .filter(|pid| *pid > 1)
            .filter(has_program)
            .collect())
    }

    /// The processes in the cgroup and below it, in any hierarchy; sorted. None if it does not exist.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if it exists and cannot be read.
    pub fn pids(&self, path: &CgroupPath) -> Result<Vec<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for directory in self.all_directories(path) {
            for directory in with_descendants(&directory)? {
                let file = directory.join("cgroup.procs");
                match words(&file) {
                    Ok(found) => pids.extend(found.iter().filter_map(|pid| pid.parse::<i32>().ok())),
                    // Removed meanwhile, or (on v2) a threaded cgroup, whose processes stand further up.
                    Err(error)
                        if is_gone(&error)
                            || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => {}
                    Err(error) => return Err(failed("read", &file, error)),
                }
            }
        }
        Ok(pids.into_iter().collect())
    }

    /// Removes the cgroup and those below it, in every hierarchy. One that does not exist counts as removed. May wait
    /// up to a third of a second for the kernel.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] if processes are in it; nothing is removed then. [`CgroupError::Protected`] for the root.
    pub fn remove(&self, path: &CgroupPath) -> Result<(), CgroupError> {
        if path.is_root() {
            return Err(CgroupError::Protected { path: path.clone() });
        }
        let mut pause = REMOVE_PAUSE;
        let mut attempt = 1;
        loop {
            let pids = self.pids(path)?;
            if !pids.is_empty() {
                return Err(CgroupError::Busy { path: path.clone(), pids });
            }
            match self.try_remove(path) {
                Err(CgroupError::Io { source, .. })
                    if source.kind() == io::ErrorKind::ResourceBusy && attempt < REMOVE_ATTEMPTS => {}
                done => return done,
            }
            std::thread::sleep(pause);
            pause *= 2;
            attempt += 1;
        }
    }

    /// Kills (SIGKILL) every process in the cgroup and below it, again until none is left or `deadline` has passed.
    /// Blocks as long.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] with those that are still there (in uninterruptible sleep, for example).
    /// [`CgroupError::Protected`] for the root and for a cgroup that this process is in.
    pub fn kill_all(&self, path: &CgroupPath, deadline: Duration) -> Result<(), CgroupError> {
        let started = Instant::now();
        loop {
            let pids = self.pids(path)?;
            if pids.is_empty() {
                return Ok(());
            }
            if path.is_root() || pids.contains(&rustix::process::getpid().as_raw_nonzero().get()) {
                return Err(CgroupError::Protected { path: path.clone() });
            }
            self.thaw(path);
            // The kernel's own way misses no process that is just being forked.
            let whole = self.root.join(path.relative()).join("cgroup.kill");
            if !(self.is_v2() && fs::write(whole, "1").is_ok()) {
                for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                    // One that has ended meanwhile is not an error, and others show at the next look.
                    if let Err(error) = kill_process(pid, Signal::KILL) {
                        tracing::debug!(pid = pid.as_raw_nonzero(), %error, cgroup = %path, "cannot kill a process");
                    }
                }
            }
            if started.elapsed() >= deadline {
                let pids = self.pids(path)?;
                return if pids.is_empty() {
                    Ok(())
                } else {
                    Err(CgroupError::Busy { path: path.clone(), pids })
                };
            }
            std::thread::sleep(REMOVE_PAUSE.min(deadline.saturating_sub(started.elapsed())));
        }
    }

    /// The cgroups of pods that exist in any hierarchy, whoever made them. Whose they are is told by comparing with
    /// [`CgroupNames::pods`]: names cannot be turned back into UIDs.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if a directory exists and cannot be read.
    pub fn list_pods(&self, names: &CgroupNames) -> Result<Vec<PodCgroup>, CgroupError> {
        let mut found = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let parent = names.class(class);
            let mut paths = BTreeSet::new();
            for directory in self.all_directories(&parent) {
                let children = match child_directories(&directory) {
                    Ok(children) => children,
                    Err(error) if is_gone(&error) => continue,
                    Err(error) => return Err(failed("list the cgroups in", &directory, error)),
                };
                paths.extend(
                    children
                        .iter()
                        .filter_map(|child| child.file_name()?.to_str())
                        .filter(|name| names.is_pod(class, name))
                        .map(|name| parent.child(name)),
                );
            }
            found.extend(paths.into_iter().map(|path| PodCgroup { class, path }));
        }
        Ok(found)
    }

    /// A frozen process cannot die on v1; v2's kill wakes it.
    fn thaw(&self, path: &CgroupPath) {
        if self.is_v2() {
            return;
        }
        let Some(directory) = self.directory_of("freezer", path) else { return };
        for directory in with_descendants(&directory).unwrap_or_default() {
            let file = directory.join("freezer.state");
            if words(&file).is_ok_and(|state| state != ["THAWED"])
                && let Err(error) = write_existing(&file, "THAWED")
            {
                tracing::debug!(%error, file = %file.display(), "cannot thaw a cgroup");
            }
        }
    }

    fn try_remove(&self, path: &CgroupPath) -> Result<(), CgroupError> {
        for directory in self.all_directories(path) {
            for directory in with_descendants(&directory)?.iter().rev() {
                match fs::remove_dir(directory) {
                    Ok(()) => {}
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(failed("remove the cgroup", directory, error)),
                }
            }
        }
        Ok(())
    }

    fn write(&self, path: &CgroupPath, setting: &Setting) -> Result<(), CgroupError> {
        let Some(directory) = self.directory_of(setting.controller, path) else {
            tracing::debug!(file = setting.file, "the controller is not mounted; the value is not set");
            return Ok(());
        };
        let file = directory.join(&setting.file);
        write_existing(&file, &setting.value).map_err(|error| failed("set", &file, error))
    }

    /// The mount points, each once.
    fn hierarchies(&self) -> Vec<&Path> {
        match &self.layout {
            Layout::V2 => vec![&self.root],
            Layout::V1 { controllers, .. } => {
                let mut seen = BTreeSet::new();
                controllers.iter().map(|(_, path)| path.as_path()).filter(|path| seen.insert(*path)).collect()
            }
        }
    }

    pub(crate) fn directories(&self, path: &CgroupPath) -> Vec<PathBuf> {
        self.hierarchies().into_iter().map(|hierarchy| hierarchy.join(path.relative())).collect()
    }

    /// Also where we make none ourselves, but the runtime does.
    fn all_directories(&self, path: &CgroupPath) -> Vec<PathBuf> {
        let others: &[PathBuf] = match &self.layout {
            Layout::V2 => &[],
            Layout::V1 { others, .. } => others,
        };
        let mut all = self.directories(path);
        all.extend(others.iter().map(|hierarchy| hierarchy.join(path.relative())));
        all
    }

    /// The names of the cgroups directly below one; none if it is not there.
    #[must_use]
    pub fn children(&self, path: &CgroupPath) -> Vec<String> {
        let directory = self.directory_of("cpuacct", path).unwrap_or_default();
        let found = child_directories(&directory).unwrap_or_default();
        found.iter().filter_map(|child| Some(child.file_name()?.to_str()?.to_owned())).collect()
    }

    /// Where the files of a controller are, on cgroup v2 of all of them; `None` if the controller is not mounted.
    #[must_use]
    pub fn directory_of(&self, controller: &str, path: &CgroupPath) -> Option<PathBuf> {
        let hierarchy = match &self.layout {
            Layout::V2 => &self.root,
            Layout::V1 { controllers, .. } => {
                controllers.iter().find(|(name, _)| *name == controller).map(|(_, p)| p)?
            }
        };
        Some(hierarchy.join(path.relative()))
    }
}

/// Lets the children of a v2 cgroup have the controllers that it has itself.
fn hand_down_controllers(directory: &Path) -> Result<(), CgroupError> {
    let file = directory.join("cgroup.subtree_control");
    let available = words(&directory.join("cgroup.controllers")).unwrap_or_default();
    let enabled = words(&file).unwrap_or_default();
    let missing: Vec<&str> = V2_CONTROLLERS
        .into_iter()
        .filter(|name| available.iter().any(|has| has == name) && !enabled.iter().any(|has| has == name))
        .collect();
    for name in missing {
        // One by one: a controller that cannot be handed down (cpu while real-time processes exist) spoils the others.
        if let Err(error) = write_existing(&file, &format!("+{name}")) {
            if REQUIRED.contains(&name) {
                return Err(failed("enable a controller in", &file, error));
            }
            tracing::debug!(file = %file.display(), controller = name, %error, "a controller cannot be handed down");
        }
    }
    Ok(())
}

/// A new v1 cpuset has no CPUs and no memory nodes, and refuses processes until it has.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<(), CgroupError> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = child.join(name);
        // Only in the cpuset hierarchy does the file exist.
        let Ok(own) = fs::read_to_string(&file) else { continue };
        if own.trim().is_empty() {
            let source = parent.join(name);
            let inherited = fs::read_to_string(&source).map_err(|error| failed("read", &source, error))?;
            write_existing(&file, inherited.trim()).map_err(|error| failed("set", &file, error))?;
        }
    }
    Ok(())
}

/// Writes in one call, as the kernel wants it, and never makes a file.
fn write_existing(file: &Path, value: &str) -> io::Result<()> {
    use io::Write as _;
    fs::File::options().write(true).truncate(true).open(file)?.write_all(value.as_bytes())
}

/// The directory and all below it, parents first; empty if it does not exist.
fn with_descendants(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    if !directory.is_dir() {
        return Ok(found);
    }
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        match child_directories(&next) {
            Ok(children) => left.extend(children),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(failed("list the cgroups in", &next, error)),
        }
        found.push(next);
    }
    Ok(found)
}

fn child_directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut children = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            children.push(entry.path());
        }
    }
    Ok(children)
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn words(file: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(file)?.split_whitespace().map(str::to_owned).collect())
}

/// The cgroup was removed: reading its files then says ENODEV.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> CgroupError {
    let remedy = match source.kind() {
        io::ErrorKind::PermissionDenied => "mainstay has to run as root with this cgroup delegated to it",
        io::ErrorKind::ReadOnlyFilesystem => "cgroups are mounted read-only: mount them writable",
        io::ErrorKind::NotFound => "the cgroup or its controller does not exist",
        io::ErrorKind::ResourceBusy => "processes or cgroups are in the way",
        io::ErrorKind::InvalidInput => "the kernel does not accept the value",
        _ => "see the kernel's log",
    };
    CgroupError::Io { action, path: path.to_owned(), remedy, source }
}

#[cfg(test)]
mod tests;
