//! What counts up, from one reading to the next.
//!
//! A counter never goes back while it is the same one, and it does not leap. Where a reading says so, what was told before is
//! told again, and the next readings decide: what the kernel insists on is taken as it is. A counter that began anew then does
//! so for everybody, and a number that was wrong once is not kept.

use jiff::Timestamp;
use mainstay_types::{
    CpuSample, DeviceReading, DiskWork, IoSample, MemorySample, NetworkSample, Pressure, Pressures, Sample,
    Traffic,
};
use rustix::time::{ClockId, clock_gettime};

/// In so many readings one after the other a doubtful number is not believed.
const DOUBTS: u8 = 2;
/// No counter grows by more than this in a second: nanoseconds of seventeen thousand processors, bytes of as many gigabytes.
const MOST_PER_SECOND: u64 = 1 << 44;
/// What is larger is never believed: it is a negative number that was taken for another.
const NONSENSE: u64 = 1 << 63;

/// Watches the counters of one cgroup, network or machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rising {
    doubts: u8,
}

type Field<T> = fn(&mut T) -> &mut u64;

const CPU: [Field<CpuSample>; 8] = [
    |it| &mut it.usage_ns,
    |it| &mut it.user_ns,
    |it| &mut it.system_ns,
    |it| &mut it.periods,
    |it| &mut it.throttled_periods,
    |it| &mut it.throttled_ns,
    |it| &mut it.bursts,
    |it| &mut it.burst_ns,
];
const MEMORY: [Field<MemorySample>; 11] = [
    |it| &mut it.fail_count,
    |it| &mut it.page_faults,
    |it| &mut it.major_page_faults,
    |it| &mut it.high_events,
    |it| &mut it.max_events,
    |it| &mut it.oom_kills,
    |it| &mut it.oom_kills_in_all,
    |it| &mut it.scanned,
    |it| &mut it.stolen,
    |it| &mut it.refault_file,
    |it| &mut it.refault_anon,
];
const IO: [Field<IoSample>; 4] =
    [|it| &mut it.read_bytes, |it| &mut it.written_bytes, |it| &mut it.reads, |it| &mut it.writes];
const PRESSURES: [fn(&mut Pressures) -> &mut Pressure; 3] =
    [|it| &mut it.cpu, |it| &mut it.memory, |it| &mut it.io];
const PRESSURE: [Field<Pressure>; 2] = [|it| &mut it.some.total_us, |it| &mut it.full.total_us];
const TRAFFIC: [Field<Traffic>; 4] =
    [|it| &mut it.bytes, |it| &mut it.packets, |it| &mut it.errors, |it| &mut it.dropped];
const DISK: [Field<DiskWork>; 10] = [
    |it| &mut it.reads,
    |it| &mut it.reads_merged,
    |it| &mut it.sectors_read,
    |it| &mut it.read_ms,
    |it| &mut it.writes,
    |it| &mut it.writes_merged,
    |it| &mut it.sectors_written,
    |it| &mut it.write_ms,
    |it| &mut it.busy_ms,
    |it| &mut it.weighted_ms,
];

impl Rising {
    /// Whether the newest reading said something that was not believed.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// Looks at the reading of a cgroup; `last` is what was told of it before.
    pub(crate) fn sample(&mut self, new: &mut Sample, last: Option<&Sample>) {
        let mut look = Look::new(*self, new.at, last.map(|last| last.at));
        look.all(&CPU, &mut new.cpu, last.map(|last| last.cpu));
        if let Some(memory) = &mut new.memory {
            look.all(&MEMORY, memory, last.and_then(|last| last.memory));
        }
        for io in &mut new.io {
            let is_it = |it: &&IoSample| (it.major, it.minor) == (io.major, io.minor);
            let last = last.and_then(|last| last.io.iter().find(is_it)).copied();
            look.all(&IO, io, last);
        }
        if let Some(pressures) = &mut new.pressure {
            let mut last = last.and_then(|last| last.pressure);
            for kind in PRESSURES {
                let last = last.as_mut().map(|last| *kind(last));
                look.all(&PRESSURE, kind(pressures), last);
            }
        }
        *self = look.end();
    }

    /// Looks at the reading of a network.
    pub fn network(&mut self, new: &mut NetworkSample, last: Option<&NetworkSample>) {
        let mut look = Look::new(*self, new.at, last.map(|last| last.at));
        for interface in &mut new.interfaces {
            let last = last.and_then(|last| last.interfaces.iter().find(|it| it.name == interface.name));
            look.all(&TRAFFIC, &mut interface.received, last.map(|last| last.received));
            look.all(&TRAFFIC, &mut interface.sent, last.map(|last| last.sent));
        }
        *self = look.end();
    }

    /// Looks at the reading of the machine's disks.
    pub fn disks(&mut self, new: &mut [DeviceReading], last: &[DeviceReading]) {
        let newest = |readings: &[DeviceReading]| readings.iter().map(|it| it.at).max();
        let mut look = Look::new(*self, newest(new).unwrap_or_default(), newest(last));
        for device in new {
            let last = last.iter().find(|it| it.device == device.device).and_then(|it| it.disk);
            if let Some(disk) = &mut device.disk {
                look.all(&DISK, disk, last);
            }
        }
        *self = look.end();
    }
}

/// One look at the counters that belong together.
struct Look {
    before: Rising,
    /// By how much one may have grown that was there before, and one that was not.
    most: u64,
    most_ever: u64,
    doubted: bool,
}

impl Look {
    fn new(before: Rising, at: Timestamp, last: Option<Timestamp>) -> Self {
        let most = |seconds: i64| MOST_PER_SECOND.saturating_mul(seconds.unsigned_abs().max(1));
        // Clocks are set back, too; nothing that is counted is older than the machine's uptime.
        let seconds = last.map_or(0, |last| at.as_second().saturating_sub(last.as_second()).max(0));
        let uptime = clock_gettime(ClockId::Boottime).tv_sec;
        Self { before, most: most(seconds), most_ever: most(uptime), doubted: false }
    }

    fn all<T: Copy>(&mut self, fields: &[Field<T>], new: &mut T, last: Option<T>) {
        let mut last = last;
        for field in fields {
            let told = last.as_mut().map(|last| *field(last));
            self.one(field(new), told);
        }
    }

    fn one(&mut self, new: &mut u64, told: Option<u64>) {
        let (from, most) = told.map_or((0, self.most_ever), |told| (told, self.most));
        if *new >= from && *new - from <= most && *new < NONSENSE {
            return;
        }
        self.doubted = true;
        if self.before.doubts < DOUBTS || *new >= NONSENSE {
            *new = from;
        }
    }

    const fn end(self) -> Rising {
        let Rising { doubts } = self.before;
        Rising { doubts: if self.doubted && doubts < DOUBTS { doubts + 1 } else { 0 } }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_types::InterfaceSample;

    use super::*;

    /// Readings of one counter, ten seconds apart, and what is told of them.
    fn told(readings: &[u64]) -> Vec<u64> {
        let (mut rising, mut last) = (Rising::default(), None::<Sample>);
        let mut all = Vec::new();
        for (round, reading) in readings.iter().enumerate() {
            let at = Timestamp::from_second(10 * i64::try_from(round).unwrap()).unwrap();
            let cpu = CpuSample { usage_ns: *reading, ..CpuSample::default() };
            let mut new = Sample { at, cpu, ..Sample::default() };
            rising.sample(&mut new, last.as_ref());
            all.push(new.cpu.usage_ns);
            last = Some(new);
        }
        all
    }

    #[test]
    fn what_goes_back_or_leaps_is_told_when_the_kernel_insists() {
        let high = u64::MAX / 4;
        for (readings, expected) in [
            (vec![5, 6, 6, 9], vec![5, 6, 6, 9]),
            // It went back for a moment.
            (vec![100, 90, 101, 90, 95, 102], vec![100, 100, 101, 101, 101, 102]),
            // It began anew.
            (vec![100, 1, 2, 3, 4], vec![100, 100, 100, 3, 4]),
            // It leapt for a moment.
            (vec![100, high, 102, 103], vec![100, 100, 102, 103]),
            // It leapt, and stays there; a moment's doubt is not an end of it.
            (vec![100, high, high, high, high + 1], vec![100, 100, 100, high, high + 1]),
            // What was taken for true although it was not does not stay.
            (vec![1, high, high, high, 5, 6, 7, 8], vec![1, 1, 1, high, high, high, 7, 8]),
            // A negative number never counts.
            (vec![7, u64::MAX, u64::MAX, u64::MAX, u64::MAX, 8], vec![7, 7, 7, 7, 7, 8]),
            (vec![u64::MAX, u64::MAX, u64::MAX, u64::MAX, 8], vec![0, 0, 0, 0, 8]),
        ] {
            assert_eq!(told(&readings), expected, "{readings:?}");
        }
    }

    #[test]
    fn every_counter_is_watched() {
        let ones = |value: u64| {
            let mut sample = Sample {
                memory: Some(MemorySample::default()),
                io: vec![IoSample { major: 8, ..IoSample::default() }],
                pressure: Some(Pressures::default()),
                ..Sample::default()
            };
            CPU.iter().for_each(|field| *field(&mut sample.cpu) = value);
            MEMORY.iter().for_each(|field| *field(sample.memory.as_mut().unwrap()) = value);
            IO.iter().for_each(|field| *field(&mut sample.io[0]) = value);
            for kind in PRESSURES {
                PRESSURE.iter().for_each(|field| *field(kind(sample.pressure.as_mut().unwrap())) = value);
            }
            sample
        };
        for wrong in [1, u64::MAX, u64::MAX / 4] {
            let mut new = ones(wrong);
            Rising::default().sample(&mut new, Some(&ones(7)));
            assert_eq!(new, ones(7), "{wrong}");
        }
        // What is none may be anything.
        let mut new = ones(7);
        new.memory.as_mut().unwrap().usage = 3;
        let mut last = ones(7);
        last.memory.as_mut().unwrap().usage = 5;
        Rising::default().sample(&mut new, Some(&last));
        assert_eq!(new.memory.unwrap().usage, 3);

        let network = |value: u64| {
            let mut traffic = Traffic::default();
            TRAFFIC.iter().for_each(|field| *field(&mut traffic) = value);
            let eth0 = InterfaceSample { name: "eth0".into(), received: traffic, sent: traffic };
            NetworkSample { interfaces: vec![eth0], ..NetworkSample::default() }
        };
        let disk = |value: u64| {
            let mut disk = DiskWork { in_flight: 3, ..DiskWork::default() };
            DISK.iter().for_each(|field| *field(&mut disk) = value);
            DeviceReading { device: "/dev/a".into(), disk: Some(disk), ..DeviceReading::default() }
        };
        for wrong in [1, u64::MAX] {
            let mut new = network(wrong);
            Rising::default().network(&mut new, Some(&network(7)));
            assert_eq!(new, network(7));
            let mut new = [disk(wrong)];
            Rising::default().disks(&mut new, &[disk(7)]);
            assert_eq!(new[0].disk, disk(7).disk);
        }
    }
}
