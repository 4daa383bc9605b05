//! A request's form, as Go's `ParseForm` reads it: the pairs of the query and of a body that says that it is one, and what is
//! wrong with them, in Go's words. Upstream objects to it in `/stats/summary` alone; elsewhere what is broken is left out
//! ([`Query`](crate::request::Query)).

use std::collections::HashMap;

use http::{HeaderMap, Method, header};
use hyper::body::Incoming;

use crate::{call, request};

/// A form that somebody types or a program makes is shorter.
const MAX_BODY: usize = 64 << 10;
const FORM: &str = "application/x-www-form-urlencoded";

/// Reads the body of a request whose query is `query`, if it is a form. `None` for none.
///
/// # Errors
/// What is wrong with the body or else with the query.
pub(crate) async fn read(
    method: &Method,
    headers: &HeaderMap,
    query: Option<&str>,
    body: Incoming,
) -> Result<Option<String>, String> {
    let mut text = None;
    if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
        let kind = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
        if is_form(kind.as_deref().unwrap_or_default())? {
            let body = call::read(body, MAX_BODY).await.map_err(|error| error.to_string())?;
            let body = String::from_utf8_lossy(&body).into_owned();
            problem(&body).map_or(Ok(()), Err)?;
            text = Some(body);
        }
    }
    query.and_then(problem).map_or(Ok(text), Err)
}

/// What Go says of a query or form that it reads in part only: of a bare `;` rather than of a bad escape, of which the first
/// is named.
pub(crate) fn problem(query: &str) -> Option<String> {
    let pairs = || query.split('&');
    if pairs().any(|pair| pair.contains(';')) {
        return Some("invalid semicolon separator in query".to_owned());
    }
    let bad = pairs().flat_map(|pair| pair.splitn(2, '=')).find_map(request::bad_escape)?;
    Some(format!("invalid URL escape {}", request::quoted(&bad)))
}

/// Whether the body is a form, by its media type. None given means that it is not.
pub(crate) fn is_form(kind: &str) -> Result<bool, &'static str> {
    if kind.is_empty() {
        return Ok(false);
    }
    let (base, mut rest) = kind.split_at(kind.find(';').unwrap_or(kind.len()));
    let base = base.trim().to_lowercase();
    check_type(&base)?;
    let mut known: HashMap<String, String> = HashMap::new();
    while !rest.trim_start().is_empty() {
        let Some((name, value, left)) = parameter(rest) else {
            // A semicolon that nothing follows does no harm.
            return if rest.trim() == ";" { Ok(base == FORM) } else { Err("mime: invalid media parameter") };
        };
        if known.get(&name).is_some_and(|before| *before != value) {
            return Err("mime: duplicate parameter name");
        }
        known.insert(name, value);
        rest = left;
    }
    Ok(base == FORM)
}

fn check_type(base: &str) -> Result<(), &'static str> {
    let (kind, rest) = token(base);
    if kind.is_empty() {
        return Err("mime: no media type");
    }
    if rest.is_empty() {
        return Ok(());
    }
    let Some(rest) = rest.strip_prefix('/') else { return Err("mime: expected slash after first token") };
    match token(rest) {
        ("", _) => Err("mime: expected token after slash"),
        (_, "") => Ok(()),
        _ => Err("mime: unexpected content after media subtype"),
    }
}

/// `; name=value` at the beginning of a text, and what follows it.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let (name, rest) = token(text.trim_start().strip_prefix(';')?.trim_start());
    let rest = rest.trim_start().strip_prefix('=').filter(|_| !name.is_empty())?.trim_start();
    let (value, rest) = match rest.strip_prefix('"') {
        Some(quoted) => unquote(quoted)?,
        None => match token(rest) {
            ("", _) => return None,
            (value, rest) => (value.to_owned(), rest),
        },
    };
    Some((name.to_lowercase(), value, rest))
}

/// A text up to the quote that ends it, and what follows. A backslash counts only before what would mean something.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' if chars.clone().next().is_some_and(is_special) => value.extend(chars.next()),
            other => value.push(other),
        }
    }
}

/// The token at the beginning of a text (RFC 2045), and what follows it.
fn token(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_graphic() || is_special(c)).unwrap_or(text.len()))
}

fn is_special(c: char) -> bool {
    r#"()<>@,;:\"/[]?="#.contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_cannot_be_read_whole() {
        for (query, expected) in [
            ("", ""),
            ("a=b&&c&=d&a=%41+", ""),
            ("%zz", r#"invalid URL escape "%zz""#),
            ("a=1&b=%4&c=%5", r#"invalid URL escape "%4""#),
            ("a=%", r#"invalid URL escape "%""#),
            ("a=%z%C3%A4", r#"invalid URL escape "%z%""#),
            ("a=%e", r#"invalid URL escape "%e""#),
            ("a==%zé", r#"invalid URL escape "%zé""#),
            ("%zz&a;b", "invalid semicolon separator in query"),
            ("a;b&%zz", "invalid semicolon separator in query"),
        ] {
            assert_eq!(problem(query).unwrap_or_default(), expected, "{query}");
        }
    }

    #[test]
    fn media_types() {
        let parameter = Err("mime: invalid media parameter");
        for (kind, expected) in [
            ("", Ok(false)),
            ("text", Ok(false)),
            (FORM, Ok(true)),
            ("APPLICATION/X-www-form-urlencoded ; charset=utf-8", Ok(true)),
            ("application/x-www-form-urlencoded2", Ok(false)),
            ("multipart/form-data; boundary=\"a\\\"b;\"", Ok(false)),
            ("text/plain; a=1;", Ok(false)),
            ("text/plain; a=1; A=1 ; ", Ok(false)),
            ("text/plain; a=1; A=2", Err("mime: duplicate parameter name")),
            ("text/plain; a=\"\"", Ok(false)),
            ("text/plain; a=\"1", parameter),
            ("text/plain; a=", parameter),
            ("text/plain; =a", parameter),
            ("text/plain; a", parameter),
            ("text/plain;; a=1", parameter),
            ("text/plain; a=1 b=2", parameter),
            ("text/", Err("mime: expected token after slash")),
            ("/plain", Err("mime: no media type")),
            (";", Err("mime: no media type")),
            ("te xt/plain", Err("mime: expected slash after first token")),
            ("text/plain a", Err("mime: unexpected content after media subtype")),
            ("invalid/content/type", Err("mime: unexpected content after media subtype")),
        ] {
            assert_eq!(is_form(kind), expected, "{kind}");
        }
    }
}
