//! The command line of the client verbs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use mainstay_config::GoDuration;

/// Look at the node that mainstay runs on this machine
#[derive(Clone, Debug, Subcommand)]
pub enum ClientCommand {
    /// List the pods of this node
    #[command(visible_alias = "po")]
    Pods(PodsArgs),
    /// Show one pod in detail: containers, conditions, events, the file it came from
    Describe(DescribeArgs),
    /// Print the log of a container
    Logs(LogsArgs),
    /// Run a command in a container
    Exec(ExecArgs),
    /// Connect to the process that runs in a container
    Attach(AttachArgs),
    /// Reach ports of a pod through ports of this machine
    PortForward(PortForwardArgs),
    /// Show what happened to the pods of this node
    Events(EventsArgs),
    /// Show what became of each manifest file: accepted, rejected and why, or ignored
    Manifests(ManifestsArgs),
    /// Show which devices, CPUs and memory there are, and who holds them
    Resources(ResourcesArgs),
    /// Show what the node, its pods and their containers use: CPU, memory, disks, network
    Stats(StatsArgs),
    /// Watch what the node and its pods use, on a terminal; keys sort, open pods and show logs
    Top(TopArgs),
    /// Look at the metrics that the node serves
    #[command(subcommand)]
    Metrics(MetricsCommand),
    /// Show the node itself: version, container runtime, counts
    Node(NodeArgs),
    /// Print the configuration that is in effect, as a --config file would have it
    Config(ConfigArgs),
    /// Ask the node's HTTP API for a path and print the answer; without a path, list what there is
    Api(ApiArgs),
}

/// How to reach mainstay.
#[derive(Args, Clone, Debug, Default)]
pub struct ConnectArgs {
    /// The socket to connect to [default: mainstay.sock in --root-dir, or $MAINSTAY_SOCKET]
    #[arg(long, value_name = "PATH", conflicts_with = "root_dir", help_heading = "Connection")]
    pub socket: Option<PathBuf>,
    /// The root directory of the mainstay to ask [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIR", help_heading = "Connection")]
    pub root_dir: Option<PathBuf>,
    /// Ask a mainstay through its secure port instead: https://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["socket", "root_dir"], help_heading = "Connection")]
    pub server: Option<String>,
    /// A file with the bearer token to show to --server
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
    /// A file with the client certificate to show to --server, in PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "server",
        requires = "client_key",
        help_heading = "Connection"
    )]
    pub client_certificate: Option<PathBuf>,
    /// A file with the client certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "client_certificate", help_heading = "Connection")]
    pub client_key: Option<PathBuf>,
    /// A file with the certificates by which --server is known, in PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Connection")]
    pub certificate_authority: Option<PathBuf>,
}

/// `mainstay pods`.
#[derive(Args, Clone, Debug, Default)]
pub struct PodsArgs {
    /// Only these pods: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub names: Vec<String>,
    /// Only pods of this namespace
    #[arg(short, long, conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// Pods of all namespaces (this is the default)
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only pods with these labels: key=value, key!=value, key or !key, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Go on and show each change
    #[arg(short, long)]
    pub watch: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ListFormat,
    /// Leave the line with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay describe`.
#[derive(Args, Clone, Debug)]
pub struct DescribeArgs {
    /// The pod: NAME or NAMESPACE/NAME; the word `pod` may stand before it
    #[arg(value_name = "POD", required = true)]
    pub names: Vec<String>,
    /// The pod's namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// The pod: NAME or NAMESPACE/NAME
    pub pod: String,
    /// The container [default: the one that the pod names in an annotation, else its first]
    #[arg(value_name = "CONTAINER", conflicts_with = "container")]
    pub container_name: Option<String>,
    /// The container, as kubectl has it
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Go on with what is logged later, until the container stops
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with the last so many lines; -1 for all
    #[arg(long, value_name = "LINES", default_value_t = -1, allow_negative_numbers = true)]
    pub tail: i64,
    /// Only lines of the last so long, such as 5m or 1h30m
    #[arg(long, value_name = "DURATION", conflicts_with = "since_time")]
    pub since: Option<GoDuration>,
    /// Only lines since this time, such as 2026-01-31T15:04:05Z
    #[arg(long, value_name = "TIME")]
    pub since_time: Option<Timestamp>,
    /// Put the time in front of each line
    #[arg(long)]
    pub timestamps: bool,
    /// The log of the container before it was last restarted
    #[arg(short, long)]
    pub previous: bool,
    /// End after so many bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_bytes: Option<u64>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay exec`.
#[derive(Args, Clone, Debug)]
pub struct ExecArgs {
    /// Where, and with which streams
    #[command(flatten)]
    pub streams: AttachArgs,
    /// The command and its arguments, behind --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `mainstay attach`: a container, and which streams to it.
#[derive(Args, Clone, Debug)]
pub struct AttachArgs {
    /// The pod: NAME or NAMESPACE/NAME
    pub pod: String,
    /// The container [default: the one that the pod names in an annotation, else its first]
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Use a terminal (attach: the container's own)
    #[arg(short, long)]
    pub tty: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay port-forward`.
#[derive(Args, Clone, Debug)]
pub struct PortForwardArgs {
    /// The pod: NAME or NAMESPACE/NAME
    pub pod: String,
    /// Ports: LOCAL:REMOTE, PORT for the same on both sides, :REMOTE for any local port
    #[arg(required = true, value_name = "PORTS")]
    pub ports: Vec<String>,
    /// The addresses to listen on, with commas
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    pub address: Vec<String>,
    /// The pod's namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay events`.
#[derive(Args, Clone, Debug, Default)]
pub struct EventsArgs {
    /// Only events of this pod: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POD")]
    pub pod: Option<String>,
    /// Only events of this namespace
    #[arg(short, long, conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// Events of all namespaces and of the node (this is the default)
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Go on and show what happens
    #[arg(short, long)]
    pub watch: bool,
    /// Print the events as data; with --watch one line of JSON (or one YAML document) per event
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// Leave the line with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay manifests`.
#[derive(Args, Clone, Debug, Default)]
pub struct ManifestsArgs {
    /// Print the verdicts as data
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// Leave the line with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay resources`.
#[derive(Args, Clone, Debug, Default)]
pub struct ResourcesArgs {
    /// Print as data
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// Draw the NUMA nodes with their sockets, cores, CPUs, memory and devices
    #[arg(long, conflicts_with_all = ["output", "no_headers"])]
    pub numa: bool,
    /// Leave the line with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay stats`.
#[derive(Args, Clone, Debug, Default)]
pub struct StatsArgs {
    /// Only these pods, with their containers: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub names: Vec<String>,
    /// Only pods of this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Show each container below its pod; so it is where pods are named
    #[arg(long)]
    pub containers: bool,
    /// What pods, and containers within a pod, are sorted by; numbers go from the largest down
    #[arg(long, value_enum, default_value_t)]
    pub sort: StatsOrder,
    /// Print as data: what /stats/summary says of them
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// Leave the lines with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay top`.
#[derive(Args, Clone, Debug, Default)]
pub struct TopArgs {
    /// Only pods of this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// What pods are sorted by at first; numbers go from the largest down
    #[arg(long, value_enum, default_value = "cpu")]
    pub sort: StatsOrder,
    /// Seconds between two looks; the node itself measures every ten
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub interval: u64,
    /// Print everything once and end, as it is where there is no terminal
    #[arg(long)]
    pub once: bool,
    /// With --once: show each container below its pod
    #[arg(long)]
    pub containers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay metrics`.
#[derive(Clone, Debug, Subcommand)]
pub enum MetricsCommand {
    /// Show how many series each family has, and how many bytes they take in an answer
    Cost(CostArgs),
}

/// `mainstay metrics cost`.
#[derive(Args, Clone, Debug, Default)]
pub struct CostArgs {
    /// Only this endpoint, such as /metrics/cadvisor; may be given more than once [default: all that are of today]
    #[arg(long = "path", value_name = "PATH")]
    pub paths: Vec<String>,
    /// What families are sorted by; numbers go from the largest down
    #[arg(long, value_enum, default_value_t)]
    pub sort: CostOrder,
    /// Print as data
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// Leave the line with the column names out
    #[arg(long)]
    pub no_headers: bool,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay node`.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeArgs {
    /// Print as data
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay config`.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// How to print [default: yaml]
    #[arg(short, long, value_enum)]
    pub output: Option<StructuredFormat>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `mainstay api`.
#[derive(Args, Clone, Debug, Default)]
pub struct ApiArgs {
    /// The path with its query, such as '/pods?watch=1'
    pub path: Option<String>,
    /// How to reach mainstay
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// How a list of pods is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// A table
    #[default]
    Table,
    /// A table with addresses and node
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// pod/NAME, one in a line
    Name,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StructuredFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// What `mainstay stats` sorts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StatsOrder {
    /// Namespace and name
    #[default]
    Name,
    /// CPU
    Cpu,
    /// Memory
    Memory,
    /// What was read from and written to devices
    Io,
    /// What was received and sent
    Network,
    /// Room on disk
    Disk,
}

/// What `mainstay metrics cost` sorts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CostOrder {
    /// Bytes
    #[default]
    Bytes,
    /// Series
    Series,
    /// The family's name
    Name,
}
