//! What cgroups use, as clients are told.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{gone, manifest, running, shell, wait_pod};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// Longer than two rounds of reading on a slow machine.
const TWO_ROUNDS: Duration = Duration::from_secs(180);

/// Well below what lies between two rounds.
const AT_ONCE: Duration = Duration::from_secs(4);

/// One sample of `/metrics/resource`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    value: f64,
    /// When it was read, in milliseconds; 0 where none is given.
    at: i64,
}

fn find(text: &str, name: &str, labels: &str) -> Option<Reading> {
    let line =
        text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(labels)))?;
    let mut words =
        line.rsplit_once('}').map_or(line.split_once(' ')?.1, |(_, rest)| rest).split_whitespace();
    let value = words.next()?.parse().ok()?;
    Some(Reading { value, at: words.next().and_then(|word| word.parse().ok()).unwrap_or_default() })
}

fn read(node: &Node, name: &str, labels: &str) -> Result<Reading, String> {
    let text = node.get("/metrics/resource").map_err(|error| format!("{error:#}"))?;
    find(&text, name, labels).ok_or_else(|| format!("no {name}{labels} in\n{text}"))
}

/// Waits until a text is right in all that `check` looks at.
fn whole(node: &Node, path: &str, check: impl Fn(&str) -> Result<()>) -> Result<()> {
    wait_until(TWO_ROUNDS, path, || {
        let text = node.get(path).map_err(|error| format!("{error:#}"))?;
        check(&text).map_err(|error| format!("{error:#}:\n{text}"))
    })
}

fn resources(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let node = Node::builder().containerd(&containerd).start()?;
    // One that spins, one that holds memory, one that does nothing, and one that has ended.
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [shell("done", "exit 0")],
        "containers": [
            shell("spins", "trap 'exit 0' TERM; while :; do :; done"),
            shell("holds", "x=$(head -c 16777216 /dev/zero | tr '\\0' x); trap 'exit 0' TERM; while :; do sleep 1; done"),
        ],
    });
    let begun = Instant::now();
    node.write_manifest("busy.yaml", &manifest("busy", spec))?;
    let pod = running(&node, "busy")?;
    let pod_labels = format!("{{namespace=\"default\",pod=\"busy-{}\"}}", node.name());
    let labels = |container: &str| {
        format!("{{container=\"{container}\",namespace=\"default\",pod=\"busy-{}\"}}", node.name())
    };
    let cpu = "container_cpu_usage_seconds_total";
    let first = wait_until(TWO_ROUNDS, "the first reading", || read(&node, cpu, &labels("spins")))?;
    let second = wait_until(TWO_ROUNDS, "another reading", || {
        let reading = read(&node, cpu, &labels("spins"))?;
        let more = reading.at > first.at && reading.value > first.value;
        if more { Ok(reading) } else { Err(format!("it spins, and has used {first:?}, then {reading:?}")) }
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(second.value <= seconds + 0.1, "more than a core for {seconds} s: {first:?}, {second:?}");

    // All of one round: in another the memory may be more, or less.
    whole(&node, "/metrics/resource", |text| {
        let held = find(text, "container_memory_working_set_bytes", &labels("holds")).context("no memory")?;
        ensure!(held.value >= 16_777_216.0, "{held:?}");
        let pod = find(text, "pod_memory_working_set_bytes", &pod_labels).context("no memory of the pod")?;
        ensure!(pod.value >= held.value * 0.9, "the pod has {pod:?}, a part of it {held:?}");
        let machine = find(text, "node_memory_working_set_bytes", " ").context("no memory of the node")?;
        ensure!(machine.value > pod.value, "the node has {machine:?}");
        ensure!(find(text, "node_cpu_usage_seconds_total", " ").is_some_and(|cpu| cpu.value > second.value));
        ensure!(!text.contains("container=\"done\""), "one that has ended is not told of");
        ensure!(find(text, "resource_scrape_error", " ") == Some(Reading { value: 0.0, at: 0 }));
        let started =
            find(text, "container_start_time_seconds", &labels("spins")).context("no start time")?;
        ensure!(started.at == 0 && started.value * 1000.0 <= second.at as f64, "{started:?}, {second:?}");
        Ok(())
    })?;
    whole(&node, "/metrics/resource/v1alpha1", |old| {
        ensure!(old.contains("# TYPE container_cpu_usage_seconds_total gauge"));
        ensure!(old.contains("scrape_error 0"));
        Ok(())
    })?;

    in_cadvisors_words(&node, &format!("busy-{}", node.name()), pod.uid())?;

    // A container's series end with it: nobody waits for the next round to come.
    let id = pod.container_id("spins").trim_start_matches("containerd://");
    containerd.crictl(&["stop", "--timeout", "1", id])?;
    wait_pod(&node, "busy", "without the one that was stopped", |pod| {
        pod.container("spins")["state"]["terminated"].is_object()
    })?;
    for path in ["/metrics/resource", "/metrics/cadvisor"] {
        wait_until(AT_ONCE, &format!("{path} without what has ended"), || {
            let text = node.get(path).map_err(|error| format!("{error:#}"))?;
            let is_there = |name: &str| text.contains(&format!("container=\"{name}\""));
            if is_there("holds") && !is_there("spins") { Ok(()) } else { Err(text) }
        })?;
    }

    node.remove_manifest("busy.yaml")?;
    gone(&containerd, &node, pod.uid())?;
    wait_until(TWO_ROUNDS, "the end of its series", || {
        let text = node.get("/metrics/resource").map_err(|error| format!("{error:#}"))?;
        if text.contains("busy") { Err(text) } else { Ok(()) }
    })
}

/// `/spec/` and `/stats/`, as agents of old read them.
fn in_cadvisors_words(node: &Node, pod: &str, uid: &str) -> Result<()> {
    let json = |path: &str, body: &str| -> Result<Value> {
        let answer = node.http().send("POST", path, &[], body.as_bytes())?;
        ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).with_context(|| answer.text())
    };
    let machine: Value = serde_json::from_str(&node.get("/spec/")?)?;
    ensure!(machine["num_cores"].as_u64() > Some(0) && machine["boot_id"].is_string(), "{machine}");
    let memory = machine["memory_capacity"].as_u64().context("no memory")?;
    ensure!(machine["topology"][0]["cores"][0]["thread_ids"].is_array(), "{machine}");

    let holds = || -> Result<Value> {
        let held = json(&format!("/stats/default/{pod}/{uid}/holds"), "")?;
        let newest = &held["stats"][0];
        let set = newest["memory"]["working_set"].as_u64();
        ensure!(set >= Some(16 << 20) && set < Some(memory), "{held}");
        ensure!(newest["cpu"]["usage"]["total"].as_u64() > Some(0), "{held}");
        ensure!(held["spec"]["labels"]["io.kubernetes.pod.uid"] == uid, "{held}");
        ensure!(held["spec"]["image"].as_str().is_some_and(|image| image.contains("busybox")), "{held}");
        Ok(held)
    };
    let held = wait_until(TWO_ROUNDS, "what one holds", || holds().map_err(|error| format!("{error:#}")))?;
    ensure!(json(&format!("/stats/{pod}/holds"), "")?["name"] == held["name"], "the same by its short name");
    // The cgroup that it names is a real one, and is found by it.
    let name = held["name"].as_str().context("no cgroup")?;
    let asked = json!({"containerName": name, "num_stats": 1}).to_string();
    let by_cgroup = json("/stats/container", &asked)?;
    ensure!(by_cgroup[name]["id"] == held["id"], "{by_cgroup}");
    let all = json("/stats/container", r#"{"subcontainers": true}"#)?;
    ensure!(all[name].is_object() && all["/"].is_object(), "{all}");
    ensure!(json("/stats/", r#"{"num_stats": 0}"#)?["stats"] == json!([]), "none was asked for");
    let none = node.http().get(&format!("/stats/{pod}/nobody"))?;
    ensure!((none.status, none.text().as_str()) == (404, "no matching container"), "{none:?}");
    let bad = node.http().send("POST", "/stats/", &[], b"{")?;
    ensure!(bad.status == 500 && bad.text().starts_with("Internal Error: "), "{bad:?}");
    Ok(())
}

#[test]
fn cpu_and_memory_are_told_of_while_a_pod_runs_on_debians_containerd() -> Result<()> {
    resources(Flavor::Debian16)
}

#[test]
fn cpu_and_memory_are_told_of_while_a_pod_runs_on_containerd_2() -> Result<()> {
    resources(Flavor::Built24)
}
