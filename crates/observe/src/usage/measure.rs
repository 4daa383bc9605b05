//! Measuring one pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use mainstay_cri::Cri;
use mainstay_host::{DiskUsage, FilesystemUsage, device_of};
use mainstay_podspec::volumes::{pod_dir, volume_path};
use mainstay_types::{
    ContainerName, ContainerPhase, ObservedPod, PodExt as _, PodStorage, PodUid, Quantity, StorageLimits,
};
use tokio::sync::OnceCell;
use tracing::debug;

/// Longest that the runtime may take to tell about one container.
const STATS_DEADLINE: Duration = Duration::from_secs(5);

/// Knows where things lie.
#[derive(Debug)]
pub(super) struct Measurer {
    cri: Cri,
    root_dir: PathBuf,
    /// Writable layers lie on the same file system as the root directory. Found out when it is first needed.
    layers_count: OnceCell<bool>,
}

/// What is to be measured on disk.
struct Places {
    /// Volumes: name, path, whether it counts for the pod's sum, and whether it is a file system of its own.
    volumes: Vec<VolumePlace>,
    logs: BTreeMap<ContainerName, BTreeSet<PathBuf>>,
    hosts: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
struct VolumePlace {
    name: String,
    path: PathBuf,
    counts: bool,
    own_file_system: bool,
    /// With more than this the pod is over a limit: no need to know by how much.
    most_bytes: u64,
}

impl Measurer {
    pub(super) fn new(cri: Cri, root_dir: PathBuf) -> Self {
        Self { cri, root_dir, layers_count: OnceCell::new() }
    }

    /// Measures what matters for the pod's limits.
    pub(super) async fn measure(
        &self,
        uid: &PodUid,
        pod: Arc<Pod>,
        limits: Arc<StorageLimits>,
        observed: Option<Arc<ObservedPod>>,
    ) -> PodStorage {
        let places = places(&self.root_dir, uid, &pod, &limits, observed.as_deref());
        let mut layers = BTreeMap::new();
        if limits.counts_containers()
            && self.layers_count().await
            && let Some(observed) = &observed
        {
            layers = self.layers(observed).await;
        }
        let on_disk = tokio::task::spawn_blocking(move || places.measure()).await;
        let (volumes, mut containers, mut total) = on_disk.unwrap_or_else(|error| {
            debug!(%error, "measuring a pod's directories failed");
            Default::default()
        });
        for (name, bytes) in layers {
            total = total.saturating_add(bytes);
            let sum = containers.entry(name).or_default();
            *sum = sum.saturating_add(bytes);
        }
        PodStorage { pod, limits, volumes, containers, total }
    }

    /// The size of each container's writable layer. A dead instance keeps its layer until it is collected, but only the
    /// newest one is the container's, as upstream counts.
    async fn layers(&self, observed: &ObservedPod) -> BTreeMap<ContainerName, u64> {
        let mut layers = BTreeMap::new();
        for container in &observed.containers {
            if container.phase != ContainerPhase::Running || layers.contains_key(&container.name) {
                continue;
            }
            let asked = self.cri.container_stats(container.id.as_str());
            let bytes = match tokio::time::timeout(STATS_DEADLINE, asked).await {
                Ok(Ok(stats)) => stats
                    .and_then(|stats| stats.writable_layer)
                    .and_then(|layer| layer.used_bytes)
                    .map(|used| used.value),
                Ok(Err(error)) => {
                    debug!(container.id = %container.id, %error, "no word on a container's writable layer");
                    None
                }
                Err(_) => None,
            };
            if let Some(bytes) = bytes {
                layers.insert(container.name.clone(), bytes);
            }
        }
        layers
    }

    /// Upstream does not hold layers on a file system of their own against the pod: they do not fill the node's disk.
    async fn layers_count(&self) -> bool {
        let found = self.layers_count.get_or_try_init(|| async {
            let info = tokio::time::timeout(STATS_DEADLINE, self.cri.image_fs_info()).await;
            let info = info.ok().and_then(Result::ok).ok_or(())?;
            let systems = if info.container_filesystems.is_empty() {
                info.image_filesystems
            } else {
                info.container_filesystems
            };
            let path = systems.into_iter().find_map(|system| system.fs_id).ok_or(())?.mountpoint;
            let root = self.root_dir.clone();
            let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev());
            tokio::task::spawn_blocking(move || match (device(Path::new(&path)), device(&root)) {
                (Ok(layers), Ok(root)) => Ok(layers == root),
                _ => Err(()),
            })
            .await
            .unwrap_or(Err(()))
        });
        // Not known yet: asked again the next time, and meanwhile nothing is held against anybody.
        found.await.copied().unwrap_or(false)
    }
}

/// Where the parts of a pod lie that its limits are about.
fn places(
    root_dir: &Path,
    uid: &PodUid,
    pod: &Pod,
    limits: &StorageLimits,
    observed: Option<&ObservedPod>,
) -> Places {
    let pod_dir = pod_dir(root_dir, uid.as_str());
    let in_sum = limits.total.is_some();
    let sum = limits.total.map_or(u64::MAX, bytes_of);
    let volumes = pod.spec_ref().volumes.iter().flatten().filter_map(|volume| {
        let mut place = volume_place(&pod_dir, volume)?;
        let own = limits.volumes.iter().find(|(name, _)| *name == volume.name).map(|(_, own)| bytes_of(*own));
        place.most_bytes = own.unwrap_or(u64::MAX).min(sum);
        (own.is_some() || (in_sum && place.counts)).then_some(place)
    });
    let mut logs = BTreeMap::<_, BTreeSet<_>>::new();
    if limits.counts_containers() {
        for container in observed.into_iter().flat_map(|observed| &observed.containers) {
            // All logs of a container, rotated ones and those of earlier instances too, lie in one directory.
            if let Some(directory) = Path::new(&*container.log_path).parent()
                && directory.is_absolute()
                && directory.ends_with(container.name.as_str())
            {
                logs.entry(container.name.clone()).or_default().insert(directory.to_owned());
            }
            // What a container writes to its termination log lies on the node's disk, too.
            let last_words = pod_dir.join("containers").join(container.name.as_str());
            logs.entry(container.name.clone()).or_default().insert(last_words);
        }
    }
    Places { volumes: volumes.collect(), logs, hosts: in_sum.then(|| pod_dir.join("etc-hosts")) }
}

/// Where a volume lies whose content is the pod's own; others are not held against it.
fn volume_place(pod_dir: &Path, volume: &Volume) -> Option<VolumePlace> {
    let own_file_system = match (&volume.empty_dir, &volume.config_map) {
        (Some(empty_dir), _) => !empty_dir.medium.as_deref().unwrap_or_default().is_empty(),
        (None, Some(_)) => false,
        (None, None) => return None,
    };
    let (path, counts) = (volume_path(pod_dir, volume)?, !own_file_system);
    Some(VolumePlace { name: volume.name.clone(), path, counts, own_file_system, most_bytes: u64::MAX })
}

fn bytes_of(limit: Quantity) -> u64 {
    u64::try_from(limit.value()).unwrap_or(0)
}

type OnDisk = (BTreeMap<String, u64>, BTreeMap<ContainerName, u64>, u64);

impl Places {
    /// Looks at the disk. Blocks.
    fn measure(self) -> OnDisk {
        let (mut volumes, mut containers, mut total) = (BTreeMap::new(), BTreeMap::new(), 0_u64);
        for place in self.volumes {
            let Some(bytes) = place.measure() else { continue };
            if place.counts {
                total = total.saturating_add(bytes);
            }
            volumes.insert(place.name, bytes);
        }
        for (name, directories) in self.logs {
            let bytes =
                directories.iter().map(|directory| tree(directory, u64::MAX)).fold(0, u64::saturating_add);
            total = total.saturating_add(bytes);
            containers.insert(name, bytes);
        }
        if let Some(hosts) = self.hosts {
            total = total.saturating_add(tree(&hosts, u64::MAX));
        }
        (volumes, containers, total)
    }
}

impl VolumePlace {
    fn measure(&self) -> Option<u64> {
        if !self.own_file_system {
            // What a container has mounted over it is not on the node's disk, and may hang: it is not asked.
            let device = |path: &Path| device_of(path).ok();
            let above = self.path.parent().and_then(device);
            let is_covered = device(&self.path).zip(above).is_some_and(|(own, above)| own != above);
            return (!is_covered).then(|| tree(&self.path, self.most_bytes));
        }
        // Not mounted yet, or no longer: nothing is known.
        FilesystemUsage::of_mount(&self.path).ok().flatten().map(|usage| usage.used_bytes)
    }
}

fn tree(path: &Path, most_bytes: u64) -> u64 {
    match DiskUsage::up_to(path, most_bytes) {
        Ok(usage) => {
            if usage.partial {
                debug!(path = %path.display(), "parts of a pod's directory could not be measured");
            }
            usage.bytes
        }
        Err(error) => {
            debug!(path = %path.display(), %error, "cannot measure a pod's directory");
            0
        }
    }
}

#[cfg(test)]
mod tests;
