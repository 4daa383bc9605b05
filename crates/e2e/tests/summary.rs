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

/// The pod of that name, once what it says is as it should be.
fn pod(node: &Node, name: &str, is_so: impl Fn(&Value) -> bool, what: &str) -> Result<Value> {
    let name = format!("{name}-{}", node.name());
    wait_until(ROUNDS, what, || {
        let found = summary(node, "").map_err(|error| format!("{error:#}"))?;
        let pods = found["pods"].as_array().cloned().unwrap_or_default();
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == *name).ok_or(found.to_string())?;
        if is_so(pod) { Ok(pod.clone()) } else { Err(pod.to_string()) }
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn told(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let node = Node::builder().containerd(&containerd).config("volumeStatsAggPeriod: 5s").start()?;
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
    // All three: the layer, the volume, the log.
    let has_all = |pod: &Value| {
        let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(writes) = containers.iter().find(|it| it["name"] == "writes") else { return false };
        containers.len() == 2
            && containers.iter().all(|it| it["cpu"]["usageNanoCores"].is_u64())
            && number(&writes["rootfs"]["usedBytes"]) >= 8 * MIB
            && number(&writes["logs"]["usedBytes"]) >= MIB
            && pod["volume"].as_array().is_some_and(|all| {
                all.iter().any(|it| it["name"] == "scratch" && number(&it["usedBytes"]) >= 4 * MIB)
            })
            && number(&pod["ephemeral-storage"]["usedBytes"]) >= 13 * MIB
    };
    let busy = pod(&node, "busy", has_all, "what a pod wrote")?;
    ensure!(busy["podRef"]["uid"] == *uid && busy["podRef"]["namespace"] == "default", "{busy}");
    let of = |name: &str| {
        busy["containers"].as_array().and_then(|all| all.iter().find(|it| it["name"] == *name)).cloned()
    };
    let (writes, spins) = (of("writes").context("writes")?, of("spins").context("spins")?);
    // A loaded machine gives it less than a core, never more than one; when it was read is known to some tenths of a second.
    let rate = number(&spins["cpu"]["usageNanoCores"]);
    ensure!((10_000_000..1_500_000_000).contains(&rate), "{spins}");
    ensure!(
        number(&writes["rootfs"]["usedBytes"]) < 9 * MIB && number(&writes["rootfs"]["inodesUsed"]) > 0,
        "{writes}"
    );
    ensure!(number(&writes["logs"]["usedBytes"]) < 3 * MIB, "{writes}");
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
    ensure!(number(&busy["ephemeral-storage"]["usedBytes"]) < 18 * MIB, "memory is no disk: {busy}");
    ensure!(busy["network"]["name"] == "eth0" && busy["network"]["rxBytes"].is_u64(), "{busy}");
    ensure!(number(&busy["process_stats"]["process_count"]) >= 2, "{busy}");

    let whole = summary(&node, "")?;
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
    let host = pod(&node, "host", |pod| pod["network"].is_object(), "the host's network")?;
    ensure!(
        host["network"]["interfaces"] == machine["network"]["interfaces"]
            || host["network"]["time"] != machine["network"]["time"],
        "{host}"
    );

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
