//! Connections: with HTTP/2 one for all requests, and more while that one has many open; with HTTP/1.1 one per request in
//! flight.

use std::{
    error::Error as _,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri, Version,
    header::{AUTHORIZATION, HOST},
};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_task::{Attempts, Backoff, TaskGroup};
use rustls::ClientConfig;
use tokio::time::Instant;

use crate::{
    ApiError,
    connect::{Connected, Route, connect},
    credentials::{Material, Ready},
    tls,
};

/// How long connecting may take, TLS included. Shorter than any request's deadline, so that who waits for a connection is told
/// that there is none, and not that nobody answered.
const CONNECT: Duration = Duration::from_secs(5);
/// A server that cannot be reached is tried again after so long, growing; meanwhile requests fail at once.
const RETRY: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(1)).with_jitter(0.5);
/// client-go's: a connection on which nothing came for so long is asked for a sign of life,
const PING: Duration = Duration::from_secs(30);
/// and is given up when there is none.
const PONG: Duration = Duration::from_secs(15);
/// How much a server may send ahead, of one answer and of all.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// kube-apiserver allows 100 streams on a connection, and RFC 9113 asks for no fewer of anybody. What is sent beyond that waits
/// for a stream to end, and all that comes after it waits too. So a connection takes nothing more when it has so many,
const FULL: usize = 80;
/// but for requests, which are soon over: they need no other connection, which may not be had, until it has so many.
const BRIMFUL: usize = 96;
/// A connection without streams is not kept when an older one has fewer than this: so far below, that it is not wanted again
/// a moment later.
const ROOMY: usize = 60;
/// HTTP/1.1 connections that are kept for the next request, and for how long.
const KEPT: usize = 4;
const KEEP: Duration = Duration::from_secs(60);

/// A request, not yet in the form of a protocol.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    /// Path and query, below the server's prefix.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// A watch: its answer goes on for minutes.
    pub(crate) lasting: bool,
}

impl Outgoing {
    /// For messages: without the query, which may be long.
    pub(crate) fn name(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

/// The head of an answer, with what it came on.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    /// An HTTP/1.1 connection, to be given back when the body has been read to its end.
    pub(crate) lease: Option<Lease>,
    /// To be kept for as long as the body is.
    pub(crate) stream: Option<Stream>,
}

/// An HTTP/1.1 connection that is busy.
pub(crate) struct Lease {
    sender: http1::SendRequest<Full<Bytes>>,
    material: Arc<Material>,
}

/// A stream of an HTTP/2 connection: it counts as open while this lives.
#[derive(Debug)]
pub(crate) struct Stream(#[expect(dead_code, reason = "held to be counted")] Arc<()>);

enum Sender {
    /// And its stream, the number of the youngest connection there is, and whether it has been used before.
    Http2(http2::SendRequest<Full<Bytes>>, Stream, u64, bool),
    /// And whether it has been used before.
    Http1(http1::SendRequest<Full<Bytes>>, bool),
}

/// All connections to one server.
pub(crate) struct Connections {
    tasks: TaskGroup,
    connecting: tokio::sync::Mutex<Connecting>,
    /// Those that are shared. Apart from what is locked while connecting: who needs no new connection waits for none.
    pool: Mutex<Pool>,
    idle: Mutex<Vec<(Lease, Instant)>>,
}

/// The youngest shared connection when a request was sent on one; zero while on none.
#[derive(Debug, Default)]
pub(crate) struct SentOn(AtomicU64);

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

struct Connecting {
    config: Option<(Arc<Material>, Arc<ClientConfig>)>,
    route: Route,
    attempts: Attempts,
    /// The last failure, and until when it is answered with.
    failed: Option<(Arc<Material>, ApiError, Instant)>,
}

/// HTTP/2 connections, the oldest first.
#[derive(Default)]
struct Pool {
    shared: Vec<Shared>,
    made: u64,
}

struct Shared {
    material: Arc<Material>,
    sender: http2::SendRequest<Full<Bytes>>,
    number: u64,
    /// Each of its streams has a clone.
    streams: Arc<()>,
}

impl Shared {
    fn open(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }
}

impl Pool {
    fn add(&mut self, material: &Arc<Material>, sender: http2::SendRequest<Full<Bytes>>) -> Sender {
        self.made += 1;
        let (material, streams, number) = (Arc::clone(material), Arc::default(), self.made);
        let stream = Stream(Arc::clone(&streams));
        self.shared.push(Shared { material, sender: sender.clone(), number, streams });
        Sender::Http2(sender, stream, number, false)
    }

    /// A stream on the oldest connection that has room, so that the others come to their end.
    fn open(&mut self, material: &Arc<Material>, lasting: bool) -> Option<Sender> {
        let mut roomy = false;
        self.shared.retain(|one| {
            let open = one.open();
            let wanted = !(one.sender.is_closed() || roomy && open == 0);
            let usable = wanted && Arc::ptr_eq(&one.material, material);
            roomy |= usable && open < ROOMY;
            usable
        });
        let mut all = self.shared.iter();
        let found = all.find(|one| one.open() < FULL).or_else(|| {
            let emptiest = self.shared.iter().min_by_key(|one| one.open())?;
            (!lasting && emptiest.open() < BRIMFUL).then_some(emptiest)
        })?;
        Some(Sender::Http2(found.sender.clone(), Stream(Arc::clone(&found.streams)), self.made, true))
    }
}

impl Connections {
    pub(crate) fn new(tasks: &TaskGroup) -> Self {
        let connecting =
            Connecting { config: None, route: Route::default(), attempts: RETRY.attempts(), failed: None };
        Self {
            tasks: tasks.clone(),
            connecting: tokio::sync::Mutex::new(connecting),
            pool: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// Sends a request and waits for the answer's head. The caller has the deadline.
    pub(crate) async fn send(
        &self,
        ready: &Ready,
        outgoing: &Outgoing,
        sent: &SentOn,
    ) -> Result<Answer, ApiError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let sender = self.sender(&ready.material, outgoing.lasting).await?;
            let (error, reused) = match sender {
                Sender::Http2(mut sender, stream, youngest, reused) => {
                    sent.0.store(youngest, Ordering::Relaxed);
                    let request = request(outgoing, ready, Version::HTTP_2)?;
                    match sender.send_request(request).await {
                        Ok(response) => return Ok(Answer { response, lease: None, stream: Some(stream) }),
                        Err(error) => (error, reused),
                    }
                }
                Sender::Http1(mut sender, reused) => {
                    let request = request(outgoing, ready, Version::HTTP_11)?;
                    match sender.send_request(request).await {
                        Ok(response) => {
                            let lease = Some(Lease { sender, material: Arc::clone(&ready.material) });
                            return Ok(Answer { response, lease, stream: None });
                        }
                        Err(error) => (error, reused),
                    }
                }
            };
            // A connection that the server had closed before it saw the request: another one is as good as the first.
            let unseen =
                error.is_canceled() || (outgoing.method == Method::GET && error.is_incomplete_message());
            if !(unseen && reused && tries < 3) {
                return Err(broken(&ready.material, outgoing, &error, reused));
            }
        }
    }

    /// Keeps an HTTP/1.1 connection whose answer has been read to its end.
    pub(crate) fn give_back(&self, lease: Lease) {
        if lease.sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push((lease, Instant::now()));
        }
    }

    /// Something that was sent took too long: the shared connections that there were then are for new requests no more, since
    /// what silenced one has likely silenced all. Those that are under way keep them. Never waits: another may be connecting.
    pub(crate) fn distrust(&self, sent: &SentOn) {
        let youngest = sent.0.load(Ordering::Relaxed);
        self.pool().shared.retain(|one| one.number > youngest);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sender(&self, material: &Arc<Material>, lasting: bool) -> Result<Sender, ApiError> {
        if let Some(sender) = self.kept(material) {
            return Ok(Sender::Http1(sender, true));
        }
        let open = || self.pool().open(material, lasting);
        if let Some(sender) = open() {
            return Ok(sender);
        }
        // Held while connecting, so that many requests make one connection.
        let mut connecting = self.connecting.lock().await;
        if let Some(sender) = open() {
            return Ok(sender);
        }
        if let Some((of, error, until)) = &connecting.failed
            && Arc::ptr_eq(of, material)
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let made = match self.connect(&mut connecting, material).await {
            Ok(made) => made,
            Err(error) => {
                let until = Instant::now() + connecting.attempts.failed();
                connecting.failed = Some((Arc::clone(material), error.clone(), until));
                return Err(error);
            }
        };
        connecting.attempts.succeeded();
        connecting.failed = None;
        Ok(made)
    }

    fn kept(&self, material: &Arc<Material>) -> Option<http1::SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(lease, since)| {
            !lease.sender.is_closed() && since.elapsed() < KEEP && Arc::ptr_eq(&lease.material, material)
        });
        // The youngest is the likeliest to be alive. One that has not finished its answer yet stays.
        let place = idle.iter().rposition(|(lease, _)| lease.sender.is_ready())?;
        Some(idle.swap_remove(place).0.sender)
    }

    async fn connect(
        &self,
        connecting: &mut Connecting,
        material: &Arc<Material>,
    ) -> Result<Sender, ApiError> {
        let server = material.server.to_string();
        let config = match &connecting.config {
            Some((of, config)) if Arc::ptr_eq(of, material) => Arc::clone(config),
            _ => {
                let made = tls::config(material).await;
                let made = made.map_err(|problem| ApiError::Tls { server: server.clone(), problem })?;
                connecting.config = Some((Arc::clone(material), Arc::clone(&made)));
                made
            }
        };
        let work = async {
            let Connected { stream, http2 } = connect(material, &config, &mut connecting.route).await?;
            let io = TokioIo::new(stream);
            let failed =
                |error: hyper::Error| ApiError::Connect { server: server.clone(), problem: chain(&error) };
            if http2 {
                let (sender, connection) = http2::Builder::new(Streams(self.tasks.clone()))
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .keep_alive_interval(PING)
                    .keep_alive_timeout(PONG)
                    .keep_alive_while_idle(true)
                    .handshake(io)
                    .await
                    .map_err(failed)?;
                self.drive(connection);
                Ok(self.pool().add(material, sender))
            } else {
                let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
                self.drive(connection);
                Ok(Sender::Http1(sender, false))
            }
        };
        let done = tokio::time::timeout(CONNECT, work).await;
        let problem = || format!("no connection within {CONNECT:?}");
        let done =
            done.unwrap_or_else(|_| Err(ApiError::Connect { server: server.clone(), problem: problem() }));
        connecting.route.ended(done.is_ok());
        done
    }

    fn drive(&self, connection: impl Future<Output = Result<(), hyper::Error>> + Send + 'static) {
        let shutdown = self.tasks.shutdown();
        self.tasks.spawn("api server connection", async move {
            if let Some(Err(error)) = shutdown.run_until_signalled(connection).await {
                tracing::debug!(error = chain(&error), "a connection to the API server ended");
            }
        });
    }
}

/// Runs what an HTTP/2 connection has to do beside itself.
#[derive(Clone)]
struct Streams(TaskGroup);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        self.0.spawn("api server stream", work);
    }
}

fn request(outgoing: &Outgoing, ready: &Ready, version: Version) -> Result<Request<Full<Bytes>>, ApiError> {
    let server = &ready.material.server;
    let path = format!("{}{}", server.prefix, outgoing.path);
    let invalid = |problem: String| ApiError::Connect { server: server.to_string(), problem };
    let uri = if version == Version::HTTP_2 { format!("https://{}{path}", server.authority) } else { path };
    let uri: Uri = uri.parse().map_err(|_| invalid(format!("{uri:?} is no URL")))?;
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    *request.headers_mut() = outgoing.headers.clone();
    if version == Version::HTTP_11 {
        let host = HeaderValue::try_from(&server.authority).map_err(|error| invalid(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
    }
    if let Some(header) = &ready.header {
        request.headers_mut().insert(AUTHORIZATION, header.clone());
    }
    Ok(request)
}

/// With TLS 1.3 a client learns only after the handshake that its certificate is refused, when the first request breaks.
fn broken(material: &Material, outgoing: &Outgoing, error: &hyper::Error, reused: bool) -> ApiError {
    let mut problem = chain(error);
    if !reused && let Some(identity) = &material.identity {
        problem.push_str(&tls::doubt(identity));
    }
    ApiError::Broken { server: material.server.to_string(), request: outgoing.name(), problem }
}

/// An error with what is behind it.
pub(crate) fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
