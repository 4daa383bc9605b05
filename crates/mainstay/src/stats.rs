//! What is to be measured, as the configuration says.

use std::{fs, path::Path};

use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_config::{KubeletConfiguration, Loaded};
use mainstay_cri::Cri;
use mainstay_host::Host;
use mainstay_observe::filesystems::FilesystemsConfig;
use mainstay_server::Facts;
use mainstay_types::SliceRole;
use tracing::warn;

/// The cgroups beside those of pods: mainstay's own, the runtime's and the rest of the system's if they are configured.
pub(crate) fn slices(loaded: &Loaded, hierarchy: &Cgroups) -> Vec<(SliceRole, CgroupPath)> {
    let config = &loaded.config;
    let own = if config.kubelet_cgroups.is_empty() {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        CgroupPath::of_process(&text, hierarchy.is_v2())
    } else {
        given("kubeletCgroups", &config.kubelet_cgroups)
    };
    let runtime = given("runtimeCgroups", &loaded.settings.runtime_cgroups);
    let system = given("systemCgroups", &config.system_cgroups);
    [(SliceRole::Kubelet, own), (SliceRole::Runtime, runtime), (SliceRole::Misc, system)]
        .into_iter()
        .filter_map(|(role, path)| Some((role, path?)))
        .collect()
}

/// Below which cgroup each one is a service of the machine and measured as well; only for those who know it by old names.
pub(crate) fn services(loaded: &Loaded) -> Option<CgroupPath> {
    loaded.settings.metrics_old_names.then(|| CgroupPath::parse("/system.slice").ok()).flatten()
}

fn given(field: &str, text: &str) -> Option<CgroupPath> {
    if text.is_empty() {
        return None;
    }
    match CgroupPath::parse(text) {
        Ok(path) => Some(path),
        Err(error) => {
            warn!(field, %error, "this cgroup cannot be measured");
            None
        }
    }
}

/// What `/metrics` tells of the process from its start on.
pub(crate) fn facts(loaded: &Loaded, cgroup_v2: bool) -> Facts {
    let gates = loaded.gates.all().map(|(gate, on)| (gate.name, gate.stage.label(), on));
    let mut gates: Vec<_> = gates.collect();
    gates.sort_unstable();
    Facts { cgroup_version: if cgroup_v2 { 2 } else { 1 }, gates: gates.into() }
}

/// What is looked at on disks.
pub(crate) fn filesystems(
    config: &KubeletConfiguration,
    cri: &Cri,
    host: &Host,
    root: &Path,
) -> FilesystemsConfig {
    FilesystemsConfig {
        cri: cri.clone(),
        host: host.clone(),
        root_dir: root.to_owned(),
        volumes_period: Some(config.volume_stats_agg_period.as_std()).filter(|period| !period.is_zero()),
    }
}
