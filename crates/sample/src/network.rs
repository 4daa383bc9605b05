//! A network namespace as `/proc/PID/net/dev` shows it, without entering it; and the machine's processes.

use jiff::Timestamp;
use mainstay_types::{InterfaceSample, NetworkSample, TaskCounts, Traffic};

use crate::{
    files::{Buffer, Directory},
    parse::number,
};

/// Loopback, and the machine's own ends of containers' networks, as upstream leaves them out.
const LEFT_OUT: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// The network that a process is in; `None` if it has ended.
pub fn network_of(pid: i32, at: Timestamp, buffer: &mut Buffer) -> Option<NetworkSample> {
    let process = Directory::open(format!("/proc/{pid}").as_ref()).ok()?;
    let interfaces = interfaces(process.read("net/dev", buffer).ok()?)?;
    Some(NetworkSample { at, interfaces })
}

/// The lines of `net/dev`; `None` if one of them is not such a line.
pub(crate) fn interfaces(text: &[u8]) -> Option<Vec<InterfaceSample>> {
    let mut found = Vec::new();
    // Two lines are headings.
    for line in text.split(|byte| *byte == b'\n').skip(2).filter(|line| !line.is_empty()) {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, rest) = line.split_at(at);
        let name = std::str::from_utf8(name.trim_ascii()).ok()?;
        let mut columns = [0_u64; 16];
        let words = rest.get(1..)?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut count = 0;
        for word in words {
            *columns.get_mut(count)? = number(word)?;
            count += 1;
        }
        if count != columns.len() {
            return None;
        }
        let lower = name.to_ascii_lowercase();
        if LEFT_OUT.iter().any(|prefix| lower.starts_with(prefix)) {
            continue;
        }
        let [
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            _,
            _,
            _,
            _,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
            ..,
        ] = columns;
        found.push(InterfaceSample {
            name: name.to_owned(),
            received: Traffic {
                bytes: rx_bytes,
                packets: rx_packets,
                errors: rx_errors,
                dropped: rx_dropped,
            },
            sent: Traffic { bytes: tx_bytes, packets: tx_packets, errors: tx_errors, dropped: tx_dropped },
        });
    }
    Some(found)
}

/// How many processes the machine has, threads included, and how many it can have.
pub fn task_counts(at: Timestamp, buffer: &mut Buffer) -> Option<TaskCounts> {
    let proc = Directory::open("/proc".as_ref()).ok()?;
    let current = proc.read("loadavg", buffer).ok().and_then(tasks)?;
    let mut limit = |name: &str| proc.read(name, buffer).ok().and_then(number);
    let max = match (limit("sys/kernel/pid_max"), limit("sys/kernel/threads-max")) {
        (Some(pids), Some(threads)) => pids.min(threads),
        (one, other) => one.or(other)?,
    };
    Some(TaskCounts { at, current, max })
}

/// `/proc/loadavg`: the number after the slash of the fourth word.
pub(crate) fn tasks(text: &[u8]) -> Option<u64> {
    let word = text.split(u8::is_ascii_whitespace).nth(3)?;
    number(word.split(|byte| *byte == b'/').nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo:    2776      36    0    0    0     0          0         0     2776      36    0    0    0     0       0          0\n  \
        eth0: 3774 41 1 2 0 0 0 0 682 9 3 4 0 0 0 0\nveth12ab: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n";

    #[test]
    fn lines_of_interfaces() {
        let found = interfaces(TEXT.as_bytes()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let eth0 = &found[0];
        assert_eq!(eth0.name, "eth0");
        assert_eq!(eth0.received, Traffic { bytes: 3774, packets: 41, errors: 1, dropped: 2 });
        assert_eq!(eth0.sent, Traffic { bytes: 682, packets: 9, errors: 3, dropped: 4 });
        for broken in
            ["\n\neth0: 1 2 3\n", "\n\neth0 1\n", "\n\neth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 x\n"]
        {
            assert_eq!(interfaces(broken.as_bytes()), None, "{broken:?}");
        }
        assert_eq!(interfaces(b""), Some(Vec::new()));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(network_of(own, Timestamp::UNIX_EPOCH, &mut Buffer::default()).is_some());
        assert!(network_of(i32::MAX, Timestamp::UNIX_EPOCH, &mut Buffer::default()).is_none());
    }

    #[test]
    fn the_machines_processes() {
        assert_eq!(tasks(b"0.20 0.18 0.12 1/246 11206\n"), Some(246));
        assert_eq!(tasks(b"0.20 0.18 0.12 1 11206\n"), None);
        let counts = task_counts(Timestamp::UNIX_EPOCH, &mut Buffer::default()).unwrap();
        assert!(counts.current > 0 && counts.current < counts.max, "{counts:?}");
    }
}
