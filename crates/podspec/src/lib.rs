//! What a pod is: from the text of a manifest to the messages that a runtime is given. Pure: no I/O, no clock, no tasks.

#![forbid(unsafe_code)]

mod defaults;
mod manifest;
pub mod runtime;
mod static_pod;
mod validate;

pub use defaults::{default_config_map, default_pod, default_secret};
pub use manifest::{
    Content, Document, Identity, MAX_MANIFEST_BYTES, ManifestError, ObjectKind, decode_manifest, decode_raw,
};
pub use static_pod::{
    StaticPodPlace, finish_static_pod, manifest_digest, prepare_static_pod, static_pod_uid,
};
pub use validate::{
    Problem, pod_warnings, validate_config_map, validate_config_map_change, validate_pod, validate_secret,
    validate_secret_change,
};
