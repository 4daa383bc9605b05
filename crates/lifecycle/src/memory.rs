//! What must be remembered about a pod because no look at the runtime can tell it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use mainstay_types::{
    ContainerId, ContainerName, ContainerPhase, ContainerReason, Deletion, ObservedPod, PodFailure,
    TerminalPhase,
};
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
    /// Whether it was let in. Who was stays in: a restart of mainstay is no reason to turn a pod out.
    #[serde(default = "Admission::before_there_was_a_door")]
    pub admission: Admission,
    /// The pod is over.
    #[serde(default)]
    pub finished: Option<TerminalPhase>,
    /// Why, if not because of its containers.
    #[serde(default)]
    pub failure: Option<PodFailure>,
    /// Who made it end wants it gone within so many seconds, if not its own grace is shorter.
    #[serde(default)]
    pub grace_seconds: Option<i64>,
    /// All containers are being restarted because one of them ended in a way that asks for it.
    #[serde(default)]
    pub restarting_all: bool,
    /// Its source has let go of it.
    #[serde(default)]
    pub deletion: Option<Deletion>,
    /// When its end was begun: what it has had of its grace is not given again.
    #[serde(default)]
    pub stopping_since: Option<Timestamp>,
    /// When the preStop hook of a container was begun, which is done once.
    #[serde(default)]
    pub pre_stops: BTreeMap<ContainerId, Timestamp>,
    /// Containers whose postStart hook has not ended: they have not started, whatever the runtime says.
    #[serde(default)]
    pub hooking: BTreeSet<ContainerId>,
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
            admission: Admission::Unjudged,
            finished: None,
            failure: None,
            grace_seconds: None,
            restarting_all: false,
            deletion: None,
            stopping_since: None,
            pre_stops: BTreeMap::new(),
            hooking: BTreeSet::new(),
        }
    }

    /// How much of its grace a pod that is ending has had. A clock that was set back takes nothing from it.
    #[must_use]
    pub fn grace_spent(&self, now: Timestamp) -> Duration {
        self.stopping_since
            .and_then(|since| Duration::try_from(now.duration_since(since)).ok())
            .unwrap_or_default()
    }

    /// Images that are not pulled again yet, with what went wrong. A back-off belongs to the image, whoever wants it.
    #[must_use]
    pub fn pulls_that_wait(&self, now: Timestamp) -> BTreeMap<String, HoldCause> {
        let waits = |entry: &BackoffEntry| entry.updated <= now && entry.ends() > now;
        let cause = |wanted: &str| {
            let known = self.holds.values().map(|hold| &hold.cause);
            let same = |cause: &&HoldCause| matches!(cause, HoldCause::Pull { image, .. } if image == wanted);
            known.into_iter().find(same).cloned().unwrap_or_else(|| HoldCause::Pull {
                image: wanted.to_owned(),
                reason: "ErrImagePull".into(),
                message: "it could not be pulled".into(),
            })
        };
        let waiting = self.pulls.iter().filter(|(_, entry)| waits(entry));
        waiting.map(|(image, _)| (image.clone(), cause(image))).collect()
    }

    /// Forgets what was remembered of containers that are over.
    pub fn forget_ended(&mut self, observed: Option<&ObservedPod>) {
        let lives = |id: &ContainerId| {
            let containers = observed.into_iter().flat_map(|observed| &observed.containers);
            containers.into_iter().any(|c| c.id == *id && c.phase != ContainerPhase::Exited)
        };
        self.pre_stops.retain(|id, _| lives(id));
        self.hooking.retain(lives);
    }

    /// The hold on a container that is still in force.
    #[must_use]
    pub fn hold(&self, name: &str, now: Timestamp) -> Option<&Hold> {
        // One that began in the future was written before the clock was set back: it would hold for years.
        self.holds.get(name).filter(|hold| hold.until > now && hold.since <= now)
    }
}

/// Whether a pod may run on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admission {
    /// Nobody has looked yet.
    Unjudged,
    /// It may, as long as it is wanted.
    Admitted,
    /// It may not; [`PodMemory::failure`] says why.
    Rejected,
}

impl Admission {
    /// Versions that wrote nothing about it let in every pod of which they kept a record.
    fn before_there_was_a_door() -> Self {
        Self::Admitted
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
    /// A volume of the pod, for which all of its containers wait.
    Volumes(ContainerReason),
    /// Anything else, shown as it is.
    Failed(ContainerReason),
}

/// For how long after a failed pull its error is shown rather than the back-off, as upstream's retry rhythm shows it.
const SHOW_PULL_ERROR: SignedDuration = SignedDuration::from_secs(10);

impl Hold {
    /// One on a container whose image waits already for a pull that failed for another: a back-off from the beginning.
    #[must_use]
    pub fn on_pull_of_another(at: Timestamp, until: Timestamp, cause: HoldCause) -> Self {
        Self { since: at.checked_sub(SHOW_PULL_ERROR).unwrap_or(at), until, cause }
    }

    /// What to show as the container's waiting reason at `now`.
    #[must_use]
    pub fn reason(&self, now: Timestamp) -> ContainerReason {
        match &self.cause {
            HoldCause::Failed(reason) | HoldCause::Volumes(reason) => reason.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_say_nothing_of_the_door_are_of_pods_that_were_let_in() {
        let old: PodMemory =
            serde_json::from_value(serde_json::json!({ "startTime": "2026-01-01T00:00:00Z" })).unwrap();
        assert_eq!(old.admission, Admission::Admitted);
        for admission in [Admission::Unjudged, Admission::Admitted, Admission::Rejected] {
            let memory = PodMemory { admission, ..PodMemory::new(Timestamp::UNIX_EPOCH) };
            let text = serde_json::to_string(&memory).unwrap();
            assert_eq!(serde_json::from_str::<PodMemory>(&text).unwrap(), memory);
        }
    }
}
