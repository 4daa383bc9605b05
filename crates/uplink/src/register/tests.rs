//! Registration and status together, against an API server that has one Node object, or none.

use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mainstay_apiserver::Rate;
use mainstay_task::TaskGroup;
use mainstay_types::{NodeCounters, NodeView, OthersWord};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// What the API server has, and what it was told.
#[derive(Default)]
struct There {
    node: Option<Value>,
    made: Vec<Value>,
    statuses: Vec<Value>,
    /// Statuses that it takes no notice of.
    deaf_for: usize,
}

struct World {
    there: Arc<Mutex<There>>,
    api: watch::Sender<ApiPods>,
    tasks: TaskGroup,
    _snapshots: watch::Sender<Option<Arc<NodeSnapshot>>>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start(node: Option<Value>, offers_are_new: bool) -> Self {
        let there = Arc::new(Mutex::new(There { node, deaf_for: 1, ..There::default() }));
        let (tasks, dir) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n",
            listener.local_addr().unwrap()
        );
        fs::write(&kubeconfig, text).unwrap();
        let (group, shared) = (tasks.clone(), Arc::clone(&there));
        tasks.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                group.spawn("serve", serve(stream, Arc::clone(&shared)));
            }
        });
        let often = Duration::from_millis(50);
        let config = Arc::new(UplinkConfig {
            client: Client::open(kubeconfig, Rate { per_second: 1000, burst: 1000 }, "t", &tasks).unwrap(),
            counters: Arc::new(NodeCounters::default()),
            node_name: "n".into(),
            register: true,
            taints: vec![taint("configured")],
            external_cloud: false,
            offers_are_new,
            node_ip: None,
            lease_duration_seconds: 40,
            status_update_frequency: often,
            status_report_frequency: often,
            event_rate: None,
        });
        let view = NodeView {
            version: 1,
            node: Arc::new(
                serde_json::from_value(json!({ "status": { "capacity": { "cpu": "2" } } })).unwrap(),
            ),
            json: Default::default(),
            others: OthersWord::default(),
        };
        let observed = Arc::new(mainstay_types::ObservedState::unread());
        let snapshot = NodeSnapshot::new(1, "n".into(), Vec::new(), Arc::default(), observed);
        let (snapshots, reader) = watch::channel(Some(Arc::new(snapshot.with_node(Some(Arc::new(view))))));
        let (api, pods) = watch::channel(ApiPods::default());
        let (registered, object) = watch::channel(None);
        let (missing, is_missing) = watch::channel(None);
        let registration = run(Arc::clone(&config), reader.clone(), pods.clone(), registered, is_missing);
        tasks.spawn("registration", registration);
        tasks.spawn("status", crate::node_status::run(config, reader, pods, object, missing));
        Self { there, api, tasks, _snapshots: snapshots, _dir: dir }
    }

    fn there(&self) -> MutexGuard<'_, There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, what: &str, is: impl Fn(&There) -> bool) {
        let waiting = async {
            while !is(&self.there()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// The node object's deletion, which those who watch it see or do not.
    fn delete(&self, losses: Option<u64>, barriers: Option<Barriers>) {
        self.there().node = None;
        self.api.send_modify(|api| {
            api.barriers = barriers.map(Arc::new);
            api.node_losses = losses.unwrap_or(api.node_losses);
        });
    }
}

fn taint(key: &str) -> Taint {
    Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() }
}

async fn serve(stream: TcpStream, there: Arc<Mutex<There>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (status, answer) = answer(head.split(' ').next().unwrap(), body, &there);
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        stream.write_all(head.as_bytes()).await.unwrap();
    }
}

fn answer(method: &str, body: Value, there: &Mutex<There>) -> (u16, Value) {
    let mut there = there.lock().unwrap();
    match (method, there.node.clone()) {
        ("POST", None) => {
            let mut node = body.clone();
            node["metadata"]["uid"] = json!(format!("made-{}", there.made.len()));
            node["metadata"]["resourceVersion"] = json!("1");
            there.made.push(body);
            there.node = Some(node.clone());
            (201, node)
        }
        (_, None) => (404, json!({ "kind": "Status", "code": 404, "reason": "NotFound" })),
        ("PATCH", Some(_)) if body.get("status").is_some() => {
            there.statuses.push(body);
            if there.deaf_for > 0 {
                there.deaf_for -= 1;
                return (500, json!({ "kind": "Status", "code": 500 }));
            }
            (200, there.node.clone().unwrap())
        }
        (_, Some(node)) => (200, node),
    }
}

#[tokio::test]
async fn an_object_that_nobody_saw_go_is_missed_by_who_would_tell_it_something() {
    let world = World::start(None, false).await;
    world.until("it is made", |there| !there.statuses.is_empty()).await;
    world.delete(None, None);
    world.until("it is made again", |there| there.made.len() == 2).await;
    let before = world.there().statuses.len();
    world.until("and told how the node is", |there| there.statuses.len() > before + 2).await;
    assert_eq!(world.there().made.len(), 2, "once");
    world.tasks.drain(Duration::ZERO).await;
}

#[tokio::test]
async fn what_was_closed_to_pods_is_made_again_closed() {
    let world = World::start(None, false).await;
    world.until("it is made", |there| !there.made.is_empty()).await;
    let spec = |number: usize| world.there().made[number]["spec"].clone();
    assert_eq!(spec(0), json!({ "taints": [{ "key": "configured", "effect": "NoSchedule" }] }));
    let taints = ["mine", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"].map(taint);
    world.delete(Some(1), Some(Barriers { unschedulable: true, taints: taints.into() }));
    world.until("it is made again", |there| there.made.len() == 2).await;
    let expected = json!([
        { "key": "mine", "effect": "NoSchedule" },
        { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" },
    ]);
    assert_eq!(spec(1), json!({ "unschedulable": true, "taints": expected }));
    // Opened by somebody, who also took the configured taint away.
    world.delete(Some(2), Some(Barriers::default()));
    world.until("it is made again", |there| there.made.len() == 3).await;
    assert_eq!(spec(2), json!({}));
    // Nobody saw it go, nor what it was: as it was made.
    world.delete(None, None);
    world.until("it is made again", |there| there.made.len() == 4).await;
    assert_eq!(spec(3), json!({}));
    world.tasks.drain(Duration::ZERO).await;
}

#[tokio::test]
async fn what_another_machine_offered_is_taken_back_once() {
    let dongle = json!({ "example.com/dongle": "4" });
    let metadata = json!({ "name": "n", "uid": "u", "resourceVersion": "1" });
    let status = json!({ "capacity": dongle });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status });
    let world = World::start(Some(node), true).await;
    world.until("some reports", |there| there.statuses.len() >= 5).await;
    let told: Vec<_> = world.there().statuses.iter().map(|it| it["status"]["capacity"].clone()).collect();
    let (with, without) = (json!({ "cpu": "2", "example.com/dongle": "0" }), json!({ "cpu": "2" }));
    assert_eq!(told[..2], [with.clone(), with], "until it is heard");
    assert!(told[2..].iter().all(|it| *it == without), "and not again: {told:?}");
    world.tasks.drain(Duration::ZERO).await;
}
