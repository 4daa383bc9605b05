use super::super::fixtures::pod;
use super::*;

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn host() -> HostResolv {
    HostResolv {
        nameservers: strings(&["9.9.9.9", "8.8.8.8"]),
        searches: strings(&["example.com", "cluster.local"]),
        options: strings(&["ndots:2", "rotate"]),
    }
}

/// `servers | searches | options`, and the notices.
#[track_caller]
fn check(spec: &str, settings: &DnsSettings<'_>, expected: &str, reasons: &[&str]) -> Vec<Notice> {
    let (config, notices) = dns_config(&pod(&format!("{{{spec}, containers: []}}")), settings);
    let shown = format!(
        "{} | {} | {}",
        config.servers.join(" "),
        config.searches.join(" "),
        config.options.join(" ")
    );
    assert_eq!(shown, expected, "{spec}");
    assert_eq!(notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), reasons, "{spec}");
    notices
}

#[test]
fn policies() {
    let (host, cluster_dns) = (host(), strings(&["10.96.0.10"]));
    let settings = DnsSettings {
        host: Some(&host),
        node_ips: &[],
        cluster_dns: &cluster_dns,
        cluster_domain: "cluster.local",
    };
    let of_host = "9.9.9.9 8.8.8.8 | example.com cluster.local | ndots:2 rotate";
    let of_cluster =
        "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local example.com | ndots:5";
    for (spec, expected) in [
        ("dnsPolicy: Default", of_host),
        ("dnsPolicy: ClusterFirst", of_cluster),
        ("dnsPolicy: ClusterFirst, hostNetwork: true", of_host),
        ("dnsPolicy: ClusterFirstWithHostNet, hostNetwork: true", of_cluster),
        ("dnsPolicy: ClusterFirstWithHostNet", of_cluster),
        ("dnsPolicy: None", " |  | "),
        (
            "dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1], searches: [a, a], options: [{name: edns0}, {name: ndots, value: '3'}]}",
            "1.1.1.1 | a | edns0 ndots:3",
        ),
        ("hostname: h", of_cluster),
    ] {
        check(spec, &settings, expected, &[]);
    }
    // Without a domain only the servers change.
    let settings = DnsSettings { cluster_domain: "", ..settings };
    check("dnsPolicy: ClusterFirst", &settings, "10.96.0.10 | example.com cluster.local | ndots:5", &[]);
}

#[test]
fn own_configuration_is_merged() {
    let (host, cluster_dns) = (host(), strings(&["10.96.0.10"]));
    let settings =
        DnsSettings { host: Some(&host), node_ips: &[], cluster_dns: &cluster_dns, cluster_domain: "d" };
    check(
        "dnsPolicy: ClusterFirst, dnsConfig: {nameservers: [10.96.0.10, 1.1.1.1], searches: [mine, d], options: [{name: ndots, value: '1'}, {name: debug}]}",
        &settings,
        "10.96.0.10 1.1.1.1 | default.svc.d svc.d d example.com cluster.local mine | ndots:1 debug",
        &[],
    );
    check(
        "dnsPolicy: Default, dnsConfig: {options: [{name: ndots}]}",
        &settings,
        "9.9.9.9 8.8.8.8 | example.com cluster.local | ndots rotate",
        &[],
    );
}

#[test]
fn cluster_first_without_cluster_dns() {
    let host = host();
    let settings = DnsSettings { host: Some(&host), cluster_domain: "d", ..DnsSettings::default() };
    let notices = check(
        "dnsPolicy: ClusterFirst",
        &settings,
        "9.9.9.9 8.8.8.8 | example.com cluster.local | ndots:2 rotate",
        &["MissingClusterDNS", "MissingClusterDNS"],
    );
    let problem = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    assert_eq!((notices[0].target, notices[0].message.as_str()), (NoticeTarget::Node, problem));
    assert_eq!(notices[1].target, NoticeTarget::Pod);
    assert_eq!(notices[1].message, format!("pod: \"web_default(uid)\". {problem}"));
}

#[test]
fn empty_resolv_conf() {
    let node_ips = strings(&["10.0.0.1", "fd00::1"]);
    let settings = DnsSettings::default();
    check("dnsPolicy: Default", &settings, "127.0.0.1 | . | ", &[]);
    check(
        "dnsPolicy: Default",
        &DnsSettings { node_ips: &node_ips, ..settings },
        "127.0.0.1 ::1 | . | ",
        &[],
    );
    let cluster_dns = strings(&["10.96.0.10"]);
    let settings = DnsSettings { cluster_dns: &cluster_dns, cluster_domain: "d", ..settings };
    check("dnsPolicy: ClusterFirst", &settings, "10.96.0.10 | default.svc.d svc.d d | ndots:5", &[]);
}

#[test]
fn limits() {
    let host = HostResolv {
        nameservers: strings(&["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]),
        ..HostResolv::default()
    };
    let settings = DnsSettings { host: Some(&host), ..DnsSettings::default() };
    let notices =
        check("dnsPolicy: Default", &settings, "1.1.1.1 2.2.2.2 3.3.3.3 |  | ", &["DNSConfigForming"]);
    assert_eq!(
        notices[0].message,
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3"
    );

    let searches = |all: Vec<String>| {
        let host = HostResolv { searches: all, ..HostResolv::default() };
        let settings = DnsSettings { host: Some(&host), ..DnsSettings::default() };
        let (config, notices) = dns_config(&pod("{dnsPolicy: Default, containers: []}"), &settings);
        (config.searches, notices)
    };
    let many: Vec<String> = (0..33).map(|i| format!("s{i}")).collect();
    let (kept, notices) = searches(many.clone());
    assert_eq!(kept, many[..32]);
    assert_eq!(
        notices[0].message,
        format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            many[..32].join(" ")
        )
    );
    assert!(searches(many[..32].to_vec()).1.is_empty());

    let (kept, notices) = searches(vec!["a".to_owned(), "b".repeat(254), "c".repeat(253)]);
    assert_eq!(kept, ["a".to_owned(), "c".repeat(253)]);
    assert_eq!(notices.len(), 1);

    // Eight of 253 with spaces between are 2031 characters; sixteen more fit, seventeen do not.
    let mut line = vec!["x".repeat(253); 8];
    line.push("y".repeat(16));
    assert_eq!(searches(line.clone()), (line.clone(), vec![]));
    line[8].push('y');
    assert_eq!(searches(line.clone()).0, line[..8]);
}
