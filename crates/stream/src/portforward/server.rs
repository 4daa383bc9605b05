//! The end that has the pod.

use std::future::Future;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

use super::pairs::{Added, Announced, Pair, Pairs};
use crate::spdy::{Incoming, Session};
use crate::ws::{self, Channels, Codec};
use crate::{Limits, Role, Stream, StreamError};

/// Serves a SPDY connection on which the upgrade is done, until the client ends it.
///
/// `forward` is called for every connection with its port and its data, and gives what the client is told if it failed. Its
/// futures run inside this one, all at once, and are dropped when the client goes away.
///
/// # Errors
///
/// If the connection broke, was idle too long, or the client broke the protocol.
pub async fn serve_spdy<I, F, Fut>(io: I, limits: Limits, forward: F) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16, Stream) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let pairs = Pairs::new(limits.create);
    let (session, driver) = Session::new(io, Role::Server, limits);
    // There is nothing to wait for once the client is gone; the driver knows first.
    tokio::select! {
        ended = driver => ended,
        () = forward_all(&session, pairs, forward) => Ok(()),
    }
}

/// Serves SPDY inside the messages of a WebSocket (`SPDY/3.1+portforward.k8s.io`); otherwise as [`serve_spdy`].
///
/// # Errors
///
/// As [`serve_spdy`].
pub async fn serve_tunnel<I, F, Fut>(io: I, limits: Limits, forward: F) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16, Stream) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let (bytes, closer, tunnel) = ws::tunnel(io, Role::Server, limits.clone());
    let mut tunnel = pin!(tunnel);
    tokio::select! {
        ended = &mut tunnel => ended,
        done = serve_spdy(bytes, limits, forward) => {
            closer.close();
            done.and(tunnel.await)
        }
    }
}

/// Serves a WebSocket connection whose channels are pairs of data and errors, one for each port; otherwise as [`serve_spdy`]. At most
/// 127 ports fit; more are left out, so the caller refuses them before.
///
/// # Errors
///
/// As [`serve_spdy`].
pub async fn serve_websocket<I, F, Fut>(
    io: I,
    codec: Codec,
    ports: &[u16],
    limits: Limits,
    forward: F,
) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16, Stream) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let count = u8::try_from(ports.len() * 2).unwrap_or(MAX_CHANNELS).min(MAX_CHANNELS);
    let channels = Channels { count, codec, close_signal: false };
    let (streams, closer, driver) = ws::connect(io, Role::Server, channels, limits);
    let mut driver = pin!(driver);
    let work = async {
        let mut streams = streams.into_iter();
        let mut active = FuturesUnordered::new();
        for port in ports {
            let (Some(mut data), Some(mut error)) = (streams.next(), streams.next()) else { break };
            // A new stream's buffer takes two bytes at once.
            for stream in [&mut data, &mut error] {
                drop(stream.write_all(&port.to_le_bytes()).await);
            }
            active.push(forward_one(&forward, Pair { port: *port, data, error }));
        }
        while active.next().await.is_some() {}
    };
    tokio::select! {
        ended = &mut driver => ended,
        () = work => {
            closer.close();
            driver.await
        }
    }
}

/// Two for each port, in a byte.
const MAX_CHANNELS: u8 = 254;

/// Never ends: the connection's end is the driver's to notice.
async fn forward_all<F, Fut>(session: &Session, mut pairs: Pairs, forward: F)
where
    F: Fn(u16, Stream) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let mut active = FuturesUnordered::new();
    loop {
        let expired = async {
            match pairs.deadline() {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        // All branches are cancel safe: nothing is taken before one is chosen.
        tokio::select! {
            incoming = session.accept() => match incoming {
                Some(incoming) => {
                    if let Some(pair) = take(incoming, &mut pairs).await {
                        active.push(forward_one(&forward, pair));
                    }
                }
                None => std::future::pending().await,
            },
            Some(()) = active.next() => {}
            () = expired => {
                while let Some((request, error)) = pairs.expire(Instant::now()) {
                    tell(error, &format!("(request={request}) timed out waiting for streams")).await;
                }
            }
        }
    }
}

/// Accepts or refuses a stream; a pair if it completes one.
async fn take(incoming: Incoming, pairs: &mut Pairs) -> Option<Pair> {
    let announced = Announced::read(incoming.headers(), incoming.id())?;
    let request = announced.request.clone();
    let kind = if announced.is_data { "data" } else { "error" };
    let (stream, _) = incoming.accept();
    match pairs.add(announced, stream, Instant::now()) {
        Added::Whole(pair) => Some(pair),
        Added::Waiting => None,
        Added::Twice(error) => {
            let message =
                format!("error processing stream for request {request}: {kind} stream already assigned");
            tell(error, &message).await;
            None
        }
    }
}

async fn forward_one<F, Fut>(forward: &F, pair: Pair)
where
    F: Fn(u16, Stream) -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    match forward(pair.port, pair.data).await {
        Ok(()) => tell(Some(pair.error), "").await,
        Err(message) => {
            tracing::debug!(port = pair.port, message, "port forwarding failed");
            tell(Some(pair.error), &message).await;
        }
    }
}

/// Writes a text to an error stream and ends it. Its buffer takes a short text at once.
async fn tell(error: Option<Stream>, message: &str) {
    if let Some(mut error) = error {
        // A client that is gone does not hear it.
        drop(error.write_all(message.as_bytes()).await);
        error.finish_sending();
    }
}
