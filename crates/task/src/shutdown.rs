//! The signal that ends our own work.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

/// A token that is signalled once and stays signalled; every clone sees the same signal.
///
/// Only the [`crate::TaskGroup`] it came from can signal it.
#[derive(Clone, Debug)]
pub struct Shutdown {
    receiver: watch::Receiver<bool>,
    // Kept so that `changed()` cannot fail: a token outlives its group in tests and in detached readers.
    _sender: Arc<watch::Sender<bool>>,
}

impl Shutdown {
    pub(crate) fn new() -> (Arc<watch::Sender<bool>>, Self) {
        let (sender, receiver) = watch::channel(false);
        let sender = Arc::new(sender);
        (sender.clone(), Self { receiver, _sender: sender })
    }

    /// Whether shutdown has been signalled.
    #[must_use]
    pub fn is_signalled(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Waits until shutdown is signalled; returns at once if it has been. Cancel safe.
    pub async fn signalled(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as `self`, so the only way out is the signal.
        drop(receiver.wait_for(|signalled| *signalled).await);
    }

    /// Runs `work` until it ends or shutdown is signalled, whichever is first; `None` means that `work` was dropped
    /// unfinished, so `work` must be cancel safe.
    pub async fn run_until_signalled<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.signalled() => None,
            done = work => Some(done),
        }
    }
}
