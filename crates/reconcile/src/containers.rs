//! Making and starting a container.

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use mainstay_cri::{ContainerExtras, CriError};
use mainstay_lifecycle::HoldCause;
use mainstay_podspec::runtime::{self, ContainerContext, ImageUser, exclusive_cpus, hostname_and_domain};
use mainstay_podspec::volumes::extra_groups;
use mainstay_types::{ContainerId, ContainerKind, ContainerName, ContainerReason, EventKind, PodExt};
use tracing::{Instrument, info, info_span, warn};

use crate::{
    cpusets, files, hooks,
    images::{self, Wanted},
    kill, sandbox,
    sandbox::Made,
    userns, volumes,
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
    images: &volumes::Images,
) -> bool {
    let Some((_, spec)) = order.desired.pod.container(name.as_str()) else { return false };
    let span = info_span!("container", container = %name);
    let mut trace = mainstay_trace::child("container");
    if trace.is_recorded() {
        trace.set("k8s.container.name", name.to_string());
    }
    let work = async {
        let image = match images::ensure(shared, order, target, spec, kind).await {
            Ok(image) => image,
            Err(Wanted::Cancelled | Wanted::Held) => return false,
        };
        if images.lacking(&name) {
            return false;
        }
        let made = make(shared, order, target, spec, kind, image, images).await;
        conclude(shared, order, name.clone(), kind, made).await
    };
    // In a box: it is large, and would be here twice.
    let up = trace.run(Box::pin(work.instrument(span))).await;
    if !up {
        trace.fail("it is not up");
    }
    up
}

/// Runs the postStart hook of a container that was started by an earlier mainstay.
pub(crate) async fn resume(
    shared: &Shared,
    order: &Order,
    target: &Made,
    name: ContainerName,
    kind: ContainerKind,
    id: ContainerId,
) {
    let Some((_, spec)) = order.desired.pod.container(name.as_str()) else { return };
    let span = info_span!("container", container = %name);
    async {
        let ran = post_start(shared, order, target, spec, kind, id).await;
        conclude(shared, order, name.clone(), kind, ran).await;
    }
    .instrument(span)
    .await;
}

/// Reports what became of a container; whether it is up.
async fn conclude(
    shared: &Shared,
    order: &Order,
    name: ContainerName,
    kind: ContainerKind,
    made: Result<Option<ContainerId>, Failure>,
) -> bool {
    match made {
        Ok(Some(id)) => {
            shared.report(&order.desired.uid, Fact::Started { name, id }).await;
            true
        }
        // Nothing is known of it that was not known before.
        Ok(None) => false,
        Err(failure) => {
            warn!(reason = failure.reason, error = failure.message, "cannot start the container");
            let text = format!("Error: {}", failure.message);
            let who = Some((kind, name.as_str()));
            if failure.reason != "PostStartHookError" {
                shared.event(&order.desired, who, EventKind::Warning, "Failed", text);
            }
            let reason = ContainerReason { reason: failure.reason.into(), message: failure.message };
            let cause = HoldCause::Failed(reason);
            hold(shared, &order.desired.uid, name, cause, RETRY_AFTER).await;
            false
        }
    }
}

/// Makes and starts a container and runs its hook. `None` when mainstay or the pod is to end before the hook has.
async fn make(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
    image: cri::Image,
    images: &volumes::Images,
) -> Result<Option<ContainerId>, Failure> {
    let desired = &order.desired;
    let who = Some((kind, spec.name.as_str()));
    let restart_count = files::next_restart_count(shared, order, &spec.name).await;
    let image_user = match (image.uid, image.username.as_str()) {
        (Some(uid), _) => Some(ImageUser::Uid(uid.value)),
        (None, "") => None,
        (None, name) => Some(ImageUser::Name(name.to_owned())),
    };
    let user_namespace = userns::ensure(shared, order)
        .await
        .map_err(|error| Failure::new("CreateContainerConfigError", error))?;
    let config_error = |error: &dyn std::fmt::Display| Failure::new("CreateContainerConfigError", error);
    let env_files = volumes::env_files(shared, order, spec).await.map_err(|error| config_error(&error))?;
    // A plugin may take long; the pod may be to end meanwhile, or mainstay.
    let granted =
        order.cancel.cut(shared.config.resources.devices().prepare(desired.uid.as_str(), &spec.name)).await;
    let Some(granted) = granted else { return Ok(None) };
    let granted = granted.map_err(|error| config_error(&error))?;
    let place = shared.config.resources.place(desired.uid.as_str(), &spec.name);
    let node = shared.node_now();
    let extra_groups = extra_groups(&desired.pod, &order.objects);
    let mut context = ContainerContext {
        node: &node,
        restart_count,
        image_ref: &image.id,
        image_user,
        pod_ips: &target.ips,
        mounts: Vec::new(),
        objects: &order.objects,
        env_files: &env_files,
        grants: &granted.grants,
        extra_groups: &extra_groups,
        user_namespace: user_namespace.as_ref(),
        target_container: None,
        // Who shares what its pod has as a whole may use no more than it asks for.
        exclusive_cpus: place.exclusive && (!place.pooled || exclusive_cpus(&desired.pod, spec, true) > 0),
    };
    let volume_mounts =
        volumes::mounts(shared, order, spec, &context, images).await.map_err(|error| config_error(&error))?;
    context.mounts = granted.mounts;
    context.mounts.extend(
        files::mounts(shared, order, spec, target, (restart_count, volume_mounts.all))
            .await
            .map_err(|error| config_error(&error))?,
    );
    let mut config = runtime::container_config(&desired.pod, spec, kind, &context)
        .map_err(|error| Failure::new(error.reason(), error))?;
    if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
        resources.cpuset_cpus.clone_from(&place.cpus);
        resources.cpuset_mems.clone_from(&place.nodes);
    }
    let sandbox_config = sandbox::config(shared, order, target.attempt, user_namespace.as_ref())
        .await
        .map_err(|error| Failure::new("CreateContainerConfigError", error))?;
    let log_path = runtime::pod_log_directory(
        &shared.config.node.pod_logs_dir,
        desired.pod.namespace_ref(),
        desired.pod.name_ref(),
        desired.pod.uid_ref(),
    )
    .join(&config.log_path);

    let extras = ContainerExtras {
        stop_signal: runtime::stop_signal(spec),
        image_sub_paths: volumes::Mounts::split_off(&mut config, volume_mounts.image_sub_paths),
    };
    let create = shared.config.cri.create_container_with(target.id.as_str(), config, sandbox_config, extras);
    let counters = &shared.config.counters;
    let created = Box::pin(create).await;
    let refusal = match &created {
        Err(CriError::Refused { message, .. }) => Some(message.as_str()),
        _ => None,
    };
    volumes::count_images(counters, (&desired.pod, spec), refusal);
    let id = created.map_err(|error| {
        order.log.uncertain();
        counters.container_errors.of(["CreateContainerError", kind.metric_label()]).add();
        Failure::new("CreateContainerError", error)
    })?;
    let id = ContainerId::from(id);
    order.log.container(&id, &target.id);
    shared.cpusets.note(&id, &place.cpus);
    shared.event(desired, who, EventKind::Normal, "Created", "Container created".into());
    if post_start_hook(spec).is_some() {
        // On disk before it runs: from then on a restart of mainstay must not take it for started.
        if !shared.note_hook(&desired.uid, &id).await {
            return Ok(None);
        }
    }
    shared.config.cri.start_container(id.as_str()).await.map_err(|error| {
        counters.container_errors.of(["RunContainerError", kind.metric_label()]).add();
        Failure::new("RunContainerError", error)
    })?;
    cpusets::follow(shared, &desired.uid, spec.name.as_str(), &id).await;
    counters.containers.of([kind.metric_label()]).add();
    shared.event(desired, who, EventKind::Normal, "Started", "Container started".into());
    info!(container.id = %id, restart_count, "container is up");
    files::link_log(shared, desired, &spec.name, &id, log_path).await;

    if post_start_hook(spec).is_some() {
        shared.look(order);
    }
    post_start(shared, order, target, spec, kind, id).await
}

fn post_start_hook(spec: &Container) -> Option<&LifecycleHandler> {
    spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref())
}

/// Runs a container's postStart hook, if it has one; one whose hook fails is stopped. `None` when the hook was cut short.
async fn post_start(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
    id: ContainerId,
) -> Result<Option<ContainerId>, Failure> {
    let Some(hook) = post_start_hook(spec) else { return Ok(Some(id)) };
    let desired = &order.desired;
    let pod_ip = target.ips.first().map(String::as_str);
    match order.cancel.cut(hooks::run(shared, order, spec, kind, &id, hook, pod_ip)).await {
        None => {
            if hook.sleep.is_some() {
                shared.config.counters.sleeps_cut.add();
            }
            Ok(None)
        }
        Some(Ok(())) => Ok(Some(id)),
        Some(Err(message)) => {
            let who = Some((kind, spec.name.as_str()));
            shared.event(desired, who, EventKind::Warning, "FailedPostStartHook", message.clone());
            let grace = desired.pod.grace_seconds().max(1);
            let text = format!("FailedPostStartHook: {message}");
            if let Err(error) = kill::stop_container(shared, order, &id, &spec.name, grace, text).await {
                warn!(%error, "cannot stop a container whose postStart hook failed");
            }
            Err(Failure::new("PostStartHookError", message))
        }
    }
}

/// The names a hosts file needs; an impossible name was refused when the sandbox was made.
pub(crate) fn names(shared: &Shared, order: &Order) -> (String, String) {
    hostname_and_domain(&order.desired.pod, &shared.config.node.cluster_domain).unwrap_or_default()
}
