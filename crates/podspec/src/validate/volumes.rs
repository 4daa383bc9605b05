//! Volumes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, ProjectedVolumeSource, ResourceFieldSelector,
    Volume,
};
use mainstay_types::Quantity;

use super::{Field, Problems, names, resources};
use crate::volumes::path_problem;

const HOST_PATH_TYPES: &[&str] =
    &["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
const FILE_MODE_RANGE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Fields of the pod that a file of a downward API volume may show.
const FILE_FIELDS: &[&str] =
    &["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
/// Fields of the pod that an environment variable may show.
pub(super) const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCE_FIELDS: &[&str] = &[
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

/// Checks the volumes and returns them by name, the broken ones too: a mount that refers to one is not a second fault.
pub(super) fn check<'a>(
    problems: &mut Problems,
    volumes: &'a [Volume],
    field: &Field,
) -> BTreeMap<&'a str, &'a Volume> {
    let mut by_name = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = field.index(index);
        let name = field.child("name");
        if volume.name.is_empty() {
            problems.required(&name, "give the volume a name");
        } else {
            problems.check(&name, &volume.name, names::dns_label);
        }
        if by_name.insert(volume.name.as_str(), volume).is_some() && !volume.name.is_empty() {
            problems.duplicate(&name, &volume.name);
        }
        check_source(problems, volume, &field);
    }
    by_name
}

fn check_source(problems: &mut Problems, volume: &Volume, field: &Field) {
    let present = sources(volume);
    for name in present.iter().skip(1) {
        problems.forbidden(&field.child(name), "may not specify more than 1 volume type");
    }
    if present.is_empty() {
        problems.required(field, "must specify a volume type");
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let field = field.child("emptyDir");
        if let Some(limit) = &empty_dir.size_limit {
            let field = field.child("sizeLimit");
            if resources::quantity(problems, &field, limit).is_some_and(Quantity::is_negative) {
                problems
                    .forbidden(&field, "SizeLimit field must be a valid resource quantity; it is negative");
            }
        }
        if let Some(mode) = empty_dir.mode
            && !(0..=0o1777).contains(&mode)
        {
            problems.invalid(
                &field.child("mode"),
                mode,
                "must be a number between 0 and 01777 (octal), both inclusive",
            );
        }
    }
    if let Some(host_path) = &volume.host_path {
        let field = field.child("hostPath");
        if host_path.path.is_empty() {
            problems.required(&field.child("path"), "name a path on this machine");
        } else {
            problems.check(&field.child("path"), &host_path.path, names::no_backsteps);
        }
        problems.one_of(&field.child("type"), host_path.type_.as_ref(), HOST_PATH_TYPES);
    }
    if let Some(secret) = &volume.secret {
        let field = field.child("secret");
        if secret.secret_name.as_deref().is_none_or(str::is_empty) {
            problems.required(&field.child("secretName"), "name a secret");
        }
        check_mode(problems, secret.default_mode, &field.child("defaultMode"));
        check_items(problems, secret.items.as_deref(), &field);
    }
    if let Some(config_map) = &volume.config_map {
        let field = field.child("configMap");
        if config_map.name.is_empty() {
            problems.required(&field.child("name"), "name a config map");
        }
        check_mode(problems, config_map.default_mode, &field.child("defaultMode"));
        check_items(problems, config_map.items.as_deref(), &field);
    }
    if let Some(downward) = &volume.downward_api {
        let field = field.child("downwardAPI");
        check_mode(problems, downward.default_mode, &field.child("defaultMode"));
        for (index, file) in downward.items.iter().flatten().enumerate() {
            check_downward_file(problems, file, &field.child("items").index(index));
        }
    }
    if let Some(projected) = &volume.projected {
        check_projected(problems, projected, &field.child("projected"));
    }
    if let Some(claim) = &volume.persistent_volume_claim
        && claim.claim_name.is_empty()
    {
        problems.required(&field.child("persistentVolumeClaim.claimName"), "name a claim");
    }
    if let Some(nfs) = &volume.nfs {
        let field = field.child("nfs");
        if nfs.server.is_empty() {
            problems.required(&field.child("server"), "name the server");
        }
        if nfs.path.is_empty() {
            problems.required(&field.child("path"), "name the exported path");
        } else if !nfs.path.starts_with('/') {
            problems.invalid(&field.child("path"), &nfs.path, "must be an absolute path");
        }
    }
    if let Some(image) = &volume.image {
        let field = field.child("image");
        if image.reference.as_deref().is_none_or(str::is_empty) {
            problems.required(&field.child("reference"), "name the image");
        }
        problems.one_of(
            &field.child("pullPolicy"),
            image.pull_policy.as_ref(),
            &["Always", "IfNotPresent", "Never"],
        );
    }
}

/// The kinds of source a volume names, in the order of the API's documentation.
fn sources(volume: &Volume) -> Vec<&'static str> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect()
}

fn check_mode(problems: &mut Problems, mode: Option<i32>, field: &Field) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        problems.invalid(field, mode, FILE_MODE_RANGE);
    }
}

fn check_items(problems: &mut Problems, items: Option<&[KeyToPath]>, field: &Field) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let field = field.child("items").index(index);
        if item.key.is_empty() {
            problems.required(&field.child("key"), "name the key");
        }
        check_file_path(problems, &item.path, &field.child("path"));
        check_mode(problems, item.mode, &field.child("mode"));
    }
}

fn check_file_path(problems: &mut Problems, path: &str, field: &Field) {
    if path.is_empty() {
        problems.required(field, "name the file");
    } else {
        problems.check(field, path, |path| {
            // What would be found out only when the file is to be written.
            let unwritable =
                || path_problem(path).map(|problem| format!("it {problem}, and would never be written"));
            names::local_file_path(path).or_else(unwritable)
        });
    }
}

fn check_downward_file(problems: &mut Problems, file: &DownwardAPIVolumeFile, field: &Field) {
    check_file_path(problems, &file.path, &field.child("path"));
    check_mode(problems, file.mode, &field.child("mode"));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(reference), None) => {
            check_field_ref(problems, reference, FILE_FIELDS, &field.child("fieldRef"));
        }
        (None, Some(reference)) => {
            check_resource_ref(problems, reference, true, &field.child("resourceFieldRef"))
        }
        (None, None) => problems.required(field, "one of fieldRef and resourceFieldRef is required"),
        (Some(_), Some(_)) => {
            problems.invalid(
                field,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            );
        }
    }
}

/// Checks a reference to a field of the pod.
pub(super) fn check_field_ref(
    problems: &mut Problems,
    reference: &ObjectFieldSelector,
    known: &[&str],
    field: &Field,
) {
    let path_field = field.child("fieldPath");
    let path = reference.field_path.as_str();
    if path.is_empty() {
        problems.required(&path_field, "name a field of the pod, such as metadata.name");
        return;
    }
    if reference.api_version.as_deref().is_some_and(|version| version != "v1") {
        problems.one_of(&field.child("apiVersion"), reference.api_version.as_ref(), &["v1"]);
    }
    match path.split_once("['").and_then(|(path, rest)| Some((path, rest.strip_suffix("']")?))) {
        Some(("metadata.labels", key)) => problems.check(&path_field, key, names::qualified_name),
        Some(("metadata.annotations", key)) => problems.check(&path_field, key, names::annotation_key),
        Some((path, _)) => problems.invalid(&path_field, path, "does not support subscript"),
        None if known.contains(&path) => {}
        None => problems.unsupported(&path_field, path, known),
    }
}

/// Checks a reference to a container's resources; in a volume it must say which container.
pub(super) fn check_resource_ref(
    problems: &mut Problems,
    reference: &ResourceFieldSelector,
    in_volume: bool,
    field: &Field,
) {
    if in_volume && reference.container_name.as_deref().is_none_or(str::is_empty) {
        problems.required(&field.child("containerName"), "name the container");
    }
    let resource = reference.resource.as_str();
    let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if resource.is_empty() {
        problems.required(&field.child("resource"), "name the resource, such as limits.memory");
    } else if !huge && !RESOURCE_FIELDS.contains(&resource) {
        problems.unsupported(&field.child("resource"), resource, RESOURCE_FIELDS);
    }
    let Some(divisor) = &reference.divisor else { return };
    let field = field.child("divisor");
    let Some(parsed) = resources::quantity(problems, &field, divisor) else { return };
    if parsed.is_zero() {
        return;
    }
    let allowed: &[&str] = if resource.ends_with(".cpu") {
        &["1m", "1"]
    } else {
        &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
    };
    if !allowed.contains(&parsed.to_string().as_str()) {
        problems.unsupported(&field, &divisor.0, allowed);
    }
}

fn check_projected(problems: &mut Problems, projected: &ProjectedVolumeSource, field: &Field) {
    check_mode(problems, projected.default_mode, &field.child("defaultMode"));
    let mut paths = BTreeSet::new();
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let field = field.child("sources").index(index);
        let mut place = |problems: &mut Problems, path: &str, field: &Field| {
            if !path.is_empty() && !paths.insert(path.to_owned()) {
                problems.invalid(field, path, "conflicting duplicate paths");
            }
        };
        let mut kinds = 0;
        if let Some(secret) = &source.secret {
            kinds += 1;
            let field = field.child("secret");
            if secret.name.is_empty() {
                problems.required(&field.child("name"), "name a secret");
            }
            check_items(problems, secret.items.as_deref(), &field);
            secret.items.iter().flatten().for_each(|item| place(problems, &item.path, &field));
        }
        if let Some(config_map) = &source.config_map {
            kinds += 1;
            let field = field.child("configMap");
            if config_map.name.is_empty() {
                problems.required(&field.child("name"), "name a config map");
            }
            check_items(problems, config_map.items.as_deref(), &field);
            config_map.items.iter().flatten().for_each(|item| place(problems, &item.path, &field));
        }
        if let Some(downward) = &source.downward_api {
            kinds += 1;
            let field = field.child("downwardAPI");
            for (index, file) in downward.items.iter().flatten().enumerate() {
                let field = field.child("items").index(index);
                check_downward_file(problems, file, &field);
                place(problems, &file.path, &field);
            }
        }
        if let Some(token) = &source.service_account_token {
            kinds += 1;
            let field = field.child("serviceAccountToken");
            check_file_path(problems, &token.path, &field.child("path"));
            if let Some(seconds) = token.expiration_seconds {
                problems.in_range(&field.child("expirationSeconds"), seconds, 600, 1 << 32);
            }
            place(problems, &token.path, &field);
        }
        kinds += usize::from(source.cluster_trust_bundle.is_some())
            + usize::from(source.pod_certificate.is_some());
        if kinds > 1 {
            problems.forbidden(&field, "may not specify more than 1 volume type per source");
        }
    }
}
