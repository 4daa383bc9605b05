//! The READY, STATUS and RESTARTS columns, computed as kubectl does (`pkg/printers/internalversion/printers.go`, 1.37).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use mainstay_types::{ContainerKind, PodExt};

use crate::age::age;

/// What one row says about a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    ready: usize,
    total: usize,
    /// `Running`, `CrashLoopBackOff`, `Init:0/2`, `Terminating` …
    pub(crate) status: String,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

impl Summary {
    /// `1/2`.
    pub(crate) fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.total)
    }

    /// How often containers were started again.
    pub(crate) fn restart_count(&self) -> i64 {
        self.restarts.into()
    }

    /// `3 (5m ago)`.
    pub(crate) fn restarts(&self, now: Timestamp) -> String {
        match self.last_restart {
            Some(last) if self.restarts > 0 => format!("{} ({} ago)", self.restarts, age(Some(last), now)),
            _ => self.restarts.to_string(),
        }
    }
}

/// Sums a pod up.
pub(crate) fn summary(pod: &Pod) -> Summary {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let total = pod.all_containers().filter(|(kind, _)| *kind != ContainerKind::Init).count();
    let phase = status.phase.as_deref().unwrap_or_default();
    let mut summary = Summary { ready: 0, total, status: phase.to_owned(), restarts: 0, last_restart: None };
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        summary.status = reason.to_owned();
    }
    if conditions(status, "PodScheduled").any(|reason| reason == Some("SchedulingGated")) {
        summary.status = "SchedulingGated".to_owned();
    }
    let (initializing, sidecars) = add_init_containers(pod, status, &mut summary);
    if !initializing || is_true(status, "Initialized") {
        // From here on only containers that keep running count as restarted.
        (summary.restarts, summary.last_restart) = sidecars;
        add_containers(status, &mut summary);
    }
    // Unlike kubectl, which shows how a container ended: that the pod was made to end is what there is to know.
    if phase == "Failed" && status.reason.as_deref() == Some("Evicted") {
        summary.status = "Evicted".to_owned();
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if status.reason.as_deref() == Some("NodeLost") {
            summary.status = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.status = "Terminating".to_owned();
        }
    }
    summary
}

/// Looks for the init container that the pod is at. Returns whether it is still initializing, and the restarts of sidecars.
fn add_init_containers(
    pod: &Pod,
    status: &PodStatus,
    summary: &mut Summary,
) -> (bool, (i32, Option<Timestamp>)) {
    let mut sidecars = (0, None);
    let init_count = pod.spec_ref().init_containers.as_ref().map_or(0, Vec::len);
    for (at, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let is_sidecar =
            pod.container(&container.name).is_some_and(|(kind, _)| kind == ContainerKind::Sidecar);
        summary.restarts += container.restart_count;
        summary.last_restart = summary.last_restart.max(last_end(container));
        if is_sidecar {
            sidecars.0 += container.restart_count;
            sidecars.1 = sidecars.1.max(last_end(container));
        }
        let state = container.state.as_ref();
        let terminated = state.and_then(|state| state.terminated.as_ref());
        if terminated.is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if is_sidecar && container.started == Some(true) {
            summary.ready += usize::from(container.ready);
            continue;
        }
        let waiting_for = waiting_reason(state).filter(|reason| *reason != "PodInitializing");
        summary.status = match (terminated, waiting_for) {
            (Some(terminated), _) => format!("Init:{}", end_reason(terminated)),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{at}/{init_count}"),
        };
        return (true, sidecars);
    }
    (false, sidecars)
}

fn add_containers(status: &PodStatus, summary: &mut Summary) {
    let mut any_running = false;
    // From the last to the first, so that the first one that has something to say has the last word.
    for container in status.container_statuses.iter().flatten().rev() {
        summary.restarts += container.restart_count;
        summary.last_restart = summary.last_restart.max(last_end(container));
        let state = container.state.as_ref();
        if let Some(reason) = waiting_reason(state) {
            summary.status = reason.to_owned();
        } else if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
            summary.status = end_reason(terminated);
        } else if container.ready && state.is_some_and(|state| state.running.is_some()) {
            any_running = true;
            summary.ready += 1;
        }
    }
    // A pod of which one container is done and another runs is not completed.
    if summary.status == "Completed" && any_running {
        summary.status = if is_true(status, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
}

fn waiting_reason(state: Option<&ContainerState>) -> Option<&str> {
    state?.waiting.as_ref()?.reason.as_deref().filter(|reason| !reason.is_empty())
}

fn end_reason(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref(), terminated.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated.exit_code),
    }
}

fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    container.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
}

fn conditions<'a>(status: &'a PodStatus, kind: &'a str) -> impl Iterator<Item = Option<&'a str>> {
    let all = status.conditions.iter().flatten();
    all.filter(move |condition| condition.type_ == kind).map(|condition| condition.reason.as_deref())
}

fn is_true(status: &PodStatus, kind: &str) -> bool {
    let mut all = status.conditions.iter().flatten();
    all.any(|condition| condition.type_ == kind && condition.status == "True")
}

#[cfg(test)]
mod tests;
