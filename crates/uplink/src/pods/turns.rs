//! Whose turn it is: what failed is tried again later, each by itself, and never keeps what has not failed from its turn.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use mainstay_apiserver::ApiError;
use mainstay_task::{Attempts, Backoff};
use tokio::time::Instant;

use super::plan::Target;

/// Requests under way at once: so many that an API server that takes half a second for each does not hold them below the
/// usual rate.
pub(super) const AT_ONCE: usize = 24;
/// Of these, so many at most for what failed before: a request that hangs has its place until its deadline.
const AGAIN_AT_ONCE: usize = AT_ONCE / 2;
/// While the API server is away, or asks to be left alone, nothing is tried.
const AWAY: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(10)).with_jitter(0.5);
/// One request that failed and may well succeed later.
const FAILED: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(30)).with_jitter(0.5);
/// One request that the API server refuses is tried again, ever more seldom.
const REFUSED: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(300)).with_jitter(0.2);
/// No server is left alone for longer, whatever it asks for.
const LONGEST: Duration = Duration::from_secs(60);
/// Failures are forgotten when nothing was tried for so long after it might have been.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// Who waits, and for how long.
#[derive(Debug)]
pub(super) struct Turns {
    waits: HashMap<Target, (Instant, Attempts)>,
    away: Attempts,
    away_until: Option<Instant>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { waits: HashMap::new(), away: AWAY.attempts(), away_until: None }
    }

    /// Whether nothing at all is tried now.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        self.away_until.is_some_and(|until| until > now)
    }

    /// What of all there is to do is begun now, beside what is under way: what never failed first.
    pub(super) fn pick<S>(
        &self,
        steps: Vec<(Target, S)>,
        busy: &HashSet<Target>,
        now: Instant,
    ) -> Vec<(Target, S)> {
        let may = |target: &Target| self.waits.get(target).is_none_or(|(until, _)| *until <= now);
        let mut steps: Vec<_> =
            steps.into_iter().filter(|(target, _)| !busy.contains(target) && may(target)).collect();
        steps.sort_by_key(|(target, _)| self.failures(target));
        let mut again = busy.iter().filter(|target| self.failures(target) > 0).count();
        steps.retain(|(target, _)| {
            let failed = self.failures(target) > 0;
            again += usize::from(failed);
            !failed || again <= AGAIN_AT_ONCE
        });
        steps.truncate(AT_ONCE.saturating_sub(busy.len()));
        steps
    }

    /// How often it failed in a row.
    fn failures(&self, target: &Target) -> u32 {
        self.waits.get(target).map_or(0, |(_, attempts)| attempts.failures())
    }

    /// When something may be tried that may not now.
    pub(super) fn next_wake(&mut self, now: Instant) -> Instant {
        self.waits.retain(|_, (until, _)| *until + FORGOTTEN > now);
        let waits = self.waits.values().map(|(until, _)| *until).filter(|until| *until > now);
        let far = now + Duration::from_secs(3600);
        waits.chain(self.away_until.filter(|until| *until > now)).min().unwrap_or(far)
    }

    /// It was done; it is not to be done again before `wait` is over.
    pub(super) fn succeeded(&mut self, target: Target, wait: Option<Duration>, now: Instant) {
        self.away.succeeded();
        match wait {
            Some(wait) => self.waits.insert(target, (now + wait, FAILED.attempts())),
            None => self.waits.remove(&target),
        };
    }

    /// It was not done. Whether that is worth a warning: the first time that it is refused.
    pub(super) fn failed(&mut self, target: Target, error: &ApiError, now: Instant) -> bool {
        if is_of_the_server(error) {
            // What was under way at the same time fails for the same reason: that counts once.
            if !self.is_away(now) {
                let asked = error.retry_after().unwrap_or_default().min(LONGEST);
                self.away_until = Some(now + self.away.failed().max(asked));
            }
            return false;
        }
        let refused = !error.is_transient();
        let fresh = if refused { REFUSED } else { FAILED }.attempts();
        let mut attempts = self.waits.remove(&target).map_or(fresh, |(_, attempts)| attempts);
        if attempts.failures() == 0 {
            attempts = fresh;
        }
        // One that is gone or replaced is seen to be so in the watch.
        let expected = matches!(error.status(), Some(404 | 409));
        let first = refused && !expected && attempts.failures() == 0;
        self.waits.insert(target, (now + attempts.failed(), attempts));
        first
    }
}

/// Whether the next request would fare the same, whatever it is about: nobody answers, we are not let in, or the server asks
/// to be left alone. Any other answer, and one that does not come, may be about this object only.
fn is_of_the_server(error: &ApiError) -> bool {
    match error {
        ApiError::Connect { .. }
        | ApiError::Tls { .. }
        | ApiError::Busy { .. }
        | ApiError::Broken { .. }
        | ApiError::Credentials(_)
        | ApiError::Unauthorized { .. } => true,
        ApiError::Status { status, retry_after, .. } => *status == 429 || retry_after.is_some(),
        ApiError::Timeout { .. } | ApiError::TooLarge { .. } | ApiError::Decode { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::FullName;

    fn target(number: usize) -> Target {
        let name = format!("p{number}");
        Target { full_name: FullName::new("default", &name), uid: name.as_str().into(), kind: "status" }
    }

    fn steps(numbers: impl IntoIterator<Item = usize>) -> Vec<(Target, ())> {
        numbers.into_iter().map(|number| (target(number), ())).collect()
    }

    fn names(picked: &[(Target, ())]) -> Vec<&str> {
        picked.iter().map(|(target, ())| &*target.full_name.name).collect()
    }

    fn answered(status: u16, retry_after: Option<Duration>) -> ApiError {
        let text = String::new;
        ApiError::Status { request: text(), status, reason: text(), message: text(), retry_after }
    }

    #[test]
    fn those_that_fail_keep_nobody_from_his_turn() {
        let start = Instant::now();
        let mut turns = Turns::new();
        let all = || steps(0..AT_ONCE * 3);
        let words = |range: std::ops::Range<usize>| -> Vec<String> {
            range.map(|number| format!("p{number}")).collect()
        };
        let first = turns.pick(all(), &HashSet::new(), start);
        assert_eq!(first.len(), AT_ONCE);
        for (target, ()) in first {
            assert!(!turns.failed(target, &answered(500, None), start), "no warning for what passes");
        }
        assert!(!turns.is_away(start), "the server answers");
        let fresh = words(AT_ONCE..AT_ONCE * 2);
        let next = turns.pick(all(), &HashSet::new(), start);
        assert_eq!(names(&next), fresh);
        // When they are due again they come last, and have half of the places at most.
        let later = start + Duration::from_secs(60);
        let next = turns.pick(all(), &HashSet::new(), later);
        assert_eq!(names(&next), fresh);
        let next = turns.pick(steps(0..AT_ONCE + 1), &HashSet::new(), later);
        let expected = [words(AT_ONCE..AT_ONCE + 1), words(0..AGAIN_AT_ONCE)].concat();
        assert_eq!(names(&next), expected);
        let busy: HashSet<_> = (0..AGAIN_AT_ONCE).map(target).collect();
        let next = turns.pick(steps(0..AT_ONCE + 2), &busy, later);
        assert_eq!(names(&next), words(AT_ONCE..AT_ONCE + 2), "hanging ones have their half already");
        // Each waits ever longer, and by itself.
        turns.failed(target(0), &answered(503, None), later);
        let soon = later + Duration::from_millis(600);
        assert_eq!(names(&turns.pick(steps(0..2), &HashSet::new(), soon)), ["p1"]);
        turns.succeeded(target(0), None, soon);
        assert_eq!(names(&turns.pick(steps(0..2), &HashSet::new(), soon)), ["p0", "p1"]);
    }

    #[test]
    fn a_server_that_is_away_is_left_alone_as_a_whole() {
        let start = Instant::now();
        let mut turns = Turns::new();
        let gone = ApiError::Connect { server: "s".into(), problem: "refused".into() };
        for number in 0..AT_ONCE {
            turns.failed(target(number), &gone, start);
        }
        assert!(turns.is_away(start));
        assert!(!turns.is_away(start + Duration::from_secs(1)), "many at once are one failure");
        assert!(turns.next_wake(start) <= start + Duration::from_secs(1));
        let mut turns = Turns::new();
        turns.failed(target(0), &answered(429, Some(Duration::from_secs(7))), start);
        assert!(turns.is_away(start + Duration::from_secs(6)));
        assert!(!turns.is_away(start + Duration::from_secs(8)));
    }

    #[test]
    fn only_the_first_refusal_is_worth_a_warning() {
        let now = Instant::now();
        let mut turns = Turns::new();
        assert!(turns.failed(target(0), &answered(422, None), now));
        assert!(!turns.failed(target(0), &answered(422, None), now));
        assert!(!turns.failed(target(1), &answered(404, None), now));
        assert!(turns.pick(steps(0..2), &HashSet::new(), now).is_empty());
    }
}
