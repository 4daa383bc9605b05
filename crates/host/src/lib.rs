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

pub use disk_usage::{DiskUsage, device_of};
pub use filesystem::FilesystemUsage;
pub use kernel::{KERNEL_TUNABLES, KernelTunable, TunableState};
pub use limits::raise_open_file_limit;
pub use lock::{LockError, LockFile};
pub use machine::{CgroupMode, Host, HostError, SwapDevice, parse_cpu_list};
pub use memory::{note_program_pages, release_free_memory, release_program_pages, share_heap};
pub use mounts::{Mount, MountTable};
pub use numa::{NumaMemory, NumaTopology};
pub use page_size::page_size;
pub use remove::{RemoveError, remove_dir_all_counting, remove_dir_all_one_fs};
pub use resolv_conf::{ResolvConf, ResolvConfError};
pub use service_manager::ServiceManager;
pub use subordinate_ids::subordinate_ids;

/// The parsers without files, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{machine, page_size, spec, subordinate_ids};

    /// Reads the bytes as the kernel's and the machine's files; what came of it, in words.
    #[must_use]
    pub fn formats(bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        format!(
            "swap {} page {} speed {} memory {} ids {} name {}",
            "device ".repeat(text.lines().filter_map(machine::parse_swap).count().min(9)),
            page_size::parse(bytes).is_some(),
            spec::speed(&text).is_some(),
            machine::parse_meminfo(&text, "MemTotal:").is_some(),
            subordinate_ids::parse(&text, "kubelet").is_some(),
            machine::pretty_name(&text).is_empty(),
        )
    }
}
