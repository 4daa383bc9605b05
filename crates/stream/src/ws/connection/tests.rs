use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::ws::frame::{begin, finish};

fn limits() -> Limits {
    Limits::default()
}

fn channels(codec: Codec, close_signal: bool) -> Channels {
    Channels { count: 5, codec, close_signal }
}

/// A frame of a client.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = Some([9, 8, 7, 6]);
    let mut out = Vec::new();
    let start = begin(Opcode::Binary, payload.len(), mask, &mut out);
    out[0] = first;
    out.extend_from_slice(payload);
    finish(start, mask, &mut out);
    out
}

async fn rest(io: &mut DuplexStream) -> Vec<u8> {
    let mut all = Vec::new();
    io.read_to_end(&mut all).await.unwrap();
    all
}

/// Sends bytes to a server and gives what its channel 0 and the client got, and how it ended.
async fn exchange(channels: Channels, sent: &[u8]) -> (Vec<u8>, Vec<u8>, Result<(), StreamError>) {
    let (ours, mut io) = duplex(1024 * 1024);
    let (mut streams, _closer, driver) = connect(ours, Role::Server, channels, limits());
    let mut first = streams.remove(0);
    drop(streams);
    io.write_all(sent).await.unwrap();
    let mut got = Vec::new();
    let read = async {
        // How it ends is the driver's to say.
        drop(first.read_to_end(&mut got).await);
        drop(first);
    };
    let talk = async {
        tokio::task::yield_now().await;
        io.write_all(&frame(0x88, &[3, 0xe8])).await.ok();
        rest(&mut io).await
    };
    let (ended, (), answer) = tokio::join!(driver, read, talk);
    (got, answer, ended)
}

#[tokio::test]
async fn messages_reach_their_channels_whole_or_in_parts() {
    let binary = channels(Codec::Binary, false);
    let mut sent = frame(0x82, b"\0one ");
    sent.extend(frame(0x82, b""));
    sent.extend(frame(0x82, b"\x01for stdout, which is dropped"));
    sent.extend(frame(0x82, b"\x07for nobody"));
    sent.extend(frame(0x02, b""));
    sent.extend(frame(0x00, b"\0t"));
    sent.extend(frame(0x89, b"ping"));
    sent.extend(frame(0x80, b"wo "));
    sent.extend(frame(0x81, b"\0three"));
    let (got, answer, ended) = exchange(binary, &sent).await;
    assert_eq!(got, b"one two three");
    assert_eq!(answer, b"\x8a\x04ping\x88\x02\x03\xe8");
    ended.unwrap();

    let base64 = channels(Codec::Base64, false);
    let mut sent = frame(0x81, b"0aGVs");
    sent.extend(frame(0x81, b"0not base64"));
    sent.extend(frame(0x01, b"0bG"));
    sent.extend(frame(0x80, b"8="));
    let (got, _, ended) = exchange(base64, &sent).await;
    assert_eq!(got, b"hello");
    ended.unwrap();
}

#[tokio::test]
async fn the_close_signal_ends_one_channel() {
    let v5 = channels(Codec::Binary, true);
    let (ours, mut io) = duplex(1024);
    let (mut streams, closer, driver) = connect(ours, Role::Server, v5, limits());
    let work = async {
        io.write_all(&frame(0x82, b"\0all")).await.unwrap();
        io.write_all(&frame(0x82, &[255, 4])).await.unwrap();
        io.write_all(&frame(0x82, &[255, 0])).await.unwrap();
        let mut text = String::new();
        streams[0].read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "all");
        // The others go on, and servers do not send the signal.
        streams[1].write_all(b"out").await.unwrap();
        streams[1].shutdown().await.unwrap();
        closer.close();
        assert_eq!(rest(&mut io).await, b"\x82\x04\x01out\x88\x02\x03\xe8");
        drop(io);
    };
    let (ended, ()) = tokio::join!(driver, work);
    ended.unwrap();

    // Before v5 it is a channel that does not exist.
    let (got, _, ended) = exchange(channels(Codec::Binary, false), &frame(0x82, &[255, 0])).await;
    assert!(got.is_empty());
    ended.unwrap();
}

#[tokio::test]
async fn a_client_masks_and_signals() {
    let v5 = channels(Codec::Binary, true);
    let (ours, theirs) = duplex(1024);
    let (mut at_client, closer, client) = connect(ours, Role::Client, v5, limits());
    let (mut at_server, _, server) = connect(theirs, Role::Server, v5, limits());
    let work = async {
        at_client[0].write_all(&[5; 3000]).await.unwrap();
        at_client[0].shutdown().await.unwrap();
        let mut got = Vec::new();
        at_server[0].read_to_end(&mut got).await.unwrap();
        assert_eq!(got, [5; 3000]);
        at_server[3].write_all(b"status").await.unwrap();
        let mut status = [0; 6];
        at_client[3].read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"status");
        closer.close();
    };
    let (called, served, ()) = tokio::join!(client, server, work);
    called.unwrap();
    served.unwrap();
}

#[tokio::test]
async fn who_breaks_the_rules_is_told_why() {
    let table: [(&str, Vec<u8>, WsError, u16); 9] = [
        ("no mask", vec![0x82, 0], WsError::Mask, 1002),
        ("a reserved bit", frame(0xc2, b"x"), WsError::Reserved, 1002),
        ("a part of nothing", frame(0x80, b"x"), WsError::Fragment, 1002),
        (
            "a message inside another",
            [frame(0x02, b"\0"), frame(0x82, b"\0")].concat(),
            WsError::Fragment,
            1002,
        ),
        ("a wrong close code", frame(0x88, &[3, 0xee]), WsError::BadClose, 1002),
        ("no UTF-8", frame(0x81, b"\0\xff"), WsError::NotUtf8, 1007),
        ("half a character", frame(0x81, b"\0\xc3"), WsError::NotUtf8, 1007),
        ("a long close signal", frame(0x82, &[255, 0, 0]), WsError::BadCloseSignal, 1000),
        ("a close signal for nobody", frame(0x82, &[255, 9]), WsError::BadCloseSignal, 1000),
    ];
    for (name, sent, error, code) in table {
        let (_, answer, ended) = exchange(channels(Codec::Binary, true), &sent).await;
        match ended {
            Err(StreamError::WebSocket(got)) => assert_eq!(got, error, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        let [high, low] = code.to_be_bytes();
        assert_eq!(answer, [0x88, 2, high, low], "{name}");
    }
    let long = vec![b'A'; 1024 * 1024 + 8];
    let (ours, mut io) = duplex(4 * 1024 * 1024);
    let (streams, _, driver) = connect(ours, Role::Server, channels(Codec::Base64, false), limits());
    io.write_all(&frame(0x81, &[b"0", long.as_slice()].concat())).await.unwrap();
    let ended = driver.await;
    assert!(matches!(ended, Err(StreamError::WebSocket(WsError::TooLong { .. }))), "{ended:?}");
    drop(streams);
}

#[tokio::test]
async fn a_client_that_is_gone_is_not_the_end_of_its_input() {
    let (ours, mut io) = duplex(1024);
    let (mut streams, _, driver) = connect(ours, Role::Server, channels(Codec::Binary, true), limits());
    io.write_all(&frame(0x82, b"\0half a line")).await.unwrap();
    io.write_all(&frame(0x88, &[3, 0xe8])).await.unwrap();
    let read = async {
        let mut got = Vec::new();
        let error = streams[0].read_to_end(&mut got).await.unwrap_err();
        assert_eq!((got.as_slice(), error.kind()), (&b"half a line"[..], io::ErrorKind::ConnectionAborted));
    };
    let (ended, ()) = tokio::join!(driver, read);
    ended.unwrap();
}

#[tokio::test]
async fn a_tunnel_is_a_byte_stream() {
    let (ours, theirs) = duplex(1024);
    let (mut at_client, _, client) = tunnel(ours, Role::Client, limits());
    let (mut at_server, _, server) = tunnel(theirs, Role::Server, limits());
    let work = async {
        let (wrote, read) = tokio::join!(at_client.write_all(&[3; 100_000]), async {
            let mut got = vec![0; 100_000];
            at_server.read_exact(&mut got).await.unwrap();
            got
        });
        wrote.unwrap();
        assert!(read == [3; 100_000]);
        at_server.write_all(b"bye").await.unwrap();
        at_server.shutdown().await.unwrap();
        let mut got = Vec::new();
        at_client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"bye");
    };
    let (called, served, ()) = tokio::join!(client, server, work);
    called.unwrap();
    served.unwrap();

    let (ours, mut io) = duplex(1024);
    let (_stream, _, driver) = tunnel(ours, Role::Server, limits());
    io.write_all(&frame(0x81, b"text")).await.unwrap();
    let (ended, answer) = tokio::join!(driver, rest(&mut io));
    assert!(matches!(ended, Err(StreamError::WebSocket(WsError::TextInTunnel))), "{ended:?}");
    assert_eq!(answer, [0x88, 2, 0x03, 0xe8]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_end_the_connection_or_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300), v5: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, mut io) = duplex(64 * 1024);
            let (streams, _, driver) = connect(ours, Role::Server, channels(Codec::Binary, v5), limits());
            drop(streams);
            io.write_all(&bytes).await.unwrap();
            io.shutdown().await.unwrap();
            let (ended, _) = tokio::join!(driver, rest(&mut io));
            drop(ended);
        });
    }
}
