//! Which data stream belongs to which error stream.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE};
use crate::Stream;
use crate::spdy::Headers;

/// What a new stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) port: u16,
    pub(super) is_data: bool,
    /// Which pair it belongs to. Clients before 1.2 sent none; then the data stream follows its error stream.
    pub(super) request: String,
}

impl Announced {
    /// None if the stream is to be refused.
    pub(super) fn read(headers: &Headers, stream: u32) -> Option<Self> {
        let port = parse_port(headers.get(PORT)?)?;
        let is_data = match headers.get(STREAM_TYPE)? {
            DATA => true,
            ERROR => false,
            _ => return None,
        };
        let request = match headers.get(REQUEST_ID).filter(|id| !id.is_empty()) {
            Some(id) => id.to_owned(),
            None if is_data => stream.checked_sub(2)?.to_string(),
            None => stream.to_string(),
        };
        Some(Self { port, is_data, request })
    }
}

/// A port as Go's `ParseUint(text, 10, 16)` takes it, and not 0.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// A pair that is whole.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) port: u16,
    pub(super) data: Stream,
    pub(super) error: Stream,
}

/// The streams that wait for their other half.
#[derive(Debug)]
pub(super) struct Pairs {
    patience: Duration,
    waiting: HashMap<String, Half>,
}

#[derive(Debug)]
struct Half {
    port: u16,
    is_data: bool,
    stream: Stream,
    deadline: Instant,
}

/// What came of a new stream.
#[derive(Debug)]
pub(super) enum Added {
    Whole(Pair),
    Waiting,
    /// There is such a stream already; it ends as well, and is told why if it is the one for errors.
    Twice(Option<Stream>),
}

impl Pairs {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, waiting: HashMap::new() }
    }

    pub(super) fn add(&mut self, announced: Announced, stream: Stream, now: Instant) -> Added {
        let Announced { port, is_data, request } = announced;
        match self.waiting.remove(&request) {
            None => {
                let deadline = now + self.patience;
                self.waiting.insert(request, Half { port, is_data, stream, deadline });
                Added::Waiting
            }
            Some(half) if half.is_data == is_data => Added::Twice((!is_data).then_some(half.stream)),
            Some(half) if is_data => Added::Whole(Pair { port, data: stream, error: half.stream }),
            Some(half) => Added::Whole(Pair { port: half.port, data: half.stream, error: stream }),
        }
    }

    /// When the next stream has waited long enough. There are seldom more than one or two.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|half| half.deadline).min()
    }

    /// Takes out a stream that has waited long enough: its request, and itself if it is one for errors.
    pub(super) fn expire(&mut self, now: Instant) -> Option<(String, Option<Stream>)> {
        let (request, _) = self.waiting.iter().find(|(_, half)| half.deadline <= now)?;
        let (request, half) = self.waiting.remove_entry(&request.clone())?;
        Some((request, (!half.is_data).then_some(half.stream)))
    }
}
