//! Container statuses.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, ResourceRequirements,
        VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_types::{ContainerKind, ContainerPhase, ObservedContainer, to_seconds};

use super::StatusInput;
use crate::views::{self, View};

/// Statuses of init containers and sidecars, in the order of the spec.
pub(super) fn init_statuses(input: &StatusInput<'_>) -> Vec<ContainerStatus> {
    let initialized = views::initialized(input.pod, input.observed);
    views::views(input.pod, input.observed)
        .iter()
        .filter(|view| view.kind != ContainerKind::Regular)
        .map(|view| status(input, view, initialized))
        .collect()
}

/// Statuses of regular containers, sorted by name.
pub(super) fn regular_statuses(input: &StatusInput<'_>) -> Vec<ContainerStatus> {
    let mut statuses: Vec<_> = views::views(input.pod, input.observed)
        .iter()
        .filter(|view| view.kind == ContainerKind::Regular)
        .map(|view| status(input, view, false))
        .collect();
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

fn status(input: &StatusInput<'_>, view: &View<'_>, initialized: bool) -> ContainerStatus {
    let previous = input.previous.and_then(|previous| find(previous, &view.spec.name));
    let mut status = match view.newest {
        Some(container) => seen(input, view, container, previous),
        None => unseen(input, view, previous, initialized),
    };
    // A reason to wait replaces the state of a container that is not running; what it was moves to lastState.
    if let Some(reason) = input.outcome.reasons.get(view.spec.name.as_str())
        && view.phase() != Some(ContainerPhase::Running)
    {
        if let Some(state) = status.state.take().filter(|state| state.terminated.is_some()) {
            status.last_state = Some(state);
        }
        status.state = Some(waiting(&reason.reason, Some(&reason.message)));
    }
    let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
    let started = running
        && view.kind != ContainerKind::Init
        && view.newest.is_some_and(|container| !input.outcome.not_started.contains(&container.id));
    status.started = Some(started);
    status.ready = match view.kind {
        ContainerKind::Init => status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|terminated| terminated.exit_code == 0),
        _ => started,
    };
    status
}

/// A container the runtime shows.
fn seen(
    input: &StatusInput<'_>,
    view: &View<'_>,
    container: &ObservedContainer,
    previous: Option<&ContainerStatus>,
) -> ContainerStatus {
    let state = match container.phase {
        ContainerPhase::Running => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: container.started_at.map(|time| Time(to_seconds(time))),
            }),
            ..ContainerState::default()
        },
        ContainerPhase::Exited => terminated(input, container),
        ContainerPhase::Created => waiting(default_waiting_reason(input), None),
        ContainerPhase::Unknown => unknown(Some(container_id(input, container))),
    };
    let lost = container.phase == ContainerPhase::Unknown
        && previous.and_then(|previous| previous.state.as_ref()).is_some_and(|state| state.running.is_some());
    let restart_count = i32::try_from(container.restart_count).unwrap_or(i32::MAX);
    let earlier = input
        .observed
        .and_then(|observed| {
            observed.instances(&view.spec.name).skip(1).find(|c| c.phase == ContainerPhase::Exited)
        })
        .map(|earlier| terminated(input, earlier));
    // The runtime forgets old instances; what was said of them stands until a newer one takes their place.
    let last_state = earlier
        .or_else(|| previous.filter(|p| p.restart_count == restart_count).and_then(|p| p.last_state.clone()))
        .or_else(|| {
            previous
                .filter(|p| p.restart_count < restart_count)
                .and_then(|p| {
                    [&p.state, &p.last_state].into_iter().flatten().find(|state| state.terminated.is_some())
                })
                .cloned()
        });
    ContainerStatus {
        name: view.spec.name.clone(),
        state: Some(state),
        last_state: Some(last_state.unwrap_or_default()),
        restart_count: restart_count.saturating_add(i32::from(lost)),
        image: container.image.to_string(),
        image_id: container.image_ref.to_string(),
        container_id: Some(container_id(input, container)),
        resources: Some(reported_resources(view.spec)),
        allocated_resources: view
            .spec
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.clone())
            .filter(|requests| !requests.is_empty()),
        volume_mounts: volume_mounts(view.spec),
        user: container.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
            }),
        }),
        ..ContainerStatus::default()
    }
}

/// A container the runtime does not show: not yet made, or lost.
fn unseen(
    input: &StatusInput<'_>,
    view: &View<'_>,
    previous: Option<&ContainerStatus>,
    initialized: bool,
) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: view.spec.name.clone(),
        state: Some(waiting(default_waiting_reason(input), None)),
        last_state: Some(ContainerState::default()),
        image: view.spec.image.clone().unwrap_or_default(),
        ..ContainerStatus::default()
    };
    if view.kind == ContainerKind::Init && initialized {
        status.state = Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                reason: Some("Completed".into()),
                message: Some("Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally".into()),
                exit_code: 0,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        });
    }
    let Some(previous) = previous else { return status };
    status.restart_count = previous.restart_count;
    if restarting_all(input) {
        let gone = "The container is removed because RestartAllContainers in place";
        if previous.state.as_ref().is_some_and(|state| state.waiting.is_none()) {
            status.restart_count = status.restart_count.saturating_add(1);
            status.last_state = Some(killed("RestartingAllContainers", gone, previous.container_id.clone()));
        } else {
            status.last_state = previous.last_state.clone().or(status.last_state);
        }
        if input.outcome.restarting_all {
            status.state = Some(waiting("RestartingAllContainers", Some(gone)));
        }
        return status;
    }
    status.last_state = previous.last_state.clone().or(status.last_state);
    let before = previous.state.as_ref();
    if before.is_some_and(|state| state.running.is_some()) {
        status.last_state = Some(unknown(previous.container_id.clone()));
        if input.outcome.deletion.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    } else if let Some(state) = before.filter(|state| state.terminated.is_some()) {
        if input.outcome.finished.is_some() || (view.kind == ContainerKind::Init && initialized) {
            // The pod is over and its remains are gone: what was said of them is all that is left.
            return previous.clone();
        }
        status.last_state = Some(state.clone());
    }
    status
}

fn find<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn default_waiting_reason(input: &StatusInput<'_>) -> &'static str {
    let has_init = input
        .pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.init_containers.as_ref().is_some_and(|i| !i.is_empty()));
    if has_init { "PodInitializing" } else { "ContainerCreating" }
}

fn waiting(reason: &str, message: Option<&str>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.into()),
            message: message.filter(|message| !message.is_empty()).map(Into::into),
        }),
        ..ContainerState::default()
    }
}

fn terminated(input: &StatusInput<'_>, container: &ObservedContainer) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: container.exit_code,
            reason: Some(container.reason.to_string()).filter(|text| !text.is_empty()),
            message: Some(container.message.to_string()).filter(|text| !text.is_empty()),
            started_at: container.started_at.map(|time| Time(to_seconds(time))),
            finished_at: container.finished_at.map(|time| Time(to_seconds(time))),
            container_id: Some(container_id(input, container)),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

/// Whether the containers that vanished were removed to start the whole pod over. The flag may be lowered in the same
/// moment in which they are seen to be gone, so what was said last counts too.
fn restarting_all(input: &StatusInput<'_>) -> bool {
    let conditions = input.previous.and_then(|previous| previous.conditions.as_ref());
    input.outcome.restarting_all
        || conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "AllContainersRestarting" && c.status == "True")
}

fn unknown(container_id: Option<String>) -> ContainerState {
    let message = "The container could not be located when the pod was terminated";
    killed("ContainerStatusUnknown", message, container_id)
}

/// The end of a container of which the runtime can tell nothing any more.
fn killed(reason: &str, message: &str, container_id: Option<String>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some(reason.into()),
            message: Some(message.into()),
            container_id,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn container_id(input: &StatusInput<'_>, container: &ObservedContainer) -> String {
    format!("{}://{}", input.runtime_name, container.id)
}

/// Only what the kubelet itself applies is reported; claims are not.
fn reported_resources(spec: &Container) -> ResourceRequirements {
    spec.resources
        .as_ref()
        .map(|resources| ResourceRequirements {
            limits: resources.limits.clone(),
            requests: resources.requests.clone(),
            claims: None,
        })
        .unwrap_or_default()
}

fn volume_mounts(spec: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts: Vec<_> = spec
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|read_only| *read_only),
            recursive_read_only: mount
                .recursive_read_only
                .clone()
                .or_else(|| mount.read_only.filter(|read_only| *read_only).map(|_| "Disabled".into())),
            ..VolumeMountStatus::default()
        })
        .collect();
    (!mounts.is_empty()).then_some(mounts)
}
