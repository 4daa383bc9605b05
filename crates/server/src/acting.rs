//! What is done in containers: run, exec, attach, portForward, checkpoint. These go from the server to the runtime directly, and change
//! no desired state (decision 6).
//!
//! For the streaming ones the runtime gives an address, and the client's connection is put through to it byte by byte, whatever is
//! spoken on it. Only what runtimes do not speak ends here: WebSocket with `v5.channel.k8s.io`, and SPDY tunnelled through WebSocket.
//!
//! A session is a task of the server's group that ends when either side does, when nothing moved for
//! `streamingConnectionIdleTimeout`, and at shutdown. Their number is bounded.

mod checkpoint;
mod client;
mod command;
mod forward;
mod lookup;
mod options;
mod redirect;
mod relay;
mod runtime;
mod translate;

use std::{
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use mainstay_cri::{Cri, CriError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    answer::{self, Answer},
    call::take_count,
    connection::Peer,
    own_metrics::InFlight,
    route::App,
};

pub(crate) use checkpoint::checkpoint;
pub(crate) use command::{attach, exec, run};
pub(crate) use forward::port_forward;
pub(crate) use redirect::cri;

/// Sessions at once. Each holds two connections and some buffers.
const MAX_SESSIONS: usize = 512;
/// Between the answer 101 and the connection being ours; only a client that reads nothing makes it long.
const UPGRADE_DEADLINE: Duration = Duration::from_secs(30);

/// What the server needs to act in containers for its clients.
#[derive(Clone, Debug)]
pub struct ActingConfig {
    /// The runtime, which is asked for addresses of its streaming server, and to run commands and write checkpoints.
    pub cri: Cri,
    /// `streamingConnectionIdleTimeout`; `None` for no limit.
    pub idle: Option<Duration>,
    /// Feature gate `ExtendWebSocketsToKubelet`: whether what runtimes do not speak over WebSocket ends here.
    pub end_websockets: bool,
    /// Where checkpoints are written: `<root>/checkpoints`.
    pub checkpoint_dir: PathBuf,
}

/// An answer instead of what was asked for. In a box, because answers are large and mostly things go well.
type Refused = Box<Answer>;

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Acting {
    /// `None` in a server that was given no runtime.
    config: Option<ActingConfig>,
    sessions: Arc<Semaphore>,
    redirects: redirect::Redirects,
}

impl Acting {
    pub(crate) fn new(config: Option<ActingConfig>) -> Self {
        Self {
            config,
            sessions: Arc::new(Semaphore::new(MAX_SESSIONS)),
            redirects: redirect::Redirects::default(),
        }
    }

    fn config(&self) -> Result<&ActingConfig, Refused> {
        self.config.as_ref().ok_or_else(|| {
            answer::error(StatusCode::SERVICE_UNAVAILABLE, "this server has no container runtime").into()
        })
    }

    /// What somebody asked for who now comes back for `SERVICE/TOKEN`.
    pub(crate) fn asked_before(&self, rest: &str) -> Option<String> {
        self.redirects.asked_before(rest)
    }

    /// A place for one more session, held for as long as it lasts.
    fn place(&self) -> Result<OwnedSemaphorePermit, Refused> {
        self.sessions.clone().try_acquire_owned().map_err(|_| {
            let text =
                format!("{MAX_SESSIONS} exec, attach and port-forward sessions are open already; end some");
            try_later(answer::plain(StatusCode::TOO_MANY_REQUESTS, text)).into()
        })
    }
}

/// What a session needs of its request.
struct Upgrade {
    client: OnUpgrade,
    peer: Peer,
    place: OwnedSemaphorePermit,
    /// The request is being answered for as long as its session lasts.
    counted: Option<InFlight>,
}

impl Upgrade {
    fn new(
        client: OnUpgrade,
        peer: &Peer,
        counted: &Mutex<Option<InFlight>>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { client, peer: peer.clone(), place, counted: take_count(counted) }
    }

    /// Starts the session of a request that is answered with 101: `work` gets the client's connection once the answer was sent.
    fn begin<F, Fut>(self, app: &App, name: &'static str, work: F)
    where
        F: FnOnce(client::ClientIo) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let shutdown = app.shutdown.clone();
        app.tasks.spawn(name, async move {
            let Self { client, peer, place, counted } = self;
            let session = async {
                match tokio::time::timeout(UPGRADE_DEADLINE, client).await {
                    Ok(Ok(upgraded)) => work(client::ClientIo::new(upgraded)).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a client went away before its session began"),
                    Err(_) => {
                        tracing::debug!("a client did not take the answer to its request for a session")
                    }
                }
            };
            // Dropping a session closes both of its connections, which is how it ends for both sides.
            shutdown.run_until_signalled(session).await.unwrap_or_default();
            drop((peer, place, counted));
        });
    }
}

/// What is answered when the runtime did not do as it was asked, as upstream's `WriteError` of its streaming server has it.
fn refused(error: &CriError) -> Answer {
    let text = error.to_string();
    if error.is_not_found() {
        answer::plain(StatusCode::NOT_FOUND, text)
    } else if error.is_exhausted() {
        try_later(answer::plain(StatusCode::TOO_MANY_REQUESTS, text))
    } else {
        answer::plain(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
}

fn try_later(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
    answer
}

fn internal(text: impl Into<String>) -> Refused {
    answer::plain(StatusCode::INTERNAL_SERVER_ERROR, text.into()).into()
}

fn not_an_upgrade() -> Refused {
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required").into()
}

/// The client's headers as the runtime gets them: all but what was meant for us alone.
fn forwarded(headers: &HeaderMap, peer: &Peer) -> HeaderMap {
    let mut headers = headers.clone();
    // Upstream hands cookies and basic credentials on; the runtime has no use for them.
    for own in [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE] {
        headers.remove(own);
    }
    if let Some(address) = peer.address {
        let before = headers.get_all(X_FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let mut hops: Vec<String> = before.map(str::to_owned).collect();
        hops.push(address.ip().to_string());
        if let Ok(value) = HeaderValue::from_str(&hops.join(", ")) {
            headers.insert(X_FORWARDED_FOR, value);
        }
    }
    headers
}

const X_FORWARDED_FOR: header::HeaderName = header::HeaderName::from_static("x-forwarded-for");
