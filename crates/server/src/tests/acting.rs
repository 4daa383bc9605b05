//! What is done in containers, against a runtime that notes what it is asked: tokens stay here, sessions are counted to their
//! end, and no redirect is followed.

use std::sync::{Arc, Mutex};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use mainstay_auth::ActingVerb;
use mainstay_cri::Cri;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    secure::{Secure, secure_with},
    *,
};
use crate::ActingConfig;

const WEBSOCKET: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
const REDIRECT: &str = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";

/// A runtime that gives one address for everything, and whose streaming server answers everything the same.
struct Recording {
    heads: Arc<Mutex<Vec<String>>>,
    config: ActingConfig,
    _tasks: TaskGroup,
    _directory: tempfile::TempDir,
}

#[derive(Clone)]
pub(super) struct Streams(pub(super) TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, work: F) {
        self.0.spawn("stream", work);
    }
}

impl Recording {
    async fn start(answer: &'static str) -> Self {
        let (tasks, heads) = (TaskGroup::new(), Arc::<Mutex<Vec<String>>>::default());
        let streaming = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/1", streaming.local_addr().unwrap());
        let (group, noted) = (tasks.clone(), heads.clone());
        tasks.spawn("streaming", async move {
            while let Ok((mut stream, _)) = streaming.accept().await {
                let noted = noted.clone();
                group.spawn("session", async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    noted.lock().unwrap().push(String::from_utf8(head).unwrap());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    // Until the other side ends.
                    drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
                });
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let group = tasks.clone();
        tasks.spawn("cri", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (url, streams) = (url.clone(), Streams(group.clone()));
                group.spawn("connection", async move {
                    let service = service_fn(move |request| say(request, url.clone()));
                    let connection = hyper::server::conn::http2::Builder::new(streams)
                        .serve_connection(TokioIo::new(stream), service);
                    connection.await.ok();
                });
            }
        });
        let endpoint = format!("unix://{}", socket.display());
        let config = ActingConfig {
            cri: Cri::new(&endpoint, None, PATIENCE).unwrap(),
            idle: None,
            end_websockets: true,
            checkpoint_dir: directory.path().into(),
        };
        Self { heads, config, _tasks: tasks, _directory: directory }
    }
}

/// The answer of gRPC to exec, attach and portForward: a message whose first field is the address.
async fn say(
    _: Request<Incoming>,
    url: String,
) -> Result<
    Response<impl http_body::Body<Data = Bytes, Error = std::convert::Infallible>>,
    std::convert::Infallible,
> {
    let length = u8::try_from(url.len()).unwrap();
    assert!(length < 128, "one byte of length");
    let mut bytes = vec![0, 0, 0, 0, length + 2, 0x0a, length];
    bytes.extend_from_slice(url.as_bytes());
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(bytes)).with_trailers(async move { Some(Ok(trailers)) });
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

fn start(recording: &Recording) -> Secure {
    let config = recording.config.clone();
    let secure = secure_with(|_| {}, ActingVerb::Create, |it| it.acting = Some(config));
    let running = container("id1", "c", ContainerPhase::Running, "");
    secure.fixture.publish(snapshot(
        1,
        vec![simple_pod("web", "")],
        vec![observed_pod("web", true, vec![running])],
    ));
    secure
}

/// Asks for a WebSocket with a token among its subprotocols; the connection after the answer's head, and that.
async fn open(secure: &Secure, protocol: &str, token: &str) -> (TlsStream<TcpStream>, String) {
    let stream = TcpStream::connect(secure.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(secure.client(None))).connect(name, stream).await.unwrap();
    let token = URL_SAFE_NO_PAD.encode(token);
    let request = format!(
        "GET /exec/default/web/c?command=id&output=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}, {protocol}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("in time").unwrap());
    }
    (stream, String::from_utf8(head).unwrap())
}

async fn metric(secure: &Secure, name: &str) -> Option<String> {
    let labels = r#"{long_running="true",method="GET",path="exec",server_type="readwrite"}"#;
    let text = secure.fixture.get("/metrics").await.body;
    text.lines().find_map(|line| line.strip_prefix(&format!("{name}{labels} "))).map(str::to_owned)
}

#[tokio::test]
async fn the_runtime_never_sees_a_token_and_a_session_counts_to_its_end() {
    let recording = Recording::start(WEBSOCKET).await;
    let secure = start(&recording);
    let (session, head) = open(&secure, "v4.channel.k8s.io", "admin-token").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let seen = recording.heads.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    let lower = seen[0].to_ascii_lowercase();
    assert!(lower.contains("sec-websocket-protocol: v4.channel.k8s.io\r\n"), "{lower}");
    let encoded = URL_SAFE_NO_PAD.encode("admin-token");
    assert!(!lower.contains("bearer") && !seen[0].contains(&encoded), "{}", seen[0]);

    let (in_flight, finished) =
        ("kubelet_http_inflight_requests", "kubelet_http_requests_duration_seconds_count");
    assert_eq!(metric(&secure, in_flight).await.as_deref(), Some("1"));
    assert_eq!(metric(&secure, finished).await, None, "it goes on");
    drop(session);
    let deadline = Instant::now() + PATIENCE;
    while metric(&secure, finished).await.as_deref() != Some("1") {
        assert!(Instant::now() < deadline, "the session is over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(metric(&secure, in_flight).await.as_deref(), Some("0"));

    let (_, head) = open(&secure, "v4.channel.k8s.io", "forged").await;
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    assert_eq!(recording.heads.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_runtime_that_redirects_is_not_followed() {
    let recording = Recording::start(REDIRECT).await;
    let secure = start(&recording);
    let (mut session, head) = open(&secure, "v5.channel.k8s.io", "admin-token").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut bytes = Vec::new();
    let text = b"redirect not allowed";
    let find = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|it| it == text);
    while find(&bytes, text).is_none() {
        let read =
            tokio::time::timeout(PATIENCE, session.read_buf(&mut bytes)).await.expect("in time").unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&bytes));
    }
    let status = find(&bytes, b"{").unwrap();
    assert_eq!(bytes[status - 1], 3, "on the channel for errors: {}", String::from_utf8_lossy(&bytes));
    assert_eq!(recording.heads.lock().unwrap().len(), 1);

    // And put through as it is, it is an answer that is no upgrade.
    let (_, head) = open(&secure, "v4.channel.k8s.io", "admin-token").await;
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
}
