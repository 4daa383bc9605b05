//! Peers, disks and strangers misbehave: pods go on, and mainstay says what is wrong.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{
    OBEDIENT, Seen, events, gone, in_runtime, listed, manifest, persisted, pod, pods, quick, running, same,
    server, shell, start, wait_pod,
};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Http, Node, mainstay_binary, wait_until};
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
    wait_until(Duration::from_secs(15), &format!("{text:?} in the log"), || {
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
    wait_until(Duration::from_secs(5), "the container's end", || {
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
    let node = quick(&containerd).config("runtimeRequestTimeout: 2s").start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let frozen = Frozen::new(containerd.pid().context("no pid")?)?;
    let since = Instant::now();
    // Long enough for several calls to time out.
    while since.elapsed() < Duration::from_secs(6) {
        let asked = Instant::now();
        same(&web, &pod(&node, "web")?)?;
        ensure!(asked.elapsed() < Duration::from_secs(1), "an answer took {:?}", asked.elapsed());
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
            "log_directory": containerd.dir().join("stranger-logs"),
            "linux": { "cgroup_parent": format!("/{}/pod-{name}", containerd.instance().cgroup_name()) },
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
    fs::write(&script, text)?;
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    quick(containerd).manifests(manifests).program(script).start()
}

#[test]
fn mainstay_run_leaves_every_stranger_in_the_runtime_alone() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let (_, plain) = stranger(&containerd, "plain", &json!({}))?;
    let (_, labelled) = stranger(&containerd, "labelled", &kubernetes_labels("labelled"))?;
    let manifests = containerd.dir().join("run-manifests");
    let mut node = run_mode(&containerd, &manifests)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    listed(&node, &["web"])?;
    node.kill9();
    node.start_again()?;
    running(&node, "web")?;
    node.remove_manifest("web.yaml")?;
    gone(&containerd, &node, web.uid())?;
    ensure!(
        is_running(&containerd, &plain)? && is_running(&containerd, &labelled)?,
        "a stranger was touched"
    );
    ensure!(pods(&node)?.is_empty(), "a stranger is listed");
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == 2);
    Ok(())
}

#[test]
fn mainstay_kubelet_removes_unknown_kubernetes_pods_and_leaves_other_sandboxes_alone() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let (_, plain) = stranger(&containerd, "plain", &json!({}))?;
    let (sandbox, labelled) = stranger(&containerd, "labelled", &kubernetes_labels("labelled"))?;
    let mut node = quick(&containerd).prepare()?;
    node.write_manifest("web.yaml", &server("web"))?;
    node.start_again()?;
    running(&node, "web")?;
    wait_until(Duration::from_secs(15), "the end of the unknown pod", || {
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

#[test]
fn a_full_disk_stops_no_pod_and_new_ones_start_when_there_is_room() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let root = containerd.dir().join("small");
    let _disk = Mounted::tmpfs(&root, "size=4m")?;
    let mut node = quick(&containerd).root(&root).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    persisted(&node)?;
    let filler = root.join("filler");
    fs::write(&filler, vec![0; 8 << 20]).err().context("the disk is not full")?;

    node.write_manifest("late.yaml", &server("late"))?;
    let late = wait_pod(&node, "late", "held", |pod| pod.phase() == "Pending")?;
    wait_until(Duration::from_secs(10), "an event about the disk", || {
        let events = events(&node, Some("late")).map_err(|error| format!("{error:#}"))?;
        if events.iter().any(|event| event.contains("full")) { Ok(()) } else { Err(format!("{events:?}")) }
    })?;
    ensure!(in_runtime(&containerd, Some(late.uid()))?.sandboxes.is_empty(), "started without a record");
    node.healthz()?;
    same(&web, &pod(&node, "web")?)?;
    // A restart on a full disk loses nothing either.
    node.kill9();
    node.start_again()?;
    running(&node, "web")?;
    same(&web, &pod(&node, "web")?)?;

    fs::remove_file(&filler)?;
    running(&node, "late")?;
    same(&web, &pod(&node, "web")?)
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
    let status = node.wait_for_exit(Duration::from_secs(5))?;
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
        wait_until(Duration::from_secs(10), "three state files", || {
            let good = files_below(&state).into_iter().filter(|path| is_state_file(path)).count();
            if good == 3 { Ok(()) } else { Err(format!("{:?}", files_below(&state))) }
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
        let aside =
            files_below(&state).into_iter().filter(|path| path.to_string_lossy().contains(".bad-")).count();
        ensure!(
            aside == damaged.len(),
            "{what}: {aside} of {damaged:?} are set aside: {:?}",
            files_below(&state)
        );
        let told = events(&node, None)?;
        let about: Vec<&String> =
            told.iter().filter(|event| event.starts_with("StateFileSetAside")).collect();
        for path in &damaged {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let stem = name.trim_end_matches(".json").to_owned();
            let said = about.iter().any(|event| event.contains(&stem))
                || node.log().get(log_start..).unwrap_or_default().contains(&path.display().to_string());
            ensure!(said, "{what}: nobody is told of {}: {about:?}", path.display());
        }
        // Records and statuses are told of as events of the node, kept manifests in the log.
        ensure!(about.len() >= 2, "{what}: {told:?}");
    }
    Ok(())
}

#[test]
fn a_wrong_runtime_endpoint_is_named_with_a_remedy() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = quick(&containerd).endpoint("unix:///run/no-such-runtime.sock").start()?;
    let log = wait_log(&node, "/run/no-such-runtime.sock")?;
    ensure!(log.contains("containerRuntimeEndpoint"), "no remedy: {log}");
    node.healthz()?;
    ensure!(node.http().get("/pods")?.status == 503);
    Ok(())
}
