//! What to say about a pod.

mod conditions;
mod containers;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{HostIP, Pod, PodIP, PodStatus, ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_types::{
    ObservedPod, PodAssignment, PodExt, PodOutcome, PodProbes, PodSource, PodStage, TerminalPhase,
    in_node_order, to_seconds,
};

use crate::views::{self, Phase};

/// `status.reason` of a pod that had to go for a critical one.
pub const PREEMPTING: &str = "Preempting";

/// Everything a status is made from.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What the runtime shows.
    pub observed: Option<&'a ObservedPod>,
    /// What reconcile says.
    pub outcome: &'a PodOutcome,
    /// What its probes have shown.
    pub probes: &'a PodProbes,
    /// The status given last, also before a restart: what has no new evidence stays.
    pub previous: Option<&'a PodStatus>,
    /// `containerd`, the prefix of container IDs.
    pub runtime_name: &'a str,
    /// The node's addresses, primary first; empty when unknown.
    pub host_ips: &'a [String],
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: &'a str,
    /// The runtime can make mounts recursively read-only.
    pub recursive_read_only: bool,
    /// Requests and limits of the whole pod.
    pub resources: &'a ResourceRequirements,
    /// What its containers hold of devices; `None` where nobody wants to know how those are.
    pub held: Option<&'a PodAssignment>,
    /// The time.
    pub now: Timestamp,
}

/// Makes the status.
#[must_use]
pub fn pod_status(input: &StatusInput<'_>) -> PodStatus {
    let StatusInput { pod, outcome, previous, now, .. } = *input;
    if outcome.rejected {
        return rejected_status(input);
    }
    if let Some(last) = last_word(input) {
        return last.clone();
    }
    let phase = current_phase(input);
    let init = containers::init_statuses(input);
    let regular = containers::regular_statuses(input);
    let conditions = conditions::conditions(input, phase, &init, &regular, Time(to_seconds(now)));
    let over = matches!(phase, Phase::Over(_));
    let failure = outcome.failure.as_ref().filter(|_| over);
    let pod_ips = pod_ips(input);
    let requests = input.resources.requests.clone().filter(|map| !map.is_empty());

    PodStatus {
        phase: Some(phase_name(phase).into()),
        conditions: Some(conditions),
        reason: failure.map(|failure| failure.reason.clone()),
        message: failure.map(|failure| failure.message.clone()),
        host_ip: input.host_ips.first().cloned(),
        host_ips: (!input.host_ips.is_empty())
            .then(|| input.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: (!pod_ips.is_empty()).then(|| pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: Some(Time(to_seconds(outcome.start_time))),
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: (!regular.is_empty()).then_some(regular),
        qos_class: Some(input.qos_class.into()),
        allocated_resources: requests,
        resources: Some(input.resources.clone()),
        observed_generation: pod
            .metadata
            .generation
            .max(previous.and_then(|previous| previous.observed_generation))
            .filter(|generation| *generation > 0),
        ..PodStatus::default()
    }
}

/// Of a pod that is being deleted and whose containers are removed already, what was said of its end stands: that nothing is there
/// does not mean that it is about to begin.
fn last_word<'a>(input: &StatusInput<'a>) -> Option<&'a PodStatus> {
    let StatusInput { observed, outcome, previous, .. } = *input;
    let removed = observed.is_none_or(|observed| observed.containers.is_empty());
    let over = |status: &&PodStatus| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    previous.filter(over).filter(|_| removed && outcome.deletion.is_some() && outcome.finished.is_none())
}

/// A pod that was not let in has no containers to speak of.
fn rejected_status(input: &StatusInput<'_>) -> PodStatus {
    let outcome = input.outcome;
    PodStatus {
        phase: Some(TerminalPhase::Failed.as_str().into()),
        reason: outcome.failure.as_ref().map(|failure| failure.reason.clone()),
        message: outcome.failure.as_ref().map(|failure| failure.message.clone()),
        start_time: Some(Time(to_seconds(outcome.start_time))),
        qos_class: Some(input.qos_class.into()),
        ..PodStatus::default()
    }
}

/// The phase, held back while it would claim an end that containers still contradict.
fn current_phase(input: &StatusInput<'_>) -> Phase {
    let StatusInput { pod, observed, outcome, previous, .. } = *input;
    let ending = outcome.finished.is_some() || outcome.deletion.is_some();
    let running = observed.is_some_and(ObservedPod::any_running);
    match outcome.finished {
        Some(phase) if !running => Phase::Over(phase),
        Some(_) => match previous.and_then(|previous| previous.phase.as_deref()) {
            Some("Pending") => Phase::Pending,
            _ => Phase::Running,
        },
        None => match views::phase(pod, observed, ending) {
            // Who deletes a pod from the API server waits for its end, also of one that never began.
            Phase::Pending | Phase::Running if ended_by_deletion(outcome) => {
                Phase::Over(TerminalPhase::Failed)
            }
            // Reconcile will find the same and finish the pod; until it has, the pod is not over.
            Phase::Over(_) if running => Phase::Running,
            phase => phase,
        },
    }
}

fn ended_by_deletion(outcome: &PodOutcome) -> bool {
    outcome.stage == PodStage::Terminated
        && outcome.deletion.is_some()
        && outcome.desired.source == PodSource::Api
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "Pending",
        Phase::Running => "Running",
        Phase::Over(TerminalPhase::Succeeded) => "Succeeded",
        Phase::Over(TerminalPhase::Failed) => "Failed",
    }
}

/// The pod's addresses: the sandbox's, the node's on the host's network, the last known ones when the sandbox is gone.
fn pod_ips(input: &StatusInput<'_>) -> Vec<String> {
    if input.pod.host_network() {
        return match input.observed.and_then(|observed| observed.sandboxes.first()) {
            Some(_) => in_node_order(input.host_ips, input.host_ips),
            None => previous_ips(input),
        };
    }
    match input.observed.and_then(ObservedPod::ready_sandbox).filter(|sandbox| !sandbox.ips.is_empty()) {
        Some(sandbox) => in_node_order(&sandbox.ips, input.host_ips),
        None => previous_ips(input),
    }
}

fn previous_ips(input: &StatusInput<'_>) -> Vec<String> {
    input
        .previous
        .and_then(|previous| previous.pod_ips.as_ref())
        .map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect())
        .unwrap_or_default()
}
