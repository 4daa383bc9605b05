use serde_json::json;

use super::*;
use ProbeKind::{Liveness, Readiness, Startup};
use Verdict::{Failed, Passed};

fn rules(kind: ProbeKind, fields: serde_json::Value) -> ProbeRules {
    ProbeRules::new(kind, &serde_json::from_value(fields).unwrap())
}

#[test]
fn defaults_are_the_apis() {
    let seconds = Duration::from_secs;
    let expected = ProbeRules {
        kind: Liveness,
        initial_delay: seconds(0),
        period: seconds(10),
        timeout: seconds(1),
        success_threshold: 1,
        failure_threshold: 3,
    };
    assert_eq!(rules(Liveness, json!({})), expected);
    let zeros = json!({"initialDelaySeconds": 0, "periodSeconds": 0, "timeoutSeconds": 0, "successThreshold": 0, "failureThreshold": 0});
    assert_eq!(rules(Liveness, zeros), expected, "zero is the default");
    let given = json!({"initialDelaySeconds": 5, "periodSeconds": 2, "timeoutSeconds": 3, "successThreshold": 4, "failureThreshold": 6});
    let expected = ProbeRules {
        kind: Readiness,
        initial_delay: seconds(5),
        period: seconds(2),
        timeout: seconds(3),
        success_threshold: 4,
        failure_threshold: 6,
    };
    assert_eq!(rules(Readiness, given), expected);
}

/// Answers as text, one letter each, and the verdict after each: `+`, `-` or `.` for none.
fn check(row: &str, thresholds: (i32, i32), answers: &str, expected: &str) {
    let rules = rules(Readiness, json!({"successThreshold": thresholds.0, "failureThreshold": thresholds.1}));
    let mut state = ProbeState::default();
    let mut verdicts = String::new();
    for answer in answers.chars() {
        let before = state;
        let recorded = state.record(&rules, if answer == '+' { Passed } else { Failed });
        assert_eq!(recorded == Recorded::NewVerdict, before.verdict != state.verdict, "{row}");
        assert_eq!(recorded == Recorded::Nothing, before == state, "{row}");
        verdicts.push(match state.verdict {
            Some(Passed) => '+',
            Some(Failed) => '-',
            None => '.',
        });
    }
    assert_eq!(verdicts, expected, "{row}");
}

#[test]
fn only_runs_of_answers_count() {
    check("one success is enough", (1, 3), "+", "+");
    check("three failures", (1, 3), "---", "..-");
    check("a success between starts the count anew", (1, 3), "--+--+---", "..++++++-");
    check("two successes", (2, 1), "+-++", ".--+");
    check("a verdict stands while the other side counts", (3, 3), "+++--+++", "..++++++");
    check("back at once", (1, 1), "+-+-", "+-+-");
}

#[test]
fn a_long_run_changes_nothing_more() {
    let rules = rules(Readiness, json!({}));
    let mut state = ProbeState::default();
    assert_eq!(state.record(&rules, Passed), Recorded::NewVerdict);
    assert_eq!(state.record(&rules, Passed), Recorded::Nothing, "nothing to write to disk");
    for expected in [Recorded::Counted, Recorded::Counted, Recorded::NewVerdict, Recorded::Nothing] {
        assert_eq!(state.record(&rules, Failed), expected);
    }
}

#[test]
fn who_is_asked_when() {
    let passed = ProbeState { verdict: Some(Passed), ..ProbeState::default() };
    let failed = ProbeState { verdict: Some(Failed), ..ProbeState::default() };
    let none = ProbeState::default();
    let up = Situation { running: true, started: true, terminating: false };
    let starting = Situation { started: false, ..up };
    let ending = Situation { terminating: true, ..up };
    let dead = Situation { running: false, started: false, terminating: false };
    for (row, kind, state, situation, expected) in [
        ("startup runs first", Startup, none, starting, true),
        ("liveness waits for startup", Liveness, none, starting, false),
        ("readiness waits for startup", Readiness, none, starting, false),
        ("startup passed", Startup, passed, up, false),
        ("startup failed", Startup, failed, starting, false),
        ("liveness goes on", Liveness, passed, up, true),
        ("liveness failed: hold", Liveness, failed, up, false),
        ("readiness goes on after failure", Readiness, failed, up, true),
        ("liveness ends with the pod", Liveness, passed, ending, false),
        ("startup ends with the pod", Startup, none, Situation { started: false, ..ending }, false),
        ("readiness does not", Readiness, passed, ending, true),
        ("nobody asks the dead", Readiness, passed, dead, false),
    ] {
        assert_eq!(may_ask(kind, &state, situation), expected, "{row}");
    }
}

#[test]
fn turns_come_every_period() {
    let rules = rules(Liveness, json!({"periodSeconds": 10}));
    let base = Instant::now();
    let at = |millis| base + Duration::from_millis(millis);
    for (not_before, expected) in [(0, 0), (1, 10_000), (9_999, 10_000), (10_000, 10_000), (35_000, 40_000)] {
        assert_eq!(rules.turn(base, at(not_before)), at(expected), "{not_before}");
    }
    assert_eq!(rules.turn(at(5_000), base), at(5_000), "a base to come is the first turn");
}

#[test]
fn state_survives_being_written() {
    let rules = rules(Readiness, json!({}));
    let mut state = ProbeState::default();
    state.record(&rules, Passed);
    state.record(&rules, Failed);
    let written = serde_json::to_string(&state).unwrap();
    assert_eq!(written, r#"{"verdict":"passed","last":"failed","run":1}"#);
    let mut read: ProbeState = serde_json::from_str(&written).unwrap();
    assert_eq!(read, state);
    assert_eq!(read.record(&rules, Failed), Recorded::Counted);
    assert_eq!(read.record(&rules, Failed), Recorded::NewVerdict, "the count went on");
}
