//! Builds the snapshot from what is desired, what is observed and what reconcile says.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PodStatus, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use mainstay_lifecycle::{StatusInput, pod_status};
use mainstay_podspec::runtime::{self, Overhead, ResourceList};
use mainstay_task::TaskGroup;
use mainstay_types::{
    DesiredState, NodeSnapshot, ObservedPod, ObservedState, Outcomes, PodOutcome, PodUid, PodView,
    RuntimeHealth, to_seconds,
};
use tokio::sync::watch;
use tracing::debug;

use crate::{gojson::go_json, persist::StatusFiles};

/// What the builder needs.
#[derive(Debug)]
pub struct SnapshotConfig {
    /// The node's name.
    pub node_name: Arc<str>,
    /// The node's addresses, primary first.
    pub host_ips: Vec<String>,
    /// Where statuses are kept across restarts (`<root>/mainstay/status`).
    pub status_dir: PathBuf,
}

/// The readers' end. `None` until the first complete snapshot.
pub type SnapshotReader = watch::Receiver<Option<Arc<NodeSnapshot>>>;

/// The one writer's end.
#[derive(Debug)]
pub struct SnapshotWriter {
    sender: watch::Sender<Option<Arc<NodeSnapshot>>>,
}

/// The two ends. Servers may read before anything is written: they find `None` then.
#[must_use]
pub fn channel() -> (SnapshotWriter, SnapshotReader) {
    let (sender, reader) = watch::channel(None);
    (SnapshotWriter { sender }, reader)
}

/// The three things a snapshot is made from.
#[derive(Debug)]
pub struct Inputs {
    /// What should be.
    pub desired: watch::Receiver<Arc<DesiredState>>,
    /// What is.
    pub observed: watch::Receiver<Arc<ObservedState>>,
    /// What is being done about it.
    pub outcomes: watch::Receiver<Outcomes>,
}

/// Starts building snapshots. Problems with stored statuses are returned as sentences for the node's events.
pub fn start(
    config: SnapshotConfig,
    inputs: Inputs,
    writer: SnapshotWriter,
    tasks: &TaskGroup,
) -> Vec<String> {
    let (files, restored, problems) = StatusFiles::open(&config.status_dir, tasks);
    let builder =
        Builder { config, sender: writer.sender, views: HashMap::new(), restored, files, generation: 0 };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("snapshot", async move {
        shutdown.run_until_signalled(builder.run(inputs)).await;
    });
    problems
}

/// A view, and what it was made from: nothing is computed again while its inputs are the same.
struct Entry {
    outcome: Arc<PodOutcome>,
    observed: Option<Arc<ObservedPod>>,
    view: Arc<PodView>,
}

struct Builder {
    config: SnapshotConfig,
    sender: watch::Sender<Option<Arc<NodeSnapshot>>>,
    views: HashMap<PodUid, Entry>,
    restored: HashMap<PodUid, PodStatus>,
    files: StatusFiles,
    generation: u64,
}

impl Builder {
    async fn run(mut self, mut inputs: Inputs) {
        loop {
            let desired = inputs.desired.borrow_and_update().clone();
            let observed = inputs.observed.borrow_and_update().clone();
            let outcomes = inputs.outcomes.borrow_and_update().clone();
            // Nothing partial: every source, the first complete list, and reconcile's word on each pod.
            if desired.synced && observed.listed_at.is_some() && outcomes.synced {
                self.build(&desired, &observed, &outcomes);
            }
            // Cancel safe: `changed` only marks a value as seen. An input that ends takes the agent down with it.
            let changed = tokio::select! {
                changed = inputs.desired.changed() => changed,
                changed = inputs.observed.changed() => changed,
                changed = inputs.outcomes.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn build(&mut self, desired: &Arc<DesiredState>, observed: &Arc<ObservedState>, outcomes: &Outcomes) {
        let now = Timestamp::now();
        let mut changed = false;
        for (uid, outcome) in outcomes.pods.iter() {
            let seen = observed.pods.get(uid).filter(|pod| !pod.is_nothing());
            if self.views.get(uid).is_some_and(|entry| entry.is_current(outcome, seen)) {
                continue;
            }
            changed |= self.rebuild(uid, outcome, seen, &observed.runtime, now);
        }
        let files = &self.files;
        self.views.retain(|uid, _| {
            let wanted = outcomes.pods.contains_key(uid);
            if !wanted {
                changed = true;
                files.forget(uid);
            }
            wanted
        });
        // What was restored is in the views now, or belongs to a pod that is gone.
        for uid in self.restored.drain().map(|(uid, _)| uid).filter(|uid| !outcomes.pods.contains_key(uid)) {
            files.forget(&uid);
        }
        let last = self.sender.borrow().clone();
        let same_rest = last.is_some_and(|last| {
            Arc::ptr_eq(&last.desired, desired) && last.observed.generation == observed.generation
        });
        if !changed && same_rest {
            return;
        }
        self.generation += 1;
        let pods = self.views.values().map(|entry| Arc::clone(&entry.view)).collect();
        let node = Arc::clone(&self.config.node_name);
        let snapshot =
            NodeSnapshot::new(self.generation, node, pods, Arc::clone(desired), Arc::clone(observed));
        debug!(generation = self.generation, pods = snapshot.pods.len(), "snapshot");
        self.sender.send_replace(Some(Arc::new(snapshot)));
    }

    /// Computes one view; whether what clients see of it differs from before.
    fn rebuild(
        &mut self,
        uid: &PodUid,
        outcome: &Arc<PodOutcome>,
        observed: Option<&Arc<ObservedPod>>,
        runtime: &RuntimeHealth,
        now: Timestamp,
    ) -> bool {
        let pod = &outcome.desired.pod;
        let known = self.views.get(uid);
        // A file that was taken away and put back: the same UID, but a new pod, of which nothing is known yet.
        let reborn =
            known.is_some_and(|entry| entry.outcome.deletion.is_some() && outcome.deletion.is_none());
        let previous = known
            .and_then(|entry| entry.view.pod.status.as_ref())
            .or_else(|| self.restored.get(uid))
            .filter(|_| !reborn);
        let qos_class = runtime::qos_class(pod);
        let resources = pod_resources(pod);
        let status = pod_status(&StatusInput {
            pod,
            observed: observed.map(AsRef::as_ref),
            outcome,
            previous,
            runtime_name: &runtime.name,
            host_ips: &self.config.host_ips,
            qos_class: qos_class.as_str(),
            resources: &resources,
            now,
        });
        let deletion = outcome.deletion;
        let same = known.is_some_and(|entry| {
            entry.view.pod.status.as_ref() == Some(&status)
                && Arc::ptr_eq(&entry.outcome.desired, &outcome.desired)
                && entry.outcome.deletion == deletion
        });
        let view = match known.filter(|_| same) {
            Some(entry) => Arc::clone(&entry.view),
            None => {
                self.files.store(uid, &status);
                let mut pod = k8s_openapi::api::core::v1::Pod::clone(pod);
                pod.status = Some(status);
                if let Some(deletion) = deletion {
                    let grace = jiff::SignedDuration::from_secs(deletion.grace_seconds);
                    let due = deletion.since.checked_add(grace).unwrap_or(deletion.since);
                    pod.metadata.deletion_timestamp = Some(Time(to_seconds(due)));
                    pod.metadata.deletion_grace_period_seconds = Some(deletion.grace_seconds);
                }
                Arc::new(PodView {
                    uid: uid.clone(),
                    full_name: outcome.desired.full_name.clone(),
                    json: pod_item_json(&pod),
                    pod: Arc::new(pod),
                    observed: observed.cloned(),
                    origin: Arc::clone(&outcome.desired.origin),
                })
            }
        };
        // Readers reach the log path through the view, so it must carry the newest reading even if the status is equal.
        let view = if view.observed.as_ref().map(Arc::as_ptr) == observed.map(Arc::as_ptr) {
            view
        } else {
            Arc::new(PodView {
                uid: view.uid.clone(),
                full_name: view.full_name.clone(),
                pod: Arc::clone(&view.pod),
                json: view.json.clone(),
                observed: observed.cloned(),
                origin: Arc::clone(&view.origin),
            })
        };
        let entry = Entry { outcome: Arc::clone(outcome), observed: observed.cloned(), view };
        self.views.insert(uid.clone(), entry);
        !same
    }
}

impl Entry {
    fn is_current(&self, outcome: &Arc<PodOutcome>, observed: Option<&Arc<ObservedPod>>) -> bool {
        let same_reading = match (&self.observed, observed) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same_reading && Arc::ptr_eq(&self.outcome, outcome)
    }
}

/// A list item: the pod without `apiVersion` and `kind`, which a list's items do not carry.
fn pod_item_json(pod: &k8s_openapi::api::core::v1::Pod) -> bytes::Bytes {
    #[derive(serde::Serialize)]
    struct Item<'a> {
        metadata: &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        spec: &'a Option<k8s_openapi::api::core::v1::PodSpec>,
        status: &'a Option<PodStatus>,
    }
    go_json(&Item { metadata: &pod.metadata, spec: &pod.spec, status: &pod.status }).into()
}

fn pod_resources(pod: &k8s_openapi::api::core::v1::Pod) -> ResourceRequirements {
    let list = |list: ResourceList| {
        let map: std::collections::BTreeMap<String, Quantity> =
            list.into_iter().map(|(name, amount)| (name, Quantity(amount.to_string()))).collect();
        (!map.is_empty()).then_some(map)
    };
    ResourceRequirements {
        requests: list(runtime::pod_requests(pod, Overhead::Excluded)),
        limits: list(runtime::pod_limits(pod, Overhead::Excluded)),
        claims: None,
    }
}
