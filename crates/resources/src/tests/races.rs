//! Pods that arrive together, and a device plugin that is asked for advice by all of them before any has its device.

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt as _, stream};
use hyper::server::conn::http2;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use mainstay_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
    TopologyInfo,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
    registration_client::RegistrationClient,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Uri},
};

use super::*;

const RESOURCE: &str = "example.com/dev";

/// A plugin with a device of each NUMA node, whose advice waits until it may be given.
#[derive(Clone, Debug)]
struct Fake {
    advice: Arc<Semaphore>,
    asked: watch::Sender<usize>,
}

type Lists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Fake {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        let get_preferred_allocation_available = true;
        Ok(Response::new(DevicePluginOptions {
            get_preferred_allocation_available,
            ..DevicePluginOptions::default()
        }))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        let device = |node: i64| Device {
            id: format!("on-{node}"),
            health: "Healthy".to_owned(),
            topology: Some(TopologyInfo { nodes: vec![NumaNode { id: node }] }),
        };
        let list = ListAndWatchResponse { devices: vec![device(0), device(1)] };
        Ok(Response::new(Box::pin(stream::iter([Ok(list)]).chain(stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        self.asked.send_modify(|asked| *asked += 1);
        self.advice.acquire().await.unwrap().forget();
        let first = request.into_inner().container_requests.remove(0).available_device_i_ds.remove(0);
        let advice = ContainerPreferredAllocationResponse { device_i_ds: vec![first] };
        Ok(Response::new(PreferredAllocationResponse { container_responses: vec![advice] }))
    }

    async fn allocate(&self, _: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let container_responses = vec![ContainerAllocateResponse::default()];
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
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

impl Fake {
    /// One that the node knows.
    async fn plug(world: &World) -> Self {
        let fake = Self { advice: Arc::new(Semaphore::new(0)), asked: watch::channel(0).0 };
        let directory = world.root.path().join("device-plugins");
        let listener = UnixListener::bind(directory.join("fake.sock")).unwrap();
        let (server, calls) = (DevicePluginServer::new(fake.clone()), world.tasks.clone());
        world.tasks.spawn("plugin", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = http2::Builder::new(Calls(calls.clone()))
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(server.clone()));
                calls.spawn("connection", async move { drop(connection.await) });
            }
        });
        let socket = directory.join("kubelet.sock");
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: "fake.sock".to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: None,
        };
        RegistrationClient::new(channel).register(request).await.unwrap();
        let mut amounts = world.resources.devices().resources();
        let both = amounts.wait_for(|all| all.amounts.get(RESOURCE).is_some_and(|it| it.allocatable == 2));
        tokio::time::timeout(Duration::from_secs(60), both).await.unwrap().unwrap();
        fake
    }

    /// Waits until so many have asked for advice.
    async fn was_asked(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let asked = asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap().unwrap();
    }
}

/// The same pod, of which the last container wants a device too.
fn with_device(mut pod: Pod) -> Pod {
    let spec = pod.spec.as_mut().unwrap();
    let resources = spec.containers.last_mut().unwrap().resources.get_or_insert_default();
    for list in [&mut resources.requests, &mut resources.limits] {
        list.get_or_insert_default().insert(RESOURCE.to_owned(), serde_json::from_value(json!("1")).unwrap());
    }
    pod
}

/// A pod that wants nothing but a device.
fn only_device(uid: &str) -> Pod {
    let mut pod = pod(uid, &[("c", 1)]);
    pod.spec.as_mut().unwrap().containers[0].resources = None;
    with_device(pod)
}

impl World {
    /// Two pods of which the second is judged while the first waits for advice, which they are then given one after the other.
    async fn together(&self, fake: &Fake, first: &Pod, second: &Pod) -> [Result<(), &'static str>; 2] {
        let order = async {
            fake.was_asked(1).await;
            let second = async { self.admit(second).await.map_err(|(reason, _)| reason) };
            let advice = async {
                fake.was_asked(2).await;
                fake.advice.add_permits(1);
                let uid = first.uid_ref();
                let mut told = self.assignments.clone();
                told.wait_for(|all| all.pods.contains_key(&PodUid::from(uid))).await.unwrap();
                fake.advice.add_permits(100);
            };
            tokio::join!(second, advice).0
        };
        let first = async { self.admit(first).await.map_err(|(reason, _)| reason) };
        let (first, second) = tokio::join!(first, order);
        [first, second]
    }

    /// The nodes of a container's CPUs, and its device.
    fn lies(&self, uid: &str, container: &str) -> (Vec<u32>, Vec<Arc<str>>) {
        let told = self.assignments.borrow().clone();
        let held = &told.pods[&PodUid::from(uid)].containers[container];
        let mut nodes: Vec<u32> = held.cpus.iter().map(|cpu| cpu % 4 / 2).collect();
        nodes.dedup();
        (nodes, held.devices.iter().map(|device| device.id.clone()).collect())
    }
}

/// Who finds that others have taken what lay near begins again with all of the pod, on other nodes.
#[tokio::test]
async fn whole_pods_that_come_together_are_all_let_in() {
    for policy in [TopologyPolicy::SingleNumaNode, TopologyPolicy::Restricted, TopologyPolicy::BestEffort] {
        let world = World::start(match policy {
            TopologyPolicy::SingleNumaNode => |it| {
                one_node(it);
                it.topology.whole_pods = true;
            },
            TopologyPolicy::Restricted => {
                |it| (it.topology.policy, it.topology.whole_pods) = (TopologyPolicy::Restricted, true)
            }
            _ => |it| (it.topology.policy, it.topology.whole_pods) = (TopologyPolicy::BestEffort, true),
        });
        // On the first node there are CPUs for both, and a device for one.
        let (first, second) = (pod("first", &[("a", 1)]), pod("second", &[("a", 1), ("b", 1)]));
        let fake = Fake::plug(&world).await;
        let came = world.together(&fake, &with_device(first), &with_device(second)).await;
        assert_eq!(came, [Ok(()), Ok(())], "{policy:?}");
        assert_eq!(world.lies("first", "a"), (vec![0], vec!["on-0".into()]), "{policy:?}");
        assert_eq!(world.lies("second", "b"), (vec![1], vec!["on-1".into()]), "{policy:?}");
        assert_eq!(world.lies("second", "a").0, [1], "what was chosen before goes with it: {policy:?}");
        let placed = world.resources.place("third", "c").cpus.parse::<CpuSet>().unwrap();
        assert_eq!(placed.len(), 8 - 3, "nothing is left of the first try");
    }
}

/// It is the pod that is refused, and counted.
#[tokio::test]
async fn a_whole_pod_for_which_nothing_is_left_holds_nothing() {
    let world = World::start(|config| {
        one_node(config);
        config.topology.whole_pods = true;
    });
    let fake = Fake::plug(&world).await;
    world.admit(&pod("other", &[("c", 4)])).await.unwrap();
    let pods = ["first", "second"].map(|uid| with_device(pod(uid, &[("a", 1)])));
    let came = world.together(&fake, &pods[0], &pods[1]).await;
    assert_eq!(came, [Ok(()), Err("TopologyAffinityError")]);
    let misaligned = |scope| world.counters.pinning.misaligned.of(["numa_node", scope]).get();
    assert_eq!((misaligned("pod"), misaligned("container")), (1, 0));
    assert!(world.cpus("second", "a").starts_with("shared"));
    assert!(!world.assignments.borrow().pods.contains_key(&PodUid::from("second")));
}

/// A container that is chosen for anew has what init containers left, as before.
#[tokio::test]
async fn what_init_containers_left_is_there_when_it_is_chosen_again() {
    let world = World::start(|config| config.topology.policy = TopologyPolicy::BestEffort);
    let fake = Fake::plug(&world).await;
    world.admit(&pod("other", &[("c", 4)])).await.unwrap();
    assert_eq!(world.cpus("other", "c"), "2-3,6-7");
    let second = with_device(pod("second", &[("-i", 3), ("a", 3)]));
    let came = world.together(&fake, &only_device("first"), &second).await;
    assert_eq!(came, [Ok(()), Ok(())]);
    assert_eq!((world.cpus("second", "i"), world.cpus("second", "a")), ("1,4-5".into(), "1,4-5".into()));
    assert_eq!(world.lies("second", "a").1, ["on-1".into()]);
}
