//! How much a pod may write to the node's disk.

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{PodExt as _, Quantity, StorageLimits};

use super::{Overhead, pod_limits};

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// The limits that the pod sets on what it writes: upstream's `localStorageEviction` looks at these (its
/// `pkg/kubelet/eviction/eviction_manager.go`), a limit of zero counts as none.
#[must_use]
pub fn storage_limits(pod: &Pod) -> StorageLimits {
    let spec = pod.spec_ref();
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| {
        let limit = Quantity::parse(&volume.empty_dir.as_ref()?.size_limit.as_ref()?.0).ok()?;
        positive(limit).then(|| (volume.name.clone(), limit))
    });
    let containers = spec.containers.iter().filter_map(|container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        let limit = Quantity::parse(&limits.get(EPHEMERAL_STORAGE)?.0).ok()?;
        positive(limit).then(|| (container.name.as_str().into(), limit))
    });
    StorageLimits {
        volumes: volumes.collect(),
        containers: containers.collect(),
        total: pod_limits(pod, Overhead::Included).get(EPHEMERAL_STORAGE).copied().filter(|l| positive(*l)),
    }
}

fn positive(limit: Quantity) -> bool {
    !limit.is_zero() && !limit.is_negative()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(spec: serde_json::Value) -> StorageLimits {
        storage_limits(&serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap())
    }

    #[test]
    fn what_is_limited() {
        let quantity = |text: &str| Quantity::parse(text).unwrap();
        let none = limits(json!({
            "containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi", "ephemeral-storage": "0"}}}],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "z", "emptyDir": {"sizeLimit": "0"}}],
        }));
        assert!(none.is_empty(), "{none:?}");

        let some = limits(json!({
            "initContainers": [{"name": "i", "resources": {"limits": {"ephemeral-storage": "10Gi"}}}],
            "containers": [
                {"name": "a", "resources": {"limits": {"ephemeral-storage": "1Gi"}}},
                {"name": "b"},
                {"name": "c", "resources": {"limits": {"ephemeral-storage": "512Mi"}}},
            ],
            "volumes": [
                {"name": "h", "hostPath": {"path": "/"}},
                {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}},
            ],
        }));
        assert_eq!(some.volumes, [("v".to_owned(), quantity("1Mi"))]);
        assert_eq!(some.containers, [("a".into(), quantity("1Gi")), ("c".into(), quantity("512Mi"))]);
        assert_eq!(some.total, Some(quantity("10Gi")), "what the init container may need at its time");
        assert!(some.counts_containers() && !some.is_empty());
    }
}
