use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::{Limits, StreamError};

const ALL: [Protocol; 9] = [
    Protocol::Spdy(Version::V1),
    Protocol::Spdy(Version::V2),
    Protocol::Spdy(Version::V3),
    Protocol::Spdy(Version::V4),
    Protocol::WebSocket(Version::V1, Codec::Binary),
    Protocol::WebSocket(Version::V1, Codec::Base64),
    Protocol::WebSocket(Version::V4, Codec::Binary),
    Protocol::WebSocket(Version::V4, Codec::Base64),
    Protocol::WebSocket(Version::V5, Codec::Binary),
];

fn version(protocol: Protocol) -> Version {
    match protocol {
        Protocol::Spdy(version) | Protocol::WebSocket(version, _) => version,
    }
}

fn limits() -> Limits {
    Limits::default()
}

#[tokio::test]
async fn both_ends_understand_each_other_in_every_protocol() {
    for protocol in ALL {
        let (ours, theirs) = duplex(4096);
        let wanted = Wanted { stdin: true, stdout: true, stderr: true, tty: false };
        let serve = serve(ours, protocol, wanted, limits(), |streams| async move {
            assert!(streams.resize.is_none());
            let mut line = [0; 5];
            streams.stdin.unwrap().read_exact(&mut line).await.unwrap();
            streams.stdout.unwrap().write_all(&line).await.unwrap();
            streams.stderr.unwrap().write_all(b"oh").await.unwrap();
            Outcome::Exited { code: 3, message: "it ended with 3".to_owned() }
        });
        let call = call(theirs, protocol, wanted, limits(), |command| async move {
            command.stdin.unwrap().write_all(b"input").await.unwrap();
            let (mut out, mut err) = (String::new(), String::new());
            let (mut stdout, mut stderr) = (command.stdout.unwrap(), command.stderr.unwrap());
            let (_, _, outcome) = tokio::join!(
                stdout.read_to_string(&mut out),
                stderr.read_to_string(&mut err),
                command.outcome.read()
            );
            (out, err, outcome.unwrap())
        });
        let (served, called) = tokio::join!(serve, call);
        served.unwrap();
        let (out, err, outcome) = called.unwrap();
        assert_eq!((out.as_str(), err.as_str()), ("input", "oh"), "{protocol:?}");
        let message = "it ended with 3".to_owned();
        let expected = match version(protocol) {
            Version::V4 | Version::V5 => Outcome::Exited { code: 3, message },
            _ => Outcome::Failed { message },
        };
        assert_eq!(outcome, expected, "{protocol:?}");
    }
}

#[test]
fn outcomes_in_upstreams_words() {
    let exited = Outcome::Exited { code: 7, message: "seven".to_owned() };
    let failed = Outcome::Failed { message: "no such thing".to_owned() };
    let table = [
        (Outcome::Success, Version::V4, r#"{"status":"Success"}"#),
        (Outcome::Success, Version::V5, r#"{"metadata":{},"status":"Success"}"#),
        (
            exited.clone(),
            Version::V4,
            r#"{"status":"Failure","message":"seven","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
        ),
        (
            failed.clone(),
            Version::V5,
            r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: no such thing","reason":"InternalError","details":{"causes":[{"message":"no such thing"}]},"code":500}"#,
        ),
        (Outcome::Success, Version::V1, ""),
        (exited, Version::V3, "seven"),
        (failed, Version::V2, "Internal error occurred: no such thing"),
    ];
    for (outcome, version, text) in table {
        assert_eq!(String::from_utf8(outcome.encode(version)).unwrap(), text);
    }
    // What containerd 1.6 says of a success, and what nobody should.
    let containerd = br#"{"metadata":{},"status":"Success"}"#;
    assert_eq!(Outcome::decode(containerd, Version::V4), Outcome::Success);
    let without_code = br#"{"status":"Failure","reason":"NonZeroExitCode","message":"m"}"#;
    assert_eq!(Outcome::decode(without_code, Version::V4), Outcome::Failed { message: "m".to_owned() });
    for text in [&b""[..], b"text", b"[]", b"\xff"] {
        assert!(matches!(Outcome::decode(text, Version::V4), Outcome::Failed { .. }), "{text:?}");
    }
}

#[tokio::test]
async fn sizes_come_one_after_another_until_one_is_wrong() {
    let wanted = Wanted { stdout: true, tty: true, ..Wanted::default() };
    let protocol = Protocol::WebSocket(Version::V5, Codec::Binary);
    let (ours, theirs) = duplex(4096);
    let serve = serve(ours, protocol, wanted, limits(), |streams| async move {
        let mut resize = streams.resize.unwrap();
        let mut sizes = Vec::new();
        while let Some(size) = resize.next().await {
            sizes.push((size.width, size.height));
        }
        assert_eq!(sizes, [(80, 24), (100, 0), (1, 2)]);
        assert_eq!(resize.next().await, None);
        Outcome::Success
    });
    let call = call(theirs, protocol, wanted, limits(), |command| async move {
        let mut resize = command.resize.unwrap();
        resize.send(TerminalSize { width: 80, height: 24 }).await.unwrap();
        // In any case, in parts, with other fields; then one that is too large.
        for part in [&b"{\"width\":1"[..], b"00, \"x\":{}}{\"HEIGHT\":2,\"WIDTH\":1}", b"{\"Width\":65536}"] {
            resize.0.write_all(part).await.unwrap();
        }
        command.outcome.read().await.unwrap()
    });
    let (served, called) = tokio::join!(serve, call);
    served.unwrap();
    assert_eq!(called.unwrap(), Outcome::Success);
}

#[tokio::test]
async fn a_command_is_dropped_with_its_client() {
    for protocol in ALL {
        let (ours, theirs) = duplex(4096);
        let wanted = Wanted { stdout: true, ..Wanted::default() };
        let serve = serve(ours, protocol, wanted, limits(), |_streams| std::future::pending());
        let call = call(theirs, protocol, wanted, limits(), |command| async { drop(command) });
        let (served, called) = tokio::join!(serve, call);
        assert!(matches!(served, Err(StreamError::Gone)), "{protocol:?}: {served:?}");
        called.unwrap();
    }
}

#[tokio::test]
async fn a_connection_is_greeted_on_its_lowest_channel() {
    let table = [
        (Wanted { stdout: true, stderr: true, ..Wanted::default() }, Codec::Binary, [0x82, 1, 1]),
        (Wanted { stderr: true, ..Wanted::default() }, Codec::Base64, [0x81, 1, b'2']),
        (Wanted { stdin: true, ..Wanted::default() }, Codec::Binary, [0x82, 1, 3]),
        (Wanted { stdin: true, stderr: true, tty: true, ..Wanted::default() }, Codec::Binary, [0x82, 1, 3]),
    ];
    for (wanted, codec, greeting) in table {
        let (ours, mut theirs) = duplex(4096);
        let protocol = Protocol::WebSocket(Version::V1, codec);
        let serve = serve(ours, protocol, wanted, limits(), |_| std::future::ready(Outcome::Success));
        let read = async {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap();
            drop(theirs);
            all
        };
        let (served, all) = tokio::join!(serve, read);
        served.unwrap();
        // Nothing on success but the close frame.
        assert_eq!(all, [&greeting[..], &[0x88, 2, 0x03, 0xe8]].concat(), "{wanted:?}");
    }
}
