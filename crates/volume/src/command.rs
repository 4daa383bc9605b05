//! `mount` as a child process, for file systems that need a helper.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::{Progress, VolumeError};

/// Upstream waits as long for a pod's volumes.
const DEADLINE: Duration = Duration::from_secs(120);
/// Between two looks at the child.
const LOOK: Duration = Duration::from_millis(20);
/// What is kept of the child's words.
const OUTPUT_MAX: u64 = 4096;

/// Mounts by `mount -t TYPE [-o OPTIONS] SOURCE TARGET`.
pub(crate) fn mount(
    fs_type: &str,
    source: &str,
    target: &Path,
    options: &[&str],
    progress: &Progress,
) -> Result<(), VolumeError> {
    let mut command = Command::new("mount");
    command.args(["-t", fs_type]);
    let mut arguments = fs_type.to_owned();
    if !options.is_empty() {
        command.args(["-o", &options.join(",")]);
        arguments = format!("{arguments} -o {}", options.join(","));
    }
    // After `--` nothing is an option, whatever a pod calls its server.
    command.arg("--").arg(source).arg(target);
    arguments = format!("{arguments} {source} {}", target.display());
    progress.doing(format!("mount -t {arguments}"));

    let failed = |action| {
        let path = target.to_owned();
        move |source| VolumeError::Io { action, path, source }
    };
    // A file, not a pipe: a helper that outlives the child would hold a pipe open, and we would wait for it.
    let output = rustix::fs::memfd_create("mount", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(VolumeError::io("hear about the mount of", target))?;
    let mut output = File::from(output);
    let writer = output.try_clone().map_err(failed("hear about the mount of"))?;
    let errors = writer.try_clone().map_err(failed("hear about the mount of"))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(errors).process_group(0);
    let mut child = command.spawn().map_err(failed("run mount(8) for"))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed("wait for mount(8) for"))? {
            Some(status) => break status,
            None if begun.elapsed() > DEADLINE || progress.is_abandoned() => {
                end(&mut child);
                return Err(VolumeError::MountCommandSlow { arguments, seconds: begun.elapsed().as_secs() });
            }
            None => std::thread::sleep(LOOK),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    // Without its words the status must do.
    output.rewind().and_then(|()| output.take(OUTPUT_MAX).read_to_end(&mut text)).ok();
    Err(VolumeError::MountCommand {
        status: status.to_string(),
        arguments: format!("-t {arguments}"),
        output: String::from_utf8_lossy(&text).trim().to_owned(),
    })
}

/// Kills the child with its helpers. One that hangs in the kernel is waited for: the job is not over before it is.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // Gone already is as good.
        rustix::process::kill_process_group(group, Signal::KILL).ok();
    }
    child.wait().ok();
}
