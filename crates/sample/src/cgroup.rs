//! One cgroup that is read again and again.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_cgroup::{CgroupPath, Cgroups};
use mainstay_types::{HugePageSample, Limits, MemorySample, Pressures, Sample};

use crate::{
    files::{Budget, Buffer, Share},
    huge_pages::{Size, Sizes},
    processes::Processes,
    rising::Rising,
    v1, v2,
};

/// Every such reading is a whole one, with the limits and huge pages: they seldom change, and are a third of all files. At ten seconds
/// between readings nothing that is told of an idle cgroup is older than a minute.
const WHOLE_EVERY: u32 = 6;
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
    _share: Share,
    limits: Limits,
    /// The sizes that the kernel has.
    page_sizes: &'static [Size],
    huge_pages: Option<Arc<[HugePageSample]>>,
    readings: u32,
    turn: u32,
    made_at: Timestamp,
    processes: Processes,
    /// The reading from which the next rate is told, and the newest rate.
    rated: Option<(Timestamp, u64)>,
    nano_cores: Option<u64>,
    rising: Rising,
    last: Option<Arc<Sample>>,
    /// Whether the newest look found nothing new.
    idle: bool,
}

/// What a look at a few files shows: processor time, memory, disks and pressure, as the kernel counts them.
#[derive(Clone, Debug)]
pub(crate) enum Glance {
    /// Something has happened since.
    Changed,
    /// Nothing has, but for time that was spent waiting.
    Same(Option<Pressures>),
}

#[derive(Debug)]
enum Kind {
    V1(v1::Directories),
    V2(v2::Directory),
}

impl Kind {
    fn rest(&mut self) {
        match self {
            Self::V1(directories) => directories.rest(),
            Self::V2(directory) => directory.rest(),
        }
    }
}

impl Cgroup {
    /// Opens a cgroup of the hierarchy. Its directories stay open as far as the budget allows.
    ///
    /// # Errors
    /// [`ReadError::Gone`] if it is not there.
    pub fn open(
        hierarchy: &Cgroups,
        path: &CgroupPath,
        budget: &Budget,
        buffer: &mut Buffer,
    ) -> Result<Self, ReadError> {
        Self::with_sizes(hierarchy, path, budget, buffer, Sizes::of_machine())
    }

    fn with_sizes(
        hierarchy: &Cgroups,
        path: &CgroupPath,
        budget: &Budget,
        buffer: &mut Buffer,
        sizes: &'static Sizes,
    ) -> Result<Self, ReadError> {
        let mut share = Share::of(budget);
        let page_sizes = if hierarchy.is_v2() { &sizes.v2 } else { &sizes.v1 };
        let mut kind = if hierarchy.is_v2() {
            Kind::V2(v2::Directory::open(hierarchy, path, &mut share, buffer)?)
        } else {
            Kind::V1(v1::Directories::open(hierarchy, path, &mut share, buffer, page_sizes)?)
        };
        let made_at = match &kind {
            Kind::V1(directories) => directories.made_at(),
            Kind::V2(directory) => directory.made_at(),
        };
        kind.rest();
        Ok(Self {
            kind,
            _share: share,
            limits: Limits::default(),
            page_sizes,
            huge_pages: None,
            readings: 0,
            turn: 0,
            made_at,
            processes: Processes::new(path.as_str() == "/"),
            rated: None,
            nano_cores: None,
            rising: Rising::default(),
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
    pub fn is_idle(&self) -> bool {
        let adds_up = match &self.kind {
            Kind::V1(directories) => directories.adds_up(),
            Kind::V2(_) => true,
        };
        self.idle && adds_up
    }

    const fn is_due(&self) -> bool {
        self.readings == 0 || self.readings.wrapping_add(self.turn).is_multiple_of(WHOLE_EVERY)
    }

    /// The last reading once more without a look, for a cgroup whose parent [`Self::is_idle`]; `at` is when that was seen. `None`
    /// if it has to be read.
    pub fn repeat(&mut self, at: Timestamp) -> Option<Arc<Sample>> {
        let last = self.last.as_ref().filter(|last| !self.must_read() && !is_pressed(last))?;
        let sample = Sample { at, ..Sample::clone(last) };
        Some(self.told(sample, true))
    }

    fn must_read(&self) -> bool {
        self.is_due() || self.rising.is_in_doubt()
    }

    /// A process that was in it at the last reading, by which its namespaces are found.
    #[must_use]
    pub const fn process(&self) -> Option<i32> {
        self.processes.first()
    }

    /// Reads it. `buffer` is scratch space that readings share.
    ///
    /// # Errors
    /// [`ReadError::Gone`] if it vanished meanwhile, even half way; [`ReadError::Failed`] if a file cannot be read that may be
    /// readable the next time. One that the kernel does not have, or does not let us read, counts as one that is not there.
    pub fn read(&mut self, at: Timestamp, buffer: &mut Buffer) -> Result<Arc<Sample>, ReadError> {
        let read = self.look(at, buffer);
        self.kind.rest();
        read
    }

    fn look(&mut self, at: Timestamp, buffer: &mut Buffer) -> Result<Arc<Sample>, ReadError> {
        if !self.must_read()
            && let Some(sample) = self.unchanged(at, buffer)?
        {
            return Ok(sample);
        }
        let rarely = self.is_due();
        let mut sample = match &mut self.kind {
            Kind::V1(directories) => directories.read(at, buffer)?,
            Kind::V2(directory) => directory.read(at, buffer)?,
        };
        let directory = match &self.kind {
            Kind::V1(directories) => directories.account(),
            Kind::V2(directory) => directory.files(),
        };
        sample.processes = self.processes.read(directory, rarely, buffer)?;
        if sample.pids.current == 0 && matches!(self.kind, Kind::V2(_)) {
            // The root of cgroup v2, and what has not the controller, tells of no threads; upstream counts the processes directly in it.
            sample.pids.current = sample.processes.count;
        }
        sample.made_at = self.made_at;
        if rarely {
            self.limits = match &self.kind {
                Kind::V1(directories) => directories.limits(buffer)?,
                Kind::V2(directory) => directory.limits(buffer)?,
            };
            self.huge_pages = match &self.kind {
                Kind::V1(directories) => directories.huge_pages(self.page_sizes, buffer)?,
                Kind::V2(directory) => directory.huge_pages(self.page_sizes, buffer)?,
            };
        }
        sample.limits = self.limits;
        sample.huge_pages.clone_from(&self.huge_pages);
        self.rising.sample(&mut sample, self.last.as_deref());
        Ok(self.told(sample, false))
    }

    /// The last reading once more, if nothing has run in the cgroup since, nothing was charged to it and nothing went to or
    /// from a disk for it. Most containers of most nodes do nothing most of the time, and a few files tell so instead of all.
    /// What they say is of this moment; the rest cannot have changed without them, but for what the kernel sorts anew by
    /// itself and what is set from outside, which a whole reading now and then finds.
    fn unchanged(&mut self, at: Timestamp, buffer: &mut Buffer) -> Result<Option<Arc<Sample>>, ReadError> {
        let Some(last) = &self.last else { return Ok(None) };
        let glance = match &self.kind {
            Kind::V1(directories) => directories.glance(last, buffer)?,
            Kind::V2(directory) => directory.glance(last, buffer)?,
        };
        let Glance::Same(news) = glance else { return Ok(None) };
        let mut sample = Sample { at, ..Sample::clone(last) };
        if news.is_some() {
            sample.pressure = news;
            self.rising.sample(&mut sample, self.last.as_deref());
        }
        Ok(Some(self.told(sample, news.is_none())))
    }

    fn told(&mut self, mut sample: Sample, idle: bool) -> Arc<Sample> {
        sample.nano_cores = self.rate(sample.at, sample.cpu.usage_ns);
        self.readings = self.readings.wrapping_add(1);
        self.idle = idle;
        let sample = Arc::new(sample);
        self.last = Some(Arc::clone(&sample));
        sample
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
    let mut buffer = Buffer::default();
    if hierarchy.is_v2() {
        let mut share = Share::of(&Budget::new(2));
        v2::Directory::open(hierarchy, path, &mut share, &mut buffer)?.memory(&mut buffer)
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

pub(crate) fn empty(at: Timestamp) -> Sample {
    Sample { at, ..Sample::default() }
}

#[cfg(test)]
mod tests;
