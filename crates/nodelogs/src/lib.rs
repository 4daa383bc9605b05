//! The machine's own logs: files below a directory (`/var/log`) and the journal.
//!
//! [`LogDirectory`] opens what lies in it and nothing else: names are resolved by the kernel without magic links, the
//! opened thing itself (not its name) is then asked where it lies and what it is, and neither FIFOs nor devices are ever
//! opened for reading. [`Journal`] runs `journalctl` and hands on what it says, as fast as it is taken.
//!
//! What it does not do: it knows nothing of HTTP, writes nothing, and follows no file as it grows. Containers' logs in the
//! CRI format are the `logs` crate's.
//!
//! It starts no tasks. A `journalctl` lives as long as the future that reads from it: dropping that kills it.

#![forbid(unsafe_code)]

mod directory;
mod journal;

pub use directory::{Entry, Found, Links, LogDirectory, LogFile, OpenError};
pub use journal::{Journal, JournalError, JournalQuery};
