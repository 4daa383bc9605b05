//! What pods and the node use, read from their cgroups: every cgroup once a period, for everybody who wants to know.
//!
//! One task, `samples`, owned by the task group given to [`start`]. In: what the runtime shows, which says whose cgroup is
//! whose; nothing is searched for. Out: a `watch` of readings. It decides nothing, and nobody waits for it.
//!
//! A container that has just come is read within a second rather than with the next round, so that it is soon seen; one that has ended is
//! left out at once. A round that does not end is named in the log, and what it hangs at is left to it: another reader reads the rest.

mod hanging;
mod reader;

use std::{collections::HashSet, ops::ControlFlow, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use mainstay_cgroup::{CgroupNames, CgroupPath, Cgroups};
use mainstay_cri::Cri;
use mainstay_sample::Budget;
use mainstay_task::TaskGroup;
use mainstay_types::{ObservedState, Samples, SliceRole};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at},
};
use tracing::{error, info, warn};

use hanging::{Hanging, Place, Progress};
pub(crate) use reader::thread_time;
use reader::{Reader, Wanted, without_ended};

/// A pod that has come is given this long to start its containers before it is read.
const SOON: Duration = Duration::from_secs(1);
/// Longest that the runtime may take to tell of a sandbox, and when it is asked again if it did not. No reading waits for it.
const IMAGE_DEADLINE: Duration = Duration::from_secs(10);
const IMAGE_AGAIN: Duration = Duration::from_secs(60);
/// A round that is at the same place for a period hangs, and for no less than this.
const SILENT: Duration = Duration::from_secs(1);
/// So many rounds may hang, each with a thread of its own; with more nothing is read until one of them ends.
const MOST_HANGING: usize = 3;

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

/// Reads with a reader that `make` makes; with another one when that has panicked or hangs.
async fn run(
    make: impl Fn() -> Reader,
    (cri, period): (Cri, Duration),
    mut observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Samples>>,
) {
    let hanging = Hanging::default();
    let left_out = hanging.clone();
    let make = move || make().leaving_out(&left_out);
    let mut rounds = Rounds {
        idle: Some(make()),
        make,
        hanging,
        running: None,
        late: FuturesUnordered::new(),
        silent: period.max(SILENT),
        sender,
    };
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: HashSet<String> = HashSet::new();
    let mut soon: Option<Instant> = None;
    let mut image = SandboxImage::default();
    loop {
        let idle = rounds.idle.is_some();
        // Each is cancel safe: an interval, a sleep until a fixed moment, a watch, what is polled by reference.
        let all = tokio::select! {
            _ = tick.tick(), if idle => true,
            () = sleep_until(soon.unwrap_or_else(Instant::now)), if soon.is_some() && idle => false,
            // A question goes on where it was when another branch was taken.
            () = image.answered() => {
                // It is told at once: a series that has it later would be another one.
                rounds.publish(|samples| samples.sandbox_image = Arc::clone(&image.name));
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
                rounds.leave_out_ended(&state);
                continue;
            }
            news = rounds.news() => {
                let state = observed.borrow().clone();
                if rounds.take(news, &state).is_break() {
                    return;
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
        rounds.begin(wanted, all);
    }
}

/// Rounds of reading: one at a time, and those that hang.
struct Rounds<Make> {
    make: Make,
    hanging: Hanging,
    /// While no round is under way.
    idle: Option<Reader>,
    running: Option<Round>,
    late: FuturesUnordered<BoxFuture<'static, Place>>,
    /// What is at the same place for so long hangs.
    silent: Duration,
    sender: watch::Sender<Arc<Samples>>,
}

/// One that is under way.
struct Round {
    reading: JoinHandle<Box<(Reader, Samples)>>,
    progress: Arc<Progress>,
    /// How far it was when somebody looked last, and when somebody looks again.
    seen: u64,
    look: Instant,
    /// It has been said that it hangs.
    told: bool,
}

/// What is new of rounds.
enum News {
    /// Nothing: it is time to look whether the one under way gets on.
    Look,
    Ended(Result<Box<(Reader, Samples)>, JoinError>),
    /// What a round hung at answers.
    Answers(Place),
}

impl<Make: Fn() -> Reader> Rounds<Make> {
    fn begin(&mut self, wanted: Vec<Wanted>, all: bool) {
        let Some(mut reader) = self.idle.take() else { return };
        let before = self.sender.borrow().clone();
        let progress = reader.progress();
        let seen = progress.steps();
        let reading = tokio::task::spawn_blocking(move || {
            let samples = reader.read(&wanted, all, &before);
            Box::new((reader, samples))
        });
        let look = Instant::now() + self.silent;
        self.running = Some(Round { reading, progress, seen, look, told: false });
    }

    /// Cancel safe: all is polled by reference.
    async fn news(&mut self) -> News {
        let running = async {
            match &mut self.running {
                Some(Round { reading, look, .. }) => {
                    timeout_at(*look, reading).await.map_or(News::Look, News::Ended)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = running => news,
            Some(place) = self.late.next() => News::Answers(place),
        }
    }

    /// Breaks when the process ends.
    fn take(&mut self, news: News, state: &ObservedState) -> ControlFlow<()> {
        match news {
            News::Look => self.look(),
            News::Ended(Ok(read)) => {
                let (reader, samples) = *read;
                (self.running, self.idle) = (None, Some(reader));
                let hanging = self.hanging.count();
                self.publish(|now| {
                    // What was told meanwhile stays so.
                    let (generation, sandbox_image) = (now.generation, Arc::clone(&now.sandbox_image));
                    *now = Samples { generation, sandbox_image, ..samples };
                    now.cost.hanging = hanging;
                });
                self.leave_out_ended(state);
            }
            News::Ended(Err(error)) if error.is_panic() => {
                // One cgroup's panic ends no round; this is another's. What was read before stays, with its time.
                error!(%error, "a round of reading cgroups panicked; the next one begins anew");
                (self.running, self.idle) = (None, Some((self.make)()));
            }
            News::Ended(Err(_)) => return ControlFlow::Break(()),
            News::Answers(place) => {
                info!(%place, "reading has ended; this is read again");
                self.hanging.remove(&place);
            }
        }
        ControlFlow::Continue(())
    }

    /// Leaves a round alone that hangs, with what it hangs at, and goes on with another reader.
    fn look(&mut self) {
        let Some(mut round) = self.running.take() else { return };
        round.look = Instant::now() + self.silent;
        let steps = round.progress.steps();
        let gets_on = std::mem::replace(&mut round.seen, steps) != steps;
        let Some(place) = round.progress.place().filter(|_| !gets_on) else {
            self.running = Some(round);
            return;
        };
        if self.late.len() >= MOST_HANGING {
            if !std::mem::replace(&mut round.told, true) {
                warn!(%place, "reading does not end, as at too many other places; nothing is read until one of them answers");
            }
            self.running = Some(round);
            return;
        }
        warn!(%place, "reading does not end; this is left out until it does");
        self.hanging.insert(place.clone());
        self.late.push(Box::pin(async move {
            round.reading.await.ok();
            place
        }));
        self.idle = Some((self.make)());
        let hanging = self.hanging.count();
        self.publish(|samples| samples.cost.hanging = hanging);
    }

    /// Tells what has changed, as another reading.
    fn publish(&self, change: impl FnOnce(&mut Samples)) {
        self.sender.send_modify(|samples| {
            let samples = Arc::make_mut(samples);
            change(samples);
            samples.generation += 1;
        });
    }

    /// A container's series end with it, and not with the next round. Nothing has to be read for that.
    fn leave_out_ended(&self, state: &ObservedState) {
        let left = without_ended(&self.sender.borrow(), state);
        if let Some(pods) = left {
            self.publish(|samples| samples.pods = pods);
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
mod tests;
