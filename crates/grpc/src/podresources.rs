//! `PodResourcesLister` in both versions, and mainstay's watch of it: who holds which CPUs, memory and devices.

use std::sync::Arc;

use mainstay_podspec::runtime::{exclusive_cpus, pinned_memory};
use mainstay_proto::{podresources::v1, podresources_v1alpha1 as v1alpha1};
use mainstay_snapshot::SnapshotReader;
use mainstay_task::Shutdown;
use mainstay_types::{
    Assignments, ContainerAssignment, ContainerKind, HeldDevice, MemoryBlock, NodeSnapshot, PodExt, PodStage,
    PodUid, PodView, Unknown, UnnamedDevices,
};
use tokio::sync::watch;

use crate::{
    cache::{self, Made, Newest, Same, Version},
    ready,
    wire::{Answer, Code, Status, framed},
};

/// What gates say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    pub(crate) get_allocatable: bool,
    pub(crate) list_active: bool,
}

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct PodResources {
    snapshots: SnapshotReader,
    assignments: watch::Receiver<Arc<Assignments>>,
    switches: Switches,
    lists: Arc<Made<(u64, Same<Assignments>)>>,
    lists_alpha: Arc<Made<(u64, Same<Assignments>)>>,
    allocatables: Arc<Made<Same<Assignments>>>,
}

impl PodResources {
    pub(crate) fn new(
        snapshots: SnapshotReader,
        assignments: watch::Receiver<Arc<Assignments>>,
        switches: Switches,
    ) -> Self {
        Self {
            snapshots,
            assignments,
            switches,
            lists: Arc::default(),
            lists_alpha: Arc::default(),
            allocatables: Arc::default(),
        }
    }

    fn snapshot(&self) -> Result<Arc<NodeSnapshot>, Status> {
        ready::begun(self.snapshots.borrow().as_ref())
    }

    fn newest(&self, snapshot: &NodeSnapshot, assignments: &Arc<Assignments>) -> Version {
        self.lists.get((snapshot.generation, Same(Arc::clone(assignments))), || {
            let all = !self.switches.list_active;
            let pods = snapshot.pods.iter().filter(|view| all || is_active(view));
            framed(&v1::ListPodResourcesResponse {
                pod_resources: pods.map(|view| resources(view, assignments)).collect(),
            })
        })
    }

    /// Who holds what, if all holders are known.
    fn holders(&self) -> Result<Arc<Assignments>, Status> {
        let assignments = self.assignments.borrow().clone();
        known(&assignments.unknown, None)?;
        Ok(assignments)
    }

    pub(crate) fn list(&self) -> Result<Answer, Status> {
        self.snapshot()?;
        let assignments = self.holders()?;
        let snapshot = ready::whole(self.snapshots.borrow().as_ref())?;
        Ok(Answer::One(self.newest(&snapshot, &assignments).bytes))
    }

    pub(crate) fn watch(&self, shutdown: &Shutdown) -> Result<Answer, Status> {
        self.list()?;
        Ok(Answer::Many(self.lists.watch(self.clone(), shutdown)))
    }

    /// Active pods only, whatever the gate says. What is not there is `Unknown`, as upstream answers.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Result<Answer, Status> {
        let snapshot = self.snapshot()?;
        let wanted = |view: &&Arc<PodView>| {
            view.pod.namespace_ref() == namespace && view.pod.name_ref() == name && is_active(view)
        };
        // While one replaces another, the one that stays.
        let mut found: Vec<_> = snapshot.pods.iter().filter(wanted).collect();
        found.sort_by_key(|view| view.pod.metadata.deletion_timestamp.is_some());
        let Some(view) = found.first() else {
            ready::whole(Some(&snapshot))?;
            return Err(Status::new(Code::Unknown, format!("pod {name} in namespace {namespace} not found")));
        };
        let assignments = self.assignments.borrow().clone();
        known(&assignments.unknown, Some(&view.uid))?;
        let pod_resources = Some(resources(view, &assignments));
        Ok(Answer::One(framed(&v1::GetPodResourcesResponse { pod_resources })))
    }

    /// Does not depend on who holds what.
    pub(crate) fn allocatable(&self) -> Result<Answer, Status> {
        if !self.switches.get_allocatable {
            return Err(Status::new(Code::Unknown, "PodResources API GetAllocatableResources disabled"));
        }
        self.snapshot()?;
        let assignments = self.assignments.borrow().clone();
        let made = self.allocatables.get(Same(Arc::clone(&assignments)), || {
            let of = &assignments.allocatable;
            framed(&v1::AllocatableResourcesResponse {
                devices: devices(&of.devices),
                cpu_ids: of.cpus.iter().map(|cpu| i64::from(*cpu)).collect(),
                memory: memory(&of.memory),
            })
        });
        Ok(Answer::One(made.bytes))
    }

    /// Every pod that is known, also a finished one.
    pub(crate) fn list_alpha(&self) -> Result<Answer, Status> {
        self.snapshot()?;
        let assignments = self.holders()?;
        let snapshot = ready::whole(self.snapshots.borrow().as_ref())?;
        let made = self.lists_alpha.get((snapshot.generation, Same(Arc::clone(&assignments))), || {
            let pods = snapshot.pods.iter().map(|view| resources_alpha(view, &assignments));
            framed(&v1alpha1::ListPodResourcesResponse { pod_resources: pods.collect() })
        });
        Ok(Answer::One(made.bytes))
    }
}

impl Newest for PodResources {
    fn now(&mut self) -> Result<Version, Status> {
        let snapshot = ready::whole(self.snapshots.borrow_and_update().as_ref())?;
        let assignments = self.assignments.borrow_and_update().clone();
        known(&assignments.unknown, None)?;
        Ok(self.newest(&snapshot, &assignments))
    }

    async fn changed(&mut self) -> Result<(), Status> {
        // Cancel safe: both only mark a value as seen. Without managers nobody changes assignments.
        tokio::select! {
            changed = self.snapshots.changed() => changed.map_err(|_| cache::ending()),
            Ok(()) = self.assignments.changed() => Ok(()),
        }
    }
}

/// Whether it is known who holds what; of one pod, what that one holds. What is left out would be taken for free.
fn known(unknown: &Unknown, pod: Option<&PodUid>) -> Result<(), Status> {
    let parts = [(unknown.cpus, "CPUs"), (unknown.memory, "memory"), (unknown.devices, "devices")];
    let lost: Vec<_> = parts.into_iter().filter(|(lost, _)| *lost).map(|(_, what)| what).collect();
    if !lost.is_empty() {
        let what = lost.join(" and ");
        return Err(Status::new(
            Code::FailedPrecondition,
            format!(
                "who holds {what} is not known: the file that said so was lost, and it waits to be looked up from the containers that run"
            ),
        ));
    }
    let Some(first) = unknown.unnamed.iter().find(|it| pod.is_none_or(|pod| it.pod == *pod)) else {
        return Ok(());
    };
    let UnnamedDevices { pod, container, resource } = first;
    Err(Status::new(
        Code::FailedPrecondition,
        format!(
            "container {container} of pod {pod} holds devices of {resource}, and the file that said which was lost; it is waited for its end"
        ),
    ))
}

/// Pending, running, or still stopping; not one that is over or was never let in. One that has run to its end is not there again while it is
/// being cleaned up: only what still runs is still stopping.
fn is_active(view: &PodView) -> bool {
    let phase = view.status.phase.as_deref();
    let terminal = matches!(phase, Some("Succeeded" | "Failed"));
    let lists = [&view.status.init_container_statuses, &view.status.container_statuses];
    let mut states = lists.into_iter().flatten().flatten().filter_map(|status| status.state.as_ref());
    let stops = view.stage == PodStage::Terminating && states.any(|state| state.running.is_some());
    view.stage != PodStage::Terminated && (!terminal || stops)
}

fn resources(view: &PodView, assignments: &Assignments) -> v1::PodResources {
    let held = assignments.pods.get(&view.uid);
    let kinds = [ContainerKind::Sidecar, ContainerKind::Regular];
    let containers = view.pod.all_containers().filter(|(kind, _)| kinds.contains(kind));
    let nothing = ContainerAssignment::default();
    v1::PodResources {
        name: view.pod.name_ref().to_owned(),
        namespace: view.pod.namespace_ref().to_owned(),
        containers: containers
            .map(|(_, container)| {
                let own =
                    held.and_then(|pod| pod.containers.get(container.name.as_str())).unwrap_or(&nothing);
                // Of what the pod has as a whole, only what the container has to itself.
                let has_cpus = held.is_none_or(|pod| pod.cpus.is_empty())
                    || exclusive_cpus(&view.pod, container, true) > 0;
                let has_memory = held.is_none_or(|pod| pod.memory.is_empty())
                    || !pinned_memory(&view.pod, container, true).is_empty();
                v1::ContainerResources {
                    name: container.name.clone(),
                    devices: devices(&own.devices),
                    cpu_ids: own.cpus.iter().filter(|_| has_cpus).map(|cpu| i64::from(*cpu)).collect(),
                    memory: if has_memory { memory(&own.memory) } else { Vec::new() },
                    dynamic_resources: Vec::new(),
                }
            })
            .collect(),
        cpu_ids: held.into_iter().flat_map(|pod| &pod.cpus).map(|cpu| i64::from(*cpu)).collect(),
        memory: held.map(|pod| memory(&pod.memory)).unwrap_or_default(),
    }
}

fn resources_alpha(view: &PodView, assignments: &Assignments) -> v1alpha1::PodResources {
    let held = assignments.pods.get(&view.uid);
    let containers = view.pod.all_containers().filter(|(kind, _)| *kind == ContainerKind::Regular);
    v1alpha1::PodResources {
        name: view.pod.name_ref().to_owned(),
        namespace: view.pod.namespace_ref().to_owned(),
        containers: containers
            .map(|(_, container)| {
                let held = held.and_then(|pod| pod.containers.get(container.name.as_str()));
                let devices = held.into_iter().flat_map(|held| &held.devices);
                v1alpha1::ContainerResources {
                    name: container.name.clone(),
                    devices: devices
                        .map(|device| v1alpha1::ContainerDevices {
                            resource_name: device.resource.to_string(),
                            device_ids: vec![device.id.to_string()],
                        })
                        .collect(),
                }
            })
            .collect(),
    }
}

/// One entry for each device and node; one without topology for a device of no node.
fn devices(held: &[HeldDevice]) -> Vec<v1::ContainerDevices> {
    let entry = |device: &HeldDevice, topology| v1::ContainerDevices {
        resource_name: device.resource.to_string(),
        device_ids: vec![device.id.to_string()],
        topology,
    };
    held.iter()
        .flat_map(|device| {
            let mut entries: Vec<_> =
                device.nodes.iter().map(|node| entry(device, Some(topology(&[*node])))).collect();
            if entries.is_empty() {
                entries.push(entry(device, None));
            }
            entries
        })
        .collect()
}

fn memory(blocks: &[MemoryBlock]) -> Vec<v1::ContainerMemory> {
    blocks
        .iter()
        .map(|block| v1::ContainerMemory {
            memory_type: block.kind.to_string(),
            size: block.bytes,
            topology: Some(topology(&block.nodes)),
        })
        .collect()
}

fn topology(nodes: &[u32]) -> v1::TopologyInfo {
    v1::TopologyInfo { nodes: nodes.iter().map(|node| v1::NumaNode { id: i64::from(*node) }).collect() }
}
