//! `/exec`, `/attach` and `/run`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use mainstay_stream::negotiate::{is_upgrade, wants_v5};
use mainstay_types::PodExt;

use super::{
    Refused, Upgrade, forwarded, internal, lookup::Named, not_an_upgrade, options, redirect, refused,
    runtime, translate,
};
use crate::{
    answer::{self, Answer},
    call::Call,
    deed::deed,
    own_metrics::Streaming,
    route::App,
};

/// `/exec`.
pub(crate) async fn exec(app: &Arc<App>, call: Call<'_>) -> Answer {
    stream(app, call, Kind::Exec).await.unwrap_or_else(|refusal| *refusal)
}

/// `/attach`.
pub(crate) async fn attach(app: &Arc<App>, call: Call<'_>) -> Answer {
    stream(app, call, Kind::Attach).await.unwrap_or_else(|refusal| *refusal)
}

/// `/run`.
pub(crate) async fn run(app: &Arc<App>, call: Call<'_>) -> Answer {
    run_to_end(app, call).await.unwrap_or_else(|refusal| *refusal)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exec,
    Attach,
}

/// The order of the checks is upstream's, but that the runtime is asked last: its addresses are few, and a request that is no upgrade
/// would use one up.
async fn stream(app: &Arc<App>, call: Call<'_>, kind: Kind) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    let form = options::form(call.method, call.headers, call.body).await;
    let mut wanted = options::streams(&call.query, &form)?;
    let asked = wanted;
    let named = Named::of_container(call.values)?;
    let snapshot = app.snapshot().ok_or_else(answer::not_ready)?;
    let view = named.view(&snapshot)?;
    let id = match kind {
        Kind::Exec => named.for_command(&snapshot, view)?,
        Kind::Attach => {
            let found = named.for_attach(&snapshot, view)?;
            // A container has a terminal or has none, whatever the client says.
            wanted.tty = view.pod.container(named.container).is_some_and(|(_, it)| it.tty == Some(true));
            found
        }
    };
    let id = id.id.as_str();
    let redirect = redirect::is_wanted(&call.query);
    let upgrade = call.upgrade.filter(|_| is_upgrade(call.headers));
    if upgrade.is_none() && !redirect {
        return Err(not_an_upgrade());
    }
    let place = app.acting.place()?;
    let url = match kind {
        Kind::Exec => {
            let command = call.query.all("command").map(str::to_owned).collect();
            config.cri.exec_url(id, command, wanted).await
        }
        Kind::Attach => config.cri.attach_url(id, wanted).await,
    };
    let url = url.map_err(|error| refused(&error))?;
    drop(snapshot);
    let Some(client) = upgrade.filter(|_| !redirect) else {
        let asked = deed(call.method, call.uri.path(), call.uri.query());
        let service = if kind == Kind::Exec { redirect::Service::Exec } else { redirect::Service::Attach };
        return app.acting.redirects.redirect(service, url, asked);
    };
    let upgrade = Upgrade::new(client, call.peer, call.counted, place);
    if config.end_websockets && wants_v5(call.headers) {
        app.metrics.websocket(if kind == Kind::Exec { Streaming::Exec } else { Streaming::Attach });
        let streams =
            translate::Streams { client: options::of_stream(asked), runtime: options::of_stream(wanted) };
        return translate::translate(app, upgrade, url, call.method, call.headers, streams);
    }
    runtime::put_through(app, upgrade, &url, call.method, forwarded(call.headers, call.peer)).await
}

async fn run_to_end(app: &Arc<App>, call: Call<'_>) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    let named = Named::of_container(call.values)?;
    let snapshot = app.snapshot().ok_or_else(answer::not_ready)?;
    let view = named.view(&snapshot)?;
    let id = named.for_command(&snapshot, view)?.id.as_str().to_owned();
    drop(snapshot);
    let _place = app.acting.place()?;
    // One text, cut at every space: upstream knows no quoting here.
    let text = call.query.first("cmd").unwrap_or_default();
    let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
    // Dropped, and so ended in the runtime, when the client goes away.
    let output = config.cri.run_command(&id, command).await.map_err(|error| internal(error.to_string()))?;
    if output.code != 0 {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(internal(format!("command '{text}' exited with {}: {errors}", output.code)));
    }
    let mut bytes = output.stdout;
    bytes.extend_from_slice(&output.stderr);
    if bytes.is_empty() {
        return Ok(answer::empty(StatusCode::OK));
    }
    // Upstream calls it JSON, which it is not.
    Ok(answer::json(Bytes::from(bytes)))
}
