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
    DesiredPod, DesiredState, Event, FileVerdict, FullName, Objects, ObservedState, PodExt as _, PodSource,
    PodUid, Ruling, TerminationWish,
};

use crate::{
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
}

/// Puts a finished pod into its place in the desired state.
pub(crate) fn desired_pod(
    pod: Pod,
    uid: &PodUid,
    source: PodSource,
    origin: &str,
    terminate: Option<TerminationWish>,
) -> DesiredPod {
    let full_name = FullName::new(pod.namespace_ref(), pod.name_ref());
    DesiredPod { uid: uid.clone(), full_name, pod: Arc::new(pod), source, origin: origin.into(), terminate }
}

/// Which sources have delivered; one that is not configured counts as having delivered nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) file: bool,
    pub(crate) http: bool,
}

impl Delivered {
    fn by(self, source: PodSource) -> bool {
        match source {
            PodSource::File => self.file,
            PodSource::Http => self.http,
            PodSource::Api => true,
        }
    }

    pub(crate) fn all(self) -> bool {
        self.file && self.http
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
    wishes: BTreeMap<PodUid, TerminationWish>,
    /// The first delivery has been made: from now on, no sandbox is taken over.
    begun: bool,
    state: Arc<DesiredState>,
}

impl Book {
    pub(crate) fn new(node_name: Arc<str>, held: BTreeMap<HeldKey, Held>) -> Self {
        Self {
            node_name,
            origins: BTreeMap::new(),
            held,
            wishes: BTreeMap::new(),
            begun: false,
            state: Arc::new(DesiredState::default()),
        }
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

    /// Enters somebody's wish that a pod end. Returns whether there is such a pod.
    pub(crate) fn wish(&mut self, uid: PodUid, wish: TerminationWish) -> bool {
        let known = self.state.pods.contains_key(&uid);
        if known {
            self.wishes.insert(uid, wish);
        }
        known
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
        if deliver {
            self.wishes.retain(|uid, _| self.held.values().any(|held| held.uid == *uid));
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
                    HeldObject::ConfigMap(object) => {
                        objects.config_maps.insert(name(), Arc::clone(object));
                    }
                    HeldObject::Secret(object) => {
                        objects.secrets.insert(name(), Arc::clone(object));
                    }
                }
            }
        }
        consequences.state = self.publish(pods, objects, verdicts, deliver && delivered.all());
        consequences
    }

    fn publish(
        &mut self,
        pods: BTreeMap<PodUid, Arc<DesiredPod>>,
        objects: Objects,
        verdicts: Vec<FileVerdict>,
        synced: bool,
    ) -> Option<Arc<DesiredState>> {
        let old = &self.state;
        let same_pods = pods.len() == old.pods.len()
            && pods.iter().zip(old.pods.iter()).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1));
        let same_objects = same(&objects.config_maps, &old.objects.config_maps)
            && same(&objects.secrets, &old.objects.secrets);
        let same_verdicts = verdicts == *old.verdicts;
        // The first state is published even when it is empty: it says that there is nothing.
        if old.generation > 0 && same_pods && same_objects && same_verdicts && synced == old.synced {
            return None;
        }
        let state = DesiredState {
            generation: old.generation + 1,
            synced,
            pods: if same_pods { Arc::clone(&old.pods) } else { Arc::new(pods) },
            objects: if same_objects { Arc::clone(&old.objects) } else { Arc::new(objects) },
            verdicts: if same_verdicts { Arc::clone(&old.verdicts) } else { Arc::new(verdicts) },
        };
        self.state = Arc::new(state);
        Some(Arc::clone(&self.state))
    }
}

fn same<T>(a: &BTreeMap<FullName, Arc<T>>, b: &BTreeMap<FullName, Arc<T>>) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
}

#[cfg(test)]
mod tests;
