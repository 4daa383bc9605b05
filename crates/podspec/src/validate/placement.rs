//! What decides whether the pod may be on this node: tolerations and required node affinity.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PodSpec, Toleration};

use super::{Field, Problems, names};

/// Checks tolerations.
pub(super) fn check_tolerations(problems: &mut Problems, tolerations: &[Toleration], field: &Field) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let field = field.index(index);
        let operator = toleration.operator.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let key = toleration.key.as_deref().unwrap_or_default();
        if key.is_empty() {
            if operator != "Exists" {
                let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
                problems.invalid(&field.child("operator"), operator, why);
            }
        } else {
            problems.check(&field.child("key"), key, names::qualified_name);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            problems.invalid(&field.child("effect"), effect, why);
        }
        match operator {
            "" | "Equal" => problems.check(&field.child("value"), value, names::label_value),
            "Exists" if !value.is_empty() => {
                problems.invalid(
                    &field.child("value"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            other => problems.unsupported(&field.child("operator"), other, &["Equal", "Exists"]),
        }
        let effects = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
        problems.one_of(
            &field.child("effect"),
            toleration.effect.as_ref().filter(|e| !e.is_empty()),
            effects,
        );
    }
}

/// Checks the node selector and the required part of the node affinity; the preferred part is the scheduler's.
pub(super) fn check_node_choice(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    let selector = field.child("nodeSelector");
    for (key, value) in spec.node_selector.iter().flatten() {
        problems.check(&selector, key, names::qualified_name);
        problems.check(&selector.key(key), value, names::label_value);
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let Some(required) =
        affinity.and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref())
    else {
        return;
    };
    let terms =
        field.child("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
    if required.node_selector_terms.is_empty() {
        problems.required(&terms, "must have at least one node selector term");
    }
    for (index, term) in required.node_selector_terms.iter().enumerate() {
        for (place, requirement) in term.match_expressions.iter().flatten().enumerate() {
            let field = terms.index(index).child("matchExpressions").index(place);
            check_requirement(problems, requirement, &field);
            problems.check(&field.child("key"), &requirement.key, names::qualified_name);
        }
        for (place, requirement) in term.match_fields.iter().flatten().enumerate() {
            let field = terms.index(index).child("matchFields").index(place);
            if requirement.key != "metadata.name" {
                problems.invalid(&field.child("key"), &requirement.key, "not a valid field selector key");
            }
            if requirement.values.as_ref().map_or(0, Vec::len) != 1 {
                problems.required(
                    &field.child("values"),
                    "must be only one value when `operator` is 'In' or 'NotIn'",
                );
            }
            problems.one_of(&field.child("operator"), Some(&requirement.operator), &["In", "NotIn"]);
        }
    }
}

fn check_requirement(problems: &mut Problems, requirement: &NodeSelectorRequirement, field: &Field) {
    let values = requirement.values.as_ref().map_or(0, Vec::len);
    let field_values = field.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values == 0 => {
            problems.required(&field_values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            problems.forbidden(
                &field_values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values != 1 => {
            problems
                .required(&field_values, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            let known = &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
            problems.unsupported(&field.child("operator"), other, known);
        }
    }
}
