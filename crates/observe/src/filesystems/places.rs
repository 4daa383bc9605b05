//! Looking at the disk. Everything here blocks.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use mainstay_host::{DiskUsage, FilesystemUsage, Host};
use mainstay_podspec::volumes::{plugin_behind, pod_dir, volume_path, with_claims};
use mainstay_types::{
    ContainerName, ContainerPhase, DiskWork, FsReading, Objects, ObservedContainer, ObservedPod,
    ObservedState, PodExt as _, PodUid, VolumeReading,
};

use super::size_of;

/// Bytes and files.
type Found = (u64, u64);

/// What logs use.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// When they had all been looked at.
    pub(super) at: Timestamp,
    /// Of containers.
    pub(super) containers: HashMap<(PodUid, ContainerName), Found>,
    /// Of pods, beside their containers': files directly in their directory of logs, and their hosts file.
    pub(super) pods: HashMap<PodUid, Found>,
}

/// Where logs lie.
#[derive(Debug, Default)]
pub(super) struct LogPlaces {
    containers: Vec<(PodUid, ContainerName, PathBuf)>,
    pods: Vec<(PodUid, BTreeSet<PathBuf>, PathBuf)>,
}

/// The running containers of a pod; of two of one name the newer one.
pub(super) fn newest_running(pod: &ObservedPod) -> impl Iterator<Item = &ObservedContainer> {
    let mut seen = HashSet::new();
    pod.containers
        .iter()
        .filter(|container| container.phase == ContainerPhase::Running)
        .filter(move |container| seen.insert(container.name.as_str()))
}

impl LogPlaces {
    pub(super) fn of(root_dir: &Path, observed: &ObservedState) -> Self {
        let mut places = Self::default();
        for (uid, pod) in &observed.pods {
            let mut above = BTreeSet::new();
            for container in newest_running(pod) {
                let directory = Path::new(&*container.log_path).parent();
                let Some(directory) = directory.filter(|it| it.is_absolute()) else { continue };
                places.containers.push((uid.clone(), container.name.clone(), directory.to_owned()));
                above.extend(directory.parent().map(Path::to_owned));
            }
            let hosts = pod_dir(root_dir, uid.as_str()).join("etc-hosts");
            places.pods.push((uid.clone(), above, hosts));
        }
        places
    }

    pub(super) fn measure(self) -> Logs {
        let mut logs = Logs::default();
        for (uid, name, directory) in self.containers {
            if let Some(found) = files(&directory) {
                logs.containers.insert((uid, name), found);
            }
        }
        for (uid, directories, hosts) in self.pods {
            let mut found = file(&hosts).unwrap_or_default();
            for (bytes, count) in directories.iter().filter_map(|directory| files(directory)) {
                found = (found.0.saturating_add(bytes), found.1 + count);
            }
            logs.pods.insert(uid, found);
        }
        logs.at = Timestamp::now();
        logs
    }
}

/// The files directly in a directory; `None` if it is not there.
fn files(directory: &Path) -> Option<Found> {
    let mut found = (0_u64, 0);
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        if let Some((bytes, count)) = file(&entry.path()) {
            found = (found.0.saturating_add(bytes), found.1 + count);
        }
    }
    Some(found)
}

fn file(path: &Path) -> Option<Found> {
    let metadata = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((metadata.blocks().saturating_mul(512), 1))
}

/// What a pod's volumes hold, those that count for its sum first. `look` is told of each before it is looked at; `entries` counts up meanwhile.
pub(super) fn volumes_of(
    root_dir: &Path,
    uid: &PodUid,
    (pod, objects): (&Pod, &Objects),
    look: impl Fn(&str),
    entries: &AtomicU64,
) -> Arc<[VolumeReading]> {
    let pod_dir = pod_dir(root_dir, uid.as_str());
    let resolved = with_claims(pod, objects);
    let volumes = resolved.spec_ref().volumes.iter().flatten();
    let mut found: Vec<VolumeReading> = volumes
        .filter_map(|volume| {
            look(&volume.name);
            match &volume.persistent_volume_claim {
                Some(claim) => {
                    claimed(&pod_dir, volume, &claim.claim_name, plugin_behind(pod, volume, objects))
                }
                None => volume_of(&pod_dir, volume, entries),
            }
        })
        .collect();
    found.sort_by_key(|volume| !volume.counts);
    found.into()
}

/// Whether a volume of the pod is another machine's, which may not answer.
pub(super) fn has_remote(pod: &Pod, objects: &Objects) -> bool {
    let resolved = with_claims(pod, objects);
    let claimed = |volume: &&Volume| volume.persistent_volume_claim.is_some();
    resolved.spec_ref().volumes.iter().flatten().filter(claimed).any(|volume| volume.nfs.is_some())
}

/// The file system that a claim's volume is on, as upstream tells of it: not what lies in the volume. A directory of the
/// machine that was claimed is not told of.
fn claimed(pod_dir: &Path, volume: &Volume, claim: &str, plugin: &str) -> Option<VolumeReading> {
    let path = match plugin {
        "kubernetes.io/local-volume" => volume_path(pod_dir, volume)?,
        // Where nothing is mounted (yet), the node's own disk would answer.
        "kubernetes.io/nfs" => volume_path(pod_dir, volume)
            .filter(|path| matches!(FilesystemUsage::of_mount(path), Ok(Some(_))))?,
        _ => return None,
    };
    let usage = FilesystemUsage::of(&path).ok()?;
    let reading = FsReading {
        at: Timestamp::now(),
        size: Some(size_of(&usage)),
        used_bytes: Some(usage.used_bytes),
        inodes_used: Some(usage.inodes_used),
    };
    Some(VolumeReading {
        name: volume.name.as_str().into(),
        claim: Some(claim.into()),
        counts: false,
        reading,
    })
}

fn volume_of(pod_dir: &Path, volume: &Volume, entries: &AtomicU64) -> Option<VolumeReading> {
    let in_memory = |it: &k8s_openapi::api::core::v1::EmptyDirVolumeSource| {
        !it.medium.as_deref().unwrap_or_default().is_empty()
    };
    // Which of them count, and which are file systems of their own.
    let (counts, mounted) = match volume {
        Volume { empty_dir: Some(empty_dir), .. } => (!in_memory(empty_dir), in_memory(empty_dir)),
        Volume { config_map: Some(_), .. } => (true, false),
        Volume { secret: Some(_), .. }
        | Volume { downward_api: Some(_), .. }
        | Volume { projected: Some(_), .. } => (false, false),
        // What is somebody else's is not walked, and may hang.
        _ => return None,
    };
    let path = volume_path(pod_dir, volume)?;
    let own_size = FilesystemUsage::of_mount(&path).ok().flatten();
    let at = Timestamp::now();
    let reading = match own_size {
        Some(usage) => FsReading {
            at,
            size: Some(size_of(&usage)),
            used_bytes: Some(usage.used_bytes),
            inodes_used: Some(usage.inodes_used),
        },
        // Not mounted yet, or no longer.
        None if mounted || !path.exists() => return None,
        None => {
            let usage = DiskUsage::watched(&path, entries).ok()?;
            FsReading { at, size: None, used_bytes: Some(usage.bytes), inodes_used: Some(usage.inodes) }
        }
    };
    Some(VolumeReading { name: volume.name.as_str().into(), claim: None, counts, reading })
}

/// A file system on a device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) source: String,
    pub(super) mount_point: PathBuf,
    /// Its numbers.
    pub(super) device: (u32, u32),
}

/// The machine's file systems on devices: each once, however often it is mounted. None of them is asked anything.
pub(super) fn devices(host: &Host) -> Vec<Device> {
    let Ok(mounts) = host.mounts() else { return Vec::new() };
    let mut seen = HashSet::new();
    let devices = mounts.iter().filter(|mount| mount.source.starts_with("/dev/"));
    devices
        .filter(|mount| seen.insert(mount.source.as_str()))
        .map(|mount| Device {
            source: mount.source.clone(),
            mount_point: mount.mount_point.clone(),
            device: mount.device,
        })
        .collect()
}

/// What the machine's disks have done so far.
pub(super) fn work_of_disks() -> HashMap<(u32, u32), DiskWork> {
    std::fs::read("/proc/diskstats").map(|text| disk_work(&text)).unwrap_or_default()
}

/// `/proc/diskstats`, by the devices' numbers. Lines that are not understood are left out.
pub(crate) fn disk_work(text: &[u8]) -> HashMap<(u32, u32), DiskWork> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [major, minor, _, numbers @ ..] = words.as_slice() else { return None };
        let numbers: Vec<u64> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        let [
            reads,
            reads_merged,
            sectors_read,
            read_ms,
            writes,
            writes_merged,
            sectors_written,
            write_ms,
            in_flight,
            busy_ms,
            weighted_ms,
            ..,
        ] = *numbers.as_slice()
        else {
            return None;
        };
        let work = DiskWork {
            reads,
            reads_merged,
            sectors_read,
            read_ms,
            writes,
            writes_merged,
            sectors_written,
            write_ms,
            in_flight,
            busy_ms,
            weighted_ms,
        };
        Some(((major.parse().ok()?, minor.parse().ok()?), work))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn disks_as_the_kernel_counts_them() {
        let text = b" 254       0 vda 100 5 2000 30 40 6 700 80 9 10 11 0 0 0 0 0 0\n 7 0 loop0 1 2\nx y z 1 2 3 4 5 6 7 8 9 10 11\n\xff";
        let found = disk_work(text);
        assert_eq!(found.len(), 1, "{found:?}");
        let vda = found[&(254, 0)];
        assert_eq!((vda.reads, vda.sectors_read, vda.writes, vda.sectors_written), (100, 2000, 40, 700));
        assert_eq!(
            (vda.read_ms, vda.write_ms, vda.in_flight, vda.busy_ms, vda.weighted_ms),
            (30, 80, 9, 10, 11)
        );
    }

    #[test]
    fn files_are_counted_but_not_what_lies_deeper() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(files(&dir.path().join("none")), None);
        assert_eq!(files(dir.path()), Some((0, 0)));
        fs::write(dir.path().join("0.log"), vec![b'x'; 10_000]).unwrap();
        fs::create_dir(dir.path().join("deeper")).unwrap();
        fs::write(dir.path().join("deeper/1.log"), vec![b'x'; 10_000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let (bytes, count) = files(dir.path()).unwrap();
        assert_eq!(count, 1);
        assert!((10_000..100_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn volumes_of_the_pods_own_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"containers": [], "volumes": [
                {"name": "secret", "secret": {"secretName": "s"}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "elsewhere", "hostPath": {"path": "/"}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ]},
        }))
        .unwrap();
        let uid = PodUid::from("u");
        for volume in pod.spec_ref().volumes.iter().flatten().filter(|volume| volume.host_path.is_none()) {
            let path = volume_path(&pod_dir(dir.path(), "u"), volume).unwrap();
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), vec![b'x'; 50_000]).unwrap();
        }
        let found = volumes_of(dir.path(), &uid, (&pod, &Objects::default()), |_| (), &AtomicU64::new(0));
        let names: Vec<_> = found.iter().map(|volume| (&*volume.name, volume.counts)).collect();
        assert_eq!(
            names,
            [("scratch", true), ("secret", false)],
            "one that should be mounted and is not is not told of"
        );
        assert!(
            found[0].reading.used_bytes.is_some_and(|bytes| (50_000..100_000).contains(&bytes)),
            "{found:?}"
        );
        assert_eq!(found[0].reading.inodes_used, Some(2));
        assert_eq!(
            volumes_of(
                dir.path(),
                &PodUid::from("other"),
                (&pod, &Objects::default()),
                |_| (),
                &AtomicU64::new(0)
            )
            .len(),
            0
        );
    }

    #[test]
    fn claims_are_told_of_by_the_file_system_that_is_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}},
                {"name": "shelf", "persistentVolumeClaim": {"claimName": "directory"}},
                {"name": "share", "persistentVolumeClaim": {"claimName": "export"}},
                {"name": "gone", "persistentVolumeClaim": {"claimName": "lost"}},
                {"name": "later", "persistentVolumeClaim": {"claimName": "unbound"}},
            ]},
        }))
        .unwrap();
        let place = dir.path().display().to_string();
        let mut objects = Objects::default();
        for (claim, spec) in [
            ("disk", serde_json::json!({"local": {"path": place}})),
            ("directory", serde_json::json!({"hostPath": {"path": place}})),
            ("export", serde_json::json!({"nfs": {"server": "s", "path": "/"}})),
            ("lost", serde_json::json!({"local": {"path": "/no/such/place"}})),
        ] {
            let name = mainstay_types::FullName { namespace: "default".into(), name: claim.into() };
            let volume = mainstay_types::ClaimedVolume {
                name: format!("pv-{claim}"),
                spec: serde_json::from_value(spec).unwrap(),
                group: None,
            };
            let claim = mainstay_types::Claim { volume: Some(volume), ..mainstay_types::Claim::default() };
            objects.claims.insert(name, Arc::new(claim));
        }
        // The share is not mounted: the directory is on the node's disk.
        fs::create_dir_all(dir.path().join("pods/u/volumes/kubernetes.io~nfs/share")).unwrap();
        let found = volumes_of(dir.path(), &PodUid::from("u"), (&pod, &objects), |_| (), &AtomicU64::new(0));
        let [volume] = &*found else { panic!("{found:?}") };
        assert_eq!((&*volume.name, volume.claim.as_deref(), volume.counts), ("data", Some("disk"), false));
        let size = volume.reading.size.unwrap();
        assert!(size.capacity_bytes > 0 && size.inodes > 0, "{size:?}");
        assert!(volume.reading.used_bytes.is_some_and(|bytes| bytes <= size.capacity_bytes));
        assert!(has_remote(&pod, &objects) && !has_remote(&pod, &Objects::default()));
    }
}
