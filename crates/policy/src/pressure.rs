//! What the node runs short of: eviction thresholds held against what was measured.
//!
//! The rules are upstream's (`pkg/kubelet/eviction/eviction_manager.go` of 1.37, `synchronize`): a threshold counts from the
//! moment at which it is crossed, a soft one also within its grace period; one whose grace period is over counts until
//! `evictionMinimumReclaim` is free on top of it; and a condition holds on for `evictionPressureTransitionPeriod` after the
//! last crossing, so that it does not flap. Where upstream forgets a threshold whose signal cannot be read, here it stays as it
//! was: not to know is no evidence.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_types::{NodePressure, PressureKind, Quantity};
use serde::{Deserialize, Serialize};

use crate::allocatable::threshold;

/// Something measured that may run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Signal {
    /// Memory that is not in use, less what can be taken back at once.
    #[serde(rename = "memory.available")]
    MemoryAvailable,
    /// The same within what all pods together may use.
    #[serde(rename = "allocatableMemory.available")]
    AllocatableMemoryAvailable,
    /// Space on the file system of the root directory.
    #[serde(rename = "nodefs.available")]
    NodefsAvailable,
    /// Inodes there.
    #[serde(rename = "nodefs.inodesFree")]
    NodefsInodesFree,
    /// Space on the file system of images.
    #[serde(rename = "imagefs.available")]
    ImagefsAvailable,
    /// Inodes there.
    #[serde(rename = "imagefs.inodesFree")]
    ImagefsInodesFree,
    /// Process IDs.
    #[serde(rename = "pid.available")]
    PidAvailable,
}

impl Signal {
    /// All that a configuration can name.
    const CONFIGURABLE: [(&'static str, Self); 6] = [
        ("memory.available", Self::MemoryAvailable),
        ("nodefs.available", Self::NodefsAvailable),
        ("nodefs.inodesFree", Self::NodefsInodesFree),
        ("imagefs.available", Self::ImagefsAvailable),
        ("imagefs.inodesFree", Self::ImagefsInodesFree),
        ("pid.available", Self::PidAvailable),
    ];

    /// The condition that it speaks for.
    #[must_use]
    pub const fn kind(self) -> PressureKind {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => PressureKind::Memory,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree => PressureKind::Disk,
            Self::PidAvailable => PressureKind::Pid,
        }
    }
}

/// One measurement, in bytes, inodes or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is left.
    pub available: i64,
    /// What there is in all.
    pub capacity: i64,
}

/// What could be measured.
pub type Signals = BTreeMap<Signal, Reading>;

/// The configured thresholds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    list: Vec<Threshold>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Threshold {
    /// `hard memory.available`: by what it is remembered.
    key: String,
    signal: Signal,
    value: String,
    reclaim: Option<String>,
    grace: SignedDuration,
}

/// What must be known of the past, also after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureMemory {
    crossed: BTreeMap<String, Crossing>,
    last_seen: BTreeMap<PressureKind, Timestamp>,
    /// What was ever measured.
    known: BTreeSet<PressureKind>,
}

/// A threshold that is crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Crossing {
    since: Timestamp,
    /// Its grace period is over.
    ripe: bool,
}

impl Thresholds {
    /// Puts together what the configuration says (`evictionHard`, `evictionSoft`, `evictionSoftGracePeriod`,
    /// `evictionMinimumReclaim`). It has been validated: what cannot be read is left out. With `pods_are_held` (the top
    /// cgroup is limited) the hard threshold of memory holds for the pods' own part as well.
    #[must_use]
    pub fn new(
        hard: &BTreeMap<String, String>,
        soft: &BTreeMap<String, String>,
        grace: &BTreeMap<String, SignedDuration>,
        reclaim: &BTreeMap<String, String>,
        pods_are_held: bool,
    ) -> Self {
        let mut list = Vec::new();
        for (form, thresholds) in [("hard", hard), ("soft", soft)] {
            for (name, signal) in Signal::CONFIGURABLE {
                let Some(value) = thresholds.get(name) else { continue };
                let grace = match form {
                    "soft" => grace.get(name).copied().unwrap_or_default(),
                    _ => SignedDuration::ZERO,
                };
                let one = Threshold {
                    key: format!("{form} {name}"),
                    signal,
                    value: value.clone(),
                    reclaim: reclaim.get(name).cloned(),
                    grace,
                };
                if pods_are_held && form == "hard" && signal == Signal::MemoryAvailable {
                    let (key, signal) =
                        ("hard allocatableMemory.available".to_owned(), Signal::AllocatableMemoryAvailable);
                    list.push(Threshold { key, signal, ..one.clone() });
                }
                list.push(one);
            }
        }
        Self { list }
    }

    /// The signals that somebody asks for.
    #[must_use]
    pub fn wants(&self, signal: Signal) -> bool {
        self.list.iter().any(|threshold| threshold.signal == signal)
    }

    /// What the node runs short of now, and what is to be remembered for the next time. `transition` is
    /// `evictionPressureTransitionPeriod`.
    #[must_use]
    pub fn assess(
        &self,
        before: &PressureMemory,
        signals: &Signals,
        transition: SignedDuration,
        now: Timestamp,
    ) -> (NodePressure, PressureMemory) {
        let mut after = PressureMemory { known: before.known.clone(), ..PressureMemory::default() };
        for threshold in &self.list {
            let past = before.crossed.get(&threshold.key).copied();
            let reading = signals.get(&threshold.signal);
            let kind = threshold.signal.kind();
            if reading.is_some() {
                after.known.insert(kind);
            }
            let crossed = match reading {
                Some(reading) => threshold.is_crossed(*reading, past.is_some_and(|past| past.ripe)),
                None => past.is_some(),
            };
            if crossed {
                // A clock that was set back makes nobody wait longer.
                let since = past.map_or(now, |past| past.since.min(now));
                let ripe = now.duration_since(since) >= threshold.grace;
                after.crossed.insert(threshold.key.clone(), Crossing { since, ripe });
                after.last_seen.insert(kind, now);
            }
        }
        let mut pressure = NodePressure::default();
        for kind in PressureKind::ALL {
            let last = before.last_seen.get(&kind).map(|last| (*last).min(now));
            let held = last.filter(|last| now.duration_since(*last) < transition);
            if let Some(held) = held {
                after.last_seen.entry(kind).or_insert(held);
            }
            let asked = self.list.iter().any(|threshold| threshold.signal.kind() == kind);
            let known = !asked || after.known.contains(&kind);
            let found = after.last_seen.contains_key(&kind);
            let finding = (found || known).then_some(found);
            match kind {
                PressureKind::Memory => pressure.memory = finding,
                PressureKind::Disk => pressure.disk = finding,
                PressureKind::Pid => pressure.pid = finding,
            }
        }
        (pressure, after)
    }
}

impl Threshold {
    fn is_crossed(&self, reading: Reading, with_reclaim: bool) -> bool {
        let amount = |text: &str| threshold(text, Quantity::bytes(reading.capacity)).map(Quantity::value);
        // 0 % and 100 % switch a threshold off.
        let Some(value) = amount(&self.value) else { return false };
        let reclaim = self.reclaim.as_deref().filter(|_| with_reclaim).and_then(amount).unwrap_or(0);
        reading.available < value.saturating_add(reclaim)
    }
}

#[cfg(test)]
mod tests;
