//! `/mainstay/v1/resources`: which CPUs, memory and devices there are, and who holds them.

use std::collections::{BTreeMap, HashMap};

use mainstay_types::{Assignments, ContainerAssignment, CpuPlace, HeldDevice, NodeSnapshot, PodUid, Unknown};
use serde::Serialize;

use crate::{
    answer::{self, Answer},
    local_api::json,
    route::App,
};

pub(crate) fn resources(app: &App) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let assignments = app.state.assignments.borrow().clone();
    json(&Resources {
        devices: devices(&snapshot, &assignments),
        cpus: cpus(&snapshot, &assignments),
        memory: memory(&snapshot, &assignments),
        unknown: unknown(&snapshot, &assignments.unknown),
    })
}

#[derive(Serialize)]
struct Resources {
    devices: Vec<Device>,
    cpus: Vec<Cpu>,
    memory: Vec<Memory>,
    unknown: NotKnown,
}

/// Of what the holders are not known: nothing, but after a state file was lost. What has no holder above may be held all the same.
#[derive(Serialize)]
struct NotKnown {
    cpus: bool,
    memory: bool,
    devices: bool,
    unnamed: Vec<Unnamed>,
}

/// A container that holds devices of a resource, and nobody can name which.
#[derive(Serialize)]
struct Unnamed {
    resource: String,
    holder: Holder,
}

/// A CPU that is online.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    cpu: u32,
    core: u32,
    socket: u32,
    numa_node: u32,
    /// `Exclusive`, `Reserved`, `Shared`; `Unmanaged` where CPUs are not given out.
    state: &'static str,
    holders: Vec<Holder>,
}

/// Memory of one type on one NUMA node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    numa_node: u32,
    #[serde(rename = "type")]
    kind: String,
    bytes: u64,
    system_reserved_bytes: u64,
    allocatable_bytes: u64,
    held_bytes: u64,
    /// `Static`, or `Unmanaged` where memory is not given out.
    state: &'static str,
    blocks: Vec<HeldBlock>,
}

/// Memory that a container holds, on these nodes together.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeldBlock {
    bytes: u64,
    numa_nodes: Vec<u32>,
    holder: Holder,
}

/// A device: a healthy one, or one that is held. One that two containers of a pod hold one after the other is there twice.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    resource: String,
    id: String,
    numa_nodes: Vec<u32>,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Holder>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
}

fn holder(snapshot: &NodeSnapshot, uid: &PodUid, container: &str) -> Holder {
    let view = snapshot.by_uid(uid.as_str());
    Holder {
        namespace: view.map(|view| view.full_name.namespace.to_string()).unwrap_or_default(),
        pod: view.map(|view| view.full_name.name.to_string()).unwrap_or_default(),
        uid: uid.as_str().to_owned(),
        container: container.to_owned(),
    }
}

fn unknown(snapshot: &NodeSnapshot, unknown: &Unknown) -> NotKnown {
    let Unknown { cpus, memory, devices, ref unnamed } = *unknown;
    let unnamed = unnamed.iter().map(|it| Unnamed {
        resource: it.resource.to_string(),
        holder: holder(snapshot, &it.pod, &it.container),
    });
    NotKnown { cpus, memory, devices, unnamed: unnamed.collect() }
}

/// What containers hold, pods in the order of their UIDs.
fn containers(assignments: &Assignments) -> impl Iterator<Item = (&PodUid, &str, &ContainerAssignment)> {
    let mut pods: Vec<_> = assignments.pods.iter().collect();
    pods.sort_unstable_by_key(|(uid, _)| *uid);
    pods.into_iter()
        .flat_map(|(uid, pod)| pod.containers.iter().map(move |(name, held)| (uid, &**name, held)))
}

fn cpus(snapshot: &NodeSnapshot, assignments: &Assignments) -> Vec<Cpu> {
    let placement = &assignments.placement;
    let entry = |(cpu, place): (&u32, &CpuPlace)| {
        let holders: Vec<Holder> = containers(assignments)
            .filter(|(_, _, held)| held.cpus.contains(cpu))
            .map(|(uid, name, _)| holder(snapshot, uid, name))
            .collect();
        let state = match () {
            () if !placement.pins_cpus => "Unmanaged",
            () if !holders.is_empty() => "Exclusive",
            () if placement.reserved.contains(cpu) => "Reserved",
            () => "Shared",
        };
        let CpuPlace { core, socket, node, .. } = *place;
        Cpu { cpu: *cpu, core, socket, numa_node: node, state, holders }
    };
    placement.cpus.iter().map(entry).collect()
}

fn memory(snapshot: &NodeSnapshot, assignments: &Assignments) -> Vec<Memory> {
    let placement = &assignments.placement;
    let mut all = Vec::new();
    for (node, kinds) in &placement.memory {
        for (kind, amounts) in kinds {
            let held = containers(assignments).flat_map(|(uid, name, held)| {
                let blocks =
                    held.memory.iter().filter(|block| block.kind == *kind && block.nodes.contains(node));
                blocks.map(move |block| HeldBlock {
                    bytes: block.bytes,
                    numa_nodes: block.nodes.clone(),
                    holder: holder(snapshot, uid, name),
                })
            });
            all.push(Memory {
                numa_node: *node,
                kind: kind.to_string(),
                bytes: amounts.total,
                system_reserved_bytes: amounts.system_reserved,
                allocatable_bytes: amounts.allocatable,
                held_bytes: amounts.held,
                state: if placement.pins_memory { "Static" } else { "Unmanaged" },
                blocks: held.collect(),
            });
        }
    }
    all
}

/// By resource and ID.
fn devices(snapshot: &NodeSnapshot, assignments: &Assignments) -> Vec<Device> {
    type Key<'a> = (&'a str, &'a str);
    fn key(device: &HeldDevice) -> Key<'_> {
        (&device.resource, &device.id)
    }
    let healthy: HashMap<Key<'_>, &HeldDevice> =
        assignments.allocatable.devices.iter().map(|device| (key(device), device)).collect();
    let entry = |device: &HeldDevice, holder| Device {
        resource: device.resource.to_string(),
        id: device.id.to_string(),
        numa_nodes: device.nodes.clone(),
        healthy: healthy.contains_key(&key(device)),
        holder,
    };
    let mut all: BTreeMap<(Key<'_>, String), Device> = BTreeMap::new();
    let mut held = Vec::new();
    for (uid, pod) in &assignments.pods {
        for (container, assignment) in &pod.containers {
            for device in &assignment.devices {
                let holder = holder(snapshot, uid, container);
                held.push(key(device));
                let place = format!("{uid}/{container}");
                all.insert((key(device), place), entry(device, Some(holder)));
            }
        }
    }
    held.sort_unstable();
    for (key, device) in &healthy {
        if held.binary_search(key).is_err() {
            all.insert((*key, String::new()), entry(device, None));
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_types::{ObservedState, UnnamedDevices};

    use super::*;

    #[test]
    fn who_is_not_known_is_told_of() {
        let node =
            NodeSnapshot::new(1, "n".into(), Vec::new(), Arc::default(), Arc::new(ObservedState::unread()));
        let told = |of: &Unknown| serde_json::to_value(unknown(&node, of)).unwrap();
        let nothing = serde_json::json!({"cpus": false, "memory": false, "devices": false, "unnamed": []});
        assert_eq!(told(&Unknown::default()), nothing);
        let unnamed = UnnamedDevices { pod: "uid".into(), container: "c".into(), resource: "a.com/x".into() };
        let some = Unknown { cpus: true, unnamed: vec![unnamed], ..Unknown::default() };
        let holder = serde_json::json!({"namespace": "", "pod": "", "uid": "uid", "container": "c"});
        assert_eq!(
            told(&some),
            serde_json::json!({
                "cpus": true, "memory": false, "devices": false,
                "unnamed": [{"resource": "a.com/x", "holder": holder}],
            })
        );
    }
}
