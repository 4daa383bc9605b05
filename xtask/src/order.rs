//! `cargo xtask order`: which functions a node at work runs, found by running one under callgrind, for the linker to put side by
//! side (docs/decisions/0011-function-order.md).

use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{BUSYBOX, Containerd, Flavor, Node};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

const HEADER: &str = "# What a node at work runs, for the linker: docs/decisions/0011-function-order.md. Written by `cargo xtask order`.\n";
/// A program that is watched step by step is some fifty times slower.
const PATIENCE: Duration = Duration::from_secs(300);
/// Two rounds of the sampler, and some of everything that goes by the clock.
const AT_REST: Duration = Duration::from_secs(25);
const ANSWERS: &[&str] = &[
    "/pods",
    "/runningpods/",
    "/healthz",
    "/node",
    "/metrics",
    "/metrics/resource",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/stats/summary",
];

pub(crate) fn run() -> Result<()> {
    for tool in ["valgrind", "nm"] {
        let found = Command::new(tool).arg("--version").output();
        found.with_context(|| format!("{tool} is missing; on Debian: apt-get install valgrind binutils"))?;
    }
    println!("building a release");
    let built =
        Command::new(crate::cargo()).args(["build", "--release", "--locked", "-p", "mainstay"]).status()?;
    ensure!(built.success(), "the release build failed");
    let root = mainstay_testkit::workspace_root();
    let binary = root.join("target/release/mainstay");
    let scratch = root.join("target/order");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;

    let watched = watched(&binary, &scratch)?;
    println!("running a node under callgrind");
    work(&watched)?;

    let known = functions(&binary)?;
    let (mut order, mut seen) = (HEADER.to_owned(), HashSet::new());
    let mut lives = Vec::new();
    for entry in fs::read_dir(&scratch)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "calls") {
            lives.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    lives.sort();
    for (_, path) in lives {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for name in text.lines().filter_map(called) {
            if known.contains(name) && seen.insert(name.to_owned()) {
                writeln!(order, "{name}")?;
            }
        }
    }
    if seen.len() < 1000 {
        bail!("only {} functions were seen; is the binary stripped?", seen.len());
    }
    let target = root.join("crates/mainstay/link/functions.order");
    fs::write(&target, order)?;
    println!("{} of {} functions: {}", seen.len(), known.len(), target.display());
    Ok(())
}

/// A program that runs the binary and writes down what it calls.
fn watched(binary: &Path, scratch: &Path) -> Result<std::path::PathBuf> {
    let path = scratch.join("mainstay");
    let (out, binary) = (scratch.join("%p.calls"), binary.display());
    let script = format!(
        "#!/bin/sh\nexec valgrind --quiet --tool=callgrind --compress-strings=no --demangle=no --callgrind-out-file={} {binary} \"$@\"\n",
        out.display()
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The life of a node: pods come, run, are looked at, crash and go; the agent is restarted.
fn work(program: &Path) -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node = Node::builder().containerd(&containerd).program(program).start()?;
    let shell = |script: &str| json!({ "name": "c", "image": BUSYBOX, "command": ["sh", "-c", script] });
    let sleeps = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    let pod = |name: &str, spec: Value| {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
    };
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "words" }, "data": { "a": "b" } });
    node.write_manifest("words.json", &config.to_string())?;
    let mut full = shell(sleeps);
    full["resources"] =
        json!({ "requests": { "cpu": "1m", "memory": "4Mi" }, "limits": { "memory": "64Mi" } });
    full["readinessProbe"] = json!({ "periodSeconds": 2, "exec": { "command": ["true"] } });
    full["volumeMounts"] =
        json!([{ "name": "words", "mountPath": "/words" }, { "name": "empty", "mountPath": "/empty" }]);
    let volumes =
        json!([{ "name": "words", "configMap": { "name": "words" } }, { "name": "empty", "emptyDir": {} }]);
    let pods = [
        ("plain", json!({ "terminationGracePeriodSeconds": 1, "containers": [shell(sleeps)] })),
        ("full", json!({ "terminationGracePeriodSeconds": 1, "containers": [full], "volumes": volumes })),
        ("crashes", json!({ "containers": [shell("exit 1")] })),
    ];
    for (name, spec) in pods {
        node.write_manifest(&format!("{name}.json"), &pod(name, spec))?;
    }
    let ready = |node: &Node, count: usize| {
        node.wait_for(PATIENCE, "pods that are ready", |list| {
            let list = serde_json::to_value(&list.items).map_err(|error| error.to_string())?;
            let is_ready = |pod: &&Value| {
                let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            };
            let found = list.as_array().into_iter().flatten().filter(is_ready).count();
            if found >= count { Ok(()) } else { Err(format!("{found} of {count}")) }
        })
    };
    ready(&node, 2)?;
    thread::sleep(AT_REST);
    node.get("/pods")?;
    node.remove_manifest("plain.json")?;
    thread::sleep(AT_REST);
    node.sigterm()?;
    // What only some nodes are asked for comes behind what every node does.
    node.start_again()?;
    ready(&node, 1)?;
    thread::sleep(AT_REST);
    for path in ANSWERS {
        node.get(path)?;
    }
    node.sigterm()?;
    Ok(())
}

/// The functions of a binary.
fn functions(binary: &Path) -> Result<HashSet<String>> {
    let out = Command::new("nm").args(["--defined-only", "--format=posix"]).arg(binary).output()?;
    ensure!(out.status.success(), "nm: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).context("nm's output")?;
    let code = |line: &str| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        ["t", "T", "w", "W"].contains(&kind).then(|| name.to_owned())
    };
    Ok(text.lines().filter_map(code).collect())
}

/// The function that a line of callgrind's names.
fn called(line: &str) -> Option<&str> {
    let name = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn="))?;
    // A function that calls itself has a number for each depth.
    Some(name.split_once('\'').map_or(name, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn callgrinds_lines() {
        assert_eq!(super::called("fn=_ZN4core3fmt17h0E"), Some("_ZN4core3fmt17h0E"));
        assert_eq!(super::called("cfn=_ZN4core3fmt17h0E'2"), Some("_ZN4core3fmt17h0E"));
        assert_eq!(super::called("calls=1 0"), None);
    }
}
