//! `mainstay doctor`: what of this machine is fit to run pods, and what to do about the rest.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs::{File, TryLockError},
    io::Read as _,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use mainstay_config::{HostFacts, Loaded, check_host, load, parse_kubelet_flags};
use mainstay_cri::Cri;
use mainstay_host::{CgroupMode, FilesystemUsage, Host, ResolvConf};

use crate::{cli, run};

/// The flags of `mainstay doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The KubeletConfiguration to go by [default: that of the node that runs on --root-dir, if one does]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The container runtime's CRI socket [default: as configured]
    #[arg(long, value_name = "unix://PATH")]
    runtime_endpoint: Option<String>,
    /// Directory for everything mainstay keeps
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
}

/// Long enough for a slow runtime, short enough for a person.
const DEADLINE: Duration = Duration::from_secs(5);
const LOW_DISK_PERCENT: u64 = 10;

/// How a finding is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Default)]
struct Report {
    text: String,
    failed: bool,
}

impl Report {
    fn add(&mut self, grade: Grade, subject: &str, words: impl std::fmt::Display) {
        let mark = match grade {
            Grade::Ok => "ok  ",
            Grade::Warn => "warn",
            Grade::Fail => "FAIL",
        };
        self.failed |= grade == Grade::Fail;
        // Writing to a String cannot fail.
        writeln!(self.text, "{mark}  {subject}: {words}").ok();
    }

    fn finish(self) -> ExitCode {
        let printed = cli::print(&self.text);
        if self.failed { ExitCode::FAILURE } else { printed }
    }
}

/// Looks at everything and prints a line each. Exit code 1 when something would keep pods from running.
pub(crate) fn main(args: &DoctorArgs) -> ExitCode {
    let mut report = Report::default();
    if args.config.is_none()
        && args.runtime_endpoint.is_none()
        && let Some((pid, loaded)) = running(&args.root_dir)
    {
        report.add(Grade::Ok, "configuration", format!("that of the running node (pid {pid})"));
        examine(&loaded, &mut report);
        return report.finish();
    }
    let mut flags = vec![format!("--root-dir={}", args.root_dir.display())];
    flags.extend(args.config.iter().map(|file| format!("--config={}", file.display())));
    flags.extend(
        args.runtime_endpoint.iter().map(|endpoint| format!("--container-runtime-endpoint={endpoint}")),
    );
    match parse_kubelet_flags(flags).and_then(|flags| load(&flags)) {
        Err(problems) => {
            problems.iter().for_each(|problem| report.add(Grade::Fail, "configuration", problem));
        }
        Ok(mut loaded) => {
            report.add(Grade::Ok, "configuration", "valid");
            run::settle_pod_logs(&mut loaded, None);
            examine(&loaded, &mut report);
        }
    }
    report.finish()
}

/// The node that runs on this root, by its own command line: nobody else knows what it was started with.
fn running(root: &Path) -> Option<(u32, Loaded)> {
    let mut lock = File::open(root.join("mainstay.lock")).ok()?;
    if !matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let mut text = String::new();
    (&mut lock).take(4096).read_to_string(&mut text).ok()?;
    let pid: u32 = text.strip_prefix("pid ")?.split(',').next()?.parse().ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0);
    let args = words.map(|word| OsString::from_vec(word.to_owned())).collect();
    // Its relative paths are from where it was started.
    std::env::set_current_dir(format!("/proc/{pid}/cwd")).ok()?;
    cli::configuration_of(args)?.ok().map(|loaded| (pid, loaded))
}

fn examine(loaded: &Loaded, report: &mut Report) {
    let host = Host::default();
    if rustix::process::geteuid().is_root() {
        report.add(Grade::Ok, "user", "root");
    } else {
        report.add(
            Grade::Fail,
            "user",
            "not root; mainstay makes cgroups and directories that only root may, so run it as root",
        );
    }
    match host.node_name(Some(loaded.settings.hostname_override.as_str()).filter(|name| !name.is_empty())) {
        Ok(name) => report.add(Grade::Ok, "node name", name),
        Err(error) => report.add(Grade::Fail, "node name", error),
    }
    match host.cgroup_mode() {
        Ok(mode) => {
            let words = match mode {
                CgroupMode::V2 => "v2",
                CgroupMode::V1 => "v1, which is deprecated in Kubernetes",
                CgroupMode::Hybrid => {
                    "v1 controllers beside an empty v2 tree; v1 is deprecated in Kubernetes"
                }
            };
            let refused =
                !check_host(&loaded.config, HostFacts { cgroup_v2: mode == CgroupMode::V2 }).is_empty();
            match (mode, refused) {
                (CgroupMode::V2, _) => report.add(Grade::Ok, "cgroups", words),
                (_, false) => report.add(Grade::Warn, "cgroups", format!("{words}; move to v2 when you can")),
                (_, true) => report.add(
                    Grade::Warn,
                    "cgroups",
                    format!(
                        "{words}; works with `mainstay run`, `mainstay kubelet` needs failCgroupV1: false"
                    ),
                ),
            }
        }
        Err(error) => report.add(Grade::Fail, "cgroups", error),
    }
    match ResolvConf::read(std::path::Path::new(&loaded.config.resolv_conf)) {
        Ok(conf) if conf.nameservers.is_empty() => {
            report.add(
                Grade::Warn,
                "DNS",
                format!("{} names no server; pods cannot look names up", loaded.config.resolv_conf),
            );
        }
        Ok(conf) => report.add(Grade::Ok, "DNS", conf.nameservers.join(", ")),
        Err(error) => report.add(Grade::Warn, "DNS", error),
    }
    for (subject, path) in
        [("disk of root", &loaded.settings.root_dir), ("disk of logs", &loaded.config.pod_logs_dir)]
    {
        disk(subject, std::path::Path::new(path), report);
    }
    if !loaded.config.static_pod_path.is_empty() {
        let path = std::path::Path::new(&loaded.config.static_pod_path);
        match path.metadata() {
            Ok(_) => report.add(Grade::Ok, "manifests", path.display()),
            Err(error) => report.add(
                Grade::Warn,
                "manifests",
                format!("{}: {error}; it is watched for and may come later", path.display()),
            ),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(container_runtime(loaded, report)),
        Err(error) => report.add(Grade::Fail, "runtime", error),
    }
}

/// The nearest directory above that exists tells how much room there will be.
fn disk(subject: &str, path: &std::path::Path, report: &mut Report) {
    let Some(existing) = path.ancestors().find(|path| path.exists()) else { return };
    match FilesystemUsage::of(existing) {
        Ok(usage) => {
            let percent =
                usage.available_bytes.saturating_mul(100).checked_div(usage.capacity_bytes).unwrap_or(100);
            let words =
                format!("{percent} % of {} GiB free at {}", usage.capacity_bytes >> 30, existing.display());
            if percent < LOW_DISK_PERCENT {
                report.add(
                    Grade::Warn,
                    subject,
                    format!("{words}; make room, or images and logs will soon fail to be written"),
                );
            } else {
                report.add(Grade::Ok, subject, words);
            }
        }
        Err(error) => report.add(Grade::Fail, subject, format!("{}: {error}", existing.display())),
    }
}

async fn container_runtime(loaded: &Loaded, report: &mut Report) {
    let config = &loaded.config;
    let cri = match Cri::new(
        &config.container_runtime_endpoint,
        Some(config.image_service_endpoint.as_str()),
        DEADLINE,
    ) {
        Ok(cri) => cri,
        Err(error) => return report.add(Grade::Fail, "runtime", error),
    };
    match cri.version().await {
        Ok(version) => report.add(
            Grade::Ok,
            "runtime",
            format!(
                "{} {} (CRI {})",
                version.runtime_name, version.runtime_version, version.runtime_api_version
            ),
        ),
        Err(error) => return report.add(Grade::Fail, "runtime", error),
    }
    match cri.status().await {
        Ok(response) => {
            for condition in response.status.map(|status| status.conditions).unwrap_or_default() {
                let subject =
                    if condition.r#type == "NetworkReady" { "pod network" } else { "runtime condition" };
                if condition.status {
                    report.add(Grade::Ok, subject, condition.r#type);
                } else {
                    let remedy = if condition.r#type == "NetworkReady" {
                        "; install CNI plugins and put a configuration into the runtime's CNI directory (pods with hostNetwork work without)"
                    } else {
                        "; see the runtime's own log"
                    };
                    report.add(
                        Grade::Fail,
                        subject,
                        format!("{}: {}{remedy}", condition.reason, condition.message),
                    );
                }
            }
        }
        Err(error) => report.add(Grade::Fail, "runtime", error),
    }
    match cri.runtime_config().await {
        Ok(answer) => {
            let driver = answer.linux.map(|linux| linux.cgroup_driver());
            report.add(Grade::Ok, "cgroup driver", format!("the runtime says {driver:?}"));
        }
        Err(error) if error.is_unimplemented() => report.add(
            Grade::Ok,
            "cgroup driver",
            format!("{} (the runtime cannot tell; it must be configured the same)", config.cgroup_driver),
        ),
        Err(error) => report.add(Grade::Warn, "cgroup driver", error),
    }
}
