//! One round: an attempt, and up to two more if it could not be made.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_cri::Cri;
use mainstay_lifecycle::ProbeRules;
use mainstay_probe::{Answer, Target, TargetError, attempt};
use mainstay_types::{ContainerId, EventSink, PodOutcome};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use super::{prober::Key, tell};

/// As often is it tried when it cannot be.
const TRIES: usize = 3;
/// At most so many commands are being started in containers at once for probes.
const NODE_SLOTS: usize = 16;
/// So many of them can be one pod's: a pod with many probes holds up nobody's but its own.
const POD_SLOTS: usize = 2;
/// A command that runs for this long no longer counts: what costs is to start one, and commands that hang until their time
/// limit, in however many pods, must not keep others from being asked, nor those of a sidecar the main container's.
const STARTING: Duration = Duration::from_millis(500);

/// So many run at once beside the first of each pod, hanging or not: each is a process in a container, one beside it and a call to the
/// runtime. The first ones are not counted, for however much hangs elsewhere, a pod of which nothing runs must be asked.
const NODE_RUNNING: usize = 512;
/// So many can be one pod's. A pod whose commands hang has its others wait, and takes little from its neighbours.
const POD_RUNNING: usize = 16;

/// Turns at running a command.
#[derive(Clone)]
pub(super) struct ExecSlots {
    node: Arc<Turns>,
    pod: Arc<Turns>,
    /// The pod's first, which needs none of the node's.
    first: Arc<Semaphore>,
}

/// Semaphores are never closed.
struct Turns {
    starting: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Turns {
    fn new(starting: usize, running: usize) -> Arc<Self> {
        let semaphore = |count| Arc::new(Semaphore::new(count));
        Arc::new(Self { starting: semaphore(starting), running: semaphore(running) })
    }
}

/// A turn, until it is dropped.
pub(super) struct Slot {
    starting: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    /// The pod's, and its first or one of the node's.
    _running: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Slot {
    /// Waits for the end of `work`. If that takes long, the slot goes back meanwhile.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        // Cancel safe: the work is polled by reference, and a sleep.
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(STARTING), if self.starting.is_some() => self.starting = None,
        }
        work.await
    }
}

impl ExecSlots {
    pub(super) fn of_node() -> Self {
        Self::with(Turns::new(NODE_SLOTS, NODE_RUNNING))
    }

    /// Those of one more pod.
    pub(super) fn of_pod(&self) -> Self {
        Self::with(Arc::clone(&self.node))
    }

    fn with(node: Arc<Turns>) -> Self {
        Self { node, pod: Turns::new(POD_SLOTS, POD_RUNNING), first: Arc::new(Semaphore::new(1)) }
    }

    /// Waits for a turn; they are never closed, so there always is one. The pod's own first: who waits for that must hold
    /// nothing that others could have.
    pub(super) async fn turn(&self) -> Option<Slot> {
        let turn = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        let pod = (turn(&self.pod.running).await.ok()?, turn(&self.pod.starting).await.ok()?);
        // Cancel safe: who is dropped only loses a place in a queue.
        let running = tokio::select! {
            biased;
            first = turn(&self.first) => first,
            one = turn(&self.node.running) => one,
        };
        let node = (running.ok()?, turn(&self.node.starting).await.ok()?);
        Some(Slot { starting: Some((pod.1, node.1)), _running: (pod.0, node.0) })
    }

    /// Why there are no turns, and what helps; `None` where others are only being started.
    fn full(&self) -> Option<String> {
        let is_full = |turns: &Turns| turns.running.available_permits() == 0;
        let of_whom = if is_full(&self.pod) {
            format!("{POD_RUNNING} of this pod's probes have")
        } else if is_full(&self.node) {
            format!("{NODE_RUNNING} of the node's probes have")
        } else {
            return None;
        };
        Some(format!(
            "{of_whom} commands that do not end, and no more run at once; give those a shorter timeoutSeconds"
        ))
    }
}

pub(super) struct Round {
    pub(super) key: Key,
    pub(super) instance: ContainerId,
    pub(super) target: Arc<Result<Target, TargetError>>,
    pub(super) rules: ProbeRules,
    pub(super) cri: Cri,
    pub(super) exec_slots: ExecSlots,
    /// Of whom to tell, and where.
    pub(super) outcome: Arc<PodOutcome>,
    pub(super) events: EventSink,
}

pub(super) struct RoundEnd {
    pub(super) key: Key,
    pub(super) instance: ContainerId,
    /// What it showed, or why it could not be tried.
    pub(super) answer: Result<Answer, String>,
    pub(super) took: Duration,
}

impl Round {
    pub(super) async fn run(self) -> RoundEnd {
        let (answer, took) = match &*self.target {
            Err(error) => (Err(error.to_string()), Duration::ZERO),
            Ok(target) => {
                let (cri, timeout) = (&self.cri, self.rules.timeout);
                // Commands start processes; that many at once would be a load of their own.
                let slot = if target.is_exec() { self.turn().await } else { None };
                let begun = Instant::now();
                let tries = async {
                    let mut answer = attempt(cri, target, timeout).await;
                    for _ in 1..TRIES {
                        if answer.is_ok() {
                            break;
                        }
                        answer = attempt(cri, target, timeout).await;
                    }
                    answer
                };
                let answer = match slot {
                    Some(mut slot) => slot.during(tries).await,
                    None => tries.await,
                };
                (answer.map_err(|error| error.to_string()), begun.elapsed())
            }
        };
        RoundEnd { key: self.key, instance: self.instance, answer, took }
    }

    /// Waits for a turn at running a command. That a whole period has gone by without one is told of, if what does not end is why.
    async fn turn(&self) -> Option<Slot> {
        let turn = self.exec_slots.turn();
        tokio::pin!(turn);
        let begun = tokio::time::Instant::now();
        let why = loop {
            if let Ok(slot) = tokio::time::timeout(self.rules.period, &mut turn).await {
                return slot;
            }
            if let Some(why) = self.exec_slots.full() {
                break why;
            }
        };
        let waited = begun.elapsed().as_secs();
        let text = format!("{} probe has not been asked for {waited} s: {why}", self.rules.kind.as_str());
        let Key { container, .. } = &self.key;
        warn!(pod = %self.outcome.desired.full_name, container = %container, "{text}");
        tell(&self.events, &self.outcome, container, "Unhealthy", text);
        turn.await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use mainstay_types::ProbeKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_whose_commands_hang_leaves_slots_to_its_neighbour() {
        let node = ExecSlots::of_node();
        let (hog, neighbour) = (node.of_pod(), node.of_pod());
        // Waiting turns are kept, as rounds that wait are.
        let mut waiting = Vec::new();
        let mut held = Vec::new();
        for _ in 0..2 * NODE_SLOTS {
            let mut turn = Box::pin(async { hog.turn().await });
            match turn.as_mut().now_or_never() {
                Some(slot) => held.push(slot.unwrap()),
                None => waiting.push(turn),
            }
        }
        assert_eq!(held.len(), POD_SLOTS);
        let slot = neighbour.turn().now_or_never().flatten();
        assert!(slot.is_some(), "the neighbour is asked at once");
        held.pop();
        let next = waiting.iter_mut().find_map(|turn| turn.as_mut().now_or_never());
        assert!(next.is_some(), "a slot that was given back is the pod's again");
    }

    #[test]
    fn all_pods_together_have_the_slots_of_the_node() {
        let node = ExecSlots::of_node();
        let slots = (0..2 * NODE_SLOTS).map(|_| node.of_pod().turn().now_or_never().flatten());
        assert_eq!(slots.collect::<Vec<_>>().iter().flatten().count(), NODE_SLOTS);
    }

    #[tokio::test(start_paused = true)]
    async fn commands_that_run_are_bounded_too() {
        let node = ExecSlots::of_node();
        let pod = node.of_pod();
        let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let hang = |slots: &ExecSlots| {
            let (slots, running) = (slots.clone(), Arc::clone(&running));
            async move {
                let mut slot = slots.turn().await.unwrap();
                running.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                slot.during(std::future::pending::<()>()).await;
            }
        };
        let count = |work: Vec<_>| async {
            let before = running.load(std::sync::atomic::Ordering::Relaxed);
            let all = futures_util::future::join_all(work);
            tokio::time::timeout(Duration::from_secs(600), all).await.unwrap_err();
            running.load(std::sync::atomic::Ordering::Relaxed) - before
        };
        assert_eq!(count((0..100).map(|_| hang(&pod)).collect()).await, POD_RUNNING);
        let pods: Vec<_> = (0..64).map(|_| node.of_pod()).collect();
        let commands = |count| pods.iter().cycle().take(count).map(hang).collect();
        // The first of each pod, and what the node has beside.
        assert_eq!(count(commands(64 * POD_RUNNING)).await, 64 + NODE_RUNNING);
    }

    #[tokio::test]
    async fn a_container_that_hangs_leaves_slots_to_the_others_of_its_pod() {
        let pod = ExecSlots::of_node().of_pod();
        let hanging = (0..POD_SLOTS).map(|_| async {
            pod.turn().await.unwrap().during(std::future::pending::<()>()).await;
        });
        let hanging = futures_util::future::join_all(hanging);
        tokio::select! {
            biased;
            _ = hanging => panic!("they hang"),
            slot = pod.turn() => assert!(slot.is_some()),
            () = tokio::time::sleep(Duration::from_secs(40)) => panic!("the other is never asked"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_commands_hang_others_are_asked() {
        let node = ExecSlots::of_node();
        let hang = |slots: ExecSlots| async move {
            slots.turn().await.unwrap().during(std::future::pending::<()>()).await;
        };
        // Each has many probes, and more of them hang than may run on the node.
        let hogs: Vec<_> = (0..64).map(|_| node.of_pod()).collect();
        let commands = hogs.iter().cycle().take(2 * 64 * POD_RUNNING);
        let hanging = futures_util::future::join_all(commands.map(|hog| hang(hog.clone())));
        let neighbours = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(node.node.running.available_permits(), 0);
            // However many of them there are, and though their first commands hang as well.
            let asked = (0..64).map(|_| {
                let pod = node.of_pod();
                async move { pod.turn().await.unwrap().during(std::future::pending::<()>()).now_or_never() }
            });
            futures_util::future::join_all(asked).await
        };
        tokio::select! {
            _ = hanging => panic!("they hang"),
            asked = neighbours => assert_eq!(asked.len(), 64),
            () = tokio::time::sleep(Duration::from_secs(640)) => panic!("the neighbours are never asked"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_whole_period_is_told_of_it_once() {
        let fields = json!({"periodSeconds": 7, "exec": {"command": ["true"]}});
        let probe = serde_json::from_value(fields).unwrap();
        let container = serde_json::from_value(json!({"name": "c"})).unwrap();
        let target = Target::new("u", &probe, &container, &"id".into(), None);
        let (events, mut told) = EventSink::bounded(4);
        let node = ExecSlots::of_node();
        let round = Round {
            key: Key { uid: "u".into(), container: "c".into(), kind: ProbeKind::Liveness },
            instance: "id".into(),
            target: Arc::new(target),
            rules: ProbeRules::new(ProbeKind::Liveness, &probe),
            cri: Cri::new("unix:///nonexistent.sock", None, Duration::from_secs(1)).unwrap(),
            exec_slots: node.of_pod(),
            outcome: Arc::new(crate::probes::prober::tests::outcome()),
            events,
        };
        let own = Arc::clone(&round.exec_slots.pod);
        let all = own.running.acquire_many(u32::try_from(POD_RUNNING).unwrap()).await.unwrap();
        let begun = tokio::time::Instant::now();
        assert!(tokio::time::timeout(Duration::from_secs(600), round.turn()).await.is_err());
        let event = told.try_recv().unwrap();
        assert_eq!(event.reason, "Unhealthy");
        let text = "Liveness probe has not been asked for 7 s: 16 of this pod's probes have commands that do not end, and no \
                    more run at once; give those a shorter timeoutSeconds";
        assert_eq!(event.message, text);
        assert!(told.try_recv().is_err(), "in {:?}", begun.elapsed());
        drop(all);
        assert!(round.turn().await.is_some());
        assert!(told.try_recv().is_err());
        let all = node.node.running.acquire_many(u32::try_from(NODE_RUNNING).unwrap()).await.unwrap();
        let first = round.turn().await;
        assert!(first.is_some(), "the pod's first needs none of the node's");
        assert!(tokio::time::timeout(Duration::from_secs(10), round.turn()).await.is_err());
        let event = told.try_recv().unwrap();
        assert!(event.message.contains(": 512 of the node's probes have commands"), "{}", event.message);
        drop(all);
    }
}
