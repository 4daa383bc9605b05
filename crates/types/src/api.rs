//! What the API server has of this node's pods: small values, from which it is seen what it does not know yet.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PodCondition, Taint};
use serde::{Deserialize, Serialize};

use crate::{FullName, PodFailure, PodUid, TerminalPhase};

/// What of the status in the API server bears on the pod itself: what others wrote into it, and what an earlier life of
/// this node did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteStatus {
    /// The pod is over, by the API server's word: it is not run again.
    pub finished: Option<TerminalPhase>,
    /// Why, if it failed for a reason.
    pub failure: Option<PodFailure>,
    /// When a kubelet first saw it.
    pub start_time: Option<Timestamp>,
    /// Conditions: those of others as they are now, our own as they were when the pod was first seen.
    pub conditions: Vec<PodCondition>,
}

/// The pods of this node in the API server, mirror pods among them, as one immutable value.
#[derive(Clone, Debug, Default)]
pub struct ApiPods {
    /// The API server has listed them: what is not here is not there.
    pub listed: bool,
    /// By UID.
    pub pods: Arc<BTreeMap<PodUid, Arc<ApiPod>>>,
    /// How often the Node object was seen to vanish while mainstay runs.
    pub node_losses: u64,
    /// How often versions were seen to go back: the API server's store was put back to what it was before, and what it answered since is
    /// not there any more.
    pub rewinds: u64,
    /// What it says of how the node is.
    pub node: ApiNode,
    /// What kept pods from the Node object when it was last seen; `None` while it was not in this life.
    pub barriers: Option<Arc<Barriers>>,
}

/// What keeps pods from a node by somebody's word: its cordon and its taints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Barriers {
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
}

impl Barriers {
    /// Those of a Node object.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        Self {
            unschedulable: spec.and_then(|it| it.unschedulable).unwrap_or_default(),
            taints: spec.and_then(|it| it.taints.clone()).unwrap_or_default(),
        }
    }
}

/// What the Node object in the API server says that is ours to say, but may be said by others while they do not hear of us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiNode {
    /// `metadata.resourceVersion` as a number; 0 before it was seen.
    pub version: u64,
    /// Digest of the conditions that a kubelet has.
    pub conditions: u64,
    /// It has addresses, whoever wrote them.
    pub has_addresses: bool,
}

/// One pod in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPod {
    /// Its UID there; a mirror pod has another one than the static pod.
    pub uid: PodUid,
    /// Namespace and name.
    pub full_name: FullName,
    /// `metadata.resourceVersion` as a number.
    pub version: u64,
    /// Digest of the part of its status that is ours.
    pub status_digest: u64,
    /// It has a terminal phase.
    pub finished: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Nobody's grace holds its object any more, only finalizers do.
    pub released: bool,
    /// For a mirror pod: the UID of the static pod that it shows.
    pub mirror_of: Option<PodUid>,
}
