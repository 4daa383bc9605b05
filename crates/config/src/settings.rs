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
            /// IP address of the node, or one of each family separated by a comma.
            "node-ip" node_ip: String, flag("node-ip").kept().acted()
                .check(Check::Rule("one IP address, or one IPv4 and one IPv6 address"));
            /// Labels of the Node object when it is created, as key=value pairs.
            "node-labels" node_labels: BTreeMap<String, String>, flag_as("node-labels", FlagStyle::Labels).kept()
                .check(Check::Rule("valid labels; of the kubernetes.io and k8s.io ones only those a node may set"));
            /// `external` if a cloud controller completes the Node object, otherwise empty.
            "cloud-provider" cloud_provider: String, flag("cloud-provider").kept()
                .check(Check::OneOf(&["", "external"]));
            /// File that is locked while the agent runs, besides the lock in --root-dir.
            "lock-file" lock_file: String, flag("lock-file").kept();
            /// Exit when another process wants the lock file.
            "exit-on-lock-contention" exit_on_lock_contention: bool, flag("exit-on-lock-contention").kept()
                .check(Check::Rule("needs --lock-file"));
        }
        section "API server" {
            /// File that says how to reach the API server; without it the node stands alone.
            "kubeconfig" kubeconfig: String, flag("kubeconfig").kept();
            /// File with which the first client certificate is asked for when --kubeconfig does not exist yet.
            "bootstrap-kubeconfig" bootstrap_kubeconfig: String, flag("bootstrap-kubeconfig").kept();
            /// Directory of certificates and keys.
            "cert-dir" cert_dir: String = "/var/lib/kubelet/pki", flag("cert-dir").kept();
        }
        section "Runtime and images" {
            /// Cgroup in which the container runtime runs, for its statistics.
            "runtime-cgroups" runtime_cgroups: String, flag("runtime-cgroups").kept();
            /// File or directory with the CredentialProviderConfig.
            "image-credential-provider-config" image_credential_provider_config: String,
                flag("image-credential-provider-config").kept();
            /// Directory of the credential providers' programs.
            "image-credential-provider-bin-dir" image_credential_provider_bin_dir: String,
                flag("image-credential-provider-bin-dir").kept();
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
                flag("experimental-allocatable-ignore-eviction");
            /// Program used for mounting.
            "experimental-mounter-path" experimental_mounter_path: String, flag("experimental-mounter-path");
        }
    }
}
