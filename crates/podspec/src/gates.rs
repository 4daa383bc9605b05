//! Feature gates that decide whether a field of a pod means anything.

use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_types::ContainerKind;

/// The gates of 1.37 that concern the pod spec and can be turned on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodGates {
    /// `ContainerRestartRules`: containers may have restart policies and rules of their own.
    pub container_restart_rules: bool,
    /// `RestartAllContainersOnContainerExits`: a rule may restart the whole pod.
    pub restart_all_containers: bool,
    /// `ContainerStopSignals`: `lifecycle.stopSignal`.
    pub container_stop_signals: bool,
    /// `EnvFiles`: `env[].valueFrom.fileKeyRef`.
    pub env_files: bool,
    /// `PodLevelResources`: `spec.resources`.
    pub pod_level_resources: bool,
    /// `EmptyDirVolumeMode`: `volumes[].emptyDir.mode`.
    pub empty_dir_mode: bool,
}

impl PodGates {
    /// As 1.37 has them.
    pub const DEFAULT: Self = Self {
        container_restart_rules: true,
        restart_all_containers: true,
        container_stop_signals: false,
        env_files: true,
        pod_level_resources: true,
        empty_dir_mode: false,
    };
}

impl Default for PodGates {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Takes out what gates that are off leave without meaning, as an API server does before it stores a pod
/// (`dropDisabledFields` in upstream's `pkg/api/pod/util.go`). Tells what was taken out.
pub(crate) fn drop_disabled(pod: &mut Pod, gates: PodGates) -> Vec<String> {
    let mut dropped = Vec::new();
    let Some(spec) = &mut pod.spec else { return dropped };
    if !gates.pod_level_resources && spec.resources.take().is_some() {
        dropped.push(because("spec.resources", "PodLevelResources"));
    }
    for (index, volume) in spec.volumes.iter_mut().flatten().enumerate().filter(|_| !gates.empty_dir_mode) {
        if volume.empty_dir.as_mut().is_some_and(|source| source.mode.take().is_some()) {
            dropped.push(because(&format!("spec.volumes[{index}].emptyDir.mode"), "EmptyDirVolumeMode"));
        }
    }
    for (index, container) in spec.containers.iter_mut().enumerate() {
        let kind = ContainerKind::Regular;
        drop_of_container(container, kind, gates, &format!("spec.containers[{index}]"), &mut dropped);
    }
    for (index, container) in spec.init_containers.iter_mut().flatten().enumerate() {
        let kind = ContainerKind::Init;
        drop_of_container(container, kind, gates, &format!("spec.initContainers[{index}]"), &mut dropped);
    }
    dropped
}

fn drop_of_container(
    container: &mut Container,
    kind: ContainerKind,
    gates: PodGates,
    field: &str,
    dropped: &mut Vec<String>,
) {
    let mut tell = |name: &str, gate: &str| dropped.push(because(&format!("{field}.{name}"), gate));
    if !gates.container_restart_rules {
        // Sidecars are older than the gate.
        let is_sidecar = kind == ContainerKind::Init && container.restart_policy.as_deref() == Some("Always");
        if !is_sidecar && container.restart_policy.take().is_some() {
            tell("restartPolicy", "ContainerRestartRules");
        }
        if container.restart_policy_rules.take().is_some() {
            tell("restartPolicyRules", "ContainerRestartRules");
        }
    }
    if !gates.restart_all_containers
        && let Some(rules) = &mut container.restart_policy_rules
    {
        let before = rules.len();
        rules.retain(|rule| rule.action != "RestartAllContainers");
        if rules.len() < before {
            tell("restartPolicyRules", "RestartAllContainersOnContainerExits");
        }
        if rules.is_empty() {
            container.restart_policy_rules = None;
        }
    }
    if !gates.container_stop_signals
        && let Some(lifecycle) = &mut container.lifecycle
        && lifecycle.stop_signal.take().is_some()
    {
        tell("lifecycle.stopSignal", "ContainerStopSignals");
    }
    if !gates.env_files {
        for (index, variable) in container.env.iter_mut().flatten().enumerate() {
            if variable.value_from.as_ref().is_some_and(|from| from.file_key_ref.is_some()) {
                variable.value_from = None;
                tell(&format!("env[{index}].valueFrom.fileKeyRef"), "EnvFiles");
            }
        }
    }
}

fn because(field: &str, gate: &str) -> String {
    format!(
        "{field}: ignored, because the feature gate {gate} is off; turn it on in featureGates, or leave the field out"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn demanding() -> Pod {
        serde_json::from_value(json!({"spec": {
            "resources": {"limits": {"cpu": "1"}},
            "volumes": [{"name": "v", "emptyDir": {"mode": 0o755}}],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "containers": [{
                "name": "c",
                "restartPolicy": "Never",
                "restartPolicyRules": [
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
                    {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [2]}},
                ],
                "lifecycle": {"stopSignal": "SIGUSR1"},
                "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}],
            }],
        }}))
        .unwrap()
    }

    #[test]
    fn what_is_off_is_taken_out_and_told_of() {
        let on = PodGates { container_stop_signals: true, empty_dir_mode: true, ..PodGates::default() };
        let check = |gates: PodGates, fields: &[&str]| {
            let mut pod = demanding();
            let told = drop_disabled(&mut pod, gates);
            let told: Vec<&str> = told.iter().map(|text| text.split_once(": ").unwrap().0).collect();
            assert_eq!(told, fields);
            pod
        };
        assert_eq!(check(on, &[]), demanding());
        let by_default = ["spec.volumes[0].emptyDir.mode", "spec.containers[0].lifecycle.stopSignal"];
        check(PodGates::default(), &by_default);
        let pod = check(
            PodGates { container_restart_rules: false, ..on },
            &["spec.containers[0].restartPolicy", "spec.containers[0].restartPolicyRules"],
        );
        let sidecar = &pod.spec.unwrap().init_containers.unwrap()[0];
        assert_eq!(sidecar.restart_policy.as_deref(), Some("Always"));
        let pod = check(
            PodGates { restart_all_containers: false, ..on },
            &["spec.containers[0].restartPolicyRules"],
        );
        assert_eq!(pod.spec.unwrap().containers[0].restart_policy_rules.as_ref().unwrap().len(), 1);
        check(PodGates { pod_level_resources: false, ..on }, &["spec.resources"]);
        let pod =
            check(PodGates { env_files: false, ..on }, &["spec.containers[0].env[0].valueFrom.fileKeyRef"]);
        assert_eq!(pod.spec.unwrap().containers[0].env.as_ref().unwrap()[0].value_from, None);
    }
}
