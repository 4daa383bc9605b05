//! The values of pods and their containers, one by one.

use std::collections::{BTreeMap, BTreeSet};

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

/// IDs of containers and cgroups are each one's own.
const OWN: [&str; 3] = ["id", "name", "node"];

/// The values of pods, and those of the machine. The pods' names end in the nodes'.
pub(super) fn of_pods(text: &str, node: &str) -> Values {
    let mut found = Values::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let Some((labels, rest)) = rest.rsplit_once("} ") else { continue };
        let Some(value) = rest.split(' ').next().and_then(|word| word.parse::<f64>().ok()) else { continue };
        let labels = pairs(labels);
        let of_pod = labels.iter().any(|(name, value)| name == "pod" && !value.is_empty());
        if !of_pod && !name.starts_with("machine_") {
            continue;
        }
        let labels = labels.into_iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let labels = labels.map(|(name, value)| match value.strip_suffix(&format!("-{node}")) {
            Some(pod) if name == "pod" => (name, pod.to_owned()),
            _ => (name, value),
        });
        found.insert((name.to_owned(), labels.collect()), value);
    }
    found
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
        "container_threads_max" | "container_processes" | "container_threads" | "container_health_state" => {
            Tolerance::Equal
        }
        "container_memory_swap" | "container_swap_usage_bytes" | "container_memory_events_max_total" => {
            Tolerance::Equal
        }
        // Times: both began within some minutes.
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
        if documented.is_different(&key.0) || documented.is_absent(&key.0) {
            continue;
        }
        let none = counts_from_nothing(&key.0).then_some(0.0);
        let (own, other) = (ours.get(key).copied().or(none), theirs.get(key).copied().or(none));
        match (own, other) {
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
        of_pods(&lines.join("\n"), node)
    }

    #[test]
    fn series_are_matched_by_the_labels_that_both_have() {
        let found = of(
            &[
                "# HELP a x",
                "a{container=\"c\",id=\"/x\",image=\"i\",name=\"1\",pod=\"p-one\"} 3 17",
                "a{container=\"\",id=\"/\",pod=\"\"} 4",
                "b 5",
            ],
            "one",
        );
        let labels = [("container", "c"), ("image", "i"), ("pod", "p")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(found, Values::from([(("a".to_owned(), labels), 3.0)]));
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
}
