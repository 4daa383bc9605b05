//! The JSON: fields and their order are upstream's (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`).

use jiff::Timestamp;
use mainstay_types::{
    ContainerSample, FsReading, NetworkSample, PodDisk, PodSamples, PodUid, Pressure, Sample, SliceRole,
    SliceSample, Traffic, VolumeReading, to_seconds,
};
use serde::{Serialize, Serializer};

use super::Parts;

/// The interface whose numbers stand for the whole, as upstream.
const DEFAULT_INTERFACE: &str = "eth0";
/// Upstream's numbers of pressure are nanoseconds by its API's word.
const NANOS_PER_MICRO: u64 = 1000;

/// Makes the text: indented by one space, without a newline at its end, as upstream's services write it.
pub(super) fn json(parts: &Parts<'_>, short: bool) -> Vec<u8> {
    let mut json = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut writer = serde_json::Serializer::with_formatter(&mut json, formatter);
    // Only a value whose keys are no strings could fail.
    Summary::of(parts, short).serialize(&mut writer).ok();
    json
}

/// A time in whole seconds.
#[derive(Clone, Copy)]
struct Time(Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&to_seconds(self.0))
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    node: Node<'a>,
    pods: Vec<Pod<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node_name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system_containers: Vec<Container<'a>>,
    start_time: Time,
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<Runtime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<Rlimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pod<'a> {
    pod_ref: PodRef<'a>,
    start_time: Time,
    containers: Vec<Container<'a>>,
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume: Vec<Volume<'a>>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
}

#[derive(Serialize)]
struct PodRef<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    name: &'a str,
    start_time: Time,
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
}

/// What a cgroup says.
#[derive(Serialize)]
struct Usage {
    cpu: Cpu,
    memory: Memory,
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<Io>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    usage_core_nano_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_bytes: Option<u64>,
    working_set_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Serialize)]
struct Io {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Serialize)]
struct Psi {
    full: PsiLine,
    some: PsiLine,
}

#[derive(Serialize)]
struct PsiLine {
    total: u64,
    avg10: f64,
    avg60: f64,
    avg300: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Swap {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_available_bytes: Option<u64>,
    swap_usage_bytes: u64,
}

#[derive(Serialize)]
struct Network<'a> {
    time: Time,
    name: &'a str,
    #[serde(flatten)]
    default: Option<Counts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface<'a>>,
}

#[derive(Serialize)]
struct Interface<'a> {
    name: &'a str,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    rx_bytes: u64,
    rx_errors: u64,
    tx_bytes: u64,
    tx_errors: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Fs {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_used: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(flatten)]
    fs: Fs,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pvc_ref: Option<ClaimRef<'a>>,
}

#[derive(Serialize)]
struct ClaimRef<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    #[serde(skip_serializing_if = "Option::is_none")]
    image_fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_fs: Option<Fs>,
}

#[derive(Serialize)]
struct Rlimit {
    time: Time,
    maxpid: u64,
    curproc: u64,
}

#[derive(Serialize)]
struct ProcessStats {
    process_count: u64,
}

impl<'a> Summary<'a> {
    fn of(parts: &Parts<'a>, short: bool) -> Self {
        let mut pods: Vec<_> = parts.samples.pods.iter().collect();
        pods.sort_by(|(a_uid, a), (b_uid, b)| (&a.full_name, *a_uid).cmp(&(&b.full_name, *b_uid)));
        let pods = pods.into_iter().filter(|(_, pod)| !pod.containers.is_empty());
        Self {
            node: Node::of(parts, short),
            pods: pods.map(|(uid, pod)| Pod::of(uid, pod, parts, short)).collect(),
        }
    }
}

impl<'a> Node<'a> {
    fn of(parts: &Parts<'a>, short: bool) -> Self {
        let (samples, disks) = (parts.samples, parts.disks);
        let machine = Sample::default();
        let root = samples.root.as_deref().unwrap_or(&machine);
        let (memory, huge_pages) = parts.memory;
        let mut usage = Usage::of(root, short);
        // The whole machine is its limit, less what was set aside; the cgroup itself has none.
        let set = usage.memory.working_set_bytes;
        usage.memory.available_bytes = Some(memory.saturating_sub(set).saturating_sub(huge_pages));
        let slices = samples.slices.iter();
        let full = |fs: Option<FsReading>| fs.filter(|_| !short).map(|fs| Fs::of(&fs));
        let runtime = Runtime { image_fs: full(disks.images), container_fs: full(disks.layers) };
        Self {
            node_name: parts.node_name,
            system_containers: slices.filter_map(|slice| Container::of_slice(slice, parts, short)).collect(),
            start_time: Time(if short { root.made_at } else { parts.booted }),
            usage,
            network: samples.network.as_deref().filter(|_| !short).map(Network::of),
            fs: full(disks.node),
            runtime: (runtime.image_fs.is_some() || runtime.container_fs.is_some()).then_some(runtime),
            rlimit: samples.tasks.filter(|_| !short).map(|tasks| Rlimit {
                time: Time(tasks.at),
                maxpid: tasks.max,
                curproc: tasks.current,
            }),
            swap: Swap::of(root).map(|swap| Swap {
                swap_available_bytes: Some(parts.swap_bytes.saturating_sub(swap.swap_usage_bytes)),
                ..swap
            }),
        }
    }
}

impl<'a> Pod<'a> {
    fn of(uid: &'a PodUid, pod: &'a PodSamples, parts: &Parts<'a>, short: bool) -> Self {
        let disk = parts.disks.pods.get(uid).filter(|_| !short);
        let created = pod.containers.iter().map(|container| container.created_at).min();
        let started = pod.sandbox.as_ref().map(|sandbox| sandbox.created_at).or(created);
        let namespace: &str = &pod.full_name.namespace;
        Self {
            pod_ref: PodRef { name: &pod.full_name.name, namespace, uid: uid.as_str() },
            start_time: Time(started.unwrap_or_default()),
            containers: pod
                .containers
                .iter()
                .map(|it| Container::of(it, disk.map(|it| &**it), short))
                .collect(),
            usage: Usage::of(&pod.pod, short),
            network: pod.network.as_deref().filter(|_| !short).map(Network::of),
            volume: disk
                .into_iter()
                .flat_map(|disk| disk.volumes.iter())
                .map(|volume| Volume::of(volume, namespace))
                .collect(),
            ephemeral_storage: disk.map(|disk| Fs::of(&disk.total)),
            process_stats: (!short).then(|| ProcessStats {
                process_count: pod.containers.iter().map(|it| it.sample.processes.count).sum(),
            }),
            swap: Swap::of(&pod.pod),
        }
    }
}

impl<'a> Container<'a> {
    fn of(container: &'a ContainerSample, disk: Option<&PodDisk>, short: bool) -> Self {
        let disk = disk.and_then(|disk| disk.containers.iter().find(|it| it.id == container.id));
        Self {
            name: container.name.as_str(),
            start_time: Time(container.created_at),
            usage: Usage::of(&container.sample, short),
            rootfs: disk.and_then(|disk| disk.layer.as_ref()).map(Fs::of),
            logs: disk.and_then(|disk| disk.logs.as_ref()).map(Fs::of),
            swap: Swap::of(&container.sample),
        }
    }

    fn of_slice(slice: &'a SliceSample, parts: &Parts<'_>, short: bool) -> Option<Self> {
        let (name, started) = match slice.role {
            SliceRole::Pods => ("pods", slice.sample.made_at),
            SliceRole::Kubelet => ("kubelet", parts.process_start),
            SliceRole::Runtime => ("runtime", slice.sample.made_at),
            SliceRole::Misc => ("misc", slice.sample.made_at),
            SliceRole::Class | SliceRole::Service => return None,
        };
        Some(Self {
            name,
            start_time: Time(started),
            usage: Usage::of(&slice.sample, short),
            rootfs: None,
            logs: None,
            swap: Swap::of(&slice.sample),
        })
    }
}

impl Usage {
    fn of(sample: &Sample, short: bool) -> Self {
        let time = Time(sample.at);
        let pressure = sample.pressure.as_ref();
        let memory = match &sample.memory {
            Some(memory) => Memory {
                time,
                // Never below nothing: what is used may be over the limit for a moment.
                available_bytes: sample.limits.memory.map(|limit| limit.saturating_sub(memory.working_set)),
                usage_bytes: Some(memory.usage),
                working_set_bytes: memory.working_set,
                rss_bytes: Some(memory.rss),
                page_faults: Some(memory.page_faults),
                major_page_faults: Some(memory.major_page_faults),
                psi: pressure.map(|it| Psi::of(&it.memory)),
            },
            None => Memory {
                time,
                available_bytes: None,
                usage_bytes: None,
                working_set_bytes: 0,
                rss_bytes: None,
                page_faults: None,
                major_page_faults: None,
                psi: None,
            },
        };
        Self {
            cpu: Cpu {
                time,
                usage_nano_cores: sample.nano_cores,
                usage_core_nano_seconds: sample.cpu.usage_ns,
                psi: pressure.map(|it| Psi::of(&it.cpu)),
            },
            memory,
            io: (!short).then(|| Io { time, psi: pressure.map(|it| Psi::of(&it.io)) }),
        }
    }
}

impl Psi {
    fn of(pressure: &Pressure) -> Self {
        let line = |line: &mainstay_types::PressureLine| PsiLine {
            total: line.total_us.saturating_mul(NANOS_PER_MICRO),
            avg10: line.avg10,
            avg60: line.avg60,
            avg300: line.avg300,
        };
        Self { full: line(&pressure.full), some: line(&pressure.some) }
    }
}

impl Swap {
    fn of(sample: &Sample) -> Option<Self> {
        let memory = sample.memory.as_ref()?;
        Some(Self {
            time: Time(sample.at),
            swap_available_bytes: sample.limits.swap.map(|limit| limit.saturating_sub(memory.swap)),
            swap_usage_bytes: memory.swap,
        })
    }
}

impl<'a> Network<'a> {
    fn of(network: &'a NetworkSample) -> Self {
        let default = network.interfaces.iter().find(|interface| interface.name == DEFAULT_INTERFACE);
        Self {
            time: Time(network.at),
            name: default.map_or("", |interface| &interface.name),
            default: default.map(|interface| Counts::of(&interface.received, &interface.sent)),
            interfaces: network
                .interfaces
                .iter()
                .map(|it| Interface { name: &it.name, counts: Counts::of(&it.received, &it.sent) })
                .collect(),
        }
    }
}

impl Counts {
    const fn of(received: &Traffic, sent: &Traffic) -> Self {
        Self {
            rx_bytes: received.bytes,
            rx_errors: received.errors,
            tx_bytes: sent.bytes,
            tx_errors: sent.errors,
        }
    }
}

impl Fs {
    fn of(reading: &FsReading) -> Self {
        let size = reading.size;
        Self {
            time: Time(reading.at),
            available_bytes: size.map(|size| size.available_bytes),
            capacity_bytes: size.map(|size| size.capacity_bytes),
            used_bytes: reading.used_bytes,
            inodes_free: size.map(|size| size.inodes_free),
            inodes: size.map(|size| size.inodes),
            inodes_used: reading.inodes_used,
        }
    }
}

impl<'a> Volume<'a> {
    fn of(volume: &'a VolumeReading, namespace: &'a str) -> Self {
        Self {
            fs: Fs::of(&volume.reading),
            name: &volume.name,
            pvc_ref: volume.claim.as_deref().map(|name| ClaimRef { name, namespace }),
        }
    }
}
