//! HTTP over the unix socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use mainstay_task::TaskGroup;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::{args::ConnectArgs, error::ClientError};

const DEFAULT_ROOT: &str = "/var/lib/kubelet";
const SOCKET_NAME: &str = "mainstay.sock";
const SOCKET_VARIABLE: &str = "MAINSTAY_SOCKET";

/// Until the head of an answer; everything that is served is in memory already.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Between two pieces of an answer that does not wait for anything to happen.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// A text that comes with a refusal is a sentence; more of it is not read.
const REFUSAL_BYTES: usize = 64 << 10;

/// The way to one mainstay.
pub(crate) struct Connection {
    socket: PathBuf,
    /// Owns the tasks that drive connections; they end with the runtime.
    tasks: TaskGroup,
}

/// An answer whose body is read as it comes.
pub(crate) struct Stream {
    request: String,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(args: &ConnectArgs) -> Self {
        let variable = std::env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty());
        Self { socket: socket_path(args, variable.map(PathBuf::from)), tasks: TaskGroup::new() }
    }

    /// A request whose answer has an end that waits for nothing; the answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: &str) -> Result<T, ClientError> {
        let mut stream = self.stream(request).await?;
        let mut body = Vec::new();
        loop {
            let piece = tokio::time::timeout(PIECE_TIMEOUT, stream.piece()).await;
            match piece.map_err(|_| silent(request, PIECE_TIMEOUT))?? {
                Some(piece) => body.extend_from_slice(&piece),
                None => break,
            }
        }
        serde_json::from_slice(&body)
            .map_err(|source| ClientError::Unreadable { request: request.to_owned(), source })
    }

    /// A request whose answer is read piece by piece. Anything but 200 is an error with the server's words.
    pub(crate) async fn stream(&self, request: &str) -> Result<Stream, ClientError> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(request))
            .await
            .map_err(|_| silent(request, ANSWER_TIMEOUT))??;
        let status = answer.status();
        let mut stream = Stream { request: request.to_owned(), body: answer.into_body(), buffer: Vec::new() };
        if status == StatusCode::OK {
            return Ok(stream);
        }
        let mut text = Vec::new();
        while let Ok(Ok(Some(piece))) = tokio::time::timeout(PIECE_TIMEOUT, stream.piece()).await {
            text.extend_from_slice(&piece);
            if text.len() > REFUSAL_BYTES {
                break;
            }
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        let text = if text.is_empty() { format!("mainstay answered {request} with {status}") } else { text };
        Err(ClientError::Refused { status, text })
    }

    async fn send(&self, request: &str) -> Result<http::Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.connect_error(error))?;
        let broke_off = |source| ClientError::BrokeOff { request: request.to_owned(), source };
        let (mut sender, connection) =
            http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.map_err(broke_off)?;
        self.tasks.spawn("connection", async move {
            // What goes wrong with it is seen where the answer is read.
            drop(connection.await);
        });
        let message = Request::get(request)
            .header(header::HOST, "localhost")
            .header(header::USER_AGENT, concat!("mainstay/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|source| ClientError::Request { request: request.to_owned(), source })?;
        sender.send_request(message).await.map_err(broke_off)
    }

    fn connect_error(&self, source: io::Error) -> ClientError {
        let path = self.socket.clone();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                ClientError::NobodyAnswers { path }
            }
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path },
            _ => ClientError::Connect { path, source },
        }
    }
}

impl Stream {
    /// The next piece; `None` at the end. Cancel safe.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame =
                frame.map_err(|source| ClientError::BrokeOff { request: self.request.clone(), source })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The next line as JSON; `None` at the end. Cancel safe.
    pub(crate) async fn line<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(at + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|source| ClientError::Unreadable { request: self.request.clone(), source });
            }
            match self.piece().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

/// Escapes a value for a query string.
pub(crate) fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn silent(request: &str, after: Duration) -> ClientError {
    ClientError::Silent { request: request.to_owned(), seconds: after.as_secs() }
}

/// What was asked for on the command line goes before the environment.
fn socket_path(args: &ConnectArgs, variable: Option<PathBuf>) -> PathBuf {
    match (&args.socket, &args.root_dir, variable) {
        (Some(socket), _, _) => socket.clone(),
        (None, Some(root), _) => root.join(SOCKET_NAME),
        (None, None, Some(socket)) => socket,
        (None, None, None) => Path::new(DEFAULT_ROOT).join(SOCKET_NAME),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_socket_is() {
        let args = |socket: Option<&str>, root_dir: Option<&str>| ConnectArgs {
            socket: socket.map(PathBuf::from),
            root_dir: root_dir.map(PathBuf::from),
        };
        for (args, variable, expected) in [
            (args(None, None), None, "/var/lib/kubelet/mainstay.sock"),
            (args(None, None), Some("/v.sock"), "/v.sock"),
            (args(None, Some("/root")), Some("/v.sock"), "/root/mainstay.sock"),
            (args(Some("/s"), None), Some("/v.sock"), "/s"),
        ] {
            assert_eq!(socket_path(&args, variable.map(PathBuf::from)), Path::new(expected));
        }
    }

    #[test]
    fn values_are_escaped() {
        assert_eq!(escaped("2026-01-01T00:00:00+02:00"), "2026-01-01T00%3A00%3A00%2B02%3A00");
        assert_eq!(escaped("default/web-0"), "default/web-0");
        assert_eq!(escaped("é&"), "%C3%A9%26");
    }
}
