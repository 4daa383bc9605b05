//! CPU, memory and everything else that is counted.

use super::{Area, INIT, Row, not_yet, passed, works};

pub(super) const AREA: Area = Area { title: "Resources", rows: ROWS };

const LIMITS: &[&str] = &[
    "containers::containers_run_as_asked_and_within_their_limits",
    "cgroups::pods_of_every_class_have_their_cgroups",
    "facilities::huge_pages_are_counted_limited_and_given_back",
    "storage_limits::layers_logs_and_their_sum",
];
const OF_POD: &[&str] = &["cgroups::pods_of_every_class_have_their_cgroups"];
const CLAIMS: &str = "this version does not do dynamic resource allocation; refused in a file";

const ROWS: &[Row] = &[
    works("spec.containers[].resources.limits", LIMITS),
    works("spec.initContainers[].resources.limits", INIT),
    works(
        "spec.containers[].resources.requests",
        &[
            "admission::what_does_not_fit_is_rejected_and_the_rest_runs",
            "admission::what_adds_up_to_more_than_can_be_counted_does_not_fit",
        ],
    ),
    not_yet("spec.containers[].resources.claims", CLAIMS),
    passed(
        "spec.containers[].resizePolicy",
        "pods from files are not resized in place: an edit makes a new pod",
    ),
    works("spec.resources.limits", OF_POD),
    works("spec.resources.requests", OF_POD),
    not_yet(
        "spec.resources.claims",
        "Kubernetes has the field and forbids its use at the pod's level; refused",
    ),
    not_yet("spec.resourceClaims", CLAIMS),
    works(
        "spec.overhead",
        &["admission::overhead_takes_room_too", "cgroups::pods_of_every_class_have_their_cgroups"],
    ),
];
