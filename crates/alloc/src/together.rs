//! CPUs, memory and devices together: whatever happens in whatever order, nothing has two owners and nothing is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use crate::{
    Ask, Block, Cpu, CpuSet, CpuState, Device, Hint, Ledger, Machine, MemoryMachine, MemoryState,
    MemoryStatic, NodeMask, Options, Part, Static, Topology, TopologyPolicy, Use, asks,
};

const GIB: u64 = 1 << 30;
const RESOURCE: &str = "example.com/dev";
/// CPUs, devices and nodes of the machine.
const CPUS: u32 = 12;
const DEVICES: u32 = 8;

/// Two nodes of three cores of two threads each.
fn machine(off: &BTreeSet<u32>) -> Machine {
    let place = |cpu: u32| Cpu { core: cpu % 6, socket: cpu % 2, node: cpu % 2, cache: cpu % 2 };
    Machine::new((0..CPUS).filter(|cpu| !off.contains(cpu)).map(|cpu| (cpu, place(cpu))).collect())
}

fn memory_machine() -> MemoryMachine {
    let types: BTreeMap<String, (u64, u64)> = [("memory".to_owned(), (10 * GIB, GIB))].into();
    MemoryMachine { nodes: (0..2).map(|node| (node, types.clone())).collect() }
}

fn list() -> BTreeMap<Arc<str>, Device> {
    let device = |at: u32| (Arc::from(format!("d{at}")), Device { healthy: true, nodes: vec![at % 2] });
    (0..DEVICES).map(device).collect()
}

/// What one container of a pod asks for.
#[derive(Clone, Copy, Debug)]
struct Wish {
    cpus: usize,
    gib: u64,
    devices: usize,
    passes: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// A pod comes; as a whole or container by container.
    Come(u8, Vec<Wish>, bool),
    End(u8),
    Restart,
    LoseCpus,
    LoseMemory,
    /// CPUs other than the reserved one go off, or come back.
    Off(u32),
    On(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let wish = (0_usize..4, 1_u64..5, 0_usize..3, any::<bool>())
        .prop_map(|(cpus, gib, devices, passes)| Wish { cpus, gib, devices, passes });
    prop_oneof![
        6 => (0_u8..6, proptest::collection::vec(wish, 1..4), any::<bool>())
            .prop_map(|(pod, wishes, whole)| Step::Come(pod, wishes, whole)),
        3 => (0_u8..6).prop_map(Step::End),
        1 => Just(Step::Restart),
        1 => Just(Step::LoseCpus),
        1 => Just(Step::LoseMemory),
        1 => (1..CPUS).prop_map(Step::Off),
        1 => (1..CPUS).prop_map(Step::On),
    ]
}

/// Everything of the node, and what runs on it.
struct Node {
    cpus: Static,
    memory: MemoryStatic,
    devices: Ledger,
    topology: Topology,
    options: Options,
    off: BTreeSet<u32>,
    /// Pods that run, with what they asked for; whether as a whole.
    runs: BTreeMap<String, (Vec<Wish>, bool)>,
}

fn name(at: usize) -> String {
    format!("c{at}")
}

fn bytes(gib: u64) -> crate::Bytes {
    [("memory".to_owned(), gib * GIB)].into()
}

fn reserved() -> CpuSet {
    [0].into_iter().collect()
}

impl Node {
    fn new(policy: TopologyPolicy, strict: bool) -> Self {
        let options = Options { strict_reservation: strict, ..Options::default() };
        let mut devices = Ledger::default();
        devices.list(&RESOURCE.into(), list());
        Self {
            cpus: Static::new(machine(&BTreeSet::new()), reserved(), options),
            memory: MemoryStatic::new(memory_machine()),
            devices,
            topology: Topology { policy, nodes: [0, 1].into_iter().collect(), distances: None },
            options,
            off: BTreeSet::new(),
            runs: BTreeMap::new(),
        }
    }

    fn pod(uid: &str, wishes: &[Wish]) -> Pod {
        let container = |(at, wish): (usize, &Wish)| {
            let limits = json!({ RESOURCE: wish.devices.to_string() });
            json!({ "name": name(at), "resources": { "limits": limits } })
        };
        let of = |passes: bool| -> Vec<_> {
            wishes.iter().enumerate().filter(|(_, wish)| wish.passes == passes).map(container).collect()
        };
        let spec = json!({ "initContainers": of(true), "containers": of(false) });
        serde_json::from_value(json!({ "metadata": { "uid": uid }, "spec": spec })).unwrap()
    }

    /// As the crate `resources` does it: from where, then CPUs and memory, then devices; all or nothing.
    fn come(&mut self, uid: &str, wishes: &[Wish], whole: bool) -> bool {
        if self.runs.contains_key(uid) {
            return false;
        }
        let before = (self.cpus.clone(), self.memory.clone(), self.devices.clone());
        // Init containers come first.
        let mut ordered: Vec<usize> = (0..wishes.len()).collect();
        ordered.sort_by_key(|at| !wishes[*at].passes);
        let asked = asks(&Self::pod(uid, wishes));
        let done = if whole {
            self.give_whole(uid, wishes, &ordered, &asked)
        } else {
            self.give_each(uid, wishes, &ordered, &asked)
        };
        if done.is_none() {
            (self.cpus, self.memory, self.devices) = before;
            return false;
        }
        self.runs.insert(uid.to_owned(), (wishes.to_vec(), whole));
        true
    }

    fn give_each(&mut self, uid: &str, wishes: &[Wish], order: &[usize], asked: &[Ask]) -> Option<()> {
        for at in order {
            let (wish, container) = (wishes[*at], name(*at));
            let own: Vec<&Ask> = asked.iter().filter(|ask| ask.container == container).collect();
            let mut lists: Vec<_> =
                own.iter().map(|ask| self.devices.hints(ask, self.topology.nodes)).collect();
            lists.push(self.cpus.hints(uid, &container, wish.cpus));
            lists.extend(self.memory.hints(uid, &container, &bytes(wish.gib)));
            let (hint, admitted) = self.topology.merge(&lists);
            if !admitted {
                return None;
            }
            let of = if wish.passes { Use::Passing } else { Use::Lasting };
            if wish.cpus > 0 {
                self.cpus.assign(uid, &container, wish.cpus, of, hint.nodes).ok()?;
            }
            self.memory.assign(uid, &container, &bytes(wish.gib), of, hint).ok()?;
            self.take(&own, hint)?;
        }
        Some(())
    }

    fn give_whole(&mut self, uid: &str, wishes: &[Wish], order: &[usize], asked: &[Ask]) -> Option<()> {
        // One more than the containers have to themselves, for those that share.
        let cpus = wishes.iter().map(|wish| wish.cpus).sum::<usize>() + 1;
        let gib = wishes.iter().map(|wish| wish.gib).sum::<u64>();
        let lists = [self.cpus.pod_hints(uid, cpus)].into_iter();
        let lists: Vec<_> = lists.chain(self.memory.pod_hints(uid, &bytes(gib))).collect();
        let (hint, admitted) = self.topology.merge(&lists);
        if !admitted {
            return None;
        }
        let parts: Vec<Part<usize>> = order
            .iter()
            .map(|at| Part { name: name(*at), passes: wishes[*at].passes, own: wishes[*at].cpus })
            .collect();
        self.cpus.assign_pool(uid, cpus, &parts, hint.nodes).ok()?;
        let parts: Vec<Part<crate::Bytes>> = order
            .iter()
            .map(|at| Part { name: name(*at), passes: wishes[*at].passes, own: bytes(wishes[*at].gib) })
            .collect();
        self.memory.assign_pool(uid, &bytes(gib), &parts, hint).ok()?;
        self.take(&asked.iter().collect::<Vec<_>>(), hint)
    }

    fn take(&mut self, asks: &[&Ask], hint: Hint) -> Option<()> {
        for ask in asks {
            self.devices.take(ask, &[], hint.nodes).ok()?;
            assert!(self.devices.confirm(ask, Vec::new()));
        }
        Some(())
    }

    fn end(&mut self, uid: &str) {
        self.cpus.release(uid);
        self.memory.release(uid);
        self.devices.release(uid);
        self.runs.remove(uid);
    }

    fn present() -> CpuSet {
        (0..CPUS).collect()
    }

    /// Nothing is known but what is on disk.
    fn restart(&mut self) {
        let state = CpuState::from_text(&self.cpus.state().to_text()).unwrap();
        let (cpus, problems) =
            Static::restore(machine(&self.off), reserved(), self.options, &Self::present(), &state);
        assert_eq!((problems, cpus.state()), (Vec::new(), self.cpus.state()));
        self.cpus = cpus;
        let kept = MemoryState {
            policy: "Static".into(),
            nodes: self.memory.nodes().clone(),
            entries: self.memory.entries().clone(),
            pods: self.memory.pools().clone(),
        };
        let kept = MemoryState::from_text(&kept.to_text()).unwrap();
        let (memory, problems) = MemoryStatic::restore(memory_machine(), &kept.entries, &kept.pods);
        assert_eq!((problems, memory.entries()), (Vec::new(), self.memory.entries()));
        self.memory = memory;
        let mut devices = Ledger::from_text(&self.devices.to_text()).unwrap();
        devices.list(&RESOURCE.into(), list());
        self.devices = devices;
    }

    /// The file is lost: what the kernel says of containers that run, those that have not ended, is put down.
    fn lose_cpus(&mut self) {
        let before =
            std::mem::replace(&mut self.cpus, Static::new(machine(&self.off), reserved(), self.options));
        for (uid, (wishes, whole)) in &self.runs {
            let lasting = wishes.iter().enumerate().filter(|(_, wish)| !wish.passes);
            let seen: BTreeMap<String, CpuSet> = lasting
                .filter(|(_, wish)| *whole || wish.cpus > 0)
                .map(|(at, _)| (name(at), before.place(uid, &name(at)).0))
                .collect();
            if *whole {
                let all: CpuSet = seen.values().flat_map(CpuSet::iter).collect();
                let budget = wishes.iter().map(|wish| wish.cpus).sum::<usize>() + 1;
                if all.len() <= budget && self.cpus.could_hold(&all) {
                    self.cpus.adopt_pool(uid, &seen);
                }
                continue;
            }
            for (container, cpus) in seen {
                let wanted = before.of(uid, &container).map(CpuSet::len);
                if wanted == Some(cpus.len()) && self.cpus.could_hold(&cpus) {
                    self.cpus.adopt(uid, &container, cpus);
                }
            }
        }
    }

    fn lose_memory(&mut self) {
        let before = std::mem::replace(&mut self.memory, MemoryStatic::new(memory_machine()));
        for (uid, (wishes, whole)) in &self.runs {
            let nodes = |container: &str| -> NodeMask {
                let blocks = before.of(uid, container).unwrap_or_default().iter();
                blocks.flat_map(|block: &Block| block.nodes.iter()).collect()
            };
            let lasting: Vec<(usize, &Wish)> =
                wishes.iter().enumerate().filter(|(_, wish)| !wish.passes).collect();
            if *whole {
                let Some((first, _)) = lasting.first() else { continue };
                let parts: Vec<Part<crate::Bytes>> = wishes
                    .iter()
                    .enumerate()
                    .map(|(at, wish)| Part { name: name(at), passes: wish.passes, own: bytes(wish.gib) })
                    .collect();
                let gib = wishes.iter().map(|wish| wish.gib).sum::<u64>();
                let hint = Hint { nodes: Some(nodes(&name(*first))), preferred: false };
                self.memory.assign_pool(uid, &bytes(gib), &parts, hint).ok();
                continue;
            }
            for (at, wish) in lasting {
                let hint = Hint { nodes: Some(nodes(&name(at))), preferred: false };
                self.memory.assign(uid, &name(at), &bytes(wish.gib), Use::Lasting, hint).ok();
            }
        }
    }

    fn check(&self) {
        // CPUs: one pod each, none of the system's, and all others are shared.
        let mut owners: BTreeMap<u32, &str> = BTreeMap::new();
        let pools = self.cpus.pools().iter();
        let sets =
            self.cpus.entries().iter().flat_map(|(uid, sets)| sets.values().map(move |cpus| (uid, cpus)));
        for (uid, cpus) in sets.chain(pools) {
            for cpu in cpus.iter() {
                assert_ne!(cpu, 0, "the system's CPU is {uid}'s");
                let owner = owners.insert(cpu, uid);
                assert!(owner.is_none_or(|owner| owner == uid), "CPU {cpu} is {owner:?}'s and {uid}'s");
            }
        }
        let online = machine(&self.off).all();
        let held: CpuSet = owners.keys().copied().collect();
        let mut shared = &online - &held;
        if self.options.strict_reservation {
            shared = &shared - &reserved();
        }
        assert_eq!(self.cpus.shared(), &shared);
        // Of one pod those that run at one time have different ones.
        for (uid, (wishes, whole)) in &self.runs {
            let mut seen = CpuSet::default();
            for (at, wish) in wishes.iter().enumerate().filter(|(_, wish)| !wish.passes && wish.cpus > 0) {
                let Some(cpus) = self.cpus.of(uid, &name(at)) else { continue };
                assert!((cpus & &seen).is_empty(), "{uid}: {cpus} and {seen}");
                assert!(*whole || cpus.len() == wish.cpus);
                seen = &seen | cpus;
            }
        }
        // Memory: what is held is what is counted, and no more than there is.
        let alone = self.memory.entries().iter().filter(|(uid, _)| !self.memory.pools().contains_key(*uid));
        let blocks = alone.flat_map(|(_, sets)| sets.values()).chain(self.memory.pools().values()).flatten();
        let held: u64 = blocks.map(|block| block.bytes).sum();
        let tables = || self.memory.nodes().values().map(|node| node.tables["memory"]);
        assert_eq!(held, tables().map(|table| table.reserved).sum::<u64>());
        assert!(tables().all(|table| table.reserved + table.free == table.allocatable));
        // Devices: one pod each; of one pod those that run at one time have different ones.
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        let mut lasting: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (uid, container, _, held) in self.devices.held() {
            let at: usize = container.trim_start_matches('c').parse().unwrap();
            let wishes = self.runs.get(uid).map(|(wishes, _)| wishes);
            for id in held.devices.keys() {
                let owner = owners.insert(id, uid);
                assert!(owner.is_none_or(|owner| owner == uid), "{id} is {owner:?}'s and {uid}'s");
                if wishes.is_some_and(|wishes| !wishes[at].passes) {
                    assert!(lasting.insert((uid, id)), "{id} is there twice in {uid}");
                }
            }
        }
    }
}

fn policy() -> impl Strategy<Value = TopologyPolicy> {
    prop_oneof![
        Just(TopologyPolicy::None),
        Just(TopologyPolicy::BestEffort),
        Just(TopologyPolicy::Restricted),
        Just(TopologyPolicy::SingleNumaNode),
    ]
}

proptest! {
    #[test]
    fn nothing_has_two_owners_and_nothing_is_lost(
        steps in proptest::collection::vec(step(), 1..50),
        policy in policy(),
        strict in any::<bool>(),
    ) {
        let mut node = Node::new(policy, strict);
        for step in steps {
            match step {
                Step::Come(pod, wishes, whole) => { node.come(&format!("p{pod}"), &wishes, whole); }
                Step::End(pod) => node.end(&format!("p{pod}")),
                Step::Restart => node.restart(),
                Step::LoseCpus => node.lose_cpus(),
                Step::LoseMemory => node.lose_memory(),
                Step::Off(cpu) => {
                    node.off.insert(cpu);
                    node.cpus.set_machine(machine(&node.off));
                }
                Step::On(cpu) => {
                    node.off.remove(&cpu);
                    node.cpus.set_machine(machine(&node.off));
                }
            }
            node.check();
        }
        // All of it is there again.
        node.off.clear();
        node.cpus.set_machine(machine(&node.off));
        let uids: Vec<String> = node.runs.keys().cloned().collect();
        uids.iter().for_each(|uid| node.end(uid));
        let fresh = Node::new(policy, strict);
        prop_assert_eq!(node.cpus.state(), fresh.cpus.state());
        prop_assert_eq!(node.memory.nodes(), fresh.memory.nodes());
        prop_assert_eq!(node.devices.held().count(), 0);
        let all = Wish { cpus: 4, gib: 8, devices: 4, passes: false };
        prop_assert!(node.come("last", &[all], false), "a whole node's worth can be had");
    }

    /// What is let in by the strictest policy lies on one node, all of it.
    #[test]
    fn what_must_lie_together_does(pods in proptest::collection::vec((1_usize..4, 1_u64..4, 1_usize..4), 1..6)) {
        let mut node = Node::new(TopologyPolicy::SingleNumaNode, false);
        for (at, (cpus, gib, devices)) in pods.into_iter().enumerate() {
            let uid = format!("p{at}");
            if !node.come(&uid, &[Wish { cpus, gib, devices, passes: false }], false) {
                continue;
            }
            let mut nodes: BTreeSet<u32> = node.cpus.of(&uid, "c0").unwrap().iter().map(|cpu| cpu % 2).collect();
            nodes.extend(node.memory.of(&uid, "c0").unwrap().iter().flat_map(|block| block.nodes.iter()));
            let held = &node.devices.of(&uid, "c0").unwrap()[RESOURCE];
            nodes.extend(held.devices.values().flatten());
            prop_assert_eq!(nodes.len(), 1, "{:?}", nodes);
        }
    }
}
