//! Counters with labels, for parts that are not the HTTP server and are asked after on `/metrics`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Name and meaning of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterName {
    /// As on `/metrics`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
}

/// Names and values of a counter's labels, in the order in which they are written.
pub type CounterLabels = Vec<(&'static str, &'static str)>;

/// All series. One appears with its first count.
#[derive(Debug, Default)]
pub struct Counters {
    series: Mutex<BTreeMap<CounterName, BTreeMap<CounterLabels, u64>>>,
}

impl Counters {
    /// Makes a series stand at zero until something is counted: what begins with its first count has no rate.
    pub fn begin(&self, counter: CounterName, labels: &[(&'static str, &'static str)]) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.entry(counter).or_default().entry(labels.to_vec()).or_default();
    }

    /// One more.
    pub fn add(&self, counter: CounterName, labels: &[(&'static str, &'static str)]) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        *series.entry(counter).or_default().entry(labels.to_vec()).or_default() += 1;
    }

    /// All of them, sorted by name and labels.
    #[must_use]
    pub fn read(&self) -> BTreeMap<CounterName, BTreeMap<CounterLabels, u64>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_appears_with_its_first_count() {
        const CALLS: CounterName = CounterName { name: "calls_total", help: "Calls" };
        let counters = Counters::default();
        assert!(counters.read().is_empty());
        counters.add(CALLS, &[("code", "OK")]);
        counters.add(CALLS, &[("code", "OK")]);
        counters.begin(CALLS, &[]);
        assert_eq!(counters.read()[&CALLS][&vec![]], 0);
        counters.add(CALLS, &[]);
        let read = counters.read();
        let series: Vec<_> = read[&CALLS].iter().map(|(labels, count)| (labels.as_slice(), *count)).collect();
        assert_eq!(series, [(&[][..], 1), (&[("code", "OK")][..], 2)]);
    }
}
