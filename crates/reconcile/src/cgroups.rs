//! The cgroups above containers. Workers make and remove those of their pods; one task, `cgroups`, keeps those that pods
//! share at what the pods need, sets live ones whose values changed, and removes those that nobody owns.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_cgroup::{CgroupError, CgroupPath, PodCgroups};
use mainstay_podspec::runtime::{
    CgroupValues, Limit, NodeCgroupSettings, NodeSettings, QosClass, node_cgroup_values, pod_cgroup_values,
    qos_class,
};
use mainstay_task::TaskGroup;
use mainstay_types::{
    DesiredState, Event, EventKind, EventTarget, NodeCounters, ObservedState, Outcomes, PodExt, PodStage,
    PodUid,
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{files::timed, worker::Shared};

/// How long processes that were killed may take to go.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks though nothing changed, and before what failed is tried again; upstream's.
const PERIOD: Duration = Duration::from_secs(60);
/// Changes come in bursts; one refresh serves all that came in this time.
const GATHER: Duration = Duration::from_millis(200);

/// The node's cgroups and what they are to be set to.
#[derive(Clone, Debug)]
pub struct Cgroups {
    tree: Arc<PodCgroups>,
    /// `podPidsLimit`.
    pids: Limit,
    settings: Arc<NodeCgroupSettings>,
    reserved: Arc<[ReservedCgroup]>,
    own: Option<CgroupPath>,
    /// Mainstay is in its own.
    placed: Arc<AtomicBool>,
    system: Option<CgroupPath>,
    applied: Arc<Applied>,
    /// What marks the pods' cgroups as ours: the root directory.
    mark: Arc<str>,
    /// Whether every pod's cgroup is mainstay's business, also those that it has not marked.
    all: bool,
}

/// A cgroup of the administrator's that resources are kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// `System` or `Kube`, for events.
    pub whose: &'static str,
    /// It has to exist.
    pub path: CgroupPath,
    /// What it is held to.
    pub values: CgroupValues,
}

/// What each pod's cgroup was last set to, as a fingerprint. Who makes, sets or removes a cgroup holds its entry: systemd
/// makes a slice anew when a value is set on one that has just gone, and nobody would know that one.
#[derive(Debug, Default)]
struct Applied {
    hasher: RandomState,
    pods: Mutex<HashMap<PodUid, Arc<Mutex<Print>>>>,
}

/// What is known of a cgroup's values. Nothing, when some may have been set and others not.
#[derive(Debug, Default)]
struct Print {
    set: Option<u64>,
    /// What was not accepted. It is tried again each minute, not at every change of any pod.
    refused: Option<u64>,
}

impl Print {
    fn note(&mut self, values: u64, result: &Result<(), CgroupError>) {
        *self = match result {
            Ok(()) => Self { set: Some(values), refused: None },
            Err(_) => Self { set: None, refused: Some(values) },
        };
    }
}

impl Applied {
    fn entry(&self, uid: &PodUid) -> Arc<Mutex<Print>> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(pods.entry(uid.clone()).or_default())
    }

    fn print(&self, values: &CgroupValues) -> u64 {
        self.hasher.hash_one(values)
    }

    /// Keeps the entries of these pods only, and those that somebody holds.
    fn retain(&self, known: impl Fn(&PodUid) -> bool) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|uid, entry| known(uid) || Arc::strong_count(entry) > 1);
    }
}

impl Cgroups {
    /// Cgroups of pods in that tree, each with at most `pids_max` processes, if that is positive. They are marked with
    /// `mark`, by which mainstay knows its own after it has lost all records.
    #[must_use]
    pub fn new(tree: PodCgroups, pids_max: i64, settings: NodeCgroupSettings, mark: &str) -> Self {
        Self {
            tree: Arc::new(tree),
            pids: if pids_max > 0 { Limit::At(pids_max) } else { Limit::Unlimited },
            settings: Arc::new(settings),
            reserved: Arc::new([]),
            own: None,
            placed: Arc::default(),
            system: None,
            applied: Arc::default(),
            mark: mark.into(),
            all: false,
        }
    }

    /// Names and files of the pods' cgroups.
    #[must_use]
    pub fn tree(&self) -> &PodCgroups {
        &self.tree
    }

    /// Also removes cgroups of unknown pods that others have made: for the machine's only kubelet, which succeeds whoever
    /// ran here before it.
    #[must_use]
    pub const fn with_all_pods(mut self, all: bool) -> Self {
        self.all = all;
        self
    }

    /// Also holds the administrator's cgroups to what is reserved for them.
    #[must_use]
    pub fn with_reserved(mut self, reserved: Vec<ReservedCgroup>) -> Self {
        self.reserved = reserved.into();
        self
    }

    /// Also moves mainstay itself into a cgroup (`kubeletCgroups`), and what is in no cgroup into another
    /// (`systemCgroups`).
    #[must_use]
    pub fn with_places(mut self, own: Option<CgroupPath>, system: Option<CgroupPath>) -> Self {
        (self.own, self.system) = (own, system);
        self
    }

    /// Makes the cgroups that pods share, so that pods find them, and takes mainstay's own place. Blocks.
    ///
    /// # Errors
    /// [`CgroupError`]: without them no pod can be started. What systemd did not do the task `cgroups` tries again.
    pub fn prepare(&self) -> Result<(), CgroupError> {
        let names = self.tree.names();
        for path in [names.top(), names.class(QosClass::Burstable), names.class(QosClass::BestEffort)] {
            self.tree.ensure(&path, &CgroupValues::default())?;
        }
        self.take_place()
    }

    /// Moves mainstay itself to where it belongs, once.
    fn take_place(&self) -> Result<(), CgroupError> {
        if let Some(own) = self.own.as_ref().filter(|_| !self.placed.load(Ordering::Relaxed)) {
            self.tree.hierarchy().create(own)?;
            self.tree.hierarchy().add_process(own, own_pid())?;
            self.placed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn path(&self, pod: &Pod) -> CgroupPath {
        self.tree.names().pod(qos_class(pod), &pod.uid_ref().into())
    }

    /// The pod's cgroup in the form a sandbox configuration wants it.
    pub(crate) fn parent(&self, pod: &Pod) -> String {
        self.path(pod).as_str().to_owned()
    }

    /// Makes the pod's cgroup with its limits. Blocks.
    pub(crate) fn create(&self, pod: &Pod, values: CgroupValues) -> Result<(), CgroupError> {
        let values = CgroupValues { pids: self.pids, ..values };
        let path = self.path(pod);
        let entry = self.applied.entry(&pod.uid_ref().into());
        let mut print = entry.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.tree.ensure(&path, &values);
        print.note(self.applied.print(&values), &result);
        result?;
        self.tree.hierarchy().mark(&path, &self.mark);
        Ok(())
    }

    /// Sets the cgroup of a pod that runs, if its values are others than they were. What was refused is tried again when it is `due`.
    /// `None` where there is nothing to do, else also whether the same was refused before. Blocks.
    fn update(
        &self,
        pod: &Pod,
        values: CgroupValues,
        due: bool,
        counters: &NodeCounters,
    ) -> Option<(Result<(), CgroupError>, bool)> {
        let values = CgroupValues { pids: self.pids, ..values };
        let path = self.path(pod);
        let entry = self.applied.entry(&pod.uid_ref().into());
        // Its worker is at it just now, and makes it with these values or removes it.
        let mut print = entry.try_lock().ok()?;
        let wanted = self.applied.print(&values);
        let again = print.refused == Some(wanted);
        if print.set == Some(wanted) || (again && !due) || !self.tree.hierarchy().exists(&path) {
            return None;
        }
        self.tree.hierarchy().mark(&path, &self.mark);
        let result = timed(counters, "update", || self.tree.set(&path, &values));
        print.note(wanted, &result);
        Some((result, again))
    }

    /// Kills what is left in the pod's cgroup and removes it. Blocks.
    pub(crate) fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let entry = self.applied.entry(uid);
        let mut print = entry.lock().unwrap_or_else(PoisonError::into_inner);
        *print = Print::default();
        self.tree.destroy_pod(uid, KILL_PATIENCE)
    }
}

/// What the task looks at.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) desired: watch::Receiver<Arc<DesiredState>>,
    pub(crate) observed: watch::Receiver<Arc<ObservedState>>,
    pub(crate) outcomes: watch::Receiver<Outcomes>,
}

/// Starts the task.
pub(crate) fn start(shared: Arc<Shared>, cgroups: Cgroups, seen: Seen, tasks: &TaskGroup) {
    let shutdown = tasks.shutdown();
    let keeper = Keeper { shared, cgroups, told: HashMap::new() };
    tasks.spawn_critical("cgroups", async move {
        shutdown.run_until_signalled(keep(keeper, seen)).await;
    });
}

/// At every change of pods, and each minute.
async fn keep(mut keeper: Keeper, mut seen: Seen) {
    let mut next_look = tokio::time::Instant::now();
    let mut to_sweep = true;
    loop {
        let outcomes = seen.outcomes.borrow_and_update().clone();
        let due = tokio::time::Instant::now() >= next_look;
        if due {
            next_look = tokio::time::Instant::now() + PERIOD;
            to_sweep = true;
        }
        let (desired, observed) = (seen.desired.clone(), seen.observed.clone());
        let later = seen.outcomes.clone();
        let work = tokio::task::spawn_blocking(move || {
            keeper.refresh(&outcomes, due);
            if due {
                keeper.keep_places();
            }
            // What is known is looked up after the cgroups: what is made in between is known by then.
            // One after the other: whoever holds one while he waits for another may be waited for himself.
            let known = || {
                let desired = desired.borrow().clone();
                let observed = observed.borrow().clone();
                let outcomes = later.borrow().clone();
                known_pods(&desired, &observed, &outcomes)
            };
            let swept = to_sweep && keeper.sweep(known);
            (keeper, swept)
        });
        // Should it have died, the group notices the end of a critical task.
        let Ok((back, swept)) = work.await else { return };
        keeper = back;
        // At the start there is nothing to compare with yet; the next change is looked at again.
        to_sweep &= !swept;
        tokio::time::sleep(GATHER).await;
        // Cancel safe: both only wait.
        tokio::select! {
            changed = seen.outcomes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next_look) => {}
        }
    }
}

/// Every pod that anybody knows of; `None` before that is certain.
fn known_pods(
    desired: &DesiredState,
    observed: &ObservedState,
    outcomes: &Outcomes,
) -> Option<HashSet<PodUid>> {
    let certain =
        desired.is_whole() && outcomes.synced && observed.listed_at.is_some() && observed.runtime.reachable;
    let seen = observed.pods.keys().chain(observed.silent.keys());
    let all = desired.pods.keys().chain(seen).chain(outcomes.pods.keys());
    certain.then(|| all.cloned().collect())
}

/// The one who keeps the shared cgroups.
#[derive(Debug)]
struct Keeper {
    shared: Arc<Shared>,
    cgroups: Cgroups,
    /// What each cgroup was last set to, and whether that went well: told of once, not at every look.
    told: HashMap<CgroupPath, (CgroupValues, bool)>,
}

impl Keeper {
    fn node(&self) -> &NodeSettings {
        &self.shared.config.node
    }

    /// Sets the shared cgroups to what the active pods need (in any case when it is due), and pods whose values are others
    /// than they were.
    fn refresh(&mut self, outcomes: &Outcomes, due: bool) {
        let active: Vec<_> = outcomes
            .pods
            .iter()
            .filter(|(_, pod)| matches!(pod.stage, PodStage::Syncing | PodStage::Terminating))
            .map(|(uid, pod)| (uid, &*pod.desired.pod))
            .collect();
        let settings = Arc::clone(&self.cgroups.settings);
        let mut values = node_cgroup_values(active.iter().map(|(_, pod)| *pod), &settings, self.node());
        values.top.cpus = self.cgroups.tree.hierarchy().all_cpus();
        let counters = &self.shared.config.counters;
        counters.hard_memory.set(values.protected.0);
        counters.soft_memory.set(values.protected.1);
        let names = self.cgroups.tree.names().clone();
        if self.set(names.top(), values.top, (true, due), "Failed to update Node Allocatable Limits") {
            self.tell("Updated Node Allocatable limit across pods".to_owned());
        }
        for (class, values) in
            [(QosClass::Burstable, values.burstable), (QosClass::BestEffort, values.best_effort)]
        {
            self.set(names.class(class), values, (true, due), "Failed to update the cgroup of a QoS class");
        }
        for reserved in Arc::clone(&self.cgroups.reserved).iter() {
            let problem = format!("Failed to enforce {} Reserved Cgroup Limits", reserved.whose);
            if self.set(reserved.path.clone(), reserved.values.clone(), (false, due), &problem) {
                let whose = reserved.whose.to_lowercase();
                self.tell(format!("Updated limits on {whose} reserved cgroup {}", reserved.path));
            }
        }
        for (uid, pod) in active {
            self.refresh_pod(uid, pod, due);
        }
        self.cgroups.applied.retain(|uid| outcomes.pods.contains_key(uid));
    }

    /// Sets a cgroup if its values are new or it is due: what somebody else changed, or what failed, is set again then.
    /// Whether it went well for the first time, or again.
    fn set(
        &mut self,
        path: CgroupPath,
        values: CgroupValues,
        (ours, due): (bool, bool),
        problem: &str,
    ) -> bool {
        let before = self.told.get(&path);
        if !due && before.is_some_and(|(last, _)| *last == values) {
            return false;
        }
        let tree = &self.cgroups.tree;
        let result = timed(&self.shared.config.counters, "update", || {
            if ours { tree.ensure(&path, &values) } else { tree.set(&path, &values) }
        });
        let was_well = before.is_some_and(|(_, well)| *well);
        if let Err(error) = &result {
            let text = format!("{problem} {:?}: {}", path.as_str(), with_causes(error));
            if before.is_none() || was_well {
                warn!("{text}; trying again each minute");
            }
            self.event(EventKind::Warning, "FailedNodeAllocatableEnforcement", text);
        }
        self.told.insert(path, (values, result.is_ok()));
        result.is_ok() && !was_well
    }

    fn refresh_pod(&self, uid: &PodUid, pod: &Pod, due: bool) {
        let exclusive = self.shared.config.resources.holds_cpus(uid.as_str());
        let values = pod_cgroup_values(pod, self.node(), exclusive);
        match self.cgroups.update(pod, values, due, &self.shared.config.counters) {
            None => {}
            Some((Ok(()), _)) => debug!(pod.uid = %uid, "set the cgroup of a running pod"),
            Some((Err(error), false)) => {
                let error = with_causes(&error);
                warn!(pod.uid = %uid, error, "cannot set the cgroup of a running pod; trying again each minute");
            }
            Some((Err(error), true)) => {
                debug!(pod.uid = %uid, error = with_causes(&error), "still cannot set the cgroup of a running pod");
            }
        }
    }

    /// Moves what is in no cgroup into `systemCgroups`, and mainstay to its place if it is not there yet.
    fn keep_places(&self) {
        if let Err(error) = self.cgroups.take_place() {
            warn!(
                error = with_causes(&error),
                "cannot move mainstay into kubeletCgroups; trying again each minute"
            );
        }
        let Some(system) = &self.cgroups.system else { return };
        let hierarchy = self.cgroups.tree.hierarchy();
        let moved = hierarchy.create(system).and_then(|()| hierarchy.stray_processes());
        let pids = match moved {
            Ok(pids) => pids,
            Err(error) => {
                warn!(error = with_causes(&error), "cannot move the system's processes into systemCgroups");
                return;
            }
        };
        for pid in pids {
            if let Err(error) = hierarchy.add_process(system, pid) {
                debug!(pid, error = with_causes(&error), "cannot move a process into systemCgroups");
            }
        }
    }

    /// Removes the cgroups of pods that nobody knows of, if they are ours. Ours are those that carry our mark; where all
    /// pods are mainstay's business, every one of them. Somebody else's kubelet may have pods below the same cgroup.
    /// Whether it could be told which those are.
    fn sweep(&self, known: impl FnOnce() -> Option<HashSet<PodUid>>) -> bool {
        let tree = &self.cgroups.tree;
        let mut found = match tree.list() {
            Ok(found) => found,
            Err(error) => {
                warn!(error = with_causes(&error), "cannot list the cgroups of pods");
                return true;
            }
        };
        found.retain(|cgroup| {
            self.cgroups.all || tree.hierarchy().is_marked(&cgroup.path, &self.cgroups.mark)
        });
        let Some(known) = known() else { return false };
        let names = self.cgroups.tree.names();
        let known: HashSet<_> = known.iter().flat_map(|uid| names.pods(uid)).collect();
        for cgroup in found.iter().filter(|cgroup| !known.contains(&cgroup.path)) {
            let counters = &self.shared.config.counters;
            match timed(counters, "destroy", || tree.destroy(&cgroup.path, KILL_PATIENCE)) {
                Ok(()) => info!(cgroup = %cgroup.path, "removed the cgroup of a pod that nobody knows"),
                Err(error) => {
                    warn!(error = with_causes(&error), "cannot remove the cgroup of a pod that nobody knows");
                }
            }
        }
        true
    }

    fn tell(&self, text: String) {
        self.event(EventKind::Normal, "NodeAllocatableEnforced", text);
    }

    fn event(&self, kind: EventKind, reason: &'static str, message: String) {
        let event =
            Event { target: EventTarget::Node, kind, reason: reason.into(), message, time: Timestamp::now() };
        self.shared.config.events.send(event);
    }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or_default()
}

/// An error with what is behind it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
