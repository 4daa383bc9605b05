//! Waiting times between attempts, as a value.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// How long to wait before each attempt after the first failure: `initial`, then `factor` times more each time, never
/// more than `max` (jitter is added on top, so that many that reached `max` do not come back together).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: f64,
    jitter: f64,
}

impl Backoff {
    /// A backoff that doubles from `initial` up to `max`, without jitter.
    #[must_use]
    pub const fn doubling(initial: Duration, max: Duration) -> Self {
        Self { initial, max, factor: 2.0, jitter: 0.0 }
    }

    /// The same backoff with another factor; a factor below one (or not a number) counts as one.
    #[must_use]
    pub const fn with_factor(mut self, factor: f64) -> Self {
        self.factor = if factor >= 1.0 { factor } else { 1.0 };
        self
    }

    /// The same backoff with up to `fraction` of each delay added at random; negative values count as none.
    #[must_use]
    pub const fn with_jitter(mut self, fraction: f64) -> Self {
        self.jitter = if fraction > 0.0 { fraction } else { 0.0 };
        self
    }

    /// The delay after `failures` failures in a row (1 gives `initial`, 0 gives no delay), without jitter.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        self.delay_with(failures, 0.0)
    }

    /// The delay after `failures` failures in a row, with jitter chosen by `random` from `[0, 1)`.
    #[must_use]
    pub fn delay_with(&self, failures: u32, random: f64) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        let exponent = i32::try_from(failures - 1).unwrap_or(i32::MAX);
        let grown = self.initial.as_secs_f64() * self.factor.powi(exponent);
        // A product beyond `max` (or infinite) is `max`, which keeps the exact value the caller gave.
        let capped = if grown >= self.max.as_secs_f64() || !grown.is_finite() {
            self.max
        } else {
            Duration::from_secs_f64(grown)
        };
        if self.jitter == 0.0 {
            return capped;
        }
        let extra = capped.as_secs_f64() * self.jitter * random.clamp(0.0, 1.0);
        capped.saturating_add(Duration::try_from_secs_f64(extra).unwrap_or(Duration::ZERO))
    }

    /// A counter of failures in a row with this backoff.
    #[must_use]
    pub const fn attempts(self) -> Attempts {
        Attempts { backoff: self, failures: 0 }
    }
}

/// Failures in a row under one [`Backoff`]: for loops that try, wait and try again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attempts {
    backoff: Backoff,
    failures: u32,
}

impl Attempts {
    /// Counts one more failure and returns how long to wait before the next attempt, jitter included.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay_with(self.failures, random_unit())
    }

    /// Forgets the failures: the next one waits `initial` again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How many failures in a row were counted.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// A random number from `[0, 1)`, good enough to spread load and for nothing else.
#[must_use]
pub fn random_unit() -> f64 {
    // The standard library seeds every RandomState apart, so an empty hash is a random number.
    let bits = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn doubles_up_to_the_maximum_and_stays() {
        let backoff = Backoff::doubling(ms(10_000), ms(300_000));
        let delays: Vec<u64> = (0..8).map(|n| backoff.delay(n).as_secs()).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.delay(u32::MAX), ms(300_000));
    }

    #[test]
    fn other_factors() {
        let backoff = Backoff::doubling(ms(100), ms(3000)).with_factor(1.6);
        assert_eq!(backoff.delay(2), ms(160));
        assert_eq!(backoff.with_factor(f64::NAN).delay(9), ms(100));
        assert_eq!(backoff.with_factor(f64::INFINITY).delay(2), ms(3000));
    }

    #[test]
    fn jitter_is_added_within_its_fraction() {
        let backoff = Backoff::doubling(ms(100), ms(200)).with_jitter(0.5);
        assert_eq!(backoff.delay_with(1, 0.0), ms(100));
        assert_eq!(backoff.delay_with(5, 1.0), ms(300));
        for _ in 0..100 {
            let delay = backoff.delay_with(1, random_unit());
            assert!(delay >= ms(100) && delay <= ms(150), "{delay:?}");
        }
    }

    #[test]
    fn attempts_count_and_forget() {
        let mut attempts = Backoff::doubling(ms(10), ms(1000)).attempts();
        assert_eq!((attempts.failed(), attempts.failed()), (ms(10), ms(20)));
        attempts.succeeded();
        assert_eq!((attempts.failed(), attempts.failures()), (ms(10), 1));
    }
}
