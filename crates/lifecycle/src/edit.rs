//! What an edit of a pod's manifest means for the pod that runs.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mainstay_types::PodExt;

/// What follows when a source delivers a pod under a UID that it had before, with other contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The pod goes on; what can be changed in place is (another image restarts that container).
    InPlace,
    /// The pod ends, and another one begins under the same UID.
    Replace,
}

/// Annotations of the kubelet's own, which say where a pod came from and when.
const OWN_ANNOTATIONS: &str = "kubernetes.io/config.";

/// What the edit of a static pod means. `finished`: the pod that was is over.
///
/// A manifest without a UID gets another one with each edit, and so another pod. One that names its UID means the same by an
/// edit; only what the API server lets one change of a living pod (images, `activeDeadlineSeconds`, tolerations, the grace
/// period; labels and annotations) is changed of the living pod here as well, and its probes. A pod that is over is brought back by any edit.
#[must_use]
pub fn edit(before: &Pod, after: &Pod, finished: bool) -> Edit {
    let replaces = if finished {
        labels(before) != labels(after)
            || annotations(before) != annotations(after)
            || json(before.spec_ref()) != json(after.spec_ref())
    } else {
        json(&fixed(before)) != json(&fixed(after))
    };
    if replaces { Edit::Replace } else { Edit::InPlace }
}

/// What of a pod stays as it is for life.
fn fixed(pod: &Pod) -> PodSpec {
    let mut spec = pod.spec_ref().clone();
    spec.active_deadline_seconds = None;
    spec.termination_grace_period_seconds = None;
    spec.tolerations = None;
    spec.ephemeral_containers = None;
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.image = None;
        // It follows the image's tag when it is not given.
        container.image_pull_policy = None;
        // Whoever probes asks by the newest rules.
        (container.liveness_probe, container.readiness_probe, container.startup_probe) = (None, None, None);
    }
    spec
}

/// Compared as text would be: one of the two may have been on disk.
fn json(spec: &PodSpec) -> Option<serde_json::Value> {
    serde_json::to_value(spec).ok()
}

fn labels(pod: &Pod) -> Vec<(&String, &String)> {
    pod.metadata.labels.iter().flatten().collect()
}

fn annotations(pod: &Pod) -> Vec<(&String, &String)> {
    let all = pod.metadata.annotations.iter().flatten();
    all.filter(|(key, _)| !key.starts_with(OWN_ANNOTATIONS)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut value = json!({
            "metadata": {
                "name": "p", "namespace": "default", "uid": "u", "labels": {"a": "1"},
                "annotations": {"kubernetes.io/config.seen": "now"},
            },
            "spec": {
                "containers": [{"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}]}],
                "initContainers": [{"name": "i", "image": "i:1"}],
                "terminationGracePeriodSeconds": 30,
            },
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn edits() {
        use Edit::{InPlace, Replace};
        let before = pod(|_| {});
        type Change = fn(&mut Value);
        let rows: [(&str, Change, Edit, Edit); 10] = [
            ("nothing", |_| {}, InPlace, InPlace),
            (
                "read again",
                |pod| pod["metadata"]["annotations"]["kubernetes.io/config.seen"] = json!("later"),
                InPlace,
                InPlace,
            ),
            ("a label", |pod| pod["metadata"]["labels"]["b"] = json!("2"), InPlace, Replace),
            ("an annotation", |pod| pod["metadata"]["annotations"]["b"] = json!("2"), InPlace, Replace),
            ("an image", |pod| pod["spec"]["containers"][0]["image"] = json!("i:2"), InPlace, Replace),
            ("the grace", |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(5), InPlace, Replace),
            (
                "a probe",
                |pod| pod["spec"]["containers"][0]["livenessProbe"] = json!({"tcpSocket": {"port": 1}}),
                InPlace,
                Replace,
            ),
            (
                "a variable",
                |pod| pod["spec"]["containers"][0]["env"][0]["value"] = json!("2"),
                Replace,
                Replace,
            ),
            ("a command", |pod| pod["spec"]["initContainers"][0]["command"] = json!(["x"]), Replace, Replace),
            (
                "a volume",
                |pod| pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]),
                Replace,
                Replace,
            ),
        ];
        for (row, change, running, over) in rows {
            let after = pod(change);
            assert_eq!(edit(&before, &after, false), running, "{row}, running");
            assert_eq!(edit(&before, &after, true), over, "{row}, over");
        }
    }
}
