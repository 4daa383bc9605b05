//! Clients that send too much, take too little, or stay too long.

use super::*;

#[tokio::test]
async fn a_header_block_over_a_mebibyte_is_431() {
    let fixture = Fixture::start();
    let large = "x".repeat(900_000);
    assert_eq!(fixture.request("GET", "/healthz", &[("X-Large", &large)]).await.status, 200);

    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(1_200_000));
    // The server may answer and close before it has read everything.
    drop(stream.write_all(request.as_bytes()).await);
    let mut answer = Vec::new();
    drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap());
    assert_eq!(parse_reply(&answer).status, 431);
}

#[tokio::test]
async fn nonsense_is_400() {
    let fixture = Fixture::start();
    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    stream.write_all(b"this is not HTTP\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(parse_reply(&answer).status, 400);
}

#[tokio::test]
async fn idle_connections_are_closed_after_90_seconds() {
    let fixture = Fixture::start();
    let mut stream = TcpStream::connect(fixture.read_only).await.unwrap();
    let asked = tokio::time::Instant::now();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap();
    assert_eq!(parse_reply(&answer[..read]).body, "ok");
    // From here on time is ours: it jumps to the next deadline whenever nothing is left to do.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    // The server's end of it: what the kernel still carries to ours takes real time, in which this one runs on.
    while fixture.tasks.running_names().iter().any(|name| name == "http connection") {
        assert!(begun.elapsed() <= Duration::from_secs(92), "{:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The server's clock was set after the request came and before time stopped.
    assert!(asked.elapsed() >= Duration::from_secs(89), "{:?}", asked.elapsed());
    tokio::time::resume();
    assert_eq!(tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go_while_others_are_served() {
    let fixture = Fixture::start();
    let pods = (0..100).map(|i| simple_pod(&format!("p{i}"), &"x".repeat(100_000))).collect();
    fixture.publish(snapshot(1, pods, vec![]));
    let asked = tokio::time::Instant::now();
    let mut stuck = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(fixture.read_only).await.unwrap();
        stream.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        stuck.push(stream);
    }
    assert_eq!(tcp(fixture.read_only, "GET", "/healthz").await.body, "ok");
    // From here on time is ours: it jumps to the next deadline whenever nothing is left to do.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    while fixture.tasks.running_names().iter().any(|name| name == "http connection") {
        assert!(begun.elapsed() < Duration::from_secs(80), "stuck clients are kept");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(asked.elapsed() >= Duration::from_secs(29), "{:?}", asked.elapsed());
    drop(stuck);
}

#[tokio::test]
async fn more_connections_than_there_are_places_make_room() {
    let fixture = Fixture::start();
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(TcpStream::connect(fixture.healthz).await.unwrap());
    }
    let answer = tokio::time::timeout(PATIENCE, tcp(fixture.healthz, "GET", "/healthz")).await.unwrap();
    assert_eq!(answer.body, "ok");
    let closed = tokio::time::timeout(PATIENCE, held[0].read(&mut [0; 8])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "the oldest went: {closed:?}");
}
