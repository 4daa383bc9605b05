//! Making a pod's sandbox.

use jiff::SignedDuration;
use k8s_cri::v1::PodSandboxConfig;
use mainstay_podspec::runtime::{self, DnsSettings, NoticeTarget, SandboxContext};
use mainstay_types::{ContainerReason, Event, EventKind, EventTarget, ObservedPod, PodExt, SandboxId};
use tracing::{debug, info, warn};

use crate::{
    files,
    worker::{Order, RETRY_AFTER, RETRY_NETWORK, Shared, short},
};

/// A sandbox to start containers in.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: SandboxId,
    pub(crate) attempt: u32,
    pub(crate) ips: Vec<String>,
}

impl Made {
    /// One that was there before.
    pub(crate) fn existing(id: SandboxId, order: &Order) -> Self {
        let known =
            order.observed.as_deref().and_then(|o: &ObservedPod| o.sandboxes.iter().find(|s| s.id == id));
        Self {
            attempt: known.map_or(0, |sandbox| sandbox.attempt),
            ips: known.map(|sandbox| sandbox.ips.clone()).unwrap_or_default(),
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
    if let Some(class) = pod.spec_ref().runtime_class_name.as_deref().filter(|class| !class.is_empty()) {
        let text = format!(
            "Failed to create pod sandbox: RuntimeClass {class:?} not found: there is no API server to read it from; leave runtimeClassName out"
        );
        shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
        return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
    }
    if let Err(error) = files::prepare_pod(shared, desired).await {
        warn!(%error, "cannot prepare the pod's directories");
        shared.event(desired, None, EventKind::Warning, "FailedSync", error.to_string());
        return Err(fail("CreatePodSandboxError", error.to_string(), RETRY_AFTER));
    }
    tell_dns_notices(shared, order);
    let config = match config(shared, order, attempt) {
        Ok(config) => config,
        Err(error) => {
            let text = format!("Failed to generate sandbox config for pod {:?}: {error}", description(order));
            shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
            return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
        }
    };
    let id = match Box::pin(shared.config.cri.run_sandbox(config, "")).await {
        Ok(id) => {
            let id = SandboxId::from(id);
            order.log.sandbox(&id);
            id
        }
        Err(error) => {
            order.log.uncertain();
            warn!(%error, "cannot create the pod's sandbox");
            let text = format!("Failed to create pod sandbox: {error}");
            shared.event(desired, None, EventKind::Warning, "FailedCreatePodSandBox", text.clone());
            return Err(fail("CreatePodSandboxError", text, RETRY_AFTER));
        }
    };
    let ips = if pod.host_network() {
        shared.config.node.host_ips.clone()
    } else {
        match shared.config.cri.sandbox_status(id.as_str()).await {
            Ok(response) => {
                let network = response.status.and_then(|status| status.network).unwrap_or_default();
                let more = network.additional_ips.into_iter().map(|ip| ip.ip);
                std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect()
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

/// The configuration the sandbox was, or is to be, made with. The runtime wants it again with each container.
pub(crate) fn config(
    shared: &Shared,
    order: &Order,
    attempt: u32,
) -> Result<PodSandboxConfig, runtime::SpecError> {
    let settings = dns_settings(shared);
    let (dns, _) = runtime::dns_config(&order.desired.pod, &settings);
    runtime::sandbox_config(
        &order.desired.pod,
        &SandboxContext {
            node: &shared.config.node,
            attempt,
            cgroup_parent: &files::cgroup_parent(shared, &order.desired.pod),
            dns,
            extra_groups: &[],
            user_namespace: None,
            exclusive_cpus: false,
        },
    )
}

/// Tells what is odd about the pod's name resolution, once per sandbox.
fn tell_dns_notices(shared: &Shared, order: &Order) {
    let settings = dns_settings(shared);
    let (_, notices) = runtime::dns_config(&order.desired.pod, &settings);
    for notice in notices {
        match notice.target {
            NoticeTarget::Pod => {
                shared.event(&order.desired, None, EventKind::Warning, notice.reason, notice.message);
            }
            NoticeTarget::Node => {
                shared.config.events.send(Event {
                    target: EventTarget::Node,
                    kind: EventKind::Warning,
                    reason: notice.reason,
                    message: notice.message,
                    time: jiff::Timestamp::now(),
                });
            }
        }
    }
}

fn dns_settings(shared: &Shared) -> DnsSettings<'_> {
    DnsSettings {
        host: shared.config.host_resolv.as_ref(),
        node_ips: &shared.config.node.host_ips,
        cluster_dns: &shared.config.cluster_dns,
        cluster_domain: &shared.config.node.cluster_domain,
    }
}

fn description(order: &Order) -> String {
    let pod = &order.desired.pod;
    format!("{}_{}({})", pod.name_ref(), pod.namespace_ref(), pod.uid_ref())
}
