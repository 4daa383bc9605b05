//! What a node asks of its API server, and how it takes what it is told: as little as upstream's kubelet, and no less.

use std::time::Instant;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mainstay_e2e::{
    idle, idle_with,
    member::{Member, NODE, PODS},
    seen::PATIENCE,
    with,
};
use mainstay_testkit::wait_until;
use serde_json::json;

/// How many requests of a kind the API server has counted, from all its clients.
fn counted(member: &Member, verb: &str, resource: &str, part: &str) -> Result<u64> {
    let answer = member.plane.send("GET", "/metrics", None)?;
    ensure!(answer.status == 200, "/metrics of the API server: {}", answer.status);
    let wanted =
        [format!("verb=\"{verb}\""), format!("resource=\"{resource}\""), format!("subresource=\"{part}\"")];
    let text = answer.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"));
    let ours = lines.filter(|line| wanted.iter().all(|label| line.contains(label)));
    let values = ours.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    let sum: f64 = values.sum::<Result<f64, _>>()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter, written as a float"
    )]
    Ok(sum as u64)
}

/// Waits until no pod's status in the API server lags behind the node's own.
fn all_told(member: &Member, pods: &[String]) -> Result<()> {
    wait_until(3 * PATIENCE, "every status to be told", || {
        for name in pods {
            let (own, there) = (member.own(name)?, member.get(&format!("{PODS}/{name}"))?);
            for field in ["phase", "podIPs", "containerStatuses", "initContainerStatuses"] {
                if own["status"][field] != there["status"][field] {
                    return Err(format!("{name}: {field} is {own} here and {there} there"));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_pods_life_costs_few_requests() -> Result<()> {
    let member = Member::start("{}")?;
    let names: Vec<String> = (0..8).map(|number| format!("plain-{number}")).collect();
    let patches = || counted(&member, "PATCH", "pods", "status");
    let before = patches()?;
    for name in &names {
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("a")] });
        member.bind(name, spec)?;
    }
    for name in &names {
        member.ready(name)?;
    }
    all_told(&member, &names)?;
    let many = u64::try_from(names.len())?;
    let up = patches()? - before;
    // That it is being made, that its sandbox is there (if its container is long in coming), that it is ready: upstream's
    // kubelet needs three and a bit.
    ensure!((many..=3 * many).contains(&up), "{up} patches for {many} pods to become Ready");
    let before = patches()?;
    for name in &names {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
    }
    for name in &names {
        member.gone(&format!("{PODS}/{name}"))?;
    }
    let down = patches()? - before;
    ensure!((many..=3 * many).contains(&down), "{down} patches for {many} pods to end");
    println!("{many} pods: {up} patches to become Ready, {down} to end");
    events_are_counted_combined_and_limited(&member)
}

/// The events of a pod, as the API server has them: how many objects of a reason there are, and how often it happened by them.
fn told(member: &Member, pod: &str, reason: &str, text: &str) -> Result<(usize, u64), String> {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{pod}");
    let list = member.get(&path)?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let of_reason = all.iter().filter(|event| reason.is_empty() || event["reason"] == reason);
    let counts: Vec<u64> = of_reason
        .filter(|event| event["message"].as_str().unwrap_or_default().contains(text))
        .map(|event| event["count"].as_u64().unwrap_or_default())
        .collect();
    Ok((counts.len(), counts.iter().sum()))
}

/// How often something happened to a pod, as the node itself has it.
fn happened(member: &Member, pod: &str) -> Result<u64, String> {
    let path = format!("/mainstay/v1/events?pod=default/{pod}");
    let text = member.node.get(&path).map_err(|error| format!("{error:#}"))?;
    let list: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let counts = list["items"].as_array().into_iter().flatten().map(|event| event["count"].as_u64());
    Ok(counts.map(Option::unwrap_or_default).sum())
}

/// Two pods whose probes fail each second, one always in the same words and one never: the API server hears of each 25 times (the
/// limit of one object) and of nine wordings.
fn events_are_counted_combined_and_limited(member: &Member) -> Result<()> {
    const LIMIT: u64 = 25;
    const COMBINED: &str = "(combined from similar events): ";
    let (before, begun) = (counted(member, "POST", "events", "")?, Instant::now());
    for (name, script) in [("repeater", "echo no; exit 1"), ("babbler", "cat /proc/uptime; exit 1")] {
        let probe = json!({ "exec": { "command": ["/bin/sh", "-c", script] }, "periodSeconds": 1 });
        let container = with(idle("c"), json!({ "readinessProbe": probe }));
        member.bind(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [container] }))?;
    }
    for name in ["repeater", "babbler"] {
        wait_until(3 * PATIENCE, &format!("{name} to have more to say than is heard"), || {
            match happened(member, name)? {
                many if many > LIMIT + 1 => Ok(()),
                few => Err(format!("{few} events")),
            }
        })?;
        wait_until(3 * PATIENCE, &format!("all of {name} that is to be heard"), || {
            // And one more each five minutes.
            let limit = LIMIT..=LIMIT + begun.elapsed().as_secs() / 300;
            match told(member, name, "", "")? {
                (_, heard) if limit.contains(&heard) => Ok(()),
                other => Err(format!("{other:?}, and not {limit:?}")),
            }
        })?;
    }
    let seen = |pod, text| told(member, pod, "Unhealthy", text).map_err(anyhow::Error::msg);
    let (objects, times) = seen("repeater", "")?;
    ensure!(objects == 1 && times > 15, "one event that is counted: {objects}, {times}");
    let (objects, times) = seen("babbler", "")?;
    ensure!(objects == 10 && times > 15, "nine wordings and one for the others: {objects}, {times}");
    let (combined, of_them) = seen("babbler", COMBINED)?;
    ensure!((combined, of_them) == (1, times - 9), "{combined} combined events with {of_them} of {times}");
    let made = counted(member, "POST", "events", "")? - before;
    // Pulled, Created and Started of each are made as well, and the last words of the pods before them.
    ensure!((17..=26).contains(&made), "{made} events were made");
    Ok(())
}

/// How many are watching objects of a kind.
fn watching(member: &Member, resource: &str) -> Result<u64> {
    let text = member.plane.send("GET", "/metrics", None)?.text();
    let lines = text.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
    let watches = lines
        .filter(|line| line.contains("verb=\"WATCH\"") && line.contains(&format!("resource=\"{resource}\"")));
    let values = watches.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
    values.sum::<Result<u64, _>>().context("no number")
}

#[test]
fn what_never_changes_is_not_watched() -> Result<()> {
    let member = Member::start("{}")?;
    let maps = "/api/v1/namespaces/default/configmaps";
    for (name, immutable) in [("fixed-1", true), ("fixed-2", true), ("fixed-3", true), ("free", false)] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "immutable": immutable,
            "data": { name: "first" },
        });
        member.plane.create(maps, &map)?;
    }
    let before = watching(&member, "configmaps")?;
    let sources =
        ["fixed-1", "fixed-2", "fixed-3", "free"].map(|name| json!({ "configMap": { "name": name } }));
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [idle_with(json!([{ "name": "v", "mountPath": "/v" }]))],
        "volumes": [{ "name": "v", "projected": { "sources": sources } }],
    });
    let pod = member.bind("reader", spec)?;
    member.ready("reader")?;
    // The one that may change is followed: by then the others would be, too.
    member.patch(&format!("{maps}/free"), &json!({ "data": { "free": "second" } }))?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let volume = member.node.root().join(format!("pods/{uid}/volumes/kubernetes.io~projected/v"));
    wait_until(3 * PATIENCE, "the change to reach the volume", || {
        let text = std::fs::read_to_string(volume.join("free")).map_err(|error| error.to_string())?;
        if text == "second" { Ok(()) } else { Err(text) }
    })?;
    ensure!(std::fs::read_to_string(volume.join("fixed-2"))? == "first", "they are all there");
    let more = watching(&member, "configmaps")? - before;
    ensure!(more == 1, "{more} watches for one ConfigMap that may change and three that may not");

    // One that is made anew under its name is the old one as long as a pod of the node refers to it (upstream's rule as well), and then no longer.
    member.delete(&format!("{maps}/fixed-2"), "")?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "fixed-2" }, "immutable": true,
        "data": { "fixed-2": "other" },
    });
    member.plane.create(maps, &map)?;
    let reads = |name: &str| -> Result<String> {
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [idle_with(json!([{ "name": "v", "mountPath": "/v" }]))],
            "volumes": [{ "name": "v", "configMap": { "name": "fixed-2" } }],
        });
        let pod = member.bind(name, spec)?;
        member.ready(name)?;
        let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
        let volume = member.node.root().join(format!("pods/{uid}/volumes/kubernetes.io~configmap/v"));
        std::fs::read_to_string(volume.join("fixed-2")).context("no such file")
    };
    ensure!(reads("beside")? == "first" && std::fs::read_to_string(volume.join("fixed-2"))? == "first");
    for name in ["reader", "beside"] {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
        member.gone(&format!("{PODS}/{name}"))?;
    }
    ensure!(reads("after")? == "other", "it is looked up anew");
    Ok(())
}

/// A controller that has not heard of a node for a while says that nothing is known of it, and does not take it back.
#[test]
fn a_node_that_was_given_up_says_that_it_is_there() -> Result<()> {
    let member = Member::start("{}")?;
    let ready = |node: &serde_json::Value, status: &str| {
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|it| it["type"] == "Ready" && it["status"] == *status)
    };
    member.until(NODE, "the node to be Ready", |node| ready(node, "True"))?;
    for _ in 0..2 {
        let gone = ["Ready", "MemoryPressure"].map(|kind| {
            json!({ "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status." })
        });
        member.patch(&format!("{NODE}/status"), &json!({ "status": { "conditions": gone } }))?;
        // Long before it would say anyway that nothing has changed, which is after two and a half minutes at the soonest.
        wait_until(Duration::from_secs(60), "the node to be Ready again", || {
            let node = member.get(NODE)?;
            if ready(&node, "True") { Ok(()) } else { Err(node.to_string()) }
        })?;
    }
    Ok(())
}

#[test]
fn somebody_elses_word_about_the_node_is_heeded() -> Result<()> {
    let mut member = Member::start_with(|_, builder| {
        let often = "{nodeStatusUpdateFrequency: 1s, nodeStatusReportFrequency: 1s}";
        Ok(builder.config(often).args(["--cloud-provider=external"]))
    })?;
    let made = member.get(NODE).map_err(anyhow::Error::msg)?;
    let taints = made["spec"]["taints"].to_string();
    ensure!(taints.contains("node.cloudprovider.kubernetes.io/uninitialized"), "{made}");
    // Until its provider speaks, which may run on this very node, it can be reached by what it was given.
    let own = made["status"]["addresses"].to_string();
    ensure!(own.contains("127.0.0.1") && own.contains("Hostname"), "{made}");
    let provided = &made["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"];
    ensure!(provided == "127.0.0.1", "{made}");
    // The provider speaks, and so does who gives out ranges for pods.
    let address = json!([{ "type": "ExternalIP", "address": "192.0.2.7" }]);
    let provided = json!([{ "$patch": "replace" }, address[0]]);
    let deadlock = json!([{ "type": "KernelDeadlock", "status": "False", "reason": "KernelHasNoDeadlock" }]);
    let others = json!({ "example.com/dongle": "4" });
    let status =
        json!({ "addresses": provided, "conditions": deadlock, "capacity": others, "allocatable": others });
    member.patch(&format!("{NODE}/status"), &json!({ "status": status }))?;
    member.patch(NODE, &json!({ "spec": { "podCIDR": "10.77.0.0/24", "podCIDRs": ["10.77.0.0/24"] } }))?;
    wait_until(3 * PATIENCE, "the runtime to be told the range", || {
        let text = member.node.get("/metrics").map_err(|error| format!("{error:#}"))?;
        let mut lines = text.lines().filter(|line| line.starts_with("kubelet_runtime_operations_total"));
        let told = lines.any(|line| line.contains("\"update_runtime_config\"") && !line.ends_with(" 0"));
        if told { Ok(()) } else { Err("not yet".to_owned()) }
    })?;
    let own = wait_until(3 * PATIENCE, "the node to know its range", || {
        let text = member.node.get("/node").map_err(|error| format!("{error:#}"))?;
        if text.contains("10.77.0.0/24") { Ok(text) } else { Err(text) }
    })?;
    ensure!(own.contains("podCIDRs"), "{own}");
    // What the node itself tells of its status again and again leaves the addresses as they are.
    let before = beat(&member.get(NODE).map_err(anyhow::Error::msg)?);
    let now = member.until(NODE, "another sign of life", |node| beat(node) != before)?;
    let others_word = |node: &serde_json::Value| -> Result<(), String> {
        let status = &node["status"];
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let is_whole = status["addresses"] == address
            && status["capacity"]["example.com/dongle"] == "4"
            && status["allocatable"]["example.com/dongle"] == "4"
            && conditions.any(|it| it["type"] == "KernelDeadlock" && it["status"] == "False");
        if is_whole { Ok(()) } else { Err(status.to_string()) }
    };
    others_word(&now).map_err(anyhow::Error::msg)?;
    // The node's own endpoint shows the same, also while the API server is away.
    let shown = |member: &Member| {
        wait_until(PATIENCE, "/node to show what others say", || {
            let own = member.node.get("/node").map_err(|error| format!("{error:#}"))?;
            others_word(&serde_json::from_str(&own).map_err(|error| error.to_string())?)
        })
    };
    shown(&member)?;
    closed_and_opened(&member)?;
    member.plane.stop_server();
    member.node.kill9();
    member.node.start_again()?;
    shown(&member)?;
    member.plane.start_server()?;
    what_is_gone_is_taken_back(&mut member)
}

/// The node says when it is closed to new pods and opened again, and what it said of itself when it started.
fn closed_and_opened(member: &Member) -> Result<()> {
    for (closed, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        member.patch(NODE, &json!({ "spec": { "unschedulable": closed } }))?;
        said(member, reason)?;
    }
    for reason in ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
        said(member, reason)?;
    }
    Ok(())
}

fn said(member: &Member, reason: &str) -> Result<()> {
    let message = if reason == "Starting" {
        "Starting kubelet.".into()
    } else {
        format!("Node node status is now: {reason}")
    };
    member.until("/api/v1/namespaces/default/events", &format!("the event {reason}"), |events| {
        let mut all = events["items"].as_array().into_iter().flatten();
        all.any(|it| {
            it["reason"] == reason && it["message"] == *message && it["involvedObject"]["kind"] == "Node"
        })
    })?;
    Ok(())
}

/// When the node told how it is.
fn beat(node: &serde_json::Value) -> Option<serde_json::Value> {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|it| it["type"] == "Ready").map(|it| it["lastHeartbeatTime"].clone())
}

/// What the API server has of resources that the node does not: a size of huge pages that no kernel here has is taken away, and what
/// somebody advertised stays, unless the machine is new.
fn what_is_gone_is_taken_back(member: &mut Member) -> Result<()> {
    let capacity = |node: &serde_json::Value, name: &str| node["status"]["capacity"].get(name).cloned();
    for (is_new, left) in [(false, "4"), (true, "0")] {
        member.node.sigterm()?;
        let stale = json!({ "hugepages-64Gi": "0" });
        member.patch(
            &format!("{NODE}/status"),
            &json!({ "status": { "capacity": stale, "allocatable": stale } }),
        )?;
        if is_new {
            for file in ["device-plugins/kubelet_internal_checkpoint", "mainstay/boot.json"] {
                std::fs::remove_file(member.node.root().join(file)).ok();
            }
        }
        member.node.start_again()?;
        member.until(NODE, "what is gone to be taken back", |node| {
            capacity(node, "hugepages-64Gi").is_none()
                && capacity(node, "example.com/dongle") == Some(left.into())
                && node["status"]["allocatable"]["example.com/dongle"] == left
        })?;
    }
    // Once: who advertises it afterwards is believed.
    let advertised = json!({ "example.com/dongle": "4" });
    let status = json!({ "capacity": advertised, "allocatable": advertised });
    member.patch(&format!("{NODE}/status"), &json!({ "status": status }))?;
    let mut node = member.get(NODE).map_err(anyhow::Error::msg)?;
    for _ in 0..2 {
        let before = beat(&node);
        node = member.until(NODE, "another report", |node| beat(node) != before)?;
        ensure!(capacity(&node, "example.com/dongle") == Some("4".into()), "{node}");
    }
    Ok(())
}

/// How a node is is told when it changes, and otherwise as often as `nodeStatusReportFrequency` says: a node at rest has nothing to tell.
#[test]
fn a_node_at_rest_is_told_of_when_it_is_due() -> Result<()> {
    const STILL: Duration = Duration::from_secs(30);
    let told = |member: &Member| counted(member, "PATCH", "nodes", "status");
    // Who gives the one alone gives both.
    let member = Member::start("{nodeStatusUpdateFrequency: 1s, nodeStatusReportFrequency: 5m}")?;
    member.bind("resident", json!({ "containers": [idle("c")] }))?;
    member.ready("resident")?;
    // What came with the start (images, measured conditions) has been told when nothing was for a while.
    let mut before = told(&member)?;
    let mut since = Instant::now();
    wait_until(3 * PATIENCE, "the node to come to rest", || {
        let now = told(&member).map_err(|error| format!("{error:#}"))?;
        if now != before {
            (before, since) = (now, Instant::now());
        }
        let still = since.elapsed();
        if still > STILL / 3 { Ok(()) } else { Err(format!("still for {still:?}, told {now} times")) }
    })?;
    std::thread::sleep(STILL);
    let more = told(&member)? - before;
    ensure!(more == 0, "{more} statuses of a node of which nothing changed");
    drop(member);

    let member = Member::start("{nodeStatusUpdateFrequency: 1s, nodeStatusReportFrequency: 3s}")?;
    let (before, begun) = (told(&member)?, Instant::now());
    std::thread::sleep(STILL);
    let (more, elapsed) = (told(&member)? - before, begun.elapsed());
    // Never rarer than asked for (one may be on its way), nor much more often: what changed comes in between.
    let due = elapsed.as_secs() / 3;
    ensure!((due / 2..=due + 4).contains(&more), "{more} statuses within {elapsed:?}");
    Ok(())
}
