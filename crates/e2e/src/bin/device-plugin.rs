//! A device plugin for tests: a real program that speaks the real protocol, and does what the files in a directory say.
//!
//! `device-plugin serve DIRECTORY ENDPOINT RESOURCE STATE`: serves on `DIRECTORY/ENDPOINT` and registers on `DIRECTORY/kubelet.sock`,
//! again whenever that socket is made anew.
//!
//! `device-plugin watched ROOT ENDPOINT RESOURCE STATE`: serves on `ROOT/plugins/ENDPOINT` and waits to be found by the plugin watcher on
//! `ROOT/plugins_registry/ENDPOINT`.
//!
//! Files in `STATE`:
//!
//! - `devices.json`: `[{"id": "a", "healthy": true, "nodes": [0]}, …]`, told of whenever it changes;
//! - `options`: `preferred` and `prestart`, if the plugin has these;
//! - `hang`: while it is there, Allocate does not answer; `refuse`: its text is why Allocate fails;
//! - `cdi`: `vendor.com/kind`, if containers are given CDI devices of these in the place of device nodes;
//! - `version`: what it says that it speaks, if not `v1beta1`; `endpoint`: where it says that it is, if not there (only when watched);
//! - `calls`: written by the plugin, a line for each call;
//! - `mount/`: what containers see at `/plugin`.
//!
//! `device-plugin register DIRECTORY VERSION ENDPOINT RESOURCE`: only registers, and says what came of it.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::{
    fs,
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures_util::{Stream, stream};
use hyper::server::conn::http2;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use mainstay_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, Mount, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, TopologyInfo,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
    registration_client::RegistrationClient,
};
use mainstay_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};
use mainstay_task::TaskGroup;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Uri},
};

/// How soon a file that has changed is seen.
const LOOK: Duration = Duration::from_millis(50);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match words.as_slice() {
        ["serve", directory, endpoint, resource, state] => {
            let plugin = Plugin { state: PathBuf::from(state) };
            runtime.block_on(serve(Path::new(directory), endpoint, resource, &plugin))
        }
        ["watched", root, endpoint, resource, state] => {
            let plugin = Plugin { state: PathBuf::from(state) };
            runtime.block_on(wait_to_be_found(Path::new(root), endpoint, resource, &plugin))
        }
        ["register", directory, version, endpoint, resource] => {
            match runtime.block_on(register(Path::new(directory), version, endpoint, resource)) {
                Ok(()) => println!("registered"),
                Err(status) => println!("{:?}: {}", status.code(), status.message()),
            }
            Ok(())
        }
        _ => bail!(
            "device-plugin serve DIRECTORY ENDPOINT RESOURCE STATE, watched ROOT ENDPOINT RESOURCE STATE, \
             or register DIRECTORY VERSION ENDPOINT RESOURCE"
        ),
    }
}

/// Serves and registers for ever.
async fn serve(directory: &Path, endpoint: &str, resource: &str, plugin: &Plugin) -> Result<()> {
    let kubelet = directory.join("kubelet.sock");
    loop {
        let Some(found) = identity(&kubelet) else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let socket = directory.join(endpoint);
        // It may not be there, or be one of an earlier try.
        fs::remove_file(&socket).ok();
        let listener = match UnixListener::bind(&socket) {
            // The directory may be made anew as well.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            bound => bound.context("cannot bind")?,
        };
        let tasks = TaskGroup::new();
        let (served, group) = (plugin.clone(), tasks.clone());
        let listening = tasks.spawn("plugin", async move { accept(listener, &served, &group).await });
        match register(directory, "v1beta1", endpoint, resource).await {
            Ok(()) => {
                plugin.note("registered");
                while identity(&kubelet) == Some(found) {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Err(status) => {
                plugin.note(&format!("refused {}", status.message()));
                tokio::time::sleep(LOOK).await;
            }
        }
        listening.abort();
        tasks.drain(Duration::ZERO).await;
    }
}

/// Serves for ever, on two sockets: its own, and the one on which it is asked what it is.
async fn wait_to_be_found(root: &Path, endpoint: &str, resource: &str, plugin: &Plugin) -> Result<()> {
    let (own, registry) = (root.join("plugins").join(endpoint), root.join("plugins_registry").join(endpoint));
    for socket in [&own, &registry] {
        // One of an earlier life.
        fs::remove_file(socket).ok();
    }
    let tasks = TaskGroup::new();
    let (listener, served, group) = (UnixListener::bind(&own)?, plugin.clone(), tasks.clone());
    tasks.spawn("plugin", async move { accept(listener, &served, &group).await });
    let info = PluginInfo {
        r#type: "DevicePlugin".to_owned(),
        name: resource.to_owned(),
        endpoint: plugin.text("endpoint").unwrap_or_else(|| own.display().to_string()),
        supported_versions: vec![plugin.text("version").unwrap_or_else(|| "v1beta1".to_owned())],
    };
    let listener = UnixListener::bind(&registry)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let found = Found { info: info.clone(), plugin: plugin.clone() };
        let service = TowerToHyperService::new(RegistrationServer::new(found));
        let connection =
            http2::Builder::new(Calls(tasks.clone())).serve_connection(TokioIo::new(stream), service);
        tasks.spawn("connection", async move {
            // A caller may go whenever it wants.
            connection.await.ok();
        });
    }
}

/// What it says when it is found.
#[derive(Clone, Debug)]
struct Found {
    info: PluginInfo,
    plugin: Plugin,
}

#[tonic::async_trait]
impl Registration for Found {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.plugin.note(&if plugin_registered {
            "registered".to_owned()
        } else {
            format!("refused {error}")
        });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Tells one socket from the next at the same place.
fn identity(socket: &Path) -> Option<(u64, i64, i64)> {
    let found = fs::metadata(socket).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}

async fn accept(listener: UnixListener, plugin: &Plugin, tasks: &TaskGroup) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(DevicePluginServer::new(plugin.clone()));
        let connection =
            http2::Builder::new(Calls(tasks.clone())).serve_connection(TokioIo::new(stream), service);
        tasks.spawn("connection", async move {
            // A caller may go whenever it wants.
            connection.await.ok();
        });
    }
}

#[derive(Clone, Debug)]
struct Calls(TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn("call", call);
    }
}

async fn register(directory: &Path, version: &str, endpoint: &str, resource: &str) -> Result<(), Status> {
    let kubelet = directory.join("kubelet.sock");
    let connector = tower::service_fn(move |_: Uri| {
        let kubelet = kubelet.clone();
        async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    RegistrationClient::new(channel).register(request).await.map(drop)
}

/// What the files say.
#[derive(Clone, Debug)]
struct Plugin {
    state: PathBuf,
}

impl Plugin {
    fn note(&self, line: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.state.join("calls"));
        if let Ok(mut file) = file {
            // Nobody can be told.
            writeln!(file, "{line}").ok();
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.state.join(name)).ok()
    }

    fn devices(&self) -> Vec<Device> {
        let value: Value =
            self.text("devices.json").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let device = |device: &Value| {
            let nodes: Vec<NumaNode> = device["nodes"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|node| NumaNode { id: node.as_i64().unwrap_or_default() })
                .collect();
            Device {
                id: device["id"].as_str().unwrap_or_default().to_owned(),
                health: if device["healthy"] == true { "Healthy" } else { "Unhealthy" }.to_owned(),
                topology: (!nodes.is_empty()).then_some(TopologyInfo { nodes }),
            }
        };
        value.as_array().into_iter().flatten().map(device).collect()
    }
}

type Lists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        let options = self.text("options").unwrap_or_default();
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: options.contains("prestart"),
            get_preferred_allocation_available: options.contains("preferred"),
        }))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        self.note("list");
        let lists = stream::unfold((self.clone(), None), |(plugin, before)| async move {
            loop {
                let devices = plugin.devices();
                if before.as_ref() != Some(&devices) {
                    let message = ListAndWatchResponse { devices: devices.clone() };
                    return Some((Ok(message), (plugin, Some(devices))));
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(Response::new(Box::pin(lists)))
    }

    /// The last ones, to be told from those that somebody takes who does not ask.
    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let container_responses = requests.into_iter().map(|request| {
            let available = request.available_device_i_ds;
            self.note(&format!("preferred {} of {}", request.allocation_size, available.join(",")));
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            ContainerPreferredAllocationResponse {
                device_i_ds: available.into_iter().rev().take(size).collect(),
            }
        });
        Ok(Response::new(PreferredAllocationResponse { container_responses: container_responses.collect() }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let mut container_responses = Vec::new();
        for request in requests {
            let ids = request.devices_ids;
            self.note(&format!("allocate {}", ids.join(",")));
            while self.text("hang").is_some() {
                tokio::time::sleep(LOOK).await;
            }
            if let Some(why) = self.text("refuse") {
                return Err(Status::internal(why));
            }
            let devices = ids.iter().map(|id| DeviceSpec {
                container_path: format!("/dev/test-{id}"),
                host_path: "/dev/zero".to_owned(),
                permissions: "r".to_owned(),
            });
            let cdi = self.text("cdi");
            let cdi_devices = cdi.iter().flat_map(|kind| ids.iter().map(move |id| format!("{kind}={id}")));
            let cdi_devices: Vec<_> = cdi_devices.map(|name| CdiDevice { name }).collect();
            container_responses.push(ContainerAllocateResponse {
                envs: [("TEST_DEVICES".to_owned(), ids.join(","))].into(),
                mounts: vec![Mount {
                    container_path: "/plugin".to_owned(),
                    host_path: self.state.join("mount").display().to_string(),
                    read_only: true,
                }],
                devices: if cdi.is_some() { Vec::new() } else { devices.collect() },
                annotations: [("example.com/devices".to_owned(), ids.join(","))].into(),
                cdi_devices,
            });
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.note(&format!("prestart {}", request.into_inner().devices_ids.join(",")));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
