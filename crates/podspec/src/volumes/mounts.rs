//! How containers see volumes.

use std::path::PathBuf;

use k8s_cri::v1::MountPropagation;
use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use mainstay_types::PodExt as _;

use super::payload::PATH_MAX_BYTES;
use super::{VolumeSpecError, paths};
use crate::runtime::{NodeSettings, expand};

/// What the runtime can do with mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The handler makes mounts recursively read-only.
    pub recursive_read_only: bool,
}

impl RuntimeFeatures {
    /// Image volumes came with containerd 2.1 and CRI-O 1.31.
    fn image_volumes(&self) -> bool {
        self.is_at_least((2, 1), (1, 31))
    }

    /// Parts of images came with containerd 2.2 and CRI-O 1.33. Older ones would mount the whole image without a word.
    fn image_sub_paths(&self) -> bool {
        self.is_at_least((2, 2), (1, 33))
    }

    /// Nothing tells what the runtime can do here but its version; one that we do not know is believed to be new.
    fn is_at_least(&self, containerd: (u32, u32), cri_o: (u32, u32)) -> bool {
        let mut numbers = self.version.trim_start_matches('v').split(['.', '-', '+']);
        let mut number = || numbers.next().and_then(|part| part.parse::<u32>().ok());
        let (Some(major), Some(minor)) = (number(), number()) else { return true };
        match self.name.as_str() {
            "containerd" => (major, minor) >= containerd,
            "cri-o" => (major, minor) >= cri_o,
            _ => true,
        }
    }
}

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountWish {
    /// The volume.
    pub volume: String,
    /// Where in the container.
    pub container_path: String,
    /// What is mounted.
    pub source: MountSource,
    /// Read-only.
    pub read_only: bool,
    /// And what is mounted below it, too.
    pub recursive_read_only: bool,
    /// Which mounts made later are seen on the other side.
    pub propagation: MountPropagation,
    /// The runtime is to give it the container's SELinux label: it was made for the pod, and is nobody else's.
    pub relabel: bool,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the host.
    Path(PathBuf),
    /// A part of a volume, which must be found without being led astray and mounted at a place of its own first.
    SubPath {
        /// The volume's root on the host.
        root: PathBuf,
        /// The part.
        sub_path: String,
        /// Where it is to be mounted.
        target: PathBuf,
    },
    /// An image.
    Image {
        /// As the pod names it.
        reference: String,
        /// The directory in it; `None` for the whole. The runtime finds it.
        sub_path: Option<String>,
    },
}

/// An image that is mounted as a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVolume<'a> {
    /// The volume.
    pub volume: &'a str,
    /// The image as the pod names it.
    pub reference: &'a str,
    /// `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: &'a str,
}

/// The images that a container mounts.
pub fn image_volumes<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = ImageVolume<'a>> {
    container.volume_mounts.iter().flatten().filter_map(|mount| {
        let volume = find(pod, &mount.name)?;
        let image = volume.image.as_ref()?;
        let reference = image.reference.as_deref().unwrap_or_default();
        // As for containers: what is called latest may have changed.
        let latest = reference.ends_with(":latest") || !reference.rsplit('/').next()?.contains([':', '@']);
        let default = if latest { "Always" } else { "IfNotPresent" };
        let pull_policy = image.pull_policy.as_deref().unwrap_or(default);
        Some(ImageVolume { volume: &volume.name, reference, pull_policy })
    })
}

/// A container's volume mounts, in the order of the spec. `variable` looks up the container's environment.
///
/// # Errors
/// When a mount cannot be made as it is wanted. The container then waits with the error's text.
pub fn mount_wishes<'e>(
    pod: &Pod,
    container: &Container,
    node: &NodeSettings,
    runtime: &RuntimeFeatures,
    variable: impl Fn(&str) -> Option<&'e str>,
) -> Result<Vec<MountWish>, VolumeSpecError> {
    let pod_dir = paths::pod_dir(&node.root_dir, pod.uid_ref());
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| {
            let volume = find(pod, &mount.name).ok_or_else(|| VolumeSpecError::NoSuchVolume {
                container: container.name.clone(),
                volume: mount.name.clone(),
            })?;
            if mount.bind_mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
                return Err(VolumeSpecError::BindMountOptions { mount_path: mount.mount_path.clone() });
            }
            let sub_path = sub_path(mount, &variable)?;
            let source = if let Some(image) = &volume.image {
                if !runtime.image_volumes() {
                    let runtime = format!("{} {}", runtime.name, runtime.version);
                    return Err(VolumeSpecError::ImageVolumes { volume: volume.name.clone(), runtime });
                }
                if sub_path.is_some() && !runtime.image_sub_paths() {
                    let runtime = format!("{} {}", runtime.name, runtime.version);
                    return Err(VolumeSpecError::ImageSubPath { volume: volume.name.clone(), runtime });
                }
                MountSource::Image { reference: image.reference.clone().unwrap_or_default(), sub_path }
            } else {
                let root = paths::volume_path(&pod_dir, volume).ok_or(VolumeSpecError::NoSource)?;
                match sub_path {
                    None => MountSource::Path(root),
                    Some(sub_path) => {
                        let target = paths::subpath_dir(&pod_dir, &volume.name, &container.name, index);
                        MountSource::SubPath { root, sub_path, target }
                    }
                }
            };
            let read_only = mount.read_only == Some(true) || always_read_only(volume);
            Ok(MountWish {
                volume: volume.name.clone(),
                container_path: absolute(&mount.mount_path),
                source,
                read_only,
                recursive_read_only: recursive_read_only(mount, runtime)?,
                propagation: match mount.mount_propagation.as_deref() {
                    Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
                    Some("Bidirectional") => MountPropagation::PropagationBidirectional,
                    _ => MountPropagation::PropagationPrivate,
                },
                relabel: node.selinux && is_the_pods_own(volume),
            })
        })
        .collect()
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Volume> {
    pod.spec_ref().volumes.iter().flatten().find(|volume| volume.name == name)
}

fn always_read_only(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.image.is_some()
        || volume.nfs.as_ref().is_some_and(|nfs| nfs.read_only == Some(true))
        || volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true))
}

/// What the machine or others have is labelled by its owner.
fn is_the_pods_own(volume: &Volume) -> bool {
    volume.empty_dir.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// The part of the volume that is mounted; `None` for the whole.
fn sub_path<'e>(
    mount: &VolumeMount,
    variable: &impl Fn(&str) -> Option<&'e str>,
) -> Result<Option<String>, VolumeSpecError> {
    let text = match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
        (_, Some(expression)) if !expression.is_empty() => {
            let missing = std::cell::RefCell::new(None);
            let text = expand(expression, PATH_MAX_BYTES, |name| {
                let value = variable(name).filter(|value| !value.is_empty());
                if value.is_none() {
                    missing.borrow_mut().get_or_insert_with(|| name.to_owned());
                }
                value
            });
            if let Some(variable) = missing.into_inner() {
                return Err(VolumeSpecError::SubPathVariable {
                    expression: expression.to_owned(),
                    mount_path: mount.mount_path.clone(),
                    variable,
                });
            }
            text.ok_or_else(|| VolumeSpecError::SubPathTooLong {
                expression: expression.chars().take(80).collect(),
                mount_path: mount.mount_path.clone(),
            })?
        }
        (Some(text), _) => text.to_owned(),
        _ => return Ok(None),
    };
    if text.is_empty() {
        return Ok(None);
    }
    if text.starts_with('/') || text.contains('\0') || text.split('/').any(|part| part == "..") {
        return Err(VolumeSpecError::SubPath { path: text, mount_path: mount.mount_path.clone() });
    }
    Ok(Some(text))
}

fn recursive_read_only(mount: &VolumeMount, runtime: &RuntimeFeatures) -> Result<bool, VolumeSpecError> {
    let wish = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if wish == "Disabled" {
        return Ok(false);
    }
    let mount_path = mount.mount_path.clone();
    let private = mount.mount_propagation.as_deref().is_none_or(|mode| mode == "None");
    if mount.read_only != Some(true) || !private {
        return Err(VolumeSpecError::RecursiveReadOnlyCombination { mount_path });
    }
    match (wish, runtime.recursive_read_only) {
        (_, true) => Ok(true),
        ("IfPossible", false) => Ok(false),
        _ => Err(VolumeSpecError::RecursiveReadOnly { mount_path }),
    }
}

#[cfg(test)]
mod tests;
