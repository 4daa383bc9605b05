//! What a cgroup was using when it was read.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;

use crate::{ContainerId, ContainerName, FullName, PodUid, SandboxId};

/// One reading of one cgroup. A value that the kernel does not give is 0 unless it is an `Option`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When it was read.
    pub at: Timestamp,
    /// When the cgroup was made, by its directory's word.
    pub made_at: Timestamp,
    /// Processor time.
    pub cpu: CpuSample,
    /// Processor time per time since the reading before, in billionths of a core; `None` before the second reading.
    pub nano_cores: Option<u64>,
    /// Memory; `None` where the controller is off.
    pub memory: Option<MemorySample>,
    /// Block devices.
    pub io: Vec<IoSample>,
    /// Processes and threads.
    pub pids: PidsSample,
    /// Its own processes, without those of cgroups below.
    pub processes: ProcessSample,
    /// Pressure, where the kernel measures it.
    pub pressure: Option<Pressures>,
    /// What it may use.
    pub limits: Limits,
    /// Huge pages, by their sizes: those of which some are or were in use, or may be. `None` where there are none, as nearly everywhere.
    pub huge_pages: Option<Arc<[HugePageSample]>>,
}

/// Huge pages of one size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePageSample {
    /// How large a page is.
    pub page_bytes: u64,
    /// What is in use.
    pub usage: u64,
    /// The most that ever was; `None` where the kernel does not keep it (cgroup v2).
    pub max_usage: Option<u64>,
    /// How often a page was refused because of the limit.
    pub failures: u64,
    /// What may be in use; `None` is no limit.
    pub limit: Option<u64>,
}

/// A size of huge pages as the kernel's files about cgroups and cAdvisor write it: `2MB`, `1GB`, `64KB`.
#[must_use]
pub fn page_size_name(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        0..0x10_0000 => (10, "KB"),
        0x10_0000..0x4000_0000 => (20, "MB"),
        _ => (30, "GB"),
    };
    format!("{}{unit}", bytes >> shift)
}

/// Processor time, all of it ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// Nanoseconds in all.
    pub usage_ns: u64,
    /// Nanoseconds in user space.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub system_ns: u64,
    /// Periods in which there was something to run.
    pub periods: u64,
    /// Of these, how many ended early for want of quota.
    pub throttled_periods: u64,
    /// Nanoseconds spent waiting for quota.
    pub throttled_ns: u64,
    /// Periods in which saved quota was used.
    pub bursts: u64,
    /// Nanoseconds above the quota in these.
    pub burst_ns: u64,
}

/// Memory, in bytes where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// All that is charged.
    pub usage: u64,
    /// What cannot be dropped at once: usage without inactive files.
    pub working_set: u64,
    /// Anonymous.
    pub rss: u64,
    /// Files.
    pub cache: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Swapped out.
    pub swap: u64,
    /// The kernel's own (cgroup v1).
    pub kernel: u64,
    /// How often the limit was hit (cgroup v1).
    pub fail_count: u64,
    /// The most it ever was.
    pub max_usage: u64,
    /// Files in use.
    pub active_file: u64,
    /// Files not in use.
    pub inactive_file: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that needed a disk.
    pub major_page_faults: u64,
    /// How often it was slowed down at `memory.high`.
    pub high_events: u64,
    /// How often it reached `memory.max`.
    pub max_events: u64,
    /// How often processes of this very cgroup were killed for want of memory; those that were killed together count once where the kernel says so.
    pub oom_kills: u64,
    /// Those below it, too, also of cgroups that have gone since. cgroup v1 counts each cgroup for itself: there it is the same number.
    pub oom_kills_in_all: u64,
    /// Dirty files.
    pub file_dirty: u64,
    /// Files being written.
    pub file_writeback: u64,
    /// Pages looked at by reclaim.
    pub scanned: u64,
    /// Pages taken by reclaim.
    pub stolen: u64,
    /// File pages that were needed again.
    pub refault_file: u64,
    /// Anonymous pages that were needed again.
    pub refault_anon: u64,
}

/// What went to and came from one block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoSample {
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Processes and threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidsSample {
    /// Threads in it and below it.
    pub current: u64,
    /// The most there may be; `None` is any number.
    pub max: Option<u64>,
}

/// The processes directly in a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSample {
    /// How many.
    pub count: u64,
    /// Files that they hold open.
    pub descriptors: u64,
    /// How many of these are sockets.
    pub sockets: u64,
    /// How many files the first of them may open (its soft limit); -1 is any number, `None` is not known.
    pub open_files: Option<i64>,
}

/// The interfaces of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSample {
    /// When they were read.
    pub at: Timestamp,
    /// In the kernel's order; loopback and the machine's ends of pods' networks are left out.
    pub interfaces: Vec<InterfaceSample>,
}

/// What went through one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSample {
    /// Its name.
    pub name: String,
    /// What came.
    pub received: Traffic,
    /// What went.
    pub sent: Traffic,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were spoilt.
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// Time lost for want of something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressures {
    /// Of processors.
    pub cpu: Pressure,
    /// Of memory.
    pub memory: Pressure,
    /// Of disks.
    pub io: Pressure,
}

/// One kind of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Some tasks waited.
    pub some: PressureLine,
    /// All tasks waited.
    pub full: PressureLine,
}

/// Averages in percent, and the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureLine {
    /// Over ten seconds.
    pub avg10: f64,
    /// Over a minute.
    pub avg60: f64,
    /// Over five minutes.
    pub avg300: f64,
    /// Microseconds in all.
    pub total_us: u64,
}

/// What a cgroup may use; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Microseconds of a period.
    pub cpu_quota_us: Option<u64>,
    /// How long a period is, in microseconds.
    pub cpu_period_us: u64,
    /// In cgroup v1's measure.
    pub cpu_shares: u64,
    /// Bytes.
    pub memory: Option<u64>,
    /// Bytes of swap; on cgroup v1 of memory and swap together.
    pub swap: Option<u64>,
    /// Bytes that are kept for it.
    pub memory_reservation: u64,
}

/// The readings of a node, as one immutable value.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Counts up with every round; 0 before the first.
    pub generation: u64,
    /// The whole machine.
    pub root: Option<Arc<Sample>>,
    /// The machine's own network.
    pub network: Option<Arc<NetworkSample>>,
    /// Processes of the machine.
    pub tasks: Option<TaskCounts>,
    /// Cgroups that are nobody's pod: those above pods, mainstay's own, and configured ones.
    pub slices: Vec<SliceSample>,
    /// The image of which sandboxes are made; empty until the runtime has told.
    pub sandbox_image: Arc<str>,
    /// Names of block devices by their numbers, of those that are in this reading and have one.
    pub disks: Arc<HashMap<(u32, u32), Arc<str>>>,
    /// Pods that have been read, by UID.
    pub pods: HashMap<PodUid, Arc<PodSamples>>,
    /// What the newest round cost, in microseconds of processor time, and how many cgroups it read.
    pub cost: SampleCost,
}

/// Processes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// When they were counted.
    pub at: Timestamp,
    /// How many there are, threads included.
    pub current: u64,
    /// How many there may be.
    pub max: u64,
}

/// A cgroup that is no pod's.
#[derive(Clone, Debug)]
pub struct SliceSample {
    /// What it is for.
    pub role: SliceRole,
    /// Its path, from the root.
    pub cgroup: Arc<str>,
    /// The reading.
    pub sample: Arc<Sample>,
}

/// What a cgroup is for that is no pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceRole {
    /// All pods.
    Pods,
    /// The pods of one class.
    Class,
    /// mainstay itself.
    Kubelet,
    /// The container runtime (`runtimeCgroups`).
    Runtime,
    /// The rest of the machine (`systemCgroups`).
    Misc,
    /// A service of the machine, for those who know it by an old document.
    Service,
}

/// What a round of reading cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCost {
    /// From its beginning to its end, in microseconds.
    pub micros: u64,
    /// Processor time of all rounds so far, in microseconds.
    pub cpu_micros: u64,
    /// Cgroups that were read.
    pub cgroups: u32,
    /// Cgroups that could not be read, other than those that had gone.
    pub failed: u32,
    /// Places whose reading does not end; they are left out until it does.
    pub hanging: u32,
    /// Files and directories that were to be opened for it.
    pub opens: u64,
    /// Pieces of files that were read for it.
    pub reads: u64,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct PodSamples {
    /// Namespace and name.
    pub full_name: FullName,
    /// The path of the pod's cgroup, from the root.
    pub cgroup: Arc<str>,
    /// The pod's cgroup.
    pub pod: Arc<Sample>,
    /// Its sandbox, while one is ready.
    pub sandbox: Option<SandboxSample>,
    /// Its network, as far as a process of it could be found; on the host's network the machine's.
    pub network: Option<Arc<NetworkSample>>,
    /// Its running containers, by name.
    pub containers: Vec<ContainerSample>,
    /// Every running container is among them.
    pub complete: bool,
}

/// A pod's sandbox.
#[derive(Clone, Debug)]
pub struct SandboxSample {
    /// The runtime's ID.
    pub id: SandboxId,
    /// When it was made, by the runtime's word.
    pub created_at: Timestamp,
    /// The path of its cgroup and the reading, where the runtime makes one for it.
    pub cgroup: Option<(Arc<str>, Arc<Sample>)>,
}

/// One running container.
#[derive(Clone, Debug)]
pub struct ContainerSample {
    /// Its name.
    pub name: ContainerName,
    /// The runtime's ID.
    pub id: ContainerId,
    /// The path of its cgroup, from the root.
    pub cgroup: Arc<str>,
    /// When it was made, by the runtime's word.
    pub created_at: Timestamp,
    /// The image as the runtime names it.
    pub image: Arc<str>,
    /// The reading.
    pub sample: Arc<Sample>,
}
