//! One probe of one container, and when it is due.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};
use mainstay_lifecycle::{ProbeRules, ProbeState, Situation, may_ask};
use mainstay_probe::{Target, TargetError};
use mainstay_types::{
    ContainerId, ContainerPhase, ObservedContainer, PodOutcome, PodStage, PodUid, ProbeKind, ProbeLabels,
    ProbeMetrics, ProbeSeries, Verdict,
};

use super::on_grid;

/// Which probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) uid: PodUid,
    pub(super) container: Arc<str>,
    pub(super) kind: ProbeKind,
}

impl Key {
    pub(super) fn is(&self, container: &str, kind: ProbeKind) -> bool {
        *self.container == *container && self.kind == kind
    }
}

/// The container instance a probe asks.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: ContainerId,
    running: bool,
    /// Nothing is asked before.
    earliest: Instant,
    /// It was running before mainstay was.
    is_old: bool,
    ip: Option<String>,
    /// The target may be that of an earlier version of the pod.
    is_stale: bool,
    target: Arc<Result<Target, TargetError>>,
}

pub(super) struct Prober {
    pub(super) key: Key,
    pub(super) labels: ProbeLabels,
    pub(super) series: Arc<ProbeSeries>,
    pub(super) rules: ProbeRules,
    pub(super) state: ProbeState,
    pub(super) instance: Option<Instance>,
    /// Its series is among those that are shown.
    counted: bool,
    /// A round is under way.
    pub(super) in_flight: bool,
    /// It has startup to wait for.
    waits_for_startup: bool,
    /// Turns come every period since then.
    base: Instant,
    /// The next turn that is in the heap.
    due: Option<Instant>,
    situation: Situation,
    /// It had something to ask when it was last looked at.
    asking: bool,
}

impl Prober {
    pub(super) fn new(
        outcome: &PodOutcome,
        container: &str,
        rules: &ProbeRules,
        metrics: &ProbeMetrics,
        base: Instant,
    ) -> Self {
        let (uid, name) = (&outcome.desired.uid, &outcome.desired.full_name);
        let container: Arc<str> = container.into();
        let labels = ProbeLabels {
            container: Arc::clone(&container),
            namespace: Arc::clone(&name.namespace),
            pod: Arc::clone(&name.name),
            pod_uid: uid.clone(),
            kind: rules.kind,
        };
        Self {
            series: metrics.series(&labels),
            key: Key { uid: uid.clone(), container, kind: rules.kind },
            labels,
            rules: *rules,
            state: ProbeState::default(),
            instance: None,
            counted: true,
            in_flight: false,
            waits_for_startup: false,
            base,
            due: None,
            situation: Situation { running: false, started: false, terminating: false },
            asking: false,
        }
    }

    /// Takes over what is seen of its container. An instance that is new to it begins with what `restored` says.
    pub(super) fn see(
        &mut self,
        (container, probe): (&Container, &Probe),
        seen: Option<&ObservedContainer>,
        ip: Option<&str>,
        begun: Timestamp,
        restored: impl Fn(&ContainerId) -> ProbeState,
    ) {
        self.waits_for_startup = container.startup_probe.is_some() && self.rules.kind != ProbeKind::Startup;
        let Some(seen) = seen else {
            self.instance = None;
            self.state = ProbeState::default();
            return;
        };
        let known = self.instance.take().filter(|instance| instance.id == seen.id);
        if known.is_none() {
            // What was due was due of the instance before.
            (self.asking, self.due) = (false, None);
            self.state = restored(&seen.id);
        }
        let running = seen.phase == ContainerPhase::Running;
        let instance = match known {
            Some(known) if known.ip.as_deref() == ip && known.running == running && !known.is_stale => known,
            _ => {
                let (now, time) = (Instant::now(), Timestamp::now());
                let ran = seen.started_at.and_then(|at| Duration::try_from(time.duration_since(at)).ok());
                let earliest = now + self.rules.initial_delay.saturating_sub(ran.unwrap_or_default());
                Instance {
                    id: seen.id.clone(),
                    running,
                    earliest,
                    is_old: seen.started_at.is_some_and(|at| at < begun),
                    ip: ip.map(str::to_owned),
                    is_stale: false,
                    target: Arc::new(Target::new(self.key.uid.as_str(), probe, container, &seen.id, ip)),
                }
            }
        };
        self.instance = Some(instance);
    }

    /// What it asks, or when, may have changed: it is found out anew when its container is next looked at.
    pub(super) fn ask_anew(&mut self) {
        if let Some(instance) = &mut self.instance {
            instance.is_stale = true;
        }
        // Its next turn is found by the rules of now.
        self.due = None;
    }

    /// Whether its container has come up, by the startup probe among `all` and the hooks that still run.
    pub(super) fn has_started(&self, all: &[Self], outcome: &PodOutcome) -> bool {
        let Some(instance) = &self.instance else { return false };
        let startup = all.iter().find(|other| other.key.is(&self.key.container, ProbeKind::Startup));
        instance.running
            && !outcome.not_started.contains(&instance.id)
            && (!self.waits_for_startup
                || startup.is_some_and(|startup| startup.state.verdict == Some(Verdict::Passed)))
    }

    /// Takes over what bears on whether it may ask, whenever that may have changed.
    pub(super) fn situate(&mut self, started: bool, terminating: bool) {
        let running = self.instance.as_ref().is_some_and(|instance| instance.running);
        self.situation = Situation { running, started, terminating };
    }

    /// Settles when it is due next. The time, if it is a new one.
    pub(super) fn replan(&mut self, begun: Instant, now: Instant) -> Option<Instant> {
        let Some(instance) = self.instance.as_ref() else {
            (self.asking, self.due) = (false, None);
            return None;
        };
        let was_asking =
            std::mem::replace(&mut self.asking, may_ask(self.rules.kind, &self.state, self.situation));
        if !self.asking {
            self.due = None;
            return None;
        }
        if self.in_flight || self.due.is_some() {
            return None;
        }
        let earliest = instance.earliest.max(now);
        // At the start all that run already come at once, each in its own turn.
        let is_crowd = instance.is_old && now.duration_since(begun) < self.rules.period;
        let due = if !was_asking && self.rules.kind == ProbeKind::Readiness && !is_crowd {
            // Whether work may come is asked as soon as it can be, and every period from then on.
            self.base = on_grid(begun, earliest);
            earliest
        } else {
            self.rules.turn(self.base, earliest)
        };
        self.due = Some(due);
        Some(due)
    }

    /// Begins a round, if it is really due: whom to ask, and what.
    pub(super) fn begin(&mut self, at: Instant) -> Option<(ContainerId, Arc<Result<Target, TargetError>>)> {
        if self.due != Some(at) || self.in_flight {
            return None;
        }
        let instance = self.instance.as_ref()?;
        self.due = None;
        self.in_flight = true;
        Some((instance.id.clone(), Arc::clone(&instance.target)))
    }
}

/// Shows its series while it may ask: all but readiness end when the pod begins to.
pub(super) fn keep_counted(prober: &mut Prober, ending: bool, metrics: &ProbeMetrics) {
    let counted = !ending || prober.rules.kind == ProbeKind::Readiness;
    if counted == prober.counted {
        return;
    }
    prober.counted = counted;
    if counted {
        prober.series = metrics.series(&prober.labels);
    } else {
        metrics.remove(&prober.labels);
    }
}

/// Whether the pod is being stopped, or has been.
pub(super) fn is_ending(outcome: &PodOutcome) -> bool {
    matches!(outcome.stage, PodStage::Terminating | PodStage::Terminated)
}

/// Some part of a period.
pub(super) fn random_part(period: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1000;
    period * u32::try_from(random).unwrap_or_default() / 1000
}

#[cfg(test)]
pub(super) mod tests;
