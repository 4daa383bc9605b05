//! Traces at a real OpenTelemetry collector: how a pod was started, who asked what of the node, and what the runtime was told.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{OBEDIENT, PATIENCE, manifest, pods, server, shell};
use mainstay_testkit::{Containerd, Flavor, Image, Node, Registry, free_address, tool, wait_until};
use serde_json::{Value, json};

/// Spans are sent every five seconds.
const ROUNDS: Duration = Duration::from_secs(180);
/// Of a caller who wants to have everything recorded that it causes.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Ends with its handle. What it takes is in its file.
struct Collector {
    child: Option<Child>,
    dir: PathBuf,
    address: SocketAddr,
}

impl Collector {
    fn start(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let mut this = Self { child: None, address: free_address()?, dir };
        this.start_again()?;
        Ok(this)
    }

    fn start_again(&mut self) -> Result<()> {
        let config = json!({
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.address.to_string()}}}},
            "exporters": {"file": {"path": self.dir.join("spans.json"), "append": true}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        });
        fs::write(self.dir.join("config.json"), config.to_string())?;
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log"))?;
        let child = Command::new(tool("otel-collector")?)
            .arg(format!("--config=file:{}", self.dir.join("config.json").display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("otel-collector")?;
        self.child = Some(child);
        wait_until(PATIENCE, "the collector to listen", || {
            std::net::TcpStream::connect(self.address).map(drop).map_err(|error| {
                format!("{error}: {}", fs::read_to_string(self.dir.join("log")).unwrap_or_default())
            })
        })
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to end.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Every span that it has taken.
    fn spans(&self) -> Vec<Span> {
        let text = fs::read_to_string(self.dir.join("spans.json")).unwrap_or_default();
        // The last line may not be whole yet.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        lines
            .flat_map(|line| list(&line, "resourceSpans"))
            .flat_map(|resource| {
                let about = attributes(&resource["resource"]);
                list(&resource, "scopeSpans").into_iter().map(move |scope| (about.clone(), scope))
            })
            .flat_map(|(about, scope)| {
                let spans = list(&scope, "spans").into_iter();
                spans.map(move |span| Span { resource: about.clone(), scope: scope["scope"].clone(), span })
            })
            .collect()
    }

    /// Waits for a span.
    fn wait(&self, what: &str, is_it: impl Fn(&Span) -> bool) -> Result<Span> {
        wait_until(ROUNDS, what, || {
            let spans = self.spans();
            let names: Vec<_> = spans.iter().map(|span| (span.name(), span.trace())).collect();
            let names = format!("{names:?}");
            spans.into_iter().find(|span| is_it(span)).ok_or(names)
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Clone, Debug)]
struct Span {
    resource: Value,
    scope: Value,
    span: Value,
}

impl Span {
    fn text(&self, key: &str) -> &str {
        self.span[key].as_str().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.text("name")
    }

    fn trace(&self) -> &str {
        self.text("traceId")
    }

    fn attribute(&self, key: &str) -> Value {
        attributes(&self.span)[key].clone()
    }

    fn is_of(&self, parent: &Self) -> bool {
        self.text("parentSpanId") == parent.text("spanId") && self.trace() == parent.trace()
    }

    fn times(&self) -> Option<(u64, u64)> {
        Some((self.text("startTimeUnixNano").parse().ok()?, self.text("endTimeUnixNano").parse().ok()?))
    }
}

/// As an object.
fn attributes(value: &Value) -> Value {
    let pairs = value["attributes"].as_array().cloned().unwrap_or_default();
    let pairs = pairs.iter().filter_map(|pair| {
        let value = pair["value"].as_object()?.values().next()?;
        Some((pair["key"].as_str()?.to_owned(), value.clone()))
    });
    Value::Object(pairs.collect())
}

fn tracing(address: SocketAddr, per_million: u32) -> String {
    format!("tracing: {{endpoint: '{address}', samplingRatePerMillion: {per_million}}}")
}

/// Waits until a count on /metrics is as it should be.
fn wait_for_count(node: &Node, result: &str, is_right: impl Fn(u64) -> bool) -> Result<u64> {
    let series = format!("mainstay_trace_spans_total{{result=\"{result}\"}} ");
    wait_until(ROUNDS, &series, || {
        let text = node.get("/metrics").map_err(|error| format!("{error:#}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(&series)).ok_or("no such series")?;
        let count = line.parse().map_err(|error| format!("{line}: {error}"))?;
        if is_right(count) { Ok(count) } else { Err(line.to_owned()) }
    })
}

fn wait_for_running(node: &Node, name: &str) -> Result<()> {
    wait_until(PATIENCE, "the pod to run", || {
        let pods = pods(node).map_err(|error| format!("{error:#}"))?;
        let pod = pods.iter().find(|pod| pod.name() == name).ok_or("no such pod")?;
        if pod.0["status"]["phase"] == "Running" { Ok(()) } else { Err(pod.0["status"].to_string()) }
    })
}

#[test]
fn the_start_of_a_pod_is_one_trace_that_the_runtime_goes_on_with() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let collector = Collector::start(dir.path().join("collector"))?;
    let containerd = Containerd::builder(Flavor::Built24)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_SERVICE_NAME", "containerd")
        .start()?;
    let node =
        Node::builder().containerd(&containerd).config(tracing(collector.address, 1_000_000)).start()?;
    let registry = Registry::start()?;
    registry.serve_as("registry.test", &containerd)?;
    registry.push(&containerd, &Image::named("docker.io/local/traced:1"), "team/traced:1")?;
    let mut main = shell("main", OBEDIENT);
    main["image"] = json!("registry.test/team/traced:1");
    main["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let spec = json!({"containers": [main], "volumes": [{"name": "scratch", "emptyDir": {}}]});
    node.write_manifest("traced.yaml", &manifest("traced", spec))?;

    let start = collector.wait("the start of the pod", |span| span.name() == "startPod")?;
    assert_eq!(start.text("parentSpanId"), "");
    assert_eq!(start.attribute("k8s.pod.name"), "traced-node");
    assert_eq!(start.attribute("k8s.namespace.name"), "default");
    assert_eq!(start.resource["service.name"], "kubelet");
    assert_eq!(start.resource["host.name"], "node");
    assert_eq!(start.scope["name"], "k8s.io/kubernetes/pkg/kubelet");
    let uid = start.attribute("k8s.pod.uid");
    // By name, each with the span that it is below.
    let below = |name: &str, parent: &Span| {
        collector.wait(name, |span| {
            span.name() == name && span.is_of(parent) && span.resource["service.name"] == "kubelet"
        })
    };
    below("admission", &start)?;
    let sync = below("syncPod", &start)?;
    assert_eq!(
        (sync.attribute("k8s.pod.uid"), sync.attribute("k8s.pod.update_type")),
        (uid, json!("create"))
    );
    below("volumes", &sync)?;
    let sandbox = below("sandbox", &sync)?;
    let run = below("runtime.v1.RuntimeService/RunPodSandbox", &sandbox)?;
    assert_eq!(run.attribute("rpc.method"), "RunPodSandbox");
    assert_eq!(run.attribute("rpc.grpc.status_code"), "0");
    let container = below("container", &sync)?;
    assert_eq!(container.attribute("k8s.container.name"), "main");
    let pull = below("image pull", &container)?;
    assert_eq!(pull.attribute("container.image.name"), "registry.test/team/traced:1");
    below("runtime.v1.ImageService/PullImage", &pull)?;
    below("runtime.v1.RuntimeService/CreateContainer", &container)?;
    let started = below("runtime.v1.RuntimeService/StartContainer", &container)?;
    // The runtime's own span of the call is below ours.
    collector.wait("containerd's part", |span| {
        span.resource["service.name"] == "containerd" && span.is_of(&run)
    })?;
    // In the order of time, until the pod runs.
    let (begun, ended) = start.times().context("no times")?;
    let (_, last) = started.times().context("no times")?;
    let (first, _) = sandbox.times().context("no times")?;
    ensure!(begun <= first && first <= last && last <= ended, "{start:?} {sandbox:?} {started:?}");
    Ok(())
}

#[test]
fn only_what_a_caller_wants_is_recorded_with_a_ratio_of_zero() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let collector = Collector::start(dir.path().join("collector"))?;
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node = Node::builder().containerd(&containerd).config(tracing(collector.address, 0)).start()?;
    node.write_manifest("pod.yaml", &server("quiet"))?;
    wait_for_running(&node, "quiet")?;
    for flags in ["00", "01"] {
        let parent = format!("00-{TRACE}-{CALLER}-{flags}");
        let headers = [("traceparent", parent.as_str()), ("user-agent", "tester/1")];
        let answer = node.http().request("GET", &format!("/pods?asked={flags}"), &headers)?;
        ensure!(answer.status == 200, "{}", answer.text());
    }
    let request = collector.wait("the request", |span| span.trace() == TRACE)?;
    assert_eq!((request.name(), request.text("parentSpanId")), ("/pods", CALLER));
    assert_eq!(request.attribute("http.request.method"), "GET");
    assert_eq!(request.attribute("http.response.status_code"), "200");
    assert_eq!(request.attribute("user_agent.original"), "tester/1");
    wait_for_count(&node, "sent", |count| count == 1)?;
    // What is left is sent at the end; so whatever there was is there.
    node.sigterm()?;
    let names: Vec<_> =
        collector.spans().iter().map(|span| (span.name().to_owned(), span.trace().to_owned())).collect();
    assert_eq!(names, [("/pods".to_owned(), TRACE.to_owned())]);
    Ok(())
}

#[test]
fn a_collector_that_is_away_holds_up_nothing_and_gets_the_rest_when_it_is_back() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut collector = Collector::start(dir.path().join("collector"))?;
    collector.stop();
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node =
        Node::builder().containerd(&containerd).config(tracing(collector.address, 1_000_000)).start()?;
    node.write_manifest("pod.yaml", &server("early"))?;
    wait_for_running(&node, "early")?;
    // More than may wait.
    for _ in 0..2100 {
        node.get("/healthz")?;
    }
    wait_for_count(&node, "dropped", |count| count > 0)?;
    collector.start_again()?;
    wait_for_count(&node, "sent", |count| count > 0)?;
    node.write_manifest("late.yaml", &server("late"))?;
    collector.wait("the start of a later pod", |span| {
        span.name() == "startPod" && span.attribute("k8s.pod.name") == "late-node"
    })?;
    // What ended last is sent before mainstay is gone.
    node.remove_manifest("late.yaml")?;
    let parent = format!("00-{TRACE}-{CALLER}-01");
    node.http().request("GET", "/pods", &[("traceparent", parent.as_str())])?;
    node.sigterm()?;
    collector.wait("the last request", |span| span.trace() == TRACE)?;
    Ok(())
}
