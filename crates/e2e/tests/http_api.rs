//! The reading side of the HTTP API on a real node: what `/node`, `/pods`, `/configz` and their kin say, and where.

use std::{io::BufRead as _, io::BufReader};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{SOON, World, idle};
use mainstay_testkit::{BUSYBOX, Flavor, Http, wait_until};
use serde_json::{Value, json};

const CONFIG: &str = "featureGates: {KubeletAllocatedPodsEndpoint: true, InPlacePodVerticalScaling: true}\n\
                      enableSystemLogQuery: true\nnodeStatusMaxImages: 10\n";

fn get(http: &Http, path: &str) -> Result<Value> {
    let answer = http.get(path)?;
    ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
    serde_json::from_slice(&answer.body).with_context(|| format!("{path}: {}", answer.text()))
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    wait_until(SOON, what, || look().ok_or_else(|| "not yet".to_owned()))
}

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let all = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|it| it["type"] == kind).unwrap_or(&Value::Null)
}

#[test]
fn the_node_is_told_on_every_listener_and_a_restart_is_no_transition() -> Result<()> {
    for flavor in Flavor::ALL {
        let mut world = World::with_config(flavor, CONFIG)?;
        // Images, the runtime's name and how much memory is left are found out by different parties.
        let node = wait("a ready node that was looked at", || {
            let node = get(&world.node.http(), "/node").ok()?;
            let status = &node["status"];
            let named =
                status["images"].as_array()?.iter().any(|it| it["names"].to_string().contains(BUSYBOX));
            let runtime = status["nodeInfo"]["containerRuntimeVersion"].as_str()?;
            let measured = condition(&node, "MemoryPressure")["status"] != "Unknown";
            let ready = condition(&node, "Ready")["status"] == "True";
            (ready && measured && named && !runtime.is_empty()).then_some(node)
        })?;
        ensure!((&node["kind"], &node["apiVersion"]) == (&json!("Node"), &json!("v1")), "{node}");
        let status = &node["status"];
        let info = &status["nodeInfo"];
        let runtime = info["containerRuntimeVersion"].as_str().unwrap_or_default();
        ensure!(runtime.starts_with("containerd://"), "{info}");
        ensure!(info["kubeletVersion"].as_str().is_some_and(|it| it.starts_with("v1.37.")), "{info}");
        for field in ["bootID", "kernelVersion", "osImage", "architecture"] {
            ensure!(info[field].as_str().is_some_and(|it| !it.is_empty()), "{field}: {info}");
        }
        ensure!(
            status["capacity"]["memory"].is_string() && status["allocatable"]["pods"].is_string(),
            "{status}"
        );
        ensure!(status["addresses"].to_string().contains("Hostname"), "{status}");
        ensure!(condition(&node, "StateIntact")["status"] == "True", "{node}");
        // It is measured, and thresholds that no test machine crosses hold.
        ensure!(condition(&node, "MemoryPressure")["status"] == "False", "{node}");
        let read_only = get(&Http::Tcp(world.node.read_only()), "/node")?;
        ensure!(read_only["metadata"] == node["metadata"], "{read_only}");

        let since = condition(&node, "Ready")["lastTransitionTime"].clone();
        ensure!(since.is_string(), "{node}");
        world.node.sigterm()?;
        world.node.start_again()?;
        let again = wait("the node after a restart", || get(&world.node.http(), "/node").ok())?;
        ensure!(condition(&again, "Ready")["lastTransitionTime"] == since, "{again}");
    }
    Ok(())
}

#[test]
fn pods_are_chosen_kept_and_watched() -> Result<()> {
    let world = World::with_config(Flavor::Debian16, CONFIG)?;
    let labelled = |name: &str, tier: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"tier": tier}}, "spec": {
            "terminationGracePeriodSeconds": 0, "containers": [idle("c")],
        }})
    };
    world.put_manifest("front", &labelled("front", "web"))?;
    world.put_manifest("back", &labelled("back", "db"))?;
    world.running("front")?;
    world.running("back")?;
    let http = world.node.http();
    let names = |query: &str| -> Result<Vec<String>> {
        let list = get(&http, &format!("/pods?{query}"))?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect())
    };
    ensure!(names("labelSelector=tier%3Dweb")? == [world.full_name("front")]);
    ensure!(names("labelSelector=tier+in+(web,db)")?.len() == 2);
    ensure!(names("fieldSelector=status.phase%3DRunning,metadata.name!%3Dnobody")?.len() == 2);
    ensure!(names("fieldSelector=status.phase%3DPending")?.is_empty());
    let bad = http.get("/pods?labelSelector=tier+in")?;
    ensure!(bad.status == 400 && bad.text().contains("a list such as (a,b) must follow"), "{}", bad.text());

    // Nothing changes any more, so the list keeps its tag.
    let known = wait("a list that stays as it is", || {
        let tag = http.get("/pods").ok()?.header("etag")?.to_owned();
        let same = http.request("GET", "/pods", &[("If-None-Match", &tag)]).ok()?;
        (same.status == 304 && same.body.is_empty()).then_some(tag)
    })?;
    let zipped = http.request("GET", "/pods", &[("Accept-Encoding", "gzip")])?;
    ensure!(zipped.header("content-encoding") == Some("gzip"), "{:?}", zipped.headers);
    ensure!(zipped.body.starts_with(&[0x1f, 0x8b]) && zipped.header("etag") != Some(known.as_str()));

    let mut lines = BufReader::new(http.stream("/pods?watch=1&labelSelector=tier%3Dweb", SOON)?).lines();
    let mut next =
        || -> Result<Value> { Ok(serde_json::from_str(&lines.next().context("the watch ended")??)?) };
    let first = next()?;
    ensure!(
        first["type"] == "ADDED" && first["object"]["metadata"]["name"] == world.full_name("front"),
        "{first}"
    );
    let mut bookmark = next()?;
    while bookmark["type"] != "BOOKMARK" {
        bookmark = next()?;
    }
    world.take_away("back")?;
    world.gone("back")?;
    world.take_away("front")?;
    loop {
        let event = next()?;
        // One comes each minute in which nothing else does.
        if event["type"] == "BOOKMARK" {
            continue;
        }
        ensure!(
            event["object"]["metadata"]["name"] == world.full_name("front"),
            "only what was asked for: {event}"
        );
        if event["type"] == "DELETED" {
            break;
        }
    }
    // Whoever comes back is told what he missed of what he asked for; with another selection he has to begin anew.
    let version = bookmark["object"]["metadata"]["resourceVersion"].as_str().context("a version")?;
    let other = http.get(&format!("/pods?watch=1&resourceVersion={version}"))?;
    ensure!(other.status == 410 && other.text().contains("watch again without resourceVersion"), "{other:?}");
    let path = format!("/pods?watch=1&labelSelector=tier%3Dweb&resourceVersion={version}");
    let back = BufReader::new(http.stream(&path, SOON)?);
    let mut gone = Vec::new();
    for line in back.lines() {
        let event: Value = serde_json::from_str(&line?)?;
        if event["type"] == "BOOKMARK" {
            break;
        }
        ensure!(event["type"] == "DELETED", "{event}");
        gone.push(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(gone == [world.full_name("front")], "{gone:?}");
    Ok(())
}

#[test]
fn the_process_tells_about_itself() -> Result<()> {
    let headers = "staticPodURLHeader: {Authorization: [very-secret]}\n";
    let world = World::with_config(Flavor::Debian16, &format!("{CONFIG}{headers}maxPods: 42\n"))?;
    let http = world.node.http();
    let config = &get(&http, "/configz")?["kubeletconfig"];
    ensure!(
        config["kind"] == "KubeletConfiguration" && config["apiVersion"] == "kubelet.config.k8s.io/v1beta1"
    );
    ensure!(
        config["maxPods"] == 42 && config["featureGates"]["KubeletAllocatedPodsEndpoint"] == true,
        "{config}"
    );
    let text = config.to_string();
    ensure!(text.contains("Authorization") && !text.contains("very-secret"), "{text}");

    let flags = http.get("/flagz")?.text();
    ensure!(flags.starts_with("\nkubelet flagz\n"), "{flags}");
    let root = format!("root-dir: {}", world.node.root().display());
    ensure!(flags.lines().any(|line| line == root), "{root} in {flags}");
    ensure!(http.get("/statusz")?.text().contains("Paths:  /configz /debug /flagz /healthz /metrics"));
    let manual = get(&http, "/openapi/v3")?;
    ensure!(
        manual["paths"]["/node"]["get"]["x-listeners"] == json!(["socket", "secure", "read-only"]),
        "{manual}"
    );

    // The level changes while it runs.
    let put = |level: &str| http.send("PUT", "/debug/flags/v", &[], level.as_bytes());
    ensure!(put("x")?.status == 400);
    ensure!(!world.node.log().contains("DEBUG"), "nothing is debugged yet");
    let answer = put("5")?;
    ensure!(answer.text() == "successfully set klog.logging.verbosity to 5\n", "{}", answer.text());
    world.put("noisy", json!({"terminationGracePeriodSeconds": 0, "containers": [idle("c")]}))?;
    wait("lines for debugging", || world.node.log().contains("DEBUG").then_some(()))?;

    // A request counts when its answer is gone, which its reader cannot know.
    let counted = r#"kubelet_http_requests_total{long_running="false",method="GET",path="configz",server_type="socket"} "#;
    wait_until(SOON, "the request to be counted", || {
        let metrics = http.get("/metrics").map_err(|error| format!("{error:#}"))?.text();
        if metrics.contains(counted) { Ok(()) } else { Err(metrics) }
    })?;
    let allocated = wait("the pod as it was let in", || {
        let list = get(&http, "/allocatedPods").ok()?;
        list["items"].as_array().filter(|items| !items.is_empty()).cloned()
    })?;
    ensure!(allocated[0]["status"] == json!({}), "{allocated:?}");
    ensure!(Http::Tcp(world.node.read_only()).get("/configz")?.status == 404);
    Ok(())
}
