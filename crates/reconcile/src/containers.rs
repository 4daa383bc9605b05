//! Making and starting a container.

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Container;
use mainstay_lifecycle::HoldCause;
use mainstay_podspec::runtime::{
    self, ContainerContext, DeviceGrants, EnvFiles, ImageUser, hostname_and_domain,
};
use mainstay_types::{ContainerId, ContainerKind, ContainerName, ContainerReason, EventKind, PodExt};
use tracing::{Instrument, info, info_span, warn};

use crate::{
    files, hooks,
    images::{self, Wanted},
    kill, sandbox,
    sandbox::Made,
    worker::{Fact, Order, RETRY_AFTER, Shared, hold},
};

/// What went wrong on the way to a running container.
struct Failure {
    reason: &'static str,
    message: String,
}

impl Failure {
    fn new(reason: &'static str, message: impl ToString) -> Self {
        Self { reason, message: message.to_string() }
    }
}

/// Starts a container; whether it is up. A failure is reported, told of and held.
pub(crate) async fn start(
    shared: &Shared,
    order: &Order,
    target: &Made,
    name: ContainerName,
    kind: ContainerKind,
) -> bool {
    let Some((_, spec)) = order.desired.pod.container(name.as_str()) else { return false };
    let span = info_span!("container", container = %name);
    async {
        let image = match images::ensure(shared, order, target, spec, kind).await {
            Ok(image) => image,
            Err(Wanted::Cancelled | Wanted::Held) => return false,
        };
        match make(shared, order, target, spec, kind, image).await {
            Ok(id) => {
                shared.report(&order.desired.uid, Fact::Started { name: name.clone(), id }).await;
                true
            }
            Err(failure) => {
                warn!(reason = failure.reason, error = failure.message, "cannot start the container");
                let text = format!("Error: {}", failure.message);
                let who = Some((kind, name.as_str()));
                if failure.reason != "PostStartHookError" {
                    shared.event(&order.desired, who, EventKind::Warning, "Failed", text);
                }
                let reason = ContainerReason { reason: failure.reason.into(), message: failure.message };
                let cause = HoldCause::Failed(reason);
                hold(shared, &order.desired.uid, name.clone(), cause, RETRY_AFTER).await;
                false
            }
        }
    }
    .instrument(span)
    .await
}

async fn make(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
    image: cri::Image,
) -> Result<ContainerId, Failure> {
    let desired = &order.desired;
    let who = Some((kind, spec.name.as_str()));
    let restart_count = files::next_restart_count(shared, order, &spec.name).await;
    let mounts = files::mounts(shared, order, spec, target)
        .await
        .map_err(|error| Failure::new("CreateContainerConfigError", error))?;
    let image_user = match (image.uid, image.username.as_str()) {
        (Some(uid), _) => Some(ImageUser::Uid(uid.value)),
        (None, "") => None,
        (None, name) => Some(ImageUser::Name(name.to_owned())),
    };
    let config = runtime::container_config(
        &desired.pod,
        spec,
        kind,
        &ContainerContext {
            node: &shared.config.node,
            restart_count,
            image_ref: &image.id,
            image_user,
            pod_ips: &target.ips,
            mounts,
            objects: &order.objects,
            env_files: &EnvFiles::default(),
            grants: &DeviceGrants::default(),
            extra_groups: &[],
            user_namespace: None,
            target_container: None,
            exclusive_cpus: false,
        },
    )
    .map_err(|error| Failure::new(error.reason(), error))?;
    let sandbox_config = sandbox::config(shared, order, target.attempt)
        .map_err(|error| Failure::new("CreateContainerConfigError", error))?;
    let log_path = runtime::pod_log_directory(
        &shared.config.node.pod_logs_dir,
        desired.pod.namespace_ref(),
        desired.pod.name_ref(),
        desired.pod.uid_ref(),
    )
    .join(&config.log_path);

    let id = Box::pin(shared.config.cri.create_container(target.id.as_str(), config, sandbox_config))
        .await
        .map_err(|error| {
        order.log.uncertain();
        Failure::new("CreateContainerError", error)
    })?;
    let id = ContainerId::from(id);
    order.log.container(&id, &target.id);
    shared.event(desired, who, EventKind::Normal, "Created", "Container created".into());
    shared
        .config
        .cri
        .start_container(id.as_str())
        .await
        .map_err(|error| Failure::new("RunContainerError", error))?;
    shared.event(desired, who, EventKind::Normal, "Started", "Container started".into());
    info!(container.id = %id, restart_count, "container is up");
    files::link_log(shared, desired, &spec.name, &id, log_path).await;

    if let Some(hook) = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref()) {
        shared.report(&desired.uid, Fact::Hooking { id: id.clone() }).await;
        shared.look(order);
        let pod_ip = target.ips.first().map(String::as_str);
        let ran = order.cancel.cut(hooks::run(shared, order, spec, kind, &id, hook, pod_ip)).await;
        if let Some(Err(message)) = ran {
            shared.event(desired, who, EventKind::Warning, "FailedPostStartHook", message.clone());
            let grace = desired.pod.grace_seconds().max(1);
            let text = format!("FailedPostStartHook: {message}");
            if let Err(error) = kill::stop_container(shared, order, &id, &spec.name, grace, text).await {
                warn!(%error, "cannot stop a container whose postStart hook failed");
            }
            return Err(Failure::new("PostStartHookError", message));
        }
    }
    Ok(id)
}

/// The names a hosts file needs; an impossible name was refused when the sandbox was made.
pub(crate) fn names(shared: &Shared, order: &Order) -> (String, String) {
    hostname_and_domain(&order.desired.pod, &shared.config.node.cluster_domain).unwrap_or_default()
}
