//! What a pod is: from the text of a manifest to the messages that a runtime is given. Pure: no I/O, no clock, no tasks.

#![forbid(unsafe_code)]

mod defaults;
mod gates;
mod manifest;
mod prepare;
mod references;
pub mod runtime;
mod static_pod;
mod support;
mod validate;
pub mod volumes;

pub use defaults::{default_config_map, default_pod, default_secret};
pub use gates::PodGates;
pub use manifest::{
    Content, Document, Identity, MAX_MANIFEST_BYTES, ManifestError, ObjectKind, decode_manifest, decode_raw,
};
pub use references::{References, references, references_differ};
pub use static_pod::{
    StaticPodPlace, finish_static_pod, manifest_digest, prepare_static_pod, static_pod_uid,
};
pub use validate::{
    Problem, is_extended_resource, pod_warnings, validate_config_map, validate_config_map_change,
    validate_pod, validate_secret, validate_secret_change,
};
