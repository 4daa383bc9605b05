//! The status: what mainstay says. One that a manifest has is ignored.

use super::{Area, Row, not_yet, passed, works};

pub(super) const AREA: Area = Area { title: "Status", rows: ROWS };

const STARTS: &[&str] = &["lifecycle::a_file_becomes_a_running_pod_that_upstreams_kubelet_would_adopt"];
const ENDS: &[&str] = &["restarts::pods_that_are_not_restarted_end_succeeded_or_failed_and_keep_their_logs"];
const CRASHES: &[&str] = &["restarts::a_crashing_container_is_restarted_at_once_and_then_after_a_back_off"];
const WAITS: &[&str] = &["containers::a_container_that_cannot_be_started_says_why"];
const DEADLINE: &[&str] = &["hooks::a_pod_past_its_active_deadline_is_stopped_and_failed"];
const ADDRESSES: &[&str] = &["containers::containers_get_their_environment_hosts_file_and_names"];
const MEMBER: &[&str] = &["member::pods_of_the_api_server_run_and_end_by_its_word"];
const CLAIMS: &str = "this version does not do dynamic resource allocation";
const SCHEDULER: &str = "the scheduler's";
const SIGNAL: &str =
    "CRI tells only the exit code, which is 128 more than the signal; left out, as upstream leaves it";
const NEVER: &str = "left out, as upstream leaves it";

const ROWS: &[Row] = &[
    works("status.phase", ENDS),
    works("status.reason", DEADLINE),
    works("status.message", DEADLINE),
    works("status.conditions", STARTS),
    works("status.conditions[].reason", CRASHES),
    works("status.conditions[].message", CRASHES),
    works("status.conditions[].observedGeneration", MEMBER),
    not_yet("status.conditions[].lastProbeTime", NEVER),
    works("status.startTime", STARTS),
    works("status.observedGeneration", MEMBER),
    works("status.hostIP", ADDRESSES),
    works("status.hostIPs", &["environment::a_pod_is_told_of_itself_and_its_resources"]),
    works("status.podIP", ADDRESSES),
    works("status.podIPs", STARTS),
    works("status.qosClass", &["containers::containers_run_as_asked_and_within_their_limits"]),
    works("status.containerStatuses[].containerID", STARTS),
    works("status.containerStatuses[].image", STARTS),
    works("status.containerStatuses[].imageID", STARTS),
    works("status.containerStatuses[].name", STARTS),
    works("status.containerStatuses[].ready", STARTS),
    works("status.containerStatuses[].started", STARTS),
    works("status.containerStatuses[].restartCount", CRASHES),
    works("status.containerStatuses[].state.running", &["probes::thresholds_and_delays_are_kept"]),
    works("status.containerStatuses[].state.terminated", ENDS),
    not_yet("status.containerStatuses[].state.terminated.signal", SIGNAL),
    works("status.containerStatuses[].state.waiting", WAITS),
    works("status.containerStatuses[].lastState.terminated", CRASHES),
    not_yet("status.containerStatuses[].lastState.terminated.signal", SIGNAL),
    not_yet("status.containerStatuses[].lastState.running", NEVER),
    not_yet("status.containerStatuses[].lastState.waiting", NEVER),
    passed("status.containerStatuses[].resources", "the spec's, as upstream shows them"),
    passed("status.containerStatuses[].allocatedResources", "the spec's requests, as upstream shows them"),
    works(
        "status.containerStatuses[].allocatedResourcesStatus",
        &["devices::the_status_tells_how_devices_are"],
    ),
    not_yet(
        "status.containerStatuses[].allocatedResourcesStatus[].resources[].message",
        "device plugins give no reasons; it comes with dynamic resource allocation",
    ),
    not_yet("status.containerStatuses[].resources.claims", CLAIMS),
    works(
        "status.containerStatuses[].stopSignal",
        &["gates::a_container_is_stopped_with_the_signal_it_asks_for"],
    ),
    works(
        "status.containerStatuses[].user",
        &["security::processes_have_the_users_and_groups_that_were_asked_for"],
    ),
    works(
        "status.containerStatuses[].volumeMounts",
        &["volumes::files_modes_and_owners_are_as_the_pod_wants_them"],
    ),
    not_yet(
        "status.containerStatuses[].volumeMounts[].volumeStatus",
        "its gate ImageVolumeWithDigest is alpha, off, and not acted upon; left out",
    ),
    works(
        "status.containerStatuses[].volumeMounts[].readOnly",
        &["mounts::read_only_mounts_and_recursively_so"],
    ),
    works(
        "status.containerStatuses[].volumeMounts[].recursiveReadOnly",
        &["mounts::read_only_mounts_and_recursively_so"],
    ),
    not_yet(
        "status.ephemeralContainerStatuses",
        "this version does not start ephemeral containers; left out",
    ),
    passed("status.allocatedResources", "the spec's, as upstream shows them"),
    passed("status.resources", "the spec's, as upstream shows them"),
    not_yet("status.resources.claims", CLAIMS),
    not_yet("status.resize", "pods from files are not resized in place"),
    passed("status.nominatedNodeName", SCHEDULER),
    not_yet("status.resourceClaimStatuses", CLAIMS),
    not_yet("status.extendedResourceClaimStatus", CLAIMS),
    not_yet("status.nodeAllocatableResourceClaimStatuses", CLAIMS),
    not_yet("status.volumeHealth", "an alpha field; CSI drivers report it"),
];
