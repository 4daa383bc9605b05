//! `/mainstay/v1/…`: what upstream has no endpoint for. Documented in the crate's documentation.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::core::v1::NodeCondition;
use mainstay_snapshot::{EventFilter, EventReader, go_json};
use mainstay_types::{
    AwaitedSource, ContainerPhase, EventRecord, FileVerdict, FullName, NodeSnapshot, ResourceList, Ruling,
    RuntimeHealth, VERSION,
};
use serde::Serialize;

use crate::{
    answer::{self, Answer},
    body::{Body, Slot},
    request::{Query, quoted},
    route::App,
    watch::BOOKMARK_PERIOD,
};

/// How long a watch waits after an event for others that come with it.
const GATHER: Duration = Duration::from_millis(20);

/// `/mainstay/v1/manifests`.
pub(crate) fn manifests(app: &App) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    json(&Manifests::of(&snapshot))
}

/// `/mainstay/v1/node`.
pub(crate) fn node(app: &App) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    json(&Node::of(&snapshot))
}

pub(crate) fn json(value: &impl Serialize) -> Answer {
    let mut bytes = go_json(value);
    bytes.push(b'\n');
    answer::json(bytes.into())
}

#[derive(Serialize)]
struct Events<'a> {
    newest: u64,
    items: &'a [Arc<EventRecord>],
}

/// `/mainstay/v1/events`.
pub(crate) fn events(app: &App, query: &Query<'_>) -> Answer {
    let after = match query.first("after").map(str::parse).transpose() {
        Ok(after) => after.unwrap_or(0),
        Err(_) => {
            return answer::error(
                StatusCode::BAD_REQUEST,
                "after must be the sequence of an event, a whole number",
            );
        }
    };
    let pod = match query.first("pod").map(|pod| (pod, pod.split_once('/'))) {
        None => None,
        Some((_, Some((namespace, name)))) if !namespace.is_empty() && !name.is_empty() => {
            Some(FullName::new(namespace, name))
        }
        Some((pod, _)) => {
            let text =
                format!("pod must be NAMESPACE/NAME, such as default/web-node1; it is {}", quoted(pod));
            return answer::error(StatusCode::BAD_REQUEST, &text);
        }
    };
    let filter = EventFilter { pod };
    let reader = app.state.events.clone();
    // Sequences begin anew when the events of earlier lives are lost; a client that comes back with an old one must not
    // wait for it.
    let after = if after > reader.newest() { 0 } else { after };
    if !query.switch("watch") {
        // The newest first, then the items: an event between the two comes again, rather than never.
        let newest = reader.newest();
        let items = reader.since(after, &filter);
        return json(&Events { newest, items: &items });
    }
    let shutdown = app.shutdown.clone();
    answer::json_stream(Body::told(|slot| async move {
        shutdown.run_until_signalled(watch_events(reader, after, filter, &slot)).await;
    }))
}

/// Tells the events after `seen`, then those that come. The store is bounded and asked again for each batch, so a slow
/// client misses what the store has dropped meanwhile.
async fn watch_events(reader: EventReader, mut seen: u64, filter: EventFilter, slot: &Slot) {
    let mut told_initial = false;
    loop {
        let newest = reader.newest();
        for record in reader.since(seen, &filter) {
            seen = seen.max(record.sequence);
            slot.put(event_line(&record)).await;
        }
        seen = seen.max(newest);
        if !told_initial {
            told_initial = true;
            slot.put(event_bookmark(seen)).await;
        }
        match tokio::time::timeout(BOOKMARK_PERIOD, reader.wait_past(seen)).await {
            Ok(_) => tokio::time::sleep(GATHER).await,
            Err(_) => slot.put(event_bookmark(seen)).await,
        }
    }
}

#[derive(Serialize)]
struct WatchLine<'a> {
    r#type: &'static str,
    object: &'a EventRecord,
}

fn event_line(record: &EventRecord) -> Bytes {
    let r#type = if record.count > 1 { "MODIFIED" } else { "ADDED" };
    let mut line = go_json(&WatchLine { r#type, object: record });
    line.push(b'\n');
    line.into()
}

fn event_bookmark(sequence: u64) -> Bytes {
    format!("{{\"type\":\"BOOKMARK\",\"object\":{{\"sequence\":{sequence}}}}}\n").into()
}

#[derive(Serialize)]
struct Manifests<'a> {
    /// Every source has delivered.
    synced: bool,
    /// Those that have not.
    awaited: &'a [AwaitedSource],
    items: &'a [FileVerdict],
    pods: Vec<Origin<'a>>,
}

/// Where a pod came from.
#[derive(Serialize)]
struct Origin<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    origin: &'a str,
}

impl<'a> Manifests<'a> {
    fn of(snapshot: &'a NodeSnapshot) -> Self {
        let pods = snapshot.pods.iter().map(|view| Origin {
            namespace: &view.full_name.namespace,
            name: &view.full_name.name,
            uid: view.uid.as_str(),
            origin: &view.origin,
        });
        let desired = &snapshot.desired;
        Self {
            synced: desired.is_whole(),
            awaited: &desired.awaited,
            items: &desired.verdicts,
            pods: pods.collect(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node_name: &'a str,
    version: &'static str,
    generation: u64,
    sources_synced: bool,
    sources_awaited: &'a [AwaitedSource],
    runtime: Runtime<'a>,
    conditions: &'a [NodeCondition],
    /// Pods that the runtime lists and does not answer about.
    silent_pods: Vec<String>,
    pods: PodCounts,
    containers_running: usize,
    config_maps: usize,
    secrets: usize,
    manifests: VerdictCounts,
    labels: &'a BTreeMap<String, String>,
    capacity: &'a ResourceList,
    allocatable: &'a ResourceList,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Runtime<'a> {
    name: &'a str,
    version: &'a str,
    reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable_since: Option<jiff::Timestamp>,
    /// It sends container events; else it is listed again and again.
    events: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_problem: Option<&'a str>,
}

#[derive(Default, Serialize)]
struct PodCounts {
    total: usize,
    pending: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
    unknown: usize,
    ready: usize,
    terminating: usize,
}

#[derive(Default, Serialize)]
struct VerdictCounts {
    accepted: usize,
    rejected: usize,
    ignored: usize,
}

impl<'a> Node<'a> {
    fn of(snapshot: &'a NodeSnapshot) -> Self {
        let runtime: &RuntimeHealth = &snapshot.observed.runtime;
        let containers =
            snapshot.pods.iter().filter_map(|view| view.observed.as_ref()).flat_map(|pod| &pod.containers);
        let mut manifests = VerdictCounts::default();
        for verdict in snapshot.desired.verdicts.iter() {
            match verdict.ruling {
                Ruling::Accepted { .. } => manifests.accepted += 1,
                Ruling::Rejected { .. } => manifests.rejected += 1,
                Ruling::Ignored { .. } => manifests.ignored += 1,
            }
        }
        Self {
            node_name: &snapshot.node_name,
            version: VERSION,
            generation: snapshot.generation,
            sources_synced: snapshot.desired.is_whole(),
            sources_awaited: &snapshot.desired.awaited,
            conditions: &snapshot.conditions,
            silent_pods: snapshot.observed.silent.values().map(ToString::to_string).collect(),
            runtime: Runtime {
                name: &runtime.name,
                version: &runtime.version,
                reachable: runtime.reachable,
                unreachable_since: runtime.unreachable_since,
                events: runtime.events,
                runtime_problem: runtime.runtime_problem.as_deref(),
                network_problem: runtime.network_problem.as_deref(),
            },
            pods: PodCounts::of(snapshot),
            containers_running: containers
                .filter(|container| container.phase == ContainerPhase::Running)
                .count(),
            config_maps: snapshot.desired.objects.config_maps.len(),
            secrets: snapshot.desired.objects.secrets.len(),
            manifests,
            labels: &snapshot.resources.labels,
            capacity: &snapshot.resources.capacity,
            allocatable: &snapshot.resources.allocatable,
        }
    }
}

impl PodCounts {
    fn of(snapshot: &NodeSnapshot) -> Self {
        let mut counts = Self { total: snapshot.pods.len(), ..Self::default() };
        for view in &snapshot.pods {
            match view.status.phase.as_deref() {
                Some("Pending") => counts.pending += 1,
                Some("Running") => counts.running += 1,
                Some("Succeeded") => counts.succeeded += 1,
                Some("Failed") => counts.failed += 1,
                _ => counts.unknown += 1,
            }
            let mut conditions = view.status.conditions.iter().flatten();
            if conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True") {
                counts.ready += 1;
            }
            if view.pod.metadata.deletion_timestamp.is_some() {
                counts.terminating += 1;
            }
        }
        counts
    }
}
