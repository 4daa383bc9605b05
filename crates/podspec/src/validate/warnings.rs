//! What a pod may be, but hardly meant to be (upstream: GetWarningsForPod in `pkg/api/pod/warnings.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Field;

/// Things in a valid pod that will not work as they look.
#[must_use]
pub fn pod_warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(spec) = &pod.spec else { return warnings };
    for (index, container) in spec.containers.iter().enumerate() {
        container_warnings(&mut warnings, container, &Field::new("spec.containers").index(index));
    }
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        container_warnings(&mut warnings, container, &Field::new("spec.initContainers").index(index));
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        if alias.hostnames.as_ref().is_none_or(Vec::is_empty) {
            warnings
                .push(format!("spec.hostAliases[{index}].hostnames: empty, so that the entry does nothing"));
        }
    }
    if pod.metadata.deletion_timestamp.is_some() {
        warnings.push("metadata.deletionTimestamp: ignored; to delete the pod remove the file".to_owned());
    }
    match (spec.priority, spec.priority_class_name.as_deref().unwrap_or_default()) {
        (None, class) if !class.is_empty() => warnings.push(
            "spec.priorityClassName: Static pod has priorityClassName and nil priority. Kubelet will not use \
             priorityClassName, and mirror pod creation may fail."
                .to_owned(),
        ),
        _ => {}
    }
    warnings.extend(super::not_yet::not_yet(pod));
    warnings
}

fn container_warnings(warnings: &mut Vec<String>, container: &Container, field: &Field) {
    let mut variables = BTreeMap::new();
    for (index, variable) in container.env.iter().flatten().enumerate() {
        if let Some(earlier) = variables.insert(variable.name.as_str(), index) {
            let field = &field.0;
            let name = &variable.name;
            warnings.push(format!(
                "{field}.env[{index}]: hides the definition of {name:?} in env[{earlier}]; remove one"
            ));
        }
    }
    let mut ports = BTreeMap::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let key = (port.container_port, port.protocol.as_deref(), port.host_port, port.host_ip.as_deref());
        if let Some(earlier) = ports.insert(key, index) {
            let field = &field.0;
            warnings.push(format!("{field}.ports[{index}]: the same port as ports[{earlier}]; remove one"));
        }
    }
}
