//! What the API server does not know yet: a pure comparison of this node's pods with its own.

use std::{collections::HashMap, sync::Arc};

use mainstay_types::{ApiPod, ApiPods, FullName, PodSource, PodStage, PodUid, PodView};

/// One pod of this node.
#[derive(Clone, Debug)]
pub(super) struct Local<'a> {
    pub(super) view: &'a Arc<PodView>,
    /// Of the part of its status that is ours.
    pub(super) digest: u64,
    /// No container of it will ever run again, and what it held has been given back.
    pub(super) ended: bool,
    pub(super) is_static: bool,
    pub(super) deleting: bool,
}

impl<'a> Local<'a> {
    pub(super) fn new(view: &'a Arc<PodView>, digest: u64) -> Self {
        Self {
            view,
            digest,
            ended: view.stage == PodStage::Terminated,
            is_static: view.source != PodSource::Api,
            deleting: view.pod.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// What was told of a pod, and what came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Digest of what was sent.
    pub(super) said: u64,
    /// Digest of what the API server made of it.
    pub(super) heard: u64,
    /// The version that it gave it.
    pub(super) version: u64,
    /// It has a terminal phase now.
    pub(super) finished: bool,
}

/// Whom a step is about: what must not be done twice at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) full_name: FullName,
    /// The UID in the API server; empty for a pod that is to be made.
    pub(super) uid: PodUid,
    pub(super) kind: &'static str,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Its status is not what it should be.
    Patch { uid: PodUid, view: Arc<PodView>, digest: u64 },
    /// It was to be deleted, has ended, and its last status is known.
    Delete { uid: PodUid },
    /// A static pod has no likeness in the API server.
    CreateMirror { view: Arc<PodView> },
    /// A likeness of a pod that is no longer, or no longer so.
    DeleteMirror { uid: PodUid },
}

impl Step {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Patch { .. } => "status",
            Self::Delete { .. } => "delete",
            Self::CreateMirror { .. } => "create mirror pod",
            Self::DeleteMirror { .. } => "delete mirror pod",
        }
    }

    fn uid(&self) -> PodUid {
        match self {
            Self::Patch { uid, .. } | Self::Delete { uid } | Self::DeleteMirror { uid } => uid.clone(),
            Self::CreateMirror { .. } => "".into(),
        }
    }
}

/// Everything that is to be told now. `whole`: every source has delivered, so that a mirror pod without its pod is left over.
pub(super) fn steps(
    locals: &[Local<'_>],
    api: &ApiPods,
    told: &HashMap<PodUid, Told>,
    whole: bool,
) -> Vec<(Target, Step)> {
    let mirrors: HashMap<&FullName, &Arc<ApiPod>> =
        api.pods.values().filter(|pod| pod.mirror_of.is_some()).map(|pod| (&pod.full_name, pod)).collect();
    let mut all = Vec::new();
    let mut add = |full_name: &FullName, step: Step| {
        let target = Target { full_name: full_name.clone(), uid: step.uid(), kind: step.name() };
        all.push((target, step));
    };
    for local in locals {
        let name = &local.view.full_name;
        let step = if local.is_static {
            let taken = || api.pods.values().any(|pod| pod.full_name == *name);
            match mirrors.get(name) {
                Some(mirror) => of_static(local, mirror, told),
                // A pod of that name that is none of ours stands in its way.
                None if local.deleting || taken() => None,
                None => Some(Step::CreateMirror { view: Arc::clone(local.view) }),
            }
        } else {
            api.pods.get(&local.view.uid).and_then(|there| of_the_api(local, there, told))
        };
        if let Some(step) = step {
            add(name, step);
        }
    }
    if whole {
        for (name, mirror) in mirrors {
            if !locals.iter().any(|local| local.is_static && local.view.full_name == *name) {
                add(name, Step::DeleteMirror { uid: mirror.uid.clone() });
            }
        }
    }
    all
}

fn of_the_api(local: &Local<'_>, there: &ApiPod, told: &HashMap<PodUid, Told>) -> Option<Step> {
    if let Some(step) = status(local, there, told) {
        return Some(step);
    }
    let answered = told.get(&there.uid).filter(|told| told.version > there.version);
    let finished = answered.map_or(there.finished, |told| told.finished);
    // A finalizer may hold the object for long after it was let go of.
    (there.deleting && !there.released && local.ended && finished)
        .then(|| Step::Delete { uid: there.uid.clone() })
}

fn of_static(local: &Local<'_>, mirror: &ApiPod, told: &HashMap<PodUid, Told>) -> Option<Step> {
    // Deleted by somebody, or made from another version: it is made anew when it is gone.
    if mirror.deleting || mirror.mirror_of.as_ref() != Some(&local.view.uid) {
        return Some(Step::DeleteMirror { uid: mirror.uid.clone() });
    }
    status(local, mirror, told)
}

fn status(local: &Local<'_>, there: &ApiPod, told: &HashMap<PodUid, Told>) -> Option<Step> {
    let told = told.get(&there.uid);
    // What is over was told in an earlier life, perhaps by another kubelet, and does not change any more; but a static pod that was
    // turned away, or made room for another, comes again when there is room, and its likeness with it.
    if there.finished && told.is_none() && (!local.is_static || is_over(local.view)) {
        return None;
    }
    // The API server's word that a pod is over is on its way to whoever ends it; it is not taken back meanwhile.
    let newer = told.is_none_or(|told| told.version < there.version);
    if there.finished && newer && !local.is_static && !is_over(local.view) {
        return None;
    }
    let known =
        told.filter(|told| told.version >= there.version).map_or(there.status_digest, |told| told.heard);
    // What was said and is not kept as it was said is not said again, unless something else has changed.
    let said = told.is_some_and(|told| told.said == local.digest && told.heard == known);
    let (uid, view) = (there.uid.clone(), Arc::clone(local.view));
    (known != local.digest && !said).then_some(Step::Patch { uid, view, digest: local.digest })
}

fn is_over(view: &PodView) -> bool {
    matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests;
