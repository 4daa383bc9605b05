//! A node that runs short says so, takes fewer pods meanwhile, and recovers. Real signals, a real control plane.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition},
    seen::PATIENCE,
    with,
};
use mainstay_testkit::wait_until;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

/// A small disk that goes with the test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), c"size=100m").context("cannot mount")?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// How many processes and threads the machine could still have.
fn pids_available() -> Result<i64> {
    let number = |path: &str| -> Result<i64> { Ok(fs::read_to_string(path)?.trim().parse()?) };
    let most = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let load = fs::read_to_string("/proc/loadavg")?;
    let running =
        load.split_whitespace().nth(3).and_then(|field| field.split_once('/')).context("loadavg")?.1;
    Ok(most - running.parse::<i64>()?)
}

/// How many bytes of memory the machine could still use, by the node's own word.
fn memory_available(member: &Member) -> Result<u64> {
    wait_until(PATIENCE, "the machine's memory", || {
        let summary = member.node.get("/stats/summary").map_err(|error| format!("{error:#}"))?;
        let summary: Value = serde_json::from_str(&summary).map_err(|error| error.to_string())?;
        summary["node"]["memory"]["availableBytes"].as_u64().ok_or_else(|| summary["node"].to_string())
    })
}

/// Threads that do nothing until this is dropped.
fn threads(count: usize) -> Result<Vec<mpsc::Sender<()>>> {
    let one = |_| {
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new().stack_size(64 << 10).spawn(move || receiver.recv().is_err())?;
        Ok(sender)
    };
    (0..count).map(one).collect()
}

/// Waits until a condition of the node is as wanted, for the API server and for the node itself.
fn turned(member: &Member, kind: &str, status: &str, reason: &str) -> Result<()> {
    let shows = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == kind && it["status"] == status && it["reason"] == reason)
    };
    member.until(NODE, &format!("{kind} to be {status}"), shows)?;
    wait_until(PATIENCE, "the same of /node", || {
        let own = member.node.get("/node").map_err(|error| format!("{error:#}"))?;
        let own: Value = serde_json::from_str(&own).map_err(|error| error.to_string())?;
        if shows(&own) { Ok(()) } else { Err(own["status"]["conditions"].to_string()) }
    })
}

fn turned_away(member: &Member, name: &str, spec: Value, conditions: &str) -> Result<()> {
    member.bind(name, spec)?;
    let over =
        member.until(&format!("{PODS}/{name}"), "its rejection", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(over["status"]["reason"] == "Evicted", "{}", over["status"]);
    let message = format!("Pod was rejected: The node had condition: [{conditions}]. ");
    ensure!(over["status"]["message"] == message, "{}", over["status"]);
    Ok(())
}

#[test]
fn a_node_that_runs_short_says_so_takes_fewer_pods_and_recovers() -> Result<()> {
    let pids = pids_available()? - 2000;
    let rest = format!(
        "evictionPressureTransitionPeriod: 1s\nevictionHard: {{nodefs.available: 30%, pid.available: \"{pids}\"}}\n"
    );
    // More memory than any machine has free: the threshold is crossed from the start, though its grace is not over.
    let memory =
        "evictionSoft: {memory.available: 99.99%}\nevictionSoftGracePeriod: {memory.available: 1h}\n";
    let mut disk = None;
    let mut member = Member::start_with(|containerd, builder| {
        let root = containerd.dir().join("small");
        disk = Some(SmallDisk::at(&root)?);
        Ok(builder.root(root).config(format!("{rest}{memory}")))
    })?;
    let disk = disk.context("no disk")?;
    turned(&member, "MemoryPressure", "True", "KubeletHasInsufficientMemory")?;
    turned(&member, "DiskPressure", "False", "KubeletHasNoDiskPressure")?;
    let anything = json!({ "containers": [idle("c")] });
    let asks = json!({ "resources": { "requests": { "memory": "1Mi" } } });
    let something = json!({ "containers": [with(idle("c"), asks)] });
    turned_away(&member, "greedy", anything.clone(), "MemoryPressure")?;
    member.bind("modest", something.clone())?;
    member.ready("modest")?;
    // What is critical, as everything is that only this node knows, runs all the same.
    let critical =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "critical" }, "spec": anything });
    member.node.write_manifest("critical.json", &critical.to_string())?;
    member.ready("critical-node")?;

    // With a threshold that the machine is above of the condition goes, and pods come.
    let available = memory_available(&member)?;
    let margin = (available / 4).min(1 << 30);
    member.node.sigterm()?;
    let config = fs::read_to_string(member.node.config_path())?;
    ensure!(config.contains("memory.available: 99.99%"), "{config}");
    let threshold = format!("memory.available: \"{}\"", available - margin);
    fs::write(member.node.config_path(), config.replacen("memory.available: 99.99%", &threshold, 1))?;
    member.node.start_again()?;
    turned(&member, "MemoryPressure", "False", "KubeletHasSufficientMemory")?;
    member.bind("patient", anything.clone())?;
    member.ready("patient")?;
    // Memory that is really used, and given back.
    let held = vec![1_u8; usize::try_from(2 * margin)?];
    turned(&member, "MemoryPressure", "True", "KubeletHasInsufficientMemory")?;
    turned_away(&member, "hungry", anything.clone(), "MemoryPressure")?;
    ensure!(held.iter().step_by(4096).all(|byte| *byte == 1));
    drop(held);
    turned(&member, "MemoryPressure", "False", "KubeletHasSufficientMemory")?;

    // A disk that is really filled, and processes that are really there.
    let filler = disk.0.join("filler");
    fs::write(&filler, vec![1; 80 << 20])?;
    let crowd = threads(4000)?;
    turned(&member, "DiskPressure", "True", "KubeletHasDiskPressure")?;
    turned(&member, "PIDPressure", "True", "KubeletHasInsufficientPID")?;
    turned_away(&member, "late", something.clone(), "DiskPressure PIDPressure")?;
    fs::remove_file(&filler)?;
    drop(crowd);
    turned(&member, "DiskPressure", "False", "KubeletHasNoDiskPressure")?;
    turned(&member, "PIDPressure", "False", "KubeletHasSufficientPID")?;
    member.bind("later", something)?;
    member.ready("later")?;
    // Nobody was harmed.
    for name in ["modest", "critical-node", "patient"] {
        let pod = member.get(&format!("{PODS}/{name}")).map_err(anyhow::Error::msg)?;
        ensure!(condition(&pod, "Ready") == "True", "{pod}");
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
    }
    for reason in [
        "NodeHasInsufficientMemory",
        "NodeHasSufficientMemory",
        "NodeHasDiskPressure",
        "NodeHasInsufficientPID",
    ] {
        wait_until(PATIENCE, reason, || {
            let events = member.node.get("/mainstay/v1/events").map_err(|error| format!("{error:#}"))?;
            if events.contains(&format!("Node node status is now: {reason}")) { Ok(()) } else { Err(events) }
        })?;
    }
    // The disk goes after those who use it.
    drop(member);
    drop(disk);
    Ok(())
}
