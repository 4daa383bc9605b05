//! Our client against the streaming server of container runtimes.

use std::process::Stdio;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use mainstay_stream::negotiate::{PORT_FORWARD, PROTOCOL_VERSION, SPDY};
use mainstay_stream::portforward::Forwarder;
use mainstay_stream::remotecommand::{Outcome, Protocol, RemoteCommand, TerminalSize, Version, Wanted, call};
use mainstay_stream::ws::{Codec, accept_key, new_key};
use mainstay_stream::{Limits, StreamError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::kit::{PATIENCE, get, noise, streamclient};

/// Upstream's streaming server.
struct Runtime {
    _child: Child,
    address: String,
}

impl Runtime {
    async fn start() -> Self {
        let mut child = streamclient(&["serve"]).stderr(Stdio::inherit()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).await.unwrap();
        Self { _child: child, address: address.trim().to_owned() }
    }

    /// Asks for a URL as CRI does, and upgrades the connection to it.
    async fn dial(&self, what: &str, protocol: Dial<'_>) -> TokioIo<hyper::upgrade::Upgraded> {
        let url = get(&self.address, &format!("/url/{what}")).await;
        let path = url.strip_prefix(&format!("http://{}", self.address)).unwrap_or_else(|| panic!("{url}"));
        let socket = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        let key = new_key();
        let request = match protocol {
            Dial::Spdy(version) => {
                Request::post(path).header("upgrade", SPDY).header(PROTOCOL_VERSION, version)
            }
            Dial::WebSocket(version) => Request::get(path)
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", &key)
                .header("sec-websocket-protocol", version),
        };
        let request = request.header("host", &self.address).header("connection", "Upgrade");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = async {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), 101, "{response:?}");
            if let Dial::WebSocket(version) = protocol {
                assert_eq!(response.headers()["sec-websocket-accept"], accept_key(&key));
                assert_eq!(response.headers()["sec-websocket-protocol"], version);
            }
            hyper::upgrade::on(response).await.unwrap()
        };
        let (upgraded, _) = tokio::join!(answer, async { drop(connection.with_upgrades().await) });
        TokioIo::new(upgraded)
    }
}

#[derive(Clone, Copy)]
enum Dial<'a> {
    Spdy(&'a str),
    WebSocket(&'a str),
}

const ALL: [(Dial<'static>, Protocol); 7] = [
    (Dial::Spdy("v4.channel.k8s.io"), Protocol::Spdy(Version::V4)),
    (Dial::Spdy("v3.channel.k8s.io"), Protocol::Spdy(Version::V3)),
    (Dial::Spdy("v2.channel.k8s.io"), Protocol::Spdy(Version::V2)),
    (Dial::WebSocket("v4.channel.k8s.io"), Protocol::WebSocket(Version::V4, Codec::Binary)),
    (Dial::WebSocket("v4.base64.channel.k8s.io"), Protocol::WebSocket(Version::V4, Codec::Base64)),
    (Dial::WebSocket("channel.k8s.io"), Protocol::WebSocket(Version::V1, Codec::Binary)),
    (Dial::WebSocket("base64.channel.k8s.io"), Protocol::WebSocket(Version::V1, Codec::Base64)),
];

#[tokio::test]
async fn exit_codes() {
    let runtime = Runtime::start().await;
    for (dial, protocol) in ALL {
        let io = runtime.dial("exec?cmd=exit&cmd=7&stdout=1&stderr=1", dial).await;
        let wanted = Wanted { stdout: true, stderr: true, ..Wanted::default() };
        let using = |command: RemoteCommand| async move {
            let mut errors = String::new();
            let mut stderr = command.stderr.unwrap();
            let read = stderr.read_to_string(&mut errors);
            let (_, outcome) = tokio::join!(read, command.outcome.read());
            (errors, outcome.unwrap())
        };
        let called = call(io, protocol, wanted, Limits::default(), using);
        let (errors, outcome) = tokio::time::timeout(PATIENCE, called).await.unwrap().unwrap();
        assert_eq!(errors, "exiting with 7\n", "{protocol:?}");
        let message = "command terminated with non-zero exit code: exit code 7".to_owned();
        let expected = match protocol {
            Protocol::Spdy(Version::V4) | Protocol::WebSocket(Version::V4, _) => {
                Outcome::Exited { code: 7, message }
            }
            _ => Outcome::Failed { message },
        };
        assert_eq!(outcome, expected, "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_through_a_runtime() {
    let runtime = Runtime::start().await;
    let input = noise(100 * 1024 * 1024);
    let io = runtime.dial("exec?cmd=cat&stdin=1&stdout=1", Dial::Spdy("v4.channel.k8s.io")).await;
    let wanted = Wanted { stdin: true, stdout: true, ..Wanted::default() };
    let using = |command: RemoteCommand| async {
        let (mut stdin, mut stdout) = (command.stdin.unwrap(), command.stdout.unwrap());
        let mut all = Vec::with_capacity(input.len());
        let feed = async {
            stdin.write_all(&input).await.unwrap();
            stdin.shutdown().await.unwrap();
        };
        let (_, read, outcome) = tokio::join!(feed, stdout.read_to_end(&mut all), command.outcome.read());
        read.unwrap();
        assert_eq!(outcome.unwrap(), Outcome::Success);
        all
    };
    let called = call(io, Protocol::Spdy(Version::V4), wanted, Limits::default(), using);
    let all = tokio::time::timeout(PATIENCE, called).await.unwrap().unwrap();
    assert!(all == input, "{} bytes of {}", all.len(), input.len());
}

#[tokio::test]
async fn a_terminal_is_resized() {
    let runtime = Runtime::start().await;
    for (dial, protocol) in ALL {
        if matches!(protocol, Protocol::Spdy(Version::V2) | Protocol::WebSocket(Version::V1, _)) {
            continue;
        }
        let io = runtime.dial("exec?cmd=sizes&cmd=2&stdout=1&tty=1", dial).await;
        let wanted = Wanted { stdout: true, tty: true, ..Wanted::default() };
        let using = |command: RemoteCommand| async move {
            let mut resize = command.resize.unwrap();
            for (width, height) in [(80, 24), (200, 60)] {
                resize.send(TerminalSize { width, height }).await.unwrap();
            }
            let mut text = String::new();
            command.stdout.unwrap().read_to_string(&mut text).await.unwrap();
            text
        };
        let called = call(io, protocol, wanted, Limits::default(), using);
        let text = tokio::time::timeout(PATIENCE, called).await.unwrap().unwrap();
        assert_eq!(text, "80x24\n200x60\n", "{protocol:?}");
    }
}

#[tokio::test]
async fn ports_are_forwarded() {
    let runtime = Runtime::start().await;
    let io = runtime.dial("portforward", Dial::Spdy(PORT_FORWARD)).await;
    let (forwarder, driver) = Forwarder::new(io, Limits::for_port_forward());
    let work = async {
        let data = noise(1_000_000);
        let exchanges = (0..20).map(|_| async {
            let mut forwarded = forwarder.connect(8080).await?;
            let (mut reader, mut writer) = tokio::io::split(forwarded.data);
            let mut all = Vec::new();
            let feed = async {
                writer.write_all(&data).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let (_, read) = tokio::join!(feed, reader.read_to_end(&mut all));
            read.unwrap();
            assert!(all == data, "{} bytes", all.len());
            let mut text = String::new();
            forwarded.error.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "");
            Ok::<_, StreamError>(())
        });
        futures_util::future::try_join_all(exchanges).await.unwrap();

        // Upstream cancels both streams after what it wrote, and may do so before it accepts the second.
        let told = match forwarder.connect(1).await {
            Ok(mut refused) => {
                let mut text = Vec::new();
                drop(refused.error.read_to_end(&mut text).await);
                String::from_utf8(text).unwrap()
            }
            Err(error) => error.to_string(),
        };
        assert!(told.contains("connection refused"), "{told}");
        forwarder.close();
    };
    let both = async { tokio::join!(driver, work).0 };
    tokio::time::timeout(PATIENCE, both).await.unwrap().unwrap();
}
