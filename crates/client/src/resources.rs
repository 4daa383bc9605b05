//! `mainstay resources`.

use serde::{Deserialize, Serialize};

use crate::{args::ResourcesArgs, connection::Connection, error::ClientError, output::Output, text::Table};

/// Which devices there are, and who holds them.
#[derive(Deserialize, Serialize)]
struct Resources {
    devices: Vec<Device>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    resource: String,
    id: String,
    numa_nodes: Vec<u32>,
    healthy: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<Holder>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
}

pub(crate) async fn run(args: ResourcesArgs, output: &mut Output) -> Result<(), ClientError> {
    let resources: Resources = Connection::new(&args.connect)?.json("/mainstay/v1/resources").await?;
    if let Some(format) = args.output {
        return output.data(&resources, format);
    }
    if resources.devices.is_empty() {
        output.note("No devices found: no device plugin has registered");
        return Ok(());
    }
    let rows: Vec<_> = resources.devices.into_iter().map(row).collect();
    let mut table = Table::new(vec!["RESOURCE", "DEVICE", "NUMA", "HEALTH", "POD", "CONTAINER"]);
    output.text(&table.render(&rows, !args.no_headers))
}

fn row(device: Device) -> Vec<String> {
    let nodes: Vec<_> = device.numa_nodes.iter().map(ToString::to_string).collect();
    let nodes = if nodes.is_empty() { "-".to_owned() } else { nodes.join(",") };
    let health = if device.healthy { "Healthy" } else { "Unhealthy" };
    let (pod, container) = match device.holder {
        // Gone a moment ago.
        Some(holder) if holder.pod.is_empty() => (holder.uid, holder.container),
        Some(holder) => (format!("{}/{}", holder.namespace, holder.pod), holder.container),
        None => ("<none>".to_owned(), "<none>".to_owned()),
    };
    vec![device.resource, device.id, nodes, health.to_owned(), pod, container]
}
