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
        fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| own_cgroup(&text, hierarchy.is_v2()))
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

/// The cgroup of this process, from `/proc/self/cgroup`; `None` if it is in the root, where nothing is its own, or in
/// different ones.
fn own_cgroup(text: &str, unified: bool) -> Option<CgroupPath> {
    let of = |wanted: &str| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers.split(',').any(|controller| controller == wanted).then_some(path)
        })
    };
    let path = if unified {
        of("")?
    } else {
        let (time, memory) = (of("cpuacct")?, of("memory")?);
        if time != memory {
            return None;
        }
        time
    };
    CgroupPath::parse(path).ok().filter(|path| path.as_str() != "/")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup() {
        let own = |text, unified| own_cgroup(text, unified).map(|path| path.as_str().to_owned());
        assert_eq!(
            own("0::/system.slice/kubelet.service\n", true).as_deref(),
            Some("/system.slice/kubelet.service")
        );
        assert_eq!(own("0::/\n", true), None);
        let v1 = "5:memory:/kubelet\n4:cpu,cpuacct:/kubelet\n1:name=systemd:/other\n0::/\n";
        assert_eq!(own(v1, false).as_deref(), Some("/kubelet"));
        assert_eq!(own("5:memory:/a\n4:cpu,cpuacct:/b\n", false), None);
        assert_eq!(own("nonsense", false), None);
    }
}
