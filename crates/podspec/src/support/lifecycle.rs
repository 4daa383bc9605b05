//! Images, commands, starting, restarting, ending.

use super::{Area, Row, not_yet, works};

pub(super) const AREA: Area = Area { title: "Containers and their lives", rows: ROWS };

const CONTAINERS: &[&str] = &["lifecycle::a_file_becomes_a_running_pod_that_upstreams_kubelet_would_adopt"];
const RULES: &[&str] = &[
    "restarts::a_containers_own_restart_rules_override_the_pods_policy",
    "restarts::a_restart_all_rule_starts_the_whole_pod_over_in_its_sandbox",
];
const POST_START: &[&str] = &[
    "hooks::a_post_start_hook_holds_up_what_comes_after_it",
    "hooks::a_failing_post_start_hook_kills_its_container_and_says_so",
    "hooks::hooks_ask_others_over_http_and_https_and_sleep",
];
const PRE_STOP: &[&str] = &[
    "hooks::pre_stop_hooks_run_before_the_signal_and_within_the_grace",
    "hooks::hooks_ask_others_over_http_and_https_and_sleep",
];
const NO_SUCH_HOOK: &str =
    "Kubernetes has no such hook, only the field; the hook fails: use exec, httpGet or sleep";
const PROTOCOL: &str = "its gate H2CContainerProbe is alpha, off, and not acted upon; asked with HTTP/1.1";
const MESSAGES: &[&str] = &["hooks::termination_messages_come_from_the_file_or_the_end_of_the_log"];

const ROWS: &[Row] = &[
    works("spec.containers[].name", CONTAINERS),
    works("spec.containers[].image", CONTAINERS),
    works("spec.containers[].command", CONTAINERS),
    works(
        "spec.containers[].args",
        &["environment::variables_come_from_values_maps_and_secrets_and_the_last_one_wins"],
    ),
    works("spec.containers[].workingDir", &["containers::containers_run_as_asked_and_within_their_limits"]),
    works("spec.containers[].imagePullPolicy", &["images::an_always_policy_pulls_at_each_start"]),
    works(
        "spec.imagePullSecrets",
        &[
            "images::a_pull_secret_document_opens_a_closed_registry",
            "workloads::pods_are_let_in_by_their_secrets_and_accounts",
        ],
    ),
    works(
        "spec.initContainers[].name",
        &["restarts::init_containers_run_one_after_the_other_before_the_rest"],
    ),
    works(
        "spec.initContainers[].restartPolicy",
        &[
            "restarts::sidecars_start_in_order_are_restarted_and_stop_last_in_reverse",
            "restarts::a_job_with_a_sidecar_completes",
        ],
    ),
    not_yet(
        "spec.ephemeralContainers",
        "this version does not start them when an API server adds them to a running pod; refused in a file",
    ),
    works(
        "spec.restartPolicy",
        &["restarts::pods_that_are_not_restarted_end_succeeded_or_failed_and_keep_their_logs"],
    ),
    works("spec.containers[].restartPolicy", RULES),
    works("spec.containers[].restartPolicyRules", RULES),
    works("spec.containers[].lifecycle.postStart", POST_START),
    not_yet("spec.containers[].lifecycle.postStart.httpGet.protocol", PROTOCOL),
    not_yet("spec.containers[].lifecycle.postStart.tcpSocket", NO_SUCH_HOOK),
    works("spec.containers[].lifecycle.preStop", PRE_STOP),
    not_yet("spec.containers[].lifecycle.preStop.httpGet.protocol", PROTOCOL),
    not_yet("spec.containers[].lifecycle.preStop.tcpSocket", NO_SUCH_HOOK),
    works(
        "spec.containers[].lifecycle.stopSignal",
        &[
            "gates::a_container_is_stopped_with_the_signal_it_asks_for",
            "gates::fields_whose_gate_is_off_are_ignored_with_a_warning",
        ],
    ),
    works(
        "spec.terminationGracePeriodSeconds",
        &["hooks::a_process_that_ignores_its_end_is_killed_after_the_grace"],
    ),
    works("spec.activeDeadlineSeconds", &["hooks::a_pod_past_its_active_deadline_is_stopped_and_failed"]),
    works("spec.containers[].terminationMessagePath", MESSAGES),
    works("spec.containers[].terminationMessagePolicy", MESSAGES),
];
