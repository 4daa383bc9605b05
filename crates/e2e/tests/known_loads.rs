//! Numbers held against what a load has counted of itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use mainstay_e2e::seen::{manifest, running, shell};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// Longer than some rounds of looking on a slow machine.
const ROUNDS: Duration = Duration::from_secs(300);
const MIB: f64 = 1_048_576.0;

fn containers(node: &Node) -> Result<Vec<Value>, String> {
    let text = node.get("/stats/summary").map_err(|error| format!("{error:#}"))?;
    let summary: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let name = format!("loads-{}", node.name());
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let pod = pods.into_iter().find(|pod| pod["podRef"]["name"] == *name).ok_or(text)?;
    Ok(pod["containers"].as_array().cloned().unwrap_or_default())
}

fn of(node: &Node, name: &str) -> Result<Value, String> {
    let all = containers(node)?;
    all.iter().find(|it| it["name"] == *name).cloned().ok_or_else(|| format!("{all:?}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// What busybox' shell says of its own processor time and of its children's (`times`, which must not be asked in a child).
fn own_seconds(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.starts_with("burnt"))?;
    line.split_whitespace()
        .skip(1)
        .map(|word| {
            let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
            Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
        })
        .sum()
}

#[test]
fn what_a_load_counts_of_itself_is_what_is_told() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).start()?;
    // One burns a fixed amount of work, says what it took, and rests; one holds 64 MiB; one has written 100 MB.
    let burns = "i=0; while [ $i -lt 9000000 ]; do i=$((i+1)); done; times > /times; echo burnt $(tr '\\n' ' ' < /times); \
        trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    // The same within half a core, so that it takes twice as long.
    let half = burns.replace("9000000", "4500000");
    let holds =
        "head -c 67108864 /dev/zero > /memory/held; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    let writes = "head -c 100000000 /dev/zero > /written; sync; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    let mut holds = shell("holds", holds);
    holds["volumeMounts"] = json!([{"name": "memory", "mountPath": "/memory"}]);
    let mut half = shell("half", &half);
    half["resources"] = json!({"limits": {"cpu": "500m"}});
    let rests = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    let spec = json!({
        "containers": [shell("burns", burns), half, holds, shell("writes", writes), shell("rests", rests)],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
    });
    node.write_manifest("loads.yaml", &manifest("loads", spec))?;
    running(&node, "loads")?;
    let pod = format!("loads-{}", node.name());
    // While it burns, it never has more than its half, and what it is said to have is what it may have at most.
    wait_until(ROUNDS, "half a core", || {
        let half = of(&node, "half")?;
        let cores = number(&half["cpu"]["usageNanoCores"]) / 1e9;
        if cores > 0.0 && cores <= 0.51 { Ok(()) } else { Err(half.to_string()) }
    })?;
    for name in ["burns", "half"] {
        let counted = wait_until(ROUNDS, "the load's own count", || {
            let text = node.logs("default", &pod, name, "").map_err(|error| format!("{error:#}"))?;
            own_seconds(&text).ok_or(text)
        })?;
        let told = wait_until(ROUNDS, "the processor time of the load", || {
            let load = of(&node, name)?;
            let seconds = number(&load["cpu"]["usageCoreNanoSeconds"]) / 1e9;
            if seconds >= counted * 0.98 {
                Ok(seconds)
            } else {
                Err(format!("{counted} s of its own: {load}"))
            }
        })?;
        // Starting the container costs something, too: as much as one that does nothing.
        let begun = wait_until(ROUNDS, "the processor time of one that rests", || {
            let rests = of(&node, "rests")?;
            let seconds = number(&rests["cpu"]["usageCoreNanoSeconds"]) / 1e9;
            if seconds > 0.0 { Ok(seconds) } else { Err(rests.to_string()) }
        })?;
        ensure!(told <= counted * 1.02 + begun + 0.25, "{name}: {told} s, of which it counted {counted}");
    }
    // The shell itself needs something, as much as one that holds nothing; so do, for a moment, those who bring it there.
    wait_until(ROUNDS, "the memory that is held", || {
        let (holds, rests) = (of(&node, "holds")?, of(&node, "rests")?);
        let bytes = |it: &Value| number(&it["memory"]["workingSetBytes"]);
        let held = bytes(&holds) - bytes(&rests);
        let expected = 64.0 * MIB * 0.98..=64.0 * MIB * 1.02;
        if expected.contains(&held) { Ok(()) } else { Err(format!("{holds} {rests}")) }
    })?;
    wait_until(ROUNDS, "what was written", || {
        let writes = of(&node, "writes")?;
        let bytes = number(&writes["rootfs"]["usedBytes"]);
        if (98e6..=102e6).contains(&bytes) { Ok(()) } else { Err(writes.to_string()) }
    })?;
    wait_until(ROUNDS, "the same among the metrics", || {
        let text = node.get("/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
        let start = "container_memory_working_set_bytes{container=\"holds\"";
        let line = text.lines().find(|line| line.starts_with(start)).ok_or("no such line")?;
        let value = line.rsplit_once("} ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
        let expected = 64.0 * MIB..=68.0 * MIB;
        if value.is_some_and(|value| expected.contains(&value)) { Ok(()) } else { Err(line.to_owned()) }
    })
}
