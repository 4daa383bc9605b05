//! Programs that are run to their end.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

/// How much a program may write, of answers and of complaints.
const MAX_OUTPUT: u64 = 1 << 20;
/// How much of its last complaint is told.
const MAX_COMPLAINT: usize = 300;

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is not there, or may not be run.
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    /// It was ended.
    #[error("did not end within {0:?}")]
    TooLate(Duration),
    /// The kernel does not tell how it ended.
    #[error("cannot be waited for: {0}")]
    Wait(std::io::Error),
    /// It says so, with the last line of what it wrote on standard error.
    #[error("failed ({status}): {complaint}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What it said last.
        complaint: String,
    },
}

/// Runs a program with `input` and returns what it wrote, up to a megabyte. It is killed after `deadline`, or when nobody waits for
/// it any longer.
///
/// # Errors
/// [`ProgramError`] when it cannot be started, does not end, or says that it failed.
pub async fn run_program(
    mut command: Command,
    input: &[u8],
    deadline: Duration,
) -> Result<Vec<u8>, ProgramError> {
    let mut child = command
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ProgramError::Start)?;
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let say = async {
        if let Some(mut stdin) = stdin {
            // A program that does not listen may know the answer all the same.
            stdin.write_all(input).await.ok();
        }
    };
    let work = async { tokio::join!(say, bounded(out), bounded(err), child.wait()) };
    let Ok(((), out, err, status)) = tokio::time::timeout(deadline, work).await else {
        return Err(ProgramError::TooLate(deadline));
    };
    let status = status.map_err(ProgramError::Wait)?;
    if !status.success() {
        let said = String::from_utf8_lossy(&err);
        let last = said.trim().lines().last().unwrap_or_default();
        return Err(ProgramError::Failed { status, complaint: last.chars().take(MAX_COMPLAINT).collect() });
    }
    Ok(out)
}

/// What comes out, up to the limit; the rest is thrown away so that the program can end.
async fn bounded(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(mut from) = from else { return bytes };
    // What was read before a failure is all there is.
    (&mut from).take(MAX_OUTPUT).read_to_end(&mut bytes).await.ok();
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.ok();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn shell(script: &str, input: &[u8], deadline: Duration) -> Result<Vec<u8>, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run_program(command, input, deadline).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_a_program_says_and_how_it_ends() {
        assert_eq!(shell("cat; echo noise >&2", b"hello", LONG).await.unwrap(), b"hello");
        assert_eq!(shell("cat", b"", LONG).await.unwrap(), b"");
        assert_eq!(shell("echo deaf", &[b'x'; 1 << 20], LONG).await.unwrap(), b"deaf\n");
        let much = shell("head -c 3000000 /dev/zero", b"", LONG).await.unwrap();
        assert_eq!(much.len(), 1 << 20, "the rest is thrown away, and it ends");
        let failed = shell("echo a >&2; echo b >&2; exit 3", b"", LONG).await.unwrap_err();
        assert_eq!(failed, "failed (exit status: 3): b");
        let late = shell("exec sleep 1000", b"", Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(late, "did not end within 100ms");
        let missing = run_program(Command::new("/nothing/there"), b"", LONG).await.unwrap_err();
        assert!(missing.to_string().starts_with("cannot be started: "), "{missing}");
    }
}
