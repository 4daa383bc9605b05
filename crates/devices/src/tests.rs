use std::{os::unix::fs::MetadataExt as _, path::Path, pin::Pin, time::Duration};

use futures_util::{Stream, stream};
use hyper::server::conn::http2;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use mainstay_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    DeviceSpec, Empty, ListAndWatchResponse, Mount, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
    registration_client::RegistrationClient,
};
use mainstay_types::Unknown;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Uri},
};

use super::*;

const RESOURCE: &str = "example.com/dev";
/// For what comes by itself.
const SOON: Duration = Duration::from_secs(60);

/// A plugin with two devices.
#[derive(Clone, Debug, Default)]
struct Fake {
    /// Allocate never answers.
    hangs: bool,
    /// Allocate answers, with nothing.
    says_nothing: bool,
    /// It cannot say what it can do.
    has_no_options: bool,
    /// It has these, too.
    also: &'static [&'static str],
    /// It cannot say what it has.
    lists_nothing: bool,
    /// It wants to be asked before each start of a container.
    wants_pre_start: bool,
    /// How often it was.
    prepared: Arc<std::sync::atomic::AtomicUsize>,
    /// It says which go together: those of the last names. What it was asked.
    prefers: Option<Arc<Mutex<Vec<ContainerPreferredAllocationRequest>>>>,
    /// Each time it is woken it has one more.
    more: Option<Arc<Notify>>,
    /// When it is woken it tells no more of what it has, and serves on.
    ends: Option<Arc<Notify>>,
    /// To this call it answers with this.
    garbles: Option<(&'static str, &'static str)>,
    /// How often it was called.
    called: Arc<std::sync::atomic::AtomicUsize>,
}

impl Fake {
    fn count(&self) {
        self.called.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn calls(&self) -> usize {
        self.called.load(std::sync::atomic::Ordering::Relaxed)
    }
}

type Lists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Fake {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.count();
        if self.has_no_options {
            return Err(Status::internal("no idea"));
        }
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.wants_pre_start,
            get_preferred_allocation_available: self.prefers.is_some(),
        }))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        self.count();
        if self.lists_nothing {
            return Err(Status::internal("no list"));
        }
        let device = |id: &str| Device { id: id.to_owned(), health: "Healthy".to_owned(), topology: None };
        let mut devices = vec![device("a"), device("b")];
        devices.extend(self.also.iter().map(|id| device(id)));
        let list = ListAndWatchResponse { devices };
        let (more, ends) = (self.more.clone(), self.ends.clone());
        let lists = stream::unfold((list, 0), move |(mut list, told)| {
            let (more, ends) = (more.clone(), ends.clone());
            async move {
                match (more, ends) {
                    _ if told == 0 => {}
                    (Some(more), _) => {
                        more.notified().await;
                        list.devices.push(device(&format!("more-{told}")));
                    }
                    (None, Some(ends)) => {
                        ends.notified().await;
                        return None;
                    }
                    (None, None) => std::future::pending().await,
                }
                Some((Ok(list.clone()), (list, told + 1)))
            }
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        self.count();
        let Some(asked) = &self.prefers else { return Err(Status::unimplemented("not asked for")) };
        let requests = request.into_inner().container_requests;
        asked.lock().unwrap().extend(requests.clone());
        let container_responses = requests.into_iter().map(|request| {
            let must = &request.must_include_device_i_ds;
            let others = request.available_device_i_ds.iter().rev().filter(|id| !must.contains(id));
            let all = must.iter().chain(others).take(usize::try_from(request.allocation_size).unwrap());
            ContainerPreferredAllocationResponse { device_i_ds: all.cloned().collect() }
        });
        let container_responses = container_responses.collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, _: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        self.count();
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let answers = usize::from(!self.says_nothing);
        let container_responses = vec![ContainerAllocateResponse::default(); answers];
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        if !self.wants_pre_start {
            return Err(Status::unimplemented("not asked for"));
        }
        self.prepared.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[derive(Clone)]
struct Calls(TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn("call", call);
    }
}

struct World {
    directory: PathBuf,
    tasks: TaskGroup,
    devices: Devices,
    problem: Option<String>,
    assignments: watch::Receiver<Arc<Assignments>>,
}

fn world(root: &Path, patience: Patience) -> World {
    world_of(root, patience, false)
}

fn world_of(root: &Path, patience: Patience, recorded: bool) -> World {
    let tasks = TaskGroup::new();
    let (sender, assignments) = watch::channel(Arc::default());
    let directory = root.join("device-plugins");
    let counters = Arc::default();
    let copy = root.join("mainstay/devices.json");
    let config = DevicesConfig {
        directory: directory.clone(),
        copy,
        recorded,
        assignments: sender,
        patience,
        counters,
    };
    let (devices, problems) = start(config, &tasks).unwrap();
    let problem = problems.into_iter().next();
    World { directory, tasks, devices, problem, assignments }
}

impl World {
    /// Serves a plugin and registers it; the group whose end is its.
    async fn plug(&self, fake: Fake) -> Result<TaskGroup, Status> {
        self.plug_at("fake.sock", fake).await
    }

    async fn plug_at(&self, name: &str, fake: Fake) -> Result<TaskGroup, Status> {
        self.plug_for(RESOURCE, name, fake).await
    }

    async fn plug_for(&self, resource: &str, name: &str, fake: Fake) -> Result<TaskGroup, Status> {
        let socket = self.directory.join(name);
        std::fs::remove_file(&socket).ok();
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let (own, group) = (TaskGroup::new(), TaskGroup::new());
        let calls = group.clone();
        own.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, garbles) = (DevicePluginServer::new(fake.clone()), fake.garbles);
                let service = tower::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let mut server = server.clone();
                    async move {
                        match garbles {
                            Some((call, text)) if request.uri().path().ends_with(call) => {
                                let answer =
                                    hyper::Response::builder().header("content-type", "application/grpc");
                                Ok(answer.body(tonic::body::Body::new(text.to_owned())).unwrap())
                            }
                            _ => tower::Service::call(&mut server, request).await,
                        }
                    }
                });
                let connection = http2::Builder::new(Calls(calls.clone()))
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                calls.spawn("connection", async move { drop(connection.await) });
            }
        });
        self.register("v1beta1", name, resource).await?;
        Ok(group)
    }

    async fn register(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), Status> {
        let socket = self.directory.join("kubelet.sock");
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        let (version, endpoint) = (version.to_owned(), endpoint.to_owned());
        let request =
            RegisterRequest { version, endpoint, resource_name: resource.to_owned(), options: None };
        RegistrationClient::new(channel).register(request).await.map(drop)
    }

    async fn has(&self, allocatable: usize, capacity: usize) {
        let mut amounts = self.devices.resources();
        let shown = |all: &Arc<ExtendedResources>| {
            all.amounts.get(RESOURCE).map(|amount| (amount.allocatable, amount.capacity))
        };
        let wanted = Some((allocatable, capacity));
        let waited = tokio::time::timeout(SOON, amounts.wait_for(|all| shown(all) == wanted)).await;
        let found = waited.map(drop);
        assert!(found.is_ok(), "{:?}", self.devices.inner.amounts.borrow());
    }

    /// Waits until so many plugins are left.
    async fn plugins(&self, count: usize) {
        let left = async {
            while self.devices.book().plugins.len() != count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, left).await.unwrap();
    }

    async fn end(self) {
        self.tasks.drain(SOON).await;
    }
}

fn pod(uid: &str, count: u32) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {RESOURCE: count.to_string()}}}]},
    }))
    .unwrap()
}

#[tokio::test]
async fn a_plugin_that_hangs_costs_its_pod_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let patience = Patience { allocate: Duration::from_millis(100), ..Patience::default() };
    let world = world(root.path(), patience);
    let _plugin = world.plug(Fake { hangs: true, ..Fake::default() }).await.unwrap();
    world.has(2, 2).await;
    let error = world.devices.admit(&pod("p", 1)).await.unwrap_err().to_string();
    assert!(
        error.starts_with("rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
        "{error}"
    );
    assert_eq!(world.devices.book().ledger.holders().count(), 0, "they are free again");
    assert!(world.devices.is_due(&pod("p", 1)));
    assert!(!world.devices.is_due(&Pod::default()));
    world.end().await;
}

/// D6: one that cannot say what it has offers nothing, and is not called again.
#[tokio::test]
async fn d6_one_that_lists_nothing_is_not_called_again() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let fake = Fake { lists_nothing: true, ..Fake::default() };
    let _plugin = world.plug(fake.clone()).await.unwrap();
    world.has(0, 0).await;
    world.plugins(0).await;
    let error = world.devices.admit(&pod("p", 1)).await.unwrap_err().to_string();
    assert_eq!(error, "cannot allocate unregistered device example.com/dev");
    assert_eq!(fake.calls(), 2);
    world.end().await;
}

/// What a plugin tells is told on, however long a disk takes to be written to.
#[tokio::test]
async fn a_disk_that_hangs_does_not_delay_what_is_told() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let more = Arc::new(Notify::new());
    let fake = Fake { more: Some(Arc::clone(&more)), ..Fake::default() };
    let _plugin = world.plug(fake).await.unwrap();
    world.has(2, 2).await;
    // What is there is written first: nobody shall be at it when the pipe comes in its place.
    let pipe = world.directory.join(".kubelet_internal_checkpoint.tmp");
    let written = world.directory.join("kubelet_internal_checkpoint");
    let look = || {
        let of =
            |path: &Path| std::fs::metadata(path).ok().map(|it| (it.ino(), it.len(), it.modified().ok()));
        (of(&written), of(&pipe))
    };
    let (mut seen, mut same) = (look(), 0);
    while same < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = look();
        same = if now == seen { same + 1 } else { 0 };
        seen = now;
    }
    std::fs::remove_file(&pipe).ok();
    // Whoever opens this to write waits for somebody who reads.
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for count in 3..6 {
        more.notify_one();
        world.has(count, count).await;
    }
    // From now on somebody could read, and whoever waits goes on.
    let _reader = std::fs::File::options().read(true).write(true).open(pipe).unwrap();
    world.end().await;
}

#[tokio::test]
async fn an_answer_without_contents_is_none() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let _plugin = world.plug(Fake { says_nothing: true, ..Fake::default() }).await.unwrap();
    world.has(2, 2).await;
    let error = world.devices.admit(&pod("p", 1)).await.unwrap_err().to_string();
    assert!(error.starts_with("no containers return in allocation response"), "{error}");
    world.end().await;
}

/// D1 and D2: nor is it asked what it has.
#[tokio::test]
async fn one_that_cannot_say_what_it_can_do_is_not_taken() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let fake = Fake { has_no_options: true, ..Fake::default() };
    let refused = world.plug(fake.clone()).await.unwrap_err();
    let text = "failed to get device plugin options: rpc error: code = Internal desc = no idea";
    assert_eq!((refused.code(), refused.message()), (tonic::Code::Unknown, text));
    assert!(world.devices.resources().borrow().amounts.is_empty(), "the node knows nothing of it");
    world.plugins(0).await;
    world.end().await;
    assert_eq!(fake.calls(), 1);
}

/// D7: one that ends its list, though it is there still, is not asked for another; it has to register.
#[tokio::test]
async fn d7_one_that_ends_its_list_is_not_asked_for_another() {
    for (absence, capacity) in [(Patience::default().absence, 2), (Duration::from_millis(100), 0)] {
        let root = tempfile::tempdir().unwrap();
        let world = world(root.path(), Patience { absence, ..Patience::default() });
        let ends = Arc::new(Notify::new());
        let fake = Fake { ends: Some(Arc::clone(&ends)), ..Fake::default() };
        let _plugin = world.plug(fake.clone()).await.unwrap();
        world.has(2, 2).await;
        ends.notify_one();
        world.has(0, capacity).await;
        world.plugins(0).await;
        assert_eq!(fake.calls(), 2, "what it can do, and what it has");
        let fake_again = Fake { ends: None, ..fake.clone() };
        let _again = world.plug_at("again.sock", fake_again).await.unwrap();
        world.has(2, 2).await;
        assert_eq!(fake.calls(), 4);
        world.end().await;
    }
}

/// D23: what init containers leave is in every answer that is wanted, and counts for it.
#[tokio::test]
async fn d23_a_plugin_is_told_what_it_must_include() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let asked = Arc::default();
    let fake = Fake { also: &["c", "d", "e", "f"], prefers: Some(Arc::clone(&asked)), ..Fake::default() };
    let _plugin = world.plug(fake).await.unwrap();
    world.has(6, 6).await;
    let container = |name: &str, count: u32| serde_json::json!({"name": name, "resources": {"limits": {RESOURCE: count.to_string()}}});
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"uid": "p"},
        "spec": {"initContainers": [container("i", 2)], "containers": [container("c", 4)]},
    }))
    .unwrap();
    world.devices.admit(&pod).await.unwrap();
    let request = |available: &[&str], must: &[&str], size| {
        let texts = |ids: &[&str]| ids.iter().map(ToString::to_string).collect();
        ContainerPreferredAllocationRequest {
            available_device_i_ds: texts(available),
            must_include_device_i_ds: texts(must),
            allocation_size: size,
        }
    };
    let all = ["a", "b", "c", "d", "e", "f"];
    assert_eq!(*asked.lock().unwrap(), [request(&all, &[], 2), request(&all, &["e", "f"], 4)]);
    let told = world.assignments.borrow().clone();
    let held = |container: &str| -> Vec<String> {
        let held = &told.pods[&PodUid::from("p")].containers[container];
        held.devices.iter().map(|device| device.id.to_string()).collect()
    };
    assert_eq!(held("i"), ["e", "f"]);
    assert_eq!(held("c"), ["c", "d", "e", "f"]);
    world.end().await;
}

/// D7 and D29.
#[tokio::test]
async fn one_that_goes_is_remembered_for_a_while() {
    let root = tempfile::tempdir().unwrap();
    let patience = Patience { absence: Duration::from_millis(300), ..Patience::default() };
    let world = world(root.path(), patience);
    let plugin = world.plug(Fake::default()).await.unwrap();
    world.has(2, 2).await;
    world.devices.admit(&pod("p", 1)).await.unwrap();
    plugin.drain(Duration::ZERO).await;
    world.has(0, 0).await;
    assert_eq!(world.assignments.borrow().pods.len(), 1, "who has it keeps it");
    let error = world.devices.admit(&pod("q", 1)).await.unwrap_err().to_string();
    assert_eq!(error, "cannot allocate unregistered device example.com/dev");
    let _plugin = world.plug(Fake::default()).await.unwrap();
    world.has(2, 2).await;
    let error = world.devices.admit(&pod("q", 2)).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "requested number of devices unavailable for example.com/dev. Requested: 2, Available: 1"
    );
    world.devices.release(&PodUid::from("p"));
    world.devices.admit(&pod("q", 2)).await.unwrap();
    world.end().await;
}

/// D29: what a plugin does before each start nobody else can do, however long it has been away, also over a restart of mainstay.
#[tokio::test]
async fn d29_nothing_is_started_before_its_plugin_has_made_it_ready() {
    let root = tempfile::tempdir().unwrap();
    let patience =
        Patience { absence: Duration::from_millis(300), dial: Duration::from_secs(2), ..Patience::default() };
    let prepared = |fake: &Fake| fake.prepared.load(std::sync::atomic::Ordering::Relaxed);
    let is_refused = async |world: &World, when: &str| {
        let refused = world.devices.prepare("p", "c").await.unwrap_err();
        assert!(matches!(&refused, PrepareError::Away(it) if &**it == RESOURCE), "{when}: {refused}");
    };
    let is_given_up = async |world: &World| {
        while world.devices.book().ledger.standing(RESOURCE) != Some(Standing::Gone) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let fake = Fake { wants_pre_start: true, ..Fake::default() };
    let first = world(root.path(), patience);
    let plugin = first.plug(fake.clone()).await.unwrap();
    first.has(2, 2).await;
    first.devices.admit(&pod("p", 1)).await.unwrap();
    first.devices.prepare("p", "c").await.unwrap();
    assert_eq!(prepared(&fake), 1);
    plugin.drain(Duration::ZERO).await;
    first.plugins(0).await;
    is_refused(&first, "it has just gone").await;
    tokio::time::timeout(SOON, is_given_up(&first)).await.unwrap();
    is_refused(&first, "it is waited for no longer").await;
    first.end().await;

    let second = world(root.path(), patience);
    is_refused(&second, "it is not back after a restart").await;
    tokio::time::timeout(SOON, is_given_up(&second)).await.unwrap();
    is_refused(&second, "it does not come back").await;
    let plugin = second.plug(fake.clone()).await.unwrap();
    second.has(2, 2).await;
    second.devices.prepare("p", "c").await.unwrap();
    assert_eq!(prepared(&fake), 2);
    // Who comes after it may not want to be asked.
    plugin.drain(Duration::ZERO).await;
    second.plugins(0).await;
    let plugin = second.plug(Fake::default()).await.unwrap();
    second.has(2, 2).await;
    plugin.drain(Duration::ZERO).await;
    second.plugins(0).await;
    second.devices.prepare("p", "c").await.unwrap();
    second.end().await;
}

/// What is no message of the protocol is an error that says so: the plugin's own, or the pod's that asked it.
#[tokio::test]
async fn a_plugin_that_talks_nonsense_costs_nobody_else() {
    const OTHER: &str = "example.com/other";
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let _other = world.plug_for(OTHER, "other.sock", Fake::default()).await.unwrap();
    let garbles = |call, text| Fake { garbles: Some((call, text)), ..Fake::default() };
    let error = "rpc error: code = ";
    // A field of no type; less than it says; no frame at all; nothing.
    for (text, why) in [
        ("\0\0\0\0\x01\x0f", "failed to decode Protobuf message"),
        ("\0\0\0\0\x05", "missing grpc-status trailer"),
        ("<html>", "invalid compression flag"),
        ("", "missing grpc-status trailer"),
    ] {
        let refused = world.plug(garbles("/GetDevicePluginOptions", text)).await.unwrap_err();
        let said = refused.message();
        assert!(said.starts_with(&format!("failed to get device plugin options: {error}")), "{said}");
        assert!(said.contains(why), "{said}");

        let _plugin = world.plug(garbles("/ListAndWatch", text)).await.unwrap();
        world.plugins(1).await;
        let socket = world.directory.join("fake.sock");
        let again = Plugin::connect(RESOURCE, "fake.sock", socket, SOON).await.unwrap();
        let said = tokio::time::timeout(SOON, plugin::listen(&world.devices, again)).await.unwrap();
        assert!(said.starts_with(error) && said.contains(why), "{said}");

        let plugin = world.plug(garbles("/Allocate", text)).await.unwrap();
        world.has(2, 2).await;
        let said = world.devices.admit(&pod("p", 1)).await.unwrap_err().to_string();
        assert!(said.starts_with(error) && said.contains(why), "{said}");
        assert!(world.devices.is_due(&pod("p", 1)), "it holds nothing");
        plugin.drain(Duration::ZERO).await;
        world.plugins(1).await;

        let mut asks = asks(&pod("q", 1));
        asks[0].resource = OTHER.into();
        let given = world.devices.give_all(asks, None).await.unwrap();
        world.devices.take_back(&given);
    }
    world.end().await;
}

#[tokio::test]
async fn after_a_restart_plugins_are_waited_for_and_not_for_ever() {
    let root = tempfile::tempdir().unwrap();
    let first = world(root.path(), Patience::default());
    let _plugin = first.plug(Fake::default()).await.unwrap();
    first.has(2, 2).await;
    first.devices.admit(&pod("p", 1)).await.unwrap();
    first.end().await;

    let second = world(root.path(), Patience::default());
    assert_eq!(second.problem, None);
    second.has(0, 0).await;
    assert!(!second.devices.is_due(&pod("p", 1)), "it has what it asks for");
    let (devices, waits) = (second.devices.clone(), pod("q", 1));
    let (told, heard) = tokio::sync::oneshot::channel();
    second.tasks.spawn("pod", async move {
        told.send(devices.admit(&waits).await.is_ok()).ok();
    });
    let _plugin = second.plug(Fake::default()).await.unwrap();
    assert!(tokio::time::timeout(SOON, heard).await.unwrap().unwrap());
    assert_eq!(second.devices.prepare("p", "c").await.unwrap(), Grant::default());
    second.devices.keep_only(|uid| uid == "q");
    second.end().await;

    let patience = Patience { absence: Duration::from_millis(100), ..Patience::default() };
    let third = world(root.path(), patience);
    let error = third.devices.admit(&pod("r", 1)).await.unwrap_err().to_string();
    assert_eq!(error, "cannot allocate unregistered device example.com/dev");
    assert_eq!(third.assignments.borrow().pods.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["q"]);
    third.end().await;
}

/// D34.
#[tokio::test]
async fn a_broken_file_is_set_aside_and_sockets_of_before_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("device-plugins");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(directory.join("old.sock")).unwrap());
    drop(std::os::unix::net::UnixListener::bind(directory.join("sub/old.sock")).unwrap());
    std::fs::write(directory.join("mine"), "").unwrap();
    std::fs::write(directory.join("kubelet_internal_checkpoint"), "{").unwrap();
    let world = world(root.path(), Patience::default());
    let problem = world.problem.clone().unwrap();
    assert!(problem.contains("it is not the checkpoint of a device manager"), "{problem}");
    let mut left: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(left[1].starts_with("kubelet_internal_checkpoint.bad-"), "{left:?}");
    assert_eq!([&left[0], &left[2], &left[3]], ["kubelet.sock", "mine", "sub"]);
    assert!(directory.join("sub/old.sock").exists());
    world.end().await;
}

/// What was lost is in mainstay's own copy; where that is lost too, nobody is given what somebody may hold.
#[tokio::test]
async fn a_device_in_use_is_not_given_away_when_the_file_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let (file, copy) = (
        root.path().join("device-plugins/kubelet_internal_checkpoint"),
        root.path().join("mainstay/devices.json"),
    );
    let first = world(root.path(), Patience::default());
    let _plugin = first.plug(Fake::default()).await.unwrap();
    first.has(2, 2).await;
    first.devices.admit(&pod("p", 1)).await.unwrap();
    first.end().await;
    let whole = std::fs::read_to_string(&file).unwrap();

    for lose in
        [|file: &Path| std::fs::write(file, "{").unwrap(), |file: &Path| std::fs::remove_file(file).unwrap()]
    {
        lose(&file);
        let second = world(root.path(), Patience::default());
        assert!(second.problem.as_ref().unwrap().contains("mainstay's own copy"), "{:?}", second.problem);
        assert!(second.devices.is_lost() && !second.devices.is_due(&pod("p", 1)), "it has what it had");
        let (runs, names) = (pod("p", 1), ["c".to_owned()]);
        let running = [(&runs, names.as_slice())];
        assert!(second.assignments.borrow().unknown.devices);
        assert_eq!(second.devices.rebuild(running), 0, "nothing is unknown");
        assert_eq!(second.assignments.borrow().unknown, Unknown::default());
        let _plugin = second.plug(Fake::default()).await.unwrap();
        second.has(2, 2).await;
        second.devices.admit(&pod("q", 1)).await.unwrap();
        let told = second.assignments.borrow().clone();
        let id = |uid: &str| told.pods[&PodUid::from(uid)].containers["c"].devices[0].id.to_string();
        assert_eq!((id("p"), id("q")), ("a".to_owned(), "b".to_owned()));
        second.devices.release(&PodUid::from("q"));
        second.end().await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), whole);
    }

    std::fs::write(&file, "{").unwrap();
    std::fs::write(&copy, "{").unwrap();
    let third = world(root.path(), Patience::default());
    assert!(third.devices.is_lost());
    let (runs, names) = (pod("p", 1), ["c".to_owned()]);
    let running = [(&runs, names.as_slice())];
    assert!(third.assignments.borrow().unknown.devices);
    assert_eq!(third.devices.rebuild(running), 1);
    let unnamed = vec![UnnamedDevices { pod: "p".into(), container: "c".into(), resource: RESOURCE.into() }];
    let unknown = Unknown { unnamed, ..Unknown::default() };
    assert_eq!(third.assignments.borrow().unknown, unknown);
    third.end().await;
    // Also after another restart, of which the files say nothing is wrong.
    let fourth = world(root.path(), Patience::default());
    assert!(fourth.problem.is_none() && !fourth.devices.is_lost());
    assert_eq!(fourth.assignments.borrow().unknown, unknown);
    let _plugin = fourth.plug(Fake::default()).await.unwrap();
    // Nobody can be given any, and nobody is told otherwise.
    fourth.has(0, 2).await;
    assert!(!fourth.devices.is_due(&pod("p", 1)), "it runs with what it has");
    let refused = fourth.devices.admit(&pod("q", 1)).await.unwrap_err().to_string();
    assert!(refused.starts_with("container c of pod p holds devices of example.com/dev"), "{refused}");
    // It runs on, then it ends: its own container is given some, then so is everybody.
    fourth.devices.note_running(&PodUid::from("p"), |name| name == "c");
    assert!(!fourth.devices.is_due(&pod("p", 1)));
    assert_eq!(fourth.devices.unsure_pods(), [PodUid::from("p")]);
    fourth.devices.note_running(&PodUid::from("p"), |_| false);
    fourth.has(2, 2).await;
    assert!(fourth.devices.unsure_pods().is_empty());
    assert_eq!(fourth.assignments.borrow().unknown, Unknown::default());
    assert!(fourth.devices.is_due(&pod("p", 1)));
    fourth.devices.admit(&pod("p", 1)).await.unwrap();
    fourth.devices.admit(&pod("q", 1)).await.unwrap();
    fourth.end().await;
}

/// A file that is gone is as good as one that cannot be used, where there was a life before this one.
#[tokio::test]
async fn files_that_are_gone_were_lost_if_pods_are_on_record() {
    let root = tempfile::tempdir().unwrap();
    let (file, copy) = (
        root.path().join("device-plugins/kubelet_internal_checkpoint"),
        root.path().join("mainstay/devices.json"),
    );
    let first = world_of(root.path(), Patience::default(), false);
    assert!(!first.devices.is_lost() && first.problem.is_none(), "there was none");
    first.end().await;
    assert!(file.exists() && copy.exists(), "also where nobody holds anything");

    let second = world_of(root.path(), Patience::default(), true);
    assert!(!second.devices.is_lost() && second.problem.is_none());
    let _plugin = second.plug(Fake::default()).await.unwrap();
    second.has(2, 2).await;
    second.devices.admit(&pod("p", 1)).await.unwrap();
    second.end().await;

    for path in [&file, &copy] {
        std::fs::remove_file(path).unwrap();
    }
    let third = world_of(root.path(), Patience::default(), true);
    assert!(third.problem.as_ref().unwrap().contains("is gone, and so is mainstay's own copy"));
    assert!(third.devices.is_lost());
    let _plugin = third.plug(Fake::default()).await.unwrap();
    // Before it is known who runs, nobody can be given anything; nor after that, until they have ended.
    third.has(0, 2).await;
    let (runs, names) = (pod("p", 1), ["c".to_owned()]);
    assert_eq!(third.devices.rebuild([(&runs, names.as_slice())]), 1);
    third.has(0, 2).await;
    assert!(third.devices.admit(&pod("q", 1)).await.is_err());
    third.devices.release(&PodUid::from("p"));
    third.has(2, 2).await;
    third.devices.admit(&pod("q", 1)).await.unwrap();
    third.end().await;
}

#[tokio::test]
async fn noise_on_the_socket_is_the_callers_trouble() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    for noise in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff"]
    {
        let mut stream = UnixStream::connect(world.directory.join("kubelet.sock")).await.unwrap();
        // It may be cut off while it still speaks.
        stream.write_all(noise).await.ok();
        stream.shutdown().await.ok();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the connection is closed");
    }
    // A call whose message is none: less than it says, a field of no type.
    let stream = UnixStream::connect(world.directory.join("kubelet.sock")).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(Calls(world.tasks.clone()), TokioIo::new(stream))
            .await
            .unwrap();
    world.tasks.spawn("connection", async move { drop(connection.await) });
    for message in ["\0\0\0\0\x05", "\0\0\0\0\x01\x0f"] {
        let request = hyper::Request::post("http://node/v1beta1.Registration/Register")
            .header("content-type", "application/grpc")
            .body(message.to_owned())
            .unwrap();
        let answer = tokio::time::timeout(SOON, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(answer.headers()["grpc-status"], "13", "{message:?}");
    }
    let _plugin = world.plug(Fake::default()).await.unwrap();
    world.has(2, 2).await;
    assert!(!world.assignments.borrow().deaf);
    world.end().await;
}

/// D26.
#[test]
fn answers_of_several_plugins_are_put_together() {
    let answer = |at: &str| ContainerAllocateResponse {
        envs: [("SAME".to_owned(), at.to_owned()), (at.to_owned(), "1".to_owned())].into(),
        mounts: vec![Mount { container_path: "/m".to_owned(), host_path: at.to_owned(), read_only: true }],
        devices: vec![DeviceSpec {
            container_path: "/dev/d".to_owned(),
            host_path: at.to_owned(),
            permissions: "rw".to_owned(),
        }],
        annotations: [("note".to_owned(), at.to_owned())].into(),
        cdi_devices: ["same", at].map(|name| CdiDevice { name: name.to_owned() }).to_vec(),
    };
    let responses = ["a", "b"].map(|at| (Arc::from(format!("example.com/{at}")), answer(at).encode_to_vec()));
    let Grant { grants, mounts } = grant::merge(&responses);
    let texts = |list: &[(String, String)]| -> Vec<String> {
        list.iter().map(|(key, value)| format!("{key}={value}")).collect()
    };
    assert_eq!(texts(&grants.envs), ["SAME=a", "a=1", "b=1"]);
    assert_eq!(texts(&grants.annotations), ["note=a"]);
    assert_eq!(grants.devices.iter().map(|it| it.host_path.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(
        mounts.iter().map(|it| (it.host_path.as_str(), it.readonly)).collect::<Vec<_>>(),
        [("a", true)]
    );
    assert_eq!(grants.cdi_devices.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["same", "a", "b"]);
    assert_eq!(
        grant::merge(&[(Arc::from("x/y"), vec![0xff])]),
        Grant::default(),
        "what cannot be read is nothing"
    );
}

/// D17 and D18: of two plugins for a resource the newest is heard; when it goes, there is what the other one told.
#[tokio::test]
async fn the_plugin_that_stays_is_heard() {
    let root = tempfile::tempdir().unwrap();
    let world = world(root.path(), Patience::default());
    let older = world.plug_at("older.sock", Fake::default()).await.unwrap();
    world.has(2, 2).await;
    let newer = world.plug_at("newer.sock", Fake { also: &["c"], ..Fake::default() }).await.unwrap();
    world.has(3, 3).await;
    world.devices.admit(&pod("p", 3)).await.unwrap();
    newer.drain(Duration::ZERO).await;
    world.has(2, 2).await;
    // The other way round: who is not heard is not missed.
    let again = world.plug_at("again.sock", Fake { also: &["c"], ..Fake::default() }).await.unwrap();
    world.has(3, 3).await;
    older.drain(Duration::ZERO).await;
    world.plugins(1).await;
    world.has(3, 3).await;
    again.drain(Duration::ZERO).await;
    world.has(0, 3).await;
    world.end().await;
}
