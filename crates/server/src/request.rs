//! Paths and queries as Go's server reads them.

use std::borrow::Cow;

use http::{HeaderMap, header};

use crate::table::Route;

/// The pairs of a query string, in order. Pairs with a bare `;` or a bad `%` escape are dropped, as Go drops them.
#[derive(Debug, Default)]
pub(crate) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// In tests, whatever is asked for must be declared by the route.
    #[cfg(test)]
    of: Option<&'static Route>,
}

impl<'a> Query<'a> {
    pub(crate) fn parse(text: Option<&'a str>) -> Self {
        let pieces =
            text.unwrap_or_default().split('&').filter(|piece| !piece.is_empty() && !piece.contains(';'));
        let pairs = pieces.filter_map(|piece| {
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            Some((unescape(key, true)?, unescape(value, true)?))
        });
        Self {
            pairs: pairs.collect(),
            #[cfg(test)]
            of: None,
        }
    }

    /// The same as the query of a request to this route.
    #[cfg_attr(not(test), expect(unused_mut, unused_variables, reason = "only tests look at it"))]
    pub(crate) fn of(mut self, route: &'static Route) -> Self {
        #[cfg(test)]
        {
            self.of = Some(route);
        }
        self
    }

    /// The first value of that name.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of that name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        #[cfg(test)]
        if let Some(route) = self.of {
            assert!(route.declares(name), "{} reads {name:?}, which the table does not declare", route.path);
        }
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_ref())
    }

    /// A switch as the Kubernetes API reads it: off only if absent, `0` or `false`; an empty value or `no` is on.
    pub(crate) fn switch(&self, name: &str) -> bool {
        self.first(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// Undoes percent escapes, in queries also `+`; `None` if an escape is broken. Bytes that are not UTF-8 are replaced.
pub(crate) fn unescape(text: &str, query: bool) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| byte == b'%' || (query && byte == b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            b'+' if query => b' ',
            byte => byte,
        });
    }
    Some(Cow::Owned(String::from_utf8_lossy(&out).into_owned()))
}

/// The first percent escape that is broken, as far as it goes.
pub(crate) fn bad_escape(text: &str) -> Option<String> {
    let found = text.match_indices('%').map(|(at, _)| text.get(at..).unwrap_or_default());
    let bad = found.into_iter().find(|rest| {
        let mut digits = rest.bytes().skip(1).map_while(hex);
        digits.next().is_none() || digits.next().is_none()
    })?;
    Some(bad.chars().take(3).collect())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// The path without `//`, `.` and `..`; borrowed if it had none. A final slash stays.
pub(crate) fn clean(path: &str) -> Cow<'_, str> {
    let is_clean = path.starts_with('/')
        && path.split('/').enumerate().all(|(at, part)| match part {
            // The text before the first slash is empty, and so may be the one after the last.
            "" => at == 0 || at == path.bytes().filter(|byte| *byte == b'/').count(),
            "." | ".." => false,
            _ => true,
        });
    if is_clean {
        return Cow::Borrowed(path);
    }
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            part => kept.push(part),
        }
    }
    let mut out = String::with_capacity(path.len());
    for part in &kept {
        out.push('/');
        out.push_str(part);
    }
    if out.is_empty() || path.ends_with('/') {
        out.push('/');
    }
    Cow::Owned(out)
}

/// A text as Go's `%q` prints it.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a service that produces `produced` (empty: nothing declared) may answer. Literal, as upstream's router: only
/// `*/*` and the very type match, qualities and parameters do not count, an empty value is as none.
pub(crate) fn accepts(accept: Option<&str>, produced: &str) -> bool {
    let accept = accept.map(str::trim).unwrap_or_default();
    accept.is_empty()
        || accept.split(',').any(|item| {
            let media_type = item.split(';').next().unwrap_or_default().trim();
            media_type == "*/*" || (!produced.is_empty() && media_type == produced)
        })
}

/// Whether the client says that it can undo gzip.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT_ENCODING).iter().any(|value| {
        value.to_str().unwrap_or_default().split(',').any(|item| {
            let (coding, parameters) = item.split_once(';').unwrap_or((item, ""));
            let refused = parameters.split_once("q=").is_some_and(|(_, q)| q.trim().parse() == Ok(0.0_f32));
            coding.trim().eq_ignore_ascii_case("gzip") && !refused
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let query = Query::parse(Some("a=1&a=2&&b&c=%41%2B+x&bad=%zz&semi=a;b&%e4=1&=v"));
        assert_eq!(query.first("a"), Some("1"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.first("b"), Some(""));
        assert_eq!(query.first("c"), Some("A+ x"));
        assert_eq!(query.first("bad"), None);
        assert_eq!(query.first("semi"), None);
        assert_eq!(query.first(""), Some("v"));
        assert_eq!(query.first("\u{fffd}"), Some("1"));
        assert_eq!(Query::parse(None).first("a"), None);
    }

    #[test]
    fn switches() {
        let on = |query: &str| Query::parse(Some(query)).switch("follow");
        for text in ["follow=true", "follow=1", "follow=no", "follow=", "follow", "follow=2"] {
            assert!(on(text), "{text}");
        }
        for text in
            ["", "follow=0", "follow=false", "follow=FALSE", "follows=true", "follow=false&follow=true"]
        {
            assert!(!on(text), "{text}");
        }
    }

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/pods", "/pods"),
            ("/pods/", "/pods/"),
            ("/", "/"),
            ("", "/"),
            ("//pods", "/pods"),
            ("/pods//", "/pods/"),
            ("//", "/"),
            ("/a/./b", "/a/b"),
            ("/a/../pods", "/pods"),
            ("/../..", "/"),
            ("/a/..", "/"),
            ("/a/b/.", "/a/b"),
            ("/a/b/./", "/a/b/"),
            ("pods", "/pods"),
            ("/.hidden/..x", "/.hidden/..x"),
        ] {
            assert_eq!(clean(path), expected, "{path}");
            assert_eq!(matches!(clean(path), Cow::Borrowed(_)), path == expected, "{path}");
        }
        assert_eq!(unescape("/a%2Fb+c", false).as_deref(), Some("/a/b+c"));
        assert_eq!(unescape("/a%2", false), None);
        assert_eq!(unescape("/a%%", false), None);
    }

    #[test]
    fn accept_is_literal() {
        let json = "application/json";
        for accept in [
            None,
            Some(""),
            Some("*/*"),
            Some(json),
            Some("text/html, application/json;q=0.1"),
            Some("a/b,*/*;q=0"),
        ] {
            assert!(accepts(accept, json), "{accept:?}");
        }
        for accept in
            ["*", "text/*", "application/*", "application/json2", "text/html", "application/yaml,text/plain"]
        {
            assert!(!accepts(Some(accept), json), "{accept:?}");
        }
        assert!(accepts(Some("*/*"), ""));
        assert!(accepts(None, ""));
        assert!(!accepts(Some(json), ""));
        assert!(!accepts(Some(";"), ""));
    }

    #[test]
    fn quoting() {
        assert_eq!(quoted("web"), r#""web""#);
        assert_eq!(quoted("a\"b\\\n\u{1}é"), r#""a\"b\\\n\x01é""#);
    }
}
