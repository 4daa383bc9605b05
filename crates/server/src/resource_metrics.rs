//! `/metrics/resource`: cpu and memory of the node, its pods and their containers, as the metrics server wants them.
//!
//! The text is made once for each round of readings, by the first who asks for it; who asks again gets the same bytes, with
//! the times at which the cgroups were read.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mainstay_types::{PodSamples, Sample, Samples};

use crate::{
    choice::FamilyChoice,
    exposition::{Exposition, Kind, labels},
    representation::KeptText,
};

/// The newest text of each version.
#[derive(Debug, Default)]
pub(crate) struct ResourceTexts {
    current: Mutex<Option<(u64, Arc<KeptText>)>>,
    v1alpha1: Mutex<Option<(u64, Arc<KeptText>)>>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Upstream's of today.
    Current,
    /// Upstream's until 1.19: fewer families, and everything a gauge.
    V1Alpha1,
}

impl ResourceTexts {
    /// The text for these readings.
    pub(crate) fn of(
        &self,
        samples: &Samples,
        version: Version,
        choice: &Arc<FamilyChoice>,
    ) -> Arc<KeptText> {
        let kept = match version {
            Version::Current => &self.current,
            Version::V1Alpha1 => &self.v1alpha1,
        };
        // Held while the text is made: whoever asks meanwhile waits for it rather than make it too.
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((generation, text)) if *generation == samples.generation => Arc::clone(text),
            _ => {
                let text = KeptText::new(Bytes::from(render(samples, version, Exposition::of(choice))));
                *kept = Some((samples.generation, Arc::clone(&text)));
                text
            }
        }
    }
}

/// One line to be: rendered labels and what was read.
struct Row<'a> {
    labels: String,
    sample: &'a Sample,
    started: f64,
}

type Value = fn(&Row<'_>) -> Option<f64>;

/// A family: its name, what it says, whether it counts, how it is read, and whether it has the time of the reading.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: Value,
    timed: bool,
}

const fn family(name: &'static str, help: &'static str, kind: Kind, value: Value) -> Family {
    Family { name, help, kind, value, timed: true }
}

const CONTAINERS: [Family; 5] = [
    family(
        "container_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        Kind::Counter,
        cpu_seconds,
    ),
    family(
        "container_memory_working_set_bytes",
        "[STABLE] Current working set of the container in bytes",
        Kind::Gauge,
        working_set,
    ),
    Family {
        name: "container_start_time_seconds",
        help: "[STABLE] Start time of the container since unix epoch in seconds",
        kind: Kind::Gauge,
        value: |row| (row.started > 0.0).then_some(row.started),
        timed: false,
    },
    family(
        "container_swap_limit_bytes",
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
        Kind::Gauge,
        |row| row.sample.limits.swap.map(bytes),
    ),
    family(
        "container_swap_usage_bytes",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        Kind::Gauge,
        swap,
    ),
];

const NODE: [Family; 3] = [
    family(
        "node_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        Kind::Counter,
        cpu_seconds,
    ),
    family(
        "node_memory_working_set_bytes",
        "[STABLE] Current working set of the node in bytes",
        Kind::Gauge,
        working_set,
    ),
    family(
        "node_swap_usage_bytes",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        Kind::Gauge,
        swap,
    ),
];

const PODS: [Family; 3] = [
    family(
        "pod_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        Kind::Counter,
        cpu_seconds,
    ),
    family(
        "pod_memory_working_set_bytes",
        "[STABLE] Current working set of the pod in bytes",
        Kind::Gauge,
        working_set,
    ),
    family(
        "pod_swap_usage_bytes",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
        Kind::Gauge,
        swap,
    ),
];

fn cpu_seconds(row: &Row<'_>) -> Option<f64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a count of nanoseconds beyond 2^53 is 104 days off by one"
    )]
    let seconds = row.sample.cpu.usage_ns as f64 / 1e9;
    Some(seconds)
}

fn working_set(row: &Row<'_>) -> Option<f64> {
    row.sample.memory.map(|memory| bytes(memory.working_set))
}

fn swap(row: &Row<'_>) -> Option<f64> {
    row.sample.memory.map(|memory| bytes(memory.swap))
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are floats; nobody has 2^53 bytes")]
const fn bytes(value: u64) -> f64 {
    value as f64
}

/// Whether the metrics server would take it: one number that is 0 makes it drop the whole pod, so such a pod is left out
/// until all its numbers are there.
fn is_usable(pod: &PodSamples) -> bool {
    let measured = |sample: &Sample| {
        sample.cpu.usage_ns > 0 && sample.memory.is_some_and(|memory| memory.working_set > 0)
    };
    pod.complete
        && !pod.containers.is_empty()
        && pod.containers.iter().all(|container| measured(&container.sample))
}

fn render(samples: &Samples, version: Version, mut out: Exposition) -> String {
    let mut pods: Vec<_> = samples.pods.values().filter(|pod| is_usable(pod)).collect();
    // Of two pods of one name, as while one replaces the other, one is shown: the one that came later. Both are read in one round, so
    // that the time of the reading says nothing.
    let made_at = |pod: &PodSamples| pod.sandbox.as_ref().map(|sandbox| sandbox.created_at);
    pods.sort_by(|a, b| (&a.full_name, made_at(a)).cmp(&(&b.full_name, made_at(b))));
    pods.dedup_by(|later, kept| {
        let same = later.full_name == kept.full_name;
        if same {
            *kept = later;
        }
        same
    });
    let mut containers: Vec<_> =
        pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container))).collect();
    containers
        .sort_by(|(a_pod, a), (b_pod, b)| (&a.name, &a_pod.full_name).cmp(&(&b.name, &b_pod.full_name)));
    let containers: Vec<Row<'_>> = containers
        .into_iter()
        .map(|(pod, container)| Row {
            labels: labels(&[
                ("container", container.name.as_str()),
                ("namespace", &pod.full_name.namespace),
                ("pod", &pod.full_name.name),
            ]),
            sample: &container.sample,
            started: container.created_at.as_duration().as_secs_f64(),
        })
        .collect();
    let root: Vec<Row<'_>> =
        samples.root.iter().map(|sample| Row { labels: String::new(), sample, started: 0.0 }).collect();
    let pods: Vec<Row<'_>> = pods
        .iter()
        .map(|pod| Row {
            labels: labels(&[("namespace", &pod.full_name.namespace), ("pod", &pod.full_name.name)]),
            sample: &pod.pod,
            started: 0.0,
        })
        .collect();
    let failed = samples.root.is_none();
    match version {
        Version::Current => {
            for (families, rows) in [(&CONTAINERS[..], &containers), (&NODE[..], &root), (&PODS[..], &pods)] {
                families.iter().for_each(|family| write(&mut out, family, family.kind, rows));
            }
            let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
            scrape_error(&mut out, "resource_scrape_error", help, failed);
        }
        Version::V1Alpha1 => {
            for (families, rows) in [(&CONTAINERS[..2], &containers), (&NODE[..2], &root)] {
                families.iter().for_each(|family| write(&mut out, family, Kind::Gauge, rows));
            }
            let help = "1 if there was an error while getting container metrics, 0 otherwise";
            scrape_error(&mut out, "scrape_error", help, failed);
        }
    }
    out.finish()
}

fn scrape_error(out: &mut Exposition, name: &str, help: &str, failed: bool) {
    if out.takes(name) {
        out.family(name, help, Kind::Gauge);
        out.reading(name, "", f64::from(u8::from(failed)), None);
    }
}

fn write(out: &mut Exposition, family: &Family, kind: Kind, rows: &[Row<'_>]) {
    if !out.takes(family.name) {
        return;
    }
    let mut begun = false;
    for row in rows {
        let Some(value) = (family.value)(row) else { continue };
        if !begun {
            out.family(family.name, family.help, kind);
            begun = true;
        }
        out.reading(family.name, &row.labels, value, family.timed.then_some(row.sample.at));
    }
}

/// What there is, of today's version.
#[cfg(test)]
pub(crate) fn families() -> impl Iterator<Item = (&'static str, Kind)> {
    CONTAINERS.iter().chain(&NODE).chain(&PODS).map(|family| (family.name, family.kind))
}

#[cfg(test)]
mod tests;
