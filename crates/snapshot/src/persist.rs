//! Statuses kept on disk, so that a restart of mainstay is not evidence of anything.

use std::{collections::HashMap, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::PodStatus;
use mainstay_checkpoint::{Deferred, Durability, Store};
use mainstay_task::TaskGroup;
use mainstay_types::PodUid;

/// Hands statuses over to the disk and never waits for it. Without a usable directory it does nothing.
#[derive(Debug)]
pub(crate) struct StatusFiles {
    deferred: Option<Arc<Deferred<PodStatus>>>,
}

impl StatusFiles {
    /// Opens the directory and reads what is there. What cannot be used is reported, and mainstay works without it.
    pub(crate) fn open(dir: &Path, tasks: &TaskGroup) -> (Self, HashMap<PodUid, PodStatus>, Vec<String>) {
        // Not flushed: a status lost to a power failure is rebuilt from the runtime.
        let store: Store<PodStatus> = match Store::open(dir, 0o700, "pod-status", 1, Durability::ProcessDeath)
        {
            Ok(store) => store,
            Err(error) => return (Self { deferred: None }, HashMap::new(), vec![error.to_string()]),
        };
        let contents = store.load_all();
        let problems = contents.set_aside.iter().map(ToString::to_string).collect();
        let good = contents.good.into_iter().map(|(uid, status)| (PodUid::from(uid), status)).collect();
        let deferred = Arc::new(Deferred::new(store));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("status files", async move { writer.run(shutdown.signalled()).await });
        (Self { deferred: Some(deferred) }, good, problems)
    }

    pub(crate) fn store(&self, uid: &PodUid, status: &PodStatus) {
        if let Some(deferred) = &self.deferred {
            deferred.put(uid.as_str(), status.clone());
        }
    }

    pub(crate) fn forget(&self, uid: &PodUid) {
        if let Some(deferred) = &self.deferred {
            deferred.remove(uid.as_str());
        }
    }
}
