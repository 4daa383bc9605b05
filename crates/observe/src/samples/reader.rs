//! The reading itself. It blocks, on the kernel's own files.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use mainstay_cgroup::{CgroupNames, CgroupPath, Cgroups, Driver};
use mainstay_podspec::runtime::QosClass;
use mainstay_sample::{Cgroup, ReadError, network_of, task_counts};
use mainstay_types::{
    ContainerName, ContainerPhase, ContainerSample, FullName, NetworkSample, ObservedPod, PodSamples, PodUid,
    Sample, SampleCost, Samples, SandboxSample, SliceRole, SliceSample,
};
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

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

/// Processor time of this thread.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Keeps cgroups open between readings.
#[derive(Debug)]
pub(super) struct Reader {
    names: CgroupNames,
    hierarchy: Cgroups,
    buffer: Vec<u8>,
    root: Option<Cgroup>,
    slices: Vec<Slice>,
    services: Option<CgroupPath>,
    pods: HashMap<PodUid, Box<Open>>,
    /// How many pods were opened so far, by which each has its turn.
    opened: u32,
    disks: Arc<HashMap<(u32, u32), Arc<str>>>,
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
    /// By the runtime's ID, each with its path.
    below: HashMap<String, Box<(Arc<str>, Cgroup)>>,
}

impl Reader {
    pub(super) fn new(
        names: CgroupNames,
        hierarchy: Cgroups,
        slices: Vec<(SliceRole, CgroupPath)>,
        services: Option<CgroupPath>,
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
        Self { names, hierarchy, buffer: Vec::new(), root, slices, services, pods, opened: 0, disks }
    }

    /// Reads the wanted pods, all of them or only those with a container that has not been read yet. Parents before
    /// children: the kernel then has the sums at hand.
    pub(super) fn read(&mut self, wanted: &[Wanted], all: bool, before: &Samples) -> Samples {
        let (begun, cpu_begun) = (Instant::now(), thread_time());
        let mut cost = SampleCost::default();
        let uids: HashSet<&PodUid> = wanted.iter().map(|pod| &pod.uid).collect();
        self.pods.retain(|uid, _| uids.contains(uid));
        let mut samples = Samples {
            generation: before.generation + 1,
            sandbox_image: Arc::clone(&before.sandbox_image),
            ..Samples::default()
        };
        if all || before.root.is_none() {
            let now = Timestamp::now();
            samples.root = self.read_root(&mut cost).or_else(|| before.root.clone());
            samples.network = network_of(FIRST_PROCESS, now, &mut self.buffer).map(Arc::new);
            samples.tasks = task_counts(now, &mut self.buffer);
            samples.slices = self.read_slices(&mut cost);
        } else {
            samples.root.clone_from(&before.root);
            samples.network.clone_from(&before.network);
            samples.tasks = before.tasks;
            samples.slices.clone_from(&before.slices);
        }
        samples.pods.reserve(wanted.len());
        for pod in wanted {
            let known = before.pods.get(&pod.uid).filter(|_| !all && self.knows_all(pod));
            let machine = samples.network.as_ref();
            let read = known.cloned().or_else(|| self.read_pod(pod, machine, &mut cost).map(Arc::new));
            if let Some(read) = read {
                samples.pods.insert(pod.uid.clone(), read);
            }
        }
        self.name_disks(&samples);
        samples.disks = Arc::clone(&self.disks);
        cost.micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        samples.cost = if all { cost } else { before.cost };
        // Those of pods that have just come cost as well.
        let cpu = thread_time().saturating_sub(cpu_begun);
        samples.cost.cpu_micros = before.cost.cpu_micros + u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
        samples
    }

    /// Services come and go by themselves.
    fn find_services(&mut self) {
        let Some(above) = &self.services else { return };
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

    fn read_slices(&mut self, cost: &mut SampleCost) -> Vec<SliceSample> {
        self.find_services();
        let mut found = Vec::with_capacity(self.slices.len());
        for slice in &mut self.slices {
            if slice.open.is_none() {
                slice.open = Cgroup::open(&self.hierarchy, &slice.path).ok();
            }
            let sample = slice.open.as_mut().and_then(|cgroup| take(cgroup, &mut self.buffer, cost));
            match sample {
                Some(sample) => {
                    found.push(SliceSample { role: slice.role, cgroup: Arc::clone(&slice.name), sample })
                }
                None => slice.open = None,
            }
        }
        found
    }

    /// Looks up the names of block devices that were not seen before.
    fn name_disks(&mut self, samples: &Samples) {
        let pods = samples.pods.values().flat_map(|pod| {
            let sandbox = pod.sandbox.iter().filter_map(|it| it.cgroup.as_ref().map(|(_, sample)| sample));
            let containers = pod.containers.iter().map(|container| &container.sample);
            std::iter::once(&pod.pod).chain(sandbox).chain(containers)
        });
        let slices = samples.slices.iter().map(|slice| &slice.sample);
        let all = samples.root.iter().chain(slices).chain(pods);
        let new: Vec<_> = all
            .flat_map(|sample| &sample.io)
            .map(|io| (io.major, io.minor))
            .filter(|device| !self.disks.contains_key(device))
            .collect();
        for device in new {
            let name = disk_name(device).unwrap_or_default().into();
            Arc::make_mut(&mut self.disks).insert(device, name);
        }
    }

    fn knows_all(&self, pod: &Wanted) -> bool {
        let open = self.pods.get(&pod.uid);
        open.is_some_and(|open| pod.all_ids().all(|id| open.below.contains_key(id)))
    }

    fn read_root(&mut self, cost: &mut SampleCost) -> Option<Arc<Sample>> {
        if self.root.is_none() {
            let path = CgroupPath::parse("/").ok()?;
            self.root = Cgroup::open(&self.hierarchy, &path).ok();
        }
        take(self.root.as_mut()?, &mut self.buffer, cost)
    }

    fn read_pod(
        &mut self,
        wanted: &Wanted,
        machine: Option<&Arc<NetworkSample>>,
        cost: &mut SampleCost,
    ) -> Option<PodSamples> {
        if !self.pods.contains_key(&wanted.uid) {
            // Which class it is of can be seen from where its cgroup is.
            let found = self
                .names
                .pods(&wanted.uid)
                .into_iter()
                .find_map(|path| Cgroup::open(&self.hierarchy, &path).ok().map(|pod| (path, pod)));
            let (path, pod) = found?;
            let turn = self.opened;
            self.opened = turn.wrapping_add(1);
            let open =
                Open { name: name_of(&path), path, turn, pod: pod.in_turn(turn), below: HashMap::new() };
            self.pods.insert(wanted.uid.clone(), Box::new(open));
        }
        let open = self.pods.get_mut(&wanted.uid)?;
        let Some(pod) = take(&mut open.pod, &mut self.buffer, cost) else {
            // It went, or was made anew: looked for again next time.
            self.pods.remove(&wanted.uid);
            return None;
        };
        // What is below has done nothing either, or the pod's own cgroup would have counted it.
        let idle = open.pod.is_idle();
        let ids: HashSet<&str> = wanted.all_ids().map(String::as_str).chain(wanted.sandbox_id()).collect();
        open.below.retain(|id, _| ids.contains(id.as_str()));
        let mut process = None;
        let mut read = |id: &str| {
            if !open.below.contains_key(id) {
                let (path, cgroup) = open_below(&self.hierarchy, self.names.driver(), &open.path, id)?;
                open.below.insert(id.to_owned(), Box::new((path, cgroup.in_turn(open.turn))));
            }
            let (path, cgroup) = open.below.get_mut(id)?.as_mut();
            let path = Arc::clone(path);
            let again = if idle { cgroup.repeat(Timestamp::now()) } else { None };
            let sample = again.or_else(|| take(cgroup, &mut self.buffer, cost));
            process = process.or_else(|| cgroup.process());
            if sample.is_none() {
                open.below.remove(id);
            }
            sample.map(|sample| (path, sample))
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
            (_, Some(pid)) => network_of(pid, Timestamp::now(), &mut self.buffer).map(Arc::new),
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

/// What a block device is called, as programs open it.
fn disk_name((major, minor): (u32, u32)) -> Option<String> {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = link.file_name()?.to_str()?;
    // The kernel writes a slash in a name so.
    Some(format!("/dev/{}", name.replace('!', "/")))
}

/// Reads one, and counts it.
fn take(cgroup: &mut Cgroup, buffer: &mut Vec<u8>, cost: &mut SampleCost) -> Option<Arc<Sample>> {
    match cgroup.read(Timestamp::now(), buffer) {
        Ok(sample) => {
            cost.cgroups += 1;
            Some(sample)
        }
        Err(ReadError::Gone) => None,
        Err(ReadError::Failed(code)) => {
            debug!(code, "a cgroup could not be read");
            cost.failed += 1;
            None
        }
    }
}

fn name_of(path: &CgroupPath) -> Arc<str> {
    path.as_str().into()
}

/// The cgroup of a container or sandbox with its path: runtimes name it by its ID, each in its own way.
fn open_below(hierarchy: &Cgroups, driver: Driver, pod: &CgroupPath, id: &str) -> Option<(Arc<str>, Cgroup)> {
    let usual = match driver {
        Driver::Cgroupfs => [id.to_owned(), format!("crio-{id}")],
        Driver::Systemd => [format!("cri-containerd-{id}.scope"), format!("crio-{id}.scope")],
    };
    let open = |name: &str| {
        let path = pod.child(name);
        Cgroup::open(hierarchy, &path).ok().map(|cgroup| (name_of(&path), cgroup))
    };
    usual.iter().find_map(|name| open(name)).or_else(|| {
        let name = hierarchy.children(pod).into_iter().find(|name| name.contains(id))?;
        open(&name)
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn cgroup(dir: &Path, usec: u64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("cpu.stat"), format!("usage_usec {usec}\n")).unwrap();
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

    /// Ten thousand cgroups, a tenth of which vanish in between: the rest is read, and no more files are open than cgroups.
    #[test]
    fn ten_thousand_cgroups() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const PODS: usize = 3333;
        // Each is a descriptor; mainstay asks for as many as it may have, too.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
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
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        let mut reader = Reader::new(names, Cgroups::open(dir.path()).unwrap(), Vec::new(), None);
        let first = reader.read(&pods, true, &Samples::default());
        assert_eq!((first.pods.len(), first.cost.failed), (PODS, 0));
        assert_eq!(first.cost.cgroups as usize, 1 + PODS * 3);
        assert!(first.cost.cpu_micros > 0);
        for number in (0..PODS).step_by(10) {
            fs::remove_dir_all(dir.path().join(format!("kubepods/burstable/podu{number}"))).unwrap();
        }
        let second = reader.read(&pods, true, &first);
        assert_eq!(second.pods.len(), PODS - PODS.div_ceil(10), "what is there is served");
        assert_eq!(second.cost.failed, 0, "to vanish is no failure");
        assert!(second.cost.cpu_micros > first.cost.cpu_micros);
    }

    #[test]
    fn services_are_read_while_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        cgroup(dir.path(), 100);
        let slice = dir.path().join("system.slice");
        cgroup(&slice, 10);
        cgroup(&slice.join("a.service"), 1);
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        let services = CgroupPath::parse("/system.slice").ok();
        let mut reader = Reader::new(names, Cgroups::open(dir.path()).unwrap(), Vec::new(), services);
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
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        let mut reader = Reader::new(names, Cgroups::open(dir.path()).unwrap(), Vec::new(), None);
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
