//! Services as environment variables, for pods that look for one another that way (upstream's `pkg/kubelet/envvars`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use mainstay_types::{Objects, PodExt as _};

/// The Service that every pod is told of: the API server itself.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// The variables, by name.
pub(super) fn service_variables(pod: &Pod, objects: &Objects) -> BTreeMap<String, String> {
    let links = pod.spec_ref().enable_service_links.unwrap_or(true);
    let mut variables = BTreeMap::new();
    // The pod's own namespace last: what is there under the same name wins.
    let of_the_pod = |namespace: &str| links && namespace == pod.namespace_ref();
    let master = |namespace: &str, name: &str| (namespace, name) == MASTER;
    for own in [false, true] {
        for (name, service) in &objects.services {
            let here = of_the_pod(&name.namespace);
            if here == own && (here || master(&name.namespace, &name.name)) {
                add(&mut variables, &name.name, service);
            }
        }
    }
    variables
}

fn add(variables: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(spec) = &service.spec else { return };
    let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return };
    let word = |text: &str| text.to_uppercase().replace('-', "_");
    let prefix = word(name);
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else { return };
    variables.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    variables.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in ports {
        if let Some(named) = port.name.as_deref().filter(|named| !named.is_empty()) {
            variables.insert(format!("{prefix}_SERVICE_PORT_{}", word(named)), port.port.to_string());
        }
    }
    // An IPv6 address in a URL stands in brackets.
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        let link = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        if index == 0 {
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        variables.insert(link.clone(), url);
        variables.insert(format!("{link}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{link}_PORT"), port.port.to_string());
        variables.insert(format!("{link}_ADDR"), ip.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_types::FullName;
    use serde_json::json;

    use super::*;

    fn objects() -> Objects {
        let service = |namespace: &str, name: &str, spec| {
            let service: Service = serde_json::from_value(json!({ "spec": spec })).unwrap();
            (FullName::new(namespace, name), Arc::new(service))
        };
        let port = json!([{ "name": "https", "port": 443, "protocol": "TCP" }]);
        Objects {
            services: [
                service("default", "kubernetes", json!({ "clusterIP": "10.0.0.1", "ports": port })),
                service(
                    "ns",
                    "my-db",
                    json!({ "clusterIP": "10.0.0.2", "ports": [{ "port": 53, "protocol": "UDP" }] }),
                ),
                service("ns", "headless", json!({ "clusterIP": "None", "ports": [{ "port": 1 }] })),
                service("other", "far", json!({ "clusterIP": "10.0.0.3", "ports": [{ "port": 1 }] })),
            ]
            .into(),
            ..Objects::default()
        }
    }

    fn pod(links: bool) -> Pod {
        let spec = json!({ "containers": [], "enableServiceLinks": links });
        serde_json::from_value(json!({ "metadata": { "namespace": "ns" }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_pod_is_told_of_its_namespace_and_of_the_api_server() {
        let all = service_variables(&pod(true), &objects());
        let lines: Vec<_> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            lines,
            [
                "KUBERNETES_PORT=tcp://10.0.0.1:443",
                "KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443",
                "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
                "KUBERNETES_PORT_443_TCP_PORT=443",
                "KUBERNETES_PORT_443_TCP_PROTO=tcp",
                "KUBERNETES_SERVICE_HOST=10.0.0.1",
                "KUBERNETES_SERVICE_PORT=443",
                "KUBERNETES_SERVICE_PORT_HTTPS=443",
                "MY_DB_PORT=udp://10.0.0.2:53",
                "MY_DB_PORT_53_UDP=udp://10.0.0.2:53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.2",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_SERVICE_HOST=10.0.0.2",
                "MY_DB_SERVICE_PORT=53",
            ]
        );
        assert!(
            service_variables(&pod(false), &objects()).keys().all(|name| name.starts_with("KUBERNETES_"))
        );
    }
}
