//! Accepting connections and serving calls on them.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_http::Tolerant;
use mainstay_task::TaskGroup;
use tokio::{net::UnixStream, time::Instant};

use crate::{deadline, peer::Peer, service::Service, socket::Socket};

/// Calls that one connection may have open.
const MAX_STREAMS: u32 = 1024;
/// A call's metadata.
const MAX_HEADER_LIST: u32 = 16 << 10;
/// What of a call's answer HTTP/2 takes before the client does, and one piece more. How many calls may have as much lie there is said by the caller's places.
const MAX_STREAM_BYTES: usize = 64 << 10;
/// How often a client is asked whether it still reads, and how long it has for an answer: one that never reads again would keep what it was
/// not told.
const ASK_ALIVE: Duration = Duration::from_secs(60);
const ANSWER_ALIVE: Duration = Duration::from_secs(30);
/// How long calls that were begun may go on after shutdown was signalled.
const FINISH: Duration = Duration::from_secs(3);
/// How long to wait when the system has no descriptor left for another connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Serves a socket until shutdown.
pub(crate) async fn serve(socket: Socket, service: Arc<Service>, patience: Duration, tasks: TaskGroup) {
    let listener = match socket.listener() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(socket = %socket.path().display(), %error, "the socket cannot be watched by the async runtime");
            return;
        }
    };
    let shutdown = tasks.shutdown();
    loop {
        // Cancel safe: `accept` takes no connection out when dropped.
        let Some(accepted) = shutdown.run_until_signalled(listener.accept()).await else { return };
        match accepted {
            Ok((stream, _)) => {
                let work = connection(stream, Arc::clone(&service), patience, tasks.clone());
                tasks.spawn("grpc connection", work);
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(socket = %socket.path().display(), %error, "cannot accept a connection; trying again");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, service: Arc<Service>, patience: Duration, tasks: TaskGroup) {
    let peer = Peer::of(&stream, |uid| service.may_be_pod(uid)).await;
    let Some(place) = service.peers.enter(peer.clone(), std::time::Instant::now()) else {
        tracing::debug!(?peer, "a gRPC connection too many is closed");
        return;
    };
    let place = Arc::new(place);
    let shutdown = tasks.shutdown();
    let calls = service_fn(move |request| {
        let (service, place) = (Arc::clone(&service), Arc::clone(&place));
        async move { Ok::<_, Infallible>(service.call(&place, request).await) }
    });
    let connection = http2::Builder::new(Streams { tasks, patience })
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(MAX_STREAM_BYTES)
        .max_header_list_size(MAX_HEADER_LIST)
        .keep_alive_interval(ASK_ALIVE)
        .keep_alive_timeout(ANSWER_ALIVE)
        .serve_connection(TokioIo::new(Tolerant::new(stream)), calls);
    let mut connection = pin!(connection);
    // Cancel safe: the connection is polled on below.
    let over = tokio::select! {
        result = &mut connection => Some(result),
        () = shutdown.signalled() => None,
    };
    let result = match over {
        Some(result) => result,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout_at(Instant::now() + FINISH, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a gRPC connection ended early");
    }
}

/// Calls are tasks of the group.
#[derive(Clone, Debug)]
struct Streams {
    tasks: TaskGroup,
    patience: Duration,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        self.tasks.spawn("grpc call", deadline::within(self.patience, call));
    }
}
