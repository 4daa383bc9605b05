use std::{sync::Arc, time::Instant};

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{DesiredState, FullName, ObservedSandbox, ObservedState, PodView};

use super::*;

const NOW: i64 = 10_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn container(id: &str, name: &str, sandbox: &str, phase: ContainerPhase, age: i64) -> ObservedContainer {
    ObservedContainer {
        id: id.into(),
        sandbox: sandbox.into(),
        name: name.into(),
        restart_count: 0,
        hash: 0,
        phase,
        created_at: at(NOW - age),
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "".into(),
        image_ref: "".into(),
        log_path: "".into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
    }
}

fn sandbox(id: &str, attempt: u32, ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: id.into(),
        attempt,
        ready,
        created_at: at(0),
        ips: vec![],
        host_network: false,
        source: None,
    }
}

fn removals(sandboxes: Vec<ObservedSandbox>, containers: Vec<ObservedContainer>, keep: Keep) -> Vec<String> {
    let observed = ObservedPod {
        uid: "u".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes,
        containers,
    };
    let view = PodView {
        uid: "u".into(),
        full_name: FullName::new("default", "p"),
        pod: Arc::new(Pod::default()),
        status: Arc::default(),
        json: bytes::Bytes::new(),
        observed: Some(Arc::new(observed)),
        origin: "".into(),
        source: mainstay_types::PodSource::File,
        stage: mainstay_types::PodStage::Syncing,
    };
    let snapshot = NodeSnapshot::new(
        1,
        "node".into(),
        vec![Arc::new(view)],
        Arc::new(DesiredState::default()),
        Arc::new(ObservedState::unread()),
    );
    superseded(&snapshot, keep, at(NOW))
        .into_iter()
        .map(|removal| match removal {
            Removal::Container(id) => id.to_string(),
            Removal::Sandbox(id) => format!("sandbox {id}"),
        })
        .collect()
}

#[test]
fn one_dead_instance_stays() {
    use ContainerPhase::{Exited, Running};
    let containers = || {
        vec![
            container("a3", "a", "s", Running, 1),
            container("b1", "b", "s", Exited, 5),
            container("a2", "a", "s", Exited, 10),
            container("a1", "a", "s", Exited, 20),
            container("a0", "a", "s", Exited, 30),
        ]
    };
    let one = |keep| removals(vec![sandbox("s", 0, true)], containers(), keep);
    assert_eq!(one(Keep::default()), ["a1", "a0"]);
    assert_eq!(one(Keep { per_container: 0, ..Keep::default() }), ["a2", "a1", "a0"]);
    assert_eq!(one(Keep { per_container: -1, ..Keep::default() }), [""; 0]);
    assert_eq!(one(Keep { per_container: 2, in_all: 1, ..Keep::default() }), ["a0", "a1"]);
    assert_eq!(one(Keep { min_age: Duration::from_secs(25), ..Keep::default() }), ["a0"]);
    let dead = || containers().into_iter().skip(1).collect();
    let none = |keep| removals(vec![sandbox("s", 0, true)], dead(), keep);
    assert_eq!(none(Keep::default()), ["a1", "a0"], "the newest is the dead one that is kept");
    assert_eq!(
        none(Keep { per_container: 0, ..Keep::default() }),
        ["a1", "a0"],
        "what tells of the container"
    );
    assert_eq!(none(Keep { per_container: 2, ..Keep::default() }), ["a0"]);
    let future = vec![
        container("a2", "a", "s", Running, 1),
        container("a1", "a", "s", Exited, -100),
        container("a0", "a", "s", Exited, -200),
    ];
    assert_eq!(
        removals(vec![sandbox("s", 0, true)], future, Keep::default()),
        ["a0"],
        "the clock was set back"
    );
}

#[test]
fn old_sandboxes_go_when_they_are_empty_and_dead() {
    use ContainerPhase::{Exited, Running};
    let sandboxes = || vec![sandbox("s2", 2, true), sandbox("s1", 1, false), sandbox("s0", 0, false)];
    let containers = vec![container("a2", "a", "s2", Running, 1), container("a1", "a", "s1", Exited, 10)];
    assert_eq!(
        removals(sandboxes(), containers, Keep::default()),
        ["sandbox s0"],
        "s1 still holds the last instance"
    );
    let containers = vec![
        container("a2", "a", "s2", Running, 1),
        container("a1", "a", "s2", Exited, 9),
        container("a0", "a", "s1", Exited, 10),
    ];
    assert_eq!(removals(sandboxes(), containers, Keep::default()), ["a0", "sandbox s1", "sandbox s0"]);
    assert_eq!(
        removals(vec![sandbox("s1", 1, false), sandbox("s0", 0, true)], vec![], Keep::default()),
        [""; 0]
    );
}
