//! What probes have shown of containers, and how often they ran.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{ContainerId, PodUid};

/// Which question a probe asks. The order is that of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Should it be left alone? A no restarts it.
    Liveness,
    /// Can it take work?
    Readiness,
    /// Has it come up? Until then nothing else is asked.
    Startup,
}

impl ProbeKind {
    /// All of them, in the order in which they matter to a container.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// Upstream's word in events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What a probe has shown, often enough in a row to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Passed,
    /// It is not.
    Failed,
}

/// The verdicts on one container instance; `None` where there is no evidence (yet, or no such probe).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerProbes {
    /// Startup.
    pub startup: Option<Verdict>,
    /// Liveness.
    pub liveness: Option<Verdict>,
    /// Readiness.
    pub readiness: Option<Verdict>,
}

/// The verdicts on one pod's container instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodProbes {
    containers: Vec<(ContainerId, ContainerProbes)>,
}

impl PodProbes {
    /// What is known of a container instance.
    #[must_use]
    pub fn of(&self, id: &ContainerId) -> ContainerProbes {
        self.containers.iter().find(|(other, _)| other == id).map(|(_, probes)| *probes).unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a PodProbes {
    type Item = &'a (ContainerId, ContainerProbes);
    type IntoIter = std::slice::Iter<'a, (ContainerId, ContainerProbes)>;

    fn into_iter(self) -> Self::IntoIter {
        self.containers.iter()
    }
}

impl FromIterator<(ContainerId, ContainerProbes)> for PodProbes {
    fn from_iter<I: IntoIterator<Item = (ContainerId, ContainerProbes)>>(iter: I) -> Self {
        Self { containers: iter.into_iter().collect() }
    }
}

/// What all probes have shown, as one immutable value, published through a `watch` channel.
#[derive(Clone, Debug, Default)]
pub struct ProbeResults {
    /// Counts up with every change of a verdict.
    pub generation: u64,
    /// By pod; a pod without probes is not in it. An entry stays the same `Arc` while nothing in it changes.
    pub pods: Arc<HashMap<PodUid, Arc<PodProbes>>>,
}

impl ProbeResults {
    /// The UIDs of pods of which this says something else than `before` did.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a PodUid> {
        let changed = self
            .pods
            .iter()
            .filter(|(uid, probes)| before.pods.get(*uid).is_none_or(|before| !Arc::ptr_eq(before, probes)));
        let gone = before.pods.keys().filter(|uid| !self.pods.contains_key(*uid));
        changed.map(|(uid, _)| uid).chain(gone)
    }
}

/// Upper bounds of the duration histogram: Prometheus's own defaults.
pub const PROBE_BUCKETS_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Whose numbers a series holds. The order is that of the labels in a scrape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeLabels {
    /// Container.
    pub container: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Pod name.
    pub pod: Arc<str>,
    /// Pod UID.
    pub pod_uid: PodUid,
    /// Which probe.
    pub kind: ProbeKind,
}

/// The counters of one probe. Cheap to count in from one task and to read from another.
#[derive(Debug, Default)]
pub struct ProbeSeries {
    successful: AtomicU64,
    failed: AtomicU64,
    /// The last one failed.
    is_failing: AtomicBool,
    buckets: [AtomicU64; PROBE_BUCKETS_SECONDS.len()],
    micros: AtomicU64,
}

impl ProbeSeries {
    /// Counts a success and how long it took. Failures have no duration, as upstream.
    pub fn succeeded(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = PROBE_BUCKETS_SECONDS.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = bucket.and_then(|i| self.buckets.get(i)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.is_failing.store(false, Ordering::Relaxed);
        self.successful.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure.
    pub fn failed(&self) {
        self.is_failing.store(true, Ordering::Relaxed);
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers now.
    #[must_use]
    pub fn read(&self) -> ProbeNumbers {
        let mut sum = 0;
        let buckets = std::array::from_fn(|i| {
            sum += self.buckets.get(i).map_or(0, |bucket| bucket.load(Ordering::Relaxed));
            sum
        });
        ProbeNumbers {
            successful: self.successful.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            is_failing: self.is_failing.load(Ordering::Relaxed),
            buckets,
            total: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}

/// What [`ProbeSeries::read`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeNumbers {
    /// Successes.
    pub successful: u64,
    /// Failures.
    pub failed: u64,
    /// The last one was a failure.
    pub is_failing: bool,
    /// Successes that took at most as long as each of [`PROBE_BUCKETS_SECONDS`].
    pub buckets: [u64; PROBE_BUCKETS_SECONDS.len()],
    /// How long the successes took together.
    pub total: Duration,
}

/// The series of all probes: a handle, clones share them. The lock is held only while a series comes, goes or the list
/// is copied; counting takes none.
#[derive(Clone, Debug, Default)]
pub struct ProbeMetrics {
    series: Arc<Mutex<BTreeMap<ProbeLabels, Arc<ProbeSeries>>>>,
}

impl ProbeMetrics {
    /// The series of a probe, made if it is new.
    #[must_use]
    pub fn series(&self, labels: &ProbeLabels) -> Arc<ProbeSeries> {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(series.entry(labels.clone()).or_default())
    }

    /// Lets go of a series: its probe has ended.
    pub fn remove(&self, labels: &ProbeLabels) {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).remove(labels);
    }

    /// All series that have counted something, sorted by label values.
    #[must_use]
    pub fn read(&self) -> Vec<(ProbeLabels, ProbeNumbers)> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = series.iter().map(|(labels, series)| (labels.clone(), series.read()));
        numbers.filter(|(_, numbers)| numbers.successful + numbers.failed > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let series = ProbeSeries::default();
        for millis in [1, 5, 7, 2_000, 60_000] {
            series.succeeded(Duration::from_millis(millis));
        }
        series.failed();
        let numbers = series.read();
        assert_eq!(numbers.buckets, [2, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4]);
        assert_eq!((numbers.successful, numbers.failed), (5, 1));
        assert_eq!(numbers.total, Duration::from_millis(62_013));
    }

    #[test]
    fn changes_are_told_by_pod() {
        let probes = |verdict| {
            let probes = ContainerProbes { readiness: Some(verdict), ..Default::default() };
            Arc::new(PodProbes::from_iter([("c".into(), probes)]))
        };
        let (a, b) = (probes(Verdict::Passed), probes(Verdict::Passed));
        let results = |pods: Vec<(&str, &Arc<PodProbes>)>| ProbeResults {
            generation: 0,
            pods: Arc::new(pods.into_iter().map(|(uid, p)| (uid.into(), Arc::clone(p))).collect()),
        };
        let before = results(vec![("same", &a), ("other", &a), ("gone", &a)]);
        let after = results(vec![("same", &a), ("other", &b), ("new", &b)]);
        let mut changed: Vec<_> = after.changed_since(&before).map(PodUid::as_str).collect();
        changed.sort_unstable();
        assert_eq!(changed, ["gone", "new", "other"]);
    }
}
