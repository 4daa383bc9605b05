//! What the node runs short of: memory, disk and process IDs are measured once a period and held against the configured
//! eviction thresholds, by the rules of `policy::Thresholds`.
//!
//! One task, `pressure`, owned by the task group given to [`start`]. Out: a `watch` of [`NodePressure`], and an event of the
//! node for each turn. What is remembered of earlier crossings is kept in a file, so that a restart changes nothing.
//! It evicts nobody.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_checkpoint::{Durability, File, Loaded, ensure_directory};
use mainstay_cri::Cri;
use mainstay_host::{FilesystemUsage, Host};
use mainstay_policy::{PressureMemory, Reading, Signal, Signals, Thresholds};
use mainstay_sample::memory_of;
use mainstay_task::TaskGroup;
use mainstay_types::{Event, EventKind, EventSink, EventTarget, NodePressure, PressureKind};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout, timeout_at},
};
use tracing::{debug, info, warn};

/// A disk that has not answered by then is left to answer; what was known of it stays.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often the runtime is asked anew where its images lie.
const ROUNDS_PER_QUESTION: u32 = 30;

/// What to measure, and what to hold it against.
#[derive(Debug)]
pub struct PressureConfig {
    /// The node's name, for events.
    pub node_name: Arc<str>,
    /// The machine.
    pub host: Host,
    /// Knows where images lie.
    pub cri: Cri,
    /// The file system of this directory is the node's.
    pub root_dir: PathBuf,
    /// The machine's memory in bytes, less what was made into huge pages.
    pub memory_bytes: i64,
    /// The cgroup of all pods and how many bytes of memory they may use together; `None` where they are not held to it.
    pub pods: Option<(CgroupPath, i64)>,
    /// The thresholds.
    pub thresholds: Thresholds,
    /// `evictionPressureTransitionPeriod`.
    pub transition: Duration,
    /// Between two measurements.
    pub period: Duration,
    /// Where it is kept what must be known after a restart.
    pub state_file: PathBuf,
    /// Where to tell of events.
    pub events: EventSink,
}

/// Measures once, so that the first answer is one, then starts the task. Problems with the file are returned as sentences for
/// the node's events.
pub async fn start(
    config: PressureConfig,
    tasks: &TaskGroup,
) -> (watch::Receiver<NodePressure>, Vec<String>) {
    let file = File::new(&config.state_file, "pressure", 1, Durability::ProcessDeath);
    let loaded = file.load::<PressureMemory>();
    let is_new = matches!(loaded, Loaded::Absent);
    let (memory, problems) = match loaded {
        Loaded::Good(memory) => (memory, Vec::new()),
        Loaded::Absent => (PressureMemory::default(), Vec::new()),
        Loaded::SetAside(bad) => (PressureMemory::default(), vec![bad.to_string()]),
    };
    let mut gauge =
        Gauge { config, file, memory, places: Places::default(), round: 0, readings: [None, None, None] };
    // What held when mainstay ended holds until something else is measured. A new node has said nothing yet, not even of what it has no
    // thresholds for.
    let (held, _) = gauge.assess(&Signals::new());
    let before = if is_new { NodePressure::default() } else { held };
    let (sender, receiver) = watch::channel(before);
    gauge.look(&sender).await;
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("pressure", async move {
        shutdown
            .run_until_signalled(async move {
                let mut ticks = interval(gauge.config.period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    gauge.look(&sender).await;
                }
            })
            .await;
    });
    (receiver, problems)
}

struct Gauge {
    config: PressureConfig,
    file: File,
    memory: PressureMemory,
    places: Places,
    round: u32,
    /// Measurements that have not come back: of the machine, of the node's disk, of that with images.
    readings: [Option<JoinHandle<Signals>>; 3],
}

/// Where things lie that are measured.
#[derive(Clone, Debug, Default)]
struct Places {
    images: Option<PathBuf>,
}

impl Gauge {
    async fn look(&mut self, sender: &watch::Sender<NodePressure>) {
        let wants_images = self.config.thresholds.wants(Signal::ImagefsAvailable)
            || self.config.thresholds.wants(Signal::ImagefsInodesFree);
        if wants_images && (self.places.images.is_none() || self.round.is_multiple_of(ROUNDS_PER_QUESTION)) {
            self.ask_for_images().await;
        }
        self.round = self.round.wrapping_add(1);
        let signals = self.measure().await;
        let (pressure, memory) = self.assess(&signals);
        if memory != self.memory {
            self.memory = memory;
            self.keep().await;
        }
        let before = *sender.borrow();
        if pressure != before {
            self.tell(before, pressure, &signals);
            sender.send_replace(pressure);
        }
    }

    fn assess(&self, signals: &Signals) -> (NodePressure, PressureMemory) {
        let transition = SignedDuration::try_from(self.config.transition).unwrap_or(SignedDuration::MAX);
        self.config.thresholds.assess(&self.memory, signals, transition, Timestamp::now())
    }

    async fn ask_for_images(&mut self) {
        match timeout(DEADLINE, self.config.cri.image_fs_info()).await {
            Ok(Ok(info)) => {
                let found = info.image_filesystems.into_iter().find_map(|system| system.fs_id);
                self.places.images = found.map(|id| id.mountpoint.into()).or(self.places.images.take());
            }
            // What was known stays; that the runtime is away is told elsewhere.
            Ok(Err(error)) => debug!(%error, "cannot ask where images lie"),
            Err(_) => debug!("the runtime does not say where images lie"),
        }
    }

    /// What can be measured within the deadline.
    async fn measure(&mut self) -> Signals {
        let (host, memory, pods) =
            (self.config.host.clone(), self.config.memory_bytes, self.config.pods.clone());
        let (root, images) = (self.config.root_dir.clone(), self.places.images.clone());
        let works: [Work; 3] = [
            Box::new(move || read_machine(&host, memory, pods.as_ref())),
            Box::new(move || read_disk(&root, Signal::NodefsAvailable, Signal::NodefsInodesFree)),
            Box::new(move || match images {
                Some(images) => read_disk(&images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
                None => Signals::new(),
            }),
        ];
        gather(&mut self.readings, works).await
    }

    async fn keep(&self) {
        let (file, memory) = (self.file.clone(), self.memory.clone());
        let written = tokio::task::spawn_blocking(move || {
            let directory = file.path().parent().unwrap_or(Path::new("."));
            ensure_directory(directory, 0o700).and_then(|()| file.write(&memory))
        });
        // A full disk is one of the things that are told of here: not to be able to write it down is no surprise.
        if let Ok(Err(error)) = written.await {
            debug!(%error, "cannot keep what is known of the node's pressure");
        }
    }

    /// Upstream's reasons (`pkg/kubelet/nodestatus/setters.go`) and its sentence. A node that is measured for the first time has enough, and
    /// says so; one that goes on after a restart has said it.
    fn tell(&self, before: NodePressure, after: NodePressure, signals: &Signals) {
        for kind in PressureKind::ALL {
            let (Some(short), was) = (after.of(kind), before.of(kind)) else { continue };
            if was == Some(short) {
                continue;
            }
            let reason = match (kind, short) {
                (PressureKind::Memory, true) => "NodeHasInsufficientMemory",
                (PressureKind::Memory, false) => "NodeHasSufficientMemory",
                (PressureKind::Disk, true) => "NodeHasDiskPressure",
                (PressureKind::Disk, false) => "NodeHasNoDiskPressure",
                (PressureKind::Pid, true) => "NodeHasInsufficientPID",
                (PressureKind::Pid, false) => "NodeHasSufficientPID",
            };
            let measured: Vec<_> = signals.iter().filter(|(signal, _)| signal.kind() == kind).collect();
            if short {
                warn!(condition = kind.condition(), ?measured, "the node runs short; it takes fewer pods");
            } else if was.is_some() {
                info!(condition = kind.condition(), ?measured, "the node runs short no longer");
            }
            let message = format!("Node {} status is now: {reason}", self.config.node_name);
            let (target, kind) = (EventTarget::Node, EventKind::Normal);
            let time = Timestamp::now();
            self.config.events.send(Event { target, kind, reason: reason.into(), message, time });
        }
    }
}

/// A measurement; it blocks.
type Work = Box<dyn FnOnce() -> Signals + Send>;

/// Does each beside the others, and takes what has come by the deadline. One that has not is waited for again the next time, and not begun
/// anew: a disk that hangs holds one thread, and hides nothing but itself.
async fn gather(readings: &mut [Option<JoinHandle<Signals>>; 3], works: [Work; 3]) -> Signals {
    for (reading, work) in readings.iter_mut().zip(works) {
        reading.get_or_insert_with(|| tokio::task::spawn_blocking(work));
    }
    let until = Instant::now() + DEADLINE;
    let mut signals = Signals::new();
    for slot in readings {
        let Some(reading) = slot else { continue };
        // Cancel safe: the handle stays, and its result with it.
        if let Ok(part) = timeout_at(until, reading).await {
            *slot = None;
            signals.extend(part.unwrap_or_default());
        }
    }
    signals
}

/// Memory and processes. Blocks.
fn read_machine(host: &Host, memory_bytes: i64, pods: Option<&(CgroupPath, i64)>) -> Signals {
    let mut signals = Signals::new();
    let hierarchy = Cgroups::open("/sys/fs/cgroup").ok();
    let used = |path: &CgroupPath| {
        let memory = memory_of(hierarchy.as_ref()?, path).ok()??;
        Some(signed(memory.working_set))
    };
    let machine = CgroupPath::parse("/").ok().and_then(|root| used(&root));
    let mut memory = |signal, used: Option<i64>, capacity: i64| {
        if let Some(used) = used {
            let available = capacity.saturating_sub(used).max(0);
            signals.insert(signal, Reading { available, capacity });
        }
    };
    memory(Signal::MemoryAvailable, machine, memory_bytes);
    if let Some((path, capacity)) = pods {
        memory(Signal::AllocatableMemoryAvailable, used(path), *capacity);
    }
    if let (Ok(capacity), Ok(running)) = (host.max_pids(), host.running_pids()) {
        let available = capacity.saturating_sub(running).max(0);
        signals.insert(Signal::PidAvailable, Reading { available, capacity });
    }
    signals
}

/// A file system. Blocks, for ever if it does not answer.
fn read_disk(path: &Path, space: Signal, inodes: Signal) -> Signals {
    let mut signals = Signals::new();
    let Ok(usage) = FilesystemUsage::of(path) else { return signals };
    let (available, capacity) = (signed(usage.available_bytes), signed(usage.capacity_bytes));
    signals.insert(space, Reading { available, capacity });
    // A file system that does not count them cannot run out of them.
    if usage.inodes > 0 {
        let (available, capacity) = (signed(usage.inodes_free), signed(usage.inodes));
        signals.insert(inodes, Reading { available, capacity });
    }
    signals
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_measured() {
        let host = Host::default();
        let total = signed(host.memory_total_bytes().unwrap());
        let mut signals = read_machine(&host, total, None);
        signals.extend(read_disk(Path::new("/"), Signal::NodefsAvailable, Signal::NodefsInodesFree));
        signals.extend(read_disk(Path::new("/proc"), Signal::ImagefsAvailable, Signal::ImagefsInodesFree));
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
            let Reading { available, capacity } = signals[&signal];
            assert!(
                (0..=capacity).contains(&available) && capacity > 0,
                "{signal:?}: {available} of {capacity}"
            );
        }
        assert!(!signals.contains_key(&Signal::ImagefsInodesFree), "proc counts no inodes: {signals:?}");
        assert!(!signals.contains_key(&Signal::AllocatableMemoryAvailable));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_disk_that_hangs_hides_nothing_but_itself() {
        let of = |signal: Signal| -> Signals { [(signal, Reading { available: 1, capacity: 2 })].into() };
        let mut readings = [None, None, None];
        let (release, hung) = std::sync::mpsc::channel::<()>();
        let mut hung = Some(hung);
        for round in 0..2 {
            let hung = hung.take();
            let works: [Work; 3] = [
                Box::new(move || of(Signal::MemoryAvailable)),
                // In the second round it is not begun again.
                Box::new(move || {
                    hung.expect("begun once").recv().ok();
                    of(Signal::NodefsAvailable)
                }),
                Box::new(move || of(Signal::ImagefsAvailable)),
            ];
            let signals = gather(&mut readings, works).await;
            let found: Vec<_> = signals.keys().copied().collect();
            assert_eq!(found.len(), 2, "round {round}: {signals:?}");
            assert!(!signals.contains_key(&Signal::NodefsAvailable), "round {round}: {signals:?}");
        }
        drop(release);
        let nothing = || -> Work { Box::new(Signals::new) };
        let signals = gather(&mut readings, [nothing(), nothing(), nothing()]).await;
        assert!(signals.contains_key(&Signal::NodefsAvailable), "it is back: {signals:?}");
    }
}
