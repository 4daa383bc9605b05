//! The end that wants to reach a pod's ports.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::{DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE};
use crate::spdy::{Headers, Session};
use crate::{Limits, Role, Stream, StreamError};

/// How much is read of why a connection failed, and how long it is waited for.
const MAX_MESSAGE_BYTES: u64 = 4096;
const MESSAGE_DEADLINE: Duration = Duration::from_secs(10);

/// Opens connections to ports over one SPDY connection.
#[derive(Debug)]
pub struct Forwarder {
    session: Session,
    next_request: AtomicU32,
}

/// A connection to a port.
#[derive(Debug)]
pub struct Forwarded {
    /// Its bytes.
    pub data: Stream,
    /// A text of what went wrong, or nothing; it ends when the forwarding does.
    pub error: Stream,
}

impl Forwarder {
    /// Takes a connection on which the upgrade is done. The future drives it and must be polled for anything to happen.
    pub fn new<I>(io: I, limits: Limits) -> (Self, impl Future<Output = Result<(), StreamError>> + Send)
    where
        I: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (session, driver) = Session::new(io, Role::Client, limits);
        (Self { session, next_request: AtomicU32::new(0) }, driver)
    }

    /// Connects to a port. What goes wrong later, and mostly also that nobody listens, is told by the error stream.
    ///
    /// # Errors
    ///
    /// If the streams could not be opened, or the other end was quicker to say why it cannot connect than to accept them.
    pub async fn connect(&self, port: u16) -> Result<Forwarded, StreamError> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed).to_string();
        let port = port.to_string();
        let headers = |kind: &str| {
            Headers::from_iter([(STREAM_TYPE, kind), (PORT, port.as_str()), (REQUEST_ID, request.as_str())])
        };
        let error = self.session.open(headers(ERROR)).await?;
        // Nothing is ever sent on it from here.
        error.finish_sending();
        match self.session.open(headers(DATA)).await {
            Ok(data) => Ok(Forwarded { data, error }),
            Err(failure) => {
                let mut message = Vec::new();
                let mut error = error.take(MAX_MESSAGE_BYTES);
                let read = error.read_to_end(&mut message);
                // However it ends, what was read is what was said.
                drop(tokio::time::timeout(MESSAGE_DEADLINE, read).await);
                match message.as_slice() {
                    [] => Err(failure),
                    _ => Err(StreamError::NotForwarded(String::from_utf8_lossy(&message).into_owned())),
                }
            }
        }
    }

    /// Ends the connection once everything is written.
    pub fn close(&self) {
        self.session.close();
    }
}
