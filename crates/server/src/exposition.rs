//! The Prometheus text format 0.0.4: families with HELP and TYPE once, then their samples.
//!
//! The writer puts down what it is given in the order in which it is given: families sorted by name and labels in
//! alphabetical order are for the caller to see to, as its tables are made that way. OpenMetrics is not offered, since it
//! would rename upstream's counters.

use std::{
    fmt::{Display, Write as _},
    sync::Arc,
};

use jiff::Timestamp;

use crate::choice::FamilyChoice;

/// What kind of family it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A text in the making.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
    /// Nothing is all.
    choice: Option<Arc<FamilyChoice>>,
}

impl Exposition {
    /// A text for which somebody chose among the families.
    pub(crate) fn of(choice: &Arc<FamilyChoice>) -> Self {
        Self { choice: Some(Arc::clone(choice)), ..Self::default() }
    }

    /// Whether the family is to be served; who writes one asks first, once for all its samples.
    pub(crate) fn takes(&self, family: &str) -> bool {
        self.choice.as_ref().is_none_or(|choice| choice.takes(family))
    }

    /// Whether what upstream has renamed is served by its old name, too.
    pub(crate) fn old_names(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.old_names)
    }

    /// Begins a family.
    pub(crate) fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// One sample; values of labels are escaped here.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.label(i, label, text);
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.put(format_args!("{end} {value}\n"));
    }

    /// One sample, with the time of its reading if it has one. The labels are rendered already: `{…}`, or nothing.
    pub(crate) fn reading(&mut self, name: &str, labels: &str, value: f64, at: Option<Timestamp>) {
        self.text.push_str(name);
        self.text.push_str(labels);
        self.text.push(' ');
        float(&mut self.text, value);
        match at {
            Some(at) => self.put(format_args!(" {}\n", at.as_millisecond())),
            None => self.text.push('\n'),
        }
    }

    /// The samples of one histogram: `buckets` are upper bounds with how many were at most that.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (sum, count): (f64, u64),
    ) {
        let bucket = format!("{name}_bucket");
        let mut with_bound = labels.to_vec();
        for (bound, below) in buckets {
            let bound = bound.to_string();
            with_bound.truncate(labels.len());
            self.sample(&bucket, &[with_bound.as_slice(), &[("le", bound.as_str())]].concat(), below);
        }
        self.sample(&bucket, &[with_bound.as_slice(), &[("le", "+Inf")]].concat(), count);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// The whole.
    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn label(&mut self, at: usize, label: &str, value: &str) {
        self.text.push(if at == 0 { '{' } else { ',' });
        self.text.push_str(label);
        self.text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.text.write_fmt(text).ok();
    }
}

/// Labels as they stand in a sample, made once and used for many.
pub(crate) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut out = Exposition::default();
    for (i, (label, value)) in pairs.iter().enumerate() {
        out.label(i, label, value);
    }
    out.text.push('}');
    out.text
}

/// A number as upstream's writer puts it: the shortest that reads back the same, with an exponent from seven digits on.
pub(crate) fn float(out: &mut String, value: f64) {
    if value == 0.0 {
        out.push('0');
        return;
    }
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        return;
    }
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    // Writing to a string cannot fail.
    if (-4..6).contains(&exponent) {
        write!(out, "{value}").ok();
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_as_upstream_puts_them() {
        for expected in [
            "0",
            "1",
            "-1",
            "0.104919544",
            "6.639955412",
            "520192",
            "999999",
            "1e+06",
            "1.79473664729144e+09",
            "3.3554432e+07",
            "4.88615936e+08",
            "3921.721015274",
            "0.0001",
            "1e-05",
            "1.5e+300",
            "NaN",
            "+Inf",
            "-Inf",
        ] {
            let mut out = String::new();
            float(&mut out, expected.parse().unwrap());
            assert_eq!(out, expected);
        }
        assert_eq!(labels(&[("a", "x\"y"), ("b", "")]), "{a=\"x\\\"y\",b=\"\"}");
    }

    #[test]
    fn as_prometheus_reads_it() {
        let mut text = Exposition::default();
        text.family("a_total", "[BETA] Help.", Kind::Counter);
        text.sample("a_total", &[("pod", "p\"\\\n"), ("uid", "")], 3);
        text.family("b", "Help.", Kind::Histogram);
        text.histogram("b", &[("x", "y")], [(0.005, 1), (1.0, 2)], (1.25, 3));
        text.family("c", "Help.", Kind::Gauge);
        text.sample("c", &[], 1.5);
        let expected = "# HELP a_total [BETA] Help.\n# TYPE a_total counter\na_total{pod=\"p\\\"\\\\\\n\",uid=\"\"} 3\n\
            # HELP b Help.\n# TYPE b histogram\nb_bucket{x=\"y\",le=\"0.005\"} 1\nb_bucket{x=\"y\",le=\"1\"} 2\n\
            b_bucket{x=\"y\",le=\"+Inf\"} 3\nb_sum{x=\"y\"} 1.25\nb_count{x=\"y\"} 3\n\
            # HELP c Help.\n# TYPE c gauge\nc 1.5\n";
        assert_eq!(text.finish(), expected);
    }
}
