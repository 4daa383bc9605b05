//! What the kernel says about a process.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};

/// CPU time used so far, user and system.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    cpu_time_in(&format!("/proc/{pid}/stat"))
}

/// The same of the thread that asks.
pub(crate) fn own_cpu_time() -> Result<Duration> {
    cpu_time_in("/proc/thread-self/stat")
}

fn cpu_time_in(path: &str) -> Result<Duration> {
    let stat = fs::read_to_string(path).with_context(|| path.to_owned())?;
    // The command's name may hold spaces and parentheses; fields are counted from behind it.
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // utime and stime are the 14th and 15th field of the file, the 12th and 13th behind the name. Linux's tick is 10 ms.
    Ok(Duration::from_millis((ticks(11) + ticks(12)) * 10))
}

/// Resident memory in KiB: now, and at its peak.
pub(crate) fn memory_kib(pid: u32) -> Result<(u64, u64)> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    Ok((field("VmRSS:"), field("VmHWM:")))
}

/// What the kernel itself holds for the processes of a cgroup (file handles, cached names of files, stacks, page tables), in KiB.
pub(crate) fn kernel_memory_kib(cgroup: &Path) -> Result<u64> {
    let read = |file: &str| fs::read_to_string(cgroup.join(file));
    let bytes = match read("memory.kmem.usage_in_bytes") {
        Ok(text) => text.trim().parse().ok(),
        Err(_) => {
            let stat = read("memory.stat").with_context(|| cgroup.display().to_string())?;
            stat.lines().find_map(|line| line.strip_prefix("kernel ")?.trim().parse().ok())
        }
    };
    let bytes: u64 = bytes.with_context(|| format!("{} has no count of kernel memory", cgroup.display()))?;
    Ok(bytes / 1024)
}
