//! Header values that must not reach a log, `/configz` or an error message.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands in the place of a header value wherever one would be shown.
pub const MASK: &str = "<masked>";

/// HTTP headers whose values are secret.
///
/// Printing and serializing show the names only. A value leaves through [`SecretHeaders::expose`] alone, so that
/// every place that does is easy to find. Serializing is therefore not a way to copy them.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct SecretHeaders(BTreeMap<String, Vec<String>>);

impl SecretHeaders {
    /// The names and values, for the one request that needs them.
    pub fn expose(&self) -> &BTreeMap<String, Vec<String>> {
        &self.0
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<BTreeMap<String, Vec<String>>> for SecretHeaders {
    fn from(headers: BTreeMap<String, Vec<String>>) -> Self {
        Self(headers)
    }
}

impl fmt::Debug for SecretHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, MASK))).finish()
    }
}

impl Serialize for SecretHeaders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // One mask for each name, as upstream writes it into its log.
        serializer.collect_map(self.0.keys().map(|name| (name, [MASK])))
    }
}
