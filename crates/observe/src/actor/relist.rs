//! The relist: everything is listed, and what differs is read. It goes on beside the actor's other work, step by step, so
//! that a runtime that is slow about one pod, or about the list, holds up nothing else.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use k8s_cri::v1 as cri;
use mainstay_cri::{CriError, Lists};
use mainstay_types::{FullName, ObservedPod, PodUid, RuntimeHealth, labels};
use tokio::time::error::Elapsed;
use tracing::{debug, warn};

use super::{Actor, FIRST_LIST_PATIENCE, PARALLEL_READS, STUCK_PAUSE, Stuck};
use crate::{health, read};

/// A relist under way.
pub(super) struct Relist {
    begun: Instant,
    /// What is in the lists; `None` until they are there.
    listed: Option<Listing>,
}

struct Listing {
    print: Option<u64>,
    uids: HashSet<PodUid>,
    waiting: Vec<(PodUid, Listed)>,
    in_flight: usize,
    /// Held back for the first list, which is shown whole or not at all.
    changes: Vec<(PodUid, Option<ObservedPod>)>,
    /// Pods that could not be read.
    unread: HashMap<PodUid, FullName>,
}

/// Something of a relist that has come to its end.
pub(super) enum Progress {
    /// The lists are there. Before the runtime's name is known, it is asked for at the same time.
    Lists(Result<Lists, CriError>, Option<Result<RuntimeHealth, CriError>>),
    /// One of the pods that differ has been read.
    Pod(PodUid, FullName, u64, Result<Result<Option<ObservedPod>, CriError>, Elapsed>),
}

impl Actor {
    pub(super) fn is_relisting(&self) -> bool {
        self.relist.is_some()
    }

    /// Begins to list everything.
    pub(super) fn begin_relist(&mut self, events: bool) {
        self.relist = Some(Relist { begun: Instant::now(), listed: None });
        let (cri, deadline) = (self.config.cri.clone(), self.config.health_deadline);
        let known = self.state.borrow().runtime.clone();
        let unnamed = known.name.is_empty();
        self.relist_work.push(Box::pin(async move {
            let health = async {
                if !unnamed {
                    return None;
                }
                Some(health::check(&cri, &known, events, deadline).await)
            };
            let (lists, health) = tokio::join!(cri.lists(), health);
            Progress::Lists(lists, health)
        }));
    }

    /// Takes one step on. Whether the relist has come to its end.
    pub(super) fn proceed(&mut self, progress: Progress) -> bool {
        let Some(mut relist) = self.relist.take() else { return true };
        match progress {
            Progress::Lists(lists, health) => {
                if let Some(health) = health {
                    self.take_health(health);
                }
                match lists {
                    Ok(lists) => self.take_lists(&mut relist, lists),
                    Err(error) => self.unreachable(&error),
                }
            }
            Progress::Pod(uid, name, fingerprint, result) => {
                self.take_listed_pod(&mut relist, uid, name, fingerprint, result);
            }
        }
        let begun = relist.begun;
        match relist.listed.take() {
            None => {
                self.count_relist(begun);
                true
            }
            Some(listing) if listing.in_flight > 0 => {
                self.relist = Some(Relist { listed: Some(listing), begun });
                false
            }
            Some(listing) => {
                self.finish_relist(begun, listing);
                self.count_relist(begun);
                true
            }
        }
    }

    fn count_relist(&mut self, begun: Instant) {
        let counters = &self.config.counters;
        counters.relists.observe(begun.elapsed());
        if let Some(before) = self.relisted.replace(begun) {
            counters.relist_intervals.observe(begun.duration_since(before));
        }
        counters.last_relist.set(u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0));
    }

    /// Finds out what of the lists must be read.
    fn take_lists(&mut self, relist: &mut Relist, lists: Lists) {
        let print = lists.print();
        if self.is_settled(print) {
            self.apply(Vec::new(), Some(relist.begun), None);
            return;
        }
        let listed = match self.config.cri.decode(lists) {
            Ok((sandboxes, containers)) => group(sandboxes, containers),
            Err(error) => {
                self.unreachable(&error);
                return;
            }
        };
        self.settled = None;
        let uids: HashSet<PodUid> = listed.keys().cloned().collect();
        self.stuck.retain(|uid, _| uids.contains(uid));
        let now = Instant::now();
        // Of those that were stuck a moment ago nothing better is known.
        let unread = self.stuck.iter().filter(|(_, stuck)| now < stuck.until);
        let unread: HashMap<PodUid, FullName> =
            unread.map(|(uid, stuck)| (uid.clone(), stuck.name.clone())).collect();
        let waiting = {
            let state = self.state.borrow();
            let differs = |uid: &PodUid, entry: &Listed| {
                !state.pods.contains_key(uid) || self.fingerprints.get(uid) != Some(&entry.fingerprint)
            };
            let listed = listed.into_iter();
            listed.filter(|(uid, entry)| !unread.contains_key(uid) && differs(uid, entry)).collect()
        };
        let mut listing = Listing { print, uids, waiting, in_flight: 0, changes: Vec::new(), unread };
        while listing.in_flight < PARALLEL_READS && self.read_next(relist.begun, &mut listing) {}
        relist.listed = Some(listing);
    }

    /// Begins to read the next of the pods that differ. Whether there was one.
    fn read_next(&mut self, begun: Instant, listing: &mut Listing) -> bool {
        let Some((uid, entry)) = listing.waiting.pop() else { return false };
        listing.in_flight += 1;
        let before = self.state.borrow().pods.get(&uid).cloned();
        let (cri, deadline) = (self.config.cri.clone(), self.config.read_deadline);
        let counters = Arc::clone(&self.config.counters);
        self.relist_work.push(Box::pin(async move {
            let name = entry.full_name();
            let read = read::listed(&cri, &uid, entry.sandboxes, entry.containers, before.as_deref(), begun);
            let read_at = Instant::now();
            let result = tokio::time::timeout(deadline, read).await;
            counters.pod_reads.observe(read_at.elapsed());
            Progress::Pod(uid, name, entry.fingerprint, result)
        }));
        true
    }

    fn take_listed_pod(
        &mut self,
        relist: &mut Relist,
        uid: PodUid,
        name: FullName,
        fingerprint: u64,
        result: Result<Result<Option<ObservedPod>, CriError>, Elapsed>,
    ) {
        let begun = relist.begun;
        let Some(listing) = relist.listed.as_mut() else { return };
        listing.in_flight -= 1;
        match result {
            Ok(Ok(pod)) => {
                self.stuck.remove(&uid);
                let (first, newest) = {
                    let state = self.state.borrow();
                    let newest = state.pods.get(&uid).is_none_or(|known| known.read_at <= begun);
                    (state.listed_at.is_none(), newest)
                };
                // One that was read since may have seen what these lists do not know.
                if newest {
                    self.fingerprints.insert(uid.clone(), fingerprint);
                }
                if pod.is_none() {
                    self.fingerprints.remove(&uid);
                }
                if first {
                    listing.changes.push((uid, pod));
                } else if pod.is_some() {
                    self.apply(vec![(uid, pod)], None, None);
                }
            }
            Ok(Err(error)) => {
                debug!(pod = %name, pod.uid = %uid, %error, "cannot read a pod from the runtime");
                self.fingerprints.remove(&uid);
                listing.unread.insert(uid, name);
            }
            Err(_) => {
                self.note_stuck(&uid, &name);
                self.fingerprints.remove(&uid);
                listing.unread.insert(uid, name);
            }
        }
        self.read_next(begun, listing);
    }

    /// The runtime did not answer about a pod in time.
    pub(super) fn note_stuck(&mut self, uid: &PodUid, name: &FullName) {
        let times = self.stuck.get(uid).map_or(0, |stuck| stuck.times).saturating_add(1);
        if times == 1 {
            warn!(pod = %name, pod.uid = %uid, "the runtime does not answer about this pod; the others go on without it");
        }
        let until = Instant::now() + STUCK_PAUSE.delay(times);
        self.stuck.insert(uid.clone(), Stuck { name: name.clone(), times, until });
    }

    /// Everything that is listed has been read, or cannot be.
    fn finish_relist(&mut self, begun: Instant, listing: Listing) {
        let Listing { print, uids, mut changes, mut unread, .. } = listing;
        // The very first list counts only when everything in it could be read, and the runtime's name, which is shown
        // with each container ID, is known: nothing partial is ever published as if it were whole. What cannot be read
        // for long is named as such, so that one stuck pod does not hide all others for ever.
        let (first, named, mut silent) = {
            let state = self.state.borrow();
            // Whoever was read since is not silent; whoever is gone neither.
            unread.retain(|uid, _| state.pods.get(uid).is_none_or(|known| known.read_at < begun));
            let gone = state.pods.iter().filter(|(uid, pod)| !uids.contains(*uid) && pod.read_at < begun);
            changes.extend(gone.map(|(uid, _)| (uid.clone(), None)));
            let mut silent = state.silent.clone();
            silent.retain(|uid, _| uids.contains(uid) && unread.contains_key(uid));
            (state.listed_at.is_none(), !state.runtime.name.is_empty(), silent)
        };
        for (uid, _) in changes.iter().filter(|(_, pod)| pod.is_none()) {
            self.fingerprints.remove(uid);
        }
        let tried = *self.first_tried.get_or_insert(begun);
        if !first || begun.duration_since(tried) >= FIRST_LIST_PATIENCE {
            silent.extend(unread.drain());
        }
        if first && !(unread.is_empty() && named) {
            return;
        }
        if first && !silent.is_empty() {
            let pods: Vec<String> = silent.values().map(ToString::to_string).collect();
            warn!(
                ?pods,
                "the runtime does not answer about some pods; the node goes on without knowing how they are"
            );
        }
        self.settled = print.filter(|_| silent.is_empty()).map(|print| (print, uids.len()));
        self.apply(changes, Some(begun), Some(silent));
    }

    /// Whether lists with this print hold nothing new: they are those that were last taken in, and nothing was read, or not
    /// answered, since.
    fn is_settled(&self, print: Option<u64>) -> bool {
        let Some((last, pods)) = self.settled else { return false };
        let state = self.state.borrow();
        let all_read = self.fingerprints.len() == pods && state.pods.len() == pods;
        print == Some(last) && all_read && self.stuck.is_empty() && state.silent.is_empty()
    }
}

#[derive(Default)]
struct Listed {
    sandboxes: Vec<cri::PodSandbox>,
    containers: Vec<cri::Container>,
    fingerprint: u64,
}

impl Listed {
    fn full_name(&self) -> FullName {
        let labels =
            self.sandboxes.first().map(|s| &s.labels).or_else(|| self.containers.first().map(|c| &c.labels));
        let label =
            |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str).unwrap_or_default();
        FullName::new(label(labels::POD_NAMESPACE), label(labels::POD_NAME))
    }
}

/// Sorts two lists by pod. Objects without a usable pod UID are nobody's pods.
fn group(sandboxes: Vec<cri::PodSandbox>, containers: Vec<cri::Container>) -> HashMap<PodUid, Listed> {
    let mut pods: HashMap<PodUid, Listed> = HashMap::new();
    for sandbox in sandboxes {
        let Some(uid) = labels::owner(&sandbox.labels) else { continue };
        let entry = pods.entry(uid).or_default();
        entry.fingerprint = entry.fingerprint.wrapping_add(hash(&(&sandbox.id, sandbox.state)));
        entry.sandboxes.push(sandbox);
    }
    for container in containers {
        let Some(uid) = labels::owner(&container.labels) else { continue };
        let entry = pods.entry(uid).or_default();
        entry.fingerprint = entry.fingerprint.wrapping_add(hash(&(&container.id, container.state)));
        entry.containers.push(container);
    }
    pods
}

/// The order in which the runtime lists must not matter, so the parts are added up.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
