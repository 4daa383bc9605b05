//! ClusterTrustBundles in a projected volume: the certificates of those that the source means, each once.
//!
//! Upstream shuffles them, so that nobody relies on an order; here they are sorted, so that a file changes only when its
//! certificates do. Either is allowed by the field's documentation.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::core::v1::ClusterTrustBundleProjection, apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use mainstay_types::{Objects, TrustBundle, TrustQuery};

use super::VolumeSpecError;
use crate::references::trust_query;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
const COLUMNS: usize = 64;

/// What the file shows: certificates in PEM; nothing if there are none and that is allowed.
pub(super) fn anchors(
    source: &ClusterTrustBundleProjection,
    objects: &Objects,
) -> Result<Vec<u8>, VolumeSpecError> {
    let query = trust_query(source).ok_or(VolumeSpecError::WhichTrustBundle)?;
    let Some(found) = objects.trust_bundles.get(&query) else {
        let what = match query {
            TrustQuery::Name(name) => format!("the ClusterTrustBundle {name:?}"),
            TrustQuery::Signer(signer) => format!("the ClusterTrustBundles of signer {signer:?}"),
        };
        return Err(VolumeSpecError::NoTrustYet { what });
    };
    let mut chosen: Vec<(&String, &TrustBundle)> = Vec::new();
    for (name, bundle) in &**found {
        let meant = match &query {
            TrustQuery::Name(_) => true,
            TrustQuery::Signer(_) => selects(source.label_selector.as_ref(), &bundle.labels)?,
        };
        if meant {
            chosen.push((name, bundle));
        }
    }
    if chosen.is_empty() && source.optional != Some(true) {
        return Err(match query {
            TrustQuery::Name(name) => VolumeSpecError::NoTrustBundle { name },
            TrustQuery::Signer(signer) => VolumeSpecError::NoTrustMatch { signer },
        });
    }
    let mut all = BTreeSet::new();
    for (name, bundle) in chosen {
        let own = certificates(&bundle.certificates);
        all.extend(own.ok_or_else(|| VolumeSpecError::BadTrustBundle { name: name.clone() })?);
    }
    Ok(pem(all).into_bytes())
}

/// The certificates of a chain in their order, without what stands between them and without headers; `None` if one of them is none, or there
/// are none.
#[must_use]
pub fn plain_chain(chain: &str) -> Option<String> {
    certificates(chain).map(pem)
}

fn pem(all: impl IntoIterator<Item = Vec<u8>>) -> String {
    let mut text = String::new();
    for der in all {
        text.push_str(BEGIN);
        text.push('\n');
        // Base64 is ASCII.
        for (at, letter) in STANDARD.encode(der).chars().enumerate() {
            if at > 0 && at % COLUMNS == 0 {
                text.push('\n');
            }
            text.push(letter);
        }
        text.push('\n');
        text.push_str(END);
        text.push('\n');
    }
    text
}

/// The certificates of a bundle, without what stands between them; `None` if one of them is none.
fn certificates(pem: &str) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut body: Option<String> = None;
    for line in pem.lines().map(str::trim) {
        match (&mut body, line) {
            (None, BEGIN) => body = Some(String::new()),
            (None, _) => {}
            (Some(text), END) => {
                found.push(STANDARD.decode(text.as_bytes()).ok().filter(|der| !der.is_empty())?);
                body = None;
            }
            // A header.
            (Some(_), part) if part.contains(':') => {}
            (Some(text), part) => text.push_str(part),
        }
    }
    (body.is_none() && !found.is_empty()).then_some(found)
}

/// Whether labels are as wanted. No selector wants nothing, an empty one everything.
fn selects(
    selector: Option<&LabelSelector>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, VolumeSpecError> {
    let Some(selector) = selector else { return Ok(false) };
    let mut all = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    for wanted in selector.match_expressions.iter().flatten() {
        let label = labels.get(&wanted.key);
        let listed = label.is_some_and(|label| wanted.values.iter().flatten().any(|value| value == label));
        all &= match wanted.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            other => return Err(VolumeSpecError::SelectorOperator { operator: other.to_owned() }),
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// Not certificates, but told apart like them.
    fn pem(letters: &[&str]) -> String {
        let block = |letter: &&str| format!("# note\n{BEGIN}\n{}\n{END}\n", STANDARD.encode(letter));
        letters.iter().map(block).collect()
    }

    fn objects() -> Objects {
        let bundle = |labels: Value, letters: &[&str]| TrustBundle {
            labels: serde_json::from_value(labels).unwrap(),
            certificates: pem(letters),
        };
        let bundles = |all: Vec<(&str, TrustBundle)>| {
            Arc::new(all.into_iter().map(|(name, it)| (name.to_owned(), it)).collect())
        };
        let broken = TrustBundle { certificates: format!("{BEGIN}\n?\n{END}"), ..TrustBundle::default() };
        let trust_bundles = [
            (TrustQuery::Name("one".into()), bundles(vec![("one", bundle(json!({}), &["b", "a"]))])),
            (TrustQuery::Name("none".into()), bundles(Vec::new())),
            (TrustQuery::Name("broken".into()), bundles(vec![("broken", broken)])),
            (
                TrustQuery::Signer("s".into()),
                bundles(vec![
                    ("s:live", bundle(json!({ "v": "live" }), &["c", "a"])),
                    ("s:next", bundle(json!({ "v": "next", "canary": "" }), &["a", "d"])),
                ]),
            ),
        ];
        Objects { trust_bundles: trust_bundles.into(), ..Objects::default() }
    }

    #[test]
    fn certificates_are_chosen_sorted_and_shown_once() {
        let letters = |bytes: Vec<u8>| {
            let found = certificates(std::str::from_utf8(&bytes).unwrap()).unwrap_or_default();
            found.iter().map(|der| String::from_utf8(der.clone()).unwrap()).collect::<Vec<_>>().join(" ")
        };
        let rows = [
            ("by name", json!({ "name": "one" }), "a b"),
            ("missing", json!({ "name": "none" }), "! clustertrustbundle \"none\" not found"),
            ("missing, optional", json!({ "name": "none", "optional": true }), ""),
            (
                "not heard of",
                json!({ "name": "new" }),
                "! the API server has not given the ClusterTrustBundle \"new\" yet",
            ),
            (
                "not heard of, optional",
                json!({ "name": "new", "optional": true }),
                "! the API server has not given",
            ),
            (
                "broken",
                json!({ "name": "broken" }),
                "! clustertrustbundle \"broken\" holds what is no certificate",
            ),
            ("all of a signer", json!({ "signerName": "s", "labelSelector": {} }), "a c d"),
            (
                "no selector",
                json!({ "signerName": "s" }),
                "! combination of signerName and labelSelector matched zero",
            ),
            ("no selector, optional", json!({ "signerName": "s", "optional": true }), ""),
            (
                "label",
                json!({ "signerName": "s", "labelSelector": { "matchLabels": { "v": "next" } } }),
                "a d",
            ),
            (
                "In",
                json!({ "signerName": "s", "labelSelector": { "matchExpressions": [{ "key": "v", "operator": "In", "values": ["live", "x"] }] } }),
                "a c",
            ),
            (
                "NotIn",
                json!({ "signerName": "s", "labelSelector": { "matchExpressions": [{ "key": "v", "operator": "NotIn", "values": ["live"] }] } }),
                "a d",
            ),
            (
                "Exists",
                json!({ "signerName": "s", "labelSelector": { "matchExpressions": [{ "key": "canary", "operator": "Exists" }] } }),
                "a d",
            ),
            (
                "DoesNotExist",
                json!({ "signerName": "s", "labelSelector": { "matchExpressions": [{ "key": "canary", "operator": "DoesNotExist" }] } }),
                "a c",
            ),
            (
                "no operator",
                json!({ "signerName": "s", "labelSelector": { "matchExpressions": [{ "key": "v", "operator": "Near" }] } }),
                "! labelSelector: \"Near\" is no operator",
            ),
            ("nothing", json!({}), "! the clusterTrustBundle source names neither"),
        ];
        for (row, mut source, expected) in rows {
            source["path"] = json!("ca.pem");
            let source = serde_json::from_value(source).unwrap();
            let seen = anchors(&source, &objects()).map_or_else(|error| format!("! {error}"), letters);
            if expected.starts_with('!') {
                assert!(seen.starts_with(expected), "{row}: {seen}");
            } else {
                assert_eq!(seen, expected, "{row}");
            }
        }
    }

    #[test]
    fn a_chain_keeps_its_order_and_nothing_but_certificates() {
        let block = |letter: &str| format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(letter));
        let with_header = block("b").replacen('\n', "\nProc-Type: 4\n\n", 1);
        let seen = plain_chain(&format!("leaf\n{with_header}between\n{}\n", block("a")));
        assert_eq!(seen, Some(block("b") + &block("a")));
        assert_eq!(plain_chain("nothing"), None);
        assert_eq!(plain_chain(&format!("{BEGIN}\n?\n{END}\n")), None);
    }

    #[test]
    fn long_certificates_are_wrapped_as_others_wrap_them() {
        let source = serde_json::from_value(json!({ "name": "n", "path": "p" })).unwrap();
        let bundle = TrustBundle { certificates: pem(&["x".repeat(100).as_str()]), ..TrustBundle::default() };
        let found = Arc::new([("n".to_owned(), bundle)].into());
        let objects =
            Objects { trust_bundles: [(TrustQuery::Name("n".into()), found)].into(), ..Objects::default() };
        let text = String::from_utf8(anchors(&source, &objects).unwrap()).unwrap();
        let widths: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(widths, [27, 64, 64, 8, 25]);
    }
}
