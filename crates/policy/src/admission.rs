//! Whether a pod may run here, in the order of upstream's admit handlers (`pkg/kubelet/kubelet.go` and
//! `pkg/kubelet/lifecycle/predicate.go` of 1.37), as far as a node can know by itself.
//!
//! A critical pod that finds no room may have that of others: see [`preempt`].

mod affinity;
mod fit;
mod preemption;
mod pressure;
mod security;
mod sysctls;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Taint};
use mainstay_types::{NodePressure, NodeResources, PodExt as _};

pub use affinity::volume_fits;
pub use fit::{HostPort, PodUse};
pub use preemption::{Occupant, preempt};
pub use sysctls::{SysctlPatternError, Sysctls};

/// The system that pods run on.
const OS: &str = "linux";
const OS_LABEL: &str = "kubernetes.io/os";

/// What is true of the node for all pods.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Its name.
    pub name: Arc<str>,
    /// What it has.
    pub resources: Arc<NodeResources>,
    /// Its taints; those with effect NoExecute keep pods out, static ones excepted.
    pub taints: Vec<Taint>,
    /// The sysctls that pods may set.
    pub sysctls: Sysctls,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// Gate PodLevelResources.
    pub pod_level_resources: bool,
    /// What it runs short of.
    pub pressure: NodePressure,
}

/// A pod that wants to run.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What it asks for: [`PodUse::of`] the pod.
    pub wants: &'a PodUse,
    /// No API server knows it.
    pub is_static: bool,
    /// The runtime can keep a container's groups to those of the pod (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
}

/// Why a pod may not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Upstream's reason: `OutOfcpu`, `NodeAffinity` …
    pub reason: String,
    /// The text for people.
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    fn predicate(name: &str, why: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {why}"))
    }
}

/// Judges a pod beside `others`, the pods that were admitted and have not ended.
///
/// # Errors
/// The first reason against it.
pub fn admit<'a>(
    candidate: &Candidate<'_>,
    node: &NodeFacts,
    others: impl IntoIterator<Item = &'a PodUse>,
) -> Result<(), Rejection> {
    let used = fit::Used::of(others);
    may_be_here(candidate, node)?;
    fit::resources(candidate.wants, &node.resources.allocatable, &used)?;
    belongs_here(candidate, node, &used)
}

/// What speaks against it before room does.
fn may_be_here(candidate: &Candidate<'_>, node: &NodeFacts) -> Result<(), Rejection> {
    let pod = candidate.pod;
    pressure::check(candidate, node.pressure)?;
    node.sysctls.check(pod)?;

    let labels = &node.resources.labels;
    let node_os = labels.get(OS_LABEL).map_or(OS, String::as_str);
    let pod_os = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if pod_os.is_some_and(|os| os != node_os) {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if pod.spec_ref().os.as_ref().is_some_and(|os| os.name != OS) {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    security::groups(pod, candidate.strict_groups)
}

/// What speaks against it when there is room.
fn belongs_here(candidate: &Candidate<'_>, node: &NodeFacts, used: &fit::Used<'_>) -> Result<(), Rejection> {
    let (pod, spec, labels) = (candidate.pod, candidate.pod.spec_ref(), &node.resources.labels);
    if !affinity::matches(spec, &node.name, labels) {
        return Err(Rejection::predicate(
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    let wanted_node = spec.node_name.as_deref().unwrap_or_default();
    if !wanted_node.is_empty() && wanted_node != &*node.name {
        return Err(Rejection::predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    if used.ports_clash(&candidate.wants.ports) {
        return Err(Rejection::predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    if !candidate.is_static && node.taints.iter().any(|taint| !affinity::tolerated(spec, taint)) {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }

    security::app_armor(pod, node.app_armor)?;
    if !node.pod_level_resources && fit::has_pod_level_resources(pod) {
        return Err(Rejection::new(
            "PodLevelResourcesNotSupported",
            "PodLevelResources feature gate is disabled",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
