//! exec and attach: the standard streams of a command, the sizes of its terminal, and how it ended.
//!
//! [`serve`] is the end that has the command, [`call`] the end that wants it run. Which of the protocols the two speak makes
//! no difference to what is handed to either.
//!
//! Sources: `k8s.io/cri-streaming/pkg/streaming/remotecommand` and `k8s.io/client-go/tools/remotecommand` v0.37.

mod client;
mod outcome;
mod server;
mod streams;

pub use client::{RemoteCommand, call};
pub use outcome::{Outcome, OutcomeReader};
pub use server::{CommandStreams, serve};
pub use streams::{Input, Output, ResizeEvents, ResizeSender, TerminalSize};

use crate::Stream;
use crate::ws::Codec;

/// The version of the protocol, which decides how the end is told and whether terminals can be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// `channel.k8s.io`.
    V1,
    /// `v2.channel.k8s.io`: v1 with its bugs mended.
    V2,
    /// `v3.channel.k8s.io`: terminals can be resized.
    V3,
    /// `v4.channel.k8s.io`: the end is told as a `Status` in JSON.
    V4,
    /// `v5.channel.k8s.io`: single channels of a WebSocket can be closed.
    V5,
}

impl Version {
    fn tells_status(self) -> bool {
        self >= Self::V4
    }

    fn resizes(self) -> bool {
        self >= Self::V3
    }
}

/// What the two ends have agreed to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SPDY/3.1, a stream for each purpose (v1 to v4).
    Spdy(Version),
    /// WebSocket, a channel for each purpose (v1, v4, v5).
    WebSocket(Version, Codec),
}

/// Which streams the client asked for. The one that tells the end is always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The client sends input.
    pub stdin: bool,
    /// The client takes output.
    pub stdout: bool,
    /// The client takes error output; with a terminal there is none of its own.
    pub stderr: bool,
    /// The command runs in a terminal.
    pub tty: bool,
}

/// What a stream is for; the value of its `streamType` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Stdin,
    Stdout,
    Stderr,
    Error,
    Resize,
}

impl Purpose {
    /// In the order of their WebSocket channels.
    const ALL: [Self; 5] = [Self::Stdin, Self::Stdout, Self::Stderr, Self::Error, Self::Resize];

    fn name(self) -> &'static str {
        match self {
            Self::Stdin => "stdin",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Error => "error",
            Self::Resize => "resize",
        }
    }

    fn is_wanted(self, wanted: Wanted, version: Version) -> bool {
        match self {
            Self::Stdin => wanted.stdin,
            Self::Stdout => wanted.stdout,
            Self::Stderr => wanted.stderr && !wanted.tty,
            Self::Error => true,
            Self::Resize => wanted.tty && version.resizes(),
        }
    }
}

/// The streams of a connection by what they are for.
#[derive(Debug, Default)]
struct ByPurpose {
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    error: Option<Stream>,
    resize: Option<Stream>,
}

impl ByPurpose {
    fn put(&mut self, purpose: Purpose, stream: Stream) {
        let place = match purpose {
            Purpose::Stdin => &mut self.stdin,
            Purpose::Stdout => &mut self.stdout,
            Purpose::Stderr => &mut self.stderr,
            Purpose::Error => &mut self.error,
            Purpose::Resize => &mut self.resize,
        };
        *place = Some(stream);
    }
}

/// The header that says what a stream is for.
const STREAM_TYPE: &str = "streamtype";

/// The channels of a WebSocket connection.
fn channels(version: Version, codec: Codec) -> crate::ws::Channels {
    crate::ws::Channels { count: 5, codec, close_signal: version == Version::V5 }
}

#[cfg(test)]
mod tests;
