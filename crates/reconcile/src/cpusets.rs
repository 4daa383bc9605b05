//! The CPUs that containers run on: given when they are made, and changed when what is shared becomes less or more.
//!
//! One task, `cpusets`: at every change of who holds which CPUs, and each period, it looks whether each container that runs was last told the
//! CPUs that it should be told, and tells it. What a life before this one told is not known: everybody is told once.

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_alloc::{CpuSet, NodeMask};
use mainstay_resources::Running;
use mainstay_task::TaskGroup;
use mainstay_types::{
    ContainerId, ContainerName, ContainerPhase, ObservedState, Outcomes, PodExt as _, PodStage, PodUid,
};
use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use crate::{cgroups::Cgroups, worker::Shared};

/// So many containers are told their CPUs at a time.
const AT_ONCE: usize = 16;

/// Which CPUs containers were last told to run on.
#[derive(Debug)]
pub(crate) struct Applied {
    told: Mutex<Told>,
    turns: Semaphore,
}

#[derive(Debug, Default)]
struct Told {
    cpus: HashMap<ContainerId, String>,
    /// Those that are being told.
    busy: HashSet<ContainerId>,
}

impl Default for Applied {
    fn default() -> Self {
        Self { told: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Applied {
    /// It was told these.
    pub(crate) fn note(&self, id: &ContainerId, cpus: &str) {
        if !cpus.is_empty() {
            self.told().cpus.insert(id.clone(), cpus.to_owned());
        }
    }

    fn is(&self, id: &ContainerId, cpus: &str) -> bool {
        self.told().cpus.get(id).is_some_and(|last| last == cpus)
    }

    /// Whether nobody was telling it; from now on somebody is.
    fn begin(&self, id: &ContainerId) -> bool {
        self.told().busy.insert(id.clone())
    }

    fn end(&self, id: &ContainerId) {
        self.told().busy.remove(id);
    }

    fn retain(&self, known: impl Fn(&ContainerId) -> bool) {
        self.told().cpus.retain(|id, _| known(id));
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a container is to be told its CPUs: they are others than it was told last.
fn is_behind(shared: &Shared, uid: &PodUid, name: &str, id: &ContainerId) -> Option<String> {
    let cpus = shared.config.resources.place(uid.as_str(), name).cpus;
    (!cpus.is_empty() && !shared.cpusets.is(id, &cpus)).then_some(cpus)
}

/// Tells a container its CPUs if they are others than it was told last, and once more if they have become others meanwhile.
pub(crate) async fn follow(shared: &Shared, uid: &PodUid, name: &str, id: &ContainerId) {
    while let Some(cpus) = is_behind(shared, uid, name, id) {
        match shared.config.cri.update_container_cpus(id.as_str(), &cpus).await {
            Ok(()) => {
                info!(pod.uid = %uid, container = name, cpus, "the container runs on other CPUs");
                shared.cpusets.note(id, &cpus);
            }
            Err(error) => {
                warn!(pod.uid = %uid, container = name, cpus, %error, "cannot tell the container its CPUs; trying again");
                return;
            }
        }
    }
}

/// Starts the task.
pub(crate) fn start(
    shared: Arc<Shared>,
    mut observed: watch::Receiver<Arc<ObservedState>>,
    outcomes: watch::Receiver<Outcomes>,
    tasks: &TaskGroup,
) {
    let (shutdown, tellers) = (tasks.shutdown(), tasks.clone());
    tasks.spawn_critical("cpusets", async move {
        let keep = async {
            // Before that nobody is known.
            if observed.wait_for(|observed| observed.listed_at.is_some()).await.is_err() {
                return;
            }
            let mut changes = shared.config.resources.changes();
            loop {
                changes.mark_unchanged();
                look(&shared, &observed, &outcomes, &tellers);
                // Cancel safe: both only wait.
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(shared.config.cpusets_period) => {}
                }
            }
        };
        shutdown.run_until_signalled(keep).await;
    });
}

/// Each container is told by a task of its own: one that the runtime does not update holds up no other.
fn look(
    shared: &Arc<Shared>,
    observed: &watch::Receiver<Arc<ObservedState>>,
    outcomes: &watch::Receiver<Outcomes>,
    tasks: &TaskGroup,
) {
    // What is not known yet is put right with the next look.
    if shared.config.resources.is_lost() {
        return;
    }
    let observed = observed.borrow().clone();
    let outcomes = outcomes.borrow().clone();
    for (uid, outcome) in outcomes.pods.iter() {
        if !matches!(outcome.stage, PodStage::Syncing | PodStage::Terminating) {
            continue;
        }
        let containers = observed.pods.get(uid).into_iter().flat_map(|pod| &pod.containers);
        for it in containers.filter(|it| it.phase == ContainerPhase::Running) {
            if is_behind(shared, uid, it.name.as_str(), &it.id).is_none() || !shared.cpusets.begin(&it.id) {
                continue;
            }
            let (shared, uid, name, id) = (Arc::clone(shared), uid.clone(), it.name.clone(), it.id.clone());
            let shutdown = tasks.shutdown();
            tasks.spawn("cpuset of a container", async move {
                let tell = async {
                    // Nobody closes it.
                    let _turn = shared.cpusets.turns.acquire().await;
                    follow(&shared, &uid, name.as_str(), &id).await;
                };
                shutdown.run_until_signalled(tell).await;
                shared.cpusets.end(&id);
            });
        }
    }
    let mut known: Vec<&ContainerId> =
        observed.pods.values().flat_map(|pod| &pod.containers).map(|it| &it.id).collect();
    known.sort_unstable();
    // One that was made after that reading is told once more than needed.
    shared.cpusets.retain(|id| known.binary_search(&id).is_ok());
}

/// Containers that run.
pub(crate) type Runs = Vec<(ContainerId, ContainerName)>;

/// Looks up from the cgroups of containers that run which CPUs and NUMA nodes they have: the files that said so were lost.
pub(crate) async fn look_up(shared: Arc<Shared>, pods: Vec<(Arc<Pod>, Runs)>) {
    let cgroups = shared.config.cgroups.clone();
    let names = |runs: &Runs| runs.iter().map(|(_, name)| name.as_str().to_owned()).collect();
    let all: Vec<(Arc<Pod>, Vec<String>)> =
        pods.iter().map(|(pod, runs)| (Arc::clone(pod), names(runs))).collect();
    let found = tokio::task::spawn_blocking(move || {
        let Some(cgroups) = cgroups else { return Vec::new() };
        let containers = pods.iter().flat_map(|(pod, runs)| runs.iter().map(move |run| (pod, run)));
        let found = containers.filter_map(|(pod, (id, name))| {
            let (cpus, nodes) = cpuset(&cgroups, pod, id)?;
            Some(Running { pod: Arc::clone(pod), container: name.as_str().to_owned(), cpus, nodes })
        });
        found.collect()
    });
    // Without an answer nothing is held; pods must not wait for it for ever.
    let found = match found.await {
        Ok(found) => found,
        Err(error) => {
            warn!(%error, "cannot look up which CPUs containers have");
            Vec::new()
        }
    };
    let count = shared.config.resources.rebuild(&found, &all);
    info!(count, "who holds which CPUs and memory was looked up from the containers that run");
}

/// A container's CPUs and NUMA nodes, by the kernel. Its cgroup lies in its pod's and is called by its ID, with more around it where systemd
/// makes it.
fn cpuset(cgroups: &Cgroups, pod: &Pod, id: &ContainerId) -> Option<(CpuSet, NodeMask)> {
    let tree = cgroups.tree();
    tree.names().pods(&PodUid::from(pod.uid_ref())).into_iter().find_map(|path| {
        let directory = tree.hierarchy().directory_of("cpuset", &path)?;
        let entries = fs::read_dir(directory).ok()?;
        let own =
            entries.flatten().find(|entry| entry.file_name().to_string_lossy().contains(id.as_str()))?;
        let read =
            |file: &str| fs::read_to_string(own.path().join(file)).unwrap_or_default().trim().to_owned();
        let nodes: CpuSet = read("cpuset.mems").parse().unwrap_or_default();
        Some((read("cpuset.cpus").parse().ok()?, nodes.iter().collect()))
    })
}
