//! The hands: makes what is desired so, one worker per pod, and says what it is doing about each.
//!
//! The actor owns all state about pods. It plans with `lifecycle::plan` (pure) and hands the steps to a worker task; a
//! pod has at most one. It plans only on a reading of the runtime that was begun after the pod's last action ended, so
//! it never acts twice on the same observation. Nobody else kills a pod.
//!
//! In: `DesiredState` and `ObservedState` by `watch`. Out: [`Outcomes`](mainstay_types::Outcomes) by `watch`, wishes for
//! fresh readings by a bounded `mpsc`, events. Tasks: `reconcile`, `pod records`, `cgroups` (the cgroups that pods share,
//! and those that nobody owns), `cpusets` (where CPUs are given out), `resources of before` (once, where their file was lost) and one `pod …` per busy pod, owned by the task group given to [`start`]. When mainstay ends, workers stop between two steps; pods are left as they are.

#![forbid(unsafe_code)]

mod accounts;
mod actor;
mod admission;
mod cgroups;
mod cleanup;
mod clock;
mod config;
mod containers;
mod cpusets;
mod files;
mod hooks;
mod images;
mod kill;
mod pod;
mod pod_range;
mod providers;
mod pulled;
mod record;
mod resources;
mod sandbox;
mod userns;
mod volumes;
mod worker;

pub use actor::start;
pub use cgroups::{Cgroups, ReservedCgroup};
pub use config::{Ownership, PullLimits, ReconcileConfig};
pub use userns::IdPool;
