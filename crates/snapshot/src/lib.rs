//! The one answer to "which pods exist", and the store of what happened to them.
//!
//! [`start`] joins what is desired, what is observed and what reconcile reports into numbered, immutable
//! [`NodeSnapshot`](mainstay_types::NodeSnapshot)s. Nothing is published before every source has delivered, the runtime
//! has been listed completely and reconcile has looked at each pod: a reader sees all or an error, never a part.
//! Statuses are kept on disk, so that conditions keep their times across a restart. The node's own condition
//! `StateIntact` follows from what lies in the state directory. [`note_boot`] tells of a reboot, once.
//!
//! Tasks: `snapshot`, `status files`, `node files` and `events`, owned by the task group given. It decides nothing and calls nobody.

#![forbid(unsafe_code)]

mod boot;
mod builder;
mod events;
mod gojson;
mod node;
mod persist;
mod state_condition;

pub use boot::note_boot;
pub use builder::{Inputs, SnapshotConfig, SnapshotReader, SnapshotWriter, channel, start};
pub use events::{EventFilter, EventReader, EventStoreConfig, start_events, text_without_ids};
pub use gojson::go_json;
pub use node::NodeTemplate;
pub use persist::KeptStatuses;
