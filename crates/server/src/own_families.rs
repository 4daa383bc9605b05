//! The families of `/metrics` beside those of requests and of calls to the runtime: what the node has, what its parts have
//! counted, and the process itself. A table for each subject, from which they are written and `docs/metrics.md` is made.

mod certificates;
mod containers;
mod images;
mod itself;
mod managers;
mod node;
mod pods;
mod process;
mod volumes;

use std::sync::Arc;

use mainstay_types::{
    Assignments, Counter, DurationCounts, Filesystems, NodeCounters, NodeSnapshot, Samples,
};

use crate::exposition::{Exposition, Kind};

pub(crate) use process::{Own, formats};

/// What is known of the process from its start on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// 1 or 2; 0 where nobody knows.
    pub cgroup_version: u8,
    /// Feature gates: name, stage as metrics label it, whether it is on.
    pub gates: Arc<[(&'static str, &'static str, bool)]>,
}

/// What the families are written from.
pub(crate) struct Source<'a> {
    pub(crate) snapshot: Option<&'a NodeSnapshot>,
    pub(crate) samples: &'a Samples,
    pub(crate) disks: &'a Filesystems,
    pub(crate) counters: &'a NodeCounters,
    pub(crate) facts: &'a Facts,
    pub(crate) events_dropped: u64,
    /// What became of spans; `None` where nobody wants any.
    pub(crate) traces: Option<mainstay_trace::Counts>,
    pub(crate) assignments: &'a Assignments,
    pub(crate) own: Own,
}

/// One family.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    write: fn(&mut Lines<'_>, &Source<'_>),
}

/// The samples of one family. HELP and TYPE come with the first: a family that has nothing to say is not there.
struct Lines<'a> {
    out: &'a mut Exposition,
    family: &'a Family,
    begun: bool,
}

impl Lines<'_> {
    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.out.family(self.family.name, self.family.help, self.family.kind);
        }
    }

    fn put(&mut self, labels: &[(&str, &str)], value: f64) {
        self.begin();
        let labels = if labels.is_empty() { String::new() } else { crate::exposition::labels(labels) };
        self.out.reading(self.family.name, &labels, value, None);
    }

    fn count(&mut self, labels: &[(&str, &str)], value: u64) {
        self.put(labels, number(value));
    }

    /// One without labels is there from the beginning, as upstream's: what begins with its first count has no rate.
    fn durations(&mut self, labels: &[(&str, &str)], counts: DurationCounts) {
        if counts.count > 0 || labels.is_empty() {
            self.begin();
            self.out.histogram(self.family.name, labels, counts.buckets, (counts.sum, counts.count));
        }
    }

    fn counters<const N: usize>(&mut self, names: [&str; N], all: &[([&'static str; N], Arc<Counter>)]) {
        for (values, counter) in all {
            let labels: Vec<(&str, &str)> = names.into_iter().zip(values.iter().copied()).collect();
            self.count(&labels, counter.get());
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus' numbers are floats, and 2^53 of anything is far away"
)]
const fn number(value: u64) -> f64 {
    value as f64
}

/// All of them, by their subjects.
const TABLES: [&[Family]; 8] = [
    certificates::FAMILIES,
    containers::FAMILIES,
    images::FAMILIES,
    itself::FAMILIES,
    managers::FAMILIES,
    node::FAMILIES,
    pods::FAMILIES,
    volumes::FAMILIES,
];

/// All of them, in no order.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    TABLES.into_iter().flatten()
}

/// Writes all that have something to say, in the order of [`families`]; [`in_order`] is for what was written by all.
pub(crate) fn write(out: &mut Exposition, source: &Source<'_>) {
    for family in families() {
        if out.takes(family.name) {
            let mut lines = Lines { out, family, begun: false };
            (family.write)(&mut lines, source);
        }
    }
}

/// Puts families that were written by several in the order of their names.
pub(crate) fn in_order(text: &str) -> String {
    let mut blocks: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.get(1..).and_then(|tail| tail.find("\n# HELP ")) {
        let (block, tail) = rest.split_at(at + 2);
        blocks.push(block);
        rest = tail;
    }
    blocks.push(rest);
    blocks.sort_unstable();
    blocks.concat()
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
