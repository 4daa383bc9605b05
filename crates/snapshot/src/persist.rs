//! Statuses kept on disk, so that a restart of mainstay is not evidence of anything.

use std::{collections::HashMap, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::PodStatus;
use mainstay_checkpoint::{Deferred, Durability, Store};
use mainstay_task::TaskGroup;
use mainstay_types::{ContainerId, ContainerProbes, PodProbes, PodUid, Verdict};

/// The statuses as they were when mainstay last ended.
#[derive(Debug)]
pub struct KeptStatuses {
    pub(crate) files: StatusFiles,
    pub(crate) statuses: HashMap<PodUid, PodStatus>,
    pub(crate) problems: Vec<String>,
}

impl KeptStatuses {
    /// Reads them from `dir` (`<root>/mainstay/status`), where they will be kept from now on. What cannot be used is
    /// reported by [`start`](crate::start), and mainstay works without it.
    #[must_use]
    pub fn open(dir: &Path, tasks: &TaskGroup) -> Self {
        let (files, statuses, problems) = StatusFiles::open(dir, tasks);
        Self { files, statuses, problems }
    }

    /// What they say about probes: that a container had started, or was ready, was told to everybody and is no less true
    /// after a restart.
    #[must_use]
    pub fn probes(&self) -> HashMap<PodUid, PodProbes> {
        self.statuses.iter().map(|(uid, status)| (uid.clone(), shown(status))).collect()
    }
}

fn shown(status: &PodStatus) -> PodProbes {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let probes = all.filter_map(|status| {
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        let verdict = |is: bool| is.then_some(Verdict::Passed);
        let (startup, readiness) = (verdict(status.started == Some(true)), verdict(status.ready));
        (startup.is_some() || readiness.is_some())
            .then(|| (ContainerId::from(id), ContainerProbes { startup, liveness: None, readiness }))
    });
    probes.collect()
}

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
