//! Environment, names, network, namespaces, security.

use super::{Area, INIT, Row, passed, works};

pub(super) const AREA: Area = Area { title: "Environment, network and security", rows: ROWS };

const ENVIRONMENT: &[&str] =
    &["environment::variables_come_from_values_maps_and_secrets_and_the_last_one_wins"];
const ITSELF: &[&str] = &["environment::a_pod_is_told_of_itself_and_its_resources"];
const OBJECTS: &[&str] = &[
    "environment::variables_come_from_values_maps_and_secrets_and_the_last_one_wins",
    "environment::what_is_missing_is_named_in_the_status_and_in_an_event_and_awaited",
];
const NAMES: &[&str] = &["identity::a_pod_is_called_as_its_spec_says"];
const LOOKUPS: &[&str] = &["identity::names_are_looked_up_as_the_policy_says"];
const NAMESPACES: &[&str] = &["identity::namespaces_are_shared_as_asked_and_no_further"];
const TERMINALS: &[&str] = &["identity::terminals_and_standard_input_are_given_as_asked"];
const USERS: &[&str] = &["security::processes_have_the_users_and_groups_that_were_asked_for"];
const PRIVILEGES: &[&str] = &["security::capabilities_and_privileges_are_as_asked"];
const CLOSED: &[&str] = &["security::parts_of_proc_and_the_root_file_system_are_closed"];
const SECCOMP: &[&str] = &[
    "security::system_calls_are_filtered_by_the_profile_asked_for",
    "security::with_seccomp_default_containers_are_filtered_unless_they_say_otherwise",
];
const RUNTIME: &str = "given to the runtime";
const APP_ARMOR: &str = "given to the runtime; a node without AppArmor rejects the pod";
const WINDOWS: &str = "Windows; refused in a pod for Linux";
const TOKENS: &str = "an API server acts on it when the pod is made; kept and shown";
const CLUSTER: &[&str] = &["member::objects_tokens_and_services_reach_the_pods"];

const ROWS: &[Row] = &[
    works("spec.containers[].env", ENVIRONMENT),
    works("spec.initContainers[].env[].value", INIT),
    works("spec.containers[].env[].valueFrom.configMapKeyRef", OBJECTS),
    works("spec.containers[].env[].valueFrom.secretKeyRef", OBJECTS),
    works("spec.containers[].env[].valueFrom.fieldRef", ITSELF),
    works("spec.containers[].env[].valueFrom.resourceFieldRef", ITSELF),
    works(
        "spec.containers[].env[].valueFrom.fileKeyRef",
        &["volumes::environment_from_a_file_that_an_init_container_wrote"],
    ),
    works("spec.containers[].envFrom", OBJECTS),
    works("spec.enableServiceLinks", CLUSTER),
    works("spec.containers[].stdin", TERMINALS),
    works(
        "spec.containers[].stdinOnce",
        &["exec_client::input_that_is_given_once_ends_with_the_first_who_attaches"],
    ),
    works("spec.containers[].tty", TERMINALS),
    works(
        "spec.containers[].ports",
        &[
            "identity::a_host_port_leads_to_its_pod",
            "admission::labels_ports_systems_and_what_cannot_be_enforced",
        ],
    ),
    works("spec.hostname", NAMES),
    works("spec.hostnameOverride", NAMES),
    works("spec.subdomain", NAMES),
    works("spec.setHostnameAsFQDN", NAMES),
    works("spec.hostAliases", &["containers::containers_get_their_environment_hosts_file_and_names"]),
    works(
        "spec.dnsPolicy",
        &[
            "identity::names_are_looked_up_as_the_policy_says",
            "identity::without_a_cluster_resolver_the_nodes_is_used_and_told_of",
        ],
    ),
    works("spec.dnsConfig", LOOKUPS),
    works("spec.hostNetwork", NAMESPACES),
    works("spec.hostPID", NAMESPACES),
    works("spec.hostIPC", NAMESPACES),
    works(
        "spec.hostUsers",
        &[
            "userns::pods_apart_have_ranges_of_ids_that_outlive_a_restart_and_are_given_back",
            "userns::volumes_of_pods_apart_belong_to_those_whom_the_pod_names",
            "security::a_runtime_without_user_namespaces_is_said_so",
        ],
    ),
    works("spec.shareProcessNamespace", NAMESPACES),
    works("spec.containers[].securityContext.allowPrivilegeEscalation", PRIVILEGES),
    works("spec.containers[].securityContext.capabilities", PRIVILEGES),
    works("spec.containers[].securityContext.privileged", PRIVILEGES),
    works(
        "spec.containers[].securityContext.procMount",
        &[
            "security::parts_of_proc_and_the_root_file_system_are_closed",
            "userns::only_a_pod_apart_may_see_the_whole_of_proc",
        ],
    ),
    works("spec.containers[].securityContext.readOnlyRootFilesystem", CLOSED),
    works("spec.containers[].securityContext.runAsGroup", USERS),
    works("spec.containers[].securityContext.runAsUser", USERS),
    works("spec.initContainers[].securityContext.runAsGroup", INIT),
    works("spec.initContainers[].securityContext.runAsUser", INIT),
    works(
        "spec.containers[].securityContext.runAsNonRoot",
        &["containers::a_container_that_cannot_be_started_says_why"],
    ),
    works("spec.containers[].securityContext.seccompProfile", SECCOMP),
    passed("spec.containers[].securityContext.appArmorProfile", APP_ARMOR),
    passed("spec.containers[].securityContext.seLinuxOptions", RUNTIME),
    passed("spec.containers[].securityContext.windowsOptions", WINDOWS),
    passed("spec.securityContext.windowsOptions", WINDOWS),
    passed("spec.securityContext.appArmorProfile", APP_ARMOR),
    works("spec.securityContext.runAsGroup", USERS),
    works("spec.securityContext.runAsNonRoot", USERS),
    works("spec.securityContext.runAsUser", USERS),
    passed(
        "spec.securityContext.seLinuxChangePolicy",
        "the runtime labels what was made for the pod, file by file; it is not done by mount option",
    ),
    passed("spec.securityContext.seLinuxOptions", RUNTIME),
    works("spec.securityContext.seccompProfile", SECCOMP),
    works("spec.securityContext.supplementalGroups", USERS),
    works(
        "spec.securityContext.supplementalGroupsPolicy",
        &[
            "security::processes_have_the_users_and_groups_that_were_asked_for",
            "admission::strict_groups_are_let_in_where_the_runtime_keeps_to_them",
            "admission::labels_ports_systems_and_what_cannot_be_enforced",
        ],
    ),
    works(
        "spec.securityContext.sysctls",
        &[
            "security::kernel_parameters_of_the_pod_are_set",
            "admission::sysctls_are_set_if_they_are_safe_or_allowed_and_refused_otherwise",
        ],
    ),
    works("spec.serviceAccountName", CLUSTER),
    passed("spec.serviceAccount", "the old spelling of spec.serviceAccountName"),
    passed("spec.automountServiceAccountToken", TOKENS),
];
