//! What is kept on disk about each pod, so that a restart changes nothing.

use std::{collections::HashMap, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use mainstay_checkpoint::{Deferred, Durability, Store, WriteError};
use mainstay_lifecycle::PodMemory;
use mainstay_task::TaskGroup;
use mainstay_types::{DesiredPod, PodExt, PodSource, PodUid, VERSION};
use serde::{Deserialize, Serialize};

/// One pod's record. It also holds the pod itself: a pod whose file is gone must still be stopped by its own rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    pub(crate) pod: Pod,
    pub(crate) source: PodSource,
    pub(crate) origin: Arc<str>,
    pub(crate) memory: PodMemory,
    /// Which mainstay wrote it: another one may have read the same manifest otherwise.
    #[serde(default)]
    pub(crate) version: String,
}

impl PodRecord {
    pub(crate) fn new(desired: &DesiredPod, memory: &PodMemory) -> Self {
        Self {
            pod: Pod::clone(&desired.pod),
            source: desired.source,
            origin: Arc::clone(&desired.origin),
            memory: memory.clone(),
            version: VERSION.to_owned(),
        }
    }

    /// Whether its pod is what this mainstay would make of the same manifest.
    pub(crate) fn is_of_this_version(&self) -> bool {
        self.version == VERSION
    }

    /// What the runtime cannot tell once the machine has lost its power: that a job has run, that a pod was evicted.
    fn must_outlive_the_machine(&self) -> bool {
        self.memory.finished.is_some()
    }

    pub(crate) fn desired(&self) -> DesiredPod {
        DesiredPod {
            uid: self.pod.uid_ref().into(),
            full_name: mainstay_types::FullName::new(self.pod.namespace_ref(), self.pod.name_ref()),
            pod: Arc::new(self.pod.clone()),
            source: self.source,
            origin: Arc::clone(&self.origin),
            terminate: None,
            remote: None,
        }
    }
}

/// Records as found at the start.
pub(crate) struct Opened {
    pub(crate) records: Records,
    pub(crate) restored: HashMap<PodUid, PodRecord>,
    /// What is wrong with some of them, as sentences.
    pub(crate) problems: Vec<String>,
}

/// All records.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    deferred: Arc<Deferred<PodRecord>>,
}

impl Records {
    /// Opens `<root>/mainstay/pods` and reads it. Bad files are set aside and told of.
    pub(crate) fn open(root: &Path, tasks: &TaskGroup) -> Result<Opened, WriteError> {
        let store: Store<PodRecord> =
            Store::open(root.join("mainstay/pods"), 0o700, "pod-record", 1, Durability::ProcessDeath)?;
        let contents = store.load_all();
        let problems = contents.set_aside.iter().map(ToString::to_string).collect();
        let good = contents.good.into_iter().map(|(uid, record)| (PodUid::from(uid), record)).collect();
        let deferred = Arc::new(Deferred::new(store).flushing(PodRecord::must_outlive_the_machine));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("pod records", async move { writer.run(shutdown.signalled()).await });
        Ok(Opened { records: Self { deferred }, restored: good, problems })
    }

    /// Keeps a pod's memory, soon.
    pub(crate) fn keep(&self, desired: &DesiredPod, memory: &PodMemory) {
        self.deferred.put(desired.uid.as_str(), PodRecord::new(desired, memory));
    }

    /// Writes a pod's record now: nothing of a pod is made in the runtime before its record is on disk.
    pub(crate) async fn keep_now(&self, record: PodRecord) -> Result<(), WriteError> {
        let uid = record.pod.uid_ref().to_owned();
        self.deferred.put_now(&uid, record).await
    }

    /// Whether a record of the pod is on disk, be it an older one.
    pub(crate) async fn has(&self, uid: &PodUid) -> bool {
        self.deferred.is_stored(uid.as_str()).await
    }

    /// Waits until what was last kept of a pod is on disk.
    pub(crate) async fn settle(&self, uid: &PodUid) -> Result<(), WriteError> {
        self.deferred.settle(uid.as_str()).await
    }

    /// Forgets a pod that is gone.
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.deferred.remove(uid.as_str());
    }
}
