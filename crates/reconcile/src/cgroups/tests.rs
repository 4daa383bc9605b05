use mainstay_types::{AwaitedSource, FullName, PodSource, RuntimeHealth};

use super::*;

fn all_read() -> (DesiredState, ObservedState, Outcomes) {
    let desired = DesiredState { synced: true, ..DesiredState::default() };
    let observed = ObservedState {
        listed_at: Some(std::time::Instant::now()),
        runtime: Arc::new(RuntimeHealth { reachable: true, ..RuntimeHealth::default() }),
        ..ObservedState::unread()
    };
    (desired, observed, Outcomes { synced: true, ..Outcomes::default() })
}

#[test]
fn a_pod_that_the_runtime_is_silent_about_is_known() {
    let (desired, mut observed, outcomes) = all_read();
    assert_eq!(known_pods(&desired, &observed, &outcomes), Some(HashSet::new()));
    observed.silent.insert("u".into(), FullName::new("default", "web"));
    assert_eq!(known_pods(&desired, &observed, &outcomes), Some(HashSet::from(["u".into()])));
}

#[test]
fn nothing_is_certain_before_everybody_has_spoken() {
    type Change = fn(&mut DesiredState, &mut ObservedState, &mut Outcomes);
    let rows: [(&str, Change); 5] = [
        ("sources", |desired, _, _| desired.synced = false),
        ("an awaited source", |desired, _, _| {
            let source = AwaitedSource::new(PodSource::Http, "staticPodURL http://x");
            desired.awaited = Arc::new(vec![source]);
        }),
        ("the runtime's list", |_, observed, _| observed.listed_at = None),
        ("the runtime", |_, observed, _| observed.runtime = Arc::default()),
        ("reconcile", |_, _, outcomes| outcomes.synced = false),
    ];
    for (what, change) in rows {
        let (mut desired, mut observed, mut outcomes) = all_read();
        change(&mut desired, &mut observed, &mut outcomes);
        assert_eq!(known_pods(&desired, &observed, &outcomes), None, "{what}");
    }
}
