//! What must be remembered about a pod because no look at the runtime can tell it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_types::{ContainerName, ContainerReason, Deletion, PodFailure, TerminalPhase};
use serde::{Deserialize, Serialize};

use crate::BackoffEntry;

/// One pod's memory. Kept on disk, so that a restart of mainstay changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemory {
    /// When the pod was first seen.
    pub start_time: Timestamp,
    /// Crash back-offs, by [`crate::crash_key`].
    #[serde(default)]
    pub crashes: BTreeMap<String, BackoffEntry>,
    /// Pull back-offs, by image.
    #[serde(default)]
    pub pulls: BTreeMap<String, BackoffEntry>,
    /// Containers (or, under the empty name, the sandbox) that are not tried again before a certain time.
    #[serde(default)]
    pub holds: BTreeMap<ContainerName, Hold>,
    /// The pod is over.
    #[serde(default)]
    pub finished: Option<TerminalPhase>,
    /// Why, if not because of its containers.
    #[serde(default)]
    pub failure: Option<PodFailure>,
    /// All containers are being restarted because one of them ended in a way that asks for it.
    #[serde(default)]
    pub restarting_all: bool,
    /// Its source has let go of it.
    #[serde(default)]
    pub deletion: Option<Deletion>,
}

impl PodMemory {
    /// The memory of a pod seen for the first time.
    #[must_use]
    pub fn new(start_time: Timestamp) -> Self {
        Self {
            start_time,
            crashes: BTreeMap::new(),
            pulls: BTreeMap::new(),
            holds: BTreeMap::new(),
            finished: None,
            failure: None,
            restarting_all: false,
            deletion: None,
        }
    }

    /// The hold on a container that is still in force.
    #[must_use]
    pub fn hold(&self, name: &str, now: Timestamp) -> Option<&Hold> {
        // One that began in the future was written before the clock was set back: it would hold for years.
        self.holds.get(name).filter(|hold| hold.until > now && hold.since <= now)
    }
}

/// The key under which the sandbox's hold is kept.
pub const SANDBOX_HOLD: &str = "";

/// A thing that failed and is not tried again before `until`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// When it failed.
    pub since: Timestamp,
    /// When it may be tried again.
    pub until: Timestamp,
    /// What failed.
    pub cause: HoldCause,
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldCause {
    /// A pull: the first ten seconds it is shown as the error itself, then as a back-off.
    Pull {
        /// The image as the pod names it.
        image: String,
        /// `ErrImagePull`, `RegistryUnavailable` …
        reason: String,
        /// The error.
        message: String,
    },
    /// Anything else, shown as it is.
    Failed(ContainerReason),
}

/// For how long after a failed pull its error is shown rather than the back-off, as upstream's retry rhythm shows it.
const SHOW_PULL_ERROR: SignedDuration = SignedDuration::from_secs(10);

impl Hold {
    /// What to show as the container's waiting reason at `now`.
    #[must_use]
    pub fn reason(&self, now: Timestamp) -> ContainerReason {
        match &self.cause {
            HoldCause::Failed(reason) => reason.clone(),
            HoldCause::Pull { reason, message, .. } if now.duration_since(self.since) < SHOW_PULL_ERROR => {
                ContainerReason { reason: reason.clone(), message: message.clone() }
            }
            HoldCause::Pull { image, reason, message } => ContainerReason {
                reason: "ImagePullBackOff".into(),
                message: format!("Back-off pulling image \"{image}\": {reason}: {message}"),
            },
        }
    }

    /// When what [`Self::reason`] shows changes by itself.
    #[must_use]
    pub fn changes_at(&self, now: Timestamp) -> Timestamp {
        match (&self.cause, self.since.checked_add(SHOW_PULL_ERROR)) {
            (HoldCause::Pull { .. }, Ok(change)) if change > now && change < self.until => change,
            _ => self.until,
        }
    }
}
