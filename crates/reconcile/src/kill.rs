//! Stopping: hooks, grace, order.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Container;
use mainstay_cri::CriError;
use mainstay_types::{ContainerId, ContainerKind, ContainerPhase, EventKind, ObservedContainer, PodExt};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{
    hooks,
    worker::{Order, Shared},
};

/// The runtime always gets at least this long, as upstream's kubelet gives.
const MIN_STOP: Duration = Duration::from_secs(2);

/// Stops every container of a pod, sidecars last and in reverse order, then its sandboxes.
pub(crate) async fn stop_pod(shared: &Shared, order: &Order, grace_seconds: i64) -> Result<(), CriError> {
    let Some(observed) = &order.observed else { return Ok(()) };
    let running: Vec<_> = observed
        .containers
        .iter()
        .filter(|c| matches!(c.phase, ContainerPhase::Running | ContainerPhase::Unknown))
        .collect();
    info!(containers = running.len(), grace_seconds, "stopping the pod");

    // A sidecar waits until all regular containers and all sidecars that started after it have ended.
    let names: Vec<&str> = order
        .desired
        .pod
        .all_containers()
        .filter(|(kind, _)| *kind == ContainerKind::Sidecar)
        .map(|(_, spec)| spec.name.as_str())
        .collect();
    let rank = |container: &ObservedContainer| {
        names.iter().position(|name| *name == container.name.as_str()).map_or(0, |i| names.len() - i)
    };
    let (ended, _) = watch::channel(vec![0_usize; names.len() + 1]);
    ended.send_modify(|counts| {
        for container in &running {
            if let Some(count) = counts.get_mut(rank(container)) {
                *count += 1;
            }
        }
    });
    let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
    let stops = running.iter().map(|container| {
        let rank = rank(container);
        let ended = &ended;
        async move {
            let text = format!("Stopping container {}", container.name);
            let mut turn = ended.subscribe();
            let before = async move {
                // The sender lives as long as this future's borrow of it.
                turn.wait_for(|counts| counts.iter().take(rank).all(|left| *left == 0)).await.ok();
            };
            let result =
                stop_one(shared, order, &container.id, container.name.as_str(), grace, text, before).await;
            ended.send_modify(|counts| {
                if let Some(count) = counts.get_mut(rank) {
                    *count = count.saturating_sub(1);
                }
            });
            result
        }
    });
    let results = join_all(stops).await;
    let sandboxes = observed
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .map(|sandbox| shared.config.cri.stop_sandbox(sandbox.id.as_str()));
    // The sandboxes are stopped even if a container would not: that is the runtime's last word on its containers.
    let sandboxes = try_join_all(sandboxes).await;
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    sandboxes.map(drop)
}

/// Stops one container, with its preStop hook.
pub(crate) async fn stop_container(
    shared: &Shared,
    order: &Order,
    id: &ContainerId,
    name: &str,
    grace_seconds: i64,
    message: String,
) -> Result<(), CriError> {
    let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
    stop_one(shared, order, id, name, grace, message, std::future::ready(())).await
}

async fn stop_one(
    shared: &Shared,
    order: &Order,
    id: &ContainerId,
    name: &str,
    grace: Duration,
    message: String,
    turn: impl Future<Output = ()>,
) -> Result<(), CriError> {
    let begun = Instant::now();
    let spec = order.desired.pod.container(name);
    let kind = spec.map_or(ContainerKind::Regular, |(kind, _)| kind);
    shared.event(&order.desired, Some((kind, name)), EventKind::Normal, "Killing", message);
    // The hook runs at once, within the grace; only the stop itself waits for its turn.
    if let Some((kind, spec)) = spec.filter(|_| !grace.is_zero()) {
        pre_stop(shared, order, kind, spec, id, grace).await;
    }
    if tokio::time::timeout(grace.saturating_sub(begun.elapsed()), turn).await.is_err() {
        debug!(container = name, "the containers before it did not end in time; stopping it anyway");
    }
    let left = grace.saturating_sub(begun.elapsed()).max(MIN_STOP);
    shared.config.cri.stop_container(id.as_str(), left).await
}

async fn pre_stop(
    shared: &Shared,
    order: &Order,
    kind: ContainerKind,
    spec: &Container,
    id: &ContainerId,
    grace: Duration,
) {
    let Some(hook) = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
        return;
    };
    let ip = order.observed.as_ref().and_then(|o| o.sandboxes.first()).and_then(|s| s.ips.first()).cloned();
    let ip = if order.desired.pod.host_network() { shared.config.node.host_ips.first().cloned() } else { ip };
    let work = hooks::run(shared, order, spec, kind, id, hook, ip.as_deref());
    match tokio::time::timeout(grace, work).await {
        Ok(Ok(())) => {}
        Ok(Err(message)) => {
            warn!(container = spec.name, message, "the preStop hook failed");
            let who = Some((kind, spec.name.as_str()));
            shared.event(&order.desired, who, EventKind::Warning, "FailedPreStopHook", message);
        }
        Err(_) => warn!(container = spec.name, "the preStop hook did not end within the grace period"),
    }
}

/// Stops and removes all containers, the trigger last, keeping logs and sandbox.
pub(crate) async fn remove_all_containers(
    shared: &Shared,
    order: &Order,
    trigger: &str,
) -> Result<(), CriError> {
    let Some(observed) = &order.observed else { return Ok(()) };
    let running = observed.containers.iter().filter(|c| c.phase == ContainerPhase::Running);
    let stops = running.map(|container| {
        let text = format!("Stopping container {}", container.name);
        let name = container.name.as_str();
        stop_one(shared, order, &container.id, name, Duration::ZERO, text, std::future::ready(()))
    });
    try_join_all(stops).await?;
    let (last, first): (Vec<_>, Vec<_>) =
        observed.containers.iter().partition(|container| container.name.as_str() == trigger);
    for container in first.into_iter().chain(last) {
        shared.config.cri.remove_container(container.id.as_str()).await?;
    }
    Ok(())
}
