//! Running a program to its end, within a deadline.

use crate::patient;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `command` and returns its standard output.
///
/// Output goes through unnamed files rather than pipes, so that a grandchild which keeps them open cannot make
/// the caller wait.
///
/// # Errors
/// When it cannot be started, is still running after `deadline` (it is killed), or fails; the error carries what
/// it wrote to standard error.
pub fn capture(command: &mut Command, deadline: Duration) -> Result<String> {
    let deadline = patient(deadline);
    let shown = format!("{command:?}").replace('"', "");
    let mut out = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut err = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone().context("cannot share a file")?)
        .stderr(err.try_clone().context("cannot share a file")?)
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {shown}"))? {
            break status;
        }
        if start.elapsed() > deadline {
            // It may have ended in between: either way it is reaped here.
            child.kill().ok();
            child.wait().ok();
            bail!("{shown} did not end within {} s: {}", deadline.as_secs_f32(), read(&mut err)?.trim());
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    if !status.success() {
        bail!("{shown} failed ({status}): {}{}", read(&mut err)?.trim(), read(&mut out)?.trim());
    }
    read(&mut out)
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).context("cannot read output")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failure_and_deadline() {
        let sh = |script: &str, seconds| {
            capture(Command::new("/bin/sh").args(["-c", script]), Duration::from_secs_f32(seconds))
        };
        assert_eq!(sh("echo out; echo err >&2", 60.0).unwrap(), "out\n");
        let failed = sh("echo why >&2; exit 3", 60.0).unwrap_err().to_string();
        assert!(failed.contains("why") && failed.contains("exit status: 3"), "{failed}");
        // However slow the machine is, one of these deadlines lets the shell speak first.
        let deadlines = [0.2, 2.0, 20.0];
        let late = deadlines
            .map(|seconds| move || sh("echo busy >&2; exec sleep 1000", seconds).unwrap_err().to_string());
        let late = late.iter().map(|run| run()).find(|late| late.contains("busy")).unwrap();
        assert!(late.contains("did not end within"), "{late}");
    }
}
