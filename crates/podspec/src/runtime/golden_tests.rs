//! Our configurations against those that upstream's kubelet gave to a real runtime for the same pods.

use k8s_cri::v1::{
    ContainerConfig, DnsConfig, LinuxContainerResources, Mount, NamespaceOption, PodSandboxConfig,
    SecurityProfile,
};
use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{Objects, PodExt as _, Quantity};
use serde_json::{Value, json};

use super::*;

/// What the machine was on which upstream ran.
fn node() -> NodeSettings {
    NodeSettings {
        root_dir: "/NODE/root".into(),
        pod_logs_dir: "/NODE/logs".into(),
        allocatable: [("cpu", "2"), ("memory", "24684100Ki")]
            .map(|(name, amount)| (name.to_owned(), Quantity::parse(amount).unwrap()))
            .into(),
        memory_capacity: 25_276_518_400,
        cgroup_v2: false,
        swap: SwapSettings { controller: true, ..SwapSettings::default() },
        huge_page_sizes: vec!["2MB".to_owned(), "1GB".to_owned()],
        ..NodeSettings::default()
    }
}

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/upstream.json")).unwrap()
}

fn pods() -> Vec<(Pod, String)> {
    let golden = golden();
    let pods = golden["pods"].as_array().unwrap().iter();
    pods.map(|entry| {
        let pod = serde_json::from_value(entry["pod"].clone()).unwrap();
        (pod, entry["qosClass"].as_str().unwrap().to_owned())
    })
    .collect()
}

fn pod_with_uid(uid: &Value) -> Pod {
    pods().into_iter().map(|(pod, _)| pod).find(|pod| pod.uid_ref() == uid.as_str().unwrap()).unwrap()
}

#[test]
fn qos_classes() {
    let pods = pods();
    assert_eq!(pods.len(), 10);
    for (pod, expected) in pods {
        assert_eq!(qos_class(&pod).as_str(), expected, "{}", pod.name_ref());
    }
}

#[test]
fn sandboxes() {
    let golden = golden();
    let expected = golden["sandboxes"].as_array().unwrap();
    assert_eq!(expected.len(), 4);
    let node = node();
    for expected in expected {
        let pod = pod_with_uid(&expected["metadata"]["uid"]);
        let host = HostResolv { nameservers: vec!["10.255.255.53".to_owned()], ..HostResolv::default() };
        let (dns, _) = dns_config(&pod, &DnsSettings { host: Some(&host), ..DnsSettings::default() });
        let parent = match qos_class(&pod) {
            QosClass::Guaranteed => format!("/NODE/kubepods/pod{}", pod.uid_ref()),
            class => format!("/NODE/kubepods/{}/pod{}", class.as_str().to_lowercase(), pod.uid_ref()),
        };
        let context = SandboxContext {
            node: &node,
            attempt: 0,
            cgroup_parent: &parent,
            dns,
            extra_groups: &[],
            user_namespace: None,
            exclusive_cpus: false,
        };
        let config = sandbox_config(&pod, &context).unwrap();
        assert_eq!(compact(sandbox_json(&config)), compact(expected.clone()), "{}", pod.name_ref());
    }
}

#[test]
fn containers() {
    let golden = golden();
    let expected = golden["containers"].as_array().unwrap();
    assert_eq!(expected.len(), 7);
    let (node, objects, grants) = (node(), Objects::default(), DeviceGrants::default());
    for expected in expected {
        let pod = pod_with_uid(&expected["labels"]["io.kubernetes.pod.uid"]);
        let name = expected["metadata"]["name"].as_str().unwrap();
        let (kind, container) = pod.container(name).unwrap();
        let context = ContainerContext {
            node: &node,
            restart_count: 0,
            image_ref: expected["image"]["image"].as_str().unwrap(),
            image_user: None,
            pod_ips: &["10.1.2.3".to_owned()],
            mounts: expected["mounts"].as_array().unwrap().iter().map(mount).collect(),
            objects: &objects,
            env_files: &EnvFiles::new(),
            grants: &grants,
            extra_groups: &[],
            user_namespace: None,
            target_container: None,
            exclusive_cpus: false,
        };
        let config = container_config(&pod, container, kind, &context).unwrap();
        assert_eq!(compact(container_json(&config)), compact(expected.clone()), "{} {name}", pod.name_ref());
        // Too new a field for the runtime that showed the rest.
        assert_eq!(config.image.unwrap().user_specified_image, "docker.io/local/busybox:1");
    }
}

fn mount(json: &Value) -> Mount {
    let text = |key: &str| json[key].as_str().unwrap().to_owned();
    Mount {
        container_path: text("container_path"),
        host_path: text("host_path"),
        readonly: json["readonly"] == true,
        ..Mount::default()
    }
}

/// Go leaves fields out that have their zero value; so do we before comparing. Messages that are there stay, even empty.
fn compact(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, compact(value)))
            .filter(|(_, value)| !matches!(value, Value::Null) && *value != json!(0) && *value != json!(""))
            .filter(|(_, value)| *value != json!(false) && *value != json!([]))
            .filter(|(key, value)| {
                *value != json!({}) || matches!(key.as_str(), "overhead" | "run_as_user" | "seccomp")
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(compact).collect(),
        other => other,
    }
}

fn sandbox_json(config: &PodSandboxConfig) -> Value {
    let metadata = config.metadata.as_ref().unwrap();
    let linux = config.linux.as_ref().unwrap();
    let security = linux.security_context.as_ref().unwrap();
    let DnsConfig { servers, searches, options } = config.dns_config.as_ref().unwrap();
    json!({
        "metadata": {
            "name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid, "attempt": metadata.attempt,
        },
        "hostname": config.hostname,
        "log_directory": config.log_directory,
        "dns_config": {"servers": servers, "searches": searches, "options": options},
        "port_mappings": config.port_mappings.iter().map(|port| json!({
            "protocol": port.protocol, "container_port": port.container_port,
            "host_port": port.host_port, "host_ip": port.host_ip,
        })).collect::<Vec<_>>(),
        "labels": config.labels,
        "annotations": config.annotations,
        "linux": {
            "cgroup_parent": linux.cgroup_parent,
            "sysctls": linux.sysctls,
            "overhead": linux.overhead.as_ref().map(resources_json),
            "resources": linux.resources.as_ref().map(resources_json),
            "security_context": {
                "privileged": security.privileged,
                "namespace_options": security.namespace_options.as_ref().map(namespaces_json),
                "run_as_user": security.run_as_user.as_ref().map(|user| json!({"value": user.value})),
                "supplemental_groups": security.supplemental_groups,
                "supplemental_groups_policy": security.supplemental_groups_policy,
                "seccomp": security.seccomp.as_ref().map(profile_json),
            },
        },
    })
}

fn container_json(config: &ContainerConfig) -> Value {
    let metadata = config.metadata.as_ref().unwrap();
    let linux = config.linux.as_ref().unwrap();
    let security = linux.security_context.as_ref().unwrap();
    json!({
        "metadata": {"name": metadata.name, "attempt": metadata.attempt},
        "image": {"image": config.image.as_ref().unwrap().image},
        "command": config.command,
        "args": config.args,
        "working_dir": config.working_dir,
        "envs": config.envs.iter().map(|env| json!({"key": env.key, "value": env.value})).collect::<Vec<_>>(),
        "mounts": config.mounts.iter().map(|mount| json!({
            "container_path": mount.container_path, "host_path": mount.host_path, "readonly": mount.readonly,
            "propagation": mount.propagation, "uid_mappings": mount.uid_mappings.len(),
        })).collect::<Vec<_>>(),
        "devices": config.devices.len(),
        "labels": config.labels,
        "annotations": config.annotations,
        "log_path": config.log_path,
        "stdin": config.stdin,
        "tty": config.tty,
        "linux": {
            "resources": linux.resources.as_ref().map(resources_json),
            "security_context": {
                "privileged": security.privileged,
                "capabilities": security.capabilities.as_ref().map(|_| "set"),
                "namespace_options": security.namespace_options.as_ref().map(namespaces_json),
                "run_as_user": security.run_as_user.as_ref().map(|user| json!({"value": user.value})),
                "run_as_username": security.run_as_username,
                "readonly_rootfs": security.readonly_rootfs,
                "supplemental_groups": security.supplemental_groups,
                "supplemental_groups_policy": security.supplemental_groups_policy,
                "no_new_privs": security.no_new_privs,
                "masked_paths": security.masked_paths,
                "readonly_paths": security.readonly_paths,
                "seccomp": security.seccomp.as_ref().map(profile_json),
                "apparmor": security.apparmor.as_ref().map(profile_json),
            },
        },
    })
}

fn resources_json(resources: &LinuxContainerResources) -> Value {
    json!({
        "cpu_period": resources.cpu_period,
        "cpu_quota": resources.cpu_quota,
        "cpu_shares": resources.cpu_shares,
        "memory_limit_in_bytes": resources.memory_limit_in_bytes,
        "oom_score_adj": resources.oom_score_adj,
        "cpuset_cpus": resources.cpuset_cpus,
        "cpuset_mems": resources.cpuset_mems,
        "hugepage_limits": resources.hugepage_limits.iter()
            .map(|limit| json!({"page_size": limit.page_size, "limit": limit.limit})).collect::<Vec<_>>(),
        "unified": resources.unified,
        "memory_swap_limit_in_bytes": resources.memory_swap_limit_in_bytes,
    })
}

fn namespaces_json(options: &NamespaceOption) -> Value {
    json!({
        "network": options.network,
        "pid": options.pid,
        "ipc": options.ipc,
        "target_id": options.target_id,
        "userns_options": options.userns_options.as_ref().map(|userns| json!({
            "mode": userns.mode, "uids": userns.uids.len(), "gids": userns.gids.len(),
        })),
    })
}

fn profile_json(profile: &SecurityProfile) -> Value {
    json!({"profile_type": profile.profile_type, "localhost_ref": profile.localhost_ref})
}
