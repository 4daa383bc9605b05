//! `/stats/summary`, from a real runtime.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{gone, manifest, running, shell};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// Longer than two rounds of looking at disks on a slow machine.
const ROUNDS: Duration = Duration::from_secs(240);
const MIB: u64 = 1 << 20;

fn summary(node: &Node, query: &str) -> Result<Value> {
    let text = node.get(&format!("/stats/summary{query}"))?;
    serde_json::from_str(&text).with_context(|| text)
}

/// Waits until one summary is right in all that `check` looks at: what it is made of is looked at again and again, each part in
/// its own time.
fn wait_summary(node: &Node, what: &str, check: impl Fn(&Value) -> Result<()>) -> Result<()> {
    wait_until(ROUNDS, what, || {
        let found = summary(node, "").map_err(|error| format!("{error:#}"))?;
        check(&found).map_err(|error| format!("{error:#}\n{found}"))
    })
}

/// The pod of that name in a summary.
fn pod<'a>(found: &'a Value, node: &Node, name: &str) -> Result<&'a Value> {
    let name = format!("{name}-{}", node.name());
    let mut pods = found["pods"].as_array().into_iter().flatten();
    pods.find(|pod| pod["podRef"]["name"] == *name).with_context(|| format!("no {name}"))
}

/// What the pod that writes and spins is told to use.
fn check_busy(busy: &Value, uid: &str) -> Result<()> {
    ensure!(busy["podRef"]["uid"] == *uid && busy["podRef"]["namespace"] == "default", "{busy}");
    let containers = busy["containers"].as_array().context("no containers")?;
    ensure!(containers.len() == 2, "{busy}");
    let of = |name: &str| containers.iter().find(|it| it["name"] == *name).with_context(|| name.to_owned());
    let (writes, spins) = (of("writes")?, of("spins")?);
    ensure!(writes["cpu"]["usageNanoCores"].is_u64(), "{writes}");
    // A loaded machine gives it less than a core, never more than one; when it was read is known to some tenths of a second.
    let rate = number(&spins["cpu"]["usageNanoCores"]);
    ensure!((10_000_000..1_500_000_000).contains(&rate), "{spins}");
    // All three: the layer, the volume, the log.
    ensure!(
        (8 * MIB..9 * MIB).contains(&number(&writes["rootfs"]["usedBytes"]))
            && number(&writes["rootfs"]["inodesUsed"]) > 0,
        "{writes}"
    );
    ensure!((MIB..3 * MIB).contains(&number(&writes["logs"]["usedBytes"])), "{writes}");
    let left = number(&writes["memory"]["availableBytes"]);
    ensure!(left + number(&writes["memory"]["workingSetBytes"]) == 64 * MIB, "{writes}");
    ensure!(
        spins["memory"].get("availableBytes").is_none(),
        "without a limit there is nothing left of it: {spins}"
    );
    let volumes = busy["volume"].as_array().context("no volumes")?;
    let names: Vec<_> = volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
    ensure!(names == ["scratch", "memory"], "those that count come first: {volumes:?}");
    ensure!((4 * MIB..5 * MIB).contains(&number(&volumes[0]["usedBytes"])), "{volumes:?}");
    ensure!(volumes[1]["capacityBytes"] == MIB, "{volumes:?}");
    let sum = number(&busy["ephemeral-storage"]["usedBytes"]);
    ensure!((13 * MIB..18 * MIB).contains(&sum), "memory is no disk: {busy}");
    ensure!(busy["network"]["name"] == "eth0" && busy["network"]["rxBytes"].is_u64(), "{busy}");
    ensure!(number(&busy["process_stats"]["process_count"]) >= 2, "{busy}");
    Ok(())
}

/// What the node is told to use, and the pod that has its network.
fn check_machine(whole: &Value, node: &Node) -> Result<()> {
    let machine = &whole["node"];
    ensure!(machine["nodeName"] == *node.name(), "{machine}");
    for part in ["cpu", "memory", "io", "network", "fs", "swap", "rlimit"] {
        ensure!(machine[part]["time"].is_string(), "no {part}: {machine}");
    }
    ensure!(number(&machine["fs"]["capacityBytes"]) > number(&machine["fs"]["usedBytes"]), "{machine}");
    ensure!(number(&machine["runtime"]["imageFs"]["usedBytes"]) > 0, "{machine}");
    ensure!(
        machine["systemContainers"].as_array().is_some_and(|all| all.iter().any(|it| it["name"] == "pods")),
        "{machine}"
    );
    let host = pod(whole, node, "host")?;
    ensure!(host["network"].is_object(), "{host}");
    ensure!(
        host["network"]["interfaces"] == machine["network"]["interfaces"]
            || host["network"]["time"] != machine["network"]["time"],
        "{host}"
    );
    Ok(())
}

/// What the command line says of the same, and of what it costs to tell.
fn check_stats(node: &Node) -> Result<()> {
    let run = |args: &[&str]| -> Result<String> {
        let ran = node.cli(args)?;
        let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
        ensure!(ran.status.success() && errors.is_empty(), "{args:?}: {errors}");
        Ok(String::from_utf8(ran.stdout)?)
    };
    let all = run(&["stats", "--sort", "cpu"])?;
    let (machine, pods) = all.split_once("\n\n").with_context(|| all.clone())?;
    ensure!(machine.lines().nth(1).is_some_and(|line| line.starts_with(node.name())), "{all}");
    let first = pods.lines().nth(1).unwrap_or_default();
    ensure!(first.split_whitespace().nth(1) == Some(&format!("busy-{}", node.name())), "{all}");

    let one = run(&["stats", "busy", "--sort", "disk", "--no-headers"])?;
    let rows: Vec<Vec<&str>> = one.lines().map(|line| line.split_whitespace().collect()).collect();
    let [pod, writes, spins] = rows.as_slice() else { anyhow::bail!("{one}") };
    ensure!(writes.get(2) == Some(&"writes") && spins.get(2) == Some(&"spins"), "{one}");
    ensure!(pod.len() == 9 && pod.get(8).is_some_and(|disk| disk.ends_with("Mi")), "{one}");
    // The layer and the log, as above.
    let is_told = |disk: &&str| ["9.", "10Mi", "11Mi"].iter().any(|size| disk.starts_with(size));
    ensure!(writes.get(9).is_some_and(is_told), "{one}");

    let cost = run(&["metrics", "cost", "--path", "/metrics/cadvisor", "--sort", "name"])?;
    let names: Vec<_> = cost.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    ensure!(names.contains(&"container_cpu_usage_seconds_total") && names.last() == Some(&"(all)"), "{cost}");
    let is_denied = |name: &&str| *name == "container_last_seen" || name.starts_with("container_spec_");
    ensure!(!names.iter().any(is_denied), "{cost}");
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn told(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let node = Node::builder()
        .containerd(&containerd)
        .config("volumeStatsAggPeriod: 5s")
        .args(["--metrics-deny=container_last_seen,container_spec_*"])
        .start()?;
    let writes = "head -c 8388608 /dev/zero > /layer; head -c 4194304 /dev/zero > /scratch/file; \
        head -c 1048576 /dev/zero | tr '\\0' x | fold -w 1000; sync; trap 'exit 0' TERM; while :; do sleep 1; done";
    let mut container = shell("writes", writes);
    container["volumeMounts"] =
        json!([{"name": "scratch", "mountPath": "/scratch"}, {"name": "memory", "mountPath": "/memory"}]);
    container["resources"] = json!({"limits": {"memory": "64Mi"}});
    let spec = json!({
        "containers": [container, shell("spins", "trap 'exit 0' TERM; while :; do :; done")],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, {"name": "scratch", "emptyDir": {}}],
    });
    node.write_manifest("busy.yaml", &manifest("busy", spec))?;
    node.write_manifest(
        "host.yaml",
        &manifest("host", json!({"hostNetwork": true, "containers": [shell("c", "sleep 1000000")]})),
    )?;
    let uid = running(&node, "busy")?.uid().to_owned();
    wait_summary(&node, "what a pod wrote", |found| check_busy(pod(found, &node, "busy")?, &uid))?;
    wait_summary(&node, "what the node uses", |found| check_machine(found, &node))?;

    wait_until(ROUNDS, "mainstay stats", || check_stats(&node).map_err(|error| format!("{error:#}")))?;

    let short = summary(&node, "/?only_cpu_and_memory=true")?;
    ensure!(short["node"].get("fs").is_none() && short["node"]["cpu"].is_object(), "{short}");
    ensure!(
        short["pods"]
            .as_array()
            .is_some_and(|pods| pods.iter().all(|pod| pod.get("volume").is_none() && pod["cpu"].is_object())),
        "{short}"
    );
    ensure!(summary(&node, "?only_cpu_and_memory=1")?["node"]["fs"].is_object(), "another word is no wish");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let posted = node.http().send("POST", "/stats/summary", &form, b"only_cpu_and_memory=true")?;
    let posted: Value = serde_json::from_slice(&posted.body)?;
    ensure!(posted["node"].get("fs").is_none() && posted["node"]["cpu"].is_object(), "{posted}");

    node.remove_manifest("busy.yaml")?;
    gone(&containerd, &node, &uid)?;
    wait_until(ROUNDS, "the end of a pod", || {
        let text = summary(&node, "").map_err(|error| format!("{error:#}"))?.to_string();
        if text.contains(&uid) { Err(text) } else { Ok(()) }
    })
}

#[test]
fn a_summary_tells_what_pods_use_on_debians_containerd() -> Result<()> {
    told(Flavor::Debian16)
}

#[test]
fn a_summary_tells_what_pods_use_on_containerd_2() -> Result<()> {
    told(Flavor::Built24)
}
