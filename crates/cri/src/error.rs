//! What can go wrong with a call.

use std::{path::PathBuf, time::Duration};

use tonic::{Code, Status};

/// A runtime endpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Another scheme.
    #[error("containerRuntimeEndpoint {0:?} is not a unix socket; write unix:///path/to/socket")]
    NotUnix(String),
    /// A relative path.
    #[error("containerRuntimeEndpoint {0:?} has no absolute path; write unix:///path/to/socket")]
    NotAbsolute(String),
}

/// A failed call to the runtime.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CriError {
    /// Nobody answers on the socket.
    #[error(
        "{call}: cannot reach the CRI socket {}; is the runtime running, and is containerRuntimeEndpoint right?",
        path.display()
    )]
    Unreachable {
        /// The call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
    },
    /// No answer within the deadline.
    #[error("{call}: no answer from the runtime within {}", mainstay_types::format_go_duration(*after))]
    Timeout {
        /// The call.
        call: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The runtime said no.
    #[error("rpc error: code = {code:?} desc = {message}")]
    Refused {
        /// The call.
        call: &'static str,
        /// gRPC's code.
        code: Code,
        /// The runtime's words.
        message: String,
    },
}

impl CriError {
    pub(crate) fn from_status(
        call: &'static str,
        path: &std::path::Path,
        after: Duration,
        status: &Status,
    ) -> Self {
        match status.code() {
            // A broken or refused connection has the transport's error behind it; the runtime's own Unavailable does not.
            Code::Unavailable | Code::Unknown if std::error::Error::source(status).is_some() => {
                Self::Unreachable { call, path: path.to_owned() }
            }
            Code::DeadlineExceeded | Code::Cancelled => Self::Timeout { call, after },
            code => Self::Refused { call, code, message: status.message().to_owned() },
        }
    }

    /// Upstream's name of the operation that failed.
    #[must_use]
    pub fn call(&self) -> &'static str {
        match self {
            Self::Unreachable { call, .. } | Self::Timeout { call, .. } | Self::Refused { call, .. } => call,
        }
    }

    /// The runtime does not know the object: for a removal that is as good as done.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: Code::NotFound, .. })
    }

    /// The runtime does not have this call.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { code: Code::Unimplemented, .. })
    }

    /// Trying again later may help without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}
