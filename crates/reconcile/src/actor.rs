//! The actor: one owner of all pods' state, a closed set of things that can happen to it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_checkpoint::WriteError;
use mainstay_lifecycle::PodMemory;
use mainstay_task::{Backoff, TaskGroup};
use mainstay_types::{
    DesiredPod, DesiredState, Heartbeat, MadeObjects, ObservedPod, ObservedState, Outcomes, PodSource,
    PodStage, PodUid, ReadWish,
};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::{
    Ownership, ReconcileConfig,
    pod::{Decision, PodState, Worker},
    record::{Opened, PodRecord, Records},
    worker::{self, Cancel, Fact, Job, JobEnd, Shared},
};

/// How many reports of workers may wait; a full channel makes workers wait, not lose anything.
const REPORT_BOUND: usize = 256;
/// How often the actor gives a sign of life while nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Before stopping or cleaning up is tried again.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30));

/// A reading that was wished for comes within milliseconds; after this long it is wished for again.
const READING_DUE: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);

/// What a worker sends.
#[derive(Debug)]
pub(crate) enum Report {
    /// Something found on the way.
    Fact(PodUid, Fact),
    /// It is done.
    Done {
        /// With which pod.
        uid: PodUid,
        /// How.
        end: JobEnd,
        /// What it made; `None` when that is not certain.
        made: Option<MadeObjects>,
    },
}

/// Starts reconciling. Problems with stored records are returned as sentences for the node's events.
///
/// # Errors
/// When the records' directory cannot be made: without it mainstay could not tell its own pods from others'.
pub fn start(
    config: ReconcileConfig,
    desired: watch::Receiver<Arc<DesiredState>>,
    observed: watch::Receiver<Arc<ObservedState>>,
    tasks: &TaskGroup,
) -> Result<(watch::Receiver<Outcomes>, Vec<String>), WriteError> {
    let Opened { records, restored, problems } = Records::open(&config.node.root_dir, tasks)?;
    let (sender, outcomes) = watch::channel(Outcomes::default());
    let (report_sender, reports) = mpsc::channel(REPORT_BOUND);
    let heartbeat = config.heartbeat.clone();
    let pods = restored
        .into_iter()
        .map(|(uid, record)| {
            let desired = Arc::new(record.desired());
            (uid, PodState::new(desired, record.memory))
        })
        .collect();
    let shared = Arc::new(Shared::new(config, records, report_sender));
    let actor = Actor {
        shared,
        tasks: tasks.clone(),
        pods,
        sender,
        heartbeat,
        desired: desired.borrow().clone(),
        observed: observed.borrow().clone(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("reconcile", async move {
        shutdown.run_until_signalled(Box::pin(actor.run(desired, observed, reports))).await;
    });
    Ok((outcomes, problems))
}

struct Actor {
    shared: Arc<Shared>,
    tasks: TaskGroup,
    pods: HashMap<PodUid, PodState>,
    sender: watch::Sender<Outcomes>,
    heartbeat: Heartbeat,
    desired: Arc<DesiredState>,
    observed: Arc<ObservedState>,
}

impl Actor {
    async fn run(
        mut self,
        mut desired: watch::Receiver<Arc<DesiredState>>,
        mut observed: watch::Receiver<Arc<ObservedState>>,
        mut reports: mpsc::Receiver<Report>,
    ) {
        desired.mark_changed();
        let mut batch = Vec::new();
        loop {
            self.heartbeat.beat();
            let wake = self.next_wake();
            // Every branch is cancel safe: watch, mpsc and sleep lose nothing when dropped.
            let touched: Option<HashSet<PodUid>> = tokio::select! {
                changed = desired.changed() => {
                    if changed.is_err() { return; }
                    let next = desired.borrow_and_update().clone();
                    self.take_desired(next)
                }
                changed = observed.changed() => {
                    if changed.is_err() { return; }
                    let next = observed.borrow_and_update().clone();
                    self.take_observed(next)
                }
                count = reports.recv_many(&mut batch, REPORT_BOUND) => {
                    if count == 0 { return; }
                    Some(batch.drain(..).filter_map(|report| self.take_report(report)).collect())
                }
                () = tokio::time::sleep(wake) => {
                    self.bury_dead_workers();
                    let now = Timestamp::now();
                    let due = |pod: &PodState| pod.wake_at.is_some_and(|at| at <= now);
                    Some(self.pods.iter().filter(|(_, pod)| due(pod)).map(|(uid, _)| uid.clone()).collect())
                }
            };
            if self.observed.listed_at.is_none() {
                continue;
            }
            match touched {
                Some(uids) => uids.iter().for_each(|uid| self.consider(uid)),
                None => {
                    let uids: Vec<_> = self.pods.keys().cloned().collect();
                    uids.iter().for_each(|uid| self.consider(uid));
                }
            }
            self.publish();
        }
    }

    fn next_wake(&self) -> Duration {
        let now = Timestamp::now();
        self.pods
            .values()
            .filter(|pod| pod.worker.is_none())
            .filter_map(|pod| pod.wake_at)
            .min()
            .map_or(HEARTBEAT, |at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
            .min(HEARTBEAT)
    }

    /// Takes over a new desired state; the pods it touches, or `None` for all.
    fn take_desired(&mut self, next: Arc<DesiredState>) -> Option<HashSet<PodUid>> {
        let before = std::mem::replace(&mut self.desired, next);
        let now = Timestamp::now();
        let desired = Arc::clone(&self.desired);
        let mut touched = HashSet::new();
        for (uid, wanted) in desired.pods.iter() {
            match self.pods.get_mut(uid) {
                None => {
                    info!(pod = %wanted.full_name, pod.uid = %uid, source = %wanted.source, "pod to run");
                    // Without a record, its oldest sandbox tells best when it began.
                    let sandboxes = self.observed.pods.get(uid).into_iter().flat_map(|pod| &pod.sandboxes);
                    let begun = sandboxes.map(|sandbox| sandbox.created_at).min().unwrap_or(now);
                    let pod = PodState::new(Arc::clone(wanted), PodMemory::new(begun));
                    // One that runs already (its record was lost, or another kubelet started it) is ours from now on.
                    self.shared.records.keep(wanted, &pod.memory);
                    self.pods.insert(uid.clone(), pod);
                    touched.insert(uid.clone());
                }
                // One that is going must be gone before it comes again; `removed` looks for it then.
                Some(pod) if pod.is_going() => {}
                Some(pod) => {
                    if !Arc::ptr_eq(&pod.desired, wanted) {
                        if *pod.desired != **wanted {
                            self.shared.records.keep(wanted, &pod.memory);
                        }
                        pod.desired = Arc::clone(wanted);
                        pod.obey_wish();
                        touched.insert(uid.clone());
                    }
                }
            }
        }
        if !Arc::ptr_eq(&before.objects, &desired.objects) {
            let waiting =
                self.pods.iter_mut().filter_map(|(uid, pod)| pod.objects_changed().then(|| uid.clone()));
            touched.extend(waiting);
        }
        for (uid, pod) in &mut self.pods {
            // A source that has not delivered yet may still want it.
            if desired.synced && !desired.pods.contains_key(uid) && pod.let_go(now) {
                info!(pod = %pod.desired.full_name, pod.uid = %uid, "pod to stop: its source let go of it");
                self.shared.records.keep(&pod.desired, &pod.memory);
                touched.insert(uid.clone());
            }
        }
        touched.extend(self.take_in_orphans(now));
        // The first look is at all: a pod that was going when mainstay ended is no news to anybody, and must go on going.
        (before.synced && self.sender.borrow().generation > 0).then_some(touched)
    }

    fn take_observed(&mut self, next: Arc<ObservedState>) -> Option<HashSet<PodUid>> {
        let before = std::mem::replace(&mut self.observed, next);
        if before.listed_at.is_none()
            || before.runtime.reachable != self.observed.runtime.reachable
            || before.runtime.network_problem != self.observed.runtime.network_problem
        {
            self.take_in_orphans(Timestamp::now());
            return None;
        }
        let mut touched = HashSet::new();
        for uid in self.pods.keys() {
            let same = match (before.pods.get(uid), self.observed.pods.get(uid)) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            };
            if !same {
                touched.insert(uid.clone());
            }
        }
        if self.observed.pods.len() != before.pods.len()
            || self.shared.config.ownership == Ownership::Everything
        {
            touched.extend(self.take_in_orphans(Timestamp::now()));
        }
        Some(touched)
    }

    /// Pods in the runtime that no source wants and that were never ours: upstream's kubelet ends them. Those found now.
    fn take_in_orphans(&mut self, now: Timestamp) -> Vec<PodUid> {
        let mut found = Vec::new();
        if self.shared.config.ownership != Ownership::Everything || !self.desired.synced {
            return found;
        }
        for (uid, observed) in &self.observed.pods {
            if self.pods.contains_key(uid) || self.desired.pods.contains_key(uid) || observed.is_nothing() {
                continue;
            }
            warn!(pod = %observed.full_name, pod.uid = %uid, "pod in the runtime that no source wants: it will be removed");
            let mut pod = PodState::new(Arc::new(orphan(observed)), PodMemory::new(now));
            pod.orphan = true;
            pod.let_go(now);
            self.pods.insert(uid.clone(), pod);
            found.push(uid.clone());
        }
        found
    }

    fn take_report(&mut self, report: Report) -> Option<PodUid> {
        match report {
            Report::Fact(uid, fact) => {
                let pod = self.pods.get_mut(&uid)?;
                pod.note(fact, self.shared.config.max_restart_period);
                if !pod.orphan {
                    self.shared.records.keep(&pod.desired, &pod.memory);
                }
                None
            }
            Report::Done { uid, end, made } => {
                let pod = self.pods.get_mut(&uid)?;
                pod.worker = None;
                pod.acted_at = Some(Instant::now());
                pod.not_started.clear();
                pod.wake_at = None;
                match end {
                    JobEnd::Done => pod.failures = 0,
                    JobEnd::AtRest => {
                        pod.failures = 0;
                        pod.stage = PodStage::Terminated;
                    }
                    // A pod that is stopped once need not be stopped again; if it must, something resists.
                    JobEnd::Stopped | JobEnd::Failed => {
                        let resisted = u32::from(end == JobEnd::Failed) + pod.failures;
                        pod.failures = pod.failures.saturating_add(1);
                        if resisted > 0 {
                            let wait =
                                jiff::SignedDuration::try_from(RETRY.delay(resisted)).unwrap_or_default();
                            pod.retry_at = Timestamp::now().checked_add(wait).ok();
                        }
                    }
                }
                // Nothing is decided before a reading that was begun after this moment.
                let wish = ReadWish { uid: uid.clone(), full_name: pod.desired.full_name.clone(), made };
                // With the channel full, it is wished for again a little later.
                self.shared.config.refresh.try_send(wish).ok();
                Some(uid)
            }
        }
    }

    /// Nothing can be decided before a reading comes.
    fn wait_for_reading(&mut self, uid: &PodUid, wish_again: bool) {
        let now = Timestamp::now();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        if !wish_again {
            pod.wake_at = None;
        } else if pod.wake_at.is_none_or(|at| at <= now) {
            if pod.wake_at.is_some() {
                let wish =
                    ReadWish { uid: uid.clone(), full_name: pod.desired.full_name.clone(), made: None };
                // With the channel full there is a next time.
                self.shared.config.refresh.try_send(wish).ok();
            }
            pod.wake_at = now.checked_add(READING_DUE).ok();
        }
    }

    /// A worker reports its end itself. One that panicked cannot, and must not leave its pod alone for ever.
    fn bury_dead_workers(&mut self) {
        let mut dead = Vec::new();
        for (uid, pod) in &mut self.pods {
            if let Some(worker) = pod.worker.as_mut().filter(|worker| worker.handle.is_ended()) {
                if worker.silent {
                    dead.push(uid.clone());
                }
                worker.silent = true;
            }
        }
        for uid in dead {
            error!(pod.uid = %uid, "the pod's worker died; the pod is looked at again");
            self.take_report(Report::Done { uid, end: JobEnd::Failed, made: None });
        }
    }

    /// Looks at one pod and sets a worker to what is to be done.
    fn consider(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get(uid) else { return };
        // Before all sources have delivered, only what one of them wants is acted upon.
        if !self.desired.synced && !self.desired.pods.contains_key(uid) {
            return;
        }
        if pod.worker.is_some() {
            return;
        }
        let unread =
            pod.acted_at.is_some_and(|acted| self.observed.read_at(uid).is_none_or(|read| read < acted));
        if !self.observed.runtime.reachable || unread {
            // All pods are looked at when the runtime answers again. A reading that does not come is wished for again.
            self.wait_for_reading(uid, self.observed.runtime.reachable);
            return;
        }
        let name_taken = pod.stage == PodStage::Waiting
            && self.pods.iter().any(|(other_uid, other)| {
                other_uid != uid
                    && other.desired.full_name == pod.desired.full_name
                    && other.stage != PodStage::Waiting
                    && other.is_going()
            });
        let observed = self.observed.pods.get(uid).filter(|pod| !pod.is_nothing()).cloned();
        let now = Timestamp::now();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        // Whoever needs to be woken says so in the decision.
        pod.wake_at = None;
        let finished_before = pod.memory.finished;
        let decision = pod.decide(observed.as_deref(), name_taken, now);
        if pod.memory.finished != finished_before {
            self.shared.records.keep(&pod.desired, &pod.memory);
            if let Some(failure) = &pod.memory.failure {
                self.shared.tell_pod_failed(&pod.desired, failure);
            }
        }
        let job = match decision {
            Decision::Rest => {
                // Back-offs that began since are told of once, not at every look.
                self.shared.tell_backoffs(pod);
                if pod.stage == PodStage::Syncing && pod.wake_at.is_none() {
                    pod.wake_at = jiff::SignedDuration::try_from(self.shared.config.sync_frequency)
                        .ok()
                        .and_then(|period| now.checked_add(period).ok());
                }
                return;
            }
            Decision::Settle => Job::Settle,
            Decision::Remove => Job::Remove,
            Decision::Stop { grace_seconds } => Job::Stop { grace_seconds },
            Decision::Sync(steps) => Job::Sync(steps),
        };
        let sync = matches!(job, Job::Sync(_));
        let cancel = Cancel::new(self.tasks.shutdown());
        let record = (!pod.orphan).then(|| PodRecord::new(&pod.desired, &pod.memory));
        let order = worker::Order {
            desired: Arc::clone(&pod.desired),
            observed,
            objects: Arc::clone(&self.desired.objects),
            runtime: Arc::clone(&self.observed.runtime),
            record,
            had_pull_trouble: !pod.memory.pulls.is_empty(),
            job,
            cancel: cancel.clone(),
            log: worker::MadeLog::default(),
        };
        let name = format!("pod {}", pod.desired.full_name);
        let handle = self.tasks.spawn(name, worker::run(Arc::clone(&self.shared), order));
        pod.wake_at = None;
        pod.retry_at = None;
        pod.worker = Some(Worker { handle, cancel, sync, silent: false });
    }

    /// Publishes what differs, and lets go of pods of which nothing is left.
    fn publish(&mut self) {
        let gone: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, pod)| {
                pod.worker.is_none()
                    && pod.stage == PodStage::Terminated
                    && pod.memory.deletion.is_some()
                    && self.observed.pods.get(*uid).is_none_or(|observed| observed.is_nothing())
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.removed(&uid);
        }
        let current = self.sender.borrow().pods.clone();
        let generation = self.sender.borrow().generation;
        let synced = self.desired.synced;
        let mut differs = generation == 0
            || self.sender.borrow().synced != synced
            || current.len() != self.pods.values().filter(|pod| !pod.orphan).count();
        let mut next = HashMap::with_capacity(self.pods.len());
        for (uid, pod) in self.pods.iter_mut().filter(|(_, pod)| !pod.orphan) {
            let outcome = pod.report();
            differs |= current.get(uid).is_none_or(|last| !Arc::ptr_eq(last, &outcome));
            next.insert(uid.clone(), outcome);
        }
        if differs {
            self.sender.send_replace(Outcomes { generation: generation + 1, synced, pods: Arc::new(next) });
        }
    }

    fn removed(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.remove(uid) else { return };
        info!(pod = %pod.desired.full_name, pod.uid = %uid, "pod is gone");
        self.shared.records.forget(uid);
        let now = Timestamp::now();
        if let Some(wanted) = self.desired.pods.get(uid) {
            // The same pod came back while it was going.
            let pod = PodState::new(Arc::clone(wanted), PodMemory::new(now));
            self.shared.records.keep(wanted, &pod.memory);
            self.pods.insert(uid.clone(), pod);
        }
        let waiting: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, other)| other.stage == PodStage::Waiting)
            .map(|(uid, _)| uid.clone())
            .collect();
        waiting.iter().for_each(|uid| self.consider(uid));
    }
}

/// A pod of which only the runtime knows: enough of it to stop it.
fn orphan(observed: &ObservedPod) -> DesiredPod {
    let mut names: Vec<_> = observed.containers.iter().map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let containers =
        names.into_iter().map(|name| Container { name: name.to_owned(), ..Container::default() }).collect();
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(observed.full_name.name.to_string()),
            namespace: Some(observed.full_name.namespace.to_string()),
            uid: Some(observed.uid.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers, termination_grace_period_seconds: Some(1), ..PodSpec::default() }),
        status: None,
    };
    DesiredPod {
        uid: observed.uid.clone(),
        full_name: observed.full_name.clone(),
        pod: Arc::new(pod),
        source: PodSource::Api,
        origin: "".into(),
        terminate: None,
    }
}

#[cfg(test)]
mod tests;
