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

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_90_seconds() {
    let fixture = Fixture::start();
    let mut stream = TcpStream::connect(fixture.read_only).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap();
    assert_eq!(parse_reply(&answer[..read]).body, "ok");
    let begun = tokio::time::Instant::now();
    assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    let idle = begun.elapsed();
    assert!(idle >= Duration::from_secs(89) && idle <= Duration::from_secs(92), "{idle:?}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go_while_others_are_served() {
    let fixture = Fixture::start();
    let pods = (0..100).map(|i| simple_pod(&format!("p{i}"), &"x".repeat(100_000))).collect();
    fixture.publish(snapshot(1, pods, vec![]));
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
    assert!(begun.elapsed() >= Duration::from_secs(25), "{:?}", begun.elapsed());
    drop(stuck);
}

#[tokio::test]
async fn more_connections_than_allowed_wait_their_turn() {
    let fixture = Fixture::start();
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(TcpStream::connect(fixture.healthz).await.unwrap());
    }
    let waiting = tcp(fixture.healthz, "GET", "/healthz");
    let mut waiting = std::pin::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(200), waiting.as_mut()).await.is_err());
    held.truncate(32);
    assert_eq!(waiting.await.body, "ok");
}
