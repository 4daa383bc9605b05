//! PersistentVolumeClaims: the volume that is behind each, in its place.
//!
//! A claim is bound to a PersistentVolume, and of those this version mounts what is on this machine (`local`, `hostPath`) and
//! shares (`nfs`). They are then treated as if the pod had named them itself, so that there is one way to mount each kind.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, PersistentVolumeClaimVolumeSource, PersistentVolumeSpec, Pod, Volume,
    VolumeNodeAffinity,
};
use mainstay_types::{Claim, ClaimedVolume, Objects, PodExt as _};

use super::{VolumeSpecError, plugin_name};
use crate::references::claim_name;

/// The pod with what is behind its claims in their place, as far as that is known and can be mounted.
#[must_use]
pub fn with_claims<'a>(pod: &'a Pod, objects: &Objects) -> Cow<'a, Pod> {
    let claims = |volume: &Volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    if !pod.spec_ref().volumes.iter().flatten().any(claims) {
        return Cow::Borrowed(pod);
    }
    let mut resolved = pod.clone();
    let volumes = resolved.spec.iter_mut().flat_map(|spec| spec.volumes.iter_mut().flatten());
    for volume in volumes.filter(|volume| claims(volume)) {
        if let Ok(found) = behind(pod, volume, objects) {
            *volume = found;
        }
    }
    Cow::Owned(resolved)
}

/// Which nodes the volume behind a claim can be used on, and its name; `None` if it can be on any, or none is known.
#[must_use]
pub fn affinity_of<'a>(
    pod: &Pod,
    volume: &Volume,
    objects: &'a Objects,
) -> Option<(&'a str, &'a VolumeNodeAffinity)> {
    let bound = bound(pod, volume, objects)?;
    Some((bound.name.as_str(), bound.spec.node_affinity.as_ref()?))
}

/// What has become of a claim that pods were given the volume of; theirs it stays, and no other pod is given it.
#[must_use]
pub fn lost_claim(pod: &Pod, volume: &Volume, objects: &Objects) -> Option<String> {
    let name = claim_name(pod, volume)?;
    let claim = objects.claims.get(&name)?;
    let problem = claim.volume.is_some() && !claim.problem.is_empty();
    problem.then(|| {
        let (name, problem) = (name.name.to_string(), claim.problem.clone());
        VolumeSpecError::ClaimUnbound { name, problem }.to_string()
    })
}

/// `mountOptions` of the PersistentVolume.
pub(super) fn mount_options(pod: &Pod, volume: &Volume, objects: &Objects) -> Vec<String> {
    bound(pod, volume, objects).and_then(|bound| bound.spec.mount_options.clone()).unwrap_or_default()
}

/// The name of the `local` volume behind a claim, which lives longer than pods.
pub(super) fn local<'a>(pod: &Pod, volume: &Volume, objects: &'a Objects) -> Option<&'a str> {
    bound(pod, volume, objects).filter(|bound| bound.spec.local.is_some()).map(|bound| bound.name.as_str())
}

/// The groups that the administrator says the volumes behind the pod's claims belong to; the pod's processes are in them. Those
/// that the pod names itself are left out.
#[must_use]
pub fn extra_groups(pod: &Pod, objects: &Objects) -> Vec<i64> {
    let security = pod.spec_ref().security_context.as_ref();
    let own = security.and_then(|context| context.supplemental_groups.as_deref()).unwrap_or_default();
    let mut groups: Vec<i64> = Vec::new();
    for volume in pod.spec_ref().volumes.iter().flatten() {
        let group = bound(pod, volume, objects).and_then(|bound| bound.group);
        groups.extend(group.filter(|group| !own.contains(group) && !groups.contains(group)));
    }
    groups
}

/// Upstream's name of the plugin that a volume is of, also behind its claim. `volume` is as [`with_claims`] has it.
#[must_use]
pub fn plugin_behind(pod: &Pod, volume: &Volume, objects: &Objects) -> &'static str {
    if local(pod, volume, objects).is_some() { "kubernetes.io/local-volume" } else { plugin_name(volume) }
}

fn bound<'a>(pod: &Pod, volume: &Volume, objects: &'a Objects) -> Option<&'a ClaimedVolume> {
    objects.claims.get(&claim_name(pod, volume)?)?.volume.as_ref()
}

/// The volume behind a claim. It still names its claim, by which it can be told that it is read-only.
pub(super) fn behind(pod: &Pod, volume: &Volume, objects: &Objects) -> Result<Volume, VolumeSpecError> {
    let full_name = claim_name(pod, volume).ok_or(VolumeSpecError::NoSource)?;
    let name = full_name.name.to_string();
    let Some(claim) = objects.claims.get(&full_name) else {
        return Err(VolumeSpecError::NoClaimYet { name });
    };
    let Claim { owners, volume: bound, problem } = &**claim;
    if volume.ephemeral.is_some() && !owners.iter().any(|owner| owner == pod.uid_ref()) && bound.is_some() {
        return Err(VolumeSpecError::ClaimOfAnother { name });
    }
    let Some(ClaimedVolume { name: volume_name, spec, .. }) = bound else {
        return Err(VolumeSpecError::ClaimUnbound { name, problem: problem.clone() });
    };
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(VolumeSpecError::BlockVolume { volume: volume_name.clone() });
    }
    let asked = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
    let read_only = asked || only_read(spec);
    let mut found = Volume {
        name: volume.name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: name,
            read_only: Some(read_only),
        }),
        ..Volume::default()
    };
    if let Some(local) = &spec.local {
        let type_ = Some("Directory".to_owned());
        found.host_path = Some(HostPathVolumeSource { path: local.path.clone(), type_ });
    } else if let Some(host_path) = &spec.host_path {
        found.host_path = Some(host_path.clone());
    } else if let Some(nfs) = &spec.nfs {
        let mut nfs = nfs.clone();
        nfs.read_only = Some(read_only || nfs.read_only == Some(true));
        found.nfs = Some(nfs);
    } else {
        let (volume, source_kind) = (volume_name.clone(), kind(spec));
        return Err(VolumeSpecError::VolumeKind { volume, source_kind });
    }
    Ok(found)
}

/// A volume that can only be read by its access modes.
fn only_read(spec: &PersistentVolumeSpec) -> bool {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany")
}

fn kind(spec: &PersistentVolumeSpec) -> &'static str {
    let kinds = [
        ("csi", spec.csi.is_some()),
        ("iscsi", spec.iscsi.is_some()),
        ("fc", spec.fc.is_some()),
        ("flexVolume", spec.flex_volume.is_some()),
    ];
    kinds.into_iter().find_map(|(kind, present)| present.then_some(kind)).unwrap_or("one of a removed plugin")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_types::FullName;
    use serde_json::{Value, json};

    use super::*;

    fn objects(claims: Vec<(&str, Claim)>) -> Objects {
        let claims = claims.into_iter().map(|(name, it)| (FullName::new("ns", name), Arc::new(it)));
        Objects { claims: claims.collect(), ..Objects::default() }
    }

    fn to(spec: Value) -> Claim {
        let spec = serde_json::from_value(spec).unwrap();
        let volume = ClaimedVolume { name: "pv".into(), spec, group: None };
        Claim { owners: vec!["owner".into()], volume: Some(volume), problem: String::new() }
    }

    #[test]
    fn claims_become_what_is_behind_them() {
        let objects = objects(vec![
            ("local", to(json!({ "local": { "path": "/srv/a" } }))),
            ("host", to(json!({ "hostPath": { "path": "/srv/b", "type": "" } }))),
            (
                "nfs",
                to(json!({ "nfs": { "server": "s", "path": "/x" }, "mountOptions": ["nolock", "soft"] })),
            ),
            ("rom", to(json!({ "local": { "path": "/srv/a" }, "accessModes": ["ReadOnlyMany"] }))),
            ("csi", to(json!({ "csi": { "driver": "d", "volumeHandle": "h" } }))),
            ("block", to(json!({ "local": { "path": "/dev/x" }, "volumeMode": "Block" }))),
            ("pending", Claim { problem: "is not bound (it is Pending)".into(), ..Claim::default() }),
            ("p-own", to(json!({ "local": { "path": "/srv/o" } }))),
            ("p-others", to(json!({ "local": { "path": "/srv/o" } }))),
        ]);
        let pod = |uid: &str, volume: Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "ns", "uid": uid },
                "spec": { "containers": [], "volumes": [volume] },
            }))
            .unwrap()
        };
        let claim = |name: &str| json!({ "name": "v", "persistentVolumeClaim": { "claimName": name } });
        let ephemeral =
            |name: &str| json!({ "name": name, "ephemeral": { "volumeClaimTemplate": { "spec": {} } } });
        let rows = [
            ("local", "u", claim("local"), "/srv/a Directory false"),
            ("hostPath", "u", claim("host"), "/srv/b  false"),
            (
                "read-only by the pod",
                "u",
                json!({ "name": "v", "persistentVolumeClaim": { "claimName": "local", "readOnly": true } }),
                "/srv/a Directory true",
            ),
            ("read-only by its modes", "u", claim("rom"), "/srv/a Directory true"),
            ("nfs", "u", claim("nfs"), "s:/x false"),
            ("ephemeral", "owner", ephemeral("own"), "/srv/o Directory false"),
            (
                "of another",
                "u",
                ephemeral("others"),
                "! persistentvolumeclaim \"p-others\" was not created for this pod",
            ),
            (
                "pending",
                "u",
                claim("pending"),
                "! persistentvolumeclaim \"pending\" is not bound (it is Pending)",
            ),
            ("unknown", "u", claim("new"), "! nothing is known of persistentvolumeclaim \"new\" yet"),
            ("a driver's", "u", claim("csi"), "! persistentvolume \"pv\" is of type csi"),
            ("a device", "u", claim("block"), "! persistentvolume \"pv\" is a block device"),
        ];
        for (row, uid, volume, expected) in rows {
            let pod = pod(uid, volume);
            let own = pod.spec_ref().volumes.as_ref().unwrap().first().unwrap();
            let seen = match behind(&pod, own, &objects) {
                Err(error) => format!("! {error}"),
                Ok(found) => {
                    let read_only = found.persistent_volume_claim.as_ref().unwrap().read_only.unwrap();
                    match (&found.host_path, &found.nfs) {
                        (Some(it), None) => {
                            format!("{} {} {read_only}", it.path, it.type_.as_deref().unwrap_or_default())
                        }
                        (None, Some(it)) => format!("{}:{} {}", it.server, it.path, it.read_only.unwrap()),
                        other => format!("{other:?}"),
                    }
                }
            };
            let resolved = with_claims(&pod, &objects);
            let mounted = resolved.spec_ref().volumes.as_ref().unwrap().first().unwrap();
            if expected.starts_with('!') {
                assert!(seen.starts_with(expected), "{row}: {seen}");
                assert_eq!(mounted, own, "{row}: what cannot be mounted stays as it is");
            } else {
                assert_eq!(seen, expected, "{row}");
                assert!(mounted.host_path.is_some() || mounted.nfs.is_some(), "{row}");
            }
        }
        let nfs = pod("u", claim("nfs"));
        let resolved = with_claims(&nfs, &objects);
        let volume = resolved.spec_ref().volumes.as_ref().unwrap().first().unwrap();
        assert_eq!(mount_options(&nfs, volume, &objects), ["nolock", "soft"]);
        for (name, plugin) in [
            ("local", "kubernetes.io/local-volume"),
            ("host", "kubernetes.io/host-path"),
            ("nfs", "kubernetes.io/nfs"),
        ] {
            let pod = pod("u", claim(name));
            let resolved = with_claims(&pod, &objects);
            let volume = resolved.spec_ref().volumes.as_ref().unwrap().first().unwrap();
            assert_eq!(plugin_behind(&pod, volume, &objects), plugin, "{name}");
        }
    }
    #[test]
    fn volumes_bring_the_group_that_they_belong_to() {
        let of = |group| {
            let volume = ClaimedVolume { name: "pv".into(), group, ..ClaimedVolume::default() };
            Claim { volume: Some(volume), ..Claim::default() }
        };
        let objects =
            objects(vec![("a", of(Some(5))), ("b", of(Some(6))), ("c", of(None)), ("d", of(Some(6)))]);
        let names = ["a", "b", "c", "d", "unknown"];
        let volumes =
            names.map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } }));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "ns", "uid": "u" },
            "spec": { "containers": [], "volumes": volumes, "securityContext": { "supplementalGroups": [5] } },
        }))
        .unwrap();
        assert_eq!(extra_groups(&pod, &objects), [6]);
    }
}
