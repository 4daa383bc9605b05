//! One agent, measured from outside: by files that go in and answers that come out.

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use k8s_openapi::{List, api::core::v1::Pod};
use mainstay_testkit::{Containerd, Http, Node};

use crate::{
    Plan,
    metrics::{self, Scrapes},
    pods, process,
};

/// Which agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mainstay,
    Upstream,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// File renamed into place → Running in `/pods`.
    pub(crate) single: Vec<Duration>,
    /// All files → all Running.
    pub(crate) all: Duration,
    /// The agent's own CPU time for it.
    pub(crate) start_cpu: Duration,
    /// Memory and CPU with all pods and nobody who asks.
    pub(crate) rest: Rest,
    /// What those who scrape are answered.
    pub(crate) scrapes: Scrapes,
    /// One `/pods` on a new connection, median.
    pub(crate) list: Duration,
    /// SIGKILL and start → `/pods` complete, every pod Running.
    pub(crate) restart: Duration,
    /// Lists that were served before and were not complete.
    pub(crate) partial: usize,
    /// Resident memory some seconds after the restart, in KiB.
    pub(crate) restarted_kib: u64,
}

/// An agent that is left in peace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// CPU, in percent of a core.
    pub(crate) idle_cpu: f64,
    /// The runtime's CPU in the same time.
    pub(crate) runtime_cpu: f64,
    /// Of the agent's, what it says that reading cgroups took.
    pub(crate) sampling: Option<f64>,
    /// Resident memory, in KiB.
    pub(crate) rss_kib: u64,
    /// Its peak so far.
    pub(crate) peak_kib: u64,
    /// What the kernel holds for it, in KiB.
    pub(crate) kernel_kib: u64,
}

/// Poll this often while something is awaited.
const FINE: Duration = Duration::from_millis(2);
/// With many pods each poll costs the machine something; a tenth of a second is one percent of what is measured.
const COARSE: Duration = Duration::from_millis(100);
/// Upstream needs most of it for hundreds of pods at once.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) fn measure(plan: &Plan, kind: Kind) -> Result<Figures> {
    let containerd = Containerd::start(plan.flavor)?;
    containerd.instance().make_cgroup()?;
    let (mut node, http) = start(plan, kind, &containerd)?;

    let mut single = Vec::new();
    for round in 0..=plan.rounds {
        let name = format!("one-{round}");
        let staged = stage(&node, &name)?;
        let begun = Instant::now();
        std::fs::rename(&staged, node.manifests().join(format!("{name}.json")))?;
        wait(&http, FINE, |pods| running(pods, &name) == 1)?;
        // The first one warms everything up.
        if round > 0 {
            single.push(begun.elapsed());
        }
        sleep(Duration::from_millis(300));
    }
    for round in 0..=plan.rounds {
        std::fs::remove_file(node.manifests().join(format!("one-{round}.json")))?;
    }
    wait(&http, COARSE, |pods| pods.items.is_empty())?;
    println!("  single pods done");
    sleep(Duration::from_secs(3));

    let staged: Vec<(String, PathBuf)> = (0..plan.pods)
        .map(|number| {
            let name = format!("all-{number}");
            stage(&node, &name).map(|path| (name, path))
        })
        .collect::<Result<_>>()?;
    let pid = node.pid().context("the agent has ended")?;
    let cpu_before = process::cpu_time(pid)?;
    let begun = Instant::now();
    for (name, path) in &staged {
        std::fs::rename(path, node.manifests().join(format!("{name}.json")))?;
    }
    wait_for_running(&http, plan.pods)?;
    let all = begun.elapsed();
    let start_cpu = process::cpu_time(pid)?.saturating_sub(cpu_before);
    println!(
        "  {} pods run after {:.1} s ({:.2} s of CPU)",
        plan.pods,
        all.as_secs_f64(),
        start_cpu.as_secs_f64()
    );

    sleep(Duration::from_secs(20));
    let rest = rest(plan, pid, &containerd, &http)?;

    let mut lists: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        let begun = Instant::now();
        http.get("/pods")?;
        lists.push(begun.elapsed());
    }
    let list = median(&mut lists);

    let scrapes = metrics::scrape(&Http::Tcp(node.read_only()), pid)?;
    let (restart, partial) = restart(&mut node, &http, plan.pods)?;
    sleep(Duration::from_secs(10));
    let (restarted_kib, _) = process::memory_kib(node.pid().context("the agent has ended")?)?;
    drop(node);
    containerd.remove()?;
    Ok(Figures { single, all, start_cpu, rest, scrapes, list, restart, partial, restarted_kib })
}

/// The cgroup in which the kernel counts what the agent costs it.
const AGENT: &str = "agent";

/// Starts an agent in a cgroup of its own; both answer on the read-only port, mainstay also on its socket.
pub(crate) fn start(plan: &Plan, kind: Kind, containerd: &Containerd) -> Result<(Node, Http)> {
    let builder = Node::builder().containerd(containerd).config("maxPods: 1000\n");
    let builder = match kind {
        Kind::Mainstay => builder.program(in_a_cgroup(containerd, "mainstay", &plan.mainstay)?),
        Kind::Upstream => {
            let kubelet = containerd.upstream_kubelet()?;
            builder.upstream().program(in_a_cgroup(containerd, "upstream", &kubelet)?)
        }
    };
    let node = builder.start()?;
    let http = match kind {
        Kind::Mainstay => node.http(),
        Kind::Upstream => Http::Tcp(node.read_only()),
    };
    Ok((node, http))
}

/// A program that joins the agent's cgroup and then becomes `program`, so that nothing before it is counted.
fn in_a_cgroup(containerd: &Containerd, name: &str, program: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let cgroup = containerd.instance().make_memory_cgroup(AGENT)?;
    let script = containerd.dir().join(name);
    let text = format!(
        "#!/bin/sh\necho $$ > {}/cgroup.procs || exit 1\nexec {} \"$@\"\n",
        cgroup.display(),
        program.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// Leaves an agent in peace for a while.
pub(crate) fn rest(plan: &Plan, pid: u32, containerd: &Containerd, http: &Http) -> Result<Rest> {
    let runtime_pid = containerd.pid().context("containerd has ended")?;
    let sampled = metrics::sampling(http);
    let (before, runtime_before) = (process::cpu_time(pid)?, process::cpu_time(runtime_pid)?);
    let begun = Instant::now();
    sleep(plan.idle);
    let elapsed = begun.elapsed().as_secs_f64();
    let percent =
        |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() / elapsed * 100.0;
    let idle_cpu = percent(process::cpu_time(pid)?, before);
    let runtime_cpu = percent(process::cpu_time(runtime_pid)?, runtime_before);
    let (rss_kib, peak_kib) = process::memory_kib(pid)?;
    let kernel_kib = process::kernel_memory_kib(&containerd.instance().make_memory_cgroup(AGENT)?)?;
    let sampling =
        sampled.zip(metrics::sampling(http)).map(|(before, after)| (after - before) / elapsed * 100.0);
    print!("  at rest: {:.1} MB, {idle_cpu:.2} % of a core", kib_to_mb(rss_kib));
    match sampling {
        Some(sampling) => println!(", of which {sampling:.3} % for reading cgroups"),
        None => println!(),
    }
    println!("  kernel memory: {:.1} MB", kib_to_mb(kernel_kib));
    Ok(Rest { idle_cpu, runtime_cpu, sampling, rss_kib, peak_kib, kernel_kib })
}

/// Kills and starts it: how long until its list is complete, and how many lists were not.
pub(crate) fn restart(node: &mut Node, http: &Http, pods: usize) -> Result<(Duration, usize)> {
    node.kill9();
    let begun = Instant::now();
    node.spawn_again()?;
    let mut partial = 0;
    loop {
        if let Some(list) = list_pods(http) {
            if running(&list, "all-") == pods {
                break;
            }
            partial += 1;
        }
        if begun.elapsed() > PATIENCE {
            bail!("the restarted agent does not show all pods running");
        }
        sleep(FINE);
    }
    let restart = begun.elapsed();
    println!("  complete {:.2} s after SIGKILL and start", restart.as_secs_f64());
    Ok((restart, partial))
}

/// Writes a manifest beside the directory, to be renamed into it.
pub(crate) fn stage(node: &Node, name: &str) -> Result<PathBuf> {
    // Beside the manifests: upstream makes its root directory a mount of its own.
    let dir = node.manifests().with_extension("staged");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{name}.json"));
    std::fs::write(&path, pods::manifest(name))?;
    Ok(path)
}

pub(crate) fn list_pods(http: &Http) -> Option<List<Pod>> {
    let response = http.get("/pods").ok().filter(|response| response.status == 200)?;
    serde_json::from_slice::<PodItems>(&response.body)
        .ok()
        .map(|items| List { items: items.0, metadata: Default::default() })
}

/// Upstream writes an empty list as null.
struct PodItems(Vec<Pod>);

impl<'de> k8s_openapi::serde::Deserialize<'de> for PodItems {
    fn deserialize<D: k8s_openapi::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = serde_json::Value::deserialize(deserializer)?;
        let items = value.get_mut("items").map(serde_json::Value::take).unwrap_or_default();
        let items: Option<Vec<Pod>> =
            serde_json::from_value(items).map_err(k8s_openapi::serde::de::Error::custom)?;
        Ok(Self(items.unwrap_or_default()))
    }
}

fn running(pods: &List<Pod>, prefix: &str) -> usize {
    pods.items
        .iter()
        .filter(|pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(prefix)))
        .filter(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"))
        .count()
}

fn wait(http: &Http, pause: Duration, done: impl Fn(&List<Pod>) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        if list_pods(http).is_some_and(|pods| done(&pods)) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("not reached within {} s", PATIENCE.as_secs());
        }
        sleep(pause);
    }
}

/// Waits until so many pods run, by counting words: decoding every list would take CPU away from what is measured.
pub(crate) fn wait_for_running(http: &Http, pods: usize) -> Result<()> {
    const RUNNING: &[u8] = br#""phase":"Running""#;
    let begun = Instant::now();
    loop {
        let body = http.get("/pods").map(|response| response.body).unwrap_or_default();
        if body.windows(RUNNING.len()).filter(|window| *window == RUNNING).count() == pods {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("{pods} pods do not run within {} s", PATIENCE.as_secs());
        }
        sleep(COARSE);
    }
}

/// The middle one.
pub(crate) fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Decimal megabytes.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn kib_to_mb(kib: u64) -> f64 {
    (kib * 1024) as f64 / 1e6
}
