//! The options that only a flag can set, because they belong to one node and not to a fleet.

use std::collections::BTreeMap;

use crate::definition::{Check, FlagStyle, definitions};
use crate::duration::GoDuration;

definitions! {
    /// What the flags alone say; the definitions' names are the flags' names.
    pub struct Settings {
        section "Configuration" {
            /// File with the KubeletConfiguration; without it the defaults and the flags count.
            "config" config: String, flag("config").kept().acted();
            /// Directory of drop-in files (`*.conf`, in lexical order, with subdirectories) that are merged over --config.
            "config-dir" config_dir: String, flag("config-dir").kept().acted();
        }
        section "This node" {
            /// Directory for everything the agent keeps.
            "root-dir" root_dir: String = "/var/lib/kubelet", flag("root-dir").kept().acted();
            /// Name of the node, if it is not the host's.
            "hostname-override" hostname_override: String, flag("hostname-override").kept().acted();
            /// IP address of the node, or one of each family separated by a comma; 0.0.0.0 or :: for those that packets to the outside come from, that family first.
            "node-ip" node_ip: String, flag("node-ip").kept().acted()
                .check(Check::Rule("one IP address, or one IPv4 and one IPv6 address"));
            /// Directory of the machine's log files, which `/logs/` shows.
            "node-log-dir" node_log_dir: String = "/var/log", flag("node-log-dir").kept().acted()
                .note("mainstay's own; upstream's is always /var/log");
            /// Where links below --node-log-dir may lead: `inside` it or the directories of containers' logs, or `anywhere`.
            "node-log-links" node_log_links: String = "inside", flag("node-log-links").kept().acted()
                .check(Check::OneOf(&["inside", "anywhere"]))
                .note("mainstay's own; upstream follows links anywhere, so that a pod that writes to /var/log lets its readers read every file of the node");
            /// Which files below staticPodPath are read: those with a manifest's `extension` (.yaml, .yml, .json), or `any`.
            "manifest-files" manifest_files: String = "extension", flag("manifest-files").kept().acted()
                .check(Check::OneOf(&["extension", "any"]))
                .note("mainstay's own; upstream reads any file whose name does not begin with a dot, also an editor's backup");
            /// Which right opens exec, attach, run and portForward: `create` on nodes/proxy, or the verb that the request's `method` stands for.
            "acting-verb" acting_verb: String = "create", flag("acting-verb").kept().acted()
                .check(Check::OneOf(&["create", "method"]))
                .note("mainstay's own; upstream goes by the method, so that whoever may `get` nodes/proxy runs commands over WebSocket");
            /// Group, by name or number, whose members may use the gRPC sockets below --root-dir; empty for root alone.
            "local-api-group" local_api_group: String, flag("local-api-group").kept().acted()
                .note("mainstay's own; upstream's sockets are root's");
            /// Mode of the gRPC sockets' directories, in octal; who may enter one may use its socket.
            "local-api-mode" local_api_mode: String = "0750", flag("local-api-mode").kept().acted()
                .check(Check::Rule("an octal mode from 0700 to 0755, in which only the owner writes")).note("mainstay's own");
            /// Calls per second that each pod, and each user outside of pods, may make on a gRPC socket.
            "local-api-qps" local_api_qps: i32 = "100", flag("local-api-qps").kept().acted()
                .check(Check::AtLeast(1)).note("mainstay's own; upstream has one budget of 100 for all together");
            /// Calls that each of them may make at once.
            "local-api-burst" local_api_burst: i32 = "10", flag("local-api-burst").kept().acted()
                .check(Check::AtLeast(1)).note("mainstay's own; upstream's is 10");
            /// Families of metrics that are served, on every endpoint of metrics: names, or beginnings with `*` behind them; empty for all.
            "metrics-allow" metrics_allow: Vec<String>, flag("metrics-allow").kept().acted()
                .check(Check::Rule("names of families, or their beginnings with * at the end")).note("mainstay's own");
            /// Families of metrics that are not served, in the same words; goes before --metrics-allow.
            "metrics-deny" metrics_deny: Vec<String>, flag("metrics-deny").kept().acted()
                .check(Check::Rule("names of families, or their beginnings with * at the end")).note("mainstay's own");
            /// Whether metrics are also served as documents of 2020 show them: labels `pod_name` and `container_name`, `prober_probe_result`, `kubelet_docker_operations_duration_seconds`, services below /system.slice.
            "metrics-old-names" metrics_old_names: bool, flag("metrics-old-names").kept().acted().note("mainstay's own");
            /// Labels of the Node object when it is created, as key=value pairs.
            "node-labels" node_labels: BTreeMap<String, String>, flag_as("node-labels", FlagStyle::Labels).kept().acted()
                .check(Check::Rule("valid labels; of the kubernetes.io and k8s.io ones only those a node may set"));
            /// `external` if a cloud controller completes the Node object, otherwise empty.
            "cloud-provider" cloud_provider: String, flag("cloud-provider").kept().acted()
                .check(Check::OneOf(&["", "external"]));
            /// File that is locked while the agent runs, besides the lock in --root-dir.
            "lock-file" lock_file: String, flag("lock-file").kept();
            /// Exit when another process wants the lock file.
            "exit-on-lock-contention" exit_on_lock_contention: bool, flag("exit-on-lock-contention").kept()
                .check(Check::Rule("needs --lock-file"));
        }
        section "API server" {
            /// File that says how to reach the API server; without it the node stands alone.
            "kubeconfig" kubeconfig: String, flag("kubeconfig").kept().acted();
            /// File with which the first client certificate is asked for when --kubeconfig does not exist yet.
            "bootstrap-kubeconfig" bootstrap_kubeconfig: String, flag("bootstrap-kubeconfig").kept();
            /// File with the key that seals what is kept of the API server's Secrets, ConfigMaps and tokens; it is made if it is missing. `none` keeps nothing.
            "object-key-file" object_key_file: String, flag("object-key-file").kept().acted()
                .note("mainstay's own; empty for a file below /run/mainstay, which a reboot takes away");
            /// Directory of certificates and keys.
            "cert-dir" cert_dir: String = "/var/lib/kubelet/pki", flag("cert-dir").kept().acted();
        }
        section "Runtime and images" {
            /// Cgroup in which the container runtime runs, for its statistics.
            "runtime-cgroups" runtime_cgroups: String, flag("runtime-cgroups").kept();
            /// File or directory with the CredentialProviderConfig.
            "image-credential-provider-config" image_credential_provider_config: String,
                flag("image-credential-provider-config").kept().acted();
            /// Directory of the credential providers' programs.
            "image-credential-provider-bin-dir" image_credential_provider_bin_dir: String,
                flag("image-credential-provider-bin-dir").kept().acted();
            /// How long a dead container is kept at least.
            "minimum-container-ttl-duration" minimum_container_ttl_duration: GoDuration = "0s",
                flag("minimum-container-ttl-duration").acted();
            /// Dead instances that are kept of each container.
            "maximum-dead-containers-per-container" maximum_dead_containers_per_container: i32 = "1",
                flag("maximum-dead-containers-per-container").acted();
            /// Dead containers that are kept on the node; negative for no limit.
            "maximum-dead-containers" maximum_dead_containers: i32 = "-1",
                flag("maximum-dead-containers").acted();
            /// How often container statistics are sampled.
            "housekeeping-interval" housekeeping_interval: GoDuration = "10s",
                flag("housekeeping-interval").kept();
            /// Leave hard eviction thresholds out of the node's allocatable resources.
            "experimental-allocatable-ignore-eviction" experimental_allocatable_ignore_eviction: bool,
                flag("experimental-allocatable-ignore-eviction").acted();
            /// Program used for mounting.
            "experimental-mounter-path" experimental_mounter_path: String, flag("experimental-mounter-path");
        }
    }
}
