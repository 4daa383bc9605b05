//! A pod's devices: had before anything else of it is made.

use std::{pin::pin, time::Duration};

use mainstay_lifecycle::{HoldCause, Step};
use mainstay_policy::Rejection;
use mainstay_types::{ContainerName, ContainerReason, ObservedPod};
use tracing::warn;

use crate::worker::{Fact, Order, RETRY_AFTER, Shared, hold};

/// Plugins answer in milliseconds; one that takes longer is told of.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Sees to it that the pod holds the devices that it asks for. Whether the steps may be taken.
///
/// A pod of which nothing runs and that cannot have them is turned away, as upstream does; one that runs waits, and tries again: it may
/// be here without them because the file of who holds what was lost.
pub(crate) async fn ready_for(shared: &Shared, order: &Order, steps: &[Step]) -> bool {
    let starts = steps.iter().any(|step| matches!(step, Step::Start { .. } | Step::CreateSandbox { .. }));
    let (devices, pod) = (&shared.config.devices, &order.desired.pod);
    if !starts || !devices.is_due(pod) {
        return true;
    }
    let uid = &order.desired.uid;
    let mut admitted = pin!(order.cancel.cut(devices.admit(pod)));
    let told = tokio::time::timeout(TOLD_AFTER, &mut admitted).await;
    let admitted = match told {
        Ok(admitted) => admitted,
        Err(_) => {
            let message = "a device plugin has not answered yet, or is not back since mainstay was restarted";
            shared.report(uid, Fact::AwaitsDevices { message: message.to_owned() }).await;
            admitted.await
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
            let message = format!("Allocate failed due to {error}, which is unexpected");
            warn!(
                error = &error as &dyn std::error::Error,
                "the pod cannot have the devices that it asks for"
            );
            if order.observed.as_deref().is_some_and(ObservedPod::any_running) {
                let reason = ContainerReason { reason: "CreateContainerConfigError".into(), message };
                for step in steps {
                    let Step::Start { name, .. } = step else { continue };
                    let (name, cause): (ContainerName, _) = (name.clone(), HoldCause::Failed(reason.clone()));
                    hold(shared, uid, name, cause, RETRY_AFTER).await;
                }
            } else {
                let rejection = Rejection { reason: "UnexpectedAdmissionError".to_owned(), message };
                shared.report(uid, Fact::DevicesRefused { rejection }).await;
            }
            false
        }
    }
}
