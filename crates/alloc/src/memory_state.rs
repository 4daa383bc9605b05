//! `memory_manager_state` as text, such that upstream's kubelet and this one read each other's. Written twice, like the file of CPUs.

use std::{collections::BTreeMap, fmt::Write as _};

use mainstay_types::fnv1a_32;
use serde::{Deserialize, Serialize};

use crate::{
    Block, MemoryNode, NodeMask, StateError,
    memory::Blocks,
    state::{check, data_checksum},
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
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    policy_name: String,
    machine_state: BTreeMap<u32, Node>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Entry>>>,
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

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    // Not flattened: keys that are numbers do not survive that.
    policy_name: String,
    machine_state: BTreeMap<u32, Node>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Entry>>>,
    #[serde(default)]
    checksum: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_checksum: Option<u64>,
}

impl MemoryState {
    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let plain = self.data();
        let checksum = checksum(&plain).into();
        // Strings, numbers and maps of them always become JSON.
        let data = serde_json::to_string(&plain).unwrap_or_default();
        let data_checksum = Some(data_checksum(&data).into());
        let Data { policy_name, machine_state, entries } = plain;
        let file = File { policy_name, machine_state, entries, checksum, data: Some(data), data_checksum };
        serde_json::to_string(&file).unwrap_or_default()
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
        }
    }

    /// Reads a file's text: `data`, or the rest where an older kubelet wrote none.
    ///
    /// # Errors
    /// When it is something else, or not whole.
    pub fn from_text(text: &str) -> Result<Self, StateError> {
        let file: File = serde_json::from_str(text)?;
        let data = match (file.data.clone(), file.data_checksum) {
            (None, None) => {
                let File { policy_name, machine_state, entries, checksum: sum, .. } = file;
                let plain = Data { policy_name, machine_state, entries };
                if sum != 0 {
                    check("checksum", sum, checksum(&plain))?;
                }
                plain
            }
            (data, sum) => {
                let data = data.unwrap_or_default();
                check("dataChecksum", sum.unwrap_or_default(), data_checksum(&data))?;
                serde_json::from_str(&data)?
            }
        };
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
        })
    }
}

impl From<Table> for crate::MemoryTable {
    fn from(table: Table) -> Self {
        let Table { total, system_reserved, allocatable, reserved, free } = table;
        Self { total, system_reserved, allocatable, reserved, free }
    }
}

/// Over Go's dump of the value.
fn checksum(data: &Data) -> u32 {
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
    let mut dump = String::from("(*state.MemoryManagerCheckpoint){");
    // Writing to a text cannot fail.
    write!(
        dump,
        "PolicyName:(string){} MachineState:(state.NUMANodeMap){} Entries:(state.ContainerMemoryAssignments){} Checksum:(checksum.Checksum)0}}",
        data.policy_name,
        map(data.machine_state.iter().map(node).collect()),
        map(data.entries.iter().map(pod).collect())
    )
    .ok();
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
            entries: [("u".to_owned(), [("c".to_owned(), vec![block])].into())].into(),
        };
        let text = state.to_text();
        assert_eq!(MemoryState::from_text(&text).unwrap(), state);
        assert!(
            text.contains(r#""entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":3}]}}"#),
            "{text}"
        );
    }
}
