//! One attempt of a probe: run a command, ask over HTTP, open a TCP connection, or ask a gRPC health service.
//!
//! A [`Target`] is made once for a container instance (ports resolved, headers settled); [`attempt`] tries it once, within
//! its time limit, on a connection of its own. The texts of failures are those of upstream's `pkg/probe` (1.37), since
//! people search for them.
//!
//! What it does not do: it keeps no counts and no time, retries nothing and decides nothing (`lifecycle::probe` does), and
//! bounds nothing but itself. It starts no task of its own: dropping an attempt ends it, though the runtime may go on with
//! a command until its time limit. Other than upstream it leaves `SO_LINGER` alone: closing would then block one of
//! the agent's few threads for up to a second whenever a peer has vanished.

#![forbid(unsafe_code)]

mod error;
mod exec;
mod grpc;
mod http_get;
mod target;
mod tcp;

use std::time::Duration;

use mainstay_cri::Cri;

pub use error::{ProbeError, TargetError};
pub use http_get::HttpTarget;
pub use target::Target;

/// As much of a command's output or a server's answer is looked at.
pub(crate) const MAX_OUTPUT_BYTES: usize = 10 << 10;

/// What an attempt showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All is well.
    Success,
    /// Well enough, but somebody should know this.
    Warning(String),
    /// Not well, and why.
    Failure(String),
}

/// Tries once. Cancel safe: dropping it closes its connection.
///
/// # Errors
/// [`ProbeError`] when it could not be tried, which says nothing about the container.
pub async fn attempt(cri: &Cri, target: &Target, timeout: Duration) -> Result<Answer, ProbeError> {
    match target {
        Target::Exec { container, command } => exec::attempt(cri, container, command, timeout).await,
        Target::Http(target) => http_get::attempt(target, timeout).await,
        Target::Tcp { pod, host, port } => Ok(tcp::attempt(pod, host, *port, timeout).await),
        Target::Grpc { host, port, service } => {
            Ok(Box::pin(grpc::attempt(host, *port, service, timeout)).await)
        }
    }
}

/// `10.0.0.1:80`, `[fd00::1]:80`: as Go joins them.
pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
