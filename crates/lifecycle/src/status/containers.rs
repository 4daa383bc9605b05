//! Container statuses.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, ResourceHealth, ResourceRequirements,
        ResourceStatus, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_types::{ContainerKind, ContainerPhase, DeviceHealth, ObservedContainer, Verdict, to_seconds};

use super::StatusInput;
use crate::{
    restart::may_restart_all,
    views::{self, View},
};

/// The reason of a container that the kernel killed for want of memory.
const OOM_KILLED: &str = "OOMKilled";
/// Of a container that was removed to start its whole pod over.
const STARTED_OVER: &str = "The container is removed because RestartAllContainers in place";
/// 128 and SIGKILL.
const KILLED: i32 = 137;

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
    // What was said last of this very instance: it stands until a probe shows otherwise.
    let before = previous.filter(|before| before.container_id == status.container_id);
    let probes = view.newest.map(|container| input.probes.of(&container.id)).unwrap_or_default();
    let shown = |verdict: Option<Verdict>, before: bool| match verdict {
        Some(verdict) => verdict == Verdict::Passed,
        None => before,
    };
    let started = running
        && view.kind != ContainerKind::Init
        && view.newest.is_some_and(|container| !input.outcome.not_started.contains(&container.id))
        && (view.spec.startup_probe.is_none()
            || shown(probes.startup, before.is_some_and(|before| before.started == Some(true))));
    status.started = Some(started);
    status.ready = match view.kind {
        ContainerKind::Init => status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|terminated| terminated.exit_code == 0),
        _ => {
            started
                && (view.spec.readiness_probe.is_none()
                    || shown(probes.readiness, before.is_some_and(|before| before.ready)))
        }
    };
    status.allocated_resources_status = match view.kind {
        // It is over when the others run, and what it held may be theirs.
        ContainerKind::Init => None,
        ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => {
            devices(input, &view.spec.name, previous)
        }
    };
    status
}

/// How the devices of a container are, by resource and ID.
fn devices(
    input: &StatusInput<'_>,
    name: &str,
    previous: Option<&ContainerStatus>,
) -> Option<Vec<ResourceStatus>> {
    let held = &input.held?.containers.get(name)?.devices;
    let before = |resource: &str, id: &str| {
        let statuses = previous?.allocated_resources_status.as_ref()?;
        let devices = statuses.iter().find(|status| status.name == resource)?.resources.as_ref()?;
        devices.iter().find(|device| device.resource_id == id)?.health.clone()
    };
    let mut resources: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for device in held {
        let health = match device.health {
            DeviceHealth::Healthy => "Healthy".to_owned(),
            DeviceHealth::Unhealthy => "Unhealthy".to_owned(),
            DeviceHealth::Unknown => "Unknown".to_owned(),
            DeviceHealth::Awaited => {
                before(&device.resource, &device.id).unwrap_or_else(|| "Unknown".to_owned())
            }
        };
        resources.entry(&device.resource).or_default().insert(&device.id, health);
    }
    let statuses = resources.into_iter().map(|(name, devices)| ResourceStatus {
        name: name.to_owned(),
        resources: Some(
            devices
                .into_iter()
                .map(|(id, health)| ResourceHealth {
                    resource_id: id.to_owned(),
                    health: Some(health),
                    ..ResourceHealth::default()
                })
                .collect(),
        ),
    });
    Some(statuses.collect::<Vec<_>>()).filter(|statuses| !statuses.is_empty())
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
        ContainerPhase::Exited => terminated(input, container, previous),
        ContainerPhase::Created => waiting(default_waiting_reason(input), None),
        ContainerPhase::Unknown => unknown(Some(container_id(input, container))),
    };
    let lost = container.phase == ContainerPhase::Unknown
        && previous.and_then(|previous| previous.state.as_ref()).is_some_and(|state| state.running.is_some());
    let id = container_id(input, container);
    let same = previous.filter(|previous| previous.container_id.as_ref() == Some(&id));
    let other = previous.filter(|previous| previous.container_id.as_ref() != Some(&id));
    let restart_count = i32::try_from(container.restart_count).unwrap_or(i32::MAX);
    let earlier = input
        .observed
        .and_then(|observed| {
            observed.instances(&view.spec.name).skip(1).find(|c| c.phase == ContainerPhase::Exited)
        })
        .map(|earlier| terminated(input, earlier, previous));
    // The runtime forgets old instances; what was said of them stands until a newer one takes their place.
    let last_state = earlier.or_else(|| same.and_then(|p| p.last_state.clone())).or_else(|| {
        let before = other.filter(|p| p.restart_count <= restart_count)?;
        // It ran when it was looked at last, and nothing of it is left: that is how all are started over.
        if before.restart_count < restart_count
            && before.state.as_ref().is_some_and(|state| state.running.is_some())
            && may_restart_all(input.pod)
        {
            return Some(killed("RestartingAllContainers", STARTED_OVER, before.container_id.clone()));
        }
        [&before.state, &before.last_state].into_iter().flatten().find(|s| s.terminated.is_some()).cloned()
    });
    ContainerStatus {
        name: view.spec.name.clone(),
        state: Some(state),
        last_state: Some(last_state.unwrap_or_default()),
        // One that was lost counts as restarted, and goes on doing so.
        restart_count: restart_count
            .saturating_add(i32::from(lost))
            .max(same.map_or(0, |previous| previous.restart_count)),
        image: container.image.to_string(),
        image_id: container.image_ref.to_string(),
        container_id: Some(id),
        resources: Some(reported_resources(view.spec)),
        allocated_resources: view
            .spec
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.clone())
            .filter(|requests| !requests.is_empty()),
        volume_mounts: volume_mounts(input, view.spec, container, previous),
        user: container.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
            }),
        }),
        stop_signal: container.stop_signal.as_deref().map(str::to_owned),
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
        if previous.state.as_ref().is_some_and(|state| state.waiting.is_none()) {
            status.restart_count = status.restart_count.saturating_add(1);
            status.last_state =
                Some(killed("RestartingAllContainers", STARTED_OVER, previous.container_id.clone()));
        } else {
            status.last_state = previous.last_state.clone().or(status.last_state);
        }
        if input.outcome.restarting_all {
            status.state = Some(waiting("RestartingAllContainers", Some(STARTED_OVER)));
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

fn terminated(
    input: &StatusInput<'_>,
    container: &ObservedContainer,
    previous: Option<&ContainerStatus>,
) -> ContainerState {
    let reason = if was_oom_killed(input, container, previous) { OOM_KILLED } else { &container.reason };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: container.exit_code,
            reason: Some(reason.to_owned()).filter(|text| !text.is_empty()),
            message: Some(container.message.to_string()).filter(|text| !text.is_empty()),
            started_at: container.started_at.map(|time| Time(to_seconds(time))),
            finished_at: container.finished_at.map(|time| Time(to_seconds(time))),
            container_id: Some(container_id(input, container)),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

/// Whether the kernel killed it for want of memory though the runtime has no better word than `Error`: because its pod's
/// cgroup counted that, or because it was said before. The evidence is seen once; a restart of mainstay does not undo it.
fn was_oom_killed(
    input: &StatusInput<'_>,
    container: &ObservedContainer,
    previous: Option<&ContainerStatus>,
) -> bool {
    if container.exit_code != KILLED || &*container.reason != "Error" {
        return false;
    }
    let id = container_id(input, container);
    let said = previous.into_iter().flat_map(|previous| [&previous.state, &previous.last_state]);
    container.oom_killed
        || said.flatten().filter_map(|state| state.terminated.as_ref()).any(|terminated| {
            terminated.container_id.as_deref() == Some(&id)
                && terminated.reason.as_deref() == Some(OOM_KILLED)
        })
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

/// The mounts of a container. How they were made does not change while it lives, whatever the runtime could do by now.
fn volume_mounts(
    input: &StatusInput<'_>,
    spec: &Container,
    container: &ObservedContainer,
    previous: Option<&ContainerStatus>,
) -> Option<Vec<VolumeMountStatus>> {
    let id = container_id(input, container);
    let before = previous.filter(|previous| previous.container_id.as_deref() == Some(id.as_str()));
    let before = before.and_then(|previous| previous.volume_mounts.as_deref()).unwrap_or_default();
    let mounts: Vec<_> = spec
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| {
            let read_only = mount.read_only.filter(|read_only| *read_only);
            let said = before.iter().find(|before| before.mount_path == mount.mount_path);
            let said = said.and_then(|before| before.recursive_read_only.as_deref());
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only,
                recursive_read_only: read_only.map(|_| {
                    let done = match (mount.recursive_read_only.as_deref(), said) {
                        (_, Some(said @ ("Enabled" | "Disabled"))) => said,
                        (Some("Enabled"), _) => "Enabled",
                        (Some("IfPossible"), _) if input.recursive_read_only => "Enabled",
                        _ => "Disabled",
                    };
                    done.to_owned()
                }),
                ..VolumeMountStatus::default()
            }
        })
        .collect();
    (!mounts.is_empty()).then_some(mounts)
}
