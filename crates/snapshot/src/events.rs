//! The bounded local event store: what happened on this node, the newest last.
//!
//! One task owns the records. It takes events from the receiving end of [`mainstay_types::EventSink::bounded`], counts
//! equal ones instead of repeating them, and publishes an immutable list after each batch; [`EventReader`]s look at that
//! list and never wait for the task. With a file given, the records are written to it a little after each change and at the
//! end, and are there again after a restart with their numbers; what happened in the last moments before a kill may be lost.

mod keep;

use std::{collections::VecDeque, path::PathBuf, sync::Arc};

use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::{Event, EventKind, EventRecord, EventTarget, FullName};
use tokio::sync::{mpsc, watch};

use self::keep::Keeper;

/// How many events are taken from the channel before a new list is published.
const BATCH: usize = 64;

/// Longest message of an event, as the API allows it.
const MAX_MESSAGE_BYTES: usize = 1024;

/// What the store is allowed to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventStoreConfig {
    /// The name under which events about the node are kept.
    pub node_name: Arc<str>,
    /// Records in all; the oldest goes first.
    pub max_records: usize,
    /// Records of one pod (or of the node), so that one that fails in ever new words does not push out all others.
    pub max_per_object: usize,
    /// Where they are kept across restarts; its directory is made.
    pub file: Option<PathBuf>,
}

impl EventStoreConfig {
    /// The usual bounds: 1000 records, 100 of them for one object.
    #[must_use]
    pub fn new(node_name: Arc<str>) -> Self {
        Self { node_name, max_records: 1000, max_per_object: 100, file: None }
    }
}

/// Which records a reader wants; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only those about this pod.
    pub pod: Option<FullName>,
}

impl EventFilter {
    /// Whether a record is wanted.
    #[must_use]
    pub fn accepts(&self, record: &EventRecord) -> bool {
        self.pod.as_ref().is_none_or(|pod| {
            record.object_kind == "Pod" && record.name == *pod.name && record.namespace == *pod.namespace
        })
    }
}

/// A view of the store. Clones are cheap and independent.
#[derive(Clone, Debug)]
pub struct EventReader {
    list: watch::Receiver<Published>,
}

/// What readers see: records by ascending sequence.
#[derive(Clone, Debug, Default)]
struct Published {
    newest: u64,
    records: Arc<[Arc<EventRecord>]>,
}

impl EventReader {
    /// The records with a sequence above `sequence` that `filter` accepts, oldest first.
    #[must_use]
    pub fn since(&self, sequence: u64, filter: &EventFilter) -> Vec<Arc<EventRecord>> {
        let records = self.list.borrow().records.clone();
        let first = records.partition_point(|record| record.sequence <= sequence);
        records.iter().skip(first).filter(|record| filter.accepts(record)).cloned().collect()
    }

    /// The sequence of the newest record ever stored; 0 before the first.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.list.borrow().newest
    }

    /// Waits for a record with a sequence above `sequence` and returns the newest sequence then. Pending for ever once
    /// the store has ended. Cancel safe.
    pub async fn wait_past(&self, sequence: u64) -> u64 {
        let mut list = self.list.clone();
        if let Ok(published) = list.wait_for(|published| published.newest > sequence).await {
            return published.newest;
        }
        std::future::pending().await
    }
}

/// Starts the store as a task of `tasks`; it ends with their shutdown. What an earlier life kept is there at once.
pub fn start_events(
    config: EventStoreConfig,
    events: mpsc::Receiver<Event>,
    tasks: &TaskGroup,
) -> EventReader {
    let (mut keeper, restored) = Keeper::open(config.file.as_deref());
    let mut store = Store { config, records: VecDeque::new(), newest: restored.newest };
    let surplus = restored.records.len().saturating_sub(store.config.max_records);
    store.records.extend(restored.records.into_iter().skip(surplus).map(Arc::new));
    if let Some(message) = restored.problem {
        let (target, kind, reason) = (EventTarget::Node, EventKind::Warning, "StateFileSetAside".into());
        store.add(Event { target, kind, reason, message, time: jiff::Timestamp::now() });
        keeper.changed();
    }
    let (sender, list) = watch::channel(store.publish());
    tasks.spawn_critical("events", run(store, events, sender, keeper, tasks.shutdown()));
    EventReader { list }
}

async fn run(
    mut store: Store,
    mut events: mpsc::Receiver<Event>,
    sender: watch::Sender<Published>,
    mut keeper: Keeper,
    shutdown: Shutdown,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut open = true;
    loop {
        // Every branch is cancel safe: a signal, a channel, and times and tasks that the keeper holds. With all senders
        // gone nothing more can happen; readers may still look at what there is.
        tokio::select! {
            biased;
            () = shutdown.signalled() => break,
            count = events.recv_many(&mut batch, BATCH), if open => open = count > 0,
            () = keeper.ready() => {}
        }
        if store.take(&mut batch) {
            sender.send_replace(store.publish());
            keeper.changed();
        }
        keeper.proceed(&sender.borrow());
    }
    while let Ok(event) = events.try_recv() {
        batch.push(event);
    }
    if store.take(&mut batch) {
        sender.send_replace(store.publish());
        keeper.changed();
    }
    let last = sender.borrow().clone();
    keeper.finish(&last).await;
}

/// The records, oldest first. Searched from one end to the other: a thousand comparisons cost less than keeping indexes
/// right, and events are rare.
struct Store {
    config: EventStoreConfig,
    records: VecDeque<Arc<EventRecord>>,
    newest: u64,
}

impl Store {
    /// Adds all of a batch; whether there was any.
    fn take(&mut self, batch: &mut Vec<Event>) -> bool {
        let any = !batch.is_empty();
        batch.drain(..).for_each(|event| self.add(event));
        any
    }

    fn add(&mut self, event: Event) {
        self.newest += 1;
        let fresh = self.record_of(event);
        let equal = self.records.iter().position(|known| same(known, &fresh));
        let record = match equal.and_then(|at| self.records.remove(at)) {
            Some(known) => EventRecord {
                count: known.count.saturating_add(1),
                first_timestamp: known.first_timestamp,
                ..fresh
            },
            None => fresh,
        };
        self.make_room(&record);
        self.records.push_back(Arc::new(record));
    }

    /// Drops the oldest records until `next` fits.
    fn make_room(&mut self, next: &EventRecord) {
        let of_same_object = self.records.iter().filter(|known| same_object(known, next)).count();
        if of_same_object >= self.config.max_per_object.max(1)
            && let Some(oldest) = self.records.iter().position(|known| same_object(known, next))
        {
            self.records.remove(oldest);
        }
        while self.records.len() >= self.config.max_records.max(1) {
            self.records.pop_front();
        }
    }

    fn record_of(&self, event: Event) -> EventRecord {
        let (object_kind, namespace, name, uid, field_path) = match event.target {
            EventTarget::Pod { uid, full_name, field_path } => (
                "Pod",
                full_name.namespace.to_string(),
                full_name.name.to_string(),
                uid.to_string(),
                field_path,
            ),
            EventTarget::Node => {
                ("Node", String::new(), self.config.node_name.to_string(), String::new(), None)
            }
        };
        EventRecord {
            sequence: self.newest,
            kind: event.kind.as_str().to_owned(),
            reason: event.reason.into_owned(),
            message: cut(event.message),
            object_kind: object_kind.to_owned(),
            namespace,
            name,
            uid,
            field_path,
            count: 1,
            first_timestamp: event.time,
            last_timestamp: event.time,
        }
    }

    fn publish(&self) -> Published {
        Published { newest: self.newest, records: self.records.iter().cloned().collect() }
    }
}

/// A runtime's error can be as long as it likes; upstream cuts messages here as well, and so does its API server.
fn cut(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    }
    message
}

fn same_object(a: &EventRecord, b: &EventRecord) -> bool {
    a.uid == b.uid && a.object_kind == b.object_kind && a.name == b.name && a.namespace == b.namespace
}

fn same(a: &EventRecord, b: &EventRecord) -> bool {
    a.reason == b.reason
        && a.kind == b.kind
        && same_object(a, b)
        && a.field_path == b.field_path
        && (a.message == b.message || without_exec_ids(&a.message).eq(without_exec_ids(&b.message)))
}

/// What of an event's message tells it apart from others: all but the ids that a runtime gives to commands.
#[must_use]
pub fn text_without_ids(message: &str) -> String {
    without_exec_ids(message).collect()
}

/// The pieces of a message around the ids that a runtime gives to commands: each attempt of a probe has another, and is the
/// same event all the same.
fn without_exec_ids(message: &str) -> impl Iterator<Item = &str> {
    const BEFORE: &str = "exec \"";
    message.split_inclusive(BEFORE).scan(false, |after_exec, piece| {
        let id = if *after_exec { piece.bytes().take_while(u8::is_ascii_hexdigit).count() } else { 0 };
        *after_exec = piece.ends_with(BEFORE);
        Some(piece.get(if id == 64 { 64 } else { 0 }..).unwrap_or(piece))
    })
}

#[cfg(test)]
mod tests;
