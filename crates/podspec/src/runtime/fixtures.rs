//! Short ways to test input.

use std::sync::Arc;

use k8s_cri::v1::ContainerConfig;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use mainstay_types::{FullName, Objects, PodExt as _, Quantity};

use super::{
    ContainerContext, DeviceGrants, EnvFiles, NodeSettings, ResourceList, SpecError, container_config,
};

/// A pod `default/web` with UID `uid` and this spec, in YAML.
#[track_caller]
pub(super) fn pod(spec: &str) -> Pod {
    Pod {
        metadata: serde_yaml_ng::from_str("{name: web, namespace: default, uid: uid}").unwrap(),
        spec: Some(serde_yaml_ng::from_str(spec).unwrap()),
        status: None,
    }
}

/// A pod with one container `c`, given by its further fields.
#[track_caller]
pub(super) fn pod_of(container: &str) -> Pod {
    pod(&format!("{{containers: [{{name: c, image: i, {container}}}]}}"))
}

pub(super) fn resource_list(amounts: &[(&str, &str)]) -> ResourceList {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity::parse(amount).unwrap())).collect()
}

/// Everything that a context borrows.
#[derive(Default)]
pub(super) struct World {
    pub(super) node: NodeSettings,
    pub(super) pod_ips: Vec<String>,
    pub(super) objects: Objects,
    pub(super) env_files: EnvFiles,
    pub(super) grants: DeviceGrants,
}

impl World {
    pub(super) fn context(&self) -> ContainerContext<'_> {
        ContainerContext {
            node: &self.node,
            restart_count: 0,
            image_ref: "sha256:1",
            image_user: None,
            pod_ips: &self.pod_ips,
            mounts: Vec::new(),
            objects: &self.objects,
            env_files: &self.env_files,
            grants: &self.grants,
            extra_groups: &[],
            user_namespace: None,
            target_container: None,
            exclusive_cpus: false,
        }
    }

    /// The configuration of the pod's container `c`.
    #[track_caller]
    pub(super) fn config(&self, pod: &Pod) -> Result<ContainerConfig, SpecError> {
        let (kind, container) = pod.container("c").unwrap();
        container_config(pod, container, kind, &self.context())
    }

    #[track_caller]
    pub(super) fn add_config_map(&mut self, yaml: &str) {
        let object: ConfigMap = serde_yaml_ng::from_str(yaml).unwrap();
        let name = FullName::new("default", object.metadata.name.as_deref().unwrap());
        self.objects.config_maps.insert(name, Arc::new(object));
    }

    #[track_caller]
    pub(super) fn add_secret(&mut self, yaml: &str) {
        let object: Secret = serde_yaml_ng::from_str(yaml).unwrap();
        let name = FullName::new("default", object.metadata.name.as_deref().unwrap());
        self.objects.secrets.insert(name, Arc::new(object));
    }
}
