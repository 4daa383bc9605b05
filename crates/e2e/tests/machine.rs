//! What the machine itself has, and what pods get of it: swap, pressure, AppArmor, every capability, memory protection. What
//! it lacks is looked at as well: each test says what must be so in either case. The test machine (`cargo xtask vm`) has all.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use k8s_openapi::jiff::Timestamp;
use mainstay_e2e::{CgroupFiles, PodSeen, SOON, World, idle, member::Member, sh, whole_machine, with};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

const MIB: i64 = 1 << 20;

fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn one(container: Value) -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })
}

fn memory(request: &str, limit: &str) -> Value {
    let resources = json!({ "requests": { "memory": request }, "limits": { "memory": limit } });
    with(idle("c"), json!({ "resources": resources }))
}

/// The cgroup of a burstable pod.
fn pod_cgroup(world: &World, seen: &PodSeen) -> CgroupFiles {
    CgroupFiles::of(world, &["kubepods", "burstable", &format!("pod{}", seen.uid())])
}

/// A file of the first of the cgroup's directories that has it: v1 has one for each controller.
fn read(cgroup: &CgroupFiles, file: &str) -> Option<String> {
    let directories = cgroup.directories();
    let mut controllers =
        directories.iter().filter(|dir| is_v2() || !dir.starts_with("/sys/fs/cgroup/unified"));
    let found = controllers.find_map(|dir| fs::read_to_string(dir.join(file)).ok());
    found.map(|text| text.trim().to_owned())
}

#[test]
fn a_static_pod_never_swaps_whatever_the_node_allows() {
    let behaviors: &[&str] = if is_v2() { &["NoSwap", "LimitedSwap"] } else { &["NoSwap"] };
    for behavior in behaviors {
        let config = format!("{{failSwapOn: false, memorySwap: {{swapBehavior: {behavior}}}}}");
        let world = World::with_config(Flavor::Debian16, &config).unwrap();
        world.put("p", one(memory("32Mi", "64Mi"))).unwrap();
        let seen = world.running("p").unwrap();
        // The kernel of the test machine swaps, and cannot keep a tmpfs from it.
        let swaps = fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
        assert!(swaps || !whole_machine(), "the test machine swaps");
        if whole_machine() {
            world.node_event("PossibleMemoryBackedVolumesOnDisk", "noswap option is not supported").unwrap();
        }
        let container = pod_cgroup(&world, &seen).container(seen.id("c"));
        assert_eq!(container.memory_limit(), Some(64 * MIB));
        if is_v2() {
            // The file is there if the kernel accounts swap at all.
            let swap = read(&container, "memory.swap.max");
            let root_accounts = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
            let mut root_accounts = root_accounts.map(|entry| entry.path().join("memory.swap.max"));
            assert_eq!(swap.is_some(), root_accounts.any(|file| file.exists()));
            assert!(swap.is_none_or(|swap| swap == "0"), "{behavior}");
        } else {
            // There memory and swap are limited together: the same limit leaves nothing for swap.
            let both = read(&container, "memory.memsw.limit_in_bytes");
            let accounts = Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
            assert_eq!(both, accounts.then(|| (64 * MIB).to_string()), "{behavior}");
        }
    }
}

#[test]
fn a_burstable_pod_of_an_api_server_swaps_its_share_where_swap_can_be_limited() {
    let behavior = if is_v2() { "LimitedSwap" } else { "NoSwap" };
    let config = format!("{{failSwapOn: false, memorySwap: {{swapBehavior: {behavior}}}}}");
    let member = Member::start(&config).unwrap();
    let exact = with(idle("exact"), json!({ "resources": { "limits": { "memory": "48Mi" } } }));
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [memory("32Mi", "64Mi"), exact] });
    member.bind("p", spec).unwrap();
    let pod = member.ready("p").unwrap();
    let root = member.node.cgroup_root().split('/').filter(|part| !part.is_empty());
    let uid = format!("pod{}", pod["metadata"]["uid"].as_str().unwrap());
    let parts: Vec<&str> = root.chain(["kubepods", "burstable", &uid]).collect();
    let of = |name: &str| {
        let containers = pod["status"]["containerStatuses"].as_array().unwrap();
        let found = containers.iter().find(|container| container["name"] == name).unwrap();
        let id = found["containerID"].as_str().unwrap().trim_start_matches("containerd://");
        CgroupFiles::at(&parts).container(id)
    };
    let (share, exact) = (of("c"), of("exact"));
    if !is_v2() {
        let accounts = Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
        assert_eq!(read(&share, "memory.memsw.limit_in_bytes"), accounts.then(|| (64 * MIB).to_string()));
        return;
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let of_machine = |field: &str| -> i64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<i64>().unwrap() * 1024
    };
    let (memory, swap) = (of_machine("MemTotal"), of_machine("SwapTotal"));
    assert!(swap > 0, "the test machine has swap");
    // The kernel counts in pages.
    let expected = 32 * MIB * swap / memory / 4096 * 4096;
    assert_eq!(read(&share, "memory.swap.max"), Some(expected.to_string()));
    assert_eq!(
        read(&exact, "memory.swap.max").as_deref(),
        Some("0"),
        "what asks for all it may have does not swap"
    );
}

#[test]
fn limited_swap_is_refused_where_swap_cannot_be_limited_by_itself() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let config = "{failSwapOn: false, memorySwap: {swapBehavior: LimitedSwap}}";
    let mut node = Node::builder().containerd(&containerd).config(config).prepare().unwrap();
    let started = node.start_again();
    assert_eq!(started.is_ok(), is_v2(), "{started:?}");
    assert_eq!(node.log().contains("LimitedSwap but it is only supported with cgroupv2"), !is_v2());
}

/// What the kernel counts of waiting for a CPU: of some process and of all, in seconds.
fn waited(cgroup: &CgroupFiles) -> [f64; 2] {
    let text = read(cgroup, "cpu.pressure").unwrap();
    ["some", "full"].map(|kind| {
        let line = text.lines().find(|line| line.starts_with(kind)).unwrap();
        line.rsplit_once("total=").unwrap().1.parse::<f64>().unwrap() / 1e6
    })
}

/// Both answers about the time spent waiting for a CPU, between what the kernel says before their readings and afterwards.
fn waiting_is_told(world: &World, seen: &PodSeen) {
    let pod = pod_cgroup(world, seen);
    let container = pod.container(seen.id("c"));
    let name = world.full_name("p");
    wait_until(SOON, "some waiting", || {
        let found = waited(&container);
        if found.iter().all(|seconds| *seconds > 0.5) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    let now = || i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let between = |what: &str, before: [f64; 2], told: [f64; 2], after: [f64; 2]| {
        for ((before, told), after) in before.into_iter().zip(told).zip(after) {
            let is_between = before - 1e-5 <= told && told <= after + 1e-5;
            assert!(is_between && told > 0.5, "{what}: {told} is told between {before} and {after}");
        }
    };
    for (what, cgroup, labels) in [("container", &container, "c"), ("pod", &pod, "")] {
        let (begun, before) = (now(), waited(cgroup));
        let told = wait_until(SOON, "a reading of these seconds", || {
            let text = world.node.get("/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
            let of = |kind: &str| {
                let family = format!("container_pressure_cpu_{kind}_seconds_total");
                // The sandbox has a name, and the pod's own cgroup has none.
                let is_it = |line: &&str| {
                    line.starts_with(&format!("{family}{{container=\"{labels}\","))
                        && line.contains(&format!("pod=\"{name}\""))
                        && line.contains("name=\"\"") == labels.is_empty()
                };
                let line = text.lines().find(is_it).ok_or_else(|| format!("no {family} of the {what}"))?;
                let mut words = line.rsplit(' ');
                let at: i64 = words.next().unwrap_or_default().parse().map_err(|_| line.to_owned())?;
                let value: f64 = words.next().unwrap_or_default().parse().map_err(|_| line.to_owned())?;
                if at > begun { Ok(value) } else { Err(format!("{line} is from before {begun}")) }
            };
            Ok([of("waiting")?, of("stalled")?])
        })
        .unwrap();
        between(what, before, told, waited(cgroup));

        let (begun, before) = (now(), waited(cgroup));
        let told = wait_until(SOON, "a summary of these seconds", || {
            let text = world.node.get("/stats/summary").map_err(|error| format!("{error:#}"))?;
            let summary: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let pods = summary["pods"].as_array().cloned().unwrap_or_default();
            let found = pods.iter().find(|it| it["podRef"]["name"] == *name).ok_or("no such pod")?;
            let of = if labels.is_empty() { found } else { &found["containers"][0] };
            let at: Timestamp =
                of["cpu"]["time"].as_str().unwrap_or_default().parse().map_err(|_| of.to_string())?;
            let total = |kind: &str| of["cpu"]["psi"][kind]["total"].as_f64().map(|nanos| nanos / 1e9);
            let told = total("some").zip(total("full")).ok_or_else(|| of.to_string())?;
            // The time is in whole seconds: what it says is at least that late.
            if at.as_millisecond() > begun {
                Ok([told.0, told.1])
            } else {
                Err(format!("{at} is from before"))
            }
        })
        .unwrap();
        between(what, before, told, waited(cgroup));
    }
}

#[test]
fn pressure_is_there_for_each_pod_where_the_kernel_measures_it() {
    let world = World::start(Flavor::Debian16).unwrap();
    // More who want to run than may: one of them always waits, and when their share is used up all do.
    let script = "trap 'exit 0' TERM; for i in 1 2 3; do while :; do :; done & done; wait";
    let resources = json!({ "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "cpu": "200m", "memory": "64Mi" } });
    world.put("p", one(with(sh("c", script), json!({ "resources": resources })))).unwrap();
    let seen = world.running("p").unwrap();
    let measured = is_v2() && fs::read_to_string("/proc/pressure/memory").is_ok();
    assert!(measured || !whole_machine(), "the test machine measures pressure");
    let cgroup = pod_cgroup(&world, &seen);
    for file in ["cpu.pressure", "memory.pressure", "io.pressure"] {
        let text = read(&cgroup, file);
        assert_eq!(text.is_some(), measured, "{file}: {text:?}");
        assert!(text.is_none_or(|text| text.starts_with("some avg10=")), "{file}");
    }
    if measured {
        waiting_is_told(&world, &seen);
        return;
    }
    wait_until(SOON, "the pod's numbers, and none of what was not measured", || {
        let [metrics, summary] = ["/metrics/cadvisor", "/stats/summary"].map(|path| world.node.get(path));
        let (metrics, summary) = (metrics.map_err(|e| e.to_string())?, summary.map_err(|e| e.to_string())?);
        let is_there = metrics.contains("container_cpu_usage_seconds_total{container=\"c\",");
        let is_told = metrics.contains("container_pressure_") || summary.contains("\"psi\"");
        if is_there && !is_told { Ok(()) } else { Err(format!("{metrics}\n{summary}")) }
    })
    .unwrap();
}

#[test]
fn app_armor_confines_where_it_is_and_is_refused_where_it_is_not() {
    let enabled =
        fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|is| is.trim() == "Y");
    let world = World::start(Flavor::Debian16).unwrap();
    let confined = |profile: Value| {
        let script = "echo confinement=$(cat /proc/self/attr/current); while :; do sleep 1; done";
        one(with(sh("c", script), json!({ "securityContext": { "appArmorProfile": profile } })))
    };
    world.put("default", confined(json!({ "type": "RuntimeDefault" }))).unwrap();
    world.put("free", confined(json!({ "type": "Unconfined" }))).unwrap();
    world
        .put("unknown", confined(json!({ "type": "Localhost", "localhostProfile": "mainstay-has-none" })))
        .unwrap();
    if !enabled {
        assert!(!whole_machine(), "the test machine has AppArmor");
        let seen = world.wait("default", "Failed", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(seen.text("/status/reason"), "AppArmor");
        assert!(seen.text("/status/message").contains("Cannot enforce AppArmor"), "{seen:?}");
        world.running("free").unwrap();
        return;
    }
    world.logged("default", "c", "confinement=cri-containerd.apparmor.d (enforce)").unwrap();
    world.logged("free", "c", "confinement=unconfined").unwrap();
    let seen = world
        .wait("unknown", "the profile named", |pod| pod.waiting_message("c").contains("mainstay-has-none"));
    assert_eq!(seen.unwrap().waits("c"), "CreateContainerError");
}

#[test]
fn the_agent_and_its_pods_are_spared_by_the_oom_killer_where_that_may_be_asked_for() {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(capabilities, 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1;
    let own: i64 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let score = |pid: &str| -> i64 {
        fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    let world = World::start(Flavor::Debian16).unwrap();
    let agent = || score(&world.node.pid().unwrap().to_string());
    wait_until(SOON, "the agent's score", || {
        let told = world.node.log().contains("cannot protect mainstay from the kernel's OOM killer");
        if (may && agent() == -999) || (!may && told) { Ok(()) } else { Err(format!("{}", agent())) }
    })
    .unwrap();
    assert_eq!(agent(), if may { -999 } else { own }, "or left as it was");
    let limits = json!({ "cpu": "100m", "memory": "32Mi" });
    world.put("guaranteed", one(with(idle("c"), json!({ "resources": { "limits": limits } })))).unwrap();
    let seen = world.running("guaranteed").unwrap();
    assert_eq!(seen.text("/status/qosClass"), "Guaranteed");
    let pid = world.crictl(&["inspect", seen.id("c")]).unwrap()["info"]["pid"].to_string();
    // A runtime that may not lower it gives the container its own.
    assert_eq!(score(&pid), if may { -997 } else { own.max(-997) });
}

#[test]
fn memory_is_protected_and_throttled_on_cgroup_v2() {
    let config = "{featureGates: {MemoryQoS: true}, memoryReservationPolicy: TieredReservation, memoryThrottlingFactor: 0.5}";
    let world = World::with_config(Flavor::Debian16, config).unwrap();
    world.put("p", one(memory("32Mi", "64Mi"))).unwrap();
    let limits = json!({ "cpu": "100m", "memory": "32Mi" });
    world.put("hard", one(with(idle("c"), json!({ "resources": { "limits": limits } })))).unwrap();
    let (seen, hard) = (world.running("p").unwrap(), world.running("hard").unwrap());
    let pod = pod_cgroup(&world, &seen);
    let container = pod.container(seen.id("c"));
    let hard_pod = CgroupFiles::of(&world, &["kubepods", &format!("pod{}", hard.uid())]);
    let hard_container = hard_pod.container(hard.id("c"));
    if !is_v2() {
        for cgroup in [&pod, &container, &hard_container] {
            assert_eq!(
                ["memory.min", "memory.low", "memory.high"].map(|file| read(cgroup, file)),
                [None, None, None]
            );
        }
        return;
    }
    let value = |cgroup: &CgroupFiles, file: &str| read(cgroup, file).unwrap();
    // Half of the way from the request to the limit; what is asked for is kept back as well as can be.
    assert_eq!(value(&container, "memory.high"), (48 * MIB).to_string());
    assert_eq!(value(&container, "memory.low"), (32 * MIB).to_string());
    assert_eq!(value(&container, "memory.min"), "0");
    assert_eq!(value(&hard_container, "memory.min"), (32 * MIB).to_string());
    assert_eq!(value(&hard_container, "memory.high"), "max");
    // Protection is only as good as that of the cgroups above.
    wait_until(SOON, "the cgroups above to protect what is asked for", || {
        let classes = [
            (CgroupFiles::of(&world, &["kubepods", "burstable"]), "memory.low"),
            (hard_pod.clone(), "memory.min"),
        ];
        let values: Vec<i64> =
            classes.iter().map(|(cgroup, file)| value(cgroup, file).parse().unwrap_or(i64::MAX)).collect();
        if values.iter().all(|value| *value >= 32 * MIB) { Ok(()) } else { Err(format!("{values:?}")) }
    })
    .unwrap();
}
