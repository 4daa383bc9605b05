//! What of the Node object is known when mainstay starts.

use k8s_openapi::{
    api::core::v1::{
        DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSwapStatus,
        NodeSystemInfo, Taint,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_config::Loaded;
use mainstay_host::Host;
use mainstay_types::{NodeResources, VERSION};

use crate::cli;

/// What others may rely on if its gate is on, sorted. Of upstream's list those that are done here: resizes are not.
const DECLARED: [&str; 2] = ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"];

/// The Node object without what changes. Facts that the machine does not tell are left empty, as upstream leaves them.
pub(crate) fn template(loaded: &Loaded, host: &Host, node_name: &str, resources: &NodeResources) -> Node {
    let config = &loaded.config;
    let hostname = NodeAddress { type_: "Hostname".to_owned(), address: node_name.to_owned() };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let pod_cidrs: Vec<String> =
        config.pod_cidr.split(',').map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect();
    let taint = |taint: &mainstay_config::Taint| Taint {
        key: taint.key.clone(),
        value: some(&taint.value),
        effect: taint.effect.clone(),
        time_added: None,
    };
    let taints: Vec<Taint> = config.register_with_taints.iter().map(taint).collect();
    let endpoint = (config.enable_server && config.port != 0).then_some(DaemonEndpoint { port: config.port });
    Node {
        metadata: ObjectMeta {
            name: Some(node_name.to_owned()),
            labels: Some(resources.labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: pod_cidrs.first().cloned(),
            pod_cidrs: (!pod_cidrs.is_empty()).then_some(pod_cidrs),
            provider_id: some(&config.provider_id),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(vec![hostname]),
            daemon_endpoints: Some(NodeDaemonEndpoints { kubelet_endpoint: endpoint }),
            node_info: Some(NodeSystemInfo {
                architecture: cli::arch().to_owned(),
                boot_id: host.boot_id().unwrap_or_default(),
                running_in_user_namespace: Some(host.in_user_namespace()),
                kernel_version: host.kernel_version(),
                kubelet_version: VERSION.to_owned(),
                machine_id: host.machine_id().unwrap_or_default(),
                operating_system: "linux".to_owned(),
                os_image: host.os_image(),
                system_uuid: host.system_uuid(),
                swap: (resources.swap_bytes > 0)
                    .then_some(NodeSwapStatus { capacity: Some(resources.swap_bytes) }),
                ..NodeSystemInfo::default()
            }),
            declared_features: declared_features(loaded),
            ..NodeStatus::default()
        }),
    }
}

fn declared_features(loaded: &Loaded) -> Option<Vec<String>> {
    let declared = DECLARED.into_iter().filter(|gate| loaded.gates.enabled(gate));
    Some(declared.map(str::to_owned).collect()).filter(|all: &Vec<String>| !all.is_empty())
}
