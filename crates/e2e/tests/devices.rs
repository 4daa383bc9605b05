//! Devices of a real plugin: given to pods, kept through everything, told of.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mainstay_e2e::{DevicePlugin, Listening, PodSeen, SOON, World, ask, idle, node_api, register, sh, with};
use mainstay_testkit::{Flavor, mainstay_binary, tool, wait_until};
use serde_json::{Value, json};

const RESOURCE: &str = "example.com/dev";

fn program() -> PathBuf {
    // Where tests are run elsewhere than they are built, it is beside mainstay.
    let built = PathBuf::from(env!("CARGO_BIN_EXE_device-plugin"));
    if built.is_file() { built } else { mainstay_binary().unwrap().with_file_name("device-plugin") }
}

fn wants(count: u32) -> Value {
    let resources = json!({ "resources": { "limits": { RESOURCE: count } } });
    json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), resources)] })
}

/// Devices of these names; those with a `-` before their name are not healthy.
fn devices(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({ "id": name.trim_start_matches('-'), "healthy": !name.starts_with('-') }))
        .collect()
}

fn plugin(world: &World, names: &[&str]) -> DevicePlugin {
    let mut plugin = DevicePlugin::new(program(), &world.node, RESOURCE, &devices(names)).unwrap();
    plugin.start().unwrap();
    plugin
}

/// What a plugin did for containers. When it heard that it is registered, or not yet, says nothing: it is called before.
fn work(plugin: &DevicePlugin) -> Vec<String> {
    let calls = plugin.calls().into_iter();
    calls.filter(|call| call.contains(' ') && !call.starts_with("refused ")).collect()
}

/// Ends a container, to have it restarted. The command goes down with it, so what it says is not listened to; a signal that
/// comes before the container has set its trap is lost.
fn end(world: &World, pod: &PodSeen) {
    drop(world.exec(pod, "c", "while kill -TERM 1; do sleep 0.1; done"));
}

/// Waits until the Node object shows so many devices.
#[track_caller]
fn node_has(world: &World, allocatable: &str, capacity: &str) {
    wait_until(SOON, &format!("{allocatable} of {capacity} devices"), || {
        let node = world.node.get("/node").map_err(|error| format!("{error:#}"))?;
        let node: Value = serde_json::from_str(&node).map_err(|error| error.to_string())?;
        let shown = |list: &str| node["status"][list][RESOURCE].as_str().unwrap_or("none").to_owned();
        let shown = (shown("allocatable"), shown("capacity"));
        if shown == (allocatable.to_owned(), capacity.to_owned()) {
            Ok(())
        } else {
            Err(format!("{shown:?}"))
        }
    })
    .unwrap();
}

/// Waits until PodResources says that the pod's container holds these, sorted, whatever their topology.
#[track_caller]
fn holds(world: &World, pod: &str, ids: &[&str]) -> Value {
    wait_until(SOON, &format!("{pod} holds {ids:?}"), || {
        let list = ask(&world.node, &["resources"]).map_err(|error| format!("{error:#}"))?;
        let pods = list["pod_resources"].as_array().cloned().unwrap_or_default();
        let found = pods.into_iter().find(|it| it["name"] == world.full_name(pod));
        let devices = found.map(|pod| pod["containers"][0]["devices"].clone()).unwrap_or_default();
        let entries = devices.as_array().cloned().unwrap_or_default();
        let mut held: Vec<_> = entries.iter().filter_map(|it| it["device_ids"][0].as_str()).collect();
        held.sort_unstable();
        if held == ids { Ok(devices.clone()) } else { Err(list.to_string()) }
    })
    .unwrap()
}

/// What the container itself sees.
fn sees(world: &World, pod: &PodSeen, ids: &str) {
    assert_eq!(
        world.exec(pod, "c", "echo $TEST_DEVICES; cat /plugin/hello").unwrap(),
        format!("{ids}\nfrom the plugin")
    );
    for id in ids.split(',') {
        let read = format!("test -c /dev/test-{id} && head -c 3 /dev/test-{id} | wc -c");
        assert_eq!(world.exec(pod, "c", &read).unwrap(), "3", "{id}");
    }
    assert!(world.exec(pod, "c", "touch /plugin/mine").is_err(), "read only");
    let inspected = world.crictl(&["inspect", pod.id("c")]).unwrap();
    assert_eq!(inspected["status"]["annotations"]["example.com/devices"], ids);
}

/// D3, D4, R16, R18 and R19.
#[test]
fn a_pod_is_given_what_it_asks_for() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let listed = json!([
            { "id": "a", "healthy": true, "nodes": [0] },
            { "id": "b", "healthy": true },
            { "id": "c", "healthy": false },
        ]);
        let mut plugin = DevicePlugin::new(program(), &world.node, RESOURCE, &listed).unwrap();
        plugin.start().unwrap();
        node_has(&world, "2", "3");

        world.put("one", wants(1)).unwrap();
        sees(&world, &world.running("one").unwrap(), "a");
        let told = holds(&world, "one", &["a"]);
        assert_eq!(
            told,
            json!([{ "resource_name": RESOURCE, "device_ids": ["a"], "topology": { "nodes": [{ "ID": "0" }] } }])
        );
        wait_until(SOON, "the two that are healthy", || {
            let all = ask(&world.node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
            let count = all["devices"].as_array().map(Vec::len);
            if count == Some(2) { Ok(()) } else { Err(all.to_string()) }
        })
        .unwrap();

        wait_until(SOON, "the table of devices", || {
            let shown =
                world.node.cli(&["resources", "--no-headers"]).map_err(|error| format!("{error:#}"))?;
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
            let holder = format!("default/{}", world.full_name("one"));
            let expected = [
                vec![RESOURCE, "a", "0", "Healthy", holder.as_str(), "c"],
                vec![RESOURCE, "b", "-", "Healthy", "<none>", "<none>"],
            ];
            if words == expected { Ok(()) } else { Err(shown.clone()) }
        })
        .unwrap();

        // What others hold is not there for a second one, until they go.
        world.put("two", wants(2)).unwrap();
        let message = "Pod was rejected: Node didn't have enough resource: example.com/dev, requested: 2, used: 1, capacity: 2";
        let refused = world.wait("two", "its refusal", |pod| pod.text("/status/message") == message).unwrap();
        assert_eq!((refused.phase(), refused.text("/status/reason")), ("Failed", "OutOfexample.com/dev"));
        world.take_away("one").unwrap();
        sees(&world, &world.running("two").unwrap(), "a,b");
        holds(&world, "two", &["a", "b"]);
        assert_eq!(work(&plugin), ["allocate a", "allocate a,b"]);
    }
}

/// D8, D23 and D33.
#[test]
fn a_plugin_is_asked_what_goes_together_and_before_each_start() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let mut plugin = DevicePlugin::new(program(), &world.node, RESOURCE, &devices(&["a", "b", "c"])).unwrap();
    plugin.put("options", "preferred prestart").unwrap();
    plugin.start().unwrap();
    node_has(&world, "3", "3");
    world.put("pod", wants(2)).unwrap();
    let first = world.running("pod").unwrap();
    holds(&world, "pod", &["b", "c"]);
    end(&world, &first);
    let again = world.wait("pod", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    assert_ne!(first.id("c"), again.id("c"));
    sees(&world, &again, "b,c");
    let expected = ["preferred 2 of a,b,c", "allocate b,c", "prestart b,c", "prestart b,c"];
    assert_eq!(work(&plugin), expected);

    // D29: while it is away, also after a restart of mainstay, nothing is started that it has not made ready.
    world.node.kill9();
    plugin.kill();
    end(&world, &again);
    world.node.start_again().unwrap();
    let waits = world.wait("pod", "its wait", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
    let message = format!("the device plugin of {RESOURCE} has gone, and has to be asked");
    assert!(waits.waiting_message("c").contains(&message), "{}", waits.waiting_message("c"));
    assert_eq!(work(&plugin).len(), expected.len());
    plugin.start().unwrap();
    let third = world.wait("pod", "its start", |pod| pod.restarts("c") == 2 && pod.runs("c")).unwrap();
    sees(&world, &third, "b,c");
    assert_eq!(work(&plugin).last().map(String::as_str), Some("prestart b,c"));
}

/// D5, D8 and D11.
#[test]
fn what_happens_to_a_plugin_does_not_happen_to_pods() {
    let world = World::start(Flavor::Debian16).unwrap();
    let mut plugin = plugin(&world, &["a", "b"]);
    node_has(&world, "2", "2");
    world.put("pod", wants(1)).unwrap();
    let first = world.running("pod").unwrap();
    holds(&world, "pod", &["a"]);

    // R25: GetAllocatableResources has those that are healthy.
    let allocatable = |count: usize| {
        wait_until(SOON, &format!("{count} devices that may be given out"), || {
            let all = ask(&world.node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
            let found = all["devices"].as_array().map_or(0, Vec::len);
            if found == count { Ok(()) } else { Err(all.to_string()) }
        })
        .unwrap();
    };
    allocatable(2);
    plugin.have(&devices(&["-a", "b"])).unwrap();
    node_has(&world, "1", "2");
    allocatable(1);
    plugin.kill();
    node_has(&world, "0", "2");
    // Its container is made again with what it had, though nobody is there to ask.
    end(&world, &first);
    let again = world.wait("pod", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    sees(&world, &again, "a");

    plugin.have(&devices(&["a", "b", "c"])).unwrap();
    plugin.start().unwrap();
    node_has(&world, "3", "3");
    allocatable(3);
    world.put("other", wants(2)).unwrap();
    world.running("other").unwrap();
    holds(&world, "other", &["b", "c"]);
    holds(&world, "pod", &["a"]);
    let still = world.running("pod").unwrap();
    assert_eq!((still.id("c"), still.uid()), (again.id("c"), first.uid()));
    assert_eq!(world.node.get("/healthz/device-plugin").unwrap(), "ok");
}

/// D9, D12, D13 the other way (who is new waits), D15 and R18.
#[test]
fn a_restart_of_mainstay_changes_nothing() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let mut plugin = plugin(&world, &["a", "b", "c"]);
    node_has(&world, "3", "3");
    for name in ["stays", "goes"] {
        world.put(name, wants(1)).unwrap();
        world.running(name).unwrap();
    }
    let before = world.running("stays").unwrap();
    holds(&world, "stays", &["a"]);
    let file = world.node.root().join("device-plugins/kubelet_internal_checkpoint");
    let kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let entries = kept["Data"]["PodDeviceEntries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["PodUID"] == before.uid()).unwrap();
    assert_eq!(entry["DeviceIDs"], json!({ "-1": ["a"] }));
    assert_eq!(kept["Data"]["RegisteredDevices"], json!({ RESOURCE: ["a", "b", "c"] }));

    world.node.kill9();
    plugin.kill();
    world.take_away("goes").unwrap();
    world.put("comes", wants(2)).unwrap();
    world.node.start_again().unwrap();
    // The plugin is known and not back: who runs runs on, who is new waits for it.
    let waiting = world.wait("comes", "its wait", |pod| pod.waits("c") == "WaitingForDevicePlugin").unwrap();
    assert_eq!(waiting.phase(), "Pending");
    holds(&world, "stays", &["a"]);
    node_has(&world, "0", "0");
    world.gone("goes").unwrap();
    plugin.start().unwrap();
    node_has(&world, "3", "3");
    sees(&world, &world.running("comes").unwrap(), "b,c");
    holds(&world, "comes", &["b", "c"]);
    let after = world.running("stays").unwrap();
    assert_eq!((after.id("c"), after.restarts("c")), (before.id("c"), 0));

    // A plugin that is there notices by itself.
    world.node.kill9();
    world.node.start_again().unwrap();
    node_has(&world, "3", "3");
    holds(&world, "stays", &["a"]);
    holds(&world, "comes", &["b", "c"]);
    let stays = world.running("stays").unwrap();
    assert_eq!(stays.id("c"), before.id("c"));
    // D10: a container that is made anew after that has the same one.
    end(&world, &stays);
    let again = world.wait("stays", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    sees(&world, &again, "a");
    holds(&world, "stays", &["a"]);

    // D14: what has run to its end is over, whatever becomes of its plugin.
    world.take_away("comes").unwrap();
    world.gone("comes").unwrap();
    let resources = json!({ "resources": { "limits": { RESOURCE: 1 } } });
    let job = json!({ "restartPolicy": "Never", "containers": [with(sh("c", "true"), resources)] });
    world.put("job", job).unwrap();
    let done = world.wait("job", "its end", |pod| pod.phase() == "Succeeded").unwrap();
    let file = world.node.root().join("mainstay/pods").join(format!("{}.json", done.uid()));
    wait_until(SOON, "that it is over is on disk", || {
        let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
        if text.to_lowercase().contains("succeeded") { Ok(()) } else { Err(text) }
    })
    .unwrap();
    world.node.kill9();
    plugin.kill();
    world.node.start_again().unwrap();
    let after = world.wait("job", "what became of it", |pod| !pod.phase().is_empty()).unwrap();
    assert_eq!((after.phase(), after.uid()), ("Succeeded", done.uid()));
    node_has(&world, "0", "0");
    assert_eq!(world.named("job").unwrap()[0].phase(), "Succeeded");
}

/// Waits until the node says that this file had to be set aside.
#[track_caller]
fn was_set_aside(world: &World, name: &str) {
    world
        .node
        .wait_for(SOON, "the condition StateIntact", |_| {
            let text = world.node.get("/mainstay/v1/node").map_err(|error| format!("{error:#}"))?;
            let shown: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let conditions = shown["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|it| it["type"] == "StateIntact");
            let message = found.filter(|it| it["status"] == "False").map(|it| it["message"].to_string());
            if message.is_some_and(|message| message.contains(&format!("{name}.bad-"))) {
                Ok(())
            } else {
                Err(text)
            }
        })
        .unwrap();
}

/// A device in use is given to nobody else, whatever becomes of the file that says who holds it.
#[test]
fn a_lost_file_of_devices_is_rebuilt() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let _plugin = plugin(&world, &["a", "b", "c"]);
    node_has(&world, "3", "3");
    for (name, device) in [("one", "a"), ("two", "b")] {
        world.put(name, wants(1)).unwrap();
        world.running(name).unwrap();
        holds(&world, name, &[device]);
    }
    let before = ["one", "two"].map(|name| world.running(name).unwrap().id("c").to_owned());
    let file = world.node.root().join("device-plugins/kubelet_internal_checkpoint");
    let copy = world.node.root().join("mainstay/devices.json");
    let unchanged = |world: &World| {
        node_has(world, "3", "3");
        holds(world, "one", &["a"]);
        holds(world, "two", &["b"]);
        let after = ["one", "two"].map(|name| world.running(name).unwrap());
        assert_eq!(after.each_ref().map(|pod| pod.id("c")), before.each_ref().map(String::as_str));
    };

    // Cut off: what was given is what it was, and a new pod is given what is left.
    world.node.kill9();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    world.node.start_again().unwrap();
    unchanged(&world);
    was_set_aside(&world, "kubelet_internal_checkpoint");
    world.node_event("StateFileSetAside", "kubelet_internal_checkpoint").unwrap();
    world.put("three", wants(1)).unwrap();
    sees(&world, &world.running("three").unwrap(), "c");
    holds(&world, "three", &["c"]);
    world.take_away("three").unwrap();
    world.gone("three").unwrap();

    // Gone without a trace.
    world.node.kill9();
    fs::remove_file(&file).unwrap();
    world.node.start_again().unwrap();
    unchanged(&world);
    wait_until(SOON, "the file is there again", || {
        let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
        if before.len() == text.matches("PodUID").count() { Ok(()) } else { Err(text) }
    })
    .unwrap();

    // Lost twice: nobody can tell what the two hold, so nobody is given anything until they have ended.
    world.node.kill9();
    fs::write(&file, "[]").unwrap();
    fs::write(&copy, "{}").unwrap();
    world.node.start_again().unwrap();
    // Nor is anybody told that there were any: the scheduler would send one pod after the other.
    node_has(&world, "0", "3");
    was_set_aside(&world, "devices.json");
    // Nor that nobody holds any; what there is to be held is known.
    wait_until(SOON, "whom PodResources waits for", || {
        let said = ask(&world.node, &["resources"]).map_err(|error| format!("{error:#}"))?;
        assert_eq!(said["code"], "FAILED_PRECONDITION", "{said}");
        let names = said["message"].as_str().is_some_and(|it| it.starts_with("container c of pod "));
        if names { Ok(()) } else { Err(said.to_string()) }
    })
    .unwrap();
    let allocatable = ask(&world.node, &["allocatable"]).unwrap();
    assert_eq!(allocatable["devices"].as_array().map(Vec::len), Some(3), "{allocatable}");
    world.put("four", wants(1)).unwrap();
    let refused = world
        .wait("four", "its refusal", |pod| {
            pod.text("/status/message").contains("the file that said which was lost")
        })
        .unwrap();
    assert_eq!((refused.phase(), refused.text("/status/reason")), ("Failed", "UnexpectedAdmissionError"));
    let after = ["one", "two"].map(|name| world.running(name).unwrap());
    assert_eq!(after.each_ref().map(|pod| pod.id("c")), before.each_ref().map(String::as_str));
    // A container of theirs that is made anew would be given what the other may hold: it waits as well.
    world.take_away("one").unwrap();
    world.gone("one").unwrap();
    end(&world, &after[1]);
    let again = world.wait("two", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    let four = world.running("four").unwrap();
    let given = [&again, &four].map(|pod| world.exec(pod, "c", "echo $TEST_DEVICES").unwrap());
    assert_ne!(given[0], given[1], "which of them was first is left to chance");
    sees(&world, &again, &given[0]);
    sees(&world, &four, &given[1]);
    holds(&world, "two", &[&given[0]]);
    holds(&world, "four", &[&given[1]]);
}

#[test]
fn only_the_pod_of_a_plugin_that_hangs_waits() {
    let world = World::start(Flavor::Debian16).unwrap();
    let plugin = plugin(&world, &["a"]);
    node_has(&world, "1", "1");
    const QUICK: &str = "example.com/quick";
    let mut quick = DevicePlugin::new(program(), &world.node, QUICK, &devices(&["q"])).unwrap();
    quick.start().unwrap();
    wait_until(SOON, "the other plugin's device", || {
        let node = world.node.get("/node").map_err(|error| format!("{error:#}"))?;
        if node.contains(r#""example.com/quick":"1""#) { Ok(()) } else { Err(node) }
    })
    .unwrap();
    let watch = Listening::start(node_api(&world.node, &["watch"]).unwrap()).unwrap();
    plugin.put("hang", "").unwrap();
    world.put("slow", wants(1)).unwrap();
    world.wait("slow", "its wait", |pod| pod.waits("c") == "WaitingForDevicePlugin").unwrap();
    let resources = json!({ "resources": { "limits": { QUICK: 1 } } });
    let other = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), resources)] });
    world.put("other", other).unwrap();
    world.running("other").unwrap();
    // Only who waits for a plugin was ever said to.
    let full_name = world.full_name("other");
    let runs = |event: &Value| !event["pod"]["status"]["containerStatuses"][0]["state"]["running"].is_null();
    let told = watch
        .wait("the other pod running", |said| {
            let of: Vec<Value> =
                said.iter().filter(|it| it["pod"]["metadata"]["name"] == full_name).cloned().collect();
            of.last().is_some_and(runs).then_some(of)
        })
        .unwrap();
    assert!(!json!(told).to_string().contains("WaitingForDevicePlugin"), "{told:?}");
    plugin.put("refuse", "it is broken").unwrap();
    plugin.take_away("hang").unwrap();
    let message = "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = it is broken, which is unexpected";
    let refused = world.wait("slow", "its refusal", |pod| pod.text("/status/message") == message).unwrap();
    assert_eq!((refused.phase(), refused.text("/status/reason")), ("Failed", "UnexpectedAdmissionError"));
    assert!(world.sandboxes_of(refused.uid()).unwrap().is_empty(), "nothing was made of it");
    world.event("slow", "UnexpectedAdmissionError", "it is broken").unwrap();
    // Nobody would make a static pod anew, so it is tried again.
    plugin.take_away("refuse").unwrap();
    sees(&world, &world.running("slow").unwrap(), "a");
}

/// Waits until the pod's status says of its container's devices that they are so.
#[track_caller]
fn devices_are(world: &World, pod: &str, expected: &[(&str, &str)]) {
    let resources: Vec<_> =
        expected.iter().map(|(id, health)| json!({ "resourceID": id, "health": health })).collect();
    let expected = json!([{ "name": RESOURCE, "resources": resources }]);
    let path = "/status/containerStatuses/0/allocatedResourcesStatus";
    world
        .wait(pod, &format!("{expected}"), |pod| pod.0.pointer(path).is_some_and(|it| *it == expected))
        .unwrap();
}

#[test]
fn the_status_tells_how_devices_are() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let mut plugin = plugin(&world, &["a", "b"]);
    node_has(&world, "2", "2");
    world.put("pod", wants(2)).unwrap();
    devices_are(&world, "pod", &[("a", "Healthy"), ("b", "Healthy")]);
    let metrics = world.node.get("/metrics").unwrap();
    for line in [
        format!("kubelet_device_plugin_registration_total{{resource_name=\"{RESOURCE}\"}}"),
        format!("kubelet_device_plugin_alloc_duration_seconds_count{{resource_name=\"{RESOURCE}\"}}"),
    ] {
        assert!(metrics.lines().any(|it| it.starts_with(&line)), "{line}");
    }
    plugin.have(&devices(&["a", "-b"])).unwrap();
    devices_are(&world, "pod", &[("a", "Healthy"), ("b", "Unhealthy")]);
    // A restart of mainstay says nothing about devices, also when their plugin is not back yet.
    wait_until(SOON, "what was said is on disk", || {
        let files =
            fs::read_dir(world.node.root().join("mainstay/status")).map_err(|error| error.to_string())?;
        let mut texts = files.flatten().map(|file| fs::read_to_string(file.path()).unwrap_or_default());
        if texts.any(|text| text.contains("Unhealthy")) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .unwrap();
    world.node.kill9();
    plugin.kill();
    world.node.start_again().unwrap();
    devices_are(&world, "pod", &[("a", "Healthy"), ("b", "Unhealthy")]);
    plugin.start().unwrap();
    node_has(&world, "1", "2");
    devices_are(&world, "pod", &[("a", "Healthy"), ("b", "Unhealthy")]);
    // Nobody is there who could tell.
    plugin.kill();
    devices_are(&world, "pod", &[("a", "Unknown"), ("b", "Unknown")]);
    plugin.start().unwrap();
    devices_are(&world, "pod", &[("a", "Healthy"), ("b", "Unhealthy")]);
}

/// With its gate off the status says nothing of devices, and everybody else does.
#[test]
fn the_status_tells_nothing_of_devices_without_its_gate() {
    let gates = "{featureGates: {ResourceHealthStatus: false, ResourceHealthStatusMessage: false}}";
    let world = World::with_config(Flavor::Debian16, gates).unwrap();
    let plugin = plugin(&world, &["a"]);
    node_has(&world, "1", "1");
    world.put("pod", wants(1)).unwrap();
    let pod = world.running("pod").unwrap();
    holds(&world, "pod", &["a"]);
    plugin.have(&devices(&["-a"])).unwrap();
    node_has(&world, "0", "1");
    for seen in [pod, world.running("pod").unwrap()] {
        assert_eq!(seen.container("c")["allocatedResourcesStatus"], Value::Null);
    }
}

#[test]
fn a_plugin_is_found_by_its_socket() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let plugin = DevicePlugin::new(program(), &world.node, RESOURCE, &devices(&["a", "b"])).unwrap();
    let mut plugin = plugin.watched();
    // What it says of itself is refused, and tried again until it says something else.
    plugin.put("version", "v1").unwrap();
    plugin.start().unwrap();
    let hears = |plugin: &DevicePlugin, words: &str| {
        wait_until(SOON, words, || {
            let calls = plugin.calls();
            if calls.iter().any(|call| call.contains(words)) { Ok(()) } else { Err(calls.join("; ")) }
        })
        .unwrap();
    };
    let versions = "refused RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, is not among \
                    plugin supported versions [v1]";
    hears(&plugin, versions);
    plugin.take_away("version").unwrap();
    plugin.put("endpoint", "/run/elsewhere.sock").unwrap();
    plugin.start().unwrap();
    hears(
        &plugin,
        "the Endpoint \"/run/elsewhere.sock\" is invalid: it must be the absolute path of a socket below ",
    );
    plugin.take_away("endpoint").unwrap();
    plugin.start().unwrap();
    hears(&plugin, "registered");
    node_has(&world, "2", "2");
    world.put("pod", wants(1)).unwrap();
    let first = world.running("pod").unwrap();
    sees(&world, &first, "a");
    holds(&world, "pod", &["a"]);

    // It is found again by a mainstay that was killed, without doing anything for it.
    world.node.kill9();
    world.node.start_again().unwrap();
    node_has(&world, "2", "2");
    holds(&world, "pod", &["a"]);
    // The socket is its life.
    fs::remove_file(plugin.socket()).unwrap();
    node_has(&world, "0", "2");
    plugin.start().unwrap();
    node_has(&world, "2", "2");
    assert_eq!(world.running("pod").unwrap().id("c"), first.id("c"));
}

/// Only containerd 2 is told which CDI devices a container has.
#[test]
fn a_plugin_gives_cdi_devices() {
    let world = World::start(Flavor::Built24).unwrap();
    let cdi = world.containerd.dir().join("cdi");
    fs::create_dir_all(&cdi).unwrap();
    let edits = json!({ "env": ["FROM_CDI=yes"], "deviceNodes": [{ "path": "/dev/cdi-a", "hostPath": "/dev/zero" }] });
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": "vendor.example.com/thing", "devices": [{ "name": "a", "containerEdits": edits }]
    });
    fs::write(cdi.join("vendor.json"), spec.to_string()).unwrap();
    let mut plugin = DevicePlugin::new(program(), &world.node, RESOURCE, &devices(&["a"])).unwrap();
    plugin.put("cdi", "vendor.example.com/thing").unwrap();
    plugin.start().unwrap();
    node_has(&world, "1", "1");
    world.put("pod", wants(1)).unwrap();
    let pod = world.running("pod").unwrap();
    let seen = world.exec(&pod, "c", "echo $FROM_CDI $TEST_DEVICES; head -c 3 /dev/cdi-a | wc -c").unwrap();
    assert_eq!(seen, "yes a\n3");
}

/// Upstream's sample plugin knows one place only, which it is given in a mount namespace of its own.
#[test]
fn upstreams_sample_plugin_is_served() {
    const SAMPLE: &str = "example.com/resource";
    let world = World::start(Flavor::Debian16).unwrap();
    let script = r#"mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
        mount --bind "$1" /var/lib/kubelet/device-plugins && exec "$2""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(world.node.root().join("device-plugins")).arg(tool("sample-device-plugin").unwrap());
    let mut plugin = Ended(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let resources = json!({ "resources": { "limits": { SAMPLE: 2 } } });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), resources)] });
    // Until the plugin is there nobody knows that these are devices.
    wait_until(SOON, "two devices", || {
        let node = world.node.get("/node").map_err(|error| format!("{error:#}"))?;
        if node.contains(r#""example.com/resource":"2""#) { Ok(()) } else { Err(node) }
    })
    .unwrap();
    world.put("pod", spec).unwrap();
    let pod = world.running("pod").unwrap();
    assert_eq!(world.exec(&pod, "c", "ls /tmp").unwrap(), "Dev-1\nDev-2");
    holds(&world, "pod", &["Dev-1", "Dev-2"]);
    // Its files stay behind on the machine, where containers find them.
    plugin.0.kill().unwrap();
    for file in ["/tmp/Dev-1", "/tmp/Dev-2"] {
        fs::remove_file(file).unwrap();
    }
}

/// Ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn who_may_not_register_is_told_why() {
    let world = World::start(Flavor::Debian16).unwrap();
    let plugin = plugin(&world, &["a"]);
    node_has(&world, "1", "1");
    let root = world.node.root().join("device-plugins");
    let ask = |version: &str, endpoint: &str, resource: &str| {
        register(&program(), &world.node, version, endpoint, resource).unwrap()
    };
    let version = r#"Unknown: requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]"#;
    assert_eq!(ask("v1", "dev.sock", RESOURCE), version);
    for name in
        ["dev", "kubernetes.io/dev", "x.kubernetes.io/dev", "example.com/a b", "requests.example.com/dev", ""]
    {
        let refused = format!("Unknown: the ResourceName {name:?} is invalid");
        assert_eq!(ask("v1beta1", "dev.sock", name), refused);
    }
    for endpoint in ["", "../dev.sock", "/run/dev.sock", "a/../../dev.sock"] {
        let refused = format!(
            "Unknown: the Endpoint {endpoint:?} is invalid: it must be the name of a socket in {}",
            root.display()
        );
        assert_eq!(ask("v1beta1", endpoint, "example.com/other"), refused);
    }
    let missing = ask("v1beta1", "nobody.sock", "example.com/other");
    assert!(missing.starts_with("Unknown: failed to dial device plugin: "), "{missing}");
    let itself = ask("v1beta1", "kubelet.sock", "example.com/other");
    assert!(
        itself.starts_with("Unknown: failed to get device plugin options: rpc error: code = Unimplemented"),
        "{itself}"
    );
    let twice = format!("Unknown: device plugin already connected: {}", root.join("dev.sock").display());
    assert_eq!(ask("v1beta1", "dev.sock", RESOURCE), twice);

    // Ten thousand are many, and more than that are too many; nobody else suffers.
    let many = |count: u32| -> Value {
        (0..count).map(|id| json!({ "id": format!("{id}"), "healthy": true })).collect()
    };
    plugin.have(&many(10_000)).unwrap();
    node_has(&world, "10k", "10k");
    plugin.have(&many(20_000)).unwrap();
    node_has(&world, "0", "10k");
    world.put("other", json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] })).unwrap();
    world.running("other").unwrap();
}
