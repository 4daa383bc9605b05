//! Pods: what the API server does not know yet of them is found by comparison and told, a few at a time.

mod mirror;
mod plan;
mod turns;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::{
    api::core::v1::{Node, Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use mainstay_apiserver::{ApiError, Client, Patch, Scope};
use mainstay_lifecycle::{
    is_step_of_end, is_step_of_start, is_unseen_step_of_start, status_digest, status_patch,
};
use mainstay_snapshot::SnapshotReader;
use mainstay_types::{ApiPods, NodeCounters, NodeSnapshot, PodStage, PodUid, PodView};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use self::{
    plan::{Local, Step, Target, Told},
    turns::Turns,
};
use crate::{RegisteredNode, UplinkConfig, registered};

/// What was made or deleted is seen in the watch at once; if not, it is looked at again.
const SEEN_BY_THEN: Duration = Duration::from_secs(20);
const MADE_BY_THEN: Duration = Duration::from_secs(1);
/// How long a mere step of a pod's start or end waits for the next one, to be told together with it.
const STEPS_WAIT: Duration = Duration::from_secs(2);
/// The same of a step that nobody sees.
const UNSEEN_WAIT: Duration = Duration::from_secs(10);

/// Tells the API server how the pods are, for ever.
pub(crate) async fn run(
    config: Arc<UplinkConfig>,
    mut snapshots: SnapshotReader,
    mut api: watch::Receiver<ApiPods>,
    mut node: RegisteredNode,
) {
    let owner = registered(&mut node).await;
    let mut teller = Teller {
        client: config.client.clone(),
        owner,
        told: HashMap::new(),
        rewinds: 0,
        spoken: HashMap::new(),
        changed: HashMap::new(),
        digests: HashMap::new(),
        counters: Arc::clone(&config.counters),
        turns: Turns::new(),
    };
    let mut under_way = FuturesUnordered::new();
    let mut busy: HashSet<Target> = HashSet::new();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let there = api.borrow_and_update().clone();
        if let Ok(true) = node.has_changed()
            && let Some(owner) = node.borrow_and_update().clone()
        {
            teller.owner = owner;
        }
        let now = Instant::now();
        let mut wait_over = None;
        if let Some(snapshot) = snapshot.filter(|_| there.listed && !teller.turns.is_away(now)) {
            let mut steps = teller.steps(&snapshot, &there);
            wait_over = teller.hold_back(&mut steps, now);
            for (target, step) in teller.turns.pick(steps, &busy, now) {
                busy.insert(target.clone());
                under_way.push(take(teller.client.clone(), Arc::clone(&teller.owner), target, step));
            }
        }
        let wake = teller.turns.next_wake(now);
        let wake = wait_over.map_or(wake, |over| wake.min(over));
        // Every branch is cancel safe: channels, a time, and requests that stay where they are.
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return std::future::pending().await },
            changed = api.changed() => if changed.is_err() { return std::future::pending().await },
            Some((target, step, result)) = under_way.next(), if !under_way.is_empty() => {
                busy.remove(&target);
                teller.note(target, &step, result);
            }
            () = sleep_until(wake) => {}
        }
    }
}

/// What one step came to.
type Taken = Result<Option<Pod>, ApiError>;

async fn take(client: Client, owner: Arc<Node>, target: Target, step: Step) -> (Target, Step, Taken) {
    let scope = Scope::Namespace(&target.full_name.namespace);
    let name = &*target.full_name.name;
    let result = match &step {
        Step::Patch { uid, view, .. } => {
            let patch = Patch::Strategic(status_patch(uid.as_str(), &view.status, view.source.is_static()));
            client.patch::<Pod>(scope, (name, Some("status")), &patch).await.map(Some)
        }
        Step::Delete { uid } | Step::DeleteMirror { uid } => {
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.as_str().to_owned()),
                    ..Preconditions::default()
                }),
                ..DeleteOptions::default()
            };
            client.delete::<Pod>(scope, name, &options).await.map(|()| None)
        }
        Step::CreateMirror { view } => client.create(scope, &mirror::of(&view.pod, &owner)).await.map(Some),
    };
    (target, step, result)
}

struct Teller {
    client: Client,
    /// This node, which owns mirror pods.
    owner: Arc<Node>,
    /// What was last told, by the UID in the API server.
    told: HashMap<PodUid, Told>,
    /// How often the API server had forgotten what it was told when this was last looked at.
    rewinds: u64,
    /// The statuses that were last told in this life, by the UID in the API server.
    spoken: HashMap<PodUid, Arc<PodStatus>>,
    /// Digests of statuses, by UID, while the status is the same value.
    digests: HashMap<PodUid, (Arc<PodStatus>, u64)>,
    /// Since when there is something to tell, by UID.
    changed: HashMap<PodUid, Instant>,
    counters: Arc<NodeCounters>,
    turns: Turns,
}

impl Teller {
    fn steps(&mut self, snapshot: &NodeSnapshot, api: &ApiPods) -> Vec<(Target, Step)> {
        if self.rewinds != api.rewinds {
            // What it answered is not what it has.
            self.rewinds = api.rewinds;
            self.told.clear();
            self.spoken.clear();
        }
        self.told.retain(|uid, _| api.pods.contains_key(uid));
        self.spoken.retain(|uid, _| api.pods.contains_key(uid));
        let current: HashSet<&PodUid> = snapshot.pods.iter().map(|view| &view.uid).collect();
        self.digests.retain(|uid, _| current.contains(uid));
        self.changed.retain(|uid, _| current.contains(uid));
        let mirrors = api.pods.values().filter(|pod| pod.mirror_of.is_some()).count();
        self.counters.mirror_pods.set(u64::try_from(mirrors).unwrap_or(u64::MAX));
        let mut locals = Vec::with_capacity(snapshot.pods.len());
        for view in &snapshot.pods {
            let digest = self.digest(view);
            locals.push(Local::new(view, digest));
        }
        let steps = plan::steps(&locals, api, &self.told, snapshot.desired.is_whole());
        // Whatever the API server has already is not waited for.
        let patched: HashSet<&PodUid> = steps
            .iter()
            .filter_map(|(_, step)| match step {
                Step::Patch { view, .. } => Some(&view.uid),
                _ => None,
            })
            .collect();
        self.changed.retain(|uid, _| patched.contains(uid));
        steps
    }

    /// Takes out the steps of pods' starts and ends that wait for the next one; until when the first of them waits.
    fn hold_back(&self, steps: &mut Vec<(Target, Step)>, now: Instant) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        steps.retain(|(_, step)| {
            let Step::Patch { uid, view, .. } = step else { return true };
            let (Some(before), Some(since)) = (self.spoken.get(uid), self.changed.get(&view.uid)) else {
                return true;
            };
            let deleting = view.pod.metadata.deletion_timestamp.is_some();
            let wait = if deleting {
                is_step_of_end(before, &view.status).then_some(STEPS_WAIT)
            } else if is_unseen_step_of_start(before, &view.status) {
                Some(UNSEEN_WAIT)
            } else {
                is_step_of_start(before, &view.status).then_some(STEPS_WAIT)
            };
            let over = wait.map_or(now, |wait| *since + wait);
            let waits = over > now && view.stage != PodStage::Terminated;
            if waits {
                first = Some(first.map_or(over, |first| first.min(over)));
            }
            !waits
        });
        first
    }

    fn digest(&mut self, view: &Arc<PodView>) -> u64 {
        if let Some((status, digest)) = self.digests.get(&view.uid)
            && Arc::ptr_eq(status, &view.status)
        {
            return *digest;
        }
        let digest = status_digest(&view.status);
        // From the first of several changes on, as upstream counts.
        if self.digests.get(&view.uid).is_none_or(|(_, before)| *before != digest) {
            self.changed.entry(view.uid.clone()).or_insert_with(Instant::now);
        }
        self.digests.insert(view.uid.clone(), (Arc::clone(&view.status), digest));
        digest
    }

    fn note(&mut self, target: Target, step: &Step, result: Taken) {
        let pod = target.full_name.clone();
        let now = Instant::now();
        match result {
            Ok(answer) => {
                match step {
                    Step::Patch { uid, digest, view } => {
                        if let Some(since) = self.changed.remove(&view.uid) {
                            self.counters.status_syncs.observe(now.duration_since(since));
                        }
                        if self.digests.get(&view.uid).is_some_and(|(_, newest)| newest != digest) {
                            // It has changed again meanwhile.
                            self.changed.insert(view.uid.clone(), now);
                        }
                        self.spoken.insert(uid.clone(), Arc::clone(&view.status));
                        self.turns.succeeded(target, None, now);
                        let answer = answer.unwrap_or_default();
                        let version = answer.metadata.resource_version.as_deref();
                        self.told.insert(
                            uid.clone(),
                            Told {
                                said: *digest,
                                heard: answer.status.as_ref().map_or(0, status_digest),
                                version: version.and_then(|it| it.parse().ok()).unwrap_or(0),
                                finished: answer.status.as_ref().is_some_and(|status| {
                                    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
                                }),
                            },
                        );
                        return;
                    }
                    Step::Delete { uid } => {
                        info!(%pod, %uid, "the pod has ended: deleted from the API server")
                    }
                    Step::DeleteMirror { uid } => info!(%pod, %uid, "mirror pod deleted"),
                    Step::CreateMirror { .. } => info!(%pod, "mirror pod made"),
                }
                // A mirror pod that is made may be deleted and wanted again soon; one made twice would be refused.
                let wait =
                    if matches!(step, Step::CreateMirror { .. }) { MADE_BY_THEN } else { SEEN_BY_THEN };
                self.turns.succeeded(target, Some(wait), now);
            }
            Err(error) => {
                if self.turns.failed(target, &error, now) {
                    warn!(%pod, %error, what = step.name(), "the API server refuses; it is tried again, ever more seldom");
                } else {
                    debug!(%pod, %error, what = step.name(), "the API server could not be told; it is tried again");
                }
            }
        }
    }
}
