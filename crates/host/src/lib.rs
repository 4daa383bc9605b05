//! The machine: what it is called, what it has, what is mounted, and a few careful operations on it.
//!
//! [`Host`] reads `/proc`, `/sys` and `/etc` below roots that tests can move. Beside it stand [`MountTable`],
//! [`ResolvConf`], [`FilesystemUsage`], [`DiskUsage`], the [`LockFile`] that keeps a second agent out, [`remove_dir_all_one_fs`] that
//! never deletes through a mount, [`ServiceManager`], which tells systemd how we are, and functions that keep the
//! process small (the only unsafe code).
//!
//! What it does not do: it samples no cgroups (see `cgroup`), it mounts nothing, keeps no state and starts no task.
//! Everything here blocks shortly; [`remove_dir_all_one_fs`], [`DiskUsage`] and [`FilesystemUsage`] may block long on a bad disk, call
//! them off the async workers.

mod capacity;
mod disk_usage;
mod filesystem;
mod kernel;
mod limits;
mod lock;
mod machine;
mod memory;
mod mounts;
mod numa;
mod page_size;
mod remove;
mod resolv_conf;
mod service_manager;
mod spec;
mod subordinate_ids;

pub use disk_usage::DiskUsage;
pub use filesystem::FilesystemUsage;
pub use kernel::{KERNEL_TUNABLES, KernelTunable, TunableState};
pub use limits::raise_open_file_limit;
pub use lock::{LockError, LockFile};
pub use machine::{CgroupMode, Host, HostError, SwapDevice, parse_cpu_list};
pub use memory::{note_program_pages, release_free_memory, release_program_pages, share_heap};
pub use mounts::{Mount, MountTable};
pub use numa::{NumaMemory, NumaTopology};
pub use page_size::page_size;
pub use remove::{RemoveError, remove_dir_all_one_fs};
pub use resolv_conf::{ResolvConf, ResolvConfError};
pub use service_manager::ServiceManager;
pub use subordinate_ids::subordinate_ids;
