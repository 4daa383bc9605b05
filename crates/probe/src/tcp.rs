//! A TCP connection: that it opens is the answer.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::{Answer, error::system_text, join};

pub(crate) async fn attempt(pod: &str, host: &str, port: u16, timeout: Duration) -> Answer {
    let failed = |why: String| Answer::Failure(format!("dial tcp {}: {why}", join(host, port)));
    let connect = async {
        let addresses = mainstay_http::resolve(pod, host, port).await?;
        TcpStream::connect(addresses.as_slice()).await
    };
    match tokio::time::timeout(timeout, connect).await {
        Ok(Ok(_)) => Answer::Success,
        Ok(Err(error)) if error.raw_os_error().is_some() => {
            failed(format!("connect: {}", system_text(&error)))
        }
        Ok(Err(error)) => failed(system_text(&error)),
        Err(_) => failed("i/o timeout".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn open_and_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let deadline = Duration::from_secs(60);
        assert_eq!(attempt("u", "127.0.0.1", port, deadline).await, Answer::Success);
        // One on which nobody listens, and which nobody else can be given.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let port = held.local_addr().unwrap().port();
        let text = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(attempt("u", "127.0.0.1", port, deadline).await, Answer::Failure(text));
    }
}
