//! What the node and its pods use, and what its metrics cost.

use mainstay_types::{
    ContainerDisk, ContainerSample, CpuSample, FsReading, FsSize, InterfaceSample, IoSample, MemorySample,
    NetworkSample, PodDisk, PodSamples, Sample, Traffic,
};

use super::*;

const MIB: u64 = 1 << 20;

fn sample(milli_cores: u64, working_set: u64, written: u64) -> Arc<Sample> {
    Arc::new(Sample {
        cpu: CpuSample { usage_ns: 1, ..CpuSample::default() },
        nano_cores: Some(milli_cores * 1_000_000),
        memory: Some(MemorySample { working_set, ..MemorySample::default() }),
        io: vec![IoSample { read_bytes: 512, written_bytes: written, ..IoSample::default() }],
        ..Sample::default()
    })
}

fn network(received: u64, sent: u64) -> Option<Arc<NetworkSample>> {
    let traffic = |bytes| Traffic { bytes, ..Traffic::default() };
    let interface = InterfaceSample { name: "eth0".into(), received: traffic(received), sent: traffic(sent) };
    Some(Arc::new(NetworkSample { interfaces: vec![interface], ..NetworkSample::default() }))
}

fn fs(used: u64) -> Option<FsReading> {
    let size = FsSize { capacity_bytes: 100 * MIB, available_bytes: 60 * MIB, inodes: 9, inodes_free: 4 };
    Some(FsReading { size: Some(size), used_bytes: Some(used), ..FsReading::default() })
}

fn pod_samples(namespace: &str, name: &str, milli_cores: u64, working_set: u64) -> Arc<PodSamples> {
    let container = |name: &str, milli_cores| ContainerSample {
        name: name.into(),
        id: name.into(),
        cgroup: format!("/kubepods/pod/{name}").into(),
        created_at: Timestamp::UNIX_EPOCH,
        image: "busybox".into(),
        sample: sample(milli_cores, working_set / 2, MIB),
    };
    Arc::new(PodSamples {
        full_name: FullName::new(namespace, &format!("{name}-node1")),
        cgroup: format!("/kubepods/pod{name}").into(),
        pod: sample(milli_cores, working_set, 2 * MIB),
        sandbox: None,
        network: network(3072, 100),
        containers: vec![container("main", 1), container("side", milli_cores - 1)],
        complete: true,
    })
}

/// Two pods that are measured, and one that is not.
fn measured() -> Fixture {
    let fixture = Fixture::start();
    fixture.publish(&[
        pod("default", "web", running(930)),
        pod("shop", "cart", running(930)),
        pod("shop", "late", json!({"phase": "Pending"})),
    ]);
    let pods = [
        (PodUid::from("uid-web"), pod_samples("default", "web", 5, 8 * MIB)),
        (PodUid::from("uid-cart"), pod_samples("shop", "cart", 250, 64 * MIB)),
    ];
    fixture.samples.send_replace(Arc::new(Samples {
        generation: 1,
        root: Some(sample(1500, 512 * MIB, 5 * MIB)),
        network: network(10, 20),
        pods: pods.into(),
        ..Samples::default()
    }));
    let layer =
        |name: &str| ContainerDisk { name: name.into(), id: name.into(), layer: fs(MIB), logs: fs(512) };
    let disk =
        |total| PodDisk { containers: vec![layer("main")], volumes: [].into(), total: fs(total).unwrap() };
    fixture.disks.send_replace(Arc::new(Filesystems {
        generation: 1,
        node: fs(40 * MIB),
        pods: [(PodUid::from("uid-web"), Arc::new(disk(3 * MIB)))].into(),
        ..Filesystems::default()
    }));
    fixture
}

#[tokio::test]
async fn what_is_used_as_tables() {
    let fixture = measured();
    assert_eq!(
        fixture.run(&["stats"]).await.printed(),
        "NODE    CPU     MEMORY   MEMORY FREE   READ   WRITTEN   RECEIVED   SENT   DISK   DISK FREE\n\
         node1   1500m   512Mi    0             512    5.0Mi     10         20     40Mi   60Mi\n\
         \n\
         NAMESPACE   POD          CPU    MEMORY   READ   WRITTEN   RECEIVED   SENT   DISK\n\
         default     web-node1    5m     8.0Mi    512    2.0Mi     3.0Ki      100    3.0Mi\n\
         shop        cart-node1   250m   64Mi     512    2.0Mi     3.0Ki      100    -\n"
    );
    let sorted = fixture.run(&["stats", "--sort", "cpu", "--containers", "--no-headers"]).await.printed();
    assert_eq!(
        sorted.split_once("\n\n").unwrap().1,
        "shop      cart-node1          250m   64Mi    512   2.0Mi   3.0Ki   100   -\n\
         shop      cart-node1   side   249m   32Mi    512   1.0Mi   -       -     -\n\
         shop      cart-node1   main   1m     32Mi    512   1.0Mi   -       -     -\n\
         default   web-node1           5m     8.0Mi   512   2.0Mi   3.0Ki   100   3.0Mi\n\
         default   web-node1    side   4m     4.0Mi   512   1.0Mi   -       -     -\n\
         default   web-node1    main   1m     4.0Mi   512   1.0Mi   -       -     1.0Mi\n"
    );
    for (order, first) in
        [("name", "web"), ("memory", "cart"), ("disk", "web"), ("network", "web"), ("io", "web")]
    {
        let printed = fixture.run(&["stats", "--sort", order, "--no-headers"]).await.printed();
        let pods = printed.split_once("\n\n").unwrap().1;
        assert!(pods.lines().next().unwrap().contains(first), "{order}: {pods}");
    }
    assert_eq!(
        fixture.run(&["stats", "web", "-n", "default"]).await.printed(),
        "POD         CONTAINER   CPU   MEMORY   READ   WRITTEN   RECEIVED   SENT   DISK\n\
         web-node1               5m    8.0Mi    512    2.0Mi     3.0Ki      100    3.0Mi\n\
         web-node1   main        1m    4.0Mi    512    1.0Mi     -          -      1.0Mi\n\
         web-node1   side        4m    4.0Mi    512    1.0Mi     -          -      -\n"
    );
    let of_namespace = fixture.run(&["stats", "-n", "shop"]).await.printed();
    assert!(!of_namespace.contains("NODE") && of_namespace.lines().count() == 2, "{of_namespace}");
    let ran = fixture.run(&["stats", "-n", "none"]).await;
    assert_eq!((ran.code, ran.err.text().as_str()), (0, "No pods run in none namespace.\n"));
}

#[tokio::test]
async fn what_is_used_as_data() {
    let fixture = measured();
    let data = |ran: Ran| serde_json::from_str::<Value>(&ran.printed()).unwrap();
    let all = data(fixture.run(&["stats", "-o", "json"]).await);
    assert_eq!(all["node"]["nodeName"], "node1");
    assert_eq!(all["pods"][0]["ephemeral-storage"]["usedBytes"], 3 * MIB, "as the node serves it");
    let some = data(fixture.run(&["stats", "-o", "json", "-n", "shop", "--sort", "memory"]).await);
    assert_eq!((some["pods"].as_array().unwrap().len(), some["node"].is_object()), (1, true));
    let one = data(fixture.run(&["stats", "-o", "json", "cart"]).await);
    assert_eq!(one["podRef"]["name"], "cart-node1");
    let two = data(fixture.run(&["stats", "-o", "json", "cart", "web"]).await);
    assert_eq!((two["pods"].as_array().unwrap().len(), two.get("node")), (2, None));
    let yaml = fixture.run(&["stats", "-o", "yaml", "cart"]).await.printed();
    assert!(yaml.starts_with("podRef:\n"), "{yaml}");
}

#[tokio::test]
async fn what_is_not_measured_is_said() {
    let fixture = Fixture::start();
    fixture.publish(&[]);
    let error = fixture.run(&["stats"]).await.failed(1);
    assert!(error.contains("not been read yet; ask again in a moment"), "{error}");
    let fixture = measured();
    let error = fixture.run(&["stats", "late"]).await.failed(1);
    assert!(error.contains("pod shop/late-node1 has no container that was measured"), "{error}");
    let error = fixture.run(&["stats", "wbe"]).await.failed(1);
    assert_eq!(error, "error: there is no pod wbe; did you mean default/web-node1?\n");
}

#[tokio::test]
async fn what_metrics_cost() {
    let fixture = measured();
    let path = "/metrics/resource";
    let served = fixture.run(&["api", path]).await.printed();
    let table = fixture.run(&["metrics", "cost", "--path", path]).await.printed();
    let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0], ["PATH", "FAMILY", "TYPE", "SERIES", "BYTES"]);
    let series = served.lines().filter(|line| !line.starts_with('#')).count();
    let all = [path, "(all)", &series.to_string(), &served.len().to_string()];
    assert_eq!(cells.last().unwrap(), &all, "{table}");
    let containers = |row: &&Vec<&str>| row[1] == "container_cpu_usage_seconds_total";
    assert_eq!(
        cells.iter().find(containers).unwrap()[..4],
        [path, "container_cpu_usage_seconds_total", "counter", "4"]
    );
    let bytes: Vec<usize> =
        cells[1..cells.len() - 1].iter().map(|row| row.last().unwrap().parse().unwrap()).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{table}");

    let printed = fixture.run(&["metrics", "cost", "-o", "json"]).await.printed();
    let data: Value = serde_json::from_str(&printed).unwrap();
    let paths: Vec<&str> =
        data["endpoints"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    let expected = ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis"];
    assert_eq!(paths, expected);
    let last = fixture.run(&["metrics", "cost"]).await.printed();
    assert!(last.lines().last().unwrap().starts_with("(all)"), "{last}");

    let error = fixture.run(&["metrics", "cost", "--path", "/pods"]).await.failed(2);
    assert!(error.contains("--path \"/pods\" is no endpoint of metrics; write one of /metrics,"), "{error}");
    fixture.run(&["metrics", "cost", "--path", "/metrics/none"]).await.failed(1);
}
