//! HTTP over the unix socket, or to a server.

use std::{
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use mainstay_stream::negotiate::{PROTOCOL_VERSION, SPDY};
use mainstay_task::TaskGroup;
use serde::de::DeserializeOwned;

use crate::{
    args::ConnectArgs,
    dial::{self, Server},
    error::ClientError,
    output::Output,
};

const DEFAULT_ROOT: &str = "/var/lib/kubelet";
const SOCKET_NAME: &str = "mainstay.sock";
const SOCKET_VARIABLE: &str = "MAINSTAY_SOCKET";

/// Until the head of an answer; everything that is served is in memory already.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The same where the container runtime has to be asked.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(150);
/// Between two pieces of an answer that does not wait for anything to happen.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two tries to find a mainstay that was there before.
const RETRY: Duration = Duration::from_millis(500);
/// A text that comes with a refusal is a sentence; more of it is not read.
const REFUSAL_BYTES: usize = 64 << 10;

/// The way to one mainstay.
#[derive(Clone)]
pub(crate) struct Connection {
    way: Way,
    /// Owns the tasks that drive connections; they end with the runtime.
    tasks: TaskGroup,
}

#[derive(Clone)]
enum Way {
    Socket(PathBuf),
    Server(Server),
}

/// An answer whose body is read as it comes.
pub(crate) struct Stream {
    request: String,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(args: &ConnectArgs) -> Result<Self, ClientError> {
        let way = match Server::of(args)? {
            Some(server) => Way::Server(server),
            None => {
                let variable = std::env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty());
                Way::Socket(socket_path(args, variable.map(PathBuf::from)))
            }
        };
        Ok(Self { way, tasks: TaskGroup::new() })
    }

    /// Runs something beside, until the process ends.
    pub(crate) fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, work);
    }

    /// A request whose answer has an end that waits for nothing; the answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: &str) -> Result<T, ClientError> {
        let body = self.bytes(request).await?;
        serde_json::from_slice(&body)
            .map_err(|source| ClientError::Unreadable { request: request.to_owned(), source })
    }

    /// The same, as text.
    pub(crate) async fn text(&self, request: &str) -> Result<String, ClientError> {
        Ok(String::from_utf8_lossy(&self.bytes(request).await?).into_owned())
    }

    async fn bytes(&self, request: &str) -> Result<Vec<u8>, ClientError> {
        let mut stream = self.stream(request).await?;
        let mut body = Vec::new();
        loop {
            let piece = tokio::time::timeout(PIECE_TIMEOUT, stream.piece()).await;
            match piece.map_err(|_| silent(request, PIECE_TIMEOUT))?? {
                Some(piece) => body.extend_from_slice(&piece),
                None => return Ok(body),
            }
        }
    }

    /// A request whose answer is read piece by piece. Anything but 200 is an error with the server's words.
    pub(crate) async fn stream(&self, request: &str) -> Result<Stream, ClientError> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(request))
            .await
            .map_err(|_| silent(request, ANSWER_TIMEOUT))??;
        let status = answer.status();
        let stream = Stream { request: request.to_owned(), body: answer.into_body(), buffer: Vec::new() };
        if status == StatusCode::OK {
            return Ok(stream);
        }
        Err(refused(request, status, stream).await)
    }

    /// A request that makes the connection itself speak SPDY with one of these protocols; also the headers of the answer.
    pub(crate) async fn upgrade(
        &self,
        request: &str,
        protocols: &[&str],
    ) -> Result<(TokioIo<Upgraded>, HeaderMap), ClientError> {
        let mut builder =
            Request::post(request).header(header::CONNECTION, "Upgrade").header(header::UPGRADE, SPDY);
        for protocol in protocols {
            builder = builder.header(PROTOCOL_VERSION, *protocol);
        }
        let mut answer = tokio::time::timeout(UPGRADE_TIMEOUT, self.exchange(request, builder))
            .await
            .map_err(|_| silent(request, UPGRADE_TIMEOUT))??;
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let stream = Stream { request: request.to_owned(), body: answer.into_body(), buffer: Vec::new() };
            return Err(refused(request, status, stream).await);
        }
        let upgraded = hyper::upgrade::on(&mut answer).await;
        let upgraded =
            upgraded.map_err(|source| ClientError::BrokeOff { request: request.to_owned(), source })?;
        Ok((TokioIo::new(upgraded), answer.into_parts().0.headers))
    }

    /// Begins a watch. A mainstay that has just started is waited for; that there is none is told at once.
    pub(crate) async fn watch(&self, request: &str, output: &mut Output) -> Result<Stream, ClientError> {
        match self.stream(request).await {
            Err(ClientError::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. }) => {
                output.note("mainstay has just started; waiting until it knows its pods (Ctrl-C ends this)");
                self.until_answered(request).await
            }
            answered => answered,
        }
    }

    /// A watch that broke off with `error`, begun again as soon as a mainstay answers; any other error is given back.
    pub(crate) async fn again(
        &self,
        request: &str,
        error: ClientError,
        output: &mut Output,
    ) -> Result<Stream, ClientError> {
        if !error.is_passing() {
            return Err(error);
        }
        output.note("mainstay has ended; waiting for it to come back (Ctrl-C ends this)");
        let stream = self.until_answered(request).await?;
        output.note("mainstay is back");
        Ok(stream)
    }

    async fn until_answered(&self, request: &str) -> Result<Stream, ClientError> {
        loop {
            tokio::time::sleep(RETRY).await;
            match self.stream(request).await {
                Err(error) if error.is_passing() => {}
                answered => return answered,
            }
        }
    }

    async fn send(&self, request: &str) -> Result<http::Response<Incoming>, ClientError> {
        self.exchange(request, Request::get(request)).await
    }

    async fn exchange(
        &self,
        request: &str,
        builder: http::request::Builder,
    ) -> Result<http::Response<Incoming>, ClientError> {
        let (stream, host) = match &self.way {
            Way::Socket(path) => (dial::socket(path).await?, "localhost".to_owned()),
            Way::Server(server) => (server.connect().await?, server.authority()),
        };
        let broke_off = |source| ClientError::BrokeOff { request: request.to_owned(), source };
        let (mut sender, connection) =
            http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.map_err(broke_off)?;
        self.spawn("connection", async move {
            // What goes wrong with it is seen where the answer is read.
            drop(connection.with_upgrades().await);
        });
        let mut builder = builder
            .header(header::HOST, host)
            .header(header::USER_AGENT, concat!("mainstay/", env!("CARGO_PKG_VERSION")));
        if let Way::Server(server) = &self.way
            && let Some(token) = server.token()
        {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let message = builder
            .body(Empty::new())
            .map_err(|source| ClientError::Request { request: request.to_owned(), source })?;
        sender.send_request(message).await.map_err(broke_off)
    }
}

/// What a server said instead of what was asked for.
async fn refused(request: &str, status: StatusCode, mut stream: Stream) -> ClientError {
    let mut text = Vec::new();
    while let Ok(Ok(Some(piece))) = tokio::time::timeout(PIECE_TIMEOUT, stream.piece()).await {
        text.extend_from_slice(&piece);
        if text.len() > REFUSAL_BYTES {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let text = if text.is_empty() { format!("mainstay answered {request} with {status}") } else { text };
    let remedy = if status == StatusCode::UNAUTHORIZED {
        "; show who you are by --token-file or --client-certificate, and look at mainstay's audit log for why it does not believe you"
    } else {
        ""
    };
    ClientError::Refused { status, text: text + remedy }
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
            ..ConnectArgs::default()
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
