//! What is in one file of a volume, without a copy of it.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};

/// The bytes of a file: its own, or those under a key of an object, which is then held and not copied.
#[derive(Clone)]
pub struct Contents(Source);

#[derive(Clone)]
enum Source {
    Own(Vec<u8>),
    Key { object: Object, key: String },
}

/// A ConfigMap or Secret.
#[derive(Clone)]
pub(super) enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl Object {
    /// All keys, in their order.
    pub(super) fn keys(&self) -> BTreeSet<&str> {
        let (text, binary) = match self {
            Self::ConfigMap(object) => (&object.data, &object.binary_data),
            Self::Secret(object) => (&object.string_data, &object.data),
        };
        let binary = binary.iter().flatten().map(|(key, _)| key.as_str());
        text.iter().flatten().map(|(key, _)| key.as_str()).chain(binary).collect()
    }

    /// What is under a key.
    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        match self {
            Self::ConfigMap(object) => {
                let binary = object.binary_data.as_ref().and_then(|data| data.get(key));
                let text = || object.data.as_ref()?.get(key).map(String::as_bytes);
                binary.map(|value| value.0.as_slice()).or_else(text)
            }
            // `stringData` is the write-only form of `data`, which an API server would have folded in.
            Self::Secret(object) => {
                let text = object.string_data.as_ref().and_then(|data| data.get(key));
                let binary = || object.data.as_ref()?.get(key).map(|value| value.0.as_slice());
                text.map(String::as_bytes).or_else(binary)
            }
        }
    }

    /// The contents of a file that shows a key; empty without that key.
    pub(super) fn contents(&self, key: &str) -> Contents {
        Contents(Source::Key { object: self.clone(), key: key.to_owned() })
    }
}

impl Contents {
    /// They are nobody else's.
    pub(super) const fn is_own(&self) -> bool {
        matches!(self.0, Source::Own(_))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Own(bytes) => bytes,
            Source::Key { object, key } => object.value(key).unwrap_or_default(),
        }
    }
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Source::Own(bytes))
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Contents {}

impl std::fmt::Debug for Contents {
    /// They may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}
