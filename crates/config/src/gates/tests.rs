use std::collections::BTreeMap;

use super::*;

fn resolve(set: &[(&str, bool)]) -> Result<(FeatureGates, Vec<String>), Vec<String>> {
    let set: BTreeMap<String, bool> = set.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    FeatureGates::resolve(&set).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn gates_and_defaults_are_upstreams() {
    let metrics = include_str!("../../testdata/upstream-feature-gates.txt");
    let gates = FeatureGates::default();
    let ours: BTreeMap<&str, String> = gates
        .all()
        .map(|(gate, on)| {
            let value = u8::from(on);
            let line = format!(
                "kubernetes_feature_enabled{{name=\"{}\",stage=\"{}\"}} {value}",
                gate.name,
                gate.stage.label()
            );
            (gate.name, line)
        })
        .collect();
    for line in metrics.lines() {
        let name = line.split('"').nth(1).unwrap();
        assert_eq!(ours.get(name).map(String::as_str), Some(line));
    }
    // The only ones that upstream does not have.
    assert_eq!(ours.len(), metrics.lines().count() + 2);
    assert!(["PodInfoAPI", "KubeletPodResourcesGetAllocatable"].iter().all(|name| find_gate(name).is_some()));
}

#[test]
fn the_tables_are_sorted_and_whole() {
    for table in [node::GATES, elsewhere::GATES] {
        assert!(table.is_sorted_by_key(|gate| gate.name));
    }
    for gate in known_gates() {
        assert_eq!(known_gates().filter(|other| other.name == gate.name).count(), 1, "{}", gate.name);
        for need in gate.needs {
            assert!(find_gate(need).is_some(), "{} needs {need}", gate.name);
        }
    }
    assert!(resolve(&[]).is_ok(), "the defaults need nothing that is off");
}

#[test]
fn refused() {
    for (set, expected) in [
        (
            &[("PodsAPi", true)] as &[_],
            "featureGates.PodsAPi: unrecognized feature gate: PodsAPi; did you mean \"PodsAPI\"?",
        ),
        (
            &[("Teleportation", true)],
            "featureGates.Teleportation: unrecognized feature gate: Teleportation; remove it; it may have graduated in an earlier release",
        ),
        (
            &[("UserNamespacesSupport", false)],
            "featureGates.UserNamespacesSupport: cannot set feature gate UserNamespacesSupport to false, feature is locked to true; remove the setting",
        ),
        (
            &[("GracefulNodeShutdown", false)],
            "featureGates.GracefulNodeShutdownBasedOnPodPriority: GracefulNodeShutdownBasedOnPodPriority is enabled, but depends on features that are disabled: [GracefulNodeShutdown]; enable those as well, or disable this one",
        ),
    ] {
        assert_eq!(resolve(set), Err(vec![expected.to_owned()]));
    }
}

#[test]
fn noticed() {
    for (set, expected) in [
        (
            ("CustomCPUCFSQuotaPeriod", true),
            Some(
                "setting GA feature gate CustomCPUCFSQuotaPeriod=true; it will be removed in a future release",
            ),
        ),
        (
            ("ChangeContainerStatusOnKubeletRestart", true),
            Some(
                "setting deprecated feature gate ChangeContainerStatusOnKubeletRestart=true; it will be removed in a future release",
            ),
        ),
        (("HPAScaleToZero", false), Some("feature gate HPAScaleToZero=false has no effect on a node")),
        (
            ("UserNamespacesSupport", true),
            Some(
                "setting GA feature gate UserNamespacesSupport=true; it will be removed in a future release",
            ),
        ),
        (("PodInfoAPI", false), None),
    ] {
        let (gates, notices) = resolve(&[set]).unwrap();
        assert_eq!(notices.first().map(String::as_str), expected);
        assert_eq!(gates.enabled(set.0), set.1);
    }
}

#[test]
fn groups_set_what_is_not_named() {
    let (gates, _) = resolve(&[("AllAlpha", true), ("EventedPLEG", false)]).unwrap();
    assert!(gates.enabled("ContainerStopSignals") && !gates.enabled("EventedPLEG"));
    assert!(gates.enabled("PodsAPI") && !gates.enabled("PodAndContainerStatsFromCRI"));
    assert!(!gates.enabled("AllBeta"));

    let (gates, _) = resolve(&[("AllBeta", false), ("PodsAPI", true)]).unwrap();
    assert!(gates.enabled("PodsAPI") && !gates.enabled("ContainerCheckpoint"));
    assert!(gates.enabled("NodeSwap"), "a finished feature stays");

    assert!(!FeatureGates::default().enabled("NoSuchGate"));
}
