//! `v1alpha1.Pods`: this node's pods, whole, as a list and as events.
//!
//! A pod is encoded once, when somebody first wants it, and sent to all who do, in pieces that are copied together when there is room for them
//! (`piece`); those that a watch of whole pods begins with are copied together once for all who begin before the next change. Watchers are told by one feed: each has a queue of steps, a step being all that changed from one snapshot to the next; whose queue is
//! full is let go with all that waits for him, so that nobody waits for him and nothing piles up. However many do not read, for all of them no more is
//! kept than what there was during the last hundred steps, and for each a piece or two and the end of the event that he is being sent. Who does
//! not read a list keeps what there was when he asked, until his patience is over (`deadline`).

use std::{
    collections::{HashMap, VecDeque},
    fmt, iter, mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderValue};
use mainstay_proto::{
    core::{Mask, encode_pod},
    pods::EventType,
};
use mainstay_snapshot::SnapshotReader;
use mainstay_types::{Counters, NodeSnapshot, PodExt, PodView};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use serde_json::{Map, Value};
use tokio::sync::Notify;

use crate::{
    metrics,
    peer::MAX_MASKS,
    piece::Cursor,
    ready,
    wire::{Answer, Code, Status, put_prefix},
};

/// The metadata key of a field mask.
const FIELD_MASK: &str = "x-kubernetes-fieldmask";
/// Steps that may wait for a watcher, as upstream's events.
const QUEUE: usize = 100;
/// Bytes that are kept of a pod for those who ask with masks, beside the newest; one that was let go is made anew for whoever asks.
const KEPT_MASKED: usize = 32 << 10;
/// How long encoded pods are kept after somebody asked, if nobody watches.
const KEPT: Duration = Duration::from_secs(60);

/// The service.
pub(crate) struct Pods {
    snapshots: SnapshotReader,
    counters: Arc<Counters>,
    feed: Mutex<Feed>,
}

struct Feed {
    /// The newest that somebody wanted.
    list: Option<Arc<List>>,
    watchers: Vec<Weak<Queue>>,
    used: Instant,
    closed: bool,
}

/// The pods of a snapshot.
struct List {
    generation: u64,
    /// By UID.
    entries: Vec<Arc<Entry>>,
    /// What watches of whole pods begin with; nothing once there is a newer list: whoever is in the middle of this one goes on by himself, so that
    /// it is there once, however many there are who do not read.
    beginning: Mutex<Option<Beginning>>,
}

/// Pieces, as far as somebody has been told them, and how far each goes.
type Beginning = Vec<(Bytes, Cursor)>;

/// A pod and its bytes.
struct Entry {
    view: Arc<PodView>,
    whole: OnceLock<Encoded>,
    masked: Mutex<VecDeque<(Arc<Mask>, Bytes)>>,
}

/// Bytes, unless they cannot be made: then that is told, and not a pod with nothing in it.
type Encoded = Result<Bytes, Status>;

/// From one list to the next.
struct Step {
    changes: Vec<Change>,
}

/// What became of a pod.
enum Change {
    Added(Arc<Entry>),
    Modified { before: Arc<Entry>, after: Arc<Entry> },
    Deleted(Bytes),
}

/// The masks in a call's metadata, as they came.
pub(crate) fn masks(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(FIELD_MASK).iter().map(HeaderValue::as_bytes)
}

/// The mask that a call's metadata names.
pub(crate) fn mask(headers: &HeaderMap) -> Result<Option<Arc<Mask>>, Status> {
    let mut paths: Vec<&str> = Vec::new();
    for value in headers.get_all(FIELD_MASK) {
        let text = value.to_str();
        paths.push(text.map_err(|_| Status::new(Code::InvalidArgument, "field mask: not readable text"))?);
    }
    if paths.is_empty() {
        return Ok(None);
    }
    let mask = Mask::parse(&paths.join(","));
    match mask {
        Ok(mask) => Ok(Some(Arc::new(mask))),
        Err(error) => Err(Status::new(Code::InvalidArgument, error.to_string())),
    }
}

impl Pods {
    pub(crate) fn new(snapshots: SnapshotReader, counters: Arc<Counters>) -> Self {
        counters.begin(metrics::PODS_DROPPED, &[]);
        let feed = Feed { list: None, watchers: Vec::new(), used: Instant::now(), closed: false };
        Self { snapshots, counters, feed: Mutex::new(feed) }
    }

    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods of the newest snapshot. Whoever sees it first also tells the watchers.
    fn newest(&self, feed: &mut Feed) -> Result<Arc<List>, Status> {
        let snapshot = ready::whole(self.snapshots.borrow().as_ref())?;
        feed.used = Instant::now();
        Ok(feed.advance(&snapshot, &self.counters))
    }

    pub(crate) fn list(&self, mask: Option<Arc<Mask>>) -> Result<Answer, Status> {
        let list = self.newest(&mut self.feed())?;
        // Every pod is encoded here: what cannot be told is known before anything is.
        let length = list.answer_len(mask.as_ref())?;
        Ok(pieces(move |at, head| list.part(at, length, mask.as_ref(), head)))
    }

    pub(crate) fn get(&self, uid: &str, mask: Option<&Arc<Mask>>) -> Result<Answer, Status> {
        let list = self.newest(&mut self.feed())?;
        let found = list.entries.iter().find(|entry| entry.view.uid.as_str() == uid);
        let entry =
            found.ok_or_else(|| Status::new(Code::NotFound, format!("pod with UID {uid} not found")))?;
        let pod = entry.bytes(mask)?;
        Ok(pieces(move |at, head| {
            if at > 0 {
                return Ok(None);
            }
            // `GetPodResponse`.
            let length = if pod.is_empty() { 0 } else { field_len(pod.len()) };
            if let Some(head) = head {
                put_prefix(head, length);
                if length > 0 {
                    put_field(head, 1, pod.len());
                }
            }
            Ok(Some(pod.clone()))
        }))
    }

    pub(crate) fn watch(&self, mask: Option<Arc<Mask>>) -> Result<Answer, Status> {
        let mut feed = self.feed();
        let list = self.newest(&mut feed)?;
        if feed.closed {
            return Err(closed());
        }
        let queue = Arc::new(Queue::new(list));
        feed.watchers.retain(|watcher| watcher.strong_count() > 0);
        feed.watchers.push(Arc::downgrade(&queue));
        drop(feed);
        let watcher = Watcher { queue, cursor: Cursor::default(), begun: 0, mask };
        Ok(Answer::Many(Box::pin(stream::unfold(watcher, |mut watcher| async move {
            let piece = watcher.next().await;
            Some((piece, watcher))
        }))))
    }

    /// Tells watchers what changes. Cancel safe: what was seen and not told is told by whoever looks next.
    pub(crate) async fn run(&self) {
        let mut snapshots = self.snapshots.clone();
        loop {
            let changed = match tokio::time::timeout(KEPT, snapshots.changed()).await {
                Ok(Ok(())) => snapshots.borrow_and_update().clone(),
                Ok(Err(_)) => return,
                Err(_) => None,
            };
            let mut feed = self.feed();
            feed.forget();
            if let Some(snapshot) = changed.filter(|_| !feed.watchers.is_empty()) {
                feed.advance(&snapshot, &self.counters);
            }
        }
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        let mut feed = self.feed();
        feed.closed = true;
        for queue in mem::take(&mut feed.watchers).iter().filter_map(Weak::upgrade) {
            queue.close();
        }
    }
}

impl Feed {
    /// Lets go of what nobody has asked for in a while.
    fn forget(&mut self) {
        if self.used.elapsed() <= KEPT {
            return;
        }
        match &self.list {
            Some(list) if !self.watchers.is_empty() => list.forget(Some(Beginning::new())),
            _ => self.list = None,
        }
    }

    fn advance(&mut self, snapshot: &NodeSnapshot, counters: &Counters) -> Arc<List> {
        if let Some(list) = self.list.as_ref().filter(|list| list.generation >= snapshot.generation) {
            return Arc::clone(list);
        }
        let known: HashMap<&str, &Arc<Entry>> = self
            .list
            .iter()
            .flat_map(|list| &list.entries)
            .map(|entry| (entry.view.uid.as_str(), entry))
            .collect();
        let mut entries: Vec<Arc<Entry>> = snapshot
            .pods
            .iter()
            .map(|view| match known.get(view.uid.as_str()) {
                Some(entry) if entry.view.json == view.json => Arc::clone(entry),
                _ => Arc::new(Entry::new(Arc::clone(view))),
            })
            .collect();
        entries.sort_by(|a, b| a.view.uid.cmp(&b.view.uid));
        let step = (!self.watchers.is_empty()).then(|| Step::between(&known, &entries));
        let beginning = Mutex::new(Some(Beginning::new()));
        let list = Arc::new(List { generation: snapshot.generation, entries, beginning });
        if let Some(before) = self.list.replace(Arc::clone(&list)) {
            before.forget(None);
        }
        if let Some(step) = step.filter(|step| !step.changes.is_empty()) {
            let step = Arc::new(step);
            self.watchers.retain(|watcher| {
                let Some(queue) = watcher.upgrade() else { return false };
                let has_room = queue.push(&step);
                if !has_room {
                    counters.add(metrics::PODS_DROPPED, &[]);
                }
                has_room
            });
        }
        list
    }
}

impl Step {
    /// First those that are gone, then the rest in the list's order.
    fn between(before: &HashMap<&str, &Arc<Entry>>, after: &[Arc<Entry>]) -> Self {
        let there: HashMap<&str, ()> = after.iter().map(|entry| (entry.view.uid.as_str(), ())).collect();
        let mut gone: Vec<_> = before.iter().filter(|(uid, _)| !there.contains_key(*uid)).collect();
        gone.sort_by_key(|(uid, _)| **uid);
        let mut changes: Vec<_> =
            gone.into_iter().map(|(_, entry)| Change::Deleted(remains(&entry.view))).collect();
        for entry in after {
            match before.get(entry.view.uid.as_str()) {
                None => changes.push(Change::Added(Arc::clone(entry))),
                Some(known) if Arc::ptr_eq(known, entry) => {}
                Some(known) if is_another_life(&known.view, &entry.view) => {
                    changes.push(Change::Deleted(remains(&known.view)));
                    changes.push(Change::Added(Arc::clone(entry)));
                }
                Some(known) => {
                    changes.push(Change::Modified { before: Arc::clone(known), after: Arc::clone(entry) });
                }
            }
        }
        Self { changes }
    }
}

/// Whether the pod has gone meanwhile, and another has come that has its UID: a file that was taken away and put back, say.
fn is_another_life(before: &PodView, after: &PodView) -> bool {
    let deleted = |view: &PodView| view.pod.metadata.deletion_timestamp.is_some();
    let begun = |view: &PodView| view.status.start_time.clone();
    (deleted(before) && !deleted(after)) || (begun(before).is_some() && begun(before) != begun(after))
}

/// What is said of a pod that is gone.
fn remains(view: &PodView) -> Bytes {
    let pod = serde_json::json!({"metadata": {
        "name": view.pod.name_ref(), "namespace": view.pod.namespace_ref(), "uid": view.uid.as_str(),
    }});
    encode_pod(&pod, None).into()
}

impl List {
    /// How long `ListPodsResponse` is.
    fn answer_len(&self, mask: Option<&Arc<Mask>>) -> Result<usize, Status> {
        self.entries.iter().map(|entry| Ok(field_len(entry.bytes(mask)?.len()))).sum()
    }

    /// A part of `ListPodsResponse`, which is so long: its prefix, then each pod.
    fn part(
        &self,
        at: usize,
        length: usize,
        mask: Option<&Arc<Mask>>,
        head: Option<&mut BytesMut>,
    ) -> Result<Option<Bytes>, Status> {
        let Some(at) = at.checked_sub(1) else {
            head.into_iter().for_each(|head| put_prefix(head, length));
            return Ok(Some(Bytes::new()));
        };
        let Some(entry) = self.entries.get(at) else { return Ok(None) };
        let pod = entry.bytes(mask)?;
        head.into_iter().for_each(|head| put_field(head, 1, pod.len()));
        Ok(Some(pod))
    }

    /// A part of what a watch begins with: each pod, then that this was all.
    fn first_part(
        &self,
        at: usize,
        mask: Option<&Arc<Mask>>,
        head: Option<&mut BytesMut>,
    ) -> Result<Option<Bytes>, Status> {
        let entry = self.entries.get(at);
        let kind = match entry {
            Some(_) => EventType::Added,
            None if at == self.entries.len() => EventType::InitialSyncComplete,
            None => return Ok(None),
        };
        let pod = entry.map(|entry| entry.bytes(mask)).transpose()?.unwrap_or_default();
        head.into_iter().for_each(|head| put_event(head, kind, pod.len()));
        Ok(Some(pod))
    }

    /// A piece of what watches of whole pods begin with, and how far it goes; `None` if everybody makes his own.
    fn first_piece(&self, at: usize) -> Result<Option<(Bytes, Cursor)>, Status> {
        let mut beginning = self.beginning();
        let Some(pieces) = beginning.as_mut().filter(|pieces| at <= pieces.len()) else { return Ok(None) };
        if let Some(made) = pieces.get(at) {
            return Ok(Some(made.clone()));
        }
        let mut cursor = pieces.last().map(|(_, cursor)| cursor.clone()).unwrap_or_default();
        let piece = cursor.fill(|at, head| self.first_part(at, None, head))?;
        pieces.push((piece.clone(), cursor.clone()));
        Ok(Some((piece, cursor)))
    }

    fn beginning(&self) -> MutexGuard<'_, Option<Beginning>> {
        self.beginning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the pieces go; there is this in their place.
    fn forget(&self, then: Option<Beginning>) {
        *self.beginning() = then;
    }
}

/// An answer of these parts.
fn pieces(
    part: impl Fn(usize, Option<&mut BytesMut>) -> Result<Option<Bytes>, Status> + Send + 'static,
) -> Answer {
    let mut cursor = Cursor::default();
    let pieces = iter::from_fn(move || {
        let piece = cursor.fill(&part);
        piece.map(|piece| (!piece.is_empty()).then_some(piece)).transpose()
    });
    Answer::Many(Box::pin(stream::iter(pieces)))
}

/// `WatchPodsEvent` with its prefix, but for the bytes of its pod; none is a length of 0.
fn put_event(out: &mut BytesMut, kind: EventType, pod: usize) {
    let body = if pod == 0 { 0 } else { field_len(pod) };
    put_prefix(out, 2 + body);
    encode_key(1, WireType::Varint, out);
    out.put_u8(kind as u8);
    if pod > 0 {
        put_field(out, 2, pod);
    }
}

/// How long a `bytes` field of a one-byte key is.
fn field_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// All of such a field but the bytes.
fn put_field(out: &mut BytesMut, number: u32, length: usize) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

impl Entry {
    fn new(view: Arc<PodView>) -> Self {
        Self { view, whole: OnceLock::new(), masked: Mutex::default() }
    }

    fn bytes(&self, mask: Option<&Arc<Mask>>) -> Encoded {
        let Some(mask) = mask else {
            let told = |status: &Status| tracing::error!(pod = %self.view.full_name, "{}", status.message);
            return self.whole.get_or_init(|| self.encode(None).inspect_err(told)).clone();
        };
        let mut kept = self.masked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(of, _)| of == mask) {
            // The one that was not asked for longest goes first.
            let found = kept.remove(at);
            kept.extend(found);
            return Ok(kept.back().map(|(_, bytes)| bytes.clone()).unwrap_or_default());
        }
        let bytes = self.encode(Some(mask))?;
        kept.push_back((Arc::clone(mask), bytes.clone()));
        let mut size: usize = kept.iter().map(|(_, bytes)| bytes.len()).sum();
        while kept.len() > MAX_MASKS || kept.len() > 1 && size > KEPT_MASKED {
            size -= kept.pop_front().map_or(0, |(_, bytes)| bytes.len());
        }
        Ok(bytes)
    }

    fn encode(&self, mask: Option<&Mask>) -> Encoded {
        // What the snapshot made is an object in JSON. Of anything else nobody may be told that it is a pod with nothing in it.
        match serde_json::from_slice::<Map<String, Value>>(&self.view.json) {
            Ok(pod) => Ok(encode_pod(&Value::Object(pod), mask).into()),
            Err(error) => {
                let uid = self.view.uid.as_str();
                let message =
                    format!("the pod with UID {uid} cannot be read as JSON, which is a bug: {error}");
                Err(Status::new(Code::Internal, message))
            }
        }
    }
}

/// What waits for a watcher. Beside it, and not in it, because whoever does not read is not asked for more: the feed takes away what was kept for him.
struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    /// What was there when the watch began, until all of it is told.
    initial: Option<Arc<List>>,
    /// What has changed since, the first of them until all of it is told.
    steps: VecDeque<Arc<Step>>,
    /// Nothing more will come.
    closed: bool,
}

/// What waits longest.
enum First {
    Initial(Arc<List>),
    Step(Arc<Step>),
    Nothing,
    Closed,
}

impl Queue {
    fn new(list: Arc<List>) -> Self {
        let waiting = Waiting { initial: Some(list), ..Waiting::default() };
        Self { waiting: Mutex::new(waiting), news: Notify::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room. If not, it is closed and nothing waits in it any more: the watcher has to begin anew whatever he is told of it.
    fn push(&self, step: &Arc<Step>) -> bool {
        let mut waiting = self.waiting();
        let has_room = waiting.steps.len() < QUEUE;
        if has_room {
            waiting.steps.push_back(Arc::clone(step));
        } else {
            *waiting = Waiting { closed: true, ..Waiting::default() };
        }
        drop(waiting);
        self.news.notify_one();
        has_room
    }

    /// What waits is told before the end.
    fn close(&self) {
        self.waiting().closed = true;
        self.news.notify_one();
    }

    fn first(&self) -> First {
        let waiting = self.waiting();
        match (&waiting.initial, waiting.steps.front()) {
            (Some(list), _) => First::Initial(Arc::clone(list)),
            (None, Some(step)) => First::Step(Arc::clone(step)),
            (None, None) if waiting.closed => First::Closed,
            (None, None) => First::Nothing,
        }
    }

    /// All of the first is told.
    fn pop(&self) {
        let mut waiting = self.waiting();
        if waiting.initial.take().is_none() {
            waiting.steps.pop_front();
        }
    }
}

/// A watch.
struct Watcher {
    queue: Arc<Queue>,
    /// How far the first in the queue has been told.
    cursor: Cursor,
    /// Pieces of what was there at the beginning that have been told.
    begun: usize,
    mask: Option<Arc<Mask>>,
}

impl Watcher {
    /// The next piece of the stream. Cancel safe: only the wait for another step is waited for.
    async fn next(&mut self) -> Encoded {
        loop {
            let first = self.queue.first();
            let (piece, parts) = match &first {
                First::Initial(list) => (self.begin(list)?, list.entries.len() + 1),
                First::Step(step) => (self.go_on(step)?, step.changes.len()),
                First::Nothing | First::Closed => (self.cursor.rest().unwrap_or_default(), usize::MAX),
            };
            if self.cursor.has_told(parts) {
                self.cursor.begin_anew();
                self.queue.pop();
            }
            if !piece.is_empty() {
                return Ok(piece);
            }
            match first {
                // What comes between the look and the wait ends the wait at once.
                First::Nothing => self.queue.news.notified().await,
                First::Closed => return Err(closed()),
                // All that there was is masked out.
                First::Initial(_) | First::Step(_) => {}
            }
        }
    }

    /// The next piece of what was there at the beginning. Where one ends depends on the list alone, so that a piece of one's own can follow one that is
    /// everybody's.
    fn begin(&mut self, list: &List) -> Encoded {
        let shared = if self.mask.is_none() { list.first_piece(self.begun)? } else { None };
        self.begun += 1;
        if let Some((piece, cursor)) = shared {
            self.cursor = cursor;
            return Ok(piece);
        }
        let mask = self.mask.as_ref();
        self.cursor.fill(|at, head| list.first_part(at, mask, head))
    }

    /// The next piece of a step: of its changes those that the mask lets through.
    fn go_on(&mut self, step: &Step) -> Encoded {
        let mask = self.mask.as_ref();
        self.cursor.fill(|at, head| {
            let (kind, pod) = match step.changes.get(at) {
                Some(Change::Added(entry)) => (EventType::Added, entry.bytes(mask)?),
                Some(Change::Deleted(remains)) => (EventType::Deleted, remains.clone()),
                Some(Change::Modified { before, after }) => {
                    let pod = after.bytes(mask)?;
                    if head.is_some()
                        && mask.is_some()
                        && before.bytes(mask).is_ok_and(|before| before == pod)
                    {
                        return Ok(Some(Bytes::new()));
                    }
                    (EventType::Modified, pod)
                }
                None => return Ok(None),
            };
            head.into_iter().for_each(|head| put_event(head, kind, pod.len()));
            Ok(Some(pod))
        })
    }
}

fn closed() -> Status {
    Status::new(Code::ResourceExhausted, "watch client channel closed")
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").finish_non_exhaustive()
    }
}
