//! What is started again and when: crash loops, restart policies and rules, init containers, sidecars.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use mainstay_e2e::{PodSeen, SOON, World, idle, sh, with};
use mainstay_testkit::{Flavor, wait_until};
use serde_json::{Value, json};

const QUICK: &str = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}";

#[test]
fn a_crashing_container_is_restarted_at_once_and_then_after_a_back_off() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, "crashLoopBackOff: {maxContainerRestartPeriod: 10s}").unwrap();
        world.put("crash", json!({ "containers": [idle("well"), sh("c", "echo dying; exit 7")] })).unwrap();
        let first =
            world.wait("crash", "the first back-off", |pod| pod.waits("c") == "CrashLoopBackOff").unwrap();
        // The first restart waits for nothing, so the first back-off comes after the second end. Where starting a container
        // takes as long as a back-off, the first ones are over before anybody has heard of the end.
        assert!(first.restarts("c") >= 1, "{}", first.restarts("c"));
        assert_eq!(first.phase(), "Running");
        let expected =
            format!("back-off 10s restarting failed container=c pod=crash-node_default({})", first.uid());
        assert_eq!(first.waiting_message("c"), expected);
        let last = &first.container("c")["lastState"]["terminated"];
        assert_eq!((&last["exitCode"], &last["reason"]), (&json!(7), &json!("Error")));
        assert_eq!(last["containerID"], first.container("c")["containerID"]);
        assert_eq!(
            (&first.container("c")["ready"], &first.container("c")["started"]),
            (&json!(false), &json!(false))
        );
        let ready = first.condition("Ready");
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("ContainersNotReady")));
        assert_eq!(ready["message"], "containers with unready status: [c]");
        assert!(first.is_true("Initialized") && first.is_true("PodReadyToStartContainers"));
        let event = world.event("crash", "BackOff", "Back-off restarting").unwrap();
        let text =
            format!("Back-off restarting failed container c in pod crash-node_default({})", first.uid());
        assert_eq!((event.message, event.kind.as_str()), (text, "Warning"));
        assert_eq!(event.field_path, "spec.containers{c}");
        assert_eq!(
            world.logged("crash", "c", "dying").unwrap(),
            "dying\n",
            "the log of the dead one can be read"
        );

        // One that is made and not yet started counts as well, and says nothing of its start.
        let third = world
            .wait("crash", "the second restart", |pod| {
                pod.restarts("c") > first.restarts("c") && started(pod, "c") > time(&last["startedAt"])
            })
            .unwrap();
        assert_eq!(third.id("well"), first.id("well"));
        assert_eq!(third.restarts("well"), 0);
        // The status counts in whole seconds.
        let waited = started(&third, "c").duration_since(time(&last["finishedAt"])).as_secs();
        assert!(waited >= 9, "the back-off of 10 s was kept: {waited} s");
        // Logs and links go with their instances.
        wait_until(3 * SOON, "one dead instance, and no more", || {
            let attempts = attempts_of(&world, &third, "c");
            let logs = entries(&world.node.pod_logs().join(format!("default_crash-node_{}/c", third.uid())));
            let expected: Vec<String> = attempts.iter().map(|attempt| format!("{attempt}.log")).collect();
            let links = entries(&world.node.root().join("container-logs"));
            let links = links.iter().filter(|link| link.starts_with("crash-node_default_c-")).count();
            let seen = format!("attempts {attempts:?}, logs {logs:?}, {links} links");
            if attempts.len() == 1 && logs == expected && links == 1 { Ok(()) } else { Err(seen) }
        })
        .unwrap();
    }
}

/// When the newest instance was started that the status tells of.
fn started(seen: &PodSeen, name: &str) -> Timestamp {
    let container = seen.container(name);
    let states = [&container["state"]["running"], &container["state"]["terminated"]];
    let newest = states.into_iter().find(|state| state.is_object());
    time(&newest.unwrap_or(&container["lastState"]["terminated"])["startedAt"])
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// The attempts of the instances that the runtime still has, oldest first.
fn attempts_of(world: &World, seen: &PodSeen, name: &str) -> Vec<u64> {
    let containers = world.containers_of(seen.uid()).unwrap();
    let named = containers.iter().filter(|container| container["metadata"]["name"] == name);
    let mut found: Vec<_> =
        named.map(|container| container["metadata"]["attempt"].as_u64().unwrap_or(0)).collect();
    found.sort_unstable();
    found
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn sandbox_states(world: &World, seen: &PodSeen) -> Vec<String> {
    let sandboxes = world.sandboxes_of(seen.uid()).unwrap();
    sandboxes.iter().map(|sandbox| sandbox["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn pods_that_are_not_restarted_end_succeeded_or_failed_and_keep_their_logs() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, QUICK).unwrap();
        let once = |policy: &str, code: u8| json!({ "restartPolicy": policy, "containers": [sh("c", &format!("echo said; exit {code}"))] });
        world.put("never-0", once("Never", 0)).unwrap();
        world.put("never-3", once("Never", 3)).unwrap();
        world.put("on-failure-0", once("OnFailure", 0)).unwrap();
        // One of two fails for ever; the other is done.
        world
            .put("on-failure-1", json!({ "restartPolicy": "OnFailure", "containers": [sh("c", "exit 1"), sh("done", "exit 0")] }))
            .unwrap();
        for (name, phase, code, reason) in [
            ("never-0", "Succeeded", 0, "Completed"),
            ("never-3", "Failed", 3, "Error"),
            ("on-failure-0", "Succeeded", 0, "Completed"),
        ] {
            let seen = world.wait(name, phase, |pod| pod.phase() == phase).unwrap();
            assert_eq!((seen.exit_code("c"), seen.restarts("c")), (Some(code), 0), "{name}");
            assert_eq!(seen.container("c")["state"]["terminated"]["reason"], reason);
            let why = if code == 0 { "PodCompleted" } else { "PodFailed" };
            for condition in ["Ready", "ContainersReady"] {
                let condition = seen.condition(condition);
                assert_eq!(
                    (&condition["status"], &condition["reason"]),
                    (&json!("False"), &json!(why)),
                    "{name}"
                );
            }
            let stopped = wait_until(SOON, "the sandbox to stop", || {
                let states = sandbox_states(&world, &seen);
                if states == ["SANDBOX_NOTREADY"] { Ok(()) } else { Err(format!("{states:?}")) }
            });
            stopped.unwrap();
            let seen = world
                .wait(name, "its sandbox to be seen", |pod| !pod.is_true("PodReadyToStartContainers"))
                .unwrap();
            assert_eq!(seen.phase(), phase, "{name}");
            assert_eq!(world.logged(name, "c", "said").unwrap(), "said\n", "{name}");
            assert_eq!(seen.condition("PodReadyToStartContainers")["message"], "pod sandbox is not ready");
        }
        let seen = world
            .wait("on-failure-1", "two restarts", |pod| {
                pod.restarts("c") >= 2 && pod.exit_code("done").is_some()
            })
            .unwrap();
        assert_eq!(seen.phase(), "Running");
        assert_eq!((seen.exit_code("done"), seen.restarts("done")), (Some(0), 0), "success is not repeated");
    }
}

#[test]
fn a_containers_own_restart_rules_override_the_pods_policy() {
    let world = World::with_config(Flavor::Debian16, QUICK).unwrap();
    let rule = |operator: &str, code: i32| json!([{ "action": "Restart", "exitCodes": { "operator": operator, "values": [code] } }]);
    world
        .put("rules", json!({
            "restartPolicy": "Never",
            "containers": [
                with(sh("matches", "exit 42"), json!({ "restartPolicy": "Never", "restartPolicyRules": rule("In", 42) })),
                with(sh("other", "exit 41"), json!({ "restartPolicy": "Never", "restartPolicyRules": rule("In", 42) })),
                with(sh("not-in", "exit 41"), json!({ "restartPolicy": "Never", "restartPolicyRules": rule("NotIn", 42) })),
                with(sh("listed", "exit 41"), json!({ "restartPolicy": "Never", "restartPolicyRules": rule("NotIn", 41) })),
                with(sh("always", "exit 0"), json!({ "restartPolicy": "Always" })),
                sh("plain", "exit 5"),
            ],
        }))
        .unwrap();
    let seen = world
        .wait("rules", "two restarts", |pod| {
            ["matches", "not-in", "always"].iter().all(|name| pod.restarts(name) >= 2)
                && ["other", "listed", "plain"].iter().all(|name| pod.exit_code(name).is_some())
        })
        .unwrap();
    assert_eq!((seen.exit_code("other"), seen.restarts("other")), (Some(41), 0));
    assert_eq!((seen.exit_code("listed"), seen.restarts("listed")), (Some(41), 0));
    assert_eq!((seen.exit_code("plain"), seen.restarts("plain")), (Some(5), 0));
    assert_eq!(seen.phase(), "Running");
}

#[test]
fn a_restart_all_rule_starts_the_whole_pod_over_in_its_sandbox() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, QUICK).unwrap();
        let rules =
            json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [88] } }]);
        // It ends in the way that its rule speaks of when it is told to, once.
        let trigger = with(
            sh("trigger", "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 88"),
            json!({ "restartPolicy": "Never", "restartPolicyRules": rules }),
        );
        world
            .put("all", json!({
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 30,
                "initContainers": [sh("init", "echo init"), with(idle("side"), json!({ "restartPolicy": "Always" }))],
                "containers": [idle("worker"), trigger],
            }))
            .unwrap();
        let first = world.running("all").unwrap();
        let sandbox = world.sandboxes_of(first.uid()).unwrap()[0]["id"].clone();
        world.touch(&first, "trigger", "/tmp/go").unwrap();
        let second = world
            .wait("all", "all to be new", |pod| {
                ["init", "side", "worker", "trigger"].iter().all(|name| pod.restarts(name) >= 1)
                    && pod.runs("worker")
                    && pod.runs("trigger")
            })
            .unwrap();
        for name in ["init", "side", "worker", "trigger"] {
            assert_ne!(second.id(name), first.id(name), "{name}");
            assert_eq!(second.restarts(name), 1, "{name}");
        }
        assert_eq!(second.uid(), first.uid());
        assert_eq!(world.sandboxes_of(second.uid()).unwrap()[0]["id"], sandbox);
        let last = |name: &str| second.container(name)["lastState"]["terminated"].clone();
        assert_eq!(last("worker")["reason"], "RestartingAllContainers", "{:#}", second.0["status"]);
        assert_eq!(last("worker")["exitCode"], 137);
        assert!(!second.condition("AllContainersRestarting").is_null());
    }
}

/// The time in a line that [`stamped`] wrote; busybox has no finer clock than `/proc/uptime`.
fn uptime_in(log: &str, word: &str) -> f64 {
    let line = log.lines().find(|line| line.starts_with(word));
    let line = line.unwrap_or_else(|| panic!("no {word} in {log:?}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn stamped(word: &str) -> String {
    format!("read up rest < /proc/uptime; echo {word} $up")
}

#[test]
fn init_containers_run_one_after_the_other_before_the_rest() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, QUICK).unwrap();
        let init = |name: &str| sh(name, &format!("{}; sleep 0.3; {}", stamped("begin"), stamped("end")));
        let main = sh("main", &format!("{}; sleep 1000", stamped("begin")));
        world
            .put("ordered", json!({ "terminationGracePeriodSeconds": 1, "initContainers": [init("one"), init("two")], "containers": [main] }))
            .unwrap();
        world
            .put(
                "stuck",
                json!({ "initContainers": [sh("bad", "echo no; exit 9")], "containers": [idle("main")] }),
            )
            .unwrap();
        world
            .put(
                "over",
                json!({
                    "restartPolicy": "Never",
                    "initContainers": [sh("good", "true"), sh("bad", "exit 9"), sh("after", "true")],
                    "containers": [idle("main")],
                }),
            )
            .unwrap();

        let seen = world.running("ordered").unwrap();
        world.logged("ordered", "main", "begin").unwrap();
        let at = |name: &str, word: &str| uptime_in(&world.logged("ordered", name, word).unwrap(), word);
        let order =
            [at("one", "begin"), at("one", "end"), at("two", "begin"), at("two", "end"), at("main", "begin")];
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(seen.container("one")["state"]["terminated"]["reason"], "Completed");

        let stuck =
            world.wait("stuck", "its back-off", |pod| pod.waits("bad") == "CrashLoopBackOff").unwrap();
        assert_eq!((stuck.phase(), stuck.waits("main")), ("Pending", "PodInitializing"));
        let initialized = stuck.condition("Initialized");
        assert_eq!(
            (&initialized["status"], &initialized["reason"]),
            (&json!("False"), &json!("ContainersNotInitialized"))
        );
        assert_eq!(initialized["message"], "containers with incomplete status: [bad]");
        assert!(stuck.id("main").is_empty());
        world.wait("stuck", "more restarts", |pod| pod.restarts("bad") >= 2).unwrap();

        let over = world.wait("over", "Failed", |pod| pod.phase() == "Failed").unwrap();
        assert_eq!(
            (over.exit_code("good"), over.exit_code("bad"), over.restarts("bad")),
            (Some(0), Some(9), 0)
        );
        assert!(over.id("after").is_empty() && over.id("main").is_empty());
        assert_eq!(over.waits("main"), "PodInitializing");
        assert_eq!(over.condition("Initialized")["reason"], "ContainersNotInitialized");
    }
}

#[test]
fn sidecars_start_in_order_are_restarted_and_stop_last_in_reverse() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, QUICK).unwrap();
        // Each notes its begin and its end, and takes a little while to end. It does not end with its last word, which
        // containerd may not have written down by then.
        let script = format!(
            "trap 'sleep 0.3; {}; sleep 0.3; exit 0' TERM; {}; while :; do sleep 0.1; done",
            stamped("end"),
            stamped("begin")
        );
        let side = |name: &str| with(sh(name, &script), json!({ "restartPolicy": "Always" }));
        world
            .put(
                "side",
                json!({
                    "terminationGracePeriodSeconds": 60,
                    "initContainers": [side("s1"), sh("between", &stamped("begin")), side("s2")],
                    "containers": [sh("main", &script)],
                }),
            )
            .unwrap();
        let seen = world.running("side").unwrap();
        // By the runtime's word: a script may say its first one after the next container is up.
        let order = ["s1", "between", "s2", "main"].map(|name| {
            let inspected = world.crictl(&["inspect", "--output", "json", seen.id(name)]).unwrap();
            time(&inspected["status"]["startedAt"])
        });
        assert!(order.is_sorted(), "{order:?}");

        // A dead sidecar comes back alone.
        world.containerd.crictl(&["stop", "--timeout", "0", seen.id("s1")]).unwrap();
        let again = world.wait("side", "s1 again", |pod| pod.restarts("s1") == 1 && pod.runs("s1")).unwrap();
        assert_eq!((again.id("main"), again.id("s2")), (seen.id("main"), seen.id("s2")));

        // Whoever has said that he begins heeds signals, and whoever is heard can be heard to his end.
        let mut followed: Vec<_> = ["main", "s2", "s1"]
            .iter()
            .map(|name| {
                let log = world.node.follow_logs("default", "side-node", name, "", SOON).unwrap();
                let (mut log, mut line) = (BufReader::new(log), String::new());
                log.read_line(&mut line).unwrap();
                assert!(line.starts_with("begin"), "{name}: {line}");
                log
            })
            .collect();
        world.take_away("side").unwrap();
        let ends: Vec<f64> =
            followed.iter_mut().map(|log| uptime_in(&std::io::read_to_string(log).unwrap(), "end")).collect();
        assert!(
            ends.windows(2).all(|pair| pair[1] - pair[0] >= 0.25),
            "main, s2, s1, each after the other: {ends:?}"
        );
        world.gone("side").unwrap();
    }
}

#[test]
fn a_job_with_a_sidecar_completes() {
    let world = World::with_config(Flavor::Debian16, QUICK).unwrap();
    // The job is not done before the sidecar listens to signals.
    let job = |code: u8| {
        let mounted = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
        let side = sh("side", "trap 'exit 0' TERM; touch /v/up; while :; do sleep 0.1; done");
        let job = sh("job", &format!("while [ ! -e /v/up ]; do sleep 0.1; done; exit {code}"));
        json!({
            "restartPolicy": "Never",
            "initContainers": [with(with(side, json!({ "restartPolicy": "Always" })), mounted.clone())],
            "containers": [with(job, mounted)],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        })
    };
    world.put("good", job(0)).unwrap();
    world.put("bad", job(4)).unwrap();
    for (name, phase, code) in [("good", "Succeeded", 0), ("bad", "Failed", 4)] {
        let seen = world.wait(name, phase, |pod| pod.phase() == phase).unwrap();
        assert_eq!(seen.exit_code("job"), Some(code), "{name}");
        assert_eq!((seen.exit_code("side"), seen.restarts("side")), (Some(0), 0), "stopped, not restarted");
        let states: Vec<Value> = world
            .containers_of(seen.uid())
            .unwrap()
            .iter()
            .map(|container| container["state"].clone())
            .collect();
        assert_eq!(states, ["CONTAINER_EXITED", "CONTAINER_EXITED"]);
    }
}

#[test]
fn a_pod_whose_sandbox_died_gets_the_next_one_and_starts_over() {
    for flavor in Flavor::ALL {
        let world = World::with_config(flavor, QUICK).unwrap();
        let spec = |policy: &str| {
            json!({
                "restartPolicy": policy,
                "initContainers": [sh("init", "echo again"), with(idle("side"), json!({ "restartPolicy": "Always" }))],
                "containers": [idle("c")],
            })
        };
        world.put("always", spec("Always")).unwrap();
        world.put("never", spec("Never")).unwrap();
        let before = world.running("always").unwrap();
        let never = world.running("never").unwrap();
        for seen in [&before, &never] {
            let sandbox = world.sandboxes_of(seen.uid()).unwrap()[0]["id"].as_str().unwrap().to_owned();
            // mainstay may be faster than the runtime, and take away what is still being stopped.
            let stopped = world.containerd.crictl(&["stopp", &sandbox]);
            wait_until(SOON, "the end of the sandbox", || {
                let found = world.sandboxes_of(seen.uid()).map_err(|error| format!("{error:#}"))?;
                let is_ready = |it: &Value| it["id"] == sandbox && it["state"] == "SANDBOX_READY";
                if found.iter().any(is_ready) { Err(format!("{stopped:?}")) } else { Ok(()) }
            })
            .unwrap();
        }
        // `c` alone may run anew, and be ready, in a sandbox that is not quite stopped yet.
        let anew = |pod: &PodSeen| ["init", "side", "c"].iter().all(|name| pod.id(name) != before.id(name));
        let after = world.wait("always", "a new start", |pod| pod.is_true("Ready") && anew(pod)).unwrap();
        assert_eq!(after.uid(), before.uid());
        for name in ["init", "side", "c"] {
            // More than one when it was restarted between its own end and that of the sandbox.
            assert!(after.restarts(name) >= 1, "{name}: {}", after.restarts(name));
        }
        assert_eq!(after.restarts("init"), 1);
        let ready: Vec<Value> = world
            .sandboxes_of(after.uid())
            .unwrap()
            .into_iter()
            .filter(|sandbox| sandbox["state"] == "SANDBOX_READY")
            .collect();
        assert_eq!(ready.len(), 1, "{ready:?}");
        assert_eq!(ready[0]["metadata"]["attempt"], 1);
        // However often they were restarted in the old one: in the new one each is started once.
        let mut started: Vec<String> = world
            .containers_of(after.uid())
            .unwrap()
            .iter()
            .filter(|container| container["podSandboxId"] == ready[0]["id"])
            .map(|container| container["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        started.sort();
        assert_eq!(started, ["c", "init", "side"]);
        let event = world.event("always", "SandboxChanged", "").unwrap();
        assert_eq!(event.message, "Pod sandbox changed, it will be killed and re-created.");

        let over = world.wait("never", "its end", |pod| pod.phase() != "Running").unwrap();
        assert_eq!(
            (over.id("c"), over.restarts("c")),
            (never.id("c"), 0),
            "one that is not restarted gets no other sandbox"
        );
        assert_eq!(world.sandboxes_of(over.uid()).unwrap().len(), 1);
    }
}
