//! Probes: asks containers how they are, and publishes what that shows as [`ProbeResults`].
//!
//! One task for all of them. It knows when each probe is due (a heap of times, on a coarse grid so that many probes share
//! a wake-up), makes the attempts within itself (each ends at its time limit; commands also wait for one of a few slots, of which a
//! pod can have only some, and its first without regard to those of others),
//! and turns answers into verdicts by the rules of `lifecycle::probe`. A probe that has nothing to ask has no time in
//! the heap: nobody wakes for it.
//!
//! In: what reconcile says of each pod, and what the runtime shows. Out: [`ProbeResults`] by `watch`, events (`Unhealthy`,
//! `ProbeWarning`), counters. Verdicts and counts are kept on disk by container ID, so that a restart of mainstay changes
//! none of them. It stops nobody: that a container must be restarted is for reconcile to conclude.

mod prober;
mod record;
mod round;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use mainstay_cri::Cri;
use mainstay_lifecycle::{Recorded, probes_of};
use mainstay_probe::Answer;
use mainstay_task::TaskGroup;
use mainstay_types::{
    ContainerKind, Event, EventKind, EventSink, EventTarget, ObservedPod, ObservedState, Outcomes, PodExt,
    PodOutcome, PodProbes, PodUid, ProbeMetrics, ProbeResults, Verdict, in_node_order,
};
use tokio::sync::watch;
use tracing::debug;

use prober::{Key, Prober};
use record::{PodRecord, ProbeFiles};
use round::{ExecSlots, Round, RoundEnd};

/// Probes are due on multiples of this, so that many share a wake-up.
const GRID: Duration = Duration::from_millis(20);
/// Longest text of an event, in characters.
const MAX_EVENT_CHARS: usize = 1024;
/// Counts that changed no verdict are written at most this often.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// What probing needs.
#[derive(Debug)]
pub struct ProbesConfig {
    /// The runtime, for commands.
    pub cri: Cri,
    /// Where to tell of failures.
    pub events: EventSink,
    /// The node's addresses, primary first: pods on the host's network are asked there.
    pub addresses: watch::Receiver<Arc<[String]>>,
    /// Where verdicts are kept (`<root>/mainstay/probes`).
    pub state_dir: PathBuf,
    /// Where to count.
    pub metrics: ProbeMetrics,
    /// What the pods' statuses said at the end of mainstay's last life, for those whose own record is lost.
    pub shown: HashMap<PodUid, PodProbes>,
}

/// The one writer's end of the results.
#[derive(Debug)]
pub struct ProbesWriter {
    sender: watch::Sender<ProbeResults>,
}

/// The two ends. Reconcile reads the results and reports what probing needs to know, so neither can be made first.
#[must_use]
pub fn channel() -> (ProbesWriter, watch::Receiver<ProbeResults>) {
    let (sender, results) = watch::channel(ProbeResults::default());
    (ProbesWriter { sender }, results)
}

/// Starts probing. Problems with stored verdicts are returned as sentences for the node's events.
pub fn start(
    mut config: ProbesConfig,
    outcomes: watch::Receiver<Outcomes>,
    observed: watch::Receiver<Arc<ObservedState>>,
    writer: ProbesWriter,
    tasks: &TaskGroup,
) -> Vec<String> {
    let (files, mut restored, problems) = ProbeFiles::open(&config.state_dir, tasks);
    for (uid, shown) in std::mem::take(&mut config.shown) {
        restored.entry(uid).or_default().fill_in(&shown);
    }
    let published = restored.iter().map(|(uid, record)| (uid.clone(), Arc::new(record.verdicts()))).collect();
    let actor = Actor {
        config,
        sender: writer.sender,
        files,
        restored,
        pods: HashMap::new(),
        due: BinaryHeap::new(),
        rounds: FuturesUnordered::new(),
        exec_slots: ExecSlots::of_node(),
        begun: Instant::now(),
        begun_at: Timestamp::now(),
        published,
        changed: true,
        unwritten: HashSet::new(),
        written_at: Instant::now(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("probes", async move {
        shutdown.run_until_signalled(Box::pin(actor.run(outcomes, observed))).await;
    });
    problems
}

/// A pod with probes, and what was last known of it.
struct ProbedPod {
    outcome: Arc<PodOutcome>,
    observed: Option<Arc<ObservedPod>>,
    probers: Vec<Prober>,
    /// Its part of the node's slots, which it keeps as long as it is known.
    exec_slots: ExecSlots,
}

struct Actor {
    config: ProbesConfig,
    sender: watch::Sender<ProbeResults>,
    files: ProbeFiles,
    /// What was on disk at the start, for instances that are still there.
    restored: HashMap<PodUid, PodRecord>,
    pods: HashMap<PodUid, ProbedPod>,
    /// When somebody is due. An entry whose prober has another time by now is stale, and passed over.
    due: BinaryHeap<Reverse<(Instant, Key)>>,
    rounds: FuturesUnordered<BoxFuture<'static, RoundEnd>>,
    exec_slots: ExecSlots,
    begun: Instant,
    begun_at: Timestamp,
    published: HashMap<PodUid, Arc<PodProbes>>,
    changed: bool,
    /// Pods whose counts differ from what is on disk.
    unwritten: HashSet<PodUid>,
    written_at: Instant,
}

impl Actor {
    async fn run(
        mut self,
        mut outcomes: watch::Receiver<Outcomes>,
        mut observed: watch::Receiver<Arc<ObservedState>>,
    ) {
        outcomes.mark_changed();
        let mut addresses = self.config.addresses.clone();
        loop {
            self.publish();
            let next = self.due.peek().map(|Reverse((at, _))| tokio::time::Instant::from_std(*at));
            // Every branch is cancel safe: watch, sleep, and a stream polled by reference.
            tokio::select! {
                changed = outcomes.changed() => {
                    if changed.is_err() { return; }
                    let outcomes = outcomes.borrow_and_update().clone();
                    let observed = observed.borrow().clone();
                    self.look(&outcomes, &observed);
                }
                changed = observed.changed() => {
                    if changed.is_err() { return; }
                    let outcomes = outcomes.borrow().clone();
                    let observed = observed.borrow_and_update().clone();
                    self.look(&outcomes, &observed);
                }
                // Its end is that of the agent; whoever is last keeps what was known.
                Ok(()) = addresses.changed() => self.follow_addresses(),
                Some(end) = self.rounds.next() => self.take(end),
                () = tokio::time::sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {
                    self.ask_due();
                }
            }
        }
    }

    /// Takes over what is known of all pods now.
    fn look(&mut self, outcomes: &Outcomes, observed: &ObservedState) {
        let now = Instant::now();
        for (uid, outcome) in outcomes.pods.iter() {
            let seen = observed.pods.get(uid);
            let known = self.pods.get(uid);
            let same = known.is_some_and(|pod| {
                Arc::ptr_eq(&pod.outcome, outcome)
                    && pod.observed.as_ref().map(Arc::as_ptr) == seen.map(Arc::as_ptr)
            });
            if same || (known.is_none() && !has_probes(outcome)) {
                continue;
            }
            self.renew(uid, outcome, seen, now);
        }
        let gone: Vec<PodUid> =
            self.pods.keys().filter(|uid| !outcomes.pods.contains_key(*uid)).cloned().collect();
        for uid in gone {
            self.forget(&uid);
        }
        if outcomes.synced {
            let stale: Vec<PodUid> =
                self.published.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().collect();
            for uid in stale {
                self.forget(&uid);
            }
        }
    }

    /// The node has other addresses: pods on its network are asked there from now on.
    fn follow_addresses(&mut self) {
        let now = Instant::now();
        let on_host = self.pods.iter().filter(|(_, pod)| pod.outcome.desired.pod.host_network());
        let pods: Vec<_> =
            on_host.map(|(uid, pod)| (uid.clone(), Arc::clone(&pod.outcome), pod.observed.clone())).collect();
        for (uid, outcome, observed) in pods {
            self.renew(&uid, &outcome, observed.as_ref(), now);
        }
    }

    fn forget(&mut self, uid: &PodUid) {
        for prober in self.pods.remove(uid).into_iter().flat_map(|pod| pod.probers) {
            self.config.metrics.remove(&prober.labels);
        }
        self.restored.remove(uid);
        self.unwritten.remove(uid);
        self.files.forget(uid);
        self.changed |= self.published.remove(uid).is_some();
    }

    /// One pod was changed, or what is seen of it.
    fn renew(
        &mut self,
        uid: &PodUid,
        outcome: &Arc<PodOutcome>,
        seen: Option<&Arc<ObservedPod>>,
        now: Instant,
    ) {
        let known = self.pods.remove(uid);
        // Edited under the same UID: the containers may go on, but are asked otherwise.
        let is_edited =
            known.as_ref().is_some_and(|known| !Arc::ptr_eq(&known.outcome.desired, &outcome.desired));
        let (mut before, exec_slots) = match known {
            Some(known) => (known.probers, known.exec_slots),
            None => (Vec::new(), self.exec_slots.of_pod()),
        };
        let mut probers = Vec::with_capacity(before.len());
        let pod = &outcome.desired.pod;
        let addresses = Arc::clone(&self.config.addresses.borrow());
        let ip = pod_ip(outcome, seen.map(AsRef::as_ref), &addresses);
        for (_, container) in pod.all_containers().filter(|(kind, _)| is_probed(*kind)) {
            for (rules, probe) in probes_of(container) {
                let same = |prober: &Prober| prober.key.is(&container.name, rules.kind);
                let mut prober = match before.iter().position(same) {
                    Some(position) => before.swap_remove(position),
                    None => Prober::new(
                        outcome,
                        &container.name,
                        &rules,
                        &self.config.metrics,
                        self.base(&rules.period, now),
                    ),
                };
                prober.rules = rules;
                if is_edited {
                    prober.ask_anew();
                }
                let instance = seen.and_then(|seen| seen.newest(&container.name));
                let restored = |id: &_| {
                    self.restored.get(uid).and_then(|record| record.state(id, rules.kind)).unwrap_or_default()
                };
                prober.see((container, probe), instance, ip.as_deref(), self.begun_at, restored);
                probers.push(prober);
            }
        }
        for gone in before {
            self.config.metrics.remove(&gone.labels);
        }
        self.pods.insert(
            uid.clone(),
            ProbedPod { outcome: Arc::clone(outcome), observed: seen.cloned(), probers, exec_slots },
        );
        self.schedule(uid, now);
        self.note_verdicts(uid);
    }

    /// From when on a new probe's turns are counted. Shortly after the start all pods come at once: they are spread.
    fn base(&self, period: &Duration, now: Instant) -> Instant {
        let young = now.duration_since(self.begun) < *period;
        on_grid(self.begun, if young { now + prober::random_part(*period) } else { now })
    }

    /// Gives each probe of a pod that has something to ask its time, and takes it from those that do not.
    fn schedule(&mut self, uid: &PodUid, now: Instant) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let ending = prober::is_ending(&pod.outcome);
        let starts: Vec<bool> =
            pod.probers.iter().map(|prober| prober.has_started(&pod.probers, &pod.outcome)).collect();
        for (prober, started) in pod.probers.iter_mut().zip(starts) {
            prober::keep_counted(prober, ending, &self.config.metrics);
            prober.situate(started, ending);
            if let Some(at) = prober.replan(self.begun, now) {
                self.due.push(Reverse((at, prober.key.clone())));
            }
        }
    }

    /// Begins a round for everybody whose time has come.
    fn ask_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, _))) = self.due.peek()
            && *at <= now
        {
            let Some(Reverse((at, key))) = self.due.pop() else { return };
            let Some(pod) = self.pods.get_mut(&key.uid) else { continue };
            let Some(prober) = pod.probers.iter_mut().find(|prober| prober.key == key) else { continue };
            let Some((id, target)) = prober.begin(at) else { continue };
            let round = Round {
                key,
                instance: id,
                target,
                rules: prober.rules,
                cri: self.config.cri.clone(),
                exec_slots: pod.exec_slots.clone(),
                outcome: Arc::clone(&pod.outcome),
                events: self.config.events.clone(),
            };
            self.rounds.push(Box::pin(round.run()));
        }
    }

    /// A round has ended.
    fn take(&mut self, end: RoundEnd) {
        let now = Instant::now();
        let uid = end.key.uid.clone();
        let Some(pod) = self.pods.get_mut(&uid) else { return };
        let Some(prober) = pod.probers.iter_mut().find(|prober| prober.key == end.key) else { return };
        prober.in_flight = false;
        let mut recorded = Recorded::Nothing;
        // What was asked of an instance that is gone says nothing about the next.
        if prober.instance.as_ref().is_some_and(|instance| instance.id == end.instance) {
            let kind = prober.rules.kind;
            let (answer, event) = match end.answer {
                Ok(Answer::Success) => (Some(Verdict::Passed), None),
                Ok(Answer::Warning(text)) => (
                    Some(Verdict::Passed),
                    Some(("ProbeWarning", format!("{} probe warning: {text}", kind.as_str()))),
                ),
                Ok(Answer::Failure(text)) => (
                    Some(Verdict::Failed),
                    Some(("Unhealthy", format!("{} probe failed: {text}", kind.as_str()))),
                ),
                Err(text) => {
                    let text =
                        format!("{} probe errored and resulted in unknown state: {text}", kind.as_str());
                    (None, Some(("Unhealthy", text)))
                }
            };
            match answer {
                Some(Verdict::Passed) => prober.series.succeeded(end.took),
                Some(Verdict::Failed) => prober.series.failed(),
                None => {}
            }
            if let Some(answer) = answer {
                recorded = prober.state.record(&prober.rules, answer);
            }
            if let Some((reason, message)) = event {
                debug!(pod = %pod.outcome.desired.full_name, container = %prober.key.container, reason, message);
                tell(&self.config.events, &pod.outcome, &prober.key.container, reason, message);
            }
        }
        if recorded == Recorded::NewVerdict {
            // Others may have waited for it.
            self.note_verdicts(&uid);
            self.write(&uid);
            self.schedule(&uid, now);
            return;
        }
        if let Some(at) = prober.replan(self.begun, now) {
            self.due.push(Reverse((at, prober.key.clone())));
        }
        if recorded == Recorded::Counted {
            self.unwritten.insert(uid);
        }
    }

    /// Puts a pod's verdicts among what is published, if they differ.
    fn note_verdicts(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get(uid) else { return };
        let verdicts = PodRecord::of(&pod.probers).verdicts();
        if self.published.get(uid).is_none_or(|published| **published != verdicts) {
            self.published.insert(uid.clone(), Arc::new(verdicts));
            self.changed = true;
        }
    }

    fn write(&mut self, uid: &PodUid) {
        self.unwritten.remove(uid);
        if let Some(pod) = self.pods.get(uid) {
            self.files.store(uid, PodRecord::of(&pod.probers));
        }
    }

    fn publish(&mut self) {
        if !self.unwritten.is_empty() && self.written_at.elapsed() >= FLUSH_PERIOD {
            for uid in std::mem::take(&mut self.unwritten) {
                self.write(&uid);
            }
            self.written_at = Instant::now();
        }
        if std::mem::take(&mut self.changed) {
            let pods = Arc::new(self.published.clone());
            self.sender
                .send_modify(|results| *results = ProbeResults { generation: results.generation + 1, pods });
        }
    }
}

fn has_probes(outcome: &PodOutcome) -> bool {
    let mut containers = outcome.desired.pod.all_containers().filter(|(kind, _)| is_probed(*kind));
    containers.any(|(_, container)| probes_of(container).next().is_some())
}

/// Plain init containers have no probes, ephemeral ones neither.
fn is_probed(kind: ContainerKind) -> bool {
    matches!(kind, ContainerKind::Regular | ContainerKind::Sidecar)
}

/// Where a pod is asked.
fn pod_ip(outcome: &PodOutcome, seen: Option<&ObservedPod>, host_ips: &[String]) -> Option<String> {
    if outcome.desired.pod.host_network() {
        return Some(host_ips.first().map_or_else(|| "127.0.0.1".to_owned(), String::clone));
    }
    let sandbox = seen.and_then(|seen| seen.sandboxes.first())?;
    in_node_order(&sandbox.ips, host_ips).into_iter().next()
}

/// The next multiple of [`GRID`] after the start.
fn on_grid(begun: Instant, at: Instant) -> Instant {
    let grid = GRID.as_nanos();
    let steps = at.duration_since(begun).as_nanos().div_ceil(grid);
    u64::try_from(steps * grid).map_or(at, |nanos| begun + Duration::from_nanos(nanos))
}

fn tell(
    events: &EventSink,
    outcome: &PodOutcome,
    container: &str,
    reason: &'static str,
    mut message: String,
) {
    if let Some((cut, _)) = message.char_indices().nth(MAX_EVENT_CHARS) {
        message.truncate(cut);
    }
    let kind = outcome.desired.pod.container(container).map_or(ContainerKind::Regular, |(kind, _)| kind);
    let target = EventTarget::Pod {
        uid: outcome.desired.uid.clone(),
        full_name: outcome.desired.full_name.clone(),
        field_path: Some(kind.field_path(container)),
    };
    events.send(Event {
        target,
        kind: EventKind::Warning,
        reason: reason.into(),
        message,
        time: Timestamp::now(),
    });
}
