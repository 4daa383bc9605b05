//! QoS class, resource sums over a pod's containers, and the kernel's units for CPU.
//!
//! The pod is taken as validated: a quantity that cannot be read counts as absent.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mainstay_types::{ContainerKind, PodExt as _, Quantity, annotations};

pub use mainstay_types::ResourceList;

/// The usual CFS period (100 ms).
pub const CFS_PERIOD_MICROS: i64 = 100_000;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA_MICROS: i64 = 1000;
/// Priorities from here on are the system's own.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// A pod's quality of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Requests equal limits for CPU and memory everywhere.
    Guaranteed,
    /// Neither of the others.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

impl QosClass {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a sum has the pod's overhead in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    /// `spec.overhead` is added.
    Included,
    /// The containers alone.
    Excluded,
}

/// The pod's QoS class: `status.qosClass` if set, else by its init and regular containers. Pod-level resources win
/// over those of the containers.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => return QosClass::Guaranteed,
        Some("Burstable") => return QosClass::Burstable,
        Some("BestEffort") => return QosClass::BestEffort,
        _ => {}
    }
    if let Some(resources) = pod_level(pod) {
        return class_of(resources);
    }
    let mut classes = pod.all_containers().map(|(_, container)| match &container.resources {
        Some(resources) => class_of(resources),
        None => QosClass::BestEffort,
    });
    let first = classes.next().unwrap_or(QosClass::BestEffort);
    if classes.all(|class| class == first) { first } else { QosClass::Burstable }
}

/// What the pod asks for: its containers, what its init containers need at their time, pod-level requests instead
/// where they are set.
#[must_use]
pub fn pod_requests(pod: &Pod, overhead: Overhead) -> ResourceList {
    let mut sum = aggregate(pod, |resources| resources.requests.as_ref());
    let own = pod.spec_ref().resources.as_ref().and_then(|resources| resources.requests.as_ref());
    override_supported(&mut sum, own);
    if overhead == Overhead::Included {
        for (name, amount) in amounts(pod.spec_ref().overhead.as_ref()) {
            add(&mut sum, name, amount);
        }
    }
    sum
}

/// What the pod may use, in the same manner. Overhead is added only to limits that are not zero.
#[must_use]
pub fn pod_limits(pod: &Pod, overhead: Overhead) -> ResourceList {
    let mut sum = aggregate(pod, |resources| resources.limits.as_ref());
    let own = pod.spec_ref().resources.as_ref().and_then(|resources| resources.limits.as_ref());
    override_supported(&mut sum, own);
    if overhead == Overhead::Included {
        for (name, amount) in amounts(pod.spec_ref().overhead.as_ref()) {
            if let Some(limit) = sum.get_mut(name).filter(|limit| !limit.is_zero()) {
                *limit = limit.plus(amount);
            }
        }
    }
    sum
}

/// How many CPUs a container is to have to itself where CPUs are given out: a whole number, in a Guaranteed pod. With pod-level resources
/// only where `pod_level_managers` says so, and only for one that is Guaranteed by itself.
#[must_use]
pub fn exclusive_cpus(pod: &Pod, container: &Container, pod_level_managers: bool) -> usize {
    if !is_pinned(pod, container, pod_level_managers) {
        return 0;
    }
    let milli = request(container, "cpu").map_or(0, Quantity::milli);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// How much memory of which type a container is to have on NUMA nodes of its own where memory is given out; in bytes.
#[must_use]
pub fn pinned_memory(pod: &Pod, container: &Container, pod_level_managers: bool) -> BTreeMap<String, u64> {
    if !is_pinned(pod, container, pod_level_managers) {
        return BTreeMap::new();
    }
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    memory_bytes(requests)
}

/// Whether the pod says itself what it needs, so that its containers need not.
#[must_use]
pub fn has_pod_level_resources(pod: &Pod) -> bool {
    pod_level(pod).is_some()
}

/// What a Guaranteed pod with pod-level resources is to have as a whole where CPUs and memory are given out to pods: CPUs, if they are a whole number,
/// and bytes of memory by type.
#[must_use]
pub fn pooled(pod: &Pod) -> Option<(usize, BTreeMap<String, u64>)> {
    let own = pod_level(pod)?;
    if qos_class(pod) != QosClass::Guaranteed {
        return None;
    }
    let milli = amount(own.requests.as_ref(), "cpu").map_or(0, Quantity::milli);
    let cpus = if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 };
    Some((cpus, memory_bytes(own.requests.as_ref())))
}

fn memory_bytes(requests: Option<&BTreeMap<String, ApiQuantity>>) -> BTreeMap<String, u64> {
    let memory = amounts(requests).filter(|(name, _)| *name == "memory" || name.starts_with("hugepages-"));
    let bytes = memory.map(|(name, amount)| (name.to_owned(), u64::try_from(amount.value()).unwrap_or(0)));
    bytes.filter(|(_, bytes)| *bytes > 0).collect()
}

fn is_pinned(pod: &Pod, container: &Container, pod_level_managers: bool) -> bool {
    let own = || container.resources.as_ref().is_some_and(|own| class_of(own) == QosClass::Guaranteed);
    qos_class(pod) == QosClass::Guaranteed && (pod_level(pod).is_none() || pod_level_managers && own())
}

/// CPU shares for thousandths of a CPU: 1024 per CPU, within the kernel's bounds; 2 for none.
#[must_use]
pub fn milli_cpu_to_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds for thousandths of a CPU: at least 1 ms; 0 (no quota) for none.
#[must_use]
pub fn milli_cpu_to_quota(milli: i64, period_micros: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period_micros) / 1000).max(MIN_QUOTA_MICROS) }
}

/// cgroup v2's `cpu.weight` for CPU shares, as the pod and QoS cgroups have it. (OCI runtimes use another curve for
/// containers.)
#[must_use]
pub fn shares_to_weight(shares: i64) -> i64 {
    let shares = shares.clamp(MIN_SHARES, MAX_SHARES);
    1 + ((shares - MIN_SHARES) * 9999) / (MAX_SHARES - MIN_SHARES)
}

/// Static pods, mirror pods and pods of a system priority are critical: not evicted, not preempted, never swapped.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    pod.annotation(annotations::CONFIG_SOURCE).is_some_and(|source| source != "api")
        || pod.annotation(annotations::CONFIG_MIRROR).is_some()
        || pod.spec_ref().priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

/// A critical pod of class `system-node-critical`: the last to be killed when memory runs out.
#[must_use]
pub fn is_node_critical(pod: &Pod) -> bool {
    is_critical(pod) && pod.spec_ref().priority_class_name.as_deref() == Some("system-node-critical")
}

/// A container's request, if it has one.
pub(super) fn request(container: &Container, name: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.requests.as_ref(), name)
}

/// A container's limit, if it has one.
pub(super) fn limit(container: &Container, name: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.limits.as_ref(), name)
}

/// One amount of a list of the API.
pub(super) fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

/// All readable amounts of a list of the API.
pub(super) fn amounts(
    list: Option<&BTreeMap<String, ApiQuantity>>,
) -> impl Iterator<Item = (&str, Quantity)> {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.as_str(), Quantity::parse(&amount.0).ok()?)))
}

/// The pod-level resources, where they say anything that is supported there.
pub(super) fn pod_level(pod: &Pod) -> Option<&ResourceRequirements> {
    let resources = pod.spec_ref().resources.as_ref()?;
    (names_supported(resources.requests.as_ref()) || names_supported(resources.limits.as_ref()))
        .then_some(resources)
}

/// The pod-level limit of a resource, zero counting as none.
pub(super) fn pod_level_limit(pod: &Pod, name: &str) -> Option<Quantity> {
    amount(pod_level(pod)?.limits.as_ref(), name).filter(|amount| !amount.is_zero())
}

/// The sum of the containers' requests alone, without anything of the pod's own.
pub(super) fn container_requests(pod: &Pod) -> ResourceList {
    aggregate(pod, |resources| resources.requests.as_ref())
}

pub(super) fn names_supported(list: Option<&BTreeMap<String, ApiQuantity>>) -> bool {
    list.is_some_and(|list| list.keys().any(|name| is_pod_level_resource(name)))
}

fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn class_of(resources: &ResourceRequirements) -> QosClass {
    let of = |name| {
        let request = amount(resources.requests.as_ref(), name).unwrap_or(Quantity::ZERO);
        let limit = amount(resources.limits.as_ref(), name).unwrap_or(Quantity::ZERO);
        match (request == limit, request.is_zero()) {
            (false, _) => QosClass::Burstable,
            (true, true) => QosClass::BestEffort,
            (true, false) => QosClass::Guaranteed,
        }
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    if cpu == memory { cpu } else { QosClass::Burstable }
}

/// Regular containers and sidecars run together; each init container runs beside the sidecars before it. The pod needs
/// the larger of the two sums, per resource (KEP-753).
fn aggregate(
    pod: &Pod,
    pick: impl Fn(&ResourceRequirements) -> Option<&BTreeMap<String, ApiQuantity>>,
) -> ResourceList {
    let (mut together, mut sidecars, mut starting) = Default::default();
    for (kind, container) in pod.all_containers() {
        let own = || amounts(container.resources.as_ref().and_then(&pick));
        match kind {
            ContainerKind::Init => {
                let mut beside: ResourceList = ResourceList::clone(&sidecars);
                own().for_each(|(name, amount)| add(&mut beside, name, amount));
                take_larger(&mut starting, &beside);
            }
            ContainerKind::Sidecar => {
                own().for_each(|(name, amount)| add(&mut together, name, amount));
                own().for_each(|(name, amount)| add(&mut sidecars, name, amount));
                take_larger(&mut starting, &sidecars);
            }
            ContainerKind::Regular | ContainerKind::Ephemeral => {
                own().for_each(|(name, amount)| add(&mut together, name, amount));
            }
        }
    }
    take_larger(&mut together, &starting);
    together
}

fn override_supported(sum: &mut ResourceList, own: Option<&BTreeMap<String, ApiQuantity>>) {
    for (name, amount) in amounts(own).filter(|(name, _)| is_pod_level_resource(name)) {
        sum.insert(name.to_owned(), amount);
    }
}

fn add(list: &mut ResourceList, name: &str, amount: Quantity) {
    match list.get_mut(name) {
        Some(sum) => *sum = sum.plus(amount),
        None => _ = list.insert(name.to_owned(), amount),
    }
}

fn take_larger(list: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        match list.get_mut(name) {
            Some(own) => *own = Quantity::max(*own, *amount),
            None => _ = list.insert(name.clone(), *amount),
        }
    }
}

#[cfg(test)]
mod tests;
