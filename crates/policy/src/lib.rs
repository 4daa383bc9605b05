//! Who may use how much of the node: what is left for pods, and whether a pod fits in.
//!
//! [`node_resources`] turns what the machine has and what the configuration keeps back into what pods may use.
//! [`admit`] judges a pod against that, the node's facts and the pods that were admitted before it, with upstream's
//! reasons and sentences. [`Thresholds`] says what the node runs short of, from what was measured, and [`PulledRecord`] who may
//! use an image that is there. All are pure functions: no
//! clock, no I/O.
//!
//! What it does not do: it measures nothing (see `host`), limits nothing (see `cgroup`) and remembers nothing; that a
//! pod is judged only once is for reconcile to see to.

#![forbid(unsafe_code)]

mod admission;
mod allocatable;
mod pressure;
mod pulls;

pub use admission::{
    Candidate, HostPort, NodeFacts, Occupant, PodUse, Rejection, SysctlPatternError, Sysctls, admit, preempt,
    volume_fits,
};
pub use allocatable::{AllocatableError, Reservations, node_resources};
pub use pressure::{PressureMemory, Reading, Signal, Signals, Thresholds};
pub use pulls::{
    MayUse, PullAccount, PullSecret, PullVerification, PulledBy, PulledRecord, PulledWith, Shown,
};
