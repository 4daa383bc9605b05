mod races;

use std::{fs, path::Path};

use mainstay_devices::{DevicesConfig, Patience};
use serde_json::json;

use super::*;

/// A machine of two sockets, each a NUMA node of two cores of two threads and 8 GiB: CPUs 0, 1, 4, 5 on the first.
fn machine(root: &Path) -> Host {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/devices/system/cpu/online", "0-7\n");
    put("proc/meminfo", "MemTotal: 16777216 kB\n");
    for (node, cpus) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n")] {
        let base = format!("sys/devices/system/node/node{node}");
        put(&format!("{base}/cpulist"), cpus);
        put(&format!("{base}/meminfo"), &format!("Node {node} MemTotal:  8388608 kB\n"));
        put(&format!("{base}/distance"), if node == 0 { "10 20\n" } else { "20 10\n" });
    }
    for cpu in 0..8_u32 {
        let base = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        put(&format!("{base}/core_id"), &format!("{}\n", cpu % 2));
        put(&format!("{base}/physical_package_id"), &format!("{}\n", cpu % 4 / 2));
    }
    Host::below(root)
}

struct World {
    root: tempfile::TempDir,
    host: Host,
    tasks: TaskGroup,
    resources: Resources,
    problems: Vec<String>,
    assignments: watch::Receiver<Arc<Assignments>>,
    counters: Arc<NodeCounters>,
    change: Change,
}

/// What is special about a configuration.
#[derive(Clone, Copy)]
struct Change(fn(&mut ResourcesConfig));

fn cpus_reserved(reserved: &str) -> CpuSettings {
    let reserved: CpuSet = reserved.parse().unwrap();
    CpuSettings { reserved_count: reserved.len(), reserved: Some(reserved), options: Options::default() }
}

impl World {
    fn start(change: fn(&mut ResourcesConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let host = machine(root.path());
        Self::on(root, host, Change(change)).unwrap()
    }

    fn on(root: tempfile::TempDir, host: Host, change: Change) -> Result<Self, ResourcesError> {
        let tasks = TaskGroup::new();
        let (sender, assignments) = watch::channel(Arc::default());
        let directory = root.path().join("device-plugins");
        let config = DevicesConfig {
            directory,
            copy: root.path().join("mainstay/devices.json"),
            recorded: false,
            assignments: sender.clone(),
            patience: Patience::default(),
            counters: Arc::default(),
        };
        let (devices, _) = mainstay_devices::start(config, &tasks).unwrap();
        let counters: Arc<NodeCounters> = Arc::default();
        let mut config = ResourcesConfig {
            root: root.path().to_owned(),
            recorded: false,
            patience: PATIENCE,
            host: host.clone(),
            cpus: Some(cpus_reserved("0")),
            memory: None,
            topology: TopologySettings { most_nodes: 8, ..TopologySettings::default() },
            pod_level: false,
            period: Duration::from_secs(1),
            devices,
            assignments: sender,
            counters: Arc::clone(&counters),
        };
        (change.0)(&mut config);
        let (resources, problems) = start(config, &tasks)?;
        Ok(Self { root, host, tasks, resources, problems, assignments, counters, change })
    }

    /// Another life on the same disk.
    async fn again(self, meanwhile: impl FnOnce(&Path)) -> Self {
        self.tasks.drain(Duration::from_secs(5)).await;
        meanwhile(self.root.path());
        Self::on(self.root, self.host, self.change).unwrap()
    }

    async fn admit(&self, pod: &Pod) -> Result<(), (&'static str, String)> {
        self.resources.admit(pod).await.map_err(|error| error.refusal())
    }

    fn cpus(&self, uid: &str, container: &str) -> String {
        let place = self.resources.place(uid, container);
        if place.exclusive { place.cpus } else { format!("shared {}", place.cpus) }
    }

    fn file(&self) -> String {
        fs::read_to_string(self.root.path().join("cpu_manager_state")).unwrap()
    }
}

/// A pod of Guaranteed containers; a name with `+` is a sidecar's, with `-` an init container's.
fn pod(uid: &str, containers: &[(&str, u32)]) -> Pod {
    pod_with(uid, containers, "1Gi")
}

fn pod_with(uid: &str, containers: &[(&str, u32)], memory: &str) -> Pod {
    let (mut init, mut apps) = (Vec::new(), Vec::new());
    for (name, cpus) in containers {
        let list = json!({ "cpu": cpus.to_string(), "memory": memory });
        let resources = json!({ "requests": list, "limits": list });
        let mut it = json!({ "name": name.trim_start_matches(['+', '-']), "resources": resources });
        match name.chars().next() {
            Some('+') => {
                it["restartPolicy"] = json!("Always");
                init.push(it);
            }
            Some('-') => init.push(it),
            _ => apps.push(it),
        }
    }
    serde_json::from_value(json!({
        "metadata": { "uid": uid, "name": uid, "namespace": "default" },
        "spec": { "initContainers": init, "containers": apps },
    }))
    .unwrap()
}

#[tokio::test]
async fn cpus_are_given_kept_and_taken_back() {
    let world = World::start(|_| {});
    assert_eq!(world.problems, Vec::<String>::new());
    let (one, two) = (pod("one", &[("c", 2)]), pod("two", &[("c", 1), ("d", 1)]));
    assert!(world.resources.is_due(&one));
    world.admit(&one).await.unwrap();
    assert!(!world.resources.is_due(&one));
    world.admit(&two).await.unwrap();
    // A whole core of the node with the most left of it, then what is left of the core of the reserved one.
    assert_eq!(
        (world.cpus("one", "c"), world.cpus("two", "c"), world.cpus("two", "d")),
        ("1,5".into(), "4".into(), "2".into())
    );
    assert_eq!(world.cpus("other", "c"), "shared 0,3,6-7");
    assert!(world.resources.holds_cpus("one") && !world.resources.holds_cpus("other"));
    let told = world.assignments.borrow().clone();
    assert_eq!(told.allocatable.cpus, (1..8).collect());
    assert_eq!(told.pods[&PodUid::from("one")].containers["c"].cpus, [1, 5].into());
    let (text, counted) = (world.file(), world.counters.pinning.cpu_requests.get());
    assert!(text.contains(r#""entries":{"one":{"c":"1,5"},"two":{"c":"4","d":"2"}}"#), "{text}");
    assert_eq!(counted, 3);

    let world = world.again(|_| {}).await;
    assert!(!world.resources.is_due(&one) && !world.resources.is_lost());
    assert_eq!(world.cpus("one", "c"), "1,5");
    world.resources.release(&PodUid::from("one"));
    world.resources.keep_only(|_| false);
    assert_eq!(world.cpus("one", "c"), "shared 0-7");
    world.tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(world.file(), r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":SUM,"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-7\"}","dataChecksum":DATA}"#
        .replace("SUM", &sum(&world.file(), "checksum")).replace("DATA", &sum(&world.file(), "dataChecksum")));
}

fn sum(text: &str, field: &str) -> String {
    serde_json::from_str::<serde_json::Value>(text).unwrap()[field].to_string()
}

/// C20: init containers leave theirs, sidecars do not.
#[tokio::test]
async fn init_containers_leave_their_cpus() {
    let world = World::start(|_| {});
    world.admit(&pod("p", &[("-i", 4), ("+s", 1), ("a", 2)])).await.unwrap();
    let set = |name: &str| world.cpus("p", name).parse::<CpuSet>().unwrap();
    let (init, sidecar, app) = (set("i"), set("s"), set("a"));
    assert!((&sidecar - &init).is_empty() && (&app - &init).is_empty(), "{init} {sidecar} {app}");
    assert!((&sidecar & &app).is_empty(), "{sidecar} {app}");
}

#[tokio::test]
async fn who_cannot_be_served_holds_nothing() {
    let world = World::start(|_| {});
    let (reason, message) = world.admit(&pod("p", &[("c", 3), ("d", 5)])).await.unwrap_err();
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=5, available=4, which is unexpected"
    );
    assert_eq!(world.cpus("p", "c"), "shared 0-7");
    // T9.
    let counters = &world.counters.pinning;
    assert_eq!((counters.cpu_requests.get(), counters.cpu_errors.get()), (2, 1));
    assert_eq!((counters.admissions.get(), counters.admission_errors.get()), (1, 1));

    // C14.
    let world = World::start(|config| {
        config.cpus.as_mut().unwrap().options.whole_cores = true;
    });
    let (reason, message) = world.admit(&pod("p", &[("c", 1)])).await.unwrap_err();
    assert_eq!(reason, "SMTAlignmentError");
    assert_eq!(message, "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2");
    let misaligned = world.counters.pinning.misaligned.of(["physical_cpu", "container"]).get();
    assert_eq!(misaligned, 1);
}

#[tokio::test]
async fn a_lost_file_is_rebuilt_before_anybody_is_let_in() {
    let world = World::start(|_| {});
    let one = pod("one", &[("c", 2)]);
    world.admit(&one).await.unwrap();
    let (held, whole) = (world.cpus("one", "c"), world.file());
    let world = world.again(|root| fs::write(root.join("cpu_manager_state"), "{").unwrap()).await;
    assert!(
        world.resources.is_lost() && world.problems[0].contains("cpu_manager_state.bad-"),
        "{:?}",
        world.problems
    );
    let unknown = |world: &World| {
        let unknown = world.assignments.borrow().unknown.clone();
        (unknown.cpus, unknown.memory)
    };
    assert_eq!(unknown(&world), (true, false));
    let two = pod("two", &[("c", 4)]);
    let waits = tokio::time::timeout(Duration::from_millis(50), world.resources.admit(&two)).await;
    assert!(waits.is_err(), "who holds what is not known yet");
    let running = |pod: &Pod, cpus: &str| Running {
        pod: Arc::new(pod.clone()),
        container: "c".into(),
        cpus: cpus.parse().unwrap(),
        nodes: NodeMask::default(),
    };
    // One that runs where it was given CPUs, one that shares, one that claims what is another's.
    let claims = [
        running(&one, &held),
        running(&pod("shares", &[("c", 2)]), "0-7"),
        running(&pod("takes", &[("c", 2)]), &held),
        running(&pod("system", &[("c", 1)]), "0"),
    ];
    assert_eq!(world.resources.rebuild(&claims, &[]), 1);
    assert_eq!(world.cpus("one", "c"), held);
    assert_eq!(unknown(&world), (false, false));
    world.admit(&two).await.unwrap();
    world.resources.release(&PodUid::from("two"));
    world.tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(world.file(), whole);
}

/// A file that is gone is as good as one that cannot be used, where there was a life before this one. Nobody waits for ever.
#[tokio::test]
async fn a_file_that_is_gone_is_rebuilt_and_waited_for_within_a_bound() {
    let world = World::start(|config| config.patience = Duration::from_millis(50));
    assert!(!world.resources.is_lost(), "a first life");
    let one = pod("one", &[("c", 2)]);
    world.admit(&one).await.unwrap();
    let held = world.cpus("one", "c");
    let mut world = world.again(|_| {}).await;
    world.change = Change(|config| {
        config.patience = Duration::from_millis(50);
        config.recorded = true;
        config.memory = Some([(0, [("memory".to_owned(), 1 << 30)].into())].into());
    });
    let files = ["cpu_manager_state", "memory_manager_state"];
    let remove = |root: &Path| files.iter().for_each(|name| fs::remove_file(root.join(name)).unwrap());
    let world = world.again(remove).await;
    let said: Vec<bool> = files
        .iter()
        .zip(&world.problems)
        .map(|(name, said)| said.contains(&format!("{name} is gone; what containers that run have")))
        .collect();
    assert_eq!(said, [true, true], "{:?}", world.problems);
    let unknown = world.assignments.borrow().unknown.clone();
    assert!(unknown.cpus && unknown.memory && !unknown.devices);
    let (reason, message) = world.admit(&pod("two", &[("c", 4)])).await.unwrap_err();
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert!(message.contains("the file that said so was lost"), "{message}");
    let running = Running {
        pod: Arc::new(one),
        container: "c".into(),
        cpus: held.parse().unwrap(),
        nodes: NodeMask::default(),
    };
    assert_eq!(world.resources.rebuild(&[running], &[]), 1);
    assert_eq!(world.cpus("one", "c"), held);
    world.admit(&pod("two", &[("c", 4)])).await.unwrap();
}

const NO_NODES: &str = "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected";

/// M3: each node serves somebody by itself, so no two of them are there for one that wants more than either has left.
#[tokio::test]
async fn m3_more_memory_than_any_node_has_left() {
    let world = World::start(|config| {
        let reserved = || BTreeMap::from([("memory".to_owned(), 1 << 30)]);
        config.memory = Some([(0, reserved()), (1, reserved())].into());
    });
    // Of 7 GiB on each.
    for (uid, node) in [("a", "0"), ("b", "1")] {
        world.admit(&pod_with(uid, &[("c", 1)], "4Gi")).await.unwrap();
        assert_eq!(world.resources.place(uid, "c").nodes, node);
    }
    let large = pod_with("large", &[("c", 1)], "4Gi");
    let refused = world.admit(&large).await.unwrap_err();
    assert_eq!(refused, ("UnexpectedAdmissionError", NO_NODES.to_owned()));
    assert!(world.cpus("large", "c").starts_with("shared "), "what it was given is taken back");
    assert_eq!(world.resources.place("large", "c").nodes, "");
    let counters = &world.counters.pinning;
    assert_eq!((counters.memory_requests.get(), counters.memory_errors.get()), (3, 1));
    // What one of them has left it can have; and all of it when the other has gone.
    world.admit(&pod_with("small", &[("c", 1)], "3Gi")).await.unwrap();
    world.resources.release(&PodUid::from("b"));
    world.admit(&large).await.unwrap();
    assert_eq!(world.resources.place("large", "c").nodes, "1");
}

/// A pod that is turned away keeps what it had: only what it was given just now is taken back.
#[tokio::test]
async fn what_was_held_before_a_policy_was_switched_on_is_kept() {
    let world = World::start(|_| {});
    let both = pod("both", &[("c", 1), ("d", 1)]);
    world.admit(&both).await.unwrap();
    let held = [world.cpus("both", "c"), world.cpus("both", "d")];
    let mut world = world.again(|root| fs::remove_file(root.join("memory_manager_state")).unwrap()).await;
    world.change =
        Change(|config| config.memory = Some([(0, [("memory".to_owned(), 1 << 30)].into())].into()));
    let world = world.again(|root| fs::remove_file(root.join("memory_manager_state")).unwrap()).await;
    assert_eq!(world.problems, Vec::<String>::new());
    // Memory for the first of them, and too little for the second.
    let mut greedy = both.clone();
    let spec = greedy.spec.as_mut().unwrap();
    let resources = spec.containers[1].resources.as_mut().unwrap();
    for list in [&mut resources.requests, &mut resources.limits] {
        list.as_mut().unwrap().get_mut("memory").unwrap().0 = "1Ti".into();
    }
    let refused = world.admit(&greedy).await.unwrap_err();
    assert_eq!(refused, ("UnexpectedAdmissionError", NO_NODES.to_owned()));
    assert_eq!([world.cpus("both", "c"), world.cpus("both", "d")], held);
    assert_eq!(world.resources.place("both", "c").nodes, "", "what it was given is taken back");
    world.admit(&both).await.unwrap();
    assert_eq!([world.cpus("both", "c"), world.cpus("both", "d")], held);
    assert_eq!(world.resources.place("both", "c").nodes, "0");
}

/// C16 to C18, the other way: what is no longer so is told of, and never keeps mainstay from starting.
#[tokio::test]
async fn another_machine_is_no_reason_not_to_start() {
    let world = World::start(|_| {});
    world.admit(&pod("one", &[("c", 2)])).await.unwrap();
    let held = world.cpus("one", "c");
    // CPUs more than before: nothing is lost.
    let text = |default: &str, cpus: &str| {
        format!(
            r#"{{"policyName":"static","defaultCpuSet":"{default}","entries":{{"one":{{"c":"{cpus}"}}}},"checksum":0}}"#
        )
    };
    let world =
        world.again(|root| fs::write(root.join("cpu_manager_state"), text("0", &held)).unwrap()).await;
    assert_eq!((world.problems.len(), world.cpus("one", "c")), (0, held.clone()));
    // Also in the default set.
    let world =
        world.again(|root| fs::write(root.join("cpu_manager_state"), text("0-7", &held)).unwrap()).await;
    assert_eq!((world.problems.len(), world.cpus("one", "c")), (0, held));
    // CPUs that are not there.
    let world =
        world.again(|root| fs::write(root.join("cpu_manager_state"), text("0-7", "8-9")).unwrap()).await;
    assert!(
        world.problems[0].contains("held CPUs 8-9, of which 8-9 are not CPUs of this machine any more"),
        "{:?}",
        world.problems
    );
    assert!(world.resources.is_lost());
}

#[tokio::test]
async fn cpus_come_and_go() {
    let world = World::start(|_| {});
    world.admit(&pod("one", &[("c", 2)])).await.unwrap();
    let mut assignments = world.assignments.clone();
    let online = world.root.path().join("sys/devices/system/cpu/online");
    for (list, allocatable) in [("0-6\n", 1..7), ("0-7\n", 1..8)] {
        fs::write(&online, list).unwrap();
        let seen = assignments.wait_for(|it| it.allocatable.cpus == allocatable.clone().collect());
        tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap().unwrap();
        assert_eq!(world.cpus("one", "c"), "1,5", "what is held stays");
    }
}

/// A CPU that is offline when mainstay is started again is its holder's still.
#[tokio::test]
async fn a_cpu_that_is_offline_over_a_restart_is_held() {
    let world = World::start(|_| {});
    world.admit(&pod("one", &[("c", 2)])).await.unwrap();
    assert_eq!(world.cpus("one", "c"), "1,5");
    let (text, one) = (world.file(), pod("one", &[("c", 2)]));
    let set = |root: &std::path::Path, online: &str| {
        fs::write(root.join("sys/devices/system/cpu/present"), "0-7\n").unwrap();
        fs::write(root.join("sys/devices/system/cpu/online"), online).unwrap();
    };
    let world = world.again(|root| set(root, "0-4,6-7\n")).await;
    assert_eq!(world.problems, Vec::<String>::new());
    assert!(!world.resources.is_lost() && !world.resources.is_due(&one));
    assert_eq!(world.cpus("one", "c"), "1", "it runs on what there is");
    assert_eq!(world.cpus("other", "c"), "shared 0,2-4,6-7", "nobody else runs there");
    let world = world.again(|root| set(root, "0-7\n")).await;
    assert_eq!(world.cpus("one", "c"), "1,5");
    world.tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(world.file(), text);
}

/// C30: who would share nothing is refused, by the strict policies because nothing suits it.
#[tokio::test]
async fn c30_pods_as_a_whole() {
    let whole = |uid: &str, own: &[(&str, u32)], shares: bool| -> Pod {
        let mut it = pod(uid, own);
        let spec = it.spec.as_mut().unwrap();
        if shares {
            spec.containers.push(serde_json::from_value(json!({ "name": "shares" })).unwrap());
        }
        let list = json!({ "cpu": "2", "memory": "4Gi" });
        spec.resources = serde_json::from_value(json!({ "requests": list, "limits": list })).unwrap();
        it
    };
    let start = |change: fn(&mut ResourcesConfig)| World::start(change);
    let world = start(|config| {
        one_node(config);
        (config.pod_level, config.topology.whole_pods) = (true, true);
        config.topology.policy = TopologyPolicy::BestEffort;
    });
    let (reason, message) = world.admit(&whole("p", &[("a", 1), ("b", 1)], true)).await.unwrap_err();
    assert_eq!(reason, "EmptyPodSharedPoolError");
    assert!(message.ends_with("leaving no cpus for shared containers"), "{message}");
    assert_eq!(world.cpus("p", "a"), "shared 0-7");
    assert_eq!(world.counters.pinning.allocation_errors.of(["cpu", "pod"]).get(), 1);
    world.admit(&whole("q", &[("a", 1)], true)).await.unwrap();
    let told = world.assignments.borrow().pods[&PodUid::from("q")].clone();
    assert_eq!((told.cpus.len(), told.memory[0].bytes), (2, 4 << 30));
    let set = |name: &str| world.cpus("q", name).parse::<CpuSet>().unwrap();
    assert!((&set("a") & &set("shares")).is_empty() && set("a").len() == 1 && set("shares").len() == 1);
    assert!(world.resources.place("q", "shares").pooled);
    let world = world.again(|_| {}).await;
    assert!(!world.resources.is_due(&whole("q", &[("a", 1)], true)));
    assert_eq!(*world.assignments.borrow().pods[&PodUid::from("q")], *told);

    let world = start(|config| {
        one_node(config);
        (config.pod_level, config.topology.whole_pods) = (true, true);
    });
    let (reason, message) = world.admit(&whole("p", &[("a", 1), ("b", 1)], true)).await.unwrap_err();
    assert_eq!(reason, "TopologyAffinityError");
    assert!(message.starts_with("Pod Scope pod with pod-level resources failed admission"), "{message}");
    // In the container scope each is looked at by itself.
    let world = start(|config| {
        one_node(config);
        config.pod_level = true;
    });
    world.admit(&whole("p", &[("a", 1), ("b", 1)], true)).await.unwrap();
    let told = world.assignments.borrow().pods[&PodUid::from("p")].clone();
    assert!(told.cpus.is_empty() && told.containers["a"].cpus.len() == 1);
    assert!(world.cpus("p", "shares").starts_with("shared"));
}

fn one_node(config: &mut ResourcesConfig) {
    config.topology.policy = TopologyPolicy::SingleNumaNode;
    config.memory = Some(
        [(0, [("memory".to_owned(), 1 << 30)].into()), (1, [("memory".to_owned(), 1 << 30)].into())].into(),
    );
}

#[tokio::test]
async fn everything_from_one_node_or_nothing() {
    let world = World::start(one_node);
    // Memory is left on the second node only, so the CPUs come from there as well.
    world.admit(&pod_with("a", &[("c", 1)], "6Gi")).await.unwrap();
    assert_eq!((world.cpus("a", "c"), world.resources.place("a", "c").nodes), ("4".into(), "0".into()));
    world.admit(&pod_with("b", &[("c", 1)], "2Gi")).await.unwrap();
    assert_eq!((world.cpus("b", "c"), world.resources.place("b", "c").nodes), ("2".into(), "1".into()));
    // Four CPUs are on the second node, three are left.
    let refused = world.admit(&pod("c", &[("c", 4)])).await.unwrap_err();
    assert_eq!(
        refused,
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality".to_owned())
    );
    world.admit(&pod("d", &[("c", 3)])).await.unwrap();
    assert_eq!(world.cpus("d", "c"), "3,6-7");
    let counters = &world.counters.pinning;
    assert_eq!(counters.aligned.of(["numa_node", "container"]).get(), 3);
    assert_eq!(counters.misaligned.of(["numa_node", "container"]).get(), 1);
    let told = world.assignments.borrow().clone();
    assert_eq!(told.placement.memory[&1]["memory"].held, 3 << 30);
    assert_eq!(told.allocatable.memory.len(), 2);
    assert_eq!(told.pods[&PodUid::from("b")].containers["c"].memory[0].nodes, [1]);

    let text = fs::read_to_string(world.root.path().join("memory_manager_state")).unwrap();
    let world = world.again(|_| {}).await;
    assert_eq!(world.problems, Vec::<String>::new());
    assert_eq!(world.resources.place("b", "c").nodes, "1");
    world.tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(fs::read_to_string(world.root.path().join("memory_manager_state")).unwrap(), text);
}

/// T6: what the pod needs at one time decides.
#[tokio::test]
async fn whole_pods_on_one_node() {
    let world = World::start(|config| {
        one_node(config);
        config.topology.whole_pods = true;
    });
    for uid in ["a", "b"] {
        world.admit(&pod(uid, &[("-i", 3), ("c", 1), ("d", 1)])).await.unwrap();
    }
    let nodes = |uid: &str| world.resources.place(uid, "c").nodes;
    assert_eq!((nodes("a"), nodes("b")), ("0".into(), "1".into()));
    assert_eq!((world.cpus("a", "i"), world.cpus("b", "i").len()), ("1,4-5".into(), "2-3,6".len()));
    let refused = world.admit(&pod("c", &[("c", 1), ("d", 1)])).await.unwrap_err();
    assert_eq!(refused.0, "TopologyAffinityError");
    assert_eq!(world.counters.pinning.aligned.of(["numa_node", "pod"]).get(), 2);
}

/// T1: restricted wants what suits everybody; best effort takes what it can have.
#[tokio::test]
async fn restricted_and_best_effort() {
    let spread = |policy: fn(&mut ResourcesConfig)| async move {
        let world = World::start(policy);
        // One is left on the first node, two on the second.
        world.admit(&pod("a", &[("c", 2)])).await.unwrap();
        world.admit(&pod("b", &[("c", 2)])).await.unwrap();
        assert_eq!((world.cpus("a", "c"), world.cpus("b", "c")), ("1,5".into(), "2,6".into()));
        let third = world.admit(&pod("c", &[("c", 3)])).await;
        (third.map_err(|(reason, _)| reason), world.cpus("c", "c"))
    };
    let (refused, _) = spread(|config| config.topology.policy = TopologyPolicy::Restricted).await;
    assert_eq!(refused, Err("TopologyAffinityError"));
    let taken = spread(|config| config.topology.policy = TopologyPolicy::BestEffort).await;
    assert_eq!(taken, (Ok(()), "3-4,7".to_owned()));
}

/// T7, C17 and M2: what a machine cannot do is refused in words that say what to do.
#[tokio::test]
async fn what_cannot_be_is_refused() {
    let refused = |change: fn(&mut ResourcesConfig)| {
        let root = tempfile::tempdir().unwrap();
        let host = machine(root.path());
        match World::on(root, host, Change(change)) {
            Err(error) => error.to_string(),
            Ok(_) => "started".to_owned(),
        }
    };
    let many = refused(|config| {
        config.topology.policy = TopologyPolicy::BestEffort;
        config.topology.most_nodes = 1;
    });
    assert!(many.starts_with("unsupported on machines with more than 1 NUMA Nodes"), "{many}");
    assert_eq!(refused(|config| config.topology.most_nodes = 1), "started", "with none nobody looks");
    let nothing = refused(|config| config.cpus.as_mut().unwrap().reserved_count = 0);
    assert!(nothing.starts_with("[cpumanager] unable to determine reserved CPU resources"), "{nothing}");
    let offline = refused(|config| config.cpus = Some(cpus_reserved("7-8")));
    assert_eq!(offline, "reservedSystemCPUs has 8, which are not among the CPUs 0-7 that are online");
    let node = refused(|config| config.memory = Some([(2, BTreeMap::new())].into()));
    assert!(node.starts_with("reservedMemory names the NUMA node 2"), "{node}");
    let chosen = World::start(|config| {
        config.cpus = Some(CpuSettings { reserved: None, reserved_count: 2, options: Options::default() })
    });
    assert_eq!(chosen.assignments.borrow().placement.reserved, [0, 4].into());

    let kib = |kind: &str, bytes: u64| BTreeMap::from([(kind.to_owned(), bytes)]);
    let check = |given: u64, kept: u64| {
        check_reserved_memory(&[(0, kib("memory", given))].into(), &kib("memory", kept))
    };
    assert!(check(5, 5).is_ok());
    let error = check(1 << 30, 1124 << 20).unwrap_err().to_string();
    assert!(
        error.starts_with("the total amount \"1Gi\" of type \"memory\" is not equal to the value \"1124Mi\""),
        "{error}"
    );
    let nothing = check_reserved_memory(&BTreeMap::new(), &BTreeMap::new()).unwrap_err().to_string();
    assert!(
        nothing.starts_with("[memorymanager] you should specify the system reserved memory"),
        "{nothing}"
    );
}

/// Where nothing is given out, the files say so, as upstream's do.
#[tokio::test]
async fn policies_of_none_have_files_too() {
    let world = World::start(|config| config.cpus = None);
    assert!(!world.resources.is_due(&pod("p", &[("c", 2)])));
    assert_eq!(world.resources.place("p", "c"), Place::default());
    world.tasks.drain(Duration::from_secs(5)).await;
    let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690,"data":"{\"policyName\":\"none\",\"defaultCpuSet\":\"\"}","dataChecksum":3028111495}"#;
    assert_eq!(world.file(), none);
    let memory = fs::read_to_string(world.root.path().join("memory_manager_state")).unwrap();
    assert!(memory.contains("\"checksum\":4236770233"), "{memory}");
}
