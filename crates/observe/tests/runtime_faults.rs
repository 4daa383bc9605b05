//! What a real runtime cannot be made to do: to list a pod and never answer about it, to answer with an error for ever, to
//! answer with nonsense.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod runtime;

use std::{sync::Arc, time::Duration};

use mainstay_cri::{Cri, CriError, ExecOutcome};
use mainstay_observe::{ObserveConfig, start};
use mainstay_task::TaskGroup;
use mainstay_types::{ContainerPhase, FullName, ObservedState, PodUid, ReadWish};
use runtime::{Answer, FakeRuntime};
use tokio::sync::watch;

async fn wait(
    state: &mut watch::Receiver<Arc<ObservedState>>,
    what: &str,
    wanted: impl FnMut(&Arc<ObservedState>) -> bool,
) -> Arc<ObservedState> {
    let last = state.clone();
    match tokio::time::timeout(Duration::from_secs(90), state.wait_for(wanted)).await {
        Ok(state) => Arc::clone(&state.unwrap()),
        Err(_) => panic!("waited in vain for {what}; last state: {:#?}", last.borrow()),
    }
}

#[tokio::test]
async fn what_the_runtime_never_tells_is_named_and_the_rest_is_seen() {
    let (tasks, directory) = (TaskGroup::new(), tempfile::tempdir().unwrap());
    let socket = directory.path().join("cri.sock");
    let fake = FakeRuntime::start(&socket, &tasks);
    fake.pod("good", Answer::Good);
    fake.pod("hangs", Answer::Hang);
    fake.pod("fails", Answer::Error);
    fake.pod("odd", Answer::Garbage);
    let cri = Cri::new(&format!("unix://{}", socket.display()), None, Duration::from_secs(120)).unwrap();
    let config = ObserveConfig { relist_period: Duration::from_millis(200), ..ObserveConfig::new(cri) };
    let (mut state, wishes) = start(config, &tasks);

    // Nothing is shown while it may still become whole. On a machine that stands still others may be late at first as well.
    let seen = wait(&mut state, "the first list", |state| {
        let is_named = |uid: &str| state.silent.contains_key(uid);
        let is_whole = is_named("fails") && is_named("hangs");
        assert!(if state.listed_at.is_some() { is_whole } else { state.pods.is_empty() }, "{state:#?}");
        is_whole && (state.silent.len(), state.pods.len()) == (2, 2)
    })
    .await;
    assert!(!seen.runtime.name.is_empty());
    let mut silent: Vec<String> = seen.silent.values().map(ToString::to_string).collect();
    silent.sort();
    assert_eq!(silent, ["ns/fails", "ns/hangs"]);
    assert!(seen.pods["good"].ready_sandbox().is_some());
    let odd = &seen.pods["odd"];
    assert_eq!((odd.sandboxes.len(), odd.containers.len()), (1, 1), "{odd:?}");
    assert!(!odd.sandboxes[0].ready && odd.containers[0].phase == ContainerPhase::Unknown, "{odd:?}");
    for uid in ["hangs", "fails"] {
        assert_eq!(
            seen.read_at(&PodUid::from(uid)),
            None,
            "a list in which it could not be read says nothing"
        );
    }

    // Whoever answers after all is seen, by the relist or when it is asked for.
    fake.pod("fails", Answer::Good);
    let seen = wait(&mut state, "the one that failed", |state| state.pods.contains_key("fails")).await;
    assert!(!seen.silent.contains_key("fails") && seen.silent.contains_key("hangs"));
    fake.pod("hangs", Answer::Good);
    let (uid, full_name) = (PodUid::from("hangs"), FullName::new("ns", "hangs"));
    wishes.send(ReadWish { uid, full_name, made: None }).await.unwrap();
    wait(&mut state, "the one that hung", |state| {
        state.pods.contains_key("hangs") && state.silent.is_empty()
    })
    .await;
    tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_runtime_that_hangs_about_one_pod_and_itself_is_still_asked_about_the_others() {
    let (tasks, directory) = (TaskGroup::new(), tempfile::tempdir().unwrap());
    let socket = directory.path().join("cri.sock");
    let fake = FakeRuntime::start(&socket, &tasks);
    fake.pod("good", Answer::Good);
    fake.pod("hog", Answer::Good);
    let cri = Cri::new(&format!("unix://{}", socket.display()), None, Duration::from_secs(600)).unwrap();
    let short = Duration::from_millis(100);
    // Nobody gives up in this test: what is answered is answered beside what hangs.
    let never = Duration::from_secs(600);
    let config = ObserveConfig {
        relist_period: short,
        health_period: short,
        read_deadline: never,
        health_deadline: never,
        ..ObserveConfig::new(cri)
    };
    let (mut state, wishes) = start(config, &tasks);
    wait(&mut state, "the first list", |state| state.listed_at.is_some()).await;

    fake.mute();
    fake.pod("hog", Answer::Hang);
    let asked = async {
        while fake.hanging() == 0 {
            tokio::time::sleep(short).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), asked).await.expect("a relist reads the pod that differs");
    let now = std::time::Instant::now();
    let (uid, full_name) = (PodUid::from("good"), FullName::new("ns", "good"));
    wishes.send(ReadWish { uid, full_name, made: None }).await.unwrap();
    wait(&mut state, "a reading of the other", |state| state.pods["good"].read_at >= now).await;
    tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_known_pod_about_which_the_runtime_falls_silent_is_not_taken_for_what_it_was() {
    let (tasks, directory) = (TaskGroup::new(), tempfile::tempdir().unwrap());
    let socket = directory.path().join("cri.sock");
    let fake = FakeRuntime::start(&socket, &tasks);
    fake.pod("good", Answer::Good);
    fake.pod("hog", Answer::Good);
    let cri = Cri::new(&format!("unix://{}", socket.display()), None, Duration::from_secs(600)).unwrap();
    let short = Duration::from_millis(200);
    let config = ObserveConfig {
        relist_period: short,
        read_deadline: Duration::from_secs(3),
        ..ObserveConfig::new(cri)
    };
    let (mut state, _wishes) = start(config, &tasks);
    wait(&mut state, "both pods", |state| (state.silent.len(), state.pods.len()) == (0, 2)).await;

    fake.pod("hog", Answer::Hang);
    let seen = wait(&mut state, "the silence", |state| state.silent.contains_key("hog")).await;
    assert_eq!(seen.read_at(&PodUid::from("hog")), None, "what was read before says nothing");
    assert!(seen.pods.contains_key("hog") && !seen.silent.contains_key("good"));
    fake.pod("hog", Answer::Good);
    let seen = wait(&mut state, "an answer", |state| state.silent.is_empty()).await;
    assert!(seen.read_at(&PodUid::from("hog")).is_some());
    tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_a_probes_command_writes_is_not_taken_in_without_bound() {
    let (tasks, directory) = (TaskGroup::new(), tempfile::tempdir().unwrap());
    let socket = directory.path().join("cri.sock");
    let _fake = FakeRuntime::start(&socket, &tasks);
    let cri = Cri::new(&format!("unix://{}", socket.display()), None, Duration::from_secs(20)).unwrap();
    let limit = Some(Duration::from_secs(20));
    let exec = |bytes: usize, limit| cri.exec_sync("c", vec![bytes.to_string()], limit);

    let little = exec(512 << 10, limit).await.unwrap();
    assert!(matches!(little, ExecOutcome::Exited { code: 0, output } if output.len() == 512 << 10));
    let error = exec(2 << 20, limit).await.unwrap_err();
    assert!(matches!(error, CriError::TooMuchOutput { max_bytes: 1_048_576, .. }), "{error}");
    // A hook's result matters more than what it costs to read.
    let hook = exec(2 << 20, None).await.unwrap();
    assert!(matches!(hook, ExecOutcome::Exited { code: 0, output } if output.len() == 2 << 20));
    tasks.drain(Duration::from_secs(1)).await;
}
