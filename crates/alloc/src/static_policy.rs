//! The static policy: who holds which CPUs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    CpuSet, CpuState, Hint, Hints, Machine, NodeMask, NotEnough, Packing, state::Entries, take,
    topology::prefer,
};

/// `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `full-pcpus-only`: whole cores or nothing.
    pub whole_cores: bool,
    /// `strict-cpu-reservation`: reserved CPUs are not shared either.
    pub strict_reservation: bool,
    /// `distribute-cpus-across-numa`.
    pub over_nodes: bool,
    /// `distribute-cpus-across-cores`.
    pub spread: bool,
    /// `prefer-align-cpus-by-uncorecache`.
    pub by_cache: bool,
    /// `align-by-socket`: a socket is as good as a NUMA node of it.
    pub by_socket: bool,
}

/// What becomes of a container's CPUs while its pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// An init container's: later containers of the pod may have them.
    Passing,
    /// They stay its own.
    Lasting,
}

/// Why a container cannot have CPUs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// There are not so many.
    #[error(transparent)]
    NotEnough(#[from] NotEnough),
    /// Not whole cores. Upstream's reason is `SMTAlignmentError`.
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores {
        /// How many were wanted.
        requested: usize,
        /// Of a core.
        per_core: usize,
    },
    /// Whole cores are too few. The same reason.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores {
        /// CPUs of whole free cores.
        available: usize,
        /// How many were wanted.
        requested: usize,
        /// Of a core.
        per_core: usize,
    },
    /// Nothing would be left of a pod's CPUs for those that share them. Upstream's reason is `EmptyPodSharedPoolError`.
    #[error(
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
    )]
    NothingShared,
    /// The same for an init container.
    #[error("pod rejected, pod has shared init containers but no cpus available for them")]
    NothingForInit,
}

/// A container of a pod that holds CPUs or memory as a whole.
#[derive(Clone, Debug)]
pub struct Part<T> {
    /// Its name.
    pub name: String,
    /// An init container that ends before others start.
    pub passes: bool,
    /// What it has to itself; nothing for one that shares.
    pub own: T,
}

/// What one pod holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCpus {
    containers: Option<BTreeMap<String, CpuSet>>,
    pool: Option<CpuSet>,
    passing: Option<CpuSet>,
}

/// Lets a map say of a key what it said before.
pub(crate) fn put<T: Clone>(map: &mut BTreeMap<String, T>, key: &str, before: &Option<T>) {
    match before {
        Some(before) => drop(map.insert(key.to_owned(), before.clone())),
        None => drop(map.remove(key)),
    }
}

/// Who holds which CPUs of a machine. Nothing is given back when a container stops, only when its pod is gone.
#[derive(Clone, Debug)]
pub struct Static {
    machine: Machine,
    reserved: CpuSet,
    options: Options,
    /// Nobody's own.
    default: CpuSet,
    entries: Entries,
    /// What pods hold as a whole; what their containers have is among it.
    pools: BTreeMap<String, CpuSet>,
    /// What the pod's init containers have passed on.
    passing: BTreeMap<String, CpuSet>,
}

impl Static {
    /// A machine of which nobody holds anything.
    #[must_use]
    pub fn new(machine: Machine, reserved: CpuSet, options: Options) -> Self {
        let all = machine.all();
        let default = if options.strict_reservation { &all - &reserved } else { all };
        let (entries, pools, passing) = (Entries::new(), BTreeMap::new(), BTreeMap::new());
        Self { machine, reserved, options, default, entries, pools, passing }
    }

    /// The same with what was given out before, even where today's options would not. What cannot be so any more is left out and told
    /// of in a sentence each: a container that runs goes on either way. `present` are the CPUs that the machine has, also those that are offline:
    /// who holds one of these holds it still.
    #[must_use]
    pub fn restore(
        machine: Machine,
        reserved: CpuSet,
        options: Options,
        present: &CpuSet,
        state: &CpuState,
    ) -> (Self, Vec<String>) {
        let mut this = Self::new(machine, reserved, options);
        let there = &this.machine.all() | present;
        let mut problems = Vec::new();
        if state.policy != "static" {
            return (this, problems);
        }
        let wrong = |this: &Self, uid: &str, cpus: &CpuSet| -> Option<String> {
            let gone = cpus - &there;
            let twice = cpus & &this.held_but_by(uid);
            if !gone.is_empty() {
                Some(format!("{gone} are not CPUs of this machine any more"))
            } else if !twice.is_empty() {
                Some(format!("{twice} are another pod's"))
            } else {
                None
            }
        };
        for (uid, cpus) in &state.pods {
            match wrong(&this, uid, cpus) {
                Some(wrong) => problems.push(format!("pod {uid} held CPUs {cpus}, of which {wrong}")),
                None => {
                    this.default = &this.default - cpus;
                    this.pools.insert(uid.clone(), cpus.clone());
                }
            }
        }
        for (uid, containers) in &state.entries {
            for (name, cpus) in containers {
                match wrong(&this, uid, cpus) {
                    Some(wrong) => problems
                        .push(format!("container {name} of pod {uid} held CPUs {cpus}, of which {wrong}")),
                    None => this.hold(uid, name, cpus.clone()),
                }
            }
        }
        (this, problems)
    }

    /// What other pods hold.
    fn held_but_by(&self, uid: &str) -> CpuSet {
        let others = self.entries.iter().filter(|(other, _)| *other != uid);
        let pools = self.pools.iter().filter(|(other, _)| *other != uid).map(|(_, cpus)| cpus);
        others.flat_map(|(_, sets)| sets.values()).chain(pools).flat_map(CpuSet::iter).collect()
    }

    /// For the file.
    #[must_use]
    pub fn state(&self) -> CpuState {
        CpuState {
            policy: "static".to_owned(),
            default: self.default.clone(),
            entries: self.entries.clone(),
            pods: self.pools.clone(),
        }
    }

    /// What may be given out at all, taken or not.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        &self.machine.all() - &self.reserved
    }

    /// What containers without CPUs of their own run on.
    #[must_use]
    pub fn shared(&self) -> &CpuSet {
        &self.default
    }

    /// A container's own.
    #[must_use]
    pub fn of(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.entries.get(uid)?.get(container)
    }

    /// What a pod holds as a whole.
    #[must_use]
    pub fn pool(&self, uid: &str) -> Option<&CpuSet> {
        self.pools.get(uid)
    }

    /// What pods hold as a whole.
    #[must_use]
    pub fn pools(&self) -> &BTreeMap<String, CpuSet> {
        &self.pools
    }

    /// Where a container is to run: on its own CPUs that are online, on its pod's, or where everybody runs. Whether these are others than
    /// everybody's.
    #[must_use]
    pub fn place(&self, uid: &str, container: &str) -> (CpuSet, bool) {
        let own = self.of(uid, container).or_else(|| self.pool(uid));
        let online = own.map(|own| own & &self.machine.all()).filter(|online| !online.is_empty());
        // A container cannot run on a CPU that is offline, nor nowhere.
        (online.unwrap_or_else(|| self.default.clone()), own.is_some())
    }

    /// Whether a pod's CPUs are enough for those of its containers that share them.
    ///
    /// # Errors
    /// Which of them would have none.
    pub fn check_pool(total: usize, parts: &[Part<usize>]) -> Result<(), AssignError> {
        let (mut lasting, mut shared) = (0, false);
        for part in parts {
            match (part.passes, part.own) {
                (true, 0) if lasting >= total => return Err(AssignError::NothingForInit),
                (true, _) => {}
                (false, 0) => shared = true,
                (false, own) => lasting += own,
            }
        }
        if shared && lasting >= total { Err(AssignError::NothingShared) } else { Ok(()) }
    }

    /// Gives a pod so many CPUs as a whole, of these nodes as many as can be, and its containers theirs of them: each that asks for some to itself,
    /// the others what is left. Nothing changes for one that has some already. Whether it was given anything.
    ///
    /// # Errors
    /// When it cannot be given so many; nothing is changed then.
    pub fn assign_pool(
        &mut self,
        uid: &str,
        total: usize,
        parts: &[Part<usize>],
        near: Option<NodeMask>,
    ) -> Result<bool, AssignError> {
        if total == 0 || self.pools.contains_key(uid) {
            return Ok(false);
        }
        Self::check_pool(total, parts)?;
        let nothing = CpuSet::default();
        self.check_cores(total, &nothing)?;
        let pool = self.choose(total, &nothing, near)?;
        let mut sets: BTreeMap<&str, CpuSet> = BTreeMap::new();
        // What sidecars have is theirs from then on; what other init containers have is there again for those after them.
        let mut left = pool.clone();
        for part in parts {
            if part.own > 0 {
                let own = take(&self.machine, &left, part.own, self.packing())?;
                if !part.passes {
                    left = &left - &own;
                }
                sets.insert(&part.name, own);
            } else if part.passes {
                sets.insert(&part.name, left.clone());
            }
        }
        for part in parts {
            let cpus = sets.remove(part.name.as_str()).unwrap_or_else(|| left.clone());
            self.hold(uid, &part.name, cpus);
        }
        self.default = &self.default - &pool;
        self.pools.insert(uid.to_owned(), pool);
        Ok(true)
    }

    /// Puts down what the containers of a pod that runs have, which holds CPUs as a whole.
    pub fn adopt_pool(&mut self, uid: &str, containers: &BTreeMap<String, CpuSet>) {
        let pool: CpuSet = containers.values().flat_map(CpuSet::iter).collect();
        for (name, cpus) in containers {
            self.hold(uid, name, cpus.clone());
        }
        self.pools.insert(uid.to_owned(), pool);
    }

    /// Gives a container so many CPUs, of these nodes as many as can be; those that it has already, if it has any.
    ///
    /// # Errors
    /// When it cannot be given so many; nothing is changed then.
    pub fn assign(
        &mut self,
        uid: &str,
        container: &str,
        count: usize,
        of: Use,
        near: Option<NodeMask>,
    ) -> Result<CpuSet, AssignError> {
        let cpus = match self.of(uid, container) {
            Some(cpus) => cpus.clone(),
            None => {
                let passing = self.passing.get(uid).cloned().unwrap_or_default();
                self.check_cores(count, &passing)?;
                let cpus = self.choose(count, &passing, near)?;
                self.hold(uid, container, cpus.clone());
                cpus
            }
        };
        let passing = self.passing.entry(uid.to_owned()).or_default();
        *passing = match of {
            Use::Passing => &*passing | &cpus,
            Use::Lasting => &*passing - &cpus,
        };
        Ok(cpus)
    }

    fn packing(&self) -> Packing {
        let group = if self.options.whole_cores { self.machine.cpus_per_core() } else { 1 };
        Packing {
            by_cache: self.options.by_cache,
            spread: self.options.spread,
            over_nodes: self.options.over_nodes.then_some(group),
            by_socket: self.options.by_socket,
        }
    }

    /// So many of what is nobody's or passed on, of these nodes as many as can be.
    fn choose(&self, count: usize, passing: &CpuSet, near: Option<NodeMask>) -> Result<CpuSet, AssignError> {
        let free = &(&self.default - &self.reserved) | passing;
        let aligned = near.map(|nodes| self.aligned(&free, nodes)).unwrap_or_default();
        // What the pod holds already comes first: it must not hold more than it asks for at one time.
        let mut cpus = CpuSet::default();
        for pool in [&(&aligned & passing), &aligned, passing, &free] {
            let left = pool - &cpus;
            let missing = (count - cpus.len()).min(left.len());
            cpus = &cpus | &take(&self.machine, &left, missing, self.packing())?;
        }
        if cpus.len() < count {
            return Err(NotEnough { requested: count, available: free.len() }.into());
        }
        Ok(cpus)
    }

    /// Those of the nodes, or of their sockets.
    fn aligned(&self, free: &CpuSet, nodes: NodeMask) -> CpuSet {
        let sockets = self.sockets(nodes);
        self.machine.within(free, |cpu| {
            if self.options.by_socket { sockets.contains(&cpu.socket) } else { nodes.contains(cpu.node) }
        })
    }

    fn sockets(&self, nodes: NodeMask) -> BTreeSet<u32> {
        let all = self.machine.all();
        let there = all.iter().filter_map(|cpu| self.machine.cpu(cpu)).filter(|cpu| nodes.contains(cpu.node));
        there.map(|cpu| cpu.socket).collect()
    }

    /// From which sets of nodes a container could be given so many, for the topology manager; `None` for one that wants none of its own.
    #[must_use]
    pub fn hints(&self, uid: &str, container: &str, count: usize) -> Hints {
        if count == 0 {
            return None;
        }
        let nothing = CpuSet::default();
        Some(match self.of(uid, container) {
            // What it has it keeps; what it has of another size cannot be kept.
            Some(held) if held.len() == count => self.possible(held, &nothing, count),
            Some(_) => Vec::new(),
            None => {
                let passing = self.passing.get(uid).unwrap_or(&nothing);
                self.possible(&(&self.default - &self.reserved), passing, count)
            }
        })
    }

    /// The same for all containers of a pod together.
    #[must_use]
    pub fn pod_hints(&self, uid: &str, count: usize) -> Hints {
        if count == 0 {
            return None;
        }
        let held = self.entries.get(uid).into_iter().flat_map(BTreeMap::values);
        let held: CpuSet = held.flat_map(CpuSet::iter).collect();
        let nothing = CpuSet::default();
        let held = &held | self.pools.get(uid).unwrap_or(&nothing);
        Some(match held.len() {
            len if len == count => self.possible(&held, &nothing, count),
            // What it holds of it already is among it.
            len if len < count => self.possible(&(&self.default - &self.reserved), &held, count),
            _ => Vec::new(),
        })
    }

    /// Sets of nodes that have so many free, what is passed on among them; those of the least size are preferred, whether they are free
    /// or not.
    fn possible(&self, free: &CpuSet, passing: &CpuSet, count: usize) -> Vec<Hint> {
        let (all, nodes) = (self.machine.all(), self.machine.node_mask());
        let of =
            |set: &CpuSet, nodes: NodeMask| self.machine.within(set, |cpu| nodes.contains(cpu.node)).len();
        let free = &(free - passing);
        let mut least = nodes.len();
        let mut masks = Vec::new();
        for nodes in nodes.all_within() {
            if of(&all, nodes) >= count {
                least = least.min(nodes.len());
            }
            let passed = of(passing, nodes);
            if passed == passing.len() && of(free, nodes) + passed >= count {
                masks.push(nodes);
            }
        }
        let per_socket = (nodes.len() / self.machine.sockets().max(1)).max(1);
        prefer(masks, |nodes| {
            let by_socket = self.options.by_socket && self.sockets(nodes).len() == least.div_ceil(per_socket);
            nodes.len() == least || by_socket
        })
    }

    /// CPUs have come or gone. Who holds one that has gone holds it still: it may come back.
    pub fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
        self.count_shared();
    }

    /// Whether these could be a container's own: they are there, not reserved, and nobody else's.
    #[must_use]
    pub fn could_hold(&self, cpus: &CpuSet) -> bool {
        !cpus.is_empty() && (cpus - &(&self.default - &self.reserved)).is_empty()
    }

    /// Puts down what a container that runs has.
    pub fn adopt(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.hold(uid, container, cpus);
    }

    /// `full-pcpus-only`.
    #[must_use]
    pub const fn takes_whole_cores(&self) -> bool {
        self.options.whole_cores
    }

    /// Where each CPU is.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// What is kept for the system.
    #[must_use]
    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// Who holds what.
    #[must_use]
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// CPUs that nobody's are but for their holder.
    #[must_use]
    pub fn exclusive(&self) -> CpuSet {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        containers.chain(self.pools.values()).flat_map(CpuSet::iter).collect()
    }

    fn count_shared(&mut self) {
        self.default = &self.machine.all() - &self.exclusive();
        if self.options.strict_reservation {
            self.default = &self.default - &self.reserved;
        }
    }

    /// What a pod holds now, for [`Self::put_back`].
    #[must_use]
    pub fn held(&self, uid: &str) -> PodCpus {
        PodCpus {
            containers: self.entries.get(uid).cloned(),
            pool: self.pools.get(uid).cloned(),
            passing: self.passing.get(uid).cloned(),
        }
    }

    /// Takes back what a pod was given since. Whether that was anything.
    pub fn put_back(&mut self, uid: &str, held: &PodCpus) -> bool {
        let differs = self.held(uid) != *held;
        put(&mut self.entries, uid, &held.containers);
        put(&mut self.pools, uid, &held.pool);
        put(&mut self.passing, uid, &held.passing);
        self.count_shared();
        differs
    }

    /// Takes back what a pod holds. Whether that was anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.passing.remove(uid);
        let held = self.entries.remove(uid).is_some() | self.pools.remove(uid).is_some();
        self.count_shared();
        held
    }

    /// Siblings of reserved CPUs are no whole cores.
    fn check_cores(&self, requested: usize, passing: &CpuSet) -> Result<(), AssignError> {
        let per_core = self.machine.cpus_per_core();
        if !self.options.whole_cores {
            return Ok(());
        }
        if !requested.is_multiple_of(per_core) {
            return Err(AssignError::NotWholeCores { requested, per_core });
        }
        let cores: Vec<u32> =
            self.reserved.iter().filter_map(|cpu| self.machine.cpu(cpu)).map(|cpu| cpu.core).collect();
        let free = &self.default | passing;
        let available = self.machine.within(&free, |cpu| !cores.contains(&cpu.core)).len();
        if requested > available {
            return Err(AssignError::TooFewCores { available, requested, per_core });
        }
        Ok(())
    }

    fn hold(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.default = &self.default - &cpus;
        self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Takes back what pods hold that are not among these. Whether that was anything.
    pub fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|uid, _| is_there(uid));
        self.pools.retain(|uid, _| is_there(uid));
        self.passing.retain(|uid, _| is_there(uid));
        self.count_shared();
        self.entries.len() != before
    }
}

#[cfg(test)]
mod tests;
