//! Blocking work of one kind, on few threads.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How soon a lane that is full is looked at again.
const AGAIN: Duration = Duration::from_millis(10);

/// A bound on the threads that one kind of blocking work may hold. A disk that hangs holds a thread for each call; without a
/// bound it would hold all of the process's, and with them work that has nothing to do with it.
#[derive(Debug)]
pub struct Lane {
    threads: Semaphore,
}

/// Why work on a [`Lane`] has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// All of its threads are held by work that does not end.
    #[error("the disk does not answer, and others wait for it already")]
    Full,
    /// The work was begun and does not end.
    #[error("the disk does not answer")]
    Late,
    /// The work panicked, or the process ends.
    #[error("the work was interrupted")]
    Interrupted,
}

impl Lane {
    /// A lane with so many threads at most. It has none while there is nothing to do.
    #[must_use]
    pub const fn new(threads: usize) -> Self {
        Self { threads: Semaphore::const_new(threads) }
    }

    /// Does the work on a blocking thread, and waits for it and for its turn no longer than `patience`. Work that is begun
    /// goes on, and keeps its thread, when nobody waits for it any more.
    ///
    /// # Errors
    /// [`LaneError`].
    pub async fn run<T: Send + 'static>(
        &'static self,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LaneError> {
        let until = Instant::now() + patience;
        // Nobody queues: whoever is asked for no more (the answer to a client that takes nothing) would be given a thread in
        // his turn and keep it from those who can use it.
        let thread = loop {
            if let Ok(thread) = self.threads.try_acquire() {
                break thread;
            }
            if Instant::now() >= until {
                return Err(LaneError::Full);
            }
            tokio::time::sleep(AGAIN).await;
        };
        let work = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(thread);
            done
        });
        match timeout_at(until, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(LaneError::Interrupted),
            Err(_) => Err(LaneError::Late),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_that_hangs_leaves_threads_for_others() {
        static LANE: Lane = Lane::new(3);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(4)
            .enable_time()
            .build()
            .unwrap();
        let (release, hung) = mpsc::channel::<()>();
        let hung = std::sync::Arc::new(std::sync::Mutex::new(hung));
        runtime.block_on(async {
            let short = Duration::from_millis(50);
            let mut said = Vec::new();
            for _ in 0..8 {
                let hung = hung.clone();
                let work = move || hung.lock().unwrap().recv().is_ok();
                said.push(LANE.run(short, work).await.unwrap_err());
            }
            assert_eq!(said[..3], [LaneError::Late; 3]);
            assert_eq!(said[3..], [LaneError::Full; 5], "they wait for the lane, not on a thread");
            // Of the four threads one is left for everybody else.
            let other =
                tokio::time::timeout(Duration::from_secs(30), tokio::task::spawn_blocking(|| 1)).await;
            assert_eq!(other.expect("a thread").unwrap(), 1);
            // When the disk answers again, so does the lane.
            drop(release);
            assert_eq!(LANE.run(Duration::from_secs(30), || 2).await, Ok(2));
        });
    }

    #[tokio::test]
    async fn work_that_panics_gives_its_thread_back() {
        static LANE: Lane = Lane::new(1);
        let long = Duration::from_secs(30);
        let died = LANE.run(long, || panic!("on purpose")).await;
        assert_eq!(died, Err::<(), _>(LaneError::Interrupted));
        assert_eq!(LANE.run(long, || 1).await, Ok(1));
    }
}
