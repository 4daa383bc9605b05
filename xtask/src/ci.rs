//! `cargo xtask ci`: locally what CI runs, in the order that finds mistakes soonest.

use crate::{layers, try_run, vm};
use anyhow::{Context, Result, bail};
use mainstay_testkit::workspace_root;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

/// Sum over all `test result:` lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Tally {
    /// Takes a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; …` into account.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.ignored += count,
                _ => {}
            }
        }
    }
}

/// `cargo xtask ci`.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    step("layers", layers::run)?;
    step("dependencies", deny)?;
    step("lints", || cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    // Binaries and tests in one go, with one set of features: the end-to-end tests run the binary.
    step("build", || cargo(&["build", "--workspace", "--all-targets", "--locked"]))?;
    let tests = TestFiles::in_metadata(&layers::metadata()?)?;
    let mut tally = Tally::default();
    // Every tier runs even if one before it fails, so that one run shows everything.
    let near = step("tests beside the code", || {
        let mut selection = vec!["--lib", "--bins", "--examples"];
        selection.extend(tests.near.iter().flat_map(|name| ["--test", name]));
        cargo_test(&selection, &[], &mut tally)
    });
    let documented =
        step("examples in the documentation", || cargo(&["test", "--workspace", "--locked", "--doc"]));
    let far = step("end-to-end tests", || {
        let selection: Vec<&str> = tests.far.iter().flat_map(|name| ["--test", name]).collect();
        cargo_test(&selection, &["--test-threads=2"], &mut tally)
    });
    let example = step("make run", try_run::both);
    let cluster = step("make cluster", try_run::cluster);
    let machine = step("end-to-end tests in the test machine", || vm::run(&vm::Wish::for_ci(), &mut tally));
    println!("\nall steps took {:.0} s", start.elapsed().as_secs_f32());
    println!("{} passed, {} failed", tally.passed, tally.failed);
    near.and(documented).and(far).and(example).and(cluster).and(machine)?;
    if tally.ignored > 0 {
        bail!("{} tests are ignored: a test runs, or it goes", tally.ignored);
    }
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("\n== {name}");
    let start = Instant::now();
    let result = work().with_context(|| name.to_owned());
    let end = if result.is_ok() { "done" } else { "FAILED" };
    println!("== {name}: {end} in {:.1} s", start.elapsed().as_secs_f32());
    result
}

fn cargo(args: &[&str]) -> Result<()> {
    let status =
        crate::cargo().args(args).current_dir(workspace_root()).status().context("cannot run cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// The advisory database is not asked: it lives on the network, and CI must not fail with it.
fn deny() -> Result<()> {
    let status = crate::cargo()
        .args(["deny", "--workspace", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
        .current_dir(workspace_root())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!(
            "cargo-deny found something (fix it, or add an exception with its reason to deny.toml) or is missing (`make setup-test`)"
        );
    }
    Ok(())
}

/// The names of the files in `tests` directories. Tests are selected by them and not by package: the selection of packages
/// decides which features dependencies have, and with another one everything would be built again.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestFiles {
    near: Vec<String>,
    far: Vec<String>,
}

impl TestFiles {
    fn in_metadata(metadata: &Value) -> Result<Self> {
        let mut files = Self::default();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let names = if package["name"] == "mainstay-e2e" { &mut files.far } else { &mut files.near };
            let targets = package["targets"].as_array().into_iter().flatten();
            let tests = targets.filter(|target| target["kind"][0] == "test");
            names.extend(tests.filter_map(|target| target["name"].as_str()).map(str::to_owned));
        }
        if let Some(name) = files.near.iter().find(|name| files.far.contains(name)) {
            bail!("two crates have a test file {name}; rename the one that is not of mainstay-e2e");
        }
        Ok(files)
    }
}

/// Runs tests, shows their output as it comes and counts the results.
fn cargo_test(selection: &[&str], harness: &[&str], tally: &mut Tally) -> Result<()> {
    let mut child = crate::cargo()
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .args(selection)
        .arg("--")
        .args(harness)
        .current_dir(workspace_root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let before = tally.passed + tally.failed;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.add_line(&line);
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    if !status.success() {
        bail!("cargo test {} failed", selection.join(" "));
    }
    if tally.passed + tally.failed == before {
        bail!("cargo test {} ran no test at all", selection.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn test_files_are_told_apart_by_their_names() {
        let package = |name: &str, test: &str| {
            let targets = json!([{ "kind": ["lib"], "name": name }, { "kind": ["test"], "name": test }]);
            json!({ "name": name, "targets": targets })
        };
        let metadata =
            json!({ "packages": [package("mainstay-e2e", "logs"), package("mainstay-logs", "files")] });
        let files = TestFiles::in_metadata(&metadata).unwrap();
        assert_eq!(files, TestFiles { near: vec!["files".to_owned()], far: vec!["logs".to_owned()] });
        let metadata =
            json!({ "packages": [package("mainstay-e2e", "logs"), package("mainstay-logs", "logs")] });
        assert!(TestFiles::in_metadata(&metadata).unwrap_err().to_string().contains("test file logs"));
    }

    #[test]
    fn results_are_summed() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.01s",
            "test result: FAILED. 1 passed; 2 failed; 3 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "my own test result: ok. 100 passed",
        ] {
            tally.add_line(line);
        }
        assert_eq!(tally, Tally { passed: 13, failed: 2, ignored: 3 });
    }
}
