//! Decision tables of the planner: pod and runtime as data in, plan as text out.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{fmt::Write as _, time::Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_lifecycle::{BackoffEntry, Hold, HoldCause, Plan, PlanInput, PodMemory, Step, crash_key, plan};
use mainstay_types::{
    ContainerPhase, ContainerProbes, ContainerReason, FullName, ObservedContainer, ObservedPod,
    ObservedSandbox, PodExt, PodProbes, TerminalPhase, Verdict, container_hash,
};
use serde_json::json;

const NOW: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"}, "spec": spec
    }))
    .unwrap()
}

/// `sandbox 0 ready`, `sandbox 1 dead`, `sandbox 0 host`, `sandbox 0 noip`;
/// `NAME running`, `NAME exited CODE [AGO]`, `NAME created`, `NAME unknown`, each with optional `@SANDBOX #COUNT !hash`.
fn runtime(pod: &Pod, lines: &[&str]) -> Option<ObservedPod> {
    if lines.is_empty() {
        return None;
    }
    let mut sandboxes = Vec::new();
    let mut containers = Vec::new();
    for (position, line) in lines.iter().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        if words[0] == "sandbox" {
            sandboxes.push(ObservedSandbox {
                id: format!("s{}", words[1]).into(),
                attempt: words[1].parse().unwrap(),
                ready: words[2] != "dead",
                created_at: at(NOW - 500),
                ips: if matches!(words[2], "host" | "noip") { vec![] } else { vec!["10.0.0.1".into()] },
                host_network: words[2] == "host",
                source: None,
            });
            continue;
        }
        let flag = |mark: char| words.iter().find_map(|word| word.strip_prefix(mark));
        let image = pod.container(words[0]).and_then(|(_, c)| c.image.clone()).unwrap_or_default();
        let phase = match words[1] {
            "running" => ContainerPhase::Running,
            "exited" => ContainerPhase::Exited,
            "created" => ContainerPhase::Created,
            _ => ContainerPhase::Unknown,
        };
        let ago: i64 = words.get(3).and_then(|word| word.parse().ok()).unwrap_or(1);
        containers.push(ObservedContainer {
            id: format!("{}-{position}", words[0]).into(),
            sandbox: format!("s{}", flag('@').unwrap_or("0")).into(),
            name: words[0].into(),
            restart_count: flag('#').map_or(0, |text| text.parse().unwrap()),
            hash: if flag('!').is_some() { 1 } else { container_hash(words[0], &image) },
            phase,
            // Lines further up are newer.
            created_at: at(NOW - 100 - i64::try_from(position).unwrap()),
            started_at: Some(at(NOW - 90)),
            finished_at: (phase == ContainerPhase::Exited).then(|| at(NOW - ago)),
            exit_code: if phase == ContainerPhase::Exited { words[2].parse().unwrap() } else { 0 },
            reason: "".into(),
            message: "".into(),
            image: image.as_str().into(),
            image_ref: "sha256:1".into(),
            log_path: "".into(),
            user: None,
            termination_grace_seconds: None,
            pre_stop: None,
            oom_killed: false,
            stop_signal: None,
        });
    }
    let mut observed = ObservedPod {
        uid: "u1".into(),
        full_name: FullName::new("default", "p"),
        read_at: Instant::now(),
        sandboxes,
        containers,
    };
    observed.sort();
    Some(observed)
}

fn show(plan: &Plan) -> String {
    match plan {
        Plan::Finish { phase, failure } => {
            let why = failure.as_ref().map(|f| format!(" ({})", f.reason)).unwrap_or_default();
            format!("finish {}{why}", phase.as_str())
        }
        Plan::Act { steps, reasons, wake_at } => {
            let mut text = String::new();
            for step in steps {
                match step {
                    Step::StopPod => text.push_str("stop-pod; "),
                    Step::Kill { id, reason, .. } => write!(text, "kill {id} {reason:?}; ").unwrap(),
                    Step::RestartAll { trigger } => write!(text, "restart-all by {trigger}; ").unwrap(),
                    Step::PostStart { id, .. } => write!(text, "post-start {id}; ").unwrap(),
                    Step::Remove(id) => write!(text, "remove {id}; ").unwrap(),
                    Step::CreateSandbox { attempt, changed } => {
                        write!(text, "sandbox {attempt}{}; ", if *changed { " again" } else { "" }).unwrap();
                    }
                    Step::Start { name, sandbox, after_crash, .. } => {
                        let place = sandbox.as_ref().map_or("new".to_owned(), ToString::to_string);
                        let crash = if after_crash.is_some() { " after crash" } else { "" };
                        write!(text, "start {name} in {place}{crash}; ").unwrap();
                    }
                }
            }
            for (name, reason) in reasons {
                write!(text, "{name} waits: {}; ", reason.reason).unwrap();
            }
            if let Some(wake) = wake_at {
                write!(text, "wake +{}; ", wake.as_second() - NOW).unwrap();
            }
            if text.is_empty() { "rest".into() } else { text.trim_end_matches("; ").into() }
        }
    }
}

fn run(pod: &Pod, lines: &[&str], memory: &PodMemory) -> String {
    let observed = runtime(pod, lines);
    let probes = probes(lines);
    show(&plan(&PlanInput { pod, observed: observed.as_ref(), memory, probes: &probes, now: at(NOW) }))
}

/// What the marks `~live-`, `~start-` and `~start+` on the lines of [`runtime`] say.
fn probes(lines: &[&str]) -> PodProbes {
    let marked = |line: &str| {
        let verdict = |failed: &str, passed: &str| match line {
            _ if line.contains(failed) => Some(Verdict::Failed),
            _ if line.contains(passed) => Some(Verdict::Passed),
            _ => None,
        };
        let (startup, liveness) = (verdict("~start-", "~start+"), verdict("~live-", "~live+"));
        ContainerProbes { startup, liveness, readiness: None }
    };
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned).unwrap_or_default();
    lines
        .iter()
        .enumerate()
        .map(|(position, line)| (format!("{}-{position}", name(line)).into(), marked(line)))
        .collect()
}

fn memory() -> PodMemory {
    PodMemory::new(at(NOW - 1000))
}

#[track_caller]
fn check(rows: &[(&str, &Pod, &[&str], &str)]) {
    for (row, pod, lines, expected) in rows {
        assert_eq!(run(pod, lines, &memory()), *expected, "{row}");
    }
}

#[test]
fn regular_containers() {
    let two = |policy: &str| {
        pod(
            json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}),
        )
    };
    let (always, on_failure, never) = (two("Always"), two("OnFailure"), two("Never"));
    check(&[
        ("nothing there", &always, &[], "sandbox 0; start a in new; start b in new"),
        ("all runs", &always, &["sandbox 0 ready", "a running", "b running"], "rest"),
        ("one missing", &always, &["sandbox 0 ready", "a running"], "start b in s0"),
        (
            "restarted after the clock was set back",
            &always,
            &["sandbox 0 ready", "a exited 1", "b running", "a running #1"],
            "rest",
        ),
        ("one ended", &always, &["sandbox 0 ready", "a running", "b exited 1"], "start b in s0 after crash"),
        (
            "one ended well, always",
            &always,
            &["sandbox 0 ready", "a running", "b exited 0"],
            "start b in s0 after crash",
        ),
        ("one ended well, on failure", &on_failure, &["sandbox 0 ready", "a running", "b exited 0"], "rest"),
        ("one ended badly, never", &never, &["sandbox 0 ready", "a running", "b exited 3"], "rest"),
        (
            "all ended well, on failure",
            &on_failure,
            &["sandbox 0 ready", "a exited 0", "b exited 0"],
            "finish Succeeded",
        ),
        ("all ended, never", &never, &["sandbox 0 ready", "a exited 0", "b exited 3"], "finish Failed"),
        ("created but not started", &always, &["sandbox 0 ready", "a running", "b created"], "start b in s0"),
        (
            "created but not started, never",
            &never,
            &["sandbox 0 ready", "a running", "b created"],
            "start b in s0",
        ),
        (
            "unknown",
            &always,
            &["sandbox 0 ready", "a running", "b unknown"],
            "kill b-2 StateUnknown; start b in s0",
        ),
        (
            "image changed",
            &always,
            &["sandbox 0 ready", "a running", "b running !"],
            "kill b-2 DefinitionChanged; start b in s0",
        ),
        (
            "image changed, never",
            &never,
            &["sandbox 0 ready", "a running", "b running !"],
            "kill b-2 DefinitionChanged; start b in s0",
        ),
    ]);
}

#[test]
fn sandboxes() {
    let one =
        |policy: &str| pod(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}]}));
    let (always, on_failure, never) = (one("Always"), one("OnFailure"), one("Never"));
    let host = pod(json!({"hostNetwork": true, "containers": [{"name": "a", "image": "i"}]}));
    check(&[
        (
            "dead sandbox",
            &always,
            &["sandbox 0 dead", "a exited 137"],
            "sandbox 1 again; start a in new after crash",
        ),
        (
            "dead sandbox, container still seen running",
            &always,
            &["sandbox 0 dead", "a running"],
            "stop-pod; sandbox 1 again; start a in new",
        ),
        (
            "dead sandbox before anything ran, never",
            &never,
            &["sandbox 0 dead"],
            "sandbox 1 again; start a in new",
        ),
        ("dead sandbox, never", &never, &["sandbox 0 dead", "a exited 137"], "finish Failed"),
        (
            "dead sandbox, ended well, on failure",
            &on_failure,
            &["sandbox 0 dead", "a exited 0"],
            "finish Succeeded",
        ),
        (
            "two ready",
            &always,
            &["sandbox 0 ready", "sandbox 1 ready", "a running @1"],
            "stop-pod; sandbox 2 again; start a in new",
        ),
        ("no address", &always, &["sandbox 3 noip"], "stop-pod; sandbox 4 again; start a in new"),
        ("host network", &host, &["sandbox 0 host", "a running"], "rest"),
        (
            "host network wanted, pod network there",
            &host,
            &["sandbox 0 ready", "a running"],
            "stop-pod; sandbox 1 again; start a in new",
        ),
        (
            "older sandbox lies around",
            &always,
            &["sandbox 1 ready", "sandbox 0 dead", "a running @1", "a exited 1 @0"],
            "rest",
        ),
    ]);
}

#[test]
fn init_containers_and_sidecars() {
    let spec = |policy: &str| {
        pod(json!({"restartPolicy": policy,
            "initContainers": [{"name": "i1", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}, {"name": "i2", "image": "i"}],
            "containers": [{"name": "a", "image": "i"}]}))
    };
    let (always, never) = (spec("Always"), spec("Never"));
    check(&[
        ("first", &always, &[], "sandbox 0; start i1 in new"),
        ("sandbox without containers", &always, &["sandbox 0 ready"], "start i1 in s0"),
        ("first runs", &always, &["sandbox 0 ready", "i1 running"], "rest"),
        ("first done", &always, &["sandbox 0 ready", "i1 exited 0"], "start side in s0"),
        ("first failed", &always, &["sandbox 0 ready", "i1 exited 1"], "start i1 in s0 after crash"),
        ("first failed, never", &never, &["sandbox 0 ready", "i1 exited 1"], "finish Failed"),
        ("sidecar up", &always, &["sandbox 0 ready", "side running", "i1 exited 0"], "start i2 in s0"),
        (
            "sidecar ended before the next one",
            &always,
            &["sandbox 0 ready", "side exited 0", "i1 exited 0"],
            "start side in s0 after crash",
        ),
        (
            "sidecar ended under a running init",
            &never,
            &["sandbox 0 ready", "i2 running", "side exited 1", "i1 exited 0"],
            "start side in s0 after crash",
        ),
        (
            "all init done",
            &always,
            &["sandbox 0 ready", "i2 exited 0", "side running", "i1 exited 0"],
            "start a in s0",
        ),
        (
            "all init done, first one collected",
            &always,
            &["sandbox 0 ready", "i2 exited 0", "side running"],
            "start a in s0",
        ),
        ("all up", &always, &["sandbox 0 ready", "a running", "i2 exited 0", "side running"], "rest"),
        (
            "sidecar lost while running",
            &always,
            &["sandbox 0 ready", "a running", "i2 exited 0"],
            "start side in s0",
        ),
        (
            "sidecar image changed",
            &always,
            &["sandbox 0 ready", "a running", "side running !"],
            "kill side-2 DefinitionChanged; start side in s0",
        ),
        (
            "job done, sidecar still up",
            &never,
            &["sandbox 0 ready", "a exited 0", "i2 exited 0", "side running"],
            "finish Succeeded",
        ),
        (
            "new sandbox starts init over",
            &always,
            &["sandbox 0 dead", "a exited 137", "i2 exited 0", "side exited 137", "i1 exited 0"],
            "remove i2-2; remove side-3; remove i1-4; sandbox 1 again; start i1 in new after crash",
        ),
        (
            "init of an older sandbox is no progress",
            &always,
            &["sandbox 1 ready", "sandbox 0 dead", "i2 exited 0 @0"],
            "start i1 in s1",
        ),
        (
            "init unknown",
            &always,
            &["sandbox 0 ready", "i1 unknown"],
            "kill i1-1 StateUnknown; start i1 in s0",
        ),
        ("init unknown, never", &never, &["sandbox 0 ready", "i1 unknown"], "finish Failed"),
    ]);
}

#[test]
fn an_init_container_killed_for_memory_has_failed_whatever_its_exit_code() {
    let spec = |policy: &str| {
        pod(
            json!({"restartPolicy": policy, "initContainers": [{"name": "i", "image": "i"}], "containers": [{"name": "a", "image": "i"}]}),
        )
    };
    for (policy, expected) in [
        ("Always", "start i in s0 after crash"),
        ("OnFailure", "start i in s0 after crash"),
        ("Never", "finish Failed"),
    ] {
        let pod = spec(policy);
        let mut observed = runtime(&pod, &["sandbox 0 ready", "i exited 0"]).unwrap();
        observed.containers[0].reason = "OOMKilled".into();
        let input = PlanInput {
            pod: &pod,
            observed: Some(&observed),
            memory: &memory(),
            probes: &PodProbes::default(),
            now: at(NOW),
        };
        assert_eq!(show(&plan(&input)), expected, "{policy}");
    }
}

#[test]
fn a_clock_that_was_set_back_makes_nobody_wait() {
    let spec = pod(json!({"containers": [{"name": "a", "image": "i"}]}));
    let mut memory = memory();
    let cause =
        HoldCause::Failed(ContainerReason { reason: "CreateContainerError".into(), message: String::new() });
    memory.holds.insert("a".into(), Hold { since: at(NOW + 1_000_000), until: at(NOW + 1_000_010), cause });
    assert_eq!(run(&spec, &["sandbox 0 ready"], &memory), "start a in s0");
}

#[test]
fn exit_code_rules() {
    let spec = pod(json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]},
        {"name": "b", "image": "i"}]}));
    check(&[
        (
            "rule restarts",
            &spec,
            &["sandbox 0 ready", "a exited 42", "b running"],
            "start a in s0 after crash",
        ),
        ("no rule", &spec, &["sandbox 0 ready", "a exited 1", "b running"], "rest"),
        ("rule restarts all", &spec, &["sandbox 0 ready", "a exited 88", "b running"], "restart-all by a"),
        (
            "interrupted restart of all goes on",
            &spec,
            &["sandbox 0 ready", "a exited 88"],
            "restart-all by a",
        ),
        ("after restart of all", &spec, &["sandbox 0 ready"], "start a in s0; start b in s0"),
    ]);
}

#[test]
fn waiting_after_failures() {
    let spec = pod(json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}));
    let lines: &[&str] = &["sandbox 0 ready", "a exited 1 5", "b running"];
    let key = crash_key(&spec, &spec.spec_ref().containers[0]);
    let mut memory = memory();
    assert_eq!(run(&spec, lines, &memory), "start a in s0 after crash", "the first restart is immediate");
    memory.crashes.insert(key, BackoffEntry { wait_ms: 20_000, updated: at(NOW - 30) });
    assert_eq!(run(&spec, lines, &memory), "a waits: CrashLoopBackOff; wake +15");
    let later: &[&str] = &["sandbox 0 ready", "a exited 1 20", "b running"];
    assert_eq!(run(&spec, later, &memory), "start a in s0 after crash", "its time has come");

    let failed =
        |reason: &str| HoldCause::Failed(ContainerReason { reason: reason.into(), message: String::new() });
    let hold = Hold { since: at(NOW - 4), until: at(NOW + 6), cause: failed("CreateContainerError") };
    memory.holds.insert("a".into(), hold);
    assert_eq!(run(&spec, later, &memory), "a waits: CreateContainerError; wake +6");

    let cause = HoldCause::Pull { image: "i".into(), reason: "ErrImagePull".into(), message: "no".into() };
    memory.holds.insert("a".into(), Hold { since: at(NOW - 4), until: at(NOW + 36), cause: cause.clone() });
    assert_eq!(run(&spec, later, &memory), "a waits: ErrImagePull; wake +6", "the error first");
    memory.holds.insert("a".into(), Hold { since: at(NOW - 14), until: at(NOW + 26), cause: cause.clone() });
    assert_eq!(run(&spec, later, &memory), "a waits: ImagePullBackOff; wake +26", "then the back-off");
    memory.holds.insert("a".into(), Hold { since: at(NOW - 14), until: at(NOW - 1), cause });
    assert_eq!(
        run(&spec, later, &memory),
        "start a in s0 after crash; a waits: ImagePullBackOff",
        "what failed last is shown until the next attempt has an outcome"
    );

    memory.holds.insert(
        "".into(),
        Hold { since: at(NOW - 1), until: at(NOW + 9), cause: failed("CreatePodSandboxError") },
    );
    assert_eq!(
        run(&spec, &[], &memory),
        "a waits: ContainerCreating; b waits: ContainerCreating; wake +9",
        "no new sandbox before its time"
    );
    let tried_again =
        Hold { since: at(NOW - 20), until: at(NOW - 10), cause: failed("CreatePodSandboxError") };
    memory.holds = [("".into(), tried_again)].into();
    assert_eq!(
        run(&spec, &[], &memory),
        "sandbox 0; start a in new; start b in new; a waits: ContainerCreating; b waits: ContainerCreating",
        "why the last attempt failed is known until this one has an outcome"
    );
}

#[test]
fn hooks_that_were_cut_short_are_run_again() {
    let sidecar = json!({"name": "s", "image": "i", "restartPolicy": "Always"});
    let spec = pod(json!({
        "initContainers": [sidecar],
        "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}],
    }));
    let mut memory = memory();
    memory.hooking = ["a-2".into(), "a-7".into()].into();
    let lines: &[&str] = &["sandbox 0 ready", "s running", "a running", "b exited 1"];
    assert_eq!(run(&spec, lines, &memory), "post-start a-2; start b in s0 after crash");
    let ended: &[&str] = &["sandbox 0 ready", "s running", "a exited 0", "b running"];
    assert_eq!(run(&spec, ended, &memory), "start a in s0 after crash", "it runs no longer");
    let changed: &[&str] = &["sandbox 0 ready", "s running", "a running !", "b running"];
    assert_eq!(
        run(&spec, changed, &memory),
        "kill a-2 DefinitionChanged; start a in s0",
        "it must go anyway"
    );
    memory.hooking = ["s-1".into()].into();
    assert_eq!(run(&spec, lines, &memory), "post-start s-1", "all others come after a sidecar's hook");
    let reason = ContainerReason { reason: "PostStartHookError".into(), message: String::new() };
    let hold = Hold { since: at(NOW - 4), until: at(NOW + 6), cause: HoldCause::Failed(reason) };
    memory.holds.insert("s".into(), hold);
    assert_eq!(run(&spec, lines, &memory), "s waits: PostStartHookError; wake +6", "not again at once");

    let observed = runtime(&spec, ended);
    memory.hooking = ["s-1".into(), "a-2".into(), "x-9".into()].into();
    memory.pre_stops = [("a-2".into(), at(NOW)), ("b-3".into(), at(NOW))].into();
    memory.forget_ended(observed.as_ref());
    assert_eq!(memory.hooking, ["s-1".into()].into());
    assert_eq!(memory.pre_stops, [("b-3".into(), at(NOW))].into());
}

#[test]
fn all_containers_wait_for_the_volumes() {
    let spec = pod(json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}));
    let reason = ContainerReason { reason: "ContainerCreating".into(), message: "volume \"v\": no".into() };
    let hold = Hold { since: at(NOW - 1), until: at(NOW + 1), cause: HoldCause::Volumes(reason) };
    let mut memory = memory();
    memory.holds.insert("".into(), hold.clone());
    assert_eq!(
        run(&spec, &[], &memory),
        "a waits: ContainerCreating; b waits: ContainerCreating; wake +1",
        "no sandbox before them"
    );
    memory.holds.insert("a".into(), hold);
    let lines: &[&str] = &["sandbox 0 ready", "a exited 1", "b running"];
    assert_eq!(run(&spec, lines, &memory), "a waits: ContainerCreating; wake +1", "what runs goes on");
}

#[test]
fn deadlines() {
    let mut spec = json!({"activeDeadlineSeconds": 1500, "containers": [{"name": "a", "image": "i"}]});
    let lines: &[&str] = &["sandbox 0 ready", "a running"];
    assert_eq!(run(&pod(spec.clone()), lines, &memory()), "wake +500");
    spec["activeDeadlineSeconds"] = json!(1000);
    assert_eq!(run(&pod(spec), lines, &memory()), "finish Failed (DeadlineExceeded)");
}

#[test]
fn a_finished_pod_stays_finished() {
    let spec = pod(json!({"restartPolicy": "OnFailure", "containers": [{"name": "a", "image": "i"}]}));
    let mut memory = memory();
    memory.finished = Some(TerminalPhase::Succeeded);
    assert_eq!(run(&spec, &[], &memory), "finish Succeeded", "also when the runtime has forgotten it");
}

#[test]
fn failed_probes_restart() {
    let exec = json!({"exec": {"command": ["true"]}});
    let probed = |policy: &str| {
        let a = json!({"name": "a", "image": "i", "livenessProbe": exec, "startupProbe": exec});
        pod(json!({"restartPolicy": policy, "containers": [a, {"name": "b", "image": "i"}]}))
    };
    let (always, on_failure, never) = (probed("Always"), probed("OnFailure"), probed("Never"));
    let plain = pod(json!({"containers": [{"name": "a", "image": "i"}]}));
    let killed =
        |kind: &str, restarts: bool| format!("kill a-1 ProbeFailed {{ kind: {kind}, restarts: {restarts} }}");
    let again = |kind: &str| format!("{}; start a in s0", killed(kind, true));
    check(&[
        ("well", &always, &["sandbox 0 ready", "a running ~live+", "b running"], "rest"),
        ("not up yet", &always, &["sandbox 0 ready", "a running", "b running"], "rest"),
        ("hangs", &always, &["sandbox 0 ready", "a running ~live-", "b running"], &again("Liveness")),
        (
            "does not come up",
            &always,
            &["sandbox 0 ready", "a running ~start-", "b running"],
            &again("Startup"),
        ),
        (
            "it failed, so it is restarted whatever it exits with",
            &on_failure,
            &["sandbox 0 ready", "a running ~live-", "b running"],
            &again("Liveness"),
        ),
        ("never", &never, &["sandbox 0 ready", "a running ~live-", "b exited 0"], &killed("Liveness", false)),
        (
            "a verdict on an instance before it",
            &always,
            &["sandbox 0 ready", "a running #1", "a exited 137 ~live-", "b running"],
            "rest",
        ),
        ("a probe that is no longer in the spec", &plain, &["sandbox 0 ready", "a running ~live-"], "rest"),
        (
            "the second time counts as a crash",
            &always,
            &["sandbox 0 ready", "a running #1 ~live-", "a exited 137", "b running"],
            &format!("{} after crash", again("Liveness")),
        ),
    ]);
    let mut memory = memory();
    let key = crash_key(&always, &always.spec.as_ref().unwrap().containers[0]);
    memory.crashes.insert(
        key,
        BackoffEntry::next(None, mainstay_lifecycle::BackoffLimits::PULL, at(NOW - 5), at(NOW - 5)),
    );
    let lines = ["sandbox 0 ready", "a running #2 ~live-", "a exited 137 5", "b running"];
    assert_eq!(
        run(&always, &lines, &memory),
        killed("Liveness", true),
        "stopped at once, started after the back-off"
    );
}

#[test]
fn a_sidecar_must_come_up_before_the_next_starts() {
    let exec = json!({"exec": {"command": ["true"]}});
    let spec = pod(json!({
        "initContainers": [
            {"name": "s", "image": "i", "restartPolicy": "Always", "startupProbe": exec, "livenessProbe": exec},
            {"name": "i", "image": "i"},
        ],
        "containers": [{"name": "a", "image": "i"}],
    }));
    check(&[
        ("not up yet", &spec, &["sandbox 0 ready", "s running"], "rest"),
        ("up", &spec, &["sandbox 0 ready", "s running ~start+"], "start i in s0"),
        (
            "does not come up",
            &spec,
            &["sandbox 0 ready", "s running ~start-"],
            "kill s-1 ProbeFailed { kind: Startup, restarts: true }; start s in s0",
        ),
        (
            "restarted once all runs: nobody waits for it again",
            &spec,
            &["sandbox 0 ready", "a running", "s running #1", "s exited 1", "i exited 0"],
            "rest",
        ),
        (
            "hangs later",
            &spec,
            &["sandbox 0 ready", "a running", "i exited 0", "s running ~start+ ~live-"],
            "kill s-3 ProbeFailed { kind: Liveness, restarts: true }; start s in s0",
        ),
    ]);
}
