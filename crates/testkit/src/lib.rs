//! Real peers for a node under test: a private containerd, images, a registry, and mainstay itself.
//!
//! What it does: every peer is a real program on a directory, socket, subnet, bridge and cgroup of its own, so
//! that tests run side by side and never meet the machine's own services. Dropping a handle removes all of it,
//! and what a killed test left behind is removed by the next one that starts (see [`Instance`]).
//!
//! What it does not: it builds nothing (`cargo xtask tools` and `cargo build` do), downloads nothing and fakes
//! nothing that can be had for real. A peer that is missing is an error that names the command to get it, never a silent skip. One trace
//! stays, as with every CNI bridge: the kernel's `net.ipv4.ip_forward` is on after the first pod network.
//!
//! Two fakes there are, [`ReviewServer`] and [`FlakyProxy`], for what a real API server cannot be made to do; [`ControlPlane`] is the real one.
//! [`ThinWire`] is a wire to it that can fall silent; an [`OwnNetwork`] makes a runtime and its nodes a machine of their own.
//!
//! Everything blocks and needs root. The only threads are the caller's own; the processes belong to the handle
//! that started them.
#![forbid(unsafe_code)]

mod cgroups;
mod command;
mod containerd;
mod control_plane;
mod environment;
mod flaky_proxy;
mod fuse;
mod http;
mod image;
mod instance;
mod network;
mod node;
mod open_streams;
mod own_network;
mod paths;
mod pki;
mod poll;
mod ports;
mod process;
mod registry;
mod reviews;
mod slot;
mod tar;
mod thin_wire;
mod tls;

pub use command::capture;
pub use containerd::{Containerd, ContainerdBuilder, Flavor};
pub use control_plane::ControlPlane;
pub use environment::{CgroupDriver, nfs_export, patient};
pub use flaky_proxy::{FlakyProxy, Mood};
pub use fuse::{HungFilesystem, own_mounts};
pub use http::{Body, Http, Response};
pub use image::{BUSYBOX, Image, PAUSE};
pub use instance::{Instance, Kind};
pub use network::HostPortChains;
pub use node::{Node, NodeBuilder, PodList};
pub use own_network::OwnNetwork;
pub use paths::{build_dir, mainstay_binary, tool, workspace_root};
pub use pki::{Authority, Certificate, CertificateWish, Usage};
pub use poll::wait_until;
pub use ports::free_address;
pub use registry::{Credentials, Registry};
pub use reviews::{Asked, Judge, ReviewServer, write_kubeconfig};
pub use thin_wire::ThinWire;
pub use tls::tls_client;
