//! exec and attach over a WebSocket that ends here (`v5.channel.k8s.io`, upstream's gate `ExtendWebSocketsToKubelet`): its channels become the
//! streams of a SPDY connection to the runtime, which knows no v5.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use mainstay_stream::{
    Limits,
    negotiate::{self, PROTOCOL_VERSION, SPDY},
    remotecommand::{self, CommandStreams, Outcome, Protocol, RemoteCommand, Version, Wanted},
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{
    Refused, Upgrade,
    runtime::{Reached, RuntimeIo, reach},
};
use crate::{
    answer::{self, Answer},
    body::Body,
    route::App,
};

/// What is offered to the runtime, the best first.
const OFFERED: [(&str, Version); 4] = [
    ("v4.channel.k8s.io", Version::V4),
    ("v3.channel.k8s.io", Version::V3),
    ("v2.channel.k8s.io", Version::V2),
    ("channel.k8s.io", Version::V1),
];
/// How often the runtime is asked whether it is there.
const PING: Duration = Duration::from_secs(5);
/// How much of a stream is moved at once.
const BUFFER_BYTES: usize = 32 * 1024;

/// What either side was told about the streams. They differ for attach, where the container decides whether there is a terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) client: Wanted,
    pub(super) runtime: Wanted,
}

/// Answers with 101, or with what is wrong with the handshake. What goes wrong with the runtime afterwards is told on the channel for errors.
pub(super) fn translate(
    app: &App,
    upgrade: Upgrade,
    url: String,
    method: &Method,
    headers: &HeaderMap,
    wanted: Streams,
) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    let agreed = negotiate::remote_command(method, headers).map_err(|refusal| handshake(*refusal))?;
    let (deadline, idle) = (config.cri.timeout(), config.idle);
    let protocol = agreed.protocol;
    let limits = Limits { idle, ..Limits::default() };
    upgrade.begin(app, "stream", move |client| async move {
        let to_runtime = Limits { keepalive: Some(PING), ..limits.clone() };
        let command =
            |streams| async move { Box::pin(run(&url, deadline, wanted.runtime, to_runtime, streams)).await };
        if let Err(error) = remotecommand::serve(client, protocol, wanted.client, limits, command).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "a session ended");
        }
    });
    let (head, ()) = agreed.response.into_parts();
    Ok(Answer::from_parts(head, Body::Whole(bytes::Bytes::new())))
}

/// A handshake that was refused, without type and length, as upstream's WebSocket server writes it.
pub(super) fn handshake(refusal: negotiate::Refusal) -> Answer {
    let text = refusal.body.into();
    let mut answer = answer::untyped(
        refusal.status,
        // The client being gone is all that can go wrong in there.
        Body::produced(|sink| async move { drop(sink.send(text).await) }),
    );
    *answer.headers_mut() = refusal.headers;
    answer
}

/// Asks the runtime and carries the streams; how it ended.
async fn run(
    url: &str,
    deadline: Duration,
    wanted: Wanted,
    limits: Limits,
    streams: CommandStreams,
) -> Outcome {
    let (io, version) = match spdy(url, deadline).await {
        Ok(reached) => reached,
        Err(message) => return Outcome::Failed { message: format!("Internal error occurred: {message}") },
    };
    let called =
        remotecommand::call(io, Protocol::Spdy(version), wanted, limits, |command| carry(streams, command));
    match called.await {
        Ok(Outcome::Exited { code, .. }) => Outcome::Exited {
            code,
            message: format!(
                "command terminated with non-zero exit code: command terminated with exit code {code}"
            ),
        },
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed { message: error.to_string() },
    }
}

/// A SPDY connection to the runtime, and the version of the protocol that it chose.
async fn spdy(url: &str, deadline: Duration) -> Result<(RuntimeIo, Version), String> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
    for (name, _) in OFFERED {
        headers.append(PROTOCOL_VERSION, HeaderValue::from_static(name));
    }
    let (headers, io) = match reach(url, &Method::POST, headers, deadline).await {
        Ok(Reached::Switched { headers, io }) => (headers, io),
        Ok(Reached::Answered(refusal)) if refusal.status.is_redirection() => {
            return Err("redirect not allowed".to_owned());
        }
        Ok(Reached::Answered(refusal)) => return Err(refusal.text()),
        Err(error) => return Err(error.to_string()),
    };
    let chosen = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match OFFERED.iter().find(|(name, _)| *name == chosen) {
        Some((_, version)) => Ok((io, *version)),
        // Runtimes before negotiation spoke the first version.
        None if chosen.is_empty() => Ok((io, Version::V1)),
        None => Err(format!("the runtime chose the protocol {chosen:?}, which was not offered")),
    }
}

/// Carries all streams at once. What the command still writes is carried before its end is told; its input and the sizes of the terminal
/// do not hold anything up.
async fn carry(ours: CommandStreams, theirs: RemoteCommand) -> Outcome {
    let RemoteCommand { stdin, stdout, stderr, resize, outcome } = theirs;
    let input = async {
        if let (Some(from), Some(to)) = (ours.stdin, stdin) {
            copy(from, to).await;
        }
        std::future::pending::<()>().await;
    };
    let sizes = async {
        if let (Some(mut from), Some(mut to)) = (ours.resize, resize) {
            while let Some(size) = from.next().await {
                if to.send(size).await.is_err() {
                    break;
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let output = async {
        let one = async {
            if let (Some(from), Some(to)) = (stdout, ours.stdout) {
                copy(from, to).await;
            }
        };
        let other = async {
            if let (Some(from), Some(to)) = (stderr, ours.stderr) {
                copy(from, to).await;
            }
        };
        let ((), (), outcome) = tokio::join!(one, other, outcome.read());
        match outcome {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed { message: error.to_string() },
        }
    };
    // The first two never end; they are dropped with the command.
    tokio::select! {
        outcome = output => outcome,
        () = input => Outcome::Success,
        () = sizes => Outcome::Success,
    }
}

/// Copies to the end, and ends the other stream. A stream that breaks ends the copying; how the command ended is told elsewhere.
async fn copy(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut from = tokio::io::BufReader::with_capacity(BUFFER_BYTES, from);
    drop(tokio::io::copy_buf(&mut from, &mut to).await);
    drop(to.shutdown().await);
}
