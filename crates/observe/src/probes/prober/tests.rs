use std::collections::BTreeMap;

use jiff::SignedDuration;
use mainstay_types::{DesiredPod, FullName, PodSource};
use serde_json::{Value, json};

use super::*;

#[test]
fn probes_that_come_at_once_are_spread_over_their_period() {
    let period = Duration::from_secs(10);
    let parts: Vec<Duration> = (0..200).map(|_| random_part(period)).collect();
    assert!(parts.iter().all(|part| *part < period), "never a whole period late");
    // Each fifth of the period gets its share: that one gets none of 200 happens once in 10^19 times.
    for fifth in 0..5 {
        let (from, to) = (period * fifth / 5, period * (fifth + 1) / 5);
        assert!(parts.iter().any(|part| (from..to).contains(part)), "nobody between {from:?} and {to:?}");
    }
}

struct Fixture {
    container: Container,
    probe: Probe,
    begun: Instant,
    prober: Prober,
}

/// So far ahead of the clock that tells how long an instance has run is the start: a test that is held up is still before it.
const AHEAD: u32 = 60;

/// Of a pod that runs.
pub(in crate::probes) fn outcome() -> PodOutcome {
    PodOutcome {
        desired: Arc::new(DesiredPod {
            uid: "u".into(),
            full_name: FullName::new("default", "p"),
            pod: Arc::default(),
            source: PodSource::File,
            origin: "".into(),
            terminate: None,
            remote: None,
        }),
        stage: PodStage::Syncing,
        start_time: Timestamp::now(),
        reasons: BTreeMap::new(),
        finished: None,
        failure: None,
        not_started: Vec::new(),
        deletion: None,
        restarting_all: false,
        rejected: false,
    }
}

/// A prober of period 10 whose turns are counted from 5 s after the start.
fn fixture(kind: ProbeKind, more: Value) -> Fixture {
    let mut fields = json!({"periodSeconds": 10, "tcpSocket": {"port": 1}});
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let probe: Probe = serde_json::from_value(fields).unwrap();
    let container: Container = serde_json::from_value(json!({"name": "c"})).unwrap();
    let outcome = outcome();
    let begun = Instant::now() + Duration::from_secs(AHEAD.into());
    let rules = ProbeRules::new(kind, &probe);
    let base = begun + Duration::from_secs(5);
    Fixture {
        container,
        probe,
        begun,
        prober: Prober::new(&outcome, "c", &rules, &ProbeMetrics::default(), base),
    }
}

impl Fixture {
    /// An instance that has run for `ran` seconds is seen.
    fn see(&mut self, id: &str, ran: i64, begun_ago: i64) {
        let now = Timestamp::now();
        let seen = ObservedContainer {
            id: id.into(),
            sandbox: "s".into(),
            name: "c".into(),
            restart_count: 0,
            hash: 0,
            phase: ContainerPhase::Running,
            created_at: now,
            started_at: Some(now - SignedDuration::from_secs(ran)),
            finished_at: None,
            exit_code: 0,
            reason: "".into(),
            message: "".into(),
            image: "".into(),
            image_ref: "".into(),
            log_path: "".into(),
            user: None,
            termination_grace_seconds: None,
            pre_stop: None,
            oom_killed: false,
            stop_signal: None,
        };
        let begun = now - SignedDuration::from_secs(begun_ago);
        let restored = |_: &ContainerId| ProbeState::default();
        self.prober.see((&self.container, &self.probe), Some(&seen), Some("10.0.0.1"), begun, restored);
        self.prober.situate(true, false);
    }

    /// When it is due after a look `after` seconds from the start, in seconds from the start.
    fn replan(&mut self, after: u64) -> Option<u64> {
        let due = self.prober.replan(self.begun, self.begun + Duration::from_secs(after));
        due.map(|at| (at - self.begun).as_millis().div_ceil(1000).try_into().unwrap())
    }
}

#[test]
fn liveness_keeps_to_its_turns() {
    let mut it = fixture(ProbeKind::Liveness, json!({}));
    assert_eq!(it.replan(6), None, "nobody there");
    it.see("a", 0, 100);
    assert_eq!(it.replan(6), Some(15));
    assert_eq!(it.replan(7), None, "that is settled");
    let at = it.begun + Duration::from_secs(15);
    assert!(it.prober.begin(it.begun).is_none(), "another time than it was due");
    assert!(it.prober.begin(at).is_some());
    assert_eq!(it.replan(15), None, "a round is under way");
    it.prober.in_flight = false;
    assert_eq!(it.replan(37), Some(45), "a slow round skips turns");
}

#[test]
fn readiness_is_asked_at_once_and_from_then_on() {
    let mut it = fixture(ProbeKind::Readiness, json!({}));
    it.see("a", 0, 100);
    assert_eq!(it.replan(7), Some(7));
    let at = it.prober.due.unwrap();
    assert!(it.prober.begin(at).is_some());
    it.prober.in_flight = false;
    assert_eq!(it.replan(8), Some(17));
}

#[test]
fn what_ran_before_mainstay_waits_for_its_turn() {
    let mut it = fixture(ProbeKind::Readiness, json!({}));
    it.see("a", 100, 0);
    assert_eq!(it.replan(1), Some(5));
}

#[test]
fn another_instance_has_its_own_delay() {
    let mut it = fixture(ProbeKind::Liveness, json!({"initialDelaySeconds": AHEAD + 26}));
    it.see("a", 20, 100);
    assert_eq!(it.replan(0), Some(15), "six seconds are left");
    it.see("b", 0, 100);
    assert_eq!(it.replan(1), Some(35), "what was due was due of the one before");
}

#[test]
fn a_hold_takes_its_time_away() {
    let mut it = fixture(ProbeKind::Liveness, json!({"failureThreshold": 1}));
    it.see("a", 0, 100);
    assert_eq!(it.replan(6), Some(15));
    it.prober.state.record(&it.prober.rules, Verdict::Failed);
    assert_eq!((it.replan(7), it.prober.due), (None, None));
    it.see("b", 0, 100);
    assert_eq!(it.replan(8), Some(15), "the next instance is asked again");
}

#[test]
fn what_an_edit_changes_is_asked_of_the_same_instance() {
    let mut it = fixture(ProbeKind::Liveness, json!({}));
    it.see("a", 0, 100);
    it.prober.state.record(&it.prober.rules, Verdict::Passed);
    assert_eq!(it.replan(6), Some(15));
    let port = |it: &Fixture| format!("{:?}", it.prober.instance.as_ref().unwrap().target);
    assert!(port(&it).contains("port: 1 "), "{}", port(&it));
    it.probe = serde_json::from_value(json!({"periodSeconds": 3, "tcpSocket": {"port": 2}})).unwrap();
    it.see("a", 1, 100);
    assert!(port(&it).contains("port: 1 "), "not looked at again without a reason");
    it.prober.rules = ProbeRules::new(ProbeKind::Liveness, &it.probe);
    it.prober.ask_anew();
    it.see("a", 1, 100);
    assert!(port(&it).contains("port: 2 "), "{}", port(&it));
    assert_eq!(it.prober.state.verdict, Some(Verdict::Passed), "what it has shown stands");
    assert_eq!(it.replan(7), Some(8), "by the new period");
}
