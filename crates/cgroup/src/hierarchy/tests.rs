use std::process::{Child, Command, Stdio};

use mainstay_podspec::runtime::Limit;
use mainstay_types::PodUid;

use super::*;
use crate::Driver;

fn files(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

#[test]
fn v1_cgroups_that_the_runtime_made_in_other_hierarchies_are_removed_too() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    files(root, &[("memory/tasks", ""), ("systemd/cgroup.procs", ""), ("unified/cgroup.procs", "")]);
    for made_by_the_runtime in ["systemd/kubepods/podx/c1", "unified/kubepods/podx", "other/kubepods/podx"] {
        fs::create_dir_all(root.join(made_by_the_runtime)).unwrap();
    }
    let cgroups = Cgroups::open(root).unwrap();
    cgroups.create(&path("/kubepods/podx")).unwrap();
    cgroups.remove(&path("/kubepods/podx")).unwrap();
    for (left, parent) in [(false, "memory"), (false, "systemd"), (false, "unified"), (true, "other")] {
        assert_eq!(root.join(parent).join("kubepods/podx").exists(), left, "{parent}");
    }
    cgroups.create(&path("/kubepods/pody")).unwrap();
    assert!(!root.join("systemd/kubepods/pody").exists(), "we make none there ourselves");
}

#[test]
fn v1_fixture() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    files(
        root,
        &[
            ("cpu,cpuacct/tasks", ""),
            ("memory/tasks", ""),
            ("cpuset/cpuset.cpus", "0-3\n"),
            ("cpuset/cpuset.mems", "0\n"),
            // As the kernel makes them: empty in the new cgroups.
            ("cpuset/kubepods/cpuset.cpus", "\n"),
            ("cpuset/kubepods/cpuset.mems", "\n"),
            ("cpuset/kubepods/podx/cpuset.cpus", "\n"),
            ("cpuset/kubepods/podx/cpuset.mems", "1\n"),
        ],
    );
    for name in ["cpu", "cpuacct"] {
        std::os::unix::fs::symlink("cpu,cpuacct", root.join(name)).unwrap();
    }
    let cgroups = Cgroups::open(root).unwrap();
    assert!(!cgroups.is_v2());
    assert_eq!(cgroups.missing_controllers(), ["pids"]);
    assert_eq!(cgroups.hierarchies().len(), 3, "cpu and cpuacct are one");

    assert!(!cgroups.exists(&path("/kubepods/podx")));
    cgroups.create(&path("/kubepods/podx")).unwrap();
    assert!(cgroups.exists(&path("/kubepods/podx")));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    assert_eq!(read("cpuset/kubepods/podx/cpuset.cpus"), "0-3", "inherited through every level");
    assert_eq!(read("cpuset/kubepods/podx/cpuset.mems"), "1\n", "what is set stays");

    for (file, controller) in [
        ("cpu.shares", "cpu,cpuacct"),
        ("cpu.cfs_quota_us", "cpu,cpuacct"),
        ("cpu.cfs_period_us", "cpu,cpuacct"),
        ("memory.limit_in_bytes", "memory"),
    ] {
        fs::write(root.join(controller).join("kubepods/podx").join(file), "old value\n").unwrap();
    }
    let values = CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Limit::At(50_000),
        cpu_period: 100_000,
        memory: Limit::At(4096),
        ..CgroupValues::default()
    };
    cgroups.apply(&path("/kubepods/podx"), &values).unwrap();
    assert_eq!(read("cpu/kubepods/podx/cpu.shares"), "512");
    assert_eq!(read("cpu/kubepods/podx/cpu.cfs_quota_us"), "50000");
    assert_eq!(read("memory/kubepods/podx/memory.limit_in_bytes"), "4096");
    let error = cgroups.apply(&path("/kubepods/none"), &values).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn v2_fixture_hands_controllers_down() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    files(
        root,
        &[
            ("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n"),
            ("cgroup.subtree_control", "cpuset cpu io memory hugetlb\n"),
            ("kubepods/cgroup.controllers", "memory\n"),
            ("kubepods/cgroup.subtree_control", ""),
        ],
    );
    let cgroups = Cgroups::open(root).unwrap();
    assert!(cgroups.is_v2() && cgroups.missing_controllers().is_empty());
    cgroups.create(&path("/kubepods/burstable")).unwrap();
    assert_eq!(fs::read_to_string(root.join("cgroup.subtree_control")).unwrap(), "+pids");
    assert_eq!(fs::read_to_string(root.join("kubepods/cgroup.subtree_control")).unwrap(), "+memory");
    assert!(cgroups.exists(&path("/kubepods/burstable")));

    for file in ["cpu.weight", "cpu.max", "hugetlb.2MB.max", "hugetlb.1GB.max", "hugetlb.2MB.current"] {
        fs::write(root.join("kubepods/burstable").join(file), "x").unwrap();
    }
    let values = CgroupValues {
        cpu_shares: Some(1024),
        cpu_quota: Limit::Unlimited,
        huge_pages: HugePages::Only([(2 << 20, 6 << 20)].into()),
        ..CgroupValues::default()
    };
    cgroups.apply(&path("/kubepods/burstable"), &values).unwrap();
    let read = |file: &str| fs::read_to_string(root.join("kubepods/burstable").join(file)).unwrap();
    assert_eq!((read("cpu.weight").as_str(), read("cpu.max").as_str()), ("39", "max 100000"));
    assert_eq!((read("hugetlb.2MB.max").as_str(), read("hugetlb.1GB.max").as_str()), ("6291456", "0"));
}

#[test]
fn pods_are_listed_from_any_hierarchy() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for made in [
        "memory/kubepods/poda",
        "memory/kubepods/burstable/podb",
        "pids/kubepods/besteffort/podc",
        "pids/kubepods/burstable/podb",
        "pids/kubepods/stranger",
    ] {
        fs::create_dir_all(root.join(made)).unwrap();
    }
    let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
    let cgroups = Cgroups::open(root).unwrap();
    let found: Vec<String> =
        cgroups.list_pods(&names).unwrap().iter().map(|pod| pod.path.to_string()).collect();
    assert_eq!(found, ["/kubepods/poda", "/kubepods/burstable/podb", "/kubepods/besteffort/podc"]);
    for pod in cgroups.list_pods(&names).unwrap() {
        cgroups.remove(&pod.path).unwrap();
        cgroups.remove(&pod.path).unwrap();
    }
    assert!(cgroups.list_pods(&names).unwrap().is_empty());
    assert!(root.join("pids/kubepods/stranger").is_dir());
}

/// Whoever sweeps compares what is listed with the names of the pods it knows.
#[test]
fn what_is_listed_is_known_by_its_name_whatever_the_uid() {
    for driver in [Driver::Cgroupfs, Driver::Systemd] {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("memory")).unwrap();
        let cgroups = Cgroups::open(directory.path()).unwrap();
        let names = CgroupNames::new(driver, "/a-b").unwrap();
        let uids = ["0c1d2e3f-4a5b", "my_pod", "my.pod", "a-b_c.d"].map(PodUid::from);
        let mut made = Vec::new();
        for uid in &uids {
            for path in names.pods(uid) {
                fs::create_dir_all(directory.path().join("memory").join(path.relative())).unwrap();
                made.push(path);
            }
        }
        let mut listed: Vec<_> =
            cgroups.list_pods(&names).unwrap().into_iter().map(|found| found.path).collect();
        made.sort();
        listed.sort();
        assert_eq!(listed, made, "{driver:?}");
    }
}

#[test]
fn nothing_mounted() {
    let directory = tempfile::tempdir().unwrap();
    let error = Cgroups::open(directory.path()).unwrap_err().to_string();
    assert!(error.starts_with("no cgroups are mounted at"), "{error}");
}

/// A private cgroup of the running kernel, gone again whatever happens.
struct Private {
    cgroups: Cgroups,
    top: CgroupPath,
    children: Vec<Child>,
}

impl Private {
    fn new(root: &str, name: &str) -> Self {
        let cgroups = Cgroups::open(root).unwrap();
        let top = path(&format!("/mainstay-cgroup-test-{name}-{}", std::process::id()));
        Self { cgroups, top, children: Vec::new() }
    }

    /// A process that sleeps in the cgroup.
    fn sleeper(&mut self, at: &CgroupPath) -> i32 {
        let child = Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        self.children.push(child);
        for directory in self.cgroups.directories(at) {
            fs::write(directory.join("cgroup.procs"), pid.to_string())
                .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        }
        pid
    }

    /// Ends the zombies: they count as processes of the cgroup on v1 until they are waited for.
    fn reap(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }

    fn check(mut self, names: &CgroupNames) {
        let cgroups = self.cgroups.clone();
        let uid = PodUid::from("11111111-2222-3333-4444-555555555555");
        let pod = names.pod(QosClass::Burstable, &uid);
        cgroups.create(&pod).expect("this test makes cgroups and has to run as root");
        cgroups.create(&pod).unwrap();
        assert!(cgroups.exists(&pod));
        let listed = cgroups.list_pods(names).unwrap();
        assert_eq!(listed, [PodCgroup { class: QosClass::Burstable, path: pod.clone() }]);

        let container = path(&format!("{pod}/container"));
        cgroups.create(&container).unwrap();
        let pid = self.sleeper(&container);
        assert_eq!(cgroups.pids(&pod).unwrap(), [pid]);
        let error = cgroups.remove(&names.top()).unwrap_err();
        assert!(matches!(&error, CgroupError::Busy { pids, .. } if *pids == [pid]), "{error}");
        assert!(cgroups.exists(&container), "nothing is removed while a process is in it");

        let killing = std::thread::spawn({
            let (cgroups, pod) = (cgroups.clone(), pod.clone());
            move || cgroups.kill_all(&pod, Duration::from_secs(10))
        });
        self.children.iter_mut().for_each(|child| assert!(!child.wait().unwrap().success()));
        killing.join().unwrap().unwrap();
        cgroups.remove(&pod).unwrap();
        assert!(!cgroups.exists(&pod) && cgroups.exists(&names.class(QosClass::Burstable)));
        cgroups.remove(&self.top).unwrap();
        assert!(self.cgroups.directories(&self.top).iter().all(|directory| !directory.exists()));
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.reap();
        if let Err(error) = self.cgroups.remove(&self.top) {
            eprintln!("left behind: {error}");
        }
    }
}

#[test]
fn real_cgroups() {
    let private = Private::new("/sys/fs/cgroup", "main");
    let names = CgroupNames::new(Driver::Cgroupfs, private.top.as_str()).unwrap();
    let cgroups = private.cgroups.clone();
    let limited = path(&format!("{}/limited", private.top));
    cgroups.create(&limited).expect("this test makes cgroups and has to run as root");
    let values = CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Limit::At(50_000),
        cpu_period: 100_000,
        memory: Limit::At(64 << 20),
        pids: Limit::At(64),
        ..CgroupValues::default()
    };
    cgroups.apply(&limited, &values).unwrap();
    let read = |controller: &str, file: &str| {
        fs::read_to_string(cgroups.directory_of(controller, &limited).unwrap().join(file))
            .unwrap()
            .trim()
            .to_owned()
    };
    if cgroups.is_v2() {
        assert_eq!(read("cpu", "cpu.max"), "50000 100000");
        assert_eq!(read("memory", "memory.max"), (64 << 20).to_string());
    } else {
        assert_eq!(read("cpu", "cpu.shares"), "512");
        assert_eq!(read("cpu", "cpu.cfs_quota_us"), "50000");
        assert_eq!(read("memory", "memory.limit_in_bytes"), (64 << 20).to_string());
        assert!(!read("cpuset", "cpuset.cpus").is_empty());
    }
    assert_eq!(read("pids", "pids.max"), "64");
    cgroups.remove(&limited).unwrap();
    private.check(&names);
}

/// Where a unified hierarchy stands beside v1 ones, the v2 ways are tried on it too.
#[test]
fn real_unified_hierarchy() {
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .into_iter()
        .find(|root| Path::new(root).join("cgroup.controllers").exists());
    // A machine with v1 alone has nothing to try; `real_cgroups` covers it.
    let Some(root) = root else { return };
    let private = Private::new(root, "unified");
    assert!(private.cgroups.is_v2());
    let names = CgroupNames::new(Driver::Cgroupfs, private.top.as_str()).unwrap();
    private.check(&names);
}

#[test]
fn our_own_cgroup_and_the_root_are_protected() {
    let cgroups = Cgroups::open("/sys/fs/cgroup").unwrap();
    assert!(matches!(cgroups.remove(&path("/")), Err(CgroupError::Protected { .. })));
    assert!(matches!(cgroups.kill_all(&path("/"), Duration::ZERO), Err(CgroupError::Protected { .. })));
}
