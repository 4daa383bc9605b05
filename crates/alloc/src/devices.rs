//! Who holds which devices of what plugins offer.
//!
//! What is told here is a book, not an act: [`Ledger::look`] says whether a container can have what it asks for, [`Ledger::take`]
//! puts devices down as its own, [`Ledger::confirm`] adds what the plugin answered, [`Ledger::release`] gives a pod's back. The rules
//! are those of upstream's device manager of 1.37 (`pkg/kubelet/cm/devicemanager/manager.go`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{ContainerKind, DeviceHealth, ExtendedAmount, ExtendedResources, PodExt as _, Quantity};

use crate::{Hints, NodeMask, topology::prefer};

/// A device as its plugin tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// It may be given out.
    pub healthy: bool,
    /// The NUMA nodes that it belongs to, ascending.
    pub nodes: Vec<u32>,
}

/// By ID.
pub type Devices = BTreeMap<Arc<str>, Device>;

/// What a container asks for of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// `vendor.com/thing`.
    pub resource: Arc<str>,
    /// So many.
    pub count: usize,
    /// Containers before it that end before it starts, and may leave it theirs.
    passing: Vec<String>,
    /// Containers that keep what they hold.
    lasting: Vec<String>,
}

/// What containers of a pod ask for, in the order in which they start. All extended resources: which of them are devices the
/// ledger knows.
#[must_use]
pub fn asks(pod: &Pod) -> Vec<Ask> {
    let mut asks = Vec::new();
    let names = |kinds: &[ContainerKind]| -> Vec<String> {
        let containers = pod.all_containers().filter(|(kind, _)| kinds.contains(kind));
        containers.map(|(_, container)| container.name.clone()).collect()
    };
    let passing = names(&[ContainerKind::Init]);
    let lasting = names(&[ContainerKind::Sidecar, ContainerKind::Regular]);
    for (_, container) in pod.all_containers() {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        for (resource, amount) in limits.into_iter().flatten().filter(|(name, _)| name.contains('/')) {
            let count = Quantity::parse(&amount.0).map_or(0, Quantity::value);
            let count = usize::try_from(count).unwrap_or(0);
            if count > 0 {
                asks.push(Ask {
                    uid: pod.uid_ref().to_owned(),
                    container: container.name.clone(),
                    resource: resource.as_str().into(),
                    count,
                    passing: passing.clone(),
                    lasting: lasting.clone(),
                });
            }
        }
    }
    asks
}

/// What may be chosen from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// These are among it: left by the pod's earlier containers.
    pub chosen: Vec<Arc<str>>,
    /// Nobody's.
    pub free: Vec<Arc<str>>,
    /// So many are missing.
    pub missing: usize,
}

/// Why a container cannot have what it asks for; upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It holds another number.
    #[error(
        "pod {uid:?} container {container:?} changed request for resource {resource:?} from {held} to {count}"
    )]
    Changed {
        /// The pod's.
        uid: String,
        /// Its name.
        container: String,
        /// Of what.
        resource: Arc<str>,
        /// So many it has.
        held: usize,
        /// So many it wants.
        count: usize,
    },
    /// Its plugin is not there.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(Arc<str>),
    /// There are none that could be given out.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    Unhealthy(Arc<str>),
    /// Somebody holds some of them, and nobody knows which.
    #[error(
        "container {container} of pod {uid} holds devices of {resource}, and the file that said which was lost; nobody else is given any until it has ended"
    )]
    Unsure {
        /// Of what.
        resource: Arc<str>,
        /// The holder's pod.
        uid: String,
        /// The holder.
        container: String,
    },
    /// Others have them.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    TooFew {
        /// Of what.
        resource: Arc<str>,
        /// So many are wanted.
        requested: usize,
        /// So many are free.
        available: usize,
    },
}

/// Where a resource stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Known from before a restart; its plugin is not back yet.
    Awaited,
    /// A plugin serves it.
    Served,
    /// Its plugin has gone; its devices are remembered for a while.
    Orphaned,
    /// It has been gone for long: nothing is left but the name.
    Gone,
}

#[derive(Clone, Debug)]
struct Resource {
    standing: Standing,
    devices: Devices,
}

/// What a container holds of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The devices and their NUMA nodes.
    pub devices: BTreeMap<Arc<str>, Vec<u32>>,
    /// What the plugin answered, as it came; `None` until it has.
    pub response: Option<Vec<u8>>,
}

/// By resource.
pub type ContainerHeld = BTreeMap<Arc<str>, Held>;

/// All devices and who holds them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    resources: BTreeMap<Arc<str>, Resource>,
    held: BTreeMap<String, BTreeMap<String, ContainerHeld>>,
    unsure: Unsure,
}

/// Resources of which containers hold devices that nobody can name any more, by pod's UID and container's name.
pub type Unsure = BTreeMap<String, BTreeMap<String, BTreeSet<Arc<str>>>>;

impl Ledger {
    /// What an earlier life left: who holds what, and which resources there were. Their devices are not known before their
    /// plugins are back.
    #[must_use]
    pub fn restored(
        held: impl IntoIterator<Item = (String, String, Arc<str>, Held)>,
        resources: impl IntoIterator<Item = Arc<str>>,
    ) -> Self {
        let mut this = Self::default();
        let awaited = || Resource { standing: Standing::Awaited, devices: Devices::new() };
        for resource in resources {
            this.resources.insert(resource, awaited());
        }
        for (uid, container, resource, entry) in held {
            this.resources.entry(Arc::clone(&resource)).or_insert_with(awaited);
            this.held.entry(uid).or_default().entry(container).or_default().insert(resource, entry);
        }
        this
    }

    /// Where a resource stands; `None` for one of which no plugin ever told.
    #[must_use]
    pub fn standing(&self, resource: &str) -> Option<Standing> {
        self.resources.get(resource).map(|resource| resource.standing)
    }

    /// A plugin serves it from now on; what it has it has still to tell. One that is awaited is so until then.
    pub fn serve(&mut self, resource: &Arc<str>) {
        let known = self
            .resources
            .entry(Arc::clone(resource))
            .or_insert_with(|| Resource { standing: Standing::Served, devices: Devices::new() });
        if known.standing != Standing::Awaited {
            known.standing = Standing::Served;
        }
    }

    /// What a plugin tells: these are all.
    pub fn list(&mut self, resource: &Arc<str>, devices: Devices) {
        self.resources.insert(Arc::clone(resource), Resource { standing: Standing::Served, devices });
    }

    /// Its last plugin has gone: nothing of it is given out. One that went before it told anything is awaited as before.
    pub fn orphan(&mut self, resource: &str) {
        let known = self.resources.get_mut(resource);
        if let Some(known) = known.filter(|known| known.standing != Standing::Awaited) {
            known.standing = Standing::Orphaned;
            known.devices.values_mut().for_each(|device| device.healthy = false);
        }
    }

    /// It has not come back in time. Whether that is news.
    pub fn expire(&mut self, resource: &str) -> bool {
        let waits = |known: &&mut Resource| matches!(known.standing, Standing::Orphaned | Standing::Awaited);
        let Some(known) = self.resources.get_mut(resource).filter(waits) else { return false };
        *known = Resource { standing: Standing::Gone, devices: Devices::new() };
        true
    }

    /// Those of which it is not known whether their plugin comes back.
    #[must_use]
    pub fn awaited(&self) -> Vec<Arc<str>> {
        let awaited = self.resources.iter().filter(|(_, it)| it.standing == Standing::Awaited);
        awaited.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// How much there is, for the Node object. Of a resource of which somebody holds devices that nobody can name (of all of them, if it is not
    /// even known `who`) nobody is given any: there is what is known to be held, and no more.
    #[must_use]
    pub fn amounts(&self, who: bool) -> ExtendedResources {
        let is_unsure = |name: &Arc<str>| !who || self.unsure_holder(name).is_some();
        let amounts = self.resources.iter().map(|(name, resource)| {
            let taken = is_unsure(name).then(|| self.taken(name));
            let healthy = resource.devices.iter().filter(|(id, device)| {
                device.healthy && taken.as_ref().is_none_or(|taken| taken.contains(id))
            });
            let (capacity, allocatable) = (resource.devices.len(), healthy.count());
            (Arc::clone(name), ExtendedAmount { capacity, allocatable })
        });
        ExtendedResources {
            amounts: amounts.collect(),
            awaited: self.awaited().into_iter().collect(),
            unsure: self.resources.keys().filter(|name| is_unsure(name)).cloned().collect(),
        }
    }

    /// Healthy devices of all resources.
    pub fn healthy(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Device)> {
        self.resources.iter().flat_map(|(name, resource)| {
            let healthy = resource.devices.iter().filter(|(_, device)| device.healthy);
            healthy.map(move |(id, device)| (name, id, device))
        })
    }

    /// The devices of a resource, as its plugin told last.
    #[must_use]
    pub fn devices(&self, resource: &str) -> Option<&Devices> {
        self.resources.get(resource).map(|resource| &resource.devices)
    }

    /// How a device is that somebody holds.
    #[must_use]
    pub fn health(&self, resource: &str, id: &str) -> DeviceHealth {
        let Some(known) = self.resources.get(resource) else { return DeviceHealth::Unknown };
        match (known.standing, known.devices.get(id)) {
            (Standing::Awaited, _) => DeviceHealth::Awaited,
            (Standing::Served, Some(Device { healthy: true, .. })) => DeviceHealth::Healthy,
            (Standing::Served, Some(_)) => DeviceHealth::Unhealthy,
            (Standing::Served, None) | (Standing::Orphaned | Standing::Gone, _) => DeviceHealth::Unknown,
        }
    }

    /// Resources that a plugin has told of and that are not given up: for the file.
    pub fn registered(&self) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = &Arc<str>>)> {
        self.resources.iter().filter(|(_, it)| it.standing != Standing::Gone).map(|(name, resource)| {
            let healthy = resource.devices.iter().filter(|(_, device)| device.healthy);
            (name, healthy.map(|(id, _)| id))
        })
    }

    /// Everything that is held and that its plugin has confirmed.
    pub fn held(&self) -> impl Iterator<Item = (&str, &str, &Arc<str>, &Held)> {
        self.held.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(name, held)| {
                let sure = held.iter().filter(|(_, held)| held.response.is_some());
                sure.map(move |(resource, held)| (uid.as_str(), name.as_str(), resource, held))
            })
        })
    }

    /// What one container holds; in what order plugins answered does not matter.
    #[must_use]
    pub fn of(&self, uid: &str, container: &str) -> Option<&ContainerHeld> {
        self.held.get(uid)?.get(container)
    }

    /// Whether the container can have what it asks for, and from what it is to be chosen. `None` if it has it, or if the resource
    /// is not one of devices.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn look(&self, ask: &Ask) -> Result<Option<Choice>, AskError> {
        let held = self.of(&ask.uid, &ask.container).and_then(|held| held.get(&ask.resource));
        if let Some(held) = held {
            if held.devices.len() == ask.count {
                return Ok(None);
            }
            return Err(AskError::Changed {
                uid: ask.uid.clone(),
                container: ask.container.clone(),
                resource: Arc::clone(&ask.resource),
                held: held.devices.len(),
                count: ask.count,
            });
        }
        let Some(known) = self.resources.get(&ask.resource) else { return Ok(None) };
        if self.is_unsure(&ask.uid, &ask.container, &ask.resource) {
            return Ok(None);
        }
        if let Some((uid, container)) = self.unsure_holder(&ask.resource) {
            let (uid, container) = (uid.to_owned(), container.to_owned());
            return Err(AskError::Unsure { resource: Arc::clone(&ask.resource), uid, container });
        }
        if known.standing != Standing::Served {
            return Err(AskError::Unregistered(Arc::clone(&ask.resource)));
        }
        if !known.devices.values().any(|device| device.healthy) {
            return Err(AskError::Unhealthy(Arc::clone(&ask.resource)));
        }
        let chosen: Vec<Arc<str>> = self.left_over(ask).into_iter().take(ask.count).collect();
        let missing = ask.count - chosen.len();
        let taken = self.taken(&ask.resource);
        let free = known.devices.iter().filter(|(id, device)| device.healthy && !taken.contains(*id));
        let free: Vec<Arc<str>> = free.map(|(id, _)| Arc::clone(id)).collect();
        if missing > free.len() {
            let (resource, available) = (Arc::clone(&ask.resource), free.len());
            return Err(AskError::TooFew { resource, requested: missing, available });
        }
        Ok(Some(Choice { chosen, free, missing }))
    }

    /// From which sets of nodes the container could have what it asks for, for the topology manager. An ask without a container is its whole pod's, of
    /// which what the pod holds already is part. `None` where no device of the resource
    /// belongs to a node, or the resource is not one of devices.
    #[must_use]
    pub fn hints(&self, ask: &Ask, nodes: NodeMask) -> Hints {
        let held = self.of(&ask.uid, &ask.container).and_then(|held| held.get(&ask.resource));
        let known = self.resources.get(&ask.resource)?;
        let has_topology = known.devices.values().any(|device| !device.nodes.is_empty())
            || held.is_some_and(|held| held.devices.values().any(|nodes| !nodes.is_empty()));
        if !has_topology {
            return None;
        }
        let passing = if ask.container.is_empty() { self.of_pod(ask) } else { self.left_over(ask) };
        let (free, must): (BTreeSet<Arc<str>>, BTreeSet<Arc<str>>) = match held {
            // What it has it keeps; what it has of another size cannot be kept.
            Some(held) if held.devices.len() != ask.count => return Some(Vec::new()),
            Some(held) => (held.devices.keys().cloned().collect(), BTreeSet::new()),
            None => {
                let taken = self.taken(&ask.resource);
                let healthy = known.devices.iter().filter(|(_, device)| device.healthy);
                let free = healthy.filter(|(id, _)| !taken.contains(*id)).map(|(id, _)| Arc::clone(id));
                (free.collect(), passing)
            }
        };
        if free.len() + must.len() < ask.count {
            return Some(Vec::new());
        }
        // One that belongs to no node is as near to one as to another.
        let place = |id: &Arc<str>| -> NodeMask {
            let own = held.and_then(|held| held.devices.get(id));
            let own = own.or_else(|| known.devices.get(id).map(|device| &device.nodes));
            own.into_iter().flatten().copied().collect()
        };
        let is_near = |id: &Arc<str>, nodes: NodeMask| {
            let place = place(id);
            place.is_empty() || !place.and(nodes).is_empty()
        };
        let mut least = nodes.len();
        let mut masks = Vec::new();
        for nodes in nodes.all_within() {
            let all = known.devices.keys().filter(|id| is_near(id, nodes)).count();
            if all >= ask.count {
                least = least.min(nodes.len());
            }
            let kept = must.iter().filter(|id| is_near(id, nodes)).count();
            let near = free.iter().filter(|id| !must.contains(*id) && is_near(id, nodes)).count();
            if kept == must.len() && near + kept >= ask.count {
                masks.push(nodes);
            }
        }
        Some(prefer(masks, |nodes| nodes.len() == least))
    }

    /// Puts devices down as the container's own: what the pod's earlier containers left, then those of `advice` that are free,
    /// then any. Nothing but a name is its own before [`Self::confirm`].
    ///
    /// # Errors
    /// Why it cannot have them; nothing is changed then.
    pub fn take(
        &mut self,
        ask: &Ask,
        advice: &[String],
        near: Option<NodeMask>,
    ) -> Result<Vec<Arc<str>>, AskError> {
        let Some(Choice { mut chosen, free, missing }) = self.look(ask)? else { return Ok(Vec::new()) };
        let advised: BTreeSet<&str> = advice.iter().map(String::as_str).collect();
        let mut free: Vec<_> = free.into_iter().collect();
        // The sort is stable: of those that are equal in this the first one is taken.
        free.sort_by_key(|id| (self.distance(ask, id, near), !advised.contains(&**id)));
        chosen.extend(free.into_iter().take(missing));
        let known = self.resources.get(&ask.resource);
        let nodes = |id: &Arc<str>| {
            let device = known.and_then(|known| known.devices.get(id));
            device.map(|device| device.nodes.clone()).unwrap_or_default()
        };
        let devices = chosen.iter().map(|id| (Arc::clone(id), nodes(id))).collect();
        let pod = self.held.entry(ask.uid.clone()).or_default();
        let container = pod.entry(ask.container.clone()).or_default();
        container.insert(Arc::clone(&ask.resource), Held { devices, response: None });
        Ok(chosen)
    }

    /// How far a device is from where it is wanted: on these nodes, nowhere, elsewhere.
    fn distance(&self, ask: &Ask, id: &Arc<str>, near: Option<NodeMask>) -> u8 {
        let Some(near) = near else { return 0 };
        let device = self.resources.get(&ask.resource).and_then(|known| known.devices.get(id));
        match device.map(|device| device.nodes.as_slice()) {
            Some([]) | None => 1,
            Some(nodes) if nodes.iter().any(|node| near.contains(*node)) => 0,
            Some(_) => 2,
        }
    }

    /// Those of what may be chosen from that a plugin is asked about: the near ones if they are enough, else all.
    #[must_use]
    pub fn nearest(&self, ask: &Ask, choice: Choice, near: Option<NodeMask>) -> Choice {
        let near: Vec<_> =
            choice.free.iter().filter(|id| self.distance(ask, id, near) == 0).cloned().collect();
        if near.len() >= choice.missing { Choice { free: near, ..choice } } else { choice }
    }

    /// The plugin has answered. Whether the container still holds them: its pod may have gone meanwhile.
    pub fn confirm(&mut self, ask: &Ask, response: Vec<u8>) -> bool {
        let pod = self.held.get_mut(&ask.uid);
        let held = pod.and_then(|pod| pod.get_mut(&ask.container)?.get_mut(&ask.resource));
        held.map(|held| held.response = Some(response)).is_some()
    }

    /// A container runs that asks for this, and the book, which was lost, does not say what it was given: until it has ended nobody else is given
    /// anything of the resource. Whether that is so.
    pub fn suspect(&mut self, ask: &Ask) -> bool {
        let held = self.of(&ask.uid, &ask.container).is_some_and(|held| held.contains_key(&ask.resource));
        if !held {
            let pod = self.unsure.entry(ask.uid.clone()).or_default();
            pod.entry(ask.container.clone()).or_default().insert(Arc::clone(&ask.resource));
        }
        !held
    }

    /// Containers of the pod that do not run any more hold nothing that nobody can name. Whether one did.
    pub fn clear(&mut self, uid: &str, runs: impl Fn(&str) -> bool) -> bool {
        let Some(pod) = self.unsure.get_mut(uid) else { return false };
        let before = pod.len();
        pod.retain(|container, _| runs(container));
        let changed = pod.len() != before;
        if pod.is_empty() {
            self.unsure.remove(uid);
        }
        changed
    }

    /// Who holds devices that nobody can name: for a file of our own.
    #[must_use]
    pub fn unsure(&self) -> &Unsure {
        &self.unsure
    }

    /// What that file said.
    pub fn set_unsure(&mut self, unsure: Unsure) {
        self.unsure = unsure;
    }

    fn is_unsure(&self, uid: &str, container: &str, resource: &str) -> bool {
        let pod = self.unsure.get(uid);
        pod.and_then(|pod| pod.get(container)).is_some_and(|resources| resources.contains(resource))
    }

    fn unsure_holder(&self, resource: &str) -> Option<(&str, &str)> {
        self.unsure.iter().find_map(|(uid, pod)| {
            let (container, _) = pod.iter().find(|(_, resources)| resources.contains(resource))?;
            Some((uid.as_str(), container.as_str()))
        })
    }

    /// Takes back what a pod holds. Whether that was anything.
    pub fn release(&mut self, uid: &str) -> bool {
        let unsure = self.unsure.remove(uid).is_some();
        self.held.remove(uid).is_some() || unsure
    }

    /// Takes back what a container was about to be given.
    pub fn give_back(&mut self, ask: &Ask) {
        self.drop_if(ask, |held| held.response.is_none());
    }

    /// Takes back what a container was given.
    pub fn drop_held(&mut self, ask: &Ask) {
        self.drop_if(ask, |_| true);
    }

    fn drop_if(&mut self, ask: &Ask, which: impl Fn(&Held) -> bool) {
        let Some(pod) = self.held.get_mut(&ask.uid) else { return };
        if let Some(container) = pod.get_mut(&ask.container) {
            container.retain(|resource, held| *resource != ask.resource || !which(held));
        }
        pod.retain(|_, container| !container.is_empty());
        if pod.is_empty() {
            self.held.remove(&ask.uid);
        }
    }

    /// Takes back what pods hold that are not among these. Whether that was anything.
    pub fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.held.len() + self.unsure.len();
        self.held.retain(|uid, _| is_there(uid));
        self.unsure.retain(|uid, _| is_there(uid));
        self.held.len() + self.unsure.len() != before
    }

    /// Pods that hold something.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.held.keys().map(String::as_str)
    }

    fn taken(&self, resource: &Arc<str>) -> BTreeSet<&Arc<str>> {
        let containers = self.held.values().flat_map(BTreeMap::values);
        containers.filter_map(|held| held.get(resource)).flat_map(|held| held.devices.keys()).collect()
    }

    /// What the pod's containers hold.
    fn of_pod(&self, ask: &Ask) -> BTreeSet<Arc<str>> {
        let containers = self.held.get(&ask.uid).into_iter().flat_map(BTreeMap::values);
        let held = containers.filter_map(|held| held.get(&ask.resource));
        held.flat_map(|held| held.devices.keys().cloned()).collect()
    }

    /// What init containers of the pod have held and no container that stays has taken over.
    fn left_over(&self, ask: &Ask) -> BTreeSet<Arc<str>> {
        let Some(pod) = self.held.get(&ask.uid) else { return BTreeSet::new() };
        let of = |names: &[String]| -> BTreeSet<Arc<str>> {
            let held = names.iter().filter_map(|name| pod.get(name)?.get(&ask.resource));
            held.flat_map(|held| held.devices.keys().cloned()).collect()
        };
        &of(&ask.passing) - &of(&ask.lasting)
    }
}

#[cfg(test)]
mod tests;
