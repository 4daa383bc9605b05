//! Fields that are valid and that this version does not act upon. The list shrinks; each line says what happens instead.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Field;

/// Every use of such a field, as a warning.
pub(super) fn not_yet(pod: &Pod) -> Vec<String> {
    let mut found = Vec::new();
    let Some(spec) = &pod.spec else { return found };
    let lists = [
        ("spec.initContainers", spec.init_containers.as_deref().unwrap_or_default()),
        ("spec.containers", spec.containers.as_slice()),
    ];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            container_fields(&mut found, container, &Field::new(list).index(index).0);
        }
    }
    let mut field = |used: bool, text: &str| {
        if used {
            found.push(format!("spec.{text}"));
        }
    };
    field(
        spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()),
        "ephemeralContainers: not started by this version",
    );
    field(
        spec.host_users == Some(false),
        "hostUsers: user namespaces are not supported by this version; the pod will not start",
    );
    field(
        spec.runtime_class_name.is_some(),
        "runtimeClassName: there is no API server to read RuntimeClasses from; the pod will not start",
    );
    found
}

fn container_fields(found: &mut Vec<String>, container: &Container, path: &str) {
    let mut field = |used: bool, text: &str| {
        if used {
            found.push(format!("{path}.{text}"));
        }
    };
    let used = |list: Option<usize>| list.is_some_and(|length| length > 0);
    field(
        container.liveness_probe.is_some(),
        "livenessProbe: not run by this version; the container is not restarted when it hangs",
    );
    field(
        container.readiness_probe.is_some(),
        "readinessProbe: not run by this version; the container counts as ready while it runs",
    );
    field(
        container.startup_probe.is_some(),
        "startupProbe: not run by this version; the container counts as started while it runs",
    );
    field(
        used(container.volume_mounts.as_ref().map(Vec::len)),
        "volumeMounts: this version mounts no volumes; the container will not start",
    );
    field(
        used(container.volume_devices.as_ref().map(Vec::len)),
        "volumeDevices: this version attaches no devices; the container starts without",
    );
    let lifecycle = container.lifecycle.as_ref();
    field(
        lifecycle.is_some_and(|lifecycle| lifecycle.stop_signal.is_some()),
        "lifecycle.stopSignal: not sent by this version; the image's signal is used",
    );
}
