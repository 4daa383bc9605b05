//! One hierarchy per controller.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_types::{HugePageSample, IoSample, Limits, MemorySample, Sample};
use rustix::io::Errno;

use crate::{
    cgroup::{Glance, ReadError, empty},
    files::{Buffer, Directory, Share, Unread},
    huge_pages::{self, Size},
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

/// How the names of those end that count for the cgroups below, too.
const ADDS_UP: &str = "_recursive";

#[derive(Debug)]
pub(crate) struct Directories {
    account: Directory,
    /// Most machines have these two controllers in one hierarchy: then it is the same.
    cpu: Cpu,
    memory: Option<Directory>,
    disks: Option<Directory>,
    pids: Option<Directory>,
    /// Opened for whole readings only, which are once a minute: it is not worth a descriptor. `None` where the kernel has no huge pages.
    huge_pages: Option<Directory>,
    /// Those of [`IO_FILES`] that this kernel has, the one that had lines last first: which one has some depends on the disk's scheduler and on
    /// whether somebody has a limit, and may change. A machine without any disk under a cgroup has none with lines. One that counts for the
    /// cgroup alone is among them only where there is none of its kind that adds up: those two have lines for the same disks.
    io_files: Vec<(&'static str, &'static str)>,
}

#[derive(Debug)]
enum Cpu {
    None,
    WithAccount,
    Apart(Directory),
}

impl Directories {
    pub(crate) fn open(
        hierarchy: &Cgroups,
        path: &CgroupPath,
        share: &mut Share,
        buffer: &mut Buffer,
        sizes: &[Size],
    ) -> Result<Self, ReadError> {
        let mut open = |controller: &str| match hierarchy.directory_of(controller, path) {
            Some(directory) => match Directory::open_within(&directory, share) {
                Ok(directory) => Ok(Some(directory)),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(ReadError::Failed(error.raw_os_error())),
            },
            None => Ok(None),
        };
        let account = open("cpuacct")?.ok_or(ReadError::Gone)?;
        let cpu = if hierarchy.directory_of("cpu", path).is_some_and(|path| account.is_at(&path)) {
            Cpu::WithAccount
        } else {
            open("cpu")?.map_or(Cpu::None, Cpu::Apart)
        };
        let (memory, disks, pids) = (open("memory")?, open("blkio")?, open("pids")?);
        let huge_pages = hierarchy.directory_of("hugetlb", path).filter(|_| !sizes.is_empty());
        let huge_pages = huge_pages.and_then(|directory| Directory::open_unheld(&directory).ok());
        let mut io_files: Vec<(&'static str, &'static str)> = Vec::new();
        for pair in IO_FILES {
            if io_files.iter().any(|(known, _)| known.strip_suffix(ADDS_UP) == Some(pair.0)) {
                continue;
            }
            match disks.as_ref().map(|disks| disks.read(pair.0, buffer)) {
                None => break,
                Some(Err(Unread::Missing)) => {}
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(_)) => io_files.push(pair),
            }
        }
        Ok(Self { account, cpu, memory, disks, pids, huge_pages, io_files })
    }

    /// A reading is over.
    pub(crate) fn rest(&mut self) {
        self.account.rest();
        if let Cpu::Apart(cpu) = &mut self.cpu {
            cpu.rest();
        }
        let others = [&mut self.memory, &mut self.disks, &mut self.pids, &mut self.huge_pages];
        others.into_iter().flatten().for_each(Directory::rest);
    }

    const fn cpu(&self) -> Option<&Directory> {
        match &self.cpu {
            Cpu::None => None,
            Cpu::WithAccount => Some(&self.account),
            Cpu::Apart(cpu) => Some(cpu),
        }
    }

    /// Whether what it counts of disks holds for the cgroups below, too. Not where one file counts for the cgroup alone, whichever has lines
    /// here: below, that one may have them.
    pub(crate) fn adds_up(&self) -> bool {
        self.io_files.iter().all(|(bytes, _)| bytes.ends_with(ADDS_UP))
    }

    pub(crate) fn made_at(&self) -> Timestamp {
        self.account.made_at("cgroup.clone_children")
    }

    pub(crate) const fn account(&self) -> &Directory {
        &self.account
    }

    pub(crate) fn glance(&self, last: &Sample, buffer: &mut Buffer) -> Result<Glance, ReadError> {
        if number(self.account.read("cpuacct.usage", buffer)?) != Some(last.cpu.usage_ns) {
            return Ok(Glance::Changed);
        }
        if let Some(memory) = &self.memory
            && memory.number("memory.usage_in_bytes", buffer)? != last.memory.map(|memory| memory.usage)
        {
            return Ok(Glance::Changed);
        }
        let is_same = self.io(buffer)?.1 == last.io;
        Ok(if is_same { Glance::Same(None) } else { Glance::Changed })
    }

    /// What was done to disks, and which of the files said so. While none has lines the first of each pair is looked at every time, so that
    /// nothing that begins is missed; there are two today, three where CFQ was.
    fn io(&self, buffer: &mut Buffer) -> Result<(usize, Vec<IoSample>), ReadError> {
        for (at, files) in self.io_files.iter().enumerate() {
            let Some(disks) = &self.disks else { break };
            let found = read_disks(disks, *files, buffer)?;
            if !found.is_empty() {
                return Ok((at, found));
            }
        }
        Ok((0, Vec::new()))
    }

    pub(crate) fn read(&mut self, at: Timestamp, buffer: &mut Buffer) -> Result<Sample, ReadError> {
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
        if let Some(cpu) = self.cpu() {
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
        let (from, io) = self.io(buffer)?;
        if from > 0 {
            self.io_files.swap(0, from);
        }
        sample.io = io;
        if let Some(pids) = &self.pids {
            sample.pids.current = pids.number("pids.current", buffer)?.unwrap_or_default();
            sample.pids.max = pids.number("pids.max", buffer)?;
        }
        Ok(sample)
    }

    pub(crate) fn huge_pages(
        &self,
        sizes: &[Size],
        buffer: &mut Buffer,
    ) -> Result<Option<Arc<[HugePageSample]>>, ReadError> {
        match &self.huge_pages {
            Some(directory) => huge_pages::read(directory, sizes, buffer),
            None => Ok(None),
        }
    }

    pub(crate) fn limits(&self, buffer: &mut Buffer) -> Result<Limits, ReadError> {
        let mut limits = Limits::default();
        if let Some(cpu) = self.cpu() {
            let quota = cpu.text("cpu.cfs_quota_us", buffer)?.filter(|text| !text.starts_with(b"-"));
            limits.cpu_quota_us = quota.and_then(number);
            limits.cpu_period_us = cpu.number("cpu.cfs_period_us", buffer)?.unwrap_or_default();
            limits.cpu_shares = cpu.number("cpu.shares", buffer)?.unwrap_or_default();
        }
        if let Some(memory) = &self.memory {
            let mut limit = |name| -> Result<Option<u64>, ReadError> {
                Ok(memory.number(name, buffer)?.filter(|limit| *limit < UNLIMITED))
            };
            limits.memory = limit("memory.limit_in_bytes")?;
            limits.swap = limit("memory.memsw.limit_in_bytes")?;
            limits.memory_reservation = limit("memory.soft_limit_in_bytes")?.unwrap_or_default();
        }
        Ok(limits)
    }
}

pub(crate) fn memory_of(
    hierarchy: &Cgroups,
    path: &CgroupPath,
    buffer: &mut Buffer,
) -> Result<Option<MemorySample>, ReadError> {
    let Some(directory) = hierarchy.directory_of("memory", path) else { return Ok(None) };
    let directory = Directory::open(&directory).map_err(|_| ReadError::Gone)?;
    read_memory(&directory, buffer)
}

fn read_memory(directory: &Directory, buffer: &mut Buffer) -> Result<Option<MemorySample>, ReadError> {
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
            (memory.oom_kills, memory.oom_kills_in_all) = (value, value);
        }
    }
    Ok(Some(memory))
}

fn read_disks(
    directory: &Directory,
    (bytes, operations): (&str, &str),
    buffer: &mut Buffer,
) -> Result<Vec<IoSample>, ReadError> {
    let mut found = Vec::new();
    for (device, operation, value) in directory.text(bytes, buffer)?.map(blkio).into_iter().flatten() {
        match operation {
            b"Read" => change(&mut found, device, |sample| sample.read_bytes = value),
            b"Write" => change(&mut found, device, |sample| sample.written_bytes = value),
            _ => {}
        }
    }
    // A disk of which no bytes are counted has no operations either.
    if found.is_empty() {
        return Ok(found);
    }
    for (device, operation, value) in directory.text(operations, buffer)?.map(blkio).into_iter().flatten() {
        match operation {
            b"Read" => change(&mut found, device, |sample| sample.reads = value),
            b"Write" => change(&mut found, device, |sample| sample.writes = value),
            _ => {}
        }
    }
    Ok(found)
}

fn change(found: &mut Vec<IoSample>, (major, minor): (u32, u32), change: impl FnOnce(&mut IoSample)) {
    let at =
        found.iter().position(|known| (known.major, known.minor) == (major, minor)).unwrap_or_else(|| {
            found.push(IoSample { major, minor, ..IoSample::default() });
            found.len() - 1
        });
    if let Some(sample) = found.get_mut(at) {
        change(sample);
    }
}
