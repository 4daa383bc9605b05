//! An API server that knows nothing but reviews, for what a real one cannot be made to do: fail, hang, count. What else a node
//! asks for is an empty list, and what it writes is taken as it comes.

use crate::open_streams::OpenStreams;
use crate::tls::tls_server;
use crate::{Authority, CertificateWish, Usage};
use anyhow::{Context, Result};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One question that was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `TokenReview` or `SubjectAccessReview`.
    pub kind: String,
    /// `spec`, as it came.
    pub spec: Value,
}

/// What is answered: the HTTP status, and `status` of the review (or all of the body, if the HTTP status is not 201).
pub type Judge = dyn Fn(&Asked) -> (u16, Value) + Send + Sync;

/// A TLS server that answers reviews by a function. Ends with its handle.
pub struct ReviewServer {
    address: SocketAddr,
    authority: Authority,
    shared: Arc<Shared>,
    dir: PathBuf,
}

struct Shared {
    tls: Arc<ServerConfig>,
    judge: Box<Judge>,
    asked: Mutex<Vec<Asked>>,
    open: OpenStreams,
    away: AtomicBool,
    ended: AtomicBool,
}

impl std::fmt::Debug for ReviewServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReviewServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ReviewServer {
    /// Starts it; its files go below `dir`.
    ///
    /// # Errors
    /// When it cannot listen, or its files cannot be written.
    pub fn start(
        dir: impl Into<PathBuf>,
        judge: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let authority = Authority::new("cluster")?;
        let wish = CertificateWish {
            name: "kube-apiserver",
            organizations: &[],
            names: &["127.0.0.1"],
            usage: Usage::Server,
            expired: false,
            life: None,
        };
        let tls = tls_server(&authority.issue(&wish)?, &authority)?;
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let address = listener.local_addr().context("no address")?;
        let shared = Arc::new(Shared {
            tls,
            judge: Box::new(judge),
            asked: Mutex::default(),
            open: OpenStreams::default(),
            away: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || serve(&listener, &serving));
        Ok(Self { address, authority, shared, dir })
    }

    /// A kubeconfig for a node of that name, with a client certificate in files beside it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let name = format!("system:node:{node}");
        let shown = self.authority.issue(&CertificateWish::client(&name, &["system:nodes"]))?;
        write_kubeconfig(&self.dir, &format!("https://{}", self.address), &self.authority.pem, &shown)
    }

    /// Everything that was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many questions of a kind were asked so far.
    pub fn count(&self, kind: &str) -> usize {
        self.asked().iter().filter(|asked| asked.kind == kind).count()
    }

    /// Whether it goes away (connections break and new ones are closed at once) or is back.
    pub fn set_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
        if away {
            self.shared.open.close_all();
        }
    }
}

impl Drop for ReviewServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.open.close_all();
        // Wakes the thread that accepts; one that has ended already needs no waking.
        TcpStream::connect(self.address).ok();
    }
}

/// Writes `kubeconfig`, `ca.crt`, `client.crt` and `client.key` into a directory.
///
/// # Errors
/// When they cannot be written.
pub fn write_kubeconfig(
    dir: &Path,
    server: &str,
    authority: &str,
    shown: &crate::Certificate,
) -> Result<PathBuf> {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    write("ca.crt", authority)?;
    write("client.crt", &shown.certificate)?;
    write("client.key", &shown.key)?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        "clusters": [{ "name": "k", "cluster": { "server": server, "certificate-authority": "ca.crt" } }],
        "users": [{ "name": "u", "user": { "client-certificate": "client.crt", "client-key": "client.key" } }],
    });
    write("kubeconfig", &config.to_string())
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        // In this order: whoever goes away in between closes it.
        let Ok(open) = shared.open.keep(&stream) else { continue };
        if shared.away.load(Ordering::SeqCst) {
            continue;
        }
        let shared = shared.clone();
        std::thread::spawn(move || {
            // A connection that breaks is what some tests are about.
            connection(stream, &shared).ok();
            drop(open);
        });
    }
}

fn connection(stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let session = ServerConnection::new(shared.tls.clone())?;
    let mut stream = BufReader::new(StreamOwned::new(session, stream));
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let kind = review["kind"].as_str().unwrap_or_default().to_owned();
        let (status, body) = if kind.ends_with("Review") {
            let asked = Asked { kind, spec: review["spec"].clone() };
            let (status, said) = (shared.judge)(&asked);
            // Only now: who sees that a question came may change what the next answer is, not this one's.
            shared.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
            if status == 201 {
                review["status"] = said;
                (status, review)
            } else {
                (status, said)
            }
        } else if body.is_empty() {
            (200, nothing(head.split(' ').nth(1).unwrap_or_default()))
        } else {
            (201, review)
        };
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(answer.as_bytes())?;
        stream.get_mut().flush()?;
    }
}

/// The list of nothing of what is asked for.
fn nothing(path: &str) -> Value {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let api_version = match parts.as_slice() {
        ["apis", group, version, ..] => format!("{group}/{version}"),
        _ => "v1".to_owned(),
    };
    let kind = match parts.last().copied().unwrap_or_default() {
        "pods" => "PodList",
        "nodes" => "NodeList",
        "services" => "ServiceList",
        "runtimeclasses" => "RuntimeClassList",
        "clustertrustbundles" => "ClusterTrustBundleList",
        _ => "List",
    };
    json!({ "kind": kind, "apiVersion": api_version, "metadata": { "resourceVersion": "1" }, "items": [] })
}
