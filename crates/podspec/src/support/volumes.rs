//! Volumes and mounts.

use super::{Area, INIT, Row, not_yet, passed, works, works_but};

pub(super) const AREA: Area = Area { title: "Volumes", rows: ROWS };

const GONE: &str = "its driver was removed from Kubernetes; the pod will not start: use CSI";
const GONE_WITH_OBJECTS: &str = "its driver was removed from Kubernetes; refused in a file";
const DRIVER: &str = "this version has no driver for it; a container that mounts it will not start";
const MAKES_CLAIMS: &str = "the cluster's controller makes the claim from it";
const ALPHA: &str = "an alpha field; ignored";

const ROWS: &[Row] = &[
    passed("spec.volumes[].name", "volumeMounts refer to it"),
    works(
        "spec.volumes[].emptyDir",
        &[
            "volumes::empty_dirs_on_every_medium",
            "volumes::a_pod_that_has_ended_gives_its_volumes_back",
            "mounts::nothing_is_deleted_through_a_mount",
            "gates::fields_whose_gate_is_off_are_ignored_with_a_warning",
        ],
    ),
    works(
        "spec.volumes[].emptyDir.medium",
        &["volumes::empty_dirs_on_every_medium", "facilities::huge_pages_are_counted_limited_and_given_back"],
    ),
    works(
        "spec.volumes[].emptyDir.sizeLimit",
        &["storage_limits::an_empty_dir_over_its_size_limit_fails_its_pod"],
    ),
    works("spec.volumes[].hostPath", &["volumes::host_paths_of_every_type"]),
    works(
        "spec.volumes[].configMap",
        &[
            "volumes::files_modes_and_owners_are_as_the_pod_wants_them",
            "volumes::contents_follow_their_sources_while_the_pod_runs",
            "volumes::a_pod_waits_for_what_is_missing_and_runs_once_it_appears",
            "volumes::modes_are_kept_and_what_is_optional_may_be_missing",
        ],
    ),
    not_yet("spec.volumes[].configMap.defaultUser", ALPHA),
    not_yet("spec.volumes[].configMap.items[].user", ALPHA),
    works(
        "spec.volumes[].secret",
        &[
            "volumes::files_modes_and_owners_are_as_the_pod_wants_them",
            "volumes::contents_follow_their_sources_while_the_pod_runs",
            "volumes::a_pod_waits_for_what_is_missing_and_runs_once_it_appears",
            "volumes::modes_are_kept_and_what_is_optional_may_be_missing",
        ],
    ),
    not_yet("spec.volumes[].secret.defaultUser", ALPHA),
    not_yet("spec.volumes[].secret.items[].user", ALPHA),
    works(
        "spec.volumes[].downwardAPI",
        &[
            "volumes::files_modes_and_owners_are_as_the_pod_wants_them",
            "volumes::contents_follow_their_sources_while_the_pod_runs",
            "volumes::modes_are_kept_and_what_is_optional_may_be_missing",
        ],
    ),
    not_yet("spec.volumes[].downwardAPI.defaultUser", ALPHA),
    not_yet("spec.volumes[].downwardAPI.items[].user", ALPHA),
    works(
        "spec.volumes[].projected",
        &[
            "volumes::files_modes_and_owners_are_as_the_pod_wants_them",
            "volumes::contents_follow_their_sources_while_the_pod_runs",
            "volumes::modes_are_kept_and_what_is_optional_may_be_missing",
        ],
    ),
    not_yet("spec.volumes[].projected.defaultUser", ALPHA),
    works(
        "spec.volumes[].projected.sources[].serviceAccountToken",
        &[
            "member::objects_tokens_and_services_reach_the_pods",
            "renewals::tokens_and_certificates_are_renewed_while_their_pods_run",
        ],
    ),
    not_yet("spec.volumes[].projected.sources[].configMap.items[].user", ALPHA),
    not_yet("spec.volumes[].projected.sources[].secret.items[].user", ALPHA),
    not_yet("spec.volumes[].projected.sources[].downwardAPI.items[].user", ALPHA),
    not_yet("spec.volumes[].projected.sources[].serviceAccountToken.user", ALPHA),
    works(
        "spec.volumes[].projected.sources[].clusterTrustBundle",
        &["trust_bundles::trust_bundles_reach_the_pods_and_follow_their_sources"],
    ),
    not_yet("spec.volumes[].projected.sources[].clusterTrustBundle.user", ALPHA),
    works(
        "spec.volumes[].projected.sources[].podCertificate",
        &[
            "renewals::tokens_and_certificates_are_renewed_while_their_pods_run",
            "renewals::keys_that_are_rare_are_made_as_well",
        ],
    ),
    not_yet("spec.volumes[].projected.sources[].podCertificate.user", ALPHA),
    works("spec.volumes[].image", &["volumes::an_image_is_mounted_where_the_runtime_can"]),
    works("spec.volumes[].nfs", &["facilities::an_nfs_volume_is_the_servers_directory"]),
    not_yet("spec.volumes[].iscsi", DRIVER),
    not_yet("spec.volumes[].fc", DRIVER),
    not_yet("spec.volumes[].flexVolume", DRIVER),
    not_yet(
        "spec.volumes[].gitRepo",
        "deprecated and unsafe; use an init container that clones into an emptyDir",
    ),
    not_yet(
        "spec.volumes[].csi",
        "this version does not talk to CSI drivers; refused in a file, and a pod with it does not start",
    ),
    works("spec.volumes[].ephemeral", &["claims::claims_are_resolved_waited_for_and_kept"]),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.metadata", MAKES_CLAIMS),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.spec.selector", MAKES_CLAIMS),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.spec.resources.limits", MAKES_CLAIMS),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.spec.dataSource", MAKES_CLAIMS),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.spec.dataSourceRef", MAKES_CLAIMS),
    passed("spec.volumes[].ephemeral.volumeClaimTemplate.spec.volumeAttributesClassName", MAKES_CLAIMS),
    not_yet(
        "spec.volumes[].ephemeral.volumeClaimTemplate.spec.volumeMode",
        "only volumes with a file system are mounted; a pod that is to have a block device does not start and says so",
    ),
    works_but(
        "spec.volumes[].persistentVolumeClaim",
        &[
            "claims::claims_are_resolved_waited_for_and_kept",
            "claims::a_local_volume_is_given_to_the_group_of_its_pod",
        ],
        "for local, hostPath and NFS volumes; a pod whose claim is bound to one of a CSI driver, of iSCSI or Fibre Channel, or to a block \
         device, does not start and says so",
    ),
    not_yet("spec.volumes[].awsElasticBlockStore", GONE),
    not_yet("spec.volumes[].azureDisk", GONE),
    not_yet("spec.volumes[].azureFile", GONE_WITH_OBJECTS),
    not_yet("spec.volumes[].cephfs", GONE),
    not_yet("spec.volumes[].cinder", GONE),
    not_yet("spec.volumes[].flocker", GONE),
    not_yet("spec.volumes[].gcePersistentDisk", GONE),
    not_yet("spec.volumes[].glusterfs", GONE_WITH_OBJECTS),
    not_yet("spec.volumes[].photonPersistentDisk", GONE),
    not_yet("spec.volumes[].portworxVolume", GONE),
    not_yet("spec.volumes[].quobyte", GONE),
    not_yet("spec.volumes[].rbd", GONE),
    not_yet("spec.volumes[].scaleIO", GONE),
    not_yet("spec.volumes[].storageos", GONE),
    not_yet("spec.volumes[].vsphereVolume", GONE),
    works("spec.containers[].volumeMounts", &["volumes::files_modes_and_owners_are_as_the_pod_wants_them"]),
    works(
        "spec.containers[].volumeMounts[].subPath",
        &[
            "subpath::files_directories_and_expressions",
            "subpath::links_out_of_the_volume_are_refused_however_they_get_there",
        ],
    ),
    works("spec.initContainers[].volumeMounts[].subPath", INIT),
    works(
        "spec.containers[].volumeMounts[].subPathExpr",
        &[
            "subpath::files_directories_and_expressions",
            "subpath::an_expression_with_a_missing_variable_is_an_error",
        ],
    ),
    works("spec.containers[].volumeMounts[].mountPropagation", &["mounts::mounts_propagate_as_they_should"]),
    works("spec.containers[].volumeMounts[].readOnly", &["mounts::read_only_mounts_and_recursively_so"]),
    works(
        "spec.containers[].volumeMounts[].recursiveReadOnly",
        &["mounts::read_only_mounts_and_recursively_so"],
    ),
    not_yet(
        "spec.containers[].volumeMounts[].bindMountOptions",
        "an alpha field that the runtime interface has no place for; the container will not start",
    ),
    not_yet(
        "spec.containers[].volumeDevices",
        "only a claim can be a block device, and this version mounts file systems only; refused in a file",
    ),
    works("spec.securityContext.fsGroup", &["volumes::files_modes_and_owners_are_as_the_pod_wants_them"]),
    works(
        "spec.securityContext.fsGroupChangePolicy",
        &["claims::a_local_volume_is_given_to_the_group_of_its_pod"],
    ),
];
