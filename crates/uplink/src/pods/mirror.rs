//! The likeness of a static pod in the API server.

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use mainstay_types::{PodExt as _, annotations};

/// The mirror pod of a static pod, owned by its node.
pub(super) fn of(pod: &Pod, node: &Node) -> Pod {
    let mut map = pod.metadata.annotations.clone().unwrap_or_default();
    let hash = pod.annotation(annotations::CONFIG_HASH).unwrap_or_else(|| pod.uid_ref()).to_owned();
    map.insert(annotations::CONFIG_MIRROR.to_owned(), hash);
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(map),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.metadata.name.clone().unwrap_or_default(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}
