use mainstay_podspec::runtime::NodeSettings;
use mainstay_types::{
    ContainerPhase, EventSink, FullName, ObservedContainer, ObservedSandbox, RuntimeHealth,
};
use serde_json::json;

use super::*;
use crate::PullLimits;

fn finished(read_at: Instant) -> ObservedState {
    let now = Timestamp::now();
    let container = ObservedContainer {
        id: "c0".into(),
        sandbox: "s0".into(),
        name: "c".into(),
        restart_count: 0,
        hash: 0,
        phase: ContainerPhase::Exited,
        created_at: now,
        started_at: Some(now),
        finished_at: Some(now),
        exit_code: 0,
        reason: "Completed".into(),
        message: "".into(),
        image: "i".into(),
        image_ref: "i".into(),
        log_path: "".into(),
        user: None,
        termination_grace_seconds: None,
    };
    let sandbox = ObservedSandbox {
        id: "s0".into(),
        attempt: 0,
        ready: false,
        created_at: now,
        ips: Vec::new(),
        host_network: false,
        source: None,
    };
    let pod = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at,
        sandboxes: vec![sandbox],
        containers: vec![container],
    };
    ObservedState {
        generation: 1,
        listed_at: Some(read_at),
        pods: [(PodUid::from("u1"), Arc::new(pod))].into(),
        runtime: Arc::new(RuntimeHealth { name: "test".into(), reachable: true, ..RuntimeHealth::default() }),
    }
}

fn desired(synced: bool) -> DesiredState {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap();
    let pod = DesiredPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        pod: Arc::new(pod),
        source: PodSource::File,
        origin: "".into(),
        terminate: None,
    };
    let pods = Arc::new([(PodUid::from("u1"), Arc::new(pod))].into());
    DesiredState { generation: 1, synced, pods, ..DesiredState::default() }
}

/// Runs the actor on a pod that has finished, with an observer that answers every wish, until it has settled.
async fn settle(synced: bool) -> (TaskGroup, Heartbeat, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let tasks = TaskGroup::new();
    let (refresh, mut wishes) = mpsc::channel(16);
    let (events, _receiver) = EventSink::bounded(16);
    let heartbeat = Heartbeat::default();
    let config = ReconcileConfig {
        cri: mainstay_cri::Cri::new("unix:///nonexistent.sock", None, Duration::from_secs(1)).unwrap(),
        refresh,
        events,
        node: NodeSettings { root_dir: dir.path().to_owned(), ..NodeSettings::default() },
        host_resolv: None,
        cluster_dns: Vec::new(),
        cgroups: None,
        container_log_links: dir.path().join("links"),
        pulls: PullLimits { parallel: None, per_second: 0, burst: 0 },
        max_restart_period: Duration::from_secs(300),
        sync_frequency: Duration::from_secs(60),
        ownership: Ownership::OnlyOurs,
        heartbeat: heartbeat.clone(),
    };
    let (_keep, wanted) = watch::channel(Arc::new(desired(synced)));
    let (seen, observed) = watch::channel(Arc::new(finished(Instant::now())));
    let (mut outcomes, _) = start(config, wanted, observed, &tasks).unwrap();
    tasks.spawn("observer", async move {
        let _keep = _keep;
        while wishes.recv().await.is_some() {
            seen.send_replace(Arc::new(finished(Instant::now())));
        }
    });
    let rest = outcomes.wait_for(|o| o.pods.values().any(|pod| pod.stage == PodStage::Terminated));
    tokio::time::timeout(Duration::from_secs(10), rest).await.unwrap().unwrap();
    (tasks, heartbeat, dir)
}

#[tokio::test]
async fn a_finished_pod_keeps_nobody_awake() {
    let (tasks, heartbeat, _dir) = settle(true).await;
    // Longer than a reading is waited for, so that whatever was set to wake the actor has done so.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = heartbeat.beats();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let turns = heartbeat.beats() - before;
    assert!(turns < 5, "{turns} turns in two seconds in which nothing happened");
    tasks.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_source_that_does_not_deliver_holds_up_no_pod_of_another() {
    let (tasks, _, _dir) = settle(false).await;
    tasks.drain(Duration::from_secs(1)).await;
}
