//! With a real API server and its real authenticators and authorizers.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use mainstay_apiserver::{Change, Client, Rate, Reflected, reflect};
use mainstay_e2e::seen::PATIENCE;
use mainstay_task::TaskGroup;
use mainstay_testkit::{
    CertificateWish, Containerd, ControlPlane, Flavor, Http, Node, NodeBuilder, tls_client, wait_until,
};
use serde_json::{Value, json};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A token of a service account, for an audience or for the API server's own.
fn token(cluster: &ControlPlane, account: &str, audiences: &[&str]) -> String {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": audiences, "expirationSeconds": 3600 },
    });
    let made = cluster.create(&format!("{ACCOUNTS}/{account}/token"), &request).unwrap();
    made["status"]["token"].as_str().unwrap().to_owned()
}

fn grant(cluster: &ControlPlane, name: &str, rules: &Value, subjects: &Value) {
    let (kind, version) = ("ClusterRole", "rbac.authorization.k8s.io/v1");
    let role = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "rules": rules });
    cluster.create(&format!("{RBAC}/clusterroles"), &role).unwrap();
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name },
        "subjects": subjects,
    });
    cluster.create(&format!("{RBAC}/clusterrolebindings"), &binding).unwrap();
}

/// A node whose callers the API server judges, its own certificate, and the way to its secure port.
fn judged(cluster: &ControlPlane, builder: NodeBuilder) -> (Node, String, Http) {
    let kubeconfig = cluster.node_kubeconfig("node").unwrap();
    let node = builder
        // A grant that comes later is seen soon, and there is a door on every path.
        .config("{authorization: {webhook: {cacheUnauthorizedTTL: 1s}}, featureGates: {KubeletAllocatedPodsEndpoint: true}}")
        .args([format!("--kubeconfig={}", kubeconfig.display())])
        .start()
        .unwrap();
    node.wait_for(PATIENCE, "a first snapshot", |_| Ok(())).unwrap();
    let own = fs::read_to_string(node.root().join("pki/kubelet.crt")).unwrap();
    let https = Http::Tls(node.secure(), tls_client(&own, None).unwrap());
    (node, own, https)
}

#[test]
fn the_real_api_server_stands_in_front_of_the_pods() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    for name in ["reader", "other"] {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
        cluster.create(ACCOUNTS, &account).unwrap();
    }
    let rules = json!([{ "apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"] }]);
    let reader = json!([{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }]);
    grant(&cluster, "pod-reader", &rules, &reader);
    let rules = json!([{ "apiGroups": [""], "resources": ["nodes/proxy"], "resourceNames": ["node"], "verbs": ["get"] }]);
    let team = json!([{ "kind": "Group", "name": "team", "apiGroup": "rbac.authorization.k8s.io" }]);
    grant(&cluster, "team", &rules, &team);

    let clients = containerd.dir().join("clients.crt");
    fs::write(&clients, &cluster.authority().pem).unwrap();
    // What was allowed holds for longer than the test takes on any machine.
    let authentication = format!(
        "authentication: {{x509: {{clientCAFile: {}}}, webhook: {{cacheTTL: 1h}}}}\n\
         authorization: {{webhook: {{cacheAuthorizedTTL: 1h}}}}",
        clients.display()
    );
    let (node, own, https) = judged(&cluster, Node::builder().containerd(&containerd).config(authentication));
    let get = |token: &str, path: &str| {
        let bearer = format!("Bearer {token}");
        let answer = https.request("GET", path, &[("Authorization", &bearer)]).unwrap();
        (answer.status, answer.text())
    };

    let good = token(&cluster, "reader", &[]);
    // Rights that were granted a moment ago reach the API server's own authorizer a little later.
    let body = wait_until(PATIENCE, "the right to read pods", || match get(&good, "/pods") {
        (200, body) => Ok(body),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert!(body.starts_with(r#"{"kind":"PodList""#), "{body}");
    let account = "system:serviceaccount:default:reader";
    let refused = |verb: &str, subresources: &str| {
        format!("Forbidden (user={account}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n")
    };
    assert_eq!(get(&good, "/metrics/probes"), (403, refused("get", "metrics")));
    assert_eq!(get(&good, "/containerLogs/a/b/c"), (403, refused("get", "proxy")));
    assert_eq!(get(&token(&cluster, "other", &[]), "/pods").0, 403);
    // A signature that is not the API server's, and a token for somebody else's ears.
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let reversed: String = signature.chars().rev().collect();
    let unauthorized = (401, "Unauthorized".to_owned());
    assert_eq!(get(&format!("{signed}.{reversed}"), "/pods"), unauthorized);
    assert_eq!(get(&token(&cluster, "reader", &["https://elsewhere"]), "/pods"), unauthorized);

    // By certificate, through a group, and the coarse right in place of the fine one.
    let shown = cluster.authority().issue(&CertificateWish::client("carol", &["team"])).unwrap();
    let carol = Http::Tls(node.secure(), tls_client(&own, Some(&shown)).unwrap());
    wait_until(PATIENCE, "the right of a group", || match carol.get("/pods").unwrap().status {
        200 => Ok(()),
        other => Err(format!("{other}")),
    })
    .unwrap();
    assert_eq!(carol.get("/metrics/probes").unwrap().status, 403, "proxy does not open metrics");
    assert_eq!(carol.request("POST", "/run/a/b/c?cmd=id", &[]).unwrap().status, 403, "get is not create");

    // Away: what was allowed holds for a while, what is new is refused. Back: it is asked again.
    let later = token(&cluster, "reader", &[]);
    cluster.stop_server();
    assert_eq!(get(&good, "/pods").0, 200);
    assert_eq!(get(&later, "/pods"), unauthorized);
    cluster.start_server().unwrap();
    wait_until(PATIENCE, "the new token to be accepted", || match get(&later, "/pods") {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let rules = json!([{ "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] }]);
    grant(&cluster, "metrics-reader", &rules, &reader);
    wait_until(PATIENCE, "the new right", || match get(&good, "/metrics/probes") {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

/// What is asked, the verb and the subresource that open it, and whether `nodes/proxy` does as well. Each path of the manual is here, by
/// each of its methods, and some that are not in it.
const OPENED_BY: &[(&str, &str, &str, &str, bool)] = &[
    ("GET", "/pods", "get", "pods", true),
    ("GET", "/runningpods/", "get", "pods", true),
    ("GET", "/allocatedPods", "get", "pods", true),
    ("GET", "/allocatedPods/a/b", "get", "pods", true),
    ("GET", "/allocatedPods/a/b/u", "get", "pods", true),
    ("GET", "/healthz", "get", "healthz", true),
    ("GET", "/healthz/ping", "get", "healthz", true),
    ("GET", "/healthz/log", "get", "healthz", true),
    ("GET", "/healthz/syncloop", "get", "healthz", true),
    ("GET", "/healthz/device-plugin", "get", "healthz", true),
    ("GET", "/configz", "get", "configz", true),
    ("GET", "/flagz", "get", "configz", false),
    ("GET", "/node", "get", "node", true),
    ("GET", "/spec/", "get", "spec", true),
    ("GET", "/stats/", "get", "stats", false),
    ("GET", "/stats/summary", "get", "stats", false),
    ("GET", "/stats/container", "get", "stats", false),
    ("GET", "/stats/a/c", "get", "stats", false),
    ("GET", "/stats/default/a/u/c", "get", "stats", false),
    ("POST", "/stats/", "create", "stats", false),
    ("POST", "/stats/summary", "create", "stats", false),
    ("POST", "/stats/container", "create", "stats", false),
    ("POST", "/stats/a/c", "create", "stats", false),
    ("POST", "/stats/default/a/u/c", "create", "stats", false),
    ("GET", "/metrics", "get", "metrics", false),
    ("GET", "/metrics/cadvisor", "get", "metrics", false),
    ("GET", "/metrics/resource", "get", "metrics", false),
    ("GET", "/metrics/resource/v1alpha1", "get", "metrics", false),
    ("GET", "/metrics/probes", "get", "metrics", false),
    ("GET", "/metrics/slis", "get", "metrics", false),
    ("DELETE", "/metrics/slis", "delete", "metrics", false),
    ("GET", "/logs/", "get", "log", false),
    ("GET", "/logs/x/y", "get", "log", false),
    ("GET", "/statusz", "get", "statusz", false),
    ("POST", "/checkpoint/a/b/c", "create", "checkpoint", false),
    ("GET", "/containerLogs/a/b/c", "get", "proxy", true),
    ("GET", "/debug/pprof/", "get", "proxy", true),
    ("GET", "/debug/pprof/cmdline", "get", "proxy", true),
    ("PUT", "/debug/flags/v", "update", "proxy", true),
    ("GET", "/openapi/v3", "get", "proxy", true),
    ("GET", "/mainstay/v1/events", "get", "proxy", true),
    ("GET", "/mainstay/v1/manifests", "get", "proxy", true),
    ("GET", "/mainstay/v1/node", "get", "proxy", true),
    ("GET", "/mainstay/v1/resources", "get", "proxy", true),
    // Whatever method is used, who may only read runs nothing.
    ("POST", "/run/a/b/c?cmd=id", "create", "proxy", true),
    ("POST", "/run/a/b/u/c?cmd=id", "create", "proxy", true),
    ("POST", "/exec/a/b/c?command=id&output=1", "create", "proxy", true),
    ("POST", "/exec/a/b/u/c?command=id&output=1", "create", "proxy", true),
    ("GET", "/exec/a/b/u/c?command=id&output=1", "create", "proxy", true),
    ("GET", "/exec/a/b/c?command=id&output=1", "create", "proxy", true),
    ("POST", "/attach/a/b/c?output=1", "create", "proxy", true),
    ("GET", "/attach/a/b/c?output=1", "create", "proxy", true),
    ("POST", "/attach/a/b/u/c?output=1", "create", "proxy", true),
    ("GET", "/attach/a/b/u/c?output=1", "create", "proxy", true),
    ("POST", "/portForward/a/b", "create", "proxy", true),
    ("POST", "/portForward/a/b/u", "create", "proxy", true),
    ("GET", "/portForward/a/b/u?port=80", "create", "proxy", true),
    ("GET", "/portForward/a/b?port=80", "create", "proxy", true),
    ("GET", "/cri/exec/x", "create", "proxy", true),
    ("POST", "/cri/exec/x", "create", "proxy", true),
    ("POST", "/pods", "create", "pods", true),
    ("DELETE", "/logs/x", "delete", "log", false),
];

/// How well a path fits into one of the manual: how many of its parts are the same words, if the rest are what stands for anything.
fn fit(path: &str, wanted: &str) -> Option<usize> {
    let parts = |text: &str| text.trim_start_matches('/').split('/').map(str::to_owned).collect::<Vec<_>>();
    let (path, wanted) = (parts(path.split('?').next().unwrap_or_default()), parts(wanted));
    let mut same = 0;
    for (at, word) in wanted.iter().enumerate() {
        let found = path.get(at).filter(|found| !found.is_empty() || word.is_empty())?;
        // The last of these stand for all the rest.
        if matches!(word.as_str(), "{path}" | "{rest}" | "{name}") {
            return Some(same);
        }
        match word.starts_with('{') {
            true => {}
            false if found == word => same += 1,
            false => return None,
        }
    }
    (path.len() == wanted.len()).then_some(same)
}

/// The methods and paths of the manual that are served on the secure port and that no row is about.
fn without_a_row(manual: &Value) -> Vec<String> {
    let paths = manual["paths"].as_object().unwrap();
    let mut missing = BTreeSet::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["x-listeners"].as_array().unwrap().contains(&json!("secure")) {
                missing.insert((method.to_uppercase(), path.clone()));
            }
        }
    }
    assert!(missing.len() > 40, "{missing:?}");
    for (method, path, ..) in OPENED_BY {
        // Of several that fit it is about the one that says most of it.
        let best = paths.keys().filter_map(|wanted| Some((fit(path, wanted)?, wanted.clone()))).max();
        if let Some((_, best)) = best {
            missing.remove(&((*method).to_owned(), best));
        }
    }
    missing.into_iter().map(|(method, path)| format!("{method} {path}")).collect()
}

#[test]
fn each_right_opens_its_own_paths_and_no_others() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let rights: BTreeSet<(&str, &str)> =
        OPENED_BY.iter().map(|(_, _, verb, right, _)| (*verb, *right)).collect();
    let named = |verb: &str, right: &str| format!("may-{verb}-{right}");
    for (verb, right) in &rights {
        let name = named(verb, right);
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
        cluster.create(ACCOUNTS, &account).unwrap();
        let resource = format!("nodes/{right}");
        let rules = json!([{ "apiGroups": [""], "resources": [resource], "verbs": [verb] }]);
        let subject = json!([{ "kind": "ServiceAccount", "name": name, "namespace": "default" }]);
        grant(&cluster, &name, &rules, &subject);
    }
    let (node, _, https) = judged(&cluster, Node::builder().containerd(&containerd));
    let manual: Value = serde_json::from_str(&node.get("/openapi/v3").unwrap()).unwrap();
    assert_eq!(without_a_row(&manual), [""; 0], "paths of which no row says who may use them");
    for (verb, right) in &rights {
        let bearer = format!("Bearer {}", token(&cluster, &named(verb, right), &[]));
        let ask = |method: &str, path: &str| {
            https.request(method, path, &[("Authorization", &bearer)]).unwrap().status
        };
        // Those that are open come first: when they are, the grant has reached the API server's authorizer.
        let opens = |needs: &str, by: &str, proxy: bool| {
            *verb == needs && (*right == by || (*right == "proxy" && proxy))
        };
        let (open, shut): (Vec<_>, Vec<_>) =
            OPENED_BY.iter().copied().partition(|(_, _, needs, by, proxy)| opens(needs, by, *proxy));
        assert!(!open.is_empty());
        for (method, path, ..) in open {
            wait_until(PATIENCE, &format!("{verb} nodes/{right} to open {method} {path}"), || {
                match ask(method, path) {
                    // What there is behind the door is not its business.
                    401 | 403 => Err("it is refused".to_owned()),
                    _ => Ok(()),
                }
            })
            .unwrap();
        }
        for (method, path, ..) in shut {
            assert_eq!(ask(method, path), 403, "{verb} nodes/{right} does not open {method} {path}");
        }
    }
}

/// What a node's pods are by the word of the reflector.
#[derive(Default)]
struct Known {
    synced: bool,
    interrupted: bool,
    pods: BTreeMap<String, Pod>,
}

impl Known {
    fn take(&mut self, change: Change<Pod>) {
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
        match change {
            Change::Listed(pods) => {
                self.synced = true;
                self.pods = pods.items.into_iter().map(|pod| (name(&pod), pod)).collect();
            }
            Change::Applied(pod) => drop(self.pods.insert(name(&pod), pod)),
            Change::Deleted(pod) => drop(self.pods.remove(&name(&pod))),
            Change::Unreadable(_) => {}
            Change::Interrupted(_) => self.interrupted = true,
        }
    }
}

#[test]
fn the_pods_of_a_node_are_followed_through_an_outage() {
    // Only for its directory: what a killed test leaves there is swept by the next.
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut cluster = ControlPlane::start(containerd.dir().join("cluster")).unwrap();
    let kubeconfig = cluster.node_kubeconfig("node").unwrap();
    let known: Arc<Mutex<Known>> = Arc::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _entered = runtime.enter();
    let tasks = TaskGroup::new();
    let client = Client::open(kubeconfig, Rate { per_second: 50, burst: 100 }, "test", &tasks).unwrap();
    let told = known.clone();
    tasks.spawn("pods", async move {
        let what = Reflected {
            namespace: None,
            fields: Some("spec.nodeName=node".into()),
            labels: None,
            since: None,
        };
        reflect::<Pod>(&client, &what, |change| told.lock().unwrap().take(change)).await;
    });
    let until = |what: &str, is: &dyn Fn(&Known) -> bool| {
        // Who listens to an API server that was away comes back after up to a minute.
        wait_until(3 * PATIENCE, what, || {
            let known = known.lock().unwrap();
            let seen = || format!("{} {:?}", known.synced, known.pods.keys().collect::<Vec<_>>());
            if is(&known) { Ok(()) } else { Err(seen()) }
        })
        .unwrap();
    };
    let names = |known: &Known| known.pods.keys().cloned().collect::<Vec<_>>().join(",");
    let pods = "/api/v1/namespaces/default/pods";
    let create = |cluster: &ControlPlane, name: &str, node: &str| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        });
        cluster.create(pods, &pod).unwrap();
    };
    until("a first list", &|known| known.synced && known.pods.is_empty());
    create(&cluster, "elsewhere", "other");
    create(&cluster, "a", "node");
    until("a new pod", &|known| names(known) == "a");
    cluster.stop_server();
    until("the outage to be noticed", &|known| known.interrupted && names(known) == "a");
    cluster.start_server().unwrap();
    create(&cluster, "b", "node");
    until("what came after the outage", &|known| names(known) == "a,b");
    let gone = cluster.send("DELETE", &format!("{pods}/a?gracePeriodSeconds=0"), None).unwrap();
    assert_eq!(gone.status, 200, "{}", gone.text());
    until("the end of a pod", &|known| names(known) == "b");
    // Who listens to the API server listens until it is dropped.
    runtime.block_on(tasks.drain(Duration::from_secs(1)));
}
