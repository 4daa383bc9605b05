//! Making a pod's sandbox.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_cri::v1::{DnsConfig, PodSandboxConfig, UserNamespace};
use mainstay_host::{ResolvConf, ResolvConfError};
use mainstay_podspec::runtime::{
    self, DnsSettings, HostResolv, MISSING_CLUSTER_DNS, Notice, NoticeTarget, SandboxContext,
};
use mainstay_podspec::volumes::extra_groups;
use mainstay_types::{
    ContainerReason, Event, EventKind, EventTarget, ObservedPod, PodExt, PodSource, SandboxId, in_node_order,
};
use mainstay_volume::{Hung, Progress};
use tracing::{debug, info, warn};

use crate::{
    files,
    userns::{self, UsernsError},
    worker::{Order, RETRY_AFTER, RETRY_NETWORK, Shared, short},
};

/// Longest that a pod waits for the node's resolver configuration.
const RESOLVER_PATIENCE: Duration = Duration::from_secs(10);

/// A sandbox to start containers in.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: SandboxId,
    pub(crate) attempt: u32,
    pub(crate) ips: Vec<String>,
}

impl Made {
    /// One that was there before.
    pub(crate) fn existing(shared: &Shared, id: SandboxId, order: &Order) -> Self {
        let known =
            order.observed.as_deref().and_then(|o: &ObservedPod| o.sandboxes.iter().find(|s| s.id == id));
        Self {
            attempt: known.map_or(0, |sandbox| sandbox.attempt),
            ips: known.map(|sandbox| in_node_order(&sandbox.ips, &shared.addresses())).unwrap_or_default(),
            id,
        }
    }
}

/// Why there is none, and when to try again.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: ContainerReason,
    pub(crate) retry_after: SignedDuration,
}

/// Makes a sandbox: network check, cgroup, directories, then the runtime.
pub(crate) async fn create(
    shared: &Shared,
    order: &Order,
    attempt: u32,
    changed: bool,
) -> Result<Made, Failure> {
    let desired = &order.desired;
    let pod = &desired.pod;
    let fail = |reason: &str, message: String, retry_after| Failure {
        reason: ContainerReason { reason: reason.into(), message },
        retry_after,
    };
    if changed {
        let text = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        shared.event(desired, None, EventKind::Normal, "SandboxChanged", text);
    }
    if !pod.host_network()
        && let Some(problem) = &order.runtime.network_problem
    {
        let text = format!("network is not ready: container runtime network not ready: {problem}");
        shared.event(desired, None, EventKind::Warning, "NetworkNotReady", text.clone());
        return Err(fail("NetworkNotReady", text, RETRY_NETWORK));
    }
    let class = pod.spec_ref().runtime_class_name.as_deref().filter(|class| !class.is_empty());
    let handler = class.and_then(|class| order.objects.runtime_classes.get(class));
    if let (Some(class), None) = (class, handler) {
        let remedy = if desired.source.is_static() {
            "put it into the directory of the manifests, or leave runtimeClassName out"
        } else {
            "make it, or leave runtimeClassName out"
        };
        let text = format!("Failed to create pod sandbox: RuntimeClass {class:?} not found: {remedy}");
        shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
        return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
    }
    if let Err(error) = files::prepare_pod(shared, desired).await {
        warn!(%error, "cannot prepare the pod's directories");
        shared.event(desired, None, EventKind::Warning, "FailedSync", error.to_string());
        return Err(fail("CreatePodSandboxError", error.to_string(), RETRY_AFTER));
    }
    let counters = &shared.config.counters;
    let own_users = pod.spec_ref().host_users == Some(false);
    if own_users {
        counters.user_namespaces.add();
    }
    let config = match new_config(shared, order, attempt).await {
        Ok(config) => config,
        Err(error) => {
            if own_users {
                counters.user_namespace_errors.add();
            }
            let text = format!("Failed to generate sandbox config for pod {:?}: {error}", description(order));
            shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
            return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
        }
    };
    let (handler, begun) = (handler.cloned().unwrap_or_default(), std::time::Instant::now());
    counters.sandboxes.add();
    let made = Box::pin(shared.config.cri.run_sandbox(config, &handler)).await;
    counters.sandbox_times.of(Arc::clone(&handler)).observe(begun.elapsed());
    let id = match made {
        Ok(id) => {
            let id = SandboxId::from(id);
            order.log.sandbox(&id);
            id
        }
        Err(error) => {
            order.log.uncertain();
            counters.sandbox_errors.add();
            counters.sandbox_failures.of(handler).add();
            if own_users {
                counters.user_namespace_errors.add();
            }
            warn!(%error, "cannot create the pod's sandbox");
            let text = format!("Failed to create pod sandbox: {error}");
            shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
            return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
        }
    };
    let own = shared.addresses();
    let ips = if pod.host_network() {
        in_node_order(&own, &own)
    } else {
        match shared.config.cri.sandbox_status(id.as_str()).await {
            Ok(response) => {
                let network = response.status.and_then(|status| status.network).unwrap_or_default();
                let more = network.additional_ips.into_iter().map(|ip| ip.ip);
                let ips: Vec<_> = std::iter::once(network.ip).chain(more).collect();
                in_node_order(&ips, &own)
            }
            Err(error) => {
                debug!(%error, "cannot read the new sandbox's addresses");
                Vec::new()
            }
        }
    };
    info!(sandbox = short(&id), attempt, ?ips, "sandbox is up");
    Ok(Made { id, attempt, ips })
}

/// Why a sandbox's configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The pod asks for something that cannot be.
    #[error(transparent)]
    Spec(#[from] runtime::SpecError),
    /// It has no user IDs.
    #[error(transparent)]
    Userns(#[from] UsernsError),
    /// The node's resolver configuration cannot be used.
    #[error("the node's resolver configuration cannot be used: {}", chain(.0))]
    Resolver(#[from] ResolvConfError),
    /// It cannot be read in time.
    #[error(transparent)]
    Hung(#[from] Hung),
}

/// The configuration of a new sandbox; what is odd about its name resolution is told of.
async fn new_config(shared: &Shared, order: &Order, attempt: u32) -> Result<PodSandboxConfig, ConfigError> {
    let resolver = resolver(shared, order).await?;
    tell_dns_notices(shared, order, resolver.as_ref());
    let user_namespace = userns::ensure(shared, order).await?;
    Ok(config_with(shared, order, attempt, user_namespace.as_ref(), resolver.as_ref())?)
}

/// The configuration the sandbox was made with, as far as that is still known. The runtime wants it again with each
/// container.
pub(crate) async fn config(
    shared: &Shared,
    order: &Order,
    attempt: u32,
    user_namespace: Option<&UserNamespace>,
) -> Result<PodSandboxConfig, ConfigError> {
    let resolver = resolver(shared, order).await?;
    Ok(config_with(shared, order, attempt, user_namespace, resolver.as_ref())?)
}

fn config_with(
    shared: &Shared,
    order: &Order,
    attempt: u32,
    user_namespace: Option<&UserNamespace>,
    resolver: Option<&HostResolv>,
) -> Result<PodSandboxConfig, runtime::SpecError> {
    let (dns, _) = dns(shared, order, resolver);
    runtime::sandbox_config(
        &order.desired.pod,
        &SandboxContext {
            node: &shared.config.node,
            attempt,
            cgroup_parent: &files::cgroup_parent(shared, &order.desired.pod),
            dns,
            extra_groups: &extra_groups(&order.desired.pod, &order.objects),
            user_namespace,
            exclusive_cpus: shared.config.resources.holds_cpus(order.desired.uid.as_str()),
        },
    )
}

/// The node's resolver configuration as it is now: the machine may have come into another network since the last pod. One
/// that is not there leaves pods without the node's name servers; one that cannot be used is an error, and tried again.
async fn resolver(shared: &Shared, order: &Order) -> Result<Option<HostResolv>, ConfigError> {
    let Some(path) = shared.config.resolv_conf.clone() else { return Ok(None) };
    let work = move |progress: &Progress| {
        progress.doing(format!("reading {}", path.display()));
        ResolvConf::read(&path)
    };
    let uid = order.desired.uid.as_str();
    match shared.config.volume_jobs.run(uid, RESOLVER_PATIENCE, work).await? {
        Ok(conf) => {
            let ResolvConf { nameservers, searches, options } = conf;
            Ok(Some(HostResolv { nameservers, searches, options }))
        }
        Err(ResolvConfError::Read { path, source }) if source.kind() == std::io::ErrorKind::NotFound => {
            warn!(path = %path.display(), "the node's resolver configuration is not there; pods get no name servers from it");
            Ok(Some(HostResolv::default()))
        }
        Err(error) => Err(error.into()),
    }
}

fn chain(error: &ResolvConfError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Tells what is odd about the pod's name resolution, once per sandbox.
fn tell_dns_notices(shared: &Shared, order: &Order, resolver: Option<&HostResolv>) {
    let (_, notices) = dns(shared, order, resolver);
    // A pod of a file knows no cluster, so that this is not about the pod; and of the node it is said once.
    let of_cluster = order.desired.source == PodSource::Api;
    for notice in notices {
        let missing = notice.reason == MISSING_CLUSTER_DNS;
        match notice.target {
            NoticeTarget::Pod if missing && !of_cluster => {}
            NoticeTarget::Node if missing && shared.told_of_dns.swap(true, Ordering::Relaxed) => {}
            NoticeTarget::Pod => {
                shared.event(&order.desired, None, EventKind::Warning, notice.reason, notice.message);
            }
            NoticeTarget::Node => {
                shared.config.events.send(Event {
                    target: EventTarget::Node,
                    kind: EventKind::Warning,
                    reason: notice.reason.into(),
                    message: notice.message,
                    time: jiff::Timestamp::now(),
                });
            }
        }
    }
}

fn dns(shared: &Shared, order: &Order, resolver: Option<&HostResolv>) -> (DnsConfig, Vec<Notice>) {
    let settings = DnsSettings {
        host: resolver,
        node_ips: &shared.addresses(),
        cluster_dns: &shared.config.cluster_dns,
        cluster_domain: &shared.config.node.cluster_domain,
    };
    runtime::dns_config(&order.desired.pod, &settings)
}

fn description(order: &Order) -> String {
    let pod = &order.desired.pod;
    format!("{}_{}({})", pod.name_ref(), pod.namespace_ref(), pod.uid_ref())
}
