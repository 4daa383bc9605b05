//! Feature gates that decide what a field of a pod means.

use mainstay_e2e::{PodSeen, SOON, World, idle, sh, with};
use mainstay_testkit::{Flavor, wait_until};
use serde_json::json;

#[test]
fn a_container_is_stopped_with_the_signal_it_asks_for() {
    // Only containerd 2.2 and newer can be told one.
    let world = World::with_config(Flavor::Built24, "{featureGates: {ContainerStopSignals: true}}").unwrap();
    let script = "trap 'echo got term; exit 1' TERM; trap 'echo got usr1; exit 0' USR1; echo ready; while true; do sleep 0.1; done";
    let lifecycle = json!({ "lifecycle": { "stopSignal": "SIGUSR1" } });
    world
        .put(
            "asks",
            json!({
                "os": { "name": "linux" },
                "terminationGracePeriodSeconds": 600,
                "containers": [with(sh("c", script), lifecycle), sh("plain", script)],
            }),
        )
        .unwrap();
    let logs = ["c", "plain"].map(|container| {
        world.logged("asks", container, "ready").unwrap();
        world.node.follow_logs("default", &world.full_name("asks"), container, "", SOON).unwrap()
    });
    let signals = |pod: &PodSeen| {
        ["c", "plain"].map(|name| pod.container(name)["stopSignal"].as_str().unwrap_or_default().to_owned())
    };
    world.wait("asks", "its signals", |pod| signals(pod) == ["SIGUSR1", "SIGTERM"]).unwrap();
    world.take_away("asks").unwrap();
    let [asks, plain] = logs.map(|log| std::io::read_to_string(log).unwrap());
    assert_eq!(asks, "ready\ngot usr1\n");
    assert_eq!(plain, "ready\ngot term\n", "without a wish it is the runtime's SIGTERM");
    world.gone("asks").unwrap();
}

#[test]
fn fields_whose_gate_is_off_are_ignored_with_a_warning() {
    let gates = "{featureGates: {ContainerRestartRules: false, RestartAllContainersOnContainerExits: false, PodLevelResources: false, \
                 InPlacePodLevelResourcesVerticalScaling: false, PodLevelResourcesFixKubeletQOSClass: false}}";
    let world = World::with_config(Flavor::Debian16, gates).unwrap();
    let rules = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }],
        "lifecycle": { "stopSignal": "SIGUSR1" },
    });
    world
        .put(
            "pod",
            json!({
                "os": { "name": "linux" },
                "restartPolicy": "Never",
                "resources": { "limits": { "cpu": "1", "memory": "64Mi" } },
                "containers": [with(sh("c", "exit 42"), rules), idle("other")],
                "volumes": [{ "name": "v", "emptyDir": { "mode": 0o700 } }],
            }),
        )
        .unwrap();
    let seen = world
        .wait("pod", "its container's end", |pod| pod.exit_code("c") == Some(42) && pod.runs("other"))
        .unwrap();
    assert_eq!(seen.restarts("c"), 0);
    assert_eq!(seen.text("/status/qosClass"), "BestEffort");
    let container = &seen.0["spec"]["containers"][0];
    assert!(
        container["restartPolicyRules"].is_null() && container["lifecycle"]["stopSignal"].is_null(),
        "{container}"
    );
    let text = wait_until(SOON, "a verdict", || {
        let verdicts =
            mainstay_e2e::seen::verdicts(&world.node, "pod.json").map_err(|error| error.to_string())?;
        verdicts.first().map(|verdict| verdict["warnings"].to_string()).ok_or_else(|| "none".to_owned())
    })
    .unwrap();
    for (field, gate) in [
        ("spec.resources", "PodLevelResources"),
        ("spec.volumes[0].emptyDir.mode", "EmptyDirVolumeMode"),
        ("spec.containers[0].restartPolicy", "ContainerRestartRules"),
        ("spec.containers[0].restartPolicyRules", "ContainerRestartRules"),
        ("spec.containers[0].lifecycle.stopSignal", "ContainerStopSignals"),
    ] {
        assert!(
            text.contains(&format!("{field}: ignored, because the feature gate {gate} is off")),
            "{text}"
        );
    }
}
