//! An API server that says what a test wants it to.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_task::TaskGroup;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpSocket;
use tokio_rustls::TlsAcceptor;

/// kube-apiserver's limit of streams on a connection.
const STREAMS: u32 = 100;

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// What a handler sees: the request with its whole body, on which connection it came, and the client's certificate.
pub(crate) struct Seen {
    pub(crate) request: Request<Bytes>,
    pub(crate) connection: usize,
    pub(crate) certificate: Option<Vec<u8>>,
}

impl Seen {
    pub(crate) fn authorization(&self) -> &str {
        self.request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

type Handler = Arc<dyn Fn(&Seen) -> Response<Body> + Send + Sync>;

/// An authority with its key, and what it signs.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = pem("CERTIFICATE", params.self_signed(&key).unwrap().der());
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key.
    pub(crate) fn issue(
        &self,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        expired: bool,
    ) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names =
            vec![SanType::DnsName(name.try_into().unwrap()), SanType::IpAddress([127, 0, 0, 1].into())];
        params.extended_key_usages = vec![usage];
        if expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().to_vec(), key.serialized_der().to_vec())
    }
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) authority: Authority,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Those that have ended.
    pub(crate) ended: Arc<AtomicUsize>,
    pub(crate) tasks: TaskGroup,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) struct Options {
    pub(crate) http2: bool,
    pub(crate) name: &'static str,
    pub(crate) expired: bool,
    pub(crate) address: SocketAddr,
}

impl Default for Options {
    fn default() -> Self {
        Self { http2: true, name: "api.test", expired: false, address: ([127, 0, 0, 1], 0).into() }
    }
}

impl Server {
    pub(crate) async fn start(
        options: Options,
        handler: impl Fn(&Seen) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new("cluster");
        let (certificate, key) =
            authority.issue(options.name, ExtendedKeyUsagePurpose::ServerAuth, options.expired);
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in rustls_pem(&authority.pem) {
            roots.add(certificate).unwrap();
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.into()], PrivateKeyDer::Pkcs8(key.into()))
            .unwrap();
        config.alpn_protocols = if options.http2 { vec![b"h2".to_vec()] } else { vec![b"http/1.1".to_vec()] };
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        // A port that was chosen is one that the test holds, so that nobody else is given it while no server is there.
        socket.set_reuseport(options.address.port() != 0).unwrap();
        socket.bind(options.address).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let (tasks, connections) = (TaskGroup::new(), Arc::new(AtomicUsize::new(0)));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let handler: Handler = Arc::new(handler);
        let ended = Arc::new(AtomicUsize::new(0));
        let (group, count, over) = (tasks.clone(), connections.clone(), ended.clone());
        tasks.spawn("accept", async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let connection = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (acceptor, handler, inner) = (acceptor.clone(), handler.clone(), group.clone());
                let over = over.clone();
                group.spawn("serve", async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let session = stream.get_ref().1;
                    let certificate =
                        session.peer_certificates().and_then(|chain| chain.first()).map(|one| one.to_vec());
                    let http2 = session.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (handler, certificate) = (handler.clone(), certificate.clone());
                        async move {
                            let (head, body) = request.into_parts();
                            let body = body.collect().await.unwrap().to_bytes();
                            let seen =
                                Seen { request: Request::from_parts(head, body), connection, certificate };
                            Ok::<_, Infallible>(handler(&seen))
                        }
                    });
                    let io = TokioIo::new(stream);
                    if http2 {
                        hyper::server::conn::http2::Builder::new(Streams(inner))
                            .timer(TokioTimer::new())
                            .max_concurrent_streams(STREAMS)
                            .serve_connection(io, service)
                            .await
                            .ok();
                    } else {
                        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await.ok();
                    }
                    over.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), &authority.pem).unwrap();
        Self { address, authority, connections, ended, tasks, dir }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a kubeconfig: YAML of the cluster beside `server`, and of the user.
    pub(crate) fn kubeconfig(&self, cluster: &str, user: &str) -> PathBuf {
        kubeconfig(self.dir.path(), &format!("https://{}", self.address), cluster, user)
    }

    pub(crate) fn client(&self, cluster: &str, user: &str) -> crate::Client {
        let path = self.kubeconfig(cluster, user);
        let rate = crate::Rate { per_second: 1000, burst: 1000 };
        crate::Client::open(path, rate, "test", &self.tasks).unwrap()
    }
}

pub(crate) fn kubeconfig(dir: &Path, server: &str, cluster: &str, user: &str) -> PathBuf {
    let path = dir.join("kubeconfig");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{server}', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn rustls_pem(pem: &str) -> Vec<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
}

#[derive(Clone)]
struct Streams(TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, work: F) {
        self.0.spawn("stream", work);
    }
}

pub(crate) fn json(status: u16, value: &serde_json::Value) -> Response<Body> {
    text(status, value.to_string())
}

pub(crate) fn text(status: u16, text: impl Into<Bytes>) -> Response<Body> {
    Response::builder().status(status).body(Full::new(text.into()).boxed()).unwrap()
}

/// A body of pieces, that stays open for so long after the last.
pub(crate) fn pieces(pieces: Vec<String>, then: Duration) -> Response<Body> {
    Response::new(
        Slowly { pieces: pieces.into(), end: Mutex::new(Box::pin(tokio::time::sleep(then))) }.boxed(),
    )
}

struct Slowly {
    pieces: std::collections::VecDeque<String>,
    end: Mutex<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl hyper::body::Body for Slowly {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        if let Some(piece) = self.pieces.pop_front() {
            return std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(piece.into()))));
        }
        self.end.lock().unwrap().as_mut().poll(cx).map(|()| None)
    }
}
