//! What can go wrong, told so that the reader knows what to do.

use std::{error::Error, io, path::PathBuf};

use http::StatusCode;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("no mainstay answers at {path}; is it running? (mainstay run, or systemctl status mainstay)", path = path.display())]
    NobodyAnswers { path: PathBuf },
    #[error("may not open {path}; run as root", path = path.display())]
    NotPermitted { path: PathBuf },
    #[error("cannot connect to {path}", path = path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("mainstay did not answer {request} within {seconds} s; look at its log, and at `mainstay node`")]
    Silent { request: String, seconds: u64 },
    #[error("the answer to {request} broke off; has mainstay been stopped?")]
    BrokeOff { request: String, source: hyper::Error },
    #[error("mainstay has ended")]
    WatchEnded,
    #[error("{text}")]
    Refused { status: StatusCode, text: String },
    #[error(
        "the answer to {request} cannot be understood; are mainstay and this command of the same version?"
    )]
    Unreadable { request: String, source: serde_json::Error },
    #[error("cannot make a request for {request}")]
    Request { request: String, source: http::Error },
    #[error("there is no pod {name}{hint}")]
    NoSuchPod { name: String, hint: String },
    #[error("{name} may be any of {choices}; name one of these")]
    Ambiguous { name: String, choices: String },
    #[error("pod {pod} was not let in ({reason}), so that nothing of it runs: {message}")]
    Rejected { pod: String, reason: String, message: String },
    #[error("pod {pod} has no container")]
    NoContainer { pod: String },
    #[error("pod {pod} has no container {name:?}; it has: {choices}")]
    NoSuchContainer { pod: String, name: String, choices: String },
    #[error(
        "the label selector {selector:?} is not understood: {why}; write it as app=web,tier in (a,b),!canary"
    )]
    Selector { selector: String, why: String },
    #[error(
        "pod {pod} has no container that was measured; `mainstay describe pod {pod}` says whether one runs, and a new one is measured within seconds"
    )]
    NotMeasured { pod: String },
    #[error("--path {path:?} is no endpoint of metrics; write one of {choices}")]
    NoMetrics { path: String, choices: String },
    #[error("--since must be more than nothing; write a duration such as 5m")]
    Since,
    #[error("cannot print this as YAML")]
    Yaml { source: serde_yaml_ng::Error },
    #[error("cannot write the output")]
    Output { source: io::Error },
    #[error("--server {url:?} is not understood; write https://HOST:PORT")]
    ServerUrl { url: String },
    #[error("a token is not sent over plain http, where everybody can read it; use an https:// --server")]
    TokenInTheClear,
    #[error(
        "cannot connect to {url}; is that the secure port of a mainstay, and does --certificate-authority know it?"
    )]
    Server { url: String, source: io::Error },
    #[error("cannot set up TLS: {reason}")]
    Tls { reason: String },
    #[error("cannot read {path}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{path} cannot be used: {reason}", path = path.display())]
    Pem { path: PathBuf, reason: String },
    #[error("the terminal cannot be made raw")]
    Terminal { source: io::Error },
    #[error("{message}")]
    Command { message: String },
    #[error("the connection failed")]
    Stream { source: mainstay_stream::StreamError },
    #[error("the connection ended before the command did; has mainstay been stopped?")]
    StreamEnded { source: io::Error },
    #[error("lost connection to pod")]
    ForwardingEnded,
    #[error("cannot listen on {address}; choose another local port, as in :80 for any")]
    Listen { address: std::net::SocketAddr, source: io::Error },
    #[error("the ports {text:?} are not understood; write LOCAL:REMOTE, PORT or :REMOTE")]
    Ports { text: String },
    #[error("the address {text:?} is not understood; write an IP address or localhost")]
    Address { text: String },
    #[error("cannot start an async runtime")]
    Runtime { source: io::Error },
}

impl ClientError {
    /// Whether the reader of our output simply had enough.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output { source } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether mainstay went away or is not ready yet, so that it may soon answer again.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::NobodyAnswers { .. }
            | Self::Connect { .. }
            | Self::Server { .. }
            | Self::Silent { .. }
            | Self::BrokeOff { .. }
            | Self::WatchEnded => true,
            Self::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            _ => false,
        }
    }

    /// The process's exit code, as documented in the crate.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NobodyAnswers { .. }
            | Self::NotPermitted { .. }
            | Self::Connect { .. }
            | Self::Server { .. } => 3,
            Self::Selector { .. }
            | Self::Since
            | Self::NoMetrics { .. }
            | Self::ServerUrl { .. }
            | Self::TokenInTheClear
            | Self::Ports { .. }
            | Self::Address { .. } => 2,
            _ => 1,
        }
    }

    /// The message and its causes in one line.
    pub(crate) fn whole_chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
