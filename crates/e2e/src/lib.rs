//! Whole-node tests: the real binary on a real containerd, as root. What they share is here; the tests are in `tests/`.
//!
//! What it does: starts nodes with the test kit and asks them the way a user would. What it does not: it knows nothing of
//! mainstay's inside, only its HTTP API, its files and what the runtime shows. It owns no tasks.
#![forbid(unsafe_code)]

mod cgroups;
pub mod compare;
mod device_plugin;
pub mod member;
mod node_api;
pub mod seen;
mod streams;
mod target;
mod world;
mod wrapped;

pub use cgroups::CgroupFiles;
pub use device_plugin::{DevicePlugin, register};
pub use node_api::{Everybody, Listening, ask, node_api};
pub use streams::{LISTENER, Ran, StreamClient, Transport, User, finish, noise, speak};
pub use target::target;
pub use world::{
    EventSeen, PodSeen, SOON, World, config_map, counts_disks, idle, idle_with, one_volume, pod, secret, sh,
    whole_machine, with,
};
pub use wrapped::{wrapped, write_program};
