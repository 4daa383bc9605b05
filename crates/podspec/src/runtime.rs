//! From a defaulted, validated `v1.Pod` to the messages that a CRI runtime is given.
//!
//! Everything in here is a pure function of its arguments. What is written is what upstream's kubelet 1.37 writes
//! (its `pkg/kubelet/kuberuntime`), so that either of the two can take over the other's containers. Where upstream's
//! order is that of a Go map (environment, DNS options) ours is fixed: spec order.
//!
//! Two things of CRI 1.37 cannot be expressed in these messages because the bindings (k8s-cri 0.11) lack the fields: a
//! container's `stop_signal` and a mount's `image_sub_path`. They are given on their own, and `mainstay-cri` adds them.

pub(crate) mod capabilities;
mod cgroups;
mod container;
mod context;
mod dns;
mod env;
mod error;
mod expand;
mod gojson;
mod hostname;
mod image;
mod keyring;
mod linux;
mod resources;
mod sandbox;
mod security;
mod services;
mod signals;
mod storage;

pub use cgroups::{
    CgroupValues, HugePages, Limit, NodeCgroupSettings, NodeCgroupValues, node_cgroup_values,
    pod_cgroup_values, reserved_cgroup_values,
};
pub use container::{
    ContainerContext, DeviceGrants, ImageUser, container_config, container_log_path, ephemeral_as_container,
};
pub use context::{MemoryQos, NodeSettings, SwapSettings};
pub use dns::{DnsSettings, HostResolv, MISSING_CLUSTER_DNS, Notice, NoticeTarget, dns_config};
pub use env::{EnvFiles, env_file_refs, environment, format_map};
pub(crate) use env::{pod_field, resource_field};
pub use error::SpecError;
pub use expand::{MAX_EXPANDED_BYTES, expand};
pub use gojson::{container_ports_json, lifecycle_handler_json};
pub use hostname::{hostname_and_domain, hosts_file, kernel_hostname};
pub use image::{ImageName, ImageNameError};
pub use keyring::{Credential, Keyring, KeyringError, matches_image};
pub use linux::oom_score_adj;
pub use resources::{
    CFS_PERIOD_MICROS, Overhead, QosClass, ResourceList, exclusive_cpus, has_pod_level_resources,
    is_critical, is_node_critical, milli_cpu_to_quota, milli_cpu_to_shares, pinned_memory, pod_limits,
    pod_requests, pooled, qos_class, shares_to_weight,
};
pub use sandbox::{SandboxContext, pod_log_directory, sandbox_config};
pub use signals::{stop_signal, stop_signal_name};
pub use storage::storage_limits;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod golden_tests;

/// `web_default(uid)`: how upstream's messages name a pod.
fn pod_description(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    use mainstay_types::PodExt as _;
    format!("{}_{}({})", pod.name_ref(), pod.namespace_ref(), pod.uid_ref())
}
