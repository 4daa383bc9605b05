//! Where volumes lie: upstream's layout, so that either kubelet finds what the other made.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use mainstay_types::{PodExt as _, Quantity};

/// The directory of a pod: `<root>/pods/<uid>`.
#[must_use]
pub fn pod_dir(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid)
}

/// The directory in which a pod's volumes lie, by plugin.
#[must_use]
pub fn volumes_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes")
}

/// Where a volume lies in the pod's directory. `plugin` in upstream's spelling: `kubernetes.io~empty-dir`.
#[must_use]
pub fn volume_dir(pod_dir: &Path, plugin: &str, name: &str) -> PathBuf {
    volumes_dir(pod_dir).join(plugin).join(name)
}

/// The file that says that a volume is set up. Volumes that are written into an emptyDir have that emptyDir's marker, as
/// upstream has it.
#[must_use]
pub fn ready_marker(pod_dir: &Path, plugin: &str, name: &str) -> PathBuf {
    let plugins = pod_dir.join("plugins");
    match plugin {
        "kubernetes.io~configmap"
        | "kubernetes.io~secret"
        | "kubernetes.io~downward-api"
        | "kubernetes.io~projected" => {
            plugins.join("kubernetes.io~empty-dir").join(format!("wrapped_{name}")).join("ready")
        }
        _ => plugins.join(plugin).join(name).join("ready"),
    }
}

/// The directory in which the pod's subPath mounts lie.
#[must_use]
pub fn subpaths_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volume-subpaths")
}

/// Where the subPath of a container's volumeMount (by its place in the list) is mounted.
#[must_use]
pub fn subpath_dir(pod_dir: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    subpaths_dir(pod_dir).join(volume).join(container).join(index.to_string())
}

/// The plugin directory of `local` volumes, which are there themselves; only what is noted of them is in it.
pub(super) const LOCAL: &str = "kubernetes.io~local-volume";

/// The plugin directory of a volume; `None` for kinds that have none: hostPath, image and what is not supported.
pub(super) fn plugin(volume: &Volume) -> Option<&'static str> {
    [
        ("kubernetes.io~empty-dir", volume.empty_dir.is_some()),
        ("kubernetes.io~configmap", volume.config_map.is_some()),
        ("kubernetes.io~secret", volume.secret.is_some()),
        ("kubernetes.io~downward-api", volume.downward_api.is_some()),
        ("kubernetes.io~projected", volume.projected.is_some()),
        ("kubernetes.io~nfs", volume.nfs.is_some()),
    ]
    .into_iter()
    .find_map(|(plugin, present)| present.then_some(plugin))
}

/// The plugin of a volume as metrics label it; empty for kinds that are not supported.
#[must_use]
pub fn plugin_name(volume: &Volume) -> &'static str {
    [
        ("kubernetes.io/empty-dir", volume.empty_dir.is_some()),
        ("kubernetes.io/configmap", volume.config_map.is_some()),
        ("kubernetes.io/secret", volume.secret.is_some()),
        ("kubernetes.io/downward-api", volume.downward_api.is_some()),
        ("kubernetes.io/projected", volume.projected.is_some()),
        ("kubernetes.io/host-path", volume.host_path.is_some()),
        ("kubernetes.io/nfs", volume.nfs.is_some()),
        ("kubernetes.io/image", volume.image.is_some()),
    ]
    .into_iter()
    .find_map(|(plugin, present)| present.then_some(plugin))
    .unwrap_or_default()
}

/// The path at which a volume's contents are found on the host; `None` for images and kinds that are not supported.
#[must_use]
pub fn volume_path(pod_dir: &Path, volume: &Volume) -> Option<PathBuf> {
    if let Some(host_path) = &volume.host_path {
        return Some(PathBuf::from(&host_path.path));
    }
    plugin(volume).map(|plugin| volume_dir(pod_dir, plugin, &volume.name))
}

/// An emptyDir of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyDirPlace<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// Where its contents are.
    pub path: PathBuf,
    /// The medium: empty (disk), `Memory`, `HugePages` or `HugePages-<size>`.
    pub medium: &'a str,
    /// `sizeLimit` in bytes, if there is one above zero.
    pub size_limit: Option<i64>,
}

/// Every emptyDir of a pod below this root directory, in the order of the spec.
pub fn empty_dirs<'a>(root: &Path, pod: &'a Pod) -> impl Iterator<Item = EmptyDirPlace<'a>> {
    let dir = pod_dir(root, pod.uid_ref());
    pod.spec_ref().volumes.iter().flatten().filter_map(move |volume| {
        let empty_dir = volume.empty_dir.as_ref()?;
        let limit = empty_dir.size_limit.as_ref().and_then(|limit| Quantity::parse(&limit.0).ok());
        Some(EmptyDirPlace {
            volume: &volume.name,
            path: volume_dir(&dir, "kubernetes.io~empty-dir", &volume.name),
            medium: empty_dir.medium.as_deref().unwrap_or_default(),
            size_limit: limit.map(Quantity::value).filter(|bytes| *bytes > 0),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_upstreams() {
        let dir = pod_dir(Path::new("/var/lib/kubelet"), "u1");
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        assert_eq!(
            text(volume_dir(&dir, "kubernetes.io~secret", "s")),
            "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~secret/s"
        );
        assert_eq!(
            text(ready_marker(&dir, "kubernetes.io~empty-dir", "e")),
            "/var/lib/kubelet/pods/u1/plugins/kubernetes.io~empty-dir/e/ready"
        );
        assert_eq!(
            text(ready_marker(&dir, "kubernetes.io~secret", "s")),
            "/var/lib/kubelet/pods/u1/plugins/kubernetes.io~empty-dir/wrapped_s/ready"
        );
        assert_eq!(text(subpath_dir(&dir, "v", "c", 3)), "/var/lib/kubelet/pods/u1/volume-subpaths/v/c/3");
    }

    #[test]
    fn empty_dirs_are_found_with_their_limits() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "emptyDir": {}},
                {"name": "h", "hostPath": {"path": "/srv"}},
                {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                {"name": "z", "emptyDir": {"sizeLimit": "0"}},
            ]},
        }))
        .unwrap();
        let found: Vec<_> = empty_dirs(Path::new("/r"), &pod)
            .map(|place| {
                (place.volume, place.path.to_string_lossy().into_owned(), place.medium, place.size_limit)
            })
            .collect();
        let path = |name: &str| format!("/r/pods/u1/volumes/kubernetes.io~empty-dir/{name}");
        assert_eq!(
            found,
            [
                ("a", path("a"), "", None),
                ("m", path("m"), "Memory", Some(64 << 20)),
                ("z", path("z"), "", None)
            ]
        );
        let spec = pod.spec.as_ref().unwrap();
        let volumes = spec.volumes.as_ref().unwrap();
        let dir = pod_dir(Path::new("/r"), "u1");
        let paths: Vec<_> = volumes
            .iter()
            .map(|volume| volume_path(&dir, volume).unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(paths, [path("a"), "/srv".to_owned(), path("m"), path("z")]);
    }
}
