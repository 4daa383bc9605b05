//! The socket on which plugins make themselves known.

use std::{future::Future, os::unix::net::UnixListener, path::PathBuf, sync::Arc, time::Duration};

use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use mainstay_http::Tolerant;
use mainstay_podspec::is_extended_resource;
use mainstay_proto::deviceplugin::{
    Empty, RegisterRequest,
    registration_server::{Registration, RegistrationServer},
};
use mainstay_task::TaskGroup;
use tokio::{net::UnixStream, sync::Semaphore};
use tonic::{Code, Request, Response, Status};

use crate::{
    Devices,
    plugin::{self, Plugin},
};

pub(crate) const VERSION: &str = "v1beta1";
/// A registration is a few names.
const MAX_REQUEST: usize = 64 << 10;
/// Connections at a time; plugins close theirs after a call.
const MAX_CONNECTIONS: usize = 64;
const MAX_STREAMS: u32 = 16;
/// A registration takes some deadlines of a plugin at most; who says nothing takes a place from others.
const MAX_CONNECTION: Duration = Duration::from_secs(60);
/// Plugins at a time.
const MAX_PLUGINS: usize = 256;
/// How long to wait when the system has no descriptor left for another connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Listens until shutdown is signalled.
pub(crate) fn serve(listener: UnixListener, devices: Devices, tasks: &TaskGroup) {
    let (group, shutdown) = (tasks.clone(), tasks.shutdown());
    tasks.spawn_critical("device plugin socket", async move {
        let listener = match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "the socket for device plugins cannot be watched by the async runtime");
                return;
            }
        };
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // Cancel safe: `accept` takes no connection out when dropped.
            let Some(accepted) = shutdown.run_until_signalled(listener.accept()).await else { return };
            devices.hears(accepted.is_ok());
            match accepted {
                Ok((stream, _)) => {
                    let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                        tracing::warn!("a connection too many to the socket for device plugins is closed");
                        continue;
                    };
                    let (devices, calls, shutdown) = (devices.clone(), group.clone(), group.shutdown());
                    group.spawn("device plugin call", async move {
                        shutdown.run_until_signalled(connection(stream, devices, calls)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a device plugin's connection; trying again");
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            }
        }
    });
}

async fn connection(stream: UnixStream, devices: Devices, tasks: TaskGroup) {
    let registrar = Registrar { devices, tasks: tasks.clone() };
    let service = RegistrationServer::new(registrar).max_decoding_message_size(MAX_REQUEST);
    let served = http2::Builder::new(Calls(tasks))
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .serve_connection(TokioIo::new(Tolerant::new(stream)), TowerToHyperService::new(service));
    match tokio::time::timeout(MAX_CONNECTION, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a device plugin's connection ended early"),
        Err(_) => tracing::debug!("a device plugin's connection was open for too long"),
    }
}

/// Calls are tasks of the group.
#[derive(Clone, Debug)]
struct Calls(TaskGroup);

impl<F> hyper::rt::Executor<F> for Calls
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        self.0.spawn("device plugin call", call);
    }
}

#[derive(Debug)]
struct Registrar {
    devices: Devices,
    tasks: TaskGroup,
}

#[tonic::async_trait]
impl Registration for Registrar {
    /// Answers after the plugin was called back. Texts are upstream's; its errors have the code Unknown.
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request.into_inner();
        match self.take(&version, &endpoint, &resource_name).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(why) => {
                tracing::warn!(resource = resource_name, endpoint, "a device plugin is refused: {why}");
                Err(Status::new(Code::Unknown, why))
            }
        }
    }
}

impl Registrar {
    async fn take(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), String> {
        if version != VERSION {
            return Err(format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
            ));
        }
        if !is_extended_resource(resource) {
            return Err(format!("the ResourceName {resource:?} is invalid"));
        }
        // Upstream counts those as well that come to nothing later.
        self.devices.inner.counters.device_registrations.of(resource.into()).add();
        let directory = &self.devices.inner.directory;
        let socket = directory.endpoint(endpoint).ok_or_else(|| {
            format!(
                "the Endpoint {endpoint:?} is invalid: it must be the name of a socket in {}",
                directory.path().display()
            )
        })?;
        connect(&self.devices, &self.tasks, resource, endpoint, socket).await
    }
}

/// Calls a plugin back, and listens to it from then on.
pub(crate) async fn connect(
    devices: &Devices,
    tasks: &TaskGroup,
    resource: &str,
    endpoint: &str,
    socket: PathBuf,
) -> Result<(), String> {
    if devices.book().plugins.len() >= MAX_PLUGINS {
        return Err(format!("{MAX_PLUGINS} device plugins are connected already"));
    }
    let patience = devices.inner.patience.dial;
    let plugin = Plugin::connect(resource, endpoint, socket, patience).await;
    let plugin = plugin.map_err(|error| error.to_string())?;
    let Some(plugin) = devices.take_up(plugin) else {
        let place = devices.inner.directory.path().join(endpoint);
        return Err(format!("device plugin already connected: {}", place.display()));
    };
    tracing::info!(resource, endpoint, "a device plugin has registered");
    let work = plugin::follow(devices.clone(), plugin, tasks.shutdown());
    tasks.spawn(format!("device plugin {resource}"), work);
    Ok(())
}
