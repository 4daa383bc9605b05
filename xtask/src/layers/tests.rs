use super::*;
use serde_json::json;

const GOOD: &str =
    "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n\n[dependencies]\na.workspace = true\n";

/// A crate as `cargo metadata` describes it; `dev:` and `out:` mark dependencies for tests and from outside.
fn krate(name: &str, dependencies: &[&str]) -> Crate {
    let list: Vec<Value> = dependencies
        .iter()
        .map(|word| {
            let (kind, word) = match word.strip_prefix("dev:") {
                Some(rest) => (json!("dev"), rest),
                None => (Value::Null, *word),
            };
            match word.strip_prefix("out:") {
                Some(outside) => json!({ "name": outside, "kind": kind }),
                None => json!({ "name": format!("mainstay-{word}"), "kind": kind, "path": "/x" }),
            }
        })
        .collect();
    Crate {
        name: name.to_owned(),
        manifest: GOOD.to_owned(),
        dependencies: dependencies_of(&json!({ "dependencies": list })),
    }
}

fn dependencies_of(package: &Value) -> Vec<Dependency> {
    super::dependencies(package)
}

#[test]
fn arrows() {
    let rows: [(&str, &str, &[&str], &str); 14] = [
        ("downwards", "reconcile", &["cri", "lifecycle", "types", "out:tokio"], ""),
        ("words on types", "config", &["types"], ""),
        ("upwards", "types", &["config"], "types (words) depends sideways on config (words)"),
        (
            "brain on mechanism",
            "lifecycle",
            &["cri"],
            "lifecycle (brains) depends upwards on cri (mechanisms)",
        ),
        (
            "managers",
            "observe",
            &["reconcile"],
            "observe (managers) depends sideways on reconcile (managers)",
        ),
        ("mechanisms", "logs", &["host"], "logs (mechanisms) depends sideways on host (mechanisms)"),
        ("engine may", "engine", &["cgroup", "logs", "shim"], ""),
        ("engine may not", "engine", &["http"], "engine (mechanisms) depends sideways on http (mechanisms)"),
        ("manager on edge", "snapshot", &["server"], "snapshot (managers) depends upwards on server (edges)"),
        ("the binary", "mainstay", &["server", "desired", "types"], ""),
        ("kit in tests", "cri", &["dev:testkit"], ""),
        ("kit in code", "cri", &["testkit"], "cri (mechanisms) depends upwards on testkit (support)"),
        ("test arrows count", "cri", &["dev:server"], "cri (mechanisms) depends upwards on server (edges)"),
        ("support", "e2e", &["testkit"], ""),
    ];
    for (name, from, to, expected) in rows {
        assert_eq!(check(&[krate(from, to)]).join("; "), expected, "{name}");
    }
}

#[test]
fn brains_stay_pure() {
    for outside in ["tokio", "rustix"] {
        let problems = check(&[krate("lifecycle", &[&format!("out:{outside}")])]);
        assert!(problems.len() == 1 && problems[0].contains(outside), "{problems:?}");
    }
    assert!(check(&[krate("lifecycle", &["dev:out:tokio", "out:jiff"])]).is_empty());
    assert!(check(&[krate("task", &["out:tokio"])]).is_empty(), "words may have a runtime");
}

#[test]
fn a_crate_without_a_layer_is_named() {
    let problems = check(&[krate("novelty", &[])]);
    assert!(problems.len() == 1 && problems[0].starts_with("novelty: in no layer"), "{problems:?}");
}

#[test]
fn manifests() {
    let lints = "[lints]\nworkspace = true\n";
    let rows = [
        ("good", GOOD.to_owned(), ""),
        ("inline", format!("{lints}[dependencies]\na = {{ workspace = true, features = [\"x\"] }}\n"), ""),
        ("table", format!("{lints}[dependencies.a]\nworkspace = true\nfeatures = []\n"), ""),
        ("comment", format!("{lints}[dependencies]\n# a = \"1\"\n"), ""),
        ("no lints", "[dependencies]\n".to_owned(), "no workspace lints"),
        ("own lints", "[lints.clippy]\nunwrap_used = \"allow\"\n".to_owned(), "no workspace lints"),
        ("version", format!("{lints}[dependencies]\na = \"1\"\n"), "a is not inherited"),
        ("path", format!("{lints}[dev-dependencies]\na = {{ path = \"../a\" }}\n"), "a is not inherited"),
        ("dotted", format!("{lints}[build-dependencies]\na.version = \"1\"\n"), "a is not inherited"),
        ("bad table", format!("[dependencies.a]\nversion = \"1\"\n{lints}"), "a is not inherited"),
        ("last table", format!("{lints}[dependencies.a]\nversion = \"1\"\n"), "a is not inherited"),
        ("target", format!("{lints}[target.'cfg(unix)'.dependencies]\na = \"1\"\n"), "a is not inherited"),
    ];
    for (name, manifest, expected) in rows {
        let problems = manifest_problems(&manifest).join("; ");
        assert!(
            problems.starts_with(expected) && problems.is_empty() == expected.is_empty(),
            "{name}: {problems}"
        );
    }
}

#[test]
fn the_table_names_each_crate_once() {
    let mut all: Vec<&str> = LAYERS.iter().flat_map(|(_, crates)| crates.iter().copied()).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    for (from, to) in SIDEWAYS {
        assert!(
            to.iter().all(|to| layer_of(to) == layer_of(from)),
            "{from} -> {to:?} is not within one layer"
        );
    }
}
