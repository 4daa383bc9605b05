//! The sources as a whole: real directories, real inotify, real files of kept manifests.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod files;
mod restart;
mod url;
