//! What the cgroups above containers are set to: those of pods, of QoS classes, of all pods together, and those that
//! the administrator keeps resources for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{NodeResources, PodExt as _, Quantity, ResourceList};

use super::{
    NodeSettings,
    linux::{huge_page_size, memory_high},
    resources::{
        Overhead, QosClass, limit, milli_cpu_to_quota, milli_cpu_to_shares, pod_level, pod_level_limit,
        pod_limits, pod_requests, qos_class,
    },
};

/// What a limit is set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    /// It stays as it is.
    #[default]
    AsIs,
    /// There is none; one that was there goes.
    Unlimited,
    /// This much.
    At(i64),
}

impl Limit {
    /// The number, if there is one.
    #[must_use]
    pub const fn amount(self) -> Option<i64> {
        match self {
            Self::At(amount) => Some(amount),
            Self::AsIs | Self::Unlimited => None,
        }
    }

    /// A limit of nothing is none: the kernel would kill whatever runs there.
    fn positive(amount: i64) -> Self {
        if amount > 0 { Self::At(amount) } else { Self::Unlimited }
    }
}

/// What huge pages may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// It stays as it is.
    #[default]
    AsIs,
    /// As many as there are.
    Unlimited,
    /// Bytes by page size in bytes; of other sizes none.
    Only(BTreeMap<i64, i64>),
}

/// What a cgroup is set to (upstream's `ResourceConfig`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupValues {
    /// CPU shares.
    pub cpu_shares: Option<i64>,
    /// CFS quota in microseconds for each [`Self::cpu_period`].
    pub cpu_quota: Limit,
    /// CFS period in microseconds; 0 leaves it as it is.
    pub cpu_period: i64,
    /// Memory in bytes.
    pub memory: Limit,
    /// Processes.
    pub pids: Limit,
    /// Huge pages.
    pub huge_pages: HugePages,
    /// The CPUs as the kernel lists them (`0-3`).
    pub cpus: Option<String>,
    /// Further cgroup v2 files.
    pub unified: BTreeMap<String, String>,
}

/// The values for a pod's own cgroup (upstream's `ResourceConfigForPod`). `podPidsLimit` is not among them. A pod with CPUs of its own has no
/// quota: that would only throttle.
#[must_use]
pub fn pod_cgroup_values(pod: &Pod, node: &NodeSettings, exclusive_cpus: bool) -> CgroupValues {
    let requests = pod_requests(pod, Overhead::Included);
    let limits = pod_limits(pod, Overhead::Included);
    // One container without a limit leaves the pod unlimited, unless the pod itself has one.
    let limited = |name: &str| {
        pod_level_limit(pod, name).is_some()
            || pod
                .all_containers()
                .all(|(_, container)| limit(container, name).is_some_and(|limit| !limit.is_zero()))
    };
    let class = qos_class(pod);
    let is_held_to = |name| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => limited(name),
        QosClass::BestEffort => false,
    };
    let period = node.cfs_period_micros.unwrap_or(super::CFS_PERIOD_MICROS);
    let cpu_quota = if node.cfs_period_micros.is_some() && is_held_to("cpu") && !exclusive_cpus {
        Limit::positive(milli_cpu_to_quota(milli(&limits, "cpu"), period))
    } else {
        Limit::Unlimited
    };
    let memory =
        if is_held_to("memory") { Limit::positive(whole(&limits, "memory")) } else { Limit::Unlimited };
    let shares = if class == QosClass::BestEffort { 0 } else { milli(&requests, "cpu") };
    let mut values = CgroupValues {
        cpu_shares: Some(milli_cpu_to_shares(shares)),
        cpu_quota,
        cpu_period: period,
        memory,
        huge_pages: HugePages::Only(huge_page_limits(&requests)),
        ..CgroupValues::default()
    };
    if node.cgroup_v2 {
        let (request, limit) = (whole(&requests, "memory"), whole(&limits, "memory"));
        let (mut min, mut low, mut high) = (0, 0, None);
        if let Some(memory_qos) = node.memory_qos {
            match class {
                QosClass::Guaranteed if memory_qos.tiered_reservation => min = request,
                QosClass::Burstable if memory_qos.tiered_reservation => low = request,
                _ => {}
            }
            if pod_level(pod).is_some() && limited("memory") && request != limit {
                high = memory_high(memory_qos, request, limit);
            }
        }
        values.unified = protection(min, low);
        let high = high.map_or_else(|| "max".to_owned(), |high| high.to_string());
        values.unified.insert("memory.high".to_owned(), high);
    }
    values
}

/// How all pods together are held to what the node can give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCgroupSettings {
    /// What the node has.
    pub resources: NodeResources,
    /// `enforceNodeAllocatable` has `pods`.
    pub enforce_pods: bool,
    /// `qosReserved.memory` in percent, with its gate.
    pub reserved_memory_percent: Option<i64>,
}

/// The values of the cgroups that pods share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCgroupValues {
    /// Of all pods.
    pub top: CgroupValues,
    /// Of burstable pods.
    pub burstable: CgroupValues,
    /// Of best-effort pods.
    pub best_effort: CgroupValues,
    /// Bytes that the kernel never takes from guaranteed pods, and those that it leaves to burstable ones as long as it can.
    pub protected: (u64, u64),
}

/// The values of the cgroups that pods share, for the pods that are active.
#[must_use]
pub fn node_cgroup_values<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    settings: &NodeCgroupSettings,
    node: &NodeSettings,
) -> NodeCgroupValues {
    let (mut burstable_cpu, mut burstable_memory, mut guaranteed_memory) = (0_i64, 0_i64, 0_i64);
    for pod in pods {
        let class = qos_class(pod);
        if class == QosClass::BestEffort {
            continue;
        }
        let requests = pod_requests(pod, Overhead::Included);
        let memory = whole(&requests, "memory");
        if class == QosClass::Guaranteed {
            guaranteed_memory = guaranteed_memory.saturating_add(memory);
        } else {
            burstable_memory = burstable_memory.saturating_add(memory);
            burstable_cpu = burstable_cpu.saturating_add(milli(&requests, "cpu"));
        }
    }
    let resources = &settings.resources;
    let enforced = resources.enforced();
    let mut values = NodeCgroupValues {
        top: if settings.enforce_pods {
            limited_to(&enforced)
        } else {
            limited_to(&resources.capacity_with_pids())
        },
        burstable: of_class(milli_cpu_to_shares(burstable_cpu)),
        best_effort: of_class(milli_cpu_to_shares(0)),
        protected: (0, 0),
    };
    if let Some(percent) = settings.reserved_memory_percent {
        let keep = |memory: i64| memory.saturating_mul(percent) / 100;
        let burstable = whole(&enforced, "memory") - keep(guaranteed_memory);
        values.burstable.memory = Limit::positive(burstable);
        values.best_effort.memory = Limit::positive(burstable - keep(burstable_memory));
    }
    if node.cgroup_v2 {
        let tiered = node.memory_qos.is_some_and(|memory_qos| memory_qos.tiered_reservation);
        let (hard, soft) = if tiered { (guaranteed_memory, burstable_memory) } else { (0, 0) };
        values.top.unified = protection(hard.saturating_add(soft), soft);
        values.burstable.unified = [("memory.low".to_owned(), soft.to_string())].into();
        values.protected = (u64::try_from(hard).unwrap_or(0), u64::try_from(soft).unwrap_or(0));
    }
    values
}

/// The values of a cgroup that `systemReserved` or `kubeReserved` is kept for; with the `-compressible` form of
/// enforcement only CPU is.
#[must_use]
pub fn reserved_cgroup_values(
    reserved: &ResourceList,
    compressible_only: bool,
    node: &NodeSettings,
) -> CgroupValues {
    let mut values = limited_to(reserved);
    values.huge_pages = HugePages::AsIs;
    if compressible_only {
        (values.memory, values.pids) = (Limit::AsIs, Limit::AsIs);
    }
    if let Limit::At(memory) = values.memory
        && node.cgroup_v2
        && node.memory_qos.is_some()
    {
        values.unified.insert("memory.min".to_owned(), memory.to_string());
    }
    values
}

fn limited_to(list: &ResourceList) -> CgroupValues {
    let at = |name: &str| match list.get(name).map(|amount| amount.value()) {
        Some(amount) if amount > 0 => Limit::At(amount),
        _ => Limit::AsIs,
    };
    CgroupValues {
        cpu_shares: list.get("cpu").map(|cpu| milli_cpu_to_shares(cpu.milli())),
        memory: at("memory"),
        pids: at("pid"),
        huge_pages: HugePages::Only(huge_page_limits(list)),
        ..CgroupValues::default()
    }
}

fn of_class(shares: i64) -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(shares),
        memory: Limit::Unlimited,
        huge_pages: HugePages::Unlimited,
        ..CgroupValues::default()
    }
}

fn huge_page_limits(list: &ResourceList) -> BTreeMap<i64, i64> {
    list.iter().filter_map(|(name, amount)| Some((huge_page_size(name)?, amount.value()))).collect()
}

fn protection(min: i64, low: i64) -> BTreeMap<String, String> {
    [("memory.min".to_owned(), min.to_string()), ("memory.low".to_owned(), low.to_string())].into()
}

fn milli(list: &ResourceList, name: &str) -> i64 {
    list.get(name).copied().map_or(0, Quantity::milli)
}

fn whole(list: &ResourceList, name: &str) -> i64 {
    list.get(name).copied().map_or(0, Quantity::value)
}

#[cfg(test)]
mod tests;
