//! Flags that upstream's kubelet once had, and what to do instead.

/// A flag that is gone.
pub(super) struct Removed {
    /// The release without it.
    pub(super) since: &'static str,
    /// What to do.
    pub(super) remedy: &'static str,
}

const DOCKER: &str =
    "remove it: Docker Engine is no runtime any more; use --container-runtime-endpoint with a CRI runtime";
const CNI: &str = "remove it: the container runtime configures the network (containerd: [plugins.*.cni])";
const CADVISOR: &str = "remove it: container statistics need no settings of their own";
const KLOG: &str = "remove it: logs go to standard error; use the service manager, --logging-format and --v";
const DROP: &str = "remove it: it has no successor";

/// Name, first release without it, remedy; sorted by name.
#[rustfmt::skip]
const REMOVED: &[(&str, &str, &str)] = &[
    ("add-dir-header", "1.26", KLOG),
    ("allow-privileged", "1.15", "remove it: privileged pods are admitted by the API server's policy"),
    ("alsologtostderr", "1.26", KLOG),
    ("application-metrics-count-limit", "1.37", CADVISOR),
    ("azure-container-registry-config", "1.30", "use --image-credential-provider-config"),
    ("boot-id-file", "1.37", CADVISOR),
    ("bootstrap-checkpoint-path", "1.18", DROP),
    ("cadvisor-port", "1.12", CADVISOR),
    ("chaos-chance", "1.22", DROP),
    ("cloud-config", "1.34", "remove it: cloud providers run outside, see --cloud-provider=external"),
    ("cni-bin-dir", "1.24", CNI),
    ("cni-cache-dir", "1.24", CNI),
    ("cni-conf-dir", "1.24", CNI),
    ("container-hints", "1.37", CADVISOR),
    ("container-runtime", "1.27", "remove it: every runtime is a CRI runtime, see --container-runtime-endpoint"),
    ("containerd", "1.37", "use --container-runtime-endpoint=unix:///run/containerd/containerd.sock"),
    ("containerd-namespace", "1.37", CADVISOR),
    ("containerized", "1.16", DROP),
    ("docker", "1.24", DOCKER),
    ("docker-disable-shared-pid", "1.12", DOCKER),
    ("docker-endpoint", "1.24", DOCKER),
    ("docker-env-metadata-whitelist", "1.24", DOCKER),
    ("docker-only", "1.24", DOCKER),
    ("docker-root", "1.24", DOCKER),
    ("docker-tls", "1.24", DOCKER),
    ("docker-tls-ca", "1.24", DOCKER),
    ("docker-tls-cert", "1.24", DOCKER),
    ("docker-tls-key", "1.24", DOCKER),
    ("dynamic-config-dir", "1.24", "use --config and --config-dir"),
    ("enable-cadvisor-json-endpoints", "1.21", "remove it: mainstay serves these endpoints, marked deprecated"),
    ("enable-load-reader", "1.37", CADVISOR),
    ("event-storage-age-limit", "1.37", CADVISOR),
    ("event-storage-event-limit", "1.37", CADVISOR),
    ("experimental-bootstrap-kubeconfig", "1.23", "use --bootstrap-kubeconfig"),
    ("experimental-check-node-capabilities-before-mount", "1.24", DROP),
    ("experimental-dockershim", "1.18", DOCKER),
    ("experimental-dockershim-root-directory", "1.24", DOCKER),
    ("experimental-kernel-memcg-notification", "1.25", "use kernelMemcgNotification in the --config file"),
    ("experimental-logging-sanitization", "1.22", DROP),
    ("global-housekeeping-interval", "1.37", CADVISOR),
    ("host-ipc-sources", "1.15", DROP),
    ("host-network-sources", "1.15", DROP),
    ("host-pid-sources", "1.15", DROP),
    ("image-pull-progress-deadline", "1.24", DOCKER),
    ("iptables-drop-bit", "1.31", "remove it: it had no effect"),
    ("iptables-masquerade-bit", "1.31", "remove it: it had no effect"),
    ("keep-terminated-pod-volumes", "1.31", DROP),
    ("log-backtrace-at", "1.26", KLOG),
    ("log-cadvisor-usage", "1.37", CADVISOR),
    ("log-dir", "1.26", KLOG),
    ("log-file", "1.26", KLOG),
    ("log-file-max-size", "1.26", KLOG),
    ("logtostderr", "1.26", KLOG),
    ("machine-id-file", "1.37", CADVISOR),
    ("master-service-namespace", "1.27", DROP),
    ("network-plugin", "1.24", CNI),
    ("network-plugin-mtu", "1.24", CNI),
    ("non-masquerade-cidr", "1.24", CNI),
    ("one-output", "1.26", KLOG),
    ("pod-infra-container-image", "1.35", "remove it and set the sandbox image in the container runtime (containerd: sandbox_image or pinned_images)"),
    ("really-crash-for-testing", "1.24", DROP),
    ("redirect-container-streaming", "1.22", DROP),
    ("register-schedulable", "1.34", "use --register-with-taints=node.kubernetes.io/unschedulable:NoSchedule"),
    ("rkt-api-endpoint", "1.11", DROP),
    ("rkt-path", "1.11", DROP),
    ("rkt-stage1-image", "1.11", DROP),
    ("seccomp-profile-root", "1.23", "remove it: profiles are read from seccomp/ under --root-dir"),
    ("skip-headers", "1.26", KLOG),
    ("skip-log-headers", "1.26", KLOG),
    ("stderrthreshold", "1.26", KLOG),
    ("storage-driver-buffer-duration", "1.37", CADVISOR),
    ("storage-driver-db", "1.37", CADVISOR),
    ("storage-driver-host", "1.37", CADVISOR),
    ("storage-driver-password", "1.37", CADVISOR),
    ("storage-driver-secure", "1.37", CADVISOR),
    ("storage-driver-table", "1.37", CADVISOR),
    ("storage-driver-user", "1.37", CADVISOR),
];

/// The removed flag called `name`.
pub(super) fn find(name: &str) -> Option<Removed> {
    let (_, since, remedy) = REMOVED.iter().find(|(known, ..)| *known == name)?;
    Some(Removed { since, remedy })
}
