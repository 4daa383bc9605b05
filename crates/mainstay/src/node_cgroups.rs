//! What the configuration says about cgroups, put into the form that reconcile wants it in.

use anyhow::{Context, Result};
use mainstay_cgroup::{CgroupPath, PodCgroups};
use mainstay_config::Loaded;
use mainstay_podspec::runtime::{NodeCgroupSettings, NodeSettings, reserved_cgroup_values};
use mainstay_reconcile::{Cgroups, ReservedCgroup};
use mainstay_types::NodeResources;
use tracing::warn;

use crate::{app::Mode, place};

/// The node's cgroups. Only `mainstay kubelet` touches cgroups that are not pods'.
pub(crate) fn build(
    loaded: &Loaded,
    mode: Mode,
    tree: PodCgroups,
    node: &NodeSettings,
    resources: &NodeResources,
) -> Result<Cgroups> {
    let config = &loaded.config;
    let enforced = |what: &str| config.enforce_node_allocatable.iter().any(|given| given == what);
    let settings = NodeCgroupSettings {
        resources: resources.clone(),
        enforce_pods: enforced("pods"),
        reserved_memory_percent: loaded
            .gates
            .enabled("QOSReserved")
            .then(|| config.qos_reserved.get("memory")?.strip_suffix('%')?.parse().ok())
            .flatten(),
    };
    let given = |field: &str, text: &str| -> Result<Option<CgroupPath>> {
        if text.is_empty() {
            return Ok(None);
        }
        if mode == Mode::Run {
            warn!(
                "{field} is left alone: `mainstay run` touches no cgroups but those of its pods; use `mainstay kubelet`"
            );
            return Ok(None);
        }
        let path = tree.names().given(text).with_context(|| format!("{field} is not usable"))?;
        Ok(Some(path))
    };
    let own = given("kubeletCgroups", &config.kubelet_cgroups)?;
    let system = given("systemCgroups", &config.system_cgroups)?;
    let mut reserved = Vec::new();
    for (whose, form, field, cgroup, amounts) in [
        (
            "System",
            "system-reserved",
            "systemReservedCgroup",
            &config.system_reserved_cgroup,
            &resources.system_reserved,
        ),
        (
            "Kube",
            "kube-reserved",
            "kubeReservedCgroup",
            &config.kube_reserved_cgroup,
            &resources.kube_reserved,
        ),
    ] {
        let compressible_only = enforced(&format!("{form}-compressible"));
        if (compressible_only || enforced(form))
            && let Some(path) = given(field, cgroup)?
        {
            let values = reserved_cgroup_values(amounts, compressible_only, node);
            reserved.push(ReservedCgroup { whose, path, values });
        }
    }
    Ok(Cgroups::new(tree, config.pod_pids_limit, settings, &loaded.settings.root_dir)
        .with_all_pods(place::is_the_kubelet(loaded, mode))
        .with_reserved(reserved)
        .with_places(own, system))
}
