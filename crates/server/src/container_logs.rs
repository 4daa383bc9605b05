//! `/containerLogs/{namespace}/{pod}/{container}`: which instance is meant, and its log as a stream.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use mainstay_logs::{Options, Streams};
use mainstay_types::{ContainerPhase, FullName, NodeSnapshot, ObservedContainer, PodExt, PodUid, PodView};
use tokio::sync::mpsc;

use crate::{
    answer::{self, Answer},
    body::{Body, Produced},
    call::Call,
    log_query::LogQuery,
    request::quoted,
    route::App,
};

/// Answers one request for a log.
pub(crate) async fn serve(app: &Arc<App>, call: &Call<'_>) -> Answer {
    let &[namespace, pod, container] = call.values else { return answer::unknown_sub_path() };
    for (part, name) in [(pod, "podID"), (container, "container name"), (namespace, "podNamespace")] {
        if part.is_empty() {
            return answer::plain(StatusCode::BAD_REQUEST, format!(r#"{{"message": "Missing {name}."}}"#));
        }
    }
    let query = match LogQuery::parse(&call.query, Timestamp::now()) {
        Ok(query) => query,
        Err(bad) => return bad.answer(),
    };
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let Some(view) = snapshot.by_name(&FullName::new(namespace, pod)) else {
        return answer::plain(StatusCode::NOT_FOUND, format!("pod {} does not exist", quoted(pod)));
    };
    if !has_container(view, container) {
        return answer::plain(
            StatusCode::NOT_FOUND,
            format!("container {} not found in pod {}", quoted(container), quoted(pod)),
        );
    }
    if !app.split_log_streams && query.options.streams != Streams::All {
        let stream = if query.options.streams == Streams::Stdout { "Stdout" } else { "Stderr" };
        let text = format!(
            "unable to return the given log stream: \"{stream}\". Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        return answer::plain(StatusCode::BAD_REQUEST, text);
    }
    let full_id = match container_id(&view.status, pod, container, query.previous) {
        Ok(full_id) => full_id,
        Err(why) => return refusal(why),
    };
    let failure = Failure::default();
    let mut body = log_body(app, &snapshot, view, full_id, query.options.clone(), failure.clone());
    // Upstream flushes its header early through standard output; where that is not asked for, an error that comes before
    // anything else can still be a status.
    if query.options.streams == Streams::Stderr
        && let Some(first) = body.peek().await.cloned()
        && failure.get().is_some_and(|text| first == text.as_bytes())
    {
        return refusal(first);
    }
    answer::untyped(StatusCode::OK, Body::Produced(body))
}

/// The text of what went wrong after the response began.
type Failure = Arc<OnceLock<String>>;

/// A 400 as upstream sends it for a container's state: in chunks and of no type.
fn refusal(text: impl Into<Bytes>) -> Answer {
    let text = text.into();
    answer::untyped(
        StatusCode::BAD_REQUEST,
        // The client being gone is all that can go wrong in there.
        Body::produced(|sink| async move { drop(sink.send(text).await) }),
    )
}

fn has_container(view: &PodView, name: &str) -> bool {
    let ephemeral = view.pod.spec_ref().ephemeral_containers.iter().flatten();
    view.pod.container(name).is_some() || ephemeral.into_iter().any(|container| container.name == name)
}

/// The runtime's name of the instance whose log is meant (`containerd://…`), or why there is none. Upstream:
/// `validateContainerLogStatus` in `pkg/kubelet/kubelet_pods.go`.
fn container_id(status: &PodStatus, pod: &str, container: &str, previous: bool) -> Result<String, String> {
    let subject = format!("container {} in pod {}", quoted(container), quoted(pod));
    let Some(status) = status_of(status, container) else {
        return Err(format!("{subject} is not available"));
    };
    let state = status.state.as_ref();
    let ended = |terminated: Option<&ContainerStateTerminated>| {
        terminated.and_then(|it| it.container_id.clone()).filter(|id| !id.is_empty())
    };
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let last_terminated = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());

    if previous {
        return ended(last_terminated).ok_or_else(|| format!("previous terminated {subject} not found"));
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Ok(status.container_id.clone().unwrap_or_default());
    }
    if terminated.is_some() || last_terminated.is_some() {
        // A container that could not be started has no name of its own; its predecessor is the best there is.
        return ended(terminated)
            .or_else(|| ended(last_terminated))
            .ok_or_else(|| format!("{subject} is terminated"));
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    Err(match waiting.map(|waiting| waiting.reason.as_deref().unwrap_or_default()) {
        None => format!("{subject} is waiting to start - no logs yet"),
        Some("ErrImagePull") => format!("{subject} is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => {
            format!("{subject} is waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("{subject} is waiting to start: {reason}"),
    })
}

fn status_of<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
        .into_iter()
        .find_map(|list| list.iter().flatten().find(|status| status.name == container))
}

/// The log of one instance. Whatever goes wrong from here on is text in the body, because the header is on its way.
fn log_body(
    app: &App,
    snapshot: &NodeSnapshot,
    view: &PodView,
    full_id: String,
    options: Options,
    failure: Failure,
) -> Produced {
    let id = full_id.split_once("://").map_or(full_id.as_str(), |(_, id)| id).to_owned();
    let log_path = observed(snapshot, view, &id).map(|container| container.log_path.clone());
    let (uid, mut snapshots, shutdown) = (view.uid.clone(), app.state.snapshot.clone(), app.shutdown.clone());
    Produced::new(|sink| async move {
        let stopped = async {
            // Ends also when nobody publishes snapshots any more: then nobody will say that it stopped.
            drop(snapshots.wait_for(|snapshot| !may_run(snapshot.as_deref(), &uid, &id)).await);
        };
        let result = match log_path.filter(|path| !path.is_empty()) {
            Some(path) => {
                let read = mainstay_logs::read(Path::new(&*path), &options, stopped, &sink);
                match shutdown.run_until_signalled(read).await {
                    Some(result) => result.map_err(|error| error.to_string()),
                    None => Ok(()),
                }
            }
            None => Err(format!("unable to retrieve container logs for {full_id}")),
        };
        if let Err(text) = result {
            append(&sink, text, &failure).await;
        }
    })
}

async fn append(sink: &mpsc::Sender<Bytes>, text: String, failure: &Failure) {
    let text = failure.get_or_init(|| text).clone();
    // The client being gone is all that can go wrong.
    drop(sink.send(text.into()).await);
}

fn observed<'a>(snapshot: &'a NodeSnapshot, view: &'a PodView, id: &str) -> Option<&'a ObservedContainer> {
    let pod = snapshot.observed.pods.get(&view.uid).or(view.observed.as_ref())?;
    pod.containers.iter().find(|container| container.id.as_str() == id)
}

/// Whether the container may still write to its log.
fn may_run(snapshot: Option<&NodeSnapshot>, uid: &PodUid, id: &str) -> bool {
    // Without a snapshot nothing is known, which is no evidence of an end.
    let Some(snapshot) = snapshot else { return true };
    let container = snapshot
        .observed
        .pods
        .get(uid)
        .and_then(|pod| pod.containers.iter().find(|container| container.id.as_str() == id));
    container.is_some_and(|container| container.phase != ContainerPhase::Exited)
}
