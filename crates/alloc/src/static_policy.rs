//! The static policy: who holds which CPUs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    CpuSet, CpuState, Hint, Hints, Machine, NodeMask, NotEnough, Packing, state::Entries, take, topology::prefer,
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
    /// What the pod's init containers have passed on.
    passing: BTreeMap<String, CpuSet>,
}

impl Static {
    /// A machine of which nobody holds anything.
    #[must_use]
    pub fn new(machine: Machine, reserved: CpuSet, options: Options) -> Self {
        let all = machine.all();
        let default = if options.strict_reservation { &all - &reserved } else { all };
        let (entries, passing) = (Entries::new(), BTreeMap::new());
        Self { machine, reserved, options, default, entries, passing }
    }

    /// The same with what was given out before, even where today's options would not. What cannot be so any more is left out and told
    /// of in a sentence each: a container that runs goes on either way.
    #[must_use]
    pub fn restore(
        machine: Machine,
        reserved: CpuSet,
        options: Options,
        state: &CpuState,
    ) -> (Self, Vec<String>) {
        let mut this = Self::new(machine, reserved, options);
        let all = this.machine.all();
        let mut problems = Vec::new();
        if state.policy != "static" {
            return (this, problems);
        }
        for (uid, containers) in &state.entries {
            for (name, cpus) in containers {
                let gone = cpus - &all;
                let others = this.entries.iter().filter(|(other, _)| *other != uid);
                let held: CpuSet =
                    others.flat_map(|(_, sets)| sets.values()).flat_map(CpuSet::iter).collect();
                let twice = cpus & &held;
                if !gone.is_empty() {
                    problems.push(format!("container {name} of pod {uid} held CPUs {cpus}, of which {gone} are not online any more"));
                } else if !twice.is_empty() {
                    problems.push(format!(
                        "container {name} of pod {uid} held CPUs {cpus}, of which {twice} are another pod's"
                    ));
                } else {
                    this.hold(uid, name, cpus.clone());
                }
            }
        }
        (this, problems)
    }

    /// For the file.
    #[must_use]
    pub fn state(&self) -> CpuState {
        CpuState { policy: "static".to_owned(), default: self.default.clone(), entries: self.entries.clone() }
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
                let free = &(&self.default - &self.reserved) | &passing;
                let group = if self.options.whole_cores { self.machine.cpus_per_core() } else { 1 };
                let packing = Packing {
                    by_cache: self.options.by_cache,
                    spread: self.options.spread,
                    over_nodes: self.options.over_nodes.then_some(group),
                };
                let aligned = near.map(|nodes| self.aligned(&free, nodes)).unwrap_or_default();
                let first = take(&self.machine, &aligned, aligned.len().min(count), packing)?;
                let rest = take(&self.machine, &(&free - &first), count - first.len(), packing).map_err(
                    // What is missing is missing of all, not of the rest.
                    |_| NotEnough { requested: count, available: free.len() },
                )?;
                let cpus = &first | &rest;
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
        Some(match held.len() {
            0 => self.possible(&(&self.default - &self.reserved), &nothing, count),
            len if len == count => self.possible(&held, &nothing, count),
            _ => Vec::new(),
        })
    }

    /// Sets of nodes that have so many free, what is passed on among them; those of the least size are preferred, whether they are free
    /// or not.
    fn possible(&self, free: &CpuSet, passing: &CpuSet, count: usize) -> Vec<Hint> {
        let (all, nodes) = (self.machine.all(), self.machine.node_mask());
        let of = |set: &CpuSet, nodes: NodeMask| self.machine.within(set, |cpu| nodes.contains(cpu.node)).len();
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
        self.entries.values().flat_map(BTreeMap::values).flat_map(CpuSet::iter).collect()
    }

    fn count_shared(&mut self) {
        self.default = &self.machine.all() - &self.exclusive();
        if self.options.strict_reservation {
            self.default = &self.default - &self.reserved;
        }
    }

    /// Takes back what some of a pod's containers hold.
    pub fn take_back(&mut self, uid: &str, containers: &[String]) {
        if let Some(held) = self.entries.get_mut(uid) {
            held.retain(|name, _| !containers.contains(name));
            if held.is_empty() {
                self.entries.remove(uid);
            }
        }
        self.passing.remove(uid);
        self.count_shared();
    }

    /// Takes back what a pod holds. Whether that was anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.passing.remove(uid);
        let held = self.entries.remove(uid).is_some();
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
        self.passing.retain(|uid, _| is_there(uid));
        self.count_shared();
        self.entries.len() != before
    }
}

#[cfg(test)]
mod tests {
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
        let (again, problems) = Static::restore(small(), set("0"), strict, &state);
        assert_eq!(
            (again.state(), problems),
            (state, Vec::new()),
            "even where today's options would not give them"
        );
        let mut state = CpuState { policy: "static".to_owned(), ..CpuState::default() };
        for (uid, name, held) in [("a", "c", "1-2"), ("a", "d", "2"), ("b", "c", "2-3"), ("c", "c", "7-8")] {
            state.entries.entry(uid.to_owned()).or_default().insert(name.to_owned(), set(held));
        }
        let (healed, problems) = Static::restore(small(), set("0"), options, &state);
        assert_eq!(healed.shared().clone(), set("0,3-7"));
        assert_eq!(
            problems,
            [
                "container c of pod b held CPUs 2-3, of which 2 are another pod's",
                "container c of pod c held CPUs 7-8, of which 8 are not online any more",
            ]
        );
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
                        let (again, problems) = Static::restore(two_sockets(), set("0"), options, &state);
                        prop_assert_eq!(problems, Vec::<String>::new());
                        prop_assert_eq!(again.state(), cpus.state());
                        cpus = again;
                    }
                    container => {
                        let of = if passing { Use::Passing } else { Use::Lasting };
                        let before = cpus.state();
                        if cpus.assign(&uid, &format!("c{container}"), count, of, None).is_err() {
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
}
