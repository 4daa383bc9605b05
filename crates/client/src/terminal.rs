//! The terminal that a remote command is given: raw while it runs, and as it was afterwards, whatever happens in between.

use std::{future::Future, io::IsTerminal};

use mainstay_stream::remotecommand::{ResizeSender, TerminalSize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::ClientError;

/// A raw terminal. Dropping it restores what was, also when a panic does that.
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Makes standard input raw: every key goes to the remote command, Ctrl-C as well.
    pub(crate) fn begin() -> Result<Self, ClientError> {
        let failed = |source: rustix::io::Errno| ClientError::Terminal { source: source.into() };
        let before = tcgetattr(rustix::stdio::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        let this = Self { before };
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(this)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before).ok();
    }
}

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    std::io::stdin().is_terminal()
}

/// Sends the terminal's size now and whenever it changes. Never ends.
pub(crate) async fn send_sizes(mut to: ResizeSender) {
    // A terminal whose changes cannot be heard of keeps its first size.
    let mut changes = signal(SignalKind::window_change()).ok();
    loop {
        if let Ok(size) = tcgetwinsize(rustix::stdio::stdin()) {
            let size = TerminalSize { width: size.ws_col, height: size.ws_row };
            if to.send(size).await.is_err() {
                break;
            }
        }
        let Some(changes) = &mut changes else { break };
        if changes.recv().await.is_none() {
            break;
        }
    }
    std::future::pending().await
}

/// Runs `work` unless a signal that would end the process comes first: then everything is dropped in order, so that the terminal is
/// restored. The code that a shell shows for the signal.
pub(crate) async fn unless_killed<T>(work: impl Future<Output = T>) -> Result<T, u8> {
    let listen = |kind: SignalKind| signal(kind).ok();
    let mut terminate = listen(SignalKind::terminate());
    let mut hangup = listen(SignalKind::hangup());
    let mut interrupt = listen(SignalKind::interrupt());
    let mut quit = listen(SignalKind::quit());
    // Cancel safe: what is dropped is ended by that.
    tokio::select! {
        done = work => Ok(done),
        () = next(&mut terminate) => Err(128 + 15),
        () = next(&mut hangup) => Err(128 + 1),
        () = next(&mut interrupt) => Err(128 + 2),
        () = next(&mut quit) => Err(128 + 3),
    }
}

async fn next(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
