//! A volume whose file system never answers: everything else is measured and served, and it is named.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{OBEDIENT, manifest, pod, pods, shell};
use mainstay_testkit::{Containerd, Flavor, HungFilesystem, Node, own_mounts, wait_until};
use serde_json::{Value, json};

/// Volumes are walked every second here, disks are looked at every ten.
const ROUNDS: Duration = Duration::from_secs(180);
const MIB: u64 = 1 << 20;

fn with_scratch(name: &str, script: &str) -> String {
    let mut main = shell("main", script);
    main["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    manifest(name, json!({"containers": [main], "volumes": [{"name": "scratch", "emptyDir": {}}]}))
}

/// The pod's volume in the summary.
fn scratch(node: &Node, pod: &str) -> Result<Value, String> {
    let text = node.get("/stats/summary").map_err(|error| format!("{error:#}"))?;
    let summary: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let found = pods.iter().find(|it| it["podRef"]["name"] == format!("{pod}-node")).ok_or("no such pod")?;
    let volumes = found["volume"].as_array().cloned().unwrap_or_default();
    volumes.into_iter().find(|volume| volume["name"] == "scratch").ok_or_else(|| found.to_string())
}

#[test]
fn a_volume_that_never_answers_holds_up_nobody_else() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).config("volumeStatsAggPeriod: 1s").start()?;
    node.write_manifest("stuck.yaml", &with_scratch("stuck", OBEDIENT))?;
    let script = "trap 'exit 0' TERM; while ! [ -e /scratch/go ]; do sleep 1; done; dd if=/dev/zero of=/scratch/more bs=1M count=8; sleep 1000000 & wait";
    node.write_manifest("fine.yaml", &with_scratch("fine", script))?;
    for pod in ["stuck", "fine"] {
        wait_until(ROUNDS, "the volume in the summary", || scratch(&node, pod).map(drop))?;
    }
    let directory = |pod: &str| -> Result<std::path::PathBuf> {
        let pods = pods(&node)?;
        let uid = pods
            .iter()
            .find(|it| it.name() == pod)
            .and_then(|it| it.0["metadata"]["uid"].as_str().map(str::to_owned));
        Ok(node
            .root()
            .join("pods")
            .join(uid.context("no UID")?)
            .join("volumes/kubernetes.io~empty-dir/scratch"))
    };

    let hung = HungFilesystem::mount(directory("stuck")?)?;
    wait_until(ROUNDS, "somebody to ask the dead file system", || {
        if hung.unanswered() > 0 { Ok(()) } else { Err("nobody yet".to_owned()) }
    })?;
    std::fs::write(directory("fine")?.join("go"), "")?;
    wait_until(ROUNDS, "the other pod's volume to grow", || {
        let volume = scratch(&node, "fine")?;
        let used = volume["usedBytes"].as_u64().unwrap_or(0);
        if used >= 8 * MIB { Ok(()) } else { Err(volume.to_string()) }
    })?;
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/pods", "/healthz"]
    {
        ensure!(!node.get(path)?.is_empty(), "{path} is empty");
    }
    wait_until(ROUNDS, "it to be named", || {
        let log = node.log();
        let named = |line: &&str| {
            line.contains("does not answer") && line.contains("scratch") && line.contains("stuck")
        };
        log.lines().find(named).map(drop).ok_or(log.lines().rev().take(5).collect())
    })?;

    // Back to life, it is measured again.
    let before = scratch(&node, "stuck").map_err(anyhow::Error::msg)?["time"].clone();
    let path = hung.path().to_owned();
    drop(hung);
    wait_until(ROUNDS, "the volume to be measured again", || {
        let volume = scratch(&node, "stuck")?;
        if volume["time"].as_str() > before.as_str() { Ok(()) } else { Err(volume.to_string()) }
    })?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&path.display().to_string()), "it is still mounted");
    Ok(())
}

/// A file system that a container has mounted in its own volume, and that never answers: it keeps nobody from measuring the pod that has it, nor
/// from heeding its limits, and nobody asks it anything.
#[test]
fn what_is_mounted_in_a_volume_hides_nothing_from_its_limit() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).config("volumeStatsAggPeriod: 1s").start()?;
    let script = "trap 'exit 0' TERM; while ! [ -e /scratch/go ]; do sleep 1; done; dd if=/dev/zero of=/scratch/more bs=1M count=8; sleep 1000000 & wait";
    let mut main = shell("main", script);
    main["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let volume = json!({"name": "scratch", "emptyDir": {"sizeLimit": "4Mi"}});
    node.write_manifest(
        "greedy.yaml",
        &manifest("greedy", json!({"containers": [main], "volumes": [volume]})),
    )?;
    wait_until(ROUNDS, "the volume in the summary", || scratch(&node, "greedy").map(drop))?;
    let pods = pods(&node)?;
    let uid = pods.iter().find(|pod| pod.name() == "greedy").context("no pod")?.uid().to_owned();
    let volume = node.root().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/scratch");
    let inside = volume.join("inside");
    std::fs::create_dir(&inside)?;
    let hung = HungFilesystem::mount(&inside)?;
    std::fs::write(volume.join("go"), "")?;
    wait_until(ROUNDS, "the volume to grow", || {
        let told = scratch(&node, "greedy");
        let status = pod(&node, "greedy").map_err(|error| format!("{error:#}"))?;
        // It may be measured and put out before anybody has seen it in the summary.
        let is_out = status.phase() == "Failed";
        let used = told.as_ref().ok().and_then(|volume| volume["usedBytes"].as_u64()).unwrap_or(0);
        if is_out || used >= 8 * MIB { Ok(()) } else { Err(format!("{told:?}")) }
    })?;
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"4Mi\". ";
    wait_until(ROUNDS, "its pod to be put out", || {
        let pod = pod(&node, "greedy").map_err(|error| format!("{error:#}"))?;
        let status = &pod.0["status"];
        let is_so = status["reason"] == "Evicted" && status["message"] == message;
        if is_so { Ok(()) } else { Err(status.to_string()) }
    })?;
    ensure!(hung.unanswered() == 0, "{} questions were asked", hung.unanswered());
    Ok(())
}

/// A disk of the machine that hangs already when mainstay starts: nobody waits for it, and the others are measured.
#[test]
fn a_start_while_a_disk_hangs_serves_the_rest_at_once() -> Result<()> {
    /// Under a machine that is busy with other tests; a wait for a disk takes at least as long as its deadline of two
    /// seconds, every time.
    const AT_ONCE: Duration = Duration::from_millis(1500);
    own_mounts()?;
    let containerd = Containerd::start(Flavor::Debian16)?;
    let place = tempfile::tempdir()?;
    // What hangs ends first: a process that asks it cannot be ended before.
    let node;
    let hung = HungFilesystem::mount_as("/dev/mainstay-hung", place.path())?;
    node = Node::builder().containerd(&containerd).start()?;
    node.write_manifest("fine.yaml", &with_scratch("fine", OBEDIENT))?;
    // From the first moment on, and while everything is looked at.
    let mut families: Vec<String> = Vec::new();
    let mut slowest = Duration::ZERO;
    let until = Instant::now() + ROUNDS;
    let is_whole = |families: &[String]| {
        let of_disks = families.iter().any(|it| it.starts_with("container_fs_limit_bytes{"));
        let of_pod = families
            .iter()
            .any(|it| it.contains("pod=\"fine-node\"") && it.starts_with("container_memory_usage_bytes{"));
        of_disks && of_pod
    };
    while !is_whole(&families) {
        ensure!(Instant::now() < until, "never whole: {families:?}");
        for path in ["/metrics/cadvisor", "/stats/summary", "/metrics/resource", "/metrics"] {
            let begun = Instant::now();
            // Pods are told of completely or with an error.
            let text = node.get(path).unwrap_or_default();
            slowest = slowest.max(begun.elapsed());
            if path == "/metrics/cadvisor" {
                families = text.lines().map(str::to_owned).collect();
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    ensure!(slowest < AT_ONCE, "somebody waited: {slowest:?}");
    ensure!(families.iter().any(|line| line.starts_with("machine_memory_bytes{")), "{families:?}");
    let hangs = |line: &&String| line.contains("mainstay-hung");
    ensure!(families.iter().find(hangs).is_none(), "what did not answer is left out");
    ensure!(hung.unanswered() > 0, "nobody asked it");
    let summary: Value = serde_json::from_str(&node.get("/stats/summary")?)?;
    ensure!(summary["node"]["fs"]["capacityBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{summary}");
    wait_until(ROUNDS, "it to be named", || {
        let log = node.log();
        let named = |line: &&str| {
            line.contains("does not say how full") && line.contains(&place.path().display().to_string())
        };
        log.lines().find(named).map(drop).ok_or(log.lines().rev().take(5).collect())
    })?;
    // The machine is told of without its file systems, in the same time.
    let begun = Instant::now();
    let machine: Value = serde_json::from_str(&node.get("/spec/")?)?;
    ensure!(machine["memory_capacity"].as_u64().is_some_and(|bytes| bytes > 0), "{machine}");
    ensure!(begun.elapsed() < AT_ONCE, "/spec/ waited: {:?}", begun.elapsed());
    Ok(())
}
