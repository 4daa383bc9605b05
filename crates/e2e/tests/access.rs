//! Who is let in through the secure port, by whose word, and what others can do to those who are.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use mainstay_e2e::seen::PATIENCE;
use mainstay_testkit::{
    Asked, Authority, Certificate, CertificateWish, Containerd, Flavor, Http, Node, Response, ReviewServer,
    Usage, tls_client, wait_until,
};
use serde_json::{Value, json};

/// A node with an API server that knows some tokens and rights.
struct Guarded {
    node: Node,
    api: ReviewServer,
    clients: Authority,
    rules: Arc<Mutex<Rules>>,
    _containerd: Containerd,
}

/// What the API server knows, changeable by the test.
#[derive(Default)]
struct Rules {
    /// Tokens, and the `status` that a review of them has.
    tokens: BTreeMap<String, Value>,
    /// User, verb and subresource.
    rights: Vec<(&'static str, &'static str, &'static str)>,
    /// An HTTP status that everything is answered with.
    broken: Option<u16>,
    /// Whether the very next question is answered with 500.
    stumbles: bool,
}

impl Guarded {
    fn start(config: &str) -> Self {
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        let rules: Arc<Mutex<Rules>> = Arc::default();
        let known = rules.clone();
        let api = ReviewServer::start(containerd.dir().join("api"), move |asked| {
            known.lock().unwrap().judge(asked)
        })
        .unwrap();
        let clients = Authority::new("clients").unwrap();
        let bundle = containerd.dir().join("clients.crt");
        fs::write(&bundle, &clients.pem).unwrap();
        let kubeconfig = api.kubeconfig("node").unwrap();
        let node = Node::builder()
            .containerd(&containerd)
            .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", bundle.display()))
            .config(config)
            .args([format!("--kubeconfig={}", kubeconfig.display()), "-v=4".to_owned()])
            .prepare()
            .unwrap();
        let token = "tokenSHA256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        fs::write(
            node.root().join("access.yaml"),
            format!(
                "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: local, {token}}}]\n\
                 rules: [{{users: [local], verbs: [get], subresources: [pods]}}]\n"
            ),
        )
        .unwrap();
        let mut guarded = Self { node, api, clients, rules, _containerd: containerd };
        guarded.node.start_again().unwrap();
        // `/pods` is 503 until everything is known once.
        guarded.node.wait_for(PATIENCE, "a first snapshot", |_| Ok(())).unwrap();
        guarded
    }

    fn knows(&self, token: &str, user: &str, groups: &[&str]) {
        let status = json!({ "authenticated": true, "user": { "username": user, "groups": groups } });
        self.rules.lock().unwrap().tokens.insert(token.to_owned(), status);
    }

    fn allow(&self, user: &'static str, verb: &'static str, subresource: &'static str) {
        self.rules.lock().unwrap().rights.push((user, verb, subresource));
    }

    fn https(&self, shown: Option<&Certificate>) -> Http {
        let own = fs::read_to_string(self.node.root().join("pki/kubelet.crt")).unwrap();
        Http::Tls(self.node.secure(), tls_client(&own, shown).unwrap())
    }

    fn ask(&self, token: Option<&str>, method: &str, path: &str) -> Response {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> =
            bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
        self.https(None).request(method, path, &headers).unwrap()
    }

    fn get(&self, token: &str, path: &str) -> (u16, String) {
        let answer = self.ask(Some(token), "GET", path);
        (answer.status, answer.text())
    }

    fn with_certificate(&self, shown: &Certificate, path: &str) -> (u16, String) {
        let answer = self.https(Some(shown)).get(path).unwrap();
        (answer.status, answer.text())
    }

    fn audit(&self, parts: &[&str]) {
        wait_until(PATIENCE, &format!("a line of the audit log with {parts:?}"), || {
            let log = self.node.log();
            let found = log
                .lines()
                .any(|line| line.contains("audit") && parts.iter().all(|part| line.contains(part)));
            if found { Ok(()) } else { Err("none yet".to_owned()) }
        })
        .unwrap();
    }
}

impl Rules {
    fn judge(&mut self, asked: &Asked) -> (u16, Value) {
        let stumbled = std::mem::take(&mut self.stumbles).then_some(500);
        if let Some(status) = self.broken.or(stumbled) {
            return (
                status,
                json!({ "kind": "Status", "apiVersion": "v1", "message": "broken", "code": status }),
            );
        }
        let status = if asked.kind == "TokenReview" {
            let token = asked.spec["token"].as_str().unwrap_or_default();
            self.tokens.get(token).cloned().unwrap_or_else(|| json!({ "authenticated": false, "user": {} }))
        } else {
            let text =
                |pointer: &str| asked.spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let wanted =
                (text("/user"), text("/resourceAttributes/verb"), text("/resourceAttributes/subresource"));
            json!({ "allowed": self.rights.contains(&wanted) })
        };
        (201, status)
    }
}

fn forbidden(user: &str, verb: &str, subresources: &str) -> (u16, String) {
    (403, format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"))
}

fn unauthorized() -> (u16, String) {
    (401, "Unauthorized".to_owned())
}

#[test]
fn the_api_server_knows_tokens_and_rights_and_is_asked_once() {
    // Longer than the test takes on any machine: what is asked once is asked once.
    let guarded = Guarded::start(
        "authorization: {webhook: {cacheUnauthorizedTTL: 1h}}\nauthentication: {webhook: {cacheTTL: 1h}}",
    );
    guarded.knows("good", "alice", &["devs"]);
    guarded.allow("alice", "get", "proxy");
    let api = &guarded.api;
    for _ in 0..3 {
        assert_eq!(guarded.get("good", "/pods").0, 200);
    }
    assert_eq!((api.count("TokenReview"), api.count("SubjectAccessReview")), (1, 2));
    let asked = api.asked();
    assert_eq!(asked[0].spec, json!({ "token": "good" }));
    let review = |subresource: &str| {
        json!({
            "resourceAttributes": { "verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource, "name": "node" },
            "user": "alice",
            "groups": ["devs", "system:authenticated"],
        })
    };
    assert_eq!(
        [&asked[1].spec, &asked[2].spec],
        [&review("pods"), &review("proxy")],
        "the finer right first"
    );

    assert_eq!(
        guarded.get("good", "/metrics/probes"),
        forbidden("alice", "get", "metrics"),
        "proxy does not open it"
    );
    let run = guarded.ask(Some("good"), "GET", "/exec/default/p/c?command=id&output=1");
    assert_eq!(
        (run.status, run.text()),
        forbidden("alice", "create", "proxy"),
        "reading does not run commands"
    );
    let head = guarded.ask(Some("good"), "HEAD", "/pods");
    assert_eq!(head.status, 403, "HEAD is no verb");
    for token in ["bad", "good2"] {
        for _ in 0..3 {
            assert_eq!(guarded.get(token, "/pods"), unauthorized());
        }
    }
    assert_eq!(api.count("TokenReview"), 3, "a no is kept as well");
    let nobody = guarded.ask(None, "GET", "/pods");
    assert_eq!((nobody.status, nobody.text()), unauthorized());
    assert_eq!(nobody.header("www-authenticate"), None);

    // Local users are known by local tokens and judged by local rules; the API server hears nothing of them.
    let before = api.asked().len();
    assert_eq!(guarded.get("secret", "/pods").0, 200);
    assert_eq!(guarded.get("secret", "/metrics/probes"), forbidden("local", "get", "metrics"));
    assert_eq!(api.asked().len(), before);

    guarded.audit(&["refused", "alice", "/exec/default/p/c", "403"]);
    guarded.audit(&["refused", "401", "no credentials"]);
    guarded.audit(&["refused", "401", "does not accept"]);
    assert!(
        !guarded.node.log().contains("Bearer") && !guarded.node.log().contains("good2"),
        "no token in the log"
    );
}

#[test]
fn an_api_server_that_fails_lets_nobody_in_but_those_it_let_in_before() {
    let guarded = Guarded::start(
        "authorization: {webhook: {cacheUnauthorizedTTL: 1s, cacheAuthorizedTTL: 1h}}\n\
         authentication: {anonymous: {enabled: true}, webhook: {cacheTTL: 1h}}",
    );
    guarded.knows("good", "alice", &[]);
    guarded.allow("alice", "get", "pods");
    assert_eq!(guarded.get("good", "/pods").0, 200);
    let anonymous = guarded.ask(None, "GET", "/pods");
    assert_eq!((anonymous.status, anonymous.text()), forbidden("system:anonymous", "get", "pods proxy"));
    let odd = json!({ "authenticated": false, "error": "the webhook is down" });
    guarded.rules.lock().unwrap().tokens.insert("odd".into(), odd);
    for _ in 0..2 {
        assert_eq!(guarded.get("odd", "/pods"), unauthorized());
    }
    let odd = guarded.api.asked().iter().filter(|asked| asked.spec["token"] == "odd").count();
    assert_eq!(odd, 2, "an error is not kept");

    guarded.rules.lock().unwrap().broken = Some(403);
    assert_eq!(guarded.get("good", "/pods").0, 200, "what was allowed is kept");
    assert_eq!(guarded.get("new", "/pods"), unauthorized());
    let error = "Authorization error (user=alice, verb=get, resource=nodes, subresource=metrics)";
    assert_eq!(guarded.get("good", "/metrics/probes"), (500, error.to_owned()));

    guarded.api.set_away(true);
    assert_eq!(guarded.get("good", "/pods").0, 200);
    assert_eq!(guarded.get("new", "/pods"), unauthorized(), "anonymous is for those who tried nothing");
    assert_eq!(guarded.get("good", "/metrics/probes"), (500, error.to_owned()));
    assert_eq!(guarded.get("secret", "/pods").0, 200, "local users need no API server");
    guarded.audit(&["refused", "alice", "500", "SubjectAccessReview"]);

    guarded.api.set_away(false);
    guarded.rules.lock().unwrap().broken = None;
    guarded.allow("alice", "get", "metrics");
    wait_until(PATIENCE, "the API server to be asked again", || {
        match guarded.get("good", "/metrics/probes") {
            (200, _) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

#[test]
fn certificates_say_who_somebody_is_until_their_authority_is_replaced() {
    let guarded = Guarded::start("authentication: {anonymous: {enabled: true}}");
    guarded.allow("bob", "get", "pods");
    guarded.knows("good", "alice", &[]);
    guarded.allow("alice", "get", "pods");
    let issue = |wish: &CertificateWish<'_>| guarded.clients.issue(wish).unwrap();
    let bob = issue(&CertificateWish::client("bob", &["team1"]));
    assert_eq!(guarded.with_certificate(&bob, "/pods").0, 200);
    let asked = guarded.api.asked();
    let review = &asked.last().unwrap().spec;
    assert_eq!(review["groups"], json!(["team1", "system:authenticated"]));
    let id = review["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap();
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{id}");

    let foreign = Authority::new("strangers").unwrap().issue(&CertificateWish::client("bob", &[])).unwrap();
    let expired = issue(&CertificateWish { expired: true, ..CertificateWish::client("bob", &[]) });
    let server = issue(&CertificateWish { usage: Usage::Server, ..CertificateWish::client("bob", &[]) });
    for (what, shown) in [("foreign", &foreign), ("expired", &expired), ("for servers", &server)] {
        assert_eq!(guarded.with_certificate(shown, "/pods"), unauthorized(), "{what}");
        let header = [("Authorization", "Bearer good")];
        let answer = guarded.https(Some(shown)).request("GET", "/pods", &header).unwrap();
        assert_eq!(answer.status, 200, "{what}, and a good token");
    }
    let nameless = issue(&CertificateWish::client("", &["system:masters"]));
    assert_eq!(
        guarded.with_certificate(&nameless, "/pods"),
        forbidden("system:anonymous", "get", "pods proxy")
    );
    guarded.audit(&["refused", "401", "certificate expired"]);
    guarded.audit(&["refused", "401", "UnknownIssuer"]);

    // A new authority takes the place of the old one while mainstay runs; what is no bundle changes nothing.
    let bundle = guarded.node.root().parent().unwrap().parent().unwrap().join("clients.crt");
    let next = Authority::new("next").unwrap();
    let carol = next.issue(&CertificateWish::client("bob", &[])).unwrap();
    let changed = |text: &str, good: &Certificate, bad: Option<&Certificate>| {
        fs::write(&bundle, text).unwrap();
        wait_until(PATIENCE, "the new bundle", || {
            let (new, old) = (
                guarded.with_certificate(good, "/pods").0,
                bad.map(|bad| guarded.with_certificate(bad, "/pods").0),
            );
            if new == 200 && old.is_none_or(|old| old == 401) {
                Ok(())
            } else {
                Err(format!("{new} {old:?}"))
            }
        })
        .unwrap();
    };
    changed(&next.pem, &carol, Some(&bob));
    changed("junk", &carol, Some(&bob));
    wait_until(PATIENCE, "a word about the junk", || {
        guarded.with_certificate(&carol, "/pods");
        if guarded.node.log().contains("what it said before stays in force") {
            Ok(())
        } else {
            Err("none".to_owned())
        }
    })
    .unwrap();
    assert_eq!(guarded.with_certificate(&carol, "/pods").0, 200);
    changed(&format!("{}{}", guarded.clients.pem, next.pem), &bob, None);
    assert_eq!(guarded.with_certificate(&carol, "/pods").0, 200);
}

/// `access.yaml` in which `local` (token `secret`) may list pods, and if wished `other` (token `other`) too.
fn write_access(node: &Node, with_other: bool, mode: u32) {
    let other =
        "{name: other, tokenSHA256: d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa}";
    let text = format!(
        "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: \
         [{{name: local, tokenSHA256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b}}{}]\n\
         rules: [{{users: [local, other], verbs: [get], subresources: [pods]}}]\n",
        if with_other { format!(", {other}") } else { String::new() }
    );
    // Renamed into place, so that nobody reads the new text with the old mode.
    let file = node.root().join("access.yaml");
    let new = node.root().join("access.yaml.new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(new, file).unwrap();
}

#[test]
fn an_access_file_that_others_can_write_lets_nobody_in_and_is_named() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let mut node = Node::builder().containerd(&containerd).prepare().unwrap();
    write_access(&node, false, 0o666);
    node.start_again().unwrap();
    node.wait_for(PATIENCE, "a first snapshot", |_| Ok(())).unwrap();
    let https = || {
        let own = fs::read_to_string(node.root().join("pki/kubelet.crt")).unwrap();
        Http::Tls(node.secure(), tls_client(&own, None).unwrap())
    };
    let asked = |token: &str| {
        let bearer = format!("Bearer {token}");
        https().request("GET", "/pods", &[("Authorization", bearer.as_str())]).unwrap().status
    };
    let until = |what: &str, token: &str, wanted: u16| {
        wait_until(PATIENCE, what, || match asked(token) {
            status if status == wanted => Ok(()),
            status => Err(status.to_string()),
        })
        .unwrap();
    };
    let file = node.root().join("access.yaml");
    let named = |mode: &str| {
        let problem = format!("others than its owner can write it (mode {mode})");
        let remedy = format!("chown root {0}; chmod 600 {0}", file.display());
        node.log().lines().any(|line| line.contains(&problem) && line.contains(&remedy))
    };
    assert_eq!(asked("secret"), 401, "the file is not used");
    assert!(named("666"), "{}", node.log());

    // Mended while mainstay runs.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    until("those whom the mended file names", "secret", 200);

    // Whoever could write the new text let himself in; it is not used, and what was there before is not known to be right.
    write_access(&node, true, 0o620);
    wait_until(PATIENCE, "a word about the new file", || {
        assert_eq!(asked("other"), 401);
        if named("620") { Ok(()) } else { Err("none".to_owned()) }
    })
    .unwrap();
    assert_eq!((asked("secret"), asked("other")), (401, 401));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    until("those whom the new file names", "other", 200);
}

#[test]
fn many_with_one_token_are_one_question() {
    let guarded = Guarded::start("{}");
    guarded.allow("alice", "get", "pods");
    guarded.knows("same", "alice", &[]);
    // It fails at first, so that the question takes its time.
    guarded.rules.lock().unwrap().stumbles = true;
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..8).map(|_| scope.spawn(|| guarded.ask(Some("same"), "GET", "/pods").status)).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(answers, [200; 8]);
    let asked = guarded.api.count("TokenReview");
    assert!((2..=5).contains(&asked), "{asked} questions for eight who asked");
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let dir = containerd.dir().join("api");
    let api = ReviewServer::start(&dir, |_| (500, json!({}))).unwrap();
    let kubeconfig = api.kubeconfig("node").unwrap();
    fs::remove_file(dir.join("client.key")).unwrap();
    let mut node = Node::builder()
        .containerd(&containerd)
        .args([format!("--kubeconfig={}", kubeconfig.display())])
        .spawn()
        .unwrap();
    let status = node.wait_for_exit(PATIENCE).unwrap();
    assert!(!status.success());
    let expected = format!(
        "the kubeconfig {}: users[\"u\"].user.client-key: cannot read {}",
        kubeconfig.display(),
        dir.join("client.key").display()
    );
    assert!(node.log().contains(&expected), "{}", node.log());
}

#[test]
fn local_users_go_with_their_file_and_come_by_websocket_too() {
    use std::os::unix::fs::PermissionsExt as _;
    let guarded = Guarded::start("{}");
    let file = guarded.node.root().join("access.yaml");
    let becomes = |status: u16, why: &str| {
        wait_until(PATIENCE, why, || match guarded.get("secret", "/pods") {
            (found, _) if found == status => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .unwrap();
    };
    let told = |part: &str| {
        wait_until(PATIENCE, part, || {
            if guarded.node.log().contains(part) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .unwrap();
    };
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    becomes(200, "a local user");
    mode(0o666);
    becomes(401, "nobody is believed by a file that everybody can write");
    told("others than its owner can write it (mode 666)");
    mode(0o600);
    becomes(200, "the file is root's again");

    // Browsers can set no header; "secret" in base64url.
    let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
    for (protocols, status) in [
        (format!("{token}, v4.channel.k8s.io"), 200),
        (token.to_owned(), 401),
        ("base64url.bearer.authorization.k8s.io.Zm9yZ2Vk, v4.channel.k8s.io".to_owned(), 401),
    ] {
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
            ("Sec-WebSocket-Protocol", protocols.as_str()),
        ];
        let answer = guarded.https(None).request("GET", "/pods", &headers).unwrap();
        assert_eq!(answer.status, status, "{protocols}: {}", answer.text());
    }

    fs::remove_file(&file).unwrap();
    becomes(401, "without the file nobody is known by it");
    told("there is no such file");

    // What is done through the socket is noted as well, with the command and who the kernel says it was.
    let ran = guarded.node.http().request("POST", "/run/no/pod/c?cmd=touch+me", &[]).unwrap();
    assert_eq!(ran.status, 404, "{}", ran.text());
    guarded.audit(&[
        "allowed",
        "uid=0",
        &format!("pid={}", std::process::id()),
        "/run/no/pod/c cmd=",
        "touch me",
    ]);
}
