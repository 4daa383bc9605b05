//! All services on real sockets, asked with tonic's clients.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use mainstay_proto::{
    podinfo::{Empty, PodConditionsRequest, pod_info_client::PodInfoClient},
    podresources::{
        mainstay::podresources::v1alpha1::{
            WatchPodResourcesRequest, pod_resources_watcher_client::PodResourcesWatcherClient,
        },
        v1::{
            AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
            pod_resources_lister_client::PodResourcesListerClient,
        },
    },
    podresources_v1alpha1,
    pods::{
        EventType, GetPodRequest, ListPodsRequest, WatchPodsEvent, WatchPodsRequest, pods_client::PodsClient,
    },
};
use mainstay_task::TaskGroup;
use mainstay_types::{
    Allocatable, Assignments, AwaitedSource, ContainerAssignment, Counters, DesiredState, FullName,
    HeldDevice, MemoryBlock, NodeSnapshot, ObservedState, PodAssignment, PodSource, PodStage, PodView,
    Unknown, UnnamedDevices,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::watch,
    time::timeout,
};
use tonic::{
    Code, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint, Uri},
};

use crate::{
    Access, GrpcConfig, GrpcState, Rate, bind,
    wire::{Answer, Messages},
};

const SOON: Duration = Duration::from_secs(30);

struct World {
    root: tempfile::TempDir,
    snapshots: watch::Sender<Option<Arc<NodeSnapshot>>>,
    assignments: watch::Sender<Arc<Assignments>>,
    counters: Arc<Counters>,
    tasks: TaskGroup,
}

impl World {
    fn start(change: impl FnOnce(&mut GrpcConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = GrpcConfig {
            root: root.path().to_owned(),
            access: Access::default(),
            rate: Rate { per_second: 1e6, burst: 1e6 },
            patience: SOON,
            pod_info: true,
            pods: true,
            get_allocatable: true,
            list_active: true,
        };
        change(&mut config);
        let (snapshots, reader) = watch::channel(None);
        let (assignments, held) = watch::channel(Arc::default());
        let (counters, tasks) = (Arc::<Counters>::default(), TaskGroup::new());
        let state = GrpcState { snapshots: reader, assignments: held, counters: Arc::clone(&counters) };
        bind(config).unwrap().serve(state, &tasks);
        Self { root, snapshots, assignments, counters, tasks }
    }

    async fn channel(&self, socket: &str) -> Channel {
        let path: PathBuf = self.root.path().join(socket);
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
    }

    async fn pods(&self) -> PodsClient<Channel> {
        PodsClient::new(self.channel("pods-api/pods-api.sock").await)
    }

    async fn info(&self) -> PodInfoClient<Channel> {
        PodInfoClient::new(self.channel("pod-info/kubelet.sock").await)
    }

    async fn resources(&self) -> PodResourcesListerClient<Channel> {
        PodResourcesListerClient::new(self.channel("pod-resources/kubelet.sock").await)
    }

    /// Publishes these pods; those that are the same as before stay the same.
    fn publish(&self, pods: &[Arc<PodView>]) {
        self.snapshots.send_modify(|snapshot| {
            let generation = snapshot.as_ref().map_or(1, |last| last.generation + 1);
            let node = NodeSnapshot::new(
                generation,
                "node".into(),
                pods.to_vec(),
                Arc::default(),
                Arc::new(ObservedState::unread()),
            );
            *snapshot = Some(Arc::new(node));
        });
    }

    /// The same without those of a source that has not answered.
    fn publish_without(&self, source: &str) {
        let awaited = AwaitedSource::new(PodSource::Http, source);
        let desired =
            DesiredState { synced: true, awaited: Arc::new(vec![awaited]), ..DesiredState::default() };
        let node = NodeSnapshot::new(
            1,
            "node".into(),
            Vec::new(),
            Arc::new(desired),
            Arc::new(ObservedState::unread()),
        );
        self.snapshots.send_replace(Some(Arc::new(node)));
    }

    fn counted(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let read = self.counters.read();
        let found = read.iter().find(|(counter, _)| counter.name == name);
        let series = found.and_then(|(_, series)| series.iter().find(|(of, _)| of.as_slice() == labels));
        series.map_or(0, |(_, count)| *count)
    }
}

fn view(name: &str, change: &Value) -> Arc<PodView> {
    staged(name, PodStage::Syncing, change)
}

fn staged(name: &str, stage: PodStage, change: &Value) -> Arc<PodView> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    });
    for (key, value) in change.as_object().unwrap() {
        pod[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    }
    let mut typed: Pod = serde_json::from_value(pod.clone()).unwrap();
    let status = Arc::new(typed.status.take().unwrap_or_default());
    Arc::new(PodView {
        uid: format!("uid-{name}").as_str().into(),
        full_name: FullName { namespace: "default".into(), name: name.into() },
        pod: Arc::new(typed),
        status,
        json: pod.to_string().into(),
        observed: None,
        origin: "file".into(),
        source: PodSource::File,
        stage,
    })
}

fn phase(phase: &str) -> Value {
    json!({"status": {"phase": phase}})
}

async fn next(stream: &mut Streaming<WatchPodsEvent>) -> Result<(EventType, usize), tonic::Status> {
    let event = timeout(SOON, stream.message()).await.unwrap()?.unwrap();
    Ok((EventType::try_from(event.r#type).unwrap(), event.pod.len()))
}

/// P1 for a node that goes on without a source that never answered: what it tells elsewhere is marked, here it could not be.
#[tokio::test]
async fn nothing_while_a_source_has_never_answered() {
    let world = World::start(|_| {});
    world.publish_without("staticPodURL http://x/");
    let (mut pods, mut info, mut resources) =
        (world.pods().await, world.info().await, world.resources().await);
    let channel = world.channel("pod-resources/kubelet.sock").await;
    let mut watcher = PodResourcesWatcherClient::new(channel.clone());
    let mut old = podresources_v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let everything = podresources_v1alpha1::ListPodResourcesRequest {};
    for status in [
        pods.list_pods(ListPodsRequest {}).await.unwrap_err(),
        pods.watch_pods(WatchPodsRequest {}).await.unwrap_err(),
        info.list_pod_conditions(Empty {}).await.unwrap_err(),
        info.watch_pod_conditions(Empty {}).await.unwrap_err(),
        resources.list(ListPodResourcesRequest {}).await.unwrap_err(),
        old.list(everything).await.unwrap_err(),
        watcher.watch(WatchPodResourcesRequest {}).await.unwrap_err(),
    ] {
        let message = "Kubelet is initializing: its pods are not known yet from staticPodURL http://x/";
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, message));
    }
    world.publish(&[]);
    assert!(pods.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods.is_empty());
    assert!(old.list(everything).await.unwrap().into_inner().pod_resources.is_empty());
}

/// P14 for a pod that goes and comes back with its UID before anybody looked.
#[tokio::test]
async fn another_life_of_a_uid_is_another_pod() {
    let world = World::start(|_| {});
    let at = |second: u32| json!({"status": {"startTime": format!("2026-01-01T00:00:{second:02}Z")}});
    let mut ends = at(1);
    ends["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:01:00Z"});
    world.publish(&[view("a", &at(1)), view("b", &at(1)), view("c", &at(1))]);
    let mut stream = world.pods().await.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    let mut told = async |kinds: &mut Vec<EventType>, count: usize| {
        for _ in 0..count {
            kinds.push(next(&mut stream).await.unwrap().0);
        }
    };
    told(&mut kinds, 4).await;
    world.publish(&[view("a", &ends), view("b", &at(1)), view("c", &at(1))]);
    told(&mut kinds, 1).await;
    // The first was seen to go; the second was not, but has begun anew.
    world.publish(&[view("a", &at(1)), view("b", &at(2)), view("c", &at(1))]);
    told(&mut kinds, 4).await;
    let (added, modified, deleted) = (EventType::Added, EventType::Modified, EventType::Deleted);
    let complete = EventType::InitialSyncComplete;
    assert_eq!(kinds, [added, added, added, complete, modified, deleted, added, deleted, added]);
}

/// More pods than one piece takes, and some that are larger than one.
#[tokio::test]
async fn a_watch_begins_with_all_pods_whatever_their_size() {
    let world = World::start(|_| {});
    let sized = |at: usize| {
        let text = "x".repeat(if at % 40 == 7 { 40_000 } else { 700 });
        view(&format!("{at:03}"), &json!({"metadata": {"annotations": {"text": text}}}))
    };
    let views: Vec<_> = (0..100).map(sized).collect();
    world.publish(&views);
    let listed = world.pods().await.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods;
    let mut stream = world.pods().await.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    for pod in &listed {
        let event = timeout(SOON, stream.message()).await.unwrap().unwrap().unwrap();
        assert_eq!((event.r#type, &event.pod), (EventType::Added as i32, pod));
    }
    assert_eq!(next(&mut stream).await.unwrap(), (EventType::InitialSyncComplete, 0));
    assert_eq!(listed.len(), 100);
}

/// What watches begin with is put together once for all who begin before something changes, and is nobody's after that but of who has it.
#[tokio::test]
async fn watches_begin_with_the_same_pieces() {
    use futures_util::{FutureExt as _, StreamExt as _};
    let world = World::start(|_| {});
    let sized = |at: usize| {
        let text = "x".repeat(if at % 20 == 7 { 70_000 } else { 700 });
        view(&format!("{at:03}"), &json!({"metadata": {"annotations": {"text": text}}}))
    };
    let mut views: Vec<_> = (0..60).map(sized).collect();
    world.publish(&views);
    let pods = crate::pods::Pods::new(world.snapshots.subscribe(), Arc::clone(&world.counters));
    let watch = |path: Option<&str>| {
        let mut headers = http::HeaderMap::new();
        headers.extend(
            path.map(|path| (http::HeaderName::from_static("x-kubernetes-fieldmask"), path.parse().unwrap())),
        );
        match pods.watch(crate::pods::mask(&headers).unwrap()).unwrap() {
            Answer::Many(pieces) => pieces,
            Answer::One(_) => panic!("a watch is many pieces"),
        }
    };
    // All that there is to tell now, after what was told before.
    let rest = |pieces: &mut Messages| -> Vec<Bytes> {
        std::iter::from_fn(|| pieces.next().now_or_never().map(|piece| piece.unwrap().unwrap())).collect()
    };
    let (mut first, mut second, mut masked, mut stays) =
        (watch(None), watch(None), watch(Some("metadata,status")), watch(None));
    let (told, again) = (rest(&mut first), rest(&mut second));
    assert!(told.len() > 10, "{}", told.len());
    let places = |pieces: &[Bytes]| pieces.iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>();
    assert_eq!(places(&told), places(&again));
    let other = rest(&mut masked);
    assert!(places(&other).iter().all(|piece| !places(&told).contains(piece)));
    let begun: Vec<Bytes> = (0..3)
        .map(|at| {
            let piece = stays.next().now_or_never().unwrap().unwrap().unwrap();
            assert_eq!(piece.as_ptr(), told[at].as_ptr());
            piece
        })
        .collect();
    drop((again, begun));
    assert!(!told[5].is_unique(), "whoever begins now is told it");

    // Something changes, of which somebody asks.
    views[0] = view("000", &json!({"metadata": {"annotations": {"text": "changed"}}}));
    world.publish(&views);
    let late = rest(&mut watch(None));
    assert!(told.iter().all(Bytes::is_unique), "nobody keeps what was");
    assert!(places(&late).iter().all(|piece| !places(&told).contains(piece)));
    // Who was in the middle is told the same, and then what has changed.
    let (all, own) = (told.concat(), rest(&mut stays).concat());
    let begins: usize = told[..3].iter().map(Bytes::len).sum();
    assert_eq!(own[..all.len() - begins], all[begins..]);
    assert_eq!(own[all.len() - begins..], rest(&mut first).concat());
}

/// P1.
#[tokio::test]
async fn nothing_before_the_first_snapshot() {
    let world = World::start(|_| {});
    let (mut pods, mut info, mut resources) =
        (world.pods().await, world.info().await, world.resources().await);
    for status in [
        pods.list_pods(ListPodsRequest {}).await.unwrap_err(),
        pods.get_pod(GetPodRequest::default()).await.unwrap_err(),
        pods.watch_pods(WatchPodsRequest {}).await.unwrap_err(),
        info.list_pod_conditions(Empty {}).await.unwrap_err(),
        info.get_pod_conditions(PodConditionsRequest::default()).await.unwrap_err(),
        info.watch_pod_conditions(Empty {}).await.unwrap_err(),
        resources.list(ListPodResourcesRequest {}).await.unwrap_err(),
        resources.get(GetPodResourcesRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "Kubelet is initializing"));
    }
    world.publish(&[]);
    assert!(pods.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods.is_empty());
    assert!(info.list_pod_conditions(Empty {}).await.unwrap().into_inner().pods.is_empty());
    assert!(resources.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources.is_empty());
}

/// An agent would take a pod with nothing in it for what is there.
#[tokio::test]
async fn a_pod_that_cannot_be_read_is_an_error() {
    for text in ["", "[]", "{\"metadata\":"] {
        let world = World::start(|_| {});
        let good = view("a", &json!({}));
        let mut broken = Arc::into_inner(view("b", &json!({}))).unwrap();
        broken.json = text.into();
        world.publish(&[Arc::clone(&good)]);
        let mut client = world.pods().await;
        let mut watch = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
        assert_eq!(next(&mut watch).await.unwrap().0, EventType::Added);
        assert_eq!(next(&mut watch).await.unwrap().0, EventType::InitialSyncComplete);
        world.publish(&[good, Arc::new(broken)]);
        let mut masked = tonic::Request::new(ListPodsRequest {});
        masked.metadata_mut().insert("x-kubernetes-fieldmask", MetadataValue::from_static("metadata.name"));
        let get = |uid: &str| GetPodRequest { pod_uid: uid.to_owned() };
        let mut late = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
        for status in [
            client.list_pods(ListPodsRequest {}).await.unwrap_err(),
            client.list_pods(masked).await.unwrap_err(),
            client.get_pod(get("uid-b")).await.unwrap_err(),
            next(&mut watch).await.unwrap_err(),
            next(&mut late).await.unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::Internal, "{text:?}: {status}");
            assert!(status.message().starts_with("the pod with UID uid-b cannot be read"), "{status}");
        }
        client.get_pod(get("uid-a")).await.unwrap();
    }
}

/// P8 and P9.
#[tokio::test]
async fn a_watcher_who_does_not_read_is_let_go_and_others_are_told_everything() {
    // More than the connection takes ahead of a reader.
    lets_go_of_who_does_not_read(60_000).await;
}

/// Of which nobody is told the rest when it is gone.
#[tokio::test]
async fn nothing_of_large_pods_is_kept_for_who_does_not_read() {
    lets_go_of_who_does_not_read(400_000).await;
}

async fn lets_go_of_who_does_not_read(size: usize) {
    let world = World::start(|_| {});
    let text = "x".repeat(size);
    let labels = |number: usize| {
        view("a", &json!({"metadata": {"annotations": {"n": number.to_string(), "text": text}}}))
    };
    world.publish(&[labels(0)]);
    let (mut lazy, mut eager) = (world.pods().await, world.pods().await);
    let mut lazy = lazy.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let mut eager = eager.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    assert_eq!(next(&mut eager).await.unwrap().0, EventType::Added);
    assert_eq!(next(&mut eager).await.unwrap(), (EventType::InitialSyncComplete, 0));
    let mut versions = Vec::new();
    for number in 1..=150 {
        let version = labels(number);
        versions.push(Arc::downgrade(&version));
        world.publish(&[version]);
        assert_eq!(next(&mut eager).await.unwrap().0, EventType::Modified, "{number}");
    }
    assert_eq!(world.counted("kubelet_pod_watch_events_dropped_total", &[]), 1);
    let kept = versions.iter().filter(|version| version.strong_count() > 0).count();
    assert!(kept <= 2, "nothing is kept for who does not read: {kept}");
    let mut told = 0;
    let status = loop {
        match next(&mut lazy).await {
            Ok(_) => told += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "watch client channel closed"));
    assert!((1..100).contains(&told), "only what was on its way is told: {told}");
    let labels = [("server_api_version", "v1alpha1"), ("status_code", "ResourceExhausted")];
    assert_eq!(world.counted("kubelet_pod_requests_watch_total", &labels), 1);
    world.publish(&[]);
    assert_eq!(next(&mut eager).await.unwrap().0, EventType::Deleted, "the other goes on");
}

/// Messages that are the whole wait for nobody: who is in the middle of one that is old is told no more of it.
#[tokio::test]
async fn a_watcher_of_conditions_who_does_not_read_is_let_go() {
    let world = World::start(|_| {});
    // More than the connection takes ahead of a reader.
    let text = "x".repeat(3_500_000);
    let version = |number: usize| {
        let message = format!("{number} {text}");
        view(
            "a",
            &json!({"status": {"conditions": [{"type": "Ready", "status": "True", "message": message}]}}),
        )
    };
    world.publish(&[version(0)]);
    let (mut lazy, mut eager) = (world.info().await, world.info().await);
    let mut lazy = lazy.watch_pod_conditions(Empty {}).await.unwrap().into_inner();
    for number in 1..=20 {
        world.publish(&[version(number)]);
        eager.list_pod_conditions(Empty {}).await.unwrap();
    }
    let status = timeout(SOON, lazy.message()).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().starts_with("the watch was not read while 16 newer"), "{status}");
}

#[tokio::test]
async fn events_are_told_once_and_in_order() {
    let world = World::start(|_| {});
    let (a, b) = (view("a", &json!({})), view("b", &json!({})));
    world.publish(&[Arc::clone(&b), Arc::clone(&a)]);
    let mut client = world.pods().await;
    let mut all = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let mut request = tonic::Request::new(WatchPodsRequest {});
    request.metadata_mut().insert("x-kubernetes-fieldmask", MetadataValue::from_static("status.phase"));
    let mut phases = client.watch_pods(request).await.unwrap().into_inner();
    for stream in [&mut all, &mut phases] {
        for kind in [EventType::Added, EventType::Added, EventType::InitialSyncComplete] {
            assert_eq!(next(stream).await.unwrap().0, kind);
        }
    }
    // Another object that says the same is no change.
    world.publish(&[view("a", &json!({})), Arc::clone(&b)]);
    let labelled = view("a", &json!({"metadata": {"labels": {"x": "y"}}}));
    world.publish(&[Arc::clone(&labelled), Arc::clone(&b)]);
    assert_eq!(next(&mut all).await.unwrap().0, EventType::Modified);
    world.publish(&[labelled, view("c", &json!({}))]);
    for stream in [&mut all, &mut phases] {
        assert_eq!(next(stream).await.unwrap().0, EventType::Deleted);
        assert_eq!(next(stream).await.unwrap().0, EventType::Added);
    }
    world.publish(&[view("a", &phase("Failed")), view("c", &json!({}))]);
    assert_eq!(next(&mut phases).await.unwrap().0, EventType::Modified, "labels were not its concern");
    let list = client.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods;
    let one = client.get_pod(GetPodRequest { pod_uid: "uid-c".to_owned() }).await.unwrap().into_inner().pod;
    assert_eq!(list[1], one);
    drop(all);
    world.tasks.drain(Duration::from_secs(5)).await;
    let ended = next(&mut phases).await.unwrap_err();
    assert!(matches!(ended.code(), Code::ResourceExhausted | Code::Unknown | Code::Unavailable), "{ended:?}");
    assert!(!world.root.path().join("pods-api/pods-api.sock").exists());
}

#[tokio::test]
async fn many_watchers_share_what_they_are_told() {
    let world = World::start(|_| {});
    let pods: Vec<_> = (0..50).map(|number| view(&format!("p{number:02}"), &json!({}))).collect();
    world.publish(&pods);
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(world.pods().await.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner());
    }
    for stream in &mut streams {
        for _ in 0..=50 {
            next(stream).await.unwrap();
        }
    }
    world.publish(&pods[1..]);
    for stream in &mut streams {
        assert_eq!(next(stream).await.unwrap().0, EventType::Deleted);
    }
}

#[tokio::test]
async fn conditions_are_told_when_they_change() {
    let world = World::start(|_| {});
    let ready = |status: &str| {
        json!({"status": {"conditions": [
            {"type": "Ready", "status": status, "reason": "why", "message": "so", "lastTransitionTime": "2026-11-15T09:58:42Z"},
            {"type": "example.com/gate", "status": "True"},
        ]}})
    };
    world.publish(&[view("b", &ready("True")), view("a", &ready("Unknown"))]);
    let mut client = world.info().await;
    let mut watch = client.watch_pod_conditions(Empty {}).await.unwrap().into_inner();
    let first = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    let list = client.list_pod_conditions(Empty {}).await.unwrap().into_inner();
    assert_eq!(first, list);
    let told: Vec<_> = list.pods.iter().map(|pod| (pod.pod_uid.as_str(), pod.conditions.len())).collect();
    assert_eq!(told, [("uid-a", 1), ("uid-b", 1)], "sorted, and without what has no number");
    let condition = &list.pods[1].conditions[0];
    assert_eq!((condition.r#type, condition.status, condition.reason.as_str()), (2, 0, "why"));
    assert_eq!(condition.last_transition_time.unwrap().seconds, 1_794_736_722);
    assert!(condition.last_probe_time.is_none());
    // A label is no condition.
    let mut labelled = ready("True");
    labelled["metadata"] = json!({"labels": {"x": "y"}});
    world.publish(&[view("b", &labelled), view("a", &ready("Unknown"))]);
    world.publish(&[view("b", &ready("False"))]);
    let second = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(second.pods.len(), 1);
    assert_eq!(second.pods[0].conditions[0].status, 1);
    let status =
        client.get_pod_conditions(PodConditionsRequest { pod_uid: "uid-a".to_owned() }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

fn device(id: &str, nodes: &[u32]) -> HeldDevice {
    let health = Default::default();
    HeldDevice { resource: "example.com/dev".into(), id: id.into(), nodes: nodes.to_vec(), health }
}

/// R8, R10, R13, R15, R18, R19, R20 and R26.
#[tokio::test]
async fn resources_of_active_pods() {
    let world = World::start(|_| {});
    // R26: of what the pod has as a whole the sidecar has some to itself, and the other one shares.
    let both = |cpus: &str, memory: &str| {
        let list = json!({"cpu": cpus, "memory": memory});
        json!({"requests": list, "limits": list})
    };
    let sidecar = json!({"spec": {"resources": both("3", "9"), "initContainers": [
        {"name": "init"}, {"name": "side", "restartPolicy": "Always", "resources": both("2", "7")},
    ]}});
    // A pod that is over and still has something running is being stopped; one that has ended is not there again while it is cleaned up.
    let failing = json!({"status": {"phase": "Failed", "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}},
    ]}});
    let rows = [
        staged("running", PodStage::Syncing, &sidecar),
        staged("pending", PodStage::Syncing, &phase("Pending")),
        staged("stopping", PodStage::Terminating, &phase("Running")),
        staged("failing", PodStage::Terminating, &failing),
        staged("ended", PodStage::Terminating, &phase("Succeeded")),
        staged("done", PodStage::Syncing, &phase("Succeeded")),
        staged("rejected", PodStage::Syncing, &phase("Failed")),
        staged("over", PodStage::Terminated, &phase("Running")),
    ];
    world.publish(&rows);
    let held = ContainerAssignment {
        cpus: [3, 1].into(),
        memory: vec![MemoryBlock { kind: "memory".into(), bytes: 7, nodes: vec![0, 1] }],
        devices: vec![device("none", &[]), device("both", &[0, 1])],
    };
    let shares = ContainerAssignment { cpus: [5].into(), ..ContainerAssignment::default() };
    let pod = PodAssignment {
        containers: [("side".into(), held), ("c".into(), shares)].into(),
        cpus: [1, 3, 5].into(),
        memory: Vec::new(),
    };
    let allocatable =
        Allocatable { cpus: [1, 2, 3].into(), memory: Vec::new(), devices: vec![device("none", &[])] };
    let mut client = world.resources().await;
    let mut watcher = PodResourcesWatcherClient::new(world.channel("pod-resources/kubelet.sock").await);
    let mut watch = watcher.watch(WatchPodResourcesRequest {}).await.unwrap().into_inner();
    let first = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    assert!(first.pod_resources.iter().all(|pod| pod.cpu_ids.is_empty()));
    world.assignments.send_replace(Arc::new(Assignments {
        deaf: false,
        allocatable,
        pods: [("uid-running".into(), Arc::new(pod))].into(),
        ..Assignments::default()
    }));
    let list = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap(), list);
    let names: Vec<_> = list.pod_resources.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["failing", "pending", "running", "stopping"]);
    let running = &list.pod_resources[2];
    assert_eq!(running.cpu_ids, [1, 3, 5]);
    let containers: Vec<_> = running.containers.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(containers, ["side", "c"]);
    assert!(running.containers[1].cpu_ids.is_empty());
    let side = &running.containers[0];
    assert_eq!((&side.cpu_ids[..], side.memory[0].size), (&[1, 3][..], 7));
    let nodes = |topology: &Option<mainstay_proto::podresources::v1::TopologyInfo>| {
        topology.as_ref().map(|topology| topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>())
    };
    assert_eq!(nodes(&side.memory[0].topology), Some(vec![0, 1]));
    let devices: Vec<_> =
        side.devices.iter().map(|device| (device.device_ids.join(","), nodes(&device.topology))).collect();
    let one = |id: &str, node| (id.to_owned(), Some(vec![node]));
    assert_eq!(devices, [("none".to_owned(), None), one("both", 0), one("both", 1)]);
    assert!(running.containers[1].cpu_ids.is_empty());

    let get = |name: &str| GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let got = client.get(get("running")).await.unwrap().into_inner().pod_resources;
    assert_eq!(got.as_ref(), Some(running));
    for name in ["done", "rejected", "over", "nobody"] {
        let status = client.get(get(name)).await.unwrap_err();
        let message = format!("pod {name} in namespace default not found");
        assert_eq!((status.code(), status.message()), (Code::Unknown, message.as_str()));
    }
    let allocatable =
        client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!((&allocatable.cpu_ids[..], allocatable.devices.len()), (&[1, 2, 3][..], 1));
    let channel = world.channel("pod-resources/kubelet.sock").await;
    let mut old = podresources_v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let all = old.list(podresources_v1alpha1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.pod_resources.len(), rows.len());
    assert!(all.pod_resources.iter().all(|pod| pod.containers.len() == 1 && pod.containers[0].name == "c"));
}

/// Whoever reckons what is free by what is told as held must not be told less than is held.
#[tokio::test]
async fn nothing_is_told_of_holders_before_all_are_known() {
    let world = World::start(|_| {});
    world.publish(&[view("a", &json!({})), view("b", &json!({}))]);
    let mut client = world.resources().await;
    let channel = world.channel("pod-resources/kubelet.sock").await;
    let mut watcher = PodResourcesWatcherClient::new(channel.clone());
    let mut old = podresources_v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let mut watch = watcher.watch(WatchPodResourcesRequest {}).await.unwrap().into_inner();
    timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    let lost = Unknown { cpus: true, devices: true, ..Unknown::default() };
    let lost_text = "who holds CPUs and devices is not known: the file that said so was lost, and it waits to be looked up from the containers that run";
    let unnamed = UnnamedDevices { pod: "uid-a".into(), container: "c".into(), resource: "a.com/x".into() };
    let unnamed = Unknown { unnamed: vec![unnamed], ..Unknown::default() };
    let unnamed_text = "container c of pod uid-a holds devices of a.com/x, and the file that said which was lost; it is waited for its end";
    let get = |name: &str| GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
    };
    for (unknown, text) in [(lost, lost_text), (unnamed, unnamed_text)] {
        world.assignments.send_replace(Arc::new(Assignments { unknown, ..Assignments::default() }));
        let answers = [
            client.list(ListPodResourcesRequest {}).await.map(drop),
            client.get(get("a")).await.map(drop),
            old.list(podresources_v1alpha1::ListPodResourcesRequest {}).await.map(drop),
            watcher.watch(WatchPodResourcesRequest {}).await.map(drop),
        ];
        for status in answers.map(Result::unwrap_err) {
            assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, text));
        }
        // What there is to be held does not depend on who holds it.
        client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap();
    }
    let status = timeout(SOON, watch.message()).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "what goes on is ended");
    // What another one holds is known.
    client.get(get("b")).await.unwrap();
    world.assignments.send_replace(Arc::default());
    assert_eq!(client.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources.len(), 2);
    client.get(get("a")).await.unwrap();
}

#[tokio::test]
async fn the_eleventh_call_at_once_is_refused_and_streams_are_not() {
    let world = World::start(|config| config.rate = Rate { per_second: 0.001, burst: 10.0 });
    world.publish(&[]);
    let mut client = world.pods().await;
    for _ in 0..10 {
        client.list_pods(ListPodsRequest {}).await.unwrap();
    }
    let mut another = world.pods().await;
    for client in [&mut client, &mut another] {
        let status = client.list_pods(ListPodsRequest {}).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "rejected by rate limit"));
    }
    client.watch_pods(WatchPodsRequest {}).await.unwrap();
    world.info().await.list_pod_conditions(Empty {}).await.unwrap();
    let labels = [("server_api_version", "v1alpha1"), ("status_code", "OK")];
    assert_eq!(world.counted("kubelet_pod_requests_list_total", &labels), 10);
    let labels = [("server_api_version", "v1alpha1"), ("status_code", "ResourceExhausted")];
    assert_eq!(world.counted("kubelet_pod_requests_total", &labels), 0, "not counted, as upstream");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads frames until so many of a kind have come.
async fn until(socket: &mut UnixStream, kind: u8, mut count: usize) {
    while count > 0 {
        let mut head = [0; 9];
        timeout(SOON, socket.read_exact(&mut head)).await.unwrap().expect("the connection ended");
        assert_ne!(head[3], 7, "GOAWAY");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        timeout(SOON, socket.read_exact(&mut payload)).await.unwrap().expect("the connection ended");
        count -= usize::from(head[3] == kind);
    }
}

/// A call of `ListPods` as HTTP/2 has it: POST, http, then path, authority and content type by their places in HPACK's table.
fn list_pods_head(mask: &str) -> Vec<u8> {
    let literal =
        |name: &[u8], value: &str| [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let mut head = [
        &[0x83, 0x86][..],
        &literal(&[4], "/v1alpha1.Pods/ListPods"),
        &literal(&[1], "node"),
        &literal(&[0x0f, 0x10], "application/grpc"),
    ]
    .concat();
    if !mask.is_empty() {
        head.extend(literal(&[0], "x-kubernetes-fieldmask"));
        head.extend(literal(&[], mask));
    }
    head
}

/// A client that answers pings and takes nothing, or less than there is, may keep what it asked for only a few times, and for a while.
#[tokio::test]
async fn who_does_not_take_answers_has_few_and_not_for_long() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    for (window, mask) in [(0_u32, "metadata.annotations"), (20_000, "metadata.annotations"), (0, "")] {
        let rate = Rate { per_second: 1e6, burst: 10.0 };
        let world = World::start(|config| (config.patience, config.rate) = (Duration::from_secs(4), rate));
        let text = "x".repeat(200_000);
        let head = list_pods_head(mask);
        let mut versions = Vec::new();
        let mut publish = |number: u32| {
            let version =
                view("a", &json!({"metadata": {"annotations": {"n": number.to_string(), "text": text}}}));
            versions.push(Arc::downgrade(&version));
            world.publish(&[version]);
            versions.iter().filter(|version| version.strong_count() > 0).count()
        };
        let mut socket = UnixStream::connect(world.root.path().join("pods-api/pods-api.sock")).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        socket.write_all(&frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat())).await.unwrap();
        for number in 0..60 {
            publish(number);
            let stream = number * 2 + 1;
            let call = [frame(HEADERS, 4, stream, &head), frame(DATA, 1, stream, &[0; 5])].concat();
            socket.write_all(&call).await.unwrap();
            // An answer that begins, or a refusal.
            until(&mut socket, HEADERS, 1).await;
        }
        let kept = publish(60);
        assert!((16..=18).contains(&kept), "what each of sixteen asked for, and the newest: {kept}");
        // Another one has places of his own; this one is refused with as much.
        let status = world.pods().await.list_pods(ListPodsRequest {}).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().starts_with("too many answers wait to be taken"), "{status}");
        until(&mut socket, RESET, 16).await;
        world.pods().await.list_pods(ListPodsRequest {}).await.unwrap();
        assert!(publish(61) <= 2, "nothing is kept after that");
        let labels = [("server_api_version", "v1alpha1"), ("status_code", "Canceled")];
        assert_eq!(world.counted("kubelet_pod_requests_list_total", &labels), 16);
        // The connection goes on: an answer that is taken is told to its end.
        let room = (1_u32 << 20).to_be_bytes();
        let call = [
            frame(8, 0, 0, &room),
            frame(HEADERS, 4, 201, &head),
            frame(8, 0, 201, &room),
            frame(DATA, 1, 201, &[0; 5]),
        ];
        socket.write_all(&call.concat()).await.unwrap();
        until(&mut socket, HEADERS, 2).await;
    }
}

/// Requests that are refused before all of them is there are read all the same: HTTP/2 ends a connection on which too much comes that was reset, and
/// with it every watch.
#[tokio::test]
async fn thousands_of_refused_calls_do_not_end_their_connection() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    let world = World::start(|config| config.rate = Rate { per_second: 0.0, burst: 0.0 });
    world.publish(&[]);
    let mut socket = UnixStream::connect(world.root.path().join("pods-api/pods-api.sock")).await.unwrap();
    let head = list_pods_head("");
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    socket.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    for round in 0..5_u32 {
        let streams = || (0..500).map(|number| (round * 500 + number) * 2 + 1);
        let heads: Vec<u8> = streams().flat_map(|stream| frame(HEADERS, 4, stream, &head)).collect();
        socket.write_all(&heads).await.unwrap();
        // Time enough to refuse them, and to forget them.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let rest: Vec<u8> = streams().flat_map(|stream| frame(DATA, 1, stream, &[0; 5])).collect();
        socket.write_all(&rest).await.unwrap();
        until(&mut socket, HEADERS, 500).await;
    }
}

/// By every call, on every socket.
#[tokio::test]
async fn what_is_no_message_is_refused_and_nobody_suffers() {
    let world = World::start(|_| {});
    world.publish(&[]);
    let sockets = [
        ("pods-api/pods-api.sock", "v1alpha1.Pods", &["ListPods", "WatchPods", "GetPod"][..]),
        (
            "pod-info/kubelet.sock",
            "podinfo.v1alpha1.PodInfo",
            &["ListPodConditions", "WatchPodConditions", "GetPodConditions"],
        ),
        ("pod-resources/kubelet.sock", "v1.PodResourcesLister", &["List", "GetAllocatableResources", "Get"]),
        ("pod-resources/kubelet.sock", "v1alpha1.PodResourcesLister", &["List"]),
        ("pod-resources/kubelet.sock", "mainstay.podresources.v1alpha1.PodResourcesWatcher", &["Watch"]),
    ];
    for (socket, service, methods) in sockets {
        let stream = UnixStream::connect(world.root.path().join(socket)).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        world.tasks.spawn("connection", async move { drop(connection.await) });
        for method in methods {
            // Nothing; less than it says; more than it says; a field of no type; compressed.
            for (message, code) in [
                ("", "13"),
                ("\0\0\0\0\x05", "13"),
                ("\0\0\0\0\0x", "13"),
                ("\0\0\0\0\x01\x0f", "13"),
                ("\x01\0\0\0\0", "12"),
            ] {
                let request = http::Request::post(format!("http://node/{service}/{method}"))
                    .header("content-type", "application/grpc")
                    .body(message.to_owned())
                    .unwrap();
                let answer = timeout(SOON, sender.send_request(request)).await.unwrap().unwrap();
                assert_eq!(answer.headers()["grpc-status"], code, "{service}/{method} {message:?}");
            }
        }
    }
    world.pods().await.list_pods(ListPodsRequest {}).await.unwrap();
    world.info().await.list_pod_conditions(Empty {}).await.unwrap();
    world.resources().await.list(ListPodResourcesRequest {}).await.unwrap();
}

#[tokio::test]
async fn another_service_is_not_there() {
    let world = World::start(|config| config.get_allocatable = false);
    world.publish(&[]);
    let channel = world.channel("pod-resources/kubelet.sock").await;
    let status = PodsClient::new(channel.clone()).list_pods(ListPodsRequest {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, "unknown service v1alpha1.Pods"));
    let mut client = PodResourcesListerClient::new(channel);
    let status = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unknown, "PodResources API GetAllocatableResources disabled")
    );
    let labels = [("server_api_version", "v1")];
    assert_eq!(world.counted("kubelet_pod_resources_endpoint_errors_get_allocatable", &labels), 1);
}
