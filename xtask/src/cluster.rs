//! `cargo xtask cluster`: a whole cluster on this machine, with mainstay as its node, for people to play with.

use anyhow::{Context, Result, bail};
use mainstay_testkit::{
    Containerd, ControlPlane, HostPortChains, Instance, Node, tool, wait_until, workspace_root,
};
use std::fs;
use std::time::{Duration, Instant};

use crate::own_files;
use crate::run::{Interrupts, LIVED_A_WHILE, MANIFESTS, claim, print_commands, private_containerd, relative};
use crate::try_run::CLUSTER_UP;

const NODE_NAME: &str = "local";
const READY_DEADLINE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);
/// Who plays may kill it right after its start; one that cannot run ends as often as it is started.
const MAX_SHORT_LIVES: u32 = 3;
/// It stands in the terminal, beside what came before it.
const LOG_LINES: usize = 15;

/// Starts it, and stops it at Ctrl-C or SIGTERM.
pub(crate) fn run() -> Result<()> {
    let interrupts = Interrupts::watch()?;
    let _only_one = claim()?;
    // Of a `make run` that was killed, whose directory is swept.
    own_files::keep(&Instance::for_run().dir().join(MANIFESTS), &workspace_root().join("examples"))?;
    let start = Instant::now();
    let containerd = private_containerd()?;
    // What a run that was killed has left is swept by now.
    let chains = HostPortChains::now();
    let outcome = play(&containerd, &interrupts, start);
    containerd.remove().context("cannot remove everything of this cluster; `make cluster` tries again")?;
    chains.restore()?;
    println!("removed its pods, containers, mounts, cgroups and network");
    outcome
}

fn play(containerd: &Containerd, interrupts: &Interrupts, start: Instant) -> Result<()> {
    println!("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler");
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let mut node = Kept { node: start_node(containerd, &plane)?, started: Instant::now(), short_lives: 0 };
    let ready = wait_until(READY_DEADLINE, "the node to be Ready", || {
        if interrupts.count() > 0 {
            return Ok(Ok(()));
        }
        if let Err(error) = node.keep_alive() {
            return Ok(Err(error));
        }
        let answer = plane.send("GET", &format!("/api/v1/nodes/{NODE_NAME}"), None);
        let text = answer.map(|answer| answer.text()).map_err(|error| format!("{error:#}"))?;
        if text.contains("kubelet is posting ready status") { Ok(Ok(())) } else { Err(text) }
    });
    ready??;
    if interrupts.count() == 0 {
        println!("the node is Ready after {:.1} s", start.elapsed().as_secs_f32());
        show(&plane, &node.node)?;
    }
    while interrupts.count() == 0 {
        node.keep_alive()?;
        std::thread::sleep(LOOK);
    }
    println!("\nstopping");
    Ok(())
}

fn start_node(containerd: &Containerd, plane: &ControlPlane) -> Result<Node> {
    let clients = containerd.dir().join("clients.crt");
    fs::write(&clients, &plane.authority().pem).context("cannot write the clients' authority")?;
    let kubeconfig = plane.node_kubeconfig(NODE_NAME)?;
    // The API server forwards nothing to loopback addresses; no other machine has a route to this one.
    containerd.make_bridge()?;
    let address = containerd.gateway();
    let config = format!(
        "{{authentication: {{x509: {{clientCAFile: {}}}}}, address: {address}, readOnlyPort: 0}}",
        clients.display()
    );
    Node::builder()
        .containerd(containerd)
        .name(NODE_NAME)
        .config(config)
        .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={address}")])
        .start()
}

/// Prints where to look further.
fn show(plane: &ControlPlane, node: &Node) -> Result<()> {
    println!("\nin another terminal, the cluster:");
    println!("  export KUBECONFIG={}", plane.admin_kubeconfig()?.display());
    println!("  alias kubectl={}", tool("kubectl")?.display());
    let example = workspace_root().join("examples/cluster/web.yaml");
    println!("  kubectl apply -f {}", relative(&example));
    println!("  kubectl get pods -o wide");
    println!("  kubectl logs deployment/web");
    println!("  kubectl get --raw /api/v1/nodes/{NODE_NAME}/proxy/pods");
    println!("and the node:");
    print_commands(node.program(), node.root(), &["pods --watch", "events", "node"]);
    println!(
        "\nthere is no cluster DNS and no kube-proxy: use `dnsPolicy: Default`, or an event says what is missing"
    );
    println!("docker.io/local/busybox:1 is an image that is there without a registry");
    println!("the node's log: {}", relative(&node.log_path()));
    println!("\n{CLUSTER_UP}");
    Ok(())
}

/// mainstay, started again whenever somebody kills it.
#[derive(Debug)]
struct Kept {
    node: Node,
    started: Instant,
    /// How many in a row ended before they had [`LIVED_A_WHILE`].
    short_lives: u32,
}

impl Kept {
    /// Starts it again if it ended: its pods go on meanwhile. One that does not stay up is an error.
    fn keep_alive(&mut self) -> Result<()> {
        let Some(status) = self.node.exit_status() else { return Ok(()) };
        self.short_lives = if self.started.elapsed() < LIVED_A_WHILE { self.short_lives + 1 } else { 0 };
        if self.short_lives >= MAX_SHORT_LIVES {
            // The file goes with the cluster.
            let log = self.node.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
            bail!("mainstay does not stay up ({status}):\n{}", end.join("\n"));
        }
        println!("\nmainstay ended by itself ({status}); its pods go on; starting it again");
        self.node.spawn_again()?;
        self.started = Instant::now();
        Ok(())
    }
}
