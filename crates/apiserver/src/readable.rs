//! Objects that cannot be read must not hide those that can: each is read by itself. What is no object of the kind that was
//! asked for, such as the `{}` of a gateway, is no answer at all: an empty list ends pods.

use k8s_openapi::{ListableResource, Resource};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
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

/// What every answer says of itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Nature {
    api_version: String,
    kind: String,
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Version {
    resource_version: String,
}

/// Whether what says so of itself is of that kind of that API.
fn check_kind<E: Error>(
    (api_version, kind): (&str, &str),
    (wanted_version, wanted): (&str, &str),
) -> Result<(), E> {
    if (api_version, kind) == (wanted_version, wanted) {
        return Ok(());
    }
    let said = |text: &str| if text.is_empty() { "nothing".to_owned() } else { format!("{text:.80?}") };
    Err(E::custom(format!(
        "it is no {wanted} of {wanted_version}: its kind is {}, its apiVersion {}; does a gateway answer in the API server's place?",
        said(kind),
        said(api_version)
    )))
}

fn check_version<E: Error>(version: &str) -> Result<(), E> {
    if version.is_empty() {
        return Err(E::custom("it has no resourceVersion; does a gateway answer in the API server's place?"));
    }
    Ok(())
}

/// Reads an answer that is one object, of this kind; one that the server `keeps` has a version.
pub(crate) fn one<T: Resource + DeserializeOwned>(text: &[u8], keeps: bool) -> Result<T, serde_json::Error> {
    let Nature { api_version, kind, metadata } = serde_json::from_slice(text)?;
    check_kind((&api_version, &kind), (T::API_VERSION, T::KIND))?;
    if keeps {
        check_version(&metadata.resource_version)?;
    }
    serde_json::from_slice(text)
}

/// Whether it is an object of this kind with a version, whatever else is wrong with it.
pub(crate) fn check_object<T: Resource>(text: &str) -> Result<(), serde_json::Error> {
    let Nature { api_version, kind, metadata } = serde_json::from_str(text)?;
    check_kind((&api_version, &kind), (T::API_VERSION, T::KIND))?;
    check_version(&metadata.resource_version)
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

impl<'de, T: ListableResource + DeserializeOwned> Deserialize<'de> for Listing<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer<T> {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
            #[serde(default)]
            metadata: Version,
            // Null is what a server that is written in Go makes of an empty one.
            #[serde(bound = "T: DeserializeOwned")]
            items: Option<Vec<Readable<T>>>,
        }
        let Answer { api_version, kind, metadata, items } = Answer::<T>::deserialize(deserializer)?;
        check_kind((&api_version, &kind), (T::API_VERSION, T::LIST_KIND))?;
        check_version(&metadata.resource_version)?;
        let mut listing =
            Self { version: metadata.resource_version, items: Vec::new(), unreadable: Vec::new() };
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
        let text = r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [
            {"metadata": {"name": "good", "namespace": "n"}, "data": {"a": "b"}},
            {"metadata": {"name": "bad", "namespace": "n", "uid": "u", "resourceVersion": "7"}, "data": {"a": 5}}]}"#;
        let listing: Listing<ConfigMap> = serde_json::from_str(text).unwrap();
        let names: Vec<_> = listing.items.iter().filter_map(|it| it.metadata.name.as_deref()).collect();
        assert_eq!((names, listing.version.as_str()), (vec!["good"], "9"));
        let [bad] = &listing.unreadable[..] else { panic!("{:?}", listing.unreadable) };
        assert_eq!((&*bad.namespace, &*bad.name, &*bad.uid, &*bad.version), ("n", "bad", "u", "7"));
        assert!(bad.problem.contains("invalid type"), "{}", bad.problem);
        let empty = r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": null}"#;
        let empty: Listing<ConfigMap> = serde_json::from_str(empty).unwrap();
        assert!(empty.items.is_empty() && empty.unreadable.is_empty());
    }

    /// What a gateway says in the API server's place is not a list of nothing, nor an object without anything.
    #[test]
    fn what_is_something_else_is_no_answer() {
        let list = |text: &str| serde_json::from_str::<Listing<ConfigMap>>(text).map(|it| it.items.len());
        let object = |text: &str| one::<ConfigMap>(text.as_bytes(), true).map(drop);
        let rows = [
            ("an empty object", "{}"),
            ("the health of something", r#"{"status": "UP"}"#),
            ("a Status", r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}"#),
            (
                "another list",
                r#"{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": []}"#,
            ),
            (
                "another object",
                r#"{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "resourceVersion": "9"}}"#,
            ),
            (
                "a list of another API",
                r#"{"kind": "ConfigMapList", "apiVersion": "v2", "metadata": {"resourceVersion": "9"}, "items": []}"#,
            ),
            (
                "an object of another API",
                r#"{"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"resourceVersion": "9"}}"#,
            ),
            (
                "a list without a version",
                r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": []}"#,
            ),
            (
                "an object without a version",
                r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}"#,
            ),
            ("no metadata", r#"{"kind": "ConfigMapList", "apiVersion": "v1", "items": []}"#),
            ("no kind", r#"{"apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": []}"#),
            (
                "items that are none",
                r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [7]}"#,
            ),
            (
                "items that are no list",
                r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": {}}"#,
            ),
            ("a number", "7"),
            ("a list", "[]"),
        ];
        for (name, text) in rows {
            assert!(list(text).is_err(), "{name}: {text}");
            assert!(object(text).is_err(), "{name}: {text}");
        }
        let whole = r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}"#;
        object(whole).unwrap();
        check_object::<ConfigMap>(whole).unwrap();
        // A review is answered, and not kept.
        one::<ConfigMap>(br#"{"kind": "ConfigMap", "apiVersion": "v1"}"#, false).unwrap();
        let said = list("{}").unwrap_err().to_string();
        assert!(
            said.starts_with("it is no ConfigMapList of v1: its kind is nothing, its apiVersion nothing;"),
            "{said}"
        );
    }
}
