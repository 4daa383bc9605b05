//! The static memory policy: which NUMA nodes a container's memory is counted on.
//!
//! The rules are upstream's (`pkg/kubelet/cm/memorymanager/policy_static.go` of 1.37): a node that serves single-node allocations joins no group of nodes and
//! the other way round, and a group serves only those who ask for just that group. What an init container holds is left to those after it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Hint, Hints, NodeMask, Part, Use,
    static_policy::put,
    topology::{best_of, prefer},
};

/// `memory` or `hugepages-2Mi` and the like, with bytes.
pub type Bytes = BTreeMap<String, u64>;

/// How much of one type a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    /// All of it.
    pub total: u64,
    /// Kept for the system.
    pub system_reserved: u64,
    /// What pods may have.
    pub allocatable: u64,
    /// What they have.
    pub reserved: u64,
    /// What they have not.
    pub free: u64,
}

/// What a node has, and with which others it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// How many blocks it serves.
    pub assignments: usize,
    /// By type.
    pub tables: BTreeMap<String, MemoryTable>,
    /// The group that it is in, itself among it.
    pub cells: NodeMask,
}

/// Memory of one type on some nodes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The nodes.
    pub nodes: NodeMask,
    /// `memory` or `hugepages-2Mi` and the like.
    pub kind: String,
    /// On all of them together.
    pub bytes: u64,
}

/// By pod's UID and container's name.
pub(crate) type Blocks = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// Why a container's memory cannot be placed; upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Nothing would be left of a pod's memory for those that share it. Upstream's reason is `EmptyPodSharedPoolError`.
    #[error(
        "pod rejected, sum of exclusive container {0} requests equals pod budget, leaving no memory for shared containers"
    )]
    NothingShared(String),
    /// The same for an init container.
    #[error("pod rejected, pod has shared init containers but no {0} available for them")]
    NothingForInit(String),
    /// No nodes have so much.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoNodes,
    /// Those that have are not as few as could be, and only that would do.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    /// No larger group has so much.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    /// The larger group is not as small as could be, and only that would do.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtensionNotPreferred,
    /// The nodes serve others in other groups.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violates,
}

/// What a machine's nodes have, before anything is given out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMachine {
    /// By node: all of its memory, and what is kept for the system, by type. What huge pages take of a node's memory no pod has.
    pub nodes: BTreeMap<u32, BTreeMap<String, (u64, u64)>>,
}

impl MemoryMachine {
    fn tables(&self) -> BTreeMap<u32, MemoryNode> {
        let node = |(node, types): (&u32, &BTreeMap<String, (u64, u64)>)| {
            let huge: u64 =
                types.iter().filter(|(kind, _)| *kind != "memory").map(|(_, (total, _))| *total).sum();
            let table = |(kind, (total, system_reserved)): (&String, &(u64, u64))| {
                let mut allocatable = total.saturating_sub(*system_reserved);
                if kind == "memory" {
                    allocatable = allocatable.saturating_sub(huge);
                }
                let table = MemoryTable {
                    total: *total,
                    system_reserved: *system_reserved,
                    allocatable,
                    reserved: 0,
                    free: allocatable,
                };
                (kind.clone(), table)
            };
            let tables = types.iter().map(table).collect();
            (*node, MemoryNode { assignments: 0, tables, cells: [*node].into_iter().collect() })
        };
        self.nodes.iter().map(node).collect()
    }
}

/// What a pod's init containers leave to those after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Passing {
    bytes: BTreeMap<(NodeMask, String), u64>,
    containers: BTreeSet<String>,
}

/// What one pod holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    containers: Option<BTreeMap<String, Vec<Block>>>,
    pool: Option<Vec<Block>>,
    passing: Option<Passing>,
}

/// Who holds memory of which nodes.
#[derive(Clone, Debug)]
pub struct MemoryStatic {
    machine: MemoryMachine,
    nodes: BTreeMap<u32, MemoryNode>,
    entries: Blocks,
    /// What pods hold as a whole; what their containers have is part of it.
    pools: BTreeMap<String, Vec<Block>>,
    passing: BTreeMap<String, Passing>,
}

impl MemoryStatic {
    /// A machine of which nobody holds anything.
    #[must_use]
    pub fn new(machine: MemoryMachine) -> Self {
        let (pools, passing) = (BTreeMap::new(), BTreeMap::new());
        Self { nodes: machine.tables(), machine, entries: Blocks::new(), pools, passing }
    }

    /// The same with what was given out before. What cannot be so any more is left out and told of in a sentence each.
    #[must_use]
    pub fn restore(
        machine: MemoryMachine,
        entries: &Blocks,
        pools: &BTreeMap<String, Vec<Block>>,
    ) -> (Self, Vec<String>) {
        let mut this = Self::new(machine);
        let mut problems = Vec::new();
        for (uid, blocks) in pools {
            if let Some(block) = blocks.iter().find(|block| !this.can_hold(block)) {
                problems.push(format!(
                    "pod {uid} held {} bytes of {} on NUMA nodes {:?}, which this machine does not have",
                    block.bytes, block.kind, block.nodes
                ));
                continue;
            }
            for block in blocks {
                this.reserve(block.nodes, &block.kind, block.bytes);
            }
            this.pools.insert(uid.clone(), blocks.clone());
        }
        for (uid, containers) in entries {
            for (name, blocks) in containers {
                if this.pools.contains_key(uid) {
                    // Part of what the pod holds as a whole.
                    this.entries.entry(uid.clone()).or_default().insert(name.clone(), blocks.clone());
                    continue;
                }
                let mut wrong = blocks.iter().filter(|block| !this.can_hold(block));
                if let Some(block) = wrong.next() {
                    problems.push(format!(
                        "container {name} of pod {uid} held {} bytes of {} on NUMA nodes {:?}, which this machine does not have",
                        block.bytes, block.kind, block.nodes
                    ));
                    continue;
                }
                for block in blocks {
                    this.reserve(block.nodes, &block.kind, block.bytes);
                }
                this.entries.entry(uid.clone()).or_default().insert(name.clone(), blocks.clone());
            }
        }
        (this, problems)
    }

    fn can_hold(&self, block: &Block) -> bool {
        let known = block
            .nodes
            .iter()
            .all(|node| self.nodes.get(&node).is_some_and(|node| node.tables.contains_key(&block.kind)));
        !block.nodes.is_empty()
            && known
            && self.sum(block.nodes, &block.kind, |table| table.free) >= block.bytes
    }

    /// The nodes as they are now.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<u32, MemoryNode> {
        &self.nodes
    }

    /// Who holds what.
    #[must_use]
    pub fn entries(&self) -> &Blocks {
        &self.entries
    }

    /// A container's own.
    #[must_use]
    pub fn of(&self, uid: &str, container: &str) -> Option<&[Block]> {
        self.entries.get(uid)?.get(container).map(Vec::as_slice)
    }

    /// What pods hold as a whole.
    #[must_use]
    pub fn pools(&self) -> &BTreeMap<String, Vec<Block>> {
        &self.pools
    }

    /// The same for all containers of a pod together; what they hold already is part of it.
    #[must_use]
    pub fn pod_hints(&self, uid: &str, bytes: &Bytes) -> Vec<Hints> {
        let asked = asked(bytes);
        let held: Vec<&Block> = match self.pools.get(uid) {
            Some(pool) => pool.iter().collect(),
            None => self.entries.get(uid).into_iter().flat_map(BTreeMap::values).flatten().collect(),
        };
        let hints = self.possible_with(&asked, &|nodes, kind| {
            let mut own = held.iter().filter(|block| block.kind == kind);
            let all_near = own.clone().all(|block| block.nodes.is_within(nodes));
            if all_near {
                own.try_fold(self.left(uid, nodes, kind), |sum, block| sum.checked_add(block.bytes))
            } else {
                None
            }
        });
        asked.iter().map(|_| Some(hints.clone())).collect()
    }

    /// Whether a pod's memory is enough for those of its containers that share it.
    ///
    /// # Errors
    /// Which of them would have none.
    pub fn check_pool(total: &Bytes, parts: &[Part<Bytes>]) -> Result<(), MemoryError> {
        for (kind, total) in asked(total) {
            let (mut lasting, mut shared) = (0_u64, false);
            for part in parts {
                let own = part.own.get(kind).copied().unwrap_or(0);
                match (part.passes, part.own.is_empty()) {
                    (true, true) if lasting >= total => {
                        return Err(MemoryError::NothingForInit(kind.to_owned()));
                    }
                    (true, _) => {}
                    (false, true) => shared = true,
                    (false, false) => lasting = lasting.saturating_add(own),
                }
            }
            if shared && lasting >= total {
                return Err(MemoryError::NothingShared(kind.to_owned()));
            }
        }
        Ok(())
    }

    /// Places a pod's memory as a whole, and of it what its containers have to themselves; the others share what is left. Nothing changes for one
    /// that has been placed. Whether it was placed.
    ///
    /// # Errors
    /// When it cannot be placed; nothing is changed then.
    pub fn assign_pool(
        &mut self,
        uid: &str,
        total: &Bytes,
        parts: &[Part<Bytes>],
        hint: Hint,
    ) -> Result<bool, MemoryError> {
        let asked = asked(total);
        if asked.is_empty() || self.pools.contains_key(uid) {
            return Ok(false);
        }
        Self::check_pool(total, parts)?;
        let nodes = self.settle(uid, &asked, hint)?;
        let blocks = |bytes: &Bytes| -> Vec<Block> {
            let some = bytes.iter().filter(|(_, bytes)| **bytes > 0);
            some.map(|(kind, bytes)| Block { nodes, kind: kind.clone(), bytes: *bytes }).collect()
        };
        let mut left: Bytes = asked.iter().map(|(kind, bytes)| ((*kind).to_owned(), *bytes)).collect();
        let mut own: BTreeMap<String, Vec<Block>> = BTreeMap::new();
        for part in parts {
            if part.own.is_empty() {
                if part.passes {
                    own.insert(part.name.clone(), blocks(&left));
                }
                continue;
            }
            own.insert(part.name.clone(), blocks(&part.own));
            if !part.passes {
                for (kind, bytes) in &mut left {
                    *bytes = bytes.saturating_sub(part.own.get(kind).copied().unwrap_or(0));
                }
            }
        }
        for part in parts {
            own.entry(part.name.clone()).or_insert_with(|| blocks(&left));
        }
        let pool: Vec<Block> =
            blocks(&asked.iter().map(|(kind, bytes)| ((*kind).to_owned(), *bytes)).collect());
        for block in &pool {
            self.reserve(nodes, &block.kind, block.bytes);
        }
        self.entries.insert(uid.to_owned(), own);
        self.pools.insert(uid.to_owned(), pool);
        Ok(true)
    }

    /// From which sets of nodes a container could be given so much, for the topology manager; one list for each type.
    #[must_use]
    pub fn hints(&self, uid: &str, container: &str, bytes: &Bytes) -> Vec<Hints> {
        let asked = asked(bytes);
        if asked.is_empty() {
            return Vec::new();
        }
        if let Some(held) = self.of(uid, container) {
            // What it has it keeps; what it has of another size cannot be kept.
            let same =
                held.len() == asked.len() && held.iter().all(|block| asked.contains_key(block.kind.as_str()));
            let hint = |block: &Block| Some(vec![Hint { nodes: Some(block.nodes), preferred: true }]);
            return if same { held.iter().map(hint).collect() } else { vec![Some(Vec::new())] };
        }
        let hints = self.possible(uid, &asked);
        asked.iter().map(|_| Some(hints.clone())).collect()
    }

    /// Places a container's memory; where it is already, if it is. `hint` is what the topology manager chose.
    ///
    /// # Errors
    /// When it cannot be placed; nothing is changed then.
    pub fn assign(
        &mut self,
        uid: &str,
        container: &str,
        bytes: &Bytes,
        of: Use,
        hint: Hint,
    ) -> Result<(), MemoryError> {
        let asked = asked(bytes);
        if asked.is_empty() || self.of(uid, container).is_some() {
            return Ok(());
        }
        let nodes = self.settle(uid, &asked, hint)?;
        let mut blocks = Vec::new();
        for (kind, bytes) in asked {
            let left = self.left(uid, nodes, kind).min(bytes);
            self.reserve(nodes, kind, bytes - left);
            self.shrink(uid, nodes, kind, left);
            let key = (nodes, kind.to_owned());
            let passing = self.passing.entry(uid.to_owned()).or_default();
            let left = passing.bytes.entry(key).or_default();
            match of {
                Use::Passing => {
                    *left = (*left).max(bytes);
                    passing.containers.insert(container.to_owned());
                }
                Use::Lasting => *left = left.saturating_sub(bytes),
            }
            blocks.push(Block { nodes, kind: kind.to_owned(), bytes });
        }
        self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), blocks);
        Ok(())
    }

    /// The nodes that a pod's memory is placed on, by what the topology manager chose.
    fn settle(&self, uid: &str, asked: &BTreeMap<&str, u64>, hint: Hint) -> Result<NodeMask, MemoryError> {
        let mut best = match hint.nodes {
            Some(_) => hint,
            None => {
                let own = best_of(&self.possible(uid, asked)).ok_or(MemoryError::NoNodes)?;
                if hint.preferred && !own.preferred {
                    return Err(MemoryError::NotPreferred);
                }
                own
            }
        };
        let mut nodes = best.nodes.unwrap_or_default();
        if asked.iter().any(|(kind, bytes)| {
            self.sum(nodes, kind, |table| table.free) + self.left(uid, nodes, kind) < *bytes
        }) {
            let larger: Vec<Hint> = self.possible(uid, asked);
            let larger: Vec<Hint> =
                larger.into_iter().filter(|it| it.nodes.is_some_and(|it| nodes.is_within(it))).collect();
            let extended = best_of(&larger).ok_or(MemoryError::NoExtension)?;
            if best.preferred && !extended.preferred {
                return Err(MemoryError::ExtensionNotPreferred);
            }
            best = extended;
            nodes = best.nodes.unwrap_or_default();
        }
        if nodes.len() > 1 && !self.may_group(nodes) {
            return Err(MemoryError::Violates);
        }
        Ok(nodes)
    }

    /// What a pod holds now, for [`Self::put_back`].
    #[must_use]
    pub fn held(&self, uid: &str) -> PodMemory {
        PodMemory {
            containers: self.entries.get(uid).cloned(),
            pool: self.pools.get(uid).cloned(),
            passing: self.passing.get(uid).cloned(),
        }
    }

    /// Takes back what a pod was given since. Whether that was anything.
    pub fn put_back(&mut self, uid: &str, held: &PodMemory) -> bool {
        let differs = self.held(uid) != *held;
        put(&mut self.entries, uid, &held.containers);
        put(&mut self.pools, uid, &held.pool);
        put(&mut self.passing, uid, &held.passing);
        self.count_anew();
        differs
    }

    /// Takes back what a pod holds. Whether that was anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.passing.remove(uid);
        let pool = self.pools.remove(uid);
        let containers = self.entries.remove(uid);
        if pool.is_none() && containers.is_none() {
            return false;
        }
        self.count_anew();
        true
    }

    fn count_anew(&mut self) {
        // What is left is what the others hold: counted anew, there is no way to give back too much or too little.
        self.nodes = self.machine.tables();
        let alone = self.entries.iter().filter(|(uid, _)| !self.pools.contains_key(*uid));
        let alone = alone.flat_map(|(_, containers)| containers.values());
        let others: Vec<Block> = alone.chain(self.pools.values()).flatten().cloned().collect();
        for block in others {
            self.reserve(block.nodes, &block.kind, block.bytes);
        }
    }

    /// Takes back what pods hold that are not among these. Whether that was anything.
    pub fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let holders = self.entries.keys().chain(self.pools.keys());
        let gone: BTreeSet<String> = holders.filter(|uid| !is_there(uid)).cloned().collect();
        gone.iter().fold(false, |any, uid| self.release(uid) | any)
    }

    /// Sets of nodes that have so much for the pod; those of the least size are preferred, whether they are free or not.
    fn possible(&self, uid: &str, asked: &BTreeMap<&str, u64>) -> Vec<Hint> {
        self.possible_with(asked, &|nodes, kind| Some(self.left(uid, nodes, kind)))
    }

    /// The same with so much more of a type on a set of nodes, or with none at all of the set.
    fn possible_with(
        &self,
        asked: &BTreeMap<&str, u64>,
        more: &dyn Fn(NodeMask, &str) -> Option<u64>,
    ) -> Vec<Hint> {
        let all: NodeMask = self.nodes.keys().copied().collect();
        let mut least = all.len();
        let mut masks = Vec::new();
        for nodes in all.all_within() {
            if !asked.iter().all(|(kind, bytes)| self.sum(nodes, kind, |table| table.allocatable) >= *bytes) {
                continue;
            }
            least = least.min(nodes.len());
            let grouped = match nodes.len() {
                1 => nodes.iter().all(|node| self.nodes.get(&node).is_some_and(|it| it.cells.len() <= 1)),
                _ => self.may_group(nodes),
            };
            let has = |(kind, bytes): (&&str, &u64)| {
                let free = self.sum(nodes, kind, |table| table.free);
                more(nodes, kind).is_some_and(|more| free.saturating_add(more) >= *bytes)
            };
            if grouped && asked.iter().all(has) {
                masks.push(nodes);
            }
        }
        prefer(masks, |nodes| nodes.len() == least)
    }

    /// Whether nodes may serve together: those that serve already serve just this group.
    fn may_group(&self, nodes: NodeMask) -> bool {
        nodes
            .iter()
            .filter_map(|node| self.nodes.get(&node))
            .all(|node| node.assignments == 0 || node.cells == nodes)
    }

    fn sum(&self, nodes: NodeMask, kind: &str, of: impl Fn(&MemoryTable) -> u64) -> u64 {
        let nodes = nodes.iter().filter_map(|node| self.nodes.get(&node));
        nodes.filter_map(|node| node.tables.get(kind)).map(of).sum()
    }

    fn left(&self, uid: &str, nodes: NodeMask, kind: &str) -> u64 {
        let passing = self.passing.get(uid).and_then(|it| it.bytes.get(&(nodes, kind.to_owned())));
        passing.copied().unwrap_or(0)
    }

    fn reserve(&mut self, nodes: NodeMask, kind: &str, mut bytes: u64) {
        for node in nodes.iter() {
            let Some(node) = self.nodes.get_mut(&node) else { continue };
            node.assignments += 1;
            node.cells = nodes;
            if let Some(table) = node.tables.get_mut(kind) {
                let taken = table.free.min(bytes);
                table.free -= taken;
                table.reserved += taken;
                bytes -= taken;
            }
        }
    }

    /// What a later container uses of what init containers hold is no longer theirs.
    fn shrink(&mut self, uid: &str, nodes: NodeMask, kind: &str, mut bytes: u64) {
        let Some(passing) = self.passing.get(uid) else { return };
        let held = self.entries.get_mut(uid).into_iter().flatten();
        let held = held.filter(|(name, _)| passing.containers.contains(*name)).flat_map(|(_, blocks)| blocks);
        for block in held.filter(|block| block.nodes == nodes && block.kind == kind) {
            let used = block.bytes.min(bytes);
            block.bytes -= used;
            bytes -= used;
        }
    }
}

fn asked(bytes: &Bytes) -> BTreeMap<&str, u64> {
    bytes.iter().filter(|(_, bytes)| **bytes > 0).map(|(kind, bytes)| (kind.as_str(), *bytes)).collect()
}

#[cfg(test)]
mod tests;
