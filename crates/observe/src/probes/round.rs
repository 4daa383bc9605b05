//! One round: an attempt, and up to two more if it could not be made.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_cri::Cri;
use mainstay_probe::{Answer, Target, TargetError, attempt};
use mainstay_types::ContainerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::prober::Key;

/// As often is it tried when it cannot be.
const TRIES: usize = 3;
/// At most so many commands are being started in containers at once for probes.
const NODE_SLOTS: usize = 16;
/// So many of them can be one pod's: a pod with many probes holds up nobody's but its own.
const POD_SLOTS: usize = 2;
/// A command that runs for this long no longer counts: what costs is to start one, and commands that hang until their time
/// limit, in however many pods, must not keep others from being asked, nor those of a sidecar the main container's.
const STARTING: Duration = Duration::from_millis(500);

/// So many run at once, hanging or not: each is a process in a container, one beside it and a call to the runtime.
const NODE_RUNNING: usize = 512;
/// So many of them can be one pod's. A pod whose commands hang has its others wait, and takes little from its neighbours.
const POD_RUNNING: usize = 16;

/// Turns at running a command.
#[derive(Clone)]
pub(super) struct ExecSlots {
    node: Arc<Turns>,
    pod: Arc<Turns>,
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
        Self { node: Turns::new(NODE_SLOTS, NODE_RUNNING), pod: Turns::new(POD_SLOTS, POD_RUNNING) }
    }

    /// Those of one more pod.
    pub(super) fn of_pod(&self) -> Self {
        Self { node: Arc::clone(&self.node), pod: Turns::new(POD_SLOTS, POD_RUNNING) }
    }

    /// Waits for a turn; they are never closed, so there always is one. The pod's own first: who waits for that must hold
    /// nothing that others could have.
    pub(super) async fn turn(&self) -> Option<Slot> {
        let turn = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        let pod = (turn(&self.pod.running).await.ok()?, turn(&self.pod.starting).await.ok()?);
        let node = (turn(&self.node.running).await.ok()?, turn(&self.node.starting).await.ok()?);
        Some(Slot { starting: Some((pod.1, node.1)), _running: (pod.0, node.0) })
    }
}

pub(super) struct Round {
    pub(super) key: Key,
    pub(super) instance: ContainerId,
    pub(super) target: Arc<Result<Target, TargetError>>,
    pub(super) timeout: Duration,
    pub(super) cri: Cri,
    pub(super) exec_slots: ExecSlots,
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
        let Self { key, instance, target, timeout, cri, exec_slots } = self;
        let (answer, took) = match &*target {
            Err(error) => (Err(error.to_string()), Duration::ZERO),
            Ok(target) => {
                // Commands start processes; that many at once would be a load of their own.
                let slot = if target.is_exec() { exec_slots.turn().await } else { None };
                let begun = Instant::now();
                let tries = async {
                    let mut answer = attempt(&cri, target, timeout).await;
                    for _ in 1..TRIES {
                        if answer.is_ok() {
                            break;
                        }
                        answer = attempt(&cri, target, timeout).await;
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
        RoundEnd { key, instance, answer, took }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

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
        let pods: Vec<_> = (0..2 * NODE_RUNNING).map(|_| node.of_pod()).collect();
        assert_eq!(count(pods.iter().map(hang).collect()).await, NODE_RUNNING);
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

    #[tokio::test]
    async fn however_many_pods_hang_others_are_asked() {
        let node = ExecSlots::of_node();
        let hogs: Vec<_> = (0..4 * NODE_SLOTS).map(|_| node.of_pod()).collect();
        let hanging = hogs.iter().map(|hog| async move {
            hog.turn().await.unwrap().during(std::future::pending::<()>()).await;
        });
        let hanging = futures_util::future::join_all(hanging);
        let neighbour = async {
            // All slots are taken by now, and hogs stand in line before us.
            tokio::task::yield_now().await;
            node.of_pod().turn().await
        };
        tokio::select! {
            _ = hanging => panic!("they hang"),
            slot = neighbour => assert!(slot.is_some()),
            () = tokio::time::sleep(Duration::from_secs(40)) => panic!("the neighbour is never asked"),
        }
    }
}
