//! The machine as cAdvisor describes it: processors, memory, disks and networks, from `/proc` and `/sys`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use mainstay_types::{
    CacheInfo, CoreInfo, DiskInfo, FilesystemInfo, HugePagesInfo, MachineInfo, MemoryByType,
    NetworkDeviceInfo, NumaNodeInfo, NvmInfo,
};

use crate::{FilesystemUsage, Host, HostError, machine::parse_cpu_list};

/// Disks that hold nothing of their own.
const NO_DISKS: [&str; 4] = ["loop", "ram", "sr", "dm-"];
/// Network devices of this machine's own making: loopback, and the ends of pods' networks.
const NO_NETWORKS: [&str; 3] = ["lo", "veth", "docker"];
/// File systems in memory that are no storage.
const IN_MEMORY: &str = "tmpfs";

impl Host {
    /// Looks at the machine. Blocks for system calls only; file systems that can hang (network ones) are not asked.
    ///
    /// # Errors
    /// [`HostError`] if processors or memory cannot be told; what else cannot be read is left out.
    pub fn machine_info(&self, now: String) -> Result<MachineInfo, HostError> {
        self.machine_facts(now).map(|facts| MachineInfo { filesystems: self.filesystems(), ..facts })
    }

    /// The same without file systems, by the kernel's own files: no disk is asked.
    ///
    /// # Errors
    /// The same.
    pub fn machine_facts(&self, now: String) -> Result<MachineInfo, HostError> {
        let cpus = self.online_cpus()?;
        let topology = self.topology(&cpus);
        let cores = topology.iter().map(|node| node.cores.len()).sum();
        let sockets: BTreeSet<u32> =
            topology.iter().flat_map(|node| node.cores.iter().map(|core| core.socket_id)).collect();
        Ok(MachineInfo {
            timestamp: now,
            num_cores: cpus.len(),
            num_physical_cores: cores,
            num_sockets: sockets.len(),
            cpu_frequency_khz: self.cpu_frequency_khz(),
            memory_capacity: self.memory_total_bytes()?,
            memory_by_type: self.memory_by_type(),
            nvm: NvmInfo::default(),
            hugepages: huge_pages(&self.sys.join("kernel/mm/hugepages")),
            machine_id: self.machine_id().unwrap_or_default(),
            system_uuid: self.system_uuid(),
            boot_id: self.boot_id().unwrap_or_default(),
            filesystems: Vec::new(),
            disk_map: self.disks(),
            network_devices: self.network_devices(),
            topology,
            cloud_provider: "Unknown",
            instance_type: "Unknown",
            instance_id: "None",
        })
    }

    /// The highest that any processor can have, else the highest that one has now.
    fn cpu_frequency_khz(&self) -> u64 {
        let highest = self.sys.join("devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
        if let Some(khz) = number(&highest) {
            return khz;
        }
        let text = fs::read_to_string(self.proc.join("cpuinfo")).unwrap_or_default();
        speed(&text).unwrap_or(0)
    }

    /// From the kernel's memory controller drivers.
    fn memory_by_type(&self) -> BTreeMap<String, MemoryByType> {
        let mut kinds: BTreeMap<String, MemoryByType> = BTreeMap::new();
        for controller in children(&self.sys.join("devices/system/edac/mc"), "mc") {
            for module in children(&controller, "dimm") {
                let (Some(kind), Some(mebibytes)) =
                    (text(&module.join("dimm_mem_type")), number(&module.join("size")))
                else {
                    continue;
                };
                let of_kind = kinds.entry(kind).or_default();
                of_kind.capacity = of_kind.capacity.saturating_add(mebibytes.saturating_mul(1 << 20));
                of_kind.dimm_count += 1;
            }
        }
        kinds
    }

    fn filesystems(&self) -> Vec<FilesystemInfo> {
        let Ok(mounts) = self.mounts() else { return Vec::new() };
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for mount in mounts.iter() {
            let device = if mount.source.starts_with("/dev/") || mount.mount_point == Path::new("/") {
                mount.source.clone()
            } else if mount.fs_type == IN_MEMORY {
                mount.mount_point.display().to_string()
            } else {
                continue;
            };
            // The same one may be mounted in many places.
            if !seen.insert(mount.device) {
                continue;
            }
            let Ok(usage) = FilesystemUsage::of(&mount.mount_point) else { continue };
            found.push(FilesystemInfo {
                device,
                capacity: usage.capacity_bytes,
                kind: "vfs",
                inodes: usage.inodes,
                has_inodes: usage.inodes > 0,
            });
        }
        found
    }

    fn disks(&self) -> BTreeMap<String, DiskInfo> {
        let named = children(&self.sys.join("block"), "");
        let disks = named.into_iter().filter_map(|dir| {
            let name = dir.file_name()?.to_str()?.to_owned();
            if NO_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
                return None;
            }
            let numbers = text(&dir.join("dev"))?;
            let (major, minor) = numbers.split_once(':')?;
            let scheduler = text(&dir.join("queue/scheduler")).unwrap_or_default();
            // The one in use stands in brackets.
            let chosen = scheduler.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            let disk = DiskInfo {
                name,
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
                size: number(&dir.join("size"))?.saturating_mul(512),
                scheduler: chosen.map_or("none", |(chosen, _)| chosen).to_owned(),
            };
            Some((numbers.clone(), disk))
        });
        disks.collect()
    }

    fn network_devices(&self) -> Vec<NetworkDeviceInfo> {
        let named = children(&self.sys.join("class/net"), "");
        let devices = named.into_iter().filter_map(|dir| {
            let name = dir.file_name()?.to_str()?.to_owned();
            if NO_NETWORKS.iter().any(|prefix| name.starts_with(prefix)) {
                return None;
            }
            let of = |file: &str| text(&dir.join(file));
            Some(NetworkDeviceInfo {
                name,
                mac_address: of("address")?,
                speed: of("speed").and_then(|it| it.parse().ok()).unwrap_or(0),
                mtu: of("mtu").and_then(|it| it.parse().ok()).unwrap_or(0),
            })
        });
        devices.collect()
    }

    /// NUMA nodes with their cores; on a kernel that knows no nodes, one with everything. `online` is sorted.
    pub(crate) fn topology(&self, online: &[u32]) -> Vec<NumaNodeInfo> {
        let mut nodes: Vec<NumaNodeInfo> = children(&self.sys.join("devices/system/node"), "node")
            .into_iter()
            .filter_map(|dir| {
                let node_id = numbered(&dir, "node")?;
                let cpus = parse_cpu_list(&text(&dir.join("cpulist"))?)?;
                let cpus: Vec<u32> =
                    cpus.into_iter().filter(|cpu| online.binary_search(cpu).is_ok()).collect();
                let memory = fs::read_to_string(dir.join("meminfo")).ok()?;
                let kibibytes = memory.lines().find_map(|line| {
                    let (_, rest) = line.split_once("MemTotal:")?;
                    rest.split_whitespace().next()?.parse::<u64>().ok()
                });
                let (cores, caches) = self.cores(&cpus);
                Some(NumaNodeInfo {
                    node_id,
                    memory: kibibytes.unwrap_or(0).saturating_mul(1024),
                    hugepages: huge_pages(&dir.join("hugepages")),
                    cores,
                    caches,
                })
            })
            .collect();
        if nodes.is_empty() {
            let (cores, caches) = self.cores(online);
            let memory = self.memory_total_bytes().unwrap_or(0);
            let hugepages = huge_pages(&self.sys.join("kernel/mm/hugepages"));
            nodes.push(NumaNodeInfo { node_id: 0, memory, hugepages, cores, caches });
        }
        nodes.sort_unstable_by_key(|node| node.node_id);
        nodes
    }

    /// The cores that run these processors, and the caches that belong to more than one of them.
    fn cores(&self, cpus: &[u32]) -> (Vec<CoreInfo>, Vec<CacheInfo>) {
        let mut cores: BTreeMap<(u32, u32), CoreInfo> = BTreeMap::new();
        let mut shared: BTreeMap<String, CacheInfo> = BTreeMap::new();
        for cpu in cpus {
            let dir = self.sys.join(format!("devices/system/cpu/cpu{cpu}"));
            let of =
                |file: &str| number(&dir.join("topology").join(file)).and_then(|it| u32::try_from(it).ok());
            // A kernel that does not tell has one core per processor.
            let (socket_id, core_id) =
                (of("physical_package_id").unwrap_or(0), of("core_id").unwrap_or(*cpu));
            let first = !cores.contains_key(&(socket_id, core_id));
            let core = cores.entry((socket_id, core_id)).or_insert_with(|| CoreInfo {
                core_id,
                socket_id,
                ..CoreInfo::default()
            });
            core.thread_ids.push(*cpu);
            if !first {
                continue;
            }
            let siblings = text(&dir.join("topology/thread_siblings_list")).unwrap_or_default();
            for cache in children(&dir.join("cache"), "index") {
                let Some(info) = cache_info(&cache) else { continue };
                let sharers = text(&cache.join("shared_cpu_list")).unwrap_or_default();
                if sharers == siblings {
                    core.caches.push(info);
                } else {
                    shared.entry(format!("{}:{}:{sharers}", info.level, info.kind)).or_insert(info);
                }
            }
        }
        (cores.into_values().collect(), shared.into_values().collect())
    }
}

/// The fastest processor of `/proc/cpuinfo`, in kilohertz.
pub(crate) fn speed(text: &str) -> Option<u64> {
    let megahertz = text.lines().filter_map(|line| line.strip_prefix("cpu MHz")?.split_once(':'));
    megahertz.filter_map(|(_, value)| thousandfold(value.trim())).max()
}

fn cache_info(dir: &Path) -> Option<CacheInfo> {
    let size = text(&dir.join("size"))?;
    let kibibytes: u64 = size.strip_suffix('K')?.parse().ok()?;
    let level = u32::try_from(number(&dir.join("level"))?).ok()?;
    Some(CacheInfo { size: kibibytes.saturating_mul(1024), kind: text(&dir.join("type"))?, level })
}

fn huge_pages(dir: &Path) -> Vec<HugePagesInfo> {
    let mut sizes: Vec<HugePagesInfo> = children(dir, "hugepages-")
        .into_iter()
        .filter_map(|dir| {
            let name = dir.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some(HugePagesInfo {
                page_size: name.parse().ok()?,
                num_pages: number(&dir.join("nr_hugepages"))?,
            })
        })
        .collect();
    sizes.sort_unstable_by_key(|pages| pages.page_size);
    sizes
}

/// What lies in a directory under a name that begins so, in the order of the names; nothing if it cannot be read.
fn children(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort_unstable();
    found
}

fn numbered(dir: &Path, prefix: &str) -> Option<u32> {
    dir.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// `2200.123` as 2200123: a decimal number times a thousand, without a detour through floats.
fn thousandfold(text: &str) -> Option<u64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = rest.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_machine_of_two_nodes() {
        let dir = tempfile::tempdir().unwrap();
        put(
            dir.path(),
            &[
                ("proc/meminfo", "MemTotal: 2048 kB\n"),
                ("proc/cpuinfo", "cpu MHz\t\t: 2200.1\ncpu MHz : 2199.999\n"),
                ("proc/self/mountinfo", "1 0 0:22 / /proc rw - proc proc rw\n"),
                ("proc/sys/kernel/random/boot_id", "b\n"),
                ("etc/machine-id", "m\n"),
                ("sys/devices/system/cpu/online", "0-2\n"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n"),
                ("sys/devices/system/node/node0/cpulist", "0-1\n"),
                ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1024 kB\n"),
                ("sys/devices/system/node/node1/cpulist", "2-3\n"),
                ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  1000 kB\n"),
                ("sys/block/sda/dev", "8:0\n"),
                ("sys/block/sda/size", "10\n"),
                ("sys/block/sda/queue/scheduler", "none [mq-deadline] kyber\n"),
                ("sys/block/loop0/dev", "7:0\n"),
                ("sys/class/net/eth0/address", "52:54:00:00:00:01\n"),
                ("sys/class/net/eth0/mtu", "1500\n"),
                ("sys/class/net/eth0/speed", "-1\n"),
                ("sys/class/net/lo/address", "00:00:00:00:00:00\n"),
                ("sys/devices/system/edac/mc/mc0/dimm0/dimm_mem_type", "Unbuffered-DDR4\n"),
                ("sys/devices/system/edac/mc/mc0/dimm0/size", "1\n"),
            ],
        );
        for (cpu, core, socket) in [(0, 0, 0), (1, 0, 0), (2, 0, 1)] {
            let siblings = if socket == 0 { "0-1" } else { "2" };
            let base = format!("sys/devices/system/cpu/cpu{cpu}");
            put(
                dir.path(),
                &[
                    (&format!("{base}/topology/core_id"), &core.to_string()),
                    (&format!("{base}/topology/physical_package_id"), &socket.to_string()),
                    (&format!("{base}/topology/thread_siblings_list"), siblings),
                    (&format!("{base}/cache/index0/size"), "32K\n"),
                    (&format!("{base}/cache/index0/type"), "Data\n"),
                    (&format!("{base}/cache/index0/level"), "1\n"),
                    (&format!("{base}/cache/index0/shared_cpu_list"), siblings),
                    (&format!("{base}/cache/index3/size"), "1024K\n"),
                    (&format!("{base}/cache/index3/type"), "Unified\n"),
                    (&format!("{base}/cache/index3/level"), "3\n"),
                    (&format!("{base}/cache/index3/shared_cpu_list"), "0-3"),
                ],
            );
        }
        let info = Host::below(dir.path()).machine_info("now".into()).unwrap();
        assert_eq!((info.num_cores, info.num_physical_cores, info.num_sockets), (3, 2, 2));
        assert_eq!((info.cpu_frequency_khz, info.memory_capacity), (2_200_100, 2 << 20));
        assert_eq!((info.machine_id.as_str(), info.boot_id.as_str()), ("m", "b"));
        assert_eq!(info.hugepages, [HugePagesInfo { page_size: 2048, num_pages: 3 }]);
        assert!(info.filesystems.is_empty(), "/proc is none");
        let disk = &info.disk_map["8:0"];
        assert_eq!((disk.size, disk.scheduler.as_str(), info.disk_map.len()), (5120, "mq-deadline", 1));
        let network = &info.network_devices[..];
        assert!(
            matches!(network, [it] if (it.name.as_str(), it.mtu, it.speed) == ("eth0", 1500, -1)),
            "{network:?}"
        );
        assert_eq!(info.memory_by_type["Unbuffered-DDR4"], MemoryByType { capacity: 1 << 20, dimm_count: 1 });
        let [first, second] = &info.topology[..] else { panic!("{:?}", info.topology) };
        assert_eq!((first.memory, second.memory), (1 << 20, 1_024_000));
        assert_eq!(first.cores[0].thread_ids, [0, 1]);
        assert_eq!((second.cores[0].socket_id, &second.cores[0].thread_ids[..]), (1, &[2][..]));
        let cache = |size, kind: &str, level| CacheInfo { size, kind: kind.into(), level };
        assert_eq!(first.cores[0].caches, [cache(32 << 10, "Data", 1)]);
        assert_eq!(first.caches, [cache(1 << 20, "Unified", 3)]);
    }

    #[test]
    fn this_machine() {
        let info = Host::default().machine_info(String::new()).unwrap();
        assert!(info.num_cores > 0 && info.num_physical_cores > 0 && info.num_sockets > 0);
        assert!(info.memory_capacity > 0 && !info.topology.is_empty() && !info.boot_id.is_empty());
        assert!(!info.filesystems.is_empty());
    }

    #[test]
    fn decimals() {
        for (text, value) in [("2200.123", 2_200_123), ("2200", 2_200_000), ("0.5", 500), ("1.23456", 1234)] {
            assert_eq!(thousandfold(text), Some(value), "{text}");
        }
        assert_eq!(thousandfold("x"), None);
    }
}
