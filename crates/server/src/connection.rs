//! Accepting connections, and how long and how large they may be.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    time::{Instant, Sleep},
};

use crate::{
    listen,
    route::{self, App, Face},
};

/// Upstream's `MaxHeaderBytes`.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Room for a header block of the largest size and the line in front of it. The same bound holds for what is written ahead
/// of a slow client.
const MAX_BUFFER_BYTES: usize = MAX_HEADER_BYTES + (64 << 10);
/// Upstream's `IdleTimeout`; also the time that a request's header may take to arrive.
const IDLE: Duration = Duration::from_secs(90);
/// How long requests that were begun may go on after shutdown was signalled.
const FINISH: Duration = Duration::from_secs(5);
/// How long to wait when the system has no descriptor left for another connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);
/// How often the healthz port is tried again, as upstream.
const HEALTHZ_RETRY: Duration = Duration::from_secs(5);

/// What one listener allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once; further ones wait in the backlog.
    connections: usize,
    /// How long a client may take nothing of what it asked for.
    stall: Duration,
}

impl Limits {
    /// Root's own tools; one of them may well be a log in a pager that nobody scrolls for hours (upstream's limit).
    pub(crate) const LOCAL: Self = Self { connections: 512, stall: Duration::from_secs(4 * 60 * 60) };
    /// Anybody who reaches the port.
    pub(crate) const PORT: Self = Self { connections: 256, stall: Duration::from_secs(30) };
    /// Small answers only.
    const HEALTHZ: Self = Self { connections: 64, stall: Duration::from_secs(30) };
}

/// A listener that is not known to the async runtime yet.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(std::os::unix::net::UnixListener),
    Tcp(std::net::TcpListener),
}

enum Accepting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Accepting {
    fn new(listener: Listener) -> io::Result<Self> {
        match listener {
            Listener::Unix(listener) => UnixListener::from_std(listener).map(Self::Unix),
            Listener::Tcp(listener) => TcpListener::from_std(listener).map(Self::Tcp),
        }
    }

    /// Cancel safe.
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Accepted::Tcp(stream)),
        }
    }
}

/// Serves one listener until shutdown.
pub(crate) async fn serve(app: Arc<App>, face: Face, listener: Listener, limits: Limits) {
    let accepting = match Accepting::new(listener) {
        Ok(accepting) => accepting,
        Err(error) => {
            tracing::error!(?face, %error, "the listener cannot be watched by the async runtime");
            return;
        }
    };
    let shutdown = app.shutdown.clone();
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let next = async {
            // The semaphore is never closed.
            let permit = room.clone().acquire_owned().await.ok()?;
            Some((accepting.accept().await, permit))
        };
        // Cancel safe: a permit without a connection is given back, and `accept` takes none out when dropped.
        let Some(Some((accepted, permit))) = shutdown.run_until_signalled(next).await else { return };
        match accepted {
            Ok(stream) => {
                let app = app.clone();
                app.tasks.clone().spawn("http connection", async move {
                    match stream {
                        Accepted::Unix(stream) => handle(app, face, Watched::new(stream, limits.stall)).await,
                        Accepted::Tcp(stream) => {
                            // Answers are written whole; waiting for more to send would only delay them.
                            drop(stream.set_nodelay(true));
                            handle(app, face, Watched::new(stream, limits.stall)).await;
                        }
                    }
                    drop(permit);
                });
            }
            // The client went away between connecting and being accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(?face, %error, "cannot accept a connection; trying again");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

/// Serves the healthz port, which is tried again and again where it cannot be had.
pub(crate) async fn serve_healthz(
    app: Arc<App>,
    address: SocketAddr,
    mut listener: Option<std::net::TcpListener>,
) {
    let shutdown = app.shutdown.clone();
    loop {
        if let Some(listener) = listener.take() {
            return serve(app, Face::Healthz, Listener::Tcp(listener), Limits::HEALTHZ).await;
        }
        if shutdown.run_until_signalled(tokio::time::sleep(HEALTHZ_RETRY)).await.is_none() {
            return;
        }
        match listen::bind_tcp(address) {
            Ok((bound, _)) => {
                tracing::info!(%address, "the healthz port could be had at last");
                listener = Some(bound);
            }
            // It has been told once; the next line about it is the good news.
            Err(error) => tracing::debug!(%address, %error, "the healthz port is still taken"),
        }
    }
}

pub(crate) fn warn_healthz(address: SocketAddr, error: &io::Error) {
    tracing::warn!(
        %address, %error,
        "cannot listen for healthzPort; stop whoever has the port, or choose another (0 for none); trying again every 5 s"
    );
}

async fn handle<S>(app: Arc<App>, face: Face, stream: Watched<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = app.shutdown.clone();
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(route::respond(&app, face, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_header_size(MAX_HEADER_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        // Names in the spelling that Go sends, for those who search headers as text.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // The connection itself is never dropped half-way: after the signal it goes on, with a deadline.
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.signalled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(FINISH, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        // Clients that break off are nobody's concern.
        tracing::debug!(?face, %error, "a connection ended early");
    }
}

/// A stream whose writes fail once the other side has taken nothing for too long.
struct Watched<S> {
    stream: S,
    stall: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    fn new(stream: S, stall: Duration) -> Self {
        Self { stream, stall, deadline: None }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let stall = self.stall;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + stall)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.watch(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.watch(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
