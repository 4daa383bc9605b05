use std::{fs, time::Instant};

use jiff::Timestamp;
use mainstay_podspec::runtime::storage_limits;
use mainstay_types::{FullName, ObservedContainer};
use serde_json::json;

use super::*;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u1"}, "spec": spec})).unwrap()
}

fn container(name: &str, log_path: &Path) -> ObservedContainer {
    ObservedContainer {
        id: name.into(),
        sandbox: "s".into(),
        name: name.into(),
        restart_count: 0,
        hash: 0,
        phase: ContainerPhase::Running,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "".into(),
        image_ref: "".into(),
        log_path: log_path.to_str().unwrap().into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
    }
}

#[test]
fn only_what_the_limits_are_about_is_looked_at() {
    let volumes = json!([
        {"name": "limited", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "free", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "host", "hostPath": {"path": "/"}},
    ]);
    let names = |pod: &Pod| {
        let limits = storage_limits(pod);
        let places = places(Path::new("/r"), &"u1".into(), pod, &limits, None);
        assert_eq!(places.hosts.is_some(), limits.total.is_some());
        places.volumes.iter().map(|place| (place.name.clone(), place.counts)).collect::<Vec<_>>()
    };
    let of = |names: &[(&str, bool)]| {
        names.iter().map(|(name, counts)| ((*name).to_owned(), *counts)).collect::<Vec<_>>()
    };
    let volume_limits = pod(json!({"containers": [{"name": "a"}], "volumes": volumes}));
    assert_eq!(names(&volume_limits), of(&[("limited", true), ("memory", false)]));
    let sum = pod(json!({
        "containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}],
        "volumes": volumes,
    }));
    let expected = [("limited", true), ("free", true), ("memory", false), ("config", true)];
    assert_eq!(names(&sum), of(&expected));
}

#[test]
fn sums() {
    let root = tempfile::tempdir().unwrap();
    let volume = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/v");
    let memory = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/m");
    let logs = root.path().join("logs/ns_p_u1/a");
    let last_words = root.path().join("pods/u1/containers/a");
    for directory in [&volume, &memory, &logs, &last_words] {
        fs::create_dir_all(directory).unwrap();
    }
    let write = |path: &Path, bytes: usize| {
        fs::write(path, vec![1_u8; bytes]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    };
    write(&volume.join("data"), 1 << 20);
    write(&memory.join("data"), 1 << 20);
    write(&logs.join("0.log"), 1 << 16);
    write(&logs.join("0.log.20260101-000000.gz"), 1 << 16);
    write(&last_words.join("0-0123abcd"), 1 << 16);
    let pod = pod(json!({
        "containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}],
        "volumes": [
            {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ],
    }));
    let observed = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("ns", "p"),
        read_at: Instant::now(),
        sandboxes: Vec::new(),
        // One whose log lies somewhere unexpected is not searched for.
        containers: vec![container("a", &logs.join("0.log")), container("b", Path::new("/etc/passwd"))],
    };
    let limits = storage_limits(&pod);
    let places = places(root.path(), &"u1".into(), &pod, &limits, Some(&observed));
    let (volumes, containers, total) = places.measure();
    // The directories themselves take a block or two.
    let about = |bytes: u64, expected: u64| (expected..expected + 16384).contains(&bytes);
    assert_eq!(volumes.keys().collect::<Vec<_>>(), ["v"], "what is not mounted is not known");
    assert!(about(volumes["v"], 1 << 20), "{volumes:?}");
    assert_eq!(containers["b"], 0);
    assert!(about(containers["a"], 3 << 16), "{containers:?}");
    assert!(about(total, (1 << 20) + (3 << 16)), "{total}");
}
