//! A wall clock that was set back: whatever waits for a time would wait for as long again.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// Less than this is what a time service corrects in passing, and nobody waits noticeably longer for it.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// Compares the wall clock with the one that only goes forward.
#[derive(Debug)]
pub(crate) struct Clock {
    wall: Timestamp,
    steady: Instant,
}

impl Clock {
    pub(crate) fn new(wall: Timestamp, steady: Instant) -> Self {
        Self { wall, steady }
    }

    /// Whether the wall clock was set back since it was last asked.
    pub(crate) fn was_set_back(&mut self, wall: Timestamp, steady: Instant) -> bool {
        let passed = SignedDuration::try_from(steady.duration_since(self.steady)).unwrap_or_default();
        let behind = passed - wall.duration_since(self.wall);
        *self = Self { wall, steady };
        behind > TOLERANCE
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_step_back_counts() {
        let (wall, steady) = (Timestamp::now(), Instant::now());
        for (row, wall_seconds, expected) in [
            ("in step", 10, false),
            ("a little behind", 9, false),
            ("set forward", 4000, false),
            ("set back", -3600, true),
            ("set back by less than what passed", 5, true),
        ] {
            let mut clock = Clock::new(wall, steady);
            let later = wall + SignedDuration::from_secs(wall_seconds);
            let ten = steady + Duration::from_secs(10);
            assert_eq!(clock.was_set_back(later, ten), expected, "{row}");
            assert!(!clock.was_set_back(later, ten), "{row}: it is told once");
        }
    }
}
