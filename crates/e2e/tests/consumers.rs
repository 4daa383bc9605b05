//! Those who read a node's numbers: a real Prometheus with the rules of `contrib/`, promtool, and the fields that the collectors
//! of OpenTelemetry and Datadog look for.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use mainstay_e2e::{
    CgroupFiles, counts_disks,
    seen::{self, PATIENCE, manifest, pods, shell},
};
use mainstay_testkit::{
    Containerd, Flavor, Http, Node, NodeBuilder, free_address, wait_until, workspace_root,
};
use serde_json::{Value, json};

/// Readings come every ten seconds, and rates need two; scrapes and rules come every second here.
const ROUNDS: Duration = Duration::from_secs(300);
const TOKEN: &str = "monitor";
/// Every endpoint of metrics.
const ENDPOINTS: [&str; 6] = [
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/metrics/resource/v1alpha1",
    "/metrics/probes",
    "/metrics/slis",
];

/// What promtool finds fault with and upstream's kubelet has under the same name, or the seed's document of PodInfo.
const UPSTREAMS: &[&str] = &[
    "cadvisor_version_info",
    "container_fs_inodes_total",
    "container_memory_failcnt",
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_container_aligned_compute_resources_count",
    "kubelet_container_aligned_compute_resources_failure_count",
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "kubelet_evented_pleg_connection_error_count",
    "kubelet_evented_pleg_connection_success_count",
    "kubelet_evictions",
    "kubelet_pleg_discard_events",
    "kubelet_pod_resources_endpoint_errors_get",
    "kubelet_pod_resources_endpoint_errors_get_allocatable",
    "kubelet_pod_resources_endpoint_errors_list",
    "kubelet_pod_resources_endpoint_requests_get",
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "kubelet_pod_resources_endpoint_requests_list",
    "kubelet_preemptions",
    "kubelet_server_expiration_renew_errors",
    "kubelet_topology_manager_admission_duration_ms",
    "pod_info_endpoint_errors_get",
    "pod_info_endpoint_requests_get",
    "pod_info_endpoint_requests_list",
];

/// A node whose metrics `monitor` may read, and pods that have something to tell of everything.
fn node(containerd: &Containerd) -> Result<Node> {
    node_with(containerd, Node::builder())
}

fn node_with(containerd: &Containerd, builder: NodeBuilder) -> Result<Node> {
    let mut node = builder.containerd(containerd).prepare()?;
    let access = format!(
        "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: monitor, tokenSHA256: {}}}]\n\
         rules: [{{users: [monitor], verbs: [get], subresources: [metrics, stats]}}]\n",
        sha256(TOKEN)?
    );
    fs::write(node.root().join("access.yaml"), access)?;
    node.start_again()?;
    Ok(node)
}

fn sha256(text: &str) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("sha256sum")?;
    child.stdin.take().context("no stdin")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    text.split(' ').next().map(str::to_owned).context("no hash")
}

/// One that spins within a limit, one whose readiness probe fails and whose other one does not.
fn busy() -> String {
    let mut spins = shell("spins", "trap 'exit 0' TERM; while :; do :; done");
    spins["resources"] = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    spins["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    // What is read and written is told of where something was.
    let writes = "trap 'exit 0' TERM; while :; do dd if=/dev/zero of=/written bs=4096 count=16 oflag=direct; sleep 1; done";
    let mut probed = shell("probed", writes);
    probed["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let command =
        |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1, "timeoutSeconds": 30});
    probed["readinessProbe"] = command("false");
    probed["livenessProbe"] = command("true");
    let volumes = json!([{"name": "scratch", "emptyDir": {}}]);
    manifest("busy", json!({ "containers": [spins, probed], "volumes": volumes }))
}

/// Puts it in place and waits until both containers run; ready it never is.
fn run_busy(node: &Node) -> Result<()> {
    node.write_manifest("busy.yaml", &busy())?;
    wait_until(PATIENCE, "both containers to run", || {
        let pods = pods(node).map_err(|error| format!("{error:#}"))?;
        let pod = pods.iter().find(|pod| pod.name() == "busy").ok_or("no such pod")?;
        let run = |name: &str| pod.container(name)["state"]["running"].is_object();
        if run("spins") && run("probed") { Ok(()) } else { Err(pod.0.to_string()) }
    })
}

/// Ends with its handle.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with the jobs and rules of `contrib/`, on this node.
    fn start(dir: &Path, node: &Node) -> Result<Self> {
        let dir = dir.join("prometheus");
        fs::create_dir_all(&dir)?;
        let contrib = workspace_root().join("contrib/prometheus");
        let text = fs::read_to_string(contrib.join("prometheus.yaml"))?;
        let jobs = text
            .replace("node1.example:10250", &node.secure().to_string())
            .replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s");
        ensure!(jobs.contains("evaluation_interval") && jobs.contains(&node.secure().to_string()), "{jobs}");
        fs::write(dir.join("prometheus.yaml"), jobs)?;
        fs::copy(contrib.join("mainstay.rules.yaml"), dir.join("mainstay.rules.yaml"))?;
        fs::write(dir.join("token"), TOKEN)?;
        fs::copy(node.root().join("pki/kubelet.crt"), dir.join("ca.crt"))?;
        promtool(&["check", "config", &dir.join("prometheus.yaml").display().to_string()], "")?;

        let address = free_address()?;
        let log = fs::File::create(dir.join("log"))?;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start prometheus; install Debian's package (scripts/setup.sh test does)")?;
        let this = Self { child, address };
        wait_until(ROUNDS, "Prometheus", || match Http::Tcp(address).get("/-/ready") {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        Ok(this)
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let answer = Http::Tcp(self.address).get(path).map_err(|error| format!("{error:#}"))?;
        let value: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        if value["status"] == "success" { Ok(value["data"].clone()) } else { Err(format!("{path}: {value}")) }
    }

    /// The series of a name, or of an expression without signs that a URL has no place for.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let data = self.get(&format!("/api/v1/query?query={expression}"))?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    fn rules(&self) -> Result<Vec<Value>, String> {
        let data = self.get("/api/v1/rules")?;
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        Ok(groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect())
    }

    /// Waits until an alert is pending or fires for something with these labels.
    fn alerts(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        wait_until(ROUNDS, name, || {
            let rules = self.rules()?;
            let rule = rules.iter().find(|rule| rule["name"] == name).ok_or("no such rule")?;
            let alerts = rule["alerts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let fits = |alert: &Value| labels.iter().all(|(name, value)| alert["labels"][name] == *value);
            if alerts.iter().any(fits) { Ok(()) } else { Err(rule.to_string()) }
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What promtool says; `Ok` also if it only finds fault.
fn promtool(args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run promtool; install Debian's prometheus (scripts/setup.sh test does)")?;
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // 3: it has read everything and found fault with some names.
    if !output.status.success() && output.status.code() != Some(3) {
        bail!("promtool {args:?}: {}: {text}", output.status);
    }
    Ok(text)
}

#[test]
fn a_real_prometheus_scrapes_everything_and_its_rules_evaluate() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node = node(&containerd)?;
    // The health checks that /metrics/slis tells of are counted when somebody looks.
    node.healthz()?;
    let prometheus = Prometheus::start(containerd.dir(), &node)?;
    wait_until(ROUNDS, "all targets to be scraped", || {
        let data = prometheus.get("/api/v1/targets?state=active")?;
        let targets = data["activeTargets"].as_array().cloned().unwrap_or_default();
        let good = |target: &&Value| target["health"] == "up" && target["lastError"] == "";
        if targets.len() == 5 && targets.iter().filter(good).count() == 5 {
            Ok(())
        } else {
            Err(data.to_string())
        }
    })?;
    // Starts that happen while somebody looks are what rates of starts are made of.
    run_busy(&node)?;
    for record in [
        "instance:node_cpu_usage:rate5m",
        "instance:node_cpu_usage:ratio_rate5m",
        "instance:node_memory_working_set:ratio",
        "instance_device:node_filesystem_usage:ratio",
        "namespace_pod_container:container_cpu_usage:rate5m",
        "namespace_pod_container:container_memory_working_set_bytes:sum",
        "namespace_pod_container:container_cpu_throttled:ratio_rate5m",
        "namespace_pod_container:container_memory_limit:ratio",
        "namespace_pod:container_network_receive_bytes:rate5m",
        "namespace_pod:container_network_transmit_bytes:rate5m",
        "namespace_pod_container:prober_probe_failed:ratio_rate5m",
        "instance:kubelet_pod_start_duration_seconds:p99_rate5m",
        "instance:kubelet_pleg_relist_duration_seconds:p99_rate5m",
        "instance:kubelet_http_requests_duration_seconds:p99_rate5m",
        "instance_operation:kubelet_runtime_operations_errors:ratio_rate5m",
        "kubernetes_healthcheck",
    ] {
        wait_until(ROUNDS, record, || {
            let found = prometheus.query(record)?;
            let is_number = |series: &Value| {
                let value = series["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
                value.is_some_and(|value| value.is_finite() && value >= 0.0)
            };
            if found.iter().any(is_number) { Ok(()) } else { Err(format!("{found:?}")) }
        })?;
    }
    // Of one that is held to a tenth of a core, that much, and that it is held back.
    wait_until(ROUNDS, "the rate of a load that is limited", || {
        let found = prometheus.query("namespace_pod_container:container_cpu_usage:rate5m")?;
        let series = found.iter().find(|series| series["metric"]["container"] == "spins");
        let value = series.and_then(|series| series["value"][1].as_str()?.parse::<f64>().ok());
        if value.is_some_and(|value| (0.05..=0.12).contains(&value)) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })?;
    let pod = format!("busy-{}", node.name());
    prometheus.alerts("ContainerThrottled", &[("pod", &pod), ("container", "spins")])?;
    prometheus.alerts("ContainerProbeFailing", &[("pod", &pod), ("probe_type", "Readiness")])?;

    wait_until(ROUNDS, "all rules to be evaluated", || {
        let rules = prometheus.rules()?;
        let bad: Vec<_> = rules.iter().filter(|rule| rule["health"] != "ok").collect();
        if rules.len() > 20 && bad.is_empty() { Ok(()) } else { Err(format!("{bad:?} of {}", rules.len())) }
    })?;
    let rules = prometheus.rules().map_err(anyhow::Error::msg)?;
    let quiet = [
        "MainstayDown",
        "MainstayUnhealthy",
        "MainstayReadingsOld",
        "MainstayRuntimeErrors",
        "MainstayEventsDropped",
    ];
    for name in quiet {
        let rule = rules.iter().find(|rule| rule["name"] == name).context(name)?;
        ensure!(rule["alerts"].as_array().is_some_and(Vec::is_empty), "{rule}");
    }
    // A node that is gone is noticed.
    node.kill9();
    prometheus.alerts("MainstayDown", &[("instance", &node.secure().to_string())])?;
    Ok(())
}

#[test]
fn promtool_finds_fault_only_with_names_of_upstream() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = node(&containerd)?;
    node.healthz()?;
    run_busy(&node)?;
    for (path, family) in ENDPOINTS.into_iter().zip([
        "kubelet_pod_start_duration_seconds_count",
        "container_cpu_cfs_periods_total",
        "pod_cpu_usage_seconds_total",
        "container_cpu_usage_seconds_total",
        "prober_probe_total",
        "kubernetes_healthchecks_total",
    ]) {
        // On the secure port, by the token.
        let text = wait_until(ROUNDS, family, || {
            let text = secure(&node, path).map_err(|error| format!("{error:#}"))?;
            if text.contains(family) { Ok(text) } else { Err(text) }
        })?;
        let said = promtool(&["check", "metrics"], &text)?;
        // Everything was a gauge there, upstream's counters too.
        let gauges =
            if path.ends_with("v1alpha1") { "non-counter metrics should not have" } else { "no such fault" };
        let faults: Vec<&str> = said
            .lines()
            .filter(|line| !line.is_empty() && !line.contains(gauges))
            .filter(|line| !UPSTREAMS.contains(&line.split(' ').next().unwrap_or_default()))
            .collect();
        ensure!(faults.is_empty(), "{path}: {faults:#?}");
    }
    // Those without the token learn nothing.
    let own = fs::read_to_string(node.root().join("pki/kubelet.crt"))?;
    let https = Http::Tls(node.secure(), mainstay_testkit::tls_client(&own, None)?);
    for path in ENDPOINTS {
        ensure!(https.get(path)?.status == 401, "{path}");
    }
    Ok(())
}

/// By the token, over TLS.
fn secure(node: &Node, path: &str) -> Result<String> {
    let own = fs::read_to_string(node.root().join("pki/kubelet.crt"))?;
    let https = Http::Tls(node.secure(), mainstay_testkit::tls_client(&own, None)?);
    let bearer = format!("Bearer {TOKEN}");
    let answer = https.request("GET", path, &[("Authorization", bearer.as_str())])?;
    ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
    Ok(answer.text())
}

/// What OpenTelemetry's kubeletstats receiver reads of `/stats/summary`: of the node, a pod, a container, a volume.
const OF_NODE: &[&str] = &[
    "nodeName",
    "startTime",
    "cpu/usageNanoCores",
    "cpu/usageCoreNanoSeconds",
    "memory/availableBytes",
    "memory/usageBytes",
    "memory/rssBytes",
    "memory/workingSetBytes",
    "memory/pageFaults",
    "memory/majorPageFaults",
    "fs/availableBytes",
    "fs/capacityBytes",
    "fs/usedBytes",
    "network/interfaces",
    "runtime/imageFs/availableBytes",
    "runtime/imageFs/capacityBytes",
    "runtime/imageFs/usedBytes",
    "rlimit/maxpid",
    "rlimit/curproc",
];
/// The same of each of these, where the kernel measures pressure.
const PRESSURES: &[&str] = &[
    "cpu/psi/full/total",
    "cpu/psi/full/avg10",
    "cpu/psi/some/total",
    "cpu/psi/some/avg10",
    "memory/psi/full/total",
    "memory/psi/full/avg10",
    "memory/psi/some/total",
    "memory/psi/some/avg10",
    "io/psi/full/total",
    "io/psi/full/avg10",
    "io/psi/some/total",
    "io/psi/some/avg10",
];
const OF_POD: &[&str] = &[
    "podRef/name",
    "podRef/namespace",
    "podRef/uid",
    "startTime",
    "cpu/usageNanoCores",
    "cpu/usageCoreNanoSeconds",
    "memory/availableBytes",
    "memory/usageBytes",
    "memory/rssBytes",
    "memory/workingSetBytes",
    "memory/pageFaults",
    "memory/majorPageFaults",
    "network/name",
    "network/rxBytes",
    "network/rxErrors",
    "network/txBytes",
    "network/txErrors",
    "network/interfaces",
    "ephemeral-storage/availableBytes",
    "ephemeral-storage/capacityBytes",
    "ephemeral-storage/usedBytes",
];
const OF_CONTAINER: &[&str] = &[
    "name",
    "startTime",
    "cpu/usageNanoCores",
    "cpu/usageCoreNanoSeconds",
    "memory/availableBytes",
    "memory/usageBytes",
    "memory/rssBytes",
    "memory/workingSetBytes",
    "memory/pageFaults",
    "memory/majorPageFaults",
    "rootfs/availableBytes",
    "rootfs/capacityBytes",
    "rootfs/usedBytes",
];
const OF_VOLUME: &[&str] =
    &["name", "availableBytes", "capacityBytes", "usedBytes", "inodes", "inodesFree", "inodesUsed"];

/// What Datadog's check reads of `/metrics/cadvisor` of each container (or sandbox, or the pod); all six labels are needed.
const DATADOG: &[&str] = &[
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_cpu_system_seconds_total",
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_fs_usage_bytes",
    "container_fs_limit_bytes",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
    "container_memory_cache",
    "container_memory_rss",
    "container_memory_swap",
    "container_spec_memory_limit_bytes",
    "container_spec_memory_swap_limit_bytes",
    "container_network_receive_bytes_total",
    "container_network_transmit_bytes_total",
    "container_network_receive_errors_total",
    "container_network_transmit_errors_total",
    "container_network_receive_packets_dropped_total",
    "container_network_transmit_packets_dropped_total",
];
/// The same, where the kernel counts it.
const DATADOG_DISKS: &[&str] = &["container_fs_reads_bytes_total", "container_fs_writes_bytes_total"];
/// What it reads of `/metrics`; what is Go's there is none of, and what is about the API server and about claims is looked at where those are
/// (`tests/metrics_server.rs`, `tests/claims.rs`).
const DATADOG_OWN: &[&str] = &[
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_evictions",
    "kubelet_pleg_discard_events",
    "kubelet_pleg_last_seen_seconds",
    "kubelet_pleg_relist_duration_seconds",
    "kubelet_pleg_relist_interval_seconds",
    "kubelet_pod_start_duration_seconds",
    "kubelet_pod_worker_duration_seconds",
    "kubelet_pod_worker_start_duration_seconds",
    "kubelet_runtime_operations_duration_seconds",
    "kubelet_runtime_operations_errors_total",
    "kubelet_runtime_operations_total",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_network_receive_bytes_total",
    "process_network_transmit_bytes_total",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "process_virtual_memory_max_bytes",
];
/// What it reads of the cgroups that the summary calls `runtime` and `kubelet`.
const OF_SYSTEM: &[&str] = &["memory/rssBytes", "memory/usageBytes", "cpu/usageNanoCores"];

fn missing(value: &Value, fields: &[&str]) -> Vec<String> {
    let is_there = |field: &&&str| {
        let found = value.pointer(&format!("/{field}"));
        !found.is_some_and(|found| found.is_number() || found.is_string() || found.is_array())
    };
    fields.iter().filter(is_there).map(|field| (*field).to_owned()).collect()
}

#[test]
fn the_fields_that_opentelemetry_and_datadog_read_are_there() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let base = containerd.instance().cgroup_name().to_owned();
    let systems = ["runtime", "agent"].map(|name| CgroupFiles::at(&[&format!("{base}-{name}")]).made());
    let found = fields_are_there(&containerd, &systems);
    // Its process is in one of them.
    drop(containerd);
    systems.iter().for_each(CgroupFiles::remove);
    found
}

fn fields_are_there(containerd: &Containerd, [runtime, own]: &[CgroupFiles; 2]) -> Result<()> {
    let runtime_pid = containerd.pid().context("no containerd")?;
    for dir in runtime.directories() {
        fs::write(dir.join("cgroup.procs"), runtime_pid.to_string())
            .with_context(|| dir.display().to_string())?;
    }
    let node = node_with(
        containerd,
        Node::builder()
            .config(json!({"kubeletCgroups": own.config_name()}).to_string())
            .args([format!("--runtime-cgroups={}", runtime.config_name())]),
    )?;
    run_busy(&node)?;
    let measures_pressure = Path::new("/sys/fs/cgroup/cpu.pressure").exists();
    wait_until(ROUNDS, "all fields of the summary", || {
        let text = secure(&node, "/stats/summary/").map_err(|error| format!("{error:#}"))?;
        let summary: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let with_pressures = |value: &Value, fields: &[&str]| {
            let mut absent = missing(value, fields);
            if measures_pressure {
                absent.extend(missing(value, PRESSURES));
            }
            absent
        };
        let mut absent = with_pressures(&summary["node"], OF_NODE);
        let pods = summary["pods"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == format!("busy-{}", node.name()));
        let pod = pod.ok_or_else(|| text.clone())?;
        absent.extend(with_pressures(pod, OF_POD).iter().map(|field| format!("pod {field}")));
        let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let spins = containers.iter().find(|container| container["name"] == "spins");
        absent.extend(
            with_pressures(spins.unwrap_or(&Value::Null), OF_CONTAINER)
                .iter()
                .map(|it| format!("container {it}")),
        );
        let volume = &pod["volume"][0];
        absent.extend(missing(volume, OF_VOLUME).iter().map(|field| format!("volume {field}")));
        // A container that has no status of the same name there, with an ID, is left out by OpenTelemetry's.
        let statuses = seen::pod(&node, "busy").map_err(|error| format!("{error:#}"))?;
        let nameless = containers.iter().filter_map(|container| container["name"].as_str());
        let nameless = nameless.filter(|name| statuses.container_id(name).is_empty());
        absent.extend(nameless.map(|name| format!("the status of {name}")));
        // What Datadog reads besides.
        let systems = summary["node"]["systemContainers"].as_array().map(Vec::as_slice).unwrap_or_default();
        for name in ["pods", "runtime", "kubelet"] {
            let system = systems.iter().find(|system| system["name"] == name).unwrap_or(&Value::Null);
            absent.extend(missing(system, OF_SYSTEM).iter().map(|field| format!("{name} {field}")));
        }
        if absent.is_empty() { Ok(()) } else { Err(format!("{absent:?} in {text}")) }
    })?;
    wait_until(ROUNDS, "Datadog's families", || {
        let text = secure(&node, "/metrics/cadvisor").map_err(|error| format!("{error:#}"))?;
        let labels = ["container=\"", "id=\"", "image=\"", "name=\"", "namespace=\"", "pod=\""];
        let is_there = |family: &&&str| {
            let start = format!("{family}{{");
            let mut lines = text.lines().filter(|line| line.starts_with(&start)).peekable();
            lines.peek().is_some() && lines.all(|line| labels.iter().all(|label| line.contains(label)))
        };
        let disks = if counts_disks() { DATADOG_DISKS } else { &[] };
        let absent: Vec<_> = DATADOG.iter().chain(disks).filter(|family| !is_there(family)).collect();
        if absent.is_empty() { Ok(()) } else { Err(format!("{absent:?}")) }
    })?;
    wait_until(ROUNDS, "Datadog's own families", || {
        let text = secure(&node, "/metrics").map_err(|error| format!("{error:#}"))?;
        let absent: Vec<_> =
            DATADOG_OWN.iter().filter(|family| !text.contains(&format!("# TYPE {family} "))).collect();
        if absent.is_empty() { Ok(()) } else { Err(format!("{absent:?}")) }
    })?;
    // It asks for /metrics/probes by HEAD and minds nothing but a 404.
    ensure!(node.http().request("HEAD", "/metrics/probes", &[])?.status != 404);
    wait_until(ROUNDS, "results of probes", || {
        let text = secure(&node, "/metrics/probes").map_err(|error| format!("{error:#}"))?;
        let kinds = ["result=\"successful\"", "result=\"failed\"", "probe_type=\"Liveness\""];
        if kinds.iter().all(|kind| text.contains(kind)) { Ok(()) } else { Err(text) }
    })
}
