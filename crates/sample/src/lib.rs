//! Reads what cgroups use: each cgroup once, for everybody who wants to know.
//!
//! [`Cgroup::open`] keeps a directory descriptor per hierarchy as long as a [`Budget`] allows it, so that a reading is
//! `openat`, `read`, `close` per file and no path is walked; beyond the budget the directory, too, is opened for each reading.
//! [`Cgroup::read`] fills a [`Sample`](mainstay_types::Sample). Where nothing happened, a look at processor time, memory, disks
//! and pressure shows that, and the rest of the last reading holds; what rarely changes (limits, huge pages) is read with every sixth reading only.
//! [`network_of`] reads the network of a process, [`task_counts`] the machine's processes. The parsers take whatever bytes
//! they are given: what is not understood is left out or 0, nothing panics. [`Rising`] watches that counters count up.
//!
//! What it does not do: it decides nothing, keeps no history, starts no task and finds no cgroups by itself. Everything
//! here blocks, though on the kernel's own files only; call it off the async workers.

#![forbid(unsafe_code)]

mod cgroup;
mod files;
mod huge_pages;
mod network;
mod parse;
mod processes;
mod rising;
mod v1;
mod v2;

pub use cgroup::{Cgroup, ReadError, memory_of};
pub use files::{Budget, Buffer, Work};
pub use network::{network_of, task_counts};
pub use rising::Rising;

/// The parsers without files, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{network, parse, processes};

    /// Reads the bytes in every format; what came of it, in words.
    #[must_use]
    pub fn formats(bytes: &[u8]) -> String {
        let mut pids = Vec::new();
        processes::pids(bytes, &mut pids);
        format!(
            "{:?} {} {:?} {:?} {} {:?} {:?} {:?} {:?} {} {:?} {:?}",
            parse::number(bytes),
            parse::keyed(bytes).count(),
            parse::cpu_max(bytes),
            parse::io_stat(bytes),
            parse::blkio(bytes).count(),
            parse::pressure(bytes),
            parse::meminfo(bytes, b"MemTotal"),
            network::interfaces(bytes),
            processes::open_files(bytes),
            pids.len(),
            network::tasks(bytes),
            parse::page_size(bytes),
        )
    }
}
