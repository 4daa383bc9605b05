//! What is issued to pods for a time: tokens of service accounts and certificates, of a real API server and a signer that is the test itself.
//! A proxy lets their time seem short, because an API server issues neither for less than ten minutes.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use mainstay_e2e::{
    idle_with,
    member::{Member, PODS, container_id},
    seen::{PATIENCE, persisted},
    sh, with,
};
use mainstay_testkit::{
    Authority, Certificate, Containerd, ControlPlane, FlakyProxy, Flavor, tls_client, wait_until,
};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests";
const SIGNER: &str = "example.com/mesh";
/// Longer than the shortest time between two renewals, and not much.
const SHORT: Duration = Duration::from_secs(20);

/// A container's file system, by a command in it.
fn run(member: &Member, id: &str, script: &str) -> Result<String, String> {
    let id = id.trim_start_matches("containerd://");
    let said = member.containerd.crictl(&["exec", "--sync", id, "/bin/sh", "-c", script]);
    said.map_err(|error| format!("{error:#}"))
}

/// The requests of a pod that nobody has decided, oldest first.
fn pending(member: &Member, pod: &str) -> Result<Vec<Value>, String> {
    let list = member.get(REQUESTS)?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let open = |it: &Value| it["status"]["conditions"].as_array().is_none_or(Vec::is_empty);
    Ok(all.into_iter().filter(|it| it["spec"]["podName"] == pod && open(it)).collect())
}

fn wait_for_requests(member: &Member, pod: &str, many: usize) -> Result<Vec<Value>> {
    wait_until(3 * PATIENCE, &format!("{many} requests for certificates of {pod}"), || {
        let open = pending(member, pod)?;
        if open.len() == many { Ok(open) } else { Err(format!("{open:?}")) }
    })
}

/// What a signer says, as administrator.
fn decide(member: &Member, request: &Value, kind: &str, message: &str, more: Value) -> Result<()> {
    let condition = json!({
        "type": kind, "status": "True", "reason": "ByTheTest", "message": message, "lastTransitionTime": Timestamp::now(),
    });
    let status = with(json!({ "conditions": [condition] }), more);
    let name = request["metadata"]["name"].as_str().context("no name")?;
    member.patch(&format!("{REQUESTS}/{name}/status"), &json!({ "status": status }))
}

/// Issues what a request asks for: a certificate for an hour, behind a line that is not to reach the pod.
fn issue(member: &Member, authority: &Authority, request: &Value, name: &str) -> Result<()> {
    let der = STANDARD.decode(request["spec"]["stubPKCS10Request"].as_str().context("no request in it")?)?;
    let from = u64::try_from(Timestamp::now().as_second())?;
    let leaf = authority.sign(&der, name, &(from..from + 3600))?;
    let at =
        |second: u64| Timestamp::from_second(i64::try_from(second).unwrap_or_default()).unwrap_or_default();
    let more = json!({
        "certificateChain": format!("{leaf}the authority itself:\n{}", authority.pem),
        "notBefore": at(from), "notAfter": at(from + 3600), "beginRefreshAt": at(from + 1800),
    });
    decide(member, request, "Issued", "here it is", more)
}

/// A credential bundle, taken apart.
fn bundle(text: &str) -> Result<Certificate> {
    let (key, chain) = text.split_once("-----BEGIN CERTIFICATE-----").context("no certificate")?;
    ensure!(key.starts_with("-----BEGIN PRIVATE KEY-----"), "the key comes first");
    ensure!(!text.contains("the authority itself"), "{chain}");
    Ok(Certificate { certificate: format!("-----BEGIN CERTIFICATE-----{chain}"), key: key.to_owned() })
}

fn certified(key_type: &str, more: Value) -> Value {
    json!({ "podCertificate": with(json!({ "signerName": SIGNER, "keyType": key_type }), more) })
}

fn spec(container: Value, sources: Vec<Value>) -> Value {
    json!({
        "serviceAccountName": "default", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": [container], "volumes": [{ "name": "v", "projected": { "sources": sources } }],
    })
}

fn mounts() -> Value {
    json!([{ "name": "v", "mountPath": "/v" }])
}

/// Who the API server takes the bearer for.
fn whose(member: &Member, token: &str) -> Result<Value> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } });
    let answer = member.plane.create("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
    Ok(answer["status"]["user"]["username"].clone())
}

fn kept(member: &Member) -> Result<usize, String> {
    let path = member.node.root().join("mainstay/api/objects");
    let names = std::fs::read_dir(path).map_err(|error| error.to_string())?.flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with("certificate-")).count())
}

#[test]
fn tokens_and_certificates_are_renewed_while_their_pods_run() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let mut member = Member::on(containerd, plane, kubeconfig, |_, builder| {
        Ok(builder.config("crashLoopBackOff: {maxContainerRestartPeriod: 1s}"))
    })?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    member.plane.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    let authority = Authority::new("mesh")?;

    proxy.shorten(Some(SHORT));
    let sources = vec![
        json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } }),
        certified(
            "ECDSAP256",
            json!({
                "credentialBundlePath": "bundle.pem", "keyPath": "deep/key.pem", "certificateChainPath": "chain.pem",
                "maxExpirationSeconds": 7200, "userAnnotations": { "example.com/zone": "a" },
            }),
        ),
        certified("ECDSAP384", json!({ "credentialBundlePath": "p384.pem" })),
        certified("ED25519", json!({ "credentialBundlePath": "ed.pem" })),
    ];
    let script = "while ! test -e /tmp/go; do sleep 0.2; done; exit 1";
    let container = with(sh("c", script), json!({ "volumeMounts": mounts() }));
    let made = member.bind("certified", spec(container, sources))?;
    let requests = wait_for_requests(&member, "certified", 3)?;
    let first =
        requests.iter().find(|it| it["spec"]["maxExpirationSeconds"] == 7200).context("none as asked")?;
    ensure!(first["spec"]["signerName"] == SIGNER && first["spec"]["nodeName"] == "node", "{first}");
    ensure!(first["spec"]["unverifiedUserAnnotations"] == json!({ "example.com/zone": "a" }), "{first}");
    ensure!(first["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"], "{first}");
    for request in &requests {
        issue(&member, &authority, request, "first")?;
    }
    let pod = member.ready("certified")?;
    let id = container_id(&pod).to_owned();
    let read = |member: &Member, id: &str, file: &str| run(member, id, &format!("cat /v/{file}"));
    let text = |file: &str| read(&member, &id, file).map_err(anyhow::Error::msg);
    let before = text("bundle.pem")?;
    let together = format!("{}\n{}", text("deep/key.pem")?.trim(), text("chain.pem")?.trim());
    ensure!(before.trim() == together, "the files belong together: {together}\n\n{before}");
    for file in ["bundle.pem", "p384.pem", "ed.pem"] {
        let own = bundle(&text(file)?)?;
        ensure!(own.certificate.matches("BEGIN").count() == 2, "{}", own.certificate);
        // Only a certificate that was issued to the key is taken.
        tls_client(&authority.pem, Some(&own)).with_context(|| file.to_owned())?;
    }
    let token = text("token")?;
    ensure!(whose(&member, &token)? == "system:serviceaccount:default:default");

    // Another one meanwhile is refused.
    let plain = |key_type: &str| {
        spec(idle_with(mounts()), vec![certified(key_type, json!({ "credentialBundlePath": "b" }))])
    };
    member.bind("denied", plain("ECDSAP256"))?;
    let request = wait_for_requests(&member, "denied", 1)?;
    decide(&member, &request[0], "Denied", "not you", json!({}))?;
    member.told("denied", "Denied", "was denied: not you (ByTheTest)")?;
    member.told("denied", "FailedMount", "was denied: not you (ByTheTest)")?;

    // Tokens are renewed by the node alone.
    wait_until(3 * PATIENCE, "another token in the same container", || {
        let now = read(&member, &id, "token")?;
        if now == token { Err("the same".to_owned()) } else { Ok(()) }
    })?;
    ensure!(whose(&member, &text("token")?)? == "system:serviceaccount:default:default");
    // Certificates by their signer, which takes its time: what there is stays, and is told to be over.
    let requests = wait_for_requests(&member, "certified", 3)?;
    member.told("certified", "CertificateExpired", "expired at")?;
    ensure!(text("bundle.pem")? == before, "it is as it was");
    proxy.shorten(None);
    for request in &requests {
        issue(&member, &authority, request, "second")?;
    }
    let after = wait_until(3 * PATIENCE, "another certificate in the same container", || {
        let now = read(&member, &id, "bundle.pem")?;
        if now == before { Err("the same".to_owned()) } else { Ok(now) }
    })?;
    tls_client(&authority.pem, Some(&bundle(&after)?))?;
    ensure!(bundle(&after)?.key != bundle(&before)?.key, "each has a key of its own");
    let now = member.get(&format!("{PODS}/certified")).map_err(anyhow::Error::msg)?;
    ensure!(container_id(&now) == id, "it was restarted: {now}");

    // Without the API server, through a restart of mainstay and of the container.
    wait_until(PATIENCE, "the certificates on disk", || match kept(&member)? {
        3 => Ok(()),
        other => Err(format!("{other}")),
    })?;
    persisted(&member.node)?;
    let asked = member.get(REQUESTS).map_err(anyhow::Error::msg)?["items"].as_array().map(Vec::len);
    member.plane.stop_server();
    member.node.kill9();
    member.node.start_again()?;
    member.containerd.touch(id.trim_start_matches("containerd://"), "/tmp/go")?;
    let again = wait_until(2 * PATIENCE, "the container to start again", || {
        let pod = member.own("certified")?;
        let runs = pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
        if runs && container_id(&pod) != id { Ok(pod) } else { Err(pod["status"].to_string()) }
    })?;
    let seen = read(&member, container_id(&again), "bundle.pem").map_err(anyhow::Error::msg)?;
    ensure!(seen == after, "the same certificate");
    member.plane.start_server()?;
    // What was denied is asked for again after a start; what there is is not.
    wait_for_requests(&member, "denied", 1)?;
    let list = member.get(REQUESTS).map_err(anyhow::Error::msg)?;
    ensure!(list["items"].as_array().map(|all| all.len() - 1) == asked, "{list}");

    // What nobody has any more is not kept.
    for name in ["certified", "denied"] {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
        member.gone(&format!("{PODS}/{name}"))?;
    }
    wait_until(2 * PATIENCE, "the certificates to be forgotten", || match kept(&member)? {
        0 => Ok(()),
        left => Err(format!("{left} are kept")),
    })?;
    // The proxy goes after who uses it.
    drop(member);
    drop(proxy);
    Ok(())
}

/// What openssl says, in a directory of the test's.
fn openssl(dir: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("openssl").current_dir(dir).args(args).output().context("openssl")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "openssl {args:?}: {}", text(&output.stderr));
    Ok(text(&output.stdout))
}

/// Keys of the kinds that take long or that few libraries make, which a library that is not ours signs and reads.
#[test]
fn keys_that_are_rare_are_made_as_well() -> Result<()> {
    let member = Member::start("{}")?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    member.plane.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    let dir = member.containerd.dir().join("mesh");
    std::fs::create_dir_all(&dir)?;
    openssl(
        &dir,
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
            "-subj",
            "/CN=mesh",
            "-days",
            "1",
        ],
    )?;
    let kinds = [("RSA3072", "3072 bit"), ("RSA4096", "4096 bit"), ("ECDSAP521", "521 bit")];
    let sources = kinds
        .iter()
        .map(|(kind, _)| certified(kind, json!({ "credentialBundlePath": format!("{kind}.pem") })));
    member.bind("rare", spec(idle_with(mounts()), sources.collect()))?;
    for request in wait_for_requests(&member, "rare", kinds.len())? {
        // The API server has seen that whoever asks has the key; so does this.
        let der =
            STANDARD.decode(request["spec"]["stubPKCS10Request"].as_str().context("no request in it")?)?;
        std::fs::write(dir.join("request.der"), der)?;
        openssl(&dir, &["req", "-inform", "DER", "-in", "request.der", "-verify", "-noout"])?;
        openssl(
            &dir,
            &[
                "x509",
                "-req",
                "-inform",
                "DER",
                "-in",
                "request.der",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-subj",
                "/CN=rare",
                "-days",
                "1",
                "-out",
                "leaf.crt",
            ],
        )?;
        let dates = openssl(
            &dir,
            &["x509", "-in", "leaf.crt", "-noout", "-startdate", "-enddate", "-dateopt", "iso_8601"],
        )?;
        let date = |name: &str| -> Result<String> {
            let line = dates.lines().find_map(|line| line.strip_prefix(name)).context("no such date")?;
            Ok(line.replace(' ', "T"))
        };
        let (from, until) = (date("notBefore=")?, date("notAfter=")?);
        let begin: Timestamp = from.parse()?;
        let more = json!({
            "certificateChain": std::fs::read_to_string(dir.join("leaf.crt"))?, "notBefore": from, "notAfter": until,
            "beginRefreshAt": begin.checked_add(jiff::SignedDuration::from_hours(12))?,
        });
        decide(&member, &request, "Issued", "here it is", more)?;
    }
    let pod = member.ready("rare")?;
    for (kind, shown) in kinds {
        let text =
            run(&member, container_id(&pod), &format!("cat /v/{kind}.pem")).map_err(anyhow::Error::msg)?;
        std::fs::write(dir.join("bundle.pem"), text)?;
        let key = openssl(&dir, &["pkey", "-in", "bundle.pem", "-noout", "-text", "-check"])?;
        ensure!(
            key.contains(shown) && key.contains("Key is valid"),
            "{kind}: {}",
            key.lines().next().unwrap_or_default()
        );
        let public = openssl(&dir, &["pkey", "-in", "bundle.pem", "-pubout"])?;
        let certified = openssl(&dir, &["x509", "-in", "bundle.pem", "-noout", "-pubkey"])?;
        ensure!(public == certified, "{kind}: the certificate is another key's");
    }
    Ok(())
}
