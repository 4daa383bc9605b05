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

/// One who listens to nobody, and what is told to those who speak to the API server.
fn listener(dir: &Path) -> (Listener, watch::Receiver<ApiPods>) {
    let (sender, receiver) = watch::channel(ApiPods::default());
    let (events, _) = EventSink::bounded(16);
    let news = Arc::new(Notify::new());
    let objects = ApiObjects::new(Arc::clone(&news), None, Objects::default(), events.clone());
    let source = ApiSource { book: Arc::default(), news, objects };
    let open = |kind: &str| dir.join(kind);
    let files = Files {
        pods: Arc::new(Deferred::new(
            Store::open(open("pods"), 0o700, "api-pod", 1, Durability::ProcessDeath).unwrap(),
        )),
        node: Arc::new(Deferred::new(
            Store::open(open("node"), 0o700, "api-node", 1, Durability::ProcessDeath).unwrap(),
        )),
        versions: Arc::new(Deferred::new(
            Store::open(open("version"), 0o700, "api-version", 1, Durability::ProcessDeath).unwrap(),
        )),
    };
    (Listener { source, sender, files, node_name: "n".into(), events }, receiver)
}

fn list<T>(version: u64, items: Vec<T>) -> Change<T> {
    Change::Listed(Listing { version: version.to_string(), items, unreadable: Vec::new() })
}

fn node(version: u64, rack: &str) -> Node {
    serde_json::from_value(
        json!({ "metadata": { "name": "n", "labels": { "rack": rack }, "resourceVersion": version.to_string() } }),
    )
    .unwrap()
}

/// What the API server's store was before it was put back is not what it answered since, whether it has as many versions again or not.
#[test]
fn a_store_that_was_put_back_is_noticed() {
    let of = |version: u64| pod(&version.to_string(), json!({}), json!({}));
    let rows: [(&str, Vec<Change<Pod>>, u64); 5] = [
        ("as ever", vec![list(10, vec![of(5)]), Change::Applied(of(12)), list(12, vec![of(12)])], 0),
        ("a list that is older than the last", vec![list(10, vec![of(5)]), list(9, vec![of(5)])], 1),
        (
            "older than what was watched",
            vec![list(10, vec![of(5)]), Change::Applied(of(12)), list(11, vec![of(5)])],
            1,
        ),
        ("caught up, and the pod is what it was", vec![list(10, vec![of(8)]), list(20, vec![of(5)])], 1),
        (
            "once for each time",
            vec![list(10, vec![of(8)]), list(7, vec![of(5)]), list(8, vec![of(5)]), list(7, vec![])],
            2,
        ),
    ];
    for (name, changes, rewinds) in rows {
        let dir = tempfile::tempdir().unwrap();
        let (listener, told) = listener(dir.path());
        changes.into_iter().for_each(|change| listener.take_pods(change));
        assert_eq!(told.borrow().rewinds, rewinds, "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (listener, told) = listener(dir.path());
    listener.take_node(list(10, vec![node(4, "a")]));
    listener.take_node(Change::Applied(node(11, "b")));
    assert_eq!(told.borrow().rewinds, 0);
    listener.take_node(list(7, vec![node(4, "a")]));
    assert_eq!(told.borrow().rewinds, 1, "of the node's list as well");
    listener.take_pods(list(7, vec![]));
    assert_eq!(told.borrow().rewinds, 1, "and it stays told");
}

/// A node that was looked up is not what it was again when the watch comes to it.
#[test]
fn what_was_on_its_way_is_older_than_what_was_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, told) = listener(dir.path());
    let rack =
        || listener.source.book().node.as_ref().unwrap().metadata.labels.clone().unwrap()["rack"].clone();
    assert!(listener.take_node(list(10, vec![node(4, "a")])));
    listener.source.book().node_looked_up = 14;
    listener.keep_node(node(14, "d"));
    listener.take_node(Change::Applied(node(12, "b")));
    listener.take_node(Change::Applied(node(13, "c")));
    assert_eq!(rack(), "d");
    listener.take_node(Change::Applied(node(15, "e")));
    assert_eq!(rack(), "e");
    assert!(listener.take_node(list(15, vec![node(15, "e")])));
    assert_eq!((rack().as_str(), told.borrow().rewinds), ("e", 0));
    assert!(listener.take_node(list(9, vec![node(4, "a")])), "the store was put back: that counts");
    assert_eq!((rack().as_str(), told.borrow().rewinds), ("a", 1));
}
