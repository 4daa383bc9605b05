//! Looking at and ending processes by what they are, never by name alone.

use crate::patient;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Programs of a private instance. Others that merely name its directory, such as a `tail` on its log, stay.
const OURS: [&str; 11] = [
    "containerd",
    "mainstay",
    "kubelet",
    "runc",
    "docker-registry",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "metrics-server",
    "prometheus",
];

/// One process as it was seen; the start time tells it from a later one with the same number.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) start: u64,
    pub(crate) command: Vec<String>,
}

impl Process {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; the fields after its last parenthesis are numbers.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if *fields.first()? == "Z" {
            return None;
        }
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&cmdline).split_terminator('\0').map(str::to_owned).collect();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
            command,
        })
    }

    pub(crate) fn all() -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(Self::of)
            .collect()
    }

    /// Whether this is one of our programs running on `dir`.
    pub(crate) fn runs_on(&self, dir: &Path) -> bool {
        let Some(program) = self.command.first().and_then(|path| Path::new(path).file_name()?.to_str())
        else {
            return false;
        };
        let dir = dir.to_string_lossy();
        OURS.iter().any(|ours| program.starts_with(ours))
            && self.command.iter().any(|word| {
                word.split_once(&*dir).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('/'))
            })
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.start == self.start)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if self.is_alive() {
            send(self.pid, signal);
        }
    }
}

/// Sends a signal; a process that is gone already is what the caller wants.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

/// Kills everything that runs on `dir`, with all descendants, and waits for their end.
pub(crate) fn kill_all_on(dir: &Path) {
    // Twice: something may have been forked while the list was read.
    for _ in 0..2 {
        let all = Process::all();
        let mut doomed: HashSet<i32> =
            all.iter().filter(|process| process.runs_on(dir)).map(|process| process.pid).collect();
        loop {
            let next =
                |process: &&Process| doomed.contains(&process.parent) && !doomed.contains(&process.pid);
            let children: Vec<i32> = all.iter().filter(next).map(|process| process.pid).collect();
            if children.is_empty() {
                break;
            }
            doomed.extend(children);
        }
        let doomed: Vec<_> = all.into_iter().filter(|process| doomed.contains(&process.pid)).collect();
        for process in &doomed {
            process.signal(Signal::KILL);
        }
        wait_for_end(&doomed, Duration::from_secs(20));
    }
}

/// Waits until none of them is alive; `false` when some still are after `timeout`.
pub(crate) fn wait_for_end(processes: &[Process], timeout: Duration) -> bool {
    let (start, timeout) = (Instant::now(), patient(timeout));
    while processes.iter().any(Process::is_alive) {
        if start.elapsed() > timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_programs_on_exactly_this_directory() {
        let row = |command: &[&str]| Process {
            pid: 1,
            parent: 0,
            start: 0,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
        };
        let dir = Path::new("/tmp/mainstay-test-a");
        let rows = [
            (true, row(&["/usr/bin/containerd", "--config", "/tmp/mainstay-test-a/config.toml"])),
            (true, row(&["containerd-shim-runc-v2", "-address", "/tmp/mainstay-test-a/state/c.sock"])),
            (true, row(&["mainstay", "kubelet", "--root-dir=/tmp/mainstay-test-a"])),
            (false, row(&["/usr/bin/containerd", "--config", "/tmp/mainstay-test-ab/config.toml"])),
            (false, row(&["tail", "-f", "/tmp/mainstay-test-a/containerd.log"])),
            (false, row(&[])),
        ];
        for (expected, process) in rows {
            assert_eq!(process.runs_on(dir), expected, "{:?}", process.command);
        }
    }

    #[test]
    fn this_process_is_seen() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let me = Process::of(pid).unwrap();
        assert!(me.is_alive() && !me.command.is_empty());
        assert!(Process::all().iter().any(|process| process.pid == pid));
    }
}
