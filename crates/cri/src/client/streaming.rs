//! The calls behind exec, attach, port-forward, run and checkpoint. For the first three the runtime gives an address that may be used once,
//! soon, to speak to its streaming server; the bytes themselves do not pass through here.

use std::time::Duration;

use k8s_cri::v1 as cri;
use tonic::Code;

use super::{Cri, EXEC_DEADLINE, MAX_MESSAGE_BYTES};
use crate::CriError;

/// Which of a command's streams are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamsWanted {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Error output.
    pub stderr: bool,
    /// In a terminal.
    pub tty: bool,
}

/// What a command wrote and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit code.
    pub code: i32,
    /// Its output.
    pub stdout: Vec<u8>,
    /// Its error output.
    pub stderr: Vec<u8>,
}

impl Cri {
    /// Where a command can be run in a container.
    pub async fn exec_url(
        &self,
        id: &str,
        command: Vec<String>,
        wanted: StreamsWanted,
    ) -> Result<String, CriError> {
        let mut client = self.runtime.clone();
        let StreamsWanted { stdin, stdout, stderr, tty } = wanted;
        let request =
            cri::ExecRequest { container_id: id.to_owned(), cmd: command, tty, stdin, stdout, stderr };
        let work = client.exec(request);
        self.named("exec", self.timeout, &self.runtime_path, work).await.map(|response| response.url)
    }

    /// Where a container's own streams can be had.
    pub async fn attach_url(&self, id: &str, wanted: StreamsWanted) -> Result<String, CriError> {
        let mut client = self.runtime.clone();
        let StreamsWanted { stdin, stdout, stderr, tty } = wanted;
        let request = cri::AttachRequest { container_id: id.to_owned(), stdin, tty, stdout, stderr };
        let work = client.attach(request);
        self.named("attach", self.timeout, &self.runtime_path, work).await.map(|response| response.url)
    }

    /// Where a sandbox's ports can be reached.
    pub async fn port_forward_url(&self, sandbox: &str, ports: &[u16]) -> Result<String, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::PortForwardRequest {
            pod_sandbox_id: sandbox.to_owned(),
            port: ports.iter().copied().map(i32::from).collect(),
        };
        let work = client.port_forward(request);
        self.named("port_forward", self.timeout, &self.runtime_path, work).await.map(|response| response.url)
    }

    /// Runs a command in a container to its end and tells its streams apart. It has no time limit but that of two hours,
    /// after which nobody waits for it any more.
    ///
    /// # Errors
    /// Also [`CriError::TooMuchOutput`], when the two streams have more than 16 MiB.
    pub async fn run_command(&self, id: &str, command: Vec<String>) -> Result<CommandOutput, CriError> {
        let mut client = self.runtime.clone();
        let request = cri::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout: 0 };
        let work = client.exec_sync(request);
        match self.named("exec_sync", EXEC_DEADLINE, &self.runtime_path, work).await {
            Ok(cri::ExecSyncResponse { stdout, stderr, exit_code: code }) => {
                Ok(CommandOutput { code, stdout, stderr })
            }
            Err(CriError::Refused { call, code: Code::OutOfRange, .. }) => {
                Err(CriError::TooMuchOutput { call, max_bytes: MAX_MESSAGE_BYTES })
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the state of a running container to an archive, within `limit`.
    pub async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        limit: Duration,
    ) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let timeout = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
        let request = cri::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout,
        };
        let work = client.checkpoint_container(request);
        self.named("checkpoint_container", limit, &self.runtime_path, work).await.map(drop)
    }

    /// `runtimeRequestTimeout`.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}
