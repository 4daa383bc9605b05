//! What reconcile is doing about each pod: the part of a status that no look at the runtime can tell.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ContainerId, ContainerName, DesiredPod, PodUid};

/// Reconcile's report about all pods it is responsible for, as one immutable value.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Counts up with every change; 0 means that reconcile has not looked yet.
    pub generation: u64,
    /// Every source had delivered, or been waited for, when reconcile looked at all pods: this is the whole.
    pub synced: bool,
    /// By UID.
    pub pods: Arc<HashMap<PodUid, Arc<PodOutcome>>>,
}

/// Reconcile's report about one pod.
#[derive(Clone, Debug)]
pub struct PodOutcome {
    /// The pod as reconcile last acted on it.
    pub desired: Arc<DesiredPod>,
    /// How far it is.
    pub stage: PodStage,
    /// When mainstay first saw the pod (`status.startTime`).
    pub start_time: Timestamp,
    /// Why a container is not running, by container name.
    pub reasons: BTreeMap<ContainerName, ContainerReason>,
    /// The pod is over: nothing of it is started any more.
    pub finished: Option<TerminalPhase>,
    /// It is over for this reason, whatever its containers say.
    pub failure: Option<PodFailure>,
    /// It was not let in, for the reason in `failure`: nothing of it was ever made.
    pub rejected: bool,
    /// Containers whose postStart hook still runs are not `started`.
    pub not_started: Vec<ContainerId>,
    /// When its source let go of it, and the grace it was given (`metadata.deletionTimestamp` and its companion).
    pub deletion: Option<Deletion>,
    /// All containers are being restarted because one of them asked for it.
    pub restarting_all: bool,
}

/// A pod that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Since when.
    pub since: Timestamp,
    /// With how many seconds of grace.
    pub grace_seconds: i64,
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TerminalPhase {
    /// Every container ended well.
    Succeeded,
    /// One did not, or the pod was ended from outside.
    Failed,
}

impl TerminalPhase {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Where a pod is in its life on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PodStage {
    /// It waits for another pod of the same name to end.
    Waiting,
    /// It is kept running.
    Syncing,
    /// It is being stopped.
    Terminating,
    /// All containers have stopped for good.
    Terminated,
}

/// Why a container is waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerReason {
    /// `CrashLoopBackOff`, `ErrImagePull` …
    pub reason: String,
    /// The text for people.
    pub message: String,
}

/// Why a whole pod failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFailure {
    /// `DeadlineExceeded`, `Evicted`, an admission reason …
    pub reason: String,
    /// The text for people.
    pub message: String,
}
