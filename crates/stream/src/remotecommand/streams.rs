//! What a command reads and writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::Stream;

/// The longest JSON text of one size, and what is kept of them unread.
const MAX_SIZE_BYTES: usize = 4096;

/// A stream that is only read.
#[derive(Debug)]
pub struct Input {
    stream: Stream,
    cancelled_is_ended: bool,
}

impl Input {
    /// From a client: input that was cancelled has not ended.
    pub(super) fn from_client(stream: Stream) -> Self {
        Self { stream, cancelled_is_ended: false }
    }

    /// From a server. Upstream's end all streams by cancelling them, after everything they had to say.
    pub(super) fn from_server(stream: Stream) -> Self {
        Self { stream, cancelled_is_ended: true }
    }
}

/// A stream that is only written. Dropping it sends what was written and ends it.
#[derive(Debug)]
pub struct Output(pub(super) Stream);

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Err(error))
                if self.cancelled_is_ended && error.kind() == io::ErrorKind::ConnectionReset =>
            {
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

impl AsyncWrite for Output {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.0.finish_sending();
    }
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

/// The sizes of the client's terminal as they change.
#[derive(Debug)]
pub struct ResizeEvents {
    stream: Input,
    buffer: Vec<u8>,
}

impl ResizeEvents {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream: Input::from_client(stream), buffer: Vec::new() }
    }

    /// The next size; none when there will be no more, also after something that is no size. Cancel safe.
    pub async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            match first_size(&self.buffer) {
                Found::Size(size, used) => {
                    self.buffer.drain(..used);
                    return Some(size);
                }
                Found::Wrong => return None,
                Found::Part if self.buffer.len() >= MAX_SIZE_BYTES => return None,
                Found::Part => {}
            }
            let room = MAX_SIZE_BYTES - self.buffer.len();
            match (&mut self.stream).take(room as u64).read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

enum Found {
    Size(TerminalSize, usize),
    Part,
    Wrong,
}

fn first_size(bytes: &[u8]) -> Found {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    match values.next() {
        None => Found::Part,
        Some(Err(error)) if error.is_eof() => Found::Part,
        Some(Err(_)) => Found::Wrong,
        Some(Ok(Value::Object(fields))) => {
            // Go's decoder does not mind the case of names, and clients in other languages rely on that.
            let field = |name: &str| match fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)) {
                None => Some(0),
                Some((_, value)) => value.as_u64().and_then(|number| u16::try_from(number).ok()),
            };
            match (field("width"), field("height")) {
                (Some(width), Some(height)) => {
                    Found::Size(TerminalSize { width, height }, values.byte_offset())
                }
                _ => Found::Wrong,
            }
        }
        Some(Ok(_)) => Found::Wrong,
    }
}

/// Tells the other end the size of our terminal.
#[derive(Debug)]
pub struct ResizeSender(pub(super) Output);

impl ResizeSender {
    /// Sends a size.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub async fn send(&mut self, size: TerminalSize) -> io::Result<()> {
        let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.width, size.height);
        self.0.write_all(text.as_bytes()).await
    }
}
