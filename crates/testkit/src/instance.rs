//! What one private instance owns on the machine, and how all of it is found again and removed.

use crate::process::Process;
use crate::{cgroups, image, network, own_network, process, wait_until};
use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a directory may take to become empty.
const EMPTY_DEADLINE: Duration = Duration::from_secs(20);

/// Why an instance exists; part of the names of what it owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One test.
    Test,
    /// `make run`.
    Run,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Run => "run",
        }
    }
}

/// The identity of a private instance: a directory and a short token.
///
/// Everything the instance makes outside its directory carries the token in its name or the directory in its
/// command line, so it can be swept by someone who knows only these two, even after its owner was killed.
#[derive(Debug, Clone)]
pub struct Instance {
    kind: Kind,
    token: String,
    dir: PathBuf,
}

impl Instance {
    /// A new instance for a test, in a new directory below `/tmp`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn for_test() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = format!("{now:?} {} {}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let token = short_hash(&seed);
        // Short on purpose: socket paths below it are limited to 107 bytes.
        let dir = PathBuf::from(format!("/tmp/mainstay-test-{token}"));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { kind: Kind::Test, token, dir })
    }

    /// The instance that lives in a fixed directory; the same directory gives the same names every time.
    pub fn at(kind: Kind, dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self { kind, token: short_hash(&dir.to_string_lossy()), dir }
    }

    /// The instance of `make run` in this checkout.
    pub fn for_run() -> Self {
        Self::at(Kind::Run, crate::build_dir().join("run"))
    }

    /// Where all of its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Cgroups of the instance are called this, or this and a dash and more.
    pub fn cgroup_name(&self) -> String {
        format!("mainstay-{}-{}", self.kind.word(), self.token)
    }

    /// The name of its bridge, within the kernel's 15 bytes.
    pub fn bridge(&self) -> String {
        format!("ms-{}", self.token)
    }

    /// The name of this machine's end of the wire to its network namespace, if it has one.
    pub fn wire(&self) -> String {
        format!("mn-{}", self.token)
    }

    /// The name of its CNI network.
    pub fn network(&self) -> String {
        format!("mainstay-{}", self.token)
    }

    /// Makes the cgroup [`Instance::cgroup_name`] in every hierarchy, ready for processes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn make_cgroup(&self) -> Result<()> {
        cgroups::create(&self.cgroup_name()).with_context(|| format!("cannot make {}", self.cgroup_name()))
    }

    /// Makes a cgroup beside that one in which the kernel counts memory, and says where: for one process that joins it by itself.
    ///
    /// # Errors
    /// When no hierarchy of this machine counts memory, or the kernel refuses.
    pub fn make_memory_cgroup(&self, part: &str) -> Result<PathBuf> {
        let hierarchies = cgroups::hierarchies();
        let name = format!("{}-{part}", self.cgroup_name());
        // A hierarchy of v2 in which nobody has memory is there beside those of v1.
        let counts = |dir: &PathBuf| {
            ["memory.stat", "memory.usage_in_bytes"].iter().any(|file| dir.join(file).exists())
        };
        for dir in hierarchies.iter().map(|hierarchy| hierarchy.join(&name)) {
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            if counts(&dir) {
                return Ok(dir);
            }
            std::fs::remove_dir(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        anyhow::bail!("no cgroup hierarchy of this machine counts memory")
    }

    /// Ends all of its processes and removes all its mounts, cgroups, links, rules and files.
    ///
    /// # Errors
    /// When something refuses to go. Files are kept while a mount is left below them, because deleting through
    /// a mount could delete what belongs to someone else.
    pub fn sweep(&self) -> Result<()> {
        self.sweep_runtime()?;
        self.container_log_links().iter().try_for_each(|link| remove_file(link))?;
        network::remove(&self.network(), &self.bridge(), &self.dir)?;
        own_network::remove(&self.wire())?;
        remove_directory(&self.dir)
    }

    /// Ends everything that runs: processes, containers, cgroups and mounts. Files stay, as after a power cut.
    pub(crate) fn sweep_runtime(&self) -> Result<()> {
        let sockets = self.shim_sockets();
        process::kill_all_on(&self.dir);
        // A shim that was about to end took its socket along.
        sockets.iter().try_for_each(|socket| remove_file(socket))?;
        for cgroup in self.container_cgroups().into_iter().chain(cgroups::find(&self.cgroup_name())) {
            cgroups::remove_tree(&cgroup).with_context(|| format!("cannot remove {}", cgroup.display()))?;
        }
        unmount_below(&self.dir)
    }

    /// What still exists of the instance, in words; empty after a good [`Instance::sweep`].
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> = Process::all()
            .into_iter()
            .filter(|process| process.runs_on(&self.dir) || self.holds(process))
            .map(|process| format!("process {} {}", process.pid, process.command.join(" ")))
            .collect();
        found.extend(mounts_below(&self.dir).into_iter().map(|path| format!("mount {}", path.display())));
        let cgroups = self.container_cgroups().into_iter().chain(cgroups::find(&self.cgroup_name()));
        found.extend(cgroups.map(|path| format!("cgroup {}", path.display())));
        found.extend(self.shim_sockets().into_iter().map(|path| format!("socket {}", path.display())));
        found.extend(self.container_log_links().into_iter().map(|path| format!("link {}", path.display())));
        found.extend(network::leftovers(&self.network(), &self.bridge(), &self.dir));
        found.extend(own_network::is_there(&self.wire()).then(|| format!("link {}", self.wire())));
        if self.dir.exists() {
            found.push(format!("directory {}", self.dir.display()));
        }
        found
    }

    pub(crate) fn to_record(&self) -> String {
        json!({ "kind": self.kind.word(), "token": self.token, "dir": self.dir }).to_string()
    }

    pub(crate) fn from_record(record: &str) -> Option<Self> {
        let record: Value = serde_json::from_str(record).ok()?;
        let kind = match record["kind"].as_str()? {
            "test" => Kind::Test,
            "run" => Kind::Run,
            _ => return None,
        };
        let text = |key: &str| record[key].as_str().map(str::to_owned);
        Some(Self { kind, token: text("token")?, dir: text("dir")?.into() })
    }

    /// Whether a process runs in one of the instance's cgroups.
    fn holds(&self, process: &Process) -> bool {
        let names =
            [self.cgroup_name(), self.cgroup_name().replace('-', "_")].map(|name| format!(":/{name}"));
        fs::read_to_string(format!("/proc/{}/cgroup", process.pid))
            .is_ok_and(|text| names.iter().any(|name| text.contains(name)))
    }

    /// The cgroups of its containers, from runc's own records: those without a parent of ours have no mark.
    fn container_cgroups(&self) -> Vec<PathBuf> {
        let states = glob_two(&self.dir.join("state/runc"), "state.json");
        states
            .into_iter()
            .filter_map(|path| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok())
            .filter_map(|state| Some(state["cgroup_paths"].as_object()?.clone()))
            .flat_map(|paths| paths.into_iter().filter_map(|(_, path)| Some(PathBuf::from(path.as_str()?))))
            .filter(|path| path.is_dir())
            .collect()
    }

    /// Links to container logs in the directory that kubelets use for them, into this instance's logs.
    fn container_log_links(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/var/log/containers").into_iter().flat_map(|entries| entries.flatten());
        entries
            .map(|entry| entry.path())
            .filter(|path| fs::read_link(path).is_ok_and(|target| target.starts_with(&self.dir)))
            .collect()
    }

    /// Shims listen on sockets outside the instance's directory and leave them behind when they are killed.
    fn shim_sockets(&self) -> Vec<PathBuf> {
        let tasks = self.dir.join("state/io.containerd.runtime.v2.task");
        let addresses =
            glob_two(&tasks, "address").into_iter().filter_map(|path| fs::read_to_string(path).ok());
        let bootstraps = glob_two(&tasks, "bootstrap.json")
            .into_iter()
            .filter_map(|path| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok())
            .filter_map(|value| Some(value["address"].as_str()?.to_owned()));
        let mut sockets: Vec<PathBuf> = addresses
            .chain(bootstraps)
            .filter_map(|address| Some(PathBuf::from(address.trim().strip_prefix("unix://")?)))
            .filter(|path| path.exists())
            .collect();
        sockets.sort();
        sockets.dedup();
        sockets
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory with all that is in it, if it is there. One whom nobody could find by the directory, such as a network
/// plugin whose containerd was killed, may write its last file meanwhile.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    wait_until(EMPTY_DEADLINE, &format!("the end of {}", path.display()), || match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound || path.exists() => Err(error.to_string()),
        _ => Ok(()),
    })
}

fn short_hash(text: &str) -> String {
    image::digest(text.as_bytes()).chars().take(8).collect()
}

/// `dir/*/*/file`, where it exists.
fn glob_two(dir: &Path, file: &str) -> Vec<PathBuf> {
    let list = |dir: &Path| {
        fs::read_dir(dir).into_iter().flat_map(|entries| entries.flatten()).map(|entry| entry.path())
    };
    list(dir).flat_map(|inner| list(&inner)).map(|dir| dir.join(file)).filter(|path| path.exists()).collect()
}

/// Mount points below `dir`, the newest first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    // The thread's: it may have mounts of its own.
    let info = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let mut points: Vec<PathBuf> = info
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        // The kernel writes blanks in paths as \040.
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .filter(|point| point.starts_with(dir))
        .collect();
    points.reverse();
    points
}

/// Detaches every mount below `dir`.
pub(crate) fn unmount_below(dir: &Path) -> Result<()> {
    for point in mounts_below(dir) {
        // Detaching an outer mount takes inner ones along, so a missing one is no failure; the check below is.
        unmount(&point, UnmountFlags::DETACH).ok();
    }
    let left = mounts_below(dir);
    ensure!(left.is_empty(), "still mounted: {left:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_brings_the_instance_back() {
        let run = Instance::at(Kind::Run, "/srv/mainstay/.build/run");
        let back = Instance::from_record(&run.to_record()).unwrap();
        assert_eq!((back.cgroup_name(), back.bridge()), (run.cgroup_name(), run.bridge()));
        assert_eq!(back.dir(), run.dir());
        assert!(run.bridge().len() <= 15);
        assert!(Instance::from_record("").is_none());
    }
}
