//! `/pods`, `/allocatedPods` and `/runningpods/`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use mainstay_snapshot::go_json;
use mainstay_types::{ContainerPhase, FullName, NodeSnapshot, ObservedPod, PodView};
use serde::Serialize;

use crate::{
    answer::{self, Answer},
    body::Body,
    call::Call,
    representation::Representation,
    request::{Query, quoted},
    route::App,
    selector::Selection,
    watch::Expired,
};

/// `/pods`.
pub(crate) fn list(app: &Arc<App>, call: &Call<'_>) -> Answer {
    let selection = match Selection::parse(&call.query) {
        Ok(selection) => selection,
        Err(error) => return answer::error(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    if call.query.switch("watch") {
        return watch(app, snapshot, selection, &call.query);
    }
    if selection.is_all() {
        return app.pod_list.get(snapshot.generation, || snapshot.pod_list_json()).answer(call.headers);
    }
    let chosen = snapshot.pods.iter().filter(|view| selection.matches(view));
    let list = pod_list(chosen.map(|view| &view.json[..]));
    Representation::new(list).plain_answer(call.headers)
}

fn watch(app: &Arc<App>, snapshot: Arc<NodeSnapshot>, selection: Selection, query: &Query<'_>) -> Answer {
    let since = match query.first("resourceVersion").filter(|text| !text.is_empty() && *text != "0") {
        None => None,
        Some(text) => match text.parse() {
            Ok(version) => Some(version),
            Err(_) => {
                let text = format!(
                    "resourceVersion must be one that a BOOKMARK of this watch named; it is {}",
                    quoted(text)
                );
                return answer::error(StatusCode::BAD_REQUEST, &text);
            }
        },
    };
    let watch = match app.feed.begin(snapshot, selection, app.version_base(), since) {
        Ok(watch) => watch,
        Err(Expired) => return expired(since.unwrap_or(0)),
    };
    let (snapshots, shutdown) = (app.state.snapshot.clone(), app.shutdown.clone());
    let app = Arc::clone(app);
    answer::json_stream(Body::told(|slot| async move {
        shutdown.run_until_signalled(watch.run(&app.feed, snapshots, &slot)).await;
    }))
}

/// The API's way of saying that a watcher must begin anew.
fn expired(version: u64) -> Answer {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("too old resource version: {version}, or another selection; watch again without resourceVersion"),
        "reason": "Expired", "code": 410,
    });
    let mut answer = answer::json(format!("{status}\n").into());
    *answer.status_mut() = StatusCode::GONE;
    answer
}

/// A `PodList` of these items.
fn pod_list<'a>(items: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut list = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#.to_vec();
    let empty = list.len();
    for item in items {
        list.push(if list.len() == empty { b'[' } else { b',' });
        list.extend_from_slice(item);
    }
    // As Go writes a list that was never made.
    list.extend_from_slice(if list.len() == empty { b"null}\n" } else { b"]}\n" });
    list.into()
}

/// `/allocatedPods`, all of them or one: active pods as they were let in, without a status.
pub(crate) fn allocated(app: &App, call: &Call<'_>) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let (namespace, name, uid) = match *call.values {
        [namespace, name] => (namespace, name, None),
        [namespace, name, uid] => (namespace, name, Some(uid)),
        _ => {
            let items: Vec<Vec<u8>> = snapshot
                .pods
                .iter()
                .filter(|view| is_active(view))
                .map(|view| without_status(view))
                .collect();
            return answer::json(pod_list(items.iter().map(Vec::as_slice)));
        }
    };
    let found = snapshot
        .by_name(&FullName::new(namespace, name))
        .filter(|view| is_active(view) && uid.is_none_or(|uid| view.uid.as_str() == uid));
    match found {
        None => answer::plain(StatusCode::NOT_FOUND, "pod not found"),
        Some(view) => {
            let item = without_status(view);
            let mut pod = br#"{"kind":"Pod","apiVersion":"v1","#.to_vec();
            pod.extend_from_slice(item.strip_prefix(b"{").unwrap_or(&item));
            pod.push(b'\n');
            answer::json(pod.into())
        }
    }
}

/// Neither finished nor about to be.
fn is_active(view: &PodView) -> bool {
    !matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"))
        && view.pod.metadata.deletion_timestamp.is_none()
}

fn without_status(view: &PodView) -> Vec<u8> {
    #[derive(Serialize)]
    struct Item<'a, M: Serialize, S: Serialize> {
        metadata: &'a M,
        spec: &'a S,
        status: Empty,
    }
    go_json(&Item { metadata: &view.pod.metadata, spec: &view.pod.spec, status: Empty {} })
}

#[derive(Serialize)]
struct RunningList<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: Empty,
    /// `null` when there are none, as Go writes an empty list that was never made.
    items: Option<Vec<RunningPod<'a>>>,
}

#[derive(Serialize)]
struct RunningPod<'a> {
    metadata: RunningMetadata<'a>,
    spec: RunningSpec<'a>,
    status: Empty,
}

#[derive(Serialize)]
struct RunningMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
struct RunningSpec<'a> {
    containers: Option<Vec<RunningContainer<'a>>>,
}

#[derive(Serialize)]
struct RunningContainer<'a> {
    name: &'a str,
    image: &'a str,
    resources: Empty,
}

#[derive(Serialize)]
struct Empty {}

/// `/runningpods/`: pods with a ready sandbox or a running container.
pub(crate) fn running(app: &App) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let mut pods: Vec<&ObservedPod> = snapshot
        .observed
        .pods
        .values()
        .map(Arc::as_ref)
        .filter(|pod| {
            pod.sandboxes.iter().any(|sandbox| sandbox.ready)
                || pod.containers.iter().any(|container| container.phase == ContainerPhase::Running)
        })
        .collect();
    pods.sort_unstable_by(|a, b| (&a.full_name, &a.uid).cmp(&(&b.full_name, &b.uid)));
    let items: Vec<RunningPod<'_>> = pods.into_iter().map(running_pod).collect();
    let list = RunningList {
        kind: "PodList",
        api_version: "v1",
        metadata: Empty {},
        items: (!items.is_empty()).then_some(items),
    };
    let mut json = go_json(&list);
    json.push(b'\n');
    answer::json(json.into())
}

fn running_pod(pod: &ObservedPod) -> RunningPod<'_> {
    let containers: Vec<RunningContainer<'_>> = pod
        .containers
        .iter()
        .filter(|container| container.phase == ContainerPhase::Running)
        .map(|container| RunningContainer {
            name: container.name.as_str(),
            // Upstream shows the image's identity here, not the name that the pod asked for.
            image: if container.image_ref.is_empty() { &container.image } else { &container.image_ref },
            resources: Empty {},
        })
        .collect();
    RunningPod {
        metadata: RunningMetadata {
            name: &pod.full_name.name,
            namespace: &pod.full_name.namespace,
            uid: pod.uid.as_str(),
        },
        spec: RunningSpec { containers: (!containers.is_empty()).then_some(containers) },
        status: Empty {},
    }
}
