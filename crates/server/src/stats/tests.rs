use mainstay_types::{CpuSample, Limits, MemorySample, PidsSample, PodUid};
use serde_json::{Value, json};

use super::*;
use crate::tests::{simple_pod, snapshot};

fn sample(usage_ns: u64) -> Arc<Sample> {
    Arc::new(Sample {
        at: Timestamp::from_second(1_700_000_000).unwrap(),
        cpu: CpuSample { usage_ns, user_ns: 1, system_ns: 2, throttled_ns: 3, ..CpuSample::default() },
        memory: Some(MemorySample { usage: 10, working_set: 8, page_faults: 5, ..MemorySample::default() }),
        io: vec![IoSample { major: 8, minor: 1, read_bytes: 4, written_bytes: 6, reads: 1, writes: 2 }],
        pids: PidsSample { current: 3, max: None },
        pressure: None,
        limits: Limits { cpu_shares: 2, memory: Some(64), ..Limits::default() },
        ..Sample::default()
    })
}

fn samples() -> Samples {
    let container = ContainerSample {
        name: "c".into(),
        id: "id1".into(),
        cgroup: "/kubepods/poduid-web/id1".into(),
        created_at: Timestamp::UNIX_EPOCH,
        image: "image".into(),
        sample: sample(30),
    };
    let pod = PodSamples {
        full_name: FullName::new("default", "web"),
        cgroup: "/kubepods/poduid-web".into(),
        pod: sample(20),
        sandbox: None,
        network: None,
        containers: vec![container],
        complete: true,
    };
    let pods = [(PodUid::from("uid-web"), Arc::new(pod))].into();
    Samples { generation: 1, root: Some(sample(10)), pods, ..Samples::default() }
}

fn json_of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn a_container_in_cadvisors_words() {
    let (samples, snapshot) = (samples(), snapshot(1, vec![simple_pod("web", "")], vec![]));
    let find = |name, uid, container| of_container(&samples, &snapshot, ("default", name), uid, container);
    let found = find("web", None, "c").unwrap();
    let info = json_of(&found.info(&Wish::default(), Vec::new()));
    assert_eq!(
        info,
        json!({
            "id": "id1",
            "name": "/kubepods/poduid-web/id1",
            "aliases": ["id1", "/kubepods/poduid-web/id1"],
            "spec": {
                "creation_time": "1970-01-01T00:00:00Z",
                "labels": {
                    "io.kubernetes.container.name": "c",
                    "io.kubernetes.pod.name": "web",
                    "io.kubernetes.pod.namespace": "default",
                    "io.kubernetes.pod.uid": "uid-web",
                },
                "has_cpu": true,
                "cpu": {"limit": 2, "max_limit": 0, "period": 0},
                "has_memory": true,
                "memory": {"limit": 64, "reservation": 0, "swap_limit": u64::MAX},
                "has_hugetlb": false,
                "has_network": false,
                "has_processes": true,
                "processes": {},
                "has_filesystem": false,
                "has_diskio": true,
                "has_custom_metrics": false,
            },
            "stats": [{
                "timestamp": "2023-11-14T22:13:20Z",
                "cpu": {
                    "usage": {"total": 30, "user": 1, "system": 2},
                    "cfs": {"periods": 0, "throttled_periods": 0, "throttled_time": 3},
                    "load_average": 0,
                },
                "diskio": {
                    "io_service_bytes": [
                        {"device": "", "major": 8, "minor": 1, "stats": {"Read": 4, "Write": 6, "Total": 10}},
                    ],
                    "io_serviced": [
                        {"device": "", "major": 8, "minor": 1, "stats": {"Read": 1, "Write": 2, "Total": 3}},
                    ],
                },
                "memory": {
                    "usage": 10, "max_usage": 0, "cache": 0, "rss": 0, "swap": 0, "mapped_file": 0, "working_set": 8,
                    "failcnt": 0, "container_data": {"pgfault": 5, "pgmajfault": 0},
                    "hierarchical_data": {"pgfault": 5, "pgmajfault": 0},
                },
                "processes": {"threads_current": 3},
            }],
        })
    );
    let pages = mainstay_types::HugePageSample {
        page_bytes: 2 << 20,
        usage: 4 << 20,
        max_usage: None,
        failures: 3,
        limit: Some(8 << 20),
    };
    let with = Sample { huge_pages: Some([pages].into()), ..Sample::clone(&sample(30)) };
    let stats = json_of(&Stats(&with));
    assert_eq!(stats["hugetlb"], json!({"2MB": {"usage": 4 << 20, "failcnt": 3}}));
    assert!(find("web", Some("uid-web"), "c").is_some());
    assert!(find("web", Some("other"), "c").is_none());
    assert!(find("web", None, "d").is_none() && find("db", None, "c").is_none());
}

#[test]
fn cgroups_and_what_is_below_them() {
    let (samples, snapshot) = (samples(), snapshot(1, vec![simple_pod("web", "")], vec![]));
    let ask = |wish: &str| json_of(&below(&samples, &snapshot, &serde_json::from_str(wish).unwrap()));
    let names = |wish: &str| ask(wish).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names("{}"), ["/"]);
    assert_eq!(names(r#"{"containerName":"kubepods//poduid-web/"}"#), ["/kubepods/poduid-web"]);
    assert_eq!(names(r#"{"containerName":"/kubepods"}"#), [""; 0], "nobody reads it");
    assert_eq!(
        names(r#"{"containerName":"/kubepods","subcontainers":true}"#),
        ["/kubepods/poduid-web", "/kubepods/poduid-web/id1"]
    );
    assert_eq!(names(r#"{"containerName":"/kube","subcontainers":true}"#), [""; 0]);
    let all = ask(r#"{"subcontainers":true,"more":1}"#);
    assert_eq!(all.as_object().unwrap().len(), 3);
    assert_eq!(all["/"]["subcontainers"], json!([{"name": "/kubepods/poduid-web"}]), "the nearest");
    assert_eq!(all["/"]["stats"][0]["cpu"]["usage"]["total"], 10);
}

#[test]
fn readings_by_number_and_time() {
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    for (wish, takes) in [
        ("{}", true),
        (r#"{"num_stats":0}"#, false),
        (r#"{"num_stats":-1}"#, true),
        (r#"{"start":"2023-11-14T22:13:20Z"}"#, true),
        (r#"{"start":"2023-11-14T22:13:21Z","num_stats":5}"#, false),
        (r#"{"end":"2023-11-14T22:13:19Z"}"#, false),
        (r#"{"start":"2023-11-14T00:00:00Z","end":"2023-11-15T00:00:00+01:00"}"#, true),
    ] {
        assert_eq!(serde_json::from_str::<Wish>(wish).unwrap().takes(at), takes, "{wish}");
    }
    serde_json::from_str::<Wish>(r#"{"num_stats":"many"}"#).unwrap_err();
}
