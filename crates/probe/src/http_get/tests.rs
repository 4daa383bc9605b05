use mainstay_task::TaskGroup;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Answers each request by its path: `/200`, `/301?/where`; `/hang` not at all; `/head` with the request itself, as 500.
async fn server(tasks: &TaskGroup) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn("server", async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            while !request.ends_with(b"\r\n\r\n") {
                match connection.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => request.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                }
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            let (code, location) =
                path.trim_start_matches('/').split_once('?').unwrap_or((path.trim_start_matches('/'), ""));
            let answer = match code {
                "hang" => {
                    tokio::time::sleep(Duration::from_secs(1000)).await;
                    continue;
                }
                "close" => continue,
                "loop" => "HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "long" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "x".repeat(100_000)),
                "head" => format!("HTTP/1.1 302 Found\r\nContent-Length: {}\r\n\r\n{request}", request.len()),
                code => format!("HTTP/1.1 {code} X\r\nLocation: {location}\r\nContent-Length: 2\r\n\r\nhi"),
            };
            connection.write_all(answer.as_bytes()).await.ok();
        }
    });
    port
}

async fn ask(port: u16, path: &str, headers: serde_json::Value) -> Answer {
    let action = serde_json::from_value(json!({"port": port, "path": path, "httpHeaders": headers})).unwrap();
    // Long enough to come as far as the server, that is, on a machine that stands still for a while.
    let deadline = Duration::from_secs(if path == "/hang" { 6 } else { 60 });
    attempt(&HttpTarget::new("u", &action, "127.0.0.1", port), deadline).await.unwrap()
}

#[tokio::test]
async fn answers() {
    let tasks = TaskGroup::new();
    let port = server(&tasks).await;
    let failure = |text: &str| Answer::Failure(text.into());
    let redirect = |body: &str| Answer::Warning(format!("Probe terminated redirects, Response body: {body}"));
    let get = |path: &str, why: &str| failure(&format!("Get \"http://127.0.0.1:{port}{path}\": {why}"));
    for (path, expected) in [
        ("/200", Answer::Success),
        ("204", Answer::Success),
        ("/400", failure("HTTP probe failed with statuscode: 400")),
        ("/503", failure("HTTP probe failed with statuscode: 503")),
        ("/304", redirect("")),
        ("/302?/200", Answer::Success),
        ("/302?/500", failure("HTTP probe failed with statuscode: 500")),
        ("/302?http://elsewhere.test/500", redirect("hi")),
        ("/long", Answer::Success),
        ("/loop", get("/loop", "stopped after 10 redirects")),
        ("/close", get("/close", "EOF")),
        ("/hang", get("/hang", "context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
    ] {
        // The server is busy hanging only after the last.
        assert_eq!(ask(port, path, json!([])).await, expected, "{path}");
    }
    tasks.drain(Duration::ZERO).await;
}

#[tokio::test]
async fn headers() {
    let tasks = TaskGroup::new();
    let port = server(&tasks).await;
    let header = |name: &str, value: &str| json!({"name": name, "value": value});
    for (given, has, has_not) in [
        (
            json!([]),
            vec!["user-agent: kube-probe/1.37", "accept: */*", "connection: close", "host: 127.0.0.1"],
            vec!["accept-encoding"],
        ),
        (
            json!([
                header("Accept", ""),
                header("user-agent", "me"),
                header("Host", "web.test"),
                header("X", "1"),
                header("X", "2")
            ]),
            vec!["user-agent: me", "host: web.test", "x: 1", "x: 2"],
            vec!["accept:", "kube-probe", "127.0.0.1"],
        ),
        (json!([header("User-Agent", "")]), vec!["accept: */*"], vec!["user-agent"]),
    ] {
        // The answer carries the request, so that it can be looked at.
        let Answer::Warning(text) = ask(port, "/head", given.clone()).await else { panic!("{given}") };
        let text = text.to_lowercase();
        assert!(has.iter().all(|line| text.contains(line)), "{given}: {text}");
        assert!(!has_not.iter().any(|line| text.contains(line)), "{given}: {text}");
    }
    tasks.drain(Duration::ZERO).await;
}

#[test]
fn ipv6_and_https() {
    let action = serde_json::from_value(json!({"port": 1, "scheme": "HTTPS"})).unwrap();
    assert_eq!(HttpTarget::new("u", &action, "fd00::1", 8443).request.url, "https://[fd00::1]:8443/");
}
