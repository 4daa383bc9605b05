//! Why there is no answer.

use std::io;
use std::time::Duration;

use http::StatusCode;

/// Why a request got no (whole) answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL cannot be requested.
    #[error("{url:?} is not a URL that can be requested: {reason}")]
    InvalidUrl {
        /// The text.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A header has a name or a value that HTTP does not allow.
    #[error("the header {name:?} for {url} has a name or value that HTTP does not allow")]
    InvalidHeader {
        /// The URL.
        url: String,
        /// The header's name.
        name: String,
    },
    /// The host name has no address.
    #[error("cannot resolve {host:?}; does the node's DNS know it?")]
    Resolve {
        /// The host name.
        host: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// No connection to any address of the host.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: String,
        /// What the system said; part of the text because it is all that tells one failure from another.
        source: io::Error,
    },
    /// TLS failed, a certificate that is not trusted for example.
    #[error("cannot agree on TLS with {url}: {source}")]
    Tls {
        /// The URL.
        url: String,
        /// What TLS said; part of the text, as above.
        source: io::Error,
    },
    /// The server speaks plain HTTP where https was asked for.
    #[error("cannot agree on TLS with {url}: server gave HTTP response to HTTPS client")]
    PlainHttpOnTls {
        /// The URL.
        url: String,
    },
    /// The answer is not HTTP, or the connection broke within it.
    #[error("no valid HTTP answer from {url}: {source}")]
    Protocol {
        /// The URL.
        url: String,
        /// What is wrong; part of the text, as above.
        source: hyper::Error,
    },
    /// The answer's body is longer than allowed. The server did answer, with this status.
    #[error("the answer of {url} is longer than {limit} bytes")]
    TooLarge {
        /// The URL.
        url: String,
        /// The status.
        status: StatusCode,
        /// The most bytes allowed.
        limit: usize,
    },
    /// It took too long.
    #[error("{url} took longer than {deadline:?}, while {phase}")]
    Timeout {
        /// The URL.
        url: String,
        /// The deadline.
        deadline: Duration,
        /// What was being done when it passed.
        phase: &'static str,
    },
    /// It redirects on and on.
    #[error("{url} was still redirecting after {limit} redirects")]
    TooManyRedirects {
        /// The first URL.
        url: String,
        /// How many were followed.
        limit: usize,
    },
}

impl HttpError {
    /// Whether the server answered an https request in plain HTTP; lifecycle hooks are then tried with http.
    #[must_use]
    pub const fn is_plain_http_on_tls(&self) -> bool {
        matches!(self, Self::PlainHttpOnTls { .. })
    }

    /// Whether the deadline passed.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// The status, if the server answered and only the body was not to be had.
    #[must_use]
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::TooLarge { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether trying again later can help; not so for requests that cannot be sent at all.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::InvalidUrl { .. } | Self::InvalidHeader { .. })
    }
}

/// What a request is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Resolve,
    Connect,
    Tls,
    Answer,
    Body,
}

impl Phase {
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Resolve,
            1 => Self::Connect,
            2 => Self::Tls,
            3 => Self::Answer,
            _ => Self::Body,
        }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Resolve => "resolving the host name",
            Self::Connect => "connecting",
            Self::Tls => "agreeing on TLS",
            Self::Answer => "awaiting headers",
            Self::Body => "reading body",
        }
    }
}
