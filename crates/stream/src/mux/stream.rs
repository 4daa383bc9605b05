//! The handle of one stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{CREDIT_BYTES, Mux, Note, ReceiveEnd, SendEnd};
use crate::spdy::{Control, Headers, ResetStatus};

/// One byte stream of a connection.
///
/// Written bytes go out by themselves; flushing waits for nothing. Shutting down ends this side's direction only. Dropping
/// the handle sends what was written and then, unless both directions have ended, tells the peer that the stream is cancelled.
/// Reading and writing are cancel safe. When the connection ends, reads give what has arrived and then fail, writes fail.
#[derive(Debug)]
pub struct Stream {
    mux: Arc<Mux>,
    id: u32,
}

impl Stream {
    pub(super) fn new(mux: &Arc<Mux>, id: u32) -> Self {
        Self { mux: Arc::clone(mux), id }
    }

    /// The stream's number on its connection.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the peer has accepted the stream; false if it was refused or the connection ended.
    pub(crate) async fn replied(&self) -> bool {
        std::future::poll_fn(|cx| {
            let mut state = self.mux.lock();
            let ended = state.ended;
            match state.streams.get_mut(&self.id) {
                None => Poll::Ready(false),
                // What came after the acceptance is for the reader of the stream to find.
                Some(stream) if stream.replied => Poll::Ready(true),
                Some(stream) if stream.cancelled || ended => Poll::Ready(false),
                Some(stream) => {
                    keep_waker(&mut stream.reader, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Tells the peer that its stream is accepted. A stream of the peer that is dropped before is refused.
    pub(crate) fn accept(&self) {
        let reply = Control::SynReply { stream: self.id, fin: false, headers: Headers::default() };
        let mut state = self.mux.lock();
        if let Some(stream) = state.streams.get_mut(&self.id) {
            stream.unanswered = false;
            state.notes.push_back(Note::Spdy(reply));
            self.mux.outgoing.notify_one();
        }
    }

    fn poll_read_inner(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.mux.lock();
        let state = &mut *state;
        let Some(stream) = state.streams.get_mut(&self.id) else { return Poll::Ready(Ok(())) };
        if stream.received.is_empty() {
            return match stream.receive_end {
                ReceiveEnd::Finished => Poll::Ready(Ok(())),
                ReceiveEnd::Reset => Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the other end cancelled the stream",
                ))),
                ReceiveEnd::Open if state.ended => Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the connection ended before the stream did",
                ))),
                ReceiveEnd::Open => {
                    keep_waker(&mut stream.reader, cx);
                    Poll::Pending
                }
            };
        }
        let length = stream.received.len().min(buf.remaining());
        buf.put_slice(&stream.received[..length]);
        stream.received.advance(length);
        if stream.received.is_empty() {
            stream.received = BytesMut::new();
        }
        stream.credit += length;
        if stream.credit >= CREDIT_BYTES && stream.credit - length < CREDIT_BYTES {
            state.credits.push_back(self.id);
            self.mux.outgoing.notify_one();
        }
        state.received_bytes = state.received_bytes.saturating_sub(length);
        state.give_session_credit(length);
        if state.reader_waits {
            state.reader_waits = false;
            self.mux.space.notify_one();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_inner(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.mux.lock();
        let state = &mut *state;
        let gone = || Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe)));
        if state.ended || state.closing {
            return gone();
        }
        let Some(stream) = state.streams.get_mut(&self.id) else { return gone() };
        if stream.cancelled || stream.send_end != SendEnd::Open {
            return gone();
        }
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = state.stream_bytes.saturating_sub(stream.unsent.len());
        let starved = state.unsent_bytes >= state.session_bytes && !stream.unsent.is_empty();
        if room == 0 || starved {
            keep_waker(&mut stream.writer, cx);
            if starved && !state.starved.contains(&self.id) {
                state.starved.push(self.id);
            }
            return Poll::Pending;
        }
        let length = room.min(data.len());
        stream.unsent.extend_from_slice(&data[..length]);
        state.unsent_bytes += length;
        state.queue(self.id);
        self.mux.outgoing.notify_one();
        Poll::Ready(Ok(length))
    }

    /// Ends this direction after what was written.
    pub(crate) fn finish_sending(&self) {
        let mut state = self.mux.lock();
        if let Some(stream) = state.streams.get_mut(&self.id)
            && stream.send_end == SendEnd::Open
        {
            stream.send_end = SendEnd::Asked;
            state.queue(self.id);
            self.mux.outgoing.notify_one();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_inner(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_inner(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish_sending();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.mux.lock();
        let state = &mut *state;
        let Some(stream) = state.streams.get_mut(&self.id) else { return };
        stream.held = false;
        let stream_refused = stream.unanswered;
        stream.reader = None;
        stream.writer = None;
        let unread = std::mem::take(&mut stream.received).len();
        state.received_bytes = state.received_bytes.saturating_sub(unread);
        state.give_session_credit(unread);
        if state.ended {
            state.forget(self.id);
        } else if stream_refused {
            let reset = Control::RstStream { stream: self.id, status: ResetStatus::REFUSED_STREAM };
            state.notes.push_back(Note::Spdy(reset));
            state.forget(self.id);
        } else {
            state.queue(self.id);
        }
        if state.reader_waits {
            state.reader_waits = false;
            self.mux.space.notify_one();
        }
        self.mux.outgoing.notify_one();
    }
}

fn keep_waker(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}
