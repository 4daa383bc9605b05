//! Times as kubectl shows them.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// How long ago, in at most two units (apimachinery's `HumanDuration`); `<unknown>` without a time.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "<unknown>".to_owned(), |since| span(now.as_second() - since.as_second()))
}

fn span(seconds: i64) -> String {
    let two = |unit: i64, name: char, lower: i64, lower_name: char| {
        let rest = seconds % unit / lower;
        if rest == 0 {
            format!("{}{name}", seconds / unit)
        } else {
            format!("{}{name}{rest}{lower_name}", seconds / unit)
        }
    };
    match seconds {
        // Clocks that differ by a second are no news; a time in the future is.
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        s => format!("{}y", s / YEAR),
    }
}

/// `Sun, 15 Nov 2026 09:57:24 +0000`.
pub(crate) fn full_time(time: Timestamp) -> String {
    time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR + DAY, "8y"),
        ] {
            assert_eq!(span(seconds), expected, "{seconds}");
        }
        assert_eq!(age(None, Timestamp::now()), "<unknown>");
    }

    #[test]
    fn full_times() {
        let time: Timestamp = "2026-11-15T09:57:24.8Z".parse().unwrap();
        assert_eq!(full_time(time), "Sun, 15 Nov 2026 09:57:24 +0000");
    }
}
