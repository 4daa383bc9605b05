//! Binding: stale sockets, modes, addresses, errors that say what to do.

use super::*;
use crate::ServeError;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
use std::os::unix::fs::PermissionsExt;

fn config(socket: PathBuf) -> ServerConfig {
    ServerConfig {
        socket,
        secure: None,
        read_only: None,
        healthz: None,
        sync_frequency: Duration::from_secs(60),
        split_log_streams: false,
        switches: Default::default(),
        acting: None,
        node_logs: Default::default(),
        host: Default::default(),
        families: Default::default(),
    }
}

#[tokio::test]
async fn the_socket_is_for_root_only_and_goes_with_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mainstay.sock");
    let bound = bind(config(path.clone())).unwrap();
    assert_eq!(bound.socket(), path);
    assert_eq!(bound.read_only_address(), None);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(bound);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mainstay.sock");
    // Left behind: the file is there and nobody listens, nor did a child that another test is just starting.
    let left = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&left, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(left);
    assert!(path.exists());
    let bound = bind(config(path.clone())).unwrap();
    let second = bind(config(path.clone())).unwrap_err();
    assert!(matches!(second, ServeError::SocketInUse { .. }), "{second}");
    assert!(second.to_string().contains("another mainstay already answers at"), "{second}");
    assert!(path.exists(), "the refused one removed nothing");
    // A server whose file was replaced by another's leaves that one alone.
    std::fs::remove_file(&path).unwrap();
    let other = bind(config(path.clone())).unwrap();
    drop(bound);
    assert!(path.exists());
    drop(other);
}

#[tokio::test]
async fn what_is_in_the_way_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mainstay.sock");
    std::fs::write(&path, "precious").unwrap();
    let error = bind(config(path.clone())).unwrap_err();
    assert!(matches!(error, ServeError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    let error = bind(config(directory.path().join("x".repeat(120)))).unwrap_err();
    assert!(error.to_string().contains("use a shorter --root-dir"), "{error}");
    let error = bind(config(directory.path().join("none/mainstay.sock"))).unwrap_err();
    assert!(error.to_string().contains("does its directory exist"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn a_busy_read_only_port_is_an_error_and_leaves_no_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mainstay.sock");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let error = bind(ServerConfig { read_only: Some(address), ..config(path.clone()) }).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(error.to_string().contains("set readOnlyPort to 0"), "{error}");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_busy_healthz_port_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    // Not 127.0.0.1: a connection to a free port there may, by chance, begin at that very port and meet itself.
    let busy = std::net::TcpListener::bind("127.0.0.77:0").unwrap();
    let address = busy.local_addr().unwrap();
    let bound =
        bind(ServerConfig { healthz: Some(address), ..config(directory.path().join("mainstay.sock")) })
            .unwrap();
    assert_eq!(bound.healthz_address(), None);
    let tasks = TaskGroup::new();
    let events = start_events(EventStoreConfig::new("n".into()), EventSink::bounded(1).1, &tasks);
    bound.serve(
        ServerState {
            tracer: mainstay_trace::Tracer::default(),
            snapshot: watch::channel(None).1,
            events,
            assignments: tokio::sync::watch::channel(Arc::default()).1,
            heartbeat: Heartbeat::default(),
            samples: tokio::sync::watch::channel(Arc::default()).1,
            probes: Default::default(),
            disks: Default::default(),
            work: Default::default(),
            facts: Default::default(),
            calls: Default::default(),
            event_counts: Default::default(),
            counters: Default::default(),
            process_start: jiff::Timestamp::UNIX_EPOCH,
            process: Default::default(),
        },
        &tasks,
    );
    drop(busy);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = TcpStream::connect(address).await {
            assert_eq!(exchange(stream, "GET", "/healthz", &[]).await.body, "ok");
            break;
        }
        assert!(Instant::now() < deadline, "nobody listens on {address}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(tasks.drain(PATIENCE).await.aborted.is_empty());
}
