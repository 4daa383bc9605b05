//! Times that are far off, by both clocks of the machine: the one stands still while it sleeps, the other is set by people.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Nobody sleeps longer without looking at the clocks: no timer hears of a machine that slept, or of a clock that was set.
pub(super) const NAP: Duration = Duration::from_secs(60);

/// What both clocks show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    instant: Instant,
    time: Timestamp,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }
}

/// A moment that is over as soon as either clock says so: too early does no harm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due(Moment);

impl Due {
    pub(super) fn after(wait: Duration, now: Moment) -> Self {
        let later = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let time = now.time.saturating_add(later).unwrap_or(Timestamp::MAX);
        Self(Moment { instant: now.instant + wait, time })
    }

    pub(super) fn is_over(self, now: Moment) -> bool {
        self.left(now).is_zero()
    }

    /// How long to sleep until the next of them may be over; `None` if there are none.
    pub(super) fn nap(all: impl Iterator<Item = Self>, now: Moment) -> Option<Duration> {
        all.map(|due| due.left(now)).min().map(|left| left.min(NAP))
    }

    fn left(self, now: Moment) -> Duration {
        let by_time = Duration::try_from(self.0.time.duration_since(now.time)).unwrap_or_default();
        self.0.instant.saturating_duration_since(now.instant).min(by_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[tokio::test]
    async fn a_machine_that_slept_and_clocks_that_were_set() {
        let begun = Moment::now();
        let hours = |number: i64| SignedDuration::from_hours(number);
        let due = Due::after(DAY, begun);
        for (name, awake, by_the_clock, over) in [
            ("nothing has happened", 1, hours(1), false),
            ("a day went by", 24, hours(24), true),
            ("it slept through most of it", 1, hours(25), true),
            ("the clock was set back", 24, hours(-1000), true),
            ("the clock was set back, early", 1, hours(-1000), false),
            ("the clock was set forward", 0, hours(100_000), true),
        ] {
            let time = begun.time.checked_add(by_the_clock).unwrap();
            let now = Moment { instant: begun.instant + awake * DAY / 24, time };
            assert_eq!(due.is_over(now), over, "{name}");
            assert_eq!(
                Due::nap([due].into_iter(), now),
                Some(if over { Duration::ZERO } else { NAP }),
                "{name}"
            );
        }
        let soon = Due::after(Duration::from_secs(1), begun);
        assert_eq!(
            Due::nap([due, soon].into_iter(), begun),
            Some(Duration::from_secs(1)),
            "no longer than needed"
        );
        assert_eq!(Due::nap(std::iter::empty(), begun), None);
    }
}
