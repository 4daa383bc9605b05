//! What a pod may be, but hardly meant to be (upstream: GetWarningsForPod in `pkg/api/pod/warnings.go`).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::Field;
use crate::runtime::capabilities;

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
    if spec.readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        warnings.push(
            "spec.readinessGates: without an API server nobody can set such a condition, so that the pod never \
             becomes Ready; leave it out"
                .to_owned(),
        );
    }
    warnings.extend(crate::support::not_yet_used(pod));
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
    let capabilities = container.security_context.iter().filter_map(|context| context.capabilities.as_ref());
    for name in capabilities.flat_map(|all| all.add.iter().chain(&all.drop)).flatten() {
        if name.to_ascii_uppercase().starts_with("CAP_") {
            let field = &field.0;
            warnings.push(format!(
                "{field}.securityContext.capabilities: {name:?} has the prefix CAP_, with which containerd ignores it; leave the prefix out"
            ));
        }
    }
    let capabilities = container.security_context.iter().filter_map(|context| context.capabilities.as_ref());
    for name in capabilities.flat_map(capabilities::unknown) {
        let field = &field.0;
        warnings.push(format!(
            "{field}.securityContext.capabilities: {name:?} is a capability of no kernel, so that the container will not be started; see capabilities(7), without CAP_"
        ));
    }
    undeclared_ports(warnings, container, field);
    let mut ports = BTreeMap::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let key = (port.container_port, port.protocol.as_deref(), port.host_port, port.host_ip.as_deref());
        if let Some(earlier) = ports.insert(key, index) {
            let field = &field.0;
            warnings.push(format!("{field}.ports[{index}]: the same port as ports[{earlier}]; remove one"));
        }
    }
}

/// Probes and hooks that name a port which the container does not declare: the API server takes them, and they always fail.
fn undeclared_ports(warnings: &mut Vec<String>, container: &Container, field: &Field) {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    let of_probes = probes.into_iter().filter_map(|(name, probe)| {
        let probe = probe.as_ref()?;
        Some((name, probe.http_get.as_ref(), probe.tcp_socket.as_ref()))
    });
    let lifecycle = container.lifecycle.as_ref();
    let hooks = [
        ("lifecycle.postStart", lifecycle.and_then(|hooks| hooks.post_start.as_ref())),
        ("lifecycle.preStop", lifecycle.and_then(|hooks| hooks.pre_stop.as_ref())),
    ];
    let of_hooks = hooks.into_iter().filter_map(|(name, hook)| Some((name, hook?.http_get.as_ref(), None)));
    for (name, http_get, tcp_socket) in of_probes.chain(of_hooks) {
        let named = http_get.map(|it| ("httpGet", &it.port)).into_iter();
        for (kind, port) in named.chain(tcp_socket.map(|it| ("tcpSocket", &it.port))) {
            let IntOrString::String(port) = port else { continue };
            let declared =
                container.ports.iter().flatten().any(|known| known.name.as_deref() == Some(port.as_str()));
            if !declared && port.parse::<u16>().is_err() {
                let field = &field.0;
                warnings.push(format!(
                    "{field}.{name}.{kind}.port: no port of the container is called {port:?}, so that this always fails; name it in {field}.ports, or give a number"
                ));
            }
        }
    }
}
