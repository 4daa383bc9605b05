//! The cgroups that pods live in: their names, and making, setting, listing, emptying and removing them.
//!
//! [`CgroupNames`] gives the names for both drivers. [`Cgroups`] works on a mounted hierarchy, v1 (every mounted
//! controller) or v2; its root can be moved for tests. [`PodCgroups`] puts both together and, with the systemd driver,
//! has systemd make each cgroup as a slice, set its properties and stop it in the end (over D-Bus); what systemd has no
//! property for is written into the files, as upstream does. What values a cgroup gets is decided in `podspec`
//! (`pod_cgroup_values`, `node_cgroup_values`).
//!
//! What it does not do: it reads no statistics, it removes nothing that has processes in it (only `kill_all` and
//! [`PodCgroups::destroy`] kill, when told), and it starts no task. Everything here blocks; call it off the async
//! workers.

#![forbid(unsafe_code)]

mod hierarchy;
mod mark;
mod names;
mod own;
mod pods;
mod systemd;
mod values;

pub use hierarchy::{CgroupError, Cgroups, PodCgroup};
pub use names::{CgroupNames, CgroupPath, Driver, PathError};
pub use pods::PodCgroups;
pub use systemd::Systemd;
pub use values::weight_to_shares;
