//! The pod's resolver configuration.

use std::net::IpAddr;

use k8s_cri::v1::DnsConfig;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};
use mainstay_types::PodExt as _;

use super::pod_description;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH_PATH_CHARS: usize = 253;

/// The node's resolver configuration, as read from `resolvConf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostResolv {
    /// Name servers in order.
    pub nameservers: Vec<String>,
    /// Search paths of the last `search` line, without trailing dots.
    pub searches: Vec<String>,
    /// Options, one per name.
    pub options: Vec<String>,
}

/// What decides a pod's resolver beside the pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct DnsSettings<'a> {
    /// The node's own; `None` when `resolvConf` is empty, which turns lookups off.
    pub host: Option<&'a HostResolv>,
    /// The node's addresses: their families decide which loopback address stands in for an empty `resolvConf`.
    pub node_ips: &'a [String],
    /// `clusterDNS`.
    pub cluster_dns: &'a [String],
    /// `clusterDomain`.
    pub cluster_domain: &'a str,
}

/// Something that people should be told of, as a Warning event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// About whom.
    pub target: NoticeTarget,
    /// The event's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

/// Whom a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeTarget {
    /// The pod.
    Pod,
    /// The node.
    Node,
}

/// The reason of notices that a pod gets the node's resolver instead of the cluster's.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// The pod's resolver configuration, by its `dnsPolicy` and `dnsConfig`, cut to what resolvers can take.
#[must_use]
pub fn dns_config(pod: &Pod, settings: &DnsSettings<'_>) -> (DnsConfig, Vec<Notice>) {
    let mut notices = Vec::new();
    let host = settings.host.cloned().unwrap_or_default();
    let mut config = DnsConfig { servers: host.nameservers, searches: host.searches, options: host.options };
    let cluster_first = match pod.spec_ref().dns_policy.as_deref() {
        Some("None") => {
            config = DnsConfig::default();
            None
        }
        Some("Default") => Some(false),
        None | Some("ClusterFirst") => Some(!pod.host_network()),
        _ => Some(true),
    };
    match cluster_first {
        Some(true) if !settings.cluster_dns.is_empty() => {
            config.servers = settings.cluster_dns.to_vec();
            config.searches = cluster_searches(pod, settings.cluster_domain, config.searches);
            config.options = vec!["ndots:5".to_owned()];
        }
        Some(cluster_wanted) => {
            if cluster_wanted {
                notices.extend(missing_cluster_dns(pod));
            }
            if settings.host.is_none() {
                config.servers = loopback_servers(settings.node_ips);
                config.searches = vec![".".to_owned()];
            }
        }
        None => {}
    }
    if let Some(own) = &pod.spec_ref().dns_config {
        merge(&mut config, own);
    }
    limit_nameservers(&mut config.servers, &mut notices);
    limit_searches(&mut config.searches, &mut notices);
    (config, notices)
}

fn cluster_searches(pod: &Pod, domain: &str, host: Vec<String>) -> Vec<String> {
    if domain.is_empty() {
        return host;
    }
    let mut searches =
        vec![format!("{}.svc.{domain}", pod.namespace_ref()), format!("svc.{domain}"), domain.to_owned()];
    searches.extend(host);
    without_duplicates(searches)
}

fn missing_cluster_dns(pod: &Pod) -> [Notice; 2] {
    let problem = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let about = format!("pod: {:?}. {problem}", pod_description(pod));
    let reason = MISSING_CLUSTER_DNS;
    [
        Notice { target: NoticeTarget::Node, reason, message: problem.to_owned() },
        Notice { target: NoticeTarget::Pod, reason, message: about },
    ]
}

fn loopback_servers(node_ips: &[String]) -> Vec<String> {
    let loopback = |ip: &String| if matches!(ip.parse(), Ok(IpAddr::V6(_))) { "::1" } else { "127.0.0.1" };
    let servers: Vec<String> = node_ips.iter().map(|ip| loopback(ip).to_owned()).collect();
    if servers.is_empty() { vec!["127.0.0.1".to_owned()] } else { servers }
}

fn merge(config: &mut DnsConfig, own: &PodDNSConfig) {
    config.servers.extend(own.nameservers.iter().flatten().cloned());
    config.servers = without_duplicates(std::mem::take(&mut config.servers));
    config.searches.extend(own.searches.iter().flatten().cloned());
    config.searches = without_duplicates(std::mem::take(&mut config.searches));

    let mut options: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: &str| match options.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => value.clone_into(known),
        None => options.push((name.to_owned(), value.to_owned())),
    };
    for option in &config.options {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        set(name, value);
    }
    for option in own.options.iter().flatten() {
        set(option.name.as_deref().unwrap_or_default(), option.value.as_deref().unwrap_or_default());
    }
    config.options = options
        .into_iter()
        .map(|(name, value)| if value.is_empty() { name } else { format!("{name}:{value}") })
        .collect();
}

fn limit_nameservers(servers: &mut Vec<String>, notices: &mut Vec<Notice>) {
    if servers.len() > MAX_NAMESERVERS {
        servers.truncate(MAX_NAMESERVERS);
        notices.push(forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            servers.join(" ")
        )));
    }
}

fn limit_searches(searches: &mut Vec<String>, notices: &mut Vec<Notice>) {
    let asked = searches.len();
    searches.truncate(MAX_SEARCH_PATHS);
    // Some resolvers abort on a longer path.
    searches.retain(|search| search.len() <= MAX_SEARCH_PATH_CHARS);
    while searches.iter().map(|search| search.len() + 1).sum::<usize>() > MAX_SEARCH_CHARS + 1 {
        searches.pop();
    }
    if searches.len() < asked {
        notices.push(forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            searches.join(" ")
        )));
    }
}

fn forming(message: String) -> Notice {
    Notice { target: NoticeTarget::Pod, reason: "DNSConfigForming", message }
}

fn without_duplicates(list: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    list.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests;
