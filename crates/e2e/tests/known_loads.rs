//! Numbers held against what a load has counted of itself, to 2 %: CPU time, memory, bytes written. All is compared with the load's own
//! count and nothing with a clock on the wall, so that a machine that is busy changes nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use mainstay_e2e::{
    counts_disks,
    seen::{manifest, running, shell},
};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Node, mainstay_binary, wait_until};
use serde_json::{Value, json};

/// Longer than some rounds of looking on a slow machine.
const ROUNDS: Duration = Duration::from_secs(300);
const HELD: u32 = 64 << 20;
/// A hundred megabytes, in whole blocks.
const WRITTEN: u32 = 24_415 * 4096;
/// So many readings in a row, which come every ten seconds.
const READINGS: usize = 5;
/// A longer time between two of them means that one was not seen.
const MISSED: f64 = 16.0;

/// A container that runs the load (`src/bin/load.rs`) with the machine's libraries.
fn load(name: &str, args: &[&str]) -> Value {
    let mut mounts = vec![
        json!({"name": "load", "mountPath": "/load", "readOnly": true}),
        json!({"name": "control", "mountPath": "/control", "readOnly": true}),
    ];
    for (volume, path) in libraries() {
        mounts.push(json!({"name": volume, "mountPath": path, "readOnly": true}));
    }
    json!({
        "name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/load"], "args": args,
        "volumeMounts": mounts,
    })
}

/// Where the machine has what a program that is not static needs.
fn libraries() -> impl Iterator<Item = (&'static str, &'static str)> {
    [("lib", "/lib"), ("lib64", "/lib64")].into_iter().filter(|(_, path)| Path::new(path).is_dir())
}

/// Where tests are run elsewhere than they are built, it is beside mainstay.
fn program() -> Result<PathBuf> {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_load"));
    if built.is_file() { Ok(built) } else { Ok(mainstay_binary()?.with_file_name("load")) }
}

fn pod(control: &Path) -> Result<Value> {
    let host_path = |name: &str, path: &Path| json!({"name": name, "hostPath": {"path": path}});
    let mut volumes = vec![host_path("load", &program()?), host_path("control", control)];
    volumes.extend(libraries().map(|(volume, path)| host_path(volume, Path::new(path))));
    let written = WRITTEN.to_string();
    Ok(json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [
            load("half", &["half"]),
            load("holds", &["hold", &HELD.to_string()]),
            // The program itself needs something, too: as much as one that holds nothing.
            load("rests", &["hold", "0"]),
            load("writes", &["write", &written, "/written", "/control/go"]),
        ],
        "volumes": volumes,
    }))
}

fn fail(error: impl std::fmt::Display) -> String {
    format!("{error:#}")
}

/// What the summary says of a container.
fn summary(node: &Node, name: &str) -> Result<Value, String> {
    let text = node.get("/stats/summary").map_err(fail)?;
    let found: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let pod = format!("loads-{}", node.name());
    let mut pods = found["pods"].as_array().into_iter().flatten();
    let pod = pods.find(|it| it["podRef"]["name"] == *pod).ok_or_else(|| text.clone())?;
    let mut containers = pod["containers"].as_array().into_iter().flatten();
    containers.find(|it| it["name"] == *name).cloned().ok_or(text)
}

/// What `/metrics/cadvisor` says of a container: each series of the family, with the time of its reading in seconds.
fn metrics(node: &Node, family: &str, container: &str) -> Result<Vec<(f64, f64)>, String> {
    let text = node.get("/metrics/cadvisor").map_err(fail)?;
    let start = format!("{family}{{container=\"{container}\"");
    let lines = text.lines().filter(|line| line.starts_with(&start));
    let found = lines.filter_map(|line| {
        let mut words = line.rsplit_once("} ")?.1.split(' ');
        let value: f64 = words.next()?.parse().ok()?;
        let millis: f64 = words.next()?.parse().ok()?;
        Some((millis / 1e3, value))
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(format!("no {family} of {container}")) } else { Ok(found) }
}

fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("no number: {value}"))
}

/// Whether what is told is what was counted, to 2 % in either direction.
fn agree(what: &str, told: f64, counted: f64) -> Result<(), String> {
    if (told - counted).abs() <= counted * 0.02 {
        Ok(())
    } else {
        Err(format!("{what}: {told} is told, and {counted} was counted"))
    }
}

/// What the load has written of itself: seconds since 1970, and of CPU time.
fn marks(log: &str) -> Vec<(f64, f64)> {
    let lines = log.lines().filter_map(|line| {
        let mut words = line.strip_prefix("mark ")?.split(' ');
        let mut seconds = || Some(words.next()?.parse::<f64>().ok()? / 1e9);
        Some((seconds()?, seconds()?))
    });
    lines.collect()
}

/// What it had used at a time: between two marks it either worked all the time or not at all.
fn used_at(marks: &[(f64, f64)], at: f64) -> Option<f64> {
    let after = marks.iter().position(|(time, _)| *time >= at)?;
    let (before, after) = (marks.get(after.checked_sub(1)?)?, marks.get(after)?);
    let part = (at - before.0) / (after.0 - before.0).max(1e-9);
    Some(before.1 + (after.1 - before.1) * part)
}

/// One reading: its time, the CPU seconds that were used by then, and the rate that the summary tells of it.
type Reading = (f64, f64, Option<f64>);

/// Follows readings until there are enough, each with the rate that is told of it.
fn readings(node: &Node) -> Result<Vec<Reading>> {
    let mut found: Vec<Reading> = Vec::new();
    wait_until(ROUNDS, "some readings of half a core", || {
        let (at, used) = metrics(node, "container_cpu_usage_seconds_total", "half")?[0];
        match found.last() {
            Some((last, ..)) if *last >= at => {}
            // One that was not seen is no neighbour of the next.
            Some((last, ..)) if at - last > MISSED => found = vec![(at, used, None)],
            _ => found.push((at, used, None)),
        }
        let told = summary(node, "half")?;
        let (sum, rate) =
            (number(&told["cpu"]["usageCoreNanoSeconds"])?, told["cpu"]["usageNanoCores"].as_f64());
        if let Some(last) = found.last_mut().filter(|last| (last.1 - sum / 1e9).abs() < 1e-6) {
            last.2 = rate.map(|rate| rate / 1e9);
        }
        let is_complete = found.len() >= READINGS && found.last().is_some_and(|last| last.2.is_some());
        if is_complete { Ok(()) } else { Err(format!("{found:?}")) }
    })?;
    Ok(found)
}

/// CPU time, over a window that two readings bound, and the rates between neighbours.
fn half_a_core(node: &Node) -> Result<()> {
    let found = readings(node)?;
    let (Some(first), Some(last)) = (found.first(), found.last()) else { anyhow::bail!("no readings") };
    let pod = format!("loads-{}", node.name());
    let counted = wait_until(ROUNDS, "the load's own count", || {
        let log = node.logs("default", &pod, "half", "").map_err(fail)?;
        let marks = marks(&log);
        let count = || Some(used_at(&marks, last.0)? - used_at(&marks, first.0)?);
        count().ok_or_else(|| format!("{:?} {:?} of {found:?}", marks.first(), marks.last()))
    })?;
    ensure!(counted > 1.0, "the load has had no CPU: {counted} s of {found:?}");
    agree("CPU seconds", last.1 - first.1, counted).map_err(anyhow::Error::msg)?;
    let mut rates = 0;
    for pair in found.windows(2) {
        let [before, after] = pair else { continue };
        if let Some(rate) = after.2 {
            agree("cores", rate, (after.1 - before.1) / (after.0 - before.0)).map_err(anyhow::Error::msg)?;
            rates += 1;
        }
    }
    ensure!(rates > 0, "no rate was told of {found:?}");
    Ok(())
}

fn held(node: &Node) -> Result<()> {
    wait_until(ROUNDS, "the memory that is held", || {
        let [holds, rests] = [summary(node, "holds")?, summary(node, "rests")?];
        for field in ["workingSetBytes", "usageBytes", "rssBytes"] {
            let bytes = |it: &Value| number(&it["memory"][field]);
            agree(field, bytes(&holds)? - bytes(&rests)?, f64::from(HELD))?;
        }
        for family in ["container_memory_working_set_bytes", "container_memory_rss"] {
            let bytes = |name: &str| metrics(node, family, name).map(|found| found[0].1);
            agree(family, bytes("holds")? - bytes("rests")?, f64::from(HELD))?;
        }
        Ok(())
    })
}

fn written(node: &Node, control: &Path) -> Result<()> {
    fs::write(control.join("go"), "")?;
    let pod = format!("loads-{}", node.name());
    wait_until(ROUNDS, "the load to have written", || {
        let log = node.logs("default", &pod, "writes", "").map_err(fail)?;
        if log.contains(&format!("wrote {WRITTEN}")) { Ok(()) } else { Err(log) }
    })?;
    wait_until(ROUNDS, "what was written", || {
        let told = summary(node, "writes")?;
        agree("rootfs", number(&told["rootfs"]["usedBytes"])?, f64::from(WRITTEN))?;
        if !counts_disks() {
            return Ok(());
        }
        // Of all disks: the layer is on one of them.
        let bytes = metrics(node, "container_fs_writes_bytes_total", "writes")?;
        agree("fs_writes", bytes.iter().map(|(_, value)| value).sum(), f64::from(WRITTEN))
    })
}

#[test]
fn what_a_load_counts_of_itself_is_what_is_told() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).start()?;
    let control = containerd.dir().join("control");
    fs::create_dir(&control)?;
    node.write_manifest("loads.yaml", &manifest("loads", pod(&control)?))?;
    running(&node, "loads")?;
    written(&node, &control)?;
    held(&node)?;
    half_a_core(&node)
}

/// How many of its processes the kernel has killed: of the container by its own count, and of the pod.
fn killed(node: &Node) -> Result<(f64, f64), String> {
    let text = node.get("/metrics/cadvisor").map_err(fail)?;
    let pod = format!("pod=\"greedy-{}\"", node.name());
    let lines =
        text.lines().filter(|line| line.starts_with("container_oom_events_total{") && line.contains(&pod));
    let lines: Vec<&str> = lines.collect();
    let value = |is: &dyn Fn(&str) -> bool| {
        let line = lines.iter().find(|line| is(line)).ok_or_else(|| format!("{lines:?}"))?;
        let value = line.rsplit_once("} ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        value.ok_or_else(|| (*line).to_owned())
    };
    let container = value(&|line| line.contains("container=\"main\""));
    let pod = value(&|line| line.contains("container=\"\"") && line.contains("name=\"\""));
    Ok((container?, pod?))
}

/// On cgroup v1 the process that takes too much ends alone, and its container has the count; on v2 the container ends with it and the pod has.
#[test]
fn who_is_killed_for_want_of_memory_is_counted_once() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).start()?;
    let control = containerd.dir().join("control");
    fs::create_dir(&control)?;
    let script = "trap 'exit 0' TERM; while ! [ -e /control/go ]; do sleep 1; done; rm /control/go; \
                  dd if=/dev/zero of=/dev/null bs=100M count=1; sleep 1000000 & wait";
    let mut main = shell("main", script);
    main["resources"] = json!({"limits": {"memory": "32Mi"}});
    main["volumeMounts"] = json!([{"name": "control", "mountPath": "/control"}]);
    let volume = json!({"name": "control", "hostPath": {"path": control}});
    node.write_manifest(
        "greedy.yaml",
        &manifest("greedy", json!({"containers": [main], "volumes": [volume]})),
    )?;
    running(&node, "greedy")?;
    wait_until(ROUNDS, "the family before", || match killed(&node)? {
        (0.0, 0.0) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    fs::write(control.join("go"), "")?;
    let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let count = || killed(&node).map(|(container, pod)| if is_v2 { pod } else { container });
    wait_until(ROUNDS, "the family to rise", || match count()? {
        0.0 => Err("nobody was killed yet".into()),
        _ => Ok(()),
    })?;
    let found = count().map_err(anyhow::Error::msg)?;
    ensure!((found - 1.0).abs() < 0.5, "one was killed, and {found} are told of");
    Ok(())
}
