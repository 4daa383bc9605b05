use std::sync::Arc;

use jiff::Timestamp;
use mainstay_types::{ContainerSample, CpuSample, FullName, Limits, MemorySample, PidsSample, PodUid};

use super::*;

fn sample(millis: i64, usage_ns: u64, working_set: u64, swap_limit: Option<u64>) -> Arc<Sample> {
    Arc::new(Sample {
        at: Timestamp::from_millisecond(millis).unwrap(),
        cpu: CpuSample { usage_ns, ..CpuSample::default() },
        memory: Some(MemorySample { working_set, ..MemorySample::default() }),
        io: Vec::new(),
        pids: PidsSample::default(),
        pressure: None,
        limits: Limits { swap: swap_limit, ..Limits::default() },
        ..Sample::default()
    })
}

fn pod(name: &str, containers: &[(&str, Arc<Sample>)]) -> (PodUid, Arc<PodSamples>) {
    let created_at = Timestamp::from_millisecond(1_794_736_647_291).unwrap();
    let containers = containers
        .iter()
        .map(|(name, sample)| ContainerSample {
            name: (*name).into(),
            id: (*name).into(),
            cgroup: "/".into(),
            created_at,
            image: "image".into(),
            sample: Arc::clone(sample),
        })
        .collect();
    let full_name = FullName::new("default", name);
    let pod = sample(1_794_736_703_227, 44_390_203, 458_752, None);
    (
        name.into(),
        Arc::new(PodSamples {
            full_name,
            cgroup: "/".into(),
            pod,
            sandbox: None,
            network: None,
            containers,
            complete: true,
        }),
    )
}

fn samples() -> Samples {
    let root = Some(sample(1_794_736_715_299, 3_921_721_015_274, 488_615_936, None));
    let limited = sample(1_794_736_712_485, 19_120_116, 237_568, Some(67_108_864));
    let free = sample(1_794_736_709_674, 104_919_544, 520_192, None);
    let pods = [
        pod("web", &[("c", Arc::clone(&limited))]),
        pod("multi", &[("a", Arc::clone(&free)), ("c", free)]),
        pod("not-yet", &[("c", sample(1, 0, 5, None))]),
        pod("empty", &[]),
    ];
    Samples { generation: 1, root, pods: pods.into(), ..Samples::default() }
}

#[test]
fn the_text_is_upstreams() {
    let text = render(&samples(), Version::Current, Exposition::default());
    let expected = "\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container=\"a\",namespace=\"default\",pod=\"multi\"} 0.104919544 1794736709674
container_cpu_usage_seconds_total{container=\"c\",namespace=\"default\",pod=\"multi\"} 0.104919544 1794736709674
container_cpu_usage_seconds_total{container=\"c\",namespace=\"default\",pod=\"web\"} 0.019120116 1794736712485
";
    assert!(text.starts_with(expected), "{text}");
    for line in [
        "container_memory_working_set_bytes{container=\"a\",namespace=\"default\",pod=\"multi\"} 520192 1794736709674",
        "container_start_time_seconds{container=\"a\",namespace=\"default\",pod=\"multi\"} 1.794736647291e+09",
        "container_swap_limit_bytes{container=\"c\",namespace=\"default\",pod=\"web\"} 6.7108864e+07 1794736712485",
        "node_cpu_usage_seconds_total 3921.721015274 1794736715299",
        "node_memory_working_set_bytes 4.88615936e+08 1794736715299",
        "node_swap_usage_bytes 0 1794736715299",
        "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 0.044390203 1794736703227",
        "pod_memory_working_set_bytes{namespace=\"default\",pod=\"multi\"} 458752 1794736703227",
        "# TYPE resource_scrape_error gauge",
        "resource_scrape_error 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.is_sorted() && names.len() == 12, "{names:?}");
    assert!(!text.contains("not-yet") && !text.contains("empty"), "a pod that cannot be told of in full yet");
    assert_eq!(text.matches("container_swap_limit_bytes{").count(), 1, "no limit, no line");
}

#[test]
fn the_older_version_has_gauges_only() {
    let text = render(&samples(), Version::V1Alpha1, Exposition::default());
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(
        types,
        [
            "# TYPE container_cpu_usage_seconds_total gauge",
            "# TYPE container_memory_working_set_bytes gauge",
            "# TYPE node_cpu_usage_seconds_total gauge",
            "# TYPE node_memory_working_set_bytes gauge",
            "# TYPE scrape_error gauge",
        ]
    );
}

#[test]
fn nothing_read_yet_is_an_error_and_nothing_else() {
    let text = render(&Samples::default(), Version::Current, Exposition::default());
    assert!(text.ends_with("resource_scrape_error 1\n") && text.lines().count() == 3, "{text}");
}

#[test]
fn a_text_is_made_once_for_each_round() {
    let texts = ResourceTexts::default();
    let mut samples = samples();
    let first = texts.of(&samples, Version::Current, &Arc::default());
    assert_eq!(
        first.plain().as_ptr(),
        texts.of(&samples, Version::Current, &Arc::default()).plain().as_ptr(),
        "the same bytes"
    );
    assert_ne!(first.plain(), texts.of(&samples, Version::V1Alpha1, &Arc::default()).plain());
    samples.generation = 2;
    samples.pods.clear();
    assert_ne!(first.plain(), texts.of(&samples, Version::Current, &Arc::default()).plain());
}

#[test]
fn of_two_pods_of_one_name_the_newer_is_shown() {
    let with_sandbox = |uid: &str, second: i64, usage_ns: u64, read_at: i64| {
        let (_, pod) = pod("web", &[("c", sample(read_at, usage_ns, 5, None))]);
        let sandbox = mainstay_types::SandboxSample {
            id: uid.into(),
            created_at: Timestamp::from_second(second).unwrap(),
            cgroup: None,
        };
        let read = sample(read_at, usage_ns, 5, None);
        (PodUid::from(uid), Arc::new(PodSamples { sandbox: Some(sandbox), pod: read, ..(*pod).clone() }))
    };
    // The older was read last.
    for (newer, older) in [("a", "b"), ("b", "a")] {
        let pods =
            [with_sandbox(newer, 200, 7_000_000_000, 1_000), with_sandbox(older, 100, 9_000_000_000, 2_000)];
        let text =
            render(&Samples { pods: pods.into(), ..samples() }, Version::Current, Exposition::default());
        let lines = text.lines().filter(|line| line.starts_with("pod_cpu_usage_seconds_total{"));
        let expected = r#"pod_cpu_usage_seconds_total{namespace="default",pod="web"} 7 1000"#;
        assert_eq!(lines.collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn what_is_denied_is_not_written() {
    let deny = vec!["container_*".to_owned(), "resource_scrape_error".to_owned()];
    let choice = Arc::new(FamilyChoice { deny, ..FamilyChoice::default() });
    let text = render(&samples(), Version::Current, Exposition::of(&choice));
    assert!(text.contains("\nnode_cpu_usage_seconds_total "), "{text}");
    assert!(!text.contains("container_cpu") && !text.contains("scrape_error"), "{text}");
}
