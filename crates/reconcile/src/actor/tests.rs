use mainstay_podspec::runtime::NodeSettings;
use mainstay_policy::{NodeFacts, Sysctls};
use mainstay_types::{
    ContainerPhase, EventSink, FullName, ObservedContainer, ObservedSandbox, RuntimeHealth,
};
use serde_json::json;

use super::*;
use crate::{PullLimits, pod::tests::desired_from_file};

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
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
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
        silent: HashMap::new(),
        runtime: Arc::new(RuntimeHealth { name: "test".into(), reachable: true, ..RuntimeHealth::default() }),
    }
}

fn desired(synced: bool) -> DesiredState {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap();
    let pod = desired_from_file(pod);
    let pods = Arc::new([(PodUid::from("u1"), Arc::new(pod))].into());
    DesiredState { generation: 1, synced, pods, ..DesiredState::default() }
}

fn resources(dir: &std::path::Path, tasks: &TaskGroup) -> mainstay_resources::Resources {
    let config = mainstay_devices::DevicesConfig {
        directory: dir.join("device-plugins"),
        copy: dir.join("mainstay/devices.json"),
        recorded: false,
        assignments: watch::channel(Arc::default()).0,
        patience: mainstay_devices::Patience::default(),
        counters: Arc::default(),
    };
    let devices = mainstay_devices::start(config, tasks).unwrap().0;
    let config = mainstay_resources::ResourcesConfig {
        root: dir.to_owned(),
        recorded: false,
        patience: mainstay_resources::PATIENCE,
        host: mainstay_host::Host::default(),
        cpus: None,
        memory: None,
        topology: mainstay_resources::TopologySettings::default(),
        pod_level: false,
        period: Duration::from_secs(10),
        devices,
        assignments: watch::channel(Arc::default()).0,
        counters: Arc::default(),
    };
    mainstay_resources::start(config, tasks).unwrap().0
}

/// A node without a runtime, and what it wishes to be read.
fn node(dir: &std::path::Path, tasks: &TaskGroup) -> (ReconcileConfig, mpsc::Receiver<ReadWish>) {
    let (refresh, wishes) = mpsc::channel(16);
    let (events, _receiver) = EventSink::bounded(16);
    let config = ReconcileConfig {
        tracer: mainstay_trace::Tracer::default(),
        cri: mainstay_cri::Cri::new("unix:///nonexistent.sock", None, Duration::from_secs(1)).unwrap(),
        refresh,
        counters: Arc::default(),
        events,
        node: NodeSettings { root_dir: dir.to_owned(), ..NodeSettings::default() },
        admission: NodeFacts {
            name: "node".into(),
            resources: Arc::default(),
            taints: Vec::new(),
            sysctls: Sysctls::default(),
            app_armor: false,
            pod_level_resources: true,
            pressure: mainstay_types::NodePressure::default(),
        },
        pressure: tokio::sync::watch::channel(mainstay_types::NodePressure::default()).1,
        resources: resources(dir, tasks),
        cpusets_period: Duration::from_secs(10),
        addresses: watch::channel(Arc::from([])).1,
        resolv_conf: None,
        cluster_dns: Vec::new(),
        cgroups: None,
        container_log_links: dir.join("links"),
        volume_jobs: mainstay_volume::Jobs::default(),
        credential_providers: Vec::new(),
        accounts: None,
        node_questions: None,
        pull_verification: mainstay_policy::PullVerification::Never,
        pulls: PullLimits { parallel: None, per_second: 0, burst: 0 },
        max_restart_period: Duration::from_secs(300),
        sync_frequency: Duration::from_secs(60),
        ownership: Ownership::OnlyOurs,
        heartbeat: Heartbeat::default(),
        id_pool: crate::IdPool::default(),
    };
    (config, wishes)
}

/// Runs the actor on a pod that has finished, with an observer that answers every wish, until it has settled.
async fn settle(synced: bool) -> (TaskGroup, Heartbeat, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let tasks = TaskGroup::new();
    let (config, mut wishes) = node(dir.path(), &tasks);
    let heartbeat = config.heartbeat.clone();
    let (_keep, wanted) = watch::channel(Arc::new(desired(synced)));
    let (seen, observed) = watch::channel(Arc::new(finished(Instant::now())));
    // Kept: a channel that ends ends the actor.
    let (_probe_writer, probes) = watch::channel(ProbeResults::default());
    let (mut outcomes, _) = start(config, wanted, observed, probes, &tasks).unwrap();
    tasks.spawn("observer", async move {
        let _keep = _keep;
        while wishes.recv().await.is_some() {
            seen.send_replace(Arc::new(finished(Instant::now())));
        }
    });
    let rest = outcomes.wait_for(|o| o.pods.values().any(|pod| pod.stage == PodStage::Terminated));
    tokio::time::timeout(Duration::from_secs(60), rest).await.unwrap().unwrap();
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

/// Waits until the actor has done something more.
async fn turn(heartbeat: &Heartbeat) {
    let beats = heartbeat.beats();
    let turned = async {
        while heartbeat.beats() == beats {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), turned).await.unwrap();
}

/// A device's holders are looked up when it is known whose the containers are that run: after a takeover when the API server has answered. One that
/// ends beside others is noticed when it is seen to have ended, though its pod starts nothing.
#[tokio::test]
async fn who_holds_what_is_looked_up_when_everything_that_runs_is_known() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("device-plugins")).unwrap();
    std::fs::write(dir.path().join("device-plugins/kubelet_internal_checkpoint"), "{").unwrap();
    let tasks = TaskGroup::new();
    let (config, _wishes) = node(dir.path(), &tasks);
    let resources = config.resources.clone();
    assert!(resources.is_lost());
    // Two containers of a pod of which no source has told.
    let running = |ended: bool| {
        let mut state = finished(Instant::now());
        let mut pod = ObservedPod::clone(&state.pods[&PodUid::from("u1")]);
        pod.sandboxes[0].ready = true;
        let mut second = pod.containers[0].clone();
        (second.id, second.name) = ("d0".into(), "d".into());
        pod.containers.push(second);
        for container in pod.containers.iter_mut().take(if ended { 1 } else { 2 }) {
            container.phase = ContainerPhase::Running;
        }
        state.pods = [(PodUid::from("u1"), Arc::new(pod))].into();
        Arc::new(state)
    };
    let limits = json!({"limits": {"example.com/dev": "1"}});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "i", "resources": limits}, {"name": "d", "image": "i", "resources": limits},
        ]},
    }))
    .unwrap();
    let whole = DesiredState {
        pods: Arc::new([(PodUid::from("u1"), Arc::new(desired_from_file(pod)))].into()),
        ..desired(true)
    };
    let silent = DesiredState { synced: false, pods: Arc::default(), ..desired(false) };
    let (sources, wanted) = watch::channel(Arc::new(silent));
    let (seen, observed) = watch::channel(running(false));
    let (_probe_writer, probes) = watch::channel(ProbeResults::default());
    let heartbeat = config.heartbeat.clone();
    let (_outcomes, _) = start(config, wanted, observed, probes, &tasks).unwrap();
    seen.send_replace(running(false));
    turn(&heartbeat).await;
    assert!(resources.is_lost(), "nobody has said whose that is");

    // Now it is said, and the runtime does not answer about another pod.
    let mut silent = ObservedState::clone(&running(false));
    silent.silent.insert(PodUid::from("u2"), FullName::new("default", "q"));
    let mut changes = resources.changes();
    seen.send_replace(Arc::new(silent));
    turn(&heartbeat).await;
    sources.send_replace(Arc::new(whole));
    turn(&heartbeat).await;
    assert!(resources.is_lost(), "what that one has nobody knows");
    seen.send_replace(running(false));
    tokio::time::timeout(Duration::from_secs(60), changes.changed()).await.unwrap().unwrap();
    assert!(!resources.is_lost());
    assert_eq!(resources.devices().unsure_pods(), [PodUid::from("u1")]);
    // The second one ends; then so does the first.
    let unsure = |resources: &mainstay_resources::Resources| resources.devices().unsure_containers();
    assert_eq!(unsure(&resources), 2);
    seen.send_replace(running(true));
    let noticed = async {
        while unsure(&resources) == 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), noticed).await.unwrap();
    assert_eq!(unsure(&resources), 1);
    tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_pod_that_was_going_when_mainstay_ended_goes_on_going_whatever_is_heard_of_first() {
    let mut wanted = desired(true);
    let going = wanted.pods.values().next().unwrap().clone();
    wanted.pods = Arc::default();
    let wanted = Arc::new(wanted);
    // Which of two news is heard of first is left to chance.
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let before = TaskGroup::new();
        let mut memory = PodMemory::new(Timestamp::now());
        memory.deletion = Some(mainstay_types::Deletion { since: Timestamp::now(), grace_seconds: 1 });
        Records::open(dir.path(), &before).unwrap().records.keep(&going, &memory);
        before.drain(Duration::from_secs(10)).await;

        let tasks = TaskGroup::new();
        let (config, mut wishes) = node(dir.path(), &tasks);
        let (_sources, desired) = watch::channel(Arc::clone(&wanted));
        let reading = finished(Instant::now());
        let (seen, observed) = watch::channel(Arc::new(reading.clone()));
        let (_probe_writer, probes) = watch::channel(ProbeResults::default());
        let (_outcomes, problems) = start(config, desired, observed, probes, &tasks).unwrap();
        assert_eq!(problems, Vec::<String>::new());
        // Another reading, with nothing new about the pod.
        seen.send_replace(Arc::new(reading));
        // Having tried to remove it, the actor wishes to know what is left.
        let wish = tokio::time::timeout(Duration::from_secs(60), wishes.recv()).await;
        assert_eq!(wish.expect("nothing was done about the pod").unwrap().uid, going.uid);
        tasks.drain(Duration::from_secs(5)).await;
    }
}

/// A misspelt name, most likely: the pod runs, as with upstream, and somebody is told.
#[tokio::test]
async fn a_resource_of_which_nobody_has_told_is_warned_of_once() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = TaskGroup::new();
    let (mut config, _wishes) = node(dir.path(), &tasks);
    let (events, mut told) = EventSink::bounded(64);
    config.events = events;
    let list = json!({"example.com/gpuu": "1"});
    let resources = json!({"requests": list, "limits": list});
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    });
    let pod = Arc::new(desired_from_file(serde_json::from_value(pod).unwrap()));
    let pods = Arc::new([(PodUid::from("u1"), pod)].into());
    let wanted = DesiredState { generation: 1, synced: true, pods, ..DesiredState::default() };
    let (_wanted, desired) = watch::channel(Arc::new(wanted));
    let empty = || ObservedState { pods: HashMap::new(), ..finished(Instant::now()) };
    let (seen, observed) = watch::channel(Arc::new(empty()));
    let (_probes, probes) = watch::channel(ProbeResults::default());
    let (_outcomes, _) = start(config, desired, observed, probes, &tasks).unwrap();
    let mut warned = 0;
    // The runtime is not there, so the pod is tried again and again; it was let in once.
    let mut trouble = 0;
    while trouble < 2 {
        let event = tokio::time::timeout(Duration::from_secs(60), told.recv()).await.unwrap().unwrap();
        if event.reason == "UnknownResource" {
            warned += 1;
            assert_eq!(event.kind, EventKind::Warning);
            assert!(event.message.starts_with("No device plugin has told of example.com/gpuu,"), "{event:?}");
        } else {
            trouble += 1;
        }
        seen.send_replace(Arc::new(empty()));
    }
    assert_eq!(warned, 1);
    tasks.drain(Duration::from_secs(1)).await;
}

/// Many pods of a server that has died are brought up to date in turns, and none of them may keep others from theirs.
#[tokio::test]
async fn pods_whose_volumes_hang_keep_no_other_from_being_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = TaskGroup::new();
    let (config, _wishes) = node(dir.path(), &tasks);
    let hanging: Vec<String> = (0..crate::volumes::REFRESHES).map(|n| format!("hangs-{n}")).collect();
    let mut held = Vec::new();
    for uid in &hanging {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        held.push(release);
        let work = move |_: &mainstay_volume::Progress| wait.recv().ok();
        config.volume_jobs.run(uid, Duration::from_millis(1), work).await.unwrap_err();
    }
    let all: Vec<&str> = hanging.iter().map(String::as_str).chain(["well"]).collect();
    let wanted = |uids: &[&str]| {
        let pods = uids.iter().map(|uid| {
            let pod = json!({
                "metadata": {"name": uid, "namespace": "default", "uid": uid},
                "spec": {
                    "containers": [{"name": "c", "image": "i"}],
                    "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
                },
            });
            let pod = desired_from_file(serde_json::from_value(pod).unwrap());
            let pod = DesiredPod { uid: (*uid).into(), full_name: FullName::new("default", uid), ..pod };
            (PodUid::from(*uid), Arc::new(pod))
        });
        let config_maps = [(FullName::new("default", "cm"), Arc::default())].into();
        let objects = Arc::new(mainstay_types::Objects { config_maps, ..Default::default() });
        Arc::new(DesiredState { pods: Arc::new(pods.collect()), objects, ..desired(true) })
    };
    let running = |uid: &&str| {
        let mut pod = ObservedPod::clone(&finished(Instant::now()).pods[&PodUid::from("u1")]);
        (pod.uid, pod.full_name) = ((*uid).into(), FullName::new("default", uid));
        pod.sandboxes[0].ready = true;
        pod.containers[0].phase = ContainerPhase::Running;
        pod.containers[0].hash = mainstay_types::container_hash("c", "i");
        (PodUid::from(*uid), Arc::new(pod))
    };
    let seen = ObservedState { pods: all.iter().map(running).collect(), ..finished(Instant::now()) };
    let heartbeat = config.heartbeat.clone();
    let (sources, desired) = watch::channel(wanted(&all[..hanging.len()]));
    let (_seen, observed) = watch::channel(Arc::new(seen));
    let (_probe_writer, probes) = watch::channel(ProbeResults::default());
    let (_outcomes, _) = start(config, desired, observed, probes, &tasks).unwrap();
    turn(&heartbeat).await;
    let begun = Instant::now();
    sources.send_replace(wanted(&all));
    let volume = dir.path().join("pods/well/volumes/kubernetes.io~configmap/v/..data");
    while volume.symlink_metadata().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(5), "it waits for those that hang");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(held);
    tasks.drain(Duration::from_secs(5)).await;
}
