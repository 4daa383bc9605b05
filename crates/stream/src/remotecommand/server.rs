//! The end that has the command.

use std::future::Future;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{
    ByPurpose, Input, Outcome, Output, Protocol, Purpose, ResizeEvents, STREAM_TYPE, Version, Wanted,
    channels,
};
use crate::spdy::Session;
use crate::ws::{self, Codec};
use crate::{Limits, Role, StreamError};

/// What the command is given. Streams that the client did not ask for are missing.
#[derive(Debug)]
pub struct CommandStreams {
    /// The client's input.
    pub stdin: Option<Input>,
    /// Output to the client.
    pub stdout: Option<Output>,
    /// Error output to the client.
    pub stderr: Option<Output>,
    /// The sizes of the client's terminal. They have to be read, or input waits behind them.
    pub resize: Option<ResizeEvents>,
}

/// Serves a connection on which the upgrade is done: waits for the client's streams, runs the command with them, tells
/// its outcome and closes.
///
/// The command's future runs inside this one and is dropped when the client goes away, or when this one is dropped. Output that the client has not
/// taken when the command ends is still sent, for as long as the idle limit allows.
///
/// # Errors
///
/// If the client went away before the command had ended, broke the protocol, was idle too long, or did not open its streams in time.
pub async fn serve<I, F, Fut>(
    io: I,
    protocol: Protocol,
    wanted: Wanted,
    limits: Limits,
    command: F,
) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(CommandStreams) -> Fut,
    Fut: Future<Output = Outcome>,
{
    match protocol {
        Protocol::Spdy(version) => serve_spdy(io, version, wanted, limits, command).await,
        Protocol::WebSocket(version, codec) => {
            serve_websocket(io, version, codec, wanted, limits, command).await
        }
    }
}

async fn serve_spdy<I, F, Fut>(
    io: I,
    version: Version,
    wanted: Wanted,
    limits: Limits,
    command: F,
) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(CommandStreams) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let create = limits.create;
    let (session, driver) = Session::new(io, Role::Server, limits);
    let work = async {
        let collected = tokio::time::timeout(create, collect(&session, wanted, version)).await;
        let streams = match collected {
            Ok(streams) => streams?,
            Err(_) => {
                session.close();
                return Err(StreamError::StreamsMissing);
            }
        };
        run_command(streams, wanted, version, command).await;
        session.close();
        // Streams that come too late are refused by this handle's end.
        Ok(())
    };
    finish(driver, work).await
}

async fn serve_websocket<I, F, Fut>(
    io: I,
    version: Version,
    codec: Codec,
    wanted: Wanted,
    limits: Limits,
    command: F,
) -> Result<(), StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(CommandStreams) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let (streams, closer, driver) = ws::connect(io, Role::Server, channels(version, codec), limits);
    let work = async {
        let mut collected = ByPurpose::default();
        for (purpose, stream) in Purpose::ALL.into_iter().zip(streams) {
            // Sizes come on any version's channel; the others only if they were asked for.
            let is_wanted = match purpose {
                Purpose::Resize => wanted.tty,
                _ => purpose.is_wanted(wanted, version),
            };
            if is_wanted {
                collected.put(purpose, stream);
            }
        }
        let first = match (wanted.stdout, wanted.stderr && !wanted.tty) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        closer.hello(first, codec).await;
        run_command(collected, wanted, version, command).await;
        closer.close();
        Ok(())
    };
    finish(driver, work).await
}

/// Runs the work and the connection together. Work without a connection has nobody to work for.
async fn finish(
    driver: impl Future<Output = Result<(), StreamError>>,
    work: impl Future<Output = Result<(), StreamError>>,
) -> Result<(), StreamError> {
    let mut driver = pin!(driver);
    tokio::select! {
        // A connection that ends while the work goes on has lost its client.
        ended = &mut driver => ended.and(Err(StreamError::Gone)),
        done = work => {
            // Clients close as soon as they have the outcome, in the middle of our farewell if they like.
            if let Err(error) = driver.await {
                tracing::debug!(error = &error as &dyn std::error::Error, "the connection did not close in order");
            }
            done
        }
    }
}

async fn run_command<F, Fut>(mut streams: ByPurpose, wanted: Wanted, version: Version, command: F)
where
    F: FnOnce(CommandStreams) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let outcome = command(CommandStreams {
        stdin: streams.stdin.take().map(Input::from_client),
        stdout: streams.stdout.take().map(Output),
        stderr: streams.stderr.take().map(Output),
        resize: streams.resize.take().filter(|_| wanted.tty).map(ResizeEvents::new),
    })
    .await;
    if let Some(error) = streams.error {
        let mut error = Output(error);
        // The buffer of a stream that nothing was written to takes it at once; a client that is gone is noticed elsewhere.
        drop(error.write_all(&outcome.encode(version)).await);
    }
}

/// Accepts streams until all have come that the client announced; others are refused.
async fn collect(session: &Session, wanted: Wanted, version: Version) -> Result<ByPurpose, StreamError> {
    let mut collected = ByPurpose::default();
    let mut missing: Vec<Purpose> =
        Purpose::ALL.into_iter().filter(|purpose| purpose.is_wanted(wanted, version)).collect();
    while !missing.is_empty() {
        let incoming = session.accept().await.ok_or(StreamError::Gone)?;
        let kind = incoming.headers().get(STREAM_TYPE).unwrap_or_default();
        let Some(place) = missing.iter().position(|purpose| purpose.name() == kind) else {
            tracing::debug!(kind, "a stream that was not announced is refused");
            continue;
        };
        let purpose = missing.swap_remove(place);
        collected.put(purpose, incoming.accept().0);
    }
    Ok(collected)
}
