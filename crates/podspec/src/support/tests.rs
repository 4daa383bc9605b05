use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::json;

use super::{State, alike, deciding, fields::pod_fields, not_yet_used, page, rows};
use crate::default_pod;

fn file(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn no_field_of_a_pod_is_forgotten() {
    let forgotten: Vec<_> = pod_fields().into_iter().filter(|field| deciding(field).is_none()).collect();
    assert!(forgotten.is_empty(), "no line in crates/podspec/src/support for {forgotten:#?}");
}

#[test]
fn no_line_is_about_a_field_that_does_not_exist_or_that_another_line_decides() {
    let fields = pod_fields();
    let mut seen = BTreeSet::new();
    for row in rows() {
        assert!(seen.insert(row.path), "{} has two lines", row.path);
        assert!(fields.iter().any(|field| row.covers(field)), "{}: v1.Pod has no such field", row.path);
        let decides = |field: &&String| deciding(field).is_some_and(|by| by.path == row.path);
        assert!(
            fields.iter().any(|field| decides(&field)),
            "{}: longer lines say it all; remove this one",
            row.path
        );
    }
}

#[test]
fn every_line_says_what_it_should() {
    for row in rows() {
        match row.state {
            State::Works(tests, _) => assert!(!tests.is_empty(), "{} works; which test shows it?", row.path),
            State::PassedThrough(text) | State::NotYet(text) => {
                assert!(
                    text.len() > 3 && !text.contains('|') && !text.ends_with('.'),
                    "{}: {text:?}",
                    row.path
                );
            }
        }
    }
}

#[test]
fn what_works_is_shown_by_a_test_that_exists() {
    let mut sources = BTreeMap::<&str, String>::new();
    for row in rows() {
        let State::Works(tests, _) = row.state else { continue };
        for test in tests {
            let (name, function) =
                test.split_once("::").unwrap_or_else(|| panic!("{test}: write file::function"));
            let source = sources.entry(name).or_insert_with(|| {
                let path = file(&format!("crates/e2e/tests/{name}.rs"));
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            });
            let lines: Vec<&str> = source.lines().collect();
            let begins = format!("fn {function}(");
            let is_test =
                |pair: &[&str]| pair[0].trim() == "#[test]" && pair[1].trim_start().starts_with(&begins);
            assert!(lines.windows(2).any(is_test), "{}: {name}.rs has no test {function}", row.path);
        }
    }
}

#[test]
fn the_page_is_current() {
    let (path, wanted) = (file("docs/pod-spec.md"), page::markdown());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/pod-spec.md is not current: run UPDATE_DOCS=1 cargo test -p mainstay-podspec support"
    );
}

#[test]
fn longer_lines_and_own_lists_come_first() {
    assert_eq!(alike("spec.initContainers[].image").as_deref(), Some("spec.containers[].image"));
    assert_eq!(alike("spec.containers[].image"), None);
    let init = deciding("spec.initContainers[].image").unwrap();
    assert_eq!(init.path, deciding("spec.containers[].image").unwrap().path);
    // `volumes` is no prefix of `volumesX`, nor `env` of `envFrom`.
    assert_ne!(deciding("spec.containers[].envFrom[].prefix").unwrap().path, "spec.containers[].env");
}

#[test]
fn uses_of_fields_that_do_nothing_are_told_once_and_with_their_place() {
    let mut pod = serde_json::from_value(json!({
        "metadata": { "name": "p" },
        "spec": {
            "hostUsers": true,
            "volumes": [{ "name": "v", "iscsi": { "targetPortal": "", "iqn": "", "lun": 0 } }, { "name": "w", "gitRepo": {} }],
            "containers": [
                { "name": "a", "image": "i" },
                { "name": "b", "image": "i", "resources": { "claims": [{ "name": "x" }, { "name": "y", "request": "r" }] } },
            ],
            "initContainers": [{ "name": "i", "image": "i", "resources": { "claims": [{ "name": "x" }] } }],
        },
    }))
    .unwrap();
    default_pod(&mut pod);
    let places: Vec<String> =
        not_yet_used(&pod).iter().map(|text| text.split_once(": ").unwrap().0.to_owned()).collect();
    let wanted = [
        "spec.containers[1].resources.claims",
        "spec.initContainers[0].resources.claims",
        "spec.volumes[0].iscsi",
        "spec.volumes[1].gitRepo",
    ];
    assert_eq!(places, wanted);
}

#[test]
fn a_plain_pod_is_warned_of_nothing() {
    let mut pod = serde_json::from_value(json!({
        "metadata": { "name": "p", "labels": { "a.b/c": "d" } },
        "spec": { "containers": [{ "name": "a", "image": "i", "ports": [{ "containerPort": 80 }] }] },
    }))
    .unwrap();
    default_pod(&mut pod);
    assert_eq!(not_yet_used(&pod), Vec::<String>::new());
}
