use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::Instant;

use super::pairs::{Announced, parse_port};
use super::*;
use crate::spdy::{Headers, Session};
use crate::ws::{self, Channels, Codec};
use crate::{Limits, Role, Stream, StreamError};

fn limits() -> Limits {
    Limits::for_port_forward()
}

/// Says its port, then echoes; nobody listens on port 1.
async fn echo(port: u16, mut stream: Stream) -> Result<(), String> {
    if port == 1 {
        return Err("nobody listens".to_owned());
    }
    let text = |error: std::io::Error| error.to_string();
    stream.write_all(format!("{port}:").as_bytes()).await.map_err(text)?;
    let mut buffer = [0; 1000];
    loop {
        let length = stream.read(&mut buffer).await.map_err(text)?;
        if length == 0 {
            return stream.shutdown().await.map_err(text);
        }
        stream.write_all(&buffer[..length]).await.map_err(text)?;
    }
}

#[test]
fn what_streams_announce() {
    let read =
        |pairs: &[(&str, &str)], stream| Announced::read(&pairs.iter().copied().collect::<Headers>(), stream);
    let whole = read(&[("streamType", "data"), ("port", "80"), ("requestID", "5")], 9).unwrap();
    assert_eq!(whole, Announced { port: 80, is_data: true, request: "5".to_owned() });
    let old_error = read(&[("streamType", "error"), ("port", "80")], 7).unwrap();
    let old_data = read(&[("streamType", "data"), ("port", "80")], 9).unwrap();
    assert_eq!(old_error.request, old_data.request);
    for pairs in [&[("port", "80")][..], &[("streamType", "data")], &[("streamType", "x"), ("port", "80")]] {
        assert_eq!(read(pairs, 1), None, "{pairs:?}");
    }
    for port in ["", "abc", "-1", "0", "65536", "+1", " 1"] {
        assert_eq!(parse_port(port), None, "{port:?}");
    }
    assert_eq!((parse_port("1"), parse_port("65535")), (Some(1), Some(65535)));
}

#[tokio::test]
async fn connections_over_spdy_and_through_a_tunnel() {
    for tunnelled in [false, true] {
        let (ours, theirs) = duplex(4096);
        let work = async |forwarder: Forwarder| {
            for port in [80, 81] {
                let mut forwarded = forwarder.connect(port).await.unwrap();
                forwarded.data.write_all(b"hello").await.unwrap();
                forwarded.data.shutdown().await.unwrap();
                let (mut text, mut error) = (String::new(), String::new());
                forwarded.data.read_to_string(&mut text).await.unwrap();
                forwarded.error.read_to_string(&mut error).await.unwrap();
                assert_eq!((text, error.as_str()), (format!("{port}:hello"), ""));
            }
            let mut refused = forwarder.connect(1).await.unwrap();
            let mut error = String::new();
            refused.error.read_to_string(&mut error).await.unwrap();
            assert_eq!(error, "nobody listens");
            drop(refused);
            forwarder.close();
        };
        if tunnelled {
            let (bytes, closer, tunnel) = ws::tunnel(theirs, Role::Client, limits());
            let (forwarder, driver) = Forwarder::new(bytes, limits());
            let client = async {
                let (driven, ()) = tokio::join!(driver, work(forwarder));
                closer.close();
                driven
            };
            let (served, tunnel, driven) = tokio::join!(serve_tunnel(ours, limits(), echo), tunnel, client);
            served.unwrap();
            tunnel.unwrap();
            driven.unwrap();
        } else {
            let (forwarder, driver) = Forwarder::new(theirs, limits());
            let (served, driven, ()) =
                tokio::join!(serve_spdy(ours, limits(), echo), driver, work(forwarder));
            served.unwrap();
            driven.unwrap();
        }
    }
}

async fn open(session: &Session, kind: &str, port: &str, request: &str) -> Result<Stream, StreamError> {
    session.open(Headers::from_iter([("streamtype", kind), ("port", port), ("requestid", request)])).await
}

async fn text(mut stream: Stream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn streams_that_do_not_make_a_pair() {
    let (ours, theirs) = duplex(4096);
    let (session, driver) = Session::new(theirs, Role::Client, limits());
    let work = async {
        for port in ["", "abc", "-1", "0", "65536"] {
            let refused = open(&session, "data", port, "1").await;
            assert!(matches!(refused, Err(StreamError::NotOpened)), "{port:?}");
        }
        assert!(open(&session, "stdin", "80", "1").await.is_err());

        let first = open(&session, "error", "80", "3").await.unwrap();
        let _second = open(&session, "error", "80", "3").await.unwrap();
        assert_eq!(text(first).await, "error processing stream for request 3: error stream already assigned");
        session.close();
    };
    let (served, driven, ()) = tokio::join!(serve_spdy(ours, limits(), echo), driver, work);
    served.unwrap();
    driven.unwrap();
}

#[tokio::test]
async fn a_stream_whose_other_half_does_not_come_is_not_waited_for() {
    let (ours, theirs) = duplex(4096);
    let (session, driver) = Session::new(theirs, Role::Client, limits());
    let work = async {
        let begun = Instant::now();
        let lonely = open(&session, "error", "80", "2").await.unwrap();
        assert_eq!(text(lonely).await, "(request=2) timed out waiting for streams");
        assert!(begun.elapsed() >= Duration::from_secs(2));
        session.close();
    };
    let short = Limits { create: Duration::from_secs(2), ..limits() };
    let (served, driven, ()) = tokio::join!(serve_spdy(ours, short, echo), driver, work);
    served.unwrap();
    driven.unwrap();
}

#[tokio::test]
async fn channels_of_a_websocket_begin_with_their_port() {
    for codec in [Codec::Binary, Codec::Base64] {
        let (ours, theirs) = duplex(4096);
        let ports = [7000, 1, 9000];
        let serve = serve_websocket(ours, codec, &ports, limits(), echo);
        let channels = Channels { count: 6, codec, close_signal: false };
        let (mut streams, closer, driver) = ws::connect(theirs, Role::Client, channels, limits());
        let work = async {
            for (index, port) in ports.into_iter().enumerate() {
                for stream in &mut streams[2 * index..2 * index + 2] {
                    let mut prefix = [0; 2];
                    stream.read_exact(&mut prefix).await.unwrap();
                    assert_eq!(u16::from_le_bytes(prefix), port);
                }
            }
            let mut error = [0; 14];
            streams[3].read_exact(&mut error).await.unwrap();
            assert_eq!(&error, b"nobody listens");
            for (channel, port) in [(0, "7000:"), (4, "9000:")] {
                streams[channel].write_all(b"ping").await.unwrap();
                let mut answer = [0; 9];
                streams[channel].read_exact(&mut answer).await.unwrap();
                assert_eq!(std::str::from_utf8(&answer).unwrap(), format!("{port}ping"));
            }
            closer.close();
        };
        let (served, driven, ()) = tokio::join!(serve, driver, work);
        served.unwrap();
        driven.unwrap();
    }
}
