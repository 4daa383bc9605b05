//! The agent's place on the machine: what the machine has for pods, whether it is fit for them, and what the agent
//! changes about it and itself.
//!
//! Everything outside the agent's own root is left alone unless mainstay is the machine's kubelet, by mode and by root
//! directory, or the configuration asks for it in so many words.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use jiff::SignedDuration;
use mainstay_cgroup::CgroupPath;
use mainstay_config::{GoDuration, Loaded};
use mainstay_cri::Cri;
use mainstay_host::{Host, KERNEL_TUNABLES, TunableState, parse_cpu_list};
use mainstay_nodelogs::{Journal, Links, LogDirectory};
use mainstay_observe::pressure::PressureConfig;
use mainstay_policy::{NodeFacts, Reservations, Sysctls, Thresholds, node_resources};
use mainstay_server::{NodeLogs, Switches};
use mainstay_types::{EventSink, NodePressure, NodeResources};
use tracing::{info, warn};

use crate::{app::Mode, cli};

const DEFAULT_ROOT: &str = "/var/lib/kubelet";
/// How often it is measured what the node runs short of, as upstream's eviction manager looks.
const PRESSURE_PERIOD: Duration = Duration::from_secs(10);

/// Refuses (or, in the friendly mode, warns of) a machine that is not as pods need it. Only looks.
pub(crate) fn check_machine(loaded: &Loaded, mode: Mode, host: &Host) -> Result<()> {
    let mut problems = Vec::new();
    if loaded.config.fail_swap_on {
        let devices = host.swap_devices().context("cannot tell whether swap is on")?;
        if !devices.is_empty() {
            let names: Vec<_> = devices.into_iter().map(|device| device.name).collect();
            problems.push(format!(
                "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false \
                 (failSwapOn: false); /proc/swaps lists {}",
                names.join(", ")
            ));
        }
    }
    let protected = loaded.config.protect_kernel_defaults;
    if protected && (mode == Mode::Kubelet || loaded.set.contains("protectKernelDefaults")) {
        for tunable in KERNEL_TUNABLES {
            let actual = match host.tunable(*tunable) {
                TunableState::Right => continue,
                TunableState::Wrong { actual } => actual.to_string(),
                TunableState::Unknown(error) => error.to_string(),
            };
            let (name, wanted) = (tunable.name, tunable.wanted);
            problems.push(format!(
                "invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}; set it by sysctl, or \
                 set protectKernelDefaults: false"
            ));
        }
    }
    match (mode, problems.is_empty()) {
        (_, true) => Ok(()),
        (Mode::Kubelet, false) => bail!("{}", problems.join("; ")),
        (Mode::Run, false) => {
            problems.iter().for_each(|problem| warn!("{problem}"));
            Ok(())
        }
    }
}

/// Changes what the agent needs changed: kernel settings and its own OOM score. What cannot be changed is told of, and
/// is no reason not to run pods.
pub(crate) fn settle_in(loaded: &Loaded, mode: Mode, host: &Host) {
    if !loaded.config.protect_kernel_defaults && owns_machine(loaded, mode, "protectKernelDefaults") {
        for tunable in KERNEL_TUNABLES {
            let TunableState::Wrong { actual } = host.tunable(*tunable) else { continue };
            let (name, value) = (tunable.name, tunable.wanted);
            match host.set_tunable(*tunable) {
                Ok(()) => info!(name, actual, value, "kernel setting changed"),
                Err(error) => warn!(name, actual, value, %error, "cannot change a kernel setting"),
            }
        }
    }
    if mode == Mode::Kubelet || loaded.set.contains("oomScoreAdj") {
        let score = loaded.config.oom_score_adj;
        if let Err(error) = host.set_oom_score_adj(score) {
            warn!(score, %error, "cannot protect mainstay from the kernel's OOM killer");
        }
    }
}

/// Lets mounts below the root be seen by containers and the machine alike. Only the machine's kubelet: it adds a mount where
/// an administrator would not look for one, and drivers that mount volumes for others know only the default root. A pod that
/// wants `Bidirectional` elsewhere is told by the runtime that the mount is not shared.
pub(crate) fn share_mounts(loaded: &Loaded, mode: Mode) {
    if !is_the_kubelet(loaded, mode) {
        return;
    }
    match mainstay_volume::share_mounts(Path::new(&loaded.settings.root_dir)) {
        Ok(true) => info!("the root directory is a shared mount now, for mountPropagation"),
        Ok(false) => {}
        Err(error) => warn!(%error, "volumes with mountPropagation may not work"),
    }
}

/// Whether iptables' chains are to be made.
pub(crate) fn makes_iptables_chains(loaded: &Loaded, mode: Mode) -> bool {
    loaded.config.make_iptables_util_chains && owns_machine(loaded, mode, "makeIPTablesUtilChains")
}

fn owns_machine(loaded: &Loaded, mode: Mode, field: &str) -> bool {
    // `mainstay run` leaves the machine alone, also with a configuration that was written for a kubelet.
    is_the_kubelet(loaded, mode) || (mode == Mode::Kubelet && loaded.set.contains(field))
}

/// Whether mainstay is the machine's kubelet: with another root there may be one beside it.
pub(crate) fn is_the_kubelet(loaded: &Loaded, mode: Mode) -> bool {
    mode == Mode::Kubelet && loaded.settings.root_dir == DEFAULT_ROOT
}

/// What the node has, and what of it pods may use.
pub(crate) fn resources(loaded: &Loaded, host: &Host, node_name: &str) -> Result<NodeResources> {
    let config = &loaded.config;
    let root = Path::new(&loaded.settings.root_dir);
    let disk = config.local_storage_capacity_isolation.then_some(root);
    let machine = host.capacity(disk).context("cannot measure the machine")?;
    let no_thresholds = BTreeMap::new();
    let ignore = loaded.settings.experimental_allocatable_ignore_eviction;
    // Validation has refused what is no list.
    let system_cpus = parse_cpu_list(&config.reserved_system_cpus).unwrap_or_default();
    let reservations = Reservations {
        max_pods: config.max_pods,
        pods_per_core: config.pods_per_core,
        system: &config.system_reserved,
        kube: &config.kube_reserved,
        system_cpus: &system_cpus,
        eviction_hard: if ignore { &no_thresholds } else { &config.eviction_hard },
    };
    Ok(node_resources(&machine, &reservations, labels(loaded, node_name))?)
}

fn labels(loaded: &Loaded, node_name: &str) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", node_name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", cli::arch()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", cli::arch()),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    own.chain(loaded.settings.node_labels.clone()).collect()
}

/// What pods are judged by.
pub(crate) fn facts(
    loaded: &Loaded,
    host: &Host,
    node_name: &Arc<str>,
    resources: &Arc<NodeResources>,
) -> Result<NodeFacts> {
    Ok(NodeFacts {
        name: Arc::clone(node_name),
        resources: Arc::clone(resources),
        // Taints are the Node object's; without one nobody is kept out.
        taints: Vec::new(),
        sysctls: Sysctls::new(&host.kernel_version(), &loaded.config.allowed_unsafe_sysctls)?,
        app_armor: host.app_armor_enabled(),
        pod_level_resources: loaded.gates.enabled("PodLevelResources"),
        pressure: NodePressure::default(),
    })
}

/// What the node may run short of. `top` is the cgroup of all pods, where they are held to what is theirs.
pub(crate) fn pressure(
    (loaded, host, node_name): (&Loaded, &Host, &Arc<str>),
    resources: &NodeResources,
    top: Option<CgroupPath>,
    (cri, events): (&Cri, &EventSink),
) -> PressureConfig {
    let config = &loaded.config;
    let root_dir = PathBuf::from(&loaded.settings.root_dir);
    let parsed = |(signal, text): (&String, &String)| {
        let grace: GoDuration = text.parse().ok()?;
        Some((signal.clone(), SignedDuration::try_from(grace.as_std()).ok()?))
    };
    let huge = resources.capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let huge: i64 = huge.map(|(_, amount)| amount.value()).sum();
    let huge = if loaded.gates.enabled("HugepageAwareEviction") { huge } else { 0 };
    let pods = top.and_then(|top| Some((top, resources.enforced().get("memory")?.value())));
    PressureConfig {
        node_name: Arc::clone(node_name),
        host: host.clone(),
        cri: cri.clone(),
        memory_bytes: resources.memory_bytes().saturating_sub(huge),
        thresholds: Thresholds::new(
            &config.eviction_hard,
            &config.eviction_soft,
            &config.eviction_soft_grace_period.iter().filter_map(parsed).collect(),
            &config.eviction_minimum_reclaim,
            pods.is_some(),
        ),
        pods,
        transition: config.eviction_pressure_transition_period.as_std(),
        period: PRESSURE_PERIOD,
        state_file: root_dir.join("mainstay/pressure.json"),
        root_dir,
        events: events.clone(),
    }
}

/// What `/logs/` shows. Links may lead to where containers' logs lie as well.
pub(crate) fn node_logs(loaded: &Loaded, container_log_links: PathBuf) -> NodeLogs {
    let links = match loaded.settings.node_log_links.as_str() {
        "anywhere" => Links::Anywhere,
        _ => Links::Inside(vec![loaded.config.pod_logs_dir.clone().into(), container_log_links]),
    };
    NodeLogs {
        directory: LogDirectory::new(loaded.settings.node_log_dir.clone().into(), links),
        journal: Journal::default(),
        queries: loaded.config.enable_system_log_query && loaded.gates.enabled("NodeLogQuery"),
    }
}

/// What of the HTTP API is turned on.
pub(crate) fn switches(loaded: &Loaded) -> Switches {
    let (config, on) = (&loaded.config, |gate: &str| loaded.gates.enabled(gate));
    Switches {
        debugging_handlers: config.enable_debugging_handlers,
        debug_flags_handler: config.enable_debug_flags_handler,
        system_log_handler: config.enable_system_log_handler,
        profiling_handler: config.enable_profiling_handler,
        container_checkpoint: on("ContainerCheckpoint"),
        allocated_pods: on("KubeletAllocatedPodsEndpoint") && on("InPlacePodVerticalScaling"),
        flagz: on("ComponentFlagz"),
        statusz: on("ComponentStatusz"),
    }
}
