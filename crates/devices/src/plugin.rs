//! One plugin: how it is called.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use mainstay_alloc::{Choice, Device, Devices as List};
use mainstay_proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest,
    device_plugin_client::DevicePluginClient,
};
use mainstay_task::Shutdown;
use prost::Message as _;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint, Uri},
};

use crate::{
    Book, Devices,
    error::{AdmitError, PrepareError, rpc_error},
};

/// What a plugin may say at once, as Go's gRPC takes.
const MAX_MESSAGE: usize = 4 << 20;
/// What is kept of an answer for as long as the container has its devices; usual ones have some hundred bytes.
pub(crate) const MAX_ANSWER: usize = 256 << 10;
/// Devices of one resource.
pub(crate) const MAX_DEVICES: usize = 16_384;
/// Devices are told of in few bytes.
const MAX_ID: usize = 1024;

/// A plugin that is connected.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) id: u64,
    pub(crate) resource: Arc<str>,
    /// Its socket, as it told it.
    pub(crate) endpoint: String,
    /// Its socket in the directory of plugins was removed: it is not listened to any longer.
    dismissed: Arc<Notify>,
    options: DevicePluginOptions,
    client: DevicePluginClient<Channel>,
}

/// Why a plugin was not taken; upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallBackError {
    #[error("failed to dial device plugin: {0}")]
    Dial(String),
    #[error("failed to get device plugin options: {0}")]
    Options(String),
}

impl Plugin {
    /// Calls a plugin back on its socket, and asks what it can do.
    pub(crate) async fn connect(
        resource: &str,
        endpoint: &str,
        socket: PathBuf,
        patience: Duration,
    ) -> Result<Self, CallBackError> {
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { mainstay_plugin::connect(&socket).await.map(TokioIo::new) }
        });
        // The address is never used: the connector goes to the socket. It only becomes the `:authority` of the requests.
        let address = Endpoint::from_static("http://localhost");
        let channel = match timeout(patience, address.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(CallBackError::Dial(chain(&error))),
            Err(_) => return Err(CallBackError::Dial("context deadline exceeded".to_owned())),
        };
        let mut client = DevicePluginClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let options = within(patience, client.get_device_plugin_options(Empty {})).await;
        let options = options.map_err(|status| CallBackError::Options(rpc_error(&status)))?;
        let (resource, endpoint) = (resource.into(), endpoint.to_owned());
        Ok(Self { id: 0, resource, endpoint, dismissed: Arc::default(), options, client })
    }

    /// Which devices go best together; nothing from one that does not know.
    pub(crate) async fn preferred(
        &self,
        choice: &Choice,
        patience: Duration,
    ) -> Result<Vec<String>, AdmitError> {
        if !self.options.get_preferred_allocation_available {
            return Ok(Vec::new());
        }
        let texts = |ids: &[Arc<str>]| -> Vec<String> { ids.iter().map(ToString::to_string).collect() };
        let available: BTreeSet<String> =
            texts(&choice.free).into_iter().chain(texts(&choice.chosen)).collect();
        let size = choice.missing + choice.chosen.len();
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: available.into_iter().collect(),
                must_include_device_i_ds: texts(&choice.chosen),
                allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
            }],
        };
        let mut client = self.client.clone();
        let answer = within(patience, client.get_preferred_allocation(request)).await;
        let answer = answer.map_err(|status| AdmitError::Preferred(rpc_error(&status)))?;
        // Less, or something else, is only advice.
        Ok(answer.container_responses.into_iter().next().map(|it| it.device_i_ds).unwrap_or_default())
    }

    /// What a container needs that is given these; as bytes, for the file.
    pub(crate) async fn allocate(&self, ids: &[Arc<str>], patience: Duration) -> Result<Vec<u8>, AdmitError> {
        let devices_ids = ids.iter().map(ToString::to_string).collect();
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let mut client = self.client.clone();
        let answer = within(patience, client.allocate(request)).await;
        let answer = answer.map_err(|status| AdmitError::Refused(rpc_error(&status)))?;
        let first = answer.container_responses.first().map(|it| it.encode_to_vec());
        let bytes = first.ok_or_else(|| AdmitError::Empty(Arc::clone(&self.resource)))?;
        if bytes.len() > MAX_ANSWER {
            return Err(AdmitError::Large { resource: Arc::clone(&self.resource), bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// Gets devices ready for a container, if the plugin wants to be asked.
    pub(crate) async fn pre_start(
        &self,
        devices_ids: Vec<String>,
        patience: Duration,
    ) -> Result<(), PrepareError> {
        if !self.options.pre_start_required {
            return Ok(());
        }
        let mut client = self.client.clone();
        let answer =
            within(patience, client.pre_start_container(PreStartContainerRequest { devices_ids })).await;
        answer.map(drop).map_err(|status| PrepareError::PreStart(rpc_error(&status)))
    }
}

/// Follows what a plugin tells until it goes, and gives it time to come back. It is not called again: who comes back registers.
pub(crate) async fn follow(devices: Devices, plugin: Plugin, shutdown: Shutdown) {
    let (id, resource, dismissed) = (plugin.id, Arc::clone(&plugin.resource), Arc::clone(&plugin.dismissed));
    let heard = async {
        // Cancel safe: what was told and not taken down yet is of a plugin that has gone.
        tokio::select! {
            why = listen(&devices, plugin) => why,
            () = dismissed.notified() => "its socket was removed".to_owned(),
        }
    };
    let Some(why) = shutdown.run_until_signalled(heard).await else { return };
    tracing::warn!(%resource, "the device plugin has gone: {why}");
    let Some(since) = devices.lost(id) else { return };
    devices.inner.unwritten.notify_one();
    let absence = devices.inner.patience.absence;
    if shutdown.run_until_signalled(tokio::time::sleep_until(since + absence)).await.is_some()
        && devices.forget(&resource, since)
    {
        tracing::warn!(%resource, "the device plugin has not come back; its devices are there no longer");
        devices.inner.unwritten.notify_one();
    }
}

/// Why it ended.
pub(crate) async fn listen(devices: &Devices, plugin: Plugin) -> String {
    let mut client = plugin.client.clone();
    let mut stream: Streaming<ListAndWatchResponse> = match client.list_and_watch(Empty {}).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return rpc_error(&status),
    };
    loop {
        match stream.message().await {
            Ok(Some(message)) => match list(message) {
                Ok(list) => {
                    devices.told(&plugin, list);
                    // By another task: a disk that hangs must not keep what the plugin tells next from the node.
                    devices.inner.unwritten.notify_one();
                }
                Err(why) => return why,
            },
            Ok(None) => return "it ended the list of its devices".to_owned(),
            Err(status) => return rpc_error(&status),
        }
    }
}

/// The devices of a message.
fn list(message: ListAndWatchResponse) -> Result<List, String> {
    if message.devices.len() > MAX_DEVICES {
        return Err(format!("it tells of {} devices; {MAX_DEVICES} are the most", message.devices.len()));
    }
    let mut list = List::new();
    for device in message.devices {
        if device.id.is_empty() || device.id.len() > MAX_ID {
            return Err(format!(
                "it tells of a device whose ID has {} bytes; {MAX_ID} are the most",
                device.id.len()
            ));
        }
        let nodes: BTreeSet<u32> = device
            .topology
            .into_iter()
            .flat_map(|topology| topology.nodes)
            .filter_map(|node| u32::try_from(node.id).ok())
            .collect();
        let healthy = device.health == "Healthy";
        list.insert(device.id.into(), Device { healthy, nodes: nodes.into_iter().collect() });
    }
    Ok(list)
}

impl Book {
    /// This one is asked for its resource from now on.
    fn note_pre_start(&mut self, plugin: &Plugin) {
        if plugin.options.pre_start_required {
            self.pre_start.insert(Arc::clone(&plugin.resource));
        } else {
            self.pre_start.remove(&plugin.resource);
        }
    }
}

impl Devices {
    /// A plugin has been called back: it is asked from now on. `None` if it is connected already.
    pub(crate) fn take_up(&self, mut plugin: Plugin) -> Option<Plugin> {
        {
            let mut book = self.book();
            let same =
                |known: &Plugin| known.resource == plugin.resource && known.endpoint == plugin.endpoint;
            if book.plugins.iter().any(same) {
                return None;
            }
            book.next_id += 1;
            plugin.id = book.next_id;
            if let Some(older) = book.plugin(&plugin.resource).map(|older| older.id) {
                let told = book.ledger.devices(&plugin.resource).cloned().unwrap_or_default();
                book.unheard.insert(older, told);
            }
            book.orphaned.remove(&plugin.resource);
            book.ledger.serve(&plugin.resource);
            book.note_pre_start(&plugin);
            book.plugins.push(plugin.clone());
        }
        self.publish();
        Some(plugin)
    }

    /// The socket of a plugin was removed, which is its end.
    pub(crate) fn dismiss(&self, resource: &str, endpoint: &str) {
        let book = self.book();
        let gone = |plugin: &&Plugin| &*plugin.resource == resource && plugin.endpoint == endpoint;
        if let Some(plugin) = book.plugins.iter().find(gone) {
            plugin.dismissed.notify_one();
        }
    }

    /// What a plugin tells: these are all devices of the resource. Of two plugins for one resource the newest is heard; what the other
    /// tells counts when that one has gone.
    fn told(&self, plugin: &Plugin, list: List) {
        {
            let mut book = self.book();
            if book.plugin(&plugin.resource).is_none_or(|newest| newest.id != plugin.id) {
                if book.plugins.iter().any(|known| known.id == plugin.id) {
                    book.unheard.insert(plugin.id, list);
                }
                return;
            }
            book.ledger.list(&plugin.resource, list);
        }
        self.publish();
    }

    /// A plugin has gone. Since when its resource has none, if it was the last.
    fn lost(&self, id: u64) -> Option<Instant> {
        let since = {
            let mut book = self.book();
            let at = book.plugins.iter().position(|plugin| plugin.id == id)?;
            let Plugin { resource, .. } = book.plugins.remove(at);
            book.unheard.remove(&id);
            if let Some(survivor) = book.plugin(&resource).cloned() {
                book.note_pre_start(&survivor);
                // It may have been the one that was heard all along.
                if let Some(list) = book.unheard.remove(&survivor.id) {
                    book.ledger.list(&resource, list);
                    drop(book);
                    self.publish();
                }
                return None;
            }
            book.ledger.orphan(&resource);
            let now = Instant::now();
            book.orphaned.insert(resource, now);
            now
        };
        self.publish();
        Some(since)
    }

    /// It has not come back. Whether that is so: it may have come and gone again.
    fn forget(&self, resource: &Arc<str>, since: Instant) -> bool {
        {
            let mut book = self.book();
            if book.orphaned.get(resource) != Some(&since) {
                return false;
            }
            book.orphaned.remove(resource);
            book.ledger.expire(resource);
        }
        self.publish();
        true
    }
}

/// A call with a deadline.
async fn within<T>(
    patience: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match timeout(patience, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "context deadline exceeded: the device plugin has not answered within {} s",
            patience.as_secs_f32()
        ))),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}
