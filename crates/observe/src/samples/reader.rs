//! The reading itself. It blocks, on the kernel's own files.

use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use mainstay_cgroup::{CgroupNames, CgroupPath, Cgroups, Driver};
use mainstay_podspec::runtime::QosClass;
use mainstay_sample::{Budget, Buffer, Cgroup, ReadError, Rising, network_of, task_counts};
use mainstay_types::{
    ContainerName, ContainerPhase, ContainerSample, FullName, NetworkSample, ObservedPod, ObservedState,
    PodSamples, PodUid, Sample, SampleCost, Samples, SandboxSample, SliceRole, SliceSample,
};
use rustix::time::{ClockId, clock_gettime};
use tracing::{debug, error};

use super::hanging::{Hanging, Place, Progress};

/// The process whose network is the machine's.
const FIRST_PROCESS: i32 = 1;

/// A pod that is to be read.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    uid: PodUid,
    full_name: FullName,
    sandbox: Option<WantedSandbox>,
    containers: Vec<WantedContainer>,
}

#[derive(Clone, Debug)]
struct WantedSandbox {
    id: String,
    created_at: Timestamp,
    host_network: bool,
}

#[derive(Clone, Debug)]
struct WantedContainer {
    name: ContainerName,
    id: String,
    created_at: Timestamp,
    image: Arc<str>,
}

impl Wanted {
    /// What of a pod is alive; `None` if nothing is.
    pub(super) fn of(pod: &ObservedPod) -> Option<Self> {
        let mut containers: Vec<_> = pod
            .containers
            .iter()
            .filter(|container| container.phase == ContainerPhase::Running)
            .map(|container| WantedContainer {
                name: container.name.clone(),
                id: container.id.as_str().to_owned(),
                created_at: container.created_at,
                image: Arc::clone(&container.image),
            })
            .collect();
        // Newest first in the runtime's list: of two of the same name the newer one counts.
        let mut seen = HashSet::new();
        containers.retain(|container| seen.insert(container.name.clone()));
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        let sandbox = pod.ready_sandbox().map(|sandbox| WantedSandbox {
            id: sandbox.id.as_str().to_owned(),
            created_at: sandbox.created_at,
            host_network: sandbox.host_network,
        });
        (sandbox.is_some() || !containers.is_empty()).then(|| Self {
            uid: pod.uid.clone(),
            full_name: pod.full_name.clone(),
            sandbox,
            containers,
        })
    }

    /// The IDs of a pod's running containers.
    pub(super) fn ids(pod: &ObservedPod) -> impl Iterator<Item = &str> {
        let running = pod.containers.iter().filter(|c| c.phase == ContainerPhase::Running);
        running.map(|container| container.id.as_str())
    }

    /// The IDs of its containers.
    pub(super) fn all_ids(&self) -> impl Iterator<Item = &String> {
        self.containers.iter().map(|container| &container.id)
    }

    /// The ID of its sandbox.
    pub(super) fn sandbox_id(&self) -> Option<&str> {
        self.sandbox.as_ref().map(|sandbox| sandbox.id.as_str())
    }
}

/// The pods of a reading without what has ended since; `None` if nothing has.
pub(super) fn without_ended(
    samples: &Samples,
    state: &ObservedState,
) -> Option<HashMap<PodUid, Arc<PodSamples>>> {
    let left = |uid: &PodUid, pod: &PodSamples| {
        let Some(now) = state.pods.get(uid) else { return Left::Nothing };
        let runs = |id: &str| Wanted::ids(now).any(|it| it == id);
        let sandbox = now.ready_sandbox().map(|sandbox| sandbox.id.as_str());
        let keeps_sandbox = pod.sandbox.as_ref().is_none_or(|it| Some(it.id.as_str()) == sandbox);
        if keeps_sandbox && pod.containers.iter().all(|container| runs(container.id.as_str())) {
            return Left::All;
        }
        let mut pod = pod.clone();
        pod.containers.retain(|container| runs(container.id.as_str()));
        if !keeps_sandbox {
            (pod.sandbox, pod.network) = (None, None);
        }
        // What has begun since makes it read soon.
        if sandbox.is_none() && Wanted::ids(now).next().is_none() {
            return Left::Nothing;
        }
        Left::Some(Arc::new(pod))
    };
    let changed = samples.pods.iter().filter_map(|(uid, pod)| match left(uid, pod) {
        Left::All => None,
        Left::Some(pod) => Some((uid, Some(pod))),
        Left::Nothing => Some((uid, None)),
    });
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        return None;
    }
    let mut pods = samples.pods.clone();
    for (uid, pod) in changed {
        match pod {
            Some(pod) => pods.insert(uid.clone(), pod),
            None => pods.remove(uid),
        };
    }
    Some(pods)
}

/// What of a pod that was read is still there.
enum Left {
    All,
    Some(Arc<PodSamples>),
    Nothing,
}

/// Processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// How a cgroup, a network and the name of a disk are read; tests have other ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    cgroup: fn(&mut Cgroup, Timestamp, &mut Buffer) -> Result<Arc<Sample>, ReadError>,
    network: fn(i32, Timestamp, &mut Buffer) -> Option<NetworkSample>,
    disk: fn((u32, u32)) -> Option<String>,
}

impl Default for Ways {
    fn default() -> Self {
        Self { cgroup: Cgroup::read, network: network_of, disk: disk_name }
    }
}

/// Keeps cgroups open between readings, as far as the budget allows.
#[derive(Debug)]
pub(super) struct Reader {
    names: CgroupNames,
    hierarchy: Cgroups,
    hand: Hand,
    network: Rising,
    root: Option<Cgroup>,
    root_name: Arc<str>,
    slices: Vec<Slice>,
    services: Option<CgroupPath>,
    pods: HashMap<PodUid, Box<Open>>,
    /// How many pods were opened so far, by which each has its turn.
    opened: u32,
    disks: Arc<HashMap<(u32, u32), Arc<str>>>,
}

/// What every reading needs.
#[derive(Debug)]
struct Hand {
    ways: Ways,
    budget: Budget,
    buffer: Buffer,
    cost: SampleCost,
    progress: Arc<Progress>,
    hanging: Hanging,
}

/// Why there is no reading of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// It is not there any more, or there is no use in keeping it open.
    Gone,
    /// Not now.
    Failed,
}

/// A cgroup that is no pod's; open while it is there.
#[derive(Debug)]
struct Slice {
    role: SliceRole,
    path: CgroupPath,
    name: Arc<str>,
    open: Option<Cgroup>,
}

#[derive(Debug)]
struct Open {
    path: CgroupPath,
    /// The same as others are told it.
    name: Arc<str>,
    /// When it and what is below are read whole.
    turn: u32,
    pod: Cgroup,
    network: Rising,
    /// By the runtime's ID, each with its path.
    below: HashMap<String, Box<(Arc<str>, Cgroup)>>,
}

impl Reader {
    pub(super) fn new(
        names: CgroupNames,
        hierarchy: Cgroups,
        slices: Vec<(SliceRole, CgroupPath)>,
        services: Option<CgroupPath>,
        budget: Budget,
    ) -> Self {
        // Pods without requests or limits of their own, and those with: those with both have no class of their own.
        let classes =
            [QosClass::BestEffort, QosClass::Burstable].map(|class| (SliceRole::Class, names.class(class)));
        let slices = std::iter::once((SliceRole::Pods, names.top()))
            .chain(classes)
            .chain(slices)
            .map(|(role, path)| Slice { role, name: name_of(&path), path, open: None })
            .collect();
        let (root, pods, disks) = (None, HashMap::new(), Arc::default());
        let hand = Hand {
            ways: Ways::default(),
            budget,
            buffer: Buffer::default(),
            cost: SampleCost::default(),
            progress: Arc::default(),
            hanging: Hanging::default(),
        };
        let network = Rising::default();
        let root_name = "/".into();
        Self { names, hierarchy, hand, network, root, root_name, slices, services, pods, opened: 0, disks }
    }

    /// Leaves out what others hang at.
    pub(super) fn leaving_out(mut self, hanging: &Hanging) -> Self {
        self.hand.hanging = hanging.clone();
        self
    }

    /// How far it is, for those who wait for it.
    pub(super) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.hand.progress)
    }

    /// Reads the wanted pods, all of them or only those with a container that has not been read yet. Parents before
    /// children: the kernel then has the sums at hand.
    pub(super) fn read(&mut self, wanted: &[Wanted], all: bool, before: &Samples) -> Samples {
        let (begun, cpu_begun) = (Instant::now(), thread_time());
        let work_begun = self.hand.buffer.work();
        self.hand.cost = SampleCost::default();
        let uids: HashSet<&PodUid> = wanted.iter().map(|pod| &pod.uid).collect();
        self.pods.retain(|uid, _| uids.contains(uid));
        let mut samples = Samples {
            generation: before.generation + 1,
            sandbox_image: Arc::clone(&before.sandbox_image),
            ..Samples::default()
        };
        if all || before.root.is_none() {
            let now = Timestamp::now();
            samples.root = self.read_root().or_else(|| before.root.clone());
            samples.network = self
                .hand
                .network(FIRST_PROCESS, now)
                .map(|network| rising(&mut self.network, network, before.network.as_deref()));
            samples.tasks =
                if self.hand.begins(Place::Tasks) { task_counts(now, &mut self.hand.buffer) } else { None };
            samples.slices = self.read_slices();
        } else {
            samples.root.clone_from(&before.root);
            samples.network.clone_from(&before.network);
            samples.tasks = before.tasks;
            samples.slices.clone_from(&before.slices);
        }
        samples.pods.reserve(wanted.len());
        for pod in wanted {
            let last = before.pods.get(&pod.uid);
            let known = last.filter(|_| !all && self.knows_all(pod));
            let machine = samples.network.as_ref();
            let last = last.map(Arc::as_ref);
            let read = known.cloned().or_else(|| self.read_pod(pod, machine, last).map(Arc::new));
            if let Some(read) = read {
                samples.pods.insert(pod.uid.clone(), read);
            }
        }
        self.name_disks(&samples);
        samples.disks = Arc::clone(&self.disks);
        let (mut cost, work) = (self.hand.cost, self.hand.buffer.work());
        cost.micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        cost.opens = work.opens - work_begun.opens;
        cost.reads = work.reads - work_begun.reads;
        samples.cost = if all { cost } else { before.cost };
        // Those of pods that have just come cost as well.
        let cpu = thread_time().saturating_sub(cpu_begun);
        samples.cost.cpu_micros = before.cost.cpu_micros + u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
        samples
    }

    /// Services come and go by themselves.
    fn find_services(&mut self) {
        let Some(above) = &self.services else { return };
        if !self.hand.begins(Place::Services) {
            return;
        }
        let names = self.hierarchy.children(above);
        let is_there = |name: &str| names.iter().any(|it| it == name);
        let below = |slice: &Slice| {
            slice
                .path
                .as_str()
                .strip_prefix(above.as_str())
                .and_then(|rest| rest.strip_prefix('/'))
                .map(str::to_owned)
        };
        self.slices.retain(|slice| {
            slice.role != SliceRole::Service || below(slice).is_some_and(|name| is_there(&name))
        });
        let known: HashSet<String> = self.slices.iter().filter_map(below).collect();
        let new = names.iter().filter(|name| !known.contains(*name));
        let new: Vec<CgroupPath> =
            new.filter_map(|name| CgroupPath::parse(&format!("{}/{name}", above.as_str())).ok()).collect();
        let new = new.into_iter().map(|path| Slice {
            role: SliceRole::Service,
            name: name_of(&path),
            path,
            open: None,
        });
        self.slices.extend(new);
    }

    fn read_slices(&mut self) -> Vec<SliceSample> {
        self.find_services();
        let mut found = Vec::with_capacity(self.slices.len());
        for slice in &mut self.slices {
            if slice.open.is_none() {
                slice.open = self.hand.open(&self.hierarchy, &slice.path);
            }
            match slice.open.as_mut().map(|cgroup| self.hand.take(cgroup, &slice.name)) {
                Some(Ok(sample)) => {
                    found.push(SliceSample { role: slice.role, cgroup: Arc::clone(&slice.name), sample })
                }
                Some(Err(Lost::Gone)) => slice.open = None,
                Some(Err(Lost::Failed)) | None => {}
            }
        }
        found
    }

    /// Looks up the names of block devices that were not seen before. A number that nobody uses any more may be another device's the next time,
    /// and one without a name may have one then: neither is remembered.
    fn name_disks(&mut self, samples: &Samples) {
        let pods = samples.pods.values().flat_map(|pod| {
            let sandbox = pod.sandbox.iter().filter_map(|it| it.cgroup.as_ref().map(|(_, sample)| sample));
            let containers = pod.containers.iter().map(|container| &container.sample);
            std::iter::once(&pod.pod).chain(sandbox).chain(containers)
        });
        let slices = samples.slices.iter().map(|slice| &slice.sample);
        let all = samples.root.iter().chain(slices).chain(pods);
        let used: HashSet<(u32, u32)> =
            all.flat_map(|sample| &sample.io).map(|io| (io.major, io.minor)).collect();
        let is_old = |device: &(u32, u32)| !used.contains(device);
        if self.disks.keys().any(is_old) {
            Arc::make_mut(&mut self.disks).retain(|device, _| !is_old(device));
        }
        for device in used {
            if !self.disks.contains_key(&device)
                && self.hand.begins(Place::Disk(device.0, device.1))
                && let Some(name) = (self.hand.ways.disk)(device)
            {
                Arc::make_mut(&mut self.disks).insert(device, name.into());
            }
        }
    }

    fn knows_all(&self, pod: &Wanted) -> bool {
        let open = self.pods.get(&pod.uid);
        open.is_some_and(|open| pod.all_ids().all(|id| open.below.contains_key(id)))
    }

    fn read_root(&mut self) -> Option<Arc<Sample>> {
        if self.root.is_none() {
            let path = CgroupPath::parse("/").ok()?;
            self.root = self.hand.open(&self.hierarchy, &path);
        }
        match self.hand.take(self.root.as_mut()?, &self.root_name) {
            Ok(sample) => Some(sample),
            Err(lost) => {
                if lost == Lost::Gone {
                    self.root = None;
                }
                None
            }
        }
    }

    fn read_pod(
        &mut self,
        wanted: &Wanted,
        machine: Option<&Arc<NetworkSample>>,
        last: Option<&PodSamples>,
    ) -> Option<PodSamples> {
        let hand = &mut self.hand;
        if !self.pods.contains_key(&wanted.uid) {
            // Which class it is of can be seen from where its cgroup is.
            let found = self
                .names
                .pods(&wanted.uid)
                .into_iter()
                .find_map(|path| hand.open(&self.hierarchy, &path).map(|pod| (path, pod)));
            let (path, pod) = found?;
            let turn = self.opened;
            self.opened = turn.wrapping_add(1);
            let open = Open {
                name: name_of(&path),
                path,
                turn,
                pod: pod.in_turn(turn),
                network: Rising::default(),
                below: HashMap::new(),
            };
            self.pods.insert(wanted.uid.clone(), Box::new(open));
        }
        let open = self.pods.get_mut(&wanted.uid)?;
        let pod = match hand.take(&mut open.pod, &open.name) {
            Ok(pod) => pod,
            Err(Lost::Failed) => return None,
            Err(Lost::Gone) => {
                // It went, or was made anew: looked for again next time.
                self.pods.remove(&wanted.uid);
                return None;
            }
        };
        // What is below has done nothing either, or the pod's own cgroup would have counted it.
        let idle = open.pod.is_idle().then_some(pod.at);
        let ids: HashSet<&str> = wanted.all_ids().map(String::as_str).chain(wanted.sandbox_id()).collect();
        open.below.retain(|id, _| ids.contains(id.as_str()));
        let mut process = None;
        let mut read = |id: &str| {
            if !open.below.contains_key(id) {
                let (path, cgroup) = open_below(hand, &self.hierarchy, self.names.driver(), &open.path, id)?;
                open.below.insert(id.to_owned(), Box::new((path, cgroup.in_turn(open.turn))));
            }
            let (path, cgroup) = open.below.get_mut(id)?.as_mut();
            let path = Arc::clone(path);
            let again = idle.and_then(|at| cgroup.repeat(at));
            let sample = again.map_or_else(|| hand.take(cgroup, &path), Ok);
            process = process.or_else(|| cgroup.process());
            if sample == Err(Lost::Gone) {
                open.below.remove(id);
            }
            Some((path, sample.ok()?))
        };
        let sandbox = wanted.sandbox.as_ref().map(|sandbox| SandboxSample {
            id: sandbox.id.as_str().into(),
            created_at: sandbox.created_at,
            cgroup: read(&sandbox.id),
        });
        let containers: Vec<_> = wanted
            .containers
            .iter()
            .filter_map(|container| {
                let (cgroup, sample) = read(&container.id)?;
                let (name, id) = (container.name.clone(), container.id.as_str().into());
                let (created_at, image) = (container.created_at, Arc::clone(&container.image));
                Some(ContainerSample { name, id, cgroup, created_at, image, sample })
            })
            .collect();
        let complete = containers.len() == wanted.containers.len();
        let network = match (&wanted.sandbox, process) {
            (Some(sandbox), _) if sandbox.host_network => machine.cloned(),
            (_, Some(pid)) => {
                // Another sandbox has another network, which begins to count anew.
                let id = |pod: &PodSamples| pod.sandbox.as_ref().map(|sandbox| sandbox.id.clone());
                let last = last.filter(|last| id(last) == sandbox.as_ref().map(|sandbox| sandbox.id.clone()));
                let last = last.and_then(|last| last.network.as_deref());
                let network = hand.network(pid, Timestamp::now());
                network.map(|network| rising(&mut open.network, network, last))
            }
            (_, None) => None,
        };
        Some(PodSamples {
            full_name: wanted.full_name.clone(),
            cgroup: Arc::clone(&open.name),
            pod,
            sandbox,
            network,
            containers,
            complete,
        })
    }
}

fn rising(
    counters: &mut Rising,
    mut network: NetworkSample,
    last: Option<&NetworkSample>,
) -> Arc<NetworkSample> {
    counters.network(&mut network, last);
    Arc::new(network)
}

/// What a block device is called, as programs open it.
fn disk_name((major, minor): (u32, u32)) -> Option<String> {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = link.file_name()?.to_str()?;
    // The kernel writes a slash in a name so.
    Some(format!("/dev/{}", name.replace('!', "/")))
}

impl Hand {
    /// Whether this may be read, which then begins.
    fn begins(&self, place: Place) -> bool {
        if self.hanging.contains(&place) {
            return false;
        }
        self.progress.is_at(place);
        true
    }

    /// The network of a process.
    fn network(&mut self, pid: i32, at: Timestamp) -> Option<NetworkSample> {
        if !self.begins(Place::Network(pid)) {
            return None;
        }
        (self.ways.network)(pid, at, &mut self.buffer)
    }

    /// Opens one, if it is there.
    fn open(&mut self, hierarchy: &Cgroups, path: &CgroupPath) -> Option<Cgroup> {
        if !self.begins(Place::Cgroup(name_of(path))) {
            return None;
        }
        match Cgroup::open(hierarchy, path, &self.budget, &mut self.buffer) {
            Ok(cgroup) => Some(cgroup),
            Err(ReadError::Gone) => None,
            Err(ReadError::Failed(code)) => {
                debug!(cgroup = path.as_str(), code, "a cgroup could not be opened");
                self.cost.failed += 1;
                None
            }
        }
    }

    /// Reads one, and counts it. A panic is this one's alone: the others are read.
    fn take(&mut self, cgroup: &mut Cgroup, path: &Arc<str>) -> Result<Arc<Sample>, Lost> {
        if !self.begins(Place::Cgroup(Arc::clone(path))) {
            return Err(Lost::Failed);
        }
        let (read, buffer) = (self.ways.cgroup, &mut self.buffer);
        // Unwind safety: a cgroup that panicked is not read again, and what is left in the buffer is overwritten.
        let lost = match catch_unwind(AssertUnwindSafe(|| read(cgroup, Timestamp::now(), buffer))) {
            Ok(Ok(sample)) => {
                self.cost.cgroups += 1;
                return Ok(sample);
            }
            Ok(Err(ReadError::Gone)) => return Err(Lost::Gone),
            Ok(Err(ReadError::Failed(code))) => {
                debug!(cgroup = &**path, code, "a cgroup could not be read");
                Lost::Failed
            }
            Err(_) => {
                error!(cgroup = &**path, "reading a cgroup panicked; it is left out until it can be read");
                Lost::Gone
            }
        };
        self.cost.failed += 1;
        Err(lost)
    }
}

fn name_of(path: &CgroupPath) -> Arc<str> {
    path.as_str().into()
}

/// The cgroup of a container or sandbox with its path: runtimes name it by its ID, each in its own way.
fn open_below(
    hand: &mut Hand,
    hierarchy: &Cgroups,
    driver: Driver,
    pod: &CgroupPath,
    id: &str,
) -> Option<(Arc<str>, Cgroup)> {
    let usual = match driver {
        Driver::Cgroupfs => [id.to_owned(), format!("crio-{id}")],
        Driver::Systemd => [format!("cri-containerd-{id}.scope"), format!("crio-{id}.scope")],
    };
    let mut open = |name: &str| {
        let path = pod.child(name);
        hand.open(hierarchy, &path).map(|cgroup| (name_of(&path), cgroup))
    };
    if let Some(found) = usual.iter().find_map(|name| open(name)) {
        return Some(found);
    }
    // CRI-O may have a process of its own beside each container, in a cgroup that is named after it as well.
    let is_it = |name: &String| name.contains(id) && !name.contains("conmon");
    let name = hierarchy.children(pod).into_iter().find(is_it)?;
    open(&name)
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs, path::Path};

    use super::*;

    const BUDGET: usize = 500;

    fn cgroup(dir: &Path, usec: u64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("cpu.stat"), format!("usage_usec {usec}\n")).unwrap();
        fs::write(dir.join("cgroup.procs"), "").unwrap();
    }

    fn reader(hierarchy: &Path, services: Option<CgroupPath>) -> Reader {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        Reader::new(names, Cgroups::open(hierarchy).unwrap(), Vec::new(), services, Budget::new(BUDGET))
    }

    fn wanted(containers: &[&str]) -> Wanted {
        Wanted {
            uid: "u1".into(),
            full_name: FullName::new("default", "p"),
            sandbox: Some(WantedSandbox {
                id: "s1".into(),
                created_at: Timestamp::UNIX_EPOCH,
                host_network: false,
            }),
            containers: containers
                .iter()
                .map(|id| WantedContainer {
                    name: format!("name-{id}").as_str().into(),
                    id: (*id).to_owned(),
                    created_at: Timestamp::UNIX_EPOCH,
                    image: "image".into(),
                })
                .collect(),
        }
    }

    /// Ten thousand cgroups, a tenth of which vanish in between: the rest is read with bounded work, and no more files are
    /// open than there may be.
    #[test]
    fn ten_thousand_cgroups() {
        const PODS: usize = 3333;
        const CGROUPS: u64 = 1 + 3 * PODS as u64;
        /// Of the fixture's cgroups, however many exist: other tests have their own.
        fn open_below(dir: &Path) -> usize {
            let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|to| to.starts_with(dir)).count()
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        let mut pods = Vec::new();
        for number in 0..PODS {
            let uid = format!("u{number}");
            let pod = dir.path().join(format!("kubepods/burstable/pod{uid}"));
            for place in [pod.clone(), pod.join("s1"), pod.join("c1")] {
                cgroup(&place, 1 + number as u64);
            }
            pods.push(Wanted { uid: uid.as_str().into(), ..wanted(&["c1"]) });
        }
        let mut reader = reader(dir.path(), None);
        let first = reader.read(&pods, true, &Samples::default());
        assert_eq!((first.pods.len(), first.cost.failed), (PODS, 0));
        assert_eq!(u64::from(first.cost.cgroups), CGROUPS);
        assert!(first.cost.cpu_micros > 0);
        assert_eq!((open_below(dir.path()), reader.hand.budget.held()), (BUDGET - 1, BUDGET), "and /proc");
        // Every file once, and beyond the budget the directory; those of the kernel that this hierarchy has not are asked for
        // as well.
        let most = |files: u64| CGROUPS * (files + 1);
        let Samples { cost, .. } = &first;
        assert!(cost.opens <= most(20) && cost.reads <= CGROUPS * 4, "{cost:?}");

        // Where nothing happens, a look at the pod is all there is, but for those whose turn it is.
        let second = reader.read(&pods, true, &first);
        let Samples { cost, .. } = &second;
        assert_eq!(cost.failed, 0);
        assert!(cost.opens <= most(20) / 6 + PODS as u64 * 7, "{cost:?}");
        assert!(cost.reads <= first.cost.reads / 2, "{cost:?}");

        for number in (0..PODS).step_by(10) {
            fs::remove_dir_all(dir.path().join(format!("kubepods/burstable/podu{number}"))).unwrap();
        }
        let third = reader.read(&pods, true, &second);
        assert_eq!(third.pods.len(), PODS - PODS.div_ceil(10), "what is there is served");
        assert_eq!(third.cost.failed, 0, "to vanish is no failure");
        assert!(third.cost.cpu_micros > second.cost.cpu_micros);
        assert!(open_below(dir.path()) < BUDGET);
        assert!(third.cost.opens <= most(20) / 6 + PODS as u64 * 10, "{:?}", third.cost);
        // Those that have gone leave their place to others.
        let rest: Vec<Wanted> = pods.iter().skip(3000).cloned().collect();
        let fourth = reader.read(&rest, true, &third);
        assert_eq!(fourth.pods.len(), 299, "{:?}", fourth.cost);
        reader.read(&pods, true, &fourth);
        assert_eq!((open_below(dir.path()), reader.hand.budget.held()), (BUDGET - 1, BUDGET));
        drop(reader);
        assert_eq!(open_below(dir.path()), 0);
    }

    #[test]
    fn a_panic_is_of_one_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        for number in 0..3 {
            let pod = dir.path().join(format!("kubepods/burstable/podu{number}"));
            for place in [pod.clone(), pod.join("s1"), pod.join("c1")] {
                cgroup(&place, 1);
            }
        }
        let evil = dir.path().join("kubepods/burstable/podu1/c1");
        cgroup(&evil, 666);
        let pods: Vec<Wanted> =
            (0..3).map(|n| Wanted { uid: format!("u{n}").as_str().into(), ..wanted(&["c1"]) }).collect();
        let mut reader = reader(dir.path(), None);
        reader.hand.ways.cgroup = |cgroup, at, buffer| {
            let sample = cgroup.read(at, buffer);
            assert!(!sample.as_ref().is_ok_and(|sample| sample.cpu.usage_ns == 666_000), "on purpose");
            sample
        };
        let mut samples = Samples::default();
        let containers = |samples: &Samples| {
            ["u0", "u1", "u2"].map(|uid| {
                let pod = &samples.pods[&PodUid::from(uid)];
                (pod.containers.len(), pod.complete)
            })
        };
        for _ in 0..3 {
            samples = reader.read(&pods, true, &samples);
            assert_eq!(samples.cost.failed, 1);
            assert_eq!(containers(&samples), [(1, true), (0, false), (1, true)]);
            assert!(samples.root.is_some());
        }
        cgroup(&evil, 667);
        let samples = reader.read(&pods, true, &samples);
        assert_eq!((samples.cost.failed, containers(&samples)), (0, [(1, true); 3]), "it is read again");
    }

    /// Of a reader whose network cannot be read without a panic.
    pub(in crate::samples) fn panics() -> Ways {
        Ways { network: |_, _, _| panic!("on purpose"), ..Ways::default() }
    }

    /// Of a reader that hangs at cgroups that have used so much.
    pub(in crate::samples) mod blocks {
        use std::{
            sync::atomic::{AtomicBool, Ordering},
            thread,
            time::Duration,
        };

        use super::{Cgroup, Ways};

        /// In microseconds.
        pub(in crate::samples) const USAGE: u64 = 777;
        static BLOCKED: AtomicBool = AtomicBool::new(false);

        pub(in crate::samples) fn block(is_blocked: bool) {
            BLOCKED.store(is_blocked, Ordering::Relaxed);
        }

        pub(in crate::samples) fn ways() -> Ways {
            let cgroup = |cgroup: &mut Cgroup, at, buffer: &mut _| {
                let sample = cgroup.read(at, buffer);
                let hangs = sample.as_ref().is_ok_and(|sample| sample.cpu.usage_ns == USAGE * 1000);
                while hangs && BLOCKED.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(5));
                }
                sample
            };
            Ways { cgroup, ..Ways::default() }
        }
    }

    impl Reader {
        pub(in crate::samples) fn in_other_ways(mut self, ways: Ways) -> Self {
            self.hand.ways = ways;
            self
        }
    }

    #[test]
    fn a_runtimes_own_names_of_cgroups() {
        const ID: &str = "0123456789abcdef";
        let rows = [
            (Driver::Cgroupfs, ID.to_owned()),
            (Driver::Cgroupfs, format!("crio-{ID}")),
            (Driver::Systemd, format!("crio-{ID}.scope")),
            (Driver::Systemd, format!("cri-containerd-{ID}.scope")),
            (Driver::Systemd, format!("other-{ID}.scope")),
        ];
        for (driver, name) in rows {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
            let pod = CgroupPath::parse("/kubepods/podu1").unwrap();
            let below = dir.path().join("kubepods/podu1");
            // Which CRI-O makes for the process that watches a container.
            for (usec, watcher) in
                [format!("crio-conmon-{ID}"), format!("crio-conmon-{ID}.scope")].iter().enumerate()
            {
                cgroup(&below.join(watcher), 100 + usec as u64);
            }
            let hierarchy = Cgroups::open(dir.path()).unwrap();
            let mut hand = reader(dir.path(), None).hand;
            let mut found = || open_below(&mut hand, &hierarchy, driver, &pod, ID);
            assert!(found().is_none(), "{name}: it is not there yet");
            cgroup(&below.join(&name), 7);
            let (path, mut cgroup) = found().unwrap_or_else(|| panic!("{driver:?} {name}"));
            assert_eq!(*path, format!("/kubepods/podu1/{name}"));
            let sample = cgroup.read(Timestamp::now(), &mut Buffer::default()).unwrap();
            assert_eq!(sample.cpu.usage_ns, 7000, "{name}");
            assert!(open_below(&mut hand, &hierarchy, driver, &pod, "fedcba9876543210").is_none());
        }
    }

    #[test]
    fn names_of_disks_are_known_while_somebody_uses_them() {
        thread_local! {
            static NAMES: std::cell::RefCell<HashMap<(u32, u32), &'static str>> = std::cell::RefCell::default();
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        let mut reader = reader(dir.path(), None);
        reader.hand.ways.disk =
            |device| NAMES.with_borrow(|names| names.get(&device).map(|&name| name.to_owned()));
        let mut samples = Samples::default();
        let mut usec = 100;
        let mut named = |used: &str, known: &[((u32, u32), &'static str)]| {
            usec += 1;
            cgroup(dir.path(), usec);
            fs::write(dir.path().join("io.stat"), used).unwrap();
            NAMES.with_borrow_mut(|names| *names = known.iter().copied().collect());
            samples = reader.read(&[], true, &samples);
            let mut found: Vec<_> =
                samples.disks.iter().map(|(device, name)| (*device, name.to_string())).collect();
            found.sort();
            found
        };
        let both = "8:0 rbytes=1 wbytes=1 rios=1 wios=1\n259:3 rbytes=1 wbytes=1 rios=1 wios=1\n";
        let sda = ((8, 0), "/dev/sda".to_owned());
        assert_eq!(named(both, &[((8, 0), "/dev/sda")]), std::slice::from_ref(&sda), "one has no name yet");
        let known = [((8, 0), "/dev/sda"), ((259, 3), "/dev/nvme0n1")];
        assert_eq!(
            named(both, &known),
            [sda.clone(), ((259, 3), "/dev/nvme0n1".into())],
            "it is asked for again"
        );
        assert_eq!(named("8:0 rbytes=2 wbytes=1 rios=1 wios=1\n", &known), std::slice::from_ref(&sda));
        // The number comes again, of another one.
        let known = [((8, 0), "/dev/sda"), ((259, 3), "/dev/nvme7n1")];
        assert_eq!(named(both, &known), [sda, ((259, 3), "/dev/nvme7n1".into())]);
    }

    #[test]
    fn services_are_read_while_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        let slice = dir.path().join("system.slice");
        cgroup(&slice, 10);
        cgroup(&slice.join("a.service"), 1);
        let mut reader = reader(dir.path(), CgroupPath::parse("/system.slice").ok());
        let found = |samples: &Samples| -> Vec<String> {
            let services = samples.slices.iter().filter(|slice| slice.role == SliceRole::Service);
            services.map(|slice| slice.cgroup.to_string()).collect()
        };
        let first = reader.read(&[], true, &Samples::default());
        assert_eq!(found(&first), ["/system.slice/a.service"]);
        cgroup(&slice.join("b.service"), 1);
        fs::remove_dir_all(slice.join("a.service")).unwrap();
        assert_eq!(found(&reader.read(&[], true, &first)), ["/system.slice/b.service"]);
    }

    #[test]
    fn pods_and_what_is_in_them_are_read_until_they_go() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        let pod = dir.path().join("kubepods/burstable/podu1");
        cgroup(&pod, 30);
        cgroup(&pod.join("s1"), 10);
        cgroup(&pod.join("c1"), 20);
        let mut reader = reader(dir.path(), None);
        let first = reader.read(&[wanted(&["c1"])], true, &Samples::default());
        assert_eq!(first.root.as_ref().unwrap().cpu.usage_ns, 100_000);
        assert_eq!((first.cost.cgroups, first.cost.failed, first.generation), (4, 0, 1));
        let found = &first.pods[&PodUid::from("u1")];
        assert_eq!(found.pod.cpu.usage_ns, 30_000);
        let (path, sandbox) = found.sandbox.as_ref().unwrap().cgroup.as_ref().unwrap();
        assert_eq!((&**path, sandbox.cpu.usage_ns), ("/kubepods/burstable/podu1/s1", 10_000));
        let container = &found.containers[0];
        assert_eq!((container.sample.cpu.usage_ns, container.id.as_str()), (20_000, "c1"));
        assert_eq!(
            (&*found.cgroup, &*container.cgroup),
            ("/kubepods/burstable/podu1", "/kubepods/burstable/podu1/c1")
        );

        // Another container has come: the pod is read at once, but not the rest.
        cgroup(&pod.join("cri-containerd-c2.scope"), 5);
        cgroup(dir.path(), 200);
        let second = reader.read(&[wanted(&["c1", "c2"])], false, &first);
        assert_eq!(second.root.as_ref().unwrap().cpu.usage_ns, 100_000, "as read before");
        assert_eq!(second.pods[&PodUid::from("u1")].containers.len(), 2);
        cgroup(&pod, 77);
        let third = reader.read(&[wanted(&["c1", "c2"])], false, &second);
        assert_eq!(third.pods[&PodUid::from("u1")].pod.cpu.usage_ns, 30_000, "nothing new in it");

        // A container's cgroup that is not there is left out, the rest is served.
        let fourth = reader.read(&[wanted(&["c1", "c9"])], true, &third);
        let found = &fourth.pods[&PodUid::from("u1")];
        assert_eq!((found.containers.len(), found.complete), (1, false));
        let fifth = reader.read(&[], true, &fourth);
        assert!(
            fifth.pods.is_empty() && reader.pods.is_empty(),
            "nothing is held open for pods that are gone"
        );
    }
}
