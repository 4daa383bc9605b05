//! A container as planner and status both see it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_types::{ContainerKind, ContainerPhase, ObservedContainer, ObservedPod, PodExt, TerminalPhase};

use crate::restart::{AfterExit, after_exit};

/// One container of the spec with what the runtime shows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) kind: ContainerKind,
    pub(crate) spec: &'a Container,
    /// The newest instance, in whichever sandbox.
    pub(crate) newest: Option<&'a ObservedContainer>,
}

impl View<'_> {
    pub(crate) fn phase(&self) -> Option<ContainerPhase> {
        self.newest.map(|container| container.phase)
    }

    /// It ended with a failure that counts: also a kill for memory, whatever the exit code says.
    pub(crate) fn failed(&self) -> bool {
        self.newest.is_some_and(|container| {
            container.phase == ContainerPhase::Exited
                && (container.exit_code != 0 || &*container.reason == "OOMKilled")
        })
    }

    pub(crate) fn after_exit(&self, pod: &Pod) -> Option<AfterExit> {
        self.newest.filter(|container| container.phase == ContainerPhase::Exited).map(|container| {
            // A kill for memory is a failure of an init container, whatever exit code its parent made of it.
            let killed = self.kind == ContainerKind::Init && self.failed();
            let code = if killed && container.exit_code == 0 { 137 } else { container.exit_code };
            after_exit(pod, self.kind, self.spec, code)
        })
    }
}

/// All containers of the spec but ephemeral ones, in start order.
pub(crate) fn views<'a>(pod: &'a Pod, observed: Option<&'a ObservedPod>) -> Vec<View<'a>> {
    pod.all_containers()
        .map(|(kind, spec)| View { kind, spec, newest: observed.and_then(|o| o.newest(&spec.name)) })
        .collect()
}

/// What `status.phase` is, apart from failures that come from outside the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Over(TerminalPhase),
}

/// Whether init is over: a regular container was made in the sandbox in use (or, for a sandbox that is gone, in any).
pub(crate) fn initialized(pod: &Pod, observed: Option<&ObservedPod>) -> bool {
    let Some(observed) = observed else { return false };
    let current = observed.sandboxes.first().map(|sandbox| &sandbox.id);
    observed.containers.iter().any(|container| {
        current.is_none_or(|id| *id == container.sandbox)
            && pod.spec_ref().containers.iter().any(|spec| spec.name == container.name.as_str())
    })
}

/// The phase as the containers tell it. `ending`: nothing will be started any more.
pub(crate) fn phase(pod: &Pod, observed: Option<&ObservedPod>, ending: bool) -> Phase {
    let all = views(pod, observed);
    let initialized = initialized(pod, observed);
    let mut pending_init = false;
    for view in all.iter().filter(|view| matches!(view.kind, ContainerKind::Init | ContainerKind::Sidecar)) {
        match (view.kind, view.phase()) {
            (ContainerKind::Init, _) if view.failed() && !initialized => {
                if ending || view.after_exit(pod) == Some(AfterExit::Stay) {
                    return Phase::Over(TerminalPhase::Failed);
                }
                pending_init = true;
            }
            (ContainerKind::Init, Some(ContainerPhase::Exited)) => {}
            (ContainerKind::Sidecar, Some(ContainerPhase::Running | ContainerPhase::Exited)) => {}
            _ => pending_init |= !initialized,
        }
    }

    let regular: Vec<_> = all.iter().filter(|view| view.kind == ContainerKind::Regular).collect();
    let count = |phase| regular.iter().filter(|view| view.phase() == phase).count();
    let running = count(Some(ContainerPhase::Running));
    let unknown = count(Some(ContainerPhase::Unknown));
    let stopped = count(Some(ContainerPhase::Exited));
    // A container that was made but not started waits; one that waits after an earlier end counts as stopped.
    let waiting_new = regular
        .iter()
        .filter(|view| matches!(view.phase(), None | Some(ContainerPhase::Created)))
        .filter(|view| {
            observed.is_none_or(|o| !o.instances(&view.spec.name).any(|c| c.phase == ContainerPhase::Exited))
        })
        .count();
    let stopped = stopped
        + regular
            .iter()
            .filter(|view| matches!(view.phase(), None | Some(ContainerPhase::Created)))
            .count()
            .saturating_sub(waiting_new);

    if pending_init && !ending {
        return Phase::Pending;
    }
    if waiting_new > 0 && !(ending && running == 0 && unknown == 0 && stopped > 0) {
        return Phase::Pending;
    }
    if running > 0 && unknown == 0 {
        return Phase::Running;
    }
    if running == 0 && stopped > 0 && unknown == 0 {
        let all_well =
            regular.iter().all(|view| view.newest.is_some_and(|c| c.exit_code == 0) && !view.failed());
        let over = Phase::Over(if all_well { TerminalPhase::Succeeded } else { TerminalPhase::Failed });
        if ending {
            return over;
        }
        let again = regular.iter().any(|view| {
            matches!(view.phase(), None | Some(ContainerPhase::Created))
                || matches!(view.after_exit(pod), Some(AfterExit::Restart | AfterExit::RestartAll))
        });
        return if again { Phase::Running } else { over };
    }
    Phase::Pending
}

/// The later of two optional times' earlier one: when to look again.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
