//! The project's own automation, run as `cargo xtask COMMAND`.
//!
//! What it does: everything that `make` and CI do beyond one cargo call. What it does not: install packages
//! (`scripts/setup.sh` does) or ship anything to users.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program reports on standard output")]

mod borrows;
mod ci;
mod cluster;
mod layers;
mod order;
mod own_files;
mod run;
mod tools;
mod try_run;
mod vm;

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask COMMAND

  ci              everything CI checks: format, lints, layers, dependencies, all tests
  layers          check that crates depend only downwards and keep the workspace's rules
  tools PEER...   build real peers for tests into .build/tools: containerd crictl etcd kube-apiserver kubelet kubernetes metrics-server otel-collector probe-target runc streamclient
  run [--once]    a node with the example pods on a private containerd, until Ctrl-C
                  (--once: only until every pod has run)
  cluster [--try] etcd, API server, controllers, scheduler and mainstay as the node, until Ctrl-C
                  (--try: only until the example Deployment has run and Ctrl-C has ended it)
  vm [--all] [--driver systemd|cgroupfs] [--steady] [--name RUN] [FILE...] [-- TEST...]
                  the end-to-end tests in a small Debian machine with systemd and cgroup v2, in software
  fuzz [TARGET] [--seconds N]
                  hostile bytes for everything that reads bytes from outside (`fuzz --help` lists the targets)
  bench [FLAGS]   mainstay, upstream's kubelet and a bare CRI client in one run (`bench --help` lists its flags)
  compare-metrics scrape mainstay and upstream's kubelet on the same pod, and print which families, labels and values differ
  order           find out which functions a node at work runs, for the linker (after large changes, before a release)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => ci::run(),
        ["layers"] => layers::run(),
        ["tools", peers @ ..] => tools::run(peers),
        ["cluster"] => cluster::run(),
        ["cluster", "--try"] => try_run::cluster(),
        ["run"] => run::run(run::Until::Interrupted),
        ["run", "--once"] => run::run(run::Until::AllHaveRun),
        ["vm", words @ ..] => vm::run(&vm::Wish::parse(words)?, &mut ci::Tally::default()),
        ["bench", flags @ ..] => bench(flags),
        ["fuzz", words @ ..] => fuzz(words),
        ["compare-metrics"] => compare_metrics(),
        ["order"] => order::run(),
        ["order-trace", scratch, binary] => order::trace(scratch, binary),
        ["help" | "--help" | "-h"] | ["run" | "cluster", "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("which command?\n\n{USAGE}"),
        other => bail!("unknown: {}\n\n{USAGE}", other.join(" ")),
    }
}

/// Builds what is measured, then measures.
fn bench(flags: &[&str]) -> Result<()> {
    if !flags.iter().any(|flag| ["--no-upstream", "--grpc"].contains(flag)) {
        tools::run(&["kubelet"])?;
    }
    if !flags.iter().any(|flag| ["--floor-only", "--probes-only", "--http-only", "--grpc"].contains(flag)) {
        tools::run(&["etcd", "kube-apiserver", "kubernetes"])?;
    }
    if flags.contains(&"2.4") {
        tools::run(&["containerd"])?;
    }
    let build = cargo().args(["build", "--release", "-p", "mainstay", "-p", "mainstay-bench"]).status()?;
    if !build.success() {
        bail!("the release build failed");
    }
    let program = mainstay_testkit::workspace_root().join("target/release/mainstay-bench");
    let done = Command::new(&program).args(flags).status().with_context(|| program.display().to_string())?;
    if !done.success() {
        bail!("the bench failed");
    }
    Ok(())
}

/// The debug build: what is compared is what is said, not how fast.
fn compare_metrics() -> Result<()> {
    tools::run(&["kubelet"])?;
    let built = cargo().args(["build", "-p", "mainstay"]).status()?;
    if !built.success() {
        bail!("the build failed");
    }
    let done = cargo().args(["run", "--quiet", "-p", "mainstay-e2e", "--bin", "compare-metrics"]).status()?;
    if !done.success() {
        bail!("the comparison failed");
    }
    Ok(())
}

/// In a debug build, whose checks of arithmetic are half of what it can find.
fn fuzz(words: &[&str]) -> Result<()> {
    let done = cargo().args(["run", "--quiet", "-p", "mainstay-fuzz", "--"]).args(words).status()?;
    if !done.success() {
        bail!("the fuzzer found something, or could not be run");
    }
    Ok(())
}

/// The cargo that runs this, so that a toolchain chosen on its command line stays chosen. What it said of this program is no
/// affair of what is built next: build scripts would take it for a change, and cryptography and all that is on top of it would
/// be built again.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    }) {
        cargo.env_remove(name);
    }
    cargo
}
