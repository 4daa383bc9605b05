//! `/spec/` and the old `/stats/` family: the machine and its cgroups in cAdvisor's words (`info/v1`), as upstream served
//! them until 1.20.
//!
//! Each cgroup has one reading here, the newest: what is older is nobody's to keep. Networks and file systems are not
//! measured for it, and `spec.has_network` and `spec.has_filesystem` say so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use jiff::Timestamp;
use mainstay_host::Host;
use mainstay_task::Lane;
use mainstay_types::{
    ContainerSample, FullName, HugePageSample, IoSample, NodeSnapshot, PodSamples, Sample, Samples,
    page_size_name,
};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq as _};

use crate::{
    answer::{self, Answer},
    call::{self, Call},
    route::App,
};

/// A query is shorter.
const MAX_BODY: usize = 64 << 10;
/// How many readings are sent where nobody says.
const DEFAULT_STATS: i64 = 60;

/// Looking at the machine asks every file system for its size.
static MACHINE: Lane = Lane::new(1);
/// One that does not say it is not waited for.
const MACHINE_PATIENCE: Duration = Duration::from_millis(500);
/// How long what was found of the machine holds; little of it ever changes.
const MACHINE_AGE: Duration = Duration::from_secs(60);

/// What `/spec/` said last.
#[derive(Debug, Default)]
pub(crate) struct KeptMachine(Mutex<Option<(Instant, Bytes)>>);

impl KeptMachine {
    fn get(&self, age: Duration) -> Option<Bytes> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(at, _)| at.elapsed() <= age).map(|(_, json)| json.clone())
    }
}

/// `/spec/`.
pub(crate) async fn spec(app: &App) -> Answer {
    if let Some(json) = app.machine.get(MACHINE_AGE) {
        return typed(json);
    }
    let host = app.host.clone();
    let looked = MACHINE.run(MACHINE_PATIENCE, move || {
        host.machine_info(Timestamp::now().to_string()).map_err(|error| error.to_string())
    });
    match looked.await.map_err(|error| error.to_string()).flatten().and_then(|info| indented_json(&info)) {
        Ok(json) => {
            let kept = (Instant::now(), json.clone());
            *app.machine.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
            typed(json)
        }
        // What was true a while ago is better than nothing, and says when it was; where there is nothing yet, the machine is
        // told of without its file systems.
        Err(_) => match app.machine.get(Duration::MAX) {
            Some(json) => typed(json),
            None => without_filesystems(app.host.clone()).await,
        },
    }
}

async fn without_filesystems(host: Host) -> Answer {
    let facts = tokio::task::spawn_blocking(move || {
        let facts = host.machine_facts(Timestamp::now().to_string()).map_err(|error| error.to_string());
        facts.and_then(|facts| indented_json(&facts))
    });
    match facts.await.map_err(|error| error.to_string()).flatten() {
        Ok(json) => typed(json),
        Err(error) => internal(&error),
    }
}

/// What the body of a request asks for.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Wish {
    #[serde(rename = "containerName")]
    container_name: String,
    num_stats: i64,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    subcontainers: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            container_name: "/".to_owned(),
            num_stats: DEFAULT_STATS,
            start: None,
            end: None,
            subcontainers: false,
        }
    }
}

impl Wish {
    /// An empty body wishes for nothing in particular.
    async fn read(body: Incoming) -> Result<Self, String> {
        let body = call::read(body, MAX_BODY).await.map_err(|error| error.to_string())?;
        if body.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    /// Whether this reading is among those that are asked for.
    fn takes(&self, at: Timestamp) -> bool {
        if self.start.is_none() && self.end.is_none() {
            return self.num_stats != 0;
        }
        self.start.is_none_or(|start| at >= start) && self.end.is_none_or(|end| at <= end)
    }

    /// The cgroup's path, from the root and without what is superfluous in it.
    fn path(&self) -> String {
        let parts = self.container_name.split('/').filter(|part| !part.is_empty() && *part != ".");
        let path: Vec<&str> = parts.collect();
        format!("/{}", path.join("/"))
    }
}

/// `/stats/container`.
pub(crate) async fn by_cgroup(app: &Arc<App>, call: Call<'_>) -> Answer {
    let wish = match Wish::read(call.body).await {
        Ok(wish) => wish,
        Err(problem) => return internal(&problem),
    };
    let samples = app.state.samples.borrow().clone();
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    indented(&below(&samples, &snapshot, &wish))
}

/// `/stats/` and the containers below it.
pub(crate) async fn serve(app: &Arc<App>, call: Call<'_>) -> Answer {
    let wish = match Wish::read(call.body).await {
        Ok(wish) => wish,
        Err(problem) => return internal(&problem),
    };
    let samples = app.state.samples.borrow().clone();
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let found = match *call.values {
        [] => match Known::all(&samples, &snapshot).remove("/") {
            Some(root) => Some(root),
            None => return internal("the root cgroup has not been read yet"),
        },
        [pod, container] => of_container(&samples, &snapshot, ("default", pod), None, container),
        [namespace, pod, uid, container] => {
            of_container(&samples, &snapshot, (namespace, pod), Some(uid), container)
        }
        _ => None,
    };
    match found {
        Some(known) => indented(&known.info(&wish, Vec::new())),
        None => answer::plain(StatusCode::NOT_FOUND, "no matching container"),
    }
}

fn internal(error: &str) -> Answer {
    answer::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
}

/// JSON as upstream's services write it: indented by one space, without a newline at its end.
fn indented(value: &impl Serialize) -> Answer {
    match indented_json(value) {
        Ok(json) => typed(json),
        Err(error) => internal(&error),
    }
}

fn indented_json(value: &impl Serialize) -> Result<Bytes, String> {
    let mut json = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut writer = serde_json::Serializer::with_formatter(&mut json, formatter);
    value.serialize(&mut writer).map_err(|error| error.to_string())?;
    Ok(json.into())
}

fn typed(json: Bytes) -> Answer {
    let mut answer = answer::json(json);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A cgroup of which there is a reading.
struct Known<'a> {
    path: &'a str,
    sample: &'a Sample,
    whose: Whose<'a>,
}

#[derive(Clone, Copy)]
enum Whose<'a> {
    Machine,
    Pod(&'a str, &'a PodSamples),
    Container(&'a str, &'a PodSamples, &'a ContainerSample, Option<&'a str>),
}

impl<'a> Known<'a> {
    /// All of them by their path.
    fn all(samples: &'a Samples, snapshot: &'a NodeSnapshot) -> BTreeMap<&'a str, Known<'a>> {
        let root = samples.root.iter().map(|sample| Self { path: "/", sample, whose: Whose::Machine });
        let pods = samples.pods.iter().flat_map(|(uid, pod)| {
            let whole = Self { path: &pod.cgroup, sample: &pod.pod, whose: Whose::Pod(uid.as_str(), pod) };
            let containers = pod.containers.iter().map(move |container| Self {
                path: &container.cgroup,
                sample: &container.sample,
                whose: Whose::Container(
                    uid.as_str(),
                    pod,
                    container,
                    image(snapshot, uid.as_str(), container),
                ),
            });
            std::iter::once(whole).chain(containers)
        });
        root.chain(pods).map(|known| (known.path, known)).collect()
    }

    fn info(&self, wish: &Wish, subcontainers: Vec<&'a str>) -> ContainerInfo<'a> {
        let stats = if wish.takes(self.sample.at) { vec![Stats(self.sample)] } else { Vec::new() };
        let (id, created, labels, image) = match self.whose {
            Whose::Machine => (None, None, BTreeMap::new(), None),
            Whose::Pod(uid, pod) => (None, None, labels(uid, &pod.full_name, None), None),
            Whose::Container(uid, pod, container, image) => (
                Some(container.id.as_str()),
                Some(container.created_at),
                labels(uid, &pod.full_name, Some(container.name.as_str())),
                image,
            ),
        };
        ContainerInfo {
            id,
            name: self.path,
            aliases: id.into_iter().chain(id.map(|_| self.path)).collect(),
            subcontainers: subcontainers.into_iter().map(|name| Reference { name }).collect(),
            spec: Spec::of(self.sample, created, labels, image),
            stats,
        }
    }
}

/// The cgroup that was named and, if wished for, those below it.
fn below<'a>(
    samples: &'a Samples,
    snapshot: &'a NodeSnapshot,
    wish: &Wish,
) -> BTreeMap<&'a str, ContainerInfo<'a>> {
    let path = wish.path();
    let all = Known::all(samples, snapshot);
    let is_below = |found: &str, above: &str| {
        above == "/" && found != "/" || found.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
    };
    let chosen = all
        .values()
        .filter(|known| known.path == path || (wish.subcontainers && is_below(known.path, &path)));
    chosen
        .map(|known| {
            // The nearest that are known: what lies between is not read.
            let under: Vec<&str> = all.keys().copied().filter(|it| is_below(it, known.path)).collect();
            let nearest = under
                .iter()
                .copied()
                .filter(|it| !under.iter().any(|between| is_below(it, between)))
                .collect();
            (known.path, known.info(wish, nearest))
        })
        .collect()
}

fn of_container<'a>(
    samples: &'a Samples,
    snapshot: &'a NodeSnapshot,
    (namespace, pod): (&str, &str),
    uid: Option<&str>,
    container: &str,
) -> Option<Known<'a>> {
    let view = snapshot.by_name(&FullName::new(namespace, pod))?;
    let uid = view.uid.as_str() == uid.unwrap_or(view.uid.as_str());
    let (uid, pod) = samples.pods.get_key_value(&view.uid).filter(|_| uid)?;
    let found = pod.containers.iter().find(|it| it.name.as_str() == container)?;
    let whose = Whose::Container(uid.as_str(), pod, found, image(snapshot, uid.as_str(), found));
    Some(Known { path: &found.cgroup, sample: &found.sample, whose })
}

/// The image of a container, by the runtime's word.
fn image<'a>(snapshot: &'a NodeSnapshot, uid: &str, container: &ContainerSample) -> Option<&'a str> {
    let pod = snapshot.observed.pods.get(uid)?;
    let found = pod.containers.iter().find(|it| it.id == container.id)?;
    Some(&found.image)
}

/// The labels that runtimes keep for Kubernetes.
fn labels<'a>(
    uid: &'a str,
    full_name: &'a FullName,
    container: Option<&'a str>,
) -> BTreeMap<&'static str, &'a str> {
    let container = container.map(|name| ("io.kubernetes.container.name", name));
    let pod = [
        ("io.kubernetes.pod.name", &*full_name.name),
        ("io.kubernetes.pod.namespace", &*full_name.namespace),
        ("io.kubernetes.pod.uid", uid),
    ];
    pod.into_iter().chain(container).collect()
}

#[derive(Serialize)]
struct ContainerInfo<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    aliases: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subcontainers: Vec<Reference<'a>>,
    spec: Spec<'a>,
    stats: Vec<Stats<'a>>,
}

#[derive(Serialize)]
struct Reference<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Spec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_time: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'static str, &'a str>,
    has_cpu: bool,
    cpu: CpuSpec,
    has_memory: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemorySpec>,
    has_hugetlb: bool,
    has_network: bool,
    has_processes: bool,
    processes: ProcessSpec,
    has_filesystem: bool,
    has_diskio: bool,
    has_custom_metrics: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
}

#[derive(Serialize)]
struct CpuSpec {
    limit: u64,
    max_limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    period: u64,
}

#[derive(Serialize)]
struct MemorySpec {
    limit: u64,
    reservation: u64,
    swap_limit: u64,
}

#[derive(Serialize)]
struct ProcessSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
}

impl<'a> Spec<'a> {
    fn of(
        sample: &Sample,
        created: Option<Timestamp>,
        labels: BTreeMap<&'static str, &'a str>,
        image: Option<&'a str>,
    ) -> Self {
        let limits = &sample.limits;
        // cAdvisor's word for no limit is the largest number.
        let or_all = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        Self {
            creation_time: created.map(|at| at.to_string()),
            labels,
            has_cpu: true,
            cpu: CpuSpec {
                limit: limits.cpu_shares,
                max_limit: 0,
                quota: limits.cpu_quota_us,
                period: limits.cpu_period_us,
            },
            has_memory: sample.memory.is_some(),
            memory: sample.memory.map(|_| MemorySpec {
                limit: or_all(limits.memory),
                reservation: limits.memory_reservation,
                swap_limit: or_all(limits.swap),
            }),
            has_hugetlb: sample.huge_pages.is_some(),
            has_network: false,
            has_processes: true,
            processes: ProcessSpec { limit: sample.pids.max },
            has_filesystem: false,
            has_diskio: true,
            has_custom_metrics: false,
            image,
        }
    }
}

/// One reading.
struct Stats<'a>(&'a Sample);

#[derive(Serialize)]
struct StatsJson<'a> {
    timestamp: String,
    cpu: CpuStats,
    diskio: DiskStats<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStats>,
    /// By the size of a page.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hugetlb: BTreeMap<String, HugePageStats>,
    processes: ProcessStats,
}

#[derive(Serialize)]
struct CpuStats {
    usage: CpuUsage,
    cfs: Cfs,
    load_average: i32,
}

#[derive(Serialize)]
struct CpuUsage {
    total: u64,
    user: u64,
    system: u64,
}

#[derive(Serialize)]
struct Cfs {
    periods: u64,
    throttled_periods: u64,
    throttled_time: u64,
}

#[derive(Serialize)]
struct DiskStats<'a> {
    #[serde(skip_serializing_if = "Transfers::is_empty")]
    io_service_bytes: Transfers<'a>,
    #[serde(skip_serializing_if = "Transfers::is_empty")]
    io_serviced: Transfers<'a>,
}

/// What went to and from each device: bytes, or how often.
struct Transfers<'a> {
    devices: &'a [IoSample],
    count: fn(&IoSample) -> (u64, u64),
}

#[derive(Serialize)]
struct PerDevice {
    device: &'static str,
    major: u32,
    minor: u32,
    stats: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct MemoryStats {
    usage: u64,
    max_usage: u64,
    cache: u64,
    rss: u64,
    swap: u64,
    mapped_file: u64,
    working_set: u64,
    failcnt: u64,
    container_data: Faults,
    hierarchical_data: Faults,
}

/// cAdvisor's `HugetlbStats`.
#[derive(Serialize)]
struct HugePageStats {
    #[serde(skip_serializing_if = "is_zero")]
    usage: u64,
    #[serde(skip_serializing_if = "is_zero")]
    max_usage: u64,
    failcnt: u64,
}

impl From<&HugePageSample> for HugePageStats {
    fn from(pages: &HugePageSample) -> Self {
        Self { usage: pages.usage, max_usage: pages.max_usage.unwrap_or_default(), failcnt: pages.failures }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[derive(Clone, Copy, Serialize)]
struct Faults {
    pgfault: u64,
    pgmajfault: u64,
}

#[derive(Serialize)]
struct ProcessStats {
    threads_current: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads_max: Option<u64>,
}

impl Serialize for Stats<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sample = self.0;
        let transfers = |count| Transfers { devices: &sample.io, count };
        let stats = StatsJson {
            timestamp: sample.at.to_string(),
            cpu: CpuStats {
                usage: CpuUsage {
                    total: sample.cpu.usage_ns,
                    user: sample.cpu.user_ns,
                    system: sample.cpu.system_ns,
                },
                cfs: Cfs {
                    periods: sample.cpu.periods,
                    throttled_periods: sample.cpu.throttled_periods,
                    throttled_time: sample.cpu.throttled_ns,
                },
                load_average: 0,
            },
            diskio: DiskStats {
                io_service_bytes: transfers(|io| (io.read_bytes, io.written_bytes)),
                io_serviced: transfers(|io| (io.reads, io.writes)),
            },
            memory: sample.memory.map(|memory| {
                let faults = Faults { pgfault: memory.page_faults, pgmajfault: memory.major_page_faults };
                MemoryStats {
                    usage: memory.usage,
                    max_usage: memory.max_usage,
                    cache: memory.cache,
                    rss: memory.rss,
                    swap: memory.swap,
                    mapped_file: memory.mapped_file,
                    working_set: memory.working_set,
                    failcnt: memory.fail_count,
                    container_data: faults,
                    hierarchical_data: faults,
                }
            }),
            hugetlb: sample
                .huge_pages
                .iter()
                .flat_map(|all| all.iter())
                .map(|pages| (page_size_name(pages.page_bytes), pages.into()))
                .collect(),
            processes: ProcessStats { threads_current: sample.pids.current, threads_max: sample.pids.max },
        };
        stats.serialize(serializer)
    }
}

impl Transfers<'_> {
    fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}

impl Serialize for Transfers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.devices.len()))?;
        for io in self.devices {
            let (read, written) = (self.count)(io);
            list.serialize_element(&PerDevice {
                // Its name is in `/spec/`, by these numbers.
                device: "",
                major: io.major,
                minor: io.minor,
                stats: [("Read", read), ("Write", written), ("Total", read.saturating_add(written))].into(),
            })?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests;
