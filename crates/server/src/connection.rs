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

use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_task::TaskGroup;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    time::{Instant, Sleep},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    door::{Door, Place, Places},
    listen,
    route::{self, App},
    table::Face,
    tls::Tls,
};

/// Upstream's `MaxHeaderBytes`.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Room for a header block of the largest size and the line in front of it. The same bound holds for what is written ahead
/// of a slow client.
const MAX_BUFFER_BYTES: usize = MAX_HEADER_BYTES + (64 << 10);
/// With HTTP/2 many requests come on one connection, so each has less; what needs long headers (exec) does not come this way.
const MAX_HEADER_LIST: u32 = 64 << 10;
/// Upstream's `IdleTimeout`; also the time that a request's header may take to arrive.
const IDLE: Duration = Duration::from_secs(90);
/// How long requests that were begun may go on after shutdown was signalled.
const FINISH: Duration = Duration::from_secs(5);
/// How long to wait when the system has no descriptor left for another connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);
/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
/// What Go's server says to those who speak plain HTTP to a TLS port.
const NOT_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// Requests that one HTTP/2 connection may have open, as Go's server allows.
const MAX_STREAMS: u32 = 250;
/// What of its answer one of them may have in our memory while the client takes nothing.
const MAX_STREAM_BYTES: usize = 32 << 10;
/// How long one of them may take in all, as upstream's write timeout has it. A client that answers pings and takes nothing would
/// keep its answers here for ever.
const STREAM_LIFE: Duration = Duration::from_secs(4 * 60 * 60);
/// How often the healthz port is tried again, as upstream.
const HEALTHZ_RETRY: Duration = Duration::from_secs(5);

/// How long somebody may take nothing who is known: a log in a pager that nobody scrolls for hours. Upstream's limit.
const KNOWN_STALL: Duration = Duration::from_secs(4 * 60 * 60);

/// What one listener allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once.
    places: Places,
    /// How long a client may take nothing of what it asked for, while nobody knows who it is.
    stall: Duration,
}

impl Limits {
    /// Root's own tools.
    pub(crate) const LOCAL: Self = Self { places: Places { all: 1280, kept: 1280 }, stall: KNOWN_STALL };
    /// Anybody who reaches the port; most are agents that keep a connection, and logs are followed through it. Some
    /// places are for those who have yet to show who they are.
    pub(crate) const SECURE: Self =
        Self { places: Places { all: 1536, kept: 1280 }, stall: Duration::from_secs(60) };
    /// Anybody who reaches the port.
    pub(crate) const PORT: Self =
        Self { places: Places { all: 1280, kept: 0 }, stall: Duration::from_secs(30) };
    /// Small answers only.
    const HEALTHZ: Self = Self { places: Places { all: 64, kept: 0 }, stall: Duration::from_secs(30) };
}

/// A listener that is not known to the async runtime yet.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(std::os::unix::net::UnixListener),
    Tcp(std::net::TcpListener),
}

/// Who is at the other end, as far as the connection tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The certificates that were shown, the client's own first. Not judged yet.
    pub(crate) chain: Arc<[CertificateDer<'static>]>,
    /// Where it is, if it came over the network.
    pub(crate) address: Option<SocketAddr>,
    /// The user and process at the other end of the unix socket, as the kernel says.
    pub(crate) process: Option<(u32, Option<i32>)>,
    /// The connection's place among the counted ones: freed when the last copy goes.
    pub(crate) place: Option<Arc<Place>>,
}

enum Accepting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Accepted {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(stream) => stream.peer_addr().ok(),
        }
    }

    fn process(&self) -> Option<(u32, Option<i32>)> {
        match self {
            Self::Unix(stream) => stream.peer_cred().ok().map(|peer| (peer.uid(), peer.pid())),
            Self::Tcp(_) => None,
        }
    }
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
    let door = Door::new(limits.places);
    loop {
        // Cancel safe: `accept` takes no connection out when dropped.
        let Some(accepted) = shutdown.run_until_signalled(accepting.accept()).await else { return };
        match accepted {
            Ok(stream) => {
                let address = stream.address();
                let from = address.map(|address| address.ip().to_canonical());
                // Where all places are kept it waits for one, and those behind it wait in the backlog.
                let Some(place) = shutdown.run_until_signalled(door.enter(from)).await else { return };
                if face == Face::Local {
                    // Root, and nobody else.
                    place.keep();
                }
                let place = Arc::new(place);
                let process = stream.process();
                let peer = Peer { place: Some(Arc::clone(&place)), address, process, ..Peer::default() };
                let work = connection(app.clone(), face, peer, stream, limits);
                app.tasks.spawn("http connection", async move {
                    // Dropped half-way only where nobody has been let in.
                    tokio::select! {
                        () = work => {}
                        () = place.leave() => {}
                    }
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

/// What serves a connection, each kind in a box of its own size: thousands of plain ones do not keep room for TLS, nor do
/// the layers above each keep room for what is in here.
fn connection(
    app: Arc<App>,
    face: Face,
    peer: Peer,
    stream: Accepted,
    limits: Limits,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let place = peer.place.clone();
    match stream {
        Accepted::Unix(stream) => {
            Box::pin(handle(app, face, peer, Watched::new(stream, limits.stall).counted(place)))
        }
        Accepted::Tcp(stream) => {
            // Answers are written whole; waiting for more to send would only delay them.
            drop(stream.set_nodelay(true));
            match app.tls.clone().filter(|_| face == Face::Secure) {
                Some(tls) => Box::pin(handle_tls(app, tls, peer, stream, limits)),
                None => Box::pin(handle(app, face, peer, Watched::new(stream, limits.stall).counted(place))),
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

/// Agrees on TLS, then serves HTTP/2 or HTTP/1.1, as agreed.
async fn handle_tls(app: Arc<App>, tls: Arc<Tls>, peer: Peer, mut stream: TcpStream, limits: Limits) {
    let begun = async {
        let mut first = [0_u8];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None);
        }
        if first != [TLS_HANDSHAKE] {
            stream.write_all(NOT_TLS).await?;
            stream.shutdown().await?;
            return Ok(None);
        }
        TlsAcceptor::from(tls.fresh().await)
            .accept(Watched::new(stream, limits.stall).counted(peer.place.clone()))
            .await
            .map(Some)
    };
    let shutdown = app.shutdown.clone();
    let stream = match shutdown.run_until_signalled(tokio::time::timeout(HANDSHAKE, begun)).await {
        Some(Ok(Ok(Some(stream)))) => stream,
        Some(Ok(Err(error))) => {
            // Port scanners and clients that do not trust us are nobody's concern, but whoever searches finds it.
            tracing::debug!(%error, "no TLS with a client");
            return;
        }
        Some(Ok(Ok(None)) | Err(_)) | None => return,
    };
    let (_, session) = stream.get_ref();
    let chain =
        session.peer_certificates().unwrap_or_default().iter().cloned().map(CertificateDer::into_owned);
    let peer = Peer { chain: chain.collect(), ..peer };
    if session.alpn_protocol() == Some(b"h2") {
        Box::pin(handle_http2(app, peer, stream)).await;
    } else {
        Box::pin(handle(app, Face::Secure, peer, stream)).await;
    }
}

async fn handle_http2<S>(app: Arc<App>, peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shutdown, tasks) = (app.shutdown.clone(), app.tasks.clone());
    let (requests, open) = Requests::new();
    let service = service_fn(move |request| {
        let (app, peer, busy) = (app.clone(), peer.clone(), requests.begin());
        async move {
            let mut answer = route::respond(&app, Face::Secure, &peer, request).await;
            answer.body_mut().keep_busy(busy);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http2::Builder::new(Streams(tasks))
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(MAX_STREAM_BYTES)
        .max_header_list_size(MAX_HEADER_LIST)
        // A connection that nobody answers on any more is closed, idle or not.
        .keep_alive_interval(IDLE)
        .keep_alive_timeout(Duration::from_secs(20))
        .serve_connection(TokioIo::new(stream), service);
    let over = async {
        // Both only wait, and keep nothing when dropped.
        tokio::select! {
            () = idle_for(open, IDLE) => {}
            () = shutdown.signalled() => {}
        }
    };
    serve_until(connection, over, http2::Connection::graceful_shutdown, Face::Secure).await;
}

/// Counts the requests of an HTTP/2 connection that are being answered.
struct Requests(watch::Sender<usize>);

/// One of them; it counts until it is dropped.
pub(crate) struct Busy(watch::Sender<usize>);

impl Requests {
    fn new() -> (Self, watch::Receiver<usize>) {
        let (sender, receiver) = watch::channel(0);
        (Self(sender), receiver)
    }

    fn begin(&self) -> Busy {
        self.0.send_modify(|open| *open += 1);
        Busy(self.0.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// Resolves once nothing has been asked for so long; never if nobody can ask any more. Cancel safe.
async fn idle_for(mut open: watch::Receiver<usize>, time: Duration) {
    loop {
        let busy = *open.borrow_and_update() > 0;
        tokio::select! {
            changed = open.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
            () = tokio::time::sleep(time), if !busy => return,
        }
    }
}

/// Runs the requests of an HTTP/2 connection as tasks of the server.
#[derive(Clone)]
struct Streams(TaskGroup);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn("http stream", async move {
            // Dropped, it is reset.
            drop(tokio::time::timeout(STREAM_LIFE, stream).await);
        });
    }
}

async fn handle<S>(app: Arc<App>, face: Face, peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = app.shutdown.clone();
    let service = service_fn(move |request| {
        let (app, peer) = (app.clone(), peer.clone());
        async move { Ok::<_, Infallible>(route::respond(&app, face, &peer, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_header_size(MAX_HEADER_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        // Names in the spelling that Go sends, for those who search headers as text.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    serve_until(connection, shutdown.signalled(), http1::UpgradeableConnection::graceful_shutdown, face)
        .await;
}

/// Serves a connection to its end. It is never dropped half-way: when it is `over`, it is told to `finish`, and has a deadline.
async fn serve_until<C, E>(
    connection: C,
    over: impl Future<Output = ()>,
    finish: impl FnOnce(Pin<&mut C>),
    face: Face,
) where
    C: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = over => {
            finish(connection.as_mut());
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

/// A stream whose writes fail once the other side has taken nothing for too long, and whose reads can be counted.
pub(crate) struct Watched<S> {
    stream: S,
    stall: Duration,
    /// Counts what is read.
    place: Option<Arc<Place>>,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, stall: Duration) -> Self {
        Self { stream, stall, place: None, deadline: None }
    }

    /// The same with its reads counted.
    fn counted(self, place: Option<Arc<Place>>) -> Self {
        Self { place, ..self }
    }

    /// Another patience, and no count, for what becomes of a connection after an upgrade.
    pub(crate) fn set_stall(&mut self, stall: Duration) {
        self.stall = stall;
        self.place = None;
        self.deadline = None;
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let stall = match &self.place {
            Some(place) if place.is_known() => self.stall.max(KNOWN_STALL),
            _ => self.stall,
        };
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
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if let (Poll::Ready(Ok(())), Some(place)) = (&read, &this.place) {
            place.sent(buffer.filled().len() - before)?;
        }
        read
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_nothing_is_asked_on_it() {
        let (requests, open) = Requests::new();
        let begun = Instant::now();
        let idle = tokio::time::timeout(10 * IDLE, idle_for(open, IDLE));
        let asking = async {
            tokio::time::sleep(IDLE / 2).await;
            let (one, two) = (requests.begin(), requests.begin());
            tokio::time::sleep(IDLE * 2).await;
            drop(one);
            tokio::time::sleep(IDLE).await;
            drop(two);
        };
        let (idle, ()) = tokio::join!(idle, asking);
        idle.expect("it became idle");
        assert_eq!(begun.elapsed(), IDLE / 2 + IDLE * 4);
    }
}
