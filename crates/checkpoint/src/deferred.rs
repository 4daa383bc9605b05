//! Writing later: state that changes often is handed over and written in the background, newest value only.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Notify;
use tracing::warn;

use crate::{Store, WriteError};

/// Changes wait this long for company before they are written.
const GATHER: Duration = Duration::from_millis(25);
/// What could not be written is tried again after this long, even if nothing else changes.
const RETRY: Duration = Duration::from_secs(5);

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
    /// Batches of which something could not be written.
    failures: AtomicU64,
    /// Which values must survive a power failure.
    flushes: fn(&T) -> bool,
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
            failures: AtomicU64::new(0),
            flushes: |_| false,
        }
    }

    /// The same, with those values flushed to the disk of which `which` says so.
    #[must_use]
    pub fn flushing(self, which: fn(&T) -> bool) -> Self {
        Self { flushes: which, ..self }
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
    /// [`WriteError`]; the old value is then still there, and what was handed over meanwhile stays pending.
    pub async fn put_now(&self, key: &str, value: T) -> Result<(), WriteError> {
        let _writing = self.writing.lock().await;
        let newer = self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let (was_pending, store) = (newer.is_some(), Arc::clone(&self.store));
        let value = newer.flatten().unwrap_or(value);
        let (owned, flushes) = (key.to_owned(), self.flushes);
        let written = tokio::task::spawn_blocking(move || {
            let written = put(&store, &owned, &value, flushes);
            written.map_err(|error| (error, HashMap::from([(owned, Some(value))])))
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err((error, value))) => {
                if was_pending {
                    self.put_back(value);
                    self.wake.notify_one();
                }
                Err(error)
            }
            Err(_) => Err(WriteError::Io {
                action: "write",
                path: key.into(),
                remedy: "this is a defect of mainstay; please report it with its log",
                source: std::io::Error::other("the task that was writing died"),
            }),
        }
    }

    /// Whether there is a value under `key` on the disk, be it an older one.
    pub async fn is_stored(&self, key: &str) -> bool {
        let (store, owned) = (Arc::clone(&self.store), key.to_owned());
        tokio::task::spawn_blocking(move || store.has(&owned)).await.unwrap_or(false)
    }

    /// Writes what was handed over under `key` without gathering more, and waits for it; what is being written already is
    /// waited for too.
    ///
    /// # Errors
    /// [`WriteError`]; the value stays pending, and is tried again.
    pub async fn settle(&self, key: &str) -> Result<(), WriteError> {
        let _writing = self.writing.lock().await;
        let taken = self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let Some(value) = taken else { return Ok(()) };
        let batch = HashMap::from([(key.to_owned(), value)]);
        let (store, flushes) = (Arc::clone(&self.store), self.flushes);
        let failed = tokio::task::spawn_blocking(move || write(&store, batch, flushes)).await.unwrap_or(None);
        let Some((error, failed)) = failed else { return Ok(()) };
        self.put_back(failed);
        self.wake.notify_one();
        Err(error)
    }

    /// Makes pending again what could not be written, unless something newer is.
    fn put_back(&self, failed: HashMap<String, Option<T>>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in failed {
            pending.entry(key).or_insert(value);
        }
    }

    /// The writing itself: run it as a task. When `end` resolves, what is left is written and it returns.
    pub async fn run(&self, end: impl Future<Output = ()>) {
        tokio::pin!(end);
        let mut complained = false;
        let mut ending = false;
        while !ending {
            tokio::select! {
                () = self.wake.notified() => {}
                // Some of the last batch is still pending.
                () = tokio::time::sleep(RETRY), if complained => {}
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
            let (store, flushes) = (Arc::clone(&self.store), self.flushes);
            let Some((error, failed)) =
                tokio::task::spawn_blocking(move || write(&store, batch, flushes)).await.unwrap_or(None)
            else {
                complained = false;
                continue;
            };
            self.failures.fetch_add(1, Ordering::Relaxed);
            if !complained {
                complained = true;
                warn!(%error, "cannot keep state on disk; trying again");
            }
            self.put_back(failed);
        }
    }
}

fn put<T: Serialize + DeserializeOwned>(
    store: &Store<T>,
    key: &str,
    value: &T,
    flushes: fn(&T) -> bool,
) -> Result<(), WriteError> {
    if flushes(value) { store.put_flushed(key, value) } else { store.put(key, value) }
}

/// Writes a batch. The first error, and everything that could not be written.
fn write<T: Serialize + DeserializeOwned>(
    store: &Store<T>,
    batch: HashMap<String, Option<T>>,
    flushes: fn(&T) -> bool,
) -> Option<(WriteError, HashMap<String, Option<T>>)> {
    let mut failure: Option<(WriteError, HashMap<String, Option<T>>)> = None;
    for (key, value) in batch {
        let result = match &value {
            Some(value) => put(store, &key, value, flushes),
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

    #[tokio::test]
    async fn what_is_pending_can_be_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let open = || Store::<u32>::open(&path, 0o700, "test", 1, Durability::ProcessDeath).unwrap();
        let deferred = Deferred::new(open());
        deferred.put("a", 1);
        deferred.put("b", 2);
        deferred.settle("a").await.unwrap();
        deferred.settle("none").await.unwrap();
        assert_eq!(open().load_all().good.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 1)]);
        // A disk that refuses loses nothing.
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::write(&path, b"").unwrap();
        deferred.settle("b").await.unwrap_err();
        // Nor does one who wants an older value written at once.
        deferred.put_now("b", 1).await.unwrap_err();
        assert!(!deferred.is_stored("b").await);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        deferred.settle("b").await.unwrap();
        assert!(deferred.is_stored("b").await);
        assert_eq!(open().load_all().good.into_iter().collect::<Vec<_>>(), [("b".to_owned(), 2)]);
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_tried_again_although_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let open = || Store::<u32>::open(&path, 0o700, "test", 1, Durability::ProcessDeath).unwrap();
        let deferred = Deferred::new(open());
        // A disk that refuses: the directory is a file for a while.
        let blocked = || {
            std::fs::remove_dir_all(&path).unwrap();
            std::fs::write(&path, b"").unwrap();
        };
        blocked();
        deferred.put("a", 1);
        let mended = async {
            // The first try has failed when the value is pending again.
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let taken = deferred.writing.lock().await;
                let is_pending = deferred.pending.lock().unwrap().contains_key("a");
                drop(taken);
                if is_pending && deferred.failures.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            while open().load_all().good.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = deferred.run(std::future::pending()) => panic!("it never ends"),
            () = mended => {}
            () = tokio::time::sleep(Duration::from_secs(40)) => panic!("nobody tried again"),
        }
        assert_eq!(open().load_all().good["a"], 1);
    }
}
