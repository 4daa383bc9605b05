//! What of a file a request wants: conditions on its age, and ranges of it. As Go's `http.ServeContent` understands both
//! (Go 1.26); there are no entity tags.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, header};
use jiff::{Timestamp, civil::DateTime, fmt::strtime, tz::TimeZone};

/// What the conditions of a request come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Send it: all of it, or what this `Range` header says.
    Send(Option<String>),
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// A `Range` header that cannot be obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRange {
    /// It is no range of bytes.
    Invalid,
    /// It lies behind the end.
    NoOverlap,
}

/// Judges the conditions of a GET.
pub(crate) fn verdict(headers: &HeaderMap, modified: Option<SystemTime>) -> Verdict {
    let modified = modified.and_then(seconds);
    let text = |name: HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
    };
    let not_since = |name| Some(modified? <= text(name).and_then(parse_date)?);
    match text(header::IF_MATCH) {
        // Nothing has a tag, so only the star can match.
        Some(tags) if tags.trim() != "*" => return Verdict::Failed,
        Some(_) => {}
        None if not_since(header::IF_UNMODIFIED_SINCE) == Some(false) => return Verdict::Failed,
        None => {}
    }
    match text(header::IF_NONE_MATCH) {
        Some(tags) if tags.trim().starts_with('*') => return Verdict::NotModified,
        Some(_) => {}
        None if not_since(header::IF_MODIFIED_SINCE) == Some(true) => return Verdict::NotModified,
        None => {}
    }
    let range = text(header::RANGE).filter(|_| match text(header::IF_RANGE) {
        None => true,
        Some(date) => modified.is_some() && modified == parse_date(date),
    });
    Verdict::Send(range.map(str::to_owned))
}

/// The parts of a file of `size` bytes that are wanted; none for all of it.
pub(crate) fn parts(range: &str, size: u64) -> Result<Vec<Part>, BadRange> {
    let list = range.strip_prefix("bytes=").ok_or(BadRange::Invalid)?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // What does not fit into Go's integers is no number there.
        text.parse()
            .ok()
            .filter(|number: &u64| digits && i64::try_from(*number).is_ok())
            .ok_or(BadRange::Invalid)
    };
    let (mut parts, mut behind) = (Vec::new(), false);
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (start, end) = item.split_once('-').ok_or(BadRange::Invalid)?;
        let (start, end) = (start.trim(), end.trim());
        if start.is_empty() {
            let len = number(end)?.min(size);
            parts.push(Part { start: size - len, len });
            continue;
        }
        let start = number(start)?;
        if start >= size {
            behind = true;
            continue;
        }
        let last = if end.is_empty() { size - 1 } else { number(end)? };
        if start > last {
            return Err(BadRange::Invalid);
        }
        parts.push(Part { start, len: last.min(size - 1) - start + 1 });
    }
    if parts.is_empty() && behind {
        // Nothing at all can be asked of an empty file; it is sent as it is.
        return if size == 0 { Ok(parts) } else { Err(BadRange::NoOverlap) };
    }
    // Whoever asks for more than there is gets it once.
    let wanted = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.len));
    Ok(if wanted > size { Vec::new() } else { parts })
}

impl BadRange {
    /// Go's text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Invalid => "invalid range",
            Self::NoOverlap => "invalid range: failed to overlap",
        }
    }
}

/// A time as HTTP writes it.
pub(crate) fn http_date(time: SystemTime) -> Option<String> {
    let time = Timestamp::from_second(seconds(time)?).ok()?;
    strtime::format("%a, %d %b %Y %H:%M:%S GMT", &time.to_zoned(TimeZone::UTC)).ok()
}

fn seconds(time: SystemTime) -> Option<i64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_secs()).ok())
}

/// The three forms that a date in HTTP may have.
fn parse_date(text: &str) -> Option<i64> {
    ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"].iter().find_map(
        |form| {
            let time = DateTime::strptime(form, text).ok()?;
            Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn dates() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_999);
        assert_eq!(http_date(time).as_deref(), Some(DATE));
        for text in [DATE, "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_date(text), Some(784_111_777), "{text}");
        }
        for text in ["", "yesterday", "1994-11-06T08:49:37Z"] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn conditions() {
        let modified = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500));
        let earlier = "Sun, 06 Nov 1994 08:49:36 GMT";
        let all = || Verdict::Send(None);
        let cases: &[(&[(&str, &str)], Verdict)] = &[
            (&[], all()),
            (&[("if-modified-since", DATE)], Verdict::NotModified),
            (&[("if-modified-since", earlier)], all()),
            (&[("if-modified-since", "nonsense")], all()),
            (&[("if-unmodified-since", DATE)], all()),
            (&[("if-unmodified-since", earlier)], Verdict::Failed),
            (&[("if-match", "*")], all()),
            (&[("if-match", "\"x\"")], Verdict::Failed),
            (&[("if-none-match", "*")], Verdict::NotModified),
            (&[("if-none-match", "\"x\""), ("if-modified-since", DATE)], all()),
            (&[("range", "bytes=1-")], Verdict::Send(Some("bytes=1-".into()))),
            (&[("range", "bytes=1-"), ("if-range", DATE)], Verdict::Send(Some("bytes=1-".into()))),
            (&[("range", "bytes=1-"), ("if-range", earlier)], all()),
            (&[("range", "bytes=1-"), ("if-range", "\"x\"")], all()),
        ];
        for (given, expected) in cases {
            let mut headers = HeaderMap::new();
            for (name, value) in *given {
                headers.insert(HeaderName::from_static(name), value.parse().unwrap());
            }
            assert_eq!(verdict(&headers, modified), *expected, "{given:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_MODIFIED_SINCE, DATE.parse().unwrap());
        assert_eq!(verdict(&headers, None), all(), "of unknown age");
    }

    #[test]
    fn ranges() {
        let one = |start, len| Ok(vec![Part { start, len }]);
        for (range, expected) in [
            ("bytes=0-3", one(0, 4)),
            ("bytes=0-0", one(0, 1)),
            ("bytes=5-", one(5, 5)),
            ("bytes=-3", one(7, 3)),
            ("bytes=-30", one(0, 10)),
            ("bytes=8-20", one(8, 2)),
            ("bytes= 1 - 2 ,,", one(1, 2)),
            ("bytes=0-1,3-4", Ok(vec![Part { start: 0, len: 2 }, Part { start: 3, len: 2 }])),
            ("bytes=0-1,30-", one(0, 2)),
            ("bytes=0-9,0-9", Ok(vec![])),
            ("bytes=", Ok(vec![])),
            ("bytes=10-", Err(BadRange::NoOverlap)),
            ("bytes=99999999999999999999-", Err(BadRange::Invalid)),
            ("bytes=3-1", Err(BadRange::Invalid)),
            ("bytes=--3", Err(BadRange::Invalid)),
            ("bytes=-", Err(BadRange::Invalid)),
            ("bytes=a-b", Err(BadRange::Invalid)),
            ("bytes=1", Err(BadRange::Invalid)),
            ("lines=1-2", Err(BadRange::Invalid)),
            ("bytes=+1-2", Err(BadRange::Invalid)),
        ] {
            assert_eq!(parts(range, 10), expected, "{range}");
        }
        assert_eq!(parts("bytes=0-", 0), Ok(vec![]));
        assert_eq!(parts("bytes=-5", 0), one(0, 0));
    }
}
