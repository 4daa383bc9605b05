//! What plugins answered, as a container's configuration.

use std::{collections::BTreeSet, sync::Arc};

use k8s_cri::v1 as cri;
use mainstay_podspec::runtime::DeviceGrants;
use mainstay_proto::deviceplugin::ContainerAllocateResponse;
use prost::Message as _;

/// What a container is given for its devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// Environment, annotations, devices.
    pub grants: DeviceGrants,
    /// Mounts; they come before those of volumes.
    pub mounts: Vec<cri::Mount>,
}

/// Puts together what the plugins of several resources answered. Of two that say different things the first wins, as upstream has it.
pub(crate) fn merge(responses: &[(Arc<str>, Vec<u8>)]) -> Grant {
    let mut all = Grant::default();
    let (mut envs, mut notes, mut paths) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut targets, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (resource, bytes) in responses {
        let answer = match ContainerAllocateResponse::decode(bytes.as_slice()) {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%resource, %error, "what the device plugin once answered cannot be read");
                continue;
            }
        };
        let once = |what: &'static str, key: &str, seen: &mut BTreeSet<String>| {
            let first = seen.insert(key.to_owned());
            if !first {
                tracing::warn!(%resource, key, "two device plugins give the container another {what}; the first one's is used");
            }
            first
        };
        // Maps have no order; a container's configuration must have one.
        let mut sorted: Vec<_> = answer.envs.into_iter().collect();
        sorted.sort();
        all.grants.envs.extend(sorted.into_iter().filter(|(key, _)| once("variable", key, &mut envs)));
        let mut sorted: Vec<_> = answer.annotations.into_iter().collect();
        sorted.sort();
        let kept = sorted.into_iter().filter(|(key, _)| once("annotation", key, &mut notes));
        all.grants.annotations.extend(kept);
        let devices = answer.devices.into_iter().filter(|it| once("device", &it.container_path, &mut paths));
        all.grants.devices.extend(devices.map(|device| cri::Device {
            container_path: device.container_path,
            host_path: device.host_path,
            permissions: device.permissions,
        }));
        let mounts = answer.mounts.into_iter().filter(|it| once("mount", &it.container_path, &mut targets));
        all.mounts.extend(mounts.map(|mount| cri::Mount {
            container_path: mount.container_path,
            host_path: mount.host_path,
            readonly: mount.read_only,
            ..cri::Mount::default()
        }));
        // The same one for two resources is no conflict.
        let cdi = answer.cdi_devices.into_iter().filter(|device| names.insert(device.name.clone()));
        all.grants.cdi_devices.extend(cdi.map(|device| cri::CdiDevice { name: device.name }));
    }
    all
}
