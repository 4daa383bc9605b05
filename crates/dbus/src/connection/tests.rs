use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use super::*;

const CALL: Call<'_> = Call { destination: "a.b", path: "/a", interface: "a.b.I", member: "Do" };

/// A bus that a test scripts: it authenticates, then answers each call with what `answer` makes of it.
fn bus(
    name: &Path,
    mut answer: impl FnMut(Message) -> Vec<Message> + Send + 'static,
) -> (PathBuf, JoinHandle<()>) {
    let path = name.join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\r\n") {
            stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        assert!(seen.starts_with(b"\0AUTH EXTERNAL "), "{seen:?}");
        stream.write_all(b"OK 1234\r\n").unwrap();
        let mut begin = [0; 7];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"BEGIN\r\n");
        let mut fixed = [0; FIXED];
        while stream.read_exact(&mut fixed).is_ok() {
            let mut bytes = fixed.to_vec();
            bytes.resize(Message::length(&fixed).unwrap(), 0);
            stream.read_exact(&mut bytes[FIXED..]).unwrap();
            for message in answer(Message::parse(&bytes).unwrap()) {
                stream.write_all(&message.encode().unwrap()).unwrap();
            }
        }
    });
    (path, serve)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn reply(to: &Message, body: Vec<Value>) -> Message {
    Message { kind: Kind::Return, serial: 1, reply_serial: Some(to.serial), body, ..Message::default() }
}

#[test]
fn calls_signals_and_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (path, serve) = bus(dir.path(), |message| match message.member.as_str() {
        "Hello" => vec![reply(&message, vec![Value::text(":1.1")])],
        "Do" => {
            assert_eq!((message.destination.as_str(), message.path.as_str()), ("a.b", "/a"));
            let signal = Message {
                kind: Kind::Signal,
                serial: 5,
                path: "/x".to_owned(),
                interface: "a.b.I".to_owned(),
                member: "Happened".to_owned(),
                body: vec![Value::U32(7)],
                ..Message::default()
            };
            let stale = Message { reply_serial: Some(900), ..reply(&message, Vec::new()) };
            vec![signal, stale, reply(&message, message.body.clone())]
        }
        _ => vec![Message {
            kind: Kind::Error,
            error_name: "a.b.No".to_owned(),
            ..reply(&message, vec![Value::text("not today")])
        }],
    });
    let mut connection = Connection::bus(&path, soon()).unwrap();
    let answer = connection.call(&CALL, &[Value::text("x"), Value::Bool(true)], soon()).unwrap();
    assert_eq!(answer, [Value::text("x"), Value::Bool(true)]);
    let signal = connection.next_signal("a signal", soon()).unwrap();
    assert_eq!((signal.member.as_str(), signal.body), ("Happened", vec![Value::U32(7)]));
    let error = connection.call(&Call { member: "Else", ..CALL }, &[], soon()).unwrap_err();
    assert!(error.is("a.b.No"), "{error}");
    assert_eq!(error.to_string(), "Else failed over D-Bus: not today (a.b.No)");
    drop(connection);
    serve.join().unwrap();
}

#[test]
fn a_silent_bus_costs_no_more_than_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let (path, serve) = bus(dir.path(), |_| Vec::new());
    // In first, with all the time it takes: what is silent is the bus, not the beginning.
    let mut connection = Connection::peer(&path, soon()).unwrap();
    connection.is_bus = true;
    let started = Instant::now();
    let error = connection.call_bus("Hello", &[], started + Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, DbusError::Deadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60));
    drop(connection);
    serve.join().unwrap();
}

#[test]
fn a_bus_that_is_away_or_refuses_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Connection::bus(&dir.path().join("none"), soon()).unwrap_err();
    assert!(matches!(error, DbusError::Connect { .. }), "{error}");
    let path = dir.path().join("refuses");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"REJECTED EXTERNAL\r\n").unwrap();
        stream
    });
    let error = Connection::peer(&path, soon()).unwrap_err();
    assert!(error.to_string().contains("REJECTED"), "{error}");
    drop(serve.join().unwrap());
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("garbage");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"OK 1\r\n").unwrap();
        stream.write_all(&[0xff; 64]).unwrap();
        stream
    });
    let error = Connection::bus(&path, soon()).unwrap_err();
    assert!(matches!(error, DbusError::Wire(_)), "{error}");
    drop(serve.join().unwrap());
}

#[test]
fn addresses_of_the_environment() {
    assert_eq!(socket_of("unix:path=/run/a,guid=1").unwrap(), Path::new("/run/a"));
    assert_eq!(socket_of("tcp:host=x;unix:guid=1,path=/b").unwrap(), Path::new("/b"));
    socket_of("unix:abstract=/c").unwrap_err();
}
