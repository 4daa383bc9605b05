//! `mainstay run`: a node on one machine.

use std::path::{Path, PathBuf};

use mainstay_config::{Loaded, Problem, load as load_config, parse_kubelet_flags};

/// The flags of `mainstay run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Directory (or file) with pod manifests; ConfigMaps and Secrets in it are objects that pods may use
    #[arg(long, value_name = "PATH", default_value = "/etc/kubernetes/manifests")]
    manifests: PathBuf,
    /// Directory for everything mainstay keeps
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// The container runtime's CRI socket [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "unix://PATH")]
    runtime_endpoint: Option<String>,
    /// Directory for container logs [default: /var/log/pods, or `logs` below another --root-dir]
    #[arg(long, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// Cgroup under which pods' cgroups are made; one of its own, so that no other kubelet's are touched [default: /mainstay]
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
    /// Name of the node, part of pods' names [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Serve what is only to be read (/pods, /node, /stats/, /metrics, /healthz) to everybody on this loopback port [default: no port]
    #[arg(long, value_name = "PORT")]
    read_only_port: Option<u16>,
    /// Serve the whole API with TLS on this port of every address (with --read-only-port: of loopback; `address` in --config
    /// names another), to users and rules in `access.yaml` below --root-dir [default: no port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Port of the health endpoint on loopback; 0 for none [default: 10248]
    #[arg(long, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// Group, by name or number, whose members may use the gRPC sockets (docs/grpc.md) [default: root alone]
    #[arg(long, value_name = "GROUP")]
    local_api_group: Option<String>,
    /// Mode of the gRPC sockets' directories, in octal [default: 0750]
    #[arg(long, value_name = "MODE")]
    local_api_mode: Option<String>,
    /// Serve only these families of metrics: names, or beginnings such as 'container_fs_*', with commas [default: all]
    #[arg(long, value_name = "FAMILIES")]
    metrics_allow: Option<String>,
    /// Serve none of these families of metrics, also if they are allowed [default: none]
    #[arg(long, value_name = "FAMILIES")]
    metrics_deny: Option<String>,
    /// Serve metrics also by the names and labels that old documents have
    #[arg(long)]
    metrics_old_names: bool,
    /// A KubeletConfiguration for everything else
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only to say where it belongs.
    #[arg(long, hide = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How much is logged: 0 for operators, 4 for debugging, 6 for every step
    #[arg(short, long, value_name = "N")]
    v: Option<u32>,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// The configuration these flags mean. They are upstream's flags in friendlier words, so they are checked as those are.
pub(crate) fn load(args: &RunArgs) -> Result<Loaded, Vec<Problem>> {
    if args.kubeconfig.is_some() {
        let remedy = "start `mainstay kubelet --kubeconfig=FILE` instead";
        return Err(vec![Problem::new(
            "--kubeconfig",
            "is for a node of a cluster, and `mainstay run` runs one alone",
            remedy,
        )]);
    }
    let mut flags: Vec<String> = Vec::new();
    let mut flag = |name: &str, value: String| flags.push(format!("--{name}={value}"));
    flag("root-dir", args.root_dir.display().to_string());
    flag("pod-manifest-path", absolute(&args.manifests));
    if let Some(endpoint) = &args.runtime_endpoint {
        flag("container-runtime-endpoint", endpoint.clone());
    }
    if let Some(root) = &args.cgroup_root {
        flag("cgroup-root", root.clone());
    }
    if let Some(name) = &args.node_name {
        flag("hostname-override", name.clone());
    }
    if let Some(port) = args.read_only_port {
        flag("read-only-port", port.to_string());
    }
    if let Some(port) = args.port {
        flag("port", port.to_string());
    }
    if let Some(port) = args.healthz_port {
        flag("healthz-port", port.to_string());
    }
    if let Some(group) = &args.local_api_group {
        flag("local-api-group", group.clone());
    }
    if let Some(mode) = &args.local_api_mode {
        flag("local-api-mode", mode.clone());
    }
    if let Some(families) = &args.metrics_allow {
        flag("metrics-allow", families.clone());
    }
    if let Some(families) = &args.metrics_deny {
        flag("metrics-deny", families.clone());
    }
    if args.metrics_old_names {
        flag("metrics-old-names", "true".to_owned());
    }
    if let Some(config) = &args.config {
        flag("config", config.display().to_string());
    }
    if let Some(v) = args.v {
        flag("v", v.to_string());
    }
    if let Some(format) = &args.log_format {
        flag("logging-format", format.clone());
    }
    let mut loaded = load_config(&parse_kubelet_flags(flags)?)?;
    loaded.settings.root_dir = absolute(&args.root_dir);
    settle_pod_logs(&mut loaded, args.pod_logs_dir.as_deref());
    // Below `/` it would share `kubepods`, and its limits, with whatever kubelet the machine has.
    if !loaded.set.contains("cgroupRoot") {
        loaded.config.cgroup_root = "/mainstay".into();
    }
    // To everybody, but not to everybody's machine.
    if args.read_only_port.is_some() && !loaded.set.contains("address") {
        loaded.config.address = "127.0.0.1".into();
    }
    // On one's own machine the socket is enough, and the usual port may be another kubelet's.
    let asked = ["port", "enableServer"].iter().any(|field| loaded.set.contains(*field));
    loaded.config.enable_server &= asked;
    // These notices compare with upstream's start by flags, which this is not.
    loaded.flag_notices.clear();
    Ok(loaded)
}

/// Where logs go: where it is said, else below another root than the usual one.
pub(crate) fn settle_pod_logs(loaded: &mut Loaded, given: Option<&Path>) {
    let root = Path::new(&loaded.settings.root_dir);
    match given {
        Some(dir) => loaded.config.pod_logs_dir = absolute(dir),
        None if root != Path::new("/var/lib/kubelet") && loaded.config.pod_logs_dir == "/var/log/pods" => {
            loaded.config.pod_logs_dir = absolute(&root.join("logs"));
        }
        None => {}
    }
}

/// Paths are handed to the runtime, which has another working directory.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
