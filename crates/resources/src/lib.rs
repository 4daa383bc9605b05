//! CPUs and memory: who holds which of them, beside which devices (upstream's CPU, memory and topology managers of 1.37).
//!
//! Reconcile asks: [`Resources::admit`] once for a pod before anything of it is made, [`Resources::place`] for each container that is made,
//! [`Resources::release`] when the pod has come to rest. What is decided is decided by pure functions of `mainstay_alloc` over one book, under one
//! lock ([decision 13](../../../docs/decisions/0013-one-book-of-cpus-and-memory.md)); it is on disk in upstream's state files before a container is made.
//!
//! A state file that cannot be used is set aside, and the book is rebuilt from the containers that run ([`Resources::rebuild`]); nobody is
//! let in before that.
//!
//! What it does not do: it sets no cpuset and asks no runtime (see `reconcile`), and does not judge whether a pod fits on the node (see `policy`).
//!
//! In: `/sys`, looked at each period. Out: assignments by `watch`. Tasks, in the group given to [`start`]: `cpus`, `cpu and memory files`.

#![forbid(unsafe_code)]

mod ask;
mod book;
mod error;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_alloc::{
    CpuSet, CpuState, Hint, MemoryMachine, MemoryState, MemoryStatic, NodeMask, Options, Static, take,
};
use mainstay_alloc::{Machine, Packing, Topology, TopologyPolicy};
use mainstay_checkpoint::{TextError, TextFile};
use mainstay_devices::Devices;
use mainstay_host::{Host, NumaTopology};
use mainstay_task::{Lane, Shutdown, TaskGroup};
use mainstay_types::{Assignments, HugePages, NodeCounters, PodExt as _, PodUid};
use tokio::sync::{Notify, watch};

pub use error::{AdmitError, ResourcesError};

use crate::{
    ask::{ContainerAsk, Given, PodAsk},
    book::{Book, Held},
};

/// How often what cannot be done near enough is tried anew: another pod took what was chosen in between.
const TRIES: usize = 4;
/// What a machine of thousands of containers needs; more would be no such file.
const MAX_BYTES: u64 = 64 << 20;
/// What becomes of a file that cannot be used.
const LOOKED_UP: &str = "what containers that run have is looked up from them";
/// How long a pod waits for that, by default: as long as for a device plugin that is not back.
pub const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// One writer at a time.
static LANE: Lane = Lane::new(1);

/// What the crate works with.
#[derive(Debug)]
pub struct ResourcesConfig {
    /// Where the state files are.
    pub root: PathBuf,
    /// Pods of an earlier life are on record: a file that is not there was lost.
    pub recorded: bool,
    /// How long a pod waits for the book to be rebuilt.
    pub patience: Duration,
    /// The machine.
    pub host: Host,
    /// `cpuManagerPolicy: static`.
    pub cpus: Option<CpuSettings>,
    /// `memoryManagerPolicy: Static`: what is kept for the system, by NUMA node and type.
    pub memory: Option<BTreeMap<u32, BTreeMap<String, u64>>>,
    /// `topologyManager…`.
    pub topology: TopologySettings,
    /// Gate `PodLevelResourceManagers`.
    pub pod_level: bool,
    /// How often it is looked which CPUs are online (`cpuManagerReconcilePeriod`).
    pub period: Duration,
    /// Whoever gives out devices.
    pub devices: Devices,
    /// Where it is told who holds what.
    pub assignments: watch::Sender<Arc<Assignments>>,
    /// What is counted.
    pub counters: Arc<NodeCounters>,
}

/// How CPUs are given out.
#[derive(Clone, Debug)]
pub struct CpuSettings {
    /// `reservedSystemCPUs`; else so many are chosen.
    pub reserved: Option<CpuSet>,
    /// How many are kept for the system.
    pub reserved_count: usize,
    /// `cpuManagerPolicyOptions`.
    pub options: Options,
}

/// How what is given out is to lie together.
#[derive(Clone, Debug, Default)]
pub struct TopologySettings {
    /// `topologyManagerPolicy`.
    pub policy: TopologyPolicy,
    /// `topologyManagerScope: pod`.
    pub whole_pods: bool,
    /// `prefer-closest-numa-nodes`.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`.
    pub most_nodes: usize,
}

/// The node's CPUs and memory. Clones are of one.
#[derive(Clone, Debug)]
pub struct Resources {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    book: Mutex<Book>,
    given: Given,
    topology: Topology,
    whole_pods: bool,
    devices: Devices,
    assignments: watch::Sender<Arc<Assignments>>,
    counters: Arc<NodeCounters>,
    cpu_file: TextFile,
    memory_file: TextFile,
    /// What is held has changed, and nobody waits for it to be written.
    unwritten: Notify,
    /// Held while it is told what there is, so that what was true last is told last.
    telling: Mutex<()>,
    /// How often the book has changed.
    changes: watch::Sender<u64>,
    /// The book is whole: nothing is to be rebuilt any more.
    whole: watch::Sender<bool>,
    /// Until then it is not known who holds CPUs, or memory: the file that said so was lost.
    lost: (bool, bool),
    /// How long a pod waits for that.
    patience: Duration,
}

/// Where a container is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// CPUs as the kernel lists them; empty where they are not given out.
    pub cpus: String,
    /// The CPUs are its own, or its pod's.
    pub exclusive: bool,
    /// Its pod has CPUs as a whole.
    pub pooled: bool,
    /// NUMA nodes for its memory as the kernel lists them; empty where it is not given out.
    pub nodes: String,
}

/// A container that runs, and where.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its pod.
    pub pod: Arc<Pod>,
    /// Its name.
    pub container: String,
    /// The CPUs that it may use.
    pub cpus: CpuSet,
    /// The NUMA nodes that its memory may come from.
    pub nodes: NodeMask,
}

/// Reads the machine and the state files. What is wrong with those is returned as sentences for the node's events.
///
/// # Errors
/// When CPUs or memory cannot be given out on this machine as they are configured.
pub fn start(config: ResourcesConfig, tasks: &TaskGroup) -> Result<(Resources, Vec<String>), ResourcesError> {
    let found = config.host.numa_topology()?;
    let machine = Machine::new(found.cpus.clone());
    let topology = topology(&config.topology, &found)?;
    let mut problems = Vec::new();
    let cpu_file = TextFile::new(config.root.join("cpu_manager_state"), MAX_BYTES, &LANE);
    let memory_file = TextFile::new(config.root.join("memory_manager_state"), MAX_BYTES, &LANE);
    // Of which the file was lost.
    let mut lost = (false, false);
    let cpus = match &config.cpus {
        None => None,
        Some(settings) => {
            let reserved = reserved(settings, &machine)?;
            if settings.options.by_socket && machine.sockets() > machine.nodes() {
                let (sockets, nodes) = (machine.sockets(), machine.nodes());
                return Err(ResourcesError::MoreSocketsThanNodes { sockets, nodes });
            }
            let present: CpuSet = config.host.present_cpus()?.into_iter().collect();
            let kept = read(&cpu_file, CpuState::from_text, config.recorded, &mut problems);
            let (cpus, wrong) = Static::restore(
                machine.clone(),
                reserved,
                settings.options,
                &present,
                &kept.unwrap_or_default(),
            );
            if !wrong.is_empty() {
                problems.push(cpu_file.set_aside(&wrong.join("; "), LOOKED_UP));
            }
            lost.0 = !problems.is_empty();
            Some(cpus)
        }
    };
    let memory = match &config.memory {
        None => None,
        Some(reserved) => {
            let machine = memory_machine(&found, reserved)?;
            let before = problems.len();
            let kept = read(&memory_file, MemoryState::from_text, config.recorded, &mut problems);
            let kept = kept.unwrap_or_default();
            let (memory, wrong) = MemoryStatic::restore(machine, &kept.entries, &kept.pods);
            if !wrong.is_empty() {
                problems.push(memory_file.set_aside(&wrong.join("; "), LOOKED_UP));
            }
            lost.1 = problems.len() > before;
            Some(memory)
        }
    };
    let given = Given {
        cpus: cpus.is_some(),
        memory: memory.is_some(),
        pod_level: config.pod_level,
        pools: config.pod_level
            && config.topology.whole_pods
            && config.topology.policy != TopologyPolicy::None,
    };
    let lost_devices = config.devices.is_lost();
    let resources = Resources {
        inner: Arc::new(Inner {
            book: Mutex::new(Book { cpus, memory, machine, found }),
            given,
            topology,
            whole_pods: config.topology.whole_pods,
            devices: config.devices,
            assignments: config.assignments,
            counters: config.counters,
            cpu_file,
            memory_file,
            unwritten: Notify::new(),
            telling: Mutex::default(),
            changes: watch::channel(0).0,
            whole: watch::channel(problems.is_empty() && !lost_devices).0,
            lost,
            patience: config.patience,
        }),
    };
    if given.cpus {
        // Series that count nothing yet are there from the start.
        let counters = &resources.inner.counters.pinning;
        for boundary in ["physical_cpu", "uncore_cache"] {
            counters.aligned.of([boundary, "container"]);
        }
        counters.misaligned.of(["physical_cpu", "container"]);
    }
    resources.publish();
    resources.inner.unwritten.notify_one();
    let (writer, shutdown) = (resources.clone(), tasks.shutdown());
    tasks.spawn("cpu and memory files", async move { writer.write_when_changed(&shutdown).await });
    if given.cpus {
        let (looker, shutdown, host, period) =
            (resources.clone(), tasks.shutdown(), config.host, config.period);
        tasks.spawn("cpus", async move { looker.follow_cpus(&host, period, &shutdown).await });
    }
    Ok((resources, problems))
}

/// What a file says. One that is not there was lost if pods of an earlier life are `recorded`: such a life always leaves one.
fn read<T, E: std::error::Error>(
    file: &TextFile,
    parse: impl FnOnce(&str) -> Result<T, E>,
    recorded: bool,
    problems: &mut Vec<String>,
) -> Option<T> {
    match file.read(parse, LOOKED_UP) {
        Ok(None) if recorded => {
            problems.push(format!("the state file {} is gone; {LOOKED_UP}", file.path().display()));
            None
        }
        Ok(kept) => kept,
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

fn topology(settings: &TopologySettings, found: &NumaTopology) -> Result<Topology, ResourcesError> {
    let nodes: NodeMask = found.nodes.keys().copied().collect();
    let topology = Topology { policy: settings.policy, nodes, distances: None };
    if settings.policy == TopologyPolicy::None {
        return Ok(topology);
    }
    if found.nodes.len() > settings.most_nodes {
        return Err(ResourcesError::TooManyNodes { most: settings.most_nodes, found: found.nodes.len() });
    }
    if !settings.prefer_closest {
        return Ok(topology);
    }
    if found.distances.len() < found.nodes.len() * found.nodes.len() {
        return Err(ResourcesError::NoDistances);
    }
    Ok(Topology { distances: Some(found.distances.clone()), ..topology })
}

fn reserved(settings: &CpuSettings, machine: &Machine) -> Result<CpuSet, ResourcesError> {
    if settings.reserved_count == 0 {
        return Err(ResourcesError::NothingReserved);
    }
    let online = machine.all();
    match &settings.reserved {
        None => take(machine, &online, settings.reserved_count, Packing::default())
            .map_err(ResourcesError::Reserve),
        Some(given) if (given - &online).is_empty() => Ok(given.clone()),
        Some(given) => Err(ResourcesError::ReservedOffline { missing: given - &online, online }),
    }
}

fn memory_machine(
    found: &NumaTopology,
    reserved: &BTreeMap<u32, BTreeMap<String, u64>>,
) -> Result<MemoryMachine, ResourcesError> {
    if let Some(node) = reserved.keys().find(|node| !found.nodes.contains_key(node)) {
        return Err(ResourcesError::NoSuchNode(*node));
    }
    let mut nodes = BTreeMap::new();
    for (id, node) in &found.nodes {
        let of = |kind: &str| reserved.get(id).and_then(|kinds| kinds.get(kind)).copied().unwrap_or(0);
        let mut types = BTreeMap::from([("memory".to_owned(), (node.bytes, of("memory")))]);
        for pages in &node.huge_pages {
            let size = i64::try_from(pages.page_size.saturating_mul(1024)).unwrap_or(i64::MAX);
            let kind = HugePages { size_bytes: size, count: 0 }.resource_name();
            let total = pages.page_size.saturating_mul(1024).saturating_mul(pages.num_pages);
            types.insert(kind.clone(), (total, of(&kind)));
        }
        nodes.insert(*id, types);
    }
    Ok(MemoryMachine { nodes })
}

/// Whether `reservedMemory` is what is kept back together, by type, as upstream demands.
///
/// # Errors
/// Which it is that differs.
pub fn check_reserved_memory(
    reserved: &BTreeMap<u32, BTreeMap<String, u64>>,
    kept_back: &BTreeMap<String, u64>,
) -> Result<(), ResourcesError> {
    let mut given: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, bytes) in reserved.values().flatten() {
        let sum = given.entry(kind.as_str()).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    if given.get("memory").copied().unwrap_or(0) == 0 && kept_back.get("memory").copied().unwrap_or(0) == 0 {
        return Err(ResourcesError::NoReservedMemory);
    }
    let kept = kept_back.iter().filter(|(kind, _)| *kind == "memory" || kind.starts_with("hugepages-"));
    let kept: BTreeMap<&str, u64> = kept.map(|(kind, bytes)| (kind.as_str(), *bytes)).collect();
    let kinds: std::collections::BTreeSet<&str> = given.keys().chain(kept.keys()).copied().collect();
    for kind in kinds {
        let of = |list: &BTreeMap<&str, u64>| list.get(kind).copied().unwrap_or(0);
        if of(&given) != of(&kept) {
            let shown =
                |bytes| mainstay_types::Quantity::bytes(i64::try_from(bytes).unwrap_or(i64::MAX)).to_string();
            return Err(ResourcesError::ReservedMemory {
                kind: kind.to_owned(),
                given: shown(of(&given)),
                needed: shown(of(&kept)),
            });
        }
    }
    Ok(())
}

impl Resources {
    /// Whoever gives out devices.
    #[must_use]
    pub fn devices(&self) -> &Devices {
        &self.inner.devices
    }

    /// Whether CPUs are given out.
    #[must_use]
    pub fn pins_cpus(&self) -> bool {
        self.inner.given.cpus
    }

    /// How often the book has changed, as it does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Whether the pod asks for something that it does not hold yet.
    #[must_use]
    pub fn is_due(&self, pod: &Pod) -> bool {
        self.inner.devices.is_due(pod) || self.is_pin_due(&PodAsk::of(pod, self.inner.given))
    }

    fn is_pin_due(&self, ask: &PodAsk) -> bool {
        (self.inner.given.cpus || self.inner.given.memory) && self.book().is_due(ask)
    }

    /// Counts a pod that is let in without asking for anything.
    pub fn count_admission(&self) {
        self.inner.counters.pinning.admissions.add();
        self.inner.counters.pinning.admission_times.observe(Duration::ZERO);
    }

    /// Gives a pod's containers what they ask for; what they hold they keep. After this has returned it is on disk. Waits until the book is
    /// whole, and for device plugins, within their patience.
    ///
    /// # Errors
    /// Why the pod cannot run here; it holds nothing then that it did not hold before.
    ///
    /// # Cancel safety
    /// What a container was about to be given stays with it until [`Self::release`].
    pub async fn admit(&self, pod: &Pod) -> Result<(), AdmitError> {
        // Not in the time that is counted: it is nobody's admission that takes so long.
        let mut whole = self.inner.whole.subscribe();
        if tokio::time::timeout(self.inner.patience, whole.wait_for(|whole| *whole)).await.is_err() {
            return Err(AdmitError::NotKnown);
        }
        let begun = Instant::now();
        let done = Box::pin(self.give(pod)).await;
        let counters = &self.inner.counters.pinning;
        counters.admissions.add();
        counters.admission_times.observe(begun.elapsed());
        if done.is_err() {
            counters.admission_errors.add();
        }
        done
    }

    async fn give(&self, pod: &Pod) -> Result<(), AdmitError> {
        let ask = PodAsk::of(pod, self.inner.given);
        let before = self.book().held(&ask.uid);
        let mut devices = Vec::new();
        let given = match self.give_each(&ask, &mut devices).await {
            Ok(is_new) => self.keep(is_new, &devices).await.map(|()| is_new),
            Err(error) => Err(error),
        };
        match &given {
            Ok(true) => self.changed(),
            Ok(false) => {}
            Err(_) => {
                devices.iter().for_each(|given| self.inner.devices.take_back(given));
                self.take_back(&ask.uid, &before);
            }
        }
        given.map(drop)
    }

    /// Takes back what a pod was given since.
    fn take_back(&self, uid: &str, before: &Held) {
        let differs = self.book().put_back(uid, before);
        if differs {
            self.changed();
            // Another pod's may have been told and written with it.
            self.inner.unwritten.notify_one();
        }
    }

    /// Not told before it is on disk.
    async fn keep(&self, is_new: bool, devices: &[mainstay_devices::Given]) -> Result<(), AdmitError> {
        if is_new {
            self.save().await.map_err(AdmitError::File)?;
        }
        for given in devices {
            self.inner.devices.settle(given).await?;
        }
        Ok(())
    }

    /// Where everything is to lie, then CPUs and memory in the book, then devices: container by container, or for all of them. Whether CPUs or memory
    /// were given that the pod had not had.
    async fn give_each(
        &self,
        ask: &PodAsk,
        devices: &mut Vec<mainstay_devices::Given>,
    ) -> Result<bool, AdmitError> {
        let inner = &self.inner;
        // Where devices lie is known when their plugins have told; before that nobody can say what lies near to what.
        let asked: Vec<_> = ask.containers.iter().flat_map(|container| container.devices.clone()).collect();
        inner.devices.wait_for_plugins(&asked).await;
        if inner.whole_pods && inner.topology.policy != TopologyPolicy::None {
            return self.give_whole(ask, devices).await;
        }
        let mut is_new = false;
        for container in &ask.containers {
            is_new |= self.give_one(ask, container, devices).await?;
        }
        Ok(is_new)
    }

    /// A container, by itself.
    async fn give_one(
        &self,
        ask: &PodAsk,
        container: &ContainerAsk,
        devices: &mut Vec<mainstay_devices::Given>,
    ) -> Result<bool, AdmitError> {
        let inner = &self.inner;
        for tries in 1..=TRIES {
            let (before, hint, new) = {
                let mut book = self.book();
                let before = book.held(&ask.uid);
                let (hint, admitted) = book.hint(&ask.uid, container, &inner.topology, &inner.devices);
                if !admitted {
                    return Err(self.misaligned("container", ask));
                }
                let given = book.assign(&ask.uid, container, hint);
                self.count(&book, &ask.uid, container, &given);
                (before, hint, given?)
            };
            let given = inner.devices.give_all(container.devices.clone(), hint.nodes).await?;
            if self.may_lie(&given, hint, tries) {
                devices.push(given);
                let asks =
                    container.cpus > 0 || !container.memory.is_empty() || !container.devices.is_empty();
                if asks && inner.topology.policy == TopologyPolicy::SingleNumaNode {
                    inner.counters.pinning.aligned.of(["numa_node", "container"]).add();
                }
                return Ok(new.0 || new.1);
            }
            inner.devices.take_back(&given);
            self.take_back(&ask.uid, &before);
        }
        Err(self.misaligned("container", ask))
    }

    /// All containers of a pod together, where pods are judged as a whole.
    async fn give_whole(
        &self,
        ask: &PodAsk,
        devices: &mut Vec<mainstay_devices::Given>,
    ) -> Result<bool, AdmitError> {
        let inner = &self.inner;
        for tries in 1..=TRIES {
            let (before, hint, is_new) = {
                let mut book = self.book();
                let before = book.held(&ask.uid);
                let (hint, admitted) = book.pod_hint(ask, &inner.topology, &inner.devices);
                if !admitted {
                    return Err(self.misaligned("pod", ask));
                }
                // All of it at once: while plugins are asked, others may take what lies near.
                (before, hint, self.assign_whole(&mut book, ask, hint)?)
            };
            if self.give_devices(ask, hint, tries, devices).await? {
                if inner.topology.policy == TopologyPolicy::SingleNumaNode {
                    inner.counters.pinning.aligned.of(["numa_node", "pod"]).add();
                }
                return Ok(is_new);
            }
            // On other nodes there may be enough of everything.
            devices.drain(..).for_each(|given| inner.devices.take_back(&given));
            self.take_back(&ask.uid, &before);
        }
        Err(self.misaligned("pod", ask))
    }

    /// CPUs and memory of a pod, or of each of its containers. Whether there is anything among it that it had not had.
    fn assign_whole(&self, book: &mut Book, ask: &PodAsk, hint: Hint) -> Result<bool, AdmitError> {
        if let Some(pool) = &ask.pool {
            let given = book.assign_pool(ask, pool, hint);
            self.count_pool(ask, &given);
            return given.map(|(cpus, memory)| cpus || memory);
        }
        let mut is_new = false;
        for container in &ask.containers {
            let given = book.assign(&ask.uid, container, hint);
            self.count(book, &ask.uid, container, &given);
            let (cpus, memory) = given?;
            is_new |= cpus || memory;
        }
        Ok(is_new)
    }

    /// Devices of all containers of a pod. Whether they lie where they may; once one does not, the others are not asked for.
    async fn give_devices(
        &self,
        ask: &PodAsk,
        hint: Hint,
        tries: usize,
        devices: &mut Vec<mainstay_devices::Given>,
    ) -> Result<bool, AdmitError> {
        for container in &ask.containers {
            let given = self.inner.devices.give_all(container.devices.clone(), hint.nodes).await?;
            let may_lie = self.may_lie(&given, hint, tries);
            devices.push(given);
            if !may_lie {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether devices lie where they may. If not, somebody else took the near ones meanwhile; who needs none that are near has some in the end.
    fn may_lie(&self, given: &mainstay_devices::Given, hint: Hint, tries: usize) -> bool {
        let is_strict =
            matches!(self.inner.topology.policy, TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode);
        let is_near = || hint.nodes.is_none_or(|nodes| self.inner.devices.is_near(given, nodes));
        !hint.preferred || is_near() || (tries >= TRIES && !is_strict)
    }

    fn misaligned(&self, scope: &'static str, ask: &PodAsk) -> AdmitError {
        if self.inner.topology.policy == TopologyPolicy::SingleNumaNode {
            self.inner.counters.pinning.misaligned.of(["numa_node", scope]).add();
        }
        match scope {
            "pod" if ask.pool.is_some() => AdmitError::PodTopology("under pod-scope"),
            "container" if ask.pod_level => AdmitError::PodTopology("with a container-level"),
            _ => AdmitError::Topology,
        }
    }

    /// Counts what a pod was given as a whole, and its containers of it.
    fn count_pool(&self, ask: &PodAsk, given: &Result<(bool, bool), AdmitError>) {
        let counters = &self.inner.counters.pinning;
        let errors = |resource| counters.allocation_errors.of([resource, "pod"]).add();
        let (cpus, memory) = match given {
            Ok(given) => *given,
            Err(AdmitError::Cpus(_)) => {
                counters.cpu_errors.add();
                return errors("cpu");
            }
            Err(_) => {
                counters.memory_requests.add();
                counters.memory_errors.add();
                return errors("memory");
            }
        };
        for container in &ask.containers {
            let each = [
                (cpus, "cpu", container.cpus > 0, &counters.cpu_requests),
                (memory, "memory", !container.memory.is_empty(), &counters.memory_requests),
            ];
            for (_, resource, own, requests) in each.into_iter().filter(|(given, ..)| *given) {
                if own {
                    requests.add();
                }
                let kind = if own { "pod_exclusive" } else { "pod_shared" };
                counters.container_assignments.of([resource, kind]).add();
                counters.allocations.of([resource, "pod"]).add();
            }
        }
    }

    fn count(
        &self,
        book: &Book,
        uid: &str,
        container: &ContainerAsk,
        given: &Result<(bool, bool), AdmitError>,
    ) {
        let counters = &self.inner.counters.pinning;
        if matches!(given, Ok((false, false))) {
            return;
        }
        let asks = [("cpu", container.cpus > 0), ("memory", !container.memory.is_empty())];
        for (resource, _) in asks.into_iter().filter(|(_, asks)| *asks && given.is_ok()) {
            counters.allocations.of([resource, "node"]).add();
            counters.container_assignments.of([resource, "node_exclusive"]).add();
        }
        if container.cpus > 0 {
            counters.cpu_requests.add();
        }
        if !container.memory.is_empty() && !matches!(given, Err(AdmitError::Cpus(_))) {
            counters.memory_requests.add();
        }
        match given {
            Err(AdmitError::Cpus(error)) => {
                counters.allocation_errors.of(["cpu", "node"]).add();
                counters.cpu_errors.add();
                if !matches!(error, mainstay_alloc::AssignError::NotEnough(_)) {
                    counters.misaligned.of(["physical_cpu", "container"]).add();
                }
            }
            Err(AdmitError::Memory(_)) => {
                counters.allocation_errors.of(["memory", "node"]).add();
                counters.memory_errors.add();
            }
            Ok(_) if container.cpus > 0 => {
                let whole_cores = book.cpus.as_ref().is_some_and(Static::takes_whole_cores);
                if whole_cores {
                    counters.aligned.of(["physical_cpu", "container"]).add();
                }
                if book.in_one_cache(uid, &container.name) {
                    counters.aligned.of(["uncore_cache", "container"]).add();
                }
            }
            _ => {}
        }
    }

    /// Where a container is to run now.
    #[must_use]
    pub fn place(&self, uid: &str, container: &str) -> Place {
        self.book().place(uid, container)
    }

    /// Whether some container of the pod has CPUs of its own.
    #[must_use]
    pub fn holds_cpus(&self, uid: &str) -> bool {
        self.inner.given.cpus
            && self.book().cpus.as_ref().is_some_and(|cpus| cpus.entries().contains_key(uid))
    }

    /// Takes back what a pod holds: it has come to rest.
    pub fn release(&self, uid: &PodUid) {
        self.inner.devices.release(uid);
        let held = self.book().release(uid.as_str());
        if held {
            self.changed();
            self.inner.unwritten.notify_one();
        }
    }

    /// Takes back what pods hold of which nobody knows any more.
    pub fn keep_only(&self, is_there: impl Fn(&str) -> bool) {
        self.inner.devices.keep_only(&is_there);
        let held = self.book().keep_only(&is_there);
        if held {
            self.changed();
            self.inner.unwritten.notify_one();
        }
    }

    /// Whether the book has yet to be rebuilt from what runs.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !*self.inner.whole.borrow()
    }

    /// Puts down what containers that run have, where the book does not say: it was lost. From then on pods are let in. How many were put
    /// down. `containers` are all that run: they may hold devices as well.
    pub fn rebuild(&self, running: &[Running], containers: &[(Arc<Pod>, Vec<String>)]) -> usize {
        if self.inner.devices.is_lost() {
            self.inner.devices.rebuild(containers.iter().map(|(pod, names)| (&**pod, names.as_slice())));
        }
        let mut found = 0;
        {
            let mut book = self.book();
            let mut pods: BTreeMap<&str, Vec<&Running>> = BTreeMap::new();
            for it in running {
                pods.entry(it.pod.uid_ref()).or_default().push(it);
            }
            for containers in pods.values() {
                let Some(first) = containers.first() else { continue };
                let ask = PodAsk::of(&first.pod, self.inner.given);
                match &ask.pool {
                    Some(pool) => found += usize::from(book.adopt_pool(&ask, pool, containers)),
                    None => {
                        for it in containers {
                            found += usize::from(book.adopt(&ask, it));
                        }
                    }
                }
            }
        }
        self.inner.whole.send_replace(true);
        self.changed();
        self.inner.unwritten.notify_one();
        found
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.publish();
        self.inner.changes.send_modify(|changes| *changes += 1);
    }

    /// Tells what has changed.
    fn publish(&self) {
        let _turn = self.inner.telling.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the book is looked at: what is told as whole must be so.
        let is_lost = self.is_lost();
        let told = self.book().told();
        self.inner.assignments.send_if_modified(|now| {
            let mut next = Assignments::clone(now);
            next.set_cpus(told.cpus, told.held_cpus, told.pod_cpus);
            next.set_memory(told.memory, told.held_memory, told.pod_memory);
            next.unknown.cpus = is_lost && self.inner.lost.0;
            next.unknown.memory = is_lost && self.inner.lost.1;
            if *next.placement != told.placement {
                next.placement = Arc::new(told.placement);
            }
            let differs = next != **now;
            if differs {
                *now = Arc::new(next);
            }
            differs
        });
    }

    async fn save(&self) -> Result<(), TextError> {
        self.inner.cpu_file.write(|| self.book().cpu_text()).await?;
        self.inner.memory_file.write(|| self.book().memory_text()).await
    }

    async fn save_or_tell(&self) {
        // Nothing is written over what is still to be rebuilt.
        if self.is_lost() {
            return;
        }
        if let Err(error) = self.save().await {
            tracing::warn!(%error, "who holds which CPUs and memory is not on disk; it is tried again with the next change");
        }
    }

    async fn write_when_changed(&self, shutdown: &Shutdown) {
        // Cancel safe: a notification that is not taken is there the next time.
        while shutdown.run_until_signalled(self.inner.unwritten.notified()).await.is_some() {
            self.save_or_tell().await;
        }
        // What changed last.
        self.save_or_tell().await;
    }

    /// CPUs may be taken offline and brought back while mainstay runs.
    async fn follow_cpus(&self, host: &Host, period: Duration, shutdown: &Shutdown) {
        let period = period.max(Duration::from_secs(1));
        while shutdown.run_until_signalled(tokio::time::sleep(period)).await.is_some() {
            // One small file; the rest is read when it says something else.
            let Ok(online) = host.online_cpus() else { continue };
            let online: CpuSet = online.into_iter().collect();
            let before = self.book().machine.all();
            if online == before {
                continue;
            }
            match host.numa_topology() {
                Ok(found) => {
                    tracing::warn!(%before, %online, "other CPUs are online");
                    self.book().set_machine(found);
                    self.changed();
                    self.inner.unwritten.notify_one();
                }
                Err(error) => tracing::warn!(%error, "cannot tell where the machine's CPUs are"),
            }
        }
    }
}
