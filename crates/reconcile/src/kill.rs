//! Stopping: hooks, grace, order.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use mainstay_cri::CriError;
use mainstay_types::{
    ContainerId, ContainerKind, ContainerPhase, EventKind, ObservedContainer, PodExt, in_node_order,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use crate::{
    hooks,
    worker::{Fact, Order, Shared},
};

/// The runtime always gets at least this long, as upstream's kubelet gives.
const MIN_STOP: Duration = Duration::from_secs(2);

/// What is left of a grace that ran out while nobody looked.
const LEAST_LEFT: Duration = Duration::from_secs(1);

/// How long a stop may take in all. It may become shorter while the stop is under way.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    begun: Instant,
    seconds: watch::Receiver<i64>,
}

impl Grace {
    /// One that begins now and stays as it is.
    pub(crate) fn fixed(seconds: i64) -> Self {
        Self::adjustable(seconds, Duration::ZERO).1
    }

    /// One of which so much is spent, and what shortens it. At least a second is left of it.
    pub(crate) fn adjustable(seconds: i64, spent: Duration) -> (watch::Sender<i64>, Self) {
        let whole = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let spent = spent.min(whole.saturating_sub(LEAST_LEFT));
        let now = Instant::now();
        let (sender, seconds) = watch::channel(seconds);
        (sender, Self { begun: now.checked_sub(spent).unwrap_or(now), seconds })
    }

    fn seconds(&self) -> u64 {
        u64::try_from(*self.seconds.borrow()).unwrap_or(0)
    }

    fn left(&self) -> Duration {
        Duration::from_secs(self.seconds()).saturating_sub(self.begun.elapsed())
    }

    /// Ends when nothing is left. Cancel safe.
    async fn run_out(&self) {
        let mut watcher = self.clone();
        loop {
            let left = watcher.left();
            tokio::select! {
                () = sleep(left) => return,
                () = watcher.shortened() => {}
            }
        }
    }

    /// Ends when it becomes shorter. Cancel safe.
    async fn shortened(&mut self) {
        if self.seconds.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Stops every container of a pod, sidecars last and in reverse order, then its sandboxes.
pub(crate) async fn stop_pod(shared: &Shared, order: &Order, grace: &Grace) -> Result<(), CriError> {
    let Some(observed) = &order.observed else { return Ok(()) };
    let running: Vec<_> = observed
        .containers
        .iter()
        .filter(|c| matches!(c.phase, ContainerPhase::Running | ContainerPhase::Unknown))
        .collect();
    info!(containers = running.len(), grace_seconds = grace.seconds(), "stopping the pod");

    // A sidecar waits until all regular containers and all sidecars that started after it have ended.
    let names: Vec<&str> = order
        .desired
        .pod
        .all_containers()
        .filter(|(kind, _)| *kind == ContainerKind::Sidecar)
        .map(|(_, spec)| spec.name.as_str())
        .collect();
    let rank = |container: &ObservedContainer| {
        names.iter().position(|name| *name == container.name.as_str()).map_or(0, |i| names.len() - i)
    };
    let (ended, _) = watch::channel(vec![0_usize; names.len() + 1]);
    ended.send_modify(|counts| {
        for container in &running {
            if let Some(count) = counts.get_mut(rank(container)) {
                *count += 1;
            }
        }
    });
    let stops = running.iter().map(|container| {
        let rank = rank(container);
        let ended = &ended;
        async move {
            let text = format!("Stopping container {}", container.name);
            let mut turn = ended.subscribe();
            let before = async move {
                // The sender lives as long as this future's borrow of it.
                turn.wait_for(|counts| counts.iter().take(rank).all(|left| *left == 0)).await.ok();
            };
            let result =
                stop_one(shared, order, &container.id, container.name.as_str(), grace.clone(), text, before)
                    .await;
            ended.send_modify(|counts| {
                if let Some(count) = counts.get_mut(rank) {
                    *count = count.saturating_sub(1);
                }
            });
            result
        }
    });
    let results = join_all(stops).await;
    let sandboxes = observed
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .map(|sandbox| shared.config.cri.stop_sandbox(sandbox.id.as_str()));
    // The sandboxes are stopped even if a container would not: that is the runtime's last word on its containers.
    let sandboxes = try_join_all(sandboxes).await;
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    sandboxes.map(drop)
}

/// Stops one container, with its preStop hook.
pub(crate) async fn stop_container(
    shared: &Shared,
    order: &Order,
    id: &ContainerId,
    name: &str,
    grace_seconds: i64,
    message: String,
) -> Result<(), CriError> {
    let grace = Grace::fixed(grace_seconds);
    stop_one(shared, order, id, name, grace, message, std::future::ready(())).await
}

async fn stop_one(
    shared: &Shared,
    order: &Order,
    id: &ContainerId,
    name: &str,
    mut grace: Grace,
    message: String,
    turn: impl Future<Output = ()>,
) -> Result<(), CriError> {
    let spec = order.desired.pod.container(name);
    let kind = spec.map_or(ContainerKind::Regular, |(kind, _)| kind);
    shared.event(&order.desired, Some((kind, name)), EventKind::Normal, "Killing", message);
    // The hook runs at once, within the grace; only the stop itself waits for its turn.
    if let Some((kind, spec)) = spec.filter(|_| grace.seconds() > 0) {
        pre_stop(shared, order, kind, spec, id, &grace).await;
    }
    tokio::select! {
        biased;
        () = turn => {}
        () = grace.run_out() => {
            debug!(container = name, "the containers before it did not end in time; stopping it anyway");
        }
    }
    loop {
        let left = grace.left().max(MIN_STOP);
        // Told again with less time, the runtime does not begin anew but kills earlier.
        tokio::select! {
            biased;
            stopped = shared.config.cri.stop_container(id.as_str(), left) => return stopped,
            () = grace.shortened() => {}
        }
    }
}

async fn pre_stop(
    shared: &Shared,
    order: &Order,
    kind: ContainerKind,
    spec: &Container,
    id: &ContainerId,
    grace: &Grace,
) {
    let Some(hook) = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
        return;
    };
    let known = order.observed.as_ref().and_then(|o| o.sandboxes.first());
    let ip = known.and_then(|sandbox| in_node_order(&sandbox.ips, &shared.addresses()).into_iter().next());
    let ip = if order.desired.pod.host_network() { shared.addresses().first().cloned() } else { ip };
    let begun_before = order.pre_stops.get(id);
    if begun_before.is_none() {
        shared.report(&order.desired.uid, Fact::Stopping { id: id.clone() }).await;
    }
    let work = async {
        match begun_before {
            None => {
                // A sleep goes on in the next life; what else is cut short is over.
                let _under_way = hook.sleep.is_none().then(|| order.cancel.hook());
                hooks::run(shared, order, spec, kind, id, hook, ip.as_deref()).await
            }
            Some(begun) => {
                sleep(sleep_left(hook, *begun, Timestamp::now())).await;
                Ok(())
            }
        }
    };
    let ended = tokio::select! {
        biased;
        ended = work => Some(ended),
        () = grace.run_out() => None,
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(message)) => {
            warn!(container = spec.name, message, "the preStop hook failed");
            let who = Some((kind, spec.name.as_str()));
            shared.event(&order.desired, who, EventKind::Warning, "FailedPreStopHook", message);
        }
        None => {
            if hook.sleep.is_some() {
                shared.config.counters.sleeps_cut.add();
            }
            warn!(container = spec.name, "the preStop hook did not end within the grace period");
        }
    }
}

/// What is left of a hook that was begun before, and is not to be begun again: it may not bear that, and nobody knows how
/// far it came. Only a sleep is known to be over at a certain time.
fn sleep_left(hook: &LifecycleHandler, begun: Timestamp, now: Timestamp) -> Duration {
    let seconds = hook.sleep.as_ref().and_then(|sleep| u64::try_from(sleep.seconds).ok()).unwrap_or(0);
    let passed = Duration::try_from(now.duration_since(begun)).unwrap_or_default();
    Duration::from_secs(seconds).saturating_sub(passed)
}

/// Stops and removes all containers, the trigger last, keeping logs and sandbox.
pub(crate) async fn remove_all_containers(
    shared: &Shared,
    order: &Order,
    trigger: &str,
) -> Result<(), CriError> {
    let Some(observed) = &order.observed else { return Ok(()) };
    let running = observed.containers.iter().filter(|c| c.phase == ContainerPhase::Running);
    let stops = running.map(|container| {
        let text = format!("Stopping container {}", container.name);
        let name = container.name.as_str();
        stop_one(shared, order, &container.id, name, Grace::fixed(0), text, std::future::ready(()))
    });
    try_join_all(stops).await?;
    let (last, first): (Vec<_>, Vec<_>) =
        observed.containers.iter().partition(|container| container.name.as_str() == trigger);
    for container in first.into_iter().chain(last) {
        shared.config.cri.remove_container(container.id.as_str()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn grace_is_shortened_while_it_runs() {
        let begun = Instant::now();
        let (shorten, grace) = Grace::adjustable(3600, Duration::ZERO);
        assert!(grace.left() > Duration::from_secs(3590));
        let shortened = async {
            tokio::task::yield_now().await;
            shorten.send_replace(1);
        };
        tokio::join!(grace.run_out(), shortened);
        let took = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(30)).contains(&took), "{took:?}");
        let (_, late) = Grace::adjustable(30, Duration::from_secs(20));
        assert!((Duration::from_secs(9)..=Duration::from_secs(10)).contains(&late.left()), "{late:?}");
        let (_, too_late) = Grace::adjustable(30, Duration::from_secs(3600));
        assert!(too_late.left() <= LEAST_LEFT && !too_late.left().is_zero(), "{too_late:?}");
        // Nobody can shorten one that is fixed, and nothing waits for it.
        Grace::fixed(0).run_out().await;
    }

    #[test]
    fn a_sleep_that_was_begun_is_slept_to_its_end_and_nothing_else_is_done_again() {
        let begun = Timestamp::UNIX_EPOCH;
        let left = |hook: serde_json::Value, passed: i64| {
            let hook = serde_json::from_value(hook).unwrap();
            sleep_left(&hook, begun, begun + jiff::SignedDuration::from_secs(passed)).as_secs()
        };
        let sleep = serde_json::json!({"sleep": {"seconds": 10}});
        assert_eq!(left(sleep.clone(), 4), 6);
        assert_eq!(left(sleep.clone(), 40), 0);
        assert_eq!(left(sleep, -40), 10, "the clock was set back");
        assert_eq!(left(serde_json::json!({"exec": {"command": ["x"]}}), 0), 0);
    }
}
