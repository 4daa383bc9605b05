//! What lies on the node's disks: how full they are, and what pods have put there.
//!
//! One task, `filesystems`, owned by the task group given to [`start`]. In: reconcile's word on which pods there are, what is
//! behind their claims, what the runtime shows of them, and a wish whenever somebody was told of disks. Out: a `watch` of findings. It decides nothing and
//! nobody waits for it.
//!
//! While somebody asks, disks are looked at every ten seconds, else once a minute: the runtime has to ask each container for
//! the size of its layer. Volumes are walked at the pace that is configured, one pod after the other ([`walker`]). A disk that hangs keeps a
//! thread of a lane that nobody else uses, and the others are asked; what was found before stays, with its time. A pod whose volumes hang is named and left out until they
//! answer.

mod logs;
mod places;
mod sizes;
mod walker;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use mainstay_cri::Cri;
use mainstay_host::{FilesystemUsage, Host};
use mainstay_sample::Rising;
use mainstay_task::{Lane, TaskGroup};
use mainstay_types::{
    ContainerDisk, ContainerId, DesiredState, DeviceReading, Filesystems, FsReading, FsSize, ObservedState,
    Outcomes, PodDisk, PodUid, VolumeReading,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::debug;

use logs::LogWalk;
pub(crate) use places::disk_work;
use places::{LogPlaces, Logs};
use sizes::Asker;
use walker::{Round, Volumes, Walked};

/// Between two looks while somebody asks.
const BUSY: Duration = Duration::from_secs(10);
/// And while nobody does.
const IDLE: Duration = Duration::from_secs(60);
/// Nobody asks any more when nobody has for so long.
const FORGOTTEN: Duration = Duration::from_secs(150);
/// The first look comes when pods that are there already have been found.
const FIRST: Duration = Duration::from_secs(2);
/// Longest that the runtime may take.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(10);
/// Longest that is waited for the kernel's own files.
const KERNEL_DEADLINE: Duration = Duration::from_secs(2);
/// Longest that is waited for a walk through logs, and through volumes.
const LOGS_DEADLINE: Duration = Duration::from_secs(10);
static DEVICES: Lane = Lane::new(1);
static LOGS: Lane = Lane::new(1);

/// What to look at.
#[derive(Clone, Debug)]
pub struct FilesystemsConfig {
    /// The runtime, which knows the size of images and writable layers.
    pub cri: Cri,
    /// The machine.
    pub host: Host,
    /// The root directory: pods' volumes lie below it.
    pub root_dir: PathBuf,
    /// Between two walks through volumes; `None` for none at all.
    pub volumes_period: Option<Duration>,
}

/// Starts looking; findings go to `sender`. Whoever tells of disks says so through `wishes`, of which one at a time is enough.
pub fn start(
    config: FilesystemsConfig,
    desired: watch::Receiver<Arc<DesiredState>>,
    outcomes: watch::Receiver<Outcomes>,
    observed: watch::Receiver<Arc<ObservedState>>,
    wishes: mpsc::Receiver<()>,
    sender: watch::Sender<Arc<Filesystems>>,
    tasks: &TaskGroup,
) {
    let looker = Looker {
        config,
        desired,
        outcomes,
        observed,
        sender,
        volumes: HashMap::new(),
        walked: Arc::default(),
        logs: LogWalk::default(),
        layers: HashMap::new(),
        sizes: Asker::default(),
        devices: Asker::default(),
        disks: Rising::default(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("filesystems", async move {
        shutdown.run_until_signalled(looker.run(wishes)).await;
    });
}

/// A container's writable layer, by the runtime's word.
#[derive(Clone, Debug)]
struct Layer {
    at: Timestamp,
    mount: PathBuf,
    bytes: Option<u64>,
    inodes: Option<u64>,
}

struct Looker {
    config: FilesystemsConfig,
    /// For what is behind claims.
    desired: watch::Receiver<Arc<DesiredState>>,
    outcomes: watch::Receiver<Outcomes>,
    observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Filesystems>>,
    volumes: Volumes,
    walked: Arc<Mutex<Walked>>,
    logs: LogWalk,
    layers: HashMap<String, Layer>,
    sizes: Asker,
    /// The same of the machine's file systems on devices, by where they are mounted.
    devices: Asker,
    disks: Rising,
}

impl Looker {
    async fn run(mut self, mut wishes: mpsc::Receiver<()>) {
        let mut next = Instant::now() + FIRST;
        let mut last: Option<Instant> = None;
        let mut asked: Option<Instant> = None;
        let mut walk: Option<BoxFuture<'static, Volumes>> = None;
        let mut walk_at = self.config.volumes_period.map(|_| next);
        loop {
            // Each is cancel safe: sleeps until fixed moments, a channel, a future that is polled where it stays.
            tokio::select! {
                () = sleep_until(next) => {}
                Some(()) = wishes.recv() => {
                    asked = Some(Instant::now());
                    // Soon enough for the next who asks, but not more often than that.
                    next = next.min(last.map_or(next, |last| (last + BUSY).max(Instant::now())));
                    continue;
                }
                () = sleep_until(walk_at.unwrap_or(next)), if walk_at.is_some() && walk.is_none() => {
                    walk = Some(self.begin_walk());
                    continue;
                }
                found = async { match &mut walk { Some(walk) => Some(walk.await), None => None } }, if walk.is_some() => {
                    walk = None;
                    walk_at = self.config.volumes_period.map(|period| Instant::now() + period);
                    if let Some(found) = found {
                        self.volumes = found;
                    }
                    continue;
                }
            }
            self.look().await;
            let now = Instant::now();
            last = Some(now);
            next = now + if asked.is_some_and(|asked| now - asked < FORGOTTEN) { BUSY } else { IDLE };
        }
    }

    fn begin_walk(&self) -> BoxFuture<'static, Volumes> {
        let outcomes = self.outcomes.borrow().clone();
        let pods: Vec<_> =
            outcomes.pods.iter().map(|(uid, outcome)| (uid.clone(), Arc::clone(&outcome.desired))).collect();
        let objects = Arc::clone(&self.desired.borrow().objects);
        let round = Round {
            pods,
            objects,
            root: self.config.root_dir.clone(),
            period: self.config.volumes_period.unwrap_or_default(),
            walked: Arc::clone(&self.walked),
        };
        Box::pin(round.walk())
    }

    async fn look(&mut self) {
        let (images, layers) = self.ask_runtime().await;
        if let Some(layers) = layers {
            self.layers = layers;
        }
        let observed = self.observed.borrow().clone();
        self.measure_sizes(&images).await;
        let logs = self.measure_logs(&observed).await;
        let devices = self.measure_devices().await;
        let node = self.reading(&self.config.root_dir, None, None);
        let of_runtime = |it: &Option<Layer>| {
            let layer = it.as_ref()?;
            let size = self.sizes.get(&layer.mount).map(|(_, usage)| size_of(usage));
            Some(FsReading { at: layer.at, size, used_bytes: layer.bytes, inodes_used: layer.inodes })
        };
        let (image_fs, layer_fs) = (of_runtime(&images.0), of_runtime(&images.1));
        let pods = observed
            .pods
            .iter()
            .map(|(uid, pod)| (uid.clone(), Arc::new(self.pod(uid, pod, logs.as_deref(), node))))
            .collect();
        let walks = Walked::of(&self.walked).cost();
        self.sender.send_modify(|found| {
            let before = Arc::clone(found);
            *found = Arc::new(Filesystems {
                generation: before.generation + 1,
                node: node.or(before.node),
                images: image_fs.or(before.images),
                layers: layer_fs.or(before.layers),
                devices: devices.unwrap_or_else(|| Arc::clone(&before.devices)),
                pods,
                walks,
            });
        });
    }

    /// What the runtime says of the file system with images, that with layers, and of each layer.
    async fn ask_runtime(&self) -> ((Option<Layer>, Option<Layer>), Option<HashMap<String, Layer>>) {
        let cri = &self.config.cri;
        let info = match timeout(RUNTIME_DEADLINE, cri.image_fs_info()).await {
            Ok(Ok(info)) => Some(info),
            Ok(Err(error)) => {
                debug!(%error, "no word on the file system with images");
                None
            }
            Err(_) => None,
        };
        let usage = |usage: k8s_cri::v1::FilesystemUsage| {
            Some(Layer {
                at: Timestamp::from_nanosecond(i128::from(usage.timestamp)).ok()?,
                mount: usage.fs_id?.mountpoint.into(),
                bytes: usage.used_bytes.map(|it| it.value),
                inodes: usage.inodes_used.map(|it| it.value),
            })
        };
        let images = info.map_or((None, None), |info| {
            let images = info.image_filesystems.into_iter().next().and_then(usage);
            let layers = info.container_filesystems.into_iter().next().and_then(usage);
            (images.clone(), layers.or(images))
        });
        let layers = match timeout(RUNTIME_DEADLINE, cri.list_container_stats()).await {
            Ok(Ok(stats)) => {
                let layers = stats.into_iter().filter_map(|stats| {
                    let layer = usage(stats.writable_layer?)?;
                    Some((stats.attributes?.id, layer))
                });
                Some(layers.collect())
            }
            Ok(Err(error)) => {
                debug!(%error, "no word on containers' writable layers");
                None
            }
            Err(_) => None,
        };
        (images, layers)
    }

    /// Asks the file systems that matter how large they are.
    async fn measure_sizes(&mut self, images: &(Option<Layer>, Option<Layer>)) {
        let mut paths = vec![self.config.root_dir.clone()];
        let mounts = [&images.0, &images.1].into_iter().flatten().chain(self.layers.values());
        for layer in mounts {
            if !paths.contains(&layer.mount) {
                paths.push(layer.mount.clone());
            }
        }
        self.sizes.ask(&paths).await;
    }

    async fn measure_logs(&self, observed: &ObservedState) -> Option<Arc<Logs>> {
        let places = LogPlaces::of(&self.config.root_dir, observed);
        self.logs.walk(&LOGS, LOGS_DEADLINE, move || places.measure()).await
    }

    async fn measure_devices(&mut self) -> Option<Arc<[DeviceReading]>> {
        let host = self.config.host.clone();
        let devices = DEVICES.run(KERNEL_DEADLINE, move || places::devices(&host)).await.ok()?;
        let paths: Vec<PathBuf> = devices.iter().map(|device| device.mount_point.clone()).collect();
        self.devices.ask(&paths).await;
        let work = DEVICES.run(KERNEL_DEADLINE, places::work_of_disks).await.ok()?;
        let before = Arc::clone(&self.sender.borrow().devices);
        let found = devices.into_iter().filter_map(|device| {
            let (at, usage) = *self.devices.get(&device.mount_point)?;
            // Who has not answered since has his earlier numbers, of the earlier time.
            let kept = before.iter().find(|kept| kept.device == device.source && kept.at == at);
            Some(kept.cloned().unwrap_or_else(|| DeviceReading {
                device: device.source,
                at,
                size: size_of(&usage),
                used_bytes: usage.used_bytes,
                disk: work.get(&device.device).copied(),
            }))
        });
        let mut found: Vec<DeviceReading> = found.collect();
        found.sort_by(|a, b| a.device.cmp(&b.device));
        self.disks.disks(&mut found, &before);
        Some(found.into())
    }

    /// A part of the file system that a path lies on; all that is used of it if nothing is said.
    fn reading(&self, path: &Path, bytes: Option<u64>, inodes: Option<u64>) -> Option<FsReading> {
        let (at, usage) = self.sizes.get(path)?;
        Some(FsReading {
            at: *at,
            size: Some(size_of(usage)),
            used_bytes: bytes.or(Some(usage.used_bytes)),
            inodes_used: inodes.or(Some(usage.inodes_used)),
        })
    }

    fn pod(
        &self,
        uid: &PodUid,
        pod: &mainstay_types::ObservedPod,
        logs: Option<&Logs>,
        node: Option<FsReading>,
    ) -> PodDisk {
        let now = Timestamp::now();
        let size = node.and_then(|node| node.size);
        let mut total = FsReading { at: Timestamp::MIN, size, used_bytes: Some(0), inodes_used: Some(0) };
        let mut containers: Vec<ContainerDisk> = Vec::new();
        for container in places::newest_running(pod) {
            let layer = self.layers.get(container.id.as_str()).map(|layer| FsReading {
                at: layer.at,
                size: self.sizes.get(&layer.mount).map(|(_, usage)| size_of(usage)),
                used_bytes: layer.bytes,
                inodes_used: layer.inodes,
            });
            let of_container = |logs: &Logs| {
                let found = *logs.containers.get(&(uid.clone(), container.name.clone()))?;
                Some((logs.at, found))
            };
            let logs = logs.and_then(of_container).map(|(at, (bytes, inodes))| FsReading {
                at,
                size,
                used_bytes: (inodes > 0).then_some(bytes),
                inodes_used: (inodes > 0).then_some(inodes),
            });
            for part in layer.iter().chain(&logs) {
                add(&mut total, part);
            }
            let id = ContainerId::from(container.id.as_str());
            containers.push(ContainerDisk { name: container.name.clone(), id, layer, logs });
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        let mut volumes = self.volumes.get(uid).cloned().unwrap_or_default();
        if let Some(size) = size {
            // Volumes that lie on the node's own disk share its size.
            volumes = volumes
                .iter()
                .map(|volume| {
                    let reading = FsReading { size: volume.reading.size.or(Some(size)), ..volume.reading };
                    VolumeReading { reading, ..volume.clone() }
                })
                .collect();
        }
        for volume in volumes.iter().filter(|volume| volume.counts) {
            add(&mut total, &volume.reading);
        }
        if let Some((at, (bytes, inodes))) = logs.and_then(|logs| Some((logs.at, logs.pods.get(uid)?))) {
            let own = FsReading { at, size, used_bytes: Some(*bytes), inodes_used: Some(*inodes) };
            add(&mut total, &own);
        }
        if total.at == Timestamp::MIN {
            total.at = now;
        }
        PodDisk { containers, volumes, total }
    }
}

fn add(total: &mut FsReading, part: &FsReading) {
    let sum = |a: Option<u64>, b: Option<u64>| a.map(|a| a.saturating_add(b.unwrap_or(0)));
    total.at = total.at.max(part.at);
    total.used_bytes = sum(total.used_bytes, part.used_bytes);
    total.inodes_used = sum(total.inodes_used, part.inodes_used);
}

const fn size_of(usage: &FilesystemUsage) -> FsSize {
    FsSize {
        capacity_bytes: usage.capacity_bytes,
        available_bytes: usage.available_bytes,
        inodes: usage.inodes,
        inodes_free: usage.inodes_free,
    }
}
