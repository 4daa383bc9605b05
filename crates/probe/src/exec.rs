//! A command in the container: its exit code is the answer.

use std::time::Duration;

use mainstay_cri::{Cri, ExecOutcome};
use mainstay_types::{ContainerId, format_go_duration};

use crate::{Answer, MAX_OUTPUT_BYTES, ProbeError};

pub(crate) async fn attempt(
    cri: &Cri,
    container: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> Result<Answer, ProbeError> {
    // The runtime ends the command at its time limit. Where it cannot (the process is stuck in the kernel, or others hold its
    // output open) the call ends a while later, with the same result: a container that answers nobody has failed.
    Ok(match cri.exec_sync(container.as_str(), command.to_vec(), Some(timeout)).await? {
        ExecOutcome::Exited { code: 0, .. } => Answer::Success,
        ExecOutcome::Exited { output, .. } => {
            let output = output.get(..MAX_OUTPUT_BYTES).unwrap_or(&output);
            Answer::Failure(String::from_utf8_lossy(output).into_owned())
        }
        ExecOutcome::TimedOut => Answer::Failure(format!(
            "command timed out: {:?} timed out after {}",
            command.join(" "),
            format_go_duration(timeout)
        )),
    })
}
