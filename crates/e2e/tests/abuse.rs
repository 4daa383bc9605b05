//! What strangers can do to the ports: much, and nothing that others would notice.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mainstay_e2e::seen::PATIENCE;
use mainstay_testkit::{Containerd, Flavor, Http, Node, tls_client, wait_until};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// A node whose secure port one local user may read pods through.
struct Open {
    node: Node,
    config: Arc<ClientConfig>,
    _containerd: Containerd,
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

impl Open {
    fn start() -> Self {
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        let mut node = Node::builder().containerd(&containerd).prepare().unwrap();
        let token = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let access = format!(
            "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: local, tokenSHA256: {token}}}]\n\
             rules: [{{users: [local], verbs: ['*'], subresources: ['*']}}]\n"
        );
        fs::write(node.root().join("access.yaml"), access).unwrap();
        node.start_again().unwrap();
        node.wait_for(PATIENCE, "a first snapshot", |_| Ok(())).unwrap();
        let own = fs::read_to_string(node.root().join("pki/kubelet.crt")).unwrap();
        Self { node, config: tls_client(&own, None).unwrap(), _containerd: containerd }
    }

    fn address(&self) -> SocketAddr {
        self.node.secure()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address(), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn tls(&self) -> Tls {
        let name = ServerName::from(self.address().ip());
        StreamOwned::new(ClientConnection::new(self.config.clone(), name).unwrap(), self.connect())
    }

    /// Somebody with a right is served, whatever else goes on.
    fn serves(&self, while_what: &str) {
        let https = Http::Tls(self.address(), self.config.clone());
        wait_until(PATIENCE, &format!("an answer while {while_what}"), || {
            match https.request("GET", "/pods", &[("Authorization", "Bearer secret")]) {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .unwrap();
        let healthy = Http::Tcp(self.node.healthz_address()).get("/healthz").unwrap();
        assert_eq!(healthy.status, 200, "{while_what}");
    }

    /// Resident memory in MiB.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.node.pid().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.node.pid().unwrap())).unwrap().count()
    }
}

/// What comes back until the other side closes or breaks off; both are fine for somebody who misbehaves.
fn rest(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn strangers_who_hold_connections_lock_nobody_out() {
    let open = Open::start();
    let (memory, descriptors) = (open.memory(), open.descriptors());
    // Somebody who was let in, and keeps the connection.
    let mut friend = open.tls();
    let ask = |friend: &mut Tls| {
        friend
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n")
            .unwrap();
        let mut answer = Vec::<u8>::new();
        // To its last byte: what is left of it would be taken for the beginning of the next.
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut piece = [0; 4096];
            let read = friend.read(&mut piece).unwrap();
            answer.extend_from_slice(&piece[..read]);
            let good = read > 0 && answer.starts_with(b"HTTP/1.1 200");
            assert!(good, "{}", String::from_utf8_lossy(&answer));
        }
    };
    ask(&mut friend);
    // Ten thousand, in heaps that this process has descriptors for. Each heap alone is more than there are places.
    for _ in 0..5 {
        let idle: Vec<TcpStream> = (0..2000).map(|_| open.connect()).collect();
        open.serves("two thousand connections say nothing");
        wait_until(PATIENCE, "those who had to make room to be gone", || {
            let left = open.descriptors();
            if left < descriptors + 1700 { Ok(()) } else { Err(format!("{left} descriptors")) }
        })
        .unwrap();
        drop(idle);
        // Who says nothing for 90 s is let go of, known or not.
        ask(&mut friend);
    }
    // Slow headers, after a handshake: one byte, and no more.
    let slow: Vec<Tls> = (0..100)
        .map(|_| {
            let mut stream = open.tls();
            stream.write_all(b"G").unwrap();
            stream
        })
        .collect();
    open.serves("a hundred send their headers slowly");
    ask(&mut friend);
    drop(slow);
    // Sixty times nearly a mebibyte of headers that never end.
    let flood = [b"GET /pods HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 900 << 10]].concat();
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut stream = open.tls();
        // It may be cut off while it sends.
        stream.write_all(&flood).ok();
        held.push(stream);
        ask(&mut friend);
    }
    open.serves("sixty send endless headers");
    ask(&mut friend);
    let grown = open.memory().saturating_sub(memory);
    assert!(grown < 150, "{grown} MiB more than before");
    drop(held);
    wait_until(PATIENCE, "connections to be closed", || {
        let left = open.descriptors();
        if left < descriptors + 50 { Ok(()) } else { Err(format!("{left} descriptors")) }
    })
    .unwrap();
}

#[test]
fn what_is_no_proper_request_is_refused_and_never_read_as_two() {
    let open = Open::start();
    let memory = open.memory();
    // Not TLS, and TLS that is none.
    let mut plain = open.connect();
    plain.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(rest(&mut plain).starts_with("HTTP/1.0 400"));
    let mut junk = open.connect();
    junk.write_all(&[0x16, 3, 1, 0x40, 0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    junk.write_all(&[0xff; 20_000]).ok();
    rest(&mut junk);

    // A body that is announced twice, or in ways that two readers could take differently. The second request within must
    // never be answered.
    let hidden = "GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n";
    for (what, headers, body) in [
        ("both", "Content-Length: 4\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        ("two lengths", "Content-Length: 0\r\nContent-Length: 70", ""),
        ("lengths in one line", "Content-Length: 0, 70", ""),
        ("a sign", "Content-Length: +0", ""),
        ("blank before the colon", "Content-Length : 0", ""),
        ("not the last coding", "Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
        ("an odd coding", "Transfer-Encoding: xchunked", "0\r\n\r\n"),
        ("a folded line", "Transfer-Encoding:\r\n chunked", "0\r\n\r\n"),
        ("a chunk size that overflows", "Transfer-Encoding: chunked", "10000000000000000\r\n"),
    ] {
        let mut stream = open.tls();
        let request = format!(
            "GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\n{headers}\r\n\r\n{body}{hidden}"
        );
        stream.write_all(request.as_bytes()).ok();
        // However long the first answer takes, a second one would come right behind it.
        let mut first = [0; 4096];
        let read = stream.read(&mut first).unwrap_or_default();
        stream.sock.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&first[..read]), rest(&mut stream));
        assert!(!said.contains("HTTP/1.1 200"), "{what}: {said}");
        let refused = ["HTTP/1.1 400", "HTTP/1.1 401"].iter().any(|status| said.starts_with(status));
        assert!(refused, "{what}: {said}");
    }

    // A gigabyte that nobody asked for: the answer comes, and the rest is not taken in.
    let mut large = open.tls();
    large.sock.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
    let head = "POST /run/default/p/c?cmd=id HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Length: 1073741824\r\n\r\n";
    large.write_all(head.as_bytes()).unwrap();
    let piece = [0; 64 << 10];
    let taken = (0..16384).take_while(|_| large.write_all(&piece).is_ok()).count();
    assert!(taken < 16384, "all of it was taken");
    assert!(open.memory() < memory + 50, "{} MiB, before {memory}", open.memory());
    open.serves("others misbehave");
}

#[test]
fn no_spelling_of_a_path_leaves_its_place() {
    let open = Open::start();
    let secret = open.node.root().join("access.yaml");
    let up = "../".repeat(12);
    let file = secret.display().to_string();
    let absolute = file.trim_start_matches('/');
    let parameters = [
        format!("{up}{absolute}"),
        format!("{up}{absolute}").replace('/', "%2f"),
        format!("{up}{absolute}").replace("..", "%2e%2e").replace('/', "%2F"),
        format!("..%252f..%252f{absolute}"),
        "..".to_owned(),
        "%2e%2e".to_owned(),
        "a%00b".to_owned(),
        "a%2fb".to_owned(),
        format!("/{absolute}"),
        "%ff%fe".to_owned(),
    ];
    let https = Http::Tls(open.address(), open.config.clone());
    for route in [
        "/containerLogs/{}/p/c",
        "/containerLogs/default/{}/c",
        "/containerLogs/default/p/{}",
        "/logs/{}",
        "/checkpoint/default/p/{}",
        "/exec/{}/p/c",
        "/attach/default/{}/c",
        "/portForward/default/{}",
        "/run/default/p/{}",
        "/metrics/{}",
        "/stats/{}",
        "/debug/{}",
        "/{}",
    ] {
        for parameter in &parameters {
            let path = route.replace("{}", parameter);
            for method in ["GET", "POST"] {
                let answer = https.request(method, &path, &[("Authorization", "Bearer secret")]).unwrap();
                assert!(!answer.text().contains("LocalAccess"), "{method} {path} shows {file}");
                assert!(
                    answer.status != 200 || route == "/logs/{}",
                    "{method} {path}: {} {}",
                    answer.status,
                    answer.text()
                );
                let stranger = https.request(method, &path, &[]).unwrap();
                assert!(
                    matches!(stranger.status, 301 | 307 | 308 | 400 | 401 | 404),
                    "{method} {path} for a stranger: {}",
                    stranger.status
                );
            }
        }
    }
    open.serves("paths are tried");
}
