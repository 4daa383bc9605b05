//! Speaking to the runtime's streaming server: one request, and the connection itself if the runtime takes the upgrade.

use std::{error::Error, pin::pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use mainstay_http::{Dialled, HttpError, Verify, dial};

use super::{Refused, Upgrade};
use crate::{
    answer::{self, Answer},
    body::Body,
};

/// The longest text that is taken of a refusal.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// A connection to the runtime on which the agreed protocol is spoken.
pub(super) type RuntimeIo = TokioIo<Upgraded>;

/// What the runtime said.
pub(super) enum Reached {
    /// It takes the upgrade.
    Switched {
        /// Its answer's headers, which tell the protocol.
        headers: HeaderMap,
        io: RuntimeIo,
    },
    /// It does not.
    Answered(Refusal),
}

/// An answer that is no upgrade.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Why the runtime's streaming server did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReachError {
    #[error("error dialing backend: {0}")]
    Dial(#[source] HttpError),
    #[error("error dialing backend: the runtime's streaming address {0:?} cannot be requested")]
    Address(String),
    #[error("error dialing backend: no valid answer from the runtime's streaming server: {0}")]
    Protocol(#[source] hyper::Error),
    #[error("error dialing backend: the runtime's streaming server did not answer within {0:?}")]
    Silent(Duration),
}

impl ReachError {
    pub(super) fn answer(&self) -> Answer {
        let mut text = self.to_string();
        // The messages of ours end with that of their source; below that nothing repeats.
        let mut cause = self.source().and_then(Error::source);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        answer::error(StatusCode::INTERNAL_SERVER_ERROR, &text)
    }
}

impl Refusal {
    /// As the client gets it: an error as it is, anything else as what it is not.
    pub(super) fn answer(self) -> Answer {
        if !self.status.is_client_error() && !self.status.is_server_error() {
            let text = format!("invalid upgrade response: status code {}", self.status.as_u16());
            return answer::error(StatusCode::INTERNAL_SERVER_ERROR, &text);
        }
        let mut answer = answer::untyped(self.status, Body::Whole(self.body));
        *answer.headers_mut() = self.headers;
        for of_connection in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
            answer.headers_mut().remove(of_connection);
        }
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        answer
    }

    /// What it says, for those who can only be told a text.
    pub(super) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.body).trim().to_owned();
        match text.is_empty() {
            true => format!("the runtime's streaming server answered {}", self.status),
            false => text,
        }
    }
}

/// Sends a request without a body to an address that the runtime gave. Cancel safe: dropping it closes the connection.
pub(super) async fn reach(
    url: &str,
    method: &Method,
    mut headers: HeaderMap,
    deadline: Duration,
) -> Result<Reached, ReachError> {
    for of_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::TRANSFER_ENCODING, header::EXPECT] {
        headers.remove(of_body);
    }
    let work = async {
        let dialled = dial(url, Verify::SystemRoots, deadline).await.map_err(ReachError::Dial)?;
        request(dialled, method, headers, url).await
    };
    tokio::time::timeout(deadline, work).await.unwrap_or(Err(ReachError::Silent(deadline)))
}

async fn request(
    dialled: Dialled,
    method: &Method,
    headers: HeaderMap,
    url: &str,
) -> Result<Reached, ReachError> {
    let Dialled { io, authority, target } = dialled;
    let invalid = || ReachError::Address(url.to_owned());
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.parse().map_err(|_| invalid())?;
    *request.headers_mut() = headers;
    if !request.headers().contains_key(header::HOST) {
        let host = HeaderValue::from_str(&authority).map_err(|_| invalid())?;
        request.headers_mut().insert(header::HOST, host);
    }
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(io))
        .await
        .map_err(ReachError::Protocol)?;
    let exchange = async move {
        let mut response = sender.send_request(request).await.map_err(ReachError::Protocol)?;
        let upgrade = hyper::upgrade::on(&mut response);
        let (head, body) = response.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok((head, Some(upgrade), Bytes::new()));
        }
        // Of a text that is too long or breaks off, nothing is shown; the status tells enough.
        let body = Limited::new(body, MAX_REFUSAL_BYTES).collect().await;
        let body = body.map(|whole| whole.to_bytes()).unwrap_or_default();
        Ok((head, None, body))
    };
    // The connection is polled here rather than in a task of its own, so that dropping ends both. It is done once it has given its
    // bytes to the upgrade.
    let mut connection = pin!(connection.with_upgrades());
    let mut exchange = pin!(exchange);
    let mut is_open = true;
    let (head, upgrade, body) = loop {
        // Both branches go on where they were in the next turn.
        tokio::select! {
            biased;
            done = &mut exchange => break done?,
            // How it ended shows in what `exchange` gets.
            _ = &mut connection, if is_open => is_open = false,
        }
    };
    let Some(upgrade) = upgrade else {
        return Ok(Reached::Answered(Refusal { status: head.status, headers: head.headers, body }));
    };
    if is_open {
        connection.await.map_err(ReachError::Protocol)?;
    }
    let io = TokioIo::new(upgrade.await.map_err(ReachError::Protocol)?);
    Ok(Reached::Switched { headers: head.headers, io })
}

/// The 101 that tells the client what the runtime told us.
pub(super) fn switched(headers: &HeaderMap) -> Answer {
    const PASSED_ON: [HeaderName; 6] = [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_ACCEPT,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_EXTENSIONS,
        mainstay_stream::negotiate::PROTOCOL_VERSION,
    ];
    let mut answer = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
    for name in PASSED_ON {
        for value in headers.get_all(&name) {
            answer.headers_mut().append(&name, value.clone());
        }
    }
    answer
}

/// Puts a client through to an address that the runtime gave, with its own request, until either side ends.
pub(super) async fn put_through(
    app: &crate::route::App,
    upgrade: Upgrade,
    url: &str,
    method: &Method,
    headers: HeaderMap,
) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    match reach(url, method, headers, config.cri.timeout()).await {
        Ok(Reached::Switched { headers, io }) => {
            let idle = config.idle;
            upgrade.begin(app, "stream", move |client| super::relay::relay(client, io, idle));
            Ok(switched(&headers))
        }
        Ok(Reached::Answered(refusal)) => Err(refusal.answer().into()),
        Err(error) => Err(error.answer().into()),
    }
}
