//! What pods have written to the node's disk: measured for those that set a limit, and only for those.
//!
//! One task, `storage usage`, owned by the task group given to [`start`]. In: reconcile's word on which pods run, and
//! what the runtime shows of them. Out: a `watch` of measurements. It decides nothing.
//!
//! What it costs is bounded: a pod is measured once a period, one whose measurement takes long less often, two at a time,
//! and off the async workers. What is mounted in a volume is not asked. A measurement that does not end all the same (the disk hangs) is
//! named in the log and to whoever looks at the pod, and holds up no other pod.

mod measure;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_cri::Cri;
use mainstay_podspec::runtime::storage_limits;
use mainstay_task::TaskGroup;
use mainstay_types::{
    Event, EventKind, EventSink, EventTarget, FullName, ObservedState, Outcomes, PodOutcome, PodStage,
    PodStorage, PodUid, StorageLimits, StorageUsage,
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use measure::Measurer;

/// A measurement may take this part of the time at most: one that took a second is made again after twenty.
const REST_FACTOR: u32 = 20;
/// Each may hold a thread for as long as a disk is slow.
const PARALLEL: usize = 2;
/// A measurement that takes longer goes on beside the others and makes room for the next.
const LATE: Duration = Duration::from_secs(60);
/// So many threads may be held by those that are late; with more nothing is measured until one ends, which is said.
const MOST_LATE: usize = 6;
/// mainstay's own reason: upstream tells nobody.
const NOT_MEASURED: &str = "StorageNotMeasured";

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct UsageConfig {
    /// The runtime, which knows the size of writable layers.
    pub cri: Cri,
    /// The root directory: pods' volumes lie below it.
    pub root_dir: PathBuf,
    /// Between two measurements of a pod.
    pub period: Duration,
    /// For pods that cannot be measured.
    pub events: EventSink,
}

/// Starts measuring; results go to `sender`.
pub fn start(
    config: UsageConfig,
    outcomes: watch::Receiver<Outcomes>,
    observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<StorageUsage>>,
    tasks: &TaskGroup,
) {
    let period = config.period;
    let sampler = Sampler {
        measurer: Arc::new(Measurer::new(config.cri, config.root_dir)),
        period,
        events: config.events,
        outcomes,
        observed,
        sender,
        seen: None,
        pods: HashMap::new(),
        running: FuturesUnordered::new(),
        late: FuturesUnordered::new(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("storage usage", async move {
        shutdown.run_until_signalled(sampler.run()).await;
    });
}

/// A pod, with what is worth knowing about it between measurements.
struct Tracked {
    pod: Arc<Pod>,
    full_name: FullName,
    limits: Arc<StorageLimits>,
    /// When it is measured next; `None` while it is being measured.
    due: Option<Instant>,
}

struct Done {
    uid: PodUid,
    storage: PodStorage,
    took: Duration,
}

/// How far a measurement came.
enum Progress {
    Done(Done),
    Late(PodUid, BoxFuture<'static, Done>),
}

struct Sampler {
    measurer: Arc<Measurer>,
    period: Duration,
    events: EventSink,
    outcomes: watch::Receiver<Outcomes>,
    observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<StorageUsage>>,
    /// The generation of the outcomes that the pods were taken from.
    seen: Option<u64>,
    /// Pods that set limits and run.
    pods: HashMap<PodUid, Tracked>,
    running: FuturesUnordered<BoxFuture<'static, Progress>>,
    /// Those that take longer than [`LATE`].
    late: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Sampler {
    async fn run(mut self) {
        let mut tick = interval(self.period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // All are cancel safe: an interval, and streams polled by reference.
            tokio::select! {
                _ = tick.tick() => self.take_pods(),
                Some(progress) = self.running.next() => match progress {
                    Progress::Done(done) => self.take(done),
                    Progress::Late(uid, rest) => {
                        self.tell(&uid);
                        self.late.push(rest);
                    }
                },
                Some(done) = self.late.next() => {
                    info!(pod.uid = %done.uid, "what the pod has written to disk is measured again");
                    self.take(done);
                }
            }
            self.begin();
        }
    }

    /// Takes over which pods there are. A pod that has just come has written nothing yet, but one that ran before
    /// mainstay did is due at once.
    fn take_pods(&mut self) {
        let outcomes = self.outcomes.borrow().clone();
        if self.seen == Some(outcomes.generation) {
            return;
        }
        let first = self.seen.is_none();
        self.seen = Some(outcomes.generation);
        let before = std::mem::take(&mut self.pods);
        let mut before = before;
        for (uid, outcome) in outcomes.pods.iter().filter(|(_, outcome)| runs(outcome)) {
            let pod = &outcome.desired.pod;
            let known = before.remove(uid).filter(|tracked| Arc::ptr_eq(&tracked.pod, pod));
            let tracked = known.or_else(|| {
                let limits = storage_limits(pod);
                let due = Instant::now() + if first { Duration::ZERO } else { self.period };
                (!limits.is_empty()).then(|| Tracked {
                    pod: Arc::clone(pod),
                    full_name: outcome.desired.full_name.clone(),
                    limits: Arc::new(limits),
                    due: Some(due),
                })
            });
            if let Some(tracked) = tracked {
                self.pods.insert(uid.clone(), tracked);
            }
        }
        let pods = &self.pods;
        self.sender.send_if_modified(|usage| {
            if usage.pods.keys().all(|uid| pods.contains_key(uid)) {
                return false;
            }
            let usage = Arc::make_mut(usage);
            usage.pods.retain(|uid, _| pods.contains_key(uid));
            usage.generation += 1;
            true
        });
    }

    /// Begins the measurements whose time has come, as many as may run at once.
    fn begin(&mut self) {
        // Ticks come once a period and may be a little early for what a measurement shifted.
        let now = Instant::now() + self.period / 4;
        while self.running.len() < PARALLEL && self.running.len() + self.late.len() < MOST_LATE {
            let due = self.pods.iter_mut().filter(|(_, pod)| pod.due.is_some_and(|due| due <= now));
            let Some((uid, tracked)) = due.min_by_key(|(_, pod)| pod.due) else { return };
            tracked.due = None;
            let late_uid = uid.clone();
            let (uid, pod, limits) = (uid.clone(), Arc::clone(&tracked.pod), Arc::clone(&tracked.limits));
            let observed = self.observed.borrow().pods.get(&uid).cloned();
            let measurer = Arc::clone(&self.measurer);
            let measured = async move {
                let begun = Instant::now();
                let storage = measurer.measure(&uid, pod, limits, observed).await;
                Done { uid, storage, took: begun.elapsed() }
            };
            self.running.push(Box::pin(until_late(late_uid, Box::pin(measured))));
        }
    }

    /// Says of a pod that its limits are not heeded for now.
    fn tell(&self, uid: &PodUid) {
        let Some(tracked) = self.pods.get(uid) else { return };
        let name = &tracked.full_name;
        warn!(pod = %name, pod.uid = %uid, "measuring what the pod has written to disk does not end; its limits are not heeded until it does");
        if self.late.len() + 1 >= MOST_LATE {
            warn!(
                "too many such measurements do not end; no pod's limits of storage are heeded until one does"
            );
        }
        let target = EventTarget::Pod { uid: uid.clone(), full_name: name.clone(), field_path: None };
        let message = "Measuring what the pod has written to the node's disk does not end: its limits of ephemeral storage are not heeded until it does".to_owned();
        let (kind, time) = (EventKind::Warning, Timestamp::now());
        self.events.send(Event { target, kind, reason: NOT_MEASURED.into(), message, time });
    }

    fn take(&mut self, done: Done) {
        let Done { uid, storage, took } = done;
        let Some(tracked) = self.pods.get_mut(&uid) else { return };
        tracked.due = Some(Instant::now() + self.period.max(took * REST_FACTOR).saturating_sub(took));
        if !Arc::ptr_eq(&tracked.pod, &storage.pod) {
            return;
        }
        self.sender.send_modify(|usage| {
            let usage = Arc::make_mut(usage);
            usage.pods.insert(uid, Arc::new(storage));
            usage.generation += 1;
        });
    }
}

/// Waits for a measurement until it is late.
async fn until_late(uid: PodUid, mut measured: BoxFuture<'static, Done>) -> Progress {
    match tokio::time::timeout(LATE, &mut measured).await {
        Ok(done) => Progress::Done(done),
        Err(_) => Progress::Late(uid, measured),
    }
}

fn runs(outcome: &PodOutcome) -> bool {
    outcome.stage == PodStage::Syncing && outcome.finished.is_none() && outcome.deletion.is_none()
}

#[cfg(test)]
mod tests {
    use super::{Done, LATE, Progress, until_late};
    use mainstay_types::{PodStorage, PodUid};
    use std::{future, time::Duration};

    fn done() -> Done {
        let storage = PodStorage {
            pod: Default::default(),
            limits: Default::default(),
            volumes: Default::default(),
            containers: Default::default(),
            total: 7,
        };
        Done { uid: PodUid::from("u"), storage, took: Duration::ZERO }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_goes_on_beside_the_others() {
        let slow = async {
            tokio::time::sleep(LATE * 2).await;
            done()
        };
        let uid = || PodUid::from("u");
        let Progress::Late(late, rest) = until_late(uid(), Box::pin(slow)).await else {
            panic!("it was in time")
        };
        assert_eq!(late, uid());
        assert_eq!(rest.await.storage.total, 7, "and its result is not lost");
        assert!(matches!(until_late(uid(), Box::pin(future::pending())).await, Progress::Late(..)));
        assert!(matches!(until_late(uid(), Box::pin(future::ready(done()))).await, Progress::Done(_)));
    }
}
