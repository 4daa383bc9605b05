//! How CPUs and memory are given out: what of the configuration says so.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::{Context, Result};
use mainstay_alloc::{CpuSet, Options, TopologyPolicy};
use mainstay_config::Loaded;
use mainstay_devices::Devices;
use mainstay_host::Host;
use mainstay_resources::{CpuSettings, ResourcesConfig, TopologySettings, check_reserved_memory};
use mainstay_types::{Assignments, NodeCounters, NodeResources, Quantity};
use tokio::sync::watch;

/// Upstream's, where nothing is said.
const MOST_NODES: usize = 8;

/// What is to be given out, by the configuration. Validation has refused options that are none.
pub(crate) fn config(
    (loaded, root, recorded): (&Loaded, &Path, bool),
    host: &Host,
    resources: &NodeResources,
    devices: Devices,
    (assignments, counters): (watch::Sender<Arc<Assignments>>, Arc<NodeCounters>),
) -> Result<ResourcesConfig> {
    let config = &loaded.config;
    let option = |name: &str| config.topology_manager_policy_options.get(name).map(String::as_str);
    Ok(ResourcesConfig {
        root: root.to_owned(),
        recorded,
        patience: mainstay_resources::PATIENCE,
        host: host.clone(),
        cpus: if config.cpu_manager_policy == "static" { Some(cpus(loaded, resources)?) } else { None },
        memory: if config.memory_manager_policy == "Static" {
            Some(memory(loaded, resources)?)
        } else {
            None
        },
        topology: TopologySettings {
            policy: TopologyPolicy::from_word(&config.topology_manager_policy).unwrap_or_default(),
            whole_pods: config.topology_manager_scope == "pod",
            prefer_closest: option("prefer-closest-numa-nodes").is_some_and(is_true),
            most_nodes: option("max-allowable-numa-nodes")
                .and_then(|it| it.parse().ok())
                .unwrap_or(MOST_NODES),
        },
        pod_level: loaded.gates.enabled("PodLevelResourceManagers"),
        period: config.cpu_manager_reconcile_period.as_std(),
        devices,
        assignments,
        counters,
    })
}

fn cpus(loaded: &Loaded, resources: &NodeResources) -> Result<CpuSettings> {
    let config = &loaded.config;
    let option =
        |name: &str| config.cpu_manager_policy_options.get(name).map(String::as_str).is_some_and(is_true);
    let given = config.reserved_system_cpus.as_str();
    let reserved: CpuSet = given.parse().context("reservedSystemCPUs")?;
    let milli = |list: &mainstay_types::ResourceList| list.get("cpu").map_or(0, |amount| amount.milli());
    let milli = milli(&resources.system_reserved).saturating_add(milli(&resources.kube_reserved)).max(0);
    let count = usize::try_from(milli).unwrap_or(0).div_ceil(1000);
    Ok(CpuSettings {
        reserved_count: if given.is_empty() { count } else { reserved.len() },
        reserved: (!given.is_empty()).then_some(reserved),
        options: Options {
            whole_cores: option("full-pcpus-only"),
            strict_reservation: option("strict-cpu-reservation"),
            over_nodes: option("distribute-cpus-across-numa"),
            spread: option("distribute-cpus-across-cores"),
            by_cache: option("prefer-align-cpus-by-uncorecache"),
            by_socket: option("align-by-socket"),
        },
    })
}

/// `reservedMemory`, which has to be what is kept back.
fn memory(loaded: &Loaded, resources: &NodeResources) -> Result<BTreeMap<u32, BTreeMap<String, u64>>> {
    let bytes = |text: &str| Quantity::parse(text).map_or(0, Quantity::value);
    let mut reserved: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    for reservation in &loaded.config.reserved_memory {
        let node = u32::try_from(reservation.numa_node).context("reservedMemory has a negative numaNode")?;
        for (kind, amount) in &reservation.limits {
            let amount = u64::try_from(bytes(&amount.to_string())).unwrap_or(0);
            reserved.entry(node).or_default().insert(kind.clone(), amount);
        }
    }
    let mut kept_back: BTreeMap<String, u64> = BTreeMap::new();
    for list in [&resources.system_reserved, &resources.kube_reserved, &resources.eviction_reserved] {
        for (kind, amount) in list {
            let sum = kept_back.entry(kind.clone()).or_default();
            *sum = sum.saturating_add(u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    check_reserved_memory(&reserved, &kept_back)?;
    Ok(reserved)
}

/// As Go reads truth.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
