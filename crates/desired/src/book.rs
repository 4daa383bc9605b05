//! The book of what is wanted: which documents count, which pods they are, and what is told about them.
//!
//! Pure: readings, wishes and one look at the runtime go in, a [`DesiredState`] and a list of consequences come out.

mod settle;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use mainstay_podspec::Identity;
use mainstay_types::{
    AwaitedSource, DesiredPod, DesiredState, Event, FileVerdict, FullName, Objects, ObservedState,
    PodExt as _, PodSource, PodUid, Ruling, TerminationWish,
};

use crate::{
    api::Wanted,
    entry::{Entry, EntryState},
    records::RecordChange,
};

/// What was found in one place.
#[derive(Debug)]
pub(crate) enum Reading {
    /// There, but not read yet: what it held before still counts.
    Pending,
    /// Not a manifest, and why.
    Ignored(String),
    /// A manifest that cannot be read at all, and why.
    Unreadable(Vec<String>),
    /// Its documents, fit or not.
    Documents(Vec<Entry>),
}

/// One document of one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldKey {
    /// Files come before URLs.
    pub(crate) source: PodSource,
    /// The path or URL.
    pub(crate) origin: Arc<str>,
    pub(crate) identity: Identity,
}

impl HeldKey {
    pub(crate) fn new(source: PodSource, origin: &str, identity: &Identity) -> Self {
        Self { source, origin: origin.into(), identity: identity.clone() }
    }
}

/// The last good version of a document.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) digest: String,
    /// Empty for anything but pods.
    pub(crate) uid: PodUid,
    pub(crate) seen: Timestamp,
    pub(crate) object: HeldObject,
}

#[derive(Clone, Debug)]
pub(crate) enum HeldObject {
    Pod(Arc<DesiredPod>),
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
    /// The runtime's handler that the class stands for.
    RuntimeClass(Arc<str>),
}

/// Puts a finished pod into its place in the desired state.
pub(crate) fn desired_pod(
    mut pod: Pod,
    uid: &PodUid,
    source: PodSource,
    origin: &str,
    terminate: Option<TerminationWish>,
) -> DesiredPod {
    // It stays for as long as the pod, and was read into lists with room to grow.
    if let Some(spec) = &mut pod.spec {
        spec.containers.shrink_to_fit();
        spec.init_containers.iter_mut().for_each(Vec::shrink_to_fit);
        spec.volumes.iter_mut().for_each(Vec::shrink_to_fit);
    }
    let full_name = FullName::new(pod.namespace_ref(), pod.name_ref());
    let (uid, origin, pod) = (uid.clone(), origin.into(), Arc::new(pod));
    DesiredPod { uid, full_name, pod, source, origin, terminate, remote: None }
}

/// Which sources have delivered; one that is not configured counts as having delivered nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) file: bool,
    pub(crate) http: bool,
    /// In this life.
    pub(crate) api: bool,
    /// In an earlier life: what it said then is known.
    pub(crate) api_earlier: bool,
    /// Those that have not were waited for long enough: the node goes on, and cleans up nothing that may be theirs.
    pub(crate) waited: bool,
}

impl Delivered {
    fn by(self, source: PodSource) -> bool {
        match source {
            PodSource::File => self.file,
            PodSource::Http => self.http,
            PodSource::Api => self.api,
        }
    }

    pub(crate) fn all(self) -> bool {
        self.file && self.http && (self.api || self.api_earlier)
    }
}

/// What follows from the book's newest state.
#[derive(Debug, Default)]
pub(crate) struct Consequences {
    /// To be published, if anything changed.
    pub(crate) state: Option<Arc<DesiredState>>,
    pub(crate) records: Vec<RecordChange>,
    pub(crate) events: Vec<Event>,
    pub(crate) news: Vec<News>,
}

/// One line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Added { object: String, uid: PodUid, origin: Arc<str> },
    Replaced { object: String, old_uid: PodUid, uid: PodUid, origin: Arc<str> },
    TakenOver { object: String, uid: PodUid, origin: Arc<str> },
    Removed { object: String, uid: PodUid, origin: Arc<str> },
    Rejected { object: Option<String>, origin: String, problems: Vec<String>, previous_kept: bool },
    Warned { object: Option<String>, origin: String, warnings: Vec<String> },
}

/// The book.
#[derive(Debug)]
pub(crate) struct Book {
    node_name: Arc<str>,
    origins: BTreeMap<(PodSource, Arc<str>), Reading>,
    held: BTreeMap<HeldKey, Held>,
    /// What the API server wants.
    api: Wanted,
    wishes: BTreeMap<PodUid, TerminationWish>,
    /// The first delivery has been made: from now on, no sandbox is taken over.
    begun: bool,
    /// A sandbox of a pod's name is taken over, whoever made it.
    takes_over: bool,
    state: Arc<DesiredState>,
    /// How the configured sources are called, by kind.
    names: Vec<AwaitedSource>,
    /// The rulings of an earlier life, until every source has delivered in this one: one that is the same again stands
    /// since then.
    earlier: Vec<FileVerdict>,
}

impl Book {
    pub(crate) fn new(node_name: Arc<str>, held: BTreeMap<HeldKey, Held>, names: Vec<AwaitedSource>) -> Self {
        Self {
            node_name,
            names,
            origins: BTreeMap::new(),
            held,
            api: Wanted::default(),
            wishes: BTreeMap::new(),
            begun: false,
            takes_over: true,
            state: Arc::new(DesiredState::default()),
            earlier: Vec::new(),
        }
    }

    /// The same with the rulings of an earlier life.
    pub(crate) fn with_earlier_verdicts(mut self, earlier: Vec<FileVerdict>) -> Self {
        self.earlier = earlier;
        self
    }

    /// Whether pods that another kubelet runs are taken over.
    pub(crate) fn takes_over(&mut self, takes_over: bool) {
        self.takes_over = takes_over;
    }

    /// Enters what was found in one place.
    pub(crate) fn read(&mut self, source: PodSource, origin: &str, reading: Reading) {
        self.origins.insert((source, origin.into()), reading);
    }

    /// Notes a place that exists but cannot be ruled over yet.
    pub(crate) fn await_reading(&mut self, source: PodSource, origin: &str) {
        self.origins.entry((source, origin.into())).or_insert(Reading::Pending);
    }

    /// The directory is gone: what its files held still counts, and each says so. How many they are.
    pub(crate) fn keep_below(&mut self, directory: &Path) -> usize {
        let below = |origin: &Arc<str>| {
            Path::new(&**origin) != directory && Path::new(&**origin).starts_with(directory)
        };
        let origins: BTreeSet<Arc<str>> = self
            .held
            .keys()
            .filter(|key| key.source == PodSource::File && below(&key.origin))
            .map(|key| Arc::clone(&key.origin))
            .collect();
        self.origins.retain(|(source, origin), _| {
            *source != PodSource::File || !below(origin) || origins.contains(origin)
        });
        for origin in &origins {
            let problem = format!(
                "the static pod path {} is gone; make it again with its files, or empty to remove their pods",
                directory.display()
            );
            self.origins.insert((PodSource::File, Arc::clone(origin)), Reading::Unreadable(vec![problem]));
        }
        origins.len()
    }

    /// Strikes out all files but these.
    pub(crate) fn retain_files(&mut self, stays: impl Fn(&str) -> bool) {
        self.origins.retain(|(source, origin), _| *source != PodSource::File || stays(origin));
    }

    /// Strikes out a place that no longer exists.
    pub(crate) fn remove(&mut self, source: PodSource, origin: &str) {
        self.origins.remove(&(source, Arc::from(origin)));
    }

    /// Enters what the API server has.
    pub(crate) fn take_api(&mut self, wanted: Wanted) {
        self.api = wanted;
    }

    /// Enters somebody's wish that a pod end. Returns whether there is such a pod.
    pub(crate) fn wish(&mut self, uid: PodUid, wish: TerminationWish) -> bool {
        let known = self.state.pods.contains_key(&uid);
        if known {
            self.wishes.insert(uid, wish);
        }
        known
    }

    /// A pod as it was last published.
    pub(crate) fn pod(&self, uid: &PodUid) -> Option<&Arc<DesiredPod>> {
        self.state.pods.get(uid)
    }

    /// Whether a URL has delivered in an earlier life: then what is kept of it is its last word, and counts.
    pub(crate) fn remembers(&self, source: PodSource, origin: &str) -> bool {
        self.held.keys().any(|key| key.source == source && *key.origin == *origin)
    }

    /// Whether the first delivery has been made.
    pub(crate) fn begun(&self) -> bool {
        self.begun
    }

    /// Draws the consequences of everything entered so far.
    ///
    /// Until the runtime has been listed once there are verdicts but no pods, because a pod's UID may depend on what
    /// runs. `observed` is only looked at for the first delivery.
    pub(crate) fn settle(
        &mut self,
        delivered: Delivered,
        observed: Option<&ObservedState>,
        now: Timestamp,
    ) -> Consequences {
        let runtime = observed.filter(|state| state.listed_at.is_some());
        let deliver = self.begun || runtime.is_some();
        let mut consequences = Consequences::default();
        let (verdicts, kept) =
            settle::Settling::run(self, delivered, deliver.then_some(runtime), now, &mut consequences);
        self.begun |= deliver;

        let (mut pods, mut objects) = (BTreeMap::new(), Objects::default());
        let of_a_cluster = self.names.iter().any(|name| name.source == PodSource::Api);
        if deliver {
            let api = &self.api.pods;
            self.wishes
                .retain(|uid, _| api.contains_key(uid) || self.held.values().any(|held| held.uid == *uid));
            for (key, held) in self.held.iter_mut().filter(|(key, _)| kept.contains(*key)) {
                let name = || FullName::new(&key.identity.namespace, &key.identity.name);
                match &mut held.object {
                    HeldObject::Pod(pod) => {
                        if pod.terminate.as_ref() != self.wishes.get(&pod.uid) {
                            let terminate = self.wishes.get(&pod.uid).cloned();
                            *pod = Arc::new(DesiredPod { terminate, ..DesiredPod::clone(pod) });
                        }
                        pods.insert(pod.uid.clone(), Arc::clone(pod));
                    }
                    // With an API server no pod of a file may refer to either, and to a pod of the API server what is not there is not
                    // there, whatever lies in files.
                    HeldObject::ConfigMap(_) | HeldObject::Secret(_) if of_a_cluster => {}
                    HeldObject::ConfigMap(object) => {
                        objects.config_maps.insert(name(), Arc::clone(object));
                    }
                    HeldObject::Secret(object) => {
                        objects.secrets.insert(name(), Arc::clone(object));
                    }
                    HeldObject::RuntimeClass(handler) => {
                        objects.runtime_classes.insert(key.identity.name.clone(), Arc::clone(handler));
                    }
                }
            }
        }
        if deliver {
            objects.config_maps.extend(self.api.objects.config_maps.clone());
            objects.secrets.extend(self.api.objects.secrets.clone());
            objects.tokens.extend(self.api.objects.tokens.clone());
            objects.services.extend(self.api.objects.services.clone());
            objects.runtime_classes.extend(self.api.objects.runtime_classes.clone());
            objects.trust_bundles.extend(self.api.objects.trust_bundles.clone());
            objects.certificates.extend(self.api.objects.certificates.clone());
            objects.claims.extend(self.api.objects.claims.clone());
            for (uid, pod) in &self.api.pods {
                let terminate = self.wishes.get(uid).cloned();
                let published = self.state.pods.get(uid).filter(|published| {
                    published.terminate == terminate
                        && Arc::ptr_eq(&published.pod, &pod.pod)
                        && published.remote.as_ref().map(Arc::as_ptr) == pod.remote.as_ref().map(Arc::as_ptr)
                });
                let pod = match published {
                    Some(published) => Arc::clone(published),
                    None => Arc::new(DesiredPod { terminate, ..DesiredPod::clone(pod) }),
                };
                // A manifest may name any UID; the first come has it.
                pods.entry(uid.clone()).or_insert(pod);
            }
        }
        let awaited = self.names.iter().filter(|name| !delivered.by(name.source));
        let remembered = |source: PodSource| source == PodSource::Api && delivered.api_earlier;
        let awaited = awaited
            .map(|name| AwaitedSource { remembered: remembered(name.source), ..AwaitedSource::clone(name) })
            .collect();
        let synced = deliver && (delivered.all() || delivered.waited);
        if synced {
            self.earlier = Vec::new();
        }
        consequences.state = self.publish(pods, objects, verdicts, synced, awaited);
        consequences
    }

    fn publish(
        &mut self,
        pods: BTreeMap<PodUid, Arc<DesiredPod>>,
        objects: Objects,
        verdicts: Vec<FileVerdict>,
        synced: bool,
        awaited: Vec<AwaitedSource>,
    ) -> Option<Arc<DesiredState>> {
        let old = &self.state;
        let same_pods = pods.len() == old.pods.len()
            && pods.iter().zip(old.pods.iter()).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1));
        let same_objects = same(&objects.config_maps, &old.objects.config_maps)
            && same(&objects.secrets, &old.objects.secrets)
            && same(&objects.tokens, &old.objects.tokens)
            && objects.runtime_classes == old.objects.runtime_classes
            && same(&objects.trust_bundles, &old.objects.trust_bundles)
            && same(&objects.certificates, &old.objects.certificates)
            && same(&objects.claims, &old.objects.claims)
            && same(&objects.services, &old.objects.services);
        let same_verdicts = verdicts == *old.verdicts;
        // The first state is published even when it is empty: it says that there is nothing.
        let same_sources = synced == old.synced && awaited == *old.awaited;
        let same_node = old.node.as_ref().map(Arc::as_ptr) == self.api.node.as_ref().map(Arc::as_ptr)
            && old.node_answered == self.api.node_answered;
        if old.generation > 0 && same_pods && same_objects && same_verdicts && same_sources && same_node {
            return None;
        }
        let state = DesiredState {
            generation: old.generation + 1,
            synced,
            awaited: if same_sources { Arc::clone(&old.awaited) } else { Arc::new(awaited) },
            pods: if same_pods { Arc::clone(&old.pods) } else { Arc::new(pods) },
            node: self.api.node.clone(),
            node_answered: self.api.node_answered,
            objects: if same_objects { Arc::clone(&old.objects) } else { Arc::new(objects) },
            verdicts: if same_verdicts { Arc::clone(&old.verdicts) } else { Arc::new(verdicts) },
        };
        self.state = Arc::new(state);
        Some(Arc::clone(&self.state))
    }
}

fn same<K: PartialEq, T>(a: &BTreeMap<K, Arc<T>>, b: &BTreeMap<K, Arc<T>>) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
}

#[cfg(test)]
mod tests;
