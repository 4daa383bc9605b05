//! `/pods`, its watch, and `/runningpods/`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use mainstay_snapshot::go_json;
use mainstay_types::{ContainerPhase, NodeSnapshot, ObservedPod, PodUid, PodView};
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use crate::{
    answer::{self, Answer},
    body::Body,
    request::Query,
    route::App,
};

/// How often a watch that has nothing to tell says so, which is also how a client that is gone is noticed.
pub(crate) const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// `/pods`.
pub(crate) fn list(app: &App, query: &Query<'_>) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    if !query.switch("watch") {
        return answer::json(snapshot.pod_list_json());
    }
    let snapshots = app.state.snapshot.clone();
    let shutdown = app.shutdown.clone();
    answer::json_stream(Body::produced(|sink| async move {
        shutdown.run_until_signalled(watch_pods(snapshots, snapshot, sink)).await;
    }))
}

/// What a watcher was told last.
#[derive(Default)]
struct Told {
    pods: HashMap<PodUid, Arc<PodView>>,
}

/// Tells all pods, then what changes. Each pod is looked up in the newest snapshot at the moment it is told, so that a
/// slow client skips what it was too slow for, and nothing queues up.
async fn watch_pods(
    mut snapshots: watch::Receiver<Option<Arc<NodeSnapshot>>>,
    first: Arc<NodeSnapshot>,
    sink: mpsc::Sender<Bytes>,
) {
    let mut told = Told::default();
    let mut current = first;
    let mut is_initial = true;
    loop {
        let mut by_uid = index(&current);
        let mut is_newer = false;
        for uid in told.differing(&current) {
            if snapshots.has_changed().unwrap_or(false)
                && let Some(newest) = snapshots.borrow_and_update().clone()
            {
                by_uid = index(&newest);
                current = newest;
                is_newer = true;
            }
            let Some(line) = told.tell(&uid, by_uid.get(&uid)) else { continue };
            if sink.send(line).await.is_err() {
                return;
            }
        }
        if is_initial {
            is_initial = false;
            if sink.send(bookmark(&current, true)).await.is_err() {
                return;
            }
        }
        if is_newer {
            // Pods that were told before the newer snapshot came, and those that came with it.
            continue;
        }
        // Cancel safe: `changed` only marks the value as seen, and it is read right after.
        tokio::select! {
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return;
                }
                if let Some(newest) = snapshots.borrow_and_update().clone() {
                    current = newest;
                }
            }
            () = tokio::time::sleep(BOOKMARK_PERIOD) => {
                if sink.send(bookmark(&current, false)).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn index(snapshot: &NodeSnapshot) -> HashMap<PodUid, Arc<PodView>> {
    snapshot.pods.iter().map(|view| (view.uid.clone(), view.clone())).collect()
}

impl Told {
    /// The pods that are to be told about: first those that are gone, then the rest in the list's order.
    fn differing(&self, snapshot: &NodeSnapshot) -> Vec<PodUid> {
        let now = snapshot.uids();
        let gone = self.pods.keys().filter(|uid| !now.contains_key(uid.as_str())).cloned();
        let changed = snapshot
            .pods
            .iter()
            .filter(|view| self.pods.get(&view.uid).is_none_or(|told| !Arc::ptr_eq(told, view)))
            .map(|view| view.uid.clone());
        gone.chain(changed).collect()
    }

    /// The line about one pod, if there is anything to tell.
    fn tell(&mut self, uid: &PodUid, now: Option<&Arc<PodView>>) -> Option<Bytes> {
        let before = match now {
            Some(now) => self.pods.insert(uid.clone(), now.clone()),
            None => self.pods.remove(uid),
        };
        match (before, now) {
            (None, None) => None,
            (None, Some(now)) => Some(event("ADDED", &now.json)),
            (Some(before), None) => Some(event("DELETED", &before.json)),
            (Some(before), Some(now)) => (before.json != now.json).then(|| event("MODIFIED", &now.json)),
        }
    }
}

/// One line of a watch. Items of a list carry no kind, objects of a watch do: clients decode them by it.
fn event(kind: &str, pod: &[u8]) -> Bytes {
    const TYPE: &[u8] = br#""kind":"Pod","apiVersion":"v1","#;
    let mut line = Vec::with_capacity(pod.len() + 80);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    match pod.strip_prefix(b"{") {
        Some(rest) if !pod.starts_with(br#"{"kind""#) && rest.first() != Some(&b'}') => {
            line.push(b'{');
            line.extend_from_slice(TYPE);
            line.extend_from_slice(rest);
        }
        _ => line.extend_from_slice(pod),
    }
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Says how far the watcher is; the annotation marks the end of the initial pods, as the Kubernetes API does it.
fn bookmark(snapshot: &NodeSnapshot, ends_initial: bool) -> Bytes {
    let annotations =
        if ends_initial { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{}\"{annotations}}},\"spec\":{{\"containers\":null}},\"status\":{{}}}}}}\n",
        snapshot.generation
    )
    .into()
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
