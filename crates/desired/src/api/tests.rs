use serde_json::{Value, json};

use super::*;

fn pod(version: &str, labels: Value, status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "p", "namespace": "default", "uid": "u1", "resourceVersion": version, "labels": labels,
            "managedFields": [{ "manager": "somebody" }],
        },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
        "status": status,
    }))
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_pod_changes_only_when_something_of_it_does() {
    let first = accepted(pod("1", json!({}), json!({ "phase": "Pending" })), None, at(1)).unwrap();
    assert_eq!(first.pod.annotation(annotations::CONFIG_SOURCE), Some("api"));
    assert_eq!(first.pod.metadata.managed_fields, None);
    assert_eq!(first.pod.status, None);
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let ours = pod("2", json!({}), json!({ "phase": "Running", "conditions": ready }));
    assert!(accepted(ours, Some(&first), at(2)).is_none(), "our own status is no news to us");
    let gate = json!([{ "type": "gate", "status": "True" }]);
    let gated = pod("3", json!({}), json!({ "phase": "Running", "conditions": gate }));
    let gated = accepted(gated, Some(&first), at(2)).unwrap();
    assert!(Arc::ptr_eq(&gated.pod, &first.pod));
    assert_eq!(gated.remote.as_ref().unwrap().conditions[0].type_, "gate");
    let labelled = accepted(pod("4", json!({ "a": "b" }), json!({})), Some(&gated), at(2)).unwrap();
    assert_eq!(labelled.pod.metadata.resource_version.as_deref(), Some("4"));
    assert_eq!(
        labelled.pod.annotation(annotations::CONFIG_SEEN),
        first.pod.annotation(annotations::CONFIG_SEEN),
        "first seen once"
    );
}

#[test]
fn a_pod_that_was_over_before_we_saw_it_stays_over() {
    let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "no room", "startTime": "2026-01-01T00:00:00Z" });
    let over = accepted(pod("1", json!({}), status), None, at(1)).unwrap();
    let remote = over.remote.unwrap();
    assert_eq!(remote.finished, Some(TerminalPhase::Failed));
    assert_eq!(remote.failure.as_ref().unwrap().reason, "Evicted");
    assert!(remote.start_time.is_some());
    // One that is over later, by whose word ever, is over.
    let mine = accepted(pod("1", json!({}), json!({})), None, at(1)).unwrap();
    let told = accepted(pod("2", json!({}), json!({ "phase": "Failed" })), Some(&mine), at(2)).unwrap();
    assert_eq!(told.remote.as_ref().unwrap().finished, Some(TerminalPhase::Failed));
    let again = accepted(pod("3", json!({}), json!({ "phase": "Running" })), Some(&told), at(3));
    assert!(again.is_none(), "for good");
}
