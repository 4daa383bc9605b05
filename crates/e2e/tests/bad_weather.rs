//! An API server that is slow, refuses, breaks off, forgets or is away, and mainstay killed meanwhile: nothing is restarted, no
//! condition flips, and when it is back it hears everything. A real control plane behind a proxy that can be made a bad one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition, container_id},
    seen::PATIENCE,
    with,
};
use mainstay_testkit::{Containerd, ControlPlane, FlakyProxy, Flavor, Mood, wait_until};
use serde_json::{Value, json};

/// Who was refused for a while tries ever more seldom.
const RECOVERY: Duration = Duration::from_secs(300);

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

/// The pods as the node has them, by name.
fn own(member: &Member, name: &str) -> Result<Value, String> {
    let pods = member.node.get("/pods").map_err(|error| format!("{error:#}"))?;
    let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
    let found = pods["items"].as_array().into_iter().flatten().find(|pod| pod["metadata"]["name"] == name);
    found.cloned().ok_or_else(|| format!("no {name}: {pods}"))
}

/// Whether it is ready is the test's word: the file is there or not.
fn switch(member: &Member, pod: &Value, on: bool) -> Result<()> {
    let id = container_id(pod).trim_start_matches("containerd://");
    let script = if on { "touch /tmp/ready" } else { "rm -f /tmp/ready" };
    member.containerd.crictl(&["exec", "--sync", id, "/bin/sh", "-c", script]).map(drop)
}

/// What must not change: the container, and since when it is ready.
fn face(pod: &Value) -> (String, u64, Value) {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|it| it["type"] == "Ready").map(|it| it["lastTransitionTime"].clone());
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(u64::MAX);
    (container_id(pod).to_owned(), restarts, ready.unwrap_or_default())
}

fn node_ready_since(member: &Member) -> Result<Value> {
    let node: Value = serde_json::from_str(&member.node.get("/node")?)?;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|it| it["type"] == "Ready").context("no Ready")?;
    ensure!(ready["status"] == "True", "{ready}");
    Ok(ready["lastTransitionTime"].clone())
}

#[test]
fn nothing_is_lost_and_nothing_flips_whatever_the_api_server_does() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let mut member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    let steady = member.bind("steady", json!({ "containers": [idle("c")] }))?;
    let probe = json!({ "readinessProbe": { "exec": { "command": ["test", "-f", "/tmp/ready"] }, "periodSeconds": 1 } });
    member.bind("switched", json!({ "containers": [with(idle("c"), probe)] }))?;
    let switched = member.until(&path("switched"), "its container to run", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    let before = face(&member.ready("steady")?);
    ensure!(before.1 == 0, "{steady}");
    let node_since = node_ready_since(&member)?;

    let mut on = false;
    for mood in [Mood::TooMany, Mood::Broken, Mood::Cut, Mood::Expired, Mood::Lying, Mood::Silent] {
        let doomed = format!("doomed-{mood:?}").to_lowercase();
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] });
        member.bind(&doomed, spec)?;
        member.ready(&doomed)?;
        proxy.set(mood);
        // Meanwhile things happen on both sides.
        on = !on;
        let word = if on { "True" } else { "False" };
        switch(&member, &switched, on)?;
        member.delete(&path(&doomed), "")?;
        wait_until(PATIENCE, "the node itself to see it", || {
            let pod = own(&member, "switched")?;
            if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
        })?;
        // A gateway's every lie is heard by those who list, some of them more than once.
        let enough = if mood == Mood::Lying { 9 } else { 1 };
        wait_until(PATIENCE, "requests that went wrong", || match proxy.spoiled() {
            some if some < enough => Err(format!("{some} of {enough}")),
            _ => Ok(()),
        })?;
        if mood == Mood::Lying {
            // Also by one who hears nothing else from its start on.
            member.node.kill9();
            member.node.start_again()?;
            wait_until(PATIENCE, "the list after a restart", || own(&member, "steady"))?;
            let so_far = proxy.spoiled();
            wait_until(PATIENCE, "lies after the restart", || match proxy.spoiled() - so_far {
                some if some < enough => Err(format!("{some} of {enough}")),
                _ => Ok(()),
            })?;
            let running = member.containerd.crictl(&["ps", "-q"])?;
            ensure!(running.lines().count() >= 2, "containers have ended: {running:?}");
        }
        if mood == Mood::Silent {
            member.node.kill9();
            member.node.start_again()?;
            wait_until(PATIENCE, "the list after a restart", || own(&member, "steady"))?;
        }
        ensure!(face(&own(&member, "steady").map_err(anyhow::Error::msg)?) == before, "{mood:?}");
        ensure!(node_ready_since(&member)? == node_since, "{mood:?}: the node's condition flipped");
        proxy.set(Mood::Fair);
        wait_until(RECOVERY, &format!("the API server to hear of it after {mood:?}"), || {
            let pod = member.get(&path("switched"))?;
            if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
        })?;
        wait_until(RECOVERY, &format!("the deleted pod to go after {mood:?}"), || {
            match member.get(&path(&doomed)) {
                Err(answer) if answer.contains("404") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })?;
    }

    // All of it away, and mainstay killed meanwhile.
    member.plane.stop_server();
    member.plane.stop_etcd();
    on = !on;
    let word = if on { "True" } else { "False" };
    switch(&member, &switched, on)?;
    member.node.kill9();
    member.node.start_again()?;
    wait_until(PATIENCE, "the whole list without an API server", || {
        own(&member, "steady")?;
        let pod = own(&member, "switched")?;
        if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
    })?;
    ensure!(face(&own(&member, "steady").map_err(anyhow::Error::msg)?) == before);
    member.plane.start_etcd()?;
    member.plane.start_server()?;
    wait_until(RECOVERY, "the API server to hear of it", || {
        let pod = member.get(&path("switched"))?;
        if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
    })?;
    let after = member.get(&path("steady")).map_err(anyhow::Error::msg)?;
    ensure!(face(&after) == before, "{after}");
    ensure!(
        container_id(&member.get(&path("switched")).map_err(anyhow::Error::msg)?) == container_id(&switched)
    );
    ensure!(node_ready_since(&member)? == node_since, "the node's condition flipped");
    // And it is a node like any other.
    member.bind("newcomer", json!({ "containers": [idle("c")] }))?;
    member.ready("newcomer")?;
    member.until(NODE, "the node to be Ready", |node| condition(node, "Ready") == "True")?;
    // The proxy goes after who uses it.
    drop(member);
    drop(proxy);
    Ok(())
}

/// Who cannot watch asks for lists: pods come, change and go, if more slowly.
#[test]
fn a_node_that_may_watch_nothing_hears_all_the_same() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] });
    member.bind("before", spec.clone())?;
    member.ready("before")?;
    proxy.set(Mood::NoWatches);
    member.bind("meanwhile", spec)?;
    member.delete(&path("before"), "")?;
    wait_until(RECOVERY, "a pod to come", || {
        let pod = member.get(&path("meanwhile"))?;
        if condition(&pod, "Ready") == "True" { Ok(()) } else { Err(pod["status"].to_string()) }
    })?;
    wait_until(RECOVERY, "a pod to go", || match member.get(&path("before")) {
        Err(answer) if answer.contains("404") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    ensure!(proxy.spoiled() > 0, "nobody wanted to watch");
    // The proxy goes after who uses it.
    drop(member);
    drop(proxy);
    Ok(())
}

/// Who hears of a pod before it hears of the label or of the end of the taint that brought the pod here looks what the node is now,
/// instead of failing the pod for good.
#[test]
fn a_pod_is_not_failed_by_what_the_node_was() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    let taint = json!([{ "key": "closed", "effect": "NoExecute" }]);
    member.patch(NODE, &json!({ "spec": { "taints": taint } }))?;
    wait_until(PATIENCE, "the node to hear of its taint", || {
        let node = member.node.get("/node").map_err(|error| format!("{error:#}"))?;
        if node.contains("\"closed\"") { Ok(()) } else { Err(node) }
    })?;
    let spec = |key: &str| json!({ "nodeSelector": { "disk": key }, "containers": [idle("c")] });
    let rejected = |name: &str, reason: &str| {
        let what = format!("the rejection of {name}");
        let pod = member.until(&path(name), &what, |pod| pod["status"]["phase"] == "Failed")?;
        ensure!(pod["status"]["reason"] == reason, "{}", pod["status"]);
        anyhow::Ok(())
    };
    member.bind("shut-out", json!({ "containers": [idle("c")] }))?;
    rejected("shut-out", "TaintToleration")?;

    proxy.set(Mood::NoNodeNews);
    wait_until(PATIENCE, "the node to hear nothing of itself", || match proxy.spoiled() {
        0 => Err("it has not asked".to_owned()),
        _ => Ok(()),
    })?;
    // The taint is gone and there is a label, and nobody has told the node.
    member
        .patch(NODE, &json!({ "metadata": { "labels": { "disk": "fast" } }, "spec": { "taints": null } }))?;
    ensure!(member.node.get("/node")?.contains("\"closed\""), "it has heard");
    member.bind("quick", spec("fast"))?;
    member.ready("quick")?;
    // What is so is found out as well, and is the last word.
    member.bind("misplaced", spec("slow"))?;
    rejected("misplaced", "NodeAffinity")?;
    member.patch(NODE, &json!({ "metadata": { "labels": { "disk": "slow" } } }))?;
    member.bind("late", spec("slow"))?;
    member.ready("late")?;
    ensure!(condition(&member.get(&path("quick")).map_err(anyhow::Error::msg)?, "Ready") == "True");

    // And when it is told again, all is as it was.
    proxy.set(Mood::Fair);
    member.until(NODE, "the node to be Ready", |node| condition(node, "Ready") == "True")?;
    member.bind("usual", spec("slow"))?;
    member.ready("usual")?;
    // The proxy goes after who uses it.
    drop(member);
    drop(proxy);
    Ok(())
}
