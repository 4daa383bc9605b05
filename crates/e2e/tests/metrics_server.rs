//! The real metrics-server, as a Deployment on the node that it reads, feeds `kubectl top` and an autoscaler.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{fs, io::Write as _, process::Stdio, time::Duration};

use mainstay_e2e::seen::shell;
use mainstay_testkit::{Containerd, ControlPlane, Flavor, Image, Node, tool, wait_until};
use serde_json::{Value, json};

/// It asks nodes every twelve seconds here, has to see a pod twice, and the autoscaler asks it every few seconds.
const ROUNDS: Duration = Duration::from_secs(420);
const IMAGE: &str = "docker.io/local/metrics-server:0.9.0";

struct Cluster {
    node: Node,
    plane: ControlPlane,
}

impl Cluster {
    /// Both listen on the bridge of the pods, where metrics-server reaches them.
    fn start(containerd: &Containerd) -> Self {
        containerd.make_bridge().unwrap();
        let address = containerd.gateway();
        let plane = ControlPlane::start_whole_on(containerd.dir().join("cluster"), address).unwrap();
        let clients = containerd.dir().join("clients.crt");
        fs::write(&clients, &plane.authority().pem).unwrap();
        let kubeconfig = plane.node_kubeconfig("node").unwrap();
        let node = Node::builder()
            .containerd(containerd)
            .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", clients.display()))
            .config(format!("{{address: {address}}}"))
            .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={address}")])
            .start()
            .unwrap();
        Self { node, plane }
    }

    fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.plane.kubectl(args).unwrap().stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("kubectl {args:?}: {}{}", text(&output.stdout), text(&output.stderr)))
        }
    }

    /// Applies objects as soon as an API server that is new itself can say what such objects are like.
    fn apply(&self, items: Value) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        wait_until(ROUNDS, "kubectl apply", || {
            let mut kubectl = self.plane.kubectl(&["apply", "-f", "-"]).unwrap();
            let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(list.as_bytes()).ok();
            let status = child.wait().unwrap();
            if status.success() { Ok(()) } else { Err(format!("{status}")) }
        })
        .unwrap();
    }
}

/// What metrics-server's own manifests have, for an image that is there and an API server that pods reach without kube-proxy.
fn metrics_server(cluster: &Cluster) -> Value {
    let meta = |name: &str| json!({ "name": name, "namespace": "kube-system", "labels": { "k8s-app": "metrics-server" } });
    let subject = json!([{ "kind": "ServiceAccount", "name": "metrics-server", "namespace": "kube-system" }]);
    let rbac = "rbac.authorization.k8s.io";
    let version = format!("{rbac}/v1");
    let role = |kind: &str, name: &str| json!({ "apiGroup": rbac, "kind": kind, "name": name });
    let address = cluster.plane.address();
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "https", "scheme": "HTTPS" }, "periodSeconds": 5, "timeoutSeconds": 30 });
    json!([
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("metrics-server") },
        {
            "apiVersion": version, "kind": "ClusterRole", "metadata": { "name": "system:metrics-server" },
            "rules": [
                { "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] },
                { "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"] },
            ],
        },
        {
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": "system:metrics-server" },
            "roleRef": role("ClusterRole", "system:metrics-server"), "subjects": subject,
        },
        {
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": "metrics-server:system:auth-delegator" },
            "roleRef": role("ClusterRole", "system:auth-delegator"), "subjects": subject,
        },
        {
            "apiVersion": version, "kind": "RoleBinding", "metadata": meta("metrics-server-auth-reader"),
            "roleRef": role("Role", "extension-apiserver-authentication-reader"), "subjects": subject,
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": meta("metrics-server"),
            "spec": {
                "selector": { "k8s-app": "metrics-server" },
                "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": "https" }],
            },
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": "v1beta1.metrics.k8s.io" },
            "spec": {
                "service": { "name": "metrics-server", "namespace": "kube-system" },
                "group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        },
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("metrics-server"),
            "spec": {
                "selector": { "matchLabels": { "k8s-app": "metrics-server" } },
                "template": {
                    "metadata": { "labels": { "k8s-app": "metrics-server" } },
                    "spec": {
                        "serviceAccountName": "metrics-server",
                        "volumes": [{ "name": "tmp", "emptyDir": {} }],
                        "containers": [{
                            "name": "metrics-server", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                            "command": ["/metrics-server"],
                            "args": [
                                "--cert-dir=/tmp",
                                "--secure-port=10250",
                                "--kubelet-preferred-address-types=InternalIP",
                                "--kubelet-use-node-status-port",
                                // The node's certificate is of its own making.
                                "--kubelet-insecure-tls",
                                "--metric-resolution=12s",
                            ],
                            "env": [
                                { "name": "KUBERNETES_SERVICE_HOST", "value": address.ip().to_string() },
                                { "name": "KUBERNETES_SERVICE_PORT", "value": address.port().to_string() },
                            ],
                            "ports": [{ "name": "https", "containerPort": 10250 }],
                            "readinessProbe": probe("/readyz"),
                            "livenessProbe": probe("/livez"),
                            "securityContext": {
                                "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 1000,
                                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                            },
                            "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
                        }],
                    },
                },
            },
        },
    ])
}

/// Two tenths of a core at most: it is held to that. On a machine that is busy it has less, but far more than what it asks for.
fn burner() -> Value {
    let mut container = shell("burns", "trap 'exit 0' TERM; while :; do :; done");
    container["resources"] =
        json!({ "requests": { "cpu": "20m" }, "limits": { "cpu": "200m", "memory": "32Mi" } });
    json!([
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "burner" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": "burner" } },
                "template": {
                    "metadata": { "labels": { "app": "burner" } },
                    "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
                },
            },
        },
        {
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "burner" },
            "spec": {
                "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "burner" },
                "minReplicas": 1, "maxReplicas": 2,
                "metrics": [{
                    "type": "Resource",
                    "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } },
                }],
            },
        },
    ])
}

/// A number before its unit.
fn number(word: &str, unit: &str) -> Option<f64> {
    word.strip_suffix(unit)?.parse().ok()
}

#[test]
fn metrics_server_feeds_kubectl_top_and_an_autoscaler() {
    let image = Image::named(IMAGE).program("/metrics-server", &tool("metrics-server").unwrap()).unwrap();
    let containerd = Containerd::builder(Flavor::Debian16).image(image).start().unwrap();
    let cluster = Cluster::start(&containerd);
    cluster.apply(metrics_server(&cluster));
    cluster.apply(burner());
    let says = |what: &str, args: &[&str], fits: &dyn Fn(&str) -> bool| {
        let seen = wait_until(ROUNDS, what, || {
            let said = cluster.kubectl(args)?;
            if fits(&said) { Ok(()) } else { Err(said) }
        });
        if let Err(error) = seen {
            let logs =
                cluster.kubectl(&["logs", "-n", "kube-system", "deployment/metrics-server", "--tail=20"]);
            let pods = cluster.kubectl(&["get", "pods,hpa,apiservices", "-A", "-o", "wide"]);
            panic!(
                "{error:#}\n{logs:?}\n{}\n{}",
                pods.unwrap_or_else(|error| error),
                cluster.plane.log_tail()
            );
        }
    };
    let available = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
    says("the API of metrics", &["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", available], &|said| {
        said == "True"
    });
    // The autoscaler sees twice what it wants and adds one.
    says(
        "the autoscaler",
        &["get", "hpa", "burner", "-o", "jsonpath={.status.desiredReplicas} {.status.currentReplicas}"],
        &|said| said == "2 2",
    );
    says("two pods", &["get", "deployment", "burner", "-o", "jsonpath={.status.readyReplicas}"], &|said| {
        said == "2"
    });
    says("kubectl top pods", &["top", "pods", "--no-headers", "--containers", "-l", "app=burner"], &|said| {
        let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
        rows.len() == 2
            && rows.iter().all(|row| {
                let [pod, name, cpu, memory] = row.as_slice() else { return false };
                pod.starts_with("burner-")
                    && *name == "burns"
                    && number(cpu, "m").is_some_and(|cpu| (10.0..=220.0).contains(&cpu))
                    && number(memory, "Mi").is_some_and(|memory| memory < 32.0)
            })
    });
    says("kubectl top nodes", &["top", "nodes", "--no-headers"], &|said| {
        let row: Vec<&str> = said.split_whitespace().collect();
        row.first() == Some(&"node")
            && row.get(1).and_then(|cpu| number(cpu, "m")).is_some_and(|cpu| cpu >= 20.0)
            && row.get(3).and_then(|memory| number(memory, "Mi")).is_some_and(|memory| memory > 0.0)
    });
    // It was metrics-server who asked, by its token.
    let asked = cluster.node.get("/metrics").unwrap();
    let labels = r#"{long_running="false",method="GET",path="metrics/resource",server_type="readwrite"}"#;
    let count = asked.lines().find_map(|line| {
        line.strip_prefix(&format!("kubelet_http_requests_total{labels} "))?.parse::<f64>().ok()
    });
    assert!(count.is_some_and(|count| count >= 2.0), "{asked}");
    // What Datadog's check reads besides where there is an API server.
    for family in ["rest_client_requests_total", "rest_client_request_duration_seconds"] {
        assert!(asked.contains(&format!("# TYPE {family} ")), "{family} in {asked}");
    }
}
