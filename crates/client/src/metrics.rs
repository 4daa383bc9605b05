//! `mainstay metrics cost`, and reading the text that Prometheus reads.

use serde::Serialize;

use crate::{
    args::{CostArgs, CostOrder},
    connection::Connection,
    error::ClientError,
    output::Output,
    text::Table,
};

/// What is scraped of a node of today.
const PATHS: [&str; 5] =
    ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis"];

/// What one endpoint costs whoever scrapes it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Endpoint {
    path: String,
    series: usize,
    bytes: usize,
    families: Vec<Family>,
}

/// And one family of it; its bytes are those of all its lines.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Family {
    name: String,
    r#type: String,
    series: usize,
    bytes: usize,
}

pub(crate) async fn cost(args: CostArgs, output: &mut Output) -> Result<(), ClientError> {
    let paths = paths(&args.paths)?;
    let connection = Connection::new(&args.connect)?;
    let mut endpoints = Vec::new();
    for path in paths {
        let text = connection.text(&path).await?;
        endpoints.push(endpoint(path, &text, args.sort));
    }
    if let Some(format) = args.output {
        return output.data(&serde_json::json!({ "endpoints": endpoints }), format);
    }
    let mut rows = Vec::new();
    for endpoint in &endpoints {
        for family in &endpoint.families {
            rows.push(row(&endpoint.path, &family.name, &family.r#type, family.series, family.bytes));
        }
        rows.push(row(&endpoint.path, "(all)", "", endpoint.series, endpoint.bytes));
    }
    if endpoints.len() > 1 {
        let (series, bytes) = endpoints
            .iter()
            .fold((0, 0), |(series, bytes), endpoint| (series + endpoint.series, bytes + endpoint.bytes));
        rows.push(row("(all)", "(all)", "", series, bytes));
    }
    let mut table = Table::new(vec!["PATH", "FAMILY", "TYPE", "SERIES", "BYTES"]);
    output.text(&table.render(&rows, !args.no_headers))
}

/// The endpoints that are asked for, each once; all of today if none is.
fn paths(given: &[String]) -> Result<Vec<String>, ClientError> {
    if given.is_empty() {
        return Ok(PATHS.iter().map(|path| (*path).to_owned()).collect());
    }
    let mut paths: Vec<String> = Vec::new();
    for path in given {
        let bare = path.split('?').next().unwrap_or_default();
        if bare != "/metrics" && !bare.starts_with("/metrics/") {
            return Err(ClientError::NoMetrics { path: path.clone(), choices: PATHS.join(", ") });
        }
        if !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    Ok(paths)
}

fn row(path: &str, family: &str, kind: &str, series: usize, bytes: usize) -> Vec<String> {
    vec![path.to_owned(), family.to_owned(), kind.to_owned(), series.to_string(), bytes.to_string()]
}

fn endpoint(path: String, text: &str, order: CostOrder) -> Endpoint {
    let mut families = families(text);
    families.sort_by(|a, b| {
        let larger = match order {
            CostOrder::Bytes => b.bytes.cmp(&a.bytes),
            CostOrder::Series => b.series.cmp(&a.series),
            CostOrder::Name => std::cmp::Ordering::Equal,
        };
        larger.then_with(|| a.name.cmp(&b.name))
    });
    Endpoint { path, series: families.iter().map(|family| family.series).sum(), bytes: text.len(), families }
}

/// The families of a text: each goes from its HELP to the next one's.
fn families(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.split_inclusive('\n') {
        let mut words = line.split_whitespace();
        let (mark, what, name) = (words.next(), words.next(), words.next());
        let is_comment = mark == Some("#");
        if is_comment && what == Some("HELP") {
            families.push(Family { name: name.unwrap_or_default().to_owned(), ..Family::default() });
        }
        let Some(family) = families.last_mut() else { continue };
        family.bytes += line.len();
        if is_comment && what == Some("TYPE") {
            family.r#type = words.next().unwrap_or_default().to_owned();
        } else if !is_comment && mark.is_some() {
            family.series += 1;
        }
    }
    families
}

/// The samples of a text: name, labels as they stand between the braces, and value.
pub(crate) fn samples(text: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        // Of what a label's value may hold, a brace with a space behind it comes last in the labels themselves.
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = rest.rsplit_once("} ")?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        Some((name, labels, rest.split(' ').next()?.parse().ok()?))
    })
}

/// The value of a label, as it stands there; names of Kubernetes have nothing that is escaped.
pub(crate) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (found, behind) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = behind.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        if found == name {
            return behind.get(..end);
        }
        rest = behind.get(end + 1..)?.strip_prefix(',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a Help.\n# TYPE a gauge\na{x=\"1\"} 1 1700000000000\na{x=\"2\"} 2\n\
        # HELP b_seconds Help of b.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"+Inf\"} 3\n\
        b_seconds_sum 1.5e+02\nb_seconds_count 3\n";

    #[test]
    fn families_are_counted() {
        let found = endpoint("/metrics".into(), TEXT, CostOrder::Bytes);
        let [b, a] = found.families.as_slice() else { panic!("{found:?}") };
        assert_eq!((b.name.as_str(), b.r#type.as_str(), b.series), ("b_seconds", "histogram", 3));
        assert_eq!((a.name.as_str(), a.r#type.as_str(), a.series), ("a", "gauge", 2));
        assert_eq!((found.series, found.bytes), (5, TEXT.len()));
        assert_eq!(a.bytes + b.bytes, TEXT.len());
        let by_name = endpoint("/metrics".into(), TEXT, CostOrder::Name);
        assert_eq!(by_name.families[0].name, "a");
        assert_eq!(endpoint("/metrics".into(), "", CostOrder::Name).families, []);
    }

    #[test]
    fn samples_are_read() {
        let found: Vec<_> = samples(TEXT).collect();
        assert_eq!(found[0], ("a", "x=\"1\"", 1.0));
        assert_eq!(found[3], ("b_seconds_sum", "", 150.0));
        let labels = r#"a="x\"},b=\"no",b="yes",c="""#;
        assert_eq!(
            (label(labels, "b"), label(labels, "c"), label(labels, "d")),
            (Some("yes"), Some(""), None)
        );
        assert_eq!(label("junk", "b"), None);
    }

    #[test]
    fn paths_are_checked() {
        assert_eq!(paths(&[]).unwrap().len(), PATHS.len());
        assert_eq!(paths(&["/metrics".into(), "/metrics".into()]).unwrap(), ["/metrics"]);
        for path in ["/pods", "metrics", "/metricsx", ""] {
            let error = paths(&[path.to_owned()]).unwrap_err();
            assert!(error.to_string().contains("write one of /metrics, /metrics/cadvisor"), "{error}");
        }
    }
}
