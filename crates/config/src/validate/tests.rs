use super::*;
use crate::flags::parse_kubelet_flags;
use crate::load::{load, load_text};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// The messages of the problems of a file with this body.
fn messages(body: &str) -> Vec<String> {
    let loaded = load_text("f", &format!("{HEAD}{body}\n"));
    loaded.err().unwrap_or_default().into_iter().map(|problem| problem.message).collect()
}

fn check(rows: &[(&str, &str)]) {
    for (body, expected) in rows {
        let messages = messages(body);
        let wanted = format!("invalid configuration: {expected}");
        assert!(messages.contains(&wanted), "{body}\n  wanted: {wanted}\n  found: {messages:#?}");
    }
}

#[test]
fn single_values() {
    check(&[
        ("eventBurst: -1", "eventBurst (--event-burst) -1 must not be a negative number"),
        ("eventRecordQPS: -1", "eventRecordQPS (--event-qps) -1 must not be a negative number"),
        ("kubeAPIBurst: -1", "kubeAPIBurst (--kube-api-burst) -1 must not be a negative number"),
        ("kubeAPIQPS: -1", "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number"),
        ("registryBurst: -1", "registryBurst (--registry-burst) -1 must not be a negative number"),
        ("registryPullQPS: -1", "registryPullQPS (--registry-qps) -1 must not be a negative number"),
        ("maxOpenFiles: -1", "maxOpenFiles (--max-open-files) -1 must not be a negative number"),
        ("maxPods: -1", "maxPods (--max-pods) -1 must not be a negative number"),
        ("podsPerCore: -1", "podsPerCore (--pods-per-core) -1 must not be a negative number"),
        ("nodeStatusMaxImages: -2", "nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater"),
        ("oomScoreAdj: 1001", "oomScoreAdj (--oom-score-adj) 1001 must be between -1000 and 1000, inclusive"),
        ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive"),
        ("imageGCLowThresholdPercent: -1", "imageGCLowThresholdPercent (--image-gc-low-threshold) -1 must be between 0 and 100, inclusive"),
        ("iptablesDropBit: 32", "iptablesDropBit 32 must be between 0 and 31, inclusive"),
        ("iptablesMasqueradeBit: -1", "iptablesMasqueradeBit -1 must be between 0 and 31, inclusive"),
        ("healthzPort: 65536", "healthzPort (--healthz-port) 65536 must be between 1 and 65535, inclusive"),
        ("port: 65536", "port (--port) 65536 must be between 1 and 65535, inclusive"),
        ("readOnlyPort: -1", "readOnlyPort (--read-only-port) -1 must be between 1 and 65535, inclusive"),
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds -1 must be greater than 0"),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers 0 must be greater than or equal to 1"),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles 1 must be greater than 1"),
        ("containerLogMonitorInterval: 2s", "containerLogMonitorInterval 2s must be a positive time duration greater than or equal to 3s"),
        ("containerLogMaxSize: 0", "containerLogMaxSize (--container-log-max-size) \"0\" must be at least 1"),
        ("imageMinimumGCAge: -1s", "imageMinimumGCAge (--minimum-image-ttl-duration) -1s must not be negative"),
        ("address: here", "address (--address) \"here\" is not a valid IP address"),
        ("healthzBindAddress: here", "healthzBindAddress (--healthz-bind-address) \"here\" is not a valid IP address"),
        ("runOnce: true", "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"),
        ("tracing: {samplingRatePerMillion: 1000001}", "tracing.samplingRatePerMillion 1000001 must be between 0 and 1000000, inclusive"),
    ].map(|(body, expected)| match body {
        // The one string among them.
        "containerLogMaxSize: 0" => ("containerLogMaxSize: \"0\"", expected),
        body => (body, expected),
    }));
}

#[test]
fn choices() {
    check(&[
        (
            "topologyManagerPolicy: any",
            "option \"any\" specified for topologyManagerPolicy (--topology-manager-policy). Valid options are \"none\", \"best-effort\", \"restricted\" or \"single-numa-node\"",
        ),
        (
            "topologyManagerScope: any",
            "option \"any\" specified for topologyManagerScope (--topology-manager-scope). Valid options are \"container\" or \"pod\"",
        ),
        (
            "hairpinMode: any",
            "option \"any\" specified for hairpinMode (--hairpin-mode). Valid options are \"promiscuous-bridge\", \"hairpin-veth\" or \"none\"",
        ),
        (
            "cgroupDriver: any",
            "option \"any\" specified for cgroupDriver (--cgroup-driver). Valid options are \"cgroupfs\" or \"systemd\"",
        ),
        (
            "cpuManagerPolicy: any",
            "option \"any\" specified for cpuManagerPolicy (--cpu-manager-policy). Valid options are \"none\" or \"static\"",
        ),
        (
            "memoryManagerPolicy: any",
            "option \"any\" specified for memoryManagerPolicy (--memory-manager-policy). Valid options are \"None\" or \"Static\"",
        ),
        (
            "memoryReservationPolicy: any",
            "option \"any\" specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\"",
        ),
        (
            "memorySwap: {swapBehavior: any}",
            "option \"any\" specified for memorySwap.swapBehavior. Valid options are \"\", \"NoSwap\" or \"LimitedSwap\"",
        ),
        (
            "authorization: {mode: any}",
            "option \"any\" specified for authorization.mode (--authorization-mode). Valid options are \"AlwaysAllow\" or \"Webhook\"",
        ),
        (
            "configMapAndSecretChangeDetectionStrategy: any",
            "option \"any\" specified for configMapAndSecretChangeDetectionStrategy. Valid options are \"Get\", \"Cache\" or \"Watch\"",
        ),
        (
            "imagePullCredentialsVerificationPolicy: any",
            "option \"any\" specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
        ),
        (
            "logging: {format: xml}",
            "option \"xml\" specified for logging.format (--logging-format). Valid options are \"text\" or \"json\"",
        ),
        (
            "tlsMinVersion: SSL3",
            "option \"SSL3\" specified for tlsMinVersion (--tls-min-version). Valid options are \"\", \"VersionTLS10\", \"VersionTLS11\", \"VersionTLS12\" or \"VersionTLS13\"",
        ),
    ]);
}

#[test]
fn server_and_sources() {
    check(&[
        (
            "tlsCipherSuites: [TLS_GOOD]",
            "Cipher suite TLS_GOOD in tlsCipherSuites (--tls-cipher-suites) not supported or doesn't exist",
        ),
        ("tlsCurvePreferences: [1]", "curve preference 1 in tlsCurvePreferences is not supported"),
        ("tlsCurvePreferences: [29, 29]", "duplicate curve preference 29 in tlsCurvePreferences"),
        (
            "tlsCertFile: /c",
            "tlsCertFile (--tls-cert-file) and tlsPrivateKeyFile (--tls-private-key-file) must be set together",
        ),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        ),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "enableSystemLogHandler is required for enableSystemLogQuery",
        ),
        (
            "showHiddenMetricsForVersion: \"1.30\"",
            "showHiddenMetricsForVersion \"1.30\" must be omitted or have the value '1.36'; only the previous minor version is allowed",
        ),
        (
            "tracing: {endpoint: \"http://h\"}",
            "tracing.endpoint \"http://h\": unsupported scheme: http. Options are none, dns, unix, or unix-abstract",
        ),
        ("staticPodURL: ftp://h", "staticPodURL (--manifest-url) must be an http or https URL"),
        (
            "staticPodURLHeader: {\"a b\": [c]}",
            "staticPodURLHeader (--manifest-url-header) \"a b\" is not a valid header name",
        ),
        (
            "registerWithTaints: [{key: \"\", effect: NoExecute}]",
            "invalid taint: =:NoExecute in registerWithTaints",
        ),
        ("registerWithTaints: [{key: a, effect: Odd}]", "invalid taint: a=:Odd in registerWithTaints"),
        (
            "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: \"2020-01-01T00:00:00Z\"}]",
            "taint.TimeAdded is not nil in registerWithTaints for a=:NoExecute",
        ),
        (
            "containerRuntimeEndpoint: tcp://h",
            "containerRuntimeEndpoint \"tcp://h\": protocol \"tcp\" not supported",
        ),
        ("podCIDR: 10.0.0.0", "podCIDR (--pod-cidr) \"10.0.0.0\" is not an address range"),
    ]);
}

#[test]
fn images_and_logs() {
    check(&[
        (
            "imageGCLowThresholdPercent: 85",
            "imageGCLowThresholdPercent (--image-gc-low-threshold) 85 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 85",
        ),
        ("imageMaximumGCAge: -1s", "imageMaximumGCAge -1s must not be negative"),
        ("imageMaximumGCAge: 1m", "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls 0 must be a positive number"),
        (
            "maxParallelImagePulls: 2\nserializeImagePulls: true",
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false",
        ),
        (
            "imagePullCredentialsVerificationPolicy: AlwaysVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
            "`imagePullCredentialsVerificationPolicy` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled",
        ),
        (
            "preloadedImagesVerificationAllowlist: [a]\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
            "`preloadedImagesVerificationAllowlist` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled",
        ),
        (
            "preloadedImagesVerificationAllowlist: [a]",
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVerificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
        ),
        ("podLogsDir: /a/../b", "pod logs path \"/a/../b\" must be normalized"),
        ("podLogsDir: /\u{e4}", "pod logs path \"/\u{e4}\" must contain ASCII characters only"),
    ]);
    let allow = |pattern: &str| {
        messages(&format!(
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [\"{pattern}\"]"
        ))
    };
    for pattern in ["busybox", "registry.io:5000/a/b", "registry.io/*", "a/b/*"] {
        assert!(allow(pattern).is_empty(), "{pattern}");
    }
    for (pattern, fault) in [
        (" a", "leading/trailing spaces"),
        ("a:1", "neither tag nor digest"),
        ("a@sha256:0", "neither tag nor digest"),
        ("a*", "not a valid wildcard"),
        ("*/a/*", "not a valid wildcard"),
        ("/*", "at least registry hostname"),
        ("", "too short"),
        ("a b", "failed to parse"),
    ] {
        assert!(
            allow(pattern).iter().any(|message| message.contains(fault)),
            "{pattern}: {:?}",
            allow(pattern)
        );
    }
}

#[test]
fn logging_and_shutdown() {
    check(&[
        ("logging: {flushFrequency: -1s}", "logging.flushFrequency -1s: Must be greater than zero"),
        (
            "logging: {verbosity: 2147483648}",
            "logging.verbosity (--v) 2147483648 must be between 0 and 2147483647, inclusive",
        ),
        (
            "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
            "logging.format: Log format json is disabled, see LoggingBetaOptions feature",
        ),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging.vmodule: Only supported for text log format",
        ),
        ("logging: {vmodule: [{verbosity: 1}]}", "logging.vmodule: File pattern must not be empty"),
        (
            "logging: {vmodule: [{filePattern: \"a=b\", verbosity: 1}]}",
            "logging.vmodule \"a=b\": File pattern must not contain equal sign or comma",
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}",
            "logging.vmodule \"a\": verbosity Must be <= 2147483647",
        ),
        (
            "logging: {options: {text: {splitStream: true}}}",
            "logging.options.text.splitStream: Feature LoggingAlphaOptions is disabled",
        ),
        (
            "logging: {options: {json: {infoBufferSize: 1Ki}}}",
            "logging.options.json.infoBufferSize: Feature LoggingAlphaOptions is disabled",
        ),
        (
            "shutdownGracePeriodCriticalPods: 10s",
            "shutdownGracePeriodCriticalPods 10s must be <= shutdownGracePeriod 0s",
        ),
        ("shutdownGracePeriod: 1ms", "shutdownGracePeriod 1ms must be either zero or otherwise >= 1 sec"),
        ("shutdownGracePeriod: -1s", "shutdownGracePeriod -1s must be either zero or otherwise >= 1 sec"),
        (
            "shutdownGracePeriod: 10s\nfeatureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false}",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
        ),
        (
            "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 1}]",
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
    ]);
    assert_eq!(
        messages(
            "logging: {format: json, options: {json: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}"
        ),
        [""; 0]
    );
}

#[test]
fn pods() {
    check(&[
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 5m1s) must be set between 1s and 300s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 0s) must be set between 1s and 300s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 10s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}",
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
        ),
        (
            "defaultPodSysctls: {net.a: \"1\"}",
            "DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls",
        ),
        (
            "defaultPodSysctls: {NET: \"1\"}\nfeatureGates: {DefaultPodSysctls: true}",
            "\"NET\" is not a valid sysctl name for defaultPodSysctls",
        ),
        (
            "defaultPodSysctls: {vm.swappiness: \"1\"}\nfeatureGates: {DefaultPodSysctls: true}",
            "\"vm.swappiness\" is not known to be namespaced for defaultPodSysctls",
        ),
        (
            "defaultPodSysctls: {net.ipv4.a: \"1\", net/ipv4/a: \"2\"}\nfeatureGates: {DefaultPodSysctls: true}",
            "duplicate sysctl \"net.ipv4.a\" found in defaultPodSysctls",
        ),
        ("userNamespaces: {idsPerPod: 1}", "userNamespaces.idsPerPod 1 must not be less than 65536"),
        ("userNamespaces: {idsPerPod: 65537}", "userNamespaces.idsPerPod 65537 must be a multiple of 65536"),
        (
            "userNamespaces: {idsPerPod: 4294967296}",
            "userNamespaces.idsPerPod 4294967296 must not be more than 4294967295",
        ),
    ]);
    assert_eq!(
        messages(
            "defaultPodSysctls: {kernel.shmall: \"1\", net.ipv4.a: \"2\"}\nfeatureGates: {DefaultPodSysctls: true}"
        ),
        [""; 0]
    );
}

#[test]
fn resources() {
    check(&[
        (
            "systemCgroups: /s",
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
        ),
        (
            "cpuCFSQuotaPeriod: 2s",
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, inclusive",
        ),
        (
            "cpuCFSQuotaPeriod: 10ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}",
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 10ms requires feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "memoryThrottlingFactor: 0.5\nfeatureGates: {MemoryQoS: false}",
            "memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled",
        ),
        (
            "memoryThrottlingFactor: 0",
            "memoryThrottlingFactor 0 must be greater than 0 and less than or equal to 1.0",
        ),
        (
            "memoryThrottlingFactor: 1.1",
            "memoryThrottlingFactor 1.1 must be greater than 0 and less than or equal to 1.0",
        ),
        (
            "memoryReservationPolicy: TieredReservation\nfeatureGates: {MemoryQoS: false}",
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled",
        ),
        // C26.
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}",
            "cpuManagerPolicyOptions need cpuManagerPolicy (--cpu-manager-policy) static, not \"none\"",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpu-only: \"true\"}",
            "unknown CPU Manager Policy option: \"full-pcpu-only\" in cpuManagerPolicyOptions",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}",
            "option \"align-by-socket\" of cpuManagerPolicyOptions requires feature gate CPUManagerPolicyAlphaOptions",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: sure}",
            "bad value for option \"full-pcpus-only\" in cpuManagerPolicyOptions: \"sure\"",
        ),
        (
            "cpuManagerPolicy: static\nfeatureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerPolicyOptions: {full-pcpus-only: \"true\", distribute-cpus-across-cores: \"true\"}",
            "static policy options full-pcpus-only and distribute-cpus-across-cores of cpuManagerPolicyOptions can not be used at the same time",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: \"true\", distribute-cpus-across-numa: \"true\"}",
            "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa of cpuManagerPolicyOptions can not be used at the same time",
        ),
        (
            "cpuManagerPolicy: static\ntopologyManagerPolicy: single-numa-node\nfeatureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}",
            "topologyManagerPolicy single-numa-node is incompatible with the option align-by-socket of cpuManagerPolicyOptions",
        ),
        (
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"7\"}",
            "the minimum value of \"max-allowable-numa-nodes\" in topologyManagerPolicyOptions should not be less than 8, got \"7\"",
        ),
        (
            "topologyManagerPolicyOptions: {odd: \"7\"}",
            "unknown Topology Manager Policy option: \"odd\" in topologyManagerPolicyOptions",
        ),
        (
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"7\"}",
            "bad value for option \"prefer-closest-numa-nodes\" in topologyManagerPolicyOptions: \"7\"",
        ),
        ("qosReserved: {cpu: 50%}", "cannot reserve \"cpu\" resource in qosReserved (--qos-reserved)"),
        (
            "qosReserved: {memory: 101%}",
            "percentage \"101%\" for \"memory\" in qosReserved (--qos-reserved) must be between 0% and 100%",
        ),
        (
            "reservedSystemCPUs: 0-1\nkubeReservedCgroup: /k",
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
        ),
        ("reservedSystemCPUs: 1-0", "unable to parse reservedSystemCPUs (--reserved-cpus) 1-0"),
        (
            "systemReserved: {gpu: \"1\"}",
            "cannot reserve \"gpu\" resource in systemReserved (--system-reserved)",
        ),
        (
            "kubeReserved: {cpu: much}",
            "failed to parse quantity \"much\" for \"cpu\" resource in kubeReserved (--kube-reserved)",
        ),
        (
            "kubeReserved: {cpu: \"-1\"}",
            "resource quantity for \"cpu\" in kubeReserved (--kube-reserved) cannot be negative: -1",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
            "the limit type \"cpu\" for NUMA node 0 in reservedMemory is not supported, only [memory hugepages-<HugePageSize>] is accepted",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]",
            "reserved memory may not be zero for NUMA node 0 and resource \"memory\" in reservedMemory",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 1}}]",
            "the reserved memory has a duplicate value for NUMA node 0 and resource \"memory\" in reservedMemory",
        ),
    ]);
    assert_eq!(
        messages("memoryThrottlingFactor: 0.9\nfeatureGates: {MemoryQoS: false}"),
        [""; 0],
        "the former default"
    );
}

#[test]
fn node_allocatable() {
    const NAME: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
    for (body, expected) in [
        ("[pods, pods]", format!("duplicated enforcements \"pods\" in {NAME}")),
        (
            "[none, pods]",
            format!("{NAME} may not contain additional enforcements when \"none\" is specified"),
        ),
        (
            "[pod]",
            format!(
                "option \"pod\" specified for {NAME}. Valid options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \"none\""
            ),
        ),
        (
            "[system-reserved]",
            format!(
                "systemReservedCgroup (--system-reserved-cgroup) must be specified when \"system-reserved\" or \"system-reserved-compressible\" included in {NAME}"
            ),
        ),
        (
            "[kube-reserved-compressible]",
            format!(
                "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when \"kube-reserved\" or \"kube-reserved-compressible\" included in {NAME}"
            ),
        ),
        (
            "[system-reserved, system-reserved-compressible]",
            format!(
                "both \"system-reserved\" and \"system-reserved-compressible\" cannot be specified together in {NAME}"
            ),
        ),
        (
            "[pods]\ncgroupsPerQOS: false",
            format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in {NAME}"
            ),
        ),
    ] {
        check(&[(&format!("enforceNodeAllocatable: {body}"), &expected)]);
    }
    assert_eq!(messages("enforceNodeAllocatable: [none]\ncgroupsPerQOS: false"), [""; 0]);
    assert_eq!(messages("enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /k"), [""; 0]);
}

#[test]
fn eviction() {
    check(&[
        ("evictionHard: {memory.avail: 1Gi}", "unsupported eviction signal memory.avail in evictionHard"),
        (
            "evictionHard: {memory.available: 101%}",
            "eviction percentage threshold memory.available in evictionHard must be between 0% and 100%: 101%",
        ),
        (
            "evictionHard: {memory.available: \"0\"}",
            "eviction threshold memory.available in evictionHard must be positive: 0",
        ),
        ("evictionHard: {memory.available: much}", "eviction threshold memory.available in evictionHard"),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        ("evictionSoftGracePeriod: {memory.available: soon}", "memory.available in evictionSoftGracePeriod"),
        (
            "evictionSoftGracePeriod: {memory.available: -1s}",
            "invalid eviction grace period specified: -1s for memory.available in evictionSoftGracePeriod, must be a positive value",
        ),
        (
            "evictionMinimumReclaim: {nodefs.available: 0%}",
            "eviction percentage threshold nodefs.available in evictionMinimumReclaim must be positive: 0%",
        ),
        (
            "evictionMinimumReclaim: {nodefs.available: \"-1\"}",
            "eviction threshold nodefs.available in evictionMinimumReclaim must be positive: -1",
        ),
    ]);
    assert_eq!(
        messages(
            "evictionHard: {nodefs.available: 0%, pid.available: 2.5%}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}\nevictionMinimumReclaim: {nodefs.available: 0Mi}"
        ),
        [""; 0]
    );
}

#[test]
fn flags_only() {
    for (argument, expected) in [
        ("--port=0", "port (--port) 0 must be between 1 and 65535, inclusive"),
        ("--container-runtime-endpoint=", "the containerRuntimeEndpoint was not specified or empty"),
        (
            "--cloud-provider=aws",
            "option \"aws\" specified for --cloud-provider. Valid options are \"\" or \"external\"",
        ),
        (
            "--exit-on-lock-contention",
            "cannot exit on lock file contention: no lock file specified (--exit-on-lock-contention)",
        ),
        (
            "--node-labels=kubernetes.io/role=x",
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [kubernetes.io/role]",
        ),
        ("--node-labels=a/b/c=x", "invalid node labels: 'a/b/c=x' in --node-labels"),
        ("--node-labels=a=-x", "invalid node labels: 'a=-x' in --node-labels"),
        (
            "--node-ip=10.0.0.1,10.0.0.2",
            "bad --node-ip \"10.0.0.1,10.0.0.2\": must contain either a single IP or a dual-stack pair of IPs",
        ),
        (
            "--node-ip=10.0.0.1,::",
            "bad --node-ip \"10.0.0.1,::\": dual-stack node IP cannot include '0.0.0.0' or '::'",
        ),
        ("--root-dir=", "invalid root directory \"\" (--root-dir)"),
    ] {
        let problems = load(&parse_kubelet_flags([argument]).unwrap()).unwrap_err();
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert!(
            messages.contains(&format!("invalid configuration: {expected}").as_str()),
            "{argument}: {messages:#?}"
        );
        assert!(problems.iter().all(|problem| problem.source_name == "command line"), "{argument}");
    }
    for argument in [
        "--node-labels=node.kubernetes.io/x=y,kubernetes.io/os=linux,sub.kubelet.kubernetes.io/a=",
        "--node-ip=10.0.0.1,fd00::1",
        "--node-ip=::",
        "--lock-file=/l",
    ] {
        load(&parse_kubelet_flags([argument]).unwrap())
            .unwrap_or_else(|problems| panic!("{argument}: {problems:?}"));
    }
}

#[test]
fn remarks_do_not_stop_the_start() {
    let loaded = load_text(
        "f",
        &format!("{HEAD}clusterDNS: [nowhere]\ncontainerRuntimeEndpoint: /run/c.sock\nkubeletCgroups: /a\nkubeReservedCgroup: /b\ntlsMinVersion: VersionTLS13\ntlsCipherSuites: [TLS_AES_128_GCM_SHA256]\n"),
    )
    .unwrap();
    assert_eq!(
        loaded.notices,
        [
            "clusterDNS entry \"nowhere\" is not an IP address and is left out",
            "containerRuntimeEndpoint \"/run/c.sock\" is taken for unix:///run/c.sock; write the full URL",
            "kubeletCgroups \"/a\" is not within kubeReservedCgroup \"/b\"",
            "tlsCipherSuites has no effect: TLS 1.3 has its own cipher suites",
        ]
    );
}

#[test]
fn the_host() {
    let config = |body: &str| load_text("f", &format!("{HEAD}{body}\n")).unwrap().config;
    let v1 = HostFacts { cgroup_v2: false };
    let v2 = HostFacts { cgroup_v2: true };
    let paths = |body: &str, host| -> Vec<String> {
        check_host(&config(body), host).into_iter().map(|problem| problem.path).collect()
    };
    assert_eq!(paths("", v2), [""; 0]);
    assert_eq!(paths("", v1), ["failCgroupV1"]);
    assert_eq!(paths("failCgroupV1: false", v1), [""; 0]);
    assert_eq!(paths("failCgroupV1: false\nsingleProcessOOMKill: false", v1), ["singleProcessOOMKill"]);
    assert_eq!(paths("singleProcessOOMKill: false\nmemorySwap: {swapBehavior: LimitedSwap}", v2), [""; 0]);
    assert_eq!(
        paths("failCgroupV1: false\nmemorySwap: {swapBehavior: LimitedSwap}", v1),
        ["memorySwap.swapBehavior"]
    );
}

#[test]
fn families_of_metrics() {
    let settings = |patterns: &[&str]| Settings {
        metrics_deny: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
        ..Settings::default()
    };
    let fine = ["container_fs_*", "up", "a:b", "_x9", "*"];
    assert_eq!(validate_settings(&settings(&fine)), []);
    for bad in ["", "a*b", "**", "9a", "a-b", "a{b=\"c\"}", " a", "a b", "*_total"] {
        let problems = validate_settings(&settings(&["up", bad]));
        let [problem] = problems.as_slice() else { panic!("{bad:?}: {problems:?}") };
        assert_eq!(problem.path, "--metrics-deny");
        assert!(problem.to_string().contains("names no family of metrics"), "{problem}");
        assert!(problem.to_string().contains("such as container_fs_*"), "{problem}");
    }
    let allowed = Settings { metrics_allow: vec!["?".into()], ..Settings::default() };
    assert_eq!(validate_settings(&allowed)[0].path, "--metrics-allow");
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(validate(&KubeletConfiguration::default(), &FeatureGates::default()), []);
    assert_eq!(validate_settings(&Settings::default()), []);
}
