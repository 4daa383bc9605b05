//! `/containerLogs`: every refusal, the choice of the instance, and streams from real files.

use super::*;
use std::{fs, io::Write, path::Path};

const AT: &str = "2026-01-01T00:00:00.5Z";

fn write_log(path: &Path, lines: &[&str]) {
    let text: String = lines.iter().map(|line| format!("{AT} stdout F {line}\n")).collect();
    fs::write(path, text).unwrap();
}

fn append_log(path: &Path, line: &str) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{AT} stdout F {line}\n").as_bytes()).unwrap();
}

/// A pod of one container `c` (and an init, a sidecar and an ephemeral one) with the status given for `c`.
fn pod_with(status: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-web"},
        "spec": {
            "containers": [{"name": "c"}],
            "initContainers": [{"name": "setup"}],
            "ephemeralContainers": [{"name": "debug"}],
        },
        "status": {"containerStatuses": if status.is_null() { Value::Null } else { json!([status]) }},
    })
}

fn status(state: Value, last: Value, id: &str) -> Value {
    let mut status = json!({
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "containerID": id,
        "state": state, "lastState": last,
    });
    if last.is_null() {
        status.as_object_mut().unwrap().remove("lastState");
    }
    status
}

#[tokio::test]
async fn refusals_before_the_container_is_looked_at() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![view(pod_with(Value::Null), None)], vec![]));
    let base = "/containerLogs/default/web/c";
    fixture
        .get(&format!("{base}?tailLines=x"))
        .await
        .is_plain(400, r#"{"message": "Unable to decode query."}"#);
    fixture.get(&format!("{base}?limitBytes=0")).await.is_plain(422, r#"{"message": "Invalid request."}"#);
    // The query is judged before the pod is looked for.
    fixture
        .get("/containerLogs/a/b/c?tailLines=x")
        .await
        .is_plain(400, r#"{"message": "Unable to decode query."}"#);
    fixture.get("/containerLogs/default/nope/c").await.is_plain(404, r#"pod "nope" does not exist"#);
    fixture.get("/containerLogs/other/web/c").await.is_plain(404, r#"pod "web" does not exist"#);
    fixture
        .get("/containerLogs/default/web/x")
        .await
        .is_plain(404, r#"container "x" not found in pod "web""#);
    for stream in ["Stdout", "Stderr"] {
        let text = format!(
            "unable to return the given log stream: \"{stream}\". Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        fixture.get(&format!("{base}?stream={stream}")).await.is_plain(400, &text);
    }
    fixture.get("/containerLogs/default%2F/web/c").await.is_plain(404, "404: Page Not Found");
    fixture.get("/containerLogs/default/web%2F%2Fc").await.is_plain(404, "404: Page Not Found");
    fixture.get("/containerLogs/default/%2Fc").await.is_plain(400, r#"{"message": "Missing podID."}"#);
}

#[tokio::test]
async fn states_that_have_no_log() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
    let rows = [
        ("not available", Value::Null, "", r#"container "c" in pod "web" is not available"#),
        (
            "no previous",
            status(json!({"running": {}}), Value::Null, "containerd://now"),
            "previous=true",
            r#"previous terminated container "c" in pod "web" not found"#,
        ),
        (
            "previous without a name",
            status(json!({"running": {}}), ended(""), "containerd://now"),
            "previous=true",
            r#"previous terminated container "c" in pod "web" not found"#,
        ),
        (
            "terminated without a name",
            status(ended(""), Value::Null, ""),
            "",
            r#"container "c" in pod "web" is terminated"#,
        ),
        (
            "last terminated without a name",
            status(waiting("CrashLoopBackOff"), ended(""), ""),
            "",
            r#"container "c" in pod "web" is terminated"#,
        ),
        (
            "pull failed",
            status(waiting("ErrImagePull"), Value::Null, ""),
            "",
            r#"container "c" in pod "web" is waiting to start: image can't be pulled"#,
        ),
        (
            "pull backs off",
            status(waiting("ImagePullBackOff"), Value::Null, ""),
            "",
            r#"container "c" in pod "web" is waiting to start: trying and failing to pull image"#,
        ),
        (
            "creating",
            status(waiting("ContainerCreating"), Value::Null, ""),
            "",
            r#"container "c" in pod "web" is waiting to start: ContainerCreating"#,
        ),
        (
            "no state",
            status(json!({}), Value::Null, ""),
            "",
            r#"container "c" in pod "web" is waiting to start - no logs yet"#,
        ),
    ];
    let fixture = Fixture::start();
    for (row, status, query, text) in rows {
        fixture.publish(snapshot(1, vec![view(pod_with(status), None)], vec![]));
        let reply = fixture.get(&format!("/containerLogs/default/web/c?{query}")).await;
        assert_eq!(reply.body, text, "{row}");
        reply.is_streamed(400, text);
    }
    // A container of the spec that the status does not mention, of each kind.
    for name in ["setup", "debug"] {
        let text = format!("container \"{name}\" in pod \"web\" is not available");
        fixture.get(&format!("/containerLogs/default/web/{name}")).await.is_streamed(400, &text);
    }
}

#[tokio::test]
async fn the_right_instance_is_chosen() {
    let fixture = Fixture::start();
    let directory = fixture.directory.path();
    let (now, before) = (directory.join("1.log"), directory.join("0.log"));
    write_log(&now, &["now"]);
    write_log(&before, &["before"]);
    let observed = observed_pod(
        "web",
        true,
        vec![
            container("now", "c", ContainerPhase::Running, now.to_str().unwrap()),
            container("before", "c", ContainerPhase::Exited, before.to_str().unwrap()),
        ],
    );
    let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
    let running = json!({"running": {}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let rows = [
        ("running", running.clone(), ended("containerd://before"), "containerd://now", "", "now\n"),
        ("previous", running, ended("containerd://before"), "containerd://now", "previous=1", "before\n"),
        ("terminated", ended("containerd://now"), Value::Null, "", "", "now\n"),
        ("never started after an end", ended(""), ended("containerd://before"), "", "", "before\n"),
        ("waiting after an end", waiting, ended("containerd://before"), "", "", "before\n"),
        (
            "gone from the runtime",
            ended("containerd://gone"),
            Value::Null,
            "",
            "",
            "unable to retrieve container logs for containerd://gone",
        ),
    ];
    for (row, state, last, id, query, text) in rows {
        let view = view(pod_with(status(state, last, id)), Some(observed.clone()));
        fixture.publish(snapshot(1, vec![view], vec![observed.clone()]));
        let reply = fixture.get(&format!("/containerLogs/default/web/c?{query}")).await;
        assert_eq!(reply.body, text, "{row}");
        reply.is_streamed(200, text);
    }
    fs::remove_file(&now).unwrap();
    let view = view(pod_with(status(json!({"running": {}}), Value::Null, "containerd://now")), None);
    fixture.publish(snapshot(1, vec![view], vec![observed]));
    let path = now.display();
    let text = format!(
        "failed to try resolving symlinks in path \"{path}\": lstat {path}: no such file or directory"
    );
    fixture.get("/containerLogs/default/web/c").await.is_streamed(200, &text);
}

/// A fixture with one running container that logs to the path returned.
fn logging(split_log_streams: bool) -> (Fixture, PathBuf) {
    let fixture = Fixture::with(split_log_streams);
    let log = fixture.directory.path().join("0.log");
    publish_running(&fixture, &log, ContainerPhase::Running, 1);
    (fixture, log)
}

fn publish_running(fixture: &Fixture, log: &Path, phase: ContainerPhase, generation: u64) {
    let observed = observed_pod("web", true, vec![container("now", "c", phase, log.to_str().unwrap())]);
    let running = status(json!({"running": {}}), Value::Null, "containerd://now");
    let view = view(pod_with(running), Some(observed.clone()));
    fixture.publish(snapshot(generation, vec![view], vec![observed]));
}

#[tokio::test]
async fn parameters_shape_the_output() {
    let (fixture, log) = logging(false);
    let early = "2026-01-01T00:00:00Z";
    let lines = [
        format!("{early} stdout F one\n"),
        format!("{early} stdout P tw\n"),
        format!("{early} stdout F o\n"),
        "2026-01-01T00:01:00.25+01:00 stderr F three\n".to_owned(),
        "2026-01-02T00:00:00.1Z stdout F four\n".to_owned(),
    ];
    fs::write(&log, lines.concat()).unwrap();
    for (query, text) in [
        ("", "one\ntwo\nthree\nfour\n"),
        ("tailLines=2", "three\nfour\n"),
        ("tail=1", "four\n"),
        ("tailLines=0", ""),
        ("tail=all&tailLines=1", "one\ntwo\nthree\nfour\n"),
        ("limitBytes=6", "one\ntw"),
        ("sinceTime=2026-01-01T00:00:30Z", "four\n"),
        ("sinceTime=2026-01-01T00:00:00Z", "one\ntwo\nfour\n"),
        ("sinceSeconds=1", ""),
        (
            "timestamps=true&tailLines=2",
            "2026-01-01T00:01:00.250000000+01:00 three\n2026-01-02T00:00:00.100000000Z four\n",
        ),
        ("stream=All", "one\ntwo\nthree\nfour\n"),
    ] {
        let reply = fixture.get(&format!("/containerLogs/default/web/c?{query}")).await;
        assert_eq!(reply.body, text, "{query}");
        reply.is_streamed(200, text);
    }
    fixture.get("/containerLogs/default/web/c/?tailLines=1").await.is_streamed(200, "four\n");
}

#[tokio::test]
async fn streams_can_be_split_where_the_gate_is_on() {
    let (fixture, log) = logging(true);
    fs::write(&log, format!("{AT} stdout F out\n{AT} stderr F err\n")).unwrap();
    fixture.get("/containerLogs/default/web/c?stream=Stdout").await.is_streamed(200, "out\n");
    fixture.get("/containerLogs/default/web/c?stream=Stderr").await.is_streamed(200, "err\n");
    fixture.get("/containerLogs/default/web/c?stream=All").await.is_streamed(200, "out\nerr\n");
    // Without the early flush of standard output, a late error is still a status.
    fs::remove_file(&log).unwrap();
    let reply = fixture.get("/containerLogs/default/web/c?stream=Stderr").await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("no such file or directory"), "{reply:?}");
    assert_eq!(fixture.get("/containerLogs/default/web/c?stream=Stdout").await.status, 200);
}

#[tokio::test]
async fn a_follower_goes_on_across_rotation_and_ends_with_the_container() {
    let (fixture, log) = logging(false);
    write_log(&log, &["one"]);
    let mut stream = fixture.open("/containerLogs/default/web/c?follow=true").await;
    assert!(!stream.head.to_lowercase().contains("content-type"), "{}", stream.head);
    assert_eq!(stream.chunk().await.as_deref(), Some("one\n"));
    append_log(&log, "two");
    assert_eq!(stream.chunk().await.as_deref(), Some("two\n"));
    fs::rename(&log, log.with_file_name("0.log.20260101-000000")).unwrap();
    append_log(&log.with_file_name("0.log.20260101-000000"), "last of the old");
    append_log(&log, "first of the new");
    let mut seen = String::new();
    while !seen.contains("first of the new\n") {
        seen.push_str(&stream.chunk().await.expect("more of the log"));
    }
    assert_eq!(seen, "last of the old\nfirst of the new\n");
    // Another snapshot in which it still runs changes nothing; then it ends, and what it wrote last is delivered.
    publish_running(&fixture, &log, ContainerPhase::Running, 2);
    append_log(&log, "farewell");
    publish_running(&fixture, &log, ContainerPhase::Exited, 3);
    assert_eq!(stream.chunk().await.as_deref(), Some("farewell\n"));
    assert_eq!(stream.chunk().await, None);
}

#[tokio::test]
async fn a_follower_ends_when_the_pod_is_gone_and_at_shutdown() {
    let (fixture, log) = logging(false);
    write_log(&log, &["one"]);
    let mut stream = fixture.open("/containerLogs/default/web/c?follow=1").await;
    assert_eq!(stream.chunk().await.as_deref(), Some("one\n"));
    fixture.publish(snapshot(2, vec![], vec![]));
    assert_eq!(stream.chunk().await, None);

    publish_running(&fixture, &log, ContainerPhase::Running, 3);
    let mut stream = fixture.open("/containerLogs/default/web/c?follow=1&tailLines=1").await;
    // The header is there before the file is opened, so only a line tells that it is being followed.
    assert_eq!(stream.chunk().await.as_deref(), Some("one\n"));
    append_log(&log, "two");
    assert_eq!(stream.chunk().await.as_deref(), Some("two\n"));
    let (drained, end) = tokio::join!(fixture.tasks.drain(PATIENCE), stream.chunk());
    assert!(drained.aborted.is_empty(), "{drained:?}");
    assert_eq!(end, None);
}

/// A client that takes nothing holds up nobody, is not fed ahead, and finds everything when it reads on.
#[tokio::test]
async fn a_slow_follower_gets_every_line_and_holds_up_nobody() {
    const LINES: usize = 60_000;
    let (fixture, log) = logging(false);
    let text: String = (0..LINES).map(|n| format!("{AT} stdout F line {n} {}\n", "x".repeat(60))).collect();
    fs::write(&log, text).unwrap();
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(fixture.open("/containerLogs/default/web/c?follow=true").await);
    }
    // More of them than threads that read logs; each has stopped reading, and so has what reads for it.
    for _ in 0..3 {
        let reply = fixture.get("/containerLogs/default/web/c?tailLines=1").await;
        assert!(reply.body.starts_with(&format!("line {} ", LINES - 1)), "{:.80}", reply.body);
    }
    append_log(&log, "the last");
    publish_running(&fixture, &log, ContainerPhase::Exited, 2);
    let mut stream = slow.swap_remove(0);
    let mut seen = String::new();
    while let Some(chunk) = stream.chunk().await {
        seen.push_str(&chunk);
    }
    assert_eq!(seen.lines().count(), LINES + 1);
    let numbers = seen.lines().take(LINES).enumerate();
    assert!(numbers.into_iter().all(|(n, line)| line.starts_with(&format!("line {n} "))), "in order");
    assert!(seen.ends_with("\nthe last\n"));
}
