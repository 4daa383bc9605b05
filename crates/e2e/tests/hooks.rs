//! The ends of containers: hooks, grace periods, deadlines and termination messages.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::Read;
use std::time::{Duration, Instant};

use mainstay_e2e::{World, idle, sh, with};
use mainstay_testkit::{Flavor, wait_until};
use serde_json::json;

const QUICK: &str = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}";

/// Says more than a container may.
const LONG: &str = "head -c 10000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 1";

/// The log of a container whose pod is being removed, to its end.
fn last_words(world: &World, name: &str, container: &str) -> impl FnOnce() -> String {
    let pod = world.full_name(name);
    let mut body = world.node.follow_logs("default", &pod, container, "", Duration::from_secs(25)).unwrap();
    move || {
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn a_post_start_hook_holds_up_what_comes_after_it() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        // The hook waits for a file, so that the test decides when it ends.
        let hook = json!({ "postStart": { "exec": { "command": ["sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo hooked > /proc/1/fd/1"] } } });
        world
            .put(
                "held",
                json!({ "containers": [with(idle("first"), json!({ "lifecycle": hook })), idle("second")] }),
            )
            .unwrap();
        let seen = world.wait("held", "first to run", |pod| pod.runs("first")).unwrap();
        let first = seen.container("first");
        assert_eq!(
            (&first["ready"], &first["started"]),
            (&json!(false), &json!(false)),
            "its hook still runs"
        );
        assert_eq!((seen.waits("second"), seen.phase()), ("ContainerCreating", "Pending"));
        assert_eq!(world.containers_of(seen.uid()).unwrap().len(), 1, "the second is not even made");
        world.containerd.crictl(&["exec", seen.id("first"), "touch", "/tmp/go"]).unwrap();
        let ready = world.running("held").unwrap();
        assert_eq!((ready.id("first"), ready.restarts("first")), (seen.id("first"), 0));
        assert_eq!(world.logged("held", "first", "hooked").unwrap(), "hooked\n");
    }
}

#[test]
fn a_failing_post_start_hook_kills_its_container_and_says_so() {
    let world = World::with_config(Flavor::Debian16, QUICK).unwrap();
    let hook = json!({ "postStart": { "exec": { "command": ["sh", "-c", "echo because; exit 5"] } } });
    world
        .put("bad", json!({ "terminationGracePeriodSeconds": 2, "containers": [with(idle("c"), json!({ "lifecycle": hook })), idle("other")] }))
        .unwrap();
    let seen = world
        .wait("bad", "the hook's failure", |pod| pod.waits("c") == "PostStartHookError" && pod.runs("other"))
        .unwrap();
    assert!(seen.waiting_message("c").contains("exited with 5"), "{}", seen.waiting_message("c"));
    assert_eq!(seen.container("c")["lastState"]["terminated"]["exitCode"], 0, "it was told to stop and did");
    let event = world.event("bad", "FailedPostStartHook", "").unwrap();
    assert_eq!((event.kind.as_str(), event.field_path.as_str()), ("Warning", "spec.containers{c}"));
    assert!(event.message.contains("because"), "the hook's output is told: {}", event.message);
    world.event("bad", "Killing", "FailedPostStartHook").unwrap();
    let again = world.wait("bad", "another try", |pod| pod.restarts("c") >= 1).unwrap();
    assert_eq!(again.id("other"), seen.id("other"));
}

#[test]
fn pre_stop_hooks_run_before_the_signal_and_within_the_grace() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let script = "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.1; done";
        let with_hook = |grace: u32, hook: serde_json::Value| json!({ "terminationGracePeriodSeconds": grace, "containers": [with(sh("c", script), json!({ "lifecycle": { "preStop": hook } }))] });
        let exec = |script: &str| json!({ "exec": { "command": ["sh", "-c", script] } });
        world
            .put("exec", with_hook(20, exec("echo hook > /proc/1/fd/1; sleep 1; echo hooked > /proc/1/fd/1")))
            .unwrap();
        world.put("sleep", with_hook(20, json!({ "sleep": { "seconds": 2 } }))).unwrap();
        // It never ends by itself: the grace period does it.
        world
            .put("long", with_hook(3, exec("echo hook > /proc/1/fd/1; sleep 60; echo never > /proc/1/fd/1")))
            .unwrap();
        world.put("fails", with_hook(20, exec("exit 3"))).unwrap();
        // The server logs what it is asked for.
        let serve = "trap 'exit 0' TERM; echo up; while :; do nc -l -p 8080 -e sh -c 'read line; echo \"asked: $line\" > /proc/1/fd/1; printf \"HTTP/1.0 500 no\\r\\n\\r\\n\"'; done & wait";
        let web = with(
            sh("c", serve),
            json!({
                "ports": [{ "name": "web", "containerPort": 8080 }],
                "lifecycle": { "preStop": { "httpGet": { "path": "/bye?now=1", "port": "web" } } },
            }),
        );
        world.put("http", json!({ "terminationGracePeriodSeconds": 20, "containers": [web] })).unwrap();

        let names = ["exec", "sleep", "long", "fails", "http"];
        for name in names {
            world.running(name).unwrap();
            world.logged(name, "c", "up").unwrap();
        }
        let words: Vec<_> = names.iter().map(|name| last_words(&world, name, "c")).collect();
        let begun = Instant::now();
        for name in names {
            world.take_away(name).unwrap();
        }
        let mut heard = Vec::new();
        for (name, words) in names.iter().zip(words) {
            heard.push((*name, words()));
            world.gone(name).unwrap();
        }
        let took = begun.elapsed();
        assert_eq!(
            heard,
            [
                ("exec", "up\nhook\nhooked\nterm\n".to_owned()),
                ("sleep", "up\nterm\n".to_owned()),
                ("long", "up\nhook\nterm\n".to_owned()),
                ("fails", "up\nterm\n".to_owned()),
                ("http", "up\nasked: GET /bye?now=1 HTTP/1.1\n".to_owned()),
            ]
        );
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(30), "{took:?}");
        let event = world.event("fails", "FailedPreStopHook", "exited with 3").unwrap();
        assert_eq!(event.kind, "Warning");
        assert!(world.events("exec").unwrap().iter().all(|event| event.reason != "FailedPreStopHook"));
    }
}

#[test]
fn a_process_that_ignores_its_end_is_killed_after_the_grace() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        world
            .put("deaf", json!({ "terminationGracePeriodSeconds": 4, "containers": [sh("c", "trap 'echo no' TERM; echo up; while :; do sleep 0.1; done")] }))
            .unwrap();
        world.running("deaf").unwrap();
        world.logged("deaf", "c", "up").unwrap();
        let words = last_words(&world, "deaf", "c");
        let begun = Instant::now();
        world.take_away("deaf").unwrap();
        assert_eq!(words(), "up\nno\n");
        world.gone("deaf").unwrap();
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn a_pod_past_its_active_deadline_is_stopped_and_failed() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("late", json!({ "activeDeadlineSeconds": 3, "containers": [idle("c")] })).unwrap();
    let running = world.running("late").unwrap();
    let over = world.wait("late", "Failed", |pod| pod.phase() == "Failed").unwrap();
    assert_eq!(over.text("/status/reason"), "DeadlineExceeded");
    assert_eq!(over.text("/status/message"), "Pod was active on the node longer than the specified deadline");
    assert_eq!((over.id("c"), over.restarts("c")), (running.id("c"), 0));
    assert_eq!(over.exit_code("c"), Some(0), "it was asked, not killed");
    assert_eq!(over.condition("Ready")["reason"], "PodFailed");
    assert_eq!(over.text("/status/startTime"), running.text("/status/startTime"));
    let event = world.event("late", "DeadlineExceeded", "").unwrap();
    assert_eq!(event.message, "Pod was active on the node longer than the specified deadline");
    // It stays over, even when nothing else happens for a while.
    let id = over.id("c").to_owned();
    world.wait("late", "its sandbox to stop", |pod| !pod.is_true("PodReadyToStartContainers")).unwrap();
    let still = world.wait("late", "Failed", |pod| pod.phase() == "Failed").unwrap();
    assert_eq!(still.id("c"), id);
}

#[test]
fn termination_messages_come_from_the_file_or_the_end_of_the_log() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let fallback = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
        let chatter =
            "i=0; while [ $i -lt 200 ]; do echo \"line $i of many that nobody needs\"; i=$((i+1)); done;";
        let containers = json!([
            sh("file", "printf 'the reason' > /dev/termination-log; echo not this; exit 1"),
            with(
                sh("path", "echo moved > /tmp/end; exit 0"),
                json!({ "terminationMessagePath": "/tmp/end" })
            ),
            sh("silent", "echo not this; exit 1"),
            with(sh("log", &format!("{chatter} echo the last word; exit 1")), fallback.clone()),
            with(sh("log-well", "echo not this; exit 0"), fallback.clone()),
            with(sh("log-file", "echo not this; echo file wins > /dev/termination-log; exit 1"), fallback),
            sh("big", LONG),
        ]);
        world.put("alone", json!({ "restartPolicy": "Never", "containers": [sh("big", LONG)] })).unwrap();
        world.put("words", json!({ "restartPolicy": "Never", "containers": containers })).unwrap();
        let seen = world.wait("words", "Failed", |pod| pod.phase() == "Failed").unwrap();
        let message =
            |name: &str| seen.container(name)["state"]["terminated"]["message"].as_str().map(str::to_owned);
        assert_eq!(message("file").as_deref(), Some("the reason"));
        assert_eq!(message("path").as_deref(), Some("moved\n"));
        assert_eq!(message("silent"), None);
        assert_eq!(message("log-well"), None, "the log speaks for failures only");
        assert_eq!(message("log-file").as_deref(), Some("file wins\n"));
        let log = message("log").unwrap();
        assert!(log.ends_with("the last word\n") && log.len() <= 2048 && log.lines().count() <= 80, "{log}");
        assert!(log.lines().count() > 30, "as much of the end as fits: {log}");
        assert_eq!(message("big").map(|text| text.len()), Some(12288 / 7), "its share of what a pod may say");
        let alone = world.wait("alone", "Failed", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(alone.container("big")["state"]["terminated"]["message"], "x".repeat(4096));
    }
}

#[test]
fn a_pod_removed_while_its_post_start_hook_runs_goes_at_once() {
    let world = World::start(Flavor::Debian16).unwrap();
    let hook = json!({ "postStart": { "exec": { "command": ["sleep", "600"] } } });
    world.put("hooked", json!({ "containers": [with(idle("c"), json!({ "lifecycle": hook }))] })).unwrap();
    let seen = world.wait("hooked", "the hook to run", |pod| pod.runs("c")).unwrap();
    let begun = Instant::now();
    world.take_away("hooked").unwrap();
    world.gone("hooked").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    wait_until(Duration::from_secs(5), "nothing left", || {
        let left = world.containers_of(seen.uid()).map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
}
