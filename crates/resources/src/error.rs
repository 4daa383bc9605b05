//! Why a pod is turned away, or mainstay cannot start.

use mainstay_alloc::{AssignError, CpuSet, MemoryError, NotEnough};
use mainstay_checkpoint::TextError;
use mainstay_devices::AdmitError as DeviceError;
use mainstay_host::HostError;

/// Why CPUs and memory cannot be given out as they are configured. Upstream's words, where it has some.
#[derive(Debug, thiserror::Error)]
pub enum ResourcesError {
    /// The machine does not tell.
    #[error("cannot tell where the machine's CPUs and memory are")]
    Host(#[from] HostError),
    /// Nothing is kept for the system.
    #[error(
        "[cpumanager] unable to determine reserved CPU resources for static policy; set reservedSystemCPUs, or cpu in systemReserved or kubeReserved"
    )]
    NothingReserved,
    /// So many are not there.
    #[error("[cpumanager] unable to reserve the required amount of CPUs")]
    Reserve(#[source] NotEnough),
    /// Some of them are not there.
    #[error("reservedSystemCPUs has {missing}, which are not among the CPUs {online} that are online")]
    ReservedOffline {
        /// Those.
        missing: CpuSet,
        /// These are there.
        online: CpuSet,
    },
    /// Too many.
    #[error(
        "unsupported on machines with more than {most} NUMA Nodes: this one has {found}; set max-allowable-numa-nodes in topologyManagerPolicyOptions, or topologyManagerPolicy: none"
    )]
    TooManyNodes {
        /// As configured.
        most: usize,
        /// As found.
        found: usize,
    },
    /// Sockets cannot be aligned by.
    #[error(
        "align-by-socket of cpuManagerPolicyOptions cannot be used on a machine with more sockets ({sockets}) than NUMA nodes ({nodes})"
    )]
    MoreSocketsThanNodes {
        /// As found.
        sockets: usize,
        /// As found.
        nodes: usize,
    },
    /// The kernel does not tell distances.
    #[error(
        "prefer-closest-numa-nodes of topologyManagerPolicyOptions needs the distances between NUMA nodes, which this kernel does not tell"
    )]
    NoDistances,
    /// `reservedMemory` names a node that is not there.
    #[error("reservedMemory names the NUMA node {0}, which this machine does not have")]
    NoSuchNode(u32),
    /// `reservedMemory` and what is kept back differ.
    #[error(
        "the total amount \"{given}\" of type \"{kind}\" is not equal to the value \"{needed}\" determined by Node Allocatable feature; reservedMemory has to be what systemReserved, kubeReserved and evictionHard keep back together"
    )]
    ReservedMemory {
        /// `memory` or `hugepages-2Mi` and the like.
        kind: String,
        /// By `reservedMemory`.
        given: String,
        /// By what is kept back.
        needed: String,
    },
    /// Nothing is kept back.
    #[error(
        "[memorymanager] you should specify the system reserved memory; memoryManagerPolicy: Static needs memory in reservedMemory"
    )]
    NoReservedMemory,
}

/// Why a pod is not let in.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// Its devices.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// Its CPUs.
    #[error(transparent)]
    Cpus(#[from] AssignError),
    /// Its memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// They would not lie together.
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    /// The same of a pod that says itself what it needs.
    #[error("Pod Scope pod with pod-level resources failed admission {0} topology manager")]
    PodTopology(&'static str),
    /// Nobody has said in time which pods those are that run here.
    #[error(
        "who holds which CPUs, memory and devices is not known: the file that said so was lost, and it is not known yet whose the containers are that run, or what they have; the API server may be away, or the runtime not answer about a pod"
    )]
    NotKnown,
    /// It cannot be written down, and would be given to another after a restart.
    #[error("cannot keep who holds which CPUs and memory")]
    File(#[source] TextError),
}

impl AdmitError {
    /// Reason and message of the pod that has failed, as upstream has them.
    #[must_use]
    pub fn refusal(&self) -> (&'static str, String) {
        match self {
            Self::Topology | Self::PodTopology(_) => ("TopologyAffinityError", self.to_string()),
            Self::Cpus(AssignError::NothingShared | AssignError::NothingForInit)
            | Self::Memory(MemoryError::NothingShared(_) | MemoryError::NothingForInit(_)) => {
                ("EmptyPodSharedPoolError", self.to_string())
            }
            Self::Cpus(AssignError::NotWholeCores { .. } | AssignError::TooFewCores { .. }) => {
                ("SMTAlignmentError", self.to_string())
            }
            _ => ("UnexpectedAdmissionError", format!("Allocate failed due to {self}, which is unexpected")),
        }
    }

    /// Whether a pod that runs can go on without: it shares the CPUs and memory that are nobody's.
    #[must_use]
    pub const fn leaves_it_running(&self) -> bool {
        matches!(self, Self::Cpus(_) | Self::Memory(_) | Self::Topology | Self::PodTopology(_))
    }
}
