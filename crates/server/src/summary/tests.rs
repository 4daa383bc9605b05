use std::sync::Arc;

use mainstay_types::{
    ContainerDisk, ContainerSample, CpuSample, FsReading, FsSize, FullName, InterfaceSample, Limits,
    MemorySample, NetworkSample, PodDisk, PodSamples, PodUid, Pressure, PressureLine, Pressures,
    ProcessSample, Sample, SandboxSample, SliceRole, SliceSample, TaskCounts, Traffic, VolumeReading,
};
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap() + jiff::SignedDuration::from_millis(250)
}

fn sample(usage_ns: u64, limit: Option<u64>) -> Arc<Sample> {
    let line = PressureLine { avg10: 1.5, avg60: 0.5, avg300: 0.0, total_us: 7 };
    let pressure = Pressure { some: line, full: PressureLine::default() };
    Arc::new(Sample {
        at: at(10),
        made_at: at(1),
        cpu: CpuSample { usage_ns, ..CpuSample::default() },
        nano_cores: Some(500),
        memory: Some(MemorySample {
            usage: 30,
            working_set: 20,
            rss: 10,
            swap: 2,
            ..MemorySample::default()
        }),
        processes: ProcessSample { count: 3, ..ProcessSample::default() },
        pressure: Some(Pressures { cpu: pressure, memory: pressure, io: pressure }),
        limits: Limits { memory: limit, swap: Some(1), ..Limits::default() },
        ..Sample::default()
    })
}

fn fs(used: u64) -> FsReading {
    let size = FsSize { capacity_bytes: 1000, available_bytes: 600, inodes: 50, inodes_free: 40 };
    FsReading { at: at(12), size: Some(size), used_bytes: Some(used), inodes_used: Some(1) }
}

fn summary(short: bool) -> Value {
    let network = Arc::new(NetworkSample {
        at: at(11),
        interfaces: vec![
            InterfaceSample { name: "net1".into(), ..InterfaceSample::default() },
            InterfaceSample {
                name: "eth0".into(),
                received: Traffic { bytes: 5, packets: 1, errors: 2, dropped: 0 },
                sent: Traffic { bytes: 6, ..Traffic::default() },
            },
        ],
    });
    let container = ContainerSample {
        name: "c".into(),
        id: "id1".into(),
        cgroup: "/kubepods/podu/id1".into(),
        created_at: at(3),
        image: "image".into(),
        sample: sample(7, Some(15)),
    };
    let pod = PodSamples {
        full_name: FullName::new("default", "web"),
        cgroup: "/kubepods/podu".into(),
        pod: sample(9, None),
        sandbox: Some(SandboxSample { id: "s".into(), created_at: at(2), cgroup: None }),
        network: Some(network),
        containers: vec![container],
        complete: true,
    };
    let slice = |role| SliceSample { role, cgroup: "/x".into(), sample: sample(8, Some(100)) };
    let samples = Samples {
        generation: 1,
        root: Some(sample(100, None)),
        network: Some(Arc::default()),
        tasks: Some(TaskCounts { at: at(10), current: 4, max: 99 }),
        slices: vec![slice(SliceRole::Pods), slice(SliceRole::Class), slice(SliceRole::Kubelet)],
        pods: [(PodUid::from("u"), Arc::new(pod))].into(),
        ..Samples::default()
    };
    let volume = VolumeReading { name: "scratch".into(), claim: None, counts: true, reading: fs(4) };
    let disk = PodDisk {
        containers: vec![ContainerDisk {
            name: "c".into(),
            id: "id1".into(),
            layer: Some(fs(1)),
            logs: Some(fs(2)),
        }],
        volumes: [volume].into(),
        total: fs(7),
    };
    let disks = Filesystems {
        node: Some(fs(400)),
        images: Some(fs(30)),
        pods: [(PodUid::from("u"), Arc::new(disk))].into(),
        ..Filesystems::default()
    };
    let parts = Parts {
        node_name: "node1",
        samples: &samples,
        disks: &disks,
        memory: (1000, 300),
        swap_bytes: 50,
        booted: at(0),
        process_start: at(5),
    };
    serde_json::from_slice(&shape::json(&parts, short)).unwrap()
}

#[test]
fn the_whole() {
    let found = summary(false);
    let node = &found["node"];
    assert_eq!((&node["nodeName"], &node["startTime"]), (&json!("node1"), &json!("2023-11-14T22:13:20Z")));
    let names: Vec<_> = node["systemContainers"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["pods", "kubelet"], "classes are nobody's");
    assert_eq!(node["systemContainers"][1]["startTime"], "2023-11-14T22:13:25Z", "the process's own start");
    assert_eq!(node["memory"]["availableBytes"], 680, "the machine's, less the working set and huge pages");
    assert_eq!(node["swap"]["swapAvailableBytes"], 48);
    assert_eq!(node["network"], json!({"time": "1970-01-01T00:00:00Z", "name": ""}));
    assert_eq!(node["rlimit"], json!({"time": "2023-11-14T22:13:30Z", "maxpid": 99, "curproc": 4}));
    assert_eq!(node["fs"]["usedBytes"], 400);
    assert_eq!(node["runtime"]["imageFs"]["usedBytes"], 30);
    let line = |total: u64, avg10: f64, avg60: f64| json!({"total": total, "avg10": avg10, "avg60": avg60, "avg300": 0.0});
    let psi = json!({"full": line(0, 0.0, 0.0), "some": line(7000, 1.5, 0.5)});
    let pod = &found["pods"][0];
    assert_eq!(pod["podRef"], json!({"name": "web", "namespace": "default", "uid": "u"}));
    assert_eq!(pod["startTime"], "2023-11-14T22:13:22Z");
    assert_eq!(
        pod["cpu"],
        json!({"time": "2023-11-14T22:13:30Z", "usageNanoCores": 500, "usageCoreNanoSeconds": 9, "psi": psi}),
        "pressure in nanoseconds"
    );
    assert_eq!(pod["io"], json!({"time": "2023-11-14T22:13:30Z", "psi": psi}));
    assert_eq!(pod["memory"].get("availableBytes"), None, "no limit");
    assert_eq!((&pod["network"]["name"], &pod["network"]["rxBytes"]), (&json!("eth0"), &json!(5)));
    assert_eq!(
        pod["network"]["interfaces"][1],
        json!({"name": "eth0", "rxBytes": 5, "rxErrors": 2, "txBytes": 6, "txErrors": 0})
    );
    assert_eq!(pod["process_stats"], json!({"process_count": 3}));
    assert_eq!(pod["volume"][0]["name"], "scratch");
    assert_eq!(pod["volume"][0]["usedBytes"], 4);
    let ephemeral = json!({"time": "2023-11-14T22:13:32Z", "availableBytes": 600, "capacityBytes": 1000, "usedBytes": 7,
        "inodesFree": 40, "inodes": 50, "inodesUsed": 1});
    assert_eq!(pod["ephemeral-storage"], ephemeral);
    let container = &pod["containers"][0];
    assert_eq!(container["memory"]["availableBytes"], 0, "over its limit, and nothing wraps");
    assert_eq!(
        container["swap"],
        json!({"time": "2023-11-14T22:13:30Z", "swapAvailableBytes": 0, "swapUsageBytes": 2})
    );
    assert_eq!((&container["rootfs"]["usedBytes"], &container["logs"]["usedBytes"]), (&json!(1), &json!(2)));
}

#[test]
fn only_cpu_and_memory() {
    let found = summary(true);
    let keys = |value: &Value| -> Vec<String> {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(keys(&found["node"]), ["cpu", "memory", "nodeName", "startTime", "swap", "systemContainers"]);
    assert_eq!(found["node"]["startTime"], "2023-11-14T22:13:21Z", "the root cgroup's");
    let pod = &found["pods"][0];
    assert_eq!(keys(pod), ["containers", "cpu", "memory", "podRef", "startTime", "swap"]);
    assert_eq!(keys(&pod["containers"][0]), ["cpu", "memory", "name", "startTime", "swap"]);
}
