//! `mainstay top` under a terminal, and without one.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{manifest, running, shell};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::json;

/// Longer than some rounds of reading on a slow machine.
const ROUNDS: Duration = Duration::from_secs(180);

#[test]
fn a_terminal_shows_pods_containers_and_logs_and_is_left_as_it_was() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).start()?;
    let says = "echo hello from within; trap 'exit 0' TERM; while :; do sleep 1; done";
    node.write_manifest("shown.yaml", &manifest("shown", json!({ "containers": [shell("speaks", says)] })))?;
    running(&node, "shown")?;
    // A pipe has it once, as text.
    wait_until(ROUNDS, "the pod with its container", || {
        let output = node.cli(&["top", "--once", "--containers"]).map_err(|error| format!("{error:#}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_there = |line: &str, words: &[&str]| words.iter().all(|word| line.contains(word));
        let pod = text.lines().any(|line| is_there(line, &["default/shown-node", "1/1", "Running", "Ki"]));
        let container = text.lines().any(|line| is_there(line, &["  speaks", "Ready"]));
        let good = output.status.success() && pod && container && !text.contains('\x1b');
        if good { Ok(()) } else { Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))) }
    })?;

    let inside = format!(
        "stty rows 30 cols 140; {} top --interval 1 --root-dir {}; echo left with $?; stty -a",
        node.program().display(),
        node.root().display()
    );
    let mut child = Command::new("script")
        .args(["-qec", &inside, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run script (util-linux)")?;
    let mut keys = child.stdin.take().context("no stdin")?;
    let mut screen = child.stdout.take().context("no stdout")?;
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let shared = Arc::clone(&seen);
    let reader = thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = screen.read(&mut buffer) {
            if count == 0 {
                break;
            }
            shared
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .extend(buffer.get(..count).unwrap_or_default());
        }
    });
    let text = || {
        let seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        String::from_utf8_lossy(&seen).into_owned()
    };
    let shows = |what: &str| {
        wait_until(ROUNDS, what, || {
            let text = text();
            if text.contains(what) { Ok(()) } else { Err(text) }
        })
    };
    shows("\x1b[?1049h")?;
    shows("+default/shown-node")?;
    shows("no pressure")?;
    keys.write_all(b"\r")?;
    shows("-default/shown-node")?;
    shows("  speaks")?;
    keys.write_all(b"j")?;
    keys.write_all(b"l")?;
    shows("LOG of speaks in default/shown-node")?;
    shows("hello from within")?;
    keys.write_all(b"\x7f")?;
    keys.write_all(b"?")?;
    shows("KEYS")?;
    keys.write_all(b"?")?;
    keys.write_all(b"m")?;
    shows("sorted by memory")?;
    // A smaller window while it runs would need the terminal's other end; what is drawn for one is tested beside the code.
    keys.write_all(b"q")?;
    shows("\x1b[?1049l")?;
    shows("left with 0")?;
    // Echo and lines are back.
    shows(" icanon")?;
    drop(keys);
    let ended = child.wait()?;
    reader.join().ok();
    let all = text();
    let restored = all.rsplit("left with").next().unwrap_or_default();
    ensure!(restored.contains(" echo ") && !restored.contains("-icanon"), "{ended}: {restored}");
    Ok(())
}
