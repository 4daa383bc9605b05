//! `/pods?watch=1`: all pods, then what changes.
//!
//! A watcher remembers one thing, the snapshot that it has been told of; all that keep up share it, and the lines of the
//! step to the next one are made once for all of them. One that is slow steps from where it is to the newest, so nothing
//! queues up. Where a watcher was told "so far" (a bookmark), a light record of that snapshot is kept for a while, by
//! which it can come back and be told what it missed.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use mainstay_types::{FullName, NodeSnapshot, PodUid, PodView};
use tokio::sync::watch;

use crate::{body::Slot, selector::Selection};

/// How often a watch that has nothing to tell says so, which is also how a client that is gone is noticed.
pub(crate) const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// How many bookmarked snapshots can be resumed from.
const MARKS: usize = 32;
/// Lines are sent in pieces of at least this size. What a slow client has not taken yet is kept as a list of pieces, and the
/// list's room is kept with the connection.
const PIECE_BYTES: usize = 32 << 10;
/// How many steps are kept: those who are behind by one or two take the same ones as others before them.
const STEPS: usize = 4;

/// What watchers share.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The newest steps that were made.
    steps: VecDeque<Arc<Step>>,
    /// The lines by which watchers of everything begin, of the newest snapshot that somebody began with. They are kept by
    /// those who began with them, until something changes.
    initial: Option<(u64, Weak<[Bytes]>)>,
    marks: VecDeque<(u64, Selection, Arc<Mark>)>,
}

/// From one snapshot to a later one.
#[derive(Debug)]
struct Step {
    from: u64,
    to: u64,
    changes: Vec<Change>,
    /// All their lines, for those who watch all pods.
    pieces: Vec<Bytes>,
}

/// What became of a pod.
#[derive(Debug)]
struct Change {
    before: Option<Arc<PodView>>,
    after: Option<Arc<PodView>>,
    /// Unless a selection makes another of it.
    line: Bytes,
}

/// The selected pods of a snapshot, in as few words as will do to tell the difference: name and hash by UID. Who was told of
/// others has another one, because a pod that is now selected may not have been then.
type Mark = HashMap<PodUid, (FullName, u64)>;

/// The version is not known (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired;

/// A watch that is about to begin.
#[derive(Debug)]
pub(crate) struct Watch {
    snapshot: Arc<NodeSnapshot>,
    /// What is told first.
    initial: Initial,
    selection: Selection,
    /// Versions count from here, so that those of an earlier process mean nothing.
    base: u64,
}

#[derive(Debug)]
enum Initial {
    Everything,
    Since(Arc<Mark>),
}

impl Feed {
    /// Prepares a watch of everything, or of what happened since a version that a bookmark named.
    pub(crate) fn begin(
        &self,
        snapshot: Arc<NodeSnapshot>,
        selection: Selection,
        base: u64,
        since: Option<u64>,
    ) -> Result<Watch, Expired> {
        let initial = match since {
            None => Initial::Everything,
            Some(version) => {
                let generation = version.checked_sub(base).ok_or(Expired)?;
                let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                let mark =
                    shared.marks.iter().find(|(marked, of, _)| (*marked, of) == (generation, &selection));
                Initial::Since(Arc::clone(&mark.ok_or(Expired)?.2))
            }
        };
        Ok(Watch { snapshot, initial, selection, base })
    }

    /// The step between two snapshots, made once for all who take it.
    fn step(&self, from: &NodeSnapshot, to: &NodeSnapshot) -> Arc<Step> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (from.generation, to.generation);
        if let Some(step) = shared.steps.iter().find(|step| (step.from, step.to) == wanted) {
            return Arc::clone(step);
        }
        let step = Arc::new(Step::between(from, to));
        if shared.steps.len() == STEPS {
            shared.steps.pop_front();
        }
        shared.steps.push_back(Arc::clone(&step));
        step
    }

    /// The lines of all pods of a snapshot, made once for all who begin with it at about the same time.
    fn initial(&self, snapshot: &NodeSnapshot) -> Arc<[Bytes]> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = shared.initial.as_ref().filter(|(generation, _)| *generation == snapshot.generation);
        if let Some(lines) = kept.and_then(|(_, lines)| lines.upgrade()) {
            return lines;
        }
        let lines = snapshot.pods.iter().map(|view| event("ADDED", &view.json));
        let lines: Arc<[Bytes]> = pieces(lines).into();
        shared.initial = Some((snapshot.generation, Arc::downgrade(&lines)));
        lines
    }

    /// Remembers a snapshot that somebody is told the version of.
    fn mark(&self, snapshot: &NodeSnapshot, selection: &Selection) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.marks.iter().any(|(marked, of, _)| (*marked, of) == (snapshot.generation, selection)) {
            return;
        }
        if shared.marks.len() == MARKS {
            shared.marks.pop_front();
        }
        let mark = snapshot
            .pods
            .iter()
            .filter(|view| selection.matches(view))
            .map(|view| (view.uid.clone(), (view.full_name.clone(), hash(&view.json))))
            .collect();
        shared.marks.push_back((snapshot.generation, selection.clone(), Arc::new(mark)));
    }
}

impl Watch {
    /// Tells until the snapshots end.
    pub(crate) async fn run(
        mut self,
        feed: &Feed,
        mut snapshots: watch::Receiver<Option<Arc<NodeSnapshot>>>,
        slot: &Slot,
    ) {
        let mut initial = self.tell_initial(feed, slot).await;
        loop {
            let newest = snapshots.borrow_and_update().clone().unwrap_or_else(|| Arc::clone(&self.snapshot));
            if newest.generation != self.snapshot.generation {
                let step = feed.step(&self.snapshot, &newest);
                self.snapshot = newest;
                drop(initial.take());
                self.tell(&step, slot).await;
                continue;
            }
            // Cancel safe: `changed` only marks the value as seen, and it is read right after.
            tokio::select! {
                changed = snapshots.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = tokio::time::sleep(BOOKMARK_PERIOD) => {
                    drop(initial.take());
                    self.bookmark(feed, slot, false).await;
                }
            }
        }
    }

    async fn tell(&self, step: &Step, slot: &Slot) {
        if self.selection.is_all() {
            for piece in &step.pieces {
                slot.put(piece.clone()).await;
            }
            return;
        }
        for line in step.changes.iter().filter_map(|change| change.line_for(&self.selection)) {
            slot.put(line).await;
        }
    }

    /// Gives the lines that others can begin with as well.
    async fn tell_initial(&mut self, feed: &Feed, slot: &Slot) -> Option<Arc<[Bytes]>> {
        let snapshot = Arc::clone(&self.snapshot);
        let since = match std::mem::replace(&mut self.initial, Initial::Everything) {
            Initial::Everything => None,
            Initial::Since(mark) => Some(mark),
        };
        if since.is_none() && self.selection.is_all() {
            let lines = feed.initial(&snapshot);
            for line in lines.iter() {
                slot.put(line.clone()).await;
            }
            self.bookmark(feed, slot, true).await;
            return Some(lines);
        }
        let known = |view: &PodView| since.as_ref().and_then(|mark| mark.get(&view.uid));
        let now: HashMap<&str, &Arc<PodView>> = snapshot.uids();
        for (uid, (name, _)) in since.iter().flat_map(|mark| mark.iter()) {
            if !now.get(uid.as_str()).is_some_and(|view| self.selection.matches(view)) {
                slot.put(event("DELETED", &remains(uid, name))).await;
            }
        }
        for view in snapshot.pods.iter().filter(|view| self.selection.matches(view)) {
            let kind = match known(view) {
                None => "ADDED",
                Some((_, before)) if *before == hash(&view.json) => continue,
                Some(_) => "MODIFIED",
            };
            slot.put(event(kind, &view.json)).await;
        }
        self.bookmark(feed, slot, since.is_none()).await;
        None
    }

    async fn bookmark(&self, feed: &Feed, slot: &Slot, ends_initial: bool) {
        feed.mark(&self.snapshot, &self.selection);
        slot.put(bookmark(self.base + self.snapshot.generation, ends_initial)).await;
    }
}

impl Step {
    /// First those that are gone, then the rest in the list's order.
    fn between(from: &NodeSnapshot, to: &NodeSnapshot) -> Self {
        let (before, after) = (from.uids(), to.uids());
        let gone = from.pods.iter().filter(|view| !after.contains_key(view.uid.as_str()));
        let mut changes: Vec<Change> = gone
            .map(|view| Change {
                before: Some(Arc::clone(view)),
                after: None,
                line: event("DELETED", &view.json),
            })
            .collect();
        for view in &to.pods {
            let known = before.get(view.uid.as_str()).copied();
            if known.is_some_and(|known| Arc::ptr_eq(known, view) || known.json == view.json) {
                continue;
            }
            let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
            changes.push(Change {
                before: known.cloned(),
                after: Some(Arc::clone(view)),
                line: event(kind, &view.json),
            });
        }
        let pieces = pieces(changes.iter().map(|change| change.line.clone()));
        Self { from: from.generation, to: to.generation, changes, pieces }
    }
}

impl Change {
    /// What somebody is told who watches only these: a pod that comes into the selection is new, one that leaves it is gone.
    fn line_for(&self, selection: &Selection) -> Option<Bytes> {
        let selected = |view: &Option<Arc<PodView>>| view.clone().filter(|view| selection.matches(view));
        match (selected(&self.before), selected(&self.after)) {
            (None, None) => None,
            (None, Some(after)) => Some(event("ADDED", &after.json)),
            (Some(before), None) => Some(event("DELETED", &before.json)),
            (Some(_), Some(_)) => Some(self.line.clone()),
        }
    }
}

/// Lines put together; one that is alone is not copied.
fn pieces(lines: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut gathered: Vec<Bytes> = Vec::new();
    let mut length = 0;
    let mut close = |gathered: &mut Vec<Bytes>| match gathered.as_slice() {
        [] => {}
        [_] => pieces.append(gathered),
        _ => pieces.push(std::mem::take(gathered).concat().into()),
    };
    for line in lines {
        length += line.len();
        gathered.push(line);
        if length >= PIECE_BYTES {
            close(&mut gathered);
            length = 0;
        }
    }
    close(&mut gathered);
    pieces
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// What is left to say of a pod that went while nobody looked.
fn remains(uid: &PodUid, name: &FullName) -> Vec<u8> {
    let pod = serde_json::json!({
        "metadata": {"name": *name.name, "namespace": *name.namespace, "uid": uid.as_str()},
        "spec": {"containers": null},
        "status": {},
    });
    pod.to_string().into_bytes()
}

/// One line of a watch. Items of a list carry no kind, objects of a watch do: clients decode them by it.
pub(crate) fn event(kind: &str, pod: &[u8]) -> Bytes {
    const TYPE: &[u8] = br#""kind":"Pod","apiVersion":"v1","#;
    let mut line = Vec::with_capacity(pod.len() + 80);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    match pod.strip_prefix(b"{") {
        Some(rest) if !pod.starts_with(br#"{"kind""#) && rest.first() != Some(&b'}') => {
            line.push(b'{');
            line.extend_from_slice(TYPE);
            line.extend_from_slice(rest);
        }
        _ => line.extend_from_slice(pod),
    }
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Says how far the watcher is; the annotation marks the end of the initial pods, as the Kubernetes API does it.
fn bookmark(version: u64, ends_initial: bool) -> Bytes {
    let annotations =
        if ends_initial { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{version}\"{annotations}}},\"spec\":{{\"containers\":null}},\"status\":{{}}}}}}\n"
    )
    .into()
}
