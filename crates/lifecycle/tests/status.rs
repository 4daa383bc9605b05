//! Statuses that depend on what was said before: pod, runtime and last status as data in, one container's status out.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Instant,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use mainstay_lifecycle::{StatusInput, pod_status};
use mainstay_types::{
    Assignments, ContainerPhase, ContainerProbes, Deletion, DesiredPod, DeviceHealth, FullName, HeldDevice,
    ObservedContainer, ObservedPod, ObservedSandbox, PodFailure, PodOutcome, PodProbes, PodSource, PodStage,
    PodUid, RemoteStatus, TerminalPhase, Verdict,
};
use serde_json::{Value, json};

fn time() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "worker", "image": "i"},
            {"name": "trigger", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]},
        ]},
    }))
    .unwrap()
}

/// What is said of a pod about which all the rest is as usual.
fn told(
    pod: &Pod,
    observed: Option<&ObservedPod>,
    (outcome, previous): (&PodOutcome, Option<&PodStatus>),
    probes: &PodProbes,
    recursive_read_only: bool,
) -> PodStatus {
    pod_status(&input(pod, observed, (outcome, previous), probes, recursive_read_only))
}

fn input<'a>(
    pod: &'a Pod,
    observed: Option<&'a ObservedPod>,
    (outcome, previous): (&'a PodOutcome, Option<&'a PodStatus>),
    probes: &'a PodProbes,
    recursive_read_only: bool,
) -> StatusInput<'a> {
    static RESOURCES: LazyLock<ResourceRequirements> = LazyLock::new(Default::default);
    StatusInput {
        pod,
        observed,
        outcome,
        probes,
        previous,
        runtime_name: "containerd",
        host_ips: &[],
        recursive_read_only,
        qos_class: "BestEffort",
        resources: &RESOURCES,
        held: None,
        now: time(),
    }
}

fn outcome(pod: &Pod, restarting_all: bool) -> PodOutcome {
    PodOutcome {
        desired: Arc::new(DesiredPod {
            uid: "u1".into(),
            full_name: FullName::new("default", "p"),
            pod: Arc::new(pod.clone()),
            source: PodSource::File,
            origin: "/manifests/p.yaml".into(),
            terminate: None,
            remote: None,
        }),
        stage: PodStage::Syncing,
        start_time: time(),
        reasons: BTreeMap::new(),
        finished: None,
        failure: None,
        rejected: false,
        not_started: Vec::new(),
        deletion: None,
        restarting_all,
    }
}

/// The status of a pod whose containers are all gone from the runtime, and whose sandbox is there.
fn vanished(previous: &PodStatus, restarting_all: bool) -> PodStatus {
    let pod = pod();
    let observed = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes: vec![ObservedSandbox {
            id: "s0".into(),
            attempt: 0,
            ready: true,
            created_at: time(),
            ips: vec!["10.0.0.1".into()],
            host_network: false,
            source: None,
        }],
        containers: Vec::new(),
    };
    let outcome = outcome(&pod, restarting_all);
    told(&pod, Some(&observed), (&outcome, Some(previous)), &PodProbes::default(), false)
}

#[test]
fn the_end_of_a_pod_that_is_being_deleted_stands() {
    let pod = pod();
    let deletion = Some(Deletion { since: time(), grace_seconds: 1 });
    for (row, deletion, said, expected) in [
        ("ended well", deletion, "Succeeded", "Succeeded"),
        ("ended badly", deletion, "Failed", "Failed"),
        ("never began", deletion, "Pending", "Pending"),
        ("starts anew", None, "Succeeded", "Pending"),
    ] {
        let mut before =
            previous(json!({"terminated": {"exitCode": 0, "containerID": "containerd://old"}}), false);
        before.phase = Some(said.to_owned());
        let outcome = PodOutcome { deletion, ..outcome(&pod, false) };
        let status = told(&pod, None, (&outcome, Some(&before)), &PodProbes::default(), false);
        assert_eq!(status.phase.as_deref(), Some(expected), "{row}");
        if expected == said && said != "Pending" {
            assert_eq!(status, before, "{row}");
        }
    }
}

#[test]
fn who_made_room_for_another_says_so_when_it_has_gone() {
    let pod = pod();
    let scheduler = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"});
    let remote = RemoteStatus {
        conditions: vec![serde_json::from_value(scheduler).unwrap()],
        ..RemoteStatus::default()
    };
    for (row, reason, finished, expected) in [
        ("preempted", "Preempting", Some(TerminalPhase::Failed), vec!["TerminationByKubelet"]),
        ("its limits", "Evicted", Some(TerminalPhase::Failed), vec!["PreemptionByScheduler"]),
        ("not over", "Preempting", None, vec!["PreemptionByScheduler"]),
    ] {
        let mut outcome = outcome(&pod, false);
        outcome.finished = finished;
        outcome.failure = Some(PodFailure { reason: reason.into(), message: "m".into() });
        Arc::make_mut(&mut outcome.desired).remote = Some(Arc::new(remote.clone()));
        let status = told(&pod, None, (&outcome, None), &PodProbes::default(), false);
        let conditions = status.conditions.iter().flatten().filter(|it| it.type_ == "DisruptionTarget");
        let reasons: Vec<_> = conditions.filter_map(|it| it.reason.as_deref()).collect();
        assert_eq!(reasons, expected, "{row}");
    }
}

fn previous(state: Value, restarting: bool) -> PodStatus {
    let status = |name: &str| {
        json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
               "containerID": "containerd://old"})
    };
    serde_json::from_value(json!({
        "phase": "Running",
        "conditions": [{"type": "AllContainersRestarting", "status": if restarting { "True" } else { "False" }}],
        "containerStatuses": [status("trigger"), status("worker")],
    }))
    .unwrap()
}

#[test]
fn containers_removed_to_restart_all_are_not_lost() {
    let running = json!({"running": {}});
    let ended = json!({"terminated": {"exitCode": 88, "containerID": "containerd://old"}});
    for (row, state, said, flag, count, waiting, last) in [
        (
            "running, being restarted",
            &running,
            true,
            true,
            1,
            "RestartingAllContainers",
            "RestartingAllContainers",
        ),
        (
            "ended, being restarted",
            &ended,
            true,
            true,
            1,
            "RestartingAllContainers",
            "RestartingAllContainers",
        ),
        (
            "the flag is lowered in the same moment",
            &running,
            true,
            false,
            1,
            "ContainerCreating",
            "RestartingAllContainers",
        ),
        ("really lost", &running, false, false, 1, "ContainerCreating", "ContainerStatusUnknown"),
    ] {
        let status = vanished(&previous(state.clone(), said), flag);
        let worker =
            status.container_statuses.iter().flatten().find(|status| status.name == "worker").unwrap();
        let state = worker.state.clone().unwrap().waiting.unwrap();
        let ended = worker.last_state.clone().unwrap().terminated.unwrap();
        assert_eq!(worker.restart_count, count, "{row}");
        assert_eq!(state.reason.as_deref(), Some(waiting), "{row}");
        assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some(last), 137), "{row}");
        assert_eq!(ended.container_id.as_deref(), Some("containerd://old"), "{row}");
        let again = vanished(&status, flag);
        assert_eq!(
            again.container_statuses, status.container_statuses,
            "{row}: looking twice changes nothing"
        );
        let condition =
            status.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting").unwrap();
        assert_eq!(condition.status == "True", flag, "{row}");
    }
}

/// Instance `c1` of container `a`, running.
fn running_container() -> ObservedContainer {
    ObservedContainer {
        id: "c1".into(),
        sandbox: "s0".into(),
        name: "a".into(),
        restart_count: 0,
        hash: 0,
        phase: ContainerPhase::Running,
        created_at: time(),
        started_at: Some(time()),
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "i".into(),
        image_ref: "".into(),
        log_path: "".into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
    }
}

/// A reading that found this container, and no sandbox.
fn observed_with(container: ObservedContainer) -> ObservedPod {
    ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes: Vec::new(),
        containers: vec![container],
    }
}

#[test]
fn a_pod_that_was_started_over_unseen_says_so() {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]);
    for (row, rules, count, expected) in [
        ("started over", &rule, 1, Some("RestartingAllContainers")),
        ("no such rule", &json!([]), 1, None),
        ("the same count: another list was looked at", &rule, 0, None),
    ] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
            "spec": {"containers": [{"name": "a", "image": "i", "restartPolicyRules": rules}]},
        }))
        .unwrap();
        let observed = observed_with(ObservedContainer { restart_count: count, ..running_container() });
        let before = json!({"name": "a", "image": "i", "imageID": "", "restartCount": 0, "ready": true,
            "state": {"running": {}}, "containerID": "containerd://c0"});
        let before =
            serde_json::from_value(json!({"phase": "Running", "containerStatuses": [before]})).unwrap();
        let said = (&outcome(&pod, false), Some(&before));
        let status = told(&pod, Some(&observed), said, &PodProbes::default(), false);
        let last = status.container_statuses.unwrap()[0].last_state.clone().unwrap().terminated;
        assert_eq!(last.as_ref().and_then(|end| end.reason.as_deref()), expected, "{row}");
        let id = last.and_then(|end| end.container_id);
        assert_eq!(id.as_deref(), expected.map(|_| "containerd://c0"), "{row}");
    }
}

/// Started and ready of a running container with a startup and a readiness probe, after these verdicts, when `before`
/// is what was said last (of instance `c1` or another).
fn probed(verdicts: ContainerProbes, before: Option<(&str, bool, bool)>) -> (bool, bool) {
    let exec = json!({"exec": {"command": ["true"]}});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "a", "image": "i", "startupProbe": exec, "readinessProbe": exec}]},
    }))
    .unwrap();
    let container = running_container();
    let observed = observed_with(container);
    let previous: Option<PodStatus> = before.map(|(id, started, ready)| {
        let status = json!({"name": "a", "image": "i", "imageID": "", "restartCount": 0, "state": {"running": {}},
            "containerID": format!("containerd://{id}"), "started": started, "ready": ready});
        serde_json::from_value(json!({"phase": "Running", "containerStatuses": [status]})).unwrap()
    });
    let status = told(
        &pod,
        Some(&observed),
        (&outcome(&pod, false), previous.as_ref()),
        &PodProbes::from_iter([("c1".into(), verdicts)]),
        false,
    );
    let ready = status.conditions.unwrap().iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let status = &status.container_statuses.unwrap()[0];
    assert_eq!(status.ready, ready, "the condition follows");
    (status.started.unwrap(), status.ready)
}

#[test]
fn started_and_ready_follow_the_probes() {
    use Verdict::{Failed, Passed};
    let verdicts = |startup, readiness| ContainerProbes { startup, readiness, liveness: None };
    for (row, shown, before, expected) in [
        ("nothing known", verdicts(None, None), None, (false, false)),
        ("up", verdicts(Some(Passed), None), None, (true, false)),
        ("up and ready", verdicts(Some(Passed), Some(Passed)), None, (true, true)),
        ("no longer ready", verdicts(Some(Passed), Some(Failed)), Some(("c1", true, true)), (true, false)),
        ("not up", verdicts(Some(Failed), Some(Passed)), None, (false, false)),
        ("mainstay restarted: it was ready", verdicts(None, None), Some(("c1", true, true)), (true, true)),
        ("it was not", verdicts(None, None), Some(("c1", true, false)), (true, false)),
        ("that was another instance", verdicts(None, None), Some(("c0", true, true)), (false, false)),
    ] {
        assert_eq!(probed(shown, before), expected, "{row}");
    }
}

/// The reason and the stop signal that are shown of a container that ended, when `said` is what was said last of which
/// instance.
fn ended(container: ObservedContainer, said: Option<(&str, &str)>) -> (String, Option<String>) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "a", "image": "i"}]},
    }))
    .unwrap();
    let observed = observed_with(container);
    let previous: Option<PodStatus> = said.map(|(id, reason)| {
        let end = json!({"exitCode": 137, "reason": reason, "containerID": format!("containerd://{id}")});
        let status = json!({"name": "a", "image": "i", "imageID": "", "restartCount": 0, "ready": false,
            "state": {"waiting": {}}, "lastState": {"terminated": end}});
        serde_json::from_value(json!({"phase": "Running", "containerStatuses": [status]})).unwrap()
    });
    let status =
        told(&pod, Some(&observed), (&outcome(&pod, false), previous.as_ref()), &PodProbes::default(), false);
    let status = status.container_statuses.unwrap().remove(0);
    (status.state.unwrap().terminated.unwrap().reason.unwrap(), status.stop_signal)
}

#[test]
fn a_kill_for_want_of_memory_is_named_when_there_is_evidence_of_it() {
    let base = ObservedContainer {
        phase: ContainerPhase::Exited,
        exit_code: 137,
        reason: "Error".into(),
        ..running_container()
    };
    let killed = ObservedContainer { oom_killed: true, ..base.clone() };
    let failed = ObservedContainer { exit_code: 1, ..killed.clone() };
    let known = ObservedContainer { reason: "OOMKilled".into(), ..base.clone() };
    for (row, container, said, expected) in [
        ("somebody sent SIGKILL", &base, None, "Error"),
        ("the pod's cgroup has counted", &killed, None, "OOMKilled"),
        ("it ended by itself", &failed, None, "Error"),
        ("the runtime knows", &known, None, "OOMKilled"),
        ("it was said before", &base, Some(("c1", "OOMKilled")), "OOMKilled"),
        ("of another instance", &base, Some(("c0", "OOMKilled")), "Error"),
        ("something else was said", &base, Some(("c1", "Error")), "Error"),
    ] {
        assert_eq!(ended(container.clone(), said).0, expected, "{row}");
    }
    let signalled = ObservedContainer { stop_signal: Some("SIGUSR1".into()), ..base };
    assert_eq!(ended(signalled, None).1.as_deref(), Some("SIGUSR1"));
}

/// What is said of a mount that wishes for `wish`, when the runtime can (or cannot), and `before` was said of instance `c1`.
fn recursive(mount: Value, can: bool, before: Option<&str>) -> Option<String> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "a", "image": "i", "volumeMounts": [mount]}]},
    }))
    .unwrap();
    let observed = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes: Vec::new(),
        containers: vec![running_container()],
    };
    let previous: Option<PodStatus> = before.map(|said| {
        let mounts = json!([{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": said}]);
        let status = json!({"name": "a", "image": "i", "imageID": "", "restartCount": 0, "ready": true,
            "containerID": "containerd://c1", "volumeMounts": mounts});
        serde_json::from_value(json!({"phase": "Running", "containerStatuses": [status]})).unwrap()
    });
    let status =
        told(&pod, Some(&observed), (&outcome(&pod, false), previous.as_ref()), &PodProbes::default(), can);
    let containers = status.container_statuses.unwrap();
    containers[0].volume_mounts.as_ref().unwrap()[0].recursive_read_only.clone()
}

#[test]
fn mounts_are_said_to_be_what_they_were_made() {
    let mount =
        |wish: &str| json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": wish});
    let plain = json!({"name": "v", "mountPath": "/v"});
    let read_only = json!({"name": "v", "mountPath": "/v", "readOnly": true});
    for (row, mount, can, before, expected) in [
        ("writable", plain, true, None, None),
        ("read-only", read_only, true, None, Some("Disabled")),
        ("if possible, and it is", mount("IfPossible"), true, None, Some("Enabled")),
        ("if possible, and it is not", mount("IfPossible"), false, None, Some("Disabled")),
        ("enabled", mount("Enabled"), true, None, Some("Enabled")),
        ("not wanted", mount("Disabled"), true, None, Some("Disabled")),
        ("made before the runtime could", mount("IfPossible"), true, Some("Disabled"), Some("Disabled")),
        ("the runtime is away", mount("IfPossible"), false, Some("Enabled"), Some("Enabled")),
    ] {
        assert_eq!(recursive(mount, can, before).as_deref(), expected, "{row}");
    }
}

#[test]
fn a_lost_container_counts_as_restarted_once_and_for_good() {
    let pod = pod();
    let outcome = outcome(&pod, false);
    let say = |container: ObservedContainer, before: Option<&PodStatus>| {
        let observed = observed_with(container);
        told(&pod, Some(&observed), (&outcome, before), &PodProbes::default(), false)
    };
    let worker = |status: &PodStatus| {
        let list = status.container_statuses.iter().flatten();
        list.into_iter().find(|container| container.name == "worker").cloned().unwrap()
    };
    let first = ObservedContainer { name: "worker".into(), ..running_container() };
    let lost = ObservedContainer { phase: ContainerPhase::Unknown, ..first.clone() };
    let next = ObservedContainer { id: "next".into(), restart_count: 1, ..first.clone() };
    let mut before = None;
    let mut counts = Vec::new();
    for container in [first, lost.clone(), lost.clone(), lost, next] {
        let status = say(container, before.as_ref());
        counts.push(worker(&status).restart_count);
        before = Some(status);
    }
    assert_eq!(counts, [0, 1, 1, 1, 1]);
    let last = worker(before.as_ref().unwrap()).last_state.unwrap().terminated.unwrap();
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
}

#[test]
fn how_devices_are_is_told_of_whoever_holds_them() {
    let pod = pod();
    let before: PodStatus = serde_json::from_value(json!({
        "containerStatuses": [{"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "allocatedResourcesStatus": [{"name": "a.com/x", "resources": [{"resourceID": "1", "health": "Unhealthy"}]}]}],
    }))
    .unwrap();
    for (row, health, previous, expected) in [
        ("told so", DeviceHealth::Healthy, None, "Healthy"),
        ("told otherwise", DeviceHealth::Unhealthy, None, "Unhealthy"),
        ("nobody tells", DeviceHealth::Unknown, Some(&before), "Unknown"),
        ("not told since a restart", DeviceHealth::Awaited, Some(&before), "Unhealthy"),
        ("never told", DeviceHealth::Awaited, None, "Unknown"),
    ] {
        let device = HeldDevice { resource: "a.com/x".into(), id: "1".into(), nodes: Vec::new(), health };
        let mut all = Assignments::default();
        all.set_devices(Vec::new(), [("u1".into(), "worker".into(), vec![device])]);
        let outcome = outcome(&pod, false);
        let status = pod_status(&StatusInput {
            held: all.pods.get(&PodUid::from("u1")).map(AsRef::as_ref),
            ..input(&pod, None, (&outcome, previous), &PodProbes::default(), false)
        });
        let told: Vec<_> = status
            .container_statuses
            .iter()
            .flatten()
            .map(|status| {
                (status.name.as_str(), serde_json::to_value(&status.allocated_resources_status).unwrap())
            })
            .collect();
        let devices = json!([{"name": "a.com/x", "resources": [{"resourceID": "1", "health": expected}]}]);
        assert_eq!(told, [("trigger", Value::Null), ("worker", devices)], "{row}");
    }
}
