//! Which sysctls pods may set: the safe ones, and those that the operator allows.

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::PodExt as _;

use super::Rejection;

/// The longest name.
const MAX_LENGTH: usize = 253;

/// Sysctls that touch nobody but the pod, each with the kernel that first gave every namespace its own.
const SAFE: &[(&str, (u32, u32))] = &[
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
    ("net.ipv4.tcp_slow_start_after_idle", (4, 15)),
    ("net.ipv4.tcp_notsent_lowat", (4, 6)),
];

/// The namespaces that sysctls can belong to, by name.
const NAMED: &[(&str, Namespace)] = &[
    ("kernel.domainname", Namespace::Uts),
    ("kernel.sem", Namespace::Ipc),
    ("kernel.shmall", Namespace::Ipc),
    ("kernel.shmmax", Namespace::Ipc),
    ("kernel.shmmni", Namespace::Ipc),
    ("kernel.shm_rmid_forced", Namespace::Ipc),
    // `kernel.shm*` and `kernel.msg*` are patterns of old.
    ("kernel.shm", Namespace::Ipc),
    ("kernel.msgmax", Namespace::Ipc),
    ("kernel.msgmnb", Namespace::Ipc),
    ("kernel.msgmni", Namespace::Ipc),
    ("kernel.msg", Namespace::Ipc),
];

const PREFIXED: &[(&str, Namespace)] =
    &[("net.", Namespace::Net), ("fs.mqueue.", Namespace::Ipc), ("user.", Namespace::User)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
    Uts,
    User,
}

impl Namespace {
    fn name(self) -> &'static str {
        match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
            Self::Uts => "UTS",
            Self::User => "User",
        }
    }

    fn of(name: &str) -> Option<Self> {
        NAMED
            .iter()
            .find(|(known, _)| *known == name)
            .or_else(|| PREFIXED.iter().find(|(prefix, _)| name.starts_with(prefix)))
            .map(|(_, namespace)| *namespace)
    }
}

/// Why an entry of `allowedUnsafeSysctls` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlPatternError {
    /// It is no name.
    #[error(
        "sysctl {0:?} of allowedUnsafeSysctls must have at most 253 characters: lower case letters, digits, - and _ \
         in parts separated by . or /, with a * at most at its end"
    )]
    Form(String),
    /// A pod that set it would set it for the whole machine.
    #[error(
        "the sysctls {0:?} are not known to be namespaced; remove them from allowedUnsafeSysctls and set them on the machine"
    )]
    NotNamespaced(String),
}

/// The sysctls that pods may set.
#[derive(Clone, Debug, Default)]
pub struct Sysctls {
    names: Vec<(String, Namespace)>,
    prefixes: Vec<(String, Namespace)>,
}

impl Sysctls {
    /// The safe ones of this kernel (`6.1.0-13-amd64`), and `allowed_unsafe`; a name among those may end in `*`.
    ///
    /// # Errors
    /// [`SysctlPatternError`] for the first of `allowed_unsafe` that cannot be allowed.
    pub fn new(kernel_version: &str, allowed_unsafe: &[String]) -> Result<Self, SysctlPatternError> {
        let kernel = version(kernel_version);
        let mut allowed = Self::default();
        let safe = SAFE.iter().filter(|(_, since)| *since == (0, 0) || kernel.is_some_and(|k| k >= *since));
        let patterns = safe.map(|(name, _)| *name).chain(allowed_unsafe.iter().map(String::as_str));
        for pattern in patterns {
            if !is_pattern(pattern) {
                return Err(SysctlPatternError::Form(pattern.to_owned()));
            }
            let normalized = normalize(pattern);
            let (name, prefixed) = match normalized.strip_suffix('*') {
                Some(prefix) => (prefix, true),
                None => (normalized.as_str(), false),
            };
            let namespace =
                Namespace::of(name).ok_or_else(|| SysctlPatternError::NotNamespaced(name.to_owned()))?;
            let list = if prefixed { &mut allowed.prefixes } else { &mut allowed.names };
            list.push((name.to_owned(), namespace));
        }
        Ok(allowed)
    }

    /// Whether the pod asks for allowed ones only, and not for the host's own.
    pub(super) fn check(&self, pod: &Pod) -> Result<(), Rejection> {
        let spec = pod.spec_ref();
        let sysctls = spec.security_context.iter().filter_map(|context| context.sysctls.as_ref()).flatten();
        for sysctl in sysctls {
            let name = normalize(&sysctl.name);
            let refuse = |why: &str| {
                Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {name:?} {why}")))
            };
            let exact = self.names.iter().find(|(known, _)| *known == name);
            let found =
                exact.or_else(|| self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix.as_str())));
            let Some((_, namespace)) = found else { return refuse("not allowlisted") };
            let of_the_host = match namespace {
                Namespace::Ipc => spec.host_ipc.unwrap_or(false),
                Namespace::Net => spec.host_network.unwrap_or(false),
                Namespace::User => spec.host_users.unwrap_or(true),
                Namespace::Uts => false,
            };
            if of_the_host {
                return refuse(&format!("not allowed with host {} enabled", namespace.name()));
            }
        }
        Ok(())
    }
}

/// `net/ipv4/ip_forward` is written with slashes when a part has a dot in it; the first separator tells.
fn normalize(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes().get(at) == Some(&b'.')) {
        return name.to_owned();
    }
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}

fn is_pattern(text: &str) -> bool {
    let body = text.strip_suffix('*').unwrap_or(text);
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
    !body.is_empty()
        && text.len() <= MAX_LENGTH
        && body.starts_with(|c: char| c.is_ascii_alphanumeric())
        && body.chars().all(allowed)
}

/// Major and minor number.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
