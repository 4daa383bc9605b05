//! One request on its way to a handler.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use mainstay_auth::Identity;

use crate::{connection::Peer, own_metrics::InFlight, request::Query, table::Face};

/// What a handler is given. It exists only with a [`Passage`], which is how no handler is reached undecided.
pub(crate) struct Call<'a> {
    /// Which listener it came through.
    pub(crate) face: Face,
    /// By what right it is here.
    #[expect(dead_code, reason = "that there is one is the proof that it was decided")]
    pub(crate) passage: Passage,
    pub(crate) method: &'a Method,
    /// As it was sent; its query in particular.
    pub(crate) uri: &'a Uri,
    /// The values of the variables in the route's path, in order.
    pub(crate) values: &'a [&'a str],
    pub(crate) query: Query<'a>,
    pub(crate) headers: &'a HeaderMap,
    /// Not read yet, however long it is.
    pub(crate) body: Incoming,
    /// The connection itself, once a 101 was sent (HTTP/1.1 only).
    pub(crate) upgrade: Option<OnUpgrade>,
    /// Who is at the other end. A copy kept by an upgraded connection keeps its place among the counted ones.
    pub(crate) peer: &'a Peer,
    /// What counts the request as being answered. Whoever goes on with its connection takes it.
    pub(crate) counted: &'a Mutex<Option<InFlight>>,
}

/// Takes what counts a request.
pub(crate) fn take_count(counted: &Mutex<Option<InFlight>>) -> Option<InFlight> {
    counted.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// By what right a request reaches a handler.
#[derive(Clone, Debug)]
pub(crate) enum Passage {
    /// The listener asks nobody: the socket is root's by its mode, the plain ports carry what upstream's do.
    Open,
    /// The guard let this user through.
    Judged(#[expect(dead_code, reason = "kept with the proof: whom it was given to")] Identity),
}

/// How long a body that is read whole may take.
const READ: Duration = Duration::from_secs(30);

/// A body that cannot be had whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadBody {
    #[error("the request's body did not come in time")]
    Late,
    #[error("the request's body cannot be read or is longer than {0} bytes")]
    Unreadable(usize),
}

/// The whole body, if it is short and comes in time.
pub(crate) async fn read(body: Incoming, limit: usize) -> Result<Bytes, BadBody> {
    match tokio::time::timeout(READ, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(BadBody::Unreadable(limit)),
        Err(_) => Err(BadBody::Late),
    }
}
