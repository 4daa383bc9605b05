//! Pod conditions. One changes only on evidence, and keeps its time while it stays.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_types::TerminalPhase;

use super::{PREEMPTING, StatusInput};
use crate::{
    restart::may_restart_all,
    sandbox::{SandboxVerdict, judge_sandbox},
    told::{BY_KUBELET, DISRUPTION_TARGET, is_own_condition},
    views::{self, Phase},
};

/// Status, reason and message of a condition.
type Verdict = (bool, Option<&'static str>, Option<String>);

pub(super) fn conditions(
    input: &StatusInput<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    now: Time,
) -> Vec<PodCondition> {
    let containers_ready = containers_ready(input, phase, init, regular);
    let ready = ready(input, &containers_ready);
    let mut conditions = Vec::with_capacity(6);
    if may_restart_all(input.pod) {
        conditions.push(condition(
            input,
            "AllContainersRestarting",
            all_restarting(input, phase),
            now.clone(),
        ));
    }
    conditions.extend([
        condition(input, "PodReadyToStartContainers", ready_to_start(input), now.clone()),
        condition(input, "Initialized", initialized(input, phase, init), now.clone()),
        condition(input, "Ready", ready, now.clone()),
        condition(input, "ContainersReady", containers_ready, now.clone()),
        condition(input, "PodScheduled", (true, None, None), now.clone()),
    ]);
    let disruption = disruption(input, phase);
    let ours = disruption.is_some();
    conditions.extend(of_others(input).filter(|it| !(ours && it.type_ == DISRUPTION_TARGET)).cloned());
    conditions.extend(disruption.map(|verdict| condition(input, DISRUPTION_TARGET, verdict, now)));
    conditions
}

/// What is true of a pod that was made to go for no fault of its own, once it has gone.
fn disruption(input: &StatusInput<'_>, phase: Phase) -> Option<Verdict> {
    let failure = input.outcome.failure.as_ref()?;
    let over = phase == Phase::Over(TerminalPhase::Failed);
    (over && failure.reason == PREEMPTING).then(|| {
        let message = "Pod was preempted by Kubelet to accommodate a critical pod.";
        (true, Some(BY_KUBELET), Some(message.into()))
    })
}

/// What others wrote into the status in the API server.
fn of_others<'a>(input: &StatusInput<'a>) -> impl Iterator<Item = &'a PodCondition> {
    let remote = input.outcome.desired.remote.as_deref();
    remote.into_iter().flat_map(|remote| &remote.conditions).filter(|it| !is_own_condition(&it.type_))
}

fn all_restarting(input: &StatusInput<'_>, phase: Phase) -> Verdict {
    match phase {
        Phase::Over(TerminalPhase::Succeeded) => (false, Some("PodCompleted"), None),
        Phase::Over(TerminalPhase::Failed) => (false, Some("PodFailed"), None),
        _ => (input.outcome.restarting_all, None, None),
    }
}

fn ready_to_start(input: &StatusInput<'_>) -> Verdict {
    match judge_sandbox(input.pod, input.observed) {
        SandboxVerdict::Keep(_) => (true, None, None),
        SandboxVerdict::Renew { why, .. } => (false, Some("PodSandboxNotReady"), Some(why.into())),
    }
}

fn initialized(input: &StatusInput<'_>, phase: Phase, init: &[ContainerStatus]) -> Verdict {
    if phase == Phase::Over(TerminalPhase::Succeeded) {
        return (true, Some("PodCompleted"), None);
    }
    if views::initialized(input.pod, input.observed) {
        return (true, None, None);
    }
    let sidecar = |name: &str| {
        let spec = input.pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
        spec.into_iter().flatten().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
    };
    let incomplete: Vec<_> = init
        .iter()
        .filter(|status| {
            let done = if sidecar(&status.name) { status.started == Some(true) } else { status.ready };
            !done
        })
        .map(|status| status.name.as_str())
        .collect();
    if incomplete.is_empty() {
        return (true, None, None);
    }
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    (false, Some("ContainersNotInitialized"), Some(message))
}

fn containers_ready(
    input: &StatusInput<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
) -> Verdict {
    match phase {
        Phase::Over(TerminalPhase::Succeeded) => return (false, Some("PodCompleted"), None),
        Phase::Over(TerminalPhase::Failed) => return (false, Some("PodFailed"), None),
        Phase::Pending | Phase::Running => {}
    }
    let spec = input.pod.spec.as_ref();
    let sidecars = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let names =
        sidecars.chain(spec.into_iter().flat_map(|spec| &spec.containers)).map(|container| &container.name);
    let unready: Vec<_> = names
        .filter(|name| !init.iter().chain(regular).any(|status| status.name == **name && status.ready))
        .map(String::as_str)
        .collect();
    if unready.is_empty() {
        return (true, None, None);
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    (false, Some("ContainersNotReady"), Some(message))
}

fn ready(input: &StatusInput<'_>, containers_ready: &Verdict) -> Verdict {
    if !containers_ready.0 {
        return containers_ready.clone();
    }
    let gates = input.pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let problems: Vec<_> = gates
        .into_iter()
        .flatten()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match of_others(input).find(|condition| condition.type_ == *name) {
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{name}\" does not exist."))
                }
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if problems.is_empty() {
        return (true, None, None);
    }
    (false, Some("ReadinessGatesNotReady"), Some(problems.join(", ")))
}

fn condition(input: &StatusInput<'_>, kind: &str, verdict: Verdict, now: Time) -> PodCondition {
    let (holds, reason, message) = verdict;
    let status = if holds { "True" } else { "False" };
    let before = input
        .previous
        .and_then(|previous| previous.conditions.as_ref())
        .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == kind))
        .filter(|condition| condition.status == status);
    PodCondition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.map(Into::into),
        message,
        last_transition_time: before.and_then(|before| before.last_transition_time.clone()).or(Some(now)),
        observed_generation: input.pod.metadata.generation.filter(|generation| *generation > 0),
        last_probe_time: None,
    }
}
