//! What a round of reading is at, and what does not answer.
//!
//! The kernel's own files answer at once, but for when they do not: a lock that somebody holds, a process that is stuck. A round that gets on is
//! slow; one that is at the same place for a whole period hangs, and that place is left to it while another reader reads the rest.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A cgroup, with its processes.
    Cgroup(Arc<str>),
    /// The network of a process.
    Network(i32),
    /// The machine's processes.
    Tasks,
    /// The services of the machine.
    Services,
    /// A disk's name.
    Disk(u32, u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => write!(f, "cgroup {path}"),
            Self::Network(pid) => write!(f, "/proc/{pid}/net/dev"),
            Self::Tasks => f.write_str("/proc/loadavg"),
            Self::Services => f.write_str("the services' cgroups"),
            Self::Disk(major, minor) => write!(f, "/sys/dev/block/{major}:{minor}"),
        }
    }
}

/// How far one reader is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    steps: AtomicU64,
    place: Mutex<Option<Place>>,
}

impl Progress {
    /// Counts up while it gets on.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// What it is at.
    pub(super) fn place(&self) -> Option<Place> {
        lock(&self.place).clone()
    }

    pub(super) fn is_at(&self, place: Place) {
        *lock(&self.place) = Some(place);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Places at which rounds hang; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Hanging(Arc<Mutex<HashSet<Place>>>);

impl Hanging {
    pub(super) fn contains(&self, place: &Place) -> bool {
        lock(&self.0).contains(place)
    }

    pub(super) fn insert(&self, place: Place) {
        lock(&self.0).insert(place);
    }

    pub(super) fn remove(&self, place: &Place) {
        lock(&self.0).remove(place);
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(lock(&self.0).len()).unwrap_or(u32::MAX)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
