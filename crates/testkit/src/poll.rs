//! Bounded waiting that says what it last saw.

use crate::patient;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Calls `check` until it gives a value, at first every 20 ms, later every 100 ms (less often on a slow machine). There is
/// always a last look after the deadline: a caller that was held up itself must not blame what it waited for.
///
/// # Errors
/// After `timeout` (more on a slow machine, see [`patient`]), with `what` was waited for and the reason `check` gave last.
pub fn wait_until<T>(
    timeout: Duration,
    what: &str,
    mut check: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let timeout = patient(timeout);
    let start = Instant::now();
    let mut is_last_look = false;
    loop {
        let last = match check() {
            Ok(value) => return Ok(value),
            Err(reason) => reason,
        };
        let waited = start.elapsed();
        if is_last_look {
            bail!("waited {:.1} s for {what}; last seen: {last}", waited.as_secs_f64());
        }
        is_last_look = waited >= timeout;
        // Reading a hundred pods costs more than a small sleep, so a long wait polls less often.
        // A slow machine has better things to do than to answer a poll.
        let pause = if waited < patient(Duration::from_secs(2)) { 20 } else { 100 };
        std::thread::sleep(patient(Duration::from_millis(pause)).min(LONGEST_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_the_wish_and_the_last_reason() {
        let mut calls = 0;
        let error = wait_until(Duration::from_millis(50), "the moon", || {
            calls += 1;
            Err::<(), _>(format!("cloud {calls}"))
        })
        .unwrap_err();
        assert!(calls >= 2);
        let text = error.to_string();
        assert!(text.contains("for the moon") && text.contains(&format!("cloud {calls}")), "{text}");
    }
}
