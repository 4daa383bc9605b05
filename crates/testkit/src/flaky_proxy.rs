//! A way to the API server that can be made a bad one: in front of the real one, for what that cannot be made to do.

use crate::open_streams::OpenStreams;
use crate::reviews::write_kubeconfig;
use crate::tls::tls_server;
use crate::{CertificateWish, ControlPlane, Usage, tls_client};
use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What becomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// They are passed on.
    Fair,
    /// 429, with the wish to come back in a second.
    TooMany,
    /// 500.
    Broken,
    /// The connection ends instead of an answer.
    Cut,
    /// No answer ever comes.
    Silent,
    /// Watches end with 410; the rest is passed on.
    Expired,
    /// Watches are answered with 500; the rest is passed on.
    NoWatches,
    /// Lists and watches of nodes are not answered; the rest is passed on, looking one up included.
    NoNodeNews,
    /// 200 to everything, by somebody who is no API server: an empty object, its health, a `Status`, in turn.
    Lying,
}

/// What a gateway says that knows nothing of Kubernetes.
const LIES: [&str; 3] =
    ["{}", r#"{"status":"UP"}"#, r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#];

/// An HTTPS proxy between one node and a control plane; it speaks to the latter as that node. Ends with its handle.
#[derive(Debug)]
pub struct FlakyProxy {
    address: SocketAddr,
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    inside: Arc<ClientConfig>,
    outside: Arc<ServerConfig>,
    now: Mutex<Now>,
    open: OpenStreams,
    ended: AtomicBool,
}

#[derive(Debug)]
struct Now {
    mood: Mood,
    /// Requests that were not passed on in it.
    spoiled: usize,
    /// How long tokens and certificates seem to be good.
    life: Option<Duration>,
}

impl FlakyProxy {
    /// Starts it for a node of that name; its files go below the control plane's.
    ///
    /// # Errors
    /// When it cannot listen, or its files cannot be written.
    pub fn start(plane: &ControlPlane, node: &str) -> Result<Self> {
        let authority = plane.authority();
        let wish = CertificateWish {
            name: "kube-apiserver",
            organizations: &[],
            names: &["127.0.0.1"],
            usage: Usage::Server,
            expired: false,
            life: None,
        };
        let outside = tls_server(&authority.issue(&wish)?, authority)?;
        let shown =
            authority.issue(&CertificateWish::client(&format!("system:node:{node}"), &["system:nodes"]))?;
        let inside = tls_client(&authority.pem, Some(&shown))?;
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let address = listener.local_addr().context("no address")?;
        let dir = plane.dir().join(format!("proxy-{node}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let kubeconfig = write_kubeconfig(&dir, &format!("https://{address}"), &authority.pem, &shown)?;
        let shared = Arc::new(Shared {
            server: plane.address(),
            inside,
            outside,
            now: Mutex::new(Now { mood: Mood::Fair, spoiled: 0, life: None }),
            open: OpenStreams::default(),
            ended: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || serve(&listener, &serving));
        Ok(Self { address, kubeconfig, shared })
    }

    /// The node's kubeconfig, which leads here.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// Changes what becomes of requests. Those under way, watches among them, are cut.
    pub fn set(&self, mood: Mood) {
        let mut now = self.shared.now();
        (now.mood, now.spoiled) = (mood, 0);
        drop(now);
        self.shared.open.close_all();
    }

    /// Lets tokens and pods' certificates that are issued from now on seem to be good for so long only, or as long as they are: an API server
    /// issues none for less than ten minutes.
    pub fn shorten(&self, life: Option<Duration>) {
        self.shared.now().life = life;
    }

    /// How many requests have not been passed on since the last change.
    pub fn spoiled(&self) -> usize {
        self.shared.now().spoiled
    }
}

impl Drop for FlakyProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.open.close_all();
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of a request, and if it is not passed on, how many were not before it.
    fn judge(&self, is_watch: bool, is_about_nodes: bool) -> (Mood, Option<usize>) {
        let mut now = self.now();
        let fair = match now.mood {
            Mood::Fair => true,
            Mood::Expired | Mood::NoWatches => !is_watch,
            Mood::NoNodeNews => !is_about_nodes,
            Mood::TooMany | Mood::Broken | Mood::Cut | Mood::Silent | Mood::Lying => false,
        };
        let number = now.spoiled;
        now.spoiled += usize::from(!fair);
        (now.mood, (!fair).then_some(number))
    }
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = shared.clone();
        // A connection that breaks is what it is for.
        std::thread::spawn(move || connection(stream, &shared).ok());
    }
}

/// One request for each connection: it is closed behind the answer.
fn connection(stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(300)))?;
    let _open = shared.open.keep(&stream)?;
    let session = ServerConnection::new(shared.outside.clone())?;
    let mut outside = BufReader::new(StreamOwned::new(session, stream));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if outside.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let header = |wanted: &str| {
        let mut headers = head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
    };
    let length = header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    outside.read_exact(&mut body)?;
    let line = head.lines().next().unwrap_or_default();
    let watch = line.contains("watch=true") || line.contains("watch=1");
    let (mood, spoiled) = shared.judge(watch, line.starts_with("GET /api/v1/nodes?"));
    let answer = |status: &str, more: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n{more}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let said = |code: u16, reason: &str| {
        format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"made up","reason":"{reason}","code":{code}}}"#
        )
    };
    let made_up = match mood {
        _ if spoiled.is_none() => None,
        Mood::Lying => {
            let lie = spoiled.and_then(|number| LIES.get(number % LIES.len())).unwrap_or(&"{}");
            Some(answer("200 OK", "", lie))
        }
        Mood::TooMany => {
            Some(answer("429 Too Many Requests", "retry-after: 1\r\n", &said(429, "TooManyRequests")))
        }
        Mood::Broken | Mood::NoWatches => {
            Some(answer("500 Internal Server Error", "", &said(500, "InternalError")))
        }
        Mood::Expired => {
            let event = format!(r#"{{"type":"ERROR","object":{}}}"#, said(410, "Expired"));
            Some(answer("200 OK", "", &format!("{event}\n")))
        }
        Mood::Cut | Mood::Fair => return Ok(()),
        Mood::Silent | Mood::NoNodeNews => {
            // Until the other side has enough of it, or the mood changes.
            let mut nothing = [0; 1];
            outside.read_exact(&mut nothing).ok();
            return Ok(());
        }
    };
    let outside = outside.get_mut();
    if let Some(made_up) = made_up {
        outside.write_all(made_up.as_bytes())?;
        outside.conn.send_close_notify();
        return Ok(outside.flush()?);
    }
    let stream = TcpStream::connect(shared.server)?;
    let _open = shared.open.keep(&stream)?;
    let name = ServerName::try_from("127.0.0.1").context("no name")?;
    let session = ClientConnection::new(shared.inside.clone(), name)?;
    let mut inside = StreamOwned::new(session, stream);
    // The answer ends with the connection, so nobody has to know how long it is.
    let kept: String = head
        .trim_end()
        .lines()
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
        .map(|line| format!("{line}\r\n"))
        .collect();
    inside.write_all(format!("{kept}connection: close\r\n\r\n").as_bytes())?;
    inside.write_all(&body)?;
    inside.flush()?;
    let mut buffer = vec![0; 64 << 10];
    let line = head.lines().next().unwrap_or_default();
    let issues = line.contains("/token ") || line.contains("/podcertificaterequests");
    loop {
        let count = inside.read(&mut buffer).unwrap_or(0);
        if let Some(life) = shared.now().life.filter(|_| issues) {
            shorten(buffer.get_mut(..count).unwrap_or_default(), life);
        }
        if count == 0 {
            outside.conn.send_close_notify();
            outside.flush()?;
            return Ok(outside.sock.shutdown(Shutdown::Both)?);
        }
        outside.write_all(buffer.get(..count).unwrap_or_default())?;
        outside.flush()?;
    }
}

/// Rewrites how long something is good, in as many bytes as before: nobody has to know where a chunk ends.
fn shorten(answer: &mut [u8], life: Duration) {
    let until = jiff::Timestamp::now().saturating_add(life).unwrap_or(jiff::Timestamp::MAX);
    let until = until.strftime("\"%Y-%m-%dT%H:%M:%SZ\"").to_string();
    let (seconds, at_once) =
        (life.as_secs().to_string(), jiff::Timestamp::now().strftime("\"%Y-%m-%dT%H:%M:%SZ\"").to_string());
    let fields =
        [("\"expirationSeconds\":", seconds), ("\"beginRefreshAt\":", at_once), ("\"notAfter\":", until)];
    for (field, value) in fields {
        let mut from = 0;
        while let Some(place) = answer.get(from..).and_then(|rest| find(rest, field.as_bytes())) {
            from += place + field.len();
            let rest = answer.get_mut(from..).unwrap_or_default();
            let length = rest.iter().position(|byte| matches!(byte, b',' | b'}')).unwrap_or(0);
            if length >= value.len() {
                let (padding, text) = rest.split_at_mut(length - value.len());
                padding.fill(b' ');
                text.iter_mut().zip(value.bytes()).for_each(|(old, new)| *old = new);
            }
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|part| part == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_shortened_in_place() {
        let before =
            r#"{"spec":{"expirationSeconds":3607,"a":1},"status":{"notAfter":"2099-01-01T00:00:00Z"}}"#;
        let mut answer = before.as_bytes().to_vec();
        shorten(&mut answer, Duration::from_secs(20));
        let text = String::from_utf8(answer).unwrap();
        assert!(
            text.starts_with(r#"{"spec":{"expirationSeconds":  20,"a":1},"status":{"notAfter":"20"#),
            "{text}"
        );
        assert_eq!(text.len(), before.len());
        assert!(!text.contains("2099") && text.ends_with("Z\"}}"), "{text}");
    }
}
