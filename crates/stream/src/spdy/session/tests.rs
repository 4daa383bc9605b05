use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

const KILOBYTE: usize = 1024;

fn limits() -> Limits {
    Limits::default()
}

fn kind(text: &str) -> Headers {
    Headers::from_iter([("streamtype", text)])
}

/// Runs a server and a client on one pipe while the test works with both.
async fn pair<T>(work: impl AsyncFnOnce(Session, Session) -> T) -> T {
    let (ours, theirs) = duplex(16 * KILOBYTE);
    let (server, server_driver) = Session::new(ours, Role::Server, limits());
    let (client, client_driver) = Session::new(theirs, Role::Client, limits());
    tokio::select! {
        done = work(server, client) => done,
        ended = async { tokio::join!(server_driver, client_driver) } => panic!("{ended:?}"),
    }
}

/// A peer that is written by hand, byte by byte.
struct Bare {
    io: DuplexStream,
    encoder: HeaderEncoder,
    decoder: HeaderDecoder,
}

impl Bare {
    fn server(limits: Limits) -> (Self, Session, impl Future<Output = Result<(), StreamError>> + Send) {
        let (ours, io) = duplex(1024 * KILOBYTE);
        let (session, driver) = Session::new(ours, Role::Server, limits);
        let bare = Self { io, encoder: HeaderEncoder::default(), decoder: HeaderDecoder::new(4096) };
        (bare, session, driver)
    }

    async fn send(&mut self, control: Control) {
        let mut out = Vec::new();
        control.encode(&mut self.encoder, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    async fn data(&mut self, stream: u32, fin: bool, data: &[u8]) {
        let mut out = Vec::new();
        encode_data(stream, fin, data, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    /// The next frame: a control frame, or data with their stream and whether they are the last.
    async fn next(&mut self) -> Result<Control, (u32, bool, Vec<u8>)> {
        let mut header = [0; 8];
        self.io.read_exact(&mut header).await.unwrap();
        match FrameHeader::parse(header).unwrap() {
            FrameHeader::Data { stream, fin, length } => {
                let mut data = vec![0; length];
                self.io.read_exact(&mut data).await.unwrap();
                Err((stream, fin, data))
            }
            FrameHeader::Control { kind, flags, length } => {
                let mut payload = vec![0; length];
                self.io.read_exact(&mut payload).await.unwrap();
                Ok(Control::parse(kind, flags, &payload, &mut self.decoder).unwrap())
            }
        }
    }

    /// Reads the two frames that every connection begins with.
    async fn greeted(&mut self) {
        assert_eq!(self.next().await, Ok(Control::Settings(vec![(7, MAX_WINDOW)])));
        assert_eq!(self.next().await, Ok(Control::WindowUpdate { stream: 0, delta: MAX_WINDOW - 65536 }));
    }
}

#[tokio::test]
async fn bytes_go_both_ways_and_directions_end_alone() {
    pair(async |server, client| {
        let accept = async {
            let incoming = server.accept().await.unwrap();
            assert_eq!((incoming.id(), incoming.headers().get("streamType")), (1, Some("stdin")));
            incoming.accept().0
        };
        let (opened, mut accepted) = tokio::join!(client.open(kind("stdin")), accept);
        let mut opened = opened.unwrap();
        opened.write_all(b"question").await.unwrap();
        opened.shutdown().await.unwrap();
        assert!(opened.write_all(b"more").await.is_err());
        let mut text = String::new();
        accepted.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "question");
        // Its end of the stream is still open.
        accepted.write_all(b"answer").await.unwrap();
        accepted.shutdown().await.unwrap();
        text.clear();
        opened.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "answer");
        drop((opened, accepted));
        while server.mux().held_bytes() != (0, 0, 0) || client.mux().held_bytes() != (0, 0, 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_writer_waits_for_the_reader_at_the_other_end() {
    pair(async |server, client| {
        let (opened, accepted) =
            tokio::join!(client.open(kind("x")), async { server.accept().await.unwrap().accept().0 });
        let (mut opened, mut accepted) = (opened.unwrap(), accepted);
        let data = vec![7; 10_000 * KILOBYTE];
        let (mut written, mut refused) = (0, 0);
        // It takes what all the buffers on the way hold, and no more. Once may be a machine that stood still.
        while refused < 3 {
            match tokio::time::timeout(Duration::from_millis(500), opened.write(&data[written..])).await {
                Ok(length) => (written, refused) = (written + length.unwrap(), 0),
                Err(_) => refused += 1,
            }
        }
        assert!((100 * KILOBYTE..400 * KILOBYTE).contains(&written), "{written}");
        let (_, received, unsent) = server.mux().held_bytes();
        assert!(received <= 64 * KILOBYTE && unsent == 0, "{received} {unsent}");
        // And goes on as it is read.
        let mut read = vec![0; data.len()];
        let (wrote, got) = tokio::join!(opened.write_all(&data[written..]), accepted.read_exact(&mut read));
        wrote.unwrap();
        got.unwrap();
        assert!(read == data);
    })
    .await;
}

#[tokio::test]
async fn a_refused_stream_and_a_dropped_one() {
    pair(async |server, client| {
        let refuse = async { drop(server.accept().await.unwrap()) };
        let (opened, ()) = tokio::join!(client.open(kind("x")), refuse);
        assert!(matches!(opened, Err(StreamError::NotOpened)), "{opened:?}");

        let accept = async { server.accept().await.unwrap().accept().0 };
        let (opened, accepted) = tokio::join!(client.open(kind("x")), accept);
        let (mut opened, mut accepted) = (opened.unwrap(), accepted);
        accepted.write_all(b"last words").await.unwrap();
        drop(accepted);
        let mut words = Vec::new();
        let error = opened.read_to_end(&mut words).await.unwrap_err();
        assert_eq!((words.as_slice(), error.kind()), (&b"last words"[..], io::ErrorKind::ConnectionReset));
        assert_eq!(opened.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    })
    .await;
}

#[tokio::test]
async fn closing_says_everything_first() {
    let (ours, theirs) = duplex(KILOBYTE);
    let (server, server_driver) = Session::new(ours, Role::Server, limits());
    let (client, client_driver) = Session::new(theirs, Role::Client, limits());
    let serve = async {
        let mut stream = server.accept().await.unwrap().accept().0;
        stream.write_all(&[1; 60 * KILOBYTE]).await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        server.close();
        assert!(server.accept().await.is_none());
    };
    let ask = async {
        let mut stream = client.open(kind("x")).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), 60 * KILOBYTE);
    };
    let (served, called, (), ()) = tokio::join!(server_driver, client_driver, serve, ask);
    served.unwrap();
    called.unwrap();
}

#[tokio::test]
async fn a_lost_connection_ends_all_streams() {
    let (mut bare, session, driver) = Bare::server(limits());
    let work = async {
        bare.send(Control::SynStream { stream: 1, fin: false, headers: kind("x") }).await;
        let mut stream = session.accept().await.unwrap().accept().0;
        bare.data(1, false, b"begun").await;
        drop(bare);
        let mut got = Vec::new();
        let error = stream.read_to_end(&mut got).await.unwrap_err();
        assert_eq!((got.as_slice(), error.kind()), (&b"begun"[..], io::ErrorKind::ConnectionAborted));
        assert!(stream.write_all(b"x").await.is_err());
        assert!(session.accept().await.is_none());
        assert!(session.open(kind("x")).await.is_err());
        drop(stream);
        assert_eq!(session.mux().held_bytes(), (0, 0, 0));
    };
    let (ended, ()) = tokio::join!(driver, work);
    drop(ended);
}

#[tokio::test]
async fn a_driver_that_is_dropped_ends_all_streams() {
    let (mut bare, session, driver) = Bare::server(limits());
    bare.send(Control::SynStream { stream: 1, fin: false, headers: kind("x") }).await;
    let mut stream = tokio::select! {
        _ = driver => panic!("it ended"),
        incoming = session.accept() => incoming.unwrap().accept().0,
    };
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn windows_are_kept_once_the_peer_has_shown_that_it_has_any() {
    let (mut bare, session, driver) = Bare::server(limits());
    let work = async {
        bare.greeted().await;
        bare.send(Control::Settings(vec![(4, 100), (SETTINGS_INITIAL_WINDOW_SIZE, 1000)])).await;
        bare.send(Control::SynStream { stream: 1, fin: false, headers: kind("x") }).await;
        let mut stream = session.accept().await.unwrap().accept().0;
        assert!(matches!(bare.next().await, Ok(Control::SynReply { stream: 1, .. })));
        stream.write_all(&[1; 5000]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut got = 0;
        for window in [0, 1500, 1, 10_000] {
            if window > 0 {
                bare.send(Control::WindowUpdate { stream: 1, delta: window }).await;
            }
            let (id, fin, data) = bare.next().await.unwrap_err();
            let expected = if window == 0 { 1000 } else { usize::try_from(window).unwrap().min(5000 - got) };
            got += data.len();
            assert_eq!((id, data.len(), fin), (1, expected, got == 5000));
            if got < 5000 {
                let more = tokio::time::timeout(Duration::from_millis(20), bare.next()).await;
                assert!(more.is_err(), "sent beyond the window: {more:?}");
            }
        }
        assert_eq!(got, 5000);
    };
    tokio::select! {
        ended = driver => panic!("{ended:?}"),
        () = work => {}
    }
}

#[tokio::test]
async fn without_windows_nothing_is_held_back() {
    let (mut bare, session, driver) = Bare::server(limits());
    let work = async {
        bare.greeted().await;
        bare.send(Control::SynStream { stream: 1, fin: false, headers: kind("x") }).await;
        let mut stream = session.accept().await.unwrap().accept().0;
        let read = async {
            assert!(matches!(bare.next().await, Ok(Control::SynReply { stream: 1, .. })));
            let mut got = 0;
            while got < 300 * KILOBYTE {
                got += bare.next().await.unwrap_err().2.len();
            }
        };
        let data = vec![1; 300 * KILOBYTE];
        let (wrote, ()) = tokio::join!(stream.write_all(&data), read);
        wrote.unwrap();
    };
    tokio::select! {
        ended = driver => panic!("{ended:?}"),
        () = work => {}
    }
}

#[tokio::test]
async fn rules_of_the_connection() {
    let (mut bare, session, driver) = Bare::server(Limits { max_streams: 2, ..limits() });
    let work = async {
        bare.greeted().await;
        // The other side's pings are echoed, our own are not.
        bare.send(Control::Ping(8)).await;
        bare.send(Control::Ping(7)).await;
        assert_eq!(bare.next().await, Ok(Control::Ping(7)));
        let syn = |stream| Control::SynStream { stream, fin: false, headers: kind("x") };
        let reset = |stream, status| Ok(Control::RstStream { stream, status });
        bare.send(syn(2)).await;
        assert_eq!(bare.next().await, reset(2, ResetStatus::PROTOCOL_ERROR));
        bare.send(syn(3)).await;
        bare.send(syn(1)).await;
        assert_eq!(bare.next().await, reset(1, ResetStatus::PROTOCOL_ERROR));
        bare.data(9, false, b"x").await;
        assert_eq!(bare.next().await, reset(9, ResetStatus::INVALID_STREAM));
        bare.send(syn(5)).await;
        bare.send(syn(7)).await;
        assert_eq!(bare.next().await, reset(7, ResetStatus::REFUSED_STREAM));
        // A stream that is cancelled before anybody took it never was.
        bare.send(Control::RstStream { stream: 3, status: ResetStatus::CANCEL }).await;
        bare.send(Control::Unknown).await;
        bare.send(Control::GoAway { last_good_stream: 0, status: 0 }).await;
        bare.send(syn(9)).await;
        bare.send(Control::Ping(11)).await;
        assert_eq!(bare.next().await, Ok(Control::Ping(11)));
        let incoming = session.accept().await.unwrap();
        assert_eq!(incoming.id(), 5);
        drop(incoming);
        assert_eq!(bare.next().await, reset(5, ResetStatus::REFUSED_STREAM));
        let more = tokio::time::timeout(Duration::from_millis(20), session.accept()).await;
        assert!(more.is_err(), "{more:?}");
    };
    tokio::select! {
        ended = driver => panic!("{ended:?}"),
        () = work => {}
    }
}

#[tokio::test]
async fn a_peer_that_breaks_the_rules_is_told_and_left() {
    let long = [0x80, 3, 0, 4, 0, 2, 0, 0];
    let bad_headers = [0x80, 3, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2];
    let table: [(&str, &[u8], FrameError); 3] = [
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n", FrameError::StreamZero),
        (
            "a long control frame",
            &long,
            FrameError::ControlTooLong { length: 0x20000, limit: MAX_CONTROL_BYTES },
        ),
        ("bad headers", &bad_headers, FrameError::BadCompression),
    ];
    for (name, bytes, error) in table {
        let (mut bare, _session, driver) = Bare::server(limits());
        let work = async {
            bare.greeted().await;
            bare.io.write_all(bytes).await.unwrap();
            if name != "HTTP" {
                assert_eq!(bare.next().await, Ok(Control::GoAway { last_good_stream: 0, status: 1 }));
            } else {
                // To us that is data for a stream of a billion, of which not all have come.
                bare.io.shutdown().await.unwrap();
            }
        };
        let (ended, ()) = tokio::join!(driver, work);
        match (name, ended) {
            ("HTTP", Err(StreamError::Read(cause))) => assert_eq!(cause.kind(), io::ErrorKind::UnexpectedEof),
            (_, Err(StreamError::Frame(got))) => assert_eq!(got, error, "{name}"),
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_flood_of_pings_does_not_pile_up() {
    let (mut bare, _session, driver) = Bare::server(limits());
    let flood = async {
        let mut out = Vec::new();
        Control::Ping(1).encode(&mut HeaderEncoder::default(), &mut out);
        let many = out.repeat(1000);
        // Nobody reads the answers: the pipe of a megabyte fills in both directions, and then it is over.
        loop {
            let wrote = tokio::time::timeout(Duration::from_secs(1), bare.io.write_all(&many)).await;
            if wrote.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        ended = driver => panic!("{ended:?}"),
        () = flood => {}
    }
}

#[tokio::test]
async fn an_idle_connection_ends() {
    let (_bare, _session, driver) =
        Bare::server(Limits { idle: Some(Duration::from_millis(30)), ..limits() });
    assert!(matches!(driver.await, Err(StreamError::Idle)));
}

#[tokio::test]
async fn a_client_asks_whether_the_server_is_there() {
    let (ours, io) = duplex(1024 * KILOBYTE);
    let limits = Limits { keepalive: Some(Duration::from_millis(10)), ..limits() };
    let (_session, driver) = Session::new(ours, Role::Client, limits);
    let mut bare = Bare { io, encoder: HeaderEncoder::default(), decoder: HeaderDecoder::new(4096) };
    let work = async {
        bare.greeted().await;
        assert_eq!(bare.next().await, Ok(Control::Ping(1)));
        assert_eq!(bare.next().await, Ok(Control::Ping(1)));
    };
    tokio::select! {
        ended = driver => panic!("{ended:?}"),
        () = work => {}
    }
}
