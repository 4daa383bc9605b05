//! What can go wrong with a request, and whether to try again.

use std::time::Duration;

/// A request that did not succeed. Clones are cheap enough to be told to everybody who waited.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApiError {
    /// Nobody answers there.
    #[error("cannot reach the API server {server}: {problem}")]
    Connect {
        /// The URL in the kubeconfig.
        server: String,
        /// What the system said.
        problem: String,
    },
    /// Whoever answers is not trusted, or does not trust us. Names the kubeconfig's field and what to do.
    #[error("no TLS with the API server {server}: {problem}")]
    Tls {
        /// The URL in the kubeconfig.
        server: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// It took too long.
    #[error("the API server {server} did not answer {request} within {deadline:?}")]
    Timeout {
        /// The URL in the kubeconfig.
        server: String,
        /// Method and path.
        request: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// Nothing was sent: too many others wait for their turn.
    #[error(
        "{request} was not sent: so many requests to the API server wait that its turn would come in {wait:?} only; \
         raise kubeAPIQPS if that is ordinary"
    )]
    Busy {
        /// Method and path.
        request: String,
        /// How long it would have waited.
        wait: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the connection to the API server {server} broke during {request}: {problem}")]
    Broken {
        /// The URL in the kubeconfig.
        server: String,
        /// Method and path.
        request: String,
        /// What the protocol said.
        problem: String,
    },
    /// The credentials cannot be had.
    #[error("no credentials for the API server: {0}")]
    Credentials(String),
    /// They can, and are not accepted.
    #[error("the API server {server} does not accept the credentials of {user} for {request}: {hint}")]
    Unauthorized {
        /// The URL in the kubeconfig.
        server: String,
        /// The user in the kubeconfig.
        user: String,
        /// Method and path.
        request: String,
        /// What may be wrong with them.
        hint: String,
    },
    /// The server says no.
    #[error("the API server answered {request} with {status} {reason}: {message}")]
    Status {
        /// Method and path.
        request: String,
        /// The HTTP status.
        status: u16,
        /// The reason of the `Status` object, such as `NotFound`.
        reason: String,
        /// Its message.
        message: String,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The answer is longer than it may be.
    #[error("the API server's answer to {request} has more than {limit} bytes")]
    TooLarge {
        /// Method and path.
        request: String,
        /// The limit.
        limit: usize,
    },
    /// The answer says something else than it should.
    #[error("the API server's answer to {request} cannot be understood: {problem}")]
    Decode {
        /// Method and path.
        request: String,
        /// What the parser said.
        problem: String,
    },
}

impl ApiError {
    /// Whether the same request may well succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Busy { .. } | Self::Broken { .. } => true,
            Self::Status { status, retry_after, .. } => {
                matches!(status, 429 | 500 | 502 | 503 | 504) || retry_after.is_some()
            }
            Self::Tls { .. }
            | Self::Credentials(_)
            | Self::Unauthorized { .. }
            | Self::TooLarge { .. }
            | Self::Decode { .. } => false,
        }
    }

    /// The HTTP status, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Unauthorized { .. } => Some(401),
            _ => None,
        }
    }

    /// How long the server wants to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
