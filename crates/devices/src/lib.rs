//! Device plugins: programs on the node that offer devices to pods (`v1beta1`, upstream's `pkg/kubelet/cm/devicemanager` of 1.37).
//!
//! A plugin makes itself known on `<root>/device-plugins/kubelet.sock` and is called back on a socket of its own in that directory, or by a
//! socket below `<root>/plugins_registry` ([`Devices::handler`], for the crate `plugin`). From then on it tells which devices there are ([`Devices::resources`]: how many), and is asked what a container needs that is given
//! some. Who holds what is decided by `mainstay_alloc::Ledger` and kept in `kubelet_internal_checkpoint`, upstream's file.
//!
//! Reconcile asks: [`Devices::admit`] once for a pod before anything of it is made, [`Devices::prepare`] before each start of a container,
//! [`Devices::release`] when the pod has come to rest. A plugin that hangs holds up the pod that waits for it, within a deadline.
//!
//! What it does not do: it starts and stops nothing, and does not judge whether a pod fits on the node, nor which NUMA nodes it is to be
//! on (see `resources`).
//!
//! In: the sockets. Out: amounts and assignments by `watch`. Tasks, in the group given to [`start`]: `device plugin socket`, one
//! `device plugin call` per connection and call, one `device plugin NAME` per plugin, `device file`, `device plugins of before`.

#![forbid(unsafe_code)]

mod error;
mod file;
mod grant;
mod plugin;
mod registration;
mod registry;
mod socket;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_alloc::{Ask, AskError, Devices as List, Hints, Ledger, NodeMask, Standing, asks};
use mainstay_plugin::Handler;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::{Assignments, ExtendedResources, HeldDevice, NodeCounters, PodUid, UnnamedDevices};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

pub use error::{AdmitError, DevicesError, PrepareError};
pub use file::KeepError;
pub use grant::Grant;

use crate::{
    file::{Files, Kept, Opened},
    plugin::Plugin,
    registry::Registry,
    socket::Directory,
};

/// What the crate works with.
#[derive(Debug)]
pub struct DevicesConfig {
    /// `<root>/device-plugins`.
    pub directory: PathBuf,
    /// Where a copy of upstream's file is kept: `<root>/mainstay/devices.json`.
    pub copy: PathBuf,
    /// Pods of an earlier life are on record: where there is no file, it was lost.
    pub recorded: bool,
    /// Where it is told who holds what.
    pub assignments: watch::Sender<Arc<Assignments>>,
    /// How long plugins may take.
    pub patience: Patience,
    /// What is counted of it.
    pub counters: Arc<NodeCounters>,
}

/// How long plugins may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To take a connection and to say what they are, each.
    pub dial: Duration,
    /// To say what a container needs.
    pub allocate: Duration,
    /// To get devices ready for a container.
    pub pre_start: Duration,
    /// To come back after they have gone, or after a restart of mainstay.
    pub absence: Duration,
}

impl Default for Patience {
    /// Upstream's, where it has one: it waits for `Allocate` as long as that takes.
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(10),
            allocate: Duration::from_secs(60),
            pre_start: Duration::from_secs(30),
            absence: Duration::from_secs(5 * 60),
        }
    }
}

/// The node's devices. Clones are of one.
#[derive(Clone, Debug)]
pub struct Devices {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    book: Mutex<Book>,
    amounts: watch::Sender<Arc<ExtendedResources>>,
    assignments: watch::Sender<Arc<Assignments>>,
    directory: Directory,
    files: Files,
    /// What is held has changed, and nobody waits for it to be written.
    unwritten: Notify,
    /// Held while it is told what there is, so that what was true last is told last.
    telling: Mutex<()>,
    patience: Patience,
    counters: Arc<NodeCounters>,
}

#[derive(Debug, Default)]
struct Book {
    ledger: Ledger,
    /// In the order in which they came; of two for one resource the newest is asked.
    plugins: Vec<Plugin>,
    /// What those told last that are not heard because a newer one serves their resource; should it go, that is what there is.
    unheard: BTreeMap<u64, List>,
    next_id: u64,
    /// The file was lost, and who runs has not been looked at since.
    lost: bool,
    /// Connections cannot be accepted.
    deaf: bool,
    /// For which resource's plugin a pod waits right now, by its UID.
    asking: BTreeMap<String, Arc<str>>,
    /// Resources whose plugin has gone, since when.
    orphaned: BTreeMap<Arc<str>, Instant>,
    /// Resources whose plugin wants to be asked before each start of a container, also where it has gone.
    pre_start: BTreeSet<Arc<str>>,
}

impl Book {
    fn plugin(&self, resource: &str) -> Option<&Plugin> {
        self.plugins.iter().rev().find(|plugin| &*plugin.resource == resource)
    }

    /// Which resources are to be remembered as ones whose plugin is asked before each start: those that may be held after a restart.
    fn lasting_pre_start(&self) -> BTreeSet<Arc<str>> {
        let lasts = |resource: &&Arc<str>| {
            self.ledger.standing(resource).is_some_and(|it| it != Standing::Gone)
                || self.ledger.held().any(|(_, _, held, _)| held == *resource)
        };
        self.pre_start.iter().filter(lasts).cloned().collect()
    }
}

/// What has been given to containers of a pod that is about to be let in.
#[derive(Debug)]
pub struct Given(Vec<Ask>);

/// Takes the socket and listens for plugins. What is wrong with the kept files is returned as sentences for the node's events.
///
/// # Errors
/// When the directory or its socket cannot be had.
pub fn start(config: DevicesConfig, tasks: &TaskGroup) -> Result<(Devices, Vec<String>), DevicesError> {
    let DevicesConfig { directory, copy, recorded, assignments, patience, counters } = config;
    let directory = Directory::open(&directory)?;
    let listener = directory.listen()?;
    let Opened { files, ledger, pre_start, lost, problems } = Files::open(directory.path(), &copy, recorded);
    let book = Book { ledger, pre_start, lost, ..Book::default() };
    let devices = Devices {
        inner: Arc::new(Inner {
            book: Mutex::new(book),
            amounts: watch::channel(Arc::default()).0,
            assignments,
            directory,
            files,
            unwritten: Notify::new(),
            telling: Mutex::default(),
            patience,
            counters,
        }),
    };
    devices.publish();
    registration::serve(listener, devices.clone(), tasks);
    let (writer, shutdown) = (devices.clone(), tasks.shutdown());
    // Also where nobody holds anything: a file that is not there another time was lost.
    devices.inner.unwritten.notify_one();
    tasks.spawn("device file", async move { writer.write_when_changed(&shutdown).await });
    if !devices.book().ledger.awaited().is_empty() {
        let (waiter, shutdown) = (devices.clone(), tasks.shutdown());
        tasks.spawn("device plugins of before", async move {
            if shutdown.run_until_signalled(tokio::time::sleep(patience.absence)).await.is_some() {
                waiter.give_up_awaited();
            }
        });
    }
    Ok((devices, problems))
}

/// While it lives, a plugin is asked or waited for.
struct Asking<'a> {
    devices: &'a Devices,
    uid: String,
}

impl<'a> Asking<'a> {
    fn new(devices: &'a Devices, ask: &Ask) -> Self {
        devices.book().asking.insert(ask.uid.clone(), Arc::clone(&ask.resource));
        Self { devices, uid: ask.uid.clone() }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.devices.book().asking.remove(&self.uid);
    }
}

impl Devices {
    /// How much there is of what plugins offer, as it changes.
    #[must_use]
    pub fn resources(&self) -> watch::Receiver<Arc<ExtendedResources>> {
        self.inner.amounts.subscribe()
    }

    /// Takes device plugins that the plugin watcher finds; those are called only on sockets below `root`.
    #[must_use]
    pub fn handler(&self, root: PathBuf, tasks: &TaskGroup) -> Arc<dyn Handler> {
        Arc::new(Registry { devices: self.clone(), tasks: tasks.clone(), root })
    }

    /// Whether the pod asks for devices that it does not hold yet.
    #[must_use]
    pub fn is_due(&self, pod: &Pod) -> bool {
        let asks = asks(pod);
        !asks.is_empty() && {
            let book = self.book();
            asks.iter().any(|ask| !matches!(book.ledger.look(ask), Ok(None)))
        }
    }

    /// Gives a pod's containers the devices that they ask for; those that they hold they keep. After this has returned the assignment
    /// is on disk. A plugin that is known from before a restart is waited for, within its patience.
    ///
    /// # Errors
    /// Why the pod cannot run here; it holds nothing then that it did not hold before.
    ///
    /// # Cancel safety
    /// What a container was about to be given stays with it until [`Self::release`].
    pub async fn admit(&self, pod: &Pod) -> Result<(), AdmitError> {
        let given = self.give_all(asks(pod), None).await?;
        self.settle(&given).await
    }

    /// The first part of [`Self::admit`] for some of what a pod asks for: devices are put down as its own, those of these NUMA nodes before
    /// others. Not on disk before [`Self::settle`].
    ///
    /// # Errors
    /// Why the pod cannot run here; nothing of this is its own then.
    pub async fn give_all(&self, asks: Vec<Ask>, near: Option<NodeMask>) -> Result<Given, AdmitError> {
        let mut given = Given(Vec::new());
        for ask in asks {
            match self.give(&ask, near).await {
                Ok(false) => {}
                Ok(true) => given.0.push(ask),
                Err(error) => {
                    self.take_back(&given);
                    return Err(error);
                }
            }
        }
        Ok(given)
    }

    /// Puts on disk what was given, then tells of it.
    ///
    /// # Errors
    /// When it cannot be written; it is taken back then.
    pub async fn settle(&self, given: &Given) -> Result<(), AdmitError> {
        if given.0.is_empty() {
            return Ok(());
        }
        // Not told before it is on disk: what was told of must be so after a restart as well.
        if let Err(source) = self.save().await {
            self.take_back(given);
            return Err(AdmitError::File(source));
        }
        self.publish();
        Ok(())
    }

    /// Waits until the plugins of what is asked for, and not had yet, are back after a restart of mainstay, or given up.
    pub async fn wait_for_plugins(&self, asks: &[Ask]) {
        let mut amounts = self.resources();
        loop {
            amounts.mark_unchanged();
            let awaited = {
                let book = self.book();
                let is_awaited = |ask: &&Ask| {
                    book.ledger.standing(&ask.resource) == Some(Standing::Awaited)
                        && matches!(book.ledger.look(ask), Err(AskError::Unregistered(_)))
                };
                asks.iter().find(is_awaited).cloned()
            };
            let Some(ask) = awaited else { return };
            let _asking = Asking::new(self, &ask);
            // Cancel safe: only a value is marked as seen.
            if amounts.changed().await.is_err() {
                return;
            }
        }
    }

    /// The resource whose plugin the pod waits for right now, if it waits for one.
    #[must_use]
    pub fn awaited_by(&self, uid: &PodUid) -> Option<Arc<str>> {
        self.book().asking.get(uid.as_str()).cloned()
    }

    /// From which sets of NUMA nodes what is asked for could be had, a list for each.
    #[must_use]
    pub fn hints(&self, asks: &[Ask], nodes: NodeMask) -> Vec<Hints> {
        let book = self.book();
        asks.iter().map(|ask| book.ledger.hints(ask, nodes)).collect()
    }

    /// Whether all that was given is on these NUMA nodes, or on none.
    #[must_use]
    pub fn is_near(&self, given: &Given, near: NodeMask) -> bool {
        let book = self.book();
        given.0.iter().all(|ask| {
            let held = book.ledger.of(&ask.uid, &ask.container).and_then(|held| held.get(&ask.resource));
            let mut places = held.into_iter().flat_map(|held| held.devices.values());
            places.all(|nodes| nodes.is_empty() || nodes.iter().any(|node| near.contains(*node)))
        })
    }

    /// Gives one container what it asks for of one resource. Whether it was given anything.
    async fn give(&self, ask: &Ask, near: Option<NodeMask>) -> Result<bool, AdmitError> {
        let _asking = Asking::new(self, ask);
        let mut amounts = self.resources();
        let choice = loop {
            amounts.mark_unchanged();
            let (looked, standing) = {
                let book = self.book();
                (book.ledger.look(ask), book.ledger.standing(&ask.resource))
            };
            match looked {
                Ok(None) => return Ok(false),
                Ok(Some(choice)) => break choice,
                Err(AskError::Unregistered(_)) if standing == Some(Standing::Awaited) => {
                    // It comes back, or is given up in its time. Cancel safe: only a value is marked as seen.
                    if amounts.changed().await.is_err() {
                        return Err(AdmitError::Ask(AskError::Unregistered(Arc::clone(&ask.resource))));
                    }
                }
                Err(error) => return Err(AdmitError::Ask(error)),
            }
        };
        let plugin = self.book().plugin(&ask.resource).cloned();
        let Some(plugin) = plugin else {
            return Err(AdmitError::Ask(AskError::Unregistered(Arc::clone(&ask.resource))));
        };
        let patience = self.inner.patience.allocate;
        let advice = match choice.missing {
            0 => Vec::new(),
            _ => {
                let choice = self.book().ledger.nearest(ask, choice, near);
                plugin.preferred(&choice, patience).await?
            }
        };
        let ids = self.book().ledger.take(ask, &advice, near)?;
        let begun = Instant::now();
        let answer = plugin.allocate(&ids, patience).await;
        self.inner.counters.device_allocations.of(Arc::clone(&ask.resource)).observe(begun.elapsed());
        match answer {
            Ok(response) => {
                if self.book().ledger.confirm(ask, response) {
                    return Ok(true);
                }
                Err(AdmitError::Gone)
            }
            Err(error) => {
                self.book().ledger.give_back(ask);
                Err(error)
            }
        }
    }

    /// Takes back what was given.
    pub fn take_back(&self, given: &Given) {
        if given.0.is_empty() {
            return;
        }
        {
            let mut book = self.book();
            given.0.iter().for_each(|ask| book.ledger.drop_held(ask));
        }
        // It may have been told or written with another's.
        self.publish();
        self.inner.unwritten.notify_one();
    }

    /// What a container is to be made with, after its plugins have got its devices ready. Nothing for one that holds nothing.
    ///
    /// # Errors
    /// When a plugin cannot; it may be tried again.
    pub async fn prepare(&self, uid: &str, container: &str) -> Result<Grant, PrepareError> {
        let held = self.book().ledger.of(uid, container).cloned().unwrap_or_default();
        let mut responses = Vec::new();
        for (resource, held) in held {
            let Some(response) = held.response else { continue };
            let ids: Vec<String> = held.devices.keys().map(ToString::to_string).collect();
            match self.plugin_soon(&resource).await {
                Some(plugin) => plugin.pre_start(ids, self.inner.patience.pre_start).await?,
                // However long it has been away: what it does to a device nobody else can do.
                None if self.book().pre_start.contains(&resource) => {
                    return Err(PrepareError::Away(resource));
                }
                None => {}
            }
            responses.push((resource, response));
        }
        Ok(grant::merge(&responses))
    }

    /// The plugin to ask. After a restart of mainstay it is given a moment to come back: it may want to be asked.
    async fn plugin_soon(&self, resource: &str) -> Option<Plugin> {
        let mut amounts = self.resources();
        let is_awaited = || self.book().ledger.standing(resource) == Some(Standing::Awaited);
        let back = async { while is_awaited() && amounts.changed().await.is_ok() {} };
        // Who waits longer is told why.
        tokio::time::timeout(self.inner.patience.dial, back).await.ok();
        self.book().plugin(resource).cloned()
    }

    /// Whether the file of who holds what was lost, and who runs has not been looked at since.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.book().lost
    }

    /// These containers run. Of those that ask for devices of which the book, which was lost, does not say what they were given, nobody knows what
    /// they hold: until they have ended nobody else is given any. How many they are.
    pub fn rebuild<'a>(&self, running: impl IntoIterator<Item = (&'a Pod, &'a [String])>) -> usize {
        let count = {
            let mut book = self.book();
            let mut count = 0;
            for (pod, containers) in running {
                for ask in asks(pod).iter().filter(|ask| containers.contains(&ask.container)) {
                    if book.ledger.suspect(ask) {
                        count += 1;
                        tracing::warn!(
                            pod.uid = ask.uid, container = ask.container, resource = %ask.resource,
                            "nobody knows any more which devices the container was given; others are given none until it has ended"
                        );
                    }
                }
            }
            book.lost = false;
            count
        };
        self.publish();
        self.inner.unwritten.notify_one();
        count
    }

    /// Pods with containers that hold devices which nobody can name.
    #[must_use]
    pub fn unsure_pods(&self) -> Vec<PodUid> {
        self.book().ledger.unsure().keys().map(|uid| PodUid::from(uid.as_str())).collect()
    }

    /// How many such containers there are.
    #[must_use]
    pub fn unsure_containers(&self) -> usize {
        self.book().ledger.unsure().values().map(BTreeMap::len).sum()
    }

    /// Only these containers of the pod run. Others hold nothing that nobody can name.
    pub fn note_running(&self, uid: &PodUid, runs: impl Fn(&str) -> bool) {
        let changed = self.book().ledger.clear(uid.as_str(), runs);
        if changed {
            self.publish();
            self.inner.unwritten.notify_one();
        }
    }

    /// Takes back what a pod holds: it has come to rest.
    pub fn release(&self, uid: &PodUid) {
        let held = self.book().ledger.release(uid.as_str());
        if held {
            self.publish();
            self.inner.unwritten.notify_one();
        }
    }

    /// Takes back what pods hold of which nobody knows any more.
    pub fn keep_only(&self, is_there: impl Fn(&str) -> bool) {
        let changed = self.book().ledger.keep_only(is_there);
        if changed {
            self.publish();
            self.inner.unwritten.notify_one();
        }
    }

    /// Whether connections can be accepted.
    fn hears(&self, hears: bool) {
        let changed = std::mem::replace(&mut self.book().deaf, !hears) == hears;
        if changed {
            self.publish();
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what has changed.
    fn publish(&self) {
        let _turn = self.inner.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let (amounts, allocatable, held, deaf, lost, unnamed) = {
            let book = self.book();
            let device = |resource: &Arc<str>, id: &Arc<str>, nodes: &[u32]| HeldDevice {
                resource: Arc::clone(resource),
                id: Arc::clone(id),
                nodes: nodes.to_vec(),
                health: book.ledger.health(resource, id),
            };
            let healthy = book.ledger.healthy();
            let allocatable: Vec<_> =
                healthy.map(|(resource, id, it)| device(resource, id, &it.nodes)).collect();
            let mut held: BTreeMap<(&str, &str), Vec<HeldDevice>> = BTreeMap::new();
            for (uid, container, resource, it) in book.ledger.held() {
                let devices = it.devices.iter().map(|(id, nodes)| device(resource, id, nodes));
                held.entry((uid, container)).or_default().extend(devices);
            }
            let held =
                held.into_iter().map(|((uid, name), devices)| (PodUid::from(uid), name.into(), devices));
            let amounts = book.ledger.amounts(!book.lost);
            (amounts, allocatable, held.collect::<Vec<_>>(), book.deaf, book.lost, unnamed(&book.ledger))
        };
        self.inner.assignments.send_if_modified(|now| {
            let mut next = Assignments::clone(now);
            next.set_devices(allocatable, held);
            next.deaf = deaf;
            (next.unknown.devices, next.unknown.unnamed) = (lost, unnamed);
            let differs = next != **now;
            if differs {
                *now = Arc::new(next);
            }
            differs
        });
        self.inner.amounts.send_if_modified(|now| {
            let differs = **now != amounts;
            if differs {
                *now = Arc::new(amounts);
            }
            differs
        });
    }

    /// Puts the book on disk as it is now.
    async fn save(&self) -> Result<(), KeepError> {
        let state = || {
            let book = self.book();
            Kept {
                text: book.ledger.to_text(),
                unsure: book.ledger.unsure().clone(),
                pre_start: book.lasting_pre_start(),
            }
        };
        self.inner.files.write(state).await
    }

    /// For what nobody waits for.
    async fn save_or_tell(&self) {
        // Nothing is written over what is still to be rebuilt.
        if self.is_lost() {
            return;
        }
        if let Err(error) = self.save().await {
            tracing::warn!(%error, "who holds which devices is not on disk; it is tried again with the next change");
        }
    }

    async fn write_when_changed(&self, shutdown: &Shutdown) {
        // Cancel safe: a notification that is not taken is there the next time.
        while shutdown.run_until_signalled(self.inner.unwritten.notified()).await.is_some() {
            self.save_or_tell().await;
        }
        // What changed last.
        self.save_or_tell().await;
    }

    /// Plugins of before that have not come back are waited for no longer.
    fn give_up_awaited(&self) {
        let given_up: Vec<Arc<str>> = {
            let mut book = self.book();
            let awaited = book.ledger.awaited();
            awaited.into_iter().filter(|resource| book.ledger.expire(resource)).collect()
        };
        if !given_up.is_empty() {
            tracing::warn!(resources = ?given_up, "device plugins have not come back; their devices are there no longer");
            self.publish();
            self.inner.unwritten.notify_one();
        }
    }
}

/// What containers hold that nobody can name.
fn unnamed(ledger: &Ledger) -> Vec<UnnamedDevices> {
    let containers = ledger.unsure().iter().flat_map(|(uid, pod)| pod.iter().map(move |it| (uid, it)));
    containers
        .flat_map(|(uid, (container, resources))| {
            resources.iter().map(move |resource| UnnamedDevices {
                pod: PodUid::from(uid.as_str()),
                container: container.as_str().into(),
                resource: Arc::clone(resource),
            })
        })
        .collect()
}
