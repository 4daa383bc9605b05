//! mainstay ends, by SIGKILL, SIGTERM or with the whole machine, and comes again: what it left is what it finds.

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use mainstay_e2e::seen::{
    InRuntime, OBEDIENT, PATIENCE, Seen, events, gone, in_runtime, listed, manifest, parse, persisted, pod,
    pods, quick, rejected, running, same, server, shell, start, touch, verdicts, wait_pod,
};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Node, free_address, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

/// Pods in every state that lasts, and the names that `/pods` must always show together.
fn write_lasting_pods(node: &Node) -> Result<[&'static str; 6]> {
    node.write_manifest(
        "web.yaml",
        &manifest("web", json!({ "containers": [shell("a", OBEDIENT), shell("b", OBEDIENT)] })),
    )?;
    let sidecar = json!({ "name": "side", "image": BUSYBOX, "command": ["sh", "-c", OBEDIENT], "restartPolicy": "Always" });
    let spec = json!({ "initContainers": [shell("once", "exit 0"), sidecar], "containers": [shell("main", OBEDIENT)] });
    node.write_manifest("side.yaml", &manifest("side", spec))?;
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("main", "echo done; exit 0")] });
    node.write_manifest("job.yaml", &manifest("job", spec))?;
    let spec =
        json!({ "initContainers": [shell("long", OBEDIENT)], "containers": [shell("main", OBEDIENT)] });
    node.write_manifest("starting.yaml", &manifest("starting", spec))?;
    node.write_manifest(
        "crash.yaml",
        &manifest("crash", json!({ "containers": [shell("main", "exit 3")] })),
    )?;
    let absent = json!({ "name": "main", "image": "docker.io/local/absent:1", "imagePullPolicy": "Never" });
    node.write_manifest("absent.yaml", &manifest("absent", json!({ "containers": [absent] })))?;
    Ok(["absent", "crash", "job", "side", "starting", "web"])
}

/// Waits until each is where it stays; the one that crashes stays there until its back-off is over.
fn settled(node: &Node) -> Result<Vec<Seen>> {
    running(node, "web")?;
    running(node, "side")?;
    wait_pod(node, "job", "done", |pod| pod.phase() == "Succeeded")?;
    wait_pod(node, "starting", "in its init container", |pod| {
        pod.container("long")["state"]["running"].is_object()
    })?;
    let absent =
        wait_pod(node, "absent", "without its image", |pod| pod.waits("main") == "ErrImageNeverPull")?;
    recorded(node, &absent, "why it waits", |memory| memory["holds"]["main"].is_object())?;
    // A new back-off, so that most of it is left. Each is longer than the one before.
    let restarts = pod(node, "crash")?.restarts("main");
    let is_backing_off = |pod: &Seen| pod.waits("main") == "CrashLoopBackOff";
    let mut crash = wait_pod(node, "crash", "backing off anew", |pod| {
        // From the third restart on it is long enough in any case.
        is_backing_off(pod) && (pod.restarts("main") > restarts.max(0) || restarts >= 3)
    })?;
    loop {
        // Without that it would be started at once after a kill.
        let wait = back_off(&crash)? * 1000;
        recorded(node, &crash, "its back-off", |memory| {
            let mut entries = memory["crashes"].as_object().into_iter().flatten();
            entries.any(|(_, entry)| entry["wait_ms"].as_i64().is_some_and(|known| known >= wait))
        })?;
        persisted(node)?;
        let all = pods(node)?;
        let now = all.iter().find(|pod| pod.name() == "crash").context("no crash")?;
        if *now == crash {
            return Ok(all);
        }
        crash = wait_pod(node, "crash", "backing off", is_backing_off)?;
    }
}

/// Waits until a pod's record is on disk and remembers what it should.
fn recorded(node: &Node, pod: &Seen, what: &str, remembers: impl Fn(&Value) -> bool) -> Result<()> {
    let path = node.root().join(format!("mainstay/pods/{}.json", pod.uid()));
    wait_until(PATIENCE, &format!("{what} on disk"), || {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let record: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if remembers(&record["data"]["memory"]) { Ok(()) } else { Err(text) }
    })
}

/// Asks for `/pods` without a pause, from the start of the process on: 503, or everything.
fn first_complete_list(node: &mut Node, names: &[&str]) -> Result<Vec<Seen>> {
    node.spawn_again()?;
    let start = Instant::now();
    let mut refusals = 0;
    loop {
        ensure!(start.elapsed() < PATIENCE, "no list after {refusals} refusals\n{}", node.log());
        let Ok(answer) = node.http().get("/pods") else { continue };
        match answer.status {
            503 => refusals += 1,
            200 => {
                let pods = parse(&answer.text())?;
                let found: Vec<&str> = pods.iter().map(Seen::name).collect();
                ensure!(found == names, "an incomplete list: {found:?}");
                return Ok(pods);
            }
            other => anyhow::bail!("/pods: {other} {}", answer.text()),
        }
    }
}

/// A whole comparison; the message of a crash loop counts down nowhere, so it must be equal too, until its time has come.
fn all_same(before: &[Seen], after: &[Seen], back_off_left: bool) -> Result<()> {
    ensure!(before.len() == after.len());
    let pairs = before.iter().zip(after).filter(|(before, _)| back_off_left || before.name() != "crash");
    pairs.into_iter().try_for_each(|(before, after)| same(before, after))
}

/// What the runtime has of each pod: of each container the newest instance, because the dead ones before it are collected whenever
/// their time comes.
fn all_in_runtime(containerd: &Containerd, pods: &[Seen]) -> Result<Vec<InRuntime>> {
    let newest = |pod: &Seen| {
        let mut found = in_runtime(containerd, Some(pod.uid()))?;
        // Sorted by name and attempt: what stays of each name is the last.
        found.containers.reverse();
        found.containers.dedup_by(|(name, ..), (kept, ..)| name == kept);
        Ok(found)
    };
    pods.iter().map(newest).collect()
}

/// The back-off in seconds that the status of the container that crashes names.
fn back_off(crash: &Seen) -> Result<i64> {
    let message = crash.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    let wait = message.strip_prefix("back-off ").and_then(|rest| rest.split(' ').next());
    Ok(match wait {
        Some("10s") => 10,
        Some("20s") => 20,
        Some("40s") => 40,
        Some("1m20s") => 80,
        Some("2m40s") => 160,
        Some("5m0s") => 300,
        other => anyhow::bail!("an unexpected back-off: {other:?} in {message:?}"),
    })
}

/// Whether the container that crashes was not to be started again yet at this moment, by the time of its end and the back-off
/// that its status names.
fn back_off_left(crash: &Seen) -> Result<bool> {
    let container = crash.container("main");
    let wait = back_off(crash)?;
    let ended = container["lastState"]["terminated"]["finishedAt"].as_str().context("no end")?;
    let ended: Timestamp = ended.parse().context("not a time")?;
    Ok(Timestamp::now().duration_since(ended).as_secs() < wait)
}

fn untouched_by_the_end_of_mainstay(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    // The usual back-off: ten seconds after the first restart, then twenty, so that it outlives two restarts of mainstay.
    let mut node = Node::builder().containerd(&containerd).start()?;
    let names = write_lasting_pods(&node)?;
    let before = settled(&node)?;
    let runtime_before = all_in_runtime(&containerd, &before)?;
    let sandboxes = in_runtime(&containerd, None)?.sandboxes.len();
    let crash = before.iter().find(|pod| pod.name() == "crash").context("no crash")?.clone();

    node.kill9();
    let after = first_complete_list(&mut node, &names)?;
    all_same(&before, &after, back_off_left(&crash)?).context("after SIGKILL, in the first list")?;

    let status = node.sigterm()?;
    ensure!(status.code() == Some(0), "SIGTERM: {status}");
    let after = first_complete_list(&mut node, &names)?;
    all_same(&before, &after, back_off_left(&crash)?).context("after SIGTERM, in the first list")?;
    let runtime_after = all_in_runtime(&containerd, &before)?;
    let others = |all: &[InRuntime]| -> Vec<InRuntime> {
        let pairs = before.iter().zip(all).filter(|(pod, _)| pod.name() != "crash");
        pairs.map(|(_, found)| found.clone()).collect()
    };
    ensure!(
        others(&runtime_after) == others(&runtime_before),
        "{runtime_before:?} became {runtime_after:?} in the runtime"
    );
    ensure!(
        !back_off_left(&crash)? || runtime_after == runtime_before,
        "{runtime_before:?} became {runtime_after:?} in the runtime"
    );
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == sandboxes, "a sandbox was made or removed");

    // The crash loop goes on where it was: one restart, counted once.
    let count = crash.restarts("main");
    let again = node.wait_for(PATIENCE * 4, "another restart", |_| {
        let pod = pod(&node, "crash").map_err(|error| format!("{error:#}"))?;
        if pod.restarts("main") > count { Ok(pod) } else { Err(pod.0["status"].to_string()) }
    })?;
    ensure!(!back_off_left(&crash)?, "it was restarted too early: {crash:?}");
    ensure!(again.restarts("main") == count + 1, "{} restarts", again.restarts("main"));
    let after = pods(&node)?;
    for (before, after) in before.iter().zip(&after).filter(|(before, _)| before.name() != "crash") {
        same(before, after).context("a while later")?;
    }
    let log = node.log();
    ensure!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    Ok(())
}

#[test]
fn pods_of_every_kind_are_untouched_by_sigkill_and_sigterm_on_debians_containerd() -> Result<()> {
    untouched_by_the_end_of_mainstay(Flavor::Debian16)
}

#[test]
fn pods_of_every_kind_are_untouched_by_sigkill_and_sigterm_on_containerd_2() -> Result<()> {
    untouched_by_the_end_of_mainstay(Flavor::Built24)
}

/// A pod that goes through init, a hook and a start, killed after each of many delays.
fn killed_while_starting_and_stopping(flavor: Flavor, rounds: u32, step: Duration) -> Result<()> {
    let (containerd, mut node) = start(flavor)?;
    for round in 0..rounds {
        let delay = step * round;
        let name = format!("pod-{round}");
        let file = format!("{name}.yaml");
        let mut main = shell("main", OBEDIENT);
        main["lifecycle"] = json!({ "postStart": { "exec": { "command": ["sleep", "0.2"] } } });
        let spec = json!({ "initContainers": [shell("init", "sleep 0.1")], "containers": [main] });
        node.write_manifest(&file, &manifest(&name, spec))?;
        std::thread::sleep(delay);
        node.kill9();
        node.start_again()?;
        let before =
            running(&node, &name).with_context(|| format!("killed {delay:?} after the file came"))?;
        // A sandbox whose making was cut off by the kill lies dead in the runtime until it is collected, seconds later.
        let found = wait_until(PATIENCE, "one sandbox", || {
            let found = in_runtime(&containerd, Some(before.uid())).map_err(|error| format!("{error:#}"))?;
            if found.sandboxes.len() == 1 { Ok(found) } else { Err(format!("{:?}", found.sandboxes)) }
        })
        .with_context(|| format!("killed after {delay:?}"))?;
        for container in ["init", "main"] {
            let attempts: Vec<u64> = found
                .containers
                .iter()
                .filter(|(name, ..)| name == container)
                .map(|(_, attempt, _)| *attempt)
                .collect();
            let newest = attempts.last().copied().unwrap_or_default();
            let expected: Vec<u64> = (newest.saturating_sub(attempts.len() as u64 - 1)..=newest).collect();
            ensure!(attempts == expected, "killed after {delay:?}: {container} has attempts {attempts:?}");
            let restarts = u64::try_from(before.restarts(container)).context("no restart count")?;
            ensure!(
                restarts == newest,
                "killed after {delay:?}: {container} counts {restarts}, is attempt {newest}"
            );
            // At most the one instance that was under way is lost.
            ensure!(newest <= 1, "killed after {delay:?}: {container} was started {} times", newest + 1);
        }
        let alive = found.containers.iter().filter(|(_, _, state)| state == "CONTAINER_RUNNING").count();
        ensure!(alive == 1, "killed after {delay:?}: {:?}", found.containers);

        node.remove_manifest(&file)?;
        std::thread::sleep(delay);
        node.kill9();
        node.start_again()?;
        gone(&containerd, &node, before.uid())
            .with_context(|| format!("killed {delay:?} after the file went"))?;
        listed(&node, &[])?;
    }
    ensure!(in_runtime(&containerd, None)? == Default::default());
    let log = node.log();
    ensure!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    Ok(())
}

#[test]
fn a_kill_at_any_moment_of_start_and_end_leaves_one_sandbox_and_then_nothing() -> Result<()> {
    killed_while_starting_and_stopping(Flavor::Debian16, 10, Duration::from_millis(60))
}

#[test]
fn a_kill_at_any_moment_of_start_and_end_leaves_one_sandbox_and_then_nothing_on_containerd_2() -> Result<()> {
    killed_while_starting_and_stopping(Flavor::Built24, 7, Duration::from_millis(80))
}

#[test]
fn a_kill_while_a_pod_crash_loops_neither_repeats_nor_skips_a_restart() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let config = "crashLoopBackOff: {maxContainerRestartPeriod: 2s}";
    // Every attempt stays in the runtime, so none that came and went can be missed.
    let keep_all = ["--maximum-dead-containers-per-container=-1"];
    let mut node = Node::builder().containerd(&containerd).config(config).args(keep_all).start()?;
    node.write_manifest(
        "crash.yaml",
        &manifest("crash", json!({ "containers": [shell("main", "exit 3")] })),
    )?;
    let first = wait_pod(&node, "crash", "crashing", |pod| pod.restarts("main") >= 1)?;
    let mut last = first.restarts("main");
    for round in 0..8_u64 {
        std::thread::sleep(Duration::from_millis(round * 37));
        node.kill9();
        node.start_again()?;
        let seen = wait_pod(&node, "crash", "listed", |_| true)?;
        let restarts = seen.restarts("main");
        ensure!(restarts >= last, "{last} restarts before the kill, {restarts} after");
        ensure!(seen.0["status"]["startTime"] == first.0["status"]["startTime"], "another start time");
        last = restarts;
    }
    node.kill9();
    let found = in_runtime(&containerd, Some(first.uid()))?;
    ensure!(found.sandboxes.len() == 1, "{found:?}");
    let attempts: Vec<u64> = found.containers.iter().map(|(_, attempt, _)| *attempt).collect();
    let expected: Vec<u64> = (0..attempts.len() as u64).collect();
    ensure!(attempts == expected, "attempts in the runtime: {attempts:?}");
    ensure!(attempts.len() as i64 > last, "{last} restarts counted, {attempts:?} in the runtime");
    Ok(())
}

#[test]
fn files_removed_edited_or_broken_while_mainstay_is_down_are_acted_upon_at_its_start() -> Result<()> {
    let (containerd, mut node) = start(Flavor::Debian16)?;
    for name in ["removed", "edited", "broken", "kept"] {
        node.write_manifest(&format!("{name}.yaml"), &server(name))?;
    }
    // Needs its whole grace, so that it can be seen to get it; long enough to be seen on a slow machine.
    let slow = json!({ "terminationGracePeriodSeconds": 25, "containers": [shell("main", "trap '' TERM; while :; do sleep 1; done")] });
    node.write_manifest("slow.yaml", &manifest("slow", slow))?;
    let before: Vec<Seen> = ["removed", "edited", "broken", "kept", "slow"]
        .iter()
        .map(|name| running(&node, name))
        .collect::<Result<_>>()?;
    let [removed, edited, broken, kept, slow] = &before[..] else { anyhow::bail!("five pods") };
    persisted(&node)?;
    node.kill9();

    node.remove_manifest("removed.yaml")?;
    node.remove_manifest("slow.yaml")?;
    let mut changed = shell("main", OBEDIENT);
    changed["env"] = json!([{ "name": "NEW", "value": "1" }]);
    node.write_manifest("edited.yaml", &manifest("edited", json!({ "containers": [changed] })))?;
    node.write_manifest("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken")?;
    let begun = Instant::now();
    node.start_again()?;

    let going = wait_pod(&node, "slow", "going", |pod| pod.0["metadata"]["deletionTimestamp"].is_string())?;
    ensure!(going.0["metadata"]["deletionGracePeriodSeconds"] == 25, "{}", going.0["metadata"]);
    gone(&containerd, &node, removed.uid())?;
    gone(&containerd, &node, slow.uid())?;
    ensure!(
        begun.elapsed() >= Duration::from_millis(24_800),
        "it did not get its grace: {:?}",
        begun.elapsed()
    );
    let replaced = wait_pod(&node, "edited", "replaced", |pod| pod.uid() != edited.uid() && pod.ready())?;
    ensure!(replaced.restarts("main") == 0);
    gone(&containerd, &node, edited.uid())?;
    let problem = rejected(&node, "broken.yaml")?;
    ensure!(!problem.is_empty());
    ensure!(verdicts(&node, "broken.yaml")?.iter().all(|verdict| verdict["previousKept"] == true));
    same(broken, &pod(&node, "broken")?)?;
    same(kept, &pod(&node, "kept")?)?;
    listed(&node, &["broken", "edited", "kept"])?;

    // And once more: the last good manifest is on disk, not in memory.
    persisted(&node)?;
    node.kill9();
    node.start_again()?;
    running(&node, "broken")?;
    same(broken, &pod(&node, "broken")?)?;
    same(kept, &pod(&node, "kept")?)?;
    same(&replaced, &pod(&node, "edited")?)
}

#[test]
fn a_second_mainstay_on_the_same_root_ends_and_names_the_first() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let before = running(&node, "web")?;
    let pid = node.pid().context("no pid")?;
    let mut second = quick(&containerd).root(node.root()).manifests(node.manifests()).spawn()?;
    let status = second.wait_for_exit(PATIENCE)?;
    ensure!(status.code().is_some_and(|code| code != 0), "the second one: {status}");
    let log = second.log();
    ensure!(
        log.contains(&pid.to_string()) && log.contains("mainstay.lock"),
        "it does not name the holder: {log}"
    );
    drop(second);
    same(&before, &pod(&node, "web")?)?;
    node.healthz().map(drop)
}

/// The boot ID that the node shows, and the reboots that it has told of.
fn boots(node: &Node) -> Result<(String, Vec<String>)> {
    let object: Value = serde_json::from_str(&node.get("/node")?)?;
    let id = object["status"]["nodeInfo"]["bootID"].as_str().context("no boot ID")?.to_owned();
    let told = events(node, None)?.into_iter().filter(|event| event.starts_with("Rebooted:")).collect();
    Ok((id, told))
}

/// Waits until the node shows this boot ID and has told of just these reboots.
fn booted(node: &Node, id: &str, told: &[String]) -> Result<()> {
    wait_until(PATIENCE, "the boot ID and the reboots", || {
        let (shown, said) = boots(node).map_err(|error| format!("{error:#}"))?;
        if shown == id && said == told { Ok(()) } else { Err(format!("{shown}, {said:?}")) }
    })
}

fn reboot(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let boot_id = containerd.dir().join("boot-id");
    fs::write(&boot_id, "first-boot\n")?;
    let file = boot_id.to_str().context("not UTF-8")?;
    let mut node = quick(&containerd).env("MAINSTAY_TEST_BOOT_ID_FILE", file).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 0")] });
    node.write_manifest("job.yaml", &manifest("job", spec))?;
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 7")] });
    node.write_manifest("failed.yaml", &manifest("failed", spec))?;
    let spec = json!({
        "initContainers": [shell("once", "exit 0")],
        "containers": [shell("main", "if [ -e /dev/termination-log ]; then sleep 0.3; fi; exit 1")],
    });
    node.write_manifest("crash.yaml", &manifest("crash", spec))?;
    let web = running(&node, "web")?;
    let job = wait_pod(&node, "job", "done", |pod| pod.phase() == "Succeeded")?;
    let failed = wait_pod(&node, "failed", "failed", |pod| pod.phase() == "Failed")?;
    let crash = wait_pod(&node, "crash", "restarted twice", |pod| pod.restarts("main") >= 2)?;
    booted(&node, "first-boot", &[])?;
    // What the others ended with is known for a while; nobody waits here for the one that goes on.
    wait_until(PATIENCE, "the ends on disk", || {
        [&job, &failed].iter().try_for_each(|pod| {
            let text = fs::read_to_string(node.root().join(format!("mainstay/status/{}.json", pod.uid())));
            match text {
                Ok(text) if text.contains(&format!("\"phase\":\"{}\"", pod.phase())) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    })?;

    node.kill9();
    containerd.reboot()?;
    fs::write(&boot_id, "second-boot\n")?;
    node.start_again()?;

    let again = wait_pod(&node, "web", "running anew", |pod| {
        pod.phase() == "Running" && pod.ready() && pod.container_id("main") != web.container_id("main")
    })?;
    ensure!(again.uid() == web.uid(), "another UID");
    ensure!(
        again.restarts("main") == 1,
        "{} restarts of a container that was started twice",
        again.restarts("main")
    );
    let more = wait_pod(&node, "crash", "crashing on", |pod| pod.restarts("main") > crash.restarts("main"))?;
    ensure!(more.uid() == crash.uid());
    // Finished is finished: nothing is run a second time.
    for before in [&job, &failed] {
        let after = pod(&node, before.name())?;
        ensure!(after.phase() == before.phase(), "{} is {} now", before.name(), after.phase());
        let found = in_runtime(&containerd, Some(before.uid()))?;
        ensure!(found.containers.iter().all(|(_, _, state)| state != "CONTAINER_RUNNING"), "{found:?}");
        ensure!(found.containers.len() <= 1, "{} was run again: {found:?}", before.name());
    }
    let told = vec!["Rebooted: Node node has been rebooted, boot id: second-boot".to_owned()];
    booted(&node, "second-boot", &told)?;

    // A restart of mainstay is no reboot: it is not told of again.
    node.sigterm()?;
    node.start_again()?;
    running(&node, "web")?;
    booted(&node, "second-boot", &told)
}

#[test]
fn after_a_reboot_servers_start_again_and_finished_jobs_stay_finished() -> Result<()> {
    reboot(Flavor::Debian16)
}

#[test]
fn after_a_reboot_servers_start_again_and_finished_jobs_stay_finished_on_containerd_2() -> Result<()> {
    reboot(Flavor::Built24)
}

fn takeover_and_back(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let shared = containerd.dir().join("shared");
    let (root, manifests) = (shared.join("root"), shared.join("manifests"));
    let both = || quick(&containerd).root(&root).manifests(&manifests);
    let mut explicit: serde_json::Value = serde_json::from_str(&server("explicit"))?;
    explicit["metadata"]["uid"] = json!("3f1c2a5e-0000-4000-8000-000000000001");

    let mut upstream = both().upstream().start()?;
    // One node: the same cgroups and logs, too.
    let same_node =
        format!("cgroupRoot: {}\npodLogsDir: {}", upstream.cgroup_root(), upstream.pod_logs().display());
    upstream.write_manifest("explicit.yaml", &explicit.to_string())?;
    upstream.write_manifest("web.yaml", &server("web"))?;
    let theirs = [running(&upstream, "explicit")?, running(&upstream, "web")?];
    upstream.sigterm()?;

    let mut mainstay = both().config(&same_node).start()?;
    for before in &theirs {
        let after = running(&mainstay, before.name())?;
        ensure!(
            after.uid() == before.uid(),
            "{}: UID {} became {}",
            before.name(),
            before.uid(),
            after.uid()
        );
        same_containers(before, &after)?;
    }
    let runtime = in_runtime(&containerd, None)?;
    ensure!(runtime.sandboxes.len() == 2, "{runtime:?}");
    mainstay.kill9();
    mainstay.start_again()?;
    for before in &theirs {
        same_containers(before, &running(&mainstay, before.name())?)?;
    }
    // Upstream computes another UID for a file without one, but this one it must know again.
    mainstay.remove_manifest("web.yaml")?;
    // And one that mainstay starts itself, with what upstream's hash of a container covers.
    let mut ours: serde_json::Value = serde_json::from_str(&server("ours"))?;
    ours["metadata"]["uid"] = json!("3f1c2a5e-0000-4000-8000-000000000002");
    ours["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "memory": "64Mi" }, "requests": { "cpu": "10m" } });
    ours["spec"]["containers"][0]["env"] = json!([{ "name": "A", "value": "1" }]);
    mainstay.write_manifest("ours.yaml", &ours.to_string())?;
    let ours = running(&mainstay, "ours")?;
    listed(&mainstay, &["explicit", "ours"])?;
    mainstay.sigterm()?;

    let upstream = both().config(&same_node).upstream().start()?;
    let after = running(&upstream, "explicit")?;
    same_containers(&theirs[0], &after).with_context(|| upstream.log())?;
    running(&upstream, "ours")?;
    // Only a restart would change this, so give it the time of two of its relists.
    std::thread::sleep(Duration::from_secs(2));
    same_containers(&theirs[0], &pod(&upstream, "explicit")?).with_context(|| upstream.log())?;
    same_containers(&ours, &pod(&upstream, "ours")?).with_context(|| upstream.log())?;
    ensure!(in_runtime(&containerd, None)?.containers.len() == 2, "something was started again");
    Ok(())
}

#[test]
fn a_pod_moves_from_upstreams_kubelet_to_mainstay_and_back_without_a_restart() -> Result<()> {
    takeover_and_back(Flavor::Debian16)
}

#[test]
fn a_pod_moves_from_upstreams_kubelet_to_mainstay_and_back_without_a_restart_on_containerd_2() -> Result<()> {
    takeover_and_back(Flavor::Built24)
}

fn same_containers(before: &Seen, after: &Seen) -> Result<()> {
    let (a, b) = (before.container("main"), after.container("main"));
    for field in ["containerID", "restartCount", "state"] {
        ensure!(a[field] == b[field], "{}: {field} was {}, is {}", before.name(), a[field], b[field]);
    }
    Ok(())
}

#[test]
fn a_job_that_ends_while_mainstay_is_down_is_seen_to_have_ended() -> Result<()> {
    let (containerd, mut node) = start(Flavor::Debian16)?;
    let spec = json!({ "restartPolicy": "OnFailure", "containers": [shell("main", "while [ ! -e /tmp/end ]; do sleep 0.1; done; echo over > /dev/termination-log; exit 0")] });
    node.write_manifest("job.yaml", &manifest("job", spec))?;
    let before = running(&node, "job")?;
    persisted(&node)?;
    node.kill9();
    touch(&containerd, &before, "main", "/tmp/end")?;
    wait_until(PATIENCE, "the job's end", || {
        let found = in_runtime(&containerd, Some(before.uid())).map_err(|error| format!("{error:#}"))?;
        if found.containers.iter().all(|(_, _, state)| state == "CONTAINER_EXITED") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })?;
    node.start_again()?;
    let after = wait_pod(&node, "job", "done", |pod| pod.phase() == "Succeeded")?;
    let ended = &after.container("main")["state"]["terminated"];
    ensure!(
        ended["exitCode"] == 0 && ended["reason"] == "Completed" && ended["message"] == "over\n",
        "{ended}"
    );
    ensure!(after.container_id("main") == before.container_id("main") && after.restarts("main") == 0);
    ensure!(after.0["status"]["startTime"] == before.0["status"]["startTime"]);
    ensure!(after.condition("PodScheduled") == before.condition("PodScheduled"), "a condition flipped");
    let found = in_runtime(&containerd, Some(before.uid()))?;
    ensure!(found.containers.len() == 1, "it was started again: {found:?}");
    Ok(())
}

#[test]
fn a_pod_that_is_being_stopped_when_mainstay_is_killed_is_stopped_all_the_same() -> Result<()> {
    let (containerd, mut node) = start(Flavor::Debian16)?;
    // It goes when the test lets it, however long mainstay takes to come back.
    let stubborn = shell("main", "trap '' TERM; until [ -e /tmp/go ]; do sleep 0.1; done");
    let spec = json!({ "terminationGracePeriodSeconds": 3600, "containers": [stubborn] });
    node.write_manifest("slow.yaml", &manifest("slow", spec))?;
    let before = running(&node, "slow")?;
    node.remove_manifest("slow.yaml")?;
    let is_going = |pod: &Seen| pod.0["metadata"]["deletionTimestamp"].is_string();
    let going = wait_pod(&node, "slow", "going", is_going)?;
    // Past the moment at which what is known of it is on disk, and well within its grace.
    recorded(&node, &going, "its deletion", |memory| memory["deletion"].is_object())?;
    persisted(&node)?;
    node.kill9();
    node.start_again()?;
    let after = wait_pod(&node, "slow", "still going", is_going)?;
    ensure!(
        after.0["metadata"] == going.0["metadata"],
        "{} became {}",
        going.0["metadata"],
        after.0["metadata"]
    );
    ensure!(after.container_id("main") == before.container_id("main") && after.restarts("main") == 0);
    touch(&containerd, &before, "main", "/tmp/go")?;
    gone(&containerd, &node, before.uid())?;
    listed(&node, &[])
}

#[test]
fn a_kill_during_a_pull_or_its_back_off_forgets_neither() -> Result<()> {
    let containerd = Containerd::start(Flavor::Built24)?;
    // A registry that takes calls and never answers.
    // On a port that nobody else is given once it has hung up.
    let silent = std::net::TcpListener::bind(free_address()?)?;
    containerd.redirect_registry("silent.example", &format!("http://{}", silent.local_addr()?))?;
    let mut node = Node::builder().containerd(&containerd).start()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    // Only now: containerd itself gives up after thirty seconds without an answer, however slow the machine is.
    let absent = json!({ "name": "main", "image": "silent.example/app:1" });
    node.write_manifest("app.yaml", &manifest("app", json!({ "containers": [absent] })))?;
    let (mut call, _) = silent.accept()?;
    let pulling = wait_pod(&node, "app", "pulling", |pod| pod.waits("main") == "ContainerCreating")?;
    persisted(&node)?;
    node.kill9();
    node.start_again()?;
    wait_pod(&node, "app", "pulling again", |pod| pod.waits("main") == "ContainerCreating")?;
    // Now it hangs up on everybody.
    std::io::Write::write_all(&mut call, b"").ok();
    drop((call, silent));
    // The error itself is shown for ten seconds only.
    let is_refused = |pod: &Seen| ["ErrImagePull", "ImagePullBackOff"].contains(&pod.waits("main"));
    let refused = wait_pod(&node, "app", "refused", is_refused)?;
    same(&web, &pod(&node, "web")?)?;
    ensure!(refused.0["status"]["startTime"] == pulling.0["status"]["startTime"]);
    let message = refused.container("main")["state"]["waiting"]["message"].clone();
    ensure!(message.as_str().is_some_and(|text| text.contains("silent.example/app:1")), "{message}");
    // What happened in the last tenth of a second may be forgotten, and then is found out again.
    let record = node.root().join(format!("mainstay/pods/{}.json", refused.uid()));
    wait_until(PATIENCE, "the failure on disk", || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        if text.contains("ErrImagePull") { Ok(()) } else { Err(text) }
    })?;
    node.kill9();
    node.start_again()?;
    let after = wait_pod(&node, "app", "listed", |_| true)?;
    ensure!(is_refused(&after), "it waits for {:?}", after.waits("main"));
    ensure!(in_runtime(&containerd, Some(after.uid()))?.sandboxes.len() == 1, "another sandbox");
    same(&web, &pod(&node, "web")?)
}

/// Sequence, reason and count of each event of a pod.
fn told(node: &Node, pod: &str) -> Result<Vec<(u64, String, u64)>> {
    let list: Value = serde_json::from_str(&node.get("/mainstay/v1/events")?)?;
    let name = format!("{pod}-node");
    let items = list["items"].as_array().into_iter().flatten().filter(|item| item["name"] == name.as_str());
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let reason = |item: &Value| item["reason"].as_str().unwrap_or_default().to_owned();
    Ok(items.map(|item| (number(&item["sequence"]), reason(item), number(&item["count"]))).collect())
}

#[test]
fn events_and_the_times_of_rulings_outlive_mainstay() -> Result<()> {
    let (_containerd, mut node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    node.write_manifest("broken.yaml", "{{{")?;
    running(&node, "web")?;
    rejected(&node, "broken.yaml")?;
    let before = node.wait_for(PATIENCE, "the start to be told of", |_| {
        let told = told(&node, "web").map_err(|error| format!("{error:#}"))?;
        if told.iter().any(|(_, reason, _)| reason == "Started") {
            Ok(told)
        } else {
            Err(format!("{told:?}"))
        }
    })?;
    let rulings = (verdicts(&node, "web.yaml")?, verdicts(&node, "broken.yaml")?);

    // At the end, at the latest, all is written.
    node.sigterm()?;
    node.start_again()?;
    running(&node, "web")?;
    ensure!(told(&node, "web")? == before, "{before:?} became {:?}", told(&node, "web")?);
    ensure!((verdicts(&node, "web.yaml")?, verdicts(&node, "broken.yaml")?) == rulings, "{rulings:?}");

    // Killed, it has lost at most what was not written yet, and gives no number twice.
    let file = node.root().join("mainstay/events.json");
    let written = |node: &Node| {
        wait_until(PATIENCE, "all events on disk", || {
            let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            let kept: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let list = node.get("/mainstay/v1/events").map_err(|error| format!("{error:#}"))?;
            let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
            let newest = list["newest"].as_u64().unwrap_or(0);
            if kept["data"]["newest"].as_u64() == Some(newest) { Ok(newest) } else { Err(list.to_string()) }
        })
    };
    let edited = json!({ "terminationGracePeriodSeconds": 3, "containers": [shell("main", OBEDIENT)] });
    node.write_manifest("web.yaml", &manifest("web", edited))?;
    node.wait_for(PATIENCE, "a new event", |_| {
        let after = told(&node, "web").map_err(|error| format!("{error:#}"))?;
        if after.len() > before.len() { Ok(()) } else { Err(format!("{after:?}")) }
    })?;
    let newest = written(&node)?;
    node.kill9();
    node.start_again()?;
    let after = node.wait_for(PATIENCE, "events after the kill", |_| {
        let after = told(&node, "web").map_err(|error| format!("{error:#}"))?;
        if after.is_empty() { Err("none".to_owned()) } else { Ok(after) }
    })?;
    ensure!(before.iter().all(|event| after.contains(event)), "{before:?} is not in {after:?}");
    // Only a pod that runs has an end to tell of.
    wait_pod(&node, "web", "running as edited", |pod| {
        pod.0["spec"]["terminationGracePeriodSeconds"] == 3 && pod.phase() == "Running" && pod.ready()
    })?;
    node.remove_manifest("web.yaml")?;
    listed(&node, &[])?;
    let last = node.wait_for(PATIENCE, "a word about its end", |_| {
        let last = told(&node, "web").map_err(|error| format!("{error:#}"))?;
        if last.iter().all(|event| after.contains(event)) { Err(format!("{last:?}")) } else { Ok(last) }
    })?;
    let new: Vec<_> = last.iter().filter(|event| !after.contains(event)).collect();
    ensure!(!new.is_empty() && new.iter().all(|(sequence, ..)| *sequence > newest), "{newest}: {new:?}");
    Ok(())
}

/// How long a pod takes to end is the next life's business, and known to it.
#[test]
fn sigterm_waits_for_no_grace_period() -> Result<()> {
    let (_containerd, mut node) = start(Flavor::Debian16)?;
    let container = shell("main", "trap '' TERM; while true; do sleep 1; done");
    let spec = json!({ "terminationGracePeriodSeconds": 300, "containers": [container] });
    node.write_manifest("slow.yaml", &manifest("slow", spec))?;
    let slow = running(&node, "slow")?;
    node.remove_manifest("slow.yaml")?;
    let ending = |pod: &Seen| !pod.0["metadata"]["deletionTimestamp"].is_null();
    wait_pod(&node, "slow", "being ended", ending)?;
    wait_until(PATIENCE, "the container being stopped", || {
        let told = events(&node, Some("slow")).map_err(|error| format!("{error:#}"))?;
        if told.iter().any(|event| event.starts_with("Killing")) { Ok(()) } else { Err(format!("{told:?}")) }
    })?;
    let status = node.sigterm()?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(!node.log().contains("did not end in time"), "{}", node.log());
    node.start_again()?;
    let after = wait_pod(&node, "slow", "being ended still", ending)?;
    ensure!(after.uid() == slow.uid() && after.phase() == "Running", "{after:?}");
    Ok(())
}
