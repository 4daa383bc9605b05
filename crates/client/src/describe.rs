//! `mainstay describe`: one pod in full, in the shape that kubectl gives it, with the file it came from.

mod containers;
mod volumes;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use mainstay_types::{EventRecord, PodExt};

use crate::{
    age::{age, full_time},
    args::DescribeArgs,
    connection::{Connection, escaped},
    error::ClientError,
    events::{EventList, container, last_seen, one_line},
    manifests::{self, Manifests},
    node,
    output::Output,
    pods::begun,
    select::{Named, all_pods, is_kind},
    status::summary,
    text::Block,
};

pub(crate) async fn run(args: DescribeArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect)?;
    let pods = all_pods(&connection).await?;
    let manifests = manifests::fetch(&connection).await?;
    // kubectl's way to write it; alone, the word may be a pod's name.
    let names = match args.names.as_slice() {
        [kind, names @ ..] if !names.is_empty() && is_kind(kind) => names,
        names => names,
    };
    node::note_runtime_away(&connection, output).await;
    for (at, name) in names.iter().enumerate() {
        let item = Named::parse(name, args.namespace.as_deref()).find(&pods)?;
        let request = format!("/mainstay/v1/events?pod={}", escaped(&item.full_name()));
        let events: EventList = connection.json(&request).await?;
        if at > 0 {
            output.text("\n\n")?;
        }
        output.text(&pod_text(&item.pod, &manifests, &events.items, Timestamp::now()))?;
    }
    Ok(())
}

fn pod_text(pod: &Pod, manifests: &Manifests, events: &[EventRecord], now: Timestamp) -> String {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let mut block = Block::default();
    head(&mut block, pod, status, now);
    sandbox_failure(&mut block, pod, status, events, now);
    origin(&mut block, pod, manifests, now);
    addresses(&mut block, status);
    containers::describe(&mut block, pod, status);
    conditions(&mut block, status);
    volumes::describe(&mut block, pod.spec_ref());
    tail(&mut block, pod, status);
    event_table(&mut block, pod, events, now);
    block.finish()
}

fn head(block: &mut Block, pod: &Pod, status: &PodStatus, now: Timestamp) {
    let spec = pod.spec_ref();
    block.value(0, "Name", pod.name_ref());
    block.value(0, "Namespace", pod.namespace_ref());
    if let Some(priority) = spec.priority {
        block.value(0, "Priority", priority.to_string());
    }
    if let Some(class) = text(spec.priority_class_name.as_ref()) {
        block.value(0, "Priority Class Name", class);
    }
    if let Some(class) = text(spec.runtime_class_name.as_ref()) {
        block.value(0, "Runtime Class Name", class);
    }
    if let Some(account) = text(spec.service_account_name.as_ref()) {
        block.value(0, "Service Account", account);
    }
    let node = spec.node_name.as_deref().unwrap_or("<none>");
    match text(status.host_ip.as_ref()) {
        Some(ip) => block.value(0, "Node", format!("{node}/{ip}")),
        None => block.value(0, "Node", node),
    }
    if let Some(time) = begun(pod) {
        block.value(0, "Start Time", full_time(time));
    }
    block.values(0, "Labels", pairs(pod.metadata.labels.as_ref(), "="));
    block.values(0, "Annotations", pairs(pod.metadata.annotations.as_ref(), ": "));
    match &pod.metadata.deletion_timestamp {
        Some(deleted) => {
            // The time is the end of the grace that the pod was given, which may still be to come.
            let lasts = if deleted.0 > now {
                format!("Terminating (grace ends in {})", age(Some(now), deleted.0))
            } else {
                format!("Terminating (lasts {})", age(Some(deleted.0), now))
            };
            block.value(0, "Status", lasts);
            if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
                block.value(0, "Termination Grace Period", format!("{grace}s"));
            }
        }
        None => block.value(0, "Status", status.phase.as_deref().unwrap_or("Unknown")),
    }
    let shown = summary(pod).status;
    if status.phase.as_deref() != Some(&shown) && !shown.is_empty() {
        block.value(0, "State", shown);
    }
    if let Some(reason) = text(status.reason.as_ref()) {
        block.value(0, "Reason", reason);
    }
    if let Some(message) = text(status.message.as_ref()) {
        block.value(0, "Message", message);
    }
}

/// Why there is no sandbox yet: no part of the status says it, as in Kubernetes, only an event does.
fn sandbox_failure(block: &mut Block, pod: &Pod, status: &PodStatus, events: &[EventRecord], now: Timestamp) {
    let has_sandbox = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "PodReadyToStartContainers" && condition.status == "True");
    if has_sandbox || status.phase.as_deref() != Some("Pending") {
        return;
    }
    let failed = events.iter().rfind(|event| {
        event.uid == pod.uid_ref()
            && matches!(event.reason.as_str(), "FailedCreatePodSandBox" | "NetworkNotReady")
    });
    if let Some(event) = failed {
        let since = age(Some(event.last_timestamp), now);
        block.value(0, "Sandbox", format!("not there ({since} ago): {}", one_line(&event.message)));
    }
}

/// The file the pod came from and what was found in it.
fn origin(block: &mut Block, pod: &Pod, manifests: &Manifests, now: Timestamp) {
    let Some(origin) = manifests.pods.iter().find(|known| known.uid == pod.uid_ref()) else { return };
    if origin.origin.is_empty() {
        return;
    }
    block.value(0, "Origin", &origin.origin);
    let of_file = manifests.items.iter().filter(|verdict| verdict.path.as_os_str() == origin.origin.as_str());
    // A file may have several documents: those that are about this pod, and those that nobody can tell.
    let about_this = of_file.filter(|verdict| match verdict.object.as_deref() {
        Some(object) => is_about(object, pod),
        None => true,
    });
    for verdict in about_this {
        let said = format!("{} since {}", manifests::word(&verdict.ruling), full_time(verdict.since));
        block.value(0, "Manifest", format!("{said} ({} ago)", age(Some(verdict.since), now)));
        for detail in manifests::details(&verdict.ruling) {
            block.more(detail);
        }
    }
}

/// Whether `Pod default/web` names this pod, with or without its node's name at the end.
fn is_about(object: &str, pod: &Pod) -> bool {
    let Some(full_name) = object.strip_prefix("Pod ") else { return false };
    let (namespace, name) = full_name.split_once('/').unwrap_or((pod.namespace_ref(), full_name));
    let node = pod.spec_ref().node_name.as_deref().unwrap_or_default();
    namespace == pod.namespace_ref() && (name == pod.name_ref() || format!("{name}-{node}") == pod.name_ref())
}

fn addresses(block: &mut Block, status: &PodStatus) {
    block.value(0, "IP", status.pod_ip.as_deref().unwrap_or_default());
    let ips = status.pod_ips.as_deref().unwrap_or_default();
    if ips.is_empty() {
        block.value(0, "IPs", "<none>");
        return;
    }
    block.line(0, "IPs:");
    for ip in ips {
        block.value(2, "IP", &ip.ip);
    }
}

fn conditions(block: &mut Block, status: &PodStatus) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.is_empty() {
        return;
    }
    let cell = |value: &Option<String>| value.as_deref().map(one_line).unwrap_or_default();
    let rows: Vec<Vec<String>> = conditions
        .iter()
        .map(|it| vec![it.type_.clone(), it.status.clone(), cell(&it.reason), cell(&it.message)])
        .collect();
    block.line(0, "Conditions:");
    // As kubectl, unless there is more to tell.
    if rows.iter().all(|row| row.iter().skip(2).all(String::is_empty)) {
        let short: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().take(2).collect()).collect();
        block.table(vec!["Type", "Status"], &short, false);
    } else {
        block.table(vec!["Type", "Status", "Reason", "Message"], &rows, false);
    }
}

fn tail(block: &mut Block, pod: &Pod, status: &PodStatus) {
    let spec = pod.spec_ref();
    if let Some(class) = text(status.qos_class.as_ref()) {
        block.value(0, "QoS Class", class);
    }
    block.values(0, "Node-Selectors", pairs(spec.node_selector.as_ref(), "="));
    block.values(0, "Tolerations", spec.tolerations.iter().flatten().map(toleration));
}

fn toleration(toleration: &Toleration) -> String {
    let mut out = toleration.key.clone().unwrap_or_default();
    if let Some(value) = text(toleration.value.as_ref()) {
        out.push_str(&format!("={value}"));
    }
    if let Some(effect) = text(toleration.effect.as_ref()) {
        out.push_str(&format!(":{effect}"));
    }
    if toleration.operator.as_deref() == Some("Exists") && text(toleration.value.as_ref()).is_none() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str("op=Exists");
    }
    if let Some(seconds) = toleration.toleration_seconds {
        out.push_str(&format!(" for {seconds}s"));
    }
    out
}

fn event_table(block: &mut Block, pod: &Pod, events: &[EventRecord], now: Timestamp) {
    // Events of an earlier pod of the same name are another pod's.
    let own: Vec<&EventRecord> = events.iter().filter(|event| event.uid == pod.uid_ref()).collect();
    if own.is_empty() {
        block.value(0, "Events", "<none>");
        return;
    }
    block.line(0, "Events:");
    let rows: Vec<Vec<String>> = own
        .into_iter()
        .map(|event| {
            vec![
                event.kind.clone(),
                event.reason.clone(),
                last_seen(event, now),
                container(event).unwrap_or("-").to_owned(),
                one_line(&event.message),
            ]
        })
        .collect();
    block.table(vec!["Type", "Reason", "Age", "Container", "Message"], &rows, true);
}

fn pairs<'a>(
    map: Option<&'a BTreeMap<String, String>>,
    separator: &'a str,
) -> impl Iterator<Item = String> + use<'a> {
    map.into_iter().flatten().map(move |(key, value)| format!("{key}{separator}{value}"))
}

fn text(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|value| !value.is_empty())
}
