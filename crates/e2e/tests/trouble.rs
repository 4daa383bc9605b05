//! What a user sees when something is wrong, and while he watches: the words of `mainstay doctor`, pods that wait for a network,
//! `--watch`, and configuration in pieces.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{Listening, SOON, World, idle};
use mainstay_testkit::{Containerd, Flavor, Node, mainstay_binary, wait_until};
use serde_json::{Value, json};

/// What doctor says once it says something about `subject`: it gives the runtime only so much time to answer.
fn doctor(node: &Node, args: &[&str], subject: &str) -> Result<(String, Option<i32>)> {
    wait_until(SOON, "a word of doctor", || {
        let args: Vec<&str> = std::iter::once("doctor").chain(args.iter().copied()).collect();
        let asked = node.cli(&args).map_err(|error| format!("{error:#}"))?;
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        match text.lines().find(|line| line.contains(subject)) {
            Some(line) => Ok((line.to_owned(), asked.status.code())),
            None => Err(text),
        }
    })
}

#[test]
fn without_a_pod_network_pods_wait_and_say_so_and_doctor_says_what_to_do() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let conflist = containerd.dir().join("cni/10-bridge.conflist");
    let network = fs::read(&conflist)?;
    fs::remove_file(&conflist)?;
    let world = World::on(containerd, "{}")?;
    let (line, code) = doctor(&world.node, &[], "FAIL  pod network: ")?;
    ensure!(line.contains("; install CNI plugins and put a configuration into"), "{line}");
    ensure!(code == Some(1), "{code:?}");

    world.put("web", json!({ "containers": [idle("c")] }))?;
    let said = "network is not ready: container runtime network not ready: ";
    let waits = world.wait("web", "it to say why it waits", |pod| {
        let waits = pod.waits("c") == "ContainerCreating" && pod.phase() == "Pending";
        waits && pod.waiting_message("c").contains(said)
    })?;
    let event = world.event("web", "NetworkNotReady", said)?;
    ensure!(event.kind == "Warning", "{event:?}");
    world.put("host", json!({ "hostNetwork": true, "containers": [idle("c")] }))?;
    world.running("host")?;

    fs::write(&conflist, network)?;
    let web = world.running("web")?;
    ensure!(web.uid() == waits.uid() && web.restarts("c") == 0, "{web:?}");
    doctor(&world.node, &[], "ok    pod network: ").map(drop)
}

#[test]
fn doctor_says_what_to_do_when_nobody_answers() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).prepare()?;
    containerd.stop();
    let config = node.config_path().display().to_string();
    let (line, code) = doctor(&node, &["--config", &config], "FAIL  runtime: ")?;
    ensure!(line.contains("; is the runtime running, and is containerRuntimeEndpoint right?"), "{line}");
    ensure!(code == Some(1), "{code:?}");
    fs::write(
        node.config_path(),
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: -1\n",
    )?;
    let (line, code) = doctor(&node, &["--config", &config], "FAIL  configuration: ")?;
    ensure!(line.contains("maxPods"), "{line}");
    ensure!(code == Some(1), "{code:?}");
    Ok(())
}

#[test]
fn pods_and_events_are_watched_and_the_configuration_may_come_in_pieces() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let pieces = containerd.dir().join("kubelet.conf.d");
    fs::create_dir_all(&pieces)?;
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for (name, fields) in [
        ("10-first.conf", "maxPods: 21\npodPidsLimit: 1234\n"),
        ("20-second.conf", "maxPods: 22\n"),
        ("30-ignored.yaml", "maxPods: 23\n"),
    ] {
        fs::write(pieces.join(name), format!("{head}{fields}"))?;
    }
    let node = Node::builder()
        .containerd(&containerd)
        .args([format!("--config-dir={}", pieces.display())])
        .start()?;
    let world = World { node, containerd };
    let config: Value = serde_json::from_str(&world.node.http().get("/configz")?.text())?;
    let config = &config["kubeletconfig"];
    ensure!((&config["maxPods"], &config["podPidsLimit"]) == (&json!(22), &json!(1234)), "{config}");

    // A client that comes before the first complete list is told so, and goes.
    wait_until(SOON, "the first complete list", || {
        world.pods().map(drop).map_err(|error| format!("{error:#}"))
    })?;
    let watch = |args: &[&str]| -> Result<Listening> {
        let mut command = Command::new(mainstay_binary()?);
        command.args(args).arg("--watch").arg("--root-dir").arg(world.node.root());
        Listening::start(command).context("cannot watch")
    };
    let (pods, events) = (watch(&["pods"])?, watch(&["events", "-o", "json"])?);
    let full_name = world.full_name("web");
    let quick = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] });
    world.put("web", quick)?;
    pods.wait("the pod to be shown as running", |said| {
        let shown = said.iter().filter_map(Value::as_str);
        shown.into_iter().find(|line| line.contains(&full_name) && line.contains("Running")).map(drop)
    })?;
    let told = |reason: &str| {
        events.wait(reason, |said| {
            let of_pod = said.iter().filter(|event| event["name"] == full_name.as_str());
            of_pod.into_iter().find(|event| event["reason"] == reason).map(drop)
        })
    };
    told("Started")?;
    world.take_away("web")?;
    told("Killing")?;
    world.gone("web")
}
