//! mainstay and upstream's kubelet on the same pods, scraped and compared: families, types, HELP, labels, times, and the values of each
//! container.
//!
//! `cargo xtask compare-metrics` prints what differs; `tests/metrics_contract.rs` demands that nothing does but what
//! `docs/metrics.md` names: [`Documented`] is read from that page itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{Containerd, Flavor, Http, Node, wait_until, workspace_root};
use serde_json::{Value, json};

use crate::seen::{manifest, shell};

mod documented;
mod values;

pub use documented::Documented;

/// Upstream reads cgroups for the first time after up to half a minute.
pub const ROUNDS: Duration = Duration::from_secs(240);
/// Every endpoint whose families are compared.
pub const ENDPOINTS: [&str; 5] =
    ["/metrics/cadvisor", "/metrics/resource", "/metrics", "/metrics/probes", "/metrics/slis"];

/// Those of them whose values are compared.
pub const VALUES: [&str; 3] = ["/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];

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

/// What each container does, so that there is something to compare: it burns some seconds of CPU time, holds 16 MiB, writes 8 MB, and rests.
const WORK: &str = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; head -c 16777216 /dev/zero > /dev/shm/held; \
    head -c 8000000 /dev/zero > /written; sync; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";

/// What each probe of the workload shows.
const PROBES: [(&str, &str, &str); 5] = [
    ("limited", "Startup", "successful"),
    ("limited", "Liveness", "successful"),
    ("limited", "Readiness", "successful"),
    ("free", "Liveness", "successful"),
    ("free", "Readiness", "failed"),
];

/// Probes that begin no process in a container and send nothing through its network, so that what they cost is in nobody's numbers: the node's
/// own port answers, and another refuses. Only readiness fails, which starts nothing again.
fn add_probes(limited: &mut Value, free: &mut Value, node: &Node) {
    let ask = |port: u16| json!({"tcpSocket": {"host": node.read_only().ip().to_string(), "port": port}, "periodSeconds": 2, "timeoutSeconds": 20});
    let (answers, refuses) = (ask(node.read_only().port()), ask(1));
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        limited[probe] = answers.clone();
    }
    limited["startupProbe"]["failureThreshold"] = json!(100);
    free["livenessProbe"] = answers;
    free["readinessProbe"] = refuses;
}

/// Both agents, each on a runtime of its own with the same pod.
#[derive(Debug)]
pub struct Both {
    /// mainstay.
    pub ours: Node,
    /// Upstream's kubelet.
    pub theirs: Node,
    documented: Documented,
    _runtimes: [Containerd; 2],
}

impl Both {
    /// Starts both and waits until both have read the pod. Upstream's kubelet finds its runtime at the one place where its cAdvisor looks for
    /// it, so that its containers have labels.
    ///
    /// # Errors
    /// When one does not start, or does not read.
    pub fn start() -> Result<Self> {
        let documented = Documented::read(workspace_root())?;
        let runtimes = [Containerd::start(Flavor::Debian16)?, Containerd::start(Flavor::Debian16)?];
        let ours = Node::builder().containerd(&runtimes[0]).start()?;
        let kubelet = runtimes[1].upstream_kubelet()?;
        let theirs = Node::builder().upstream().program(kubelet).containerd(&runtimes[1]).start()?;
        let mut limited = shell("limited", WORK);
        limited["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "500m"}, "requests": {"memory": "32Mi", "cpu": "250m"}});
        limited["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
        for node in [&ours, &theirs] {
            let [mut limited, mut free] = [limited.clone(), shell("free", WORK)];
            add_probes(&mut limited, &mut free, node);
            let spec = json!({
                "containers": [limited, free],
                "volumes": [{"name": "scratch", "emptyDir": {}}],
            });
            node.write_manifest("pod.yaml", &manifest("pod", spec))?;
        }
        let both = Self { ours, theirs, documented, _runtimes: runtimes };
        for node in [&both.ours, &both.theirs] {
            wait_until(ROUNDS, "the first reading of a pod", || {
                let text = get(node, "/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
                let is_there = text.contains("container_cpu_cfs_periods_total{container=\"limited\"")
                    && text.contains(&format!("pod-{}", node.name()));
                if is_there { Ok(()) } else { Err(text) }
            })?;
            wait_until(ROUNDS, "an answer of each probe", || {
                let text = get(node, "/metrics/probes").map_err(|error| format!("{error:#}"))?;
                let is_there = PROBES.iter().all(|(container, kind, result)| {
                    text.lines().any(|line| {
                        line.starts_with(&format!("prober_probe_total{{container=\"{container}\""))
                            && line.contains(&format!("probe_type=\"{kind}\",result=\"{result}\""))
                    })
                });
                if is_there { Ok(()) } else { Err(text) }
            })?;
        }
        Ok(both)
    }

    /// What of families differs and is not named in `docs/metrics.md`.
    ///
    /// # Errors
    /// When an answer cannot be had or read.
    pub fn compare(&self, path: &str) -> Result<Vec<String>> {
        let ours = families(&get(&self.ours, path)?).context("ours")?;
        let theirs = families(&get(&self.theirs, path)?).context("upstream's")?;
        Ok(differences(path, &ours, &theirs, &self.documented))
    }

    /// What of the values of pods and their containers differs, on an endpoint of cgroups' numbers or of probes, and is not named in `docs/metrics.md`.
    ///
    /// # Errors
    /// When an answer cannot be had or read.
    pub fn compare_values(&self, path: &str) -> Result<Vec<String>> {
        let [ours, theirs] = [(&self.ours, get(&self.ours, path)?), (&self.theirs, get(&self.theirs, path)?)]
            .map(|(node, text)| values::of_text(&text, node.name()));
        Ok(values::differences(&ours, &theirs, &self.documented))
    }

    /// What of the numbers of `/stats/summary` differs: of the node, of pods, their containers and volumes.
    ///
    /// # Errors
    /// When an answer cannot be had or read.
    pub fn compare_summaries(&self) -> Result<Vec<String>> {
        let of = |node: &Node| -> Result<_> {
            let summary = serde_json::from_str(&get(node, "/stats/summary")?).context("the summary")?;
            Ok(values::of_summary(&summary, node.name()))
        };
        Ok(values::differences(&of(&self.ours)?, &of(&self.theirs)?, &self.documented))
    }
}

fn differences(
    path: &str,
    ours: &BTreeMap<String, Family>,
    theirs: &BTreeMap<String, Family>,
    documented: &Documented,
) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, family) in theirs {
        match ours.get(name) {
            None if documented.is_absent(name) => {}
            None => differences.push(format!("{name} is not there, and docs/metrics.md does not say why")),
            Some(own) if own != family => {
                differences.push(format!("{name}: {own:?}, upstream {family:?}"));
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
    differences
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

impl Both {
    /// For people: what differs in each endpoint, families first, then the values of pods and containers; what `docs/metrics.md` names is marked.
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
                    None if self.documented.is_absent(name) => {
                        writeln!(out, "  - {name}: only upstream's, as documented").ok()
                    }
                    None => writeln!(out, "  - {name}: only upstream's, NOT DOCUMENTED").ok(),
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
            if VALUES.contains(&path) {
                for difference in self.compare_values(path)? {
                    writeln!(out, "  ~ {difference}").ok();
                }
            }
        }
        writeln!(out, "/stats/summary").ok();
        for difference in self.compare_summaries()? {
            writeln!(out, "  ~ {difference}").ok();
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_only_upstream_has_must_be_documented() {
        let theirs =
            families("# HELP a x\n# TYPE a gauge\na 1\n# HELP b_c x\n# TYPE b_c gauge\nb_c 1\n").unwrap();
        let documented =
            |names: &str| Documented::of(&format!("{}\n| {names} | why |\n", Documented::HEADING));
        let found =
            |names: &str| differences("/metrics", &BTreeMap::new(), &theirs, &documented(names)).len();
        assert_eq!(found("`x`"), 2);
        assert_eq!(found("`a`"), 1);
        assert_eq!(found("`a`, `b_*`"), 0);
        assert_eq!(differences("/metrics", &theirs, &theirs, &documented("`x`")), Vec::<String>::new());
        let more = differences("/metrics/cadvisor", &theirs, &BTreeMap::new(), &documented("`x`"));
        assert_eq!(more, ["a is not upstream's", "b_c is not upstream's"]);
    }
}
