//! The static policy: who holds which CPUs.

use std::collections::BTreeMap;

use crate::{CpuSet, CpuState, Machine, NotEnough, Packing, state::Entries, take};

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

    /// Gives a container so many CPUs; those that it has already, if it has any.
    ///
    /// # Errors
    /// When it cannot be given so many; nothing is changed then.
    pub fn assign(
        &mut self,
        uid: &str,
        container: &str,
        count: usize,
        of: Use,
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
                let cpus = take(&self.machine, &free, count, packing)?;
                self.hold(uid, container, cpus.clone());
                cpus
            }
        };
        // Pods are let in one after the other: nobody else's are passed on any more.
        self.passing.retain(|other, _| other == uid);
        let passing = self.passing.entry(uid.to_owned()).or_default();
        *passing = match of {
            Use::Passing => &*passing | &cpus,
            Use::Lasting => &*passing - &cpus,
        };
        Ok(cpus)
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

    /// Takes back what pods hold that are not among these.
    pub fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.entries.keys().filter(|uid| !is_there(uid)).cloned().collect();
        for uid in gone {
            for cpus in self.entries.remove(&uid).unwrap_or_default().into_values() {
                self.default = &self.default | &cpus;
            }
            self.passing.remove(&uid);
        }
        if self.options.strict_reservation {
            self.default = &self.default - &self.reserved;
        }
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
        assert_eq!(cpus.assign("p", "c", 1, Use::Lasting).unwrap(), set("4"));
        assert_eq!((cpus.allocatable(), cpus.shared().clone()), (set("1-7"), set("0-3,5-7")));
        let error = cpus.assign("q", "c", 8, Use::Lasting).unwrap_err().to_string();
        assert_eq!(error, "not enough cpus available to satisfy request: requested=8, available=6");
        let strict = Options { strict_reservation: true, ..Options::default() };
        let mut cpus = Static::new(small(), set("0"), strict);
        assert_eq!((cpus.allocatable(), cpus.shared().clone()), (set("1-7"), set("1-7")));
        cpus.assign("p", "c", 2, Use::Lasting).unwrap();
        cpus.keep_only(|_| false);
        assert_eq!(cpus.shared().clone(), set("1-7"));
    }

    #[test]
    fn whole_cores_or_nothing() {
        let options = Options { whole_cores: true, ..Options::default() };
        let mut cpus = Static::new(small(), set("0"), options);
        let error = cpus.assign("p", "c", 1, Use::Lasting).unwrap_err().to_string();
        assert_eq!(error, "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2");
        let mut cpus = Static::new(two_sockets(), set("1,6"), options);
        let error = cpus.assign("p", "c", 10, Use::Lasting).unwrap_err().to_string();
        assert_eq!(
            error,
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, CPUs per core = 2"
        );
        let mut cpus = Static::new(two_sockets(), set("0,6"), options);
        assert_eq!(cpus.assign("p", "c", 10, Use::Lasting).unwrap(), set("1-5,7-11"));
    }

    #[test]
    fn init_containers_pass_their_cpus_on_and_sidecars_do_not() {
        let mut cpus = Static::new(small(), set("0"), Options::default());
        let init = cpus.assign("p", "init", 4, Use::Passing).unwrap();
        let sidecar = cpus.assign("p", "side", 2, Use::Lasting).unwrap();
        assert!((&sidecar - &init).is_empty(), "taken over from an init container");
        let app = cpus.assign("p", "app", 2, Use::Lasting).unwrap();
        assert!((&app - &init).is_empty() && (&app & &sidecar).is_empty());
        assert_eq!(cpus.shared().len(), 4);
        let other = cpus.assign("q", "c", 3, Use::Lasting).unwrap();
        assert!((&other & &init).is_empty(), "of another pod nothing is passed on");
        assert_eq!(cpus.assign("p", "app", 2, Use::Lasting).unwrap(), app, "asked again, the same");
        cpus.keep_only(|uid| uid == "q");
        assert_eq!(cpus.shared().clone(), &set("0-7") - &other);
    }

    #[test]
    fn a_restart_changes_nothing_and_what_cannot_be_is_told() {
        let options = Options::default();
        let mut cpus = Static::new(small(), set("0"), options);
        cpus.assign("p", "c", 3, Use::Lasting).unwrap();
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
                    0 => cpus.keep_only(|other| other != uid),
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
                        if cpus.assign(&uid, &format!("c{container}"), count, of).is_err() {
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
