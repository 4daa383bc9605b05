//! The end that wants a command run.

use std::future::Future;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    ByPurpose, Input, OutcomeReader, Output, Protocol, Purpose, ResizeSender, STREAM_TYPE, Version, Wanted,
    channels,
};
use crate::spdy::{Headers, Session};
use crate::ws;
use crate::{Limits, Role, StreamError};

/// A command that runs at the other end. Streams that were not asked for are missing.
#[derive(Debug)]
pub struct RemoteCommand {
    /// Its input; shutting it down ends the input, where the protocol can say so (all but WebSocket before v5).
    pub stdin: Option<Output>,
    /// Its output.
    pub stdout: Option<Input>,
    /// Its error output.
    pub stderr: Option<Input>,
    /// The size of its terminal.
    pub resize: Option<ResizeSender>,
    /// How it ends.
    pub outcome: OutcomeReader,
}

/// Opens the streams on a connection on which the upgrade is done, and hands them to `using`, whose future runs inside
/// this one. When it ends, the connection is closed.
///
/// # Errors
///
/// If the streams could not be opened. What happens to the connection later is seen by `using`, in its streams.
pub async fn call<I, F, Fut>(
    io: I,
    protocol: Protocol,
    wanted: Wanted,
    limits: Limits,
    using: F,
) -> Result<Fut::Output, StreamError>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(RemoteCommand) -> Fut,
    Fut: Future,
{
    match protocol {
        Protocol::Spdy(version) => {
            let (session, driver) = Session::new(io, Role::Client, limits);
            let work = async {
                let mut streams = ByPurpose::default();
                // The order of upstream's client; servers take any.
                for purpose in
                    [Purpose::Error, Purpose::Stdin, Purpose::Stdout, Purpose::Stderr, Purpose::Resize]
                {
                    if purpose.is_wanted(wanted, version) {
                        let headers = Headers::from_iter([(STREAM_TYPE, purpose.name())]);
                        streams.put(purpose, session.open(headers).await?);
                    }
                }
                let output = match streams.into_command(version) {
                    Some(command) => Ok(using(command).await),
                    None => Err(StreamError::NotOpened),
                };
                session.close();
                output
            };
            finish(driver, work).await
        }
        Protocol::WebSocket(version, codec) => {
            let (streams, closer, driver) = ws::connect(io, Role::Client, channels(version, codec), limits);
            let work = async {
                let mut opened = ByPurpose::default();
                for (purpose, stream) in Purpose::ALL.into_iter().zip(streams) {
                    if purpose.is_wanted(wanted, version) {
                        opened.put(purpose, stream);
                    }
                }
                let output = match opened.into_command(version) {
                    Some(command) => Ok(using(command).await),
                    None => Err(StreamError::NotOpened),
                };
                closer.close();
                output
            };
            finish(driver, work).await
        }
    }
}

/// Runs both. What has arrived before the connection ended can still be read, so the work goes on without it.
async fn finish<T>(
    driver: impl Future<Output = Result<(), StreamError>>,
    work: impl Future<Output = Result<T, StreamError>>,
) -> Result<T, StreamError> {
    let (mut driver, mut work) = (pin!(driver), pin!(work));
    tokio::select! {
        ended = &mut driver => {
            if let Err(error) = ended {
                tracing::debug!(error = &error as &dyn std::error::Error, "the streaming connection failed");
            }
            work.await
        }
        done = &mut work => {
            // The answer is there: how the connection closes changes nothing.
            drop(driver.await);
            done
        }
    }
}

impl ByPurpose {
    fn into_command(self, version: Version) -> Option<RemoteCommand> {
        Some(RemoteCommand {
            stdin: self.stdin.map(Output),
            stdout: self.stdout.map(Input::from_server),
            stderr: self.stderr.map(Input::from_server),
            resize: self.resize.map(|stream| ResizeSender(Output(stream))),
            outcome: OutcomeReader { stream: Input::from_server(self.error?), version },
        })
    }
}
