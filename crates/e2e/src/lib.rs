//! Whole-node tests: the real binary on a real containerd, as root. What they share is here; the tests are in `tests/`.
//!
//! What it does: starts nodes with the test kit and asks them the way a user would. What it does not: it knows nothing of
//! mainstay's inside, only its HTTP API, its files and what the runtime shows. It owns no tasks.
#![forbid(unsafe_code)]

pub mod seen;
mod world;

pub use world::{EventSeen, PodSeen, SOON, World, idle, pod, sh, with};
