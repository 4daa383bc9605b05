//! Picking CPUs.
//!
//! Groups (NUMA nodes, sockets, caches, cores) are always visited by how many of their CPUs are free, fewest first, then by number; those of one kind
//! inside those of the next larger kind. Which of NUMA node and socket is the larger is the machine's.

mod distribute;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::{Cpu, CpuSet, Machine};

/// How CPUs are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// `prefer-align-cpus-by-uncorecache`: within as few caches as can be.
    pub by_cache: bool,
    /// `distribute-cpus-across-cores`: one CPU of each core before the second of any.
    pub spread: bool,
    /// `distribute-cpus-across-numa`: equal shares of as few NUMA nodes as can be, in groups of this many CPUs (1, or a core's
    /// with `full-pcpus-only`).
    pub over_nodes: Option<usize>,
    /// `align-by-socket`: of NUMA nodes those of one socket.
    pub by_socket: bool,
}

/// There are not so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
pub struct NotEnough {
    /// How many were wanted.
    pub requested: usize,
    /// How many are free.
    pub available: usize,
}

/// Picks so many of the free CPUs.
///
/// # Errors
/// When there are not so many.
pub fn take(machine: &Machine, free: &CpuSet, count: usize, packing: Packing) -> Result<CpuSet, NotEnough> {
    let free = machine.within(free, |_| true);
    if free.len() < count {
        return Err(NotEnough { requested: count, available: free.len() });
    }
    match packing.over_nodes {
        Some(group) if group > 0 && count.is_multiple_of(group) => {
            let shares = distribute::over_nodes(machine, &free, count, (group, packing.by_socket));
            // Where no shares come out, the cache does not count either.
            Ok(shares
                .unwrap_or_else(|| packed(machine, &free, count, Packing { by_cache: false, ..packing })))
        }
        _ => Ok(packed(machine, &free, count, packing)),
    }
}

/// The same when there are enough: whole nodes and sockets, caches, whole cores, single CPUs.
fn packed(machine: &Machine, free: &CpuSet, count: usize, packing: Packing) -> CpuSet {
    let mut picking = Picking { machine, free: free.clone(), taken: CpuSet::default(), needed: count };
    let (first, second): (Level, Level) =
        if picking.nodes_first() { (Level::Node, Level::Socket) } else { (Level::Socket, Level::Node) };
    picking.take_whole(first);
    picking.take_whole(second);
    if packing.by_cache {
        picking.take_caches();
    }
    if packing.spread {
        let cpus =
            picking.ordered(Level::Socket).into_iter().flat_map(|(_, cpus)| cpus.iter().collect::<Vec<_>>());
        picking.take_each(cpus.collect());
    } else {
        picking.take_whole(Level::Core);
        let cpus =
            picking.ordered(Level::Core).into_iter().flat_map(|(_, cpus)| cpus.iter().collect::<Vec<_>>());
        picking.take_each(cpus.collect());
    }
    picking.taken
}

/// Kinds of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Node,
    Socket,
    Cache,
    Core,
}

impl Level {
    fn of(self, cpu: &Cpu) -> u32 {
        match self {
            Self::Node => cpu.node,
            Self::Socket => cpu.socket,
            Self::Cache => cpu.cache,
            Self::Core => cpu.core,
        }
    }
}

struct Picking<'a> {
    machine: &'a Machine,
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
}

impl Picking<'_> {
    /// Whether a NUMA node holds sockets, and not the other way round.
    fn nodes_first(&self) -> bool {
        self.machine.sockets() >= self.machine.nodes()
    }

    /// The groups of a kind with their free CPUs, in the order in which they are visited. A core has a place inside the
    /// smaller of node and socket.
    fn ordered(&self, level: Level) -> Vec<(u32, CpuSet)> {
        let above: &[Level] = match (level, self.nodes_first()) {
            (Level::Node, true) | (Level::Socket, false) => &[],
            (Level::Socket, true) | (Level::Cache, _) => &[Level::Node],
            (Level::Node, false) => &[Level::Socket],
            (Level::Core, true) => &[Level::Node, Level::Socket],
            (Level::Core, false) => &[Level::Socket, Level::Node],
        };
        let mut parts = vec![self.free.clone()];
        for level in above {
            parts = parts.iter().flat_map(|part| self.split(part, *level)).map(|(_, cpus)| cpus).collect();
        }
        parts.iter().flat_map(|part| self.split(part, level)).collect()
    }

    /// The groups of a kind in a set, fewest CPUs first.
    fn split(&self, set: &CpuSet, level: Level) -> Vec<(u32, CpuSet)> {
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in set.iter() {
            if let Some(place) = self.machine.cpu(cpu) {
                groups.entry(level.of(place)).or_default().push(cpu);
            }
        }
        let mut groups: Vec<(u32, CpuSet)> =
            groups.into_iter().map(|(id, cpus)| (id, cpus.into_iter().collect())).collect();
        groups.sort_by_key(|(id, cpus)| (cpus.len(), *id));
        groups
    }

    /// Takes groups that are wholly free while as many are needed.
    fn take_whole(&mut self, level: Level) {
        let all = self.machine.all();
        for (id, cpus) in self.ordered(level) {
            let size = match level {
                // A core whose sibling is offline is not a whole one.
                Level::Core => self.machine.cpus_per_core(),
                level => self.machine.within(&all, |cpu| level.of(cpu) == id).len(),
            };
            if cpus.len() == size && self.needed >= size {
                self.take(&cpus);
            }
        }
    }

    /// Whole caches, and the rest in one of them if it fits exactly.
    fn take_caches(&mut self) {
        for (id, _) in self.ordered(Level::Cache) {
            if self.needed == 0 {
                return;
            }
            if self.needed >= self.machine.cpus_per_cache() {
                self.take_whole(Level::Cache);
            }
            let inside = self.machine.within(&self.free, |cpu| cpu.cache == id);
            let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for cpu in inside.iter() {
                if let Some(place) = self.machine.cpu(cpu) {
                    cores.entry(place.core).or_default().push(cpu);
                }
            }
            let per_core = self.machine.cpus_per_core();
            let mut cpus: Vec<u32> =
                cores.into_values().take(self.needed.div_ceil(per_core)).flatten().collect();
            cpus.sort_unstable();
            if !self.needed.is_multiple_of(per_core) && cpus.len() > self.needed {
                cpus.pop();
            }
            if self.needed > 0 && cpus.len() == self.needed {
                self.take(&cpus.into_iter().collect());
            }
        }
    }

    fn take_each(&mut self, cpus: Vec<u32>) {
        for cpu in cpus {
            if self.needed == 0 {
                return;
            }
            self.take(&[cpu].into_iter().collect());
        }
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.free = &self.free - cpus;
        self.taken = &self.taken | cpus;
        self.needed = self.needed.saturating_sub(cpus.len());
    }
}
