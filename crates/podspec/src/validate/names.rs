//! The forms of names. Each check says what is wrong, or nothing.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// `my-name`: at most 63 of a-z, 0-9 and '-'.
pub(super) fn dns_label(value: &str) -> Option<String> {
    if value.len() > LABEL_MAX {
        return Some(format!("must be no more than {LABEL_MAX} characters"));
    }
    if is_label(value) {
        return None;
    }
    if dns_subdomain(value).is_none() {
        return Some("must not contain dots".to_owned());
    }
    Some(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
         with an alphanumeric character (e.g. 'my-name' or '123-abc')"
            .to_owned(),
    )
}

/// `my-name.example.com`.
pub(super) fn dns_subdomain(value: &str) -> Option<String> {
    if value.len() > SUBDOMAIN_MAX {
        return Some(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if value.split('.').all(is_label) {
        return None;
    }
    Some(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
         and end with an alphanumeric character (e.g. 'example.com')"
            .to_owned(),
    )
}

/// As [`dns_subdomain`], with underscores: DNS search domains.
pub(super) fn dns_subdomain_with_underscore(value: &str) -> Option<String> {
    if value.len() > SUBDOMAIN_MAX {
        return Some(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    let part = |part: &str| {
        let rest = part.strip_prefix('_').unwrap_or(part);
        bounded_by_alphanumerics(rest, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-_")
    };
    if value.split('.').all(part) {
        return None;
    }
    Some(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com')"
            .to_owned(),
    )
}

/// A label or annotation key, a resource or condition name: `example.com/my.name`.
pub(super) fn qualified_name(value: &str) -> Option<String> {
    let name = match value.split_once('/') {
        None => value,
        Some(("", _)) => return Some("prefix part must be non-empty".to_owned()),
        Some((prefix, name)) => {
            if let Some(why) = dns_subdomain(prefix) {
                return Some(format!("prefix part {why}"));
            }
            name
        }
    };
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > LABEL_MAX {
        return Some(format!("name part must be no more than {LABEL_MAX} characters"));
    }
    if bounded_by_alphanumerics(name, |b| b.is_ascii_alphanumeric(), b"-_.") {
        return None;
    }
    Some(
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName' or 'my.name' or '123-abc'), with an optional DNS subdomain prefix and \
         '/' (e.g. 'example.com/MyName')"
            .to_owned(),
    )
}

/// As [`qualified_name`], in any case: annotation keys.
pub(super) fn annotation_key(value: &str) -> Option<String> {
    qualified_name(&value.to_lowercase())
}

/// A label's value.
pub(super) fn label_value(value: &str) -> Option<String> {
    if value.len() > LABEL_MAX {
        return Some(format!("must be no more than {LABEL_MAX} characters"));
    }
    if value.is_empty() || bounded_by_alphanumerics(value, |b| b.is_ascii_alphanumeric(), b"-_.") {
        return None;
    }
    Some(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
         and end with an alphanumeric character (e.g. 'MyValue' or 'my_value' or '12345')"
            .to_owned(),
    )
}

/// A port's name (IANA service name).
pub(super) fn port_name(value: &str) -> Option<String> {
    let why = if value.len() > 15 {
        "must be no more than 15 characters"
    } else if value.is_empty()
        || !value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    } else if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        "must contain at least one letter (a-z)"
    } else if value.contains("--") {
        "must not contain consecutive hyphens"
    } else if value.starts_with('-') || value.ends_with('-') {
        "must not begin or end with a hyphen"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// An environment variable's name (since 1.34 all printable ASCII but '=').
pub(super) fn env_name(value: &str) -> Option<String> {
    if value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return None;
    }
    Some(
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .to_owned(),
    )
}

/// A key of a ConfigMap or Secret: it becomes a file's name.
pub(super) fn config_key(value: &str) -> Option<String> {
    if value.len() > SUBDOMAIN_MAX {
        return Some(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Some(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name' or \
             'KEY_NAME' or 'key-name')"
                .to_owned(),
        );
    }
    match value {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if value.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// An HTTP header's name.
pub(super) fn http_header_name(value: &str) -> Option<String> {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return None;
    }
    Some(
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name')"
            .to_owned(),
    )
}

/// A sysctl, with dots or slashes.
pub(super) fn sysctl_name(value: &str) -> Option<String> {
    let part =
        |part: &str| bounded_by_alphanumerics(part, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-_");
    if value.len() <= SUBDOMAIN_MAX && value.split(['.', '/']).all(part) {
        return None;
    }
    Some(format!(
        "must have at most {SUBDOMAIN_MAX} characters, in parts of lower case alphanumeric characters, '-' or '_' \
         that are separated by '.' or '/' (e.g. 'net.ipv4.ip_forward')"
    ))
}

/// A path without `..` elements.
pub(super) fn no_backsteps(value: &str) -> Option<String> {
    value.split('/').any(|part| part == "..").then(|| "must not contain '..'".to_owned())
}

/// A relative path without `..` elements.
pub(super) fn descending_path(value: &str) -> Option<String> {
    if value.starts_with('/') { Some("must be a relative path".to_owned()) } else { no_backsteps(value) }
}

/// As [`descending_path`], and not beginning with `..` (names the atomic writer keeps for itself).
pub(super) fn local_file_path(value: &str) -> Option<String> {
    descending_path(value).or_else(|| value.starts_with("..").then(|| "must not start with '..'".to_owned()))
}

/// An IP address. Upstream also takes IPv4 numbers with leading zeros in old fields; those are octal to some and
/// decimal to others, so they are refused here.
pub(super) fn ip_address(value: &str) -> Option<String> {
    if value.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned())
}

/// A UID that can be a directory, a label and part of a cgroup's name.
pub(super) fn uid(value: &str) -> Option<String> {
    let fits =
        value.len() <= LABEL_MAX && bounded_by_alphanumerics(value, |b| b.is_ascii_alphanumeric(), b"-_.");
    if fits {
        return None;
    }
    Some(format!(
        "names directories and cgroups here: use at most {LABEL_MAX} alphanumeric characters, '-', '_' or '.', with \
         an alphanumeric one first and last, such as a UUID"
    ))
}

fn is_label(value: &str) -> bool {
    value.len() <= SUBDOMAIN_MAX
        && bounded_by_alphanumerics(value, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-")
}

/// `[a]([ab]*[a])?` with `a` the letters and `b` the marks.
fn bounded_by_alphanumerics(value: &str, letter: fn(u8) -> bool, marks: &[u8]) -> bool {
    let (Some(first), Some(last)) = (value.bytes().next(), value.bytes().last()) else { return false };
    letter(first) && letter(last) && value.bytes().all(|byte| letter(byte) || marks.contains(&byte))
}
