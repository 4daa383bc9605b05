//! What is given out to pods: CPUs, memory, devices, cgroups.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_types::Assignments;

use super::Family;
use crate::exposition::Kind;

/// Seconds in milliseconds, without what floats make of a bound such as 0.05.
fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

/// How many CPUs of each NUMA node are containers' own; all nodes where CPUs are given out.
fn pinned_by_node(assignments: &Assignments) -> BTreeMap<u32, u64> {
    let placement = &assignments.placement;
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    if placement.pins_cpus {
        nodes.extend(placement.cpus.values().map(|cpu| (cpu.node, 0)));
    }
    let containers = assignments.pods.values().flat_map(|pod| pod.containers.values());
    // An init container's may be another container's after it.
    let pinned: BTreeSet<u32> = containers.flat_map(|container| &container.cpus).copied().collect();
    for cpu in pinned {
        if let Some(place) = placement.cpus.get(&cpu) {
            *nodes.entry(place.node).or_default() += 1;
        }
    }
    nodes
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_cgroup_manager_duration_seconds",
        help: "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([word], times) in source.counters.cgroup_work.all() {
                lines.durations(&[("operation_type", word)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_container_aligned_compute_resources_count",
        help: "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["boundary", "scope"], &source.counters.pinning.aligned.all());
        },
    },
    Family {
        name: "kubelet_container_aligned_compute_resources_failure_count",
        help: "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["boundary", "scope"], &source.counters.pinning.misaligned.all());
        },
    },
    Family {
        name: "kubelet_cpu_manager_allocation_per_numa",
        help: "[ALPHA] Number of CPUs allocated per NUMA node",
        kind: Kind::Gauge,
        write: |lines, source| {
            for (node, count) in pinned_by_node(source.assignments) {
                lines.count(&[("numa_node", &node.to_string())], count);
            }
        },
    },
    Family {
        name: "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        help: "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], pinned_by_node(source.assignments).values().sum()),
    },
    Family {
        name: "kubelet_cpu_manager_pinning_errors_total",
        help: "[ALPHA] The number of cpu core allocations which required pinning failed.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.cpu_errors.get()),
    },
    Family {
        name: "kubelet_cpu_manager_pinning_requests_total",
        help: "[ALPHA] The number of cpu core allocations which required pinning.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.cpu_requests.get()),
    },
    Family {
        name: "kubelet_cpu_manager_shared_pool_size_millicores",
        help: "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
        kind: Kind::Gauge,
        write: |lines, source| {
            let placement = &source.assignments.placement;
            let shared = placement.shared.difference(&placement.reserved).count();
            lines.count(&[], u64::try_from(shared).unwrap_or(0) * 1000);
        },
    },
    Family {
        name: "kubelet_device_plugin_alloc_duration_seconds",
        help: "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for (resource, times) in source.counters.device_allocations.all() {
                lines.durations(&[("resource_name", &resource)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_device_plugin_registration_total",
        help: "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
        kind: Kind::Counter,
        write: |lines, source| {
            for (resource, count) in source.counters.device_registrations.all() {
                lines.count(&[("resource_name", &resource)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_memory_manager_pinning_errors_total",
        help: "[ALPHA] The number of memory pages allocations which required pinning that failed.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.memory_errors.get()),
    },
    Family {
        name: "kubelet_memory_manager_pinning_requests_total",
        help: "[ALPHA] The number of memory pages allocations which required pinning.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.memory_requests.get()),
    },
    Family {
        name: "kubelet_memory_qos_node_memory_low_bytes",
        help: "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.soft_memory.get()),
    },
    Family {
        name: "kubelet_memory_qos_node_memory_min_bytes",
        help: "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.hard_memory.get()),
    },
    Family {
        name: "kubelet_pod_level_resources_admission_total",
        help: "[ALPHA] Total number of pods admitted during Kubelet admission, categorized by resource configuration mode (pod_and_container_level, pod_level, container_level, or empty for unconfigured/BestEffort) and QoS class.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["config_mode", "qos_class"], &source.counters.resource_modes.all())
        },
    },
    Family {
        name: "kubelet_resource_manager_allocation_errors_total",
        help: "[ALPHA] Number of errors encountered during exclusive resource allocation.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["resource_name", "source"], &source.counters.pinning.allocation_errors.all())
        },
    },
    Family {
        name: "kubelet_resource_manager_allocations_total",
        help: "[ALPHA] Number of exclusive resource allocations performed by a resource manager.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["resource_name", "source"], &source.counters.pinning.allocations.all())
        },
    },
    Family {
        name: "kubelet_resource_manager_container_assignments_total",
        help: "[ALPHA] Number of containers with a specific type of resource assignment.",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(
                ["resource_name", "assignment_type"],
                &source.counters.pinning.container_assignments.all(),
            )
        },
    },
    Family {
        name: "kubelet_topology_manager_admission_duration_ms",
        help: "[ALPHA] Duration in milliseconds to serve a pod admission request.",
        kind: Kind::Histogram,
        write: |lines, source| {
            let counts = source.counters.pinning.admission_times.read();
            lines.begin();
            let buckets = counts.buckets.into_iter().map(|(bound, count)| (millis(bound), count));
            lines.out.histogram(lines.family.name, &[], buckets, (millis(counts.sum), counts.count));
        },
    },
    Family {
        name: "kubelet_topology_manager_admission_errors_total",
        help: "[ALPHA] The number of admission request failures where resources could not be aligned.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.admission_errors.get()),
    },
    Family {
        name: "kubelet_topology_manager_admission_requests_total",
        help: "[ALPHA] The number of admission requests where resources have to be aligned.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.pinning.admissions.get()),
    },
];
