//! Probes and readiness gates.

use super::{Area, Row, not_yet, works};

pub(super) const AREA: Area = Area { title: "Probes", rows: ROWS };

const LIVENESS: &[&str] = &[
    "probes::every_kind_of_probe_asks_in_every_way",
    "probes::headers_redirects_ports_and_the_hosts_network",
    "probes::a_failed_liveness_probe_restarts_the_container_with_the_probes_own_grace",
    "probes::delays_and_limits_of_liveness_and_startup_probes_are_kept",
];
const READINESS: &[&str] = &[
    "probes::every_kind_of_probe_asks_in_every_way",
    "probes::failures_are_told_in_upstreams_words_and_only_keep_work_away",
    "probes::headers_redirects_ports_and_the_hosts_network",
    "probes::thresholds_and_delays_are_kept",
    "probes::a_pod_that_ends_is_unready_first_and_not_restarted",
    "probes::what_probes_have_shown_survives_a_restart_of_mainstay",
];
const STARTUP: &[&str] = &[
    "probes::every_kind_of_probe_asks_in_every_way",
    "probes::headers_redirects_ports_and_the_hosts_network",
    "probes::nothing_else_is_asked_before_a_container_has_come_up",
    "probes::delays_and_limits_of_liveness_and_startup_probes_are_kept",
];
const GRPC_MODE: &str =
    "its gate GRPCContainerProbeTLS is alpha, off, and not acted upon; asked in plain text";
const PROTOCOL: &str = "its gate H2CContainerProbe is alpha, off, and not acted upon; asked with HTTP/1.1";

const ROWS: &[Row] = &[
    works("spec.containers[].livenessProbe", LIVENESS),
    works("spec.containers[].readinessProbe", READINESS),
    works("spec.containers[].startupProbe", STARTUP),
    not_yet("spec.containers[].livenessProbe.grpc.mode", GRPC_MODE),
    not_yet("spec.containers[].readinessProbe.grpc.mode", GRPC_MODE),
    not_yet("spec.containers[].startupProbe.grpc.mode", GRPC_MODE),
    not_yet("spec.containers[].livenessProbe.httpGet.protocol", PROTOCOL),
    not_yet("spec.containers[].readinessProbe.httpGet.protocol", PROTOCOL),
    not_yet("spec.containers[].startupProbe.httpGet.protocol", PROTOCOL),
    not_yet(
        "spec.containers[].readinessProbe.terminationGracePeriodSeconds",
        "Kubernetes has the field and forbids its use in readiness probes; refused",
    ),
    works("spec.readinessGates", &["member::pods_of_the_api_server_run_and_end_by_its_word"]),
];
