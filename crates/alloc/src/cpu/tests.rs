//! Upstream's picks on its own machines, and others that people have.

use proptest::prelude::*;

use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn machine(cpus: u32, place: impl Fn(u32) -> Cpu) -> Machine {
    Machine::new((0..cpus).map(|cpu| (cpu, place(cpu))).collect())
}

/// One socket, four cores of two.
fn one_socket() -> Machine {
    machine(8, |cpu| Cpu { core: cpu % 4, socket: 0, node: 0, cache: 0 })
}

/// Two sockets with a node each, three cores of two; even CPUs on the first.
fn two_sockets() -> Machine {
    machine(12, |cpu| Cpu { core: cpu % 6, socket: cpu % 2, node: cpu % 2, cache: cpu % 2 })
}

/// Two sockets with two nodes each, ten cores of two on a node.
fn four_nodes() -> Machine {
    machine(80, |cpu| {
        let core = cpu % 40;
        Cpu { core, socket: core / 20, node: core / 10, cache: core / 20 }
    })
}

/// One socket, eight cores of two, a cache for each four.
fn two_caches() -> Machine {
    machine(16, |cpu| Cpu { core: cpu % 8, socket: 0, node: 0, cache: cpu % 8 / 4 })
}

/// Four nodes without hyperthreads.
fn no_smt() -> Machine {
    machine(16, |cpu| Cpu { core: cpu, socket: cpu / 8, node: cpu / 4, cache: cpu / 8 })
}

/// Eight nodes on two sockets, 128 cores of two.
fn large() -> Machine {
    machine(256, |cpu| {
        let core = cpu % 128;
        Cpu { core, socket: core / 64, node: core / 16, cache: core / 8 }
    })
}

const PLAIN: Packing = Packing { by_cache: false, spread: false, over_nodes: None, by_socket: false };

fn check(machine: &Machine, free: &str, count: usize, packing: Packing, expected: &str) {
    let free = if free == "all" { machine.all() } else { set(free) };
    let picked = take(machine, &free, count, packing).unwrap();
    assert_eq!(picked.to_string(), set(expected).to_string(), "{count} of {free} by {packing:?}");
}

/// C1, C2, C3, C5, C6, C7 and C8 of the reference.
#[test]
fn packed_as_upstream_packs() {
    let (a, b, c) = (one_socket(), two_sockets(), four_nodes());
    for (machine, free, count, expected) in [
        (&a, "all", 0, ""),
        (&a, "all", 1, "0"),
        (&a, "all", 2, "0,4"),
        (&a, "all", 8, "0-7"),
        (&a, "1,3,5-7", 1, "6"),
        (&a, "0-3,6", 2, "2,6"),
        (&a, "1-7", 1, "4"),
        (&b, "all", 6, "0,2,4,6,8,10"),
        (&b, "all", 8, "0,2,4,6,8,10,1,7"),
        (&b, "1-5,7-11", 1, "2"),
        (&c, "all", 20, "0-9,40-49"),
        (&c, "all", 40, "0-19,40-59"),
        (&c, "all", 60, "0-29,40-69"),
        (&c, "1-39,41-79", 60, "10-39,50-79"),
        (&no_smt(), "all", 4, "0-3"),
        (&no_smt(), "1-15", 4, "4-7"),
        (&no_smt(), "1-15", 2, "1-2"),
        (&large(), "all", 32, "0-15,128-143"),
        (&large(), "all", 128, "0-63,128-191"),
    ] {
        check(machine, free, count, PLAIN, expected);
    }
    // Of two reserved CPUs on a machine of eight.
    check(&a, "all", 2, PLAIN, "0,4");
}

/// C4 and C9.
#[test]
fn too_many() {
    let text = |free: &str, count| take(&one_socket(), &set(free), count, PLAIN).unwrap_err().to_string();
    assert_eq!(text("0,2,4,6", 5), "not enough cpus available to satisfy request: requested=5, available=4");
    assert_eq!(text("1-7", 8), "not enough cpus available to satisfy request: requested=8, available=7");
    assert_eq!(text("0,99", 2), "not enough cpus available to satisfy request: requested=2, available=1");
}

/// C12.
#[test]
fn spread_over_cores() {
    let spread = Packing { spread: true, ..PLAIN };
    check(&one_socket(), "all", 3, spread, "0-2");
    check(&two_sockets(), "all", 8, spread, "0,2,4,6,8,10,1,3");
}

/// C13.
#[test]
fn within_caches() {
    let by_cache = Packing { by_cache: true, ..PLAIN };
    check(&two_caches(), "2-7,10-15", 6, by_cache, "4-6,12-14");
    check(&two_caches(), "1-7,9-15", 10, by_cache, "4-7,12-15,1,9");
    check(&two_caches(), "all", 8, by_cache, "0-3,8-11");
    check(&two_caches(), "1-7,9-15", 3, by_cache, "1-2,9");
}

/// C10, C11 and C11b.
#[test]
fn distributed_over_nodes() {
    let by = |group| Packing { over_nodes: Some(group), ..PLAIN };
    let c = four_nodes();
    check(&two_sockets(), "all", 8, by(1), "0,2,6,8,1,3,7,9");
    check(&c, "all", 64, by(1), "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77");
    check(&c, "all", 26, by(1), "0-6,10-16,40-45,50-55");
    check(&c, "all", 26, by(2), "0-6,40-46,10-15,50-55");
    check(&c, "2-29,31-39,42-69,71-79", 48, by(1), "10-17,20-27,31-38,50-57,60-67,71-78");
    check(&c, "all", 3, by(2), "0-1,40");
    check(&c, "all", 0, by(1), "");
    check(&large(), "all", 256, by(1), "0-255");
}

/// `align-by-socket`: nodes 1 and 2 would leave the best balance, and are on two sockets.
#[test]
fn distributed_over_nodes_of_one_socket() {
    let c = four_nodes();
    let free = "0-5,10-19,20-29,30-35,40-45,50-59,60-69,70-75";
    let by = |by_socket| Packing { over_nodes: Some(1), by_socket, ..PLAIN };
    check(&c, free, 22, by(false), "10-15,20-25,50-54,60-64");
    check(&c, free, 22, by(true), "0-5,10-15,40-44,50-54");
    // Eleven would be the share of each: where a node has four, the other one of its socket gives the rest, if there is no other socket.
    let free = "0-1,10-19,20-29,30-39,40-41,50-59,60-69,70-79";
    check(&c, free, 22, by(true), "20-25,30-35,60-64,70-74");
    check(&c, "0-1,10-19,40-41,50-59", 22, by(true), "0-1,10-18,40-41,50-58");
}

/// 32 nodes of four CPUs: there are more ways to choose some of them than can be looked at.
#[test]
fn many_nodes_are_not_looked_at_in_every_way() {
    let many = machine(128, |cpu| Cpu { core: cpu, socket: cpu / 64, node: cpu / 4, cache: cpu / 4 });
    let by = Packing { over_nodes: Some(1), ..PLAIN };
    let each = |nodes: std::ops::Range<u32>, count: u32| -> CpuSet {
        nodes.flat_map(|node| (node * 4)..(node * 4 + count)).collect()
    };
    let taken = |free: &CpuSet, count: usize| take(&many, free, count, by).unwrap();
    // One CPU of each is free: ten million ways to take eight.
    assert_eq!(taken(&each(0..32, 1), 8), each(0..8, 1));
    assert_eq!(taken(&each(0..32, 1), 32), each(0..32, 1));
    // Only the last eight nodes have two, and no other eight have sixteen.
    assert_eq!(taken(&(&each(0..24, 1) | &each(24..32, 2)), 16), each(24..32, 2));
    // Nine nodes, of which some give three and some give four.
    let uneven = taken(&many.all(), 33);
    let nodes: std::collections::BTreeSet<u32> = uneven.iter().map(|cpu| cpu / 4).collect();
    assert_eq!((uneven.len(), nodes.len()), (33, 9));
}

/// Choices come one by one, in the order of the list.
#[test]
fn choices_of_some() {
    use super::distribute::Choices;
    let all = |of: &[u32], size| Choices::new(of, size).collect::<Vec<_>>();
    assert_eq!(all(&[4, 5, 6], 2), [[4, 5], [4, 6], [5, 6]]);
    assert_eq!(all(&[4, 5, 6], 3), [[4, 5, 6]]);
    assert_eq!(all(&[], 0), [[0_u32; 0]]);
    assert!(all(&[4], 2).is_empty());
    assert_eq!(
        (all(&[1, 2, 3, 4, 5, 6], 3).len(), all(&[9, 8, 7], 1)),
        (20, vec![vec![9], vec![8], vec![7]])
    );
    let many: Vec<u32> = (0..64).collect();
    assert_eq!(Choices::new(&many, 32).take(2).last().unwrap().last(), Some(&32));
}

fn machines() -> impl Strategy<Value = Machine> {
    (0_usize..6, any::<u64>()).prop_map(|(which, offline)| {
        let whole = match which {
            0 => one_socket(),
            1 => two_sockets(),
            2 => four_nodes(),
            3 => two_caches(),
            4 => no_smt(),
            _ => machine(1, |_| Cpu { core: 0, socket: 0, node: 0, cache: 0 }),
        };
        // Some CPUs are offline; a core is then named after its lowest one that is not.
        let on = |cpu: u32| cpu == 0 || offline.rotate_left(cpu) & 7 != 0;
        let cpus: BTreeMap<u32, Cpu> =
            whole.all().iter().filter(|cpu| on(*cpu)).map(|cpu| (cpu, *whole.cpu(cpu).unwrap())).collect();
        Machine::new(cpus)
    })
}

proptest! {
    /// As many as asked for, all of them free; or an error exactly when there are not so many.
    #[test]
    fn never_more_nor_others(
        machine in machines(), taken in any::<u128>(), count in 0_usize..90,
        by_cache in any::<bool>(), spread in any::<bool>(), group in 0_usize..4,
    ) {
        let free: CpuSet = machine.all().iter().filter(|cpu| taken.rotate_left(*cpu) & 1 == 0).collect();
        let packing = Packing { by_cache, spread, over_nodes: (group > 0).then_some(group), by_socket: spread };
        match take(&machine, &free, count, packing) {
            Ok(picked) => {
                prop_assert_eq!(picked.len(), count);
                prop_assert!((&picked - &free).is_empty());
            }
            Err(error) => {
                prop_assert!(free.len() < count);
                prop_assert_eq!(error, NotEnough { requested: count, available: free.len() });
            }
        }
    }

    /// In any order of taking and giving back nobody has a CPU of another's, and in the end all are free.
    #[test]
    fn never_two_owners(machine in machines(), steps in proptest::collection::vec((1_usize..20, any::<bool>()), 1..40)) {
        let mut free = machine.all();
        let mut owners: Vec<CpuSet> = Vec::new();
        for (count, release) in steps {
            if release && !owners.is_empty() {
                free = &free | &owners.remove(count % owners.len());
            } else if let Ok(picked) = take(&machine, &free, count, PLAIN) {
                free = &free - &picked;
                owners.push(picked);
            }
            let held: usize = owners.iter().map(CpuSet::len).sum();
            prop_assert_eq!(held + free.len(), machine.all().len());
        }
        for owner in owners {
            prop_assert!((&owner & &free).is_empty());
            free = &free | &owner;
        }
        prop_assert_eq!(free, machine.all());
    }
}

/// A core of which one CPU is offline is no whole core, and makes no other one smaller.
#[test]
fn a_cpu_that_is_offline_makes_no_core_smaller() {
    let all = (0..8).filter(|cpu| *cpu != 5);
    let place = |cpu: u32| Cpu { core: cpu % 4, socket: 0, node: 0, cache: 0 };
    let machine = Machine::new(all.map(|cpu| (cpu, place(cpu))).collect());
    assert_eq!(machine.cpus_per_core(), 2);
    // A whole core is taken for two, and what is left of a core for one.
    check(&machine, "all", 2, PLAIN, "0,4");
    check(&machine, "all", 1, PLAIN, "1");
    check(&machine, "1-4,6-7", 2, PLAIN, "2,6");
}
