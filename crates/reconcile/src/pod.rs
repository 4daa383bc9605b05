//! One pod as the actor knows it, and what it decides about it. No I/O in here: a decision is data.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use mainstay_lifecycle::{
    Admission, BackoffEntry, BackoffLimits, Edit, Hold, HoldCause, Plan, PlanInput, PodMemory, Step,
    crash_key, edit, plan,
};
use mainstay_podspec::{references_differ, volumes::has_live_volumes};
use mainstay_policy::PodUse;
use mainstay_task::{Backoff, TaskHandle};
use mainstay_trace::{Kind, Span, Tracer};
use mainstay_types::{
    ContainerName, ContainerPhase, ContainerReason, Deletion, DesiredPod, Objects, ObservedPod, PodExt,
    PodFailure, PodOutcome, PodProbes, PodStage, PodUid, TerminalPhase,
};
use tokio::sync::watch;

use crate::{
    admission, resources,
    worker::{Cancel, Fact, describe},
};

/// Before volumes are tried again: upstream's 500 ms to 2 m 2 s.
const MOUNT_RETRY: Backoff =
    Backoff::doubling(std::time::Duration::from_millis(500), std::time::Duration::from_secs(122));

/// A pod that reconcile is responsible for.
#[derive(Debug)]
pub(crate) struct PodState {
    pub(crate) desired: Arc<DesiredPod>,
    pub(crate) memory: PodMemory,
    pub(crate) stage: PodStage,
    /// No source wants it and nobody ever told us of it: found in the runtime only. Not shown to clients.
    pub(crate) orphan: bool,
    pub(crate) worker: Option<Worker>,
    /// When the last action ended: older readings of the runtime say nothing.
    pub(crate) acted_at: Option<Instant>,
    /// When to look again.
    pub(crate) wake_at: Option<Timestamp>,
    /// Stopping or cleaning up is not tried again before.
    pub(crate) retry_at: Option<Timestamp>,
    pub(crate) reasons: BTreeMap<ContainerName, ContainerReason>,
    /// It found no room, and is turned away if there is none then either.
    pub(crate) room_by: Option<Timestamp>,
    /// It may not be here by what is known of the node: the question whether that is still so.
    pub(crate) node_question: Option<u64>,
    /// It was turned away, and the answer may be another one by now.
    pub(crate) look_again: bool,
    /// A device plugin refused it; it is not looked at again before.
    pub(crate) refused_until: Option<Timestamp>,
    /// So often.
    pub(crate) refusals: u32,
    /// What it takes of the node.
    pub(crate) wants: Arc<PodUse>,
    /// The outcome as published last.
    pub(crate) outcome: Option<Arc<PodOutcome>>,
    /// Failures of stopping or cleaning up in a row.
    pub(crate) failures: u32,
    /// Failures of setting up volumes in a row.
    pub(crate) volume_failures: u32,
    /// Its source wants it to end and still has it: its remains stay until it lets go.
    pub(crate) held: bool,
    /// When the contents of volumes that follow a source are looked at again; `None` is at once.
    pub(crate) refresh_at: Option<Timestamp>,
    /// Its pod was made of its manifest as manifests are read now, so that a difference is an edit.
    pub(crate) comparable: bool,
    /// When it was first heard of, until its first work has begun.
    pub(crate) fresh_since: Option<Instant>,
    /// From when it was first heard of until it runs, for those who trace it.
    pub(crate) start: Span,
}

/// The task that acts for a pod right now.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) handle: TaskHandle,
    pub(crate) cancel: Cancel,
    /// It keeps the pod running, so it is cut short when the pod is to end.
    pub(crate) sync: bool,
    /// It stops the pod, and can be told to give less grace.
    pub(crate) shorten: Option<watch::Sender<i64>>,
    /// Its task was found ended without a report; found so again, it has died.
    pub(crate) silent: bool,
}

/// What the actor should do for a pod now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing until something changes or its time comes.
    Rest,
    /// Take these steps.
    Sync(Vec<Step>),
    /// Stop whatever runs, with so many seconds of grace.
    Stop {
        /// Grace for each container.
        grace_seconds: i64,
        /// What it has had of that already, before mainstay was restarted or an earlier try failed.
        spent: Duration,
    },
    /// It has stopped and stays: give back what a pod at rest does not need.
    Settle,
    /// It has stopped and nobody wants it: remove every trace.
    Remove,
}

impl PodState {
    pub(crate) fn new(desired: Arc<DesiredPod>, memory: PodMemory) -> Self {
        // One that was already going when mainstay ended goes on going.
        let stage = if memory.deletion.is_some() { PodStage::Terminating } else { PodStage::Waiting };
        Self {
            wants: admission::wants(&desired.pod),
            room_by: None,
            node_question: None,
            look_again: false,
            refused_until: None,
            refusals: 0,
            desired,
            memory,
            stage,
            orphan: false,
            worker: None,
            acted_at: None,
            wake_at: None,
            retry_at: None,
            reasons: BTreeMap::new(),
            outcome: None,
            failures: 0,
            volume_failures: 0,
            held: false,
            refresh_at: None,
            comparable: true,
            fresh_since: None,
            start: Span::default(),
        }
    }

    /// From here on it is traced how long it takes until it runs.
    pub(crate) fn trace_start(&mut self, tracer: &Tracer) {
        self.start = tracer.below(None, "startPod", Kind::Internal);
        describe(&mut self.start, &self.desired);
    }

    /// Its start is over when all its containers have been started, or it is.
    pub(crate) fn trace_running(&mut self, observed: Option<&ObservedPod>) {
        if self.start.context().is_none() {
            return;
        }
        let containers = &self.desired.pod.spec_ref().containers;
        let runs = observed.is_some_and(|observed| {
            let started = |name: &str| {
                observed.newest(name).is_some_and(|newest| newest.phase != ContainerPhase::Created)
            };
            containers.iter().all(|container| started(&container.name))
        });
        let is_over = self.memory.finished.is_some() || self.memory.deletion.is_some();
        if is_over && !runs {
            let failure = self.memory.failure.as_ref().map(|failure| failure.reason.clone());
            self.start.fail(failure.unwrap_or_else(|| "the pod has ended before it ran".into()));
        }
        if runs || is_over {
            self.start = Span::default();
        }
    }

    /// The clock was set back: whatever it waits for, it is looked at now.
    pub(crate) fn wait_no_longer(&mut self, now: Timestamp) {
        self.wake_at = Some(now);
        self.retry_at = None;
        self.refresh_at = None;
        self.room_by = None;
        if self.refused_until.is_some() {
            self.refused_until = Some(now);
        }
    }

    /// Whether `wanted` is another pod under the same UID, so that this one must go first.
    pub(crate) fn is_replaced_by(&self, wanted: &DesiredPod) -> bool {
        self.comparable
            && wanted.source.is_static()
            && !self.was_turned_away()
            && edit(&self.desired.pod, &wanted.pod, self.memory.finished.is_some()) == Edit::Replace
    }

    /// Its source has let go of it. Whether that was news.
    pub(crate) fn let_go(&mut self, now: Timestamp) -> bool {
        if self.memory.deletion.is_some() {
            return false;
        }
        let grace_seconds = self.desired.pod.grace_seconds().max(1);
        self.memory.deletion = Some(Deletion { since: now, grace_seconds });
        self.end();
        self.shorten_grace();
        true
    }

    /// Its source wants it to end while it still has it: an API pod with a deletion timestamp. Whether that was news, or
    /// is to be faster than was known.
    pub(crate) fn heed_deletion(&mut self) -> bool {
        let pod = &self.desired.pod;
        let Some(due) = pod.metadata.deletion_timestamp.as_ref().filter(|_| !self.desired.source.is_static())
        else {
            return false;
        };
        self.held = true;
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_else(|| pod.grace_seconds()).max(0);
        let since = due.0.checked_sub(jiff::SignedDuration::from_secs(grace)).unwrap_or(due.0);
        let before = self.memory.deletion;
        if before.is_some_and(|known| known.grace_seconds <= grace) {
            return false;
        }
        self.memory.deletion = Some(Deletion { since, grace_seconds: grace });
        if before.is_none() {
            self.end();
        }
        self.shorten_grace();
        true
    }

    /// The API server says that it is over, by another's word: it is stopped and not run again. Whether that was news.
    pub(crate) fn heed_end(&mut self) -> bool {
        let remote = self.desired.remote.as_ref().filter(|_| self.memory.finished.is_none());
        let Some(remote) = remote.filter(|remote| remote.finished.is_some()) else { return false };
        self.memory.finished = remote.finished;
        self.memory.failure.clone_from(&remote.failure);
        self.end();
        true
    }

    /// Whether it is to go without a trace: nobody has it any more.
    pub(crate) fn is_to_vanish(&self) -> bool {
        self.memory.deletion.is_some() && !self.held
    }

    /// Its source wants it again, under the same UID, while it is going. It must go first; the actor starts it anew.
    pub(crate) fn is_going(&self) -> bool {
        self.memory.deletion.is_some()
    }

    /// ConfigMaps, Secrets or the like changed: if it was one that the pod refers to, what waited for one is tried at once. Whether
    /// anything did.
    pub(crate) fn objects_changed(&mut self, before: &Objects, now: &Objects) -> bool {
        let waits = |hold: &Hold| {
            matches!(&hold.cause, HoldCause::Failed(reason) if reason.reason == "CreateContainerConfigError")
                || matches!(hold.cause, HoldCause::Volumes(_))
        };
        if !self.memory.holds.values().any(waits) || !references_differ(&self.desired.pod, before, now) {
            return false;
        }
        self.memory.holds.retain(|_, hold| !waits(hold));
        true
    }

    /// Somebody wishes it to end although its source wants it. Whether that was news.
    pub(crate) fn obey_wish(&mut self) -> bool {
        let Some(wish) = self.desired.terminate.as_ref() else { return false };
        let grace = wish.grace.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX));
        let hurries = grace.is_some() && grace != self.memory.grace_seconds;
        self.memory.grace_seconds = grace.or(self.memory.grace_seconds);
        if self.memory.finished.is_some() {
            return hurries;
        }
        self.memory.failure = Some(PodFailure { reason: wish.reason.clone(), message: wish.message.clone() });
        self.memory.finished = Some(TerminalPhase::Failed);
        self.end();
        true
    }

    /// Gives a stop that is under way the shorter grace that is wished for by now.
    pub(crate) fn shorten_grace(&self) {
        let seconds = self.grace_seconds();
        if let Some(shorten) = self.worker.as_ref().and_then(|worker| worker.shorten.as_ref()) {
            shorten.send_if_modified(|grace| {
                let shorter = seconds < *grace;
                *grace = seconds.min(*grace);
                shorter
            });
        }
    }

    /// Forgets back-offs of containers and images that the pod no longer has.
    pub(crate) fn forget_stale(&mut self) {
        let pod = &self.desired.pod;
        let crashes: BTreeSet<String> =
            pod.all_containers().map(|(_, container)| crash_key(pod, container)).collect();
        self.memory.crashes.retain(|key, _| crashes.contains(key));
        let volumes = pod.spec_ref().volumes.iter().flatten();
        let mounted = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
        let images: BTreeSet<&str> = pod
            .all_containers()
            .filter_map(|(_, container)| container.image.as_deref())
            .chain(mounted)
            .collect();
        self.memory.pulls.retain(|image, _| images.contains(image.as_str()));
    }

    pub(crate) fn end(&mut self) {
        self.stage = PodStage::Terminating;
        self.wake_at = None;
        self.retry_at = None;
        self.failures = 0;
        self.reasons.clear();
        if let Some(worker) = self.worker.as_ref().filter(|worker| worker.sync) {
            worker.cancel.cancel();
        }
    }

    /// Decides what to do on this reading. `name_taken`: another pod of the same name has not gone yet.
    pub(crate) fn decide(
        &mut self,
        observed: Option<&ObservedPod>,
        probes: &PodProbes,
        name_taken: bool,
        now: Timestamp,
    ) -> Decision {
        self.memory.forget_ended(observed);
        if self.stage == PodStage::Waiting {
            if name_taken {
                return Decision::Rest;
            }
            self.stage = PodStage::Syncing;
        }
        if self.stage == PodStage::Syncing {
            let input = PlanInput { pod: &self.desired.pod, observed, memory: &self.memory, probes, now };
            match plan(&input) {
                Plan::Act { steps, mut reasons, wake_at } => {
                    // Why a container waits is true until another try has shown otherwise.
                    for step in &steps {
                        if let Step::Start { name, .. } = step
                            && let Some(reason) = self.reasons.remove(name)
                        {
                            reasons.insert(name.clone(), reason);
                        }
                    }
                    self.wake_at = wake_at;
                    self.reasons = reasons;
                    return if steps.is_empty() { Decision::Rest } else { Decision::Sync(steps) };
                }
                Plan::Finish { phase, failure } => {
                    self.memory.finished = Some(phase);
                    self.memory.failure = failure.or(self.memory.failure.take());
                    self.end();
                }
            }
        }
        if let Some(retry_at) = self.retry_at.filter(|at| *at > now) {
            self.wake_at = Some(retry_at);
            return Decision::Rest;
        }
        if observed.is_some_and(|o| o.any_running() || o.sandboxes.iter().any(|s| s.ready)) {
            self.stage = PodStage::Terminating;
            // Written before the clock was set back: from now on it counts again.
            if self.memory.stopping_since.is_none_or(|since| since > now) {
                self.memory.stopping_since = Some(now);
            }
            let spent = self.memory.grace_spent(now);
            return Decision::Stop { grace_seconds: self.grace_seconds(), spent };
        }
        self.memory.stopping_since = None;
        match self.stage {
            PodStage::Terminated if !self.is_to_vanish() || observed.is_none() => Decision::Rest,
            _ if self.is_to_vanish() => Decision::Remove,
            _ => Decision::Settle,
        }
    }

    fn grace_seconds(&self) -> i64 {
        // Kept on disk: a restart of mainstay gives nobody more time.
        let wish = self.memory.grace_seconds;
        let deletion = self.memory.deletion.map(|deletion| deletion.grace_seconds);
        [wish, deletion]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| self.desired.pod.grace_seconds())
            .max(1)
    }

    /// Takes note of what a worker found.
    pub(crate) fn note(&mut self, fact: Fact, max_restart_period: std::time::Duration) {
        // The next life has begun, or tries to. Not earlier: the status must see the old containers vanish under the flag.
        if matches!(
            fact,
            Fact::Started { .. }
                | Fact::Held { .. }
                | Fact::PullFailed { .. }
                | Fact::PullHeld { .. }
                | Fact::VolumesFailed { .. }
        ) {
            self.memory.restarting_all = false;
        }
        match fact {
            Fact::Held { name, hold } => {
                self.reasons.insert(name.clone(), hold.reason(hold.since));
                self.memory.holds.insert(name, hold);
            }
            Fact::Crashed { key, ended } => {
                let limits = BackoffLimits::crash(max_restart_period);
                let next = BackoffEntry::next(
                    self.memory.crashes.get(&key).copied(),
                    limits,
                    ended,
                    Timestamp::now(),
                );
                self.memory.crashes.insert(key, next);
            }
            Fact::PullFailed { name, image, at, cause } => {
                let next =
                    BackoffEntry::next(self.memory.pulls.get(&image).copied(), BackoffLimits::PULL, at, at);
                // The error is shown for a while after the first failure only; from the first retry on it is a back-off.
                let since = match self.memory.holds.get(&name) {
                    Some(Hold { since, cause: HoldCause::Pull { image: before, .. }, .. })
                        if *before == image =>
                    {
                        *since
                    }
                    _ => at,
                };
                let hold = Hold { since, until: next.ends(), cause };
                self.memory.pulls.insert(image, next);
                self.reasons.insert(name.clone(), hold.reason(at));
                self.memory.holds.insert(name, hold);
            }
            Fact::PullHeld { name, image, at, cause } => {
                // Both are tried again together, and the wait of the image grows once.
                let until = self.memory.pulls.get(&image).map_or(at, BackoffEntry::ends);
                let hold = Hold::on_pull_of_another(at, until, cause);
                self.reasons.insert(name.clone(), hold.reason(at));
                self.memory.holds.insert(name, hold);
            }
            Fact::Pulled { image } => {
                self.memory.pulls.remove(&image);
            }
            Fact::Stopping { id } => {
                self.memory.pre_stops.entry(id).or_insert_with(Timestamp::now);
            }
            Fact::Hooking { id } => {
                self.memory.hooking.insert(id);
            }
            Fact::Started { name, id } => {
                self.reasons.remove(&name);
                self.memory.holds.remove(&name);
                self.memory.hooking.remove(&id);
            }
            Fact::SandboxMade => {
                // Nobody waits for it any more.
                let hold = self.memory.holds.remove(mainstay_lifecycle::SANDBOX_HOLD);
                if let Some(Hold { cause: HoldCause::Failed(failed), .. }) = hold {
                    self.reasons.retain(|_, reason| reason.message != failed.message);
                }
            }
            Fact::AwaitsResources { reason, message } => {
                let reason = ContainerReason { reason: reason.into(), message };
                let containers = self.desired.pod.all_containers();
                self.reasons = containers
                    .map(|(_, container)| (container.name.as_str().into(), reason.clone()))
                    .collect();
            }
            Fact::ResourcesUp => {
                self.refusals = 0;
                self.reasons.retain(|_, reason| !resources::WAITS.contains(&&*reason.reason));
            }
            // The actor turns the pod away.
            Fact::DevicesRefused { .. } => {}
            Fact::RestartingAll => self.memory.restarting_all = true,
            Fact::VolumesFailed { names, reason } => self.hold_for_volumes(names, &reason),
            Fact::VolumesUp { names } => {
                // The others of the pod may still lack theirs.
                let is_up = |name: &ContainerName| {
                    names.as_ref().is_none_or(|names| {
                        names.contains(name) || name.as_str() == mainstay_lifecycle::SANDBOX_HOLD
                    })
                };
                let waits = |hold: &Hold| matches!(hold.cause, HoldCause::Volumes(_));
                self.memory.holds.retain(|name, hold| !waits(hold) || !is_up(name));
                if !self.memory.holds.values().any(waits) {
                    self.volume_failures = 0;
                }
            }
        }
    }

    /// Nothing of the pod is started before its volumes are there; the next try comes later with each failure.
    fn hold_for_volumes(&mut self, names: Vec<ContainerName>, reason: &ContainerReason) {
        self.volume_failures = self.volume_failures.saturating_add(1);
        let wait = MOUNT_RETRY.delay(self.volume_failures);
        let since = Timestamp::now();
        let until = jiff::SignedDuration::try_from(wait).ok().and_then(|wait| since.checked_add(wait).ok());
        let hold = Hold { since, until: until.unwrap_or(since), cause: HoldCause::Volumes(reason.clone()) };
        self.memory.holds.insert(mainstay_lifecycle::SANDBOX_HOLD.into(), hold.clone());
        for name in names {
            self.reasons.insert(name.clone(), reason.clone());
            self.memory.holds.insert(name, hold.clone());
        }
    }

    /// Whether the contents of its volumes should be compared with their sources now.
    pub(crate) fn refresh_due(&self, observed: Option<&ObservedPod>, now: Timestamp) -> bool {
        self.stage == PodStage::Syncing
            && has_live_volumes(&self.desired.pod)
            && observed.is_some_and(|observed| observed.ready_sandbox().is_some())
            && self.refresh_at.is_none_or(|at| at <= now)
    }

    /// The outcome to publish; the old one when nothing differs.
    pub(crate) fn report(&mut self) -> Arc<PodOutcome> {
        let same = self.outcome.as_ref().filter(|last| {
            Arc::ptr_eq(&last.desired, &self.desired)
                && last.stage == self.stage
                && last.reasons == self.reasons
                && last.finished == self.memory.finished
                && last.failure == self.memory.failure
                && last.rejected == (self.memory.admission == Admission::Rejected)
                && last.not_started.iter().eq(&self.memory.hooking)
                && last.deletion == self.memory.deletion
                && last.restarting_all == self.memory.restarting_all
        });
        if let Some(last) = same {
            return Arc::clone(last);
        }
        let outcome = Arc::new(PodOutcome {
            desired: Arc::clone(&self.desired),
            stage: self.stage,
            start_time: self.memory.start_time,
            reasons: self.reasons.clone(),
            finished: self.memory.finished,
            failure: self.memory.failure.clone(),
            rejected: self.memory.admission == Admission::Rejected,
            not_started: self.memory.hooking.iter().cloned().collect(),
            deletion: self.memory.deletion,
            restarting_all: self.memory.restarting_all,
        });
        self.outcome = Some(Arc::clone(&outcome));
        outcome
    }
}

/// How long the contents of a pod's volumes are left alone: a little less than one sync, by a part that differs from pod to
/// pod. All that were started together would otherwise be brought up to date together for ever.
pub(crate) fn refresh_wait(uid: &PodUid, sync_frequency: Duration) -> Duration {
    let print = uid.as_str().bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    sync_frequency * (1000 - print % 250) / 1000
}

#[cfg(test)]
pub(crate) mod tests;
