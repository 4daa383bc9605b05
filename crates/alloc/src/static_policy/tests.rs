use proptest::prelude::*;

use super::*;
use crate::Cpu;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// One socket, four cores of two.
fn small() -> Machine {
    Machine::new((0..8).map(|cpu| (cpu, Cpu { core: cpu % 4, socket: 0, node: 0, cache: 0 })).collect())
}

/// Two sockets, three cores of two; even CPUs on the first.
fn two_sockets() -> Machine {
    let place = |cpu| Cpu { core: cpu % 6, socket: cpu % 2, node: cpu % 2, cache: cpu % 2 };
    Machine::new((0..12).map(|cpu| (cpu, place(cpu))).collect())
}

/// C9, C22 and C23.
#[test]
fn reserved_cpus_are_shared_and_not_given_out() {
    let mut cpus = Static::new(small(), set("0"), Options::default());
    assert_eq!((cpus.allocatable(), cpus.shared().clone()), (set("1-7"), set("0-7")));
    assert_eq!(cpus.assign("p", "c", 1, Use::Lasting, None).unwrap(), set("4"));
    assert_eq!((cpus.allocatable(), cpus.shared().clone()), (set("1-7"), set("0-3,5-7")));
    let error = cpus.assign("q", "c", 8, Use::Lasting, None).unwrap_err().to_string();
    assert_eq!(error, "not enough cpus available to satisfy request: requested=8, available=6");
    let strict = Options { strict_reservation: true, ..Options::default() };
    let mut cpus = Static::new(small(), set("0"), strict);
    assert_eq!((cpus.allocatable(), cpus.shared().clone()), (set("1-7"), set("1-7")));
    cpus.assign("p", "c", 2, Use::Lasting, None).unwrap();
    cpus.keep_only(|_| false);
    assert_eq!(cpus.shared().clone(), set("1-7"));
}

/// C14 and C15.
#[test]
fn whole_cores_or_nothing() {
    let options = Options { whole_cores: true, ..Options::default() };
    let mut cpus = Static::new(small(), set("0"), options);
    let error = cpus.assign("p", "c", 1, Use::Lasting, None).unwrap_err().to_string();
    assert_eq!(error, "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2");
    let mut cpus = Static::new(two_sockets(), set("1,6"), options);
    let error = cpus.assign("p", "c", 10, Use::Lasting, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, CPUs per core = 2"
    );
    let mut cpus = Static::new(two_sockets(), set("0,6"), options);
    assert_eq!(cpus.assign("p", "c", 10, Use::Lasting, None).unwrap(), set("1-5,7-11"));
}

#[test]
fn init_containers_pass_their_cpus_on_and_sidecars_do_not() {
    let mut cpus = Static::new(small(), set("0"), Options::default());
    let init = cpus.assign("p", "init", 4, Use::Passing, None).unwrap();
    let sidecar = cpus.assign("p", "side", 2, Use::Lasting, None).unwrap();
    assert!((&sidecar - &init).is_empty(), "taken over from an init container");
    let app = cpus.assign("p", "app", 2, Use::Lasting, None).unwrap();
    assert!((&app - &init).is_empty() && (&app & &sidecar).is_empty());
    assert_eq!(cpus.shared().len(), 4);
    let other = cpus.assign("q", "c", 3, Use::Lasting, None).unwrap();
    assert!((&other & &init).is_empty(), "of another pod nothing is passed on");
    assert_eq!(cpus.assign("p", "app", 2, Use::Lasting, None).unwrap(), app, "asked again, the same");
    cpus.keep_only(|uid| uid == "q");
    assert_eq!(cpus.shared().clone(), &set("0-7") - &other);
}

#[test]
fn a_restart_changes_nothing_and_what_cannot_be_is_told() {
    let options = Options::default();
    let mut cpus = Static::new(small(), set("0"), options);
    cpus.assign("p", "c", 3, Use::Lasting, None).unwrap();
    let state = CpuState::from_text(&cpus.state().to_text()).unwrap();
    let strict = Options { whole_cores: true, ..options };
    let (again, problems) = Static::restore(small(), set("0"), strict, &CpuSet::default(), &state);
    assert_eq!(
        (again.state(), problems),
        (state, Vec::new()),
        "even where today's options would not give them"
    );
    // C17, the other way: a CPU that is reserved by now is its holder's still, and is given to nobody after that.
    let held = cpus.of("p", "c").unwrap().clone();
    let now_reserved: CpuSet = held.iter().take(1).collect();
    let strict = Options { strict_reservation: true, ..options };
    for options in [options, strict] {
        let reserved = now_reserved.clone();
        let (mut again, problems) =
            Static::restore(small(), reserved, options, &CpuSet::default(), &cpus.state());
        assert_eq!((again.of("p", "c"), problems), (Some(&held), Vec::new()));
        assert!((again.shared() & &held).is_empty());
        assert!(again.release("p"));
        assert_eq!(again.assign("q", "c", 7, Use::Lasting, None).unwrap(), &set("0-7") - &now_reserved);
    }
    let mut state = CpuState { policy: "static".to_owned(), ..CpuState::default() };
    for (uid, name, held) in [("a", "c", "1-2"), ("a", "d", "2"), ("b", "c", "2-3"), ("c", "c", "7-8")] {
        state.entries.entry(uid.to_owned()).or_default().insert(name.to_owned(), set(held));
    }
    let (healed, problems) = Static::restore(small(), set("0"), options, &CpuSet::default(), &state);
    assert_eq!(healed.shared().clone(), set("0,3-7"));
    assert_eq!(
        problems,
        [
            "container c of pod b held CPUs 2-3, of which 2 are another pod's",
            "container c of pod c held CPUs 7-8, of which 8 are not CPUs of this machine any more",
        ]
    );
}

/// A CPU that is offline over a restart is its holder's still; the holder runs on the others meanwhile.
#[test]
fn what_is_offline_is_held_over_a_restart() {
    let options = Options::default();
    let mut cpus = Static::new(small(), set("0"), options);
    cpus.assign("p", "c", 2, Use::Lasting, None).unwrap();
    cpus.assign("q", "c", 1, Use::Lasting, None).unwrap();
    let held = cpus.of("p", "c").unwrap().clone();
    let (off, on) = (held.iter().last().unwrap(), held.iter().next().unwrap());
    let rest = |off: u32| {
        Machine::new(small().places().filter(|(cpu, _)| *cpu != off).map(|(cpu, it)| (cpu, *it)).collect())
    };
    let (again, problems) = Static::restore(rest(off), set("0"), options, &set("0-7"), &cpus.state());
    assert_eq!((problems, again.of("p", "c").cloned()), (Vec::new(), Some(held.clone())));
    assert_eq!(again.place("p", "c"), ([on].into_iter().collect(), true));
    assert!(!again.shared().contains(off) && !again.shared().contains(on));
    let mut back = again;
    back.set_machine(small());
    assert_eq!(back.place("p", "c"), (held.clone(), true));
    assert_eq!(back.state(), cpus.state());
    // All of its CPUs are away: it runs where everybody runs, and they are nobody else's.
    let away = cpus.of("q", "c").unwrap().iter().next().unwrap();
    back.set_machine(rest(away));
    assert_eq!(back.place("q", "c"), (back.shared().clone(), true));
    // CPUs that the machine does not have are nobody's.
    let (_, problems) = Static::restore(rest(off), set("0"), options, &CpuSet::default(), &cpus.state());
    assert_eq!(problems.len(), 1, "{problems:?}");
}

fn part(name: &str, own: usize) -> Part<usize> {
    Part { name: name.to_owned(), passes: name.starts_with('i'), own }
}

/// C21: only who is new is given anything; asked again for another number, a container keeps what it has.
#[test]
fn c21_a_resize_changes_nothing() {
    let mut cpus = Static::new(small(), set("0"), Options::default());
    let own = cpus.assign("p", "c", 2, Use::Lasting, None).unwrap();
    let before = cpus.state();
    assert_eq!(cpus.assign("p", "c", 4, Use::Lasting, None), Ok(own));
    assert_eq!(cpus.state(), before);
}

/// Of what a pod holds already nothing is counted a second time when it is looked where the whole pod could lie.
#[test]
fn a_pod_is_not_counted_twice() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    cpus.assign("p", "a", 4, Use::Lasting, Some([1].into_iter().collect())).unwrap();
    let hints = cpus.pod_hints("p", 6).unwrap();
    let shown: Vec<_> =
        hints.iter().map(|it| (it.nodes.unwrap().iter().collect::<Vec<_>>(), it.preferred)).collect();
    assert_eq!(shown, [(vec![1], true), (vec![0, 1], false)]);
}

/// C29: two that have CPUs to themselves and one that shares.
#[test]
fn c29_a_pod_has_cpus_as_a_whole() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    let parts = [part("a", 1), part("b", 1), part("c", 0)];
    let near = Some([0].into_iter().collect());
    assert_eq!(cpus.assign_pool("p", 3, &parts, near), Ok(true));
    let of = |name: &str| cpus.of("p", name).unwrap().to_string();
    assert_eq!((of("a"), of("b"), of("c")), ("6".into(), "2".into(), "8".into()));
    assert_eq!(cpus.pool("p").unwrap().to_string(), "2,6,8");
    assert_eq!(cpus.shared().clone(), &set("0-11") - &set("2,6,8"));
    let (again, problems) =
        Static::restore(two_sockets(), set("0"), Options::default(), &CpuSet::default(), &cpus.state());
    assert_eq!((again.state(), problems), (cpus.state(), Vec::new()));
    assert_eq!(cpus.assign_pool("p", 3, &parts, near), Ok(false), "asked again, the same");
    assert_eq!(cpus.place("p", "unknown"), (set("2,6,8"), true));
}

/// What sidecars have is theirs; what other init containers have is there again for those after them.
#[test]
fn c29_init_containers_of_a_pod_as_a_whole() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    let parts = [part("i1", 4), part("s", 1), part("i2", 0), part("a", 2), part("b", 0)];
    assert_eq!(cpus.assign_pool("p", 4, &parts, Some([1].into_iter().collect())), Ok(true));
    let of = |name: &str| cpus.of("p", name).unwrap().clone();
    let pool = cpus.pool("p").unwrap().clone();
    assert_eq!((of("i1"), of("i2")), (pool.clone(), &pool - &of("s")));
    assert_eq!((of("a").len(), of("b")), (2, &(&pool - &of("s")) - &of("a")));
}

/// C30: those that share would have none.
#[test]
fn c30_a_pod_whose_containers_leave_nothing_to_share() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    for (parts, error) in [
        (vec![part("a", 2), part("b", 1), part("c", 0)], AssignError::NothingShared),
        (vec![part("s", 3), part("i", 0), part("a", 0)], AssignError::NothingForInit),
    ] {
        assert_eq!(cpus.assign_pool("p", 3, &parts, None), Err(error));
        assert_eq!((cpus.entries().len(), cpus.pools().len()), (0, 0));
    }
    // In the container scope each is looked at by itself, and who shares shares with everybody.
    for (name, count) in [("a", 2), ("b", 1)] {
        cpus.assign("p", name, count, Use::Lasting, None).unwrap();
    }
    assert_eq!(cpus.assign_pool("q", 3, &[part("a", 2), part("b", 1)], None), Ok(true), "nobody shares");
}

/// C31: what the pod has is free again only when all of its containers have gone.
#[test]
fn c31_a_pool_goes_with_the_pod() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    let whole = cpus.shared().clone();
    cpus.assign_pool("p", 3, &[part("a", 1), part("c", 0)], None).unwrap();
    assert_eq!((cpus.pool("p").map(CpuSet::len), cpus.shared().len()), (Some(3), whole.len() - 3));
    assert!(cpus.release("p"));
    assert_eq!((cpus.pool("p"), cpus.shared()), (None, &whole));
}

/// What init containers leave to those after them is there again with the rest of what the pod held.
#[test]
fn what_was_given_since_is_taken_back_and_no_more() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    let all = &cpus.allocatable();
    cpus.assign("p", "i", all.len(), Use::Passing, None).unwrap();
    let before = cpus.held("p");
    for _ in 0..2 {
        let given = cpus.assign("p", "a", all.len(), Use::Lasting, None).unwrap();
        assert_eq!(&given, all);
        assert!(cpus.assign("p", "b", 1, Use::Lasting, None).is_err());
        assert!(cpus.put_back("p", &before) && !cpus.put_back("p", &before));
        assert_eq!((cpus.of("p", "a"), cpus.of("p", "i")), (None, Some(all)));
    }
    assert!(cpus.put_back("p", &PodCpus::default()));
    assert_eq!(cpus.shared(), &cpus.machine().all());
}

proptest! {
    /// Any order of admissions, ends and restarts: no CPU has two owners, nothing reserved is given out, and all comes back.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec((0_u8..6, 0_usize..5, any::<bool>(), 0_u8..8), 1..60), strict in any::<bool>()) {
        let options = Options { strict_reservation: strict, ..Options::default() };
        let mut cpus = Static::new(two_sockets(), set("0"), options);
        let whole = cpus.shared().clone();
        for (pod, count, passing, what) in steps {
            let uid = format!("pod-{pod}");
            match what {
                0 => { cpus.keep_only(|other| other != uid); }
                1 => {
                    let state = CpuState::from_text(&cpus.state().to_text()).unwrap();
                    let (again, problems) = Static::restore(two_sockets(), set("0"), options, &CpuSet::default(), &state);
                    prop_assert_eq!(problems, Vec::<String>::new());
                    prop_assert_eq!(again.state(), cpus.state());
                    cpus = again;
                }
                container => {
                    let of = if passing { Use::Passing } else { Use::Lasting };
                    let near = (pod % 2 == 0).then(|| [u32::from(pod) / 2 % 2].into_iter().collect());
                    let before = cpus.state();
                    if cpus.assign(&uid, &format!("c{container}"), count, of, near).is_err() {
                        prop_assert_eq!(cpus.state(), before);
                    }
                }
            }
            let state = cpus.state();
            let pods: Vec<CpuSet> = state.entries.values()
                .map(|sets| sets.values().flat_map(CpuSet::iter).collect()).collect();
            let held: usize = pods.iter().map(CpuSet::len).sum();
            prop_assert_eq!(held + state.default.len(), whole.len(), "each CPU has one owner");
            prop_assert!(pods.iter().all(|pod| !pod.contains(0)));
        }
        cpus.keep_only(|_| false);
        prop_assert_eq!(cpus.shared(), &whole);
    }
}

fn shown(hints: Hints) -> Vec<(Vec<u32>, bool)> {
    let one = |hint: Hint| (hint.nodes.unwrap().iter().collect(), hint.preferred);
    hints.unwrap().into_iter().map(one).collect()
}

/// Two sockets of two nodes each, two cores of two on a node: CPUs 0 to 7 are the first threads.
fn four_nodes() -> Machine {
    let place = |cpu: u32| Cpu { core: cpu % 8, socket: cpu % 8 / 4, node: cpu % 8 / 2, cache: 0 };
    Machine::new((0..16).map(|cpu| (cpu, place(cpu))).collect())
}

#[test]
fn from_where_cpus_could_be_had() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    assert_eq!(cpus.hints("p", "c", 0), None);
    assert_eq!(shown(cpus.hints("p", "c", 2)), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    // Six are on each node, of which one is kept: one node would do if it were free.
    assert_eq!(shown(cpus.hints("p", "c", 6)), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(cpus.hints("p", "c", 8)), [(vec![0, 1], true)]);
    assert_eq!(shown(cpus.hints("p", "c", 12)), []);
    // What is held stays where it is.
    let near = Some([1].into_iter().collect());
    assert_eq!(cpus.assign("p", "c", 2, Use::Lasting, near).unwrap(), set("1,7"));
    assert_eq!(shown(cpus.hints("p", "c", 2)), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(cpus.hints("p", "c", 3)), [], "it has another number");
    // As many as can be of the node, the rest from anywhere.
    assert_eq!(cpus.assign("q", "c", 5, Use::Lasting, near).unwrap(), set("3,5,9,11,6"));
    let missing = cpus.assign("r", "c", 9, Use::Lasting, near).unwrap_err();
    assert_eq!(missing, AssignError::NotEnough(NotEnough { requested: 9, available: 4 }));
}

/// A set must have what the pod's init containers pass on.
#[test]
fn what_is_passed_on_is_used_again() {
    let mut cpus = Static::new(two_sockets(), set("0"), Options::default());
    let near = Some([1].into_iter().collect());
    cpus.assign("p", "i", 2, Use::Passing, near).unwrap();
    assert_eq!(shown(cpus.hints("p", "c", 1)), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(cpus.pod_hints("p", 2)), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(shown(cpus.pod_hints("q", 3)).len(), 3);
    assert_eq!(cpus.pod_hints("q", 0), None);
}

#[test]
fn a_socket_is_as_good_as_a_node() {
    let options = Options { by_socket: true, ..Options::default() };
    let mut cpus = Static::new(four_nodes(), set("0"), options);
    let preferred = |hints: Hints| -> Vec<Vec<u32>> {
        shown(hints).into_iter().filter(|(_, preferred)| *preferred).map(|(nodes, _)| nodes).collect()
    };
    assert_eq!(preferred(cpus.hints("p", "c", 4)), [vec![1], vec![2], vec![3], vec![0, 1], vec![2, 3]]);
    // The hint is widened to the whole socket.
    let near = Some([2].into_iter().collect());
    assert_eq!(cpus.assign("p", "c", 6, Use::Lasting, near).unwrap(), set("4-6,12-14"));
}

#[test]
fn cpus_come_and_go() {
    let mut cpus = Static::new(small(), set("0"), Options::default());
    cpus.assign("p", "c", 2, Use::Lasting, None).unwrap();
    let held = cpus.of("p", "c").unwrap().clone();
    let fewer =
        Machine::new(small().places().filter(|(cpu, _)| *cpu != 5).map(|(cpu, at)| (cpu, *at)).collect());
    cpus.set_machine(fewer);
    assert_eq!((cpus.allocatable(), cpus.of("p", "c")), (set("1-4,6-7"), Some(&held)));
    assert!((cpus.shared() & &held).is_empty() && !cpus.shared().contains(5));
    cpus.set_machine(small());
    assert_eq!(&(cpus.shared() | &held), &set("0-7"));
    cpus.release("p");
    assert_eq!(cpus.shared(), &set("0-7"));
}

proptest! {
    /// A pod never holds more than it needs at one time: an init container beside the sidecars before it, or all that stay.
    #[test]
    fn no_more_than_is_needed_at_one_time(init in proptest::collection::vec((0_usize..4, any::<bool>()), 0..4), apps in proptest::collection::vec(0_usize..3, 1..3)) {
        let mut cpus = Static::new(four_nodes(), set("0"), Options::default());
        let (mut most, mut lasting, mut all) = (0, 0, Vec::new());
        let apps = apps.into_iter().map(|count| (count, true));
        for (at, (count, lasts)) in init.into_iter().chain(apps).filter(|(count, _)| *count > 0).enumerate() {
            let of = if lasts { Use::Lasting } else { Use::Passing };
            if cpus.assign("p", &format!("c{at}"), count, of, None).is_err() {
                break;
            }
            most = most.max(lasting + count);
            lasting += if lasts { count } else { 0 };
            all.push(count);
        }
        let held = cpus.exclusive().len();
        prop_assert_eq!(held, most.max(lasting), "{:?}", all);
    }
}
