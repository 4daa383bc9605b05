//! The command line.

use std::{ffi::OsString, io::Write, path::Path, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use mainstay_client::ClientCommand;
use mainstay_config::{Loaded, Problem, VersionRequest, load, parse_kubelet_flags};
use mainstay_types::VERSION;

use crate::{app, check, doctor, run};

/// Bad usage or configuration (sysexits' EX_USAGE).
const USAGE: u8 = 64;

#[derive(Debug, Parser)]
#[command(
    name = "mainstay",
    about = "A Kubernetes node agent: runs this machine's pods and answers for them",
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = "On one machine:    mainstay run --manifests DIR\nIn a cluster:      mainstay kubelet --config FILE …   (upstream's flags; `mainstay kubelet --help`)\nLook at it:        mainstay pods, mainstay describe NAME, mainstay logs NAME, mainstay events\nReach into it:     mainstay exec -it NAME -- sh, mainstay attach NAME, mainstay port-forward NAME 8080:80"
)]
struct Cli {
    /// Print the version.
    #[arg(long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run this machine's pods from manifest files, without an API server
    Run(run::RunArgs),
    /// Behave as upstream's kubelet, with its flags (see `mainstay kubelet --help`)
    #[command(disable_help_flag = true)]
    Kubelet {
        /// Upstream's flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Check a configuration or pod manifests, or explain a field
    Check(check::CheckArgs),
    /// Check this machine: runtime, cgroups, network, disk, configuration
    Doctor(doctor::DoctorArgs),
    /// Print the version, as --version does
    Version,
    /// Print a shell completion script
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    #[command(flatten)]
    Client(ClientCommand),
}

/// Runs what the command line asks for.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let called_as = args.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if called_as.is_some_and(|name| name == "kubelet") {
        return kubelet(args.into_iter().skip(1).collect());
    }
    // Everything behind `kubelet` is upstream's grammar, not clap's.
    if args.get(1).is_some_and(|word| word == "kubelet") {
        return kubelet(args.into_iter().skip(2).collect());
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            // Nothing can be done about a closed terminal.
            error.print().ok();
            return ExitCode::from(code);
        }
    };
    if cli.version {
        return version();
    }
    match cli.command {
        Some(Command::Version) => version(),
        None => ExitCode::from(USAGE),
        Some(Command::Kubelet { args }) => kubelet(args),
        Some(Command::Run(args)) => match run::load(&args) {
            Ok(loaded) => app::main(loaded, app::Mode::Run),
            Err(problems) => bad_configuration(&problems),
        },
        Some(Command::Check(args)) => check::main(&args),
        Some(Command::Doctor(args)) => doctor::main(&args),
        Some(Command::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mainstay", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Some(Command::Client(command)) => mainstay_client::run(command),
    }
}

fn version() -> ExitCode {
    print(&format!("Kubernetes {VERSION}\n"))
}

/// The configuration that a command line of mainstay (with its own name first) means, if it is one that runs a node.
pub(crate) fn configuration_of(args: Vec<OsString>) -> Option<Result<Loaded, Vec<Problem>>> {
    let is_kubelet = |word: Option<&OsString>| {
        word.and_then(|word| Path::new(word).file_name()).is_some_and(|name| name == "kubelet")
    };
    let behind = match (is_kubelet(args.first()), is_kubelet(args.get(1))) {
        (true, _) => Some(1),
        (false, true) => Some(2),
        (false, false) => None,
    };
    if let Some(behind) = behind {
        let flags = args.into_iter().skip(behind);
        return Some(parse_kubelet_flags(flags).and_then(|flags| load(&flags)));
    }
    match Cli::try_parse_from(args).ok()?.command? {
        Command::Run(args) => Some(run::load(&args)),
        _ => None,
    }
}

fn kubelet(args: Vec<OsString>) -> ExitCode {
    let flags = match parse_kubelet_flags(args) {
        Ok(flags) => flags,
        Err(problems) => return bad_configuration(&problems),
    };
    if flags.help {
        return print(&mainstay_config::help());
    }
    match &flags.version {
        Some(VersionRequest::Short) => return version(),
        Some(VersionRequest::Raw) => {
            return print(&format!("{{GitVersion:{VERSION} Platform:linux/{}}}\n", arch()));
        }
        Some(VersionRequest::Report(_)) | None => {}
    }
    match load(&flags) {
        Ok(loaded) => app::main(loaded, app::Mode::Kubelet),
        Err(problems) => bad_configuration(&problems),
    }
}

/// The machine's kind, in Go's words.
pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Every problem, one a line, and exit code 64.
pub(crate) fn bad_configuration(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        complain(&problem.to_string());
    }
    ExitCode::from(USAGE)
}

/// Tells what the operator should know about a configuration that is good.
pub(crate) fn notices(loaded: &Loaded) -> Vec<String> {
    let mut notices = [&loaded.notices[..], &loaded.flag_notices].concat();
    if !loaded.not_yet.is_empty() {
        let fields: Vec<_> = loaded.not_yet.iter().map(|field| field.path.as_str()).collect();
        notices.push(format!("set, but not acted upon by this version of mainstay: {}", fields.join(", ")));
    }
    notices
}

/// Writes to standard output; a closed pipe is nobody's error.
pub(crate) fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes a line to standard error.
pub(crate) fn complain(text: &str) {
    // There is nowhere left to complain about a closed standard error.
    writeln!(std::io::stderr().lock(), "mainstay: {text}").ok();
}
