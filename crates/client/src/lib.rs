//! The client verbs of the `mainstay` command: looking at a node, and reaching into its containers.
//!
//! Every verb speaks HTTP to the root-only unix socket of the running mainstay (`--socket`, else `--root-dir`'s, else
//! `$MAINSTAY_SOCKET`, else `/var/lib/kubelet/mainstay.sock`), or with `--server` to the secure port of any. exec, attach and port-forward speak SPDY
//! on the same connection. Tables and texts look as kubectl's do where it has them.
//! A pod is named `NAME` or `NAMESPACE/NAME`, with or without the `-NODE` that static pods carry at the end.
//!
//! A watch outlives a restart of mainstay: it says so, waits and goes on; a followed log does not, for it would have to
//! guess where it was.
//!
//! Exit codes: 0 done, also when the reader of the output went away; 1 the request failed (no such pod, refused, a stream
//! broke off); 2 the command line is wrong; 3 no mainstay answers, or its socket may not be opened. `exec` ends with the
//! command's own code.
//!
//! What it does not do: it changes nothing on the node, uses no color (`top` has bold and reversed lines), and keeps nothing between runs. Its one task drives
//! the connection; the runtime is made and ended within [`run`].

#![forbid(unsafe_code)]

mod age;
mod api;
mod args;
mod connection;
mod describe;
mod dial;
mod error;
mod events;
mod exec;
mod forward;
mod logs;
mod manifests;
mod metrics;
mod node;
mod output;
mod pods;
mod resources;
mod select;
mod stats;
mod status;
mod terminal;
mod text;
mod top;

pub use args::{
    ApiArgs, AttachArgs, ClientCommand, ConfigArgs, ConnectArgs, CostArgs, CostOrder, DescribeArgs,
    EventsArgs, ExecArgs, ListFormat, LogsArgs, ManifestsArgs, MetricsCommand, NodeArgs, PodsArgs,
    PortForwardArgs, ResourcesArgs, StatsArgs, StatsOrder, StructuredFormat, TopArgs,
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
        Ok(runtime) => {
            let result = runtime.block_on(execute(command, &mut output));
            // Somebody may still wait for a key that is never pressed.
            runtime.shutdown_background();
            result
        }
        Err(source) => Err(ClientError::Runtime { source }),
    };
    report(result, &mut output)
}

fn report(result: Result<u8, ClientError>, output: &mut Output) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            output.complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

async fn execute(command: ClientCommand, output: &mut Output) -> Result<u8, ClientError> {
    match command {
        ClientCommand::Pods(args) => pods::run(args, output).await?,
        ClientCommand::Describe(args) => describe::run(args, output).await?,
        ClientCommand::Logs(args) => logs::run(args, output).await?,
        ClientCommand::Exec(args) => return Box::pin(exec::exec(args, output)).await,
        ClientCommand::Attach(args) => return Box::pin(exec::attach(args, output)).await,
        ClientCommand::PortForward(args) => return Box::pin(forward::run(args, output)).await,
        ClientCommand::Events(args) => events::run(args, output).await?,
        ClientCommand::Manifests(args) => manifests::run(args, output).await?,
        ClientCommand::Resources(args) => resources::run(args, output).await?,
        ClientCommand::Stats(args) => stats::run(args, output).await?,
        ClientCommand::Top(args) => return Box::pin(top::run(args, output)).await,
        ClientCommand::Metrics(MetricsCommand::Cost(args)) => metrics::cost(args, output).await?,
        ClientCommand::Node(args) => node::run(args, output).await?,
        ClientCommand::Config(args) => api::config(args, output).await?,
        ClientCommand::Api(args) => api::api(args, output).await?,
    }
    output.flush()?;
    Ok(0)
}

/// The verbs against whoever answers at a socket, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use std::{io, path::Path};

    use clap::Parser;

    use crate::{ClientCommand, execute, output::Output};

    const LINES: [&str; 16] = [
        "pods -o wide",
        "pods -o yaml",
        "pods web -o json",
        "describe web",
        "logs web",
        "events",
        "manifests",
        "resources",
        "resources --numa",
        "stats",
        "stats web --sort io",
        "top --once --containers",
        "metrics cost",
        "node",
        "config",
        "api",
    ];

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: ClientCommand,
    }

    /// What became of each verb, in words.
    #[must_use]
    pub fn verbs(socket: &Path) -> String {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return "no runtime".into();
        };
        let mut said = String::new();
        for line in LINES {
            let words = ["mainstay"].into_iter().chain(line.split(' ')).map(Into::into);
            let words = words.chain(["--socket".into(), socket.as_os_str().to_owned()]);
            let outcome = match Line::try_parse_from(words) {
                Ok(line) => {
                    let mut output = Output::new(io::sink(), io::sink());
                    match runtime.block_on(Box::pin(execute(line.command, &mut output))) {
                        Ok(_) => "good".to_owned(),
                        Err(error) => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            // A word of each: what is told at length is in the input.
            said.extend(outcome.split(' ').take(2).flat_map(|word| [word, " "]));
        }
        said
    }
}

#[cfg(test)]
mod tests;
