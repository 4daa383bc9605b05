//! client-go's port-forwarder against our server.

use std::collections::HashMap;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout};

use crate::kit::{PATIENCE, Server, noise, streamclient};

/// A running port-forwarder and which local port leads to which remote one.
struct Forwarder {
    child: Child,
    ports: HashMap<u16, u16>,
    /// It prints a line for every connection and dies if it cannot.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Forwarder {
    async fn start(server: &Server, transport: &str, remote: &[u16]) -> Self {
        let pairs: Vec<String> = remote.iter().map(|port| format!("0:{port}")).collect();
        let url = server.url("/portforward");
        let args = ["forward", "-transport", transport, "-url", &url, "-ports", &pairs.join(",")];
        let mut child = streamclient(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ports = HashMap::new();
        while ports.len() < remote.len() {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
            // Forwarding from 127.0.0.1:40001 -> 8080
            let (local, far) = line.rsplit_once(" -> ").unwrap();
            let local = local.rsplit_once(':').unwrap().1;
            ports.insert(far.parse().unwrap(), local.parse().unwrap());
        }
        Self { child, ports, _lines: lines }
    }

    async fn connect(&self, remote: u16) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.ports[&remote])).await.unwrap()
    }
}

/// Sends, ends the sending, and reads everything.
async fn exchange(mut socket: TcpStream, data: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = socket.split();
    let mut all = Vec::new();
    let send = async {
        writer.write_all(data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let (_, read) = tokio::join!(send, tokio::time::timeout(PATIENCE, reader.read_to_end(&mut all)));
    read.expect("the forwarded connection does not end").unwrap();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ports_and_connections_at_once() {
    let mut server = Server::start().await;
    for transport in ["spdy", "websocket"] {
        let remote: Vec<u16> = (0..20).map(|index| 8000 + index).collect();
        let forwarder = Forwarder::start(&server, transport, &remote).await;
        let data = noise(200_000);
        let exchanges = remote.iter().flat_map(|port| [*port; 3]).map(|port| {
            let data = &data;
            let forwarder = &forwarder;
            async move {
                let got = exchange(forwarder.connect(port).await, data).await;
                let mut expected = format!("port {port}\n").into_bytes();
                expected.extend_from_slice(data);
                assert!(
                    got == expected,
                    "{transport} port {port}: {} bytes, not {}",
                    got.len(),
                    expected.len()
                );
            }
        });
        futures_util::future::join_all(exchanges).await;
        server.wait_alive(0).await;
        let mut child = forwarder.child;
        drop(child.stdin.take());
        child.wait().await.unwrap();
        server.end().await.ok();
    }
}

#[tokio::test]
async fn ten_megabytes_on_one_connection() {
    let server = Server::start().await;
    for transport in ["spdy", "websocket"] {
        let forwarder = Forwarder::start(&server, transport, &[80]).await;
        let data = noise(10_000_000);
        let got = exchange(forwarder.connect(80).await, &data).await;
        assert!(got.strip_prefix(b"port 80\n") == Some(&data[..]), "{transport}: {} bytes", got.len());
    }
}

#[tokio::test]
async fn why_a_port_cannot_be_reached_is_told() {
    let server = Server::start().await;
    for transport in ["spdy", "websocket"] {
        let mut forwarder = Forwarder::start(&server, transport, &[80, 1]).await;
        assert_eq!(exchange(forwarder.connect(80).await, b"one").await, b"port 80\none");
        let mut refused = forwarder.connect(1).await;
        let mut nothing = Vec::new();
        drop(tokio::time::timeout(PATIENCE, refused.read_to_end(&mut nothing)).await.unwrap());
        assert_eq!(nothing, b"", "{transport}");
        // Upstream's client then ends the whole forwarding.
        let mut errors = String::new();
        let mut stderr = forwarder.child.stderr.take().unwrap();
        tokio::time::timeout(PATIENCE, stderr.read_to_string(&mut errors)).await.unwrap().unwrap();
        assert!(errors.contains("connection refused"), "{transport}: {errors}");
        assert!(errors.contains("lost connection to pod"), "{transport}: {errors}");
        server.wait_alive(0).await;
    }
}

#[tokio::test]
async fn a_forwarder_that_dies_leaves_nothing_behind() {
    let mut server = Server::start().await;
    for transport in ["spdy", "websocket"] {
        let mut forwarder = Forwarder::start(&server, transport, &[80]).await;
        let mut sockets = Vec::new();
        for _ in 0..10 {
            let mut socket = forwarder.connect(80).await;
            let mut greeting = [0; 8];
            socket.read_exact(&mut greeting).await.unwrap();
            sockets.push(socket);
        }
        server.wait_alive(10).await;
        forwarder.child.kill().await.unwrap();
        server.wait_alive(0).await;
        // Whether it looks like an end or an error depends on what the kernel had in its buffers.
        drop(server.end().await);
    }
}
