use super::super::fixtures::{pod, pod_of};
use super::*;

fn config(pod: &Pod) -> Result<PodSandboxConfig, SpecError> {
    config_on(pod, &NodeSettings { cluster_domain: "cluster.local".to_owned(), ..NodeSettings::default() })
}

fn config_on(pod: &Pod, node: &NodeSettings) -> Result<PodSandboxConfig, SpecError> {
    let context = SandboxContext {
        node,
        attempt: 3,
        cgroup_parent: "/kubepods/besteffort/poduid",
        dns: DnsConfig { servers: vec!["1.1.1.1".to_owned()], ..DnsConfig::default() },
        extra_groups: &[555, 777],
        user_namespace: None,
        exclusive_cpus: false,
    };
    sandbox_config(pod, &context)
}

#[test]
fn whom_it_belongs_to() {
    let mut pod = pod_of("");
    pod.metadata.labels =
        Some([("app", "x"), (labels::POD_NAME, "a lie")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    pod.metadata.annotations = Some([("note".to_owned(), "n".to_owned())].into());
    let config = config(&pod).unwrap();
    let metadata = config.metadata.unwrap();
    assert_eq!(
        (metadata.name.as_str(), metadata.namespace.as_str(), metadata.uid.as_str(), metadata.attempt),
        ("web", "default", "uid", 3)
    );
    let mut labels: Vec<(String, String)> = config.labels.into_iter().collect();
    labels.sort();
    assert_eq!(
        labels,
        [
            ("app", "x"),
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "uid"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
    assert_eq!(config.annotations, HashMap::from([("note".to_owned(), "n".to_owned())]));
    assert_eq!(config.log_directory, "/var/log/pods/default_web_uid");
    assert_eq!(config.dns_config.unwrap().servers, ["1.1.1.1"]);
    assert_eq!(config.linux.unwrap().cgroup_parent, "/kubepods/besteffort/poduid");
}

#[test]
fn host_names() {
    let hostname =
        |spec: &str| config(&pod(spec)).map(|config| config.hostname).map_err(|error| error.to_string());
    assert_eq!(hostname("{containers: []}").unwrap(), "web");
    assert_eq!(hostname("{hostNetwork: true, hostname: h, containers: []}").unwrap(), "");
    assert_eq!(hostname("{hostname: h, subdomain: s, containers: []}").unwrap(), "h");
    assert_eq!(
        hostname("{hostname: h, subdomain: s, setHostnameAsFQDN: true, containers: []}").unwrap(),
        "h.s.default.svc.cluster.local"
    );
    let long = "a".repeat(60);
    assert_eq!(
        hostname(&format!("{{hostname: {long}, subdomain: s, setHostnameAsFQDN: true, containers: []}}"))
            .unwrap_err(),
        format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {long}.s.default.svc.cluster.local is too long (64 characters is the max, 88 characters requested)"
        )
    );
}

#[test]
fn ports() {
    let pod = pod(
        "{containers: [
            {name: a, ports: [{containerPort: 80, name: http}, {containerPort: 81, name: http}, {containerPort: 53, protocol: UDP, hostPort: 5353, hostIP: 10.0.0.1},
                              {containerPort: 53, protocol: UDP, hostPort: 5353, hostIP: 10.0.0.1}, {containerPort: 53, protocol: UDP, hostPort: 5353, hostIP: '::1'}]},
            {name: b, ports: [{containerPort: 80, name: http, protocol: SCTP}]}],
          initContainers: [{name: i, ports: [{containerPort: 1}]}]}",
    );
    let ports = config(&pod).unwrap().port_mappings;
    let ports: Vec<_> = ports
        .iter()
        .map(|port| (port.protocol, port.container_port, port.host_port, port.host_ip.as_str()))
        .collect();
    assert_eq!(
        ports,
        [(0, 80, 0, ""), (1, 53, 5353, "10.0.0.1"), (1, 53, 5353, "::1"), (2, 80, 0, "")],
        "the second http and the repeated UDP port are dropped, per container"
    );
}

#[test]
fn security_of_a_plain_pod() {
    let security = config(&pod_of("")).unwrap().linux.unwrap().security_context.unwrap();
    assert_eq!(security.namespace_options, None, "nothing is said without a security context, as upstream");
    assert_eq!(security.seccomp.unwrap().profile_type, 0);
    assert!(!security.privileged);
}

#[test]
fn security_of_a_demanding_pod() {
    let pod = pod(
        "{hostIPC: true, shareProcessNamespace: true,
          containers: [{name: c}], ephemeralContainers: [{name: e, securityContext: {privileged: true}}],
          securityContext: {runAsUser: 7, runAsGroup: 8, fsGroup: 9, supplementalGroups: [10, 11], supplementalGroupsPolicy: Strict,
            seLinuxOptions: {level: s0, type: t}, seccompProfile: {type: Unconfined},
            sysctls: [{name: net/ipv4/conf/eno2.100/rp_filter, value: '1'}, {name: kernel.sem, value: '2'}]}}",
    );
    let linux = config(&pod).unwrap().linux.unwrap();
    let security = linux.security_context.unwrap();
    assert!(security.privileged);
    assert_eq!((security.run_as_user.unwrap().value, security.run_as_group.unwrap().value), (7, 8));
    assert_eq!(security.supplemental_groups, [9, 555, 777, 10, 11]);
    assert_eq!(security.supplemental_groups_policy, 1);
    assert_eq!(security.seccomp.unwrap().profile_type, 0);
    let selinux = security.selinux_options.unwrap();
    assert_eq!((selinux.level.as_str(), selinux.r#type.as_str(), selinux.user.as_str()), ("s0", "t", ""));
    let namespaces = security.namespace_options.unwrap();
    assert_eq!((namespaces.network, namespaces.pid, namespaces.ipc), (0, 0, 2));
    assert_eq!(namespaces.userns_options.unwrap().mode, 2);
    assert_eq!(
        linux.sysctls,
        [("net.ipv4.conf.eno2/100.rp_filter", "1"), ("kernel.sem", "2")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into()
    );
}

#[test]
fn what_cannot_be() {
    let error = |spec: &str| config(&pod(spec)).unwrap_err().to_string();
    assert_eq!(
        error("{hostUsers: false, securityContext: {}, containers: []}"),
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    );
    assert_eq!(
        error("{securityContext: {supplementalGroupsPolicy: Loose}, containers: []}"),
        "unsupported supplementalGroupsPolicy: Loose"
    );
}

#[test]
fn sysctl_names() {
    for (name, expected) in [
        ("kernel.shm_rmid_forced", "kernel.shm_rmid_forced"),
        ("kernel/shm_rmid_forced", "kernel.shm_rmid_forced"),
        ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("user", "user"),
        ("", ""),
    ] {
        assert_eq!(normal_sysctl_name(name), expected, "{name}");
    }
}
