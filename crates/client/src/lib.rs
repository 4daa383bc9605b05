//! The client verbs of the `mainstay` command: looking at a node from the same machine.
//!
//! Every verb speaks HTTP to the root-only unix socket of the running mainstay (`--socket`, else `--root-dir`'s, else
//! `$MAINSTAY_SOCKET`, else `/var/lib/kubelet/mainstay.sock`). Tables and texts look as kubectl's do where it has them.
//! A pod is named `NAME` or `NAMESPACE/NAME`, with or without the `-NODE` that static pods carry at the end.
//!
//! Exit codes: 0 done, also when the reader of the output went away; 1 the request failed (no such pod, refused, a stream
//! broke off); 2 the command line is wrong; 3 no mainstay answers at the socket, or it may not be opened.
//!
//! What it does not do: it changes nothing on the node, uses no color, and keeps nothing between runs. Its one task drives
//! the connection; the runtime is made and ended within [`run`].

#![forbid(unsafe_code)]

mod age;
mod args;
mod connection;
mod describe;
mod error;
mod events;
mod logs;
mod manifests;
mod node;
mod output;
mod pods;
mod select;
mod status;
mod text;

pub use args::{
    ClientCommand, ConnectArgs, DescribeCommand, DescribePodArgs, EventsArgs, ListFormat, LogsArgs,
    ManifestsArgs, NodeArgs, PodsArgs, StructuredFormat,
};

use std::process::ExitCode;

use crate::{error::ClientError, output::Output};

/// Runs one verb against the mainstay on this machine, on a small async runtime of its own. Blocks until it is done.
///
/// What went wrong is told on standard error; the crate's documentation lists the exit codes.
#[must_use]
pub fn run(command: ClientCommand) -> ExitCode {
    let mut output = Output::standard();
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(execute(command, &mut output)),
        Err(source) => Err(ClientError::Runtime { source }),
    };
    report(result, &mut output)
}

fn report(result: Result<(), ClientError>, output: &mut Output) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            output.complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

async fn execute(command: ClientCommand, output: &mut Output) -> Result<(), ClientError> {
    match command {
        ClientCommand::Pods(args) => pods::run(args, output).await?,
        ClientCommand::Describe(DescribeCommand::Pod(args)) => describe::run(args, output).await?,
        ClientCommand::Logs(args) => logs::run(args, output).await?,
        ClientCommand::Events(args) => events::run(args, output).await?,
        ClientCommand::Manifests(args) => manifests::run(args, output).await?,
        ClientCommand::Node(args) => node::run(args, output).await?,
    }
    output.flush()
}

#[cfg(test)]
mod tests;
