//! What those who scrape wait for, what answering them and reading the cgroups costs, and how that grows with the pods.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{Containerd, Http, Node};

use crate::{
    Plan,
    agent::{self, Kind, Rest, kib_to_mb, median},
    process,
    targets::{Set, Target, limit, share},
};

/// How often each answer is asked for.
const ROUNDS: usize = 40;
/// And how often as the first after the cgroups were read anew, which happens every [`READING`].
const FIRST_ROUNDS: usize = 5;
const READING: Duration = Duration::from_secs(11);
/// From so many pods on, growth is looked at: the node is first measured with these, then with all.
pub(crate) const FEW: usize = 100;

/// An answer, what it may take with 100 pods and with 500, and what upstream took when that was set (milliseconds).
struct Path {
    path: &'static str,
    what: &'static str,
    /// The same of whoever asks first after a reading, for whom nothing is ready yet.
    first: &'static str,
    few: (f64, f64),
    many: (f64, f64),
}

/// Upstream at 500 pods was measured for the first only; of the others it is five times what it was at 100.
const PATHS: [Path; 4] = [
    Path {
        path: "/metrics/cadvisor",
        what: "`/metrics/cadvisor`, median",
        first: "`/metrics/cadvisor`, first after a reading",
        few: (8.0, 174.0),
        many: (40.0, 1790.0),
    },
    Path {
        path: "/stats/summary",
        what: "`/stats/summary`, median",
        first: "`/stats/summary`, first after a reading",
        few: (4.0, 127.0),
        many: (20.0, 635.0),
    },
    Path {
        path: "/metrics/resource",
        what: "`/metrics/resource`, median",
        first: "`/metrics/resource`, first after a reading",
        few: (1.0, 117.0),
        many: (5.0, 585.0),
    },
    Path {
        path: "/metrics",
        what: "`/metrics`, median",
        first: "`/metrics`, first after a reading",
        few: (2.0, 167.0),
        many: (10.0, 835.0),
    },
];

/// What is asked for with gzip too, as Prometheus does. Upstream has no compressed summary: it answers with the plain one.
const COMPRESSED: [(&str, &str); 3] = [
    ("/metrics/cadvisor", "`/metrics/cadvisor`, gzip, median"),
    ("/stats/summary", "`/stats/summary`, gzip, median"),
    ("/metrics/resource", "`/metrics/resource`, gzip, median"),
];

/// One answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// In words.
    pub(crate) what: &'static str,
    /// On a new connection, median.
    pub(crate) p50: Duration,
    /// How long the answer is.
    pub(crate) bytes: usize,
}

/// All answers, and what is held after them.
#[derive(Clone, Debug)]
pub(crate) struct Scrapes {
    pub(crate) answers: Vec<Answer>,
    /// Those of [`COMPRESSED`].
    pub(crate) gzip: Vec<Answer>,
    /// The same as in `answers`, then the first of the compressed ones, asked for once after each reading.
    pub(crate) first: Vec<Answer>,
    /// Resident memory after them, in KiB, and its peak so far.
    pub(crate) rss_kib: u64,
    pub(crate) peak_kib: u64,
}

/// Asks for every answer many times, one after the other, on the port that both have.
pub(crate) fn scrape(http: &Http, pid: u32) -> Result<Scrapes> {
    let ask = |path: &str, headers: &[(&str, &str)], what: &'static str| -> Result<Answer> {
        let (mut times, mut bytes) = (Vec::new(), 0);
        for round in 0..=ROUNDS {
            let begun = Instant::now();
            let answer = http.request("GET", path, headers)?;
            let took = begun.elapsed();
            ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
            bytes = answer.body.len();
            // The first one warms it up.
            if round > 0 {
                times.push(took);
            }
        }
        let p50 = median(&mut times);
        println!("  {what}: {:.2} ms, {} KB", p50.as_secs_f64() * 1e3, bytes / 1000);
        Ok(Answer { what, p50, bytes })
    };
    let answers = PATHS.iter().map(|it| ask(it.path, &[], it.what)).collect::<Result<_>>()?;
    let gzip = COMPRESSED
        .iter()
        .map(|(path, what)| ask(path, &[("accept-encoding", "gzip")], what))
        .collect::<Result<_>>()?;
    let first = firsts(http)?;
    let (rss_kib, peak_kib) = process::memory_kib(pid)?;
    println!("  after that: {:.1} MB, at most {:.1} MB", kib_to_mb(rss_kib), kib_to_mb(peak_kib));
    Ok(Scrapes { answers, gzip, first, rss_kib, peak_kib })
}

/// Asks for every answer once, waits until the cgroups have been read again, and so on.
fn firsts(http: &Http) -> Result<Vec<Answer>> {
    let compressed = "`/metrics/cadvisor`, gzip, first after a reading";
    let plain = PATHS.iter().map(|it| (it.path, &[] as &[(&str, &str)], it.first));
    let asked: Vec<_> =
        plain.chain([("/metrics/cadvisor", &[("accept-encoding", "gzip")] as &[_], compressed)]).collect();
    let mut times = vec![Vec::new(); asked.len()];
    let mut bytes = vec![0; asked.len()];
    for _ in 0..FIRST_ROUNDS {
        sleep(READING);
        for (at, (path, headers, _)) in asked.iter().enumerate() {
            let begun = Instant::now();
            let answer = http.request("GET", path, headers)?;
            times[at].push(begun.elapsed());
            ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
            bytes[at] = answer.body.len();
        }
    }
    let answers = asked.iter().zip(times.iter_mut().zip(bytes)).map(|((_, _, what), (times, bytes))| {
        let p50 = median(times);
        println!("  {what}: {:.2} ms, {} KB", p50.as_secs_f64() * 1e3, bytes / 1000);
        Answer { what, p50, bytes }
    });
    Ok(answers.collect())
}

/// What mainstay itself says that reading cgroups has cost so far, in seconds of a core. Upstream does not say.
pub(crate) fn sampling(http: &Http) -> Option<f64> {
    let text = http.get("/metrics?name[]=mainstay_sample_cpu_seconds_total").ok()?.text();
    let line = text.lines().find(|line| line.starts_with("mainstay_sample_cpu_seconds_total "))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// What scrapes may take, and what the reading may cost.
pub(crate) fn targets(
    pods: usize,
    (ours, rest): (&Scrapes, &Rest),
    theirs: Option<(&Scrapes, &Rest)>,
) -> Vec<Target> {
    let share = share(pods);
    let between = |few: f64, many: f64| few + (many - few) * share;
    let judge = |what: &'static str, path: &Path, answer: &Answer, theirs: Option<&Answer>| {
        let millis = |answer: &Answer| answer.p50.as_secs_f64() * 1e3;
        let set = Set {
            figure: between(path.few.0, path.many.0),
            upstream: between(path.few.1, path.many.1),
            unit: "ms",
        };
        limit(what, (millis(answer), theirs.map(millis)), set, None)
    };
    let mut all: Vec<Target> = Vec::new();
    for (at, (path, answer)) in PATHS.iter().zip(&ours.answers).enumerate() {
        let upstream = theirs.and_then(|(scrapes, _)| scrapes.answers.get(at));
        all.push(judge(path.what, path, answer, upstream));
    }
    for (at, (path, answer)) in PATHS.iter().zip(&ours.first).enumerate() {
        let upstream = theirs.and_then(|(scrapes, _)| scrapes.first.get(at));
        all.push(judge(path.first, path, answer, upstream));
    }
    let peak = |scrapes: &Scrapes| kib_to_mb(scrapes.peak_kib);
    all.push(limit(
        "peak resident memory after scrapes",
        (peak(ours), theirs.map(|(scrapes, _)| peak(scrapes))),
        Set { figure: between(35.0, 70.0), upstream: between(266.0, 372.0), unit: "MB" },
        None,
    ));
    if let Some(sampling) = rest.sampling {
        let bound = between(0.3, 1.5);
        all.push(Target {
            what: "reading all cgroups every ten seconds, of one core",
            bound: format!("≤ {bound:.2} %"),
            measured: format!("{sampling:.3} %"),
            met: sampling <= bound,
        });
    }
    all
}

/// One node with some number of pods.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) pods: usize,
    pub(crate) rest: Rest,
    pub(crate) scrapes: Scrapes,
}

/// A node that is filled up, and then killed and started.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    pub(crate) stages: Vec<Stage>,
    pub(crate) restart: Duration,
    pub(crate) partial: usize,
}

/// Measures with [`FEW`] pods and, if there shall be more, with all.
pub(crate) fn measure(plan: &Plan, kind: Kind) -> Result<Stages> {
    let containerd = Containerd::start(plan.flavor)?;
    containerd.instance().make_cgroup()?;
    let (mut node, http) = agent::start(plan, kind, &containerd)?;
    let mut stages = Vec::new();
    let mut there = 0;
    let steps = if plan.pods > FEW { vec![FEW, plan.pods] } else { vec![plan.pods] };
    for pods in steps {
        let staged: Vec<(String, PathBuf)> = (there..pods)
            .map(|number| {
                let name = format!("all-{number}");
                agent::stage(&node, &name).map(|path| (name, path))
            })
            .collect::<Result<_>>()?;
        let begun = Instant::now();
        for (name, path) in &staged {
            std::fs::rename(path, node.manifests().join(format!("{name}.json")))?;
        }
        agent::wait_for_running(&http, pods)?;
        println!("  {pods} pods run after {:.1} s", begun.elapsed().as_secs_f64());
        there = pods;
        sleep(Duration::from_secs(20));
        let pid = node.pid().context("the agent has ended")?;
        let rest = agent::rest(plan, pid, &containerd, &http)?;
        stages.push(Stage { pods, rest, scrapes: scrape(&Http::Tcp(node.read_only()), pid)? });
    }
    let (restart, partial) = agent::restart(&mut node, &http, plan.pods)?;
    drop::<Node>(node);
    containerd.remove()?;
    Ok(Stages { stages, restart, partial })
}

/// That nothing grows faster than the pods do. What is small is measured with an error that has nothing to do with pods: a
/// tenth of the bound is allowed for it.
pub(crate) fn growth(stages: &[Stage]) -> Vec<Target> {
    let [few, many] = stages else { return Vec::new() };
    let pods = |stage: &Stage| f64::from(u32::try_from(stage.pods).unwrap_or(u32::MAX));
    let factor = pods(many) / pods(few);
    let mut all = Vec::new();
    let mut grows = |what: &'static str, few: f64, many: f64, slack: f64, unit: &str| {
        let bound = (few * factor).max(slack) * 1.1;
        all.push(Target {
            what,
            bound: format!(
                "≤ {bound:.2} {unit}, {factor:.0} times the {few:.2} {unit} of {FEW} pods and a tenth"
            ),
            measured: format!("{many:.2} {unit}, {:.1} ×", many / few),
            met: many <= bound,
        });
    };
    const GROWTH: [&str; 4] = [
        "growth of `/metrics/cadvisor`",
        "growth of `/stats/summary`",
        "growth of `/metrics/resource`",
        "growth of `/metrics`",
    ];
    for (what, (before, after)) in GROWTH.iter().zip(few.scrapes.answers.iter().zip(&many.scrapes.answers)) {
        grows(what, before.p50.as_secs_f64() * 1e3, after.p50.as_secs_f64() * 1e3, 1.0, "ms");
    }
    grows("growth of CPU at rest", few.rest.idle_cpu, many.rest.idle_cpu, 0.5, "%");
    grows("growth of resident memory", kib_to_mb(few.rest.rss_kib), kib_to_mb(many.rest.rss_kib), 0.0, "MB");
    if let (Some(before), Some(after)) = (few.rest.sampling, many.rest.sampling) {
        grows("growth of reading cgroups", before, after, 0.1, "%");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(pods: usize, millis: u64, sampling: f64) -> Stage {
        let answer = |what| Answer { what, p50: Duration::from_millis(millis), bytes: 1 };
        Stage {
            pods,
            rest: Rest {
                idle_cpu: 0.3,
                runtime_cpu: 0.5,
                sampling: Some(sampling),
                rss_kib: 15_000,
                peak_kib: 20_000,
                kernel_kib: 1000,
            },
            scrapes: Scrapes {
                answers: PATHS.iter().map(|path| answer(path.what)).collect(),
                gzip: COMPRESSED.iter().map(|(_, what)| answer(what)).collect(),
                first: PATHS.iter().map(|path| answer(path.first)).collect(),
                rss_kib: 15_000,
                peak_kib: 30_000,
            },
        }
    }

    fn missed(targets: &[Target]) -> Vec<&'static str> {
        targets.iter().filter(|target| !target.met).map(|target| target.what).collect()
    }

    #[test]
    fn answers_that_take_too_long_are_missed() {
        let of = |stage: &Stage| missed(&targets(stage.pods, (&stage.scrapes, &stage.rest), None));
        assert_eq!(of(&stage(100, 1, 0.2)), Vec::<&str>::new());
        assert_eq!(
            of(&stage(100, 2, 0.2)),
            ["`/metrics/resource`, median", "`/metrics/resource`, first after a reading"]
        );
        assert_eq!(
            of(&stage(100, 9, 0.31)),
            [
                "`/metrics/cadvisor`, median",
                "`/stats/summary`, median",
                "`/metrics/resource`, median",
                "`/metrics`, median",
                "`/metrics/cadvisor`, first after a reading",
                "`/stats/summary`, first after a reading",
                "`/metrics/resource`, first after a reading",
                "`/metrics`, first after a reading",
                "reading all cgroups every ten seconds, of one core"
            ]
        );
        assert_eq!(
            of(&stage(500, 5, 1.4)),
            Vec::<&str>::new(),
            "five times as many may take five times as long"
        );
    }

    #[test]
    fn what_grows_faster_than_the_pods_is_missed() {
        assert!(growth(&[stage(100, 2, 0.2)]).is_empty());
        assert_eq!(missed(&growth(&[stage(100, 2, 0.2), stage(500, 10, 1.0)])), Vec::<&str>::new());
        assert_eq!(
            missed(&growth(&[stage(100, 2, 0.2), stage(500, 10, 1.2)])),
            ["growth of reading cgroups"]
        );
        assert_eq!(missed(&growth(&[stage(100, 2, 0.2), stage(500, 12, 1.0)])).len(), 4);
    }
}
