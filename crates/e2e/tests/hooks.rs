//! The ends of containers: hooks, grace periods, deadlines and termination messages.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::Read;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use mainstay_e2e::{SOON, World, idle, sh, target, with};
use mainstay_testkit::{Flavor, patient, wait_until};
use serde_json::{Value, json};

const QUICK: &str = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}";

/// Says more than a container may.
const LONG: &str = "{ head -c 10000 /dev/zero | tr '\\0' x; printf END; } > /dev/termination-log; exit 1";

/// The log of a container whose pod is being removed, to its end.
fn last_words(world: &World, name: &str, container: &str) -> impl FnOnce() -> String {
    let pod = world.full_name(name);
    let mut body = world.node.follow_logs("default", &pod, container, "", SOON).unwrap();
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
        world.touch(&seen, "first", "/tmp/go").unwrap();
        let ready = world.running("held").unwrap();
        assert_eq!((ready.id("first"), ready.restarts("first")), (seen.id("first"), 0));
        assert_eq!(world.logged("held", "first", "hooked").unwrap(), "hooked\n");
    }
}

#[test]
fn a_failing_post_start_hook_kills_its_container_and_says_so() {
    let world = World::with_config(Flavor::Debian16, QUICK).unwrap();
    // Not before the container listens to signals.
    let hook = "while [ ! -e /tmp/up ]; do sleep 0.1; done; echo because; exit 5";
    let hook = json!({ "postStart": { "exec": { "command": ["sh", "-c", hook] } } });
    let obedient = sh("c", "trap 'exit 0' TERM; touch /tmp/up; while :; do sleep 0.1; done");
    world
        .put("bad", json!({ "containers": [with(obedient, json!({ "lifecycle": hook })), idle("other")] }))
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
        // At once: two seconds are all that is left when a hook has used up the grace.
        let script = "trap 'echo term; exit 0' TERM; echo up; sleep 1000000 & wait";
        let with_hook = |grace: u32, hook: Value| json!({ "terminationGracePeriodSeconds": grace, "containers": [with(sh("c", script), json!({ "lifecycle": { "preStop": hook } }))] });
        let exec = |script: &str| json!({ "exec": { "command": ["sh", "-c", script] } });
        world
            .put("exec", with_hook(20, exec("echo hook > /proc/1/fd/1; sleep 1; echo hooked > /proc/1/fd/1")))
            .unwrap();
        world.put("sleep", with_hook(20, json!({ "sleep": { "seconds": 2 } }))).unwrap();
        // It never ends by itself: the grace period does it.
        world
            .put("long", with_hook(10, exec("echo hook > /proc/1/fd/1; sleep 60; echo never > /proc/1/fd/1")))
            .unwrap();
        world.put("fails", with_hook(20, exec("exit 3"))).unwrap();
        // The server logs what it is asked for.
        let serve = "trap 'exit 0' TERM; echo up; while :; do nc -l -p 8080 -e sh -c 'read line; echo \"asked: $line\" > /proc/1/fd/1; printf \"HTTP/1.0 500 no\\r\\n\\r\\n\"'; done & wait";
        let web = with(
            sh("c", serve),
            json!({
                "ports": [{ "name": "web", "containerPort": 8080 }],
                "readinessProbe": with(exec("grep -q ':1F90 .* 0A ' /proc/net/tcp /proc/net/tcp6"), json!({ "periodSeconds": 1, "timeoutSeconds": 20 })),
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
        assert!(took >= Duration::from_secs(2), "{took:?}");
        let event = world.event("fails", "FailedPreStopHook", "exited with 3").unwrap();
        assert_eq!(event.kind, "Warning");
        assert!(world.events("exec").unwrap().iter().all(|event| event.reason != "FailedPreStopHook"));
    }
}

#[test]
fn hooks_ask_others_over_http_and_https_and_sleep() {
    let world = World::with_target(Flavor::Debian16, QUICK).unwrap();
    let listens = json!({ "readinessProbe": {
        "httpGet": { "port": 8443, "path": "/code/200", "scheme": "HTTPS" }, "periodSeconds": 1, "timeoutSeconds": 20,
    } });
    world
        .put(
            "target",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [with(target("c"), listens)] }),
        )
        .unwrap();
    let ip = world.running("target").unwrap().text("/status/podIP").to_owned();
    // The target tells which headers it got instead of the one it was told to expect.
    let ask = |port: u16, scheme: &str, header: &str| {
        json!({ "httpGet": {
            "host": ip, "port": port, "scheme": scheme, "path": "/headers?X-Hook=another",
            "httpHeaders": [{ "name": "X-Hook", "value": header }],
        } })
    };
    let hooked = |name: &str, hook: &str, handler: Value| {
        let container = with(idle("c"), json!({ "lifecycle": { hook: handler } }));
        world.put(name, json!({ "terminationGracePeriodSeconds": 30, "containers": [container] })).unwrap();
    };
    hooked("post", "postStart", ask(8080, "HTTP", "post-start"));
    hooked("post-tls", "postStart", ask(8443, "HTTPS", "post-start-by-tls"));
    hooked("pre", "preStop", ask(8443, "HTTPS", "pre-stop"));
    hooked("refused", "postStart", json!({ "httpGet": { "port": 1, "path": "/x" } }));
    let sleeps = with(idle("first"), json!({ "lifecycle": { "postStart": { "sleep": { "seconds": 3 } } } }));
    world
        .put("sleeps", json!({ "terminationGracePeriodSeconds": 10, "containers": [sleeps, idle("second")] }))
        .unwrap();
    world.running("post").unwrap();
    world.logged("target", "c", "X-Hook is \"post-start\", not \"another\"").unwrap();
    world.running("post-tls").unwrap();
    world.logged("target", "c", "X-Hook is \"post-start-by-tls\", not \"another\"").unwrap();
    let log = {
        world.running("pre").unwrap();
        world.take_away("pre").unwrap();
        world.gone("pre").unwrap();
        world.logged("target", "c", "X-Hook is \"pre-stop\", not \"another\"").unwrap()
    };
    assert_eq!(log.matches("X-Hook is").count(), 3, "each was asked once: {log}");
    // Any answer is good, also that the header is another one; no answer is not.
    for name in ["post", "post-tls", "pre"] {
        let events = world.events(name).unwrap();
        assert!(!events.iter().any(|event| event.reason.contains("Hook")), "{events:#?}");
    }
    let event = world.event("refused", "FailedPostStartHook", "refused").unwrap();
    assert!(
        event.message.starts_with("HTTP lifecycle hook for Container \"c\" failed - error: "),
        "{}",
        event.message
    );
    let seen = world.running("sleeps").unwrap();
    let started = |name: &str| {
        let at = seen.container(name)["state"]["running"]["startedAt"].as_str().unwrap();
        at.parse::<Timestamp>().unwrap()
    };
    let held = started("second").duration_since(started("first"));
    assert!(held.as_secs() >= 3, "the second was started {held:?} after the first");
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
        assert!(took >= Duration::from_secs(4), "{took:?}");
    }
}

fn past_its_deadline(flavor: Flavor) {
    let world = World::start(flavor).unwrap();
    let deadline = patient(Duration::from_secs(45)).as_secs();
    world.put("late", json!({ "activeDeadlineSeconds": deadline, "containers": [idle("c")] })).unwrap();
    let running = world.running("late").unwrap();
    let over = world.wait_long(SOON * 2, "late", "Failed", |pod| pod.phase() == "Failed").unwrap();
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
fn a_pod_past_its_active_deadline_is_stopped_and_failed() {
    past_its_deadline(Flavor::Debian16);
}

#[test]
fn a_pod_past_its_active_deadline_is_stopped_and_failed_on_containerd_2() {
    past_its_deadline(Flavor::Built24);
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
        let big = message("big").unwrap();
        assert_eq!(big.len(), 12288 / 7, "its share of what a pod may say");
        assert!(big.ends_with("xEND"), "{big}");
        let alone = world.wait("alone", "Failed", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(alone.container("big")["state"]["terminated"]["message"], "x".repeat(4093) + "END");
    }
}

#[test]
fn a_pod_removed_while_its_post_start_hook_runs_goes_at_once() {
    let world = World::start(Flavor::Debian16).unwrap();
    let hook = json!({ "postStart": { "exec": { "command": ["sleep", "600"] } } });
    let obedient = sh("c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done");
    // Whoever waited for the hook, or for the whole grace, would not be gone soon.
    world
        .put("hooked", json!({ "terminationGracePeriodSeconds": 600, "containers": [with(obedient, json!({ "lifecycle": hook }))] }))
        .unwrap();
    let seen = world.wait("hooked", "the hook to run", |pod| pod.runs("c")).unwrap();
    world.logged("hooked", "c", "up").unwrap();
    world.take_away("hooked").unwrap();
    world.gone("hooked").unwrap();
    wait_until(SOON, "nothing left", || {
        let left = world.containers_of(seen.uid()).map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
}

/// Waits until a pod's record has `text` in it.
fn recorded(world: &World, uid: &str, text: &str) {
    let path = world.node.root().join(format!("mainstay/pods/{uid}.json"));
    wait_until(SOON, "it in the record", || {
        let record = std::fs::read_to_string(&path).unwrap_or_default();
        if record.contains(text) { Ok(()) } else { Err(record) }
    })
    .unwrap();
}

#[test]
fn a_post_start_hook_that_mainstay_did_not_see_ending_is_run_again_before_the_container_is_ready() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    for by_force in [true, false] {
        let name = if by_force { "killed" } else { "ended" };
        let hook = "while [ ! -e /tmp/go ]; do sleep 0.1; done";
        let hook = json!({ "postStart": { "exec": { "command": ["sh", "-c", hook] } } });
        world.put(name, json!({ "containers": [with(idle("c"), json!({ "lifecycle": hook }))] })).unwrap();
        let seen = world.wait(name, "it to run", |pod| pod.runs("c")).unwrap();
        let id = seen.id("c").to_owned();
        recorded(&world, seen.uid(), &format!(r#""hooking":["{id}"]"#));
        if by_force {
            world.node.kill9();
        } else {
            world.node.sigterm().unwrap();
        }
        world.node.start_again().unwrap();
        let after = world.wait(name, "it to be seen", |pod| pod.runs("c")).unwrap();
        let c = after.container("c");
        assert_eq!((&c["ready"], &c["started"], after.id("c")), (&json!(false), &json!(false), id.as_str()));
        assert!(!after.is_true("Ready"), "{name}");
        world.touch(&after, "c", "/tmp/go").unwrap();
        let ready = world.running(name).unwrap();
        assert_eq!((ready.id("c"), ready.restarts("c")), (id.as_str(), 0));
    }
}

#[test]
fn a_pre_stop_hook_that_was_begun_is_not_begun_again_by_another_mainstay() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let hook = json!({ "preStop": { "exec": { "command": ["sleep", "3600"] } } });
    let obedient = sh("c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done");
    // Whoever waited for the hook, or for the whole grace, would not be gone soon.
    let container = with(obedient, json!({ "lifecycle": hook }));
    world.put("hooked", json!({ "terminationGracePeriodSeconds": 3600, "containers": [container] })).unwrap();
    let seen = world.running("hooked").unwrap();
    world.logged("hooked", "c", "up").unwrap();
    world.take_away("hooked").unwrap();
    recorded(&world, seen.uid(), &format!(r#""preStops":{{"{}""#, seen.id("c")));
    world.node.kill9();
    world.node.start_again().unwrap();
    world.gone("hooked").unwrap();
}
