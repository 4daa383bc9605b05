//! Requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mainstay_types::Quantity;

use super::{Field, Problems, names};

type ResourceList = BTreeMap<String, ApiQuantity>;

/// Parses a quantity or reports it.
pub(super) fn quantity(problems: &mut Problems, field: &Field, quantity: &ApiQuantity) -> Option<Quantity> {
    match Quantity::parse(&quantity.0) {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            problems.add(field, format!("Invalid value: {error}"));
            None
        }
    }
}

/// Checks a container's requests and limits.
pub(super) fn check_container(
    problems: &mut Problems,
    resources: &ResourceRequirements,
    field: &Field,
    spec: &PodSpec,
) {
    check(problems, resources, field, container_resource_name);
    let claims: Vec<&str> = spec.resource_claims.iter().flatten().map(|claim| claim.name.as_str()).collect();
    for (index, claim) in resources.claims.iter().flatten().enumerate() {
        let field = field.child("claims").index(index);
        if claim.name.is_empty() {
            problems.required(&field, "name a claim of spec.resourceClaims");
        } else if !claims.contains(&claim.name.as_str()) {
            problems.not_found(&field, &claim.name, "must be one of the names in spec.resourceClaims");
        }
    }
}

/// Checks a pod's own requests and limits, and that the containers stay within them.
pub(super) fn check_pod(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    let Some(resources) = &spec.resources else { return };
    if resources.claims.is_some() {
        problems.forbidden(&field.child("claims"), "claims may not be set for Resources at pod-level");
    }
    check(problems, resources, field, pod_resource_name);
    let amount = |list: &Option<ResourceList>, name: &str| -> Option<Quantity> {
        Quantity::parse(&list.as_ref()?.get(name)?.0).ok()
    };
    for (name, sum) in crate::defaults::container_requests(spec) {
        if let Some(request) = amount(&resources.requests, &name)
            && sum > request
        {
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            problems.invalid(&field.child("requests").key(&name), request.to_string(), why);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let Some(limits) = container.resources.as_ref().and_then(|resources| resources.limits.as_ref())
        else {
            continue;
        };
        for (name, limit) in limits {
            if let (Ok(limit), Some(most)) = (Quantity::parse(&limit.0), amount(&resources.limits, name))
                && limit > most
            {
                let field = Field::new("spec.containers").index(index).child("resources.limits").key(name);
                let why = format!("must be less than or equal to pod limits of {most}");
                problems.invalid(&field, limit.to_string(), why);
            }
        }
    }
}

/// Checks a list of amounts that has no limits beside it: overhead.
pub(super) fn check_list(problems: &mut Problems, list: &ResourceList, field: &Field) {
    for (name, amount) in list {
        let field = field.key(name);
        check_name(problems, name, &field, container_resource_name);
        check_amount(problems, name, amount, &field);
    }
}

fn check(
    problems: &mut Problems,
    resources: &ResourceRequirements,
    field: &Field,
    name_check: fn(&str) -> Option<String>,
) {
    let (limits_field, requests_field) = (field.child("limits"), field.child("requests"));
    let empty = ResourceList::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    for (name, amount) in limits {
        let field = limits_field.key(name);
        check_name(problems, name, &field, name_check);
        check_amount(problems, name, amount, &field);
    }
    for (name, amount) in requests {
        let field = requests_field.key(name);
        // A request that was taken from its limit has the limit's faults, which were reported above.
        let taken_from_limit = limits.get(name) == Some(amount);
        if taken_from_limit {
            continue;
        }
        check_name(problems, name, &field, name_check);
        let amount = check_amount(problems, name, amount, &field);
        let limit = limits.get(name).and_then(|limit| Quantity::parse(&limit.0).ok());
        match (amount, limit) {
            (Some(amount), Some(limit)) if !may_overcommit(name) && amount != limit => {
                problems.invalid(
                    &field,
                    amount.to_string(),
                    format!("must be equal to {name} limit of {limit}"),
                );
            }
            (Some(amount), Some(limit)) if amount > limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                problems.invalid(&field, amount.to_string(), why);
            }
            (Some(_), None) if !may_overcommit(name) && !limits.contains_key(name) => {
                problems.required(&limits_field, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let mut names = limits.keys().chain(requests.keys());
    let huge = names.clone().any(|name| is_huge_pages(name));
    if huge && !names.any(|name| matches!(name.as_str(), "cpu" | "memory")) {
        problems.forbidden(field, "HugePages require cpu or memory");
    }
}

fn check_name(problems: &mut Problems, name: &str, field: &Field, check: fn(&str) -> Option<String>) {
    problems.check(field, name, check);
}

fn check_amount(
    problems: &mut Problems,
    name: &str,
    amount: &ApiQuantity,
    field: &Field,
) -> Option<Quantity> {
    let parsed = quantity(problems, field, amount)?;
    if parsed.is_negative() {
        problems.invalid(field, &amount.0, "must be greater than or equal to 0");
    } else if is_extended(name) && !parsed.is_whole() {
        problems.invalid(field, &amount.0, "must be an integer");
    } else if let Some(page) = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok())
        && (page.value() <= 0 || !parsed.is_whole() || parsed.value() % page.value() != 0)
    {
        problems.invalid(
            field,
            &amount.0,
            format!("{} is not positive integer multiple of {name}", amount.0),
        );
    }
    Some(parsed)
}

fn container_resource_name(name: &str) -> Option<String> {
    if let Some(why) = names::qualified_name(name) {
        return Some(why);
    }
    if !name.contains('/') {
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_pages(name);
        return (!standard).then(|| {
            "must be a standard resource for containers (cpu, memory, ephemeral-storage, hugepages-<size>) or fully \
             qualified (example.com/name)"
                .to_owned()
        });
    }
    if is_native(name) || is_extended(name) {
        return None;
    }
    Some("doesn't follow extended resource name standard".to_owned())
}

fn pod_resource_name(name: &str) -> Option<String> {
    if matches!(name, "cpu" | "memory") || is_huge_pages(name) {
        return None;
    }
    Some("only cpu, memory and hugepages-<size> can be set for a whole pod".to_owned())
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a name is one of a resource that the node's owner brings: `vendor.com/thing`.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_none()
}

fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}
