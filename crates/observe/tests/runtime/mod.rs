//! A CRI server on a real socket, with pods that answer as told.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::stream;
use k8s_cri::v1::{
    self as cri,
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use mainstay_task::TaskGroup;
use mainstay_types::labels;
use tonic::{Request, Response, Status, transport::Server};

/// How a pod's sandbox and container answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    Hang,
    Error,
    Garbage,
}

/// The runtime. Each pod has one sandbox and one container, both with its name for an ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeRuntime {
    pods: Arc<Mutex<BTreeMap<String, Answer>>>,
    /// It does not say how it is.
    mute: Arc<AtomicBool>,
    /// Questions about pods that hang.
    hanging: Arc<AtomicUsize>,
}

impl FakeRuntime {
    pub(crate) fn start(socket: &Path, tasks: &TaskGroup) -> Self {
        let fake = Self::default();
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let incoming = Box::pin(stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        }));
        let service = RuntimeServiceServer::new(fake.clone());
        let shutdown = tasks.shutdown();
        tasks.spawn("fake runtime", async move {
            let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
            shutdown.run_until_signalled(serving).await;
        });
        fake
    }

    /// Adds a pod, or changes how it answers.
    pub(crate) fn pod(&self, name: &str, answer: Answer) {
        self.pods.lock().unwrap().insert(name.to_owned(), answer);
    }

    /// From now on it does not say how it is.
    pub(crate) fn mute(&self) {
        self.mute.store(true, Ordering::SeqCst);
    }

    /// How often it was asked about a pod that hangs.
    pub(crate) fn hanging(&self) -> usize {
        self.hanging.load(Ordering::SeqCst)
    }

    /// What lists say of a container.
    fn state(&self, name: &str) -> cri::ContainerState {
        match self.pods.lock().unwrap().get(name) {
            Some(Answer::Hang) => cri::ContainerState::ContainerExited,
            _ => cri::ContainerState::ContainerRunning,
        }
    }

    async fn answer(&self, id: &str) -> Result<Answer, Status> {
        let answer = self.pods.lock().unwrap().get(id).copied();
        match answer {
            None => Err(Status::not_found("no such thing")),
            Some(Answer::Hang) => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
            Some(Answer::Error) => Err(Status::internal("the state file is damaged")),
            Some(answer) => Ok(answer),
        }
    }

    fn names(&self, selector: Option<HashMap<String, String>>) -> Vec<String> {
        let wanted = selector.and_then(|labels| labels.get(labels::POD_UID).cloned());
        let pods = self.pods.lock().unwrap();
        pods.keys().filter(|name| wanted.as_ref().is_none_or(|wanted| wanted == *name)).cloned().collect()
    }
}

fn pod_labels(name: &str) -> HashMap<String, String> {
    [
        (labels::POD_UID, name),
        (labels::POD_NAME, name),
        (labels::POD_NAMESPACE, "ns"),
        (labels::CONTAINER_NAME, "c"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

type Answered<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// The calls that are answered; written out as `async_trait` would, so that the others can be listed below.
macro_rules! calls {
    ($($name:ident($request:ty) -> $answer:ty = $work:expr;)*) => {$(
        fn $name<'a, 'b>(&'a self, request: Request<$request>) -> Answered<'b, $answer>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async move {
                let work: fn(FakeRuntime, $request) -> Answered<'static, $answer> = $work;
                work(self.clone(), request.into_inner()).await
            })
        }
    )*};
}

macro_rules! not_answered {
    ($($name:ident($request:ident) -> $answer:ident;)*) => {
        calls! {$(
            $name(cri::$request) -> cri::$answer =
                |_, _| Box::pin(async { Err(Status::unimplemented(stringify!($name))) });
        )*}
    };
}

impl RuntimeService for FakeRuntime {
    type GetContainerEventsStream = stream::Empty<Result<cri::ContainerEventResponse, Status>>;

    calls! {
        version(cri::VersionRequest) -> cri::VersionResponse = |_, _| Box::pin(async {
            Ok(Response::new(cri::VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "fake".into(),
                runtime_version: "1".into(),
                runtime_api_version: "v1".into(),
            }))
        });
        status(cri::StatusRequest) -> cri::StatusResponse = |fake, _| Box::pin(async move {
            if fake.mute.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let conditions = ["RuntimeReady", "NetworkReady"].map(|kind| cri::RuntimeCondition {
                r#type: kind.into(),
                status: true,
                ..Default::default()
            });
            let status = cri::RuntimeStatus { conditions: conditions.into() };
            Ok(Response::new(cri::StatusResponse { status: Some(status), ..Default::default() }))
        });
        list_pod_sandbox(cri::ListPodSandboxRequest) -> cri::ListPodSandboxResponse = |fake, request| {
            Box::pin(async move {
                let names = fake.names(request.filter.map(|filter| filter.label_selector));
                let items = names.into_iter().map(|name| cri::PodSandbox {
                    labels: pod_labels(&name),
                    id: name,
                    ..Default::default()
                });
                Ok(Response::new(cri::ListPodSandboxResponse { items: items.collect() }))
            })
        };
        list_containers(cri::ListContainersRequest) -> cri::ListContainersResponse = |fake, request| {
            Box::pin(async move {
                let names = fake.names(request.filter.map(|filter| filter.label_selector));
                let containers = names.into_iter().map(|name| cri::Container {
                    labels: pod_labels(&name),
                    pod_sandbox_id: name.clone(),
                    state: fake.state(&name) as i32,
                    id: name,
                    ..Default::default()
                });
                Ok(Response::new(cri::ListContainersResponse { containers: containers.collect() }))
            })
        };
        pod_sandbox_status(cri::PodSandboxStatusRequest) -> cri::PodSandboxStatusResponse = |fake, request| {
            Box::pin(async move {
                let id = request.pod_sandbox_id;
                let status = match fake.answer(&id).await? {
                    Answer::Garbage => {
                        cri::PodSandboxStatus { state: 77, created_at: i64::MIN, ..Default::default() }
                    }
                    _ => cri::PodSandboxStatus { labels: pod_labels(&id), id, created_at: 1, ..Default::default() },
                };
                Ok(Response::new(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() }))
            })
        };
        container_status(cri::ContainerStatusRequest) -> cri::ContainerStatusResponse = |fake, request| {
            Box::pin(async move {
                let id = request.container_id;
                let status = match fake.answer(&id).await? {
                    Answer::Garbage => cri::ContainerStatus {
                        state: -5,
                        started_at: i64::MAX,
                        finished_at: i64::MIN,
                        log_path: "\u{0}".into(),
                        ..Default::default()
                    },
                    _ => cri::ContainerStatus {
                        labels: pod_labels(&id),
                        id,
                        state: cri::ContainerState::ContainerRunning as i32,
                        created_at: 1,
                        ..Default::default()
                    },
                };
                Ok(Response::new(cri::ContainerStatusResponse { status: Some(status), ..Default::default() }))
            })
        };
        // The command is how many bytes it writes.
        exec_sync(cri::ExecSyncRequest) -> cri::ExecSyncResponse = |_, request| {
            Box::pin(async move {
                let bytes = request.cmd.first().and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
                Ok(Response::new(cri::ExecSyncResponse { stdout: vec![b'x'; bytes], ..Default::default() }))
            })
        };
        get_container_events(cri::GetEventsRequest) -> Self::GetContainerEventsStream =
            |_, _| Box::pin(async { Err(Status::unimplemented("events")) });
    }

    not_answered! {
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse;
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse;
        create_container(CreateContainerRequest) -> CreateContainerResponse;
        start_container(StartContainerRequest) -> StartContainerResponse;
        stop_container(StopContainerRequest) -> StopContainerResponse;
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse;
        update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse;
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse;
        exec(ExecRequest) -> ExecResponse;
        attach(AttachRequest) -> AttachResponse;
        port_forward(PortForwardRequest) -> PortForwardResponse;
        container_stats(ContainerStatsRequest) -> ContainerStatsResponse;
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse;
        pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
        list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse;
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse;
        checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse;
        list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse;
        list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse;
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
    }
}
