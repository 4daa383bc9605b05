use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn mask(nodes: &[u32]) -> NodeMask {
    nodes.iter().copied().collect()
}

/// Nodes of 10 GiB, of which 1 is the system's.
fn machine(nodes: u32) -> MemoryMachine {
    let types: BTreeMap<String, (u64, u64)> = [("memory".to_owned(), (10 * GIB, GIB))].into();
    MemoryMachine { nodes: (0..nodes).map(|node| (node, types.clone())).collect() }
}

fn memory(gib: u64) -> Bytes {
    [("memory".to_owned(), gib * GIB)].into()
}

fn free(all: &MemoryStatic) -> Vec<u64> {
    all.nodes().values().map(|node| node.tables["memory"].free / GIB).collect()
}

fn give(all: &mut MemoryStatic, uid: &str, container: &str, gib: u64, of: Use) -> Result<(), MemoryError> {
    all.assign(uid, container, &memory(gib), of, Hint::UNASKED)
}

#[test]
fn huge_pages_are_taken_out_of_memory() {
    let mut machine = machine(1);
    machine.nodes.get_mut(&0).unwrap().insert("hugepages-2Mi".into(), (2 * GIB, 0));
    let all = MemoryStatic::new(machine);
    let tables = &all.nodes()[&0].tables;
    assert_eq!((tables["memory"].allocatable, tables["hugepages-2Mi"].allocatable), (7 * GIB, 2 * GIB));
}

#[test]
fn m4_what_init_containers_had_is_used_again() {
    let mut all = MemoryStatic::new(machine(1));
    give(&mut all, "p", "i1", 7, Use::Passing).unwrap();
    give(&mut all, "p", "i2", 4, Use::Passing).unwrap();
    give(&mut all, "p", "a1", 4, Use::Lasting).unwrap();
    give(&mut all, "p", "a2", 3, Use::Lasting).unwrap();
    assert_eq!(free(&all), [2]);
    let held: u64 = all.entries()["p"].values().flatten().map(|block| block.bytes / GIB).sum();
    assert_eq!(held, 7);
    assert_eq!(all.of("p", "a1").unwrap()[0].bytes, 4 * GIB);
    all.release("p");
    assert_eq!(free(&all), [9]);
}

#[test]
fn m5_what_a_sidecar_has_is_its_own() {
    let mut all = MemoryStatic::new(machine(1));
    give(&mut all, "p", "sidecar", 3, Use::Lasting).unwrap();
    give(&mut all, "p", "app", 3, Use::Lasting).unwrap();
    assert_eq!(free(&all), [3]);
}

#[test]
fn m6_a_group_ends_with_its_last_user() {
    let mut all = MemoryStatic::new(machine(2));
    give(&mut all, "p", "c", 12, Use::Lasting).unwrap();
    assert_eq!(all.of("p", "c").unwrap()[0].nodes, mask(&[0, 1]));
    assert_eq!((free(&all), all.nodes()[&1].cells), (vec![0, 6], mask(&[0, 1])));
    // A node in a group serves nobody alone.
    assert_eq!(give(&mut all, "q", "c", 1, Use::Lasting), Ok(()));
    assert_eq!(all.of("q", "c").unwrap()[0].nodes, mask(&[0, 1]));
    // Where only as few nodes as can be would do, two are too many for a little.
    let strict = all.assign("r", "c", &memory(1), Use::Lasting, Hint::ANY);
    assert_eq!(strict, Err(MemoryError::NotPreferred));
    all.release("p");
    assert_eq!(all.nodes()[&0].cells, mask(&[0, 1]));
    all.release("q");
    assert_eq!((all.nodes()[&0].cells, all.nodes()[&0].assignments), (mask(&[0]), 0));
    assert_eq!(free(&all), [9, 9]);
}

#[test]
fn m3_more_than_any_node_has_left() {
    let mut all = MemoryStatic::new(machine(2));
    give(&mut all, "p", "c", 5, Use::Lasting).unwrap();
    let five = Hint { nodes: Some(mask(&[1])), preferred: true };
    all.assign("q", "c", &memory(5), Use::Lasting, five).unwrap();
    let before = all.nodes().clone();
    let error = give(&mut all, "r", "c", 5, Use::Lasting).unwrap_err();
    assert_eq!(error, MemoryError::NoNodes);
    assert!(error.to_string().starts_with("[memorymanager] failed to get the default NUMA affinity"));
    assert_eq!(*all.nodes(), before);
}

#[test]
fn m7_more_nodes_than_needed_are_not_preferred() {
    let all = MemoryStatic::new(machine(2));
    let hints = all.hints("p", "c", &memory(2));
    let hint = |nodes: &[u32], preferred| Hint { nodes: Some(mask(nodes)), preferred };
    assert_eq!(hints, [Some(vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)])]);
    let hints = all.hints("p", "c", &memory(12));
    assert_eq!(hints, [Some(vec![hint(&[0, 1], true)])]);
    assert_eq!(all.hints("p", "c", &memory(19)), [Some(vec![])]);
    assert_eq!(all.hints("p", "c", &Bytes::new()), Vec::<Hints>::new());
}

/// What the topology manager chose is too small: merging may leave fewer nodes than were asked for.
#[test]
fn a_choice_that_is_too_small_is_extended() {
    let mut all = MemoryStatic::new(machine(2));
    let chosen = Hint { nodes: Some(mask(&[1])), preferred: false };
    all.assign("p", "c", &memory(12), Use::Lasting, chosen).unwrap();
    assert_eq!(all.of("p", "c").unwrap()[0].nodes, mask(&[0, 1]));
    let error = all.assign("q", "c", &memory(9), Use::Lasting, chosen).unwrap_err();
    assert_eq!(error, MemoryError::NoExtension);
}

/// M1, the other way: what a file says of another machine is told of, and is no reason not to start.
#[test]
fn what_the_machine_has_no_more_is_left_out() {
    let mut all = MemoryStatic::new(machine(2));
    give(&mut all, "p", "c", 12, Use::Lasting).unwrap();
    give(&mut all, "q", "c", 2, Use::Lasting).unwrap();
    let (again, problems) = MemoryStatic::restore(machine(2), all.entries(), all.pools());
    assert_eq!((problems, again.nodes()), (Vec::new(), all.nodes()));
    let (again, problems) = MemoryStatic::restore(machine(1), all.entries(), all.pools());
    assert_eq!((problems.len(), free(&again)), (2, vec![9]));
}

proptest! {
    /// Whatever comes and goes, everything is counted once, nobody is given more than there is, and all of it comes back.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec((0_u8..5, 0_u64..14, any::<bool>(), 0_u8..8), 1..40)) {
        let mut all = MemoryStatic::new(machine(3));
        for (pod, gib, passing, what) in steps {
            let uid = format!("pod-{pod}");
            match what {
                0 => { all.release(&uid); }
                1 => {
                    let (again, problems) = MemoryStatic::restore(machine(3), all.entries(), all.pools());
                    prop_assert_eq!(problems, Vec::<String>::new());
                    all = again;
                }
                container => {
                    let of = if passing { Use::Passing } else { Use::Lasting };
                    let before = (all.nodes().clone(), all.entries().clone());
                    if give(&mut all, &uid, &format!("c{container}"), gib, of).is_err() {
                        prop_assert_eq!((all.nodes(), all.entries()), (&before.0, &before.1));
                    }
                }
            }
            let held: u64 = all.entries().values().flat_map(BTreeMap::values).flatten().map(|it| it.bytes).sum();
            let reserved: u64 = all.nodes().values().map(|node| node.tables["memory"].reserved).sum();
            prop_assert_eq!(held, reserved);
            for node in all.nodes().values() {
                let table = node.tables["memory"];
                prop_assert_eq!(table.free + table.reserved, table.allocatable);
            }
        }
        all.keep_only(|_| false);
        prop_assert_eq!(free(&all), [9, 9, 9]);
    }
}

/// Of what a pod holds already nothing is counted a second time when it is looked where the whole pod could lie.
#[test]
fn a_pod_is_not_counted_twice() {
    let mut all = MemoryStatic::new(machine(2));
    let near = Hint { nodes: Some(mask(&[1])), preferred: true };
    all.assign("p", "a", &memory(5), Use::Lasting, near).unwrap();
    let hints = all.pod_hints("p", &memory(9)).remove(0).unwrap();
    assert_eq!(hints.iter().map(|it| it.nodes.unwrap()).collect::<Vec<_>>(), [mask(&[1])]);
}

/// Memory of a pod as a whole: those that have some to themselves, those that share, and init containers.
#[test]
fn c29_a_pod_has_memory_as_a_whole() {
    let mut all = MemoryStatic::new(machine(2));
    let part = |name: &str, gib: u64| Part {
        name: name.to_owned(),
        passes: name.starts_with('i'),
        own: if gib == 0 { Bytes::new() } else { memory(gib) },
    };
    let parts = [part("i", 0), part("s", 1), part("a", 2), part("b", 0)];
    assert_eq!(all.assign_pool("p", &memory(6), &parts, Hint::ANY), Ok(true));
    let held = |name: &str| all.of("p", name).unwrap().iter().map(|block| block.bytes / GIB).sum::<u64>();
    assert_eq!([held("i"), held("s"), held("a"), held("b")], [6, 1, 2, 3]);
    assert_eq!(free(&all), [3, 9]);
    let (again, problems) = MemoryStatic::restore(machine(2), all.entries(), all.pools());
    assert_eq!((again.nodes(), problems), (all.nodes(), Vec::new()));
    // C30.
    let greedy = [part("a", 6), part("b", 0)];
    let error = all.assign_pool("q", &memory(6), &greedy, Hint::ANY).unwrap_err().to_string();
    assert!(
        error.starts_with("pod rejected, sum of exclusive container memory requests equals pod budget"),
        "{error}"
    );
    // C31.
    assert!(all.release("p"));
    assert_eq!(free(&all), [9, 9]);
}

/// What init containers leave to those after them is there again with the rest of what the pod held.
#[test]
fn what_was_given_since_is_taken_back_and_no_more() {
    let mut all = MemoryStatic::new(machine(1));
    all.assign("p", "i", &memory(9), Use::Passing, Hint::ANY).unwrap();
    let (before, nodes) = (all.held("p"), all.nodes().clone());
    for _ in 0..2 {
        all.assign("p", "a", &memory(9), Use::Lasting, Hint::ANY).unwrap();
        assert!(all.assign("p", "b", &memory(1), Use::Lasting, Hint::ANY).is_err());
        assert!(all.put_back("p", &before) && !all.put_back("p", &before));
        assert_eq!((all.of("p", "a"), all.of("p", "i").map(|blocks| blocks[0].bytes)), (None, Some(9 * GIB)));
        assert_eq!(*all.nodes(), nodes);
    }
    assert!(all.put_back("p", &PodMemory::default()));
    assert_eq!(free(&all), [9]);
}
