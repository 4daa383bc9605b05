//! `/pods?watch=true` and the watch of events.

use super::*;
use mainstay_types::{Event, EventKind, EventTarget};

#[tokio::test]
async fn a_watch_tells_all_pods_then_what_changes() {
    let fixture = Fixture::start();
    let (web, db) = (simple_pod("web", "1"), simple_pod("db", "1"));
    fixture.publish(snapshot(1, vec![web.clone(), db.clone()], vec![]));
    let mut stream = fixture.open("/pods?watch=true").await;
    assert!(stream.head.contains("200 OK"), "{}", stream.head);
    assert!(stream.head.contains("application/json"), "{}", stream.head);
    for name in ["db", "web"] {
        let (kind, pod) = stream.event().await;
        assert_eq!((kind.as_str(), pod["metadata"]["name"].as_str()), ("ADDED", Some(name)));
        assert_eq!((pod["kind"].as_str(), pod["apiVersion"].as_str()), (Some("Pod"), Some("v1")));
    }
    let (kind, object) = stream.event().await;
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(object["metadata"]["resourceVersion"], "1", "the process of the fixture began at second 0");
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");

    // Only what changed: db keeps its view, web gets a new one, cache comes, and a new view with equal bytes is nothing.
    let same_bytes = simple_pod("db", "1");
    fixture.publish(snapshot(2, vec![same_bytes, simple_pod("web", "2"), simple_pod("cache", "1")], vec![]));
    let (kind, pod) = stream.event().await;
    assert_eq!((kind.as_str(), pod["metadata"]["name"].as_str()), ("ADDED", Some("cache")));
    let (kind, pod) = stream.event().await;
    assert_eq!((kind.as_str(), pod["status"]["message"].as_str()), ("MODIFIED", Some("2")));
    fixture.publish(snapshot(3, vec![db], vec![]));
    let mut gone: Vec<String> = Vec::new();
    for _ in 0..2 {
        let (kind, pod) = stream.event().await;
        assert_eq!(kind, "DELETED");
        gone.push(pod["metadata"]["name"].as_str().unwrap().into());
    }
    gone.sort();
    assert_eq!(gone, ["cache", "web"]);

    // Shutdown ends the stream properly: a last chunk, then the end.
    let (drained, end) = tokio::join!(fixture.tasks.drain(PATIENCE), stream.chunk());
    assert!(drained.aborted.is_empty(), "{drained:?}");
    assert_eq!(end, None);
    assert!(!fixture.socket.exists(), "the socket is removed at the end");
}

#[tokio::test]
async fn a_slow_watcher_skips_to_the_newest_state() {
    let fixture = Fixture::start();
    // Large enough that the socket's buffers and ours are full long before the client has all of it.
    let large = |generation: u64| {
        let pods =
            (0..40).map(|i| simple_pod(&format!("p{i:02}"), &format!("{generation}-{}", "x".repeat(30_000))));
        snapshot(generation, pods.collect(), vec![])
    };
    fixture.publish(large(0));
    let mut stream = fixture.open("/pods?watch=1").await;
    for generation in 1..=20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        fixture.publish(large(generation));
    }
    let mut told = 0;
    let mut newest: HashMap<String, String> = HashMap::new();
    while newest.len() < 40 || newest.values().any(|generation| generation != "20") {
        let (kind, pod) = stream.event().await;
        if kind == "BOOKMARK" {
            continue;
        }
        told += 1;
        let message = pod["status"]["message"].as_str().unwrap();
        let generation = message.split('-').next().unwrap().to_owned();
        newest.insert(pod["metadata"]["name"].as_str().unwrap().to_owned(), generation);
    }
    assert!(told < 40 * 10, "20 generations of 40 pods, and {told} events: the stream queued them");
}

#[tokio::test]
async fn a_watcher_that_goes_away_is_forgotten() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![simple_pod("web", "1")], vec![]));
    let mut stream = fixture.open("/pods?watch=true").await;
    stream.event().await;
    drop(stream);
    let deadline = Instant::now() + PATIENCE;
    while fixture.tasks.running_names().iter().any(|name| name == "http connection") {
        assert!(Instant::now() < deadline, "the connection's task goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn events_are_watched_from_a_number_on() {
    let fixture = Fixture::start();
    let event = |pod: &str, message: &str| Event {
        target: EventTarget::Pod {
            uid: "u".into(),
            full_name: FullName::new("default", pod),
            field_path: Some("spec.containers{c}".into()),
        },
        kind: EventKind::Warning,
        reason: "BackOff".into(),
        message: message.into(),
        time: Timestamp::from_second(1_700_000_000).unwrap(),
    };
    assert!(fixture.events.send(event("web", "first")));
    let mut stream = fixture.open("/mainstay/v1/events?watch=true&pod=default/web").await;
    let mut kinds = Vec::new();
    // The store may or may not have had the event when the watch began.
    while !kinds.contains(&"ADDED".to_owned()) || !kinds.contains(&"BOOKMARK".to_owned()) {
        kinds.push(stream.event().await.0);
    }
    assert!(fixture.events.send(event("other", "not asked for")));
    assert!(fixture.events.send(event("web", "first")));
    let (kind, record) = stream.event().await;
    assert_eq!((kind.as_str(), record["count"].as_u64()), ("MODIFIED", Some(2)));
    assert_eq!((record["sequence"].as_u64(), record["type"].as_str()), (Some(3), Some("Warning")));
    assert_eq!(record["fieldPath"], "spec.containers{c}");
    let mut late = fixture.open("/mainstay/v1/events?watch=true&after=2").await;
    assert_eq!(late.event().await.1["sequence"], 3);
    assert_eq!(late.event().await.0, "BOOKMARK");
}

/// A pod with a label.
fn labelled(name: &str, app: &str, message: &str) -> Arc<PodView> {
    view(
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": app}},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"message": message},
        }),
        None,
    )
}

#[tokio::test]
async fn a_resumed_watch_tells_what_happened_to_the_selected_pods() {
    let fixture = Fixture::start();
    let before = vec![
        labelled("leaves", "a", ""),
        labelled("goes", "a", ""),
        labelled("stays", "a", ""),
        labelled("changes", "a", "1"),
        labelled("enters", "b", ""),
        labelled("other", "b", ""),
    ];
    fixture.publish(snapshot(7, before, vec![]));
    let mut stream = fixture.open("/pods?watch=1&labelSelector=app%3Da").await;
    let mut version = None;
    while version.is_none() {
        let (kind, object) = stream.event().await;
        if kind == "BOOKMARK" {
            version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        }
    }
    drop(stream);
    let version = version.unwrap();
    let after = vec![
        labelled("leaves", "b", ""),
        labelled("stays", "a", ""),
        labelled("changes", "a", "2"),
        labelled("enters", "a", ""),
    ];
    fixture.publish(snapshot(8, after, vec![]));
    let mut stream =
        fixture.open(&format!("/pods?watch=1&labelSelector=app%3Da&resourceVersion={version}")).await;
    let mut told = Vec::new();
    loop {
        let (kind, object) = stream.event().await;
        if kind == "BOOKMARK" {
            break;
        }
        told.push(format!("{kind} {}", object["metadata"]["name"].as_str().unwrap()));
    }
    told.sort();
    assert_eq!(told, ["ADDED enters", "DELETED goes", "DELETED leaves", "MODIFIED changes"]);

    // Who watched these cannot go on with others: what was told of them then is not known.
    for selector in ["", "&labelSelector=app%3Db"] {
        let reply = fixture.get(&format!("/pods?watch=1{selector}&resourceVersion={version}")).await;
        assert_eq!(reply.status, 410, "{selector}: {reply:?}");
        assert!(reply.body.contains("watch again without resourceVersion"), "{reply:?}");
    }
}
