//! The families of mainstay and of upstream's kubelet, on the same pods: names, types, HELP, labels, and which samples have
//! times. What differs on purpose stands here and in `docs/metrics.md`, with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{manifest, shell};
use mainstay_testkit::{Containerd, Flavor, Http, Node, wait_until};
use serde_json::{Value, json};

/// Upstream reads cgroups for the first time after up to half a minute.
const ROUNDS: Duration = Duration::from_secs(240);

/// What a family looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    help: String,
    /// The names of labels that its samples have, and whether they have a time.
    shapes: BTreeSet<(String, bool)>,
}

/// Reads the text format strictly: each family once, HELP before TYPE, samples only of the family, labels in order, no
/// series twice.
fn families(text: &str) -> Result<BTreeMap<String, Family>> {
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

struct Both {
    ours: Node,
    theirs: Node,
    _runtimes: [Containerd; 2],
}

impl Both {
    fn start() -> Result<Self> {
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

    fn compare(&self, path: &str) -> Result<Vec<String>> {
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
fn get(node: &Node, path: &str) -> Result<String> {
    let answer = Http::Tcp(node.read_only()).get(path)?;
    ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
    Ok(answer.text())
}

/// Every key that occurs, as a path; lists are looked into.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                found.insert(path.clone());
                keys(value, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, path, found)),
        _ => {}
    }
}

#[test]
fn the_same_families_as_upstream() -> Result<()> {
    let both = Both::start()?;
    for path in ["/metrics/cadvisor", "/metrics/resource", "/metrics"] {
        wait_until(ROUNDS, "the same families", || {
            let differences = both.compare(path).map_err(|error| format!("{error:#}"))?;
            if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
        })?;
    }
    // The next look at the disks is soon where somebody asks for what it finds.
    wait_until(ROUNDS, "a summary", || {
        get(&both.ours, "/stats/summary").map(drop).map_err(|error| format!("{error:#}"))
    })?;
    for name in [
        "kubelet_node_name",
        "kubelet_running_pods",
        "kubelet_running_containers",
        "kubelet_pleg_relist_duration_seconds",
        "kubelet_pleg_relist_interval_seconds",
        "kubelet_pod_worker_duration_seconds",
        "kubelet_pod_start_duration_seconds",
        "kubelet_started_containers_total",
        "kubelet_started_pods_total",
        "kubelet_run_podsandbox_duration_seconds",
        "kubelet_runtime_operations_total",
        "kubelet_container_log_filesystem_used_bytes",
        "kubernetes_build_info",
        "kubernetes_feature_enabled",
        "process_resident_memory_bytes",
    ] {
        wait_until(ROUNDS, "a family of mainstay's own", || {
            let own = get(&both.ours, "/metrics").and_then(|text| families(&text));
            let own = own.map_err(|error| format!("{error:#}"))?;
            if own.contains_key(name) { Ok(()) } else { Err(format!("no {name}: {:?}", own.keys())) }
        })?;
    }
    for query in ["", "?only_cpu_and_memory=true"] {
        wait_until(ROUNDS, "the same keys of the summary", || {
            let [ours, theirs] = [&both.ours, &both.theirs].map(|node| -> Result<BTreeSet<String>> {
                let summary: Value = serde_json::from_str(&get(node, &format!("/stats/summary{query}"))?)?;
                let mut found = BTreeSet::new();
                keys(&summary, "", &mut found);
                // This kernel measures no pressure: upstream says 0 of it, mainstay nothing.
                found.retain(|key| !key.contains(".psi"));
                Ok(found)
            });
            let (ours, theirs) = (ours.map_err(|e| format!("{e:#}"))?, theirs.map_err(|e| format!("{e:#}"))?);
            // Upstream finds a pod's network and processes only with a runtime at one place.
            let elsewhere =
                |key: &str| key.starts_with(".pods.network") || key.starts_with(".pods.process_stats");
            let missing: Vec<_> = theirs.difference(&ours).collect();
            let more: Vec<_> = ours.difference(&theirs).filter(|key| !elsewhere(key)).collect();
            if missing.is_empty() && more.is_empty() {
                Ok(())
            } else {
                Err(format!("{query} missing {missing:?}, more {more:?}"))
            }
        })?;
    }
    Ok(())
}
