use std::fs;

use serde_json::json;

use super::*;
use crate::flags::parse_kubelet_flags;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn flags(arguments: &[&str]) -> FlagSet {
    parse_kubelet_flags(arguments.iter().copied()).unwrap()
}

fn file(name: &str, body: &str) -> TextFile {
    TextFile { name: name.to_owned(), directory: "/etc/node".into(), text: format!("{HEAD}{body}") }
}

/// Puts layers together without touching a disk.
fn layered(config: Option<&str>, drop_ins: &[&str], arguments: &[&str]) -> Result<Loaded, Vec<String>> {
    let flags = flags(arguments);
    let files = Files {
        config: config.map(|body| file("/etc/node/config.yaml", body)),
        drop_ins: drop_ins
            .iter()
            .enumerate()
            .map(|(i, body)| file(&format!("/etc/node/d/{i}.conf"), body))
            .collect(),
        skipped: Vec::new(),
    };
    assemble(&flags, flags.settings(), &files, Vec::new())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn good(config: Option<&str>, drop_ins: &[&str], arguments: &[&str]) -> Loaded {
    layered(config, drop_ins, arguments).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// The problems of a file with this body.
fn problems(body: &str) -> Vec<String> {
    layered(Some(body), &[], &[]).err().unwrap_or_default()
}

#[test]
fn defaults_are_upstreams() {
    // What the node that was asked had in its file and flags; everything else in its answer is a default.
    let body = r#"
staticPodPath: /NODE/static
podLogsDir: /NODE/logs
address: 127.0.0.1
port: 60539
readOnlyPort: 46403
tlsCertFile: /NODE/pki/kubelet.crt
tlsPrivateKeyFile: /NODE/pki/kubelet.key
authentication: {webhook: {enabled: false}, anonymous: {enabled: true}}
authorization: {mode: AlwaysAllow}
healthzPort: 47511
cgroupRoot: /NODE
maxPods: 600
evictionHard: {memory.available: 50Mi}
enforceNodeAllocatable: []
failSwapOn: false
registerNode: false
failCgroupV1: false
"#;
    let loaded = good(Some(body), &[], &["--v=2"]);
    let upstream: Value = serde_json::from_str(include_str!("../../testdata/upstream-configz.json")).unwrap();
    let ours = loaded.config.configz().unwrap();
    let (Value::Object(ours), Value::Object(upstream)) = (&ours["kubeletconfig"], &upstream["kubeletconfig"])
    else {
        panic!("not objects");
    };
    for (field, value) in upstream {
        assert_eq!(ours.get(field), Some(value), "{field}");
    }
    assert_eq!(ours.len(), upstream.len());
    // The head is shown first, as upstream shows it.
    assert_eq!(ours.keys().take(2).collect::<Vec<_>>(), ["kind", "apiVersion"]);
}

#[test]
fn later_layers_win() {
    let pods =
        |config, drop_ins: &[&str], arguments: &[&str]| good(config, drop_ins, arguments).config.max_pods;
    assert_eq!(pods(None, &[], &[]), 110);
    assert_eq!(pods(Some("maxPods: 1"), &[], &[]), 1);
    assert_eq!(pods(Some("maxPods: 1"), &["maxPods: 2"], &[]), 2);
    assert_eq!(pods(Some("maxPods: 1"), &["maxPods: 2", "maxPods: 3"], &[]), 3);
    assert_eq!(pods(Some("maxPods: 1"), &["maxPods: 2"], &["--max-pods=4"]), 4);
    assert_eq!(pods(Some("maxPods: 1"), &[], &["--max-pods=0"]), 0, "a flag's zero is a value");
    assert_eq!(pods(Some("maxPods: 1"), &["maxPods: 0"], &[]), 110, "a file's zero is the default");
    assert_eq!(pods(Some("maxPods: 1"), &["maxPods: null"], &[]), 110, "null takes it away");
}

#[test]
fn drop_ins_merge_objects_and_replace_lists() {
    let config = "clusterDNS: [1.1.1.1]\nauthentication: {webhook: {cacheTTL: 1m, enabled: false}}\nkubeReserved: {cpu: 1, memory: 1Gi}";
    let config = &config.replace("cpu: 1", "cpu: \"1\"");
    let loaded = good(
        Some(config),
        &[
            "clusterDNS: [8.8.8.8]\nauthentication: {webhook: {cacheTTL: 3m}}\nkubeReserved: {cpu: null, pid: \"10\"}",
        ],
        &[],
    );
    assert_eq!(loaded.config.cluster_dns, ["8.8.8.8"]);
    assert!(!loaded.config.authentication.webhook.enabled);
    assert_eq!(loaded.config.authentication.webhook.cache_ttl.to_string(), "3m0s");
    assert_eq!(json!(loaded.config.kube_reserved), json!({"memory": "1Gi", "pid": "10"}));
}

#[test]
fn feature_gates_of_all_layers_merge() {
    let loaded = good(
        Some("featureGates: {PodsAPI: false, EventedPLEG: true, EnvFiles: false}"),
        &["featureGates: {EnvFiles: true}"],
        &["--feature-gates=EventedPLEG=false"],
    );
    assert_eq!(
        json!(loaded.config.feature_gates),
        json!({"PodsAPI": false, "EventedPLEG": false, "EnvFiles": true})
    );
    assert!(!loaded.gates.enabled("PodsAPI") && loaded.gates.enabled("EnvFiles"));
}

#[test]
fn defaults_that_follow_from_other_fields() {
    let loaded = good(Some("nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 4"), &[], &[]);
    assert_eq!(loaded.config.node_status_report_frequency.to_string(), "20s");
    assert!(!loaded.config.serialize_image_pulls);

    let loaded = good(None, &[], &["--node-status-update-frequency=20s"]);
    assert_eq!(loaded.config.node_status_report_frequency.to_string(), "5m0s", "flags come after defaulting");

    let loaded = good(Some("maxParallelImagePulls: 1\npodPidsLimit: -7"), &[], &[]);
    assert!(loaded.config.serialize_image_pulls);
    assert_eq!(loaded.config.pod_pids_limit, -1);

    let loaded = good(
        Some("featureGates: {KubeletCrashLoopBackOffMax: false, KubeletEnsureSecretPulledImages: false}"),
        &[],
        &[],
    );
    assert_eq!(loaded.config.crash_loop_back_off.max_container_restart_period, None);
    assert_eq!(loaded.config.image_pull_credentials_verification_policy, "");
}

#[test]
fn eviction_defaults() {
    let hard = |config, drop_ins: &[&str], arguments: &[&str]| {
        json!(good(config, drop_ins, arguments).config.eviction_hard)
    };
    let defaults = json!({
        "memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
        "imagefs.available": "15%", "imagefs.inodesFree": "5%",
    });
    assert_eq!(hard(Some(""), &[], &[]), defaults);
    assert_eq!(hard(None, &[], &[]), json!({}), "none without a file");
    assert_eq!(hard(Some("evictionHard: {}"), &[], &[]), json!({}), "switched off");
    assert_eq!(hard(Some("evictionHard: {pid.available: 5%}"), &[], &[]), json!({"pid.available": "5%"}));
    let merged =
        hard(Some("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true"), &[], &[]);
    assert_eq!((merged.as_object().unwrap().len(), &merged["memory.available"]), (5, &json!("1Gi")));
    let dropped = hard(Some(""), &["evictionHard: {memory.available: 2Gi, nodefs.available: null}"], &[]);
    assert_eq!((dropped.as_object().unwrap().len(), &dropped["memory.available"]), (4, &json!("2Gi")));
    assert_eq!(hard(Some(""), &[], &["--eviction-hard=pid.available<1%"]), json!({"pid.available": "1%"}));
}

#[test]
fn closed_in_every_mode() {
    for config in [None, Some("")] {
        let loaded = good(config, &[], &[]);
        assert!(
            !loaded.config.authentication.anonymous.enabled && loaded.config.authentication.webhook.enabled
        );
        assert_eq!((loaded.config.authorization.mode.as_str(), loaded.config.read_only_port), ("Webhook", 0));
        assert_eq!(
            loaded.flag_notices.len(),
            if config.is_none() { 4 } else { 0 },
            "{:?}",
            loaded.flag_notices
        );
        assert_eq!(loaded.notices, [""; 0]);
    }
    let loaded = good(None, &[], &["--read-only-port=10255", "--anonymous-auth"]);
    assert_eq!(loaded.config.read_only_port, 10255);
    assert!(loaded.config.authentication.anonymous.enabled);
    assert_eq!(
        loaded.flag_notices,
        [
            "--anonymous-auth is deprecated; set authentication.anonymous.enabled in the --config file",
            "--read-only-port is deprecated; set readOnlyPort in the --config file",
            "authentication.webhook.enabled is true: without --config upstream's kubelet would use false; set --authentication-token-webhook=false if you want that",
            "authorization.mode is Webhook: without --config upstream's kubelet would use AlwaysAllow; set --authorization-mode=AlwaysAllow if you want that",
        ]
    );
}

#[test]
fn strict() {
    const NAME: &str = "/etc/node/config.yaml: ";
    for (body, expected) in [
        ("staticPodPth: /x", "unknown field \"staticPodPth\"; did you mean \"staticPodPath\"?"),
        ("staticpodpath: /x", "unknown field \"staticpodpath\"; did you mean \"staticPodPath\"?"),
        (
            "authentication: {webhook: {cacheTTl: 1m}}",
            "unknown field \"authentication.webhook.cacheTTl\"; did you mean \"authentication.webhook.cacheTTL\"?",
        ),
        ("cacheTTL: 1m", "unknown field \"cacheTTL\"; did you mean \"authentication.webhook.cacheTTL\"?"),
        ("pod-manifest-path: /x", "unknown field \"pod-manifest-path\"; did you mean \"staticPodPath\"?"),
        ("xyzzy: 1", "unknown field \"xyzzy\"; remove it; the documentation page lists the known fields"),
        (
            "registerWithTaints: [{key: a, efect: NoExecute}]",
            "unknown field \"registerWithTaints[0].efect\"; did you mean \"registerWithTaints[0].effect\"?",
        ),
        ("maxPods: 1\nmaxPods: 2", "field \"maxPods\" is set twice; keep one of them"),
        (
            "logging: {verbosity: 1, verbosity: 1}",
            "field \"logging.verbosity\" is set twice; keep one of them",
        ),
        (
            "featureGates: {PodsAPI: true, PodsAPI: true}",
            "key \"featureGates.PodsAPI\" is set twice; keep one of them",
        ),
        ("maxPods: \"1\"", "maxPods must be a whole number, not a string; write it without quotes"),
        ("maxPods: 1.5", "maxPods must be a whole number, not a number with a fraction"),
        ("maxPods: 3000000000", "maxPods 3000000000 must be between -2147483648 and 2147483647"),
        ("maxOpenFiles: 10000000000000000000", "maxOpenFiles must be a whole number, not a whole number"),
        ("enableServer: 1", "enableServer must be true or false, not a whole number"),
        (
            "reservedSystemCPUs: 0",
            "reservedSystemCPUs must be a string, not a whole number; put it in quotes",
        ),
        (
            "syncFrequency: 10",
            "syncFrequency must be a duration (\"30s\", \"1m30s\"), not a whole number; write it with a unit, such as \"10s\"",
        ),
        (
            "syncFrequency: 10 s",
            "syncFrequency: unknown unit \" s\" in duration \"10 s\": use ns, us, ms, s, m or h",
        ),
        ("clusterDNS: 1.1.1.1", "clusterDNS must be a list of strings, not a string; write it as [\"...\"]"),
        ("clusterDNS: [1]", "clusterDNS[0] must be a string, not a whole number; put it in quotes"),
        ("authentication: yes", "authentication must be an object, not a string"),
        ("registerWithTaints: [a]", "registerWithTaints[0] must be an object, not a string"),
        ("featureGates: {PodsAPI: 1}", "featureGates.PodsAPI must be true or false, not a whole number"),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: much}}]",
            "reservedMemory[0].limits.memory: \"much\" is not a quantity; write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3",
        ),
        (
            "memoryThrottlingFactor: .nan",
            "memoryThrottlingFactor must be a number, not a number with a fraction",
        ),
    ] {
        assert_eq!(problems(body), [format!("{NAME}{expected}")], "{body}");
    }
}

#[test]
fn every_problem_at_once() {
    let found = problems(
        "maxPods: x\nstaticPodPth: /y\nport: 99999\nregistryBurst: -1\nfeatureGates: {NoSuch: true}",
    );
    assert_eq!(found.len(), 5, "{found:#?}");
    // A rule that only fails because another field could not be read is not reported.
    let found = problems("enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: 7");
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn problems_name_their_source() {
    let found =
        layered(Some("maxPods: 1"), &["port: -1"], &["--registry-burst=-1", "--node-ip=x"]).unwrap_err();
    assert_eq!(
        found,
        [
            "/etc/node/d/0.conf: invalid configuration: port (--port) -1 must be between 1 and 65535, inclusive",
            "command line: invalid configuration: registryBurst (--registry-burst) -1 must not be a negative number; write 0 or more",
            "command line: invalid configuration: bad --node-ip \"x\": could not parse \"x\"",
        ]
    );
}

#[test]
fn documents() {
    for (text, expected) in [
        ("", "f: the file is empty; write at least apiVersion and kind"),
        ("---\n", "f: the file is empty; write at least apiVersion and kind"),
        ("[]", "f: the file holds a list, not an object; write fields as \"name: value\""),
        ("a: [", "f: cannot be read as YAML or JSON: "),
        ("maxPods: 1", "f: apiVersion is missing; write apiVersion: kubelet.config.k8s.io/v1beta1"),
        (
            "apiVersion: v1\nkind: KubeletConfiguration",
            "f: apiVersion \"v1\" is not a configuration of this kubelet; write apiVersion: kubelet.config.k8s.io/v1beta1",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: 3",
            "f: kind must be a string, not a whole number; write kind: KubeletConfiguration",
        ),
        (&format!("{HEAD}---\n{HEAD}"), "f: the file has more than one document; keep one"),
        (&format!("{HEAD}maxPods: !odd 3"), "f: cannot be read as YAML or JSON: "),
        (&format!("{HEAD}? [a]\n: 3"), "f: cannot be read as YAML or JSON: "),
    ] {
        let problems = load_text("f", text).unwrap_err();
        assert!(problems[0].to_string().starts_with(expected), "{text:?}: {}", problems[0]);
    }
    let json = "{\t\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\",\n\t\"kind\": \"KubeletConfiguration\",\n\t\"maxPods\": 5}";
    assert_eq!(load_text("f", json).unwrap().config.max_pods, 5);
    let duplicate = json.replace("\"maxPods\": 5", "\"maxPods\": 5, \"maxPods\": 6");
    assert_eq!(
        load_text("f", &duplicate).unwrap_err()[0].to_string(),
        "f: field \"maxPods\" is set twice; keep one of them"
    );
    assert_eq!(load_text("f", &format!("---\n{HEAD}maxPods: 6\n...\n")).unwrap().config.max_pods, 6);
}

#[test]
fn values_that_go_reads() {
    let loaded = good(
        Some(
            "enableServer: off\nlogging: {flushFrequency: 1000000000, options: {json: {infoBufferSize: 0}}}\ncpuCFSQuotaPeriod: 10ms\nresolvConf: \"\"\nauthentication: null\nmaxPods: ~",
        ),
        &[],
        &[],
    );
    assert!(!loaded.config.enable_server);
    assert_eq!(loaded.config.logging.flush_frequency.to_string(), "1s");
    assert_eq!(loaded.config.cpu_cfs_quota_period.to_string(), "10ms");
    assert_eq!(loaded.config.resolv_conf, "", "an empty resolvConf is a value");
    assert_eq!(loaded.config.max_pods, 110);
}

#[test]
fn relative_paths_belong_to_the_config_file() {
    let loaded = good(
        Some("staticPodPath: ../pods/.\nauthentication: {x509: {clientCAFile: ca.crt}}\nresolvConf: resolv"),
        &[],
        &[],
    );
    assert_eq!(loaded.config.static_pod_path, "/etc/pods");
    assert_eq!(loaded.config.authentication.x509.client_ca_file, "/etc/node/ca.crt");
    assert_eq!(loaded.config.resolv_conf, "/etc/node/resolv");
    assert_eq!(good(Some(""), &[], &["--pod-manifest-path=pods"]).config.static_pod_path, "pods");
    for (path, cleaned) in
        [("/", "/"), ("", "."), ("/a//b/./../c/", "/a/c"), ("../a", "../a"), ("/../a", "/a"), ("a/..", ".")]
    {
        assert_eq!(clean(path), cleaned);
    }
}

#[test]
fn seccomp_default_is_on_if_either_says_so() {
    for (config, argument, expected) in [
        ("", "--seccomp-default", true),
        ("seccompDefault: true", "--seccomp-default=false", true),
        ("", "--seccomp-default=false", false),
    ] {
        assert_eq!(good(Some(config), &[], &[argument]).config.seccomp_default, expected);
    }
}

#[test]
fn not_yet_lists_what_was_set() {
    let loaded = good(
        Some(
            "port: 10250\nhairpinMode: none\nstaticPodPath: /x\nlogging: {verbosity: 2, flushFrequency: 5s}",
        ),
        &["hairpinMode: hairpin-veth\nport: null"],
        &["--bootstrap-kubeconfig=/k", "--root-dir=/r", "--volume-plugin-dir=/v"],
    );
    let found: Vec<(&str, &str)> =
        loaded.not_yet.iter().map(|not_yet| (not_yet.path.as_str(), not_yet.set_by.as_str())).collect();
    assert_eq!(
        found,
        [
            ("--bootstrap-kubeconfig", "command line"),
            ("hairpinMode", "/etc/node/d/0.conf"),
            ("logging.flushFrequency", "/etc/node/config.yaml"),
            ("volumePluginDir", "command line"),
        ]
    );
    assert!(good(Some(""), &[], &[]).not_yet.is_empty());
}

/// What kubeadm 1.37 writes, with a zero for every duration it does not set.
#[test]
fn a_file_of_kubeadm() {
    let body = r#"
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;
    let loaded = good(Some(body), &[], &[]);
    let config = &loaded.config;
    assert_eq!(config.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(config.node_status_report_frequency.to_string(), "5m0s");
    assert_eq!(config.logging.flush_frequency.to_string(), "5s");
    assert_eq!(config.authentication.webhook.cache_ttl.to_string(), "2m0s");
    assert_eq!((config.container_log_max_bytes(), config.cluster_dns_addresses().len()), (10 << 20, 1));
    assert_eq!(loaded.notices, [""; 0]);
    let not_yet: Vec<&str> = loaded.not_yet.iter().map(|not_yet| not_yet.path.as_str()).collect();
    assert!(
        not_yet.contains(&"rotateCertificates") && !not_yet.contains(&"volumeStatsAggPeriod"),
        "{not_yet:?}"
    );
}

#[test]
fn secrets_are_not_shown() {
    let body = "staticPodURL: http://h/\nstaticPodURLHeader: {Authorization: [\"Bearer hunter2\", more2]}";
    let loaded = good(Some(body), &[], &[]);
    assert_eq!(loaded.config.static_pod_url_header.expose()["Authorization"], ["Bearer hunter2", "more2"]);
    let shown = [
        format!("{loaded:?}"),
        loaded.config.configz().unwrap().to_string(),
        serde_json::to_string(&loaded.config).unwrap(),
    ];
    for text in shown {
        assert!(!text.contains("hunter2") && !text.contains("more2"), "{text}");
        assert!(text.contains("Authorization") && text.contains(crate::MASK), "{text}");
    }
    let flags = flags(&["--manifest-url-header=A:hunter2"]);
    assert!(!format!("{flags:?}").contains("hunter2"), "{flags:?}");
    for bad in ["hunter2", "{A: hunter2}", "[hunter2]", "{A: [{b: hunter2}]}", "{A: [\"hunter2\\n\"]}"] {
        let found = problems(&format!("staticPodURLHeader: {bad}"));
        assert!(found.len() == 1 && !found[0].contains("hunter2"), "{found:?}");
    }
}

#[test]
fn files_are_read_in_lexical_order() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, body: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{HEAD}{body}")).unwrap();
    };
    write("config.yaml", "maxPods: 1\nstaticPodPath: pods\nclusterDomain: a");
    write("d/20.conf", "maxPods: 20");
    write("d/10.conf", "maxPods: 10\nclusterDomain: b");
    write("d/15/x.conf", "maxPods: 15\nclusterDomain: c");
    write("d/notes.txt", "this is not read");
    let config = root.path().join("config.yaml").display().to_string();
    let directory = root.path().join("d").display().to_string();
    let arguments = [format!("--config={config}"), format!("--config-dir={directory}")];
    let loaded = load(&parse_kubelet_flags(&arguments).unwrap()).unwrap();
    assert_eq!((loaded.config.max_pods, loaded.config.cluster_domain.as_str()), (20, "c"));
    assert_eq!(loaded.config.static_pod_path, root.path().join("pods").display().to_string());
    let pods = root.path().join("pods").display().to_string();
    assert_eq!(
        loaded.notices,
        [
            format!("staticPodPath is relative: \"pods\" is taken from the directory of its file, {pods}"),
            format!("{directory}/notes.txt is not read: drop-in files end in .conf")
        ]
    );

    // A drop-in without a head, an unreadable file and a missing directory, all in one answer.
    fs::write(root.path().join("d/30.conf"), "maxPods: 30").unwrap();
    fs::write(root.path().join("d/40.conf"), [0xff, 0xfe]).unwrap();
    let found = load(
        &parse_kubelet_flags(&[format!("--config={directory}"), format!("--config-dir={directory}")])
            .unwrap(),
    );
    let found: Vec<String> = found.unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(found[0].contains("--config: cannot read the file: Is a directory"), "{found:#?}");
    assert!(
        found.iter().any(|problem| problem.contains("40.conf: --config-dir: the file is not UTF-8")),
        "{found:#?}"
    );
    let missing = load(&flags(&["--config=/no/such/file", "--config-dir=/no/such/dir"])).unwrap_err();
    assert_eq!(missing.len(), 2, "{missing:?}");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("large.yaml");
    fs::write(&path, vec![b'#'; 5 << 20]).unwrap();
    let found = load(&FlagSet::with_config(&path.display().to_string())).unwrap_err();
    assert!(found[0].to_string().contains("the file is larger than 4 MiB"), "{}", found[0]);
}

mod arbitrary {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_never_panics(text in "\\PC{0,200}") {
            let _outcome = load_text("f", &text).map(|loaded| loaded.config.configz());
        }

        #[test]
        fn yaml_like_text_never_panics(text in "([a-zA-Z]{0,9}|[-:{}\\[\\],&*!?|>'\"%@~ \n\t0-9.]){0,60}") {
            let _outcome = load_text("f", &format!("{HEAD}{text}"));
        }

        #[test]
        fn any_value_in_any_field_never_panics(
            index in 0usize..1000,
            value in "(-?[0-9]{1,25}|true|null|\\{\\}|\\[\\]|[a-z<%=:.]{1,8}|\"[^\"\\\\]{0,9}\"|\\[[0-9,]{0,5}\\]|\\{[a-z]: [0-9]\\}|[0-9.]{1,5}[smhiMG%]{1,2})",
        ) {
            let fields = crate::catalog::fields();
            let path = &fields[index % fields.len()].path;
            let mut body = String::new();
            let parts: Vec<&str> = path.split('.').collect();
            for (depth, part) in parts.iter().enumerate() {
                let end = if depth + 1 == parts.len() { format!(" {value}") } else { String::new() };
                body.push_str(&format!("{}{part}:{end}\n", "  ".repeat(depth)));
            }
            let _outcome = load_text("f", &format!("{HEAD}{body}")).map(|loaded| loaded.config.configz());
        }

        #[test]
        fn arguments_never_panic(words in proptest::collection::vec("(--?[a-z-]{0,20}=?)?\\PC{0,12}", 0..6)) {
            let _outcome = parse_kubelet_flags(&words);
        }

        #[test]
        fn any_text_for_any_flag_never_panics(index in 0usize..1000, text in "\\PC{0,20}") {
            let names: Vec<&str> = crate::catalog::flags().keys().copied().filter(|name| !name.starts_with("config")).collect();
            let argument = format!("--{}={text}", names[index % names.len()]);
            if let Ok(flags) = parse_kubelet_flags([argument]) {
                let _outcome = load(&flags);
            }
        }

        #[test]
        fn durations_round_trip(nanoseconds in any::<i64>()) {
            let duration = crate::GoDuration::from_nanoseconds(nanoseconds);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
