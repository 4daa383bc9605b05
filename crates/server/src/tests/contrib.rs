//! What is in `contrib/` for Prometheus and Grafana speaks of nothing that is not served.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use mainstay_cri::CallStats;
use mainstay_types::{ProbeKind, ProbeLabels, ProbeMetrics};

use super::*;
use crate::{cadvisor, exposition::Kind, metrics, own_families, resource_metrics};

/// Made by Prometheus itself for each target.
const OF_PROMETHEUS: &str = "up";
/// Words of PromQL that stand where a name could.
const WORDS: &[&str] = &["and", "or", "unless", "bool", "offset", "atan2"];
/// Words that a list of labels follows.
const GROUPING: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Every family by its type: those of tables by their tables, the others by what a server with something to tell says.
async fn served() -> BTreeMap<String, String> {
    let word = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let tables = cadvisor::FAMILIES.iter().map(|family| (family.name, family.kind));
    let tables = tables.chain(own_families::families().map(|family| (family.name, family.kind)));
    let tables = tables.chain(resource_metrics::families());
    let mut found: BTreeMap<String, String> =
        tables.map(|(name, kind)| (name.to_owned(), word(kind).to_owned())).collect();

    let fixture = Fixture::start();
    let mut texts = vec![fixture.get("/healthz").await.body];
    for path in ["/metrics", "/metrics/slis"] {
        texts.push(fixture.get(path).await.body);
    }
    // A server that has just started answers before it has looked at the machine.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let with_machine = loop {
        let text = fixture.get("/metrics/cadvisor").await.body;
        if text.contains("# TYPE machine_scrape_error") {
            break text;
        }
        assert!(std::time::Instant::now() < deadline, "nobody has looked at the machine: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    texts.push(with_machine);
    let calls = CallStats::default();
    calls.pretend("status", Duration::from_millis(3), true);
    texts.push(metrics::runtime_calls_text(&calls));
    let probes = ProbeMetrics::default();
    let labels = ProbeLabels {
        container: "c".into(),
        namespace: "default".into(),
        pod: "web".into(),
        pod_uid: "u".into(),
        kind: ProbeKind::Readiness,
    };
    probes.series(&labels).succeeded(Duration::from_millis(3));
    texts.push(metrics::probes_text(Default::default(), &probes, jiff::Timestamp::UNIX_EPOCH));
    for line in texts.iter().flat_map(|text| text.lines()) {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.insert(name.to_owned(), kind.to_owned());
        }
    }
    found
}

/// The names of series in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = expression;
    // What a name was read from is behind us, so that a look at what follows it is enough.
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
        let end = |at: usize| rest.get(at..).unwrap_or_default();
        rest = match first {
            '"' | '\'' | '`' => {
                let mut escaped = false;
                let closing = rest.char_indices().skip(1).find(|(_, c)| {
                    let closes = *c == first && !escaped;
                    escaped = *c == '\\' && first != '`' && !escaped;
                    closes
                });
                end(closing.expect("a string has an end").0 + 1)
            }
            // Labels may hold a brace in a string only, which no rule of ours does.
            '{' => end(rest.find('}').expect("labels have an end") + 1),
            '[' => end(rest.find(']').expect("a range has an end") + 1),
            // A number with its unit is no name.
            '0'..='9' | '$' => rest.trim_start_matches('$').trim_start_matches(|c| is_name(c) || c == '.'),
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let (name, behind) = rest.split_at(length);
                let follows = behind.trim_start();
                if GROUPING.contains(&name) && follows.starts_with('(') {
                    let at = follows.find(')').expect("a list of labels has an end");
                    follows.get(at + 1..).unwrap_or_default()
                } else {
                    let next = follows.split(|c| !is_name(c)).next();
                    let is_called = follows.starts_with('(') || matches!(next, Some("by" | "without"));
                    if !is_called && !WORDS.contains(&name) && !GROUPING.contains(&name) {
                        names.insert(name.to_owned());
                    }
                    behind
                }
            }
            other => end(other.len_utf8()),
        };
    }
    names
}

/// Grafana's question for the values of a label: the series in it.
fn of_variable(query: &str) -> BTreeSet<String> {
    let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (series, _) = inner.and_then(|inner| inner.rsplit_once(',')).expect("label_values(SERIES, LABEL)");
    names(series)
}

#[test]
fn names_are_found_in_expressions() {
    for (expression, expected) in [
        ("up == 0", &["up"][..]),
        ("sum by (instance, le) (rate(a_bucket{x=\"y\"}[5m]))", &["a_bucket"]),
        ("sum(a) by (b) / on (c) group_left (d) e:f:g", &["a", "e:f:g"]),
        ("histogram_quantile(0.99, a) > 1e3 and b offset 5m", &["a", "b"]),
        ("time() - timestamp(a) > 90", &["a"]),
        ("label_replace(a, \"x\", \"$1 b\", 'c', `d`) or vector(0)", &["a"]),
        ("rate(a[$__rate_interval]) * $scale", &["a"]),
    ] {
        let found: Vec<_> = names(expression).into_iter().collect();
        assert_eq!(found, expected, "{expression}");
    }
    assert_eq!(of_variable("label_values(a{b=~\"$c\"}, d)").into_iter().collect::<Vec<_>>(), ["a"]);
}

/// What is wrong with a name of series, if anything.
fn unknown(name: &str, families: &BTreeMap<String, String>) -> Option<&'static str> {
    if families.get(name).is_some_and(|kind| kind != "histogram") || name == OF_PROMETHEUS {
        return None;
    }
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    match of_histogram.or(Some(name)).and_then(|base| families.get(base)) {
        Some(kind) if kind == "histogram" && of_histogram.is_some() => None,
        Some(kind) if kind == "histogram" => Some("is a histogram: ask for its _bucket, _sum or _count"),
        _ => Some("is served by no endpoint"),
    }
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn rules_and_dashboard_name_only_what_is_served() {
    let families = served().await;
    assert!(
        !families.contains_key("kubelet_image_garbage_collected_total"),
        "what is not served is not found: {families:?}"
    );
    let rules: Value = serde_yaml_ng::from_str(&read("prometheus/mainstay.rules.yaml")).unwrap();
    let rules: Vec<&Value> =
        rules["groups"].as_array().unwrap().iter().flat_map(|it| it["rules"].as_array().unwrap()).collect();
    let records: BTreeSet<String> =
        rules.iter().filter_map(|rule| Some(rule["record"].as_str()?.to_owned())).collect();
    // Who asks for which series, and whether rules may be among them: the dashboard must not need those.
    let mut asked: Vec<(String, BTreeSet<String>, bool)> = Vec::new();
    for rule in &rules {
        let title = rule["record"].as_str().or(rule["alert"].as_str()).expect("a rule has a name");
        asked.push((title.to_owned(), names(rule["expr"].as_str().unwrap()), true));
        if rule["alert"].is_string() {
            for text in ["summary", "description"] {
                assert!(rule["annotations"][text].is_string(), "{title} has no {text}");
            }
        }
    }
    let dashboard: Value = serde_json::from_str(&read("grafana/mainstay.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            asked.push((panel["title"].to_string(), names(target["expr"].as_str().unwrap()), false));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            let query = variable["query"]["query"].as_str().unwrap();
            asked.push((variable["name"].to_string(), of_variable(query), false));
        }
    }
    assert!(rules.len() > 20 && asked.len() > 60, "not all were read: {}", asked.len());
    let mut faults = Vec::new();
    for (title, names, of_rule) in &asked {
        assert!(!names.is_empty(), "{title} asks for nothing");
        for name in names.iter().filter(|name| !(*of_rule && records.contains(*name))) {
            if let Some(why) = unknown(name, &families) {
                faults.push(format!("{title}: {name} {why}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
