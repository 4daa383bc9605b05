//! The unified hierarchy.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups, weight_to_shares};
use mainstay_types::{HugePageSample, IoSample, Limits, MemorySample, Pressure, Pressures, Sample};
use rustix::io::Errno;

use crate::{
    cgroup::{Glance, ReadError, empty},
    files::{self, Buffer, Share, Unread},
    huge_pages::{self, Size},
    parse::{self, keyed},
};

const MICROSECOND: u64 = 1000;

/// How often somebody was killed for want of memory. Where a cgroup ends whole (`memory.oom.group`), the kernel counts each of its processes,
/// and whoever was chosen first once more: that was one time, and kernels since 5.17 say so.
fn kills(events: &[u8]) -> u64 {
    let of = |wanted: &[u8]| keyed(events).find(|(key, _)| *key == wanted).map_or(0, |(_, value)| value);
    match of(b"oom_group_kill") {
        0 => of(b"oom_kill"),
        groups => groups,
    }
}

#[derive(Debug)]
pub(crate) struct Directory {
    files: files::Directory,
    /// The root has no files for what the whole machine uses of memory; `/proc` has.
    proc: Option<files::Directory>,
    /// The kernel measures pressure. Asked once: where it does not, opening the files would fail each time.
    pressure: bool,
}

impl Directory {
    pub(crate) fn open(
        hierarchy: &Cgroups,
        path: &CgroupPath,
        share: &mut Share,
        buffer: &mut Buffer,
    ) -> Result<Self, ReadError> {
        let mut open = |path: &Path| {
            files::Directory::open_within(path, share).map_err(|error| match error {
                Errno::NOENT => ReadError::Gone,
                error => ReadError::Failed(error.raw_os_error()),
            })
        };
        let files = open(&hierarchy.directory_of("", path).ok_or(ReadError::Gone)?)?;
        let proc = if path.as_str() == "/" { open("/proc".as_ref()).ok() } else { None };
        let pressure = match files.read("cpu.pressure", buffer) {
            Ok(_) => true,
            Err(Unread::Missing) => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { files, proc, pressure })
    }

    /// A reading is over.
    pub(crate) fn rest(&mut self) {
        self.files.rest();
        self.proc.iter_mut().for_each(files::Directory::rest);
    }

    pub(crate) fn made_at(&self) -> Timestamp {
        self.files.made_at("cgroup.events")
    }

    pub(crate) const fn files(&self) -> &files::Directory {
        &self.files
    }

    pub(crate) fn glance(&self, last: &Sample, buffer: &mut Buffer) -> Result<Glance, ReadError> {
        let text = self.files.read("cpu.stat", buffer)?;
        let used = keyed(text).find(|(key, _)| *key == b"usage_usec");
        if used.map(|(_, used)| used.saturating_mul(MICROSECOND)) != Some(last.cpu.usage_ns) {
            return Ok(Glance::Changed);
        }
        if self.files.number("memory.current", buffer)? != last.memory.map(|memory| memory.usage)
            || self.io(buffer)? != last.io
        {
            return Ok(Glance::Changed);
        }
        let pressure = self.pressures(buffer)?;
        Ok(Glance::Same((pressure != last.pressure).then_some(pressure).flatten()))
    }

    fn io(&self, buffer: &mut Buffer) -> Result<Vec<IoSample>, ReadError> {
        Ok(self.files.text("io.stat", buffer)?.map(parse::io_stat).unwrap_or_default())
    }

    fn pressures(&self, buffer: &mut Buffer) -> Result<Option<Pressures>, ReadError> {
        if !self.pressure {
            return Ok(None);
        }
        let mut of = |name| -> Result<Pressure, ReadError> {
            Ok(self.files.text(name, buffer)?.and_then(parse::pressure).unwrap_or_default())
        };
        Ok(Some(Pressures {
            cpu: of("cpu.pressure")?,
            memory: of("memory.pressure")?,
            io: of("io.pressure")?,
        }))
    }

    pub(crate) fn read(&mut self, at: Timestamp, buffer: &mut Buffer) -> Result<Sample, ReadError> {
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
        sample.io = self.io(buffer)?;
        sample.pids.current = self.files.number("pids.current", buffer)?.unwrap_or_default();
        sample.pressure = self.pressures(buffer)?;
        sample.pids.max = self.files.number("pids.max", buffer)?;
        Ok(sample)
    }

    pub(crate) fn memory(&self, buffer: &mut Buffer) -> Result<Option<MemorySample>, ReadError> {
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
            if let Some(text) = proc.optional("meminfo", buffer)? {
                let total = parse::meminfo(text, b"SwapTotal").unwrap_or_default();
                memory.swap = total.saturating_sub(parse::meminfo(text, b"SwapFree").unwrap_or_default());
            }
        } else {
            let Some(usage) = self.files.number("memory.current", buffer)? else { return Ok(None) };
            memory.usage = usage;
            memory.swap = self.files.number("memory.swap.current", buffer)?.unwrap_or_default();
            memory.max_usage = self.files.number("memory.peak", buffer)?.unwrap_or_default();
            if let Some(text) = self.files.text("memory.events", buffer)? {
                for (key, value) in keyed(text) {
                    match key {
                        b"high" => memory.high_events = value,
                        b"max" => memory.max_events = value,
                        _ => {}
                    }
                }
                memory.oom_kills_in_all = kills(text);
            }
            memory.oom_kills = memory.oom_kills_in_all;
            if memory.oom_kills_in_all > 0
                && let Some(text) = self.files.text("memory.events.local", buffer)?
            {
                // Of these, those that were in this very cgroup: the ones below have their own count.
                memory.oom_kills = kills(text);
            }
        }
        memory.working_set = memory.usage.saturating_sub(memory.inactive_file);
        Ok(Some(memory))
    }

    pub(crate) fn huge_pages(
        &self,
        sizes: &[Size],
        buffer: &mut Buffer,
    ) -> Result<Option<Arc<[HugePageSample]>>, ReadError> {
        huge_pages::read(&self.files, sizes, buffer)
    }

    pub(crate) fn limits(&self, buffer: &mut Buffer) -> Result<Limits, ReadError> {
        let mut limits = Limits::default();
        if let Some((quota, period)) = self.files.text("cpu.max", buffer)?.and_then(parse::cpu_max) {
            limits.cpu_quota_us = quota;
            limits.cpu_period_us = period;
        }
        let weight = self.files.number("cpu.weight", buffer)?.and_then(|weight| i64::try_from(weight).ok());
        limits.cpu_shares = weight.and_then(|w| u64::try_from(weight_to_shares(w)).ok()).unwrap_or_default();
        if let Some(proc) = &self.proc {
            if let Some(text) = proc.optional("meminfo", buffer)? {
                limits.memory = parse::meminfo(text, b"MemTotal");
                limits.swap = parse::meminfo(text, b"SwapTotal");
            }
        } else {
            limits.memory = self.files.number("memory.max", buffer)?;
            limits.swap = self.files.number("memory.swap.max", buffer)?;
            limits.memory_reservation = self.files.number("memory.min", buffer)?.unwrap_or_default();
        }
        Ok(limits)
    }
}
