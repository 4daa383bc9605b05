//! Manifests: bytes to Pods and what they refer to (ConfigMaps, Secrets, RuntimeClasses), document by document.
//!
//! A file that is not YAML or JSON at all is one error. In a file that is, each document stands for itself: one that is
//! wrong does not touch the others. Nothing is defaulted here and only types are checked; see [`crate::validate_pod`].

mod typed;
mod value;

use std::fmt;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use serde_json::Value;

use crate::validate::Problem;

pub(crate) use typed::nearest;

/// The largest manifest that is read (upstream's limit: `pkg/kubelet/config/common.go`, maxConfigLength).
pub const MAX_MANIFEST_BYTES: usize = 10 << 20;

/// Why no document could be read from a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// More bytes than a manifest may have.
    #[error("the manifest is larger than {} MiB; a pod needs a few KiB, split the file or move data out of it", limit >> 20)]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// Aliases that expand to more than anybody needs.
    #[error(
        "the manifest holds more than {limit} values, or too much text, once its aliases are expanded; use fewer aliases"
    )]
    TooManyValues {
        /// The most values allowed.
        limit: usize,
    },
    /// Brackets within brackets within brackets.
    #[error(
        "the manifest opens more than {limit} brackets within one another; is a closing bracket missing?"
    )]
    TooDeep {
        /// The most that may be open.
        limit: usize,
    },
    /// Neither YAML nor JSON.
    #[error("not valid YAML or JSON: {message}; correct the syntax there")]
    Syntax {
        /// Line and column, counted from 1, where they are known.
        location: Option<(usize, usize)>,
        /// What the reader says, with line and column.
        message: String,
    },
    /// Nothing in it.
    #[error("the manifest is empty; to delete its pods remove the file")]
    Empty,
}

/// The kinds of objects a manifest may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum ObjectKind {
    /// `v1 Pod`.
    Pod,
    /// `v1 ConfigMap`.
    ConfigMap,
    /// `v1 Secret`.
    Secret,
    /// `node.k8s.io/v1 RuntimeClass`.
    RuntimeClass,
}

impl ObjectKind {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::RuntimeClass => "RuntimeClass",
        }
    }

    /// The API's group and version of the kind.
    fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::ConfigMap | Self::Secret => "v1",
            Self::RuntimeClass => "node.k8s.io/v1",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which object a document describes, by the names written in it (a static pod's full name also has the node's).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace; `default` where none is written, nothing for what is in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// One document of a manifest, or one item of a list in it.
#[derive(Debug)]
pub struct Document {
    /// Where it stands: `document 2`, `document 1, item 3`.
    pub place: String,
    /// Which object it is, when kind and name could be read.
    pub identity: Option<Identity>,
    /// The document as written, without `status`. Never log a Secret's.
    pub raw: Value,
    /// The object, or everything that is wrong with its types.
    pub content: Result<Content, Vec<Problem>>,
    /// What is odd about it without being wrong: unknown and repeated fields.
    pub warnings: Vec<String>,
}

/// The object in a document. It is neither defaulted nor validated.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived, and nearly always the large one")]
pub enum Content {
    /// A pod.
    Pod(Pod),
    /// A config map.
    ConfigMap(ConfigMap),
    /// A secret.
    Secret(Secret),
    /// A runtime class.
    RuntimeClass(RuntimeClass),
}

/// Reads a manifest. Lists are taken apart; empty documents are left out.
///
/// # Errors
/// [`ManifestError`] when the bytes as a whole cannot be read, or hold no document.
pub fn decode_manifest(bytes: &[u8]) -> Result<Vec<Document>, ManifestError> {
    let raw = value::read(bytes)?;
    if raw.is_empty() {
        return Err(ManifestError::Empty);
    }
    let mut documents = Vec::with_capacity(raw.len());
    for (index, document) in raw.into_iter().enumerate() {
        let place = format!("document {}", index + 1);
        match list_items(document.value) {
            Ok((kind, items)) => {
                let mut warnings = document.warnings;
                for (item, raw) in items.into_iter().enumerate() {
                    let raw = typed_item(raw, kind);
                    let mut decoded = decode_document(raw, format!("{place}, item {}", item + 1));
                    // A list has no verdict of its own, so what was odd about it goes to its first item.
                    decoded.warnings.append(&mut warnings);
                    documents.push(decoded);
                }
            }
            Err(value) => {
                let mut decoded = decode_document(value, place);
                decoded.warnings.splice(..0, document.warnings);
                documents.push(decoded);
            }
        }
    }
    Ok(documents)
}

/// Reads one document again that [`decode_manifest`] once gave out as [`Document::raw`].
#[must_use]
pub fn decode_raw(raw: Value) -> Document {
    decode_document(raw, "document 1".to_owned())
}

/// The items of a list and the kind they have if they do not say; any other document is handed back.
fn list_items(mut document: Value) -> Result<(Option<ObjectKind>, Vec<Value>), Value> {
    let kind = match (text(&document, "apiVersion"), text(&document, "kind")) {
        (Some("v1"), Some("List")) => None,
        (Some("v1"), Some("PodList")) => Some(ObjectKind::Pod),
        (Some("v1"), Some("ConfigMapList")) => Some(ObjectKind::ConfigMap),
        (Some("v1"), Some("SecretList")) => Some(ObjectKind::Secret),
        (Some("node.k8s.io/v1"), Some("RuntimeClassList")) => Some(ObjectKind::RuntimeClass),
        _ => return Err(document),
    };
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok((kind, items)),
        Some(Value::Null) | None => Ok((kind, Vec::new())),
        Some(other) => {
            if let Some(items) = document.get_mut("items") {
                *items = other;
            }
            Err(document)
        }
    }
}

fn typed_item(mut item: Value, kind: Option<ObjectKind>) -> Value {
    if let (Some(kind), Some(map)) = (kind, item.as_object_mut()) {
        map.entry("apiVersion").or_insert_with(|| kind.api_version().into());
        map.entry("kind").or_insert_with(|| kind.as_str().into());
    }
    item
}

fn decode_document(mut raw: Value, place: String) -> Document {
    let kind = match object_kind(&raw) {
        Ok(kind) => kind,
        Err(problem) => {
            return Document {
                place,
                identity: None,
                raw,
                content: Err(vec![problem]),
                warnings: Vec::new(),
            };
        }
    };
    if let Some(map) = raw.as_object_mut() {
        // The status is ours to tell.
        map.shift_remove("status");
    }
    let identity = identity(&raw, kind);
    let (content, warnings) = match kind {
        ObjectKind::Pod => typed_content(&raw, Content::Pod, false, check_pod),
        ObjectKind::ConfigMap => typed_content(&raw, Content::ConfigMap, false, |_| Vec::new()),
        ObjectKind::Secret => typed_content(&raw, Content::Secret, true, |_| Vec::new()),
        ObjectKind::RuntimeClass => typed_content(&raw, Content::RuntimeClass, false, |_| Vec::new()),
    };
    Document { place, identity, raw, content, warnings }
}

fn typed_content<T: serde::de::DeserializeOwned>(
    raw: &Value,
    wrap: impl FnOnce(T) -> Content,
    secret: bool,
    check_rest: impl FnOnce(T) -> Vec<Problem>,
) -> (Result<Content, Vec<Problem>>, Vec<String>) {
    let typed = typed::read::<T>(raw, secret);
    let content = match (typed.object, typed.problems) {
        (Some(object), problems) if problems.is_empty() => Ok(wrap(object)),
        (object, mut problems) => {
            // All problems at once: what could be read is checked as well, except below what was taken out.
            let rest = object.map(check_rest).unwrap_or_default();
            let rest: Vec<_> = rest
                .into_iter()
                .filter(|found| !problems.iter().any(|p| found.concerns(p.field())))
                .collect();
            problems.extend(rest);
            Err(problems)
        }
    };
    (content, typed.unknown)
}

fn check_pod(mut pod: Pod) -> Vec<Problem> {
    crate::defaults::default_pod(&mut pod);
    // The namespace is filled in when the pod becomes a static one.
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    crate::validate::validate_pod(&pod)
}

fn object_kind(raw: &Value) -> Result<ObjectKind, Problem> {
    const SUPPORTED: &str =
        "supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass";
    if !raw.is_object() {
        return Err(Problem::new(
            "",
            format!("Invalid value: must be a mapping with apiVersion and kind; {SUPPORTED}"),
        ));
    }
    let Some(kind) = text(raw, "kind") else {
        return Err(Problem::new("kind", format!("Required value: {SUPPORTED}")));
    };
    let Some(api_version) = text(raw, "apiVersion") else {
        return Err(Problem::new("apiVersion", "Required value: write apiVersion: v1"));
    };
    match (api_version, kind) {
        ("v1", "Pod") => Ok(ObjectKind::Pod),
        ("v1", "ConfigMap") => Ok(ObjectKind::ConfigMap),
        ("v1", "Secret") => Ok(ObjectKind::Secret),
        ("node.k8s.io/v1", "RuntimeClass") => Ok(ObjectKind::RuntimeClass),
        ("v1", "List" | "PodList" | "ConfigMapList" | "SecretList")
        | ("node.k8s.io/v1", "RuntimeClassList") => Err(Problem::new(
            "items",
            "Invalid value: must be a list of objects, and a list cannot hold lists",
        )),
        (other, "RuntimeClass") => Err(Problem::new(
            "apiVersion",
            format!("Unsupported value: {other:?}: supported values: \"node.k8s.io/v1\""),
        )),
        (other, "Pod" | "ConfigMap" | "Secret") => {
            Err(Problem::new("apiVersion", format!("Unsupported value: {other:?}: supported values: \"v1\"")))
        }
        (api_version, kind) => {
            let advice =
                match nearest(kind, &["Pod", "ConfigMap", "Secret", "RuntimeClass", "List", "PodList"]) {
                    Some(known) if known != kind => format!(" (did you mean {known}?)"),
                    _ => String::new(),
                };
            Err(Problem::new(
                "kind",
                format!("Unsupported value: \"{api_version} {kind}\": {SUPPORTED}{advice}"),
            ))
        }
    }
}

fn identity(raw: &Value, kind: ObjectKind) -> Option<Identity> {
    let metadata = raw.get("metadata")?;
    let name = text(metadata, "name").filter(|name| !name.is_empty())?;
    let namespace = match kind {
        ObjectKind::RuntimeClass => "",
        _ => text(metadata, "namespace").filter(|namespace| !namespace.is_empty()).unwrap_or("default"),
    };
    Some(Identity { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
