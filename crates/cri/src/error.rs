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
    /// A command in a container wrote more than is read.
    #[error(
        "{call}: the command wrote more than {max_bytes} bytes, so its result was not read; let it write less"
    )]
    TooMuchOutput {
        /// The call.
        call: &'static str,
        /// The most that is read.
        max_bytes: usize,
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
            // One that closes under a call cancels it: nothing took too long.
            Code::Unavailable | Code::Unknown | Code::Cancelled
                if std::error::Error::source(status).is_some() =>
            {
                Self::Unreachable { call, path: path.to_owned() }
            }
            Code::DeadlineExceeded => Self::Timeout { call, after },
            code => Self::Refused { call, code, message: status.message().to_owned() },
        }
    }

    /// Upstream's name of the operation that failed.
    #[must_use]
    pub fn call(&self) -> &'static str {
        match self {
            Self::Unreachable { call, .. }
            | Self::Timeout { call, .. }
            | Self::Refused { call, .. }
            | Self::TooMuchOutput { call, .. } => call,
        }
    }

    /// The runtime does not know the object: for a removal that is as good as done.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: Code::NotFound, .. })
    }

    /// The runtime has too much to do already.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Refused { code: Code::ResourceExhausted, .. })
    }

    /// The runtime does not have this call.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { code: Code::Unimplemented, .. })
    }

    /// Trying again later may help without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            // containerd's word until it has found again what it ran.
            Self::Refused { code, .. } => *code == Code::Unavailable,
            Self::TooMuchOutput { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_closes_under_a_call_has_not_taken_too_long() {
        let of = |status: Status| {
            CriError::from_status("exec_sync", "/run/x.sock".as_ref(), Duration::from_secs(1), &status)
        };
        let broken = |code| {
            let mut status = Status::new(code, "closed");
            status.set_source(std::sync::Arc::new(std::io::Error::other("closed")));
            of(status)
        };
        for code in [Code::Unavailable, Code::Unknown, Code::Cancelled] {
            assert!(matches!(broken(code), CriError::Unreachable { .. }), "{code:?}");
        }
        assert!(matches!(of(Status::cancelled("by the runtime")), CriError::Refused { .. }));
        assert!(matches!(of(Status::deadline_exceeded("late")), CriError::Timeout { .. }));
        let early = of(Status::unavailable("server is not initialized yet"));
        assert!(early.is_transient() && !early.is_unimplemented());
        assert!(!of(Status::not_found("no")).is_transient());
    }
}
