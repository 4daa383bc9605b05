//! `cargo xtask bench`: mainstay, upstream's kubelet and a bare CRI client on the same runtime with the same pods, in one run.
//!
//! Absolute figures move with the machine; what counts is the ratio. The *floor* is what the same CRI calls need when
//! nothing but a bare client makes them: no agent can be faster than that.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program reports on standard output")]

mod agent;
mod cluster;
mod floor;
mod grpc;
mod http;
mod metrics;
mod pods;
mod probes;
mod process;
mod report;
mod targets;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use mainstay_testkit::Flavor;

use crate::targets::Target;

const USAGE: &str = "\
cargo xtask bench [--pods N] [--rounds N] [--idle SECONDS] [--containerd 1.6|2.4] [--floor-parallel N] [--floor-only] [--probes N] [--probes-only] [--http-only] [--grpc] [--metrics] [--in-cluster N] [--cluster] [--no-upstream] [--write]

  --pods N            pods at once (default 100)
  --rounds N          single pods, one after the other (default 10)
  --idle SECONDS      how long CPU is measured at rest (default 30)
  --containerd V      Debian's 1.6 (default) or 2.4 built from Go modules
  --floor-parallel N  at most so many pods at a time in the floor (default all)
  --floor-only        only the floor
  --probes N          readiness probes at a period of one second (default 500; 0 leaves them out)
  --probes-only       only those
  --http-only         only /pods beside nginx (Debian's nginx-light), and a thousand watchers
  --grpc              only 200 watchers on the gRPC sockets, and one who asks too often beside another
  --metrics           only what scrapers wait for and what sampling costs; with more than 100 pods also how that grows
  --in-cluster N      pods scheduled at once by a real control plane (default 250; 0 leaves them out)
  --cluster           only those
  --no-upstream       without upstream's kubelet
  --write             also write docs/benchmarks.md (with --metrics, --grpc or --cluster, its part of it)
";

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) pods: usize,
    pub(crate) rounds: usize,
    pub(crate) idle: Duration,
    pub(crate) flavor: Flavor,
    pub(crate) floor_parallel: Option<usize>,
    pub(crate) floor_only: bool,
    pub(crate) probes: usize,
    pub(crate) probes_only: bool,
    pub(crate) http_only: bool,
    pub(crate) grpc_only: bool,
    pub(crate) metrics_only: bool,
    pub(crate) cluster: usize,
    pub(crate) cluster_only: bool,
    pub(crate) upstream: bool,
    pub(crate) write: bool,
    pub(crate) mainstay: PathBuf,
}

fn main() -> ExitCode {
    match plan().and_then(|plan| run(&plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plan() -> Result<Plan> {
    let mut plan = Plan {
        pods: 100,
        rounds: 10,
        idle: Duration::from_secs(30),
        flavor: Flavor::Debian16,
        floor_parallel: None,
        floor_only: false,
        probes: 500,
        probes_only: false,
        http_only: false,
        grpc_only: false,
        metrics_only: false,
        cluster: 250,
        cluster_only: false,
        upstream: true,
        write: false,
        mainstay: mainstay_testkit::workspace_root().join("target/release/mainstay"),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let text = args.next().with_context(|| format!("{arg} needs a number\n\n{USAGE}"))?;
            text.parse().with_context(|| format!("{arg} {text}: not a number"))
        };
        match arg.as_str() {
            "--pods" => plan.pods = usize::try_from(number()?)?,
            "--rounds" => plan.rounds = usize::try_from(number()?)?,
            "--idle" => plan.idle = Duration::from_secs(number()?),
            "--containerd" => {
                plan.flavor = match args.next().as_deref() {
                    Some("1.6") => Flavor::Debian16,
                    Some("2.4") => Flavor::Built24,
                    _ => bail!("--containerd takes 1.6 or 2.4"),
                }
            }
            "--floor-parallel" => plan.floor_parallel = Some(usize::try_from(number()?)?.max(1)),
            "--floor-only" => plan.floor_only = true,
            "--probes" => plan.probes = usize::try_from(number()?)?,
            "--probes-only" => plan.probes_only = true,
            "--http-only" => plan.http_only = true,
            "--grpc" => plan.grpc_only = true,
            "--metrics" => plan.metrics_only = true,
            "--in-cluster" => plan.cluster = usize::try_from(number()?)?,
            "--cluster" => plan.cluster_only = true,
            "--no-upstream" => plan.upstream = false,
            "--write" => plan.write = true,
            other => bail!("unknown: {other}\n\n{USAGE}"),
        }
    }
    if let Some(binary) = std::env::var_os("MAINSTAY_BIN") {
        plan.mainstay = binary.into();
    }
    if !plan.mainstay.exists() {
        bail!("{} is missing; `cargo xtask bench` builds it", plan.mainstay.display());
    }
    Ok(plan)
}

fn run(plan: &Plan) -> Result<()> {
    if plan.probes_only {
        let (ours, _) = probe_figures(plan)?;
        let target = targets::probes_kept_up(plan.probes, ours.per_second);
        println!("{}: {}, {}", target.what, target.measured, target.bound);
        if !target.met {
            bail!("missed: {}", target.what);
        }
        return Ok(());
    }
    if plan.http_only {
        let figures = http::measure(plan).context("/pods beside nginx")?;
        println!("{}", figures.text());
        return none_missed(&figures.targets());
    }
    if plan.grpc_only {
        println!("gRPC");
        let figures = grpc::measure(plan).context("gRPC")?;
        println!("{}", figures.text());
        return report::print_grpc(plan, &figures);
    }
    if plan.metrics_only {
        println!("mainstay");
        let ours = metrics::measure(plan, agent::Kind::Mainstay).context("mainstay")?;
        let theirs = if plan.upstream {
            println!("upstream's kubelet");
            Some(metrics::measure(plan, agent::Kind::Upstream).context("upstream's kubelet")?)
        } else {
            None
        };
        return report::print_metrics(plan, &ours, theirs.as_ref());
    }
    if plan.cluster_only {
        return report::print_cluster(plan, &cluster::both(plan)?);
    }
    println!("floor: a bare CRI client");
    let floor = floor::measure(plan).context("the floor")?;
    if plan.floor_only {
        let single = agent::median(&mut floor.single.clone());
        println!("  one pod {:.3} s, all {:.3} s", single.as_secs_f64(), floor.all.as_secs_f64());
        return Ok(());
    }
    println!("mainstay");
    let mainstay = agent::measure(plan, agent::Kind::Mainstay).context("mainstay")?;
    // Again, on the disk as the agent found it: where many files have just been removed, new ones take longer.
    println!("floor, once more");
    let floor = floor.and(floor::measure(plan).context("the floor")?);
    let upstream = if plan.upstream {
        println!("upstream's kubelet");
        Some(agent::measure(plan, agent::Kind::Upstream).context("upstream's kubelet")?)
    } else {
        None
    };
    let probes = if plan.probes > 0 { Some(probe_figures(plan)?) } else { None };
    let mut targets = targets::judge(plan, &floor, &mainstay, upstream.as_ref());
    if let Some((ours, theirs)) = &probes {
        targets.push(targets::probes_kept_up(plan.probes, ours.per_second));
        targets.extend(theirs.iter().map(|theirs| targets::probes_are_cheap(ours.cpu, theirs.cpu)));
    }
    println!("/pods beside nginx");
    let http = http::measure(plan).context("/pods beside nginx")?;
    println!("{}", http.text());
    targets.extend(http.targets());
    println!("gRPC");
    let grpc = grpc::measure(plan).context("gRPC")?;
    println!("{}", grpc.text());
    targets.extend(grpc.targets());
    let clustered = if plan.cluster > 0 { Some(cluster::both(plan)?) } else { None };
    targets.extend(clustered.iter().flat_map(|(ours, theirs)| ours.targets(theirs.as_ref())));
    let measured = report::Measured {
        floor: &floor,
        mainstay: &mainstay,
        upstream: upstream.as_ref(),
        probes: probes.as_ref(),
        clustered: clustered.as_ref(),
    };
    report::print(plan, &measured, &targets)?;
    none_missed(&targets)
}

fn none_missed(targets: &[Target]) -> Result<()> {
    let missed: Vec<&str> = targets.iter().filter(|target| !target.met).map(|target| target.what).collect();
    if !missed.is_empty() {
        bail!("missed: {}", missed.join("; "));
    }
    Ok(())
}

/// mainstay's figures, and upstream's if it is asked for.
type Probed = (probes::ProbeFigures, Option<probes::ProbeFigures>);

fn probe_figures(plan: &Plan) -> Result<Probed> {
    println!("{} readiness probes, mainstay", plan.probes);
    let ours = probes::measure(plan, agent::Kind::Mainstay).context("mainstay's probes")?;
    if !plan.upstream {
        return Ok((ours, None));
    }
    println!("{} readiness probes, upstream's kubelet", plan.probes);
    let theirs = probes::measure(plan, agent::Kind::Upstream).context("upstream's probes")?;
    Ok((ours, Some(theirs)))
}
