//! The chains of iptables that others on the machine look for: which variant of iptables is in use, and a firewall
//! against packets that claim to come to the loopback addresses from outside (upstream's
//! `pkg/kubelet/kubelet_network_linux.go`).
//!
//! They are made through the `iptables` and `ip6tables` programs, looked for every minute, and made again when somebody
//! has flushed the rules. That nothing of this works is told once and never stops the agent.

use std::{io, process::Stdio, time::Duration};

use mainstay_task::TaskGroup;
use tokio::process::Command;
use tracing::{debug, info, warn};

/// For each call; iptables itself waits five seconds for its lock.
const DEADLINE: Duration = Duration::from_secs(30);
/// Between looks at the canary.
const PERIOD: Duration = Duration::from_secs(60);

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// Each has a canary.
const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// Drops what comes to the loopback network from elsewhere, unless it belongs to a connection made from here.
const MARTIANS: &[&str] = &[
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn program(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }
}

/// Why the chains are not there.
#[derive(Debug, thiserror::Error)]
enum IptablesError {
    /// The program cannot be started.
    #[error("cannot run {program}; install iptables, or set makeIPTablesUtilChains: false")]
    Start {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    /// It does not come back.
    #[error("{program} did not end within {DEADLINE:?}; does somebody hold its lock?")]
    Deadline { program: &'static str },
    /// It says no.
    #[error("{program} {args} failed: {said}")]
    Refused { program: &'static str, args: String, said: String },
}

impl IptablesError {
    fn is_missing_program(&self) -> bool {
        matches!(self, Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Keeps the chains in place, for as long as the task group lives. Task: `iptables`.
pub fn start(tasks: &TaskGroup) {
    let shutdown = tasks.shutdown();
    tasks.spawn("iptables", async move {
        let both = async { tokio::join!(keep(Family::V4), keep(Family::V6)) };
        shutdown.run_until_signalled(both).await;
    });
}

async fn keep(family: Family) {
    let mut told = false;
    loop {
        match look(family).await {
            Ok(true) => info!(program = family.program(), "iptables chains are in place"),
            Ok(false) => {}
            Err(error) if error.is_missing_program() => {
                warn!("{error}");
                return;
            }
            Err(error) if told => debug!("{error}"),
            Err(error) => {
                warn!("{error}");
                told = true;
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Makes what is missing if a canary is gone. Whether one was.
async fn look(family: Family) -> Result<bool, IptablesError> {
    if all_there(family).await? {
        return Ok(false);
    }
    chain(family, "mangle", HINT).await?;
    if family == Family::V4 {
        chain(family, "filter", FIREWALL).await?;
        rule(family, "filter", FIREWALL, MARTIANS).await?;
        for hook in ["OUTPUT", "INPUT"] {
            rule(family, "filter", hook, &["-j", FIREWALL]).await?;
        }
    }
    // Last: with the canaries there, all of it is.
    for table in TABLES {
        chain(family, table, CANARY).await?;
    }
    Ok(true)
}

/// Somebody may flush one table while another is being filled.
async fn all_there(family: Family) -> Result<bool, IptablesError> {
    for table in TABLES {
        if !succeeds(family, table, &["-S", CANARY]).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn chain(family: Family, table: &str, name: &str) -> Result<(), IptablesError> {
    if succeeds(family, table, &["-S", name]).await? {
        Ok(())
    } else {
        must(family, table, &["-N", name]).await
    }
}

async fn rule(family: Family, table: &str, chain: &str, rule: &[&str]) -> Result<(), IptablesError> {
    if succeeds(family, table, &[&["-C", chain], rule].concat()).await? {
        return Ok(());
    }
    must(family, table, &[&["-I", chain], rule].concat()).await
}

async fn succeeds(family: Family, table: &str, args: &[&str]) -> Result<bool, IptablesError> {
    Ok(call(family, table, args).await?.is_ok())
}

async fn must(family: Family, table: &str, args: &[&str]) -> Result<(), IptablesError> {
    call(family, table, args).await?.map_err(|said| IptablesError::Refused {
        program: family.program(),
        args: format!("-t {table} {}", args.join(" ")),
        said,
    })
}

/// Runs the program; what it said when it failed.
async fn call(family: Family, table: &str, args: &[&str]) -> Result<Result<(), String>, IptablesError> {
    let program = family.program();
    let mut command = Command::new(program);
    // A call that is given up is ended with the process that made it.
    command.args(["-w", "5", "-t", table]).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output())
        .await
        .map_err(|_| IptablesError::Deadline { program })?
        .map_err(|source| IptablesError::Start { program, source })?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
