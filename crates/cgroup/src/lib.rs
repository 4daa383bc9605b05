//! The cgroups that pods live in: their names, and making, setting, listing, emptying and removing them.
//!
//! [`CgroupNames`] gives the names for both drivers; with the systemd driver only names are needed, systemd and the
//! runtime make the cgroups. [`Cgroups`] works on a mounted hierarchy, v1 (every mounted controller) or v2; its root can be
//! moved for tests. What values a pod's cgroup gets is decided in `podspec` (`pod_cgroup_values`).
//!
//! What it does not do: it reads no statistics, it removes nothing that has processes in it (only
//! [`Cgroups::kill_all`] kills, when told), and it starts no task. Everything here blocks; call it off the async workers.

#![forbid(unsafe_code)]

mod hierarchy;
mod names;
mod values;

pub use hierarchy::{CgroupError, Cgroups, PodCgroup};
pub use names::{CgroupNames, CgroupPath, Driver, PathError};
pub use values::weight_to_shares;
