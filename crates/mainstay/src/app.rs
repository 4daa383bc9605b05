//! The wiring: builds all parts, binds all sockets, then runs until told to stop.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use mainstay_apiserver::Client;
use mainstay_config::{HostFacts, KubeletConfiguration, Loaded, check_host};
use mainstay_cri::Cri;
use mainstay_desired::{Evidence, Sources, SourcesConfig, UrlSource};
use mainstay_devices::{DevicesConfig, Patience};
use mainstay_grpc::GrpcState;
use mainstay_host::{LockFile, ServiceManager, raise_open_file_limit};
use mainstay_observe::{
    ObserveConfig, filesystems,
    probes::{self, ProbesConfig},
    samples::{self, SamplesConfig},
    usage::{self, UsageConfig},
};
use mainstay_policy::PullVerification;
use mainstay_reconcile::{Cgroups, Ownership, PullLimits, ReconcileConfig};
use mainstay_server::{ConfigPage, Disks, Process, ServerConfig, ServerState, Verbosity};
use mainstay_snapshot::{EventStoreConfig, Inputs, KeptStatuses, NodeTemplate, SnapshotConfig};
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_trace::{Target, Tracer};
use mainstay_types::{
    Counters, DesiredState, Event, EventKind, EventSink, EventTarget, Heartbeat, NodeCounters, NodeQuestions,
    ProbeMetrics, VERSION,
};
use mainstay_upkeep::{UpkeepConfig, garbage::Keep};
use mainstay_uplink::Feeds;
use mainstay_volume::Jobs;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};
use tracing::{error, info, warn};

use crate::{addresses, cli, cluster, local_api, logging, node, node_object, pinning, place, secure, stats};

/// How long open requests and running steps may take to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the collector may take for what has not been sent yet.
const LAST_TRACES: Duration = Duration::from_secs(3);
/// How many events may wait for the store.
const EVENT_BOUND: usize = 1024;
/// How often it is measured what a pod with limits has written, as upstream's eviction manager looks.
const USAGE_PERIOD: Duration = Duration::from_secs(10);

/// How often cgroups are read, as upstream's summary is at most this old.
const SAMPLE_PERIOD: Duration = Duration::from_secs(10);
/// How often the runtime is asked for its images, for the Node object.
const IMAGES_PERIOD: Duration = Duration::from_secs(60);

/// Which face mainstay shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `mainstay run`: never touches a pod it did not start.
    Run,
    /// `mainstay kubelet`: cleans up as upstream does.
    Kubelet,
}

/// Runs the agent until a signal ends it. Pods outlive it.
pub(crate) fn main(loaded: Loaded, mode: Mode) -> ExitCode {
    mainstay_host::share_heap();
    mainstay_host::note_program_pages();
    if loaded.config.enable_profiling_handler {
        mainstay_profile::sample_heap();
    }
    let verbosity = logging::start(&loaded.config);
    info!(version = VERSION, ?mode, "mainstay starts");
    if !rustix::process::geteuid().is_root() {
        error!(
            "mainstay needs root, for cgroups, mounts and the runtime's socket: start it with sudo or as a service"
        );
        return ExitCode::FAILURE;
    }
    for notice in cli::notices(&loaded) {
        warn!("{notice}");
    }
    // Two workers are plenty for an agent that waits most of the time, and keep its memory small.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // More than what may hang on a disk or the kernel's files (every `Lane` together, and what is measured and read): records are
        // written here too. They come and go as needed.
        .max_blocking_threads(64)
        .thread_keep_alive(Duration::from_secs(2))
        .thread_name("mainstay")
        .enable_all()
        .build();
    let result = runtime.context("cannot start the async runtime").and_then(|runtime| {
        let result = runtime.block_on(run(loaded, mode, verbosity));
        // A blocking call that hangs (a dead disk) must not keep the process alive.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(loaded: Loaded, mode: Mode, verbosity: Verbosity) -> Result<()> {
    let manager = ServiceManager::from_environment();
    let tasks = TaskGroup::new();
    // Ends after the others, because it tells how they ended.
    let traces = TaskGroup::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut build = Box::pin(build(&loaded, mode, (&tasks, &traces), &manager, verbosity));
    // Cancel safe: nothing of what was built so far has begun to matter before it is returned. It is dropped last of all, for
    // tasks that were started already hang on it.
    let held = tokio::select! {
        built = &mut build => Some(built?),
        _ = terminate.recv() => { info!("SIGTERM: mainstay ends before it is up"); None }
        _ = interrupt.recv() => { info!("SIGINT: mainstay ends before it is up"); None }
    };
    let failure = if held.is_some() {
        tokio::select! {
            _ = terminate.recv() => { info!("SIGTERM: mainstay ends, its pods go on"); None }
            _ = interrupt.recv() => { info!("SIGINT: mainstay ends, its pods go on"); None }
            failure = tasks.failed() => Some(failure),
        }
    } else {
        None
    };
    manager.stopping();
    let drained = tasks.drain(DRAIN).await;
    if !drained.aborted.is_empty() {
        warn!(tasks = ?drained.aborted, "some tasks did not end in time");
    }
    traces.drain(LAST_TRACES).await;
    match failure {
        Some(failure) => Err(anyhow::anyhow!("{failure}")),
        None => Ok(()),
    }
}

/// What must live as long as the agent.
#[derive(Debug)]
struct Held {
    _lock: LockFile,
}

/// Builds all parts and starts them, in the order in which data flows.
async fn build(
    loaded: &Loaded,
    mode: Mode,
    (tasks, traces): (&TaskGroup, &TaskGroup),
    manager: &ServiceManager,
    verbosity: Verbosity,
) -> Result<Held> {
    let config = &loaded.config;
    let root = PathBuf::from(&loaded.settings.root_dir);
    let host = node::host();
    let cgroup_v2 = node::is_cgroup_v2(&host)?;
    let problems = check_host(config, HostFacts { cgroup_v2 });
    match (mode, problems.as_slice()) {
        (_, []) => {}
        (Mode::Kubelet, problems) => {
            let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
            anyhow::bail!("{}", text.join("; "));
        }
        (Mode::Run, _) => warn!(
            "this machine uses cgroup v1, which works but is deprecated in Kubernetes; move to cgroup v2 when you can"
        ),
    }
    place::check_machine(loaded, mode, &host)?;
    // Nothing is written before it is clear that mainstay may run here.
    make_root(&root)?;
    let lock = LockFile::acquire(&root.join("mainstay.lock"))?;
    let strays = mainstay_volume::end_stray_mounts(&root);
    if strays > 0 {
        warn!(strays, "ended mount commands that an earlier mainstay had begun and not seen to their end");
    }
    place::settle_in(loaded, mode, &host);
    place::share_mounts(loaded, mode);
    let node_name: Arc<str> =
        host.node_name(Some(loaded.settings.hostname_override.as_str()).filter(|n| !n.is_empty()))?.into();
    let addresses = addresses::follow(&loaded.settings.node_ip, &node_name, tasks).await;
    let host_ips = addresses.borrow().clone();
    let resources = Arc::new(place::resources(loaded, &host, &node_name)?);
    let swap_bytes = resources.swap_bytes;
    let admission = place::facts(loaded, &host, &node_name, &resources)?;
    match raise_open_file_limit(u64::try_from(config.max_open_files).unwrap_or(0)) {
        Ok(_) => {}
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
    let cri = Cri::new(
        &config.container_runtime_endpoint,
        Some(config.image_service_endpoint.as_str()),
        config.runtime_request_timeout.as_std(),
    )?;
    let tracer = tracer(config, &node_name, traces)?;
    let cri = cri.traced(tracer.clone());

    let api = cluster::api_server(loaded, tasks)?;
    let node_template = node_object::template(loaded, &host, &node_name, &resources);
    let boot_id = host.boot_id().unwrap_or_default();

    // The edges listen first: health is answered while the runtime is still away, and pods with 503.
    let (events, event_receiver) = EventSink::bounded(EVENT_BOUND);
    let event_store = EventStoreConfig {
        file: Some(root.join("mainstay/events.json")),
        ..EventStoreConfig::new(Arc::clone(&node_name))
    };
    let event_reader = mainstay_snapshot::start_events(event_store, event_receiver, tasks);
    let (own_events, earlier_events) = (event_reader.clone(), event_reader.newest());
    let (snapshot_writer, snapshots) = mainstay_snapshot::channel();
    let heartbeat = Heartbeat::default();
    let secure_port = port(&config.address, config.port)?;
    let work: Arc<NodeCounters> = Arc::default();
    let serving = &work.serving_certificate;
    let bound = mainstay_server::bind(ServerConfig {
        socket: root.join("mainstay.sock"),
        secure: secure::config(loaded, secure_port, &root, &node_name, &host_ips, api.as_ref(), serving)?,
        read_only: port(&config.address, config.read_only_port)?,
        healthz: port(&config.healthz_bind_address, config.healthz_port)?,
        sync_frequency: config.sync_frequency.as_std(),
        split_log_streams: loaded.gates.enabled("PodLogsQuerySplitStreams"),
        switches: place::switches(loaded),
        acting: Some(mainstay_server::ActingConfig {
            cri: cri.clone(),
            idle: Some(config.streaming_connection_idle_timeout.as_std()).filter(|idle| !idle.is_zero()),
            end_websockets: loaded.gates.enabled("ExtendWebSocketsToKubelet"),
            checkpoint_dir: root.join("checkpoints"),
        }),
        node_logs: place::node_logs(loaded, container_log_links(&root)),
        host: host.clone(),
        families: mainstay_server::FamilyChoice {
            allow: loaded.settings.metrics_allow.clone(),
            deny: loaded.settings.metrics_deny.clone(),
            old_names: loaded.settings.metrics_old_names,
        },
    })?;
    let local_apis = mainstay_grpc::bind(local_api::config(loaded, &root)?)?;
    let probe_metrics = ProbeMetrics::default();
    let counters = Arc::<Counters>::default();
    if let Some(client) = &api {
        let host = client.server();
        let host = host.split_once("://").map_or(host.as_str(), |(_, rest)| rest).trim_end_matches('/');
        // The first and only one to say so.
        work.api.set((host.to_owned(), Arc::clone(client.calls()))).ok();
    }
    let config_page = ConfigPage::default();
    config_page.set(config);
    let (sample_sender, samples) = watch::channel(Arc::default());
    let (disk_sender, found) = watch::channel(Arc::default());
    let (wishes, disk_wishes) = mpsc::channel(1);
    let (assignment_sender, assignments) = watch::channel(Arc::default());
    // Whoever made these also left files of who holds what.
    let recorded =
        std::fs::read_dir(root.join("mainstay/pods")).is_ok_and(|mut files| files.next().is_some());
    let devices = DevicesConfig {
        directory: root.join("device-plugins"),
        copy: root.join("mainstay/devices.json"),
        recorded,
        assignments: assignment_sender.clone(),
        patience: Patience::default(),
        counters: Arc::clone(&work),
    };
    let boot_file = root.join("mainstay/boot.json");
    let offers_are_new =
        !devices.directory.join("kubelet_internal_checkpoint").exists() && !boot_file.exists();
    let (devices, device_problems) = mainstay_devices::start(devices, tasks)?;
    let handlers = [("DevicePlugin", devices.handler(root.clone(), tasks))].into();
    mainstay_plugin::start(root.join("plugins_registry"), handlers, tasks)?;
    let pins = pinning::config(
        (loaded, &root, recorded),
        &host,
        &resources,
        devices.clone(),
        (assignment_sender, Arc::clone(&work)),
    )?;
    let (holdings, holding_problems) = mainstay_resources::start(pins, tasks)?;
    let state = ServerState {
        assignments: assignments.clone(),
        snapshot: snapshots.clone(),
        events: event_reader,
        heartbeat: heartbeat.clone(),
        probes: probe_metrics.clone(),
        samples,
        disks: Disks { found, wishes },
        work: Arc::clone(&work),
        facts: stats::facts(loaded, cgroup_v2),
        calls: Arc::clone(cri.stats()),
        event_counts: events.counts(),
        counters: Arc::clone(&counters),
        tracer: tracer.clone(),
        process_start: Timestamp::now(),
        process: Process { config: config_page.clone(), flags: Arc::new(loaded.flags.clone()), verbosity },
    };
    bound.serve(state, tasks);
    let told = assignments.clone();
    local_apis.serve(GrpcState { snapshots: snapshots.clone(), assignments, counters }, tasks);
    secure::renew_own_certificate(loaded, &root, &node_name, addresses.clone(), (tasks, serving));
    // Up, in the sense of a service manager: it answers. Pods may have to wait for a runtime that is still away.
    manager.ready();
    manager.status("waiting for the container runtime and the manifests");
    feed_watchdog(manager, snapshots.clone(), heartbeat.clone(), config.sync_frequency.as_std(), tasks);

    let observe = ObserveConfig {
        counters: Arc::clone(&work),
        stop_signals: loaded.gates.enabled("ContainerStopSignals"),
        ..ObserveConfig::new(cri.clone())
    };
    let pod_cgroups = Arc::clone(&observe.pod_cgroups);
    let (observed, refresh) = mainstay_observe::start(observe, tasks);
    let (usage_sender, usage) = watch::channel(Arc::default());
    let evidence = Evidence { observed: observed.clone(), usage };
    let (questions, node_questions) = NodeQuestions::channel();
    let sources_config = sources_config((loaded, mode), &root, &node_name, (api.clone(), node_questions))?;
    let sources = Sources::start(sources_config, tasks, events.clone(), evidence)?;

    let settings = node::settings(loaded, &resources, cgroup_v2, &host_ips);
    let kills_end_containers = cgroup_v2 && !settings.single_process_oom_kill;
    let cgroups = node::cgroups(
        (loaded, mode),
        &cri,
        (&settings, &resources),
        (&heartbeat, &events),
        &tasks.shutdown(),
    )
    .await?;
    if let Some(tree) = cgroups.as_ref().map(Cgroups::tree) {
        let (names, hierarchy) = (tree.names().clone(), tree.hierarchy().clone());
        if kills_end_containers {
            pod_cgroups.get_or_init(|| (names.clone(), hierarchy.clone()));
        }
        // The driver that is used is the runtime's, whatever was configured.
        let driver = names.driver().word().to_owned();
        config_page.set(&KubeletConfiguration { cgroup_driver: driver, ..config.clone() });
        let slices = stats::slices(loaded, &hierarchy);
        let config = SamplesConfig {
            names,
            hierarchy,
            slices,
            services: stats::services(loaded),
            cri: cri.clone(),
            period: SAMPLE_PERIOD,
        };
        samples::start(config, observed.clone(), sample_sender, tasks);
    }
    // In a cluster the Node object says it.
    if api.is_none()
        && !config.pod_cidr.is_empty()
        && let Err(error) = cri.update_runtime_config(&config.pod_cidr).await
    {
        warn!(%error, "cannot tell the runtime the pod network");
    }
    let held = cgroups.as_ref().filter(|_| config.enforce_node_allocatable.iter().any(|it| it == "pods"));
    let held = held.map(|held| held.tree().names().top());
    let gauge = place::pressure((loaded, &host, &node_name), &resources, held, (&cri, &events));
    let (pressure, mut pressure_problems) = mainstay_observe::pressure::start(gauge, tasks).await;
    let links = container_log_links(&root);
    let volume_jobs = Jobs::default();
    let (probe_writer, probe_results) = probes::channel();
    let (outcomes, mut problems) = mainstay_reconcile::start(
        ReconcileConfig {
            cri: cri.clone(),
            refresh,
            tracer,
            counters: Arc::clone(&work),
            events: events.clone(),
            node: settings,
            admission,
            pressure: pressure.clone(),
            resources: holdings,
            cpusets_period: config.cpu_manager_reconcile_period.as_std().max(Duration::from_secs(1)),
            addresses: addresses.clone(),
            resolv_conf: (!config.resolv_conf.is_empty()).then(|| config.resolv_conf.clone().into()),
            cluster_dns: config.cluster_dns_addresses().iter().map(ToString::to_string).collect(),
            cgroups,
            container_log_links: links.clone(),
            volume_jobs: volume_jobs.clone(),
            pulls: pull_limits(loaded),
            pull_verification: pull_verification(loaded),
            credential_providers: mainstay_config::credential_providers(
                &loaded.settings.image_credential_provider_config,
                &loaded.settings.image_credential_provider_bin_dir,
                loaded.gates.enabled("KubeletServiceAccountTokenForCredentialProviders"),
            )
            .context("--image-credential-provider-config")?,
            accounts: api.clone(),
            node_questions: api.is_some().then_some(questions),
            max_restart_period: config
                .crash_loop_back_off
                .max_container_restart_period
                .map_or(Duration::from_secs(300), |period| period.as_std()),
            sync_frequency: config.sync_frequency.as_std(),
            ownership: if mode == Mode::Run { Ownership::OnlyOurs } else { Ownership::Everything },
            heartbeat: heartbeat.clone(),
            id_pool: node::id_pool(loaded),
        },
        sources.desired.clone(),
        observed.clone(),
        probe_results.clone(),
        tasks,
    )?;
    problems.append(&mut pressure_problems);
    problems.extend(device_problems);
    problems.extend(holding_problems);
    let statuses = KeptStatuses::open(&root.join("mainstay/status"), tasks);
    problems.extend(probes::start(
        ProbesConfig {
            cri: cri.clone(),
            events: events.clone(),
            addresses: addresses.clone(),
            state_dir: root.join("mainstay/probes"),
            metrics: probe_metrics,
            shown: statuses.probes(),
        },
        outcomes.clone(),
        observed.clone(),
        probe_writer,
        tasks,
    ));
    if config.local_storage_capacity_isolation {
        let (cri, root_dir, events) = (cri.clone(), root.clone(), events.clone());
        let config = UsageConfig { cri, root_dir, period: USAGE_PERIOD, events };
        usage::start(config, outcomes.clone(), observed.clone(), usage_sender, tasks);
    }
    filesystems::start(
        stats::filesystems(config, &cri, &host, &root),
        sources.desired.clone(),
        outcomes.clone(),
        observed.clone(),
        disk_wishes,
        disk_sender,
        tasks,
    );
    problems.extend(mainstay_snapshot::start(
        SnapshotConfig {
            counters: Arc::clone(&work),
            node_name: Arc::clone(&node_name),
            resources,
            events: events.clone(),
            state_dir: root.join("mainstay"),
            node: Some(NodeTemplate {
                node: node_template,
                addresses_by_cloud: loaded.settings.cloud_provider == "external",
                images: mainstay_observe::images::start(
                    cri.clone(),
                    IMAGES_PERIOD,
                    usize::try_from(config.node_status_max_images).ok(),
                    tasks,
                ),
            }),
        },
        statuses,
        Inputs {
            desired: sources.desired.clone(),
            observed,
            outcomes,
            probes: probe_results,
            addresses,
            pressure,
            extended: devices.resources(),
            assignments: if loaded.gates.enabled("ResourceHealthStatus") {
                told
            } else {
                watch::channel(Arc::default()).1
            },
        },
        snapshot_writer,
        tasks,
    ));
    let (target, kind, reason) = (EventTarget::Node, EventKind::Normal, "Starting".into());
    let message = "Starting kubelet.".to_owned();
    events.send(Event { target, kind, reason, message, time: Timestamp::now() });
    problems.extend(mainstay_snapshot::note_boot(&boot_file, &node_name, &boot_id, &events));
    for problem in problems {
        warn!("{problem}");
        let target = EventTarget::Node;
        let (kind, reason) = (EventKind::Warning, "StateFileSetAside".into());
        events.send(Event { target, kind, reason, message: problem, time: Timestamp::now() });
    }
    tell_of_swapped_volumes(swap_bytes, &events);
    let told = (&events, Arc::clone(&work));
    let upkeep = upkeep((loaded, mode), (cri, root, links), sources.desired.clone(), (volume_jobs, told));
    mainstay_upkeep::start(upkeep, &snapshots, tasks);
    if place::makes_iptables_chains(loaded, mode) {
        mainstay_upkeep::iptables::start(tasks);
    }

    if let Some(client) = api {
        let feeds = Feeds {
            snapshots: snapshots.clone(),
            events: own_events,
            events_after: earlier_events,
            api_pods: sources.api_pods,
        };
        let told = (work, offers_are_new);
        mainstay_uplink::start(cluster::uplink(loaded, client, &node_name, told), feeds, tasks);
    }
    release_memory_when_quiet(snapshots.clone(), tasks);
    info!(
        node = %node_name,
        root = loaded.settings.root_dir,
        manifests = config.static_pod_path,
        runtime = config.container_runtime_endpoint,
        "mainstay is up"
    );
    Ok(Held { _lock: lock })
}

/// Sends traces to a collector, if the configuration names one.
fn tracer(config: &KubeletConfiguration, node_name: &str, tasks: &TaskGroup) -> Result<Tracer> {
    let Some(tracing) = &config.tracing else { return Ok(Tracer::default()) };
    let options = mainstay_trace::Options {
        target: Target::parse(tracing.endpoint.as_deref())?,
        // Absent or zero: only what a caller wants to have recorded.
        per_million: tracing.sampling_rate_per_million.and_then(|rate| u32::try_from(rate).ok()).unwrap_or(0),
        resource: vec![
            ("service.name", "kubelet".to_owned()),
            ("service.version", VERSION.to_owned()),
            ("host.name", node_name.to_owned()),
        ],
        version: VERSION,
    };
    Ok(mainstay_trace::start(options, tasks)?)
}

fn make_root(root: &std::path::Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    for dir in ["", "pods", "plugins", "plugins_registry"] {
        let path = root.join(dir);
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(&path).with_context(|| {
            format!(
                "cannot make {}; choose another --root-dir, or run as root on a writable disk",
                path.display()
            )
        })?;
    }
    Ok(())
}

/// Upstream's fixed path goes with the default root only: nothing outside another root is touched.
fn container_log_links(root: &std::path::Path) -> PathBuf {
    if root == std::path::Path::new("/var/lib/kubelet") {
        "/var/log/containers".into()
    } else {
        root.join("container-logs")
    }
}

fn port(address: &str, port: i32) -> Result<Option<SocketAddr>> {
    if port == 0 {
        return Ok(None);
    }
    let ip: IpAddr = address.parse().with_context(|| format!("{address:?} is not an IP address"))?;
    let port = u16::try_from(port).with_context(|| format!("{port} is not a port"))?;
    Ok(Some(SocketAddr::new(ip, port)))
}

fn sources_config(
    (loaded, mode): (&Loaded, Mode),
    root: &std::path::Path,
    node_name: &Arc<str>,
    (api_server, node_questions): (Option<Client>, watch::Receiver<u64>),
) -> Result<SourcesConfig> {
    let config = &loaded.config;
    let url = (!config.static_pod_url.is_empty()).then(|| UrlSource {
        url: config.static_pod_url.clone(),
        headers: config
            .static_pod_url_header
            .expose()
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect(),
        check_frequency: config.http_check_frequency.as_std(),
    });
    let object_key = cluster::object_key(loaded).context("--object-key-file")?;
    Ok(SourcesConfig {
        node_name: Arc::clone(node_name),
        root_dir: root.to_owned(),
        static_pod_path: (!config.static_pod_path.is_empty()).then(|| config.static_pod_path.clone().into()),
        file_check_frequency: config.file_check_frequency.as_std(),
        any_extension: loaded.settings.manifest_files == "any",
        static_pod_url: url,
        api_server,
        node_questions,
        object_key,
        takes_over: mode == Mode::Kubelet,
        gates: node::pod_gates(loaded),
    })
}

fn pull_verification(loaded: &Loaded) -> PullVerification {
    let config = &loaded.config;
    match config.image_pull_credentials_verification_policy.as_str() {
        _ if !loaded.gates.enabled("KubeletEnsureSecretPulledImages") => PullVerification::Never,
        "NeverVerify" => PullVerification::Never,
        "NeverVerifyAllowlistedImages" => {
            PullVerification::AllBut(config.preloaded_images_verification_allowlist.clone())
        }
        "AlwaysVerify" => PullVerification::Always,
        _ => PullVerification::Pulled,
    }
}

fn pull_limits(loaded: &Loaded) -> PullLimits {
    let config = &loaded.config;
    let parallel = match (config.serialize_image_pulls, config.max_parallel_image_pulls) {
        (true, _) => Some(1),
        (false, limit) => limit.and_then(|limit| usize::try_from(limit).ok()),
    };
    PullLimits {
        parallel,
        per_second: u32::try_from(config.registry_pull_qps).unwrap_or(0),
        burst: u32::try_from(config.registry_burst).unwrap_or(0),
    }
}

fn upkeep(
    (loaded, mode): (&Loaded, Mode),
    (cri, root, links): (Cri, PathBuf, PathBuf),
    desired: watch::Receiver<Arc<DesiredState>>,
    (volume_jobs, (events, counters)): (Jobs, (&EventSink, Arc<NodeCounters>)),
) -> UpkeepConfig {
    let (config, settings) = (&loaded.config, &loaded.settings);
    UpkeepConfig {
        cri,
        root_dir: root,
        pod_logs_dir: config.pod_logs_dir.clone().into(),
        container_log_links: links,
        remove_unknown: mode == Mode::Kubelet,
        desired,
        volume_jobs,
        counters,
        events: events.clone(),
        keep: Keep {
            per_container: settings.maximum_dead_containers_per_container,
            in_all: settings.maximum_dead_containers,
            min_age: settings.minimum_container_ttl_duration.as_std(),
        },
        period: Duration::from_secs(60),
        log_max_bytes: u64::try_from(config.container_log_max_bytes()).unwrap_or(0),
        log_max_files: usize::try_from(config.container_log_max_files).unwrap_or(5),
        log_workers: usize::try_from(config.container_log_max_workers).unwrap_or(1),
        log_period: config.container_log_monitor_interval.as_std(),
    }
}

/// Where the machine swaps and a tmpfs cannot be kept from it, Secrets may reach a disk, and somebody has to know.
fn tell_of_swapped_volumes(swap_bytes: i64, events: &EventSink) {
    if swap_bytes == 0 || mainstay_volume::tmpfs_stays_in_memory() {
        return;
    }
    let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
                   swapped to disk and should no longer be considered secure.";
    warn!("{message} Linux 6.4 knows it; or switch swap off.");
    let (target, kind) = (EventTarget::Node, EventKind::Warning);
    let reason = "PossibleMemoryBackedVolumesOnDisk".into();
    events.send(Event { target, kind, reason, message: message.to_owned(), time: Timestamp::now() });
}

/// After a burst of pods, what is free in the heap goes back to the system; and every so often what readings and lists have needed of
/// it since, and what is mapped of the program, of which only what is needed comes back.
fn release_memory_when_quiet(mut snapshots: mainstay_snapshot::SnapshotReader, tasks: &TaskGroup) {
    const QUIET: Duration = Duration::from_secs(5);
    /// What is needed comes back by some hundred page faults, a millisecond in all.
    const PERIOD: Duration = Duration::from_secs(30);
    let shutdown: Shutdown = tasks.shutdown();
    tasks.spawn("memory", async move {
        let heap = async {
            while snapshots.changed().await.is_ok() {
                while let Ok(changed) = tokio::time::timeout(QUIET, snapshots.changed()).await {
                    if changed.is_err() {
                        return;
                    }
                }
                // It cannot fail, only die with the process.
                tokio::task::spawn_blocking(mainstay_host::release_free_memory).await.ok();
            }
        };
        let regularly = async {
            loop {
                tokio::time::sleep(PERIOD).await;
                let both = || {
                    mainstay_host::release_free_memory();
                    mainstay_host::release_program_pages();
                };
                tokio::task::spawn_blocking(both).await.ok();
            }
        };
        shutdown.run_until_signalled(async { tokio::join!(heap, regularly) }).await;
    });
}

/// Tells when the first complete snapshot is there, and feeds the watchdog while the sync loop lives.
fn feed_watchdog(
    manager: &ServiceManager,
    mut snapshots: mainstay_snapshot::SnapshotReader,
    heartbeat: Heartbeat,
    sync_frequency: Duration,
    tasks: &TaskGroup,
) {
    let (manager, shutdown): (_, Shutdown) = (manager.clone(), tasks.shutdown());
    let stale = (sync_frequency * 2).max(Duration::from_secs(300));
    tasks.spawn("service manager", async move {
        let work = async {
            let mut told = false;
            let interval = manager.watchdog_interval();
            loop {
                // Cancel safe: both only wait.
                tokio::select! {
                    first = snapshots.wait_for(Option::is_some), if !told => {
                        if first.is_err() {
                            return;
                        }
                        told = true;
                        manager.status("running pods");
                    }
                    () = tokio::time::sleep(interval.unwrap_or(Duration::MAX)), if interval.is_some() => {
                        if heartbeat.age() < stale {
                            manager.watchdog();
                        }
                    }
                    else => return,
                }
            }
        };
        shutdown.run_until_signalled(work).await;
    });
}
