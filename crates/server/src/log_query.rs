//! What a request for logs asks for. Names, ranges and texts as upstream (`PodLogOptions` and its validation).

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use mainstay_logs::{Options, Streams};

use crate::{
    answer::{self, Answer},
    request::Query,
};

/// A request for logs that could be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogQuery {
    /// The instance before the present one.
    pub(crate) previous: bool,
    /// How to read.
    pub(crate) options: Options,
}

/// Why a request for logs is refused before any pod is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadLogQuery {
    /// A value is not of its type.
    Undecodable,
    /// A value is out of range, or two of them exclude each other.
    Invalid,
}

impl BadLogQuery {
    pub(crate) fn answer(self) -> Answer {
        match self {
            Self::Undecodable => {
                answer::plain(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#)
            }
            Self::Invalid => {
                answer::plain(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#)
            }
        }
    }
}

impl LogQuery {
    pub(crate) fn parse(query: &Query<'_>, now: Timestamp) -> Result<Self, BadLogQuery> {
        // `tail` is the older name and wins; `all` is as if neither were given.
        let tail_lines = match query.first("tail").filter(|tail| !tail.is_empty()) {
            Some("all") => None,
            Some(tail) => Some(integer(tail)?),
            None => query.first("tailLines").map(integer).transpose()?,
        };
        let limit_bytes = query.first("limitBytes").map(integer).transpose()?;
        let since_seconds = query.first("sinceSeconds").map(integer).transpose()?;
        let since_time = query.first("sinceTime").map(time).transpose()?;

        // Everything was readable; from here on it is a question of range.
        let tail_lines = tail_lines.map(u64::try_from).transpose().map_err(|_| BadLogQuery::Invalid)?;
        let limit_bytes = limit_bytes.map(at_least_one).transpose()?;
        let since_seconds = since_seconds.map(at_least_one).transpose()?;
        if since_seconds.is_some() && since_time.is_some() {
            return Err(BadLogQuery::Invalid);
        }
        let streams = match query.first("stream") {
            None | Some("All") => Streams::All,
            Some("Stdout") => Streams::Stdout,
            Some("Stderr") => Streams::Stderr,
            Some(_) => return Err(BadLogQuery::Invalid),
        };
        if streams != Streams::All && tail_lines.is_some() {
            return Err(BadLogQuery::Invalid);
        }
        let since = match since_seconds {
            Some(seconds) => Some(before(now, seconds)),
            None => since_time.flatten(),
        };
        Ok(Self {
            previous: query.switch("previous"),
            options: Options {
                follow: query.switch("follow"),
                tail_lines,
                since,
                limit_bytes,
                timestamps: query.switch("timestamps"),
                streams,
            },
        })
    }
}

fn integer(text: &str) -> Result<i64, BadLogQuery> {
    text.parse().map_err(|_| BadLogQuery::Undecodable)
}

fn at_least_one(value: i64) -> Result<u64, BadLogQuery> {
    u64::try_from(value).ok().filter(|value| *value > 0).ok_or(BadLogQuery::Invalid)
}

/// RFC 3339 as Go parses it; empty and `null` are the zero time, which leaves nothing out.
pub(crate) fn time(text: &str) -> Result<Option<Timestamp>, BadLogQuery> {
    if text.is_empty() || text == "null" {
        return Ok(None);
    }
    // The parser below is more generous than Go (a space for the `T`, small letters, zones in brackets).
    let bytes = text.as_bytes();
    let strict = bytes.get(10) == Some(&b'T')
        && bytes.get(19).is_some()
        && bytes.iter().enumerate().all(|(at, byte)| {
            byte.is_ascii_digit()
                || matches!(byte, b'-' | b':' | b'.' | b'+' | b',')
                || (at == 10 && *byte == b'T')
                || (at + 1 == bytes.len() && *byte == b'Z')
        });
    if !strict {
        return Err(BadLogQuery::Undecodable);
    }
    text.parse().map(Some).map_err(|_| BadLogQuery::Undecodable)
}

/// Times before the beginning of all times are that beginning.
fn before(now: Timestamp, seconds: u64) -> Timestamp {
    let seconds = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    now.checked_sub(seconds).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<LogQuery, BadLogQuery> {
        LogQuery::parse(&Query::parse(Some(query)), "2026-01-01T00:01:00Z".parse().unwrap())
    }

    fn options(query: &str) -> Options {
        parse(query).unwrap_or_else(|error| panic!("{query}: {error:?}")).options
    }

    #[test]
    fn refusals() {
        use BadLogQuery::{Invalid, Undecodable};
        for (query, expected) in [
            ("tailLines=x", Undecodable),
            ("tailLines=", Undecodable),
            ("tailLines=1.5", Undecodable),
            ("tailLines=99999999999999999999", Undecodable),
            ("tail=x", Undecodable),
            ("tail=x&tailLines=5", Undecodable),
            ("limitBytes=", Undecodable),
            ("sinceSeconds=a", Undecodable),
            ("sinceTime=yesterday", Undecodable),
            ("sinceTime=2026-01-01", Undecodable),
            ("sinceTime=2026-01-01T00:00:00", Undecodable),
            ("sinceTime=2026-01-01t00:00:00z", Undecodable),
            ("sinceTime=2026-01-01%2000:00:00Z", Undecodable),
            ("sinceTime=2026-01-01T00:00:00Z[UTC]", Undecodable),
            // What cannot be decoded comes first, wherever it stands.
            ("tailLines=-1&limitBytes=x", Undecodable),
            ("tailLines=-1", Invalid),
            ("tail=-1", Invalid),
            ("limitBytes=0", Invalid),
            ("limitBytes=-5", Invalid),
            ("sinceSeconds=0", Invalid),
            ("sinceSeconds=-1", Invalid),
            ("sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z", Invalid),
            ("sinceSeconds=5&sinceTime=", Invalid),
            ("stream=stdout", Invalid),
            ("stream=", Invalid),
            ("stream=Both", Invalid),
            ("stream=Stdout&tailLines=5", Invalid),
            ("stream=Stderr&tail=5", Invalid),
        ] {
            assert_eq!(parse(query), Err(expected), "{query}");
        }
    }

    #[test]
    fn understood() {
        assert_eq!(options(""), Options::default());
        assert_eq!(options("container=x&insecureSkipTLSVerifyBackend=&unknown=1"), Options::default());
        assert_eq!(options("tailLines=0").tail_lines, Some(0));
        assert_eq!(options("tailLines=%2B7").tail_lines, Some(7));
        assert_eq!(options("tail=3&tailLines=7").tail_lines, Some(3));
        assert_eq!(options("tail=&tailLines=7").tail_lines, Some(7));
        assert_eq!(options("tail=all&tailLines=7").tail_lines, None);
        assert_eq!(options("tail=all&tailLines=x").tail_lines, None);
        assert_eq!(options("tailLines=1&tailLines=2").tail_lines, Some(1));
        assert_eq!(options("limitBytes=1").limit_bytes, Some(1));
        assert_eq!(options("sinceSeconds=60").since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(options("sinceSeconds=9223372036854775807").since, Some(Timestamp::MIN));
        assert_eq!(
            options("sinceTime=2026-01-01T02:00:00.5%2B02:00").since,
            Some("2026-01-01T00:00:00.5Z".parse().unwrap())
        );
        assert_eq!(options("sinceTime=").since, None);
        assert_eq!(options("sinceTime=null").since, None);
        assert_eq!(options("stream=All&tailLines=1").streams, Streams::All);
        assert_eq!(options("stream=Stdout").streams, Streams::Stdout);
        assert_eq!(options("stream=Stderr").streams, Streams::Stderr);
        assert!(options("follow=&timestamps=no").follow);
        assert!(options("follow=&timestamps=no").timestamps);
        assert!(!options("follow=0&timestamps=False").timestamps);
        assert!(parse("previous").unwrap().previous);
    }
}
