//! A node that runs short takes no more pods, but for those that it cannot do without.

use k8s_openapi::api::core::v1::Taint;
use mainstay_podspec::runtime::{QosClass, is_critical, qos_class};
use mainstay_types::{NodePressure, PodExt as _, PressureKind};

use super::{Candidate, Rejection, affinity::tolerates};

/// Upstream: `managerImpl.Admit` in `pkg/kubelet/eviction/eviction_manager.go`.
pub(super) fn check(candidate: &Candidate<'_>, pressure: NodePressure) -> Result<(), Rejection> {
    let kinds: Vec<_> = pressure.kinds().collect();
    if kinds.is_empty() || candidate.is_static || is_critical(candidate.pod) {
        return Ok(());
    }
    // Who asked for memory gets it even then; who asked for nothing waits, unless it bears with that.
    if kinds == [PressureKind::Memory] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if qos_class(candidate.pod) != QosClass::BestEffort || tolerates(candidate.pod.spec_ref(), &taint) {
            return Ok(());
        }
    }
    let names: Vec<_> = kinds.into_iter().map(PressureKind::condition).collect();
    Err(Rejection::new("Evicted", format!("The node had condition: [{}]. ", names.join(" "))))
}
