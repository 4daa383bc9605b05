//! `mainstay node`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    age::{age, full_time},
    args::NodeArgs,
    connection::Connection,
    error::ClientError,
    events::one_line,
    output::Output,
    text::Block,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_name: String,
    version: String,
    generation: u64,
    sources_synced: bool,
    #[serde(default)]
    sources_awaited: Vec<Awaited>,
    #[serde(default)]
    conditions: Vec<NodeCondition>,
    #[serde(default)]
    silent_pods: Vec<String>,
    runtime: Runtime,
    pods: Counts,
    containers_running: u64,
    config_maps: u64,
    secrets: u64,
    manifests: Verdicts,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    #[serde(default)]
    allocatable: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Awaited {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    name: String,
    version: String,
    reachable: bool,
    unreachable_since: Option<Timestamp>,
    events: bool,
    runtime_problem: Option<String>,
    network_problem: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    total: u64,
    pending: u64,
    running: u64,
    succeeded: u64,
    failed: u64,
    ready: u64,
    terminating: u64,
}

#[derive(Deserialize)]
struct Verdicts {
    accepted: u64,
    rejected: u64,
    ignored: u64,
}

const REQUEST: &str = "/mainstay/v1/node";

pub(crate) async fn run(args: NodeArgs, output: &mut Output) -> Result<(), ClientError> {
    let value: Value = Connection::new(&args.connect)?.json(REQUEST).await?;
    if let Some(format) = args.output {
        return output.data(&value, format);
    }
    let node: Node = serde_json::from_value(value)
        .map_err(|source| ClientError::Unreadable { request: REQUEST.to_owned(), source })?;
    output.text(&node.text())
}

/// Says so when what is shown of containers is not what is.
pub(crate) async fn note_runtime_away(connection: &Connection, output: &mut Output) {
    // Whoever asks for pods gets the reason why there is no answer with them.
    let node: Result<Node, ClientError> = connection.json(REQUEST).await;
    if let Some(away) = node.ok().and_then(|node| node.runtime.away(Timestamp::now())) {
        output.note(&format!("warning: {away}"));
    }
}

impl Runtime {
    /// That the runtime does not answer, and since when.
    fn away(&self, now: Timestamp) -> Option<String> {
        let since = self.unreachable_since.map_or_else(String::new, |since| {
            format!(" since {} ({} ago)", full_time(since), age(Some(since), now))
        });
        let text =
            format!("the container runtime does not answer{since}; containers are shown as they were then");
        (!self.reachable).then_some(text)
    }
}

/// `StateIntact` as a label: `State Intact`.
fn title(condition: &str) -> String {
    let mut title = String::new();
    for letter in condition.chars() {
        if letter.is_uppercase() && !title.is_empty() {
            title.push(' ');
        }
        title.push(letter);
    }
    title
}

/// The status, and unless all is well the rest.
fn said(condition: &NodeCondition) -> String {
    let status = &condition.status;
    let since = condition.last_transition_time.as_ref();
    let since = since.map_or_else(String::new, |Time(since)| format!(" since {}", full_time(*since)));
    match &condition.message {
        Some(message) if status != "True" => format!("{status}{since}: {}", one_line(message)),
        _ => status.clone(),
    }
}

impl Node {
    fn text(&self) -> String {
        let runtime = &self.runtime;
        let mut block = Block::default();
        block.value(0, "Name", &self.node_name);
        block.value(0, "Version", &self.version);
        let awaited: Vec<&str> = self.sources_awaited.iter().map(|source| source.name.as_str()).collect();
        block.value(
            0,
            "Sources",
            match (self.sources_synced, awaited.is_empty()) {
                (true, _) => "all have delivered".to_owned(),
                (false, true) => "not all have delivered yet".to_owned(),
                (false, false) => format!(
                    "not delivered: {}; nothing that may be theirs is removed meanwhile",
                    awaited.join(", ")
                ),
            },
        );
        let name = if runtime.name.is_empty() { "not reached yet" } else { &runtime.name };
        let changes = if runtime.events { "tells of changes" } else { "is listed for changes" };
        block.value(0, "Container Runtime", format!("{name} {} ({changes})", runtime.version));
        let away = runtime.away(Timestamp::now());
        block.value(0, "Runtime Reachable", away.map_or("True".to_owned(), |away| format!("False: {away}")));
        let state = |problem: &Option<String>| match problem {
            None => "True".to_owned(),
            Some(problem) => format!("False: {problem}"),
        };
        if runtime.reachable {
            block.value(0, "Runtime Ready", state(&runtime.runtime_problem));
            block.value(0, "Network Ready", state(&runtime.network_problem));
        } else {
            block.value(0, "Runtime Ready", "False: it does not answer");
            block.value(0, "Network Ready", "Unknown: only the runtime knows");
        }
        for condition in &self.conditions {
            block.value(0, &title(&condition.type_), said(condition));
        }
        if !self.silent_pods.is_empty() {
            block.value(0, "Runtime Silent About", self.silent_pods.join(", "));
        }
        let pods = &self.pods;
        block.value(
            0,
            "Pods",
            format!(
                "{} ({} running, {} pending, {} succeeded, {} failed, {} terminating; {} ready)",
                pods.total,
                pods.running,
                pods.pending,
                pods.succeeded,
                pods.failed,
                pods.terminating,
                pods.ready
            ),
        );
        block.value(0, "Containers", format!("{} running", self.containers_running));
        let files = &self.manifests;
        block.value(
            0,
            "Manifests",
            format!("{} accepted, {} rejected, {} ignored", files.accepted, files.rejected, files.ignored),
        );
        block.value(0, "Objects", format!("{} ConfigMaps, {} Secrets", self.config_maps, self.secrets));
        list(&mut block, "Labels", &self.labels);
        list(&mut block, "Capacity", &self.capacity);
        list(&mut block, "Allocatable", &self.allocatable);
        block.value(0, "Generation", self.generation.to_string());
        block.finish()
    }
}

/// A heading with a line for each pair; nothing when there are none.
fn list(block: &mut Block, heading: &str, pairs: &BTreeMap<String, String>) {
    if pairs.is_empty() {
        return;
    }
    block.value(0, heading, "");
    for (name, value) in pairs {
        block.value(1, name, value);
    }
}
