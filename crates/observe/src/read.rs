//! Reading one pod in full.

use std::{cmp::Reverse, time::Instant};

use futures_util::future::try_join_all;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use mainstay_cri::{Cri, CriError};
use mainstay_types::{
    ContainerPhase, ContainerUser, FullName, ObservedContainer, ObservedPod, ObservedSandbox, PodUid, annotations,
    labels,
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

    let message_limit = termination::limit(distinct_names(&containers));
    let sandbox_reads = sandboxes.into_iter().map(|sandbox| read_sandbox(cri, sandbox, known));
    let container_reads =
        containers.into_iter().map(|container| read_container(cri, container, known, message_limit));
    let (sandboxes, containers) = tokio::try_join!(try_join_all(sandbox_reads), try_join_all(container_reads))?;

    let mut sandboxes: Vec<_> = sandboxes.into_iter().flatten().collect();
    sandboxes.sort_by_key(|sandbox| Reverse((sandbox.attempt, sandbox.created_at)));
    let mut containers: Vec<_> = containers.into_iter().flatten().collect();
    containers.sort_by_key(|container| Reverse((container.created_at, container.restart_count)));
    if sandboxes.is_empty() && containers.is_empty() {
        return Ok(None);
    }
    Ok(Some(ObservedPod { uid: uid.clone(), full_name, read_at, sandboxes, containers }))
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
    let status = match cri.sandbox_status(&sandbox.id).await {
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
    Ok(Some(ObservedSandbox {
        id: sandbox.id.into(),
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips,
        host_network,
        source: status.annotations.get(annotations::CONFIG_SOURCE).map(|source| source.as_str().into()),
    }))
}

async fn read_container(
    cri: &Cri,
    container: cri::Container,
    known: Option<&ObservedPod>,
    message_limit: usize,
) -> Result<Option<ObservedContainer>, CriError> {
    let before = known.and_then(|known| known.containers.iter().find(|c| c.id.as_str() == container.id));
    let listed = phase(container.state);
    if let Some(before) = before
        && before.phase == listed
        && matches!(listed, ContainerPhase::Exited | ContainerPhase::Running)
    {
        return Ok(Some(before.clone()));
    }
    let status = match cri.container_status(&container.id).await {
        Ok(response) => response.status.unwrap_or_default(),
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
        id: container.id.into(),
        sandbox: container.pod_sandbox_id.into(),
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
        image: status.image.map(|image| image.image).unwrap_or_default().into(),
        image_ref: if status.image_ref.is_empty() { status.image_id } else { status.image_ref }.into(),
        log_path: status.log_path.into(),
        user: status.user.and_then(|user| user.linux).map(|linux| ContainerUser {
            uid: linux.uid,
            gid: linux.gid,
            groups: linux.supplemental_groups,
        }),
        termination_grace_seconds: annotation(annotations::POD_TERMINATION_GRACE).and_then(|text| text.parse().ok()),
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
