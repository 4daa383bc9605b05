//! What to do next about one pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{
    ContainerId, ContainerKind, ContainerName, ContainerPhase, ContainerReason, ObservedPod, PodExt,
    PodFailure, PodProbes, ProbeKind, SandboxId, TerminalPhase, container_hash, format_go_duration,
};

use crate::{
    Hold, HoldCause, PodMemory,
    backoff::crash_key,
    memory::SANDBOX_HOLD,
    probe::{fatal, has_come_up},
    restart::{AfterExit, restarts_when_killed},
    sandbox::{SandboxVerdict, judge_sandbox},
    views::{Phase, View, earlier, initialized, phase, views},
};

/// Everything a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The pod as it should be.
    pub pod: &'a Pod,
    /// What the runtime shows; `None` when it shows nothing.
    pub observed: Option<&'a ObservedPod>,
    /// What is remembered.
    pub memory: &'a PodMemory,
    /// What its probes have shown.
    pub probes: &'a PodProbes,
    /// The time.
    pub now: Timestamp,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The pod is over: stop whatever is left of it, start nothing again.
    Finish {
        /// How it ended.
        phase: TerminalPhase,
        /// Why, if not because of its containers.
        failure: Option<PodFailure>,
    },
    /// Take these steps in order (none: all is well), and look again at `wake_at` even if nothing is seen to change.
    Act {
        /// The steps.
        steps: Vec<Step>,
        /// Why containers wait, beyond what [`PodMemory::holds`] says.
        reasons: BTreeMap<ContainerName, ContainerReason>,
        /// When to look again.
        wake_at: Option<Timestamp>,
    },
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stop all containers and sandboxes of the pod.
    StopPod,
    /// Stop one container.
    Kill {
        /// Which.
        id: ContainerId,
        /// Its name.
        name: ContainerName,
        /// Why.
        reason: KillReason,
    },
    /// Stop and remove every container, keeping logs and sandbox, because one of them asked for it by its exit code.
    RestartAll {
        /// The one that asked; it goes last, so that an interrupted restart is resumed.
        trigger: ContainerName,
    },
    /// Run the postStart hook of a container that runs: an earlier mainstay ended before the hook did.
    PostStart {
        /// Which.
        id: ContainerId,
        /// Its name.
        name: ContainerName,
        /// Which list it stands in.
        kind: ContainerKind,
        /// Its sandbox.
        sandbox: SandboxId,
    },
    /// Remove a dead container.
    Remove(ContainerId),
    /// Make a sandbox.
    CreateSandbox {
        /// Its attempt number.
        attempt: u32,
        /// There was another one before.
        changed: bool,
    },
    /// Make and start a container.
    Start {
        /// Its name.
        name: ContainerName,
        /// Which list it stands in.
        kind: ContainerKind,
        /// The sandbox; `None` for the one made in this plan.
        sandbox: Option<SandboxId>,
        /// Set when an earlier instance ended: key and time for the crash back-off.
        after_crash: Option<(String, Timestamp)>,
    },
}

/// Why one container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KillReason {
    /// Image or name changed.
    DefinitionChanged,
    /// The runtime does not know its state.
    StateUnknown,
    /// A probe failed often enough.
    ProbeFailed {
        /// Liveness or startup.
        kind: ProbeKind,
        /// It is started again afterwards.
        restarts: bool,
    },
}

impl KillReason {
    /// What the event says.
    #[must_use]
    pub fn message(self, name: &str) -> String {
        match self {
            Self::DefinitionChanged => format!("Container {name} definition changed, will be restarted"),
            Self::StateUnknown => {
                format!("Container {name} is in unknown state, try killing it before restart")
            }
            Self::ProbeFailed { kind, restarts } => {
                let kind = if kind == ProbeKind::Startup { "startup" } else { "liveness" };
                let then = if restarts { ", will be restarted" } else { "" };
                format!("Container {name} failed {kind} probe{then}")
            }
        }
    }
}

/// Makes the plan for a pod that should run. (A pod that should not is simply stopped.)
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let PlanInput { pod, observed, memory, now, .. } = *input;
    if let Some(phase) = memory.finished {
        return Plan::Finish { phase, failure: memory.failure.clone() };
    }
    let mut deadline = None;
    if let Some(seconds) = pod.spec_ref().active_deadline_seconds {
        let over =
            memory.start_time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        if now >= over {
            return Plan::Finish { phase: TerminalPhase::Failed, failure: Some(deadline_exceeded()) };
        }
        deadline = Some(over);
    }
    if let Phase::Over(phase) = phase(pod, observed, false) {
        return Plan::Finish { phase, failure: None };
    }
    let mut draft =
        Draft { input, steps: Vec::new(), reasons: BTreeMap::new(), wake_at: deadline, kept: 0, held: 0 };
    if let Some(finish) = draft.fill() {
        return finish;
    }
    let Draft { steps, reasons, wake_at, .. } = draft;
    Plan::Act { steps, reasons, wake_at }
}

fn deadline_exceeded() -> PodFailure {
    PodFailure {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
    }
}

struct Draft<'a> {
    input: &'a PlanInput<'a>,
    steps: Vec<Step>,
    reasons: BTreeMap<ContainerName, ContainerReason>,
    wake_at: Option<Timestamp>,
    /// Containers that are left alone because they run, or wait for others.
    kept: usize,
    /// Containers that wait for their time.
    held: usize,
}

impl Draft<'_> {
    fn fill(&mut self) -> Option<Plan> {
        match judge_sandbox(self.input.pod, self.input.observed) {
            SandboxVerdict::Keep(id) => self.containers(&id),
            SandboxVerdict::Renew { attempt, .. } => self.renew(attempt),
        }
    }

    /// The sandbox must be made (again), and all containers with it.
    fn renew(&mut self, attempt: u32) -> Option<Plan> {
        let PlanInput { pod, observed, memory, now, .. } = *self.input;
        let all = views(pod, observed);
        let existed = observed.is_some_and(|o| !o.containers.is_empty());
        // A pod that is not to be restarted does not get a second sandbox once anything of it has run.
        if pod.restart_policy() == "Never"
            && attempt != 0
            && existed
            && !all
                .iter()
                .any(|view| view.spec.restart_policy.is_some() && view.kind == ContainerKind::Regular)
        {
            return Some(Plan::Finish { phase: TerminalPhase::Failed, failure: None });
        }
        let again: Vec<_> = all
            .iter()
            .filter(|view| view.kind == ContainerKind::Regular)
            .filter(|view| view.after_exit(pod) != Some(AfterExit::Stay))
            .collect();
        if again.is_empty() && initialized(pod, observed) {
            return match phase(pod, observed, true) {
                Phase::Over(phase) => Some(Plan::Finish { phase, failure: None }),
                _ => None,
            };
        }
        if let Some(hold) = memory.hold(SANDBOX_HOLD, now) {
            match &hold.cause {
                HoldCause::Volumes(reason) => {
                    let waiting = all.iter().filter(|view| view.phase() != Some(ContainerPhase::Running));
                    self.reasons.extend(waiting.map(|view| (view.spec.name.as_str().into(), reason.clone())));
                }
                HoldCause::Failed(failed) => self.without_sandbox(&all, failed),
                HoldCause::Pull { .. } => {}
            }
            self.wake_at = earlier(self.wake_at, Some(hold.changes_at(now)));
            return None;
        }
        // What failed last is why they wait until this attempt says something else.
        if let Some(Hold { cause: HoldCause::Failed(failed), .. }) =
            memory.holds.get(SANDBOX_HOLD).filter(|hold| hold.since <= now)
        {
            self.without_sandbox(&all, failed);
        }
        let leftovers = observed.is_some_and(|o| o.any_running() || o.sandboxes.iter().any(|s| s.ready));
        if leftovers {
            self.steps.push(Step::StopPod);
        }
        // Init starts over, so what earlier init containers left behind must not be taken for progress.
        let init_names: Vec<_> =
            pod.spec_ref().init_containers.iter().flatten().map(|c| c.name.as_str()).collect();
        if let Some(observed) = observed {
            self.steps.extend(
                observed
                    .containers
                    .iter()
                    .filter(|container| init_names.contains(&container.name.as_str()))
                    .map(|container| Step::Remove(container.id.clone())),
            );
        }
        self.steps.push(Step::CreateSandbox { attempt, changed: attempt != 0 });
        if let Some(first) = all.iter().find(|view| view.kind != ContainerKind::Regular) {
            self.start(first, None);
        } else {
            for view in again {
                self.start(view, None);
            }
        }
        None
    }

    /// Says of what was never made why. Upstream shows only that such a pod waits; why is told by an event, which does not last.
    fn without_sandbox(&mut self, all: &[View<'_>], failed: &ContainerReason) {
        let init = self.input.pod.spec_ref().init_containers.as_ref();
        let has_init = init.is_some_and(|list| !list.is_empty());
        let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
        let reason = ContainerReason { reason: reason.into(), message: failed.message.clone() };
        let unmade = all.iter().filter(|view| view.newest.is_none());
        self.reasons.extend(unmade.map(|view| (view.spec.name.as_str().into(), reason.clone())));
    }

    /// The sandbox stays: look at each container.
    fn containers(&mut self, sandbox: &SandboxId) -> Option<Plan> {
        let PlanInput { pod, observed, .. } = *self.input;
        let all = views(pod, observed);
        if let Some(view) = all.iter().find(|view| view.after_exit(pod) == Some(AfterExit::RestartAll)) {
            if !self.waits(view) {
                self.steps.push(Step::RestartAll { trigger: view.spec.name.as_str().into() });
            }
            return None;
        }
        if self.resume_hooks(&all, sandbox) {
            return None;
        }
        let init: Vec<_> = all.iter().filter(|view| view.kind != ContainerKind::Regular).copied().collect();
        let was_initialized = initialized(pod, observed);
        let init_done = match self.init(&init, sandbox, was_initialized) {
            InitOutcome::Done => true,
            InitOutcome::Waiting => false,
            InitOutcome::Failed => {
                return Some(Plan::Finish { phase: TerminalPhase::Failed, failure: None });
            }
        };
        if init_done || was_initialized {
            for view in all.iter().filter(|view| view.kind == ContainerKind::Regular) {
                self.regular(view, sandbox);
            }
            let regular_wanted = self.kept
                + self.held
                + self
                    .steps
                    .iter()
                    .filter(|s| matches!(s, Step::Start { kind: ContainerKind::Regular, .. }))
                    .count();
            if regular_wanted == 0
                && let Phase::Over(phase) = phase(pod, observed, true)
            {
                return Some(Plan::Finish { phase, failure: None });
            }
        }
        None
    }

    /// Runs again what was cut short: a hook runs at least once. Whether others must wait for it because it is a sidecar's.
    fn resume_hooks(&mut self, all: &[View<'_>], sandbox: &SandboxId) -> bool {
        let mut others_wait = false;
        for view in all.iter().filter(|view| view.phase() == Some(ContainerPhase::Running) && !changed(view))
        {
            let Some(container) = view.newest.filter(|c| self.input.memory.hooking.contains(&c.id)) else {
                continue;
            };
            others_wait |= view.kind != ContainerKind::Regular;
            if !self.waits(view) {
                self.steps.push(Step::PostStart {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    kind: view.kind,
                    sandbox: sandbox.clone(),
                });
            }
        }
        others_wait
    }

    /// Walks the init containers backwards from the one that was reached last; earlier ones are over, except that
    /// sidecars among them are kept running.
    fn init(&mut self, init: &[View<'_>], sandbox: &SandboxId, initialized: bool) -> InitOutcome {
        let pod = self.input.pod;
        let exists = |view: &View<'_>| view.newest.is_some_and(|c| c.sandbox == *sandbox);
        if initialized {
            for view in init.iter().filter(|view| view.kind == ContainerKind::Sidecar) {
                self.keep_sidecar(view, exists(view), sandbox);
            }
            return InitOutcome::Done;
        }
        let Some(reached) = init.iter().rposition(&exists) else {
            return match init.first() {
                Some(first) => {
                    self.start(first, Some(sandbox));
                    InitOutcome::Waiting
                }
                None => InitOutcome::Done,
            };
        };
        for view in init.iter().take(reached).filter(|view| view.kind == ContainerKind::Sidecar) {
            self.keep_sidecar(view, exists(view), sandbox);
        }
        let Some(view) = init.get(reached) else { return InitOutcome::Done };
        let passed = match (view.kind, view.phase()) {
            (ContainerKind::Sidecar, Some(ContainerPhase::Running)) => self.keep_sidecar(view, true, sandbox),
            (ContainerKind::Sidecar, _) => {
                self.keep_sidecar(view, true, sandbox);
                false
            }
            (_, Some(ContainerPhase::Exited)) if view.failed() => {
                if view.after_exit(pod) == Some(AfterExit::Stay) {
                    return InitOutcome::Failed;
                }
                self.start(view, Some(sandbox));
                false
            }
            (_, Some(ContainerPhase::Exited)) => true,
            (_, Some(ContainerPhase::Created)) => {
                self.start(view, Some(sandbox));
                false
            }
            (_, Some(ContainerPhase::Unknown)) => {
                self.kill(view, KillReason::StateUnknown);
                if !restarts_when_killed(pod, view.kind, view.spec) {
                    return InitOutcome::Failed;
                }
                self.start(view, Some(sandbox));
                false
            }
            (_, Some(ContainerPhase::Running) | None) => false,
        };
        match init.get(reached + 1) {
            _ if !passed => InitOutcome::Waiting,
            Some(next) => {
                self.start(next, Some(sandbox));
                InitOutcome::Waiting
            }
            None => InitOutcome::Done,
        }
    }

    /// Keeps a sidecar running. Whether it runs as it should right now, so that the next may start.
    fn keep_sidecar(&mut self, view: &View<'_>, exists: bool, sandbox: &SandboxId) -> bool {
        match view.phase().filter(|_| exists) {
            Some(ContainerPhase::Running | ContainerPhase::Unknown) if self.waits(view) => false,
            Some(ContainerPhase::Running) if changed(view) => {
                self.kill(view, KillReason::DefinitionChanged);
                self.start_now(view, sandbox);
                false
            }
            Some(ContainerPhase::Running) if fatal(view, self.input.probes).is_some() => {
                self.restart_unwell(view, sandbox);
                false
            }
            Some(ContainerPhase::Running) => has_come_up(view, self.input.probes),
            Some(ContainerPhase::Unknown) => {
                self.kill(view, KillReason::StateUnknown);
                self.start_now(view, sandbox);
                false
            }
            _ => {
                self.start(view, Some(sandbox));
                false
            }
        }
    }

    fn regular(&mut self, view: &View<'_>, sandbox: &SandboxId) {
        let pod = self.input.pod;
        match view.phase() {
            Some(ContainerPhase::Running) if !changed(view) && fatal(view, self.input.probes).is_none() => {
                self.kept += 1;
            }
            Some(ContainerPhase::Running | ContainerPhase::Unknown) if self.waits(view) => {}
            Some(ContainerPhase::Running) if changed(view) => {
                self.kill(view, KillReason::DefinitionChanged);
                self.start_now(view, sandbox);
            }
            Some(ContainerPhase::Running) => self.restart_unwell(view, sandbox),
            Some(ContainerPhase::Unknown) => {
                self.kill(view, KillReason::StateUnknown);
                if restarts_when_killed(pod, view.kind, view.spec) {
                    self.start_now(view, sandbox);
                }
            }
            Some(ContainerPhase::Exited) if view.after_exit(pod) == Some(AfterExit::Stay) => {}
            Some(ContainerPhase::Exited | ContainerPhase::Created) | None => self.start(view, Some(sandbox)),
        }
    }

    /// Stops a container whose probe failed, and starts it again unless it is not to be or has been restarted too often:
    /// then the next look finds it ended and lets it wait.
    fn restart_unwell(&mut self, view: &View<'_>, sandbox: &SandboxId) {
        let PlanInput { pod, observed, memory, probes, now } = *self.input;
        let Some(kind) = fatal(view, probes) else { return };
        let restarts = restarts_when_killed(pod, view.kind, view.spec);
        self.kill(view, KillReason::ProbeFailed { kind, restarts });
        // It is still to be stopped: whatever follows, the pod is not over with this look.
        self.held += usize::from(view.kind == ContainerKind::Regular);
        let earlier_end = observed
            .into_iter()
            .flat_map(|observed| observed.instances(&view.spec.name).skip(1))
            .find(|container| container.phase == ContainerPhase::Exited)
            .and_then(|container| container.finished_at);
        let after_crash = earlier_end.map(|ended| (crash_key(pod, view.spec), ended));
        let in_backoff = after_crash.as_ref().is_some_and(|(key, ended)| {
            let entry = memory.crashes.get(key).filter(|_| *ended <= now);
            entry.and_then(|entry| entry.until(*ended)).is_some_and(|until| until > now)
        });
        if restarts && !in_backoff {
            self.steps.push(Step::Start {
                name: view.spec.name.as_str().into(),
                kind: view.kind,
                sandbox: Some(sandbox.clone()),
                after_crash,
            });
        }
    }

    fn kill(&mut self, view: &View<'_>, reason: KillReason) {
        if let Some(container) = view.newest {
            let (id, name) = (container.id.clone(), container.name.clone());
            self.steps.push(Step::Kill { id, name, reason });
        }
    }

    /// Whether something failed with this container and is not tried again yet. If so, its reason is noted.
    fn waits(&mut self, view: &View<'_>) -> bool {
        let now = self.input.now;
        let Some(hold) = self.input.memory.hold(&view.spec.name, now) else { return false };
        self.held += usize::from(view.kind == ContainerKind::Regular);
        self.wake_at = earlier(self.wake_at, Some(hold.changes_at(now)));
        self.reasons.insert(view.spec.name.as_str().into(), hold.reason(now));
        true
    }

    /// Starts a container whose old instance was just stopped: no back-off.
    fn start_now(&mut self, view: &View<'_>, sandbox: &SandboxId) {
        self.steps.push(Step::Start {
            name: view.spec.name.as_str().into(),
            kind: view.kind,
            sandbox: Some(sandbox.clone()),
            after_crash: None,
        });
    }

    /// Starts a container, unless it must wait after a failure.
    fn start(&mut self, view: &View<'_>, sandbox: Option<&SandboxId>) {
        let PlanInput { pod, memory, now, .. } = *self.input;
        let name: ContainerName = view.spec.name.as_str().into();
        if self.waits(view) {
            return;
        }
        let mut after_crash = None;
        if let Some(ended) =
            view.newest.filter(|c| c.phase == ContainerPhase::Exited).and_then(|c| c.finished_at)
        {
            let key = crash_key(pod, view.spec);
            // An end in the future is a clock that was set back; nobody waits for that.
            if let Some(entry) = memory.crashes.get(&key).filter(|_| ended <= now)
                && let Some(until) = entry.until(ended)
                && until > now
            {
                self.held += usize::from(view.kind == ContainerKind::Regular);
                self.wake_at = earlier(self.wake_at, Some(until));
                self.reasons.insert(name, crash_loop(pod, view, entry.wait()));
                return;
            }
            after_crash = Some((key, ended));
        }
        // What failed last is why it waits until this attempt says something else: that its time has come again is no news of it.
        if let Some(failed) = memory.holds.get(&name).filter(|hold| hold.since <= now) {
            self.reasons.insert(name.clone(), failed.reason(now));
        }
        self.steps.push(Step::Start { name, kind: view.kind, sandbox: sandbox.cloned(), after_crash });
    }
}

enum InitOutcome {
    Done,
    Waiting,
    Failed,
}

/// Whether the running instance was made from another image.
fn changed(view: &View<'_>) -> bool {
    let image = view.spec.image.as_deref().unwrap_or_default();
    view.newest.is_some_and(|container| container.hash != container_hash(&view.spec.name, image))
}

fn crash_loop(pod: &Pod, view: &View<'_>, wait: Duration) -> ContainerReason {
    ContainerReason {
        reason: "CrashLoopBackOff".into(),
        message: format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            format_go_duration(wait),
            view.spec.name,
            pod.name_ref(),
            pod.namespace_ref(),
            pod.uid_ref()
        ),
    }
}
