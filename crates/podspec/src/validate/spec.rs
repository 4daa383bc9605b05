//! The pod as a whole, and the fields of its spec that are neither containers nor volumes.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{Field, Problem, Problems, containers, metadata, names, placement, resources, security, volumes};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCHES_MAX_CHARS: usize = 2048;

/// Checks a defaulted pod that has its final name. An empty answer means that it can run.
#[must_use]
pub fn validate_pod(pod: &Pod) -> Vec<Problem> {
    let mut problems = Problems::default();
    metadata::check(&mut problems, &pod.metadata, true);
    let field = Field::new("spec");
    match &pod.spec {
        None => problems.required(&field, "a pod must have a spec with at least one container"),
        Some(spec) => check(&mut problems, spec, &field),
    }
    problems.0
}

fn check(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    let volumes =
        volumes::check(problems, spec.volumes.as_deref().unwrap_or_default(), &field.child("volumes"));
    containers::check(problems, spec, &volumes, field);
    resources::check_pod(problems, spec, &field.child("resources"));
    if let Some(overhead) = &spec.overhead {
        resources::check_list(problems, overhead, &field.child("overhead"));
    }

    let restart_policies = &["Always", "OnFailure", "Never"];
    problems.one_of(&field.child("restartPolicy"), spec.restart_policy.as_ref(), restart_policies);
    let dns_policies = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    problems.one_of(&field.child("dnsPolicy"), spec.dns_policy.as_ref(), dns_policies);
    let preemption_policies = &["PreemptLowerPriority", "Never"];
    problems.one_of(&field.child("preemptionPolicy"), spec.preemption_policy.as_ref(), preemption_policies);
    problems
        .non_negative(&field.child("terminationGracePeriodSeconds"), spec.termination_grace_period_seconds);
    if let Some(seconds) = spec.active_deadline_seconds {
        problems.in_range(&field.child("activeDeadlineSeconds"), seconds, 1, i64::from(i32::MAX));
    }

    if let Some(context) = &spec.security_context {
        security::check_pod(problems, context, spec, &field.child("securityContext"));
    }
    check_namespaces(problems, spec, field);
    check_dns(problems, spec, &field.child("dnsConfig"));
    check_hostname(problems, spec, field);
    placement::check_node_choice(problems, spec, field);
    placement::check_tolerations(
        problems,
        spec.tolerations.as_deref().unwrap_or_default(),
        &field.child("tolerations"),
    );
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let field = field.child("hostAliases").index(index);
        problems.check(&field.child("ip"), &alias.ip, names::ip_address);
        for (place, name) in alias.hostnames.iter().flatten().enumerate() {
            problems.check(&field.child("hostnames").index(place), name, names::dns_subdomain);
        }
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let field = field.child("readinessGates").index(index).child("conditionType");
        problems.check(&field, &gate.condition_type, names::qualified_name);
    }
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let field = field.child("imagePullSecrets").index(index).child("name");
        if secret.name.is_empty() {
            problems.required(&field, "name a secret");
        } else {
            problems.check(&field, &secret.name, names::dns_subdomain);
        }
    }
    let account = spec.service_account_name.as_ref();
    problems.check_filled(&field.child("serviceAccountName"), account, names::dns_subdomain);
    problems.check_filled(&field.child("nodeName"), spec.node_name.as_ref(), names::dns_subdomain);
    problems.check_filled(
        &field.child("priorityClassName"),
        spec.priority_class_name.as_ref(),
        names::dns_subdomain,
    );
    if let Some(class) = &spec.runtime_class_name {
        problems.check(&field.child("runtimeClassName"), class, names::dns_subdomain);
    }
    if let Some(os) = &spec.os
        && os.name != "linux"
    {
        problems.unsupported(&field.child("os.name"), &os.name, &["linux"]);
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        problems.forbidden(&field.child("ephemeralContainers"), "cannot be set on create; remove them");
    }
    if spec.node_name.is_some() && spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        let why = "a pod on a node may have none; remove them";
        problems.forbidden(&field.child("schedulingGates"), why);
    }
}

fn check_namespaces(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        problems.invalid(&field.child("shareProcessNamespace"), true, why);
    }
    if spec.host_users == Some(false) {
        let host =
            [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
        for (name, _) in host.into_iter().filter(|(_, on)| *on == Some(true)) {
            problems.forbidden(&field.child(name), "when `hostUsers` is false");
        }
    }
}

fn check_hostname(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    problems.check_filled(&field.child("hostname"), spec.hostname.as_ref(), names::dns_label);
    problems.check_filled(&field.child("subdomain"), spec.subdomain.as_ref(), names::dns_label);
    let Some(name) = &spec.hostname_override else { return };
    let field = field.child("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        problems.forbidden(&field, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        problems.forbidden(&field, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        problems.too_long(&field, 64);
    }
    problems.check(&field, name, names::dns_subdomain);
}

fn check_dns(problems: &mut Problems, spec: &PodSpec, field: &Field) {
    let none = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if none {
            problems.required(field, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let servers_field = field.child("nameservers");
    if none && servers.is_empty() {
        problems
            .required(&servers_field, "must provide at least one DNS nameserver when `dnsPolicy` is None");
    }
    if servers.len() > NAMESERVERS_MAX {
        let why = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        problems.invalid(&servers_field, servers, why);
    }
    for (index, server) in servers.iter().enumerate() {
        problems.check(&servers_field.index(index), server, names::ip_address);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let searches_field = field.child("searches");
    if searches.len() > SEARCHES_MAX {
        problems.invalid(
            &searches_field,
            searches,
            format!("must not have more than {SEARCHES_MAX} search paths"),
        );
    }
    if searches.join(" ").len() > SEARCHES_MAX_CHARS {
        let why = format!(
            "must not have more than {SEARCHES_MAX_CHARS} characters (including spaces) in the search list"
        );
        problems.invalid(&searches_field, searches, why);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| search.as_str() != ".") {
        let name = search.strip_suffix('.').unwrap_or(search);
        problems.check(&searches_field.index(index), name, names::dns_subdomain_with_underscore);
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().is_none_or(str::is_empty) {
            problems.required(&field.child("options").index(index), "must not be empty");
        }
    }
}
