//! One request and one answer on a connection of its own.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Uri, uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::error::Phase;
use crate::tls::{self, Sniffed};
use crate::url::Url;
use crate::{HttpError, Request, Response};

/// As much as a server may send of headers by HTTP/2; a page with all its cookies is no failure.
const MAX_HEADER_BYTES: u32 = 1 << 20;
/// As much as it may send ahead of us.
const WINDOW_BYTES: u32 = 64 << 10;

/// How much of an answer is taken.
#[derive(Clone, Copy, Debug)]
struct Limit {
    bytes: usize,
    /// Who follows a redirect has no need of the rest of its page.
    cuts_redirects: bool,
}

pub(crate) async fn exchange(
    url: &Url,
    headers: &[(String, String)],
    request: &Request,
    follows: bool,
    phase: &AtomicU8,
) -> Result<Response, HttpError> {
    let message = message(url, headers)?;
    let connection = connect(&request.asker, url, phase).await?;
    let limit = Limit { bytes: request.max_body_bytes, cuts_redirects: follows };
    if !url.https {
        return answer(connection, message, url, limit, phase).await;
    }
    phase.store(Phase::Tls as u8, Ordering::Relaxed);
    let failed = |source| HttpError::Tls { url: url.to_string(), source };
    let name = ServerName::try_from(url.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
    let config = tls::config(request.verify).await.map_err(failed)?;
    let config = if request.http2 { Arc::new(tls::offering_http2(&config)) } else { config };
    let connector = TlsConnector::from(config);
    let (connection, first_bytes) = Sniffed::new(connection);
    match connector.connect(name, connection).await {
        Ok(connection) if connection.get_ref().1.alpn_protocol() == Some(tls::HTTP2) => {
            Box::pin(answer_by_http2(connection, message, url, limit, phase)).await
        }
        Ok(connection) => Box::pin(answer(connection, message, url, limit, phase)).await,
        Err(_) if first_bytes.are_plain_http() => Err(HttpError::PlainHttpOnTls { url: url.to_string() }),
        Err(error) => Err(failed(error)),
    }
}

fn message(url: &Url, headers: &[(String, String)]) -> Result<http::Request<Empty<Bytes>>, HttpError> {
    let uri = Uri::try_from(&url.target)
        .map_err(|_| HttpError::InvalidUrl { url: url.to_string(), reason: "its path is not valid" })?;
    let mut map = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        let invalid = || HttpError::InvalidHeader { url: url.to_string(), name: name.clone() };
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        map.append(name, HeaderValue::try_from(value).map_err(|_| invalid())?);
    }
    if !map.contains_key(HOST) {
        let host = HeaderValue::try_from(url.authority.trim_end_matches(':'))
            .map_err(|_| HttpError::InvalidUrl { url: url.to_string(), reason: "its host is not valid" })?;
        map.insert(HOST, host);
    }
    map.insert(CONNECTION, HeaderValue::from_static("close"));
    let mut message = http::Request::new(Empty::new());
    *message.method_mut() = Method::GET;
    *message.uri_mut() = uri;
    *message.headers_mut() = map;
    Ok(message)
}

/// To the first of the host's addresses that answers.
pub(crate) async fn connect(asker: &str, url: &Url, phase: &AtomicU8) -> Result<TcpStream, HttpError> {
    phase.store(Phase::Resolve as u8, Ordering::Relaxed);
    let failed = |source| HttpError::Resolve { host: url.host.clone(), source };
    let addresses = crate::resolve(asker, &url.host, url.port).await.map_err(failed)?;
    phase.store(Phase::Connect as u8, Ordering::Relaxed);
    crate::reach(&addresses).await.map_err(|mut failures| match failures.pop() {
        Some((address, source)) => HttpError::Connect { address: address.to_string(), source },
        None => failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")),
    })
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    message: http::Request<Empty<Bytes>>,
    url: &Url,
    limit: Limit,
    phase: &AtomicU8,
) -> Result<Response, HttpError> {
    phase.store(Phase::Answer as u8, Ordering::Relaxed);
    let failed = |source| HttpError::Protocol { url: url.to_string(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let read = async {
        let response = sender.send_request(message).await.map_err(failed)?;
        whole(response, url, limit, phase).await
    };
    beside(connection, read).await
}

/// The same where the server would have HTTP/2.
async fn answer_by_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    mut message: http::Request<Empty<Bytes>>,
    url: &Url,
    limit: Limit,
    phase: &AtomicU8,
) -> Result<Response, HttpError> {
    phase.store(Phase::Answer as u8, Ordering::Relaxed);
    address_by_uri(&mut message, url)?;
    let failed = |source| HttpError::Protocol { url: url.to_string(), source };
    // What works for the connection goes with this: hyper has only a way to add to it.
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let (mut sender, connection) = http2::Builder::new(Tasks(Arc::downgrade(&tasks)))
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let read = async {
        let response = sender.send_request(message).await.map_err(failed)?;
        whole(response, url, limit, phase).await
    };
    beside(connection, read).await
}

/// HTTP/2 has its own place for the host, and no word about closing.
fn address_by_uri(message: &mut http::Request<Empty<Bytes>>, url: &Url) -> Result<(), HttpError> {
    message.headers_mut().remove(CONNECTION);
    let host = message.headers_mut().remove(HOST);
    let invalid = || HttpError::InvalidHeader { url: url.to_string(), name: HOST.to_string() };
    let mut parts = std::mem::take(message.uri_mut()).into_parts();
    parts.scheme = Some(uri::Scheme::HTTPS);
    let host = host.as_ref().map(HeaderValue::as_bytes).filter(|host| !host.is_empty());
    let authority = host.unwrap_or(url.authority.as_bytes());
    parts.authority = Some(uri::Authority::try_from(authority).map_err(|_| invalid())?);
    *message.uri_mut() = Uri::from_parts(parts).map_err(|_| invalid())?;
    Ok(())
}

/// What a connection of HTTP/2 does beside it, only as long as somebody waits for the answer.
#[derive(Clone)]
struct Tasks(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(work);
        }
    }
}

/// Reads an answer to its end.
async fn whole(
    response: http::Response<Incoming>,
    url: &Url,
    limit: Limit,
    phase: &AtomicU8,
) -> Result<Response, HttpError> {
    let (head, mut body) = response.into_parts();
    phase.store(Phase::Body as u8, Ordering::Relaxed);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|source| HttpError::Protocol { url: url.to_string(), source })?;
        // Trailers are of no interest.
        if let Ok(data) = frame.into_data() {
            if data.len() > limit.bytes - bytes.len() {
                if limit.cuts_redirects && crate::location_of(head.status, &head.headers).is_some() {
                    break;
                }
                let (url, status) = (url.to_string(), head.status);
                return Err(HttpError::TooLarge { url, status, limit: limit.bytes });
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Response { status: head.status, headers: head.headers, body: bytes.freeze() })
}

/// The connection moves the bytes; it is polled here rather than in a task of its own, so that dropping ends both.
async fn beside<T>(connection: impl Future, read: impl Future<Output = T>) -> T {
    let mut connection = std::pin::pin!(connection);
    let mut read = std::pin::pin!(read);
    let mut is_open = true;
    loop {
        // Both branches go on where they were in the next turn.
        tokio::select! {
            biased;
            done = &mut read => return done,
            // How it ended shows in what `read` gets.
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

#[cfg(test)]
mod tests;
