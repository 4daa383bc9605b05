//! Which pods are meant: names as people write them, and labels.

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{LabelSelector, PodExt, edit_distance};
use serde::Deserialize;
use serde_json::Value;

use crate::{connection::Connection, error::ClientError};

/// How many names a hint lists.
const HINTS: usize = 5;

/// One pod: as it came, and as a type.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Value,
    pub(crate) pod: Pod,
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    items: Option<Vec<Item>>,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let pod = Pod::deserialize(&value).map_err(serde::de::Error::custom)?;
        Ok(Self { value, pod })
    }
}

impl Item {
    /// `NAMESPACE/NAME`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.pod.namespace_ref(), self.pod.name_ref())
    }

    /// The name without the `-NODE` of static pods.
    fn short_name(&self) -> &str {
        without_node(self.pod.name_ref(), &self.pod)
    }

    fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// The pod, unless it was not let in: then nothing of it ever ran.
    pub(crate) fn admitted(&self) -> Result<&Pod, ClientError> {
        let Some(status) = self.pod.status.as_ref() else { return Ok(&self.pod) };
        let lists = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        let nothing = lists.into_iter().flatten().all(Vec::is_empty);
        match &status.reason {
            Some(reason) if nothing && status.phase.as_deref() == Some("Failed") => {
                let (pod, reason) = (self.full_name(), reason.clone());
                Err(ClientError::Rejected {
                    pod,
                    reason,
                    message: status.message.clone().unwrap_or_default(),
                })
            }
            _ => Ok(&self.pod),
        }
    }

    /// The pod with the kind that a list's items lack.
    pub(crate) fn whole_object(&self) -> Value {
        let mut object = serde_json::Map::new();
        object.insert("apiVersion".into(), "v1".into());
        object.insert("kind".into(), "Pod".into());
        for (key, value) in self.value.as_object().into_iter().flatten() {
            object.insert(key.clone(), value.clone());
        }
        Value::Object(object)
    }
}

/// All pods, sorted by namespace and name as the server has them.
pub(crate) async fn all_pods(connection: &Connection) -> Result<Vec<Item>, ClientError> {
    Ok(connection.json::<PodList>("/pods").await?.items.unwrap_or_default())
}

/// A pod as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    given: String,
    namespace: Option<String>,
    name: String,
}

impl Named {
    /// Reads `NAME`, `NAMESPACE/NAME` or `pod/NAME`; `namespace` is that of `-n`.
    pub(crate) fn parse(given: &str, namespace: Option<&str>) -> Self {
        let (prefix, name) = match given.split_once('/') {
            // kubectl's way to write it. With -n there is no doubt; without, see `matches`.
            Some((prefix, name)) if is_kind(prefix) && namespace.is_some() => (None, name),
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, given),
        };
        let namespace = prefix.or(namespace).map(str::to_owned);
        Self { given: given.to_owned(), namespace, name: name.to_owned() }
    }

    /// Whether the pod is meant.
    pub(crate) fn matches(&self, item: &Item) -> bool {
        let namespace_fits = self.namespace.as_deref().is_none_or(|namespace| {
            namespace == item.pod.namespace_ref() || (self.given.contains('/') && is_kind(namespace))
        });
        namespace_fits && (item.pod.name_ref() == self.name || item.short_name() == self.name)
    }

    /// Finds the one pod that is meant.
    pub(crate) fn find<'a>(&self, pods: &'a [Item]) -> Result<&'a Item, ClientError> {
        let matching: Vec<&Item> = pods.iter().filter(|item| self.matches(item)).collect();
        // A full name says more than a short one, and a pod that stays more than one that is being replaced.
        let exact = matching.iter().filter(|item| item.pod.name_ref() == self.name);
        let best = |items: Vec<&'a Item>| -> Option<&'a Item> {
            let staying: Vec<&Item> = items.iter().filter(|item| !item.is_terminating()).copied().collect();
            match (staying.as_slice(), items.as_slice()) {
                ([one], _) | ([], [one]) => Some(one),
                _ => None,
            }
        };
        if let Some(one) = best(exact.copied().collect()).or_else(|| best(matching.clone())) {
            return Ok(one);
        }
        if matching.is_empty() {
            return Err(self.not_found(pods));
        }
        let choices = matching.iter().map(|item| item.full_name()).collect::<Vec<_>>().join(", ");
        Err(ClientError::Ambiguous { name: self.given.clone(), choices })
    }

    /// The error that there is no such pod, with the names it may have been meant to be.
    pub(crate) fn not_found(&self, pods: &[Item]) -> ClientError {
        let near = pods.iter().filter_map(|item| {
            // What is the same in all names of a node says nothing about which of them is meant.
            let wanted: Vec<char> = without_node(&self.name, &item.pod).chars().collect();
            let limit = (wanted.len() / 3).clamp(1, 3);
            let distance = edit_distance(&wanted, &item.short_name().chars().collect::<Vec<_>>(), limit);
            let is_part = !self.name.is_empty() && item.pod.name_ref().contains(&self.name);
            (is_part || distance <= limit).then(|| (if is_part { 0 } else { distance }, item.full_name()))
        });
        let near: Vec<(usize, String)> = near.collect();
        let least = near.iter().map(|(distance, _)| *distance).min();
        let nearest = near.iter().filter(|(distance, _)| Some(*distance) == least);
        let proposed: Vec<&str> = nearest.take(HINTS).map(|(_, name)| name.as_str()).collect();
        let hint = if pods.is_empty() {
            "; there are no pods on this node".to_owned()
        } else if proposed.is_empty() {
            "; `mainstay pods` lists those that there are".to_owned()
        } else {
            format!("; did you mean {}?", proposed.join(" or "))
        };
        let name = match &self.namespace {
            Some(namespace) if !self.given.contains('/') => format!("{namespace}/{}", self.given),
            _ => self.given.clone(),
        };
        ClientError::NoSuchPod { name, hint }
    }
}

/// A name without the `-NODE` that the pod's node adds to those of static pods.
fn without_node<'a>(name: &'a str, pod: &Pod) -> &'a str {
    let node = pod.spec_ref().node_name.as_deref().filter(|node| !node.is_empty());
    node.and_then(|node| name.strip_suffix(node)?.strip_suffix('-')).unwrap_or(name)
}

pub(crate) fn is_kind(prefix: &str) -> bool {
    matches!(prefix, "pod" | "pods" | "po")
}

/// Reads the value of `-l`.
pub(crate) fn label_selector(text: &str) -> Result<LabelSelector, ClientError> {
    LabelSelector::parse(text)
        .map_err(|why| ClientError::Selector { selector: text.to_owned(), why: why.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn item(namespace: &str, name: &str, terminating: bool) -> Item {
        let mut value = json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": "web", "tier": "a"}},
            "spec": {"nodeName": "node1", "containers": []},
        });
        if terminating {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn names() {
        let pods = [
            item("default", "web-node1", false),
            item("default", "web", false),
            item("default", "db-node1", false),
            item("shop", "db-node1", false),
            item("shop", "cart-node1", true),
            item("shop", "cart-node1", false),
            item("pod", "odd", false),
        ];
        let find = |given: &str, namespace: Option<&str>| {
            Named::parse(given, namespace).find(&pods).map(|item| (item.full_name(), item.is_terminating()))
        };
        for (given, namespace, expected) in [
            ("web-node1", None, "default/web-node1"),
            // The exact name before the short one.
            ("web", None, "default/web"),
            ("default/web", None, "default/web"),
            ("shop/db", None, "shop/db-node1"),
            ("db", Some("shop"), "shop/db-node1"),
            ("db-node1", Some("default"), "default/db-node1"),
            ("pod/db", Some("shop"), "shop/db-node1"),
            ("pod/web-node1", None, "default/web-node1"),
            ("pod/odd", None, "pod/odd"),
            ("cart", None, "shop/cart-node1"),
        ] {
            let found = find(given, namespace).unwrap_or_else(|error| panic!("{given}: {error}"));
            assert_eq!(found, (expected.to_owned(), false), "{given}");
        }
        let error = find("db", None).unwrap_err().to_string();
        assert_eq!(error, "db may be any of default/db-node1, shop/db-node1; name one of these");
        let error = find("wbe-node1", None).unwrap_err().to_string();
        assert_eq!(error, "there is no pod wbe-node1; did you mean default/web-node1 or default/web?");
        let error = find("car", None).unwrap_err().to_string();
        assert!(error.contains("did you mean shop/cart-node1"), "{error}");
        let error = find("default/cart", None).unwrap_err().to_string();
        assert!(error.starts_with("there is no pod default/cart; did you mean shop/cart-node1"), "{error}");
        let error = find("something-else-entirely", Some("shop")).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no pod shop/something-else-entirely; `mainstay pods` lists those that there are"
        );
        let error = Named::parse("web", None).find(&[]).unwrap_err().to_string();
        assert_eq!(error, "there is no pod web; there are no pods on this node");
    }

    #[test]
    fn a_pod_that_was_not_let_in_says_so() {
        let mut item = item("default", "web", false);
        item.admitted().unwrap();
        let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"});
        item.pod.status = serde_json::from_value(status).unwrap();
        assert_eq!(
            item.admitted().unwrap_err().to_string(),
            "pod default/web was not let in (OutOfcpu), so that nothing of it runs: Node didn't have enough resource: cpu"
        );
        let ran = json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0}]);
        item.pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(ran).unwrap();
        item.admitted().unwrap();
    }

    #[test]
    fn labels() {
        let pod = item("default", "web", false).pod;
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app=db", false),
            ("app=web,tier=a", true),
            ("app=web, tier=b", false),
            ("tier!=b", true),
            ("missing!=b", true),
            ("tier!=a", false),
            ("app", true),
            ("missing", false),
            ("!missing", true),
            ("!app", false),
            ("missing=", false),
            ("app in (db, web),tier notin (b)", true),
            ("app in (db)", false),
        ] {
            let selected = label_selector(selector).unwrap().matches(pod.metadata.labels.as_ref());
            assert_eq!(selected, expected, "{selector}");
        }
        for selector in ["=x", "a=b,,c=d", "app in a", "!"] {
            assert!(label_selector(selector).is_err(), "{selector}");
        }
    }
}
