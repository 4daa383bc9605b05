//! The event store's file: what happened is still known after a restart.

use std::{path::Path, sync::Arc, time::Duration};

use mainstay_checkpoint::{Durability, File, Loaded, WriteError, ensure_directory};
use mainstay_types::EventRecord;
use serde::{Deserialize, Serialize, Serializer};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tracing::warn;

use super::Published;

/// Changes wait this long for company before they are written.
const WRITE_AFTER: Duration = Duration::from_secs(2);
/// More than can happen between a write and a kill: numbers that a client may have seen are not given again.
const SKIP_AFTER_KILL: u64 = 100_000;

/// What is in the file.
#[derive(Deserialize)]
struct Kept {
    newest: u64,
    /// Written at the end of a life, so that nothing came after it.
    last_word: bool,
    records: Vec<EventRecord>,
}

#[derive(Serialize)]
struct Keeping {
    newest: u64,
    last_word: bool,
    #[serde(serialize_with = "shared")]
    records: Arc<[Arc<EventRecord>]>,
}

fn shared<S: Serializer>(records: &Arc<[Arc<EventRecord>]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(records.iter().map(AsRef::as_ref))
}

/// What an earlier life left.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// By ascending sequence, each once.
    pub(super) records: Vec<EventRecord>,
    /// No number up to this one may be given again.
    pub(super) newest: u64,
    /// The file could not be used, in a sentence.
    pub(super) problem: Option<String>,
}

/// Writes the list some time after it changed, one write at a time and without holding up the store: on a disk that
/// hangs, events are still taken and shown.
#[derive(Debug)]
pub(super) struct Keeper {
    file: Option<File>,
    due: Option<Instant>,
    writing: Option<JoinHandle<Result<(), WriteError>>>,
    complained: bool,
}

impl Keeper {
    /// Reads the file at `path`, whose directory is made. Without a usable directory events are kept in memory only.
    pub(super) fn open(path: Option<&Path>) -> (Self, Restored) {
        let file =
            path.and_then(|path| match path.parent().map_or(Ok(()), |it| ensure_directory(it, 0o700)) {
                // Not flushed: what happened before a power failure is in the log.
                Ok(()) => Some(File::new(path, "events", 1, Durability::ProcessDeath)),
                Err(error) => {
                    warn!(%error, "events will not survive a restart");
                    None
                }
            });
        let restored = file.as_ref().map(|file| restore(file.load())).unwrap_or_default();
        (Self { file, due: None, writing: None, complained: false }, restored)
    }

    /// Notes that there is something to write.
    pub(super) fn changed(&mut self) {
        if self.file.is_some() {
            self.due.get_or_insert_with(|| Instant::now() + WRITE_AFTER);
        }
    }

    /// Resolves when [`Self::proceed`] has something to do. Cancel safe.
    pub(super) async fn ready(&mut self) {
        match (&mut self.writing, self.due) {
            (Some(writing), _) => {
                let written = writing.await;
                self.writing = None;
                self.told(written.unwrap_or(Ok(())));
            }
            (None, Some(due)) => sleep_until(due).await,
            (None, None) => std::future::pending().await,
        }
    }

    /// Begins to write if it is time for it.
    pub(super) fn proceed(&mut self, published: &Published) {
        if self.writing.is_none() && self.due.is_some_and(|due| due <= Instant::now()) {
            self.write(published, false);
        }
    }

    /// Writes all for the last time, and waits for it.
    pub(super) async fn finish(mut self, published: &Published) {
        if let Some(writing) = self.writing.take() {
            // What came of it does not matter, as everything is written again.
            drop(writing.await);
        }
        self.write(published, true);
        if self.writing.is_some() {
            self.ready().await;
        }
    }

    fn write(&mut self, published: &Published, last_word: bool) {
        let Some(file) = self.file.clone() else { return };
        self.due = None;
        let keeping =
            Keeping { newest: published.newest, last_word, records: Arc::clone(&published.records) };
        self.writing = Some(tokio::task::spawn_blocking(move || file.write(&keeping)));
    }

    fn told(&mut self, written: Result<(), WriteError>) {
        match written {
            Ok(()) => self.complained = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    warn!(%error, "cannot keep events on disk; trying again after the next one");
                }
            }
        }
    }
}

fn restore(loaded: Loaded<Kept>) -> Restored {
    match loaded {
        Loaded::Absent => Restored::default(),
        Loaded::SetAside(bad) => Restored { problem: Some(bad.to_string()), ..Restored::default() },
        Loaded::Good(Kept { newest, last_word, mut records }) => {
            // Numbers must go up, whatever the file says.
            records.sort_by_key(|record| record.sequence);
            records.dedup_by_key(|record| record.sequence);
            let newest = records.last().map_or(0, |record| record.sequence).max(newest);
            let skip = if last_word { 0 } else { SKIP_AFTER_KILL };
            Restored { records, newest: newest.saturating_add(skip), problem: None }
        }
    }
}
