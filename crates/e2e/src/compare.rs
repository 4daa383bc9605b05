//! mainstay and upstream's kubelet on the same pods, scraped and compared: families, types, HELP, labels, times and values.
//!
//! `cargo xtask compare-metrics` prints what differs; `tests/metrics_contract.rs` demands that nothing does but what
//! `docs/metrics.md` names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{Containerd, Flavor, Http, Node, wait_until};
use serde_json::json;

use crate::seen::{manifest, shell};

/// Upstream reads cgroups for the first time after up to half a minute.
pub const ROUNDS: Duration = Duration::from_secs(240);
/// Every endpoint whose families are compared.
pub const ENDPOINTS: [&str; 5] =
    ["/metrics/cadvisor", "/metrics/resource", "/metrics", "/metrics/probes", "/metrics/slis"];

/// What a family looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Its type.
    pub kind: String,
    /// Its HELP.
    pub help: String,
    /// The names of labels that its samples have, and whether they have a time.
    pub shapes: BTreeSet<(String, bool)>,
}

/// Reads the text format strictly: each family once, HELP before TYPE, samples only of the family, labels in order, no
/// series twice.
///
/// # Errors
/// When it is not so.
pub fn families(text: &str) -> Result<BTreeMap<String, Family>> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    let mut series = BTreeSet::new();
    let mut current = String::new();
    ensure!(text.ends_with('\n'), "no newline at the end");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            ensure!(name > current.as_str(), "{name} after {current}");
            current = name.to_owned();
            found.insert(current.clone(), Family { help: help.to_owned(), ..Family::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').context("no type")?;
            ensure!(name == current, "the type of {name} in {current}");
            found.entry(current.clone()).or_default().kind = kind.to_owned();
        } else {
            let (name, labels, rest) = match line.split_once('{') {
                Some((name, rest)) => {
                    let (labels, rest) = rest.rsplit_once("} ").with_context(|| line.to_owned())?;
                    (name, labels, rest)
                }
                None => {
                    let (name, rest) = line.split_once(' ').with_context(|| line.to_owned())?;
                    (name, "", rest)
                }
            };
            let base = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
            ensure!(name == current || base == Some(current.as_str()), "{name} in {current}");
            ensure!(series.insert((name.to_owned(), labels.to_owned())), "twice: {line}");
            let names: Vec<&str> = label_names(labels);
            ensure!(names.iter().filter(|name| **name != "le").is_sorted(), "labels out of order: {line}");
            let words: Vec<&str> = rest.split(' ').collect();
            ensure!(words.first().is_some_and(|value| value.parse::<f64>().is_ok()), "no number: {line}");
            ensure!(words.get(1).is_none_or(|at| at.parse::<i64>().is_ok()), "no time: {line}");
            let names: Vec<&str> = names.into_iter().filter(|name| *name != "le").collect();
            let shape = (names.join(","), words.len() > 1);
            found.entry(current.clone()).or_default().shapes.insert(shape);
        }
    }
    Ok(found)
}

fn label_names(labels: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = labels;
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(','));
        let mut escaped = false;
        let end = value.find(|c| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        });
        rest = end.and_then(|end| value.get(end + 1..)).unwrap_or_default();
    }
    names
}

/// Both agents, each on a runtime of its own with the same pod.
#[derive(Debug)]
pub struct Both {
    /// mainstay.
    pub ours: Node,
    /// Upstream's kubelet.
    pub theirs: Node,
    _runtimes: [Containerd; 2],
}

impl Both {
    /// Starts both and waits until both have read the pod.
    ///
    /// # Errors
    /// When one does not start, or does not read.
    pub fn start() -> Result<Self> {
        let runtimes = [Containerd::start(Flavor::Debian16)?, Containerd::start(Flavor::Debian16)?];
        let ours = Node::builder().containerd(&runtimes[0]).start()?;
        let theirs = Node::builder().upstream().containerd(&runtimes[1]).start()?;
        let mut limited = shell("limited", "trap 'exit 0' TERM; while :; do sleep 1; done");
        limited["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "100m"}});
        limited["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
        let spec = json!({
            "containers": [limited, shell("free", "trap 'exit 0' TERM; while :; do sleep 1; done")],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        });
        for node in [&ours, &theirs] {
            node.write_manifest("pod.yaml", &manifest("pod", spec.clone()))?;
        }
        let both = Self { ours, theirs, _runtimes: runtimes };
        for node in [&both.ours, &both.theirs] {
            wait_until(ROUNDS, "the first reading of a pod", || {
                let text = get(node, "/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
                let is_there = text.contains("container_cpu_cfs_periods_total")
                    && text.contains(&format!("pod-{}", node.name()));
                if is_there { Ok(()) } else { Err(text) }
            })?;
        }
        Ok(both)
    }

    /// What of families differs.
    ///
    /// # Errors
    /// When an answer cannot be had or read.
    pub fn compare(&self, path: &str) -> Result<Vec<String>> {
        let ours = families(&get(&self.ours, path)?).context("ours")?;
        let theirs = families(&get(&self.theirs, path)?).context("upstream's")?;
        let mut differences = Vec::new();
        for (name, family) in &theirs {
            match ours.get(name) {
                // Of what the process counts of itself, mainstay has only what it does.
                None if path == "/metrics" => {}
                None => differences.push(format!("{name} is not there")),
                Some(own) if own != family => {
                    differences.push(format!("{name}: {own:?}, upstream {family:?}"))
                }
                Some(_) => {}
            }
        }
        // Upstream has some families only once something happened.
        let more = ours.keys().filter(|name| !theirs.contains_key(*name));
        let more = more.filter(|name| {
            path != "/metrics" || !(name.starts_with("kubelet_") || name.starts_with("mainstay_"))
        });
        differences.extend(more.map(|name| format!("{name} is not upstream's")));
        Ok(differences)
    }
}

/// Through the port that both have.
///
/// # Errors
/// When the answer is not 200.
pub fn get(node: &Node, path: &str) -> Result<String> {
    let answer = Http::Tcp(node.read_only()).get(path)?;
    ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
    Ok(answer.text())
}

/// A value by its family and those labels that both agents give alike: IDs of containers and cgroups are each one's own.
type Values = BTreeMap<(String, String), f64>;

fn values(text: &str) -> Values {
    let mut found = Values::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, rest) = match line.split_once('{') {
            Some((name, rest)) => match rest.rsplit_once("} ") {
                Some((labels, rest)) => ((name, labels), rest),
                None => continue,
            },
            None => match line.split_once(' ') {
                Some((name, rest)) => ((name, ""), rest),
                None => continue,
            },
        };
        let Some(value) = rest.split(' ').next().and_then(|word| word.parse::<f64>().ok()) else { continue };
        let own = [
            "id=",
            "name=",
            "image=",
            "node=",
            "uid=",
            "pod_uid=",
            "boot_id=",
            "git_",
            "compiler=",
            "go_version=",
            "build_date=",
        ];
        let labels: Vec<&str> =
            series.1.split(',').filter(|label| !own.iter().any(|own| label.starts_with(own))).collect();
        *found.entry((series.0.to_owned(), labels.join(","))).or_default() += value;
    }
    found
}

impl Both {
    /// For people: what differs in each endpoint, families first, then values that are more than a tenth apart.
    ///
    /// # Errors
    /// When an answer cannot be had or read.
    pub fn report(&self) -> Result<String> {
        let mut out = String::new();
        for path in ENDPOINTS {
            let (ours, theirs) = (get(&self.ours, path)?, get(&self.theirs, path)?);
            let (our_families, their_families) = (families(&ours)?, families(&theirs)?);
            // Writing to a String cannot fail.
            writeln!(
                out,
                "{path}: mainstay {} families, upstream {}",
                our_families.len(),
                their_families.len()
            )
            .ok();
            for name in our_families.keys().filter(|name| !their_families.contains_key(*name)) {
                writeln!(out, "  + {name}: only mainstay's").ok();
            }
            for (name, family) in &their_families {
                match our_families.get(name) {
                    None => writeln!(out, "  - {name}: only upstream's").ok(),
                    Some(own) if own.kind != family.kind => {
                        writeln!(out, "  ! {name}: a {}, upstream's a {}", own.kind, family.kind).ok()
                    }
                    Some(own) if own.help != family.help => {
                        writeln!(out, "  ! {name}: HELP {:?}, upstream's {:?}", own.help, family.help).ok()
                    }
                    Some(own) if own.shapes != family.shapes => {
                        writeln!(out, "  ! {name}: labels {:?}, upstream's {:?}", own.shapes, family.shapes)
                            .ok()
                    }
                    Some(_) => None,
                };
            }
            let (own, others) = (values(&ours), values(&theirs));
            for (series, value) in &own {
                let Some(other) = others.get(series) else { continue };
                let most = value.abs().max(other.abs());
                if (value - other).abs() > most * 0.1 {
                    writeln!(out, "  ~ {}{{{}}}: {value}, upstream's {other}", series.0, series.1).ok();
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_matched_by_the_labels_that_both_have() {
        let found = values(
            "# HELP a x\na{id=\"/x\",name=\"1\",pod=\"p\"} 3 17\na{id=\"/y\",name=\"2\",pod=\"p\"} 4 17\nb 5\n",
        );
        let key = |name: &str, labels: &str| (name.to_owned(), labels.to_owned());
        assert_eq!(found, Values::from([(key("a", "pod=\"p\""), 7.0), (key("b", ""), 5.0)]));
    }
}
