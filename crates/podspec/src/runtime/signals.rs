//! Stop signals in CRI's numbering, which is neither the kernel's nor Go's.

use k8s_openapi::api::core::v1::Container;

/// CRI's `Signal` from 1 on.
const PLAIN: [&str; 35] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
];
const RTMIN_PLUS_1: i32 = 36;
const RTMAX_MINUS_14: i32 = 51;
const RTMAX: i32 = 65;

/// `lifecycle.stopSignal` as CRI's `Signal`; `None` where the image's signal, or the runtime's, is to be used.
#[must_use]
pub fn stop_signal(container: &Container) -> Option<i32> {
    number(container.lifecycle.as_ref()?.stop_signal.as_deref()?)
}

/// The API's name of CRI's `Signal`; `None` for none and for one that the API does not know.
#[must_use]
pub fn stop_signal_name(number: i32) -> Option<String> {
    match number {
        RTMIN_PLUS_1..RTMAX_MINUS_14 => Some(format!("SIGRTMIN+{}", number - RTMIN_PLUS_1 + 1)),
        RTMAX_MINUS_14..RTMAX => Some(format!("SIGRTMAX-{}", RTMAX - number)),
        RTMAX => Some("SIGRTMAX".to_owned()),
        _ => {
            let place = usize::try_from(number).ok()?.checked_sub(1)?;
            PLAIN.get(place).map(|name| (*name).to_owned())
        }
    }
}

fn number(name: &str) -> Option<i32> {
    if let Some(place) = PLAIN.iter().position(|known| *known == name) {
        return i32::try_from(place + 1).ok();
    }
    if name == "SIGRTMAX" {
        return Some(RTMAX);
    }
    let of = |prefix: &str, most: i32| {
        let text = name.strip_prefix(prefix)?;
        text.parse::<i32>().ok().filter(|n| (1..=most).contains(n) && *text == n.to_string())
    };
    of("SIGRTMIN+", 15)
        .map(|n| RTMIN_PLUS_1 + n - 1)
        .or_else(|| of("SIGRTMAX-", 14).map(|n| RTMAX_MINUS_14 + 14 - n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        for (name, wanted) in [
            ("SIGABRT", Some(1)),
            ("SIGTERM", Some(23)),
            ("SIGUSR1", Some(29)),
            ("SIGXFSZ", Some(34)),
            ("SIGRTMIN", Some(35)),
            ("SIGRTMIN+1", Some(36)),
            ("SIGRTMIN+15", Some(50)),
            ("SIGRTMAX-14", Some(51)),
            ("SIGRTMAX-1", Some(64)),
            ("SIGRTMAX", Some(65)),
            ("SIGRTMIN+0", None),
            ("SIGRTMIN+16", None),
            ("SIGRTMIN+01", None),
            ("TERM", None),
        ] {
            assert_eq!(number(name), wanted, "{name}");
            if let Some(number) = wanted {
                assert_eq!(stop_signal_name(number).as_deref(), Some(name));
            }
        }
        for number in [-1, 0, 66, i32::MIN, i32::MAX] {
            assert_eq!(stop_signal_name(number), None, "{number}");
        }
    }
}
