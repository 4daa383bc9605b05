//! What an administrator gets wrong, and pods that an API server accepts and this node cannot run: a clear word for each, and
//! the rest is unaffected.

use std::fs;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition, container_id},
    pod,
    seen::PATIENCE,
    with,
};
use mainstay_testkit::{Authority, CertificateWish, Containerd, ControlPlane, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// A node with a pod of its own, which must run whatever is wrong with the kubeconfig.
fn with_own_pod(containerd: &Containerd, kubeconfig: &std::path::Path) -> Result<Node> {
    let mut node = Node::builder()
        .containerd(containerd)
        .config("nodeLeaseDurationSeconds: 4")
        .args([format!("--kubeconfig={}", kubeconfig.display()), "--node-ip=127.0.0.1".to_owned()])
        .prepare()?;
    node.write_manifest("own.json", &pod("own", json!({ "containers": [idle("c")] })).to_string())?;
    node.start_again()?;
    Ok(node)
}

fn says(node: &Node, words: &[&str]) -> Result<()> {
    wait_until(PATIENCE, &format!("the log to say {words:?}"), || {
        let log = node.log();
        if words.iter().all(|word| log.contains(word)) { Ok(()) } else { Err(log) }
    })
}

fn own_pod_runs(node: &Node) -> Result<()> {
    node.wait_for(2 * PATIENCE, "its own pod to run", |pods| {
        let runs = pods
            .items
            .iter()
            .any(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"));
        if runs { Ok(()) } else { Err("not yet".into()) }
    })
}

fn registered(plane: &ControlPlane) -> Result<()> {
    wait_until(3 * PATIENCE, "the node to be registered and Ready", || {
        let answer = plane.send("GET", NODE, None).map_err(|error| format!("{error:#}"))?;
        let node: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        if condition(&node, "Ready") == "True" { Ok(()) } else { Err(answer.text()) }
    })
}

#[test]
fn a_wrong_authority_is_named_and_the_nodes_own_pods_run() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let kubeconfig = plane.node_kubeconfig("node")?;
    let ca = kubeconfig.parent().context("no directory")?.join("ca.crt");
    let right = fs::read(&ca).context("the kubeconfig's authority")?;
    fs::write(&ca, &Authority::new("another")?.pem)?;
    let mut node = with_own_pod(&containerd, &kubeconfig)?;
    says(&node, &["not signed by", "certificate-authority", &ca.display().to_string()])?;
    own_pod_runs(&node)?;
    ensure!(plane.send("GET", NODE, None)?.status == 404, "nobody may be registered by it");
    // With the right one it is a member, and its own pod has not noticed.
    let before = node.pods()?.items.first().and_then(|pod| pod.status.clone()).context("no pod")?;
    node.kill9();
    fs::write(&ca, right)?;
    node.start_again()?;
    registered(&plane)?;
    let after = node.pods()?.items.first().and_then(|pod| pod.status.clone()).context("no pod")?;
    let id = |status: &k8s_openapi::api::core::v1::PodStatus| {
        let containers = status.container_statuses.iter().flatten();
        containers.map(|it| (it.container_id.clone(), it.restart_count)).collect::<Vec<_>>()
    };
    ensure!(id(&before) == id(&after), "{after:?}");
    Ok(())
}

#[test]
fn an_expired_certificate_is_named_and_a_new_one_is_taken_up() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let kubeconfig = plane.node_kubeconfig("node")?;
    let dir = kubeconfig.parent().context("no directory")?;
    let (certificate, key) = (dir.join("client.crt"), dir.join("client.key"));
    let write = |wish: CertificateWish<'_>| -> Result<()> {
        let issued = plane.authority().issue(&wish)?;
        fs::write(&certificate, issued.certificate)?;
        fs::write(&key, issued.key)?;
        Ok(())
    };
    let wish = || CertificateWish::client("system:node:node", &["system:nodes"]);
    write(CertificateWish { expired: true, ..wish() })?;
    let node = with_own_pod(&containerd, &kubeconfig)?;
    says(&node, &["expired", &certificate.display().to_string()])?;
    own_pod_runs(&node)?;
    ensure!(plane.send("GET", NODE, None)?.status == 404, "nobody may be registered by it");
    // It is replaced where it lies, and nobody is restarted.
    let pid = node.pid();
    write(wish())?;
    registered(&plane)?;
    let before = node.log().len();
    let since = |start: usize| node.log().get(start..).unwrap_or_default().to_owned();

    // One that is good for a moment, and is replaced in time by another: nobody notices.
    let briefly = || -> Result<i64> {
        let now = Timestamp::now().as_second();
        let life = u64::try_from(now - 60)?..u64::try_from(now + 20)?;
        let read = since(before).matches(READ_AGAIN).count();
        write(CertificateWish { life: Some(life), ..wish() })?;
        wait_until(PATIENCE, "the new certificate to be read", || {
            let log = since(before);
            if log.matches(READ_AGAIN).count() > read { Ok(()) } else { Err(log) }
        })?;
        Ok(now + 20)
    };
    let first = briefly()?;
    let second = briefly()?;
    alive_after(&plane, first)?;
    let log = since(before);
    ensure!(!log.contains("expired"), "{log}");
    // The second is not replaced in time: that is said, with what to do, and what runs goes on.
    wait_until(PATIENCE, "the log to say that it has expired", || {
        let log = since(before);
        let expired = format!("({}) expired at", certificate.display());
        if log.contains(&expired) && log.contains("give a new one") { Ok(()) } else { Err(log) }
    })?;
    ensure!(last_sign(&plane).map_err(anyhow::Error::msg)? <= second + 1, "nobody was let in with it");
    own_pod_runs(&node)?;
    write(wish())?;
    alive_after(&plane, second + 1)?;
    ensure!(node.pid() == pid);
    Ok(())
}

/// In the log when the files of the kubeconfig have been read again.
const READ_AGAIN: &str = "the kubeconfig or a file that it names changed; it was read again";

/// When the node last renewed its lease.
fn last_sign(plane: &ControlPlane) -> Result<i64, String> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    let answer = plane.send("GET", path, None).map_err(|error| format!("{error:#}"))?;
    let lease: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    let time = lease["spec"]["renewTime"].as_str().ok_or_else(|| answer.text())?;
    time.parse().map(Timestamp::as_second).map_err(|error: jiff::Error| error.to_string())
}

/// Waits for a sign of life behind a second.
fn alive_after(plane: &ControlPlane, second: i64) -> Result<()> {
    wait_until(3 * PATIENCE, "a sign of life", || match last_sign(plane)? {
        renewed if renewed > second => Ok(()),
        renewed => Err(format!("{renewed}, and not after {second}")),
    })
}

/// A pod that cannot run here: what is said of it, in its status and in an event.
struct Misfit {
    name: &'static str,
    spec: Value,
    /// The phase and reason of the pod, or the reason that its container waits for.
    phase: &'static str,
    reason: &'static str,
    event: (&'static str, &'static str),
}

#[test]
fn pods_that_the_node_cannot_run_are_told_so_and_others_do_not_notice() -> Result<()> {
    let member = Member::start("{}")?;
    member.bind("neighbour", json!({ "containers": [with(idle("c"), json!({ "ports": [{ "containerPort": 80, "hostPort": 28080 }] }))] }))?;
    let before = member.ready("neighbour")?;
    let of = |over: Value| json!({ "containers": [with(idle("c"), over)] });
    let failed =
        |name, spec, reason, text| Misfit { name, spec, phase: "Failed", reason, event: (reason, text) };
    let misfits = [
        failed("greedy", of(json!({ "resources": { "requests": { "cpu": "4000" } } })), "OutOfcpu", "cpu"),
        failed(
            "rival",
            of(json!({ "ports": [{ "containerPort": 80, "hostPort": 28080 }] })),
            "NodePorts",
            "free ports",
        ),
        failed(
            "bold",
            json!({ "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] }, "containers": [idle("c")] }),
            "SysctlForbidden",
            "kernel.msgmax",
        ),
        failed(
            "picky",
            json!({ "nodeSelector": { "colour": "green" }, "containers": [idle("c")] }),
            "NodeAffinity",
            "node affinity/selector",
        ),
        Misfit {
            name: "absent",
            spec: of(json!({ "image": "docker.io/local/not-there:1", "imagePullPolicy": "Never" })),
            phase: "Pending",
            reason: "ErrImageNeverPull",
            event: ("ErrImageNeverPull", "not-there"),
        },
        Misfit {
            name: "crooked",
            spec: of(json!({ "image": "not an image" })),
            phase: "Pending",
            reason: "InvalidImageName",
            event: ("InspectFailed", "not an image"),
        },
        Misfit {
            name: "driven",
            spec: json!({
                "containers": [idle("c")],
                "volumes": [{ "name": "v", "csi": { "driver": "example.com" } }],
            }),
            phase: "Pending",
            reason: "ContainerCreating",
            event: ("FailedMount", "volumes of type csi are not supported"),
        },
        Misfit {
            name: "lost",
            spec: json!({
                "containers": [idle("c")],
                "volumes": [{ "name": "v", "hostPath": { "path": "/nowhere/at/all", "type": "Directory" } }],
            }),
            phase: "Pending",
            reason: "ContainerCreating",
            event: ("FailedMount", "/nowhere/at/all"),
        },
        Misfit {
            name: "commanded",
            spec: of(json!({ "command": ["/no/such/program"] })),
            phase: "Pending",
            reason: "RunContainerError",
            event: ("Failed", "/no/such/program"),
        },
        Misfit {
            name: "rootless",
            spec: json!({ "securityContext": { "runAsNonRoot": true }, "containers": [idle("c")] }),
            phase: "Pending",
            reason: "CreateContainerConfigError",
            event: ("Failed", "image will run as root"),
        },
    ];
    for misfit in &misfits {
        member.bind(misfit.name, misfit.spec.clone()).with_context(|| misfit.name)?;
    }
    for Misfit { name, phase, reason, event, .. } in &misfits {
        member.until(&format!("{PODS}/{name}"), &format!("{name} to say {reason}"), |pod| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
            let ended = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"];
            let said = [&pod["status"]["reason"], waiting, ended];
            // A program that is not there ends its container at once, and is tried again.
            let again = *name == "commanded" && waiting == "CrashLoopBackOff";
            again || said.iter().any(|it| *it == reason) && pod["status"]["phase"] == *phase
        })?;
        member.told(name, event.0, event.1)?;
    }
    let after = member.ready("neighbour")?;
    ensure!(container_id(&after) == container_id(&before), "{after}");
    ensure!(after["status"]["containerStatuses"][0]["restartCount"] == 0, "{after}");
    // And they go when they are told to.
    for Misfit { name, .. } in &misfits {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
        member.gone(&format!("{PODS}/{name}"))?;
    }
    Ok(())
}
