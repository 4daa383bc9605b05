//! A pod that writes more to the node's disk than it may is failed, from files too.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::time::Duration;

use mainstay_e2e::{PodSeen, World, idle, seen::counted, sh, with};
use mainstay_testkit::Flavor;
use serde_json::{Value, json};

/// The node looks every ten seconds, and the runtime measures layers every ten as well.
const PATIENCE: Duration = Duration::from_secs(180);

const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn limited(container: Value, limit: &str) -> Value {
    with(container, json!({ "resources": { "limits": { "ephemeral-storage": limit } } }))
}

fn evicted(world: &World, name: &str, message: &str) -> PodSeen {
    let is_evicted = |pod: &PodSeen| {
        let said = (pod.phase(), pod.text("/status/reason"), pod.text("/status/message"));
        said == ("Failed", "Evicted", message)
    };
    world.wait_long(PATIENCE, name, &format!("evicted: {message}"), is_evicted).unwrap()
}

/// How many pods `/metrics` says were evicted: for a volume, a container, the sum.
fn evictions(world: &World) -> [f64; 3] {
    ["emptydirfs.limit", "ephemeralcontainerfs.limit", "ephemeralpodfs.limit"].map(|signal| {
        let series = format!("kubelet_evictions{{eviction_signal=\"{signal}\"}}");
        counted(&world.node, &series).unwrap().unwrap()
    })
}

#[test]
fn layers_logs_and_their_sum() {
    for flavor in Flavor::ALL {
        let mut world = World::start(flavor).unwrap();
        let layer = format!("dd if=/dev/zero of=/large bs=1M count=8; {WAIT}");
        let log = format!("head -c 3000000 /dev/zero | tr '\\0' '\\n'; {WAIT}");
        world
            .put(
                "layer",
                json!({ "containers": [limited(sh("a", &layer), "4Mi"), limited(idle("b"), "1Gi")] }),
            )
            .unwrap();
        world
            .put("log", json!({ "containers": [limited(sh("a", &log), "4Mi"), limited(idle("b"), "1Gi")] }))
            .unwrap();
        world.put("sum", json!({ "containers": [sh("a", &layer), limited(idle("b"), "6Mi")] })).unwrap();
        world.put("within", json!({ "containers": [limited(sh("a", &layer), "64Mi")] })).unwrap();
        for (name, message) in [
            ("layer", "Container a exceeded its local ephemeral storage limit \"4Mi\". "),
            ("log", "Container a exceeded its local ephemeral storage limit \"4Mi\". "),
            ("sum", "Pod ephemeral local storage usage exceeds the total limit of containers 6Mi. "),
        ] {
            let pod = evicted(&world, name, message);
            assert!(pod.condition("DisruptionTarget").is_null());
            let event = world.event(name, "Evicted", message).unwrap();
            assert_eq!((event.kind.as_str(), event.count), ("Warning", 1), "{name}");
            let stopped = world.wait(name, "stopped", |pod| !pod.runs("a") && !pod.runs("b")).unwrap();
            assert_eq!(stopped.phase(), "Failed");
        }
        let within = world.running("within").unwrap();
        assert_eq!((within.restarts("a"), within.text("/status/reason")), (0, ""));
        assert_eq!(evictions(&world), [0.0, 2.0, 1.0], "each is counted once");

        // A restart of the agent forgets nothing and starts nothing again.
        let before = world.wait("layer", "Failed", |pod| pod.phase() == "Failed").unwrap();
        mainstay_e2e::seen::persisted(&world.node).unwrap();
        world.node.kill9();
        world.node.start_again().unwrap();
        let after = evicted(&world, "layer", before.text("/status/message"));
        assert_eq!((after.id("a"), after.restarts("a")), (before.id("a"), 0));
        assert_eq!(world.containers_of(after.uid()).unwrap().len(), 2);
        assert_eq!(world.running("within").unwrap().id("a"), within.id("a"));
        assert_eq!(evictions(&world), [0.0; 3], "of an earlier life");
    }
}

#[test]
fn an_empty_dir_over_its_size_limit_fails_its_pod() {
    let world = World::start(Flavor::Debian16).unwrap();
    let writer = |mib: u32| {
        let script = format!("dd if=/dev/zero of=/data/large bs=1M count={mib}; {WAIT}");
        with(sh("a", &script), json!({ "volumeMounts": [{ "name": "v", "mountPath": "/data" }] }))
    };
    let spec = |mib| {
        json!({
            "containers": [writer(mib)],
            "volumes": [{ "name": "v", "emptyDir": { "sizeLimit": "4Mi" } }],
        })
    };
    world.put("over", spec(8)).unwrap();
    world.put("within", spec(2)).unwrap();
    let message = "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". ";
    evicted(&world, "over", message);
    assert_eq!(world.event("over", "Evicted", message).unwrap().kind, "Warning");
    assert_eq!(world.running("within").unwrap().text("/status/reason"), "");
    assert_eq!(evictions(&world), [1.0, 0.0, 0.0]);
}
