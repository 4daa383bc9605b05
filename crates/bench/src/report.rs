//! The table.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context, Result};

use crate::{
    Plan, Probed,
    agent::{Figures, kib_to_mb, median},
    cluster::Clustered,
    floor::Floor,
    targets::Target,
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
    row("resident memory at rest", None, memory(mainstay.rss_kib), upstream.map(|u| memory(u.rss_kib)));
    row("peak resident memory", None, memory(mainstay.peak_kib), upstream.map(|u| memory(u.peak_kib)));
    row(
        "resident memory after a restart",
        None,
        memory(mainstay.restarted_kib),
        upstream.map(|u| memory(u.restarted_kib)),
    );
    row("CPU at rest, of one core", None, percent(mainstay.idle_cpu), upstream.map(|u| percent(u.idle_cpu)));
    row(
        "the runtime's CPU meanwhile",
        None,
        percent(mainstay.runtime_cpu),
        upstream.map(|u| percent(u.runtime_cpu)),
    );
    let list =
        |duration: Duration| (duration.as_secs_f64(), format!("{:.2} ms", duration.as_secs_f64() * 1e3));
    row("`/pods`, new connection, median", None, list(mainstay.list), upstream.map(|u| list(u.list)));
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

    let mut judged = String::new();
    for Target { what, bound, measured, met } in targets {
        let word = if *met { "pass" } else { "MISS" };
        writeln!(judged, "| {what} | {bound} | {measured} | {word} |").ok();
    }

    let text = format!(
        "{} one-container pods, containerd {}, {} cores, medians of {} rounds, CPU over {} s.\n\n\
         | | floor (bare CRI client) | mainstay | upstream's kubelet 1.37.1 | upstream / mainstay |\n| --- | --- | --- | --- | --- |\n{table}\n\
         | target | bound | measured | |\n| --- | --- | --- | --- |\n{judged}",
        plan.pods,
        if plan.flavor == mainstay_testkit::Flavor::Debian16 { "1.6" } else { "2.4" },
        std::thread::available_parallelism().map_or(0, usize::from),
        plan.rounds,
        plan.idle.as_secs(),
    );
    println!("\n{text}");
    if plan.write {
        let page = format!(
            "# Benchmarks\n\nWritten by `cargo xtask bench --write` on {}. Absolute figures move with the machine; the ratio in one run counts.\n\
             The floor is what the same CRI calls need when nothing but a bare client makes them, measured before and after mainstay.\n\n{text}",
            jiff::Timestamp::now().strftime("%Y-%m-%d")
        );
        let path = mainstay_testkit::workspace_root().join("docs/benchmarks.md");
        std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
