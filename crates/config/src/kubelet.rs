//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1` in Kubernetes 1.37: every field, defined once.
//!
//! The numbers, names and strings are upstream's (`staging/src/k8s.io/kubelet/config/v1beta1/types.go` and
//! `pkg/kubelet/apis/config/v1beta1/defaults.go` of 1.37); the sentences are ours.

mod parts;

use std::collections::BTreeMap;

use crate::definition::{Check, FlagStyle, definitions};
use crate::duration::GoDuration;
use crate::secret::SecretHeaders;

pub use parts::{
    AnonymousAuthentication, Authentication, Authorization, CrashLoopBackOff, JsonOutputRouting, Logging,
    LoggingOptions, MemoryReservation, MemorySwap, OutputRouting, PriorityGracePeriod, Taint, Tracing,
    UserNamespaces, VModuleItem, WebhookAuthentication, WebhookAuthorization, X509Authentication,
};

/// The `apiVersion` of the configuration.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The `kind` of the configuration.
pub const KIND: &str = "KubeletConfiguration";

definitions! {
    /// The configuration of a node agent; its default is what an empty file gives.
    pub struct KubeletConfiguration {
        section "Pods from files and URLs" {
            /// Directory of static pod manifests, or a single manifest file; empty for none.
            "staticPodPath" static_pod_path: String, flag("pod-manifest-path").path().acted();
            /// URL from which static pod manifests are fetched; empty for none.
            "staticPodURL" static_pod_url: String, flag("manifest-url").acted()
                .check(Check::Rule("must be an http or https URL"));
            /// Headers sent with requests to `staticPodURL`; their values are never shown.
            "staticPodURLHeader" static_pod_url_header: SecretHeaders,
                flag_as("manifest-url-header", FlagStyle::Colon).acted()
                .check(Check::Rule("names and values must be what HTTP allows in a header"));
            /// How often `staticPodPath` is read again even if no change was noticed.
            "fileCheckFrequency" file_check_frequency: GoDuration = "20s",
                flag("file-check-frequency").acted().check(Check::NotNegative);
            /// How often `staticPodURL` is fetched.
            "httpCheckFrequency" http_check_frequency: GoDuration = "20s",
                flag("http-check-frequency").acted().check(Check::NotNegative);
            /// The longest time between two looks at a pod that has not changed.
            "syncFrequency" sync_frequency: GoDuration = "1m0s",
                flag("sync-frequency").acted().check(Check::NotNegative);
        }
        section "HTTP server" {
            /// Serve the HTTPS API on `address` and `port`.
            "enableServer" enable_server: bool = "true", flag("enable-server").zero_counts().acted();
            /// IP address of the HTTPS and read-only ports; `0.0.0.0` or `::` for all.
            "address" address: String = "0.0.0.0",
                flag_as("address", FlagStyle::Address).acted().check(Check::Address);
            /// Port of the HTTPS API.
            "port" port: i32 = "10250", flag("port").acted().check(Check::Port);
            /// Port of the read-only API, which asks nobody who they are; 0 for none.
            "readOnlyPort" read_only_port: i32, flag("read-only-port").acted().check(Check::PortOrOff)
                .note("closed in every mode; upstream opens 10255 when it is started without --config");
            /// Port of the health endpoint; 0 for none.
            "healthzPort" healthz_port: i32 = "10248",
                flag("healthz-port").acted().zero_counts().check(Check::PortOrOff);
            /// IP address of the health endpoint.
            "healthzBindAddress" healthz_bind_address: String = "127.0.0.1",
                flag_as("healthz-bind-address", FlagStyle::Address).acted().check(Check::Address);
            /// Serve exec, attach, port-forward, run and container logs.
            "enableDebuggingHandlers" enable_debugging_handlers: bool = "true",
                flag("enable-debugging-handlers").zero_counts().acted();
            /// Collect lock contention for the profiling endpoints.
            "enableContentionProfiling" enable_contention_profiling: bool, flag("contention-profiling");
            /// Serve `/debug/pprof/`.
            "enableProfilingHandler" enable_profiling_handler: bool = "true", zero_counts().acted();
            /// Serve `/debug/flags/v`, which changes the log level.
            "enableDebugFlagsHandler" enable_debug_flags_handler: bool = "true", zero_counts().acted();
            /// Serve the node's log files under `/logs/`.
            "enableSystemLogHandler" enable_system_log_handler: bool = "true", zero_counts().acted();
            /// Answer log queries (`?query=`) under `/logs/`.
            "enableSystemLogQuery" enable_system_log_query: bool,
                zero_counts().acted().gate("NodeLogQuery").check(Check::Rule("needs enableSystemLogHandler"));
            /// How long exec, attach and port-forward may go without a byte before they are ended; 0 for no limit; upstream has dropped it in 1.37.
            "streamingConnectionIdleTimeout" streaming_connection_idle_timeout: GoDuration = "4h0m0s",
                flag("streaming-connection-idle-timeout").acted();
            /// Show the metrics that this release hides, if it is the release before this one (`1.36`).
            "showHiddenMetricsForVersion" show_hidden_metrics_for_version: String,
                check(Check::Rule("must be empty or \"1.36\""));
            /// OpenTelemetry collector for traces; absent for none.
            "tracing" tracing: Option<Tracing>;
        }
        section "Certificates and access" {
            /// Who may call the HTTPS API.
            "authentication" authentication: Authentication;
            /// What callers of the HTTPS API may do.
            "authorization" authorization: Authorization;
            /// Certificate of the HTTPS API in PEM, with its intermediates; self-signed in `--cert-dir` if empty.
            "tlsCertFile" tls_cert_file: String, flag("tls-cert-file").path().acted();
            /// Private key that belongs to `tlsCertFile`.
            "tlsPrivateKeyFile" tls_private_key_file: String, flag("tls-private-key-file").path().acted();
            /// Cipher suites of the HTTPS API by their Go names; TLS 1.3 has its own.
            "tlsCipherSuites" tls_cipher_suites: Vec<String>, flag("tls-cipher-suites").acted()
                .check(Check::Rule("must be names of Go's crypto/tls cipher suites"));
            /// Key exchange groups of the HTTPS API by their TLS numbers.
            "tlsCurvePreferences" tls_curve_preferences: Vec<i32>,
                acted().check(Check::Rule("must be different group numbers that are known"));
            /// Lowest TLS version of the HTTPS API; 1.2 if empty.
            "tlsMinVersion" tls_min_version: String, flag("tls-min-version").acted()
                .check(Check::OneOf(&["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]));
            /// Ask the API server for a new client certificate before the old one expires.
            "rotateCertificates" rotate_certificates: bool, flag("rotate-certificates");
            /// Ask the API server for the serving certificate instead of signing one.
            "serverTLSBootstrap" server_tls_bootstrap: bool,
                flag("rotate-server-certificates").gate("RotateKubeletServerCertificate");
        }
        section "Node and API server" {
            /// Create the Node object if it is missing.
            "registerNode" register_node: bool = "true", flag("register-node").zero_counts().acted();
            /// Taints of the Node object when it is created.
            "registerWithTaints" register_with_taints: Vec<Taint>,
                flag_as("register-with-taints", FlagStyle::Taints)
                .check(Check::Rule("keys, values and effects must be valid; timeAdded must be absent")).acted();
            /// Name by which the cloud knows the machine.
            "providerID" provider_id: String, flag("provider-id").kept().acted();
            /// How often the node's status is computed.
            "nodeStatusUpdateFrequency" node_status_update_frequency: GoDuration = "10s",
                flag("node-status-update-frequency").check(Check::NotNegative).acted();
            /// How often an unchanged status is sent all the same.
            "nodeStatusReportFrequency" node_status_report_frequency: GoDuration = "5m0s",
                check(Check::NotNegative).acted()
                .note("equals nodeStatusUpdateFrequency if a file sets that one and not this one");
            /// How many seconds the node's lease lasts.
            "nodeLeaseDurationSeconds" node_lease_duration_seconds: i32 = "40",
                check(Check::Rule("must be greater than 0")).acted();
            /// How many images the node's status lists; -1 for all.
            "nodeStatusMaxImages" node_status_max_images: i32 = "50",
                flag("node-status-max-images").zero_counts().check(Check::AtLeast(-1)).acted();
            /// Events sent per second; 0 for no limit.
            "eventRecordQPS" event_record_qps: i32 = "50",
                flag("event-qps").zero_counts().check(Check::AtLeast(0)).acted();
            /// Events that may be sent at once above `eventRecordQPS`.
            "eventBurst" event_burst: i32 = "100", flag("event-burst").check(Check::AtLeast(0)).acted();
            /// Requests per second to the API server.
            "kubeAPIQPS" kube_api_qps: i32 = "50",
                flag("kube-api-qps").zero_counts().acted().check(Check::AtLeast(0));
            /// Requests that may be made at once above `kubeAPIQPS`.
            "kubeAPIBurst" kube_api_burst: i32 = "100", flag("kube-api-burst").acted().check(Check::AtLeast(0));
            /// Content type of requests to the API server.
            "contentType" content_type: String = "application/vnd.kubernetes.protobuf",
                flag("kube-api-content-type");
            /// How changes of ConfigMaps and Secrets are learned.
            "configMapAndSecretChangeDetectionStrategy" config_map_and_secret_change_detection_strategy: String = "Watch",
                check(Check::OneOf(&["Get", "Cache", "Watch"]));
            /// Leave attaching and detaching of volumes to the controller.
            "enableControllerAttachDetach" enable_controller_attach_detach: bool = "true",
                flag("enable-controller-attach-detach").zero_counts();
            /// Run the pods once and exit; no longer possible.
            "runOnce" run_once: bool, flag("runonce").check(Check::Rule("must be false"));
        }
        section "Container runtime" {
            /// Socket of the CRI runtime.
            "containerRuntimeEndpoint" container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock",
                flag("container-runtime-endpoint").acted().check(Check::Rule("must be a unix:// URL"));
            /// Socket of the CRI image service; the runtime's if empty.
            "imageServiceEndpoint" image_service_endpoint: String,
                flag("image-service-endpoint").acted().check(Check::Rule("must be empty or a unix:// URL"));
            /// The longest a runtime call may take, except pull, logs, exec and attach.
            "runtimeRequestTimeout" runtime_request_timeout: GoDuration = "2m0s",
                flag("runtime-request-timeout").acted().check(Check::NotNegative);
            /// Back-off of containers that keep failing.
            "crashLoopBackOff" crash_loop_back_off: CrashLoopBackOff;
            /// Give containers without a seccomp profile the runtime's default one.
            "seccompDefault" seccomp_default: bool,
                flag_as("seccomp-default", FlagStyle::OnlyTrue).kept().zero_counts().acted();
        }
        section "Images" {
            /// Image pulls per second; 0 for no limit.
            "registryPullQPS" registry_pull_qps: i32 = "5",
                flag("registry-qps").zero_counts().acted().check(Check::AtLeast(0));
            /// Image pulls that may start at once above `registryPullQPS`.
            "registryBurst" registry_burst: i32 = "10", flag("registry-burst").acted().check(Check::AtLeast(0));
            /// Pull one image at a time.
            "serializeImagePulls" serialize_image_pulls: bool = "true",
                flag("serialize-image-pulls").zero_counts().acted()
                .note("false if maxParallelImagePulls is 2 or more and this is not set");
            /// Image pulls at the same time when they are not serialized; absent for no limit.
            "maxParallelImagePulls" max_parallel_image_pulls: Option<i32>,
                acted().check(Check::Rule("must be at least 1, and 1 if serializeImagePulls is on"));
            /// When a pod must prove that it may use an image that is already on the node.
            "imagePullCredentialsVerificationPolicy" image_pull_credentials_verification_policy: String = "NeverVerifyPreloadedImages",
                acted().gate("KubeletEnsureSecretPulledImages")
                .check(Check::OneOf(&["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"]));
            /// Images that need no proof under `NeverVerifyAllowlistedImages`; `registry/path/*` stands for all below.
            "preloadedImagesVerificationAllowlist" preloaded_images_verification_allowlist: Vec<String>,
                acted().gate("KubeletEnsureSecretPulledImages")
                .check(Check::Rule("image names without tag or digest, or a path ending in /*; only with NeverVerifyAllowlistedImages"));
            /// How long an unused image is kept at least.
            "imageMinimumGCAge" image_minimum_gc_age: GoDuration = "2m0s",
                flag("minimum-image-ttl-duration").check(Check::NotNegative);
            /// How long an unused image is kept at most; 0s for as long as there is room.
            "imageMaximumGCAge" image_maximum_gc_age: GoDuration = "0s",
                gate("ImageMaximumGCAge").check(Check::Rule("0s, or longer than imageMinimumGCAge"));
            /// Disk usage in percent above which unused images are removed; 100 for never.
            "imageGCHighThresholdPercent" image_gc_high_threshold_percent: i32 = "85",
                flag("image-gc-high-threshold").zero_counts().check(Check::Between(0, 100));
            /// Disk usage in percent down to which they are removed.
            "imageGCLowThresholdPercent" image_gc_low_threshold_percent: i32 = "80",
                flag("image-gc-low-threshold").zero_counts().check(Check::Between(0, 100))
                .note("must be less than imageGCHighThresholdPercent");
        }
        section "Pods and their environment" {
            /// Pods that may run on the node.
            "maxPods" max_pods: i32 = "110", flag("max-pods").acted().check(Check::AtLeast(0));
            /// Pods that may run for each CPU; 0 for no such limit.
            "podsPerCore" pods_per_core: i32, flag("pods-per-core").acted().check(Check::AtLeast(0));
            /// Processes that a pod may have; -1 for as many as the node allows.
            "podPidsLimit" pod_pids_limit: i64 = "-1", flag("pod-max-pids").acted().zero_counts();
            /// Address range of pods when there is no API server to give one.
            "podCIDR" pod_cidr: String, flag("pod-cidr").acted()
                .check(Check::Rule("must be empty or address ranges such as 10.100.0.0/24, comma-separated"));
            /// DNS domain that containers search besides the host's.
            "clusterDomain" cluster_domain: String, flag("cluster-domain").acted();
            /// DNS servers of pods with dnsPolicy ClusterFirst.
            "clusterDNS" cluster_dns: Vec<String>, flag("cluster-dns").acted()
                .check(Check::Rule("entries that are not IP addresses are left out, with a notice"));
            /// Resolver file that container DNS starts from; empty for none.
            "resolvConf" resolv_conf: String = "/etc/resolv.conf",
                flag("resolv-conf").path().zero_counts().acted();
            /// Unused since the runtime owns the network; kept for old files.
            "hairpinMode" hairpin_mode: String = "promiscuous-bridge", flag("hairpin-mode")
                .check(Check::OneOf(&["promiscuous-bridge", "hairpin-veth", "none"]));
            /// Sysctls beyond the safe ones that pods may ask for; a name may end in `*`.
            "allowedUnsafeSysctls" allowed_unsafe_sysctls: Vec<String>, flag("allowed-unsafe-sysctls").acted();
            /// Sysctls that every pod gets unless it sets them itself.
            "defaultPodSysctls" default_pod_sysctls: BTreeMap<String, String>,
                gate("DefaultPodSysctls").check(Check::Rule("names must be valid, namespaced and different"));
            /// Sizes of the ID ranges of pods with user namespaces; absent for the default of 65536 IDs.
            "userNamespaces" user_namespaces: Option<UserNamespaces>;
            /// Directory of FlexVolume plugins.
            "volumePluginDir" volume_plugin_dir: String = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
                flag("volume-plugin-dir").path();
            /// How often the disk usage of volumes is computed; negative for never.
            "volumeStatsAggPeriod" volume_stats_agg_period: GoDuration = "1m0s", flag("volume-stats-agg-period").acted();
            /// Count and limit the disk space that pods use on the node.
            "localStorageCapacityIsolation" local_storage_capacity_isolation: bool = "true",
                flag("local-storage-capacity-isolation").zero_counts().acted();
        }
        section "Container logs" {
            /// Directory of the pods' log files.
            "podLogsDir" pod_logs_dir: String = "/var/log/pods", path().acted()
                .check(Check::Rule("must be an absolute, normalized path of ASCII characters"));
            /// Size at which a container's log file is rotated.
            "containerLogMaxSize" container_log_max_size: String = "10Mi",
                flag("container-log-max-size").acted().check(Check::QuantityAtLeast(1));
            /// Log files kept for a container, the current one among them.
            "containerLogMaxFiles" container_log_max_files: i32 = "5",
                flag("container-log-max-files").zero_counts().acted()
                .check(Check::Rule("must be greater than 1"));
            /// Rotations that may happen at the same time.
            "containerLogMaxWorkers" container_log_max_workers: i32 = "1",
                zero_counts().acted().check(Check::Rule("must be greater than or equal to 1"));
            /// How often log sizes are looked at.
            "containerLogMonitorInterval" container_log_monitor_interval: GoDuration = "10s",
                zero_counts().acted().check(Check::DurationAtLeast(3000));
        }
        section "Cgroups and resources" {
            /// Cgroup under which pods live; `/` if empty and `cgroupsPerQOS` is on.
            "cgroupRoot" cgroup_root: String, flag("cgroup-root").acted();
            /// Give QoS classes and pods cgroups of their own.
            "cgroupsPerQOS" cgroups_per_qos: bool = "true", flag("cgroups-per-qos").zero_counts().acted();
            /// How cgroups are made; the runtime's answer goes before it.
            "cgroupDriver" cgroup_driver: String = "cgroupfs", flag("cgroup-driver").acted()
                .check(Check::OneOf(&["cgroupfs", "systemd"]));
            /// Refuse to start on cgroup v1.
            "failCgroupV1" fail_cgroup_v1: bool = "true", flag("fail-cgroupv1").kept().zero_counts().acted();
            /// Cgroup into which the agent moves itself; empty to stay.
            "kubeletCgroups" kubelet_cgroups: String, flag("kubelet-cgroups").acted();
            /// Cgroup for all processes that are in none; empty to leave them.
            "systemCgroups" system_cgroups: String, flag("system-cgroups").acted()
                .check(Check::Rule("needs cgroupRoot"));
            /// Kill processes of a container one by one when memory runs out, not all together.
            "singleProcessOOMKill" single_process_oom_kill: Option<bool>,
                acted().check(Check::Rule("must not be false on cgroup v1"))
                .note("absent: false on cgroup v2, true on v1");
            /// Enforce CPU limits.
            "cpuCFSQuota" cpu_cfs_quota: bool = "true", flag("cpu-cfs-quota").zero_counts().acted();
            /// The period over which CPU limits are enforced.
            "cpuCFSQuotaPeriod" cpu_cfs_quota_period: GoDuration = "100ms",
                flag("cpu-cfs-quota-period").zero_counts().acted().gate("CustomCPUCFSQuotaPeriod")
                .check(Check::Rule("must be between 1ms and 1s"));
            /// Whether containers may have CPUs to themselves.
            "cpuManagerPolicy" cpu_manager_policy: String = "none", flag("cpu-manager-policy").acted()
                .check(Check::OneOf(&["none", "static"]));
            /// Options of the static CPU policy.
            "cpuManagerPolicyOptions" cpu_manager_policy_options: BTreeMap<String, String>,
                flag_as("cpu-manager-policy-options", FlagStyle::OnePair)
                .acted().check(Check::Rule("known options with true or false, only with the static policy"));
            /// How often CPU assignments are compared with the runtime's.
            "cpuManagerReconcilePeriod" cpu_manager_reconcile_period: GoDuration = "10s",
                flag("cpu-manager-reconcile-period").acted();
            /// Whether memory of guaranteed pods is pinned to NUMA nodes.
            "memoryManagerPolicy" memory_manager_policy: String = "None", flag("memory-manager-policy")
                .acted().check(Check::OneOf(&["None", "Static"]));
            /// Memory of each NUMA node that is kept from pods.
            "reservedMemory" reserved_memory: Vec<MemoryReservation>,
                flag_as("reserved-memory", FlagStyle::ReservedMemory)
                .acted().check(Check::Rule("memory or hugepages-SIZE, not zero, once for each NUMA node"))
                .note("with memoryManagerPolicy Static the sum over all nodes must be exactly what systemReserved, kubeReserved and memory.available of evictionHard (100Mi if unset) keep back");
            /// How strictly CPUs, memory and devices must lie on the same NUMA nodes.
            "topologyManagerPolicy" topology_manager_policy: String = "none", flag("topology-manager-policy")
                .acted().check(Check::OneOf(&["none", "best-effort", "restricted", "single-numa-node"]));
            /// Whether alignment is sought for each container or for whole pods.
            "topologyManagerScope" topology_manager_scope: String = "container", flag("topology-manager-scope")
                .acted().check(Check::OneOf(&["container", "pod"]));
            /// Options of the topology policy.
            "topologyManagerPolicyOptions" topology_manager_policy_options: BTreeMap<String, String>,
                flag("topology-manager-policy-options")
                .acted().check(Check::Rule("prefer-closest-numa-nodes (true or false), max-allowable-numa-nodes (8 or more)"));
            /// Percentage of a resource that is kept for guaranteed pods; only `memory`.
            "qosReserved" qos_reserved: BTreeMap<String, String>, flag("qos-reserved").gate("QOSReserved").acted()
                .check(Check::Rule("memory with a percentage from 0% to 100%"));
            /// Fraction of the memory limit at which a container is slowed down; absent for no slowing down.
            "memoryThrottlingFactor" memory_throttling_factor: Option<f64>, gate("MemoryQoS").acted()
                .check(Check::Rule("must be greater than 0 and at most 1"));
            /// Whether the memory that pods request is protected from reclaim.
            "memoryReservationPolicy" memory_reservation_policy: String = "None",
                gate("MemoryQoS").acted()
                .check(Check::OneOf(&["None", "TieredReservation"]));
            /// Refuse to start while swap is on.
            "failSwapOn" fail_swap_on: bool = "true", flag("fail-swap-on").zero_counts().acted();
            /// Whether pods may swap.
            "memorySwap" memory_swap: MemorySwap;
            /// Protection of the agent from the kernel's OOM killer, from -1000 (never) to 1000 (first).
            "oomScoreAdj" oom_score_adj: i32 = "-999",
                flag("oom-score-adj").zero_counts().acted().check(Check::Between(-1000, 1000));
            /// Files that the agent may have open.
            "maxOpenFiles" max_open_files: i64 = "1000000", flag("max-open-files").acted().check(Check::AtLeast(0));
            /// Fail on kernel settings that differ from what is needed, instead of changing them.
            "protectKernelDefaults" protect_kernel_defaults: bool, flag("protect-kernel-defaults").acted();
            /// Create the iptables chain by which other programs learn which iptables is in use.
            "makeIPTablesUtilChains" make_iptables_util_chains: bool = "true",
                flag("make-iptables-util-chains").zero_counts().acted();
            /// Without effect; kept for old files.
            "iptablesMasqueradeBit" iptables_masquerade_bit: i32 = "14", zero_counts().check(Check::Between(0, 31));
            /// Without effect; kept for old files.
            "iptablesDropBit" iptables_drop_bit: i32 = "15", zero_counts().check(Check::Between(0, 31));
        }
        section "Resources kept from pods" {
            /// Resources for the system: cpu, memory, ephemeral-storage, pid.
            "systemReserved" system_reserved: BTreeMap<String, String>, flag("system-reserved").acted()
                .check(Check::Rule("quantities of cpu, memory, ephemeral-storage and pid, not negative"));
            /// Resources for Kubernetes' own programs: cpu, memory, ephemeral-storage, pid.
            "kubeReserved" kube_reserved: BTreeMap<String, String>, flag("kube-reserved").acted()
                .check(Check::Rule("quantities of cpu, memory, ephemeral-storage and pid, not negative"));
            /// CPUs for the system, as a list such as `0-1,4`; goes before the counts above.
            "reservedSystemCPUs" reserved_system_cpus: String, flag("reserved-cpus").acted()
                .check(Check::Rule("a CPU list; not together with systemReservedCgroup or kubeReservedCgroup"));
            /// Cgroup in which `systemReserved` is enforced.
            "systemReservedCgroup" system_reserved_cgroup: String, flag("system-reserved-cgroup").acted();
            /// Cgroup in which `kubeReserved` is enforced.
            "kubeReservedCgroup" kube_reserved_cgroup: String, flag("kube-reserved-cgroup").acted();
            /// Which reservations are enforced by cgroups.
            "enforceNodeAllocatable" enforce_node_allocatable: Vec<String> = "[\"pods\"]",
                flag("enforce-node-allocatable").acted()
                .check(Check::Rule("none, pods, system-reserved[-compressible], kube-reserved[-compressible], with their cgroups"));
        }
        section "Eviction" {
            /// Thresholds below which the node is under pressure, such as `memory.available: 100Mi`: it says so and takes fewer pods.
            /// Pods that run are not evicted yet.
            "evictionHard" eviction_hard: BTreeMap<String, String>,
                flag_as("eviction-hard", FlagStyle::LessThan)
                .check(Check::Rule("known signals with a quantity or a percentage")).acted()
                .note("memory.available 100Mi, nodefs.available 10%, nodefs.inodesFree 5%, imagefs.available 15%, imagefs.inodesFree 5% if the --config file does not set it; empty without --config");
            /// The same for pods that would be evicted after a grace period only; the node says so at once.
            "evictionSoft" eviction_soft: BTreeMap<String, String>,
                flag_as("eviction-soft", FlagStyle::LessThan)
                .check(Check::Rule("known signals, each with a grace period in evictionSoftGracePeriod")).acted();
            /// How long a soft threshold must be passed before it counts until evictionMinimumReclaim is free.
            "evictionSoftGracePeriod" eviction_soft_grace_period: BTreeMap<String, String>,
                flag("eviction-soft-grace-period").check(Check::Rule("known signals with a duration, not negative")).acted();
            /// How long pressure is reported after it has ended.
            "evictionPressureTransitionPeriod" eviction_pressure_transition_period: GoDuration = "5m0s",
                flag("eviction-pressure-transition-period").acted();
            /// The longest grace period in seconds of pods evicted by a soft threshold; negative for the pod's own.
            "evictionMaxPodGracePeriod" eviction_max_pod_grace_period: i32, flag("eviction-max-pod-grace-period");
            /// How much more than the threshold must be free for the pressure to be over.
            "evictionMinimumReclaim" eviction_minimum_reclaim: BTreeMap<String, String>,
                flag("eviction-minimum-reclaim")
                .check(Check::Rule("known signals with a quantity or a percentage, not negative")).acted();
            /// Keep the default hard thresholds that `evictionHard` does not name.
            "mergeDefaultEvictionSettings" merge_default_eviction_settings: bool, zero_counts().acted();
            /// Learn of low memory from the kernel instead of by polling.
            "kernelMemcgNotification" kernel_memcg_notification: bool, flag("kernel-memcg-notification");
        }
        section "Node shutdown" {
            /// How long a shutdown of the machine is delayed for pods to end; 0s for not at all.
            "shutdownGracePeriod" shutdown_grace_period: GoDuration = "0s", gate("GracefulNodeShutdown")
                .check(Check::Rule("0s, or 1s and longer"));
            /// The part of it that is kept for critical pods.
            "shutdownGracePeriodCriticalPods" shutdown_grace_period_critical_pods: GoDuration = "0s",
                gate("GracefulNodeShutdown")
                .check(Check::Rule("0s, or 1s and longer, and not longer than shutdownGracePeriod"));
            /// Grace periods by pod priority, instead of the two above.
            "shutdownGracePeriodByPodPriority" shutdown_grace_period_by_pod_priority: Vec<PriorityGracePeriod>,
                gate("GracefulNodeShutdownBasedOnPodPriority")
                .check(Check::Rule("not together with shutdownGracePeriod"));
        }
        section "Logging and features" {
            /// How the agent itself logs.
            "logging" logging: Logging;
            /// Feature gates to turn on or off; file and flags are merged, flags win.
            "featureGates" feature_gates: BTreeMap<String, bool>, flag("feature-gates").acted()
                .check(Check::Rule("known gates; locked ones only at their default"));
        }
    }
}

impl KubeletConfiguration {
    /// `containerLogMaxSize` in bytes.
    pub fn container_log_max_bytes(&self) -> i64 {
        // Validation has refused what is not a quantity.
        mainstay_types::Quantity::parse(&self.container_log_max_size).map_or(i64::MAX, |size| size.value())
    }

    /// The servers of `clusterDNS` that are IP addresses; the others were noticed when the configuration was loaded.
    pub fn cluster_dns_addresses(&self) -> Vec<std::net::IpAddr> {
        self.cluster_dns.iter().filter_map(|address| crate::names::parse_ip(address)).collect()
    }

    /// The value of `/configz`: this configuration under upstream's key, with secrets masked.
    ///
    /// # Errors
    /// Only if a value has no JSON form, which a validated configuration cannot have.
    pub fn configz(&self) -> Result<serde_json::Value, serde_json::Error> {
        let mut object = serde_json::Map::new();
        object.insert("kind".to_owned(), KIND.into());
        object.insert("apiVersion".to_owned(), API_VERSION.into());
        if let serde_json::Value::Object(fields) = serde_json::to_value(self)? {
            object.extend(fields);
        }
        Ok(serde_json::json!({ "kubeletconfig": object }))
    }
}
