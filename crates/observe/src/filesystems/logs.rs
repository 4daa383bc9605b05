//! The walk through pods' logs: one at a time, and what the last found stays until another comes to its end.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mainstay_task::{Lane, LaneError};
use tracing::{info, warn};

use super::places::Logs;

/// What is known of logs; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LogWalk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    found: Option<Arc<Logs>>,
    /// A walk has not come to its end.
    busy: bool,
    /// It was told of that it does not.
    told: bool,
}

/// A walk on its way. However it ends, the next may begin.
struct Way(LogWalk);

impl Drop for Way {
    fn drop(&mut self) {
        self.0.state().busy = false;
    }
}

impl LogWalk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Walks, and waits for it no longer than `patience`: then what an earlier walk found is returned, with its time. While one
    /// that was late is still on its way nobody waits at all.
    pub(super) async fn walk(
        &self,
        lane: &'static Lane,
        patience: Duration,
        work: impl FnOnce() -> Logs + Send + 'static,
    ) -> Option<Arc<Logs>> {
        {
            let mut state = self.state();
            if state.busy {
                return state.found.clone();
            }
            state.busy = true;
        }
        let way = Way(self.clone());
        let walk = lane.run(patience, move || {
            let found = work();
            way.0.done(found);
        });
        if walk.await == Err(LaneError::Late) {
            let mut state = self.state();
            // It may have ended this very moment.
            if state.busy && !state.told {
                state.told = true;
                warn!(
                    "the file system with pods' logs does not answer; their sizes are told as they were until it does"
                );
            }
        }
        self.state().found.clone()
    }

    fn done(&self, found: Logs) {
        let mut state = self.state();
        state.found = Some(Arc::new(found));
        if std::mem::take(&mut state.told) {
            info!("the file system with pods' logs answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Logs {
        Logs { at: Timestamp::from_second(second).unwrap(), ..Logs::default() }
    }

    #[tokio::test]
    async fn what_was_found_stays_while_a_walk_hangs_and_nobody_waits_for_it_twice() {
        static LANE: Lane = Lane::new(1);
        let logs = LogWalk::default();
        let long = Duration::from_secs(60);
        let time = |found: Option<Arc<Logs>>| found.map(|found| found.at.as_second());
        assert_eq!(time(logs.walk(&LANE, long, || at(1)).await), Some(1));
        let (answer, hung) = mpsc::channel::<()>();
        let hangs = move || {
            hung.recv().ok();
            at(2)
        };
        let found = logs.walk(&LANE, Duration::from_millis(20), hangs).await;
        assert_eq!(time(found), Some(1), "as it was, with the time that it was");
        let begun = tokio::time::Instant::now();
        assert_eq!(time(logs.walk(&LANE, long, || at(3)).await), Some(1));
        assert!(begun.elapsed() < long / 2, "the lane is full, and is not waited for");
        drop(answer);
        let until = tokio::time::Instant::now() + long;
        while logs.state().busy {
            assert!(tokio::time::Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(time(logs.state().found.clone()), Some(2), "its word came late, and counts");
        assert_eq!(time(logs.walk(&LANE, long, || at(4)).await), Some(4));
    }

    #[tokio::test]
    async fn one_that_panics_holds_up_nothing() {
        static LANE: Lane = Lane::new(1);
        let logs = LogWalk::default();
        let long = Duration::from_secs(60);
        assert!(logs.walk(&LANE, long, || panic!("on purpose")).await.is_none());
        assert!(logs.walk(&LANE, long, || at(1)).await.is_some());
    }
}
