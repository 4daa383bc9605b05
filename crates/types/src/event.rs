//! What happened to a pod and why, in upstream's words.

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
    /// `Started`, `BackOff` …: upstream's reason.
    pub reason: &'static str,
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
}

impl EventSink {
    /// A sink that holds at most `bound` events, and the end they come out of.
    #[must_use]
    pub fn bounded(bound: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(bound);
        (Self { sender }, receiver)
    }

    /// Tells of an event. Returns whether there was room.
    pub fn send(&self, event: Event) -> bool {
        self.sender.try_send(event).is_ok()
    }
}
