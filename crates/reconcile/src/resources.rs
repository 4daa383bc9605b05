//! A pod's CPUs, memory and devices: had before anything else of it is made.

use std::{pin::pin, time::Duration};

use mainstay_lifecycle::{HoldCause, Step};
use mainstay_policy::Rejection;
use mainstay_types::{ContainerName, ContainerPhase, ContainerReason};
use tracing::warn;

use crate::worker::{Fact, Order, RETRY_AFTER, Shared, hold};

/// Plugins answer in milliseconds, and holders are looked up as fast; what takes longer is told of.
const TOLD_AFTER: Duration = Duration::from_secs(1);
/// Why containers wait here.
const FOR_PLUGIN: &str = "WaitingForDevicePlugin";
const FOR_HOLDERS: &str = "WaitingForResourceState";
/// All of these.
pub(crate) const WAITS: [&str; 2] = [FOR_PLUGIN, FOR_HOLDERS];

/// Sees to it that the pod holds the CPUs, memory and devices that it asks for. Whether the steps may be taken.
///
/// A pod of which nothing runs and that cannot have them is turned away, as upstream does; one that runs goes on without CPUs and memory of
/// its own. For devices it waits, and tries again: it may be here without them because the file of who holds what was lost.
pub(crate) async fn ready_for(shared: &Shared, order: &Order, steps: &[Step]) -> bool {
    let starts = steps.iter().any(|step| matches!(step, Step::Start { .. } | Step::CreateSandbox { .. }));
    let (resources, pod) = (&shared.config.resources, &order.desired.pod);
    if !starts {
        return true;
    }
    let runs = |name: &str| {
        let containers = order.observed.iter().flat_map(|pod| &pod.containers);
        containers.into_iter().any(|it| it.name.as_str() == name && it.phase == ContainerPhase::Running)
    };
    resources.devices().note_running(&order.desired.uid, runs);
    if !resources.is_due(pod) {
        if steps.iter().any(|step| matches!(step, Step::CreateSandbox { attempt: 0, .. })) {
            resources.count_admission();
        }
        return true;
    }
    let uid = &order.desired.uid;
    let mut span = mainstay_trace::child("resources");
    let mut admitted = pin!(order.cancel.cut(resources.admit(pod)));
    let mut told = None;
    let admitted = loop {
        if let Ok(admitted) = tokio::time::timeout(TOLD_AFTER, &mut admitted).await {
            break admitted;
        }
        let (reason, message) = if resources.is_lost() {
            let message = "the file that said who holds which CPUs, memory and devices was lost, and it is not known yet whose the containers are that run, or what they have: the API server has not said, or the runtime does not answer about a pod";
            (FOR_HOLDERS, message.to_owned())
        } else if let Some(resource) = resources.devices().awaited_by(uid) {
            let message = format!(
                "the device plugin of {resource} has not answered yet, or is not back since mainstay was restarted"
            );
            (FOR_PLUGIN, message)
        } else {
            // The disk, say, which has nothing to do with the pod.
            continue;
        };
        if told != Some(reason) {
            told = Some(reason);
            shared.report(uid, Fact::AwaitsResources { reason, message }).await;
        }
    };
    match admitted {
        // The pod is to end, or mainstay.
        None => false,
        Some(Ok(())) => {
            shared.report(uid, Fact::ResourcesUp).await;
            true
        }
        Some(Err(error)) => {
            let (reason, message) = error.refusal();
            span.fail(&message);
            // That it has no container right now, because it has just ended, does not make it a newcomer.
            let runs = order.observed.as_deref().is_some_and(|pod| !pod.containers.is_empty());
            warn!(
                error = &error as &dyn std::error::Error,
                runs, "the pod cannot have the CPUs, memory or devices that it asks for"
            );
            if runs && error.leaves_it_running() {
                return true;
            }
            if runs {
                let reason = ContainerReason { reason: "CreateContainerConfigError".into(), message };
                for step in steps {
                    let Step::Start { name, .. } = step else { continue };
                    let (name, cause): (ContainerName, _) = (name.clone(), HoldCause::Failed(reason.clone()));
                    hold(shared, uid, name, cause, RETRY_AFTER).await;
                }
            } else {
                let rejection = Rejection { reason: reason.to_owned(), message };
                shared.report(uid, Fact::DevicesRefused { rejection }).await;
            }
            false
        }
    }
}
