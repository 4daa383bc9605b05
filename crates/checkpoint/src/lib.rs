//! Small state files that are written atomically, carry kind, version and checksum, and never stop the agent.
//!
//! A file is one line of JSON, `{"mainstay":"<kind>","version":1,"checksum":"sha256:…","data":…}`, where the checksum is
//! over the bytes of `data` as they stand in the file. A [`File`] is one such file, a [`Store`] a directory of them by key.
//!
//! - Writing: a temporary file in the same directory, mode 0600, then rename. A failed write leaves the old file.
//! - Reading: a file that is truncated, altered, of another kind or from a newer mainstay is renamed to
//!   `<name>.bad-<unix seconds>` (three of them are kept) and reported as set aside; what it held is rebuilt by the caller.
//!
//! - [`TextFile`] is a file in upstream's format, which another kubelet reads and writes as well.
//! - [`SealKey`] seals values that must not be readable with the state files alone.
//!
//! What it does not do: it keeps no copy in memory, it does not lock (one agent per root directory is ensured elsewhere),
//! and it starts no task. Everything here blocks, so call it off the async workers, or use [`Deferred`], which does.

#![forbid(unsafe_code)]

mod aside;
mod deferred;
mod envelope;
mod error;
mod file;
mod seal;
mod store;
mod text;

pub use aside::{AsideFile, files_set_aside, files_set_aside_in};
pub use deferred::Deferred;
pub use error::{BadFile, WriteError};
pub use file::{Durability, File, Loaded, SetAside, ensure_directory};
pub use seal::{KeyError, SealKey, Sealed};
pub use store::{Contents, Store};
pub use text::{TextError, TextFile};

/// The form of a state file without the file, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{BadFile, envelope};

    const KIND: &str = "fuzz";

    /// The bytes of a file that holds these texts.
    #[must_use]
    pub fn encode(values: &[&str]) -> Vec<u8> {
        envelope::encode(&values, KIND, 1).unwrap_or_default()
    }

    /// The texts in a file of these bytes.
    ///
    /// # Errors
    /// When it would be set aside.
    pub fn decode(bytes: &[u8]) -> Result<Vec<String>, BadFile> {
        envelope::decode(bytes, KIND, 1)
    }
}
