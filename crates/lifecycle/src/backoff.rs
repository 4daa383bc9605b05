//! Waiting longer after each failure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_types::{PodExt, fnv1a_64};
use serde::{Deserialize, Serialize};

/// First and longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffLimits {
    /// The first wait.
    pub initial: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl BackoffLimits {
    /// For image pulls: 10 s to 300 s.
    pub const PULL: Self = Self { initial: Duration::from_secs(10), max: Duration::from_secs(300) };

    /// For crashing containers, with `crashLoopBackOff.maxContainerRestartPeriod`.
    #[must_use]
    pub fn crash(max: Duration) -> Self {
        Self { initial: Duration::from_secs(10).min(max), max }
    }
}

/// Something that went well for this long after its last start begins with a clean slate (upstream's fixed 10 minutes).
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// How long the next wait is, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffEntry {
    /// The wait in force, in milliseconds.
    pub wait_ms: u64,
    /// When it was set.
    pub updated: Timestamp,
}

impl BackoffEntry {
    /// The wait in force.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }

    /// The entry after a failure at `failed`, when the next try begins at `now`.
    #[must_use]
    pub fn next(previous: Option<Self>, limits: BackoffLimits, failed: Timestamp, now: Timestamp) -> Self {
        let wait = match previous {
            Some(entry) if !entry.expired(failed) => (entry.wait() * 2).min(limits.max),
            _ => limits.initial,
        };
        Self { wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX), updated: now }
    }

    /// When the wait is over, counted from the time it was set.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        let wait = SignedDuration::try_from(self.wait()).unwrap_or(SignedDuration::MAX);
        self.updated.checked_add(wait).unwrap_or(Timestamp::MAX)
    }

    /// Until when something that ended at `ended` must wait; `None` when it need not.
    #[must_use]
    pub fn until(&self, ended: Timestamp) -> Option<Timestamp> {
        if self.expired(ended) {
            return None;
        }
        SignedDuration::try_from(self.wait()).ok().and_then(|wait| ended.checked_add(wait).ok())
    }

    fn expired(&self, failed: Timestamp) -> bool {
        failed.duration_since(self.updated) > FORGIVEN_AFTER
    }
}

/// The key of a container's crash back-off: a new image or new resources start with a clean slate.
#[must_use]
pub fn crash_key(pod: &Pod, container: &Container) -> String {
    let resources = container
        .resources
        .as_ref()
        .map(|r| serde_json::to_string(r).unwrap_or_default())
        .unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    let text = format!(
        "{}/{}/{}/{}/{image}/{resources}",
        pod.name_ref(),
        pod.namespace_ref(),
        pod.uid_ref(),
        container.name
    );
    format!("{:x}", fnv1a_64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn waits_double_to_the_limit_and_reset_after_quiet() {
        let limits = BackoffLimits::crash(Duration::from_secs(300));
        let mut entry = None;
        let mut waits = Vec::new();
        for second in [0, 10, 30, 70, 150, 310, 610] {
            let next = BackoffEntry::next(entry, limits, at(second), at(second));
            waits.push(next.wait_ms / 1000);
            entry = Some(next);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        let entry = entry.unwrap();
        assert_eq!(entry.until(at(700)), Some(at(1000)));
        assert_eq!(entry.until(at(610 + 601)), None, "600 good seconds since the start clear it");
        assert_eq!(BackoffEntry::next(Some(entry), limits, at(610 + 601), at(1300)).wait_ms, 10_000);
    }

    #[test]
    fn the_time_spent_waiting_is_no_good_time() {
        // It failed at 0, waited 300 s, was started at 300 and failed at 601: it ran 301 s, not 601.
        let limits = BackoffLimits::crash(Duration::from_secs(300));
        let entry = BackoffEntry { wait_ms: 300_000, updated: at(300) };
        assert_eq!(BackoffEntry::next(Some(entry), limits, at(601), at(601)).wait_ms, 300_000);
    }

    #[test]
    fn a_short_maximum_does_not_shorten_forgiveness() {
        let limits = BackoffLimits::crash(Duration::from_secs(60));
        let entry = BackoffEntry { wait_ms: 60_000, updated: at(0) };
        assert_eq!(entry.until(at(124)), Some(at(184)));
        assert_eq!(BackoffEntry::next(Some(entry), limits, at(124), at(184)).wait_ms, 60_000);
    }

    #[test]
    fn a_short_maximum_also_shortens_the_first_wait() {
        let limits = BackoffLimits::crash(Duration::from_secs(1));
        assert_eq!(BackoffEntry::next(None, limits, at(0), at(0)).wait_ms, 1000);
    }
}
