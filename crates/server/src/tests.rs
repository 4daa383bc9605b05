//! The server on real sockets, with snapshots made by hand and log files that are really written.

mod acting;
mod containerlogs;
mod contrib;
mod limits;
mod listeners;
mod matrix;
mod node;
mod node_logs;
mod pages;
mod pod_lists;
mod profiles;
mod routes;
mod secure;
mod watches;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_nodelogs::{Links, LogDirectory};
use mainstay_snapshot::{EventStoreConfig, go_json, start_events};
use mainstay_task::TaskGroup;
use mainstay_types::{
    ContainerPhase, DesiredState, EventSink, FileVerdict, FullName, Heartbeat, NodeSnapshot,
    ObservedContainer, ObservedPod, ObservedSandbox, ObservedState, PodUid, PodView, RuntimeHealth,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    sync::watch,
};

use crate::{NodeLogs, SecureConfig, ServerConfig, ServerState, bind};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server and the ends that feed it.
struct Fixture {
    directory: tempfile::TempDir,
    socket: PathBuf,
    read_only: SocketAddr,
    healthz: SocketAddr,
    snapshots: watch::Sender<Option<Arc<NodeSnapshot>>>,
    samples: watch::Sender<Arc<mainstay_types::Samples>>,
    events: EventSink,
    tasks: TaskGroup,
}

impl Fixture {
    /// A server that has no snapshot yet.
    fn start() -> Self {
        Self::with(false)
    }

    fn with(split_log_streams: bool) -> Self {
        Self::configured(|config| config.split_log_streams = split_log_streams).0
    }

    /// One with other switches than the default.
    fn with_switches(switches: crate::Switches) -> Self {
        Self::configured(|config| config.switches = switches).0
    }

    /// One that shows this log directory.
    fn with_logs(node_logs: NodeLogs) -> Self {
        Self::configured(|config| config.node_logs = node_logs).0
    }

    fn configured(change: impl FnOnce(&mut ServerConfig)) -> (Self, Option<SocketAddr>) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mainstay.sock");
        let any = Some("127.0.0.1:0".parse().unwrap());
        // With a file of the name that tests of the route table ask for.
        let log = directory.path().join("log");
        std::fs::create_dir(&log).unwrap();
        std::fs::write(log.join("path"), "a log\n").unwrap();
        let mut config = ServerConfig {
            socket: socket.clone(),
            secure: None,
            read_only: any,
            healthz: any,
            sync_frequency: Duration::from_secs(60),
            split_log_streams: false,
            switches: Default::default(),
            acting: None,
            node_logs: NodeLogs {
                directory: LogDirectory::new(log, Links::Inside(Vec::new())),
                ..NodeLogs::default()
            },
            host: Default::default(),
            families: Default::default(),
        };
        change(&mut config);
        let bound = bind(config).unwrap();
        let (read_only, healthz) = (bound.read_only_address().unwrap(), bound.healthz_address().unwrap());
        let address = bound.secure_address();
        let tasks = TaskGroup::new();
        let (snapshots, snapshot) = watch::channel(None);
        let (samples, read) = watch::channel(Arc::default());
        let (events, receiver) = EventSink::bounded(64);
        let events_reader = start_events(EventStoreConfig::new("node1".into()), receiver, &tasks);
        bound.serve(
            ServerState {
                tracer: mainstay_trace::Tracer::default(),
                snapshot,
                events: events_reader,
                assignments: tokio::sync::watch::channel(Arc::default()).1,
                heartbeat: Heartbeat::default(),
                samples: read,
                probes: Default::default(),
                disks: Default::default(),
                work: Default::default(),
                facts: Default::default(),
                calls: Default::default(),
                event_counts: Default::default(),
                counters: Default::default(),
                process_start: jiff::Timestamp::UNIX_EPOCH,
                process: Default::default(),
            },
            &tasks,
        );
        (Self { directory, socket, read_only, healthz, snapshots, samples, events, tasks }, address)
    }

    fn publish(&self, snapshot: NodeSnapshot) {
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
    }

    /// A request on the unix socket.
    async fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[]).await
    }

    async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        exchange(UnixStream::connect(&self.socket).await.unwrap(), method, path, headers).await
    }

    /// A request with a body.
    async fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("in time").unwrap();
        parse_reply(&answer)
    }

    async fn open(&self, path: &str) -> Stream {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut stream = Stream { stream, buffer: Vec::new(), head: String::new(), events: VecDeque::new() };
        stream.head = stream.until(b"\r\n\r\n").await;
        stream
    }
}

async fn tcp(address: SocketAddr, method: &str, path: &str) -> Reply {
    exchange(TcpStream::connect(address).await.unwrap(), method, path, &[]).await
}

/// A whole answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
    /// The same where it is no text.
    raw: Vec<u8>,
    chunked: bool,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }

    /// Upstream's style A: the text and nothing else.
    #[track_caller]
    fn is_plain(&self, status: u16, text: &str) {
        assert_eq!((self.status, self.body.as_str()), (status, text), "{self:?}");
        assert_eq!(self.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(self.header("x-content-type-options"), None);
        assert_eq!(self.header("content-length"), Some(text.len().to_string().as_str()));
    }

    /// Upstream's style B: a newline, and no guessing.
    #[track_caller]
    fn is_error(&self, status: u16, text: &str) {
        assert_eq!((self.status, self.body.as_str()), (status, text), "{self:?}");
        assert!(text.ends_with('\n'));
        assert_eq!(self.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(self.header("x-content-type-options"), Some("nosniff"));
    }

    /// What upstream flushes early: chunks without a type.
    #[track_caller]
    fn is_streamed(&self, status: u16, text: &str) {
        assert_eq!((self.status, self.body.as_str()), (status, text), "{self:?}");
        assert!(self.chunked, "{self:?}");
        assert_eq!(self.header("content-type"), None);
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Reply {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an answer in time")
        .unwrap();
    parse_reply(&answer)
}

fn parse_reply(answer: &[u8]) -> Reply {
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a header block");
    let head = String::from_utf8(answer[..at].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = &answer[at + 4..];
    let body = if chunked { dechunk(body) } else { body.to_vec() };
    Reply { status, head, body: String::from_utf8_lossy(&body).into_owned(), raw: body, chunked }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let at = rest.windows(2).position(|window| window == b"\r\n").expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        rest = &rest[at + 2..];
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

/// An answer that is read as it comes.
struct Stream {
    stream: UnixStream,
    buffer: Vec<u8>,
    head: String,
    /// Events that came with one that was asked for.
    events: VecDeque<Value>,
}

impl Stream {
    async fn until(&mut self, mark: &[u8]) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                let rest = self.buffer.split_off(at + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.buffer, rest)).unwrap();
            }
            let more = tokio::time::timeout_at(deadline.into(), self.stream.read_buf(&mut self.buffer)).await;
            let read = more.unwrap_or_else(|_| panic!("nothing came; so far {:?}", self.buffer)).unwrap();
            assert!(read > 0, "it ended with {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// The next chunk; `None` at the end.
    async fn chunk(&mut self) -> Option<String> {
        let size = self.until(b"\r\n").await;
        let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
        while self.buffer.len() < size + 2 {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0);
        }
        let rest = self.buffer.split_off(size + 2);
        let mut chunk = std::mem::replace(&mut self.buffer, rest);
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    /// The next watch event as (type, object).
    async fn event(&mut self) -> (String, Value) {
        if self.events.is_empty() {
            let chunk = self.chunk().await.expect("another event");
            assert!(chunk.ends_with('\n'));
            self.events.extend(chunk.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        }
        let mut value = self.events.pop_front().unwrap();
        (value["type"].as_str().unwrap().to_owned(), value["object"].take())
    }
}

/// A pod as the snapshot builder makes it.
fn view(pod: Value, observed: Option<Arc<ObservedPod>>) -> Arc<PodView> {
    let mut pod: Pod = serde_json::from_value(pod).unwrap();
    let status = pod.status.take();
    let metadata = &pod.metadata;
    let (namespace, name) = (metadata.namespace.as_deref().unwrap(), metadata.name.as_deref().unwrap());
    let item = json!({"metadata": metadata, "spec": pod.spec, "status": status});
    Arc::new(PodView {
        uid: metadata.uid.as_deref().unwrap().into(),
        full_name: FullName::new(namespace, name),
        json: go_json(&item).into(),
        observed,
        origin: format!("/manifests/{name}.yaml").into(),
        source: mainstay_types::PodSource::File,
        stage: mainstay_types::PodStage::Syncing,
        status: Arc::new(status.unwrap_or_default()),
        pod: Arc::new(pod),
    })
}

pub(crate) fn simple_pod(name: &str, message: &str) -> Arc<PodView> {
    view(
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"containers": [{"name": "c", "image": "busybox"}]},
            "status": {"phase": "Running", "message": message},
        }),
        None,
    )
}

fn container(id: &str, name: &str, phase: ContainerPhase, log_path: &str) -> ObservedContainer {
    let time = Timestamp::from_second(1_700_000_000).unwrap();
    ObservedContainer {
        id: id.into(),
        sandbox: "sandbox1".into(),
        name: name.into(),
        restart_count: 0,
        hash: 0,
        phase,
        created_at: time,
        started_at: Some(time),
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "docker.io/local/busybox:1".into(),
        image_ref: "sha256:9833733a".into(),
        log_path: log_path.into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
        oom_killed: false,
        stop_signal: None,
    }
}

fn observed_pod(name: &str, sandbox_ready: bool, containers: Vec<ObservedContainer>) -> Arc<ObservedPod> {
    let sandbox = ObservedSandbox {
        id: "sandbox1".into(),
        attempt: 0,
        ready: sandbox_ready,
        created_at: Timestamp::from_second(1_700_000_000).unwrap(),
        ips: vec![],
        host_network: false,
        source: None,
    };
    Arc::new(ObservedPod {
        uid: PodUid::from(format!("uid-{name}")),
        full_name: FullName::new("default", name),
        read_at: Instant::now(),
        sandboxes: vec![sandbox],
        containers,
    })
}

pub(crate) fn snapshot(
    generation: u64,
    pods: Vec<Arc<PodView>>,
    observed: Vec<Arc<ObservedPod>>,
) -> NodeSnapshot {
    snapshot_with(generation, pods, observed, Vec::new())
}

fn snapshot_with(
    generation: u64,
    pods: Vec<Arc<PodView>>,
    observed: Vec<Arc<ObservedPod>>,
    verdicts: Vec<FileVerdict>,
) -> NodeSnapshot {
    let desired = DesiredState {
        generation,
        synced: true,
        pods: Arc::new(BTreeMap::new()),
        verdicts: Arc::new(verdicts),
        ..DesiredState::default()
    };
    let observed = ObservedState {
        generation,
        listed_at: Some(Instant::now()),
        pods: observed.into_iter().map(|pod| (pod.uid.clone(), pod)).collect::<HashMap<_, _>>(),
        silent: HashMap::new(),
        runtime: Arc::new(RuntimeHealth {
            name: "containerd".into(),
            version: "v2.4.2".into(),
            reachable: true,
            ..RuntimeHealth::default()
        }),
    };
    NodeSnapshot::new(generation, "node1".into(), pods, Arc::new(desired), Arc::new(observed))
}
