//! The API server away for minutes, with the controllers that judge nodes and pods waiting for it: nothing on the node notices, and nothing
//! is lost or moved when it is back.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    Everybody, ask, idle,
    member::{Member, NODE, PODS, condition, container_id},
    seen::{PATIENCE, persisted},
    with,
};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, wait_until};
use serde_json::{Value, json};

/// Longer than the controllers wait before they call a node unreachable, than a lease is good for, and than any pause between two tries.
const OUTAGE: Duration = Duration::from_secs(150);
const NAMES: [&str; 3] = ["plain", "probed", "with-token"];

fn of<'a>(pods: &'a [Value], name: &str) -> Option<&'a Value> {
    pods.iter().find(|pod| pod["metadata"]["name"] == name)
}

/// What the node itself says; an error while it does not answer.
fn told(member: &Member) -> Result<Vec<Value>> {
    let pods: Value = serde_json::from_str(&member.node.get("/pods")?)?;
    pods["items"].as_array().cloned().context("no list")
}

/// Every pod is there as it was, the node is Ready, and PodInfo says the same.
fn all_is_well(member: &Member, before: &[Value]) -> Result<()> {
    let pods = told(member)?;
    for first in before {
        let name = first["metadata"]["name"].as_str().unwrap_or_default();
        let pod = of(&pods, name).with_context(|| format!("{name} is missing"))?;
        ensure!(condition(pod, "Ready") == "True", "{name} is not ready: {}", pod["status"]);
        ensure!(container_id(pod) == container_id(first), "{name} was restarted");
    }
    let node: Value = serde_json::from_str(&member.node.get("/node")?)?;
    ensure!(condition(&node, "Ready") == "True", "the node is not ready: {}", node["status"]["conditions"]);
    Ok(())
}

#[test]
fn minutes_without_the_api_server_change_nothing() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let mut member = Member::on(containerd, plane, None, |_, builder| Ok(builder))?;
    let probe = json!({ "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 } });
    let token = json!({ "volumeMounts": [{ "name": "token", "mountPath": "/token" }] });
    // Asked for by the shortest life there is.
    let source = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } });
    let volumes = json!([{ "name": "token", "projected": { "sources": [source] } }]);
    member.bind("plain", json!({ "containers": [idle("c")] }))?;
    member.bind("probed", json!({ "containers": [with(idle("c"), probe)] }))?;
    member.bind("with-token", json!({ "containers": [with(idle("c"), token)], "volumes": volumes }))?;
    let before: Vec<Value> = NAMES.iter().map(|name| member.ready(name)).collect::<Result<_>>()?;
    persisted(&member.node)?;
    wait_until(PATIENCE, "the node to know what the API server knows", || {
        all_is_well(&member, &before).map_err(|error| format!("{error:#}"))
    })?;

    let everybody = Everybody::listens(&member.node, NAMES)?;
    member.plane.stop_server();
    let begun = Instant::now();
    let mut killed = false;
    while begun.elapsed() < OUTAGE {
        all_is_well(&member, &before).with_context(|| format!("after {:?}", begun.elapsed()))?;
        if !killed && begun.elapsed() > OUTAGE / 2 {
            member.node.kill9();
            member.node.start_again()?;
            // The first list that is given is whole; there may be none for a moment.
            let first = wait_until(PATIENCE, "the first list", || {
                told(&member).map_err(|error| format!("{error:#}"))
            })?;
            for name in NAMES {
                ensure!(of(&first, name).is_some(), "{name} is not in the first list");
            }
            wait_until(PATIENCE, "the first Node object", || {
                all_is_well(&member, &before).map_err(|error| format!("{error:#}"))
            })?;
            let conditions = ask(&member.node, &["conditions"])?;
            ensure!(conditions["Pods"].as_array().map(Vec::len) == Some(NAMES.len()), "{conditions}");
            everybody.are_refused()?;
            killed = true;
        }
        thread::sleep(Duration::from_millis(500));
    }
    everybody.were_told_the_whole_or_nothing()?;

    member.plane.start_server()?;
    // The controllers may have found it silent meanwhile; they take that back, and nobody was sent away.
    let path = |name: &str| format!("{PODS}/{name}");
    wait_until(4 * PATIENCE, "the API server to hear that all is well", || {
        let node = member.get(NODE)?;
        let pods = NAMES.iter().map(|name| member.get(&path(name))).collect::<Result<Vec<_>, _>>()?;
        let well = |pod: &Value| condition(pod, "Ready") == "True";
        let taints = node["spec"]["taints"].as_array().map_or(0, Vec::len);
        if condition(&node, "Ready") == "True" && taints == 0 && pods.iter().all(well) {
            return Ok(());
        }
        Err(format!("{node} {pods:?}"))
    })?;
    for first in &before {
        let name = first["metadata"]["name"].as_str().unwrap_or_default();
        let pod = member.get(&path(name)).map_err(anyhow::Error::msg)?;
        ensure!(pod["metadata"]["uid"] == first["metadata"]["uid"], "{name} is another pod");
        ensure!(pod["metadata"].get("deletionTimestamp").is_none(), "{name} was sent away");
        ensure!(container_id(&pod) == container_id(first), "{name} was restarted");
    }
    all_is_well(&member, &before)
}
