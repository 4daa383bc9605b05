//! `mainstay node`.

use serde::Deserialize;
use serde_json::Value;

use crate::{args::NodeArgs, connection::Connection, error::ClientError, output::Output, text::Block};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_name: String,
    version: String,
    generation: u64,
    sources_synced: bool,
    runtime: Runtime,
    pods: Counts,
    containers_running: u64,
    config_maps: u64,
    secrets: u64,
    manifests: Verdicts,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    name: String,
    version: String,
    reachable: bool,
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
    let value: Value = Connection::new(&args.connect).json(REQUEST).await?;
    if let Some(format) = args.output {
        return output.data(&value, format);
    }
    let node: Node = serde_json::from_value(value)
        .map_err(|source| ClientError::Unreadable { request: REQUEST.to_owned(), source })?;
    output.text(&node.text())
}

impl Node {
    fn text(&self) -> String {
        let runtime = &self.runtime;
        let mut block = Block::default();
        block.value(0, "Name", &self.node_name);
        block.value(0, "Version", &self.version);
        block.value(
            0,
            "Sources",
            if self.sources_synced { "all have delivered" } else { "not all have delivered yet" },
        );
        let name = if runtime.name.is_empty() { "not reached yet" } else { &runtime.name };
        let changes = if runtime.events { "tells of changes" } else { "is listed for changes" };
        block.value(0, "Container Runtime", format!("{name} {} ({changes})", runtime.version));
        block.value(0, "Runtime Reachable", if runtime.reachable { "True" } else { "False" });
        let state = |problem: &Option<String>| match problem {
            None => "True".to_owned(),
            Some(problem) => format!("False: {problem}"),
        };
        block.value(0, "Runtime Ready", state(&runtime.runtime_problem));
        block.value(0, "Network Ready", state(&runtime.network_problem));
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
        block.value(0, "Generation", self.generation.to_string());
        block.finish()
    }
}
