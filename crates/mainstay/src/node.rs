//! Facts about this machine, put into the form the parts want them in.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use mainstay_cgroup::{CgroupNames, Driver, PodCgroups};
use mainstay_config::Loaded;
use mainstay_cri::Cri;
use mainstay_host::{CgroupMode, Host};
use mainstay_podspec::PodGates;
use mainstay_podspec::runtime::{MemoryQos, NodeSettings, SwapSettings};
use mainstay_reconcile::{Cgroups, IdPool};
use mainstay_task::Shutdown;
use mainstay_types::{Event, EventKind, EventSink, EventTarget, Heartbeat, NodeResources};
use tracing::{info, warn};

use crate::{app::Mode, node_cgroups};

/// How long the start waits for the cgroups that pods share. systemd answers in milliseconds.
const SYSTEMD_PATIENCE: Duration = Duration::from_secs(5);

/// A file to read the boot ID from, instead of the kernel's: how tests simulate a reboot.
const TEST_BOOT_ID_FILE: &str = "MAINSTAY_TEST_BOOT_ID_FILE";

/// The machine that mainstay runs on.
pub(crate) fn host() -> Host {
    match std::env::var_os(TEST_BOOT_ID_FILE) {
        Some(file) => Host::default().with_boot_id_file(file),
        None => Host::default(),
    }
}

/// What container configurations depend on.
pub(crate) fn settings(
    loaded: &Loaded,
    resources: &NodeResources,
    cgroup_v2: bool,
    host_ips: &[String],
) -> NodeSettings {
    let config = &loaded.config;
    NodeSettings {
        root_dir: loaded.settings.root_dir.clone().into(),
        pod_logs_dir: config.pod_logs_dir.clone().into(),
        cluster_domain: config.cluster_domain.clone(),
        host_ips: host_ips.to_vec(),
        allocatable: resources.allocatable.clone(),
        memory_capacity: resources.memory_bytes(),
        cfs_period_micros: config
            .cpu_cfs_quota
            .then(|| i64::try_from(config.cpu_cfs_quota_period.as_std().as_micros()).unwrap_or(100_000)),
        cgroup_v2,
        single_process_oom_kill: config.single_process_oom_kill.unwrap_or(!cgroup_v2),
        seccomp_default: config.seccomp_default,
        swap: SwapSettings {
            controller: swap_controller(cgroup_v2),
            limited: loaded.gates.enabled("NodeSwap") && config.memory_swap.swap_behavior == "LimitedSwap",
            capacity: resources.swap_bytes,
        },
        memory_qos: loaded.gates.enabled("MemoryQoS").then(|| MemoryQos {
            tiered_reservation: config.memory_reservation_policy == "TieredReservation",
            throttling_factor: config.memory_throttling_factor,
            page_size: mainstay_host::page_size(),
        }),
        huge_page_sizes: huge_page_sizes(),
        extra_masked_paths: thermal_paths(),
        // There only where the kernel has it on.
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
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

/// Whether this machine runs on the unified hierarchy.
pub(crate) fn is_cgroup_v2(host: &Host) -> Result<bool> {
    Ok(host.cgroup_mode().context("cannot tell how cgroups are mounted")? == CgroupMode::V2)
}

/// Pod cgroups, with the driver the runtime uses. Waits for the runtime, which alone can tell.
pub(crate) async fn cgroups(
    (loaded, mode): (&Loaded, Mode),
    cri: &Cri,
    (node, resources): (&NodeSettings, &NodeResources),
    (heartbeat, events): (&Heartbeat, &EventSink),
    shutdown: &Shutdown,
) -> Result<Option<Cgroups>> {
    let config = &loaded.config;
    if !config.cgroups_per_qos {
        return Ok(None);
    }
    let configured = if config.cgroup_driver == "systemd" { Driver::Systemd } else { Driver::Cgroupfs };
    let mut told = false;
    let driver = loop {
        // Waiting for the runtime is a life, too.
        heartbeat.beat();
        match cri.runtime_config().await {
            Ok(answer) => match answer.linux.map(|linux| linux.cgroup_driver()) {
                Some(k8s_cri::v1::CgroupDriver::Systemd) => break Driver::Systemd,
                Some(k8s_cri::v1::CgroupDriver::Cgroupfs) => break Driver::Cgroupfs,
                None => break configured,
            },
            // containerd before 2.0 cannot tell.
            Err(error) if error.is_unimplemented() => break configured,
            // Any other error is no answer: a runtime that has not found itself yet says so, and the wrong driver would last.
            Err(error) => {
                if !error.is_transient() && !std::mem::replace(&mut told, true) {
                    warn!(%error, "the runtime does not tell its cgroup driver; asking again");
                }
                if shutdown
                    .run_until_signalled(tokio::time::sleep(Duration::from_millis(500)))
                    .await
                    .is_none()
                {
                    return Ok(None);
                }
            }
        }
    };
    if driver != configured {
        info!(?driver, "the runtime's cgroup driver is used instead of the configured one");
    }
    let root = if config.cgroup_root.is_empty() { "/" } else { &config.cgroup_root };
    let names = CgroupNames::new(driver, root).context("cgroupRoot is not usable")?;
    let hierarchy =
        mainstay_cgroup::Cgroups::open("/sys/fs/cgroup").context("cannot use the machine's cgroups")?;
    let missing = hierarchy.missing_controllers();
    anyhow::ensure!(
        missing.is_empty(),
        "the cgroup controllers {missing:?} are missing; enable them in the kernel (cgroup_enable=…), pods need them"
    );
    let cgroups = node_cgroups::build(loaded, mode, PodCgroups::new(names, hierarchy), node, resources)?;
    let prepared = cgroups.clone();
    let prepare = tokio::task::spawn_blocking(move || prepared.prepare());
    let problem = match tokio::time::timeout(SYSTEMD_PATIENCE, prepare).await {
        Ok(done) => match done.context("making the pods' cgroups died")? {
            Ok(()) => return Ok(Some(cgroups)),
            Err(error) if error.is_systemds() => format!("{:#}", anyhow::Error::from(error)),
            Err(error) => return Err(error).context("cannot make the pods' cgroups"),
        },
        Err(_) => format!("making them has not ended after {} s", SYSTEMD_PATIENCE.as_secs()),
    };
    // A systemd that is slow or away is waited for: each pod's try includes the cgroups above it, and says what it met.
    let message = format!("cannot make the pods' cgroups; pods wait, and it is tried again: {problem}");
    warn!("{message}");
    let (target, kind, reason) =
        (EventTarget::Node, EventKind::Warning, "FailedNodeAllocatableEnforcement".into());
    events.send(Event { target, kind, reason, message, time: Timestamp::now() });
    Ok(Some(cgroups))
}

/// The gates that decide what a field of a pod means.
pub(crate) fn pod_gates(loaded: &Loaded) -> PodGates {
    let on = |name: &str| loaded.gates.enabled(name);
    PodGates {
        container_restart_rules: on("ContainerRestartRules"),
        restart_all_containers: on("RestartAllContainersOnContainerExits"),
        container_stop_signals: on("ContainerStopSignals"),
        env_files: on("EnvFiles"),
        pod_level_resources: on("PodLevelResources"),
        empty_dir_mode: on("EmptyDirVolumeMode"),
    }
}

/// The user IDs for pods with `hostUsers: false`: those that the machine's owner set aside for the user `kubelet`, or
/// all above the machine's own.
pub(crate) fn id_pool(loaded: &Loaded) -> IdPool {
    let per_pod = loaded.config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    let per_pod = per_pod.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(65536);
    let ranges = |path: &str| mainstay_host::subordinate_ids(Path::new(path), "kubelet");
    match (ranges("/etc/subuid"), ranges("/etc/subgid")) {
        (None, None) => IdPool { per_pod, ..IdPool::default() },
        // Upstream wants exactly this as well: one range, the same for both.
        (Some(uids), Some(gids)) if uids == gids => IdPool { first: uids.0, length: uids.1, per_pod },
        (uids, gids) => {
            warn!(
                ?uids,
                ?gids,
                "pods with hostUsers: false will not start; give kubelet the same range in /etc/subuid and /etc/subgid"
            );
            IdPool { first: 0, length: 0, per_pod }
        }
    }
}
