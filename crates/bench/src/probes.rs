//! Many probes at once: what asking every second costs the agent.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use mainstay_testkit::{BUSYBOX, Containerd, Http, Image, Node, tool};
use serde_json::{Value, json};

use crate::{
    Plan,
    agent::{self, Kind},
    process,
};

/// Containers of one pod; each has one readiness probe.
const PER_POD: usize = 10;
const PATIENCE: Duration = Duration::from_secs(600);
const TARGET: &str = "docker.io/local/probe-target:1";

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct ProbeFigures {
    /// The agent's CPU, in percent of a core.
    pub(crate) cpu: f64,
    /// Probes that were answered in a second, by the agent's own count.
    pub(crate) per_second: f64,
    /// Resident memory meanwhile, in KiB.
    pub(crate) rss_kib: u64,
}

pub(crate) fn measure(plan: &Plan, kind: Kind) -> Result<ProbeFigures> {
    let image = Image::named(TARGET).program("/bin/probe-target", &tool("probe-target")?)?;
    let containerd = Containerd::builder(plan.flavor).image(image).start()?;
    containerd.instance().make_cgroup()?;
    let builder = Node::builder().containerd(&containerd).config("maxPods: 1000\n");
    let builder = match kind {
        Kind::Mainstay => builder.program(&plan.mainstay),
        Kind::Upstream => builder.upstream(),
    };
    let node = builder.start()?;
    let http = match kind {
        Kind::Mainstay => node.http(),
        Kind::Upstream => Http::Tcp(node.read_only()),
    };
    let pods = plan.probes.div_ceil(PER_POD);
    for number in 0..pods {
        let containers = (plan.probes - number * PER_POD).min(PER_POD);
        let name = format!("probed-{number}");
        node.write_manifest(&format!("{name}.json"), &manifest(&name, containers))?;
    }
    let begun = Instant::now();
    while ready(&http) < pods {
        if begun.elapsed() > PATIENCE {
            bail!("only {} of {pods} pods are ready after {} s", ready(&http), PATIENCE.as_secs());
        }
        sleep(Duration::from_secs(2));
    }
    println!("  {pods} pods are ready after {:.0} s", begun.elapsed().as_secs_f64());
    sleep(Duration::from_secs(10));
    let pid = node.pid().context("the agent has ended")?;
    let (before, answered_before) = (process::cpu_time(pid)?, answered(&http)?);
    let begun = Instant::now();
    sleep(plan.idle);
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu = process::cpu_time(pid)?.saturating_sub(before).as_secs_f64() / elapsed * 100.0;
    let per_second = (answered(&http)? - answered_before) / elapsed;
    let (rss_kib, _) = process::memory_kib(pid)?;
    println!("  {per_second:.0} probes a second: {cpu:.2} % of a core, {:.1} MB", agent::kib_to_mb(rss_kib));
    drop(node);
    containerd.remove()?;
    Ok(ProbeFigures { cpu, per_second, rss_kib })
}

/// One container serves all ten, which share the pod's network: what is measured is the asking.
fn manifest(name: &str, containers: usize) -> String {
    let probe = json!({ "httpGet": { "port": 8080, "path": "/code/200" }, "periodSeconds": 1 });
    let containers: Vec<Value> = (0..containers)
        .map(|number| {
            let (image, command) = if number == 0 {
                (TARGET, json!(["/bin/probe-target"]))
            } else {
                (BUSYBOX, json!(["/bin/sleep", "1000000"]))
            };
            json!({
                "name": format!("c{number}"), "image": image, "imagePullPolicy": "IfNotPresent",
                "command": command, "readinessProbe": probe,
            })
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": containers },
    })
    .to_string()
}

fn ready(http: &Http) -> usize {
    let pods = agent::list_pods(http).map(|list| list.items).unwrap_or_default();
    let is_ready = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    pods.iter().filter(|pod| is_ready(pod)).count()
}

/// All successes so far.
fn answered(http: &Http) -> Result<f64> {
    let text = http.get("/metrics/probes")?.text();
    let numbers = text.lines().filter(|line| line.starts_with("prober_probe_total{"));
    let numbers = numbers.filter(|line| line.contains("result=\"successful\""));
    Ok(numbers.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}
