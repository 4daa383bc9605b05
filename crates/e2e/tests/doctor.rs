//! `mainstay doctor` beside a node: it goes by what that node goes by.

use anyhow::{Result, ensure};
use mainstay_e2e::seen::{PATIENCE, quick};
use mainstay_testkit::{Containerd, Flavor, wait_until};

#[test]
fn it_judges_by_the_settings_of_the_node_that_runs() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node = quick(&containerd).start()?;
    // It gives the runtime only so much time to answer.
    let text = wait_until(PATIENCE, "a word about the runtime", || {
        let asked = node.cli(&["doctor"]).map_err(|error| format!("{error:#}"))?;
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        if text.contains("ok    runtime:") { Ok(text) } else { Err(text) }
    })?;
    let pid = node.pid().unwrap_or_default();
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    ensure!(
        line("ok    configuration") == format!("ok    configuration: that of the running node (pid {pid})"),
        "{text}"
    );
    // None of these is the default, nor on doctor's command line.
    ensure!(line("ok    runtime:").contains("containerd 1.6"), "{text}");
    ensure!(line("ok    manifests").ends_with(&node.manifests().display().to_string()), "{text}");
    ensure!(line("ok    node name") == "ok    node name: node", "{text}");
    ensure!(
        text.lines().filter(|line| line.contains("cgroups:")).count() == 1,
        "told more than once: {text}"
    );
    let logs = text.lines().find(|line| line.contains("disk of logs")).unwrap_or_default();
    ensure!(logs.contains(&node.pod_logs().display().to_string()), "{text}");

    node.sigterm()?;
    let text = String::from_utf8(node.cli(&["doctor"])?.stdout)?;
    ensure!(text.contains("configuration: valid"), "nobody runs any more: {text}");
    Ok(())
}
