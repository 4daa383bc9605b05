//! The client for the container runtime: CRI v1 over a unix socket.
//!
//! Every call has a name (upstream's operation name, used in logs and metrics), a deadline, and an error that says
//! which call on which socket failed. The connection is made on first use and made again after it is lost; a caller
//! sees one failed call, never a dead client.
//!
//! It does not decide anything, keep any state about pods, or start tasks.

#![forbid(unsafe_code)]

mod client;
mod container_status;
mod create;
mod endpoint;
mod error;
mod lists;
mod raw;
mod stats;
mod traced;

pub use client::{CommandOutput, Cri, ExecOutcome, StreamsWanted};
pub use container_status::ContainerStatus;
pub use create::ContainerExtras;
pub use endpoint::Endpoint;
pub use error::{CriError, EndpointError};
pub use lists::Lists;
pub use stats::{CALL_BUCKETS, CallCount, CallStats, call_bucket_bounds};
