//! Names, labels, annotations.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Field, Problems, names};

const ANNOTATIONS_MAX_BYTES: usize = 256 << 10;

/// Checks an object's metadata; `is_pod` says whether its UID means something to a node.
pub(super) fn check(problems: &mut Problems, metadata: &ObjectMeta, is_pod: bool) {
    let field = Field::new("metadata");
    match metadata.name.as_deref() {
        None | Some("") => {
            let advice = if metadata.generate_name.is_some() {
                "generateName has no meaning without an API server; give it a name"
            } else {
                "give it a name"
            };
            problems.required(&field.child("name"), advice);
        }
        Some(name) => problems.check(&field.child("name"), name, names::dns_subdomain),
    }
    match metadata.namespace.as_deref() {
        None | Some("") => problems.required(&field.child("namespace"), "give it a namespace"),
        Some(namespace) => problems.check(&field.child("namespace"), namespace, names::dns_label),
    }
    if is_pod {
        problems.check_filled(&field.child("uid"), metadata.uid.as_ref(), names::uid);
    }
    let labels = field.child("labels");
    for (key, value) in metadata.labels.iter().flatten() {
        problems.check(&labels, key, names::qualified_name);
        problems.check(&labels.key(key), value, names::label_value);
    }
    let annotations = field.child("annotations");
    let mut size = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        problems.check(&annotations, key, names::annotation_key);
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX_BYTES {
        problems.too_long(&annotations, ANNOTATIONS_MAX_BYTES);
    }
}
