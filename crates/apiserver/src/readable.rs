//! Objects that cannot be read must not hide those that can: each is read by itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// An object that the API server has and that cannot be read here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its namespace; empty if it is in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// What the parser said.
    pub problem: String,
}

/// What a list had.
#[derive(Clone, Debug)]
pub struct Listing<T> {
    /// Which state of the server it is.
    pub version: String,
    /// The objects.
    pub items: Vec<T>,
    /// Those that cannot be read; they are there all the same.
    pub unreadable: Vec<Unreadable>,
}

/// One object.
#[derive(Debug)]
pub(crate) enum Readable<T> {
    Whole(T),
    Not(Unreadable),
}

impl<T: DeserializeOwned> Readable<T> {
    /// Reads one object. An error is what is no object at all.
    pub(crate) fn of(text: &str) -> Result<Self, serde_json::Error> {
        let problem = match serde_json::from_str(text) {
            Ok(object) => return Ok(Self::Whole(object)),
            Err(problem) => problem.to_string(),
        };
        #[derive(Deserialize)]
        struct Head {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[derive(Default)]
        struct Metadata {
            namespace: String,
            name: String,
            uid: String,
            resource_version: String,
        }
        let Metadata { namespace, name, uid, resource_version } =
            serde_json::from_str::<Head>(text)?.metadata;
        Ok(Self::Not(Unreadable { namespace, name, uid, version: resource_version, problem }))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Readable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&'de RawValue>::deserialize(deserializer)?;
        Self::of(text.get()).map_err(serde::de::Error::custom)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Listing<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Answer<T> {
            #[serde(default)]
            metadata: ListMeta,
            #[serde(bound = "T: DeserializeOwned")]
            items: Option<Vec<Readable<T>>>,
        }
        let Answer { metadata, items } = Answer::<T>::deserialize(deserializer)?;
        let version = metadata.resource_version.unwrap_or_default();
        let mut listing = Self { version, items: Vec::new(), unreadable: Vec::new() };
        for item in items.into_iter().flatten() {
            match item {
                Readable::Whole(object) => listing.items.push(object),
                Readable::Not(unreadable) => listing.unreadable.push(unreadable),
            }
        }
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn one_that_cannot_be_read_hides_nobody() {
        let text = r#"{"kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": [
            {"metadata": {"name": "good", "namespace": "n"}, "data": {"a": "b"}},
            {"metadata": {"name": "bad", "namespace": "n", "uid": "u", "resourceVersion": "7"}, "data": {"a": 5}}]}"#;
        let listing: Listing<ConfigMap> = serde_json::from_str(text).unwrap();
        let names: Vec<_> = listing.items.iter().filter_map(|it| it.metadata.name.as_deref()).collect();
        assert_eq!((names, listing.version.as_str()), (vec!["good"], "9"));
        let [bad] = &listing.unreadable[..] else { panic!("{:?}", listing.unreadable) };
        assert_eq!((&*bad.namespace, &*bad.name, &*bad.uid, &*bad.version), ("n", "bad", "u", "7"));
        assert!(bad.problem.contains("invalid type"), "{}", bad.problem);
        let empty: Listing<ConfigMap> = serde_json::from_str(r#"{"metadata": {}, "items": null}"#).unwrap();
        assert!(empty.items.is_empty() && empty.version.is_empty());
        for none in ["{\"items\": [7]}", "{\"items\": {}}", "7"] {
            assert!(serde_json::from_str::<Listing<ConfigMap>>(none).is_err(), "{none}");
        }
    }
}
