//! What is left for pods: capacity less reservations and eviction thresholds (upstream's
//! `pkg/kubelet/cm/node_container_manager_linux.go`).

use std::collections::BTreeMap;

use mainstay_types::{MachineCapacity, NodeResources, Quantity, ResourceList};

/// What the configuration says about the node's resources. It has been validated, so what cannot be read is absent.
#[derive(Clone, Copy, Debug)]
pub struct Reservations<'a> {
    /// `maxPods`.
    pub max_pods: i32,
    /// `podsPerCore`; 0 for no such limit.
    pub pods_per_core: i32,
    /// `systemReserved`.
    pub system: &'a BTreeMap<String, String>,
    /// `kubeReserved`.
    pub kube: &'a BTreeMap<String, String>,
    /// `reservedSystemCPUs`, as numbers; empty when it is not set.
    pub system_cpus: &'a [u32],
    /// `evictionHard`; empty also with `--experimental-allocatable-ignore-eviction`.
    pub eviction_hard: &'a BTreeMap<String, String>,
}

/// Why nothing can be left for pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatableError {
    /// More is kept back than there is.
    #[error(
        "invalid Node Allocatable configuration. {}; reserve less in systemReserved, kubeReserved or evictionHard",
        .0.join(" ")
    )]
    TooMuchReserved(
        /// A sentence per resource.
        Vec<String>,
    ),
    /// `reservedSystemCPUs` names a CPU that is not there.
    #[error("reservedCPUs: {reserved} is not a subset of online-cpus: {online}; mend reservedSystemCPUs")]
    NoSuchCpus {
        /// The reserved ones.
        reserved: String,
        /// Those that are online.
        online: String,
    },
}

/// Computes capacity and allocatable.
///
/// # Errors
/// [`AllocatableError`] when more is reserved than the machine has.
pub fn node_resources(
    machine: &MachineCapacity,
    reservations: &Reservations<'_>,
    labels: BTreeMap<String, String>,
) -> Result<NodeResources, AllocatableError> {
    let capacity = capacity(machine, reservations);
    let mut system_reserved = amounts(reservations.system);
    let mut kube_reserved = amounts(reservations.kube);
    let cpus = reservations.system_cpus;
    if !cpus.is_empty() {
        if cpus.iter().any(|cpu| !machine.cpus.contains(cpu)) {
            return Err(AllocatableError::NoSuchCpus { reserved: list(cpus), online: list(&machine.cpus) });
        }
        // Named CPUs go before counted ones.
        kube_reserved.remove("cpu");
        system_reserved.insert("cpu".into(), Quantity::whole(i64::try_from(cpus.len()).unwrap_or(i64::MAX)));
    }
    let mut node = NodeResources {
        labels,
        capacity,
        allocatable: ResourceList::new(),
        system_reserved,
        kube_reserved,
        eviction_reserved: ResourceList::new(),
        max_pids: machine.max_pids,
        swap_bytes: machine.swap_bytes,
    };
    node.eviction_reserved = eviction_reserved(reservations.eviction_hard, &node.capacity);
    check(&node)?;
    node.allocatable = allocatable(&node);
    Ok(node)
}

fn capacity(machine: &MachineCapacity, reservations: &Reservations<'_>) -> ResourceList {
    let cpus = i64::try_from(machine.cpus.len()).unwrap_or(i64::MAX);
    let max_pods = i64::from(reservations.max_pods);
    let pods = match i64::from(reservations.pods_per_core) {
        0 => max_pods,
        per_core => max_pods.min(cpus.saturating_mul(per_core)),
    };
    let mut capacity = ResourceList::from([
        ("cpu".to_owned(), Quantity::whole(cpus)),
        ("memory".to_owned(), Quantity::bytes(machine.memory_bytes)),
        ("pods".to_owned(), Quantity::whole(pods)),
    ]);
    if let Some(bytes) = machine.ephemeral_storage_bytes {
        capacity.insert("ephemeral-storage".into(), Quantity::bytes(bytes));
    }
    for pages in &machine.huge_pages {
        let bytes = pages.size_bytes.saturating_mul(pages.count);
        capacity.insert(pages.resource_name(), Quantity::bytes(bytes));
    }
    capacity
}

/// Two thresholds keep something free that pods could ask for; the others do not.
fn eviction_reserved(thresholds: &BTreeMap<String, String>, capacity: &ResourceList) -> ResourceList {
    let mut reserved = ResourceList::new();
    for (signal, name) in [("memory.available", "memory"), ("nodefs.available", "ephemeral-storage")] {
        let (Some(text), Some(whole)) = (thresholds.get(signal), capacity.get(name)) else { continue };
        if let Some(amount) = threshold(text, *whole) {
            reserved.insert(name.into(), amount);
        }
    }
    reserved
}

/// A threshold as an amount; `None` when it is switched off (0 % or 100 %).
pub(crate) fn threshold(text: &str, whole: Quantity) -> Option<Quantity> {
    let Some(number) = text.strip_suffix('%') else { return Quantity::parse(text).ok() };
    let percentage: f32 = number.parse().ok()?;
    if percentage <= 0.0 || percentage >= 100.0 {
        return None;
    }
    // Upstream multiplies by a fraction of single precision, and clients have seen the result.
    let fraction = f64::from(percentage / 100.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the fraction is below 1, so the product fits; precision is upstream's"
    )]
    let bytes = (whole.value() as f64 * fraction) as i64;
    Some(Quantity::bytes(bytes))
}

fn check(node: &NodeResources) -> Result<(), AllocatableError> {
    let capacity = node.capacity_with_pids();
    let mut problems = Vec::new();
    for (name, reserved) in reserved(node) {
        let there = capacity.get(&name).copied().unwrap_or(Quantity::ZERO);
        if reserved > there {
            problems.push(format!(
                "Resource {name:?} has a reservation of {reserved} but capacity of {there}. Expected capacity >= reservation."
            ));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(AllocatableError::TooMuchReserved(problems)) }
}

fn reserved(node: &NodeResources) -> ResourceList {
    let mut sum = ResourceList::new();
    for list in [&node.system_reserved, &node.kube_reserved, &node.eviction_reserved] {
        for (name, amount) in list {
            let entry = sum.entry(name.clone()).or_insert(Quantity::ZERO);
            *entry = entry.plus(*amount);
        }
    }
    sum
}

fn allocatable(node: &NodeResources) -> ResourceList {
    let reserved = reserved(node);
    let mut left = node.capacity.clone();
    for (name, amount) in &mut left {
        if let Some(reserved) = reserved.get(name) {
            *amount = amount.minus(*reserved).max(Quantity::ZERO);
        }
    }
    // Huge pages were taken out of memory when the machine was set up, whether pods use them or not.
    let huge = node.capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let huge = huge.fold(Quantity::ZERO, |sum, (_, amount)| sum.plus(*amount));
    if let Some(memory) = left.get_mut("memory").filter(|_| !huge.is_zero()) {
        *memory = memory.minus(huge).max(Quantity::ZERO);
    }
    left
}

/// Readable amounts; CPU in whole thousandths.
fn amounts(texts: &BTreeMap<String, String>) -> ResourceList {
    let amount = |name: &str, text: &str| {
        let amount = Quantity::parse(text).ok()?;
        Some(if name == "cpu" { Quantity::from_milli(amount.milli()) } else { amount })
    };
    texts.iter().filter_map(|(name, text)| Some((name.clone(), amount(name, text)?))).collect()
}

/// `0-2,5`, as the kernel writes it.
fn list(cpus: &[u32]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut().filter(|(_, last)| last.checked_add(1) == Some(cpu)) {
            Some((_, last)) => *last = cpu,
            None => ranges.push((cpu, cpu)),
        }
    }
    let texts: Vec<_> = ranges
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests;
