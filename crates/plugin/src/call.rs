//! One registration, from the first word to the last. Texts are upstream's, because plugins log them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use mainstay_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::{Candidate, Handler, Handlers, dial::connect};

/// Upstream's deadlines.
const DIAL: Duration = Duration::from_secs(10);
const INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);
/// What a plugin may say of itself.
const MAX_INFO: usize = 64 << 10;

/// A plugin that was taken.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) plugin: Candidate,
}

/// Asks a socket what it is and hands it to whom it is for.
///
/// # Errors
/// Why it was not taken; the plugin was told, if it listens.
pub(crate) async fn register(socket: PathBuf, handlers: &Handlers) -> Result<Taken, String> {
    let place = socket.display();
    let mut client = match timeout(DIAL, dial(&socket)).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            return Err(format!("RegisterPlugin error -- dial failed at socket {place}, err: {error}"));
        }
        Err(_) => {
            return Err(format!(
                "RegisterPlugin error -- dial failed at socket {place}, err: it takes no connection"
            ));
        }
    };
    let info = match timeout(INFO, client.get_info(InfoRequest {})).await {
        Ok(Ok(answer)) => answer.into_inner(),
        late_or_failed => {
            let why = late_or_failed.map_or_else(
                |_| "context deadline exceeded".to_owned(),
                |answer| answer.map_or_else(|status| status.message().to_owned(), |_| String::new()),
            );
            return Err(format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {place}, err: {why}"
            ));
        }
    };
    let PluginInfo { r#type: kind, name, endpoint, supported_versions: versions } = info;
    let Some(handler) = handlers.get(kind.as_str()) else {
        let why = format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {place}"
        );
        return Err(refuse(&mut client, why).await);
    };
    let endpoint = if endpoint.is_empty() { socket.clone() } else { PathBuf::from(endpoint) };
    let plugin = Candidate { name, endpoint, versions };
    if let Err(why) = handler.validate(&plugin) {
        let why = format!("RegisterPlugin error -- plugin validation failed with err: {why}");
        return Err(refuse(&mut client, why).await);
    }
    if let Err(why) = handler.register(&plugin).await {
        let why = format!("RegisterPlugin error -- plugin registration failed with err: {why}");
        return Err(refuse(&mut client, why).await);
    }
    // From here on it must be taken back if it does not work out.
    if let Err(why) = notify(&mut client, true, String::new()).await {
        handler.deregister(&plugin);
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {place}, err: {why}"
        ));
    }
    Ok(Taken { handler: Arc::clone(handler), plugin })
}

async fn dial(socket: &Path) -> Result<RegistrationClient<Channel>, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { connect(&socket).await.map(TokioIo::new) }
    });
    // Never used as an address: the connector goes to the socket.
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await?;
    Ok(RegistrationClient::new(channel).max_decoding_message_size(MAX_INFO))
}

/// Tells a plugin why it is not taken, if it listens; the reason.
async fn refuse(client: &mut RegistrationClient<Channel>, why: String) -> String {
    match notify(client, false, why.clone()).await {
        Ok(()) => why,
        Err(deaf) => format!("{why} (and it could not be told: {deaf})"),
    }
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    plugin_registered: bool,
    error: String,
) -> Result<(), String> {
    let status = RegistrationStatus { plugin_registered, error };
    match timeout(NOTIFY, client.notify_registration_status(status)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}
