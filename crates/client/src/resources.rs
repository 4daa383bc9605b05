//! `mainstay resources`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mainstay_types::Quantity;
use serde::{Deserialize, Serialize};

use crate::{args::ResourcesArgs, connection::Connection, error::ClientError, output::Output, text::Table};

/// What there is, and who holds it.
#[derive(Deserialize, Serialize)]
struct Resources {
    devices: Vec<Device>,
    #[serde(default)]
    cpus: Vec<Cpu>,
    #[serde(default)]
    memory: Vec<Memory>,
    #[serde(default)]
    unknown: Unknown,
}

/// Of what the holders are not known.
#[derive(Default, Deserialize, Serialize)]
struct Unknown {
    cpus: bool,
    memory: bool,
    devices: bool,
    unnamed: Vec<Unnamed>,
}

/// A container that holds some devices of a resource.
#[derive(Deserialize, Serialize)]
struct Unnamed {
    resource: String,
    holder: Holder,
}

impl Unknown {
    /// Whether nobody knows if a device of this resource, which has no holder, is held.
    fn device(&self, resource: &str) -> bool {
        self.devices || self.unnamed.iter().any(|it| it.resource == resource)
    }

    /// The same of a CPU.
    fn cpu(&self, cpu: &Cpu) -> bool {
        self.cpus && cpu.holders.is_empty() && cpu.state == "Shared"
    }

    /// What is not known, and why, in sentences.
    fn notes(&self) -> Vec<String> {
        let parts = [(self.cpus, "CPUs"), (self.memory, "memory"), (self.devices, "devices")];
        let lost: Vec<_> = parts.into_iter().filter(|(lost, _)| *lost).map(|(_, what)| what).collect();
        let mut notes = Vec::new();
        if !lost.is_empty() {
            notes.push(format!(
                "Who holds {} is not known: the file that said so was lost, and it waits to be looked up from the containers that run",
                lost.join(" and ")
            ));
        }
        notes.extend(self.unnamed.iter().map(|Unnamed { resource, holder }| {
            let (pod, container) = holder.words();
            format!(
                "Container {container} of pod {pod} holds devices of {resource}, and the file that said which was lost; nobody else is given any until it has ended"
            )
        }));
        notes
    }
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
struct Cpu {
    cpu: u32,
    core: u32,
    socket: u32,
    numa_node: u32,
    state: String,
    holders: Vec<Holder>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    numa_node: u32,
    #[serde(rename = "type")]
    kind: String,
    bytes: u64,
    system_reserved_bytes: u64,
    allocatable_bytes: u64,
    held_bytes: u64,
    state: String,
    blocks: Vec<Block>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    bytes: u64,
    numa_nodes: Vec<u32>,
    holder: Holder,
}

#[derive(Clone, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
}

impl Holder {
    /// Pod and container.
    fn words(&self) -> (String, String) {
        // Gone a moment ago.
        let pod =
            if self.pod.is_empty() { self.uid.clone() } else { format!("{}/{}", self.namespace, self.pod) };
        (pod, self.container.clone())
    }
}

pub(crate) async fn run(args: ResourcesArgs, output: &mut Output) -> Result<(), ClientError> {
    let resources: Resources = Connection::new(&args.connect)?.json("/mainstay/v1/resources").await?;
    if let Some(format) = args.output {
        return output.data(&resources, format);
    }
    for note in resources.unknown.notes() {
        output.note(&note);
    }
    if args.numa {
        return output.text(&picture(&resources));
    }
    let rows = rows(&resources);
    if rows.is_empty() {
        output.note(
            "Nothing is given out: no device plugin has registered, and CPUs and memory are not managed",
        );
        return Ok(());
    }
    let mut table = Table::new(vec!["RESOURCE", "DEVICE", "NUMA", "STATE", "POD", "CONTAINER"]);
    output.text(&table.render(&rows, !args.no_headers))
}

/// Who holds what has no known holder.
fn nobody(is_unknown: bool) -> (String, String) {
    let word = if is_unknown { "<unknown>" } else { "<none>" };
    (word.to_owned(), word.to_owned())
}

fn rows(resources: &Resources) -> Vec<Vec<String>> {
    let unknown = &resources.unknown;
    let mut rows: Vec<_> = resources.devices.iter().map(|device| device_row(device, unknown)).collect();
    rows.extend(cpu_rows(&resources.cpus, unknown));
    rows.extend(memory_rows(&resources.memory, unknown));
    rows
}

fn list(nodes: &[u32]) -> String {
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    if nodes.is_empty() { "-".to_owned() } else { nodes.join(",") }
}

fn device_row(device: &Device, unknown: &Unknown) -> Vec<String> {
    let health = if device.healthy { "Healthy" } else { "Unhealthy" };
    let nobody = || nobody(unknown.device(&device.resource));
    let (pod, container) = device.holder.as_ref().map_or_else(nobody, Holder::words);
    let nodes = list(&device.numa_nodes);
    vec![device.resource.clone(), device.id.clone(), nodes, health.to_owned(), pod, container]
}

/// CPUs of one node that have the same holder stand in one row.
fn cpu_rows(cpus: &[Cpu], unknown: &Unknown) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<(u32, &str, Option<&Holder>), Vec<&Cpu>> = BTreeMap::new();
    for cpu in cpus.iter().filter(|cpu| cpu.state != "Unmanaged") {
        for holder in cpu.holders.iter().map(Some).chain(cpu.holders.is_empty().then_some(None)) {
            groups.entry((cpu.numa_node, &cpu.state, holder)).or_default().push(cpu);
        }
    }
    let row = |((node, state, holder), cpus): ((u32, &str, Option<&Holder>), Vec<&Cpu>)| {
        let nobody = || nobody(cpus.iter().any(|cpu| unknown.cpu(cpu)));
        let (pod, container) = holder.map_or_else(nobody, Holder::words);
        let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.cpu).collect();
        vec!["cpu".to_owned(), ranges(&cpus), node.to_string(), state.to_owned(), pod, container]
    };
    groups.into_iter().map(row).collect()
}

/// What each container holds, and what is left of each node.
fn memory_rows(memory: &[Memory], unknown: &Unknown) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for it in memory.iter().filter(|it| it.state != "Unmanaged") {
        let row = |bytes, nodes, state: &str, (pod, container)| {
            vec![it.kind.clone(), amount(bytes), nodes, state.to_owned(), pod, container]
        };
        // A block of several nodes is told of once.
        for block in it.blocks.iter().filter(|block| block.numa_nodes.first() == Some(&it.numa_node)) {
            rows.push(row(block.bytes, list(&block.numa_nodes), "Exclusive", block.holder.words()));
        }
        let free = it.allocatable_bytes.saturating_sub(it.held_bytes);
        rows.push(row(free, it.numa_node.to_string(), "Free", nobody(unknown.memory)));
        rows.push(row(it.system_reserved_bytes, it.numa_node.to_string(), "Reserved", nobody(false)));
    }
    rows
}

fn amount(bytes: u64) -> String {
    Quantity::bytes(i64::try_from(bytes).unwrap_or(i64::MAX)).to_string()
}

/// As the kernel lists CPUs.
fn ranges(cpus: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let part = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The marks of holders: letters, then numbers.
fn mark(at: usize) -> String {
    match u8::try_from(at).ok().filter(|at| *at < 26) {
        Some(at) => char::from(b'A' + at).to_string(),
        None => format!("<{at}>"),
    }
}

/// The NUMA nodes: sockets with cores in brackets, each CPU with the mark of its holder, then memory and devices.
fn picture(resources: &Resources) -> String {
    let mut holders: Vec<&Holder> = Vec::new();
    holders.extend(resources.cpus.iter().flat_map(|cpu| &cpu.holders));
    holders.extend(resources.memory.iter().flat_map(|it| &it.blocks).map(|block| &block.holder));
    holders.extend(resources.devices.iter().filter_map(|device| device.holder.as_ref()));
    holders.sort_unstable();
    holders.dedup();
    let marks: BTreeMap<&Holder, String> =
        holders.iter().enumerate().map(|(at, holder)| (*holder, mark(at))).collect();
    let of = |holder: Option<&Holder>| holder.and_then(|holder| marks.get(holder)).cloned();

    let mut out = String::new();
    let mut nodes: Vec<u32> = resources.cpus.iter().map(|cpu| cpu.numa_node).collect();
    nodes.extend(resources.memory.iter().map(|it| it.numa_node));
    nodes.sort_unstable();
    nodes.dedup();
    for node in nodes {
        // Writing to a text cannot fail.
        writeln!(out, "NUMA node {node}").ok();
        let mut sockets: BTreeMap<u32, BTreeMap<u32, Vec<String>>> = BTreeMap::new();
        for cpu in resources.cpus.iter().filter(|cpu| cpu.numa_node == node) {
            let sign = of(cpu.holders.last()).unwrap_or_else(|| {
                match cpu.state.as_str() {
                    _ if resources.unknown.cpu(cpu) => "?",
                    "Reserved" => "#",
                    "Shared" => "=",
                    _ => "",
                }
                .to_owned()
            });
            let core = sockets.entry(cpu.socket).or_default().entry(cpu.core).or_default();
            core.push(format!("{}{sign}", cpu.cpu));
        }
        for (socket, cores) in sockets {
            let cores: Vec<String> = cores.values().map(|cpus| format!("[{}]", cpus.join(" "))).collect();
            for (at, line) in cores.chunks(8).enumerate() {
                let head = if at == 0 { format!("socket {socket}") } else { String::new() };
                writeln!(out, "  {head:<10}{}", line.join(" ")).ok();
            }
        }
        for it in resources.memory.iter().filter(|it| it.numa_node == node && it.bytes > 0) {
            let held: Vec<String> = it
                .blocks
                .iter()
                .map(|block| {
                    format!("{} {}", of(Some(&block.holder)).unwrap_or_default(), amount(block.bytes))
                })
                .collect();
            let mut parts = vec![amount(it.bytes)];
            if it.state != "Unmanaged" {
                parts.push(format!("# {}", amount(it.system_reserved_bytes)));
                parts.extend(held);
                parts.extend(resources.unknown.memory.then(|| "?".to_owned()));
            }
            writeln!(out, "  {:<10}{}", it.kind, parts.join("  ")).ok();
        }
        devices(&mut out, resources, |it| it.numa_nodes.contains(&node), &of);
    }
    if resources.devices.iter().any(|device| device.numa_nodes.is_empty()) {
        writeln!(out, "no NUMA node").ok();
        devices(&mut out, resources, |it| it.numa_nodes.is_empty(), &of);
    }
    for (holder, mark) in &marks {
        let (pod, container) = holder.words();
        writeln!(out, "{mark}  {pod} {container}").ok();
    }
    out.push_str("#  reserved   =  shared");
    out.push_str(if resources.unknown.notes().is_empty() { "\n" } else { "   ?  not known whose\n" });
    out
}

fn devices(
    out: &mut String,
    resources: &Resources,
    is_wanted: impl Fn(&Device) -> bool,
    of: &dyn Fn(Option<&Holder>) -> Option<String>,
) {
    let mut by_resource: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for device in resources.devices.iter().filter(|device| is_wanted(device)) {
        let is_unknown = device.holder.is_none() && resources.unknown.device(&device.resource);
        let sign = if is_unknown { "?".to_owned() } else { of(device.holder.as_ref()).unwrap_or_default() };
        let health = if device.healthy { "" } else { "!" };
        by_resource.entry(&device.resource).or_default().push(format!("{}{health}{sign}", device.id));
    }
    for (resource, ids) in by_resource {
        writeln!(out, "  {resource}  {}", ids.join(" ")).ok();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A device, a CPU and memory, each held by one container and not by another.
    fn resources(unknown: &serde_json::Value) -> Resources {
        let holder = json!({"namespace": "default", "pod": "p", "uid": "u", "container": "c"});
        let cpu = |cpu: u32, state: &str, holders: serde_json::Value| json!({"cpu": cpu, "core": cpu, "socket": 0, "numaNode": 0, "state": state, "holders": holders});
        let device = |id: &str| json!({"resource": "a.com/x", "id": id, "numaNodes": [0], "healthy": true});
        let mut held = device("held");
        held["holder"] = holder.clone();
        let memory = json!({
            "numaNode": 0, "type": "memory", "bytes": 5_u64 << 30, "systemReservedBytes": 1_u64 << 30,
            "allocatableBytes": 4_u64 << 30, "heldBytes": 1_u64 << 30, "state": "Managed",
            "blocks": [{"bytes": 1_u64 << 30, "numaNodes": [0], "holder": holder}],
        });
        let mut all = json!({
            "devices": [held, device("free")],
            "cpus": [cpu(0, "Reserved", json!([])), cpu(1, "Shared", json!([])), cpu(2, "Exclusive", json!([holder]))],
            "memory": [memory],
        });
        if !unknown.is_null() {
            all["unknown"] = unknown.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    /// The last three columns of each row.
    fn holders(resources: &Resources) -> Vec<String> {
        rows(resources).iter().map(|row| format!("{} {} {}", row[0], row[3], row[4])).collect()
    }

    #[test]
    fn who_holds_what() {
        let all = resources(&json!(null));
        assert_eq!(all.unknown.notes(), Vec::<String>::new());
        assert_eq!(
            holders(&all),
            [
                "a.com/x Healthy default/p",
                "a.com/x Healthy <none>",
                "cpu Exclusive default/p",
                "cpu Reserved <none>",
                "cpu Shared <none>",
                "memory Exclusive default/p",
                "memory Free <none>",
                "memory Reserved <none>",
            ]
        );
        assert_eq!(
            picture(&all),
            "NUMA node 0\n  socket 0  [0#] [1=] [2A]\n  memory    5Gi  # 1Gi  A 1Gi\n  a.com/x  heldA free\nA  default/p c\n#  reserved   =  shared\n"
        );
    }

    #[test]
    fn what_nobody_knows_is_not_free() {
        let lost = resources(&json!({"cpus": true, "memory": true, "devices": true, "unnamed": []}));
        assert_eq!(
            lost.unknown.notes(),
            [
                "Who holds CPUs and memory and devices is not known: the file that said so was lost, and it waits to be looked up from the containers that run"
            ]
        );
        let of = |row: &str| holders(&lost).iter().any(|it| it == row);
        assert!(of("a.com/x Healthy <unknown>") && of("cpu Shared <unknown>") && of("memory Free <unknown>"));
        assert!(of("cpu Reserved <none>") && of("memory Reserved <none>") && of("cpu Exclusive default/p"));
        assert_eq!(
            picture(&lost),
            "NUMA node 0\n  socket 0  [0#] [1?] [2A]\n  memory    5Gi  # 1Gi  A 1Gi  ?\n  a.com/x  heldA free?\nA  default/p c\n#  reserved   =  shared   ?  not known whose\n"
        );

        // One container of which it is not known what it holds of one resource: its pod may have no name any more.
        let holder = json!({"namespace": "", "pod": "", "uid": "gone", "container": "c"});
        let unnamed = json!([{"resource": "a.com/x", "holder": holder}]);
        let some = resources(&json!({"cpus": false, "memory": false, "devices": false, "unnamed": unnamed}));
        assert_eq!(
            some.unknown.notes(),
            [
                "Container c of pod gone holds devices of a.com/x, and the file that said which was lost; nobody else is given any until it has ended"
            ]
        );
        let told = holders(&some);
        assert_eq!(told[1], "a.com/x Healthy <unknown>");
        assert!(told[2..].iter().all(|row| !row.contains("<unknown>")), "{told:?}");
        assert!(picture(&some).contains("heldA free?") && picture(&some).contains("[1=]"));
    }
}
