//! Services, as far as pods are told of them: a cluster has thousands, and nobody here wants the rest of them even for a moment.

use std::sync::Arc;

use k8s_openapi::{
    ListableResource, Metadata, NamespaceResourceScope, Resource,
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_types::FullName;
use serde::Deserialize;

/// A Service of which only this is read.
#[derive(Debug, Deserialize)]
#[serde(from = "Wire")]
pub(super) struct SlimService {
    metadata: ObjectMeta,
    spec: Option<SlimSpec>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Name,
    spec: Option<SlimSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Name {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SlimSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    ports: Option<Vec<ServicePort>>,
}

impl From<Wire> for SlimService {
    fn from(Wire { metadata, spec }: Wire) -> Self {
        let Name { name, namespace, resource_version } = metadata;
        Self { metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }, spec }
    }
}

impl Resource for SlimService {
    const API_VERSION: &'static str = Service::API_VERSION;
    const GROUP: &'static str = Service::GROUP;
    const KIND: &'static str = Service::KIND;
    const VERSION: &'static str = Service::VERSION;
    const URL_PATH_SEGMENT: &'static str = Service::URL_PATH_SEGMENT;
    type Scope = NamespaceResourceScope;
}

impl ListableResource for SlimService {
    const LIST_KIND: &'static str = Service::LIST_KIND;
}

impl Metadata for SlimService {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl SlimService {
    /// What pods are told of.
    pub(super) fn told(self) -> (FullName, Arc<Service>) {
        let Self { metadata: ObjectMeta { name, namespace, .. }, spec } = self;
        let name = FullName::new(&namespace.unwrap_or_default(), &name.unwrap_or_default());
        let spec = spec.map(|SlimSpec { cluster_ip, ports }| ServiceSpec {
            cluster_ip,
            ports,
            ..ServiceSpec::default()
        });
        (name, Arc::new(Service { spec, ..Service::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_pods_are_told_of_is_read() {
        let text = r#"{ "apiVersion": "v1", "kind": "Service", "status": { "loadBalancer": 7 },
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "12",
                "managedFields": "whatever", "annotations": { "much": "text" } },
            "spec": { "clusterIP": "10.0.0.9", "selector": { "app": "web" }, "sessionAffinity": 3,
                "ports": [{ "name": "http", "port": 80, "targetPort": "web" }] } }"#;
        let service: SlimService = serde_json::from_str(text).unwrap();
        assert_eq!(service.metadata().resource_version.as_deref(), Some("12"));
        let (name, service) = service.told();
        assert_eq!(name, FullName::new("shop", "web"));
        let spec = service.spec.clone().unwrap();
        assert_eq!(
            (spec.cluster_ip.as_deref(), spec.ports.map(|all| all[0].port)),
            (Some("10.0.0.9"), Some(80))
        );
        for broken in
            [r#"{}"#, r#"{"metadata":{"name":1}}"#, r#"{"metadata":{},"spec":{"ports":[{"port":"x"}]}}"#]
        {
            serde_json::from_str::<SlimService>(broken).unwrap_err();
        }
    }
}
