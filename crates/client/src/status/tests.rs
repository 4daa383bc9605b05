use serde_json::{Value, json};

use super::*;

/// One row: containers, init containers, phase, what else the pod has, and the three columns.
struct Row {
    name: &'static str,
    spec: Value,
    status: Value,
    metadata: Value,
    expected: (&'static str, &'static str, &'static str),
}

fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn ended(reason: &str, code: i32, signal: i32) -> Value {
    json!({"terminated": {"reason": reason, "exitCode": code, "signal": signal}})
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
}

fn container(name: &str, state: Value, ready: bool, restarts: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "state": state, "ready": ready, "restartCount": restarts})
}

fn started(name: &str, ready: bool, restarts: i32) -> Value {
    let mut status = container(name, running(), ready, restarts);
    status["started"] = json!(true);
    status
}

fn ended_before(mut status: Value, at: &str) -> Value {
    status["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": at}});
    status
}

fn spec(init: &[&str], containers: &[&str]) -> Value {
    let of = |names: &[&str]| -> Vec<Value> {
        names
            .iter()
            .map(|name| match name.strip_prefix('*') {
                Some(name) => json!({"name": name, "restartPolicy": "Always"}),
                None => json!({"name": name}),
            })
            .collect()
    };
    json!({"initContainers": of(init), "containers": of(containers)})
}

#[test]
fn columns_are_those_of_kubectl() {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let rows = vec![
        Row {
            name: "running",
            spec: spec(&[], &["a", "b"]),
            status: json!({"phase": "Running", "containerStatuses": [
                container("a", running(), true, 0), container("b", running(), false, 0)]}),
            metadata: json!({}),
            expected: ("1/2", "Running", "0"),
        },
        Row {
            name: "nothing known yet",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Pending"}),
            metadata: json!({}),
            expected: ("0/1", "Pending", "0"),
        },
        Row {
            name: "creating",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Pending", "containerStatuses": [container("a", waiting("ContainerCreating"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "ContainerCreating", "0"),
        },
        Row {
            name: "image cannot be pulled",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Pending", "containerStatuses": [container("a", waiting("ImagePullBackOff"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "ImagePullBackOff", "0"),
        },
        Row {
            name: "crash loop, with the time of the last restart",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Running", "containerStatuses": [
                ended_before(container("a", waiting("CrashLoopBackOff"), false, 3), "2026-01-01T00:00:00Z")]}),
            metadata: json!({}),
            expected: ("0/1", "CrashLoopBackOff", "3 (5m ago)"),
        },
        Row {
            name: "the first container has the last word",
            spec: spec(&[], &["a", "b"]),
            status: json!({"phase": "Running", "containerStatuses": [
                container("a", waiting("CrashLoopBackOff"), false, 0), container("b", ended("Error", 1, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/2", "CrashLoopBackOff", "0"),
        },
        Row {
            name: "completed",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Succeeded", "containerStatuses": [container("a", ended("Completed", 0, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Completed", "0"),
        },
        Row {
            name: "one completed, one running, ready",
            spec: spec(&[], &["a", "b"]),
            status: json!({"phase": "Running", "conditions": ready, "containerStatuses": [
                container("a", ended("Completed", 0, 0), false, 0), container("b", running(), true, 0)]}),
            metadata: json!({}),
            expected: ("1/2", "Running", "0"),
        },
        Row {
            name: "one completed, one running, not ready",
            spec: spec(&[], &["a", "b"]),
            status: json!({"phase": "Running", "containerStatuses": [
                container("a", ended("Completed", 0, 0), false, 0), container("b", running(), true, 0)]}),
            metadata: json!({}),
            expected: ("1/2", "NotReady", "0"),
        },
        Row {
            name: "failed",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Failed", "containerStatuses": [container("a", ended("Error", 1, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Error", "0"),
        },
        Row {
            name: "killed for memory",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Running", "containerStatuses": [container("a", ended("OOMKilled", 137, 0), false, 1)]}),
            metadata: json!({}),
            expected: ("0/1", "OOMKilled", "1"),
        },
        Row {
            name: "ended without a reason",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Failed", "containerStatuses": [container("a", ended("", 3, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "ExitCode:3", "0"),
        },
        Row {
            name: "ended by a signal",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Failed", "containerStatuses": [container("a", ended("", 137, 9), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Signal:9", "0"),
        },
        Row {
            name: "evicted",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Failed", "reason": "Evicted"}),
            metadata: json!({}),
            expected: ("0/1", "Evicted", "0"),
        },
        Row {
            name: "evicted while it ran",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [container("a", ended("Error", 137, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Evicted", "0"),
        },
        Row {
            name: "gated",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            metadata: json!({}),
            expected: ("0/1", "SchedulingGated", "0"),
        },
        Row {
            name: "first init container runs",
            spec: spec(&["i", "j"], &["a"]),
            status: json!({"phase": "Pending",
                "initContainerStatuses": [container("i", running(), false, 0), container("j", waiting("PodInitializing"), false, 0)],
                "containerStatuses": [container("a", waiting("PodInitializing"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:0/2", "0"),
        },
        Row {
            name: "second init container is to come",
            spec: spec(&["i", "j"], &["a"]),
            status: json!({"phase": "Pending",
                "initContainerStatuses": [container("i", ended("Completed", 0, 0), true, 0), container("j", waiting("PodInitializing"), false, 0)],
                "containerStatuses": [container("a", waiting("PodInitializing"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:1/2", "0"),
        },
        Row {
            name: "init container crashes",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Pending",
                "initContainerStatuses": [ended_before(container("i", waiting("CrashLoopBackOff"), false, 4), "2026-01-01T00:00:00Z")],
                "containerStatuses": [container("a", waiting("PodInitializing"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:CrashLoopBackOff", "4 (5m ago)"),
        },
        Row {
            name: "init container failed",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Failed", "initContainerStatuses": [container("i", ended("Error", 1, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:Error", "0"),
        },
        Row {
            name: "init container failed without a reason",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Failed", "initContainerStatuses": [container("i", ended("", 2, 0), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:ExitCode:2", "0"),
        },
        Row {
            name: "init container was killed",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Failed", "initContainerStatuses": [container("i", ended("", 137, 9), false, 0)]}),
            metadata: json!({}),
            expected: ("0/1", "Init:Signal:9", "0"),
        },
        Row {
            name: "initialized: restarts of init containers do not count",
            spec: spec(&["i"], &["a"]),
            status: json!({"phase": "Running",
                "initContainerStatuses": [ended_before(container("i", ended("Completed", 0, 0), true, 7), "2026-01-01T00:00:00Z")],
                "containerStatuses": [container("a", running(), true, 2)]}),
            metadata: json!({}),
            expected: ("1/1", "Running", "2"),
        },
        Row {
            name: "sidecar counts as a container, its restarts too",
            spec: spec(&["i", "*s"], &["a"]),
            status: json!({"phase": "Running",
                "initContainerStatuses": [container("i", ended("Completed", 0, 0), true, 0), started("s", true, 3)],
                "containerStatuses": [container("a", running(), true, 1)]}),
            metadata: json!({}),
            expected: ("2/2", "Running", "4"),
        },
        Row {
            name: "sidecar that has not started",
            spec: spec(&["*s"], &["a"]),
            status: json!({"phase": "Pending",
                "initContainerStatuses": [container("s", running(), false, 0)],
                "containerStatuses": [container("a", waiting("PodInitializing"), false, 0)]}),
            metadata: json!({}),
            expected: ("0/2", "Init:0/1", "0"),
        },
        Row {
            name: "sidecar crashes after initialization",
            spec: spec(&["*s"], &["a"]),
            status: json!({"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}],
                "initContainerStatuses": [container("s", waiting("CrashLoopBackOff"), false, 2)],
                "containerStatuses": [container("a", running(), true, 0)]}),
            metadata: json!({}),
            expected: ("1/2", "Init:CrashLoopBackOff", "2"),
        },
        Row {
            name: "being deleted",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Running", "containerStatuses": [container("a", running(), true, 0)]}),
            metadata: json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            expected: ("1/1", "Terminating", "0"),
        },
        Row {
            name: "deleted after its end",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Succeeded", "containerStatuses": [container("a", ended("Completed", 0, 0), false, 0)]}),
            metadata: json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            expected: ("0/1", "Completed", "0"),
        },
        Row {
            name: "deleted on a lost node",
            spec: spec(&[], &["a"]),
            status: json!({"phase": "Running", "reason": "NodeLost"}),
            metadata: json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            expected: ("0/1", "Unknown", "0"),
        },
    ];
    let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
    for row in rows {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": row.metadata, "spec": row.spec, "status": row.status}))
                .unwrap();
        let found = summary(&pod);
        let columns = (found.ready(), found.status.clone(), found.restarts(now));
        let expected = (row.expected.0.to_owned(), row.expected.1.to_owned(), row.expected.2.to_owned());
        assert_eq!(columns, expected, "{}", row.name);
    }
}

#[test]
fn a_pod_without_status_has_a_row() {
    let found = summary(&Pod::default());
    assert_eq!((found.ready().as_str(), found.status.as_str()), ("0/0", ""));
}
