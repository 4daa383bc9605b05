//! Feature gates: which are known, what they are by default, and what the user made of them.
//!
//! The rules are upstream's (`k8s.io/component-base/featuregate`): unknown gates and locked gates at another value are
//! errors, setting one that has graduated is worth a notice, `AllAlpha` and `AllBeta` set what is not set by name.

mod elsewhere;
mod node;

use std::collections::BTreeMap;

use crate::nearest::{nearest, suggestion};
use crate::problem::Problem;

/// How far a feature has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// New, off unless asked for.
    Alpha,
    /// Tried.
    Beta,
    /// Finished; the gate will go away.
    Ga,
    /// On its way out.
    Deprecated,
}

impl Stage {
    /// As `kubernetes_feature_enabled` labels it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Alpha => "alpha",
            Self::Beta => "beta",
            Self::Ga => "GA",
            Self::Deprecated => "deprecated",
        }
    }
}

/// One feature gate.
#[derive(Debug)]
pub struct Gate {
    /// Its name.
    pub name: &'static str,
    /// How far the feature has come.
    pub stage: Stage,
    /// Whether the feature is on if nobody says otherwise.
    pub default: bool,
    /// Whether it can only have its default.
    pub locked: bool,
    /// The gates that must be on if this one is.
    pub needs: &'static [&'static str],
}

impl Gate {
    const fn locked(mut self) -> Self {
        self.locked = true;
        self
    }

    const fn needs(mut self, needs: &'static [&'static str]) -> Self {
        self.needs = needs;
        self
    }
}

const fn gate(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, locked: false, needs: &[] }
}

const fn alpha(name: &'static str, default: bool) -> Gate {
    gate(name, Stage::Alpha, default)
}

const fn beta(name: &'static str, default: bool) -> Gate {
    gate(name, Stage::Beta, default)
}

const fn ga(name: &'static str, default: bool) -> Gate {
    gate(name, Stage::Ga, default)
}

const fn deprecated(name: &'static str, default: bool) -> Gate {
    gate(name, Stage::Deprecated, default)
}

/// The gates that stand for a whole stage.
const GROUPS: &[Gate] = &[alpha("AllAlpha", false), beta("AllBeta", false)];

/// Every known gate: the groups, those that say something about a node, and the rest of Kubernetes'.
pub fn known_gates() -> impl Iterator<Item = &'static Gate> {
    GROUPS.iter().chain(node::GATES).chain(elsewhere::GATES)
}

/// The gate called `name`.
pub fn find_gate(name: &str) -> Option<&'static Gate> {
    known_gates().find(|gate| gate.name == name)
}

/// Whether the gate says something about a node.
pub(crate) fn concerns_node(gate: &Gate) -> bool {
    GROUPS.iter().chain(node::GATES).any(|known| known.name == gate.name)
}

/// The gates as they are for this run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureGates {
    /// Only those that differ from their default or were set.
    set: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Whether the feature is on; an unknown one is off.
    pub fn enabled(&self, name: &str) -> bool {
        match self.set.get(name) {
            Some(value) => *value,
            None => find_gate(name).is_some_and(|gate| gate.default),
        }
    }

    /// Every known gate with its value, for `kubernetes_feature_enabled`.
    pub fn all(&self) -> impl Iterator<Item = (&'static Gate, bool)> {
        known_gates().map(|gate| (gate, self.enabled(gate.name)))
    }

    /// Applies what the user set; returns the gates and notices, or every problem.
    ///
    /// # Errors
    /// Unknown gates, locked gates at another value, and gates that are on without the gates they need.
    pub fn resolve(set: &BTreeMap<String, bool>) -> Result<(Self, Vec<String>), Vec<Problem>> {
        let mut gates = Self::default();
        let mut problems = Vec::new();
        let mut notices = Vec::new();
        for (name, value) in set {
            match find_gate(name) {
                None => problems.push(unknown(name)),
                Some(gate) if gate.locked && gate.default != *value => problems.push(locked(gate, *value)),
                Some(gate) => {
                    gates.set.insert(gate.name, *value);
                    notices.extend(notice(gate, *value));
                }
            }
        }
        for (group, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
            let Some(value) = gates.set.get(group).copied() else { continue };
            for gate in known_gates().filter(|gate| gate.stage == stage) {
                // The groups are themselves of a stage; one does not set the other.
                if !gate.locked && !GROUPS.iter().any(|g| g.name == gate.name) {
                    gates.set.entry(gate.name).or_insert(value);
                }
            }
        }
        problems.extend(gates.missing_needs(set));
        if problems.is_empty() { Ok((gates, notices)) } else { Err(problems) }
    }

    /// Gates that are on although one they need is off. What only concerns other programs counts if it was named.
    fn missing_needs(&self, set: &BTreeMap<String, bool>) -> Vec<Problem> {
        let relevant = |gate: &&Gate| concerns_node(gate) || set.contains_key(gate.name);
        let mut problems = Vec::new();
        for gate in known_gates().filter(relevant).filter(|gate| self.enabled(gate.name)) {
            let missing: Vec<&str> = gate.needs.iter().copied().filter(|need| !self.enabled(need)).collect();
            if !missing.is_empty() {
                problems.push(Problem::new(
                    format!("featureGates.{}", gate.name),
                    format!(
                        "{} is enabled, but depends on features that are disabled: [{}]",
                        gate.name,
                        missing.join(" ")
                    ),
                    "enable those as well, or disable this one",
                ));
            }
        }
        problems
    }
}

fn unknown(name: &str) -> Problem {
    let found = nearest(name, known_gates().map(|gate| gate.name));
    Problem::new(
        format!("featureGates.{name}"),
        format!("unrecognized feature gate: {name}"),
        suggestion(found, "remove it; it may have graduated in an earlier release"),
    )
}

fn locked(gate: &Gate, value: bool) -> Problem {
    let (name, default) = (gate.name, gate.default);
    Problem::new(
        format!("featureGates.{name}"),
        format!("cannot set feature gate {name} to {value}, feature is locked to {default}"),
        "remove the setting",
    )
}

fn notice(gate: &Gate, value: bool) -> Option<String> {
    let (name, stage) = (gate.name, gate.stage.words());
    if matches!(gate.stage, Stage::Ga | Stage::Deprecated) {
        return Some(format!(
            "setting {stage} feature gate {name}={value}; it will be removed in a future release"
        ));
    }
    (!concerns_node(gate)).then(|| format!("feature gate {name}={value} has no effect on a node"))
}

#[cfg(test)]
mod tests;
