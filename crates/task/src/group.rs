//! Tasks with names, whose end someone notices.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::Shutdown;

type Name = Cow<'static, str>;

/// How long [`TaskGroup::drain`] waits for aborted tasks to be gone. A task that computes without ever awaiting cannot
/// be aborted, and must not hold up the exit.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// A group of running tasks; clones are handles to the same group.
#[derive(Clone)]
pub struct TaskGroup {
    inner: Arc<Inner>,
}

/// A critical task that ended before shutdown was signalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// The name the task was spawned with.
    pub name: String,
    /// How it ended.
    pub kind: FailureKind,
}

/// How a task ended that should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It panicked, with this message.
    Panicked(String),
    /// It returned although it was to run until shutdown.
    Returned,
}

/// What [`TaskGroup::drain`] had to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The names of the tasks that had not ended by the deadline and were aborted, sorted.
    pub aborted: Vec<String>,
}

/// One task of a group. Dropping it changes nothing: the group goes on owning the task.
#[derive(Debug)]
pub struct TaskHandle {
    abort: Option<AbortHandle>,
    ended: watch::Receiver<bool>,
}

struct Inner {
    signal: Arc<watch::Sender<bool>>,
    shutdown: Shutdown,
    failure: watch::Sender<Option<TaskFailure>>,
    running: Mutex<Running>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Running {
    next_id: u64,
    // Set by `drain` once it starts to abort; a task spawned after that would be owned by nobody.
    closed: bool,
    tasks: HashMap<u64, (Name, Option<AbortHandle>)>,
}

/// Takes the task out of the group however it ends: returned, panicked, aborted, or dropped with the runtime.
struct Registration {
    inner: Arc<Inner>,
    id: u64,
    _ended: EndedOnDrop,
}

struct EndedOnDrop(watch::Sender<bool>);

impl Default for TaskGroup {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskGroup {
    /// An empty group with a fresh [`Shutdown`].
    #[must_use]
    pub fn new() -> Self {
        let (signal, shutdown) = Shutdown::new();
        let inner = Inner {
            signal,
            shutdown,
            failure: watch::Sender::new(None),
            running: Mutex::default(),
            count: watch::Sender::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The token that this group's shutdown signals.
    #[must_use]
    pub fn shutdown(&self) -> Shutdown {
        self.inner.shutdown.clone()
    }

    /// Starts a task that may end whenever its work is done. A panic is logged as an error with the task's name and
    /// ends that task only.
    ///
    /// # Panics
    /// Outside a tokio runtime, as `tokio::spawn` does.
    pub fn spawn<F>(&self, name: impl Into<Name>, work: F) -> TaskHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start(name.into(), false, work)
    }

    /// Starts a task that has to run until shutdown. If it returns or panics before, this is logged as an error with
    /// the task's name and [`TaskGroup::failed`] resolves.
    ///
    /// # Panics
    /// Outside a tokio runtime, as `tokio::spawn` does.
    pub fn spawn_critical<F>(&self, name: impl Into<Name>, work: F) -> TaskHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start(name.into(), true, work)
    }

    /// Resolves with the first critical task that ended before shutdown; pending as long as there is none. The binary
    /// exits non-zero then. Cancel safe.
    pub async fn failed(&self) -> TaskFailure {
        let mut failure = self.inner.failure.subscribe();
        loop {
            if let Some(failure) = failure.borrow_and_update().clone() {
                return failure;
            }
            if failure.changed().await.is_err() {
                // `self` keeps the sender alive, so this is not reached; waiting is the right answer anyway.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Signals shutdown without waiting for anything. Calling it again changes nothing.
    pub fn signal_shutdown(&self) {
        self.inner.signal.send_replace(true);
    }

    /// Signals shutdown, waits up to `deadline` for every task to end, then aborts and names the rest.
    ///
    /// Must not be called from a task of this group, which would wait for itself. After it returned, tasks that are
    /// spawned are dropped unrun, with a warning.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        self.signal_shutdown();
        let mut count = self.inner.count.subscribe();
        // Whether the deadline passed shows in what is left below.
        drop(tokio::time::timeout(deadline, count.wait_for(|count| *count == 0)).await);
        let mut aborted = Vec::new();
        {
            let mut running = self.inner.running();
            running.closed = true;
            for (name, abort) in running.tasks.values() {
                aborted.push(name.to_string());
                if let Some(abort) = abort {
                    abort.abort();
                }
            }
        }
        if aborted.is_empty() {
            return Drained::default();
        }
        aborted.sort_unstable();
        tracing::warn!(
            tasks = aborted.join(", "),
            "tasks did not end before the shutdown deadline and were aborted"
        );
        if tokio::time::timeout(ABORT_GRACE, count.wait_for(|count| *count == 0)).await.is_err() {
            tracing::warn!(
                tasks = self.running_names().join(", "),
                "tasks still run after being aborted; leaving them"
            );
        }
        Drained { aborted }
    }

    /// The names of the tasks that run now, sorted.
    #[must_use]
    pub fn running_names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.inner.running().tasks.values().map(|(name, _)| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that starts tasks: this group is the owner the ban asks for"
    )]
    fn start<F>(&self, name: Name, critical: bool, work: F) -> TaskHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (ended_sender, ended) = watch::channel(false);
        let ended_sender = EndedOnDrop(ended_sender);
        let id = {
            let mut running = self.inner.running();
            if running.closed {
                drop(running);
                tracing::warn!(task = %name, "the group is already drained; the task was not started");
                return TaskHandle { abort: None, ended };
            }
            let id = running.next_id;
            running.next_id += 1;
            running.tasks.insert(id, (name.clone(), None));
            self.inner.count.send_replace(running.tasks.len());
            id
        };
        let registration = Registration { inner: self.inner.clone(), id, _ended: ended_sender };
        let inner = self.inner.clone();
        let abort = tokio::spawn(async move {
            let _registration = registration;
            let outcome = catch_panic(work).await;
            inner.ended(&name, critical, outcome);
        })
        .abort_handle();
        // The task may already have ended on another worker, then its entry is gone and nothing is to be kept. A drain
        // may have begun to abort in between, then this task was missed and is aborted here.
        let mut running = self.inner.running();
        let closed = running.closed;
        if let Some(entry) = running.tasks.get_mut(&id) {
            entry.1 = Some(abort.clone());
            if closed {
                abort.abort();
            }
        }
        drop(running);
        TaskHandle { abort: Some(abort), ended }
    }
}

impl fmt::Debug for TaskGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskGroup").field("running", &self.running_names()).finish_non_exhaustive()
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FailureKind::Panicked(message) => write!(f, "task {} panicked: {message}", self.name),
            FailureKind::Returned => write!(f, "task {} ended before shutdown", self.name),
        }
    }
}

impl std::error::Error for TaskFailure {}

impl TaskHandle {
    /// Cancels the task at its next await point; it then counts as ended without failure, critical or not.
    pub fn abort(&self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }

    /// Whether the task has ended, in whatever way.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        *self.ended.borrow() || self.ended.has_changed().is_err()
    }

    /// Waits until the task has ended, in whatever way. Cancel safe.
    pub async fn ended(&self) {
        // The value is set, or the sender dropped, when the task's future is gone; both mean the same.
        drop(self.ended.clone().wait_for(|ended| *ended).await);
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, Running> {
        // Nothing that can panic happens under this lock, so a poisoned one is still consistent.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, name: &Name, critical: bool, outcome: Result<(), String>) {
        let kind = match outcome {
            Err(message) => {
                tracing::error!(task = %name, panic = message, "task panicked");
                FailureKind::Panicked(message)
            }
            Ok(()) if critical && !self.shutdown.is_signalled() => {
                tracing::error!(task = %name, "task ended although it has to run until shutdown");
                FailureKind::Returned
            }
            Ok(()) => {
                tracing::trace!(task = %name, "task ended");
                return;
            }
        };
        if critical {
            self.failure.send_if_modified(|first| {
                let is_first = first.is_none();
                if is_first {
                    *first = Some(TaskFailure { name: name.to_string(), kind });
                }
                is_first
            });
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut running = self.inner.running();
        running.tasks.remove(&self.id);
        self.inner.count.send_replace(running.tasks.len());
    }
}

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Runs `work` and turns a panic into its message.
async fn catch_panic(work: impl Future<Output = ()>) -> Result<(), String> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        // Unwind safety: after a panic the future is never polled again, only dropped.
        match std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(panic_message(payload.as_ref()))),
        }
    })
    .await
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(message) = payload.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = payload.downcast_ref::<String>() {
        message.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

#[cfg(test)]
mod tests;
