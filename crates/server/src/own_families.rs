//! The families of `/metrics` beside those of requests and of calls to the runtime: what the node has, what its parts have
//! counted, and the process itself. One table, from which they are written and `docs/metrics.md` is made.

mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mainstay_types::{
    Assignments, ContainerPhase, Counter, DurationCounts, Filesystems, FsReading, NodeCounters, NodeSnapshot,
    PodSource, PodStage, Samples, VERSION,
};

use crate::exposition::{Exposition, Kind};

pub(crate) use process::{Own, formats};
use process::{limit, open_files};

/// What is known of the process from its start on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// 1 or 2; 0 where nobody knows.
    pub cgroup_version: u8,
    /// Feature gates: name, stage as metrics label it, whether it is on.
    pub gates: Arc<[(&'static str, &'static str, bool)]>,
}

/// What the families are written from.
pub(crate) struct Source<'a> {
    pub(crate) snapshot: Option<&'a NodeSnapshot>,
    pub(crate) samples: &'a Samples,
    pub(crate) disks: &'a Filesystems,
    pub(crate) counters: &'a NodeCounters,
    pub(crate) facts: &'a Facts,
    pub(crate) events_dropped: u64,
    /// What became of spans; `None` where nobody wants any.
    pub(crate) traces: Option<mainstay_trace::Counts>,
    pub(crate) assignments: &'a Assignments,
    pub(crate) own: Own,
}

/// One family.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    write: fn(&mut Lines<'_>, &Source<'_>),
}

/// The samples of one family. HELP and TYPE come with the first: a family that has nothing to say is not there.
struct Lines<'a> {
    out: &'a mut Exposition,
    family: &'a Family,
    begun: bool,
}

impl Lines<'_> {
    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.out.family(self.family.name, self.family.help, self.family.kind);
        }
    }

    fn put(&mut self, labels: &[(&str, &str)], value: f64) {
        self.begin();
        let labels = if labels.is_empty() { String::new() } else { crate::exposition::labels(labels) };
        self.out.reading(self.family.name, &labels, value, None);
    }

    fn count(&mut self, labels: &[(&str, &str)], value: u64) {
        self.put(labels, number(value));
    }

    /// One without labels is there from the beginning, as upstream's: what begins with its first count has no rate.
    fn durations(&mut self, labels: &[(&str, &str)], counts: DurationCounts) {
        if counts.count > 0 || labels.is_empty() {
            self.begin();
            self.out.histogram(self.family.name, labels, counts.buckets, (counts.sum, counts.count));
        }
    }

    fn counters<const N: usize>(&mut self, names: [&str; N], all: &[([&'static str; N], Arc<Counter>)]) {
        for (values, counter) in all {
            let labels: Vec<(&str, &str)> = names.into_iter().zip(values.iter().copied()).collect();
            self.count(&labels, counter.get());
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus' numbers are floats, and 2^53 of anything is far away"
)]
const fn number(value: u64) -> f64 {
    value as f64
}

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

/// Why pods are evicted so far.
const EVICTION_SIGNALS: [&str; 3] =
    ["emptydirfs.limit", "ephemeralcontainerfs.limit", "ephemeralpodfs.limit"];

/// All of them, by name.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_active_pods",
        help: "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
        kind: Kind::Gauge,
        write: |lines, source| pods(lines, source, |phase| !matches!(phase, "Succeeded" | "Failed")),
    },
    Family {
        name: "kubelet_admission_rejections_total",
        help: "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["reason"], &source.counters.rejections.all()),
    },
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
        name: "kubelet_cgroup_version",
        help: "[ALPHA] cgroup version on the hosts.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if source.facts.cgroup_version > 0 {
                lines.put(&[], f64::from(source.facts.cgroup_version));
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
        name: "kubelet_container_log_filesystem_used_bytes",
        help: "[ALPHA] Bytes used by the container's logs on the filesystem.",
        kind: Kind::Gauge,
        write: container_logs,
    },
    Family {
        name: "kubelet_containers_per_pod_count",
        help: "[ALPHA] The number of containers per pod.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.containers_per_pod.read()),
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
        name: "kubelet_credential_provider_plugin_duration",
        help: "[ALPHA] Duration of execution in seconds for credential provider plugin",
        kind: Kind::Histogram,
        write: |lines, source| {
            for (name, times) in source.counters.provider_times.all() {
                lines.durations(&[("plugin_name", &name)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_credential_provider_plugin_errors_total",
        help: "[ALPHA] Number of errors from credential provider plugin",
        kind: Kind::Counter,
        write: |lines, source| {
            for (name, count) in source.counters.provider_errors.all() {
                lines.count(&[("plugin_name", &name)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_desired_pods",
        help: "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
        kind: Kind::Gauge,
        write: |lines, source| pods(lines, source, |_| true),
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
        name: "kubelet_evented_pleg_connection_error_count",
        help: "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.event_stream_errors.get()),
    },
    Family {
        name: "kubelet_evented_pleg_connection_latency_seconds",
        help: "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.event_ages.read()),
    },
    Family {
        name: "kubelet_evented_pleg_connection_success_count",
        help: "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.event_streams.get()),
    },
    Family {
        name: "kubelet_evictions",
        help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
        kind: Kind::Counter,
        write: |lines, source| {
            // From the beginning: what begins with its first count has no rate, and no alert.
            for signal in EVICTION_SIGNALS {
                lines.count(&[("eviction_signal", signal)], source.counters.evictions.of([signal]).get());
            }
        },
    },
    Family {
        name: "kubelet_first_network_pod_start_sli_duration_seconds",
        help: "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(took) = source.counters.first_network_start.get() {
                lines.put(&[], took.as_secs_f64());
            }
        },
    },
    Family {
        name: "kubelet_image_manager_ensure_image_requests_total",
        help: "[ALPHA] Number of ensure-image requests processed by the kubelet.",
        kind: Kind::Counter,
        write: |lines, source| {
            let names = ["present_locally", "pull_policy", "pull_required"];
            lines.counters(names, &source.counters.images_wanted.all());
        },
    },
    Family {
        name: "kubelet_image_pull_duration_seconds",
        help: "[ALPHA] Duration in seconds to pull an image.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([size], pulls) in source.counters.pulls.all() {
                lines.durations(&[("image_size_in_bytes", size)], pulls.read());
            }
        },
    },
    Family {
        name: "kubelet_image_volume_mounted_errors_total",
        help: "[BETA] Number of failed image volume mounts.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volume_errors.get()),
    },
    Family {
        name: "kubelet_image_volume_mounted_succeed_total",
        help: "[BETA] Number of successful image volume mounts.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volume_mounts.get()),
    },
    Family {
        name: "kubelet_image_volume_requested_total",
        help: "[BETA] Number of requested image volumes.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.image_volumes.get()),
    },
    Family {
        name: "kubelet_imagemanager_image_mustpull_checks_total",
        help: "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["result"], &source.counters.image_checks.all()),
    },
    Family {
        name: "kubelet_imagemanager_ondisk_pulledrecords",
        help: "[ALPHA] Number of ImagePulledRecords stored on disk.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.pulled_records.get()),
    },
    Family {
        name: "kubelet_imagemanager_ondisk_pullintents",
        help: "[ALPHA] Number of ImagePullIntents stored on disk.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.pull_intents.get()),
    },
    Family {
        name: "kubelet_lifecycle_handler_http_fallbacks_total",
        help: "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.hook_fallbacks.get()),
    },
    Family {
        name: "kubelet_managed_ephemeral_containers",
        help: "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
        kind: Kind::Gauge,
        write: |lines, source| {
            let Some(snapshot) = source.snapshot else { return };
            let specs = snapshot.pods.iter().filter_map(|view| view.pod.spec.as_ref());
            let containers = specs.map(|spec| spec.ephemeral_containers.as_ref().map_or(0, Vec::len));
            lines.count(&[], containers.sum::<usize>() as u64);
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
        name: "kubelet_metrics_provider",
        help: "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
        kind: Kind::Gauge,
        write: |lines, _| lines.put(&[("provider", "cadvisor")], 1.0),
    },
    Family {
        name: "kubelet_mirror_pods",
        help: "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.mirror_pods.get()),
    },
    Family {
        name: "kubelet_node_name",
        help: "[ALPHA] The node's name. The count is always 1.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(snapshot) = source.snapshot {
                lines.put(&[("node", &snapshot.node_name)], 1.0);
            }
        },
    },
    Family {
        name: "kubelet_orphan_pod_cleaned_volumes",
        help: "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.orphan_volumes.get()),
    },
    Family {
        name: "kubelet_orphan_pod_cleaned_volumes_errors",
        help: "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], source.counters.orphan_volume_errors.get()),
    },
    Family {
        name: "kubelet_orphaned_runtime_pods_total",
        help: "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.orphans_found.get()),
    },
    Family {
        name: "kubelet_pleg_discard_events",
        help: "[ALPHA] The number of discard events in PLEG.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.wishes_dropped.get()),
    },
    Family {
        name: "kubelet_pleg_last_seen_seconds",
        help: "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
        kind: Kind::Gauge,
        write: |lines, source| match source.counters.last_relist.get() {
            0 => {}
            at => lines.count(&[], at),
        },
    },
    Family {
        name: "kubelet_pleg_pod_relist_duration_seconds",
        help: "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_reads.read()),
    },
    Family {
        name: "kubelet_pleg_relist_duration_seconds",
        help: "[ALPHA] Duration in seconds for relisting pods in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.relists.read()),
    },
    Family {
        name: "kubelet_pleg_relist_interval_seconds",
        help: "[ALPHA] Interval in seconds between relisting in PLEG.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.relist_intervals.read()),
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
        name: "kubelet_pod_start_duration_seconds",
        help: "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_starts.read()),
    },
    Family {
        name: "kubelet_pod_start_sli_duration_seconds",
        help: "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_start_slis.read()),
    },
    Family {
        name: "kubelet_pod_start_total_duration_seconds",
        help: "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.pod_start_totals.read()),
    },
    Family {
        name: "kubelet_pod_status_sync_duration_seconds",
        help: "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.status_syncs.read()),
    },
    Family {
        name: "kubelet_pod_worker_duration_seconds",
        help: "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([kind], orders) in source.counters.orders.all() {
                lines.durations(&[("operation_type", kind)], orders.read());
            }
        },
    },
    Family {
        name: "kubelet_pod_worker_start_duration_seconds",
        help: "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.worker_starts.read()),
    },
    Family {
        name: "kubelet_preemptions",
        help: "[ALPHA] Cumulative number of pod preemptions by preemption resource",
        kind: Kind::Counter,
        write: |lines, source| {
            for (resource, count) in source.counters.preemptions.all() {
                lines.count(&[("preemption_signal", &resource)], count.get());
            }
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
        name: "kubelet_restarted_pods_total",
        help: "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
        kind: Kind::Counter,
        write: |lines, source| {
            for kind in ["", "true"] {
                lines.count(&[("static", kind)], source.counters.restarted_pods.of([kind]).get());
            }
        },
    },
    Family {
        name: "kubelet_run_podsandbox_duration_seconds",
        help: "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
        kind: Kind::Histogram,
        write: |lines, source| {
            for (handler, times) in source.counters.sandbox_times.all() {
                lines.durations(&[("runtime_handler", &handler)], times.read());
            }
        },
    },
    Family {
        name: "kubelet_run_podsandbox_errors_total",
        help: "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
        kind: Kind::Counter,
        write: |lines, source| {
            for (handler, count) in source.counters.sandbox_failures.all() {
                lines.count(&[("runtime_handler", &handler)], count.get());
            }
        },
    },
    Family {
        name: "kubelet_running_containers",
        help: "[ALPHA] Number of containers currently running",
        kind: Kind::Gauge,
        write: running_containers,
    },
    Family {
        name: "kubelet_running_pods",
        help: "[ALPHA] Number of pods that have a running pod sandbox",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(snapshot) = source.snapshot {
                let pods = snapshot.observed.pods.values();
                lines.count(&[], pods.filter(|pod| pod.ready_sandbox().is_some()).count() as u64);
            }
        },
    },
    Family {
        name: "kubelet_sleep_action_terminated_early_total",
        help: "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sleeps_cut.get()),
    },
    Family {
        name: "kubelet_started_containers_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting containers",
        kind: Kind::Counter,
        write: |lines, source| {
            lines.counters(["code", "container_type"], &source.counters.container_errors.all())
        },
    },
    Family {
        name: "kubelet_started_containers_total",
        help: "[ALPHA] Cumulative number of containers started",
        kind: Kind::Counter,
        write: |lines, source| lines.counters(["container_type"], &source.counters.containers.all()),
    },
    Family {
        name: "kubelet_started_pods_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting pods",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sandbox_errors.get()),
    },
    Family {
        name: "kubelet_started_pods_total",
        help: "[ALPHA] Cumulative number of pods started",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.sandboxes.get()),
    },
    Family {
        name: "kubelet_started_user_namespaced_pods_errors_total",
        help: "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.user_namespace_errors.get()),
    },
    Family {
        name: "kubelet_started_user_namespaced_pods_total",
        help: "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.user_namespaces.get()),
    },
    Family {
        name: "kubelet_terminated_containers_total",
        help: "[ALPHA] Cumulative number of container terminations.",
        kind: Kind::Counter,
        write: |lines, source| {
            let all = source.counters.container_ends.all().into_iter();
            let mut rows: Vec<_> = all
                .map(|((kind, code, reason), count)| (kind, code.to_string(), reason, count.get()))
                .collect();
            rows.sort_unstable();
            for (kind, code, reason, count) in rows {
                let labels = [("container_type", kind), ("exit_code", &*code), ("reason", &*reason)];
                lines.count(&labels, count);
            }
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
    Family {
        name: "kubelet_volume_stats_available_bytes",
        help: "[ALPHA] Number of available bytes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.available_bytes)),
    },
    Family {
        name: "kubelet_volume_stats_capacity_bytes",
        help: "[ALPHA] Capacity in bytes of the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.capacity_bytes)),
    },
    Family {
        name: "kubelet_volume_stats_inodes",
        help: "[ALPHA] Maximum number of inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.inodes)),
    },
    Family {
        name: "kubelet_volume_stats_inodes_free",
        help: "[ALPHA] Number of free inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.size.map(|size| size.inodes_free)),
    },
    Family {
        name: "kubelet_volume_stats_inodes_used",
        help: "[ALPHA] Number of used inodes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.inodes_used),
    },
    Family {
        name: "kubelet_volume_stats_used_bytes",
        help: "[ALPHA] Number of used bytes in the volume",
        kind: Kind::Gauge,
        write: |lines, source| claims(lines, source, |it| it.used_bytes),
    },
    Family {
        name: "kubelet_working_pods",
        help: "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
        kind: Kind::Gauge,
        write: working_pods,
    },
    Family {
        name: "kubernetes_build_info",
        help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        kind: Kind::Gauge,
        write: |lines, _| {
            let mut numbers = VERSION.trim_start_matches('v').split('.');
            let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
            let labels = [
                ("build_date", ""),
                ("compiler", "rustc"),
                ("git_commit", ""),
                ("git_tree_state", ""),
                ("git_version", VERSION),
                ("go_version", ""),
                ("major", major),
                ("minor", minor),
                ("platform", PLATFORM),
            ];
            lines.put(&labels, 1.0);
        },
    },
    Family {
        name: "kubernetes_feature_enabled",
        help: "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
        kind: Kind::Gauge,
        write: |lines, source| {
            for (name, stage, on) in &*source.facts.gates {
                lines.put(&[("name", name), ("stage", stage)], f64::from(u8::from(*on)));
            }
        },
    },
    Family {
        name: "mainstay_events_dropped_total",
        help: "Number of events that were told to nobody because the store was too far behind",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.events_dropped),
    },
    Family {
        name: "mainstay_sample_cgroups",
        help: "Number of cgroups that the newest round of readings read",
        kind: Kind::Gauge,
        write: |lines, source| lines.count(&[], u64::from(source.samples.cost.cgroups)),
    },
    Family {
        name: "mainstay_sample_cpu_seconds_total",
        help: "Processor time that reading cgroups has taken",
        kind: Kind::Counter,
        write: |lines, source| lines.put(&[], number(source.samples.cost.cpu_micros) / 1e6),
    },
    Family {
        name: "mainstay_sample_duration_seconds",
        help: "How long the newest round of readings took",
        kind: Kind::Gauge,
        write: |lines, source| lines.put(&[], number(source.samples.cost.micros) / 1e6),
    },
    Family {
        name: "mainstay_trace_spans_total",
        help: "Number of spans by what became of them: sent to the collector, dropped because too many waited, failed because it did not take them in time, refused by it",
        kind: Kind::Counter,
        write: |lines, source| {
            let Some(counts) = source.traces else { return };
            for (result, count) in [
                ("dropped", counts.dropped),
                ("failed", counts.failed),
                ("refused", counts.refused),
                ("sent", counts.sent),
            ] {
                lines.count(&[("result", result)], count);
            }
        },
    },
    Family {
        name: "process_cpu_seconds_total",
        help: "Total user and system CPU time spent in seconds.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.cpu_seconds);
            }
        },
    },
    Family {
        name: "process_max_fds",
        help: "Maximum number of open file descriptors.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(limit) = limit("Max open files") {
                lines.put(&[], limit);
            }
        },
    },
    Family {
        name: "process_network_receive_bytes_total",
        help: "Number of bytes received by the process over the network.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some((received, _)) = source.own.network() {
                lines.count(&[], received);
            }
        },
    },
    Family {
        name: "process_network_transmit_bytes_total",
        help: "Number of bytes sent by the process over the network.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some((_, sent)) = source.own.network() {
                lines.count(&[], sent);
            }
        },
    },
    Family {
        name: "process_open_fds",
        help: "Number of open file descriptors.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(count) = open_files() {
                lines.count(&[], count);
            }
        },
    },
    Family {
        name: "process_resident_memory_bytes",
        help: "Resident memory size in bytes.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.resident_bytes);
            }
        },
    },
    Family {
        name: "process_virtual_memory_bytes",
        help: "Virtual memory size in bytes.",
        kind: Kind::Gauge,
        write: |lines, source| {
            if let Some(process) = source.own.process() {
                lines.put(&[], process.virtual_bytes);
            }
        },
    },
    Family {
        name: "process_virtual_memory_max_bytes",
        help: "Maximum amount of virtual memory available in bytes.",
        kind: Kind::Gauge,
        write: |lines, _| {
            if let Some(limit) = limit("Max address space") {
                lines.put(&[], limit);
            }
        },
    },
    Family {
        name: "rest_client_request_duration_seconds",
        help: "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
        kind: Kind::Histogram,
        write: |lines, source| {
            let Some((host, calls)) = source.counters.api.get() else { return };
            for ([verb], times) in calls.times.all() {
                lines.durations(&[("host", host), ("verb", verb)], times.read());
            }
        },
    },
    Family {
        name: "rest_client_requests_total",
        help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
        kind: Kind::Counter,
        write: |lines, source| {
            let Some((host, calls)) = source.counters.api.get() else { return };
            for (status, method, count) in calls.read() {
                let code = status.map_or("<error>".to_owned(), |status| status.to_string());
                lines.count(&[("code", &code), ("host", host), ("method", method)], count);
            }
        },
    },
    Family {
        name: "storage_operation_duration_seconds",
        help: "[BETA] Storage operation duration",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([operation, status, plugin], times) in source.counters.storage_work.all() {
                let labels = [
                    ("migrated", "false"),
                    ("operation_name", operation),
                    ("status", status),
                    ("volume_plugin", plugin),
                ];
                lines.durations(&labels, times.read());
            }
        },
    },
    Family {
        name: "volume_manager_total_volumes",
        help: "[ALPHA] Number of volumes in Volume Manager",
        kind: Kind::Gauge,
        write: volumes,
    },
    Family {
        name: "volume_operation_total_seconds",
        help: "[BETA] Storage operation end to end duration in seconds",
        kind: Kind::Histogram,
        write: |lines, source| {
            for ([operation, plugin], times) in source.counters.volume_waits.all() {
                lines.durations(&[("operation_name", operation), ("plugin_name", plugin)], times.read());
            }
        },
    },
];

#[cfg(target_arch = "x86_64")]
const PLATFORM: &str = "linux/amd64";
#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "linux/arm64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const PLATFORM: &str = "linux/other";

/// Writes all that have something to say.
pub(crate) fn write(out: &mut Exposition, source: &Source<'_>) {
    for family in FAMILIES {
        if out.takes(family.name) {
            let mut lines = Lines { out, family, begun: false };
            (family.write)(&mut lines, source);
        }
    }
}

/// Pods in this phase, by whether they are the API server's.
fn pods(lines: &mut Lines<'_>, source: &Source<'_>, is_in: impl Fn(&str) -> bool) {
    let Some(snapshot) = source.snapshot else { return };
    let (mut static_pods, mut others) = (0, 0);
    for view in &snapshot.pods {
        let phase = view.status.phase.as_deref().unwrap_or_default();
        if is_in(phase) {
            let count = if view.source == PodSource::Api { &mut others } else { &mut static_pods };
            *count += 1;
        }
    }
    lines.count(&[("static", "")], others);
    lines.count(&[("static", "true")], static_pods);
}

/// Pods by how far they are; whether they are wanted still, only ending, or known to the runtime alone; and whether they are static.
fn working_pods(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<[&str; 3], u64> = BTreeMap::new();
    for kind in [
        ["desired", ""],
        ["desired", "true"],
        ["orphan", ""],
        ["orphan", "true"],
        ["runtime_only", "unknown"],
    ] {
        for stage in ["sync", "terminated", "terminating"] {
            counts.insert([kind[0], stage, kind[1]], 0);
        }
    }
    for view in &snapshot.pods {
        let config = if snapshot.desired.pods.contains_key(&view.uid) { "desired" } else { "orphan" };
        let stage = match view.stage {
            PodStage::Waiting | PodStage::Syncing => "sync",
            PodStage::Terminating => "terminating",
            PodStage::Terminated => "terminated",
        };
        let kind = if view.source.is_static() { "true" } else { "" };
        *counts.entry([config, stage, kind]).or_default() += 1;
    }
    // They are taken up to be ended, and forgotten when they have.
    counts.insert(["runtime_only", "terminating", "unknown"], source.counters.orphans_going.get());
    for ([config, stage, kind], count) in counts {
        lines.count(&[("config", config), ("lifecycle", stage), ("static", kind)], count);
    }
}

/// Volumes of pods that shall run, and of those that have a sandbox, before which they are set up.
fn volumes(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for view in &snapshot.pods {
        let ended = matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let is_up = snapshot.observed.pods.get(&view.uid).is_some_and(|pod| pod.ready_sandbox().is_some());
        for volume in view.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let plugin = mainstay_podspec::volumes::plugin_name(volume);
            if is_up {
                *counts.entry((plugin, "actual_state_of_world")).or_default() += 1;
            }
            if !ended {
                *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
            }
        }
    }
    for ((plugin, state), count) in counts {
        lines.count(&[("plugin_name", plugin), ("state", state)], count);
    }
}

fn running_containers(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for container in snapshot.observed.pods.values().flat_map(|pod| &pod.containers) {
        let state = match container.phase {
            ContainerPhase::Created => "created",
            ContainerPhase::Running => "running",
            ContainerPhase::Exited => "exited",
            ContainerPhase::Unknown => "unknown",
        };
        *counts.entry(state).or_default() += 1;
    }
    for state in ["created", "exited", "running", "unknown"] {
        lines.count(&[("container_state", state)], counts.get(state).copied().unwrap_or(0));
    }
}

/// Volumes of claims, each once however many pods share it. What was not found out is 0, as upstream has it.
fn claims(lines: &mut Lines<'_>, source: &Source<'_>, value: impl Fn(&FsReading) -> Option<u64>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut found: BTreeMap<(&str, &str), &FsReading> = BTreeMap::new();
    for (uid, disk) in &source.disks.pods {
        let Some(pod) = snapshot.observed.pods.get(uid) else { continue };
        for volume in disk.volumes.iter() {
            if let Some(claim) = &volume.claim {
                let newest = found.entry((&pod.full_name.namespace, claim)).or_insert(&volume.reading);
                if newest.at < volume.reading.at {
                    *newest = &volume.reading;
                }
            }
        }
    }
    for ((namespace, claim), reading) in found {
        let labels = [("namespace", namespace), ("persistentvolumeclaim", claim)];
        lines.count(&labels, value(reading).unwrap_or(0));
    }
}

fn container_logs(lines: &mut Lines<'_>, source: &Source<'_>) {
    let Some(snapshot) = source.snapshot else { return };
    let mut rows = Vec::new();
    for (uid, disk) in &source.disks.pods {
        let Some(pod) = snapshot.observed.pods.get(uid) else { continue };
        for container in &disk.containers {
            if let Some(bytes) = container.logs.and_then(|logs| logs.used_bytes) {
                rows.push((container.name.as_str(), &pod.full_name, uid.as_str(), bytes));
            }
        }
    }
    rows.sort_unstable();
    for (container, name, uid, bytes) in rows {
        let labels =
            [("container", container), ("namespace", &*name.namespace), ("pod", &*name.name), ("uid", uid)];
        lines.count(&labels, bytes);
    }
}

/// Puts families that were written by several in the order of their names.
pub(crate) fn in_order(text: &str) -> String {
    let mut blocks: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.get(1..).and_then(|tail| tail.find("\n# HELP ")) {
        let (block, tail) = rest.split_at(at + 2);
        blocks.push(block);
        rest = tail;
    }
    blocks.push(rest);
    blocks.sort_unstable();
    blocks.concat()
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
