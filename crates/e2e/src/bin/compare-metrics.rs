//! `cargo xtask compare-metrics`: what mainstay and upstream's kubelet serve of the same pod, and where they differ.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program reports on standard output")]

use anyhow::Result;
use mainstay_e2e::compare::Both;

fn main() -> Result<()> {
    let both = Both::start()?;
    // Some families of upstream's come with its second round of reading.
    std::thread::sleep(std::time::Duration::from_secs(30));
    print!("{}", both.report()?);
    println!("What differs on purpose, and why: docs/metrics.md");
    Ok(())
}
