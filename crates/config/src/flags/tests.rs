use serde_json::json;

use super::*;
use crate::load::load;

fn parse(arguments: &[&str]) -> Result<FlagSet, Vec<String>> {
    parse_kubelet_flags(arguments.iter().copied())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// The value that a flag gave to the option at `path`.
fn value(arguments: &[&str], path: &str) -> Option<Value> {
    parse(arguments)
        .unwrap_or_else(|problems| panic!("{arguments:?}: {problems:?}"))
        .values
        .get(path)
        .cloned()
}

#[test]
fn every_flag_of_upstream_is_known_and_has_its_default() {
    // Set by the node that was asked.
    let set = ["cert-dir", "config", "hostname-override", "root-dir", "v"];
    // Closed here, open in upstream's start without --config.
    let closed = ["anonymous-auth", "authentication-token-webhook", "authorization-mode", "read-only-port"];
    for line in include_str!("../../testdata/upstream-flagz.txt").lines() {
        let (name, upstream) = line.split_once(':').unwrap();
        let upstream = upstream.trim();
        let Some(Known::Option(entry)) = Known::of(name) else {
            assert!(["help", "version"].contains(&name), "--{name} is not known");
            continue;
        };
        if set.contains(&name) || closed.contains(&name) {
            continue;
        }
        let ours = match (entry.definition.default, entry.definition.kind) {
            (Some("[\"pods\"]"), _) => "[pods]",
            (Some(default), _) => default,
            (None, Kind::Bool) => "false",
            (None, Kind::Int32 | Kind::Int64 | Kind::Uint32) => "0",
            (None, Kind::TextList) => "[]",
            (None, _) => "",
        };
        assert_eq!(ours, upstream, "--{name}");
    }
}

#[test]
fn the_grammar_is_pflags() {
    for (arguments, path, expected) in [
        (&["--max-pods=20"] as &[&str], "maxPods", json!(20)),
        (&["--max-pods", "20"], "maxPods", json!(20)),
        (&["--max_pods=20"], "maxPods", json!(20)),
        (&["--max-pods=10", "--max-pods=20"], "maxPods", json!(20)),
        (&["--max-pods=0x10"], "maxPods", json!(16)),
        (&["--oom-score-adj", "-999"], "oomScoreAdj", json!(-999)),
        (&["--pod-max-pids=-1"], "podPidsLimit", json!(-1)),
        (&["--register-node"], "registerNode", json!(true)),
        (&["--register-node=false"], "registerNode", json!(false)),
        (&["--register-node=F"], "registerNode", json!(false)),
        (&["-v2"], "logging.verbosity", json!(2)),
        (&["-v=2"], "logging.verbosity", json!(2)),
        (&["-v", "2"], "logging.verbosity", json!(2)),
        (&["--v=2"], "logging.verbosity", json!(2)),
        (&["--v", "2"], "logging.verbosity", json!(2)),
        (&["-hv3"], "logging.verbosity", json!(3)),
        (&["--sync-frequency=90s"], "syncFrequency", json!("1m30s")),
        (
            &["--cluster-dns=1.1.1.1,8.8.8.8", "--cluster-dns", "9.9.9.9"],
            "clusterDNS",
            json!(["1.1.1.1", "8.8.8.8", "9.9.9.9"]),
        ),
        (&["--cluster-dns="], "clusterDNS", json!([])),
        (&["--tls-cipher-suites=\"a,b\",c"], "tlsCipherSuites", json!(["a,b", "c"])),
        (
            &[
                "--eviction-hard=memory.available<100Mi, nodefs.available < 10% ,",
                "--eviction-hard=pid.available<5%",
            ],
            "evictionHard",
            json!({"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "5%"}),
        ),
        (&["--eviction-hard="], "evictionHard", json!({})),
        (
            &["--system-reserved=cpu=200m,memory=1Gi"],
            "systemReserved",
            json!({"cpu": "200m", "memory": "1Gi"}),
        ),
        (
            &["--cpu-manager-policy-options=a=b,c=d", "--cpu-manager-policy-options=e=f"],
            "cpuManagerPolicyOptions",
            json!({"a": "b,c=d", "e": "f"}),
        ),
        (
            &["--feature-gates=A=true,B=0", "--feature-gates=C=T"],
            "featureGates",
            json!({"A": true, "B": false, "C": true}),
        ),
        (
            &["--manifest-url-header=a:hello,b:again,c:world", "--manifest-url-header", "b:beautiful"],
            "staticPodURLHeader",
            json!({"a": ["hello"], "b": ["again", "beautiful"], "c": ["world"]}),
        ),
        (
            &["--node-labels=a=b,c", "--node-labels=d=e=f"],
            "--node-labels",
            json!({"a": "b", "c": "", "d": "e=f"}),
        ),
        (
            &["--register-with-taints=a=b:NoSchedule,c:NoExecute"],
            "registerWithTaints",
            json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "value": "", "effect": "NoExecute"}]),
        ),
        (&["--register-with-taints="], "registerWithTaints", json!([])),
        (
            &[
                "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi",
                "--reserved-memory",
                "2:memory=1",
            ],
            "reservedMemory",
            json!([
                {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1M": "2Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}},
                {"numaNode": 2, "limits": {"memory": "1"}},
            ]),
        ),
        (
            &["--vmodule=a=1,b*=2,"],
            "logging.vmodule",
            json!([{"filePattern": "a", "verbosity": 1}, {"filePattern": "b*", "verbosity": 2}]),
        ),
        (&["--address=::1"], "address", json!("::1")),
        (&["--root-dir", "--odd"], "--root-dir", json!("--odd")),
    ] {
        assert_eq!(value(arguments, path), Some(expected), "{arguments:?}");
    }
    assert_eq!(value(&["--address="], "address"), None, "an empty address leaves the default");
}

#[test]
fn refused() {
    for (arguments, expected) in [
        (
            &["--pod-manifst-path=/x"] as &[&str],
            "command line: unknown flag: --pod-manifst-path; did you mean \"--pod-manifest-path\"?",
        ),
        (&["--xyzzy", "value"], "command line: unknown flag: --xyzzy; --help lists the known flags"),
        (
            &["--container-runtime=remote"],
            "command line: --container-runtime is gone since Kubernetes 1.27; remove it: every runtime is a CRI runtime, see --container-runtime-endpoint",
        ),
        (
            &["--pod-infra-container-image", "pause:3"],
            "command line: --pod-infra-container-image is gone since Kubernetes 1.35; remove it and set the sandbox image in the container runtime (containerd: sandbox_image or pinned_images)",
        ),
        (
            &["--network_plugin=cni"],
            "command line: --network-plugin is gone since Kubernetes 1.24; remove it: the container runtime configures the network (containerd: [plugins.*.cni])",
        ),
        (&["--config"], "command line: flag needs an argument: --config; write --config=VALUE"),
        (&["-v"], "command line: flag needs an argument: 'v' in -v; write -v=VALUE"),
        (
            &["--max-pods=many"],
            "command line: invalid argument \"many\" for \"--max-pods\" flag: write a whole number",
        ),
        (
            &["--max-pods=3000000000"],
            "command line: invalid argument \"3000000000\" for \"--max-pods\" flag: must be between -2147483648 and 2147483647",
        ),
        (
            &["--max-pods=99999999999999999999999999999999999999999"],
            "command line: invalid argument \"99999999999999999999999999999999999999999\" for \"--max-pods\" flag: must be between -2147483648 and 2147483647",
        ),
        (
            &["--max-pods=1_0"],
            "command line: invalid argument \"1_0\" for \"--max-pods\" flag: write a whole number",
        ),
        (
            &["--max-pods="],
            "command line: invalid argument \"\" for \"--max-pods\" flag: write a whole number",
        ),
        (
            &["--register-node=perhaps"],
            "command line: invalid argument \"perhaps\" for \"--register-node\" flag: write true or false",
        ),
        (
            &["--sync-frequency=10"],
            "command line: invalid argument \"10\" for \"--sync-frequency\" flag: missing unit in duration \"10\": write one of ns, us, ms, s, m, h behind each number",
        ),
        (
            &["--address=here"],
            "command line: invalid argument \"here\" for \"--address\" flag: \"here\" is not a valid IP address",
        ),
        (
            &["--eviction-hard=memory.available=1Mi"],
            "command line: invalid argument \"memory.available=1Mi\" for \"--eviction-hard\" flag: malformed pair \"memory.available=1Mi\", expect key<value",
        ),
        (
            &["--feature-gates=A=maybe"],
            "command line: invalid argument \"A=maybe\" for \"--feature-gates\" flag: A: write true or false",
        ),
        (
            &["--register-with-taints=a"],
            "command line: invalid argument \"a\" for \"--register-with-taints\" flag: invalid taint spec: a, expect key=value:effect",
        ),
        (
            &["--register-with-taints=a=b:Sometimes"],
            "command line: invalid argument \"a=b:Sometimes\" for \"--register-with-taints\" flag: invalid taint spec: a=b:Sometimes, invalid taint effect: Sometimes, unsupported taint effect",
        ),
        (
            &["--reserved-memory=0:cpu=1"],
            "command line: invalid argument \"0:cpu=1\" for \"--reserved-memory\" flag: memory type conversion error, unknown type: \"cpu\"",
        ),
        (
            &["--vmodule=a"],
            "command line: invalid argument \"a\" for \"--vmodule\" flag: \"a\" does not have the pattern=N format",
        ),
        (
            &["--tls-cipher-suites=\"a"],
            "command line: invalid argument \"\\\"a\" for \"--tls-cipher-suites\" flag: a quote is not closed",
        ),
        (
            &["-config=x"],
            "command line: unknown shorthand flag: 'c' in -config=x; did you mean \"--config\"?",
        ),
        (&["---v"], "command line: bad flag syntax: ---v; write --name=value"),
        (&["start"], "command line: unknown command \"start\"; kubelet takes flags only; write --name=value"),
        (
            &["--", "--v=2"],
            "command line: unknown command \"--v=2\"; kubelet takes flags only; write --name=value",
        ),
        (
            &["--version=1.2"],
            "command line: invalid argument \"1.2\" for \"--version\" flag: write true or false",
        ),
    ] {
        assert_eq!(parse(arguments).err(), Some(vec![expected.to_owned()]), "{arguments:?}");
    }
}

#[test]
fn every_problem_is_reported() {
    let problems = parse(&["--max-pods=x", "--nonsense", "stray", "--port=y", "word"]).unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
}

#[test]
fn header_values_are_not_quoted_back() {
    let problems = parse(&["--manifest-url-header=hunter2"]).unwrap_err();
    assert_eq!(
        problems,
        [
            "command line: invalid argument for \"--manifest-url-header\" flag: malformed pair, expect name:value"
        ]
    );
}

#[test]
fn help_and_version() {
    assert!(parse(&["-h"]).unwrap().help && parse(&["--help"]).unwrap().help);
    assert!(!parse(&["--help=false"]).unwrap().help);
    for (argument, expected) in [
        ("--version", Some(VersionRequest::Short)),
        ("--version=true", Some(VersionRequest::Short)),
        ("--version=false", None),
        ("--version=raw", Some(VersionRequest::Raw)),
        ("--version=v1.2.3", Some(VersionRequest::Report("v1.2.3".to_owned()))),
    ] {
        assert_eq!(parse(&[argument]).unwrap().version, expected, "{argument}");
    }
    let help = help();
    for name in catalog::flags().keys() {
        assert!(help.contains(&format!("--{name}")), "--{name} is not in the help");
    }
    assert!(help.contains("  -v, --v int\n"), "{help}");
    assert!(help.contains("      --eviction-hard signal<value,...\n"));
}

#[test]
fn removed_flags_are_not_known_ones() {
    for name in [
        "container-runtime",
        "pod-infra-container-image",
        "cni-bin-dir",
        "docker",
        "containerd",
        "cloud-config",
    ] {
        assert!(removed::find(name).is_some(), "{name}");
    }
    for name in catalog::flags().keys() {
        assert!(removed::find(name).is_none(), "--{name} exists");
    }
}

#[test]
fn settings_are_typed() {
    let flags = parse(&[
        "--root-dir=/srv/k",
        "--hostname-override=n1",
        "--node-labels=a=b",
        "--exit-on-lock-contention",
        "--minimum-container-ttl-duration=1m",
        "--maximum-dead-containers=7",
    ])
    .unwrap();
    let settings = flags.settings();
    assert_eq!(settings.root_dir, "/srv/k");
    assert_eq!(settings.hostname_override, "n1");
    assert_eq!(settings.node_labels["a"], "b");
    assert!(settings.exit_on_lock_contention);
    assert_eq!(settings.minimum_container_ttl_duration.to_string(), "1m0s");
    assert_eq!((settings.maximum_dead_containers, settings.maximum_dead_containers_per_container), (7, 1));
    assert!(flags.is_given("root-dir") && !flags.is_given("cert-dir") && !flags.is_given("nonsense"));
    assert_eq!(Settings::default().cert_dir, "/var/lib/kubelet/pki");
}

/// What kubeadm, kind, k3s and the node tests of Kubernetes start the kubelet with.
#[test]
fn command_lines_in_the_wild() {
    for line in [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf --register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule --hostname-override=n1",
        "--node-ip=172.18.0.2 --provider-id kind://docker/kind/kind-control-plane --node-labels= --runtime-cgroups=/system.slice/containerd.service --container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        "--kubeconfig=/x --read-only-port=0 --root-dir=/var/lib/kubelet --cert-dir=/c --hostname-override=n --cloud-provider=external --node-ip=10.0.0.1 --node-labels=egress.k3s.io/cluster=true --runtime-cgroups=/k3s --image-credential-provider-bin-dir=/b --image-credential-provider-config=/c --feature-gates=PodsAPI=true",
        "--root-dir /var/lib/kubelet --v 4 --feature-gates PodsAPI=true --hostname-override n --container-runtime-endpoint unix:///run/containerd/containerd.sock --image-service-endpoint unix:///run/containerd/containerd.sock --housekeeping-interval=1s --fail-cgroupv1=false",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let flags = parse(&words).unwrap_or_else(|problems| panic!("{line}: {problems:?}"));
        if line.contains("egress.k3s.io") {
            // `*.k3s.io` is not `k8s.io`.
            assert_eq!(flags.settings().node_labels.len(), 1);
        }
        load(&flags).unwrap_or_else(|problems| panic!("{line}: {problems:?}"));
    }
}
