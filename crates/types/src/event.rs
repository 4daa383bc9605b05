//! What happened to a pod and why, in upstream's words.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::{FullName, PodUid};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// To whom.
    pub target: EventTarget,
    /// Normal or Warning.
    pub kind: EventKind,
    /// `Started`, `BackOff` …: upstream's reason. Few are made up at run time (`OutOfhugepages-2Mi`).
    pub reason: Cow<'static, str>,
    /// The text for people.
    pub message: String,
    /// When.
    pub time: Timestamp,
}

/// Whom an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventTarget {
    /// A pod, or one container of it.
    Pod {
        /// Its UID.
        uid: PodUid,
        /// Namespace and name.
        full_name: FullName,
        /// `spec.containers{web}` when it is about one container.
        field_path: Option<String>,
    },
    /// The node.
    Node,
}

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

impl EventKind {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Where events go. When the store is behind by more than its bound, further events are dropped and counted: telling
/// about work must never hold work up.
#[derive(Clone, Debug)]
pub struct EventSink {
    sender: mpsc::Sender<Event>,
    counts: EventCounts,
}

/// How many events there were, for whoever shows it.
#[derive(Clone, Debug, Default)]
pub struct EventCounts {
    dropped: Arc<AtomicU64>,
}

impl EventCounts {
    /// Events that found no room and were told to nobody.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventSink {
    /// A sink that holds at most `bound` events, and the end they come out of.
    #[must_use]
    pub fn bounded(bound: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(bound);
        (Self { sender, counts: EventCounts::default() }, receiver)
    }

    /// Tells of an event. Returns whether there was room.
    pub fn send(&self, event: Event) -> bool {
        let sent = self.sender.try_send(event).is_ok();
        if !sent {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// The counts, to be shown.
    #[must_use]
    pub fn counts(&self) -> EventCounts {
        self.counts.clone()
    }
}
