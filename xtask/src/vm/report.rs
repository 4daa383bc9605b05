//! Reading what the machine says, and judging it.

use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// One test program on one driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) driver: String,
    pub(super) program: String,
}

/// What to do with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Show this instead.
    Shown(String),
    /// It is the output of a test program.
    Output,
}

/// How one step went.
#[derive(Debug)]
struct Ended {
    code: i32,
    seconds: u64,
    /// In seconds of a CPU of the machine that emulates.
    cost: u64,
}

/// How each step went.
#[derive(Debug)]
pub(super) struct Report {
    plan: Vec<Step>,
    /// The first steps of the plan.
    ended: Vec<Ended>,
    /// What the machine had cost when the last step ended.
    cost: u64,
    done: bool,
    late: Option<Duration>,
}

impl Report {
    pub(super) fn new(plan: Vec<Step>) -> Self {
        Self { plan, ended: Vec::new(), cost: 0, done: false, late: None }
    }

    /// Takes a line into account; `cost` is what the machine has cost so far, in seconds of a CPU.
    pub(super) fn take(&mut self, line: &str, cost: u64) -> Progress {
        let Some(told) = line.strip_prefix("@@ ") else { return Progress::Output };
        let words: Vec<&str> = told.split(' ').collect();
        let number = || format!("[{}/{}]", self.ended.len() + 1, self.plan.len());
        match words.as_slice() {
            ["begin", driver, program] => Progress::Shown(format!("\n{} {program} ({driver})", number())),
            ["end", driver, program, code, seconds] => {
                let text = format!("{} {program} ({driver}): code {code} after {seconds} s", number());
                let next = self.plan.get(self.ended.len());
                let expected = next.is_some_and(|step| step.driver == *driver && step.program == *program);
                // A line that came mangled or out of order is no success.
                let code = code.parse().ok().filter(|_| expected).unwrap_or(-1);
                self.ended.push(Ended {
                    code,
                    seconds: seconds.parse().unwrap_or(0),
                    cost: cost.saturating_sub(self.cost),
                });
                self.cost = cost;
                Progress::Shown(text)
            }
            ["done"] => {
                self.done = true;
                Progress::Shown(String::new())
            }
            _ => Progress::Shown(format!("the test machine is {told}")),
        }
    }

    /// The deadline came first.
    pub(super) fn late(&mut self, deadline: Duration) {
        self.late = Some(deadline);
    }

    /// A line per step.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for (at, step) in self.plan.iter().enumerate() {
            let end = match self.ended.get(at) {
                Some(Ended { code: 0, seconds, cost }) => format!("ok in {seconds} s ({cost} s of a CPU)"),
                Some(Ended { code: 124 | 137, seconds, .. }) => {
                    format!("FAILED: ended at its limit after {seconds} s")
                }
                Some(Ended { code, seconds, .. }) => format!("FAILED with code {code} in {seconds} s"),
                None => "did not end".to_owned(),
            };
            text.push_str(&format!("{:<14} {:<9} {end}\n", step.program, step.driver));
        }
        text
    }

    /// Why the run is no success, if it is not.
    pub(super) fn failure(&self) -> Option<String> {
        if let Some(deadline) = self.late {
            return Some(format!("the test machine was ended at its deadline of {} s", deadline.as_secs()));
        }
        if !self.done || self.ended.len() != self.plan.len() {
            return Some("the test machine ended before it was done".to_owned());
        }
        let failed = self.ended.iter().filter(|ended| ended.code != 0).count();
        (failed > 0).then(|| format!("{failed} of {} test programs failed", self.plan.len()))
    }
}

/// The end-to-end tests' programs that cargo names in its messages.
pub(super) fn test_programs(messages: &str) -> Vec<(String, PathBuf)> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact" && message["target"]["kind"][0] == "test")
        .filter(|message| {
            message["manifest_path"].as_str().is_some_and(|path| path.ends_with("crates/e2e/Cargo.toml"))
        })
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[&str]) -> Report {
        let step = |program: &str| Step { driver: "systemd".to_owned(), program: program.to_owned() };
        let mut report = Report::new(vec![step("logs"), step("images")]);
        for line in lines {
            report.take(line, 0);
        }
        report
    }

    #[test]
    fn only_a_whole_run_without_failures_is_a_success() {
        let whole = ["@@ up 6.1", "@@ begin systemd logs", "test a ... ok", "@@ end systemd logs 0 7"];
        let rest = ["@@ begin systemd images", "@@ end systemd images 0 8", "@@ done"];
        let join = |a: &[&'static str], b: &[&'static str]| [a, b].concat();
        assert_eq!(report(&join(&whole, &rest)).failure(), None);
        assert!(report(&whole).failure().unwrap().contains("before it was done"));
        assert!(report(&join(&whole, &rest[..2])).failure().unwrap().contains("before it was done"));
        let failed = report(&join(&whole, &["@@ end systemd images 101 8", "@@ done"]));
        assert!(failed.failure().unwrap().contains("1 of 2"), "{:?}", failed.failure());
        assert!(failed.table().contains("FAILED with code 101 in 8 s"), "{}", failed.table());
        let other = report(&join(&whole, &["@@ end cgroupfs images 0 8", "@@ done"]));
        assert!(other.failure().is_some(), "another step than the planned one");
    }

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let e2e = r#""reason":"compiler-artifact","manifest_path":"/w/crates/e2e/Cargo.toml""#;
        let other = r#""reason":"compiler-artifact","manifest_path":"/w/crates/observe/Cargo.toml""#;
        let messages = format!(
            r#"{{{e2e},"target":{{"kind":["lib"],"name":"x"}},"executable":null}}
{{{e2e},"target":{{"kind":["lib"],"name":"lib_test"}},"executable":"/t/lib"}}
{{{e2e},"target":{{"kind":["test"],"name":"logs"}},"executable":"/t/logs-1"}}
{{{other},"target":{{"kind":["test"],"name":"faults"}},"executable":"/t/faults-1"}}
{{"reason":"build-finished","success":true}}"#
        );
        assert_eq!(test_programs(&messages), [("logs".to_owned(), PathBuf::from("/t/logs-1"))]);
    }
}
