//! Outgoing GET requests for hooks, probes and manifests by URL: one connection each, one deadline over all of it,
//! a bounded answer. And [`dial`](fn@dial): a connection for those who speak HTTP themselves, to upgrade it. And [`Tolerant`]: around a gRPC
//! connection that was accepted on a unix socket. And [`reach`](fn@reach): to the first of a host's addresses that answers.
//!
//! What it does not do: no proxies (the environment is not looked at), no connection reuse, no compression, no other
//! methods, HTTP/2 only where a request allows it, and redirects only with [`get_following`]. Dropping a request ends it and
//! all that works for it. Host names are resolved on threads of their own (few for each who asks, see
//! [`resolve`](fn@resolve)), root certificates loaded (once) on tokio's blocking threads.

#![forbid(unsafe_code)]

mod authority;
mod dial;
mod error;
mod exchange;
mod reach;
mod resolve;
mod tls;
mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, StatusCode};

pub use authority::Tolerant;
pub use dial::{Dialled, Duplex, dial};
pub use error::HttpError;
pub use reach::reach;
pub use resolve::resolve;
pub use tls::{system_roots, unchecked_verifier};

use error::Phase;
use url::Url;

/// As many redirects are followed as Go's client follows.
const MAX_REDIRECTS: usize = 10;

/// A GET request.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// On whose behalf: a pod's UID, or a part of the agent (see [`resolve`](fn@resolve)).
    pub asker: Arc<str>,
    /// `http://` or `https://`; characters that may not stand in a URL are escaped.
    pub url: String,
    /// Headers, in order. `Host` replaces the one made from the URL; `Connection` is always `close` (HTTP/2 has none).
    pub headers: Vec<(String, String)>,
    /// How long everything together may take: resolving, connecting, TLS, the answer, redirects.
    pub deadline: Duration,
    /// How long the answer's body may be; a longer one is [`HttpError::TooLarge`].
    pub max_body_bytes: usize,
    /// How a server's certificate is checked (https only).
    pub verify: Verify,
    /// Whether a server that would have HTTP/2 is asked so (https only).
    pub http2: bool,
}

/// How a server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Against the machine's root certificates, as loaded at the first such request.
    SystemRoots,
    /// Not at all: lifecycle hooks and probes ask pods, which have certificates of their own making.
    Nothing,
}

/// Which redirects are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// To the same host name only; one to another host is returned as the answer. For probes.
    SameHost,
    /// To any host. `Authorization` and cookies do not go to another host.
    Any,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Sends the request and reads the whole answer. A redirect is an answer like any other. Cancel safe: dropping it closes
/// the connection.
///
/// # Errors
/// [`HttpError`]; no status is an error.
pub async fn get(request: &Request) -> Result<Response, HttpError> {
    run(request, None).await
}

/// As [`get`], but follows up to ten redirects within the one deadline.
///
/// # Errors
/// [`HttpError`], among them [`HttpError::TooManyRedirects`].
pub async fn get_following(request: &Request, redirects: Redirects) -> Result<Response, HttpError> {
    run(request, Some(redirects)).await
}

impl std::fmt::Debug for Request {
    /// Without the values of headers, which may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Request")
            .field("asker", &self.asker)
            .field("url", &self.url)
            .field("headers", &names)
            .field("deadline", &self.deadline)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("verify", &self.verify)
            .finish()
    }
}

async fn run(request: &Request, redirects: Option<Redirects>) -> Result<Response, HttpError> {
    let phase = AtomicU8::new(Phase::Resolve as u8);
    match tokio::time::timeout(request.deadline, run_without_deadline(request, redirects, &phase)).await {
        Ok(done) => done,
        Err(_) => Err(HttpError::Timeout {
            url: request.url.clone(),
            deadline: request.deadline,
            phase: Phase::from_number(phase.load(Ordering::Relaxed)).words(),
        }),
    }
}

async fn run_without_deadline(
    request: &Request,
    redirects: Option<Redirects>,
    phase: &AtomicU8,
) -> Result<Response, HttpError> {
    let mut url = Url::parse(&request.url)?;
    let mut headers = request.headers.clone();
    for _ in 0..=MAX_REDIRECTS {
        let response = exchange::exchange(&url, &headers, request, redirects.is_some(), phase).await?;
        let (Some(redirects), Some(location)) = (redirects, location_of(response.status, &response.headers))
        else {
            return Ok(response);
        };
        let next = match url.join(location) {
            Ok(next) => next,
            // Whoever stays with one host does not go where there is none, either.
            Err(_) if redirects == Redirects::SameHost => return Ok(response),
            Err(error) => return Err(error),
        };
        if next.host != url.host {
            if redirects == Redirects::SameHost {
                return Ok(response);
            }
            headers.retain(|(name, _)| !is_for_one_host(name));
        }
        url = next;
    }
    Err(HttpError::TooManyRedirects { url: request.url.clone(), limit: MAX_REDIRECTS })
}

/// Where a redirect leads.
pub(crate) fn location_of(status: StatusCode, headers: &HeaderMap) -> Option<&str> {
    match status.as_u16() {
        301 | 302 | 303 | 307 | 308 => headers.get(LOCATION)?.to_str().ok(),
        _ => None,
    }
}

fn is_for_one_host(name: &str) -> bool {
    ["authorization", "www-authenticate", "cookie", "cookie2", "host"]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own))
}
