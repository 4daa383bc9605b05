//! The agent's own place on the machine: what it refuses, what it changes, and what it leaves alone. The machine itself is
//! never touched: its files and its network are covered by private ones.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use mainstay_e2e::{SOON, wrapped};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};

const TUNABLES: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Private kernel settings with these values, and the script that covers the real ones with them.
fn tunables(dir: &Path, value: impl Fn(&str) -> &str) -> String {
    let mut script = String::new();
    for (name, wanted) in TUNABLES {
        let file = dir.join(name.replace('/', "."));
        fs::write(&file, value(wanted)).unwrap();
        script.push_str(&format!("mount --bind {} /proc/sys/{name}\n", file.display()));
    }
    script
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name.replace('/', "."))).unwrap()
}

#[test]
fn swap_is_refused_by_the_kubelet_and_told_of_by_run() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let swaps = containerd.dir().join("swaps");
    fs::write(&swaps, "Filename Type Size Used Priority\n/dev/fake partition 1024 0 -2\n").unwrap();
    let cover = format!("mount --bind {} /proc/swaps", swaps.display());
    let program = wrapped(&containerd, "--mount --propagation private", &cover).unwrap();
    let builder = || Node::builder().containerd(&containerd).program(&program);

    let mut node = builder().config("failSwapOn: true").spawn().unwrap();
    assert_eq!(node.wait_for_exit(SOON).unwrap().code(), Some(1));
    let log = node.log();
    assert!(
        log.contains(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        ),
        "{log}"
    );
    assert!(log.contains("/dev/fake"), "{log}");
    assert!(
        !node.root().join("mainstay.lock").exists(),
        "nothing is written before it is clear that it may run"
    );
    drop(node);
    drop(builder().config("failSwapOn: false").start().unwrap());

    let root = containerd.dir().join("friendly");
    let log = containerd.dir().join("friendly.log");
    let output = fs::File::create(&log).unwrap();
    let mut child = Command::new(&program)
        .args(["run", "--healthz-port=0", "--runtime-endpoint", &containerd.endpoint()])
        .arg(format!("--cgroup-root=/{}-run", containerd.instance().cgroup_name()))
        .arg("--root-dir")
        .arg(&root)
        .arg("--manifests")
        .arg(&root)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let up = wait_until(SOON, "mainstay run", || {
        let text = fs::read_to_string(&log).unwrap();
        let wanted = ["mainstay is up", "WARN", "running with swap on is not supported"];
        if wanted.iter().all(|wanted| text.contains(wanted)) { Ok(()) } else { Err(text) }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    up.unwrap();
}

#[test]
fn kernel_settings_are_checked_changed_or_left_alone() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let dir = containerd.dir().to_owned();
    let start = |value: fn(&str) -> &str, config: &str| {
        let cover = tunables(&dir, value);
        let program = wrapped(&containerd, "--mount --propagation private", &cover).unwrap();
        Node::builder().containerd(&containerd).program(program).config(config).spawn().unwrap()
    };
    let up = |node: &Node| {
        wait_until(SOON, "an answer", || node.healthz().map_err(|error| format!("{error:#}"))).unwrap()
    };

    let mut node = start(|_| "7\n", "protectKernelDefaults: true");
    assert_eq!(node.wait_for_exit(SOON).unwrap().code(), Some(1));
    let log = node.log();
    for (name, wanted) in TUNABLES {
        let name = name.replace('/', ".");
        let text = format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: 7");
        assert!(log.contains(&text), "{text}\nin\n{log}");
    }
    drop(node);

    let node = start(|wanted| wanted, "protectKernelDefaults: true");
    up(&node);
    drop(node);

    // Another root directory than the kubelet's: the machine is somebody else's, unless the configuration says otherwise.
    let node = start(|_| "7\n", "{}");
    up(&node);
    assert!(TUNABLES.iter().all(|(name, _)| read(&dir, name) == "7\n"));
    drop(node);
    let node = start(|_| "7\n", "protectKernelDefaults: false");
    up(&node);
    for (name, wanted) in TUNABLES {
        wait_until(SOON, name, || match read(&dir, name) {
            value if value == *wanted => Ok(()),
            value => Err(value),
        })
        .unwrap();
    }
}

#[test]
fn the_oom_score_and_the_number_of_files() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    // Raising is allowed to everybody, lowering is not.
    // It begins with less than it is to have.
    let program = wrapped(&containerd, "", "ulimit -Sn 1024").unwrap();
    let builder = Node::builder().containerd(&containerd).program(&program);
    let node = builder.config("oomScoreAdj: 345\nmaxOpenFiles: 4321").start().unwrap();
    let own = PathBuf::from(format!("/proc/{}", node.pid().unwrap()));
    wait_until(SOON, "both to be set", || {
        let score = fs::read_to_string(own.join("oom_score_adj")).unwrap();
        let limits = fs::read_to_string(own.join("limits")).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let soft: u64 = files.split_whitespace().nth(3).unwrap().parse().unwrap();
        if score.trim() == "345" && soft == 4321 { Ok(()) } else { Err(format!("{score}, {files}")) }
    })
    .unwrap();
}

#[test]
fn more_reserved_than_there_is_does_not_start() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    for (config, text) in [
        (
            "systemReserved: {cpu: \"100000\"}",
            "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of 100k but capacity of",
        ),
        ("reservedSystemCPUs: \"60000\"", "reservedCPUs: 60000 is not a subset of online-cpus: 0"),
        (
            "allowedUnsafeSysctls: [\"vm.swappiness\"]",
            "the sysctls \"vm.swappiness\" are not known to be namespaced",
        ),
    ] {
        let mut node = Node::builder().containerd(&containerd).config(config).spawn().unwrap();
        assert_eq!(node.wait_for_exit(SOON).unwrap().code(), Some(1), "{config}");
        assert!(node.log().replace("\\\"", "\"").contains(text), "{text}\nin\n{}", node.log());
    }
}

/// The rules of a table in the network of a process.
fn rules(pid: u32, program: &str, table: &str) -> String {
    // Others on the machine may hold the lock for longer than it waits.
    wait_until(SOON, &format!("the table {table}"), || match iptables(pid, program, &["-t", table, "-S"]) {
        (true, rules) => Ok(rules),
        (false, said) => Err(said),
    })
    .unwrap()
}

/// What iptables says in the network of a process.
fn iptables(pid: u32, program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args([program, "-w", "5"])
        .args(args)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn iptables_chains_are_made_and_made_again() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let program = wrapped(&containerd, "--net", "ip link set lo up").unwrap();
    let builder = || Node::builder().containerd(&containerd).program(&program);
    let untouched = builder().start().unwrap();
    wait_until(SOON, "the first snapshot", || untouched.pods().map_err(|error| format!("{error:#}")))
        .unwrap();
    let node = builder().config("makeIPTablesUtilChains: true").start().unwrap();
    let pid = node.pid().unwrap();
    assert_ne!(
        fs::read_link(format!("/proc/{pid}/ns/net")).unwrap(),
        fs::read_link("/proc/self/ns/net").unwrap(),
        "the machine's own rules are not to be touched"
    );
    let in_place = |patience: Duration| {
        wait_until(patience, "the chains", || {
            let listed = |program: &str, table: &str| rules(pid, program, table);
            let filter = listed("iptables", "filter");
            let wanted = [
                (listed("iptables", "mangle"), "-N KUBE-IPTABLES-HINT\n"),
                (listed("iptables", "mangle"), "-N KUBE-KUBELET-CANARY\n"),
                (listed("iptables", "nat"), "-N KUBE-KUBELET-CANARY\n"),
                (listed("ip6tables", "mangle"), "-N KUBE-IPTABLES-HINT\n"),
                (listed("ip6tables", "mangle"), "-N KUBE-KUBELET-CANARY\n"),
                (filter.clone(), "-A INPUT -j KUBE-FIREWALL\n"),
                (filter.clone(), "-A OUTPUT -j KUBE-FIREWALL\n"),
                (filter.clone(), "-N KUBE-KUBELET-CANARY\n"),
                (
                    filter,
                    "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n",
                ),
            ];
            match wanted.iter().find(|(text, wanted)| !text.contains(wanted)) {
                None => Ok(()),
                Some((text, wanted)) => Err(format!("no {wanted} in\n{text}")),
            }
        })
    };
    // A call that did not get the lock is made again a minute later.
    let patience = Duration::from_secs(300);
    in_place(patience).unwrap();
    let filter = rules(pid, "iptables", "filter");
    assert_eq!(filter.matches("-j KUBE-FIREWALL").count(), 2, "once in each hook: {filter}");

    // Somebody flushes everything, as firewalls do when they are reloaded.
    for table in ["mangle", "nat", "filter"] {
        // Now and then mainstay is just putting something back.
        wait_until(SOON, "an empty table", || {
            match ["-F", "-X"].iter().all(|verb| iptables(pid, "iptables", &["-t", table, verb]).0) {
                true => Ok(()),
                false => Err(rules(pid, "iptables", table)),
            }
        })
        .unwrap();
    }
    in_place(patience).unwrap();

    // On another root directory than the kubelet's, nothing is made unless it was asked for.
    for table in ["mangle", "nat", "filter"] {
        let rules = rules(untouched.pid().unwrap(), "iptables", table);
        assert!(rules.contains("-P OUTPUT ") && !rules.contains("KUBE-"), "{table}: {rules}");
    }
}
