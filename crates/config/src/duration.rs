//! Durations as Go writes them: `1m30s`, `100ms`, `-5s`, `0`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A signed span of time with Go's text form, in which every duration of the configuration is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// A text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not follow the grammar.
    #[error("invalid duration {0:?}: write a number and a unit, such as \"30s\", \"1m30s\" or \"100ms\"")]
    Syntax(String),
    /// A number stands without its unit.
    #[error("missing unit in duration {0:?}: write one of ns, us, ms, s, m, h behind each number")]
    MissingUnit(String),
    /// A unit is none of Go's.
    #[error("unknown unit {unit:?} in duration {text:?}: use ns, us, ms, s, m or h")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// The value does not fit into 64 bits of nanoseconds (about 292 years).
    #[error("duration {0:?} is too long: the longest is about 292 years")]
    TooLong(String),
}

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self { nanoseconds: 0 };

    /// A duration of whole nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self { nanoseconds }
    }

    /// A duration of whole milliseconds; saturates at the longest duration.
    pub const fn from_milliseconds(milliseconds: i64) -> Self {
        Self { nanoseconds: milliseconds.saturating_mul(1_000_000) }
    }

    /// A duration of whole seconds; saturates at the longest duration.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self { nanoseconds: seconds.saturating_mul(1_000_000_000) }
    }

    /// The length in nanoseconds, negative if the duration is.
    pub const fn nanoseconds(self) -> i64 {
        self.nanoseconds
    }

    /// Whether this is exactly no time.
    pub const fn is_zero(self) -> bool {
        self.nanoseconds == 0
    }

    /// Whether this lies before zero.
    pub const fn is_negative(self) -> bool {
        self.nanoseconds < 0
    }

    /// The same span for timers; a negative duration becomes zero.
    pub const fn as_std(self) -> std::time::Duration {
        if self.nanoseconds < 0 {
            return std::time::Duration::ZERO;
        }
        std::time::Duration::from_nanos(self.nanoseconds.unsigned_abs())
    }
}

impl From<GoDuration> for std::time::Duration {
    fn from(duration: GoDuration) -> Self {
        duration.as_std()
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let syntax = || DurationError::Syntax(text.to_owned());
        let too_long = || DurationError::TooLong(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(syntax());
        }
        // The sum is kept unsigned and wide, so that i64::MIN can be read and no step overflows.
        let mut total: u128 = 0;
        while !rest.is_empty() {
            let (whole, after) = take_digits(rest);
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => take_digits(after),
                None => ("", after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(syntax());
            }
            let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(unit_end);
            if unit.is_empty() {
                return Err(DurationError::MissingUnit(text.to_owned()));
            }
            let scale = unit_nanoseconds(unit)
                .ok_or_else(|| DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() })?;
            let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_long())? };
            total = whole.checked_mul(scale).and_then(|n| total.checked_add(n)).ok_or_else(too_long)?;
            total = total.checked_add(fraction_nanoseconds(fraction, scale)).ok_or_else(too_long)?;
            rest = after;
        }
        let signed = i128::try_from(total).map_err(|_| too_long())?;
        let signed = if negative { -signed } else { signed };
        i64::try_from(signed).map(Self::from_nanoseconds).map_err(|_| too_long())
    }
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn unit_nanoseconds(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        // Both code points for the micro sign are in use.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The nanoseconds of `.digits` of a unit; what is finer than a nanosecond is cut off.
fn fraction_nanoseconds(digits: &str, scale: u128) -> u128 {
    let (mut numerator, mut denominator) = (0, 1);
    // 24 digits of the longest unit still fit into 128 bits, and are far finer than a nanosecond.
    for digit in digits.bytes().take(24) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    numerator * scale / denominator
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_negative() {
            f.write_str("-")?;
        }
        let length = std::time::Duration::from_nanos(self.nanoseconds.unsigned_abs());
        f.write_str(&mainstay_types::format_go_duration(length))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_as_go_does() {
        for (text, nanoseconds, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-0", 0, "0s"),
            ("1m", 60_000_000_000, "1m0s"),
            ("1m0s", 60_000_000_000, "1m0s"),
            ("4h", 14_400_000_000_000, "4h0m0s"),
            ("100ms", 100_000_000, "100ms"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("2h45m", 9_900_000_000_000, "2h45m0s"),
            ("90s", 90_000_000_000, "1m30s"),
            ("1500us", 1_500_000, "1.5ms"),
            ("1\u{b5}s", 1_000, "1\u{b5}s"),
            ("7ns", 7, "7ns"),
            ("-5s", -5_000_000_000, "-5s"),
            ("+5s", 5_000_000_000, "5s"),
            ("1h0.001s", 3_600_001_000_000, "1h0m0.001s"),
            ("0.000000001s", 1, "1ns"),
            ("0.33333h", 1_199_988_000_000, "19m59.988s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let duration: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(duration.nanoseconds(), nanoseconds, "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<GoDuration>().unwrap(), duration, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for (text, part) in [
            ("", "invalid"),
            ("-", "invalid"),
            ("s", "invalid"),
            (".s", "invalid"),
            ("3", "missing unit"),
            ("1m3", "missing unit"),
            ("3 s", "unknown unit"),
            ("3d", "unknown unit"),
            ("9223372036854775808ns", "too long"),
            ("99999999999999999999999999999999999999999h", "too long"),
            ("3000000h", "too long"),
        ] {
            let error = text.parse::<GoDuration>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn negative_is_zero_for_timers() {
        assert_eq!(GoDuration::from_seconds(-3).as_std(), std::time::Duration::ZERO);
        assert_eq!(GoDuration::from_milliseconds(2).as_std(), std::time::Duration::from_millis(2));
    }
}
