use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::kubelet::KubeletConfiguration;

/// Compares a committed file with what the table gives, or writes it if `UPDATE_DOCS` is set.
fn assert_current(path: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not current: run UPDATE_DOCS=1 cargo test -p mainstay-config",
        path.display()
    );
}

#[test]
fn the_documentation_page_is_current() {
    assert_current("../../docs/configuration/kubelet-configuration.md", &markdown());
}

#[test]
fn the_not_yet_list_is_current() {
    assert_current("not-yet.txt", &not_yet_text());
}

#[test]
fn the_table_agrees_with_itself() {
    let config = serde_json::to_value(KubeletConfiguration::default()).unwrap();
    let mut names = BTreeSet::new();
    for entry in catalog::fields().iter().chain(catalog::settings()) {
        let (path, definition) = (&entry.path, entry.definition);
        assert!(names.insert(path), "{path} is defined twice");
        let doc = definition.doc.trim();
        assert!(doc.ends_with('.') && doc.len() > 10, "{path} needs a sentence: {doc:?}");
        if let Some(gate) = definition.gate {
            assert!(gates::find_gate(gate).is_some(), "{path} needs the unknown gate {gate}");
        }
        if let Some(default) = definition.default {
            assert!(default_fits(definition.kind, default), "{path}: default {default:?} is not of its kind");
            // The default reached the typed value, too.
            if !entry.is_setting() && !matches!(definition.kind, Kind::TextList) {
                let pointer = format!("/{}", path.replace('.', "/"));
                let value = config.pointer(&pointer).unwrap_or_else(|| panic!("{path} is not in the struct"));
                let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
                assert_eq!(text, default, "{path}");
            }
        }
    }
    let flags = catalog::fields().iter().chain(catalog::settings());
    let count = flags.filter(|entry| entry.definition.flag.is_some()).count();
    assert_eq!(catalog::flags().len(), count, "two options have the same flag");
}

fn default_fits(kind: Kind, text: &str) -> bool {
    match kind {
        Kind::Bool => text.parse::<bool>().is_ok(),
        Kind::Int32 => text.parse::<i32>().is_ok(),
        Kind::Int64 => text.parse::<i64>().is_ok(),
        Kind::Uint32 => text.parse::<u32>().is_ok(),
        Kind::Text => true,
        Kind::Duration | Kind::DurationOrNanoseconds => {
            text.parse::<GoDuration>().is_ok_and(|duration| duration.to_string() == text)
        }
        Kind::Quantity => text.parse::<crate::quantity::Quantity>().is_ok(),
        Kind::TextList => serde_json::from_str::<Vec<String>>(text).is_ok(),
        _ => false,
    }
}

/// The list that the first state of the agent acts upon; a change that acts upon more adds to it.
#[test]
fn acted_upon() {
    let acted: Vec<&str> = catalog::fields()
        .iter()
        .filter(|entry| entry.definition.acted)
        .map(|entry| entry.path.as_str())
        .collect();
    for path in [
        "staticPodPath",
        "port",
        "logging.verbosity",
        "crashLoopBackOff.maxContainerRestartPeriod",
        "failCgroupV1",
    ] {
        assert!(acted.contains(&path), "{path}");
    }
    let not_yet = catalog::not_yet();
    assert!(not_yet.is_sorted());
    for path in ["serverTLSBootstrap", "logging.vmodule", "--bootstrap-kubeconfig"] {
        assert!(not_yet.contains(&path), "{path}");
    }
}

#[test]
fn explains_by_path_flag_group_and_gate() {
    let text = explain("authentication.webhook.cacheTTL").unwrap();
    assert_eq!(
        text,
        "authentication.webhook.cacheTTL\n  \
         How long an answer about a token is kept.\n  \
         type:    a duration (\"30s\", \"1m30s\")\n  \
         default: 2m0s\n  \
         flag:    --authentication-token-webhook-cache-ttl (deprecated)\n  \
         check:   not negative\n  \
         status:  acted upon\n"
    );
    assert!(explain("--pod-manifest-path").unwrap().starts_with("staticPodPath\n"));
    assert!(explain("root_dir").unwrap().starts_with("--root-dir\n"));
    assert!(explain("v").unwrap().contains("flag:    --v, -v"));
    assert_eq!(explain("authentication").unwrap().matches("status:").count(), 4);
    assert!(explain("featureGates.PodsAPI").unwrap().contains("stage:   BETA"));
    assert!(explain("HPAScaleToZero").unwrap().contains("has no effect on a node"));
}

#[test]
fn unknown_names_get_the_nearest() {
    for (name, expected) in [
        ("staticPodPth", "there is no option \"staticPodPth\"; did you mean \"staticPodPath\"?"),
        ("xyzzy", "there is no option \"xyzzy\"; the documentation page lists all"),
        ("", "there is no option \"\"; the documentation page lists all"),
    ] {
        assert_eq!(explain(name).unwrap_err().to_string(), expected);
    }
}
