//! Which container or sandbox is meant, and the words for "there is none" that differ from endpoint to endpoint.

use http::StatusCode;
use mainstay_types::{ContainerPhase, FullName, NodeSnapshot, ObservedContainer, ObservedPod, PodView};

use super::{Refused, internal};
use crate::answer;

/// The namespace, pod, UID (where the path has one) and container of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) uid: Option<&'a str>,
    pub(super) container: &'a str,
}

impl<'a> Named<'a> {
    /// From the values of a path that names a container.
    pub(super) fn of_container(values: &[&'a str]) -> Result<Self, Refused> {
        match *values {
            [namespace, pod, container] => Ok(Self { namespace, pod, uid: None, container }),
            [namespace, pod, uid, container] => Ok(Self { namespace, pod, uid: Some(uid), container }),
            _ => Err(answer::unknown_sub_path().into()),
        }
    }

    /// From the values of a path that names a pod.
    pub(super) fn of_pod(values: &[&'a str]) -> Result<Self, Refused> {
        match *values {
            [namespace, pod] => Ok(Self { namespace, pod, uid: None, container: "" }),
            [namespace, pod, uid] => Ok(Self { namespace, pod, uid: Some(uid), container: "" }),
            _ => Err(answer::unknown_sub_path().into()),
        }
    }

    /// Upstream's name for a pod in texts: `NAME_NAMESPACE`.
    pub(super) fn full_name(&self) -> String {
        format!("{}_{}", self.pod, self.namespace)
    }

    /// The pod, or the 404 that all of these endpoints give.
    pub(super) fn view<'s>(&self, snapshot: &'s NodeSnapshot) -> Result<&'s PodView, Refused> {
        match snapshot.by_name(&FullName::new(self.namespace, self.pod)) {
            Some(view) => Ok(view),
            None => Err(answer::plain(StatusCode::NOT_FOUND, "pod does not exist").into()),
        }
    }

    /// The running instance of the container.
    pub(super) fn running<'s>(
        &self,
        snapshot: &'s NodeSnapshot,
        view: &'s PodView,
    ) -> Option<&'s ObservedContainer> {
        let pod = observed(snapshot, view)?;
        pod.containers
            .iter()
            .find(|it| it.name.as_str() == self.container && it.phase == ContainerPhase::Running)
    }

    /// For exec and run: by name alone, whatever UID the path has.
    pub(super) fn for_command<'s>(
        &self,
        snapshot: &'s NodeSnapshot,
        view: &'s PodView,
    ) -> Result<&'s ObservedContainer, Refused> {
        self.running(snapshot, view)
            .ok_or_else(|| internal(format!("container not found ({:?})", self.container)))
    }

    /// For attach: the UID counts.
    pub(super) fn for_attach<'s>(
        &self,
        snapshot: &'s NodeSnapshot,
        view: &'s PodView,
    ) -> Result<&'s ObservedContainer, Refused> {
        let full_name = self.full_name();
        if self.is_another(view) || observed(snapshot, view).is_none_or(ObservedPod::is_nothing) {
            return Err(internal(format!("pod {full_name} not found")));
        }
        self.running(snapshot, view)
            .ok_or_else(|| internal(format!("container {} not found in pod {full_name}", self.container)))
    }

    /// For portForward: the sandbox in use.
    pub(super) fn sandbox(&self, snapshot: &NodeSnapshot, view: &PodView) -> Result<String, Refused> {
        if self.is_another(view) {
            return Err(answer::plain(StatusCode::NOT_FOUND, "pod not found").into());
        }
        let sandbox = observed(snapshot, view).and_then(ObservedPod::ready_sandbox);
        match sandbox {
            Some(sandbox) => Ok(sandbox.id.as_str().to_owned()),
            None => Err(internal(format!("pod not found ({:?})", self.full_name()))),
        }
    }

    fn is_another(&self, view: &PodView) -> bool {
        self.uid.is_some_and(|uid| uid != view.uid.as_str())
    }
}

fn observed<'s>(snapshot: &'s NodeSnapshot, view: &'s PodView) -> Option<&'s ObservedPod> {
    snapshot.observed.pods.get(&view.uid).or(view.observed.as_ref()).map(AsRef::as_ref)
}
