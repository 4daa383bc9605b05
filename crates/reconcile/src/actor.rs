//! The actor: one owner of all pods' state, a closed set of things that can happen to it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Lifecycle, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_checkpoint::WriteError;
use mainstay_lifecycle::{Admission, HoldCause, PodMemory};
use mainstay_podspec::volumes::objects_differ;
use mainstay_policy::{NodeFacts, Rejection};
use mainstay_task::{Backoff, TaskGroup};
use mainstay_types::{
    ContainerPhase, DesiredPod, DesiredState, EventKind, ExtendedResources, Heartbeat, MadeObjects,
    ObservedPod, ObservedState, Outcomes, PodSource, PodStage, PodUid, ProbeResults, ReadWish,
    rejection_label,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::{
    Ownership, ReconcileConfig, admission, cgroups,
    clock::Clock,
    cpusets, images,
    kill::Grace,
    pod::{Decision, PodState, Worker, refresh_wait},
    pod_range,
    record::{Opened, PodRecord, Records},
    worker::{self, Cancel, Fact, Job, JobEnd, Shared},
};

/// How many reports of workers may wait; a full channel makes workers wait, not lose anything.
const REPORT_BOUND: usize = 256;
/// How often the actor gives a sign of life while nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The least time between two looks at a pod for which nothing happens, whatever `syncFrequency` says.
const SHORTEST_SYNC: Duration = Duration::from_secs(1);
/// Before stopping or cleaning up is tried again.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30));

/// A reading that was wished for comes within milliseconds; after this long it is wished for again.
const READING_DUE: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);

/// What a worker sends.
#[derive(Debug)]
pub(crate) enum Report {
    /// Something found on the way.
    Fact(PodUid, Fact),
    /// Everything that was reported before this has been taken.
    Mark(oneshot::Sender<()>),
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
    probes: watch::Receiver<ProbeResults>,
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
            let comparable = record.is_of_this_version();
            let mut pod = PodState::new(desired, record.memory);
            pod.comparable = comparable;
            // The node may have more room than before.
            pod.look_again = pod.may_be_judged_anew();
            (uid, pod)
        })
        .collect();
    let shared = Arc::new(Shared::new(config, records, report_sender));
    let pods: HashMap<PodUid, PodState> = pods;
    pods.values().for_each(|pod| shared.count_containers(pod));
    if let Some(cgroups) = shared.config.cgroups.clone() {
        let seen = cgroups::Seen {
            desired: desired.clone(),
            observed: observed.clone(),
            outcomes: outcomes.clone(),
        };
        cgroups::start(Arc::clone(&shared), cgroups, seen, tasks);
    }
    if shared.config.resources.pins_cpus() {
        cpusets::start(Arc::clone(&shared), observed.clone(), outcomes.clone(), tasks);
    }
    pod_range::start(Arc::clone(&shared), desired.clone(), tasks);
    let (settling, shutdown) = (Arc::clone(&shared), tasks.shutdown());
    tasks.spawn("pulls of before", async move {
        shutdown.run_until_signalled(Box::pin(images::settle(&settling))).await;
    });
    // One after the other: whoever holds one while he waits for another may be waited for himself.
    let observed_now = observed.borrow().clone();
    let probes_now = probes.borrow().clone();
    let mut extended = shared.config.resources.devices().resources();
    let extended_now = extended.borrow_and_update().clone();
    let actor = Actor {
        facts: admission::facts(&shared.config.admission, None, &extended_now),
        extended: extended_now,
        swept: false,
        looked_up: false,
        shared,
        tasks: tasks.clone(),
        pods,
        sender,
        heartbeat,
        // Nothing is wanted, and nothing whole, before the pods that are have been taken in: whatever else comes first must not find out
        // that nobody wants what runs.
        desired: Arc::default(),
        observed: observed_now,
        probes: probes_now,
        clock: Clock::new(Timestamp::now(), Instant::now()),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("reconcile", async move {
        shutdown.run_until_signalled(Box::pin(actor.run(desired, observed, probes, extended, reports))).await;
    });
    Ok((outcomes, problems))
}

struct Actor {
    shared: Arc<Shared>,
    /// What pods are judged by: what the API server says of the node among it.
    facts: NodeFacts,
    /// What device plugins offer; the facts have it.
    extended: Arc<ExtendedResources>,
    /// What pods held of which nobody knows any more has been taken back.
    swept: bool,
    /// Who holds CPUs and memory has been looked up, or need not be.
    looked_up: bool,
    tasks: TaskGroup,
    pods: HashMap<PodUid, PodState>,
    sender: watch::Sender<Outcomes>,
    heartbeat: Heartbeat,
    desired: Arc<DesiredState>,
    observed: Arc<ObservedState>,
    probes: ProbeResults,
    clock: Clock,
}

impl Actor {
    async fn run(
        mut self,
        mut desired: watch::Receiver<Arc<DesiredState>>,
        mut observed: watch::Receiver<Arc<ObservedState>>,
        mut probes: watch::Receiver<ProbeResults>,
        mut extended: watch::Receiver<Arc<ExtendedResources>>,
        mut reports: mpsc::Receiver<Report>,
    ) {
        desired.mark_changed();
        let mut batch = Vec::new();
        // The first look is at all, whatever brings it: a pod that was going when mainstay ended is no news to anybody, and
        // must go on going.
        let mut looked_at_all = false;
        let mut buried = Instant::now();
        loop {
            self.heartbeat.beat();
            let now = Timestamp::now();
            if self.clock.was_set_back(now, Instant::now()) {
                warn!("the clock was set back; nobody waits for the time that it showed");
                self.pods.values_mut().for_each(|pod| pod.wait_no_longer(now));
            }
            if buried.elapsed() >= HEARTBEAT {
                // By a clock of its own: on some nodes something happens all the time.
                self.bury_dead_workers();
                buried = Instant::now();
            }
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
                changed = probes.changed() => {
                    if changed.is_err() { return; }
                    let next = probes.borrow_and_update().clone();
                    let before = std::mem::replace(&mut self.probes, next);
                    Some(self.probes.changed_since(&before).cloned().collect())
                }
                changed = extended.changed() => {
                    if changed.is_err() { return; }
                    let next = extended.borrow_and_update().clone();
                    Some(self.take_extended(next))
                }
                count = reports.recv_many(&mut batch, REPORT_BOUND) => {
                    if count == 0 { return; }
                    let mut touched: HashSet<_> =
                        batch.drain(..).filter_map(|report| self.take_report(report)).collect();
                    // What ended may have made room.
                    touched.extend(self.waiting());
                    Some(touched)
                }
                () = tokio::time::sleep(wake) => {
                    let now = Timestamp::now();
                    let due = |pod: &PodState| pod.wake_at.is_some_and(|at| at <= now);
                    Some(self.pods.iter().filter(|(_, pod)| due(pod)).map(|(uid, _)| uid.clone()).collect())
                }
            };
            if self.observed.listed_at.is_none() {
                // Everybody is looked at with the first list; nobody needs to be woken before.
                self.pods.values_mut().for_each(|pod| pod.wake_at = None);
                continue;
            }
            let uids = match touched.filter(|_| looked_at_all) {
                Some(uids) => uids.into_iter().collect(),
                None => self.pods.keys().cloned().collect(),
            };
            looked_at_all = true;
            self.look_up_holders();
            self.sweep();
            self.consider_all(uids);
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
        let another_node = before.node.as_ref().map(Arc::as_ptr) != desired.node.as_ref().map(Arc::as_ptr);
        if another_node || before.node_answered != desired.node_answered {
            // Some may wait for that.
            touched.extend(self.waiting());
            self.facts =
                admission::facts(&self.shared.config.admission, desired.node.as_deref(), &self.extended);
        }
        let mut edited = false;
        for (uid, wanted) in desired.pods.iter() {
            match self.pods.get_mut(uid) {
                None => {
                    info!(pod = %wanted.full_name, pod.uid = %uid, source = %wanted.source, "pod to run");
                    // Without a record, its oldest sandbox tells best when it began.
                    let sandboxes = self.observed.pods.get(uid).into_iter().flat_map(|pod| &pod.sandboxes);
                    let begun = sandboxes.map(|sandbox| sandbox.created_at).min().unwrap_or(now);
                    let mut pod = PodState::new(Arc::clone(wanted), first_memory(wanted, begun));
                    pod.fresh_since = Some(Instant::now());
                    self.shared.count_containers(&pod);
                    if !self.observed.pods.contains_key(uid) {
                        pod.trace_start(&self.shared.config.tracer);
                    }
                    pod.heed_deletion();
                    self.shared.obey_wish(&mut pod);
                    // One that runs already (its record was lost, or another kubelet started it) is ours from now on.
                    self.shared.records.keep(wanted, &pod.memory);
                    self.pods.insert(uid.clone(), pod);
                    touched.insert(uid.clone());
                }
                Some(pod) if pod.is_going() && !wanted.source.is_static() => {
                    // Its source still has it, and may want it to end faster.
                    pod.desired = Arc::clone(wanted);
                    if pod.heed_deletion() {
                        self.shared.records.keep(wanted, &pod.memory);
                    }
                    touched.insert(uid.clone());
                }
                // One that is going must be gone before it comes again; `removed` looks for it then.
                Some(pod) if pod.is_going() => {}
                // To the runtime the name is part of the pod: another name under the same UID is another pod.
                Some(pod) if pod.desired.full_name != wanted.full_name => {
                    info!(pod = %pod.desired.full_name, pod.uid = %uid, name = %wanted.full_name, "pod to stop: another name has its UID");
                    pod.let_go(now);
                    self.shared.records.keep(&pod.desired, &pod.memory);
                    touched.insert(uid.clone());
                }
                // A manifest that names its UID was edited: what runs is another pod than the one that is wanted.
                Some(pod) if !Arc::ptr_eq(&pod.desired, wanted) && pod.is_replaced_by(wanted) => {
                    info!(pod = %wanted.full_name, pod.uid = %uid, "pod to replace: it was edited under the same UID");
                    pod.let_go(now);
                    self.shared.records.keep(&pod.desired, &pod.memory);
                    touched.insert(uid.clone());
                }
                Some(pod) => {
                    if !Arc::ptr_eq(&pod.desired, wanted) {
                        pod.comparable = true;
                        let differs = *pod.desired != **wanted;
                        if differs {
                            pod.wants = admission::wants(&wanted.pod);
                            // Nobody judged the pod as it is now.
                            if pod.was_turned_away() && pod.desired.pod != wanted.pod {
                                pod.forget_rejection();
                            }
                        }
                        pod.desired = Arc::clone(wanted);
                        // Labels and annotations may be shown in volumes.
                        pod.refresh_at = None;
                        if differs {
                            pod.forget_stale();
                            edited = true;
                            self.shared.tell_of_ephemeral_containers(&before, wanted);
                        }
                        let obeyed = self.shared.obey_wish(pod) | pod.heed_deletion() | pod.heed_end();
                        pod.shorten_grace();
                        if obeyed || differs {
                            self.shared.records.keep(wanted, &pod.memory);
                        }
                        touched.insert(uid.clone());
                    }
                }
            }
        }
        if edited {
            // It may want less than before.
            self.offer_room();
            touched.extend(self.waiting());
        }
        if !Arc::ptr_eq(&before.objects, &desired.objects) {
            for (uid, pod) in &mut self.pods {
                let shown = objects_differ(&pod.desired.pod, &before.objects, &desired.objects);
                if shown {
                    pod.refresh_at = None;
                }
                if pod.objects_changed(&before.objects, &desired.objects) || shown {
                    touched.insert(uid.clone());
                }
            }
        }
        for (uid, pod) in &mut self.pods {
            // A source that has not delivered yet may still want it.
            let wanted = desired.pods.contains_key(uid) || desired.awaits(pod.desired.source);
            let news = !wanted && (pod.let_go(now) | std::mem::take(&mut pod.held));
            if news {
                info!(pod = %pod.desired.full_name, pod.uid = %uid, "pod to stop: its source let go of it");
                self.shared.records.keep(&pod.desired, &pod.memory);
                touched.insert(uid.clone());
            }
        }
        touched.extend(self.take_in_orphans(now));
        let same_sources = before.synced && before.awaited == desired.awaited;
        same_sources.then_some(touched)
    }

    /// Takes over what device plugins offer now; the pods that may have been waiting for it.
    fn take_extended(&mut self, next: Arc<ExtendedResources>) -> HashSet<PodUid> {
        self.extended = next;
        let node = self.desired.node.as_deref();
        self.facts = admission::facts(&self.shared.config.admission, node, &self.extended);
        self.pods.values_mut().for_each(|pod| pod.refused_until = None);
        self.offer_room();
        self.waiting().into_iter().collect()
    }

    /// Devices of pods that went while mainstay was away are free again, once it is known that they went.
    fn sweep(&mut self) {
        if !self.swept && self.desired.is_whole() && self.observed.listed_at.is_some() {
            self.swept = true;
            self.shared.config.resources.keep_only(|uid| self.pods.contains_key(&PodUid::from(uid)));
        }
    }

    /// Who held devices that nobody can name, and has ended, holds them no longer.
    fn note_ended_holders(&self) {
        if self.observed.listed_at.is_none() {
            return;
        }
        let devices = self.shared.config.resources.devices();
        // Of one about which the runtime does not answer nothing is known.
        for uid in devices.unsure_pods().into_iter().filter(|uid| !self.observed.silent.contains_key(uid)) {
            let containers =
                self.observed.pods.get(&uid).map(|pod| pod.containers.as_slice()).unwrap_or_default();
            let runs = |name: &str| {
                containers.iter().any(|it| it.name.as_str() == name && it.phase == ContainerPhase::Running)
            };
            devices.note_running(&uid, runs);
        }
    }

    /// Where the files of who holds what were lost, it is looked up from what runs, once. Pods that are new wait for it. So does the look, while
    /// something runs of which nobody knows yet whose it is: after a takeover it may be a pod of an API server that has not answered.
    fn look_up_holders(&mut self) {
        if self.looked_up {
            return;
        }
        let is_known = |(uid, pod): (&PodUid, &Arc<ObservedPod>)| {
            let runs = pod.containers.iter().any(|it| it.phase == ContainerPhase::Running);
            !runs || self.pods.contains_key(uid)
        };
        let lost = self.shared.config.resources.is_lost();
        let is_open = !self.desired.is_whole() && !self.observed.pods.iter().all(is_known);
        // Of a pod about which the runtime does not answer it is not known either what it has.
        if lost && (is_open || !self.observed.silent.is_empty()) {
            return;
        }
        self.looked_up = true;
        if !lost {
            return;
        }
        let pods = self.pods.iter().filter_map(|(uid, pod)| {
            let observed = self.observed.pods.get(uid)?;
            let running = observed.containers.iter().filter(|it| it.phase == ContainerPhase::Running);
            Some((Arc::clone(&pod.desired.pod), running.map(|it| (it.id.clone(), it.name.clone())).collect()))
        });
        let (shared, pods) = (Arc::clone(&self.shared), pods.collect());
        self.tasks.spawn("resources of before", cpusets::look_up(shared, pods));
    }

    fn take_observed(&mut self, next: Arc<ObservedState>) -> Option<HashSet<PodUid>> {
        let before = std::mem::replace(&mut self.observed, next);
        self.note_ended_holders();
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
        if self.shared.config.ownership != Ownership::Everything || !self.desired.is_whole() {
            return found;
        }
        for (uid, observed) in &self.observed.pods {
            if self.pods.contains_key(uid) || self.desired.pods.contains_key(uid) || observed.is_nothing() {
                continue;
            }
            warn!(pod = %observed.full_name, pod.uid = %uid, "pod in the runtime that no source wants: it will be removed");
            let mut pod = PodState::new(Arc::new(orphan(observed)), PodMemory::new(now));
            pod.orphan = true;
            self.shared.config.counters.orphans_found.add();
            pod.let_go(now);
            self.pods.insert(uid.clone(), pod);
            found.push(uid.clone());
        }
        found
    }

    fn take_report(&mut self, report: Report) -> Option<PodUid> {
        match report {
            Report::Mark(reached) => {
                reached.send(()).ok();
                None
            }
            Report::Fact(uid, fact) => {
                let pod = self.pods.get_mut(&uid)?;
                if let Fact::DevicesRefused { rejection } = &fact {
                    pod.refuse(rejection, Timestamp::now());
                    self.shared.config.counters.rejections.of([rejection_label(&rejection.reason)]).add();
                    let Rejection { reason, message } = rejection.clone();
                    self.shared.event(&pod.desired, None, EventKind::Warning, reason, message);
                }
                pod.note(fact, self.shared.config.max_restart_period);
                // A back-off that a fact brings is told of here: by the next look it will have been published.
                self.shared.tell_backoffs(pod);
                pod.report();
                if !pod.orphan {
                    self.shared.records.keep(&pod.desired, &pod.memory);
                }
                None
            }
            Report::Done { uid, end, made } => {
                let pod = self.pods.get_mut(&uid)?;
                pod.worker = None;
                if end == JobEnd::Refreshed {
                    return Some(uid);
                }
                pod.acted_at = Some(Instant::now());
                pod.wake_at = None;
                match end {
                    JobEnd::Done | JobEnd::Refreshed => pod.failures = 0,
                    JobEnd::AtRest => {
                        pod.failures = 0;
                        // One whose rejection was forgotten meanwhile waits to be judged.
                        if pod.stage != PodStage::Waiting {
                            pod.stage = PodStage::Terminated;
                        }
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
                self.shared.wish(wish);
                if end == JobEnd::AtRest {
                    // What it held somebody may have been refused.
                    self.pods.values_mut().for_each(|pod| pod.refused_until = None);
                    self.offer_room();
                }
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
                self.shared.wish(wish);
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
            self.take_report(Report::Done { uid: uid.clone(), end: JobEnd::Failed, made: None });
            // In case the wish for a reading found no room.
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.wake_at = Some(Timestamp::now());
            }
        }
    }

    /// Pods that have not been taken up yet, or may be after all.
    fn waiting(&self) -> Vec<PodUid> {
        let waiting = self.pods.iter().filter(|(_, pod)| pod.stage == PodStage::Waiting || pod.look_again);
        waiting.map(|(uid, _)| uid.clone()).collect()
    }

    /// Looks at pods, first come, first served: who gets the last room must not depend on chance.
    fn consider_all(&mut self, mut uids: Vec<PodUid>) {
        uids.sort_by_cached_key(|uid| {
            self.pods.get(uid).map(|pod| (pod.memory.start_time, pod.desired.full_name.clone()))
        });
        uids.iter().for_each(|uid| self.consider(uid));
    }

    /// Looks at one pod and sets a worker to what is to be done.
    fn consider(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        // Before its source has delivered, it is acted upon only if some source wants it.
        if !self.desired.pods.contains_key(uid) && self.desired.awaits(pod.desired.source) {
            pod.wake_at = None;
            return;
        }
        if pod.worker.is_some() {
            return;
        }
        let unread = self.observed.silent.contains_key(uid)
            || pod.acted_at.is_some_and(|acted| self.observed.read_at(uid).is_none_or(|read| read < acted));
        if !self.observed.runtime.reachable || unread {
            // All pods are looked at when the runtime answers again. A reading that does not come is wished for again.
            // One about which the runtime never answers is not asked for again and again: the relist does that in its time.
            let answers = self.observed.runtime.reachable && !self.observed.silent.contains_key(uid);
            self.wait_for_reading(uid, answers);
            return;
        }
        if pod.refused_until.is_some_and(|until| until <= Timestamp::now()) {
            pod.refused_until = None;
            pod.look_again = pod.may_be_judged_anew();
        }
        if pod.look_again {
            self.look_again(uid);
        }
        let Some(pod) = self.pods.get(uid) else { return };
        let name_taken = pod.stage == PodStage::Waiting
            && self.pods.iter().any(|(other_uid, other)| {
                other_uid != uid
                    && other.desired.full_name == pod.desired.full_name
                    && other.stage != PodStage::Waiting
                    && other.is_going()
            });
        if pod.is_unjudged() && !name_taken && !self.judge(uid) {
            return;
        }
        let observed = self.observed.pods.get(uid).filter(|pod| !pod.is_nothing()).cloned();
        let probes = self.probes.pods.get(uid).cloned().unwrap_or_default();
        let now = Timestamp::now();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        // Whoever needs to be woken says so in the decision.
        pod.wake_at = None;
        // Zero would be a look without an end.
        let next_sync = jiff::SignedDuration::try_from(self.shared.config.sync_frequency.max(SHORTEST_SYNC))
            .ok()
            .and_then(|period| now.checked_add(period).ok());
        let (finished_before, stopping_before) = (pod.memory.finished, pod.memory.stopping_since);
        let decision = pod.decide(observed.as_deref(), &probes, name_taken, now);
        pod.trace_running(observed.as_deref());
        if pod.memory.finished != finished_before {
            self.shared.records.keep(&pod.desired, &pod.memory);
            if let Some(failure) = &pod.memory.failure {
                self.shared.tell_pod_failed(&pod.desired, failure);
            }
        }
        if pod.memory.stopping_since != stopping_before && !pod.orphan {
            self.shared.records.keep(&pod.desired, &pod.memory);
        }
        let mut shorten = None;
        let job = match decision {
            Decision::Rest => {
                // Back-offs that began since are told of once, not at every look.
                self.shared.tell_backoffs(pod);
                if pod.refresh_due(observed.as_deref(), now) {
                    Job::Refresh
                } else {
                    if pod.stage == PodStage::Terminated {
                        pod.wake_at = pod.refused_until;
                    }
                    if pod.stage == PodStage::Syncing {
                        pod.wake_at = [pod.wake_at, pod.refresh_at.filter(|at| *at > now)]
                            .into_iter()
                            .flatten()
                            .min()
                            .or(next_sync);
                    }
                    return;
                }
            }
            Decision::Settle => Job::Settle,
            Decision::Remove => Job::Remove,
            Decision::Stop { grace_seconds, spent } => {
                let (sender, grace) = Grace::adjustable(grace_seconds, spent);
                shorten = Some(sender);
                Job::Stop { grace }
            }
            Decision::Sync(steps) => Job::Sync(steps),
        };
        let sync = matches!(job, Job::Sync(_) | Job::Refresh);
        if sync {
            let wait = refresh_wait(&pod.desired.uid, self.shared.config.sync_frequency);
            let wait = jiff::SignedDuration::try_from(wait).ok();
            pod.refresh_at = wait.and_then(|wait| now.checked_add(wait).ok());
        }
        let is_first = pod.fresh_since.is_some();
        if let Some(since) = pod.fresh_since.take() {
            self.shared.config.counters.worker_starts.observe(since.elapsed());
        }
        let cancel = Cancel::new(self.tasks.shutdown());
        let keeps = !pod.orphan && !matches!(job, Job::Refresh);
        let record = keeps.then(|| PodRecord::new(&pod.desired, &pod.memory));
        let order = worker::Order {
            desired: Arc::clone(&pod.desired),
            observed,
            objects: Arc::clone(&self.desired.objects),
            node: self.desired.node.clone(),
            runtime: Arc::clone(&self.observed.runtime),
            record,
            pre_stops: pod.memory.pre_stops.clone(),
            had_pull_trouble: !pod.memory.pulls.is_empty(),
            pulls_that_wait: Mutex::new(pod.memory.pulls_that_wait(now)),
            volume_failures: pod.volume_failures,
            had_volume_trouble: pod.volume_failures > 0
                || pod.memory.holds.values().any(|hold| matches!(hold.cause, HoldCause::Volumes(_))),
            verdicts: Arc::clone(&self.desired.verdicts),
            trace: worker::span(&self.shared.config.tracer, pod, &job, is_first),
            job,
            cancel: cancel.clone(),
            log: worker::MadeLog::default(),
        };
        let name = format!("pod {}", pod.desired.full_name);
        let handle = self.tasks.spawn(name, worker::run(Arc::clone(&self.shared), order));
        pod.wake_at = None;
        pod.retry_at = None;
        pod.worker = Some(Worker { handle, cancel, sync, shorten, silent: false });
    }

    /// Publishes what differs, and lets go of pods of which nothing is left.
    fn publish(&mut self) {
        let gone: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, pod)| {
                pod.worker.is_none()
                    && pod.stage == PodStage::Terminated
                    && pod.is_to_vanish()
                    && self.observed.pods.get(*uid).is_none_or(|observed| observed.is_nothing())
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.removed(&uid);
        }
        let orphans = self.pods.values().filter(|pod| pod.orphan).count();
        self.shared.config.counters.orphans_going.set(u64::try_from(orphans).unwrap_or(u64::MAX));
        let current = self.sender.borrow().pods.clone();
        let generation = self.sender.borrow().generation;
        let synced = self.desired.synced;
        let mut differs = generation == 0
            || self.sender.borrow().synced != synced
            || current.len() != self.pods.len() - orphans;
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
        self.shared.config.counters.pull_times.take(uid);
        self.shared.records.forget(uid);
        let now = Timestamp::now();
        if let Some(wanted) = self.desired.pods.get(uid) {
            // The same pod came back while it was going.
            let mut pod = PodState::new(Arc::clone(wanted), PodMemory::new(now));
            pod.fresh_since = Some(Instant::now());
            self.shared.count_containers(&pod);
            let kind = if wanted.source.is_static() { "true" } else { "" };
            self.shared.config.counters.restarted_pods.of([kind]).add();
            pod.trace_start(&self.shared.config.tracer);
            self.shared.obey_wish(&mut pod);
            self.shared.records.keep(wanted, &pod.memory);
            self.pods.insert(uid.clone(), pod);
        }
        self.offer_room();
        self.consider_all(self.waiting());
    }
}

/// What is known of a pod that is new to us: the API server may know how an earlier kubelet ended it.
fn first_memory(wanted: &DesiredPod, begun: Timestamp) -> PodMemory {
    let Some(remote) = &wanted.remote else { return PodMemory::new(begun) };
    let mut memory = PodMemory::new(remote.start_time.unwrap_or(begun));
    if remote.finished.is_some() {
        memory.finished = remote.finished;
        memory.failure.clone_from(&remote.failure);
        memory.admission = Admission::Admitted;
    }
    memory
}

/// A pod of which only the runtime knows: enough of it to stop it.
fn orphan(observed: &ObservedPod) -> DesiredPod {
    let mut names: Vec<_> = observed.containers.iter().map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let containers = names.into_iter().map(|name| {
        // The hook was written down when the container was made; the newest instance has the newest one.
        let hook = observed.newest(name).and_then(|container| container.pre_stop.as_deref());
        let lifecycle = hook
            .and_then(|json| serde_json::from_str(json).ok())
            .map(|pre_stop| Lifecycle { pre_stop: Some(pre_stop), ..Lifecycle::default() });
        Container { name: name.to_owned(), lifecycle, ..Container::default() }
    });
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(observed.full_name.name.to_string()),
            namespace: Some(observed.full_name.namespace.to_string()),
            uid: Some(observed.uid.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: containers.collect(),
            // As upstream ends what no source knows.
            termination_grace_period_seconds: Some(1),
            ..PodSpec::default()
        }),
        status: None,
    };
    DesiredPod {
        uid: observed.uid.clone(),
        full_name: observed.full_name.clone(),
        pod: Arc::new(pod),
        source: PodSource::Api,
        origin: "".into(),
        terminate: None,
        remote: None,
    }
}

mod door;
#[cfg(test)]
mod tests;
