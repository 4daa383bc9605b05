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
use mainstay_config::{HostFacts, Loaded, check_host};
use mainstay_cri::Cri;
use mainstay_desired::{Sources, SourcesConfig, UrlSource};
use mainstay_host::{Host, LockFile, ServiceManager, raise_open_file_limit};
use mainstay_observe::ObserveConfig;
use mainstay_reconcile::{Ownership, PullLimits, ReconcileConfig};
use mainstay_server::{ServerConfig, ServerState};
use mainstay_snapshot::{EventStoreConfig, Inputs, SnapshotConfig};
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::{Event, EventKind, EventSink, EventTarget, Heartbeat, VERSION};
use mainstay_upkeep::{UpkeepConfig, garbage::Keep};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::{cli, logging, node};

/// How long open requests and running steps may take to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How many events may wait for the store.
const EVENT_BOUND: usize = 1024;

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
    logging::start(&loaded.config);
    info!(version = VERSION, ?mode, "mainstay starts");
    for notice in cli::notices(&loaded) {
        warn!("{notice}");
    }
    // Two workers are plenty for an agent that waits most of the time, and keep its memory small.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .thread_keep_alive(Duration::from_secs(2))
        .thread_name("mainstay")
        .enable_all()
        .build();
    let result = runtime.context("cannot start the async runtime").and_then(|runtime| {
        let result = runtime.block_on(run(loaded, mode));
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

async fn run(loaded: Loaded, mode: Mode) -> Result<()> {
    let manager = ServiceManager::from_environment();
    let tasks = TaskGroup::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let build = Box::pin(build(&loaded, mode, &tasks, &manager));
    // Cancel safe: whatever was built so far is dropped, and nothing of it has begun to matter before it is returned.
    let held = tokio::select! {
        built = build => Some(built?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
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
async fn build(loaded: &Loaded, mode: Mode, tasks: &TaskGroup, manager: &ServiceManager) -> Result<Held> {
    let config = &loaded.config;
    let root = PathBuf::from(&loaded.settings.root_dir);
    let host = Host::default();
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
    // Nothing is written before it is clear that mainstay may run here.
    make_root(&root)?;
    let lock = LockFile::acquire(&root.join("mainstay.lock"))?;
    let node_name: Arc<str> =
        host.node_name(Some(loaded.settings.hostname_override.as_str()).filter(|n| !n.is_empty()))?.into();
    let host_ips = node::addresses(loaded);
    match raise_open_file_limit(u64::try_from(config.max_open_files).unwrap_or(0)) {
        Ok(_) => {}
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
    let cri = Cri::new(
        &config.container_runtime_endpoint,
        Some(config.image_service_endpoint.as_str()),
        config.runtime_request_timeout.as_std(),
    )?;

    // The edges listen first: health is answered while the runtime is still away, and pods with 503.
    let (events, event_receiver) = EventSink::bounded(EVENT_BOUND);
    let event_reader =
        mainstay_snapshot::start_events(EventStoreConfig::new(Arc::clone(&node_name)), event_receiver, tasks);
    let (snapshot_writer, snapshots) = mainstay_snapshot::channel();
    let heartbeat = Heartbeat::default();
    let bound = mainstay_server::bind(ServerConfig {
        socket: root.join("mainstay.sock"),
        read_only: port(&config.address, config.read_only_port)?,
        healthz: port(&config.healthz_bind_address, config.healthz_port)?,
        sync_frequency: config.sync_frequency.as_std(),
        split_log_streams: loaded.gates.enabled("PodLogsQuerySplitStreams"),
    })?;
    let state =
        ServerState { snapshot: snapshots.clone(), events: event_reader, heartbeat: heartbeat.clone() };
    bound.serve(state, tasks);
    // Up, in the sense of a service manager: it answers. Pods may have to wait for a runtime that is still away.
    manager.ready();
    manager.status("waiting for the container runtime and the manifests");
    feed_watchdog(manager, snapshots.clone(), heartbeat.clone(), config.sync_frequency.as_std(), tasks);

    let (observed, refresh) = mainstay_observe::start(ObserveConfig::new(cri.clone()), tasks);
    let sources =
        Sources::start(sources_config(loaded, &root, &node_name), tasks, events.clone(), observed.clone())?;

    let cgroups = node::cgroups(loaded, &cri, &heartbeat, &tasks.shutdown()).await?;
    if !config.pod_cidr.is_empty()
        && let Err(error) = cri.update_runtime_config(&config.pod_cidr).await
    {
        warn!(%error, "cannot tell the runtime the pod network");
    }
    let links = container_log_links(&root);
    let (outcomes, mut problems) = mainstay_reconcile::start(
        ReconcileConfig {
            cri: cri.clone(),
            refresh,
            events: events.clone(),
            node: node::settings(loaded, &host, cgroup_v2, host_ips.clone()),
            host_resolv: node::resolver(&config.resolv_conf),
            cluster_dns: config.cluster_dns_addresses().iter().map(ToString::to_string).collect(),
            cgroups,
            container_log_links: links.clone(),
            pulls: pull_limits(loaded),
            max_restart_period: config
                .crash_loop_back_off
                .max_container_restart_period
                .map_or(Duration::from_secs(300), |period| period.as_std()),
            sync_frequency: config.sync_frequency.as_std(),
            ownership: if mode == Mode::Run { Ownership::OnlyOurs } else { Ownership::Everything },
            heartbeat: heartbeat.clone(),
        },
        sources.desired.clone(),
        observed.clone(),
        tasks,
    )?;
    problems.extend(mainstay_snapshot::start(
        SnapshotConfig {
            node_name: Arc::clone(&node_name),
            host_ips,
            status_dir: root.join("mainstay/status"),
        },
        Inputs { desired: sources.desired.clone(), observed, outcomes },
        snapshot_writer,
        tasks,
    ));
    for problem in problems {
        warn!("{problem}");
        let target = EventTarget::Node;
        let (kind, reason) = (EventKind::Warning, "StateFileSetAside");
        events.send(Event { target, kind, reason, message: problem, time: Timestamp::now() });
    }
    mainstay_upkeep::start(upkeep(loaded, mode, cri, root, links), &snapshots, tasks);

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

fn sources_config(loaded: &Loaded, root: &std::path::Path, node_name: &Arc<str>) -> SourcesConfig {
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
    SourcesConfig {
        node_name: Arc::clone(node_name),
        root_dir: root.to_owned(),
        static_pod_path: (!config.static_pod_path.is_empty()).then(|| config.static_pod_path.clone().into()),
        file_check_frequency: config.file_check_frequency.as_std(),
        any_extension: false,
        static_pod_url: url,
        api_server: false,
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

fn upkeep(loaded: &Loaded, mode: Mode, cri: Cri, root: PathBuf, links: PathBuf) -> UpkeepConfig {
    let (config, settings) = (&loaded.config, &loaded.settings);
    UpkeepConfig {
        cri,
        root_dir: root,
        pod_logs_dir: config.pod_logs_dir.clone().into(),
        container_log_links: links,
        remove_unknown: mode == Mode::Kubelet,
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

/// After a burst of pods, what it needed goes back to the system.
fn release_memory_when_quiet(mut snapshots: mainstay_snapshot::SnapshotReader, tasks: &TaskGroup) {
    const QUIET: Duration = Duration::from_secs(5);
    let shutdown: Shutdown = tasks.shutdown();
    tasks.spawn("memory", async move {
        let work = async {
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
        shutdown.run_until_signalled(work).await;
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
