//! `mainstay run`: a node on one machine.

use std::path::PathBuf;

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
    /// Cgroup under which pods' cgroups are made [default: /]
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
    /// Name of the node, part of pods' names [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Serve /pods and /healthz to everybody on this loopback port
    #[arg(long, value_name = "PORT")]
    read_only_port: Option<u16>,
    /// Port of the health endpoint on loopback; 0 for none [default: 10248]
    #[arg(long, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// A KubeletConfiguration for everything else
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How much is logged: 0 for operators, 4 for debugging, 6 for every step
    #[arg(short, long, value_name = "N")]
    v: Option<u32>,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// The configuration these flags mean. They are upstream's flags in friendlier words, so they are checked as those are.
pub(crate) fn load(args: &RunArgs) -> Result<Loaded, Vec<Problem>> {
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
        flag("address", "127.0.0.1".into());
    }
    if let Some(port) = args.healthz_port {
        flag("healthz-port", port.to_string());
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
    let other_root = args.root_dir != *"/var/lib/kubelet";
    match &args.pod_logs_dir {
        Some(dir) => loaded.config.pod_logs_dir = absolute(dir),
        None if other_root && loaded.config.pod_logs_dir == "/var/log/pods" => {
            loaded.config.pod_logs_dir = absolute(&args.root_dir.join("logs"));
        }
        None => {}
    }
    loaded.settings.root_dir = absolute(&args.root_dir);
    // These notices compare with upstream's start by flags, which this is not.
    loaded.notices.clear();
    Ok(loaded)
}

/// Paths are handed to the runtime, which has another working directory.
fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
