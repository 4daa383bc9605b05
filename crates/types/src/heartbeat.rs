//! A sign of life that one task gives and others may look at without asking it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A sign of life. Clones share it.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    begun: Instant,
    last_millis: Arc<AtomicU64>,
    beats: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { begun: Instant::now(), last_millis: Arc::default(), beats: Arc::default() }
    }
}

impl Heartbeat {
    /// Gives a sign of life.
    pub fn beat(&self) {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were given. A loop that turns without end shows here.
    #[must_use]
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// How long ago the last one was given.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}
