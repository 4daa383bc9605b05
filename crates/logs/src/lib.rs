//! Container logs as files: reading, following and rotating them.
//!
//! - [`read`] turns a log file into what `/containerLogs` answers: lines of the CRI format (or Docker's JSON format),
//!   partial lines joined, with tail, since, limit, timestamps and follow. It sends bounded chunks into a bounded
//!   channel of the caller's; memory does not depend on the file. Only the current file of a container is read from its
//!   beginning; files rotated away while a follower reads are delivered to their end.
//! - [`rotate`] renames a log that grew too large, has the runtime reopen it, and compresses and removes older ones.
//! - Names: [`container_log_symlink_name`], [`highest_log_number`].
//!
//! What it does not do: it talks to no runtime (the caller passes "reopen" and "has stopped" as futures), it decides
//! neither when to rotate nor which container is meant, and it starts no task: a read runs in the caller's task, its file
//! access on tokio's blocking threads, one bounded piece at a time. It needs a runtime with I/O and time enabled.

#![forbid(unsafe_code)]

mod decode;
mod line;
mod names;
mod read;
mod rotate;
mod tail;
mod watch;

pub use names::{container_log_symlink_name, highest_log_number, remove_container_log};
pub use read::{Options, ReadError, Streams, read, termination_log_tail};
pub use rotate::{RotateError, RotationPolicy, needs_rotation, rotate};

/// The reader without files, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{Options, decode::Decoder};

    /// What a log of these bytes reads as when it is read in blocks of at most `block` bytes.
    #[must_use]
    pub fn decode(bytes: &[u8], block: usize) -> Vec<u8> {
        let mut decoder = Decoder::new(&Options { timestamps: true, ..Options::default() });
        let mut out = Vec::new();
        bytes.chunks(block.max(1)).for_each(|chunk| decoder.feed(chunk, &mut out));
        decoder.finish(&mut out);
        out
    }
}
