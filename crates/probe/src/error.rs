//! Why a probe could not be tried.

use std::io;

use mainstay_cri::CriError;
use mainstay_http::HttpError;

/// An attempt that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The runtime would not run the command.
    #[error(transparent)]
    Runtime(#[from] CriError),
    /// The request cannot be made.
    #[error(transparent)]
    Request(#[from] HttpError),
}

/// A probe that cannot be tried as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The pod has no address yet.
    #[error("the pod has no IP address to be asked at")]
    NoAddress,
    /// A port by a name that the container does not have.
    #[error("couldn't find port: {0:?}; name it in the container's ports")]
    UnknownPort(String),
    /// A port that is none.
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    /// `$(VAR)` makes too much of a word of the command.
    #[error(
        "a word of the command becomes longer than {0} bytes when $(VAR) is replaced; refer to shorter variables"
    )]
    TooLong(usize),
    /// No handler.
    #[error("missing probe handler; give exec, httpGet, tcpSocket or grpc")]
    NoHandler,
}

/// The system's words for an error, as Go prints them: lower case, without the number.
pub(crate) fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
