//! Removing what is superseded, some pods at a time: one of which the runtime does not let go holds up nobody else.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use jiff::Timestamp;
use mainstay_cri::CriError;
use mainstay_task::Backoff;
use mainstay_types::{Event, EventKind, EventTarget, NodeSnapshot, PodUid};
use tracing::{debug, warn};

use crate::{
    Snapshots, UpkeepConfig,
    garbage::{self, Removal},
    leftovers,
};

/// So many pods are worked on at once. Each call to the runtime has its deadline, after which another has its turn.
const PARALLEL: usize = 8;
/// Before something that could not be removed is tried again.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(300));

/// A round at every change that left something dead behind (but not oftener than each second), and one each period.
pub(crate) async fn run(config: Arc<UpkeepConfig>, mut snapshots: Snapshots) {
    let mut ledger = Ledger::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        let current = snapshots.borrow_and_update().clone();
        if let Some(snapshot) = current {
            let found = garbage::superseded(&snapshot, config.keep, Timestamp::now());
            for (uid, removals) in ledger.turns(garbage::by_pod(&snapshot, found), Instant::now()) {
                under_way.push(remove_all(&config, uid, with_logs(&config, &snapshot, removals)));
            }
        }
        let pause = tokio::time::sleep(Duration::from_secs(1));
        tokio::pin!(pause);
        // Every branch is cancel safe: they only wait, and the work itself stays in its set.
        loop {
            tokio::select! {
                () = &mut pause => break,
                Some((uid, failed)) = under_way.next() => tell(&config, ledger.ended(&uid, failed, Instant::now())),
            }
        }
        loop {
            let rest = tokio::time::sleep(ledger.rest(config.period, Instant::now()));
            tokio::select! {
                changed = snapshots.changed() => if changed.is_err() { return } else { break },
                Some((uid, failed)) = under_way.next() => {
                    tell(&config, ledger.ended(&uid, failed, Instant::now()));
                    // What was removed is seen to be gone soon; only who had no turn has one now.
                    if ledger.others_wait {
                        break;
                    }
                }
                () = rest => break,
            }
        }
    }
}

/// The log and the link to it, if they go with the container.
type Log = Option<(PathBuf, PathBuf)>;

/// Looked up beforehand: whoever waits for the runtime must not hold on to a whole snapshot.
fn with_logs(config: &UpkeepConfig, snapshot: &NodeSnapshot, removals: Vec<Removal>) -> Vec<(Removal, Log)> {
    let log = |removal: &Removal| match removal {
        Removal::Container(id) => leftovers::log_of(config, snapshot, id),
        Removal::Sandbox(_) => None,
    };
    removals
        .into_iter()
        .map(|removal| (log(&removal), removal))
        .map(|(log, removal)| (removal, log))
        .collect()
}

/// Removes things of one pod, one after the other, up to the first that cannot be.
async fn remove_all(
    config: &UpkeepConfig,
    uid: PodUid,
    removals: Vec<(Removal, Log)>,
) -> (PodUid, Option<(Removal, CriError)>) {
    for (removal, log) in removals {
        // The log first, as upstream: once the container is gone, nobody knows where its log is.
        if let Some((log, link)) = log {
            leftovers::remove_log(log, link).await;
        }
        match remove(config, &removal).await {
            Ok(()) => debug!(?removal, "removed what is superseded"),
            Err(error) => return (uid, Some((removal, error))),
        }
    }
    (uid, None)
}

async fn remove(config: &UpkeepConfig, removal: &Removal) -> Result<(), CriError> {
    match removal {
        Removal::Container(id) => config.cri.remove_container(id.as_str()).await,
        // A sandbox that died by itself still holds its network until it is stopped.
        Removal::Sandbox(id) => match config.cri.stop_sandbox(id.as_str()).await {
            Ok(()) => config.cri.remove_sandbox(id.as_str()).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        },
    }
}

/// Tells of what resists, as upstream does.
fn tell(config: &UpkeepConfig, trouble: Option<String>) {
    let Some(message) = trouble else { return };
    warn!(message, "cannot remove what is superseded; later again");
    let (target, kind, reason) = (EventTarget::Node, EventKind::Warning, "ContainerGCFailed".into());
    config.events.send(Event { target, kind, reason, message, time: Timestamp::now() });
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Ledger {
    under_way: HashSet<PodUid>,
    /// There was not room for all.
    others_wait: bool,
    failing: HashMap<Removal, Failing>,
}

#[derive(Debug)]
struct Failing {
    times: u32,
    until: Instant,
}

impl Ledger {
    /// What is to be removed now: of pods on which nobody works, what is not to be left alone for a while.
    fn turns(&mut self, found: Vec<(PodUid, Vec<Removal>)>, now: Instant) -> Vec<(PodUid, Vec<Removal>)> {
        let all: HashSet<&Removal> = found.iter().flat_map(|(_, removals)| removals).collect();
        self.failing.retain(|removal, _| all.contains(removal));
        self.others_wait = false;
        let mut turns = Vec::new();
        for (uid, mut removals) in found {
            if self.under_way.len() >= PARALLEL {
                self.others_wait = true;
                break;
            }
            removals.retain(|removal| self.failing.get(removal).is_none_or(|failing| failing.until <= now));
            if !removals.is_empty() && self.under_way.insert(uid.clone()) {
                turns.push((uid, removals));
            }
        }
        turns
    }

    /// How long nothing is to be done if nothing changes, a period at most.
    fn rest(&self, period: Duration, now: Instant) -> Duration {
        let pauses = self.failing.values().filter(|failing| failing.until > now);
        let next = pauses.map(|failing| failing.until.saturating_duration_since(now)).min();
        next.map_or(period, |next| next.min(period))
    }

    /// Takes note of how the work on a pod ended. What to tell of something that resists again.
    fn ended(&mut self, uid: &PodUid, failed: Option<(Removal, CriError)>, now: Instant) -> Option<String> {
        self.under_way.remove(uid);
        // A runtime that is away says nothing about what it should remove; whatever brings it back is heard of.
        let (removal, error) = failed.filter(|(_, error)| !matches!(error, CriError::Unreachable { .. }))?;
        let what = removal.to_string();
        let failing = self.failing.entry(removal).or_insert(Failing { times: 0, until: now });
        failing.times = failing.times.saturating_add(1);
        failing.until = now + RETRY.delay(failing.times);
        debug!(what, %error, "cannot remove what is superseded; later again");
        (failing.times > 1).then(|| format!("cannot remove {what} of the pod with UID {uid}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_resists_is_left_alone_for_a_while_and_holds_up_nobody() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let sandbox = |id: &str| Removal::Sandbox(id.into());
        let found = || {
            vec![
                (PodUid::from("bad"), vec![sandbox("hangs"), sandbox("dead")]),
                (PodUid::from("good"), vec![sandbox("other")]),
            ]
        };
        let late = || CriError::Timeout { call: "StopPodSandbox", after: Duration::from_secs(120) };
        let mut ledger = Ledger::default();
        assert_eq!(ledger.turns(found(), at(0)), found());
        assert_eq!(ledger.turns(found(), at(1)), [], "both are under way");
        assert_eq!(ledger.ended(&"good".into(), None, at(1)), None);
        assert_eq!(ledger.turns(found(), at(2)), [found().remove(1)], "the other one hangs, and that is all");
        ledger.ended(&"good".into(), None, at(3));
        let first = ledger.ended(&"bad".into(), Some((sandbox("hangs"), late())), at(120));
        assert_eq!(first, None, "once may happen");
        let rest = vec![(PodUid::from("bad"), vec![sandbox("dead")])];
        assert_eq!(ledger.turns(vec![found().remove(0)], at(121)), rest, "the next of its pod has its turn");
        ledger.ended(&"bad".into(), None, at(122));
        let hangs = || vec![(PodUid::from("bad"), vec![sandbox("hangs")])];
        assert_eq!(ledger.turns(hangs(), at(124)), [], "its pause");
        assert_eq!(ledger.rest(Duration::from_secs(60), at(124)), Duration::from_secs(1));
        assert_eq!(ledger.turns(hangs(), at(125)), hangs());
        assert_eq!(ledger.rest(Duration::from_secs(60), at(125)), Duration::from_secs(60));
        let again = ledger.ended(&"bad".into(), Some((sandbox("hangs"), late())), at(270)).unwrap();
        assert!(again.starts_with("cannot remove sandbox hangs of the pod with UID bad: "), "{again}");
        assert_eq!(ledger.turns(hangs(), at(279)), [], "it grows");
        assert_eq!(ledger.turns(vec![], at(321)), []);
        assert!(ledger.failing.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn only_so_many_are_worked_on_at_once() {
        let found = || {
            (0..2 * PARALLEL)
                .map(|n| (PodUid::from(format!("u{n}")), vec![Removal::Sandbox(format!("s{n}").into())]))
                .collect::<Vec<_>>()
        };
        let mut ledger = Ledger::default();
        let now = Instant::now();
        assert_eq!(ledger.turns(found(), now).len(), PARALLEL);
        assert_eq!(ledger.turns(found(), now).len(), 0);
        assert!(ledger.others_wait);
        ledger.ended(&"u3".into(), None, now);
        let left = found().split_off(PARALLEL);
        assert_eq!(ledger.turns(left, now).len(), 1);
    }
}
