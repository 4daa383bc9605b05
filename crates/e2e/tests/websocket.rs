//! exec and port-forward in the forms of WebSocket that go to the runtime as they are, message by message: with the older
//! subprotocols and with none, in bytes and in base64.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin};
use std::sync::mpsc;
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mainstay_e2e::{StreamClient, World, finish, sh};
use mainstay_testkit::{Flavor, patient};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);

/// A WebSocket that a real client holds open.
struct Socket {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    /// The first byte of a message is a digit, and base64 follows.
    base64: bool,
    /// What came on each channel, and how many messages.
    heard: Vec<(Vec<u8>, usize)>,
    /// How it was closed.
    closed: Option<String>,
}

impl Socket {
    /// Opens one, whose subprotocol must be the one that is offered.
    fn open(client: &StreamClient, path: &str, protocol: &str, channels: usize) -> Self {
        let mut child = client.frames(path, &["-protocols", protocol]).unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // Ends with the client's output.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
        });
        let base64 = protocol.contains("base64");
        let heard = vec![(Vec::new(), 0); channels];
        let mut socket = Self { child: Some(child), stdin, lines, base64, heard, closed: None };
        let first = socket.line();
        assert_eq!(first.strip_prefix("protocol "), Some(protocol));
        socket
    }

    /// The next line of the client, or what it complains of.
    fn line(&mut self) -> String {
        self.lines.recv_timeout(patient(PATIENCE)).unwrap_or_else(|_| {
            let mut child = self.child.take().unwrap();
            child.kill().ok();
            panic!("nothing more is heard after {:?}: {:?}", self.heard, finish(child, b""))
        })
    }

    fn send(&mut self, channel: u8, bytes: &[u8]) {
        let (kind, message) = if self.base64 {
            ("text", [&[b'0' + channel], STANDARD.encode(bytes).as_bytes()].concat())
        } else {
            ("binary", [&[channel], bytes].concat())
        };
        let digits: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.stdin.as_mut().unwrap(), "{kind} {digits}").unwrap();
    }

    /// Takes one message, or the end.
    fn take(&mut self) {
        let line = self.line();
        let (kind, rest) = line.split_once(' ').unwrap();
        if kind == "close" {
            self.closed = Some(rest.to_owned());
            return;
        }
        assert_eq!(kind, if self.base64 { "text" } else { "binary" }, "{line}");
        let digits: Vec<char> = rest.chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
        let message: Vec<u8> = digits.chunks(2).map(byte).collect();
        let (channel, content) = message.split_first().unwrap();
        let (channel, content) = if self.base64 {
            (channel - b'0', STANDARD.decode(content).unwrap())
        } else {
            (*channel, content.to_vec())
        };
        let (all, messages) = &mut self.heard[usize::from(channel)];
        all.extend(content);
        *messages += 1;
    }

    fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            assert_eq!(self.closed, None, "closed after {:?}", self.heard);
            self.take();
        }
    }

    fn text(&self, channel: usize) -> String {
        String::from_utf8_lossy(&self.heard[channel].0).into_owned()
    }

    /// Closes it if the other side has not, and waits for the client's end.
    fn close(mut self) {
        drop(self.stdin.take());
        let ran = finish(self.child.take().unwrap(), b"").unwrap();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[test]
fn the_older_forms_of_websocket_reach_the_runtime() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, "{}").unwrap();
        let serve = "trap 'exit 0' TERM; nc -ll -p 8001 -e cat & nc -ll -p 8002 -e cat & \
                     until [ $(cat /proc/net/tcp* | grep -c ':1F4[12] .* 0A ') = 2 ]; do sleep 0.1; done; echo listening; \
                     while :; do sleep 0.1; done";
        world.put("web", json!({ "containers": [sh("c", serve)] })).unwrap();
        let client = StreamClient::new(&world).unwrap();
        world.running("web").unwrap();
        world.logged("web", "c", "listening").unwrap();
        let pod = world.full_name("web");
        commands(&client, &pod, &format!("{flavor:?}"));
        ports(&client, &pod, &format!("{flavor:?}"));
    }
}

fn commands(client: &StreamClient, pod: &str, flavor: &str) {
    for protocol in
        ["", "channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"]
    {
        let what = format!("{flavor} {protocol:?}");
        let run = |script: &str| {
            let path = format!(
                "/exec/default/{pod}/c?command=sh&command=-c&command={script}&input=1&output=1&error=1"
            );
            Socket::open(client, &path, protocol, 5)
        };
        // read line; echo got $line; echo err >&2; exit 3
        let mut socket = run("read%20line%3Becho%20got%20%24line%3Becho%20err%20%3E%262%3Bexit%203");
        // The runtime says that it is there by an empty message on the lowest of its channels.
        socket.take();
        assert_eq!(socket.heard.iter().filter(|(all, messages)| all.is_empty() && *messages == 1).count(), 1);
        socket.send(0, b"hel");
        socket.send(0, b"lo\n");
        socket.until(|socket| socket.closed.is_some());
        assert_eq!((socket.text(1).as_str(), socket.text(2).as_str()), ("got hello\n", "err\n"), "{what}");
        let status = socket.text(3);
        if protocol.starts_with("v4") {
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            assert_eq!(status["details"]["causes"][0]["message"], "3", "{what} {status}");
        } else {
            assert!(status.starts_with("command terminated with non-zero exit code"), "{what} {status}");
        }
        assert_eq!(socket.closed.as_deref(), Some("1000"), "{what}");
        socket.close();

        let mut socket = run("echo%20well");
        socket.until(|socket| socket.closed.is_some());
        assert_eq!(socket.text(1), "well\n", "{what}");
        // Only from the fourth version on a success is said.
        assert_eq!(socket.text(3).contains("Success"), protocol.starts_with("v4"), "{what}");
        assert_eq!(socket.text(3).is_empty(), !protocol.starts_with("v4"), "{what}");
        socket.close();
    }
}

fn ports(client: &StreamClient, pod: &str, flavor: &str) {
    for protocol in ["", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"] {
        let what = format!("{flavor} {protocol:?}");
        let path = format!("/portForward/default/{pod}?port=8001,8002&port=9");
        let mut socket = Socket::open(client, &path, protocol, 6);
        socket.send(0, b"one");
        socket.send(2, b"two");
        // Each channel says first which port it is for, the low byte in front. Nobody listens on the last one.
        let (first, second, third) = (8001_u16.to_le_bytes(), 8002_u16.to_le_bytes(), 9_u16.to_le_bytes());
        let wanted = [[&first[..], b"one"].concat(), [&second[..], b"two"].concat()];
        socket.until(|socket| {
            socket.heard[0].0.len() >= 5 && socket.heard[2].0.len() >= 5 && socket.text(5).contains("refused")
        });
        assert_eq!([&socket.heard[0].0, &socket.heard[2].0], [&wanted[0], &wanted[1]], "{what}");
        assert_eq!([&socket.heard[1].0[..], &socket.heard[3].0], [first, second], "{what}");
        assert_eq!(socket.heard[4].0, third, "{what}");
        assert!(socket.heard[5].0.starts_with(&third), "{what} {}", socket.text(5));
        // It goes on in both directions.
        socket.send(0, b" more");
        socket.until(|socket| socket.heard[0].0.len() >= 10);
        assert_eq!(socket.heard[0].0, [&first[..], b"one more"].concat(), "{what}");
        socket.close();
    }
}
