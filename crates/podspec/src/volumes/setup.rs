//! How each volume is made.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use mainstay_types::{Objects, PodExt as _, Quantity};

use super::{Payload, VolumeSpecError, claims, paths, payload::payload};
use crate::runtime::{NodeSettings, pod_cgroup_values};

/// What volumes depend on beside the pod.
#[derive(Clone, Copy, Debug)]
pub struct VolumeContext<'a> {
    /// The node.
    pub node: &'a NodeSettings,
    /// ConfigMaps and Secrets.
    pub objects: &'a Objects,
}

/// What to do for one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSetup {
    /// Its name.
    pub name: String,
    /// Where its contents are on the host; empty for images.
    pub path: PathBuf,
    /// The file that says that it is set up; `None` for kinds that have none.
    pub ready_marker: Option<PathBuf>,
    /// How it is made.
    pub kind: SetupKind,
    /// The group to own it (`fsGroup`), for the kinds that upstream gives it.
    pub fs_group: Option<u32>,
    /// Of one that was there before the pod: everything in it is given to the group, or only if its root is not the group's yet.
    pub group_change: GroupChange,
}

/// When what is in a volume is given to the pod's group (`fsGroupChangePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupChange {
    /// Whenever the volume is set up for a pod.
    #[default]
    Always,
    /// If the volume's root has another group or other permissions.
    OnRootMismatch,
}

/// How a volume is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupKind {
    /// An empty directory on disk.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// An empty directory in memory.
    Memory {
        /// Permission bits.
        mode: u32,
        /// The most it may hold, in bytes.
        size: Option<i64>,
    },
    /// An empty directory of huge pages.
    HugePages {
        /// Permission bits.
        mode: u32,
        /// `2Mi`: the page size.
        page_size: String,
    },
    /// A path of the host, checked.
    HostPath(HostPathType),
    /// A directory of this machine that lives longer than pods, and may be several pods' at a time.
    Local,
    /// Files that are written for the pod and follow their sources.
    Files {
        /// They lie in memory, not on disk.
        in_memory: bool,
        /// The most that may lie there, in bytes.
        size: Option<i64>,
        /// The files.
        files: Payload,
    },
    /// A directory of a server.
    Nfs {
        /// `server:path`.
        source: String,
        /// Mounted read-only.
        read_only: bool,
        /// More options of the mount.
        options: Vec<String>,
    },
    /// An image, which the runtime mounts.
    Image,
}

/// What must be, or is made, at a host path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPathType {
    /// Nothing is checked.
    Unset,
    /// A directory, made when missing.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made when missing.
    FileOrCreate,
    /// A file.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl HostPathType {
    fn parse(text: Option<&str>) -> Option<Self> {
        Some(match text.unwrap_or_default() {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// Describes how one of the pod's volumes is made.
///
/// # Errors
/// When something it needs is missing, or it is of a kind that cannot be made here. The pod then waits with the error's text.
pub fn set_up(
    pod: &Pod,
    volume: &Volume,
    context: &VolumeContext<'_>,
) -> Result<VolumeSetup, VolumeSpecError> {
    let dir = paths::pod_dir(&context.node.root_dir, pod.uid_ref());
    let kind = kind(pod, volume, context)?;
    let read_only = volume.persistent_volume_claim.as_ref().and_then(|it| it.read_only) == Some(true);
    let local = claims::local(pod, volume, context.objects);
    // The host path that stands for it says where it is; what it is decides how it is treated.
    let kind = if local.is_some() { SetupKind::Local } else { kind };
    let owned = local.is_some() && !read_only
        || matches!(
            kind,
            SetupKind::Directory { .. }
                | SetupKind::Memory { .. }
                | SetupKind::HugePages { .. }
                | SetupKind::Files { .. }
        );
    let security = pod.spec_ref().security_context.as_ref();
    let fs_group = security.and_then(|context| context.fs_group);
    let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
    Ok(VolumeSetup {
        name: volume.name.clone(),
        path: paths::volume_path(&dir, volume).unwrap_or_default(),
        ready_marker: match local {
            // By the volume's own name, by which other pods that use it are found.
            Some(name) => Some(paths::ready_marker(&dir, paths::LOCAL, name)),
            None => paths::plugin(volume).map(|plugin| paths::ready_marker(&dir, plugin, &volume.name)),
        },
        kind,
        fs_group: fs_group.filter(|_| owned).and_then(|group| u32::try_from(group).ok()),
        group_change: if policy == Some("OnRootMismatch") {
            GroupChange::OnRootMismatch
        } else {
            GroupChange::Always
        },
    })
}

fn kind(pod: &Pod, volume: &Volume, context: &VolumeContext<'_>) -> Result<SetupKind, VolumeSpecError> {
    if let Some(source) = &volume.empty_dir {
        return empty_dir(pod, source, context.node);
    }
    if let Some(source) = &volume.host_path {
        if Path::new(&source.path).components().any(|part| part == std::path::Component::ParentDir) {
            return Err(VolumeSpecError::HostPathBackstep { path: source.path.clone() });
        }
        let kind = HostPathType::parse(source.type_.as_deref());
        return kind.map(SetupKind::HostPath).ok_or(VolumeSpecError::Unsupported { source_kind: "hostPath" });
    }
    if let Some(source) = &volume.nfs {
        // An IPv6 address is told from the path by its brackets.
        let bare_v6 = source.server.parse::<std::net::Ipv6Addr>().is_ok();
        let server = if bare_v6 { format!("[{}]", source.server) } else { source.server.clone() };
        return Ok(SetupKind::Nfs {
            source: format!("{server}:{}", source.path),
            read_only: source.read_only == Some(true),
            options: claims::mount_options(pod, volume, context.objects),
        });
    }
    if volume.image.is_some() {
        return Ok(SetupKind::Image);
    }
    if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
        // Had something been found behind it, that would stand here.
        let found = claims::behind(pod, volume, context.objects)?;
        return kind(pod, &found, context);
    }
    if let Some(files) = payload(pod, volume, context)? {
        // Upstream keeps configMaps on disk and everything that may be secret in memory.
        let in_memory = volume.config_map.is_none();
        let size = in_memory.then(|| memory_size(pod, None, context.node)).flatten();
        return Ok(SetupKind::Files { in_memory, size, files });
    }
    Err(unsupported(volume))
}

fn unsupported(volume: &Volume) -> VolumeSpecError {
    let others = [
        ("csi", volume.csi.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    match others.into_iter().find(|(_, present)| *present) {
        Some((source_kind, _)) => VolumeSpecError::Unsupported { source_kind },
        None => VolumeSpecError::NoSource,
    }
}

fn empty_dir(
    pod: &Pod,
    source: &EmptyDirVolumeSource,
    node: &NodeSettings,
) -> Result<SetupKind, VolumeSpecError> {
    let mode = source.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o777);
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(SetupKind::Directory { mode }),
        "Memory" => {
            let limit = source.size_limit.as_ref().and_then(|limit| Quantity::parse(&limit.0).ok());
            Ok(SetupKind::Memory { mode, size: memory_size(pod, limit.map(Quantity::value), node) })
        }
        medium => match medium.strip_prefix("HugePages") {
            Some(size) => Ok(SetupKind::HugePages { mode, page_size: page_size(pod, medium, size)? }),
            None => Err(VolumeSpecError::Medium { medium: medium.to_owned() }),
        },
    }
}

/// What a file system in memory may hold: the least of what all pods may use, the pod's limit, and the volume's own.
fn memory_size(pod: &Pod, own_limit: Option<i64>, node: &NodeSettings) -> Option<i64> {
    let of_all = node.allocatable.get("memory").map(|amount| amount.value()).filter(|bytes| *bytes > 0);
    let of_all = of_all.unwrap_or(node.memory_capacity);
    [Some(of_all), pod_cgroup_values(pod, node, false).memory.amount(), own_limit]
        .into_iter()
        .flatten()
        .filter(|bytes| *bytes > 0)
        .min()
}

/// The page size of a medium: the one it names, or the only one that the pod asks for.
fn page_size(pod: &Pod, medium: &str, named: &str) -> Result<String, VolumeSpecError> {
    let unclear = |why| VolumeSpecError::HugePages { medium: medium.to_owned(), why };
    let of_containers = pod.all_containers().filter_map(|(_, container)| container.resources.as_ref());
    let mut asked: Vec<(i64, &str)> = of_containers
        .chain(pod.spec_ref().resources.as_ref())
        .flat_map(|resources| [&resources.requests, &resources.limits])
        .flatten()
        .flat_map(|list| list.keys())
        .filter_map(|name| name.strip_prefix("hugepages-"))
        .filter_map(|size| Some((Quantity::parse(size).ok()?.value(), size)))
        .collect();
    asked.sort_unstable();
    asked.dedup_by_key(|(bytes, _)| *bytes);
    match named.strip_prefix('-') {
        Some(size) => {
            let bytes = Quantity::parse(size).map_err(|_| unclear("its page size is no quantity"))?.value();
            if asked.iter().any(|(other, _)| *other == bytes) {
                Ok(size.to_owned())
            } else {
                Err(unclear("neither the pod nor a container requests huge pages of its size"))
            }
        }
        None if named.is_empty() => match asked.as_slice() {
            [(_, size)] => Ok((*size).to_owned()),
            [] => Err(unclear("neither the pod nor a container requests huge pages")),
            _ => Err(unclear("containers request huge pages of several sizes")),
        },
        None => Err(VolumeSpecError::Medium { medium: medium.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
