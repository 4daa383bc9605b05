//! What can go wrong with device plugins.

use std::{io, path::PathBuf, sync::Arc};

use mainstay_alloc::AskError;

use crate::file::KeepError;

/// Why nobody can listen for device plugins.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The directory.
    #[error("cannot make the directory {path} for device plugins; is something else there, and may this user write above it?", path = path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket.
    #[error("cannot listen for device plugins on {path}; may this user write to its directory?", path = path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a pod is not given what it asks for. Upstream's words, where it has some: a pod's message shows them.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// It is not there.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The plugin refused, as gRPC has it.
    #[error("{0}")]
    Refused(String),
    /// The plugin could not say which ones go best together.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(String),
    /// The plugin answered, and said nothing.
    #[error("no containers return in allocation response of the device plugin of {0}")]
    Empty(Arc<str>),
    /// The plugin said too much.
    #[error(
        "the device plugin of {resource} answered with {bytes} bytes for one container; {max} are the most",
        max = crate::plugin::MAX_ANSWER
    )]
    Large {
        /// Of what.
        resource: Arc<str>,
        /// How much.
        bytes: usize,
    },
    /// The pod has gone meanwhile.
    #[error("the pod has gone while its devices were being allocated")]
    Gone,
    /// It cannot be written down, and would be given to another after a restart.
    #[error("cannot keep who holds which devices")]
    File(#[source] KeepError),
}

/// Why a container's devices are not ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The plugin refused.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
    /// The plugin has gone, and wants to be asked before each start.
    #[error(
        "the device plugin of {0} has gone, and has to be asked before the container is started; it is waited for"
    )]
    Away(Arc<str>),
}

/// A status as Go prints it.
pub(crate) fn rpc_error(status: &tonic::Status) -> String {
    // Debug is `NotFound`, which is Go's word as well, but for two.
    let code = match status.code() {
        tonic::Code::Ok => "OK".to_owned(),
        tonic::Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}
