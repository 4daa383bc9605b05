//! What the API server fills in before anybody sees a pod (upstream: `pkg/apis/core/v1/defaults.go`, 1.37).
//!
//! Gated defaults follow the gates' own: `httpGet.protocol` (H2CContainerProbe, off) stays empty, pod-level requests
//! (PodLevelResources, on) are filled.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{
        ConfigMap, Container, ContainerPort, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar,
        EphemeralContainer, HTTPGetAction, Lifecycle, ObjectFieldSelector, Pod, PodSpec, Probe,
        ResourceFieldSelector, ResourceRequirements, Secret, Volume,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mainstay_types::Quantity;

const FILE_MODE: i32 = 0o644;

type ResourceList = BTreeMap<String, ApiQuantity>;

/// Fills in a pod's defaults and brings its quantities into canonical form. A quantity that is none is left for
/// validation to report. Doing it twice changes nothing.
pub fn default_pod(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    spec_defaults(spec);
    for volume in spec.volumes.iter_mut().flatten() {
        volume_defaults(volume);
    }
    let host_network = spec.host_network == Some(true);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container_defaults(container, host_network);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        ephemeral_container_defaults(container);
    }
    if let Some(overhead) = &mut spec.overhead {
        canonical_list(overhead);
    }
    pod_resource_defaults(spec);
}

/// Fills in a config map's defaults.
pub fn default_config_map(config_map: &mut ConfigMap) {
    fill(&mut config_map.metadata.namespace, "default");
    config_map.data.get_or_insert_default();
}

/// Fills in a secret's defaults and moves `stringData` into `data`, where the API server keeps it.
pub fn default_secret(secret: &mut Secret) {
    fill(&mut secret.metadata.namespace, "default");
    fill(&mut secret.type_, "Opaque");
    let data = secret.data.get_or_insert_default();
    for (key, text) in secret.string_data.take().into_iter().flatten() {
        data.insert(key, ByteString(text.into_bytes()));
    }
}

/// Sets a text that is missing or empty: the API does not tell the two apart.
fn fill(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn fill_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

fn spec_defaults(spec: &mut PodSpec) {
    // `serviceAccount` is the old name of `serviceAccountName`.
    let account = spec.service_account_name.take().filter(|name| !name.is_empty());
    let account = account.or(spec.service_account.take().filter(|name| !name.is_empty()));
    spec.service_account.clone_from(&account);
    spec.service_account_name = account;

    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
}

fn volume_defaults(volume: &mut Volume) {
    let named_only = Volume { name: volume.name.clone(), ..Volume::default() };
    if *volume == named_only {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(empty_dir) = &mut volume.empty_dir
        && let Some(limit) = &mut empty_dir.size_limit
    {
        canonical(limit);
    }
    if let Some(image) = &mut volume.image
        && image.pull_policy.as_deref().is_none_or(str::is_empty)
    {
        image.pull_policy = Some(pull_policy(image.reference.as_deref().unwrap_or_default()).to_owned());
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(FILE_MODE);
        downward.items.iter_mut().flatten().for_each(downward_file_defaults);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(downward) = &mut source.downward_api {
                downward.items.iter_mut().flatten().for_each(downward_file_defaults);
            }
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
    if let Some(iscsi) = &mut volume.iscsi {
        fill(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(template) =
        volume.ephemeral.as_mut().and_then(|ephemeral| ephemeral.volume_claim_template.as_mut())
    {
        fill(&mut template.spec.volume_mode, "Filesystem");
    }
}

fn downward_file_defaults(file: &mut DownwardAPIVolumeFile) {
    file.field_ref.iter_mut().for_each(field_ref_defaults);
    file.resource_field_ref.iter_mut().for_each(resource_ref_defaults);
}

fn field_ref_defaults(reference: &mut ObjectFieldSelector) {
    fill(&mut reference.api_version, "v1");
}

/// The API type's divisor is a value, not a pointer, so that "none" is written as 0.
fn resource_ref_defaults(reference: &mut ResourceFieldSelector) {
    canonical(reference.divisor.get_or_insert_with(|| ApiQuantity("0".into())));
}

fn env_defaults(variables: &mut Option<Vec<EnvVar>>) {
    for source in variables.iter_mut().flatten().filter_map(|variable| variable.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(field_ref_defaults);
        source.resource_field_ref.iter_mut().for_each(resource_ref_defaults);
        if let Some(file) = &mut source.file_key_ref {
            file.optional.get_or_insert(false);
        }
    }
}

fn port_defaults(ports: &mut Option<Vec<ContainerPort>>, host_network: bool) {
    for port in ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
        if host_network {
            fill_number(&mut port.host_port, port.container_port);
        }
    }
}

fn container_defaults(container: &mut Container, host_network: bool) {
    if container.image_pull_policy.as_deref().is_none_or(str::is_empty) {
        let image = container.image.as_deref().unwrap_or_default();
        container.image_pull_policy = Some(pull_policy(image).to_owned());
    }
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    port_defaults(&mut container.ports, host_network);
    env_defaults(&mut container.env);
    let resources = container.resources.get_or_insert_default();
    canonical_resources(resources);
    requests_from_limits(resources);
    let probes =
        [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    probes.into_iter().flatten().for_each(probe_defaults);
    container.lifecycle.iter_mut().for_each(lifecycle_defaults);
}

fn ephemeral_container_defaults(container: &mut EphemeralContainer) {
    if container.image_pull_policy.as_deref().is_none_or(str::is_empty) {
        let image = container.image.as_deref().unwrap_or_default();
        container.image_pull_policy = Some(pull_policy(image).to_owned());
    }
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    env_defaults(&mut container.env);
    container.resources.get_or_insert_default();
}

fn probe_defaults(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get_defaults);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn lifecycle_defaults(lifecycle: &mut Lifecycle) {
    for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
        handler.http_get.iter_mut().for_each(http_get_defaults);
    }
}

fn http_get_defaults(action: &mut HTTPGetAction) {
    fill(&mut action.path, "/");
    fill(&mut action.scheme, "HTTP");
}

/// `Always` for `:latest` and for images without tag and digest, else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    if image.is_empty() || image.contains(char::is_whitespace) {
        // Upstream cannot parse the name, finds no tag and takes this; validation will refuse the image anyway.
        return "IfNotPresent";
    }
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // A colon before the last slash belongs to the registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.split_once(':'), digest) {
        (Some((_, "latest")), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn canonical(quantity: &mut ApiQuantity) {
    if let Ok(parsed) = Quantity::parse(&quantity.0) {
        quantity.0 = parsed.to_string();
    }
}

/// Resource amounts are also rounded up to thousandths, as upstream does.
fn canonical_list(list: &mut ResourceList) {
    for quantity in list.values_mut() {
        if let Ok(parsed) = Quantity::parse(&quantity.0) {
            let milli = parsed.milli();
            let exact = Quantity::parse(&format!("{milli}m"));
            // Equal amounts keep the suffix they were written with.
            quantity.0 = match exact {
                Ok(exact) if exact != parsed && milli != i64::MAX => exact.to_string(),
                _ => parsed.to_string(),
            };
        }
    }
}

fn canonical_resources(resources: &mut ResourceRequirements) {
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        canonical_list(list);
    }
}

/// A limit without a request is also the request.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Pod-level requests (KEP-2837): what the containers ask for together, else the pod's limit.
fn pod_resource_defaults(spec: &mut PodSpec) {
    let Some(mut resources) = spec.resources.take() else { return };
    canonical_resources(&mut resources);
    if resources.limits.as_ref().is_some_and(|limits| !limits.is_empty()) {
        let mut requests = resources.requests.take().unwrap_or_default();
        for (name, amount) in container_requests(spec) {
            if matches!(name.as_str(), "cpu" | "memory") {
                requests.entry(name).or_insert_with(|| ApiQuantity(amount.to_string()));
            }
        }
        for (name, limit) in resources.limits.iter().flatten() {
            if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
        if !requests.is_empty() {
            resources.requests = Some(requests);
        }
    }
    spec.resources = Some(resources);
}

/// What the containers of a pod request together: the sum of those that run at the same time, or the largest init
/// container with the sidecars that were started before it.
pub(crate) fn container_requests(spec: &PodSpec) -> BTreeMap<String, Quantity> {
    let requests = |container: &Container| -> Vec<(String, Quantity)> {
        let list = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let parsed =
            |(name, amount): (&String, &ApiQuantity)| Some((name.clone(), Quantity::parse(&amount.0).ok()?));
        list.into_iter().flatten().filter_map(parsed).collect()
    };
    let add = |sum: &mut BTreeMap<String, Quantity>, list: Vec<(String, Quantity)>| {
        for (name, amount) in list {
            let total = sum.entry(name).or_insert(Quantity::ZERO);
            *total = total.plus(amount);
        }
    };
    let (mut running, mut sidecars, mut peak) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::<String, Quantity>::new());
    for container in &spec.containers {
        add(&mut running, requests(container));
    }
    for container in spec.init_containers.iter().flatten() {
        let mut now: BTreeMap<String, Quantity> = sidecars.clone();
        add(&mut now, requests(container));
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut running, requests(container));
            sidecars.clone_from(&now);
        }
        for (name, amount) in now {
            let most = peak.entry(name).or_insert(Quantity::ZERO);
            *most = (*most).max(amount);
        }
    }
    for (name, amount) in peak {
        let total = running.entry(name).or_insert(Quantity::ZERO);
        *total = (*total).max(amount);
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, expected) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1", "IfNotPresent"),
            ("registry:5000/busybox", "Always"),
            ("registry:5000/a/busybox:1.2", "IfNotPresent"),
            ("busybox@sha256:0123", "IfNotPresent"),
            ("busybox:latest@sha256:0123", "Always"),
            ("busybox:1@sha256:0123", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }

    #[test]
    fn amounts_are_rounded_up_to_thousandths_and_keep_their_suffix() {
        for (written, expected) in [
            ("0.5", "500m"),
            ("0.0001", "1m"),
            ("1Gi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("9223372036854775807", "9223372036854775807"),
            ("nonsense", "nonsense"),
        ] {
            let mut list = ResourceList::from([("memory".to_owned(), ApiQuantity(written.into()))]);
            canonical_list(&mut list);
            assert_eq!(list["memory"].0, expected, "{written}");
        }
    }

    #[test]
    fn pod_level_requests_come_from_containers_or_limits() {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {
                "resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
                "initContainers": [
                    {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                    {"name": "init", "resources": {"requests": {"cpu": "2"}}},
                ],
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m"}}}],
            }
        }))
        .unwrap();
        default_pod(&mut pod);
        let requests = pod.spec.unwrap().resources.unwrap().requests.unwrap();
        assert_eq!(requests["cpu"].0, "2100m");
        assert_eq!(requests["memory"].0, "1Gi");
    }

    #[test]
    fn string_data_becomes_data() {
        let mut secret: Secret = serde_json::from_value(serde_json::json!({
            "data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new"}
        }))
        .unwrap();
        default_secret(&mut secret);
        assert_eq!(secret.data.as_ref().unwrap()["a"].0, b"a");
        assert_eq!(secret.data.as_ref().unwrap()["b"].0, b"new");
        assert_eq!(secret.string_data, None);
        assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    }
}
