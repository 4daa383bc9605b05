//! What must be reached, and whether it was.
//!
//! Each target was set beside what upstream's kubelet needed on the same machine. Absolute figures move with the machine, so
//! a target is met by its figure or, where upstream ran too, by the same share of what upstream needed in this run.

use std::time::Duration;

use crate::{
    Plan,
    agent::{Figures, Rest, kib_to_mb, median},
    floor::Floor,
    metrics,
};

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// What is measured.
    pub(crate) what: &'static str,
    /// The bounds, in words.
    pub(crate) bound: String,
    /// What came out.
    pub(crate) measured: String,
    /// Whether that is within one of the bounds.
    pub(crate) met: bool,
}

/// A figure and what upstream needed when the figure was set.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    pub(crate) figure: f64,
    pub(crate) upstream: f64,
    pub(crate) unit: &'static str,
}

/// All targets that this run can tell about. A start may also take as long as the runtime itself needs, plus 40 ms and 10 %.
pub(crate) fn judge(
    plan: &Plan,
    floor: &Floor,
    mainstay: &Figures,
    upstream: Option<&Figures>,
) -> Vec<Target> {
    let share = share(plan.pods);
    let seconds = Duration::as_secs_f64;
    let middle = |values: &[Duration]| seconds(&median(&mut values.to_vec()));
    let of = |value: fn(&Figures) -> f64| (value(mainstay), upstream.map(value));
    let set = |figure, upstream, unit| Set { figure, upstream, unit };
    let single = (middle(&mainstay.single), upstream.map(|figures| middle(&figures.single)));
    let mut all = vec![
        limit("static file → Running", single, set(0.25, 0.4, "s"), Some(middle(&floor.single))),
        limit(
            "all pods at once → all Running",
            of(|it| it.all.as_secs_f64()),
            set(10.0 + 40.0 * share, 12.0 + 48.0 * share, "s"),
            Some(seconds(&floor.all)),
        ),
    ];
    all.extend(at_rest(plan.pods, &mainstay.rest, upstream.map(|figures| &figures.rest)));
    all.push(restarted(plan.pods, mainstay.restart, upstream.map(|figures| figures.restart)));
    all.push(nothing_partial(mainstay.partial));
    let theirs = upstream.map(|figures| (&figures.scrapes, &figures.rest));
    all.extend(metrics::targets(plan.pods, (&mainstay.scrapes, &mainstay.rest), theirs));
    if let Some(upstream) = upstream {
        // A tick of the clock by which it is counted is no difference.
        let bound = upstream.rest.runtime_cpu + 0.1;
        all.push(Target {
            what: "the runtime's CPU meanwhile, not above upstream's",
            bound: format!("≤ {bound:.2} %"),
            measured: format!("{:.2} %", mainstay.rest.runtime_cpu),
            met: mainstay.rest.runtime_cpu <= bound,
        });
    }
    all
}

/// Memory and CPU of a node that is left in peace.
pub(crate) fn at_rest(pods: usize, ours: &Rest, theirs: Option<&Rest>) -> [Target; 2] {
    let share = share(pods);
    let memory = |rest: &Rest| kib_to_mb(rest.rss_kib);
    [
        limit(
            "resident memory at rest",
            (memory(ours), theirs.map(memory)),
            Set { figure: 20.0 + 20.0 * share, upstream: 121.0 + 106.0 * share, unit: "MB" },
            None,
        ),
        limit(
            "CPU at rest, of one core",
            (ours.idle_cpu, theirs.map(|rest| rest.idle_cpu)),
            Set { figure: 0.5 + 1.5 * share, upstream: 5.0 + 16.8 * share, unit: "%" },
            None,
        ),
    ]
}

/// How soon a new process knows all.
pub(crate) fn restarted(pods: usize, ours: Duration, theirs: Option<Duration>) -> Target {
    let share = share(pods);
    limit(
        "SIGKILL and start → `/pods` complete",
        (ours.as_secs_f64(), theirs.map(|time| time.as_secs_f64())),
        Set { figure: 1.0 + share, upstream: 12.7 + 23.3 * share, unit: "s" },
        None,
    )
}

/// The same where the API server is away, with everything that tells of pods: within a second, however many there are.
pub(crate) fn restarted_alone(complete: Duration) -> Target {
    Target {
        what: "API server away, SIGKILL and start → `/pods`, `/node`, Pods and PodInfo complete",
        bound: "≤ 1.00 s".into(),
        measured: format!("{:.2} s", complete.as_secs_f64()),
        met: complete <= Duration::from_secs(1),
    }
}

/// That no list was served that was not complete.
pub(crate) fn nothing_partial(partial: usize) -> Target {
    Target {
        what: "lists served before that were not complete",
        bound: "0".into(),
        measured: partial.to_string(),
        met: partial == 0,
    }
}

/// Probes at a period of a second are asked once a second: one in twenty may be late.
pub(crate) fn probes_kept_up(probes: usize, per_second: f64) -> Target {
    let bound = 0.95 * f64::from(u32::try_from(probes).unwrap_or(u32::MAX));
    Target {
        what: "probes answered, at one a second each",
        bound: format!("≥ {bound:.0} /s"),
        measured: format!("{per_second:.0} /s"),
        met: per_second >= bound,
    }
}

/// What probes cost: clearly less than upstream's.
pub(crate) fn probes_are_cheap(ours: f64, upstream: f64) -> Target {
    let bound = 0.75 * upstream;
    Target {
        what: "CPU for all these probes, of one core",
        bound: format!("≤ {bound:.2} %, 0.75 of upstream's"),
        measured: format!("{ours:.2} %"),
        met: ours <= bound,
    }
}

/// How far the pods are on the way from 100, for which targets are given, to 500, for which others are.
pub(crate) fn share(pods: usize) -> f64 {
    f64::from(u32::try_from(pods.saturating_sub(100)).unwrap_or(u32::MAX)) / 400.0
}

pub(crate) fn limit(
    what: &'static str,
    (measured, upstream): (f64, Option<f64>),
    set: Set,
    floor: Option<f64>,
) -> Target {
    let Set { figure, unit, .. } = set;
    let mut bounds = vec![(figure, String::new())];
    if let Some(upstream) = upstream {
        let part = figure / set.upstream;
        bounds.push((upstream * part, format!(", {part:.2} of upstream's")));
    }
    if let Some(floor) = floor {
        bounds.push((floor * 1.1 + 0.04, ", the floor's and a bit".into()));
    }
    let words: Vec<String> = bounds.iter().map(|(bound, why)| format!("{bound:.2} {unit}{why}")).collect();
    // Which of the bounds it was that is met says more than that one is.
    let by = match bounds.iter().find(|(bound, _)| measured <= *bound) {
        Some((_, why)) if !why.is_empty() => format!(" (met only by{})", why.trim_start_matches(',')),
        _ => String::new(),
    };
    Target {
        what,
        bound: format!("≤ {}", words.join(" or ")),
        measured: format!("{measured:.2} {unit}{by}"),
        met: bounds.iter().any(|(bound, _)| measured <= *bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_in_twenty_may_be_late() {
        assert!(probes_kept_up(500, 475.0).met);
        let missed = probes_kept_up(500, 474.4);
        assert_eq!(
            (missed.met, missed.bound.as_str(), missed.measured.as_str()),
            (false, "≥ 475 /s", "474 /s")
        );
        assert!(probes_are_cheap(15.0, 20.0).met && !probes_are_cheap(15.1, 20.0).met);
    }

    #[test]
    fn bounds_grow_with_the_pods() {
        let shares: Vec<String> = [10, 100, 300, 500].map(|pods| format!("{:.1}", share(pods))).to_vec();
        assert_eq!(shares, ["0.0", "0.0", "0.5", "1.0"]);
    }

    #[test]
    fn a_target_is_met_by_its_figure_by_the_share_of_upstreams_or_by_the_floor() {
        let set = Set { figure: 20.0, upstream: 100.0, unit: "MB" };
        let met = |measured, upstream, floor| limit("x", (measured, upstream), set, floor).met;
        assert!(met(20.0, None, None));
        assert!(!met(20.1, None, None));
        assert!(met(24.0, Some(120.0), None), "a slower machine");
        assert!(!met(25.0, Some(120.0), None));
        assert!(met(30.0, None, Some(28.0)), "the runtime itself needs as long");
        let said = |measured, upstream, floor| limit("x", (measured, upstream), set, floor).measured;
        assert_eq!(said(19.0, Some(120.0), None), "19.00 MB");
        assert_eq!(said(24.0, Some(120.0), None), "24.00 MB (met only by 0.20 of upstream's)");
        assert_eq!(said(30.0, None, Some(28.0)), "30.00 MB (met only by the floor's and a bit)");
        let missed = limit("x", (31.0, Some(120.0)), set, Some(28.0));
        assert_eq!(
            (missed.met, missed.bound.as_str(), missed.measured.as_str()),
            (
                false,
                "≤ 20.00 MB or 24.00 MB, 0.20 of upstream's or 30.84 MB, the floor's and a bit",
                "31.00 MB"
            )
        );
    }
}
