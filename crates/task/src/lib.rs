//! Tasks that have an owner, shutdown as one signal, and waiting times as data.
//!
//! [`TaskGroup`] is the only way to start an async task in mainstay: every task has a name, its end is noticed, and
//! [`TaskGroup::drain`] is signal, wait, deadline, force. [`Shutdown`] is the signal that tasks listen to.
//! [`Backoff`] says how long to wait before the next attempt and never sleeps itself. [`Lane`] bounds the threads that blocking
//! work of one kind may hold, and [`run_program`] runs another program to its end, within bounds.
//!
//! What it does not do: it restarts nothing (a task that must survive errors loops inside itself), it installs no
//! signal handlers, and it knows nothing of pods. The tasks belong to the group that started them; the group belongs
//! to whoever drains it, which is the binary.

#![forbid(unsafe_code)]

mod backoff;
mod group;
mod lane;
mod program;
mod shutdown;

pub use backoff::{Attempts, Backoff, random_unit};
pub use group::{Drained, FailureKind, TaskFailure, TaskGroup, TaskHandle};
pub use lane::{Lane, LaneError};
pub use program::{ProgramError, run_program};
pub use shutdown::Shutdown;
