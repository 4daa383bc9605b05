use super::super::fixtures::{pod, pod_of};
use super::*;

#[track_caller]
fn names(spec: &str) -> Result<(String, String), String> {
    hostname_and_domain(&pod(&format!("{{{spec} containers: []}}")), "cluster.local")
        .map_err(|error| error.to_string())
}

#[test]
fn names_and_domains() {
    let long = "a".repeat(62);
    for (spec, hostname, domain) in [
        ("", "web", ""),
        ("hostname: '',", "web", ""),
        ("hostname: h,", "h", ""),
        ("hostname: h, subdomain: s,", "h", "s.default.svc.cluster.local"),
        ("subdomain: s,", "web", "s.default.svc.cluster.local"),
        ("hostnameOverride: a.b.c, hostname: h, subdomain: s,", "a.b.c", ""),
        (&format!("hostnameOverride: {long}.b.c,"), &long, ""),
    ] {
        assert_eq!(names(spec), Ok((hostname.to_owned(), domain.to_owned())), "{spec}");
    }
}

#[test]
fn long_pod_names_are_cut() {
    let mut pod = pod_of("");
    pod.metadata.name = Some(format!("{}-.-{}", "n".repeat(60), "x".repeat(100)));
    assert_eq!(hostname_and_domain(&pod, "").unwrap().0, "n".repeat(60));
    pod.metadata.name = Some("-".repeat(80));
    let name = "-".repeat(80);
    assert_eq!(
        hostname_and_domain(&pod, "").unwrap_err().to_string(),
        format!("hostname for pod {name:?} was invalid: {name:?}")
    );
}

#[test]
fn bad_names() {
    for (spec, message) in [
        ("hostname: a.b,", "pod Hostname \"a.b\" is not a valid DNS label: must not contain dots"),
        (
            "hostname: A,",
            "pod Hostname \"A\" is not a valid DNS label: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        (
            "subdomain: -a,",
            "pod Subdomain \"-a\" is not a valid DNS label: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        (
            "hostnameOverride: a..b,",
            "pod HostnameOverride \"a..b\" is not a valid DNS subdomain: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
    ] {
        assert_eq!(names(spec), Err(message.to_owned()), "{spec}");
    }
    let long = "a".repeat(64);
    assert_eq!(
        names(&format!("hostname: {long},")),
        Err(format!("pod Hostname {long:?} is not a valid DNS label: must be no more than 63 characters"))
    );
}

const HEADER: &str = "# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

#[test]
fn hosts_files() {
    let ips = ["10.1.2.3".to_owned(), "fd00::3".to_owned()];
    let plain = pod_of("");
    assert_eq!(hosts_file(&plain, "web", "", &[], None), HEADER);
    assert_eq!(hosts_file(&plain, "web", "", &ips, None), format!("{HEADER}10.1.2.3\tweb\nfd00::3\tweb\n"));
    assert_eq!(
        hosts_file(&plain, "web", "s.ns.svc.d", &ips[..1], None),
        format!("{HEADER}10.1.2.3\tweb.s.ns.svc.d\tweb\n")
    );
    let aliased = pod(
        "{hostAliases: [{ip: 1.2.3.4, hostnames: [a, b.c]}, {ip: 1.2.3.5, hostnames: [d]}], containers: []}",
    );
    assert_eq!(
        hosts_file(&aliased, "web", "", &ips[..1], None),
        format!("{HEADER}10.1.2.3\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb.c\n1.2.3.5\td\n")
    );
    assert_eq!(
        hosts_file(&aliased, "web", "", &ips, Some("127.0.0.1 localhost\n# mine\n")),
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n# mine\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb.c\n1.2.3.5\td\n"
    );
}
