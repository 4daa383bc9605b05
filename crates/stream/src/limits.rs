//! What a connection may cost, and how it can fail.

use std::io;
use std::time::Duration;

use crate::spdy::FrameError;
use crate::ws::WsError;

/// What a connection may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many streams may be open at once. More are refused.
    pub max_streams: usize,
    /// How many bytes a stream buffers in each direction.
    pub stream_bytes: usize,
    /// How many bytes all streams together buffer in each direction (and a frame for each stream that has none yet).
    pub session_bytes: usize,
    /// How long a header block may be when unpacked.
    pub header_bytes: usize,
    /// How long nothing at all may be sent or received.
    pub idle: Option<Duration>,
    /// How often the peer is asked whether it is there.
    pub keepalive: Option<Duration>,
    /// How long a peer may take to open the streams that belong together.
    pub create: Duration,
    /// How long a closed connection waits for the peer to close it as well, so that it reads to the end.
    pub linger: Duration,
}

impl Default for Limits {
    /// For one exec or attach. Upstream's times: 4 h idle, 30 s to create streams.
    fn default() -> Self {
        Self {
            max_streams: 16,
            stream_bytes: 64 * 1024,
            session_bytes: 256 * 1024,
            header_bytes: 16 * 1024,
            idle: Some(Duration::from_secs(4 * 60 * 60)),
            keepalive: None,
            create: Duration::from_secs(30),
            linger: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// For a port-forward, where every forwarded connection is two streams.
    pub fn for_port_forward() -> Self {
        Self { max_streams: 2048, session_bytes: 1024 * 1024, ..Self::default() }
    }
}

/// How a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Reading failed.
    #[error("cannot read from the streaming connection")]
    Read(#[source] io::Error),
    /// Writing failed.
    #[error("cannot write to the streaming connection")]
    Write(#[source] io::Error),
    /// The peer's SPDY is wrong.
    #[error("the peer broke the SPDY protocol")]
    Frame(#[source] FrameError),
    /// The peer's WebSocket frames are wrong.
    #[error("the peer broke the WebSocket protocol")]
    WebSocket(#[source] WsError),
    /// Nothing happened for too long.
    #[error("the streaming connection was idle for too long (streamingConnectionIdleTimeout)")]
    Idle,
    /// A stream could not be opened.
    #[error(
        "the peer did not accept a new stream: it refused, did not answer in 30 s, or the connection has ended"
    )]
    NotOpened,
    /// A port could not be connected to.
    #[error("cannot forward the port: {0}")]
    NotForwarded(String),
    /// The streams that belong together did not all come.
    #[error("timed out waiting for client to create streams")]
    StreamsMissing,
    /// The other end was gone before the work was done.
    #[error("the streaming connection ended before the command or forwarding did")]
    Gone,
}
