//! CPUs and memory of containers' own, on this machine's real cpusets.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use mainstay_e2e::{CgroupFiles, DevicePlugin, PodSeen, SOON, World, ask, idle, sh, with};
use mainstay_testkit::{Containerd, Flavor, Node, mainstay_binary, tool, wait_until};
use serde_json::{Value, json};

/// Upstream's kubelet takes its time.
const LONG: Duration = Duration::from_secs(120);

/// The last CPU is kept for the system: a choice of which the first ones do not come out by themselves.
fn fixed(more: &str) -> String {
    format!(
        "{{cpuManagerPolicy: static, reservedSystemCPUs: \"{}\", cpuManagerReconcilePeriod: 1s{more}}}",
        last_cpu()
    )
}

/// CPUs of this machine; the tests need two.
fn cpus() -> u32 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last = online.trim().rsplit(['-', ',']).next().unwrap().parse::<u32>().unwrap();
    assert!(last > 0, "a machine of one CPU has none to give");
    assert_eq!(online.trim(), format!("0-{last}"), "the tests count on CPUs without gaps");
    last + 1
}

fn last_cpu() -> u32 {
    cpus() - 1
}

/// All but this one, as the kernel writes it.
fn all_but(cpu: u32) -> String {
    let last = last_cpu();
    let range = |from: u32, to: u32| if from == to { from.to_string() } else { format!("{from}-{to}") };
    match cpu {
        0 => range(1, last),
        cpu if cpu == last => range(0, last - 1),
        cpu => format!("{},{}", range(0, cpu - 1), range(cpu + 1, last)),
    }
}

fn guaranteed(cpu: &str) -> Value {
    let list = json!({ "cpu": cpu, "memory": "64Mi" });
    let resources = json!({ "resources": { "requests": list, "limits": list } });
    json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), resources)] })
}

fn simple() -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] })
}

fn pod_cgroup(world: &World, class: &str, pod: &PodSeen) -> CgroupFiles {
    let uid = format!("pod{}", pod.uid());
    match class {
        "" => CgroupFiles::of(world, &["kubepods", &uid]),
        class => CgroupFiles::of(world, &["kubepods", class, &uid]),
    }
}

/// Waits until the kernel has the container on these CPUs.
#[track_caller]
fn runs_on(world: &World, class: &str, pod: &PodSeen, cpus: &str) {
    let files = pod_cgroup(world, class, pod).container(pod.id("c"));
    wait_until(SOON, &format!("CPUs {cpus}"), || {
        let found = files.cpus();
        if found == cpus { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
}

fn state(world: &World) -> String {
    fs::read_to_string(world.node.root().join("cpu_manager_state")).unwrap()
}

/// Waits until the file of who holds what says this.
#[track_caller]
fn kept(world: &World, default: &str, entries: &Value) {
    wait_until(SOON, &format!("{default} and {entries} in the state file"), || {
        let text = fs::read_to_string(world.node.root().join("cpu_manager_state"))
            .map_err(|error| error.to_string())?;
        let kept: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let same = kept["defaultCpuSet"] == default && kept["entries"] == *entries;
        if same && kept["policyName"] == "static" { Ok(()) } else { Err(text) }
    })
    .unwrap();
}

/// What PodResources says of the pod.
fn told(world: &World, pod: &str) -> Result<Value, String> {
    let list = ask(&world.node, &["resources"]).map_err(|error| format!("{error:#}"))?;
    let pods = list["pod_resources"].as_array().cloned().unwrap_or_default();
    pods.into_iter().find(|it| it["name"] == world.full_name(pod)).ok_or_else(|| list.to_string())
}

/// Whether it says nothing there, or that there is nothing.
fn is_empty(told: &Value) -> bool {
    told.is_null() || *told == json!([])
}

/// Waits until PodResources says that of the pod's container `c`.
#[track_caller]
fn holds(world: &World, pod: &str, what: &str, expected: &Value) {
    container_holds(world, pod, "c", what, expected);
}

/// The same of another one. Both have to be told of: one that is left out holds nothing as well.
#[track_caller]
fn container_holds(world: &World, pod: &str, container: &str, what: &str, expected: &Value) {
    wait_until(SOON, &format!("{container} of {pod} holds {expected}"), || {
        let pod = told(world, pod)?;
        let mut containers = pod["containers"].as_array().into_iter().flatten();
        let held = containers.find(|it| it["name"] == container).ok_or_else(|| pod.to_string())?;
        let fits = held[what] == *expected || is_empty(expected) && is_empty(&held[what]);
        if fits { Ok(()) } else { Err(pod.to_string()) }
    })
    .unwrap();
}

fn metric(world: &World, name: &str) -> String {
    let text = world.node.get("/metrics").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or("none").to_owned()
}

/// R3, R4, R5, R7, C22, C24 and C27.
#[test]
fn a_container_has_cpus_to_itself() {
    for flavor in Flavor::ALL {
        let mut world = World::with_config(flavor, &fixed("")).unwrap();
        let all = format!("0-{}", last_cpu());
        let counts_nothing = |world: &World, when: &str| {
            for name in [
                "kubelet_cpu_manager_pinning_requests_total",
                "kubelet_cpu_manager_pinning_errors_total",
                "kubelet_topology_manager_admission_requests_total",
                "kubelet_topology_manager_admission_errors_total",
                r#"kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="container"}"#,
            ] {
                assert_eq!(metric(world, name), "0", "T8 {when}: {name}");
            }
        };
        counts_nothing(&world, "at the first start");
        assert_eq!(metric(&world, "kubelet_cpu_manager_exclusive_cpu_allocation_count"), "0", "T8");
        world.put("shared", simple()).unwrap();
        let shared = world.running("shared").unwrap();
        runs_on(&world, "besteffort", &shared, &all);
        let allocatable: Vec<String> = (0..last_cpu()).map(|cpu| cpu.to_string()).collect();
        assert_eq!(ask(&world.node, &["allocatable"]).unwrap()["cpu_ids"], json!(allocatable), "R7");

        // A part of a CPU is nobody's own: R4, C24.
        world.put("part", guaranteed("100m")).unwrap();
        let part = world.running("part").unwrap();
        runs_on(&world, "", &part, &all);
        assert_eq!(pod_cgroup(&world, "", &part).quota(), Some(10_000));
        holds(&world, "part", "cpu_ids", &json!([]));
        world.take_away("part").unwrap();
        world.gone("part").unwrap();

        world.put("own", guaranteed("1")).unwrap();
        let own = world.running("own").unwrap();
        runs_on(&world, "", &own, "0");
        assert_eq!(world.exec(&own, "c", "grep Cpus_allowed_list /proc/self/status | cut -f2").unwrap(), "0");
        // C24: a quota would only throttle.
        assert_eq!(pod_cgroup(&world, "", &own).quota(), None);
        assert_eq!(pod_cgroup(&world, "", &own).container(own.id("c")).quota(), None);
        // C22: who shares gives way.
        runs_on(&world, "besteffort", &shared, &all_but(0));
        kept(&world, &all_but(0), &json!({ own.uid(): { "c": "0" } }));
        holds(&world, "own", "cpu_ids", &json!(["0"]));
        holds(&world, "shared", "cpu_ids", &json!([]));
        assert_eq!(
            ask(&world.node, &["allocatable"]).unwrap()["cpu_ids"],
            json!(allocatable),
            "R7: the same"
        );
        assert_eq!(metric(&world, "kubelet_cpu_manager_pinning_requests_total"), "1");
        assert_eq!(metric(&world, "kubelet_cpu_manager_exclusive_cpu_allocation_count"), "1");
        let left = format!("{}", (last_cpu() - 1) * 1000);
        assert_eq!(metric(&world, "kubelet_cpu_manager_shared_pool_size_millicores"), left);

        // C27: another container of the same name has the same ones. The command goes down with it.
        drop(world.exec(&own, "c", "while kill -TERM 1; do sleep 0.1; done"));
        let again = world.wait("own", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
        runs_on(&world, "", &again, "0");

        let before = state(&world);
        world.node.kill9();
        world.node.start_again().unwrap();
        let after = world.running("own").unwrap();
        assert_eq!(after.id("c"), again.id("c"));
        // What is held is held still; what is counted begins anew, and is there.
        counts_nothing(&world, "after a restart");
        assert_eq!(metric(&world, "kubelet_cpu_manager_exclusive_cpu_allocation_count"), "1", "T8");
        holds(&world, "own", "cpu_ids", &json!(["0"]));
        runs_on(&world, "", &after, "0");
        runs_on(&world, "besteffort", &shared, &all_but(0));
        assert_eq!(state(&world), before, "a restart changes nothing");

        world.take_away("own").unwrap();
        world.gone("own").unwrap();
        kept(&world, &all, &Value::Null);
        runs_on(&world, "besteffort", &world.running("shared").unwrap(), &all);
    }
}

/// R17, C25 and C27: of two containers one has a CPU to itself, and keeps it when all of the pod is started over in place.
#[test]
fn one_of_two_containers_has_a_cpu_to_itself() {
    // Less is kept back than the CPU that is reserved for it, so that there is room for the other one.
    let config = "{cpuManagerPolicy: static, systemReserved: {cpu: 900m}, cpuManagerReconcilePeriod: 1s}";
    let world = World::with_config(Flavor::Debian16, config).unwrap();
    world.put("shared", simple()).unwrap();
    let shared = world.running("shared").unwrap();
    let has = |cpu: &str| {
        let list = json!({ "cpu": cpu, "memory": "64Mi" });
        json!({ "resources": { "requests": list, "limits": list } })
    };
    let rules =
        json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [88] } }]);
    let part = with(
        sh("part", "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 88"),
        json!({ "restartPolicy": "Never", "restartPolicyRules": rules }),
    );
    let spec = json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [with(idle("c"), has("1")), with(part, has("100m"))],
    });
    world.put("own", spec).unwrap();
    let own = world.running("own").unwrap();
    let before = state(&world);
    let kept: Value = serde_json::from_str(&before).unwrap();
    let cpu = kept["entries"][own.uid()]["c"].as_str().unwrap().to_owned();
    assert_eq!(kept["entries"], json!({ own.uid(): { "c": cpu } }), "the other one has none");
    let others = all_but(cpu.parse().unwrap());
    let is_so = |pod: &PodSeen| {
        runs_on(&world, "", pod, &cpu);
        runs_on(&world, "besteffort", &shared, &others);
        let files = pod_cgroup(&world, "", pod);
        let part = files.container(pod.id("part"));
        assert_eq!(part.cpus(), others);
        assert_eq!((files.quota(), files.container(pod.id("c")).quota()), (None, None), "C25");
        assert_eq!(part.quota(), Some(10_000), "C25");
        holds(&world, "own", "cpu_ids", &json!([cpu]));
        container_holds(&world, "own", "part", "cpu_ids", &json!([]));
    };
    is_so(&own);
    world.touch(&own, "part", "/tmp/go").unwrap();
    let again = world
        .wait("own", "all of it anew", |pod| {
            // They are nobody else's while nothing of it runs.
            assert_eq!(state(&world), before);
            ["c", "part"].iter().all(|name| pod.restarts(name) == 1 && pod.runs(name))
        })
        .unwrap();
    for name in ["c", "part"] {
        assert_ne!(again.id(name), own.id(name), "{name}");
    }
    is_so(&again);
    assert_eq!(state(&world), before);
    assert_eq!(metric(&world, "kubelet_cpu_manager_pinning_requests_total"), "1", "given once");
}

/// C23.
#[test]
fn reserved_cpus_may_be_kept_from_everybody() {
    let strict = fixed(", cpuManagerPolicyOptions: {strict-cpu-reservation: \"true\"}");
    let world = World::with_config(Flavor::Debian16, &strict).unwrap();
    world.put("shared", simple()).unwrap();
    runs_on(&world, "besteffort", &world.running("shared").unwrap(), &all_but(last_cpu()));
    kept(&world, &all_but(last_cpu()), &Value::Null);
}

#[test]
fn a_state_file_that_cannot_be_used_is_rebuilt_from_what_runs() {
    let mut world = World::with_config(Flavor::Debian16, &fixed("")).unwrap();
    world.put("own", guaranteed("1")).unwrap();
    world.put("shared", simple()).unwrap();
    let (own, shared) = (world.running("own").unwrap(), world.running("shared").unwrap());
    runs_on(&world, "", &own, "0");
    runs_on(&world, "besteffort", &shared, &all_but(0));
    let (whole, file) = (state(&world), world.node.root().join("cpu_manager_state"));
    // Gone without a trace, though pods of an earlier life are on record.
    world.node.kill9();
    fs::remove_file(&file).unwrap();
    world.node.start_again().unwrap();
    kept(&world, &all_but(0), &json!({ own.uid(): { "c": "0" } }));
    assert_eq!(state(&world), whole);
    holds(&world, "own", "cpu_ids", &json!(["0"]));
    runs_on(&world, "", &world.running("own").unwrap(), "0");
    world.node_event("StateFileSetAside", "cpu_manager_state is gone").unwrap();
    // Cut off; changed; of nobody; on CPUs that are not there.
    let elsewhere = format!(
        r#"{{"policyName":"static","defaultCpuSet":"0","entries":{{"{}":{{"c":"4000"}}}},"checksum":0}}"#,
        own.uid()
    );
    for (at, bad) in
        [whole.trim_end_matches('}').to_owned(), whole.replace("static", "statio"), "[]".into(), elsewhere]
            .iter()
            .enumerate()
    {
        world.node.kill9();
        fs::write(&file, bad).unwrap();
        world.node.start_again().unwrap();
        kept(&world, &all_but(0), &json!({ own.uid(): { "c": "0" } }));
        assert_eq!(state(&world), whole);
        holds(&world, "own", "cpu_ids", &json!(["0"]));
        let after = world.running("own").unwrap();
        assert_eq!((after.id("c"), after.restarts("c")), (own.id("c"), 0));
        runs_on(&world, "", &after, "0");
        runs_on(&world, "besteffort", &shared, &all_but(0));
        let node = world
            .node
            .wait_for(Duration::from_secs(30), "the condition", |_| {
                let text = world.node.get("/mainstay/v1/node").map_err(|error| format!("{error:#}"))?;
                let shown: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                let conditions = shown["conditions"].as_array().cloned().unwrap_or_default();
                let found = conditions.into_iter().find(|it| it["type"] == "StateIntact");
                found.filter(|it| it["status"] == "False").ok_or(text)
            })
            .unwrap();
        let message = node["message"].as_str().unwrap();
        assert!(message.contains("cpu_manager_state.bad-"), "{at}: {message}");
    }
    world.node_event("StateFileSetAside", "cpu_manager_state").unwrap();
}

/// A container that the runtime does not update, because the shim that would do it hangs, holds up no other container's cpuset.
#[test]
fn a_container_that_cannot_be_told_its_cpus_holds_up_no_other() {
    let world = World::with_config(Flavor::Debian16, &fixed("")).unwrap();
    for name in ["stuck", "free"] {
        world.put(name, simple()).unwrap();
    }
    let [stuck, free] = ["stuck", "free"].map(|name| world.running(name).unwrap());
    let all = format!("0-{}", last_cpu());
    runs_on(&world, "besteffort", &stuck, &all);
    let pid = world.crictl(&["inspect", stuck.id("c")]).unwrap()["info"]["pid"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let shim = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned();
    let frozen = Frozen::new(&shim);
    world.put("own", guaranteed("1")).unwrap();
    runs_on(&world, "", &world.running("own").unwrap(), "0");
    runs_on(&world, "besteffort", &free, &all_but(0));
    let files = pod_cgroup(&world, "besteffort", &stuck).container(stuck.id("c"));
    assert_eq!(files.cpus(), all, "it cannot be told");
    drop(frozen);
    runs_on(&world, "besteffort", &stuck, &all_but(0));
}

/// A process that is stopped, and goes on when this is dropped.
struct Frozen(String);

impl Frozen {
    fn new(pid: &str) -> Self {
        signal("-STOP", pid);
        Self(pid.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success(), "kill {name} {pid}");
}

/// Where the file of who holds what was lost, and something runs of which nobody can say whose it is, because the API server is away, a pod that wants
/// CPUs of its own waits and says for what. Nobody else waits.
#[test]
fn a_pod_says_that_it_waits_until_it_is_known_who_holds_what() {
    let world = World::with_config(Flavor::Debian16, &fixed("")).unwrap();
    world.put("own", guaranteed("1")).unwrap();
    let own = world.running("own").unwrap();
    runs_on(&world, "", &own, "0");
    let World { node: mut before, containerd } = world;
    before.kill9();
    // As it is after a takeover from another kubelet: a pod runs, and there is no record of it.
    let root = before.root().to_owned();
    fs::remove_dir_all(root.join("mainstay")).unwrap();
    fs::write(root.join("cpu_manager_state"), "{").unwrap();
    before.remove_manifest("own.json").unwrap();
    let same_node = format!(
        "{}, cgroupRoot: {}, podLogsDir: {}}}",
        fixed("").trim_end_matches('}'),
        before.cgroup_root(),
        before.pod_logs().display()
    );
    let nobody = containerd.dir().join("nobody.kubeconfig");
    let cluster = json!({ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } });
    let context = json!({ "name": "c", "context": { "cluster": "c", "user": "u" } });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster], "contexts": [context],
        "users": [{ "name": "u", "user": {} }],
    });
    fs::write(&nobody, config.to_string()).unwrap();
    let node = Node::builder()
        .containerd(&containerd)
        .root(&root)
        .manifests(before.manifests())
        .config(&same_node)
        .args([format!("--kubeconfig={}", nobody.display())])
        .start()
        .unwrap();
    let world = World { node, containerd };
    world.put("late", guaranteed("1")).unwrap();
    world.put("shared", simple()).unwrap();
    let waits = world.wait("late", "its wait", |pod| pod.waits("c") == "WaitingForResourceState").unwrap();
    assert!(waits.waiting_message("c").contains("was lost"), "{}", waits.waiting_message("c"));
    assert!(world.sandboxes_of(waits.uid()).unwrap().is_empty(), "nothing is made of it");
    world.running("shared").unwrap();
    // Nobody is told meanwhile that all CPUs are free: what may be given out is known, who has it is not.
    let allocatable = ask(&world.node, &["allocatable"]).unwrap();
    assert_eq!(allocatable["cpu_ids"].as_array().map(Vec::len), usize::try_from(last_cpu()).ok());
    let name = world.full_name("shared");
    for words in [
        &["resources"][..],
        &["resources-v1alpha1"],
        &["get-resources", "default", &name],
        &["watch-resources", "--count", "1"],
    ] {
        let said = ask(&world.node, words).unwrap();
        assert_eq!(said["code"], "FAILED_PRECONDITION", "{words:?}: {said}");
        let message = said["message"].as_str().unwrap();
        assert!(message.starts_with("who holds CPUs is not known: the file that said so was lost"), "{said}");
    }
    // What it made goes with it, before the runtime does.
    drop(before);
}

/// R23 and R24.
#[test]
fn memory_is_counted_by_numa_node() {
    let memory = fixed(
        ", memoryManagerPolicy: Static, topologyManagerPolicy: single-numa-node, systemReserved: {memory: 100Mi}, evictionHard: {memory.available: 28Mi}, reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]",
    );
    let mut world = World::with_config(Flavor::Debian16, &memory).unwrap();
    world.put("own", guaranteed("1")).unwrap();
    let own = world.running("own").unwrap();
    runs_on(&world, "", &own, "0");
    assert_eq!(pod_cgroup(&world, "", &own).container(own.id("c")).memory_nodes(), "0");
    let block = json!([{ "memory_type": "memory", "size": (64 << 20).to_string(), "topology": { "nodes": [{ "ID": "0" }] } }]);
    holds(&world, "own", "memory", &block);
    let file = world.node.root().join("memory_manager_state");
    let text = fs::read_to_string(&file).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    let table = &kept["machineState"]["0"]["memoryMap"]["memory"];
    assert_eq!((&table["systemReserved"], &table["reserved"]), (&json!(128 << 20), &json!(64 << 20)));
    assert_eq!(
        kept["entries"][own.uid()]["c"],
        json!([{ "numaAffinity": [0], "type": "memory", "size": 64 << 20 }])
    );
    // R24: what may be given out is what the file says, whoever holds it.
    let allocatable = ask(&world.node, &["allocatable"]).unwrap();
    assert_eq!(allocatable["memory"][0]["size"], json!(table["allocatable"].to_string()), "{allocatable}");
    assert_eq!(metric(&world, "kubelet_memory_manager_pinning_requests_total"), "1");
    world.node.kill9();
    world.node.start_again().unwrap();
    holds(&world, "own", "memory", &block);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);

    // Cut off; changed; of another machine: looked up from the containers that run.
    let elsewhere = r#"{"policyName":"Static","machineState":{},"entries":{"UID":{"c":[{"numaAffinity":[9],"type":"memory","size":1}]}},"checksum":0}"#;
    for bad in [
        text.trim_end_matches('}').to_owned(),
        text.replace("Static", "Statio"),
        elsewhere.replace("UID", own.uid()),
    ] {
        world.node.kill9();
        fs::write(&file, bad).unwrap();
        world.node.start_again().unwrap();
        holds(&world, "own", "memory", &block);
        wait_until(SOON, "the file is whole again", || {
            let found = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            if found == text { Ok(()) } else { Err(found) }
        })
        .unwrap();
        let after = world.running("own").unwrap();
        assert_eq!((after.id("c"), after.restarts("c")), (own.id("c"), 0));
        was_set_aside(&world, "memory_manager_state");
    }
    world.node_event("StateFileSetAside", "memory_manager_state").unwrap();
}

/// Waits until the node says that this file had to be set aside.
#[track_caller]
fn was_set_aside(world: &World, name: &str) {
    let node = world
        .node
        .wait_for(SOON, "the condition", |_| {
            let text = world.node.get("/mainstay/v1/node").map_err(|error| format!("{error:#}"))?;
            let shown: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let conditions = shown["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|it| it["type"] == "StateIntact");
            let said = found.filter(|it| it["status"] == "False");
            said.filter(|it| it["message"].to_string().contains(name)).ok_or(text)
        })
        .unwrap();
    let message = node["message"].as_str().unwrap();
    assert!(message.contains(&format!("{name}.bad-")), "{message}");
}

/// A machine of two NUMA nodes: the kernel's description of the real one's CPUs by node is put in its place for mainstay alone, in a mount namespace of
/// its own. The first CPU, which is the system's, is on the first node; all others are on the second.
#[test]
fn what_lies_together_on_a_machine_of_two_nodes() {
    use std::os::unix::fs::PermissionsExt as _;
    const RESOURCE: &str = "example.com/dev";
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let described = containerd.dir().join("node");
    let others = if last_cpu() == 1 { "1\n".to_owned() } else { format!("1-{}\n", last_cpu()) };
    for (node, cpus) in [(0, "0\n"), (1, others.as_str())] {
        let dir = described.join(format!("node{node}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpulist"), cpus).unwrap();
        fs::write(dir.join("meminfo"), format!("Node {node} MemTotal:  8388608 kB\n")).unwrap();
        fs::write(dir.join("distance"), if node == 0 { "10 20\n" } else { "20 10\n" }).unwrap();
    }
    // Which CPUs are online is told by a file of ours as well.
    let (online, all_online) = (containerd.dir().join("online"), format!("0-{}\n", last_cpu()));
    fs::write(&online, &all_online).unwrap();
    let program = containerd.dir().join("mainstay-on-two-nodes");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation slave sh -c 'mount --bind {} /sys/devices/system/node && mount --bind {} /sys/devices/system/cpu/online && exec {} \"$@\"' sh \"$@\"\n",
        described.display(),
        online.display(),
        mainstay_binary().unwrap().display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = "{cpuManagerPolicy: static, cpuManagerReconcilePeriod: 1s, reservedSystemCPUs: \"0\", topologyManagerPolicy: single-numa-node}";
    let node = Node::builder().containerd(&containerd).config(config).program(&program).start().unwrap();
    let mut world = World { node, containerd };
    let devices = json!([
        { "id": "a", "healthy": true, "nodes": [0] },
        { "id": "b", "healthy": true, "nodes": [1] },
        { "id": "c", "healthy": true, "nodes": [0] },
    ]);
    let mut plugin = DevicePlugin::new(plugin_program(), &world.node, RESOURCE, &devices).unwrap();
    plugin.start().unwrap();
    wait_until(SOON, "three devices", || {
        let all = ask(&world.node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
        if all["devices"].as_array().map(Vec::len) == Some(3) { Ok(()) } else { Err(all.to_string()) }
    })
    .unwrap();
    let wants = |count: u32, cpu: bool| {
        let mut list = json!({ RESOURCE: count });
        if cpu {
            list = with(list, json!({ "cpu": "1", "memory": "64Mi" }));
        }
        let resources = json!({ "resources": { "requests": list, "limits": list } });
        json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), resources)] })
    };
    let entry = |id: &str, node: u32| {
        let topology = json!({ "nodes": [{ "ID": node.to_string() }] });
        json!({ "resource_name": RESOURCE, "device_ids": [id], "topology": topology })
    };
    // CPUs are to be had on the second node only, so the device is one of there, though others come first.
    world.put("both", wants(1, true)).unwrap();
    runs_on(&world, "", &world.running("both").unwrap(), "1");
    holds(&world, "both", "devices", &json!([entry("b", 1)]));
    // Two that are left lie together.
    world.put("pair", wants(2, false)).unwrap();
    world.running("pair").unwrap();
    holds(&world, "pair", "devices", &json!([entry("a", 0), entry("c", 0)]));
    world.take_away("pair").unwrap();
    world.gone("pair").unwrap();

    // After a restart it is waited for the plugin before anything is chosen: where devices lie only it can tell.
    world.node.kill9();
    plugin.kill();
    world.take_away("both").unwrap();
    world.put("late", wants(1, true)).unwrap();
    world.put("alone", wants(2, false)).unwrap();
    world.node.start_again().unwrap();
    world.gone("both").unwrap();
    for name in ["late", "alone"] {
        world.wait(name, "its wait", |pod| pod.waits("c") == "WaitingForDevicePlugin").unwrap();
    }
    plugin.start().unwrap();
    runs_on(&world, "", &world.running("late").unwrap(), "1");
    holds(&world, "late", "devices", &json!([entry("b", 1)]));
    world.running("alone").unwrap();
    holds(&world, "alone", "devices", &json!([entry("a", 0), entry("c", 0)]));

    // CPUs that go offline, and come back.
    let others: Vec<String> = (1..=last_cpu()).map(|cpu| cpu.to_string()).collect();
    for (text, cpus) in [(&all_online, &others[..]), (&"0\n".to_owned(), &[]), (&all_online, &others[..])] {
        fs::write(&online, text).unwrap();
        wait_until(SOON, &format!("CPUs {cpus:?} to give out"), || {
            let all = ask(&world.node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
            if all["cpu_ids"] == json!(cpus) { Ok(()) } else { Err(all.to_string()) }
        })
        .unwrap();
        holds(&world, "late", "cpu_ids", &json!(["1"]));
    }
}

/// A pod that says itself what it needs has CPUs and memory as a whole: C29 to C31 and R26.
#[test]
fn a_pod_has_cpus_and_memory_as_a_whole() {
    let config = |scope: &str| {
        fixed(&format!(
            ", featureGates: {{PodLevelResourceManagers: true}}, topologyManagerPolicy: restricted, topologyManagerScope: {scope}, memoryManagerPolicy: Static, systemReserved: {{memory: 100Mi}}, evictionHard: {{memory.available: 28Mi}}, reservedMemory: [{{numaNode: 0, limits: {{memory: 128Mi}}}}]"
        ))
    };
    let whole = |containers: Value| {
        let list = json!({ "cpu": "1", "memory": "128Mi" });
        json!({
            "terminationGracePeriodSeconds": 1, "containers": containers,
            "resources": { "requests": list, "limits": list },
        })
    };
    let own = |memory: &str| {
        let list = json!({ "cpu": "1", "memory": memory });
        json!({ "resources": { "requests": list, "limits": list } })
    };
    let block = |bytes: u64| json!([{ "memory_type": "memory", "size": bytes.to_string(), "topology": { "nodes": [{ "ID": "0" }] } }]);

    let mut world = World::with_config(Flavor::Debian16, &config("pod")).unwrap();
    world.put("shares", whole(json!([idle("c"), idle("d")]))).unwrap();
    let pod = world.running("shares").unwrap();
    let files = pod_cgroup(&world, "", &pod);
    // Both run on the pod's one CPU; the pod has no quota.
    for name in ["c", "d"] {
        wait_until(SOON, "the pod's CPU", || {
            let found = files.container(pod.id(name)).cpus();
            if found == "0" { Ok(()) } else { Err(found) }
        })
        .unwrap();
        assert_eq!(files.container(pod.id(name)).memory_nodes(), "0");
    }
    assert_eq!(files.quota(), None);
    let tells = |world: &World| {
        wait_until(SOON, "R26", || {
            let told = told(world, "shares")?;
            let containers = told["containers"].as_array().cloned().unwrap_or_default();
            let alone = containers.iter().any(|it| !is_empty(&it["cpu_ids"]) || !is_empty(&it["memory"]));
            let fits = told["cpu_ids"] == json!(["0"]) && told["memory"] == block(128 << 20);
            if fits && containers.len() == 2 && !alone { Ok(()) } else { Err(told.to_string()) }
        })
        .unwrap();
    };
    tells(&world);
    let read = |world: &World| {
        ["cpu_manager_state", "memory_manager_state"]
            .map(|name| fs::read_to_string(world.node.root().join(name)).unwrap_or_default())
    };
    let files_before = read(&world);
    let kept: Value = serde_json::from_str(&files_before[0]).unwrap();
    let data: Value = serde_json::from_str(kept["data"].as_str().unwrap()).unwrap();
    assert_eq!(data["podEntries"], json!({ pod.uid(): { "cpuSet": "0" } }));
    assert_eq!(data["entries"], json!({ pod.uid(): { "c": "0", "d": "0" } }));
    assert_eq!(kept["podEntries"], Value::Null);
    let total = |name: &str| metric(&world, &format!("kubelet_resource_manager_{name}"));
    assert_eq!(total("allocations_total{resource_name=\"cpu\",source=\"pod\"}"), "2");
    assert_eq!(
        total("container_assignments_total{resource_name=\"memory\",assignment_type=\"pod_shared\"}"),
        "2"
    );
    // A restart changes nothing; nor do lost files.
    for lose in [false, true] {
        world.node.kill9();
        if lose {
            for name in ["cpu_manager_state", "memory_manager_state"] {
                fs::write(world.node.root().join(name), "{").unwrap();
            }
        }
        world.node.start_again().unwrap();
        tells(&world);
        wait_until(SOON, "the files", || {
            let found = read(&world);
            if found == files_before { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .unwrap();
        assert_eq!(world.running("shares").unwrap().id("c"), pod.id("c"));
    }
    // C31: with the pod all of it goes.
    world.take_away("shares").unwrap();
    world.gone("shares").unwrap();
    kept_nothing(&world);

    // C30: nothing would be left for the one that shares.
    world.put("greedy", whole(json!([with(idle("c"), own("64Mi")), idle("d")]))).unwrap();
    let refused = world.wait("greedy", "its refusal", |pod| pod.phase() == "Failed").unwrap();
    assert_eq!(refused.text("/status/reason"), "TopologyAffinityError");
    let words = "Pod was rejected: Pod Scope pod with pod-level resources failed admission under pod-scope topology manager";
    assert_eq!(refused.text("/status/message"), words);
    world.take_away("greedy").unwrap();

    // In the scope of containers it is let in, and the pod has nothing as a whole.
    let world = World::with_config(Flavor::Debian16, &config("container")).unwrap();
    world.put("greedy", whole(json!([with(idle("c"), own("64Mi")), idle("d")]))).unwrap();
    world.running("greedy").unwrap();
    wait_until(SOON, "what its container has to itself", || {
        let told = told(&world, "greedy")?;
        let first = &told["containers"][0];
        let fits = first["cpu_ids"] == json!(["0"]) && first["memory"] == block(64 << 20);
        let alone = is_empty(&told["cpu_ids"]) && is_empty(&told["memory"]);
        if fits && alone { Ok(()) } else { Err(told.to_string()) }
    })
    .unwrap();
    drop(world);

    // M22: without the gate one that says itself what it needs has nothing to itself, nor has what is in it.
    let without = config("pod").replace("PodLevelResourceManagers: true", "PodLevelResourceManagers: false");
    let world = World::with_config(Flavor::Debian16, &without).unwrap();
    for (name, first) in [("shares", idle("c")), ("greedy", with(idle("c"), own("64Mi")))] {
        world.put(name, whole(json!([first, idle("d")]))).unwrap();
        let pod = world.running(name).unwrap();
        assert_eq!(pod.text("/status/qosClass"), "Guaranteed");
        let files = pod_cgroup(&world, "", &pod);
        assert_eq!(files.quota(), Some(100_000), "{name}");
        for container in ["c", "d"] {
            assert_eq!(files.container(pod.id(container)).cpus(), format!("0-{}", last_cpu()));
            for what in ["cpu_ids", "memory"] {
                container_holds(&world, name, container, what, &json!([]));
            }
        }
        let told = told(&world, name).unwrap();
        assert!(is_empty(&told["cpu_ids"]) && is_empty(&told["memory"]), "{told}");
        kept_nothing(&world);
        let memory = fs::read_to_string(world.node.root().join("memory_manager_state")).unwrap();
        assert!(memory.contains("Static") && !memory.contains(pod.uid()), "{memory}");
        world.take_away(name).unwrap();
        world.gone(name).unwrap();
    }
}

/// Waits until the files say that nobody holds anything.
#[track_caller]
fn kept_nothing(world: &World) {
    wait_until(SOON, "nobody holds anything", || {
        let text = state(world);
        if text.contains("ntries") { Err(text) } else { Ok(()) }
    })
    .unwrap();
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    for (config, words) in [
        (
            "{cpuManagerPolicy: static}",
            "[cpumanager] unable to determine reserved CPU resources for static policy",
        ),
        (
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"4000\"}",
            "reservedCPUs: 4000 is not a subset of online-cpus",
        ),
        (
            "{memoryManagerPolicy: Static, kubeReserved: {memory: 1Gi}, evictionHard: {memory.available: 100Mi}, reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]}",
            "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"1124Mi\" determined by Node Allocatable feature",
        ),
        (
            "{memoryManagerPolicy: Static, kubeReserved: {memory: 1Gi}, evictionHard: {memory.available: 100Mi}, reservedMemory: [{numaNode: 40, limits: {memory: 1124Mi}}]}",
            "reservedMemory names the NUMA node 40, which this machine does not have",
        ),
    ] {
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        let mut node = Node::builder().containerd(&containerd).config(config).spawn().unwrap();
        let status = node.wait_for_exit(Duration::from_secs(30)).unwrap();
        assert!(!status.success() && node.log().contains(words), "{config}: {}", node.log());
    }
}

/// Upstream's kubelet starts on mainstay's files and mainstay on upstream's; nobody's CPUs, memory and devices change.
#[test]
fn either_kubelet_reads_the_others_files() {
    const RESOURCE: &str = "example.com/dev";
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let shared = containerd.dir().join("shared");
    let (root, manifests) = (shared.join("root"), shared.join("manifests"));
    let config = fixed(
        ", memoryManagerPolicy: Static, systemReserved: {memory: 100Mi}, evictionHard: {memory.available: 28Mi}, reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]",
    );
    let both = || Node::builder().containerd(&containerd).root(&root).manifests(&manifests);
    let program = with_plugins_in(&containerd, &root);
    let theirs = || both().upstream().program(&program);
    let mut upstream = theirs().config(&config).start().unwrap();
    let same_node = format!(
        "{}, cgroupRoot: {}, podLogsDir: {}}}",
        config.trim_end_matches('}'),
        upstream.cgroup_root(),
        upstream.pod_logs().display()
    );
    let devices: Value =
        ["a", "b", "c"].map(|id| json!({ "id": id, "healthy": true, "nodes": [0] })).into_iter().collect();
    let mut plugin = DevicePlugin::new(plugin_program(), &upstream, RESOURCE, &devices).unwrap();
    plugin.start().unwrap();
    let offers = |node: &Node| {
        wait_until(LONG, "three devices", || {
            let all = ask(node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
            if all["devices"].as_array().map(Vec::len) == Some(3) { Ok(()) } else { Err(all.to_string()) }
        })
        .unwrap();
    };
    offers(&upstream);
    let uid = "3f1c2a5e-0000-4000-8000-000000000008";
    let list = json!({ "cpu": "1", "memory": "64Mi", RESOURCE: 1 });
    let own = pod_of(uid, "own", &json!({ "requests": list, "limits": list }));
    upstream.write_manifest("own.yaml", &own.to_string()).unwrap();
    let files = ["cpu_manager_state", "memory_manager_state"].map(|name| root.join(name));
    let read = || files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
    let runs = |node: &Node, name: &str| -> Result<String, String> {
        let pods = node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        let full_name = format!("{name}-{}", node.name());
        let mut items = pods["items"].as_array().into_iter().flatten();
        let pod = items.find(|it| it["metadata"]["name"] == full_name.as_str());
        let status = &pod.ok_or_else(|| pods.to_string())?["status"]["containerStatuses"][0];
        let id = status["containerID"].as_str().filter(|_| !status["state"]["running"].is_null());
        id.map(str::to_owned).ok_or_else(|| pods.to_string())
    };
    // CPUs, bytes and devices of a pod's container; who is not told of holds something else.
    let holds = |node: &Node, name: &str| -> Result<(Value, Value, Vec<String>), String> {
        let list = ask(node, &["resources"]).map_err(|error| format!("{error:#}"))?;
        let full_name = format!("{name}-{}", node.name());
        let mut pods = list["pod_resources"].as_array().into_iter().flatten();
        let pod = pods.find(|it| it["name"] == full_name.as_str()).ok_or_else(|| list.to_string())?;
        let held = &pod["containers"][0];
        let devices = held["devices"].as_array().into_iter().flatten();
        let ids = devices.filter_map(|it| it["device_ids"][0].as_str()).map(str::to_owned);
        Ok((held["cpu_ids"].clone(), held["memory"][0]["size"].clone(), ids.collect()))
    };
    let id = wait_until(LONG, "the pod under upstream's kubelet", || runs(&upstream, "own")).unwrap();
    let before = read();
    assert!(before[0].contains(&format!(r#""entries":{{"{uid}":{{"c":"0"}}}}"#)), "{}", before[0]);
    assert!(
        before[1].contains(&format!(r#""entries":{{"{uid}":{{"c":[{{"numaAffinity":[0]"#)),
        "{}",
        before[1]
    );
    let held = holds(&upstream, "own").unwrap();
    assert_eq!((&held.0, &held.1, held.2.len()), (&json!(["0"]), &json!((64 << 20).to_string()), 1));
    let checkpoint = root.join("device-plugins/kubelet_internal_checkpoint");
    // Who holds which devices, and what the plugin answered.
    let entries = || -> Vec<Value> {
        let kept: Value = serde_json::from_str(&fs::read_to_string(&checkpoint).unwrap()).unwrap();
        kept["Data"]["PodDeviceEntries"].as_array().cloned().unwrap_or_default()
    };
    let of_own = entries();
    assert_eq!((of_own.len(), &of_own[0]["DeviceIDs"]), (1, &json!({ "0": held.2 })), "{of_own:?}");
    upstream.sigterm().unwrap();
    let written = fs::metadata(&checkpoint).unwrap().ino();

    let mut mainstay = both().config(&same_node).start().unwrap();
    assert_eq!(wait_until(LONG, "the pod under mainstay", || runs(&mainstay, "own")).unwrap(), id);
    assert_eq!(holds(&mainstay, "own").unwrap(), held);
    offers(&mainstay);
    // Another one, so that upstream's kubelet finds what it has not written itself.
    let late = pod_of(
        "3f1c2a5e-0000-4000-8000-00000000000a",
        "late",
        &json!({ "requests": { RESOURCE: 1 }, "limits": { RESOURCE: 1 } }),
    );
    mainstay.write_manifest("late.yaml", &late.to_string()).unwrap();
    let late_id = wait_until(LONG, "the other under mainstay", || runs(&mainstay, "late")).unwrap();
    let of_late = holds(&mainstay, "late").unwrap();
    assert!(of_late.2.len() == 1 && of_late.2 != held.2, "{of_late:?}");
    mainstay.sigterm().unwrap();
    // Byte for byte: both write what they hold.
    assert_eq!(read(), before);
    assert_ne!(fs::metadata(&checkpoint).unwrap().ino(), written, "mainstay has written it");
    let of_both = entries();
    assert_eq!((of_both.len(), of_both.contains(&of_own[0])), (2, true), "{of_both:?}");

    let upstream = theirs().config(&same_node).start().unwrap();
    for (name, id, held) in [("own", id, held), ("late", late_id, of_late)] {
        assert_eq!(wait_until(LONG, name, || runs(&upstream, name)).unwrap(), id);
        wait_until(LONG, &format!("what {name} holds under upstream's kubelet again"), || {
            let found = holds(&upstream, name)?;
            if found == held { Ok(()) } else { Err(format!("{found:?}, and not {held:?}")) }
        })
        .unwrap();
    }
    offers(&upstream);
    assert_eq!(read(), before);
    let found = entries();
    assert!(found.len() == 2 && of_both.iter().all(|entry| found.contains(entry)), "{found:?}");
    let refused = ["could not restore state", "checksum", "corrupted", "Failed to read data from checkpoint"];
    assert!(!refused.iter().any(|word| upstream.log().contains(word)), "{}", upstream.log());
}

/// Upstream's kubelet, for which the one place where it looks for device plugins is below `root`.
fn with_plugins_in(containerd: &Containerd, root: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = root.join("device-plugins");
    fs::create_dir_all(&directory).unwrap();
    let program = containerd.dir().join("kubelet-with-plugins");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mkdir -p /var/lib/kubelet/device-plugins && mount --bind {} /var/lib/kubelet/device-plugins && exec {} \"$@\"' sh \"$@\"\n",
        directory.display(),
        tool("kubelet").unwrap().display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// The device plugin for tests; where tests are run elsewhere than they are built, it is beside mainstay.
fn plugin_program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_device-plugin"));
    if built.is_file() { built } else { mainstay_binary().unwrap().with_file_name("device-plugin") }
}

/// A pod with this UID and one container that has these resources.
fn pod_of(uid: &str, name: &str, resources: &Value) -> Value {
    let container = with(idle("c"), json!({ "resources": resources }));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "uid": uid },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
    })
}

/// Upstream's kubelet starts on mainstay's files of what pods hold as a whole, and leaves them as they are.
#[test]
fn upstreams_kubelet_reads_what_pods_hold_as_a_whole() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let shared = containerd.dir().join("shared");
    let (root, manifests) = (shared.join("root"), shared.join("manifests"));
    let config = fixed(
        ", featureGates: {PodLevelResourceManagers: true}, topologyManagerPolicy: restricted, topologyManagerScope: pod, memoryManagerPolicy: Static, systemReserved: {memory: 100Mi}, evictionHard: {memory.available: 28Mi}, reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]",
    );
    let both = || Node::builder().containerd(&containerd).root(&root).manifests(&manifests);
    let mut mainstay = both().config(&config).start().unwrap();
    let same_node = format!(
        "{}, cgroupRoot: {}, podLogsDir: {}}}",
        config.trim_end_matches('}'),
        mainstay.cgroup_root(),
        mainstay.pod_logs().display()
    );
    let uid = "3f1c2a5e-0000-4000-8000-000000000009";
    let list = json!({ "cpu": "1", "memory": "128Mi" });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "whole", "namespace": "default", "uid": uid },
        "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [idle("c"), idle("d")],
            "resources": { "requests": list, "limits": list },
        },
    });
    mainstay.write_manifest("whole.yaml", &pod.to_string()).unwrap();
    let ids = |node: &Node| -> Result<Vec<String>, String> {
        let pods = node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        let statuses =
            pods["items"][0]["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let running = statuses.iter().filter(|status| !status["state"]["running"].is_null());
        let ids: Vec<String> =
            running.filter_map(|it| it["containerID"].as_str().map(str::to_owned)).collect();
        if ids.len() == 2 { Ok(ids) } else { Err(pods.to_string()) }
    };
    wait_until(LONG, "the pod under mainstay", || ids(&mainstay)).unwrap();
    mainstay.sigterm().unwrap();
    let files = ["cpu_manager_state", "memory_manager_state"].map(|name| root.join(name));
    let read = || files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
    let ours = read();
    for text in &ours {
        assert!(text.contains("podEntries") && text.contains(uid), "{text}");
    }
    // It takes what the file says. Whether it keeps to that is chance: about once in five starts it judges the pod before it has taken its
    // files over, finds no room for it, and ends it (TopologyAffinityError).
    let upstream = both().config(&same_node).upstream().start().unwrap();
    wait_until(LONG, "upstream's kubelet to read who holds what", || {
        let log = upstream.log();
        let taken = log.lines().any(|line| {
            line.contains("Updated pod CPUSet assignments")
                && line.contains(uid)
                && line.contains(r#""cpuSet":"0""#)
        });
        if taken { Ok(()) } else { Err(log) }
    })
    .unwrap();
    let refused = ["could not restore state", "checksum", "corrupted"];
    assert!(!refused.iter().any(|word| upstream.log().contains(word)), "{}", upstream.log());
}

/// CPUs and devices of the same NUMA nodes or nothing: a device of a node that this machine does not have is with nobody's CPUs.
#[test]
fn devices_and_cpus_come_from_the_same_node() {
    const RESOURCE: &str = "example.com/dev";
    let world = World::with_config(
        Flavor::Debian16,
        &fixed(", topologyManagerPolicy: restricted, topologyManagerScope: pod"),
    )
    .unwrap();
    let devices = json!([
        { "id": "a-far", "healthy": true, "nodes": [63] },
        { "id": "near", "healthy": true, "nodes": [0] },
    ]);
    let mut plugin = DevicePlugin::new(plugin_program(), &world.node, RESOURCE, &devices).unwrap();
    plugin.start().unwrap();
    wait_until(SOON, "two devices", || {
        let all = ask(&world.node, &["allocatable"]).map_err(|error| format!("{error:#}"))?;
        if all["devices"].as_array().map(Vec::len) == Some(2) { Ok(()) } else { Err(all.to_string()) }
    })
    .unwrap();
    let list = json!({ "cpu": "1", "memory": "64Mi", RESOURCE: 1 });
    let both = json!({ "resources": { "requests": list, "limits": list } });
    let both = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), both)] });
    world.put("both", both).unwrap();
    runs_on(&world, "", &world.running("both").unwrap(), "0");
    let node = json!({ "nodes": [{ "ID": "0" }] });
    let held = json!([{ "resource_name": RESOURCE, "device_ids": ["near"], "topology": node }]);
    holds(&world, "both", "devices", &held);

    let only = json!({ "resources": { "limits": { RESOURCE: 1 } } });
    let only = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), only)] });
    world.put("late", only).unwrap();
    let message = "Pod was rejected: Resources cannot be allocated with Topology locality";
    let refused = world.wait("late", "its refusal", |pod| pod.text("/status/message") == message).unwrap();
    assert_eq!((refused.phase(), refused.text("/status/reason")), ("Failed", "TopologyAffinityError"));
    assert!(world.sandboxes_of(refused.uid()).unwrap().is_empty(), "nothing was made of it");
    let counted = metric(&world, "kubelet_admission_rejections_total{reason=\"TopologyAffinityError\"}");
    assert!(counted.parse::<u32>().is_ok_and(|count| count > 0), "{counted}");
    // What it needs comes back with the other's end.
    world.take_away("both").unwrap();
    world.running("late").unwrap();
    holds(&world, "late", "devices", &held);
}
