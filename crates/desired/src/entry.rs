//! Documents that were read and ruled fit or unfit by themselves; whether they fit together is the book's matter.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use mainstay_podspec::{
    Content, Document, Identity, ManifestError, StaticPodPlace, decode_manifest, manifest_digest,
    static_pod_uid,
};
use mainstay_types::PodUid;
use serde_json::Value;

/// One document.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Which object it is, as far as that could be read.
    pub(crate) identity: Option<Identity>,
    /// The document's place in its file, for documents without an identity.
    pub(crate) place: String,
    /// Things that will not work as they look.
    pub(crate) warnings: Vec<String>,
    /// What was found.
    pub(crate) state: EntryState,
}

#[derive(Debug)]
pub(crate) enum EntryState {
    /// Fit, and not yet taken into the book.
    Candidate(Box<Candidate>),
    /// Fit, and in the book under its identity; the document itself is no longer kept in memory.
    Taken,
    /// Unfit, and why.
    Rejected(Vec<String>),
}

/// A document that may become part of the desired state.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) digest: String,
    pub(crate) raw: Value,
    pub(crate) object: CandidateObject,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "always behind the candidate's box, and nearly always the large one"
)]
pub(crate) enum CandidateObject {
    /// A prepared static pod.
    Pod {
        pod: Pod,
        /// Its UID by the documented function; used unless another rule gives it one.
        computed_uid: PodUid,
    },
    ConfigMap(ConfigMap),
    Secret(Secret),
    RuntimeClass(RuntimeClass),
}

/// Reads a manifest.
pub(crate) fn read_entries(bytes: &[u8], place: &StaticPodPlace<'_>) -> Result<Vec<Entry>, ManifestError> {
    let mut entries: Vec<Entry> =
        decode_manifest(bytes)?.into_iter().map(|document| read_entry(document, place)).collect();
    // They were made in the place of the documents, which are far larger.
    entries.shrink_to_fit();
    Ok(entries)
}

/// Checks one document.
pub(crate) fn read_entry(document: Document, place: &StaticPodPlace<'_>) -> Entry {
    let Document { place: where_, identity, raw, content, mut warnings } = document;
    let checked = content.and_then(|content| content.prepare(place)).map(|(content, odd)| {
        warnings.extend(odd);
        match content {
            Content::Pod(pod) => CandidateObject::Pod { pod, computed_uid: static_pod_uid(&raw, place) },
            Content::ConfigMap(object) => CandidateObject::ConfigMap(object),
            Content::Secret(object) => CandidateObject::Secret(object),
            Content::RuntimeClass(object) => CandidateObject::RuntimeClass(object),
        }
    });
    let state = match checked {
        Ok(object) => {
            let digest = manifest_digest(&raw);
            EntryState::Candidate(Box::new(Candidate { digest, raw, object }))
        }
        Err(problems) => {
            // A misspelt field is often why another is missing.
            let odd = warnings.iter().map(|warning| format!("warning: {warning}"));
            EntryState::Rejected(problems.iter().map(ToString::to_string).chain(odd).collect())
        }
    };
    Entry { identity, place: where_, warnings, state }
}
