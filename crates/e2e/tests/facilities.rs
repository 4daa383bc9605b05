//! What the machine's own services do for a node: criu behind `/checkpoint`, the journal behind `/logs/?query=`, huge pages,
//! an NFS server. A machine that lacks one is looked at as well; the test machine (`cargo xtask vm`) has all of them.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mainstay_e2e::{PodSeen, SOON, World, idle, sh, whole_machine, with};
use mainstay_testkit::{Flavor, capture, nfs_export, wait_until};
use serde_json::{Value, json};

/// The machine's NFS server is one for all tests, and one of them cuts it off.
static NFS: Mutex<()> = Mutex::new(());
const HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

fn one_volume(container: Value, volume: Value) -> Value {
    let container = with(container, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let volume = with(json!({ "name": "v" }), volume);
    json!({ "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [volume] })
}

/// What is in a file of an archive.
fn member(archive: &Path, name: &str) -> Vec<u8> {
    let output = Command::new("tar").arg("-xOf").arg(archive).arg(name).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn json_member(archive: &Path, name: &str) -> Value {
    serde_json::from_slice(&member(archive, name)).unwrap()
}

#[test]
fn a_checkpoint_has_the_containers_memory_files_and_log_and_the_container_goes_on() {
    let world = World::start(Flavor::Built24).unwrap();
    // Arithmetic, so that the word is in the shell's memory and nowhere in the manifest.
    let script =
        "word=remembered-$((6 * 7)); echo on-disk > /made; echo begun; while :; do sleep 1; echo tick; done";
    world.put("p", json!({ "terminationGracePeriodSeconds": 1, "containers": [sh("c", script)] })).unwrap();
    let before = world.running("p").unwrap();
    world.logged("p", "c", "tick").unwrap();
    let pod = world.full_name("p");
    // A dump reads all the memory there is to read.
    let ask = |path: &str| {
        let mut body = world.node.http().begin("POST", path, Duration::from_secs(120)).unwrap();
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        (body.status, text)
    };
    let (status, text) = ask(&format!("/checkpoint/default/{pod}/c"));
    let able = Command::new("criu").arg("check").output().is_ok_and(|output| output.status.success());
    if !able {
        assert!(!whole_machine(), "criu check fails here: {text}");
        assert_eq!(status, 500, "{text}");
        assert!(text.starts_with(&format!("checkpointing of default/{pod}/c failed (")), "{text}");
        assert!(text.contains("criu"), "{text}");
        return;
    }
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let items = answer["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{text}");
    let archive = PathBuf::from(items[0].as_str().unwrap());
    let directory = world.node.root().join("checkpoints");
    assert_eq!(archive.parent().unwrap(), directory);
    let name = archive.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("checkpoint-{pod}_default-c-2")) && name.ends_with("Z.tar"), "{name}");
    for (path, mode) in [(&archive, 0o600), (&directory, 0o700)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{path:?}");
    }

    let config = json_member(&archive, "config.dump");
    assert_eq!(config["id"].as_str(), Some(before.id("c")), "{config}");
    let spec = json_member(&archive, "spec.dump");
    assert_eq!(spec["process"]["args"][2].as_str(), Some(script), "{spec}");
    let log = String::from_utf8(member(&archive, "container.log")).unwrap();
    assert!(log.contains(" stdout F begun\n"), "{log}");
    let names = capture(Command::new("tar").arg("-tf").arg(&archive), SOON).unwrap();
    let pages: Vec<&str> = names.lines().filter(|name| name.starts_with("checkpoint/pages-")).collect();
    let remembered = |name: &&str| {
        member(&archive, name).windows(b"remembered-42".len()).any(|bytes| bytes == b"remembered-42")
    };
    assert!(pages.iter().any(remembered), "{names}");
    let kept = tempfile::tempdir().unwrap();
    fs::write(kept.path().join("diff"), member(&archive, "rootfs-diff.tar")).unwrap();
    assert_eq!(member(&kept.path().join("diff"), "made"), b"on-disk\n");

    // It was only looked at.
    let ticks = |log: &str| log.matches("tick").count();
    let seen = ticks(&world.logs("p", "c", "").unwrap());
    wait_until(SOON, "more ticks", || {
        let log = world.logs("p", "c", "").map_err(|error| format!("{error:#}"))?;
        if ticks(&log) > seen { Ok(()) } else { Err(log) }
    })
    .unwrap();
    let after = world.running("p").unwrap();
    assert_eq!((after.id("c"), after.restarts("c")), (before.id("c"), 0));
}

#[test]
fn the_journal_is_asked_for_what_a_unit_wrote() {
    let world = World::with_config(
        Flavor::Debian16,
        "{enableSystemLogHandler: true, enableSystemLogQuery: true, enableDebuggingHandlers: true}",
    )
    .unwrap();
    let query = |query: &str| {
        let answer = world.node.http().get(&format!("/logs/?query={query}")).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    let unit = format!("mainstay-test-{}", std::process::id());
    if !Path::new("/run/systemd/system").exists() {
        assert!(!whole_machine(), "systemd does not run here");
        assert_eq!(query(&unit), format!("\nlog not found for {unit}\n"));
        return;
    }
    let clock = |when: &str| {
        capture(Command::new("date").args(["--utc", "--date", when, "+%Y-%m-%dT%H:%M:%SZ"]), SOON)
            .unwrap()
            .trim()
            .to_owned()
    };
    let begun = clock("now");
    let script = "echo first word; echo second word; echo third thing >&2";
    let run = ["--quiet", "--wait", "--collect", "--unit", &unit, "--", "/bin/sh", "-c", script];
    capture(Command::new("systemd-run").args(run), SOON).unwrap();
    let messages = |text: &str| -> Vec<String> {
        // Lines of systemd about the unit are its own; those of the unit are by its processes.
        let by_unit = text.lines().filter(|line| line.contains(" sh["));
        by_unit.filter_map(|line| Some(line.split_once("]: ")?.1.to_owned())).collect()
    };
    wait_until(SOON, "the lines in the journal", || {
        let text = query(&unit);
        if messages(&text) == ["first word", "second word", "third thing"] { Ok(()) } else { Err(text) }
    })
    .unwrap();
    let matching = query(&format!("{unit}&pattern=word$"));
    assert_eq!(messages(&matching), ["first word", "second word"], "{matching}");
    let last = query(&format!("{unit}&pattern=word&tailLines=1"));
    assert_eq!(messages(&last), ["second word"], "{last}");
    let since = query(&format!("{unit}&sinceTime={begun}&boot=0"));
    assert_eq!(messages(&since).len(), 3, "{since}");
    let none = query(&format!("{unit}&untilTime={}", clock("1 hour ago")));
    assert_eq!(none, "-- No entries --\n");
    // One has a journal, the other has nothing.
    let two = query(&format!("{unit}&query=mainstay-no-such-unit"));
    assert_eq!(messages(&two).len(), 3, "{two}");
    assert!(two.ends_with("\nlog not found for mainstay-no-such-unit\n"), "{two}");
    let bad = world.node.http().get(&format!("/logs/?query={unit}%3B+reboot")).unwrap();
    assert_eq!(bad.status, 406, "{}", bad.text());
}

#[test]
fn huge_pages_are_counted_limited_and_given_back() {
    let number = |file: &str| -> i64 {
        fs::read_to_string(Path::new(HUGE).join(file)).unwrap_or_default().trim().parse().unwrap_or(0)
    };
    let world = World::start(Flavor::Debian16).unwrap();
    let limits = json!({ "hugepages-2Mi": "4Mi", "memory": "64Mi", "cpu": "100m" });
    // Two pages are allowed; the third is not.
    let script = "fallocate -l 4194304 /v/two && echo had=two; fallocate -l 2097152 /v/third || echo refused=third; while :; do sleep 1; done";
    let huge = with(sh("c", script), json!({ "resources": { "limits": limits } }));
    let (all, free) = (number("nr_hugepages"), number("free_hugepages"));
    world.put("p", one_volume(huge, json!({ "emptyDir": { "medium": "HugePages" } }))).unwrap();
    if all < 3 {
        assert!(!whole_machine(), "the test machine has huge pages");
        let seen = world.wait("p", "Failed", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(seen.text("/status/reason"), "OutOfhugepages-2Mi");
        let message = seen.text("/status/message");
        let capacity = all << 21;
        assert!(
            message.contains(&format!("hugepages-2Mi, requested: 4194304, used: 0, capacity: {capacity}")),
            "{message}"
        );
        return;
    }
    assert!(free >= 3, "somebody uses this machine's huge pages: {free} of {all} are free");
    let seen = world.running("p").unwrap();
    let log = world.logged("p", "c", "refused=third").unwrap();
    assert!(log.contains("had=two"), "{log}");
    assert_eq!(number("free_hugepages"), free - 2);
    // What a cgroup has of them is looked at once a minute.
    wait_until(4 * SOON, "the pages in the container's numbers", || {
        let text = world.node.get("/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
        let of = |family: &str| -> Result<f64, String> {
            let is_it = |line: &&str| {
                line.starts_with(&format!("{family}{{container=\"c\",")) && line.contains("pagesize=\"2MB\"")
            };
            let line = text.lines().find(is_it).ok_or_else(|| format!("no {family}"))?;
            let value = line.rsplit(' ').nth(1).and_then(|word| word.parse().ok());
            value.ok_or_else(|| line.to_owned())
        };
        let found = (of("container_hugetlb_usage_bytes")?, of("container_hugetlb_failcnt")?);
        if found.0 == 4_194_304.0 && found.1 >= 1.0 { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    let volume = world.volume(&seen, "empty-dir", "v").display().to_string();
    assert!(world.mounts_of(seen.uid()).unwrap().contains(&(volume, "hugetlbfs".to_owned())));
    // More than there are: refused, and nobody else is the worse for it.
    let limits = json!({ "hugepages-2Mi": all << 21, "memory": "64Mi", "cpu": "100m" });
    let greedy = with(idle("c"), json!({ "resources": { "limits": limits } }));
    world.put("greedy", json!({ "containers": [greedy] })).unwrap();
    let refused = world.wait("greedy", "Failed", |pod| pod.phase() == "Failed").unwrap();
    assert_eq!(refused.text("/status/reason"), "OutOfhugepages-2Mi");
    assert!(refused.text("/status/message").contains("used: 4194304"), "{refused:?}");
    world.take_away("p").unwrap();
    world.gone("p").unwrap();
    wait_until(SOON, "the pages given back", || match number("free_hugepages") {
        now if now == free => Ok(()),
        now => Err(format!("{now} of {free}")),
    })
    .unwrap();
}

#[test]
fn an_nfs_volume_is_the_servers_directory() {
    let _alone = NFS.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::start(Flavor::Debian16).unwrap();
    let nfs = |read_only| json!({ "nfs": { "server": "127.0.0.1", "path": "/", "readOnly": read_only } });
    let Some(exported) = nfs_export() else {
        // Either the machine has no mount.nfs, or there is no server that the test may use.
        world.put("w", one_volume(idle("c"), nfs(false))).unwrap();
        let seen = world
            .wait("w", "the mount's failure", |pod| pod.waiting_message("c").contains("mount failed"))
            .unwrap();
        let message = seen.waiting_message("c");
        assert!(message.contains("Mounting arguments: -t nfs 127.0.0.1:/ "), "{message}");
        return;
    };
    fs::write(exported.join("greeting"), "hello\n").unwrap();
    world
        .put(
            "w",
            one_volume(
                sh("c", "cat /v/greeting; echo made > /v/by-pod; echo done; while :; do sleep 1; done"),
                nfs(false),
            ),
        )
        .unwrap();
    let seen = world.running("w").unwrap();
    let log = world.logged("w", "c", "done").unwrap();
    assert!(log.contains("hello"), "{log}");
    assert_eq!(fs::read_to_string(exported.join("by-pod")).unwrap(), "made\n");
    let volume = world.volume(&seen, "nfs", "v").display().to_string();
    assert_eq!(world.mounts_of(seen.uid()).unwrap(), [(volume, "nfs4".to_owned())]);
    world
        .put(
            "r",
            one_volume(
                sh("c", "cat /v/greeting; touch /v/x || echo refused; while :; do sleep 1; done"),
                nfs(true),
            ),
        )
        .unwrap();
    let log = world.logged("r", "c", "refused").unwrap();
    assert!(log.contains("hello"), "{log}");
    // What is said as an error comes by another way.
    world.logged("r", "c", "Read-only file system").unwrap();
    for name in ["w", "r"] {
        world.take_away(name).unwrap();
        world.gone(name).unwrap();
    }
    world.unmounted(seen.uid()).unwrap();
    // The pods' ends are not the files'.
    assert!(exported.join("by-pod").exists() && !exported.join("x").exists());
}

/// The machine's packets to its own NFS server go nowhere; dropping it lets them through again.
struct Cut;

impl Cut {
    const RULE: [&str; 8] = ["OUTPUT", "-p", "tcp", "--dport", "2049", "-j", "DROP", "-w"];

    fn begin() -> Self {
        assert!(Command::new("iptables").arg("-I").args(Self::RULE).status().unwrap().success());
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        Command::new("iptables").arg("-D").args(Self::RULE).status().ok();
    }
}

#[test]
fn a_dead_nfs_server_holds_up_only_the_pods_that_use_it() {
    let _alone = NFS.lock().unwrap_or_else(PoisonError::into_inner);
    let nfs = || json!({ "nfs": { "server": "127.0.0.1", "path": "/" } });
    let world = World::start(Flavor::Debian16).unwrap();
    if nfs_export().is_none() {
        assert!(!whole_machine(), "the test machine has an NFS server");
        // A server that was never there fails its pod and no other; what hangs is shown with a program that does:
        // a_mount_that_hangs_blocks_only_its_pod_and_is_named.
        world.put("late", one_volume(idle("c"), nfs())).unwrap();
        world.wait("late", "the failure", |pod| pod.waiting_message("c").contains("mount failed")).unwrap();
        world.put("other", json!({ "containers": [idle("c")] })).unwrap();
        world.running("other").unwrap();
        world.take_away("late").unwrap();
        world.gone("late").unwrap();
        return;
    }
    world.put("user", one_volume(idle("c"), nfs())).unwrap();
    let user = world.running("user").unwrap();
    let cut = Cut::begin();
    // One whose mount never ends, and one that goes: a server that is dead keeps no pod from going.
    world.put("late", one_volume(idle("c"), nfs())).unwrap();
    world.take_away("user").unwrap();
    let named = |pod: &PodSeen| {
        let message = pod.waiting_message("c");
        message.starts_with("volume \"v\": mount -t nfs 127.0.0.1:/") && message.contains("has not ended")
    };
    let late = world.wait("late", "what hangs, named", named).unwrap();
    assert_eq!(late.phase(), "Pending");
    for name in ["other", "another"] {
        let volume = json!({ "emptyDir": { "medium": "Memory" } });
        world.put(name, one_volume(idle("c"), volume)).unwrap();
        world.running(name).unwrap();
    }
    let another = world.full_name("another");
    wait_until(SOON, "numbers of a pod that has come meanwhile", || {
        let summary = world.node.get("/stats/summary").map_err(|error| format!("{error:#}"))?;
        if summary.contains(&another) { Ok(()) } else { Err(summary) }
    })
    .unwrap();
    world.take_away("other").unwrap();
    world.gone("other").unwrap();
    wait_until(10 * SOON, "the end of the one that used it", || match world.mounts_of(user.uid()) {
        Ok(mounts) if mounts.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    world.gone("user").unwrap();

    drop(cut);
    // What the kernel sends again it sends at longer and longer intervals.
    world.wait_long(10 * SOON, "late", "Running", |pod| pod.phase() == "Running").unwrap();
    world.take_away("late").unwrap();
    world.gone("late").unwrap();
}
