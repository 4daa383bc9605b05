//! Whom the actor lets in: the verdicts of [`admission`] carried out.

use jiff::Timestamp;
use mainstay_lifecycle::Admission;
use mainstay_policy::Rejection;
use mainstay_types::{DesiredState, EventKind, PodSource, PodUid, rejection_label};
use tracing::{info, warn};

use super::Actor;
use crate::{
    admission::{self, Verdict},
    pod::PodState,
    worker::Shared,
};

/// Who finds no room is turned away if there is none after this time either.
const ROOM_DUE: jiff::SignedDuration = jiff::SignedDuration::from_millis(500);

impl Actor {
    /// A pod takes up room no longer: others that were turned away may have it.
    pub(super) fn offer_room(&mut self) {
        for pod in self.pods.values_mut() {
            pod.look_again |= pod.may_be_judged_anew();
        }
    }

    /// Looks again at a pod that was turned away. It stays what it is unless there is room for it now: who merely asks
    /// again and hears the same is not worth an event.
    pub(super) fn look_again(&mut self, uid: &PodUid) {
        self.facts.pressure = *self.shared.config.pressure.borrow();
        let Some(pod) = self.pods.get(uid) else { return };
        let node = &self.facts;
        let verdict = admission::judge(uid, pod, self.pods.iter(), &self.observed, node);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.look_again = false;
        match verdict {
            Verdict::Admitted => {
                info!(pod = %pod.desired.full_name, pod.uid = %uid, "there is room now for a pod that had none");
                pod.forget_rejection();
            }
            // Whoever is going offers its room when it has gone.
            Verdict::Later(_) => {}
            // It was turned away for good reason; who runs by now stays.
            Verdict::Preempts(..) => {}
            // One that made room for another says so until it is back.
            Verdict::Crowded(_) | Verdict::Rejected(_) if !pod.was_turned_away() => {}
            Verdict::Crowded(rejection) | Verdict::Rejected(rejection) => {
                let failure = admission::failure(&rejection);
                if pod.memory.failure.as_ref() != Some(&failure) {
                    pod.memory.failure = Some(failure);
                    self.shared.records.keep(&pod.desired, &pod.memory);
                }
            }
        }
    }

    /// Ends pods in favour of one that is critical. They are looked at with the next reading, at the latest when it is due.
    fn preempt(&mut self, victims: &[PodUid], rejection: &Rejection) {
        // Of several that are short, upstream names the first, too.
        let resource = rejection.reason.strip_prefix("OutOf").unwrap_or_default();
        for uid in victims {
            let Some(victim) = self.pods.get_mut(uid) else { continue };
            let failure = victim.make_room();
            victim.wake_at = Some(Timestamp::now());
            warn!(pod = %victim.desired.full_name, pod.uid = %uid, "pod preempted in favour of a critical one");
            self.shared.records.keep(&victim.desired, &victim.memory);
            self.shared.event(&victim.desired, None, EventKind::Warning, failure.reason, failure.message);
            self.shared.config.counters.preemptions.of(resource.into()).add();
        }
    }

    /// Lets a pod in that stands at the door, or turns it away. Whether it is to be looked at further.
    pub(super) fn judge(&mut self, uid: &PodUid) -> bool {
        self.facts.pressure = *self.shared.config.pressure.borrow();
        let Some(pod) = self.pods.get(uid) else { return false };
        let mut span = pod.start.run_now(|| mainstay_trace::child("admission"));
        let node = &self.facts;
        let verdict = admission::judge(uid, pod, self.pods.iter(), &self.observed, node);
        let verdict = match verdict {
            // Room may come by itself, as for others: a file that has gone is looked for once more before its pod is ended.
            Verdict::Preempts(_, rejection) if pod.room_by.is_none_or(|by| Timestamp::now() < by) => {
                Verdict::Crowded(rejection)
            }
            Verdict::Preempts(victims, rejection) => {
                self.preempt(&victims, &rejection);
                Verdict::Later(rejection)
            }
            verdict => verdict,
        };
        let Some(pod) = self.pods.get_mut(uid) else { return false };
        match verdict {
            Verdict::Preempts(..) => return false,
            Verdict::Admitted => {
                pod.memory.admission = Admission::Admitted;
                pod.reasons.clear();
                let mode = admission::resource_mode(&pod.desired.pod);
                self.shared.config.counters.resource_modes.of(mode).add();
                // Told once, not each time that it comes again after a plugin refused it.
                let is_new = pod.desired.source.is_static() && pod.refusals == 0;
                if let Some(text) =
                    admission::unheard_of(&pod.wants, &self.facts.resources).filter(|_| is_new)
                {
                    warn!(pod = %pod.desired.full_name, pod.uid = %uid, "{text}");
                    self.shared.event(&pod.desired, None, EventKind::Warning, "UnknownResource", text);
                }
            }
            Verdict::Later(rejection) => {
                if pod.wait_for_room(&rejection) {
                    info!(pod = %pod.desired.full_name, pod.uid = %uid, "the pod waits for room: {}", rejection.message);
                    let text =
                        format!("Waiting for pods that are ending to make room: {}", rejection.message);
                    self.shared.event(&pod.desired, None, EventKind::Normal, "WaitingForRoom", text);
                }
                return false;
            }
            Verdict::Crowded(_) if pod.room_by.is_none_or(|by| Timestamp::now() < by) => {
                pod.room_by = pod.room_by.or_else(|| Timestamp::now().checked_add(ROOM_DUE).ok());
                pod.wake_at = pod.room_by;
                return false;
            }
            Verdict::Rejected(rejection)
                if pod.asks_about_the_node(&rejection, &self.shared, &self.desired) =>
            {
                info!(pod = %pod.desired.full_name, pod.uid = %uid, "the pod may not be here ({}); asking whether the node is still so", rejection.message);
                return false;
            }
            Verdict::Crowded(rejection) | Verdict::Rejected(rejection) => {
                warn!(pod = %pod.desired.full_name, pod.uid = %uid, reason = rejection.reason, "pod rejected: {}", rejection.message);
                pod.reject(&rejection);
                span.fail(format_args!("{}: {}", rejection.reason, rejection.message));
                pod.start.fail(&rejection.reason);
                self.shared.config.counters.rejections.of([rejection_label(&rejection.reason)]).add();
                let Rejection { reason, message } = rejection;
                self.shared.event(&pod.desired, None, EventKind::Warning, reason, message);
            }
        }
        self.shared.records.keep(&pod.desired, &pod.memory);
        true
    }
}

impl PodState {
    /// Whether it must be known first what the node is now; asks, if it has not been asked yet. To an API server a pod that has failed has
    /// failed for good, and its scheduler may have heard of a label before we did (upstream asks for NodeAffinity: `canAdmitPod` of 1.37).
    fn asks_about_the_node(
        &mut self,
        rejection: &Rejection,
        shared: &Shared,
        desired: &DesiredState,
    ) -> bool {
        let Some(questions) = shared.config.node_questions.as_ref() else { return false };
        if self.desired.source != PodSource::Api || !admission::is_about_the_node(rejection) {
            return false;
        }
        let question = *self.node_question.get_or_insert_with(|| questions.ask());
        desired.node_answered < question
    }
}
