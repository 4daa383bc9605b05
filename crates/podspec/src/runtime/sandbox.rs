//! The pod sandbox.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use k8s_cri::v1::{
    DnsConfig, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig, PodSandboxMetadata,
    PortMapping, Protocol, UserNamespace, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use mainstay_types::{PodExt as _, labels};

use super::{
    NodeSettings, SpecError, hostname_and_domain, kernel_hostname,
    linux::{overhead_resources, sandbox_resources},
    security::{groups_policy, int64, namespace_options, profile, selinux_option},
};

/// What a sandbox's configuration depends on beside the pod.
#[derive(Clone, Debug)]
pub struct SandboxContext<'a> {
    /// The node.
    pub node: &'a NodeSettings,
    /// 0 for the first sandbox, else the newest one's attempt + 1.
    pub attempt: u32,
    /// The pod's cgroup, in the form that the cgroup driver wants.
    pub cgroup_parent: &'a str,
    /// From [`super::dns_config`].
    pub dns: DnsConfig,
    /// Group IDs that the pod's volumes bring along.
    pub extra_groups: &'a [i64],
    /// The user namespace given to the pod; needed with `hostUsers: false` only.
    pub user_namespace: Option<&'a UserNamespace>,
    /// The CPU manager gave the pod CPUs of its own, so no quota is set.
    pub exclusive_cpus: bool,
}

/// The configuration of a pod's sandbox.
///
/// # Errors
/// When the pod asks for something that cannot be; the text belongs behind upstream's
/// `Failed to generate sandbox config for pod "…": `.
pub fn sandbox_config(pod: &Pod, context: &SandboxContext<'_>) -> Result<PodSandboxConfig, SpecError> {
    let (name, namespace, uid) = (pod.name_ref(), pod.namespace_ref(), pod.uid_ref());
    let hostname = if pod.host_network() {
        String::new()
    } else {
        let (hostname, domain) = hostname_and_domain(pod, &context.node.cluster_domain)?;
        kernel_hostname(pod, &hostname, &domain)?
    };
    let log_directory = pod_log_directory(&context.node.pod_logs_dir, namespace, name, uid);
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt: context.attempt,
        }),
        hostname,
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(context.dns.clone()),
        port_mappings: pod.spec_ref().containers.iter().flat_map(port_mappings).collect(),
        labels: sandbox_labels(pod),
        annotations: to_hash_map(pod.annotations_map()),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: context.cgroup_parent.to_owned(),
            security_context: Some(sandbox_security(pod, context)?),
            sysctls: sysctls(pod),
            overhead: Some(overhead_resources(pod, context.node)),
            resources: Some(sandbox_resources(pod, context.node, context.exclusive_cpus)),
        }),
        windows: None,
    })
}

/// `<podLogsDir>/<namespace>_<name>_<uid>`.
#[must_use]
pub fn pod_log_directory(pod_logs_dir: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
}

fn sandbox_labels(pod: &Pod) -> HashMap<String, String> {
    let mut all = pod.metadata.labels.as_ref().map(to_hash_map).unwrap_or_default();
    all.insert(labels::POD_NAME.to_owned(), pod.name_ref().to_owned());
    all.insert(labels::POD_NAMESPACE.to_owned(), pod.namespace_ref().to_owned());
    all.insert(labels::POD_UID.to_owned(), pod.uid_ref().to_owned());
    all
}

fn to_hash_map(map: &BTreeMap<String, String>) -> HashMap<String, String> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// One container's ports, in order. Of ports with one name (or, without a name, with the same numbers, protocol and
/// address family) the first counts.
fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut seen = HashSet::new();
    let ports = container.ports.iter().flatten();
    ports.filter(|port| seen.insert(port_identity(port))).map(port_mapping).collect()
}

fn port_identity(port: &ContainerPort) -> String {
    if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let host_ip = port.host_ip.as_deref().unwrap_or_default();
    let family = match (host_ip, host_ip.parse::<Ipv6Addr>()) {
        ("", _) => "any",
        (_, Ok(_)) => "v6",
        (_, Err(_)) => "v4",
    };
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    format!("{family}-{protocol}-{host_ip}:{}:{}", port.container_port, port.host_port.unwrap_or(0))
}

fn port_mapping(port: &ContainerPort) -> PortMapping {
    let protocol = match port.protocol.as_deref() {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or(0),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    }
}

fn sandbox_security(
    pod: &Pod,
    context: &SandboxContext<'_>,
) -> Result<LinuxSandboxSecurityContext, SpecError> {
    let mut security = LinuxSandboxSecurityContext {
        privileged: has_privileged_container(pod),
        // Always the runtime's own profile, so that pods can use ones that are too tight for the sandbox itself.
        seccomp: Some(profile(ProfileType::RuntimeDefault)),
        ..LinuxSandboxSecurityContext::default()
    };
    if let Some(of_pod) = &pod.spec_ref().security_context {
        security.run_as_user = of_pod.run_as_user.map(int64);
        security.run_as_group = of_pod.run_as_group.map(int64);
        security.namespace_options = Some(namespace_options(pod, context.user_namespace)?);
        security.supplemental_groups.extend(of_pod.fs_group);
        security.supplemental_groups.extend(context.extra_groups);
        security.supplemental_groups.extend(of_pod.supplemental_groups.iter().flatten());
        security.supplemental_groups_policy = groups_policy(Some(of_pod))?;
        security.selinux_options = of_pod.se_linux_options.as_ref().map(selinux_option);
    }
    Ok(security)
}

fn has_privileged_container(pod: &Pod) -> bool {
    let contexts = pod.all_containers().map(|(_, container)| container.security_context.as_ref());
    let ephemeral = pod.spec_ref().ephemeral_containers.iter().flatten();
    let mut contexts = contexts.chain(ephemeral.map(|container| container.security_context.as_ref()));
    contexts.any(|context| context.is_some_and(|context| context.privileged == Some(true)))
}

fn sysctls(pod: &Pod) -> HashMap<String, String> {
    let asked = pod.spec_ref().security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    asked.map(|sysctl| (normal_sysctl_name(&sysctl.name), sysctl.value.clone())).collect()
}

/// A name written with slashes (`net/ipv4/conf/eno2.100/rp_filter`) has the meaning of dot and slash swapped.
fn normal_sysctl_name(name: &str) -> String {
    match name.find(['.', '/']).and_then(|at| name.as_bytes().get(at)) {
        Some(b'/') => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
