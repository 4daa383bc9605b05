//! What the node has, and what of it pods may use.

use std::collections::BTreeMap;

use crate::{ExtendedResources, Quantity};

/// Amounts by resource name (`cpu`, `memory`, `hugepages-2Mi` …).
pub type ResourceList = BTreeMap<String, Quantity>;

/// What the machine was found to have, before anything is kept back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCapacity {
    /// The CPUs that are online, by number.
    pub cpus: Vec<u32>,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Huge pages that were set up, by size; sizes without pages among them.
    pub huge_pages: Vec<HugePages>,
    /// Size of the file system that holds the root directory; `None` when disk space is not accounted.
    pub ephemeral_storage_bytes: Option<i64>,
    /// How many processes the kernel allows.
    pub max_pids: i64,
    /// Swap in bytes.
    pub swap_bytes: i64,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// The size of one.
    pub size_bytes: i64,
    /// How many there are.
    pub count: i64,
}

impl HugePages {
    /// `hugepages-2Mi`.
    #[must_use]
    pub fn resource_name(&self) -> String {
        format!("hugepages-{}", Quantity::bytes(self.size_bytes))
    }
}

/// The node's resources: measured once at the start, together with what the configuration keeps back.
///
/// `capacity` and `allocatable` are what the Node object shows. Admission and `resourceFieldRef` use `allocatable`; the
/// top cgroup is limited by [`Self::enforced`], which leaves the eviction threshold to be used and noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    /// The node's labels, the ones that `--node-labels` adds among them.
    pub labels: BTreeMap<String, String>,
    /// What the machine has: `cpu`, `memory`, `ephemeral-storage`, `pods`, `hugepages-*`.
    pub capacity: ResourceList,
    /// What pods may ask for.
    pub allocatable: ResourceList,
    /// `systemReserved`, with `reservedSystemCPUs` taken into account. May also hold `pid`.
    pub system_reserved: ResourceList,
    /// `kubeReserved`, likewise.
    pub kube_reserved: ResourceList,
    /// What hard eviction thresholds keep free: `memory` and `ephemeral-storage` at most.
    pub eviction_reserved: ResourceList,
    /// How many processes the kernel allows (`pid` in reservations); not part of the Node object's capacity.
    pub max_pids: i64,
    /// The machine's swap, in bytes.
    pub swap_bytes: i64,
}

impl NodeResources {
    /// Capacity less the two reservations, nothing below zero: what all pods together are held to by their top cgroup.
    /// `pid` is among it, `ephemeral-storage` and `pods` too, though no cgroup can hold anybody to those.
    #[must_use]
    pub fn enforced(&self) -> ResourceList {
        let mut left = self.capacity_with_pids();
        for (name, amount) in &mut left {
            for reserved in [&self.system_reserved, &self.kube_reserved] {
                if let Some(reserved) = reserved.get(name) {
                    *amount = amount.minus(*reserved).max(Quantity::ZERO);
                }
            }
        }
        left
    }

    /// The same with what device plugins offer. What is only awaited, or of which nobody can be given any, is left out of `allocatable` if
    /// `judging`, so that nobody is turned away for want of it; the Node object shows what can be given.
    #[must_use]
    pub fn with_extended(&self, extended: &ExtendedResources, judging: bool) -> Self {
        let mut all = self.clone();
        let whole = |count: usize| Quantity::whole(i64::try_from(count).unwrap_or(i64::MAX));
        for (name, amount) in &extended.amounts {
            all.capacity.insert(name.to_string(), whole(amount.capacity));
            let open = extended.awaited.contains(name) || extended.unsure.contains(name);
            if !(judging && open) {
                all.allocatable.insert(name.to_string(), whole(amount.allocatable));
            }
        }
        all
    }

    /// Capacity with the kernel's `pid` beside it.
    #[must_use]
    pub fn capacity_with_pids(&self) -> ResourceList {
        let mut all = self.capacity.clone();
        all.insert("pid".into(), Quantity::whole(self.max_pids));
        all
    }

    /// The machine's memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> i64 {
        self.capacity.get("memory").map_or(0, |amount| amount.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_cgroup_keeps_the_eviction_threshold() {
        let list = |items: &[(&str, &str)]| {
            items.iter().map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).unwrap())).collect()
        };
        let node = NodeResources {
            capacity: list(&[("cpu", "2"), ("memory", "8Gi")]),
            system_reserved: list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")]),
            kube_reserved: list(&[("cpu", "3")]),
            eviction_reserved: list(&[("memory", "100Mi")]),
            max_pids: 1000,
            ..NodeResources::default()
        };
        assert_eq!(node.enforced(), list(&[("cpu", "0"), ("memory", "7Gi"), ("pid", "900")]));
        assert_eq!(node.enforced().get("memory").map(ToString::to_string).as_deref(), Some("7Gi"));
        assert_eq!(node.memory_bytes(), 8 << 30);
    }
}
