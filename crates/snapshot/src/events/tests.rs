use std::time::Duration;

use jiff::Timestamp;
use mainstay_types::{EventKind, EventSink, PodUid};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn pod_event(pod: &str, reason: &'static str, message: &str, second: i64) -> Event {
    Event {
        target: EventTarget::Pod {
            uid: PodUid::from(format!("uid-{pod}")),
            full_name: FullName::new("default", pod),
            field_path: Some("spec.containers{c}".into()),
        },
        kind: EventKind::Warning,
        reason: reason.into(),
        message: message.into(),
        time: at(second),
    }
}

fn store(max_records: usize, max_per_object: usize) -> Store {
    let config = EventStoreConfig { node_name: "node1".into(), max_records, max_per_object, file: None };
    Store { config, records: VecDeque::new(), newest: 0 }
}

fn lines(store: &Store) -> Vec<String> {
    store
        .records
        .iter()
        .map(|r| {
            format!("{} {}/{} {} {} x{}", r.sequence, r.object_kind, r.name, r.reason, r.message, r.count)
        })
        .collect()
}

#[test]
fn equal_events_are_counted_and_move_to_the_end() {
    let mut store = store(10, 10);
    store.add(pod_event("web", "BackOff", "restarting", 1));
    store.add(pod_event("db", "Started", "started", 2));
    store.add(pod_event("web", "BackOff", "restarting", 3));
    store.add(pod_event("web", "BackOff", "restarting, differently", 4));
    assert_eq!(
        lines(&store),
        [
            "2 Pod/db Started started x1",
            "3 Pod/web BackOff restarting x2",
            "4 Pod/web BackOff restarting, differently x1"
        ]
    );
    assert_eq!(store.records[1].first_timestamp, at(1));
    assert_eq!(store.records[1].last_timestamp, at(3));
}

#[test]
fn attempts_that_differ_by_the_id_of_their_command_are_counted() {
    let message = |id: char, why: &str| {
        format!("Liveness probe errored: failed to start exec \"{}\": {why}", String::from(id).repeat(64))
    };
    let mut store = store(10, 10);
    store.add(pod_event("a", "Unhealthy", &message('a', "no such file"), 1));
    store.add(pod_event("a", "Unhealthy", &message('b', "no such file"), 2));
    store.add(pod_event("a", "Unhealthy", &message('c', "denied"), 3));
    store.add(pod_event("a", "Unhealthy", "failed to start exec \"abc\"", 4));
    store.add(pod_event("a", "Unhealthy", "failed to start exec \"abd\"", 5));
    let counts: Vec<_> = store.records.iter().map(|record| (record.sequence, record.count)).collect();
    assert_eq!(counts, [(2, 2), (3, 1), (4, 1), (5, 1)]);
    assert_eq!(store.records.front().unwrap().message, message('b', "no such file"), "the newest words");
}

#[test]
fn an_event_is_equal_only_if_all_of_it_is() {
    let base = pod_event("web", "Started", "m", 0);
    let other_kind = Event { kind: EventKind::Normal, ..base.clone() };
    let other_uid = Event {
        target: EventTarget::Pod {
            uid: "later".into(),
            full_name: FullName::new("default", "web"),
            field_path: Some("spec.containers{c}".into()),
        },
        ..base.clone()
    };
    let other_path = Event {
        target: EventTarget::Pod {
            uid: "uid-web".into(),
            full_name: FullName::new("default", "web"),
            field_path: None,
        },
        ..base.clone()
    };
    let node = Event { target: EventTarget::Node, ..base.clone() };
    let mut store = store(10, 10);
    for event in [base.clone(), other_kind, other_uid, other_path, node, base] {
        store.add(event);
    }
    assert_eq!(store.records.iter().map(|r| r.count).collect::<Vec<_>>(), [1, 1, 1, 1, 2]);
    let node = store.records.iter().find(|r| r.object_kind == "Node").unwrap();
    assert_eq!((node.name.as_str(), node.namespace.as_str(), node.uid.as_str()), ("node1", "", ""));
}

#[test]
fn bounds_hold_for_one_object_and_for_all() {
    let mut store = store(5, 3);
    for i in 0..10 {
        store.add(pod_event("noisy", "Failed", &format!("m{i}"), i));
    }
    assert_eq!(store.records.len(), 3);
    assert_eq!(store.records[0].message, "m7");
    for i in 0..4 {
        store.add(pod_event(&format!("p{i}"), "Started", "m", i));
    }
    assert_eq!(store.records.len(), 5);
    assert_eq!(lines(&store)[0], "10 Pod/noisy Failed m9 x1");
    // Counting an equal one makes room for itself: nothing else is dropped.
    store.add(pod_event("noisy", "Failed", "m9", 20));
    assert_eq!(store.records.len(), 5);
}

#[tokio::test]
async fn readers_see_what_is_sent_and_wait_for_a_number() {
    let tasks = TaskGroup::new();
    let (sink, events) = EventSink::bounded(16);
    let reader = start_events(EventStoreConfig::new("node1".into()), events, &tasks);
    assert_eq!(reader.newest(), 0);
    assert!(reader.since(0, &EventFilter::default()).is_empty());
    assert!(sink.send(pod_event("web", "Pulled", "m", 1)));
    assert_eq!(reader.wait_past(0).await, 1);
    assert!(sink.send(pod_event("db", "Pulled", "m", 1)));
    assert_eq!(reader.wait_past(1).await, 2);
    assert_eq!(reader.since(0, &EventFilter::default()).len(), 2);
    assert_eq!(reader.since(1, &EventFilter::default())[0].name, "db");
    let only_web = EventFilter { pod: Some(FullName::new("default", "web")) };
    assert_eq!(reader.since(0, &only_web).len(), 1);
    assert!(reader.since(1, &only_web).is_empty());
    assert!(reader.since(99, &EventFilter::default()).is_empty());
    let other_namespace = EventFilter { pod: Some(FullName::new("other", "web")) };
    assert!(reader.since(0, &other_namespace).is_empty());

    let waits = tokio::time::timeout(Duration::from_millis(20), reader.wait_past(2)).await;
    assert!(waits.is_err(), "nothing came after 2");
    // The store outlives its senders, so that a late look still finds what happened.
    drop(sink);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(reader.since(0, &EventFilter::default()).len(), 2);
    assert!(tasks.drain(Duration::from_secs(60)).await.aborted.is_empty());
}

#[tokio::test]
async fn events_survive_a_restart_and_a_damaged_file_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events.json");
    let config = || EventStoreConfig { file: Some(file.clone()), ..EventStoreConfig::new("node1".into()) };
    let all = |reader: &EventReader| {
        let records = reader.since(0, &EventFilter::default());
        records.iter().map(|r| (r.sequence, r.reason.clone(), r.count)).collect::<Vec<_>>()
    };

    let (sink, events) = EventSink::bounded(10);
    let tasks = TaskGroup::new();
    let reader = start_events(config(), events, &tasks);
    sink.send(pod_event("a", "Started", "one", 1));
    sink.send(pod_event("a", "BackOff", "two", 2));
    reader.wait_past(1).await;
    // Told just before the end, and kept all the same.
    sink.send(pod_event("a", "BackOff", "two", 3));
    tasks.drain(Duration::from_secs(60)).await;

    let (sink, events) = EventSink::bounded(10);
    let tasks = TaskGroup::new();
    let reader = start_events(config(), events, &tasks);
    assert_eq!(all(&reader), [(1, "Started".to_owned(), 1), (3, "BackOff".to_owned(), 2)]);
    sink.send(pod_event("a", "BackOff", "two", 9));
    reader.wait_past(3).await;
    assert_eq!(
        all(&reader),
        [(1, "Started".to_owned(), 1), (4, "BackOff".to_owned(), 3)],
        "it goes on counting"
    );
    tasks.drain(Duration::from_secs(60)).await;

    std::fs::write(&file, "{ not what was written").unwrap();
    let tasks = TaskGroup::new();
    let reader = start_events(config(), EventSink::bounded(1).1, &tasks);
    assert_eq!(all(&reader), [(1, "StateFileSetAside".to_owned(), 1)]);
    tasks.drain(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn after_a_kill_no_number_is_given_twice() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mainstay/events.json");
    let config = || EventStoreConfig { file: Some(file.clone()), ..EventStoreConfig::new("node1".into()) };
    let (sink, events) = EventSink::bounded(10);
    let tasks = TaskGroup::new();
    let reader = start_events(config(), events, &tasks);
    sink.send(pod_event("a", "Started", "one", 1));
    reader.wait_past(0).await;
    let start = std::time::Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "it was never written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // As if it were killed: another life reads what the first has written so far.
    let copy = directory.path().join("copy.json");
    std::fs::copy(&file, &copy).unwrap();
    tasks.drain(Duration::from_secs(60)).await;
    std::fs::rename(&copy, &file).unwrap();
    let (sink, events) = EventSink::bounded(10);
    let tasks = TaskGroup::new();
    let reader = start_events(config(), events, &tasks);
    let newest = reader.newest();
    assert!(
        newest > 1000,
        "events that the first life told of after its last write had numbers too: {newest}"
    );
    sink.send(pod_event("a", "Killing", "two", 2));
    reader.wait_past(newest).await;
    let numbers: Vec<_> = reader.since(0, &EventFilter::default()).iter().map(|r| r.sequence).collect();
    assert_eq!(numbers, [1, newest + 1]);
    tasks.drain(Duration::from_secs(60)).await;
}
