//! The pods that are measured: one container that sleeps, as small as a pod can be.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use mainstay_testkit::BUSYBOX;
use serde_json::json;

/// The manifest of pod `name`.
pub(crate) fn manifest(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"],
                "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"memory": "64Mi"}}
            }]
        }
    })
    .to_string()
}

/// The same pod as an agent holds it.
pub(crate) fn pod(name: &str) -> Result<Pod> {
    let mut pod: Pod = serde_json::from_str(&manifest(name)).context("the bench's own pod")?;
    mainstay_podspec::default_pod(&mut pod);
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(format!("bench-{name}"));
    Ok(pod)
}
