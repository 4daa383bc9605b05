//! Statuses that depend on what was said before: pod, runtime and last status as data in, one container's status out.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use mainstay_lifecycle::{StatusInput, pod_status};
use mainstay_types::{DesiredPod, FullName, ObservedPod, ObservedSandbox, PodOutcome, PodSource, PodStage};
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

fn outcome(pod: &Pod, restarting_all: bool) -> PodOutcome {
    PodOutcome {
        desired: Arc::new(DesiredPod {
            uid: "u1".into(),
            full_name: FullName::new("default", "p"),
            pod: Arc::new(pod.clone()),
            source: PodSource::File,
            origin: "/manifests/p.yaml".into(),
            terminate: None,
        }),
        stage: PodStage::Syncing,
        start_time: time(),
        reasons: BTreeMap::new(),
        finished: None,
        failure: None,
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
    pod_status(&StatusInput {
        pod: &pod,
        observed: Some(&observed),
        outcome: &outcome,
        previous: Some(previous),
        runtime_name: "containerd",
        host_ips: &[],
        qos_class: "BestEffort",
        resources: &Default::default(),
        now: time(),
    })
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
