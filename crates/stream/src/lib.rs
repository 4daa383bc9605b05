//! Streaming between a client, the kubelet and a container: SPDY/3.1 and WebSocket, and the Kubernetes protocols on top of them.
//!
//! What it does, from below: [`spdy`] and [`ws`] put many byte streams on one connection, in both roles, over anything that
//! reads and writes. [`remotecommand`] (exec, attach) and [`portforward`] give the streams their meaning and hide which
//! protocol the peer chose. [`negotiate`] picks that protocol from request headers and answers as upstream does.
//!
//! What it does not: no HTTP (the caller upgrades the connection and hands it over), no dialling, no TLS, no containers, no authorization.
//! WebSocket extensions, SPDY push and priorities do not exist here, because no Kubernetes peer uses them.
//!
//! Tasks and bounds: it starts no task. Every connection is one future that drives reading, writing and whatever serves
//! the streams; dropping it frees everything. Each stream has a bounded buffer per direction and each connection a bound
//! over all of them ([`Limits`]); whoever writes faster than the other end reads has to wait, from the process in the container to the
//! terminal of the user.

#![forbid(unsafe_code)]

mod driver;
mod limits;
mod mux;
pub mod negotiate;
pub mod portforward;
pub mod remotecommand;
pub mod spdy;
pub mod ws;

pub use driver::Role;
pub use limits::{Limits, StreamError};
pub use mux::Stream;
