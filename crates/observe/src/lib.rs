//! Sees what the runtime is doing, and publishes it as [`ObservedState`](mainstay_types::ObservedState).
//!
//! Three things make it look: a container event of the runtime (where it has them), a wish of reconcile after an action,
//! and the relist. An event is never believed, only followed by a read. The relist asks for two lists and reads further
//! only what differs from the last time, so that an idle node costs two calls a period.
//!
//! Beside it, each in a task of its own, [`probes`] asks containers how they are, [`usage`] measures what pods that set a
//! limit have written to disk, [`samples`] reads what cgroups use, [`filesystems`] looks at disks, and [`pressure`] says what the node runs short of.
//!
//! Tasks: `observe` (the actor), `runtime events`, `probes`, `probe files`, `storage usage`, `samples`, `filesystems` and `pressure`, owned by the task group given
//! to the function that starts them. In: wishes for a fresh look at one pod, a bounded channel. Out: `watch` channels. It
//! changes nothing in the runtime.

#![forbid(unsafe_code)]

mod actor;
mod events;
pub mod filesystems;
mod health;
pub mod images;
mod kills;
pub mod pressure;
pub mod probes;
mod read;
pub mod samples;
mod termination;
pub mod usage;

pub use actor::{ObserveConfig, start};
pub use kills::PodCgroups;

/// The parsers without files, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{filesystems, kills};

    /// Reads the bytes as `/proc/diskstats` and as `memory.events`; what came of it, in words.
    #[must_use]
    pub fn formats(bytes: &[u8]) -> String {
        let kills = kills::kills(&String::from_utf8_lossy(bytes)).is_some();
        format!("{} {kills}", "disk ".repeat(filesystems::disk_work(bytes).len().min(9)))
    }
}
