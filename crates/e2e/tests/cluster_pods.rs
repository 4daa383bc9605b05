//! What only pods of an API server have: RuntimeClasses, preemption by critical pods, and ephemeral containers, which are
//! refused aloud.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition, container_id},
    pod,
    seen::{PATIENCE, counted},
    with,
};
use mainstay_testkit::wait_until;
use serde_json::{Value, json};

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

/// Waits for an event in the API server about a pod.
fn told(member: &Member, pod: &str, reason: &str, text: &str) -> Result<()> {
    wait_until(PATIENCE, &format!("the event {reason}"), || {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        let list = member.get(&format!("/api/v1/namespaces/default/events?fieldSelector={selector}"))?;
        let found = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|event| event["message"].as_str().is_some_and(|message| message.contains(text)));
        if found { Ok(()) } else { Err(list.to_string()) }
    })
}

/// By which of the runtime's handlers a pod runs.
fn handler_of(member: &Member, pod: &Value) -> Result<String> {
    let id = container_id(pod).trim_start_matches("containerd://").to_owned();
    let shown: Value = serde_json::from_str(&member.containerd.crictl(&["inspect", &id])?)?;
    let sandbox = shown["info"]["sandboxID"].as_str().context("no sandbox")?;
    let shown: Value = serde_json::from_str(&member.containerd.crictl(&["inspectp", sandbox])?)?;
    Ok(shown["info"]["runtimeHandler"].as_str().unwrap_or_default().to_owned())
}

/// Whether a pod had to go for another.
fn made_room(pod: &Value) -> bool {
    let status = &pod["status"];
    status["phase"] == "Failed"
        && status["reason"] == "Preempting"
        && condition(pod, "DisruptionTarget") == "True"
}

fn of_cpu(cpu: &str) -> Value {
    with(idle("c"), json!({ "resources": { "requests": { "cpu": cpu } } }))
}

#[test]
fn runtime_classes_preemption_and_what_is_not_run() -> Result<()> {
    let mut member = Member::start("{}")?;

    // A RuntimeClass names a handler of the runtime, and what a pod costs beside its containers.
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = |name: &str, handler: &str| {
        json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": name }, "handler": handler,
            "overhead": { "podFixed": { "memory": "7Mi" } },
        })
    };
    member.plane.create(classes, &class("usual", "runc"))?;
    member.plane.create(classes, &class("strange", "no-such-handler"))?;
    member.bind("classy", json!({ "runtimeClassName": "usual", "containers": [idle("c")] }))?;
    let classy = member.ready("classy")?;
    ensure!(classy["spec"]["overhead"]["memory"] == "7Mi", "{}", classy["spec"]);
    ensure!(handler_of(&member, &classy)? == "runc", "{classy}");
    member.bind("strange", json!({ "runtimeClassName": "strange", "containers": [idle("c")] }))?;
    told(&member, "strange", "FailedCreatePodSandBox", "no-such-handler")?;
    member.delete(&path("strange"), "gracePeriodSeconds=0")?;

    // A pod of a file may name a class of the API server.
    let of_a_file = json!({ "runtimeClassName": "usual", "containers": [idle("c")] });
    member.node.write_manifest("classy.json", &pod("filed", of_a_file).to_string())?;
    let filed = member.ready("filed-node")?;
    ensure!(handler_of(&member, &filed)? == "runc", "{filed}");

    // An ephemeral container is accepted by the API server; that nothing comes of it is said.
    let debug = json!({ "spec": { "ephemeralContainers": [{ "name": "debugger", "image": "any" }] } });
    member.patch(&path("classy/ephemeralcontainers"), &debug)?;
    told(&member, "classy", "EphemeralContainerNotStarted", "debugger")?;

    // A critical pod finds no room, and is given that of the one who has enough.
    let node = member.get(NODE).map_err(anyhow::Error::msg)?;
    let cpus = node["status"]["allocatable"]["cpu"].as_str().and_then(|cpus| cpus.parse::<u32>().ok());
    let cpus = cpus.context("no whole number of CPUs")? * 1000;
    let grace = json!({ "terminationGracePeriodSeconds": 1 });
    member
        .bind("large", with(json!({ "containers": [of_cpu(&format!("{}m", cpus / 2))] }), grace.clone()))?;
    member
        .bind("small", with(json!({ "containers": [of_cpu(&format!("{}m", cpus / 4))] }), grace.clone()))?;
    let small = member.ready("small")?;
    member.ready("large")?;
    let wants = of_cpu(&format!("{}m", cpus / 4 * 3));
    // Who is not critical is turned away.
    member.bind("modest", json!({ "containers": [wants.clone()] }))?;
    let modest = member.until(&path("modest"), "its rejection", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(modest["status"]["reason"] == "OutOfcpu", "{}", modest["status"]);
    let mut urgent = json!({ "priorityClassName": "system-node-critical", "containers": [wants] });
    urgent["terminationGracePeriodSeconds"] = json!(1);
    member.bind("urgent", urgent)?;
    member.ready("urgent")?;
    member.until(&path("large"), "its end", |pod| {
        made_room(pod) && pod["status"]["message"] == "Preempted in order to admit critical pod"
    })?;
    told(&member, "large", "Preempting", "Preempted in order to admit critical pod")?;
    let after = member.get(&path("small")).map_err(anyhow::Error::msg)?;
    ensure!(container_id(&after) == container_id(&small) && condition(&after, "Ready") == "True", "{after}");
    let preemptions = || counted(&member.node, "kubelet_preemptions{preemption_signal=\"cpu\"}");
    ensure!(preemptions()? == Some(1.0), "{:?}", preemptions()?);

    // A static pod that has to make room comes back when there is room again: nobody would make it anew.
    member.delete(&path("small"), "")?;
    member.gone(&path("small"))?;
    let floor = json!({
        "priority": 2_000_000_000, "priorityClassName": "system-cluster-critical", "terminationGracePeriodSeconds": 1,
        "containers": [of_cpu(&format!("{}m", cpus / 4))],
    });
    member.node.write_manifest("floor.json", &pod("floor", floor).to_string())?;
    member.ready("floor-node")?;
    let mut second = json!({ "priorityClassName": "system-node-critical" });
    second["containers"] = json!([of_cpu(&format!("{}m", cpus / 8))]);
    member.bind("second", with(second, grace))?;
    member.ready("second")?;
    member.until(&path("floor-node"), "its end", made_room)?;
    ensure!(preemptions()? == Some(2.0), "{:?}", preemptions()?);
    // Also when it was another life that said that it had failed.
    member.node.kill9();
    member.node.start_again()?;
    wait_until(PATIENCE, "the list after a restart", || member.own("second"))?;
    member.delete(&path("second"), "")?;
    member.until(&path("floor-node"), "it to be as before", |pod| {
        condition(pod, "Ready") == "True" && condition(pod, "DisruptionTarget").is_empty()
    })?;
    Ok(())
}
