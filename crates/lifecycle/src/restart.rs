//! Restart policies: the pod's, the container's, and its rules by exit code.

use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_types::{ContainerKind, PodExt};

/// What follows when a container has ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExit {
    /// It stays as it is.
    Stay,
    /// It is started again.
    Restart,
    /// All containers of the pod are started again.
    RestartAll,
}

/// What follows when this container ends with this exit code.
///
/// A container's own `restartPolicy` goes before the pod's, and only a container that has one may have rules
/// (KEP-5307, gate `ContainerRestartRules`).
#[must_use]
pub fn after_exit(pod: &Pod, kind: ContainerKind, container: &Container, exit_code: i32) -> AfterExit {
    if kind == ContainerKind::Sidecar {
        return AfterExit::Restart;
    }
    let policy = match container.restart_policy.as_deref() {
        Some(own) => {
            let rule = container.restart_policy_rules.iter().flatten().find(|rule| {
                rule.exit_codes.as_ref().is_some_and(|codes| {
                    let listed = codes.values.iter().flatten().any(|value| *value == exit_code);
                    match codes.operator.as_str() {
                        "In" => listed,
                        "NotIn" => !listed,
                        _ => false,
                    }
                })
            });
            match rule.map(|rule| rule.action.as_str()) {
                Some("Restart") => return AfterExit::Restart,
                Some("RestartAllContainers") => return AfterExit::RestartAll,
                _ => own,
            }
        }
        None => effective_pod_policy(pod, kind),
    };
    match policy {
        "Never" => AfterExit::Stay,
        "OnFailure" if exit_code == 0 => AfterExit::Stay,
        _ => AfterExit::Restart,
    }
}

/// Whether some container's end may restart all of them.
#[must_use]
pub(crate) fn may_restart_all(pod: &Pod) -> bool {
    pod.all_containers().any(|(_, container)| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
    })
}

/// Whether a container that was stopped for another reason than its own end (a failed probe, a lost state) runs again.
#[must_use]
pub(crate) fn restarts_when_killed(pod: &Pod, kind: ContainerKind, container: &Container) -> bool {
    kind == ContainerKind::Sidecar
        || container.restart_policy.as_deref().unwrap_or_else(|| pod.restart_policy()) != "Never"
}

/// Init containers know only "try again" and "give up": under `Always` they behave as under `OnFailure`.
fn effective_pod_policy(pod: &Pod, kind: ContainerKind) -> &str {
    match (kind, pod.restart_policy()) {
        (ContainerKind::Init, "Always") => "OnFailure",
        (_, policy) => policy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pod_policy: &str, container: serde_json::Value, kind: ContainerKind, exit: i32) -> AfterExit {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"restartPolicy": pod_policy, "containers": []}
        }))
        .unwrap();
        let container: Container = serde_json::from_value(container).unwrap();
        after_exit(&pod, kind, &container, exit)
    }

    #[test]
    fn policies() {
        use AfterExit::{Restart, RestartAll, Stay};
        use ContainerKind::{Init, Regular, Sidecar};
        let plain = serde_json::json!({"name": "c"});
        let rules = |policy: &str, operator: &str, values: &[i32], action: &str| {
            serde_json::json!({"name": "c", "restartPolicy": policy, "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": values}}]})
        };
        for (row, pod, container, kind, exit, expected) in [
            ("always, well", "Always", plain.clone(), Regular, 0, Restart),
            ("always, badly", "Always", plain.clone(), Regular, 1, Restart),
            ("on failure, well", "OnFailure", plain.clone(), Regular, 0, Stay),
            ("on failure, badly", "OnFailure", plain.clone(), Regular, 1, Restart),
            ("never, badly", "Never", plain.clone(), Regular, 1, Stay),
            ("init done", "Always", plain.clone(), Init, 0, Stay),
            ("init failed, never", "Never", plain.clone(), Init, 1, Stay),
            ("sidecar under never", "Never", plain, Sidecar, 0, Restart),
            (
                "own policy wins",
                "Always",
                serde_json::json!({"name": "c", "restartPolicy": "Never"}),
                Regular,
                1,
                Stay,
            ),
            ("rule matches", "Never", rules("Never", "In", &[42], "Restart"), Regular, 42, Restart),
            ("rule does not match", "Never", rules("Never", "In", &[42], "Restart"), Regular, 41, Stay),
            ("not in", "Never", rules("Never", "NotIn", &[42], "Restart"), Regular, 41, Restart),
            ("all", "Never", rules("Never", "In", &[88], "RestartAllContainers"), Regular, 88, RestartAll),
        ] {
            assert_eq!(check(pod, container, kind, exit), expected, "{row}");
        }
    }
}
