//! `cargo xtask fuzz`: hostile bytes for everything that reads bytes from outside, on stable Rust and with no instrumentation.
//!
//! Each [`Target`] reads an input and says in a few words what came of it. Inputs are made from good ones by small changes
//! ([`Mutator`]); one that brings a new answer is kept and changed further, so that the search follows the reader's own
//! error paths. The same seed gives the same inputs. A panic, a broken promise of the reader (each target names its own) or
//! an input that takes seconds ends the run with that input.
//!
//! What it does not: it measures no coverage and starts no task. A short run of a fixed seed is part of `cargo test`.

#![forbid(unsafe_code)]

mod answers;
mod campaign;
mod elf;
mod machine;
mod mutate;
mod targets;

pub use campaign::{Campaign, Finding, Summary, Until};
pub use mutate::Mutator;
pub use targets::{TARGETS, Target, target};
