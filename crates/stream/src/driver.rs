//! Runs a connection: reading and writing at once, until one side closes it.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::mux::{Filled, Item, Mux, Note};
use crate::{Limits, StreamError};

/// How much is read at once, and about how much written.
const CHUNK_BYTES: usize = 32 * 1024;
/// How long the peer of a broken connection is waited for while it is told why.
const FAREWELL_GRACE: Duration = Duration::from_secs(1);

/// Turns what is to be sent into bytes.
pub(crate) trait Encoder {
    fn encode(&mut self, item: Item<'_>, out: &mut Vec<u8>);
}

/// Which end of a connection this is. SPDY servers open streams with even numbers, clients with odd ones; WebSocket clients mask what
/// they send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that was dialled.
    Server,
    /// The one that dialled.
    Client,
}

/// How reading ended.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// The peer is gone, or said that it goes; it may be answered with a last frame.
    Closed(Option<Note>),
    /// It broke the rules and is told so.
    Broken(StreamError, Note),
}

/// Drives a connection to its end. Afterwards, and also when dropped before, all its streams have ended.
pub(crate) async fn drive<W: AsyncWrite + Unpin>(
    mux: Arc<Mux>,
    limits: &Limits,
    keepalive: Option<(Duration, Note)>,
    reader: impl Future<Output = io::Result<ReadEnd>>,
    writer: W,
    encoder: impl Encoder,
    role: Role,
) -> Result<(), StreamError> {
    let _ended = EndOnDrop(Arc::clone(&mux));
    let mut reader = pin!(reader);
    let mut writer = pin!(write(&mux, writer, encoder));
    let mut idle = pin!(idle(&mux, limits.idle));
    let mut pings = pin!(ping(&mux, keepalive));
    // All four are only dropped when the connection is.
    tokio::select! {
        end = &mut reader => {
            mux.end();
            let (farewell, result) = match end {
                Ok(ReadEnd::Closed(farewell)) => (farewell, Ok(())),
                Ok(ReadEnd::Broken(error, farewell)) => (Some(farewell), Err(error)),
                Err(error) => (None, Err(StreamError::Read(error))),
            };
            if farewell.is_some() {
                mux.close(farewell);
                // It is told as a courtesy; nothing follows from its not listening.
                drop(timeout(FAREWELL_GRACE, &mut writer).await);
            }
            result
        }
        result = &mut writer => match result {
            Ok(()) => {
                // Closing a socket with unread bytes would make the kernel throw away what the peer has not read yet.
                drop(timeout(limits.linger, &mut reader).await);
                Ok(())
            }
            Err(error) => {
                // The peer is gone, but what it said before may not have been read yet. A client has to hear its server's
                // last words; a command without a client is not to go on because its input is full.
                let patience = match role {
                    Role::Client => limits.idle.unwrap_or(Duration::MAX),
                    Role::Server => FAREWELL_GRACE,
                };
                drop(timeout(patience, &mut reader).await);
                Err(StreamError::Write(error))
            }
        },
        () = &mut idle => Err(StreamError::Idle),
        () = &mut pings => Ok(()),
    }
}

/// Whoever waits for a stream of a connection that nobody drives any more would wait for ever.
struct EndOnDrop(Arc<Mux>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn write<W: AsyncWrite + Unpin>(mux: &Mux, mut io: W, mut encoder: impl Encoder) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        let filled = mux.fill(&mut |item| {
            encoder.encode(item, &mut out);
            out.len() < CHUNK_BYTES
        });
        match filled {
            Filled::Some => {}
            Filled::Nothing => {
                // Idle connections are many, and hold no buffer.
                out = Vec::new();
                mux.work().await;
                continue;
            }
            Filled::Done => {
                if let Some(farewell) = mux.farewell() {
                    encoder.encode(Item::Note(farewell), &mut out);
                }
                io.write_all(&out).await?;
                return io.shutdown().await;
            }
        }
        io.write_all(&out).await?;
        io.flush().await?;
        out.clear();
    }
}

async fn idle(mux: &Mux, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let end = mux.last_activity() + limit;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

async fn ping(mux: &Mux, keepalive: Option<(Duration, Note)>) {
    let Some((period, note)) = keepalive else { return std::future::pending().await };
    loop {
        tokio::time::sleep(period).await;
        mux.send(note.clone()).await;
    }
}

/// The bytes that have been read and not been used.
#[derive(Debug)]
pub(crate) struct Source<R> {
    io: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Source<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::new() }
    }

    /// Reads until at least `length` bytes are there. False if the peer ended before the first of them.
    pub(crate) async fn need(&mut self, length: usize) -> io::Result<bool> {
        while self.buffer.len() < length {
            if self.read().await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(false),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
        Ok(true)
    }

    /// The next bytes, at least one and at most `limit`, which the caller may change; they are used up with [`Source::used`].
    pub(crate) async fn some(&mut self, limit: usize) -> io::Result<&mut [u8]> {
        if self.buffer.is_empty() && self.read().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = self.buffer.len().min(limit);
        Ok(&mut self.buffer[..length])
    }

    /// The bytes that are there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Gives up so many of them.
    pub(crate) fn used(&mut self, length: usize) {
        self.buffer.advance(length);
    }

    async fn read(&mut self) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.clear();
        }
        self.buffer.reserve(CHUNK_BYTES.saturating_sub(self.buffer.len()).max(1024));
        self.io.read_buf(&mut self.buffer).await
    }
}
