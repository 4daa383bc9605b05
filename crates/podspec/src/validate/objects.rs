//! ConfigMaps, Secrets and RuntimeClasses.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;

use super::{Field, Problem, Problems, metadata, names};

/// The most that a ConfigMap or Secret may hold.
const DATA_MAX_BYTES: usize = 1 << 20;

/// Checks a defaulted config map.
#[must_use]
pub fn validate_config_map(config_map: &ConfigMap) -> Vec<Problem> {
    let mut problems = Problems::default();
    metadata::check(&mut problems, &config_map.metadata, false);
    let mut size = 0;
    for (key, value) in config_map.data.iter().flatten() {
        let field = Field::new("data").key(key);
        problems.check(&field, key, names::config_key);
        if config_map.binary_data.as_ref().is_some_and(|binary| binary.contains_key(key)) {
            problems.invalid(&field, key, "duplicate of key present in binaryData");
        }
        size += value.len();
    }
    for (key, value) in config_map.binary_data.iter().flatten() {
        problems.check(&Field::new("binaryData").key(key), key, names::config_key);
        size += value.0.len();
    }
    if size > DATA_MAX_BYTES {
        problems.too_long(&Field::new("data"), DATA_MAX_BYTES);
    }
    problems.0
}

/// Checks a defaulted secret. No message contains any of its data.
#[must_use]
pub fn validate_secret(secret: &Secret) -> Vec<Problem> {
    let mut problems = Problems::default();
    metadata::check(&mut problems, &secret.metadata, false);
    let data = Field::new("data");
    let mut size = 0;
    for (key, value) in secret.data.iter().flatten() {
        problems.check(&data.key(key), key, names::config_key);
        size += value.0.len();
    }
    if size > DATA_MAX_BYTES {
        problems.too_long(&data, DATA_MAX_BYTES);
    }

    let get = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
    let mut need = |key: &str| {
        if get(key).is_none() {
            problems.required(&data.key(key), "a secret of this type must have it");
        }
    };
    match secret.type_.as_deref().unwrap_or_default() {
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(need),
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/basic-auth" if get("username").is_none() && get("password").is_none() => {
            ["username", "password"].into_iter().for_each(need);
        }
        kind @ ("kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson") => {
            let key = if kind == "kubernetes.io/dockercfg" { ".dockercfg" } else { ".dockerconfigjson" };
            need(key);
            let is_object = |json: &[u8]| {
                serde_json::from_slice::<serde_json::Value>(json).is_ok_and(|value| value.is_object())
            };
            if get(key).is_some_and(|json| !is_object(json)) {
                problems.invalid(&data.key(key), "<secret contents redacted>", "must be a JSON object");
            }
        }
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            let annotations = secret.metadata.annotations.as_ref();
            if annotations.and_then(|map| map.get(ACCOUNT)).is_none_or(String::is_empty) {
                let field = Field::new("metadata.annotations").key(ACCOUNT);
                problems.required(&field, "a secret of this type must have it");
            }
        }
        _ => {}
    }
    problems.0
}

/// Checks a runtime class.
#[must_use]
pub(crate) fn validate_runtime_class(class: &RuntimeClass) -> Vec<Problem> {
    let mut problems = Problems::default();
    let mut metadata = class.metadata.clone();
    if metadata.namespace.take().is_some_and(|namespace| !namespace.is_empty()) {
        problems
            .forbidden(&Field::new("metadata.namespace"), "a RuntimeClass is in no namespace; leave it out");
    }
    // It is in none, which is what is asked of everything else.
    metadata.namespace = Some("default".to_owned());
    metadata::check(&mut problems, &metadata, false);
    problems.check(&Field::new("handler"), &class.handler, names::dns_label);
    problems.0
}

/// What a runtime class of a file asks for that only an API server does.
#[must_use]
pub(crate) fn runtime_class_warnings(class: &RuntimeClass) -> Vec<String> {
    let odd = [
        (
            class.overhead.is_some(),
            "overhead: without an API server it is not added to the pods of the class; write it in their spec.overhead",
        ),
        (
            class.scheduling.is_some(),
            "scheduling: there is no scheduler without an API server; it does nothing",
        ),
    ];
    odd.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text.to_owned()).collect()
}

/// Whether a config map may take the place of another of its name.
#[must_use]
pub fn validate_config_map_change(new: &ConfigMap, old: &ConfigMap) -> Vec<Problem> {
    let mut problems = Problems::default();
    let same = new.data == old.data && new.binary_data == old.binary_data;
    check_immutable(&mut problems, old.immutable, new.immutable, same);
    problems.0
}

/// Whether a secret may take the place of another of its name.
#[must_use]
pub fn validate_secret_change(new: &Secret, old: &Secret) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_immutable(&mut problems, old.immutable, new.immutable, new.data == old.data);
    if new.type_ != old.type_ {
        problems.invalid(&Field::new("type"), new.type_.as_deref().unwrap_or_default(), IMMUTABLE_TYPE);
    }
    problems.0
}

const IMMUTABLE: &str =
    "field is immutable when `immutable` is set; use another name, or remove the file first";
const IMMUTABLE_TYPE: &str = "field is immutable; use another name, or remove the file first";

fn check_immutable(problems: &mut Problems, old: Option<bool>, new: Option<bool>, same_data: bool) {
    if old != Some(true) {
        return;
    }
    if new != Some(true) {
        problems.forbidden(&Field::new("immutable"), IMMUTABLE);
    }
    if !same_data {
        problems.forbidden(&Field::new("data"), IMMUTABLE);
    }
}
