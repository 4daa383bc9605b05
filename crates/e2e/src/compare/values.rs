//! The values of the machine, of pods and of their containers, one by one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::documented::Documented;

/// What makes a series the same one on both: its family, and its labels without those that are each agent's own. The image tells a pod from its
/// sandbox.
type Key = (String, Vec<(String, String)>);
/// The values by their series.
pub(super) type Values = BTreeMap<Key, f64>;

/// How far apart two values of a family may be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// Not at all: what was asked for, and what the machine has.
    Equal,
    /// By this part of the larger one, or this much.
    Near(f64, f64),
}

/// IDs of containers and cgroups are each one's own, and a static pod's UID is made of its node's name.
const OWN: [&str; 4] = ["id", "name", "node", "pod_uid"];

/// Families of the machine's own cgroup that are the same whoever reads them. What is told of its disks and processes differs on purpose.
const OF_MACHINE: [&str; 7] = [
    "container_cpu_system_seconds_total",
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_memory_cache",
    "container_memory_rss",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
];

/// The values of pods, and those of the machine. The pods' names end in the nodes'.
pub(super) fn of_text(text: &str, node: &str) -> Values {
    let mut found = Values::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, rest)) = line.rsplit_once("} ").or_else(|| line.split_once(' ')) else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let Some(value) = rest.split(' ').next().and_then(|word| word.parse::<f64>().ok()) else { continue };
        let labels = pairs(labels);
        let has = |wanted: &str, is: fn(&str) -> bool| {
            labels.iter().any(|(name, value)| name == wanted && is(value))
        };
        let of_pod = has("pod", |pod| !pod.is_empty());
        let of_root = has("id", |id| id == "/") && OF_MACHINE.contains(&name);
        if !of_pod && !of_root && !name.starts_with("machine_") && !name.starts_with("node_") {
            continue;
        }
        let name = if of_root { format!("root_{name}") } else { name.to_owned() };
        let labels = labels.into_iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let labels = labels.map(|(name, value)| match value.strip_suffix(&format!("-{node}")) {
            Some(pod) if name == "pod" => (name, pod.to_owned()),
            _ => (name, value),
        });
        found.insert((name, labels.collect()), value);
    }
    found
}

/// The numbers of a summary that say how much is used of CPU time, memory and disks: of the node, of pods, their containers and volumes.
pub(super) fn of_summary(summary: &Value, node: &str) -> Values {
    let mut found = Values::new();
    numbers(&summary["node"], "node", &[], &mut found);
    for pod in summary["pods"].as_array().into_iter().flatten() {
        let name = |it: &Value| it["name"].as_str().unwrap_or_default().to_owned();
        let pod_name = name(&pod["podRef"]);
        let pod_name = pod_name.strip_suffix(&format!("-{node}")).unwrap_or(&pod_name).to_owned();
        let labels = [("pod".to_owned(), pod_name)];
        numbers(pod, "pod", &labels, &mut found);
        for (key, kind) in [("containers", "container"), ("volume", "volume")] {
            for part in pod[key].as_array().into_iter().flatten() {
                let labels = [labels[0].clone(), (kind.to_owned(), name(part))];
                numbers(part, kind, &labels, &mut found);
            }
        }
    }
    found
}

/// Of rates only the sums that they come from: they are of other seconds.
fn numbers(of: &Value, kind: &str, labels: &[(String, String)], found: &mut Values) {
    for (part, fields) in [
        ("cpu", &["usageCoreNanoSeconds"] as &[&str]),
        ("memory", &["usageBytes", "workingSetBytes", "rssBytes"]),
        ("fs", &["capacityBytes", "availableBytes", "inodes"]),
        ("ephemeral-storage", &["capacityBytes", "usedBytes"]),
        ("rootfs", &["capacityBytes", "usedBytes"]),
        ("logs", &["capacityBytes"]),
    ] {
        for field in fields {
            if let Some(value) = of[part][*field].as_f64() {
                found.insert((format!("summary_{kind}_{part}_{field}"), labels.to_vec()), value);
            }
        }
    }
    // A volume's own numbers are not in a part of it. Others share the disk that it lies on.
    if let Some(value) = of["usedBytes"].as_f64() {
        found.insert((format!("summary_{kind}_usedBytes"), labels.to_vec()), value);
    }
}

fn pairs(labels: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = labels;
    while let Some((name, value)) = rest.split_once("=\"") {
        let Some((value, next)) = value.split_once('"') else { break };
        found.push((name.trim_start_matches(',').to_owned(), value.to_owned()));
        rest = next;
    }
    found
}

/// Both did the same work at about the same time, on a machine that does other things too.
fn tolerance(family: &str) -> Tolerance {
    const MIB: f64 = 1_048_576.0;
    match family {
        // Of the whole machine, on which both run and others, too; some seconds lie between the two answers.
        _ if family.starts_with("root_")
            || family.starts_with("node_")
            || family.starts_with("summary_node_") =>
        {
            match family {
                _ if family.ends_with("NanoSeconds") => Tolerance::Near(0.05, 60e9),
                _ if family.contains("cpu_") => Tolerance::Near(0.05, 60.0),
                _ if family.ends_with("capacityBytes") || family.ends_with("inodes") => Tolerance::Equal,
                _ => Tolerance::Near(0.15, 256.0 * MIB),
            }
        }
        _ if family.starts_with("summary_") && family.ends_with("capacityBytes") => Tolerance::Equal,
        _ if family.ends_with("NanoSeconds") => Tolerance::Near(0.35, 0.5e9),
        _ if family.starts_with("summary_") => Tolerance::Near(0.1, 2.0 * MIB),
        "container_threads_max" | "container_processes" | "container_threads" | "container_health_state" => {
            Tolerance::Equal
        }
        "container_memory_swap" | "container_swap_usage_bytes" | "container_memory_events_max_total" => {
            Tolerance::Equal
        }
        // How often was asked, and how long it took, is each one's own; who was asked about what, and what it showed, is the same.
        _ if family.starts_with("prober_probe_") => Tolerance::Near(1.0, 0.0),
        // Times: both began within some minutes.
        "container_last_seen" => Tolerance::Near(0.0, 600.0),
        _ if family.ends_with("_time_seconds") => Tolerance::Near(0.0, 600.0),
        _ if family.starts_with("machine_") || family.starts_with("container_spec_") => Tolerance::Equal,
        "container_ulimits_soft" | "container_oom_events_total" => Tolerance::Equal,
        "container_file_descriptors" => Tolerance::Near(0.0, 2.0),
        // Periods are counted while something runs, and a shell may be held back once more or less.
        _ if family.starts_with("container_cpu_cfs_") => Tolerance::Near(0.5, 50.0),
        _ if family.contains("cpu_") => Tolerance::Near(0.35, 0.5),
        // Neighbours are asked after, and ask.
        _ if family.starts_with("container_network_") => Tolerance::Near(0.75, 20_000.0),
        "container_fs_writes_bytes_total" | "container_fs_reads_bytes_total" => {
            Tolerance::Near(0.25, 4.0 * MIB)
        }
        _ if family.starts_with("container_fs_") || family.starts_with("container_blkio_") => {
            Tolerance::Near(0.5, 4096.0)
        }
        _ if family.ends_with("_total") || family.ends_with("_failcnt") => Tolerance::Near(0.5, 8192.0),
        _ if family.contains("memory_") || family.contains("_bytes") => Tolerance::Near(0.1, 2.0 * MIB),
        _ => Tolerance::Near(0.1, 1.0),
    }
}

/// Series that only one has, and values that are too far apart.
pub(super) fn differences(ours: &Values, theirs: &Values, documented: &Documented) -> Vec<String> {
    let shown = |(family, labels): &Key| {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        format!("{family}{{{}}}", labels.join(","))
    };
    let mut found = Vec::new();
    let keys: BTreeSet<&Key> = theirs.keys().chain(ours.keys()).collect();
    for key in keys {
        if documented.is_absent(&key.0) {
            continue;
        }
        // Where the page says that series differ, those that both have are still the same, but for what is a time of its own.
        let may_differ = documented.is_different(&key.0);
        let none = counts_from_nothing(&key.0).then_some(0.0);
        let (own, other) = (ours.get(key).copied().or(none), theirs.get(key).copied().or(none));
        match (own, other) {
            (None, _) | (_, None) if may_differ => {}
            (None, _) => found.push(format!("{}: only upstream's", shown(key))),
            (_, None) => found.push(format!("{}: only mainstay's", shown(key))),
            (Some(own), Some(other)) => {
                let apart = (own - other).abs();
                let is_near = match tolerance(&key.0) {
                    Tolerance::Equal => apart == 0.0,
                    Tolerance::Near(part, least) => apart <= least.max(part * own.abs().max(other.abs())),
                };
                if !is_near {
                    found.push(format!("{}: {own}, upstream's {other}", shown(key)));
                }
            }
        }
    }
    found
}

/// What is read from a disk or written to it is told of only where something was: whether a sandbox's program was in memory already, say, is
/// chance.
fn counts_from_nothing(family: &str) -> bool {
    family.starts_with("container_fs_reads") || family.starts_with("container_fs_writes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str], node: &str) -> Values {
        of_text(&lines.join("\n"), node)
    }

    #[test]
    fn series_are_matched_by_the_labels_that_both_have() {
        let found = of(
            &[
                "# HELP a x",
                "a{container=\"c\",id=\"/x\",image=\"i\",name=\"1\",pod=\"p-one\"} 3 17",
                "a{container=\"\",id=\"/\",pod=\"\"} 4",
                "container_memory_rss{container=\"\",id=\"/\",pod=\"\"} 6 18",
                "container_memory_rss{container=\"\",id=\"/system.slice\",pod=\"\"} 7 18",
                "node_cpu_usage_seconds_total 8 19",
                "b 5",
            ],
            "one",
        );
        let labels = [("container", "c"), ("image", "i"), ("pod", "p")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let root = [("container", ""), ("pod", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = [
            (("a".to_owned(), labels), 3.0),
            (("root_container_memory_rss".to_owned(), root.to_vec()), 6.0),
            (("node_cpu_usage_seconds_total".to_owned(), Vec::new()), 8.0),
        ];
        assert_eq!(found, Values::from(expected));
    }

    #[test]
    fn values_that_are_too_far_apart_are_told() {
        let differ = |family: &str, own: f64, other: f64| {
            let line = |value: f64, node: &str| format!("{family}{{pod=\"p-{node}\"}} {value}");
            let (ours, theirs) = (of(&[&line(own, "a")], "a"), of(&[&line(other, "b")], "b"));
            !differences(&ours, &theirs, &Documented::default()).is_empty()
        };
        for (family, own, other, expected) in [
            ("container_spec_memory_limit_bytes", 64.0, 64.0, false),
            ("container_spec_memory_limit_bytes", 64.0, 65.0, true),
            ("container_memory_working_set_bytes", 20e6, 21e6, false),
            ("container_memory_working_set_bytes", 20e6, 26e6, true),
            ("container_cpu_usage_seconds_total", 3.0, 3.4, false),
            ("container_cpu_usage_seconds_total", 3.0, 6.0, true),
            ("container_fs_writes_bytes_total", 8e6, 30e6, true),
        ] {
            assert_eq!(differ(family, own, other), expected, "{family} {own} {other}");
        }
        let none = Values::new();
        let one = of(&["a{pod=\"p\"} 1"], "a");
        let documented = Documented::default();
        let disk = |bytes: &str| of(&[&format!("container_fs_reads_bytes_total{{pod=\"p\"}} {bytes}")], "a");
        assert_eq!(differences(&disk("4096"), &none, &documented), Vec::<String>::new());
        assert_eq!(differences(&disk("8000000"), &none, &documented).len(), 1, "too much for chance");
        assert_eq!(differences(&one, &none, &documented), ["a{pod=\"p\"}: only mainstay's"]);
        assert_eq!(differences(&none, &one, &documented), ["a{pod=\"p\"}: only upstream's"]);
    }

    #[test]
    fn numbers_of_a_summary() {
        let summary = |held: u64, node: &str| {
            let container = serde_json::json!({
                "name": "c", "memory": {"workingSetBytes": held}, "cpu": {"usageCoreNanoSeconds": 7, "usageNanoCores": 1},
            });
            let pod = serde_json::json!({
                "podRef": {"name": format!("p-{node}")}, "containers": [container],
                "volume": [{"name": "scratch", "usedBytes": 4096, "capacityBytes": 9}],
            });
            let whole =
                serde_json::json!({"node": {"fs": {"capacityBytes": 10, "usedBytes": 5}}, "pods": [pod]});
            of_summary(&whole, node)
        };
        let found = summary(20 << 20, "a");
        let names: Vec<&str> = found.keys().map(|(family, _)| family.as_str()).collect();
        let expected = [
            "summary_container_cpu_usageCoreNanoSeconds",
            "summary_container_memory_workingSetBytes",
            "summary_node_fs_capacityBytes",
            "summary_volume_usedBytes",
        ];
        assert_eq!(names, expected);
        let compare = |other| differences(&found, &summary(other, "b"), &Documented::default());
        assert_eq!(compare(21 << 20), [""; 0]);
        assert_eq!(compare(30 << 20).len(), 1);
    }

    #[test]
    fn what_may_differ_in_its_series_is_compared_where_both_have_it() {
        let documented = Documented::of("## What differs from upstream on purpose\n| `a` | x |\n");
        let one = of(&["a{pod=\"p\"} 100"], "n");
        let other = of(&["a{pod=\"p\"} 500", "a{pod=\"q\"} 7"], "n");
        assert_eq!(differences(&one, &other, &documented), ["a{pod=\"p\"}: 100, upstream's 500"]);
        assert_eq!(differences(&one, &Values::new(), &documented), [""; 0]);
    }
}
