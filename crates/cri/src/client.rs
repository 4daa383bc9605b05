//! The calls.

mod streaming;

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use k8s_cri::v1 as cri;
use k8s_cri::v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};
use mainstay_trace::{Kind, Tracer};
use prost::{Message as _, bytes::Bytes};
use tokio::net::UnixStream;
use tonic::{
    Code, Response, Status, Streaming,
    transport::{Endpoint as TonicEndpoint, Uri},
};
use tracing::{Level, debug};

use crate::{
    CallStats, ContainerExtras, ContainerStatus, CriError, Endpoint, EndpointError, Lists, container_status,
    create, raw,
    traced::{self, Channel},
};

pub use streaming::{CommandOutput, StreamsWanted};

/// Largest message taken from the runtime, as upstream.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Largest answer about a command with a time limit, that is, a probe's. Many of them run at once, and a message is in
/// memory as a whole before anything of it can be dropped; 10 KiB of it are of interest.
const MAX_EXEC_BYTES: usize = 1 << 20;
/// A pull has no deadline upstream. Ours is one that no working pull reaches, so that nothing hangs for ever.
const PULL_DEADLINE: Duration = Duration::from_hours(2);
/// A command in a container without a limit of its own (a hook): the grace period cuts it long before.
const EXEC_DEADLINE: Duration = Duration::from_hours(2);

/// A CRI client. Cheap to clone; clones share one connection and one set of counters.
#[derive(Clone, Debug)]
pub struct Cri {
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    runtime_path: Arc<PathBuf>,
    image_path: Arc<PathBuf>,
    timeout: Duration,
    stats: Arc<CallStats>,
    tracer: Tracer,
}

/// How a command in a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutcome {
    /// It ran to its end.
    Exited {
        /// Its exit code.
        code: i32,
        /// What it wrote to both streams.
        output: Vec<u8>,
    },
    /// It was cut off at its time limit.
    TimedOut,
}

impl Cri {
    /// A client for these sockets. Nothing is connected yet.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(runtime: &str, images: Option<&str>, timeout: Duration) -> Result<Self, EndpointError> {
        let runtime = Endpoint::parse(runtime)?;
        let runtime_channel = channel(&runtime);
        let (image_channel, image_path) = match images.filter(|text| !text.is_empty()) {
            Some(text) => {
                let endpoint = Endpoint::parse(text)?;
                (channel(&endpoint), endpoint.path().to_owned())
            }
            None => (runtime_channel.clone(), runtime.path().to_owned()),
        };
        Ok(Self {
            channel: runtime_channel.clone(),
            runtime: RuntimeServiceClient::new(runtime_channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
            runtime_path: Arc::new(runtime.path().to_owned()),
            image_path: Arc::new(image_path),
            timeout,
            stats: Arc::default(),
            tracer: Tracer::default(),
        })
    }

    /// The same, with a span for each call.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// The counters of all calls.
    #[must_use]
    pub fn stats(&self) -> &Arc<CallStats> {
        &self.stats
    }

    /// The runtime's socket.
    #[must_use]
    pub fn socket(&self) -> &std::path::Path {
        &self.runtime_path
    }

    async fn named<T>(
        &self,
        call: &'static str,
        deadline: Duration,
        path: &std::path::Path,
        work: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> Result<T, CriError> {
        let begun = tokio::time::Instant::now();
        // Where it is: some of these are large, and would be here once for each way.
        let work = std::pin::pin!(work);
        let result = if self.tracer.is_on() {
            let mut span = self.tracer.span(traced::span_name(call), Kind::Client);
            let result = span.run(self.limited(call, deadline, path, work)).await;
            traced::describe(&mut span, call, &result);
            result
        } else {
            self.limited(call, deadline, path, work).await
        };
        let took = begun.elapsed();
        self.stats.record(call, took, result.is_err());
        if tracing::enabled!(Level::DEBUG) {
            let micros = took.as_micros();
            match &result {
                Ok(_) => debug!(call, micros, "CRI call"),
                Err(error) => debug!(call, micros, %error, "CRI call failed"),
            }
        }
        result
    }

    async fn limited<T>(
        &self,
        call: &'static str,
        deadline: Duration,
        path: &std::path::Path,
        work: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> Result<T, CriError> {
        match tokio::time::timeout(deadline, work).await {
            Err(_) => Err(CriError::Timeout { call, after: deadline }),
            Ok(Err(status)) => Err(CriError::from_status(call, path, deadline, &status)),
            Ok(Ok(response)) => Ok(response.into_inner()),
        }
    }

    /// A call whose messages the bindings do not know in full.
    async fn raw(&self, call: &'static str, path: &'static str, request: Vec<u8>) -> Result<Bytes, CriError> {
        let work = raw::call(self.channel.clone(), path, request, MAX_MESSAGE_BYTES);
        self.named(call, self.timeout, &self.runtime_path, work).await
    }

    /// The runtime answered with something else than it was asked for.
    fn unreadable(&self, call: &'static str, status: &Status) -> CriError {
        CriError::from_status(call, &self.runtime_path, self.timeout, status)
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<cri::VersionResponse, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::VersionRequest { version: "0.1.0".into() };
        self.named("version", self.timeout, &self.runtime_path, client.version(request)).await
    }

    /// The runtime's conditions, features and handlers.
    pub async fn status(&self) -> Result<cri::StatusResponse, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::StatusRequest { verbose: false };
        self.named("status", self.timeout, &self.runtime_path, client.status(request)).await
    }

    /// The runtime's cgroup driver, where it tells.
    pub async fn runtime_config(&self) -> Result<cri::RuntimeConfigResponse, CriError> {
        let mut client = self.runtime.clone();
        let work = client.runtime_config(cri::RuntimeConfigRequest {});
        self.named("runtime_config", self.timeout, &self.runtime_path, work).await
    }

    /// Tells the runtime the node's pod network.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let network_config = Some(cri::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let request =
            cri::UpdateRuntimeConfigRequest { runtime_config: Some(cri::RuntimeConfig { network_config }) };
        let work = client.update_runtime_config(request);
        self.named("update_runtime_config", self.timeout, &self.runtime_path, work).await.map(drop)
    }

    /// Sandboxes, all or those of one pod UID.
    pub async fn list_sandboxes(&self, uid: Option<&str>) -> Result<Vec<cri::PodSandbox>, CriError> {
        let mut client = self.runtime.clone();
        let filter =
            uid.map(|uid| cri::PodSandboxFilter { label_selector: uid_selector(uid), ..Default::default() });
        let work = client.list_pod_sandbox(cri::ListPodSandboxRequest { filter });
        self.named("list_podsandbox", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.items)
    }

    /// Containers, all or those of one pod UID.
    pub async fn list_containers(&self, uid: Option<&str>) -> Result<Vec<cri::Container>, CriError> {
        let mut client = self.runtime.clone();
        let filter =
            uid.map(|uid| cri::ContainerFilter { label_selector: uid_selector(uid), ..Default::default() });
        let work = client.list_containers(cri::ListContainersRequest { filter });
        self.named("list_containers", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.containers)
    }

    /// All sandboxes and containers, not decoded yet.
    ///
    /// # Errors
    /// [`CriError`] of either call.
    pub async fn lists(&self) -> Result<Lists, CriError> {
        let list = |call: &'static str, path: &'static str| {
            // Unfiltered: every field of the request has its default, so it is empty.
            self.raw(call, path, Vec::new())
        };
        let (sandboxes, containers) = tokio::try_join!(
            list("list_podsandbox", "/runtime.v1.RuntimeService/ListPodSandbox"),
            list("list_containers", "/runtime.v1.RuntimeService/ListContainers"),
        )?;
        Ok(Lists { sandboxes, containers })
    }

    /// Decodes what [`Self::lists`] gave.
    ///
    /// # Errors
    /// [`CriError`] if the runtime wrote something else than lists.
    pub fn decode(&self, lists: Lists) -> Result<(Vec<cri::PodSandbox>, Vec<cri::Container>), CriError> {
        lists.decode().map_err(|status| self.unreadable("list_containers", &status))
    }

    /// One sandbox in full.
    pub async fn sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatusResponse, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        self.named("podsandbox_status", self.timeout, &self.runtime_path, client.pod_sandbox_status(request))
            .await
    }

    /// What the runtime tells of a sandbox beyond the protocol, each in words of its own. Dear to make: ask seldom.
    pub async fn sandbox_info(
        &self,
        id: &str,
    ) -> Result<std::collections::HashMap<String, String>, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let work = client.pod_sandbox_status(request);
        self.named("podsandbox_status", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.info)
    }

    /// One container in full.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        const CALL: &str = "container_status";
        let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let path = "/runtime.v1.RuntimeService/ContainerStatus";
        let answer = self.raw(CALL, path, request.encode_to_vec()).await?;
        container_status::decode(answer).map_err(|status| self.unreadable(CALL, &status))
    }

    /// What one container uses. `None` when the runtime has no word on it.
    pub async fn container_stats(&self, id: &str) -> Result<Option<cri::ContainerStats>, CriError> {
        let mut client = self.runtime.clone();
        let work = client.container_stats(cri::ContainerStatsRequest { container_id: id.to_owned() });
        self.named("container_stats", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.stats)
    }

    /// What all containers use.
    pub async fn list_container_stats(&self) -> Result<Vec<cri::ContainerStats>, CriError> {
        let mut client = self.runtime.clone();
        let work = client.list_container_stats(cri::ListContainerStatsRequest { filter: None });
        self.named("list_container_stats", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.stats)
    }

    /// Makes and starts a sandbox; its ID. Twice the usual deadline, as upstream.
    pub async fn run_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        // Boxed as that of a container is.
        let work = Box::pin(client.run_pod_sandbox(request));
        self.named("run_podsandbox", self.timeout * 2, &self.runtime_path, work)
            .await
            .map(|response| response.pod_sandbox_id)
    }

    /// Stops a sandbox and every container in it.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let work = client.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() });
        self.named("stop_podsandbox", self.timeout, &self.runtime_path, work).await.map(drop)
    }

    /// Removes a sandbox and every container in it. One that is gone already is no error.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let work = client.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() });
        gone_is_fine(self.named("remove_podsandbox", self.timeout, &self.runtime_path, work).await.map(drop))
    }

    /// Makes a container with more than the bindings know; its ID.
    pub async fn create_container_with(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
        extras: ContainerExtras,
    ) -> Result<String, CriError> {
        if extras.is_empty() {
            return Box::pin(self.create_container(sandbox, config, sandbox_config)).await;
        }
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        const CALL: &str = "create_container";
        let path = "/runtime.v1.RuntimeService/CreateContainer";
        let answer = self.raw(CALL, path, create::encode(&request, extras)).await?;
        let response: cri::CreateContainerResponse =
            raw::decode(answer).map_err(|status| self.unreadable(CALL, &status))?;
        Ok(response.container_id)
    }

    /// Makes a container; its ID.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        // Boxed: the request is large, and so every future around it would be.
        let work = Box::pin(client.create_container(request));
        self.named("create_container", self.timeout, &self.runtime_path, work)
            .await
            .map(|response| response.container_id)
    }

    /// Starts a container.
    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let work = client.start_container(cri::StartContainerRequest { container_id: id.to_owned() });
        self.named("start_container", self.timeout, &self.runtime_path, work).await.map(drop)
    }

    /// Stops a container, by force after the grace. One that is gone already is no error. The runtime counts in whole
    /// seconds: a part of one is rounded up, so that nobody is killed before the time.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let seconds = grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0));
        let timeout = i64::try_from(seconds).unwrap_or(i64::MAX);
        let work = client.stop_container(cri::StopContainerRequest { container_id: id.to_owned(), timeout });
        let deadline = self.timeout.saturating_add(grace);
        gone_is_fine(self.named("stop_container", deadline, &self.runtime_path, work).await.map(drop))
    }

    /// Has a container run on these CPUs from now on; nothing else of it is changed.
    pub async fn update_container_cpus(&self, id: &str, cpus: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let linux = cri::LinuxContainerResources {
            cpuset_cpus: cpus.to_owned(),
            ..cri::LinuxContainerResources::default()
        };
        let work = client.update_container_resources(cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..cri::UpdateContainerResourcesRequest::default()
        });
        self.named("update_container", self.timeout, &self.runtime_path, work).await.map(drop)
    }

    /// Removes a container. One that is gone already is no error.
    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let work = client.remove_container(cri::RemoveContainerRequest { container_id: id.to_owned() });
        gone_is_fine(self.named("remove_container", self.timeout, &self.runtime_path, work).await.map(drop))
    }

    /// Runs a command in a container and waits for it. No limit of its own when `limit` is `None`.
    ///
    /// # Errors
    /// Also [`CriError::TooMuchOutput`], when a command that has a limit writes more than 1 MiB: how it ended is then not
    /// known.
    pub async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Option<Duration>,
    ) -> Result<ExecOutcome, CriError> {
        let max_bytes = if limit.is_some() { MAX_EXEC_BYTES } else { MAX_MESSAGE_BYTES };
        let mut client = self.runtime.clone().max_decoding_message_size(max_bytes);
        let timeout = limit.map_or(0, |limit| i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX));
        let request = cri::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout };
        let deadline = limit.map_or(EXEC_DEADLINE, |limit| self.timeout.saturating_add(limit));
        match self.named("exec_sync", deadline, &self.runtime_path, client.exec_sync(request)).await {
            Ok(response) => {
                let mut output = response.stdout;
                output.extend_from_slice(&response.stderr);
                Ok(ExecOutcome::Exited { code: response.exit_code, output })
            }
            Err(CriError::Timeout { .. }) if limit.is_some() => Ok(ExecOutcome::TimedOut),
            // containerd reports its own time limit as a plain error with these words.
            Err(CriError::Refused { code: Code::Unknown, message, .. })
                if limit.is_some() && message.contains("timeout") && message.contains("exceeded") =>
            {
                Ok(ExecOutcome::TimedOut)
            }
            // gRPC's word for a message over the limit; the runtime has no use for it here.
            Err(CriError::Refused { call, code: Code::OutOfRange, .. }) => {
                Err(CriError::TooMuchOutput { call, max_bytes })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the runtime open the container's log file anew, after a rotation.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let work =
            client.reopen_container_log(cri::ReopenContainerLogRequest { container_id: id.to_owned() });
        self.named("reopen_container_log", self.timeout, &self.runtime_path, work).await.map(drop)
    }

    /// Subscribes to container events. The stream itself has no deadline: silence is its normal state.
    pub async fn container_events(&self) -> Result<Streaming<cri::ContainerEventResponse>, CriError> {
        let mut client = self.runtime.clone();
        let work = client.get_container_events(cri::GetEventsRequest {});
        self.named("get_container_events", self.timeout, &self.runtime_path, work).await
    }

    /// All images.
    pub async fn list_images(&self) -> Result<Vec<cri::Image>, CriError> {
        let mut client = self.images.clone();
        let work = client.list_images(cri::ListImagesRequest { filter: None });
        self.named("list_images", self.timeout, &self.image_path, work).await.map(|response| response.images)
    }

    /// One image, or `None` when the runtime does not have it.
    pub async fn image_status(&self, image: &str) -> Result<Option<cri::Image>, CriError> {
        let mut client = self.images.clone();
        let request = cri::ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
        self.named("image_status", self.timeout, &self.image_path, client.image_status(request))
            .await
            .map(|response| response.image)
    }

    /// Pulls an image; the reference it can be used by from now on.
    pub async fn pull_image(
        &self,
        image: &str,
        auth: Option<cri::AuthConfig>,
        sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let mut client = self.images.clone();
        let request = cri::PullImageRequest { image: Some(image_spec(image)), auth, sandbox_config };
        let work = Box::pin(client.pull_image(request));
        self.named("pull_image", PULL_DEADLINE, &self.image_path, work)
            .await
            .map(|response| response.image_ref)
    }

    /// Removes an image.
    pub async fn remove_image(&self, image: &str) -> Result<(), CriError> {
        let mut client = self.images.clone();
        let work = client.remove_image(cri::RemoveImageRequest { image: Some(image_spec(image)) });
        self.named("remove_image", self.timeout, &self.image_path, work).await.map(drop)
    }

    /// The file systems that hold images and containers.
    pub async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse, CriError> {
        let mut client = self.images.clone();
        let work = client.image_fs_info(cri::ImageFsInfoRequest {});
        self.named("image_fs_info", self.timeout, &self.image_path, work).await
    }
}

fn channel(endpoint: &Endpoint) -> Channel {
    let path: Arc<PathBuf> = Arc::new(endpoint.path().to_owned());
    let connector = tower::service_fn(move |_: Uri| {
        let path = Arc::clone(&path);
        async move { UnixStream::connect(path.as_path()).await.map(TokioIo::new) }
    });
    // The address is never used: the connector goes to the socket. It only becomes the `:authority` of the requests.
    let channel = TonicEndpoint::from_static("http://localhost")
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector_lazy(connector);
    Channel::new(channel)
}

fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: image.to_owned(), user_specified_image: image.to_owned(), ..Default::default() }
}

fn uid_selector(uid: &str) -> std::collections::HashMap<String, String> {
    [(mainstay_types::labels::POD_UID.to_owned(), uid.to_owned())].into()
}

fn gone_is_fine(result: Result<(), CriError>) -> Result<(), CriError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
