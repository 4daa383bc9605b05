//! The actor: one owner of the observed state.

mod relist;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use mainstay_cri::{Cri, CriError};
use mainstay_task::{Backoff, TaskGroup};
use mainstay_types::{
    FullName, MadeObjects, NodeCounters, ObservedPod, ObservedState, PodUid, ReadWish, RuntimeHealth,
};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use self::relist::Relist;
use crate::{
    events, health,
    kills::{Kills, PodCgroups},
    read,
};

/// How many pods are read at once.
const PARALLEL_READS: usize = 16;
/// The first list is published without the pods that could not be read for this long.
const FIRST_LIST_PATIENCE: Duration = Duration::from_secs(12);
/// How long a pod about which the runtime does not answer is left out of relists: longer each time in a row, because a machine
/// that is merely busy must not lose sight of it.
const STUCK_PAUSE: Backoff = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(60));
/// How many wishes may wait; with the channel full reconcile wishes again a little later.
const REFRESH_BOUND: usize = 512;

/// How to observe.
#[derive(Clone, Debug)]
pub struct ObserveConfig {
    /// The runtime.
    pub cri: Cri,
    /// Between relists when the runtime sends no events.
    pub relist_period: Duration,
    /// Between relists when it does: only a safety net.
    pub relist_period_with_events: Duration,
    /// Between looks at the runtime's own health.
    pub health_period: Duration,
    /// Gate ContainerStopSignals: what signal ends a container is told.
    pub stop_signals: bool,
    /// What is counted of its work.
    pub counters: Arc<NodeCounters>,
    /// Where the kernel counts what it killed in pods.
    pub pod_cgroups: PodCgroups,
    /// Longest that reading one pod may take; it is then left alone for a while.
    pub read_deadline: Duration,
    /// Longest that the runtime may take to say how it is.
    pub health_deadline: Duration,
}

impl ObserveConfig {
    /// The usual rhythm.
    #[must_use]
    pub fn new(cri: Cri) -> Self {
        Self {
            cri,
            counters: Arc::default(),
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            health_period: Duration::from_secs(5),
            stop_signals: false,
            pod_cgroups: PodCgroups::default(),
            read_deadline: Duration::from_secs(5),
            health_deadline: Duration::from_secs(10),
        }
    }
}

/// Starts observing. The sender takes wishes for a fresh look at one pod; when it is full, a relist is near.
pub fn start(
    config: ObserveConfig,
    tasks: &TaskGroup,
) -> (watch::Receiver<Arc<ObservedState>>, mpsc::Sender<ReadWish>) {
    let (state_sender, state) = watch::channel(Arc::new(ObservedState::unread()));
    let (sender, wishes) = mpsc::channel(REFRESH_BOUND);
    let shutdown = tasks.shutdown();
    let event_uids = events::start(config.cri.clone(), Arc::clone(&config.counters), tasks);
    let actor = Actor {
        kills: Kills::new(Arc::clone(&config.pod_cgroups)),
        config,
        state: state_sender,
        fingerprints: HashMap::new(),
        reading: HashSet::new(),
        read_again: HashMap::new(),
        stuck: HashMap::new(),
        first_tried: None,
        settled: None,
        reads: FuturesUnordered::new(),
        relist: None,
        relisted: None,
        relist_work: FuturesUnordered::new(),
        checks: FuturesUnordered::new(),
    };
    tasks.spawn_critical("observe", async move {
        shutdown.run_until_signalled(Box::pin(actor.run(wishes, event_uids))).await;
    });
    (state, sender)
}

/// A reading, unless the runtime did not answer in time.
type TimedRead = Result<Result<Option<ObservedPod>, CriError>, tokio::time::error::Elapsed>;
type ReadResult = (PodUid, FullName, TimedRead);

/// A pod about which the runtime did not answer in time.
struct Stuck {
    name: FullName,
    /// So often in a row.
    times: u32,
    until: Instant,
}

struct Actor {
    config: ObserveConfig,
    state: watch::Sender<Arc<ObservedState>>,
    /// What the lists said of each pod when it was last read in full.
    fingerprints: HashMap<PodUid, u64>,
    reading: HashSet<PodUid>,
    read_again: HashMap<PodUid, Option<MadeObjects>>,
    stuck: HashMap<PodUid, Stuck>,
    /// When it was first tried to make the first list.
    first_tried: Option<Instant>,
    /// The print of the last lists that were taken in completely, and how many pods are in them.
    settled: Option<(u64, usize)>,
    /// Readings of single pods.
    reads: FuturesUnordered<BoxFuture<'static, ReadResult>>,
    kills: Kills,
    /// The relist under way, if there is one, and what of it is being waited for.
    relist: Option<Relist>,
    /// When the last one began.
    relisted: Option<Instant>,
    relist_work: FuturesUnordered<BoxFuture<'static, relist::Progress>>,
    /// The question how the runtime is, if it has not been answered yet.
    checks: FuturesUnordered<BoxFuture<'static, Result<RuntimeHealth, CriError>>>,
}

impl Actor {
    async fn run(mut self, mut wishes: mpsc::Receiver<ReadWish>, mut events: events::EventUids) {
        let mut health_tick = tokio::time::interval(self.config.health_period);
        health_tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // It ticks at the shorter period, so that a lost event stream is made up for at once.
        let mut relist_tick = tokio::time::interval(self.config.relist_period);
        relist_tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut relisted: Option<Instant> = None;
        loop {
            let room = self.reads.len() < PARALLEL_READS;
            // Every branch is cancel safe: receivers, intervals, and streams polled by reference. None waits for the
            // runtime: what does is among the streams.
            tokio::select! {
                Some(wish) = wishes.recv(), if room => self.begin_read(wish.uid, Some(wish.full_name), wish.made),
                Some(uid) = events.next(), if room => self.begin_read(uid, None, None),
                Some((uid, name, result)) = self.reads.next() => self.finish_read(uid, name, result),
                Some(progress) = self.relist_work.next() => {
                    if self.proceed(progress) {
                        relisted = Some(Instant::now());
                        relist_tick.reset();
                    }
                }
                Some(checked) = self.checks.next() => self.take_health(checked),
                _ = relist_tick.tick(), if !self.is_relisting() => {
                    let with_events = self.state.borrow().runtime.events && events.connected();
                    if with_events && relisted.is_some_and(|at| at.elapsed() < self.config.relist_period_with_events) {
                        continue;
                    }
                    self.begin_relist(events.connected());
                }
                _ = health_tick.tick(), if self.checks.is_empty() => self.begin_check(events.connected()),
            }
        }
    }

    /// Reads a pod: what is known of it and what was `made` since, or whatever the runtime lists for it.
    fn begin_read(&mut self, uid: PodUid, name: Option<FullName>, made: Option<MadeObjects>) {
        if !self.reading.insert(uid.clone()) {
            // What is being read now may have begun before the wish: read once more afterwards.
            match self.read_again.entry(uid) {
                Entry::Occupied(mut waiting) => merge(waiting.get_mut(), made),
                Entry::Vacant(vacant) => {
                    vacant.insert(made);
                }
            }
            return;
        }
        let (cri, deadline) = (self.config.cri.clone(), self.config.read_deadline);
        let counters = Arc::clone(&self.config.counters);
        let known = self.state.borrow().pods.get(&uid).cloned();
        self.reads.push(Box::pin(async move {
            let begun = Instant::now();
            let read = async {
                match made {
                    Some(made) => read::known(&cri, &uid, known.as_deref(), made, begun).await,
                    None => read::pod(&cri, &uid, known.as_deref(), begun).await,
                }
            };
            let result = tokio::time::timeout(deadline, read).await;
            counters.pod_reads.observe(begun.elapsed());
            // "Nothing is there" is a reading too, and has its time. The next relist takes the empty entry away.
            let nothing =
                || ObservedPod::nothing(uid.clone(), known.as_ref().map(|pod| pod.full_name.clone()), begun);
            let result = result.map(|read| read.map(|pod| Some(pod.unwrap_or_else(nothing))));
            let name = name.or_else(|| known.as_ref().map(|pod| pod.full_name.clone()));
            (uid, name.unwrap_or_else(|| FullName::new("", "")), result)
        }));
    }

    fn finish_read(&mut self, uid: PodUid, name: FullName, result: TimedRead) {
        self.reading.remove(&uid);
        // The next relist compares afresh: what it lists may already differ from what was read here.
        self.fingerprints.remove(&uid);
        match result {
            Ok(Ok(read)) => {
                self.stuck.remove(&uid);
                self.apply(vec![(uid.clone(), read)], None, None);
            }
            Ok(Err(error)) => {
                debug!(pod.uid = %uid, %error, "cannot read a pod from the runtime; the next relist tries again");
            }
            Err(_) => {
                self.note_stuck(&uid, &name);
                // Nobody is to wish for it again and again meanwhile.
                if self.state.borrow().listed_at.is_some() {
                    let mut silent = self.state.borrow().silent.clone();
                    silent.insert(uid.clone(), name.clone());
                    self.apply(Vec::new(), None, Some(silent));
                }
            }
        }
        if let Some(made) = self.read_again.remove(&uid) {
            self.begin_read(uid, Some(name), made);
        }
    }

    /// Puts readings into the state; receivers are woken only when something differs.
    fn apply(
        &mut self,
        mut changes: Vec<(PodUid, Option<ObservedPod>)>,
        listed_at: Option<Instant>,
        silent: Option<HashMap<PodUid, FullName>>,
    ) {
        self.complete(&mut changes);
        self.state.send_if_modified(|state| {
            let first = listed_at.is_some() && state.listed_at.is_none();
            let newer = |uid: &PodUid, read_at: Option<Instant>| {
                state.pods.get(uid).is_none_or(|known| read_at.is_none_or(|read_at| read_at >= known.read_at))
            };
            let changes: Vec<_> = changes
                .into_iter()
                .filter(|(uid, pod)| newer(uid, pod.as_ref().map(|p| p.read_at)))
                .collect();
            let silent = silent.filter(|silent| *silent != state.silent);
            if changes.is_empty() && !first && listed_at.is_none() && silent.is_none() {
                return false;
            }
            let mut wake = first || silent.is_some();
            let next = Arc::make_mut(state);
            if let Some(silent) = silent {
                next.silent = silent;
            }
            for (uid, pod) in changes {
                match pod {
                    Some(pod) => {
                        // Even an equal reading is news to reconcile, which waits for one begun after its action.
                        wake = true;
                        next.silent.remove(&uid);
                        next.pods.insert(uid, Arc::new(pod));
                    }
                    None => wake |= next.pods.remove(&uid).is_some(),
                }
            }
            if let Some(listed_at) = listed_at {
                next.listed_at = Some(listed_at);
                if !next.runtime.reachable {
                    let mut runtime = RuntimeHealth::clone(&next.runtime);
                    runtime.reachable = true;
                    runtime.unreachable_since = None;
                    next.runtime = Arc::new(runtime);
                    wake = true;
                    info!("the container runtime answers");
                }
            }
            next.generation += u64::from(wake);
            wake
        });
    }

    /// Adds to readings what the runtime does not say, and takes from them what nobody shall see.
    fn complete(&mut self, changes: &mut [(PodUid, Option<ObservedPod>)]) {
        let state = self.state.borrow();
        self.kills.begin(state.pods.keys());
        for (uid, pod) in changes.iter_mut() {
            let Some(pod) = pod else { continue };
            self.kills.mark(state.pods.get(uid).map(AsRef::as_ref), pod);
            if !self.config.stop_signals {
                pod.containers.iter_mut().for_each(|container| container.stop_signal = None);
            }
        }
        if changes.iter().any(|(_, pod)| pod.is_none()) {
            let gone: HashSet<&PodUid> =
                changes.iter().filter(|(_, pod)| pod.is_none()).map(|(uid, _)| uid).collect();
            self.kills.forget(|uid| state.pods.contains_key(uid) && !gone.contains(uid));
        }
    }

    fn unreachable(&self, error: &CriError) {
        self.state.send_if_modified(|state| {
            if !state.runtime.reachable && state.generation > 0 {
                return false;
            }
            warn!(%error, "the container runtime does not answer; pods keep running, mainstay keeps trying");
            let next = Arc::make_mut(state);
            let mut runtime = RuntimeHealth::clone(&next.runtime);
            runtime.reachable = false;
            runtime.unreachable_since = Some(jiff::Timestamp::now());
            next.runtime = Arc::new(runtime);
            next.generation += 1;
            true
        });
    }

    /// Begins to ask the runtime how it is.
    fn begin_check(&mut self, events: bool) {
        let (cri, known) = (self.config.cri.clone(), self.state.borrow().runtime.clone());
        let deadline = self.config.health_deadline;
        self.checks.push(Box::pin(async move { health::check(&cri, &known, events, deadline).await }));
    }

    fn take_health(&self, checked: Result<RuntimeHealth, CriError>) {
        match checked {
            Ok(health) => {
                self.state.send_if_modified(|state| {
                    if *state.runtime == health {
                        return false;
                    }
                    let next = Arc::make_mut(state);
                    next.runtime = Arc::new(health);
                    next.generation += 1;
                    true
                });
            }
            Err(error) => self.unreachable(&error),
        }
    }
}

/// Two wishes for one reading: all that both made, or a search if one of them is not certain.
fn merge(waiting: &mut Option<MadeObjects>, made: Option<MadeObjects>) {
    match (waiting.as_mut(), made) {
        (Some(waiting), Some(made)) => {
            waiting.sandboxes.extend(made.sandboxes);
            waiting.containers.extend(made.containers);
        }
        _ => *waiting = None,
    }
}
