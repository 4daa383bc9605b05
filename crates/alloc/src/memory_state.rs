//! `memory_manager_state` as text, such that upstream's kubelet and this one read each other's. Written twice, like the file of CPUs.

use std::collections::BTreeMap;

use mainstay_types::fnv1a_32;
use serde::{Deserialize, Serialize};

use crate::{
    Block, MemoryNode, NodeMask, StateError,
    memory::Blocks,
    state::{once, twice},
};

/// Who holds memory of which nodes, as the file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// `None` or `Static`.
    pub policy: String,
    /// What each node has.
    pub nodes: BTreeMap<u32, MemoryNode>,
    /// By pod's UID and container's name.
    pub entries: Blocks,
    /// Memory that pods hold as a whole; what their containers have is part of it.
    pub pods: BTreeMap<String, Vec<Block>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    policy_name: String,
    machine_state: BTreeMap<u32, Node>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Entry>>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pod_entries: BTreeMap<String, PodEntry>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    memory_blocks: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    number_of_assignments: usize,
    memory_map: BTreeMap<String, Table>,
    cells: Vec<u32>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    total: u64,
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    numa_affinity: Vec<u32>,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
}

impl MemoryState {
    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let data = self.data();
        // Older kubelets know of no pods that hold memory as a whole.
        let plain = Data { pod_entries: BTreeMap::new(), ..self.data() };
        let sum = checksum(&plain, "MemoryManagerCheckpoint", false);
        twice(&data, &plain, sum)
    }

    fn data(&self) -> Data {
        let table = |table: &crate::MemoryTable| Table {
            total: table.total,
            system_reserved: table.system_reserved,
            allocatable: table.allocatable,
            reserved: table.reserved,
            free: table.free,
        };
        let node = |node: &MemoryNode| Node {
            number_of_assignments: node.assignments,
            memory_map: node.tables.iter().map(|(kind, it)| (kind.clone(), table(it))).collect(),
            cells: node.cells.iter().collect(),
        };
        let entry = |block: &Block| Entry {
            numa_affinity: block.nodes.iter().collect(),
            kind: block.kind.clone(),
            size: block.bytes,
        };
        let containers = |containers: &BTreeMap<String, Vec<Block>>| -> BTreeMap<String, Vec<Entry>> {
            containers
                .iter()
                .map(|(name, blocks)| (name.clone(), blocks.iter().map(entry).collect()))
                .collect()
        };
        Data {
            policy_name: self.policy.clone(),
            machine_state: self.nodes.iter().map(|(id, it)| (*id, node(it))).collect(),
            entries: self.entries.iter().map(|(uid, it)| (uid.clone(), containers(it))).collect(),
            pod_entries: self
                .pods
                .iter()
                .map(|(uid, blocks)| {
                    (uid.clone(), PodEntry { memory_blocks: blocks.iter().map(entry).collect() })
                })
                .collect(),
        }
    }

    /// Reads a file's text: `data`, or the rest where an older kubelet wrote none.
    ///
    /// # Errors
    /// When it is something else, or not whole.
    pub fn from_text(text: &str) -> Result<Self, StateError> {
        let data: Data = once(text, |data| Ok(sums(data)))?;
        let block = |entry: Entry| Block {
            nodes: entry.numa_affinity.into_iter().collect(),
            kind: entry.kind,
            bytes: entry.size,
        };
        let containers = |containers: BTreeMap<String, Vec<Entry>>| -> BTreeMap<String, Vec<Block>> {
            containers.into_iter().map(|(name, it)| (name, it.into_iter().map(block).collect())).collect()
        };
        let node = |node: Node| MemoryNode {
            assignments: node.number_of_assignments,
            tables: node.memory_map.into_iter().map(|(kind, it)| (kind, it.into())).collect(),
            cells: node.cells.into_iter().collect::<NodeMask>(),
        };
        Ok(Self {
            policy: data.policy_name,
            nodes: data.machine_state.into_iter().map(|(id, it)| (id, node(it))).collect(),
            entries: data.entries.into_iter().map(|(uid, it)| (uid, containers(it))).collect(),
            pods: data
                .pod_entries
                .into_iter()
                .map(|(uid, pod)| (uid, pod.memory_blocks.into_iter().map(block).collect()))
                .collect(),
        })
    }
}

impl From<Table> for crate::MemoryTable {
    fn from(table: Table) -> Self {
        let Table { total, system_reserved, allocatable, reserved, free } = table;
        Self { total, system_reserved, allocatable, reserved, free }
    }
}

/// Sums that a file of an older kubelet may have: of the first version, which knows of no pods, and of the second, each under two names.
fn sums(data: &Data) -> Vec<u32> {
    let of = |name: &str, pods: bool| checksum(data, &format!("MemoryManagerCheckpoint{name}"), pods);
    let mut sums = vec![of("", true), of("V2", true)];
    if data.pod_entries.is_empty() {
        sums.splice(0..0, [of("", false), of("V1", false)]);
    }
    sums
}

/// Over Go's dump of the value.
fn checksum(data: &Data, name: &str, with_pods: bool) -> u32 {
    let list = |nodes: &[u32]| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        format!("[{}]", nodes.join(" "))
    };
    let table = |(kind, it): (&String, &Table)| {
        format!(
            "{kind}:<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
            it.total, it.system_reserved, it.allocatable, it.reserved, it.free
        )
    };
    let map = |parts: Vec<String>| format!("map[{}]", parts.join(" "));
    let node = |(id, it): (&u32, &Node)| {
        format!(
            "{id}:<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){} Cells:([]int){}}}",
            it.number_of_assignments,
            map(it.memory_map.iter().map(table).collect()),
            list(&it.cells)
        )
    };
    let block = |it: &Entry| {
        format!(
            "{{NUMAAffinity:([]int){} Type:(v1.ResourceName){} Size:(uint64){}}}",
            list(&it.numa_affinity),
            it.kind,
            it.size
        )
    };
    let container = |(name, blocks): (&String, &Vec<Entry>)| {
        let blocks: Vec<String> = blocks.iter().map(block).collect();
        format!("{name}:[{}]", blocks.join(" "))
    };
    let pod = |(uid, it): (&String, &BTreeMap<String, Vec<Entry>>)| {
        format!("{uid}:{}", map(it.iter().map(container).collect()))
    };
    let whole = |(uid, it): (&String, &PodEntry)| {
        let blocks: Vec<String> = it.memory_blocks.iter().map(block).collect();
        format!("{uid}:{{MemoryBlocks:([]state.Block)[{}]}}", blocks.join(" "))
    };
    let pods = if with_pods {
        format!(
            " PodEntries:(state.PodMemoryAssignments){}",
            map(data.pod_entries.iter().map(whole).collect())
        )
    } else {
        String::new()
    };
    let dump = format!(
        "(*state.{name}){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} Entries:(state.ContainerMemoryAssignments){}{pods} Checksum:(checksum.Checksum)0}}",
        data.policy_name,
        map(data.machine_state.iter().map(node).collect()),
        map(data.entries.iter().map(pod).collect())
    );
    fnv1a_32(dump.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What upstream's 1.37 wrote.
    const NONE: &str = r#"{"policyName":"None","machineState":{},"checksum":4236770233,"data":"{\"policyName\":\"None\",\"machineState\":{}}","dataChecksum":3093843326}"#;

    #[test]
    fn upstreams_file_is_read_and_written() {
        let state = MemoryState::from_text(NONE).unwrap();
        assert_eq!(state.to_text(), NONE);
        for broken in ["", "{}", "null", &NONE.replace("3093843326", "1"), &NONE.replace("3326}", "")] {
            assert!(MemoryState::from_text(broken).is_err(), "{broken}");
        }
    }

    /// The second version, flat, with pods: the sum is one of upstream's own.
    #[test]
    fn an_older_file_with_pods_is_read() {
        let text = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1278640530}"#;
        let state = MemoryState::from_text(text).unwrap();
        assert_eq!(state.pods["pod"], state.entries["pod"]["container1"]);
        assert!(
            MemoryState::from_text(
                &text.replace("\"size\":512}]}},\"checksum", "\"size\":511}]}},\"checksum")
            )
            .is_err()
        );
        assert_eq!(MemoryState::from_text(&state.to_text()).unwrap(), state);
    }

    #[test]
    fn what_is_held_survives() {
        let table = crate::MemoryTable { total: 9, system_reserved: 1, allocatable: 8, reserved: 3, free: 5 };
        let node = MemoryNode {
            assignments: 1,
            tables: [("memory".to_owned(), table)].into(),
            cells: [0].into_iter().collect(),
        };
        let block = Block { nodes: [0].into_iter().collect(), kind: "memory".into(), bytes: 3 };
        let state = MemoryState {
            policy: "Static".into(),
            nodes: [(0, node)].into(),
            entries: [("u".to_owned(), [("c".to_owned(), vec![block.clone()])].into())].into(),
            pods: [("u".to_owned(), vec![block])].into(),
        };
        let text = state.to_text();
        assert_eq!(MemoryState::from_text(&text).unwrap(), state);
        assert!(
            text.contains(r#""entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":3}]}}"#),
            "{text}"
        );
    }
}
