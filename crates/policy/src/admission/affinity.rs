//! Node selectors, required node affinity, and tolerations.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, VolumeNodeAffinity,
};

/// Whether the node is one that the pod asks for. What the pod merely prefers is the scheduler's business.
pub(super) fn matches(spec: &PodSpec, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let mut selector = spec.node_selector.iter().flatten();
    if !selector.all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return true };
    required.node_selector_terms.iter().any(|term| term_matches(term, node_name, labels))
}

/// Whether a volume can be used on the node.
#[must_use]
pub fn volume_fits(
    affinity: &VolumeNodeAffinity,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let Some(required) = &affinity.required else { return true };
    required.node_selector_terms.iter().any(|term| term_matches(term, node_name, labels))
}

/// A term that says nothing matches nothing.
fn term_matches(term: &NodeSelectorTerm, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node_name);
    expressions.iter().all(|requirement| holds(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |actual: &str| values.iter().any(|value| value == actual);
    let compared = |wanted: std::cmp::Ordering| {
        let [value] = values else { return false };
        let (Some(actual), Ok(bound)) = (actual.and_then(|text| text.parse::<i64>().ok()), value.parse())
        else {
            return false;
        };
        actual.cmp(&bound) == wanted
    };
    match requirement.operator.as_str() {
        "In" => actual.is_some_and(among),
        "NotIn" => !actual.is_some_and(among),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => compared(std::cmp::Ordering::Greater),
        "Lt" => compared(std::cmp::Ordering::Less),
        _ => false,
    }
}

/// Whether a taint keeps nobody out, or this pod bears it. Only NoExecute is the node's own business.
pub(super) fn tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    taint.effect != "NoExecute" || tolerates(spec, taint)
}

/// Whether the pod bears this taint.
pub(super) fn tolerates(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or_default();
        (effect.is_empty() || effect == taint.effect)
            && (key.is_empty() || key == taint.key)
            && match operator {
                "Exists" => true,
                "" | "Equal" => value == taint.value.as_deref().unwrap_or_default(),
                _ => false,
            }
    })
}
