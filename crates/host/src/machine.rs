//! Facts about the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::MountTable;

/// Where the machine's facts are read from. The default is the running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub(crate) proc: PathBuf,
    pub(crate) sys: PathBuf,
    etc: PathBuf,
    boot_id: PathBuf,
}

/// Why a fact cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file cannot be read.
    #[error("cannot read {path}; is {above} mounted and readable?", path = path.display(), above = above.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The file system it belongs to.
        above: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} does not hold {expected}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        expected: &'static str,
    },
    /// The machine has no name.
    #[error(
        "the host name is empty; set one, or give --hostname-override (with `mainstay run`: --node-name)"
    )]
    NoHostname,
    /// The node's name cannot be part of a pod's.
    #[error(
        "{name:?} cannot be the name of a node, which is part of the names of its pods: it may have lower case letters, \
         digits, '-' and '.', and begins and ends with a letter or a digit; give another with --hostname-override (with \
         `mainstay run`: --node-name)"
    )]
    BadNodeName {
        /// The name.
        name: String,
    },
    /// No cgroup hierarchy is mounted.
    #[error("no cgroups are mounted at {root}; mount cgroup2 there", root = root.display())]
    NoCgroups {
        /// Where they were looked for.
        root: PathBuf,
    },
}

/// How cgroups are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// One hierarchy per controller, and nothing else.
    V1,
    /// The unified hierarchy alone.
    V2,
    /// Controllers in v1 hierarchies, and a v2 hierarchy at `unified` beside them. Resources are handled as in v1.
    Hybrid,
}

/// Swap that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDevice {
    /// The device or file.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// How much of it is used.
    pub used_bytes: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl Host {
    /// When the machine was started, in seconds since 1970; `None` where the kernel does not tell.
    #[must_use]
    pub fn boot_time(&self) -> Option<i64> {
        let text = std::fs::read_to_string(self.proc.join("stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
    }

    /// A machine whose `proc`, `sys` and `etc` lie below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let proc = root.join("proc");
        let boot_id = proc.join("sys/kernel/random/boot_id");
        Self { proc, sys: root.join("sys"), etc: root.join("etc"), boot_id }
    }

    /// The same machine with its boot id read from another file, which is how a reboot is simulated.
    #[must_use]
    pub fn with_boot_id_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.boot_id = path.into();
        self
    }

    /// The node's name: the override if there is one, else the host name; trimmed and in lower case, as upstream.
    ///
    /// # Errors
    /// [`HostError::NoHostname`] if nothing is left.
    pub fn node_name(&self, hostname_override: Option<&str>) -> Result<String, HostError> {
        let name = match hostname_override {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => hostname(),
        };
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return Err(HostError::NoHostname);
        }
        if is_dns_subdomain(&name) { Ok(name) } else { Err(HostError::BadNodeName { name }) }
    }

    /// Whether this process is in another user namespace than the machine's first: then not every user is mapped to itself.
    #[must_use]
    pub fn in_user_namespace(&self) -> bool {
        let map = std::fs::read_to_string(self.proc.join("self/uid_map")).unwrap_or_default();
        let mut lines = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.next().is_some_and(|first| first != ["0", "0", "4294967295"])
    }

    /// A random id that is new with every boot.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be read or is empty.
    pub fn boot_id(&self) -> Result<String, HostError> {
        self.line(&self.boot_id, "a boot id")
    }

    /// The machine's id: `/etc/machine-id`, else D-Bus' copy of it.
    ///
    /// # Errors
    /// [`HostError`] if neither file has one.
    pub fn machine_id(&self) -> Result<String, HostError> {
        let path = self.etc.join("machine-id");
        self.line(&path, "a machine id").or_else(|error| {
            let other = self.etc.join("../var/lib/dbus/machine-id");
            self.line(&other, "a machine id").map_err(|_| error)
        })
    }

    /// The kernel's release, as `uname -r`.
    #[must_use]
    pub fn kernel_version(&self) -> String {
        rustix::system::uname().release().to_string_lossy().into_owned()
    }

    /// The operating system's name for people (`PRETTY_NAME` of os-release); empty where there is none.
    #[must_use]
    pub fn os_image(&self) -> String {
        let text = fs::read_to_string(self.etc.join("os-release"))
            .or_else(|_| fs::read_to_string(self.etc.join("../usr/lib/os-release")));
        pretty_name(&text.unwrap_or_default()).to_owned()
    }

    /// The hardware's id, as its firmware tells; the machine's where it does not; else empty.
    #[must_use]
    pub fn system_uuid(&self) -> String {
        let path = self.sys.join("class/dmi/id/product_uuid");
        let told = self.line(&path, "a system uuid").or_else(|_| self.machine_id());
        told.unwrap_or_default()
    }

    /// The machine's memory.
    ///
    /// # Errors
    /// [`HostError`] if `/proc/meminfo` cannot be read or has no `MemTotal`.
    pub fn memory_total_bytes(&self) -> Result<u64, HostError> {
        self.meminfo("MemTotal:", "MemTotal")
    }

    /// The machine's swap, used or not.
    ///
    /// # Errors
    /// [`HostError`] if `/proc/meminfo` cannot be read or has no `SwapTotal`.
    pub fn swap_total_bytes(&self) -> Result<u64, HostError> {
        self.meminfo("SwapTotal:", "SwapTotal")
    }

    /// How many CPUs are online, whatever this process itself may use.
    ///
    /// # Errors
    /// [`HostError`] if the list cannot be read.
    pub fn cpu_count(&self) -> Result<usize, HostError> {
        Ok(self.online_cpus()?.len())
    }

    /// The CPUs that are online, by number, whatever this process itself may use.
    ///
    /// # Errors
    /// [`HostError`] if the list cannot be read.
    pub fn online_cpus(&self) -> Result<Vec<u32>, HostError> {
        let path = self.sys.join("devices/system/cpu/online");
        let text = self.read(&path)?;
        parse_cpu_list(text.trim()).ok_or(HostError::Content { path, expected: "a list of CPUs" })
    }

    /// The CPUs that the machine has, also those that are offline; those online where the kernel does not tell.
    ///
    /// # Errors
    /// [`HostError`] if neither list can be read.
    pub fn present_cpus(&self) -> Result<Vec<u32>, HostError> {
        let text = self.read(&self.sys.join("devices/system/cpu/present"));
        let listed = text.ok().and_then(|text| parse_cpu_list(text.trim()));
        listed.map_or_else(|| self.online_cpus(), Ok)
    }

    /// The swap devices and files in use; empty when swap is off (or the kernel has none).
    ///
    /// # Errors
    /// [`HostError`] if `/proc/swaps` exists and cannot be read.
    pub fn swap_devices(&self) -> Result<Vec<SwapDevice>, HostError> {
        let path = self.proc.join("swaps");
        if !path.exists() {
            return Ok(Vec::new());
        }
        Ok(self.read(&path)?.lines().skip(1).filter_map(parse_swap).collect())
    }

    /// What is mounted in our mount namespace.
    ///
    /// # Errors
    /// [`HostError`] if `/proc/self/mountinfo` cannot be read.
    pub fn mounts(&self) -> Result<MountTable, HostError> {
        Ok(MountTable::parse(&self.read(&self.proc.join("self/mountinfo"))?))
    }

    /// How cgroups are mounted at `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// [`HostError::NoCgroups`] if they are not.
    pub fn cgroup_mode(&self) -> Result<CgroupMode, HostError> {
        CgroupMode::of(&self.sys.join("fs/cgroup"))
    }

    fn line(&self, path: &Path, expected: &'static str) -> Result<String, HostError> {
        let line = self.read(path)?.trim().to_owned();
        if line.is_empty() { Err(HostError::Content { path: path.to_owned(), expected }) } else { Ok(line) }
    }

    fn meminfo(&self, key: &str, expected: &'static str) -> Result<u64, HostError> {
        let path = self.proc.join("meminfo");
        let text = self.read(&path)?;
        parse_meminfo(&text, key).ok_or(HostError::Content { path, expected })
    }

    pub(crate) fn read(&self, path: &Path) -> Result<String, HostError> {
        fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|source| {
            let above = [&self.proc, &self.sys, &self.etc].into_iter().find(|above| path.starts_with(above));
            let above = above.cloned().or_else(|| path.parent().map(Path::to_owned)).unwrap_or_default();
            HostError::Read { path: path.to_owned(), above, source }
        })
    }
}

impl CgroupMode {
    /// How cgroups are mounted at `root`, usually `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// [`HostError::NoCgroups`] if they are not.
    pub fn of(root: &Path) -> Result<Self, HostError> {
        let has_v1 = ["memory", "cpu", "cpu,cpuacct", "pids"].iter().any(|name| root.join(name).is_dir());
        // A plain v2 root has this file; its child cgroups may have any name, so it is looked for first.
        if root.join("cgroup.controllers").exists() {
            Ok(Self::V2)
        } else if has_v1 && root.join("unified/cgroup.controllers").exists() {
            Ok(Self::Hybrid)
        } else if has_v1 {
            Ok(Self::V1)
        } else {
            Err(HostError::NoCgroups { root: root.to_owned() })
        }
    }

    /// Whether resources are controlled by the unified hierarchy.
    #[must_use]
    pub const fn is_v2(self) -> bool {
        matches!(self, Self::V2)
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The value of a key of `/proc/meminfo`, in bytes.
pub(crate) fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let kibibytes =
        text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    kibibytes.map(|value: u64| value.saturating_mul(1024))
}

/// The system's name for people, from `os-release`.
pub(crate) fn pretty_name(text: &str) -> &str {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim().trim_matches(['"', '\''])
}

pub(crate) fn parse_swap(line: &str) -> Option<SwapDevice> {
    let mut fields = line.split_whitespace();
    let name = crate::mounts::unescape(fields.next()?);
    let size: u64 = fields.nth(1)?.parse().ok()?;
    let used: u64 = fields.next()?.parse().ok()?;
    Some(SwapDevice { name, size_bytes: size.saturating_mul(1024), used_bytes: used.saturating_mul(1024) })
}

/// The numbers of a list such as `0-3,8`; `None` if it is none, or absurdly long.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    /// More CPUs than any kernel is built for.
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// RFC 1123, as the API server has it for the names of nodes and pods.
fn is_dns_subdomain(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().copied().is_some_and(good)
                && bytes.last().copied().is_some_and(good)
                && bytes.iter().all(|byte| good(*byte) || *byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host::below(root.path());
        (root, host)
    }

    #[test]
    fn the_running_machine() {
        let host = Host::default();
        let name = host.node_name(None).unwrap();
        assert_eq!(name, name.trim().to_lowercase());
        assert_eq!(host.boot_id().unwrap().len(), 36);
        assert!(host.memory_total_bytes().unwrap() > 1 << 20);
        assert!(host.cpu_count().unwrap() >= 1);
        assert!(!host.kernel_version().is_empty());
        assert!(host.mounts().unwrap().iter().any(|mount| mount.mount_point == Path::new("/")));
        host.cgroup_mode().unwrap();
        host.swap_devices().unwrap();
    }

    #[test]
    fn names() {
        let host = Host::default();
        assert_eq!(host.node_name(Some(" Node-A.Example \n")).unwrap(), "node-a.example");
        assert!(matches!(host.node_name(Some("  ")), Err(HostError::NoHostname)));
        for bad in ["n_1", "-a", "a.", "a..b", "a b", "é", &"x".repeat(254)] {
            assert!(matches!(host.node_name(Some(bad)), Err(HostError::BadNodeName { .. })), "{bad}");
        }
        assert_eq!(host.node_name(Some("")).unwrap(), host.node_name(None).unwrap());
    }

    #[test]
    fn facts_from_files() {
        let (_root, host) = machine(&[
            ("proc/meminfo", "MemTotal:       24684100 kB\nMemFree:  1 kB\nSwapTotal: 8 kB\n"),
            ("proc/sys/kernel/random/boot_id", "7b1c\n"),
            ("sys/devices/system/cpu/online", "0-2,5,8-9\n"),
            ("var/lib/dbus/machine-id", "abc\n"),
            ("etc/machine-id", "\n"),
            (
                "proc/swaps",
                "Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n/my\\040swap file\t 100\t 3\t-2\nbroken\n/dev/zram0 partition 4 0 100\n",
            ),
        ]);
        assert_eq!(host.memory_total_bytes().unwrap(), 24_684_100 * 1024);
        assert_eq!(host.swap_total_bytes().unwrap(), 8192);
        assert_eq!(host.boot_id().unwrap(), "7b1c");
        assert_eq!(host.cpu_count().unwrap(), 6);
        assert_eq!(host.machine_id().unwrap(), "abc");
        let swap = host.swap_devices().unwrap();
        assert_eq!(swap.len(), 2);
        assert_eq!(
            swap.first().unwrap(),
            &SwapDevice { name: "/my swap".to_owned(), size_bytes: 102_400, used_bytes: 3072 }
        );
    }

    #[test]
    fn another_boot_id() {
        let (root, host) = machine(&[("id", "first\n")]);
        let host = host.with_boot_id_file(root.path().join("id"));
        assert_eq!(host.boot_id().unwrap(), "first");
        fs::write(root.path().join("id"), "").unwrap();
        assert!(host.boot_id().unwrap_err().to_string().ends_with("does not hold a boot id"));
    }

    #[test]
    fn missing_files_are_named() {
        let (root, host) = machine(&[]);
        let error = host.memory_total_bytes().unwrap_err().to_string();
        let proc = root.path().join("proc");
        assert_eq!(error, format!("cannot read {0}/meminfo; is {0} mounted and readable?", proc.display()));
        assert_eq!(host.swap_devices().unwrap(), []);
    }

    #[test]
    fn cgroup_modes() {
        let check = |files: &[&str], expected: Option<CgroupMode>| {
            let files: Vec<(String, &str)> =
                files.iter().map(|f| (format!("sys/fs/cgroup/{f}"), "")).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            let (_root, host) = machine(&files);
            assert_eq!(host.cgroup_mode().ok(), expected, "{files:?}");
        };
        check(&["cgroup.controllers", "memory/x"], Some(CgroupMode::V2));
        check(&["memory/tasks", "pids/tasks", "unified/cgroup.controllers"], Some(CgroupMode::Hybrid));
        check(&["cpu,cpuacct/tasks", "systemd/tasks"], Some(CgroupMode::V1));
        check(&["systemd/tasks"], None);
    }
}
