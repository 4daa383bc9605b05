//! Sees what the runtime is doing, and publishes it as [`ObservedState`](mainstay_types::ObservedState).
//!
//! Three things make it look: a container event of the runtime (where it has them), a wish of reconcile after an action,
//! and the relist. An event is never believed, only followed by a read. The relist asks for two lists and reads further
//! only what differs from the last time, so that an idle node costs two calls a period.
//!
//! Tasks: `observe` (the actor) and `runtime events`, both owned by the task group given to [`start`]. In: wishes for
//! a fresh look at one pod, a bounded channel. Out: a `watch` channel. It changes nothing in the runtime.

#![forbid(unsafe_code)]

mod actor;
mod events;
mod health;
mod read;
mod termination;

pub use actor::{ObserveConfig, start};
