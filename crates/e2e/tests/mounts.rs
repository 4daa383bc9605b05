//! Mounts: how they propagate, that read-only is read-only, and what becomes of those that hang, are cut short or are somebody
//! else's.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use mainstay_e2e::{PodSeen, SOON, World, idle, idle_with, one_volume, secret, sh, with};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::json;

#[test]
fn nothing_is_deleted_through_a_mount() {
    let world = World::start(Flavor::Debian16).unwrap();
    let precious = world.containerd.dir().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "irreplaceable").unwrap();
    world.put("p", one_volume(json!({ "emptyDir": {} }))).unwrap();
    let seen = world.running("p").unwrap();
    // An administrator's mount, in the pod's volume and beside its volumes.
    let inside = world.volume(&seen, "empty-dir", "v").join("in");
    let beside = world.node.root().join("pods").join(seen.uid()).join("beside");
    for place in [&inside, &beside] {
        fs::create_dir(place).unwrap();
        mount(&["--bind", &precious.display().to_string(), &place.display().to_string()]);
        assert!(place.join("data").exists());
    }
    world.take_away("p").unwrap();
    world.gone("p").unwrap();
    wait_until(SOON, "the pod's directory to go", || {
        let dir = world.node.root().join("pods").join(seen.uid());
        if dir.exists() { Err(format!("{:?}", world.mounts_of(seen.uid()))) } else { Ok(()) }
    })
    .unwrap();
    assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "irreplaceable");
}

/// A mount of the test's own, gone when the test ends.
struct Mounted(String);

impl Mounted {
    fn shared(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let path = dir.display().to_string();
        mount(&["-t", "tmpfs", "tmpfs", &path]);
        mount(&["--make-shared", &path]);
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").args(["-R", "-l", &self.0]).status().ok();
    }
}

fn mount(args: &[&str]) {
    assert!(Command::new("mount").args(args).status().unwrap().success(), "mount {args:?}");
}

#[test]
fn mounts_propagate_as_they_should() {
    let world = World::start(Flavor::Debian16).unwrap();
    let dir = world.containerd.dir().join("shared");
    let _mounted = Mounted::shared(&dir);
    let path = dir.display().to_string();
    for sub in ["before", "later", "inside"] {
        fs::create_dir(dir.join(sub)).unwrap();
    }
    let container = |name: &str, mode: &str, privileged: bool| {
        with(
            idle(name),
            json!({
                "securityContext": { "privileged": privileged },
                "volumeMounts": [{ "name": "v", "mountPath": "/v", "mountPropagation": mode }],
            }),
        )
    };
    world
        .put("p", json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [container("none", "None", false), container("slave", "HostToContainer", false), container("both", "Bidirectional", true)],
            "volumes": [{ "name": "v", "hostPath": { "path": path } }],
        }))
        .unwrap();
    let seen = world.running("p").unwrap();
    mount(&["-t", "tmpfs", "tmpfs", &format!("{path}/later")]);
    fs::write(dir.join("later/from-host"), "x").unwrap();
    let sees = |container: &str, file: &str| {
        world.exec(&seen, container, &format!("test -e /v/{file} && echo yes || echo no")).unwrap()
    };
    assert_eq!(sees("slave", "later/from-host"), "yes");
    assert_eq!(sees("both", "later/from-host"), "yes");
    assert_eq!(sees("none", "later/from-host"), "no");
    world.exec(&seen, "both", "mount -t tmpfs tmpfs /v/inside && touch /v/inside/from-pod").unwrap();
    assert!(dir.join("inside/from-pod").exists(), "the host sees it");
    assert_eq!(sees("slave", "inside/from-pod"), "yes");
    assert_eq!(sees("none", "inside/from-pod"), "no");
}

#[test]
fn read_only_mounts_and_recursively_so() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let dir = world.containerd.dir().join("outer");
        let _mounted = Mounted::shared(&dir);
        fs::create_dir(dir.join("inner")).unwrap();
        mount(&["-t", "tmpfs", "tmpfs", &dir.join("inner").display().to_string()]);
        let container = |name: &str, recursive: &str| {
            with(
                idle(name),
                json!({ "volumeMounts": [
                { "name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": recursive },
            ] }),
            )
        };
        world
            .put("ro", json!({
                "containers": [container("disabled", "Disabled"), container("possible", "IfPossible"), container("enabled", "Enabled")],
                "volumes": [{ "name": "v", "hostPath": { "path": dir.display().to_string() } }],
            }))
            .unwrap();
        let writes = |seen: &PodSeen, container: &str, path: &str| {
            world
                .exec(seen, container, &format!("touch {path}/x 2>/dev/null && echo yes || echo no"))
                .unwrap()
        };
        if flavor == Flavor::Debian16 {
            let seen = world
                .wait("ro", "an error", |pod| {
                    pod.waits("enabled") == "CreateContainerConfigError"
                        && pod.runs("possible")
                        && pod.runs("disabled")
                })
                .unwrap();
            assert!(
                seen.waiting_message("enabled")
                    .contains("recursive read-only mount requested, but the container runtime cannot do it"),
                "{}",
                seen.waiting_message("enabled")
            );
            assert_eq!(
                (writes(&seen, "possible", "/v"), writes(&seen, "possible", "/v/inner")),
                ("no".into(), "yes".into())
            );
        } else {
            let seen = world.running("ro").unwrap();
            for container in ["possible", "enabled"] {
                assert_eq!(
                    (writes(&seen, container, "/v"), writes(&seen, container, "/v/inner")),
                    ("no".into(), "no".into()),
                    "{container}"
                );
            }
            assert_eq!(
                (writes(&seen, "disabled", "/v"), writes(&seen, "disabled", "/v/inner")),
                ("no".into(), "yes".into())
            );
            let status = &seen.container("enabled")["volumeMounts"][0];
            assert_eq!(
                (&status["readOnly"], &status["recursiveReadOnly"]),
                (&json!(true), &json!("Enabled")),
                "{status}"
            );
        }
    }
}

/// A `mount` that hangs for one server, stands in for another, and is the real one for everybody else.
fn fake_mount(dir: &Path) -> String {
    fs::create_dir(dir).unwrap();
    let script = dir.join("mount");
    let text = "#!/bin/sh\nfor last; do :; done\ncase \"$*\" in\n*'-t nfs'*dead.test:/x*) echo $$ >> \"$0.pids\"; sleep 100000 & wait;;\n*'-t nfs'*good.test:/x*) exec /bin/mount -t tmpfs tmpfs \"$last\";;\n*'-t nfs'*) echo 'mount.nfs: access denied by server' >&2; exit 32;;\nesac\nexec /bin/mount \"$@\"\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_mount_that_hangs_blocks_only_its_pod_and_is_named() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let bin = containerd.dir().join("bin");
    let path = fake_mount(&bin);
    let node = Node::builder().containerd(&containerd).env("PATH", path).start().unwrap();
    let mut world = World { node, containerd };
    let nfs = |server: &str| one_volume(json!({ "nfs": { "server": server, "path": "/x" } }));
    let begun = Instant::now();
    world.put("dead", nfs("dead.test")).unwrap();
    world.put("denied", nfs("denied.test")).unwrap();
    world.put("good", nfs("good.test")).unwrap();
    for index in 0..20 {
        world
            .put(&format!("other-{index}"), one_volume(json!({ "emptyDir": { "medium": "Memory" } })))
            .unwrap();
    }
    for index in 0..20 {
        let up = |pod: &PodSeen| pod.phase() == "Running" && pod.is_true("Ready");
        world.wait_long(4 * SOON, &format!("other-{index}"), "Running and Ready", up).unwrap();
    }
    let good = world.running("good").unwrap();
    assert_eq!(world.exec(&good, "c", "touch /v/x; stat -f -c %T /v").unwrap(), "tmpfs");
    let seen =
        world.wait("denied", "the reason", |pod| pod.waiting_message("c").contains("access denied")).unwrap();
    assert!(
        seen.waiting_message("c").contains("mount failed: exit status: 32\nMounting command: mount\n"),
        "{}",
        seen.waiting_message("c")
    );

    let seen = world
        .wait("dead", "a name", |pod| {
            let volume = world.volume(pod, "nfs", "v");
            let hangs = format!("volume \"v\": mount -t nfs dead.test:/x {}", volume.display());
            let message = pod.waiting_message("c");
            message.starts_with(&hangs) && message.contains("has not ended")
        })
        .unwrap();
    assert_eq!(seen.phase(), "Pending");
    world
        .event("dead", "FailedMount", "MountVolume.SetUp failed for volume \"v\" : mount -t nfs dead.test:/x")
        .unwrap();
    // One that nobody has reaped yet has no command line any more.
    let lives = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty());
    let tried = || -> Vec<String> {
        let text = fs::read_to_string(bin.join("mount.pids")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let first = wait_until(SOON, "a mount command that hangs", || {
        let tried = tried();
        if tried.last().is_some_and(|pid| lives(pid)) { Ok(tried) } else { Err(format!("{tried:?}")) }
    })
    .unwrap();
    let (hangs, earlier) = first.split_last().unwrap();
    // It is given up after two minutes; a slow machine may need them to come this far.
    let given_up = begun.elapsed().as_secs() / 120;
    assert!(
        earlier.len() as u64 <= given_up && !earlier.iter().any(|pid| lives(pid)),
        "it is not tried a second time while the first hangs: {first:?}"
    );
    // What an agent that was killed had begun does not go on beside what the next one begins.
    world.node.kill9();
    assert!(lives(hangs));
    world.node.start_again().unwrap();
    wait_until(SOON, "the next try", || {
        let tried = tried();
        if tried.last().is_some_and(|pid| pid != hangs) { Ok(()) } else { Err(format!("{tried:?}")) }
    })
    .unwrap();
    wait_until(SOON, "the end of the mount command of the earlier life", || {
        if lives(hangs) { Err(hangs.clone()) } else { Ok(()) }
    })
    .unwrap();

    for name in ["dead", "good"] {
        world.take_away(name).unwrap();
        world.gone(name).unwrap();
    }
    world.unmounted(good.uid()).unwrap();
    wait_until(SOON, "the end of its directory and of the mount command", || {
        let exists = world.node.root().join("pods").join(seen.uid()).exists();
        let lives = tried().iter().any(|pid| lives(pid));
        if !exists && !lives { Ok(()) } else { Err(format!("directory {exists}, command {lives}")) }
    })
    .unwrap();
}

#[test]
fn a_kill_between_mount_and_start_loses_nothing() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    world.put_manifest("s", &secret("s", json!({ "s": "1" }))).unwrap();
    world
        .put("slow", json!({
            "terminationGracePeriodSeconds": 1,
            "initContainers": [with(sh("init", "echo precious > /e/data; echo in-memory > /m/data; while [ ! -e /e/go ]; do sleep 0.1; done"), json!({ "volumeMounts": [{ "name": "e", "mountPath": "/e" }, { "name": "m", "mountPath": "/m" }] }))],
            "containers": [idle_with(json!([{ "name": "e", "mountPath": "/e" }, { "name": "m", "mountPath": "/m" }, { "name": "s", "mountPath": "/s" }]))],
            "volumes": [{ "name": "e", "emptyDir": {} }, { "name": "m", "emptyDir": { "medium": "Memory" } }, { "name": "s", "secret": { "secretName": "s" } }],
        }))
        .unwrap();
    let seen = world.wait("slow", "init", |pod| pod.runs("init")).unwrap();
    let empty_dir = world.volume(&seen, "empty-dir", "e");
    wait_until(
        SOON,
        "data",
        || {
            if empty_dir.join("data").exists() { Ok(()) } else { Err("none".to_owned()) }
        },
    )
    .unwrap();
    // Volumes are mounted, nothing of it runs in the runtime: its next try begins while mainstay is away.
    world.node.kill9();
    fs::write(empty_dir.join("go"), "").unwrap();
    world.put_manifest("s", &secret("s", json!({ "s": "2" }))).unwrap();
    world.node.start_again().unwrap();
    let now = world.running("slow").unwrap();
    assert_eq!(now.uid(), seen.uid());
    wait_until(SOON, "what was kept, and what came meanwhile", || {
        let found =
            world.exec(&now, "c", "cat /e/data /m/data /s/s").map_err(|error| format!("{error:#}"))?;
        if found == "precious\nin-memory\n2" { Ok(()) } else { Err(found) }
    })
    .unwrap();
    let mounts = world.mounts_of(now.uid()).unwrap();
    assert_eq!(mounts.len(), 2, "each is mounted once: {mounts:?}");
    // Killed again, and its file goes away meanwhile: nothing of it stays.
    world.node.kill9();
    world.take_away("slow").unwrap();
    world.node.start_again().unwrap();
    world.gone("slow").unwrap();
    wait_until(SOON, "no directory", || {
        let dir = world.node.root().join("pods").join(now.uid());
        if dir.exists() { Err(format!("{:?}", world.mounts_of(now.uid()))) } else { Ok(()) }
    })
    .unwrap();
    assert_eq!(world.mounts_of(now.uid()).unwrap(), []);
}
