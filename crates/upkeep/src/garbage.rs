//! What is dead and superseded.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use mainstay_types::{
    ContainerId, ContainerPhase, NodeSnapshot, ObservedContainer, ObservedPod, PodUid, SandboxId,
};

/// How much of the dead is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Dead instances of each container (`--maximum-dead-containers-per-container`); negative keeps all. The newest
    /// instance stays in any case.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Removal {
    /// A container.
    Container(ContainerId),
    /// A sandbox.
    Sandbox(SandboxId),
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(id) => write!(f, "container {id}"),
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
        }
    }
}

/// Removals by pod, each pod's in the order in which they were found.
#[must_use]
pub fn by_pod(snapshot: &NodeSnapshot, removals: Vec<Removal>) -> Vec<(PodUid, Vec<Removal>)> {
    if removals.is_empty() {
        return Vec::new();
    }
    let pods = snapshot.pods.iter().filter_map(|view| view.observed.as_deref());
    let of = |pod: &ObservedPod| {
        let is_its_own = |removal: &&Removal| match removal {
            Removal::Container(id) => pod.containers.iter().any(|container| container.id == *id),
            Removal::Sandbox(id) => pod.sandboxes.iter().any(|sandbox| sandbox.id == *id),
        };
        removals.iter().filter(is_its_own).cloned().collect::<Vec<_>>()
    };
    pods.map(|pod| (pod.uid.clone(), of(pod))).filter(|(_, removals)| !removals.is_empty()).collect()
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
            dead.retain(|(newer, _, id)| {
                let stays = *newer < limit;
                if !stays {
                    removals.push(Removal::Container(id.clone()));
                }
                stays
            });
        }
        kept.extend(dead.into_iter().map(|(_, created, id)| (created, id)));
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

/// The dead instances that may go, each with the number of newer dead ones of the same container. The newest instance,
/// running or dead, is not among them. What an older one says in `lastState` stays in the status without it.
fn dead_containers(
    pod: &ObservedPod,
    min_age: Duration,
    now: Timestamp,
) -> Vec<(usize, Timestamp, ContainerId)> {
    let min_age = SignedDuration::try_from(min_age).unwrap_or(SignedDuration::MAX);
    let mut found = Vec::new();
    for (i, container) in pod.containers.iter().enumerate().filter(|(_, container)| is_dead(container)) {
        let newer = || pod.containers.iter().take(i).filter(|newer| newer.name == container.name);
        // One that was made in the future was made before the clock was set back: it is as old as anything.
        let old = container.created_at > now || now.duration_since(container.created_at) >= min_age;
        if old && newer().next().is_some() {
            let dead = newer().filter(|newer| is_dead(newer)).count();
            found.push((dead, container.created_at, container.id.clone()));
        }
    }
    found
}

const fn is_dead(container: &ObservedContainer) -> bool {
    matches!(container.phase, ContainerPhase::Exited | ContainerPhase::Created)
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
