//! The grammars of names and addresses that values must follow: labels, taints, sysctls, CPU lists, ranges.

use std::net::IpAddr;

/// An IP address, or nothing.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Whether the text is an address range such as `10.0.0.0/16`.
pub(crate) fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let Some(address) = parse_ip(address) else { return false };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    prefix.bytes().all(|b| b.is_ascii_digit()) && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= longest)
}

/// Whether the text is the name of a family of metrics, or the beginning of one with `*` behind it.
pub(crate) fn is_family_pattern(text: &str) -> bool {
    let (name, is_beginning) = text.strip_suffix('*').map_or((text, false), |beginning| (beginning, true));
    let begins_well = name.bytes().next().map_or(is_beginning, |byte| !byte.is_ascii_digit());
    begins_well && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

/// What is wrong with a label key (`[prefix/]name`), if anything.
pub(crate) fn label_key_fault(key: &str) -> Option<String> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) if !name.contains('/') => {
            if !is_dns_subdomain(prefix) {
                return Some(format!("prefix {prefix:?} must be a lower-case DNS name"));
            }
            name
        }
        Some(_) => return Some("a key has at most one '/'".to_owned()),
    };
    let valid = !name.is_empty() && name.len() <= 63 && is_bounded_word(name, "-_.");
    (!valid).then(|| {
        format!("name {name:?} must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at each end")
    })
}

/// What is wrong with a label value, if anything.
pub(crate) fn label_value_fault(value: &str) -> Option<String> {
    let valid = value.is_empty() || (value.len() <= 63 && is_bounded_word(value, "-_."));
    (!valid).then(|| {
        format!(
            "value {value:?} must be empty or up to 63 letters, digits, '-', '_' or '.', with a letter or digit at each end"
        )
    })
}

/// What is wrong with a taint, if anything; an empty effect is left to the caller.
pub(crate) fn taint_fault(key: &str, value: &str, effect: &str) -> Option<String> {
    let effect_fault = || {
        let known = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
        (!known).then(|| format!("invalid taint effect: {effect}, unsupported taint effect"))
    };
    label_key_fault(key).or_else(|| label_value_fault(value)).or_else(effect_fault)
}

/// Whether memory of this kind can be reserved on a NUMA node.
pub(crate) fn is_memory_resource(name: &str) -> bool {
    name == "memory" || name.starts_with("hugepages-")
}

/// Whether the text is a list of CPUs such as `0-3,8`.
pub(crate) fn is_cpu_list(text: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    text.split(',').all(|part| match part.split_once('-') {
        None => number(part).is_some(),
        Some((first, last)) => match (number(first), number(last)) {
            (Some(first), Some(last)) => first <= last,
            _ => false,
        },
    })
}

/// Whether the text is a sysctl's name, with dots or slashes.
pub(crate) fn is_sysctl_name(name: &str) -> bool {
    let segment = |segment: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = segment.as_bytes();
        bytes.iter().all(|b| inner(*b)) && end(bytes.first()) && end(bytes.last())
    };
    name.len() <= 253 && name.split(['.', '/']).all(segment)
}

/// The name with dots: a name whose first separator is a slash uses slashes for dots and the other way round.
pub(crate) fn normalize_sysctl(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes().get(at) == Some(&b'.')) {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// Whether each pod has the sysctl to itself.
pub(crate) fn is_namespaced_sysctl(normalized: &str) -> bool {
    const NAMES: &[&str] = &[
        "kernel.domainname",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
    ];
    NAMES.contains(&normalized)
        || ["net.", "fs.mqueue.", "user."].iter().any(|prefix| normalized.starts_with(prefix))
}

/// Whether the text may name an HTTP header.
pub(crate) fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether the text may be the value of an HTTP header.
pub(crate) fn is_header_value(value: &str) -> bool {
    value.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| is_bounded_word(label, "-") && !label.bytes().any(|b| b.is_ascii_uppercase());
    name.len() <= 253 && name.split('.').all(label)
}

/// ASCII letters and digits, with `inner` characters allowed between them.
fn is_bounded_word(word: &str, inner: &str) -> bool {
    let bytes = word.as_bytes();
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.iter().all(|b| b.is_ascii_alphanumeric() || inner.as_bytes().contains(b))
        && end(bytes.first())
        && end(bytes.last())
}
