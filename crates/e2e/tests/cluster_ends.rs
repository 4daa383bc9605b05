//! Ends that others bring about: of pods by deletion, force, finalizers and other people's word, and of the Node object.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition, container_id},
    seen::PATIENCE,
    sh,
};
use mainstay_testkit::wait_until;
use serde_json::{Value, json};

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

/// Whether the runtime has a running container of that ID.
fn runs(member: &Member, id: &str) -> Result<bool> {
    let id = id.trim_start_matches("containerd://");
    let list: Value = serde_json::from_str(&member.containerd.crictl(&["ps", "-o", "json"])?)?;
    let containers = list["containers"].as_array().cloned().unwrap_or_default();
    Ok(containers.iter().any(|container| container["id"] == id))
}

fn stopped(member: &Member, id: &str) -> Result<()> {
    wait_until(PATIENCE, "the container to be stopped", || match runs(member, id) {
        Ok(false) => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

fn unknown_to_the_node(member: &Member, name: &str) -> Result<()> {
    wait_until(PATIENCE, "the node to forget the pod", || {
        let pods = member.node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        let known = pods["items"].as_array().into_iter().flatten().any(|pod| pod["metadata"]["name"] == name);
        if known { Err(pods.to_string()) } else { Ok(()) }
    })
}

/// Ignores the wish to end, so that it ends when its grace is over, and not before.
fn stubborn(seconds: i64) -> Value {
    json!({ "terminationGracePeriodSeconds": seconds, "containers": [sh("c", "trap '' TERM; while true; do sleep 1; done")] })
}

#[test]
fn pods_and_the_node_end_by_the_word_of_others() -> Result<()> {
    let member = Member::start("nodeLeaseDurationSeconds: 4")?;
    member.node.write_manifest(
        "static.json",
        &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "static" }, "spec": { "containers": [idle("c")] } })
            .to_string(),
    )?;
    for name in ["held", "failed", "bystander"] {
        member.bind(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] }))?;
    }
    member.bind("slow", stubborn(600))?;
    member.bind("forced", stubborn(2))?;
    let bystander = member.ready("bystander")?;

    // A finalizer keeps the object, not the containers.
    let held = member.ready("held")?;
    member.patch(&path("held"), &json!({ "metadata": { "finalizers": ["example.com/wait"] } }))?;
    member.delete(&path("held"), "")?;
    stopped(&member, container_id(&held))?;
    let over = member.until(&path("held"), "its last status", |pod| {
        !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null()
            && matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
            && pod["metadata"]["deletionGracePeriodSeconds"] == 0
    })?;
    ensure!(over["metadata"]["uid"] == held["metadata"]["uid"], "{over}");

    // A pod that somebody calls failed is stopped, and stays what it was called.
    let failed = member.ready("failed")?;
    let word = json!({ "status": { "phase": "Failed", "reason": "Tired", "message": "by my word" } });
    member.patch(&path("failed/status"), &word)?;
    stopped(&member, container_id(&failed))?;
    let over = member.until(&path("failed"), "its last status", |pod| {
        let status = &pod["status"];
        !status["containerStatuses"][0]["state"]["terminated"].is_null()
            && status["phase"] == "Failed"
            && status["reason"] == "Tired"
            && status["message"] == "by my word"
    })?;
    ensure!(over["status"]["containerStatuses"][0]["restartCount"] == 0, "{}", over["status"]);

    // A second deletion with less grace is heeded while the first is under way.
    let slow = member.ready("slow")?;
    let begun = Instant::now();
    member.delete(&path("slow"), "gracePeriodSeconds=500")?;
    member.until(&path("slow"), "the first deletion", |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"] == 500
    })?;
    member.delete(&path("slow"), "gracePeriodSeconds=1")?;
    member.gone(&path("slow"))?;
    stopped(&member, container_id(&slow))?;
    ensure!(begun.elapsed() < Duration::from_secs(400), "nobody waited for the first grace");

    // By force the object goes at once, and the containers follow with the grace that they were given.
    let forced = member.ready("forced")?;
    member.delete(&path("forced"), "gracePeriodSeconds=0")?;
    member.gone(&path("forced"))?;
    stopped(&member, container_id(&forced))?;
    unknown_to_the_node(&member, "forced")?;

    // The finalizer goes, and with it the object and what is left on the node.
    member.patch(
        &path("held"),
        &json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["example.com/wait"] } }),
    )?;
    member.gone(&path("held"))?;
    unknown_to_the_node(&member, "held")?;

    // The Node object is made again, whole, and nobody notices: closed to pods as it was, so that a machine that was drained and taken
    // out of the cluster is not filled again until it is off.
    let leaving = json!({ "key": "example.com/leaving", "effect": "NoSchedule" });
    member.patch(NODE, &json!({ "spec": { "unschedulable": true, "taints": [leaving] } }))?;
    let is_closed = |node: &Value| {
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        node["spec"]["unschedulable"] == true && taints.any(|taint| *taint == leaving)
    };
    let before = member.get(NODE).map_err(anyhow::Error::msg)?;
    member.delete(NODE, "")?;
    let again = member.until(NODE, "another Node object, Ready and otherwise the same", |node| {
        node["metadata"]["uid"] != before["metadata"]["uid"]
            && condition(node, "Ready") == "True"
            && is_closed(node)
            && node["metadata"]["labels"] == before["metadata"]["labels"]
            && node["status"]["capacity"] == before["status"]["capacity"]
    })?;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    member.until(lease, "the lease to be the new node's", |lease| {
        lease["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]
    })?;
    let same = member.get(&path("bystander")).map_err(anyhow::Error::msg)?;
    ensure!(container_id(&same) == container_id(&bystander), "{same}");
    ensure!(condition(&same, "Ready") == "True", "{same}");
    // Pods come as before, once it is opened.
    member.patch(NODE, &json!({ "spec": { "unschedulable": false, "taints": [] } }))?;
    member.bind("newcomer", json!({ "containers": [idle("c")] }))?;
    member.ready("newcomer")?;
    Ok(())
}
