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

#[test]
fn what_a_cgroup_did_not_accept_is_tried_again_when_it_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory/kubepods/besteffort/podu1/memory.limit_in_bytes");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let names = mainstay_cgroup::CgroupNames::new(mainstay_cgroup::Driver::Cgroupfs, "/").unwrap();
    let tree = PodCgroups::new(names, mainstay_cgroup::Cgroups::open(dir.path()).unwrap());
    let cgroups = Cgroups::new(tree, 0, NodeCgroupSettings::default(), "mark");
    let mut pod = Pod::default();
    pod.metadata.uid = Some("u1".into());
    let counters = NodeCounters::default();
    let set = |memory: i64, due: bool| {
        let values = CgroupValues { memory: Limit::At(memory), ..CgroupValues::default() };
        cgroups.update(&pod, values, due, &counters).map(|(result, again)| (result.is_ok(), again))
    };
    let limit = || std::fs::read_to_string(&file).unwrap();
    // A file that is not there is as good as one that takes no value.
    assert_eq!(set(4096, false), Some((false, false)));
    assert_eq!(set(4096, false), None, "not at every change of any pod");
    assert_eq!(set(4096, true), Some((false, true)));
    std::fs::write(&file, "").unwrap();
    assert_eq!((set(4096, true), limit().as_str()), (Some((true, true)), "4096"));
    assert_eq!(set(4096, true), None, "it is set");
    // What was refused may be half done: even the values of before are set again.
    std::fs::remove_file(&file).unwrap();
    assert_eq!(set(8192, false), Some((false, false)));
    std::fs::write(&file, "8192").unwrap();
    assert_eq!((set(4096, false), limit().as_str()), (Some((true, false)), "4096"));
}
