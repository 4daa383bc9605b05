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
const GATHER: Duration = Duration::from_millis(100);

/// A [`Store`] whose writes happen in a task of the owner's, [`Deferred::run`]. Handing over never waits for the disk.
///
/// Between two writes it holds at most one value per key, so it is bounded by the number of keys.
#[derive(Debug)]
pub struct Deferred<T> {
    store: Arc<Store<T>>,
    pending: Mutex<HashMap<String, Option<T>>>,
    wake: Notify,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Deferred<T> {
    /// Wraps a store.
    #[must_use]
    pub fn new(store: Store<T>) -> Self {
        Self { store: Arc::new(store), pending: Mutex::default(), wake: Notify::new() }
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

    /// Writes one value at once and waits for it; a change that was waiting under the same key is dropped as older.
    ///
    /// # Errors
    /// [`WriteError`]; the old value is then still there.
    pub async fn put_now(&self, key: &str, value: T) -> Result<(), WriteError> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let (store, key) = (Arc::clone(&self.store), key.to_owned());
        tokio::task::spawn_blocking(move || store.put(&key, &value)).await.unwrap_or(Ok(()))
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
            let batch = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            let store = Arc::clone(&self.store);
            match tokio::task::spawn_blocking(move || write(&store, batch)).await.unwrap_or(None) {
                Some(error) if !complained => {
                    complained = true;
                    warn!(%error, "cannot keep state on disk; what it held is rebuilt from the runtime after a restart");
                }
                Some(_) => {}
                None => complained = false,
            }
        }
    }
}

/// Writes a batch; the first failure.
fn write<T: Serialize + DeserializeOwned>(
    store: &Store<T>,
    batch: HashMap<String, Option<T>>,
) -> Option<WriteError> {
    let mut failed = None;
    for (key, value) in batch {
        let result = match value {
            Some(value) => store.put(&key, &value),
            None => store.remove(&key).map(drop),
        };
        failed = failed.or(result.err());
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Durability;

    #[tokio::test]
    async fn the_newest_value_is_written_and_the_rest_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::<u32>::open(dir.path().join("s"), 0o700, "test", 1, Durability::ProcessDeath).unwrap();
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
