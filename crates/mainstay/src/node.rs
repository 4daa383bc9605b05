//! Facts about this machine, put into the form the parts want them in.

use std::{net::UdpSocket, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use mainstay_cgroup::{CgroupNames, Driver};
use mainstay_config::Loaded;
use mainstay_cri::Cri;
use mainstay_host::{CgroupMode, Host, ResolvConf};
use mainstay_podspec::runtime::{HostResolv, NodeSettings, SwapSettings};
use mainstay_reconcile::Cgroups;
use mainstay_task::Shutdown;
use mainstay_types::Heartbeat;
use tracing::{info, warn};

/// The node's addresses: `--node-ip`, else the one that packets to the outside come from. Nothing is sent.
pub(crate) fn addresses(loaded: &Loaded) -> Vec<String> {
    let given: Vec<_> = loaded
        .settings
        .node_ip
        .split(',')
        .map(str::trim)
        .filter(|ip| !ip.is_empty())
        .map(str::to_owned)
        .collect();
    if !given.is_empty() {
        return given;
    }
    // Connecting a datagram socket only asks the kernel for a route. The addresses are documentation ones.
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .filter_map(|(local, remote)| {
            let socket = UdpSocket::bind(local).ok()?;
            socket.connect(remote).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
        .map(|ip| ip.to_string())
        .collect()
}

/// What container configurations depend on.
pub(crate) fn settings(loaded: &Loaded, host: &Host, cgroup_v2: bool, host_ips: Vec<String>) -> NodeSettings {
    let config = &loaded.config;
    let memory = host.memory_total_bytes().unwrap_or_default();
    NodeSettings {
        root_dir: loaded.settings.root_dir.clone().into(),
        pod_logs_dir: config.pod_logs_dir.clone().into(),
        cluster_domain: config.cluster_domain.clone(),
        host_ips,
        memory_capacity: i64::try_from(memory).unwrap_or(i64::MAX),
        cfs_period_micros: config
            .cpu_cfs_quota
            .then(|| i64::try_from(config.cpu_cfs_quota_period.as_std().as_micros()).unwrap_or(100_000)),
        cgroup_v2,
        single_process_oom_kill: config.single_process_oom_kill.unwrap_or(!cgroup_v2),
        seccomp_default: config.seccomp_default,
        swap: SwapSettings { controller: swap_controller(cgroup_v2), ..SwapSettings::default() },
        huge_page_sizes: huge_page_sizes(),
        extra_masked_paths: thermal_paths(),
        ..NodeSettings::default()
    }
}

fn swap_controller(cgroup_v2: bool) -> bool {
    // The root has no such file on v2, so any child tells; on v1 the root has it.
    if cgroup_v2 {
        std::fs::read_dir("/sys/fs/cgroup")
            .is_ok_and(|entries| entries.flatten().any(|entry| entry.path().join("memory.swap.max").exists()))
    } else {
        Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()
    }
}

/// `2MB`, `1GB`: the kernel's directories are called `hugepages-2048kB`.
fn huge_page_sizes() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut sizes: Vec<u64> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
        })
        .collect();
    sizes.sort_unstable();
    sizes
        .into_iter()
        .map(|kib| match kib {
            kib if kib % (1 << 20) == 0 => format!("{}GB", kib >> 20),
            kib if kib % (1 << 10) == 0 => format!("{}MB", kib >> 10),
            kib => format!("{kib}KB"),
        })
        .collect()
}

fn thermal_paths() -> Vec<String> {
    (0..std::thread::available_parallelism().map_or(0, usize::from))
        .map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"))
        .filter(|path| Path::new(path).exists())
        .collect()
}

/// The node's resolver; `None` when `resolvConf` is empty.
pub(crate) fn resolver(path: &str) -> Option<HostResolv> {
    if path.is_empty() {
        return None;
    }
    match ResolvConf::read(Path::new(path)) {
        Ok(conf) => {
            Some(HostResolv { nameservers: conf.nameservers, searches: conf.searches, options: conf.options })
        }
        Err(error) => {
            warn!(%error, "pods get no name servers from the node");
            Some(HostResolv::default())
        }
    }
}

/// Whether this machine runs on the unified hierarchy.
pub(crate) fn is_cgroup_v2(host: &Host) -> Result<bool> {
    Ok(host.cgroup_mode().context("cannot tell how cgroups are mounted")? == CgroupMode::V2)
}

/// Pod cgroups, with the driver the runtime uses. Waits for the runtime, which alone can tell.
pub(crate) async fn cgroups(
    loaded: &Loaded,
    cri: &Cri,
    heartbeat: &Heartbeat,
    shutdown: &Shutdown,
) -> Result<Option<Cgroups>> {
    let config = &loaded.config;
    if !config.cgroups_per_qos {
        return Ok(None);
    }
    let configured = if config.cgroup_driver == "systemd" { Driver::Systemd } else { Driver::Cgroupfs };
    let driver = loop {
        // Waiting for the runtime is a life, too.
        heartbeat.beat();
        match cri.runtime_config().await {
            Ok(answer) => match answer.linux.map(|linux| linux.cgroup_driver()) {
                Some(k8s_cri::v1::CgroupDriver::Systemd) => break Driver::Systemd,
                Some(k8s_cri::v1::CgroupDriver::Cgroupfs) => break Driver::Cgroupfs,
                None => break configured,
            },
            Err(error) if error.is_transient() => {
                if shutdown
                    .run_until_signalled(tokio::time::sleep(Duration::from_millis(500)))
                    .await
                    .is_none()
                {
                    return Ok(None);
                }
            }
            // containerd before 2.0 cannot tell.
            Err(_) => break configured,
        }
    };
    if driver != configured {
        info!(?driver, "the runtime's cgroup driver is used instead of the configured one");
    }
    let root = if config.cgroup_root.is_empty() { "/" } else { &config.cgroup_root };
    let names = CgroupNames::new(driver, root).context("cgroupRoot is not usable")?;
    let hierarchy = match driver {
        Driver::Cgroupfs => Some(Arc::new(
            mainstay_cgroup::Cgroups::open("/sys/fs/cgroup").context("cannot use the machine's cgroups")?,
        )),
        Driver::Systemd => None,
    };
    Ok(Some(Cgroups { names, hierarchy, pids_max: Some(config.pod_pids_limit).filter(|limit| *limit > 0) }))
}
