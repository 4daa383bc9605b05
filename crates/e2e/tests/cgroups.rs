//! The cgroups of pods and of those above them, read back from the kernel: both versions, both drivers.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf, process::Command};

use mainstay_e2e::{CgroupFiles, SOON, World, idle, sh, with};
use mainstay_testkit::{Containerd, Flavor, wait_until};
use serde_json::{Value, json};

/// 1 GiB is kept back, whatever the machine has.
const RESERVED: &str =
    "{podPidsLimit: 64, systemReserved: {memory: 512Mi, pid: \"1000\"}, kubeReserved: {memory: 512Mi}}";
const MIB: i64 = 1 << 20;

fn limits(cpu: &str, memory: &str) -> Value {
    json!({ "cpu": cpu, "memory": memory })
}

fn one(container: Value) -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })
}

fn pod_parts(class: &str, uid: &str) -> Vec<String> {
    let mut parts = vec!["kubepods".to_owned()];
    parts.extend((!class.is_empty()).then(|| class.to_owned()));
    parts.push(format!("pod{uid}"));
    parts
}

fn machine_memory() -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    total.trim().trim_end_matches(" kB").parse::<i64>().unwrap() * 1024
}

/// Waits until no cgroup of that UID is left, in any class and hierarchy.
fn gone(world: &World, uid: &str) {
    let classes = ["", "burstable", "besteffort"];
    wait_until(SOON, "the pod's cgroups to go", || {
        let left: Vec<PathBuf> = classes
            .iter()
            .flat_map(|class| CgroupFiles::of(world, &pod_parts(class, uid)).directories())
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
}

/// N1, and N2 with the next one: each pod lies below its class with `podPidsLimit`, and nothing of it is left when it has gone.
#[test]
fn pods_of_every_class_have_their_cgroups() {
    let world = World::with_config(Flavor::Debian16, RESERVED).unwrap();
    let guaranteed = with(
        idle("c"),
        json!({ "resources": { "requests": limits("250m", "64Mi"), "limits": limits("250m", "64Mi") } }),
    );
    world.put("guaranteed", one(guaranteed)).unwrap();
    let burstable = with(
        idle("c"),
        json!({ "resources": { "requests": limits("100m", "32Mi"), "limits": limits("500m", "96Mi") } }),
    );
    world.put("burstable", one(burstable)).unwrap();
    world.put("besteffort", one(idle("c"))).unwrap();
    // A container without limits leaves the pod without, unless the pod has its own.
    let pod_level = json!({
        "terminationGracePeriodSeconds": 1,
        "resources": { "requests": limits("300m", "48Mi"), "limits": limits("600m", "128Mi") },
        "containers": [idle("c"), idle("d")],
    });
    world.put("podlevel", pod_level).unwrap();
    let half =
        with(idle("c"), json!({ "resources": { "requests": { "cpu": "50m" }, "limits": { "cpu": "1" } } }));
    let unlimited = json!({ "terminationGracePeriodSeconds": 1, "containers": [half, idle("d")] });
    world.put("unlimited", unlimited).unwrap();
    // What the runtime needs for the pod itself is added to what its containers ask for, and to a limit.
    let within = with(
        idle("c"),
        json!({ "resources": { "requests": limits("100m", "32Mi"), "limits": limits("500m", "96Mi") } }),
    );
    world.put("overhead", with(one(within), json!({ "overhead": limits("250m", "32Mi") }))).unwrap();

    for (name, class, cpu, quota, memory) in [
        ("guaranteed", "", 256, Some(25_000), Some(64 * MIB)),
        ("burstable", "burstable", 102, Some(50_000), Some(96 * MIB)),
        ("besteffort", "besteffort", 2, None, None),
        ("podlevel", "burstable", 307, Some(60_000), Some(128 * MIB)),
        ("unlimited", "burstable", 51, None, None),
        ("overhead", "burstable", 358, Some(75_000), Some(128 * MIB)),
    ] {
        let seen = world.running(name).unwrap();
        let files = CgroupFiles::of(&world, &pod_parts(class, seen.uid()));
        assert_eq!(files.shares(), files.expected_shares(cpu), "{name}");
        assert_eq!(files.quota(), quota, "{name}");
        assert_eq!(files.memory_limit(), memory, "{name}");
        assert_eq!(files.pids_limit(), Some(64), "{name}");
        assert!(
            files.huge_page_limits().iter().all(|limit| *limit == 0),
            "{name}: {:?}",
            files.huge_page_limits()
        );
        let container = files.container(seen.id("c"));
        assert!(!container.processes().is_empty(), "{name}: the container is in the pod's cgroup");
    }
    // The containers have their own, too.
    let seen = world.running("burstable").unwrap();
    let container = CgroupFiles::of(&world, &pod_parts("burstable", seen.uid())).container(seen.id("c"));
    assert_eq!((container.quota(), container.memory_limit()), (Some(50_000), Some(96 * MIB)));
    let seen = world.running("overhead").unwrap();
    let container = CgroupFiles::of(&world, &pod_parts("burstable", seen.uid())).container(seen.id("c"));
    assert_eq!((container.quota(), container.memory_limit()), (Some(50_000), Some(96 * MIB)), "without it");
    let seen = world.running("podlevel").unwrap();
    let container = CgroupFiles::of(&world, &pod_parts("burstable", seen.uid())).container(seen.id("d"));
    assert_eq!((container.quota(), container.memory_limit()), (Some(60_000), Some(128 * MIB)), "the pod's");

    let uids: Vec<String> = world.pods().unwrap().iter().map(|pod| pod.uid().to_owned()).collect();
    assert_eq!(uids.len(), 6);
    for name in ["guaranteed", "burstable", "besteffort", "podlevel", "unlimited", "overhead"] {
        world.take_away(name).unwrap();
    }
    uids.iter().for_each(|uid| gone(&world, uid));
}

/// N2: those of the classes are there before any pod is.
#[test]
fn shared_cgroups_follow_the_pods_and_the_reservations() {
    let mut world = World::with_config(Flavor::Debian16, RESERVED).unwrap();
    let top = CgroupFiles::of(&world, &["kubepods"]);
    wait_until(SOON, "node allocatable to be enforced", || {
        let limit = top.memory_limit();
        // The kernel counts in pages.
        let expected = (machine_memory() - 1024 * MIB) / 4096 * 4096;
        if limit == Some(expected) { Ok(()) } else { Err(format!("{limit:?} instead of {expected}")) }
    })
    .unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    wait_until(SOON, "the rest of node allocatable", || {
        let found = (top.shares(), top.pids_limit());
        let expected = top.expected_shares(i64::try_from(cpus).unwrap() * 1024);
        if found.0 == expected && found.1.is_some() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    world.node_event("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods").unwrap();

    let class = |name: &str| CgroupFiles::of(&world, &["kubepods", name]);
    let best_effort = class("besteffort");
    wait_until(SOON, "the shares of best-effort pods", || {
        let found = (best_effort.shares(), best_effort.memory_limit());
        if found == (best_effort.expected_shares(2), None) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    let burstable = class("burstable");
    let shares_become = |expected: i64| {
        wait_until(SOON, "the shares of burstable pods to follow", || {
            let shares = burstable.shares();
            if shares == burstable.expected_shares(expected) { Ok(()) } else { Err(format!("{shares}")) }
        })
        .unwrap();
    };
    shares_become(2);
    for (name, cpu) in [("one", "700m"), ("two", "300m")] {
        let container = with(idle("c"), json!({ "resources": { "requests": { "cpu": cpu } } }));
        world.put(name, one(container)).unwrap();
        world.running(name).unwrap();
    }
    shares_become(1024);
    assert!(burstable.huge_page_limits().iter().all(|limit| *limit >= 1 << 62), "{burstable:?}");
    world.take_away("one").unwrap();
    shares_become(307);

    // What somebody else changed is put right at the next start, the pod's own values too.
    let uid = world.running("two").unwrap().uid().to_owned();
    let pod = CgroupFiles::of(&world, &pod_parts("burstable", &uid));
    world.node.sigterm().unwrap();
    burstable.set_shares(5000);
    pod.set_shares(5000);
    assert_ne!(pod.shares(), pod.expected_shares(307));
    world.node.start_again().unwrap();
    shares_become(307);
    wait_until(SOON, "the pod's own shares to be put right", || {
        let shares = pod.shares();
        if shares == pod.expected_shares(307) { Ok(()) } else { Err(format!("{shares}")) }
    })
    .unwrap();
    world.take_away("two").unwrap();
    gone(&world, &uid);
    shares_become(2);
}

/// N3: with the policy none and, on cgroup v2, CPUs set on the cgroup of all pods, a restart makes no cgroup anew.
#[test]
fn a_restart_keeps_the_shared_cgroups() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let cgroups = [vec!["kubepods"], vec!["kubepods", "besteffort"], vec!["kubepods", "burstable"]]
        .map(|parts| CgroupFiles::of(&world, &parts));
    let [top, _, burstable] = &cgroups;
    world.put("web", one(idle("c"))).unwrap();
    let before = world.running("web").unwrap();
    let pod = CgroupFiles::of(&world, &pod_parts("besteffort", before.uid()));
    let directories = || -> Vec<(PathBuf, u64)> {
        let all = cgroups.iter().chain([&pod]).flat_map(CgroupFiles::directories);
        all.map(|dir| (dir.clone(), fs::metadata(&dir).unwrap().ino())).collect()
    };
    let (made, cpus) = (directories(), top.cpus());
    assert!(made.len() >= 4 && !cpus.is_empty(), "{made:?}: {cpus:?}");
    for asked in [true, false] {
        if asked {
            world.node.sigterm().unwrap();
        } else {
            world.node.kill9();
        }
        burstable.set_shares(5000);
        world.node.start_again().unwrap();
        wait_until(SOON, "the shares of burstable pods to be put right", || {
            let shares = burstable.shares();
            if shares == burstable.expected_shares(2) { Ok(()) } else { Err(format!("{shares}")) }
        })
        .unwrap();
        let after = world.running("web").unwrap();
        assert_eq!((after.id("c"), after.restarts("c")), (before.id("c"), 0));
        assert_eq!(directories(), made, "the same directories");
        assert_eq!(top.cpus(), cpus);
    }
}

#[test]
fn memory_cpu_and_processes_are_limited_for_real() {
    let world = World::with_config(Flavor::Debian16, "{podPidsLimit: 20}").unwrap();
    // Doubling a variable takes more than 16 MiB soon.
    let eater = "x=0123456789abcdef; while :; do x=$x$x; done";
    let eater = with(sh("c", eater), json!({ "resources": { "limits": limits("1", "16Mi") } }));
    let spec = with(one(eater), json!({ "restartPolicy": "Never" }));
    // On cgroup v2 the pod's cgroup has counted the kill. On v1 containerd alone tells of it, by an event that may come after
    // that of the end; then it has no better word.
    let named = (0..20).any(|_| {
        world.put("eater", spec.clone()).unwrap();
        let ended = world.wait("eater", "to be killed", |pod| pod.phase() == "Failed").unwrap();
        let state = &ended.container("c")["state"]["terminated"];
        assert_eq!(state["exitCode"], 137, "{state}");
        assert!(["OOMKilled", "Error"].contains(&state["reason"].as_str().unwrap()), "{state}");
        world.take_away("eater").unwrap();
        world.gone("eater").unwrap();
        gone(&world, ended.uid());
        state["reason"] == "OOMKilled"
    });
    assert!(named, "the kill is never named");

    let spinner =
        with(sh("c", "while :; do :; done"), json!({ "resources": { "limits": limits("100m", "32Mi") } }));
    world.put("spinner", one(spinner)).unwrap();
    let seen = world.running("spinner").unwrap();
    let container = CgroupFiles::of(&world, &pod_parts("", seen.uid())).container(seen.id("c"));
    wait_until(SOON, "the container to be throttled", || {
        let times = container.throttled_times();
        if times > 3 { Ok(()) } else { Err(format!("{times} times")) }
    })
    .unwrap();

    // The shell, its sleeps, and the sandbox's pause: the twenty-first process is refused.
    let forker =
        "for i in 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; echo all; sleep 1000";
    world.put("forker", one(sh("c", forker))).unwrap();
    let log = world.logged("forker", "c", "fork").unwrap();
    assert!(!log.contains("all"), "{log}");

    for name in ["spinner", "forker"] {
        let uid = world.named(name).unwrap()[0].uid().to_owned();
        world.take_away(name).unwrap();
        gone(&world, &uid);
    }
}

#[test]
fn cgroups_that_nobody_owns_are_swept_and_strays_killed() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    world.put("web", one(idle("c"))).unwrap();
    let seen = world.running("web").unwrap();
    let pod = CgroupFiles::of(&world, &pod_parts("besteffort", seen.uid()));

    // A process that somebody put there does not keep the pod's cgroup for ever.
    let mut stray = Command::new("sleep").arg("1000").spawn().unwrap();
    pod.add_process(stray.id());
    world.take_away("web").unwrap();
    gone(&world, seen.uid());
    assert!(stray.wait().unwrap().code().is_none(), "it was killed");

    // A pod whose every record is lost, in the runtime as well: its cgroup is still known to be ours, and goes when all is
    // known. A stranger's below the same cgroup, and what is no pod's, stay.
    world.put("lost", one(idle("c"))).unwrap();
    let lost = world.running("lost").unwrap();
    world.node.sigterm().unwrap();
    world.take_away("lost").unwrap();
    fs::remove_dir_all(world.node.root().join("mainstay")).unwrap();
    for sandbox in world.sandboxes_of(lost.uid()).unwrap() {
        world.containerd.crictl(&["rmp", "--force", sandbox["id"].as_str().unwrap()]).unwrap();
    }
    let ours = CgroupFiles::of(&world, &pod_parts("besteffort", lost.uid()));
    assert!(!ours.directories().is_empty(), "the runtime leaves the pod's own cgroup");
    let strangers =
        CgroupFiles::of(&world, &pod_parts("burstable", "0c1d2e3f-0000-4000-8000-000000000001")).made();
    let other = CgroupFiles::of(&world, &["kubepods", "other"]).made();
    let [mut stray, mut theirs] = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
    ours.add_process(stray.id());
    strangers.add_process(theirs.id());
    world.node.start_again().unwrap();
    gone(&world, lost.uid());
    assert!(stray.wait().unwrap().code().is_none(), "it was killed");
    assert!(theirs.try_wait().unwrap().is_none(), "a stranger's process lives");
    assert!(!strangers.directories().is_empty() && !other.directories().is_empty());
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    other.remove();
}

/// A dash in a slice's name means "below", so that the dashes of a UID become underscores there.
#[test]
fn pods_whose_uids_are_alike_have_cgroups_of_their_own() {
    let world = World::start(Flavor::Debian16).unwrap();
    let limited =
        |memory: &str| one(with(idle("c"), json!({ "resources": { "limits": limits("1", memory) } })));
    for (name, uid, memory) in [("dash", "a-b", "64Mi"), ("underscore", "a_b", "32Mi")] {
        let mut manifest = mainstay_e2e::pod(name, limited(memory));
        manifest["metadata"]["uid"] = json!(uid);
        world.put_manifest(name, &manifest).unwrap();
    }
    for (name, uid, memory) in [("dash", "a-b", 64 * MIB), ("underscore", "a_b", 32 * MIB)] {
        let seen = world.running(name).unwrap();
        assert_eq!(seen.uid(), uid);
        let pid = world.crictl(&["inspect", seen.id("c")]).unwrap()["info"]["pid"].clone();
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let line = text.lines().find(|line| line.contains(":memory:")).or(text.lines().last()).unwrap();
        let container = std::path::Path::new(line.rsplit(':').next().unwrap());
        let mount = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(std::path::Path::new);
        let mount = mount.into_iter().find(|mount| mount.join("cgroup.procs").exists()).unwrap();
        let pod = mount.join(container.parent().unwrap().strip_prefix("/").unwrap());
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .find_map(|file| fs::read_to_string(pod.join(file)).ok())
            .unwrap();
        assert_eq!(limit.trim(), memory.to_string(), "{name} in {}", pod.display());
    }
    world.take_away("dash").unwrap();
    world.gone("dash").unwrap();
    assert!(world.running("underscore").unwrap().runs("c"), "the other is left alone");
}

#[test]
fn oom_scores_are_those_of_the_class() {
    let world = World::start(Flavor::Debian16).unwrap();
    let whole = machine_memory();
    let burstable = with(idle("c"), json!({ "resources": { "requests": { "memory": "256Mi" } } }));
    world.put("burstable", one(burstable)).unwrap();
    world.put("besteffort", one(idle("c"))).unwrap();
    let expected = 1000 - 1000 * 256 * MIB / whole;
    for (name, class, score) in
        [("burstable", "burstable", expected.min(999)), ("besteffort", "besteffort", 1000)]
    {
        let seen = world.running(name).unwrap();
        let container = CgroupFiles::of(&world, &pod_parts(class, seen.uid())).container(seen.id("c"));
        // Its first process: those that this one starts come and go.
        let pid = world.crictl(&["inspect", seen.id("c")]).unwrap()["info"]["pid"].as_u64().unwrap();
        assert!(container.processes().iter().any(|found| u64::from(*found) == pid), "{name}");
        let found = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        assert_eq!(found.trim(), score.to_string(), "{name}");
    }
}

#[test]
fn the_agent_and_reserved_cgroups_have_their_places() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let base = containerd.instance().cgroup_name().to_owned();
    let [system, kube, own] =
        ["system", "kube", "agent"].map(|name| CgroupFiles::at(&[&format!("{base}-{name}")]).made());
    let config = json!({
        "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved-compressible"],
        "systemReserved": { "cpu": "500m", "memory": "768Mi" },
        "kubeReserved": { "cpu": "250m", "memory": "300Mi" },
        "systemReservedCgroup": system.config_name(),
        "kubeReservedCgroup": kube.config_name(),
        "kubeletCgroups": own.config_name(),
    });
    let world = World::on(containerd, &config.to_string()).unwrap();
    wait_until(SOON, "the system's cgroup to be limited", || {
        let limit = system.memory_limit();
        if limit == Some(768 * MIB) { Ok(()) } else { Err(format!("{limit:?}")) }
    })
    .unwrap();
    for (cgroup, wanted) in [(&system, 512), (&kube, 256)] {
        wait_until(SOON, "the cgroups to have their shares", || {
            let shares = cgroup.shares();
            if shares == cgroup.expected_shares(wanted) { Ok(()) } else { Err(format!("{shares}")) }
        })
        .unwrap();
    }
    assert_eq!(kube.memory_limit(), None, "only what can be compressed");
    world.node_event("NodeAllocatableEnforced", "Updated limits on system reserved cgroup").unwrap();
    wait_until(SOON, "the agent to be in kubeletCgroups", || {
        let found = own.processes();
        if found == [world.node.pid().unwrap()] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    drop(world);
    for cgroup in [system, kube, own] {
        cgroup.remove();
    }
}
