//! The words every other crate speaks: identifiers, what is wished for, what is seen, and what is published.
//!
//! Data flows one way through these types: sources make a [`DesiredState`], observers make an [`ObservedState`],
//! reconcile reports [`Outcomes`], and the three together become the numbered, immutable [`NodeSnapshot`] that servers
//! read. Nothing in here does I/O, reads a clock or starts a task.

#![forbid(unsafe_code)]

mod address;
mod api;
mod assignment;
mod counters;
mod desired;
mod edit_distance;
mod event;
mod filesystem;
mod fnv;
mod gotime;
mod heartbeat;
mod ids;
mod label_selector;
mod machine;
mod observed;
mod outcome;
mod pod;
mod pressure;
mod probe;
mod quantity;
mod resources;
mod sample;
mod snapshot;
mod storage;
mod version;
mod work;

pub use address::in_node_order;
pub use api::{ApiNode, ApiPod, ApiPods, Barriers, RemoteStatus};
pub use assignment::{
    Allocatable, Assignments, ContainerAssignment, CpuPlace, DeviceHealth, ExtendedAmount, ExtendedResources,
    HeldDevice, MemoryAmounts, MemoryBlock, Placement, PodAssignment, Unknown, UnnamedDevices,
};
pub use counters::{CounterLabels, CounterName, Counters};
pub use desired::{
    AwaitedSource, CertificateKey, CertificateWish, Claim, ClaimedVolume, DesiredPod, DesiredState,
    FileVerdict, IssuedCertificate, NodeQuestions, Objects, PodCertificate, PodSource, Ruling, ServiceToken,
    TerminationWish, TokenKey, TrustBundle, TrustBundles, TrustQuery,
};
pub use edit_distance::edit_distance;
pub use event::{Event, EventCounts, EventKind, EventSink, EventTarget};
pub use filesystem::{
    ContainerDisk, DeviceReading, DiskWork, Filesystems, FsReading, FsSize, PodDisk, VolumeReading, WalkCost,
};
pub use fnv::{container_hash, fnv1a_32, fnv1a_64};
pub use gotime::{format_go_duration, rfc3339_nanos, to_seconds};
pub use heartbeat::Heartbeat;
pub use ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
pub use label_selector::{BadLabelSelector, LabelSelector};
pub use machine::{
    CacheInfo, CoreInfo, DiskInfo, FilesystemInfo, HugePagesInfo, MachineInfo, MemoryByType,
    NetworkDeviceInfo, NumaNodeInfo, NvmInfo,
};
pub use observed::{
    ContainerPhase, ContainerUser, MadeObjects, ObservedContainer, ObservedPod, ObservedSandbox,
    ObservedState, ReadWish, RuntimeHandler, RuntimeHealth,
};
pub use outcome::{ContainerReason, Deletion, Outcomes, PodFailure, PodOutcome, PodStage, TerminalPhase};
pub use pod::{ContainerKind, PodExt, annotations, labels};
pub use pressure::{NodePressure, PressureKind};
pub use probe::{
    ContainerProbes, PROBE_BUCKETS_SECONDS, PodProbes, ProbeKind, ProbeLabels, ProbeMetrics, ProbeNumbers,
    ProbeResults, ProbeSeries, Verdict,
};
pub use quantity::{Quantity, QuantityError};
pub use resources::{HugePages, MachineCapacity, NodeResources, ResourceList};
pub use sample::{
    ContainerSample, CpuSample, HugePageSample, InterfaceSample, IoSample, Limits, MemorySample,
    NetworkSample, PidsSample, PodSamples, Pressure, PressureLine, Pressures, ProcessSample, Sample,
    SampleCost, Samples, SandboxSample, SliceRole, SliceSample, TaskCounts, Traffic, page_size_name,
};
pub use snapshot::{EventRecord, NodeSnapshot, NodeView, OthersWord, PodView};
pub use storage::{PodStorage, StorageLimits, StorageUsage};
pub use version::{API_VERSION_MAJOR, API_VERSION_MINOR, VERSION, user_agent_version};
pub use work::{
    ApiCalls, ByEnd, ByLabels, ByName, CertificateCounts, Chain, Counter, DurationCounts, Durations,
    NodeCounters, PullTimes, image_size_label, rejection_label,
};
