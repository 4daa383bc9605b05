//! What pods and the node use, read from their cgroups: every cgroup once a period, for everybody who wants to know.
//!
//! One task, `samples`, owned by the task group given to [`start`]. In: what the runtime shows, which says whose cgroup is
//! whose; nothing is searched for. Out: a `watch` of readings. It decides nothing, and nobody waits for it.
//!
//! A container that has just come is read within a second rather than with the next round, so that it is soon seen.

mod reader;

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mainstay_cgroup::{CgroupNames, CgroupPath, Cgroups};
use mainstay_cri::Cri;
use mainstay_sample::Budget;
use mainstay_task::TaskGroup;
use mainstay_types::{ObservedState, Samples, SliceRole};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::error;

pub(crate) use reader::thread_time;
use reader::{Reader, Wanted};

/// A pod that has come is given this long to start its containers before it is read.
const SOON: Duration = Duration::from_secs(1);
/// Longest that the runtime may take to tell of a sandbox, and when it is asked again if it did not. No reading waits for it.
const IMAGE_DEADLINE: Duration = Duration::from_secs(10);
const IMAGE_AGAIN: Duration = Duration::from_secs(60);

/// What to read, and how often.
#[derive(Clone, Debug)]
pub struct SamplesConfig {
    /// What the pods' cgroups are called.
    pub names: CgroupNames,
    /// Where they are.
    pub hierarchy: Cgroups,
    /// Cgroups beside those of pods: mainstay's own, and configured ones.
    pub slices: Vec<(SliceRole, CgroupPath)>,
    /// Below which every cgroup is measured, too; it is looked through at each reading.
    pub services: Option<CgroupPath>,
    /// The runtime, which knows of what sandboxes are made.
    pub cri: Cri,
    /// Between two readings.
    pub period: Duration,
}

/// Starts reading; readings go to `sender`.
pub fn start(
    config: SamplesConfig,
    observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Samples>>,
    tasks: &TaskGroup,
) {
    let budget = Budget::of_process();
    let (cri, period) = (config.cri.clone(), config.period);
    let make = move || {
        let SamplesConfig { names, hierarchy, slices, services, .. } = config.clone();
        Reader::new(names, hierarchy, slices, services, budget.clone())
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("samples", async move {
        shutdown.run_until_signalled(run(make, (cri, period), observed, sender)).await;
    });
}

/// Reads with a reader that `make` makes; with another one when that has panicked.
async fn run(
    make: impl Fn() -> Reader,
    (cri, period): (Cri, Duration),
    mut observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Samples>>,
) {
    let mut reader = make();
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: HashSet<String> = HashSet::new();
    let mut soon: Option<Instant> = None;
    let mut image = SandboxImage::default();
    loop {
        // Each is cancel safe: an interval, a sleep until a fixed moment, a watch.
        let all = tokio::select! {
            _ = tick.tick() => true,
            () = sleep_until(soon.unwrap_or_else(Instant::now)), if soon.is_some() => false,
            // A question goes on where it was when another branch was taken.
            () = image.answered() => {
                // It is told at once: a series that has it later would be another one.
                sender.send_modify(|samples| {
                    let samples = Arc::make_mut(samples);
                    samples.sandbox_image = Arc::clone(&image.name);
                    samples.generation += 1;
                });
                continue;
            }
            changed = observed.changed() => {
                if changed.is_err() {
                    return;
                }
                let state = observed.borrow_and_update().clone();
                let news = || state.pods.values().flat_map(|pod| Wanted::ids(pod)).any(|id| !known.contains(id));
                if soon.is_none() && news() {
                    soon = Some(Instant::now() + SOON);
                }
                continue;
            }
        };
        soon = None;
        let state = observed.borrow().clone();
        let wanted: Vec<Wanted> = state.pods.values().filter_map(|pod| Wanted::of(pod)).collect();
        known = wanted.iter().flat_map(Wanted::all_ids).cloned().collect();
        let sandbox = wanted.iter().find_map(Wanted::sandbox_id).map(str::to_owned);
        if let Some(sandbox) = sandbox {
            // All sandboxes of a runtime are made of the same image: one is asked.
            let cri = cri.clone();
            image.ask(|| Box::pin(async move { sandbox_image(&cri, &sandbox).await }));
        }
        let name = Arc::clone(&image.name);
        let before = sender.borrow().clone();
        let reading = tokio::task::spawn_blocking(move || {
            let samples = Samples { sandbox_image: name, ..reader.read(&wanted, all, &before) };
            (reader, samples)
        });
        match reading.await {
            Ok((back, samples)) => {
                reader = back;
                sender.send_replace(Arc::new(samples));
            }
            Err(error) if error.is_panic() => {
                // One cgroup's panic ends no round; this is another's. What was read before stays, with its time.
                error!(%error, "a round of reading cgroups panicked; the next one begins anew");
                reader = make();
            }
            // The process ends.
            Err(_) => return,
        }
    }
}

/// What sandboxes are made of, and the question for it.
#[derive(Default)]
struct SandboxImage {
    /// Empty until it is known.
    name: Arc<str>,
    asking: Option<BoxFuture<'static, Option<String>>>,
    /// Not before.
    next: Option<Instant>,
}

impl SandboxImage {
    /// Begins to ask, unless it is known, is being asked for, or was a short while ago.
    fn ask(&mut self, make: impl FnOnce() -> BoxFuture<'static, Option<String>>) {
        let is_due = self.next.is_none_or(|next| next <= Instant::now());
        if self.name.is_empty() && self.asking.is_none() && is_due {
            self.asking = Some(make());
        }
    }

    /// Returns when it has come to be known; never while nobody asks. Cancel safe: the question is kept.
    async fn answered(&mut self) {
        if let Some(asking) = &mut self.asking {
            let answer = asking.await;
            self.asking = None;
            self.next = Some(Instant::now() + IMAGE_AGAIN);
            if let Some(name) = answer.filter(|name| !name.is_empty()) {
                self.name = name.into();
                return;
            }
        }
        std::future::pending().await
    }
}

/// The image of a sandbox. Only containerd tells, and only those who ask for everything.
async fn sandbox_image(cri: &Cri, sandbox: &str) -> Option<String> {
    let asked = cri.sandbox_info(sandbox);
    let info = tokio::time::timeout(IMAGE_DEADLINE, asked).await.ok()?.ok()?;
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    info.get("image")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::atomic::{AtomicU32, Ordering},
    };

    use mainstay_cgroup::Driver;

    use super::{reader::tests::panics, *};

    #[tokio::test]
    async fn a_round_that_panics_ends_nothing_but_itself() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("cgroup.controllers", "cpu\n"), ("cgroup.procs", ""), ("cpu.stat", "usage_usec 7\n")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let hierarchy = Cgroups::open(dir.path()).unwrap();
        let made = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&made);
        let make = move || {
            let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
            let reader = Reader::new(names, hierarchy.clone(), Vec::new(), None, Budget::new(10));
            if count.fetch_add(1, Ordering::Relaxed) < 2 { reader.in_other_ways(panics()) } else { reader }
        };
        let cri = Cri::new("unix:///run/nobody.sock", None, SOON).unwrap();
        let (_observed, observed) = watch::channel(Arc::new(ObservedState::unread()));
        let (sender, mut samples) = watch::channel(Arc::<Samples>::default());
        let tasks = TaskGroup::new();
        tasks.spawn_critical("samples", run(make, (cri, Duration::from_millis(10)), observed, sender));
        let read = samples.wait_for(|samples| samples.generation > 3);
        let read = tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap();
        assert_eq!(read.root.as_ref().unwrap().cpu.usage_ns, 7000);
        assert_eq!(made.load(Ordering::Relaxed), 3, "two that panicked, and one");
        assert_eq!(tasks.running_names(), ["samples"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_image_of_sandboxes_is_asked_for_until_it_is_known_and_nobody_waits() {
        let mut image = SandboxImage::default();
        let asked = Arc::new(AtomicU32::new(0));
        let answers = |image: &mut SandboxImage, answer: Option<&'static str>| {
            let asked = Arc::clone(&asked);
            image.ask(|| {
                asked.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move { answer.map(str::to_owned) })
            });
        };
        // The loop takes other branches meanwhile; a question that takes long is one and the same.
        image.ask(|| {
            Box::pin(async {
                tokio::time::sleep(IMAGE_AGAIN).await;
                None
            })
        });
        for _ in 0..10 {
            tokio::time::timeout(SOON, image.answered()).await.unwrap_err();
            answers(&mut image, Some("other"));
        }
        tokio::time::timeout(IMAGE_AGAIN, image.answered()).await.unwrap_err();
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        for _ in 0..20 {
            tokio::time::advance(IMAGE_AGAIN).await;
            answers(&mut image, None);
            tokio::time::timeout(SOON, image.answered()).await.unwrap_err();
            answers(&mut image, None);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 20, "again and again, but not at every reading");
        tokio::time::advance(IMAGE_AGAIN).await;
        answers(&mut image, Some("pause"));
        image.answered().await;
        assert_eq!(&*image.name, "pause");
        answers(&mut image, Some("other"));
        assert!(image.asking.is_none());
    }
}
