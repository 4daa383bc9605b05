use jiff::Timestamp;
use mainstay_types::{
    ContainerSample, CpuSample, FsSize, FullName, Limits, PodSamples, PodUid, ProcessSample, SandboxSample,
    SliceRole, SliceSample,
};

use super::*;

fn sample(usage_ns: u64) -> Arc<Sample> {
    Arc::new(Sample {
        at: Timestamp::from_millisecond(1_794_736_711_117).unwrap(),
        made_at: Timestamp::from_second(1_794_736_645).unwrap(),
        cpu: CpuSample { usage_ns, periods: 4, ..CpuSample::default() },
        memory: Some(MemorySample { usage: 618_496, page_faults: 7, ..MemorySample::default() }),
        io: vec![IoSample { major: 254, minor: 0, read_bytes: 10, reads: 2, ..IoSample::default() }],
        processes: ProcessSample { count: 1, descriptors: 9, sockets: 1, open_files: Some(1024) },
        ..Sample::default()
    })
}

fn source(names: &[&str]) -> Source {
    let network = NetworkSample {
        at: Timestamp::from_millisecond(1_794_736_711_222).unwrap(),
        interfaces: vec![InterfaceSample { name: "eth0".into(), ..InterfaceSample::default() }],
    };
    let limits = Limits { cpu_quota_us: Some(50_000), memory: Some(1 << 26), ..Limits::default() };
    let container = ContainerSample {
        name: "ht\"tpd".into(),
        id: "c1".into(),
        cgroup: "/kubepods/podu/c1".into(),
        created_at: Timestamp::from_second(1_794_736_644).unwrap(),
        image: "docker.io/local/busybox:1".into(),
        sample: Arc::new(Sample { limits, ..(*sample(0)).clone() }),
    };
    let pod = PodSamples {
        full_name: FullName::new("default", "web"),
        cgroup: "/kubepods/podu".into(),
        pod: sample(2_000_000_000),
        sandbox: Some(SandboxSample {
            id: "s1".into(),
            created_at: Timestamp::from_second(1_794_736_643).unwrap(),
            cgroup: Some(("/kubepods/podu/s1".into(), sample(1))),
        }),
        network: Some(Arc::new(network.clone())),
        containers: vec![container],
        complete: true,
    };
    let slice = |role| SliceSample { role, cgroup: "/kubepods".into(), sample: sample(3) };
    let samples = Samples {
        generation: 1,
        root: Some(sample(5_000_000_000)),
        network: Some(Arc::new(network)),
        slices: vec![slice(SliceRole::Pods), slice(SliceRole::Kubelet)],
        pods: [(PodUid::from("u"), Arc::new(pod))].into(),
        sandbox_image: "docker.io/local/pause:1".into(),
        disks: Arc::new([((254, 0), "/dev/vda".into())].into()),
        ..Samples::default()
    };
    let device = DeviceReading {
        device: "/dev/vda".into(),
        size: FsSize { capacity_bytes: 100, ..FsSize::default() },
        disk: Some(DiskWork { reads: 77, read_ms: 1500, ..DiskWork::default() }),
        ..DeviceReading::default()
    };
    let machine = Machine {
        before: "# HELP cadvisor_version_info x\ncadvisor_version_info 1\n".into(),
        after: "# HELP machine_cpu_cores x\nmachine_cpu_cores 2\n".into(),
        memory_bytes: 25_276_518_400,
    };
    Source {
        samples: Arc::new(samples),
        disks: Arc::new(Filesystems { devices: [device].into(), ..Filesystems::default() }),
        machine: Arc::new(machine),
        families: Arc::default(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn text(source: &Source) -> String {
    let mut words = String::new();
    let mut work = Writer::new(source, &mut words);
    let mut text = String::new();
    while let Some(piece) = work.next() {
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    text
}

#[test]
fn each_cgroup_is_told_of_in_upstreams_words() {
    let text = text(&source(&[]));
    let container = r#"container="ht\"tpd",id="/kubepods/podu/c1",image="docker.io/local/busybox:1",name="c1",namespace="default",pod="web""#;
    let sandbox =
        r#"id="/kubepods/podu/s1",image="docker.io/local/pause:1",name="s1",namespace="default",pod="web""#;
    let pod = r#"id="/kubepods/podu",image="",name="",namespace="default",pod="web""#;
    let nobody = r#"image="",name="",namespace="",pod="""#;
    for line in [
        format!(r#"container_cpu_usage_seconds_total{{container="",cpu="total",{pod}}} 2 1794736711117"#),
        format!(r#"container_cpu_usage_seconds_total{{container="",cpu="total",id="/",{nobody}}} 5 1794736711117"#),
        format!("container_cpu_cfs_periods_total{{{container}}} 4 1794736711117"),
        format!("container_spec_cpu_quota{{{container}}} 50000"),
        format!("container_spec_memory_limit_bytes{{{container}}} 6.7108864e+07"),
        format!(r#"container_spec_memory_limit_bytes{{container="",id="/",{nobody}}} 2.52765184e+10"#),
        format!("container_creation_time_seconds{{{container}}} 1.794736644e+09"),
        format!("container_start_time_seconds{{{container}}} 1.794736645e+09"),
        format!("container_last_seen{{{container}}} 1.794736711e+09 1794736711117"),
        format!(r#"container_creation_time_seconds{{container="",{sandbox}}} 1.794736643e+09"#),
        format!(r#"container_memory_usage_bytes{{container="",{sandbox}}} 618496 1794736711117"#),
        r#"container_network_receive_bytes_total{container="",id="/kubepods/podu/s1",image="docker.io/local/pause:1",interface="eth0",name="s1",namespace="default",pod="web"} 0 1794736711222"#.into(),
        r#"container_memory_failures_total{container="",failure_type="pgfault",id="/kubepods",image="",name="",namespace="",pod="",scope="hierarchy"} 7 1794736711117"#.into(),
        r#"container_fs_reads_total{container="",device="/dev/vda",id="/",image="",name="",namespace="",pod=""} 77 0"#.into(),
        r#"container_fs_read_seconds_total{container="",device="/dev/vda",id="/",image="",name="",namespace="",pod=""} 1.5 0"#.into(),
        format!(r#"container_fs_reads_total{{container="",device="/dev/vda",{pod}}} 2 1794736711117"#),
        r#"container_blkio_device_usage_total{container="",device="/dev/vda",id="/kubepods",image="",major="254",minor="0",name="",namespace="",operation="Read",pod=""} 10 1794736711117"#.into(),
        format!(r#"container_ulimits_soft{{{container},ulimit="max_open_files"}} 1024 1794736711117"#),
        "container_scrape_error 0".into(),
        "machine_cpu_cores 2".into(),
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    let count = |part: &str| text.lines().filter(|line| line.starts_with(part)).count();
    assert_eq!(count("container_cpu_usage_seconds_total{container=\"ht"), 0, "nothing used yet");
    assert_eq!(count("container_cpu_cfs_periods_total"), 1, "only where there is a quota");
    assert_eq!(count("container_network_receive_bytes_total"), 2, "the machine and the sandbox");
    assert_eq!(count("container_ulimits_soft"), 3, "the machine, the sandbox, the container");
    assert_eq!(count("container_memory_usage_bytes{"), 5, "each cgroup once, whatever it is for");
    assert_eq!(count("container_pressure"), 0);
}

#[test]
fn who_was_killed_is_told_of_by_the_pod_and_by_the_container_itself() {
    let mut source = source(&["container_oom_events_total"]);
    let samples = Arc::get_mut(&mut source.samples).unwrap();
    let pod = Arc::get_mut(samples.pods.values_mut().next().unwrap()).unwrap();
    let killed = |sample: &Arc<Sample>, own, in_all| {
        let memory = MemorySample { oom_kills: own, oom_kills_in_all: in_all, ..sample.memory.unwrap() };
        Arc::new(Sample { memory: Some(memory), ..Sample::clone(sample) })
    };
    // One container ended with its cgroup, and the kernel counted another's process.
    pod.pod = killed(&pod.pod, 0, 2);
    pod.containers[0].sample = killed(&pod.containers[0].sample, 1, 1);
    let text = text(&source);
    let told: Vec<&str> = text.lines().filter(|line| line.contains("pod=\"web\"")).collect();
    let of = |part: &str| told.iter().find(|line| line.contains(part)).unwrap().split(' ').nth(1);
    assert_eq!(of("id=\"/kubepods/podu\""), Some("2"), "{text}");
    assert_eq!(of("id=\"/kubepods/podu/c1\""), Some("1"), "{text}");
}

#[test]
fn huge_pages_only_where_there_are_any() {
    assert!(!text(&source(&[])).contains("hugetlb"));
    let mut source = source(&[]);
    let samples = Arc::get_mut(&mut source.samples).unwrap();
    let pod = Arc::get_mut(samples.pods.values_mut().next().unwrap()).unwrap();
    let pages =
        HugePageSample { page_bytes: 1 << 30, usage: 1 << 31, failures: 3, ..HugePageSample::default() };
    pod.pod = Arc::new(Sample { huge_pages: Some([pages].into()), ..Sample::clone(&pod.pod) });
    let text = text(&source);
    let labels =
        r#"{container="",id="/kubepods/podu",image="",name="",namespace="default",pagesize="1GB",pod="web"}"#;
    for line in [
        format!("container_hugetlb_failcnt{labels} 3 1794736711117"),
        format!("container_hugetlb_usage_bytes{labels} 2.147483648e+09 1794736711117"),
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    assert!(!text.contains("container_hugetlb_max_usage_bytes"), "cgroup v2 does not keep it");
}

#[test]
fn no_series_twice_and_all_families_in_order() {
    let mut source = source(&[]);
    let samples = Arc::get_mut(&mut source.samples).unwrap();
    let pod = Arc::get_mut(samples.pods.values_mut().next().unwrap()).unwrap();
    // Two disks that nobody knows by a name.
    let io =
        [(8, 0), (8, 16)].map(|(major, minor)| IoSample { major, minor, reads: 1, ..IoSample::default() });
    pod.pod = Arc::new(Sample { io: io.into(), ..Sample::clone(&pod.pod) });
    let text = text(&source);
    assert!(text.contains(r#"container_fs_reads_total{container="",device="8:16",id="/kubepods/podu""#));
    let mut series: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split("} ").next())
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all);
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    assert!(names.iter().is_sorted(), "{names:?}");
    assert!(FAMILIES.iter().map(|family| family.name).is_sorted());
    assert!(text.ends_with('\n'));
}

#[test]
fn families_by_name_and_nothing_without_a_reading() {
    let found = text(&source(&["container_threads", "machine_cpu_cores"]));
    let names: Vec<&str> =
        found.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    assert_eq!(names, ["container_threads", "machine_cpu_cores"]);
    let nothing = Source { samples: Arc::default(), ..source(&[]) };
    assert!(text(&nothing).contains("container_scrape_error 1\n"));
    assert!(!text(&nothing).contains("container_memory"));
}

#[test]
fn what_is_denied_is_not_written() {
    let families = FamilyChoice {
        allow: vec!["container_*".into(), "machine_cpu_cores".into()],
        deny: vec!["container_memory_*".into(), "container_scrape_error".into()],
        ..FamilyChoice::default()
    };
    let some = Source { families: Arc::new(families), ..source(&[]) };
    let text = text(&some);
    let told: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    assert!(told.contains(&"container_cpu_usage_seconds_total"), "{told:?}");
    let others: Vec<_> = told.iter().filter(|name| !name.starts_with("container_")).collect();
    assert_eq!(others, [&"machine_cpu_cores"]);
    assert!(!text.contains("\ncontainer_memory_") && !text.contains("container_scrape_error"), "{text}");
}

#[test]
fn pieces_make_the_same_text() {
    let mut many = source(&[]);
    let samples = Arc::make_mut(&mut many.samples);
    let pod = samples.pods.values().next().cloned().unwrap();
    for i in 0..300 {
        let path: Arc<str> = format!("/kubepods/pod{i}").into();
        let sandbox = SandboxSample { cgroup: None, ..pod.sandbox.clone().unwrap() };
        let pod =
            PodSamples { cgroup: path, containers: Vec::new(), sandbox: Some(sandbox), ..(*pod).clone() };
        samples.pods.insert(PodUid::from(format!("{i}").as_str()), Arc::new(pod));
    }
    let mut words = String::new();
    let mut work = Writer::new(&many, &mut words);
    let pieces: Vec<Bytes> = std::iter::from_fn(|| work.next()).collect();
    assert!(pieces.len() > 10, "{}", pieces.len());
    assert!(pieces.iter().all(|piece| piece.len() < 4 * PIECE));
    let text = String::from_utf8(pieces.concat()).unwrap();
    for family in FAMILIES {
        let help = format!("# HELP {} ", family.name);
        assert!(text.matches(&help).count() <= 1, "{help}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("container_processes{")).count(), 305);
}

#[test]
fn old_labels_stand_beside_the_new_ones() {
    let families = Arc::new(FamilyChoice { old_names: true, ..FamilyChoice::default() });
    let source = Source {
        families,
        ..source(&["container_blkio_device_usage_total", "container_memory_failures_total"])
    };
    let text = text(&source);
    let of_container =
        text.lines().find(|line| line.starts_with("container_blkio") && !line.contains("container=\"\""));
    let line = of_container.unwrap();
    let names: Vec<&str> =
        line.split('{').nth(1).unwrap().split(',').filter_map(|it| it.split('=').next()).collect();
    let expected =
        "container container_name device id image major minor name namespace operation pod pod_name";
    assert_eq!(names.join(" "), expected);
    assert!(text.contains(",pod_name=\"\",scope=\"hierarchy\"}"), "{text}");
}
