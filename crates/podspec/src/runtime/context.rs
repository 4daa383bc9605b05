//! What is the same for every pod of the node.

use std::path::PathBuf;

use super::{CFS_PERIOD_MICROS, ResourceList};

/// Settings and facts of the node that configurations depend on.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The root directory; seccomp profiles lie in `seccomp` below it.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// `clusterDomain`; may be empty.
    pub cluster_domain: String,
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<String>,
    /// What pods may use; stands in for limits that a container asks for by `resourceFieldRef` and does not have.
    pub allocatable: ResourceList,
    /// The machine's memory in bytes, by which OOM scores are scaled.
    pub memory_capacity: i64,
    /// `cpuCFSQuotaPeriod` in microseconds; `None` when `cpuCFSQuota` is off.
    pub cfs_period_micros: Option<i64>,
    /// The node runs on the unified cgroup hierarchy.
    pub cgroup_v2: bool,
    /// `singleProcessOOMKill`: do not kill a container's other processes with the one that ran out of memory.
    pub single_process_oom_kill: bool,
    /// `seccompDefault`: containers without a profile get the runtime's.
    pub seccomp_default: bool,
    /// Swap.
    pub swap: SwapSettings,
    /// Gate MemoryQoS; `None` is off. Matters on cgroup v2 only.
    pub memory_qos: Option<MemoryQos>,
    /// The host's huge page sizes in the kernel's spelling (`2MB`, `1GB`).
    pub huge_page_sizes: Vec<String>,
    /// Paths masked beside the fixed ones: each `/sys/devices/system/cpu/cpuN/thermal_throttle` that exists.
    pub extra_masked_paths: Vec<String>,
    /// The kernel keeps containers apart by SELinux labels, so that what is made for them must be labelled as theirs.
    pub selinux: bool,
}

impl Default for NodeSettings {
    /// A node on cgroup v2 with upstream's default configuration and nothing known about the machine.
    fn default() -> Self {
        Self {
            root_dir: "/var/lib/kubelet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            cluster_domain: String::new(),
            host_ips: Vec::new(),
            allocatable: ResourceList::new(),
            memory_capacity: 0,
            cfs_period_micros: Some(CFS_PERIOD_MICROS),
            cgroup_v2: true,
            single_process_oom_kill: false,
            seccomp_default: false,
            swap: SwapSettings::default(),
            memory_qos: Some(MemoryQos::default()),
            huge_page_sizes: Vec::new(),
            extra_masked_paths: Vec::new(),
            selinux: false,
        }
    }
}

/// How containers may swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapSettings {
    /// The kernel can limit swap per cgroup; without it nothing about swap is sent.
    pub controller: bool,
    /// `memorySwap.swapBehavior: LimitedSwap`; otherwise containers do not swap.
    pub limited: bool,
    /// Swap space in bytes that pods share.
    pub capacity: i64,
}

/// Gate MemoryQoS and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// `memoryReservationPolicy: TieredReservation`; otherwise nothing is reserved.
    pub tiered_reservation: bool,
    /// `memoryThrottlingFactor`; `None` leaves `memory.high` alone.
    pub throttling_factor: Option<f64>,
    /// The kernel's page size in bytes.
    pub page_size: i64,
}

impl Default for MemoryQos {
    fn default() -> Self {
        Self { tiered_reservation: false, throttling_factor: None, page_size: 4096 }
    }
}
