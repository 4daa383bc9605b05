use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use mainstay_task::TaskGroup;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{HttpError, Redirects, Request, Verify, get, get_following};

const CERTIFICATE: &[u8] = include_bytes!("../../tests/data/certificate.pem");
const KEY: &[u8] = include_bytes!("../../tests/data/key.pem");

fn request(url: String) -> Request {
    Request {
        asker: "test".into(),
        url,
        headers: Vec::new(),
        deadline: Duration::from_secs(10),
        max_body_bytes: 10_000,
        verify: Verify::Nothing,
        http2: true,
    }
}

type Incoming = http::Request<hyper::body::Incoming>;

/// What the test server answers.
async fn serve_one(incoming: Incoming) -> Result<http::Response<Full<Bytes>>, std::convert::Infallible> {
    let path = incoming.uri().path().to_owned();
    let builder = http::Response::builder();
    let response = match path.as_str() {
        "/echo" => {
            let mut text = format!("{} {}\n", incoming.method(), incoming.uri());
            for (name, value) in incoming.headers() {
                text.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
            }
            builder.header("x-test", "yes").body(text)
        }
        "/cookies" => {
            let cookies = (0..10).fold(builder, |builder, _| builder.header("set-cookie", "x".repeat(3_000)));
            cookies.body(String::new())
        }
        "/large" => builder.body("x".repeat(10_001)),
        "/exact" => builder.body("x".repeat(10_000)),
        "/teapot" => builder.status(418).body("short and stout".to_owned()),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(1000)).await;
            builder.body(String::new())
        }
        "/loop" => builder.status(302).header("location", "/loop").body(String::new()),
        // More of a page than anybody wants to read.
        "/chatty" => builder.status(302).header("location", "/teapot").body("x".repeat(20_000)),
        "/here" => builder.status(307).header("location", "echo?from=here").body(String::new()),
        "/away" => {
            let to = incoming.uri().query().unwrap().to_owned();
            builder.status(301).header("location", to).body(String::new())
        }
        _ => builder.status(404).body(String::new()),
    };
    Ok(response.unwrap().map(|text| Full::new(Bytes::from(text))))
}

async fn start(group: &TaskGroup, tls: bool) -> SocketAddr {
    start_speaking(group, tls, &[]).await
}

/// A server that agrees on these protocols, the first of which it speaks.
async fn start_speaking(group: &TaskGroup, tls: bool, protocols: &[&[u8]]) -> SocketAddr {
    let is_http2 = protocols.first() == Some(&tls::HTTP2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tls.then(|| {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    });
    let (inner, shutdown) = (group.clone(), group.shutdown());
    group.spawn("test server", async move {
        while let Some(accepted) = shutdown.run_until_signalled(listener.accept()).await {
            let (stream, _) = accepted.unwrap();
            let acceptor = acceptor.clone();
            inner.spawn("test connection", async move {
                let builder = hyper::server::conn::http1::Builder::new();
                match acceptor {
                    None => drop(builder.serve_connection(TokioIo::new(stream), service_fn(serve_one)).await),
                    Some(acceptor) if is_http2 => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            drop(builder.serve_connection(TokioIo::new(stream), service_fn(serve_one)).await);
                        }
                    }
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            drop(builder.serve_connection(TokioIo::new(stream), service_fn(serve_one)).await);
                        }
                    }
                }
            });
        }
    });
    address
}

/// A server that says `answer` to whatever it is sent, and then waits.
async fn start_raw(group: &TaskGroup, answer: &'static [u8], then_close: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    group.spawn("raw server", async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        stream.write_all(answer).await.unwrap();
        if !then_close {
            tokio::time::sleep(Duration::from_secs(1000)).await;
        }
    });
    address
}

#[tokio::test]
async fn an_answer_whole() {
    let group = TaskGroup::new();
    let address = start(&group, false).await;
    let mut request = request(format!("http://{address}/echo?a=b c"));
    request.headers = vec![("X-Twice".to_owned(), "1".to_owned()), ("X-Twice".to_owned(), "2".to_owned())];
    let response = get(&request).await.unwrap();
    assert_eq!(
        (response.status, response.headers.get("x-test").unwrap().as_bytes()),
        (StatusCode::OK, b"yes".as_slice())
    );
    assert_eq!(
        std::str::from_utf8(&response.body).unwrap(),
        format!("GET /echo?a=b%20c\nx-twice: 1\nx-twice: 2\nhost: {address}\nconnection: close\n")
    );
    request.headers = vec![("Host".to_owned(), "other.example".to_owned())];
    let response = get(&request).await.unwrap();
    assert!(std::str::from_utf8(&response.body).unwrap().contains("\nhost: other.example\n"));
    request.url = format!("http://{address}/teapot");
    let response = get(&request).await.unwrap();
    assert_eq!((response.status.as_u16(), response.body.as_ref()), (418, b"short and stout".as_slice()));
    request.url = format!("http://localhost:{}/teapot", address.port());
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 418);
}

#[tokio::test]
async fn a_server_that_speaks_only_http2_is_asked_so() {
    let group = TaskGroup::new();
    let address = start_speaking(&group, true, &[tls::HTTP2]).await;
    let mut request = request(format!("https://{address}/echo?a=b"));
    request.headers = vec![("X-Test".to_owned(), "1".to_owned())];
    let text = |response: Response| String::from_utf8(response.body.to_vec()).unwrap();
    let answer = text(get(&request).await.unwrap());
    assert_eq!(answer, format!("GET https://{address}/echo?a=b\nx-test: 1\n"));
    request.headers = vec![("Host".to_owned(), "other.example".to_owned())];
    assert_eq!(text(get(&request).await.unwrap()), "GET https://other.example/echo?a=b\n");
    request.url = format!("https://{address}/large");
    let error = get(&request).await.unwrap_err();
    assert!(matches!(error, HttpError::TooLarge { limit: 10_000, .. }), "{error}");
    request.url = format!("https://{address}/teapot");
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 418);
    request.headers = vec![("Host".to_owned(), String::new())];
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 418, "an empty host is the URL's");
    request.url = format!("https://{address}/cookies");
    assert_eq!(get(&request).await.unwrap().headers.get_all("set-cookie").iter().count(), 10);
    let refused = get(&Request { http2: false, ..request.clone() }).await;
    assert!(refused.is_err(), "who is not to speak it does not: {refused:?}");
    request.headers = vec![("Host".to_owned(), "not a host".to_owned())];
    let error = get(&request).await.unwrap_err();
    assert!(matches!(error, HttpError::InvalidHeader { .. }), "{error}");

    // Whoever agrees on nothing, or on the old one, is asked in the old way.
    let address = start_speaking(&group, true, &[b"http/1.1"]).await;
    let answer = text(get(&super::tests::request(format!("https://{address}/echo"))).await.unwrap());
    assert!(answer.contains("\nconnection: close\n"), "{answer}");
}

#[tokio::test]
async fn https_with_and_without_verification() {
    let group = TaskGroup::new();
    let address = start(&group, true).await;
    let mut request = request(format!("https://{address}/teapot"));
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 418);
    request.url = format!("https://localhost:{}/teapot", address.port());
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 418);
    request.verify = Verify::SystemRoots;
    let error = get(&request).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }) && !error.is_plain_http_on_tls(), "{error}");
}

#[tokio::test]
async fn a_certificate_of_a_known_root_is_trusted() {
    let group = TaskGroup::new();
    let address = start(&group, true).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE).unwrap()).unwrap();
    let connector = TlsConnector::from(Arc::new(tls::with_roots(roots).unwrap()));
    let stream = TcpStream::connect(address).await.unwrap();
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    connector.connect(ServerName::try_from("elsewhere.example").unwrap(), stream).await.unwrap_err();
}

#[tokio::test]
async fn plain_http_where_https_was_asked_for() {
    let group = TaskGroup::new();
    // hyper closes such a connection without a word, Go's and nginx' servers answer in plain HTTP.
    let address = start_raw(&group, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", true).await;
    let error = get(&request(format!("https://{address}/"))).await.unwrap_err();
    assert!(error.is_plain_http_on_tls(), "{error:?}");
    assert!(error.to_string().ends_with("server gave HTTP response to HTTPS client"));
    let address = start_raw(&group, b"SSH-2.0-OpenSSH\r\n", true).await;
    let error = get(&request(format!("https://{address}/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    let address = start_raw(&group, b"", true).await;
    let error = get(&request(format!("https://{address}/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn bodies_are_limited() {
    let group = TaskGroup::new();
    let address = start(&group, false).await;
    assert_eq!(get(&request(format!("http://{address}/exact"))).await.unwrap().body.len(), 10_000);
    let error = get(&request(format!("http://{address}/large"))).await.unwrap_err();
    assert!(matches!(error, HttpError::TooLarge { limit: 10_000, .. }), "{error:?}");
    assert_eq!(error.status(), Some(StatusCode::OK));
    // A body without end or length.
    let address =
        start_raw(&group, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\nxxxx", false)
            .await;
    let mut request = request(format!("http://{address}/"));
    request.max_body_bytes = 3;
    assert!(matches!(get(&request).await, Err(HttpError::TooLarge { .. })));
}

#[tokio::test]
async fn the_deadline_covers_every_phase() {
    let group = TaskGroup::new();
    let slow = start(&group, false).await;
    let mute = async || start_raw(&group, b"", false).await;
    let half = async || start_raw(&group, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", false).await;
    tokio::join!(
        ends_while("awaiting headers", async || format!("http://{slow}/slow")),
        ends_while("agreeing on TLS", async || format!("https://{}/", mute().await)),
        ends_while("reading body", async || format!("http://{}/", half().await)),
    );
}

/// The deadline ends a request in this phase. Whoever was held up on the way to it is given more time.
async fn ends_while(phase: &str, url: impl AsyncFn() -> String) {
    let mut deadline = Duration::from_secs(4);
    loop {
        let error = get(&Request { deadline, ..request(url().await) }).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        if error.to_string().contains(phase) {
            return;
        }
        assert!(deadline < Duration::from_secs(60), "{error}");
        deadline *= 4;
    }
}

#[tokio::test]
async fn what_cannot_be_reached() {
    // Nobody listens, and nobody else can be given the port.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = held.local_addr().unwrap();
    let error = get(&request(format!("http://{address}/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("refused") && error.is_transient(), "{error}");
    // A name server that is away is waited for by the resolver, for longer than others would.
    let nowhere =
        Request { deadline: Duration::from_secs(120), ..request("http://no-such-host.invalid/".to_owned()) };
    let error = get(&nowhere).await.unwrap_err();
    assert!(matches!(error, HttpError::Resolve { .. }), "{error:?}");
    let mut request = request(format!("http://{address}/"));
    request.headers = vec![("X-Bad".to_owned(), "a\r\nb: c".to_owned())];
    let error = get(&request).await.unwrap_err();
    assert!(matches!(error, HttpError::InvalidHeader { .. }) && !error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn broken_answers() {
    let group = TaskGroup::new();
    for answer in [
        b"".as_slice(),
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let address = start_raw(&group, answer, true).await;
        let error = get(&request(format!("http://{address}/"))).await.unwrap_err();
        assert!(matches!(error, HttpError::Protocol { .. }), "{error:?}");
    }
    // Without a length the end of the connection is the end of the body.
    let address = start_raw(&group, b"HTTP/1.0 200 OK\r\n\r\nuntil the end", true).await;
    assert_eq!(get(&request(format!("http://{address}/"))).await.unwrap().body, "until the end");
}

#[tokio::test]
async fn redirects_are_followed_only_where_asked() {
    let group = TaskGroup::new();
    let address = start(&group, false).await;
    let mut request = request(format!("http://{address}/here"));
    request.headers = vec![("Authorization".to_owned(), "Bearer x".to_owned())];
    assert_eq!(get(&request).await.unwrap().status.as_u16(), 307);
    let response = get_following(&request, Redirects::SameHost).await.unwrap();
    let text = String::from_utf8(response.body.to_vec()).unwrap();
    assert!(text.starts_with("GET /echo?from=here\nauthorization: Bearer x\n"), "{text}");

    request.url = format!("http://{address}/away?http://localhost:{}/echo", address.port());
    assert_eq!(get_following(&request, Redirects::SameHost).await.unwrap().status.as_u16(), 301);
    let response = get_following(&request, Redirects::Any).await.unwrap();
    let text = String::from_utf8(response.body.to_vec()).unwrap();
    assert!(text.starts_with("GET /echo\nhost: localhost"), "{text}");

    // What is no way to go on is the answer to those who stay, and an error to those who go anywhere.
    request.url = format!("http://{address}/away?ftp://elsewhere/");
    assert_eq!(get_following(&request, Redirects::SameHost).await.unwrap().status.as_u16(), 301);
    let error = get_following(&request, Redirects::Any).await.unwrap_err();
    assert!(matches!(error, HttpError::InvalidUrl { .. }), "{error:?}");
    request.url = format!("http://{address}/chatty");
    assert_eq!(get_following(&request, Redirects::SameHost).await.unwrap().status.as_u16(), 418);
    assert!(matches!(get(&request).await, Err(HttpError::TooLarge { .. })));

    request.url = format!("http://{address}/loop");
    let error = get_following(&request, Redirects::Any).await.unwrap_err();
    assert!(matches!(error, HttpError::TooManyRedirects { .. }), "{error:?}");
}
