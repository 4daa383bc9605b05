//! `mainstay stats`.

use std::{cmp::Reverse, collections::HashMap};

use jiff::Timestamp;
use mainstay_types::PodExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    args::{StatsArgs, StatsOrder},
    connection::Connection,
    error::ClientError,
    metrics,
    output::Output,
    select::{Named, all_pods},
    text::Table,
};

const SUMMARY: &str = "/stats/summary";
const READ: &str = "container_fs_reads_bytes_total";
const WRITTEN: &str = "container_fs_writes_bytes_total";
/// What is not known, or is not a thing's own: a container's network is its pod's.
const UNKNOWN: &str = "-";

/// What is used of each of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) nano_cores: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) io: Option<Io>,
    /// Bytes received and sent.
    pub(crate) network: Option<(u64, u64)>,
    pub(crate) disk: Option<u64>,
}

/// Bytes read from and written to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Io {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// What went to and from devices, by namespace, pod and container; the node's own has none of the three.
pub(crate) type IoTable = HashMap<[String; 3], Io>;

/// A pod of the summary: as it came, and as far as it is looked at.
struct PodStats {
    value: Value,
    shape: PodShape,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodShape {
    pod_ref: PodRef,
    #[serde(default)]
    containers: Option<Vec<ContainerShape>>,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    network: Option<Network>,
    #[serde(rename = "ephemeral-storage")]
    disk: Option<Fs>,
}

#[derive(Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Deserialize)]
struct ContainerShape {
    name: String,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    rootfs: Option<Fs>,
    logs: Option<Fs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeShape {
    pub(crate) node_name: String,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    network: Option<Network>,
    fs: Option<Fs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: Option<Timestamp>,
    usage_nano_cores: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    available_bytes: Option<u64>,
    working_set_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Network {
    #[serde(default)]
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    rx_bytes: Option<u64>,
    tx_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fs {
    available_bytes: Option<u64>,
    used_bytes: Option<u64>,
}

pub(crate) async fn run(args: StatsArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect)?;
    let mut summary: Value = connection.json(SUMMARY).await?;
    let node = summary.get_mut("node").map(Value::take).unwrap_or_default();
    let mut pods = Vec::new();
    for value in summary.get_mut("pods").and_then(Value::as_array_mut).into_iter().flatten() {
        pods.push(PodStats { shape: read(value)?, value: value.take() });
    }
    if let Some(namespace) = args.namespace.as_deref().filter(|_| args.names.is_empty()) {
        pods.retain(|pod| pod.shape.pod_ref.namespace == namespace);
    }
    if !args.names.is_empty() {
        pods = named(pods, &args, &connection).await?;
    }
    let io = if args.output.is_none() || args.sort == StatsOrder::Io {
        io(&connection, output).await
    } else {
        IoTable::new()
    };
    sort(&mut pods, args.sort, &io);
    if let Some(format) = args.output {
        let mut values: Vec<Value> = pods.into_iter().map(|pod| pod.value).collect();
        let data = match values.as_mut_slice() {
            [one] if args.names.len() == 1 => one.take(),
            all if args.names.is_empty() => json!({"node": node, "pods": all}),
            all => json!({"pods": all}),
        };
        return output.data(&data, format);
    }
    if args.names.is_empty() && args.namespace.is_none() {
        let node: NodeShape = read(&node)?;
        node_table(&node, &io, !args.no_headers, output)?;
    }
    if pods.is_empty() {
        match &args.namespace {
            Some(namespace) => output.note(&format!("No pods run in {namespace} namespace.")),
            None => output.note("No pods run"),
        }
        return Ok(());
    }
    if args.names.is_empty() && args.namespace.is_none() {
        output.text("\n")?;
    }
    pod_table(&pods, &args, &io, output)
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, ClientError> {
    T::deserialize(value).map_err(|source| ClientError::Unreadable { request: SUMMARY.to_owned(), source })
}

/// The pods that the command line names, each once.
async fn named(
    pods: Vec<PodStats>,
    args: &StatsArgs,
    connection: &Connection,
) -> Result<Vec<PodStats>, ClientError> {
    let all = all_pods(connection).await?;
    let mut wanted = Vec::new();
    for name in &args.names {
        let item = Named::parse(name, args.namespace.as_deref()).find(&all)?;
        let of_it = |pod: &PodStats| {
            let PodRef { name, namespace } = &pod.shape.pod_ref;
            name == item.pod.name_ref() && namespace == item.pod.namespace_ref()
        };
        if !pods.iter().any(of_it) {
            return Err(ClientError::NotMeasured { pod: item.full_name() });
        }
        wanted.push(item.full_name());
    }
    let is_wanted = |pod: &PodStats| wanted.contains(&pod.shape.pod_ref.full_name());
    Ok(pods.into_iter().filter(is_wanted).collect())
}

impl PodRef {
    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What went to and from devices, which is not in the summary. Whoever may not read metrics does without.
async fn io(connection: &Connection, output: &mut Output) -> IoTable {
    match ask_io(connection).await {
        Ok(table) => table,
        Err(error) => {
            output.note(&format!(
                "what is read and written is not known, for /metrics/cadvisor cannot be read: {}",
                error.whole_chain()
            ));
            IoTable::new()
        }
    }
}

async fn ask_io(connection: &Connection) -> Result<IoTable, ClientError> {
    let request = format!("/metrics/cadvisor?name[]={READ}&name[]={WRITTEN}");
    connection.text(&request).await.map(|text| io_table(&text))
}

/// The summary, and what went to and from devices as far as one may know.
pub(crate) async fn fetch(connection: &Connection) -> Result<(Value, IoTable), ClientError> {
    let summary: Value = connection.json(SUMMARY).await?;
    Ok((summary, ask_io(connection).await.unwrap_or_default()))
}

fn io_table(text: &str) -> IoTable {
    let mut table = IoTable::new();
    for (name, labels, value) in metrics::samples(text) {
        let get = |label| metrics::label(labels, label).unwrap_or_default();
        let key = ["namespace", "pod", "container"].map(|label| get(label).to_owned());
        // The machine itself, pods and containers; neither sandboxes nor the cgroups above pods.
        let is_machine = key[1].is_empty() && get("id") == "/";
        let is_pod = !key[1].is_empty() && (!key[2].is_empty() || get("image").is_empty());
        if !is_machine && !is_pod {
            continue;
        }
        let entry = table.entry(key).or_default();
        // Counts of bytes are whole and far below 2^53.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
        let bytes = value as u64;
        match name {
            READ => entry.read = entry.read.saturating_add(bytes),
            WRITTEN => entry.written = entry.written.saturating_add(bytes),
            _ => {}
        }
    }
    table
}

pub(crate) fn io_of(table: &IoTable, namespace: &str, pod: &str, container: &str) -> Option<Io> {
    table.get(&[namespace, pod, container].map(str::to_owned)).copied()
}

impl PodShape {
    /// `NAMESPACE/NAME`.
    pub(crate) fn full_name(&self) -> String {
        self.pod_ref.full_name()
    }

    /// When its cgroup was read.
    pub(crate) fn cpu_time(&self) -> Option<Timestamp> {
        self.cpu.as_ref()?.time
    }

    pub(crate) fn usage(&self, io: &IoTable) -> Usage {
        let PodRef { name, namespace } = &self.pod_ref;
        Usage {
            nano_cores: self.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores),
            memory: self.memory.as_ref().and_then(|memory| memory.working_set_bytes),
            io: io_of(io, namespace, name, ""),
            network: self.network.as_ref().map(Network::total),
            disk: self.disk.as_ref().and_then(|disk| disk.used_bytes),
        }
    }

    /// The containers and what they use, as `order` wants them.
    pub(crate) fn sorted(&self, order: StatsOrder, io: &IoTable) -> Vec<(&str, Usage)> {
        let PodRef { name, namespace } = &self.pod_ref;
        let containers = self.containers.iter().flatten();
        let mut all: Vec<_> = containers
            .map(|container| {
                (container.name.as_str(), container.usage(io_of(io, namespace, name, &container.name)))
            })
            .collect();
        all.sort_by(|(a_name, a), (b_name, b)| (a.rank(order), a_name).cmp(&(b.rank(order), b_name)));
        all
    }
}

impl NodeShape {
    pub(crate) fn usage(&self, io: &IoTable) -> Usage {
        Usage {
            nano_cores: self.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores),
            memory: self.memory.as_ref().and_then(|memory| memory.working_set_bytes),
            io: io_of(io, "", "", ""),
            network: self.network.as_ref().map(Network::total),
            disk: self.fs.as_ref().and_then(|disk| disk.used_bytes),
        }
    }

    /// When the root cgroup was read.
    pub(crate) fn cpu_time(&self) -> Option<Timestamp> {
        self.cpu.as_ref()?.time
    }

    pub(crate) fn memory_free(&self) -> Option<u64> {
        self.memory.as_ref()?.available_bytes
    }

    pub(crate) fn disk_free(&self) -> Option<u64> {
        self.fs.as_ref()?.available_bytes
    }
}

impl ContainerShape {
    fn usage(&self, io: Option<Io>) -> Usage {
        let used = |fs: &Option<Fs>| fs.as_ref().and_then(|fs| fs.used_bytes);
        let disk = [used(&self.rootfs), used(&self.logs)];
        Usage {
            nano_cores: self.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores),
            memory: self.memory.as_ref().and_then(|memory| memory.working_set_bytes),
            io,
            network: None,
            disk: disk.into_iter().flatten().reduce(u64::saturating_add),
        }
    }
}

impl Network {
    fn total(&self) -> (u64, u64) {
        self.interfaces.iter().fold((0, 0), |(received, sent), it| {
            let add = |sum: u64, more: Option<u64>| sum.saturating_add(more.unwrap_or(0));
            (add(received, it.rx_bytes), add(sent, it.tx_bytes))
        })
    }
}

impl Usage {
    /// In ascending order the largest comes first, and what is not known last.
    pub(crate) fn rank(&self, order: StatsOrder) -> Reverse<Option<u64>> {
        Reverse(match order {
            StatsOrder::Name => None,
            StatsOrder::Cpu => self.nano_cores,
            StatsOrder::Memory => self.memory,
            StatsOrder::Io => self.io.map(|io| io.read.saturating_add(io.written)),
            StatsOrder::Network => self.network.map(|(received, sent)| received.saturating_add(sent)),
            StatsOrder::Disk => self.disk,
        })
    }
}

fn sort(pods: &mut [PodStats], order: StatsOrder, io: &IoTable) {
    pods.sort_by_cached_key(|pod| {
        let PodRef { name, namespace } = &pod.shape.pod_ref;
        (pod.shape.usage(io).rank(order), namespace.clone(), name.clone())
    });
}

fn node_table(
    node: &NodeShape,
    io: &IoTable,
    with_headers: bool,
    output: &mut Output,
) -> Result<(), ClientError> {
    let usage = node.usage(io);
    let row = vec![
        node.node_name.clone(),
        cores(usage.nano_cores),
        size(usage.memory),
        size(node.memory_free()),
        size(usage.io.map(|io| io.read)),
        size(usage.io.map(|io| io.written)),
        size(usage.network.map(|(received, _)| received)),
        size(usage.network.map(|(_, sent)| sent)),
        size(usage.disk),
        size(node.disk_free()),
    ];
    let mut table = Table::new(vec![
        "NODE",
        "CPU",
        "MEMORY",
        "MEMORY FREE",
        "READ",
        "WRITTEN",
        "RECEIVED",
        "SENT",
        "DISK",
        "DISK FREE",
    ]);
    output.text(&table.render(&[row], with_headers))
}

fn pod_table(
    pods: &[PodStats],
    args: &StatsArgs,
    io: &IoTable,
    output: &mut Output,
) -> Result<(), ClientError> {
    let with_namespace = args.namespace.is_none();
    let with_containers = args.containers || !args.names.is_empty();
    let mut headers = vec!["POD", "CPU", "MEMORY", "READ", "WRITTEN", "RECEIVED", "SENT", "DISK"];
    if with_containers {
        headers.insert(1, "CONTAINER");
    }
    if with_namespace {
        headers.insert(0, "NAMESPACE");
    }
    let mut rows = Vec::new();
    for PodStats { shape, .. } in pods {
        let mut row = |container: &str, usage: &Usage| {
            let mut cells = Vec::with_capacity(headers.len());
            if with_namespace {
                cells.push(shape.pod_ref.namespace.clone());
            }
            cells.push(shape.pod_ref.name.clone());
            if with_containers {
                cells.push(container.to_owned());
            }
            cells.extend([
                cores(usage.nano_cores),
                size(usage.memory),
                size(usage.io.map(|io| io.read)),
                size(usage.io.map(|io| io.written)),
                size(usage.network.map(|(received, _)| received)),
                size(usage.network.map(|(_, sent)| sent)),
                size(usage.disk),
            ]);
            rows.push(cells);
        };
        row("", &shape.usage(io));
        if with_containers {
            shape.sorted(args.sort, io).iter().for_each(|(name, usage)| row(name, usage));
        }
    }
    output.text(&Table::new(headers).render(&rows, !args.no_headers))
}

/// Thousandths of a core, as kubectl has them; what is more than nothing is at least one.
pub(crate) fn cores(nano_cores: Option<u64>) -> String {
    nano_cores.map_or_else(|| UNKNOWN.to_owned(), |nanos| format!("{}m", nanos.div_ceil(1_000_000)))
}

/// Bytes in the largest unit of which there is one, with one digit behind the point below ten.
pub(crate) fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return UNKNOWN.to_owned() };
    let units = [("Ti", 1_u64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    let Some((unit, one)) = units.into_iter().find(|(_, one)| bytes >= *one) else {
        return bytes.to_string();
    };
    let (whole, rest) = (bytes / one, bytes % one);
    let tenth = rest * 10 / one;
    if whole < 10 { format!("{whole}.{tenth}{unit}") } else { format!("{whole}{unit}") }
}

#[cfg(test)]
mod tests;
