//! What a pod is called, and what is about where it runs: others decide that before a node sees it.

use super::{Area, Row, passed, works};

pub(super) const AREA: Area = Area { title: "Names and placement", rows: ROWS };

const STARTS: &[&str] = &["lifecycle::a_file_becomes_a_running_pod_that_upstreams_kubelet_would_adopt"];
const ENVIRONMENT: &[&str] = &["containers::containers_get_their_environment_hosts_file_and_names"];
const SCHEDULER: &str = "the scheduler's; a pod from a file runs where its file is";
const LABELS: &[&str] = &["admission::labels_ports_systems_and_what_cannot_be_enforced"];
const API_SERVER: &str = "the API server's; kept and shown";

const ROWS: &[Row] = &[
    works("apiVersion", &["input::each_bad_manifest_is_rejected_by_name_and_the_other_pods_do_not_notice"]),
    works("kind", &["input::each_bad_manifest_is_rejected_by_name_and_the_other_pods_do_not_notice"]),
    works("metadata.name", STARTS),
    works("metadata.namespace", STARTS),
    works(
        "metadata.uid",
        &["lifecycle::a_new_image_under_the_same_uid_restarts_the_container_in_its_sandbox"],
    ),
    works("metadata.labels", ENVIRONMENT),
    works("metadata.annotations", STARTS),
    passed("metadata.generateName", API_SERVER),
    passed("metadata.generation", "the API server's; shown again as observedGeneration"),
    passed("metadata.creationTimestamp", API_SERVER),
    passed(
        "metadata.deletionTimestamp",
        "the API server's; in a file it is ignored with a warning: remove the file",
    ),
    passed("metadata.deletionGracePeriodSeconds", "the API server's; in a file it is ignored"),
    passed("metadata.finalizers", API_SERVER),
    passed("metadata.managedFields", API_SERVER),
    passed("metadata.ownerReferences", API_SERVER),
    passed("metadata.resourceVersion", API_SERVER),
    passed("metadata.selfLink", API_SERVER),
    passed("spec.affinity", SCHEDULER),
    works("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", LABELS),
    works("spec.nodeSelector", LABELS),
    works("spec.nodeName", ENVIRONMENT),
    passed("spec.preemptionPolicy", SCHEDULER),
    passed("spec.priorityClassName", "the API server's, which turns it into spec.priority"),
    works("spec.priority", &["cluster_pods::runtime_classes_preemption_and_what_is_not_run"]),
    passed("spec.schedulerName", SCHEDULER),
    passed("spec.schedulingGates", SCHEDULER),
    passed("spec.schedulingGroup", SCHEDULER),
    passed("spec.tolerations", "kept and shown; pods from files tolerate NoExecute"),
    passed("spec.topologySpreadConstraints", SCHEDULER),
    passed("spec.evictionResponders", "the API server's eviction; kept and shown"),
    works("spec.os", &["member::pods_of_the_api_server_run_and_end_by_its_word"]),
    works(
        "spec.runtimeClassName",
        &[
            "containers::a_runtime_class_of_a_file_names_the_handler",
            "cluster_pods::runtime_classes_preemption_and_what_is_not_run",
        ],
    ),
];
