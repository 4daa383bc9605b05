//! A pod's CPUs, memory and devices: had before anything else of it is made.

use std::{pin::pin, time::Duration};

use mainstay_lifecycle::{HoldCause, Step};
use mainstay_policy::Rejection;
use mainstay_types::{ContainerName, ContainerPhase, ContainerReason};
use tracing::warn;

use crate::worker::{Fact, Order, RETRY_AFTER, Shared, hold};

/// Plugins answer in milliseconds; one that takes longer is told of.
const TOLD_AFTER: Duration = Duration::from_secs(1);

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
    let mut told = false;
    let admitted = loop {
        if let Ok(admitted) = tokio::time::timeout(TOLD_AFTER, &mut admitted).await {
            break admitted;
        }
        // It may be something else that takes long: the disk, or that it is not known yet who holds what.
        if let Some(resource) = resources.devices().awaited_by(uid).filter(|_| !told) {
            told = true;
            let message = format!(
                "the device plugin of {resource} has not answered yet, or is not back since mainstay was restarted"
            );
            shared.report(uid, Fact::AwaitsDevices { message }).await;
        }
    };
    match admitted {
        // The pod is to end, or mainstay.
        None => false,
        Some(Ok(())) => {
            shared.report(uid, Fact::DevicesUp).await;
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
