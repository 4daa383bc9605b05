//! Volumes on this machine: making, filling, finding parts of them, and taking them down again.
//!
//! [`set_up`] makes a volume as `podspec::volumes` describes it and may be called again at any time: what is there already
//! stays, files that follow a source are replaced at once and all together. [`bind_sub_path`] mounts a part of a volume
//! without being led out of it by links that its user makes meanwhile. [`tear_down`] unmounts everything below a pod's
//! directory, looks whether that is so, and only then removes; nothing is ever deleted through a mount. It goes by what is
//! on disk, so it serves pods of an earlier life as well.
//!
//! What it does not do: it decides nothing (see `podspec::volumes`), retries nothing and keeps no list of volumes. All of it
//! blocks, some of it for ever when a server is dead: [`Jobs`] gives each pod a thread of its own for it, and a name for
//! what it hangs in. The threads belong to the `Jobs` that started them and end by themselves; one that hangs in the kernel
//! ends with the process.

#![forbid(unsafe_code)]

mod command;
mod error;
mod files;
mod host_path;
mod jobs;
mod local;
mod own;
mod ownership;
mod setup;
mod shared;
mod strays;
mod subpath;
mod teardown;
mod writer;

pub use error::VolumeError;
pub use files::read_in_volume;
pub use jobs::{Hung, Jobs, Progress};
pub use own::{is_own_pod_dir, make_pod_dir};
pub use setup::{Notice, is_set_up, set_up, tmpfs_stays_in_memory};
pub use shared::share_mounts;
pub use strays::end_stray_mounts;
pub use subpath::bind_sub_path;
pub use teardown::tear_down;
