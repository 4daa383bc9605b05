//! The actor: one owner of the observed state.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_cri::v1 as cri;
use mainstay_cri::{Cri, CriError};
use mainstay_task::TaskGroup;
use mainstay_types::{MadeObjects, ObservedPod, ObservedState, PodUid, ReadWish, RuntimeHealth, labels};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::{events, health, read};

/// How many pods are read at once.
const PARALLEL_READS: usize = 16;
/// Longest that one pod may hold up a relist; it is then left out for [`STUCK_PAUSE`].
const READ_DEADLINE: Duration = Duration::from_secs(5);
/// How long a pod about which the runtime does not answer is left out of relists.
const STUCK_PAUSE: Duration = Duration::from_secs(60);
/// Longest that the runtime may take to say how it is.
const HEALTH_DEADLINE: Duration = Duration::from_secs(10);
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
}

impl ObserveConfig {
    /// The usual rhythm.
    #[must_use]
    pub fn new(cri: Cri) -> Self {
        Self {
            cri,
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            health_period: Duration::from_secs(5),
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
    let event_uids = events::start(config.cri.clone(), tasks);
    let actor = Actor {
        config,
        state: state_sender,
        fingerprints: HashMap::new(),
        reading: HashSet::new(),
        read_again: HashMap::new(),
        stuck: HashMap::new(),
        reads: FuturesUnordered::new(),
    };
    tasks.spawn_critical("observe", async move {
        shutdown.run_until_signalled(Box::pin(actor.run(wishes, event_uids))).await;
    });
    (state, sender)
}

type ReadResult = (PodUid, Result<Option<ObservedPod>, CriError>);

struct Actor {
    config: ObserveConfig,
    state: watch::Sender<Arc<ObservedState>>,
    /// What the lists said of each pod when it was last read in full.
    fingerprints: HashMap<PodUid, u64>,
    reading: HashSet<PodUid>,
    read_again: HashMap<PodUid, Option<MadeObjects>>,
    /// Pods about which the runtime did not answer in time, and when that was.
    stuck: HashMap<PodUid, Instant>,
    reads: FuturesUnordered<BoxFuture<'static, ReadResult>>,
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
            // Every branch is cancel safe: receivers, a pinned sleep, an interval, and a stream polled by reference.
            tokio::select! {
                Some(wish) = wishes.recv(), if room => self.begin_read(wish.uid, wish.made),
                Some(uid) = events.next(), if room => self.begin_read(uid, None),
                Some((uid, result)) = self.reads.next() => self.finish_read(uid, result),
                _ = relist_tick.tick() => {
                    let with_events = self.state.borrow().runtime.events && events.connected();
                    if with_events && relisted.is_some_and(|at| at.elapsed() < self.config.relist_period_with_events) {
                        continue;
                    }
                    if self.state.borrow().runtime.name.is_empty() {
                        self.check_health(events.connected()).await;
                    }
                    self.relist().await;
                    relisted = Some(Instant::now());
                    relist_tick.reset();
                }
                _ = health_tick.tick() => self.check_health(events.connected()).await,
            }
        }
    }

    /// Reads a pod: what is known of it and what was `made` since, or whatever the runtime lists for it.
    fn begin_read(&mut self, uid: PodUid, made: Option<MadeObjects>) {
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
        let cri = self.config.cri.clone();
        let known = self.state.borrow().pods.get(&uid).cloned();
        self.reads.push(Box::pin(async move {
            let begun = Instant::now();
            let result = match made {
                Some(made) => read::known(&cri, &uid, known.as_deref(), made, begun).await,
                None => read::pod(&cri, &uid, known.as_deref(), begun).await,
            };
            // "Nothing is there" is a reading too, and has its time. The next relist takes the empty entry away.
            let nothing =
                || ObservedPod::nothing(uid.clone(), known.as_ref().map(|pod| pod.full_name.clone()), begun);
            let result = result.map(|pod| Some(pod.unwrap_or_else(nothing)));
            (uid, result)
        }));
    }

    fn finish_read(&mut self, uid: PodUid, result: Result<Option<ObservedPod>, CriError>) {
        self.reading.remove(&uid);
        match result {
            Ok(read) => {
                // The next relist compares afresh: what it lists may already differ from what was read here.
                self.fingerprints.remove(&uid);
                self.apply(vec![(uid.clone(), read)], None);
            }
            Err(error) => {
                debug!(pod.uid = %uid, %error, "cannot read a pod from the runtime; the next relist tries again");
                self.fingerprints.remove(&uid);
            }
        }
        if let Some(made) = self.read_again.remove(&uid) {
            self.begin_read(uid, made);
        }
    }

    /// Lists everything and reads what differs.
    async fn relist(&mut self) {
        let begun = Instant::now();
        let cri = self.config.cri.clone();
        let lists = tokio::try_join!(cri.list_sandboxes(None), cri.list_containers(None));
        let (sandboxes, containers) = match lists {
            Ok(lists) => lists,
            Err(error) => {
                self.unreachable(&error);
                return;
            }
        };
        let listed = group(sandboxes, containers);
        let known: Vec<(PodUid, Arc<ObservedPod>)> =
            self.state.borrow().pods.iter().map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect();
        let known: HashMap<_, _> = known.into_iter().collect();

        let mut changes: Vec<(PodUid, Option<ObservedPod>)> = known
            .iter()
            .filter(|(uid, pod)| !listed.contains_key(*uid) && pod.read_at < begun)
            .map(|(uid, _)| (uid.clone(), None))
            .collect();
        let mut reads = FuturesUnordered::new();
        let mut waiting: Vec<_> = listed
            .into_iter()
            .filter(|(uid, _)| self.stuck.get(uid).is_none_or(|since| since.elapsed() > STUCK_PAUSE))
            .filter(|(uid, entry)| {
                !known.contains_key(uid) || self.fingerprints.get(uid) != Some(&entry.fingerprint)
            })
            .collect();
        // A pod that is left out and was never read keeps the first list from being complete.
        let mut complete = !self.stuck.keys().any(|uid| !known.contains_key(uid));
        loop {
            while reads.len() < PARALLEL_READS {
                let Some((uid, entry)) = waiting.pop() else { break };
                let before = known.get(&uid).cloned();
                let cri = &cri;
                reads.push(async move {
                    let read =
                        read::listed(cri, &uid, entry.sandboxes, entry.containers, before.as_deref(), begun);
                    let result = tokio::time::timeout(READ_DEADLINE, read).await;
                    (uid, entry.fingerprint, result)
                });
            }
            match reads.next().await {
                None => break,
                Some((uid, fingerprint, Ok(Ok(pod)))) => {
                    self.stuck.remove(&uid);
                    self.fingerprints.insert(uid.clone(), fingerprint);
                    changes.push((uid, pod));
                }
                Some((uid, _, Err(_))) => {
                    complete = false;
                    warn!(pod.uid = %uid, "the runtime does not answer about this pod; the others go on without it");
                    self.stuck.insert(uid, Instant::now());
                }
                Some((uid, _, Ok(Err(error)))) => {
                    complete = false;
                    debug!(pod.uid = %uid, %error, "cannot read a pod from the runtime");
                }
            }
        }
        drop(reads);
        for (uid, pod) in &changes {
            if pod.is_none() {
                self.fingerprints.remove(uid);
            }
        }
        // The very first list counts only when everything in it could be read, and the runtime's name, which is shown
        // with each container ID, is known: nothing partial is ever published.
        let (first, named) = {
            let state = self.state.borrow();
            (state.listed_at.is_none(), !state.runtime.name.is_empty())
        };
        if (complete && named) || !first {
            self.apply(changes, complete.then_some(begun));
        }
    }

    /// Puts readings into the state; receivers are woken only when something differs.
    fn apply(&self, changes: Vec<(PodUid, Option<ObservedPod>)>, listed_at: Option<Instant>) {
        self.state.send_if_modified(|state| {
            let first = listed_at.is_some() && state.listed_at.is_none();
            let newer = |uid: &PodUid, read_at: Option<Instant>| {
                state.pods.get(uid).is_none_or(|known| read_at.is_none_or(|read_at| read_at >= known.read_at))
            };
            let changes: Vec<_> = changes
                .into_iter()
                .filter(|(uid, pod)| newer(uid, pod.as_ref().map(|p| p.read_at)))
                .collect();
            if changes.is_empty() && !first && listed_at.is_none() {
                return false;
            }
            let mut wake = first;
            let next = Arc::make_mut(state);
            for (uid, pod) in changes {
                match pod {
                    Some(pod) => {
                        // Even an equal reading is news to reconcile, which waits for one begun after its action.
                        wake = true;
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
                    next.runtime = Arc::new(runtime);
                    wake = true;
                    info!("the container runtime answers");
                }
            }
            next.generation += u64::from(wake);
            wake
        });
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
            next.runtime = Arc::new(runtime);
            next.generation += 1;
            true
        });
    }

    async fn check_health(&mut self, events: bool) {
        let known = self.state.borrow().runtime.clone();
        let check = health::check(&self.config.cri, &known, events);
        let checked = tokio::time::timeout(HEALTH_DEADLINE, check)
            .await
            .unwrap_or(Err(CriError::Timeout { call: "status", after: HEALTH_DEADLINE }));
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

#[derive(Default)]
struct Listed {
    sandboxes: Vec<cri::PodSandbox>,
    containers: Vec<cri::Container>,
    fingerprint: u64,
}

/// Sorts two lists by pod. Objects without a pod UID are nobody's pods.
fn group(sandboxes: Vec<cri::PodSandbox>, containers: Vec<cri::Container>) -> HashMap<PodUid, Listed> {
    let mut pods: HashMap<PodUid, Listed> = HashMap::new();
    for sandbox in sandboxes {
        let Some(uid) = sandbox.labels.get(labels::POD_UID).map(|uid| PodUid::from(uid.as_str())) else {
            continue;
        };
        let entry = pods.entry(uid).or_default();
        entry.fingerprint = entry.fingerprint.wrapping_add(hash(&(&sandbox.id, sandbox.state)));
        entry.sandboxes.push(sandbox);
    }
    for container in containers {
        let Some(uid) = container.labels.get(labels::POD_UID).map(|uid| PodUid::from(uid.as_str())) else {
            continue;
        };
        let entry = pods.entry(uid).or_default();
        entry.fingerprint = entry.fingerprint.wrapping_add(hash(&(&container.id, container.state)));
        entry.containers.push(container);
    }
    pods
}

/// The order in which the runtime lists must not matter, so the parts are added up.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
