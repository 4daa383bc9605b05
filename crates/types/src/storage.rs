//! What pods may write to the node's disk, and what they have written.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;

use crate::{ContainerName, PodUid, Quantity};

/// How much a pod may write, as far as it says. Without any of it, the pod need not be measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageLimits {
    /// `sizeLimit` of its emptyDir volumes, by volume name, in spec order.
    pub volumes: Vec<(String, Quantity)>,
    /// `limits.ephemeral-storage` of its app containers, in spec order.
    pub containers: Vec<(ContainerName, Quantity)>,
    /// The sum for the whole pod.
    pub total: Option<Quantity>,
}

impl StorageLimits {
    /// Whether the pod sets no limit at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && !self.counts_containers()
    }

    /// Whether what its containers write outside volumes matters.
    #[must_use]
    pub fn counts_containers(&self) -> bool {
        self.total.is_some() || !self.containers.is_empty()
    }
}

/// What one pod was measured to use. A part that could not be measured counts as nothing, so that every number is
/// at most the truth.
#[derive(Clone, Debug)]
pub struct PodStorage {
    /// The pod that was measured: the same pointer as in the desired state, or it was another life of that UID.
    pub pod: Arc<Pod>,
    /// Its limits.
    pub limits: Arc<StorageLimits>,
    /// Bytes in each measured volume, by volume name.
    pub volumes: BTreeMap<String, u64>,
    /// Bytes that each container wrote: its writable layer, where that lies on the node's own disk, and its logs.
    pub containers: BTreeMap<ContainerName, u64>,
    /// All bytes that count for the pod's sum.
    pub total: u64,
}

/// The measurements of all pods that set limits, as one immutable value.
#[derive(Clone, Debug, Default)]
pub struct StorageUsage {
    /// Counts up with every measurement.
    pub generation: u64,
    /// By UID.
    pub pods: HashMap<PodUid, Arc<PodStorage>>,
}
