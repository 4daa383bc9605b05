//! Times and durations in the spelling Go clients expect.

use std::{fmt::Write as _, time::Duration};

use jiff::Timestamp;

/// `2026-01-31T15:04:05.123456789Z`: RFC 3339 with exactly nine fraction digits, as in `kubernetes.io/config.seen`.
#[must_use]
pub fn rfc3339_nanos(time: Timestamp) -> String {
    let whole = to_seconds(time);
    let nanos = time.as_nanosecond().rem_euclid(1_000_000_000);
    let text = whole.to_string();
    format!("{}.{nanos:09}Z", text.trim_end_matches('Z'))
}

/// Cuts a time to whole seconds, downwards: API times have no fractions.
#[must_use]
pub fn to_seconds(time: Timestamp) -> Timestamp {
    let seconds = time.as_nanosecond().div_euclid(1_000_000_000);
    i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(time)
}

/// A duration as Go prints it: `1m0s`, `10s`, `100ms`, `1.5s`.
#[must_use]
pub fn format_go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return fraction(nanos, 1_000, "µs");
    }
    if nanos < 1_000_000_000 {
        return fraction(nanos, 1_000_000, "ms");
    }
    let seconds = duration.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    let below_a_minute = u128::from(seconds % 60) * 1_000_000_000 + u128::from(duration.subsec_nanos());
    // Writing to a String cannot fail.
    write!(text, "{}", fraction(below_a_minute, 1_000_000_000, "s")).ok();
    text
}

fn fraction(value: u128, unit: u128, suffix: &str) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return format!("{whole}{suffix}");
    }
    let digits = unit.ilog10() as usize;
    let rest = format!("{rest:0digits$}");
    format!("{whole}.{}{suffix}", rest.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_in_go() {
        for (nanos, expected) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5µs"),
            (100_000_000, "100ms"),
            (1_500_000_000, "1.5s"),
            (10_000_000_000, "10s"),
            (60_000_000_000, "1m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_415_250_000_000, "1h30m15.25s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_nanos(nanos)), expected);
        }
    }

    #[test]
    fn nanosecond_times_have_nine_digits() {
        let time: Timestamp = "2026-11-15T09:57:24.8412Z".parse().unwrap();
        assert_eq!(rfc3339_nanos(time), "2026-11-15T09:57:24.841200000Z");
        assert_eq!(rfc3339_nanos(to_seconds(time)), "2026-11-15T09:57:24.000000000Z");
    }
}
