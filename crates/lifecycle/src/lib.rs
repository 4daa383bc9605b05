//! The brain: what to do about a pod, and what to say about it.
//!
//! [`plan`] looks at what a pod should be, what the runtime shows of it and what is remembered, and returns the steps
//! to take. [`pod_status`] turns the same things into a `v1.PodStatus`. Both are pure functions: no clock, no I/O, no
//! locks. [`storage_wish`] says whether a pod wrote more than it may. The time is an argument; "later" is a `wake_at` in the answer.
//!
//! What it does not do: it executes nothing and knows no CRI message. How a container is killed, in which order
//! sidecars stop and how long a hook may run is reconcile's job; *that* it must be killed is decided here.

#![forbid(unsafe_code)]

mod backoff;
mod edit;
mod ends;
mod memory;
mod plan;
mod probe;
mod restart;
mod sandbox;
mod start;
mod status;
mod storage;
mod told;
mod views;

pub use backoff::{BackoffEntry, BackoffLimits, crash_key};
pub use edit::{Edit, edit};
pub use ends::newly_ended;
pub use memory::{Admission, Hold, HoldCause, PodMemory, SANDBOX_HOLD};
pub use plan::{KillReason, Plan, PlanInput, Step, plan};
pub use probe::{
    ProbeRules, ProbeState, Recorded, Situation, may_ask, probe_grace_seconds, probe_of, probes_of,
};
pub use restart::{AfterExit, after_exit};
pub use sandbox::{SandboxVerdict, judge_sandbox};
pub use start::{StartTime, start_time};
pub use status::{PREEMPTING, StatusInput, pod_status};
pub use storage::storage_wish;
pub use told::{
    STATE_INTACT, is_own_condition, is_step_of_end, is_step_of_start, is_unseen_step_of_start, node_digest,
    others_node_status, status_digest, status_patch,
};
