//! One cgroup that is read again and again.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_types::{CpuSample, Limits, MemorySample, Sample};

use crate::{processes::Processes, v1, v2};

/// Every such reading is a whole one, with the limits: they seldom change, and are a third of all files.
const WHOLE_EVERY: u32 = 12;
/// Two readings nearer to one another than this tell no rate.
const RATE_MS: i64 = 1000;

/// Why a cgroup could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It has gone: its container or pod ended.
    Gone,
    /// The kernel refused, with this error number.
    Failed(i32),
}

/// A cgroup whose directories are held open.
#[derive(Debug)]
pub struct Cgroup {
    kind: Kind,
    limits: Limits,
    readings: u32,
    turn: u32,
    made_at: Timestamp,
    processes: Processes,
    /// The reading from which the next rate is told, and the newest rate.
    rated: Option<(Timestamp, u64)>,
    nano_cores: Option<u64>,
    newest: CpuSample,
    /// The newest reading, and what a glance showed at the last whole one.
    last: Option<(Glance, Arc<Sample>)>,
    /// Whether the newest reading was the last one once more.
    idle: bool,
}

/// What tells whether anything has happened: processor time and memory, as the kernel counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glance {
    pub(crate) cpu_ns: u64,
    pub(crate) memory: u64,
}

#[derive(Debug)]
enum Kind {
    V1(v1::Directories),
    V2(v2::Directory),
}

/// Everything there is to say but the limits.
pub(crate) type Usage = Sample;

impl Cgroup {
    /// Opens a cgroup of the hierarchy.
    ///
    /// # Errors
    /// [`ReadError::Gone`] if it is not there.
    pub fn open(hierarchy: &Cgroups, path: &CgroupPath) -> Result<Self, ReadError> {
        let is_root = path.as_str() == "/";
        let kind = if hierarchy.is_v2() {
            Kind::V2(v2::Directory::open(hierarchy, path, is_root)?)
        } else {
            Kind::V1(v1::Directories::open(hierarchy, path)?)
        };
        let made_at = match &kind {
            Kind::V1(directories) => directories.made_at(),
            Kind::V2(directory) => directory.made_at(),
        };
        Ok(Self {
            kind,
            limits: Limits::default(),
            readings: 0,
            turn: 0,
            made_at,
            processes: Processes::new(is_root),
            rated: None,
            nano_cores: None,
            newest: CpuSample::default(),
            last: None,
            idle: false,
        })
    }

    /// Has its whole readings after the first in a turn of its own: cgroups that were opened together, but with other turns, have
    /// them at other times, and no round of readings is much dearer than another.
    #[must_use]
    pub const fn in_turn(mut self, turn: u32) -> Self {
        self.turn = turn % WHOLE_EVERY;
        self
    }

    /// Whether nothing had happened at the last reading, in it or below: the kernel adds up.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.idle
    }

    const fn is_due(&self) -> bool {
        self.readings == 0 || self.readings.wrapping_add(self.turn).is_multiple_of(WHOLE_EVERY)
    }

    /// The last reading once more without a look, for a cgroup whose parent [`Self::is_idle`]; `None` if a whole reading is due.
    pub fn repeat(&mut self, at: Timestamp) -> Option<Arc<Sample>> {
        let (glance, last) = self.last.as_ref().filter(|(_, last)| !self.is_due() && !is_pressed(last))?;
        let (glance, sample) = (*glance, Sample { at, ..Sample::clone(last) });
        Some(self.repeated(glance, sample))
    }

    /// A process that was in it at the last reading, by which its namespaces are found.
    #[must_use]
    pub const fn process(&self) -> Option<i32> {
        self.processes.first()
    }

    /// Reads it. `buffer` is scratch space that readings share.
    ///
    /// # Errors
    /// [`ReadError::Gone`] if it vanished meanwhile, even half way; a file that cannot be read for another reason counts as
    /// one that is not there, unless it is the one for processor time, without which there is nothing to say.
    pub fn read(&mut self, at: Timestamp, buffer: &mut Vec<u8>) -> Result<Arc<Sample>, ReadError> {
        let rarely = self.is_due();
        if !rarely && let Some(sample) = self.unchanged(at, buffer)? {
            return Ok(sample);
        }
        let mut sample = match &mut self.kind {
            Kind::V1(directories) => directories.read(at, buffer)?,
            Kind::V2(directory) => directory.read(at, buffer)?,
        };
        let glance = Glance {
            cpu_ns: sample.cpu.usage_ns,
            memory: sample.memory.as_ref().map_or(0, |memory| memory.usage),
        };
        let directory = match &self.kind {
            Kind::V1(directories) => directories.account(),
            Kind::V2(directory) => directory.files(),
        };
        sample.processes = self.processes.read(directory, rarely, buffer)?;
        sample.made_at = self.made_at;
        self.keep_rising(&mut sample.cpu);
        sample.nano_cores = self.rate(at, sample.cpu.usage_ns);
        if rarely {
            self.limits = match &self.kind {
                Kind::V1(directories) => directories.limits(buffer),
                Kind::V2(directory) => directory.limits(buffer),
            };
        }
        self.readings = self.readings.wrapping_add(1);
        sample.limits = self.limits;
        let sample = Arc::new(sample);
        self.last = Some((glance, Arc::clone(&sample)));
        self.idle = false;
        Ok(sample)
    }

    /// The last reading once more, if nothing has run in the cgroup since and nothing was charged to it. Most containers of
    /// most nodes do nothing most of the time, and two files tell so instead of fifteen. A whole reading now and then finds
    /// what the kernel changes by itself.
    fn unchanged(&mut self, at: Timestamp, buffer: &mut Vec<u8>) -> Result<Option<Arc<Sample>>, ReadError> {
        let Some((then, last)) = self.last.as_ref().filter(|(_, last)| !is_pressed(last)) else {
            return Ok(None);
        };
        let now = match &self.kind {
            Kind::V1(directories) => directories.glance(buffer)?,
            Kind::V2(directory) => directory.glance(buffer)?,
        };
        if now != *then {
            return Ok(None);
        }
        let sample = Sample { at, ..Sample::clone(last) };
        Ok(Some(self.repeated(now, sample)))
    }

    fn repeated(&mut self, glance: Glance, mut sample: Sample) -> Arc<Sample> {
        sample.nano_cores = self.rate(sample.at, sample.cpu.usage_ns);
        self.readings = self.readings.wrapping_add(1);
        self.idle = true;
        let sample = Arc::new(sample);
        self.last = Some((glance, Arc::clone(&sample)));
        sample
    }

    /// What counts up never goes back while it is the same cgroup, whatever a kernel prints.
    fn keep_rising(&mut self, cpu: &mut CpuSample) {
        let last = self.newest;
        for (new, last) in [
            (&mut cpu.usage_ns, last.usage_ns),
            (&mut cpu.user_ns, last.user_ns),
            (&mut cpu.system_ns, last.system_ns),
            (&mut cpu.periods, last.periods),
            (&mut cpu.throttled_periods, last.throttled_periods),
            (&mut cpu.throttled_ns, last.throttled_ns),
        ] {
            *new = last.max(*new);
        }
        self.newest = *cpu;
    }

    /// Processor time per time since an earlier reading. A clock that was set back begins anew.
    fn rate(&mut self, at: Timestamp, usage_ns: u64) -> Option<u64> {
        let Some((then, before)) = self.rated else {
            self.rated = Some((at, usage_ns));
            return None;
        };
        let millis = at.as_millisecond().saturating_sub(then.as_millisecond());
        if millis < 0 {
            (self.rated, self.nano_cores) = (Some((at, usage_ns)), None);
        } else if millis >= RATE_MS {
            let nanos = u128::from(usage_ns.saturating_sub(before));
            let rate = nanos * 1_000 / u128::from(millis.unsigned_abs());
            (self.rated, self.nano_cores) = (Some((at, usage_ns)), u64::try_from(rate).ok());
        }
        self.nano_cores
    }
}

/// What a cgroup uses of memory, and nothing else: for those who have no use for the rest. `None` where it is not counted.
///
/// # Errors
/// [`ReadError`] if it is not there or cannot be read.
pub fn memory_of(hierarchy: &Cgroups, path: &CgroupPath) -> Result<Option<MemorySample>, ReadError> {
    let mut buffer = Vec::new();
    if hierarchy.is_v2() {
        v2::Directory::open(hierarchy, path, path.as_str() == "/")?.memory(&mut buffer)
    } else {
        v1::memory_of(hierarchy, path, &mut buffer)
    }
}

/// Averages of pressure fade although nothing happens.
fn is_pressed(sample: &Sample) -> bool {
    sample.pressure.as_ref().is_some_and(|pressures| {
        let kinds = [&pressures.cpu, &pressures.memory, &pressures.io];
        let lines = kinds.into_iter().flat_map(|kind| [&kind.some, &kind.full]);
        lines.flat_map(|line| [line.avg10, line.avg60, line.avg300]).any(|average| average > 0.0)
    })
}

pub(crate) fn empty(at: Timestamp) -> Usage {
    Sample { at, ..Sample::default() }
}

#[cfg(test)]
mod tests;
