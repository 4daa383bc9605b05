//! Every verb against a real server on a real socket, in one process.

use std::{
    collections::HashMap,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use mainstay_server::{Disks, ServerConfig, ServerState, bind};
use mainstay_snapshot::{EventStoreConfig, go_json, start_events};
use mainstay_task::TaskGroup;
use mainstay_types::{
    Assignments, ContainerPhase, CpuPlace, DesiredState, Event, EventKind, EventSink, EventTarget,
    FileVerdict, Filesystems, FullName, Heartbeat, HeldDevice, MemoryAmounts, MemoryBlock, NodeSnapshot,
    ObservedContainer, ObservedPod, ObservedState, Placement, PodUid, PodView, Ruling, RuntimeHealth,
    Samples,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;

mod pods;
mod stats;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: ClientCommand,
}

/// A server, and the ends that feed it.
struct Fixture {
    directory: tempfile::TempDir,
    snapshots: watch::Sender<Option<Arc<NodeSnapshot>>>,
    held: watch::Sender<Arc<Assignments>>,
    samples: watch::Sender<Arc<Samples>>,
    disks: watch::Sender<Arc<Filesystems>>,
    events: EventSink,
    tasks: TaskGroup,
    config: mainstay_server::ConfigPage,
}

impl Fixture {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    /// The same root again, after an end.
    async fn restart(self) -> Self {
        self.tasks.drain(PATIENCE).await;
        Self::start_in(self.directory)
    }

    fn start_in(directory: tempfile::TempDir) -> Self {
        let bound = bind(ServerConfig {
            socket: directory.path().join("mainstay.sock"),
            secure: None,
            read_only: None,
            healthz: None,
            sync_frequency: Duration::from_secs(60),
            split_log_streams: false,
            switches: Default::default(),
            acting: None,
            node_logs: Default::default(),
            host: Default::default(),
            families: Default::default(),
        })
        .unwrap();
        let tasks = TaskGroup::new();
        let config = mainstay_server::ConfigPage::default();
        let (snapshots, snapshot) = watch::channel(None);
        let (held, assignments) = watch::channel(Arc::default());
        let (samples, newest_samples) = watch::channel(Arc::default());
        let (disks, found) = watch::channel(Arc::default());
        let (events, receiver) = EventSink::bounded(64);
        let reader = start_events(EventStoreConfig::new("node1".into()), receiver, &tasks);
        bound.serve(
            ServerState {
                tracer: mainstay_trace::Tracer::default(),
                snapshot,
                events: reader,
                assignments,
                heartbeat: Heartbeat::default(),
                samples: newest_samples,
                probes: Default::default(),
                disks: Disks { found, ..Disks::default() },
                work: Default::default(),
                facts: Default::default(),
                calls: Default::default(),
                event_counts: Default::default(),
                counters: Default::default(),
                process_start: jiff::Timestamp::UNIX_EPOCH,
                process: mainstay_server::Process { config: config.clone(), ..Default::default() },
            },
            &tasks,
        );
        Self { directory, snapshots, held, samples, disks, events, tasks, config }
    }

    fn publish(&self, pods: &[Value]) {
        self.snapshots.send_replace(Some(Arc::new(snapshot(pods, self.directory.path()))));
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a verb to its end.
    async fn run(&self, arguments: &[&str]) -> Ran {
        let (command, output, ran) = self.prepare(arguments);
        let mut output = output;
        let result =
            tokio::time::timeout(PATIENCE, execute(command, &mut output)).await.expect("an end in time");
        let mut ran = ran;
        ran.code = if let Err(error) = &result {
            output.complain(error);
            error.exit_code()
        } else {
            0
        };
        ran
    }

    fn prepare(&self, arguments: &[&str]) -> (ClientCommand, Output, Ran) {
        let root = self.root().to_str().unwrap();
        let connect = ["--root-dir", root];
        let all = ["mainstay"].iter().chain(arguments).chain(&connect);
        let command = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{error}")).command;
        let ran = Ran::default();
        let output = Output::new(ran.out.clone(), ran.err.clone());
        (command, output, ran)
    }

    /// What an earlier life has told already.
    fn tell_again(&self, event: &Event) {
        assert!(self.events.send(event.clone()));
    }

    fn tell(&self, pod: &str, reason: &'static str, message: &str) -> Event {
        let target = EventTarget::Pod {
            uid: PodUid::from(format!("uid-{pod}")),
            full_name: FullName::new("default", &format!("{pod}-node1")),
            field_path: (reason == "BackOff").then(|| "spec.containers{main}".to_owned()),
        };
        let time = Timestamp::now() - SignedDuration::from_secs(750);
        let event =
            Event { target, kind: EventKind::Warning, reason: reason.into(), message: message.into(), time };
        assert!(self.events.send(event.clone()));
        event
    }
}

/// What a verb printed.
#[derive(Clone, Default)]
struct Ran {
    out: Buffer,
    err: Buffer,
    code: u8,
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Ran {
    #[track_caller]
    fn printed(&self) -> String {
        assert_eq!((self.code, self.err.text().as_str()), (0, ""));
        self.out.text()
    }

    #[track_caller]
    fn failed(&self, code: u8) -> String {
        assert_eq!((self.code, self.out.text().as_str()), (code, ""), "{}", self.err.text());
        self.err.text()
    }

    /// Waits until the output satisfies `check`.
    async fn wait(&self, check: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.out.text();
            if check(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "so far: {text}{}", self.err.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A pod as it would be published; `id` is its container's.
fn pod(namespace: &str, name: &str, status: Value) -> Value {
    json!({
        "metadata": {
            "name": format!("{name}-node1"), "namespace": namespace, "uid": format!("uid-{name}"),
            "labels": {"app": name},
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "busybox"}]},
        "status": status,
    })
}

/// Ages are taken in the middle of a minute, more than ten of them: there they are shown without seconds, and a slow test sees
/// the same.
fn ago(seconds: i64) -> String {
    (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string()
}

fn running(seconds_ago: i64) -> Value {
    json!({
        "phase": "Running", "startTime": ago(seconds_ago), "podIP": "10.9.0.5", "podIPs": [{"ip": "10.9.0.5"}],
        "containerStatuses": [{
            "name": "main", "image": "busybox", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "containerd://now", "state": {"running": {"startedAt": ago(seconds_ago)}},
        }],
    })
}

fn crashing() -> Value {
    json!({
        "phase": "Running", "startTime": ago(3030),
        "containerStatuses": [{
            "name": "main", "image": "busybox", "imageID": "", "ready": false, "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": ago(750), "containerID": "containerd://before"}},
        }],
    })
}

/// As in a real node, no two snapshots have the same number.
fn next_generation() -> u64 {
    static NEWEST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEWEST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
}

fn snapshot(pods: &[Value], root: &Path) -> NodeSnapshot {
    let observed: HashMap<PodUid, Arc<ObservedPod>> = pods
        .iter()
        .map(|pod| {
            let uid = PodUid::from(pod["metadata"]["uid"].as_str().unwrap());
            let metadata = &pod["metadata"];
            let full_name =
                FullName::new(metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap());
            let containers = vec![
                container("now", ContainerPhase::Running, &root.join("1.log")),
                container("before", ContainerPhase::Exited, &root.join("0.log")),
            ];
            let read_at = Instant::now();
            let pod = ObservedPod { uid: uid.clone(), full_name, read_at, sandboxes: vec![], containers };
            (uid, Arc::new(pod))
        })
        .collect();
    let views = pods
        .iter()
        .map(|value| {
            let mut pod: Pod = serde_json::from_value(value.clone()).unwrap();
            let uid = PodUid::from(value["metadata"]["uid"].as_str().unwrap());
            Arc::new(PodView {
                full_name: FullName::new(
                    value["metadata"]["namespace"].as_str().unwrap(),
                    value["metadata"]["name"].as_str().unwrap(),
                ),
                json: go_json(value).into(),
                observed: observed.get(&uid).cloned(),
                origin: format!("/manifests/{}.yaml", uid.as_str().trim_start_matches("uid-")).into(),
                source: mainstay_types::PodSource::File,
                stage: mainstay_types::PodStage::Syncing,
                uid,
                status: Arc::new(pod.status.take().unwrap_or_default()),
                pod: Arc::new(pod),
            })
        })
        .collect();
    let since = Timestamp::now() - SignedDuration::from_secs(3600);
    let verdicts = vec![
        FileVerdict {
            path: PathBuf::from("/manifests/web.yaml"),
            object: Some("Pod default/web".into()),
            ruling: Ruling::Accepted { warnings: vec!["spec.volumes[0] is not mounted".into()] },
            since,
        },
        FileVerdict {
            path: PathBuf::from("/manifests/bad.yaml"),
            object: None,
            ruling: Ruling::Rejected {
                problems: vec!["line 3: not YAML".into(), "spec.containers: Required value".into()],
                previous_kept: true,
            },
            since,
        },
        FileVerdict {
            path: PathBuf::from("/manifests/README.md"),
            object: None,
            ruling: Ruling::Ignored { why: "only .yaml, .yml and .json files are read".into() },
            since,
        },
    ];
    let desired =
        DesiredState { generation: 1, synced: true, verdicts: Arc::new(verdicts), ..DesiredState::default() };
    let runtime = RuntimeHealth {
        name: "containerd".into(),
        version: "1.6.20".into(),
        network_problem: Some("cni config uninitialized".into()),
        reachable: true,
        ..RuntimeHealth::default()
    };
    let observed = ObservedState {
        generation: 1,
        listed_at: Some(Instant::now()),
        pods: observed,
        silent: HashMap::new(),
        runtime: Arc::new(runtime),
    };
    NodeSnapshot::new(next_generation(), "node1".into(), views, Arc::new(desired), Arc::new(observed))
}

fn container(id: &str, phase: ContainerPhase, log: &Path) -> ObservedContainer {
    let time = Timestamp::from_second(1_700_000_000).unwrap();
    ObservedContainer {
        id: id.into(),
        sandbox: "s".into(),
        name: "main".into(),
        restart_count: 0,
        hash: 0,
        phase,
        created_at: time,
        started_at: Some(time),
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "busybox".into(),
        image_ref: "sha256:1".into(),
        log_path: log.to_str().unwrap().into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
    }
}

#[tokio::test]
async fn a_runtime_that_is_away_is_told_of() {
    let fixture = Fixture::start();
    let mut state = snapshot(&[pod("default", "web", running(930))], fixture.root());
    let mut observed = ObservedState::clone(&state.observed);
    observed.runtime = Arc::new(RuntimeHealth {
        reachable: false,
        unreachable_since: Some(Timestamp::now() - SignedDuration::from_secs(750)),
        ..RuntimeHealth::clone(&observed.runtime)
    });
    state.observed = Arc::new(observed);
    fixture.snapshots.send_replace(Some(Arc::new(state)));
    for verb in [vec!["pods"], vec!["describe", "web"]] {
        let ran = fixture.run(&verb).await;
        assert_eq!(ran.code, 0);
        let told = ran.err.text();
        assert!(told.starts_with("warning: the container runtime does not answer since "), "{told}");
        assert!(told.contains("(12m ago); containers are shown as they were then"), "{told}");
    }
    let text = fixture.run(&["node"]).await.printed();
    assert!(
        text.contains("Runtime Reachable:  False: the container runtime does not answer since "),
        "{text}"
    );
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_is_described() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", json!({"phase": "Pending", "startTime": ago(1230)}))]);
    fixture.tell("web", "FailedCreatePodSandBox", "Failed to create pod sandbox: no\nroom");
    let expected = "Sandbox:      not there (12m ago): Failed to create pod sandbox: no room\n";
    let deadline = Instant::now() + PATIENCE;
    while !fixture.run(&["describe", "web"]).await.printed().contains(expected) {
        assert!(Instant::now() < deadline, "{}", fixture.run(&["describe", "web"]).await.printed());
    }
    fixture.publish(&[pod("default", "web", running(1))]);
    assert!(!fixture.run(&["describe", "web"]).await.printed().contains("Sandbox:"));
}

#[tokio::test]
async fn logs() {
    let fixture = Fixture::start();
    let line = |text: &str| format!("2026-01-01T00:00:00.5Z stdout F {text}\n");
    std::fs::write(fixture.root().join("1.log"), [line("one"), line("two"), line("three")].concat()).unwrap();
    std::fs::write(fixture.root().join("0.log"), line("before")).unwrap();
    let mut several = pod("default", "several", running(1));
    several["spec"] = json!({
        "nodeName": "node1",
        "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        "containers": [{"name": "main"}, {"name": "helper"}],
    });
    let mut chosen = several.clone();
    chosen["metadata"] = json!({
        "name": "chosen-node1", "namespace": "default", "uid": "uid-chosen",
        "annotations": {"kubectl.kubernetes.io/default-container": "main"},
    });
    fixture.publish(&[
        pod("default", "web", running(930)),
        pod("default", "crash", crashing()),
        several,
        chosen,
    ]);

    assert_eq!(fixture.run(&["logs", "web"]).await.printed(), "one\ntwo\nthree\n");
    assert_eq!(fixture.run(&["logs", "default/web-node1", "--tail", "1"]).await.printed(), "three\n");
    assert_eq!(
        fixture.run(&["logs", "web", "-n", "default", "--tail=-1"]).await.printed(),
        "one\ntwo\nthree\n"
    );
    assert_eq!(fixture.run(&["logs", "web", "--limit-bytes", "5"]).await.printed(), "one\nt");
    let stamped = fixture.run(&["logs", "web", "--timestamps", "--tail", "1"]).await.printed();
    assert_eq!(stamped, "2026-01-01T00:00:00.500000000Z three\n");
    assert_eq!(fixture.run(&["logs", "web", "--since", "5m"]).await.printed(), "");
    assert_eq!(
        fixture.run(&["logs", "web", "--since-time", "2026-01-01T01:00:00+01:00"]).await.printed().len(),
        14
    );
    assert_eq!(fixture.run(&["logs", "crash", "-p"]).await.printed(), "before\n");
    assert_eq!(fixture.run(&["logs", "crash"]).await.printed(), "before\n");
    assert_eq!(fixture.run(&["logs", "several", "-c", "main"]).await.printed(), "one\ntwo\nthree\n");
    assert_eq!(fixture.run(&["logs", "several", "main"]).await.printed(), "one\ntwo\nthree\n");
    for verb in ["several", "chosen"] {
        let ran = fixture.run(&["logs", verb]).await;
        assert_eq!((ran.code, ran.out.text().as_str()), (0, "one\ntwo\nthree\n"));
        let told = "Defaulted container \"main\" out of: setup (init), proxy (sidecar), main, helper\n";
        assert_eq!(ran.err.text(), told);
    }

    let error = fixture.run(&["logs", "web", "-p"]).await.failed(1);
    assert_eq!(error, "error: previous terminated container \"main\" in pod \"web-node1\" not found\n");
    let error = fixture.run(&["logs", "web", "-c", "mian"]).await.failed(1);
    assert_eq!(error, "error: pod default/web-node1 has no container \"mian\"; it has: main\n");
    let error = fixture.run(&["logs", "nobody"]).await.failed(1);
    assert!(error.starts_with("error: there is no pod nobody"), "{error}");
    assert_eq!(fixture.run(&["logs", "web", "--since", "0s"]).await.failed(2).lines().count(), 1);
}

#[tokio::test]
async fn logs_are_followed_until_the_container_stops() {
    let fixture = Fixture::start();
    let log = fixture.root().join("1.log");
    std::fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n").unwrap();
    fixture.publish(&[pod("default", "web", running(930))]);
    let (command, mut output, ran) = fixture.prepare(&["logs", "-f", "web"]);
    let steps = async {
        ran.wait(|text| text == "one\n").await;
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        file.write_all(b"2026-01-01T00:00:01Z stdout F two\n").unwrap();
        ran.wait(|text| text == "one\ntwo\n").await;
        fixture.publish(&[]);
    };
    let (result, ()) = tokio::join!(execute(command, &mut output), steps);
    result.unwrap();
    assert_eq!(ran.printed(), "one\ntwo\n");
}

#[tokio::test]
async fn events_are_listed_and_watched() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", running(930))]);
    assert_eq!(fixture.run(&["events"]).await.err.text(), "No events found\n");
    fixture.tell("web", "BackOff", "Back-off restarting\nfailed container");
    fixture.tell("web", "BackOff", "Back-off restarting\nfailed container");
    fixture.tell("db", "Failed", "no image");
    let node = Event {
        target: EventTarget::Node,
        kind: EventKind::Normal,
        reason: "Starting".into(),
        message: "Starting mainstay.".into(),
        time: Timestamp::now() - SignedDuration::from_secs(750),
    };
    assert!(fixture.events.send(node));
    let (command, mut output, watched) = fixture.prepare(&["events", "--watch", "--pod", "web"]);
    let steps = async {
        watched.wait(|text| text.contains("(x2)")).await;
        let earlier = fixture.tell("web", "Killing", "Stopping container main");
        fixture.tell("db", "Killing", "not asked for");
        watched.wait(|text| text.contains("Stopping container main")).await;
        let shown = fixture.run(&["events"]).await.printed();
        assert_eq!(
            shown,
            "NAMESPACE   LAST SEEN           TYPE      REASON     OBJECT                MESSAGE\n\
             default     12m (x2 over 12m)   Warning   BackOff    pod/web-node1{main}   Back-off restarting failed container\n\
             default     12m                 Warning   Failed     pod/db-node1          no image\n\
             <none>      12m                 Normal    Starting   node/node1            Starting mainstay.\n\
             default     12m                 Warning   Killing    pod/web-node1         Stopping container main\n\
             default     12m                 Warning   Killing    pod/db-node1          not asked for\n"
        );
        let own = fixture.run(&["events", "--pod", "default/db-node1", "-o", "json"]).await.printed();
        let own: Value = serde_json::from_str(&own).unwrap();
        assert_eq!(own["items"].as_array().unwrap().len(), 2, "a pod that is gone still has events");
        let error = fixture.run(&["events", "--pod", "wbe"]).await.failed(1);
        assert!(error.contains("did you mean default/web-node1"), "{error}");
        assert_eq!(fixture.run(&["events", "-n", "shop"]).await.err.text(), "No events found\n");
        let fixture = fixture.restart().await;
        fixture.tell_again(&earlier);
        fixture.tell("web", "Started", "after the restart");
        watched.wait(|text| text.contains("after the restart")).await;
        fixture
    };
    let fixture = tokio::select! {
        result = execute(command, &mut output) => panic!("{result:?}"),
        fixture = steps => fixture,
    };
    fixture.tasks.drain(PATIENCE).await;
    let text = watched.out.text();
    let times: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(times.iter().all(|time| time.ends_with('Z') && time.len() == 20), "{text}");
    assert_eq!(text.matches("TIME").count(), 1, "{text}");
    assert_eq!(text.matches("Stopping container main").count(), 1, "{text}");
    assert!(watched.err.text().contains("mainstay is back"), "{}", watched.err.text());
    assert!(!watched.out.text().contains("not asked for"), "{}", watched.out.text());
}

#[tokio::test]
async fn manifests_and_node() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", running(930))]);
    assert_eq!(
        fixture.run(&["manifests"]).await.printed(),
        "FILE                   OBJECT            VERDICT                        SINCE   DETAILS\n\
         /manifests/web.yaml    Pod default/web   accepted                       60m     spec.volumes[0] is not mounted\n\
         /manifests/bad.yaml    <unknown>         rejected, last good one kept   60m     line 3: not YAML\n\
         \u{20}                                                                               spec.containers: Required value\n\
         /manifests/README.md   <unknown>         ignored                        60m     only .yaml, .yml and .json files are read\n"
    );
    let data: Value =
        serde_json::from_str(&fixture.run(&["manifests", "-o", "json"]).await.printed()).unwrap();
    assert_eq!(
        (data["items"][1]["verdict"].as_str(), data["synced"].as_bool()),
        (Some("rejected"), Some(true))
    );
    let text = fixture.run(&["node"]).await.printed();
    for line in [
        "Name:               node1",
        "Container Runtime:  containerd 1.6.20 (is listed for changes)",
        "Network Ready:      False: cni config uninitialized",
        "Pods:               1 (1 running, 0 pending, 0 succeeded, 0 failed, 0 terminating; 0 ready)",
        "Manifests:          1 accepted, 1 rejected, 1 ignored",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    let data: Value = serde_yaml_ng::from_str(&fixture.run(&["node", "-o", "yaml"]).await.printed()).unwrap();
    assert_eq!(data["nodeName"], "node1");
}

#[tokio::test]
async fn who_holds_which_devices() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", running(930))]);
    let none = fixture.run(&["resources"]).await;
    assert_eq!(none.out.text(), "");
    let device = |id: &str, nodes: &[u32]| HeldDevice {
        resource: "example.com/dev".into(),
        id: id.into(),
        nodes: nodes.to_vec(),
        health: Default::default(),
    };
    let mut held = Assignments::default();
    held.set_devices(
        vec![device("a", &[0, 1]), device("b", &[])],
        [
            ("uid-web".into(), "main".into(), vec![device("a", &[0, 1]), device("c", &[])]),
            ("uid-gone".into(), "main".into(), vec![device("d", &[])]),
        ],
    );
    fixture.held.send_replace(Arc::new(held));
    assert_eq!(
        fixture.run(&["resources"]).await.printed(),
        "RESOURCE          DEVICE   NUMA   STATE       POD                 CONTAINER\n\
         example.com/dev   a        0,1    Healthy     default/web-node1   main\n\
         example.com/dev   b        -      Healthy     <none>              <none>\n\
         example.com/dev   c        -      Unhealthy   default/web-node1   main\n\
         example.com/dev   d        -      Unhealthy   uid-gone            main\n"
    );
    let mut held = Assignments::default();
    held.set_devices(vec![device("a", &[1])], [("uid-web".into(), "main".into(), vec![device("a", &[1])])]);
    held.set_cpus((1..8).collect(), [("uid-web".into(), "main".into(), [1, 5].into())], []);
    let block = MemoryBlock { kind: "memory".into(), bytes: 64 << 20, nodes: vec![1] };
    held.set_memory(Vec::new(), [("uid-web".into(), "main".into(), vec![block])], []);
    let place = |cpu: u32| CpuPlace { core: cpu % 4, socket: cpu % 2, node: cpu % 2, cache: 0 };
    let amounts =
        MemoryAmounts { total: 1 << 30, system_reserved: 100 << 20, allocatable: 924 << 20, held: 64 << 20 };
    held.placement = Arc::new(Placement {
        cpus: (0..8).map(|cpu| (cpu, place(cpu))).collect(),
        pins_cpus: true,
        reserved: [0].into(),
        shared: [0, 2, 3, 4, 6, 7].into(),
        memory: [(1, [("memory".into(), amounts)].into())].into(),
        pins_memory: true,
    });
    fixture.held.send_replace(Arc::new(held));
    assert_eq!(
        fixture.run(&["resources"]).await.printed(),
        "RESOURCE          DEVICE   NUMA   STATE       POD                 CONTAINER\n\
         example.com/dev   a        1      Healthy     default/web-node1   main\n\
         cpu               0        0      Reserved    <none>              <none>\n\
         cpu               2,4,6    0      Shared      <none>              <none>\n\
         cpu               1,5      1      Exclusive   default/web-node1   main\n\
         cpu               3,7      1      Shared      <none>              <none>\n\
         memory            64Mi     1      Exclusive   default/web-node1   main\n\
         memory            860Mi    1      Free        <none>              <none>\n\
         memory            100Mi    1      Reserved    <none>              <none>\n"
    );
    assert_eq!(
        fixture.run(&["resources", "--numa"]).await.printed(),
        "NUMA node 0\n  socket 0  [0# 4=] [2= 6=]\n\
         NUMA node 1\n  socket 1  [1A 5A] [3= 7=]\n  memory    1Gi  # 100Mi  A 64Mi\n  example.com/dev  aA\n\
         A  default/web-node1 main\n#  reserved   =  shared\n"
    );
    let data: Value =
        serde_json::from_str(&fixture.run(&["resources", "-o", "json"]).await.printed()).unwrap();
    assert_eq!(
        (data["cpus"][0]["state"].as_str(), data["cpus"].as_array().map(Vec::len)),
        (Some("Reserved"), Some(8))
    );
    let mut held = Assignments::default();
    held.set_devices(
        vec![device("a", &[0, 1]), device("b", &[])],
        [("uid-web".into(), "main".into(), vec![device("a", &[0, 1])])],
    );
    fixture.held.send_replace(Arc::new(held));
    let data: Value =
        serde_json::from_str(&fixture.run(&["resources", "-o", "json"]).await.printed()).unwrap();
    let first = json!({
        "resource": "example.com/dev", "id": "a", "numaNodes": [0, 1], "healthy": true,
        "holder": {"namespace": "default", "pod": "web-node1", "uid": "uid-web", "container": "main"},
    });
    assert_eq!((&data["devices"][0], data["devices"][1].get("holder")), (&first, None));
}

#[tokio::test]
async fn a_pod_is_described() {
    let fixture = Fixture::start();
    let mut web = pod("default", "web", crashing());
    web["spec"] = json!({
        "nodeName": "node1",
        "initContainers": [{"name": "setup", "image": "busybox", "command": ["sh", "-c", "true"]}],
        "containers": [{
            "name": "main", "image": "busybox", "args": ["sleep", "1"],
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "b"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "100m", "memory": "8Mi"}},
            "livenessProbe": {"httpGet": {"path": "/ok", "port": 80}, "periodSeconds": 5},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true}],
        }],
        "volumes": [{"name": "data", "hostPath": {"path": "/srv", "type": "Directory"}}],
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
    });
    web["status"]["conditions"] = json!([
        {"type": "Initialized", "status": "True"},
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [main]"},
    ]);
    web["status"]["qosClass"] = json!("Burstable");
    fixture.publish(&[web]);
    fixture.tell("web", "BackOff", "Back-off restarting failed container");
    fixture.tell("web", "BackOff", "Back-off restarting failed container");
    let mut text = String::new();
    let deadline = Instant::now() + PATIENCE;
    while !text.contains("(x2 over") {
        assert!(Instant::now() < deadline, "{text}");
        text = fixture.run(&["describe", "pod", "web"]).await.printed();
    }
    // Times differ from run to run.
    let stable: String =
        text.lines().filter(|line| !line.contains(" +0000")).map(|line| format!("{line}\n")).collect();
    assert_eq!(
        stable,
        "\
Name:         web-node1
Namespace:    default
Node:         node1
Labels:       app=web
Annotations:  kubernetes.io/config.source: file
Status:       Running
State:        CrashLoopBackOff
Origin:       /manifests/web.yaml
              spec.volumes[0] is not mounted
IP:
IPs:          <none>
Init Containers:
  setup:
    Container ID:
    Image:         busybox
    Image ID:
    Port:          <none>
    Host Port:     <none>
    Command:
      sh
      -c
      true
    Environment:  <none>
    Mounts:       <none>
Containers:
  main:
    Container ID:
    Image:         busybox
    Image ID:
    Port:          80/TCP
    Host Port:     0/TCP
    Args:
      sleep
      1
    State:          Waiting
      Reason:       CrashLoopBackOff
      Message:      back-off 40s
    Last State:     Terminated
      Reason:       Error
      Exit Code:    2
    Ready:          False
    Restart Count:  4
    Limits:
      cpu:     100m
      memory:  8Mi
    Liveness:  http-get http://:80/ok delay=0s timeout=1s period=5s #success=1 #failure=3
    Environment:
      A:    b
      POD:  (v1:metadata.name)
    Mounts:
      /data from data (ro)
Conditions:
  Type          Status   Reason               Message
  Initialized   True
  Ready         False    ContainersNotReady   containers with unready status: [main]
Volumes:
  data:
    Type:          HostPath (bare host directory volume)
    Path:          /srv
    HostPathType:  Directory
QoS Class:         Burstable
Node-Selectors:    <none>
Tolerations:       :NoExecute op=Exists
Events:
  Type      Reason    Age                 Container   Message
  ----      ------    ---                 ---------   -------
  Warning   BackOff   12m (x2 over 12m)   main        Back-off restarting failed container
"
    );
    assert!(text.contains("\nManifest:     accepted since "), "{text}");
    assert_eq!(fixture.run(&["describe", "web"]).await.printed().lines().count(), text.lines().count());
    let error = fixture.run(&["describe", "pod", "webb"]).await.failed(1);
    assert!(error.contains("did you mean default/web-node1"), "{error}");
}

#[tokio::test]
async fn nobody_answers() {
    let fixture = Fixture::start();
    let error = fixture.run(&["pods"]).await.failed(1);
    assert!(error.starts_with("error: the node's state is not complete yet"), "{error}");
    fixture.tasks.drain(PATIENCE).await;
    let socket = fixture.root().join("mainstay.sock");
    let expected = format!(
        "error: no mainstay answers at {}; is it running? (mainstay run, or systemctl status mainstay)\n",
        socket.display()
    );
    for verb in
        [vec!["pods"], vec!["logs", "x"], vec!["describe", "pod", "x"], vec!["events", "-w"], vec!["node"]]
    {
        assert_eq!(fixture.run(&verb).await.failed(3), expected, "the socket is gone");
    }
    // A stale file, on which nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(fixture.run(&["pods"]).await.failed(3), expected);
}

/// An output whose reader has gone.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[tokio::test]
async fn a_broken_pipe_is_silent() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", running(930))]);
    let (command, _, ran) = fixture.prepare(&["pods"]);
    let mut output = Output::new(Closed, ran.err.clone());
    let result = execute(command, &mut output).await;
    assert!(result.as_ref().is_err_and(ClientError::is_broken_pipe), "{result:?}");
    assert_eq!(report(result, &mut output), ExitCode::SUCCESS);
    assert_eq!(ran.err.text(), "");
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
    for wrong in [
        vec!["pods", "-o", "xml"],
        vec!["pods", "-n", "a", "-A"],
        vec!["pods", "--socket", "/a", "--root-dir", "/b"],
        vec!["logs"],
        vec!["logs", "p", "--since", "5"],
        vec!["logs", "p", "--since", "5m", "--since-time", "2026-01-01T00:00:00Z"],
        vec!["logs", "p", "--limit-bytes", "0"],
        vec!["logs", "p", "c", "-c", "c"],
        vec!["describe"],
    ] {
        let all = ["mainstay"].iter().chain(&wrong).copied();
        assert!(Cli::try_parse_from(all).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn the_api_and_the_configuration_are_printed() {
    let fixture = Fixture::start();
    fixture.publish(&[]);
    let listed = fixture.run(&["api"]).await.printed();
    assert!(listed.lines().any(|line| line.starts_with("GET    /pods ")), "{listed}");
    let raw = fixture.run(&["api", "/pods"]).await.printed();
    assert_eq!(raw, "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n");
    assert!(fixture.run(&["api", "nowhere"]).await.failed(1).contains("404 page not found"));
    fixture.config.set(&json!({"maxPods": 7}));
    let config = fixture.run(&["config"]).await.printed();
    assert_eq!(config, "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 7\n");
}
