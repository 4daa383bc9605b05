//! Peers, disks and strangers misbehave: pods go on, and mainstay says what is wrong.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{
    OBEDIENT, PATIENCE, Seen, events, gone, in_runtime, listed, manifest, persisted, pod, quick, running,
    same, server, shell, start, wait_pod,
};
use mainstay_e2e::{CgroupFiles, write_program};
use mainstay_testkit::{
    BUSYBOX, CgroupDriver, Containerd, Flavor, Http, Node, mainstay_binary, patient, wait_until,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn mainstay_waits_for_its_runtime(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    containerd.stop();
    let mut node = quick(&containerd).prepare()?;
    node.write_manifest("web.yaml", &server("web"))?;
    node.start_again()?;
    ensure!(node.healthz()? == "ok");
    ensure!(Http::Tcp(node.healthz_address()).get("/healthz")?.status == 200, "the healthz port");
    for http in [node.http(), Http::Tcp(node.read_only())] {
        let answer = http.get("/pods")?;
        ensure!(answer.status == 503, "{http}: {} {}", answer.status, answer.text());
    }
    let log = wait_log(&node, "the container runtime does not answer")?;
    ensure!(log.contains(&containerd.socket().display().to_string()), "the socket is not named: {log}");
    containerd.start_again()?;
    let web = running(&node, "web")?;
    ensure!(web.restarts("main") == 0);
    ensure!(in_runtime(&containerd, Some(web.uid()))?.sandboxes.len() == 1);
    Ok(())
}

#[test]
fn without_a_runtime_mainstay_waits_is_healthy_and_lists_nothing() -> Result<()> {
    mainstay_waits_for_its_runtime(Flavor::Debian16)
}

#[test]
fn without_a_runtime_mainstay_waits_is_healthy_and_lists_nothing_on_containerd_2() -> Result<()> {
    mainstay_waits_for_its_runtime(Flavor::Built24)
}

fn wait_log(node: &Node, text: &str) -> Result<String> {
    wait_until(PATIENCE, &format!("{text:?} in the log"), || {
        let log = node.log();
        if log.contains(text) { Ok(log) } else { Err(log) }
    })
}

fn runtime_restarts_under_pods(flavor: Flavor) -> Result<()> {
    let (containerd, node) = start(flavor)?;
    node.write_manifest("web.yaml", &server("web"))?;
    node.write_manifest(
        "mortal.yaml",
        &manifest(
            "mortal",
            json!({ "containers": [shell("main", "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 5")] }),
        ),
    )?;
    let web = running(&node, "web")?;
    let mortal = running(&node, "mortal")?;
    let pid = container_pid(&containerd, &mortal)?;

    containerd.kill9();
    wait_log(&node, "the container runtime does not answer")?;
    // It ends while nobody can see it.
    fs::write(format!("/proc/{pid}/root/tmp/end"), "")?;
    wait_until(PATIENCE, "the container's end", || {
        if Path::new(&format!("/proc/{pid}/cmdline")).exists()
            && !fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty()
        {
            return Err("it lives".to_owned());
        }
        Ok(())
    })?;
    same(&web, &pod(&node, "web")?).context("while containerd is down")?;
    node.write_manifest("late.yaml", &server("late"))?;
    containerd.start_again()?;

    let again = wait_pod(&node, "mortal", "restarted", |pod| pod.restarts("main") == 1 && pod.ready())?;
    ensure!(again.uid() == mortal.uid());
    let last = &again.container("main")["lastState"]["terminated"];
    ensure!(last["containerID"] == mortal.container("main")["containerID"], "{last}");
    running(&node, "late")?;
    same(&web, &pod(&node, "web")?).context("after containerd came back")?;
    ensure!(in_runtime(&containerd, Some(web.uid()))?.containers.len() == 1);
    // And it is seen as before: a crash now is noticed without a restart of mainstay.
    let pid = container_pid(&containerd, &again)?;
    fs::write(format!("/proc/{pid}/root/tmp/end"), "")?;
    wait_pod(&node, "mortal", "restarted again", |pod| pod.restarts("main") == 2).map(drop)
}

#[test]
fn pods_outlive_a_killed_containerd_and_a_crash_meanwhile_is_noticed_afterwards() -> Result<()> {
    runtime_restarts_under_pods(Flavor::Debian16)
}

#[test]
fn pods_outlive_a_killed_containerd_and_a_crash_meanwhile_is_noticed_afterwards_on_containerd_2() -> Result<()>
{
    runtime_restarts_under_pods(Flavor::Built24)
}

fn container_pid(containerd: &Containerd, pod: &Seen) -> Result<i64> {
    let id = pod.container_id("main").trim_start_matches("containerd://");
    let text = containerd.crictl(&["inspect", id])?;
    let value: Value = serde_json::from_str(&text)?;
    value["info"]["pid"].as_i64().context("no pid")
}

/// Stops a process and lets it go on when dropped, also out of a failed test.
struct Frozen(Pid);

impl Frozen {
    fn new(pid: u32) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

#[test]
fn a_hanging_containerd_flips_nothing_and_pods_is_still_answered() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    // A slow machine's runtime needs more than that for a sandbox.
    let timeout = patient(Duration::from_secs(8));
    let config = format!("runtimeRequestTimeout: {}s", timeout.as_secs());
    let node = quick(&containerd).config(config).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let frozen = Frozen::new(containerd.pid().context("no pid")?)?;
    let since = Instant::now();
    // Long enough for calls to time out one after the other.
    while since.elapsed() < timeout * 2 + Duration::from_secs(1) {
        let asked = Instant::now();
        same(&web, &pod(&node, "web")?)?;
        // One that waited for a call would take as long as that.
        ensure!(asked.elapsed() < timeout, "an answer took {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    node.healthz()?;
    node.write_manifest("late.yaml", &server("late"))?;
    drop(frozen);
    running(&node, "late")?;
    same(&web, &pod(&node, "web")?)?;
    ensure!(in_runtime(&containerd, Some(web.uid()))?.containers.len() == 1);
    Ok(())
}

/// A sandbox with a running container, made by crictl.
fn stranger(containerd: &Containerd, name: &str, labels: &Value) -> Result<(String, String)> {
    let file = |suffix: &str, value: &Value| -> Result<String> {
        let path = containerd.dir().join(format!("{name}-{suffix}.json"));
        fs::write(&path, value.to_string())?;
        Ok(path.to_string_lossy().into_owned())
    };
    let sandbox_file = file(
        "sandbox",
        &json!({
            "metadata": { "name": name, "namespace": "default", "uid": name, "attempt": 0 },
            "labels": labels,
            "annotations": { "kubernetes.io/config.source": "file" },
            "log_directory": containerd.dir().join("stranger-logs"),
            "linux": { "cgroup_parent": CgroupDriver::of_this_run().parent(&[&containerd.instance().cgroup_name(), &format!("pod-{name}")]) },
        }),
    )?;
    let container_file = file(
        "container",
        &json!({
            "metadata": { "name": "main" },
            "image": { "image": BUSYBOX },
            "labels": labels,
            "command": ["sh", "-c", OBEDIENT],
            "log_path": "main.log",
        }),
    )?;
    let sandbox = containerd.crictl(&["runp", &sandbox_file])?.trim().to_owned();
    let container = containerd.crictl(&["create", "--no-pull", &sandbox, &container_file, &sandbox_file])?;
    let container = container.trim().to_owned();
    containerd.crictl(&["start", &container])?;
    Ok((sandbox, container))
}

fn kubernetes_labels(name: &str) -> Value {
    json!({
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": name,
        "io.kubernetes.container.name": "main",
    })
}

fn is_running(containerd: &Containerd, container: &str) -> Result<bool> {
    let text = containerd.crictl(&["ps", "-q", "--no-trunc", "--state", "Running"])?;
    Ok(text.lines().any(|line| line.trim() == container))
}

/// `mainstay run` with the kit's files: a script that says the same in the words of that command.
fn run_mode(containerd: &Containerd, manifests: &Path) -> Result<Node> {
    let script = containerd.dir().join("mainstay-run");
    let program = mainstay_binary()?;
    let text = format!(
        "#!/bin/sh\nexec '{}' run --config \"$3\" --root-dir \"$5\" --node-name \"$7\" --manifests '{}'\n",
        program.display(),
        manifests.display()
    );
    write_program(&script, &text)?;
    quick(containerd).config("failCgroupV1: true").manifests(manifests).program(script).start()
}

fn run_beside_strangers(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let (_, plain) = stranger(&containerd, "plain", &json!({}))?;
    let (_, labelled) = stranger(&containerd, "labelled", &kubernetes_labels("labelled"))?;
    let manifests = containerd.dir().join("run-manifests");
    // Somebody else's pod by the very name that one of ours has here.
    let (_, twin) = stranger(&containerd, "twin-node", &kubernetes_labels("twin-node"))?;
    fs::create_dir_all(&manifests)?;
    fs::write(manifests.join("twin.yaml"), server("twin"))?;
    let mut node = run_mode(&containerd, &manifests)?;
    let ours = running(&node, "twin")?;
    let old_cgroups = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    ensure!(
        node.log().contains("this machine uses cgroup v1, which works but is deprecated") == old_cgroups,
        "{}",
        node.log()
    );
    ensure!(is_running(&containerd, &twin)?, "the other one of this name was touched");
    node.remove_manifest("twin.yaml")?;
    gone(&containerd, &node, ours.uid())?;
    ensure!(is_running(&containerd, &twin)?, "the other one of this name went with ours");
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    listed(&node, &["web"])?;
    // Another kubelet's cgroups and files, even where mainstay has its own.
    let parts = ["kubepods", "besteffort", "pod0c1d2e3f-0000-4000-8000-000000000001"];
    let root = node.cgroup_root().split('/').filter(|part| !part.is_empty());
    let cgroup = CgroupFiles::at(&root.chain(parts).collect::<Vec<_>>()).made();
    let file = node.root().join("pods/0c1d2e3f-0000-4000-8000-000000000001/volumes/data");
    fs::create_dir_all(file.parent().context("a directory")?)?;
    fs::write(&file, "theirs")?;
    node.kill9();
    node.start_again()?;
    running(&node, "web")?;
    node.remove_manifest("web.yaml")?;
    gone(&containerd, &node, web.uid())?;
    ensure!(
        is_running(&containerd, &plain)? && is_running(&containerd, &labelled)?,
        "a stranger was touched"
    );
    listed(&node, &[]).context("a stranger is listed")?;
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == 3);
    ensure!(!cgroup.directories().is_empty(), "a stranger's cgroup is gone");
    ensure!(fs::read_to_string(&file)? == "theirs");
    Ok(())
}

#[test]
fn mainstay_run_leaves_every_stranger_in_the_runtime_alone() -> Result<()> {
    run_beside_strangers(Flavor::Debian16)
}

#[test]
fn mainstay_run_leaves_every_stranger_in_the_runtime_alone_on_containerd_2() -> Result<()> {
    run_beside_strangers(Flavor::Built24)
}

fn kubelet_beside_strangers(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let (_, plain) = stranger(&containerd, "plain", &json!({}))?;
    let (sandbox, labelled) = stranger(&containerd, "labelled", &kubernetes_labels("labelled"))?;
    let mut node = quick(&containerd).prepare()?;
    node.write_manifest("web.yaml", &server("web"))?;
    node.start_again()?;
    running(&node, "web")?;
    wait_until(PATIENCE, "the end of the unknown pod", || {
        let found = in_runtime(&containerd, Some("labelled")).map_err(|error| format!("{error:#}"))?;
        if found == Default::default() {
            Ok(())
        } else {
            Err(format!("{found:?}, sandbox {sandbox}, container {labelled}"))
        }
    })?;
    ensure!(is_running(&containerd, &plain)?, "a sandbox that is no pod was touched");
    listed(&node, &["web"])
}

#[test]
fn mainstay_kubelet_removes_unknown_kubernetes_pods_and_leaves_other_sandboxes_alone() -> Result<()> {
    kubelet_beside_strangers(Flavor::Debian16)
}

#[test]
fn mainstay_kubelet_removes_unknown_kubernetes_pods_and_leaves_other_sandboxes_alone_on_containerd_2()
-> Result<()> {
    kubelet_beside_strangers(Flavor::Built24)
}

/// A bus on which nobody ever answers stands for a systemd that hangs.
#[test]
fn a_systemd_that_hangs_holds_up_pods_that_say_so_and_nothing_else() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let socket = containerd.dir().join("bus");
    let _silent = std::os::unix::net::UnixListener::bind(&socket)?;
    let mut node = quick(&containerd)
        .config("cgroupDriver: systemd")
        .env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", socket.display()))
        .prepare()?;
    for name in ["one", "two"] {
        node.write_manifest(&format!("{name}.yaml"), &server(name))?;
    }
    node.start_again()?;
    ensure!(node.healthz()? == "ok");
    listed(&node, &["one", "two"])?;
    for name in ["one", "two"] {
        let seen = wait_pod(&node, name, "that it says what it waits for", |pod| {
            let message = pod.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
            message.contains("systemd")
        })?;
        ensure!(seen.phase() == "Pending", "{seen:?}");
    }
    wait_until(PATIENCE, "an event about it", || {
        let told = events(&node, None).map_err(|error| format!("{error:#}"))?;
        let about = told.iter().any(|event| event.contains("cannot make the pods' cgroups; pods wait"));
        if about { Ok(()) } else { Err(format!("{told:?}")) }
    })?;
    ensure!(node.exit_status().is_none() && node.healthz()? == "ok", "mainstay lives");
    Ok(())
}

/// A mount that goes with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path, options: &str) -> Result<Self> {
        fs::create_dir_all(at)?;
        let options = std::ffi::CString::new(options)?;
        mount("tmpfs", at, "tmpfs", MountFlags::empty(), &*options).context("cannot mount")?;
        Ok(Self(at.to_owned()))
    }

    fn read_only(&self, on: bool) -> Result<()> {
        let flags = if on { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(&self.0, flags, "").context("cannot remount")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// Waits until all that happened is on disk, which takes longer than the rest.
fn events_persisted(node: &Node) -> Result<()> {
    wait_until(PATIENCE, "the events on disk", || {
        let shown = events(node, None).map_err(|error| format!("{error:#}"))?;
        let path = node.root().join("mainstay/events.json");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let kept: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let word = |record: &Value, key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let records = kept["data"]["records"].as_array().into_iter().flatten();
        let kept: Vec<String> = records
            .map(|record| format!("{}: {}", word(record, "reason"), word(record, "message")))
            .collect();
        if kept == shown { Ok(()) } else { Err(format!("{kept:?} of {shown:?}")) }
    })
}

fn full_disk(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let root = containerd.dir().join("small");
    let _disk = Mounted::tmpfs(&root, "size=4m")?;
    let mut node = quick(&containerd).root(&root).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    // Its place for being unwell is not on the disk that fills.
    let sick = containerd.dir().join("sick");
    fs::create_dir(&sick)?;
    let probe = json!({ "exec": { "command": ["/bin/sh", "-c", "test ! -e /sick/now"] }, "periodSeconds": 1,
        "timeoutSeconds": 20, "failureThreshold": 1 });
    let mut frail = shell("main", "sleep 100000");
    frail["livenessProbe"] = probe;
    frail["volumeMounts"] = json!([{ "name": "sick", "mountPath": "/sick" }]);
    let volumes = json!([{ "name": "sick", "hostPath": { "path": sick } }]);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [frail], "volumes": volumes });
    node.write_manifest("frail.yaml", &manifest("frail", spec))?;
    let frail = running(&node, "frail")?;
    persisted(&node)?;
    // A write that is under way gives room free in the end, enough for a record.
    events_persisted(&node)?;
    let filler = root.join("filler");
    fs::write(&filler, vec![0; 8 << 20]).err().context("the disk is not full")?;

    node.write_manifest("late.yaml", &server("late"))?;
    let late = wait_pod(&node, "late", "held", |pod| pod.phase() == "Pending")?;
    wait_until(PATIENCE, "an event about the disk", || {
        let events = events(&node, Some("late")).map_err(|error| format!("{error:#}"))?;
        if events.iter().any(|event| event.contains("full")) { Ok(()) } else { Err(format!("{events:?}")) }
    })?;
    ensure!(in_runtime(&containerd, Some(late.uid()))?.sandboxes.is_empty(), "started without a record");
    node.healthz()?;
    same(&web, &pod(&node, "web")?)?;
    // Who is unwell is stopped all the same.
    let first = container_pid(&containerd, &frail)?;
    fs::write(sick.join("now"), "")?;
    wait_until(PATIENCE, "the unwell container's end", || {
        let command = fs::read(format!("/proc/{first}/cmdline")).unwrap_or_default();
        if command.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&command).into_owned()) }
    })?;
    fs::remove_file(sick.join("now"))?;
    // A restart on a full disk loses nothing either.
    node.kill9();
    node.start_again()?;
    running(&node, "web")?;
    same(&web, &pod(&node, "web")?)?;

    fs::remove_file(&filler)?;
    running(&node, "late")?;
    wait_pod(&node, "frail", "well again", |pod| pod.restarts("main") >= 1 && pod.ready())?;
    same(&web, &pod(&node, "web")?)
}

#[test]
fn a_full_disk_stops_no_pod_and_new_ones_start_when_there_is_room() -> Result<()> {
    full_disk(Flavor::Debian16)
}

#[test]
fn a_full_disk_stops_no_pod_and_new_ones_start_when_there_is_room_on_containerd_2() -> Result<()> {
    full_disk(Flavor::Built24)
}

#[test]
fn a_start_on_a_read_only_root_directory_is_refused_with_a_remedy_and_pods_go_on() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let root = containerd.dir().join("disk");
    let disk = Mounted::tmpfs(&root, "size=16m")?;
    let mut node = quick(&containerd).root(&root).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    node.sigterm()?;
    disk.read_only(true)?;
    node.spawn_again()?;
    let status = node.wait_for_exit(PATIENCE)?;
    ensure!(status.code() == Some(1), "{status}");
    let log = node.log();
    let last = log.lines().last().unwrap_or_default();
    ensure!(last.contains(&root.display().to_string()), "the directory is not named: {last}");
    ensure!(last.contains("check that") && last.contains("writable"), "no remedy: {last}");
    disk.read_only(false)?;
    node.start_again()?;
    running(&node, "web")?;
    same(&web, &pod(&node, "web")?)
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// What the bytes of a file become.
type Damage = fn(&[u8]) -> Vec<u8>;

/// Not one set aside, nor one that was being written when mainstay was killed.
fn is_state_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

#[test]
fn damaged_state_files_are_set_aside_and_told_of_and_pods_go_on() -> Result<()> {
    let (containerd, mut node) = start(Flavor::Debian16)?;
    let kinds: [(&str, Damage); 3] = [
        ("garbage", |_| b"\x00\xffgarbage".to_vec()),
        ("truncated", |bytes| bytes.iter().copied().take(bytes.len() / 2).collect()),
        ("empty", |_| Vec::new()),
    ];
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    for (what, damage) in kinds {
        let state = node.root().join("mainstay");
        // Manifest, record and status of the pod, events, verdicts, the node's conditions and the boot.
        let kinds = ["manifests/", "pods/", "status/", "events", "verdicts", "node/node", "boot"];
        wait_until(PATIENCE, "every state file", || {
            let files = files_below(&state);
            let has = |kind: &str| {
                let start = state.join(kind).display().to_string();
                files.iter().any(|file| is_state_file(file) && file.display().to_string().starts_with(&start))
            };
            let missing: Vec<&str> = kinds.into_iter().filter(|kind| !has(kind)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} not in {files:?}")) }
        })?;
        node.kill9();
        let (damaged, old): (Vec<_>, Vec<_>) =
            files_below(&state).into_iter().partition(|path| is_state_file(path));
        old.iter().try_for_each(fs::remove_file)?;
        for path in &damaged {
            fs::write(path, damage(&fs::read(path)?))?;
        }
        let log_start = node.log().len();
        node.start_again()?;
        let after = running(&node, "web").with_context(|| format!("after {what} files"))?;
        ensure!(after.uid() == web.uid(), "{what}: the pod got another UID");
        ensure!(after.container("main") == web.container("main"), "{what}: {}", after.container("main"));
        let found = in_runtime(&containerd, Some(web.uid()))?;
        ensure!(found.sandboxes.len() == 1 && found.containers.len() == 1, "{what}: {found:?}");
        wait_until(PATIENCE, &format!("{damaged:?} set aside after {what}"), || {
            let files = files_below(&state);
            let aside = files.iter().filter(|path| path.to_string_lossy().contains(".bad-")).count();
            if aside == damaged.len() { Ok(()) } else { Err(format!("{files:?}")) }
        })?;
        let told = wait_until(PATIENCE, &format!("a word about each after {what}"), || {
            let told = events(&node, None).map_err(|error| format!("{error:#}"))?;
            let about = told.iter().filter(|event| event.starts_with("StateFileSetAside")).count();
            if about >= damaged.len() { Ok(told) } else { Err(format!("{told:?}")) }
        })?;
        let about: Vec<&String> =
            told.iter().filter(|event| event.starts_with("StateFileSetAside")).collect();
        for path in &damaged {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let stem = name.trim_end_matches(".json").to_owned();
            let said = about.iter().any(|event| event.contains(&stem))
                || node.log().get(log_start..).unwrap_or_default().contains(&path.display().to_string());
            ensure!(said, "{what}: nobody is told of {}: {about:?}", path.display());
        }
        // Each is told of as an event of the node, and the node itself is marked.
        ensure!(about.len() == damaged.len(), "{what}: {told:?}");
        let condition = set_aside(&node).with_context(|| what)?;
        ensure!(condition["reason"] == "StateFileSetAside", "{what}: {condition}");
    }

    // A restart is not evidence that it has been looked at; that the files are gone is.
    let before = set_aside(&node)?;
    node.sigterm()?;
    node.start_again()?;
    let after = set_aside(&node)?;
    ensure!(before == after, "{before} became {after}");
    let text = String::from_utf8(node.cli(&["node"])?.stdout)?;
    ensure!(text.contains("State Intact:") && text.contains("False since"), "{text}");
    node.sigterm()?;
    let state = files_below(&node.root().join("mainstay"));
    state.iter().filter(|path| !is_state_file(path)).try_for_each(fs::remove_file)?;
    node.start_again()?;
    state_intact(&node, "True", |_| true).map(drop)
}

/// The node's condition StateIntact, once it has that status and what it says satisfies `enough`.
fn state_intact(node: &Node, status: &str, enough: impl Fn(&str) -> bool) -> Result<Value> {
    node.wait_for(PATIENCE, "the node's condition StateIntact", |_| {
        let text = node.get("/mainstay/v1/node").map_err(|error| format!("{error:#}"))?;
        let shown: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let conditions = shown["conditions"].as_array().into_iter().flatten();
        let wanted = |it: &&Value| {
            it["type"] == "StateIntact"
                && it["status"] == status
                && it["message"].as_str().is_some_and(&enough)
        };
        conditions.into_iter().find(wanted).cloned().ok_or(text)
    })
}

/// The same once it speaks of every file that lies there set aside: they are looked at now and then, not as they come.
fn set_aside(node: &Node) -> Result<Value> {
    state_intact(node, "False", |message| {
        let files = files_below(&node.root().join("mainstay"));
        let aside = files.iter().filter(|path| path.to_string_lossy().contains(".bad-")).count();
        let unnamed = message.split_once(" more;").and_then(|(names, _)| names.rsplit_once(" and "));
        let unnamed = unnamed.and_then(|(_, count)| count.parse::<usize>().ok()).unwrap_or_default();
        aside == message.matches(".bad-").count() + unnamed
    })
}

#[test]
fn a_wrong_runtime_endpoint_is_named_with_a_remedy() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = quick(&containerd).endpoint("unix:///run/no-such-runtime.sock").start()?;
    wait_until(PATIENCE, "the socket and the remedy in the log", || {
        let log = node.log();
        let told = |line: &str| {
            line.contains("/run/no-such-runtime.sock") && line.contains("containerRuntimeEndpoint")
        };
        if log.lines().any(told) { Ok(()) } else { Err(log) }
    })?;
    node.healthz()?;
    ensure!(node.http().get("/pods")?.status == 503);
    Ok(())
}
