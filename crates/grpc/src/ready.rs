//! Whether everything is known that an answer speaks of.

use std::sync::Arc;

use mainstay_types::NodeSnapshot;

use crate::wire::{Code, Status};

/// What is told when nothing has been read yet.
const INITIALIZING: &str = "Kubelet is initializing";

/// The newest snapshot, if anything has been read yet.
pub(crate) fn begun(snapshot: Option<&Arc<NodeSnapshot>>) -> Result<Arc<NodeSnapshot>, Status> {
    snapshot.cloned().ok_or_else(|| Status::new(Code::FailedPrecondition, INITIALIZING))
}

/// The snapshot, if all pods that belong to this node are in it, if only as their source told of them in an earlier life. One is published without
/// those of a source that never answered, and says so (docs/decisions/0005); these answers have no place to say it, and who reads one takes a pod
/// that is missing for one that has gone.
pub(crate) fn whole(snapshot: Option<&Arc<NodeSnapshot>>) -> Result<Arc<NodeSnapshot>, Status> {
    let snapshot = begun(snapshot)?;
    let unknown: Vec<_> = snapshot.desired.unknown().map(|source| source.name.as_str()).collect();
    if unknown.is_empty() {
        return Ok(snapshot);
    }
    let message = format!("{INITIALIZING}: its pods are not known yet from {}", unknown.join(", "));
    Err(Status::new(Code::FailedPrecondition, message))
}
