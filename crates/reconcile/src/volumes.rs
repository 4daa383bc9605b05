//! A pod's volumes: set up before its sandbox, refreshed while it runs, taken down when it has ended.
//!
//! What is to be done is decided by `podspec::volumes`, how by crate `volume`. Each pod's work runs on a thread of its own,
//! because a dead server may hold it up for ever: then this pod waits, with the mount named in its status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_cri::v1::{ContainerConfig, ImageSpec, Mount};
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use mainstay_lifecycle::Step;
use mainstay_podspec::{
    runtime::{ContainerContext, EnvFiles, SpecError, env_file_refs, environment},
    volumes::{
        MountSource, RuntimeFeatures, VolumeContext, VolumeSetup, VolumeSpecError, affinity_of,
        image_volumes, lost_claim, mount_wishes, plugin_behind, pod_dir, set_up as describe, volume_path,
        with_claims,
    },
};
use mainstay_types::{
    ContainerName, ContainerReason, DesiredPod, Event, EventKind, EventTarget, NodeCounters, PodExt, Ruling,
};
use mainstay_volume::{Hung, Notice, VolumeError};
use tracing::{debug, warn};

use crate::{
    images,
    sandbox::Made,
    worker::{Fact, Order, Shared},
};

/// How long a worker waits for its pod's volumes before it says what they hang in. They go on being set up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits for the end of what volumes held, which may be much.
const REMOVE_PATIENCE: Duration = Duration::from_secs(120);
/// How many pods' contents are brought up to date at a time.
pub(crate) const REFRESHES: usize = 8;
/// After so many tries in a row, two minutes by their back-off, the pod's volumes are told of together, as upstream does when
/// it has waited as long.
const SUMMARY_AFTER: u32 = 8;
/// From then on a volume that is still being given to the pod's group has an event of its own, as upstream's has.
const LONG_CHANGE_SECONDS: u64 = 30;
/// The largest file that environment variables are taken from.
const ENV_FILE_MAX: u64 = 64 << 10;

/// Why volumes are still there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TearDownError {
    /// Something refused.
    #[error("cannot take down the pod's volumes: {0}")]
    Volume(#[from] VolumeError),
    /// Something hangs.
    #[error("cannot take down the pod's volumes: {0}")]
    Hung(#[from] Hung),
    /// mainstay itself ends.
    #[error("the pod's volumes are still being taken down; the next start goes on with it")]
    Ending,
}

impl TearDownError {
    /// Nothing is wrong: there is only much to remove, or no time left for it in this life.
    pub(crate) fn is_only_long(&self) -> bool {
        matches!(self, Self::Hung(Hung { removing: true, .. }) | Self::Ending)
    }
}

/// Why a container cannot be given its mounts or its environment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// The pod asks for what cannot be.
    #[error(transparent)]
    Volume(#[from] VolumeSpecError),
    /// Its environment cannot be made.
    #[error(transparent)]
    Environment(#[from] SpecError),
    /// A part of a volume.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {source}")]
    SubPath { volume: String, container: String, source: Box<VolumeError> },
    /// A file of a volume.
    #[error("cannot read the environment from volume {volume:?}: {source}")]
    EnvFile { volume: String, source: Box<VolumeError> },
    /// An image that was pulled before is not there.
    #[error("the image {reference:?} of a volume was not pulled; it is tried again")]
    NoImage { reference: String },
    /// Something hangs.
    #[error(transparent)]
    Hung(#[from] Hung),
}

/// A volume that is not as it should be.
struct Trouble {
    volume: String,
    message: String,
    /// It was set up before, and what is in it stays: containers need not wait.
    only_stale: bool,
}

/// Makes sure that the volumes are there before any step that makes something. Whether they are; if not, it has been
/// reported, told of and held.
pub(crate) async fn ready_for(shared: &Shared, order: &Order, steps: &[Step]) -> bool {
    let names: Vec<ContainerName> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Start { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    let anew = steps.iter().any(|step| matches!(step, Step::CreateSandbox { .. }));
    let makes = !names.is_empty() || anew;
    let volumes = if anew {
        order.desired.pod.spec_ref().volumes.iter().flatten().collect()
    } else {
        needed_by(&order.desired.pod, &names)
    };
    if !makes || volumes.is_empty() {
        return true;
    }
    let mut span = mainstay_trace::child("volumes");
    let work = span.run(Box::pin(set_up(shared, order, &volumes, anew)));
    let Some(troubles) = order.cancel.cut(work).await else {
        return false;
    };
    if let Some(first) = troubles.iter().find(|trouble| !trouble.only_stale) {
        span.fail(&first.message);
    }
    drop(span);
    tell(shared, &order.desired, &troubles);
    let waits: Vec<_> = troubles.iter().filter(|trouble| !trouble.only_stale).collect();
    let uid = &order.desired.uid;
    if waits.is_empty() {
        if order.had_volume_trouble {
            shared.report(uid, Fact::VolumesUp { names: (!anew).then_some(names) }).await;
        }
        return true;
    }
    let lines: Vec<_> =
        waits.iter().map(|trouble| format!("volume {:?}: {}", trouble.volume, trouble.message)).collect();
    let message = lines.join("; ");
    warn!(error = message, "the pod waits for its volumes");
    if order.volume_failures >= SUMMARY_AFTER {
        let text = summary(waits.iter().map(|trouble| trouble.volume.as_str()));
        shared.event(&order.desired, None, EventKind::Warning, "FailedMount", text);
    }
    // What upstream shows of a pod whose containers are still to be made; the message is ours.
    let has_init = order.desired.pod.spec_ref().init_containers.as_ref().is_some_and(|list| !list.is_empty());
    let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let reason = ContainerReason { reason: reason.into(), message };
    shared.report(uid, Fact::VolumesFailed { names, reason }).await;
    false
}

/// Brings the contents of volumes that follow a source up to date. A source that is gone is told of; the contents stay.
pub(crate) async fn refresh(shared: &Shared, order: &Order) {
    let volumes: Vec<&Volume> =
        order.desired.pod.spec_ref().volumes.iter().flatten().filter(|volume| is_live(volume)).collect();
    let work = async {
        // What hangs, a part of a volume of a dead server say, is waited for without a turn: many such pods would have them all.
        if let Err(hung) = shared.config.volume_jobs.idle(order.desired.uid.as_str(), PATIENCE).await {
            return vec![held_up(shared, order, &volumes, &hung, String::new())];
        }
        // Each has a thread and open files meanwhile. Nobody closes the semaphore, and whoever hangs gives up.
        let _turn = shared.refreshes.acquire().await;
        set_up(shared, order, &volumes, false).await
    };
    if let Some(troubles) = order.cancel.cut(Box::pin(work)).await {
        tell(shared, &order.desired, &troubles);
    }
}

/// What containers that start in a pod that is there depend on. Whatever became of the other volumes meanwhile, a socket of the host
/// that is gone, say, is no affair of theirs.
fn needed_by<'a>(pod: &'a Pod, names: &[ContainerName]) -> Vec<&'a Volume> {
    let containers =
        names.iter().filter_map(|name| pod.container(name.as_str())).map(|(_, container)| container);
    let used: BTreeSet<&str> = containers
        .flat_map(|container| {
            let mounts = container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str());
            mounts.chain(env_file_refs(container).map(|(volume, _)| volume))
        })
        .collect();
    let all = pod.spec_ref().volumes.iter().flatten();
    all.filter(|volume| is_live(volume) || used.contains(volume.name.as_str())).collect()
}

fn is_live(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

fn tell(shared: &Shared, desired: &DesiredPod, troubles: &[Trouble]) {
    for Trouble { volume, message, .. } in troubles {
        let text = format!("MountVolume.SetUp failed for volume {volume:?} : {message}");
        shared.event(desired, None, EventKind::Warning, "FailedMount", text);
    }
}

/// Upstream's words for a pod that has waited for its volumes in vain.
fn summary<'a>(volumes: impl Iterator<Item = &'a str>) -> String {
    let volumes: Vec<_> = volumes.collect();
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[]: \
         context deadline exceeded",
        volumes.join(" ")
    )
}

/// Sets volumes up, and says what is wrong with those that could not be. `anew`: for a pod that has nothing yet. One that runs has been
/// let at its claims, and keeps them whatever has become of them or of the node's labels since.
async fn set_up(shared: &Shared, order: &Order, volumes: &[&Volume], anew: bool) -> Vec<Trouble> {
    let pod = &order.desired.pod;
    let resolved = with_claims(pod, &order.objects);
    let context = VolumeContext { node: &shared.config.node, objects: &order.objects };
    let dir = pod_dir(&shared.config.node.root_dir, pod.uid_ref());
    // What was written for the pod once is better than nothing, whatever became of its source.
    let filled = |volume: &Volume| {
        is_live(volume)
            && volume_path(&dir, volume).is_some_and(|path| path.join("..data").symlink_metadata().is_ok())
    };
    let mut troubles = Vec::new();
    let mut setups: Vec<(VolumeSetup, &'static str)> = Vec::new();
    let names: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    let wanted = resolved.spec_ref().volumes.iter().flatten();
    for volume in wanted.filter(|volume| names.contains(volume.name.as_str())) {
        if let Some(message) = not_for_newcomers(order, volume).filter(|_| anew) {
            troubles.push(Trouble { volume: volume.name.clone(), message, only_stale: false });
            continue;
        }
        match describe(pod, volume, &context) {
            Ok(setup) => setups.push((setup, plugin_behind(pod, volume, &order.objects))),
            Err(error) => troubles.push(Trouble {
                volume: volume.name.clone(),
                message: with_verdict(order, &error),
                only_stale: filled(volume),
            }),
        }
    }
    let current = Arc::new(Mutex::new(String::new()));
    let (done, counters) = (Arc::clone(&current), Arc::clone(&shared.config.counters));
    let wanted_at = std::time::Instant::now();
    let tell_of = teller(shared, &order.desired);
    let (own_dir, root) = (dir.clone(), shared.config.node.root_dir.clone());
    let work = shared.config.volume_jobs.run(pod.uid_ref(), PATIENCE, move |progress| {
        let mut failed = Vec::new();
        // Before anything is mounted below it. Without it nothing else can be made either, and that is told of.
        mainstay_volume::make_pod_dir(&own_dir, &root).ok();
        for (setup, plugin) in setups {
            setup.name.clone_into(&mut done.lock().unwrap_or_else(PoisonError::into_inner));
            let begun = std::time::Instant::now();
            let result = mainstay_volume::set_up(&setup, progress);
            let status = if result.is_ok() { "success" } else { "fail-unknown" };
            counters.storage_work.of(["volume_mount", status, plugin]).observe(begun.elapsed());
            if result.is_ok() {
                counters.volume_waits.of(["overall_volume_mount", plugin]).observe(wanted_at.elapsed());
            }
            match result {
                // At once: it is told of once, and nobody may be waiting for the end any more.
                Ok(Some(notice)) => tell_of(&setup.name, notice),
                Ok(None) => {}
                Err(error) => failed.push((setup.name, error.to_string())),
            }
        }
        failed
    });
    match work.await {
        Ok(failed) => {
            troubles.extend(failed.into_iter().map(|(volume, message)| {
                let only_stale = volumes.iter().any(|other| other.name == volume && filled(other));
                Trouble { volume, message, only_stale }
            }));
        }
        Err(hung) => {
            let named = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            troubles.push(held_up(shared, order, volumes, &hung, named));
        }
    }
    troubles
}

/// Tells the pod's owner of what was noticed about a volume, from a job as well.
fn teller(shared: &Shared, desired: &DesiredPod) -> impl Fn(&str, Notice) + Send + 'static {
    let events = shared.config.events.clone();
    let target =
        EventTarget::Pod { uid: desired.uid.clone(), full_name: desired.full_name.clone(), field_path: None };
    move |volume, Notice::OtherGroup { asked, has }| {
        let message = format!(
            "The requested fsGroup is {asked}, but the volume {volume} has GID {has}. The volume may not be shareable."
        );
        events.send(Event {
            target: target.clone(),
            kind: EventKind::Warning,
            reason: "AlreadyMountedVolume".into(),
            message,
            time: Timestamp::now(),
        });
    }
}

/// What is wrong when the pod's job hangs: in the volume that it has `named`, or else it is an earlier try, which tells what it hangs in:
/// the volume, or a path in it.
fn held_up(shared: &Shared, order: &Order, volumes: &[&Volume], hung: &Hung, named: String) -> Trouble {
    let dir = pod_dir(&shared.config.node.root_dir, order.desired.uid.as_str());
    let of_earlier = || {
        let found = volumes.iter().find(|volume| {
            let path = volume_path(&dir, volume).map(|path| path.display().to_string());
            hung.doing.contains(&format!("volume {:?}", volume.name))
                || path.is_some_and(|path| hung.doing.contains(&path))
        });
        found.map_or_else(String::new, |volume| volume.name.clone())
    };
    let volume = if named.is_empty() { of_earlier() } else { named };
    if hung.given.is_some() && hung.seconds >= LONG_CHANGE_SECONDS {
        let text = format!("Setting volume ownership for {volume} is taking longer than expected: {hung}");
        shared.event(&order.desired, None, EventKind::Warning, "VolumePermissionChangeInProgress", text);
    }
    Trouble { volume, message: hung.to_string(), only_stale: false }
}

/// Why a pod that does not have a claimed volume yet may not have it: the claim has lost it since others were given it, or it is
/// one that other nodes have.
fn not_for_newcomers(order: &Order, volume: &Volume) -> Option<String> {
    if let Some(problem) = lost_claim(&order.desired.pod, volume, &order.objects) {
        return Some(problem);
    }
    let (name, affinity) = affinity_of(&order.desired.pod, volume, &order.objects)?;
    let node = &order.node.as_ref()?.metadata;
    let labels = node.labels.clone().unwrap_or_default();
    if mainstay_policy::volume_fits(affinity, node.name.as_deref().unwrap_or_default(), &labels) {
        return None;
    }
    Some(format!(
        "persistentvolume {name:?} is not for this node: no term of its nodeAffinity matches the node's labels; \
         run the pod on a node that it is for"
    ))
}

/// A ConfigMap or Secret that is missing because its file was refused: that is what the user has to know.
fn with_verdict(order: &Order, error: &VolumeSpecError) -> String {
    let VolumeSpecError::NotFound { kind, namespace, name } = error else { return error.to_string() };
    let kind = if *kind == "secret" { "Secret" } else { "ConfigMap" };
    let object = format!("{kind} {namespace}/{name}");
    let refused = order.verdicts.iter().find_map(|verdict| match &verdict.ruling {
        Ruling::Rejected { problems, .. } if verdict.object.as_deref() == Some(object.as_str()) => {
            Some(format!("its manifest {} was refused: {}", verdict.path.display(), problems.join("; ")))
        }
        _ => None,
    });
    match refused {
        Some(refused) => format!(
            "{kind} {name:?} not found in namespace {namespace:?}: {refused}",
            kind = kind.to_lowercase()
        ),
        None => error.to_string(),
    }
}

/// Takes down all of the pod's volumes. Nothing of it may run any more.
pub(crate) async fn tear_down(shared: &Shared, order: &Order) -> Result<(), TearDownError> {
    let uid = &order.desired.uid;
    let dir = pod_dir(&shared.config.node.root_dir, uid.as_str());
    // Nobody waits any longer for what is still being mounted.
    shared.config.volume_jobs.abandon(uid.as_str());
    let begun = std::time::Instant::now();
    loop {
        let dir = dir.clone();
        let work = move |progress: &mainstay_volume::Progress| mainstay_volume::tear_down(&dir, progress);
        let done = shared.config.volume_jobs.run(uid.as_str(), PATIENCE, work);
        match order.cancel.in_this_life(done).await.ok_or(TearDownError::Ending)? {
            // What hangs is told of soon; what only has much to remove is waited for.
            Err(hung) if hung.removing && begun.elapsed() < REMOVE_PATIENCE => {}
            done => break done??,
        }
    }
    debug!("the pod's volumes are gone");
    Ok(())
}

/// The contents of the files that the container's environment refers to.
pub(crate) async fn env_files(
    shared: &Shared,
    order: &Order,
    spec: &Container,
) -> Result<EnvFiles, MountError> {
    let pod = &with_claims(&order.desired.pod, &order.objects);
    let dir = pod_dir(&shared.config.node.root_dir, pod.uid_ref());
    let wanted: Vec<_> = env_file_refs(spec)
        .filter_map(|(volume, path)| {
            let found = pod.spec_ref().volumes.iter().flatten().find(|other| other.name == volume)?;
            Some((volume.to_owned(), path.to_owned(), volume_path(&dir, found)?))
        })
        .collect();
    if wanted.is_empty() {
        return Ok(EnvFiles::default());
    }
    let work = move |progress: &mainstay_volume::Progress| {
        let mut files = EnvFiles::default();
        for (volume, path, root) in wanted {
            progress.doing(format!("reading {path:?} of volume {volume:?}"));
            match mainstay_volume::read_in_volume(&root, &path, ENV_FILE_MAX) {
                Ok(Some(bytes)) => {
                    files.insert((volume, path), String::from_utf8_lossy(&bytes).into_owned());
                }
                Ok(None) => {}
                Err(error) => return Err(MountError::EnvFile { volume, source: Box::new(error) }),
            }
        }
        Ok(files)
    };
    shared.config.volume_jobs.run(pod.uid_ref(), PATIENCE, work).await?
}

/// What a container mounts of the pod's volumes.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    /// In the order of the spec.
    pub(crate) all: Vec<Mount>,
    /// Which directory of its image is meant, by where it is mounted. The bindings have no field for it.
    pub(crate) image_sub_paths: BTreeMap<String, String>,
}

impl Mounts {
    /// Takes the mounts of parts of images out of a container's configuration, each with its part.
    pub(crate) fn split_off(
        config: &mut ContainerConfig,
        mut image_sub_paths: BTreeMap<String, String>,
    ) -> Vec<(Mount, String)> {
        let (parts, whole) = std::mem::take(&mut config.mounts)
            .into_iter()
            .map(|mount| (image_sub_paths.remove(&mount.container_path), mount))
            .partition::<Vec<_>, _>(|(part, _)| part.is_some());
        config.mounts = whole.into_iter().map(|(_, mount)| mount).collect();
        parts.into_iter().filter_map(|(part, mount)| Some((mount, part?))).collect()
    }
}

/// A container's volume mounts. Parts of volumes are mounted on the way.
pub(crate) async fn mounts(
    shared: &Shared,
    order: &Order,
    spec: &Container,
    context: &ContainerContext<'_>,
    images: &Images,
) -> Result<Mounts, MountError> {
    let pod = &order.desired.pod;
    if spec.volume_mounts.as_ref().is_none_or(Vec::is_empty) {
        return Ok(Mounts::default());
    }
    let uses_environment = spec.volume_mounts.iter().flatten().any(|mount| mount.sub_path_expr.is_some());
    let envs = if uses_environment { environment(pod, spec, context)? } else { Vec::new() };
    let variable = |name: &str| envs.iter().rev().find(|env| env.key == name).map(|env| env.value.as_str());
    let runtime = RuntimeFeatures {
        name: order.runtime.name.clone(),
        version: order.runtime.version.clone(),
        recursive_read_only: order.runtime.recursive_read_only_by(order.handler()),
    };
    let resolved = with_claims(pod, &order.objects);
    let wishes = mount_wishes(&resolved, spec, &shared.config.node, &runtime, variable)?;
    let parts: Vec<_> = wishes
        .iter()
        .filter_map(|wish| match &wish.source {
            MountSource::SubPath { root, sub_path, target } => {
                Some((wish.volume.clone(), root.clone(), sub_path.clone(), target.clone()))
            }
            _ => None,
        })
        .collect();
    if !parts.is_empty() {
        let container = spec.name.clone();
        let work = move |progress: &mainstay_volume::Progress| {
            parts.into_iter().try_for_each(|(volume, root, sub_path, target)| {
                mainstay_volume::bind_sub_path(&root, &sub_path, &target, progress).map_err(|error| {
                    MountError::SubPath { volume, container: container.clone(), source: Box::new(error) }
                })
            })
        };
        shared.config.volume_jobs.run(pod.uid_ref(), PATIENCE, work).await??;
    }
    let mut image_sub_paths = BTreeMap::new();
    let all = wishes
        .into_iter()
        .map(|wish| {
            let (host_path, image) = match wish.source {
                MountSource::Path(path) | MountSource::SubPath { target: path, .. } => {
                    (path.to_string_lossy().into_owned(), None)
                }
                MountSource::Image { reference, sub_path } => {
                    image_sub_paths.extend(sub_path.map(|part| (wish.container_path.clone(), part)));
                    let id = images.pulled.get(&reference).cloned();
                    let image = id.ok_or_else(|| MountError::NoImage { reference: reference.clone() })?;
                    let annotations = pod.annotations_map().clone().into_iter().collect();
                    let spec = ImageSpec {
                        image,
                        user_specified_image: reference,
                        annotations,
                        ..ImageSpec::default()
                    };
                    (String::new(), Some(spec))
                }
            };
            Ok(Mount {
                container_path: wish.container_path,
                host_path,
                readonly: wish.read_only,
                recursive_read_only: wish.recursive_read_only,
                propagation: wish.propagation.into(),
                selinux_relabel: wish.relabel,
                image,
                ..Mount::default()
            })
        })
        .collect::<Result<_, MountError>>()?;
    Ok(Mounts { all, image_sub_paths })
}

/// Counts the volumes of a new container that are images. Those of one that could not be made for another reason than such a volume were
/// mounted as far as anybody knows: the runtime says so only by the head of its text (upstream: `ErrImageVolumeMountFailed`).
pub(crate) fn count_images(counters: &NodeCounters, (pod, spec): (&Pod, &Container), refusal: Option<&str>) {
    let failed = refusal.is_some_and(|message| message.starts_with("ImageVolumeMountFailed"));
    for _ in image_volumes(pod, spec) {
        counters.image_volumes.add();
        if failed { counters.image_volume_errors.add() } else { counters.image_volume_mounts.add() }
    }
}

/// The images that are mounted as volumes, pulled before any container is started.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Containers that are to be started.
    names: Vec<ContainerName>,
    /// What the runtime calls each image, by the pod's name for it.
    pulled: BTreeMap<String, String>,
    /// Containers that lack an image; they are held already.
    lacking: BTreeSet<ContainerName>,
}

impl Images {
    /// For the containers that these steps start.
    pub(crate) fn for_steps(steps: &[Step]) -> Self {
        let names = steps.iter().filter_map(|step| match step {
            Step::Start { name, .. } => Some(name.clone()),
            _ => None,
        });
        Self { names: names.collect(), ..Self::default() }
    }

    /// Pulls them all, the first time it is called.
    pub(crate) async fn pull_all(&mut self, shared: &Shared, order: &Order, target: &Made) {
        let pod = &order.desired.pod;
        for name in std::mem::take(&mut self.names) {
            let Some((kind, spec)) = pod.container(name.as_str()) else { continue };
            for volume in image_volumes(pod, spec) {
                if self.pulled.contains_key(volume.reference) {
                    continue;
                }
                // To the puller it is one more image of this container: same limits, same back-off, same words.
                let stand_in = Container {
                    name: spec.name.clone(),
                    image: Some(volume.reference.to_owned()),
                    image_pull_policy: Some(volume.pull_policy.to_owned()),
                    ..Container::default()
                };
                match images::ensure(shared, order, target, &stand_in, kind).await {
                    Ok(image) => _ = self.pulled.insert(volume.reference.to_owned(), image.id),
                    Err(_) => {
                        self.lacking.insert(name.clone());
                        break;
                    }
                }
            }
        }
    }

    /// Whether an image of this container could not be had.
    pub(crate) fn lacking(&self, name: &ContainerName) -> bool {
        self.lacking.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use mainstay_types::Counter;

    use super::*;

    #[test]
    fn a_long_wait_is_told_of_in_upstreams_words() {
        assert_eq!(
            summary(["a", "b"].into_iter()),
            "Unable to attach or mount volumes: unmounted volumes=[a b], unattached volumes=[], failed to process \
             volumes=[]: context deadline exceeded"
        );
    }

    #[test]
    fn volumes_that_are_images_are_counted() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {},
            "spec": {
                "containers": [
                    {"name": "a", "volumeMounts": [{"name": "i", "mountPath": "/i"}, {"name": "e", "mountPath": "/e"}]},
                    {"name": "b"},
                ],
                "volumes": [{"name": "i", "image": {"reference": "r"}}, {"name": "e", "emptyDir": {}}],
            },
        }))
        .unwrap();
        let counters = NodeCounters::default();
        for refusal in [None, Some("ImageVolumeMountFailed: no such image"), Some("no room")] {
            for container in &pod.spec_ref().containers {
                count_images(&counters, (&pod, container), refusal);
            }
        }
        let found = [&counters.image_volumes, &counters.image_volume_mounts, &counters.image_volume_errors];
        assert_eq!(found.map(Counter::get), [3, 2, 1]);
    }

    #[test]
    fn parts_of_images_leave_the_configuration_and_keep_their_mappings() {
        let mount = |path: &str| Mount {
            container_path: path.into(),
            uid_mappings: vec![k8s_cri::v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }],
            ..Mount::default()
        };
        let all = vec![mount("/a"), mount("/b"), mount("/c")];
        let mut config = ContainerConfig { mounts: all.clone(), ..ContainerConfig::default() };
        assert_eq!(Mounts::split_off(&mut config, BTreeMap::new()), []);
        assert_eq!(config.mounts, all);
        let parts = BTreeMap::from([("/b".to_owned(), "x/y".to_owned())]);
        assert_eq!(Mounts::split_off(&mut config, parts), [(mount("/b"), "x/y".to_owned())]);
        assert_eq!(config.mounts, [mount("/a"), mount("/c")]);
    }
}
