//! Real peers for a node under test: a private containerd, images, a registry, and mainstay itself.
//!
//! What it does: every peer is a real program on a directory, socket, subnet, bridge and cgroup of its own, so
//! that tests run side by side and never meet the machine's own services. Dropping a handle removes all of it,
//! and what a killed test left behind is removed by the next one that starts (see [`Instance`]).
//!
//! What it does not: it builds nothing (`cargo xtask tools` and `cargo build` do), downloads nothing and fakes
//! nothing. A peer that is missing is an error that names the command to get it, never a silent skip. One trace
//! stays, as with every CNI bridge: the kernel's `net.ipv4.ip_forward` is on after the first pod network.
//!
//! Everything blocks and needs root. The only threads are the caller's own; the processes belong to the handle
//! that started them.
#![forbid(unsafe_code)]

mod cgroups;
mod command;
mod containerd;
mod http;
mod image;
mod instance;
mod network;
mod node;
mod paths;
mod poll;
mod process;
mod registry;
mod slot;
mod tar;

pub use command::capture;
pub use containerd::{Containerd, ContainerdBuilder, Flavor};
pub use http::{Body, Http, Response};
pub use image::{BUSYBOX, Image, PAUSE};
pub use instance::{Instance, Kind};
pub use node::{Node, NodeBuilder, PodList};
pub use paths::{build_dir, mainstay_binary, tool, workspace_root};
pub use poll::wait_until;
pub use registry::{Credentials, Registry};
