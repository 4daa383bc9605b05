//! The book: CPUs and memory, and who holds them.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_alloc::{
    Block, CpuSet, CpuState, Hint, Machine, MemoryState, MemoryStatic, PodCpus, PodMemory, Static, Topology,
    TopologyPolicy,
};
use mainstay_devices::Devices;
use mainstay_host::NumaTopology;
use mainstay_types::{MemoryAmounts, MemoryBlock, Placement, PodUid};

use crate::{
    AdmitError, Place, Running,
    ask::{ContainerAsk, PodAsk, PoolAsk},
};

/// CPUs and memory, and who holds them.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) cpus: Option<Static>,
    pub(crate) memory: Option<MemoryStatic>,
    pub(crate) machine: Machine,
    pub(crate) found: NumaTopology,
}

/// What a pod holds of it.
#[derive(Debug)]
pub(crate) struct Held {
    cpus: Option<PodCpus>,
    memory: Option<PodMemory>,
}

/// What is told of it.
pub(crate) struct Told {
    pub(crate) cpus: BTreeSet<u32>,
    pub(crate) held_cpus: Vec<(PodUid, Box<str>, BTreeSet<u32>)>,
    pub(crate) pod_cpus: Vec<(PodUid, BTreeSet<u32>)>,
    pub(crate) memory: Vec<MemoryBlock>,
    pub(crate) held_memory: Vec<(PodUid, Box<str>, Vec<MemoryBlock>)>,
    pub(crate) pod_memory: Vec<(PodUid, Vec<MemoryBlock>)>,
    pub(crate) placement: Placement,
}

impl Book {
    pub(crate) fn is_due(&self, ask: &PodAsk) -> bool {
        if let Some(pool) = &ask.pool {
            // What its containers hold each by itself, from before pods had anything as a whole, they keep.
            let cpus = pool.cpus > 0
                && self.cpus.as_ref().is_some_and(|cpus| !cpus.entries().contains_key(&ask.uid));
            let memory = !pool.memory.is_empty()
                && self.memory.as_ref().is_some_and(|memory| !memory.entries().contains_key(&ask.uid));
            return cpus || memory;
        }
        ask.containers.iter().any(|it| {
            let cpus =
                it.cpus > 0 && self.cpus.as_ref().is_some_and(|cpus| cpus.of(&ask.uid, &it.name).is_none());
            let memory = !it.memory.is_empty()
                && self.memory.as_ref().is_some_and(|memory| memory.of(&ask.uid, &it.name).is_none());
            cpus || memory
        })
    }

    /// Where a container's things are to lie, and whether it may come in.
    pub(crate) fn hint(
        &self,
        uid: &str,
        ask: &ContainerAsk,
        topology: &Topology,
        devices: &Devices,
    ) -> (Hint, bool) {
        if topology.policy == TopologyPolicy::None {
            return (Hint::UNASKED, true);
        }
        let mut lists = devices.hints(&ask.devices, topology.nodes);
        lists.extend(self.cpus.as_ref().map(|cpus| cpus.hints(uid, &ask.name, ask.cpus)));
        lists.extend(self.memory.iter().flat_map(|memory| memory.hints(uid, &ask.name, &ask.memory)));
        topology.merge(&lists)
    }

    /// The same for a whole pod.
    pub(crate) fn pod_hint(&self, ask: &PodAsk, topology: &Topology, devices: &Devices) -> (Hint, bool) {
        let mut lists = devices.hints(&ask.devices(), topology.nodes);
        let (cpus, memory) = match &ask.pool {
            Some(pool) => (pool.cpus, pool.memory.clone()),
            None => (ask.cpus(), ask.memory()),
        };
        lists.extend(self.cpus.as_ref().map(|all| all.pod_hints(&ask.uid, cpus)));
        lists.extend(self.memory.iter().flat_map(|all| all.pod_hints(&ask.uid, &memory)));
        if ask.pool.is_some() && self.check_pool(ask).is_err() {
            // It suits nobody.
            lists.push(Some(Vec::new()));
        }
        topology.merge(&lists)
    }

    /// Whether a pod's whole is enough for those of its containers that share it.
    fn check_pool(&self, ask: &PodAsk) -> Result<(), AdmitError> {
        let Some(pool) = &ask.pool else { return Ok(()) };
        if self.cpus.is_some() && pool.cpus > 0 {
            Static::check_pool(pool.cpus, &ask.parts(|container| container.cpus))?;
        }
        if self.memory.is_some() {
            MemoryStatic::check_pool(&pool.memory, &ask.parts(|container| container.memory.clone()))?;
        }
        Ok(())
    }

    /// Puts down what a pod has as a whole, and what its containers have of it. What it had not had: CPUs, memory.
    pub(crate) fn assign_pool(
        &mut self,
        ask: &PodAsk,
        pool: &PoolAsk,
        hint: Hint,
    ) -> Result<(bool, bool), AdmitError> {
        let mut new = (false, false);
        if let Some(cpus) = self.cpus.as_mut().filter(|cpus| !cpus.entries().contains_key(&ask.uid)) {
            let parts = ask.parts(|container| container.cpus);
            new.0 = cpus.assign_pool(&ask.uid, pool.cpus, &parts, hint.nodes)?;
        }
        if let Some(memory) = self.memory.as_mut().filter(|memory| !memory.entries().contains_key(&ask.uid)) {
            let parts = ask.parts(|container| container.memory.clone());
            match memory.assign_pool(&ask.uid, &pool.memory, &parts, hint) {
                Ok(given) => new.1 = given,
                Err(error) => {
                    if let Some(cpus) = self.cpus.as_mut().filter(|_| new.0) {
                        cpus.release(&ask.uid);
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(new)
    }

    /// Puts CPUs and memory down as the container's own. What it had not had: CPUs, memory.
    pub(crate) fn assign(
        &mut self,
        uid: &str,
        ask: &ContainerAsk,
        hint: Hint,
    ) -> Result<(bool, bool), AdmitError> {
        let mut new = (false, false);
        let before = self.cpus.as_ref().map(|cpus| cpus.held(uid));
        if let Some(cpus) = self.cpus.as_mut().filter(|_| ask.cpus > 0) {
            let had = cpus.of(uid, &ask.name).is_some();
            cpus.assign(uid, &ask.name, ask.cpus, ask.lasts(), hint.nodes)?;
            new.0 = !had;
        }
        if let Some(memory) = self.memory.as_mut().filter(|_| !ask.memory.is_empty()) {
            let had = memory.of(uid, &ask.name).is_some();
            if let Err(error) = memory.assign(uid, &ask.name, &ask.memory, ask.lasts(), hint) {
                if let Some((cpus, before)) = self.cpus.as_mut().zip(before) {
                    cpus.put_back(uid, &before);
                }
                return Err(error.into());
            }
            new.1 = !had;
        }
        Ok(new)
    }

    /// Whether the CPUs that the container was given share a cache.
    pub(crate) fn in_one_cache(&self, uid: &str, container: &str) -> bool {
        let Some(cpus) = self.cpus.as_ref().and_then(|cpus| cpus.of(uid, container)) else { return false };
        let caches: BTreeSet<u32> =
            cpus.iter().filter_map(|cpu| self.machine.cpu(cpu)).map(|cpu| cpu.cache).collect();
        caches.len() == 1
    }

    /// What a pod holds now.
    pub(crate) fn held(&self, uid: &str) -> Held {
        Held {
            cpus: self.cpus.as_ref().map(|cpus| cpus.held(uid)),
            memory: self.memory.as_ref().map(|memory| memory.held(uid)),
        }
    }

    /// Takes back what a pod was given since. Whether that was anything.
    pub(crate) fn put_back(&mut self, uid: &str, held: &Held) -> bool {
        let cpus = self.cpus.as_mut().zip(held.cpus.as_ref());
        let cpus = cpus.is_some_and(|(cpus, held)| cpus.put_back(uid, held));
        let memory = self.memory.as_mut().zip(held.memory.as_ref());
        memory.is_some_and(|(memory, held)| memory.put_back(uid, held)) | cpus
    }

    pub(crate) fn release(&mut self, uid: &str) -> bool {
        let cpus = self.cpus.as_mut().is_some_and(|cpus| cpus.release(uid));
        self.memory.as_mut().is_some_and(|memory| memory.release(uid)) | cpus
    }

    pub(crate) fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let cpus = self.cpus.as_mut().is_some_and(|cpus| cpus.keep_only(&is_there));
        self.memory.as_mut().is_some_and(|memory| memory.keep_only(&is_there)) | cpus
    }

    /// Puts down what the containers of a pod that runs have, which has something as a whole, if it could have been given that. Whether it was.
    pub(crate) fn adopt_pool(&mut self, ask: &PodAsk, pool: &PoolAsk, running: &[&Running]) -> bool {
        let mut adopted = false;
        if let Some(cpus) = &mut self.cpus
            && pool.cpus > 0
            && !cpus.entries().contains_key(&ask.uid)
        {
            let sets: BTreeMap<String, CpuSet> =
                running.iter().map(|it| (it.container.clone(), it.cpus.clone())).collect();
            let all: CpuSet = sets.values().flat_map(CpuSet::iter).collect();
            if all.len() <= pool.cpus && cpus.could_hold(&all) {
                cpus.adopt_pool(&ask.uid, &sets);
                adopted = true;
            }
        }
        if let Some(memory) = &mut self.memory
            && let Some(first) = running.first()
        {
            let hint = Hint { nodes: Some(first.nodes), preferred: false };
            let parts = ask.parts(|container| container.memory.clone());
            adopted |= memory.assign_pool(&ask.uid, &pool.memory, &parts, hint).unwrap_or(false);
        }
        adopted
    }

    /// Puts down what a container that runs has, if it could have been given that. Whether it was.
    pub(crate) fn adopt(&mut self, ask: &PodAsk, running: &Running) -> bool {
        let Some(it) = ask.containers.iter().find(|it| it.name == running.container) else { return false };
        let mut adopted = false;
        if let Some(cpus) = &mut self.cpus
            && it.cpus > 0
            && running.cpus.len() == it.cpus
            && cpus.of(&ask.uid, &it.name).is_none()
            && cpus.could_hold(&running.cpus)
        {
            cpus.adopt(&ask.uid, &it.name, running.cpus.clone());
            adopted = true;
        }
        if let Some(memory) = &mut self.memory
            && !it.memory.is_empty()
            && memory.of(&ask.uid, &it.name).is_none()
        {
            let hint = Hint { nodes: Some(running.nodes), preferred: false };
            adopted |= memory.assign(&ask.uid, &it.name, &it.memory, it.lasts(), hint).is_ok();
        }
        adopted
    }

    pub(crate) fn set_machine(&mut self, found: NumaTopology) {
        self.machine = Machine::new(found.cpus.clone());
        if let Some(cpus) = &mut self.cpus {
            cpus.set_machine(self.machine.clone());
        }
        self.found = found;
    }

    pub(crate) fn place(&self, uid: &str, container: &str) -> Place {
        let mut place = Place::default();
        if let Some(cpus) = &self.cpus {
            let (set, exclusive) = cpus.place(uid, container);
            (place.cpus, place.exclusive) = (set.to_string(), exclusive);
            place.pooled = cpus.pool(uid).is_some();
        }
        let blocks = self.memory.as_ref().and_then(|memory| memory.of(uid, container));
        let nodes: CpuSet = blocks.into_iter().flatten().flat_map(|block| block.nodes.iter()).collect();
        // Upstream writes a list without ranges.
        let nodes: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
        place.nodes = nodes.join(",");
        place
    }

    pub(crate) fn cpu_text(&self) -> String {
        let none = || CpuState { policy: "none".to_owned(), ..CpuState::default() };
        self.cpus.as_ref().map_or_else(none, Static::state).to_text()
    }

    pub(crate) fn memory_text(&self) -> String {
        match &self.memory {
            None => MemoryState { policy: "None".to_owned(), ..MemoryState::default() },
            Some(memory) => MemoryState {
                policy: "Static".to_owned(),
                nodes: memory.nodes().clone(),
                entries: memory.entries().clone(),
                pods: memory.pools().clone(),
            },
        }
        .to_text()
    }

    pub(crate) fn told(&self) -> Told {
        let set = |cpus: &CpuSet| cpus.iter().collect::<BTreeSet<u32>>();
        let cpus = self.cpus.as_ref();
        let memory = self.memory.as_ref();
        let held_cpus = cpus.into_iter().flat_map(Static::entries).flat_map(|(uid, containers)| {
            containers
                .iter()
                .map(move |(name, cpus)| (PodUid::from(uid.as_str()), name.as_str().into(), set(cpus)))
        });
        let block = |block: &Block| MemoryBlock {
            kind: block.kind.as_str().into(),
            bytes: block.bytes,
            nodes: block.nodes.iter().collect(),
        };
        let held_memory = memory.into_iter().flat_map(MemoryStatic::entries).flat_map(|(uid, containers)| {
            containers.iter().map(move |(name, blocks)| {
                (PodUid::from(uid.as_str()), name.as_str().into(), blocks.iter().map(block).collect())
            })
        });
        Told {
            cpus: cpus.map(|cpus| set(&cpus.allocatable())).unwrap_or_default(),
            held_cpus: held_cpus.collect(),
            pod_cpus: cpus
                .into_iter()
                .flat_map(Static::pools)
                .map(|(uid, cpus)| (PodUid::from(uid.as_str()), set(cpus)))
                .collect(),
            memory: self.allocatable_memory(),
            held_memory: held_memory.collect(),
            pod_memory: memory
                .into_iter()
                .flat_map(MemoryStatic::pools)
                .map(|(uid, blocks)| (PodUid::from(uid.as_str()), blocks.iter().map(block).collect()))
                .collect(),
            placement: Placement {
                cpus: self.found.cpus.clone(),
                pins_cpus: cpus.is_some(),
                reserved: cpus.map(|cpus| set(cpus.reserved())).unwrap_or_default(),
                shared: cpus.map(|cpus| set(cpus.shared())).unwrap_or_default(),
                memory: self.memory_amounts(),
                pins_memory: memory.is_some(),
            },
        }
    }

    /// One block for each node and type of which there is something.
    fn allocatable_memory(&self) -> Vec<MemoryBlock> {
        let nodes = self.memory.iter().flat_map(MemoryStatic::nodes);
        let blocks = nodes.flat_map(|(node, it)| {
            it.tables.iter().map(|(kind, table)| MemoryBlock {
                kind: kind.as_str().into(),
                bytes: table.allocatable,
                nodes: vec![*node],
            })
        });
        blocks.filter(|block| block.bytes > 0).collect()
    }

    fn memory_amounts(&self) -> BTreeMap<u32, BTreeMap<Box<str>, MemoryAmounts>> {
        if let Some(memory) = &self.memory {
            let kinds = |node: &mainstay_alloc::MemoryNode| {
                let amounts = node.tables.iter().map(|(kind, table)| {
                    let amounts = MemoryAmounts {
                        total: table.total,
                        system_reserved: table.system_reserved,
                        allocatable: table.allocatable,
                        held: table.reserved,
                    };
                    (kind.as_str().into(), amounts)
                });
                amounts.collect()
            };
            return memory.nodes().iter().map(|(id, node)| (*id, kinds(node))).collect();
        }
        let whole = |bytes| MemoryAmounts { total: bytes, allocatable: bytes, ..MemoryAmounts::default() };
        let nodes = self.found.nodes.iter();
        nodes.map(|(id, node)| (*id, [("memory".into(), whole(node.bytes))].into())).collect()
    }
}
