//! Probes as a state machine: when to ask, and what answers come to mean.
//!
//! One raw answer means little. It counts when it has come `successThreshold` or `failureThreshold` times in a row; below
//! that, the verdict that stood before stands on. A try that could not be made counts for nothing at all. Rules and
//! defaults are those of upstream's `pkg/kubelet/prober/worker.go` (1.37); other than there, a new container instance
//! begins with no run of answers, whatever the one before it gave.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use mainstay_types::{PodExt, PodProbes, ProbeKind, Verdict};
use serde::{Deserialize, Serialize};

use crate::views::View;

/// When one probe asks and what it takes to believe it, with the API's defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRules {
    /// Which probe.
    pub kind: ProbeKind,
    /// Nothing is asked before the container has run so long.
    pub initial_delay: Duration,
    /// Between two rounds.
    pub period: Duration,
    /// For one try.
    pub timeout: Duration,
    /// So many successes in a row count.
    pub success_threshold: u32,
    /// So many failures in a row count.
    pub failure_threshold: u32,
}

impl ProbeRules {
    /// The rules of a probe.
    #[must_use]
    pub fn new(kind: ProbeKind, probe: &Probe) -> Self {
        // Zero means "the default" in the API, but for the delay.
        let number = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(number(value, default).into());
        Self {
            kind,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }

    /// The first turn at or after `not_before`, when turns come every period since `base`.
    #[must_use]
    pub fn turn(&self, base: Instant, not_before: Instant) -> Instant {
        let Some(behind) = not_before.checked_duration_since(base) else { return base };
        let period = self.period.as_nanos().max(1);
        let turns = behind.as_nanos().div_ceil(period);
        let offset = u64::try_from(turns.saturating_mul(period)).map_or(Duration::MAX, Duration::from_nanos);
        base.checked_add(offset).unwrap_or(not_before)
    }
}

/// The probes of a container, with their rules.
pub fn probes_of(container: &Container) -> impl Iterator<Item = (ProbeRules, &Probe)> {
    ProbeKind::ALL
        .into_iter()
        .filter_map(|kind| probe_of(container, kind).map(|probe| (ProbeRules::new(kind, probe), probe)))
}

/// One probe of a container.
#[must_use]
pub fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// The grace that the probe itself grants a container that is stopped because of it.
#[must_use]
pub fn probe_grace_seconds(pod: &Pod, container: &str, kind: ProbeKind) -> Option<i64> {
    let (_, spec) = pod.container(container)?;
    probe_of(spec, kind)?.termination_grace_period_seconds
}

/// What one probe has shown of one container instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeState {
    /// What stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Verdict>,
    /// How often it came in a row, as far as it is of interest.
    #[serde(default)]
    run: u32,
}

impl ProbeState {
    /// One of which only what stands is known.
    #[must_use]
    pub const fn of_verdict(verdict: Verdict) -> Self {
        Self { verdict: Some(verdict), last: None, run: 0 }
    }
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing: it is as it was.
    Nothing,
    /// The count, not the verdict.
    Counted,
    /// The verdict.
    NewVerdict,
}

impl ProbeState {
    /// Takes note of an answer.
    pub fn record(&mut self, rules: &ProbeRules, answer: Verdict) -> Recorded {
        let before = *self;
        let threshold = match answer {
            Verdict::Passed => rules.success_threshold,
            Verdict::Failed => rules.failure_threshold,
        };
        self.run = if self.last == Some(answer) { self.run.saturating_add(1).min(threshold) } else { 1 };
        self.last = Some(answer);
        if self.run >= threshold {
            self.verdict = Some(answer);
        }
        if self.verdict != before.verdict {
            Recorded::NewVerdict
        } else if *self == before {
            Recorded::Nothing
        } else {
            Recorded::Counted
        }
    }

    /// Nothing more is asked of this container instance: it is to be restarted, or it has come up.
    #[must_use]
    pub fn is_on_hold(&self, kind: ProbeKind) -> bool {
        match kind {
            ProbeKind::Startup => self.verdict.is_some(),
            ProbeKind::Liveness => self.verdict == Some(Verdict::Failed),
            ProbeKind::Readiness => false,
        }
    }
}

/// What bears on whether a container may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// It runs.
    pub running: bool,
    /// It has come up: its startup probe (if it has one) passed, and no postStart hook runs.
    pub started: bool,
    /// Its pod is being stopped.
    pub terminating: bool,
}

/// Whether a probe has anything to ask now. It is asked again when one of these changes.
#[must_use]
pub fn may_ask(kind: ProbeKind, state: &ProbeState, situation: Situation) -> bool {
    let Situation { running, started, terminating } = situation;
    if !running || state.is_on_hold(kind) {
        return false;
    }
    match kind {
        ProbeKind::Startup => !terminating,
        ProbeKind::Liveness => started && !terminating,
        // It goes on, so that a container that lets go of its work is seen to.
        ProbeKind::Readiness => started,
    }
}

/// The failed probe for which a running container must be stopped.
pub(crate) fn fatal(view: &View<'_>, probes: &PodProbes) -> Option<ProbeKind> {
    let verdicts = probes.of(&view.newest?.id);
    let failed = |kind, verdict| {
        (verdict == Some(Verdict::Failed) && probe_of(view.spec, kind).is_some()).then_some(kind)
    };
    failed(ProbeKind::Liveness, verdicts.liveness).or_else(|| failed(ProbeKind::Startup, verdicts.startup))
}

/// Whether a running container's startup probe lets those wait no longer that wait for it.
pub(crate) fn has_come_up(view: &View<'_>, probes: &PodProbes) -> bool {
    view.spec.startup_probe.is_none()
        || view.newest.is_some_and(|container| probes.of(&container.id).startup == Some(Verdict::Passed))
}

#[cfg(test)]
mod tests;
