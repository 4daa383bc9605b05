//! The last good version of every document, on disk.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use mainstay_checkpoint::{Durability, Store, WriteError};
use mainstay_podspec::{Identity, StaticPodPlace, decode_raw, finish_static_pod, manifest_digest};
use mainstay_types::{PodSource, PodUid};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    SourcesConfig,
    book::{Held, HeldKey, HeldObject, desired_pod},
    entry::{CandidateObject, EntryState, read_entry},
};

const RETRY: Duration = Duration::from_secs(10);

/// One accepted document.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestRecord {
    pub(crate) source: PodSource,
    /// The file's path or the URL.
    pub(crate) origin: String,
    pub(crate) identity: Identity,
    /// Digest of the document as written.
    pub(crate) digest: String,
    /// The pod's UID; empty for other objects.
    pub(crate) uid: PodUid,
    /// When it was first accepted.
    pub(crate) seen: Timestamp,
    /// The document as written.
    pub(crate) document: Value,
}

/// One change to the records.
#[derive(Debug)]
pub(crate) enum RecordChange {
    Put(Box<ManifestRecord>),
    Remove(HeldKey),
}

/// The records on disk. Everything blocks.
#[derive(Debug)]
pub(crate) struct Records {
    store: Store<ManifestRecord>,
}

impl Records {
    pub(crate) fn open(root_dir: &Path) -> Result<Self, WriteError> {
        // They are what survives a broken file, and nothing else holds what is in them.
        let directory = root_dir.join("mainstay").join("manifests");
        Ok(Self { store: Store::open(directory, 0o700, "manifest", 1, Durability::PowerFailure)? })
    }

    /// Reads all records and makes objects of them again. One that no longer passes is left out: its file decides.
    /// Files that had to be set aside are returned as sentences.
    pub(crate) fn load(&self, config: &SourcesConfig) -> (BTreeMap<HeldKey, Held>, Vec<String>) {
        let mut held = BTreeMap::new();
        let contents = self.store.load_all();
        let set_aside = contents.set_aside.iter().map(ToString::to_string).collect();
        for (file, record) in contents.good {
            let key = HeldKey::new(record.source, &record.origin, &record.identity);
            if file_name(&key) != file || manifest_digest(&record.document) != record.digest {
                tracing::warn!(
                    record = file,
                    origin = record.origin,
                    "a kept manifest is not what its name says; ignoring it"
                );
                continue;
            }
            match revive(record, config) {
                Ok(object) => {
                    held.insert(key, object);
                }
                Err(problems) => tracing::warn!(
                    object = %key.identity,
                    origin = %key.origin,
                    problems = problems.join("; "),
                    "a kept manifest can no longer be used; only its file counts now"
                ),
            }
        }
        (held, set_aside)
    }

    fn apply(&self, change: &RecordChange) -> Result<(), WriteError> {
        match change {
            RecordChange::Put(record) => self.store.put(&file_name(&change.key()), record),
            RecordChange::Remove(key) => self.store.remove(&file_name(key)).map(drop),
        }
    }
}

impl RecordChange {
    fn key(&self) -> HeldKey {
        match self {
            Self::Put(record) => HeldKey::new(record.source, &record.origin, &record.identity),
            Self::Remove(key) => key.clone(),
        }
    }
}

fn revive(record: ManifestRecord, config: &SourcesConfig) -> Result<Held, Vec<String>> {
    let ManifestRecord { source, origin, digest, uid, seen, document, .. } = record;
    let place = StaticPodPlace {
        node_name: &config.node_name,
        source,
        origin: &origin,
        api_server: config.api_server.is_some(),
        gates: config.gates,
    };
    let entry = read_entry(decode_raw(document), &place);
    let candidate = match entry.state {
        EntryState::Candidate(candidate) => *candidate,
        EntryState::Rejected(problems) => return Err(problems),
        EntryState::Taken => return Err(Vec::new()),
    };
    let object = match candidate.object {
        CandidateObject::Pod { mut pod, .. } => {
            finish_static_pod(&mut pod, &uid, source, seen);
            HeldObject::Pod(Arc::new(desired_pod(pod, &uid, source, &origin, None)))
        }
        CandidateObject::ConfigMap(object) => HeldObject::ConfigMap(Arc::new(object)),
        CandidateObject::Secret(object) => HeldObject::Secret(Arc::new(object)),
        CandidateObject::RuntimeClass(object) => HeldObject::RuntimeClass(object.handler.into()),
    };
    Ok(Held { digest, uid, seen, object })
}

/// A name that is the same for the same document of the same place, and fit for a file.
fn file_name(key: &HeldKey) -> String {
    let Identity { kind, namespace, name } = &key.identity;
    let id = serde_json::json!([key.source, key.origin, kind, namespace, name]);
    let mut digest = manifest_digest(&id);
    digest.truncate(40);
    digest
}

/// Writes changes in the order they come, until the sender is gone. What cannot be written (a full disk) is tried
/// again; the newest change of a record wins.
pub(crate) async fn keep_records(records: Arc<Records>, mut changes: mpsc::Receiver<Vec<RecordChange>>) {
    let mut waiting = BTreeMap::<HeldKey, RecordChange>::new();
    loop {
        let batch = if waiting.is_empty() {
            changes.recv().await
        } else {
            match tokio::time::timeout(RETRY, changes.recv()).await {
                Ok(batch) => batch,
                Err(_) => Some(Vec::new()),
            }
        };
        let ended = batch.is_none();
        for change in batch.into_iter().flatten() {
            waiting.insert(change.key(), change);
        }
        let todo = std::mem::take(&mut waiting);
        let store = Arc::clone(&records);
        let left = tokio::task::spawn_blocking(move || apply_all(&store, todo)).await;
        match left {
            Ok(left) => waiting = left,
            Err(error) => tracing::error!(%error, "keeping manifests failed"),
        }
        if ended {
            return;
        }
    }
}

fn apply_all(records: &Records, todo: BTreeMap<HeldKey, RecordChange>) -> BTreeMap<HeldKey, RecordChange> {
    let mut left = BTreeMap::new();
    for (key, change) in todo {
        if let Err(error) = records.apply(&change) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                object = %key.identity,
                origin = %key.origin,
                %error,
                cause,
                "cannot keep the last good manifest; a broken file would lose this object at the next restart"
            );
            if error.is_transient() {
                left.insert(key, change);
            }
        }
    }
    left
}
