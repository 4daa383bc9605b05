//! From a pod in a manifest to a static pod: its identity, its name, and what it may not refer to.
//!
//! The UID is specified in `docs/static-pod-uid.md`. It is a function of the document as written, never of the typed
//! or defaulted pod, so that neither a new API field nor a new default can change it.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration, Volume};
use mainstay_types::{PodSource, PodUid, annotations, rfc3339_nanos};
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use crate::{
    defaults::default_pod,
    gates::{PodGates, drop_disabled},
    validate::{Problem, pod_warnings, validate_pod},
};

/// Where a static pod is and comes from.
#[derive(Clone, Copy, Debug)]
pub struct StaticPodPlace<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// `File` or `Http`.
    pub source: PodSource,
    /// The file's path or the URL.
    pub origin: &'a str,
    /// There is an API server. Then static pods may not refer to ConfigMaps and Secrets, as in upstream; without one,
    /// these come from files and they may.
    pub api_server: bool,
    /// Which fields mean something.
    pub gates: PodGates,
}

/// The UID of a static pod whose manifest does not name one: 32 hex digits.
#[must_use]
pub fn static_pod_uid(raw: &Value, place: &StaticPodPlace<'_>) -> PodUid {
    let mut text = String::from("mainstay-static-pod-v1\n");
    write_canonical(&mut text, raw, true);
    let kind = if place.source == PodSource::Http { "url" } else { "file" };
    text.push_str(&format!("\nnode:{}\n{kind}:{}", place.node_name, place.origin));
    let mut digest = sha256_hex(&text);
    digest.truncate(32);
    digest.into()
}

/// A digest of a document as written, by which an edit is told from a repetition: 64 hex digits.
#[must_use]
pub fn manifest_digest(raw: &Value) -> String {
    let mut text = String::new();
    write_canonical(&mut text, raw, true);
    sha256_hex(&text)
}

/// Turns a decoded pod into a static one: defaulted, named, bound to the node and validated. It has no UID yet unless
/// its manifest gave one; see [`finish_static_pod`]. Also returns what will not work as it looks.
///
/// # Errors
/// Every problem, when there is one.
pub fn prepare_static_pod(
    mut pod: Pod,
    place: &StaticPodPlace<'_>,
) -> Result<(Pod, Vec<String>), Vec<Problem>> {
    let mut warnings = drop_disabled(&mut pod, place.gates);
    default_pod(&mut pod);
    warnings.extend(pod_warnings(&pod));
    let metadata = &mut pod.metadata;
    // Validation reports a missing name; a lone suffix would hide that.
    if let Some(name) = metadata.name.as_mut().filter(|name| !name.is_empty()) {
        *name = format!("{name}-{}", place.node_name.to_lowercase());
    }
    if metadata.namespace.as_deref().is_none_or(str::is_empty) {
        metadata.namespace = Some("default".to_owned());
    }
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    pod.status = None;
    let mut problems = Vec::new();
    if let Some(spec) = &mut pod.spec {
        if let Some(node) =
            spec.node_name.as_deref().filter(|node| !node.is_empty() && *node != place.node_name)
        {
            warnings
                .push(format!("spec.nodeName: {node:?} is ignored; a static pod runs where its manifest is"));
        }
        spec.node_name = Some(place.node_name.to_owned());
        if place.source == PodSource::File {
            tolerate_no_execute(spec);
        }
        if !place.api_server
            && let Some(account) = spec.service_account_name.as_deref().filter(|name| !name.is_empty())
        {
            warnings.push(format!(
                "spec.serviceAccountName: {account:?} has no rights and no token here, because service accounts are an API server's; \
                 a node with one refuses a static pod that names one"
            ));
        }
        check_references(&mut problems, spec, place.api_server);
    }
    let mut found = validate_pod(&pod);
    found.append(&mut problems);
    if found.is_empty() { Ok((pod, warnings)) } else { Err(found) }
}

/// Gives a prepared pod its UID and the annotations that static pods carry.
pub fn finish_static_pod(pod: &mut Pod, uid: &PodUid, source: PodSource, seen: Timestamp) {
    pod.metadata.uid = Some(uid.as_str().to_owned());
    let map = pod.metadata.annotations.get_or_insert_default();
    map.insert(annotations::CONFIG_HASH.to_owned(), uid.as_str().to_owned());
    map.insert(annotations::CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
    map.insert(annotations::CONFIG_SEEN.to_owned(), rfc3339_nanos(seen));
}

/// Static pods stay when the node has problems (upstream adds this for files, not for URLs).
fn tolerate_no_execute(spec: &mut PodSpec) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    // One that differs only in how long it tolerates is replaced.
    let same = |toleration: &&mut Toleration| {
        empty(&toleration.key)
            && empty(&toleration.value)
            && toleration.operator == wanted.operator
            && toleration.effect == wanted.effect
    };
    match tolerations.iter_mut().find(same) {
        Some(toleration) => toleration.toleration_seconds = None,
        None => tolerations.push(wanted),
    }
}

/// What only an API server has (upstream: HasAPIObjectReference in `pkg/api/pod/util.go`).
fn check_references(problems: &mut Vec<Problem>, spec: &PodSpec, api_server: bool) {
    let mut forbid = |field: String, what: &str| {
        problems.push(Problem::new(field, format!("Forbidden: static pods may not reference {what}")));
    };
    if api_server && spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        forbid("spec.serviceAccountName".to_owned(), "serviceaccounts");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        forbid("spec.resourceClaims".to_owned(), "resourceclaims");
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let field = format!("spec.volumes[{index}]");
        for (name, what) in volume_references(volume) {
            forbid(format!("{field}.{name}"), what);
        }
        if api_server {
            if volume.secret.is_some() {
                forbid(format!("{field}.secret"), "secrets (via secret volumes)");
            }
            if volume.config_map.is_some() {
                forbid(format!("{field}.configMap"), "configmaps (via configmap volumes)");
            }
        }
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        for (place, source) in sources.into_iter().flatten().enumerate() {
            let field = format!("{field}.projected.sources[{place}]");
            if source.service_account_token.is_some() {
                forbid(format!("{field}.serviceAccountToken"), "serviceaccounts (via projected volumes)");
            }
            if source.cluster_trust_bundle.is_some() {
                forbid(format!("{field}.clusterTrustBundle"), "clustertrustbundles");
            }
            if source.pod_certificate.is_some() {
                forbid(format!("{field}.podCertificate"), "podcertificates");
            }
            if api_server && source.config_map.is_some() {
                forbid(format!("{field}.configMap"), "configmaps (via projected volumes)");
            }
            if api_server && source.secret.is_some() {
                forbid(format!("{field}.secret"), "secrets (via projected volumes)");
            }
        }
    }
    if !api_server {
        return;
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()) {
        forbid("spec.imagePullSecrets".to_owned(), "secrets");
    }
    let mut check_env = |list: &str, containers: &[Container]| {
        for (index, container) in containers.iter().enumerate() {
            for (place, source) in container.env_from.iter().flatten().enumerate() {
                let field = format!("spec.{list}[{index}].envFrom[{place}]");
                if source.secret_ref.is_some() {
                    forbid(format!("{field}.secretRef"), "secrets");
                }
                if source.config_map_ref.is_some() {
                    forbid(format!("{field}.configMapRef"), "configmaps");
                }
            }
            for (place, variable) in container.env.iter().flatten().enumerate() {
                let Some(source) = &variable.value_from else { continue };
                let field = format!("spec.{list}[{index}].env[{place}].valueFrom");
                if source.secret_key_ref.is_some() {
                    forbid(format!("{field}.secretKeyRef"), "secrets");
                }
                if source.config_map_key_ref.is_some() {
                    forbid(format!("{field}.configMapKeyRef"), "configmaps");
                }
            }
        }
    };
    check_env("initContainers", spec.init_containers.as_deref().unwrap_or_default());
    check_env("containers", &spec.containers);
}

fn volume_references(volume: &Volume) -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        (volume.csi.is_some(), "csi", "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "glusterfs", "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim", "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        (volume.azure_file.is_some(), "azureFile", "secrets (via azureFile volumes)"),
    ]
    .into_iter()
    .filter_map(|(present, name, what)| present.then_some((name, what)))
}

fn sha256_hex(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a String cannot fail.
        write!(hex, "{byte:02x}").ok();
    }
    hex
}

/// JSON without spaces, keys sorted by their bytes, fields that are null left out, numbers in one form only. Written
/// out here so that no library's idea of JSON is part of a UID. Documents nest at most 128 deep.
fn write_canonical(text: &mut String, value: &Value, top: bool) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => write_number(text, number),
        Value::String(string) => write_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(text, item, false);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> =
                map.iter().filter(|(key, value)| !(value.is_null() || top && *key == "status")).collect();
            entries.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            text.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_string(text, key);
                text.push(':');
                write_canonical(text, value, false);
            }
            text.push('}');
        }
    }
}

/// Whole numbers as digits, also when they were written `1.0` or `1e3`; others in the fewest digits that name the same
/// IEEE 754 double, without exponent.
fn write_number(text: &mut String, number: &Number) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let written = match number.as_f64() {
        Some(float) if number.is_f64() => {
            if float == 0.0 {
                text.push('0');
                return;
            }
            if float.fract() == 0.0 && float.abs() <= EXACT {
                write!(text, "{float:.0}")
            } else {
                write!(text, "{float}")
            }
        }
        _ => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => write!(text, "{whole}"),
            (None, Some(whole)) => write!(text, "{whole}"),
            (None, None) => Ok(()),
        },
    };
    // Writing to a String cannot fail.
    written.ok();
}

fn write_string(text: &mut String, string: &str) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                // Writing to a String cannot fail.
                write!(text, "\\u{:04x}", u32::from(control)).ok();
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests;
