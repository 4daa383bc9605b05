//! The door: each pod is judged when it is first taken up, beside the pods that were let in before it.
//!
//! Who was let in stays in. Who was not is looked at again when the answer may be another one: after a restart of
//! mainstay (the node may have been given more room), after an edit under the same UID, and when another pod has gone.
//! That holds for static pods, which nobody would make anew; to an API server a pod that has failed has failed for good.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use mainstay_lifecycle::{Admission, PREEMPTING};
use mainstay_podspec::{
    is_extended_resource,
    runtime::{QosClass, has_pod_level_resources, qos_class},
};
use mainstay_policy::{Candidate, NodeFacts, Occupant, PodUse, Rejection, admit, preempt};
use mainstay_task::Backoff;
use mainstay_types::{
    ContainerKind, ContainerReason, ExtendedResources, NodeResources, ObservedState, PodExt, PodFailure,
    PodStage, PodUid, TerminalPhase,
};

use crate::pod::PodState;

/// Before a pod that a device plugin refused is looked at again, where nobody would make it anew and nothing changes.
const REFUSED: Backoff = Backoff::doubling(Duration::from_secs(10), Duration::from_secs(300));

/// The node's facts, with what device plugins offer, and labels and taints by the API server's word where there is one.
pub(crate) fn facts(own: &NodeFacts, node: Option<&Node>, extended: &ExtendedResources) -> NodeFacts {
    let resources = own.resources.with_extended(extended, true);
    let Some(node) = node else { return NodeFacts { resources: Arc::new(resources), ..own.clone() } };
    let labels = node.metadata.labels.clone().unwrap_or_else(|| own.resources.labels.clone());
    NodeFacts {
        resources: Arc::new(NodeResources { labels, ..resources }),
        taints: node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default(),
        ..own.clone()
    }
}

/// What is to become of a pod at the door.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may run.
    Admitted,
    /// It would fit if pods that are already on their way out were gone: it waits for them.
    Later(Rejection),
    /// It would fit but for the others. One of them may be vanishing right now (a file that is gone is looked for once
    /// more before that is believed), so it is looked at again before this is final.
    Crowded(Rejection),
    /// It is critical, and these have to make room for it.
    Preempts(Vec<PodUid>, Rejection),
    /// It may not.
    Rejected(Rejection),
}

/// Judges one pod. `pods` are all that reconcile knows, the pod itself among them.
pub(crate) fn judge<'a>(
    uid: &PodUid,
    pod: &PodState,
    pods: impl Iterator<Item = (&'a PodUid, &'a PodState)> + Clone,
    observed: &ObservedState,
    node: &NodeFacts,
) -> Verdict {
    // The runtime has something of it: it was let in when it was started, by whomever. What it has of one that made room for
    // another says nothing.
    let made_room = pod.made_room();
    if in_runtime(observed, uid) && !made_room {
        return Verdict::Admitted;
    }
    let candidate = Candidate {
        pod: &pod.desired.pod,
        wants: &pod.wants,
        is_static: pod.desired.source.is_static(),
        strict_groups: observed.runtime.strict_groups,
    };
    // Who made room does not take it back from the one for whom it did, and who has not come through the door yet.
    let others = pods.filter(|(other, state)| {
        *other != uid && (counts(other, state, observed) || made_room && state.is_unjudged())
    });
    let taking = |going: bool| {
        let others = others.clone().filter(move |(_, other)| going || !is_going(other));
        admit(&candidate, node, others.map(|(_, other)| &*other.wants))
    };
    match taking(true) {
        Ok(()) => Verdict::Admitted,
        Err(rejection) if taking(false).is_ok() => Verdict::Later(rejection),
        Err(rejection) if admit(&candidate, node, []).is_ok() => {
            let occupants: Vec<_> = others
                .filter(|(_, other)| !is_going(other))
                .map(|(id, other)| Occupant {
                    id,
                    pod: &other.desired.pod,
                    takes: &other.wants,
                    is_static: other.desired.source.is_static(),
                })
                .collect();
            match preempt(&candidate, node, &occupants) {
                Some(victims) if !victims.is_empty() => {
                    Verdict::Preempts(victims.into_iter().cloned().collect(), rejection)
                }
                _ => Verdict::Crowded(rejection),
            }
        }
        Err(rejection) => Verdict::Rejected(rejection),
    }
}

/// Whether a pod takes up room: it was let in and has not come to rest.
fn counts(uid: &PodUid, pod: &PodState, observed: &ObservedState) -> bool {
    match pod.memory.admission {
        Admission::Admitted => pod.stage != PodStage::Terminated && !pod.orphan,
        // One that runs without having been judged will be let in for that.
        Admission::Unjudged => in_runtime(observed, uid) && !pod.orphan,
        Admission::Rejected => false,
    }
}

fn is_going(pod: &PodState) -> bool {
    pod.memory.deletion.is_some() || pod.memory.finished.is_some()
}

fn in_runtime(observed: &ObservedState, uid: &PodUid) -> bool {
    observed.pods.get(uid).is_some_and(|pod| !pod.is_nothing())
}

impl PodState {
    /// Whether it stands at the door.
    pub(crate) fn is_unjudged(&self) -> bool {
        self.memory.admission == Admission::Unjudged
            && self.stage == PodStage::Waiting
            && self.memory.finished.is_none()
            && !self.orphan
    }

    /// Whether it was turned away, by an answer that may not be the last: nothing of it was ever made.
    pub(crate) fn was_turned_away(&self) -> bool {
        self.memory.admission == Admission::Rejected && self.may_come_again()
    }

    /// Whether it had to go for a critical pod, and has gone.
    fn made_room(&self) -> bool {
        let preempted = self.memory.failure.as_ref().is_some_and(|it| it.reason == PREEMPTING);
        preempted && self.stage == PodStage::Terminated
    }

    /// Whether it may come in when there is room. Not at once for one whom a device plugin refused: it would be refused again.
    pub(crate) fn may_be_judged_anew(&self) -> bool {
        if self.refused_until.is_some() {
            return false;
        }
        // One that is not restarted whatever happens has ended: what its containers left is the last word on it.
        let restarts = self.desired.pod.spec_ref().restart_policy.as_deref().unwrap_or("Always") == "Always";
        self.was_turned_away() || self.made_room() && restarts && self.may_come_again()
    }

    /// Nobody would make a static pod anew.
    fn may_come_again(&self) -> bool {
        self.desired.source.is_static() && self.memory.deletion.is_none() && !self.orphan
    }

    /// Forgets that it was not let in, or had to go: it stands at the door again.
    pub(crate) fn forget_rejection(&mut self) {
        self.memory.admission = Admission::Unjudged;
        self.memory.finished = None;
        self.memory.failure = None;
        self.stage = PodStage::Waiting;
        self.look_again = false;
        self.refused_until = None;
        self.room_by = None;
        self.node_question = None;
        self.wake_at = None;
        self.retry_at = None;
    }

    /// It waits for the room of pods that are going; each of its containers says so. Whether that was news.
    pub(crate) fn wait_for_room(&mut self, rejection: &Rejection) -> bool {
        self.wake_at = None;
        let reason = ContainerReason {
            reason: "ContainerCreating".into(),
            message: format!("waiting for pods that are ending to make room: {}", rejection.message),
        };
        let is_news = self.reasons.is_empty();
        let containers = self.desired.pod.all_containers();
        self.reasons =
            containers.map(|(_, container)| (container.name.as_str().into(), reason.clone())).collect();
        is_news
    }

    /// It makes room for a critical pod; upstream's words.
    pub(crate) fn make_room(&mut self) -> PodFailure {
        let failure = PodFailure {
            reason: PREEMPTING.into(),
            message: "Preempted in order to admit critical pod".into(),
        };
        self.memory.finished = Some(TerminalPhase::Failed);
        self.memory.failure = Some(failure.clone());
        self.end();
        failure
    }

    /// It is not let in.
    pub(crate) fn reject(&mut self, rejection: &Rejection) {
        self.memory.admission = Admission::Rejected;
        self.memory.finished = Some(TerminalPhase::Failed);
        self.memory.failure = Some(failure(rejection));
        self.end();
    }

    /// It was let in, and cannot be given its devices: it is turned away before anything of it was made. One that may come again is
    /// looked at again later each time.
    pub(crate) fn refuse(&mut self, rejection: &Rejection, now: Timestamp) {
        self.reject(rejection);
        self.refusals = self.refusals.saturating_add(1);
        let wait = jiff::SignedDuration::try_from(REFUSED.delay(self.refusals)).ok();
        self.refused_until = wait.and_then(|wait| now.checked_add(wait).ok());
    }
}

/// Whether it is what the API server says of the node that speaks against the pod: labels and taints that may have changed since.
pub(crate) fn is_about_the_node(rejection: &Rejection) -> bool {
    matches!(rejection.reason.as_str(), "NodeAffinity" | "TaintToleration")
}

/// A rejection as the pod's status shows it.
pub(crate) fn failure(rejection: &Rejection) -> PodFailure {
    PodFailure {
        reason: rejection.reason.clone(),
        message: format!("Pod was rejected: {}", rejection.message),
    }
}

/// What of a pod has requests or limits, and its QoS class: upstream's words, in the order `config_mode`, `qos_class`.
pub(crate) fn resource_mode(pod: &Pod) -> [&'static str; 2] {
    let names_some = |resources: Option<&ResourceRequirements>| {
        let lists = resources.map(|it| [it.requests.as_ref(), it.limits.as_ref()]);
        lists.into_iter().flatten().flatten().any(|list| !list.is_empty())
    };
    let kinds = [ContainerKind::Regular, ContainerKind::Init];
    let of_containers = pod
        .all_containers()
        .any(|(kind, container)| kinds.contains(&kind) && names_some(container.resources.as_ref()));
    let mode = match (has_pod_level_resources(pod), of_containers) {
        (true, true) => "pod_and_container_level",
        (true, false) => "pod_level",
        (false, true) => "container_level",
        (false, false) => "",
    };
    let class = match qos_class(pod) {
        QosClass::Guaranteed => "guaranteed",
        QosClass::Burstable => "burstable",
        QosClass::BestEffort => "besteffort",
    };
    [mode, class]
}

/// Extended resources that a pod asks for and this node has never had, in a sentence. Upstream ignores them: somebody else may have promised
/// them (`pkg/kubelet/lifecycle/predicate.go`, `removeMissingExtendedResources`). In a file a name is more likely misspelt.
pub(crate) fn unheard_of(wants: &PodUse, node: &NodeResources) -> Option<String> {
    let is_there = |name: &str| node.capacity.contains_key(name);
    let asked = wants.scalars.iter().filter(|(_, amount)| *amount > 0).map(|(name, _)| name.as_str());
    let mut unknown: Vec<_> = asked.filter(|name| is_extended_resource(name) && !is_there(name)).collect();
    if unknown.is_empty() {
        return None;
    }
    unknown.sort_unstable();
    let known: Vec<_> =
        node.capacity.keys().map(String::as_str).filter(|name| is_extended_resource(name)).collect();
    let known = if known.is_empty() { "no devices".to_owned() } else { known.join(", ") };
    Some(format!(
        "No device plugin has told of {}, and the pod runs without; is the name right, and does the plugin run? This node has {known}",
        unknown.join(", ")
    ))
}

/// What a pod takes, for others to be judged by.
pub(crate) fn wants(pod: &Pod) -> std::sync::Arc<PodUse> {
    std::sync::Arc::new(PodUse::of(pod))
}

#[cfg(test)]
mod tests;
