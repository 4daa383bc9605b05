//! Reading one pod in full.

use std::{collections::BTreeSet, time::Instant};

use futures_util::future::try_join_all;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use mainstay_cri::{Cri, CriError};
use mainstay_podspec::runtime::stop_signal_name;
use mainstay_types::{
    ContainerId, ContainerPhase, ContainerUser, FullName, MadeObjects, ObservedContainer, ObservedPod,
    ObservedSandbox, PodUid, SandboxId, annotations, labels,
};

use crate::termination;

/// Reads one pod: lists what it has, then looks at each part. `None` when the runtime has nothing of it.
pub(crate) async fn pod(
    cri: &Cri,
    uid: &PodUid,
    known: Option<&ObservedPod>,
    begun: Instant,
) -> Result<Option<ObservedPod>, CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_sandboxes(Some(uid.as_str())), cri.list_containers(Some(uid.as_str())))?;
    listed(cri, uid, sandboxes, containers, known, begun).await
}

/// Reads what is known of a pod and what was made since, without searching: two cheap calls for a new pod, where a list
/// makes the runtime look through all it has.
pub(crate) async fn known(
    cri: &Cri,
    uid: &PodUid,
    known: Option<&ObservedPod>,
    made: MadeObjects,
    begun: Instant,
) -> Result<Option<ObservedPod>, CriError> {
    let mut sandboxes: Vec<SandboxId> =
        known.iter().flat_map(|pod| &pod.sandboxes).map(|s| s.id.clone()).collect();
    sandboxes.extend(made.sandboxes);
    sandboxes.sort_unstable();
    sandboxes.dedup();
    let mut containers: Vec<(ContainerId, SandboxId)> =
        known.iter().flat_map(|pod| &pod.containers).map(|c| (c.id.clone(), c.sandbox.clone())).collect();
    containers.extend(made.containers);
    containers.sort_unstable();
    containers.dedup();
    // What was made since is taken for new: its name is not known yet, and to allow too little hurts no one.
    let fresh = containers
        .iter()
        .filter(|(id, _)| !known.iter().flat_map(|pod| &pod.containers).any(|c| c.id == *id));
    let names: BTreeSet<&str> =
        known.iter().flat_map(|pod| &pod.containers).map(|container| container.name.as_str()).collect();
    let message_limit = termination::Limit::of_each(names.len() + fresh.count());
    let sandbox_reads = sandboxes.into_iter().map(|id| async move {
        match known.and_then(|known| known.sandboxes.iter().find(|s| s.id == id)).filter(|s| !s.ready) {
            Some(dead) => Ok(Some((dead.clone(), None))),
            None => sandbox_status(cri, id.as_str()).await,
        }
    });
    let container_reads = containers.into_iter().map(|(id, sandbox)| async move {
        match known.and_then(|known| known.containers.iter().find(|c| c.id == id)) {
            Some(dead) if dead.phase == ContainerPhase::Exited => Ok(Some(dead.clone())),
            _ => container_status(cri, id, sandbox, message_limit).await,
        }
    });
    let (sandboxes, containers) =
        tokio::try_join!(try_join_all(sandbox_reads), try_join_all(container_reads))?;
    let mut full_name = known.map(|known| known.full_name.clone());
    let sandboxes: Vec<_> = sandboxes
        .into_iter()
        .flatten()
        .map(|(sandbox, name)| {
            if name.is_some() {
                full_name.clone_from(&name);
            }
            sandbox
        })
        .collect();
    let full_name = full_name.unwrap_or_else(|| FullName::new("", ""));
    Ok(assemble(uid, full_name, begun, sandboxes, containers.into_iter().flatten().collect()))
}

/// Sorts the parts of a pod, newest first; `None` when there are none.
fn assemble(
    uid: &PodUid,
    full_name: FullName,
    read_at: Instant,
    sandboxes: Vec<ObservedSandbox>,
    containers: Vec<ObservedContainer>,
) -> Option<ObservedPod> {
    if sandboxes.is_empty() && containers.is_empty() {
        return None;
    }
    let mut pod = ObservedPod { uid: uid.clone(), full_name, read_at, sandboxes, containers };
    pod.sort();
    Some(pod)
}

/// Reads a pod whose parts are listed already. What ended before and was read then is not read again.
pub(crate) async fn listed(
    cri: &Cri,
    uid: &PodUid,
    sandboxes: Vec<cri::PodSandbox>,
    containers: Vec<cri::Container>,
    known: Option<&ObservedPod>,
    read_at: Instant,
) -> Result<Option<ObservedPod>, CriError> {
    let labels = sandboxes.first().map(|s| &s.labels).or_else(|| containers.first().map(|c| &c.labels));
    let Some(labels) = labels else { return Ok(None) };
    let label = |key: &str| labels.get(key).map(String::as_str).unwrap_or_default();
    let full_name = FullName::new(label(labels::POD_NAMESPACE), label(labels::POD_NAME));

    let message_limit = termination::Limit::of_each(distinct_names(&containers));
    let sandbox_reads = sandboxes.into_iter().map(|sandbox| read_sandbox(cri, sandbox, known));
    let container_reads =
        containers.into_iter().map(|container| read_container(cri, container, known, message_limit));
    let (sandboxes, containers) =
        tokio::try_join!(try_join_all(sandbox_reads), try_join_all(container_reads))?;

    let (sandboxes, containers) = (sandboxes.into_iter().flatten(), containers.into_iter().flatten());
    Ok(assemble(uid, full_name, read_at, sandboxes.collect(), containers.collect()))
}

fn distinct_names(containers: &[cri::Container]) -> usize {
    let mut names: Vec<_> =
        containers.iter().filter_map(|container| container.metadata.as_ref().map(|m| &m.name)).collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

async fn read_sandbox(
    cri: &Cri,
    sandbox: cri::PodSandbox,
    known: Option<&ObservedPod>,
) -> Result<Option<ObservedSandbox>, CriError> {
    let listed_ready = sandbox.state == cri::PodSandboxState::SandboxReady as i32;
    let before = known.and_then(|known| known.sandboxes.iter().find(|s| s.id.as_str() == sandbox.id));
    // Neither a dead sandbox nor one that was ready with an address changes without its listed state changing.
    if let Some(before) = before
        && before.ready == listed_ready
        && (!listed_ready || before.host_network || !before.ips.is_empty())
    {
        return Ok(Some(before.clone()));
    }
    Ok(sandbox_status(cri, &sandbox.id).await?.map(|(sandbox, _)| sandbox))
}

/// Asks for one sandbox: it, and the name of its pod. `None` when the runtime does not have it.
async fn sandbox_status(
    cri: &Cri,
    id: &str,
) -> Result<Option<(ObservedSandbox, Option<FullName>)>, CriError> {
    let status = match cri.sandbox_status(id).await {
        Ok(response) => response.status.unwrap_or_default(),
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let host_network = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options)
        .is_some_and(|options| options.network == cri::NamespaceMode::Node as i32);
    let ips = match status.network {
        Some(network) if !host_network => std::iter::once(network.ip)
            .chain(network.additional_ips.into_iter().map(|ip| ip.ip))
            .filter(|ip| !ip.is_empty())
            .collect(),
        _ => Vec::new(),
    };
    let label = |key: &str| status.labels.get(key).map(String::as_str);
    let full_name = label(labels::POD_NAME)
        .map(|name| FullName::new(label(labels::POD_NAMESPACE).unwrap_or_default(), name));
    let sandbox = ObservedSandbox {
        id: id.into(),
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips,
        host_network,
        source: status.annotations.get(annotations::CONFIG_SOURCE).map(|source| source.as_str().into()),
    };
    Ok(Some((sandbox, full_name)))
}

async fn read_container(
    cri: &Cri,
    container: cri::Container,
    known: Option<&ObservedPod>,
    message_limit: termination::Limit,
) -> Result<Option<ObservedContainer>, CriError> {
    let before = known.and_then(|known| known.containers.iter().find(|c| c.id.as_str() == container.id));
    let listed = phase(container.state);
    if let Some(before) = before
        && before.phase == listed
        && matches!(listed, ContainerPhase::Exited | ContainerPhase::Running)
        && !before.message.contains(termination::UNREAD)
    {
        return Ok(Some(before.clone()));
    }
    container_status(cri, container.id.into(), container.pod_sandbox_id.into(), message_limit).await
}

/// Asks for one container. `None` when the runtime does not have it.
async fn container_status(
    cri: &Cri,
    id: ContainerId,
    sandbox: SandboxId,
    message_limit: termination::Limit,
) -> Result<Option<ObservedContainer>, CriError> {
    let mainstay_cri::ContainerStatus { status, stop_signal } = match cri.container_status(id.as_str()).await
    {
        Ok(status) => status,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let phase = phase(status.state);
    let message = match phase {
        ContainerPhase::Exited => termination::message(&status, message_limit).await,
        _ => status.message.clone(),
    };
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str);
    let attempt = status.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    Ok(Some(ObservedContainer {
        id,
        sandbox,
        name: status.labels.get(labels::CONTAINER_NAME).map(String::as_str).unwrap_or_default().into(),
        restart_count: annotation(annotations::CONTAINER_RESTART_COUNT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(attempt),
        hash: annotation(annotations::CONTAINER_HASH)
            .and_then(|text| u32::from_str_radix(text, 16).ok())
            .unwrap_or(0),
        phase,
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.as_str().into(),
        message: message.into(),
        oom_killed: false,
        stop_signal: stop_signal.and_then(stop_signal_name).map(Into::into),
        image: status.image.map(|image| image.image).unwrap_or_default().into(),
        image_ref: if status.image_ref.is_empty() { status.image_id } else { status.image_ref }.into(),
        log_path: status.log_path.into(),
        user: status.user.and_then(|user| user.linux).map(|linux| ContainerUser {
            uid: linux.uid,
            gid: linux.gid,
            groups: linux.supplemental_groups,
        }),
        termination_grace_seconds: annotation(annotations::POD_TERMINATION_GRACE)
            .and_then(|text| text.parse().ok()),
        pre_stop: annotation(annotations::PRE_STOP).map(Into::into),
    }))
}

fn phase(state: i32) -> ContainerPhase {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => ContainerPhase::Created,
        Ok(cri::ContainerState::ContainerRunning) => ContainerPhase::Running,
        Ok(cri::ContainerState::ContainerExited) => ContainerPhase::Exited,
        Ok(cri::ContainerState::ContainerUnknown) | Err(_) => ContainerPhase::Unknown,
    }
}

/// CRI's nanoseconds; zero (and less) means never.
fn time(nanos: i64) -> Option<Timestamp> {
    (nanos > 0).then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok()).flatten()
}
