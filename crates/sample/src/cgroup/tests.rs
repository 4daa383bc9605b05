use std::{fs, path::Path};

use super::*;

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    // No cgroup is without.
    if !dir.join("cgroup.procs").exists() {
        fs::write(dir.join("cgroup.procs"), "").unwrap();
    }
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
}

fn open(hierarchy: &Cgroups, path: &CgroupPath) -> Result<Cgroup, ReadError> {
    Cgroup::open(hierarchy, path, &Budget::new(100), &mut Buffer::default())
}

fn read(root: &Path, path: &str) -> Result<Arc<Sample>, ReadError> {
    let hierarchy = Cgroups::open(root).unwrap();
    let path = CgroupPath::parse(path).unwrap();
    open(&hierarchy, &path)?.read(Timestamp::UNIX_EPOCH, &mut Buffer::default())
}

const MEMORY_STAT_V2: &str = "anon 1000\nfile 500\nkernel 77\nfile_mapped 20\nfile_dirty 3\nfile_writeback 4\n\
    inactive_file 300\nactive_file 200\npgscan 5\npgsteal 6\nworkingset_refault_anon 7\nworkingset_refault_file 8\n\
    pgfault 9\npgmajfault 1\n";

#[test]
fn the_unified_hierarchy() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 5\n")]);
    let pod = dir.path().join("kubepods/pod1");
    write(
        &pod,
        &[
            (
                "cpu.stat",
                "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 4\nnr_throttled 2\nthrottled_usec 7\nnr_bursts 1\nburst_usec 2\n",
            ),
            ("cpu.max", "50000 100000\n"),
            ("cpu.weight", "39\n"),
            ("memory.stat", MEMORY_STAT_V2),
            ("memory.current", "1600\n"),
            ("memory.peak", "2000\n"),
            ("memory.max", "max\n"),
            ("memory.swap.current", "11\n"),
            ("memory.swap.max", "0\n"),
            ("memory.min", "0\n"),
            ("memory.events", "low 0\nhigh 2\nmax 3\noom 1\noom_kill 1\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
            ("pids.current", "3\n"),
            ("pids.max", "max\n"),
            (
                "cpu.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=70\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            ),
            ("io.pressure", "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n"),
        ],
    );
    let found = read(dir.path(), "/kubepods/pod1").unwrap();
    let cpu = found.cpu;
    assert_eq!((cpu.usage_ns, cpu.user_ns, cpu.system_ns), (30_000, 20_000, 10_000));
    assert_eq!(
        (cpu.periods, cpu.throttled_periods, cpu.throttled_ns, cpu.bursts, cpu.burst_ns),
        (4, 2, 7000, 1, 2000)
    );
    let memory = found.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set, memory.rss, memory.cache), (1600, 1300, 1000, 500));
    assert_eq!((memory.swap, memory.max_usage, memory.oom_kills, memory.max_events), (11, 2000, 1, 3));
    assert_eq!((memory.refault_anon, memory.refault_file, memory.scanned, memory.stolen), (7, 8, 5, 6));
    let io = found.io[0];
    assert_eq!((io.major, io.read_bytes, io.written_bytes, io.reads, io.writes), (8, 1, 2, 3, 4));
    assert_eq!((found.pids.current, found.pids.max), (3, None));
    let pressure = found.pressure.unwrap();
    assert_eq!((pressure.cpu.some.total_us, pressure.io.some.avg10), (70, 1.0));
    assert_eq!(pressure.memory, Default::default(), "a file that is missing");
    let limits = found.limits;
    assert_eq!((limits.cpu_quota_us, limits.cpu_period_us, limits.cpu_shares), (Some(50_000), 100_000, 998));
    assert_eq!((limits.memory, limits.swap), (None, Some(0)));
    assert_eq!(read(dir.path(), "/kubepods/pod2").err(), Some(ReadError::Gone));
}

static TWO_SIZES: std::sync::LazyLock<Sizes> = std::sync::LazyLock::new(|| Sizes::of(&[2 << 20, 1 << 30]));

fn huge_pages(root: &Path, path: &str) -> Option<Arc<[HugePageSample]>> {
    let hierarchy = Cgroups::open(root).unwrap();
    let (path, buffer) = (CgroupPath::parse(path).unwrap(), &mut Buffer::default());
    let mut cgroup = Cgroup::with_sizes(&hierarchy, &path, &Budget::new(100), buffer, &TWO_SIZES).unwrap();
    let first = cgroup.read(Timestamp::UNIX_EPOCH, buffer).unwrap();
    let opens = buffer.work().opens;
    let second = cgroup.read(Timestamp::UNIX_EPOCH, buffer).unwrap();
    assert!(buffer.work().opens - opens < opens, "not read each time");
    assert_eq!(first.huge_pages, second.huge_pages, "but told each time");
    second.huge_pages.clone()
}

#[test]
fn huge_pages_of_the_unified_hierarchy() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("cgroup.controllers", "cpu\n"), ("cpu.stat", "usage_usec 5\n")]);
    let pod = dir.path().join("kubepods/pod1");
    let files = [
        ("cpu.stat", "usage_usec 5\n"),
        ("hugetlb.2MB.max", "8388608\n"),
        ("hugetlb.2MB.current", "4194304\n"),
        ("hugetlb.2MB.events", "max 3\n"),
        ("hugetlb.1GB.max", "0\n"),
        ("hugetlb.1GB.current", "0\n"),
    ];
    write(&pod, &files);
    let found = HugePageSample {
        page_bytes: 2 << 20,
        usage: 4 << 20,
        max_usage: None,
        failures: 3,
        limit: Some(8 << 20),
    };
    assert_eq!(huge_pages(dir.path(), "/kubepods/pod1").as_deref(), Some([found].as_slice()));
    // Nothing is kept of a cgroup that may have as many as it likes, and has none.
    write(&pod, &[("hugetlb.2MB.max", "max\n"), ("hugetlb.2MB.current", "0\n")]);
    assert_eq!(huge_pages(dir.path(), "/kubepods/pod1"), None);
    assert_eq!(huge_pages(dir.path(), "/"), None, "the root has no such files");
}

#[test]
fn huge_pages_of_their_own_hierarchy() {
    let dir = tempfile::tempdir().unwrap();
    let below = |controller: &str| dir.path().join(controller).join("kubepods/pod1");
    write(&below("cpuacct"), &[("cpuacct.usage", "30\n")]);
    let files = [
        ("hugetlb.2MB.limit_in_bytes", "9223372036853727232\n"),
        ("hugetlb.2MB.usage_in_bytes", "0\n"),
        ("hugetlb.2MB.max_usage_in_bytes", "2097152\n"),
        ("hugetlb.2MB.failcnt", "1\n"),
        ("hugetlb.1GB.limit_in_bytes", "0\n"),
    ];
    write(&below("hugetlb"), &files);
    let found =
        HugePageSample { page_bytes: 2 << 20, usage: 0, max_usage: Some(2 << 20), failures: 1, limit: None };
    assert_eq!(huge_pages(dir.path(), "/kubepods/pod1").as_deref(), Some([found].as_slice()));
    fs::remove_dir_all(dir.path().join("hugetlb")).unwrap();
    assert_eq!(huge_pages(dir.path(), "/kubepods/pod1"), None, "the hierarchy is not mounted");
}

#[test]
fn who_was_killed_for_want_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 5\n")]);
    // The container has gone, and its counter with it: its pod still knows.
    write(
        &dir.path().join("pod1"),
        &[
            ("cpu.stat", "usage_usec 5\n"),
            ("memory.stat", MEMORY_STAT_V2),
            ("memory.current", "1600\n"),
            ("memory.events", "max 3\noom 1\noom_kill 2\n"),
            ("memory.events.local", "max 3\noom 0\noom_kill 0\n"),
        ],
    );
    let memory = read(dir.path(), "/pod1").unwrap().memory.unwrap();
    assert_eq!((memory.oom_kills, memory.oom_kills_in_all), (0, 2));
    // A container that ended whole, twice: the kernel counts its processes, and each time one of them twice.
    write(&dir.path().join("pod1"), &[("memory.events", "max 3\noom 2\noom_kill 6\noom_group_kill 2\n")]);
    let memory = read(dir.path(), "/pod1").unwrap().memory.unwrap();
    assert_eq!((memory.oom_kills, memory.oom_kills_in_all), (0, 2));
}

#[test]
fn the_root_counts_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[("cgroup.controllers", "cpu\n"), ("cpu.stat", "usage_usec 5\n"), ("memory.stat", MEMORY_STAT_V2)],
    );
    let found = read(dir.path(), "/").unwrap();
    let memory = found.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set), (1500, 1200), "anonymous and files");
    assert!(found.limits.memory.is_some(), "what the machine has");
    assert_eq!(found.pids.current, 0);
    write(dir.path(), &[("cgroup.procs", "1\n2\n")]);
    let found = read(dir.path(), "/").unwrap();
    assert_eq!(found.pids.current, 2, "it has no pids.current: processes directly in it");
}

#[test]
fn a_hierarchy_per_controller() {
    let dir = tempfile::tempdir().unwrap();
    let below = |controller: &str| dir.path().join(controller).join("kubepods/pod1");
    write(&below("cpuacct"), &[("cpuacct.usage", "30\n"), ("cpuacct.stat", "user 2\nsystem 1\n")]);
    write(
        &below("cpu"),
        &[
            ("cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 7\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpu.shares", "1024\n"),
        ],
    );
    write(
        &below("memory"),
        &[
            ("memory.usage_in_bytes", "1600\n"),
            (
                "memory.stat",
                "cache 1\nrss 2\npgfault 9\npgmajfault 1\ntotal_cache 500\ntotal_rss 1000\ntotal_swap 11\ntotal_inactive_file 300\ntotal_active_file 200\ntotal_pgfault 99\n",
            ),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.memsw.limit_in_bytes", "67108864\n"),
            ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
            ("memory.failcnt", "5\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ],
    );
    write(
        &below("blkio"),
        &[
            ("blkio.throttle.io_service_bytes_recursive", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 3\n8:0 Write 4\nTotal 7\n"),
        ],
    );
    write(&below("pids"), &[("pids.current", "3\n"), ("pids.max", "100\n")]);
    let found = read(dir.path(), "/kubepods/pod1").unwrap();
    let cpu = found.cpu;
    assert_eq!((cpu.usage_ns, cpu.user_ns, cpu.system_ns), (30, 20_000_000, 10_000_000));
    assert_eq!((cpu.periods, cpu.throttled_periods, cpu.throttled_ns), (4, 2, 7));
    let memory = found.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set, memory.rss, memory.cache), (1600, 1300, 1000, 500));
    assert_eq!((memory.page_faults, memory.major_page_faults), (9, 1), "its own, not those below it");
    assert_eq!((memory.fail_count, memory.oom_kills, memory.swap), (5, 2, 11));
    let io = found.io[0];
    assert_eq!((io.read_bytes, io.written_bytes, io.reads, io.writes), (1, 2, 3, 4));
    assert_eq!((found.pids.current, found.pids.max), (3, Some(100)));
    assert_eq!(found.pressure, None);
    let limits = found.limits;
    assert_eq!((limits.cpu_quota_us, limits.cpu_shares), (None, 1024));
    assert_eq!((limits.memory, limits.swap, limits.memory_reservation), (None, Some(67_108_864), 0));
}

#[test]
fn the_cgroup_of_this_very_process_is_read() {
    let hierarchy = Cgroups::open("/sys/fs/cgroup").unwrap();
    let mut cgroup = open(&hierarchy, &CgroupPath::parse("/").unwrap()).unwrap();
    let mut buffer = Buffer::default();
    let first = cgroup.read(Timestamp::now(), &mut buffer).unwrap();
    let second = cgroup.read(Timestamp::now(), &mut buffer).unwrap();
    assert!(first.cpu.usage_ns > 0 && second.cpu.usage_ns >= first.cpu.usage_ns);
    assert!(second.memory.is_some_and(|memory| memory.usage > 0 && memory.working_set <= memory.usage));
}

#[test]
fn where_nothing_ran_the_last_reading_holds() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let unified: &[(&str, &str)] = &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 5\n")];
    for v2 in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (account, memory, pids) = if v2 {
            write(dir.path(), unified);
            let pod = dir.path().join("pod1");
            (pod.clone(), pod.clone(), pod)
        } else {
            let of = |controller: &str| dir.path().join(controller).join("pod1");
            (of("cpuacct"), of("memory"), of("pids"))
        };
        let set = |cpu: u64, usage: u64, processes: u64| {
            write(
                &account,
                &[("cpu.stat", &format!("usage_usec {cpu}\n")), ("cpuacct.usage", &format!("{cpu}000\n"))],
            );
            write(
                &memory,
                &[("memory.current", &usage.to_string()), ("memory.usage_in_bytes", &usage.to_string())],
            );
            write(&memory, &[("memory.stat", "anon 5\n")]);
            write(&pids, &[("pids.current", &processes.to_string())]);
        };
        set(7, 100, 1);
        let hierarchy = Cgroups::open(dir.path()).unwrap();
        let mut cgroup = open(&hierarchy, &CgroupPath::parse("/pod1").unwrap()).unwrap();
        let mut read = |second: i64| {
            let sample = cgroup.read(at(second), &mut Buffer::default()).unwrap();
            (sample.at.as_second(), sample.cpu.usage_ns, sample.nano_cores, sample.pids.current)
        };
        assert_eq!(read(0), (0, 7000, None, 1), "v2: {v2}");
        // Nobody looks at the processes of a cgroup in which nothing ran.
        set(7, 100, 2);
        assert_eq!(read(10), (10, 7000, Some(0), 1), "v2: {v2}");
        set(7, 200, 3);
        assert_eq!(read(20), (20, 7000, Some(0), 3), "v2: {v2}");
        set(17, 200, 4);
        assert_eq!(read(30), (30, 17_000, Some(1000), 4), "v2: {v2}");
        set(17, 200, 5);
        assert!((4..6).all(|round| read(round * 10).3 == 4), "v2: {v2}");
        assert_eq!(read(60).3, 5, "now and then all is read, v2: {v2}");
        // Whose parent is idle is not even looked at, but for the whole reading.
        fs::remove_dir_all(&account).unwrap();
        assert!(!cgroup.is_idle());
        for round in 7..12 {
            let sample = cgroup.repeat(at(round * 10)).unwrap();
            assert_eq!((sample.at, sample.nano_cores), (at(round * 10), Some(0)), "v2: {v2}");
            assert!(cgroup.is_idle());
        }
        assert_eq!(cgroup.repeat(at(120)), None, "v2: {v2}");
        assert_eq!(cgroup.read(at(120), &mut Buffer::default()), Err(ReadError::Gone), "v2: {v2}");
    }
}

/// A cgroup of the unified hierarchy with some files, and a way to read it.
fn one(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 5\n")]);
    write(&dir.path().join("pod1"), files);
    let hierarchy = Cgroups::open(dir.path()).unwrap();
    let cgroup = open(&hierarchy, &CgroupPath::parse("/pod1").unwrap()).unwrap();
    (dir, cgroup)
}

#[test]
fn whole_readings_come_in_turns() {
    let files = [("cpu.stat", "usage_usec 7\n"), ("memory.current", "1\n"), ("memory.stat", "anon 1\n")];
    let mut at_round = vec![0; 24];
    for turn in 0..36 {
        let (dir, cgroup) = one(&files);
        let mut cgroup = cgroup.in_turn(turn);
        let mut whole = Vec::new();
        for round in 0..24_u8 {
            // Nobody looks at this one unless all is read.
            write(&dir.path().join("pod1"), &[("pids.current", &format!("{}\n", round + 1))]);
            let at = Timestamp::from_second(i64::from(round) * 10).unwrap();
            let sample = cgroup.read(at, &mut Buffer::default()).unwrap();
            if sample.pids.current == u64::from(round) + 1 {
                whole.push(usize::from(round));
            }
        }
        let first = 6 - usize::try_from(turn % 6).unwrap();
        let expected: Vec<usize> = std::iter::once(0).chain((first..24).step_by(6)).collect();
        assert_eq!(whole, expected, "turn {turn}");
        whole.iter().for_each(|round| at_round[*round] += 1);
    }
    assert_eq!(at_round[0], 36, "nobody knows anything before");
    assert!(at_round.iter().skip(1).all(|count| *count == 6), "{at_round:?}");
}

/// What disks and pressure say is of the moment that is told with it, however idle the cgroup is.
#[test]
fn disks_and_pressure_of_an_idle_cgroup_are_read() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let pressure = |total: u64, average: &str| {
        let line = format!("avg10={average} avg60=0.00 avg300=0.00 total={total}\n");
        format!("some {line}full {line}")
    };
    let unified: &[(&str, &str)] =
        &[("cgroup.controllers", "cpu memory io\n"), ("cpu.stat", "usage_usec 5\n")];
    for v2 in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (account, disks) = if v2 {
            write(dir.path(), unified);
            (dir.path().join("pod1"), dir.path().join("pod1"))
        } else {
            (dir.path().join("cpuacct/pod1"), dir.path().join("blkio/pod1"))
        };
        let set = |written: u64, waited: u64, average: &str| {
            write(&account, &[("cpu.stat", "usage_usec 7\n"), ("cpuacct.usage", "7000\n")]);
            let bytes = format!("8:0 Read 0\n8:0 Write {written}\nTotal {written}\n");
            write(
                &disks,
                &[
                    ("io.stat", &format!("8:0 rbytes=0 wbytes={written} rios=0 wios=1\n")),
                    ("blkio.throttle.io_service_bytes_recursive", &bytes),
                    ("blkio.throttle.io_serviced_recursive", "8:0 Read 0\n8:0 Write 1\nTotal 1\n"),
                ],
            );
            if v2 {
                for name in ["cpu.pressure", "memory.pressure", "io.pressure"] {
                    write(&account, &[(name, &pressure(waited, average))]);
                }
            }
        };
        set(1, 10, "0.00");
        let hierarchy = Cgroups::open(dir.path()).unwrap();
        let mut cgroup = open(&hierarchy, &CgroupPath::parse("/pod1").unwrap()).unwrap();
        let mut read = |second: i64| {
            let sample = cgroup.read(at(second), &mut Buffer::default()).unwrap();
            assert_eq!((sample.at, sample.cpu.usage_ns), (at(second), 7000), "v2: {v2}");
            let waited = sample.pressure.map_or(0, |it| it.io.full.total_us + it.cpu.some.total_us);
            (sample.io[0].written_bytes, waited, cgroup.is_idle())
        };
        let waits = |total: u64| if v2 { 2 * total } else { 0 };
        assert_eq!(read(0), (1, waits(10), false), "v2: {v2}");
        assert_eq!(read(10), (1, waits(10), true), "v2: {v2}");
        // The kernel writes back what was written long ago.
        set(4096, 10, "0.00");
        assert_eq!(read(20), (4096, waits(10), false), "v2: {v2}");
        assert_eq!(read(30), (4096, waits(10), true), "v2: {v2}");
        // Somebody waits for a disk that does not answer: whoever is below may be the one.
        set(4096, 500, "3.00");
        assert_eq!(read(40), (4096, waits(500), !v2), "v2: {v2}");
        assert_eq!(read(50), (4096, waits(500), true), "v2: {v2}");
        // Now and then all is read.
        assert_eq!(read(51), (4096, waits(500), false), "v2: {v2}");
        assert_eq!(read(52), (4096, waits(500), true), "v2: {v2}");
        assert_eq!(cgroup.repeat(at(55)).is_some(), !v2, "averages fade by themselves, v2: {v2}");
        // The look itself, and nothing more: no whole reading.
        write(&account, &[("cpuacct.stat", "user 9\n")]);
        assert_eq!(cgroup.read(at(56), &mut Buffer::default()).unwrap().cpu.user_ns, 0, "v2: {v2}");
        if !v2 {
            // Where the kernel does not add up, a parent says nothing of what is below.
            for name in ["service_bytes", "serviced"] {
                let of = |end: &str| disks.join(format!("blkio.throttle.io_{name}{end}"));
                fs::rename(of("_recursive"), of("")).unwrap();
            }
            let mut cgroup = open(&hierarchy, &CgroupPath::parse("/pod1").unwrap()).unwrap();
            let seen: Vec<_> = (0..3)
                .map(|round| {
                    let sample = cgroup.read(at(round), &mut Buffer::default()).unwrap();
                    (sample.io[0].written_bytes, cgroup.is_idle())
                })
                .collect();
            assert_eq!(seen, [(4096, false); 3]);
        }
    }
}

/// Which of the old hierarchy's files say what went to disks depends on kernel, scheduler and limits.
#[test]
fn disks_are_told_of_by_the_file_that_has_lines() {
    const BFQ: &str = "bfq.";
    const CFQ: &str = "";
    const THROTTLE: &str = "throttle.";
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (account, disks) = (dir.path().join("cpuacct/pod1"), dir.path().join("blkio/pod1"));
    // Written bytes by file; 0 is a file without lines.
    let set = |kind: &str, end: &str, written: u64| {
        let lines = |value: u64| match written {
            0 => "Total 0\n".to_owned(),
            _ => format!("8:0 Read 0\n8:0 Write {value}\n8:0 Total {value}\nTotal {value}\n"),
        };
        write(
            &disks,
            &[
                (&format!("blkio.{kind}io_service_bytes{end}"), &lines(written)),
                (&format!("blkio.{kind}io_serviced{end}"), &lines(written / 512)),
            ],
        );
    };
    let hierarchy = || Cgroups::open(dir.path()).unwrap();
    let pod = CgroupPath::parse("/pod1").unwrap();
    for (row, files, expected, adds_up) in [
        ("none", vec![], None, true),
        ("none with lines", vec![(BFQ, "_recursive", 0), (THROTTLE, "_recursive", 0)], None, true),
        ("BFQ without", vec![(BFQ, "_recursive", 0), (THROTTLE, "_recursive", 1024)], Some(1024), true),
        ("BFQ", vec![(BFQ, "_recursive", 512), (THROTTLE, "_recursive", 1024)], Some(512), true),
        ("CFQ", vec![(BFQ, "_recursive", 0), (CFQ, "_recursive", 1024)], Some(1024), true),
        ("both kinds", vec![(THROTTLE, "_recursive", 1024), (THROTTLE, "", 512)], Some(1024), true),
        ("its own only", vec![(THROTTLE, "", 1024)], Some(1024), false),
        ("BFQ without, its own only", vec![(BFQ, "_recursive", 0), (THROTTLE, "", 1024)], Some(1024), false),
        // Below, another disk may be counted by the other file.
        ("BFQ, its own only", vec![(BFQ, "_recursive", 512), (THROTTLE, "", 0)], Some(512), false),
    ] {
        fs::remove_dir_all(dir.path().join("blkio")).ok();
        write(&account, &[("cpuacct.usage", "7000\n")]);
        write(&disks, &[]);
        files.iter().for_each(|(kind, end, written)| set(kind, end, *written));
        let mut cgroup = open(&hierarchy(), &pod).unwrap();
        for round in 0..3 {
            let sample = cgroup.read(at(round), &mut Buffer::default()).unwrap();
            let told = sample.io.first().map(|io| (io.written_bytes, io.writes));
            assert_eq!(told, expected.map(|written| (written, written / 512)), "{row}");
            assert_eq!(cgroup.is_idle(), round > 0 && adds_up, "{row}");
        }
    }

    // What begins is told of at once, whoever tells of it, and a look at one that does nothing opens one file for each of them.
    fs::remove_dir_all(&disks).unwrap();
    set(BFQ, "_recursive", 0);
    set(THROTTLE, "_recursive", 0);
    set(THROTTLE, "", 0);
    let (mut cgroup, mut buffer) = (open(&hierarchy(), &pod).unwrap(), Buffer::default());
    let mut look = |second: i64| {
        let before = buffer.work().opens;
        let sample = cgroup.read(at(second), &mut buffer).unwrap();
        let told = sample.io.first().map(|io| (io.written_bytes, io.writes));
        (told, cgroup.is_idle(), buffer.work().opens - before)
    };
    assert_eq!(look(0).0, None);
    assert_eq!(look(10), (None, true, 1 + 2));
    set(THROTTLE, "_recursive", 512);
    let (told, is_idle, _) = look(20);
    assert_eq!((told, is_idle), (Some((512, 1)), false));
    // From now on that one comes first, and nobody asks the other.
    assert_eq!(look(30), (Some((512, 1)), true, 1 + 2));
    set(BFQ, "_recursive", 4096);
    assert_eq!(look(40), (Some((512, 1)), true, 1 + 2));
}

#[test]
fn a_cgroup_that_goes_half_way_has_gone() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let v2 = [
        ("cpu.stat", "usage_usec 30\n"),
        ("cpu.max", "max 100000\n"),
        ("memory.current", "10\n"),
        ("memory.stat", "anon 5\n"),
        ("memory.events", "high 2\n"),
        ("io.stat", "8:0 rbytes=1\n"),
        ("pids.current", "1\n"),
    ];
    let v1 = [
        ("cpuacct/pod1", "cpuacct.usage", "30000\n"),
        ("cpuacct/pod1", "cpuacct.stat", "user 1\n"),
        ("cpu/pod1", "cpu.stat", "nr_periods 4\n"),
        ("cpu/pod1", "cpu.shares", "2\n"),
        ("memory/pod1", "memory.usage_in_bytes", "10\n"),
        ("memory/pod1", "memory.stat", "rss 5\n"),
        ("memory/pod1", "memory.failcnt", "5\n"),
        ("memory/pod1", "memory.limit_in_bytes", "1000\n"),
        ("blkio/pod1", "blkio.io_service_bytes_recursive", "8:0 Read 1\n"),
        ("pids/pod1", "pids.current", "1\n"),
    ];
    let made = |version: u32| {
        let dir = tempfile::tempdir().unwrap();
        if version == 2 {
            write(dir.path(), &[("cgroup.controllers", "cpu\n"), ("cpu.stat", "usage_usec 5\n")]);
            write(&dir.path().join("pod1"), &v2);
        } else {
            v1.iter().for_each(|(place, name, text)| write(&dir.path().join(place), &[(name, text)]));
        }
        let hierarchy = Cgroups::open(dir.path()).unwrap();
        let cgroup = open(&hierarchy, &CgroupPath::parse("/pod1").unwrap()).unwrap();
        (dir, cgroup)
    };
    let all: Vec<(u32, &str, &str)> = v2
        .iter()
        .map(|(name, _)| (2, "pod1", *name))
        .chain(v1.iter().map(|(place, name, _)| (1, *place, *name)))
        .collect();
    for (version, place, name) in all {
        // The whole reading is the first, so that every file is asked for.
        let (dir, mut cgroup) = made(version);
        fs::remove_file(dir.path().join(place).join("cgroup.procs")).unwrap();
        fs::remove_file(dir.path().join(place).join(name)).unwrap();
        let read = cgroup.read(at(0), &mut Buffer::default());
        assert_eq!(read, Err(ReadError::Gone), "{place}/{name}");
    }
    // A controller that is taken away from a cgroup that stays takes its numbers with it: they are not 0.
    for (version, place, name) in [(2, "pod1", "memory.current"), (1, "memory/pod1", "memory.usage_in_bytes")]
    {
        let (dir, mut cgroup) = made(version);
        assert!(cgroup.read(at(0), &mut Buffer::default()).unwrap().memory.is_some());
        fs::remove_file(dir.path().join(place).join(name)).unwrap();
        let sample = cgroup.read(at(10), &mut Buffer::default()).unwrap();
        assert_eq!((sample.memory, sample.cpu.usage_ns), (None, 30_000), "{name}");
    }
    // A file that cannot be read for now spoils this reading, not the cgroup.
    for (version, place, name) in [(2, "pod1", "memory.events"), (1, "memory/pod1", "memory.failcnt")] {
        let (dir, mut cgroup) = made(version);
        let first = cgroup.read(at(0), &mut Buffer::default()).unwrap();
        let file = dir.path().join(place).join(name);
        let text = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        fs::write(
            dir.path().join(if version == 2 { "pod1/cpu.stat" } else { "cpuacct/pod1/cpuacct.usage" }),
            "usage_usec 31\n",
        )
        .unwrap();
        assert!(matches!(cgroup.read(at(10), &mut Buffer::default()), Err(ReadError::Failed(_))), "{name}");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, text).unwrap();
        let again = cgroup.read(at(20), &mut Buffer::default()).unwrap();
        assert_eq!(again.memory, first.memory, "{name}");
    }
    // The whole directory.
    let (dir, mut cgroup) = made(2);
    cgroup.read(at(0), &mut Buffer::default()).unwrap();
    fs::remove_dir_all(dir.path().join("pod1")).unwrap();
    assert_eq!(cgroup.read(at(10), &mut Buffer::default()), Err(ReadError::Gone));
}

#[test]
fn without_a_budget_directories_are_opened_for_each_reading() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 5\n")]);
    let pod = dir.path().join("pod1");
    write(&pod, &[("cpu.stat", "usage_usec 30\n"), ("memory.current", "10\n"), ("memory.stat", "anon 5\n")]);
    let hierarchy = Cgroups::open(dir.path()).unwrap();
    let path = CgroupPath::parse("/pod1").unwrap();
    let open_files = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter_map(|it| fs::read_link(it.path()).ok())
            .filter(|to| *to == pod)
            .count()
    };
    let mut opens = Vec::new();
    for most in [1, 0] {
        let (budget, mut buffer) = (Budget::new(most), Buffer::default());
        let mut cgroup = Cgroup::open(&hierarchy, &path, &budget, &mut buffer).unwrap();
        assert_eq!((budget.held(), open_files()), (most, most));
        let before = buffer.work().opens;
        let sample = cgroup.read(Timestamp::UNIX_EPOCH, &mut buffer).unwrap();
        assert_eq!(sample.cpu.usage_ns, 30_000);
        assert_eq!(open_files(), most);
        opens.push(buffer.work().opens - before);
        if most == 0 {
            // One that was made anew under the name is another.
            fs::rename(&pod, dir.path().join("old")).unwrap();
            write(&pod, &[("cpu.stat", "usage_usec 1\n")]);
            assert_eq!(cgroup.read(Timestamp::UNIX_EPOCH, &mut buffer), Err(ReadError::Gone));
        }
    }
    assert_eq!(opens[1], opens[0] + 1, "{opens:?}");
}

#[test]
fn counters_that_go_back_and_absurd_values() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let (dir, mut cgroup) = one(&[("cpu.stat", "usage_usec 5000000\n")]);
    let mut buffer = Buffer::default();
    cgroup.read(at(0), &mut buffer).unwrap();
    let mut set = |usage: &str, second: i64| {
        write(&dir.path().join("pod1"), &[("cpu.stat", &format!("usage_usec {usage}\n"))]);
        cgroup.read(at(second), &mut buffer).unwrap()
    };
    assert_eq!(set("6000000", 1).nano_cores, Some(1_000_000_000));
    let back = set("1000", 2);
    assert!(back.nano_cores.is_none_or(|cores| cores == 0), "less than nothing is not used: {back:?}");
    assert_eq!(set("18446744073709551615", 3).cpu.usage_ns, 6_000_000_000);
    assert_eq!(set("6000001", 4).cpu.usage_ns, 6_000_001_000, "it is not kept");
    for (second, absurd) in
        ["18446744073709551615", "-1", "99999999999999999999999999", "", "NaN", "0x10", "1e9"]
            .into_iter()
            .enumerate()
    {
        let second = i64::try_from(second).unwrap();
        let found = set(absurd, 10 + second);
        // Two billion cores are more than any machine has; nothing wraps around.
        assert!(found.nano_cores.is_none_or(|cores| cores <= u64::MAX / 2), "{absurd}: {found:?}");
        // A clock that goes back as well.
        let earlier = set("7000000", 1);
        assert!(earlier.nano_cores.is_none_or(|cores| cores <= u64::MAX / 2), "{absurd}: {earlier:?}");
    }
    let absurd = "18446744073709551615\n";
    let (_dir, mut cgroup) = one(&[
        ("cpu.stat", "usage_usec 1\nthrottled_usec 18446744073709551615\n"),
        ("cpu.max", "18446744073709551615 0\n"),
        ("cpu.weight", "18446744073709551615\n"),
        ("memory.current", "5\n"),
        ("memory.max", absurd),
        ("memory.swap.max", "-7\n"),
        ("memory.stat", "anon 18446744073709551615\ninactive_file 18446744073709551615\nfile\n \n"),
        ("io.stat", "4294967295:4294967296 rbytes=18446744073709551615\n:::\n8:0\n"),
        ("pids.current", "-3\n"),
    ]);
    let found = cgroup.read(at(1), &mut Buffer::default()).unwrap();
    assert_eq!(found.memory.map(|memory| memory.working_set), Some(0), "never below nothing");
}
