//! What is dead and superseded.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_types::{ContainerId, ContainerPhase, NodeSnapshot, ObservedPod, SandboxId};

/// How much of the dead is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Dead instances of each container beside the newest one (`--maximum-dead-containers-per-container`); negative keeps all.
    pub per_container: i32,
    /// Dead containers on the whole node (`--maximum-dead-containers`); negative is no limit.
    pub in_all: i32,
    /// None is removed before it is this old (`--minimum-container-ttl-duration`).
    pub min_age: Duration,
}

impl Default for Keep {
    fn default() -> Self {
        Self { per_container: 1, in_all: -1, min_age: Duration::ZERO }
    }
}

/// Something to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// A container.
    Container(ContainerId),
    /// A sandbox.
    Sandbox(SandboxId),
}

/// What may be removed of the pods in the snapshot. The newest instance of each container is evidence and always stays.
#[must_use]
pub fn superseded(snapshot: &NodeSnapshot, keep: Keep, now: Timestamp) -> Vec<Removal> {
    let pods: Vec<&ObservedPod> = snapshot.pods.iter().filter_map(|view| view.observed.as_deref()).collect();
    let mut removals = Vec::new();
    let mut kept: Vec<(Timestamp, ContainerId)> = Vec::new();
    for pod in &pods {
        let mut dead = dead_containers(pod, keep.min_age, now);
        if let Ok(limit) = usize::try_from(keep.per_container) {
            dead.retain(|(place, _, id)| {
                let stays = *place <= limit;
                if !stays {
                    removals.push(Removal::Container(id.clone()));
                }
                stays
            });
        }
        kept.extend(dead.into_iter().filter(|(place, ..)| *place > 0).map(|(_, created, id)| (created, id)));
    }
    if let Ok(limit) = usize::try_from(keep.in_all) {
        kept.sort();
        let surplus = kept.len().saturating_sub(limit);
        removals.extend(kept.drain(..surplus).map(|(_, id)| Removal::Container(id)));
    }
    for pod in pods {
        removals.extend(dead_sandboxes(pod, &removals));
    }
    removals
}

/// Dead instances with their place among the instances of the same container, newest (0) first.
///
/// With a running newest instance, the newest dead one has place 1; so "one dead instance" is kept beside it, as upstream
/// keeps it. When the newest is dead itself, one more may stay for `lastState` until the status has taken it over, which
/// it has when the next one dies.
fn dead_containers(
    pod: &ObservedPod,
    min_age: Duration,
    now: Timestamp,
) -> Vec<(usize, Timestamp, ContainerId)> {
    let min_age = SignedDuration::try_from(min_age).unwrap_or(SignedDuration::MAX);
    pod.containers
        .iter()
        .enumerate()
        .filter(|(_, container)| matches!(container.phase, ContainerPhase::Exited | ContainerPhase::Created))
        .map(|(i, container)| {
            let place = pod.containers.iter().take(i).filter(|newer| newer.name == container.name).count();
            (place, container)
        })
        .filter(|(place, container)| *place > 0 && now.duration_since(container.created_at) >= min_age)
        .map(|(place, container)| (place, container.created_at, container.id.clone()))
        .collect()
}

/// All sandboxes but the newest, unless ready or still with containers in them.
fn dead_sandboxes(pod: &ObservedPod, removals: &[Removal]) -> Vec<Removal> {
    pod.sandboxes
        .iter()
        .skip(1)
        .filter(|sandbox| !sandbox.ready)
        .filter(|sandbox| {
            !pod.containers.iter().any(|container| {
                container.sandbox == sandbox.id
                    && !removals.contains(&Removal::Container(container.id.clone()))
            })
        })
        .map(|sandbox| Removal::Sandbox(sandbox.id.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
