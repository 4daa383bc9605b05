//! The words every other crate speaks: identifiers, what is wished for, what is seen, and what is published.
//!
//! Data flows one way through these types: sources make a [`DesiredState`], observers make an [`ObservedState`],
//! reconcile reports [`Outcomes`], and the three together become the numbered, immutable [`NodeSnapshot`] that servers
//! read. Nothing in here does I/O, reads a clock or starts a task.

#![forbid(unsafe_code)]

mod desired;
mod event;
mod fnv;
mod gotime;
mod heartbeat;
mod ids;
mod observed;
mod outcome;
mod pod;
mod quantity;
mod snapshot;
mod version;

pub use desired::{DesiredPod, DesiredState, FileVerdict, Objects, PodSource, Ruling, TerminationWish};
pub use event::{Event, EventKind, EventSink, EventTarget};
pub use fnv::{container_hash, fnv1a_32, fnv1a_64};
pub use gotime::{format_go_duration, rfc3339_nanos, to_seconds};
pub use heartbeat::Heartbeat;
pub use ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
pub use observed::{
    ContainerPhase, ContainerUser, MadeObjects, ObservedContainer, ObservedPod, ObservedSandbox,
    ObservedState, ReadWish, RuntimeHealth,
};
pub use outcome::{ContainerReason, Deletion, Outcomes, PodFailure, PodOutcome, PodStage, TerminalPhase};
pub use pod::{ContainerKind, PodExt, annotations, labels};
pub use quantity::{Quantity, QuantityError};
pub use snapshot::{EventRecord, NodeSnapshot, PodView};
pub use version::{API_VERSION_MAJOR, API_VERSION_MINOR, VERSION, user_agent_version};
