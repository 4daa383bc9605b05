//! client-go's executors against our server.

use std::time::Duration;

use mainstay_stream::StreamError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Server, noise, run_client, streamclient};

/// All that client-go speaks: each SPDY version, and both WebSocket forms.
const PROTOCOLS: [(&str, &str); 6] = [
    ("spdy", "v4.channel.k8s.io"),
    ("spdy", "v3.channel.k8s.io"),
    ("spdy", "v2.channel.k8s.io"),
    ("spdy", "channel.k8s.io"),
    ("websocket", "v5.channel.k8s.io"),
    ("websocket", "v4.channel.k8s.io"),
];

const MEGABYTE: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_go_through_and_back_unchanged() {
    let mut server = Server::start().await;
    let input = noise(100 * MEGABYTE);
    // client-go's own choices, as kubectl makes them: v5 over WebSocket, v4 over SPDY.
    for transport in ["spdy", "websocket"] {
        let url = server.url("/exec?cmd=cat&stdin=1&stdout=1");
        let ran =
            run_client(&["exec", "-transport", transport, "-url", &url, "-stdin", "-stdout"], &input).await;
        assert!(ran.status.success(), "{transport}: {} {}", ran.status, ran.stderr);
        assert_eq!(ran.stdout.len(), input.len(), "{transport}");
        assert!(ran.stdout == input, "{transport}: the bytes differ");
        server.end().await.unwrap();
        server.wait_alive(0).await;
    }
}

#[tokio::test]
async fn exit_codes_and_failures_arrive_in_every_version() {
    let mut server = Server::start().await;
    for (transport, protocol) in PROTOCOLS {
        let tells_codes = protocol.starts_with("v4") || protocol.starts_with("v5");
        for (command, code, text) in [
            ("cmd=exit&cmd=0", 0, "exiting with 0\n"),
            ("cmd=exit&cmd=7", 7, "exiting with 7\ncommand terminated with exit code 7"),
            ("cmd=fail", 125, "no such thing"),
        ] {
            let url = server.url(&format!("/exec?{command}&stdout=1&stderr=1"));
            let args =
                ["exec", "-transport", transport, "-protocols", protocol, "-url", &url, "-stdout", "-stderr"];
            let ran = run_client(&args, b"").await;
            // Before v4 a code is only a text, and v1 does not even pass that on.
            let code = if code == 7 && !tells_codes { 125 } else { code };
            // client-go's v1 takes whichever it sees first, the end of the output or the error: a failure may look like success.
            let lost = protocol == "channel.k8s.io" && ran.status.code() == Some(0);
            if !lost {
                assert_eq!(ran.status.code(), Some(code), "{transport} {protocol} {command}: {}", ran.stderr);
            }
            if protocol != "channel.k8s.io" && (tells_codes || code == 0) {
                assert!(ran.stderr.contains(text), "{transport} {protocol} {command}: {}", ran.stderr);
            }
            server.end().await.unwrap();
        }
    }
}

#[tokio::test]
async fn input_ends_where_the_client_ends_it() {
    let mut server = Server::start().await;
    for (transport, protocol) in PROTOCOLS {
        // Before v5 a WebSocket cannot say that the input has ended, and client-go's v1 does not.
        if matches!((transport, protocol), ("websocket", "v4.channel.k8s.io") | (_, "channel.k8s.io")) {
            continue;
        }
        let url = server.url("/exec?cmd=cat&stdin=1&stdout=1");
        let args =
            ["exec", "-transport", transport, "-protocols", protocol, "-url", &url, "-stdin", "-stdout"];
        for input in [b"".as_slice(), b"x", b"hello\n"] {
            let ran = run_client(&args, input).await;
            assert!(ran.status.success(), "{transport} {protocol}: {} {}", ran.status, ran.stderr);
            assert_eq!(ran.stdout, input, "{transport} {protocol}");
            server.end().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_terminal_is_resized() {
    let mut server = Server::start().await;
    for (transport, protocol) in PROTOCOLS {
        if matches!(protocol, "v2.channel.k8s.io" | "channel.k8s.io") {
            continue;
        }
        let url = server.url("/exec?cmd=sizes&cmd=3&stdin=1&stdout=1&tty=1");
        let sizes = "80x24,132x50,65535x1";
        let args = [
            "exec",
            "-transport",
            transport,
            "-protocols",
            protocol,
            "-url",
            &url,
            "-stdin",
            "-stdout",
            "-tty",
            "-sizes",
            sizes,
        ];
        let ran = run_client(&args, b"").await;
        assert!(ran.status.success(), "{transport} {protocol}: {} {}", ran.status, ran.stderr);
        let lines = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(lines, sizes.replace(',', "\n") + "\n", "{transport} {protocol}");
        server.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_dies_leaves_nothing_behind() {
    let mut server = Server::start().await;
    for (transport, protocol) in PROTOCOLS {
        // One says nothing, one is in the middle of its output.
        for command in ["hang", "yes"] {
            let url = server.url(&format!("/exec?cmd={command}&stdin=1&stdout=1"));
            let args =
                ["exec", "-transport", transport, "-protocols", protocol, "-url", &url, "-stdin", "-stdout"];
            let mut child = streamclient(&args).spawn().unwrap();
            server.wait_alive(1).await;
            if command == "yes" {
                // Some of it has been read; the rest fills every buffer on the way.
                let mut some = [0; 64 * 1024];
                child.stdout.as_mut().unwrap().read_exact(&mut some).await.unwrap();
            }
            child.kill().await.unwrap();
            let end = server.end().await;
            assert!(end.is_err(), "{transport} {protocol} {command}: {end:?}");
            server.wait_alive(0).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_dies_behind_input_that_nobody_reads_is_noticed() {
    let mut server = Server::start().await;
    let mut children = Vec::new();
    for transport in ["spdy", "websocket"] {
        let url = server.url("/exec?cmd=hang&stdin=1&stdout=1");
        let args = ["exec", "-transport", transport, "-url", &url, "-stdin", "-stdout"];
        let mut child = streamclient(&args).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // More than all buffers on the way hold; it is full when nothing more goes in.
        let block = vec![0; MEGABYTE];
        while let Ok(wrote) = tokio::time::timeout(Duration::from_millis(500), stdin.write_all(&block)).await
        {
            wrote.unwrap();
        }
        children.push((child, stdin));
    }
    server.wait_alive(2).await;
    for (child, _) in &mut children {
        child.kill().await.unwrap();
    }
    server.wait_alive(0).await;
    for _ in 0..2 {
        assert!(server.end().await.is_err());
    }
}

#[tokio::test]
async fn output_waits_for_a_slow_client() {
    let mut server = Server::start().await;
    for transport in ["spdy", "websocket"] {
        let url = server.url("/exec?cmd=cat&stdin=1&stdout=1");
        let input = noise(4 * MEGABYTE);
        let args = ["exec", "-transport", transport, "-url", &url, "-stdin", "-stdout"];
        let mut child = streamclient(&args).spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let slowly = async {
            let mut all = Vec::new();
            let mut part = vec![0; 128 * 1024];
            loop {
                let length = stdout.read(&mut part).await.unwrap();
                if length == 0 {
                    return all;
                }
                all.extend_from_slice(&part[..length]);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let feed = async {
            stdin.write_all(&input).await.unwrap();
            drop(stdin);
        };
        let (all, ()) = tokio::join!(slowly, feed);
        assert!(all == input, "{transport}");
        assert!(child.wait().await.unwrap().success());
        server.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_protocol_that_nobody_knows_is_refused() {
    let server = Server::start().await;
    let url = server.url("/exec?cmd=cat&stdin=1&stdout=1");
    let args = ["exec", "-transport", "spdy", "-protocols", "v9.channel.k8s.io", "-url", &url, "-stdout"];
    let ran = run_client(&args, b"").await;
    assert_eq!(ran.status.code(), Some(125));
    let text = "client supports [v9.channel.k8s.io], server accepts [v4.channel.k8s.io v3.channel.k8s.io \
                v2.channel.k8s.io channel.k8s.io]";
    assert!(ran.stderr.contains(text), "{}", ran.stderr);
    let args =
        ["exec", "-transport", "websocket", "-protocols", "v9.channel.k8s.io", "-url", &url, "-stdout"];
    let ran = run_client(&args, b"").await;
    assert_eq!(ran.status.code(), Some(125));
    assert!(ran.stderr.contains("bad handshake"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_client_that_opens_too_few_streams_is_not_waited_for() {
    use mainstay_stream::Limits;
    use mainstay_stream::remotecommand::{Outcome, Protocol, Version, Wanted, serve};

    let (io, _peer) = tokio::io::duplex(1024);
    let wanted = Wanted { stdout: true, ..Wanted::default() };
    let limits =
        Limits { create: Duration::from_millis(50), linger: Duration::from_millis(50), ..Limits::default() };
    let command = |_| std::future::ready(Outcome::Success);
    let end = serve(io, Protocol::Spdy(Version::V4), wanted, limits, command).await;
    assert!(matches!(end, Err(StreamError::StreamsMissing)), "{end:?}");
}
