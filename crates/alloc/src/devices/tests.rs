use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const RESOURCE: &str = "example.com/dev";

fn resource() -> Arc<str> {
    RESOURCE.into()
}

fn devices(ids: &[(&str, bool)]) -> Devices {
    ids.iter().map(|(id, healthy)| ((*id).into(), Device { healthy: *healthy, nodes: Vec::new() })).collect()
}

fn ledger(ids: &[(&str, bool)]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.serve(&resource());
    ledger.list(&resource(), devices(ids));
    ledger
}

/// Containers by name, list and how many devices each asks for.
fn pod(uid: &str, containers: &[(&str, &str, u32)]) -> Pod {
    let of = |list: &str| -> Vec<_> {
        let wanted = containers
            .iter()
            .filter(|(_, kind, _)| if list == "app" { *kind == "app" } else { *kind != "app" });
        wanted
            .map(|(name, kind, count)| {
                let mut container =
                    json!({"name": name, "resources": {"limits": {RESOURCE: count.to_string(), "cpu": "1"}}});
                if *kind == "sidecar" {
                    container["restartPolicy"] = "Always".into();
                }
                container
            })
            .collect()
    };
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid},
        "spec": {"initContainers": of("init"), "containers": of("app")},
    }))
    .unwrap()
}

/// All that a pod asks for, one container after the other, as admission does it.
fn admit(ledger: &mut Ledger, pod: &Pod) -> Result<Vec<Vec<String>>, AskError> {
    let mut all = Vec::new();
    for ask in asks(pod) {
        let taken = ledger.take(&ask, &[], None)?;
        if !taken.is_empty() {
            assert!(ledger.confirm(&ask, vec![1]));
        }
        all.push(taken.iter().map(ToString::to_string).collect());
    }
    Ok(all)
}

#[test]
fn what_is_asked_for_is_given_and_kept() {
    let mut ledger = ledger(&[("a", true), ("b", false), ("c", true)]);
    let first = pod("p", &[("main", "app", 1)]);
    assert_eq!(admit(&mut ledger, &first).unwrap(), [["a"]]);
    assert_eq!(admit(&mut ledger, &first).unwrap(), [Vec::<String>::new()], "it has it already");
    let error = admit(&mut ledger, &pod("q", &[("main", "app", 2)])).unwrap_err().to_string();
    assert_eq!(
        error,
        "requested number of devices unavailable for example.com/dev. Requested: 2, Available: 1"
    );
    assert_eq!(admit(&mut ledger, &pod("q", &[("main", "app", 1)])).unwrap(), [["c"]]);
    let error = admit(&mut ledger, &pod("p", &[("main", "app", 2)])).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"pod "p" container "main" changed request for resource "example.com/dev" from 1 to 2"#
    );
    assert!(ledger.release("p") && !ledger.release("p"));
    assert_eq!(admit(&mut ledger, &pod("r", &[("main", "app", 1)])).unwrap(), [["a"]]);
    assert!(ledger.keep_only(|uid| uid == "q"));
    assert_eq!(ledger.holders().collect::<Vec<_>>(), ["q"]);
}

/// D19, D20, D28 and D29, for pods that are new; those that run are not judged again (D21).
#[test]
fn who_offers_nothing_gives_nothing() {
    let mut ledger = ledger(&[("a", false)]);
    let wants = pod("p", &[("main", "app", 1)]);
    let error = |ledger: &mut Ledger| admit(ledger, &wants).unwrap_err().to_string();
    assert_eq!(
        error(&mut ledger),
        "no healthy devices present; cannot allocate unhealthy devices example.com/dev"
    );
    ledger.orphan(RESOURCE);
    assert_eq!(error(&mut ledger), "cannot allocate unregistered device example.com/dev");
    assert!(ledger.expire(RESOURCE) && !ledger.expire(RESOURCE));
    assert_eq!(error(&mut ledger), "cannot allocate unregistered device example.com/dev");
    let mut nobody = Ledger::default();
    assert_eq!(admit(&mut nobody, &wants).unwrap(), [Vec::<String>::new()], "not a resource of devices");
}

/// D3, D4, D7, D27 and D30.
#[test]
fn amounts_follow_health_and_plugins() {
    let mut ledger = ledger(&[("a", true), ("b", true), ("c", false), ("d", false)]);
    let amount = |ledger: &Ledger| {
        let all = ledger.amounts(true);
        let of = all.amounts[RESOURCE];
        (of.allocatable, of.capacity, all.awaited.len())
    };
    assert_eq!(amount(&ledger), (2, 4, 0));
    ledger.list(&resource(), devices(&[("a", true), ("b", true), ("c", false)]));
    assert_eq!(amount(&ledger), (2, 3, 0), "an unhealthy one less");
    ledger.list(&resource(), devices(&[("a", true), ("c", false)]));
    assert_eq!(amount(&ledger), (1, 2, 0), "a healthy one less");
    ledger.orphan(RESOURCE);
    assert_eq!(amount(&ledger), (0, 2, 0), "its plugin has gone");
    ledger.expire(RESOURCE);
    assert_eq!(amount(&ledger), (0, 0, 0), "for long");
    let again = Ledger::from_text(&ledger.to_text()).unwrap();
    assert!(again.amounts(true).amounts.is_empty(), "given up");
    ledger.list(&resource(), devices(&[("a", true)]));
    let again = Ledger::from_text(&ledger.to_text()).unwrap();
    assert_eq!(amount(&again), (0, 0, 1), "after a restart it is known, and how many is not");
}

/// D16.
#[test]
fn init_containers_leave_their_devices_and_sidecars_do_not() {
    let mut ledger = ledger(&[("a", true), ("b", true), ("c", true)]);
    let given =
        admit(&mut ledger, &pod("p", &[("init", "init", 1), ("side", "sidecar", 1), ("main", "app", 1)]));
    assert_eq!(given.unwrap(), [["a"], ["a"], ["b"]]);
    assert_eq!(admit(&mut ledger, &pod("q", &[("main", "app", 1)])).unwrap(), [["c"]]);
    ledger.keep_only(|_| false);
    let given = admit(&mut ledger, &pod("p", &[("one", "init", 2), ("two", "init", 1), ("main", "app", 3)]));
    assert_eq!(given.unwrap(), [&["a", "b"][..], &["a"], &["a", "b", "c"]]);
}

/// D23 and D24.
#[test]
fn advice_is_advice() {
    let mut ledger = ledger(&[("a", true), ("b", true), ("c", true), ("d", true)]);
    let init = pod("p", &[("init", "init", 2), ("main", "app", 4)]);
    let asks = asks(&init);
    ledger.take(&asks[0], &["c".into(), "foreign".into(), "d".into()], None).unwrap();
    ledger.confirm(&asks[0], Vec::new());
    let choice = ledger.look(&asks[1]).unwrap().unwrap();
    assert_eq!(
        (choice.chosen, choice.free, choice.missing),
        (vec!["c".into(), "d".into()], vec!["a".into(), "b".into()], 2)
    );
    let short = ledger.take(&asks[1], &["b".into(), "foreign".into()], None).unwrap();
    assert_eq!(short, ["c".into(), "d".into(), "b".into(), "a".into()].to_vec() as Vec<Arc<str>>);
}

/// D22.
#[test]
fn what_a_plugin_refuses_is_free_again_and_not_in_the_file() {
    let mut ledger = ledger(&[("a", true)]);
    let wants = pod("p", &[("main", "app", 1)]);
    let ask = &asks(&wants)[0];
    ledger.take(ask, &[], None).unwrap();
    assert_eq!(ledger.held().count(), 0, "not confirmed");
    let error = ledger.take(&asks(&pod("q", &[("main", "app", 1)]))[0], &[], None).unwrap_err();
    assert!(matches!(error, AskError::TooFew { available: 0, .. }), "{error}");
    ledger.give_back(ask);
    assert_eq!(ledger.holders().count(), 0);
    assert_eq!(admit(&mut ledger, &wants).unwrap(), [["a"]]);
    ledger.give_back(ask);
    assert_eq!(ledger.holders().count(), 1, "what was confirmed is only released");
}

proptest! {
    /// Any order of admissions, ends, changes of health and restarts: no device has two pods, and all come back.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec((0_u8..5, 0_u32..4, 0_u32..4, 0_u8..10), 1..60)) {
        let all: Vec<(String, bool)> = (0..6).map(|id| (format!("d{id}"), true)).collect();
        let full = |sick: u32| -> Devices {
            all.iter().enumerate().map(|(at, (id, _))| (id.as_str().into(), Device { healthy: Some(at) != usize::try_from(sick).ok(), nodes: Vec::new() })).collect()
        };
        let mut ledger = Ledger::default();
        ledger.list(&resource(), full(9));
        for (uid, init, app, what) in steps {
            let uid = format!("p{uid}");
            match what {
                0 => { ledger.release(&uid); }
                1 => {
                    ledger = Ledger::from_text(&ledger.to_text()).unwrap();
                    ledger.list(&resource(), full(9));
                }
                2 => ledger.list(&resource(), full(init)),
                3 => ledger.orphan(RESOURCE),
                _ => {
                    let wants = pod(&uid, &[("i", "init", init), ("a", "app", app), ("b", "app", 1)]);
                    if admit(&mut ledger, &wants).is_err() {
                        ledger.release(&uid);
                    }
                }
            }
            let mut owners: BTreeMap<Arc<str>, &str> = BTreeMap::new();
            for (uid, _, _, held) in ledger.held() {
                for id in held.devices.keys() {
                    prop_assert_eq!(*owners.entry(Arc::clone(id)).or_insert(uid), uid, "one pod each");
                }
            }
        }
        ledger.keep_only(|_| false);
        ledger.list(&resource(), full(9));
        prop_assert_eq!(admit(&mut ledger, &pod("last", &[("a", "app", 6)])).unwrap()[0].len(), 6);
    }
}

/// A machine of two nodes with three devices on each.
fn two_nodes() -> (Ledger, Arc<str>) {
    let resource: Arc<str> = "example.com/dev".into();
    let mut ledger = Ledger::default();
    let device = |at: u32| (Arc::from(format!("d{at}")), Device { healthy: true, nodes: vec![at / 3] });
    ledger.list(&resource, (0..6).map(device).collect());
    (ledger, resource)
}

fn ask_for(resource: &Arc<str>, uid: &str, count: usize) -> Ask {
    Ask {
        uid: uid.into(),
        container: "c".into(),
        resource: Arc::clone(resource),
        count,
        passing: Vec::new(),
        lasting: vec!["c".into()],
    }
}

#[test]
fn d25_near_devices_come_first() {
    let (mut ledger, resource) = two_nodes();
    let near = Some([1].into_iter().collect());
    let taken = ledger.take(&ask_for(&resource, "p", 4), &[], near).unwrap();
    let taken: Vec<&str> = taken.iter().map(|id| &**id).collect();
    assert_eq!(taken, ["d3", "d4", "d5", "d0"]);
}

/// Where hints and choices agree, and upstream's do not: one that belongs to no node is as near as any, so it comes before those of other nodes.
#[test]
fn a_device_of_no_node_comes_before_one_of_another() {
    let (mut ledger, resource) = two_nodes();
    let mut devices = ledger.devices(&resource).unwrap().clone();
    devices.insert("x".into(), Device { healthy: true, nodes: vec![] });
    ledger.list(&resource, devices);
    let ask = ask_for(&resource, "p", 4);
    let near: NodeMask = [1].into_iter().collect();
    let hints = ledger.hints(&ask, [0, 1].into_iter().collect()).unwrap();
    assert!(hints.iter().any(|hint| hint.nodes == Some(near) && hint.preferred), "{hints:?}");
    let taken = ledger.take(&ask, &["d0".to_owned()], Some(near)).unwrap();
    assert_eq!(taken.iter().map(|id| &**id).collect::<Vec<_>>(), ["d3", "d4", "d5", "x"]);
}

#[test]
fn from_where_devices_could_be_had() {
    let (mut ledger, resource) = two_nodes();
    let nodes: NodeMask = [0, 1].into_iter().collect();
    let shown = |ledger: &Ledger, uid: &str, count| {
        let hints = ledger.hints(&ask_for(&resource, uid, count), nodes).unwrap();
        let one = |hint: &crate::Hint| (hint.nodes.unwrap().iter().collect::<Vec<_>>(), hint.preferred);
        hints.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(shown(&ledger, "p", 2), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(&ledger, "p", 4), [(vec![0, 1], true)]);
    assert_eq!(shown(&ledger, "p", 7), []);
    let node1 = Some([1].into_iter().collect());
    ledger.take(&ask_for(&resource, "q", 2), &[], node1).unwrap();
    // Not preferred: with others' devices given back one node would do.
    assert_eq!(shown(&ledger, "p", 2), [(vec![0], true), (vec![0, 1], false)]);
    assert_eq!(shown(&ledger, "q", 2), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(&ledger, "q", 3), [], "what it holds is of another number");
    let nowhere: Arc<str> = "example.com/other".into();
    ledger.list(&nowhere, [(Arc::from("x"), Device { healthy: true, nodes: vec![] })].into());
    assert_eq!(ledger.hints(&ask_for(&nowhere, "p", 1), nodes), None);
}

/// D31: one ID under two resources is two devices.
#[test]
fn d31_an_id_is_a_resources_own() {
    let other: Arc<str> = "example.com/other".into();
    let mut ledger = ledger(&[("a", true)]);
    ledger.list(&other, devices(&[("a", true)]));
    admit(&mut ledger, &pod("p", &[("main", "app", 1)])).unwrap();
    ledger.take(&ask_for(&other, "q", 1), &[], None).unwrap();
    ledger.list(&other, devices(&[("a", false)]));
    assert_eq!(ledger.health(RESOURCE, "a"), DeviceHealth::Healthy);
    assert_eq!(ledger.health(&other, "a"), DeviceHealth::Unhealthy);
}

/// D32: a resource of which no plugin has told is not given out here, whoever else serves it.
#[test]
fn d32_what_no_plugin_has_told_of_is_nobodys_business() {
    let ledger = ledger(&[("a", true)]);
    assert_eq!(ledger.look(&ask_for(&"example.com/claimed".into(), "p", 1)), Ok(None));
}

/// Of what a pod holds already nothing is counted a second time when it is looked where the whole pod could lie.
#[test]
fn a_pod_is_not_counted_twice() {
    let (mut ledger, resource) = two_nodes();
    ledger.take(&ask_for(&resource, "p", 2), &[], Some([1].into_iter().collect())).unwrap();
    let whole = Ask { container: String::new(), ..ask_for(&resource, "p", 3) };
    let hints = ledger.hints(&whole, [0, 1].into_iter().collect()).unwrap();
    let shown: Vec<_> =
        hints.iter().map(|it| (it.nodes.unwrap().iter().collect::<Vec<_>>(), it.preferred)).collect();
    assert_eq!(shown, [(vec![1], true), (vec![0, 1], false)]);
}

/// What is told is what can be given, beside what is known to be held.
#[test]
fn nothing_more_is_offered_while_somebody_holds_what_nobody_can_name() {
    let mut ledger = ledger(&[("a", true), ("b", true), ("c", true), ("d", false)]);
    let shown = |ledger: &Ledger, who: bool| {
        let all = ledger.amounts(who);
        let amount = all.amounts[RESOURCE];
        (amount.allocatable, amount.capacity, all.unsure.contains(RESOURCE))
    };
    admit(&mut ledger, &pod("known", &[("c", "app", 1)])).unwrap();
    assert_eq!(shown(&ledger, true), (3, 4, false));
    assert_eq!(shown(&ledger, false), (1, 4, true), "it is not known who runs");
    let lost = pod("lost", &[("c", "app", 1), ("d", "app", 1)]);
    assert!(asks(&lost).iter().all(|ask| ledger.suspect(ask)));
    assert_eq!(shown(&ledger, true), (1, 4, true));
    assert!(ledger.clear("lost", |name| name == "d"));
    assert_eq!(shown(&ledger, true), (1, 4, true), "one of two has ended");
    assert!(ledger.clear("lost", |_| false));
    assert_eq!(shown(&ledger, true), (3, 4, false));
}
