//! The unified hierarchy.

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups, weight_to_shares};
use mainstay_types::{Limits, MemorySample, Pressures, Sample};

use crate::{
    cgroup::{Glance, ReadError, empty},
    files,
    parse::{self, keyed},
};

const MICROSECOND: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Directory {
    files: files::Directory,
    /// The root has no files for what the whole machine uses of memory; `/proc` has.
    proc: Option<files::Directory>,
    /// The kernel measures pressure. Asked once: where it does not, opening the files would fail each time.
    pressure: bool,
}

impl Directory {
    pub(crate) fn open(hierarchy: &Cgroups, path: &CgroupPath, is_root: bool) -> Result<Self, ReadError> {
        let directory = hierarchy.directory_of("", path).ok_or(ReadError::Gone)?;
        let files = files::Directory::open(&directory).map_err(|error| match error {
            rustix::io::Errno::NOENT => ReadError::Gone,
            error => ReadError::Failed(error.raw_os_error()),
        })?;
        let proc = if is_root { files::Directory::open("/proc".as_ref()).ok() } else { None };
        let pressure = files.read("cpu.pressure", &mut Vec::new()).is_ok();
        Ok(Self { files, proc, pressure })
    }

    pub(crate) fn made_at(&self) -> Timestamp {
        self.files.made_at("cgroup.events")
    }

    pub(crate) const fn files(&self) -> &files::Directory {
        &self.files
    }

    pub(crate) fn glance(&self, buffer: &mut Vec<u8>) -> Result<Glance, ReadError> {
        let text = self.files.read("cpu.stat", buffer)?;
        let used = keyed(text).find(|(key, _)| *key == b"usage_usec").map_or(0, |(_, value)| value);
        let memory = self.files.number("memory.current", buffer)?.unwrap_or_default();
        Ok(Glance { cpu_ns: used.saturating_mul(MICROSECOND), memory })
    }

    pub(crate) fn read(&mut self, at: Timestamp, buffer: &mut Vec<u8>) -> Result<Sample, ReadError> {
        let mut sample = empty(at);
        let text = self.files.read("cpu.stat", buffer)?;
        let cpu = &mut sample.cpu;
        for (key, value) in keyed(text) {
            match key {
                b"usage_usec" => cpu.usage_ns = value.saturating_mul(MICROSECOND),
                b"user_usec" => cpu.user_ns = value.saturating_mul(MICROSECOND),
                b"system_usec" => cpu.system_ns = value.saturating_mul(MICROSECOND),
                b"nr_periods" => cpu.periods = value,
                b"nr_throttled" => cpu.throttled_periods = value,
                b"throttled_usec" => cpu.throttled_ns = value.saturating_mul(MICROSECOND),
                b"nr_bursts" => cpu.bursts = value,
                b"burst_usec" => cpu.burst_ns = value.saturating_mul(MICROSECOND),
                _ => {}
            }
        }
        sample.memory = self.memory(buffer)?;
        sample.io = self.files.text("io.stat", buffer)?.map(parse::io_stat).unwrap_or_default();
        sample.pids.current = self.files.number("pids.current", buffer)?.unwrap_or_default();
        if self.pressure {
            sample.pressure = Some(Pressures {
                cpu: self.files.text("cpu.pressure", buffer)?.and_then(parse::pressure).unwrap_or_default(),
                memory: self
                    .files
                    .text("memory.pressure", buffer)?
                    .and_then(parse::pressure)
                    .unwrap_or_default(),
                io: self.files.text("io.pressure", buffer)?.and_then(parse::pressure).unwrap_or_default(),
            });
        }
        sample.pids.max = self.files.number("pids.max", buffer)?;
        Ok(sample)
    }

    pub(crate) fn memory(&self, buffer: &mut Vec<u8>) -> Result<Option<MemorySample>, ReadError> {
        let mut memory = MemorySample::default();
        let Some(text) = self.files.text("memory.stat", buffer)? else { return Ok(None) };
        for (key, value) in keyed(text) {
            match key {
                b"anon" => memory.rss = value,
                b"file" => memory.cache = value,
                b"file_mapped" => memory.mapped_file = value,
                b"active_file" => memory.active_file = value,
                b"inactive_file" => memory.inactive_file = value,
                b"pgfault" => memory.page_faults = value,
                b"pgmajfault" => memory.major_page_faults = value,
                b"file_dirty" => memory.file_dirty = value,
                b"file_writeback" => memory.file_writeback = value,
                b"pgscan" => memory.scanned = value,
                b"pgsteal" => memory.stolen = value,
                b"workingset_refault_file" => memory.refault_file = value,
                b"workingset_refault_anon" => memory.refault_anon = value,
                _ => {}
            }
        }
        if let Some(proc) = &self.proc {
            // What upstream counts for the machine; the kernel's own memory is not in it.
            memory.usage = memory.rss.saturating_add(memory.cache);
            if let Ok(text) = proc.read("meminfo", buffer) {
                let total = parse::meminfo(text, b"SwapTotal").unwrap_or_default();
                memory.swap = total.saturating_sub(parse::meminfo(text, b"SwapFree").unwrap_or_default());
            }
        } else {
            memory.usage = self.files.number("memory.current", buffer)?.unwrap_or_default();
            memory.swap = self.files.number("memory.swap.current", buffer)?.unwrap_or_default();
            memory.max_usage = self.files.number("memory.peak", buffer)?.unwrap_or_default();
            for (key, value) in self.files.text("memory.events", buffer)?.map(keyed).into_iter().flatten() {
                match key {
                    b"high" => memory.high_events = value,
                    b"max" => memory.max_events = value,
                    b"oom_kill" => memory.oom_kills = value,
                    _ => {}
                }
            }
            if memory.oom_kills > 0 {
                // Of these, those that were in this very cgroup: the ones below have their own count.
                let local = self.files.text("memory.events.local", buffer)?;
                let own = local.and_then(|text| keyed(text).find(|(key, _)| *key == b"oom_kill"));
                memory.oom_kills = own.map_or(memory.oom_kills, |(_, value)| value);
            }
        }
        memory.working_set = memory.usage.saturating_sub(memory.inactive_file);
        Ok(Some(memory))
    }

    pub(crate) fn limits(&self, buffer: &mut Vec<u8>) -> Limits {
        let mut limits = Limits::default();
        let read = |name: &str, buffer: &mut Vec<u8>| self.files.number(name, buffer).ok().flatten();
        if let Some((quota, period)) = self.files.read("cpu.max", buffer).ok().and_then(parse::cpu_max) {
            limits.cpu_quota_us = quota;
            limits.cpu_period_us = period;
        }
        let weight = read("cpu.weight", buffer).and_then(|weight| i64::try_from(weight).ok());
        limits.cpu_shares = weight.and_then(|w| u64::try_from(weight_to_shares(w)).ok()).unwrap_or_default();
        if let Some(proc) = &self.proc {
            if let Ok(text) = proc.read("meminfo", buffer) {
                limits.memory = parse::meminfo(text, b"MemTotal");
                limits.swap = parse::meminfo(text, b"SwapTotal");
            }
        } else {
            limits.memory = read("memory.max", buffer);
            limits.swap = read("memory.swap.max", buffer);
            limits.memory_reservation = read("memory.min", buffer).unwrap_or_default();
        }
        limits
    }
}
