//! The few parts of a URL that a request needs.

use crate::HttpError;

/// An absolute http or https URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) https: bool,
    /// Host name or address, without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What stands in the `Host` header: with brackets, and the port if it is not the usual one.
    pub(crate) authority: String,
    /// Path and query, escaped; never empty.
    pub(crate) target: String,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, HttpError> {
        let invalid = |reason| HttpError::InvalidUrl { url: text.to_owned(), reason };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(invalid("only http and https are spoken")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(invalid("it has user and password in it; use an Authorization header"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| invalid("it has no valid port"))?;
        let port = port.unwrap_or(if https { 443 } else { 80 });
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(allowed) {
            return Err(invalid("it has no valid host"));
        }
        let target = target.split('#').next().unwrap_or_default();
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self {
            https,
            host: host.to_ascii_lowercase(),
            port,
            authority: authority.to_owned(),
            target: escape(&format!("{slash}{target}")),
        })
    }

    /// Where a `Location` header leads from here.
    pub(crate) fn join(&self, location: &str) -> Result<Self, HttpError> {
        let scheme = if self.https { "https" } else { "http" };
        let location = location.split('#').next().unwrap_or_default();
        if has_scheme(location) {
            Self::parse(location)
        } else if location.starts_with("//") {
            Self::parse(&format!("{scheme}:{location}"))
        } else {
            let path = self.target.split('?').next().unwrap_or_default();
            let target = if location.is_empty() {
                self.target.clone()
            } else if location.starts_with('/') {
                location.to_owned()
            } else if location.starts_with('?') {
                format!("{path}{location}")
            } else {
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                format!("{directory}/{location}")
            };
            Self::parse(&format!("{scheme}://{}{}", self.authority, without_dots(&target)))
        }
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.target)
    }
}

/// Whether it begins with a scheme: what comes before the first colon is one, and no part of a path or a query.
fn has_scheme(location: &str) -> bool {
    let end = location.find([':', '/', '?']).unwrap_or(location.len());
    let (scheme, rest) = location.split_at_checked(end).unwrap_or((location, ""));
    rest.starts_with(':')
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A path (and what is behind it) in which `.` and `..` have been followed (RFC 3986, section 5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = target.find('?').and_then(|at| target.split_at_checked(at)).unwrap_or((target, ""));
    let mut parts: Vec<&str> = Vec::new();
    let mut ends_open = false;
    for part in path.split('/').skip(1) {
        ends_open = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let end = if ends_open && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}{query}", parts.join("/"))
}

/// Host and, if there is one, port; `None` if the port is not a number.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            if port.is_empty() {
                Some((host, None))
            } else {
                Some((host, Some(port.parse().ok()?)))
            }
        }
        _ => Some((authority, None)),
    }
}

/// Escapes what may not stand in a request line; what is escaped already stays.
fn escape(target: &str) -> String {
    let mut escaped = String::with_capacity(target.len());
    for byte in target.bytes() {
        if byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let check = |text: &str, https, host: &str, port, authority: &str, target: &str| {
            let expected = Url {
                https,
                host: host.to_owned(),
                port,
                authority: authority.to_owned(),
                target: target.to_owned(),
            };
            assert_eq!(Url::parse(text).unwrap(), expected, "{text}");
        };
        check("http://a", false, "a", 80, "a", "/");
        check("HTTPS://Web.Example:8443/x?y=1#z", true, "web.example", 8443, "Web.Example:8443", "/x?y=1");
        check("https://10.0.0.1", true, "10.0.0.1", 443, "10.0.0.1", "/");
        check("http://[fd00::1]:8080/", false, "fd00::1", 8080, "[fd00::1]:8080", "/");
        check("http://[fd00::1]", false, "fd00::1", 80, "[fd00::1]", "/");
        check("http://a?q", false, "a", 80, "a", "/?q");
        check("http://a:/b c/é%20\"", false, "a", 80, "a:", "/b%20c/%C3%A9%20%22");
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "a",
            "/x",
            "ftp://a",
            "http://",
            "http://:80",
            "http://a:b",
            "http://a:99999",
            "http://u:p@a/",
            "http://a b/",
            "http://a\r\nX: y/",
        ] {
            assert!(matches!(Url::parse(text), Err(HttpError::InvalidUrl { .. })), "{text:?}");
        }
    }

    #[test]
    fn locations() {
        let from = Url::parse("https://a:1/b/c?d").unwrap();
        for (location, expected) in [
            ("http://x/y", "http://x/y"),
            ("//x/y", "https://x/y"),
            ("/y?z", "https://a:1/y?z"),
            ("y", "https://a:1/b/y"),
            ("?y", "https://a:1/b/c?y"),
            ("/login?next=https://app.example/", "https://a:1/login?next=https://app.example/"),
            ("login?next=a:b", "https://a:1/b/login?next=a:b"),
            ("./y", "https://a:1/b/y"),
            ("../y?z=/../", "https://a:1/y?z=/../"),
            ("../../../y", "https://a:1/y"),
            ("/x/./y/../z/..", "https://a:1/x/"),
            ("..", "https://a:1/"),
            ("HTTP://x/y#z", "http://x/y"),
            ("#z", "https://a:1/b/c?d"),
            ("", "https://a:1/b/c?d"),
        ] {
            assert_eq!(from.join(location).unwrap().to_string(), expected);
        }
        for elsewhere in ["ftp://x", "mailto:a@b", "https://u@x/", "x:y"] {
            from.join(elsewhere).unwrap_err();
        }
    }
}
