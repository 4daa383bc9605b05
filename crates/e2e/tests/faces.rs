//! The process's own faces: its log in both forms and at every level, its completions, what it refuses to start on; and the
//! largest manifest.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{path::Path, process::Command, time::Duration};

use mainstay_e2e::{World, idle, pod, with};
use mainstay_testkit::{Containerd, Flavor, Node, mainstay_binary, wait_until};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the node's log has a line that `wanted` accepts.
fn logged(node: &Node, what: &str, wanted: impl Fn(&str) -> bool) {
    wait_until(PATIENCE, what, || {
        let log = node.log();
        if log.lines().any(&wanted) { Ok(()) } else { Err(log) }
    })
    .unwrap();
}

#[test]
fn log_lines_are_text_or_json_and_as_many_as_are_asked_for() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let is_up = |line: &str| line.contains("mainstay is up");
    let is_debug = |line: &str| line.contains("CRI call");

    let json = Node::builder().containerd(&containerd).config("logging: { format: json }").start().unwrap();
    logged(&json, "that it is up", is_up);
    let log = json.log();
    // The last line may be half-written.
    let log = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in log.lines() {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(parsed["level"].is_string() && parsed["fields"]["message"].is_string(), "{line}");
    }
    assert!(!log.lines().any(is_debug), "{log}");
    drop(json);

    let quiet = Node::builder().containerd(&containerd).env("RUST_LOG", "error").start().unwrap();
    wait_until(PATIENCE, "pods", || quiet.pods().map_err(|error| format!("{error:#}"))).unwrap();
    assert!(!quiet.log().contains("INFO"), "{}", quiet.log());
    drop(quiet);

    let odd = Node::builder().containerd(&containerd).env("RUST_LOG", "a=b=c").start().unwrap();
    logged(&odd, "what is wrong with it", |line| line.contains("RUST_LOG is not understood"));
    logged(&odd, "that it is up all the same", is_up);
    drop(odd);

    let chatty = Node::builder().containerd(&containerd).args(["--v=4"]).start().unwrap();
    logged(&chatty, "a line for those who look for mistakes", is_debug);
}

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(mainstay_binary().unwrap()).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn completions_are_scripts_that_their_shells_take() {
    for shell in ["bash", "zsh", "fish"] {
        let (well, script, problems) = run(&["completion", shell]);
        assert!(well && script.contains("mainstay"), "{shell}: {problems}");
        // Only bash is on every machine.
        if shell == "bash" {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("completion");
            std::fs::write(&path, &script).unwrap();
            let check = Command::new("bash").arg("-n").arg(&path).output().unwrap();
            assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
        }
    }
    let (well, _, problems) = run(&["completion", "tcsh"]);
    assert!(!well && problems.contains("tcsh"), "{problems}");
}

#[test]
fn a_kubelet_refuses_cgroup_v1_unless_it_is_told_otherwise() {
    let v1 = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut strict = Node::builder().containerd(&containerd).config("failCgroupV1: true").spawn().unwrap();
    if v1 {
        let status = strict.wait_for_exit(PATIENCE).unwrap();
        assert!(!status.success(), "{status}");
        let log = strict.log();
        assert!(log.contains("set failCgroupV1: false"), "it says what to do: {log}");
    } else {
        logged(&strict, "that it is up", |line| line.contains("mainstay is up"));
    }
    drop(strict);
    let lenient = Node::builder().containerd(&containerd).config("failCgroupV1: false").start().unwrap();
    logged(&lenient, "that it is up", |line| line.contains("mainstay is up"));
}

#[test]
fn a_manifest_just_below_ten_megabytes_is_a_pod_and_one_above_is_named() {
    let world = World::start(Flavor::Debian16).unwrap();
    let sized = |name: &str, bytes: usize| {
        // No annotation may be that long, but a comment of JSON's kind may: blanks.
        let text = pod(name, json!({ "containers": [with(idle("c"), json!({}))] })).to_string();
        let blanks = " ".repeat(bytes - text.len());
        format!("{text}{blanks}")
    };
    let most = 10 << 20;
    world.node.write_manifest("below.json", &sized("below", most - 1)).unwrap();
    world.node.write_manifest("above.json", &sized("above", most + 1)).unwrap();
    world.running("below").unwrap();
    let verdict = mainstay_e2e::seen::rejected(&world.node, "above.json").unwrap();
    assert!(verdict.contains("10"), "{verdict}");
    assert!(world.named("above").unwrap().is_empty());
}
