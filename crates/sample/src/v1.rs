//! One hierarchy per controller.

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_types::{IoSample, Limits, MemorySample, Sample};

use crate::{
    cgroup::{Glance, ReadError, empty},
    files::Directory,
    parse::{blkio, keyed, number},
};

/// `cpuacct.stat` counts in these, whatever the kernel's own clock is.
const TICK_NS: u64 = 10_000_000;
/// Limits at least this large are none: the kernel prints the largest number of whole pages.
const UNLIMITED: u64 = 1 << 62;
/// Where the kernel tells of disks: the first pair of which the first is there and has lines.
const IO_FILES: [(&str, &str); 4] = [
    ("blkio.bfq.io_service_bytes_recursive", "blkio.bfq.io_serviced_recursive"),
    ("blkio.io_service_bytes_recursive", "blkio.io_serviced_recursive"),
    ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"),
    ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"),
];

#[derive(Debug)]
pub(crate) struct Directories {
    account: Directory,
    cpu: Option<Directory>,
    memory: Option<Directory>,
    disks: Option<Directory>,
    pids: Option<Directory>,
    /// Those of [`IO_FILES`] that this kernel has, the one that had lines last first: which one has some depends on the disk's scheduler and on
    /// whether somebody has a limit, and may change. A machine without any disk under a cgroup has none with lines.
    io_files: Vec<(&'static str, &'static str)>,
}

impl Directories {
    pub(crate) fn open(hierarchy: &Cgroups, path: &CgroupPath) -> Result<Self, ReadError> {
        let open = |controller: &str| {
            hierarchy.directory_of(controller, path).and_then(|directory| Directory::open(&directory).ok())
        };
        let account = open("cpuacct").ok_or(ReadError::Gone)?;
        let disks = open("blkio");
        let mut scratch = Vec::new();
        let is_there = |(bytes, _): &(&'static str, &'static str)| {
            disks.as_ref().is_some_and(|disks| disks.read(bytes, &mut scratch).is_ok())
        };
        let io_files = IO_FILES.into_iter().filter(is_there).collect();
        Ok(Self { account, cpu: open("cpu"), memory: open("memory"), disks, pids: open("pids"), io_files })
    }

    pub(crate) fn made_at(&self) -> Timestamp {
        self.account.made_at("cgroup.clone_children")
    }

    pub(crate) const fn account(&self) -> &Directory {
        &self.account
    }

    pub(crate) fn glance(&self, buffer: &mut Vec<u8>) -> Result<Glance, ReadError> {
        let cpu_ns = number(self.account.read("cpuacct.usage", buffer)?).unwrap_or_default();
        let memory = self.memory.as_ref().map(|memory| memory.number("memory.usage_in_bytes", buffer));
        Ok(Glance { cpu_ns, memory: memory.transpose()?.flatten().unwrap_or_default() })
    }

    pub(crate) fn read(&mut self, at: Timestamp, buffer: &mut Vec<u8>) -> Result<Sample, ReadError> {
        let mut sample = empty(at);
        let text = self.account.read("cpuacct.usage", buffer)?;
        sample.cpu.usage_ns = number(text).unwrap_or_default();
        for (key, value) in self.account.text("cpuacct.stat", buffer)?.map(keyed).into_iter().flatten() {
            match key {
                b"user" => sample.cpu.user_ns = value.saturating_mul(TICK_NS),
                b"system" => sample.cpu.system_ns = value.saturating_mul(TICK_NS),
                _ => {}
            }
        }
        if let Some(cpu) = &self.cpu {
            for (key, value) in cpu.text("cpu.stat", buffer)?.map(keyed).into_iter().flatten() {
                match key {
                    b"nr_periods" => sample.cpu.periods = value,
                    b"nr_throttled" => sample.cpu.throttled_periods = value,
                    b"throttled_time" => sample.cpu.throttled_ns = value,
                    b"nr_bursts" => sample.cpu.bursts = value,
                    b"burst_time" => sample.cpu.burst_ns = value,
                    _ => {}
                }
            }
        }
        if let Some(memory) = &self.memory {
            sample.memory = read_memory(memory, buffer)?;
        }
        if let Some(disks) = &self.disks {
            for at in 0..self.io_files.len() {
                let Some(files) = self.io_files.get(at) else { break };
                sample.io = read_disks(disks, *files, buffer)?;
                if !sample.io.is_empty() {
                    self.io_files.swap(0, at);
                    break;
                }
            }
        }
        if let Some(pids) = &self.pids {
            sample.pids.current = pids.number("pids.current", buffer)?.unwrap_or_default();
            sample.pids.max = pids.number("pids.max", buffer)?;
        }
        Ok(sample)
    }

    pub(crate) fn limits(&self, buffer: &mut Vec<u8>) -> Limits {
        let mut limits = Limits::default();
        if let Some(cpu) = &self.cpu {
            let quota = cpu.read("cpu.cfs_quota_us", buffer).ok().filter(|text| !text.starts_with(b"-"));
            limits.cpu_quota_us = quota.and_then(number);
            limits.cpu_period_us = value(cpu, "cpu.cfs_period_us", buffer).unwrap_or_default();
            limits.cpu_shares = value(cpu, "cpu.shares", buffer).unwrap_or_default();
        }
        if let Some(memory) = &self.memory {
            let limit = |name, buffer: &mut Vec<u8>| value(memory, name, buffer).filter(|v| *v < UNLIMITED);
            limits.memory = limit("memory.limit_in_bytes", buffer);
            limits.swap = limit("memory.memsw.limit_in_bytes", buffer);
            limits.memory_reservation = limit("memory.soft_limit_in_bytes", buffer).unwrap_or_default();
        }
        limits
    }
}

pub(crate) fn memory_of(
    hierarchy: &Cgroups,
    path: &CgroupPath,
    buffer: &mut Vec<u8>,
) -> Result<Option<MemorySample>, ReadError> {
    let Some(directory) = hierarchy.directory_of("memory", path) else { return Ok(None) };
    let directory = Directory::open(&directory).map_err(|_| ReadError::Gone)?;
    read_memory(&directory, buffer)
}

fn read_memory(directory: &Directory, buffer: &mut Vec<u8>) -> Result<Option<MemorySample>, ReadError> {
    let Some(usage) = directory.number("memory.usage_in_bytes", buffer)? else { return Ok(None) };
    let mut memory = MemorySample { usage, ..MemorySample::default() };
    let mut own = MemorySample::default();
    let mut hierarchical = false;
    for (key, value) in directory.text("memory.stat", buffer)?.map(keyed).into_iter().flatten() {
        // Without hierarchy there are no `total_` lines, and the cgroup's own are all there is.
        let (key, target) = match key.strip_prefix(b"total_") {
            Some(rest) => {
                hierarchical = true;
                (rest, &mut memory)
            }
            None => (key, &mut own),
        };
        match key {
            b"rss" => target.rss = value,
            b"cache" => target.cache = value,
            b"mapped_file" => target.mapped_file = value,
            b"swap" => target.swap = value,
            b"active_file" => target.active_file = value,
            b"inactive_file" => target.inactive_file = value,
            b"pgfault" => target.page_faults = value,
            b"pgmajfault" => target.major_page_faults = value,
            _ => {}
        }
    }
    if !hierarchical {
        memory = MemorySample { usage, ..own };
    }
    // Faults are the cgroup's own, as upstream counts them.
    memory.page_faults = own.page_faults;
    memory.major_page_faults = own.major_page_faults;
    memory.working_set = usage.saturating_sub(memory.inactive_file);
    memory.kernel = directory.number("memory.kmem.usage_in_bytes", buffer)?.unwrap_or_default();
    memory.fail_count = directory.number("memory.failcnt", buffer)?.unwrap_or_default();
    memory.max_usage = directory.number("memory.max_usage_in_bytes", buffer)?.unwrap_or_default();
    for (key, value) in directory.text("memory.oom_control", buffer)?.map(keyed).into_iter().flatten() {
        if key == b"oom_kill" {
            memory.oom_kills = value;
        }
    }
    Ok(Some(memory))
}

fn read_disks(
    directory: &Directory,
    (bytes, operations): (&str, &str),
    buffer: &mut Vec<u8>,
) -> Result<Vec<IoSample>, ReadError> {
    let mut found: Vec<IoSample> = Vec::new();
    let mut add = |device: (u32, u32), change: &mut dyn FnMut(&mut IoSample)| {
        let at = found.iter().position(|known| (known.major, known.minor) == device).unwrap_or_else(|| {
            found.push(IoSample { major: device.0, minor: device.1, ..IoSample::default() });
            found.len() - 1
        });
        found.get_mut(at).into_iter().for_each(change);
    };
    for (device, operation, value) in directory.text(bytes, buffer)?.map(blkio).into_iter().flatten() {
        match operation {
            b"Read" => add(device, &mut |sample| sample.read_bytes = value),
            b"Write" => add(device, &mut |sample| sample.written_bytes = value),
            _ => {}
        }
    }
    for (device, operation, value) in directory.text(operations, buffer)?.map(blkio).into_iter().flatten() {
        match operation {
            b"Read" => add(device, &mut |sample| sample.reads = value),
            b"Write" => add(device, &mut |sample| sample.writes = value),
            _ => {}
        }
    }
    Ok(found)
}

fn value(directory: &Directory, name: &str, buffer: &mut Vec<u8>) -> Option<u64> {
    directory.number(name, buffer).ok().flatten()
}
