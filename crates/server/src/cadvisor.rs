//! `/metrics/cadvisor`: every cgroup in cAdvisor's families.
//!
//! The text is never whole in memory: it is made from the newest readings, a piece at a time, as the client takes it, into a
//! few buffers that are filled again once they are sent. What the labels of a cgroup are is written once for all its samples.
//! Compressed, it is small, and is kept for whoever asks before the next reading.

mod families;

use std::{
    borrow::Cow,
    io::Write as _,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::StatusCode;
use jiff::Timestamp;
use mainstay_host::Host;
use mainstay_types::{
    DeviceReading, DiskWork, Filesystems, HugePageSample, InterfaceSample, IoSample, MemorySample,
    NetworkSample, PressureLine, Pressures, Sample, Samples, page_size_name,
};

use crate::{
    answer::{self, Answer},
    body::Body,
    call::Call,
    choice::FamilyChoice,
    exposition::{Exposition, Kind, float, labels},
    metrics,
    representation::{Panicked, compressing},
    request::takes_gzip,
    route::App,
};

use families::whole;
pub(crate) use families::{FAMILIES, Family};

/// How many bytes are written before what is there is sent. The connection takes some pieces ahead of its client; together they
/// fit into a core's cache, and one is a record of TLS.
const PIECE: usize = 16 << 10;
/// And what the last cgroup may add to them, as a rule.
const MORE: usize = 2 << 10;

/// Of readings, of disks, and whether the machine is known.
type Version = (u64, u64, bool);

/// What is kept between requests.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    compressed: Mutex<Option<(Version, Compressed)>>,
    machine: OnceLock<Arc<Machine>>,
}

/// Made once, however many ask for it meanwhile.
type Compressed = Arc<tokio::sync::OnceCell<Bytes>>;

/// What does not change while mainstay runs.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// The families before those of cgroups, and those after them.
    before: String,
    after: String,
    memory_bytes: u64,
}

/// `/metrics/cadvisor`.
pub(crate) async fn serve(app: &Arc<App>, call: Call<'_>) -> Answer {
    // Nobody waits here for what is not known yet: what is there is told.
    let machine = app.cadvisor.machine.get().cloned().unwrap_or_default();
    let names: Vec<String> = call.query.all("name[]").map(str::to_owned).collect();
    let samples = app.state.samples.borrow().clone();
    let disks = app.state.disks.found.borrow().clone();
    let families = Arc::clone(&app.families);
    let source = Source { samples, disks, machine, families, names };
    let mut answer = if takes_gzip(call.headers) {
        match app.cadvisor.compressed(source).await {
            Ok(bytes) => answer::compressed(answer::plain(StatusCode::OK, bytes)),
            Err(_) => return answer::not_compressed(),
        }
    } else {
        answer::untyped(
            StatusCode::OK,
            Body::produced(|pieces| async move {
                let mut words = String::new();
                let mut work = Writer::new(&source, &mut words);
                while let Some(piece) = work.next() {
                    if pieces.send(piece).await.is_err() {
                        return;
                    }
                }
            }),
        )
    };
    metrics::head(app, &mut answer);
    answer
}

impl Kept {
    /// Looks at the machine, once. Blocks, on the kernel's own files.
    pub(crate) fn look(&self, host: &Host) {
        self.machine.get_or_init(|| Arc::new(Machine::of(host)));
    }

    async fn compressed(&self, source: Source) -> Result<Bytes, Panicked> {
        if !source.names.is_empty() {
            return compress(source).await;
        }
        let machine = !source.machine.after.is_empty();
        let version = (source.samples.generation, source.disks.generation, machine);
        let page = {
            let mut newest = self.compressed.lock().unwrap_or_else(PoisonError::into_inner);
            match newest.as_ref().filter(|(of, _)| *of == version) {
                Some((_, page)) => Arc::clone(page),
                None => Arc::clone(&newest.insert((version, Compressed::default())).1),
            }
        };
        page.get_or_try_init(|| compress(source)).await.cloned()
    }
}

async fn compress(source: Source) -> Result<Bytes, Panicked> {
    compressing(move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let mut words = String::new();
        let mut work = Writer::new(&source, &mut words);
        while let Some(piece) = work.next() {
            // Writing to memory cannot fail.
            encoder.write_all(&piece).ok();
        }
        Bytes::from(encoder.finish().unwrap_or_default())
    })
    .await
}

/// What a text is made from.
struct Source {
    samples: Arc<Samples>,
    disks: Arc<Filesystems>,
    machine: Arc<Machine>,
    families: Arc<FamilyChoice>,
    /// The families that are asked for; none is all.
    names: Vec<String>,
}

impl Source {
    fn takes(&self, name: &str) -> bool {
        self.families.takes(name) && (self.names.is_empty() || self.names.iter().any(|wanted| wanted == name))
    }
}

/// Makes the text piece by piece.
struct Writer<'a> {
    source: &'a Source,
    rows: Vec<Row<'a>>,
    text: Text,
    /// The family and the row that come next.
    at: (usize, usize),
    error_told: bool,
    ended: bool,
}

/// A cgroup.
pub(crate) struct Row<'a> {
    /// `{container="…",id="…",image="…",name="…",namespace="…",pod="…"} `: the six that every sample has.
    labels: &'a str,
    /// Where others come in between, so that they are in order: after `container`, `image`, `namespace` and at the end.
    slots: [usize; 4],
    sample: &'a Sample,
    /// ` 1700000000000`, and the end of the line.
    stamp: &'a str,
    created: f64,
    /// 0 is none.
    memory_limit: u64,
    network: Option<&'a NetworkSample>,
    /// Of the machine only.
    devices: &'a [DeviceReading],
    disks: &'a std::collections::HashMap<(u32, u32), Arc<str>>,
    /// A process of its own began it: a container, a sandbox or the machine.
    begun_by_process: bool,
    /// A pod as a whole.
    is_pod: bool,
}

/// A row whose words have no place yet.
struct Draft<'a> {
    labels: String,
    stamp: String,
    row: Row<'a>,
}

/// What a row is of.
#[derive(Clone, Copy)]
struct Whose<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    /// Also by the labels that pods and containers had once.
    old_names: bool,
}

impl<'a> Draft<'a> {
    fn new(whose: &Whose<'_>, sample: &'a Sample, samples: &'a Samples) -> Self {
        let own = [("container", whose.container), ("container_name", whose.container)];
        let mut text = labels(own.get(..if whose.old_names { 2 } else { 1 }).unwrap_or_default());
        text.pop();
        let mut slots = [text.len(), 0, 0, 0];
        let mut add = |pairs: &[(&str, &str)]| {
            let more = labels(pairs);
            text.push(',');
            text.push_str(more.trim_start_matches('{').strip_suffix('}').unwrap_or_default());
            text.len()
        };
        slots[1] = add(&[("id", whose.id), ("image", whose.image)]);
        slots[2] = add(&[("name", whose.name), ("namespace", whose.namespace)]);
        slots[3] = add(&[("pod", whose.pod)]);
        if whose.old_names {
            slots[3] = add(&[("pod_name", whose.pod)]);
        }
        text.push_str("} ");
        let row = Row {
            labels: "",
            slots,
            sample,
            stamp: "",
            created: whole(sample.made_at),
            memory_limit: sample.limits.memory.unwrap_or(0),
            network: None,
            devices: &[],
            disks: &samples.disks,
            begun_by_process: false,
            is_pod: false,
        };
        Self { labels: text, stamp: stamp(sample.at), row }
    }

    fn with(mut self, change: impl FnOnce(&mut Row<'a>)) -> Self {
        change(&mut self.row);
        self
    }
}

impl Row<'_> {
    fn memory(&self, value: impl Fn(&MemorySample) -> u64) -> Option<f64> {
        self.sample.memory.as_ref().map(|memory| number(value(memory)))
    }

    fn pressure(&self, line: impl Fn(&Pressures) -> PressureLine) -> Option<f64> {
        self.sample.pressure.as_ref().map(|it| number(line(it).total_us) / 1e6)
    }
}

/// All cgroups, in the order of their labels. Their words are put side by side into `words`: each family goes through all of them,
/// and with many pods they are in a core's cache only if little lies between them.
fn rows<'a>(source: &'a Source, words: &'a mut String) -> Vec<Row<'a>> {
    let mut drafts = drafts(source);
    drafts.sort_unstable_by(|a, b| a.labels.cmp(&b.labels));
    words.reserve_exact(drafts.iter().map(|it| it.labels.len() + it.stamp.len()).sum());
    for draft in &drafts {
        words.push_str(&draft.labels);
        words.push_str(&draft.stamp);
    }
    let mut rest: &'a str = words;
    let mut next = |length: usize| {
        let (word, more) = rest.split_at_checked(length).unwrap_or_default();
        rest = more;
        word
    };
    drafts
        .into_iter()
        .map(|Draft { labels, stamp, row }| Row {
            labels: next(labels.len()),
            stamp: next(stamp.len()),
            ..row
        })
        .collect()
}

fn drafts<'a>(source: &'a Source) -> Vec<Draft<'a>> {
    let samples = &*source.samples;
    let Some(root) = &samples.root else { return Vec::new() };
    let old_names = source.families.old_names;
    let nobody = Whose { container: "", id: "/", image: "", name: "", namespace: "", pod: "", old_names };
    let mut rows = Vec::with_capacity(4 + samples.pods.len() * 3);
    rows.push(Draft::new(&nobody, root, samples).with(|row| {
        row.network = samples.network.as_deref();
        row.devices = &source.disks.devices;
        row.memory_limit = source.machine.memory_bytes.max(row.memory_limit);
        row.begun_by_process = true;
    }));
    let mut paths: Vec<&str> = Vec::new();
    for slice in &samples.slices {
        // Two roles may have one cgroup.
        if !paths.contains(&&*slice.cgroup) {
            paths.push(&slice.cgroup);
            rows.push(Draft::new(&Whose { id: &slice.cgroup, ..nobody }, &slice.sample, samples));
        }
    }
    for pod in samples.pods.values() {
        let whose = Whose {
            namespace: &pod.full_name.namespace,
            pod: &pod.full_name.name,
            id: &pod.cgroup,
            ..nobody
        };
        rows.push(Draft::new(&whose, &pod.pod, samples).with(|row| row.is_pod = true));
        if let Some((sandbox, (cgroup, sample))) =
            pod.sandbox.as_ref().and_then(|sandbox| Some((sandbox, sandbox.cgroup.as_ref()?)))
        {
            let whose =
                Whose { id: cgroup, image: &samples.sandbox_image, name: sandbox.id.as_str(), ..whose };
            rows.push(Draft::new(&whose, sample, samples).with(|row| {
                row.network = pod.network.as_deref();
                row.created = whole(sandbox.created_at);
                row.begun_by_process = true;
            }));
        }
        for container in &pod.containers {
            let whose = Whose {
                container: container.name.as_str(),
                id: &container.cgroup,
                image: &container.image,
                name: container.id.as_str(),
                ..whose
            };
            rows.push(Draft::new(&whose, &container.sample, samples).with(|row| {
                row.created = whole(container.created_at);
                row.begun_by_process = true;
            }));
        }
    }
    rows
}

impl<'a> Writer<'a> {
    /// Its rows' words are in `words`.
    fn new(source: &'a Source, words: &'a mut String) -> Self {
        Self {
            source,
            rows: rows(source, words),
            text: Text { text: String::with_capacity(PIECE + MORE), ..Text::default() },
            at: (0, 0),
            error_told: false,
            ended: false,
        }
    }

    /// The next piece; `None` after the last.
    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if self.at == (0, 0) {
            self.text.push_families(&self.source.machine.before, self.source);
        }
        while let Some(family) = FAMILIES.get(self.at.0) {
            self.push_error(Some(family.name));
            let rows = self.rows.get(self.at.1..).unwrap_or_default();
            if rows.is_empty() || !self.source.takes(family.name) {
                self.at = (self.at.0 + 1, 0);
                self.text.begun = false;
                continue;
            }
            self.text.family = Some(family);
            for row in rows {
                (family.write)(row, &mut self.text);
                self.at.1 += 1;
                if self.text.text.len() >= PIECE {
                    return Some(self.text.take());
                }
            }
        }
        self.ended = true;
        self.push_error(None);
        self.text.push_families(&self.source.machine.after, self.source);
        Some(self.text.take())
    }
}

impl Writer<'_> {
    /// Whether anything could be read, which has no labels, in its place before the family `next`.
    fn push_error(&mut self, next: Option<&str>) {
        const NAME: &str = "container_scrape_error";
        if self.error_told || next.is_some_and(|next| next < NAME) {
            return;
        }
        self.error_told = true;
        let mut out = Exposition::default();
        out.family(NAME, "1 if there was an error while getting container metrics, 0 otherwise", Kind::Gauge);
        out.sample(NAME, &[], u8::from(self.rows.is_empty()));
        self.text.push_families(&out.finish(), self.source);
    }
}

/// What pieces were written into and are sent: fresh memory for each would cost more than what is written into it.
#[derive(Default)]
struct Buffers(Mutex<Vec<String>>);

impl Buffers {
    fn take(&self) -> String {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        used.unwrap_or_else(|| String::with_capacity(PIECE + MORE))
    }
}

/// A piece that is being sent.
struct Piece {
    text: String,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        self.home.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// A text in the making.
#[derive(Default)]
pub(crate) struct Text {
    text: String,
    buffers: Arc<Buffers>,
    family: Option<&'static Family>,
    /// The family's HELP and TYPE are there.
    begun: bool,
}

impl Text {
    fn take(&mut self) -> Bytes {
        let next = self.buffers.take();
        let text = std::mem::replace(&mut self.text, next);
        Bytes::from_owner(Piece { text, home: Arc::clone(&self.buffers) })
    }

    /// Families that are written already, as far as they are asked for.
    fn push_families(&mut self, text: &str, source: &Source) {
        let mut takes = false;
        for line in text.split_inclusive('\n') {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                takes = source.takes(rest.split(' ').next().unwrap_or_default());
            }
            if takes {
                self.text.push_str(line);
            }
        }
    }

    /// A sample with further labels, each where the order wants it.
    fn put(&mut self, row: &Row<'_>, more: [&str; 4], value: f64) {
        self.put_at(row, more, value, row.stamp);
    }

    fn put_at(&mut self, row: &Row<'_>, more: [&str; 4], value: f64, stamp: &str) {
        let Some(family) = self.family else { return };
        if !self.begun {
            self.begun = true;
            let mut out = Exposition::default();
            out.family(family.name, family.help, family.kind);
            self.text.push_str(&out.finish());
        }
        self.text.push_str(family.name);
        let mut from = 0;
        for (end, more) in row.slots.into_iter().zip(more) {
            if !more.is_empty() {
                self.text.push_str(row.labels.get(from..end).unwrap_or_default());
                self.text.push_str(more);
                from = end;
            }
        }
        self.text.push_str(row.labels.get(from..).unwrap_or_default());
        float(&mut self.text, value);
        self.text.push_str(if family.timed { stamp } else { "\n" });
    }

    fn one(&mut self, row: &Row<'_>, value: Option<f64>) {
        if let Some(value) = value {
            self.put(row, [""; 4], value);
        }
    }

    fn devices(&mut self, row: &Row<'_>, value: impl Fn(&DeviceReading) -> Option<f64>) {
        for device in row.devices {
            if let Some(value) = value(device) {
                let labels = [&*label("device", &device.device), "", "", ""];
                self.put_at(row, labels, value, &stamp(device.at));
            }
        }
    }

    /// What went to and from each device: of the machine by the disks' own word where there is one, else by the cgroup's.
    fn transfers(
        &mut self,
        row: &Row<'_>,
        of_cgroup: impl Fn(&IoSample) -> f64,
        of_disk: impl Fn(&DiskWork) -> Option<f64>,
    ) {
        let by_disk = |device: &DeviceReading| device.disk.as_ref().and_then(&of_disk);
        self.devices(row, by_disk);
        for io in &row.sample.io {
            // One without a name goes by its numbers, lest two of them are one series.
            let name = row
                .disks
                .get(&(io.major, io.minor))
                .map_or_else(|| Cow::from(format!("{}:{}", io.major, io.minor)), |name| Cow::from(&**name));
            let is_told = row.devices.iter().any(|it| it.device == *name && by_disk(it).is_some());
            if !is_told {
                self.put(row, [&label("device", &name), "", "", ""], of_cgroup(io));
            }
        }
    }

    fn blkio(&mut self, row: &Row<'_>) {
        for io in &row.sample.io {
            let name = row.disks.get(&(io.major, io.minor)).map_or("", |name| &**name);
            let device = label("device", name);
            let numbers = format!(",major=\"{}\",minor=\"{}\"", io.major, io.minor);
            for (operation, value) in [("Read", io.read_bytes), ("Write", io.written_bytes)] {
                self.put(row, [&device, &numbers, &label("operation", operation), ""], number(value));
            }
        }
    }

    fn failures(&mut self, row: &Row<'_>) {
        let Some(memory) = &row.sample.memory else { return };
        for (kind, value) in [
            (",failure_type=\"pgfault\"", memory.page_faults),
            (",failure_type=\"pgmajfault\"", memory.major_page_faults),
        ] {
            for scope in [",scope=\"container\"", ",scope=\"hierarchy\""] {
                self.put(row, [kind, "", "", scope], number(value));
            }
        }
    }

    fn interfaces(&mut self, row: &Row<'_>, value: impl Fn(&InterfaceSample) -> u64) {
        let Some(network) = row.network else { return };
        let stamp = stamp(network.at);
        for interface in &network.interfaces {
            let labels = ["", &*label("interface", &interface.name), "", ""];
            self.put_at(row, labels, number(value(interface)), &stamp);
        }
    }

    /// Where there are any, which most nodes have not: nothing is written for the others.
    fn huge_pages(&mut self, row: &Row<'_>, value: impl Fn(&HugePageSample) -> Option<u64>) {
        for pages in row.sample.huge_pages.iter().flat_map(|all| all.iter()) {
            if let Some(value) = value(pages) {
                let size = label("pagesize", &page_size_name(pages.page_bytes));
                self.put(row, ["", "", &size, ""], number(value));
            }
        }
    }

    /// Of a pod's own cgroup also those of its containers: the kernel ends a container whole (cgroup v2), and the container's count goes
    /// with it before anybody reads it. A container's row has its own, so that no sum over containers counts one twice.
    fn oom_kills(&mut self, row: &Row<'_>) {
        let is_pod = row.is_pod;
        let kills = |memory: &MemorySample| if is_pod { memory.oom_kills_in_all } else { memory.oom_kills };
        self.one(row, row.memory(kills));
    }

    fn limits(&mut self, row: &Row<'_>) {
        if let Some(limit) = row.sample.processes.open_files.filter(|_| row.begun_by_process) {
            let value = if limit < 0 { -1.0 } else { number(limit.unsigned_abs()) };
            self.put(row, ["", "", "", ",ulimit=\"max_open_files\""], value);
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus' numbers are floats, and 2^53 of anything is far away"
)]
const fn number(value: u64) -> f64 {
    value as f64
}

/// ` 1700000000000`, and the end of the line.
fn stamp(at: Timestamp) -> String {
    format!(" {}\n", at.as_millisecond())
}

/// `,name="value"`
fn label(name: &str, value: &str) -> String {
    let mut text = labels(&[(name, value)]);
    text.replace_range(..1, ",");
    text.pop();
    text
}

impl Machine {
    fn of(host: &Host) -> Self {
        // File systems are told of by those who look at disks; here they would only be waited for.
        let looked = host.machine_facts(String::new());
        let mut before = Exposition::default();
        let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
        before.family("cadvisor_version_info", help, Kind::Gauge);
        let labels = [
            ("cadvisorRevision", ""),
            ("cadvisorVersion", ""),
            ("dockerVersion", ""),
            ("kernelVersion", &*host.kernel_version()),
            ("osVersion", &*host.os_image()),
        ];
        before.sample("cadvisor_version_info", &labels, 1);
        let mut after = Exposition::default();
        let mut memory_bytes = 0;
        if let Ok(machine) = &looked {
            memory_bytes = machine.memory_capacity;
            let ids = [
                ("boot_id", &*machine.boot_id),
                ("machine_id", &*machine.machine_id),
                ("system_uuid", &*machine.system_uuid),
            ];
            let of_machine = |out: &mut Exposition, name: &str, help: &str, value: u64| {
                out.family(name, help, Kind::Gauge);
                out.reading(name, &self::labels(&ids), number(value), None);
            };
            of_machine(&mut after, "machine_cpu_books", "Number of CPU books.", 0);
            of_machine(
                &mut after,
                "machine_cpu_cores",
                "Number of logical CPU cores.",
                machine.num_cores as u64,
            );
            of_machine(&mut after, "machine_cpu_drawers", "Number of CPU drawers.", 0);
            let cores = machine.num_physical_cores as u64;
            of_machine(&mut after, "machine_cpu_physical_cores", "Number of physical CPU cores.", cores);
            of_machine(
                &mut after,
                "machine_cpu_sockets",
                "Number of CPU sockets.",
                machine.num_sockets as u64,
            );
            machine_modules(&mut after, &ids, machine);
            let help = "Amount of memory installed on the machine.";
            of_machine(&mut after, "machine_memory_bytes", help, machine.memory_capacity);
            of_machine(&mut after, "machine_nvm_avg_power_budget_watts", "NVM power budget.", 0);
            let name = "machine_nvm_capacity";
            let help = "NVM capacity value labeled by NVM mode (memory mode or app direct mode).";
            after.family(name, help, Kind::Gauge);
            for mode in ["app_direct_mode", "memory_mode"] {
                let [boot, id, uuid] = ids;
                after.sample(name, &[boot, id, ("mode", mode), uuid], 0);
            }
        }
        let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
        after.family("machine_scrape_error", help, Kind::Gauge);
        after.sample("machine_scrape_error", &[], u8::from(looked.is_err()));
        if let Ok(machine) = &looked {
            let ids = [
                ("boot_id", &*machine.boot_id),
                ("machine_id", &*machine.machine_id),
                ("system_uuid", &*machine.system_uuid),
            ];
            let name = "machine_swap_bytes";
            after.family(name, "Amount of swap memory available on the machine.", Kind::Gauge);
            after.reading(name, &self::labels(&ids), number(host.swap_total_bytes().unwrap_or(0)), None);
        }
        Self { before: before.finish(), after: after.finish(), memory_bytes }
    }
}

/// Modules of memory by their kind, where the kernel tells of them.
fn machine_modules(out: &mut Exposition, ids: &[(&str, &str); 3], machine: &mainstay_types::MachineInfo) {
    let [boot, id, uuid] = *ids;
    let kinds = &machine.memory_by_type;
    if kinds.is_empty() {
        return;
    }
    let name = "machine_dimm_capacity_bytes";
    let help = "Total RAM DIMM capacity (all types memory modules) value labeled by dimm type.";
    out.family(name, help, Kind::Gauge);
    for (kind, memory) in kinds {
        out.reading(name, &labels(&[boot, id, uuid, ("type", kind)]), number(memory.capacity), None);
    }
    let name = "machine_dimm_count";
    let help = "Number of RAM DIMM (all types memory modules) value labeled by dimm type.";
    out.family(name, help, Kind::Gauge);
    for (kind, memory) in kinds {
        out.reading(name, &labels(&[boot, id, uuid, ("type", kind)]), number(memory.dimm_count as u64), None);
    }
}

#[cfg(test)]
mod tests;
