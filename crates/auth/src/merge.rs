//! One question for all who ask the same at the same time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{Shared, WeakShared},
};

use crate::{Answer, ReviewError};

/// When so many are noted, those whom nobody waits for any more are forgotten.
const SWEEP: usize = 64;

type Running<T> = WeakShared<Answer<'static, T>>;

/// Questions that are being asked. One goes on as long as anybody waits for it.
pub(crate) struct Merge<K, T: Clone> {
    running: Mutex<HashMap<K, Running<T>>>,
}

impl<K, T: Clone> Default for Merge<K, T> {
    fn default() -> Self {
        Self { running: Mutex::default() }
    }
}

impl<K, T: Clone> std::fmt::Debug for Merge<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash, T: Clone> Merge<K, T> {
    /// The answer to the question that is being asked under this key, or else to a new one.
    pub(crate) async fn run(
        &self,
        key: K,
        ask: impl FnOnce() -> Answer<'static, T>,
    ) -> Result<T, ReviewError> {
        let question = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            // One that has its answer is over: whoever comes now is told by the cache, or asks anew.
            let open = running.get(&key).and_then(Running::upgrade).filter(|open| open.peek().is_none());
            match open {
                Some(open) => open,
                None => {
                    let new: Shared<_> = ask().shared();
                    if running.len() >= SWEEP {
                        running.retain(|_, question| is_open(question));
                    }
                    if let Some(weak) = new.downgrade() {
                        running.insert(key.clone(), weak);
                    }
                    new
                }
            }
        };
        let answer = question.await;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(&key).is_some_and(|question| !is_open(question)) {
            running.remove(&key);
        }
        answer
    }
}

fn is_open<T: Clone>(question: &Running<T>) -> bool {
    question.upgrade().is_some_and(|question| question.peek().is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_ask_once_and_nothing_is_left() {
        let merge: Merge<u8, usize> = Merge::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let ask = |seconds| {
            let asked = Arc::clone(&asked);
            move || -> Answer<'static, usize> {
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(asked.fetch_add(1, Ordering::Relaxed) + 1)
                })
            }
        };
        let answers = tokio::join!(merge.run(1, ask(1)), merge.run(1, ask(1)), merge.run(2, ask(2)));
        assert_eq!((answers.0.unwrap(), answers.1.unwrap(), answers.2.unwrap()), (1, 1, 2));
        assert_eq!(merge.run(1, ask(1)).await.unwrap(), 3, "an old answer is no answer");
        assert!(merge.running.lock().unwrap().is_empty());

        // The first goes away while it waits; the second still gets its answer.
        let first = tokio::time::timeout(Duration::from_secs(1), merge.run(1, ask(10)));
        let (first, second) = tokio::join!(first, merge.run(1, ask(10)));
        assert!(first.is_err());
        assert_eq!(second.unwrap(), 4);

        // Nobody waits any more: the next one asks anew.
        assert!(tokio::time::timeout(Duration::from_secs(1), merge.run(1, ask(10))).await.is_err());
        assert_eq!(merge.run(1, ask(1)).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn an_error_is_for_all_who_waited() {
        let merge: Merge<u8, ()> = Merge::default();
        let fail = || -> Answer<'static, ()> { Box::pin(async { Err(ReviewError("away".into())) }) };
        let (one, two) = tokio::join!(merge.run(1, fail), merge.run(1, fail));
        assert!(one.is_err() && two.is_err());
    }
}
