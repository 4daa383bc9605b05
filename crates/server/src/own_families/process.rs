//! What the kernel says of this process.

use std::{cell::OnceCell, fs};

use super::number;

/// What the kernel says of this process, read once for all families of an answer.
#[derive(Default)]
pub(crate) struct Own {
    process: OnceCell<Option<Process>>,
    network: OnceCell<Option<(u64, u64)>>,
}

impl Own {
    pub(super) fn process(&self) -> Option<&Process> {
        self.process.get_or_init(Process::read).as_ref()
    }

    pub(super) fn network(&self) -> Option<(u64, u64)> {
        *self.network.get_or_init(network)
    }
}

/// Linux says since 6.2 how many there are; before, each is looked at, and there are several for every cgroup that is read.
pub(super) fn open_files() -> Option<u64> {
    let told = fs::metadata("/proc/self/fd").ok()?.len();
    if told > 0 {
        return Some(told);
    }
    // The one by which they are read is not among them.
    Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

/// Bytes that the machine's network (that of this process) received and sent, as Prometheus' own library counts them.
fn network() -> Option<(u64, u64)> {
    parse_network(&fs::read_to_string("/proc/self/net/netstat").ok()?)
}

/// Pairs of lines: names, then numbers.
fn parse_network(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let at = names.split(' ').position(|name| name == wanted)?;
        numbers.split(' ').nth(at)?.parse().ok()
    };
    Some((value("InOctets")?, value("OutOctets")?))
}

/// This process, by the kernel's word.
pub(super) struct Process {
    pub(super) cpu_seconds: f64,
    pub(super) virtual_bytes: f64,
    pub(super) resident_bytes: f64,
}

impl Process {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        /// What the kernel counts time in, for programs.
        const TICKS: f64 = 100.0;
        // The name may have spaces and parentheses in it: what counts comes after the last one.
        let words: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (number(11)? + number(12)?) / TICKS,
            virtual_bytes: number(20)?,
            resident_bytes: number(21)?
                * super::number(u64::try_from(mainstay_host::page_size()).unwrap_or(4096)),
        })
    }
}

/// A soft limit of this process; the largest number where there is none, as upstream's library says it.
pub(super) fn limit(name: &str) -> Option<f64> {
    parse_limit(&fs::read_to_string("/proc/self/limits").ok()?, name)
}

/// Reads a text as each of the files; what came of it, in words.
pub(crate) fn formats(text: &str) -> String {
    let process = Process::parse(text).map(|it| it.cpu_seconds + it.virtual_bytes + it.resident_bytes);
    let limit = parse_limit(text, "Max open files");
    format!("stat {} net {:?} limit {:?}", process.is_some(), parse_network(text).is_some(), limit.is_some())
}

fn parse_limit(text: &str, name: &str) -> Option<f64> {
    let word = text.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())?;
    if word == "unlimited" { Some(number(u64::MAX)) } else { word.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_counted() {
        let before = open_files().unwrap();
        // Others open and close theirs meanwhile; so many they do not.
        let held: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let after = open_files().unwrap();
        assert!(after >= before + 400 && before > 0, "{before}, then {after} with {} more", held.len());
    }

    #[test]
    fn the_network_as_the_kernel_tells_of_it() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InMcastPkts InOctets OutOctets\nIpExt: 1 22 333\n";
        assert_eq!(parse_network(text), Some((22, 333)));
        for broken in [
            "",
            "IpExt: InOctets OutOctets\n",
            "IpExt: InOctets OutOctets\nIpExt: 1\n",
            "IpExt: a\nIpExt: 1\n",
        ] {
            assert_eq!(parse_network(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_process_as_the_kernel_tells_of_it() {
        let text = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 99 1000000 25 18446744073709551615";
        let process = Process::parse(text).unwrap();
        assert!((process.cpu_seconds - 2.0).abs() < 1e-9);
        assert!(
            (process.virtual_bytes - 1e6).abs() < 1e-9 && (process.resident_bytes - 102_400.0).abs() < 1e-9
        );
        assert!(Process::parse("nonsense").is_none() && Process::parse("1 (x) S 1").is_none());
    }
}
