//! The names of Linux capabilities.

use k8s_openapi::api::core::v1::Capabilities;

use super::SpecError;

/// `capabilities(7)`, without the prefix.
const KNOWN: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// Refuses names that no kernel knows. Runtimes drop them without a word, and a capability that was to be dropped and is
/// not is a hole. (The prefix is left to the runtime: CRI-O takes it, containerd does not.)
pub(super) fn check(capabilities: &Capabilities) -> Result<(), SpecError> {
    match unknown(capabilities).next() {
        Some(name) => Err(SpecError::Capability(name.clone())),
        None => Ok(()),
    }
}

/// The names that no kernel knows.
pub(crate) fn unknown(capabilities: &Capabilities) -> impl Iterator<Item = &String> {
    let is_known = |name: &str| {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        bare == "ALL" || KNOWN.contains(&bare)
    };
    let asked = [&capabilities.add, &capabilities.drop].into_iter().flatten().flatten();
    asked.filter(move |name| !is_known(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        assert!(KNOWN.is_sorted());
        let all = |names: &[&str]| Capabilities {
            add: Some(names.iter().map(ToString::to_string).collect()),
            drop: None,
        };
        assert_eq!(check(&all(&["ALL", "NET_ADMIN", "net_raw", "CAP_SYS_ADMIN", "all"])), Ok(()));
        assert_eq!(check(&all(&["CHOWN", "FLY"])), Err(SpecError::Capability("FLY".into())));
        let drop = Capabilities { add: None, drop: Some(vec![String::new()]) };
        assert_eq!(check(&drop), Err(SpecError::Capability(String::new())));
    }
}
