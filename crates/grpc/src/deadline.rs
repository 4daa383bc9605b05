//! How long the answer to a call may lie there.
//!
//! An answer cannot end itself: hyper asks it for nothing while the client makes no room. So the task that sends it is ended around it, and
//! HTTP/2 resets the stream and forgets what was not taken.

use std::{cell::Cell, future::pending, time::Duration};

use tokio::sync::oneshot;

/// As long as that.
pub const PATIENCE: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// Whoever is told that the task's call has only so much time from now on.
    static HURRY: Cell<Option<oneshot::Sender<()>>>;
}

/// Lets the call of this task have [`within`]'s patience from now on, and no more.
pub(crate) fn begin() {
    let told = HURRY.try_with(|hurry| hurry.take().is_some_and(|begun| begun.send(()).is_ok()));
    debug_assert_eq!(told, Ok(true), "a call has one task, and one deadline");
}

/// Runs a call until it is over, or its patience is.
pub(crate) async fn within(patience: Duration, call: impl Future<Output = ()>) {
    let (begun, begins) = oneshot::channel();
    let call = HURRY.scope(Cell::new(Some(begun)), call);
    let late = async {
        match begins.await {
            Ok(()) => tokio::time::sleep(patience).await,
            Err(_) => pending().await,
        }
    };
    tokio::select! {
        () = call => {}
        () = late => tracing::debug!("an answer that was not taken is given up"),
    }
}
