//! What an administrator gets wrong, and pods that an API server accepts and this node cannot run: a clear word for each, and
//! the rest is unaffected.

use std::fs;

use anyhow::{Context, Result, ensure};
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
    let write = |expired: bool| -> Result<()> {
        let wish = CertificateWish::client("system:node:node", &["system:nodes"]);
        let issued = plane.authority().issue(&CertificateWish { expired, ..wish })?;
        fs::write(&certificate, issued.certificate)?;
        fs::write(&key, issued.key)?;
        Ok(())
    };
    write(true)?;
    let node = with_own_pod(&containerd, &kubeconfig)?;
    says(&node, &["expired", &certificate.display().to_string()])?;
    own_pod_runs(&node)?;
    ensure!(plane.send("GET", NODE, None)?.status == 404, "nobody may be registered by it");
    // It is replaced where it lies, and nobody is restarted.
    let pid = node.pid();
    write(false)?;
    registered(&plane)?;
    ensure!(node.pid() == pid);
    Ok(())
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
