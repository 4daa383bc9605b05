//! A machine in cAdvisor's words (`info/v1.MachineInfo`), as upstream served it at `/spec/` until 1.20.

use std::collections::BTreeMap;

use serde::Serialize;

/// The machine. Fields are in the order in which cAdvisor writes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MachineInfo {
    /// When it was looked at (RFC 3339).
    pub timestamp: String,
    /// Processors that can run something: threads.
    pub num_cores: usize,
    /// Cores, each of which may run more than one thread.
    pub num_physical_cores: usize,
    /// Sockets.
    pub num_sockets: usize,
    /// The highest frequency.
    pub cpu_frequency_khz: u64,
    /// Bytes.
    pub memory_capacity: u64,
    /// Banks of memory by their kind; the kernel tells only where it drives the memory controller.
    pub memory_by_type: BTreeMap<String, MemoryByType>,
    /// Memory that keeps its contents.
    pub nvm: NvmInfo,
    /// Huge pages of the machine.
    pub hugepages: Vec<HugePagesInfo>,
    /// The installation's id.
    pub machine_id: String,
    /// The hardware's id.
    pub system_uuid: String,
    /// The id of this boot.
    pub boot_id: String,
    /// File systems on devices, and in memory.
    pub filesystems: Vec<FilesystemInfo>,
    /// Disks by their `major:minor`.
    pub disk_map: BTreeMap<String, DiskInfo>,
    /// Network devices, but for loopback and those of pods.
    pub network_devices: Vec<NetworkDeviceInfo>,
    /// NUMA nodes.
    pub topology: Vec<NumaNodeInfo>,
    /// Who lends it; `Unknown`: mainstay asks no cloud.
    pub cloud_provider: &'static str,
    /// What kind it is there; `Unknown`.
    pub instance_type: &'static str,
    /// Its name there; `None`.
    pub instance_id: &'static str,
}

/// Memory of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryByType {
    /// Bytes.
    pub capacity: u64,
    /// Modules.
    pub dimm_count: usize,
}

/// Memory that keeps its contents: none is looked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvmInfo {
    /// Bytes used as memory.
    pub memory_mode_capacity: u64,
    /// Bytes used as storage; the name is cAdvisor's.
    #[serde(rename = "app direct_mode_capacity")]
    pub app_direct_mode_capacity: u64,
    /// Milliwatts.
    pub avg_power_budget: u64,
}

/// Huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HugePagesInfo {
    /// In KiB.
    pub page_size: u64,
    /// How many.
    pub num_pages: u64,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FilesystemInfo {
    /// The device, or where it is mounted if it has none.
    pub device: String,
    /// Bytes.
    pub capacity: u64,
    /// `vfs`: it is asked through the kernel.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Inodes.
    pub inodes: u64,
    /// Whether it counts them.
    pub has_inodes: bool,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskInfo {
    /// Its name.
    pub name: String,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Bytes.
    pub size: u64,
    /// In which order it is given its work.
    pub scheduler: String,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkDeviceInfo {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac_address: String,
    /// Megabits a second; 0 or -1 where it does not know.
    pub speed: i64,
    /// The longest packet.
    pub mtu: i64,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaNodeInfo {
    /// Its number.
    pub node_id: u32,
    /// Bytes.
    pub memory: u64,
    /// Its huge pages.
    pub hugepages: Vec<HugePagesInfo>,
    /// Its cores.
    pub cores: Vec<CoreInfo>,
    /// Caches that several cores share.
    pub caches: Vec<CacheInfo>,
}

/// A core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreInfo {
    /// Its number in its socket.
    pub core_id: u32,
    /// The processors that it runs.
    pub thread_ids: Vec<u32>,
    /// Its own caches.
    pub caches: Vec<CacheInfo>,
    /// The socket's number.
    pub socket_id: u32,
}

/// A cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    /// Bytes.
    pub size: u64,
    /// `Data`, `Instruction` or `Unified`.
    #[serde(rename = "type")]
    pub kind: String,
    /// 1 is nearest.
    pub level: u32,
}
