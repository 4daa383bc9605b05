//! One line of a log file, as the runtime wrote it.
//!
//! CRI format: `2016-10-06T00:17:09.669794202Z stdout F text`, where the tag `P` says that the line goes on in the next
//! entry (more tags may follow after a colon). Docker's format: `{"log":"text\n","stream":"stdout","time":"…"}`, where a
//! text without final newline goes on. Upstream: `cri-client/pkg/logs`.

use std::borrow::Cow;

use serde::Deserialize;

/// Which of the container's outputs an entry came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// One entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) time: Time<'a>,
    pub(crate) stream: Stream,
    /// The text, ending in a newline unless the entry is partial or the file ends within it.
    pub(crate) text: Cow<'a, [u8]>,
    /// Whether the text goes on in the next entry (CRI only: in Docker's format the text itself shows it).
    pub(crate) partial: bool,
}

/// A time of day as it stands in the log. The text is kept because a reader is given back the zone that the runtime wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Time<'a> {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
    /// `2016-10-06T00:17:09`
    date_and_time: Cow<'a, [u8]>,
    /// `Z` or `+02:00`
    zone: Cow<'a, [u8]>,
}

#[derive(Deserialize)]
struct DockerEntry<'a> {
    #[serde(default)]
    log: String,
    #[serde(borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

impl<'a> Entry<'a> {
    /// Parses one line, with or without its final newline; `None` if it is in neither format.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        if line.first() == Some(&b'{') { Self::parse_docker(line) } else { Self::parse_cri(line) }
    }

    fn parse_cri(line: &'a [u8]) -> Option<Self> {
        let (time, rest) = split_at_space(line)?;
        let (stream, rest) = split_at_space(rest)?;
        let (tags, text) = split_at_space(rest)?;
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        let text = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
        Some(Entry {
            time: Time::parse(time)?,
            stream: parse_stream(stream)?,
            text: Cow::Borrowed(text),
            partial,
        })
    }

    fn parse_docker(line: &'a [u8]) -> Option<Self> {
        let entry: DockerEntry<'a> = serde_json::from_slice(line).ok()?;
        let time = Time::parse(entry.time.as_bytes())?.into_owned();
        let stream = parse_stream(entry.stream.as_bytes())?;
        Some(Entry { time, stream, text: Cow::Owned(entry.log.into_bytes()), partial: false })
    }
}

impl<'a> Time<'a> {
    /// Parses RFC 3339 as Go does: capital `T`, any number of fraction digits of which nine count, `Z` or an offset.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (date_and_time, rest) = text.split_at_checked(19)?;
        let number = |range: std::ops::Range<usize>| -> Option<i64> { digits(date_and_time.get(range)?) };
        for (at, separator) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
            if date_and_time.get(at) != Some(&separator) {
                return None;
            }
        }
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
        if !(1..=12).contains(&month)
            || !(1..=days_in_month(year, month)).contains(&day)
            || hour > 23
            || minute > 59
            || second > 59
        {
            return None;
        }
        let (nanoseconds, zone) = parse_fraction(rest)?;
        let offset = parse_zone(zone)?;
        let zone: &[u8] = if offset == 0 { b"Z" } else { zone };
        let seconds =
            days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
        Some(Self { seconds, nanoseconds, date_and_time: date_and_time.into(), zone: zone.into() })
    }

    /// Appends the time with exactly nine fraction digits and a space.
    pub(crate) fn write_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.date_and_time);
        out.push(b'.');
        out.extend_from_slice(format!("{:09}", self.nanoseconds).as_bytes());
        out.extend_from_slice(&self.zone);
        out.push(b' ');
    }

    fn into_owned<'b>(self) -> Time<'b> {
        Time {
            seconds: self.seconds,
            nanoseconds: self.nanoseconds,
            date_and_time: Cow::Owned(self.date_and_time.into_owned()),
            zone: Cow::Owned(self.zone.into_owned()),
        }
    }
}

fn split_at_space(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn parse_stream(text: &[u8]) -> Option<Stream> {
    match text {
        b"stdout" => Some(Stream::Stdout),
        b"stderr" => Some(Stream::Stderr),
        _ => None,
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter()
        .try_fold(0_i64, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

/// The nanoseconds of an optional fraction, and what follows it.
fn parse_fraction(text: &[u8]) -> Option<(u32, &[u8])> {
    let Some(text) = text.strip_prefix(b".") else { return Some((0, text)) };
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    let (fraction, rest) = text.split_at(length);
    let nanoseconds = (0..9)
        .fold(0, |value, place| value * 10 + fraction.get(place).map_or(0, |digit| u32::from(digit - b'0')));
    Some((nanoseconds, rest))
}

/// Seconds east of UTC.
fn parse_zone(text: &[u8]) -> Option<i64> {
    match text {
        b"Z" => Some(0),
        [sign @ (b'+' | b'-'), hour_tens, hour_ones, b':', minute_tens, minute_ones] => {
            let hours = digits(&[*hour_tens, *hour_ones])?;
            let minutes = digits(&[*minute_tens, *minute_ones])?;
            if hours > 24 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the Gregorian calendar, counting years from March so that leap days come last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(time: &str) -> Option<String> {
        let mut out = Vec::new();
        Time::parse(time.as_bytes())?.write_prefix(&mut out);
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn cri_lines() {
        let check = |line: &str, expected: Option<(Stream, &str, bool)>| {
            let entry = Entry::parse(line.as_bytes());
            let found = entry.as_ref().map(|e| (e.stream, std::str::from_utf8(&e.text).unwrap(), e.partial));
            assert_eq!(found, expected, "{line:?}");
        };
        let at = "2016-10-06T00:17:09.669794202Z";
        check(&format!("{at} stdout F log content 1\n"), Some((Stream::Stdout, "log content 1\n", false)));
        check(&format!("{at} stderr P part\n"), Some((Stream::Stderr, "part", true)));
        check(&format!("{at} stderr P:x:y part\n"), Some((Stream::Stderr, "part", true)));
        check(&format!("{at} stdout F:P whole\n"), Some((Stream::Stdout, "whole\n", false)));
        check(&format!("{at} stdout F \n"), Some((Stream::Stdout, "\n", false)));
        check(&format!("{at} stdout F "), Some((Stream::Stdout, "", false)));
        check(&format!("{at} stdout F cut"), Some((Stream::Stdout, "cut", false)));
        check(&format!("{at} stdout F\n"), None);
        check(&format!("{at} stdin F x\n"), None);
        check(&format!("{at}\n"), None);
        check("yesterday stdout F x\n", None);
        check("\n", None);
        check("", None);
        check("\0\0\0\0", None);
    }

    #[test]
    fn docker_lines() {
        let line = br#"{"log":"a \"b\" \u00e9\n","stream":"stderr","time":"2016-10-20T18:39:20.57606443Z"}"#;
        let entry = Entry::parse(line).unwrap();
        assert_eq!((entry.stream, entry.text.as_ref()), (Stream::Stderr, "a \"b\" é\n".as_bytes()));
        let mut out = Vec::new();
        entry.time.write_prefix(&mut out);
        assert_eq!(out, b"2016-10-20T18:39:20.576064430Z ");
        assert_eq!(Entry::parse(br#"{"log":"x","stream":"stdout"}"#), None);
        assert_eq!(Entry::parse(br#"{"log":"x\n","stream":"stdout","time":"2016-10-20T18:3"#), None);
    }

    #[test]
    fn times_get_nine_digits_and_keep_their_zone() {
        let rows = [
            ("2016-10-06T00:17:09.669794202Z", Some("2016-10-06T00:17:09.669794202Z ")),
            ("2016-10-06T00:17:09.66Z", Some("2016-10-06T00:17:09.660000000Z ")),
            ("2016-10-06T00:17:09Z", Some("2016-10-06T00:17:09.000000000Z ")),
            ("2016-10-06T00:17:09.1234567899Z", Some("2016-10-06T00:17:09.123456789Z ")),
            ("2016-10-06T00:17:09.5+02:00", Some("2016-10-06T00:17:09.500000000+02:00 ")),
            ("2016-10-06T00:17:09.5-00:00", Some("2016-10-06T00:17:09.500000000Z ")),
            ("2016-02-30T00:17:09Z", None),
            ("2016-10-06t00:17:09Z", None),
            ("2016-10-06T24:17:09Z", None),
            ("2016-10-06T00:17:60Z", None),
            ("2016-10-06T00:17:09.Z", None),
            ("2016-10-06T00:17:09", None),
            ("2016-10-06T00:17:0éZ", None),
        ];
        for (text, expected) in rows {
            assert_eq!(prefix(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn times_are_compared_as_instants() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2000-02-29T23:59:59.5+05:30",
            "1969-12-31T23:59:59.999999999Z",
            "2016-10-06T00:17:09-08:00",
            "9999-12-30T21:59:59Z",
            "0001-01-01T00:00:00Z",
        ] {
            let time = Time::parse(text.as_bytes()).unwrap();
            let expected: jiff::Timestamp = text.parse().unwrap();
            let ours = jiff::Timestamp::from_second(time.seconds).unwrap()
                + jiff::SignedDuration::new(0, i32::try_from(time.nanoseconds).unwrap());
            assert_eq!(ours, expected, "{text}");
        }
    }
}
