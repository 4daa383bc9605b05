//! Whether a pod's sandbox can be kept.

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{ObservedPod, PodExt, SandboxId};

/// The verdict over a pod's sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxVerdict {
    /// This one is good.
    Keep(SandboxId),
    /// A new one is needed, with this attempt number.
    Renew {
        /// Never a number that was used before.
        attempt: u32,
        /// What is wrong, in the words of condition PodReadyToStartContainers.
        why: &'static str,
    },
}

/// Judges the sandboxes the runtime shows.
#[must_use]
pub fn judge_sandbox(pod: &Pod, observed: Option<&ObservedPod>) -> SandboxVerdict {
    let Some(newest) = observed.and_then(|observed| observed.sandboxes.first()) else {
        return SandboxVerdict::Renew { attempt: 0, why: "no pod sandbox exists" };
    };
    let ready = observed.map_or(0, |observed| observed.sandboxes.iter().filter(|s| s.ready).count());
    let why = if ready > 1 {
        "multiple pod sandboxes are ready and need to be reconciled"
    } else if !newest.ready {
        "pod sandbox is not ready"
    } else if newest.host_network != pod.host_network() {
        "network namespace mode changed and sandbox needs to be recreated"
    } else if !newest.host_network && newest.ips.is_empty() {
        "pod sandbox has no IP address"
    } else {
        return SandboxVerdict::Keep(newest.id.clone());
    };
    SandboxVerdict::Renew { attempt: newest.attempt.saturating_add(1), why }
}
