use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::server::{Authority, Options, Server, json as answer, kubeconfig, pem, pieces, text};
use crate::{ApiError, Client, Patch, Query, Rate, Scope};

const CA: &str = "certificate-authority: ca.crt";
/// For tests that write programs and run them: one that is open for writing, be it in a child that the other is just
/// starting, cannot be run.
static PROGRAMS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Another file in its place, which is told from the one before however soon it comes.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "resourceVersion": "1" } })
}

async fn get(client: &Client) -> Result<Node, ApiError> {
    client.get::<Node>(Scope::Cluster, "n").await
}

#[tokio::test]
async fn requests_are_made_over_both_versions_of_http() {
    for http2 in [true, false] {
        let server = Server::start(Options { http2, ..Options::default() }, |seen| {
            let said = format!(
                "{} {} {} {}",
                seen.request.method(),
                seen.request.uri().path_and_query().unwrap(),
                seen.authorization(),
                seen.request.headers().get("content-type").map_or("", |value| value.to_str().unwrap()),
            );
            let mut node = node("n");
            node["metadata"]["annotations"] =
                json!({ "said": said, "body": String::from_utf8_lossy(seen.request.body()) });
            answer(200, &node)
        })
        .await;
        let client = server.client(CA, "token: secret");
        let said = |node: Node| node.metadata.annotations.unwrap()["said"].clone();
        assert_eq!(said(get(&client).await.unwrap()), "GET /api/v1/nodes/n Bearer secret ");
        let status = Patch::Strategic(json!({ "status": {} }));
        let patched: Node = client.patch(Scope::Cluster, ("a b/c", Some("status")), &status).await.unwrap();
        assert_eq!(patched.metadata.annotations.as_ref().unwrap()["body"], r#"{"status":{}}"#);
        let kind = "application/strategic-merge-patch+json";
        assert_eq!(said(patched), format!("PATCH /api/v1/nodes/a%20b%2Fc/status Bearer secret {kind}"));
        let pod = Pod::default();
        let made = client.create(Scope::Namespace("ns"), &pod).await;
        assert!(matches!(made, Err(ApiError::Decode { .. })), "a Node is no Pod: {made:?}");
        let options = k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions::default();
        client.delete::<Pod>(Scope::Namespace("ns"), "p", &options).await.unwrap();
        assert_eq!(server.connections.load(Ordering::SeqCst), 1, "one connection for all (HTTP/2: {http2})");
    }
}

#[tokio::test]
async fn what_the_server_says_no_to_is_told_with_its_reason() {
    let server = Server::start(Options::default(), |seen| match seen.request.uri().path() {
        "/api/v1/nodes/n" => answer(
            404,
            &json!({ "kind": "Status", "apiVersion": "v1", "reason": "NotFound", "message": "nodes \"n\" not found", "code": 404 }),
        ),
        "/api/v1/nodes/busy" => {
            let mut busy = text(429, "later");
            busy.headers_mut().insert("retry-after", "7".parse().unwrap());
            busy
        }
        _ => text(200, "not JSON"),
    })
    .await;
    let client = server.client(CA, "token: secret");
    let error = get(&client).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the API server answered GET /api/v1/nodes/n with 404 NotFound: nodes \"n\" not found"
    );
    assert!(!error.is_transient());
    let error = client.get::<Node>(Scope::Cluster, "busy").await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert!(error.is_transient());
    let error = client.get::<Node>(Scope::Cluster, "x").await.unwrap_err();
    assert!(matches!(error, ApiError::Decode { .. }));
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_gets_nothing_and_the_remedy_is_named() {
    let server = Server::start(Options::default(), |_| answer(200, &node("n"))).await;
    let other = Authority::new("other");
    fs::write(server.file("other.crt"), &other.pem).unwrap();
    let text = async |client: Client| get(&client).await.unwrap_err().to_string();
    let found = text(server.client("certificate-authority: other.crt", "token: t")).await;
    assert!(
        found.contains("not signed by clusters[\"k\"].cluster.certificate-authority (")
            && found.contains("other.crt"),
        "{found}"
    );
    let found = text(server.client(&format!("{CA}, tls-server-name: elsewhere"), "token: t")).await;
    assert!(found.contains("is not for \"elsewhere\"; correct server or set tls-server-name"), "{found}");
    let expired =
        Server::start(Options { expired: true, ..Options::default() }, |_| answer(200, &node("n"))).await;
    let found = text(expired.client(CA, "token: t")).await;
    assert!(found.contains("its certificate has expired"), "{found}");

    get(&server.client(&format!("{CA}, tls-server-name: api.test"), "token: t")).await.unwrap();
    get(&expired.client("insecure-skip-tls-verify: true", "token: t")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_is_named_and_found_again() {
    let held = TcpSocket::new_v4().unwrap();
    held.set_reuseport(true).unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = held.local_addr().unwrap();
    let server = Server::start(Options { address, ..Options::default() }, |_| answer(200, &node("n"))).await;
    let tasks = mainstay_task::TaskGroup::new();
    let path = server.kubeconfig(CA, "token: t");
    let client = Client::open(path, Rate { per_second: 1000, burst: 1000 }, "test", &tasks).unwrap();
    get(&client).await.unwrap();
    let ca = fs::read(server.file("ca.crt")).unwrap();
    server.tasks.drain(Duration::ZERO).await;
    let error = get(&client).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let error = get(&client).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot reach the API server https://{address}: ")), "{error}");

    // The same address, another authority: the file that the kubeconfig names is read again.
    let again = Server::start(Options { address, ..Options::default() }, |_| answer(200, &node("n"))).await;
    assert_ne!(ca, again.authority.pem.as_bytes());
    replace(&server.file("ca.crt"), &again.authority.pem);
    let found = tokio::time::timeout(Duration::from_secs(60), async {
        while get(&client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap();
}

#[tokio::test]
async fn what_takes_too_long_ends() {
    let server = Server::start(Options::default(), |seen| match seen.request.uri().path() {
        "/api/v1/nodes/n" => pieces(vec!["{".into()], Duration::from_secs(600)),
        _ => answer(200, &node("quick")),
    })
    .await;
    let client = server.client(CA, "token: t");
    // Connected already: it is the answer that takes too long.
    client.get::<Node>(Scope::Cluster, "quick").await.unwrap();
    let error = get(&client.with_deadline(Duration::from_millis(300))).await.unwrap_err();
    assert!(matches!(error, ApiError::Timeout { .. }) && error.is_transient(), "{error}");
}

#[tokio::test]
async fn credentials_that_are_refused_are_read_again() {
    let server = Server::start(Options::default(), |seen| match seen.authorization() {
        "Bearer new" => answer(200, &node("n")),
        _ => text(401, "Unauthorized"),
    })
    .await;
    fs::write(server.file("token"), "old\n").unwrap();
    let client = server.client(CA, "tokenFile: token");
    let error = get(&client).await.unwrap_err().to_string();
    assert!(
        error.contains("does not accept the credentials of users[\"u\"].user")
            && error.contains("no longer valid"),
        "{error}"
    );
    fs::write(server.file("token"), "newer\n").unwrap();
    fs::write(server.file("token"), "new").unwrap();
    get(&client).await.unwrap();
    // What cannot be used changes nothing.
    fs::remove_file(server.file("token")).unwrap();
    get(&client).await.unwrap();
}

#[tokio::test]
async fn client_certificates_are_shown_and_replaced() {
    let wanted: Arc<std::sync::Mutex<Vec<u8>>> = Arc::default();
    let shared = wanted.clone();
    let server = Server::start(Options::default(), move |seen| {
        if seen.certificate.as_ref() == Some(&*shared.lock().unwrap()) {
            answer(200, &node("n"))
        } else {
            text(401, "")
        }
    })
    .await;
    let write = |(certificate, key): &(Vec<u8>, Vec<u8>)| {
        replace(&server.file("key"), &pem("PRIVATE KEY", key));
        replace(&server.file("crt"), &pem("CERTIFICATE", certificate));
    };
    let [first, second] =
        [1, 2].map(|_| server.authority.issue("node", ExtendedKeyUsagePurpose::ClientAuth, false));
    write(&first);
    first.0.clone_into(&mut wanted.lock().unwrap());
    let client = server.client(CA, "client-certificate: crt, client-key: key");
    let left = || client.calls().certificate.seconds_left(jiff::Timestamp::now());
    assert!(left().is_some_and(|seconds| seconds > 0), "{:?}", left());
    get(&client).await.unwrap();
    second.0.clone_into(&mut wanted.lock().unwrap());
    let error = get(&client).await.unwrap_err().to_string();
    assert!(
        error.contains("does it trust the authority that signed users[\"u\"].user.client-certificate"),
        "{error}"
    );
    write(&second);
    get(&client).await.unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 2, "another certificate is another connection");
    assert_eq!(client.calls().certificate.errors.get(), 0);
    // One that cannot be used is counted, and the one before stays in force.
    fs::write(server.file("crt"), "no certificate").unwrap();
    wanted.lock().unwrap().clear();
    get(&client).await.unwrap_err();
    assert!(client.calls().certificate.errors.get() > 0);
    assert!(left().is_some_and(|seconds| seconds > 0), "{:?}", left());

    let old = server.authority.issue("node", ExtendedKeyUsagePurpose::ClientAuth, true);
    write(&old);
    let client = server.client(CA, "client-certificate: crt, client-key: key");
    let error = get(&client).await.unwrap_err().to_string();
    assert!(error.contains("2021-01-01T00:00:00Z"), "{error}");
    assert!(client.calls().certificate.seconds_left(jiff::Timestamp::now()).is_some_and(|left| left < 0));
}

#[tokio::test]
async fn a_program_is_asked_for_credentials_until_they_expire() {
    let _alone = PROGRAMS.lock().await;
    let server = Server::start(Options::default(), |seen| match seen.authorization() {
        "Bearer t1" | "Bearer t3" => answer(200, &node("n")),
        _ => text(401, ""),
    })
    .await;
    let script = server.file("plugin");
    let log = server.file("runs");
    let write = |token: &str, expires: &str| {
        let credential = format!(
            r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}"{expires}}}}}"#
        );
        let text = format!(
            "#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO $1 $V\" >>{}\necho '{credential}'\n",
            log.display()
        );
        let new = server.file("plugin.new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &script).unwrap();
    };
    let runs = || fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    write("t1", "");
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [arg], env: [{name: V, value: w}], provideClusterInfo: true, interactiveMode: Never}";
    let client = server.client(CA, user);
    for _ in 0..3 {
        get(&client).await.unwrap();
    }
    assert_eq!(runs().len(), 1, "once");
    let info = &runs()[0];
    assert!(
        info.contains(r#""kind":"ExecCredential""#)
            && info.contains("certificate-authority-data")
            && info.ends_with(" arg w"),
        "{info}"
    );
    // Refused: asked again, and again refused.
    let refused =
        Client::open(server.file("kubeconfig"), Rate { per_second: 9, burst: 9 }, "test", &server.tasks)
            .unwrap();
    write("t2", "");
    get(&refused).await.unwrap_err();
    write("t3", r#","expirationTimestamp":"2020-01-01T00:00:00Z""#);
    let before = runs().len();
    get(&refused).await.unwrap();
    get(&refused).await.unwrap();
    assert!(runs().len() >= before + 2, "what has expired is not used again");
    fs::write(&script, "#!/bin/sh\necho broken >&2; exit 3\n").unwrap();
    let error = get(&refused).await.unwrap_err().to_string();
    assert!(error.contains("plugin failed (exit status: 3): broken"), "{error}");
}

#[tokio::test]
async fn a_slow_program_is_not_cut_short_by_those_who_wait() {
    let _alone = PROGRAMS.lock().await;
    let server = Server::start(Options::default(), |_| answer(200, &node("n"))).await;
    let (script, go, runs) = (server.file("plugin"), server.file("go"), server.file("runs"));
    let credential =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}"#;
    let text = format!(
        "#!/bin/sh\necho run >>{}\nwhile [ ! -e {} ]; do sleep 0.1; done\necho '{credential}'\n",
        runs.display(),
        go.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let user =
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}";
    let client = server.client(CA, user);
    let hasty = client.with_deadline(Duration::from_millis(300));
    for _ in 0..2 {
        let error = get(&hasty).await.unwrap_err();
        assert!(matches!(error, ApiError::Timeout { .. }), "{error}");
    }
    fs::write(&go, "").unwrap();
    get(&client).await.unwrap();
    assert_eq!(fs::read_to_string(&runs).unwrap(), "run\n", "it ran on, and ran once for all");
}

#[tokio::test]
async fn those_who_come_and_go_keep_nobody_waiting() {
    let server = Server::start(Options::default(), |_| answer(200, &node("n"))).await;
    let client = server.client(CA, "token: t").with_rate(Rate { per_second: 1, burst: 1 });
    get(&client).await.unwrap();
    for _ in 0..1000 {
        let mut one = Box::pin(get(&client));
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx).is_ready())).await;
        assert!(!polled, "it waits for its turn");
    }
    // A thousand turns would be a quarter of an hour.
    let waited = tokio::time::timeout(Duration::from_secs(30), get(&client)).await;
    waited.expect("its turn comes").unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_turn_that_does_not_come_in_time_is_not_waited_for() {
    let server = Server::start(Options::default(), |_| answer(200, &node("n"))).await;
    let client = server.client(CA, "token: t");
    get(&client).await.unwrap();
    let slow = client.with_rate(Rate { per_second: 1, burst: 1 });
    // So many before it that its turn is far off, however long this machine takes.
    let mut before: Vec<_> = (0..20).map(|_| Box::pin(get(&slow))).collect();
    for one in &mut before {
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx).is_ready())).await;
        assert!(!polled, "it waits for its turn, or for the answer");
    }
    let error = get(&slow.with_deadline(Duration::from_millis(500))).await.unwrap_err();
    assert!(matches!(error, ApiError::Busy { .. }) && error.is_transient(), "{error}");
    drop(before);
    get(&client).await.unwrap();
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "what was never sent says nothing of the connection"
    );
}

#[tokio::test]
async fn a_proxy_is_gone_through() {
    let server = Server::start(Options::default(), |_| answer(200, &node("n"))).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let passed = Arc::new(AtomicUsize::new(0));
    let (count, target) = (passed.clone(), server.address);
    server.tasks.spawn("proxy", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            stream.read_line(&mut head).await.unwrap();
        }
        assert!(head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")), "{head}");
        count.fetch_add(1, Ordering::SeqCst);
        stream.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.unwrap();
        let mut out = TcpStream::connect(target).await.unwrap();
        tokio::io::copy_bidirectional(&mut stream, &mut out).await.ok();
    });
    let client = server.client(&format!("{CA}, proxy-url: 'http://{proxy}'"), "token: t");
    get(&client).await.unwrap();
    assert_eq!(passed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn lists_are_asked_for_with_selectors() {
    let server = Server::start(Options::default(), |seen| {
        assert_eq!(
            seen.request.uri().path_and_query().unwrap().as_str(),
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&resourceVersion=0"
        );
        answer(
            200,
            &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "5" },
            "items": [{ "metadata": { "name": "a" } }] }),
        )
    })
    .await;
    let client = server.client(CA, "token: t");
    let query = Query {
        fields: Some("spec.nodeName=n".into()),
        resource_version: Some("0".into()),
        ..Query::default()
    };
    let list = client.list::<Pod>(Scope::Cluster, &query).await.unwrap();
    assert_eq!((list.items.len(), list.version.as_str()), (1, "5"));
}

#[test]
fn plain_http_and_paths_are_understood() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = mainstay_task::TaskGroup::new();
    for (server, shown) in [
        ("http://10.0.0.1:8080/k8s/", "http://10.0.0.1:8080/k8s"),
        ("https://[fd00::1]", "https://[fd00::1]"),
        ("api.example:8080", "http://api.example:8080"),
    ] {
        let path = kubeconfig(dir.path(), server, "", "");
        let client = Client::open(path, Rate { per_second: 0, burst: 0 }, "t", &tasks).unwrap();
        assert_eq!(client.server(), shown);
    }
}
