//! `/portForward`.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use mainstay_stream::{
    Limits, Role,
    negotiate::{self, PROTOCOL_VERSION, SPDY, TUNNEL_PREFIX, is_upgrade, is_websocket, tunnelled_protocols},
    ws,
};
use tokio::io::AsyncWriteExt;

use super::{
    Refused, Upgrade, forwarded,
    lookup::Named,
    not_an_upgrade, redirect, refused,
    runtime::{self, Reached, RuntimeIo},
    translate,
};
use crate::{
    answer::{self, Answer},
    call::Call,
    deed::deed,
    own_metrics::Streaming,
    route::App,
};

/// `/portForward`.
pub(crate) async fn port_forward(app: &Arc<App>, call: Call<'_>) -> Answer {
    forward(app, call).await.unwrap_or_else(|refusal| *refusal)
}

async fn forward(app: &Arc<App>, call: Call<'_>) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    let tunnel = config.end_websockets && negotiate::wants_tunnel(call.headers);
    // Over SPDY, tunnelled or not, every stream names its port.
    let ports = if is_websocket(call.headers) && !tunnel {
        let ports = negotiate::ports(call.query.all("port"));
        ports.map_err(|text| answer::plain(StatusCode::BAD_REQUEST, text))?
    } else {
        Vec::new()
    };
    let named = Named::of_pod(call.values)?;
    let snapshot = app.snapshot().ok_or_else(answer::not_ready)?;
    let sandbox = named.sandbox(&snapshot, named.view(&snapshot)?)?;
    drop(snapshot);
    let redirect = redirect::is_wanted(&call.query);
    let upgrade = call.upgrade.filter(|_| is_upgrade(call.headers));
    if upgrade.is_none() && !redirect {
        return Err(not_an_upgrade());
    }
    let place = app.acting.place()?;
    let url = config.cri.port_forward_url(&sandbox, &ports).await.map_err(|error| refused(&error))?;
    let Some(client) = upgrade.filter(|_| !redirect) else {
        let asked = deed(call.method, call.uri.path(), call.uri.query());
        return app.acting.redirects.redirect(redirect::Service::PortForward, url, asked);
    };
    let upgrade = Upgrade::new(client, call.peer, call.counted, place);
    if tunnel {
        app.metrics.websocket(Streaming::PortForward);
        return through_websocket(app, upgrade, &url, call.method, call.headers).await;
    }
    runtime::put_through(app, upgrade, &url, call.method, forwarded(call.headers, call.peer)).await
}

/// SPDY inside the messages of a WebSocket: the WebSocket ends here, the SPDY at the runtime.
async fn through_websocket(
    app: &App,
    upgrade: Upgrade,
    url: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    if method != Method::GET {
        let mut answer = answer::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        answer.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(answer.into());
    }
    let mut request = HeaderMap::new();
    request.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    request.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
    for name in tunnelled_protocols(headers) {
        if let Ok(name) = HeaderValue::from_str(name) {
            request.append(PROTOCOL_VERSION, name);
        }
    }
    let (theirs, io) = match runtime::reach(url, &Method::POST, request, config.cri.timeout()).await {
        Ok(Reached::Switched { headers, io }) => (headers, io),
        Ok(Reached::Answered(refusal)) => return Err(refusal.answer().into()),
        Err(error) => return Err(error.answer().into()),
    };
    let is_spdy =
        theirs.get(header::UPGRADE).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(SPDY.as_bytes()));
    if !is_spdy {
        let text = "unable to upgrade: missing upgrade headers in response";
        return Err(answer::error(StatusCode::INTERNAL_SERVER_ERROR, text).into());
    }
    let chosen = theirs.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accepted = negotiate::accept_websocket(method, headers, &format!("{TUNNEL_PREFIX}{chosen}"))
        .map_err(|refusal| translate::handshake(*refusal))?;
    let limits = Limits { idle: config.idle, ..Limits::for_port_forward() };
    upgrade.begin(app, "stream", move |client| tunnel_bytes(client, io, limits));
    let mut answer = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
    *answer.headers_mut() = accepted;
    Ok(answer)
}

/// Carries the bytes of the tunnel until either side ends.
async fn tunnel_bytes(client: super::client::ClientIo, mut runtime: RuntimeIo, limits: Limits) {
    let (mut bytes, closer, driver) = ws::tunnel(client, Role::Server, limits);
    let mut driver = std::pin::pin!(driver);
    let carried = async {
        // Half of it ending is the end of it, as between sockets; what was read has been written by then.
        drop(
            tokio::io::copy_bidirectional_with_sizes(&mut bytes, &mut runtime, BUFFER_BYTES, BUFFER_BYTES)
                .await,
        );
        drop(bytes.shutdown().await);
    };
    let ended = tokio::select! {
        ended = &mut driver => ended,
        () = carried => {
            closer.close();
            driver.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn std::error::Error, "a tunnel ended");
    }
}

const BUFFER_BYTES: usize = 32 * 1024;
