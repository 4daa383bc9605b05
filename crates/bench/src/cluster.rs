//! A node of a real cluster that is given many pods at once: when all are Ready, and what that costs the API server.
//!
//! The pods are there and wait for a node that takes them; then the node is opened, and the real scheduler binds them as fast
//! as it can. Requests are those that the API server counted as the node's own (`apiserver_flowcontrol_dispatched_requests_total`
//! of the flow schemas for nodes), whatever the agent believes to have sent.

use std::{
    collections::BTreeMap,
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{Containerd, ControlPlane, Node};
use serde_json::{Value, json};

use crate::{
    Plan,
    agent::{Kind, kib_to_mb},
    grpc, pods, process,
    targets::{self, Target},
};

/// Where requests of nodes are counted.
const FLOWS: [&str; 2] = ["system-nodes", "system-node-high"];
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODE: &str = "/api/v1/nodes/node";
const PATIENCE: Duration = Duration::from_secs(600);
/// As fine as the time is measured: one percent of what many pods take.
const POLL: Duration = Duration::from_millis(250);
/// Events and the last statuses may be on their way still.
const SETTLE: Duration = Duration::from_secs(20);

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct ClusterFigures {
    /// The node opened → all Ready, as the API server has it.
    pub(crate) ready: Duration,
    /// Requests of the node until some seconds after that, per pod.
    pub(crate) requests: f64,
    /// The agent's CPU time meanwhile.
    pub(crate) cpu: Duration,
    /// Resident memory then, in KiB.
    pub(crate) rss_kib: u64,
    /// The API server stopped, SIGKILL and start → everything complete; and answers before that were not. mainstay's alone: upstream's
    /// agent knows nothing of its pods then.
    pub(crate) away: Option<(Duration, usize)>,
    /// What all clients asked for meanwhile, by verb and resource: the most of it first.
    pub(crate) by_kind: Vec<(String, u64)>,
}

/// mainstay's figures, and upstream's if it is asked for.
pub(crate) type Clustered = (ClusterFigures, Option<ClusterFigures>);

pub(crate) fn both(plan: &Plan) -> Result<Clustered> {
    println!("{} pods scheduled at once, mainstay", plan.cluster);
    let ours = measure(plan, Kind::Mainstay).context("mainstay in a cluster")?;
    if !plan.upstream {
        return Ok((ours, None));
    }
    println!("{} pods scheduled at once, upstream's kubelet", plan.cluster);
    let theirs = measure(plan, Kind::Upstream).context("upstream's kubelet in a cluster")?;
    Ok((ours, Some(theirs)))
}

fn measure(plan: &Plan, kind: Kind) -> Result<ClusterFigures> {
    let containerd = Containerd::start(plan.flavor)?;
    containerd.make_bridge()?;
    let mut plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let clients = containerd.dir().join("clients.crt");
    fs::write(&clients, &plane.authority().pem)?;
    let (address, kubeconfig) = (containerd.gateway(), plane.node_kubeconfig("node")?);
    let builder = Node::builder()
        .containerd(&containerd)
        .config(format!(
            "{{maxPods: 1000, authentication: {{x509: {{clientCAFile: {}}}}}}}",
            clients.display()
        ))
        .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={address}")]);
    let builder = match kind {
        Kind::Mainstay => builder.program(&plan.mainstay),
        Kind::Upstream => builder.upstream(),
    };
    let mut node = builder.start()?;
    let pid = node.pid().context("the agent has ended")?;
    until("the node to be Ready", || {
        let answer = plane.send("GET", NODE, None)?.text();
        Ok(answer.contains(r#""reason":"KubeletReady""#))
    })?;
    set_open(&plane, false)?;
    for number in 0..plan.cluster {
        let manifest: Value = serde_json::from_str(&pods::manifest(&format!("all-{number}")))?;
        plane.create(PODS, &manifest)?;
    }
    until("the scheduler to have seen all", || {
        let answer = plane.send("GET", &format!("{PODS}?resourceVersion=0"), None)?;
        Ok(count(&answer.body, br#""reason":"Unschedulable""#) >= plan.cluster)
    })?;
    sleep(Duration::from_secs(5));

    let (requests, kinds, cpu) = (requests(&plane)?, by_kind(&plane)?, process::cpu_time(pid)?);
    let begun = Instant::now();
    set_open(&plane, true)?;
    until("all pods to be Ready", || {
        let answer = plane.send("GET", &format!("{PODS}?resourceVersion=0"), None)?;
        let body: Value = serde_json::from_slice(&answer.body).context("no list of pods")?;
        let ready = body["items"].as_array().into_iter().flatten().filter(|pod| is_ready(pod)).count();
        Ok(ready == plan.cluster)
    })?;
    let ready = begun.elapsed();
    let cpu = process::cpu_time(pid)?.saturating_sub(cpu);
    sleep(SETTLE);
    let asked = self::requests(&plane)?.saturating_sub(requests);
    let (rss_kib, _) = process::memory_kib(pid)?;
    let mut by_kind: Vec<(String, u64)> = self::by_kind(&plane)?
        .into_iter()
        .map(|(kind, now)| {
            let before = kinds.get(&kind).copied().unwrap_or_default();
            (kind, now.saturating_sub(before))
        })
        .filter(|(_, count)| *count >= 10)
        .collect();
    by_kind.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut figures = ClusterFigures {
        away: None,
        ready,
        requests: f64::from(u32::try_from(asked)?) / f64::from(u32::try_from(plan.cluster.max(1))?),
        cpu,
        rss_kib,
        by_kind,
    };
    println!(
        "  all Ready after {:.1} s, {:.2} requests per pod, {:.2} s of CPU, {:.1} MB",
        figures.ready.as_secs_f64(),
        figures.requests,
        figures.cpu.as_secs_f64(),
        kib_to_mb(figures.rss_kib),
    );
    for (kind, count) in &figures.by_kind {
        println!("    {count:6} {kind}");
    }
    if kind == Kind::Mainstay {
        plane.stop_server();
        let (complete, partial) = without_server(&mut node, plan.cluster)?;
        println!("  without the API server complete {:.2} s after SIGKILL and start", complete.as_secs_f64());
        figures.away = Some((complete, partial));
    }
    drop(node);
    drop(plane);
    containerd.remove()?;
    Ok(figures)
}

/// Kills and starts an agent whose API server is away: how long until `/pods`, `/node`, PodInfo and Pods tell of every pod as it was, and
/// how many answers told of some only.
fn without_server(node: &mut Node, pods: usize) -> Result<(Duration, usize)> {
    const RUNNING: &[u8] = br#""phase":"Running""#;
    let lists = [grpc::PODS, grpc::CONDITIONS].map(|api| (node.root().join(api.socket), api.list));
    node.kill9();
    let begun = Instant::now();
    node.spawn_again()?;
    let http = node.http();
    let (mut partial, mut left) = (0, vec![true; 2 + lists.len()]);
    while left.contains(&true) {
        ensure!(begun.elapsed() < PATIENCE, "the restarted agent does not tell of all pods: {left:?}");
        let get = |path: &str| http.get(path).ok().filter(|answer| answer.status == 200);
        let mut found = vec![
            get("/pods").map(|answer| count(&answer.body, RUNNING) == pods),
            get("/node").map(|answer| answer.text().contains(r#""reason":"KubeletReady""#)),
        ];
        for (socket, call) in &lists {
            found.push(grpc::answer(socket, call)?.map(|answer| grpc::items(&answer) == pods));
        }
        for (left, found) in left.iter_mut().zip(found) {
            partial += usize::from(found == Some(false));
            *left &= found != Some(true);
        }
        sleep(Duration::from_millis(5));
    }
    Ok((begun.elapsed(), partial))
}

/// Whether the scheduler may give the node pods.
fn set_open(plane: &ControlPlane, open: bool) -> Result<()> {
    let headers = [("Content-Type", "application/merge-patch+json")];
    let change = json!({ "spec": { "unschedulable": !open } }).to_string();
    let answer = plane.admin()?.send("PATCH", NODE, &headers, change.as_bytes())?;
    ensure!(answer.status == 200, "{}", answer.text());
    if open {
        return Ok(());
    }
    // The node controller repeats it as a taint, which the scheduler goes by too.
    until("the node to be closed", || {
        let node = plane.send("GET", NODE, None)?.text();
        Ok(node.contains("node.kubernetes.io/unschedulable")
            && !node.contains("node.kubernetes.io/not-ready"))
    })
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn count(bytes: &[u8], word: &[u8]) -> usize {
    bytes.windows(word.len()).filter(|window| *window == word).count()
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !done()? {
        if begun.elapsed() > PATIENCE {
            bail!("waited {} s for {what}", PATIENCE.as_secs());
        }
        sleep(POLL);
    }
    Ok(())
}

/// The API server's counters of a family: labels and value.
fn family(plane: &ControlPlane, name: &str) -> Result<Vec<(String, u64)>> {
    let answer = plane.send("GET", "/metrics", None)?;
    ensure!(answer.status == 200, "/metrics of the API server: {}", answer.status);
    let text = answer.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counters, written as floats"
    )]
    let read = |text: &str| text.trim().parse::<f64>().map(|value| value as u64);
    lines.map(|(labels, value)| Ok((labels.to_owned(), read(value)?))).collect()
}

fn requests(plane: &ControlPlane) -> Result<u64> {
    let counters = family(plane, "apiserver_flowcontrol_dispatched_requests_total")?;
    let own = counters
        .iter()
        .filter(|(labels, _)| FLOWS.iter().any(|flow| labels.contains(&format!("flow_schema=\"{flow}\""))));
    let sum = own.map(|(_, value)| value).sum();
    ensure!(sum > 0, "the API server has counted no request of a node: are its flow schemas others?");
    Ok(sum)
}

fn by_kind(plane: &ControlPlane) -> Result<BTreeMap<String, u64>> {
    let mut kinds = BTreeMap::new();
    for (labels, value) in family(plane, "apiserver_request_total")? {
        let label = |name: &str| {
            let rest = labels.split_once(&format!("{name}=\"")).map(|(_, rest)| rest).unwrap_or_default();
            rest.split_once('"').map(|(value, _)| value).unwrap_or_default()
        };
        let part = Some(label("subresource")).filter(|part| !part.is_empty());
        let part = part.map(|part| format!("/{part}")).unwrap_or_default();
        *kinds.entry(format!("{} {}{part}", label("verb"), label("resource"))).or_default() += value;
    }
    Ok(kinds)
}

impl ClusterFigures {
    /// Neither time nor requests may be above upstream's; for time, what two runs of one agent differ by is left out of it.
    pub(crate) fn targets(&self, upstream: Option<&Self>) -> Vec<Target> {
        let away = self.away.map(|(complete, partial)| {
            [targets::restarted_alone(complete), targets::nothing_partial(partial)]
        });
        let mut all: Vec<Target> = away.into_iter().flatten().collect();
        let Some(theirs) = upstream else { return all };
        let bound = theirs.ready.as_secs_f64() * 1.05;
        all.extend([
            Target {
                what: "pods scheduled at once → all Ready, not above upstream's",
                bound: format!("≤ {bound:.1} s, upstream's and 5 %"),
                measured: format!("{:.1} s", self.ready.as_secs_f64()),
                met: self.ready.as_secs_f64() <= bound,
            },
            Target {
                what: "API requests per pod for that, not above upstream's",
                bound: format!("≤ {:.2}", theirs.requests),
                measured: format!("{:.2}", self.requests),
                met: self.requests <= theirs.requests,
            },
        ]);
        all
    }
}
