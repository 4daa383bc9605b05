use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};

use super::*;
use crate::defaults::{default_config_map, default_pod, default_secret};

fn base() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "busybox:1"}]},
    })
}

/// Lays `change` over `onto`: objects are merged, everything else replaced.
fn merge(onto: &mut Value, change: Value) {
    match (onto, change) {
        (Value::Object(onto), Value::Object(change)) => {
            for (key, value) in change {
                merge(onto.entry(key).or_insert(Value::Null), value);
            }
        }
        (onto, change) => *onto = change,
    }
}

fn problems(change: Value) -> Vec<String> {
    let mut value = base();
    merge(&mut value, change);
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    default_pod(&mut pod);
    validate_pod(&pod).iter().map(ToString::to_string).collect()
}

fn with_container(change: Value) -> Value {
    let mut container = json!({"name": "a", "image": "busybox:1"});
    merge(&mut container, change);
    json!({"spec": {"containers": [container]}})
}

fn check(rows: &[(&str, Value, &[&str])]) {
    for (name, change, expected) in rows {
        assert_eq!(problems(change.clone()), *expected, "{name}");
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
                     with an alphanumeric character (e.g. 'my-name' or '123-abc')";

#[test]
fn metadata() {
    check(&[
        ("good", json!({}), &[]),
        ("no name", json!({"metadata": {"name": ""}}), &["metadata.name: Required value: give it a name"]),
        (
            "upper case",
            json!({"metadata": {"namespace": "Web"}}),
            &[&format!("metadata.namespace: Invalid value: \"Web\": {LABEL}")],
        ),
        (
            "dots",
            json!({"metadata": {"namespace": "a.b"}}),
            &["metadata.namespace: Invalid value: \"a.b\": must not contain dots"],
        ),
        (
            "long name",
            json!({"metadata": {"name": "a".repeat(254)}}),
            &[&format!(
                "metadata.name: Invalid value: {:?}: must be no more than 253 characters",
                "a".repeat(254)
            )],
        ),
        (
            "label",
            json!({"metadata": {"labels": {"a/b/c": "x", "ok": "-"}}}),
            &[
                "metadata.labels: Invalid value: \"a/b/c\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName' or 'my.name' or '123-abc'), with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                "metadata.labels[ok]: Invalid value: \"-\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue' or 'my_value' or '12345')",
            ],
        ),
        (
            "annotations",
            json!({"metadata": {"annotations": {"Big.Example.com/Key": "x".repeat(256 << 10)}}}),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
    ]);
}

#[test]
fn pods_without_the_necessary() {
    let no_spec = Pod { spec: None, ..serde_json::from_value(base()).unwrap() };
    assert_eq!(
        validate_pod(&no_spec)[0].to_string(),
        "spec: Required value: a pod must have a spec with at least one container"
    );
    check(&[
        (
            "no containers",
            json!({"spec": {"containers": []}}),
            &["spec.containers: Required value: a pod needs at least one container"],
        ),
        (
            "nothing in it, all at once",
            json!({"spec": {"containers": [{}], "restartPolicy": "never", "dnsPolicy": "none"}}),
            &[
                "spec.containers[0].name: Required value: give the container a name",
                "spec.containers[0].image: Required value: name the image to run",
                "spec.restartPolicy: Unsupported value: \"never\": supported values: \"Always\", \"OnFailure\", \"Never\" (did you mean Never?)",
                "spec.dnsPolicy: Unsupported value: \"none\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\" (did you mean None?)",
            ],
        ),
        (
            "image",
            with_container(json!({"image": " b"})),
            &[
                "spec.containers[0].image: Invalid value: \" b\": must not have leading or trailing whitespace",
            ],
        ),
        (
            "image",
            with_container(json!({"image": "a b"})),
            &["spec.containers[0].image: Invalid value: \"a b\": must not contain whitespace"],
        ),
        (
            "policies",
            with_container(json!({"imagePullPolicy": "Sometimes", "terminationMessagePolicy": "Log"})),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
                "spec.containers[0].terminationMessagePolicy: Unsupported value: \"Log\": supported values: \"File\", \"FallbackToLogsOnError\"",
            ],
        ),
        (
            "names",
            json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}], "initContainers": [{"name": "a", "image": "i"}]}}),
            &[
                "spec.containers[1].name: Duplicate value: \"a\": give each its own",
                "spec.initContainers[0].name: Duplicate value: \"a\": give each its own",
            ],
        ),
    ]);
}

#[test]
fn ports() {
    check(&[
        (
            "all",
            with_container(json!({"ports": [
                {"containerPort": 0}, {"containerPort": 70000}, {"containerPort": 80, "protocol": "tcp"},
                {"containerPort": 80, "name": "UPPER"}, {"containerPort": 80, "name": "x", "hostPort": -1}, {"containerPort": 81, "name": "x"},
                {"containerPort": 82, "hostIP": "localhost"},
            ]})),
            &[
                "spec.containers[0].ports[0].containerPort: Required value: give a number from 1 to 65535",
                "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[0].ports[2].protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\", \"SCTP\" (did you mean TCP?)",
                "spec.containers[0].ports[3].name: Invalid value: \"UPPER\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "spec.containers[0].ports[4].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
                "spec.containers[0].ports[5].name: Duplicate value: \"x\": give each its own",
                "spec.containers[0].ports[6].hostIP: Invalid value: \"localhost\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            "host ports across containers",
            json!({"spec": {"containers": [
                {"name": "a", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]},
                {"name": "b", "image": "i", "ports": [{"containerPort": 81, "hostPort": 80}, {"containerPort": 82, "hostPort": 80, "protocol": "UDP"}]},
            ]}}),
            &["spec.containers[1].ports[0].hostPort: Duplicate value: \"TCP//80\": give each its own"],
        ),
        (
            "host network",
            json!({"spec": {"hostNetwork": true, "containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 80, "hostPort": 81}, {"containerPort": 82}]}]}}),
            &[
                "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
            ],
        ),
    ]);
}

#[test]
fn quantities() {
    let resources = |resources: Value| with_container(json!({"resources": resources}));
    check(&[
        (
            "impossible",
            resources(json!({"limits": {"memory": "lots", "cpu": "-1"}})),
            &[
                "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.containers[0].resources.limits[memory]: Invalid value: \"lots\" is not a quantity; write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3",
            ],
        ),
        (
            "request above limit",
            resources(json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}})),
            &[
                "spec.containers[0].resources.requests[memory]: Invalid value: \"2Gi\": must be less than or equal to memory limit of 1Gi",
            ],
        ),
        (
            "unknown",
            resources(json!({"limits": {"gpu": 1}})),
            &[
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers (cpu, memory, ephemeral-storage, hugepages-<size>) or fully qualified (example.com/name)",
            ],
        ),
        (
            "extended",
            resources(json!({"limits": {"example.com/gpu": "500m"}})),
            &[
                "spec.containers[0].resources.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer",
            ],
        ),
        (
            "extended without limit",
            resources(json!({"requests": {"example.com/gpu": "1"}})),
            &[
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            "extended unequal",
            resources(json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}})),
            &[
                "spec.containers[0].resources.requests[example.com/gpu]: Invalid value: \"1\": must be equal to example.com/gpu limit of 2",
            ],
        ),
        (
            "huge pages alone",
            resources(json!({"limits": {"hugepages-2Mi": "4Mi"}})),
            &["spec.containers[0].resources: Forbidden: HugePages require cpu or memory"],
        ),
        (
            "huge pages uneven",
            resources(json!({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}})),
            &[
                "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            ],
        ),
        (
            "pod level",
            json!({"spec": {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "ephemeral-storage": "1"}},
                "containers": [{"name": "a", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}]}}),
            &[
                "spec.resources.limits[ephemeral-storage]: Invalid value: \"ephemeral-storage\": only cpu, memory and hugepages-<size> can be set for a whole pod",
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                "spec.containers[0].resources.limits[cpu]: Invalid value: \"3\": must be less than or equal to pod limits of 1",
            ],
        ),
    ]);
}

#[test]
fn environment() {
    check(&[(
        "env",
        with_container(json!({"env": [
            {"name": ""}, {"name": "A=B"}, {"name": "fine - really!", "value": "x"},
            {"name": "A", "valueFrom": {}},
            {"name": "B", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.nam"}}},
            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a b']"}}},
            {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}}},
            {"name": "F", "valueFrom": {"configMapKeyRef": {"name": "", "key": "../x"}}},
            {"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['Example.com/Key']"}}},
        ], "envFrom": [{}, {"configMapRef": {"name": "x"}, "secretRef": {"name": "y"}}]})),
        &[
            "spec.containers[0].env[0].name: Required value: give the variable a name",
            "spec.containers[0].env[1].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            "spec.containers[0].env[3].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            "spec.containers[0].env[4].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].env[5].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.nam\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\" (did you mean metadata.name?)",
            "spec.containers[0].env[6].valueFrom.fieldRef.fieldPath: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName' or 'my.name' or '123-abc'), with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            "spec.containers[0].env[7].valueFrom.resourceFieldRef.divisor: Unsupported value: \"1Mi\": supported values: \"1m\", \"1\"",
            "spec.containers[0].env[8].valueFrom.configMapKeyRef.name: Required value: name the object",
            "spec.containers[0].env[8].valueFrom.configMapKeyRef.key: Invalid value: \"../x\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name' or 'KEY_NAME' or 'key-name')",
            "spec.containers[0].envFrom[0]: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1]: Invalid value: \"\": may not have more than one field specified at a time",
        ],
    )]);
}

#[test]
fn volumes_and_mounts() {
    let deep = "d/".repeat(100) + "f";
    check(&[
        (
            "volumes",
            json!({"spec": {"volumes": [
                {"name": "a"}, {"name": "a", "emptyDir": {"sizeLimit": "-1"}}, {"name": "B", "hostPath": {"path": "/a/../b", "type": "Dir"}},
                {"name": "c", "emptyDir": {}, "hostPath": {"path": "/x"}}, {"name": "d", "secret": {"defaultMode": 512}},
                {"name": "e", "configMap": {"name": "x", "items": [{"key": "k", "path": "../y"}, {"key": "", "path": "/z"}, {"key": "k", "path": deep}]}},
                {"name": "f", "downwardAPI": {"items": [{"path": "x"}, {"path": "y", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
                {"name": "g", "projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}, {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}]}},
            ]}}),
            &[
                "spec.volumes[1].name: Duplicate value: \"a\": give each its own",
                "spec.volumes[1].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity; it is negative",
                &format!("spec.volumes[2].name: Invalid value: \"B\": {LABEL}"),
                "spec.volumes[2].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.volumes[2].hostPath.type: Unsupported value: \"Dir\": supported values: \"\", \"DirectoryOrCreate\", \"Directory\", \"FileOrCreate\", \"File\", \"Socket\", \"CharDevice\", \"BlockDevice\"",
                "spec.volumes[3].hostPath: Forbidden: may not specify more than 1 volume type",
                "spec.volumes[4].secret.secretName: Required value: name a secret",
                "spec.volumes[4].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                "spec.volumes[5].configMap.items[0].path: Invalid value: \"../y\": must not contain '..'",
                "spec.volumes[5].configMap.items[1].key: Required value: name the key",
                "spec.volumes[5].configMap.items[1].path: Invalid value: \"/z\": must be a relative path",
                &format!(
                    "spec.volumes[5].configMap.items[2].path: Invalid value: \"{deep}\": it lies more than 64 directories deep, and would never be written"
                ),
                "spec.volumes[6].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
                "spec.volumes[6].downwardAPI.items[1].resourceFieldRef.containerName: Required value: name the container",
                "spec.volumes[7].projected.sources[1].configMap: Invalid value: \"p\": conflicting duplicate paths",
            ],
        ),
        (
            "mounts",
            with_container(json!({"volumeMounts": [
                {"name": "none", "mountPath": "/a"}, {"name": "none", "mountPath": "/a", "subPath": "../x"}, {"name": "", "mountPath": ""},
                {"name": "none", "mountPath": "/b", "subPath": "/x", "subPathExpr": "y", "mountPropagation": "Bidirectional"},
                {"name": "none", "mountPath": "/c", "recursiveReadOnly": "Enabled"},
            ]})),
            &[
                "spec.containers[0].volumeMounts[0].name: Not found: \"none\": add the volume to spec.volumes",
                "spec.containers[0].volumeMounts[1].name: Not found: \"none\": add the volume to spec.volumes",
                "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
                "spec.containers[0].volumeMounts[1].subPath: Invalid value: \"../x\": must not contain '..'",
                "spec.containers[0].volumeMounts[2].name: Required value: name a volume of spec.volumes",
                "spec.containers[0].volumeMounts[2].mountPath: Required value: say where in the container it goes",
                "spec.containers[0].volumeMounts[3].name: Not found: \"none\": add the volume to spec.volumes",
                "spec.containers[0].volumeMounts[3].subPath: Invalid value: \"/x\": must be a relative path",
                "spec.containers[0].volumeMounts[3].subPathExpr: Invalid value: \"y\": subPathExpr and subPath are mutually exclusive",
                "spec.containers[0].volumeMounts[3].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
                "spec.containers[0].volumeMounts[4].name: Not found: \"none\": add the volume to spec.volumes",
                "spec.containers[0].volumeMounts[4].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            ],
        ),
    ]);
}

#[test]
fn probes_and_hooks() {
    check(&[
        (
            "probes",
            with_container(json!({
                "livenessProbe": {"exec": {"command": []}, "successThreshold": 2, "periodSeconds": -1},
                "readinessProbe": {"httpGet": {"port": "no such port", "scheme": "FTP", "httpHeaders": [{"name": "a b", "value": ""}]}, "terminationGracePeriodSeconds": 1},
                "startupProbe": {"tcpSocket": {"port": 0}, "grpc": {"port": 1}, "terminationGracePeriodSeconds": 0},
            })),
            &[
                "spec.containers[0].livenessProbe.exec.command: Required value: give a command",
                "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
                "spec.containers[0].readinessProbe.httpGet.port: Invalid value: \"no such port\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
                "spec.containers[0].readinessProbe.httpGet.httpHeaders[0].name: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name')",
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
                "spec.containers[0].startupProbe.grpc: Forbidden: may not specify more than 1 handler type",
                "spec.containers[0].startupProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.containers[0].startupProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            ],
        ),
        (
            "hooks",
            with_container(
                json!({"lifecycle": {"postStart": {}, "preStop": {"sleep": {"seconds": 31}}, "stopSignal": "SIGTERM"}}),
            ),
            &[
                "spec.containers[0].lifecycle.postStart: Required value: must specify a handler type",
                "spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
                "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
            ],
        ),
        (
            "init containers",
            json!({"spec": {"initContainers": [
                {"name": "i", "image": "i", "lifecycle": {}, "livenessProbe": {"exec": {"command": ["x"]}}},
                {"name": "s", "image": "i", "restartPolicy": "Always", "readinessProbe": {}},
            ]}}),
            &[
                "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
                "spec.initContainers[1].readinessProbe: Required value: must specify a handler type",
            ],
        ),
        (
            "restart rules",
            with_container(
                json!({"restartPolicyRules": [{"action": "Reboot"}, {"action": "Restart", "exitCodes": {"operator": "Is", "values": [1]}}]}),
            ),
            &[
                "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Reboot\": supported values: \"Restart\", \"RestartAllContainers\"",
                "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
                "spec.containers[0].restartPolicyRules[1].exitCodes.operator: Unsupported value: \"Is\": supported values: \"In\", \"NotIn\"",
            ],
        ),
    ]);
    let stop = |signal: &str| {
        let mut change = with_container(json!({"lifecycle": {"stopSignal": signal}}));
        change["spec"]["os"] = json!({"name": "linux"});
        problems(change).is_empty()
    };
    for (signal, good) in [
        ("SIGTERM", true),
        ("SIGRTMIN+15", true),
        ("SIGRTMAX-14", true),
        ("SIGRTMIN+16", false),
        ("TERM", false),
        ("SIG", false),
        ("SIGUSR1 USR2", false),
    ] {
        assert_eq!(stop(signal), good, "{signal}");
    }
}

#[test]
fn security_contexts() {
    check(&[
        (
            "pod",
            json!({"spec": {"hostNetwork": true, "securityContext": {
                "runAsUser": -1, "supplementalGroups": [4294967296_i64], "fsGroupChangePolicy": "Never",
                "sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}, {"name": "Kernel.x", "value": "1"}, {"name": "", "value": ""}],
                "seccompProfile": {"type": "Localhost"}, "windowsOptions": {},
            }}}),
            &[
                "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "spec.securityContext.supplementalGroups[0]: Invalid value: 4294967296: must be between 0 and 2147483647, inclusive",
                "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4.ip_forward\": may not be specified when 'hostNetwork' is true",
                "spec.securityContext.sysctls[1].name: Invalid value: \"Kernel.x\": must have at most 253 characters, in parts of lower case alphanumeric characters, '-' or '_' that are separated by '.' or '/' (e.g. 'net.ipv4.ip_forward')",
                "spec.securityContext.sysctls[2].name: Required value: name the sysctl",
                "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Never\": supported values: \"OnRootMismatch\", \"Always\"",
                "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ],
        ),
        (
            "container",
            with_container(json!({"securityContext": {
                "privileged": true, "allowPrivilegeEscalation": false, "procMount": "Unmasked",
                "seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}, "appArmorProfile": {"type": "Confined"},
            }})),
            &[
                "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
                "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"../x\": must not contain '..'",
                "spec.containers[0].securityContext.appArmorProfile.type: Unsupported value: \"Confined\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\" (did you mean Unconfined?)",
                "spec.containers[0].securityContext.allowPrivilegeEscalation: Invalid value: false: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ],
        ),
        (
            "namespaces",
            json!({"spec": {"hostPID": true, "shareProcessNamespace": true, "hostUsers": false}}),
            &[
                "spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
                "spec.hostPID: Forbidden: when `hostUsers` is false",
            ],
        ),
    ]);
}

#[test]
fn rest_of_the_spec() {
    check(&[
        (
            "deadline",
            json!({"spec": {"activeDeadlineSeconds": 0}}),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        ("negative grace is 1, as upstream", json!({"spec": {"terminationGracePeriodSeconds": -5}}), &[]),
        (
            "no name servers",
            json!({"spec": {"dnsPolicy": "None"}}),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            "dns",
            json!({"spec": {"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "x"], "searches": ["a.", ".", "_ldap._tcp", "A"], "options": [{"value": "1"}]}}}),
            &[
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\", \"1.1.1.2\", \"1.1.1.3\", \"x\"]: must not have more than 3 nameservers",
                "spec.dnsConfig.nameservers[3]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "spec.dnsConfig.searches[3]: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')",
                "spec.dnsConfig.options[0]: Required value: must not be empty",
            ],
        ),
        (
            "host aliases",
            json!({"spec": {"hostAliases": [{"ip": "1.2.3", "hostnames": ["ok.example"]}]}}),
            &[
                "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            "tolerations",
            json!({"spec": {"tolerations": [{}, {"key": "a", "operator": "Exists", "value": "x"}, {"key": "a", "effect": "NoExec"}, {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]}}),
            &[
                "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
                "spec.tolerations[1].value: Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
                "spec.tolerations[2].effect: Unsupported value: \"NoExec\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\" (did you mean NoExecute?)",
                "spec.tolerations[3].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            ],
        ),
        (
            "os",
            json!({"spec": {"os": {"name": "windows"}}}),
            &["spec.os.name: Unsupported value: \"windows\": supported values: \"linux\""],
        ),
        (
            "ephemeral",
            json!({"spec": {"ephemeralContainers": [{"name": "e"}]}}),
            &["spec.ephemeralContainers: Forbidden: cannot be set on create; remove them"],
        ),
        (
            "affinity",
            json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt"}]}]}}}}}),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
            ],
        ),
    ]);
}

#[test]
fn warnings() {
    let mut value = base();
    merge(
        &mut value,
        with_container(
            json!({"env": [{"name": "A"}, {"name": "B"}, {"name": "A"}], "ports": [{"containerPort": 80}, {"containerPort": 80}]}),
        ),
    );
    merge(&mut value, json!({"spec": {"priorityClassName": "system-node-critical"}}));
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    default_pod(&mut pod);
    assert!(validate_pod(&pod).is_empty());
    let warnings = pod_warnings(&pod);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_eq!(warnings[0], "spec.containers[0].env[2]: hides the definition of \"A\" in env[0]; remove one");
}

#[test]
fn what_can_never_work_is_warned_of() {
    let mut value = base();
    let probe = |port: Value| json!({"httpGet": {"path": "/", "port": port}});
    merge(
        &mut value,
        with_container(json!({
            "ports": [{"name": "web", "containerPort": 80}],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN", "FLY"]}},
            "livenessProbe": probe(json!("web")),
            "readinessProbe": probe(json!("wbe")),
            "startupProbe": probe(json!(80)),
            "lifecycle": {"preStop": {"httpGet": {"port": "other"}}},
        })),
    );
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    default_pod(&mut pod);
    assert!(validate_pod(&pod).is_empty(), "the API server takes it");
    let warnings = pod_warnings(&pod);
    let [capability, readiness, hook] = warnings.as_slice() else { panic!("{warnings:#?}") };
    assert!(
        capability.starts_with("spec.containers[0].securityContext.capabilities: \"FLY\""),
        "{capability}"
    );
    assert!(readiness.starts_with("spec.containers[0].readinessProbe.httpGet.port:"), "{readiness}");
    assert!(hook.starts_with("spec.containers[0].lifecycle.preStop.httpGet.port:"), "{hook}");
}

#[test]
fn config_maps_and_secrets() {
    let config_map = |value: Value| {
        let mut object: ConfigMap = serde_json::from_value(value).unwrap();
        default_config_map(&mut object);
        validate_config_map(&object).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(config_map(json!({"metadata": {"name": "c"}})).is_empty());
    assert_eq!(
        config_map(
            json!({"metadata": {"name": "c"}, "data": {"..": "x", "a": "1", "big": "x".repeat(1 << 20)}, "binaryData": {"a": "YQ=="}})
        ),
        [
            "data[..]: Invalid value: \"..\": must not be '..'",
            "data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
            "data: Too long: may not be more than 1048576 bytes",
        ]
    );
    let secret = |value: Value| {
        let mut object: Secret = serde_json::from_value(value).unwrap();
        default_secret(&mut object);
        validate_secret(&object).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(secret(json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).is_empty());
    assert_eq!(
        secret(
            json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "hunter2"}})
        ),
        ["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": must be a JSON object"]
    );
    assert_eq!(secret(json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls"})).len(), 2);
}

#[test]
fn runtime_classes() {
    let class = |value: Value| {
        let object = serde_json::from_value(value).unwrap();
        let problems = validate_runtime_class(&object).iter().map(ToString::to_string).collect::<Vec<_>>();
        (problems, runtime_class_warnings(&object).len())
    };
    assert_eq!(class(json!({"metadata": {"name": "gvisor.v1"}, "handler": "runsc"})), (vec![], 0));
    let (problems, warned) = class(json!({
        "metadata": {"name": "Mine", "namespace": "default"}, "handler": "", "scheduling": {},
        "overhead": {"podFixed": {"memory": "7Mi"}},
    }));
    assert_eq!(warned, 2);
    let starts = ["metadata.namespace: Forbidden", "metadata.name: Invalid value: \"Mine\"", "handler: "];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem}");
    }
}

#[test]
fn immutable_objects() {
    let map = |value: &str, immutable: bool| -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": value}, "immutable": immutable})).unwrap()
    };
    assert!(validate_config_map_change(&map("2", false), &map("1", false)).is_empty());
    assert!(validate_config_map_change(&map("1", true), &map("1", true)).is_empty());
    assert_eq!(validate_config_map_change(&map("2", false), &map("1", true)).len(), 2);
}
