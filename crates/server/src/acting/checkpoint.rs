//! `/checkpoint`: the state of a running container as an archive on disk.

use std::{os::unix::fs::DirBuilderExt, path::Path, sync::Arc, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use mainstay_types::{PodExt, PodView};

use super::{Refused, internal, lookup::Named};
use crate::{
    answer::{self, Answer},
    call::Call,
    route::App,
};

/// `/checkpoint`.
pub(crate) async fn checkpoint(app: &Arc<App>, call: Call<'_>) -> Answer {
    write(app, call).await.unwrap_or_else(|refusal| *refusal)
}

async fn write(app: &Arc<App>, call: Call<'_>) -> Result<Answer, Refused> {
    let config = app.acting.config()?;
    let named = Named::of_container(call.values)?;
    let Named { namespace, pod, container, .. } = named;
    let snapshot = app.snapshot().ok_or_else(answer::not_ready)?;
    let view = named.view(&snapshot)?;
    if !has_container(view, container) {
        return Err(
            answer::plain(StatusCode::NOT_FOUND, format!("container {container} does not exist")).into()
        );
    }
    let usual = config.cri.timeout();
    let limit = limit(call.query.all("timeout").last(), usual)
        .map_err(|()| answer::plain(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter"))?;
    let failed =
        |why: &str| internal(format!("checkpointing of {namespace}/{pod}/{container} failed ({why})"));
    let limit = limit.ok_or_else(|| failed("CheckpointContainer requires the timeout value to be > 0"))?;
    let running = named.running(&snapshot, view);
    let id = running.map(|it| it.id.as_str().to_owned());
    let id = id.ok_or_else(|| failed(&format!("container {container} not found")))?;
    drop(snapshot);
    let dir = config.checkpoint_dir.clone();
    make_dir(&dir).await.map_err(|why| failed(&why))?;
    let time = Timestamp::now().round(jiff::Unit::Second).unwrap_or_else(|_| Timestamp::now());
    let archive = dir.join(format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar"));
    let archive = archive.to_string_lossy().into_owned();
    config
        .cri
        .checkpoint_container(&id, &archive, limit)
        .await
        .map_err(|error| failed(&error.to_string()))?;
    Ok(answer::json(serde_json::json!({ "items": [archive] }).to_string().into()))
}

fn has_container(view: &PodView, name: &str) -> bool {
    let ephemeral = view.pod.spec_ref().ephemeral_containers.iter().flatten();
    view.pod.container(name).is_some() || ephemeral.into_iter().any(|container| container.name == name)
}

/// How long the runtime may take: never less than for any other call. `None` for less than nothing.
fn limit(text: Option<&str>, usual: Duration) -> Result<Option<Duration>, ()> {
    let Some(text) = text else { return Ok(Some(usual)) };
    let seconds: i64 = text.parse().map_err(|_| ())?;
    Ok(u64::try_from(seconds).ok().map(|seconds| Duration::from_secs(seconds).max(usual)))
}

/// What is in a container's memory is nobody's business but root's.
async fn make_dir(dir: &Path) -> Result<(), String> {
    let dir = dir.to_owned();
    let made = tokio::task::spawn_blocking(move || {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))
    });
    made.await.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_gets_its_usual_time_at_least() {
        let usual = Duration::from_secs(120);
        for (text, expected) in [
            (None, Ok(Some(120))),
            (Some("0"), Ok(Some(120))),
            (Some("5"), Ok(Some(120))),
            (Some("300"), Ok(Some(300))),
            (Some("+300"), Ok(Some(300))),
            (Some("-1"), Ok(None)),
            (Some(""), Err(())),
            (Some("1m"), Err(())),
            (Some("++1"), Err(())),
        ] {
            assert_eq!(limit(text, usual), expected.map(|it| it.map(Duration::from_secs)), "{text:?}");
        }
    }
}
