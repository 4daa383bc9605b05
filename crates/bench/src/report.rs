//! The table.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context, Result};

use crate::{
    Plan, Probed,
    agent::{Figures, Rest, kib_to_mb, median},
    cluster::{ClusterFigures, Clustered},
    floor::Floor,
    grpc::GrpcFigures,
    metrics::{self, Answer, Scrapes, Stages},
    targets::{self, Target},
};

/// What a whole run has measured.
pub(crate) struct Measured<'a> {
    pub(crate) floor: &'a Floor,
    pub(crate) mainstay: &'a Figures,
    pub(crate) upstream: Option<&'a Figures>,
    pub(crate) probes: Option<&'a Probed>,
    pub(crate) clustered: Option<&'a Clustered>,
}

pub(crate) fn print(plan: &Plan, measured: &Measured<'_>, targets: &[Target]) -> Result<()> {
    let Measured { floor, mainstay, upstream, probes, clustered } = *measured;
    let mut table = String::new();
    let seconds = |duration: Duration| format!("{:.3} s", duration.as_secs_f64());
    let middle = |values: &[Duration]| median(&mut values.to_vec());
    let mut row = |what: &str, floor: Option<String>, ours: (f64, String), theirs: Option<(f64, String)>| {
        let ratio = theirs.as_ref().map_or("–".into(), |(theirs, _)| {
            if ours.0 > 0.0 { format!("{:.1} ×", theirs / ours.0) } else { "∞".into() }
        });
        let theirs = theirs.map_or("–".into(), |(_, text)| text);
        // Writing to a String cannot fail.
        writeln!(table, "| {what} | {} | {} | {theirs} | {ratio} |", floor.unwrap_or("–".into()), ours.1)
            .ok();
    };
    let time = |duration: Duration| (duration.as_secs_f64(), seconds(duration));
    let percent = |value: f64| (value, format!("{value:.2} %"));
    let memory = |kib: u64| (kib_to_mb(kib), format!("{:.1} MB", kib_to_mb(kib)));
    row(
        "static file → Running, median",
        Some(seconds(middle(&floor.single))),
        time(middle(&mainstay.single)),
        upstream.map(|u| time(middle(&u.single))),
    );
    row(
        &format!("{} pods at once → all Running", plan.pods),
        Some(seconds(floor.all)),
        time(mainstay.all),
        upstream.map(|u| time(u.all)),
    );
    row(
        "the agent's own CPU time for that",
        None,
        time(mainstay.start_cpu),
        upstream.map(|u| time(u.start_cpu)),
    );
    row(
        "resident memory at rest",
        None,
        memory(mainstay.rest.rss_kib),
        upstream.map(|u| memory(u.rest.rss_kib)),
    );
    row(
        "peak resident memory",
        None,
        memory(mainstay.rest.peak_kib),
        upstream.map(|u| memory(u.rest.peak_kib)),
    );
    row(
        "kernel memory of the agent's cgroup",
        None,
        memory(mainstay.rest.kernel_kib),
        upstream.map(|u| memory(u.rest.kernel_kib)),
    );
    row(
        "resident memory after a restart",
        None,
        memory(mainstay.restarted_kib),
        upstream.map(|u| memory(u.restarted_kib)),
    );
    row(
        "CPU at rest, of one core",
        None,
        percent(mainstay.rest.idle_cpu),
        upstream.map(|u| percent(u.rest.idle_cpu)),
    );
    row(
        "the runtime's CPU meanwhile",
        None,
        percent(mainstay.rest.runtime_cpu),
        upstream.map(|u| percent(u.rest.runtime_cpu)),
    );
    let list =
        |duration: Duration| (duration.as_secs_f64(), format!("{:.2} ms", duration.as_secs_f64() * 1e3));
    row("`/pods`, new connection, median", None, list(mainstay.list), upstream.map(|u| list(u.list)));
    let theirs = upstream.map(|u| (&u.scrapes, &u.rest));
    scrape_rows(
        &mut |what, ours, theirs| row(what, None, ours, theirs),
        (&mainstay.scrapes, &mainstay.rest),
        theirs,
    );
    row(
        "SIGKILL and start → `/pods` complete",
        None,
        time(mainstay.restart),
        upstream.map(|u| time(u.restart)),
    );
    let count = |value: usize| (f64::from(u32::try_from(value).unwrap_or(u32::MAX)), value.to_string());
    row(
        "lists served before that were not complete",
        None,
        count(mainstay.partial),
        upstream.map(|u| count(u.partial)),
    );

    if let Some((ours, theirs)) = probes {
        row(
            &format!("{} readiness probes (httpGet) every second: CPU, of one core", plan.probes),
            None,
            percent(ours.cpu),
            theirs.as_ref().map(|u| percent(u.cpu)),
        );
        let rate = |value: f64| (value, format!("{value:.0} /s"));
        row(
            "probes answered meanwhile",
            None,
            rate(ours.per_second),
            theirs.as_ref().map(|u| rate(u.per_second)),
        );
        row(
            "resident memory meanwhile",
            None,
            memory(ours.rss_kib),
            theirs.as_ref().map(|u| memory(u.rss_kib)),
        );
    }

    if let Some((ours, theirs)) = clustered {
        let theirs = theirs.as_ref();
        let pods = format!("{} pods scheduled at once in a cluster → all Ready", plan.cluster);
        row(&pods, None, time(ours.ready), theirs.map(|u| time(u.ready)));
        let each = |value: f64| (value, format!("{value:.2}"));
        row(
            "API requests per pod for that (counted by the API server)",
            None,
            each(ours.requests),
            theirs.map(|u| each(u.requests)),
        );
        row("the agent's own CPU time for that", None, time(ours.cpu), theirs.map(|u| time(u.cpu)));
        row("resident memory then", None, memory(ours.rss_kib), theirs.map(|u| memory(u.rss_kib)));
    }

    let judged = judged(targets);
    let text = format!(
        "{} one-container pods, containerd {}, {} cores, medians of {} rounds, CPU over {} s.\n\n\
         | | floor (bare CRI client) | mainstay | upstream's kubelet 1.37.1 | upstream / mainstay |\n| --- | --- | --- | --- | --- |\n{table}\n\
         | target | bound | measured | |\n| --- | --- | --- | --- |\n{judged}",
        plan.pods,
        version(plan),
        std::thread::available_parallelism().map_or(0, usize::from),
        plan.rounds,
        plan.idle.as_secs(),
    );
    println!("\n{text}");
    if plan.write {
        let path = mainstay_testkit::workspace_root().join("docs/benchmarks.md");
        let page = format!(
            "# Benchmarks\n\nWritten by `cargo xtask bench --write` on {}. Absolute figures move with the machine; the ratio in one run counts.\n\
             The floor is what the same CRI calls need when nothing but a bare client makes them, measured before and after mainstay.\n\n{text}{}",
            today(),
            parts_before(&path)
        );
        std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn judged(targets: &[Target]) -> String {
    let mut judged = String::new();
    for Target { what, bound, measured, met } in targets {
        let word = if *met { "pass" } else { "MISS" };
        writeln!(judged, "| {what} | {bound} | {measured} | {word} |").ok();
    }
    judged
}

/// A figure, and how people read it.
type Cell = (f64, String);

/// What those who scrape wait for, side by side.
fn scrape_rows(
    row: &mut dyn FnMut(&str, Cell, Option<Cell>),
    (ours, rest): (&Scrapes, &Rest),
    theirs: Option<(&Scrapes, &Rest)>,
) {
    let cell = |answer: &Answer| {
        let millis = answer.p50.as_secs_f64() * 1e3;
        (millis, format!("{millis:.2} ms ({} KB)", answer.bytes / 1000))
    };
    for (at, answer) in ours.answers.iter().enumerate() {
        row(answer.what, cell(answer), theirs.and_then(|(scrapes, _)| scrapes.answers.get(at)).map(cell));
    }
    for (at, answer) in ours.gzip.iter().enumerate() {
        row(answer.what, cell(answer), theirs.and_then(|(scrapes, _)| scrapes.gzip.get(at)).map(cell));
    }
    for (at, answer) in ours.first.iter().enumerate() {
        row(answer.what, cell(answer), theirs.and_then(|(scrapes, _)| scrapes.first.get(at)).map(cell));
    }
    let memory = |kib: u64| (kib_to_mb(kib), format!("{:.1} MB", kib_to_mb(kib)));
    row("resident memory after scrapes", memory(ours.rss_kib), theirs.map(|(it, _)| memory(it.rss_kib)));
    row("its peak", memory(ours.peak_kib), theirs.map(|(it, _)| memory(it.peak_kib)));
    if let Some(sampling) = rest.sampling {
        row(
            "of the CPU at rest, for reading cgroups (by its own count)",
            (sampling, format!("{sampling:.3} %")),
            None,
        );
    }
}

/// `--metrics`: a table for each number of pods.
pub(crate) fn print_metrics(plan: &Plan, ours: &Stages, theirs: Option<&Stages>) -> Result<()> {
    let mut text = String::new();
    let mut targets = Vec::new();
    for (at, stage) in ours.stages.iter().enumerate() {
        let beside = theirs.and_then(|all| all.stages.get(at));
        writeln!(
            text,
            "\n{} one-container pods, containerd {}, {} cores, CPU over {} s.\n\n\
             | | mainstay | upstream's kubelet 1.37.1 | upstream / mainstay |\n| --- | --- | --- | --- |",
            stage.pods,
            version(plan),
            std::thread::available_parallelism().map_or(0, usize::from),
            plan.idle.as_secs(),
        )
        .ok();
        let mut row = |what: &str, ours: Cell, theirs: Option<Cell>| {
            let ratio =
                theirs.as_ref().map_or("–".into(), |(theirs, _)| format!("{:.1} ×", theirs / ours.0));
            let theirs = theirs.map_or("–".into(), |(_, text)| text);
            writeln!(text, "| {what} | {} | {theirs} | {ratio} |", ours.1).ok();
        };
        let memory = |kib: u64| (kib_to_mb(kib), format!("{:.1} MB", kib_to_mb(kib)));
        let percent = |value: f64| (value, format!("{value:.2} %"));
        let of = |value: &dyn Fn(&Rest) -> Cell| (value(&stage.rest), beside.map(|it| value(&it.rest)));
        let (mine, other) = of(&|rest| memory(rest.rss_kib));
        row("resident memory at rest", mine, other);
        let (mine, other) = of(&|rest| memory(rest.kernel_kib));
        row("kernel memory of the agent's cgroup", mine, other);
        let (mine, other) = of(&|rest| percent(rest.idle_cpu));
        row("CPU at rest, of one core", mine, other);
        let (mine, other) = of(&|rest| percent(rest.runtime_cpu));
        row("the runtime's CPU meanwhile", mine, other);
        let other = beside.map(|it| (&it.scrapes, &it.rest));
        scrape_rows(&mut row, (&stage.scrapes, &stage.rest), other);
        if at + 1 == ours.stages.len() {
            let time = |it: &Stages| (it.restart.as_secs_f64(), format!("{:.3} s", it.restart.as_secs_f64()));
            row("SIGKILL and start → `/pods` complete", time(ours), theirs.map(time));
        }
        let mut judged = metrics::targets(stage.pods, (&stage.scrapes, &stage.rest), other);
        judged.extend(targets::at_rest(stage.pods, &stage.rest, beside.map(|it| &it.rest)));
        if at + 1 == ours.stages.len() {
            judged.push(targets::restarted(stage.pods, ours.restart, theirs.map(|it| it.restart)));
            judged.push(targets::nothing_partial(ours.partial));
            judged.extend(metrics::growth(&ours.stages));
        }
        writeln!(
            text,
            "\n| target | bound | measured | |\n| --- | --- | --- | --- |\n{}",
            self::judged(&judged)
        )
        .ok();
        targets.extend(judged);
    }
    println!("{text}");
    if plan.write {
        write_growth(&text)?;
    }
    crate::none_missed(&targets)
}

fn version(plan: &Plan) -> &'static str {
    if plan.flavor == mainstay_testkit::Flavor::Debian16 { "1.6" } else { "2.4" }
}

/// `--grpc`: what the watchers and the callers saw.
pub(crate) fn print_grpc(plan: &Plan, figures: &GrpcFigures) -> Result<()> {
    let targets = figures.targets();
    let text = format!(
        "\n{} one-container pods, containerd {}, {} cores.\n\n| target | bound | measured | |\n| --- | --- | --- | --- |\n{}",
        figures.pods,
        version(plan),
        std::thread::available_parallelism().map_or(0, usize::from),
        judged(&targets)
    );
    println!("{text}");
    if plan.write {
        write_part(
            GRPC,
            &format!("Written by `cargo xtask bench --grpc --pods N --write` on {}.\n{text}", today()),
        )?;
    }
    crate::none_missed(&targets)
}

/// `--cluster`: a node of a real cluster beside upstream's.
pub(crate) fn print_cluster(plan: &Plan, (ours, theirs): &Clustered) -> Result<()> {
    let theirs = theirs.as_ref();
    let targets = ours.targets(theirs);
    let mut table = String::new();
    let mut row = |what: &str, of: &dyn Fn(&ClusterFigures) -> Cell| {
        let (mine, other) = (of(ours), theirs.map(of));
        let ratio = other.as_ref().map_or("–".into(), |(other, _)| format!("{:.1} ×", other / mine.0));
        let other = other.map_or("–".into(), |(_, text)| text);
        writeln!(table, "| {what} | {} | {other} | {ratio} |", mine.1).ok();
    };
    let time = |value: Duration| (value.as_secs_f64(), format!("{:.1} s", value.as_secs_f64()));
    row("all Ready, as the API server has it", &|it| time(it.ready));
    row("API requests per pod (counted by the API server)", &|it| {
        (it.requests, format!("{:.2}", it.requests))
    });
    row("the agent's own CPU time", &|it| time(it.cpu));
    row("resident memory then", &|it| (kib_to_mb(it.rss_kib), format!("{:.1} MB", kib_to_mb(it.rss_kib))));
    if let Some((complete, partial)) = ours.away {
        let complete = complete.as_secs_f64();
        writeln!(table, "| API server away, SIGKILL and start → everything complete ({partial} answers before that were not) | {complete:.2} s | – | – |").ok();
    }
    let text = format!(
        "\n{} pods that are scheduled at once, containerd {}, {} cores, the control plane on the same machine.\n\n\
         | | mainstay | upstream's kubelet 1.37.1 | upstream / mainstay |\n| --- | --- | --- | --- |\n{table}\n\
         | target | bound | measured | |\n| --- | --- | --- | --- |\n{}",
        plan.cluster,
        version(plan),
        std::thread::available_parallelism().map_or(0, usize::from),
        judged(&targets)
    );
    println!("{text}");
    if plan.write {
        let intro = format!("Written by `cargo xtask bench --cluster --write` on {}.\n", today());
        write_part(CLUSTER, &(intro + &text))?;
    }
    crate::none_missed(&targets)
}

/// Where the page goes on with what `--cluster` wrote.
const CLUSTER: &str = "\n## In a cluster\n";
/// And with what `--metrics` wrote.
const GROWTH: &str = "\n## With more pods\n";
/// And with what `--grpc` wrote.
const GRPC: &str = "\n## gRPC\n";

fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// Puts the tables behind what the full run wrote.
fn write_growth(text: &str) -> Result<()> {
    let intro = format!(
        "Written by `cargo xtask bench --metrics --pods N --write` on {}: one node that is filled up.\n",
        today()
    );
    write_part(GROWTH, &(intro + text))
}

fn write_part(heading: &str, text: &str) -> Result<()> {
    let path = mainstay_testkit::workspace_root().join("docs/benchmarks.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    std::fs::write(&path, with_part(&page, heading, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The page with this part in the place of what it was, or behind everything.
fn with_part(page: &str, heading: &str, text: &str) -> String {
    let (before, after) = match page.split_once(heading) {
        None => (page, ""),
        Some((before, rest)) => (before, rest.find(PART).map_or("", |at| rest.get(at..).unwrap_or_default())),
    };
    format!("{}\n{heading}\n{}\n{after}", before.trim_end(), text.trim_end())
}

/// What each part begins with.
const PART: &str = "\n## ";

/// What `--metrics` and `--grpc` wrote before.
fn parts_before(path: &std::path::Path) -> String {
    let page = std::fs::read_to_string(path).unwrap_or_default();
    page.split_once(PART).map(|(_, rest)| format!("{PART}{rest}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_page_takes_the_place_of_what_it_was() {
        let page = "# B\n\nwhole\n\n## With more pods\n\nold\n\n## gRPC\n\nother\n";
        assert_eq!(
            with_part(page, GROWTH, "new\n\n"),
            "# B\n\nwhole\n\n## With more pods\n\nnew\n\n## gRPC\n\nother\n"
        );
        assert_eq!(
            with_part(page, GRPC, "new"),
            "# B\n\nwhole\n\n## With more pods\n\nold\n\n## gRPC\n\nnew\n"
        );
        assert_eq!(with_part("# B\n", GRPC, "new"), "# B\n\n## gRPC\n\nnew\n");
    }
}
