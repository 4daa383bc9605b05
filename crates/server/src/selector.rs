//! `labelSelector` and `fieldSelector`, as the API server reads them.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use mainstay_types::{LabelSelector, PodView};

use crate::request::{Query, quoted};

/// Which pods a request means. The empty one means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: Vec<FieldIs>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldIs {
    field: Field,
    value: String,
    negated: bool,
}

/// Those that the API server knows of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    NodeName,
    RestartPolicy,
    SchedulerName,
    ServiceAccountName,
    HostNetwork,
    Phase,
    PodIp,
    NominatedNodeName,
}

const FIELDS: [(&str, Field); 11] = [
    ("metadata.name", Field::Name),
    ("metadata.namespace", Field::Namespace),
    ("spec.nodeName", Field::NodeName),
    ("spec.restartPolicy", Field::RestartPolicy),
    ("spec.schedulerName", Field::SchedulerName),
    ("spec.serviceAccountName", Field::ServiceAccountName),
    ("spec.hostNetwork", Field::HostNetwork),
    ("status.phase", Field::Phase),
    ("status.podIP", Field::PodIp),
    ("status.podIPs", Field::PodIp),
    ("status.nominatedNodeName", Field::NominatedNodeName),
];

/// A selector that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadSelector {
    #[error("labelSelector {} cannot be read: {why}; write it as app=web,tier in (a,b),!canary", quoted(.text))]
    Label { text: String, why: String },
    #[error("fieldSelector {} cannot be read: {why}; write it as status.phase=Running,metadata.name!=web", quoted(.text))]
    Field { text: String, why: String },
    #[error(
        "field label not supported: {0}; there are metadata.name, metadata.namespace, spec.nodeName, spec.restartPolicy, \
             spec.schedulerName, spec.serviceAccountName, spec.hostNetwork, status.phase, status.podIP, status.podIPs, \
             status.nominatedNodeName"
    )]
    Unsupported(String),
}

fn labels(text: &str) -> Result<LabelSelector, BadSelector> {
    LabelSelector::parse(text)
        .map_err(|why| BadSelector::Label { text: text.to_owned(), why: why.to_string() })
}

impl Selection {
    pub(crate) fn parse(query: &Query<'_>) -> Result<Self, BadSelector> {
        let labels = query.first("labelSelector").map(labels).transpose()?.unwrap_or_default();
        let fields = query.first("fieldSelector").map(fields).transpose()?.unwrap_or_default();
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_all(&self) -> bool {
        self.labels.is_all() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, view: &PodView) -> bool {
        self.fit(&view.pod, &view.status)
    }

    fn fit(&self, pod: &Pod, status: &PodStatus) -> bool {
        self.labels.matches(pod.metadata.labels.as_ref())
            && self.fields.iter().all(|it| it.field.is(pod, status, &it.value) != it.negated)
    }
}

impl Field {
    fn is(self, pod: &Pod, status: &PodStatus, value: &str) -> bool {
        let spec = pod.spec.as_ref();
        let text = |found: Option<&String>| found.map(String::as_str).unwrap_or_default() == value;
        match self {
            Self::Name => text(pod.metadata.name.as_ref()),
            Self::Namespace => text(pod.metadata.namespace.as_ref()),
            Self::NodeName => text(spec.and_then(|it| it.node_name.as_ref())),
            Self::RestartPolicy => text(spec.and_then(|it| it.restart_policy.as_ref())),
            Self::SchedulerName => text(spec.and_then(|it| it.scheduler_name.as_ref())),
            Self::ServiceAccountName => text(spec.and_then(|it| it.service_account_name.as_ref())),
            Self::HostNetwork => {
                let on = spec.and_then(|it| it.host_network).unwrap_or(false);
                value == if on { "true" } else { "false" }
            }
            Self::Phase => text(status.phase.as_ref()),
            // Several addresses: the pod has the one that is asked for.
            Self::PodIp => {
                let mut more = status.pod_ips.iter().flatten();
                text(status.pod_ip.as_ref()) || more.any(|it| it.ip == value)
            }
            Self::NominatedNodeName => text(status.nominated_node_name.as_ref()),
        }
    }
}

/// Upstream: `apimachinery/pkg/fields`. A backslash lets `,`, `=` and itself stand in a value.
fn fields(text: &str) -> Result<Vec<FieldIs>, BadSelector> {
    let bad = |why: String| BadSelector::Field { text: text.to_owned(), why };
    let mut terms = Vec::new();
    for term in split_unescaped(text, ',') {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        let at = term.find('=').ok_or_else(|| bad(format!("{} has no =", quoted(term))))?;
        let (left, right) = (term.get(..at).unwrap_or_default(), term.get(at + 1..).unwrap_or_default());
        let (name, negated) = match left.strip_suffix('!') {
            Some(name) => (name, true),
            None => (left, false),
        };
        let value = unescaped(right.strip_prefix('=').filter(|_| !negated).unwrap_or(right))
            .ok_or_else(|| bad(format!("{} has a bare = or a broken backslash", quoted(right))))?;
        let (_, field) = FIELDS
            .iter()
            .find(|(known, _)| *known == name.trim())
            .ok_or_else(|| BadSelector::Unsupported(name.trim().to_owned()))?;
        terms.push(FieldIs { field: *field, value, negated });
    }
    Ok(terms)
}

fn split_unescaped(text: &str, at: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == at && !escaped {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                c @ ('\\' | ',' | '=') => out.push(c),
                _ => return None,
            },
            '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn select(query: &str) -> Result<bool, BadSelector> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "example.com/tier": "a", "n": "5", "empty": ""}},
            "spec": {"nodeName": "node1", "restartPolicy": "Always", "hostNetwork": true, "containers": []},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        }))
        .unwrap();
        Selection::parse(&Query::parse(Some(query)))
            .map(|selection| selection.fit(&pod, pod.status.as_ref().unwrap()))
    }

    #[test]
    fn labels_as_the_api_server_reads_them() {
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!nope", true),
            ("app=web", true),
            ("app==web", true),
            ("app%3Dweb", true),
            ("app!=web", false),
            ("nope!=web", true),
            ("empty=", true),
            ("app=", false),
            ("app in (x,web)", true),
            ("app in (x)", false),
            ("app notin (x, y)", true),
            ("nope notin (x)", true),
            ("nope in (x)", false),
            ("empty in (,x)", true),
            ("n>4,n<6", true),
            ("n > 5", false),
            ("app>1", false),
            ("app=web,example.com/tier in (a,b),!canary", true),
            ("app=web,example.com/tier=b", false),
            ("in=web", false),
        ] {
            let query = format!("labelSelector={}", selector.replace('+', "%2B").replace(' ', "+"));
            assert_eq!(select(&query), Ok(expected), "{selector}");
        }
        for selector in [
            ",",
            "app=web,",
            "=web",
            "app in",
            "app in (a",
            "app in a",
            "app=a=b",
            "!app=web",
            "app!",
            "a b",
            "n>x",
            "app=-",
            "-app",
            "/app",
            "a/b/c",
            "!!app",
            "app=web&",
            "app notin ()x",
        ] {
            let query = format!("labelSelector={}", selector.replace('&', "%26").replace(' ', "+"));
            let error = select(&query).expect_err(selector).to_string();
            assert!(error.starts_with("labelSelector \""), "{selector}: {error}");
        }
    }

    #[test]
    fn fields_as_the_api_server_knows_them() {
        for (selector, expected) in [
            ("metadata.name=web", true),
            ("metadata.name==web,metadata.namespace=shop", true),
            ("metadata.name!=web", false),
            ("metadata.namespace=", false),
            ("spec.nodeName=node1", true),
            ("spec.restartPolicy=Never", false),
            ("spec.hostNetwork=true", true),
            ("status.phase!=Pending, status.phase!=Failed", true),
            ("status.podIP=10.0.0.1", true),
            ("status.podIPs=fd00::1", true),
            ("status.nominatedNodeName=", true),
            (r"metadata.name=a\,b", false),
            ("", true),
        ] {
            assert_eq!(
                select(&format!("fieldSelector={}", selector.replace(' ', "+"))),
                Ok(expected),
                "{selector}"
            );
        }
        for selector in ["metadata.name", "metadata.name=a=b", r"metadata.name=a\b"] {
            let error = select(&format!("fieldSelector={selector}")).expect_err(selector).to_string();
            assert!(error.starts_with("fieldSelector \""), "{selector}: {error}");
        }
        let error = select("fieldSelector=spec.image=x").unwrap_err().to_string();
        assert!(error.starts_with("field label not supported: spec.image;"), "{error}");
    }
}
