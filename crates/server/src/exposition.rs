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
        let mut text = String::new();
        for (bound, below) in buckets {
            text.clear();
            float(&mut text, bound);
            let bound = &text;
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
        let mut rest = value;
        while let Some((before, at, after)) = rest
            .find(['\\', '"', '\n'])
            .and_then(|at| Some((rest.get(..at)?, rest.as_bytes().get(at)?, rest.get(at + 1..)?)))
        {
            self.text.push_str(before);
            self.text.push_str(match at {
                b'\\' => "\\\\",
                b'"' => "\\\"",
                _ => "\\n",
            });
            rest = after;
        }
        self.text.push_str(rest);
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
    if value.fract() == 0.0 && value.abs() < EXACT {
        whole(out, value);
        return;
    }
    let mut text = Digits::default();
    // What does not fit is no number.
    write!(text, "{value:e}").ok();
    let (mantissa, exponent) = text.as_str().split_once('e').unwrap_or((text.as_str(), "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        scaled(out, mantissa, exponent);
        return;
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (first, rest) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    out.push_str(sign);
    if exponent < 0 {
        let zeros = usize::try_from(-1 - exponent).unwrap_or_default();
        out.push_str("0.");
        out.push_str("000".get(..zeros).unwrap_or_default());
        out.push_str(first);
        out.push_str(rest);
    } else {
        // One with nothing behind the point has gone another way.
        let (before, behind) =
            usize::try_from(exponent).ok().and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, "0"));
        out.push_str(first);
        out.push_str(before);
        out.push('.');
        out.push_str(behind);
    }
}

/// Below this, every whole number is a float of its own, and its digits are the shortest that read back the same.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Most numbers are counts, which need none of what makes other floats slow to write.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number below 2^53 without its sign"
)]
fn whole(out: &mut String, value: f64) {
    if value < 0.0 {
        out.push('-');
    }
    let mut rest = value.abs() as u64;
    let mut exponent = 0;
    let is_scaled = rest >= 1_000_000;
    while is_scaled && rest.is_multiple_of(10) {
        rest /= 10;
        exponent += 1;
    }
    let mut digits = [0_u8; 20];
    let mut from = digits.len();
    while let Some(at) = from.checked_sub(1)
        && (rest > 0 || from == digits.len())
    {
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        from = at;
    }
    let digits = digits.get(from..).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default();
    if !is_scaled {
        out.push_str(digits);
        return;
    }
    let (first, behind) = digits.split_at_checked(1).unwrap_or((digits, ""));
    out.push_str(first);
    if !behind.is_empty() {
        out.push('.');
        out.push_str(behind);
    }
    scaled(out, "", exponent + i32::try_from(behind.len()).unwrap_or_default());
}

/// `1.5e+06`
fn scaled(out: &mut String, mantissa: &str, exponent: i32) {
    out.push_str(mantissa);
    out.push_str(if exponent < 0 { "e-" } else { "e+" });
    let exponent = exponent.unsigned_abs();
    // Two digits at least, and no float has more than three.
    if exponent >= 100 {
        out.push(digit(exponent / 100));
    }
    out.push(digit(exponent / 10 % 10));
    out.push(digit(exponent % 10));
}

fn digit(value: u32) -> char {
    char::from_digit(value, 10).unwrap_or('0')
}

/// Room for any float's digits, on the stack.
#[derive(Default)]
struct Digits {
    bytes: [u8; 32],
    length: usize,
}

impl Digits {
    fn as_str(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl std::fmt::Write for Digits {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
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
            "-0.5",
            "10.25",
            "99999.5",
            "999999.5",
            "1.2345675e+06",
            "0.01",
            "0.00012345",
            "-0.001",
            "1.2e-05",
            "-1e+06",
            "-123456",
            "1.000001e+06",
            "9.007199254740991e+15",
            "9.007199254740992e+15",
            "1.8446744073709552e+19",
            "1.7976931348623157e+308",
            "-2.2250738585072014e-308",
            "5e-324",
        ] {
            let mut out = String::new();
            float(&mut out, expected.parse().unwrap());
            assert_eq!(out, expected);
        }
        assert_eq!(labels(&[("a", "x\"y"), ("b", "")]), "{a=\"x\\\"y\",b=\"\"}");
        assert_eq!(labels(&[("a", "ü\\\n\"")]), "{a=\"ü\\\\\\n\\\"\"}");
    }

    #[test]
    fn numbers_read_back_the_same() {
        // A walk over all exponents and many mantissas, beside the writer that the standard library has.
        let mut bits = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let any = f64::from_bits(bits);
            #[expect(clippy::cast_precision_loss, reason = "any float will do")]
            let near = [
                (bits >> 11) as f64,
                (bits >> 40) as f64,
                (bits >> 30) as f64 / 1e9,
                (bits >> 20) as f64 / 1e3,
            ];
            for value in near.into_iter().chain([any]).filter(|value| value.is_finite()) {
                let mut out = String::new();
                float(&mut out, value);
                assert_eq!(out.parse::<f64>().unwrap(), value, "{out}");
                let plain = value.to_string();
                let digits = |text: &str| {
                    let text = text.split('e').next().unwrap_or_default();
                    let text: String = text.chars().filter(char::is_ascii_digit).collect();
                    text.trim_matches('0').to_owned()
                };
                assert_eq!(digits(&out), digits(&plain), "the shortest, {out}");
                let wants = value != 0.0 && !(1e-4..1e6).contains(&value.abs());
                assert_eq!(out.contains('e'), wants, "{out}");
            }
        }
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
