//! A command in the container: its exit code is the answer.

use std::time::Duration;

use mainstay_cri::{Cri, ExecOutcome};
use mainstay_types::{ContainerId, format_go_duration};

use crate::{Answer, MAX_OUTPUT_BYTES, ProbeError};

/// The runtime ends the command at its time limit; after so much longer it is not waited for.
const OVERTIME: Duration = Duration::from_secs(5);

pub(crate) async fn attempt(
    cri: &Cri,
    container: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> Result<Answer, ProbeError> {
    let run = cri.exec_sync(container.as_str(), command.to_vec(), Some(timeout));
    let outcome = tokio::time::timeout(timeout.saturating_add(OVERTIME), run)
        .await
        .map_err(|_| ProbeError::RuntimeHangs)??;
    Ok(match outcome {
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
