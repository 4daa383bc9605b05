//! Where each CPU is.

use std::collections::{BTreeMap, BTreeSet};

use crate::{CpuSet, NodeMask};

pub use mainstay_types::CpuPlace as Cpu;

/// The CPUs of a machine that are online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    cpus: BTreeMap<u32, Cpu>,
}

impl Machine {
    /// From where each CPU is, by number.
    #[must_use]
    pub fn new(cpus: BTreeMap<u32, Cpu>) -> Self {
        Self { cpus }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// Where a CPU is.
    #[must_use]
    pub fn cpu(&self, cpu: u32) -> Option<&Cpu> {
        self.cpus.get(&cpu)
    }

    fn count(&self, of: impl Fn(&Cpu) -> u32) -> usize {
        self.cpus.values().map(of).collect::<BTreeSet<_>>().len()
    }

    /// How many sockets.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.count(|cpu| cpu.socket)
    }

    /// How many NUMA nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.count(|cpu| cpu.node)
    }

    /// The NUMA nodes that have CPUs.
    #[must_use]
    pub fn node_mask(&self) -> NodeMask {
        self.cpus.values().map(|cpu| cpu.node).collect()
    }

    /// Where all CPUs are.
    pub fn places(&self) -> impl Iterator<Item = (u32, &Cpu)> {
        self.cpus.iter().map(|(cpu, place)| (*cpu, place))
    }

    /// CPUs of a core that has all of its own; 1 of an empty machine. One that is offline makes no core of the machine smaller than the
    /// others are.
    #[must_use]
    pub fn cpus_per_core(&self) -> usize {
        let mut cores: BTreeMap<u32, usize> = BTreeMap::new();
        for cpu in self.cpus.values() {
            *cores.entry(cpu.core).or_default() += 1;
        }
        cores.into_values().max().unwrap_or(1)
    }

    /// CPUs of a cache, likewise.
    #[must_use]
    pub fn cpus_per_cache(&self) -> usize {
        (self.cpus.len().checked_div(self.count(|cpu| cpu.cache)).unwrap_or(1)).max(1)
    }

    /// Those of a set that are where `of` says.
    pub(crate) fn within(&self, set: &CpuSet, of: impl Fn(&Cpu) -> bool) -> CpuSet {
        set.iter().filter(|cpu| self.cpu(*cpu).is_some_and(&of)).collect()
    }
}
