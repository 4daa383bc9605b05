//! A container's configuration.

use std::collections::HashMap;

use k8s_cri::v1::{
    CdiDevice, ContainerConfig, ContainerMetadata, Device, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    UserNamespace,
};
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use mainstay_types::{ContainerKind, Objects, PodExt as _, annotations, container_hash, labels};

use super::{
    EnvFiles, NodeSettings, SpecError, container_ports_json,
    env::environment,
    expand::{MAX_EXPANDED_BYTES, MAX_PROGRAM_BYTES, expand},
    lifecycle_handler_json,
    linux::container_resources,
    security::container_security,
};

/// What a container's configuration depends on beside the pod.
#[derive(Clone, Debug)]
pub struct ContainerContext<'a> {
    /// The node.
    pub node: &'a NodeSettings,
    /// How often the container was started before.
    pub restart_count: u32,
    /// The image as the runtime resolved it.
    pub image_ref: &'a str,
    /// The image's user from `ImageStatus`; `None` when the runtime does not say, which means root.
    pub image_user: Option<ImageUser>,
    /// The pod's addresses, the primary one first. (On the host's network: the node's.)
    pub pod_ips: &'a [String],
    /// All mounts, in order: volumes, hosts file, termination log.
    pub mounts: Vec<Mount>,
    /// ConfigMaps and Secrets that the environment may refer to.
    pub objects: &'a Objects,
    /// The files that [`super::env_file_refs`] named.
    pub env_files: &'a EnvFiles,
    /// What device plugins gave.
    pub grants: &'a DeviceGrants,
    /// Group IDs that the pod's volumes bring along.
    pub extra_groups: &'a [i64],
    /// The user namespace given to the pod; needed with `hostUsers: false` only.
    pub user_namespace: Option<&'a UserNamespace>,
    /// The ID of the container whose processes an ephemeral container is to see.
    pub target_container: Option<&'a str>,
    /// The CPU manager gave the container CPUs of its own, so no quota is set.
    pub exclusive_cpus: bool,
}

/// The user that an image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// By number.
    Uid(i64),
    /// By name, which only the runtime can resolve.
    Name(String),
}

/// What device plugins and block volumes add to a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceGrants {
    /// Environment; comes before the container's own, which wins.
    pub envs: Vec<(String, String)>,
    /// Annotations; the fixed ones win.
    pub annotations: Vec<(String, String)>,
    /// Devices.
    pub devices: Vec<Device>,
    /// CDI devices.
    pub cdi_devices: Vec<CdiDevice>,
}

/// The configuration of a container.
///
/// # Errors
/// When the environment refers to something that is missing, or the security context asks for what cannot be. The
/// container then waits with the error's reason and text.
pub fn container_config(
    pod: &Pod,
    container: &Container,
    kind: ContainerKind,
    context: &ContainerContext<'_>,
) -> Result<ContainerConfig, SpecError> {
    let envs = environment(pod, container, context)?;
    let security_context = container_security(pod, container, context)?;
    // Of a variable that is there twice (once from a device plugin), the later one counts.
    let lookup = |name: &str| envs.iter().rev().find(|env| env.key == name).map(|env| env.value.as_str());
    let mut left = MAX_PROGRAM_BYTES;
    let mut expanded = |field: &str, texts: &Option<Vec<String>>| -> Result<Vec<String>, SpecError> {
        let one = |text: &String| {
            let what = || format!("a word of {field} of container {}", container.name);
            let text = expand(text, MAX_EXPANDED_BYTES, lookup)
                .ok_or_else(|| SpecError::TooLong { what: what() })?;
            let too_much = || SpecError::TooMuch { container: container.name.clone() };
            left = left.checked_sub(text.len()).ok_or_else(too_much)?;
            Ok(text)
        };
        texts.iter().flatten().map(one).collect()
    };
    let (command, args) = (expanded("command", &container.command)?, expanded("args", &container.args)?);

    let mut mounts = context.mounts.clone();
    if let Some(userns) = security_context.namespace_options.as_ref().and_then(|n| n.userns_options.as_ref())
    {
        for mount in &mut mounts {
            mount.uid_mappings.clone_from(&userns.uids);
            mount.gid_mappings.clone_from(&userns.gids);
        }
    }
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: context.restart_count }),
        image: Some(ImageSpec {
            image: context.image_ref.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs,
        mounts,
        devices: context.grants.devices.clone(),
        labels: container_labels(pod, container),
        annotations: container_annotations(pod, container, context),
        log_path: container_log_path(&container.name, context.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(container_resources(pod, container, kind, context.node, context.exclusive_cpus)),
            security_context: Some(security_context),
        }),
        windows: None,
        cdi_devices: context.grants.cdi_devices.clone(),
    })
}

/// `<container>/<restartCount>.log`, below the pod's log directory.
#[must_use]
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// An ephemeral container in the form of the others. Its target is not part of it.
#[must_use]
pub fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    let own = ephemeral.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        lifecycle: own.lifecycle,
        liveness_probe: own.liveness_probe,
        name: own.name,
        ports: own.ports,
        readiness_probe: own.readiness_probe,
        resize_policy: own.resize_policy,
        resources: own.resources,
        restart_policy: own.restart_policy,
        restart_policy_rules: own.restart_policy_rules,
        security_context: own.security_context,
        startup_probe: own.startup_probe,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
    }
}

fn container_labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    [
        (labels::POD_NAME, pod.name_ref()),
        (labels::POD_NAMESPACE, pod.namespace_ref()),
        (labels::POD_UID, pod.uid_ref()),
        (labels::CONTAINER_NAME, container.name.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// Written down at the container because they are needed when the pod is known no longer, and by who takes over.
fn container_annotations(
    pod: &Pod,
    container: &Container,
    context: &ContainerContext<'_>,
) -> HashMap<String, String> {
    let mut all: HashMap<String, String> = context.grants.annotations.iter().cloned().collect();
    let mut set = |key: &str, value: String| _ = all.insert(key.to_owned(), value);
    let hash = container_hash(&container.name, container.image.as_deref().unwrap_or_default());
    set(annotations::CONTAINER_HASH, format!("{hash:x}"));
    set(annotations::CONTAINER_RESTART_COUNT, context.restart_count.to_string());
    set(
        annotations::TERMINATION_MESSAGE_PATH,
        container.termination_message_path.clone().unwrap_or_default(),
    );
    set(
        annotations::TERMINATION_MESSAGE_POLICY,
        container.termination_message_policy.clone().unwrap_or_default(),
    );
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(annotations::POD_DELETION_GRACE, seconds.to_string());
    }
    if let Some(seconds) = pod.spec_ref().termination_grace_period_seconds {
        set(annotations::POD_TERMINATION_GRACE, seconds.to_string());
    }
    if let Some(handler) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        set(annotations::PRE_STOP, lifecycle_handler_json(handler));
    }
    if let Some(ports) = container.ports.as_ref().filter(|ports| !ports.is_empty()) {
        set(annotations::PORTS, container_ports_json(ports));
    }
    all
}

/// A variable in CRI's form.
pub(super) fn key_value(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    KeyValue { key: key.into(), value: value.into() }
}

#[cfg(test)]
mod tests;
