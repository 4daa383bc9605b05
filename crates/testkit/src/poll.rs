//! Bounded waiting that says what it last saw.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Calls `check` until it gives a value, at first every 20 ms, later every 100 ms.
///
/// # Errors
/// After `timeout`, with `what` was waited for and the reason `check` gave last.
pub fn wait_until<T>(
    timeout: Duration,
    what: &str,
    mut check: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match check() {
            Ok(value) => return Ok(value),
            Err(reason) => reason,
        };
        let waited = start.elapsed();
        if waited >= timeout {
            bail!("waited {:.1} s for {what}; last seen: {last}", waited.as_secs_f64());
        }
        // Reading a hundred pods costs more than a small sleep, so a long wait polls less often.
        let pause = if waited < Duration::from_secs(2) { 20 } else { 100 };
        std::thread::sleep(Duration::from_millis(pause));
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
