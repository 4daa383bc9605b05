//! Writing later: state that changes often is handed over and written in the background, newest value only.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Notify;
use tracing::warn;

use crate::{Store, WriteError};

/// Changes wait this long for company before they are written.
const GATHER: Duration = Duration::from_millis(25);

/// A [`Store`] whose writes happen in a task of the owner's, [`Deferred::run`]. Handing over never waits for the disk.
///
/// Between two writes it holds at most one value per key, so it is bounded by the number of keys.
#[derive(Debug)]
pub struct Deferred<T> {
    store: Arc<Store<T>>,
    pending: Mutex<HashMap<String, Option<T>>>,
    wake: Notify,
    /// Held while something is written, so that an older value never lands on a newer one.
    writing: tokio::sync::Mutex<()>,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Deferred<T> {
    /// Wraps a store.
    #[must_use]
    pub fn new(store: Store<T>) -> Self {
        Self {
            store: Arc::new(store),
            pending: Mutex::default(),
            wake: Notify::new(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Writes `value` under `key`, soon.
    pub fn put(&self, key: &str, value: T) {
        self.pend(key, Some(value));
    }

    /// Removes what is under `key`, soon.
    pub fn remove(&self, key: &str) {
        self.pend(key, None);
    }

    fn pend(&self, key: &str, value: Option<T>) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value);
        self.wake.notify_one();
    }

    /// Writes one value at once and waits for it. A value that was handed over under the same key meanwhile is newer and
    /// is written instead.
    ///
    /// # Errors
    /// [`WriteError`]; the old value is then still there.
    pub async fn put_now(&self, key: &str, value: T) -> Result<(), WriteError> {
        let _writing = self.writing.lock().await;
        let newer = self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(key).flatten();
        let (value, store) = (newer.unwrap_or(value), Arc::clone(&self.store));
        let owned = key.to_owned();
        tokio::task::spawn_blocking(move || store.put(&owned, &value)).await.unwrap_or_else(|_| {
            Err(WriteError::Io {
                action: "write",
                path: key.into(),
                remedy: "this is a defect of mainstay; please report it with its log",
                source: std::io::Error::other("the task that was writing died"),
            })
        })
    }

    /// The writing itself: run it as a task. When `end` resolves, what is left is written and it returns.
    pub async fn run(&self, end: impl Future<Output = ()>) {
        tokio::pin!(end);
        let mut complained = false;
        let mut ending = false;
        while !ending {
            tokio::select! {
                () = self.wake.notified() => {}
                () = &mut end => ending = true,
            }
            if !ending {
                tokio::select! {
                    () = tokio::time::sleep(GATHER) => {}
                    () = &mut end => ending = true,
                }
            }
            let _writing = self.writing.lock().await;
            let batch = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            let store = Arc::clone(&self.store);
            let Some((error, failed)) =
                tokio::task::spawn_blocking(move || write(&store, batch)).await.unwrap_or(None)
            else {
                complained = false;
                continue;
            };
            if !complained {
                complained = true;
                warn!(%error, "cannot keep state on disk; trying again with the next change");
            }
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, value) in failed {
                pending.entry(key).or_insert(value);
            }
        }
    }
}

/// Writes a batch. The first error, and everything that could not be written.
fn write<T: Serialize + DeserializeOwned>(
    store: &Store<T>,
    batch: HashMap<String, Option<T>>,
) -> Option<(WriteError, HashMap<String, Option<T>>)> {
    let mut failure: Option<(WriteError, HashMap<String, Option<T>>)> = None;
    for (key, value) in batch {
        let result = match &value {
            Some(value) => store.put(&key, value),
            None => store.remove(&key).map(drop),
        };
        if let Err(error) = result {
            failure.get_or_insert_with(|| (error, HashMap::new())).1.insert(key, value);
        }
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Durability;

    #[tokio::test]
    async fn the_newest_value_is_written_and_the_rest_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || Store::<u32>::open(dir.path().join("s"), 0o700, "test", 1, Durability::ProcessDeath).unwrap();
        let deferred = Arc::new(Deferred::new(open()));
        deferred.put("a", 1);
        deferred.put("a", 2);
        deferred.put("b", 3);
        deferred.remove("b");
        deferred.put_now("c", 4).await.unwrap();
        deferred.run(std::future::ready(())).await;
        let good = open().load_all().good;
        assert_eq!(good.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 2), ("c".to_owned(), 4)]);
    }
}
