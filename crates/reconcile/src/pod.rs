//! One pod as the actor knows it, and what it decides about it. No I/O in here: a decision is data.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use mainstay_lifecycle::{
    BackoffEntry, BackoffLimits, Hold, HoldCause, Plan, PlanInput, PodMemory, Step, plan,
};
use mainstay_task::TaskHandle;
use mainstay_types::{
    ContainerId, ContainerName, ContainerReason, Deletion, DesiredPod, ObservedPod, PodExt, PodFailure,
    PodOutcome, PodStage, TerminalPhase,
};

use crate::worker::{Cancel, Fact};

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
    pub(crate) not_started: Vec<ContainerId>,
    /// The outcome as published last.
    pub(crate) outcome: Option<Arc<PodOutcome>>,
    /// Failures of stopping or cleaning up in a row.
    pub(crate) failures: u32,
}

/// The task that acts for a pod right now.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) handle: TaskHandle,
    pub(crate) cancel: Cancel,
    /// It keeps the pod running, so it is cut short when the pod is to end.
    pub(crate) sync: bool,
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
            desired,
            memory,
            stage,
            orphan: false,
            worker: None,
            acted_at: None,
            wake_at: None,
            retry_at: None,
            reasons: BTreeMap::new(),
            not_started: Vec::new(),
            outcome: None,
            failures: 0,
        }
    }

    /// Its source has let go of it. Whether that was news.
    pub(crate) fn let_go(&mut self, now: Timestamp) -> bool {
        if self.memory.deletion.is_some() {
            return false;
        }
        let grace_seconds = if self.orphan { 1 } else { self.desired.pod.grace_seconds().max(1) };
        self.memory.deletion = Some(Deletion { since: now, grace_seconds });
        self.end();
        true
    }

    /// Its source wants it again, under the same UID, while it is going. It must go first; the actor starts it anew.
    pub(crate) fn is_going(&self) -> bool {
        self.memory.deletion.is_some()
    }

    /// ConfigMaps or Secrets changed: what waited for one is tried at once. Whether anything did.
    pub(crate) fn objects_changed(&mut self) -> bool {
        let before = self.memory.holds.len();
        self.memory.holds.retain(|_, hold| {
            !matches!(&hold.cause, HoldCause::Failed(reason) if reason.reason == "CreateContainerConfigError")
        });
        self.memory.holds.len() != before
    }

    /// Somebody wishes it to end although its source wants it.
    pub(crate) fn obey_wish(&mut self) -> bool {
        let Some(wish) = self.desired.terminate.as_ref().filter(|_| self.memory.finished.is_none()) else {
            return false;
        };
        self.memory.failure = Some(PodFailure { reason: wish.reason.clone(), message: wish.message.clone() });
        self.memory.finished = Some(TerminalPhase::Failed);
        self.end();
        true
    }

    fn end(&mut self) {
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
        name_taken: bool,
        now: Timestamp,
    ) -> Decision {
        if self.stage == PodStage::Waiting {
            if name_taken {
                return Decision::Rest;
            }
            self.stage = PodStage::Syncing;
        }
        if self.stage == PodStage::Syncing {
            let input = PlanInput { pod: &self.desired.pod, observed, memory: &self.memory, now };
            match plan(&input) {
                Plan::Act { steps, mut reasons, wake_at } => {
                    // Why a container waits is true until another try has shown otherwise.
                    for step in &steps {
                        if let Step::Start { name, .. } = step
                            && let Some(reason) = self.reasons.remove(name)
                        {
                            reasons.entry(name.clone()).or_insert(reason);
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
            return Decision::Stop { grace_seconds: self.grace_seconds() };
        }
        match self.stage {
            PodStage::Terminated if self.memory.deletion.is_none() || observed.is_none() => Decision::Rest,
            _ if self.memory.deletion.is_some() => Decision::Remove,
            _ => Decision::Settle,
        }
    }

    fn grace_seconds(&self) -> i64 {
        let wish = self.desired.terminate.as_ref().and_then(|wish| wish.grace);
        let wish = wish.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX));
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
        if matches!(fact, Fact::Started { .. } | Fact::Held { .. } | Fact::PullFailed { .. }) {
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
                let wait = jiff::SignedDuration::try_from(next.wait()).unwrap_or(jiff::SignedDuration::ZERO);
                self.memory.pulls.insert(image, next);
                let hold = Hold { since: at, until: at.checked_add(wait).unwrap_or(at), cause };
                self.reasons.insert(name.clone(), hold.reason(at));
                self.memory.holds.insert(name, hold);
            }
            Fact::Pulled { image } => {
                self.memory.pulls.remove(&image);
            }
            Fact::Hooking { id } => self.not_started.push(id),
            Fact::Started { name, id } => {
                self.reasons.remove(&name);
                self.memory.holds.remove(&name);
                self.not_started.retain(|other| *other != id);
            }
            Fact::SandboxMade => {
                self.memory.holds.remove(mainstay_lifecycle::SANDBOX_HOLD);
            }
            Fact::RestartingAll => self.memory.restarting_all = true,
        }
    }

    /// The outcome to publish; the old one when nothing differs.
    pub(crate) fn report(&mut self) -> Arc<PodOutcome> {
        let same = self.outcome.as_ref().filter(|last| {
            Arc::ptr_eq(&last.desired, &self.desired)
                && last.stage == self.stage
                && last.reasons == self.reasons
                && last.finished == self.memory.finished
                && last.failure == self.memory.failure
                && last.not_started == self.not_started
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
            not_started: self.not_started.clone(),
            deletion: self.memory.deletion,
            restarting_all: self.memory.restarting_all,
        });
        self.outcome = Some(Arc::clone(&outcome));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::SignedDuration;
    use mainstay_lifecycle::HoldCause;
    use mainstay_types::{FullName, ObservedSandbox, PodSource};

    use super::*;

    #[test]
    fn a_reason_to_wait_stands_until_the_next_try_has_ended() {
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap();
        let full_name = FullName::new("default", "p");
        let desired = DesiredPod {
            uid: "u1".into(),
            full_name: full_name.clone(),
            pod: Arc::new(pod),
            source: PodSource::File,
            origin: "".into(),
            terminate: None,
        };
        let now = Timestamp::now();
        let sandbox = ObservedSandbox {
            id: "s0".into(),
            attempt: 0,
            ready: true,
            created_at: now,
            ips: vec!["10.0.0.1".into()],
            host_network: false,
            source: None,
        };
        let observed = ObservedPod {
            uid: "u1".into(),
            full_name,
            read_at: Instant::now(),
            sandboxes: vec![sandbox],
            containers: Vec::new(),
        };
        let mut state = PodState::new(Arc::new(desired), PodMemory::new(now));
        let period = Duration::from_secs(300);
        let decide = |state: &mut PodState, seconds| {
            let later = now + SignedDuration::from_secs(seconds);
            state.decide(Some(&observed), false, later)
        };
        let shown =
            |state: &PodState| state.reasons.values().map(|reason| reason.reason.clone()).collect::<Vec<_>>();

        assert!(matches!(decide(&mut state, 0), Decision::Sync(_)));
        let cause =
            HoldCause::Pull { image: "i".into(), reason: "ErrImagePull".into(), message: "no".into() };
        state.note(Fact::PullFailed { name: "c".into(), image: "i".into(), at: now, cause }, period);
        assert_eq!(decide(&mut state, 1), Decision::Rest);
        assert_eq!(shown(&state), ["ErrImagePull"]);
        assert!(matches!(decide(&mut state, 11), Decision::Sync(_)), "it is tried again");
        assert_eq!(shown(&state), ["ErrImagePull"], "and meanwhile nothing better is known");
        state.note(Fact::Started { name: "c".into(), id: "c1".into() }, period);
        assert!(shown(&state).is_empty());
    }
}
