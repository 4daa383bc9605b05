//! What parts of the node count of their own work, for `/metrics`. Cheap to count in from any task.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;

use crate::PodUid;

/// Prometheus' default buckets, in seconds.
const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Upstream's for starts of pods.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Upstream's for pulls of images.
const PULLS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];

/// Upstream's for telling the API server of a pod's status.
const STATUSES: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Upstream's for work on volumes.
const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Upstream's for requests to the API server.
const REQUESTS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Upstream's for the number of a pod's containers.
const NUMBERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];
/// Upstream's for how long a certificate was in use: from a minute to four years.
const LIVES: &[f64] = &[
    60.0,
    3_600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];
/// Upstream's for the topology manager.
const ADMISSIONS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2,
    0.102_4, 0.204_8, 0.409_6, 0.819_2,
];

/// How long something took, by upper bounds.
#[derive(Debug)]
pub struct Durations {
    bounds: &'static [f64],
    /// By the first bound that was not exceeded; longer ones are in none.
    buckets: Box<[AtomicU64]>,
    micros: AtomicU64,
    count: AtomicU64,
}

/// The numbers of [`Durations`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationCounts {
    /// Upper bounds in seconds, with how many took at most that long.
    pub buckets: Vec<(f64, u64)>,
    /// All of it together, in seconds.
    pub sum: f64,
    /// How many.
    pub count: u64,
}

impl Durations {
    fn new(bounds: &'static [f64]) -> Self {
        let buckets = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, micros: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// Counts one.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = at.and_then(|at| self.buckets.get(at)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        // Last: a count never stands beside more in the buckets for long.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one of something that is no time but a number, each of which stands for a second.
    pub fn observe_number(&self, number: usize) {
        self.observe(Duration::from_secs(u64::try_from(number).unwrap_or(u64::MAX)));
    }

    /// What was counted.
    pub fn read(&self) -> DurationCounts {
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        let buckets = self.bounds.iter().zip(&self.buckets).map(|(bound, bucket)| {
            below += bucket.load(Ordering::Relaxed);
            (*bound, below.min(count))
        });
        let buckets = buckets.collect();
        let micros = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        DurationCounts { buckets, sum: micros.as_secs_f64(), count }
    }
}

/// Counters of one kind, each by the values of its labels; one appears when it is first counted. A chain that only grows:
/// who counts and who reads share no lock.
#[derive(Debug)]
pub struct Chain<K, T> {
    first: Place<K, T>,
    make: fn() -> T,
}

/// By values that are known beforehand.
pub type ByLabels<T, const N: usize> = Chain<[&'static str; N], T>;

/// By one value that somebody else chose.
pub type ByName<T> = Chain<Arc<str>, T>;

/// How containers end: their kind, the exit code, and the runtime's reason.
pub type ByEnd = Chain<(&'static str, i32, Arc<str>), Counter>;

/// How many values others may choose; what comes beyond that is counted with the last.
const MAX_NAMES: usize = 1024;

type Place<K, T> = OnceLock<Box<Link<K, T>>>;

#[derive(Debug)]
struct Link<K, T> {
    labels: K,
    counter: Arc<T>,
    next: Place<K, T>,
}

impl<K: Clone + Ord, T> Chain<K, T> {
    const fn new(make: fn() -> T) -> Self {
        Self { first: OnceLock::new(), make }
    }

    /// The counter with these values.
    pub fn of(&self, labels: K) -> Arc<T> {
        let mut place = &self.first;
        for _ in 1..MAX_NAMES {
            let link = place.get_or_init(|| {
                let (labels, counter) = (labels.clone(), Arc::new((self.make)()));
                Box::new(Link { labels, counter, next: OnceLock::new() })
            });
            if link.labels == labels {
                return Arc::clone(&link.counter);
            }
            place = &link.next;
        }
        let last = place.get_or_init(|| {
            Box::new(Link { labels, counter: Arc::new((self.make)()), next: OnceLock::new() })
        });
        Arc::clone(&last.counter)
    }

    /// All of them, in order.
    pub fn all(&self) -> Vec<(K, Arc<T>)> {
        let links = std::iter::successors(self.first.get(), |link| link.next.get());
        let mut all: Vec<_> = links.map(|link| (link.labels.clone(), Arc::clone(&link.counter))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}

/// A number that counts up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts another number there.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is known of one certificate that the node shows to others.
#[derive(Debug)]
pub struct CertificateCounts {
    /// From when and until when it is good, in seconds since 1970; `i64::MAX` where there is none.
    begins: AtomicI64,
    ends: AtomicI64,
    /// How often another could not be had, or could not be used.
    pub errors: Counter,
    /// How old those were that others took the place of.
    pub lives: Durations,
}

impl Default for CertificateCounts {
    fn default() -> Self {
        Self {
            begins: AtomicI64::new(i64::MAX),
            ends: AtomicI64::new(i64::MAX),
            errors: Counter::default(),
            lives: Durations::new(LIVES),
        }
    }
}

impl CertificateCounts {
    /// From now on a certificate is in force that is good from when until when; or none is, or one that does not say so.
    pub fn in_force(&self, span: Option<(Timestamp, Timestamp)>, now: Timestamp) {
        let (begins, ends) =
            span.map_or((i64::MAX, i64::MAX), |(begins, ends)| (begins.as_second(), ends.as_second()));
        let begun = self.begins.swap(begins, Ordering::Relaxed);
        let ended = self.ends.swap(ends, Ordering::Relaxed);
        if begun != i64::MAX && (begun, ended) != (begins, ends) {
            let lived = now.as_second().saturating_sub(begun);
            self.lives.observe(Duration::from_secs(u64::try_from(lived).unwrap_or(0)));
        }
    }

    /// For how many seconds from then on it is good, below 0 after its end; `None` where there is none.
    pub fn seconds_left(&self, now: Timestamp) -> Option<i64> {
        match self.ends.load(Ordering::Relaxed) {
            i64::MAX => None,
            ends => Some(ends.saturating_sub(now.as_second())),
        }
    }
}

/// Requests to the API server, as the client of one server counts them.
#[derive(Debug)]
pub struct ApiCalls {
    /// By status (0 for those that had no answer) and method.
    counts: Mutex<BTreeMap<(u16, &'static str), u64>>,
    /// How long they took, by method.
    pub times: ByLabels<Durations, 1>,
    /// The certificate that the client shows.
    pub certificate: CertificateCounts,
}

impl Default for ApiCalls {
    fn default() -> Self {
        Self {
            counts: Mutex::default(),
            times: ByLabels::new(|| Durations::new(REQUESTS)),
            certificate: CertificateCounts::default(),
        }
    }
}

impl ApiCalls {
    /// Counts one.
    pub fn add(&self, status: Option<u16>, method: &'static str, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((status.unwrap_or(0), method)).or_default() += 1;
        drop(counts);
        self.times.of([method]).observe(took);
    }

    /// All of them: status, method, how many.
    pub fn read(&self) -> Vec<(Option<u16>, &'static str, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .map(|((status, method), count)| ((*status > 0).then_some(*status), *method, *count))
            .collect()
    }
}

/// What the node's parts count.
#[derive(Debug)]
pub struct NodeCounters {
    /// How long it took to list everything in the runtime.
    pub relists: Durations,
    /// The time from one such list to the next.
    pub relist_intervals: Durations,
    /// How long it took to read one pod.
    pub pod_reads: Durations,
    /// Wishes for a reading that found no room and were let go of: the next list stands in for them.
    pub wishes_dropped: Counter,
    /// When the last one ended, in seconds since 1970; 0 before.
    pub last_relist: Counter,
    /// How long an order for a pod took, by what it was for.
    pub orders: ByLabels<Durations, 1>,
    /// From the time that a pod was first seen to its running.
    pub pod_starts: Durations,
    /// From a pod's creation to all its containers' having been started.
    pub pod_start_totals: Durations,
    /// The same without pulls and init containers, of pods without volumes that last.
    pub pod_start_slis: Durations,
    /// The same of the first pod with a network of its own.
    pub first_network_start: OnceLock<Duration>,
    /// How long images were pulled for pods that do not run yet.
    pub pull_times: PullTimes,
    /// Sandboxes that were asked for, and that could not be had.
    pub sandboxes: Counter,
    /// Of these, those that could not be had.
    pub sandbox_errors: Counter,
    /// How long the runtime took to make a sandbox, by the handler.
    pub sandbox_times: ByName<Durations>,
    /// Sandboxes that the runtime could not make, by the handler.
    pub sandbox_failures: ByName<Counter>,
    /// Sandboxes with users of their own that were asked for.
    pub user_namespaces: Counter,
    /// Of these, those that could not be had.
    pub user_namespace_errors: Counter,
    /// How many containers pods have that were taken up.
    pub containers_per_pod: Durations,
    /// Pods that were let in, by what has requests or limits (the pod, its containers, both) and the QoS class.
    pub resource_modes: ByLabels<Counter, 2>,
    /// Pods that came again under their UID while they were going, by whether they are static.
    pub restarted_pods: ByLabels<Counter, 1>,
    /// Pods that were found in the runtime and that nobody knew.
    pub orphans_found: Counter,
    /// How many of these are being stopped right now.
    pub orphans_going: Counter,
    /// Of how many pods that nobody knows the volumes were taken down in the last sweep.
    pub orphan_volumes: Counter,
    /// Of how many they could not be.
    pub orphan_volume_errors: Counter,
    /// Likenesses of static pods that the API server has.
    pub mirror_pods: Counter,
    /// Pods that were ended because they, or the node, ran out of something, by upstream's word for what.
    pub evictions: ByLabels<Counter, 1>,
    /// Pods that had to go for a critical one, by the resource that it wanted.
    pub preemptions: ByName<Counter>,
    /// Containers that were started, by their kind.
    pub containers: ByLabels<Counter, 1>,
    /// Containers that could not be started, by the reason and their kind.
    pub container_errors: ByLabels<Counter, 2>,
    /// Containers that ended.
    pub container_ends: ByEnd,
    /// HTTPS hooks that were answered in plain HTTP, and then asked in it.
    pub hook_fallbacks: Counter,
    /// Hooks that sleep and were not let sleep to their end.
    pub sleeps_cut: Counter,
    /// Images that containers wanted, by whether they were there, the pull policy, and whether they had to be pulled.
    pub images_wanted: ByLabels<Counter, 3>,
    /// How it was judged whether an image that is there is for a pod.
    pub image_checks: ByLabels<Counter, 1>,
    /// How many pulls are written down as begun.
    pub pull_intents: Counter,
    /// Of how many images it is written down what they were pulled with.
    pub pulled_records: Counter,
    /// Volumes that are images: wanted by containers that were made.
    pub image_volumes: Counter,
    /// Of these, those that were mounted.
    pub image_volume_mounts: Counter,
    /// Those that were not.
    pub image_volume_errors: Counter,
    /// How long programs took to say how to log in to a registry, by their name.
    pub provider_times: ByName<Durations>,
    /// How often they failed, likewise.
    pub provider_errors: ByName<Counter>,
    /// How long images took to be pulled, by their size.
    pub pulls: ByLabels<Durations, 1>,
    /// Device plugins that made themselves known, by their resource.
    pub device_registrations: ByName<Counter>,
    /// How long it took until a container's devices were its own, by the resource.
    pub device_allocations: ByName<Durations>,
    /// From the time that a pod was first seen to the first work on it.
    pub worker_starts: Durations,
    /// From a change of a pod's status to the API server's knowing it.
    pub status_syncs: Durations,
    /// How long work on cgroups took, by what it was.
    pub cgroup_work: ByLabels<Durations, 1>,
    /// How long it took until a pod had a volume, from its being wanted, by what was done and the kind of volume.
    pub volume_waits: ByLabels<Durations, 2>,
    /// Bytes that the kernel never takes from guaranteed pods.
    pub hard_memory: Counter,
    /// Bytes that it leaves to burstable pods as long as it can.
    pub soft_memory: Counter,
    /// How long work on volumes took, by what it was, how it ended and the kind of volume.
    pub storage_work: ByLabels<Durations, 3>,
    /// How old the runtime's events were when they came.
    pub event_ages: Durations,
    /// Streams of the runtime's events that were opened.
    pub event_streams: Counter,
    /// Those that could not be opened, or broke.
    pub event_stream_errors: Counter,
    /// The API server's address, and the requests to it; only where there is one.
    pub api: OnceLock<(String, Arc<ApiCalls>)>,
    /// The certificate that the secure port shows.
    pub serving_certificate: Arc<CertificateCounts>,
    /// Pods that were turned away, by the reason as [`rejection_label`] has it.
    pub rejections: ByLabels<Counter, 1>,
    /// What is counted of giving out CPUs and memory.
    pub pinning: PinningCounters,
}

/// How long images were pulled, by the pod that they are for. Whoever adds to it takes it away with the pod.
#[derive(Debug, Default)]
pub struct PullTimes(Mutex<BTreeMap<PodUid, Duration>>);

impl PullTimes {
    /// So much longer.
    pub fn add(&self, uid: &PodUid, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = all.entry(uid.clone()).or_default();
        *sum = sum.saturating_add(took);
    }

    /// What there is; nothing is left of it.
    pub fn take(&self, uid: &PodUid) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).unwrap_or_default()
    }
}

/// Reasons that have a label of their own, as upstream's list has them.
const REJECTIONS: [&str; 21] = [
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

/// The label of a reason for which a pod is turned away: what others choose to call theirs does not make series.
#[must_use]
pub fn rejection_label(reason: &str) -> &'static str {
    match REJECTIONS.iter().find(|known| **known == reason) {
        Some(known) => known,
        // Upstream takes huge pages for such as well.
        None if reason.starts_with("OutOf") => "OutOfExtendedResources",
        None => "Other",
    }
}

/// What is counted of giving out CPUs and memory.
#[derive(Debug)]
pub struct PinningCounters {
    /// Pods that were judged.
    pub admissions: Counter,
    /// Of these, those that were turned away.
    pub admission_errors: Counter,
    /// How long that took.
    pub admission_times: Durations,
    /// Containers that asked for CPUs of their own.
    pub cpu_requests: Counter,
    /// Of these, those that were not given any.
    pub cpu_errors: Counter,
    /// Containers that asked for memory of their own.
    pub memory_requests: Counter,
    /// Of these, those that were not given any.
    pub memory_errors: Counter,
    /// Containers whose CPUs lie together as the options ask, by the boundary and the scope.
    pub aligned: ByLabels<Counter, 2>,
    /// Containers that were refused because theirs would not.
    pub misaligned: ByLabels<Counter, 2>,
    /// CPUs and memory that were given to containers, by the resource and by whose they were before: the node's or the pod's.
    pub allocations: ByLabels<Counter, 2>,
    /// What could not be given, likewise.
    pub allocation_errors: ByLabels<Counter, 2>,
    /// Containers that were given some, by the resource and how they have it: alone of the node's, alone of the pod's, or with others of the pod.
    pub container_assignments: ByLabels<Counter, 2>,
}

impl Default for PinningCounters {
    fn default() -> Self {
        Self {
            admissions: Counter::default(),
            admission_errors: Counter::default(),
            admission_times: Durations::new(ADMISSIONS),
            cpu_requests: Counter::default(),
            cpu_errors: Counter::default(),
            memory_requests: Counter::default(),
            memory_errors: Counter::default(),
            aligned: ByLabels::new(Counter::default),
            misaligned: ByLabels::new(Counter::default),
            allocations: ByLabels::new(Counter::default),
            allocation_errors: ByLabels::new(Counter::default),
            container_assignments: ByLabels::new(Counter::default),
        }
    }
}

impl Default for NodeCounters {
    fn default() -> Self {
        let usual = || Durations::new(USUAL);
        Self {
            relists: usual(),
            relist_intervals: usual(),
            pod_reads: usual(),
            wishes_dropped: Counter::default(),
            last_relist: Counter::default(),
            orders: ByLabels::new(usual),
            pod_starts: Durations::new(STARTS),
            pod_start_totals: Durations::new(STARTS),
            pod_start_slis: Durations::new(STARTS),
            first_network_start: OnceLock::new(),
            pull_times: PullTimes::default(),
            sandboxes: Counter::default(),
            sandbox_errors: Counter::default(),
            sandbox_times: ByName::new(usual),
            sandbox_failures: ByName::new(Counter::default),
            user_namespaces: Counter::default(),
            user_namespace_errors: Counter::default(),
            containers_per_pod: Durations::new(NUMBERS),
            resource_modes: ByLabels::new(Counter::default),
            restarted_pods: ByLabels::new(Counter::default),
            orphans_found: Counter::default(),
            orphans_going: Counter::default(),
            orphan_volumes: Counter::default(),
            orphan_volume_errors: Counter::default(),
            mirror_pods: Counter::default(),
            evictions: ByLabels::new(Counter::default),
            preemptions: ByName::new(Counter::default),
            containers: ByLabels::new(Counter::default),
            container_errors: ByLabels::new(Counter::default),
            container_ends: ByEnd::new(Counter::default),
            hook_fallbacks: Counter::default(),
            sleeps_cut: Counter::default(),
            images_wanted: ByLabels::new(Counter::default),
            image_checks: ByLabels::new(Counter::default),
            pull_intents: Counter::default(),
            pulled_records: Counter::default(),
            image_volumes: Counter::default(),
            image_volume_mounts: Counter::default(),
            image_volume_errors: Counter::default(),
            provider_times: ByName::new(usual),
            provider_errors: ByName::new(Counter::default),
            pulls: ByLabels::new(|| Durations::new(PULLS)),
            device_registrations: ByName::new(Counter::default),
            device_allocations: ByName::new(usual),
            worker_starts: usual(),
            status_syncs: Durations::new(STATUSES),
            cgroup_work: ByLabels::new(usual),
            volume_waits: ByLabels::new(|| Durations::new(STORAGE)),
            hard_memory: Counter::default(),
            soft_memory: Counter::default(),
            storage_work: ByLabels::new(|| Durations::new(STORAGE)),
            event_ages: usual(),
            event_streams: Counter::default(),
            event_stream_errors: Counter::default(),
            api: OnceLock::new(),
            serving_certificate: Arc::default(),
            rejections: ByLabels::new(Counter::default),
            pinning: PinningCounters::default(),
        }
    }
}

/// The label of an image's size, upstream's words.
#[must_use]
pub fn image_size_label(bytes: u64) -> &'static str {
    const MB: u64 = 1024 * 1024;
    const GB: u64 = 1024 * MB;
    const SIZES: [(u64, &str); 11] = [
        (10 * MB, "0-10MB"),
        (100 * MB, "10MB-100MB"),
        (500 * MB, "100MB-500MB"),
        (GB, "500MB-1GB"),
        (5 * GB, "1GB-5GB"),
        (10 * GB, "5GB-10GB"),
        (20 * GB, "10GB-20GB"),
        (30 * GB, "20GB-30GB"),
        (40 * GB, "30GB-40GB"),
        (60 * GB, "40GB-60GB"),
        (100 * GB, "60GB-100GB"),
    ];
    if bytes == 0 {
        return "N/A";
    }
    SIZES.iter().find(|(most, _)| bytes <= *most).map_or("GT100GB", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_by_their_bounds() {
        let durations = Durations::new(USUAL);
        for millis in [5, 6, 20_000] {
            durations.observe(Duration::from_millis(millis));
        }
        let found = durations.read();
        assert_eq!(found.buckets.get(..3), Some([(0.005, 1), (0.01, 2), (0.025, 2)].as_slice()));
        assert_eq!(
            (found.count, found.buckets.last().map(|(_, count)| *count)),
            (3, Some(2)),
            "one is in no bucket"
        );
        assert!((found.sum - 20.011).abs() < 1e-6, "{}", found.sum);
    }

    #[test]
    fn counters_by_their_labels() {
        let counters = NodeCounters::default();
        assert!(counters.containers.all().is_empty(), "nothing before something was counted");
        counters.containers.of(["init_container"]).add();
        counters.containers.of(["container"]).add();
        counters.containers.of(["container"]).add();
        let found: Vec<_> =
            counters.containers.all().iter().map(|(labels, it)| (labels[0], it.get())).collect();
        assert_eq!(found, [("container", 2), ("init_container", 1)]);
    }

    #[test]
    fn requests_by_status_and_method() {
        let calls = ApiCalls::default();
        for status in [Some(200), None, Some(200)] {
            calls.add(status, "GET", Duration::from_millis(3));
        }
        assert_eq!(calls.read(), [(None, "GET", 1), (Some(200), "GET", 2)]);
        assert_eq!(calls.times.of(["GET"]).read().count, 3);
    }

    #[test]
    fn certificates_by_their_ends() {
        let counts = CertificateCounts::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(counts.seconds_left(at(100)), None);
        counts.in_force(Some((at(0), at(160))), at(90));
        assert_eq!((counts.seconds_left(at(100)), counts.seconds_left(at(170))), (Some(60), Some(-10)));
        counts.in_force(Some((at(0), at(160))), at(95));
        assert_eq!(counts.lives.read().count, 0, "the same was read again");
        counts.in_force(None, at(100));
        assert_eq!(counts.seconds_left(at(100)), None);
        let lives = counts.lives.read();
        assert_eq!((lives.count, lives.buckets[0], lives.buckets[1]), (1, (60.0, 0), (3600.0, 1)));
    }

    #[test]
    fn reasons_of_rejections() {
        for (reason, label) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfexample.com/gpu", "OutOfExtendedResources"),
            ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
            ("SMTAlignmentError", "Other"),
            ("TopologyAffinityError", "TopologyAffinityError"),
        ] {
            assert_eq!(rejection_label(reason), label);
        }
    }

    #[test]
    fn sizes_of_images() {
        for (bytes, expected) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(image_size_label(bytes), expected);
        }
    }
}
