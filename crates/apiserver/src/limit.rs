//! No more requests than the API server wants: so many a second, and some at once.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How many requests are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Each second, in the long run; `kubeAPIQPS`. 0 stands for client-go's 5.
    pub per_second: u32,
    /// At once; `kubeAPIBurst`. 0 stands for client-go's 10.
    pub burst: u32,
}

/// A bucket that fills at a rate, and from which each request takes one.
#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: f64,
    burst: f64,
    bucket: Mutex<(f64, Instant)>,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        let or = |number: u32, other: u32| f64::from(if number == 0 { other } else { number });
        let burst = or(rate.burst, 10);
        Self { per_second: or(rate.per_second, 5), burst, bucket: Mutex::new((burst, Instant::now())) }
    }

    /// Waits for its turn, unless that would take longer than `patience`: then nothing is waited for and nothing used up,
    /// and how long it would have taken is returned. One that stops waiting gives its turn back.
    pub(crate) async fn turn(&self, patience: Duration) -> Result<(), Duration> {
        let wait = self.take(Instant::now(), patience)?;
        if !wait.is_zero() {
            let waiting = Waiting(self);
            tokio::time::sleep(wait).await;
            std::mem::forget(waiting);
        }
        Ok(())
    }

    fn take(&self, now: Instant, patience: Duration) -> Result<Duration, Duration> {
        let mut bucket = self.lock();
        let (level, at) = *bucket;
        let filled =
            (level + now.saturating_duration_since(at).as_secs_f64() * self.per_second).min(self.burst);
        // Below zero: those who wait are in debt, and the next one waits longer.
        let level = filled - 1.0;
        let wait =
            if level >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-level / self.per_second) };
        if wait > patience {
            return Err(wait);
        }
        *bucket = (level, now);
        Ok(wait)
    }

    fn lock(&self) -> MutexGuard<'_, (f64, Instant)> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits for his turn. Dropped, it goes to the next one: what nobody waits for any more must not keep others
/// waiting, or whoever comes and goes fast enough shuts everybody out.
struct Waiting<'a>(&'a Limiter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().0 += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_burst_then_the_rate() {
        let limiter = Limiter::new(Rate { per_second: 10, burst: 3 });
        let start = Instant::now();
        let take = |at| limiter.take(at, LONG).unwrap().as_millis();
        let waits: Vec<u128> = (0..5).map(|_| take(start)).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = start + Duration::from_secs(60);
        let waits: Vec<u128> = (0..4).map(|_| take(later)).collect();
        assert_eq!(waits, [0, 0, 0, 100], "no more than a burst is saved up");
        assert_eq!(Limiter::new(Rate { per_second: 0, burst: 0 }).burst, 10.0);
    }

    #[test]
    fn nobody_waits_longer_than_he_would() {
        let limiter = Limiter::new(Rate { per_second: 10, burst: 1 });
        let (start, patience) = (Instant::now(), Duration::from_secs(1));
        let served = (0..1000).filter(|_| limiter.take(start, patience).is_ok()).count();
        assert_eq!(served, 11, "the burst, and those whose turn comes within a second");
        let wait = limiter.take(start, patience).unwrap_err();
        assert_eq!(wait.as_millis(), 1100);
        assert!(
            limiter.take(start + Duration::from_secs(2), patience).unwrap().is_zero(),
            "no debt beyond that"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_leave_give_their_turn_back() {
        let limiter = Limiter::new(Rate { per_second: 1, burst: 1 });
        limiter.turn(LONG).await.unwrap();
        let start = Instant::now();
        for _ in 0..100 {
            let left = tokio::time::timeout(Duration::from_millis(1), limiter.turn(LONG)).await;
            assert!(left.is_err(), "the bucket is empty");
        }
        limiter.turn(LONG).await.unwrap();
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(3), "{waited:?}: in debt for those who left");
        limiter.turn(LONG).await.unwrap();
        assert!(start.elapsed() > waited, "one that waited to its end has had its turn");
    }
}
