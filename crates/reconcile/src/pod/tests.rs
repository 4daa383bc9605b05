use std::time::Duration;

use jiff::SignedDuration;
use mainstay_lifecycle::HoldCause;
use mainstay_types::{FullName, ObservedSandbox, PodSource};

use super::*;

/// The pod as if a file had it.
pub(crate) fn desired_from_file(pod: k8s_openapi::api::core::v1::Pod) -> DesiredPod {
    DesiredPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        pod: Arc::new(pod),
        source: PodSource::File,
        origin: "".into(),
        terminate: None,
        remote: None,
    }
}

fn waiting_for_volumes() -> PodState {
    let pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
        },
    }))
    .unwrap();
    let desired = desired_from_file(pod);
    PodState::new(Arc::new(desired), PodMemory::new(Timestamp::now()))
}

#[test]
fn volumes_are_tried_again_later_with_each_failure_and_at_once_when_objects_change() {
    let mut state = waiting_for_volumes();
    let period = Duration::from_secs(300);
    let reason = ContainerReason { reason: "ContainerCreating".into(), message: "no".into() };
    let fail = |state: &mut PodState| {
        let names = vec!["c".into()];
        state.note(Fact::VolumesFailed { names, reason: reason.clone() }, period);
        let hold = &state.memory.holds[&ContainerName::from(mainstay_lifecycle::SANDBOX_HOLD)];
        hold.until.duration_since(hold.since).as_millis()
    };
    let waits: Vec<_> = (0..10).map(|_| fail(&mut state)).collect();
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
    assert_eq!(state.reasons[&ContainerName::from("c")], reason);
    let objects = |name: &str| Objects {
        config_maps: [(FullName::new("default", name), Arc::default())].into(),
        ..Objects::default()
    };
    assert!(!state.objects_changed(&Objects::default(), &objects("other")), "the pod has nothing of it");
    assert!(state.objects_changed(&objects("other"), &objects("cm")));
    assert!(state.memory.holds.is_empty());
    assert!(!state.objects_changed(&objects("cm"), &objects("other")), "nothing waits");
    fail(&mut state);
    // Another container of the pod, whose volumes are there.
    state.note(Fact::VolumesUp { names: Some(vec!["d".into()]) }, period);
    assert_eq!(state.memory.holds.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(fail(&mut state), 122_000, "which was no success of this one");
    state.note(Fact::VolumesUp { names: Some(vec!["c".into()]) }, period);
    assert!(state.memory.holds.is_empty());
    fail(&mut state);
    state.note(Fact::VolumesUp { names: None }, period);
    assert!(state.memory.holds.is_empty());
    assert_eq!(fail(&mut state), 500, "a success begins anew");
}

#[test]
fn contents_are_looked_at_when_they_may_differ() {
    let mut state = waiting_for_volumes();
    let now = Timestamp::now();
    let sandbox = |ready| ObservedSandbox {
        id: "s0".into(),
        attempt: 0,
        ready,
        created_at: now,
        ips: Vec::new(),
        host_network: false,
        source: None,
    };
    let observed = |ready| ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes: vec![sandbox(ready)],
        containers: Vec::new(),
    };
    state.stage = PodStage::Syncing;
    assert!(state.refresh_due(Some(&observed(true)), now), "after a restart of mainstay, at once");
    assert!(!state.refresh_due(Some(&observed(false)), now), "not before the pod is there");
    assert!(!state.refresh_due(None, now));
    state.refresh_at = now.checked_add(SignedDuration::from_secs(60)).ok();
    assert!(!state.refresh_due(Some(&observed(true)), now));
    assert!(state.refresh_due(Some(&observed(true)), now + SignedDuration::from_secs(60)));
    state.stage = PodStage::Terminating;
    assert!(!state.refresh_due(Some(&observed(true)), now + SignedDuration::from_secs(60)));
}

#[test]
fn refreshes_are_spread_over_the_end_of_a_sync() {
    let sync = Duration::from_secs(60);
    let waits: std::collections::BTreeSet<_> =
        (0..100).map(|n| refresh_wait(&PodUid::from(format!("pod-{n}-of-many")), sync)).collect();
    assert!(waits.iter().all(|wait| (Duration::from_secs(45)..=sync).contains(wait)));
    assert!(waits.len() > 20, "{waits:?}");
}

#[test]
fn back_offs_of_what_the_pod_no_longer_has_are_forgotten() {
    let desired = |image: &str| {
        let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
            "spec": {
                "containers": [{"name": "c", "image": image}],
                "volumes": [{"name": "v", "image": {"reference": "mounted"}}],
            },
        }))
        .unwrap();
        Arc::new(desired_from_file(pod))
    };
    let now = Timestamp::now();
    let mut state = PodState::new(desired("old"), PodMemory::new(now));
    let entry = BackoffEntry { wait_ms: 1, updated: now };
    let key = |desired: &DesiredPod| crash_key(&desired.pod, &desired.pod.spec_ref().containers[0]);
    let (old, new) = (key(&desired("old")), key(&desired("new")));
    state.memory.crashes = [(old, entry), (new.clone(), entry)].into();
    state.memory.pulls = ["old", "new", "mounted"].map(|image| (image.to_owned(), entry)).into();
    state.desired = desired("new");
    state.forget_stale();
    assert_eq!(state.memory.crashes.keys().collect::<Vec<_>>(), [&new]);
    assert_eq!(state.memory.pulls.keys().collect::<Vec<_>>(), ["mounted", "new"]);
}

#[test]
fn a_reason_to_wait_stands_until_the_next_try_has_ended() {
    let pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap();
    let full_name = FullName::new("default", "p");
    let desired = desired_from_file(pod);
    let now = Timestamp::now();
    let sandbox = ObservedSandbox {
        id: "s0".into(),
        attempt: 0,
        ready: true,
        created_at: now,
        ips: vec!["10.0.0.1".into()],
        host_network: false,
        source: None,
    };
    let observed = ObservedPod {
        uid: "u1".into(),
        full_name,
        read_at: Instant::now(),
        sandboxes: vec![sandbox],
        containers: Vec::new(),
    };
    let mut state = PodState::new(Arc::new(desired), PodMemory::new(now));
    let period = Duration::from_secs(300);
    let decide = |state: &mut PodState, seconds| {
        let later = now + SignedDuration::from_secs(seconds);
        state.decide(Some(&observed), &PodProbes::default(), false, later)
    };
    let shown =
        |state: &PodState| state.reasons.values().map(|reason| reason.reason.clone()).collect::<Vec<_>>();

    assert!(matches!(decide(&mut state, 0), Decision::Sync(_)));
    let cause = HoldCause::Pull { image: "i".into(), reason: "ErrImagePull".into(), message: "no".into() };
    state.note(
        Fact::PullFailed { name: "c".into(), image: "i".into(), at: now, cause: cause.clone() },
        period,
    );
    assert_eq!(decide(&mut state, 1), Decision::Rest);
    assert_eq!(shown(&state), ["ErrImagePull"]);
    assert!(matches!(decide(&mut state, 11), Decision::Sync(_)), "it is tried again");
    assert_eq!(shown(&state), ["ErrImagePull"], "and meanwhile nothing better is known");
    let again = now + SignedDuration::from_secs(11);
    state.note(Fact::PullFailed { name: "c".into(), image: "i".into(), at: again, cause }, period);
    assert_eq!(shown(&state), ["ImagePullBackOff"], "from the first retry on it is a back-off");
    assert_eq!(decide(&mut state, 12), Decision::Rest);
    state.note(Fact::Started { name: "c".into(), id: "c1".into() }, period);
    assert!(shown(&state).is_empty());
}

#[test]
fn a_pod_that_ends_has_its_grace_once() {
    let now = Timestamp::now();
    let at = |seconds| now + SignedDuration::from_secs(seconds);
    let observed = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes: vec![ObservedSandbox {
            id: "s0".into(),
            attempt: 0,
            ready: true,
            created_at: now,
            ips: Vec::new(),
            host_network: false,
            source: None,
        }],
        containers: Vec::new(),
    };
    let decide = |state: &mut PodState, seconds| match state.decide(
        Some(&observed),
        &PodProbes::default(),
        false,
        at(seconds),
    ) {
        Decision::Stop { grace_seconds, spent } => (grace_seconds, spent.as_secs()),
        other => panic!("{other:?}"),
    };
    let mut state = waiting_for_volumes();
    state.let_go(at(-100));
    assert_eq!(decide(&mut state, 0), (30, 0), "it is told to end now, whenever that was wished for");
    let kept = serde_json::to_string(&state.memory).unwrap();
    let restart = || {
        let memory = serde_json::from_str(&kept).unwrap();
        PodState::new(Arc::clone(&state.desired), memory)
    };
    for (row, seconds, expected) in [
        ("at once", 0, (30, 0)),
        ("in the middle", 20, (30, 20)),
        ("long after", 3600, (30, 3600)),
        ("the clock was set back", -3600, (30, 0)),
    ] {
        let mut restarted = restart();
        assert_eq!(decide(&mut restarted, seconds), expected, "{row}");
    }
    let mut set_back = restart();
    decide(&mut set_back, -3600);
    assert_eq!(decide(&mut set_back, -3590), (30, 10), "and from then on it counts");
    state.decide(None, &PodProbes::default(), false, at(40));
    assert_eq!(state.memory.stopping_since, None, "nothing of it runs any more");
}

#[test]
fn the_back_off_of_an_image_grows_once_per_try_however_many_containers_want_it() {
    let mut state = waiting_for_volumes();
    let begun = Timestamp::now();
    let at = |seconds| begun + SignedDuration::from_secs(seconds);
    let period = Duration::from_secs(300);
    let cause = HoldCause::Pull { image: "i".into(), reason: "ErrImagePull".into(), message: "no".into() };
    let mut time = 0;
    for (round, wait) in [10, 20, 40, 80].into_iter().enumerate() {
        let now = at(time);
        assert!(state.memory.pulls_that_wait(now).is_empty(), "round {round}: its time has come");
        let (image, failed) = ("i".to_owned(), cause.clone());
        state.note(Fact::PullFailed { name: "a".into(), image, at: now, cause: failed }, period);
        let waiting = state.memory.pulls_that_wait(now);
        assert_eq!(waiting.get("i"), Some(&cause), "round {round}");
        let (image, cause) = ("i".to_owned(), cause.clone());
        state.note(Fact::PullHeld { name: "b".into(), image, at: now, cause }, period);
        let until = |name: &str| state.memory.holds[&ContainerName::from(name)].until;
        assert_eq!((until("a"), until("b")), (at(time + wait), at(time + wait)), "round {round}");
        let shown = &state.reasons[&ContainerName::from("b")];
        assert_eq!(
            (shown.reason.as_str(), shown.message.as_str()),
            ("ImagePullBackOff", "Back-off pulling image \"i\": ErrImagePull: no")
        );
        time += wait;
    }
    assert!(state.memory.pulls_that_wait(at(-3600)).is_empty(), "the clock was set back");
}
