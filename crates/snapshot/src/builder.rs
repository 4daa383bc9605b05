//! Builds the snapshot from what is desired, what is observed and what reconcile says.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerImage, NodeCondition, PodStatus, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use mainstay_lifecycle::{StatusInput, newly_ended, pod_status, start_time};
use mainstay_podspec::runtime::{self, Overhead, ResourceList};
use mainstay_task::TaskGroup;
use mainstay_types::{
    Assignments, DesiredState, EventSink, ExtendedResources, NodeCounters, NodePressure, NodeResources,
    NodeSnapshot, ObservedPod, ObservedState, Outcomes, PodAssignment, PodExt as _, PodOutcome, PodProbes,
    PodSource, PodUid, PodView, ProbeResults, RuntimeHealth, to_seconds,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tracing::debug;

use crate::{
    gojson::go_json,
    node::{NodeInput, NodeObject, NodeTemplate},
    persist::{KeptStatuses, StatusFiles},
    state_condition,
};

/// How soon it is noticed that somebody has taken away what was set aside.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// What the builder needs.
#[derive(Debug)]
pub struct SnapshotConfig {
    /// What is counted of pods' starts.
    pub counters: Arc<NodeCounters>,
    /// The node's name.
    pub node_name: Arc<str>,
    /// What the node has.
    pub resources: Arc<NodeResources>,
    /// Where it is told that the node turned ready or not.
    pub events: EventSink,
    /// Where all state is kept across restarts (`<root>/mainstay`).
    pub state_dir: PathBuf,
    /// What the Node object is made from; `None` for none.
    pub node: Option<NodeTemplate>,
}

/// The readers' end. `None` until the first complete snapshot.
pub type SnapshotReader = watch::Receiver<Option<Arc<NodeSnapshot>>>;

/// The one writer's end.
#[derive(Debug)]
pub struct SnapshotWriter {
    sender: watch::Sender<Option<Arc<NodeSnapshot>>>,
}

/// The two ends. Servers may read before anything is written: they find `None` then.
#[must_use]
pub fn channel() -> (SnapshotWriter, SnapshotReader) {
    let (sender, reader) = watch::channel(None);
    (SnapshotWriter { sender }, reader)
}

/// The things a snapshot is made from.
#[derive(Debug)]
pub struct Inputs {
    /// What should be.
    pub desired: watch::Receiver<Arc<DesiredState>>,
    /// What is.
    pub observed: watch::Receiver<Arc<ObservedState>>,
    /// What is being done about it.
    pub outcomes: watch::Receiver<Outcomes>,
    /// What probes have shown.
    pub probes: watch::Receiver<ProbeResults>,
    /// The node's addresses, primary first.
    pub addresses: watch::Receiver<Arc<[String]>>,
    /// What the node runs short of.
    pub pressure: watch::Receiver<NodePressure>,
    /// What device plugins offer.
    pub extended: watch::Receiver<Arc<ExtendedResources>>,
    /// Who holds which devices and how those are; nothing where it is not told (gate `ResourceHealthStatus`).
    pub assignments: watch::Receiver<Arc<Assignments>>,
}

/// Starts building snapshots. Problems with stored statuses are returned as sentences for the node's events.
pub fn start(
    config: SnapshotConfig,
    kept: KeptStatuses,
    inputs: Inputs,
    writer: SnapshotWriter,
    tasks: &TaskGroup,
) -> Vec<String> {
    let mut config = config;
    let KeptStatuses { files, statuses: restored, mut problems } = kept;
    let node = config.node.take().map(|NodeTemplate { node, images, addresses_by_cloud }| {
        let dir = config.state_dir.join("node");
        let told = (&config.node_name, &config.events);
        let (object, more) = NodeObject::open((node, addresses_by_cloud), told, &dir, tasks);
        problems.extend(more);
        (object, images)
    });
    let addresses = inputs.addresses.borrow().clone();
    let pressure = *inputs.pressure.borrow();
    let whole = Arc::clone(&config.resources);
    let builder = Builder {
        config,
        sender: writer.sender,
        views: HashMap::new(),
        restored,
        files,
        generation: 0,
        conditions: Arc::default(),
        node,
        addresses,
        pressure,
        extended: Arc::default(),
        whole,
        assignments: Arc::default(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("snapshot", async move {
        shutdown.run_until_signalled(Box::pin(builder.run(inputs))).await;
    });
    problems
}

/// A view, and what it was made from: nothing is computed again while its inputs are the same.
struct Entry {
    outcome: Arc<PodOutcome>,
    observed: Option<Arc<ObservedPod>>,
    probes: Option<Arc<PodProbes>>,
    held: Option<Arc<PodAssignment>>,
    view: Arc<PodView>,
}

struct Builder {
    config: SnapshotConfig,
    sender: watch::Sender<Option<Arc<NodeSnapshot>>>,
    views: HashMap<PodUid, Entry>,
    restored: HashMap<PodUid, PodStatus>,
    files: StatusFiles,
    generation: u64,
    /// Empty until the first snapshot.
    conditions: Arc<[NodeCondition]>,
    /// The Node object, and the images in it.
    node: Option<(NodeObject, watch::Receiver<Arc<[ContainerImage]>>)>,
    /// The node's addresses that the views show.
    addresses: Arc<[String]>,
    /// What the Node object says that it runs short of.
    pressure: NodePressure,
    /// What device plugins offer.
    extended: Arc<ExtendedResources>,
    /// What the node has, with that.
    whole: Arc<NodeResources>,
    /// Who holds what of it.
    assignments: Arc<Assignments>,
}

impl Builder {
    async fn run(mut self, mut inputs: Inputs) {
        let mut look_again = interval_at(Instant::now() + LOOK_AGAIN, LOOK_AGAIN);
        look_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let desired = inputs.desired.borrow_and_update().clone();
            // In this order, so that nobody is shown by what was seen before it was decided on.
            let outcomes = inputs.outcomes.borrow_and_update().clone();
            let observed = inputs.observed.borrow_and_update().clone();
            let probes = inputs.probes.borrow_and_update().clone();
            let addresses = inputs.addresses.borrow_and_update().clone();
            let moved = self.addresses != addresses;
            self.addresses = addresses;
            self.pressure = *inputs.pressure.borrow_and_update();
            let extended = inputs.extended.borrow_and_update().clone();
            if !Arc::ptr_eq(&self.extended, &extended) {
                self.whole = Arc::new(self.config.resources.with_extended(&extended, false));
                self.extended = extended;
            }
            self.assignments = inputs.assignments.borrow_and_update().clone();
            // Nothing partial: every source, the first complete list, and reconcile's word on each pod.
            if desired.synced && observed.listed_at.is_some() && outcomes.synced {
                if self.conditions.is_empty() {
                    // By now everybody has read his files.
                    self.look_at_state().await;
                }
                self.build(&desired, &observed, &outcomes, &probes, moved);
            }
            // Cancel safe: `changed` only marks a value as seen. An input that ends takes the agent down with it.
            let changed = tokio::select! {
                _ = look_again.tick(), if !self.conditions.is_empty() => {
                    self.look_at_state().await;
                    Ok(())
                }
                () = new_images(self.node.as_mut().map(|(_, images)| images)) => Ok(()),
                changed = inputs.desired.changed() => changed,
                changed = inputs.observed.changed() => changed,
                changed = inputs.outcomes.changed() => changed,
                changed = inputs.probes.changed() => changed,
                // Addresses that are given have nobody who would change them.
                Ok(()) = inputs.addresses.changed() => Ok(()),
                Ok(()) = inputs.pressure.changed() => Ok(()),
                Ok(()) = inputs.extended.changed() => Ok(()),
                Ok(()) = inputs.assignments.changed() => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    async fn look_at_state(&mut self) {
        let condition = state_condition::look(self.config.state_dir.clone()).await;
        if self.conditions.first() != Some(&condition) {
            self.conditions = Arc::new([condition]);
        }
    }

    fn build(
        &mut self,
        desired: &Arc<DesiredState>,
        observed: &Arc<ObservedState>,
        outcomes: &Outcomes,
        probes: &ProbeResults,
        moved: bool,
    ) {
        let now = Timestamp::now();
        let mut changed = false;
        for (uid, outcome) in outcomes.pods.iter() {
            let seen = observed.pods.get(uid).filter(|pod| !pod.is_nothing());
            let probes = probes.pods.get(uid);
            let known = self.views.get(uid).filter(|_| !moved);
            let held = self.assignments.pods.get(uid);
            if known.is_some_and(|entry| entry.is_current(outcome, seen, probes, held)) {
                continue;
            }
            let silent = observed.silent.contains_key(uid);
            changed |= self.rebuild(uid, (outcome, seen, probes), silent, &observed.runtime, now);
        }
        let files = &self.files;
        self.views.retain(|uid, _| {
            let wanted = outcomes.pods.contains_key(uid);
            if !wanted {
                changed = true;
                files.forget(uid);
            }
            wanted
        });
        // What was restored is in the views now, or belongs to a pod that is gone.
        for uid in self.restored.drain().map(|(uid, _)| uid).filter(|uid| !outcomes.pods.contains_key(uid)) {
            files.forget(&uid);
        }
        let object = self.node.as_mut().map(|(object, images)| {
            // A node whose API server is away is as fit for pods as before.
            let awaited = desired.awaited.iter().filter(|awaited| awaited.source != PodSource::Api);
            let sources: Vec<&str> = awaited.map(|source| source.name.as_str()).collect();
            let input = NodeInput {
                runtime: &observed.runtime,
                images: &images.borrow_and_update().clone(),
                addresses: &self.addresses,
                resources: &self.whole,
                conditions: &self.conditions,
                pressure: self.pressure,
                api: desired.node.as_ref(),
                sources: (!sources.is_empty()).then(|| sources.join(", ")),
                now,
            };
            object.refresh(self.generation + 1, input)
        });
        let last = self.sender.borrow().clone();
        let same_rest = last.is_some_and(|last| {
            Arc::ptr_eq(&last.desired, desired)
                && last.observed.generation == observed.generation
                && Arc::ptr_eq(&last.conditions, &self.conditions)
                && Arc::ptr_eq(&last.resources, &self.whole)
                && same(last.node.as_ref(), object.as_ref())
        });
        if !changed && same_rest {
            return;
        }
        self.generation += 1;
        let pods = self.views.values().map(|entry| Arc::clone(&entry.view)).collect();
        let node = Arc::clone(&self.config.node_name);
        let snapshot =
            NodeSnapshot::new(self.generation, node, pods, Arc::clone(desired), Arc::clone(observed))
                .with_resources(Arc::clone(&self.whole))
                .with_conditions(Arc::clone(&self.conditions))
                .with_node(object);
        debug!(generation = self.generation, pods = snapshot.pods.len(), "snapshot");
        self.sender.send_replace(Some(Arc::new(snapshot)));
    }

    /// Computes one view; whether what clients see of it differs from before.
    fn rebuild(
        &mut self,
        uid: &PodUid,
        (outcome, observed, probes): (&Arc<PodOutcome>, Option<&Arc<ObservedPod>>, Option<&Arc<PodProbes>>),
        silent: bool,
        runtime: &RuntimeHealth,
        now: Timestamp,
    ) -> bool {
        let pod = &outcome.desired.pod;
        let known = self.views.get(uid);
        // A file that was taken away and put back: the same UID, but a new pod, of which nothing is known yet.
        let reborn =
            known.is_some_and(|entry| entry.outcome.deletion.is_some() && outcome.deletion.is_none());
        let before_us = outcome
            .desired
            .remote
            .as_deref()
            .map(|remote| PodStatus { conditions: Some(remote.conditions.clone()), ..PodStatus::default() });
        let previous = known
            .map(|entry| &*entry.view.status)
            .or_else(|| self.restored.get(uid))
            .filter(|_| !reborn)
            .or(before_us.as_ref());
        let qos_class = runtime::qos_class(pod);
        let resources = pod_resources(pod);
        let none = PodProbes::default();
        let held = self.assignments.pods.get(uid).cloned();
        let input = StatusInput {
            pod,
            observed: observed.map(AsRef::as_ref),
            outcome,
            probes: probes.map_or(&none, AsRef::as_ref),
            previous,
            runtime_name: &runtime.name,
            host_ips: &self.addresses,
            qos_class: qos_class.as_str(),
            recursive_read_only: runtime.recursive_read_only,
            resources: &resources,
            held: held.as_deref(),
            now,
        };
        let mut status = match previous.filter(|_| silent) {
            // Nothing was read, so nothing has changed.
            Some(previous) => previous.clone(),
            None if silent => unknown(pod_status(&input)),
            None => pod_status(&input),
        };
        let was = known.and_then(|entry| entry.view.status.phase.as_deref());
        if was == Some("Pending") && status.phase.as_deref() == Some("Running") {
            let took = now.duration_since(outcome.start_time);
            self.config.counters.pod_starts.observe(took.try_into().unwrap_or_default());
        }
        if let Some(entry) = known {
            let counters = &self.config.counters;
            let created = pod.metadata.creation_timestamp.as_ref().map_or(outcome.start_time, |time| time.0);
            let statuses = (&*entry.view.status, &status);
            if let Some(mut took) = start_time(pod, statuses, (created, now), Duration::ZERO) {
                let pulled = counters.pull_times.take(uid);
                took.sli = took.sli.map(|sli| sli.saturating_sub(pulled));
                counters.pod_start_totals.observe(took.total);
                if let Some(sli) = took.sli {
                    counters.pod_start_slis.observe(sli);
                    if !pod.host_network() {
                        // The first one stays.
                        counters.first_network_start.set(sli).ok();
                    }
                }
            }
        }
        for (kind, ended) in newly_ended(previous, &status) {
            let reason = ended.reason.as_deref().unwrap_or_default().into();
            self.config.counters.container_ends.of((kind, ended.exit_code, reason)).add();
        }
        let deletion = outcome.deletion;
        let same = known.is_some_and(|entry| {
            *entry.view.status == status
                && Arc::ptr_eq(&entry.outcome.desired, &outcome.desired)
                && entry.outcome.stage == outcome.stage
                && entry.outcome.deletion == deletion
        });
        let view = match known.filter(|_| same) {
            Some(entry) => Arc::clone(&entry.view),
            None => {
                self.files.store(uid, &status);
                // It stays for long, and was made with room to grow.
                for statuses in [&mut status.container_statuses, &mut status.init_container_statuses] {
                    statuses.iter_mut().for_each(Vec::shrink_to_fit);
                }
                let mut pod = Arc::clone(pod);
                if let Some(deletion) = deletion.filter(|_| pod.metadata.deletion_timestamp.is_none()) {
                    let pod = Arc::make_mut(&mut pod);
                    let grace = jiff::SignedDuration::from_secs(deletion.grace_seconds);
                    let due = deletion.since.checked_add(grace).unwrap_or(deletion.since);
                    pod.metadata.deletion_timestamp = Some(Time(to_seconds(due)));
                    pod.metadata.deletion_grace_period_seconds = Some(deletion.grace_seconds);
                }
                Arc::new(PodView {
                    uid: uid.clone(),
                    full_name: outcome.desired.full_name.clone(),
                    json: pod_item_json(&pod, &status),
                    pod,
                    status: Arc::new(status),
                    observed: observed.cloned(),
                    origin: Arc::clone(&outcome.desired.origin),
                    source: outcome.desired.source,
                    stage: outcome.stage,
                })
            }
        };
        // Readers reach the log path through the view, so it must carry the newest reading even if the status is equal.
        let view = if view.observed.as_ref().map(Arc::as_ptr) == observed.map(Arc::as_ptr) {
            view
        } else {
            Arc::new(PodView {
                uid: view.uid.clone(),
                full_name: view.full_name.clone(),
                pod: Arc::clone(&view.pod),
                status: Arc::clone(&view.status),
                json: view.json.clone(),
                observed: observed.cloned(),
                origin: Arc::clone(&view.origin),
                source: view.source,
                stage: view.stage,
            })
        };
        let entry = Entry {
            outcome: Arc::clone(outcome),
            observed: observed.cloned(),
            probes: probes.cloned(),
            held,
            view,
        };
        self.views.insert(uid.clone(), entry);
        !same
    }
}

impl Entry {
    fn is_current(
        &self,
        outcome: &Arc<PodOutcome>,
        observed: Option<&Arc<ObservedPod>>,
        probes: Option<&Arc<PodProbes>>,
        held: Option<&Arc<PodAssignment>>,
    ) -> bool {
        Arc::ptr_eq(&self.outcome, outcome)
            && same(self.observed.as_ref(), observed)
            && same(self.probes.as_ref(), probes)
            && self.held.as_ref() == held
    }
}

/// Waits for other images; for ever where there are none. Cancel safe.
async fn new_images(images: Option<&mut watch::Receiver<Arc<[ContainerImage]>>>) {
    if let Some(images) = images
        && images.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Whether both are the very same value.
fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    a.map(Arc::as_ptr) == b.map(Arc::as_ptr)
}

/// The status of a pod about which the runtime has never answered, and of which no earlier status is known.
fn unknown(status: PodStatus) -> PodStatus {
    PodStatus {
        phase: Some("Unknown".to_owned()),
        reason: Some("RuntimeNotAnswering".to_owned()),
        message: Some(
            "the container runtime lists this pod and does not answer about it; look at the runtime's log"
                .to_owned(),
        ),
        ..status
    }
}

/// A list item: the pod without `apiVersion` and `kind`, which a list's items do not carry.
fn pod_item_json(pod: &k8s_openapi::api::core::v1::Pod, status: &PodStatus) -> bytes::Bytes {
    #[derive(serde::Serialize)]
    struct Item<'a> {
        metadata: &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        spec: &'a Option<k8s_openapi::api::core::v1::PodSpec>,
        status: &'a PodStatus,
    }
    let mut json = go_json(&Item { metadata: &pod.metadata, spec: &pod.spec, status });
    json.shrink_to_fit();
    json.into()
}

fn pod_resources(pod: &k8s_openapi::api::core::v1::Pod) -> ResourceRequirements {
    let list = |list: ResourceList| {
        let map: std::collections::BTreeMap<String, Quantity> =
            list.into_iter().map(|(name, amount)| (name, Quantity(amount.to_string()))).collect();
        (!map.is_empty()).then_some(map)
    };
    ResourceRequirements {
        requests: list(runtime::pod_requests(pod, Overhead::Excluded)),
        limits: list(runtime::pod_limits(pod, Overhead::Excluded)),
        claims: None,
    }
}
