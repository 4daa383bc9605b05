//! Rules about CPU, memory, reservations and eviction.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_types::Quantity;

use super::{Findings, list};
use crate::duration::GoDuration;
use crate::gates::FeatureGates;
use crate::kubelet::KubeletConfiguration;
use crate::names;
use crate::nearest::{nearest, suggestion};

/// What can run short (`pkg/kubelet/eviction/api`).
const SIGNALS: &[&str] = &[
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
];

/// CPU manager options and the gate that each needs.
const CPU_OPTIONS: &[(&str, Option<&str>)] = &[
    ("full-pcpus-only", None),
    ("strict-cpu-reservation", None),
    ("prefer-align-cpus-by-uncorecache", None),
    ("distribute-cpus-across-numa", Some("CPUManagerPolicyBetaOptions")),
    ("align-by-socket", Some("CPUManagerPolicyAlphaOptions")),
    ("distribute-cpus-across-cores", Some("CPUManagerPolicyAlphaOptions")),
];

/// The factor that files still carry from the time when it was the default.
const FORMER_THROTTLING_FACTOR: f64 = 0.9;

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    cgroups(config, gates, findings);
    memory(config, gates, findings);
    managers(config, gates, findings);
    node_allocatable(config, findings);
    reservations(config, findings);
    eviction(config, findings);
}

fn cgroups(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    findings.require(
        config.system_cgroups.is_empty() || !config.cgroup_root.is_empty(),
        "systemCgroups",
        "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
        "set cgroupRoot",
    );
    let period = config.cpu_cfs_quota_period;
    let path = "cpuCFSQuotaPeriod";
    if gates.enabled("CustomCPUCFSQuotaPeriod") {
        let range = GoDuration::from_milliseconds(1)..=GoDuration::from_seconds(1);
        findings.require(
            range.contains(&period),
            path,
            format!(
                "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} must be between 1ms and 1sec, inclusive"
            ),
            "",
        );
    } else {
        findings.require(
            period == GoDuration::from_milliseconds(100),
            path,
            format!("cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} requires feature gate CustomCPUCFSQuotaPeriod"),
            "enable the gate, or remove it",
        );
    }
}

fn memory(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    findings.require(
        gates.enabled("NodeSwap") || config.memory_swap.swap_behavior.is_empty(),
        "memorySwap.swapBehavior",
        "memorySwap.swapBehavior cannot be set when NodeSwap feature flag is disabled",
        "remove it, or enable the gate",
    );
    let quality = gates.enabled("MemoryQoS");
    if let Some(factor) = config.memory_throttling_factor {
        findings.require(
            quality || factor.to_bits() == FORMER_THROTTLING_FACTOR.to_bits(),
            "memoryThrottlingFactor",
            "memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled",
            "remove it, or enable the gate",
        );
        findings.require(
            factor > 0.0 && factor <= 1.0,
            "memoryThrottlingFactor",
            format!("memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"),
            "",
        );
    }
    let policy = config.memory_reservation_policy.as_str();
    if quality {
        return;
    }
    match policy {
        "None" => {}
        "TieredReservation" => findings.add(
            "memoryReservationPolicy",
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled",
            "enable the gate, or remove it",
        ),
        other => findings.add(
            "memoryReservationPolicy",
            format!("option {other:?} specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\""),
            "write one of them",
        ),
    }
}

fn managers(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let options = &config.cpu_manager_policy_options;
    let path = "cpuManagerPolicyOptions";
    findings.require(
        options.is_empty() || config.cpu_manager_policy == "static",
        path,
        format!(
            "cpuManagerPolicyOptions need cpuManagerPolicy (--cpu-manager-policy) static, not {:?}",
            config.cpu_manager_policy
        ),
        "set cpuManagerPolicy: static, or remove them",
    );
    for (name, value) in options {
        let Some((_, gate)) = CPU_OPTIONS.iter().find(|(known, _)| known == name) else {
            let found = nearest(name, CPU_OPTIONS.iter().map(|(known, _)| *known));
            let known = || list(&CPU_OPTIONS.iter().map(|(known, _)| *known).collect::<Vec<_>>());
            let remedy = suggestion(found, &format!("use {}", known()));
            findings.add(
                path,
                format!("unknown CPU Manager Policy option: {name:?} in cpuManagerPolicyOptions"),
                remedy,
            );
            continue;
        };
        if let Some(gate) = gate.filter(|gate| !gates.enabled(gate)) {
            findings.add(
                path,
                format!("option {name:?} of cpuManagerPolicyOptions requires feature gate {gate}"),
                "enable the gate, or remove it",
            );
        }
        require_bool(path, name, value, findings);
    }
    let on = |name: &str| options.get(name).is_some_and(|value| go_bool(value) == Some(true));
    for (one, other) in [
        ("full-pcpus-only", "distribute-cpus-across-cores"),
        ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
    ] {
        findings.require(
            !(on(one) && on(other)),
            path,
            format!("static policy options {one} and {other} of cpuManagerPolicyOptions can not be used at the same time"),
            "keep one of them",
        );
    }
    findings.require(
        !(on("align-by-socket") && config.topology_manager_policy == "single-numa-node"),
        path,
        "topologyManagerPolicy single-numa-node is incompatible with the option align-by-socket of cpuManagerPolicyOptions",
        "keep one of them",
    );
    topology(config, findings);
    for (resource, percentage) in &config.qos_reserved {
        let number = percentage.strip_suffix('%').and_then(|number| number.parse::<u8>().ok());
        findings.require(
            resource == "memory",
            "qosReserved",
            format!("cannot reserve {resource:?} resource in qosReserved (--qos-reserved)"),
            "only memory can be reserved",
        );
        findings.require(
            number.is_some_and(|number| number <= 100),
            "qosReserved",
            format!("percentage {percentage:?} for {resource:?} in qosReserved (--qos-reserved) must be between 0% and 100%"),
            "",
        );
    }
}

fn topology(config: &KubeletConfiguration, findings: &mut Findings) {
    let path = "topologyManagerPolicyOptions";
    for (name, value) in &config.topology_manager_policy_options {
        match name.as_str() {
            "prefer-closest-numa-nodes" => require_bool(path, name, value, findings),
            "max-allowable-numa-nodes" => findings.require(
                value.parse::<u32>().is_ok_and(|nodes| nodes >= 8),
                path,
                format!("the minimum value of {name:?} in topologyManagerPolicyOptions should not be less than 8, got {value:?}"),
                "",
            ),
            _ => findings.add(
                path,
                format!("unknown Topology Manager Policy option: {name:?} in topologyManagerPolicyOptions"),
                suggestion(
                    nearest(name, ["prefer-closest-numa-nodes", "max-allowable-numa-nodes"]),
                    "use prefer-closest-numa-nodes or max-allowable-numa-nodes",
                ),
            ),
        }
    }
}

fn require_bool(path: &str, name: &str, value: &str, findings: &mut Findings) {
    findings.require(
        go_bool(value).is_some(),
        path,
        format!("bad value for option {name:?} in {path}: {value:?}"),
        "write true or false",
    );
}

/// The words that Go takes for booleans.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn node_allocatable(config: &KubeletConfiguration, findings: &mut Findings) {
    const PATH: &str = "enforceNodeAllocatable";
    const NAME: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
    const KNOWN: &[&str] = &[
        "pods",
        "system-reserved",
        "system-reserved-compressible",
        "kube-reserved",
        "kube-reserved-compressible",
        "none",
    ];
    let given = &config.enforce_node_allocatable;
    let has = |key: &str| given.iter().any(|given| given == key);
    for key in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{key}-compressible");
        findings.require(
            !(has(key) && has(&compressible)),
            PATH,
            format!("both {key:?} and {compressible:?} cannot be specified together in {NAME}"),
            "keep one of them",
        );
    }
    let mut seen = BTreeSet::new();
    for key in given {
        if !seen.insert(key) {
            findings.add(PATH, format!("duplicated enforcements {key:?} in {NAME}"), "keep one of them");
            continue;
        }
        let needs = match key.as_str() {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => Some((
                &config.system_reserved_cgroup,
                "systemReservedCgroup (--system-reserved-cgroup)",
                "system-reserved",
            )),
            "kube-reserved" | "kube-reserved-compressible" => Some((
                &config.kube_reserved_cgroup,
                "kubeReservedCgroup (--kube-reserved-cgroup)",
                "kube-reserved",
            )),
            "none" => {
                findings.require(
                    given.len() == 1,
                    PATH,
                    format!("{NAME} may not contain additional enforcements when \"none\" is specified"),
                    "keep only none",
                );
                continue;
            }
            _ => {
                findings.add(
                    PATH,
                    format!("option {key:?} specified for {NAME}. Valid options are {}", list(KNOWN)),
                    suggestion(nearest(key, KNOWN.iter().copied()), "write one of them"),
                );
                continue;
            }
        };
        if let Some((cgroup, field, base)) = needs {
            findings.require(
                !cgroup.is_empty(),
                PATH,
                format!(
                    "{field} must be specified when \"{base}\" or \"{base}-compressible\" included in {NAME}"
                ),
                "set it",
            );
        }
        findings.require(
            config.cgroups_per_qos,
            PATH,
            format!("cgroupsPerQOS (--cgroups-per-qos) must be set to true when {key:?} contained in {NAME}"),
            "set cgroupsPerQOS: true, or enforceNodeAllocatable: [none]",
        );
    }
}

fn reservations(config: &KubeletConfiguration, findings: &mut Findings) {
    if !config.reserved_system_cpus.is_empty() {
        let cpus = &config.reserved_system_cpus;
        findings.require(
            config.system_reserved_cgroup.is_empty() && config.kube_reserved_cgroup.is_empty(),
            "reservedSystemCPUs",
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
            "remove one of them",
        );
        findings.require(
            names::is_cpu_list(cpus),
            "reservedSystemCPUs",
            format!("unable to parse reservedSystemCPUs (--reserved-cpus) {cpus}"),
            "write a list such as 0-1,4",
        );
    }
    for (path, flag, reserved) in [
        ("systemReserved", "system-reserved", &config.system_reserved),
        ("kubeReserved", "kube-reserved", &config.kube_reserved),
    ] {
        for (resource, text) in reserved {
            findings.require(
                ["cpu", "memory", "ephemeral-storage", "pid"].contains(&resource.as_str()),
                path,
                format!("cannot reserve {resource:?} resource in {path} (--{flag})"),
                "use cpu, memory, ephemeral-storage or pid",
            );
            match Quantity::parse(text) {
                Ok(quantity) => findings.require(
                    !quantity.is_negative(),
                    path,
                    format!(
                        "resource quantity for {resource:?} in {path} (--{flag}) cannot be negative: {text}"
                    ),
                    "",
                ),
                Err(error) => findings.add(
                    path,
                    format!(
                        "failed to parse quantity {text:?} for {resource:?} resource in {path} (--{flag})"
                    ),
                    error.to_string(),
                ),
            }
        }
    }
    let mut seen = BTreeSet::new();
    for reservation in &config.reserved_memory {
        let node = reservation.numa_node;
        for (resource, quantity) in &reservation.limits {
            findings.require(
                names::is_memory_resource(resource),
                "reservedMemory",
                format!("the limit type {resource:?} for NUMA node {node} in reservedMemory is not supported, only [memory hugepages-<HugePageSize>] is accepted"),
                "",
            );
            findings.require(
                !quantity.amount().is_zero(),
                "reservedMemory",
                format!("reserved memory may not be zero for NUMA node {node} and resource {resource:?} in reservedMemory"),
                "remove it",
            );
            findings.require(
                seen.insert((node, resource)),
                "reservedMemory",
                format!("the reserved memory has a duplicate value for NUMA node {node} and resource {resource:?} in reservedMemory"),
                "keep one of them",
            );
        }
    }
}

fn eviction(config: &KubeletConfiguration, findings: &mut Findings) {
    thresholds("evictionHard", &config.eviction_hard, Percentages::Thresholds, findings);
    thresholds("evictionSoft", &config.eviction_soft, Percentages::Thresholds, findings);
    thresholds("evictionMinimumReclaim", &config.eviction_minimum_reclaim, Percentages::Reclaims, findings);
    for (signal, text) in &config.eviction_soft_grace_period {
        known_signal("evictionSoftGracePeriod", signal, findings);
        match text.parse::<GoDuration>() {
            Ok(period) => findings.require(
                !period.is_negative(),
                "evictionSoftGracePeriod",
                format!("invalid eviction grace period specified: {text} for {signal} in evictionSoftGracePeriod, must be a positive value"),
                "",
            ),
            Err(error) => findings.add("evictionSoftGracePeriod", format!("{signal} in evictionSoftGracePeriod"), error.to_string()),
        }
    }
    for (signal, text) in &config.eviction_soft {
        // 0% and 100% switch a threshold off.
        let off = ["0%", "100%"].contains(&text.as_str());
        findings.require(
            off || config.eviction_soft_grace_period.contains_key(signal),
            "evictionSoft",
            format!("grace period must be specified for the soft eviction threshold {signal}"),
            &format!("add {signal} to evictionSoftGracePeriod"),
        );
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Percentages {
    /// From 0 to 100; quantities above zero.
    Thresholds,
    /// Above 0; quantities from zero up.
    Reclaims,
}

fn thresholds(path: &str, map: &BTreeMap<String, String>, rule: Percentages, findings: &mut Findings) {
    for (signal, text) in map {
        known_signal(path, signal, findings);
        if let Some(number) = text.strip_suffix('%') {
            let fine = number.parse::<f32>().is_ok_and(|percentage| match rule {
                Percentages::Thresholds => (0.0..=100.0).contains(&percentage),
                Percentages::Reclaims => percentage > 0.0 && percentage.is_finite(),
            });
            let wanted = if rule == Percentages::Thresholds { "between 0% and 100%" } else { "positive" };
            findings.require(
                fine,
                path,
                format!("eviction percentage threshold {signal} in {path} must be {wanted}: {text}"),
                "",
            );
            continue;
        }
        match Quantity::parse(text) {
            Ok(quantity) => {
                let fine = !quantity.is_negative() && (rule == Percentages::Reclaims || !quantity.is_zero());
                let message = format!("eviction threshold {signal} in {path} must be positive: {text}");
                findings.require(fine, path, message, "write 0% to switch it off");
            }
            Err(error) => {
                findings.add(path, format!("eviction threshold {signal} in {path}"), error.to_string())
            }
        }
    }
}

fn known_signal(path: &str, signal: &str, findings: &mut Findings) {
    if !SIGNALS.contains(&signal) {
        findings.add(
            path,
            format!("unsupported eviction signal {signal} in {path}"),
            suggestion(nearest(signal, SIGNALS.iter().copied()), &format!("use {}", list(SIGNALS))),
        );
    }
}
