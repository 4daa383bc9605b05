//! The client's connection once HTTP is over on it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use hyper::upgrade::{Parts, Upgraded};
use hyper_util::rt::TokioIo;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::sockopt,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::connection::Watched;

/// How long a client may take nothing of a session before it is let go. Somebody who reads the output of a command in a pager may well
/// take hours over it; the session's idle limit comes first, where there is one.
const STALL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a silent network is trusted, and how often it is then asked (Go's own choice for connections of its servers).
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The bytes of an upgraded connection.
pub(super) struct ClientIo {
    /// What was read together with the request.
    first: Bytes,
    io: Transport,
}

enum Transport {
    Tls(Box<TlsStream<Watched<TcpStream>>>),
    Tcp(Watched<TcpStream>),
    Unix(Watched<UnixStream>),
    Unknown(TokioIo<Upgraded>),
}

impl ClientIo {
    /// Takes the connection out of hyper's hands.
    pub(super) fn new(upgraded: Upgraded) -> Self {
        let (first, mut io) = match taken::<TlsStream<Watched<TcpStream>>>(upgraded) {
            Ok((first, io)) => (first, Transport::Tls(Box::new(io))),
            Err(upgraded) => match taken::<Watched<UnixStream>>(upgraded) {
                Ok((first, io)) => (first, Transport::Unix(io)),
                Err(upgraded) => match taken::<Watched<TcpStream>>(upgraded) {
                    Ok((first, io)) => (first, Transport::Tcp(io)),
                    Err(upgraded) => (Bytes::new(), Transport::Unknown(TokioIo::new(upgraded))),
                },
            },
        };
        match &mut io {
            Transport::Tls(io) => io.get_mut().0.set_stall(STALL),
            Transport::Tcp(io) => io.set_stall(STALL),
            Transport::Unix(io) => io.set_stall(STALL),
            Transport::Unknown(_) => {}
        }
        let client = Self { first, io };
        if let Some(socket) = client.socket() {
            keep_alive(socket);
        }
        client
    }

    /// Whether the client is known to be gone, seen without reading, so also behind bytes that nobody takes.
    pub(super) fn is_gone(&self) -> bool {
        let Some(socket) = self.socket() else { return false };
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        let ready = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        ready.is_ok_and(|count| count > 0)
            && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.io {
            Transport::Tls(io) => Some(io.get_ref().0.get_ref().as_fd()),
            Transport::Tcp(io) => Some(io.get_ref().as_fd()),
            Transport::Unix(io) => Some(io.get_ref().as_fd()),
            Transport::Unknown(_) => None,
        }
    }
}

fn taken<T>(upgraded: Upgraded) -> Result<(Bytes, T), Upgraded>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Parts { io, read_buf, .. } = upgraded.downcast::<TokioIo<T>>()?;
    Ok((read_buf, io.into_inner()))
}

/// Without it nobody would notice that the client's machine is gone while neither side sends. A socket that refuses it works too.
fn keep_alive(socket: BorrowedFd<'_>) {
    if sockopt::set_socket_keepalive(socket, true).is_ok() {
        sockopt::set_tcp_keepidle(socket, KEEPALIVE).ok();
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE).ok();
    }
}

#[cfg(test)]
impl ClientIo {
    /// A connection over a unix socket, with what came along with the request.
    pub(super) fn of_socket(socket: UnixStream, first: &'static [u8]) -> Self {
        Self { first: Bytes::from_static(first), io: Transport::Unix(Watched::new(socket, STALL)) }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let length = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first[..length]);
            this.first.advance(length);
            return Poll::Ready(Ok(()));
        }
        match &mut this.io {
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
            Transport::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Unix(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Unknown(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_write(cx, bytes),
            Transport::Tcp(io) => Pin::new(io).poll_write(cx, bytes),
            Transport::Unix(io) => Pin::new(io).poll_write(cx, bytes),
            Transport::Unknown(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_flush(cx),
            Transport::Tcp(io) => Pin::new(io).poll_flush(cx),
            Transport::Unix(io) => Pin::new(io).poll_flush(cx),
            Transport::Unknown(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
            Transport::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Unix(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Unknown(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
