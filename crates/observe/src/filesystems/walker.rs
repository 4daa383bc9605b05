//! The walks through pods' volumes: whose turn it is, which of them are slow and which hang.
//!
//! Pods are walked one after the other. One that takes longer than its turn goes on beside the next, and rests for as many times what it
//! took as keeps it to a small part of the time. Only a walk that reads nothing for a while hangs: a large tree on a slow disk does not.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mainstay_task::{Lane, LaneError};
use mainstay_types::{DesiredPod, FullName, Objects, PodUid, VolumeReading, WalkCost};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::places::{has_remote, volumes_of};
use crate::samples::thread_time;

/// How long others wait for the walk through one pod's volumes. It goes on without them.
const TURN: Duration = Duration::from_secs(5);
/// A walk that has read nothing for so long hangs. Shorter than a turn, so that one that never answered is known when its turn is over.
const SILENT: Duration = Duration::from_secs(4);
/// So many slow walks go on beside the others; with more, the next waits for one of them to end.
const BESIDE: usize = 2;
/// How often it is looked whether one has.
const AGAIN: Duration = Duration::from_millis(100);
/// With so many hanging, no more pods with volumes of other machines are looked at: those that are left are for the others.
const REMOTE_HANGING: usize = 3;
/// A walk may take this part of the time at most: one that took a minute is made again after twenty.
const REST_FACTOR: u32 = 20;

/// One for those who answer, the others for pods whose volumes are slow or do not.
static VOLUMES: Lane = Lane::new(6);

pub(super) type Volumes = HashMap<PodUid, Arc<[VolumeReading]>>;

/// What walks have found. One that nobody waits for any more still puts here what it finds.
#[derive(Debug, Default)]
pub(super) struct Walked {
    found: Volumes,
    /// Pods that are being looked at.
    busy: HashMap<PodUid, Busy>,
    /// Of these, those that have been told of.
    told: HashSet<PodUid>,
    /// When a pod is walked again.
    next: HashMap<PodUid, Instant>,
    cost: WalkCost,
}

/// A walk that has not come to its end.
#[derive(Debug)]
struct Busy {
    /// What it is at.
    volume: String,
    /// Counts up while it gets on.
    entries: Arc<AtomicU64>,
    /// How far it was when somebody looked last and it had got on.
    seen: u64,
    since: Instant,
}

impl Busy {
    fn hangs(&mut self, now: Instant) -> bool {
        let entries = self.entries.load(Ordering::Relaxed);
        if entries != self.seen {
            (self.seen, self.since) = (entries, now);
        }
        now.saturating_duration_since(self.since) >= SILENT
    }
}

/// How long a walk took, by the clock and of a processor.
#[derive(Clone, Copy, Debug)]
struct Took {
    wall: Duration,
    cpu: Duration,
}

impl Walked {
    pub(super) fn of(shared: &Mutex<Self>) -> MutexGuard<'_, Self> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all walks so far have cost.
    pub(super) const fn cost(&self) -> WalkCost {
        self.cost
    }

    /// A volume is looked at from now on.
    fn look(&mut self, uid: &PodUid, volume: &str, entries: &Arc<AtomicU64>) {
        // The next volume is a step, too.
        let seen = entries.fetch_add(1, Ordering::Relaxed) + 1;
        let busy = self.busy.entry(uid.clone()).or_insert_with(|| Busy {
            volume: String::new(),
            entries: Arc::clone(entries),
            seen,
            since: Instant::now(),
        });
        volume.clone_into(&mut busy.volume);
    }

    /// A pod's volumes have all been looked at.
    fn done(&mut self, uid: &PodUid, volumes: Arc<[VolumeReading]>, took: Took, period: Duration) {
        self.busy.remove(uid);
        // The time for which nothing answered cost nothing, and what answers again is to be seen soon.
        let rest = if self.told.remove(uid) {
            info!(pod.uid = %uid, "the pod's volumes answer again");
            period
        } else {
            period.max(took.wall * REST_FACTOR).saturating_sub(took.wall)
        };
        self.found.insert(uid.clone(), volumes);
        self.next.insert(uid.clone(), Instant::now() + rest);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.cost.micros = self.cost.micros.saturating_add(micros(took.wall));
        self.cost.cpu_micros = self.cost.cpu_micros.saturating_add(micros(took.cpu));
    }

    /// How many walks hang, and how many are only slow.
    fn hanging_and_slow(&mut self, now: Instant) -> (usize, usize) {
        let all = self.busy.len();
        let hanging = self.busy.values_mut().filter_map(|busy| busy.hangs(now).then_some(())).count();
        (hanging, all - hanging)
    }

    /// Whether the pod is being walked still; says so once if its walk hangs.
    fn is_busy(&mut self, uid: &PodUid, name: &FullName, now: Instant) -> bool {
        let Some(busy) = self.busy.get_mut(uid) else { return false };
        if busy.hangs(now) && self.told.insert(uid.clone()) {
            let volume = &busy.volume;
            warn!(pod = %name, pod.uid = %uid, volume, "the file system of a volume does not answer; it is not measured until it does");
        }
        true
    }

    fn is_due(&self, uid: &PodUid, now: Instant) -> bool {
        self.next.get(uid).is_none_or(|next| *next <= now)
    }

    fn keep_only(&mut self, there: &HashSet<PodUid>) {
        self.found.retain(|uid, _| there.contains(uid));
        self.told.retain(|uid| there.contains(uid));
        self.next.retain(|uid, _| there.contains(uid));
    }
}

/// Which pods to walk.
pub(super) struct Round {
    pub(super) pods: Vec<(PodUid, Arc<DesiredPod>)>,
    pub(super) objects: Arc<Objects>,
    pub(super) root: PathBuf,
    pub(super) period: Duration,
    pub(super) walked: Arc<Mutex<Walked>>,
}

impl Round {
    /// Walks the pods whose time has come, and returns what is known of all.
    pub(super) async fn walk(self) -> Volumes {
        for (uid, desired) in &self.pods {
            self.wait_for_room().await;
            let (skip, hanging) = {
                let (mut walked, now) = (Walked::of(&self.walked), Instant::now());
                let skip = walked.is_busy(uid, &desired.full_name, now) || !walked.is_due(uid, now);
                (skip, walked.hanging_and_slow(now).0)
            };
            if skip || (hanging >= REMOTE_HANGING && has_remote(&desired.pod, &self.objects)) {
                continue;
            }
            match VOLUMES.run(TURN, self.work(uid, desired)).await {
                Err(LaneError::Interrupted) => {
                    Walked::of(&self.walked).busy.remove(uid);
                }
                Err(LaneError::Late) => {
                    Walked::of(&self.walked).is_busy(uid, &desired.full_name, Instant::now());
                }
                Ok(()) | Err(LaneError::Full) => {}
            }
        }
        let mut walked = Walked::of(&self.walked);
        walked.keep_only(&self.pods.iter().map(|(uid, _)| uid.clone()).collect());
        walked.found.clone()
    }

    /// Slow walks end, or hang: either makes room.
    async fn wait_for_room(&self) {
        while Walked::of(&self.walked).hanging_and_slow(Instant::now()).1 >= BESIDE {
            sleep(AGAIN).await;
        }
    }

    fn work(&self, uid: &PodUid, desired: &DesiredPod) -> impl FnOnce() + Send + 'static {
        let (root, uid, pod) = (self.root.clone(), uid.clone(), Arc::clone(&desired.pod));
        let (objects, shared, period) = (Arc::clone(&self.objects), Arc::clone(&self.walked), self.period);
        move || {
            let (begun, cpu_begun) = (Instant::now(), thread_time());
            let entries: Arc<AtomicU64> = Arc::default();
            let look = |name: &str| Walked::of(&shared).look(&uid, name, &entries);
            let found = volumes_of(&root, &uid, (&pod, &objects), look, &entries);
            let took = Took { wall: begun.elapsed(), cpu: thread_time().saturating_sub(cpu_begun) };
            Walked::of(&shared).done(&uid, found, took, period);
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_types::PodSource;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    fn took(seconds: u64) -> Took {
        Took { wall: Duration::from_secs(seconds), cpu: Duration::from_millis(500) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_walked_less_often() {
        let mut walked = Walked::default();
        let (small, large) = (PodUid::from("small"), PodUid::from("large"));
        assert!(walked.is_due(&small, Instant::now()), "it was never walked");
        walked.done(&small, [].into(), took(1), PERIOD);
        walked.done(&large, [].into(), took(50), PERIOD);
        let due = |walked: &Walked| [&small, &large].map(|uid| walked.is_due(uid, Instant::now()));
        assert_eq!(due(&walked), [false, false]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(due(&walked), [true, false]);
        tokio::time::advance(Duration::from_secs(50 * 19) - PERIOD).await;
        assert_eq!(due(&walked), [true, true]);
        let cost = walked.cost();
        assert_eq!((cost.micros, cost.cpu_micros), (51_000_000, 1_000_000));
        walked.keep_only(&[small].into());
        assert_eq!(walked.next.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_is_not_hung() {
        let mut walked = Walked::default();
        let entries: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let uids: Vec<PodUid> = (0..3).map(|at| PodUid::from(format!("u{at}"))).collect();
        for (uid, entries) in uids.iter().zip(&entries) {
            walked.look(uid, "data", entries);
        }
        for _ in 0..10 {
            tokio::time::advance(SILENT).await;
            entries[0].fetch_add(1, Ordering::Relaxed);
            entries[1].fetch_add(1, Ordering::Relaxed);
            walked.hanging_and_slow(Instant::now());
        }
        assert_eq!(walked.hanging_and_slow(Instant::now()), (1, 2), "two get on, one does not");
        let name = FullName::new("default", "p");
        for uid in &uids {
            assert!(walked.is_busy(uid, &name, Instant::now()));
        }
        assert_eq!(walked.told, [uids[2].clone()].into(), "only the one is told of");
        // It answers again, and does not rest for the time that it hung.
        entries[2].fetch_add(1, Ordering::Relaxed);
        assert_eq!(walked.hanging_and_slow(Instant::now()), (0, 3));
        walked.done(&uids[2], [].into(), took(40), PERIOD);
        tokio::time::advance(PERIOD).await;
        assert!(walked.is_due(&uids[2], Instant::now()));
    }

    #[tokio::test]
    async fn a_pod_is_walked_when_its_time_has_come() {
        let dir = tempfile::tempdir().unwrap();
        let uid = PodUid::from("u");
        let pod = serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": [], "volumes": [{"name": "scratch", "emptyDir": {}}]},
        });
        let desired = Arc::new(DesiredPod {
            uid: uid.clone(),
            full_name: FullName::new("default", "p"),
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            source: PodSource::File,
            origin: "test".into(),
            terminate: None,
            remote: None,
        });
        let volume = dir.path().join("pods/u/volumes/kubernetes.io~empty-dir/scratch");
        std::fs::create_dir_all(&volume).unwrap();
        let walked: Arc<Mutex<Walked>> = Arc::default();
        let inodes = async || {
            let round = Round {
                pods: vec![(uid.clone(), Arc::clone(&desired))],
                objects: Arc::default(),
                root: dir.path().to_owned(),
                period: PERIOD,
                walked: Arc::clone(&walked),
            };
            round.walk().await[&uid][0].reading.inodes_used
        };
        assert_eq!(inodes().await, Some(1));
        std::fs::write(volume.join("file"), "").unwrap();
        assert_eq!(inodes().await, Some(1), "not yet");
        Walked::of(&walked).next.clear();
        assert_eq!(inodes().await, Some(2));
        assert!(Walked::of(&walked).cost().micros > 0);
    }
}
