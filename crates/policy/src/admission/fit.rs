//! Whether there is room: resources, the number of pods, ports of the host.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use mainstay_podspec::runtime::{Overhead, pod_requests};
use mainstay_types::{ContainerKind, PodExt as _, Quantity, ResourceList};

use super::Rejection;

/// Binds on all addresses; also the meaning of an empty one.
const ALL_ADDRESSES: &str = "0.0.0.0";

/// What a pod takes of the node while it runs. Computed once for each pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUse {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of disk.
    pub ephemeral_storage: i64,
    /// Everything else that is counted: huge pages, extended resources.
    pub scalars: Vec<(String, i64)>,
    /// Ports of the host.
    pub ports: Vec<HostPort>,
}

/// A port of the host that a container wants for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The address, `0.0.0.0` for all.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The number.
    pub port: i32,
}

impl PodUse {
    /// What this pod takes: its requests with overhead, and its host ports (init containers that end take none).
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let mut wants = Self { ports: host_ports(pod), ..Self::default() };
        for (name, amount) in pod_requests(pod, Overhead::Included) {
            match name.as_str() {
                "cpu" => wants.milli_cpu = amount.milli(),
                "memory" => wants.memory = amount.value(),
                "ephemeral-storage" => wants.ephemeral_storage = amount.value(),
                _ => wants.scalars.push((name, amount.value())),
            }
        }
        wants
    }

    /// What it takes of one resource, by the name that a node has it under.
    pub(super) fn of_resource(&self, name: &str) -> i64 {
        match name {
            "pods" => 1,
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            _ => self.scalars.iter().find(|(other, _)| other == name).map_or(0, |(_, amount)| *amount),
        }
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    pod.all_containers()
        .filter(|(kind, _)| *kind != ContainerKind::Init)
        .flat_map(|(_, container)| container.ports.iter().flatten())
        .filter_map(|port| {
            Some(HostPort {
                ip: port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| ALL_ADDRESSES.into()),
                protocol: port.protocol.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "TCP".into()),
                port: port.host_port.filter(|port| *port > 0)?,
            })
        })
        .collect()
}

/// What others take together.
pub(super) struct Used<'a> {
    pods: i64,
    milli_cpu: i64,
    memory: i64,
    ephemeral_storage: i64,
    scalars: BTreeMap<&'a str, i64>,
    ports: Vec<&'a HostPort>,
}

impl<'a> Used<'a> {
    pub(super) fn of(others: impl IntoIterator<Item = &'a PodUse>) -> Self {
        let mut used = Self {
            pods: 0,
            milli_cpu: 0,
            memory: 0,
            ephemeral_storage: 0,
            scalars: BTreeMap::new(),
            ports: Vec::new(),
        };
        for other in others {
            used.pods += 1;
            used.milli_cpu = used.milli_cpu.saturating_add(other.milli_cpu);
            used.memory = used.memory.saturating_add(other.memory);
            used.ephemeral_storage = used.ephemeral_storage.saturating_add(other.ephemeral_storage);
            for (name, amount) in &other.scalars {
                let sum = used.scalars.entry(name).or_default();
                *sum = sum.saturating_add(*amount);
            }
            used.ports.extend(&other.ports);
        }
        used
    }

    pub(super) fn ports_clash(&self, wanted: &[HostPort]) -> bool {
        let clash = |a: &HostPort, b: &HostPort| {
            let same_address = a.ip == b.ip || a.ip == ALL_ADDRESSES || b.ip == ALL_ADDRESSES;
            a.port == b.port && a.protocol == b.protocol && same_address
        };
        wanted.iter().any(|wanted| self.ports.iter().any(|taken| clash(wanted, taken)))
    }
}

/// One resource of which a pod asks for more than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shortage<'a> {
    pub(super) name: &'a str,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Shortage<'_> {
    /// How much others would have to give back.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    fn rejection(&self) -> Rejection {
        let Self { name, requested, used, capacity } = self;
        Rejection::new(
            &format!("OutOf{name}"),
            format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        )
    }
}

/// Whether what the pod asks for is there.
pub(super) fn resources(
    wants: &PodUse,
    allocatable: &ResourceList,
    used: &Used<'_>,
) -> Result<(), Rejection> {
    shortages(wants, allocatable, used).first().map_or(Ok(()), |shortage| Err(shortage.rejection()))
}

/// Everything that is short, in the order of upstream's scheduler library: pods, CPU, memory, disk, others.
pub(super) fn shortages<'a>(
    wants: &'a PodUse,
    allocatable: &ResourceList,
    used: &Used<'_>,
) -> Vec<Shortage<'a>> {
    let whole = |name: &str| allocatable.get(name).map_or(0, |amount| amount.value());
    let cpu = allocatable.get("cpu").copied().map_or(0, Quantity::milli);
    let mut short = Vec::new();
    let mut look = |name: &'a str, requested: i64, used: i64, capacity: i64| {
        if requested != 0 && requested > capacity.saturating_sub(used) {
            short.push(Shortage { name, requested, used, capacity });
        }
    };
    if let Some(pods) = allocatable.get("pods") {
        look("pods", 1, used.pods, pods.value());
    }
    look("cpu", wants.milli_cpu, used.milli_cpu, cpu);
    look("memory", wants.memory, used.memory, whole("memory"));
    // Without local storage isolation the node has no such resource and nobody is held to it.
    if allocatable.contains_key("ephemeral-storage") {
        let capacity = whole("ephemeral-storage");
        look("ephemeral-storage", wants.ephemeral_storage, used.ephemeral_storage, capacity);
    }
    for (name, amount) in &wants.scalars {
        // An extended resource that the node does not have was somebody else's promise; it is not ours to break.
        if name.contains('/') && !allocatable.contains_key(name) {
            continue;
        }
        look(name, *amount, used.scalars.get(name.as_str()).copied().unwrap_or(0), whole(name));
    }
    short
}

/// Whether `spec.resources` says anything.
pub(super) fn has_pod_level_resources(pod: &Pod) -> bool {
    let Some(resources) = &pod.spec_ref().resources else { return false };
    [&resources.requests, &resources.limits].into_iter().flatten().any(|list| !list.is_empty())
}
