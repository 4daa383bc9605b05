//! One pass through the book: every document gets its ruling, every pod its UID.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
};

use mainstay_podspec::{finish_static_pod, validate_config_map_change, validate_secret_change};
use mainstay_types::{EventKind, EventTarget};

use super::*;
use crate::{
    entry::{Candidate, CandidateObject},
    records::ManifestRecord,
};

/// The pass. Places come in the order files first, by path, so that of two documents about one object the first wins.
pub(super) struct Settling<'a> {
    node_name: &'a str,
    held: &'a mut BTreeMap<HeldKey, Held>,
    /// `None` while nothing may be delivered yet: then rulings are found and nothing is changed. Inside, the runtime
    /// as it was listed, for the first delivery.
    deliver: Option<Option<&'a ObservedState>>,
    begun: bool,
    takes_over: bool,
    now: Timestamp,
    consequences: &'a mut Consequences,
    /// Who has which object.
    taken: BTreeMap<Identity, Arc<str>>,
    /// Who has which UID.
    uids: BTreeMap<PodUid, (Identity, Arc<str>)>,
    /// Part of the desired state.
    kept: BTreeSet<HeldKey>,
    /// Not part of it because somebody else has the object or the UID, but its file is still there.
    displaced: BTreeSet<HeldKey>,
    verdicts: Vec<FileVerdict>,
}

impl<'a> Settling<'a> {
    pub(super) fn run(
        book: &'a mut Book,
        delivered: Delivered,
        deliver: Option<Option<&'a ObservedState>>,
        now: Timestamp,
        consequences: &'a mut Consequences,
    ) -> (Vec<FileVerdict>, BTreeSet<HeldKey>) {
        let mut pass = Self {
            node_name: &book.node_name,
            held: &mut book.held,
            deliver,
            begun: book.begun,
            takes_over: book.takes_over,
            now,
            consequences,
            taken: BTreeMap::new(),
            uids: BTreeMap::new(),
            kept: BTreeSet::new(),
            displaced: BTreeSet::new(),
            verdicts: Vec::new(),
        };
        for ((source, origin), reading) in &mut book.origins {
            pass.place(*source, origin, reading);
        }
        pass.strike_out(delivered);
        let mut verdicts = std::mem::take(&mut pass.verdicts);
        pass.tell(&mut verdicts, &book.state.verdicts, &book.earlier);
        (verdicts, pass.kept)
    }

    fn place(&mut self, source: PodSource, origin: &Arc<str>, reading: &mut Reading) {
        match reading {
            Reading::Pending => {
                self.keep_rest(source, origin);
            }
            Reading::Ignored(why) => self.rule(origin, None, Ruling::Ignored { why: why.clone() }),
            Reading::Unreadable(problems) => {
                let previous_kept = self.keep_rest(source, origin);
                self.rule(origin, None, Ruling::Rejected { problems: problems.clone(), previous_kept });
            }
            Reading::Documents(entries) => {
                if entries.is_empty() {
                    let warnings = vec!["it holds an empty list".to_owned()];
                    self.rule(origin, None, Ruling::Accepted { warnings });
                }
                // Fit documents claim their objects first; then unfit ones keep what they were before, if it is still
                // free; and one that does not even say what it is may have been any of the rest.
                let place = |entry: &Entry| match (&entry.state, &entry.identity) {
                    (EntryState::Candidate(_) | EntryState::Taken, Some(_)) => 0,
                    (EntryState::Rejected(_), Some(_)) => 1,
                    (_, None) => 2,
                };
                let mut rulings = BTreeMap::new();
                for turn in 0..=2 {
                    for (index, entry) in
                        entries.iter_mut().enumerate().filter(|(_, entry)| place(entry) == turn)
                    {
                        rulings.entry(index).or_insert_with(|| self.document(source, origin, entry));
                    }
                }
                for (object, ruling) in rulings.into_values() {
                    self.rule(origin, Some(object), ruling);
                }
            }
        }
    }

    fn document(&mut self, source: PodSource, origin: &Arc<str>, entry: &mut Entry) -> (String, Ruling) {
        let Some(identity) = entry.identity.clone() else {
            let previous_kept = self.keep_rest(source, origin);
            return (entry.place.clone(), Ruling::Rejected { problems: entry.problems(), previous_kept });
        };
        let key = HeldKey { source, origin: Arc::clone(origin), identity };
        let ruling = self.named_document(&key, entry);
        (key.identity.to_string(), ruling)
    }

    /// Rules over a document whose object is known.
    fn named_document(&mut self, key: &HeldKey, entry: &mut Entry) -> Ruling {
        if let Some(other) = self.taken.get(&key.identity)
            && !matches!(entry.state, EntryState::Rejected(_))
        {
            self.displaced.insert(key.clone());
            let place = if **other == *key.origin {
                "earlier in this file".to_owned()
            } else {
                format!("in {other}")
            };
            let problem = format!(
                "Duplicate value: {} is also defined {place}, which wins; rename or remove one",
                key.identity
            );
            return Ruling::Rejected { problems: vec![problem], previous_kept: false };
        }
        match &mut entry.state {
            EntryState::Rejected(problems) => {
                let problems = problems.clone();
                // What is kept under this key may be another document of this file, which is not the previous one.
                let free = !self.kept.contains(key);
                let previous_kept = self.keep(key) && free;
                Ruling::Rejected { problems, previous_kept }
            }
            EntryState::Taken => {
                self.keep(key);
                Ruling::Accepted { warnings: entry.warnings.clone() }
            }
            EntryState::Candidate(candidate) => match self.accept(key, candidate) {
                Ok(clash) => {
                    entry.warnings.extend(clash.filter(|_| self.deliver.is_some()));
                    if self.deliver.is_some() {
                        entry.state = EntryState::Taken;
                    }
                    Ruling::Accepted { warnings: entry.warnings.clone() }
                }
                Err(problems) => {
                    let previous_kept = self.keep(key);
                    Ruling::Rejected { problems, previous_kept }
                }
            },
        }
    }

    /// Takes a fit document into the book, unless it is there already. What it clashes with all the same.
    fn accept(
        &mut self,
        key: &HeldKey,
        candidate: &mut Box<Candidate>,
    ) -> Result<Option<String>, Vec<String>> {
        let before = self.held.get(key);
        if before.is_some_and(|held| held.digest == candidate.digest) {
            let uid = before.map(|held| held.uid.clone());
            self.claim_uid(key, uid.as_ref())?;
            self.keep(key);
            return Ok(None);
        }
        match (before.map(|held| &held.object), &candidate.object) {
            (Some(HeldObject::ConfigMap(old)), CandidateObject::ConfigMap(new)) => {
                none_of(validate_config_map_change(new, old))?;
            }
            (Some(HeldObject::Secret(old)), CandidateObject::Secret(new)) => {
                none_of(validate_secret_change(new, old))?
            }
            _ => {}
        }
        let mut clash = None;
        let (uid, taken_over) = match &candidate.object {
            CandidateObject::Pod { pod, computed_uid } => {
                match pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty()) {
                    Some(explicit) => (PodUid::from(explicit), false),
                    None => match self.sandbox_uid(key, pod) {
                        Some(uid) if self.takes_over => (uid, true),
                        other => {
                            clash = other.filter(|uid| uid != computed_uid).map(|uid| stranger(pod, &uid));
                            (computed_uid.clone(), false)
                        }
                    },
                }
            }
            _ => (PodUid::from(""), false),
        };
        self.claim_uid(key, Some(&uid))?;
        self.taken.insert(key.identity.clone(), Arc::clone(&key.origin));
        self.kept.insert(key.clone());
        if self.deliver.is_some() {
            self.enter(key, candidate, uid, taken_over);
        }
        Ok(clash)
    }

    fn enter(&mut self, key: &HeldKey, candidate: &mut Candidate, uid: PodUid, taken_over: bool) {
        let before = self.held.get(key);
        let seen = before.filter(|held| held.uid == uid).map_or(self.now, |held| held.seen);
        let (object, origin) = (key.identity.to_string(), Arc::clone(&key.origin));
        self.consequences.news.push(match before.map(|held| held.uid.clone()) {
            Some(old_uid) => News::Replaced { object, old_uid, uid: uid.clone(), origin },
            None if taken_over => News::TakenOver { object, uid: uid.clone(), origin },
            None => News::Added { object, uid: uid.clone(), origin },
        });
        let object = match &mut candidate.object {
            CandidateObject::Pod { pod, .. } => {
                let mut pod = std::mem::take(pod);
                finish_static_pod(&mut pod, &uid, key.source, seen);
                HeldObject::Pod(Arc::new(desired_pod(pod, &uid, key.source, &key.origin, None)))
            }
            CandidateObject::ConfigMap(object) => HeldObject::ConfigMap(Arc::new(std::mem::take(object))),
            CandidateObject::Secret(object) => HeldObject::Secret(Arc::new(std::mem::take(object))),
            CandidateObject::RuntimeClass(object) => HeldObject::RuntimeClass(object.handler.as_str().into()),
        };
        let record = ManifestRecord {
            source: key.source,
            origin: key.origin.to_string(),
            identity: key.identity.clone(),
            digest: candidate.digest.clone(),
            uid: uid.clone(),
            seen,
            document: candidate.raw.take(),
        };
        self.consequences.records.push(RecordChange::Put(Box::new(record)));
        let digest = std::mem::take(&mut candidate.digest);
        self.held.insert(key.clone(), Held { digest, uid, seen, object });
    }

    /// The UID of a sandbox that another kubelet left for this very pod. Only for the first delivery, and only for
    /// pods that mainstay has never had: later, a sandbox of this name is the remainder of a pod that was deleted.
    fn sandbox_uid(&self, key: &HeldKey, pod: &Pod) -> Option<PodUid> {
        let observed = self.deliver??;
        if self.begun || self.held.keys().any(|held| held.identity == key.identity) {
            return None;
        }
        let full_name = FullName::new(pod.namespace_ref(), pod.name_ref());
        observed
            .pods
            .values()
            .filter(|pod| pod.full_name == full_name)
            .filter_map(|pod| {
                let sandbox = pod.sandboxes.first()?;
                let same_source = sandbox.source.as_deref() == Some(key.source.as_str());
                same_source.then_some(((sandbox.ready, sandbox.created_at), &pod.uid))
            })
            .max_by_key(|(newest, _)| *newest)
            .map(|(_, uid)| uid.clone())
    }

    /// Two pods of one UID would be one pod to the runtime.
    fn claim_uid(&mut self, key: &HeldKey, uid: Option<&PodUid>) -> Result<(), Vec<String>> {
        let Some(uid) = uid.filter(|uid| !uid.as_str().is_empty()) else { return Ok(()) };
        if let Some((other, origin)) = self.uids.get(uid) {
            return Err(vec![format!(
                "metadata.uid: Duplicate value: {:?}: {other} in {origin} has it as well; give each its own",
                uid.as_str()
            )]);
        }
        self.uids.insert(uid.clone(), (key.identity.clone(), Arc::clone(&key.origin)));
        Ok(())
    }

    /// Keeps the last good version of a document, if there is one and nobody else has its object or UID.
    fn keep(&mut self, key: &HeldKey) -> bool {
        let Some(held) = self.held.get(key) else { return false };
        if self.kept.contains(key) {
            return true;
        }
        if self.taken.contains_key(&key.identity) {
            self.displaced.insert(key.clone());
            return false;
        }
        let uid = held.uid.clone();
        let claimed_already = self
            .uids
            .get(&uid)
            .is_some_and(|(identity, origin)| *identity == key.identity && *origin == key.origin);
        if !claimed_already && self.claim_uid(key, Some(&uid)).is_err() {
            self.displaced.insert(key.clone());
            return false;
        }
        self.taken.insert(key.identity.clone(), Arc::clone(&key.origin));
        self.kept.insert(key.clone());
        true
    }

    /// Keeps everything of a place that nobody has claimed yet.
    fn keep_rest(&mut self, source: PodSource, origin: &Arc<str>) -> bool {
        let of_this_place: Vec<HeldKey> =
            self.held.keys().filter(|key| key.source == source && key.origin == *origin).cloned().collect();
        let mut any = false;
        for key in of_this_place {
            any |= !self.kept.contains(&key) && self.keep(&key);
        }
        any
    }

    /// Removes what no document stands for any more. A source that has not delivered has removed nothing yet.
    fn strike_out(&mut self, delivered: Delivered) {
        let waiting: Vec<HeldKey> =
            self.held.keys().filter(|key| !delivered.by(key.source)).cloned().collect();
        for key in waiting {
            self.keep(&key);
        }
        if self.deliver.is_none() {
            return;
        }
        let gone: Vec<HeldKey> = self
            .held
            .keys()
            .filter(|key| !self.kept.contains(*key) && !self.displaced.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            if let Some(held) = self.held.remove(&key) {
                let (object, origin) = (key.identity.to_string(), Arc::clone(&key.origin));
                self.consequences.news.push(News::Removed { object, uid: held.uid, origin });
            }
            self.consequences.records.push(RecordChange::Remove(key));
        }
    }

    fn rule(&mut self, origin: &str, object: Option<String>, ruling: Ruling) {
        self.verdicts.push(FileVerdict { path: PathBuf::from(origin), object, ruling, since: self.now });
    }

    /// Lets unchanged rulings stand since when they stood, and tells about the others. One that an earlier life has found
    /// as well stands since then, and is told once in this life all the same.
    fn tell(&mut self, verdicts: &mut [FileVerdict], before: &[FileVerdict], earlier: &[FileVerdict]) {
        let (before, earlier) = (by_document(before), by_document(earlier));
        for verdict in verdicts {
            let of_this = before.get(&(verdict.path.as_os_str(), &verdict.object));
            let in_earlier_life = earlier
                .get(&(verdict.path.as_os_str(), &verdict.object))
                .filter(|_| of_this.is_none())
                .and_then(|of_this| of_this.iter().find(|old| old.ruling == verdict.ruling));
            if let Some(old) = in_earlier_life {
                verdict.since = old.since;
            }
            if let Some(old) = of_this.into_iter().flatten().find(|old| old.ruling == verdict.ruling) {
                verdict.since = old.since;
                continue;
            }
            let origin = verdict.path.display().to_string();
            let object = verdict.object.clone();
            match &verdict.ruling {
                Ruling::Rejected { problems, previous_kept } => {
                    self.consequences.events.push(Event {
                        target: self.event_target(&origin, object.as_deref()),
                        kind: EventKind::Warning,
                        reason: "FailedValidation".into(),
                        message: event_message(&origin, object.as_deref(), problems, *previous_kept),
                        time: self.now,
                    });
                    let (problems, previous_kept) = (problems.clone(), *previous_kept);
                    self.consequences.news.push(News::Rejected { object, origin, problems, previous_kept });
                }
                Ruling::Accepted { warnings } if !warnings.is_empty() => {
                    let warnings = warnings.clone();
                    self.consequences.news.push(News::Warned { object, origin, warnings });
                }
                Ruling::Accepted { .. } | Ruling::Ignored { .. } => {}
            }
        }
    }

    /// The pod that the object is or would be; the node when it is none.
    fn event_target(&self, origin: &str, object: Option<&str>) -> EventTarget {
        let Some((namespace, name)) = object.and_then(|object| object.strip_prefix("Pod ")?.split_once('/'))
        else {
            return EventTarget::Node;
        };
        let held = self.held.iter().find(|(key, _)| {
            *key.origin == *origin && key.identity.namespace == namespace && key.identity.name == name
        });
        EventTarget::Pod {
            uid: held.map_or_else(|| PodUid::from(""), |(_, held)| held.uid.clone()),
            full_name: FullName::new(namespace, &format!("{name}-{}", self.node_name.to_lowercase())),
            field_path: None,
        }
    }
}

fn by_document(verdicts: &[FileVerdict]) -> BTreeMap<(&OsStr, &Option<String>), Vec<&FileVerdict>> {
    let mut documents = BTreeMap::<_, Vec<&FileVerdict>>::new();
    for verdict in verdicts {
        documents.entry((verdict.path.as_os_str(), &verdict.object)).or_default().push(verdict);
    }
    documents
}

impl Entry {
    fn problems(&self) -> Vec<String> {
        match &self.state {
            EntryState::Rejected(problems) => problems.clone(),
            // A fit document has a name, and so an identity.
            EntryState::Candidate(_) | EntryState::Taken => vec!["metadata.name: Required value".to_owned()],
        }
    }
}

/// What is said of a pod that somebody else runs under the name of one of ours.
fn stranger(pod: &Pod, uid: &PodUid) -> String {
    let (namespace, name) = (pod.namespace_ref(), pod.name_ref());
    format!(
        "when this was first read, another agent's pod was in the runtime as {namespace}/{name} (UID {uid}); it is left alone \
         and this one runs beside it; stop one of them, or rename this one, if they want the same ports or files"
    )
}

fn none_of(problems: Vec<mainstay_podspec::Problem>) -> Result<(), Vec<String>> {
    if problems.is_empty() { Ok(()) } else { Err(problems.iter().map(ToString::to_string).collect()) }
}

fn event_message(origin: &str, object: Option<&str>, problems: &[String], previous_kept: bool) -> String {
    let what = object.map(|object| format!("{object} in ")).unwrap_or_default();
    let kept = if previous_kept { " (the last good version is kept)" } else { "" };
    format!("{what}{origin} is rejected{kept}: {}", problems.join("; "))
}
