//! What a complete configuration must fulfil, as upstream's `pkg/kubelet/apis/config/validation` of 1.37 demands it.
//!
//! Rules about one value stand in its definition and are checked here for all alike; rules between fields, gates and
//! the grammars of values follow in the modules. Beyond upstream's validation this also refuses what upstream accepts
//! there and then fails on while it starts (eviction thresholds, reservations, policies, TLS names).

mod resources;
mod rules;

use mainstay_types::Quantity;
use serde_json::{Map, Value};

use crate::catalog;
use crate::definition::{Check, Definition};
use crate::duration::GoDuration;
use crate::gates::FeatureGates;
use crate::kubelet::KubeletConfiguration;
use crate::layers;
use crate::names;
use crate::problem::Problem;
use crate::settings::Settings;

pub(crate) use rules::remarks;

/// What the host is, as far as the configuration depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFacts {
    /// The unified cgroup hierarchy is mounted.
    pub cgroup_v2: bool,
}

/// Collects problems; every message begins as upstream's do.
#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
}

impl Findings {
    /// `message` follows "invalid configuration: ".
    fn add(&mut self, path: &str, message: impl AsRef<str>, remedy: impl Into<String>) {
        let message = format!("invalid configuration: {}", message.as_ref());
        self.problems.push(Problem::new(path, message, remedy));
    }

    /// Adds the problem unless `fine`.
    fn require(&mut self, fine: bool, path: &str, message: impl AsRef<str>, remedy: &str) {
        if !fine {
            self.add(path, message, remedy);
        }
    }
}

/// Every rule that the configuration breaks.
pub fn validate(config: &KubeletConfiguration, gates: &FeatureGates) -> Vec<Problem> {
    let mut findings = Findings::default();
    check_each(config, gates, &mut findings);
    rules::check(config, gates, &mut findings);
    resources::check(config, gates, &mut findings);
    findings.problems
}

/// Every rule that the flag-only options break.
pub fn validate_settings(settings: &Settings) -> Vec<Problem> {
    let mut findings = Findings::default();
    let values = match serde_json::to_value(settings) {
        Ok(Value::Object(values)) => values,
        _ => Map::new(),
    };
    for entry in catalog::settings() {
        check_value(&entry.path, entry.definition, values.get(entry.definition.name), &mut findings);
    }
    rules::check_settings(settings, &mut findings);
    findings.problems
}

/// Every way in which the configuration and the host do not fit together (`validation_linux.go`).
///
/// `mainstay run` turns the first of them into a warning.
pub fn check_host(config: &KubeletConfiguration, host: HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    if config.fail_cgroup_v1 && !host.cgroup_v2 {
        problems.push(Problem::new(
            "failCgroupV1",
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release",
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or set failCgroupV1: false",
        ));
    }
    if !host.cgroup_v2 && config.single_process_oom_kill == Some(false) {
        problems.push(Problem::new(
            "singleProcessOOMKill",
            "invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1",
            "remove it",
        ));
    }
    if !host.cgroup_v2 && config.memory_swap.swap_behavior == "LimitedSwap" {
        problems.push(Problem::new(
            "memorySwap.swapBehavior",
            "swap feature is enabled and LimitedSwap but it is only supported with cgroupv2",
            "set memorySwap.swapBehavior: NoSwap",
        ));
    }
    problems
}

/// The rules about single values, from the table.
fn check_each(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let values = match serde_json::to_value(config) {
        Ok(Value::Object(values)) => values,
        _ => Map::new(),
    };
    for entry in catalog::fields() {
        // What an option needs when its gate is off is a rule of its own.
        if entry.definition.gate.is_none_or(|gate| gates.enabled(gate)) {
            check_value(&entry.path, entry.definition, layers::get(&values, &entry.path), findings);
        }
    }
}

/// A value that was left out of the JSON is zero.
fn check_value(path: &str, definition: &Definition, value: Option<&Value>, findings: &mut Findings) {
    let name = definition.name_and_flag(path);
    let number = value.and_then(Value::as_i64).unwrap_or_default();
    let text = value.and_then(Value::as_str).unwrap_or_default();
    let duration: GoDuration = text.parse().unwrap_or_default();
    let mut refuse = |message: String, remedy: String| findings.add(path, message, remedy);
    match definition.check {
        Check::Any | Check::Rule(_) => {}
        Check::AtLeast(0) if number < 0 => {
            refuse(format!("{name} {number} must not be a negative number"), "write 0 or more".to_owned());
        }
        Check::AtLeast(least) if number < least => {
            refuse(format!("{name} {number} must be {least} or greater"), String::new());
        }
        Check::Between(low, high) if !(low..=high).contains(&number) => {
            refuse(format!("{name} {number} must be between {low} and {high}, inclusive"), String::new());
        }
        Check::Port if !(1..=65535).contains(&number) => {
            refuse(format!("{name} {number} must be between 1 and 65535, inclusive"), String::new());
        }
        Check::PortOrOff if !(0..=65535).contains(&number) => {
            refuse(
                format!("{name} {number} must be between 1 and 65535, inclusive"),
                "or 0 to switch it off".to_owned(),
            );
        }
        Check::OneOf(known) if !known.contains(&text) => {
            let remedy = format!("write one of them, or remove {path}");
            refuse(
                format!("option {text:?} specified for {name}. Valid options are {}", list(known)),
                remedy,
            );
        }
        Check::Address if names::parse_ip(text).is_none() => {
            refuse(
                format!("{name} {text:?} is not a valid IP address"),
                "write an address such as 127.0.0.1".to_owned(),
            );
        }
        Check::QuantityAtLeast(least) => match Quantity::parse(text) {
            Ok(quantity) if quantity.value() >= least => {}
            Ok(_) => refuse(format!("{name} {text:?} must be at least {least}"), String::new()),
            Err(error) => refuse(format!("{name}: {error}"), String::new()),
        },
        Check::DurationAtLeast(milliseconds) if duration < GoDuration::from_milliseconds(milliseconds) => {
            let least = GoDuration::from_milliseconds(milliseconds);
            refuse(
                format!(
                    "{name} {duration} must be a positive time duration greater than or equal to {least}"
                ),
                String::new(),
            );
        }
        Check::NotNegative if duration.is_negative() => {
            refuse(format!("{name} {duration} must not be negative"), String::new());
        }
        _ => {}
    }
}

/// `"a", "b" or "c"`.
fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
