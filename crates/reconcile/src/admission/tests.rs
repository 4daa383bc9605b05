use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use mainstay_lifecycle::PodMemory;
use mainstay_policy::Sysctls;
use mainstay_types::{
    Deletion, DesiredPod, FullName, NodeResources, ObservedPod, ObservedSandbox, PodSource, Quantity,
};
use serde_json::json;

use super::*;

fn node() -> NodeFacts {
    let allocatable = [("cpu", "2"), ("memory", "1Gi"), ("pods", "10")];
    let allocatable =
        allocatable.into_iter().map(|(name, text)| (name.to_owned(), Quantity::parse(text).unwrap()));
    NodeFacts {
        name: "node".into(),
        resources: Arc::new(NodeResources { allocatable: allocatable.collect(), ..NodeResources::default() }),
        taints: Vec::new(),
        sysctls: Sysctls::default(),
        app_armor: false,
        pod_level_resources: true,
        pressure: mainstay_types::NodePressure::default(),
    }
}

fn pod(name: &str, cpu: &str) -> PodState {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]},
    }))
    .unwrap();
    let desired = DesiredPod {
        uid: name.into(),
        full_name: FullName::new("default", name),
        pod: Arc::new(pod),
        source: PodSource::File,
        origin: "".into(),
        terminate: None,
        remote: None,
    };
    PodState::new(Arc::new(desired), PodMemory::new(Timestamp::UNIX_EPOCH))
}

fn admitted(name: &str, cpu: &str) -> PodState {
    let mut pod = pod(name, cpu);
    pod.memory.admission = Admission::Admitted;
    pod.stage = PodStage::Syncing;
    pod
}

fn running(names: &[&str]) -> ObservedState {
    let mut observed = ObservedState::unread();
    for name in names {
        let sandbox = ObservedSandbox {
            id: "s".into(),
            attempt: 0,
            ready: true,
            created_at: Timestamp::UNIX_EPOCH,
            ips: Vec::new(),
            host_network: false,
            source: None,
        };
        let mut pod =
            ObservedPod::nothing((*name).into(), Some(FullName::new("default", name)), Instant::now());
        pod.sandboxes.push(sandbox);
        observed.pods.insert((*name).into(), Arc::new(pod));
    }
    observed
}

/// What becomes of a pod that wants one and a half CPUs of two, beside `other`.
fn beside(other: PodState, observed: &ObservedState) -> Verdict {
    let new = pod("new", "1500m");
    let pods: BTreeMap<PodUid, PodState> =
        [new, other].into_iter().map(|pod| (pod.desired.uid.clone(), pod)).collect();
    let uid = PodUid::from("new");
    judge(&uid, pods.get(&uid).unwrap(), pods.iter(), observed, &node())
}

fn full() -> Verdict {
    Verdict::Crowded(Rejection {
        reason: "OutOfcpu".into(),
        message: "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000".into(),
    })
}

#[test]
fn who_takes_up_room() {
    let none = running(&[]);
    assert_eq!(beside(admitted("other", "500m"), &none), Verdict::Admitted, "there is enough");
    assert_eq!(beside(admitted("other", "1"), &none), full());
    assert_eq!(beside(pod("other", "1"), &none), Verdict::Admitted, "it has not been let in itself");
    assert_eq!(beside(pod("other", "1"), &running(&["other"])), full(), "but it runs, so it will be");
    let mut restored = admitted("other", "1");
    restored.stage = PodStage::Waiting;
    assert_eq!(beside(restored, &none), full(), "it was let in before a restart");
    let mut ended = admitted("other", "1");
    (ended.memory.finished, ended.stage) = (Some(TerminalPhase::Succeeded), PodStage::Terminated);
    assert_eq!(beside(ended, &none), Verdict::Admitted, "it has ended");
    let mut rejected = pod("other", "1");
    rejected.reject(&Rejection { reason: "OutOfpods".into(), message: "no".into() });
    assert_eq!(beside(rejected, &none), Verdict::Admitted, "it was not let in");
}

#[test]
fn who_is_going_is_waited_for() {
    let none = running(&[]);
    let mut going = admitted("other", "1");
    going.let_go(Timestamp::UNIX_EPOCH);
    let Verdict::Later(rejection) = beside(going, &none) else { panic!("it is waited for") };
    let mut new = pod("new", "2");
    assert!(new.wait_for_room(&rejection) && !new.wait_for_room(&rejection), "told once");
    let outcome = new.report();
    let message = &outcome.reasons.values().next().unwrap().message;
    assert!(message.contains("to make room") && message.ends_with(&rejection.message), "{message}");
    let mut finished = admitted("other", "1");
    (finished.memory.finished, finished.stage) = (Some(TerminalPhase::Failed), PodStage::Terminating);
    assert!(matches!(beside(finished, &none), Verdict::Later(_)));
    let mut small = admitted("other", "1");
    small.memory.deletion = Some(Deletion { since: Timestamp::UNIX_EPOCH, grace_seconds: 1 });
    let pods = BTreeMap::from([("new".into(), pod("new", "3")), ("other".into(), small)]);
    let uid = PodUid::from("new");
    let verdict = judge(&uid, pods.get(&uid).unwrap(), pods.iter(), &none, &node());
    assert!(matches!(verdict, Verdict::Rejected(_)), "not if it would not help: {verdict:?}");
}

#[test]
fn what_runs_is_not_turned_out() {
    assert_eq!(beside(admitted("other", "2"), &running(&["new", "other"])), Verdict::Admitted);
}

#[test]
fn a_rejected_pod_has_failed() {
    let mut pod = pod("p", "9");
    assert!(pod.is_unjudged());
    pod.reject(&Rejection { reason: "OutOfcpu".into(), message: "too big".into() });
    assert!(!pod.is_unjudged());
    let outcome = pod.report();
    assert!(outcome.rejected);
    let failure = outcome.failure.as_ref().unwrap();
    assert_eq!(
        (failure.reason.as_str(), failure.message.as_str()),
        ("OutOfcpu", "Pod was rejected: too big")
    );
    assert_eq!(outcome.finished, Some(TerminalPhase::Failed));
}

#[test]
fn a_rejection_may_be_forgotten_where_nobody_would_make_the_pod_anew() {
    let rejection = Rejection { reason: "OutOfcpu".into(), message: "too big".into() };
    let mut rejected = pod("p", "9");
    assert!(!rejected.may_be_judged_anew(), "nobody has judged it yet");
    rejected.reject(&rejection);
    assert!(rejected.may_be_judged_anew());
    rejected.forget_rejection();
    assert!(rejected.is_unjudged());
    assert!(!rejected.report().rejected);
    assert_eq!((rejected.memory.finished, rejected.memory.failure.clone()), (None, None));
    assert!(!admitted("q", "1").may_be_judged_anew());

    let mut going = pod("p", "9");
    going.reject(&rejection);
    going.let_go(Timestamp::UNIX_EPOCH);
    assert!(!going.may_be_judged_anew());
    let mut of_the_api = pod("p", "9");
    of_the_api.desired =
        Arc::new(DesiredPod { source: PodSource::Api, ..DesiredPod::clone(&of_the_api.desired) });
    of_the_api.reject(&rejection);
    assert!(!of_the_api.may_be_judged_anew(), "to an API server it has failed for good");
}

#[test]
fn who_made_room_comes_back_when_there_is_room() {
    let mut victim = admitted("victim", "1");
    victim.make_room();
    assert!(!victim.may_be_judged_anew(), "it has not gone yet");
    victim.stage = PodStage::Terminated;
    assert!(victim.may_be_judged_anew() && !victim.was_turned_away());
    let uid = PodUid::from("victim");
    // What the runtime still has of it is no ticket.
    let remains = running(&["victim"]);
    let beside = |other: PodState, victim: &PodState| {
        let pods: BTreeMap<PodUid, &PodState> =
            [&other, victim].into_iter().map(|pod| (pod.desired.uid.clone(), pod)).collect();
        judge(&uid, victim, pods.iter().map(|(uid, pod)| (uid, *pod)), &remains, &node())
    };
    assert!(
        matches!(beside(pod("urgent", "1500m"), &victim), Verdict::Crowded(_)),
        "the one it went for waits"
    );
    assert!(matches!(beside(admitted("urgent", "1500m"), &victim), Verdict::Crowded(_)), "or is here");
    assert_eq!(beside(admitted("other", "1"), &victim), Verdict::Admitted);
    victim.forget_rejection();
    assert!(victim.is_unjudged());
    assert_eq!((victim.memory.finished, victim.memory.failure.clone()), (None, None));

    let mut job = admitted("job", "1");
    let mut once = DesiredPod::clone(&job.desired);
    let spec = Arc::make_mut(&mut once.pod).spec.get_or_insert_default();
    spec.restart_policy = Some("OnFailure".into());
    job.desired = Arc::new(once);
    job.make_room();
    job.stage = PodStage::Terminated;
    assert!(!job.may_be_judged_anew(), "its ended containers are the last word");

    let mut of_the_api = admitted("p", "1");
    of_the_api.desired =
        Arc::new(DesiredPod { source: PodSource::Api, ..DesiredPod::clone(&of_the_api.desired) });
    of_the_api.make_room();
    of_the_api.stage = PodStage::Terminated;
    assert!(!of_the_api.may_be_judged_anew(), "to an API server it has failed for good");
}

#[test]
fn what_of_a_pod_has_resources() {
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let full = || json!({"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Mi"}});
    for (row, whole, regular, init, expected) in [
        ("nothing", json!(null), json!({}), json!({}), ["", "besteffort"]),
        ("a container", json!(null), cpu("1"), json!({}), ["container_level", "burstable"]),
        ("an init container", json!(null), json!({}), cpu("1"), ["container_level", "burstable"]),
        ("a container, all of it", json!(null), full(), full(), ["container_level", "guaranteed"]),
        ("the pod", full(), json!({}), json!({}), ["pod_level", "guaranteed"]),
        ("both", cpu("2"), cpu("1"), json!({}), ["pod_and_container_level", "burstable"]),
    ] {
        let container = |name: &str, resources| json!({"name": name, "image": "i", "resources": resources});
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": [container("c", regular)], "initContainers": [container("i", init)], "resources": whole,
            },
        }));
        assert_eq!(resource_mode(&pod.unwrap()), expected, "{row}");
    }
}

#[test]
fn what_no_plugin_has_told_of() {
    let asks = |names: &[&str]| {
        let list: BTreeMap<_, _> = names.iter().map(|name| (*name, "1")).collect();
        let resources = json!({"requests": list, "limits": list});
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
        });
        wants(&serde_json::from_value(pod).unwrap())
    };
    let has = |names: &[&str]| {
        let capacity = names.iter().map(|name| ((*name).to_owned(), Quantity::whole(1)));
        NodeResources { capacity: capacity.collect(), ..NodeResources::default() }
    };
    let node = has(&["cpu", "memory", "example.com/gpu", "example.com/nic"]);
    assert_eq!(unheard_of(&asks(&["cpu", "memory", "example.com/gpu"]), &node), None);
    let text = "No device plugin has told of a.com/b, example.com/gpuu, and the pod runs without; is the name right, and does the plugin run? \
                This node has example.com/gpu, example.com/nic";
    let asked = asks(&["cpu", "example.com/gpuu", "a.com/b"]);
    assert_eq!(unheard_of(&asked, &node).as_deref(), Some(text));
    let none = unheard_of(&asked, &has(&["cpu"])).unwrap();
    assert!(none.ends_with("This node has no devices"), "{none}");
    // Not a device's name: the node is short of it.
    assert_eq!(unheard_of(&asks(&["hugepages-2Mi"]), &has(&[])), None);
    // Its plugin is gone, and it was there.
    let gone = ExtendedResources {
        amounts: [("example.com/gpu".into(), Default::default())].into(),
        ..ExtendedResources::default()
    };
    let node = has(&[]).with_extended(&gone, true);
    assert_eq!(unheard_of(&asks(&["example.com/gpu"]), &node), None);
}
