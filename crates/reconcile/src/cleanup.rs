//! After a pod has stopped.

use mainstay_cri::CriError;
use mainstay_types::ObservedPod;
use tracing::debug;

use crate::{
    files::{self, FileError},
    volumes::{self, TearDownError},
    worker::{Order, Shared},
};

/// Why something is left over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    /// The runtime would not remove its part.
    #[error("the runtime did not remove a part of the pod: {0}")]
    Runtime(#[from] CriError),
    /// The disk would not.
    #[error(transparent)]
    Files(#[from] FileError),
    /// A volume would not.
    #[error(transparent)]
    Volumes(#[from] TearDownError),
}

/// Gives back what a pod that is over but still wanted does not need. Its last containers stay, for their logs.
pub(crate) async fn settle(shared: &Shared, order: &Order) -> Result<(), CleanupError> {
    volumes::tear_down(shared, order).await?;
    files::remove_cgroup(shared, &order.desired).await?;
    Ok(())
}

/// Removes every trace of a pod that nobody wants: containers, sandboxes, cgroup, directories, logs.
pub(crate) async fn remove(shared: &Shared, order: &Order) -> Result<(), CleanupError> {
    if let Some(observed) = order.observed.as_deref() {
        remove_from_runtime(shared, observed).await?;
    }
    volumes::tear_down(shared, order).await?;
    files::remove_cgroup(shared, &order.desired).await?;
    files::remove_pod(shared, order).await?;
    debug!("every trace of the pod is removed");
    Ok(())
}

async fn remove_from_runtime(shared: &Shared, observed: &ObservedPod) -> Result<(), CriError> {
    for container in &observed.containers {
        shared.config.cri.remove_container(container.id.as_str()).await?;
    }
    for sandbox in &observed.sandboxes {
        // A sandbox that died by itself still holds its network until it is stopped.
        shared
            .config
            .cri
            .stop_sandbox(sandbox.id.as_str())
            .await
            .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })?;
        shared.config.cri.remove_sandbox(sandbox.id.as_str()).await?;
    }
    Ok(())
}
