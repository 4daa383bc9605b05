//! Linux resources of containers and sandboxes.

use std::collections::HashMap;

use k8s_cri::v1::{HugepageLimit, LinuxContainerResources};
use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_types::{ContainerKind, PodExt as _, Quantity};

use super::{
    NodeSettings,
    context::MemoryQos,
    resources::{
        Overhead, QosClass, amount, amounts, container_requests, is_critical, is_node_critical, limit,
        milli_cpu_to_quota, milli_cpu_to_shares, names_supported, pod_level, pod_level_limit, pod_limits,
        pod_requests, qos_class, request,
    },
};

/// OOM score of what must be killed last; 1000 + this is the lowest that a burstable container gets.
const GUARANTEED_SCORE: i64 = -997;
const BEST_EFFORT_SCORE: i64 = 1000;

/// The `oom_score_adj` of a container: the higher, the sooner the kernel kills it when memory runs out.
#[must_use]
pub fn oom_score_adj(pod: &Pod, container: &Container, kind: ContainerKind, memory_capacity: i64) -> i64 {
    if is_node_critical(pod) {
        return GUARANTEED_SCORE;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => return GUARANTEED_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_SCORE,
        QosClass::Burstable => {}
    }
    let spare = spare_memory_per_container(pod);
    let score = |request: i64| {
        // An unknown capacity must not make a container unkillable.
        if memory_capacity <= 0 {
            return BEST_EFFORT_SCORE;
        }
        1000 - request.saturating_add(spare).saturating_mul(1000) / memory_capacity
    };
    let memory = |container: &Container| request(container, "memory").map_or(0, Quantity::value);

    let mut own = score(memory(container));
    if kind == ContainerKind::Sidecar {
        // A sidecar must not die before the containers that it serves.
        let smallest = pod.spec_ref().containers.iter().map(memory).min().unwrap_or(0);
        own = own.min(score(smallest));
    }
    own.clamp(1000 + GUARANTEED_SCORE, BEST_EFFORT_SCORE - 1)
}

/// Resources of a container.
pub(super) fn container_resources(
    pod: &Pod,
    container: &Container,
    kind: ContainerKind,
    node: &NodeSettings,
    exclusive_cpus: bool,
) -> LinuxContainerResources {
    // A container without a limit of its own has the pod's: processes in it size themselves by what they see.
    let effective_limit = |name: &str| {
        limit(container, name)
            .filter(|amount| !amount.is_zero())
            .or_else(|| pod_level_limit(pod, name))
            .unwrap_or(Quantity::ZERO)
    };
    let cpu_limit = effective_limit("cpu");
    let cpu_request = request(container, "cpu").unwrap_or(cpu_limit);
    let mut resources =
        linux_resources(cpu_request, cpu_limit, effective_limit("memory"), node, exclusive_cpus);
    resources.oom_score_adj = oom_score_adj(pod, container, kind, node.memory_capacity);
    resources.hugepage_limits = hugepage_limits(pod, container, node);
    limit_swap(&mut resources, pod, container, node);
    if node.cgroup_v2 {
        protect_memory(&mut resources, pod, container, node);
    }
    resources
}

/// Resources of a pod's sandbox: the containers together, without overhead.
pub(super) fn sandbox_resources(
    pod: &Pod,
    node: &NodeSettings,
    exclusive_cpus: bool,
) -> LinuxContainerResources {
    let requests = pod_requests(pod, Overhead::Excluded);
    let limits = pod_limits(pod, Overhead::Excluded);
    let limit = |name| limits.get(name).copied().unwrap_or(Quantity::ZERO);
    let cpu_request = requests.get("cpu").copied().unwrap_or_else(|| limit("cpu"));
    linux_resources(cpu_request, limit("cpu"), limit("memory"), node, exclusive_cpus)
}

/// The pod's overhead, as resources that are both asked for and the limit.
pub(super) fn overhead_resources(pod: &Pod, node: &NodeSettings) -> LinuxContainerResources {
    let overhead = pod.spec_ref().overhead.as_ref();
    if overhead.is_none() {
        return LinuxContainerResources::default();
    }
    let of = |name| amount(overhead, name).unwrap_or(Quantity::ZERO);
    linux_resources(of("cpu"), of("cpu"), of("memory"), node, false)
}

fn linux_resources(
    cpu_request: Quantity,
    cpu_limit: Quantity,
    memory_limit: Quantity,
    node: &NodeSettings,
    exclusive_cpus: bool,
) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: milli_cpu_to_shares(cpu_request.milli()),
        memory_limit_in_bytes: memory_limit.value(),
        ..LinuxContainerResources::default()
    };
    if let Some(period) = node.cfs_period_micros {
        resources.cpu_period = period;
        // A quota on CPUs that nobody else uses would only throttle.
        resources.cpu_quota = if exclusive_cpus { -1 } else { milli_cpu_to_quota(cpu_limit.milli(), period) };
    }
    if node.cgroup_v2 && !node.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    resources
}

/// What the pod asks for beyond its containers, split evenly between them.
fn spare_memory_per_container(pod: &Pod) -> i64 {
    let requests = pod.spec_ref().resources.as_ref().and_then(|resources| resources.requests.as_ref());
    if !names_supported(requests) {
        return 0;
    }
    let asked = amount(requests, "memory").map_or(0, Quantity::value);
    let given = container_requests(pod).get("memory").map_or(0, |amount| amount.value());
    let containers = i64::try_from(pod.all_containers().count()).unwrap_or(i64::MAX).max(1);
    asked.saturating_sub(given).max(0) / containers
}

fn hugepage_limits(pod: &Pod, container: &Container, node: &NodeSettings) -> Vec<HugepageLimit> {
    let mut limits: HashMap<String, u64> = HashMap::new();
    let of_pod = pod_level(pod).and_then(|resources| resources.limits.as_ref());
    let of_container = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    for (name, amount) in amounts(of_pod).chain(amounts(of_container)) {
        if let Some(unit) = huge_page_size(name).and_then(huge_page_unit) {
            limits.insert(unit, u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    let of_size = |size: &String| limits.get(size).copied().unwrap_or(0);
    node.huge_page_sizes
        .iter()
        .map(|size| HugepageLimit { page_size: size.clone(), limit: of_size(size) })
        .collect()
}

/// Bytes of `hugepages-2Mi`.
pub(super) fn huge_page_size(name: &str) -> Option<i64> {
    Some(Quantity::parse(name.strip_prefix("hugepages-")?).ok()?.value())
}

/// The kernel's spelling of a page size: the largest unit that divides it.
fn huge_page_unit(mut size: i64) -> Option<String> {
    let mut units = ["B", "KB", "MB", "GB", "TB", "PB"].iter();
    let mut unit = units.next()?;
    while size % 1024 == 0 && size > 0 {
        match units.next() {
            Some(next) => (unit, size) = (next, size / 1024),
            None => break,
        }
    }
    Some(format!("{size}{unit}"))
}

fn limit_swap(
    resources: &mut LinuxContainerResources,
    pod: &Pod,
    container: &Container,
    node: &NodeSettings,
) {
    if !node.swap.controller {
        return;
    }
    if !node.cgroup_v2 {
        // v1 limits memory and swap together: equal limits mean no swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        return;
    }
    let request = request(container, "memory").unwrap_or(Quantity::ZERO);
    let limit = limit(container, "memory").unwrap_or(Quantity::ZERO);
    let may_swap =
        node.swap.limited && !is_critical(pod) && qos_class(pod) == QosClass::Burstable && request != limit;
    let swap = if may_swap && node.memory_capacity > 0 && request.value() <= node.memory_capacity {
        let share =
            i128::from(request.value()) * i128::from(node.swap.capacity) / i128::from(node.memory_capacity);
        i64::try_from(share).unwrap_or(i64::MAX)
    } else {
        0
    };
    resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
}

/// cgroup v2's memory protection and throttling (KEP-2570).
fn protect_memory(
    resources: &mut LinuxContainerResources,
    pod: &Pod,
    container: &Container,
    node: &NodeSettings,
) {
    let mut set = |file: &str, value: String| _ = resources.unified.insert(file.to_owned(), value);
    let Some(memory_qos) = node.memory_qos else {
        set("memory.high", "max".to_owned());
        return;
    };
    let request = request(container, "memory").map_or(0, Quantity::value);
    let limit = limit(container, "memory").map_or(0, Quantity::value);
    if request != 0 && memory_qos.tiered_reservation {
        let hard = qos_class(pod) == QosClass::Guaranteed;
        set(if hard { "memory.min" } else { "memory.low" }, request.to_string());
    } else {
        set("memory.min", "0".to_owned());
        set("memory.low", "0".to_owned());
    }
    // With a limit on the pod alone, the pod's cgroup throttles.
    if limit == 0 && pod_level_limit(pod, "memory").is_some() {
        return;
    }
    if request != limit || request == 0 {
        let ceiling = match limit {
            0 => node.allocatable.get("memory").map_or(0, |amount| amount.value()),
            limit => limit,
        };
        if let Some(high) = memory_high(memory_qos, request, ceiling) {
            set("memory.high", high.to_string());
        }
    }
}

/// `request + factor × (ceiling − request)`, down to a whole page.
pub(super) fn memory_high(memory_qos: MemoryQos, request: i64, ceiling: i64) -> Option<i64> {
    let factor = memory_qos.throttling_factor?;
    if ceiling <= 0 || memory_qos.page_size <= 0 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the formula is defined over floating point; `as` saturates and byte counts are far below 2^53"
    )]
    let high = (request as f64 + (ceiling as f64 - request as f64) * factor).floor() as i64;
    let high = high / memory_qos.page_size * memory_qos.page_size;
    (high > request).then_some(high)
}

#[cfg(test)]
mod tests;
