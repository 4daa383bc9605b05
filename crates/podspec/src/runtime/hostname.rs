//! Host names and the hosts file.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::PodExt as _;

use super::SpecError;

/// The kernel holds 64 bytes with the terminating zero.
const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The pod's short host name and its domain, which is empty unless `subdomain` is set.
///
/// # Errors
/// When one of the names in the spec is not one that DNS allows.
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> Result<(String, String), SpecError> {
    let spec = pod.spec_ref();
    if let Some(name) = &spec.hostname_override {
        check("HostnameOverride", name, "subdomain", subdomain_problems(name))?;
        return Ok((truncated(pod, name)?, String::new()));
    }
    let hostname = match spec.hostname.as_deref() {
        None | Some("") => pod.name_ref(),
        Some(name) => {
            check("Hostname", name, "label", label_problems(name))?;
            name
        }
    };
    let hostname = truncated(pod, hostname)?;
    let domain = match spec.subdomain.as_deref() {
        None | Some("") => String::new(),
        Some(name) => {
            check("Subdomain", name, "label", label_problems(name))?;
            format!("{name}.{}.svc.{cluster_domain}", pod.namespace_ref())
        }
    };
    Ok((hostname, domain))
}

/// The name that the kernel is told: with the domain when `setHostnameAsFQDN` is set.
///
/// # Errors
/// When that is longer than the kernel can hold.
pub fn kernel_hostname(pod: &Pod, hostname: &str, domain: &str) -> Result<String, SpecError> {
    if domain.is_empty() || pod.spec_ref().set_hostname_as_fqdn != Some(true) {
        return Ok(hostname.to_owned());
    }
    let fqdn = format!("{hostname}.{domain}");
    let length = fqdn.len();
    if length > FQDN_MAX { Err(SpecError::FqdnTooLong { fqdn, length }) } else { Ok(fqdn) }
}

/// The text of the pod's hosts file. `host_network_file` is the node's own file, given for pods on the host's network.
#[must_use]
pub fn hosts_file(
    pod: &Pod,
    hostname: &str,
    domain: &str,
    pod_ips: &[String],
    host_network_file: Option<&str>,
) -> String {
    let mut text = String::new();
    if let Some(file) = host_network_file {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(file);
    } else {
        text.push_str(concat!(
            "# Kubernetes-managed hosts file.\n",
            "127.0.0.1\tlocalhost\n",
            "::1\tlocalhost ip6-localhost ip6-loopback\n",
            "fe00::0\tip6-localnet\n",
            "fe00::0\tip6-mcastprefix\n",
            "fe00::1\tip6-allnodes\n",
            "fe00::2\tip6-allrouters\n",
        ));
        for ip in pod_ips {
            // Writing to a String does not fail.
            _ = if domain.is_empty() {
                writeln!(text, "{ip}\t{hostname}")
            } else {
                writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}")
            };
        }
    }
    if let Some(aliases) = pod.spec_ref().host_aliases.as_ref().filter(|aliases| !aliases.is_empty()) {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            _ = writeln!(text, "{}\t{names}", alias.ip);
        }
    }
    text
}

fn truncated(pod: &Pod, hostname: &str) -> Result<String, SpecError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_owned());
    }
    let mut end = HOSTNAME_MAX;
    while !hostname.is_char_boundary(end) {
        end -= 1;
    }
    let cut = hostname.get(..end).unwrap_or_default().trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(SpecError::HostNameEmpty {
            pod: pod.name_ref().to_owned(),
            hostname: hostname.to_owned(),
        });
    }
    Ok(cut.to_owned())
}

fn check(
    field: &'static str,
    value: &str,
    form: &'static str,
    problems: Vec<String>,
) -> Result<(), SpecError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(SpecError::HostName { field, value: value.to_owned(), form, why: problems.join(";") })
}

fn label_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !is_label(value) {
        let dotted = value.split('.').all(is_label);
        problems.push(if dotted { "must not contain dots" } else { LABEL_RULE }.to_owned());
    }
    problems
}

fn subdomain_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    if !value.split('.').all(is_label) {
        problems.push(SUBDOMAIN_RULE.to_owned());
    }
    problems
}

/// The form of a DNS-1123 label, whatever its length.
fn is_label(value: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !value.is_empty()
        && value.starts_with(allowed)
        && value.ends_with(allowed)
        && value.chars().all(|c| allowed(c) || c == '-')
}

#[cfg(test)]
mod tests;
